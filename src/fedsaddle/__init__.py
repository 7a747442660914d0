"""fedsaddle: learning min-max models over data that cannot be pooled."""

from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING as _TYPE_CHECKING

from fedsaddle import data
from fedsaddle.algorithms import (
    CODA,
    CODASCA,
    DRFA,
    FFMDR,
    NPA,
    SCAFFOLD,
    AgnosticFedAvg,
    AgnosticFL,
    Algorithm,
    AmplifiedFedAvg,
    AmplifiedSCAFFOLD,
    CODAPlus,
    CyCpFedAvg,
    CyCpMinimax,
    CyCpPairwise,
    DeltaFL,
    FedAvg,
    FedNest,
    FedNormSGDA,
    FedProx,
    FedSGDA,
    FedSGDAM,
    FedSGDAPlus,
    FeDXL2,
    LocalSGDA,
    MomentumLocalSGDA,
    PublishedCODASCA,
    QFedAvg,
    RSMinimax,
    RSPairwise,
    ScaffPD,
)
from fedsaddle.ambiguity import Ambiguity
from fedsaddle.convexify import Tangent, convexify
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.models import group_norm
from fedsaddle.participation import Cyclic, Full, Independent, Markov, Participation, Trace, Uniform
from fedsaddle.problem import Problem
from fedsaddle.problems import (
    AUC,
    ERM,
    Contrastive,
    Custom,
    NonconvexPL,
    PairwiseAUC,
    PartialAUC,
    QuadraticSaddle,
    RobustRegression,
    nonconvex_pl_federation,
    quadratic_federation,
    robust_regression_federation,
)
from fedsaddle.train import Run, train

if _TYPE_CHECKING:
    from fedsaddle.citing import cite
    from fedsaddle.estimators import FairFederatedClassifier, FederatedAUCClassifier, FederatedPairwiseRanker
    from fedsaddle.export import export_onnx, load_model

_LAZY = {  # what would make the import of fedsaddle slow
    "FairFederatedClassifier": "estimators",
    "FederatedAUCClassifier": "estimators",
    "FederatedPairwiseRanker": "estimators",
    "cite": "citing",
    "export_onnx": "export",
    "load_model": "export",
}

try:
    __version__ = _metadata.version("fedsaddle")
except _metadata.PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "unknown"

__all__ = [
    "AUC", "AgnosticFL", "AgnosticFedAvg", "Algorithm", "Ambiguity", "AmplifiedFedAvg", "AmplifiedSCAFFOLD", "CODA",
    "CODAPlus", "CODASCA", "Contrastive", "Custom", "CyCpFedAvg", "CyCpMinimax", "CyCpPairwise", "Cyclic", "DRFA",
    "DeltaFL", "ERM", "FFMDR", "FairFederatedClassifier", "FeDXL2", "FedAvg", "FedNest", "FedNormSGDA", "FedProx",
    "FedSGDA", "FedSGDAM", "FedSGDAPlus", "FederatedAUCClassifier", "FederatedPairwiseRanker", "Federation",
    "FedsaddleError", "Full", "Independent", "LocalSGDA", "Markov", "MomentumLocalSGDA", "NPA", "NonconvexPL",
    "PairwiseAUC", "PartialAUC", "Participation", "Problem", "PublishedCODASCA", "QFedAvg", "QuadraticSaddle",
    "RSMinimax", "RSPairwise", "RobustRegression", "Run", "SCAFFOLD", "ScaffPD", "Tangent", "Trace", "Uniform",
    "cite", "convexify", "data", "export_onnx", "group_norm", "load_model", "nonconvex_pl_federation",
    "quadratic_federation", "robust_regression_federation", "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(_import_module(f"fedsaddle.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'fedsaddle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
