"""sweep: hyper-parameters chosen on validation data, from a grid or by random search.

The file is a config with a section [sweep] (sweep_plan.py). Every point and seed is a run. All are checked before the first
starts. Runs that differ in seed or real-valued hyper-parameters are computed together (replicas.py), which changes results
by rounding at most. Each finished run is a line of runs.jsonl under its whole config, so that a sweep goes on where it
stopped. A point with a run that diverged, or whose metric is undefined, is never chosen. In a trade-off each value of the
key, and each method of `also`, is shown at its own best point by the metric.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle import metrics, sweep_report
from fedsaddle.alike import Federations
from fedsaddle.config import Config, Hear, resolve
from fedsaddle.errors import FedsaddleError, did_you_mean
from fedsaddle.finish import finish
from fedsaddle.folder import between
from fedsaddle.journal import Entry, Journal, kept_scores, mean_and_std, over_seeds
from fedsaddle.measures import Of, names
from fedsaddle.metrics import Interval
from fedsaddle.overrides import put
from fedsaddle.progress import RunsBar, spinner
from fedsaddle.remarks import grown
from fedsaddle.schema import GENERATED, title
from fedsaddle.sweep_plan import OPTIMISATION, OTHER, Plan, Point, Range, at_point, plan, without_test
from fedsaddle.toml import in_line, quoted, to_toml, to_value

_EDGE = 0.05  # the share of a range that is its end
_BOOKKEEPING = names(Of.monitor, Of.count, Of.parts)


# -------------------------------------------------------------------------------------------------- results


class Row(NamedTuple):
    """A point and its results."""

    point: Point
    metrics: dict[str, dict[str, Any]]  # mean, std and values over seeds
    diverged: int
    runs: list[Entry]

    @property
    def grown(self) -> int:
        """How many runs ended, but with an objective above the one they began with."""
        return sum("diverged" not in entry["metrics"] and bool(grown(entry)) for entry in self.runs)

    @property
    def trouble(self) -> str:
        """What went wrong in its runs, in words."""
        found = {"diverged": self.diverged, "objective grew": self.grown}
        return ", ".join(f"{what} {n}/{len(self.runs)}" for what, n in found.items() if n)


@dataclass(frozen=True)
class Result:
    """A finished sweep.

    Args:
        rows: one a point, in the order of the points.
        out: where its files are.
    """

    plan: Plan
    rows: list[Row]
    out: Path

    def score(self, row: Row) -> float | None:
        """The metric, None where it is undefined in a run, as in one that diverged."""
        found = row.metrics.get(self.plan.metric)
        return None if found is None else float(found["mean"])

    @functools.cached_property
    def swept(self) -> list[Row]:
        """Rows of the config's own method, without those of a trade-off's others."""
        return [row for row in self.rows if OTHER not in row.point]

    @property
    def fair(self) -> bool:
        """Whether the metric says nothing of test or training data."""
        return without_test(self.plan.metric)

    @functools.cached_property
    def ranked(self) -> list[Row]:
        """Rows from best to worst, the first of equals first; those without a score last."""
        sign = 1.0 if self.plan.minimise else -1.0
        return sorted(self.rows, key=lambda r: math.inf if (s := self.score(r)) is None else sign * s)

    @functools.cached_property
    def best(self) -> Row | None:
        """The chosen point; None where no point has a score."""
        first = self.ranked[0]
        return first if self.score(first) is not None else None

    @functools.cached_property
    def interval(self) -> Interval | None:
        """Between what the chosen point's validation AUC may lie, over the choice of samples; None of other metrics."""
        scored = self._scores(self.best) if self.best is not None else None
        return None if scored is None or self.plan.minimise else metrics.auc_interval(*scored)

    @functools.cached_property
    def compared(self) -> dict[int, Interval]:
        """How far other points are behind the chosen one on the same validation samples, by the id of their row.

        Intervals are so wide that, with 95 %, the truly best point is the chosen one or one whose interval reaches 0
        (Hsu's comparisons with the best: one-sided, by Bonferroni).
        """
        best = self._scores(self.best) if self.best is not None and not self.plan.minimise else None
        if best is None or self.best is None:
            return {}
        known = {}
        for row in self.ranked[1:]:
            scored = self._scores(row) if self._data(row) == self._data(self.best) else None
            if scored is not None and torch.equal(scored[1], best[1]):
                known[id(row)] = scored[0]
        behind = {
            i: metrics.auc_difference(best[0], scores, best[1], 2 * 0.05 / max(len(known), 2))
            for i, scores in known.items()
        }
        return {i: by for i, by in behind.items() if by is not None}

    @functools.cached_property
    def level(self) -> list[Row]:
        """Points that validation samples do not tell from the chosen one."""
        return [row for row in self.ranked if id(row) in self.compared and self.compared[id(row)].low <= 0]

    def _scores(self, row: Row, part: str = "valid") -> tuple[Tensor, Tensor] | None:
        """Every seed's scores of validation or test samples [k, n], and which are positive [n]; None where not kept."""
        if self.plan.metric != "valid_auc":
            return None
        found = [kept_scores(self.out, entry, part) for entry in row.runs]
        known = [one for one in found if one is not None]
        if not known or len(known) < len(found) or not all(torch.equal(y, known[0][1]) for _, y in known):
            return None
        return torch.stack([scores for scores, _ in known]), known[0][1]

    def configs(self, row: Row) -> list[Config]:
        """A row's configs, one a seed."""
        return self._configs[id(row)]

    @functools.cached_property
    def _configs(self) -> dict[int, list[Config]]:
        return {id(row): runs for row, runs in zip(self.rows, self.plan.runs, strict=True)}

    def _data(self, row: Row) -> set[str]:
        """Where validation samples come from: a point may change that too."""
        return {Federations.key(config) for config in self.configs(row)}

    @property
    def sure(self) -> str:
        """How far validation samples decide the choice, in words; nothing where that is unknown."""
        text = ""
        if self.interval is not None:
            ends = between(self.interval.low, self.interval.high).replace(" to ", " and ")
            picked = (
                f"; not allowed for: that it is the best of {len(self.ranked)}"
                if len(self.ranked) > 1
                else ""
            )
            text = f"Over the choice of validation samples its AUC may lie between {ends} (95 %, DeLong{picked}). "
        if self.compared:
            text += f"Level with it (~) on the same samples: {len(self.level)} of {len(self.compared)} other points. "
            left = len(self.ranked) - 1 - len(self.compared)
            text += f"Not compared: {left}. " if left else ""
        return text.strip()

    def test_metrics(self, row: Row) -> dict[str, dict[str, Any]]:
        """What was measured on test data."""
        on_test = all(entry.get("clients_evaluated_on") == "test" for entry in row.runs)
        skip = (*OPTIMISATION, *_BOOKKEEPING, "diverged")
        of_clients = ("_clients", "_worst20", "_best20", "_std", "_gini")
        return {
            k: v
            for k, v in row.metrics.items()
            if k not in skip
            and not k.startswith(("valid_", "train_"))
            and (on_test or not k.endswith(of_clients))
        }

    @property
    def test_interval(self) -> str:
        """Between what the chosen point's test AUC, of several seeds their mean, may lie; "" where that is unknown."""
        scored = self._scores(self.best, "test") if self.best is not None else None
        interval = metrics.auc_interval(*scored) if scored is not None else None
        return between(interval.low, interval.high) if interval is not None else ""

    def table(self) -> list[list[str]]:
        """Head and rows, from best to worst; the chosen point has a star, those level with it a tilde."""
        plan, best, level = self.plan, self.best, set(map(id, self.level))
        both = [k for k in plan.mean_and_tail if plan.tradeoff and k != plan.metric]
        lines = [["", *plan.keys, plan.metric, *both, "trouble"]]
        for row in self.ranked:
            found = [row.metrics.get(k) for k in (plan.metric, *both)]
            shown = ["-" if m is None else mean_and_std(m) for m in found]
            mark = "*" if row is best else "~" if id(row) in level else ""
            at = [quoted(row.point[k]) for k in plan.keys if k in row.point]
            at += [in_line(row.point[OTHER]), *[""] * (len(plan.keys) - 1)] if OTHER in row.point else []
            lines.append([mark, *at, *shown, row.trouble or "-"])
        return lines

    def traded(self) -> dict[str, Row]:
        """In a trade-off, the best point of each value of its key and of each other method, by what it is called."""
        out: dict[str, Row] = {}
        for row in self.ranked:
            if self.score(row) is not None and all(k in row.metrics for k in self.plan.mean_and_tail):
                out.setdefault(self._called(row.point), row)
        return out

    def _called(self, point: Point) -> str:
        if OTHER not in point:
            value = point[str(self.plan.tradeoff)]
            return value if isinstance(value, str) else to_value(value)
        alike = [p[OTHER] for p in self.plan.points if OTHER in p and title(p[OTHER]) == title(point[OTHER])]
        text = [
            v for k, v in point[OTHER].items() if isinstance(v, str) and any(p.get(k) != v for p in alike)
        ]
        return ", ".join(dict.fromkeys([title(point[OTHER]), *text]))

    @property
    def doubts(self) -> list[str]:
        """In a line each, why the chosen point may not be a good one."""
        said = list(self.at_an_edge)
        if self.best is not None and (n := self.best.grown):
            runs = f"{n} of {len(self.best.runs)} runs" if len(self.best.runs) > 1 else "the run"
            said.append(
                f"In {runs} of the chosen point the objective ended above where it began: try smaller steps."
            )
        return said

    @functools.cached_property
    def at_an_edge(self) -> list[str]:
        """In a line each, the chosen values beyond which nothing was tried that might be better still."""
        best, said = self.best, []
        if best is None or OTHER in best.point:
            return []
        for key, values in self.plan.space.items():
            value: Any = best.point[key]
            side = 0 if key == self.plan.tradeoff else _side(values, value)
            if not side or (side > 0 and best.grown):  # larger steps would be worse still
                continue
            step = 1 if isinstance(value, int) else abs(value) / 100 or 0.01
            if not self._allowed(best, key, value + side * step):
                continue
            where = f"extend the range {'downwards' if side < 0 else 'upwards'}."
            if isinstance(values, Range):
                said.append(f"{key} = {value:g} is at the {'lower' if side < 0 else 'upper'} end: {where}")
            else:
                size = "smallest" if side < 0 else "largest"
                said.append(f"{key} = {quoted(value)} is the {size} value tried: {where}")
        return said

    def _allowed(self, row: Row, key: str, value: float) -> bool:
        """Whether a config takes a value in place of a row's own."""
        tree = copy.deepcopy(self.configs(row)[0].tree)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                put(tree, key.split("."), value, "sweep.points")
                resolve(tree, self.plan.name)
        except FedsaddleError:
            return False
        return True

    def verdict(self) -> str:
        """The chosen point in words, with its results on test data."""
        plan, best = self.plan, self.best
        if best is None:
            return "No point was chosen."
        text = f"* chosen: {in_line(best.point)}; {'lowest' if plan.minimise else 'highest'} {plan.metric}, "
        if len(plan.seeds) > 1:
            seeds = ", ".join(map(str, plan.seeds))
            text += f"mean ± std over train.seed = {seeds}, not over the choice of samples."
        else:
            text += f"with train.seed = {plan.seeds[0]} alone: how far other seeds are from it is not known."
        text += f"\n{self.sure}" * bool(self.sure)
        if test := self.test_metrics(best):
            text += "\nOn test data, of the chosen point only: "
            sure = {"auc": f" (95 % over test samples: {on_test})" if (on_test := self.test_interval) else ""}
            text += ", ".join(f"{k} {mean_and_std(v)}{sure.get(k, '')}" for k, v in test.items()) + "."
        if self.configs(best)[0].tree["data"].get("valid"):
            text += "\nbest.toml trains without the validation samples, as here; with --set data.valid=0 on them too."
        if not self.fair:
            text += f"\nChosen on {plan.metric}, which is not validation data: results are optimistic."
        return "\n".join([text, *self.doubts])


