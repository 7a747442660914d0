"""Checks of the references in scaffpd.py themselves (T3 to T6, T33 to T38 of the specification, hand work)."""

import itertools
import math

import numpy as np
import pytest

from tests.reference import algorithms, scaffpd

MU = 0.1
START = np.linspace(-1, 1, 4)


def problem(N=5, d=4, m=(6, 9, 7, 12, 8), heterogeneity=0.5, seed=3):
    clients, _ = scaffpd.robust_regression_data(N, d, m, 1.0, heterogeneity, seed)
    loss, full_gradient = scaffpd.regression_callbacks(clients, MU)
    return clients, loss, full_gradient


def batches(clients, size=3):
    """field(k, x, r, t, phase) on three rows drawn for that client, round, step and phase."""

    def field(k, x, r, t, phase=0):
        rng = np.random.default_rng([k, r, t, phase])
        rows = rng.choice(len(clients[k][1]), size=size, replace=False)
        return scaffpd.regression_gradient(clients[k], x, MU, rows)

    return field


def whole(full_gradient):
    return lambda k, x, r, t, phase=0: full_gradient(k, x)


def everyone(N):
    return lambda r: range(N)


def some(N, M):
    return lambda r: np.random.default_rng([7, r]).choice(N, size=M, replace=False).tolist()


def close(a, b, tolerance=1e-10):
    np.testing.assert_allclose(np.array(a), np.array(b), rtol=0, atol=tolerance)


def differences(f, x, h=1e-6):
    out = np.zeros(len(x))
    for j in range(len(x)):
        e = np.zeros(len(x))
        e[j] = h
        out[j] = (f(x + e) - f(x - e)) / (2 * h)
    return out


# ---------------------------------------------------------------- projections


def nearest(v, cap):
    """The nearest point of the capped simplex: every choice of entries at 0, at the cap and free is tried."""
    n = len(v)
    best, distance = None, math.inf
    for state in itertools.product("0fc", repeat=n):
        free = [i for i in range(n) if state[i] == "f"]
        out = np.array([cap if s == "c" else 0.0 for s in state])
        if free:
            shift = (sum(v[i] for i in free) + sum(out) - 1) / len(free)
            for i in free:
                out[i] = v[i] - shift
        if abs(sum(out) - 1) > 1e-9 or min(out) < -1e-12 or max(out) > cap + 1e-12:
            continue
        if sum((out - v) ** 2) < distance:
            best, distance = out, sum((out - v) ** 2)
    return best


@pytest.mark.parametrize("seed", range(8))
def test_projections_are_nearest_points(seed):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=4) * 10.0 ** rng.integers(-3, 2)
    for cap in (0.25, 0.3, 0.5, 0.7, 1.0, 3.0):
        p = scaffpd.project_capped(v, cap)
        close(p, nearest(v, cap), 1e-11)
        assert abs(sum(p) - 1) < 1e-12 and min(p) >= 0 and max(p) <= cap + 1e-15
        close(scaffpd.project_capped(p, cap), p, 1e-14)
        close(scaffpd.project_capped(v + 3.7, cap), p, 1e-13)
    close(scaffpd.project_simplex(v), nearest(v, 1.0), 1e-11)
    close(scaffpd.project_simplex(scaffpd.project_simplex(v)), scaffpd.project_simplex(v), 1e-15)


def test_projection_of_huge_and_equal_entries():
    close(scaffpd.project_simplex([1e12, 1e12, 0.0]), [0.5, 0.5, 0.0], 0)
    close(scaffpd.project_simplex([-5.0] * 4), [0.25] * 4, 0)
    close(scaffpd.project_simplex([2.0]), [1.0], 0)
    close(scaffpd.project_capped([9.0, 9.0, 9.0, 0.0], 0.5), [1 / 3] * 3 + [0.0], 1e-15)
    with pytest.raises(AssertionError):
        scaffpd.project_capped([1.0, 2.0], 0.4)


# ---------------------------------------------------------------- ambiguity sets


SETS = {
    "chi2": scaffpd.chi2(0.3),
    "afl": scaffpd.afl_set(),
    "cvar": scaffpd.cvar(0.5),
    "q_ffl": scaffpd.q_ffl(2.0),
    "average": scaffpd.average(),
    "user": scaffpd.user(
        scaffpd.project_simplex,
        lambda lam: sum(v**4 for v in lam) + lam[0],
        lambda lam: np.array([4 * v**3 for v in lam]) + np.eye(len(lam))[0],
    ),
}


def points_of(name, N, rng, number):
    """Random points of the set."""
    for _ in range(number):
        v = 0.3 * rng.normal(size=N) if rng.random() < 0.5 else rng.exponential(size=N)
        yield SETS[name].project(v)


