"""FedSGDA (Xie et al.) with plain loops: MB, STORM, SPIDER, SVRG and averaged-gradient estimators.

min_x max_y f(x, y) = mean over clients of f_i, f_i = mean over client i's samples of F_i. Written from the
paper (Frameworks 1-3, section 4.2, Estimator 1 of appendix B, schedules of appendix D.1) and spec section 2.
MB, STORM and SPIDER are the paper's. SVRG and averaged stochastic gradient are only named in the paper's
Remark 1; no formula of theirs is in the paper or the specification, so those two are this file's reading of
the works it cites (Johnson and Zhang 2013; Mokhtari et al. 2018), moved from samples to clients.

Signs are the paper's: v estimates +grad_y f, and y ascends.
"""

import numpy as np

from tests.reference import sampling

ESTIMATORS = ("mb", "storm", "spider", "svrg", "average")


# ---------------------------------------------------------------- schedules, oracles, minibatches


def power(c, rho):
    """r -> c / (r+1)^rho: eta_r and gamma_r of appendix D.1, r from 0 (E1.2)."""
    return lambda r: c / (r + 1) ** rho


def momentum(c, rho):
    """r -> min(1, c / (r+1)^(2 rho)): alpha_r = beta_r of appendix D.1."""
    return lambda r: min(1.0, c / (r + 1) ** (2 * rho))


def gradient_of_field(field, n_x):
    """gradient(k, x, y, indices, weights) from a saddle field(k, z, indices, weights), z = (x, y)."""

    def gradient(k, x, y, indices, weights):
        g = np.asarray(field(k, np.concatenate([x, y]), indices, weights), dtype=float)
        return g[:n_x], -g[n_x:]

    return gradient


def full_batch(sizes):
    """collect(r, k): all samples of client k, weight 1/n_k each (phase A, E1.6)."""
    return lambda r, k: (list(range(sizes[k])), [1.0 / sizes[k]] * sizes[k])


def sampled(seed, phase, sizes, batch_size, replacement):
    """minibatch(r, t, k) from the reference sampler, under the given phase number."""
    return lambda r, t, k: sampling.minibatch(seed, r, phase, t, k, sizes[k], batch_size, replacement)


def _at(source, r):
    """source(r), source[r], or the constant itself."""
    if callable(source):
        return source(r)
    return source[r] if isinstance(source, list | tuple | np.ndarray) else source


# ---------------------------------------------------------------- phase A


def _collect(gradient, clients, batches, x, y):
    """(mean grad_x f_i, mean grad_y f_i) at (x, y) over the list clients, with multiplicity."""
    total_x = np.zeros(len(x))
    total_y = np.zeros(len(y))
    for k in clients:
        gx, gy = gradient(k, x, y, *batches[k])
        total_x += gx
        total_y += gy
    return total_x / len(clients), total_y / len(clients)


def refreshes(r, period):
    """Whether SPIDER and SVRG start anew in round r: r mod period = 0; period None: only in round 0."""
    return r == 0 if period is None else r % period == 0


# ---------------------------------------------------------------- the algorithm


