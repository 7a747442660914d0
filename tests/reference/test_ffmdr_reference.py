"""Checks of the references in ffmdr.py themselves (T27 to T32 of the specification, special cases, hand work)."""

import numpy as np
import pytest

from tests.reference import algorithms, auc_metric, ffmdr, problems
from tests.reference.test_reference import differences, quadratics

METHODS = {
    "local_sgda": (ffmdr.local_sgda, {"lr": 0.02, "lr_dual": 0.03, "local_steps": 3, "server_lr": 0.8}),
    "momentum_local_sgda": (
        ffmdr.momentum_local_sgda,
        {"lr": 0.02, "lr_dual": 0.03, "local_steps": 3, "a": 0.7, "b_x": 0.9, "b_y": 0.4},
    ),
    "fed_norm_sgda": (
        ffmdr.fed_norm_sgda,
        {"eta_x": 0.02, "eta_y": 0.03, "gamma_x": 0.01, "gamma_y": 0.02, "I": lambda k: 2 + k},
    ),
    "fedsgda_plus": (
        ffmdr.fedsgda_plus,
        {"lr": 0.02, "lr_dual": 0.03, "local_steps": 3, "refresh": 2, "server_lr": 0.8},
    ),
    "fedsgda_m": (ffmdr.fedsgda_m, {"lr": 0.02, "lr_dual": 0.03, "local_steps": 3, "alpha": 0.3}),
    "fednest": (
        ffmdr.fednest,
        {"alpha": 0.05, "beta": 0.1, "T": 2, "I_x": lambda k: 2 + k, "I_y": lambda k: 3},
    ),
}
WAYS = {
    "local_sgda": 0.8 * 3 * 0.02,
    "momentum_local_sgda": 0.7 * 3 * 0.02,
    "fed_norm_sgda": 3.5 * 0.01,
    "fedsgda_plus": 0.8 * 3 * 0.02,
    "fedsgda_m": 3 * 0.02,
    "fednest": 0.05,
}
START = np.linspace(-1, 1, 5)


def everyone(N):
    return lambda r: range(N)


def noisy(quads, size=0.0):
    """field(k, z, r, t, phase): an affine field whose matrix and vector depend on the minibatch."""

    def field(k, z, r, t, phase=0):
        rng = np.random.default_rng([k, r, t, phase])
        E, e = rng.normal(size=(len(z), len(z))), rng.normal(size=len(z))
        return problems.quadratic_field(z, *quads[k]) + size * (E @ z + e)

    return field


def full(quads):
    return lambda k, z: problems.quadratic_field(z, *quads[k])


def run(name, quads, rounds, noise=0.0, who=None, field=None, **changes):
    method, options = METHODS[name]
    first = [noisy(quads, noise) if field is None else field]
    if name == "fednest":
        first.append(full(quads))
    return method(*first, who or everyone(len(quads)), len(quads), START, 3, rounds, **{**options, **changes})


def exact(quads, beta, rounds, lam=0.0, who=None, penalised=2, start=START, **options):
    """FFMDR with exact inner solutions on quadratic saddles."""
    return ffmdr.ffmdr(
        None,
        who or everyone(len(quads)),
        len(quads),
        start,
        len(quads[0][3]),
        rounds,
        beta=beta,
        stop="exact",
        solve=lambda k, x: ffmdr.saddle_inner(quads[k], x, beta),
        prox=ffmdr.l1_prox(lam, penalised),
        **options,
    )


def one_class(seed=0, sizes=(5, 6, 7, 8), d=3):
    """Clients with one class each, positive and negative in turn."""
    rng = np.random.default_rng(seed)
    out = []
    for k, size in enumerate(sizes):
        label = 1 - k % 2
        X = rng.normal(size=(size, d)) + 0.3 * k + (0.8 if label else -0.8) * np.array([1, 0, -1.0])[:d]
        out.append((X, np.full(size, label)))
    return out


def auc_sample(clients, p):
    return lambda k, j, z: problems.auc_field(z, clients[k][0][j : j + 1], clients[k][1][j : j + 1], [1.0], p)


def auc_full(clients, p):
    return lambda k, z: problems.auc_field(
        z, clients[k][0], clients[k][1], [1 / len(clients[k][1])] * len(clients[k][1]), p
    )


def auc_batch(clients, p, B):
    def rows(k, r, t):
        return [int(j) for j in np.random.default_rng([k, r, t]).permutation(len(clients[k][1]))[:B]]

    def field(k, z, r, t):
        batch = rows(k, r, t)
        return problems.auc_field(z, clients[k][0][batch], clients[k][1][batch], [1 / B] * B, p)

    return rows, field


# ---------------------------------------------------------------- truth helpers


def test_saddle_helpers():
    q = quadratics()[1]
    x = np.array([0.3, -1.2, 0.7])
    P, c = ffmdr.saddle_primal(q)

    def F(v):
        return problems.quadratic_value(np.concatenate([v, ffmdr.saddle_dual(q, v)]), *q)

    y = ffmdr.saddle_dual(q, x)
    np.testing.assert_allclose(problems.quadratic_field(np.append(x, y), *q)[3:], 0, atol=1e-12)
    np.testing.assert_allclose(differences(F, x), P @ x + c, atol=1e-7)
    w, dual = ffmdr.saddle_inner(q, x, 0.4)
    T = problems.quadratic_field(np.append(w, dual), *q)
    np.testing.assert_allclose(T + np.append((w - x) / 0.4, [0, 0]), 0, atol=1e-12)
    np.testing.assert_allclose(w, np.linalg.solve(P + np.eye(3) / 0.4, x / 0.4 - c), atol=1e-12)


def test_auc_helpers():
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(6 + k, 3)), np.array([1, 0, 0, 1, 0, 0, 1, 0][: 6 + k])) for k in range(3)]
    p = problems.client_mean_p([y for _, y in clients])
    v, alpha = rng.normal(size=6), 0.7
    for X, y in clients:
        Q, s = ffmdr.auc_quadratic(X, y, p)
        value = 0.5 * v @ Q @ v + 2 * (1 + alpha) * s @ v - p * (1 - p) * alpha**2
        expected = problems.auc_value(np.append(v, alpha), X, y, [1 / len(y)] * len(y), p)
        assert np.isclose(value, expected)
        centre = rng.normal(size=6)
        w, dual = ffmdr.auc_inner(X, y, p, centre, 2.5)
        T = problems.auc_field(np.append(w, dual), X, y, [1 / len(y)] * len(y), p)
        np.testing.assert_allclose(T + np.append((w - centre) / 2.5, 0), 0, atol=1e-12)
        # Without a bias: the same as with a bias held at zero.
        short = np.delete(centre, 3)
        w, dual = ffmdr.auc_inner(X, y, p, short, 2.5, bias=False)
        T = problems.auc_field(np.concatenate([w[:3], [0], w[3:], dual]), X, y, [1 / len(y)] * len(y), p)
        np.testing.assert_allclose(np.delete(T, 3) + np.append((w - short) / 2.5, 0), 0, atol=1e-12)
    P, c = ffmdr.auc_shared(clients, p)
    assert np.isclose(0.5 * v @ P @ v + c @ v, auc_metric.phi(v, clients, p))
    for k, (P, c) in enumerate(ffmdr.auc_personal(clients, p)):
        assert np.isclose(0.5 * v @ P @ v + c @ v, auc_metric.phi(v, [clients[k]], p))


