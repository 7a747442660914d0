"""Losses of pairs: their derivatives, T23-T25, the known optimum, relations between the methods, refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import fedsaddle as fs
from fedsaddle import metrics
from fedsaddle.algorithms import CyCpPairwise, FeDXL2, RSPairwise, pairwise
from fedsaddle.cohort import Batching
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.participation import Cyclic, Uniform
from fedsaddle.problems import AUC, Contrastive, PairwiseAUC, PartialAUC, pairs
from fedsaddle.replicas import run_together
from tests import harness
from tests.harness import FEATURES, best_pairwise, binary, connect, drive, federation
from tests.reference import pairwise as ref

LOSSES = [
    pairs.Square(0.8),
    pairs.SquaredHinge(0.8),
    pairs.Logistic(0.7),
    pairs.Sigmoid(0.3),
    pairs.BarrierHinge(0.6, 1.7),
    pairs.QNormHinge(0.9, 2.5),
    pairs.ContrastiveLoss(1.3),
]

# ------------------------------------------------------------------------------------------------ derivatives


def two_sides(psi: pairs.PairLoss) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    if isinstance(psi, pairs.ScoreLoss):
        return torch.randn(2, 40, 1, generator=g, dtype=torch.float64).unbind()
    a, b = torch.randn(2, 40, 4, generator=g, dtype=torch.float64).unbind()
    a[:, -1], b[:, -1] = torch.arange(40) % 2, torch.arange(40) % 3 % 2  # classes
    return a, b


@pytest.mark.parametrize("psi", LOSSES, ids=lambda psi: type(psi).__name__)
def test_derivatives_are_those_of_the_value(psi: pairs.PairLoss) -> None:
    """Against autograd and against finite differences, by each argument."""
    a, b = two_sides(psi)
    free = slice(None) if isinstance(psi, pairs.ScoreLoss) else slice(-1)  # a class is no variable
    for which, derivative in enumerate((psi.d1(a, b), psi.d2(a, b))):
        at = [v.clone().requires_grad_() for v in (a, b)]
        (auto,) = torch.autograd.grad(psi.value(*at).sum(), at[which])
        torch.testing.assert_close(derivative[..., free], auto[..., free], rtol=0, atol=1e-12)
        assert not derivative[..., derivative.shape[-1] if free == slice(None) else -1 :].any()
        for k in range(derivative[..., free].shape[-1]):
            move = torch.zeros_like(a)
            move[..., k] = 1e-6
            moved = [[v + s * move if i == which else v for i, v in enumerate((a, b))] for s in (1, -1)]
            slope = (psi.value(*moved[0]) - psi.value(*moved[1])) / 2e-6
            torch.testing.assert_close(derivative[..., k], slope, rtol=0, atol=1e-6)


def test_stable_far_out() -> None:
    for psi in LOSSES[:-1]:
        for t in (-1e4, 1e4):
            a, b = torch.tensor([[t]]), torch.tensor([[0.0]])
            assert all(v.isfinite().all() for v in (psi.value(a, b), psi.d1(a, b), psi.d2(a, b)))


def test_two_samples_of_different_classes_at_one_point() -> None:
    a, b = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[1.0, 2.0, 1.0]])
    psi = pairs.ContrastiveLoss(1.3)
    assert not psi.d1(a, b).any() and psi.value(a, b).item() == pytest.approx(1.3**2 / 2)


# ------------------------------------------------------------------------------------------- T23, T24, T25


def one_client() -> fs.Federation:
    rng = np.random.default_rng(4)
    y = np.array([1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0])  # 4 positives, 8 negatives
    return federation({"x": rng.normal(size=(12, FEATURES)) + 0.5 * y[:, None], "y": y})


def first_gradient(problem: fs.Problem, algorithm: Any, fed: fs.Federation, batch: int = 8) -> np.ndarray:
    """The step of the first round after the scores were collected, over minus the step size."""
    run = drive(algorithm, problem, fed, 2, batching=Batching(batch), start=harness.TWINS["pairs"].z0())
    return (run.z[0] - run.z[1]) / algorithm.lr


def full_gradient(psi: pairs.PairLoss, fed: fs.Federation) -> np.ndarray:
    """Autograd of the mean over all pairs."""
    w = torch.from_numpy(harness.TWINS["pairs"].z0()).requires_grad_()
    h = (fed.data["x"] @ w[:FEATURES] + w[FEATURES]).unsqueeze(-1)
    positive = fed.data["y"] == 1
    loss = psi.value(h[positive].unsqueeze(1), h[~positive].unsqueeze(0)).mean()
    return torch.autograd.grad(loss, w)[0].numpy()


def both_halves_are_the_gradient(loss: str = "sigmoid") -> None:  # T23
    """One client, one step, pools with the scores of all data, all pairs: G1 + G2 is the gradient of the objective."""
    problem = PairwiseAUC(nn.Linear(FEATURES, 1), loss=loss)
    algorithm = CyCpPairwise(lr=0.1, local_steps=1, pairing="all_pairs")
    got = first_gradient(problem, algorithm, one_client())
    np.testing.assert_allclose(got, full_gradient(problem.psi, one_client()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", pairs.SCORE_LOSSES)
def test_both_halves_are_the_gradient(loss: str) -> None:
    both_halves_are_the_gradient(loss)


def test_the_printed_formula_is_not() -> None:
    """E2.1: with nabla_1 in eq. (12), as it is printed, T23 fails."""
    with (
        harness.mutated(pairwise, "psi.d2(p_1, active.s_2.unsqueeze(-2))", "psi.d1(p_1, active.s_2.unsqueeze(-2))"),
        pytest.raises(AssertionError),
    ):  # fmt: skip
        both_halves_are_the_gradient()


def test_the_square_loss_has_the_gradient_of_the_min_max_form() -> None:  # T24
    fed, w = one_client(), torch.from_numpy(harness.TWINS["pairs"].z0())
    got = first_gradient(
        PairwiseAUC(nn.Linear(FEATURES, 1), loss="square"),
        CyCpPairwise(lr=0.1, local_steps=1, pairing="all_pairs"),
        fed,
    )
    auc = connect(AUC(nn.Linear(FEATURES, 1)), fed, batching=Batching(None))
    h, positive = fed.data["x"] @ w[:FEATURES] + w[FEATURES], fed.data["y"] == 1
    a, b = h[positive].mean(), h[~positive].mean()
    z = torch.cat([w, torch.stack([a, b, b - a])]).unsqueeze(0)  # a*, b*, alpha*
    F = auc.cohort(np.array([0]), 0).full_field(z)[0, : FEATURES + 1]
    p = 4 / 12
    np.testing.assert_allclose(got, F / (p * (1 - p)), rtol=0, atol=1e-12)


def test_passive_scores_are_those_of_the_epoch_before() -> None:  # T25
    """Every score is unique, so a passive score says in which epoch it was made."""
    made: list[dict[int, set[float]]] = [{}, {}]  # side -> epoch -> scores sent up
    used: list[dict[int, set[float]]] = [{}, {}]
    clients = connect(
        PairwiseAUC(nn.Linear(FEATURES, 1)), binary(), participation=Cyclic(3, m=2), batching=Batching(3)
    )
    execute = clients._execute

    def watching(work: Any, message: Any, cohort: Any) -> Any:
        reply, memory = execute(work, message, cohort)
        epoch = clients.round // 3
        for side, (down, up) in enumerate(((message.r_1, reply.h_1.value), (message.r_2, reply.h_2.value))):
            made[side].setdefault(epoch, set()).update(up[~up.isnan()].tolist())
            if down is not None:
                used[side].setdefault(epoch, set()).update(down.flatten().tolist())
        return reply, memory

    clients._execute = watching  # type: ignore[assignment]
    algorithm = CyCpPairwise(lr=0.3, local_steps=2)
    z = torch.from_numpy(harness.TWINS["pairs"].z0()).unsqueeze(0)
    state = algorithm.init(z, clients.problem)
    for r in range(15):
        clients.begin(r)
        state = algorithm.round(state, clients)
    for side in (0, 1):
        assert set(made[side]) == set(range(5)) and set(used[side]) == set(range(1, 5))
        for epoch, scores in used[side].items():
            assert scores <= made[side][epoch - 1]
            assert made[side][epoch] - made[side][epoch - 1]  # which tells them apart


# ------------------------------------------------------------------------------------------------------ truth


def apart() -> fs.Federation:
    """Two clients with positives only and one with negatives only: nobody can compute the loss of a pair alone."""
    rng = np.random.default_rng(6)
    return federation(
        {"x": rng.normal(size=(6, FEATURES)) + 0.7, "y": np.ones(6, dtype=np.int64)},
        {"x": rng.normal(size=(6, FEATURES)), "y": np.zeros(6, dtype=np.int64)},
    )


def reaches_the_best_scorer(**options: Any) -> None:
    """All scores in each pool, one step a round: the fixed point is the minimiser of the square loss over all pairs."""
    problem = PairwiseAUC(nn.Linear(FEATURES, 1, bias=False), loss="square")
    algorithm = RSPairwise(lr=0.02, local_steps=1, pairing="all_pairs", **options)
    run = drive(algorithm, problem, apart(), 900, batching=Batching(6))
    np.testing.assert_allclose(run.z[-1], best_pairwise(apart()), rtol=0, atol=1e-8)


def test_clients_that_own_one_class_each_reach_the_best_scorer() -> None:
    reaches_the_best_scorer()


def test_partial_auc_reaches_the_point_where_its_gradient_vanishes() -> None:
    """u is exact there: T log E exp(psi / T) has the gradient E softmax(psi / T) psi', which must be 0."""
    problem = PartialAUC(nn.Linear(FEATURES, 1, bias=False), loss="square", temperature=3.0)
    algorithm = FeDXL2(lr=0.02, local_steps=1, rate=0.7, pairing="all_pairs")
    run = drive(algorithm, problem, apart(), 1500, batching=Batching(6))
    w = torch.from_numpy(run.z[-1]).requires_grad_()
    h = (apart().data["x"] @ w).unsqueeze(-1)
    inner = problem.psi.value(h[:6].unsqueeze(1), h[6:].unsqueeze(0)) / 3.0
    objective = (3.0 * (inner.logsumexp(-1) - np.log(6))).mean()
    (gradient,) = torch.autograd.grad(objective, w)
    assert gradient.abs().max() < 1e-8
    assert np.abs(run.z[-1] - best_pairwise(apart())).max() > 1e-2  # another point than the whole AUC's


