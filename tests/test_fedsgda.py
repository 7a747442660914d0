"""FedSGDA: the spec's relations T7-T12, the closed forms of its synthetic problem (T2), what its estimators are."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedsaddle as fs
from fedsaddle.algorithms import fedsgda
from fedsaddle.algorithms.fedsgda import Estimate, Estimator, FedSGDA
from fedsaddle.errors import FedsaddleError
from fedsaddle.metrics import Split
from fedsaddle.replicas import run_all
from tests import harness
from tests.harness import FULL, TWINS, Batching, clients_of, connect, drive, federation
from tests.reference import synthetic_pl

STEPS = dict(lr=0.1, lr_dual=0.2, local_steps=4)
SOME = fs.Uniform(3)


def on_pl(algorithm, rounds=12, **options):
    twin = TWINS["nonconvex_pl"]
    return drive(algorithm, twin.problem(), twin.data(), rounds, start=twin.z0(), **options)


def mean_field(twin, z):
    engine = connect(twin.problem(), twin.data())
    return engine.cohort(np.arange(engine.n_clients), 0).full_field(torch.as_tensor(z)[None]).mean(0)


@pytest.mark.parametrize("estimator", ["storm", "averaged"])
def test_momentum_one_is_the_minibatch_estimate(estimator):  # T7, bit for bit
    full = on_pl(FedSGDA(**STEPS, estimator=estimator, decay=0.0, momentum=1.0), participation=SOME)
    assert (full.z == on_pl(FedSGDA(**STEPS, estimator="mb"), participation=SOME).z).all()
    half = on_pl(FedSGDA(**STEPS, estimator=estimator, decay=0.0, momentum=0.5), participation=SOME)
    assert np.abs(half.z - full.z).max() > 1e-3


@pytest.mark.parametrize("estimator", ["mb", "storm", "spider", "svrg"])
def test_with_all_clients_the_estimate_is_the_gradient(estimator):  # T8
    algorithm = FedSGDA(**STEPS, estimator=estimator, decay=0.0, momentum=0.3, period=5)
    run, twin = on_pl(algorithm), TWINS["nonconvex_pl"]
    starts = [twin.z0(), *run.z[:-1]]
    for z, state in zip(starts, run.states, strict=True):
        np.testing.assert_allclose(state.estimate.e[0], mean_field(twin, z), rtol=0, atol=1e-14)
    np.testing.assert_allclose(run.z, on_pl(FedSGDA(**STEPS, estimator="mb")).z, rtol=0, atol=1e-13)


@pytest.mark.parametrize("estimator", fedsgda.ESTIMATORS)
def test_one_local_step_goes_along_the_estimate(estimator):  # T9
    algorithm = FedSGDA(lr=0.1, lr_dual=0.2, local_steps=1, estimator=estimator, period=4)
    step = torch.tensor([[0.1, 0.1, 0.2, 0.2]], dtype=torch.float64)
    for batching in (Batching(1), Batching(4), FULL):
        run = on_pl(algorithm, participation=SOME, batching=batching)
        z = torch.as_tensor(TWINS["nonconvex_pl"].z0())[None]
        for r, state in enumerate(run.states):
            slower = (r + 1) ** (1 / 3) if estimator in ("storm", "averaged") else 1.0
            torch.testing.assert_close(state.z, z - step / slower * state.estimate.e, rtol=0, atol=1e-14)
            z = state.z


def test_spider_that_always_starts_afresh_is_the_minibatch_estimate():  # T10
    always = FedSGDA(**STEPS, estimator="spider", period=1, large_cohort=3)
    assert (
        on_pl(always, participation=SOME).z == on_pl(FedSGDA(**STEPS, estimator="mb"), participation=SOME).z
    ).all()
    larger = on_pl(FedSGDA(**STEPS, estimator="spider", period=1, large_cohort=5), participation=SOME)
    assert np.abs(larger.z - on_pl(FedSGDA(**STEPS, estimator="mb"), participation=SOME).z).max() > 1e-3


def test_storm_without_momentum_is_spider_that_never_starts_afresh():  # T10
    storm = FedSGDA(**STEPS, decay=0.0, momentum=0.0)
    spider = FedSGDA(**STEPS, estimator="spider", period=None, large_cohort=3)
    np.testing.assert_allclose(
        on_pl(storm, participation=SOME).z, on_pl(spider, participation=SOME).z, rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("estimator", ["mb", "storm", "spider", "svrg"])
def test_equal_clients_and_full_batches_are_central_descent_ascent(estimator):  # T11
    twin = TWINS["nonconvex_pl"]
    one = clients_of(twin.data())[0]
    fed, problem = federation(one, one, one), twin.problem()
    algorithm = FedSGDA(**STEPS, estimator=estimator, decay=0.0, momentum=0.4)
    run = drive(algorithm, problem, fed, 6, start=twin.z0(), participation=fs.Uniform(2), batching=FULL)
    z, central = torch.as_tensor(twin.z0())[None], connect(problem, federation(one))
    lr = torch.tensor([[0.1, 0.1, 0.2, 0.2]], dtype=torch.float64)
    for after in run.z:
        for _ in range(4):
            z = z - lr * central.cohort(np.arange(1), 0).full_field(z)
        np.testing.assert_allclose(after, z[0], rtol=0, atol=1e-13)


def test_storm_goes_on_where_the_minibatch_estimate_stops():  # T12
    """Same cohort and steps that fall alike: the variance of MB's estimate keeps it up, STORM's shrinks."""
    fed = fs.nonconvex_pl_federation(clients=60, samples=10, dim=5, seed=3)
    steps = dict(lr=0.05, lr_dual=0.2, local_steps=5)
    ends = {}
    for name, algorithm in {
        "mb": FedSGDA(**steps, estimator="mb"),
        "storm": FedSGDA(**steps, decay=1 / 3, momentum=1.0),
    }.items():
        runs = [
            fs.train(fs.NonconvexPL(5), algorithm, fed, rounds=800, participation=fs.Uniform(3), batch_size=5, seed=s,
                     eval_every=10)
            for s in range(3)
        ]  # fmt: skip
        run_all(runs)
        curves = np.array([[r["grad_phi"] ** 2 for r in run.records if "grad_phi" in r] for run in runs])
        ends[name] = curves[:, -20:].mean(), curves[:, 20:40].mean()
    assert ends["mb"][0] > 0.5 * ends["mb"][1]  # a plateau
    assert ends["storm"][0] < 0.5 * ends["storm"][1]  # still falling
    assert ends["storm"][0] < 0.3 * ends["mb"][0]


def test_it_reaches_the_saddle_with_many_local_steps():
    """The correction removes the bias of local steps, as control variates do, and without client memory."""
    for estimator in fedsgda.ESTIMATORS:
        algorithm = FedSGDA(lr=0.05, local_steps=10, estimator=estimator, decay=0.0, momentum=0.5)
        rounds = 200 if estimator == "averaged" else 60
        assert harness.distance_to_saddle(algorithm, rounds) < 1e-9, estimator


def test_spider_reaches_the_saddle_with_some_clients():
    fed, problem = fs.quadratic_federation(6, 4, 3, seed=1), fs.QuadraticSaddle(4, 3)
    algorithm = FedSGDA(lr=0.02, local_steps=5, estimator="spider", period=8, large_cohort=6)
    run = drive(algorithm, problem, fed, 400, batching=FULL, participation=fs.Uniform(2))
    assert np.abs(run.z[-1:] - problem.saddle(fed).numpy()).max() < 1e-6


def test_phases_draw_their_clients_independently():
    algorithm, asked = FedSGDA(**STEPS), []
    on_pl(
        algorithm,
        20,
        participation=fs.Uniform(2),
        after=lambda s, clients: asked.append(clients._asked) and None,
    )
    assert all(len(phases) == 2 and all(len(ids) == 2 for ids in phases) for phases in asked)
    assert any((a != b).any() for a, b in asked) and any(len(set(a) & set(b)) for a, b in asked)


def test_a_large_cohort_is_the_square_of_a_rounds_or_everybody():
    for participants, large in ((2, 4), (3, 6)):
        asked = []
        on_pl(
            FedSGDA(**STEPS, estimator="spider", period=3), 4, participation=fs.Uniform(participants),
            after=lambda s, clients, asked=asked: asked.append([len(ids) for ids in clients._asked]) and None,
        )  # fmt: skip
        assert [phase_a for phase_a, _ in asked] == [large, participants, participants, large]
        assert [phase_b for _, phase_b in asked] == [participants] * 4


class Halved(Estimator):
    """An estimator of one's own."""

    def update(self, old, z, F, F_point, alpha):
        return Estimate((old.e + F) / 2, z, old.anchor)


