"""Slow, obvious versions of the algorithms.

z = (x, y) is one vector whose first n_x entries are primal. field(k, z, r, t) is client k's
saddle field (gradient in x, minus the gradient in y) in round r at local step t, both from 0;
who(r) lists the clients of round r. A trajectory holds the server's z after every round.

weights is one number a client of 0..N-1 (sample counts), or None for ones: the objective is the mean of the
clients' by these weights. The server's mean is over a round's participants, by their weights; the server's
variate stays the mean of all N clients' variates by their weights, so it moves by the participants' changes,
each times its weight over the sum of all N.
"""

import numpy as np


def identity(z):
    return z


def _ones(weights, N):
    return [1.0] * N if weights is None else [float(w) for w in weights]


def _distinct(clients):
    clients = list(clients)
    assert len(set(clients)) == len(clients), "a client may appear once in a round"
    return clients


# ---------------------------------------------------------------- single-stage methods


def local_sgda(field, who, N, z0, n_x, rounds, *, lr, lr_dual, local_steps, server_lr=1.0, project=identity):
    z = np.array(z0, dtype=float)
    step = np.full(len(z), float(lr))
    step[n_x:] = lr_dual
    trajectory = []
    for r in range(rounds):
        ends = []
        for k in who(r):
            u = z.copy()
            for t in range(local_steps):
                u = project(u - step * field(k, u, r, t))
            ends.append(u)
        if ends:
            z = z + server_lr * (sum(ends) / len(ends) - z)
        trajectory.append(z.copy())
    return trajectory


def fedprox(
    field, who, N, z0, n_x, rounds, *, lr, local_steps, mu, weights=None, server_lr=1.0, project=identity
):
    z = np.array(z0, dtype=float)
    trajectory = []
    for r in range(rounds):
        total = np.zeros(len(z))
        mass = 0.0
        for k in who(r):
            u = z.copy()
            for t in range(local_steps):
                u = project(u - lr * (field(k, u, r, t) + mu * (u - z)))
            weight = 1.0 if weights is None else float(weights[k])
            total += weight * u
            mass += weight
        if mass > 0:
            z = z + server_lr * (total / mass - z)
        trajectory.append(z.copy())
    return trajectory


def fedavg(field, who, N, z0, n_x, rounds, *, lr, local_steps, weights=None, server_lr=1.0, project=identity):
    z = np.array(z0, dtype=float)
    trajectory = []
    for r in range(rounds):
        total = np.zeros(len(z))
        mass = 0.0
        for k in who(r):
            u = z.copy()
            for t in range(local_steps):
                u = project(u - lr * field(k, u, r, t))
            weight = 1.0 if weights is None else float(weights[k])
            total += weight * u
            mass += weight
        if mass > 0:
            z = z + server_lr * (total / mass - z)
        trajectory.append(z.copy())
    return trajectory


def scaffold(
    field, who, N, z0, n_x, rounds, *, lr, local_steps, server_lr=1.0, weights=None, project=identity
):
    """(trajectory, log); log[r] has c, clients (N x n) and mean_gradient {client: vector}."""
    w = _ones(weights, N)
    z = np.array(z0, dtype=float)
    c = np.zeros(len(z))
    c_k = np.zeros((N, len(z)))
    trajectory = []
    log = []
    for r in range(rounds):
        ends = []
        change = np.zeros(len(z))
        mean_gradient = {}
        for k in _distinct(who(r)):
            u = z.copy()
            used = np.zeros(len(z))
            for t in range(local_steps):
                g = field(k, u, r, t)
                used += g
                u = project(u - lr * (g - c_k[k] + c))
            new = c_k[k] - c + (z - u) / (local_steps * lr)
            change += w[k] * (new - c_k[k])
            c_k[k] = new
            mean_gradient[k] = used / local_steps
            ends.append((w[k], u))
        if ends:
            z = z + server_lr * (sum(p * u for p, u in ends) / sum(p for p, _ in ends) - z)
        c = c + change / sum(w)
        trajectory.append(z.copy())
        log.append({"c": c.copy(), "clients": c_k.copy(), "mean_gradient": mean_gradient})
    return trajectory, log


# ---------------------------------------------------------------- stages


