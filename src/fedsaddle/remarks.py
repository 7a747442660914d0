"""What a reader of a result should know before drawing conclusions from it, in sentences."""

from __future__ import annotations

from typing import Any

_FEW = 10  # samples of a class; with fewer an AUC says little


def remarks(result: dict[str, Any]) -> list[str]:
    """Of a result.json, whose keys of later versions may be missing."""
    return [*of_training(result), *_of_clients(result), *_of_accuracy(result)]


def of_training(result: dict[str, Any]) -> list[str]:
    """Whether training has made the model worse."""
    first, last = result.get("loss_at_start"), result["metrics"].get("loss")
    if first is None or last is None or last <= first + 0.01 * abs(first):
        return []
    began = f"above the {first:.4g} it began with"
    return [f"The training loss ended at {last:.4g}, {began}: a smaller step may help."]


def _of_clients(result: dict[str, Any]) -> list[str]:
    counts, names = result.get("test_class_counts"), result.get("client_names", [])
    if (
        "auc_worst20" not in result["metrics"]
        or not counts
        or len(counts) != len(names)
        or len(counts[0]) < 2
    ):
        return []
    positive = result["config"]["problem"].get("positive", 1)
    rarest = [min(row[positive], sum(row) - row[positive]) for row in counts]
    few = [n for n in rarest if 0 < n < _FEW]  # with none there is no AUC
    if not few:
        return []
    return [
        f"{len(few)} of {len(names)} clients have fewer than {_FEW} test samples of one class, down to {min(few)}: their "
        "AUCs, and so the worst and best 20 %, hang on single samples."
    ]


def _of_accuracy(result: dict[str, Any]) -> list[str]:
    counts, accuracy = result.get("test_class_counts"), result["metrics"].get("accuracy")
    if not counts or accuracy is None:
        return []
    problem, classes = result["config"]["problem"], result.get("classes") or []
    totals = {
        classes[i] if i < len(classes) else str(i): sum(column)
        for i, column in enumerate(zip(*counts, strict=True))
    }
    if (
        problem.get("loss") not in ("cross_entropy", "one_hot") and len(totals) > 2
    ):  # one class against the rest
        name = list(totals)[problem.get("positive", 1)]
        totals = {name: totals[name], f"not {name}": sum(totals.values()) - totals[name]}
    most = max(totals, key=totals.__getitem__)
    share = totals[most] / sum(totals.values())
    if accuracy > share + 0.005:
        return []
    return [f"Always answering {most!r} has an accuracy of {share:.4f} on the test samples."]
