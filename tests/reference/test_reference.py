"""Checks of the references themselves: finite differences and known facts."""

import numpy as np

from tests.reference import algorithms, auc_metric, problems, sampling


def differences(f, z, h=1e-5):
    out = np.zeros(len(z))
    for j in range(len(z)):
        e = np.zeros(len(z))
        e[j] = h
        out[j] = (f(z + e) - f(z - e)) / (2 * h)
    return out


def auc_clients(seed=0, N=3, d=3):
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(N):
        X = rng.normal(size=(6 + k, d))
        y = (rng.random(6 + k) < 0.4).astype(int)
        y[0], y[1] = 1, 0
        clients.append((X, y))
    return clients


def quadratics(seed=0, N=4, n_x=3, n_y=2):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(N):
        P, Q = rng.normal(size=(n_x, n_x)), rng.normal(size=(n_y, n_y))
        A, C = P @ P.T / n_x + np.eye(n_x), Q @ Q.T / n_y + np.eye(n_y)
        out.append((A, rng.normal(size=(n_x, n_y)), C, rng.normal(size=n_x), rng.normal(size=n_y)))
    return out


def quadratic_run(method, quads, rounds, who=None, noise=0.0, **options):
    n_x, n = len(quads[0][3]), len(quads[0][3]) + len(quads[0][4])
    N = len(quads)

    def field(k, z, r, t):
        rng = np.random.default_rng([k, r, t])
        return problems.quadratic_field(z, *quads[k]) + noise * rng.normal(size=n)

    who = who or (lambda r: range(N))
    return method(field, who, N, np.linspace(-1, 1, n), n_x, rounds, **options)


# ---------------------------------------------------------------- problems


def test_auc_field_is_the_gradient():
    X, y = auc_clients()[1]
    weights = np.random.default_rng(1).dirichlet(np.ones(len(y)))
    z = np.random.default_rng(2).normal(size=7)
    sign = np.array([1, 1, 1, 1, 1, 1, -1.0])
    expected = sign * differences(lambda u: problems.auc_value(u, X, y, weights, 0.3), z)
    np.testing.assert_allclose(problems.auc_field(z, X, y, weights, 0.3), expected, atol=1e-8)


def test_auc_margin():
    X, y = auc_clients()[1]
    p, m = 0.3, 0.7
    weights = np.random.default_rng(1).dirichlet(np.ones(len(y)))
    z = np.random.default_rng(2).normal(size=7)
    field = problems.auc_margin_field(z, X, y, weights, p, m)
    expected = differences(lambda u: problems.auc_margin_value(u, X, y, weights, p, m), z)
    np.testing.assert_allclose(field[:-1], expected[:-1], atol=1e-8)
    assert np.isclose(field[-1], -(2 * (m + z[5] - z[4]) - 2 * z[6]))
    shifted = z.copy()
    shifted[-1] -= 1
    np.testing.assert_allclose(
        problems.auc_margin_value(z, X, y, weights, p, 1.0),
        problems.auc_value(shifted, X, y, weights, p) + p * (1 - p),
    )
    assert problems.auc_margin_project([1.0, -2.0])[-1] == 0
    assert problems.auc_margin_project([1.0, 1e4])[-1] == 999


def test_p_of_clients():
    labels = [[1, 0], [1, 0, 0, 0], [0, 0]]
    assert np.isclose(problems.client_mean_p(labels), 0.25)
    assert np.isclose(problems.pooled_p(labels), 0.25)
    assert np.isclose(problems.client_mean_p([[1], [0, 0, 0]]), 0.5)
    assert np.isclose(problems.pooled_p([[1], [0, 0, 0]]), 0.25)


def test_risk_fields_are_gradients():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(5, 3))
    weights = rng.dirichlet(np.ones(5))
    z = rng.normal(size=4)
    t = np.array([1, -1, -1, 1, 1])
    y = rng.normal(size=5)
    labels = np.array([0, 2, 1, 3, 2])
    u = rng.normal(size=16)
    cases = [
        (problems.logistic_value, problems.logistic_field, z, (X, t, weights)),
        (problems.squared_value, problems.squared_field, z, (X, y, weights)),
        (problems.softmax_value, problems.softmax_field, u, (X, labels, weights, 4)),
    ]
    for value, field, point, data in cases:
        expected = differences(lambda q, value=value, data=data: value(q, *data), point)
        np.testing.assert_allclose(field(point, *data), expected, atol=1e-8)
    far = np.array([800.0, 0, 0, 0])
    assert np.isfinite(problems.logistic_value(far, X, t, weights))
    assert np.all(np.isfinite(problems.logistic_field(far, X, t, weights)))


