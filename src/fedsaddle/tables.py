"""Numbers and tables as text, for the command line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

METRICS = {  # the names of metrics for people, in the order in which they are shown
    "auc": "AUC, test",
    "valid_auc": "AUC, validation",
    "train_auc": "AUC, training",
    "auc_bound": "AUC, test: off by at most",
    "valid_auc_bound": "AUC, validation: off by at most",
    "train_auc_bound": "AUC, training: off by at most",
    "auc_clients": "AUC, mean over clients",
    "auc_worst20": "AUC, worst 20 % of clients",
    "auc_best20": "AUC, best 20 % of clients",
    "auc_std": "AUC, spread over clients",
    "auc_gini": "AUC, Gini coefficient over clients",
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
    "accuracy_clients": "accuracy, mean over clients",
    "accuracy_worst20": "accuracy, worst 20 % of clients",
    "accuracy_best20": "accuracy, best 20 % of clients",
    "accuracy_std": "accuracy, spread over clients",
    "accuracy_gini": "accuracy, Gini coefficient over clients",
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


_PARTS = {"valid_": "validation", "train_": "training"}


def in_words(key: str) -> str:
    """What a metric is called; where METRICS does not know it on validation or training data, as on test data.

    Example:
        >>> in_words("valid_auc_std")
        'AUC, spread over clients, validation'
    """
    for prefix, part in _PARTS.items():
        on_test = key.removeprefix(prefix)
        if key not in METRICS and on_test in METRICS:
            return f"{METRICS[on_test]}, {part}"
    return METRICS.get(key, key)


def in_order(keys: Iterable[str]) -> list[str]:
    """Metrics in the order in which they are shown; unknown ones last."""
    order = [prefix + k for k in METRICS for prefix in ("", *_PARTS)]
    return sorted(keys, key=lambda k: order.index(k) if k in order else len(order))


def number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"
    return str(value)


def room() -> int | None:
    """The width of the terminal; None where the output is read by no one, or by a program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def aligned(rows: Sequence[Sequence[str]], width: int | None = None, keep: int = 1) -> list[str]:
    """Lines of rows in aligned columns.

    Args:
        width: of a line. Columns for which there is no room follow below, behind the first ones again.
        keep: how many columns are the first ones.

    Example:
        >>> aligned([["run", "AUC", "rounds"], ["a", "0.81", "100"]])
        ['run  AUC   rounds', 'a    0.81  100']
        >>> aligned([["run", "AUC", "rounds"], ["a", "0.81", "100"]], width=12)
        ['run  AUC', 'a    0.81', '', 'run  rounds', 'a    100']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = list(range(keep))
    blocks: list[list[int]] = [[]]
    for i in range(keep, len(widths)):
        taken = [*first, *blocks[-1], i]
        if blocks[-1] and width is not None and sum(widths[k] + 2 for k in taken) - 2 > width:
            blocks.append([])
        blocks[-1].append(i)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += ["  ".join(row[k].ljust(widths[k]) for k in (*first, *block)).rstrip() for row in rows]
    return lines
