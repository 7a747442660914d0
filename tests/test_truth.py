"""Facts about where the methods end, on problems whose solution is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsaddle.algorithms import (
    CODA,
    CODASCA,
    NPA,
    SCAFFOLD,
    AmplifiedFedAvg,
    AmplifiedSCAFFOLD,
    CODAPlus,
    CyCpFedAvg,
    CyCpMinimax,
    FedAvg,
    FedProx,
    FedSGDA,
    LocalSGDA,
    PublishedCODASCA,
    RSMinimax,
)
from fedsaddle.participation import Cyclic, Uniform
from fedsaddle.problems import AUC, ERM, QuadraticSaddle, quadratic_federation
from fedsaddle.testing import reordered
from tests import harness
from tests.harness import CASES, FULL, TWINS, clients_of, connect, drive, federation

TEN_STEPS = dict(lr=0.05, local_steps=10)


@pytest.mark.parametrize(
    "algorithm", [CODASCA(**TEN_STEPS), SCAFFOLD(**TEN_STEPS)], ids=["codasca", "scaffold"]
)
def test_control_variates_reach_the_saddle(algorithm):  # T17
    harness.corrected(algorithm)()


@pytest.mark.parametrize(
    "algorithm", [CODAPlus(**TEN_STEPS), LocalSGDA(**TEN_STEPS)], ids=["coda_plus", "local_sgda"]
)
def test_local_steps_without_them_stop_at_a_bias(algorithm):  # T17
    assert harness.distance_to_saddle(algorithm) > 1e-3


def test_one_local_step_has_no_bias():
    assert harness.distance_to_saddle(NPA(lr=0.2), rounds=200) < 1e-12


def test_stages_with_a_prox_centre_reach_the_saddle():
    """A prox term whose centre follows the stages' outputs is a proximal point method: it does not move the solution."""
    staged = CODASCA(
        **TEN_STEPS, gamma=0.1, stage_rounds=10, lr_decay=1.0, output="last", reset_variates=False
    )
    assert harness.distance_to_saddle(staged, rounds=150) < 1e-12


@pytest.mark.parametrize("stages", [{}, dict(gamma=0.1, stage_rounds=10, lr_decay=1.0)], ids=["one", "many"])
def test_the_public_codes_form_of_codasca_reaches_the_saddle_but_for_its_clipping(stages):
    plain = PublishedCODASCA(**TEN_STEPS, **stages, weight_decay=0.0, clip=1e9)
    assert harness.distance_to_saddle(plain, rounds=150 if stages else 60) < 1e-10
    assert (
        harness.distance_to_saddle(replace(plain, clip=1.0)) > 0.1
    )  # a client's own gradient does not vanish there


def test_some_clients_a_round_reach_the_saddle_too():
    fed, problem = quadratic_federation(4, 4, 3, seed=1), QuadraticSaddle(4, 3)
    run = drive(SCAFFOLD(lr=0.05, local_steps=5), problem, fed, 150, batching=FULL, participation=Uniform(2))
    np.testing.assert_allclose(run.z[-1:], problem.saddle(fed), rtol=0, atol=1e-12)


@pytest.mark.parametrize("participation", [harness.Full(), Uniform(3)], ids=["all", "some"])
def test_variates_weighted_by_samples_reach_the_saddle_of_all_samples(participation):
    """The mean of some participants by their samples is a biased estimate; variates take the bias out."""
    harness.corrected_by_samples(participation)()


def test_scaffold_by_samples_reaches_the_saddle_of_all_samples():
    weighted = SCAFFOLD(lr=0.15, local_steps=3, weights="samples")
    assert harness.distance_by_samples(weighted, Uniform(3)) < 1e-9
    assert harness.distance_by_samples(replace(weighted, weights="clients")) > 1e-2


def test_coda_by_samples_reaches_the_best_pairwise_scorer_of_the_pool():
    stages = dict(gamma=0.05, stage_rounds=60, lr_decay=1.0, output="last", dual_samples=1000)
    algorithm, fed = CODA(lr=0.2, local_steps=1, weights="samples", **stages), harness.binary()
    run = drive(algorithm, AUC(harness._linear(), p="pooled"), fed, 299, batching=FULL)
    found = run.z[-1][: harness.FEATURES]
    assert np.abs(found - harness.best_pairwise(fed, "samples")).max() < 1e-3
    assert np.abs(found - harness.best_pairwise(fed)).max() > 1e-2