def test_quadratic():
    quads = quadratics()
    z = np.random.default_rng(4).normal(size=5)
    sign = np.array([1, 1, 1, -1, -1.0])
    expected = sign * differences(lambda u: problems.quadratic_value(u, *quads[0]), z)
    np.testing.assert_allclose(problems.quadratic_field(z, *quads[0]), expected, atol=1e-7)
    saddle = problems.quadratic_saddle(quads)
    assert np.abs(sum(problems.quadratic_field(saddle, *q) for q in quads)).max() < 1e-12


def test_phi_and_auc():
    clients = auc_clients()
    p = 0.35
    v = np.random.default_rng(5).normal(size=6)

    def f(alpha):
        z = np.append(v, alpha)
        parts = [problems.auc_value(z, X, y, [1 / len(y)] * len(y), p) for X, y in clients]
        return sum(parts) / len(parts)

    best = auc_metric.best_alpha(v, clients, p)
    assert np.isclose(f(best), auc_metric.phi(v, clients, p))
    assert f(best) > f(best + 1e-3) and f(best) > f(best - 1e-3)
    expected = differences(lambda u: auc_metric.phi(u, clients, p), v)
    np.testing.assert_allclose(auc_metric.grad_phi(v, clients, p), expected, atol=1e-8)
    assert auc_metric.auc([3, 1, 2, 2], [1, 0, 0, 1]) == (1 + 1 + 1 + 0.5) / 4


def test_minimax_value_is_the_pairwise_square_loss():
    X, y = auc_clients(N=1)[0]
    w = np.array([0.3, -0.5, 0.2, 0.1])
    h = X @ w[:3] + w[3]
    p = problems.client_mean_p([y])
    v = np.append(w, [h[y == 1].mean(), h[y == 0].mean()])
    pairs = np.mean([(1 - s + t) ** 2 for s in h[y == 1] for t in h[y == 0]])
    assert np.isclose(auc_metric.phi(v, [(X, y)], p), p * (1 - p) * (pairs - 1))
    alpha = auc_metric.best_alpha(v, [(X, y)], p)
    assert np.isclose(alpha, algorithms.coda_auc_dual([h], [y]))


# ---------------------------------------------------------------- algorithms


def test_codasca_is_coda_plus_with_one_local_step():
    quads = quadratics()
    options = {"lr": 0.05, "local_steps": 1, "gamma": 0.3, "stage_rounds": 4, "lr_decay": 0.5}
    options |= {"stage_growth": 1.5, "noise": 0.1, "pick": lambda s, length: (s + 1) % length}
    for output in ("last", "rounds", "random"):
        one, _ = quadratic_run(algorithms.codasca, quads, 20, output=output, **options)
        two, _ = quadratic_run(algorithms.coda_plus, quads, 20, output=output, **options)
        np.testing.assert_allclose(one, two, atol=1e-13)


def test_codasca_starts_each_stage_as_coda_plus():
    options = {"lr": 0.02, "local_steps": 5, "gamma": 0.3, "stage_rounds": 1, "output": "last"}
    one, _ = quadratic_run(algorithms.codasca, quadratics(), 3, **options)
    two, _ = quadratic_run(algorithms.coda_plus, quadratics(), 3, **options)
    np.testing.assert_allclose(one, two, atol=1e-13)


def test_codasca_variates():
    for who in (None, lambda r: [r % 4, (r + 2) % 4]):
        _, log = quadratic_run(
            algorithms.codasca,
            quadratics(),
            9,
            who=who,
            noise=0.2,
            lr=0.02,
            local_steps=3,
            gamma=0.4,
            server_lr=1.3,
            stage_rounds=4,
            output="last",
        )
        for entry in log:
            for k, g in entry["mean_gradient"].items():
                np.testing.assert_allclose(entry["clients"][k], g, atol=1e-11)
            np.testing.assert_allclose(entry["c"], entry["clients"].mean(0), atol=1e-12)
            if who is None:
                moved = (entry["start"] - entry["mean_end"]) / (3 * 0.02)
                np.testing.assert_allclose(entry["c"], moved, atol=1e-11)