@pytest.mark.parametrize("name", SETS)
def test_response_and_prox_beat_every_other_point(name):
    rng = np.random.default_rng(0)
    ambiguity = SETS[name]
    for _ in range(3):
        L = rng.exponential(size=5)
        lam0 = ambiguity.project(rng.exponential(size=5))
        s = rng.normal(size=5)
        sigma = rng.exponential()

        def to_minimise(lam, s=s, lam0=lam0, sigma=sigma):
            return ambiguity.psi(lam) - s @ lam + sum((lam - lam0) ** 2) / (2 * sigma)

        response, prox = ambiguity.response(L), ambiguity.prox(s, lam0, sigma)
        close(ambiguity.project(response), response, 1e-14)
        close(ambiguity.project(prox), prox, 1e-14)
        value = ambiguity.value(L)
        assert value == pytest.approx(response @ L - ambiguity.psi(response), abs=1e-14)
        for point in points_of(name, 5, rng, 60):
            for weight in (1.0, 1e-2):  # far away and close by
                other = (1 - weight) * response + weight * point
                assert other @ L - ambiguity.psi(other) <= value + 1e-12
                other = (1 - weight) * prox + weight * point
                assert to_minimise(other) >= to_minimise(prox) - 1e-12
        close(ambiguity.prox(s, lam0, 0.0), lam0, 1e-14)


@pytest.mark.parametrize("name", ["chi2", "afl", "cvar"])
def test_t3_prox_against_a_constrained_solver(name):
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(1)
    ambiguity = SETS[name]
    cap = 1 / (0.5 * 5) if name == "cvar" else 1.0
    for _ in range(3):
        lam0 = ambiguity.project(rng.exponential(size=5))
        s, sigma = rng.normal(size=5), 0.2 + rng.exponential()
        found = optimize.minimize(
            lambda lam, s=s, lam0=lam0, sigma=sigma: (
                ambiguity.psi(lam) - s @ lam + sum((lam - lam0) ** 2) / (2 * sigma)
            ),
            np.full(5, 0.2),
            method="SLSQP",
            bounds=[(0, cap)] * 5,
            constraints=[{"type": "eq", "fun": lambda lam: sum(lam) - 1}],
            options={"ftol": 1e-14, "maxiter": 500},
        ).x
        close(ambiguity.prox(s, lam0, sigma), found, 2e-6)


