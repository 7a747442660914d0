"""Slow, obvious versions of the pairwise methods: CyCp-Pairwise, RS-Pairwise (FeDXL1) and FeDXL2.

Conventions of cycp.py where they apply: clients, rounds, local steps and places are counted from 0, who(r) lists
the distinct participants of round r in order, trajectory[r] is the w the server would send in round r + 1.
Sides are numbered 1 and 2.

Data. clients[i] = (side 1, side 2), two lists of samples of any kind, either of which may be empty; positives and
negatives for scores, the same list of all samples twice for the contrastive loss. The owners of a side are the
clients with at least one sample in it. The references see samples only through
- rep(w, sample): h(w; z), a 1-D array of width k, k = 1 for scores;
- rep_vjp(w, sample, cotangent): the gradient of cotangent . h(w; z) in w, cotangent of width k.

Randomness comes from outside:
- draw(client, round, step, side): B places in the client's side list, never called for an empty side;
- pool_draw(round, position, side, n, count): count places in a pool of n entries for the participant at this
  position in who(round)'s order, never called for an empty pool;
- noise(client, round, side): see _uploaded, never called for an empty side.

Objective. F(w) = mean over owners i of side 1 of mean over z in side 1 of i of
f( mean over owners j of side 2 of mean over z' in side 2 of j of psi(h(w; z), h(w; z')) ), f the identity but for
FeDXL2. Each client has one vote per side it owns, however many samples it has.

Rounds and epochs. A round is one visit; an epoch is period rounds, epoch e is rounds e * period to
(e + 1) * period - 1, whatever the stages do. period 1 is random sampling.
- Epoch 0 is the initial epoch: its participants score, with the w they were sent, the draws of steps 0..I-1 of
  each side they own and send the results up; w does not move. It is part of the rounds and of the trajectory
  (whose first entries are w0) but of no stage, and there is only one.
- In every epoch the entries sent up are put aside: in the order round, position, step, slot. At the beginning of
  the next one they become the pools to draw from; a side for which there are none keeps the pool it had.
- From round period on each participant is sent I * B entries of every non-empty pool, in the order of pool_draw,
  whether it owns the other side or not; step t uses entries t * B to (t + 1) * B - 1 of each. A pool may be smaller
  than I * B: pool_draw then repeats itself.

Local step. G1 has this client's side 1 as active and pool 2 as passive entries, G2 its side 2 and pool 1; they are
multiplied by N / N_1 and N / N_2 (rescale=False: by 1), N_k the number of owners of side k among all N clients.
A half whose active side the client does not own, or whose passive pool is empty, is dropped. Both are taken at the
old w, which is also the w of the representations that are sent up.
- pairing "one_to_one": mean over b of the pairs (active b, passive b); "all_pairs": mean over all B * B pairs.
- A participant without any half does not move w, and is still counted in the server's plain mean over the
  participants. A round without participants leaves everything as it is.

Stages. Stage s = 0, 1, ... has max(1, round(stage_rounds * stage_growth**s)) rounds, step lr * lr_decay**s and
I = max(1, round(local_steps * interval_growth**s)) local steps; stage_rounds None: one stage that never ends. The
first begins with round period (the initial epoch has the I of stage 0). output "visits": the mean over the stage's
aggregated iterates (not its start, not local ones) is the next stage's start; "last": the last of them is. A stage
may end within an epoch; nothing but w, the step and I changes then: pools, and FeDXL2's u and m, go on.
"""

from typing import Any, NamedTuple

import numpy as np

from tests.reference.cycp import _distinct

SIDES = (1, 2)


# ---------------------------------------------------------------- losses of a pair


class Psi(NamedTuple):
    """value(a, b) and its gradients in a and in b.

    The score losses work elementwise on numbers and arrays; the contrastive loss takes two vectors. labels: how
    many of the last entries of a representation are labels, which are neither noised nor quantised.
    """

    value: Any
    d1: Any
    d2: Any
    labels: int = 0


def _of_difference(value, slope):
    """Psi of value(t), slope(t) = d value / dt, t = a - b."""

    def difference(a, b):
        return np.asarray(a, dtype=float) - np.asarray(b, dtype=float)

    return Psi(
        lambda a, b: value(difference(a, b)),
        lambda a, b: slope(difference(a, b)),
        lambda a, b: -slope(difference(a, b)),
    )