def test_owners_weigh_as_the_objective_says() -> None:
    """Two of three clients own positives, one negatives: the halves weigh 3/2 and 3, so that their means are F's."""
    x = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    fed = federation(*({"x": x[i : i + 1], "y": np.array([int(i < 2)])} for i in range(3)))
    problem = PairwiseAUC(nn.Linear(FEATURES, 1, bias=False), loss="square")
    start = np.zeros(FEATURES)
    run = drive(RSPairwise(lr=0.1, local_steps=1), problem, fed, 2, batching=Batching(1), start=start)
    # F = ((1 - w1 + 3 w3)^2 + (1 - 2 w2 + 3 w3)^2) / 2
    np.testing.assert_allclose(run.z[1], -0.1 * np.array([-1.0, -2.0, 6.0]), rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------------------- messy data


def lacking(y_last: int) -> fs.Federation:
    """The last client is small and has one class; the first is large and sorted, so that its rows have large numbers."""
    rng = np.random.default_rng(9)
    y = np.repeat([1, 0], 20) if y_last else np.repeat([0, 1], 20)
    return federation(
        {"x": rng.normal(size=(40, FEATURES)) + y[:, None], "y": y},
        {"x": rng.normal(size=(3, FEATURES)), "y": np.full(3, y_last)},
    )


@pytest.mark.parametrize("chunk", [harness.STACKED, harness.SERIAL], ids=["stacked", "serial"])
@pytest.mark.parametrize("y_last", [0, 1])
def test_a_small_last_client_without_a_class(y_last: int, chunk: int | None) -> None:
    run = drive(
        RSPairwise(lr=0.1, local_steps=2),
        PairwiseAUC(nn.Linear(FEATURES, 1)),
        lacking(y_last),
        4,
        chunk=chunk,
    )
    assert np.isfinite(run.z).all() and (run.z[-1] != run.z[0]).any()


@pytest.mark.parametrize(
    "name", ["pairs", "pairs_square", "pairs_barrier", "pairs_partial", "pairs_contrastive"]
)
def test_the_reported_loss_is_the_objective(name: str) -> None:
    """Clients of unequal sizes, two of which lack a side."""
    twin = harness.TWINS[name]
    case = next(c for c in harness.CASES.values() if c.twin == name)
    arguments = harness.pairwise_arguments(case)
    z = twin.z0()
    outer = {"outer": ref.log_outer(0.5)} if name == "pairs_partial" else {}
    psi = harness.PAIR_LOSSES[name][0]
    best = ref.objective(z, arguments["clients"], arguments["rep"], psi, **outer)
    split = metrics.Split(twin.data(), torch.device("cpu"), torch.float64)
    (found,) = twin.problem().objectives(torch.from_numpy(z).view(1, 1, -1), split)
    assert found == {"pair_loss": pytest.approx(best, abs=1e-12)}


def test_of_large_sides_an_even_choice_is_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    same = federation(
        *[{"x": np.tile(c["x"], (5, 1)), "y": np.tile(c["y"], 5)} for c in harness.clients_of(binary())]
    )
    problem, z = PairwiseAUC(nn.Linear(FEATURES, 1)), torch.randn(1, 1, FEATURES + 1, dtype=torch.float64)
    split = metrics.Split(same, torch.device("cpu"), torch.float64)
    (whole,) = problem.objectives(z, split)
    monkeypatch.setattr("fedsaddle.problems.pairwise._PAIRED", 40)
    (some,) = problem.objectives(z, split)
    assert some != whole and some["pair_loss"] == pytest.approx(whole["pair_loss"], rel=0.2)


def test_replicas_have_their_own_losses() -> None:
    """Of three scales and one step that diverges."""
    options: dict[str, Any] = dict(rounds=3, batch_size=4, dtype="float64", eval_every=1)

    def start(scale: float, lr: float) -> fs.Run:
        torch.manual_seed(0)
        problem = PairwiseAUC(nn.Linear(FEATURES, 1), loss="logistic", scale=scale)
        return fs.train(problem, RSPairwise(lr=lr, local_steps=2), binary(), **options)

    points = [(1.0, 0.1), (0.3, 1e308), (0.5, 0.1), (0.2, 0.2)]
    together = [start(*point) for point in points]
    run_together(together)
    for run, point in zip(together, points, strict=True):
        if point[1] < 1:
            alone = [r["pair_loss"] for r in start(*point)]
            assert [r["pair_loss"] for r in run.records] == pytest.approx(alone, abs=1e-12)
            assert alone[-1] < alone[0]


def test_a_lost_visit_does_not_shift_epochs() -> None:
    """Pools are renewed when a new pass over the groups begins, whether or not every visit was answered."""
    lost = harness.Lost(groups=3, lost=(4,))
    run = drive(
        CyCpPairwise(lr=0.1, local_steps=2),
        PairwiseAUC(nn.Linear(FEATURES, 1)),
        binary(),
        9,
        participation=lost,
    )
    assert [s.epoch for s in run.states] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (run.z[4] == run.z[3]).all()
    for r in (5, 8):
        visits = 2 if r == 5 else 3
        assert len(run.states[r].filling[1]) == visits * 2 * 2 * 4  # clients a visit, steps, batch


def test_a_replica_that_diverges_leaves_the_others_alone() -> None:
    def start(lr: float) -> fs.Run:
        torch.manual_seed(0)
        problem = PairwiseAUC(nn.Linear(FEATURES, 1), loss="square")
        return fs.train(
            problem,
            RSPairwise(lr=lr, local_steps=3),
            binary(),
            rounds=60,
            batch_size=4,
            participation=Uniform(2),
        )

    runs = [start(lr) for lr in (3.0, 0.01)]
    run_together(runs)
    with pytest.raises(Diverged):
        _ = runs[0].metrics
    np.testing.assert_allclose(runs[1].z, start(0.01).z, rtol=0, atol=1e-5)


def test_in_bf16_scores_and_classes_keep_their_precision() -> None:
    rng = np.random.default_rng(2)
    y = np.tile([256, 257], 20)
    fed = federation(
        *({"x": rng.normal(size=(20, FEATURES)).astype(np.float32), "y": y[:20]} for _ in range(2))
    )
    run = fs.train(Contrastive(nn.Linear(FEATURES, 2)), RSPairwise(lr=0.1, local_steps=2), fed, rounds=3, batch_size=4,
                   precision="bf16").finish()  # fmt: skip
    entries = run.state.pools[0].entries
    assert entries.dtype == torch.float32 and set(entries[:, -1].tolist()) == {256.0, 257.0}


def test_codes_do_not_tell_a_persons_score() -> None:
    """The ends of a client's range would be two scores exactly."""
    seen = drive(CyCpPairwise(lr=0.1, local_steps=2, bits=4), PairwiseAUC(nn.Linear(FEATURES, 1)), binary(), 1,
                 start=harness.TWINS["pairs"].z0())  # fmt: skip
    exact = drive(CyCpPairwise(lr=0.1, local_steps=2), PairwiseAUC(nn.Linear(FEATURES, 1)), binary(), 1,
                  start=harness.TWINS["pairs"].z0())  # fmt: skip
    for coded, plain in zip(seen.states[0].filling, exact.states[0].filling, strict=True):
        coded, plain = (set(v[~v.isnan()].tolist()) for v in (coded, plain))
        assert coded and not coded & plain


def test_what_would_not_be_learned_is_said() -> None:
    def train(algorithm: Any, **options: Any) -> None:
        fs.train(PairwiseAUC(nn.Linear(FEATURES, 1)), algorithm, binary(), batch_size=4, **options).finish()

    with pytest.warns(UserWarning, match="3 rounds leave the model as it is") as said:
        train(CyCpPairwise(local_steps=1), rounds=3, participation=Cyclic(3))
    assert {w.filename for w in said} == {__file__}
    with pytest.warns(UserWarning, match="RSPairwise: is meant for random sampling; under Cyclic"):
        train(RSPairwise(local_steps=1), rounds=6, participation=Cyclic(3))
    with pytest.warns(UserWarning, match="stage_rounds = 4 is no multiple of the 3 rounds of an epoch"):
        train(CyCpPairwise(local_steps=1, stage_rounds=4), rounds=6, participation=Cyclic(3))
    with pytest.warns(
        UserWarning, match="CyCpPairwise: groups are of unequal sizes, .* use groups of equal sizes"
    ):
        train(CyCpPairwise(local_steps=1), rounds=6, participation=Cyclic([[0], [1, 2, 3, 4, 5]]))


# -------------------------------------------------------------------------------------------------- relations


def test_a_high_temperature_is_the_linear_outer_function() -> None:
    linear = drive(RSPairwise(lr=0.03, local_steps=2), PairwiseAUC(nn.Linear(FEATURES, 1), loss="square"), binary(), 20,
                   participation=Uniform(3), start=harness.TWINS["pairs"].z0())  # fmt: skip
    problem = PartialAUC(nn.Linear(FEATURES, 1), loss="square", temperature=1e9)
    other = drive(FeDXL2(lr=0.03, local_steps=2), problem, binary(), 20, participation=Uniform(3),
                  start=harness.TWINS["pairs"].z0())  # fmt: skip
    np.testing.assert_allclose(other.z, linear.z, rtol=0, atol=1e-6)


def test_sixteen_bits_change_little_and_one_bit_much() -> None:
    def end(bits: int | None) -> np.ndarray:
        return drive(CyCpPairwise(lr=0.2, local_steps=2, bits=bits), PairwiseAUC(nn.Linear(FEATURES, 1)), binary(), 20,
                     participation=Cyclic(3), start=harness.TWINS["pairs"].z0()).z[-1]  # fmt: skip

    exact = end(None)
    assert 0 < np.abs(end(16) - exact).max() < 1e-4 < np.abs(end(1) - exact).max()


def test_noise_is_normal_and_each_client_and_round_has_its_own() -> None:
    clients = connect(PairwiseAUC(nn.Linear(FEATURES, 1)), binary())
    clients.begin(0)
    first = clients.cohort(np.arange(6), 0).normal(20_000)
    clients.begin(1)
    second = clients.cohort(np.arange(6), 0).normal(20_000)
    both = torch.cat([first, second])
    assert both.mean(-1).abs().max() < 0.04 and (both.std(-1) - 1).abs().max() < 0.03
    assert ((both**4).mean(-1) - 3).abs().max() < 0.3
    correlation = torch.corrcoef(both) - torch.eye(12, dtype=torch.float64)
    assert correlation.abs().max() < 0.04


def test_the_first_epoch_does_not_move_the_model() -> None:
    run = drive(CyCpPairwise(lr=0.2, local_steps=2), PairwiseAUC(nn.Linear(FEATURES, 1)), binary(), 4,
                participation=Cyclic(3), start=harness.TWINS["pairs"].z0())  # fmt: skip
    assert (run.z[:3] == run.z[0]).all() and (run.z[3] != run.z[2]).any()
    assert run.clients.traffic.by_phase["first_scores"].phases == 3


def test_embeddings_of_one_class_come_together() -> None:
    digits = fs.data.load("digits").federation("dirichlet", clients=8, alpha=0.3).holdout(0.3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    run = fs.train(Contrastive(model, margin=2.0), RSPairwise(lr=0.1, local_steps=8), digits, rounds=40,
                   participation=Uniform(4))  # fmt: skip
    first, last = run.records[0], run.metrics
    assert last["precision_elsewhere"] > first["precision_elsewhere"] + 0.05
    assert last["recall_elsewhere"] > 0.85


# ---------------------------------------------------------------------------------------------------- metrics


@pytest.mark.parametrize("max_fpr", [0.05, 0.3, 0.99])
@pytest.mark.parametrize("ties", [False, True])
def test_partial_auc_is_scikit_learns(max_fpr: float, ties: bool) -> None:
    rng = np.random.default_rng(8)
    y = rng.random(300) < 0.2
    scores = rng.normal(size=300) + y
    if ties:
        scores = scores.round(1)
    smallest = max_fpr**2 / 2  # scikit-learn rescales from there
    standard = roc_auc_score(y, scores, max_fpr=max_fpr)
    area = (2 * standard - 1) * (max_fpr - smallest) + smallest
    got = metrics.partial_auc(torch.from_numpy(scores), torch.from_numpy(y), max_fpr)
    assert got == pytest.approx(area / max_fpr, abs=1e-12)


def test_partial_auc_of_one_class_is_undefined() -> None:
    assert np.isnan(metrics.partial_auc(torch.randn(4), torch.ones(4, dtype=torch.bool), 0.3))


def test_scores_that_are_nan_have_no_auc() -> None:
    scores, positive = torch.tensor([torch.nan, 0.2, 0.3, 0.4]), torch.tensor([True, False, True, False])
    assert np.isnan(metrics.auc(scores, positive)) and np.isnan(metrics.partial_auc(scores, positive, 0.3))


def test_retrieval_counts_neighbours_of_ones_own_class() -> None:
    gallery = torch.tensor([[0.0], [0.1], [1.0], [1.1]])
    classes, owner = torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 1, 0])
    queries, asked = torch.tensor([[0.02], [1.2]]), torch.tensor([0, 1])
    found = metrics.retrieval(queries, asked, gallery, classes, 2, owners=(torch.tensor([0, 0]), owner))
    assert found == {
        "recall": 1.0, "precision": (0.5 + 1.0) / 2,
        "recall_elsewhere": 0.5, "precision_elsewhere": 0.5,
    }  # fmt: skip
    own = metrics.retrieval(gallery, classes, gallery, classes, 1, same=True)
    assert own["recall"] == 0.5  # nobody finds itself


