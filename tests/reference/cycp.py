"""Slow, obvious versions of the methods under cyclic client participation.

Conventions of algorithms.py: z = (x, y) with x the first n_x entries, field(k, z, r, t) is client k's saddle
field (gradient in x, minus the gradient in y) on its minibatch of local step t of round r, who(r) lists the
distinct participants of round r, all counted from 0. For a plain minimisation n_x = len(z).

A round is one visit to one group: the server sends to the participants, each works, each answers. Round r
visits group r mod G (who must respect that; the references do not know who is in which group) and G rounds
are a cycle epoch. The order of groups never changes and goes on across stages and periods.

Common to all five:
- every participant of a round starts from the server's current z, that is, from what the previous group left;
- the server's new z is the plain mean of the participants' last iterates (no sample counts, no server step);
- a round without participants leaves z as it is; it still counts as a round, as a visit in a stage's average,
  and towards a period;
- x and y move together, both from the old point; the set is projected onto after every local step and by
  the clients only: neither the mean, nor a stage's average, nor an amplified point is projected;
- trajectory[r] is what the server would send in round r + 1, so in the last round of a stage or a period it is
  the stage's output or the amplified point, and log[r]["aggregate"] is the mean before that.
"""

import numpy as np


def identity(z):
    return z


def _distinct(clients):
    clients = list(clients)
    assert len(set(clients)) == len(clients), "a client may appear once in a round"
    return clients


def everyone(members):
    """who() for M = N/G: all of members[r mod G], a list of G lists of clients."""
    return lambda r: members[r % len(members)]


# ---------------------------------------------------------------- stagewise minimax


def cycp_minimax(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    groups,
    lr,
    local_steps,
    gamma,
    stage_epochs=None,
    lr_decay=1.0,
    stage_growth=1.0,
    interval_growth=1.0,
    output="visits",
    weights=None,
    project=identity,
):
    """(trajectory, log) of Algorithms 1 and 2, with E2.2 (old point, prox gradient) and E2.3 (alpha is sent too).

    Stage s = 0, 1, ... has E_s = max(1, round(stage_epochs * stage_growth**s)) cycle epochs, that is E_s * groups
    rounds, step lr * lr_decay**s for x and y, and max(1, round(local_steps * interval_growth**s)) local steps.
    stage_epochs None: one stage that never ends. Its prox term gamma/2 ||x - x_ref||^2 is on x only; x_ref is the
    x the stage starts from and moves only between stages (z0's x in the first).

    output: "visits", the mean over the stage's E_s * groups aggregated iterates z^{e,g}, x and y alike (the start
    of the stage is not among them, local iterates neither), or "last", the last of them. It is the next stage's
    start and, its x, the next prox centre. A stage that the rounds cut short has no output.

    weights: one number a client (sample counts), by which a visit's mean weighs its participants; None for ones.

    Sent down: z, and x_ref once per stage to each client that needs it; up: the client's last z. Clients remember
    nothing beyond the round (but for x_ref, if it is sent only once).

    log[r]: stage, epoch (in its stage), group, lr, local_steps, x_ref, start, local {client: list of iterates},
    aggregate, mean (of the stage's aggregates so far) and last (of the stage).
    """
    assert output in ("visits", "last")
    z = np.array(z0, dtype=float)
    trajectory = []
    log = []
    s = 0
    while len(trajectory) < rounds:
        E = rounds + 1 if stage_epochs is None else max(1, round(stage_epochs * stage_growth**s))
        eta = lr * lr_decay**s
        I = max(1, round(local_steps * interval_growth**s))
        x_ref = z[:n_x].copy()
        total = np.zeros(len(z))
        visits = 0
        for e in range(E):
            for g in range(groups):
                r = len(trajectory)
                if r == rounds:
                    return trajectory, log
                assert r % groups == g
                start = z.copy()
                local = {}
                for k in _distinct(who(r)):
                    u = start.copy()
                    local[k] = []
                    for t in range(I):
                        h = np.array(field(k, u, r, t), dtype=float)
                        h[:n_x] += gamma * (u[:n_x] - x_ref)
                        u = project(u - eta * h)
                        local[k].append(u.copy())
                if local:
                    w = {k: 1.0 if weights is None else float(weights[k]) for k in local}
                    z = sum(w[k] * local[k][-1] for k in local) / sum(w.values())
                aggregate = z.copy()
                total += aggregate
                visits += 1
                last = visits == E * groups
                if last and output == "visits":
                    z = total / visits
                trajectory.append(z.copy())
                log.append(
                    {
                        "stage": s,
                        "epoch": e,
                        "group": g,
                        "lr": eta,
                        "local_steps": I,
                        "x_ref": x_ref,
                        "start": start,
                        "local": local,
                        "aggregate": aggregate,
                        "mean": total / visits,
                        "last": last,
                    }
                )
        s += 1
    return trajectory, log


