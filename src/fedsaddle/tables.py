"""Numbers and tables as text, for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

METRICS = {  # the names of metrics for people, in the order in which they are shown
    "auc": "AUC, test",
    "valid_auc": "AUC, validation",
    "train_auc": "AUC, training",
    "auc_bound": "AUC, test: off by at most",
    "valid_auc_bound": "AUC, validation: off by at most",
    "train_auc_bound": "AUC, training: off by at most",
    "auc_clients": "AUC, mean of clients",
    "auc_worst20": "AUC, worst 20 % of clients",
    "auc_best20": "AUC, best 20 % of clients",
    "auc_std": "AUC, deviation of clients",
    "auc_gini": "AUC, Gini coefficient of clients",
    "single_class_clients": "clients with one class",
    "partial_auc": "partial AUC, test",
    "valid_partial_auc": "partial AUC, validation",
    "train_partial_auc": "partial AUC, training",
    "precision": "neighbours of the same class",
    "recall": "nearest is of the same class",
    "precision_elsewhere": "neighbours elsewhere of the same class",
    "recall_elsewhere": "nearest elsewhere is of the same class",
    "accuracy": "accuracy, test",
    "valid_accuracy": "accuracy, validation",
    "train_accuracy": "accuracy, training",
    "accuracy_clients": "accuracy, mean of clients",
    "accuracy_worst20": "accuracy, worst 20 % of clients",
    "accuracy_best20": "accuracy, best 20 % of clients",
    "accuracy_std": "accuracy, deviation of clients",
    "accuracy_gini": "accuracy, Gini coefficient of clients",
    "loss": "loss, training",
    "grad_norm": "norm of its gradient",
    "robust_loss": "loss by the worst weights",
    "largest_weight": "largest weight of a client",
    "phi": "objective phi: the dual at its best",
    "grad_phi": "norm of the gradient of phi",
    "dual_distance": "distance of the dual from its best",
    "distance": "distance to the saddle",
    "field_norm": "norm of the saddle field",
}


def number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"
    return str(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of rows in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