def test_minimise():
    P, c = ffmdr.mean_primal([ffmdr.saddle_primal(q) for q in quadratics()])
    np.testing.assert_allclose(ffmdr.minimise(P, c), np.linalg.solve(P, -c), atol=1e-12)
    lam = 0.4
    x = ffmdr.minimise(P, c, ffmdr.l1_prox(lam, 2))
    g = P @ x + c
    for j in range(2):
        assert abs(g[j] + lam * np.sign(x[j])) < 1e-12 if x[j] != 0 else abs(g[j]) <= lam
    assert abs(g[2]) < 1e-12
    assert ffmdr.stationarity(x, g, ffmdr.l1_prox(lam, 2), 0.3) < 1e-11
    assert ffmdr.stationarity(x + 0.1, P @ (x + 0.1) + c, ffmdr.l1_prox(lam, 2), 0.3) > 1e-3


# ---------------------------------------------------------------- FFMDR with exact inner solutions


@pytest.mark.parametrize("form", ["derived", "printed"])
def test_t27_textbook_douglas_rachford(form):
    quads = quadratics()
    parts = [ffmdr.saddle_primal(q) for q in quads]
    N, beta, lam = len(quads), 0.6, 0.8
    trajectory, log = exact(quads, beta, 400, lam, server_prox=form)
    proxes = ffmdr.product_proxes(parts, beta, N * lam if form == "derived" else lam, 2)
    textbook = ffmdr.douglas_rachford(*proxes, np.tile(START[:3], N), 40)
    for r, (s, first, second) in enumerate(textbook):
        np.testing.assert_allclose(log[r]["x"].ravel(), s, atol=1e-12)
        np.testing.assert_allclose(log[r]["w"].ravel(), first, atol=1e-12)
        np.testing.assert_allclose(np.tile(trajectory[r], N), second, atol=1e-12)
    P, c = ffmdr.mean_primal(parts)
    right = ffmdr.minimise(P, c, ffmdr.l1_prox(lam, 2))
    over_n = ffmdr.minimise(P, c, ffmdr.l1_prox(lam / N, 2))
    assert np.abs(right - over_n).max() > 1e-2
    limit, other = (right, over_n) if form == "derived" else (over_n, right)
    assert np.abs(trajectory[-1] - limit).max() < 1e-12
    assert np.abs(trajectory[-1] - other).max() > 1e-2


def test_t28_one_client_is_the_proximal_point_method():
    q = quadratics()[0]
    trajectory, log = exact([q], 0.7, 60)
    w = START[:3]
    for r in range(60):
        before = w
        w, y = ffmdr.saddle_inner(q, w, 0.7)
        np.testing.assert_allclose(log[r]["w"][0], w, atol=1e-12)
        np.testing.assert_allclose(log[r]["y"][0], y, atol=1e-12)
        np.testing.assert_allclose(trajectory[r], 2 * w - before, atol=1e-12)
    np.testing.assert_allclose(w, ffmdr.minimise(*ffmdr.saddle_primal(q)), atol=1e-10)


@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_t29_partial_participation_has_the_same_limit(lam):
    quads = quadratics()
    coin = np.random.default_rng(0).random((800, 4)) < 0.5
    coin[0] = coin[5] = False
    who = lambda r: [k for k in range(4) if coin[r, k]]
    trajectory, log = exact(quads, 0.6, 800, lam, who=who)
    P, c = ffmdr.mean_primal([ffmdr.saddle_primal(q) for q in quads])
    assert np.abs(trajectory[-1] - ffmdr.minimise(P, c, ffmdr.l1_prox(lam, 2))).max() < 1e-12
    np.testing.assert_allclose(trajectory[0], ffmdr.l1_prox(lam, 2)(START[:3], 0.6))
    np.testing.assert_array_equal(trajectory[5], trajectory[4])
    for r in range(1, 800):
        for k in range(4):
            if not coin[r, k]:
                for name in ("x", "w", "y", "ztilde"):
                    np.testing.assert_array_equal(log[r][name][k], log[r - 1][name][k])
        np.testing.assert_allclose(log[r]["ztilde"], 2 * log[r]["w"] - log[r]["x"], atol=1e-14)
        np.testing.assert_allclose(log[r]["zbar"], log[r]["ztilde"].mean(0), atol=1e-14)


def test_relaxation_has_the_same_limit():
    quads = quadratics()
    P, c = ffmdr.mean_primal([ffmdr.saddle_primal(q) for q in quads])
    limit = ffmdr.minimise(P, c, ffmdr.l1_prox(0.8, 2))
    for relaxation in (0.5, 1.5):
        trajectory, log = exact(quads, 0.6, 600, 0.8, relaxation=relaxation)
        assert np.abs(trajectory[-1] - limit).max() < 1e-11
        for r in (1, 2):
            step = relaxation * (log[r - 1]["z"] - log[r - 1]["w"])
            np.testing.assert_allclose(log[r]["x"] - log[r - 1]["x"], step, atol=1e-13)


def auc_exact(clients, p, beta, rounds, lam=0.0):
    return ffmdr.ffmdr(
        None,
        everyone(len(clients)),
        len(clients),
        np.zeros(7),
        6,
        rounds,
        beta=beta,
        stop="exact",
        solve=lambda k, x: ffmdr.auc_inner(*clients[k], p, x, beta),
        prox=ffmdr.l1_prox(lam, 3),
    )