def test_prox_stationarity_of_chi2_by_enumeration():
    """chi^2: the prox is a nearest point for the quadratic psi, found with the enumeration above."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        s, lam0, sigma, rho = (
            rng.normal(size=4),
            rng.dirichlet(np.ones(4)),
            rng.exponential(),
            rng.exponential(),
        )
        # complete the square, shift included: rho N / 2 ||lam - 1/N||^2 and ||lam - lam0||^2 / (2 sigma)
        middle = (s + rho * 4 * 0.25 + lam0 / sigma) / (rho * 4 + 1 / sigma)
        close(scaffpd.chi2(rho).prox(s, lam0, sigma), nearest(middle, 1.0), 1e-11)


def test_t4_limits():
    rng = np.random.default_rng(2)
    N = 5
    L, lam0 = rng.exponential(size=N), rng.dirichlet(np.ones(N))
    uniform = np.full(N, 1 / N)
    close(scaffpd.chi2(1e9).response(L), uniform, 1e-8)
    close(scaffpd.chi2(1e9).prox(L, lam0, 1.0), uniform, 1e-8)
    close(scaffpd.chi2(1e-13).prox(L, lam0, 0.1), scaffpd.afl_set().prox(L, lam0, 0.1), 1e-11)
    close(scaffpd.chi2(1e-9).response(L), scaffpd.afl_set().response(L), 1e-12)
    close(scaffpd.chi2(0.0).response(L), scaffpd.afl_set().response(L), 0)
    close(scaffpd.cvar(1.0).response(L), uniform, 1e-15)
    close(scaffpd.cvar(1.0).prox(L, lam0, 0.7), uniform, 1e-15)
    close(scaffpd.cvar(1 / N).response(L), scaffpd.afl_set().response(L), 1e-15)
    close(scaffpd.cvar(1 / N).prox(L, lam0, 0.7), scaffpd.afl_set().prox(L, lam0, 0.7), 1e-14)
    # the prox goes to 1/N only when sigma is long against 1 / (rho N): with sigma = 1 / (rho N) it goes half way
    close(scaffpd.chi2(1e9).prox(L, lam0, 1 / (1e9 * N)), 0.5 * (lam0 + uniform), 1e-8)


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 2.0, 5.0])
def test_t5_q_ffl_conjugate(q):
    L = np.array([0.3, 1.7, 0.9, 0.0])
    ambiguity = scaffpd.q_ffl(q)
    assert ambiguity.value(L) == pytest.approx(sum(L ** (q + 1)) / (4 * (q + 1)), rel=1e-12)
    if q == 0:
        assert ambiguity.value(L) == pytest.approx(scaffpd.average().value(L))
    # the prox with a long step is the response (slowly so at a loss of 0 and small q)
    lam0 = np.array([0.1, 0.2, 0.0])
    close(ambiguity.prox(L[:3], lam0, 1e9), ambiguity.response(L[:3]), 1e-6)


def test_t6_cvar_is_the_mean_of_the_worst():
    L = np.random.default_rng(4).normal(size=10)
    for count in range(1, 11):
        worst = sorted(L)[-count:]
        assert scaffpd.cvar(count / 10).value(L) == pytest.approx(sum(worst) / count, abs=1e-14)
    # a fraction of a client
    assert scaffpd.cvar(0.25).value(L) == pytest.approx((sum(sorted(L)[-2:]) + 0.5 * sorted(L)[-3]) / 2.5)
    close(scaffpd.cvar(0.5).response([1.0, 1.0, 1.0, 1.0]), [0.5, 0.5, 0, 0], 0)


def test_user_set_repeats_the_closed_forms():
    rng = np.random.default_rng(6)
    L, lam0, sigma = rng.exponential(size=4), rng.dirichlet(np.ones(4)), 0.8
    chi2 = scaffpd.chi2(0.7)
    exact = scaffpd.user(scaffpd.project_simplex, chi2.psi, lambda lam: 0.7 * (4 * lam - 1))
    rough = scaffpd.user(scaffpd.project_simplex, chi2.psi)
    for ours, tolerance in ((exact, 1e-11), (rough, 1e-7)):
        close(ours.response(L), chi2.response(L), tolerance)
        close(ours.prox(L, lam0, sigma), chi2.prox(L, lam0, sigma), tolerance)
        assert ours.value(L) == pytest.approx(chi2.value(L), abs=1e-10)
    capped = scaffpd.user(lambda v: scaffpd.project_capped(v, 0.4))
    cvar = scaffpd.cvar(1 / 1.6)
    close(capped.response(L), cvar.response(L), 1e-9)
    close(capped.prox(L, lam0, sigma), cvar.prox(L, lam0, sigma), 1e-14)


@pytest.mark.parametrize("name", SETS)
def test_gradient_of_the_robust_objective(name):
    _, loss, full_gradient = problem()
    ambiguity = SETS[name]

    def both(x):
        return scaffpd.robust_value_and_gradient(ambiguity, loss, full_gradient, 5, x)

    numerical = differences(lambda x: both(x)[0], START)
    np.testing.assert_allclose(both(START)[1], numerical, rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------- robust regression


def test_regression_losses_and_gradients():
    clients, loss, full_gradient = problem()
    assert [len(y) for _, y in clients] == [6, 9, 7, 12, 8]
    for k, (A, y) in enumerate(clients):
        slow = scaffpd.regression_loss(clients[k], START, MU)
        assert slow == pytest.approx(np.mean((A @ START - y) ** 2) + MU / 2 * START @ START, rel=1e-12)
        assert loss(k, START) == pytest.approx(slow, rel=1e-12)
        g = scaffpd.regression_gradient(clients[k], START, MU)
        close(full_gradient(k, START), g, 1e-11)
        np.testing.assert_allclose(g, differences(lambda x, k=k: loss(k, x), START), rtol=1e-6, atol=1e-6)
        rows = [scaffpd.regression_gradient(clients[k], START, MU, [j]) for j in range(len(y))]
        close(sum(rows) / len(rows), g, 1e-11)
    same, xhat = scaffpd.robust_regression_data(heterogeneity=0.0)
    assert [A.shape for A, _ in same] == [(100, 10)] * 5
    for A, y in same:
        close(A @ xhat, y, 1e-12)


@pytest.mark.parametrize(
    "ambiguity",
    [scaffpd.chi2(0.01), scaffpd.chi2(0.1), scaffpd.chi2(2.0), scaffpd.afl_set(), scaffpd.cvar(0.5)],
    ids=["chi2-0.01", "chi2-0.1", "chi2-2", "afl", "cvar"],
)
def test_optimum_two_ways(ambiguity):
    pytest.importorskip("scipy")
    clients, loss, full_gradient = problem()
    x, lam = scaffpd.robust_optimum(clients, MU, ambiguity)
    other = scaffpd.robust_optimum_scipy(clients, MU, ambiguity)
    smooth = isinstance(ambiguity, scaffpd.Chi2)
    close(x, other, 1e-8 if smooth else 1e-5)
    # a saddle point: x is best for lam, lam is a best response to x (value, since it may not be unique)
    L = np.array([loss(i, x) for i in range(5)])
    close(sum(lam[i] * full_gradient(i, x) for i in range(5)), np.zeros(4), 1e-10)
    assert lam @ L - ambiguity.psi(lam) == pytest.approx(ambiguity.value(L), abs=1e-9)
    if smooth:
        close(ambiguity.response(L), lam, 1e-8)
    start = scaffpd.best_x(clients, MU, np.full(5, 0.2))
    assert ambiguity.value(L) <= ambiguity.value([loss(i, start) for i in range(5)]) + 1e-12


# ---------------------------------------------------------------- SCAFF-PD


def run_pd(rounds=4, stochastic=True, **changes):
    clients, loss, full_gradient = problem()
    field = batches(clients) if stochastic else whole(full_gradient)
    options = {
        "ambiguity": scaffpd.chi2(0.3),
        "local_steps": 3,
        "tau": 0.05,
        "sigma": 0.4,
        "theta": 0.8,
        "eta_g": 1.0,
    }
    options.update(changes)
    return scaffpd.scaff_pd(field, full_gradient, loss, 5, START, rounds, **options)


def test_scaff_pd_one_round_by_hand():
    clients, loss, full_gradient = problem()
    field = batches(clients)
    trajectory, log = run_pd(rounds=2, gradients="minibatch", eta_g=None, eta_l=0.01)
    x, lam, L_before = START, np.full(5, 0.2), None
    for r in range(2):
        L = np.array([loss(i, x) for i in range(5)])
        s = L if r == 0 else 1.8 * L - 0.8 * L_before
        lam = scaffpd.project_simplex((s + lam / 0.4) / (0.3 * 5 + 1 / 0.4))
        c_i = [field(i, x, r, 0, 0) for i in range(5)]
        c = np.einsum("i,ij->j", lam, np.array(c_i))
        ends = []
        for i in range(5):
            u = x
            for t in range(3):
                u = u - 0.01 * (field(i, u, r, t, 1) - c_i[i] + c)
            ends.append(u)
        x = x - 0.05 / (0.01 * 3) * (x - np.einsum("i,ij->j", lam, np.array(ends)))
        L_before = L
        close(trajectory[r], x, 1e-12)
        close(log[r]["lambda"], lam, 1e-13)
    assert not np.allclose(log[0]["c_i"][0], full_gradient(0, START))


@pytest.mark.parametrize("gradients", ["full", "minibatch"])
@pytest.mark.parametrize("step", [{"eta_l": 0.3}, {"eta_l": 1e-3}, {"eta_g": 2.0}])
def test_t33_one_local_step(gradients, step):
    """The minibatch is that of phase 1: the gradients of phase 0 cancel, since the weights sum to one."""
    clients, _, _ = problem()
    field = batches(clients)
    trajectory, log = run_pd(local_steps=1, gradients=gradients, **{"eta_g": None, **step})
    x = START
    for r, entry in enumerate(log):
        x = x - 0.05 * sum(entry["lambda"][i] * field(i, x, r, 0, 1) for i in range(5))
        close(trajectory[r], x, 1e-11)
        x = trajectory[r]


def test_t34_uniform_weights():
    fixed, log = run_pd(ambiguity=scaffpd.average(), rounds=6)
    free, _ = run_pd(ambiguity=scaffpd.chi2(1e9), sigma=1.0, rounds=6)
    close(fixed, free, 1e-8)
    # eta_g = 1: the mean of the local models
    x = START
    for r, entry in enumerate(log):
        close(entry["lambda"], np.full(5, 0.2), 0)
        assert entry["eta_l"] == pytest.approx(0.05 / 3)
        close(fixed[r], sum(entry["local"][i][-1] for i in range(5)) / 5, 1e-13)
        close(entry["c"], sum(entry["c_i"]) / 5, 1e-13)
        x = fixed[r]
    assert x is not START


def test_t36_plain_ascent_and_descent():
    _, loss, full_gradient = problem()
    trajectory, log = run_pd(
        local_steps=1, theta=0.0, stochastic=False, ambiguity=scaffpd.afl_set(), rounds=6
    )
    x, lam = START, np.full(5, 0.2)
    for r in range(6):
        lam = scaffpd.project_simplex(lam + 0.4 * np.array([loss(i, x) for i in range(5)]))
        x = x - 0.05 * sum(lam[i] * full_gradient(i, x) for i in range(5))
        close(trajectory[r], x, 1e-11)
        close(log[r]["lambda"], lam, 1e-11)


@pytest.mark.parametrize("name", ["chi2", "afl", "cvar", "average", "user"])
def test_t38_weights_and_variates(name):
    trajectory, log = run_pd(ambiguity=SETS[name], sigma=0.05, rounds=5)
    before = START
    for r, entry in enumerate(log):
        assert abs(sum(entry["lambda"]) - 1) < 1e-12 and min(entry["lambda"]) >= 0
        close(entry["c"], sum(entry["lambda"][i] * entry["c_i"][i] for i in range(5)), 1e-13)
        way = sum(entry["lambda"][i] * entry["delta"][i] for i in range(5))
        close(trajectory[r], before - entry["tau"] * way, 1e-13)
        if r:
            close(entry["lambda_before"], log[r - 1]["lambda"], 0)
            close(entry["s"], 1.8 * entry["losses"] - 0.8 * log[r - 1]["losses"], 1e-12)
        else:
            close(entry["s"], entry["losses"], 1e-12)
        before = trajectory[r]


def test_client_step_given_either_way():
    one, _ = run_pd(eta_g=2.0)
    two, _ = run_pd(eta_g=None, eta_l=0.05 / (3 * 2.0))
    close(one, two, 1e-13)
    with pytest.raises(AssertionError):
        run_pd(eta_g=1.0, eta_l=0.1)


def test_without_correction():
    clients, _, _ = problem()
    field = batches(clients)
    trajectory, log = run_pd(correction=False, rounds=2)
    x = START
    for r in range(2):
        ends = []
        for i in range(5):
            u = x
            for t in range(3):
                u = u - 0.05 / 3 * field(i, u, r, t, 1)
            ends.append(u)
        x = sum(log[r]["lambda"][i] * ends[i] for i in range(5))
        close(trajectory[r], x, 1e-12)
    # one full local step: the correction cancels in the mean
    a, _ = run_pd(local_steps=1, correction=False)
    b, _ = run_pd(local_steps=1, correction=True)
    close(a, b, 1e-12)


def test_growing_schedule():
    mu, tau_0, gamma_0 = 0.3, 0.05, 2.0
    schedule = scaffpd.growing_schedule(mu, tau_0, gamma_0)
    assert schedule(0) == (tau_0, gamma_0 * tau_0, 1.0)
    for r in range(30):
        tau, sigma, _ = schedule(r)
        tau_next, sigma_next, theta_next = schedule(r + 1)
        assert tau * sigma == pytest.approx(tau_0**2 * gamma_0)
        assert theta_next == pytest.approx((1 + mu * tau) ** -0.5)
        assert theta_next == pytest.approx(sigma / sigma_next)
        assert tau_next == pytest.approx(theta_next * tau)
        gamma = sigma / tau
        assert gamma >= mu**2 * tau_0**2 * gamma_0 / 9 * r**2  # B.27
        assert sigma_next / tau_next == pytest.approx(gamma * (1 + mu * tau))
    _, log = run_pd(schedule=schedule, rounds=3)
    for r in range(3):
        assert (log[r]["tau"], log[r]["sigma"], log[r]["theta"]) == schedule(r)
        assert log[r]["eta_l"] == log[r]["tau"] / 3


def test_strongly_concave_constants_meet_the_conditions():
    for mu_x, mu_l, L_xx, L_lx in ((0.1, 0.5, 3.0, 2.0), (1.0, 0.05, 4.0, 9.0), (0.2, 2.0, 0.3, 0.1)):
        for under_root in (8.0, 16.0):
            tau, sigma, theta = scaffpd.strongly_concave_constants(mu_x, mu_l, L_xx, L_lx, under_root)
            assert 0 < theta < 1
            pi = theta * sigma * L_lx
            slack = 1 + 1e-12
            assert slack * (1 / (2 * tau) + mu_x / 8) >= 1 / (2 * tau * theta)
            assert slack * (1 / (2 * sigma) + mu_l / 2) >= 1 / (2 * sigma * theta)
            assert slack / tau >= 12 * L_xx + 2 * pi * theta * L_lx
            assert slack / sigma >= theta * L_lx / pi
        # 8 is the exact root of the quadratic above B.54
        theta = scaffpd.strongly_concave_constants(mu_x, mu_l, L_xx, L_lx)[2]
        w = 1 / (1 - theta)
        terms = [mu_x * mu_l * w**2, (mu_x * mu_l + 48 * mu_l * L_xx) * w, 8 * L_lx**2]
        assert terms[0] - terms[1] - terms[2] == pytest.approx(0, abs=1e-7 * terms[0])


def test_the_saddle_point_stays():
    clients, loss, full_gradient = problem()
    ambiguity = scaffpd.chi2(0.3)
    x, lam = scaffpd.robust_optimum(clients, MU, ambiguity)
    options = {
        "ambiguity": ambiguity,
        "local_steps": 20,
        "tau": 0.1,
        "sigma": 1.0,
        "theta": 0.9,
        "eta_g": 1.0,
    }
    field = whole(full_gradient)
    stays, log = scaffpd.scaff_pd(field, full_gradient, loss, 5, x, 3, lambda0=lam, **options)
    close(stays, [x] * 3, 1e-8)
    close(log[-1]["lambda"], lam, 1e-8)
    leaves, _ = scaffpd.scaff_pd(
        field, full_gradient, loss, 5, x, 3, lambda0=lam, correction=False, **options
    )
    assert max(abs(leaves[-1] - x)) > 1e-3


@pytest.mark.parametrize("rho", [0.01, 0.1])
def test_t35_linear_convergence(rho):
    clients, _ = scaffpd.robust_regression_data(heterogeneity=0.05, seed=1)
    loss, full_gradient = scaffpd.regression_callbacks(clients, MU)
    ambiguity = scaffpd.chi2(rho)
    best, _ = scaffpd.robust_optimum(clients, MU, ambiguity)
    errors = {}
    for correction in (True, False):
        trajectory, _ = scaffpd.scaff_pd(
            whole(full_gradient),
            full_gradient,
            loss,
            5,
            np.zeros(10),
            100,
            ambiguity=ambiguity,
            local_steps=100,
            tau=0.1,
            sigma=1 / (rho * 5),
            theta=0.9,
            eta_g=1.0,
            correction=correction,
        )
        errors[correction] = [sum((x - best) ** 2) for x in trajectory]
    assert errors[True][49] < 1e-6
    assert errors[True][99] < 1e-13
    assert errors[False][99] > 1e-8
    assert errors[False][99] > 0.5 * errors[False][70]


def test_growing_schedule_converges_without_regularisation():
    clients, loss, full_gradient = problem()
    ambiguity = scaffpd.cvar(0.5)
    best, _ = scaffpd.robust_optimum(clients, MU, ambiguity)
    trajectory, _ = scaffpd.scaff_pd(
        whole(full_gradient),
        full_gradient,
        loss,
        5,
        START,
        400,
        ambiguity=ambiguity,
        local_steps=2,
        schedule=scaffpd.growing_schedule(MU, 0.05, 2.0),
        eta_g=1.0,
    )
    errors = [sum((x - best) ** 2) for x in trajectory]
    assert errors[-1] < 1e-4 * errors[0]


# ---------------------------------------------------------------- DRFA


def run_drfa(rounds=4, **changes):
    clients, loss, _ = problem()
    arguments = {
        "sample_lambda": lambda r, lam: [[0, 2, 2], [4, 4, 4], [1, 0, 3], [3, 2, 3]][r % 4],
        "sample_uniform": some(5, 3),
        "snapshot": lambda r: 1 + r % 3,
        "stochastic_loss": lambda k, x, r: loss(k, x) * (1 + 0.1 * math.sin(k + r)),
        "lr": 0.02,
        "local_steps": 3,
        "gamma": 0.01,
    }
    arguments.update(changes)
    return scaffpd.drfa(batches(clients), N=5, x0=START, rounds=rounds, **arguments)


def test_drfa_by_hand():
    clients, loss, _ = problem()
    field = batches(clients)
    trajectory, log = run_drfa(rounds=1, snapshot=lambda r: 2)
    models = {}
    for k in (0, 2):
        u, models[k] = START, []
        for t in range(3):
            u = u - 0.02 * field(k, u, 0, t, 0)
            models[k].append(u)
    close(trajectory[0], (models[0][2] + 2 * models[2][2]) / 3, 1e-13)
    snap = (models[0][1] + 2 * models[2][1]) / 3
    close(log[0]["snapshot"], snap, 1e-13)
    v = np.zeros(5)
    for k in some(5, 3)(0):
        v[k] = 5 / 3 * loss(k, snap) * (1 + 0.1 * math.sin(k))
    close(log[0]["v"], v, 1e-12)
    close(log[0]["lambda"], scaffpd.project_simplex(0.2 + 0.01 * 3 * v), 1e-13)
    assert np.count_nonzero(log[0]["v"]) == 3


def test_drfa_works_once_and_counts_twice():
    """FedAvg's reference works for every entry of its list, so repeated clients count there, too."""
    clients, _, _ = problem()
    calls = []
    field = batches(clients)

    def counting(k, x, r, t, phase=0):
        calls.append((k, r, t, phase))
        return field(k, x, r, t, phase)

    drawn = [[0, 2, 2], [4, 4, 4], [1, 0, 3]]
    trajectory, _ = scaffpd.drfa(
        counting,
        lambda k, x, r: 1.0,
        lambda r, lam: drawn[r],
        some(5, 2),
        lambda r: 1,
        5,
        START,
        3,
        lr=0.02,
        local_steps=3,
        gamma=0.1,
    )
    assert len(calls) == len(set(calls)) == 3 * (2 + 1 + 3)
    close(
        trajectory,
        algorithms.fedavg(field, lambda r: drawn[r], 5, START, 4, 3, lr=0.02, local_steps=3),
        1e-13,
    )


