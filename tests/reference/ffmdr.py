"""Slow, obvious versions of FFMDR (federated Douglas-Rachford for min-max) and of its baselines.

Conventions of algorithms.py: z = (x, y) with x the first n_x entries, field(k, z, r, t) is client k's saddle field
(gradient in x, minus the gradient in y) on its minibatch of local step t of round r, full_field(k, z) is the same
over all of client k's samples, who(r) lists the distinct participants of round r, all counted from 0. Within one
round of one client t goes 0, 1, 2, ... and every new minibatch has a new t.

Common to all:
- project(z) is applied by the clients after every local step, to the whole of z; the server's point is not
  projected unless a docstring says so;
- x and y move together, both from the old point, unless a docstring says so;
- means over participants are plain (no sample counts); a round without participants leaves a baseline's server as
  it is (for ffmdr see there);
- trajectory[r] is what the server would send in round r + 1 (its z; of ffmdr only the x part exists), and every
  function returns (trajectory, log), one dict of log per round.

The l1 term of the baselines (7): subgradient = lambda adds lambda * sign(x_j), sign(0) = 0, to the x field of every
client for the first `penalised` entries of x (None: all n_x), wherever a field is used, full ones included; or
server_prox(v, step), the prox of step * g, is applied to the server's new x at the end of every round that had
participants. Its step is prox_step, by default the length of the round's way in x: local steps times client step
times the server's factor (each docstring has its own). Or local_prox(v, step), the prox of step * g, is applied to x right
after every local step, as in the proximal gradient method, with the size of that step in x, before project.
"""

import numpy as np


def identity(z):
    return z


def no_prox(v, step):
    return v


def l1_prox(lam, penalised):
    """prox(v, step) of lam * the l1 norm of the first `penalised` entries."""

    def prox(v, step):
        out = np.array(v, dtype=float)
        for j in range(penalised):
            if out[j] > step * lam:
                out[j] -= step * lam
            elif out[j] < -step * lam:
                out[j] += step * lam
            else:
                out[j] = 0.0
        return out

    return prox


def _distinct(clients):
    clients = list(clients)
    assert len(set(clients)) == len(clients), "a client may appear once in a round"
    return clients


def _steps(n, n_x, primal, dual):
    out = np.full(n, float(primal))
    out[n_x:] = dual
    return out


def _with_l1(field, n_x, lam, penalised):
    """field plus lam * sign(x) on the first `penalised` entries of x."""
    number = n_x if penalised is None else penalised
    assert number <= n_x

    def wrapped(k, z, *position, **named):
        out = np.array(field(k, z, *position, **named), dtype=float)
        for j in range(number):
            out[j] += lam * np.sign(z[j])
        return out

    return wrapped


def _after(project, local_prox, n_x):
    """(z, size of the step in x) -> z after its prox and projection."""

    def after(z, step):
        return project(np.concatenate([local_prox(z[:n_x], step), z[n_x:]]))

    return after


def _server_prox(z, n_x, server_prox, step):
    if server_prox is None:
        return z
    return np.concatenate([server_prox(z[:n_x], step), z[n_x:]])


# ---------------------------------------------------------------- FFMDR