def sigma(x):
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def square(m=1.0):
    """(m - t)^2."""
    return _of_difference(lambda t: (m - t) ** 2, lambda t: -2 * (m - t))


def squared_hinge(m=1.0):
    """max(m - t, 0)^2."""
    return _of_difference(lambda t: np.maximum(m - t, 0) ** 2, lambda t: -2 * np.maximum(m - t, 0))


def logistic(s=1.0):
    """log(1 + exp(-s t))."""
    return _of_difference(lambda t: np.logaddexp(0.0, -s * t), lambda t: -s * sigma(-s * t))


def sigmoid(lam=1.0):
    """1 / (1 + exp(t / lam)); psi (1 - psi) = sigma(-t / lam) sigma(t / lam)."""
    return _of_difference(lambda t: sigma(-t / lam), lambda t: -sigma(-t / lam) * sigma(t / lam) / lam)


def barrier_hinge(m=1.0, tau=2.0):
    """max(m - tau (m + t), tau (t - m), m - t). At a kink: the slope of the first of these three that is largest."""

    def pieces(t):
        return np.stack([m - tau * (m + t), tau * (t - m), m - t])

    slopes = np.array([-tau, tau, -1.0])
    return _of_difference(lambda t: np.max(pieces(t), axis=0), lambda t: slopes[np.argmax(pieces(t), axis=0)])


def q_norm_hinge(m=1.0, q=2.0):
    """max(m - t, 0)^q, slope 0 from t = m on (also for q = 1)."""

    def slope(t):
        gap = np.maximum(m - t, 0)
        return np.where(gap > 0, -q * gap ** (q - 1), 0.0)

    return _of_difference(lambda t: np.maximum(m - t, 0) ** q, slope)


def contrastive(m=1.0):
    """Equation (14) on vectors a, b = [embedding, label], similar iff the labels are equal.

    Similar: D^2 / 2, dissimilar: max(0, m - D)^2 / 2, D the distance of the embeddings. The gradients are 0 in the
    label, and 0 for a dissimilar pair with D = 0.
    """

    def parts(a, b):
        a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
        apart = a[:-1] - b[:-1]
        return apart, np.sqrt(np.sum(apart**2)), a[-1] == b[-1]

    def value(a, b):
        _, D, similar = parts(a, b)
        return 0.5 * D**2 if similar else 0.5 * max(0.0, m - D) ** 2

    def d1(a, b):
        apart, D, similar = parts(a, b)
        if similar:
            out = apart
        elif D == 0:
            out = np.zeros(len(apart))
        else:
            out = -max(0.0, m - D) * apart / D
        return np.append(out, 0.0)

    return Psi(value, d1, lambda a, b: -d1(a, b), labels=1)


LOSSES = {
    "square": square,
    "squared_hinge": squared_hinge,
    "logistic": logistic,
    "sigmoid": sigmoid,
    "barrier_hinge": barrier_hinge,
    "q_norm_hinge": q_norm_hinge,
    "contrastive": contrastive,
}


def exponential(loss, T):
    """psi = exp(l / T) of a loss l, the inner function of partial AUC. It overflows where l / T exceeds 709."""
    return Psi(
        lambda a, b: np.exp(loss.value(a, b) / T),
        lambda a, b: np.exp(loss.value(a, b) / T) * loss.d1(a, b) / T,
        lambda a, b: np.exp(loss.value(a, b) / T) * loss.d2(a, b) / T,
        loss.labels,
    )


class Outer(NamedTuple):
    """f and f', functions of one number."""

    value: Any
    slope: Any


def log_outer(T):
    """f(g) = T log g, which with exponential(l, T) is partial AUC."""
    return Outer(lambda g: T * np.log(g), lambda g: T / g)


LINEAR = Outer(lambda g: g, lambda g: 1.0)


def _value(psi, a, b):
    return float(np.reshape(psi.value(a, b), ()))


def _d1(psi, a, b):
    return np.reshape(psi.d1(a, b), len(a))


def _d2(psi, a, b):
    return np.reshape(psi.d2(a, b), len(b))


# ---------------------------------------------------------------- objective


def owners(clients, side):
    return [i for i in range(len(clients)) if len(clients[i][side - 1]) > 0]


def inner_mean(w, a, clients, rep, psi):
    """Mean over the owners of side 2 of the mean over their samples of psi(a, h(w; z'))."""
    total = 0.0
    for j in owners(clients, 2):
        for z in clients[j][1]:
            total += _value(psi, a, rep(w, z)) / len(clients[j][1])
    return total / len(owners(clients, 2))