def test_t37_drfa_without_dual_step():
    seen = []

    def sample(r, lam):
        seen.append(lam)
        return some(5, 3)(r)

    for ambiguity in (None, scaffpd.chi2(0.5)):
        trajectory, log = run_drfa(gamma=0.0, sample_lambda=sample, ambiguity=ambiguity)
        clients, _, _ = problem()
        expected = algorithms.fedavg(batches(clients), some(5, 3), 5, START, 4, 4, lr=0.02, local_steps=3)
        close(trajectory, expected, 1e-13)
    close(seen, np.full((8, 5), 0.2), 1e-15)
    close(log[-1]["average"], sum(trajectory) / 4, 1e-13)


def test_drfa_sets_and_snapshot():
    plain, _ = run_drfa(), None
    simplex = run_drfa(ambiguity=scaffpd.afl_set())
    close(plain[0], simplex[0], 0)
    close(plain[1][-1]["lambda"], simplex[1][-1]["lambda"], 0)
    trajectory, log = run_drfa(ambiguity=scaffpd.chi2(0.5), snapshot=lambda r: 3)
    lam = np.full(5, 0.2)
    for r, entry in enumerate(log):
        close(entry["snapshot"], trajectory[r], 0)
        lam = scaffpd.project_simplex((entry["v"] + lam / 0.03) / (0.5 * 5 + 1 / 0.03))
        close(entry["lambda"], lam, 1e-12)
        close(entry["lambda_before"], np.full(5, 0.2) if r == 0 else log[r - 1]["lambda"], 0)