def ffmdr(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    beta,
    inner="sgda",
    stop="fixed_epochs",
    epochs=1,
    steps_per_epoch=None,
    lr=None,
    lr_dual=None,
    full_field=None,
    sample_field=None,
    samples=None,
    rows=None,
    solve=None,
    eps=None,
    modulus=None,
    tolerance=0.0,
    relaxation=1.0,
    prox=no_prox,
    server_prox="derived",
    project=identity,
):
    """(trajectory, log) of FFMDR (5.1, 5.2). trajectory[r] is the server's z, n_x numbers; no dual is ever sent.

    z0 = (x_0, y_0). Start: z = x_i = w_i = ztilde_i = x_0 and y_i = y_0 on every client. Round r, client k of who(r):
    x_k <- x_k + relaxation * (z - w_k), with the old w_k;
    (w_k, y_k) <- about the saddle point of f_k(w, y) + ||w - x_k||^2 / (2 beta), started at the old (w_k, y_k);
    ztilde_k = 2 w_k - x_k.
    Server: zbar = the mean of ztilde over all N clients, z = prox(zbar, beta) ("derived") or prox(zbar, beta / N)
    ("printed", as in the paper's (3)). The server's step is done in every round, also in one without participants;
    that matters only before the first participant, where it replaces x_0 by prox(x_0).

    Inner problem, u = (w, y), T(u) = full_field(k, u) + ((w - x_k) / beta, 0), step = (lr on w, lr_dual on y):
    - "sgda": u <- project(u - step * (field(k, u, r, t) + ((w - x_k) / beta, 0))), t = 0, 1, ... over all epochs of
      the round; steps_per_epoch(k) steps an epoch.
    - "extragradient": half = project(u - step T(u)), u <- project(u - step T(half)); an epoch is one such step and
      no minibatch is drawn.
    - "saga": a table of the fields sample_field(k, j, u), j < samples(k), without the prox term, filled at the warm
      start in every round. Step t, with rows(k, r, t) the B distinct samples of the minibatch: new_j at the old u,
      direction = (1/B) sum (new_j - table_j) + the mean of the whole table + ((w - x_k) / beta, 0),
      u <- project(u - step * direction), then table_j <- new_j; steps_per_epoch(k) steps an epoch.
    stop:
    - "fixed_epochs": exactly `epochs` epochs;
    - "residual": after each epoch, at most `epochs`; it ends once ||T(u)||^2 <= eps modulus(k)^2 ||u_old - u||^2, where
      u_old is the warm start, or ||T(u)|| <= tolerance. T is not corrected for the projection, so with an active
      constraint the rule need never hold. Every client has its own end; at least one epoch is done;
    - "exact": (w_k, y_k) = solve(k, x_k), not projected; no epochs.

    log[r], after the round: x, w (N x n_x), y, ztilde, zbar, z; for the participants old (u_old), epochs (done),
    stopped ("rule", "tolerance" or None) and residual (||T|| at the end, None without full_field); fixed_point, the
    root mean square over all N clients of ||z - w_i||, and move, ||z - the z of before the round||.
    """
    assert inner in ("sgda", "extragradient", "saga")
    assert stop in ("fixed_epochs", "residual", "exact")
    assert server_prox in ("derived", "printed")
    z0 = np.array(z0, dtype=float)
    n = len(z0)
    z = z0[:n_x].copy()
    x = np.array([z0[:n_x].copy() for _ in range(N)])
    w = x.copy()
    ztilde = x.copy()
    y = np.array([z0[n_x:].copy() for _ in range(N)])
    step = None if lr is None else _steps(n, n_x, lr, lr_dual)
    trajectory = []
    log = []
    for r in range(rounds):
        old = {}
        done = {}
        stopped = {}
        residual = {}
        for k in _distinct(who(r)):
            x[k] = x[k] + relaxation * (z - w[k])
            u = np.concatenate([w[k], y[k]])
            old[k] = u.copy()
            done[k] = 0
            stopped[k] = None

            def pull(v, centre=x[k]):
                out = np.zeros(n)
                out[:n_x] = (v[:n_x] - centre) / beta
                return out

            def T(v, k=k, pull=pull):
                return full_field(k, v) + pull(v)

            if stop == "exact":
                primal, dual = solve(k, x[k].copy())
                u = np.concatenate([primal, dual])
            else:
                t = 0
                if inner == "saga":
                    table = np.array([sample_field(k, j, u) for j in range(samples(k))], dtype=float)
                for _ in range(epochs):
                    if inner == "extragradient":
                        half = project(u - step * T(u))
                        u = project(u - step * T(half))
                    elif inner == "sgda":
                        for _ in range(steps_per_epoch(k)):
                            u = project(u - step * (field(k, u, r, t) + pull(u)))
                            t += 1
                    else:
                        for _ in range(steps_per_epoch(k)):
                            batch = _distinct(rows(k, r, t))
                            new = {j: np.array(sample_field(k, j, u), dtype=float) for j in batch}
                            direction = np.zeros(n)
                            for j in range(samples(k)):
                                direction += table[j] / samples(k)
                            for j in batch:
                                direction += (new[j] - table[j]) / len(batch)
                            direction += pull(u)
                            u = project(u - step * direction)
                            for j in batch:
                                table[j] = new[j]
                            t += 1
                    done[k] += 1
                    if stop == "residual":
                        size = np.sum(T(u) ** 2)
                        if size <= eps * modulus(k) ** 2 * np.sum((old[k] - u) ** 2):
                            stopped[k] = "rule"
                            break
                        if np.sqrt(size) <= tolerance:
                            stopped[k] = "tolerance"
                            break
            residual[k] = None if full_field is None else np.sqrt(np.sum(T(u) ** 2))
            w[k] = u[:n_x]
            y[k] = u[n_x:]
            ztilde[k] = 2 * w[k] - x[k]
        zbar = np.zeros(n_x)
        for k in range(N):
            zbar += ztilde[k] / N
        before = z
        z = np.array(prox(zbar, beta if server_prox == "derived" else beta / N), dtype=float)
        trajectory.append(z.copy())
        log.append(
            {
                "x": x.copy(),
                "w": w.copy(),
                "y": y.copy(),
                "ztilde": ztilde.copy(),
                "zbar": zbar,
                "z": z.copy(),
                "old": old,
                "epochs": done,
                "stopped": stopped,
                "residual": residual,
                "fixed_point": fixed_point_residual(z, w),
                "move": np.sqrt(np.sum((z - before) ** 2)),
            }
        )
    return trajectory, log