def test_codasca_finds_the_saddle_and_coda_plus_does_not():
    quads = quadratics()
    saddle = problems.quadratic_saddle(quads)
    options = {"lr": 0.01, "local_steps": 10, "gamma": 0.0}
    one, _ = quadratic_run(algorithms.codasca, quads, 300, **options)
    two, _ = quadratic_run(algorithms.coda_plus, quads, 300, **options)
    three, _ = quadratic_run(algorithms.scaffold, quads, 300, lr=0.01, local_steps=10)
    plain = quadratic_run(algorithms.local_sgda, quads, 300, lr=0.01, lr_dual=0.01, local_steps=10)
    assert np.abs(one[-1] - saddle).max() < 1e-10
    assert np.abs(two[-1] - saddle).max() > 1e-3
    assert np.abs(two[-1] - two[-2]).max() < 1e-10
    np.testing.assert_allclose(three, one, atol=1e-13)
    np.testing.assert_allclose(plain, two, atol=1e-13)


def test_coda_plus_outputs():
    quads = quadratics()
    common = {"lr": 0.03, "local_steps": 2, "gamma": 0.1, "stage_rounds": 3, "interval_growth": 2.0}
    two, log = quadratic_run(algorithms.coda_plus, quads, 7, output="iterates", **common)
    assert [e["local_steps"] for e in log] == [2, 2, 2, 4, 4, 4, 8]
    for first, last in ((0, 2), (3, 5)):
        every = [u for e in log[first : last + 1] for us in e["local"].values() for u in us]
        np.testing.assert_allclose(two[last], np.mean(every, 0), atol=1e-13)
    some = [[0, 1], [1, 2], [2, 3]]
    part, log = quadratic_run(
        algorithms.coda_plus, quads, 3, who=lambda r: some[r], output="iterates", **common
    )
    kept = log[1]["local"][2] + log[2]["local"][2] + log[2]["local"][3]
    np.testing.assert_allclose(part[-1], np.mean(kept, 0), atol=1e-13)
    again, _ = quadratic_run(algorithms.coda, quads, 4, dual=lambda s, r, z: np.array([s + r, 7.0]), **common)
    np.testing.assert_allclose(again[2][:3], two[2][:3])
    np.testing.assert_allclose(again[2][3:], [2.0, 7.0])
    one, _ = quadratic_run(algorithms.npa, quads, 3, lr=0.03, gamma=0.1)
    z, start = np.linspace(-1, 1, 5), np.linspace(-1, 1, 5)
    for r in range(3):
        g = sum(problems.quadratic_field(z, *q) for q in quads) / 4
        z = z - 0.03 * (g + 0.1 * np.append((z - start)[:3], [0, 0]))
        np.testing.assert_allclose(one[r], z, atol=1e-13)


def test_fedprox_and_weights():
    quads = quadratics()
    base = {"lr": 0.03, "local_steps": 3, "weights": [1, 2, 3, 4], "server_lr": 0.7}
    one = quadratic_run(algorithms.fedavg, quads, 5, **base)
    two = quadratic_run(algorithms.fedprox, quads, 5, mu=0.0, **base)
    np.testing.assert_allclose(one, two, atol=1e-14)
    assert np.abs(np.array(quadratic_run(algorithms.fedprox, quads, 5, mu=1.0, **base)) - one).max() > 1e-3
    equal = quadratic_run(algorithms.fedavg, quads, 5, lr=0.03, local_steps=3, weights=[5] * 4)
    plain = quadratic_run(algorithms.local_sgda, quads, 5, lr=0.03, lr_dual=0.03, local_steps=3)
    np.testing.assert_allclose(equal, plain, atol=1e-14)