def test_t30_the_limit_is_the_personal_dual_optimum():
    clients = one_class()
    p = problems.client_mean_p([y for _, y in clients])
    assert p == 0.5
    personal = ffmdr.mean_primal(ffmdr.auc_personal(clients, p))
    shared = ffmdr.auc_shared(clients, p)
    for lam in (0.0, 0.02):
        prox = ffmdr.l1_prox(lam, 3)
        trajectory, _ = auc_exact(clients, p, 5.0, 1500, lam)
        right, wrong = ffmdr.minimise(*personal, prox), ffmdr.minimise(*shared, prox)
        assert np.abs(trajectory[-1] - right).max() < 1e-10
        assert np.abs(right - wrong)[:3].max() > 1e-2
        # (1/N) sum max >= max (1/N) sum at every point.
        for v in (right, wrong):
            assert 0.5 * v @ (personal[0] - shared[0]) @ v + (personal[1] - shared[1]) @ v > 1e-4
    # One client alone: a positive one wants its mean score at p, a negative one at -(1 - p).
    for (X, y), target in zip(clients[:2], (p, p - 1), strict=True):
        v = ffmdr.minimise(*ffmdr.auc_personal([(X, y)], p)[0])
        assert np.isclose(np.mean(X @ v[:3] + v[3]), target)


def test_t30_identical_clients():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(12, 3)), np.array([1, 0, 0] * 4)
    X[y == 1] += 0.5
    clients = [(X, y)] * 3
    prox = ffmdr.l1_prox(0.02, 3)
    one = ffmdr.minimise(*ffmdr.mean_primal(ffmdr.auc_personal(clients, 1 / 3)), prox)
    two = ffmdr.minimise(*ffmdr.auc_shared(clients, 1 / 3), prox)
    np.testing.assert_allclose(one, two, atol=1e-12)
    trajectory, _ = auc_exact(clients, 1 / 3, 5.0, 1500, 0.02)
    np.testing.assert_allclose(trajectory[-1][:3], two[:3], atol=1e-10)
    # p is the local ratio, so scores, a and b may shift together: compare what does not.
    np.testing.assert_allclose(trajectory[-1][4:] - trajectory[-1][3], two[4:] - two[3], atol=1e-10)


def test_t31_fixed_point():
    quads = quadratics()
    parts = [ffmdr.saddle_primal(q) for q in quads]
    beta, lam = 0.6, 0.8
    _, log = exact(quads, beta, 500, lam)
    entry = log[-1]
    z = entry["z"]
    gradients = np.array([P @ z + c for P, c in parts])
    np.testing.assert_allclose(entry["w"], np.tile(z, (4, 1)), atol=1e-12)
    np.testing.assert_allclose(entry["x"], z + beta * gradients, atol=1e-11)
    np.testing.assert_allclose(entry["y"], [ffmdr.saddle_dual(q, z) for q in quads], atol=1e-11)
    h = gradients.mean(0)
    assert z[0] != 0 and z[1] == 0
    assert np.isclose(h[0], -lam * np.sign(z[0])) and abs(h[1]) <= lam and abs(h[2]) < 1e-11
    assert ffmdr.stationarity(z, h, ffmdr.l1_prox(lam, 2), 0.1) < 1e-11
    assert entry["fixed_point"] < 1e-12 and entry["move"] < 1e-12
    # The fixed-point residual is what x moves by in the next full round.
    for r in range(1, 20):
        moved = np.sqrt(np.mean(np.sum((log[r]["x"] - log[r - 1]["x"]) ** 2, axis=1)))
        assert np.isclose(log[r - 1]["fixed_point"], moved)
        assert np.isclose(log[r]["move"], np.linalg.norm(log[r]["z"] - log[r - 1]["z"]))


# ---------------------------------------------------------------- the potential of Theorem 1


def potentials(scale, form, server_prox, dual_term=True, actual=False, convex=True, N=20):
    """(differences of H, squared moves of W, beta) over 400 rounds of exact FFMDR within the theory's step."""
    quads = [tuple(scale * m for m in q) for q in quadratics(3, N=N)]
    if not convex:
        shift = [scale * np.diag(3 * np.random.default_rng(i).normal(size=3)) for i in range(N)]
        quads = [(q[0] - S, *q[1:]) for q, S in zip(quads, shift, strict=True)]
    parts = [ffmdr.saddle_primal(q) for q in quads]
    assert np.linalg.eigvalsh(ffmdr.mean_primal(parts)[0])[0] > 0
    if actual:
        L = max(np.abs(np.linalg.eigvalsh(P)).max() for P, _ in parts)
    else:
        L_f = max(np.linalg.norm(np.block([[A, B], [B.T, -C]]), 2) for A, B, C, _, _ in quads)
        L = L_f * (1 + L_f / min(np.linalg.eigvalsh(C)[0] for _, _, C, _, _ in quads))
    beta = (np.sqrt(85) - 9) / 4 / L * 0.999
    lam = 0.1 * scale
    _, log = exact(quads, beta, 400, lam, server_prox=server_prox)

    def F(k, w):
        return problems.quadratic_value(np.concatenate([w, ffmdr.saddle_dual(quads[k], w)]), *quads[k])

    def g(z):
        return lam * np.abs(z[:2]).sum()

    options = {"beta": beta, "L": L, "form": form, "dual_term": dual_term}
    H = [ffmdr.potential(log[r], log[r - 1], F, g, **options) for r in range(1, 400)]
    moved = [np.sum((log[r]["w"] - log[r - 1]["w"]) ** 2) for r in range(1, 399)]
    return np.diff(H), np.array(moved), beta


@pytest.mark.parametrize("convex", [True, False])
@pytest.mark.parametrize("form", ["derived", "printed"])
def test_potential_decreases_with_its_own_prox(form, convex):
    for actual in (True, False):
        change, moved, beta = potentials(1.0, form, form, actual=actual, convex=convex)
        # (12) over N, with delta_eps = 1/16.
        assert np.all(change <= -moved / (16 * beta * 20) + 1e-14)


def test_potential_as_literally_written_increases():
    for form in ("derived", "printed"):
        assert potentials(1.0, "literal", form, actual=True)[0].max() > 1e-6


def test_potential_dual_term_has_the_wrong_scale():
    # f_i times a small number: all but the last term scale with it, and the inner solution is exact.
    change, moved, beta = potentials(1e-4, "derived", "derived")
    assert change.max() > 1e-3 * np.abs(change).max()
    change, moved, beta = potentials(1e-4, "derived", "derived", dual_term=False)
    assert np.all(change <= -moved / (16 * beta * 20) + 1e-16)


def test_step_bound_of_remark_1():
    holds = lambda b: (1 + b) ** 2 - 1.5 + 2.5 * b < -0.25
    root = (np.sqrt(85) - 9) / 4
    assert holds(root - 1e-9) and not holds(root + 1e-9)
    assert root < np.sqrt(82) - 9 < 1.02 * root  # what the paper prints is just outside


# ---------------------------------------------------------------- FFMDR's inner solvers


AUC_START = np.array([0.2, -0.1, 0.3, 0.05, 0.5, -0.5, -0.3])


