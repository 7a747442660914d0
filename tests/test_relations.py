"""The spec's relations: T1 (AUC identities), T13-T19 (CODA family), T20-T22 and
T26 (cyclic participation), T37 (limit cases of FedProx and SCAFFOLD)."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from fedsaddle.algorithms import (
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
    LocalSGDA,
    RSMinimax,
)
from fedsaddle.cohort import Batching
from fedsaddle.participation import Cyclic
from fedsaddle.problems import AUC, ERM, QuadraticSaddle, quadratic_federation
from tests import harness
from tests.harness import FULL, TWINS, clients_of, connect, drive, federation
from tests.reference import auc_metric

BATCH = Batching(4)


def on_auc(algorithm, rounds=12, **options):
    twin = TWINS["auc"]
    return drive(algorithm, twin.problem(), twin.data(), rounds, start=twin.z0(), **options)


def on_quadratic(algorithm, rounds=12, **options):
    twin = TWINS["quadratic"]
    start = twin.z0()
    return drive(
        algorithm, options.pop("problem", twin.problem()), twin.data(), rounds, start=start, **options
    )


def same(a, b, atol=1e-12):
    np.testing.assert_allclose(a.z, b.z, rtol=0, atol=atol)


def different(a, b):
    assert np.abs(a.z - b.z).max() > 1e-3


# ------------------------------------------------------------------------------------------------- T1: AUC


def scores_as_data(seed=0, sizes=(5, 8, 4)):
    """Clients whose one feature is the score itself; with w = 1 and bias = 0 the model returns it."""
    rng = np.random.default_rng([21, seed])
    clients = []
    for n in sizes:
        y = (rng.random(n) < 0.4).astype(np.int64)
        y[:2] = (1, 0)
        clients.append({"x": rng.normal(size=(n, 1)) + y[:, None], "y": y})
    return federation(*clients)


def mixture(fed):
    """Scores, labels and weights of the mixture in which clients weigh equally."""
    clients = clients_of(fed)
    h = np.concatenate([c["x"][:, 0] for c in clients])
    y = np.concatenate([c["y"] for c in clients])
    w = np.concatenate([np.full(len(c["y"]), 1 / len(c["y"]) / len(clients)) for c in clients])
    return h, y, w


def objective(engine, a, b, dual):
    z = torch.tensor([[1.0, 0.0, a, b, dual]], dtype=torch.float64)
    return engine.cohort(np.arange(engine.n_clients), 0).full_loss(z).mean().item()


@pytest.mark.parametrize("seed", range(3))
def test_auc_value_is_the_pairwise_square_loss(seed):
    fed = scores_as_data(seed)
    h, y, w = mixture(fed)
    pos, neg = y == 1, y != 1
    p = w[pos].sum()
    mean = lambda mask: (w * h)[mask].sum() / w[mask].sum()
    pairs = [(w[i] * w[j], (1 - h[i] + h[j]) ** 2) for i in np.flatnonzero(pos) for j in np.flatnonzero(neg)]
    pairwise = sum(u * v for u, v in pairs) / sum(u for u, _ in pairs)

    engine = connect(AUC(torch.nn.Linear(1, 1)), fed)
    assert engine.problem.p == pytest.approx(p, abs=1e-15)
    a, b, alpha = mean(pos), mean(neg), mean(neg) - mean(pos)
    value = objective(engine, a, b, alpha)
    assert value == pytest.approx(p * (1 - p) * (pairwise - 1), abs=1e-13)
    for step in (-0.1, 0.1):  # a saddle: lower in alpha, higher in a and b
        assert objective(engine, a, b, alpha + step) < value
        assert objective(engine, a + step, b, alpha) > value
        assert objective(engine, a, b + step, alpha) > value

    margin = connect(AUC(torch.nn.Linear(1, 1), dual="margin"), fed)
    for u, v, dual in ((a, b, alpha), (0.3, -0.7, 1.9)):
        expected = objective(engine, u, v, dual) + p * (1 - p)
        assert objective(margin, u, v, 1 + dual) == pytest.approx(expected, abs=1e-13)


def test_pooled_p_is_not_the_mixtures_when_sizes_differ():
    fed = scores_as_data()
    _, y, w = mixture(fed)
    assert connect(AUC(torch.nn.Linear(1, 1), p="pooled"), fed).problem.p == pytest.approx(np.mean(y == 1))
    assert abs(np.mean(y == 1) - w[y == 1].sum()) > 1e-3


def coupling_mean(engine, z):
    cohort = engine.cohort(np.arange(engine.n_clients), 0)
    return cohort.full_mean(lambda data: engine.problem.coupling(cohort.each(z), data)).mean()


@pytest.mark.parametrize("dual", ["gradient", "margin"])
def test_optimal_dual_maximises(dual):
    engine = connect(AUC(harness._linear(), dual=dual, margin=0.7), harness.binary())
    z = 0.3 * torch.randn(1, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    best = engine.problem.optimal_dual(coupling_mean(engine, z)).item()
    value = lambda dual: objective_at(engine, torch.cat([z[:, :-1], z.new_tensor([[dual]])], 1))
    assert best > 0 or dual == "gradient"
    assert all(value(best) > value(best + step) for step in (-1e-3, 1e-3))
    assert value(best + 1e-4) == pytest.approx(value(best - 1e-4), abs=1e-12)  # the derivative is zero


def objective_at(engine, z):
    return engine.cohort(np.arange(engine.n_clients), 0).full_loss(z).mean().item()


def test_gradient_of_phi():
    """grad phi(v) = grad_v f(v, alpha*(v)): by the library, by autograd through the closed form, by differences."""
    engine = connect(AUC(harness._linear()), harness.binary())
    problem, clients = engine.problem, [(c["x"], c["y"]) for c in clients_of(harness.binary())]
    v = np.random.default_rng(3).normal(size=6)
    z = torch.zeros(1, 7, dtype=torch.float64)
    z[0, :6] = torch.from_numpy(v)
    z[0, 6] = problem.optimal_dual(coupling_mean(engine, z))
    F = engine.cohort(np.arange(engine.n_clients), 0).full_field(z).mean(0)
    assert abs(F[-1].item()) < 1e-14
    np.testing.assert_allclose(F[:-1], auc_metric.grad_phi(v, clients, problem.p), rtol=0, atol=1e-12)

    h = 1e-5
    differences = [
        (auc_metric.phi(v + h * e, clients, problem.p) - auc_metric.phi(v - h * e, clients, problem.p))
        / (2 * h)
        for e in np.eye(6)
    ]
    np.testing.assert_allclose(F[:-1], differences, rtol=0, atol=1e-8)

    w = torch.from_numpy(v).requires_grad_()
    total, x_mean, p = 0.0, 0.0, problem.p
    for x, y in clients:
        score, pos = torch.from_numpy(x) @ w[:3] + w[3], torch.from_numpy(y) == 1
        total = total + torch.where(pos, (1 - p) * (score - w[4]) ** 2, p * (score - w[5]) ** 2).mean() / 6
        x_mean = x_mean + torch.where(pos, -(1 - p) * score, p * score).mean() / 6
    (gradient,) = torch.autograd.grad(total + 2 * x_mean + x_mean**2 / (p * (1 - p)), w)
    np.testing.assert_allclose(F[:-1], gradient, rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------- T13-T19: CODA family


def zero_variates(s, clients):
    clients.forget()
    return s._replace(c=torch.zeros_like(s.c))


STAGES = dict(lr=0.1, local_steps=4, gamma=0.3, stage_rounds=3, lr_decay=0.5, output="last")


def test_codasca_with_zero_variates_is_coda_plus():  # T13
    zeroed = on_auc(CODASCA(**STAGES), after=zero_variates)
    same(zeroed, on_auc(CODAPlus(**STAGES)))
    different(zeroed, on_auc(CODASCA(**STAGES)))


@pytest.mark.parametrize("output", ["last", "rounds", "random"])
def test_first_round_of_a_stage_is_coda_plus(output):  # T13
    one_round = STAGES | dict(stage_rounds=1, output=output)
    same(on_auc(CODASCA(**one_round)), on_auc(CODAPlus(**one_round)))
    different(on_auc(CODASCA(**one_round, reset_variates=False)), on_auc(CODAPlus(**one_round)))


@pytest.mark.parametrize("output", ["last", "rounds", "random"])
@pytest.mark.parametrize("reset", [True, False])
def test_one_local_step_needs_no_correction(output, reset):  # T14
    one_step = STAGES | dict(local_steps=1, output=output)
    codasca = on_auc(CODASCA(**one_step, reset_variates=reset))
    same(codasca, on_auc(CODAPlus(**one_step)))
    same(codasca, on_auc(NPA(**one_step)), atol=1e-12)


def test_npa_is_centralised_minibatch_sgda():  # T15
    """On the union of the clients' minibatches, with the prox term, when all are equally large."""
    lr, gamma, sizes = 0.2, 0.3, (6, 9, 7)
    fed = harness.binary(sizes)
    clients = clients_of(fed)
    run = drive(
        NPA(lr=lr, gamma=gamma, stage_rounds=99), AUC(harness._linear()), fed, 20, start=TWINS["auc"].z0()
    )
    p = harness.refproblems.client_mean_p([c["y"] for c in clients])
    z = z0 = TWINS["auc"].z0()
    for r in range(20):
        rows = [harness.minibatch(r, 0, 0, k, n, BATCH)[0] for k, n in enumerate(sizes)]
        union = {f: np.concatenate([c[f][i] for c, i in zip(clients, rows, strict=True)]) for f in ("x", "y")}
        g = harness.refproblems.auc_field(z, union["x"], union["y"], [1 / 12] * 12, p)
        g[:-1] += gamma * (z - z0)[:-1]
        z = z - lr * g
        np.testing.assert_allclose(run.z[r], z, rtol=0, atol=1e-12)


