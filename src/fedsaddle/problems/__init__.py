"""What can be learned."""

from fedsaddle.problems.auc import AUC
from fedsaddle.problems.custom import Custom
from fedsaddle.problems.erm import ERM
from fedsaddle.problems.quadratic import QuadraticSaddle, quadratic_federation

PROBLEMS = {
    "auc": AUC,
    "erm": ERM,
    "quadratic": QuadraticSaddle,
}  # Custom needs Python: it has no name in a config

__all__ = ["AUC", "ERM", "PROBLEMS", "Custom", "QuadraticSaddle", "quadratic_federation"]