def test_items_that_are_left_out_are_no_hits() -> None:
    """Where fewer than k items lie elsewhere, the rest are not the client's own."""
    gallery, classes = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
    owner = torch.tensor([0, 0, 1, 1])
    found = metrics.retrieval(
        torch.tensor([[0.0]]), torch.tensor([0]), gallery, classes, 4, owners=(torch.tensor([0]), owner)
    )
    assert found["precision_elsewhere"] == 0.0 and found["precision"] == 0.5
    alone = metrics.retrieval(gallery[:3], torch.arange(3), gallery[:3], torch.arange(3), 3, same=True)
    assert alone == {"recall": 0.0, "precision": 0.0}


# --------------------------------------------------------------------------------------------------- refusals


def line(make: Any) -> str:
    with pytest.raises(FedsaddleError) as error:
        make()
    return str(error.value)


MODEL = nn.Linear(FEATURES, 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PairwiseAUC(MODEL, loss="hinge"), "loss must be one of square"),
        (lambda: PairwiseAUC(MODEL, loss="sigmoid", margin=2.0), "margin has no use with loss 'sigmoid'"),
        (lambda: PairwiseAUC(MODEL, loss="sigmoid", scale=0.0), "scale must be > 0, got 0.0"),
        (lambda: PairwiseAUC(MODEL, loss="q_norm_hinge", q=1.0), "q must be > 1, got 1.0"),
        (lambda: PartialAUC(MODEL, temperature=-1.0), "temperature must be > 0, got -1.0"),
        (lambda: PartialAUC(MODEL, max_fpr=1.0), "max_fpr must be between 0 and 1, got 1.0"),
        (lambda: Contrastive(MODEL, neighbours=0), "neighbours must be a whole number >= 1, got 0"),
        (lambda: CyCpPairwise(pairing="some"), "pairing must be 'one_to_one' or 'all_pairs'"),
        (lambda: CyCpPairwise(bits=True), "bits must be between 1 and 16, or None, got True"),
        (lambda: FeDXL2(rate="0.5"), "rate must be a number, got '0.5'"),
        (lambda: CyCpPairwise(bits=40), "bits must be between 1 and 16, or None, got 40"),
        (lambda: CyCpPairwise(noise=-1.0), "noise must be >= 0, got -1.0"),
        (lambda: CyCpPairwise(output="random"), "output must be one of rounds, last"),
        (lambda: FeDXL2(rate=0.0), "rate must be > 0, got 0.0"),
    ],
)  # fmt: skip
def test_refusals(make: Any, says: str) -> None:
    assert says in line(make)