def stage_plan(rounds, lr, local_steps, stage_rounds, lr_decay, interval_growth, stage_growth):
    """One dict per round: stage, index in the stage, length, lr, local_steps, first, last."""
    plan = []
    s = index = 0
    while len(plan) < rounds:
        length = None if stage_rounds is None else max(1, round(stage_rounds * stage_growth**s))
        last = length is not None and index == length - 1
        plan.append(
            {
                "stage": s,
                "index": index,
                "length": length,
                "lr": lr * lr_decay**s,
                "local_steps": max(1, round(local_steps * interval_growth**s)),
                "first": index == 0,
                "last": last,
            }
        )
        s, index = (s + 1, 0) if last else (s, index + 1)
    return plan


def stage_output(output, z, servers, sums, counts, clients, s, pick, w):
    """The output of a finished stage.

    servers: the aggregated iterate of each round of the stage; sums[k], counts[k]: sum and number
    of client k's local iterates in the stage; clients: those of the stage's last round; w: weights.
    """
    if output == "last":
        return z.copy()
    if output == "rounds":
        return sum(servers) / len(servers)
    if output == "random":
        return servers[pick(s, len(servers))].copy()
    assert output == "iterates", output
    total = np.zeros(len(z))
    number = 0
    for k in clients:
        total += w[k] * sums[k]
        number += w[k] * counts[k]
    return total / number if number else z.copy()


def coda_plus(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    lr,
    local_steps,
    gamma,
    stage_rounds=None,
    lr_decay=1.0,
    interval_growth=1.0,
    stage_growth=1.0,
    output="iterates",
    pick=None,
    dual=None,
    weights=None,
    project=identity,
):
    """(trajectory, log); log[r] is the round's plan plus local {client: iterates}, and aggregate.

    dual(s, r, z), if given, overwrites the dual part of the output of stage s, which ends with
    round r (that is CODA).
    """
    w = _ones(weights, N)
    z = np.array(z0, dtype=float)
    trajectory = []
    log = []
    for r, plan in enumerate(
        stage_plan(rounds, lr, local_steps, stage_rounds, lr_decay, interval_growth, stage_growth)
    ):
        if plan["first"]:
            v_ref = z[:n_x].copy()
            servers = []
            sums = np.zeros((N, len(z)))
            counts = [0] * N
        clients = _distinct(who(r))
        local = {}
        for k in clients:
            u = z.copy()
            local[k] = []
            for t in range(plan["local_steps"]):
                g = np.array(field(k, u, r, t), dtype=float)
                g[:n_x] += gamma * (u[:n_x] - v_ref)
                u = project(u - plan["lr"] * g)
                sums[k] += u
                counts[k] += 1
                local[k].append(u.copy())
        if clients:
            z = sum(w[k] * local[k][-1] for k in clients) / sum(w[k] for k in clients)
        servers.append(z.copy())
        if plan["last"]:
            z = stage_output(output, z, servers, sums, counts, clients, plan["stage"], pick, w)
            if dual is not None:
                z[n_x:] = dual(plan["stage"], r, z.copy())
        trajectory.append(z.copy())
        log.append({**plan, "local": local, "aggregate": servers[-1]})
    return trajectory, log


def npa(field, who, N, z0, n_x, rounds, *, lr, gamma, **options):
    """CODA+ with one local step a round."""
    return coda_plus(field, who, N, z0, n_x, rounds, lr=lr, local_steps=1, gamma=gamma, **options)


def coda(field, who, N, z0, n_x, rounds, *, lr, local_steps, gamma, dual, **options):
    """CODA+ whose dual is recomputed at the end of every stage."""
    return coda_plus(
        field, who, N, z0, n_x, rounds, lr=lr, local_steps=local_steps, gamma=gamma, dual=dual, **options
    )


def coda_auc_dual(scores, labels, weights=None):
    """Mean of negative scores minus mean of positive scores.

    scores, labels: one array per client. Without weights each mean is over the means of the clients that own the class; with
    them over all samples, a sample of client k having weight w_k / m_k, m_k how many were drawn there.
    """
    means = []
    for positive in (True, False):
        owned = []
        for k, (h, y) in enumerate(zip(scores, labels, strict=True)):
            own = [h[i] for i in range(len(y)) if (y[i] == 1) == positive]
            if own and weights is None:
                owned.append((1.0, sum(own) / len(own)))
            elif own:
                owned += [(weights[k] / len(y), value) for value in own]
        means.append(sum(w * m for w, m in owned) / sum(w for w, _ in owned))
    return means[1] - means[0]


