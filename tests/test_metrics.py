"""Metrics: exact AUC with ties, spread over clients, closed forms of the AUC objective."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import fedsaddle as fs
from fedsaddle import metrics
from fedsaddle.measures import Of, in_words, names
from tests import harness
from tests.reference import auc_metric


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60))
def test_auc_counts_ties_as_one_half(pairs: list[tuple[int, bool]]) -> None:
    scores = torch.tensor([float(s) for s, _ in pairs])
    labels = torch.tensor([y for _, y in pairs])
    value = metrics.auc(scores, labels)
    if labels.all() or not labels.any():
        assert np.isnan(value)
    else:
        assert value == pytest.approx(auc_metric.auc(scores.tolist(), labels.int().tolist()), abs=1e-12)
        assert value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_an_interval_of_counts_is_that_of_the_samples() -> None:
    torch.manual_seed(0)
    positive = torch.rand(300) < 0.2
    scores = torch.randint(0, 12, (300,)) + 2 * positive
    counts = [torch.bincount(scores[mask], minlength=20) for mask in (~positive, positive)]
    found, want = metrics.auc_interval_of_counts(*counts), metrics.auc_interval(scores, positive)
    assert found is not None and want is not None and found == pytest.approx(want, abs=1e-12)
    one = torch.tensor([0, 1])
    assert metrics.auc_interval_of_counts(counts[0][:2], one) is None  # of one positive nothing can be said
    assert metrics.auc_interval_of_counts(counts[0][:2], 0 * one) is None
    assert (
        metrics.auc_interval_of_counts(torch.tensor([9, 0]), torch.tensor([0, 9])) is None
    )  # the classes do not overlap


def test_auc_is_exact_for_many_samples() -> None:
    g = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(200_000, generator=g), torch.rand(200_000, generator=g) < 0.01
    assert metrics.auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
@settings(max_examples=50)
def test_spread_is_of_fifths(values: list[float]) -> None:
    out = metrics.spread([*values, float("nan")], "auc")
    ordered = sorted(values)
    fifth = max(1, round(len(values) / 5))
    assert out["auc_worst20"] == pytest.approx(np.mean(ordered[:fifth]))
    assert out["auc_best20"] == pytest.approx(np.mean(ordered[-fifth:]))
    assert out["auc_clients"] == pytest.approx(np.mean(values))
    assert out["auc_std"] == pytest.approx(np.std(values), abs=1e-9)
    apart = sum(abs(a - b) for a in values for b in values)
    direct = apart / (2 * len(values) * sum(values)) if sum(values) > 0 else 0.0
    assert out["auc_gini"] == pytest.approx(direct, abs=1e-9)


def test_gini_at_its_ends() -> None:
    assert metrics.spread([0.7] * 4, "auc")["auc_gini"] == pytest.approx(0.0, abs=1e-15)
    assert metrics.spread([0.0, 0.0, 0.0, 1.0], "auc")["auc_gini"] == pytest.approx(
        3 / 4
    )  # one has all: 1 - 1/n
    assert metrics.spread([0.0, 0.0], "auc")["auc_gini"] == 0.0


def test_clients_own_validation_data_are_told_apart() -> None:
    fed = _federation(3, (30, 20, 40)).holdout(0.3).holdout(0.3, into="valid")
    run = fs.train(
        fs.ERM(torch.nn.Linear(3, 1)), fs.FedAvg(lr=0.1, local_steps=2), fed, rounds=2, batch_size=4
    )
    valid = fed.valid
    assert valid is not None
    right, aucs = [], []
    for part in map(valid.client, range(3)):
        with torch.no_grad():
            scores = run.model(part["x"].float()).squeeze(-1)
        right.append(((scores > 0) == (part["y"] == 1)).double().mean().item())
        aucs.append(metrics.auc(scores, part["y"] == 1))
    assert np.isnan(aucs[0]) and not np.isnan(aucs[1:]).any()  # the first client has one class
    for name, values in (("valid_auc", aucs[1:]), ("valid_accuracy", right)):
        assert run.metrics[f"{name}_clients"] == pytest.approx(np.mean(values))
        assert run.metrics[f"{name}_worst20"] == pytest.approx(min(values))
    pooled = dataclasses.replace(fed, valid=None).with_test(valid.data["x"], valid.data["y"], into="valid")
    run = fs.train(fs.ERM(torch.nn.Linear(3, 1)), fs.FedAvg(lr=0.1), pooled, rounds=1)
    assert "valid_auc" in run.metrics and "valid_auc_worst20" not in run.metrics


def _federation(seed: int = 0, sizes: tuple[int, ...] = (9, 4, 15)) -> fs.Federation:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((sum(sizes), 3)), rng.integers(0, 2, sum(sizes))
    y[: sizes[0]] = 1  # a client with one class
    return fs.Federation.from_arrays(x, y, clients=np.repeat(np.arange(len(sizes)), sizes))


def test_phi_and_its_gradient_match_the_closed_form() -> None:
    federation = _federation()
    run = fs.train(
        fs.AUC(torch.nn.Linear(3, 1).double(), p=0.3), fs.CODASCA(lr=0.05, local_steps=2), federation, rounds=3,
        dtype="float64", batch_size=2,
    )  # fmt: skip
    v = run.z.numpy()[:-1]
    clients = [(c["x"].numpy(), c["y"].numpy()) for c in map(federation.client, range(3))]
    assert run.metrics["phi"] == pytest.approx(auc_metric.phi(v, clients, 0.3), abs=1e-12)
    gradient = auc_metric.grad_phi(v, clients, 0.3)
    assert run.metrics["grad_phi"] == pytest.approx(np.linalg.norm(gradient), abs=1e-12)
    alpha, best = run.z.numpy()[-1], auc_metric.best_alpha(v, clients, 0.3)
    assert run.metrics["dual_distance"] == pytest.approx(abs(alpha - best), abs=1e-12)
    assert run.records[-1]["dual"] == [pytest.approx(alpha, rel=1e-3)]
    assert run.metrics["single_class_clients"] == sum(len(set(y)) == 1 for _, y in clients)


def test_accuracy_and_auc_of_a_trained_classifier_match_scikit_learn() -> None:
    federation = _federation(sizes=(40, 30, 50)).holdout(0.3)
    run = fs.train(fs.ERM(torch.nn.Linear(3, 1)), fs.FedAvg(lr=0.2), federation, rounds=5)
    assert federation.test is not None
    x, y = federation.test.data["x"].float(), federation.test.data["y"]
    scores = run.model(x).detach().squeeze(-1)
    assert run.metrics["auc"] == pytest.approx(roc_auc_score(y, scores), abs=1e-9)
    assert run.metrics["accuracy"] == pytest.approx(((scores > 0) == (y == 1)).double().mean().item())


def test_cross_entropy_and_squared_report_what_they_can() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((60, 4)), rng.integers(0, 3, 60)
    clients = np.arange(60) % 4
    multi = fs.Federation.from_arrays(x, y, clients=clients)
    run = fs.train(fs.ERM(torch.nn.Linear(4, 3), loss="cross_entropy"), fs.FedAvg(lr=0.1), multi, rounds=2)
    assert {"train_accuracy", "accuracy_worst20"} <= run.metrics.keys() and "auc" not in run.metrics
    regression = fs.Federation.from_arrays(x, rng.standard_normal(60), clients=clients)
    run = fs.train(
        fs.ERM(torch.nn.Linear(4, 1), loss="squared"), fs.FedAvg(lr=0.05), regression, rounds=20
    ).finish()
    assert run.records[-1]["loss"] < run.records[0]["loss"]


@pytest.mark.parametrize("positive", [0, 1])
def test_the_squared_loss_ranks_the_positive_class_first(positive: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 3))
    y = (x[:, 0] + 0.3 * rng.standard_normal(120) > 0).astype(int)
    federation = fs.Federation.from_arrays(x, y, clients=np.arange(120) % 4)
    problem = fs.ERM(torch.nn.Linear(3, 1), loss="squared", positive=positive)
    run = fs.train(problem, fs.FedAvg(lr=0.1), federation, rounds=30)
    assert run.metrics["train_auc"] > 0.9 and run.metrics["train_accuracy"] > 0.8


def test_the_squared_loss_takes_two_classes_or_real_numbers() -> None:
    x, y, clients = np.random.default_rng(1).standard_normal((60, 4)), np.arange(60) % 3, np.arange(60) % 4
    problem = fs.ERM(torch.nn.Linear(4, 1), loss="squared")
    with pytest.raises(fs.FedsaddleError, match="two classes, but y holds 3 classes; use loss='one_hot'"):
        problem.check(fs.Federation.from_arrays(x, y, clients=clients))
    problem.check(fs.Federation.from_arrays(x, y, clients=clients, task="regression"))
    problem.check(fs.Federation.from_arrays(x, y % 2, clients=clients))


def test_scores_that_are_nan_have_no_auc():
    """A model that overflows must not get the AUC of the order of its rows."""
    nan = float("nan")
    assert np.isnan(metrics.auc(torch.full((6,), nan), torch.tensor([0, 0, 0, 1, 1, 1]).bool()))
    scores = torch.tensor([[0.1, 0.9, nan, 0.3], [0.1, 0.9, 0.2, 0.3]])
    owner, positive = torch.tensor([0, 0, 1, 1]), torch.tensor([False, True, False, True])
    values = metrics.aucs(scores, positive, owner, 2)
    assert values[0, 0] == 1 and values[0, 1].isnan() and values[1].tolist() == [1, 1]


def test_many_scorings_are_computed_in_slices(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 50, generator=generator).round(decimals=1)
    owner, positive = torch.arange(50) % 4, torch.rand(50, generator=generator) < 0.4
    whole = metrics.aucs(scores, positive, owner, 4)
    monkeypatch.setattr(metrics, "_NUMBERS_AT_ONCE", 100)
    torch.testing.assert_close(metrics.aucs(scores, positive, owner, 4), whole)


@pytest.mark.parametrize("weights", ["clients", "samples"])
def test_the_gradient_of_phi_vanishes_where_training_by_these_weights_ends(weights: str) -> None:
    fed = _federation(sizes=(60, 8, 5))
    problem = fs.AUC(torch.nn.Linear(3, 1), p="pooled" if weights == "samples" else "client_mean")
    algorithm = fs.CODASCA(lr=0.2, local_steps=5, weights=weights)
    run = fs.train(problem, algorithm, fed, rounds=300, batch_size=None, dtype="float64", progress=False)
    assert run.metrics["grad_phi"] < 1e-6 and run.metrics["dual_distance"] < 1e-6


@pytest.mark.parametrize("problem", [fs.AUC, fs.ERM, fs.PairwiseAUC])
def test_without_monitors_training_data_are_left_alone(problem: type[fs.Problem], monkeypatch) -> None:
    looked: list[str] = []
    own = _federation(sizes=(40, 30, 50))
    fed = own.with_test(own.data["x"][:90], own.data["y"][:90])  # which no client owns
    algorithm = fs.RSPairwise(local_steps=1) if problem is fs.PairwiseAUC else fs.LocalSGDA(local_steps=1)

    def trained(monitors: bool) -> fs.Run:
        torch.manual_seed(0)
        model = torch.nn.Linear(fed.data["x"].shape[1], 1)
        run = fs.train(problem(model, monitors=monitors), algorithm, fed, rounds=2, progress=False)
        looked.clear()
        monkeypatch.setattr(metrics.Split, "pieces", watched)
        run.finish()
        monkeypatch.undo()
        return run

    pieces = metrics.Split.pieces

    def watched(split: metrics.Split, *args: object) -> object:
        looked.append("train" if split.n_clients == fed.n_clients else "test")
        return pieces(split, *args)

    all_of_it = trained(True)
    assert "train" in looked
    less = trained(False)
    assert set(looked) == {"test"}
    assert torch.equal(less.state.z, all_of_it.state.z)
    assert less.metrics.keys() < all_of_it.metrics.keys() and not less.by_client
    assert less.metrics.items() - {("seconds", less.metrics["seconds"])} <= all_of_it.metrics.items()


def delong(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUCs of k scorings [k, n] and their covariance, pair by pair (DeLong et al. 1988, equations (1) to (6))."""
    above = scores[:, labels][:, :, None] - scores[:, ~labels][:, None, :]
    psi = (above > 0) + 0.5 * (above == 0)  # [k, positives, negatives]
    v10, v01 = psi.mean(2), psi.mean(1)
    covariance = np.cov(v10) / v10.shape[1] + np.cov(v01) / v01.shape[1]
    return psi.mean((1, 2)), np.atleast_2d(covariance)


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_intervals_of_auc_are_delong_s(seed: int, n_pos: int, n_neg: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n_pos + n_neg) < n_pos)
    scores = rng.integers(0, 6, size=(2, n_pos + n_neg)) + labels  # with ties
    (a, b), covariance = delong(scores, labels)
    one, other, positive = (torch.from_numpy(v) for v in (*scores.astype(float), labels))
    sure, error = metrics.auc_interval(one, positive), np.sqrt(covariance[0, 0])
    if a in (0, 1) or error == 0:  # as where all scores are equal
        assert sure is None
    else:
        assert sure is not None and sure.value == pytest.approx(a, abs=1e-12)
        logit = [np.log(v / (1 - v)) for v in (sure.low, a, sure.high)]
        assert np.diff(logit) == pytest.approx([1.959964 * error / (a * (1 - a))] * 2, abs=1e-9)
    ahead = metrics.auc_difference(one, other, positive)
    error = np.sqrt(max(0.0, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]))
    assert ahead is not None and ahead.value == pytest.approx(a - b, abs=1e-12)
    assert [ahead.low, ahead.high] == pytest.approx(
        [a - b - 1.959964 * error, a - b + 1.959964 * error], abs=1e-7
    )