def test_local_steps_weighted_by_samples_without_variates():
    one_step = CODAPlus(lr=0.3, local_steps=1, weights="samples")
    assert harness.distance_by_samples(one_step) < 1e-9
    assert harness.distance_by_samples(one_step, Uniform(3)) > 1e-2
    assert harness.distance_by_samples(replace(one_step, local_steps=3)) > 1e-2
    assert harness.distance_by_samples(replace(one_step, weights="clients")) > 1e-2


def test_known_saddle_is_the_references():
    fed = quadratic_federation(5, 4, 3, seed=2)
    clients = [tuple(c[f][0] for f in QuadraticSaddle.fields) for c in clients_of(fed)]
    expected = harness.refproblems.quadratic_saddle(clients)
    np.testing.assert_allclose(QuadraticSaddle(4, 3).saddle(fed)[0], expected, rtol=0, atol=1e-12)


def test_known_saddle_weighs_clients_equally():
    fed, problem = TWINS["quadratic"].data(), QuadraticSaddle(3, 2)
    field = harness.connect(problem, fed).cohort(np.arange(fed.n_clients), 0).full_field(problem.saddle(fed))
    assert field.abs().max() > 0.1  # each client for itself is elsewhere
    np.testing.assert_allclose(field.mean(0), np.zeros(5), rtol=0, atol=1e-12)


def test_auc_is_the_best_pairwise_scorer():
    harness.auc_reaches_best_pairwise()


def test_auc_by_samples_is_the_best_pairwise_scorer_of_the_pool():
    harness.auc_reaches_best_pairwise(weights="samples", p="pooled")


def test_auc_without_correction_is_not():
    run = drive(
        CODAPlus(lr=0.2, local_steps=10), AUC(harness._linear()), harness.binary(), 100, batching=FULL
    )
    assert np.abs(run.z[-1][:3] - harness.best_pairwise(harness.binary())).max() > 1e-3


@pytest.mark.parametrize(("steps", "lr", "near"), [(1, 0.2, True), (10, 0.02, False)])
def test_coda_reaches_the_best_pairwise_scorer_with_one_step(steps, lr, near):
    """Its dual variable starts every stage anew, near its optimum; local steps without variates stop at a bias."""
    stages = dict(gamma=0.05, stage_rounds=60, lr_decay=1.0, output="last", dual_samples=1000)
    algorithm = CODA(lr=lr, local_steps=steps, **stages)
    run = drive(algorithm, AUC(harness._linear()), harness.binary(), 299, batching=FULL)
    error = np.abs(run.z[-1][: harness.FEATURES] - harness.best_pairwise(harness.binary())).max()
    assert error < 1e-3 if near else error > 1e-2


def _least_squares(algorithm, rounds=600, weights="clients", **options):
    """How far from the least-squares solution an algorithm ends, where clients or samples weigh equally."""
    fed = harness.regression()
    clients = clients_of(fed)
    x = np.concatenate([np.c_[c["x"], np.ones(len(c["y"]))] for c in clients])
    y = np.concatenate([c["y"] for c in clients])
    w = np.concatenate(
        [np.full(len(c["y"]), 1 / len(c["y"]) if weights == "clients" else 1) for c in clients]
    )
    best = np.linalg.solve((x.T * w) @ x, x.T @ (w * y))
    problem = ERM(harness._linear(), loss="squared")
    return np.abs(drive(algorithm, problem, fed, rounds, batching=FULL, **options).z[-1] - best).max()


@pytest.mark.parametrize("weights", ["clients", "samples"])
def test_fedavg_of_least_squares_solves_the_weighted_normal_equations(weights):
    """One full-batch step a round is gradient descent, on the loss that weights= says."""
    assert _least_squares(FedAvg(lr=0.5, local_steps=1, weights=weights), weights=weights) < 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda steps, lr: FedProx(lr=lr, local_steps=steps, mu=0.1),
        lambda steps, lr: CyCpFedAvg(lr=lr, local_steps=steps),
        lambda steps, lr: AmplifiedFedAvg(lr=lr, local_steps=steps, amplification=1.3, period=2),
    ],
    ids=["fedprox", "cycp_fedavg", "amplified_fedavg"],
)
def test_averaging_reaches_the_optimum_with_one_step_and_a_bias_with_more(make):
    assert _least_squares(make(1, 0.3)) < 1e-8
    assert _least_squares(make(10, 0.1)) > 1e-3


