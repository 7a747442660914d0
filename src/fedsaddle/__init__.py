"""fedsaddle: learning min-max models over data that cannot be pooled."""

from importlib import metadata as _metadata

from fedsaddle import data
from fedsaddle.algorithms import (
    CODA,
    CODASCA,
    NPA,
    SCAFFOLD,
    Algorithm,
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
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.models import group_norm
from fedsaddle.participation import Cyclic, Full, Independent, Markov, Participation, Trace, Uniform
from fedsaddle.problem import Problem
from fedsaddle.problems import (
    AUC,
    ERM,
    Custom,
    NonconvexPL,
    QuadraticSaddle,
    nonconvex_pl_federation,
    quadratic_federation,
)
from fedsaddle.train import Run, train

try:
    __version__ = _metadata.version("fedsaddle")
except _metadata.PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "unknown"

__all__ = [
    "AUC", "CODA", "CODASCA", "ERM", "NPA", "SCAFFOLD", "Algorithm", "AmplifiedFedAvg", "AmplifiedSCAFFOLD", "CODAPlus",
    "Custom", "CyCpFedAvg", "CyCpMinimax", "Cyclic", "FedAvg", "FedProx", "FedSGDA", "Federation", "FedsaddleError", "Full",
    "Independent", "LocalSGDA", "Markov", "NonconvexPL", "Participation", "Problem", "PublishedCODASCA", "QuadraticSaddle",
    "RSMinimax", "Run", "Trace", "Uniform", "data", "group_norm", "nonconvex_pl_federation", "quadratic_federation", "train",
]  # fmt: skip