@dataclass(frozen=True, eq=False)
class Recording(QuadraticSaddle):
    """Keeps every point at which a field was taken, that field, and every point after a step."""

    at: list = field(default_factory=list)
    fields_used: list = field(default_factory=list)
    stepped: list = field(default_factory=list)

    def field(self, z, batch):
        F = super().field(z, batch)
        self.at.append(z.clone())
        self.fields_used.append(F.clone())
        return F

    def prox(self, z, lr):
        if lr:  # the server's own projection comes with lr = 0
            self.stepped.append(z.clone())
        return z


@pytest.mark.parametrize("gamma", [0.0, 0.4])
def test_variates_are_the_mean_gradients_of_the_round(gamma):  # T16
    problem, steps, lr = Recording(3, 2), 4, 0.1
    seen = []

    def look(s, clients):
        before = problem.at[-steps][:1]
        v_ref = problem.at[0][:1, :3]
        used = []
        for z, F in zip(problem.at[-steps:], problem.fields_used[-steps:], strict=True):
            prox = torch.zeros_like(F)
            prox[:, :3] = gamma * (z[:, :3] - v_ref)
            used.append(F + prox)
        mean_end = problem.stepped[-1].mean(0, keepdim=True)
        np.testing.assert_allclose(clients.memory, torch.stack(used).mean(0), rtol=0, atol=1e-12)
        np.testing.assert_allclose(clients.memory.mean(0, keepdim=True), s.c, rtol=0, atol=1e-12)
        np.testing.assert_allclose(s.c, (before - mean_end) / (steps * lr), rtol=0, atol=1e-12)
        seen.append(s.c)

    algorithm = CODASCA(lr=lr, local_steps=steps, gamma=gamma, server_lr=1.2, stage_rounds=99)
    on_quadratic(algorithm, 6, problem=problem, batching=Batching(2), after=look)
    assert len(seen) == 6