def rs_minimax(
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
    stage_epochs=None,
    epoch_rounds=1,
    lr_decay=1.0,
    stage_growth=1.0,
    interval_growth=1.0,
    output="visits",
    weights=None,
    project=identity,
):
    """(trajectory, log) of CyCp-Minimax's random-sampling twin: who(r) draws from all N clients.

    A stage has max(1, round(stage_epochs * stage_growth**s)) * epoch_rounds rounds. The specification's epoch is
    one round (G = 1); epoch_rounds = G gives it the stages of a cyclic run in rounds. As in cycp_minimax, and
    unlike in CODA+, the output is a mean over the aggregated iterates only.

    weights: as in cycp_minimax.
    log[r]: stage, lr, local_steps, x_ref, aggregate, last.
    """
    assert output in ("visits", "last")
    z = np.array(z0, dtype=float)
    x_ref = z[:n_x].copy()
    stage = []
    s = 0
    trajectory = []
    log = []
    for r in range(rounds):
        eta = lr * lr_decay**s
        I = max(1, round(local_steps * interval_growth**s))
        ends = []
        counts = []
        for k in _distinct(who(r)):
            u = z.copy()
            for t in range(I):
                h = np.array(field(k, u, r, t), dtype=float)
                h[:n_x] += gamma * (u[:n_x] - x_ref)
                u = project(u - eta * h)
            ends.append(u)
            counts.append(1.0 if weights is None else float(weights[k]))
        if ends:
            z = sum(w * u for w, u in zip(counts, ends, strict=True)) / sum(counts)
        stage.append(z.copy())
        length = None
        if stage_epochs is not None:
            length = max(1, round(stage_epochs * stage_growth**s)) * epoch_rounds
        last = len(stage) == length
        log.append(
            {"stage": s, "lr": eta, "local_steps": I, "x_ref": x_ref, "aggregate": z.copy(), "last": last}
        )
        if last:
            if output == "visits":
                z = sum(stage) / len(stage)
            x_ref = z[:n_x].copy()
            stage = []
            s += 1
        trajectory.append(z.copy())
    return trajectory, log


# ---------------------------------------------------------------- FedAvg and amplification


