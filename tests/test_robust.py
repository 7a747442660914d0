"""Distributionally robust learning: ambiguity sets (T3-T6), SCAFF-PD and its baselines (T33-T38), the known optimum."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import fedsaddle as fs
from fedsaddle import ambiguity, projections
from fedsaddle.algorithms import DRFA, SCAFFOLD, AgnosticFedAvg, AgnosticFL, DeltaFL, FedAvg, QFedAvg, ScaffPD
from fedsaddle.algorithms.fair import quantile
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.participation import Full, Uniform
from fedsaddle.problems import (
    AUC,
    ERM,
    QuadraticSaddle,
    RobustRegression,
    quadratic_federation,
    robust_regression_federation,
)
from fedsaddle.replicas import run_all
from tests import harness
from tests.harness import FEATURES, FULL, binary, clients_of, drive
from tests.reference import scaffpd as ref_robust

SETS = ["chi2(0.3)", "afl", "cvar(0.4)", "average", "q_ffl(1.5)"]
N = 6


def losses(seed: int = 0) -> torch.Tensor:
    return 0.2 + torch.rand(N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solved(spec: str, objective: Any) -> np.ndarray:
    """The minimiser of an objective over the set, by a generic constrained solver."""
    name = spec.partition("(")[0]
    if name == "average":
        return np.full(N, 1 / N)
    cap = {"cvar": 1 / (0.4 * N)}.get(name, 1.0 if name != "q_ffl" else None)
    constraints = [] if name == "q_ffl" else [{"type": "eq", "fun": lambda u: u.sum() - 1}]
    found = minimize(
        objective, np.full(N, 1 / N), method="SLSQP", bounds=[(0.0, cap)] * N, constraints=constraints,
        options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    return np.asarray(found.x)


# ------------------------------------------------------------------------------------------------ ambiguity sets


@pytest.mark.parametrize("spec", SETS)
def test_prox_and_best_response_are_those_of_a_generic_solver(spec: str) -> None:  # T3
    chosen, s, lam = ambiguity.named(spec), losses(1), torch.softmax(losses(2), -1)
    psi = lambda u: chosen.psi(torch.from_numpy(np.maximum(u, 0)))[0].item()
    sigma = 0.7
    got = chosen.prox(lam, s, sigma).numpy()
    want = solved(spec, lambda u: psi(u) - u @ s.numpy() + ((u - lam.numpy()) ** 2).sum() / (2 * sigma))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
    best = chosen.best(s).numpy()
    value = best @ s.numpy() - psi(best)
    other = solved(spec, lambda u: psi(u) - u @ s.numpy())
    assert value >= other @ s.numpy() - psi(other) - 1e-8
    assert chosen.value(s).item() == pytest.approx(value, abs=1e-12)
    if spec != "q_ffl(1.5)":
        for lam in (got, best):
            assert lam.sum() == pytest.approx(1.0, abs=1e-12) and lam.min() >= 0


def test_limits_of_the_sets() -> None:  # T4
    s, lam = losses(3), torch.softmax(losses(4), -1)
    equal = torch.full((N,), 1 / N, dtype=torch.float64)
    torch.testing.assert_close(ambiguity.Chi2(1e9).prox(lam, s, 0.5), equal, rtol=0, atol=1e-8)
    torch.testing.assert_close(ambiguity.Chi2(1e9).best(s), equal, rtol=0, atol=1e-8)
    torch.testing.assert_close(
        ambiguity.Chi2(1e-12).prox(lam, s, 0.5), ambiguity.AFL().prox(lam, s, 0.5), rtol=0, atol=1e-9
    )
    torch.testing.assert_close(ambiguity.CVaR(1.0).prox(lam, s, 0.5), equal, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        ambiguity.CVaR(1 / N).prox(lam, s, 0.5), ambiguity.AFL().prox(lam, s, 0.5), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(ambiguity.CVaR(1 / N).best(s), ambiguity.AFL().best(s), rtol=0, atol=1e-12)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_q_ffl_has_its_conjugate(q: float) -> None:  # T5
    L = losses(5)
    value = ambiguity.QFFL(q).value(L).item()
    assert value == pytest.approx((L ** (q + 1)).sum().item() / (N * (q + 1)), rel=1e-12)


def test_cvar_is_the_mean_of_the_worst() -> None:  # T6
    L = losses(6)
    for k in (1, 2, 3, 6):
        worst = L.sort(descending=True).values[:k].mean().item()
        assert ambiguity.CVaR(k / N).value(L).item() == pytest.approx(worst, rel=1e-12)


def test_the_simplex_takes_large_and_undefined_entries() -> None:
    v = torch.tensor([[1e20, 0.0, 1e20], [torch.nan, 0.0, 1.0], [torch.inf, 0.0, 1.0], [0.2, 0.3, 0.5]])
    u = projections.simplex()(v, 0.0)
    torch.testing.assert_close(u[0], torch.tensor([0.5, 0.0, 0.5]))
    assert u[1:3].isnan().all()
    torch.testing.assert_close(u[3], v[3])


def test_a_run_whose_losses_overflow_is_reported_as_diverged() -> None:
    from fedsaddle.errors import Diverged
    from fedsaddle.replicas import run_together

    def start(tau: float) -> fs.Run:
        algorithm = ScaffPD(ambiguity="chi2(0.1)", tau=tau, local_steps=2)
        return fs.train(AUC(nn.Linear(FEATURES, 1), p=0.4), algorithm, binary(), rounds=40, dtype="float64")

    torch.manual_seed(0)
    wild, sound = start(1e6), start(0.1)
    run_together([wild, sound])
    with pytest.raises(Diverged):
        wild.finish()
    assert np.isfinite(sound.metrics["train_auc"]) and sound.records[-1]["round"] == 40


@pytest.mark.parametrize("cap", [1.0, 0.4, 0.2, 1 / 6])
def test_capped_simplex(cap: float) -> None:
    """Feasible, idempotent, and nearest: no feasible point is closer."""
    g = torch.Generator().manual_seed(0)
    v = 2 * torch.randn(200, N, generator=g, dtype=torch.float64)
    v[0], v[1, :3] = 0.0, 5.0  # ties
    project = projections.capped_simplex(cap)
    u = project(v, 0.0)
    assert (u >= 0).all() and (u <= cap + 1e-12).all()
    torch.testing.assert_close(u.sum(-1), torch.ones(200, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(project(u, 0.0), u, rtol=0, atol=1e-10)
    if cap == 1.0:
        torch.testing.assert_close(u, projections.simplex()(v, 0.0), rtol=0, atol=1e-10)
    others = project(torch.randn(200, N, generator=g, dtype=torch.float64), 0.0)
    assert ((v - u).norm(dim=-1) <= (v - others).norm(dim=-1) + 1e-9).all()
    batched = project(v.view(10, 20, N), 0.0)
    torch.testing.assert_close(batched.view(200, N), u, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ambiguity.named("chi3"), "ambiguity: unknown name 'chi3'; known are chi2, afl, cvar, q_ffl, average"),
        (lambda: ambiguity.named("chi2(a)"), "'chi2(a)' is not a valid call of chi2, whose arguments are numbers"),
        (lambda: ambiguity.named("chi2(0)"), "chi2: rho must be > 0, got 0.0"),
        (lambda: ambiguity.named("cvar(1.5)"), "cvar: alpha must be above 0 and at most 1, got 1.5"),
        (lambda: ScaffPD(theta=1.5), "theta must be at most 1, got 1.5"),
        (lambda: QFedAvg(q=-1.0), "q must be >= 0, got -1.0"),
        (lambda: QFedAvg(server_lr=0.5), "leave out server_lr and weights"),
        (lambda: AgnosticFedAvg(ambiguity="chi2(0.1)"), "AgnosticFedAvg: ambiguity must be 'afl', got 'chi2(0.1)'"),
        (lambda: DeltaFL(weights="samples"), "DeltaFL: clients always count by their samples, got weights = 'samples'"),
        (lambda: DeltaFL(tail=0.0), "tail must be above 0 and at most 1, got 0.0"),
        (lambda: RobustRegression(0), "dim must be >= 1"),
    ],
)  # fmt: skip
def test_refusals(make: Any, says: str) -> None:
    with pytest.raises(FedsaddleError) as error:
        make()
    assert says in str(error.value)


# ------------------------------------------------------------------------------------------------------ SCAFF-PD


def erm() -> ERM:
    return ERM(nn.Linear(FEATURES, 1))


START = harness.TWINS["logistic"].z0()


def run(algorithm: fs.Algorithm, rounds: int = 6, **options: Any) -> harness.Run:
    return drive(algorithm, erm(), binary(), rounds, start=START, **{"batching": FULL, **options})


def parts(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses [N] and gradients [N, d] of all clients at a point."""
    clients = harness.connect(erm(), binary(), batching=FULL)
    cohort, at = clients.cohort(np.arange(N), 0), torch.from_numpy(z).expand(N, -1)
    return cohort.full_loss(at).squeeze(-1).numpy(), cohort.full_field(at).numpy()