def objective(w, clients, rep, psi, outer=LINEAR):
    """F(w) of the module's docstring. Needs an owner of each side."""
    total = 0.0
    for i in owners(clients, 1):
        for z in clients[i][0]:
            total += outer.value(inner_mean(w, rep(w, z), clients, rep, psi)) / len(clients[i][0])
    return total / len(owners(clients, 1))


def gradient(w, clients, rep, rep_vjp, psi, outer=LINEAR):
    """grad F(w), pair by pair."""
    total = np.zeros(len(w))
    for i in owners(clients, 1):
        for z1 in clients[i][0]:
            a = rep(w, z1)
            slope = outer.slope(inner_mean(w, a, clients, rep, psi))
            for j in owners(clients, 2):
                for z2 in clients[j][1]:
                    b = rep(w, z2)
                    pair = rep_vjp(w, z1, _d1(psi, a, b)) + rep_vjp(w, z2, _d2(psi, a, b))
                    total += slope * pair / (len(clients[i][0]) * len(clients[j][1]))
    return total / (len(owners(clients, 1)) * len(owners(clients, 2)))


# ---------------------------------------------------------------- pools


class Entry(NamedTuple):
    """One entry of a pool: the representation as sent up, FeDXL2's u (side 1 only), and where it comes from.

    place: the place of its sample in the client's side list.
    """

    rep: Any
    u: Any
    round: int
    client: int
    position: int
    step: int
    slot: int
    place: int


def quantised(values, bits):
    """Each entry of an array replaced by the nearest of 2**bits even levels of a range around all of them.

    The range goes from the multiple of q at or below the least entry to the multiple of q above the greatest, where q
    is an eighth of the least power of two not below their difference (of 1, if all are equal). Half a level goes to
    the even one.
    """
    lo, hi = np.min(values), np.max(values)
    q = 2.0 ** np.ceil(np.log2(hi - lo if hi > lo else 1.0)) / 8
    lo, hi = np.floor(lo / q) * q, (np.floor(hi / q) + 1) * q
    levels = 2**bits - 1
    return lo + np.rint((values - lo) / (hi - lo) * levels) * (hi - lo) / levels


def _uploaded(reps, labels, noise, bits):
    """What a client sends up of one side in one visit: reps (I * B rows of width k) noised, then quantised.

    noise: None or the I * B * e numbers for the e = k - labels entries that are not labels, of any shape, row by
    row; or I * B * k numbers, of which those for the labels are ignored. bits None: not quantised. The levels are
    common to all I * B * e entries. Labels are sent as they are.
    """
    reps = np.array(reps, dtype=float)
    rows, k = reps.shape
    e = k - labels
    if noise is not None:
        noise = np.array(noise, dtype=float)
        reps[:, :e] += noise.reshape(rows, k if noise.size == rows * k else e)[:, :e]
    if bits is not None:
        reps[:, :e] = quantised(reps[:, :e], bits)
    return reps


def _entries(made, client, r, position, psi, noise, bits):
    """{side: the entries a client sends up}, made {side: list of (step, slot, place, rep, u)}."""
    out = {}
    for side in made:
        extra = None if noise is None else noise(client, r, side)
        reps = _uploaded([rep for _, _, _, rep, _ in made[side]], psi.labels, extra, bits)
        out[side] = []
        for row, (step, slot, place, _, u) in zip(reps, made[side], strict=True):
            out[side].append(Entry(row, u, r, client, position, step, slot, place))
    return out


def _next_epoch(pools, filling):
    for side in SIDES:
        if filling[side]:
            pools[side] = filling[side]
        filling[side] = []


def _passive(pools, pool_draw, r, position, count):
    """{side: the count entries sent to a participant}, [] for an empty pool."""
    out = {}
    for side in SIDES:
        n = len(pools[side])
        places = list(pool_draw(r, position, side, n, count)) if n else []
        assert len(places) == (count if n else 0)
        out[side] = [pools[side][p] for p in places]
    return out


def _places(draw, k, r, t, side, B):
    places = [int(p) for p in draw(k, r, t, side)]
    assert len(places) == B, "draw must give B places"
    return places