def test_drfa_loss_vector_is_unbiased():
    _, loss, _ = problem()
    subsets = list(itertools.combinations(range(5), 2))
    total = np.zeros(5)
    for subset in subsets:
        _, log = run_drfa(
            rounds=1, sample_uniform=lambda r, s=subset: s, stochastic_loss=lambda k, x, r: loss(k, x)
        )
        total += log[0]["v"]
    snap = log[0]["snapshot"]
    close(total / len(subsets), [loss(k, snap) for k in range(5)], 1e-10)


# ---------------------------------------------------------------- AFL


def test_afl_by_hand_and_one_local_step():
    clients, loss, _ = problem()
    field = batches(clients)
    one, log = scaffpd.afl(field, loss, 5, START, 5, lr=0.02, lr_lambda=0.05)
    local, log_local = scaffpd.afl(field, loss, 5, START, 5, lr=0.02, lr_lambda=0.05, local_steps=1)
    close(one, local, 1e-12)
    close([e["lambda"] for e in log], [e["lambda"] for e in log_local], 1e-12)
    x, lam = START, np.full(5, 0.2)
    for r in range(5):
        new = x - 0.02 * sum(lam[i] * field(i, x, r, 0, 0) for i in range(5))
        lam = scaffpd.project_simplex(lam + 0.05 * np.array([loss(i, x) for i in range(5)]))
        x = new
        close(one[r], x, 1e-12)
        close(log[r]["lambda"], lam, 1e-12)
        close(log[r]["average"], sum(one[: r + 1]) / (r + 1), 1e-13)
        assert abs(sum(lam) - 1) < 1e-12
    assert np.ptp(log[-1]["lambda"]) > 1e-3


