"""What a sweep tries: [sweep] of a config file, checked in full before anything is computed.

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
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedsaddle.config import Config, resolve
from fedsaddle.errors import FedsaddleError, did_you_mean, nearest_or_all, warn
from fedsaddle.finish import TOGETHER
from fedsaddle.keys import Key, in_words, unknown_key
from fedsaddle.measures import Of, names
from fedsaddle.overrides import anchor, drop_strangers, put, read
from fedsaddle.toml import in_line, quoted, to_toml, to_value

Point = dict[str, Any]  # config keys such as "algorithm.lr", and their values
OTHER = "algorithm"  # the key of a point that is another method
MAX_RUNS = 100_000  # all are checked, and kept in mind, before the first starts
# measures of the optimisation itself say nothing of generalisation and need no validation data
OPTIMISATION = names(Of.residual, Of.objective)

_OPTIONS = {
    "metric": Key(str), "minimise": Key(bool, False), "allow_test": Key(bool, False), "seeds": Key(list[int], None),
    "random": Key(int, None), "seed": Key(int, 0), "grid": Key(str, None), "together": Key(int, TOGETHER),
    "tradeoff": Key(str, None), "also": Key(list[dict[str, Any]], None),
}  # fmt: skip


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
    tree = read(path, overrides)
    if "sweep" not in tree:
        raise FedsaddleError(
            f'{path}: has no [sweep]; it takes [sweep] metric = "valid_auc", [sweep.points] "algorithm.lr" = [0.1, 0.01], '
            "and validation data ([data] valid = 0.2), as in examples/sweep.toml"
        )
    options, space, grid = _options(tree.pop("sweep"))
    metric, allow_test = options["metric"], options["allow_test"]
    if not (without_test(metric) or allow_test):
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
    strangers: dict[str, dict[str, None]] = {}  # keys of the file, and what has none of them
    for point in points:
        with at_point(point):
            changed = copy.deepcopy(tree)
            for key, value in point.items():
                put(changed, key.split("."), value, "sweep.points")
            for key, name in drop_strangers(tree, changed, [key.split(".") for key in point]):
                strangers.setdefault(key, {})[name] = None
            if OTHER not in point:
                _suits(grid, changed)
            anchor(changed, file.resolve().parent)
            made = resolve(changed, file.stem)
        seeds = options["seeds"] or [made.tree["train"]["seed"]]
        runs.append([Config({**made.tree, "train": {**made.tree["train"], "seed": s}}) for s in seeds])
    for key, who in strangers.items():
        warn(f"{key} of the file is left out at points of {', '.join(who)}, without such a key")
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


def without_test(metric: str) -> bool:
    """Whether a metric is a fair one to choose by."""
    return metric.startswith("valid_") or metric in OPTIMISATION


def _suits(grid: str | None, tree: Mapping[str, Any]) -> None:
    algorithm = tree.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    if grid is not None and name not in grids()[grid].algorithms:
        allowed = ", ".join(grids()[grid].algorithms)
        raise FedsaddleError(
            f"sweep.grid: {quoted(grid)} is for {allowed}; algorithm.name is {quoted(name or '')}"
        )


class at_point:
    """Let a mistake say at which point it is."""

    def __init__(self, point: Point) -> None:
        self.point = point

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, FedsaddleError):
            raise FedsaddleError(f"{error} (at the point {in_line(self.point)})") from error