def auc_ffmdr(clients, rounds, B=2, p=0.5, beta=2.0, start=AUC_START, lam=0.0, who=None, **options):
    rows, field = auc_batch(clients, p, B)
    return ffmdr.ffmdr(
        field,
        who or everyone(len(clients)),
        len(clients),
        start,
        6,
        rounds,
        beta=beta,
        full_field=auc_full(clients, p),
        sample_field=auc_sample(clients, p),
        samples=lambda k: len(clients[k][1]),
        rows=rows,
        steps_per_epoch=lambda k: len(clients[k][1]) // B,
        prox=ffmdr.l1_prox(lam, 3),
        **options,
    )


@pytest.mark.parametrize("inner", ["extragradient", "saga"])
def test_inner_solvers_find_the_exact_saddle(inner):
    clients = one_class()
    _, log = auc_ffmdr(clients, 1, inner=inner, epochs=1500, lr=0.08, lr_dual=0.1)
    for k, (X, y) in enumerate(clients):
        w, alpha = ffmdr.auc_inner(X, y, 0.5, AUC_START[:6], 2.0)
        np.testing.assert_allclose(log[0]["x"][k], AUC_START[:6])
        np.testing.assert_allclose(log[0]["w"][k], w, atol=1e-11)
        np.testing.assert_allclose(log[0]["y"][k], alpha, atol=1e-11)
        assert log[0]["residual"][k] < 1e-10 and log[0]["epochs"][k] == 1500
    # SGDA with two samples at a time does not get there.
    _, log = auc_ffmdr(clients, 1, inner="sgda", epochs=300, lr=0.08, lr_dual=0.1)
    assert min(log[0]["residual"].values()) > 1e-3


def test_sgda_inner_by_hand():
    quads = quadratics()
    seen = []
    base = noisy(quads, 0.1)

    def field(k, z, r, t):
        seen.append((k, r, t))
        return base(k, z, r, t)

    options = {"beta": 0.5, "epochs": 2, "steps_per_epoch": lambda k: 1 + k, "lr": 0.05, "lr_dual": 0.1}
    project = lambda z: np.clip(z, -0.9, 0.9)
    who = lambda r: [[0, 2], [2, 1]][r]
    trajectory, log = ffmdr.ffmdr(field, who, 4, START, 3, 2, project=project, **options)
    assert seen == [(k, r, t) for r, k in ((0, 0), (0, 2), (1, 2), (1, 1)) for t in range(2 * (1 + k))]
    x, w, y = (np.tile(START[:3], (4, 1)), np.tile(START[:3], (4, 1)), np.tile(START[3:], (4, 1)))
    z = START[:3]
    for r in range(2):
        for k in who(r):
            x[k] += z - w[k]
            u = np.append(w[k], y[k])
            for t in range(2 * (1 + k)):
                h = base(k, u, r, t)
                new_w = u[:3] - 0.05 * (h[:3] + (u[:3] - x[k]) / 0.5)
                new_y = u[3:] - 0.1 * h[3:]
                u = np.clip(np.append(new_w, new_y), -0.9, 0.9)
            w[k], y[k] = u[:3], u[3:]
        z = (2 * w - x).mean(0)
        np.testing.assert_allclose(trajectory[r], z, atol=1e-14)
        np.testing.assert_allclose(log[r]["w"], w, atol=1e-14)
        np.testing.assert_allclose(log[r]["y"], y, atol=1e-14)
    assert all(v is None for v in log[0]["residual"].values())


def test_extragradient_inner_by_hand():
    quads = quadratics()
    options = {"beta": 0.5, "epochs": 3, "lr": 0.05, "lr_dual": 0.1, "inner": "extragradient"}
    _, log = ffmdr.ffmdr(None, everyone(4), 4, START, 3, 1, full_field=full(quads), **options)
    step = np.array([0.05] * 3 + [0.1] * 2)
    for k in range(4):
        T = lambda v, k=k: problems.quadratic_field(v, *quads[k]) + np.append((v - START)[:3], [0, 0]) / 0.5
        u = START
        for _ in range(3):
            u = u - step * T(u - step * T(u))
        np.testing.assert_allclose(np.append(log[0]["w"][k], log[0]["y"][k]), u, atol=1e-14)


def test_saga_inner_by_hand():
    clients = one_class(sizes=(3,))
    sample = auc_sample(clients, 0.5)
    batches = [[1, 0], [0, 2], [2, 1]]
    common = {"beta": 2.0, "lr": 0.1, "lr_dual": 0.2, "samples": lambda k: 3, "sample_field": sample}
    common |= {"inner": "saga", "steps_per_epoch": lambda k: 3}
    _, log = ffmdr.ffmdr(
        None, everyone(1), 1, AUC_START, 6, 2, rows=lambda k, r, t: batches[t], epochs=1, **common
    )
    step = np.array([0.1] * 6 + [0.2])
    u, x, z = AUC_START, AUC_START[:6], AUC_START[:6]
    for r in range(2):
        x = x + z - u[:6]
        table = [sample(0, j, u) for j in range(3)]  # filled anew in every round
        for batch in batches:
            new = [sample(0, j, u) for j in range(3)]
            h = sum(table) / 3 + sum(new[j] - table[j] for j in batch) / 2
            for j in batch:
                table[j] = new[j]
            u = u - step * (h + np.append((u[:6] - x) / 2.0, 0))
        z = 2 * u[:6] - x
        np.testing.assert_allclose(log[r]["z"], z, atol=1e-14)
        np.testing.assert_allclose(log[r]["y"][0], u[6:], atol=1e-14)
    # The whole data set as a minibatch: full-batch SGDA, whatever the table holds.
    _, one = ffmdr.ffmdr(
        None, everyone(1), 1, AUC_START, 6, 3, rows=lambda k, r, t: [2, 0, 1], epochs=2, **common
    )
    whole = auc_full(clients, 0.5)
    _, two = ffmdr.ffmdr(
        lambda k, u, r, t: whole(k, u),
        everyone(1),
        1,
        AUC_START,
        6,
        3,
        beta=2.0,
        lr=0.1,
        lr_dual=0.2,
        epochs=2,
        steps_per_epoch=lambda k: 3,
    )
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a["w"], b["w"], atol=1e-13)