def test_t37_afl_without_dual_step():
    clients, loss, _ = problem()
    field = batches(clients)
    trajectory, _ = scaffpd.afl(field, loss, 5, START, 4, lr=0.02, lr_lambda=0.0, local_steps=3)
    close(trajectory, algorithms.fedavg(field, everyone(5), 5, START, 4, 4, lr=0.02, local_steps=3), 1e-12)


def test_afl_reaches_the_worst_case_optimum():
    clients, loss, full_gradient = problem()
    best, _ = scaffpd.robust_optimum(clients, MU, scaffpd.afl_set())
    worst = max(loss(i, best) for i in range(5))
    _, log = scaffpd.afl(whole(full_gradient), loss, 5, START, 1500, lr=0.02, lr_lambda=0.01)
    x = log[-1]["average"]
    assert worst - 1e-9 <= max(loss(i, x) for i in range(5)) < worst + 0.05 * worst + 0.02


def test_agnostic_fedavg_by_hand():
    clients, loss, _ = problem()
    field = batches(clients)
    got, log = scaffpd.agnostic_fedavg(field, loss, 5, START, 3, lr=0.02, lr_lambda=0.05, local_steps=2)
    x, logits = START, np.zeros(5)
    for r in range(3):
        ends = []
        for i in range(5):
            u = x - 0.02 * field(i, x, r, 0, 0)
            ends.append(u - 0.02 * field(i, u, r, 1, 0))
        lam = np.exp(logits - logits.max())
        new = lam @ np.array(ends) / lam.sum()
        logits = logits + 0.05 * np.array(
            [loss(i, x) for i in range(5)]
        )  # the weights are a softmax of summed losses
        x = new
        close(got[r], x, 1e-12)
        close(log[r]["lambda"], np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum(), 1e-12)
    assert np.ptp(log[-1]["lambda"]) > 1e-3