def _side(values: list[Any] | Range, value: Any) -> int:
    """-1 where a value is at the lower edge of those to try, 1 at the upper one, else 0."""
    if isinstance(values, Range):
        low, high = values.place(value) < _EDGE, values.place(value) > 1 - _EDGE
    elif all(type(v) in (int, float) for v in values) and len(set(values)) > 1:
        low, high = value == min(values), value == max(values)
    else:
        return 0
    return -1 if low else int(high)


# ------------------------------------------------------------------------------------------------ computing


def _check(plan: Plan, journal: Journal, federations: Federations, hear: Hear) -> None:
    """Let every run that is left check itself against its data, and see that the metric is measured."""
    seen = set()
    left = [p for p in zip(plan.points, plan.runs, strict=True) if not all(c in journal for c in p[1])]
    data = list(dict.fromkeys(Federations.key(runs[0]) for _, runs in left))
    loaded = data[:1]
    for point, runs in sorted(left, key=lambda p: data.index(Federations.key(p[1][0]))):
        if (wanted := Federations.key(runs[0])) != loaded[-1]:
            federations.drop(*loaded[1:])  # the first is computed first, the others are loaded again
            loaded = [data[0], wanted]
        with at_point(point):
            run = federations.start(runs[0], hear=hear)
        tree, key = runs[0].tree, Federations.key(runs[0]) + to_toml(runs[0].tree["problem"])
        if key in seen:
            continue
        seen.add(key)
        if (
            plan.metric.startswith("valid_")
            and run.federation.valid is None
            and tree["data"].get("name") not in GENERATED
        ):
            raise FedsaddleError(
                f"sweep.metric: {quoted(plan.metric)} needs validation data, and there are none; "
                "set data.valid, for example data.valid = 0.2"
            )
        measured = [k for k in next(iter(run)) if k not in _BOOKKEEPING]
        missing = [k for k in plan.mean_and_tail if plan.tradeoff and k not in measured]
        if missing and plan.metric in measured:
            raise FedsaddleError(
                f"sweep.tradeoff: {quoted(missing[0])} is not measured; it needs accuracy or AUC of every client: "
                "give each its own validation data (data.valid = 0.2), and choose sweep.metric accordingly"
            )
        if plan.metric not in measured:
            hint = did_you_mean(plan.metric, measured)
            hint = f"{hint} measured are" if hint else "measured are"
            raise FedsaddleError(
                f"sweep.metric: {quoted(plan.metric)} is unknown; {hint} {', '.join(measured)}"
            )