def fixed_point_residual(z, w):
    """sqrt((1/N) sum_i ||z - w_i||^2): zero exactly at a fixed point, and what x moves by in a full round."""
    total = 0.0
    for k in range(len(w)):
        total += np.sum((z - w[k]) ** 2) / len(w)
    return np.sqrt(total)


def stationarity(z, gradient, prox, step):
    """||z - prox(z - step * gradient, step)|| / step, zero iff -gradient is a subgradient of g at z."""
    return np.sqrt(np.sum((z - prox(z - step * gradient, step)) ** 2)) / step


def potential(
    now, before, F, g, *, beta, delta=0.125, L=None, participation=None, form="derived", dual_term=True
):
    """H of Theorem 1, equation (11), at the log entries of a round and of the round before it.

    F(k, w) = max_y f_k(w, y), g(x) a number, participation p_i (default all one), delta of the theorem (1/8 in its
    Remark 1). With D = sum_i (||x_i - w_i||^2 - ||x_i - z||^2) / (2 beta) + ||w_i - z||^2 / beta
    + delta ||w_i - w'_i||^2 / beta + p_i ||(y_i, w_i) - (y'_i, w'_i)||^2 / (12 L^2), ' the round before:
    - "literal": (1/N) sum F_i(w_i) + g(z) + D, as (11) is written with the F of (4). The norms are N times too heavy
      for that F, and it need not decrease.
    - "derived": ((sum F_i(w_i) + D) / N) + g(z), which is (11) for sum F_i + N g over N. It belongs to server_prox
      "derived".
    - "printed": ((sum F_i(w_i) + g(z) + D) / N), the same for sum F_i + g. It belongs to server_prox "printed", and
      is what the paper's proof uses (its (45) has F as a sum).
    dual_term False leaves the 1 / (12 L^2) term out (its coefficient has the wrong dimension; without inner errors
    the rest decreases by itself).
    """
    N = len(now["w"])
    z = now["z"]
    values = 0.0
    D = 0.0
    for k in range(N):
        x, w, v = now["x"][k], now["w"][k], before["w"][k]
        values += F(k, w)
        D += (np.sum((x - w) ** 2) - np.sum((x - z) ** 2)) / (2 * beta)
        D += np.sum((w - z) ** 2) / beta
        D += delta * np.sum((w - v) ** 2) / beta
        if dual_term:
            p = 1.0 if participation is None else participation[k]
            D += p * (np.sum((w - v) ** 2) + np.sum((now["y"][k] - before["y"][k]) ** 2)) / (12 * L**2)
    if form == "literal":
        return values / N + g(z) + D
    if form == "derived":
        return (values + D) / N + g(z)
    assert form == "printed", form
    return (values + g(z) + D) / N


# ---------------------------------------------------------------- Local SGDA and its momentum variant