# ---------------------------------------------------------------- q-FFL


@pytest.mark.parametrize("who", [everyone(5), some(5, 2)])
def test_t37_q_zero_is_fedavg(who):
    clients, loss, full_gradient = problem()
    field = batches(clients)
    trajectory, _ = scaffpd.q_fedavg(field, loss, who, 5, START, 4, q=0, lr=0.02, local_steps=3)
    close(trajectory, algorithms.fedavg(field, who, 5, START, 4, 4, lr=0.02, local_steps=3), 1e-12)
    trajectory, _ = scaffpd.q_fedsgd(full_gradient, loss, who, 5, START, 4, q=0, lr=0.02)
    expected = algorithms.fedavg(whole(full_gradient), who, 5, START, 4, 4, lr=0.02, local_steps=1)
    close(trajectory, expected, 1e-12)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_q_fedsgd(q):
    _, loss, full_gradient = problem()
    who = some(5, 4)
    sgd, log = scaffpd.q_fedsgd(full_gradient, loss, who, 5, START, 4, q=q, lr=0.05)
    avg, _ = scaffpd.q_fedavg(whole(full_gradient), loss, who, 5, START, 4, q=q, lr=0.05, local_steps=1)
    close(sgd, avg, 1e-12)
    x = START
    for r in range(4):
        top, bottom = 0.0, 0.0
        for k in who(r):
            F, g = loss(k, x) + 1e-10, full_gradient(k, x)
            top = top + F**q * g
            bottom += q * F ** (q - 1) * g @ g + F**q / 0.05
        close(sgd[r], x - top / bottom, 1e-12)
        assert sum(log[r]["h"].values()) == pytest.approx(bottom)
        x = sgd[r]
    # the numerator is N times the gradient of q-FFL
    ambiguity = scaffpd.q_ffl(q)
    numerical = differences(lambda v: ambiguity.value([loss(k, v) for k in range(5)]), START)
    weighted = sum(loss(k, START) ** q * full_gradient(k, START) for k in range(5)) / 5
    np.testing.assert_allclose(weighted, numerical, rtol=1e-6)
    # and long runs go down to a stationary point of it
    far, _ = scaffpd.q_fedsgd(full_gradient, loss, everyone(5), 5, START, 1500, q=q, lr=0.2)
    end = scaffpd.robust_value_and_gradient(ambiguity, loss, full_gradient, 5, far[-1])
    begin = scaffpd.robust_value_and_gradient(ambiguity, loss, full_gradient, 5, START)
    assert end[0] < begin[0]
    assert np.linalg.norm(end[1]) < 1e-5 * np.linalg.norm(begin[1])