def test_amplified_averaging_under_cyclic_participation_keeps_its_bias():
    cyclic = dict(participation=Cyclic(3), rounds=900)
    assert (
        _least_squares(AmplifiedFedAvg(lr=0.05, local_steps=5, amplification=1.2, period=3), **cyclic) > 1e-3
    )
    assert (
        _least_squares(AmplifiedSCAFFOLD(lr=0.05, local_steps=5, amplification=1.2, period=3), **cyclic)
        < 1e-8
    )


@pytest.mark.parametrize("algorithm", [RSMinimax, CyCpMinimax])
def test_stages_of_visits_reach_the_saddle_with_one_step(algorithm):
    assert harness.distance_to_saddle(algorithm(lr=0.2, local_steps=1), rounds=300) < 1e-10
    assert harness.distance_to_saddle(algorithm(**TEN_STEPS)) > 1e-3


# --------------------------------------------------------------------------- relations that hold for every algorithm


def full_batch(name, fed, **options):
    """A case with all clients, full batches and other data."""
    case = CASES[name]
    twin, algorithm = TWINS[case.twin], case.algorithm
    if isinstance(algorithm, CODA):
        algorithm = replace(algorithm, dual_samples=1000)
    return drive(algorithm, twin.problem(), fed, 12, start=twin.z0(), batching=FULL, **options).z


def copies(name, n):
    """A client with both classes, n times."""
    return reordered(TWINS[CASES[name].twin].data(), [2] * n)


EVERYBODY = [  # (passive scores are drawn for each participant, so pairs are left out)
    n for n, c in CASES.items() if c.participation == harness.Full() and not c.algorithm.pairwise
]


@pytest.mark.parametrize("name", EVERYBODY)
def test_identical_clients_equal_one_client(name):
    np.testing.assert_allclose(
        full_batch(name, copies(name, 4)), full_batch(name, copies(name, 1)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", EVERYBODY)
def test_the_order_of_clients_does_not_matter(name):
    fed = TWINS[CASES[name].twin].data()
    shuffled = reordered(fed, np.random.default_rng(0).permutation(fed.n_clients))
    np.testing.assert_allclose(full_batch(name, shuffled), full_batch(name, fed), rtol=0, atol=1e-12)


def test_the_order_of_a_clients_samples_does_not_matter():
    clients = clients_of(harness.binary())
    turned = [{k: v[::-1].copy() for k, v in c.items()} for c in clients]
    a, b = (full_batch("codasca", federation(*own)) for own in (turned, clients))
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_a_repeated_sample_is_a_weight_of_two():
    """All local samples twice: the same local mean, hence the same run."""
    clients = clients_of(harness.binary())
    twice = [{k: np.concatenate([v, v]) for k, v in c.items()} for c in clients]
    a, b = (full_batch("coda_plus", federation(*own)) for own in (twice, clients))
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "estimator, of_all", [("mb", False), ("storm", False), ("spider", True), ("svrg", True)]
)
def test_where_estimators_of_fedsgda_end_under_groups_of_unequal_sizes(estimator, of_all):
    """Where a fresh start asks all clients it is their mean field that vanishes, else that of the groups."""
    algorithm = FedSGDA(lr=0.2, local_steps=1, estimator=estimator, decay=0.4, large_cohort=4)
    problem, fed = QuadraticSaddle(), quadratic_federation(4, heterogeneity=1.0)
    run = drive(algorithm, problem, fed, 600, participation=Cyclic([[0], [1, 2, 3]]), batching=harness.FULL)
    z = torch.as_tensor(run.z[-1:])
    own = connect(problem, fed).cohort(np.arange(4), 0).full_field(z)
    all_clients, of_groups = own.mean(0).norm(), ((own[0] + own[1:].mean(0)) / 2).norm()
    ends, other = (all_clients, of_groups) if of_all else (of_groups, all_clients)
    assert ends < 0.1 * other
    assert algorithm.of_all == of_all