def test_one_local_step_is_accelerated_primal_dual() -> None:  # T33
    """x <- x - tau sum lambda_i g_i(x), whatever the local step size."""
    algorithm = ScaffPD(ambiguity="chi2(0.2)", tau=0.3, sigma=2.0, theta=0.8, local_steps=1, server_lr=3.0)
    got = run(algorithm)
    x, lam, before = START, torch.full((N,), 1 / N, dtype=torch.float64), None
    for r in range(6):
        L, G = (torch.from_numpy(v) for v in parts(x))
        s = 1.8 * L - 0.8 * (L if before is None else before)
        lam, before = ambiguity.Chi2(0.2).prox(lam, s, 2.0), L
        x = x - 0.3 * (lam @ G).numpy()
        np.testing.assert_allclose(got.z[r], x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(got.states[r].lam[0], lam, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["chi2(1e9)", "average"])
def test_without_freedom_it_averages_with_exact_variates(spec: str) -> None:  # T34
    got = run(ScaffPD(ambiguity=spec, tau=0.3, local_steps=3))
    x = START
    for r in range(6):
        _, G = parts(x)
        ends = []
        for k in range(N):
            u = x
            for _ in range(3):
                u = u - 0.1 * (parts(u)[1][k] - G[k] + G.mean(0))
            ends.append(u)
        x = np.mean(ends, axis=0)  # server_lr 1: the mean of the local models
        np.testing.assert_allclose(got.z[r], x, rtol=0, atol=1e-9)


def test_no_extrapolation_and_one_step_is_alternating_gradient() -> None:  # T36
    got = run(ScaffPD(ambiguity="afl", tau=0.2, sigma=0.5, theta=0.0, local_steps=1), rounds=3)
    x, lam = START, torch.full((N,), 1 / N, dtype=torch.float64)
    for r in range(3):
        L, G = (torch.from_numpy(v) for v in parts(x))
        lam = projections.simplex()(lam + 0.5 * L, 0.0)
        x = x - 0.2 * (lam @ G).numpy()
        np.testing.assert_allclose(got.z[r], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rho", [0.01, 0.1])
def test_it_reaches_the_robust_optimum_linearly_and_the_uncorrected_form_does_not(rho: float) -> None:  # T35
    fed, problem = robust_regression_federation(heterogeneity=0.1), RobustRegression(10, rho=rho)
    best, _ = problem.optimum(fed)
    common = dict(ambiguity=f"chi2({rho})", tau=0.1, sigma=1 / (rho * 5), theta=0.9, local_steps=100)
    error = {
        corrected: (
            (drive(ScaffPD(**common, corrected=corrected), problem, fed, 100, batching=FULL).z - best.numpy()) ** 2
        ).sum(1)
        for corrected in (True, False)
    }  # fmt: skip
    assert error[True][49] < 1e-7 and error[True][99] < 1e-14  # about 1e-8 and 1e-16
    assert 1e-7 < error[False][99] < 1e-3
    rounds = np.arange(15, 85)
    slope, cut = np.polyfit(rounds, np.log10(error[True][rounds]), 1)
    assert slope < -0.1 and np.abs(np.log10(error[True][rounds]) - slope * rounds - cut).max() < 0.7


def test_the_optimum_is_the_one_of_a_generic_solver() -> None:
    fed, problem = robust_regression_federation(heterogeneity=0.3, seed=3), RobustRegression(10, rho=0.02)
    x, lam = problem.optimum(fed)
    clients = clients_of(fed)

    def robust(v: np.ndarray) -> float:
        L = [np.mean((c["x"] @ v - c["y"]) ** 2) + 0.05 * v @ v for c in clients]
        return ambiguity.Chi2(0.02).value(torch.tensor(L, dtype=torch.float64)).item()

    found = minimize(robust, np.zeros(10), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(x, found.x, rtol=0, atol=1e-5)
    assert robust(x.numpy()) <= found.fun + 1e-12
    own, _ = ref_robust.robust_optimum([(c["x"], c["y"]) for c in clients], 0.1, ref_robust.chi2(0.02))
    np.testing.assert_allclose(x, own, rtol=0, atol=1e-10)  # an independent iteration
    assert lam.sum().item() == pytest.approx(1.0)


def test_the_growing_schedule() -> None:
    """gamma grows, tau shrinks, sigma tau stays, theta = sigma_{r-1}/sigma_r = (1 + mu tau_{r-1})^(-1/2)."""
    algorithm = ScaffPD(ambiguity="afl", tau=0.2, sigma=0.4, mu_x=0.5)
    steps = [algorithm.steps_of(r) for r in range(5)]
    assert steps[0] == (0.2, pytest.approx(0.4), 1.0)
    for (tau, sigma, _), (new_tau, new_sigma, theta) in pairwise(steps):
        assert new_tau < tau and new_sigma > sigma
        assert theta == pytest.approx(sigma / new_sigma) == pytest.approx((1 + 0.5 * tau) ** -0.5)
        assert new_tau * new_sigma == pytest.approx(tau * sigma)


def test_weights_stay_on_the_simplex_under_their_cap() -> None:  # T38
    got = run(ScaffPD(ambiguity="cvar(0.5)", tau=0.2, sigma=0.6, local_steps=3), rounds=8)
    for state in got.states:
        lam = state.lam[0]
        assert lam.sum().item() == pytest.approx(1.0, abs=1e-12)
        assert lam.min() >= 0 and lam.max() <= 1 / 3 + 1e-12


def test_partial_participation_follows_stale_losses() -> None:
    got = run(ScaffPD(ambiguity="chi2(0.2)", tau=0.1, local_steps=3), rounds=8, participation=Uniform(3))
    for before, after in pairwise(got.states):
        assert ((before.losses != after.losses).sum() <= 3).item()


@pytest.mark.parametrize("spec", ["afl", "cvar(0.2)", "chi2(0.01)"])
@pytest.mark.parametrize("kind", [ScaffPD, AgnosticFL], ids=lambda k: k.__name__)
def test_a_cohort_of_weight_0_does_not_move_x_or_stop_the_run(kind: type, spec: str) -> None:
    steps = dict(tau=0.05, sigma=0.5) if kind is ScaffPD else dict(lr=0.05, dual_lr=0.5)
    got = run(kind(ambiguity=spec, local_steps=3, **steps), rounds=40, participation=Uniform(2))
    assert np.isfinite(got.z).all()
    asked = [set(Uniform(2).draw(N, harness.SEED, r).ids.tolist()) for r in range(40)]
    still = 0
    for r in range(1, 40):
        lam = got.states[r - 1].lam[0]  # by what was before the round
        if all(lam[i] == 0 for i in asked[r]):
            still += 1
            np.testing.assert_array_equal(got.z[r], got.z[r - 1])
    assert still > 0 or spec == "chi2(0.01)"


def test_partial_participation_is_unbiased() -> None:
    """The mean over all pairs of clients of what they make of a round is what all make of it together."""
    for algorithm in (
        ScaffPD(ambiguity="average", tau=0.1, local_steps=3),
        AgnosticFL(ambiguity="average", lr=0.1, local_steps=3),
    ):
        whole = run(algorithm, rounds=1).z[0]
        pairs = [(i, j) for i in range(N) for j in range(i)]
        parts = [run(algorithm, rounds=1, participation=harness.Fixed(ids=p)).z[0] for p in pairs]
        if isinstance(algorithm, AgnosticFL):
            np.testing.assert_allclose(np.mean(parts, axis=0), whole, rtol=0, atol=1e-12)
        else:  # the local steps follow c, which differs from pair to pair
            np.testing.assert_allclose(np.mean(parts, axis=0), whole, rtol=0, atol=2e-3)


@dataclasses.dataclass(frozen=True)
class Uneven(ambiguity.Chi2):
    """A chi2 set that starts from unequal weights."""

    def start(self, n: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(1, n + 1).to(like) / (n * (n + 1) / 2)


def test_the_weights_of_a_part_do_not_follow_who_takes_part() -> None:
    """With one local step the mean over all pairs is the step of all by the weights before the round, exactly."""
    algorithm = ScaffPD(ambiguity=Uneven(0.1), tau=0.3, sigma=1.0, local_steps=1)
    pairs = [(i, j) for i in range(N) for j in range(i)]
    ends = [run(algorithm, rounds=1, participation=harness.Fixed(ids=p)) for p in pairs]
    lam = Uneven().start(N, torch.zeros(1, dtype=torch.float64)).numpy()
    want = START - 0.3 * lam @ parts(START)[1]
    np.testing.assert_allclose(np.mean([e.z[0] for e in ends], axis=0), want, rtol=0, atol=1e-12)
    after = np.array([e.states[0].lam[0].numpy() for e in ends])
    assert np.ptp(after, axis=0).max() > 0.05  # those after it do follow them


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_part_of_the_clients_gets_near_the_robust_optimum(seed: int) -> None:
    """By the new weights participants weigh too little: after 50 rounds these are still 0.2 away and more."""
    problem = RobustRegression(10, rho=0.1)
    fed = robust_regression_federation(clients=10, heterogeneity=0.03, seed=seed)
    algorithm = ScaffPD(ambiguity="chi2(0.1)", tau=0.1, sigma=1.0, theta=0.9, local_steps=5)
    z = drive(algorithm, problem, fed, 50, batching=FULL, participation=Uniform(2)).z[-1]
    assert np.linalg.norm(z - problem.optimum(fed)[0].numpy()) < 0.05


def test_weights_that_are_all_zero_stop_x_for_a_round() -> None:
    """q_ffl's may be, where losses fall fast and are extrapolated."""
    fed, problem = robust_regression_federation(scale=3.0), RobustRegression(10)
    algorithm = ScaffPD(ambiguity="q_ffl(1)", tau=0.01, sigma=1.0, theta=0.9, local_steps=5)
    got = drive(algorithm, problem, fed, 60, batching=FULL)
    assert np.isfinite(got.z).all()
    none = [r for r in range(1, 60) if (got.states[r].lam == 0).all()]
    assert none and all((got.z[r] == got.z[r - 1]).all() for r in none)


class Most(ambiguity.Ambiguity):
    """A set of one's own: no client weighs more than a half."""

    def best(self, losses: torch.Tensor) -> torch.Tensor:
        return projections.capped_simplex(0.5)(losses * 1e6, 0.0)

    def psi(self, lam: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(lam[..., :1])

    def prox(self, lam: torch.Tensor, s: torch.Tensor, sigma: Any) -> torch.Tensor:
        return projections.capped_simplex(0.5)(lam + sigma * s, 0.0)


def test_a_set_of_ones_own() -> None:
    mine = run(ScaffPD(ambiguity=Most(), tau=0.1, sigma=0.5, local_steps=2), rounds=20)
    same = run(ScaffPD(ambiguity=f"cvar({2 / N})", tau=0.1, sigma=0.5, local_steps=2), rounds=20)
    np.testing.assert_allclose(mine.z, same.z, rtol=0, atol=1e-12)
    assert isinstance(Most(), fs.Ambiguity)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (3, "must be text such as chi2"),
        (Most, "must be text such as chi2"),
        ("average(3)", "is not a valid call of average"),
        ("cvar(0.2", "is not a valid call of cvar"),
        ("q_ffl(0)", "q = 0 is average"),
        ("worst", "unknown name 'worst'; known are chi2"),
    ],
)
def test_sets_that_are_none(spec: Any, says: str) -> None:
    with pytest.raises(FedsaddleError, match=says):
        ScaffPD(ambiguity=spec)


# ------------------------------------------------------------------------------------------- min-max problems


def robust_saddle(fed: fs.Federation, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """(z, lambda) of min_x max_{y, lambda} sum lambda_i f_i(x, y) - psi(lambda) for quadratics, in NumPy alone.

    z(lambda) solves a linear system; lambda goes a part of the way to its best response until it stays.
    """
    D = {k: v.numpy() for k, v in fed.data.items()}
    lam = np.full(fed.n_clients, 1 / fed.n_clients)
    for _ in range(2000):
        A, B, C, a, b = (np.tensordot(lam, D[k], 1) for k in "ABCab")
        z = np.linalg.solve(np.block([[A, B], [B.T, -C]]), np.concatenate([-a, b]))
        lam = lam + 0.1 * (ref_robust.chi2(rho).response(quadratic_values(D, z)) - lam)
    return z, lam


def quadratic_values(D: dict[str, np.ndarray], z: np.ndarray) -> np.ndarray:
    x, y = z[: D["a"].shape[1]], z[D["a"].shape[1] :]
    quadratic = np.einsum("i,nij,j->n", x, D["A"], x) / 2 - np.einsum("i,nij,j->n", y, D["C"], y) / 2
    return np.asarray(quadratic + np.einsum("i,nij,j->n", x, D["B"], y) + D["a"] @ x - D["b"] @ y)


def test_a_shared_dual_inside_the_weights() -> None:
    """SCAFF-PD and one-step AFL reach the saddle in (x, y, lambda); without corrections many local steps stop aside."""
    fed, problem = quadratic_federation(clients=5, dim_x=4, dim_y=3, heterogeneity=0.5), QuadraticSaddle(4, 3)
    D, (z, lam) = {k: v.numpy() for k, v in fed.data.items()}, robust_saddle(fed, 2.0)
    assert np.ptp(lam) > 0.1
    psi = lambda u: 2.0 / 10 * ((5 * u - 1) ** 2).sum()
    value = lam @ quadratic_values(D, z) - psi(lam)
    rng = np.random.default_rng(0)
    for _ in range(300):  # it is a saddle: (y, lambda) cannot gain, x cannot save
        other, u = (
            z + rng.choice([0.1, 1.0]) * rng.standard_normal(7),
            rng.dirichlet(np.full(5, rng.choice([1.0, 50.0]))),
        )
        assert u @ quadratic_values(D, np.concatenate([z[:4], other[4:]])) - psi(u) < value
        assert lam @ quadratic_values(D, np.concatenate([other[:4], z[4:]])) - psi(lam) > value

    def error(algorithm: fs.Algorithm) -> float:
        got = drive(algorithm, problem, fed, 250, batching=FULL)
        return float(max(np.abs(got.z[-1] - z).max(), np.abs(got.states[-1].lam[0].numpy() - lam).max()))

    steps = dict(ambiguity="chi2(2)", tau=0.1, sigma=0.1, local_steps=10)
    assert error(ScaffPD(**steps)) < 1e-8 and error(ScaffPD(**steps, corrected=False)) > 1e-4
    assert error(AgnosticFL(ambiguity="chi2(2)", lr=0.1, local_steps=1, dual_lr=0.1)) < 1e-8


def test_auc_inside_the_weights_is_the_auc_loss_of_the_worst_mixture() -> None:
    """At the end the weights are the best response, and alpha is that of the mixture by these weights."""
    problem, p = AUC(nn.Linear(FEATURES, 1), p=0.4), 0.4
    got = drive(
        ScaffPD(ambiguity="chi2(0.3)", tau=0.5, sigma=1.0, local_steps=5),
        problem,
        binary(),
        1500,
        batching=FULL,
    )
    z, lam = got.z[-1], got.states[-1].lam[0]
    clients = harness.connect(problem, binary(), batching=FULL)
    cohort, at = clients.cohort(np.arange(N), 0), torch.from_numpy(z).expand(N, -1)
    L, F = cohort.full_loss(at).squeeze(-1), cohort.full_field(at)
    assert (lam @ F).abs().max() < 1e-7 < (F.mean(0)).abs().max()
    torch.testing.assert_close(lam, ambiguity.Chi2(0.3).best(L), rtol=0, atol=1e-7)
    X = np.array([
        np.mean(np.where(c["y"] == 1, p - 1, p) * (c["x"] @ z[:FEATURES] + z[FEATURES])) for c in clients_of(binary())
    ])  # fmt: skip
    assert z[-1] == pytest.approx(lam.numpy() @ X / (p * (1 - p)), abs=1e-7)
    # where the objective is concave in (alpha, lambda), as docs/mathematics.md has it
    assert 2 * ((X - X.mean()) ** 2).sum() / (p * (1 - p)) < 0.3 * N


# ----------------------------------------------------------------------------------------------------- baselines


def test_baselines_are_fedavg_in_their_limits() -> None:  # T37
    plain = run(FedAvg(lr=0.1, local_steps=3)).z
    for algorithm in (
        QFedAvg(lr=0.1, local_steps=3, q=0.0),
        AgnosticFL(lr=0.1, local_steps=3, dual_lr=0.0),
        AgnosticFedAvg(lr=0.1, local_steps=3, dual_lr=0.0),
    ):
        np.testing.assert_allclose(run(algorithm).z, plain, rtol=0, atol=1e-9)
    by_samples = run(FedAvg(lr=0.1, local_steps=3, weights="samples")).z
    np.testing.assert_allclose(
        run(DeltaFL(lr=0.1, local_steps=3, tail=1.0)).z, by_samples, rtol=0, atol=1e-12
    )
    drawn = run(DRFA(lr=0.1, local_steps=3, dual_lr=0.0), rounds=3)
    assert all((s.lam == 1 / N).all() for s in drawn.states)


def test_drfa_without_dual_steps_draws_like_uniform_with_replacement() -> None:
    """Its model is then the mean over the drawn clients, each as often as it was drawn."""
    got = run(DRFA(lr=0.1, local_steps=2, dual_lr=0.0), rounds=1, participation=Uniform(4))
    clients = harness.connect(erm(), binary(), batching=FULL, participation=Uniform(4))
    clients.begin(0)
    draw = clients.sample(4, np.full(N, 1 / N))
    ends = run(FedAvg(lr=0.1, local_steps=2), rounds=1)
    assert draw.counts.sum() == 4 and np.abs(got.z - ends.z).max() > 0
    locals_ = []
    for k in range(N):
        u = START
        for _ in range(2):
            u = u - 0.1 * parts(u)[1][k]
        locals_.append(u)
    want = sum(n * locals_[k] for k, n in zip(draw.ids, draw.counts, strict=True)) / 4
    np.testing.assert_allclose(got.z[0], want, rtol=0, atol=1e-12)


def test_drfa_estimates_losses_by_those_who_answered() -> None:
    """Where a site fails, N over the number of those who answered: what it is where they alone were asked."""

    @dataclasses.dataclass(frozen=True)
    class Failing(Uniform):
        def ask_these(self, ids: Any, seed: int, round: int, draw: int) -> Any:
            out = super().ask_these(ids, seed, round, draw)
            return out._replace(
                answered=out.answered & ((draw == 1) | (out.ids < 4))
            )  # of those asked for losses

    got = run(DRFA(lr=0.1, local_steps=1, dual_lr=0.01), rounds=1, participation=Failing(N))
    clients = harness.connect(erm(), binary(), batching=FULL, participation=Failing(N))
    clients.begin(0)
    clients.sample(N, np.full(N, 1 / N))
    assert clients.sample(N).answered.sum() == 4
    x = got.z[0]  # the only local step is the snapshot
    v = np.where(np.arange(N) < 4, N / 4 * parts(x)[0], 0.0)
    want = ref_robust.project_simplex(1 / N + 0.01 * v)
    np.testing.assert_allclose(got.states[0].lam[0], want, rtol=0, atol=1e-12)


def test_robust_methods_lower_the_largest_loss() -> None:
    def largest(algorithm: fs.Algorithm) -> float:
        return float(parts(run(algorithm, rounds=150).z[-1])[0].max())

    average = largest(FedAvg(lr=0.1, local_steps=3))
    for algorithm in (
        ScaffPD(ambiguity="chi2(0.01)", tau=0.3, sigma=5.0, local_steps=3),
        AgnosticFL(lr=0.1, local_steps=3, dual_lr=0.2),
        AgnosticFedAvg(lr=0.1, local_steps=3, dual_lr=1.0),
        QFedAvg(lr=0.3, local_steps=3, q=3.0),
        DeltaFL(lr=0.1, local_steps=3, tail=0.3),
    ):
        assert largest(algorithm) < average - 0.01, type(algorithm).__name__


def test_q_fedavg_stops_where_the_gradient_of_its_objective_vanishes() -> None:
    """One full gradient a round: the fixed point of sum F_i^(q+1) / (q+1), where sum F_i^q g_i = 0."""
    L, G = parts(run(QFedAvg(lr=0.5, local_steps=1, q=2.0), rounds=3000).z[-1])
    assert np.abs((L**2) @ G).max() < 1e-6 < np.abs(G.mean(0)).max()


def test_afl_with_one_gradient_reaches_the_robust_optimum() -> None:
    """With the chi2 penalty its fixed point is that of the robust objective; with many local steps it stops at a bias."""
    fed, problem = robust_regression_federation(heterogeneity=0.3), RobustRegression(10, rho=0.1)
    best = problem.optimum(fed)[0].numpy()

    def error(local_steps: int) -> float:  # after as many steps in all
        algorithm = AgnosticFL(ambiguity="chi2(0.1)", lr=0.05, local_steps=local_steps, dual_lr=0.2)
        return float(
            np.abs(drive(algorithm, problem, fed, 1500 // local_steps, batching=FULL).z[-1] - best).max()
        )

    assert error(1) < 1e-8 and error(10) > 1e-4


def test_drfa_hovers_around_the_saddle_of_the_worst_mixture() -> None:
    """It draws clients by their weights, so its iterates scatter; their mean over many rounds is the saddle."""
    fed, problem = robust_regression_federation(heterogeneity=0.3), RobustRegression(10)
    pairs = [(np.asarray(c["x"]), np.asarray(c["y"])) for c in clients_of(fed)]
    best, weights = ref_robust.robust_optimum(pairs, problem.mu, ref_robust.afl_set())
    got = drive(DRFA(lr=0.05, local_steps=1, dual_lr=0.05), problem, fed, 700, batching=FULL)
    lam = np.mean([s.lam[0].numpy() for s in got.states[300:]], axis=0)
    average = drive(FedAvg(lr=0.1, local_steps=1), problem, fed, 300, batching=FULL).z[-1]
    assert np.abs(got.z[300:].mean(0) - best).max() < 0.01 < 0.1 < np.abs(average - best).max()
    assert np.abs(lam - weights).max() < 0.05


def test_delta_fl_ends_where_the_tails_own_loss_is_least() -> None:
    """Two clients of six have so much noise that theirs are the largest losses; only these are fitted, by their samples."""
    rng = np.random.default_rng(0)
    made = []
    for k in range(6):
        x = rng.standard_normal((10 + 5 * k, FEATURES))
        made.append((x, x @ np.full(FEATURES, 0.5) + (5.0 if k > 3 else 0.5) * rng.standard_normal(len(x))))
    rows, y = (np.concatenate([part[i] for part in made[4:]]) for i in (0, 1))
    best = np.linalg.lstsq(np.c_[rows, np.ones(len(rows))], y)[0]
    fed = harness.federation(*({"x": x, "y": t} for x, t in made))
    problem = fs.ERM(nn.Linear(FEATURES, 1), loss="squared")

    def error(tail: float) -> float:
        got = drive(DeltaFL(lr=0.2, local_steps=1, tail=tail), problem, fed, 300, batching=FULL)
        return float(np.abs(got.z[-1] - best).max())

    assert error(0.3) < 1e-9 and error(1.0) > 0.1


def test_agnostic_fedavg_stops_at_a_saddle_of_the_worst_mixture() -> None:
    """One full gradient: clients with weight have the largest loss, their gradients cancel; many local steps stop aside."""
    fed, problem = robust_regression_federation(heterogeneity=0.3), RobustRegression(10)
    pairs = [(np.asarray(c["x"]), np.asarray(c["y"])) for c in clients_of(fed)]
    best, _ = ref_robust.robust_optimum(pairs, problem.mu, ref_robust.afl_set())
    loss, gradient = ref_robust.regression_callbacks(pairs, problem.mu)

    def ends(local_steps: int) -> tuple[np.ndarray, np.ndarray]:  # after as many steps in all
        algorithm = AgnosticFedAvg(lr=0.05, local_steps=local_steps, dual_lr=0.5)
        got = drive(algorithm, problem, fed, 1500 // local_steps, batching=FULL)
        return got.z[-1], got.states[-1].lam[0].numpy()

    x, lam = ends(1)
    L = np.array([loss(i, x) for i in range(5)])
    assert np.abs(x - best).max() < 1e-6 and lam.sum() == pytest.approx(1.0)
    assert lam @ (L.max() - L) < 1e-6 < L.max() - L.min()  # complementarity, and it is not void
    assert np.abs(sum(lam[i] * gradient(i, x) for i in range(5))).max() < 1e-6
    assert np.abs(ends(10)[0] - best).max() > 1e-4


def test_a_weight_that_was_rounded_away_comes_back() -> None:
    algorithm = AgnosticFedAvg(dual_lr=50.0)
    lam = algorithm.dual_step(torch.full((1, 2), 0.5), torch.tensor([[0.0, 9.0]]))
    assert lam[0, 0] == 0.0
    for _ in range(3):
        lam = algorithm.dual_step(lam, torch.tensor([[9.0, 0.0]]))
    assert lam[0, 0] > 0.99


def test_delta_fl_says_that_it_counts_by_samples() -> None:
    assert DeltaFL().counting == "samples" and FedAvg().counting == "clients"


def test_delta_fl_trains_the_tail_alone() -> None:
    got = run(DeltaFL(lr=0.1, local_steps=3, tail=0.3), rounds=1)
    traffic = got.clients.traffic.by_phase
    assert traffic["full_losses"].up == N
    assert 0 < traffic["local_descent_ascent"].up < N * len(START)


def test_the_weighted_quantile() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1, 5, 4])
    assert quantile(values, weights, 0.0) == 1.0
    assert quantile(values, weights, 0.5) == 1.0 and quantile(values, weights, 0.51) == 2.0
    assert quantile(values, weights, 0.9) == 2.0 and quantile(values, weights, 1.0) == 3.0


def test_auc_and_robustness_together() -> None:
    """A min-max objective inside the robust one: the saddle field is corrected, the weights follow the local objectives."""
    problem = AUC(nn.Linear(FEATURES, 1))
    both = drive(
        ScaffPD(ambiguity="chi2(0.05)", tau=0.2, local_steps=4), problem, binary(), 60, batching=FULL
    )
    assert np.isfinite(both.z).all()
    assert both.states[-1].lam.max() > 1 / N + 1e-3


def test_scaffold_is_not_needed_for_exact_variates() -> None:
    """With fresh exact variates SCAFF-PD has no memory to go stale: one client alone is plain gradient descent."""
    alone = harness.federation(clients_of(binary())[0])
    one = drive(
        ScaffPD(ambiguity="average", tau=0.3, local_steps=3), erm(), alone, 4, start=START, batching=FULL
    ).z
    other = drive(SCAFFOLD(lr=0.1, local_steps=3), erm(), alone, 4, start=START, batching=FULL).z
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_methods_that_choose_their_clients_are_not_stacked() -> None:
    from fedsaddle.replicas import stackable

    runs = [fs.train(erm(), DRFA(lr=lr), binary(), rounds=1, participation=Full()) for lr in (0.1, 0.2)]
    assert stackable(runs) == "who takes part in a round of DRFA depends on how it goes"


@pytest.mark.parametrize(
    "make",
    [
        lambda lr: AgnosticFL(lr=lr, dual_lr=0.1),
        lambda lr: AgnosticFL(lr=lr, dual_lr=0.1, ambiguity="chi2(0.1)"),
        lambda lr: AgnosticFL(lr=lr, dual_lr=0.1, ambiguity="cvar(0.4)"),
        lambda lr: ScaffPD(tau=lr),
        lambda lr: DRFA(lr=lr, dual_lr=0.1),
    ],
)
def test_losses_that_overflow_are_a_divergence(make: Any) -> None:
    """Before the iterate does; in the run itself, and with another one beside it that goes on."""
    sites = robust_regression_federation(clients=5, dim=4, samples=10)
    runs = [fs.train(RobustRegression(4, 0.1), make(lr), sites, rounds=40) for lr in (0.01, 10.0, 1e3)]
    run_all(runs)
    assert runs[0].metrics["round"] == 40
    for run in runs[1:]:
        with pytest.raises(Diverged, match=r"diverged.*lower the step size"):
            _ = run.metrics
