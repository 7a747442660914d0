"""scikit-learn estimators: fit(X, y, groups=site), then decision_function, predict_proba, predict, score.

    FederatedAUCClassifier     the AUC (square surrogate), a site counting as one; CODASCA unless told otherwise
    FairFederatedClassifier    good on the worst-off sites; SCAFF-PD unless told otherwise
    FederatedPairwiseRanker    the AUC by a loss of pairs of samples; RS-Pairwise unless told otherwise

They simulate a federation on one machine: a value of `groups` is a site. In a Pipeline or GridSearchCV, groups reach
`fit` by scikit-learn's metadata routing:

    sklearn.set_config(enable_metadata_routing=True)
    search = GridSearchCV(FederatedAUCClassifier().set_fit_request(groups=True), grid, cv=GroupKFold(3))
    search.fit(X, y, groups=hospital)
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    check_X_y,
    validate_data,
)
from torch import Tensor, nn

from fedsaddle import frames, ingest, metrics, models, partitions
from fedsaddle.algorithms import ALGORITHMS, Algorithm, FedAvg
from fedsaddle.errors import BadRow, FedsaddleError, first_line, nearest_or_all, short, warn
from fedsaddle.export import RawModel
from fedsaddle.federation import Federation
from fedsaddle.folder import write_whole
from fedsaddle.problem import Problem
from fedsaddle.problems import AUC, ERM, PairwiseAUC
from fedsaddle.progress import spinner
from fedsaddle.remarks import of_training
from fedsaddle.scaling import Scaling
from fedsaddle.schema import arguments, filled
from fedsaddle.steps import STEPS, objective, tried
from fedsaddle.train import Run, train

if TYPE_CHECKING:
    import pandas

__all__ = [
    "FairFederatedClassifier",
    "FederatedAUCClassifier",
    "FederatedClassifier",
    "FederatedPairwiseRanker",
]

Array = npt.NDArray[Any]

_SITES = 10  # where rows are dealt at random and nobody says to how many
_HELD = 5  # rows of each class that a calibration needs
_ROWS = 4096  # scored at once
_LEAST_SLOPE = 1e-3  # of calibrated log-odds, a deviation of the score: ranks stay as they are
_FILL = 'fill it: impute="median", or an imputer before this estimator'


class FederatedClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """What the estimators share: arguments, attributes, calibration, saving.

    Features are scaled by statistics of all sites' training rows, as `Federation.scaled` does it. A data frame's column of
    text becomes one of 0 and 1 for each of its values, named as in `sex=f`; a value that training did not see is 0 in all of
    them, with a warning. Sites may have one class only, and any number of rows.

    Probabilities are calibrated by a sigmoid (scikit-learn's LogisticRegression on the score) on rows that `fit` holds out
    of every site and pools; the model is trained on the others. Where a class has fewer than 5 such rows, nothing is held
    out, the training rows serve, probabilities are too sure of themselves, and a warning says so. For isotonic regression,
    wrap the estimator in CalibratedClassifierCV.

    Args:
        model: "linear" (starts at 0), "mlp", another name of `fedsaddle list models`, or any nn.Module for the samples, of
            which a copy is trained from its own parameters.
        algorithm: a name of `fedsaddle list algorithms`, an Algorithm, or None: the estimator's own.
        algorithm_params: arguments of the algorithm that is named, such as {"lr": 0.01}.
        rounds: communication rounds.
        batch_size: minibatch of a site's local step; None takes all its rows.
        regulariser: on the model's weights, such as "l2(0.01)" or "l1(0.001)".
        scale: "standard", "log", "unit", "symmetric" or "none", as in `Federation.scaled`.
        impute: what stands in for a missing number: "median" or "mean" of its column over all sites' training rows; a
            missing text becomes a value of its own, as in `sex=missing`. "none": gaps are refused.
        n_sites: where `fit` gets no groups, rows are dealt at random to so many sites; None: to 10, with a warning.
        calibration_share: of every site's rows, held out to calibrate probabilities, in [0, 1); 0: the training rows serve.
        train_params: other arguments of `fs.train`, such as {"device": "cuda", "participation": fs.Uniform(5)}.
        random_state: of the split, minibatches, and the start of a model that is built by name and not linear.
        verbose: a progress bar; None: where stderr is a terminal.

    Attributes:
        classes_: labels in order; of two the second is positive.
        n_features_in_, feature_names_in_: of X; names where it is a data frame.
        model_: the trained nn.Module, of raw features, float64; `model_.rows(frame)` makes them of a data frame.
        calibration_: slope and intercept of the score's log-odds, one row a score.
        n_iter_: rounds that were run.
        history_: metrics by round, a data frame; "valid" metrics are of the rows held out.
        run_: the run of `fs.train`, with everything else; not kept by pickle, skops and `save`.
    """

    impute: Literal["none", "median", "mean"] = "none"  # where an earlier version has pickled it
    _inputs: tuple[str, ...] | None = (
        None  # of the model, by name, where X has text; else they are X's columns
    )
    _own: ClassVar[str]
    _own_params: ClassVar[Mapping[str, Any]]
    _binary: ClassVar[bool] = True

    def __init__(
        self,
        model: str | nn.Module = "linear",
        *,
        algorithm: str | Algorithm | None = None,
        algorithm_params: Mapping[str, Any] | None = None,
        rounds: int = 100,
        batch_size: int | None = 32,
        regulariser: str | None = None,
        scale: str = "standard",
        impute: Literal["none", "median", "mean"] = "none",
        n_sites: int | None = None,
        calibration_share: float = 0.2,
        train_params: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool | None = None,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.algorithm_params = algorithm_params
        self.rounds = rounds
        self.batch_size = batch_size
        self.regulariser = regulariser
        self.scale = scale
        self.impute = impute
        self.n_sites = n_sites
        self.calibration_share = calibration_share
        self.train_params = train_params
        self.random_state = random_state
        self.verbose = verbose

    # ---- what differs ------------------------------------------------------------------------------------

    @abstractmethod
    def _problem(self, module: nn.Module, classes: int) -> Problem:
        """What is learned."""

    def _outputs(self, classes: int) -> int:
        """Of a model that is built by name."""
        return 1

    def _trained(
        self, problem: Problem, algorithm: Algorithm, federation: Federation, settings: dict[str, Any]
    ) -> Run:
        return train(problem, algorithm, federation, **settings).finish()

    # ---- fitting -----------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train.

        Args:
            X: features [n, k], or samples of any shape [n, ...] for one's own module; or a data frame, of numbers and text.
            y: labels [n], numbers or text.
            groups: the site of each row [n], numbers or text; None: rows are dealt at random to `n_sites`.
        """
        self.__dict__.pop("calibration_", None)  # where this fit fails, nothing is fitted
        if y is not None and (labels := np.asarray(y)).ndim == 1:
            ingest.check_present(labels, f"{type(self).__name__}: y", ingest.UNLABELLED)
        X, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            self._refuse(
                f"y has one class, {self.classes_.tolist()[0]!r}; a classifier needs two: give rows of another"
            )
        if self._binary and len(self.classes_) > 2:
            self._refuse(
                "Only binary classification is supported. The type of the target is multiclass. "
                f"y has {len(self.classes_)} classes: make one of them positive, such as y == {self.classes_.tolist()[-1]!r}"
            )
        if not 0 <= self.calibration_share < 1:
            self._refuse(f"calibration_share must be in [0, 1), got {self.calibration_share}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        federation = Federation.from_arrays(
            X,
            codes,
            clients=self._sites(groups, codes, seed),
            classes=[ingest.text_of(v) for v in self.classes_.tolist()],
            feature_names=self._names(),
            task="classification",
            impute=self.impute,
        )
        federation = self._held_out(federation, seed).scaled(self.scale)  # type: ignore[arg-type]
        self._shape = tuple(X.shape[1:])
        problem = self._problem(self._module(seed), len(self.classes_))
        algorithm = self._algorithm()
        self._check_suited(algorithm, problem)
        self.run_ = self._trained(problem, algorithm, federation, self._settings(seed))
        self.model_ = self.run_.raw_model.double().eval()
        calibrated = federation if federation.valid is None else federation.valid
        scores = self._scores(self.model_.model, calibrated.data["x"])
        self.calibration_ = _calibration(scores, calibrated.data["y"].numpy())
        self.n_iter_ = self.run_.rounds
        self._records = self.run_.history.reset_index().to_dict("records")
        return self

    def _checked(self, X: Any, *y: Any) -> Any:
        """X (and y) as arrays, with what is wrong said by row and column."""
        fitting = bool(y)
        # NaN is refused below, where it is found
        how: dict[str, Any] = {
            "dtype": (np.float64, np.float32),
            "ensure_all_finite": False,
            "allow_nd": True,
        }
        frame = hasattr(X, "columns") and hasattr(X, "dtypes")
        if fitting:
            self._inputs = None
        try:
            if self._inputs is not None or (
                frame and (frames.text_columns(X) or any(d.kind == "O" for d in X.dtypes))
            ):
                validate_data(
                    self, X, *y, reset=fitting, skip_check_array=True
                )  # number and names of columns
                X = self._encoded(X, frame, fitting)
                found = (
                    check_X_y(X, *y, estimator=self, **how)
                    if fitting
                    else check_array(X, estimator=self, **how)
                )
            else:
                found = validate_data(self, X, *y, reset=fitting, **how)
            x = _tensor(found[0] if fitting else found)
            ingest.check_finite(x, "X", self._names(), self._gaps, _FILL)
        except BadRow as error:
            raise BadRow(f"{type(self).__name__}: {error.what}", error.row, error.remedy) from None
        return found

    def _encoded(self, X: Any, frame: bool, fitting: bool) -> Array:
        """Text as columns of 0 and 1, those of the training data."""
        if fitting:
            if odd := [c for c in X.columns if not isinstance(c, str)]:
                self._refuse(
                    f"columns of a frame with text must have texts as names, got {odd[0]!r}: X.columns.map(str)"
                )
            (values,), self._inputs = frames.one_hot([X], gaps=self._gaps, remedy=_FILL)
            return values
        if not frame:
            columns, got = short(self.feature_names_in_), type(X).__name__
            self._refuse(f"X must be a data frame with the columns {columns}, since some are text; got {got}")
        names = self._names()
        return (
            frames.encoded(X, names, self._gaps, _FILL) if names else frames.numeric_frame(X)
        )  # which refuses text

    @property
    def _gaps(self) -> bool:
        """Whether X may have some."""
        return self.impute != "none"

    def _names(self) -> tuple[str, ...]:
        """Of the model's inputs."""
        return tuple(getattr(self, "feature_names_in_", ())) if self._inputs is None else self._inputs

    def _column_of(self, groups: Any) -> Array:
        if isinstance(groups, str):
            self._refuse(
                f"groups must be an array, one entry a row, got {groups!r}; of a data frame: groups=df[{groups!r}]"
            )
        return ingest.column(groups, "groups")

    def _sites(self, groups: Any, codes: Array, seed: int) -> Any:
        """Groups as they are, or a random partition."""
        me = type(self).__name__
        if groups is not None:
            found = self._column_of(groups)
            check_consistent_length(codes, found)
            ingest.check_present(found, f"{me}: groups", "drop rows without a site, or name it")
            if self.n_sites is not None:
                warn(f"{me}: n_sites = {self.n_sites} is not used, groups name the sites")
            return found
        n = _SITES if self.n_sites is None else self.n_sites
        if n < 2:
            self._refuse(f"n_sites must be >= 2, got {n}")
        n = max(2, min(n, len(codes) // 2))
        if self.n_sites is None:
            warn(
                f"{me}: no groups given, so rows are dealt at random to {n} sites; pass groups=site to fit (in a Pipeline "
                f"STEP__groups=site; with metadata routing, set_fit_request(groups=True)), or n_sites={n} if this is meant"
            )
        return partitions.partition("iid", codes, n, seed)

    def _held_out(self, federation: Federation, seed: int) -> Federation:
        """The federation with validation rows to calibrate on, if there are enough."""
        if self.calibration_share == 0:
            return federation
        held = np.zeros(len(self.classes_), dtype=int)
        with suppress(FedsaddleError):  # no site is large enough
            split = federation.holdout(self.calibration_share, seed, into="valid")
            assert split.valid is not None
            held = np.bincount(split.valid.data["y"].numpy(), minlength=len(self.classes_))
            if held.min() >= _HELD:
                return split
        fewest = self.classes_[held.argmin()]
        warn(
            f"{type(self).__name__}: only {held.min()} rows of class {fewest!r} can be held out, calibration needs {_HELD}: "
            "training rows serve, and probabilities are too sure of themselves; give more rows"
        )
        return federation

    def _module(self, seed: int) -> nn.Module:
        if isinstance(self.model, nn.Module):
            self._built = None
            return self.model
        if not isinstance(self.model, str):
            self._refuse(f"model must be a name or an nn.Module, got {type(self.model).__name__}")
        self._built = (self.model, self._outputs(len(self.classes_)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._build()

    def _build(self) -> nn.Module:
        """A model of the architecture that was named."""
        assert self._built is not None
        # a random start would stay in the weights of text columns
        start = {"zero": True} if self._built[0] == "linear" else {}
        return models.build(self._built[0], self._shape, self._built[1], **start)

    def _algorithm(self) -> Algorithm:
        given = dict(self.algorithm_params or {})
        if isinstance(self.algorithm, Algorithm):
            if given:
                self._refuse(
                    "algorithm_params has no use with an Algorithm; set them there, or give its name"
                )
            return self.algorithm
        named = (
            {"name": self._own, **self._own_params} if self.algorithm is None else {"name": self.algorithm}
        )
        part = filled("algorithm", named | given, "algorithm")
        made: Algorithm = ALGORITHMS[part["name"]](**arguments("algorithm", part))
        return made

    def _check_suited(self, algorithm: Algorithm, problem: Problem) -> None:
        """Refuse an algorithm for plain losses where the AUC is learned, and say which estimator takes it."""
        if isinstance(algorithm, FedAvg) and (problem.n_y or problem.pairwise):
            me = type(algorithm).__name__
            name = next((name for name, cls in ALGORITHMS.items() if cls is type(algorithm)), me)
            self._refuse(
                f"{me} minimises a loss of single rows, which the AUC is not; FairFederatedClassifier(algorithm={name!r}) "
                "minimises the log loss with it"
            )

    def _settings(self, seed: int) -> dict[str, Any]:
        """The arguments of `train` beside the three that say what is learned."""
        own = {"rounds": "rounds", "batch_size": "batch_size", "seed": "random_state", "progress": "verbose"}
        given, known = dict(self.train_params or {}), list(inspect.signature(train).parameters)[3:]
        for name in given:
            if name in own:
                self._refuse(f"train_params: {name} has no use there; set {own[name]} of the estimator")
            if name not in known:
                hint = nearest_or_all(str(name), known)
                self._refuse(f"train_params: {name!r} is no argument of fs.train; {hint}")
        settings = {"rounds": self.rounds, "batch_size": self.batch_size, "seed": seed, "guard": 3}
        return {**settings, "progress": self.verbose, **given}

    def _refuse(self, reason: str) -> NoReturn:
        raise FedsaddleError(f"{type(self).__name__}: {reason}")

    # ---- predicting --------------------------------------------------------------------------------------

    def _scores(self, module: nn.Module, x: Tensor) -> Array:
        """One score a row [n, 1], higher for the second of two classes; or one a class [n, C]."""
        with torch.no_grad():
            out = torch.cat([module(part.double()).reshape(len(part), -1) for part in x.split(_ROWS)])
        return _one_of_two(out, len(self.classes_)).numpy()

    def decision_function(self, X: Any) -> Array:
        """The model's score as calibrated log-odds: [n], above 0 where the second class is likelier; or [n, classes].

        It ranks rows as the model's score does.
        """
        check_is_fitted(self, "calibration_")
        odds: Array = (
            self._scores(self.model_, _tensor(self._checked(X))) * self.calibration_[:, 0]
            + self.calibration_[:, 1]
        )
        return odds[:, 0] if len(self.classes_) == 2 else odds

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities [n, classes]."""
        p: Array = _probabilities(torch.from_numpy(self.decision_function(X))).numpy()
        return p

    def predict(self, X: Any) -> Array:
        """The likelier class of each row [n]."""
        odds = self.decision_function(X)
        found: Array = self.classes_[(odds > 0).astype(int) if odds.ndim == 1 else odds.argmax(1)]
        return found

    @property
    def history_(self) -> pandas.DataFrame:
        check_is_fitted(self)
        import pandas

        return pandas.DataFrame(self._records).set_index("round")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The area under the ROC curve (not the accuracy); NaN, with a warning, where rows are of one class."""
        odds, y = self.decision_function(X), ingest.column(y, "y")
        check_consistent_length(odds, y)
        if len(found := set(y.tolist())) == 1:
            warn(
                f"{type(self).__name__}: all {len(y)} rows to score are of class {found.pop()!r}, and an AUC needs both, "
                "so the score is NaN; in a search take fewer folds, so that each has both classes"
            )
            return math.nan
        return float(roc_auc_score(y, odds, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = not self._binary
        tags.input_tags.allow_nan = self._gaps
        return tags

    # ---- saving ------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Without the run, which holds the training data; a model that was built by name as plain arrays."""
        state = dict(super().__getstate__())
        state.pop("run_", None)
        if state.get("_built") is not None:
            state["model_"] = {k: v.numpy() for k, v in self.model_.state_dict().items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if state.get("_built") is not None:
            weights = {k: torch.from_numpy(v) for k, v in state["model_"].items()}
            self.model_ = _restored(self._build(), weights, self._names())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator as one safetensors file, which `load` reads without executing anything.

        An nn.Module is kept as its weights; arguments that are no plain values, such as a RandomState, are not kept.
        """
        check_is_fitted(self)
        kept: dict[str, Any] = {}
        for name, value in self._plain_params().items():
            try:
                json.dumps(value)
                kept[name] = value
            except (TypeError, ValueError):
                warn(f"save: {name} is no plain value and is not kept: {value!r}")
        about = {
            "estimator": type(self).__name__,
            "params": kept,
            "classes": self.classes_.tolist(),
            "kind": self.classes_.dtype.str if self.classes_.dtype.kind != "O" else "O",
            "n_features_in": self.n_features_in_,
            "features": list(getattr(self, "feature_names_in_", ())),
            "inputs": self._inputs,
            "shape": self._shape,
            "built": self._built,
            "n_iter": self.n_iter_,
            "records": self._records,
        }
        tensors = {k: v.contiguous() for k, v in self.model_.state_dict().items()}
        tensors["calibration"] = torch.from_numpy(self.calibration_)
        write_whole(Path(path), save(tensors, {"fedsaddle": json.dumps(about)}))

    def _plain_params(self) -> dict[str, Any]:
        """Arguments, a module left out and an algorithm by its name."""
        params = {k: v for k, v in self.get_params(deep=False).items() if not isinstance(v, nn.Module)}
        names = {cls: name for name, cls in ALGORITHMS.items()}
        if isinstance(self.algorithm, Algorithm) and type(self.algorithm) in names:
            own = {f.name: getattr(self.algorithm, f.name) for f in dataclasses.fields(self.algorithm)}
            params |= {"algorithm": names[type(self.algorithm)], "algorithm_params": own}
        return params

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module | None = None) -> Self:
        """Read what `save` has written.

        Args:
            path: the file.
            model: where one's own nn.Module was trained: one of the same architecture, which gets the weights in a copy.
        """
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})["fedsaddle"])
                weights = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            if about["estimator"] != cls.__name__:
                raise FedsaddleError(
                    f"{path}: is a {about['estimator']}, not a {cls.__name__}; load it as that"
                )
            self = cls(**about["params"])
            self.classes_ = np.array(about["classes"], dtype=about["kind"])
            self.n_features_in_, self.n_iter_ = about["n_features_in"], about["n_iter"]
            if about["features"]:
                self.feature_names_in_ = np.array(about["features"], dtype=object)
            self._inputs = tuple(about["inputs"]) if about.get("inputs") is not None else None
            self._records, self._shape = about["records"], tuple(about["shape"])
            self._built = None if about["built"] is None else tuple(about["built"])
            self.calibration_ = weights.pop("calibration").numpy()
        except FedsaddleError:
            raise
        except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise FedsaddleError(
                f"{path}: is no saved estimator ({type(error).__name__}: {first_line(error)})"
            ) from error
        if self._built is None and model is None:
            raise FedsaddleError(
                f"{path}: holds the weights of an own module; pass model=, one of that architecture"
            )
        if self._built is not None and model is not None:
            raise FedsaddleError(f"{path}: holds a model {self._built[0]!r}; leave model= out")
        if model is not None:
            self.model = model
        try:
            built = copy.deepcopy(model) if model is not None else self._build()
            self.model_ = _restored(built, weights, self._names())
        except RuntimeError as error:
            raise FedsaddleError(
                f"{path}: does not fit the model ({' '.join(str(error).split())[:200]})"
            ) from error
        return self

    def _exported(self) -> tuple[nn.Module, tuple[int, ...], torch.dtype, tuple[str, ...], dict[str, Any]]:
        """What `export_onnx` writes: module, shape of a sample, its type, names of the outputs, what is said of it."""
        check_is_fitted(self)
        module = _Calibrated(self.model_, self.calibration_, len(self.classes_))
        about = {
            "classes": self.classes_.tolist(),
            "features": list(self._names()),
            "estimator": type(self).__name__,
        }
        return module, self._shape, torch.float32, ("score", "probability"), about


class FederatedAUCClassifier(FederatedClassifier):
    """A binary classifier for a high AUC, by the min-max form of the square surrogate.

    For imbalanced data in silos. `score` is the AUC. Its own algorithm is CODASCA, to which a site counts as one, however
    few its rows; algorithm_params={"weights": "samples"} lets sites count by their rows. Unless algorithm_params has an
    "lr", six steps from 0.3 to 0.001 are tried for a tenth of the rounds (10 at least). The one with the least loss on the
    training rows is taken, or a smaller one where that does not hold to the end; it is `run_.algorithm.lr`. Arguments and
    attributes are those of `FederatedClassifier`.

    A run of the config that `fedsaddle new` writes may have another AUC on the same rows: it trains on the rows that are
    held out here to calibrate, lets sites count by their rows, and the step that it finds is 0.1 at most.

    Example:
        >>> import fedsaddle as fs
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> hospital = (X[:, 0] > 13).astype(int) + (X[:, 0] > 16)
        >>> clf = fs.FederatedAUCClassifier(rounds=20, random_state=0).fit(X, y, groups=hospital)
        >>> clf.score(X, y) > 0.98
        True
    """

    _own = "codasca"
    _own_params: ClassVar[Mapping[str, Any]] = {"local_steps": 10}

    def _trained(
        self, problem: Problem, algorithm: Algorithm, federation: Federation, settings: dict[str, Any]
    ) -> Run:
        """With the step that gets furthest in a tenth of the rounds, or a smaller one where that ends up higher.

        No step suits all data: the square loss is as curved as features are long.
        """
        if self.algorithm is not None or "lr" in (self.algorithm_params or {}):
            run = super()._trained(problem, algorithm, federation, settings)
            for said in of_training({"metrics": run.metrics, **run.began}):
                warn(
                    f"{type(self).__name__}: {said}" + " Without lr one is found." * (self.algorithm is None)
                )
            return run
        if "out" in settings:
            self._refuse("train_params: out needs an lr in algorithm_params, since several are tried without")
        rounds = min(self.rounds, max(10, self.rounds // 10))
        with spinner("choosing the step size", self.verbose):
            start, left = tried(problem, algorithm, federation, "lr", STEPS, **settings | {"rounds": rounds})
        if not left:
            raise FedsaddleError(
                f"{type(self).__name__}: the objective is {start} before training, features may be too large for "
                "the model; scale them (scale = 'standard'), or give algorithm_params an lr"
            )
        for i in range(left.index(min(left)), len(STEPS)):
            candidate = dataclasses.replace(algorithm, **{"lr": STEPS[i]})
            run = train(problem, candidate, federation, **settings | {"guard": 0})
            if objective(run) <= left[i] + 1e-4:  # computed with others it differs by rounding
                return run
        return run  # with the smallest; says so where it diverged

    def _problem(self, module: nn.Module, classes: int) -> Problem:
        by_samples = self._algorithm().counting == "samples"
        return AUC(module, p="pooled" if by_samples else "client_mean", regulariser=self.regulariser)


class FairFederatedClassifier(FederatedClassifier):
    """A classifier that is good on the worst-off sites: the log loss of the worst mixture of sites.

    Its own algorithm is SCAFF-PD with the ambiguity set chi2(0.1); algorithm_params={"ambiguity": "cvar(0.2)"} asks for the
    worst fifth of the sites, as configs of `fedsaddle new` do, a large chi2(10) for about their average. Other algorithms
    for this are "drfa", "afl", "agnostic_fedavg", "q_fedavg" and "delta_fl". Any number of classes; one's own module has one
    output, or one a class. Arguments and attributes are those of `FederatedClassifier`.

    Example:
        >>> import fedsaddle as fs
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = fs.FairFederatedClassifier(rounds=20, random_state=0).fit(X, y, groups=X[:, 1] > 3)
        >>> clf.predict_proba(X).shape
        (150, 3)
    """

    _own = "scaff_pd"
    _own_params: ClassVar[Mapping[str, Any]] = {"tau": 1.0}
    _binary = False

    def _outputs(self, classes: int) -> int:
        return 1 if classes == 2 else classes

    def _problem(self, module: nn.Module, classes: int) -> Problem:
        one = classes == 2 and self._of_one(module)
        return ERM(module, "logistic" if one else "cross_entropy", regulariser=self.regulariser)

    def _of_one(self, module: nn.Module) -> bool:
        """Whether the model has one output."""
        if self._built is not None:
            return self._built[1] == 1
        first = next(module.parameters(), None)
        if first is None:
            self._refuse(f"model must have parameters to train, {type(module).__name__} has none")
        with torch.no_grad():
            return bool(module(first.new_zeros(1, *self._shape)).numel() == 1)

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """The accuracy; with groups, that of the worst 20 % of the sites (one at least)."""
        found = self.predict(X)
        if groups is None:
            return float(accuracy_score(y, found, sample_weight=sample_weight))
        y, sites = ingest.column(y, "y"), self._column_of(groups)
        check_consistent_length(y, found, sites)
        w = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        by_site = [
            accuracy_score(y[i], found[i], sample_weight=w[i]) for i in (sites == s for s in np.unique(sites))
        ]
        return metrics.spread(by_site, "accuracy")["accuracy_worst20"]


class FederatedPairwiseRanker(FederatedClassifier):
    """A binary ranker: every positive should score above every negative, wherever they lie, by a loss of such pairs.

    `score` is the AUC. Sites share scores, not features, and count as one each. Its own algorithm is RS-Pairwise, with
    another loss and step than in configs of `fedsaddle new`.

    Args:
        loss: "square", "squared_hinge", "logistic", "sigmoid", "barrier_hinge" or "q_norm_hinge".
        loss_params: its parameters, such as {"margin": 0.5}; see `fs.PairwiseAUC`.
        model, algorithm, algorithm_params, rounds, batch_size, regulariser, scale, impute, n_sites, calibration_share,
        train_params, random_state, verbose: those of `FederatedClassifier`, as the attributes are.

    Example:
        >>> import fedsaddle as fs
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> ranker = fs.FederatedPairwiseRanker(loss="logistic", rounds=20, n_sites=5, random_state=0).fit(X, y)
        >>> ranker.score(X, y) > 0.98
        True
    """

    _own = "rs_pairwise"
    _own_params: ClassVar[Mapping[str, Any]] = {"lr": 0.2, "local_steps": 10}

    def __init__(
        self,
        model: str | nn.Module = "linear",
        *,
        loss: str = "logistic",
        loss_params: Mapping[str, Any] | None = None,
        algorithm: str | Algorithm | None = None,
        algorithm_params: Mapping[str, Any] | None = None,
        rounds: int = 100,
        batch_size: int | None = 32,
        regulariser: str | None = None,
        scale: str = "standard",
        impute: Literal["none", "median", "mean"] = "none",
        n_sites: int | None = None,
        calibration_share: float = 0.2,
        train_params: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(
            model, algorithm=algorithm, algorithm_params=algorithm_params, rounds=rounds, batch_size=batch_size,
            regulariser=regulariser, scale=scale, impute=impute, n_sites=n_sites, calibration_share=calibration_share,
            train_params=train_params, random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.loss = loss
        self.loss_params = loss_params

    def _problem(self, module: nn.Module, classes: int) -> Problem:
        part = filled(
            "problem", {"name": "pairwise_auc", "loss": self.loss, **(self.loss_params or {})}, "loss_params"
        )
        return PairwiseAUC(module, **arguments("problem", part) | {"regulariser": self.regulariser})


class _Calibrated(nn.Module):
    """Decision function and probabilities as a module of raw features, in float32 behind the scaling."""

    def __init__(self, raw: RawModel, calibration: Array, classes: int) -> None:
        super().__init__()
        self.raw, self.classes = copy.deepcopy(raw), classes
        self.raw.model.float()
        slope, intercept = torch.from_numpy(calibration).float().unbind(1)
        self.slope, self.intercept = nn.Buffer(slope), nn.Buffer(intercept)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = _one_of_two(self.raw(x).flatten(1), self.classes)
        odds = scores * self.slope + self.intercept
        odds = odds.squeeze(1) if self.classes == 2 else odds
        return odds, _probabilities(odds)


def _probabilities(odds: Tensor) -> Tensor:
    """Of two classes [n, 2] from log-odds [n]; of more the sigmoids' shares [n, C], also where all are too small to add."""
    if odds.ndim == 1:
        p = odds.sigmoid()
        return torch.stack([1 - p, p], 1)
    return nn.functional.logsigmoid(odds).softmax(1)


def _tensor(array: Array) -> Tensor:
    """An array as a tensor, copied only where torch cannot read it as it is."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _one_of_two(out: Tensor, classes: int) -> Tensor:
    """A model's outputs [n, k] as scores: of two classes with an output each, the difference [n, 1]."""
    return out[:, 1:] - out[:, :1] if classes == 2 and out.shape[1] == 2 else out


def _calibration(scores: Array, y: Array) -> Array:
    """Slope and intercept [K, 2] of the log-odds of each class, by logistic regression on its score."""
    out = []
    for k, score in enumerate(scores.T):
        target = y == (1 if scores.shape[1] == 1 else k)
        fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(score[:, None], target)
        (slope,), intercept = fitted[1].coef_[0], fitted[1].intercept_[0]
        if slope < _LEAST_SLOPE:  # scores say nothing of these rows: the class's share, in the score's order
            share = target.mean()
            slope, intercept = _LEAST_SLOPE, np.log(share / (1 - share))
        mean, deviation = fitted[0].mean_[0], fitted[0].scale_[0]
        out.append([slope / deviation, intercept - slope * mean / deviation])
    return np.array(out)


def _restored(module: nn.Module, weights: Mapping[str, Tensor], features: Sequence[str]) -> RawModel:
    """A model of raw features from a state_dict."""
    scaling = Scaling(weights["shift"], weights["width"], "log" in weights) if "shift" in weights else None
    raw = RawModel(module, scaling, features=features, fill=weights.get("fill")).double().eval()
    raw.load_state_dict(weights)
    return raw.requires_grad_(False)