def codasca(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    lr,
    local_steps,
    gamma,
    server_lr=1.0,
    stage_rounds=None,
    lr_decay=1.0,
    interval_growth=1.0,
    stage_growth=1.0,
    output="random",
    reset_variates=True,
    pick=None,
    weights=None,
    project=identity,
):
    """(trajectory, log).

    log[r]: the round's plan plus c and clients (N x n) after the round, mean_gradient {client:
    mean of the local gradients used, prox included}, start (z before the round), mean_end (mean of
    the clients' last local iterates) and aggregate (z after the server step).
    """
    w = _ones(weights, N)
    z = np.array(z0, dtype=float)
    c = np.zeros(len(z))
    c_k = np.zeros((N, len(z)))
    trajectory = []
    log = []
    for r, plan in enumerate(
        stage_plan(rounds, lr, local_steps, stage_rounds, lr_decay, interval_growth, stage_growth)
    ):
        if plan["first"]:
            v_ref = z[:n_x].copy()
            servers = []
            sums = np.zeros((N, len(z)))
            counts = [0] * N
            if reset_variates:
                c = np.zeros(len(z))
                c_k = np.zeros((N, len(z)))
        start = z.copy()
        clients = _distinct(who(r))
        ends = []
        change = np.zeros(len(z))
        mean_gradient = {}
        for k in clients:
            u = start.copy()
            used = np.zeros(len(z))
            for t in range(plan["local_steps"]):
                g = np.array(field(k, u, r, t), dtype=float)
                g[:n_x] += gamma * (u[:n_x] - v_ref)
                used += g
                u = project(u - plan["lr"] * (g - c_k[k] + c))
                sums[k] += u
                counts[k] += 1
            new = c_k[k] - c + (start - u) / (plan["local_steps"] * plan["lr"])
            change += w[k] * (new - c_k[k])
            c_k[k] = new
            mean_gradient[k] = used / plan["local_steps"]
            ends.append((w[k], u))
        mean_end = sum(p * u for p, u in ends) / sum(p for p, _ in ends) if ends else start
        z = start + server_lr * (mean_end - start)
        c = c + change / sum(w)
        servers.append(z.copy())
        if plan["last"]:
            z = stage_output(output, z, servers, sums, counts, clients, plan["stage"], pick, w)
        trajectory.append(z.copy())
        log.append(
            {
                **plan,
                "c": c.copy(),
                "clients": c_k.copy(),
                "mean_gradient": mean_gradient,
                "start": start,
                "mean_end": mean_end,
                "aggregate": servers[-1],
            }
        )
    return trajectory, log


def codasca_as_published(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    lr,
    local_steps,
    gamma,
    v_ref0,
    stage_rounds=None,
    lr_decay=1.0,
    clip=1.0,
    weight_decay=1e-5,
    project=identity,
    n_w=None,
):
    """(trajectory, log) of the public code's form.

    n_w: how many of the primal entries are the model's weights, whose gradients alone are clipped; default all.
    log[r]: the round's plan plus c, clients (N x n) and v_ref (N x n_x), all after the round (so
    v_ref of a stage's last round is what the next stage uses).
    """
    n_w = n_x if n_w is None else n_w
    z = np.array(z0, dtype=float)
    c = np.zeros(len(z))
    c_k = np.zeros((N, len(z)))
    v_ref = np.array([np.array(v_ref0, dtype=float) for _ in range(N)])
    trajectory = []
    log = []
    for r, plan in enumerate(stage_plan(rounds, lr, local_steps, stage_rounds, lr_decay, 1.0, 1.0)):
        if plan["first"]:
            sums = np.zeros((N, n_x))
            counts = [0] * N
        ends = []
        change = np.zeros(len(z))
        for k in _distinct(who(r)):
            u = z.copy()
            raw = np.zeros(len(z))
            for t in range(1 if r == 0 else local_steps):
                g = np.array(field(k, u, r, t), dtype=float)
                raw += g
                direction = g.copy()
                direction[:n_w] = np.clip(g[:n_w], -clip, clip)
                direction += c - c_k[k]
                direction[:n_x] += gamma * (u[:n_x] - v_ref[k]) + weight_decay * u[:n_x]
                u = project(u - plan["lr"] * direction)
                sums[k] += u[:n_x]
                counts[k] += 1
            new = raw / local_steps
            change += new - c_k[k]
            c_k[k] = new
            ends.append(u)
        if ends:
            z = sum(ends) / len(ends)
        c = c + change / N
        if plan["last"]:
            for k in range(N):
                if counts[k]:
                    v_ref[k] = sums[k] / counts[k]
        trajectory.append(z.copy())
        log.append({**plan, "c": c.copy(), "clients": c_k.copy(), "v_ref": v_ref.copy()})
    return trajectory, log