def test_q_fedavg_by_hand():
    clients, loss, _ = problem()
    field = batches(clients)
    steps = lambda k: 1 + k
    trajectory, _ = scaffpd.q_fedavg(
        field, loss, lambda r: [3, 1], 5, START, 1, q=2.0, lr=0.02, local_steps=steps
    )
    top, bottom = 0.0, 0.0
    for k in (3, 1):
        u = START
        for t in range(1 + k):
            u = u - 0.02 * field(k, u, 0, t, 0)
        delta, F = (START - u) / 0.02, loss(k, START)
        top = top + F**2 * delta
        bottom += 2 * F * delta @ delta + F**2 / 0.02
    close(trajectory[0], START - top / bottom, 1e-9)


# ---------------------------------------------------------------- Delta-FL


def test_weighted_quantile():
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 7, 8):
        values = rng.normal(size=n).tolist()
        for level in (0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.8, 0.99, 1.0):
            expected = sorted(values)[max(math.ceil(n * level) - 1, 0)]
            assert scaffpd.weighted_quantile(values, [1.0] * n, level) == expected
            # weights are copies
            weights = rng.integers(1, 6, size=n).tolist()
            copies = sorted(v for v, w in zip(values, weights, strict=True) for _ in range(w))
            expected = copies[max(math.ceil(len(copies) * level) - 1, 0)]
            assert scaffpd.weighted_quantile(values, weights, level) == expected
    assert scaffpd.weighted_quantile([2.0, 1.0, 2.0], [1, 1, 1], 0.5) == 2.0


def run_delta(level, who=everyone(5), rounds=4):
    clients, loss, _ = problem()
    sizes = [len(y) for _, y in clients]
    return scaffpd.delta_fl(
        batches(clients), loss, who, sizes, 5, START, rounds, level=level, lr=0.02, local_steps=3
    )


@pytest.mark.parametrize("who", [everyone(5), some(5, 3)])
def test_t37_delta_fl_level_zero(who):
    clients, _, _ = problem()
    field = batches(clients)
    weights = [len(y) for _, y in clients]
    expected = algorithms.fedavg(
        lambda k, x, r, t: field(k, x, r, t, 1), who, 5, START, 4, 4, lr=0.02, local_steps=3, weights=weights
    )
    trajectory, log = run_delta(0.0, who)
    close(trajectory, expected, 1e-12)
    for r in range(4):
        assert sorted(log[r]["tail"]) == sorted(who(r))


def test_delta_fl_tail():
    clients, loss, _ = problem()
    sizes = [len(y) for _, y in clients]
    trajectory, log = run_delta(1.0)
    x = START
    for r in range(4):
        losses = [loss(k, x) for k in range(5)]
        assert log[r]["tail"] == [int(np.argmax(losses))]
        close(trajectory[r], log[r]["local"][log[r]["tail"][0]], 1e-15)
        x = trajectory[r]
    trajectory, log = run_delta(0.5)
    x = START
    for r in range(4):
        order = sorted(range(5), key=lambda k, x=x: loss(k, x))
        weight = 0
        tail = list(order)
        while weight + sizes[tail[0]] < 0.5 * sum(sizes):
            weight += sizes[tail.pop(0)]
        assert log[r]["threshold"] == loss(tail[0], x)
        tail = sorted(tail)
        assert log[r]["tail"] == tail and 0 < len(tail) < 5
        ends = log[r]["local"]
        close(trajectory[r], sum(sizes[k] * ends[k] for k in tail) / sum(sizes[k] for k in tail), 1e-13)
        x = trajectory[r]


def test_nobody_there():
    nobody = lambda r: []
    clients, loss, full_gradient = problem()
    field = batches(clients)
    runs = [
        run_delta(0.5, nobody),
        scaffpd.q_fedavg(field, loss, nobody, 5, START, 2, q=1.0, lr=0.1, local_steps=2),
        scaffpd.q_fedsgd(full_gradient, loss, nobody, 5, START, 2, q=1.0, lr=0.1),
        run_drfa(sample_lambda=lambda r, lam: [], sample_uniform=nobody),
    ]
    for trajectory, _ in runs:
        close(trajectory[-1], START, 0)