def test_server_variate_is_the_mean_of_all_clients_under_partial_participation():  # T16
    def look(s, clients):
        c_k = getattr(clients.memory, "c_k", clients.memory)
        np.testing.assert_allclose(c_k.mean(0, keepdim=True), s.c, rtol=0, atol=1e-13)
        assert s.c.abs().max() > 1e-3

    some = dict(participation=harness.Uniform(2), batching=Batching(2), after=look)
    on_quadratic(SCAFFOLD(lr=0.05, local_steps=3), 15, **some)
    on_quadratic(CODASCA(lr=0.05, local_steps=3, reset_variates=False, stage_rounds=4), 15, **some)
    on_quadratic(harness.PublishedCODASCA(lr=0.05, local_steps=3, stage_rounds=4), 15, **some)


@pytest.mark.parametrize(
    "participation", [harness.Full(), harness.Uniform(3, failure=0.3)], ids=["all", "some"]
)
def test_server_variate_is_the_mean_by_samples_of_all_clients(participation):
    def look(s, clients):
        p = clients.sizes.double() / clients.sizes.sum()
        np.testing.assert_allclose(p @ clients.memory, s.c[0], rtol=0, atol=1e-13)
        assert (clients.memory.mean(0) - s.c[0]).abs().max() > 1e-3

    options = dict(participation=participation, batching=Batching(2), after=look)
    on_quadratic(SCAFFOLD(lr=0.05, local_steps=3, weights="samples"), 15, **options)
    on_quadratic(CODASCA(lr=0.05, local_steps=3, weights="samples"), 15, **options)


