"""Checks of the pairwise references themselves: finite differences, limits and known facts."""

import numpy as np
import pytest

from tests.reference import auc_metric, pairwise, problems
from tests.reference.cycp import everyone
from tests.reference.test_reference import differences

SCORE_LOSSES = {
    "square": pairwise.square(0.7),
    "squared_hinge": pairwise.squared_hinge(0.7),
    "logistic": pairwise.logistic(1.5),
    "sigmoid": pairwise.sigmoid(0.6),
    "barrier_hinge": pairwise.barrier_hinge(0.7, 2.5),
    "q_norm_hinge": pairwise.q_norm_hinge(0.7, 2.6),
}
PAIRINGS = ("one_to_one", "all_pairs")
W0 = np.array([0.5, -0.8, 0.3, 1.2])


# ---------------------------------------------------------------- a small problem


def score(w, x):
    """h(w; x) = w_3 tanh(w_0..2 . x)."""
    return np.array([w[3] * np.tanh(w[:3] @ x)])


def score_vjp(w, x, cotangent):
    h = np.tanh(w[:3] @ x)
    return cotangent[0] * np.append(w[3] * (1 - h**2) * x, h)


def linear(w, x):
    return np.array([w[:-1] @ x + w[-1]])


def linear_vjp(w, x, cotangent):
    return cotangent[0] * np.append(x, 1.0)


def embedding(w, sample):
    """sample = (x in R^3, label); two entries and the label."""
    x, label = sample
    return np.append(np.tanh(w.reshape(2, 3) @ x), label)


def embedding_vjp(w, sample, cotangent):
    x, _ = sample
    h = np.tanh(w.reshape(2, 3) @ x)
    assert cotangent[2] == 0
    return np.outer(cotangent[:2] * (1 - h**2), x).ravel()


def sides(sizes, seed=0):
    """One client per (n_1, n_2), of vectors in R^3."""
    rng = np.random.default_rng(seed)
    return [(list(rng.normal(size=(a, 3)) + 0.3), list(rng.normal(size=(b, 3)))) for a, b in sizes]


