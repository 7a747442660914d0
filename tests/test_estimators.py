"""The scikit-learn estimators: scikit-learn's own checks, messy data, searches, calibration, saving."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, brier_score_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedsaddle as fs
from fedsaddle import FedsaddleError, estimators, steps
from fedsaddle.drafts import AIMS

ESTIMATORS = (fs.FederatedAUCClassifier, fs.FairFederatedClassifier, fs.FederatedPairwiseRanker)
EXPECTED_TO_FAIL: dict[str, str] = {}  # check -> reason; there is none


def quick(kind: Any, **options: Any) -> Any:
    """Few rounds with a step that is given: a fit is a fraction of a second."""
    if kind is fs.FederatedAUCClassifier:
        options.setdefault("algorithm_params", {"lr": 0.01, "local_steps": 5})
    return kind(**{"rounds": 4, "random_state": 0, "train_params": {"eval_every": 4}} | options)


@pytest.fixture(scope="module")
def tumours() -> tuple[pandas.DataFrame, np.ndarray, np.ndarray]:
    """A frame, text labels, and five sites of unequal size by tumour radius: the first and the last have one class."""
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    site = np.digitize(x["mean radius"], [9.5, 12, 15, 20])
    label = np.where(y == 0, "malignant", "benign")
    assert {len(set(label[site == s])) for s in range(5)} == {1, 2}
    return x, label, site


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in ESTIMATORS), (fs.FederatedAUCClassifier, {"impute": "median"})],
)
def test_scikit_learns_own_checks_pass(kind: Any, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = quick(kind, n_sites=2, **options)
        found = check_estimator(
            estimator, on_fail=None, on_skip=None, expected_failed_checks=EXPECTED_TO_FAIL
        )
    assert [(r["check_name"], r["exception"]) for r in found if r["status"] == "failed"] == []
    assert sum(r["status"] == "passed" for r in found) > 45


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_messy_sites_are_learned(kind: Any, tumours: Any) -> None:
    x, label, site = tumours
    held = np.random.default_rng(1).random(len(label)) < 0.3
    names = np.array(["a", "b", "c", "d", "e"], dtype=object)[site]
    estimator = kind(rounds=20, random_state=0).fit(x[~held], label[~held], groups=names[~held])
    assert list(estimator.classes_) == ["benign", "malignant"] and estimator.n_features_in_ == 30
    assert list(estimator.feature_names_in_) == list(x.columns)
    assert estimator.run_.federation.names == ("a", "b", "c", "d", "e")
    score, y = estimator.decision_function(x[held]), label[held] == "malignant"
    assert roc_auc_score(y, score) > 0.98
    p = estimator.predict_proba(x[held])
    assert np.allclose(p.sum(1), 1) and brier_score_loss(y, p[:, 1]) < 0.05
    assert ((p[:, 1] > 0.5) == (estimator.predict(x[held]) == "malignant")).all()
    own = accuracy_score if kind is fs.FairFederatedClassifier else roc_auc_score
    found = estimator.predict(x[held]) if own is accuracy_score else score
    assert estimator.score(x[held], label[held]) == pytest.approx(own(label[held], found))
    assert estimator.n_iter_ == 20 and estimator.history_.index[-1] == 20


def test_the_auc_classifier_finds_a_step_where_a_large_one_diverges(tumours: Any) -> None:
    x, label, site = tumours
    with pytest.warns(UserWarning, match="guard"):
        fixed = fs.FederatedAUCClassifier(rounds=20, random_state=0, algorithm_params={"lr": 0.3})
        try:
            fixed.fit(x, label, groups=site)
            assert fixed.score(x, label) < 0.95
        except FedsaddleError as error:
            assert "diverged" in str(error)
    found = fs.FederatedAUCClassifier(rounds=20, random_state=0).fit(x, label, groups=site)
    assert found.score(x, label) > 0.98 and found.run_.algorithm.lr < 0.3


@pytest.mark.parametrize("weights", ["clients", "samples"])
def test_p_goes_with_the_weights(tumours: Any, weights: str, recwarn: pytest.WarningsRecorder) -> None:
    x, label, site = tumours
    given = {"lr": 0.01, "weights": weights}
    fitted = fs.FederatedAUCClassifier(rounds=1, random_state=0, algorithm_params=given).fit(
        x, label, groups=site
    )
    by_site = fitted.run_.federation.class_counts()
    pooled, equal = by_site.sum(0)[1] / by_site.sum(), (by_site[:, 1] / by_site.sum(1)).mean()
    assert abs(pooled - equal) > 1e-3
    expected = equal if weights == "clients" else pooled
    assert fitted.run_.clients.problem.p == pytest.approx(expected)  # type: ignore[attr-defined]
    assert not [w for w in recwarn if "client_mean" in str(w.message)]


def test_what_differs_from_a_run_of_new_can_be_set(tumours: Any) -> None:
    """As the documentation says: the rows held out, the weights of sites and the step."""
    x, label, site = tumours
    given = {"lr": 0.1, "weights": "samples"}
    own = fs.FederatedAUCClassifier(rounds=2, random_state=0, calibration_share=0, algorithm_params=given)
    own.fit(x, label, groups=site)
    written = AIMS["auc"]
    federation = fs.Federation.from_arrays(x.to_numpy(), label, clients=site).scaled("standard")
    problem = fs.AUC(fs.models.Linear(30, zero=True), p=written.problem["p"])
    algorithm = fs.CODASCA(**{k: v for k, v in written.algorithm.items() if k != "name"})
    run = fs.train(problem, algorithm, federation, rounds=2, batch_size=32, seed=own.run_.seed)
    assert torch.equal(run.finish().z, own.run_.z)
    assert own.run_.algorithm == algorithm and own.run_.algorithm.lr == 0.1


def test_a_step_under_which_the_loss_grows_is_said(tumours: Any) -> None:
    """Still finite, and its ranking is the wrong way round."""
    x, label, site = tumours
    with pytest.warns(
        UserWarning,
        match=r"The objective phi ended at .*e\+.*, above the 0 it began with: .* Without lr one is found",
    ):
        assert (
            quick(fs.FederatedAUCClassifier, algorithm_params={"lr": 0.05})
            .fit(x, label, groups=site)
            .score(x, label)
            < 0.5
        )


def test_a_step_that_does_not_hold_to_the_end_gives_way_to_a_smaller_one(
    tumours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, label, site = tumours
    trials = [-0.5, -1.0, -0.8, -0.3, -0.2, -0.1]  # of which 0.1 is best
    ends = iter([*trials, -0.9, -0.8])  # it fails, 0.03 holds
    for module in (steps, estimators):
        monkeypatch.setattr(module, "objective", lambda run: run.finish() and next(ends))
    found = fs.FederatedAUCClassifier(rounds=2, random_state=0).fit(x, label, groups=site)
    assert found.run_.algorithm.lr == 0.03 and next(ends, None) is None


def test_calibration_never_turns_the_ranking_round() -> None:
    score, y = np.linspace(-1, 1, 100)[:, None], np.arange(100) < 20  # the lowest scores are positive
    ((slope, intercept),) = estimators._calibration(score, y)
    p = 1 / (1 + np.exp(-slope * score - intercept))
    assert slope > 0 and abs(p - 0.2).max() < 0.01


def test_scores_are_of_raw_features_and_rank_as_the_model(tumours: Any) -> None:
    x, label, site = tumours
    estimator = quick(fs.FederatedAUCClassifier).fit(x, label, groups=site)
    federation = estimator.run_.federation
    scaled = (x.to_numpy() - federation.scaling.shift.numpy()) / federation.scaling.width.numpy()
    with torch.no_grad():
        model = estimator.run_.model(torch.from_numpy(scaled).float()).squeeze(1).numpy()
        raw = estimator.model_(torch.from_numpy(x.to_numpy())).squeeze(1).numpy()
    assert np.allclose(model, raw, atol=1e-5)
    slope, intercept = estimator.calibration_[0]
    assert slope > 0 and np.allclose(estimator.decision_function(x), slope * raw + intercept)
    train = federation.data["x"].double()
    assert train.mean(0).abs().max() < 1e-3 and (train.std(0, correction=0) - 1).abs().max() < 1e-3


def test_probabilities_are_calibrated_on_held_out_rows() -> None:
    """Labels that features say nothing of: a network that learns them by heart must not be sure of anything."""
    rng = np.random.default_rng(0)
    x, y, site = rng.standard_normal((300, 40)), rng.random(300) < 0.3, np.arange(300) % 3
    options: Any = {"model": "mlp", "rounds": 30, "algorithm_params": {"tau": 6.0}}
    held = quick(fs.FairFederatedClassifier, **options).fit(x, y, groups=site)
    assert held.run_.federation.valid.n_samples == 60
    assert held.history_["train_accuracy"].iloc[-1] > 0.95
    new = rng.standard_normal((1000, 40))
    assert abs(held.predict_proba(new)[:, 1] - 0.3).mean() < 0.15
    sure = quick(fs.FairFederatedClassifier, **options, calibration_share=0).fit(x, y, groups=site)
    assert sure.run_.federation.valid is None
    assert abs(sure.predict_proba(new)[:, 1] - 0.3).mean() > 0.2


def test_too_few_rows_to_hold_out_are_said() -> None:
    x, y = np.arange(12.0)[:, None], np.arange(12) > 8
    with pytest.warns(UserWarning, match="only [01] rows of class .* can be held out, calibration needs 5"):
        quick(fs.FairFederatedClassifier).fit(x, y, groups=np.arange(12) % 2)


def test_fair_classifier_scores_the_worst_sites_and_helps_them() -> None:
    """One site of six has the opposite relation of the second feature: the average gives it up, the worst one counts."""
    rng = np.random.default_rng(0)
    x, site = rng.standard_normal((900, 2)), np.arange(900) % 6
    y = np.where(site == 0, -1, 1) * 2 * x[:, 1] + x[:, 0] + 0.3 * rng.standard_normal(900) > 0
    fair, plain = (
        quick(fs.FairFederatedClassifier, rounds=30, algorithm_params={"ambiguity": a, "tau": 1.0}).fit(
            x, y, groups=site
        )
        for a in ("afl", "average")
    )
    by_site = [accuracy_score(y[site == s], plain.predict(x[site == s])) for s in range(6)]
    assert plain.score(x, y, groups=site) == pytest.approx(min(by_site))
    assert fair.score(x, y, groups=site) > plain.score(x, y, groups=site) + 0.1
    assert plain.score(x, y) > fair.score(x, y)


def test_several_classes_and_own_modules() -> None:
    x, y = load_iris(return_X_y=True)
    site = np.arange(150) % 4
    named = np.array(["s", "ve", "vi"])[y]
    fair = fs.FairFederatedClassifier("mlp", rounds=20, random_state=0).fit(x, named, groups=site)
    assert fair.predict_proba(x).shape == (150, 3) and fair.score(x, named) > 0.9
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    before = copy.deepcopy(net.state_dict())
    two = clone(fs.FairFederatedClassifier(net, rounds=20, random_state=0)).fit(x, y > 1, groups=site)
    assert two.decision_function(x).shape == (150,) and two.score(x, y > 1) > 0.9
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    images = x[:, None, :, None].repeat(3, 3)  # [150, 1, 4, 3]
    cnn = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 2), torch.nn.Flatten(), torch.nn.Linear(12, 1))
    assert (
        quick(fs.FederatedPairwiseRanker, model=cnn, rounds=10)
        .fit(images, y > 0, groups=site)
        .score(images, y > 0)
        > 0.9
    )


def test_in_a_pipeline_and_a_search_over_groups(tumours: Any) -> None:
    x, label, site = tumours
    sites = site % 3
    with sklearn.config_context(enable_metadata_routing=True):
        inner = quick(fs.FederatedAUCClassifier, scale="none").set_fit_request(groups=True)
        pipe = make_pipeline(StandardScaler(), inner)
        grid = {"federatedaucclassifier__algorithm_params": [{"lr": 1e-6}, {"lr": 0.03}]}
        search = GridSearchCV(pipe, grid, cv=GroupKFold(3)).fit(x, label, groups=sites)
    assert search.best_params_["federatedaucclassifier__algorithm_params"] == {"lr": 0.03}
    assert search.best_score_ > 0.95  # an AUC
    assert search.best_estimator_[1].run_.federation.n_clients == 3


def test_without_groups_rows_are_dealt_and_that_is_said(tumours: Any) -> None:
    x, label, site = tumours
    with pytest.warns(
        UserWarning, match="no groups given, so rows are dealt at random to 10 sites; pass groups=site"
    ):
        dealt = quick(fs.FederatedAUCClassifier).fit(x, label)
    with pytest.warns(
        UserWarning, match=r"in a Pipeline STEP__groups=site; .*set_fit_request\(groups=True\)"
    ):
        pipe = make_pipeline(quick(fs.FederatedAUCClassifier)).fit(x, label)
    with pytest.raises(
        FedsaddleError, match=r"Pipeline cannot be exported; give pipeline\[-1\]; its input is"
    ):
        fs.export_onnx(pipe, "nowhere.onnx")  # type: ignore[arg-type]
    pipe.fit(x, label, federatedaucclassifier__groups=site)  # as it says
    assert pipe[-1].run_.federation.n_clients == 5
    assert dealt.run_.federation.n_clients == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".* phi ")  # after four rounds
        assert quick(fs.FederatedAUCClassifier, n_sites=3).fit(x, label).run_.federation.n_clients == 3
    with pytest.warns(UserWarning, match="n_sites = 3 is not used"):
        assert (
            quick(fs.FederatedAUCClassifier, n_sites=3).fit(x, label, groups=site).run_.federation.n_clients
            == 5
        )


def test_random_state_decides_everything(tumours: Any) -> None:
    x, label, site = tumours
    a, b, c = (
        quick(fs.FederatedPairwiseRanker, random_state=s).fit(x, label, groups=site).decision_function(x)
        for s in (1, 1, 2)
    )
    assert (a == b).all() and not np.allclose(a, c)


def test_any_algorithm_by_name_or_as_an_object(tumours: Any) -> None:
    x, label, site = tumours
    named = quick(fs.FederatedAUCClassifier, algorithm="coda_plus", algorithm_params={"lr": 0.02}).fit(
        x, label, groups=site
    )
    made = quick(fs.FederatedAUCClassifier, algorithm=fs.CODAPlus(lr=0.02), algorithm_params=None).fit(
        x, label, groups=site
    )
    assert type(named.run_.algorithm) is fs.CODAPlus
    assert (named.decision_function(x) == made.decision_function(x)).all()
    loss = quick(fs.FederatedPairwiseRanker, loss="barrier_hinge", loss_params={"tau": 3.0}).fit(
        x, label, groups=site
    )
    assert loss.run_.problem.loss == "barrier_hinge" and loss.run_.problem.tau == 3.0


@pytest.mark.parametrize(
    "loss", ["square", "squared_hinge", "logistic", "sigmoid", "barrier_hinge", "q_norm_hinge"]
)
def test_every_loss_of_pairs_learns_from_zero(loss: str, tumours: Any) -> None:
    x, label, site = tumours
    ranker = quick(fs.FederatedPairwiseRanker, loss=loss, algorithm_params={"lr": 0.01})
    assert ranker.fit(x, label, groups=site).score(x, label) > 0.95


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"y": np.repeat("a", 569)},
            "FederatedAUCClassifier: y has one class, 'a'; a classifier needs two",
        ),
        ({"y": np.zeros(569, dtype=int)}, "y has one class, 0; a classifier needs two"),
        ({"y": np.arange(569) % 3}, "y has 3 classes: make one of them positive, such as y == 2"),
        ({"groups": np.zeros(569)}, r"needs at least 2 clients, got 1 \('0'\): check the group column"),
        ({"model": 3}, "model must be a name or an nn.Module, got int"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"algorithm_params": {"lrr": 1}}, "algorithm.lrr: unknown key, did you mean 'lr'"),
        ({"algorithm": "codsca"}, "did you mean 'codasca'"),
        ({"algorithm": fs.CODASCA()}, "algorithm_params has no use with an Algorithm"),
        ({"calibration_share": 1.0}, r"calibration_share must be in \[0, 1\), got 1.0"),
        ({"n_sites": 1, "groups": None}, "n_sites must be >= 2, got 1"),
        ({"algorithm": "rs_pairwise", "algorithm_params": None}, "use PairwiseAUC"),
        (
            {"y": np.array(["a", "b", None] * 190, dtype=object)[:569]},
            "FederatedAUCClassifier: y has no value in 189 of 569 rows, the first at row 2: drop rows without a label, or",
        ),
        (
            {"y": np.where(np.arange(569) == 5, np.nan, np.arange(569) % 2)},
            "y has no value at row 5: drop rows",
        ),
        ({"y": pandas.Series(["a", "b", None] * 190)[:569]}, "y has no value in 189 of 569 rows"),
        (
            {"groups": np.array(["a", "b", None] * 190)[:569]},
            "Classifier: groups has no value in 189 of 569 rows",
        ),
        (
            {"algorithm": "fedavg", "algorithm_params": None},
            r"FedAvg minimises a loss of single rows, which the AUC is not; FairFederatedClassifier\(algorithm='fedavg'\)",
        ),
        ({"train_params": {"devise": "cpu"}}, "'devise' is no argument of fs.train; did you mean 'device'"),
        ({"train_params": {"seed": 1}}, "train_params: seed has no use there; set random_state"),
    ],
)
def test_mistakes_are_one_clear_line(change: dict[str, Any], message: str, tumours: Any) -> None:
    x, label, site = tumours
    given = {"y": label, "groups": site} | {k: change[k] for k in ("y", "groups") if k in change}
    options = {k: v for k, v in change.items() if k not in given}
    with pytest.raises(FedsaddleError, match=message) as error:
        quick(fs.FederatedAUCClassifier, **options).fit(x, **given)
    assert "\n" not in str(error.value)


def test_a_plain_loss_is_minimised_by_the_fair_classifier(tumours: Any) -> None:
    """As its message and the documentation say: FedAvg on the mean log loss of the sites."""
    x, label, site = tumours
    module = torch.nn.Linear(30, 1)
    own = quick(fs.FairFederatedClassifier, algorithm="fedavg", model=module, calibration_share=0.0)
    own.fit(x, label, groups=site)
    federation = fs.Federation.from_arrays(x.to_numpy(), label, clients=site).scaled("standard")
    settings = {"rounds": 4, "batch_size": 32, "seed": own.run_.seed}
    by_hand = fs.train(fs.ERM(module, "logistic"), fs.FedAvg(), federation, **settings)
    assert torch.equal(by_hand.finish().z, own.run_.z)


@pytest.mark.parametrize("kind", [fs.FederatedAUCClassifier, fs.FederatedPairwiseRanker])
def test_the_auc_of_one_class_is_nan_and_said_in_one_line(kind: Any, tumours: Any) -> None:
    x, label, site = tumours
    fitted = quick(kind).fit(x, label, groups=site)
    one = site == 4  # has malignant tumours only
    with pytest.warns(UserWarning) as said:
        assert np.isnan(fitted.score(x[one], label[one]))
    (warning,) = said
    assert warning.filename == __file__
    assert str(warning.message) == (
        f"{kind.__name__}: all {one.sum()} rows to score are of class 'malignant', and an AUC needs both, so the score is "
        "NaN; in a search take fewer folds, so that each has both classes"
    )


def test_bad_cells_are_named(tumours: Any) -> None:
    x, label, site = tumours
    holes = x.copy()
    holes.loc[7, "mean area"] = np.nan
    with pytest.raises(
        FedsaddleError, match=r"X has NaN at row 7, column 'mean area' \(3\): fill it: impute=\"median\", or"
    ):
        quick(fs.FederatedAUCClassifier).fit(holes, label, groups=site)
    fitted = quick(fs.FederatedAUCClassifier).fit(x, label, groups=site)
    with pytest.raises(FedsaddleError, match="X has NaN at row 7"):
        fitted.predict(holes)
    with pytest.raises(FedsaddleError, match="model must have parameters to train, Identity has none"):
        quick(fs.FairFederatedClassifier, model=torch.nn.Identity()).fit(x, label, groups=site)
    text = r"groups must be an array, one entry a row, got 'site'; of a data frame: groups=df\['site'\]"
    with pytest.raises(FedsaddleError, match=text):
        fs.FederatedAUCClassifier().fit(np.zeros((4, 1)), [0, 1, 0, 1], groups="site")
    fair = quick(fs.FairFederatedClassifier).fit(x, label, groups=site)
    with pytest.raises(FedsaddleError, match=text):
        fair.score(x, label, groups="site")
    with pytest.raises(TypeError, match="abstract"):
        estimators.FederatedClassifier()
    with pytest.raises(FedsaddleError, match="training had numbers in 'mean area'; got 'big' at row 0: "):
        fitted.predict(x.assign(**{"mean area": "big"}))
    with pytest.raises(FedsaddleError, match="column 'mean area' is not numeric"):
        unnamed = quick(fs.FederatedAUCClassifier).fit(x.to_numpy(), label, groups=site)
        unnamed.predict(x.assign(**{"mean area": "big"}))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_text_columns_of_a_frame_become_columns_of_zeros_and_ones(
    kind: Any, tumours: Any, tmp_path: Path
) -> None:
    x, label, site = tumours
    ward = np.array(["east", "north", "west"])[np.arange(len(x)) % 3]
    frame = x[["mean radius", "mean texture"]].assign(ward=ward, smoker=pandas.Categorical(label == "benign"))
    by_hand = x[["mean radius", "mean texture"]].assign(
        **{f"ward={w}": (ward == w) * 1.0 for w in ("east", "north", "west")},
        **{f"smoker={v}": ((label == "benign") == v) * 1.0 for v in (False, True)},
    )
    fitted = quick(kind).fit(frame, label, groups=site)
    odds = fitted.decision_function(frame)
    assert np.array_equal(odds, quick(kind).fit(by_hand, label, groups=site).decision_function(by_hand))
    assert list(fitted.feature_names_in_) == list(frame.columns) and fitted.n_features_in_ == 4
    assert fitted.model_.features == tuple(by_hand.columns)
    few = frame.iloc[:2]  # has not all values
    assert np.allclose(fitted.decision_function(few), odds[:2])

    fitted.save(tmp_path / "model.safetensors")
    for copied in (kind.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(fitted))):
        assert np.array_equal(copied.decision_function(frame), odds)
        assert list(copied.feature_names_in_) == list(frame.columns)
    for predict in (fitted.predict, fitted.predict_proba, fitted.decision_function):  # of different depths
        with pytest.warns(UserWarning, match="column 'ward': training had no 'south'; 1 of 2 rows") as said:
            predict(few.assign(ward=["south", "east"]))
        assert {w.filename for w in said} == {__file__}
    with pytest.raises(FedsaddleError, match="X must be a data frame with the columns 'mean radius', "):
        fitted.predict(by_hand.to_numpy()[:, :4])
    with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
        fitted.predict(frame.rename(columns={"ward": "wing"}))
    with pytest.raises(FedsaddleError, match=r"columns of a frame with text must have texts as names, got 0"):
        quick(kind).fit(frame.set_axis(range(4), axis=1), label, groups=site)
    with pytest.raises(
        FedsaddleError, match="two features are called 'ward=east', a column and a value of another"
    ):
        quick(kind).fit(frame.assign(**{"ward=east": 1.0}), label, groups=site)
    with pytest.raises(FedsaddleError, match=r"column 'mean radius' .*: fill it: impute=\"median\""):
        fitted.predict(frame.assign(**{"mean radius": np.nan}))
    assert not any(p.requires_grad for p in copied.model_.parameters())
    holes = frame.assign(ward=np.where(np.arange(len(x)) == 5, None, ward))
    with pytest.raises(
        FedsaddleError, match=f"{kind.__name__}: 1 column has gaps .*'ward' at row 5: fill it"
    ):
        quick(kind).fit(holes, label, groups=site)
    number = [f"n{i}" for i in range(len(x))]
    wide = (
        "column 'id' is text with 569 distinct values, at most 50 can be features: drop the column, or group"
    )
    with pytest.raises(FedsaddleError, match=f"1 column has gaps .*; also {wide}"):
        quick(kind).fit(holes.assign(id=number), label, groups=site)
    with pytest.raises(FedsaddleError, match=f"^{wide}"):
        quick(kind).fit(frame.assign(id=number), label, groups=site)
    with pytest.raises(
        FedsaddleError, match=r"2 columns are text .* \('id' 569, 'no' 569\), at most 50 .*: drop the columns"
    ):
        quick(kind).fit(frame.assign(id=number, no=number), label, groups=site)
    assert fitted.fit(x, label, groups=site).decision_function(x.to_numpy()).shape == (
        len(x),
    )  # all numbers now


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_weights_of_text_columns_do_not_hang_on_the_seed(kind: Any) -> None:
    """The columns of a text sum to 1: along that direction data say nothing, and a random start would stay."""
    rng, n = np.random.default_rng(0), 600
    jobs = np.array(["cook", "driver", "miner", "nurse", "teacher"])
    x = pandas.DataFrame({"age": rng.normal(45, 12, n), "job": rng.choice(jobs, n)})
    risk = 0.05 * (x["age"] - 45) + (x["job"] == "miner") - (x["job"] == "teacher") + rng.logistic(size=n)
    unseen = pandas.DataFrame({"age": 45.0, "job": [*jobs, "pilot"]})
    weights, pilots = [], []
    for seed in (0, 1):
        fitted = kind(rounds=60, random_state=seed, calibration_share=0).fit(
            x, risk > 0.5, groups=np.arange(n) % 3
        )
        assert roc_auc_score(risk > 0.5, fitted.decision_function(x)) > 0.7
        weight = fitted.model_.model[1].weight[0].numpy()
        weights.append(weight / np.linalg.norm(weight))
        with pytest.warns(UserWarning, match="training had no 'pilot'"):
            odds = fitted.decision_function(unseen)
        pilots.append(odds[-1] - odds[:-1].mean())
    assert np.abs(weights[0] - weights[1]).max() < 0.1
    assert np.abs(pilots).max() < 0.1  # as an average job


def test_gaps_are_filled_where_asked_for(tumours: Any, tmp_path: Path) -> None:
    x, label, site = tumours
    frame = x[["mean radius", "mean texture"]].assign(ward=np.where(site > 2, "east", "west"))
    holes = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.1)
    fitted = quick(fs.FederatedAUCClassifier, impute="median").fit(holes, label, groups=site)
    assert fitted.model_.features[2:] == ("ward=east", "ward=missing", "ward=west")
    federation = fs.Federation.from_frame(
        holes.assign(label=label, site=site), group="site", label="label", impute="median"
    ).holdout(0.2, fitted.run_.seed, into="valid")
    assert torch.allclose(
        fitted.model_.fill, federation.filling.values, atol=1e-5
    )  # of the rows that are trained on
    odds = fitted.decision_function(holes)
    by_hand = holes.fillna(dict(zip(holes.columns[:2], fitted.model_.fill[0, :2].tolist(), strict=True)))
    assert np.array_equal(odds, fitted.decision_function(by_hand)) and np.isfinite(odds).all()
    fitted.save(tmp_path / "model.safetensors")
    for copied in (
        fs.FederatedAUCClassifier.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(fitted)),
    ):  # fmt: skip
        assert np.array_equal(copied.decision_function(holes), odds)
    logs = quick(fs.FederatedAUCClassifier, impute="median", scale="log").fit(holes, label, groups=site)
    logs.save(tmp_path / "model.safetensors")
    for copied in (
        fs.FederatedAUCClassifier.load(tmp_path / "model.safetensors"),
        pickle.loads(pickle.dumps(logs)),
    ):
        assert np.array_equal(copied.decision_function(holes), logs.decision_function(holes))
    with pytest.raises(
        FedsaddleError, match=r"X has inf at row 3, column 'mean radius' .*: replace it, or drop"
    ):
        fitted.predict(holes.assign(**{"mean radius": np.where(np.arange(len(x)) == 3, np.inf, 1.0)}))
    smokes = frame[["mean radius"]].assign(
        smoker=pandas.Series([True, pandas.NA, False], dtype=object)[np.arange(len(x)) % 3].to_numpy()
    )
    assert (
        quick(fs.FederatedAUCClassifier, impute="mean").fit(smokes, label, groups=site).score(smokes, label)
        > 0.8
    )
    with pytest.raises(FedsaddleError, match="impute must be 'none', 'median' or 'mean', got 'mode'"):
        quick(fs.FederatedAUCClassifier, impute="mode").fit(holes, label, groups=site)


def test_a_search_takes_frames_with_text(tumours: Any) -> None:
    x, label, site = tumours
    frame = x[["mean radius"]].assign(
        ward=np.where(site < 2, "east", "west")
    )  # some folds have one ward only
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="column 'ward': training had no")
        warnings.filterwarnings("ignore", message=".*can be held out, calibration needs")
        base = quick(fs.FederatedPairwiseRanker).set_fit_request(groups=True)
        search = GridSearchCV(
            base, {"regulariser": [None, "l2(0.01)"]}, cv=GroupKFold(2), error_score="raise"
        )
        search.fit(frame, label, groups=site)
    assert search.score(frame, label) > 0.9


def test_rows_in_any_layout(tumours: Any) -> None:
    x, label, site = tumours
    values = x.to_numpy().copy()
    fitted = quick(fs.FederatedAUCClassifier).fit(values, label, groups=site)
    backwards = quick(fs.FederatedAUCClassifier).fit(values[:, ::-1], label, groups=site)
    assert backwards.score(values[:, ::-1], label) > 0.9
    odds = fitted.decision_function(values)
    assert np.allclose(fitted.decision_function(values[::-1]), odds[::-1])
    assert np.allclose(fitted.decision_function(np.asfortranarray(values)), odds)


def test_a_fit_that_fails_leaves_nothing_fitted(tumours: Any) -> None:
    x, label, site = tumours
    estimator = quick(fs.FederatedAUCClassifier).fit(x, label, groups=site)
    with (
        pytest.raises(FedsaddleError, match="diverged"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        estimator.set_params(algorithm_params={"lr": 1e30}).fit(x, label == "benign", groups=site)
    with pytest.raises(NotFittedError):
        estimator.predict(x)


def test_probabilities_of_rows_far_from_every_class() -> None:
    """Each class alone is too unlikely for a float, their shares are not."""
    odds = torch.tensor([[-800.0, -801.0, -900.0], [0.0, 0.0, 0.0], [60.0, -5.0, -800.0]])
    p = estimators._probabilities(odds)
    assert torch.allclose(p[0], torch.tensor([0.7310586, 0.2689414, 0.0])) and torch.allclose(
        p.sum(1), torch.ones(3)
    )
    sigmoid = odds[1:].double().sigmoid()
    assert torch.allclose(p[1:].double(), sigmoid / sigmoid.sum(1, keepdim=True))


def test_steps_that_are_only_tried_are_not_tracked(tumours: Any) -> None:
    x, label, site = tumours

    class Mine:
        started: ClassVar[list[float]] = []

        def start(self, about: Any) -> str:
            self.started.append(about.parameters["algorithm.lr"])
            return ""

        def log(self, round: int, values: Any) -> None: ...
        def end(self, status: str, result: Any) -> None: ...

    fitted = fs.FederatedAUCClassifier(rounds=2, random_state=0, train_params={"track": Mine()})
    fitted.fit(x, label, groups=site)
    assert Mine.started[-1] == fitted.run_.algorithm.lr and len(Mine.started) < 3


def same(a: Any, b: Any, x: Any) -> bool:
    return bool(
        (a.predict(x) == b.predict(x)).all()
        and np.array_equal(a.predict_proba(x), b.predict_proba(x))
        and a.history_.equals(b.history_)
        and list(a.feature_names_in_) == list(b.feature_names_in_)
        and a.get_params() == b.get_params()
    )


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_saving(kind: Any, tumours: Any, tmp_path: Path) -> None:
    skops = pytest.importorskip("skops.io")
    x, label, site = tumours
    fitted = quick(kind, model="mlp").fit(x, label, groups=site)
    fitted.save(tmp_path / "a.safetensors")
    assert same(fitted, kind.load(tmp_path / "a.safetensors"), x)
    assert same(fitted, pickle.loads(pickle.dumps(fitted)), x)
    assert b"fedsaddle.federation" not in pickle.dumps(fitted)  # no training data
    data = skops.dumps(fitted)
    trusted = skops.get_untrusted_types(data=data)
    assert trusted == [f"fedsaddle.estimators.{kind.__name__}"]
    assert same(fitted, skops.loads(data, trusted=trusted), x)


def test_saving_an_own_module_and_an_algorithm(tumours: Any, tmp_path: Path) -> None:
    x, label, site = tumours
    net, file = torch.nn.Linear(30, 1), tmp_path / "own.safetensors"
    fitted = quick(fs.FederatedAUCClassifier, model=net, algorithm=fs.CODASCA(lr=0.01), algorithm_params=None)
    fitted.fit(x, label, groups=site).save(file)
    loaded = fs.FederatedAUCClassifier.load(file, torch.nn.Linear(30, 1))
    assert (loaded.decision_function(x) == fitted.decision_function(x)).all()
    assert loaded.algorithm == "codasca" and loaded._algorithm() == fs.CODASCA(lr=0.01)
    for wrong, message in (
        (lambda: fs.FederatedAUCClassifier.load(file), "pass model="),
        (lambda: fs.FederatedAUCClassifier.load(file, torch.nn.Linear(29, 1)), "does not fit the model"),
        (
            lambda: fs.FairFederatedClassifier.load(file, net),
            "is a FederatedAUCClassifier, not a FairFederated",
        ),
        (lambda: fs.FairFederatedClassifier.load(__file__), "is no saved estimator"),
        (lambda: fs.FairFederatedClassifier.load(tmp_path / "none"), "is no saved estimator"),
    ):
        with pytest.raises(FedsaddleError, match=message):
            wrong()


def test_features_too_large_for_a_network_are_refused_in_words() -> None:
    rng = np.random.default_rng(0)
    x, y = 1e30 * rng.standard_normal((60, 3)), np.arange(60) % 2
    classifier = fs.FederatedAUCClassifier("mlp", rounds=10, scale="none", random_state=0)
    with pytest.raises(FedsaddleError, match=r"objective is (nan|inf) before training, .*scale = 'standard'"):
        classifier.fit(x, y, groups=np.arange(60) // 20)