def _pairs(B, pairing):
    """(place of the active, place of the passive entry) of all pairs."""
    assert pairing in ("one_to_one", "all_pairs")
    if pairing == "one_to_one":
        return [(b, b) for b in range(B)]
    return [(b, c) for b in range(B) for c in range(B)]


def _factors(clients, rescale):
    """{side: N / N_k or 1}; None for a side without owners, of which there is no half."""
    out = {}
    for side in SIDES:
        number = len(owners(clients, side))
        out[side] = None if number == 0 else len(clients) / number if rescale else 1.0
    return out


def _stage_length(s, stage_rounds, stage_growth):
    return None if stage_rounds is None else max(1, round(stage_rounds * stage_growth**s))


# ---------------------------------------------------------------- CyCp-Pairwise


def cycp_pairwise(
    rep,
    rep_vjp,
    psi,
    clients,
    draw,
    pool_draw,
    who,
    w0,
    rounds,
    *,
    period,
    lr,
    local_steps,
    batch,
    pairing="one_to_one",
    rescale=True,
    stage_rounds=None,
    lr_decay=1.0,
    stage_growth=1.0,
    interval_growth=1.0,
    output="visits",
    noise=None,
    bits=None,
):
    """(trajectory, log) of Algorithms 3 and 4, with E2.1 (d2 in G2), E2.4 and E2.5. batch: B.

    Step: w <- w - lr * (G1 + G2), G1 = (N / N_1) mean d1 psi(s1, r2) grad h(z1),
    G2 = (N / N_2) mean d2 psi(r1, s2) grad h(z2).

    log[r]: epoch, stage, lr (None in the initial epoch, as stage), local_steps; pools {side: entries} that the
    round draws from ([] in the initial epoch); passive {client: {side: its I * B entries}}; start; halves {client:
    one (G1, G2) per step, factors included, None for a dropped half}; local {client: iterates}; sent {client:
    {side it owns: entries}}; aggregate (the mean, before a stage's output); last (of a stage). In the initial epoch
    passive, halves and local are empty.
    """
    assert output in ("visits", "last")
    w = np.array(w0, dtype=float)
    B = batch
    factors = _factors(clients, rescale)
    pools = {1: [], 2: []}
    filling = {1: [], 2: []}
    stage = []
    s = 0
    trajectory = []
    log = []
    for r in range(rounds):
        initial = r < period
        eta = lr * lr_decay**s
        I = max(1, round(local_steps * interval_growth**s))
        if r > 0 and r % period == 0:
            _next_epoch(pools, filling)
        start = w.copy()
        passive = {}
        halves = {}
        local = {}
        sent = {}
        for position, k in enumerate(_distinct(who(r))):
            mine = [side for side in SIDES if len(clients[k][side - 1]) > 0]
            made = {side: [] for side in mine}
            u = start.copy()
            if not initial:
                passive[k] = _passive(pools, pool_draw, r, position, I * B)
                halves[k] = []
                local[k] = []
            for t in range(I):
                z = {}
                active = {}
                for side in mine:
                    places = _places(draw, k, r, t, side, B)
                    z[side] = [clients[k][side - 1][p] for p in places]
                    active[side] = [rep(u, sample) for sample in z[side]]
                    for b in range(B):
                        made[side].append((t, b, places[b], active[side][b], None))
                if initial:
                    continue
                now = {side: [e.rep for e in passive[k][side][t * B : (t + 1) * B]] for side in SIDES}
                pairs = _pairs(B, pairing)
                G1 = G2 = None
                if 1 in mine and now[2]:
                    G1 = np.zeros(len(w))
                    for b, c in pairs:
                        G1 += rep_vjp(u, z[1][b], _d1(psi, active[1][b], now[2][c]))
                    G1 *= factors[1] / len(pairs)
                if 2 in mine and now[1]:
                    G2 = np.zeros(len(w))
                    for b, c in pairs:
                        G2 += rep_vjp(u, z[2][b], _d2(psi, now[1][c], active[2][b]))
                    G2 *= factors[2] / len(pairs)
                total = np.zeros(len(w))
                if G1 is not None:
                    total += G1
                if G2 is not None:
                    total += G2
                u = u - eta * total
                halves[k].append((G1, G2))
                local[k].append(u.copy())
            sent[k] = _entries(made, k, r, position, psi, noise, bits)
            for side in mine:
                filling[side] += sent[k][side]
        if local:
            w = sum(local[k][-1] for k in local) / len(local)
        aggregate = w.copy()
        last = False
        if not initial:
            stage.append(aggregate)
            last = len(stage) == _stage_length(s, stage_rounds, stage_growth)
        log.append(
            {
                "epoch": r // period,
                "stage": None if initial else s,
                "lr": None if initial else eta,
                "local_steps": I,
                "pools": {side: list(pools[side]) for side in SIDES},
                "passive": passive,
                "start": start,
                "halves": halves,
                "local": local,
                "sent": sent,
                "aggregate": aggregate,
                "last": last,
            }
        )
        if last:
            if output == "visits":
                w = sum(stage) / len(stage)
            stage = []
            s += 1
        trajectory.append(w.copy())
    return trajectory, log