def local_sgda(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    lr,
    lr_dual,
    local_steps,
    server_lr=1.0,
    subgradient=0.0,
    penalised=None,
    server_prox=None,
    prox_step=None,
    local_prox=no_prox,
    project=identity,
):
    """algorithms.local_sgda with the l1 term. Default prox_step: server_lr * local_steps * lr. log[r]: local."""
    after = _after(project, local_prox, n_x)
    field = _with_l1(field, n_x, subgradient, penalised)
    z = np.array(z0, dtype=float)
    step = _steps(len(z), n_x, lr, lr_dual)
    trajectory = []
    log = []
    for r in range(rounds):
        local = {}
        for k in _distinct(who(r)):
            u = z.copy()
            local[k] = []
            for t in range(local_steps):
                u = after(u - step * field(k, u, r, t), lr)
                local[k].append(u.copy())
        if local:
            z = z + server_lr * (sum(us[-1] for us in local.values()) / len(local) - z)
            way = server_lr * local_steps * lr
            z = _server_prox(z, n_x, server_prox, way if prox_step is None else prox_step)
        trajectory.append(z.copy())
        log.append({"local": local})
    return trajectory, log


def momentum_local_sgda(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    lr,
    lr_dual,
    local_steps,
    a,
    b_x,
    b_y,
    subgradient=0.0,
    penalised=None,
    server_prox=None,
    prox_step=None,
    local_prox=no_prox,
    project=identity,
):
    """(trajectory, log) of Momentum Local SGDA (5.3).

    A local step at u with direction d: u <- project(u - a * step * d), then d <- (1 - b a) d + b a field at the new u
    on a new minibatch, b = b_x on the x entries and b_y on the y entries. local_steps of them a round. The server
    takes the plain means of the last u and the last d and sends both.

    In the first round with participants (round 0) the server has no d: a client starts with d = field(k, z, r, 0) and
    its local step s = 0, 1, ... draws minibatch t = s + 1. In later rounds local step s draws t = s. Only u is
    projected, and after the combination with a (not u - step * d before it).

    Default prox_step: a * local_steps * lr; d is not touched by the prox.
    Sent: z and d down (z alone in the first round), u and d up. log[r]: d (after the round, None before the first
    participants), local {client: iterates}, directions {client: d after each local step}.
    """
    after = _after(project, local_prox, n_x)
    field = _with_l1(field, n_x, subgradient, penalised)
    z = np.array(z0, dtype=float)
    n = len(z)
    step = _steps(n, n_x, lr, lr_dual)
    b = _steps(n, n_x, b_x, b_y)
    d_server = None
    trajectory = []
    log = []
    for r in range(rounds):
        local = {}
        directions = {}
        for k in _distinct(who(r)):
            u = z.copy()
            if d_server is None:
                d = np.array(field(k, u, r, 0), dtype=float)
                first = 1
            else:
                d = d_server.copy()
                first = 0
            local[k] = []
            directions[k] = []
            for s in range(local_steps):
                u = after(u - a * step * d, a * lr)
                d = (1 - b * a) * d + b * a * field(k, u, r, first + s)
                local[k].append(u.copy())
                directions[k].append(d.copy())
        if local:
            z = sum(us[-1] for us in local.values()) / len(local)
            d_server = sum(ds[-1] for ds in directions.values()) / len(directions)
            z = _server_prox(z, n_x, server_prox, a * local_steps * lr if prox_step is None else prox_step)
        trajectory.append(z.copy())
        log.append(
            {
                "d": None if d_server is None else d_server.copy(),
                "local": local,
                "directions": directions,
            }
        )
    return trajectory, log


# ---------------------------------------------------------------- Fed-Norm-SGDA