def sweep(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    jobs: int = 1,
) -> Result:
    """Compute a sweep, choose on validation data, and write table.md, results.json, best.toml and sweep.html.

    Args:
        path: the TOML file.
        overrides: assignments such as "algorithm.lr=0.05".
        out: a folder; runs that it holds are not computed again. By default runs/sweep/NAME.
        progress: a progress bar on stderr; by default when that is a terminal.
        jobs: so many processes compute beside one another, each with one thread.
    """
    todo = plan(path, overrides)
    out = Path(out) if out is not None else Path("runs") / "sweep" / todo.name
    journal = Journal(out / "runs.jsonl", scores=todo.metric == "valid_auc")
    federations = Federations.beside(journal.path)
    with spinner(f"{todo.name}, looks at the data", progress) as say:
        _check(todo, journal, federations, say)
    if not without_test(todo.metric):
        warnings.warn(
            f"sweep: hyper-parameters are chosen on {todo.metric}, which is not validation data; results are optimistic",
            stacklevel=2,
        )
    out.mkdir(parents=True, exist_ok=True)
    wanted = [c for runs in todo.runs for c in runs]
    try:
        with RunsBar(progress, len(wanted), todo.name) as tick:
            entries = iter(finish(wanted, journal, todo.together, tick, federations, jobs))
    except BaseException as error:
        error.add_note(f"finished runs are in {journal.path}, and the same call goes on from there")
        raise
    rows = []
    for point, runs in zip(todo.points, todo.runs, strict=True):
        mine = list(itertools.islice(entries, len(runs)))
        rows.append(Row(point, over_seeds(mine), sum("diverged" in e["metrics"] for e in mine), mine))
    result = Result(todo, rows, out)
    command = " ".join(["fedsaddle sweep", str(path), *(f"--set {a}" for a in overrides)])
    sweep_report.write(result, command)
    if result.best is None:
        all_diverged = all(row.diverged for row in rows)
        why = (
            "a run of every point diverged" if all_diverged else f"{todo.metric} is undefined at every point"
        )
        raise FedsaddleError(f"sweep: nothing to choose, {why}; see {out / 'table.md'}")
    return result