@pytest.mark.parametrize(
    ("inner", "epochs", "rounds"), [("extragradient", 1, 3000), ("saga", 1, 1500), ("extragradient", 5, 1000)]
)
def test_few_inner_epochs_have_the_same_limit(inner, epochs, rounds):
    clients = one_class()
    options = {"inner": inner, "epochs": epochs, "lr": 0.08, "lr_dual": 0.3, "beta": 2.0, "lam": 0.02}
    trajectory, log = auc_ffmdr(clients, rounds, B=3, **options)
    P, c = ffmdr.mean_primal(ffmdr.auc_personal(clients, 0.5))
    assert np.abs(trajectory[-1] - ffmdr.minimise(P, c, ffmdr.l1_prox(0.02, 3))).max() < 1e-8
    assert log[-1]["fixed_point"] < 1e-8


@pytest.mark.parametrize("inner", ["sgda", "extragradient", "saga"])
@pytest.mark.parametrize("eps", [0.95, 0.05])
def test_t32_the_residual_rule_implies_the_papers(inner, eps):
    clients = one_class()
    beta = 2.0
    modulus = min(1 / beta, 2 * 0.5 * 0.5)
    options = {"inner": inner, "stop": "residual", "eps": eps, "modulus": lambda k: modulus, "epochs": 400}
    _, log = auc_ffmdr(clients, 5, B=3, lr=0.05, lr_dual=0.1, beta=beta, **options)
    ends = 0
    different = False
    for entry in log:
        different |= len(set(entry["epochs"].values())) > 1
        for k in entry["old"]:
            if entry["stopped"][k] is None:
                assert entry["epochs"][k] == 400
                continue
            assert entry["stopped"][k] == "rule"
            ends += 1
            u = np.append(entry["w"][k], entry["y"][k])
            solution = np.concatenate(ffmdr.auc_inner(*clients[k], 0.5, entry["x"][k], beta))
            error, way = np.sum((u - solution) ** 2), np.sum((entry["old"][k] - u) ** 2)
            assert error <= eps * way
            assert np.sqrt(error) <= entry["residual"][k] / modulus
            assert entry["residual"][k] ** 2 <= eps * modulus**2 * way
    assert different
    assert ends > 10 or (inner == "sgda" and ends > 0)


def test_stopping():
    clients = one_class()
    common = {"inner": "extragradient", "lr": 0.1, "lr_dual": 0.3, "modulus": lambda k: 0.5}
    _, fixed = auc_ffmdr(clients, 3, epochs=40, stop="fixed_epochs", **common)
    assert all(set(e["epochs"].values()) == {40} and set(e["stopped"].values()) == {None} for e in fixed)
    # A rule that never holds is a fixed number of epochs.
    _, never = auc_ffmdr(clients, 3, epochs=40, stop="residual", eps=0.0, **common)
    np.testing.assert_array_equal(never[-1]["z"], fixed[-1]["z"])
    # A stopped client's epochs can be had by a fixed number of them: the others' work does not matter.
    _, rule = auc_ffmdr(clients, 1, epochs=40, stop="residual", eps=0.3, **common)
    assert len(set(rule[0]["epochs"].values())) > 1
    for k, number in rule[0]["epochs"].items():
        _, again = auc_ffmdr(clients, 1, epochs=number, stop="fixed_epochs", who=lambda r, k=k: [k], **common)
        np.testing.assert_array_equal(again[0]["w"][k], rule[0]["w"][k])
        if number > 1:
            _, less = auc_ffmdr(
                clients, 1, epochs=number - 1, stop="fixed_epochs", who=lambda r, k=k: [k], **common
            )
            u = np.append(less[0]["w"][k], less[0]["y"][k])
            assert less[0]["residual"][k] ** 2 > 0.3 * 0.25 * np.sum((AUC_START - u) ** 2)
    # The absolute tolerance, where the old point already solves the problem (a minimiser is its own prox).
    whole = [(np.vstack([X for X, _ in clients]), np.concatenate([y for _, y in clients]))]
    v = ffmdr.minimise(*ffmdr.auc_shared(whole, 0.5))
    start = np.append(v, ffmdr.auc_inner(*whole[0], 0.5, v, 2.0)[1])
    options = {"start": start, "epochs": 9, "stop": "residual", "eps": 0.0, **common}
    _, log = auc_ffmdr(whole, 2, tolerance=1e-9, **options)
    assert [(e["stopped"], e["epochs"]) for e in log] == [({0: "tolerance"}, {0: 1})] * 2
    np.testing.assert_allclose(log[-1]["z"], v, atol=1e-9)
    _, log = auc_ffmdr(whole, 2, **options)
    assert [(e["stopped"], e["epochs"]) for e in log] == [({0: None}, {0: 9})] * 2
    # Short of that it is compared with the norm, not with its square.
    _, log = auc_ffmdr(whole, 1, tolerance=1e-3, **{**options, "start": start + 0.01, "epochs": 500})
    _, less = auc_ffmdr(whole, 1, **{**options, "start": start + 0.01, "epochs": log[0]["epochs"][0] - 1})
    assert log[0]["residual"][0] <= 1e-3 < less[0]["residual"][0]


# ---------------------------------------------------------------- Local SGDA and momentum


def test_local_sgda_is_that_of_algorithms():
    quads = quadratics()
    who = lambda r: [] if r == 2 else [r % 4, (r + 1) % 4]
    one, _ = run("local_sgda", quads, 6, 0.1, who=who)
    two = algorithms.local_sgda(noisy(quads, 0.1), who, 4, START, 3, 6, **METHODS["local_sgda"][1])
    np.testing.assert_allclose(one, two, atol=1e-14)


def test_momentum_by_hand():
    quads = quadratics()[:1]
    field = noisy(quads, 0.1)
    trajectory, log = run("momentum_local_sgda", quads, 3, 0.1)
    step, b = np.array([0.02] * 3 + [0.03] * 2), np.array([0.9] * 3 + [0.4] * 2)
    u, d = START, field(0, START, 0, 0)
    for r in range(3):
        for t in range(1, 4) if r == 0 else range(3):
            tilde = u - step * d
            u = u + 0.7 * (tilde - u)
            d = (1 - 0.7 * b) * d + 0.7 * b * field(0, u, r, t)
        np.testing.assert_allclose(trajectory[r], u, atol=1e-14)
        np.testing.assert_allclose(log[r]["d"], d, atol=1e-14)