def fed_norm_sgda(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    eta_x,
    eta_y,
    gamma_x,
    gamma_y,
    I,
    weights=None,
    I_eff=None,
    subgradient=0.0,
    penalised=None,
    server_prox=None,
    prox_step=None,
    local_prox=no_prox,
    project=identity,
):
    """(trajectory, log) of Fed-Norm-SGDA (5.4) with all a_i^k = 1.

    Client k takes I(k) steps u <- project(u - (eta_x, eta_y) * field), t = 0..I(k)-1, and sends G_k, the mean of its
    I(k) fields. Server: z <- project(z - I_eff * (gamma_x, gamma_y) * sum over the P participants of wt_k G_k), with
    local_prox of step I_eff * gamma_x before it,
    wt_k = (N / P) w_k, w_k = 1/N or, with weights (one number per client of 0..N-1), weights[k] / sum of all N
    weights (so that the wt_k of a round need not sum to one). I_eff: None for the plain mean of I(k) over the
    participants, or a number.

    Default prox_step: I_eff * gamma_x; the prox comes after the projection. log[r]: G {client: vector}, I_eff (None
    without participants), local {client: iterates}.
    """
    after = _after(project, local_prox, n_x)
    field = _with_l1(field, n_x, subgradient, penalised)
    z = np.array(z0, dtype=float)
    client_step = _steps(len(z), n_x, eta_x, eta_y)
    gamma = _steps(len(z), n_x, gamma_x, gamma_y)
    trajectory = []
    log = []
    for r in range(rounds):
        G = {}
        local = {}
        numbers = []
        for k in _distinct(who(r)):
            u = z.copy()
            total = np.zeros(len(z))
            local[k] = []
            for t in range(I(k)):
                h = field(k, u, r, t)
                total += h
                u = after(u - client_step * h, eta_x)
                local[k].append(u.copy())
            G[k] = total / I(k)
            numbers.append(I(k))
        effective = None
        if G:
            P = len(G)
            effective = sum(numbers) / P if I_eff is None else I_eff
            direction = np.zeros(len(z))
            for k in G:
                w = 1 / N if weights is None else weights[k] / sum(weights)
                direction += N / P * w * G[k]
            z = after(z - effective * gamma * direction, effective * gamma_x)
            z = _server_prox(z, n_x, server_prox, effective * gamma_x if prox_step is None else prox_step)
        trajectory.append(z.copy())
        log.append({"G": G, "I_eff": effective, "local": local})
    return trajectory, log


# ---------------------------------------------------------------- FedSGDA+ and FedSGDA-M


def fedsgda_plus(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    lr,
    lr_dual,
    local_steps,
    refresh,
    server_lr=1.0,
    subgradient=0.0,
    penalised=None,
    server_prox=None,
    prox_step=None,
    local_prox=no_prox,
    project=identity,
):
    """(trajectory, log) of FedSGDA+ (5.5).

    At the beginning of rounds 0, refresh, 2 refresh, ... (with participants or not) the snapshot becomes the server's
    x. Local step t: the x entries of field at (x_i, y_i) and the y entries of field at (snapshot, y_i), same
    minibatch, both at the old point; project. Server: z <- z + server_lr * (mean of the last u - z), x and y alike.

    Default prox_step: server_lr * local_steps * lr. log[r]: snapshot (used in the round), local {client: iterates}.
    """
    after = _after(project, local_prox, n_x)
    field = _with_l1(field, n_x, subgradient, penalised)
    z = np.array(z0, dtype=float)
    step = _steps(len(z), n_x, lr, lr_dual)
    trajectory = []
    log = []
    for r in range(rounds):
        if r % refresh == 0:
            snapshot = z[:n_x].copy()
        local = {}
        for k in _distinct(who(r)):
            u = z.copy()
            local[k] = []
            for t in range(local_steps):
                h = np.array(field(k, u, r, t), dtype=float)
                h[n_x:] = field(k, np.concatenate([snapshot, u[n_x:]]), r, t)[n_x:]
                u = after(u - step * h, lr)
                local[k].append(u.copy())
        if local:
            z = z + server_lr * (sum(us[-1] for us in local.values()) / len(local) - z)
            way = server_lr * local_steps * lr
            z = _server_prox(z, n_x, server_prox, way if prox_step is None else prox_step)
        trajectory.append(z.copy())
        log.append({"snapshot": snapshot.copy(), "local": local})
    return trajectory, log