def rs_pairwise(*arguments, **options):
    """(trajectory, log) of RS-Pairwise = FeDXL1: cycp_pairwise with who drawing from all clients, and period 1."""
    return cycp_pairwise(*arguments, period=1, **options)


# ---------------------------------------------------------------- FeDXL2


def fedxl2(
    rep,
    rep_vjp,
    psi,
    outer,
    clients,
    draw,
    pool_draw,
    who,
    w0,
    rounds,
    *,
    period,
    lr,
    local_steps,
    batch,
    gamma,
    beta=1.0,
    u0=1.0,
    pairing="one_to_one",
    rescale=True,
    stage_rounds=None,
    lr_decay=1.0,
    stage_growth=1.0,
    interval_growth=1.0,
    output="visits",
    noise=None,
    bits=None,
):
    """(trajectory, log) of FeDXL2: cycp_pairwise with an outer function and two moving averages.

    Every client remembers for each place of its side 1 a number u, unset at first, over the whole run.
    Step, all at the old w:
    - g_b = psi(s1_b, r2_b), or with "all_pairs" the mean over c of psi(s1_b, r2_c);
    - for each place in the side-1 batch: g = the mean of g_b over the slots b that hold it; its u becomes g if it
      was unset, else (1 - gamma) u + gamma g. u_b is this new value;
    - G1 = (N / N_1) mean f'(u_b) d1 psi(s1_b, r2_c) grad h(z1_b);
    - G2 = (N / N_2) mean f'(v_c) d2 psi(r1_c, s2_b) grad h(z2_b), v_c the u that came with r1_c;
    - m <- (1 - beta) m + beta (G1 + G2), a dropped half counting as 0; w <- w - lr m.
    m starts a visit as the server's, which is zero at first and then the plain mean of the participants' last m.

    Each entry of side 1 is sent up with its u_b, which is neither noised nor quantised. Where no g could be
    computed (pool 2 is empty) the memory is left as it is and the remembered u goes up, u0 if unset. In the initial
    epoch all entries have u0 and the memory is neither read nor written. u0 = nan is unknown: v_c then is the mean
    of psi(r1_c, s2_b) over the active entries b that c is paired with. (u0 = 1 is exp(0 / T), the least value of
    exp(l / T) for l >= 0, with which the first steps are far too long.)

    log[r]: as cycp_pairwise, halves with their f'; and m (the server's, after the round), momentum {client: m of
    each step}, memory {(client, place): u} of all u that are set after the round.
    """
    assert output in ("visits", "last")
    assert 0 < gamma <= 1 and 0 < beta <= 1
    w = np.array(w0, dtype=float)
    m = np.zeros(len(w))
    memory = {}
    B = batch
    factors = _factors(clients, rescale)
    pools = {1: [], 2: []}
    filling = {1: [], 2: []}
    stage = []
    s = 0
    trajectory = []
    log = []
    for r in range(rounds):
        initial = r < period
        eta = lr * lr_decay**s
        I = max(1, round(local_steps * interval_growth**s))
        if r > 0 and r % period == 0:
            _next_epoch(pools, filling)
        start = w.copy()
        passive = {}
        halves = {}
        local = {}
        momentum = {}
        sent = {}
        for position, k in enumerate(_distinct(who(r))):
            has1 = len(clients[k][0]) > 0
            has2 = len(clients[k][1]) > 0
            made = {}
            if has1:
                made[1] = []
            if has2:
                made[2] = []
            x = start.copy()
            average = m.copy()
            if not initial:
                passive[k] = _passive(pools, pool_draw, r, position, I * B)
                halves[k] = []
                local[k] = []
                momentum[k] = []
            for t in range(I):
                if initial:
                    r1, r2 = [], []
                else:
                    r1 = passive[k][1][t * B : (t + 1) * B]
                    r2 = passive[k][2][t * B : (t + 1) * B]
                pairs = _pairs(B, pairing)
                G1 = G2 = None
                if has1:
                    places = _places(draw, k, r, t, 1, B)
                    z1 = [clients[k][0][p] for p in places]
                    s1 = [rep(x, z) for z in z1]
                    if r2:
                        g = []
                        for b in range(B):
                            partners = [_value(psi, s1[b], r2[c].rep) for a, c in pairs if a == b]
                            g.append(sum(partners) / len(partners))
                        for p in set(places):
                            of_p = [g[b] for b in range(B) if places[b] == p]
                            new = sum(of_p) / len(of_p)
                            if (k, p) in memory:
                                new = (1 - gamma) * memory[k, p] + gamma * new
                            memory[k, p] = new
                        G1 = np.zeros(len(w))
                        for b, c in pairs:
                            weight = outer.slope(memory[k, places[b]])
                            G1 += weight * rep_vjp(x, z1[b], _d1(psi, s1[b], r2[c].rep))
                        G1 *= factors[1] / len(pairs)
                    for b in range(B):
                        u = u0 if initial else memory.get((k, places[b]), u0)
                        made[1].append((t, b, places[b], s1[b], u))
                if has2:
                    places = _places(draw, k, r, t, 2, B)
                    z2 = [clients[k][1][p] for p in places]
                    s2 = [rep(x, z) for z in z2]
                    if r1:
                        G2 = np.zeros(len(w))
                        for b, c in pairs:
                            v = r1[c].u
                            if np.isnan(v):
                                met = [_value(psi, r1[c].rep, s2[a]) for a, other in pairs if other == c]
                                v = sum(met) / len(met)
                            weight = outer.slope(v)
                            G2 += weight * rep_vjp(x, z2[b], _d2(psi, r1[c].rep, s2[b]))
                        G2 *= factors[2] / len(pairs)
                    for b in range(B):
                        made[2].append((t, b, places[b], s2[b], None))
                if not initial:
                    total = np.zeros(len(w))
                    if G1 is not None:
                        total += G1
                    if G2 is not None:
                        total += G2
                    average = (1 - beta) * average + beta * total
                    x = x - eta * average
                    halves[k].append((G1, G2))
                    momentum[k].append(average.copy())
                    local[k].append(x.copy())
            sent[k] = _entries(made, k, r, position, psi, noise, bits)
            for side in sent[k]:
                filling[side] += sent[k][side]
        if local:
            w = sum(local[k][-1] for k in local) / len(local)
            m = sum(momentum[k][-1] for k in local) / len(local)
        aggregate = w.copy()
        last = False
        if not initial:
            stage.append(aggregate)
            last = len(stage) == _stage_length(s, stage_rounds, stage_growth)
        log.append(
            {
                "epoch": r // period,
                "stage": None if initial else s,
                "lr": None if initial else eta,
                "local_steps": I,
                "pools": {side: list(pools[side]) for side in SIDES},
                "passive": passive,
                "start": start,
                "halves": halves,
                "local": local,
                "sent": sent,
                "aggregate": aggregate,
                "last": last,
                "m": m.copy(),
                "momentum": momentum,
                "memory": dict(memory),
            }
        )
        if last:
            if output == "visits":
                w = sum(stage) / len(stage)
            stage = []
            s += 1
        trajectory.append(w.copy())
    return trajectory, log


# ---------------------------------------------------------------- communication


def pairwise_numbers(log, d, momentum=False):
    """One {client: (down, up)} per round of a log, in numbers, whatever the bits they are sent with.

    Down: w, the passive entries (and m). Up: w (and m), the entries. In the initial epoch w goes down and only
    entries come up. An entry counts its k numbers, labels included, and one more if it has a u. momentum: whether m
    is counted (FeDXL2 with beta < 1; with beta = 1 it is of no use).
    """

    def count(sides):
        return sum(len(e.rep) + (e.u is not None) for side in sides for e in sides[side])

    out = []
    for entry in log:
        out.append({})
        for k in entry["sent"]:
            if entry["stage"] is None:
                out[-1][k] = (d, count(entry["sent"][k]))
            else:
                models = 2 * d if momentum else d
                out[-1][k] = (models + count(entry["passive"][k]), models + count(entry["sent"][k]))
    return out
