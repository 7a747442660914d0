"""sweep: hyper-parameters chosen on validation data, from a grid or by random search.

The file is the config of a run (config.py) and a section

    [sweep]
    metric = "valid_auc"        # maximised, mean over seeds at the end of the run
    minimise = false            # true: minimised
    allow_test = false          # true: the metric may be one of test or training data (a warning says so)
    seeds = [0, 1, 2]           # values of train.seed; the config's own unless given
    random = 20                 # that many random points instead of the full grid, by `seed` (0 unless given)
    grid = "codasca"            # a paper's grid, to which points are added; `fedsaddle list grids`
    together = 64               # at most so many runs are computed as one
    tradeoff = "algorithm.ambiguity"    # the figure: mean against worst 20 % of clients, a point for each value of this key

    [sweep.points]              # any keys of the config
    "algorithm.lr" = [0.1, 0.01, 0.001]
    "algorithm.lr_dual" = { log_uniform = [1e-3, 1.0] }     # random search; also { uniform = [a, b] }, { choice = [...] }

    [[sweep.also]]              # in a trade-off: another method in place of [algorithm]; lists are tuned
    name = "fedavg"
    lr = [0.1, 0.01]

Every point and seed is a run. All are checked before the first starts. Runs that differ in seed or real-valued
hyper-parameters are computed together (replicas.py), which changes results by rounding at most. Each finished run is a line
of runs.jsonl under its whole config, so that a sweep goes on where it stopped. A point with a run that diverged, or whose
metric is undefined, is never chosen. In a trade-off each value of the key, and each method of `also`, is shown at its own
best point by the metric.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import random
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from fedsaddle import config as configs
from fedsaddle import metrics, sweep_report
from fedsaddle.alike import Federations
from fedsaddle.config import Config, Hear
from fedsaddle.errors import FedsaddleError, did_you_mean, nearest_or_all
from fedsaddle.finish import TOGETHER, finish
from fedsaddle.folder import between
from fedsaddle.journal import Entry, Journal, kept_scores, mean_and_std, over_seeds
from fedsaddle.keys import Key, in_words, unknown_key
from fedsaddle.measures import Of, names
from fedsaddle.metrics import Interval
from fedsaddle.progress import RunsBar, spinner
from fedsaddle.remarks import grown
from fedsaddle.schema import GENERATED
from fedsaddle.toml import in_line, quoted, to_toml, to_value

Point = dict[str, Any]  # config keys such as "algorithm.lr", and their values
OTHER = "algorithm"  # the key of a point that is another method

_OPTIONS = {
    "metric": Key(str), "minimise": Key(bool, False), "allow_test": Key(bool, False), "seeds": Key(list[int], None),
    "random": Key(int, None), "seed": Key(int, 0), "grid": Key(str, None), "together": Key(int, TOGETHER),
    "tradeoff": Key(str, None), "also": Key(list[dict[str, Any]], None),
}  # fmt: skip
_EDGE = 0.05  # the share of a range that is its end
MAX_RUNS = 100_000  # all are checked, and kept in mind, before the first starts
# measures of the optimisation itself say nothing of generalisation and need no validation data
_OPTIMISATION = names(Of.residual, Of.objective)
_BOOKKEEPING = names(Of.monitor, Of.count, Of.parts)


# --------------------------------------------------------------------------------------------------- points


class Range(NamedTuple):
    """Real numbers to draw from, evenly or evenly in their logarithm."""

    low: float
    high: float
    log: bool

    def at(self, u: float) -> float:
        """The number at u in [0, 1), to four digits."""
        a, b = self._ends
        value = a + u * (b - a)
        return min(max(float(f"{math.exp(value) if self.log else value:.4g}"), self.low), self.high)

    def place(self, value: float) -> float:
        """Where a number lies, from 0 at the lower end to 1 at the upper one."""
        a, b = self._ends
        return ((math.log(value) if self.log else value) - a) / (b - a)

    @property
    def _ends(self) -> tuple[float, float]:
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)


Space = dict[str, list[Any] | Range]


class Grid(NamedTuple):
    """A grid of a paper."""

    about: str
    algorithms: list[str]  # that have its keys
    points: dict[str, list[Any]]


@functools.cache
def grids() -> dict[str, Grid]:
    """The named grids."""
    text = (files("fedsaddle") / "grids.toml").read_text(encoding="utf-8")
    return {name: Grid(**grid) for name, grid in tomllib.loads(text).items()}


def grid_points(space: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every combination of values, the last key fastest.

    Example:
        >>> grid_points({"algorithm.lr": [0.1, 0.01], "train.batch_size": [8]})
        [{'algorithm.lr': 0.1, 'train.batch_size': 8}, {'algorithm.lr': 0.01, 'train.batch_size': 8}]
    """
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def random_points(space: Space, n: int, seed: int) -> list[Point]:
    """n distinct random points, or all where there are no more; more points begin with the same ones."""
    lists = [v for v in space.values() if isinstance(v, list)]
    if len(lists) == len(space):
        n = min(n, math.prod(len({to_value(v) for v in values}) for values in lists))
    rng = random.Random(seed)
    drawn: dict[str, Point] = {}
    tries = 0
    while len(drawn) < n:
        if (tries := tries + 1) > 1000 + 100 * n:  # to four digits, a narrow range has few numbers
            raise FedsaddleError(
                f"sweep.random: there are only about {len(drawn)} different points, got {n}; ask for fewer"
            )
        u = {key: rng.random() for key in space}
        point = {k: v.at(u[k]) if isinstance(v, Range) else v[int(u[k] * len(v))] for k, v in space.items()}
        drawn.setdefault(to_toml(point), point)
    return list(drawn.values())