def fedsgda_m(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    lr,
    lr_dual,
    local_steps,
    alpha,
    subgradient=0.0,
    penalised=None,
    server_prox=None,
    prox_step=None,
    local_prox=no_prox,
    project=identity,
):
    """(trajectory, log) of FedSGDA-M (5.5), STORM directions on each client.

    A local step at u with direction v and minibatch t: u_new = project(u - step * v),
    v <- field(u_new; t) + (1 - alpha) (v - field(u; t)), both fields on minibatch t. The server takes the plain means
    of the last u and the last v and sends both. The first round and the numbering of minibatches are those of
    momentum_local_sgda: v = field(k, z, r, 0) and t = s + 1 in the first round with participants, t = s later. In that
    first round every client starts with its own v.

    Default prox_step: local_steps * lr; v is not touched by the prox. log[r]: v (after the round, None before the
    first participants), local {client: iterates}, directions {client: v after each local step}.
    """
    after = _after(project, local_prox, n_x)
    field = _with_l1(field, n_x, subgradient, penalised)
    z = np.array(z0, dtype=float)
    step = _steps(len(z), n_x, lr, lr_dual)
    v_server = None
    trajectory = []
    log = []
    for r in range(rounds):
        local = {}
        directions = {}
        for k in _distinct(who(r)):
            u = z.copy()
            if v_server is None:
                v = np.array(field(k, u, r, 0), dtype=float)
                first = 1
            else:
                v = v_server.copy()
                first = 0
            local[k] = []
            directions[k] = []
            for s in range(local_steps):
                new = after(u - step * v, lr)
                v = field(k, new, r, first + s) + (1 - alpha) * (v - field(k, u, r, first + s))
                u = new
                local[k].append(u.copy())
                directions[k].append(v.copy())
        if local:
            z = sum(us[-1] for us in local.values()) / len(local)
            v_server = sum(vs[-1] for vs in directions.values()) / len(directions)
            z = _server_prox(z, n_x, server_prox, local_steps * lr if prox_step is None else prox_step)
        trajectory.append(z.copy())
        log.append(
            {
                "v": None if v_server is None else v_server.copy(),
                "local": local,
                "directions": directions,
            }
        )
    return trajectory, log


# ---------------------------------------------------------------- FEDNEST


def fednest(
    field,
    full_field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    alpha,
    beta,
    T,
    I_x,
    I_y,
    corrected=True,
    mean_gradient="full",
    subgradient=0.0,
    penalised=None,
    server_prox=None,
    prox_step=None,
    local_prox=no_prox,
    project=identity,
):
    """(trajectory, log) of FEDNEST for minimax (5.6), LFedNest with corrected False.

    Minibatches come from field(k, z, r, t, phase=...). A round: for j = 0..T-1 FEDINN, then FEDOUT, all with the
    participants of who(r).
    FEDINN j: phase 2j, q = the mean over participants of the y entries of full_field(k, z) (or of
    field(k, z, r, 0, phase=2j) with mean_gradient "minibatch"); phase 2j+1, client k from y_k = y takes I_y(k) steps
    y_k <- y_k - (beta / I_y(k)) * (field at (x, y_k) - field at (x, y) + q), t = 0, 1, ..., both fields on minibatch
    t (y entries: minus the gradient, so this is ascent); server: y = the mean of y_k.
    FEDOUT: the same for x with alpha, I_x, phases 2T and 2T+1, and the last y held.
    corrected False: no phases 2j and 2T, the direction is field at the moving point alone. The remaining phases keep
    their numbers 2j+1 and 2T+1 (a caller who counts only phases that happen maps p to (p - 1) / 2).

    project is applied to (x, y_k), resp. (x_k, y), after every local step, and only the moving part of its answer is
    kept. The prox is applied once, after FEDOUT; default prox_step: alpha.
    log[r]: q (list of T), y (list of T server y), h (None when not corrected), local (list of T + 1 dicts {client:
    whole-z iterates}).
    """
    assert mean_gradient in ("full", "minibatch")
    after = _after(project, local_prox, n_x)
    field = _with_l1(field, n_x, subgradient, penalised)
    full_field = _with_l1(full_field, n_x, subgradient, penalised)
    z = np.array(z0, dtype=float)
    n = len(z)
    trajectory = []
    log = []
    for r in range(rounds):
        clients = _distinct(who(r))
        entry = {"q": [], "y": [], "h": None, "local": []}
        for j in range(T + 1 if clients else 0):
            outer = j == T
            moves = np.zeros(n)
            if outer:
                moves[:n_x] = 1.0
            else:
                moves[n_x:] = 1.0
            mean = np.zeros(n)
            if corrected:
                for k in clients:
                    if mean_gradient == "full":
                        mean += full_field(k, z) / len(clients)
                    else:
                        mean += field(k, z, r, 0, phase=2 * j) / len(clients)
            local = {}
            for k in clients:
                u = z.copy()
                steps = I_x(k) if outer else I_y(k)
                size = (alpha if outer else beta) / steps
                local[k] = []
                for t in range(steps):
                    direction = np.array(field(k, u, r, t, phase=2 * j + 1), dtype=float)
                    if corrected:
                        direction += mean - field(k, z, r, t, phase=2 * j + 1)
                    u = np.where(moves == 1, after(u - size * moves * direction, size), z)
                    local[k].append(u.copy())
            ends = sum(us[-1] for us in local.values()) / len(clients)
            entry["local"].append(local)
            if outer:
                z = np.concatenate([ends[:n_x], z[n_x:]])
                entry["h"] = mean[:n_x].copy() if corrected else None
            else:
                z = np.concatenate([z[:n_x], ends[n_x:]])
                entry["q"].append(mean[n_x:].copy() if corrected else None)
                entry["y"].append(z[n_x:].copy())
        if clients:
            z = _server_prox(z, n_x, server_prox, alpha if prox_step is None else prox_step)
        trajectory.append(z.copy())
        log.append(entry)
    return trajectory, log