@pytest.mark.parametrize(
    "algorithm",
    [
        CODASCA(**STAGES),
        CODAPlus(**STAGES | dict(output="iterates")),
        SCAFFOLD(lr=0.1, local_steps=4),
        FedAvg(lr=0.1, local_steps=4),
    ],  # not CODA, whose dual by samples is that of the pool
    ids=lambda a: type(a).__name__,
)
def test_weights_of_equal_sizes_change_no_bit(algorithm):
    fed = harness.binary((7,) * 6)
    problem = ERM(harness._linear()) if isinstance(algorithm, FedAvg) else AUC(harness._linear())
    equal, by_size = (
        drive(replace(algorithm, weights=weights), problem, fed, 5, participation=harness.Uniform(4))
        for weights in ("clients", "samples")
    )
    assert (equal.z == by_size.z).all()


def test_one_full_batch_step_by_samples_is_a_step_on_the_pool():
    clients, start = clients_of(harness.binary()), TWINS["auc"].z0()
    pool = federation({f: np.concatenate([c[f] for c in clients]) for f in clients[0]})
    problem, options = AUC(harness._linear(), p="pooled"), dict(start=start, batching=FULL)
    centralised = drive(LocalSGDA(lr=0.2, local_steps=1), problem, pool, 20, **options)
    for method in (CODASCA, CODAPlus, SCAFFOLD, NPA, RSMinimax):
        by_samples = drive(
            method(lr=0.2, local_steps=1, weights="samples"), problem, harness.binary(), 20, **options
        )
        same(by_samples, centralised)
        different(drive(method(lr=0.2, local_steps=1), problem, harness.binary(), 20, **options), centralised)


def test_one_stage_of_coda_plus_without_prox_is_local_sgda():  # T18
    for output in CODAPlus.outputs():
        a = on_auc(CODAPlus(lr=0.1, local_steps=4, output=output))
        same(a, on_auc(LocalSGDA(lr=0.1, local_steps=4)), atol=1e-14)