def _side(values: list[Any] | Range, value: Any) -> int:
    """-1 where a value is at the lower edge of those to try, 1 at the upper one, else 0."""
    if isinstance(values, Range):
        low, high = values.place(value) < _EDGE, values.place(value) > 1 - _EDGE
    elif all(type(v) in (int, float) for v in values) and len(set(values)) > 1:
        low, high = value == min(values), value == max(values)
    else:
        return 0
    return -1 if low else int(high)


def _distinct(points: Sequence[Point]) -> list[Point]:
    return list({to_toml(p): p for p in reversed(points)}.values())[::-1]


def _space(table: Any, path: tuple[str, ...] = ()) -> Space:
    """[sweep.points] with flat keys; `algorithm.lr = [...]` and `"algorithm.lr" = [...]` are the same."""
    if not isinstance(table, dict):
        raise FedsaddleError(f"sweep.points: must be a table [sweep.points], got {quoted(table)}")
    out: Space = {}
    for name, value in table.items():
        names = (*path, *name.split("."))
        is_section = len(names) < 2 or (names[0] == "transform" and len(names) < 3)
        if isinstance(value, dict) and is_section:
            out |= _space(value, names)
        else:
            out[".".join(names)] = _values(f"sweep.points: {'.'.join(names)}", value)
    return out


def _values(where: str, value: Any) -> list[Any] | Range:
    if isinstance(value, dict) and len(value) == 1:
        ((kind, value),) = value.items()
        if kind not in ("uniform", "log_uniform", "choice"):
            unknown_key(f"{where}.", kind, "key", ("uniform", "log_uniform", "choice"), "values come from")
        if kind != "choice":
            return _range(f"{where}.{kind}", value, kind == "log_uniform")
    if not isinstance(value, list):
        rule = (
            "a list of values, or one of { log_uniform = [a, b] }, { uniform = [a, b] }, { choice = [...] }"
        )
        raise FedsaddleError(f"{where}: must be {rule}, got {quoted(value)}")
    if not value:
        raise FedsaddleError(f"{where}: must have at least one value, got []")
    if any(
        isinstance(v, float) for v in value
    ):  # [1, 0.1] is [1.0, 0.1]: real numbers can be computed together
        return [_real(where, v) if type(v) is int else v for v in value]
    return value