def test_an_estimator_of_ones_own():
    run = on_pl(FedSGDA(**STEPS, estimator=Halved(), decay=0.0))
    expected = mean_field(TWINS["nonconvex_pl"], TWINS["nonconvex_pl"].z0()) / 2
    np.testing.assert_allclose(run.states[0].estimate.e[0], expected, rtol=0, atol=1e-15)


def test_bad_hyper_parameters_are_refused():
    for bad, message in (
        (dict(estimator="adam"), "estimator must be one of mb, storm"),
        (dict(momentum=-1.0), "momentum must be >= 0"),
        (dict(decay=-0.5), "decay must be >= 0"),
        (dict(period=0), "period must be > 0"),
        (dict(lr_dual=0.0), "lr_dual must be > 0"),
    ):
        with pytest.raises(FedsaddleError, match=message):
            FedSGDA(**bad)


# ------------------------------------------------------------------------------- T2: the synthetic problem


@pytest.fixture(scope="module")
def synthetic():
    twin = TWINS["nonconvex_pl"]
    problem, fed = twin.problem(), twin.data()
    return problem, Split(fed, torch.device("cpu"), torch.float64), clients_of(fed)


def test_closed_forms_are_those_of_a_maximised_dual(synthetic):  # T2
    problem, split, clients = synthetic
    samples = [(c["a"], c["b"], c["c"]) for c in clients]
    x = np.array([0.3, -0.7])

    def best(x):
        found = minimize(
            lambda y: -synthetic_pl.value(x, y, samples, nu=0.8, mu=1.5),
            np.zeros(2),
            jac=lambda y: -synthetic_pl.gradient(x, y, samples, nu=0.8, mu=1.5)[1],
            options={"gtol": 1e-12},
        )
        return found.x, -found.fun

    m = problem.moments(split)
    phi, gradient = problem.primal(torch.as_tensor(x), split, m)
    y, value = best(x)
    np.testing.assert_allclose(problem.best_dual(torch.as_tensor(x), m), y, rtol=0, atol=1e-9)
    assert phi.item() == pytest.approx(value, abs=1e-12)
    for i in range(2):
        step = np.eye(2)[i] * 1e-5
        slope = (best(x + step)[1] - best(x - step)[1]) / 2e-5
        assert gradient[i].item() == pytest.approx(slope, abs=1e-8)


def test_written_out_field_is_the_derivative(synthetic):
    problem, split, _ = synthetic
    z = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = next(split.pieces())
    batch = type(batch)({k: v.expand(3, *v.shape[1:]) for k, v in batch.data.items()}, batch.w.expand(3, -1))
    torch.testing.assert_close(problem.field(z, batch), fs.Problem.field(problem, z, batch))


def test_generated_data_has_the_stated_variances():
    fed = fs.nonconvex_pl_federation(clients=400, samples=30, dim=10, seed=1)
    triples = torch.cat([fed.data[k] for k in "abc"], dim=-1).double().view(400, 30, 30)
    within, between = triples.var(1).mean().item(), triples.mean(1).var(0).mean().item()
    assert within == pytest.approx(0.1, rel=0.02)
    assert between == pytest.approx(0.5 + 0.1 / 30, rel=0.03)
    again = fs.nonconvex_pl_federation(clients=400, samples=30, dim=10, seed=1)
    assert all(torch.equal(fed.data[k], again.data[k]) for k in "abc")