def test_codasca_as_published():
    quads = quadratics()
    start = np.linspace(-1, 1, 5)
    common = {"lr": 0.02, "local_steps": 4, "gamma": 0.0, "clip": np.inf, "weight_decay": 0.0}
    # One stage, no clip, no decay, no prox: CODASCA apart from the short first round.
    one, log = quadratic_run(algorithms.codasca_as_published, quads, 400, v_ref0=start[:3], **common)
    assert np.abs(one[-1] - problems.quadratic_saddle(quads)).max() < 1e-10
    gradient = np.array([problems.quadratic_field(start, *q) for q in quads])
    np.testing.assert_allclose(one[0], start - 0.02 * gradient.mean(0), atol=1e-14)
    np.testing.assert_allclose(log[0]["clients"], gradient / 4, atol=1e-14)
    np.testing.assert_allclose(log[7]["c"], log[7]["clients"].mean(0), atol=1e-13)
    # One client with clip, decay and prox, checked by hand over two one-round stages.
    q = quads[0]
    two, log = quadratic_run(
        algorithms.codasca_as_published,
        [q],
        2,
        lr=0.1,
        local_steps=2,
        gamma=0.5,
        v_ref0=np.ones(3),
        stage_rounds=1,
        lr_decay=0.5,
        clip=0.2,
        weight_decay=0.01,
    )
    g = problems.quadratic_field(start, *q)
    d = np.append(np.clip(g[:3], -0.2, 0.2) + 0.5 * (start[:3] - 1) + 0.01 * start[:3], g[3:])
    z = start - 0.1 * d
    np.testing.assert_allclose(two[0], z, atol=1e-14)
    np.testing.assert_allclose(log[0]["v_ref"][0], z[:3], atol=1e-14)
    centre = z[:3]
    raw = 0
    path = []
    for _ in range(2):
        g = problems.quadratic_field(z, *q)
        raw = raw + g
        d = np.append(np.clip(g[:3], -0.2, 0.2) + 0.5 * (z[:3] - centre) + 0.01 * z[:3], g[3:])
        z = z - 0.05 * d
        path.append(z[:3])
    np.testing.assert_allclose(two[1], z, atol=1e-14)
    np.testing.assert_allclose(log[1]["clients"][0], raw / 2, atol=1e-14)
    np.testing.assert_allclose(log[1]["v_ref"][0], np.mean(path, 0), atol=1e-14)


# ---------------------------------------------------------------- sampler


def chi_square(counts, total):
    expected = total / len(counts)
    return sum((v - expected) ** 2 / expected for v in counts)


def test_mix_is_splitmix64():
    assert sampling.absorb(0, 0) == 0xE220A8397B1DCDAF
    assert sampling.below(sampling.MASK, 10) == 9
    assert sampling.below(0, 10) == 0


def test_sampler_without_replacement():
    for n in range(1, 40):
        indices, weights = sampling.minibatch(5, 2, 0, n, 3, n, 64, False)
        assert sorted(indices) == list(range(n))
        assert np.allclose(weights, 1 / n)
    indices, weights = sampling.minibatch(5, 2, 0, 1, 3, 1000, 64, False)
    assert len(set(indices)) == 64 and max(indices) < 1000 and np.allclose(weights, 1 / 64)
    n, keys = 6, 6000
    single = np.zeros((2, n))
    pair = np.zeros((n, n))
    for i in range(keys):
        (u, v), _ = sampling.minibatch(7, i // 100, 0, i % 10, (i // 10) % 10, n, 2, False)
        single[0, u] += 1
        single[1, v] += 1
        pair[u, v] += 1
    # Five and twenty-nine degrees of freedom: exceeded with probability below 1e-4.
    assert chi_square(single[0], keys) < 26 and chi_square(single[1], keys) < 26
    assert np.all(np.diag(pair) == 0)
    assert chi_square(pair[~np.eye(n, dtype=bool)], keys) < 67


def test_sampler_with_replacement_and_full_batch():
    n, keys = 5, 4000
    counts = np.zeros((n, n))
    for i in range(keys):
        (u, v), weights = sampling.minibatch(7, i // 100, 0, i % 10, (i // 10) % 10, n, 2, True)
        counts[u, v] += 1
        assert weights == [0.5, 0.5]
    assert chi_square(counts.ravel(), keys) < 60
    assert sampling.minibatch(0, 0, 0, 0, 0, 4, None, True) == ([0, 1, 2, 3], [0.25] * 4)
    draws = np.bincount([sampling.server_integer(3, r, 8) for r in range(4000)], minlength=8)
    assert len(draws) == 8 and chi_square(draws, 4000) < 30