def test_stage_output_is_the_mean_over_clients_and_iterates():  # T19
    problem, steps = Recording(3, 2), 4
    run = on_quadratic(
        CODAPlus(lr=0.1, local_steps=steps, gamma=0.2, stage_rounds=3, lr_decay=0.5),
        9,
        problem=problem,
        batching=Batching(2),
    )
    iterates = torch.stack(problem.stepped).view(3, 3 * steps, 5, 5)  # stage, step, client, vector
    np.testing.assert_allclose(run.z[2::3], iterates.mean((1, 2)), rtol=0, atol=1e-12)
    starts = torch.stack(problem.at).view(3, 3, steps, 5, 5)[1:, 0, 0]  # where each client starts a stage
    np.testing.assert_allclose(starts, run.z[2:-1:3, None].repeat(5, 1), rtol=0, atol=1e-15)
    for s, stage in enumerate(run.states[2::3]):  # the output is the next prox centre too
        np.testing.assert_allclose(stage.v_ref[0], run.z[2 + 3 * s][:3], rtol=0, atol=0)


@pytest.mark.parametrize("output", ["rounds", "random", "last"])
@pytest.mark.parametrize("algorithm", [CODAPlus, CODASCA])
def test_other_stage_outputs(algorithm, output):
    """The trajectory within the first stage is free of the output rule, which then chooses from it."""
    R = 5
    kept = on_auc(algorithm(lr=0.1, local_steps=3, gamma=0.3, stage_rounds=99), R).z
    out = on_auc(algorithm(lr=0.1, local_steps=3, gamma=0.3, stage_rounds=R, output=output), R).z
    assert (out[:-1] == kept[:-1]).all()
    pick = harness.refsampling.server_integer(harness.SEED, 0, R)
    expected = {"rounds": kept.mean(0), "random": kept[pick], "last": kept[-1]}[output]
    np.testing.assert_allclose(out[-1], expected, rtol=0, atol=1e-14)


def test_random_output_varies():
    picks = {harness.refsampling.server_integer(seed, 0, 5) for seed in range(40)}
    assert picks == set(range(5))


# ------------------------------------------------------------------------------------------- T37 and zero heterogeneity


def on_logistic(algorithm, **options):
    twin = TWINS["logistic"]
    return drive(algorithm, ERM(harness._linear()), twin.data(), 12, start=twin.z0(), **options)


def test_fedprox_without_a_tie_is_fedavg():
    settings = dict(lr=0.2, local_steps=4, weights="samples", server_lr=1.2)
    assert (on_logistic(FedProx(**settings, mu=0.0)).z == on_logistic(FedAvg(**settings)).z).all()
    different(on_logistic(FedProx(**settings, mu=1.0)), on_logistic(FedAvg(**settings)))


def test_scaffold_with_zero_variates_is_fedavg():
    settings = dict(lr=0.2, local_steps=4, server_lr=1.2)
    same(on_logistic(SCAFFOLD(**settings), after=zero_variates), on_logistic(FedAvg(**settings)))
    different(on_logistic(SCAFFOLD(**settings)), on_logistic(FedAvg(**settings)))


def test_scaffold_is_codasca_without_stages_and_prox():
    settings = dict(lr=0.1, local_steps=4, server_lr=1.2)
    same(on_auc(SCAFFOLD(**settings)), on_auc(CODASCA(**settings)))


def test_without_heterogeneity_all_methods_are_centralised_descent_ascent():
    fed, problem = quadratic_federation(5, 4, 3, heterogeneity=0.0), QuadraticSaddle(4, 3)
    sample = tuple(clients_of(fed)[0][f][0] for f in problem.fields)
    z, expected = np.zeros(7), []
    for _ in range(30):
        for _ in range(6):
            z = z - 0.1 * harness.refproblems.quadratic_field(z, *sample)
        expected.append(z)
    settings = dict(lr=0.1, local_steps=6)
    for algorithm in (LocalSGDA(**settings), SCAFFOLD(**settings), CODAPlus(**settings), CODASCA(**settings)):
        run = drive(algorithm, problem, fed, 30, batching=FULL)
        np.testing.assert_allclose(run.z, expected, rtol=0, atol=1e-12)