def test_momentum_without_momentum():
    """a = b = 1: the direction is the field at the current iterate, so the local steps are those of SGDA.

    Only a later round's first step differs from Local SGDA: it goes along the mean of the fields at the points
    where the clients ended the round before, the same for all, instead of along the field at the mean point.
    """
    quads = quadratics()
    unit = {"a": 1.0, "b_x": 1.0, "b_y": 1.0}
    field = noisy(quads, 0.1)
    one, log = run("momentum_local_sgda", quads, 4, 0.1, **unit)
    two, _ = run("local_sgda", quads, 4, 0.1, server_lr=1.0)
    np.testing.assert_allclose(one[0], two[0], atol=1e-14)  # the same minibatches 0..I-1 in round 0
    assert np.abs(one[1] - two[1]).max() > 1e-4
    step = np.array([0.02] * 3 + [0.03] * 2)
    for r in range(1, 4):
        last = 3 if r == 1 else 2
        ends = [field(k, log[r - 1]["local"][k][-1], r - 1, last) for k in range(4)]
        np.testing.assert_allclose(log[r - 1]["d"], np.mean(ends, 0), atol=1e-14)
        for k in range(4):
            np.testing.assert_allclose(
                log[r]["local"][k][0], one[r - 1] - step * np.mean(ends, 0), atol=1e-14
            )
            u = log[r]["local"][k][0]
            np.testing.assert_allclose(log[r]["local"][k][1], u - step * field(k, u, r, 0), atol=1e-14)
    # One client: SGDA without rounds, minibatches in the order (0,0..I), (1,0..I-1), (2,0..I-1), ...
    one, _ = run("momentum_local_sgda", quads[:1], 4, 0.1, **unit)
    u = START
    batches = [(0, t) for t in range(4)] + [(r, t) for r in range(1, 4) for t in range(3)]
    for i, (r, t) in enumerate(batches[:12]):
        u = u - step * field(0, u, r, t)
        if i % 3 == 2:
            np.testing.assert_allclose(one[i // 3], u, atol=1e-13)
    # One local step: from round 2 on it is centralised SGDA, since after round 0 all clients share the iterate.
    one, _ = run("momentum_local_sgda", quads, 6, 0.1, local_steps=1, **unit)
    for r in range(2, 6):
        mean = np.mean([field(k, one[r - 1], r - 1, 0) for k in range(4)], axis=0)
        np.testing.assert_allclose(one[r], one[r - 1] - step * mean, atol=1e-14)
    # b = 0: the first round's direction for ever.
    one, log = run("momentum_local_sgda", quads, 3, 0.1, a=0.5, b_x=0.0, b_y=0.0)
    d = np.mean([field(k, START, 0, 0) for k in range(4)], axis=0)
    np.testing.assert_allclose(one, [START - (r + 1) * 3 * 0.5 * step * d for r in range(3)], atol=1e-13)


def test_momentum_reaches_the_saddle_of_one_function():
    quads = quadratics()[:1] * 3
    trajectory, _ = run("momentum_local_sgda", quads, 1500)
    np.testing.assert_allclose(trajectory[-1], problems.quadratic_saddle(quads), atol=1e-10)


@pytest.mark.parametrize("name", ["momentum_local_sgda", "fedsgda_m"])
def test_empty_first_rounds(name):
    quads = quadratics()
    # Nobody before round 2: the direction starts there, from the minibatch (2, 0).
    late = lambda r: range(4) if r >= 2 else []
    one, log = run(name, quads, 4, 0.1, who=late)
    key = "d" if name == "momentum_local_sgda" else "v"
    assert log[1][key] is None and log[2][key] is not None
    np.testing.assert_array_equal(one[1], START)
    base = noisy(quads, 0.1)
    two, _ = run(name, quads, 2, field=lambda k, z, r, t: base(k, z, r + 2, t))
    np.testing.assert_array_equal(one[2:], two)


# ---------------------------------------------------------------- Fed-Norm-SGDA


def test_fed_norm_with_equal_steps_is_local_sgda():
    quads = quadratics()
    who = lambda r: [[0, 1, 2, 3], [2], [], [1, 3]][r % 4]
    same = {"eta_x": 0.02, "eta_y": 0.03, "gamma_x": 0.02, "gamma_y": 0.03, "I": lambda k: 3}
    one, log = run("fed_norm_sgda", quads, 8, 0.1, who=who, **same)
    two, _ = run("local_sgda", quads, 8, 0.1, who=who, server_lr=1.0)
    np.testing.assert_allclose(one, two, atol=1e-13)
    assert [e["I_eff"] for e in log[:4]] == [3, 3, None, 3]
    equal, _ = run("fed_norm_sgda", quads, 8, 0.1, who=who, weights=[7] * 4, **same)
    np.testing.assert_allclose(equal, one, atol=1e-14)
    # gamma instead of a server step.
    half = {**same, "gamma_x": 0.01, "gamma_y": 0.015}
    one, _ = run("fed_norm_sgda", quads, 8, 0.1, who=who, **half)
    two, _ = run("local_sgda", quads, 8, 0.1, who=who, server_lr=0.5)
    np.testing.assert_allclose(one, two, atol=1e-13)
    unequal, _ = run("fed_norm_sgda", quads, 1, 0.1, I=lambda k: 2 + k, gamma_x=0.02, gamma_y=0.03)
    assert np.abs(unequal[0] - two[0]).max() > 1e-3


def test_fed_norm_by_hand():
    quads = quadratics()
    field = noisy(quads, 0.1)
    weights = [1.0, 2.0, 3.0, 4.0]
    who = lambda r: [[1, 2], [3]][r]
    project = lambda z: np.clip(z, -0.95, 0.95)
    for I_eff in (None, 2.5):
        one, log = run("fed_norm_sgda", quads, 2, 0.1, who=who, weights=weights, I_eff=I_eff, project=project)
        z = START
        for r in range(2):
            total = 0
            for k in who(r):
                u, G = z, 0
                for t in range(2 + k):
                    h = field(k, u, r, t)
                    G = G + h / (2 + k)
                    u = np.clip(u - np.array([0.02] * 3 + [0.03] * 2) * h, -0.95, 0.95)
                np.testing.assert_allclose(log[r]["G"][k], G, atol=1e-14)
                total = total + 4 / len(who(r)) * weights[k] / 10 * G
            effective = np.mean([2 + k for k in who(r)]) if I_eff is None else I_eff
            z = np.clip(z - effective * np.array([0.01] * 3 + [0.02] * 2) * total, -0.95, 0.95)
            np.testing.assert_allclose(one[r], z, atol=1e-14)


def test_fed_norm_removes_the_bias_towards_busy_clients():
    # In the limit of small steps its fixed point is the mean's saddle; that of plain Local SGDA with I(k) is not.
    quads = quadratics()
    saddle = problems.quadratic_saddle(quads)
    small = {"eta_x": 1e-5, "eta_y": 1e-5, "gamma_x": 0.02, "gamma_y": 0.02, "I": lambda k: 1 + 3 * k}
    one, _ = run("fed_norm_sgda", quads, 800, **small)
    assert np.abs(one[-1] - saddle).max() < 1e-3
    counts = np.array([1.0, 4.0, 7.0, 10.0])
    wrong = problems.quadratic_saddle([tuple(c * m for m in q) for c, q in zip(counts, quads, strict=True)])
    assert np.abs(wrong - saddle).max() > 0.05


# ---------------------------------------------------------------- FedSGDA+ and FedSGDA-M


def test_fedsgda_plus_special_cases():
    quads = quadratics()
    # One local step and a fresh snapshot: the snapshot is the iterate.
    one, _ = run("fedsgda_plus", quads, 6, 0.1, refresh=1, local_steps=1, server_lr=1.0)
    two, _ = run("local_sgda", quads, 6, 0.1, local_steps=1, server_lr=1.0)
    np.testing.assert_allclose(one, two, atol=1e-14)
    # More local steps: not Local SGDA (y sees the round's first x) ...
    one, log = run("fedsgda_plus", quads, 6, 0.1, refresh=1, server_lr=1.0)
    two, _ = run("local_sgda", quads, 6, 0.1, server_lr=1.0)
    assert np.abs(one[0] - two[0]).max() > 1e-3
    for r in range(6):
        np.testing.assert_array_equal(log[r]["snapshot"], START[:3] if r == 0 else one[r - 1][:3])
    # ... unless grad_y does not depend on x.
    apart = [(A, 0 * B, C, a, b) for A, B, C, a, b in quads]
    one, _ = run("fedsgda_plus", apart, 6, refresh=3)
    two, _ = run("local_sgda", apart, 6)
    np.testing.assert_allclose(one, two, atol=1e-14)


def test_fedsgda_plus_by_hand():
    quads = quadratics()
    field = noisy(quads, 0.1)
    who = lambda r: [[0, 3], [1], [], [2, 0], [3]][r]
    project = lambda z: np.clip(z, -0.95, 0.95)
    one, log = run("fedsgda_plus", quads, 5, 0.1, who=who, project=project)
    z = START
    for r in range(5):
        if r in (0, 2, 4):
            snapshot = z[:3]
        ends = []
        for k in who(r):
            x, y = z[:3], z[3:]
            for t in range(3):
                gx = field(k, np.append(x, y), r, t)[:3]
                gy = -field(k, np.append(snapshot, y), r, t)[3:]
                x, y = np.clip(x - 0.02 * gx, -0.95, 0.95), np.clip(y + 0.03 * gy, -0.95, 0.95)
            ends.append(np.append(x, y))
        if ends:
            z = z + 0.8 * (np.mean(ends, 0) - z)
        np.testing.assert_allclose(one[r], z, atol=1e-14)
        np.testing.assert_allclose(log[r]["snapshot"], snapshot, atol=1e-14)


def test_fedsgda_m_by_hand():
    quads = quadratics()[:1]
    field = noisy(quads, 0.1)
    trajectory, log = run("fedsgda_m", quads, 3, 0.1)
    step = np.array([0.02] * 3 + [0.03] * 2)
    u, v = START, field(0, START, 0, 0)
    for r in range(3):
        for t in range(1, 4) if r == 0 else range(3):
            new = u - step * v
            v = 0.3 * field(0, new, r, t) + 0.7 * (v + field(0, new, r, t) - field(0, u, r, t))
            u = new
        np.testing.assert_allclose(trajectory[r], u, atol=1e-14)
        np.testing.assert_allclose(log[r]["v"], v, atol=1e-14)


def test_fedsgda_m_special_cases():
    quads = quadratics()
    who = lambda r: [[0, 1, 2, 3], [2], [], [1, 3]][r % 4]
    # alpha = 1 forgets: Momentum Local SGDA with a = b = 1.
    one, log = run("fedsgda_m", quads, 8, 0.1, who=who, alpha=1.0)
    two, other = run("momentum_local_sgda", quads, 8, 0.1, who=who, a=1.0, b_x=1.0, b_y=1.0)
    np.testing.assert_allclose(one, two, atol=1e-14)
    np.testing.assert_allclose([e["v"] for e in log], [e["d"] for e in other], atol=1e-14)
    # alpha = 0 without noise on one client: v is always the gradient there, as for every alpha.
    runs = [run("fedsgda_m", quads[:1], 5, alpha=alpha)[0] for alpha in (0.0, 0.4, 1.0)]
    np.testing.assert_allclose(runs[0], runs[2], atol=1e-13)
    np.testing.assert_allclose(runs[1], runs[2], atol=1e-13)
    plain, _ = run("local_sgda", quads[:1], 5, server_lr=1.0)
    np.testing.assert_allclose(runs[0], plain, atol=1e-13)
    # Full batches: v stays the sum of the averaged start and the client's own change of gradient (alpha = 0).
    one, log = run("fedsgda_m", quads, 3, alpha=0.0)
    for r in (1, 2):
        for k in range(4):
            u = log[r]["local"][k][-1]
            change = full(quads)(k, u) - full(quads)(k, one[r - 1])
            np.testing.assert_allclose(log[r]["directions"][k][-1], log[r - 1]["v"] + change, atol=1e-13)


# ---------------------------------------------------------------- FEDNEST


def test_fednest_finds_the_saddle_and_lfednest_does_not():
    quads = quadratics()
    saddle = problems.quadratic_saddle(quads)
    one, log = run("fednest", quads, 400)
    assert np.abs(one[-1] - saddle).max() < 1e-11
    assert np.abs(log[-1]["h"]).max() < 1e-10 and np.abs(log[-1]["q"][0]).max() < 1e-10
    two, log = run("fednest", quads, 400, corrected=False, beta=1.0)
    assert np.abs(two[-1] - two[-2]).max() < 1e-12
    assert np.abs(two[-1] - saddle).max() > 1e-3
    assert log[0]["h"] is None and log[0]["q"] == [None, None]
    # One local step each: nothing to correct.
    single = {"I_x": lambda k: 1, "I_y": lambda k: 1}
    three, _ = run("fednest", quads, 400, corrected=False, **single)
    assert np.abs(three[-1] - saddle).max() < 1e-11


def test_fednest_with_one_local_step_is_alternating_gda():
    # The corrections cancel: no minibatch matters, the mean gradients being full ones.
    quads = quadratics()
    single = {"I_x": lambda k: 1, "I_y": lambda k: 1}
    one, log = run("fednest", quads, 5, 0.3, **single)
    z = START
    for r in range(5):
        for j in range(2):
            q = np.mean([full(quads)(k, z) for k in range(4)], axis=0)[3:]
            np.testing.assert_allclose(log[r]["q"][j], q, atol=1e-13)
            z = np.append(z[:3], z[3:] - 0.1 * q)
            np.testing.assert_allclose(log[r]["y"][j], z[3:], atol=1e-13)
        h = np.mean([full(quads)(k, z) for k in range(4)], axis=0)[:3]
        z = np.append(z[:3] - 0.05 * h, z[3:])
        np.testing.assert_allclose(one[r], z, atol=1e-13)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("mean_gradient", ["full", "minibatch"])
def test_fednest_by_hand(corrected, mean_gradient):
    quads = quadratics()
    base = noisy(quads, 0.1)
    seen = set()

    def field(k, z, r, t, phase):
        seen.add((k, r, t, phase))
        return base(k, z, r, t, phase)

    who = lambda r: [[1, 2], [], [3, 0]][r]
    project = lambda z: np.clip(z, -0.97, 0.97)
    options = {"corrected": corrected, "mean_gradient": mean_gradient, "project": project}
    one, _ = run("fednest", quads, 3, who=who, field=field, **options)
    x, y = START[:3], START[3:]
    expected = set()
    for r in range(3):
        if not who(r):
            np.testing.assert_array_equal(one[r], one[r - 1])
            continue
        for phase in (0, 2):
            q = 0
            for k in who(r):
                z = np.append(x, y)
                h = full(quads)(k, z) if mean_gradient == "full" else base(k, z, r, 0, phase)
                q = q + h[3:] / 2
                if corrected and mean_gradient == "minibatch":
                    expected.add((k, r, 0, phase))
            ends = []
            for k in who(r):
                v = y
                for t in range(3):
                    expected.add((k, r, t, phase + 1))
                    h = base(k, np.append(x, v), r, t, phase + 1)[3:]
                    if corrected:
                        h = h - base(k, np.append(x, y), r, t, phase + 1)[3:] + q
                    v = np.clip(v - 0.1 / 3 * h, -0.97, 0.97)
                ends.append(v)
            y = np.mean(ends, 0)
        m = 0
        for k in who(r):
            z = np.append(x, y)
            h = full(quads)(k, z) if mean_gradient == "full" else base(k, z, r, 0, 4)
            m = m + h[:3] / 2
            if corrected and mean_gradient == "minibatch":
                expected.add((k, r, 0, 4))
        ends = []
        for k in who(r):
            v = x
            for t in range(2 + k):
                expected.add((k, r, t, 5))
                h = base(k, np.append(v, y), r, t, 5)[:3]
                if corrected:
                    h = h - base(k, np.append(x, y), r, t, 5)[:3] + m
                v = np.clip(v - 0.05 / (2 + k) * h, -0.97, 0.97)
            ends.append(v)
        x = np.mean(ends, 0)
        np.testing.assert_allclose(one[r], np.append(x, y), atol=1e-14)
    assert seen == expected


# ---------------------------------------------------------------- l1, participants, communication


@pytest.mark.parametrize("name", METHODS)
def test_l1_subgradient_is_a_changed_field(name):
    quads = quadratics()
    base, lam = noisy(quads, 0.1), 0.3

    def add(z, h):
        return h + np.array([lam * np.sign(z[0]), lam * np.sign(z[1]), 0, 0, 0])

    changed = lambda k, z, r, t, phase=0: add(z, base(k, z, r, t, phase))
    one, _ = run(name, quads, 4, 0.1, subgradient=lam, penalised=2)
    if name == "fednest":
        method, options = METHODS[name]
        whole = lambda k, z: add(z, full(quads)(k, z))
        two, _ = method(changed, whole, everyone(4), 4, START, 3, 4, **options)
    else:
        two, _ = run(name, quads, 4, field=changed)
    np.testing.assert_allclose(one, two, atol=1e-14)
    plain, _ = run(name, quads, 4, 0.1)
    assert np.abs(one[-1] - plain[-1]).max() > 1e-3
    every, _ = run(name, quads, 4, 0.1, subgradient=lam)
    assert np.abs(one[-1] - every[-1]).max() > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_l1_server_prox(name):
    quads = quadratics()
    prox = ffmdr.l1_prox(0.9, 2)
    plain, _ = run(name, quads, 1, 0.1)
    for step, options in ((WAYS[name], {}), (0.7, {"prox_step": 0.7})):
        one, _ = run(name, quads, 1, 0.1, server_prox=prox, **options)
        np.testing.assert_allclose(one[0][:3], prox(plain[0][:3], step), atol=1e-14)
        np.testing.assert_array_equal(one[0][3:], plain[0][3:])
    none, _ = run(name, quads, 2, 0.1, who=lambda r: [], server_prox=prox)
    np.testing.assert_array_equal(none, [START, START])


def test_l1_prox_baseline_reaches_the_shared_optimum():
    # One local step: proximal gradient descent ascent on the shared-dual problem.
    quads = quadratics()
    prox = ffmdr.l1_prox(0.8, 2)
    one, _ = run(
        "local_sgda", quads, 6000, local_steps=1, lr=0.02, lr_dual=0.02, server_lr=1.0, server_prox=prox
    )
    A, B, C, a, b = (sum(q[i] for q in quads) / 4 for i in range(5))
    shared = ffmdr.minimise(*ffmdr.saddle_primal((A, B, C, a, b)), prox)
    personal = ffmdr.minimise(*ffmdr.mean_primal([ffmdr.saddle_primal(q) for q in quads]), prox)
    assert np.abs(one[-1][:3] - shared).max() < 1e-10
    assert np.abs(personal - shared).max() > 1e-2


@pytest.mark.parametrize("name", METHODS)
def test_rounds_without_participants_and_doubles(name):
    quads = quadratics()
    who = lambda r: [] if r == 1 else [2, 0]
    one, _ = run(name, quads, 3, 0.1, who=who)
    np.testing.assert_array_equal(one[0], one[1])
    assert np.abs(one[2] - one[1]).max() > 1e-3
    with pytest.raises(AssertionError):
        run(name, quads, 1, who=lambda r: [1, 1])


def test_numbers():
    assert ffmdr.numbers("ffmdr", 5, 1) == (5, 5)
    for name in ("local_sgda", "fed_norm_sgda", "fedsgda_plus"):
        assert ffmdr.numbers(name, 5, 1) == (6, 6)
    for name in ("momentum_local_sgda", "fedsgda_m"):
        assert ffmdr.numbers(name, 5, 1) == (12, 12)
        assert ffmdr.numbers(name, 5, 1, first=True) == (6, 12)
    # (x, y) and q down, grad_y and y up, T times; (x, y) and h down, grad_x and x up.
    assert ffmdr.numbers("fednest", 5, 2, T=3) == (3 * (7 + 2) + 7 + 5, 3 * 4 + 10)
    assert ffmdr.numbers("lfednest", 5, 2, T=3) == (4 * 7, 3 * 2 + 5)
