"""fedsaddle: learning min-max models over data that cannot be pooled."""

from importlib import metadata as _metadata

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

try:
    __version__ = _metadata.version("fedsaddle")
except _metadata.PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "unknown"

__all__ = [
    "AUC", "AgnosticFL", "AgnosticFedAvg", "Algorithm", "Ambiguity", "AmplifiedFedAvg", "AmplifiedSCAFFOLD", "CODA",
    "CODAPlus", "CODASCA", "Contrastive", "Custom", "CyCpFedAvg", "CyCpMinimax", "CyCpPairwise", "Cyclic", "DRFA", "DeltaFL",
    "ERM", "FFMDR", "FeDXL2", "FedAvg", "FedNest", "FedNormSGDA", "FedProx", "FedSGDA", "FedSGDAM", "FedSGDAPlus",
    "Federation", "FedsaddleError", "Full", "Independent", "LocalSGDA", "Markov", "MomentumLocalSGDA", "NPA",
    "NonconvexPL", "PairwiseAUC", "PartialAUC", "Participation", "Problem", "PublishedCODASCA", "QFedAvg",
    "QuadraticSaddle", "RSMinimax", "RSPairwise", "RobustRegression", "Run", "SCAFFOLD", "ScaffPD", "Tangent", "Trace",
    "Uniform", "convexify", "data", "group_norm", "nonconvex_pl_federation", "quadratic_federation",
    "robust_regression_federation", "train",
]  # fmt: skip