def test_server_step_of_one_half_goes_half_the_way():
    settings = dict(lr=0.1, local_steps=4)
    z0 = TWINS["auc"].z0()
    for algorithm in (LocalSGDA(**settings), SCAFFOLD(**settings), CODASCA(**settings)):
        whole, half = on_auc(algorithm, 1).z[0], on_auc(replace(algorithm, server_lr=0.5), 1).z[0]
        np.testing.assert_allclose(half, (z0 + whole) / 2, rtol=0, atol=1e-14)


# -------------------------------------------------------------------------------- T20-T22, T26: cyclic participation


def test_one_group_is_random_sampling():  # T20
    stages = dict(lr=0.1, local_steps=3, gamma=0.2, stage_rounds=4)
    one_group = on_auc(CyCpMinimax(**stages), participation=Cyclic(1, m=3))
    same(one_group, on_auc(RSMinimax(**stages), participation=Cyclic(1, m=3)), atol=0)
    everyone = on_auc(CyCpMinimax(lr=0.1, local_steps=3), participation=Cyclic(1))
    same(everyone, on_auc(CODAPlus(lr=0.1, local_steps=3)), atol=1e-15)  # within a stage


def test_a_group_a_client_is_incremental_descent_ascent():  # T21
    cyclic = on_quadratic(
        CyCpMinimax(lr=0.1, local_steps=2),
        10,
        participation=Cyclic(5),
        batching=FULL,
        problem=QuadraticSaddle(3, 2),
    )
    engine = connect(QuadraticSaddle(3, 2), TWINS["quadratic"].data(), batching=FULL)
    z = torch.as_tensor(TWINS["quadratic"].z0())[None]
    for r, after in enumerate(cyclic.z):
        for _ in range(2):
            z = z - 0.1 * engine.cohort(np.array([r % 5]), 0).full_field(z)
        np.testing.assert_allclose(after, z[0], rtol=0, atol=1e-14)


def test_every_epoch_visits_every_group_once():  # T22
    seen = []
    on_auc(
        CyCpMinimax(lr=0.1, local_steps=1), 12, participation=Cyclic(3, m=1),
        after=lambda s, clients: seen.append(clients.asked) and None,
    )  # fmt: skip
    assert all([asked[0] // 2 for asked in seen[e : e + 3]] == [0, 1, 2] for e in range(0, 12, 3))


def test_without_amplification_it_is_fedavg_and_without_variates_amplified_fedavg():  # T26
    some = dict(participation=Cyclic(3, m=1))
    steps, twin = dict(lr=0.1, local_steps=3), TWINS["logistic"]

    def run(algorithm, rounds=12):
        return drive(algorithm, twin.problem(), twin.data(), rounds, start=twin.z0(), **some)

    same(run(AmplifiedFedAvg(**steps, amplification=1.0, period=3)), run(CyCpFedAvg(**steps)), atol=1e-15)
    amplified = dict(**steps, amplification=1.4, period=3)
    first_period = run(AmplifiedSCAFFOLD(**amplified), 3), run(AmplifiedFedAvg(**amplified), 3)
    same(*first_period, atol=1e-15)
    different(run(AmplifiedSCAFFOLD(**amplified)), run(AmplifiedFedAvg(**amplified)))


def test_amplified_scaffold_reaches_the_saddle_under_cyclic_participation():
    fed, problem = quadratic_federation(6, 4, 3, seed=1), QuadraticSaddle(4, 3)
    cyclic = dict(participation=Cyclic(3), batching=FULL)
    corrected = drive(AmplifiedSCAFFOLD(lr=0.05, local_steps=5, period=3), problem, fed, 600, **cyclic)
    plain = drive(CyCpMinimax(lr=0.05, local_steps=5), problem, fed, 600, **cyclic)
    assert np.abs(corrected.z[-1:] - problem.saddle(fed).numpy()).max() < 1e-10
    assert np.abs(plain.z[-1:] - problem.saddle(fed).numpy()).max() > 1e-3
