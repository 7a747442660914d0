"""What can be learned."""

from fedsaddle.problem import Problem
from fedsaddle.problems.auc import AUC
from fedsaddle.problems.custom import Custom
from fedsaddle.problems.erm import ERM
from fedsaddle.problems.nonconvex_pl import NonconvexPL, nonconvex_pl_federation
from fedsaddle.problems.pairwise import Contrastive, PairwiseAUC, PartialAUC
from fedsaddle.problems.quadratic import QuadraticSaddle, quadratic_federation
from fedsaddle.problems.robust_regression import RobustRegression, robust_regression_federation

PROBLEMS: dict[str, type[Problem]] = {
    "auc": AUC,
    "erm": ERM,
    "pairwise_auc": PairwiseAUC,
    "partial_auc": PartialAUC,
    "contrastive": Contrastive,
    "quadratic": QuadraticSaddle,
    "nonconvex_pl": NonconvexPL,
    "robust_regression": RobustRegression,
}  # Custom needs Python: it has no name in a config

__all__ = [
    "AUC",
    "ERM",
    "PROBLEMS",
    "Contrastive",
    "Custom",
    "NonconvexPL",
    "PairwiseAUC",
    "PartialAUC",
    "QuadraticSaddle",
    "RobustRegression",
    "nonconvex_pl_federation",
    "quadratic_federation",
    "robust_regression_federation",
]