# ---------------------------------------------------------------- communication


def numbers(method, n_x, n_y, first=False, T=None):
    """(down, up) per participant and round, in numbers (4 bytes each).

    first: the first round with participants, in which the server has no direction to send. fedsgda_plus: every client
    took part in the snapshot's round and remembers it; one that did not needs n_x more down. fed_norm_sgda: the server
    knows I(k) already. fednest: the points are sent again in phases 2j and 2T, as in section 7.
    """
    n = n_x + n_y
    if method == "ffmdr":
        return n_x, n_x
    if method in ("local_sgda", "fed_norm_sgda", "fedsgda_plus"):
        return n, n
    if method in ("momentum_local_sgda", "fedsgda_m"):
        return (n if first else 2 * n), 2 * n
    if method == "fednest":
        return T * (n_x + 2 * n_y) + 2 * n_x + n_y, 2 * T * n_y + 2 * n_x
    assert method == "lfednest", method
    return (T + 1) * n, T * n_y + n_x


# ---------------------------------------------------------------- truth: quadratic saddles


def saddle_primal(q):
    """(P, c) with max_y f(x, y) = x'Px/2 + c'x + const, f of problems.quadratic_value with q = (A, B, C, a, b)."""
    A, B, C, a, b = q
    A, C = 0.5 * (A + A.T), 0.5 * (C + C.T)
    return A + B @ np.linalg.solve(C, B.T), a - B @ np.linalg.solve(C, b)


def saddle_dual(q, x):
    """argmax_y f(x, y)."""
    _, B, C, _, b = q
    return np.linalg.solve(0.5 * (C + C.T), B.T @ x - b)


def saddle_inner(q, x, beta):
    """The saddle (w, y) of f(w, y) + ||w - x||^2 / (2 beta), both at once from one linear system in (w, y)."""
    A, B, C, a, b = q
    n_x = len(a)
    M = np.block([[0.5 * (A + A.T) + np.eye(n_x) / beta, B], [-B.T, 0.5 * (C + C.T)]])
    u = np.linalg.solve(M, np.concatenate([x / beta - a, -b]))
    return u[:n_x], u[n_x:]


# ---------------------------------------------------------------- truth: linear AUC, v = [w, bias, a, b]


def auc_quadratic(X, y, p, bias=True):
    """(Q, s) with f(v, alpha) = v'Qv/2 + 2 (1 + alpha) s'v - p(1-p) alpha^2, the mean over the samples.

    bias False: v = [w, a, b]. Then max_alpha is at alpha = s'v / (p(1-p)).
    """
    d = len(X[0])
    m = d + (3 if bias else 2)
    Q = np.zeros((m, m))
    s = np.zeros(m)
    for i in range(len(y)):
        c = np.zeros(m)
        c[:d] = X[i]
        if bias:
            c[d] = 1.0
        gap = c.copy()
        if y[i] == 1:
            gap[m - 2] = -1.0
            Q += 2 * (1 - p) * np.outer(gap, gap) / len(y)
            s -= (1 - p) * c / len(y)
        else:
            gap[m - 1] = -1.0
            Q += 2 * p * np.outer(gap, gap) / len(y)
            s += p * c / len(y)
    return Q, s