@pytest.mark.parametrize(
    ("problem", "algorithm", "says"),
    [
        (AUC(MODEL), CyCpPairwise(), "is made for losses of pairs of samples, which AUC has not"),
        (PairwiseAUC(MODEL), fs.CODASCA(), "use CyCpPairwise or RSPairwise, or pose the problem as AUC"),
        (PairwiseAUC(MODEL), fs.FedAvg(), "use CyCpPairwise or RSPairwise, or pose the problem as AUC"),
        (PartialAUC(MODEL), RSPairwise(), "use FeDXL2"),
        (PairwiseAUC(MODEL), FeDXL2(), "is made for PartialAUC, got PairwiseAUC"),
        (PairwiseAUC(nn.Linear(FEATURES, 2)), RSPairwise(), "the model must have one output, got 2"),
        (PairwiseAUC(MODEL, positive=5), RSPairwise(), "no client has positive examples (class 5 is positive)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(problem: fs.Problem, algorithm: fs.Algorithm, says: str) -> None:
    assert says in line(lambda: fs.train(problem, algorithm, binary(), rounds=1).finish())


def test_all_samples_in_every_step_are_refused() -> None:
    train = partial(fs.train, PairwiseAUC(MODEL), RSPairwise(), binary(), rounds=1, batch_size=None)
    assert "RSPairwise: needs a batch size" in line(lambda: train().finish())
