"""fedsaddle: learning min-max models over data that cannot be pooled.

A name is loaded when it is first asked for, so that `import fedsaddle` and the command line start without torch.
"""

import sys as _sys
from importlib import import_module as _import_module
from importlib import metadata as _metadata
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:  # the same names as in _NAMES, for type checkers, editors and the documentation
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
    from fedsaddle.citing import cite
    from fedsaddle.convexify import Tangent, convexify
    from fedsaddle.errors import FedsaddleError
    from fedsaddle.estimators import FairFederatedClassifier, FederatedAUCClassifier, FederatedPairwiseRanker
    from fedsaddle.export import export_onnx, load_model
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

_NAMES = {  # by the module that has them
    "algorithms": (
        "CODA", "CODASCA", "DRFA", "FFMDR", "NPA", "SCAFFOLD", "AgnosticFedAvg", "AgnosticFL", "Algorithm",
        "AmplifiedFedAvg", "AmplifiedSCAFFOLD", "CODAPlus", "CyCpFedAvg", "CyCpMinimax", "CyCpPairwise", "DeltaFL",
        "FedAvg", "FedNest", "FedNormSGDA", "FedProx", "FedSGDA", "FedSGDAM", "FedSGDAPlus", "FeDXL2", "LocalSGDA",
        "MomentumLocalSGDA", "PublishedCODASCA", "QFedAvg", "RSMinimax", "RSPairwise", "ScaffPD",
    ),
    "ambiguity": ("Ambiguity",),
    "citing": ("cite",),
    "convexify": ("Tangent", "convexify"),
    "errors": ("FedsaddleError",),
    "estimators": ("FairFederatedClassifier", "FederatedAUCClassifier", "FederatedPairwiseRanker"),
    "export": ("export_onnx", "load_model"),
    "federation": ("Federation",),
    "models": ("group_norm",),
    "participation": ("Cyclic", "Full", "Independent", "Markov", "Participation", "Trace", "Uniform"),
    "problem": ("Problem",),
    "problems": (
        "AUC", "ERM", "Contrastive", "Custom", "NonconvexPL", "PairwiseAUC", "PartialAUC", "QuadraticSaddle",
        "RobustRegression", "nonconvex_pl_federation", "quadratic_federation", "robust_regression_federation",
    ),
    "train": ("Run", "train"),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

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


if not _TYPE_CHECKING:  # a checker would take every name for one that is there

    def __getattr__(name: str) -> object:
        """A public name, or a module such as `fedsaddle.models`."""
        if name in _HOMES:
            return getattr(_import_module(f"fedsaddle.{_HOMES[name]}"), name)
        try:
            return _import_module(f"fedsaddle.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"fedsaddle.{name}":
                raise
        raise AttributeError(f"module 'fedsaddle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(_ModuleType):
    """`train` and `convexify` are functions and modules: importing a module must not put it in its function's place."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, _ModuleType):
            super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package
