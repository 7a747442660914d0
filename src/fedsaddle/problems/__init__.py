"""What can be learned."""

from fedsaddle.problems.auc import AUC
from fedsaddle.problems.custom import Custom
from fedsaddle.problems.erm import ERM
from fedsaddle.problems.nonconvex_pl import NonconvexPL, nonconvex_pl_federation
from fedsaddle.problems.quadratic import QuadraticSaddle, quadratic_federation

PROBLEMS = {
    "auc": AUC,
    "erm": ERM,
    "quadratic": QuadraticSaddle,
    "nonconvex_pl": NonconvexPL,
}  # Custom needs Python: it has no name in a config

__all__ = [
    "AUC",
    "ERM",
    "PROBLEMS",
    "Custom",
    "NonconvexPL",
    "QuadraticSaddle",
    "nonconvex_pl_federation",
    "quadratic_federation",
]
