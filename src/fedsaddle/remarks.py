"""What a reader of a result should know before drawing conclusions from it, in sentences."""

from __future__ import annotations

from typing import Any

from fedsaddle.kinds import OF_CLASSES
from fedsaddle.measures import LOWERED, Of, in_words, names

_NAMED = 5  # clients in a sentence
_FEW = 10  # samples of a class; with fewer an AUC says little
_PERFECT, _ENOUGH = 0.999, 20  # an AUC, and test positives; such an AUC on as many is said
_SWING = 0.03  # of an AUC or accuracy from one late evaluation to another; more is said
_RISE = 0.01
# how often what it began with tells that a run has gone astray; fields of nonconvex problems grow on their way, too
STRAYS = {"distance": 1.01, "field_norm": 10.0}
_HARDLY = 0.7  # of the gradient that a run began with; with more it is not at its end


class Remark(str):
    """A sentence, and the metrics by which no run should be preferred because of it."""

    doubts: tuple[str, ...] = ()

    @classmethod
    def doubting(cls, text: str, *metrics: str) -> Remark:
        said = cls(text)
        said.doubts = metrics
        return said


def remarks(result: dict[str, Any]) -> list[Remark]:
    """Of a result.json, whose keys of later versions may be missing."""
    said = [
        *of_training(result),
        *_of_chance(result),
        *_of_leaks(result),
        *_of_clients(result),
        *_of_accuracy(result),
    ]
    return [text if isinstance(text, Remark) else Remark(text) for text in said]


def of_training(result: dict[str, Any]) -> list[str]:
    """Whether training has made the model worse, or was not at its end."""
    return (
        grown(result)
        or _of_course(result)
        or _of_gradient(result.get("grad_phi_at_start"), result["metrics"].get("grad_phi"))
    )


def grown(result: dict[str, Any]) -> list[str]:
    """Whether what training lowers is higher than before it, as after steps too large; also of a journal's entry."""
    for key, words in LOWERED.items():
        first = result.get(f"{key}_at_start")
        if first is None or key not in result["metrics"]:
            continue
        last = result["metrics"][key]
        if last is None:
            return [f"The {words} ended at no finite number: a smaller step may help."]
        if last > first + 0.01 * abs(first):
            began = f"above the {first:.4g} it began with"
            return [f"The {words} ended at {last:.4g}, {began}: a smaller step may help."]
    return _strayed(result)


def _strayed(result: dict[str, Any]) -> list[str]:
    """Whether a run whose objective is not measured ended farther from a solution than it began."""
    metrics = result["metrics"]
    if any(key in metrics for key in names(Of.objective)):
        return []
    for key, times in STRAYS.items():
        first, last = result.get(f"{key}_at_start"), metrics.get(key)
        if first is not None and last is not None and last > times * first:
            began = f"above the {first:.4g} it began with"
            return [f"The {in_words(key)} ended at {last:.4g}, {began}: a smaller step may help."]
    return []


def _of_gradient(first: float | None, last: float | None) -> list[str]:
    """Whether the gradient of phi has hardly fallen."""
    if not first or last is None or last < _HARDLY * first:
        return []
    share = f"The gradient of phi is still {100 * last / first:.0f} % of what it began with"
    return [f"{share}: more rounds, or a {'larger' if last <= first else 'smaller'} step, may help."]


def _of_course(result: dict[str, Any]) -> list[str]:
    """Whether the last evaluations jump, fall, or still rise, by more than a few test samples do."""
    if (course := result.get("course")) is None:
        return []
    values, half = course["values"], len(course["values"]) // 2
    low, high = min(values), max(values)
    rise = sum(values[half:]) / len(values[half:]) - sum(values[:half]) / half
    first, last = course["rounds"][0], course["rounds"][-1]
    name = {"auc": "AUC"}.get(course["metric"], course["metric"])
    lay = f"From round {first} to {last} the {name} lay between {low:.4f} and {high:.4f}"
    steady, grain = abs(rise) > (high - low) / 3, _grain(result)
    if steady and rise > 0 and high - low > max(_RISE, 2 * grain) and high > course["before"]:
        return [f"{lay}, and it still rises: more rounds may help."]
    if high - low > max(_SWING, 2 * grain) and (rise < 0 or not steady):
        falls = "it falls, and fewer rounds or a smaller step may help"
        return [f"{lay}: {falls if steady else 'it jumps, and a smaller step may settle it'}."]
    return []


def _grain(result: dict[str, Any]) -> float:
    """How much one test sample can change an AUC or accuracy."""
    counts = result.get("test_class_counts")
    if not counts:
        return 0.0
    totals = [sum(column) for column in zip(*counts, strict=True)]
    count: int = sum(totals) if result["course"]["metric"] == "accuracy" else min(totals)
    return 1 / max(1, count)


def _of_chance(result: dict[str, Any]) -> list[str]:
    low, high = result.get("auc_interval") or (1.0, 1.0)
    if not low <= 0.5 <= high:
        return []
    interval = f"The interval of the test AUC, {low:.3f} to {high:.3f}, contains 0.5"
    return [f"{interval}: the model may rank no better than chance."]


def _of_leaks(result: dict[str, Any]) -> list[str]:
    """Whether the test AUC is too good: a column may know the label."""
    counts, auc = result.get("test_class_counts"), result["metrics"].get("auc")
    if not counts or len(counts[0]) < 2 or auc is None or auc < _PERFECT:
        return []
    positive = result["config"]["problem"].get("positive", 1)
    if sum(row[positive] for row in counts) < _ENOUGH:
        return []
    why = "a column that knows the label, such as a code that is written down afterwards"
    return [f"A test AUC of {auc:.4f} most often comes from {why}: look for it, and drop it."]


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
    few = [n for n in rarest if 0 < n < _FEW]
    said: list[str] = []
    if few:
        text = f"{len(few)} of {len(names)} clients have fewer than {_FEW} test samples of one class, down to {min(few)}: "
        text += "their AUCs, and so the worst and best 20 %, hang on single samples."
        said.append(Remark.doubting(text, "auc_worst20", "auc_best20", "auc_gini"))
    for held, what in ((True, "test samples of one class only"), (False, "no test samples")):
        none = [
            name
            for name, n, row in zip(names, rarest, counts, strict=True)
            if n == 0 and (sum(row) > 0) == held
        ]
        if none:
            listed = ", ".join(none[:_NAMED]) + (
                f" and {len(none) - _NAMED} more" if len(none) > _NAMED else ""
            )
            has, it_has = ("has", "it has") if len(none) == 1 else ("have", "they have")
            part = "no AUC, and no part in the mean over clients or the worst 20 %"
            said.append(f"{listed} {has} {what}, so {it_has} {part}.")
    return said


def _of_accuracy(result: dict[str, Any]) -> list[str]:
    counts, accuracy = result.get("test_class_counts"), result["metrics"].get("accuracy")
    if not counts or accuracy is None:
        return []
    problem, classes = result["config"]["problem"], result.get("classes") or []
    totals = {
        classes[i] if i < len(classes) else str(i): sum(column)
        for i, column in enumerate(zip(*counts, strict=True))
    }
    if problem.get("loss") not in OF_CLASSES and len(totals) > 2:  # one class against the rest
        name = list(totals)[problem.get("positive", 1)]
        totals = {name: totals[name], f"not {name}": sum(totals.values()) - totals[name]}
    most = max(totals, key=totals.__getitem__)
    share = totals[most] / sum(totals.values())
    if accuracy > share + 0.005:
        return []
    text = f"Always answering {most!r} has an accuracy of {share:.4f} on the test samples."
    return [Remark.doubting(text, "accuracy")]