def auc_inner(X, y, p, x, beta, bias=True):
    """(v, [alpha]): the saddle of f(v, alpha) + ||v - x||^2 / (2 beta), alpha eliminated.

    With v there, (Q + 2 s s'/(p(1-p)) + I/beta) v = x/beta - 2 s and alpha = s'v / (p(1-p)).
    """
    Q, s = auc_quadratic(X, y, p, bias)
    M = Q + 2 * np.outer(s, s) / (p * (1 - p)) + np.eye(len(s)) / beta
    v = np.linalg.solve(M, x / beta - 2 * s)
    return v, np.array([s @ v / (p * (1 - p))])


def auc_personal(clients, p, bias=True):
    """[(P_i, c_i)] with max_alpha f_i(v, alpha) = v'P_i v/2 + c_i'v, one per client (X, y)."""
    out = []
    for X, y in clients:
        Q, s = auc_quadratic(X, y, p, bias)
        out.append((Q + 2 * np.outer(s, s) / (p * (1 - p)), 2 * s))
    return out


def auc_shared(clients, p, bias=True):
    """(P, c) with max_alpha (1/N) sum f_i(v, alpha) = v'Pv/2 + c'v, one alpha for all."""
    parts = [auc_quadratic(X, y, p, bias) for X, y in clients]
    Q = sum(part[0] for part in parts) / len(parts)
    s = sum(part[1] for part in parts) / len(parts)
    return Q + 2 * np.outer(s, s) / (p * (1 - p)), 2 * s


def mean_primal(parts):
    """(P, c) of the plain mean of the (P_i, c_i)."""
    return sum(P for P, _ in parts) / len(parts), sum(c for _, c in parts) / len(parts)


def minimise(P, c, prox=None, steps=20000):
    """The minimiser of x'Px/2 + c'x + g(x): a linear solve without g, else `steps` proximal gradient steps 1/L.

    P may be singular without g: then the minimiser of least norm (c must be in its range).
    """
    if prox is None:
        return np.linalg.lstsq(P, -c, rcond=1e-12)[0]
    step = 1 / np.linalg.eigvalsh(P)[-1]
    x = np.zeros(len(c))
    for _ in range(steps):
        x = prox(x - step * (P @ x + c), step)
    return x


# ---------------------------------------------------------------- truth: Douglas-Rachford as in a textbook


def douglas_rachford(prox_first, prox_second, s0, steps):
    """[(s, first, second)] of s <- s + prox_second(2 prox_first(s) - s) - prox_first(s); s is that before."""
    s = np.array(s0, dtype=float)
    out = []
    for _ in range(steps):
        first = prox_first(s)
        second = prox_second(2 * first - s)
        out.append((s.copy(), first, second))
        s = s + second - first
    return out


def product_proxes(parts, beta, lam, penalised):
    """The proxes on the product space R^(N m) of beta * sum_i (x_i'P_i x_i/2 + c_i'x_i) and of
    beta * (lam ||v_1..penalised||_1 + the indicator of x_1 = ... = x_N = v).

    The first is one linear system of all N m unknowns; the second minimises, coordinate by coordinate,
    lam |v| + sum_i (v - s_i)^2 / (2 beta) by bisection of its derivative. For (1/N) sum F_i + g, that is for
    sum F_i + N g, lam is N times the weight of the l1 norm.
    """
    N, m = len(parts), len(parts[0][1])
    M = np.zeros((N * m, N * m))
    c = np.zeros(N * m)
    for i, (P, q) in enumerate(parts):
        M[i * m : (i + 1) * m, i * m : (i + 1) * m] = beta * P + np.eye(m)
        c[i * m : (i + 1) * m] = beta * q

    def first(s):
        return np.linalg.solve(M, s - c)

    def slope(v, s, weight):
        return weight * np.sign(v) + sum((v - s_i) / beta for s_i in s)

    def second(s):
        out = np.zeros(N * m)
        for j in range(m):
            column = [s[i * m + j] for i in range(N)]
            weight = lam if j < penalised else 0.0
            low, high = min([0.0, *column]) - 1, max([0.0, *column]) + 1
            for _ in range(200):
                middle = 0.5 * (low + high)
                if slope(middle, column, weight) > 0:
                    high = middle
                else:
                    low = middle
            v = 0.0 if abs(low) < 1e-30 else low
            for i in range(N):
                out[i * m + j] = v
        return out

    return first, second