@given(st.integers(0, 10_000), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_interval_of_a_mean_auc_is_delong_s(seed: int, k: int) -> None:
    """Of runs over seeds on the same samples: the variance of the mean is the mean of all covariances."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(30) < 12)
    scores = rng.integers(0, 9, size=(k, 30)) + 2 * labels
    values, covariance = delong(scores, labels)
    a, error = values.mean(), np.sqrt(covariance.mean())
    rows, positive = torch.from_numpy(scores.astype(float)), torch.from_numpy(labels)
    sure = metrics.auc_interval(rows, positive)
    assert sure is not None and sure.value == pytest.approx(a, abs=1e-12)
    logit = [np.log(v / (1 - v)) for v in (sure.low, a, sure.high)]
    assert np.diff(logit) == pytest.approx([1.959964 * error / (a * (1 - a))] * 2, abs=1e-9)
    again = metrics.auc_interval(rows[:1].expand(4, -1), positive)  # a seed that changes nothing
    assert again == pytest.approx(metrics.auc_interval(rows[0], positive), abs=1e-12)


def test_the_interval_of_a_mean_auc_is_that_of_resampled_samples() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(240) < 60
    shared = rng.standard_normal(240) + labels
    scores = shared + 0.4 * rng.standard_normal((3, 240))
    means = []
    for _ in range(800):
        drawn = np.concatenate([rng.choice(np.flatnonzero(labels == y), (labels == y).sum()) for y in (1, 0)])
        means.append(np.mean([roc_auc_score(labels[drawn], own[drawn]) for own in scores]))
    sure = metrics.auc_interval(torch.from_numpy(scores), torch.from_numpy(labels))
    assert sure is not None
    assert [sure.low, sure.high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.012)


def test_intervals_of_auc_hold_the_truth_as_often_as_they_say() -> None:
    g = torch.Generator().manual_seed(0)
    positive = torch.arange(200) < 40
    truth, difference = 0.7602, 0.0  # P(N(1, 1) > N(0, 1)); both scorings are equally good
    inside, inside_paired, widths = 0, 0, []
    for _ in range(600):
        common = torch.randn(200, generator=g) + positive
        one, other = (common + 0.3 * torch.randn(200, generator=g) for _ in range(2))
        sure, ahead = metrics.auc_interval(common, positive), metrics.auc_difference(one, other, positive)
        assert sure is not None and ahead is not None
        inside += sure.low < truth < sure.high
        inside_paired += ahead.low < difference < ahead.high
        widths.append((sure.high - sure.low) / (ahead.high - ahead.low))
    assert 0.92 < inside / 600 < 0.98 and 0.92 < inside_paired / 600 < 0.98
    assert np.median(widths) > 2  # the same samples: what they have in common does not blur the difference


def test_an_auc_of_one_sample_a_class_has_no_interval() -> None:
    scores = torch.tensor([0.3, 0.1, 0.2])
    assert metrics.auc_interval(scores, torch.tensor([True, False, False])) is None
    assert metrics.auc_interval(scores, torch.tensor([False, False, False])) is None
    assert metrics.auc_difference(scores, -scores, torch.tensor([True, False, False])) is None


def test_equal_scores_and_undefined_ones_have_no_interval() -> None:
    positive = torch.arange(10) < 4
    assert metrics.auc_interval(torch.zeros(10), positive) is None
    odd = torch.arange(10.0).roll(3)
    assert metrics.auc_interval(odd, positive) is not None
    odd[5] = torch.nan
    assert metrics.auc_interval(odd, positive) is None
    assert metrics.auc_difference(odd, torch.arange(10.0), positive) is None


def test_every_metric_has_a_name() -> None:
    """Of all problems and algorithms; what has none would stand in reports as it is spelled in the code."""
    known = [
        c for c in harness.CASES.values() if c.twin != "cross_entropy"
    ]  # which asks for the names of classes
    cases = {(type(case.algorithm), case.twin): case for case in known}
    for case in cases.values():
        algorithm, twin = case.algorithm, harness.TWINS[case.twin]
        if isinstance(algorithm, fs.FFMDR):
            algorithm = dataclasses.replace(algorithm, monitor=True)
        data = twin.data().holdout(0.2) if case.twin.startswith(("auc", "pairs", "logistic")) else twin.data()
        run = fs.train(
            twin.problem(), algorithm, data, rounds=1, participation=case.participation, batch_size=2
        )
        for record in run:
            assert [key for key in record.keys() - names(Of.parts) if in_words(key) == key] == []