def fedsgda(
    gradient,
    collect,
    minibatch,
    who_a,
    who_b,
    x0,
    y0,
    rounds,
    *,
    estimator,
    eta,
    gamma,
    local_steps,
    alpha=None,
    beta=None,
    period=None,
    average_from_zero=False,
    project=None,
):
    """(trajectory, log): trajectory[r] = (x_{r+1}, y_{r+1}), the server's point after round r = 0..rounds-1.

    log[r] is a dict: start (x_r, y_r); u, v, the estimates sent to phase B; refresh, whether (u, v) is a plain
    mean of gradients at (x_r, y_r); anchor, SVRG's (x~, y~) after phase A, else None; local, one list per entry
    of who_b(r) with (x^0, y^0), .., (x^I, y^I); eta, gamma, alpha, beta as used (alpha, beta None if unused).

    Sources, injected:
      gradient(k, x, y, indices, weights)  (grad_x, grad_y) of the weighted sum of client k's F_i
      collect(r, k)       (indices, weights) of client k in phase A of round r; the paper: all, 1/n_k each
      minibatch(r, t, k)  (indices, weights) of client k at local step t = 0..local_steps-1 of round r
      who_a, who_b        the clients S'_r of phase A and S_r of phase B: r -> list, or a list of lists
      eta, gamma, alpha, beta   a number, a list by round, or r -> number; beta None means alpha
    The two lists may differ in members and in length. A client listed twice counts twice in the mean (draws
    with replacement); its two copies see the same minibatches, so they compute the same thing.

    Initially (x_{-1}, y_{-1}) = (x_0, y_0) (Framework 1) and there is no estimate.

    Phase A of round r, with gbar(z) = plain mean over S'_r of the clients' gradients at z. All points are the
    server's; z_r is where this round starts, z_{r-1} where the previous one started, whatever the clients
    did locally. Where two points are needed, the same clients and the same samples (collect is asked once
    per client) serve both. Both u and v are from S'_r (E1.1).
      mb       (u, v)_r = gbar(z_r)
      storm    u_r = (1 - alpha_r)(u_{r-1} - gbar_x(z_{r-1})) + gbar_x(z_r), v_r alike with beta_r and gbar_y;
               round 0 is mb whatever alpha_0 is
      spider   r mod period = 0: mb, on whatever S'_r is given; it is the caller who lists many (Mhat) or all
               clients then. Otherwise (u, v)_r = (u, v)_{r-1} + gbar(z_r) - gbar(z_{r-1})
      svrg     r mod period = 0: anchor z~ = z_r, g~ = gbar(z_r) on the S'_r given, (u, v)_r = g~. Otherwise
               (u, v)_r = gbar(z_r) - gbar(z~) + g~; z_{r-1} and (u, v)_{r-1} play no part
      average  u_r = (1 - alpha_r) u_{r-1} + alpha_r gbar_x(z_r), v_r alike with beta_r; round 0 is mb, or
               with average_from_zero the formula with u_{-1} = 0 and v_{-1} = 0
    period None: no refresh after round 0. alpha, beta enter nowhere else, and eta, gamma only in phase B.

    Phase B of round r: every client of S_r starts at (x^0, y^0) = (x_r, y_r) and for t = 0..I-1, with one
    minibatch used at both points,
      d_x = grad_x F_i(x^t, y^t) - grad_x F_i(x_r, y_r) + u_r
      d_y = grad_y F_i(x^t, y^t) - grad_y F_i(x_r, y_r) + v_r
      x^{t+1} = x^t - eta_r d_x,  y^{t+1} = y^t + gamma_r d_y      (both from (x^t, y^t): simultaneous)
    The step sizes are constant over a round. The server takes the plain mean of the last local iterates of
    S_r, whatever the clients' sizes; no server step size, no server use of (u, v) other than sending it.
    Clients keep nothing between rounds or between phases.

    Not in the paper:
      project(x, y) -> (x, y), if given, follows every local step (not the mean).
      S'_r empty: (u, v) stays (zero if there is none yet, which makes phase B stand still), and so does the
      anchor; without an estimate (svrg: an anchor) the next non-empty S' gives mb. S_r empty: the point stays.
    """
    assert estimator in ESTIMATORS, estimator
    beta = alpha if beta is None else beta
    x, y = np.array(x0, dtype=float), np.array(y0, dtype=float)
    x_prev, y_prev = x.copy(), y.copy()
    u, v = np.zeros(len(x)), np.zeros(len(y))
    known = False  # whether (u, v) is an estimate yet
    anchor = None  # SVRG: (x~, y~, g~_x, g~_y)
    trajectory = []
    log = []
    for r in range(rounds):
        # ---- phase A
        clients = list(who_a(r) if callable(who_a) else who_a[r])
        weighted = estimator in ("storm", "average")
        alpha_r = _at(alpha, r) if weighted else None
        beta_r = _at(beta, r) if weighted else None
        refresh = False
        if clients:
            batches = {}
            for k in clients:
                if k not in batches:
                    batches[k] = collect(r, k)
            gx, gy = _collect(gradient, clients, batches, x, y)
            if estimator == "mb":
                refresh = True
            elif estimator == "storm":
                refresh = not known
            elif estimator == "spider":
                refresh = not known or refreshes(r, period)
            elif estimator == "svrg":
                refresh = anchor is None or refreshes(r, period)
            elif estimator == "average":
                refresh = not known and not average_from_zero

            if refresh:
                u, v = gx, gy
                if estimator == "svrg":
                    anchor = (x.copy(), y.copy(), gx.copy(), gy.copy())
            elif estimator == "storm":
                px, py = _collect(gradient, clients, batches, x_prev, y_prev)
                u = (1 - alpha_r) * (u - px) + gx
                v = (1 - beta_r) * (v - py) + gy
            elif estimator == "spider":
                px, py = _collect(gradient, clients, batches, x_prev, y_prev)
                u = u + (gx - px)
                v = v + (gy - py)
            elif estimator == "svrg":
                px, py = _collect(gradient, clients, batches, anchor[0], anchor[1])
                u = gx - px + anchor[2]
                v = gy - py + anchor[3]
            elif estimator == "average":
                u = (1 - alpha_r) * u + alpha_r * gx
                v = (1 - beta_r) * v + beta_r * gy
            known = True

        # ---- phase B
        eta_r = _at(eta, r)
        gamma_r = _at(gamma, r)
        local = []
        for k in who_b(r) if callable(who_b) else who_b[r]:
            a, b = x.copy(), y.copy()
            path = [(a.copy(), b.copy())]
            for t in range(local_steps):
                indices, weights = minibatch(r, t, k)
                here_x, here_y = gradient(k, a, b, indices, weights)
                start_x, start_y = gradient(k, x, y, indices, weights)
                d_x = here_x - start_x + u
                d_y = here_y - start_y + v
                a, b = a - eta_r * d_x, b + gamma_r * d_y
                if project is not None:
                    a, b = project(a, b)
                path.append((a.copy(), b.copy()))
            local.append(path)

        log.append(
            {
                "start": (x.copy(), y.copy()),
                "u": u.copy(),
                "v": v.copy(),
                "refresh": refresh,
                "anchor": None if anchor is None else (anchor[0].copy(), anchor[1].copy()),
                "local": local,
                "eta": eta_r,
                "gamma": gamma_r,
                "alpha": alpha_r,
                "beta": beta_r,
            }
        )
        x_prev, y_prev = x, y
        if local:
            x = sum(path[-1][0] for path in local) / len(local)
            y = sum(path[-1][1] for path in local) / len(local)
        trajectory.append((x.copy(), y.copy()))
    return trajectory, log


# ---------------------------------------------------------------- communication


def numbers(estimator, D, refresh=False, economical=False):
    """{"a": (down, up), "b": (down, up)}: numbers sent to and by one participant of each phase, 4 bytes each.

    D = dim x + dim y. Spec section 7, which makes no difference between rounds: phase A is D down and D up
    with one point, 2D and 2D with two; phase B is 2D down (point and estimate) and D up. SVRG (anchor instead
    of the previous point) counts as two points, average as one; neither is in the specification's table.
    economical: with refresh (round 0, SPIDER's and SVRG's large rounds) only one point is sent and answered.
    Step sizes, client ids and indices are not counted.
    """
    points = 1 if estimator in ("mb", "average") or (economical and refresh) else 2
    return {"a": (points * D, points * D), "b": (2 * D, D)}