def _real(where: str, number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise FedsaddleError(f"{where}: must be below 1e308 in size, got {quoted(number)}") from None


def _range(where: str, ends: Any, log: bool) -> Range:
    if isinstance(ends, list) and len(ends) == 2 and all(type(v) in (int, float) for v in ends):
        low, high = (_real(where, v) for v in ends)
        if (0 if log else -math.inf) < low < high < math.inf:
            return Range(low, high, log)
    raise FedsaddleError(f"{where}: must be [a, b] with {'0 < ' if log else ''}a < b, got {quoted(ends)}")


# ----------------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True)
class Plan:
    """A checked sweep.

    Args:
        points: what is tried.
        runs: for each point its configs, one a seed.
        keys: the keys of the points that have more than one value; all keys of a single point.
        tradeoff: the key along which mean and tail of the clients are traded, if any.
        space: what the points were taken from.
    """

    name: str
    metric: str
    minimise: bool
    allow_test: bool
    together: int
    points: list[Point]
    runs: list[list[Config]]
    tradeoff: str | None = None
    space: Space = field(default_factory=dict)

    @functools.cached_property
    def keys(self) -> list[str]:
        swept = [p for p in self.points if OTHER not in p]
        several = [k for k in swept[0] if len({to_value(p[k]) for p in swept}) > 1]
        return several or list(swept[0])

    @property
    def mean_and_tail(self) -> tuple[str, str]:
        """The two metrics of a trade-off: of the clients that the metric is about."""
        measure = self.metric.removesuffix("_worst20").removesuffix("_clients")
        return f"{measure}_clients", f"{measure}_worst20"

    @property
    def seeds(self) -> list[int]:
        return [c.tree["train"]["seed"] for c in self.runs[0]]


def plan(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Plan:
    """Read and check a sweep; raises a FedsaddleError of one line. No data are loaded.

    Args:
        path: the TOML file.
        overrides: assignments such as "algorithm.lr=0.05" or "sweep.random=10".
    """
    tree = configs.read(path, overrides)
    if "sweep" not in tree:
        raise FedsaddleError(
            f'{path}: has no [sweep]; it takes [sweep] metric = "valid_auc", [sweep.points] "algorithm.lr" = [0.1, 0.01], '
            "and validation data ([data] valid = 0.2), as in examples/sweep.toml"
        )
    options, space, grid = _options(tree.pop("sweep"))
    metric, allow_test = options["metric"], options["allow_test"]
    if not (_without_test(metric) or allow_test):
        raise FedsaddleError(
            f"sweep.metric: {quoted(metric)} is not measured on validation data; "
            f"choose valid_{metric.removeprefix('train_')}, or set sweep.allow_test = true"
        )
    n = options["random"]
    most = math.prod(len(v) for v in space.values() if isinstance(v, list)) if n is None else n
    if most * len(options["seeds"] or [0]) > MAX_RUNS:
        raise FedsaddleError(
            f"sweep: must have at most {MAX_RUNS} runs, got {quoted(most)} points; set sweep.random"
        )
    if n is not None:
        points = random_points(space, n, options["seed"])
    else:
        points = _distinct(grid_points({k: v for k, v in space.items() if isinstance(v, list)}))
    if options["tradeoff"] is not None and options["tradeoff"] not in space:
        hint = did_you_mean(options["tradeoff"], space)
        rule = f"must be a key of sweep.points ({', '.join(space)})"
        raise FedsaddleError(
            f"sweep.tradeoff: {rule}, got {quoted(options['tradeoff'])}{'; ' * bool(hint)}{hint}"
        )
    for method in options["also"] or []:
        lists = {k: v if isinstance(v, list) else [v] for k, v in method.items()}
        points += [{OTHER: section} for section in grid_points(lists)]
    file = Path(path)
    runs = []
    for point in points:
        with _at(point):
            changed = copy.deepcopy(tree)
            for key, value in point.items():
                configs.put(changed, key.split("."), value, "sweep.points")
            if OTHER not in point:
                _suits(grid, changed)
            configs.anchor(changed, file.resolve().parent)
            made = configs.resolve(changed, file.stem)
        seeds = options["seeds"] or [made.tree["train"]["seed"]]
        runs.append([Config({**made.tree, "train": {**made.tree["train"], "seed": s}}) for s in seeds])
    return Plan(
        runs[0][0].name, metric, options["minimise"], allow_test, options["together"], points, runs, options["tradeoff"],
        space,
    )  # fmt: skip


def _options(section: Any) -> tuple[dict[str, Any], Space, str | None]:
    """The options of [sweep] with their defaults, the space of points and the name of the grid."""
    if not isinstance(section, dict):
        raise FedsaddleError(f"sweep: must be a table [sweep], got {quoted(section)}")
    out: dict[str, Any] = {}
    for key in section:
        if key not in _OPTIONS and key != "points":
            unknown_key("sweep.", key, "key", (*_OPTIONS, "points"), "a sweep has")
    for name, key in _OPTIONS.items():
        if name in section:
            try:
                out[name] = key.python(section[name])
            except ValidationError:
                got = quoted(section[name])
                raise FedsaddleError(f"sweep.{name}: must be {in_words(key.type)}, got {got}") from None
        elif key.required:
            raise FedsaddleError(f'sweep.{name}: is missing; for example {name} = "valid_auc"')
        else:
            out[name] = key.default
    for name, least in (("random", 1), ("together", 1), ("seed", 0)):
        if out[name] is not None and out[name] < least:
            raise FedsaddleError(f"sweep.{name}: must be >= {least}, got {out[name]}")
    seeds = out["seeds"]
    if seeds is not None and (not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds)):
        raise FedsaddleError(
            f"sweep.seeds: must be distinct whole numbers >= 0, at least one, got {quoted(seeds)}"
        )
    space: Space = {}
    if out["grid"] is not None:
        if out["grid"] not in grids():
            hint = nearest_or_all(out["grid"], grids())
            raise FedsaddleError(f"sweep.grid: {quoted(out['grid'])} is unknown; {hint}")
        space |= grids()[out["grid"]].points
    space |= _space(section.get("points", {}))
    if not space:
        raise FedsaddleError(
            'sweep.points: is missing; for example [sweep.points] with "algorithm.lr" = [0.1, 0.01]'
        )
    if out["also"] and out["tradeoff"] is None:
        raise FedsaddleError(
            "sweep.also: has no use without sweep.tradeoff; a sweep chooses among points of one method"
        )
    if OTHER in space:
        raise FedsaddleError(
            "sweep.points: algorithm is a section; sweep its keys, or use sweep.also in a trade-off"
        )
    if "train.seed" in space:
        raise FedsaddleError("sweep.points: train.seed is no hyper-parameter; use sweep.seeds")
    for key, values in space.items():
        if isinstance(values, Range) and out["random"] is None:
            raise FedsaddleError(
                f"sweep.points: {key} has no list of values; set sweep.random for random search"
            )
    return out, space, out["grid"]


def _without_test(metric: str) -> bool:
    """Whether a metric is a fair one to choose by."""
    return metric.startswith("valid_") or metric in _OPTIMISATION


def _suits(grid: str | None, tree: Mapping[str, Any]) -> None:
    algorithm = tree.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    if grid is not None and name not in grids()[grid].algorithms:
        allowed = ", ".join(grids()[grid].algorithms)
        raise FedsaddleError(
            f"sweep.grid: {quoted(grid)} is for {allowed}; algorithm.name is {quoted(name or '')}"
        )


class _at:
    """Let a mistake say at which point it is."""

    def __init__(self, point: Point) -> None:
        self.point = point

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, FedsaddleError):
            raise FedsaddleError(f"{error} (at the point {in_line(self.point)})") from error


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
        with _at(point):
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
        return _without_test(self.plan.metric)

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
        skip = (*_OPTIMISATION, *_BOOKKEEPING, "diverged")
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
        alike = [
            p[OTHER] for p in self.plan.points if OTHER in p and p[OTHER]["name"] == point[OTHER]["name"]
        ]
        text = [
            v for k, v in point[OTHER].items() if isinstance(v, str) and any(p.get(k) != v for p in alike)
        ]
        return ", ".join([point[OTHER]["name"], *text])

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
                configs.put(tree, key.split("."), value, "sweep.points")
                configs.resolve(tree, self.plan.name)
        except FedsaddleError:
            return False
        return True

    def verdict(self) -> str:
        """The chosen point in words, with its results on test data."""
        plan, best = self.plan, self.best
        if best is None:
            return "No point was chosen."
        text = f"* chosen: {in_line(best.point)}; {'lowest' if plan.minimise else 'highest'} {plan.metric}, "
        text += (
            f"mean ± std over train.seed = {', '.join(map(str, plan.seeds))}, not over the choice of samples."
        )
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
    if not _without_test(todo.metric):
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
