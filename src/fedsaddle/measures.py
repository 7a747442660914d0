"""What a record holds: the names of its metrics for people, and what each is a measure of."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Of(Enum):
    """What a number says something of."""

    model = "how well the model does on data"
    residual = "how far from a solution: 0 there, drawn on a logarithmic scale"
    objective = "what the optimisation lowers"
    monitor = "how a run goes; nothing to choose by"
    count = "bookkeeping"
    parts = "single clients and variables, as a list"


class Measure(NamedTuple):
    words: str  # on the command line
    title: str  # on a page
    of: Of = Of.model


MEASURES: dict[str, Measure] = {  # in the order in which they are shown
    "auc": Measure("AUC, test", "Test AUC"),
    "valid_auc": Measure("AUC, validation", "Validation AUC"),
    "train_auc": Measure("AUC, training", "Training AUC"),
    "auc_bound": Measure("AUC, test: binning error, at most", "Test AUC: binning error", Of.monitor),
    "valid_auc_bound": Measure("AUC, validation: binning error, at most", "Validation AUC: binning error", Of.monitor),
    "train_auc_bound": Measure("AUC, training: binning error, at most", "Training AUC: binning error", Of.monitor),
    "auc_clients": Measure("AUC, mean over clients", "AUC, mean over clients"),
    "auc_worst20": Measure("AUC, worst 20 % of clients", "AUC, worst 20 % of clients"),
    "auc_best20": Measure("AUC, best 20 % of clients", "AUC, best 20 % of clients"),
    "auc_std": Measure("AUC, spread over clients", "AUC, spread over clients"),
    "auc_gini": Measure("AUC, Gini coefficient over clients", "AUC, Gini coefficient over clients"),
    "single_class_clients": Measure("clients with one class", "Single-class clients", Of.monitor),
    "partial_auc": Measure("partial AUC, test", "Test partial AUC"),
    "valid_partial_auc": Measure("partial AUC, validation", "Validation partial AUC"),
    "train_partial_auc": Measure("partial AUC, training", "Training partial AUC"),
    "precision": Measure("neighbours of the same class", "Nearest items of the same class"),
    "train_precision": Measure("neighbours of the same class, training", "Nearest items of the same class, training"),
    "recall": Measure("nearest is of the same class", "Nearest item is of the same class"),
    "precision_elsewhere": Measure("neighbours elsewhere of the same class", "Nearest items elsewhere of the same class"),
    "recall_elsewhere": Measure("nearest elsewhere is of the same class", "Nearest item elsewhere is of the same class"),
    "accuracy": Measure("accuracy, test", "Test accuracy"),
    "valid_accuracy": Measure("accuracy, validation", "Validation accuracy"),
    "train_accuracy": Measure("accuracy, training", "Training accuracy"),
    "accuracy_clients": Measure("accuracy, mean over clients", "Accuracy, mean over clients"),
    "accuracy_worst20": Measure("accuracy, worst 20 % of clients", "Accuracy, worst 20 % of clients"),
    "accuracy_best20": Measure("accuracy, best 20 % of clients", "Accuracy, best 20 % of clients"),
    "accuracy_std": Measure("accuracy, spread over clients", "Accuracy, spread over clients"),
    "accuracy_gini": Measure("accuracy, Gini coefficient over clients", "Accuracy, Gini coefficient over clients"),
    "loss": Measure("loss, training", "Training loss", Of.objective),
    "grad_norm": Measure("norm of its gradient", "Gradient norm", Of.residual),
    "robust_loss": Measure("loss by the worst weights", "Loss by the worst weights", Of.objective),
    "largest_loss": Measure("largest loss of a client", "Largest loss of a client", Of.objective),
    "mean_loss": Measure("loss, mean over clients", "Loss, mean over clients", Of.objective),
    "pair_loss": Measure("loss of pairs, training", "Training loss of pairs", Of.objective),
    "largest_drawn_loss": Measure("largest loss of a client drawn", "Largest loss of a client drawn", Of.monitor),
    "largest_weight": Measure("largest weight of a client", "Largest weight of a client", Of.monitor),
    "phi": Measure("objective phi: the dual at its best", "Objective φ = max over the dual", Of.objective),
    "distance": Measure("distance to the saddle", "Distance to the saddle point", Of.residual),
    "fixed_point": Measure("distance from a fixed point", "Distance from a fixed point", Of.residual),
    "move": Measure("length of the last round's step", "Length of a round's step", Of.residual),
    "potential": Measure("potential H", "Potential H", Of.objective),
    "grad_phi": Measure("norm of the gradient of phi", "Gradient norm ‖∇φ‖", Of.residual),
    "dual_distance": Measure("distance of the dual from its best", "Distance of the dual from its best", Of.residual),
    "field_norm": Measure("norm of the saddle field", "Norm of the saddle field", Of.residual),
    "failures": Measure("clients that did not answer", "Clients that did not answer", Of.count),
    "round": Measure("rounds", "Rounds", Of.count),
    "phases": Measure("communication phases", "Communication phases", Of.count),
    "participants": Measure("participants of the last round", "Participants of the last round", Of.count),
    "bytes_down": Measure("sent down", "Sent down, server to clients", Of.count),
    "bytes_up": Measure("sent up", "Sent up, clients to server", Of.count),
    "seconds": Measure("time", "Time", Of.count),
    "clients": Measure("who took part", "Who took part", Of.parts),
    "weights": Measure("weights of the clients", "Weights of the clients", Of.parts),
    "left_out": Measure("who was left out", "Who was left out", Of.parts),
    "dual": Measure("dual variables", "Dual variables", Of.parts),
}  # fmt: skip

# of which a run has one or more: the first that it has is what it is about
MAIN = (
    "auc", "train_auc", "accuracy", "train_accuracy", "precision", "train_precision", "distance", "field_norm", "loss",
)  # fmt: skip
# what training lowers, of which a run has one, or none, and what sentences call it
LOWERED = {"loss": "training loss", "pair_loss": "training loss of pairs", "phi": "objective phi"}
_PARTS = {"valid_": "validation", "train_": "training"}


def names(*kinds: Of) -> tuple[str, ...]:
    """The metrics of these kinds."""
    return tuple(name for name, measure in MEASURES.items() if measure.of in kinds)


RESIDUALS = names(Of.residual)


def in_words(key: str) -> str:
    """What a metric is called; where it is not known on validation or training data, as on test data.

    Example:
        >>> in_words("valid_auc_std")
        'AUC, spread over clients, validation'
    """
    for prefix, part in _PARTS.items():
        on_test = key.removeprefix(prefix)
        if key not in MEASURES and on_test in MEASURES:
            return f"{MEASURES[on_test].words}, {part}"
    return MEASURES[key].words if key in MEASURES else key


def in_order(keys: Iterable[str]) -> list[str]:
    """Metrics in the order in which they are shown; unknown ones last."""
    order = [prefix + k for k in MEASURES for prefix in ("", *_PARTS)]
    return sorted(keys, key=lambda k: order.index(k) if k in order else len(order))


def label(key: str) -> str:
    """What a metric is called on a page; `unit` is shorter."""
    of_clients = MEASURES.get(key.removeprefix("valid_"))
    if key not in MEASURES and of_clients is not None:
        return f"Validation {of_clients.title.replace('Accuracy', 'accuracy')}"
    return MEASURES[key].title if key in MEASURES else key.replace("_", " ").capitalize()


def unit(key: str) -> str:
    return {"auc": "AUC", "accuracy": "Accuracy"}.get(base(key), label(key))


def base(main: str) -> str:
    """The measure, without the data on which it is taken."""
    return main.removeprefix("train_")