def labelled(sizes, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for n in sizes:
        samples = [(rng.normal(size=3), float(rng.integers(3))) for _ in range(n)]
        out.append((samples, samples))
    return out


def random_draw(clients, B):
    def draw(k, r, t, side):
        rng = np.random.default_rng([k, r, t, side])
        n = len(clients[k][side - 1])
        assert n > 0
        return rng.permutation(n)[:B] if n >= B else rng.integers(n, size=B)

    return draw


def random_pool_draw(r, position, side, n, count):
    rng = np.random.default_rng([r, position, side, 99])
    assert n > 0
    return rng.permutation(n)[:count] if n >= count else rng.integers(n, size=count)


def full_draw(clients, B):
    """Every sample of the side equally often, in order."""

    def draw(k, r, t, side):
        n = len(clients[k][side - 1])
        assert B % n == 0
        return np.repeat(np.arange(n), B // n)

    return draw


def even_pool_draw(r, position, side, n, count):
    """With full_draw, I = 1 and all owners in the round: every sample as often as its weight says."""
    assert n % count == 0
    return np.arange(0, n, n // count)


MIXED = [(3, 4), (2, 0), (0, 3), (5, 2), (1, 1), (0, 0)]  # an owner of one side only, of none, of few samples


def run(method, *, psi=None, outer=None, clients=None, rounds=12, who=None, B=2, w0=W0, **options):
    clients = sides(MIXED) if clients is None else clients
    options = {"period": 3, "lr": 0.2, "local_steps": 2, "batch": B} | options
    who = who or everyone([[0, 1], [2, 3], [5, 4]])
    loss = (psi or SCORE_LOSSES["sigmoid"],) if outer is None else (psi, outer)
    return method(
        score,
        score_vjp,
        *loss,
        clients,
        random_draw(clients, B),
        random_pool_draw,
        who,
        w0,
        rounds,
        **options,
    )


def wobble(rows):
    def noise(client, r, side):
        return 0.1 * np.random.default_rng([client, r, side, 7]).normal(size=rows)

    return noise


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("name", SCORE_LOSSES)
def test_score_losses_by_differences(name):
    a, b = np.random.default_rng(0).normal(size=(2, 200)) * 2
    h = 1e-6
    temperatures = (None, 0.8)
    for T in temperatures:
        psi = SCORE_LOSSES[name] if T is None else pairwise.exponential(SCORE_LOSSES[name], T)
        keep = np.ones(200, dtype=bool)
        for shift in (-2 * h, 2 * h):  # no kink of the barrier hinge nearby
            keep &= np.isclose(SCORE_LOSSES[name].d1(a, b), SCORE_LOSSES[name].d1(a + shift, b), atol=1e-3)
        keep &= psi.value(a, b) < 1e4
        assert keep.sum() > 100
        one = (psi.value(a + h, b) - psi.value(a - h, b)) / (2 * h)
        two = (psi.value(a, b + h) - psi.value(a, b - h)) / (2 * h)
        np.testing.assert_allclose(psi.d1(a, b)[keep], one[keep], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(psi.d2(a, b)[keep], two[keep], rtol=1e-5, atol=1e-7)
    assert np.all(psi.value(a, b) >= 1)  # all six are nonnegative
    assert np.shape(psi.value(0.3, 0.1)) == np.shape(psi.d1(0.3, 0.1)) == ()


def test_score_losses_by_hand():
    t = np.array([-2.0, 0.2, 0.7, 3.0])
    values = {name: psi.value(t + 1, 1.0) for name, psi in SCORE_LOSSES.items()}
    np.testing.assert_allclose(values["square"], (0.7 - t) ** 2)
    np.testing.assert_allclose(values["squared_hinge"], [2.7**2, 0.5**2, 0, 0], atol=1e-15)
    np.testing.assert_allclose(values["q_norm_hinge"], [2.7**2.6, 0.5**2.6, 0, 0], atol=1e-15)
    np.testing.assert_allclose(values["logistic"], np.log(1 + np.exp(-1.5 * t)))
    np.testing.assert_allclose(values["sigmoid"], 1 / (1 + np.exp(t / 0.6)))
    barrier = [max(0.7 - 2.5 * (0.7 + x), max(2.5 * (x - 0.7), 0.7 - x)) for x in t]
    np.testing.assert_allclose(values["barrier_hinge"], barrier, atol=1e-15)
    far = np.array([-5000.0, 5000.0])
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_allclose(SCORE_LOSSES["logistic"].value(far, 0), [7500, 0])
        np.testing.assert_allclose(SCORE_LOSSES["logistic"].d1(far, 0), [-1.5, 0])
        np.testing.assert_allclose(SCORE_LOSSES["sigmoid"].value(far, 0), [1, 0])
        np.testing.assert_allclose(SCORE_LOSSES["sigmoid"].d2(far, 0), [0, 0])
    same = pairwise.q_norm_hinge(0.7, 2.0)
    np.testing.assert_allclose(same.d1(t, 0), SCORE_LOSSES["squared_hinge"].d1(t, 0))
    hinge = pairwise.q_norm_hinge(1.0, 1.0)
    np.testing.assert_array_equal(hinge.d1(np.array([0.0, 2.0]), 0), [-1, 0])
    # At the two kinks the barrier hinge's slope is between those on either side.
    barrier = pairwise.barrier_hinge(1.0, 2.0)
    np.testing.assert_allclose(barrier.value(np.array([-2.0, 1.0]), 0), [3, 0])
    assert -2 <= barrier.d1(-2.0, 0) <= -1 and -1 <= barrier.d1(1.0, 0) <= 2


def test_contrastive_loss():
    rng = np.random.default_rng(1)
    for psi in (pairwise.contrastive(1.3), pairwise.exponential(pairwise.contrastive(1.3), 0.5)):
        seen = set()
        for _ in range(40):
            a, b = rng.normal(size=(2, 3)) * 0.8
            a, b = np.append(a, rng.integers(2)), np.append(b, rng.integers(2))
            D = np.linalg.norm(a[:3] - b[:3])
            seen.add((a[3] == b[3], D < 1.3))
            one = differences(lambda x, a=a, b=b, psi=psi: psi.value(np.append(x, a[3]), b), a[:3])
            two = differences(lambda x, a=a, b=b, psi=psi: psi.value(a, np.append(x, b[3])), b[:3])
            np.testing.assert_allclose(psi.d1(a, b), np.append(one, 0), rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(psi.d2(a, b), np.append(two, 0), rtol=1e-6, atol=1e-8)
        assert len(seen) == 4
    psi = pairwise.contrastive(1.3)
    a, b = np.array([1.0, 2, 0]), np.array([1.0, 1, 1])
    assert np.isclose(psi.value(a, b), 0.3**2 / 2) and np.isclose(psi.value(a, [1, 1, 0]), 0.5)
    assert np.isclose(psi.value(a, [1, 2, 1]), 1.3**2 / 2)
    for d in (psi.d1, psi.d2):
        np.testing.assert_array_equal(d(a, np.array([1.0, 2, 1])), 0)
        np.testing.assert_array_equal(d(a, a), 0)


def test_outer():
    f = pairwise.log_outer(0.4)
    assert np.isclose(f.slope(1.7), (f.value(1.7 + 1e-6) - f.value(1.7 - 1e-6)) / 2e-6)
    # A single pair: f(psi) is the loss itself. Many pairs: between the mean (large T) and the maximum (small T).
    psi = SCORE_LOSSES["logistic"]
    assert np.isclose(f.value(pairwise.exponential(psi, 0.4).value(0.3, 0.9)), psi.value(0.3, 0.9))
    clients = sides([(1, 5)])
    losses = [float(psi.value(score(W0, clients[0][0][0]), score(W0, z))[0]) for z in clients[0][1]]
    for T, expected in ((1e6, np.mean(losses)), (0.01, np.max(losses))):
        value = pairwise.objective(W0, clients, score, pairwise.exponential(psi, T), pairwise.log_outer(T))
        assert np.isclose(value, expected, atol=2e-2 if T < 1 else 1e-5)


# ---------------------------------------------------------------- objective


@pytest.mark.parametrize("name", SCORE_LOSSES)
def test_gradient_is_that_of_the_objective(name):
    psi = SCORE_LOSSES[name]
    clients = sides(MIXED)
    expected = differences(lambda w: pairwise.objective(w, clients, score, psi), W0)
    np.testing.assert_allclose(pairwise.gradient(W0, clients, score, score_vjp, psi), expected, atol=1e-7)
    psi, f = pairwise.exponential(psi, 0.7), pairwise.log_outer(0.7)
    expected = differences(lambda w: pairwise.objective(w, clients, score, psi, f), W0)
    np.testing.assert_allclose(pairwise.gradient(W0, clients, score, score_vjp, psi, f), expected, atol=1e-7)


def test_objective_by_arrays():
    clients = sides(MIXED)
    total = 0
    for i in (0, 1, 3, 4):
        for j in (0, 2, 3, 4):
            a = np.array([score(W0, z) for z in clients[i][0]])
            b = np.array([score(W0, z) for z in clients[j][1]])
            total += np.mean((1 - a + b.T) ** 2) / 16
    assert np.isclose(pairwise.objective(W0, clients, score, pairwise.square()), total)


def test_contrastive_objective():
    clients = labelled([3, 4])
    psi = pairwise.contrastive(1.0)
    w = np.random.default_rng(2).normal(size=6)
    expected = differences(lambda u: pairwise.objective(u, clients, embedding, psi), w)
    np.testing.assert_allclose(
        pairwise.gradient(w, clients, embedding, embedding_vjp, psi), expected, atol=1e-8
    )


# ---------------------------------------------------------------- T23, T24, and with many clients


def one_exact_step(psi, clients, B, rep=score, rep_vjp=score_vjp, w0=W0, **options):
    """(w0 - w1) / lr after one step of all clients on full batches with pools of exactly the current scores."""
    lr = 0.1
    trajectory, _ = pairwise.rs_pairwise(
        rep,
        rep_vjp,
        psi,
        clients,
        full_draw(clients, B),
        even_pool_draw,
        lambda r: range(len(clients)),
        w0,
        2,
        lr=lr,
        local_steps=1,
        batch=B,
        pairing="all_pairs",
        **options,
    )
    np.testing.assert_array_equal(trajectory[0], w0)
    return (w0 - trajectory[1]) / lr


@pytest.mark.parametrize("name", SCORE_LOSSES)
def test_t23_exact_pools_give_the_gradient(name):
    psi = SCORE_LOSSES[name]
    clients = sides([(3, 6)])
    expected = differences(lambda w: pairwise.objective(w, clients, score, psi), W0)
    np.testing.assert_allclose(one_exact_step(psi, clients, 6), expected, rtol=1e-6, atol=1e-8)
    wrong = psi._replace(d2=psi.d1)  # equation (12) as printed
    assert np.abs(one_exact_step(wrong, clients, 6) - expected).max() > 1e-2


def test_t23_contrastive():
    clients = labelled([5])
    psi = pairwise.contrastive(1.0)
    w = np.random.default_rng(3).normal(size=6)
    expected = differences(lambda u: pairwise.objective(u, clients, embedding, psi), w)
    step = one_exact_step(psi, clients, 5, embedding, embedding_vjp, w)
    np.testing.assert_allclose(step, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", SCORE_LOSSES)
def test_exact_pools_of_many_clients(name):
    psi = SCORE_LOSSES[name]
    clients = sides([(3, 0), (1, 2), (0, 1), (0, 4)])  # N = 4, N_1 = 2, N_2 = 3
    expected = pairwise.gradient(W0, clients, score, score_vjp, psi)
    np.testing.assert_allclose(one_exact_step(psi, clients, 12), expected, rtol=1e-9, atol=1e-12)
    assert np.abs(one_exact_step(psi, clients, 12, rescale=False) - expected).max() > 1e-3


def test_t24_square_loss_is_the_minimax_gradient():
    rng = np.random.default_rng(4)
    w = rng.normal(size=4)
    for sizes, B in (([(2, 4)], 4), ([(2, 4), (1, 2)], 8)):  # equal shares of positives, so that p is common
        clients = sides(sizes, seed=5)
        step = one_exact_step(pairwise.square(1.0), clients, B, linear, linear_vjp, w)
        a = np.mean([np.mean([linear(w, z) for z in one]) for one, _ in clients])
        b = np.mean([np.mean([linear(w, z) for z in two]) for _, two in clients])
        arrays = [(np.array(one + two), [1] * len(one) + [0] * len(two)) for one, two in clients]
        p = problems.client_mean_p([y for _, y in arrays])
        grad = auc_metric.grad_phi(np.append(w, [a, b]), arrays, p) / (p * (1 - p))
        np.testing.assert_allclose(grad[4:], 0, atol=1e-12)
        np.testing.assert_allclose(step, grad[:4], rtol=1e-9, atol=1e-11)


# ---------------------------------------------------------------- runs of CyCp-Pairwise


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_steps_descend_the_detached_loss(pairing):
    """G1 and G2 are the gradients of mean psi(s1, r2) and mean psi(r1, s2) with r1, r2 held fixed."""
    psi = SCORE_LOSSES["logistic"]
    clients = sides(MIXED)
    draw = random_draw(clients, 2)
    trajectory, log = run(pairwise.cycp_pairwise, psi=psi, pairing=pairing)
    factors = {1: 6 / 4, 2: 6 / 4}

    def mean_loss(one, two):
        matrix = psi.value(np.array(one).reshape(-1, 1), np.array(two).reshape(1, -1))
        return matrix.mean() if pairing == "all_pairs" else np.diag(matrix).mean()

    checked = 0
    w = W0
    for r, entry in enumerate(log):
        np.testing.assert_array_equal(entry["start"], w)
        ends = []
        for k in entry["local"]:
            u = w
            for t in range(2):
                G = entry["halves"][k][t]
                for side in (1, 2):
                    if not clients[k][side - 1]:
                        assert G[side - 1] is None
                        continue
                    fixed = [e.rep[0] for e in entry["passive"][k][3 - side][2 * t : 2 * t + 2]]
                    z = [clients[k][side - 1][p] for p in draw(k, r, t, side)]

                    def loss(x, side=side, z=z, fixed=fixed):
                        scores = [score(x, sample) for sample in z]
                        return mean_loss(scores, fixed) if side == 1 else mean_loss(fixed, scores)

                    expected = factors[side] * differences(loss, u)
                    np.testing.assert_allclose(G[side - 1], expected, atol=1e-8)
                    sent = entry["sent"][k][side][2 * t : 2 * t + 2]
                    np.testing.assert_allclose([e.rep for e in sent], [score(u, x) for x in z])
                    checked += 1
                u = u - 0.2 * sum((g for g in G if g is not None), np.zeros(4))
                np.testing.assert_allclose(entry["local"][k][t], u, atol=1e-14)
            ends.append(u)
        w = np.mean(ends, 0) if ends else w
        np.testing.assert_allclose(trajectory[r], w, atol=1e-14)
        w = trajectory[r]
    assert checked == 9 * 2 * 8 // 3
    assert np.abs(trajectory[-1] - W0).max() > 0.05


def test_initial_epoch():
    trajectory, log = run(pairwise.cycp_pairwise, rounds=4, local_steps=3)
    clients = sides(MIXED)
    draw = random_draw(clients, 2)
    for r in range(3):
        np.testing.assert_array_equal(trajectory[r], W0)
        assert log[r]["stage"] is None and not log[r]["local"] and log[r]["pools"] == {1: [], 2: []}
    for side in (1, 2):
        expected = []
        for r, members in enumerate(([0, 1], [2, 3], [5, 4])):
            for k in members:
                for t in range(3 if clients[k][side - 1] else 0):
                    expected += [score(W0, clients[k][side - 1][p]) for p in draw(k, r, t, side)]
        np.testing.assert_array_equal([e.rep for e in log[3]["pools"][side]], expected)
    assert log[3]["stage"] == 0 and np.abs(trajectory[3] - W0).max() > 1e-3
    shorter, _ = run(pairwise.cycp_pairwise, rounds=2)
    np.testing.assert_array_equal(shorter, [W0, W0])


@pytest.mark.parametrize("period", [1, 3])
def test_t25_passive_entries_are_of_the_epoch_before(period):
    _, log = run(pairwise.cycp_pairwise, period=period, rounds=15)
    order = [[0, 1], [2, 3], [5, 4]]
    clients = sides(MIXED)
    for r in range(period, 15):
        for side in (1, 2):
            before = range((r // period - 1) * period, r // period * period)
            expected = []
            for q in before:
                for position, k in enumerate(order[q % 3]):
                    if clients[k][side - 1]:
                        expected += [(q, k, position, t, b) for t in range(2) for b in range(2)]
            pool = log[r]["pools"][side]
            assert [(e.round, e.client, e.position, e.step, e.slot) for e in pool] == expected
            for position, k in enumerate(order[r % 3]):
                places = random_pool_draw(r, position, side, len(pool), 4)
                assert [id(e) for e in log[r]["passive"][k][side]] == [id(pool[p]) for p in places]
            for e in pool:  # a score at the local w of its step, before the step
                q, k = e.round, e.client
                w = log[q]["local"][k][e.step - 1] if e.step and q >= period else log[q]["start"]
                assert e.rep[0] == score(w, clients[k][side - 1][e.place])[0]


def test_empty_pools_and_kept_pools():
    clients = sides([(3, 0), (0, 3), (2, 2)])
    visits = [[0], [0], [1], [1], [0], [], [2]]
    trajectory, log = run(
        pairwise.cycp_pairwise, clients=clients, who=lambda r: visits[r], period=1, rounds=7
    )
    # Round 1: pool 2 is empty, so client 0 has nothing to do; round 2: client 1 meets round 1's positives.
    np.testing.assert_array_equal(trajectory[1], W0)
    assert log[1]["halves"][0] == [(None, None)] * 2 and log[1]["passive"][0][2] == []
    rounds = [{side: {e.round for e in entry["pools"][side]} for side in (1, 2)} for entry in log]
    assert rounds[1] == {1: {0}, 2: set()}
    assert rounds[2] == {1: {1}, 2: set()}
    assert rounds[3] == {1: {1}, 2: {2}}
    assert rounds[4] == {1: {1}, 2: {3}}
    assert rounds[5] == rounds[6] == {1: {4}, 2: {3}}
    assert log[2]["halves"][1][0][0] is None and log[2]["halves"][1][0][1] is not None
    np.testing.assert_array_equal(trajectory[5], trajectory[4])
    assert all(g is not None for g in log[6]["halves"][2][0])
    assert np.abs(trajectory[6] - trajectory[5]).max() > 1e-4


def test_a_client_without_data_stays_and_counts():
    clients = sides([(3, 3), (0, 0)])
    options = {"clients": clients, "period": 1, "rounds": 2, "local_steps": 1}
    alone, _ = run(pairwise.cycp_pairwise, who=lambda r: [0], **options)
    both, log = run(pairwise.cycp_pairwise, who=lambda r: [0, 1], **options)
    np.testing.assert_array_equal(log[1]["local"][1][-1], W0)
    np.testing.assert_allclose(both[1] - W0, (alone[1] - W0) / 2, atol=1e-15)
    # N / N_1 = 2 makes the mean over both as long as a run of client 0 on its own.
    own, _ = run(pairwise.cycp_pairwise, who=lambda r: [0], **options | {"clients": clients[:1]})
    np.testing.assert_allclose(both[1], own[1], atol=1e-14)


def test_stages():
    common = {"rounds": 25, "who": everyone([[0, 1], [2, 3], [5, 4]])}
    stages = {"stage_rounds": 4, "stage_growth": 1.5, "lr_decay": 0.5, "interval_growth": 1.6}
    for method in ("cycp", "fedxl2"):
        for output in ("visits", "last"):
            if method == "cycp":
                trajectory, log = run(pairwise.cycp_pairwise, output=output, **common, **stages)
            else:
                psi = pairwise.exponential(SCORE_LOSSES["sigmoid"], 1.0)
                f = pairwise.log_outer(1.0)
                options = {"gamma": 0.5, "beta": 0.5, "output": output, **common, **stages}
                trajectory, log = run(pairwise.fedxl2, psi=psi, outer=f, **options)
            assert [e["stage"] for e in log] == [None] * 3 + [0] * 4 + [1] * 6 + [2] * 9 + [3] * 3
            assert [e["last"] for e in log] == [r in (6, 12, 21) for r in range(25)]
            assert [e["epoch"] for e in log] == [r // 3 for r in range(25)]
            assert [log[r]["local_steps"] for r in (0, 3, 7, 13, 22)] == [2, 2, 3, 5, 8]
            np.testing.assert_allclose([log[r]["lr"] for r in (3, 7, 13, 22)], [0.2, 0.1, 0.05, 0.025])
            for first, last in ((3, 6), (7, 12), (13, 21)):
                iterates = [log[r]["aggregate"] for r in range(first, last + 1)]
                expected = np.mean(iterates, 0) if output == "visits" else iterates[-1]
                np.testing.assert_allclose(trajectory[last], expected, atol=1e-14)
            for r in range(3, 25):
                assert {e.round // 3 for side in (1, 2) for e in log[r]["pools"][side]} == {r // 3 - 1}
            lengths = [len(log[r]["passive"][0][1]) for r in (3, 9, 15, 24)]
            assert lengths == [4, 6, 10, 16]
    plain, _ = run(pairwise.cycp_pairwise, **common)
    short, _ = run(pairwise.cycp_pairwise, **common | {"rounds": 6}, stage_rounds=3, output="last")
    np.testing.assert_array_equal(plain[:6], short)


def test_pairings_agree_for_one_slot_only():
    one, _ = run(pairwise.cycp_pairwise, B=1, pairing="one_to_one")
    two, _ = run(pairwise.cycp_pairwise, B=1, pairing="all_pairs")
    np.testing.assert_array_equal(one, two)
    one, _ = run(pairwise.cycp_pairwise, B=3, pairing="one_to_one")
    two, _ = run(pairwise.cycp_pairwise, B=3, pairing="all_pairs")
    assert np.abs(np.array(one) - two).max() > 1e-4


def test_a_run_lowers_the_objective():
    psi = SCORE_LOSSES["logistic"]
    clients = sides(MIXED)
    trajectory, _ = run(pairwise.cycp_pairwise, psi=psi, rounds=150, lr=0.05, pairing="all_pairs")
    before, after = (pairwise.objective(w, clients, score, psi) for w in (W0, trajectory[-1]))
    assert after < before - 0.1


def test_contrastive_run():
    clients = labelled([4, 1, 3])
    psi = pairwise.contrastive(1.0)
    w = np.random.default_rng(6).normal(size=6)

    def contrast(**options):
        options = {"period": 3, "lr": 0.1, "local_steps": 2, "batch": 2} | options
        who = everyone([[0], [1], [2]])
        draws = random_draw(clients, 2), random_pool_draw
        return pairwise.cycp_pairwise(
            embedding, embedding_vjp, psi, clients, *draws, who, w, options.pop("rounds", 60), **options
        )

    trajectory, log = contrast()
    before, after = (pairwise.objective(u, clients, embedding, psi) for u in (w, trajectory[-1]))
    assert after < before
    assert log[3]["pools"][1][0].rep.shape == (3,)
    # Labels survive noise and quantisation, whichever number of noise entries is given; embeddings do not.
    outcomes = []
    for k in (2, 3):
        rows = lambda client, r, side, k=k: np.ones((4, 3))[:, :k] * np.array([0.5, -0.5, 9])[:k]
        outcomes.append(contrast(rounds=4, noise=rows, bits=1))
    np.testing.assert_array_equal(outcomes[0][0], outcomes[1][0])
    pool = outcomes[0][1][3]["pools"][1]
    assert [e.rep[2] for e in pool] == [clients[e.client][0][e.place][1] for e in pool]
    for k in range(3):
        own = [e for e in pool if e.client == k]
        raw = np.array([np.add(embedding(w, clients[k][0][e.place])[:2], [0.5, -0.5]) for e in own])
        levels = np.unique(np.round([e.rep[:2] for e in own], 12))
        span = raw.max() - raw.min()
        assert len(levels) == 2  # the ends of the widened range
        assert raw.min() - span / 4 < levels[0] <= raw.min() and raw.max() < levels[1] <= raw.max() + span / 4


# ---------------------------------------------------------------- noise and quantisation


def test_quantised():
    values = np.array([0.0, 0.4, 0.5, 1.5, 2.5, 2.9])  # q = 0.5: from 0 to 3
    np.testing.assert_array_equal(pairwise.quantised(values, 2), [0, 0, 0, 2, 2, 3])  # half to even
    np.testing.assert_array_equal(pairwise.quantised(values, 1), [0, 0, 0, 0, 3, 3])  # 1.5 is half way
    assert np.abs(pairwise.quantised(np.full((2, 3), 0.1), 3) - 0.1).max() <= 0.125 / 7 / 2 + 1e-12
    assert not np.isin(
        pairwise.quantised(np.array([0.13, 0.57, 0.91]), 8), [0.13, 0.91]
    ).any()  # no end is told
    many = np.random.default_rng(0).normal(size=(50, 2))
    for bits in (1, 4, 8):
        coarse = pairwise.quantised(many, bits)
        assert len(np.unique(coarse)) <= 2**bits
        step = (many.max() - many.min()) / (2**bits - 1)
        assert np.abs(coarse - many).max() <= 1.5 * step / 2 * (
            1 + 1e-12
        )  # the range is at most half as large again


def test_noise_and_bits_touch_only_what_is_sent():
    plain, log = run(pairwise.cycp_pairwise)
    silent, _ = run(pairwise.cycp_pairwise, noise=lambda *_: np.zeros(4))
    np.testing.assert_array_equal(plain, silent)
    fine, _ = run(pairwise.cycp_pairwise, bits=50)
    np.testing.assert_allclose(plain, fine, atol=1e-12)
    noise = wobble(4)
    noisy, other = run(pairwise.cycp_pairwise, noise=noise)
    for r in range(3):
        for k in log[r]["sent"]:
            for side in log[r]["sent"][k]:
                clean = np.array([e.rep[0] for e in log[r]["sent"][k][side]])
                sent = [e.rep[0] for e in other[r]["sent"][k][side]]
                np.testing.assert_allclose(sent, clean + noise(k, r, side), atol=1e-15)
    assert np.abs(noisy[3] - plain[3]).max() > 1e-6
    # A client's own step does not see its noise: silence every passive side and nothing is left of it.
    first, _ = run(pairwise.cycp_pairwise, rounds=6, noise=lambda k, r, s: noise(k, r, s) * (r >= 3))
    np.testing.assert_array_equal(first, plain[:6])
    both, other = run(pairwise.cycp_pairwise, noise=noise, bits=2)
    for k, r, side in ((0, 0, 1), (3, 4, 2)):
        entries = other[r]["sent"][k][side]
        assert len({e.rep[0] for e in entries}) <= 4
    clean = np.array([e.rep[0] for e in log[0]["sent"][0][1]]) + noise(0, 0, 1)
    expected = pairwise.quantised(clean, 2)
    np.testing.assert_allclose([e.rep[0] for e in other[0]["sent"][0][1]], expected, atol=1e-15)
    assert np.abs(both[-1] - noisy[-1]).max() > 1e-6


# ---------------------------------------------------------------- FeDXL2


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_fedxl2_with_the_identity_is_cycp_pairwise(pairing):
    common = {"pairing": pairing, "stage_rounds": 4, "lr_decay": 0.5, "interval_growth": 1.5}
    cases = [{}, {"rescale": False}, {"bits": 3}, {"period": 1, "B": 3}, {"output": "last"}]
    for case in cases:
        one, log1 = run(pairwise.cycp_pairwise, **common, **case)
        for gamma in (0.2, 1.0):
            two, log2 = run(
                pairwise.fedxl2,
                psi=SCORE_LOSSES["sigmoid"],
                outer=pairwise.LINEAR,
                gamma=gamma,
                **common,
                **case,
            )
            np.testing.assert_allclose(one, two, atol=1e-14)
        for a, b in zip(log1, log2, strict=True):
            for side in (1, 2):
                assert [e[2:] for e in a["pools"][side]] == [e[2:] for e in b["pools"][side]]
    assert np.abs(one[-1] - W0).max() > 1e-2


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_fedxl2_tends_to_the_plain_loss_for_a_large_temperature(pairing):
    T = 1e6
    plain, _ = run(pairwise.cycp_pairwise, psi=SCORE_LOSSES["logistic"], pairing=pairing)
    psi = pairwise.exponential(SCORE_LOSSES["logistic"], T)
    for gamma in (0.3, 1.0):
        limit, _ = run(pairwise.fedxl2, psi=psi, outer=pairwise.log_outer(T), gamma=gamma, pairing=pairing)
        np.testing.assert_allclose(limit, plain, atol=1e-5)


@pytest.mark.parametrize("name", ["squared_hinge", "sigmoid", "logistic"])
def test_fedxl2_with_exact_pools_gives_the_gradient(name):
    """gamma = 1, no movement: after one epoch the u that travel are exact, hence so is the gradient."""
    T = 0.6
    psi, f = pairwise.exponential(SCORE_LOSSES[name], T), pairwise.log_outer(T)
    for sizes, B in (([(3, 6)], 6), ([(3, 0), (1, 2), (0, 1), (0, 4)], 12)):
        clients = sides(sizes)
        everybody = range(len(clients))
        _, log = pairwise.fedxl2(
            score,
            score_vjp,
            psi,
            f,
            clients,
            full_draw(clients, B),
            even_pool_draw,
            lambda r, everybody=everybody: everybody,
            W0,
            3,
            period=1,
            lr=0.0,
            local_steps=1,
            batch=B,
            gamma=1.0,
            pairing="all_pairs",
        )
        expected = differences(lambda w, c=clients: pairwise.objective(w, c, score, psi, f), W0)
        np.testing.assert_allclose(log[2]["m"], expected, rtol=1e-6, atol=1e-8)
        # With the u of the initial epoch it is not; and the u are the inner means.
        assert np.abs(log[1]["m"] - expected).max() > 1e-2
        for (k, p), u in log[1]["memory"].items():
            a = score(W0, clients[k][0][p])
            assert np.isclose(u, pairwise.inner_mean(W0, a, clients, score, psi))


def test_fedxl2_with_gamma_one_and_single_pairs_has_the_loss_in_g1():
    """f'(psi) d1 psi = d1 l pair by pair, as long as no sample is twice in a batch."""
    T = 0.1
    clients = sides([(3, 4), (2, 0), (4, 2)])
    options = {"clients": clients, "who": everyone([[0, 1], [2]]), "period": 2, "rounds": 3}
    loss = SCORE_LOSSES["sigmoid"]
    _, one = run(pairwise.cycp_pairwise, psi=loss, local_steps=1, **options)
    psi, f = pairwise.exponential(loss, T), pairwise.log_outer(T)
    _, two = run(pairwise.fedxl2, psi=psi, outer=f, gamma=1.0, local_steps=1, **options)
    for k in (0, 1):
        np.testing.assert_allclose(one[2]["halves"][k][0][0], two[2]["halves"][k][0][0], atol=1e-13)
    # u = 1 from the initial epoch: G2 has exp(l / T) times the loss's pairs, here more than twice as much.
    g1, g2 = (np.linalg.norm(log[2]["halves"][0][0][1]) for log in (one, two))
    assert g2 > 2 * g1


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_fedxl2_moving_average(pairing):
    """u recomputed from the log, entry by entry, with repeated samples (client 4 has one, B is 3)."""
    gamma, B = 0.3, 3
    loss = SCORE_LOSSES["sigmoid"]
    psi, f = pairwise.exponential(loss, 0.7), pairwise.log_outer(0.7)
    clients = sides(MIXED)
    options = {"B": B, "rounds": 15, "pairing": pairing, "noise": wobble(6), "bits": 4}
    _, log = run(pairwise.fedxl2, psi=psi, outer=f, gamma=gamma, **options)
    memory = {}
    for r, entry in enumerate(log):
        for k in entry["sent"]:
            sent = entry["sent"][k].get(1, [])
            if r < 3:
                assert {e.u for e in sent} <= {1.0}
                continue
            for t in range(2 if sent else 0):
                w = entry["local"][k][t - 1] if t else entry["start"]
                step = sent[t * B : (t + 1) * B]
                passive = [e.rep[0] for e in entry["passive"][k][2][t * B : (t + 1) * B]]
                scores = [score(w, clients[k][0][e.place])[0] for e in step]
                g = psi.value(np.array(scores)[:, None], np.array(passive)[None, :])
                g = g.mean(1) if pairing == "all_pairs" else np.diag(g)
                for p in {e.place for e in step}:
                    new = np.mean([g[b] for b in range(B) if step[b].place == p])
                    old = memory.get((k, p), new)
                    memory[k, p] = old + gamma * (new - old)
                np.testing.assert_allclose([e.u for e in step], [memory[k, e.place] for e in step])
                G1 = 0
                for b in range(B):
                    partners = range(B) if pairing == "all_pairs" else [b]
                    d = np.mean([psi.d1(scores[b], passive[c]) for c in partners])
                    d *= f.slope(step[b].u) / B * 6 / 4
                    G1 = G1 + score_vjp(w, clients[k][0][step[b].place], [d])
                np.testing.assert_allclose(entry["halves"][k][t][0], G1, atol=1e-12)
        assert entry["memory"].keys() == memory.keys()
        assert all(np.isclose(entry["memory"][key], memory[key]) for key in memory)
        for side in (1, 2):
            assert all((e.u is None) == (side == 2) for e in entry["pools"][side])
    assert len({k for k, _ in memory}) == 4
    assert len(log[5]["sent"][4][1]) == 6 and {e.place for e in log[5]["sent"][4][1]} == {0}


def test_fedxl2_passive_half_uses_the_u_that_came_along():
    psi, f = pairwise.exponential(SCORE_LOSSES["sigmoid"], 0.7), pairwise.log_outer(0.7)
    clients = sides(MIXED)
    _, log = run(pairwise.fedxl2, psi=psi, outer=f, gamma=0.4)
    seen = set()
    for r in range(3, 12):
        for k in log[r]["local"]:
            for t in range(2 if clients[k][1] else 0):
                w = log[r]["local"][k][t - 1] if t else log[r]["start"]
                G2 = 0
                for b in range(2):
                    e = log[r]["passive"][k][1][2 * t + b]
                    place = log[r]["sent"][k][2][2 * t + b].place
                    z = clients[k][1][place]
                    d = 0.7 / e.u * psi.d2(e.rep[0], score(w, z)[0]) / 2 * 6 / 4
                    G2 = G2 + score_vjp(w, z, [d])
                    seen.add(e.u)
                np.testing.assert_allclose(log[r]["halves"][k][t][1], G2, atol=1e-12)
    assert len(seen) > 10


def test_fedxl2_momentum():
    psi, f = pairwise.exponential(SCORE_LOSSES["sigmoid"], 0.7), pairwise.log_outer(0.7)
    beta = 0.25
    trajectory, log = run(pairwise.fedxl2, psi=psi, outer=f, gamma=0.5, beta=beta, local_steps=3)
    m, w = np.zeros(4), W0
    for r, entry in enumerate(log):
        ends = []
        for k in entry["local"]:
            a, x = m, w
            for t in range(3):
                a = (1 - beta) * a + beta * sum(
                    (g for g in entry["halves"][k][t] if g is not None), np.zeros(4)
                )
                x = x - 0.2 * a
            ends.append((a, x))
        if ends:
            m, w = np.mean([a for a, _ in ends], 0), np.mean([x for _, x in ends], 0)
        np.testing.assert_allclose(entry["m"], m, atol=1e-14)
        np.testing.assert_allclose(trajectory[r], w, atol=1e-14)
    np.testing.assert_array_equal(log[2]["m"], 0)
    # A client without data passes a shrunken m on.
    assert np.allclose(log[5]["momentum"][5][-1], (1 - beta) ** 3 * log[4]["m"], atol=1e-15)
    plain, log = run(pairwise.fedxl2, psi=psi, outer=f, gamma=0.5, local_steps=3)
    np.testing.assert_allclose(
        log[3]["m"], np.mean([sum(log[3]["halves"][0][2]), log[3]["halves"][1][2][0]], 0)
    )
    assert np.abs(np.array(plain) - trajectory).max() > 1e-3


def test_fedxl2_without_negatives():
    psi, f = pairwise.exponential(SCORE_LOSSES["sigmoid"], 0.7), pairwise.log_outer(0.7)
    clients = sides([(2, 0), (0, 3)])
    visits = [[0], [0], [1], [0], [0]]
    trajectory, log = run(
        pairwise.fedxl2,
        psi=psi,
        outer=f,
        clients=clients,
        who=lambda r: visits[r],
        period=1,
        rounds=5,
        gamma=0.5,
    )
    assert log[1]["memory"] == {} and {e.u for e in log[1]["sent"][0][1]} == {1.0}
    np.testing.assert_array_equal(trajectory[1], W0)
    assert log[2]["memory"] == {} and {e.u for e in log[2]["passive"][1][1]} == {1.0}
    assert len(log[3]["memory"]) == 2 and all(u > 1 for u in log[3]["memory"].values())
    assert log[3]["pools"][2] == log[4]["pools"][2] and log[4]["memory"] != log[3]["memory"]


def test_fedxl2_lowers_the_objective():
    T = 0.5
    psi, f = pairwise.exponential(SCORE_LOSSES["sigmoid"], T), pairwise.log_outer(T)
    clients = sides(MIXED)
    options = {"rounds": 150, "lr": 0.02, "gamma": 0.5, "beta": 0.5, "pairing": "all_pairs"}
    trajectory, _ = run(pairwise.fedxl2, psi=psi, outer=f, **options)
    before, after = (pairwise.objective(w, clients, score, psi, f) for w in (W0, trajectory[-1]))
    assert after < before - 0.1


# ---------------------------------------------------------------- communication


def test_numbers():
    clients = sides([(3, 3), (2, 0), (0, 4), (4, 4)])
    options = {"clients": clients, "who": everyone([[0, 1], [2, 3]]), "period": 2, "rounds": 6}
    options |= {"local_steps": 3, "B": 2}
    _, log = run(pairwise.cycp_pairwise, **options)
    numbers = pairwise.pairwise_numbers(log, 4)
    assert numbers[0] == {0: (4, 12), 1: (4, 6)} and numbers[1] == {2: (4, 6), 3: (4, 12)}
    assert numbers[2] == {0: (16, 16), 1: (16, 10)}  # d + 2 I B for an owner of both sides
    psi = pairwise.exponential(SCORE_LOSSES["sigmoid"], 1.0)
    _, log = run(pairwise.fedxl2, psi=psi, outer=pairwise.log_outer(1.0), gamma=0.5, beta=0.5, **options)
    numbers = pairwise.pairwise_numbers(log, 4, momentum=True)
    assert numbers[0] == {0: (4, 18), 1: (4, 12)}
    assert numbers[3] == {2: (26, 14), 3: (26, 26)}