def cycp_fedavg(field, who, N, z0, n_x, rounds, *, groups, lr, local_steps, project=identity):
    """(trajectory, log): FedAvg that visits group r mod groups in round r. One step size, no stages.

    Sent: z down, the last local z up. Clients remember nothing. log[r]: epoch, group.
    """
    z = np.array(z0, dtype=float)
    trajectory = []
    log = []
    for r in range(rounds):
        ends = []
        for k in _distinct(who(r)):
            u = z.copy()
            for t in range(local_steps):
                u = project(u - lr * field(k, u, r, t))
            ends.append(u)
        if ends:
            z = sum(ends) / len(ends)
        trajectory.append(z.copy())
        log.append({"epoch": r // groups, "group": r % groups})
    return trajectory, log


def amplified_fedavg(
    field, who, N, z0, n_x, rounds, *, groups, lr, local_steps, amplification, period=None, project=identity
):
    """(trajectory, log): cycp_fedavg whose progress over every period is multiplied by amplification.

    period: P, in rounds, None for one cycle epoch. After rounds P - 1, 2P - 1, ...:
    z <- anchor + amplification * (z - anchor), then anchor <- z (the amplified point); anchor is z0 at first.
    All of z, x and y, is amplified. A period that the rounds cut short is not. lr is not divided by anything.

    Sent: as FedAvg; the anchor is the server's. Clients remember nothing.
    log[r]: aggregate (before amplification), anchor (after the round), last (of a period).
    """
    P = groups if period is None else period
    z = np.array(z0, dtype=float)
    anchor = z.copy()
    trajectory = []
    log = []
    for r in range(rounds):
        ends = []
        for k in _distinct(who(r)):
            u = z.copy()
            for t in range(local_steps):
                u = project(u - lr * field(k, u, r, t))
            ends.append(u)
        if ends:
            z = sum(ends) / len(ends)
        aggregate = z.copy()
        last = (r + 1) % P == 0
        if last:
            z = anchor + amplification * (z - anchor)
            anchor = z.copy()
        trajectory.append(z.copy())
        log.append({"aggregate": aggregate, "anchor": anchor.copy(), "last": last})
    return trajectory, log


def amplified_scaffold(
    field,
    who,
    N,
    z0,
    n_x,
    rounds,
    *,
    groups,
    lr,
    local_steps,
    amplification,
    period=None,
    correction_period=None,
    project=identity,
):
    """(trajectory, log): amplified_fedavg with control variates that are renewed once per period.

    Local step: u <- u - lr * (h - c_k + c), h the raw field; c and all c_k are zero at first and constant during a
    period. Each client adds up the raw h of its local steps over the period, and their number. At the period's
    end, besides the amplification, every client that took part in the period gets c_k <- sum / number (a mean over
    local steps, hence over its visits), c <- c + (1/N) * the sum of the changes, and all sums are cleared; the
    others keep c_k. So c is the mean of all N c_k at all times.

    correction_period: rounds between renewals, None for period; 1 renews after every round ("correction each
    round"), more than rounds never does.

    Sent: z and c down; up the last local z, and the sum (once per period or in every round). Clients remember c_k
    and their sum and number of the period (or the server does, for all N).

    log[r], all after the round: c, clients (N x n), mean_gradient {participant: mean h of its round}, aggregate
    (before amplification), anchor, last (of a period) and renewed (the clients whose c_k changed).
    """
    P = groups if period is None else period
    Q = P if correction_period is None else correction_period
    z = np.array(z0, dtype=float)
    anchor = z.copy()
    c = np.zeros(len(z))
    c_k = np.zeros((N, len(z)))
    sums = np.zeros((N, len(z)))
    number = [0] * N
    trajectory = []
    log = []
    for r in range(rounds):
        ends = []
        mean_gradient = {}
        for k in _distinct(who(r)):
            u = z.copy()
            used = np.zeros(len(z))
            for t in range(local_steps):
                h = np.array(field(k, u, r, t), dtype=float)
                used += h
                u = project(u - lr * (h - c_k[k] + c))
            sums[k] += used
            number[k] += local_steps
            mean_gradient[k] = used / local_steps
            ends.append(u)
        if ends:
            z = sum(ends) / len(ends)
        aggregate = z.copy()
        last = (r + 1) % P == 0
        if last:
            z = anchor + amplification * (z - anchor)
            anchor = z.copy()
        renewed = []
        if (r + 1) % Q == 0:
            change = np.zeros(len(z))
            for k in range(N):
                if number[k] > 0:
                    new = sums[k] / number[k]
                    change += new - c_k[k]
                    c_k[k] = new
                    renewed.append(k)
            c = c + change / N
            sums = np.zeros((N, len(z)))
            number = [0] * N
        trajectory.append(z.copy())
        log.append(
            {
                "c": c.copy(),
                "clients": c_k.copy(),
                "mean_gradient": mean_gradient,
                "aggregate": aggregate,
                "anchor": anchor.copy(),
                "last": last,
                "renewed": renewed,
            }
        )
    return trajectory, log


# ---------------------------------------------------------------- communication


def minimax_numbers(log, n, n_x, reference="once"):
    """One {client: (down, up)} per round of a cycp_minimax log, in numbers (4 bytes each).

    reference: "once", x_ref goes to a client in its first round of each stage; "always", in every round;
    "never", not counted.
    """
    out = []
    has = set()
    for entry in log:
        out.append({})
        for k in entry["local"]:
            extra = reference == "always" or (reference == "once" and (k, entry["stage"]) not in has)
            has.add((k, entry["stage"]))
            out[-1][k] = (n + (n_x if extra else 0), n)
    return out


def fedavg_numbers(n):
    """(down, up) per participant and round of cycp_fedavg and amplified_fedavg."""
    return n, n


def scaffold_numbers(n, sends_sum):
    """(down, up) per participant and round of amplified_scaffold, in a round in which it sends its sum or not."""
    return 2 * n, 2 * n if sends_sum else n
