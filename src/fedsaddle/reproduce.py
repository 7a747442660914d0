"""reproduce: run an experiment of a paper, and write its table, figure and verdicts beside the published ones.

An experiment is a folder experiments/PAPER/NAME with

    base.toml        the config that every run starts from
    experiment.py    what varies: cells(quick), and how to look at it: TITLE, ROWS, COLUMNS, METRICS, SELECT, SEEDS,
                     judge(rows), figure(rows)
    published.md     the paper's numbers or claims
    obtained/        table.md, results.json and figure as obtained, with the command that made them
    begun/           folders to go on in, where not all was run: runs.jsonl, and sittings/ with the time that it took

An experiment with variants, such as data sets, lists them in OPTIONS = {"data": (default, other, ...)}; its functions then
take them by name, and obtained/ has a folder for each variant that was run. One that tunes in turn has STEPS in place of
cells: functions (rows of the step before, quick, **options) -> cells, of which the last makes the table.
tuned_on(**options), where there is one, says which seeds the steps before the last are run with, if not with all.
published(), where there is one, has the paper's numbers by row and column, for a table beside them.
extra_rows(quick, build, **options), where there is one, adds rows that are not runs of this experiment, such as published
numbers; build makes a config from changes of base.toml.

One that takes hours has an option part = ("all", ...), by which its functions return fewer cells. Parts share one folder:
a part is computed, and the table then shows all cells that are finished, so that parts add up to the whole. Functions give
the cells of a part that was not tuned yet, too, whose rows are not among those of the step before.
together(**options), where there is one, says how many runs are computed as one at most (and so are lost by an interruption).

An experiment that looks at the course of its runs names metrics in CURVES: a row then has them beside its final metrics, and
measure(curves), called for each run, derives further metrics from them.

Every cell is tuned by `SELECT` (mean over seeds), of validation data where there are some, and reported on test data
(`METRICS`); results.json keeps every point that was tried, with its `SELECT`. Each finished run is appended to runs.jsonl,
so that an interrupted reproduction goes on where it stopped; runs that differ in seed or real-valued hyper-parameters are
computed together (alike.py, replicas.py).
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from fedsaddle import config
from fedsaddle.alike import Federations, Tick
from fedsaddle.errors import FedsaddleError, warn
from fedsaddle.finish import TOGETHER, Processes, finish
from fedsaddle.folder import write_whole
from fedsaddle.journal import Entry, Journal, over_seeds, short
from fedsaddle.keys import Tree
from fedsaddle.overrides import put, read
from fedsaddle.progress import RunsBar
from fedsaddle.sweep_plan import grid_points

_WRITTEN_EVERY = 5.0  # seconds
NOISE = 2  # standard errors over seeds that a difference must exceed, for judges


class Cell(NamedTuple):
    """One cell of a table: where it stands, what it changes in base.toml, and what is tuned."""

    at: dict[str, Any]  # values of ROWS and COLUMNS
    set: dict[str, Any]  # config keys, "algorithm.lr": 0.1
    tune: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] = {}  # a grid, or points

    @property
    def points(self) -> list[dict[str, Any]]:
        return grid_points(self.tune) if isinstance(self.tune, Mapping) else [dict(p) for p in self.tune]


class Verdict(NamedTuple):
    """A claim, judged."""

    claim: str  # the same words for every variant of an experiment
    holds: bool | None  # None: what was run does not decide it
    numbers: str
    published: str = ""  # what the paper has for it
    short: str = ""  # the numbers that decide, in ten words at most, for an overview


def in_words(holds: bool | None) -> str:
    return {True: "holds", False: "does not hold", None: "not decided"}[holds]


# a tuned cell: its place, the chosen values, mean, std and values of every metric over seeds, the seeds' curves, if any, and
# what was tried
Row = dict[str, Any]


def _root() -> Path:
    """The experiments folder: inside an installed package, or beside src/ in a checkout."""
    package = Path(__file__).parent
    inside = package / "experiments"
    return inside if inside.is_dir() else package.parents[1] / "experiments"


def experiments() -> dict[str, str]:
    """All experiments: name -> title."""
    root = _root()
    found = sorted(p.parent for p in root.glob("*/*/experiment.py"))
    return {str(p.relative_to(root)): _load(p).TITLE for p in found}


def reproduce(
    name: str,
    quick: bool = False,
    out: Path | None = None,
    progress: bool | None = None,
    options: Mapping[str, str] = {},
    jobs: int = 1,
    device: str | None = None,
) -> Path:
    """Run an experiment and write table.md, results.json and figure.html; returns their folder.

    Args:
        name: PAPER/NAME.
        quick: a small version that shows that everything works; its numbers mean little.
        out: where to; by default runs/reproduce/PAPER/NAME.
        progress: a progress bar on stderr; by default when that is a terminal.
        options: which variant, by the names in the experiment's OPTIONS; their first values unless given.
        jobs: so many processes compute beside one another.
        device: "cuda": computed there, not where base.toml says.
    """
    folder = _root() / name
    if not (folder / "experiment.py").is_file():
        raise FedsaddleError(f"experiment {name!r}: unknown; known are {', '.join(experiments()) or 'none'}")
    experiment = _load(folder)
    chosen = _variant(name, experiment, options)
    steps = getattr(experiment, "STEPS", [lambda rows, quick, **options: experiment.cells(quick, **options)])
    _check_part(name, steps[-1], quick, chosen, experiment)
    base = read(folder / "base.toml")
    variant = "-".join(["", *(v for k, v in chosen.items() if k != "part")])
    out = out or Path("runs") / "reproduce" / f"{name}{variant}{'-quick' if quick else ''}"
    out.mkdir(parents=True, exist_ok=True)
    seeds: Sequence[int] = experiment.SEEDS[:1] if quick else experiment.SEEDS
    clock = _Clock(out / "sittings")
    journal = Journal(out / "runs.jsonl", getattr(experiment, "CURVES", ()))
    federations = Federations.beside(journal.path)
    together = experiment.together(**chosen) if hasattr(experiment, "together") else TOGETHER
    rows: list[Row] = []
    missing = 0
    earlier_rows: list[list[Row]] = []
    tuned_on = experiment.tuned_on(**chosen) if hasattr(experiment, "tuned_on") and not quick else seeds
    with Processes(jobs) as processes:
        for i, step in enumerate(steps):
            own = seeds if step is steps[-1] else tuned_on
            title = name if len(steps) == 1 else f"{name}, step {i + 1} of {len(steps)}"
            earlier_rows.append(rows)
            cells = step(rows, quick, **chosen)
            runs = {id(cell): _runs(base, cell, own, device) for cell in cells}
            whole = cells
            if chosen.get("part", "all") != "all":
                whole = step(rows, quick, **chosen | {"part": "all"})
                runs |= {id(cell): _runs(base, cell, own, device) for cell in whole}
            wanted = [run for cell in cells for run in runs[id(cell)]]
            if left := [run for run in wanted if run not in journal]:
                config.resolve(left[0].tree)  # refuses a device that is not here; finished runs need none
            of_all = [run for cell in whole for run in runs[id(cell)]]  # also those of other parts
            if i == 0 and len(journal) and not any(run in journal for run in of_all):
                warn(
                    f"{journal.path}: none of the {len(of_all)} runs asked for is among the {len(journal)} finished ones "
                    "there; give the options that these were computed with, such as --device, or another --out"
                )
            with RunsBar(progress, len(wanted), title) as tick:
                finish(wanted, journal, together, clock.ticking(tick), federations, processes)
            journal.read()  # other processes may have finished other parts meanwhile
            finished = [cell for cell in whole if all(run in journal for run in runs[id(cell)])]
            missing = len(whole) - len(finished)
            rows = [
                _tuned(experiment, cell, [journal[r] for r in runs[id(cell)]], title) for cell in finished
            ]
    if hasattr(experiment, "extra_rows"):
        rows = rows + experiment.extra_rows(quick, lambda change: _changed(base, change), **chosen)
    told = {
        k: v for k, v in chosen.items() if k != "part" or len(finished) == len(cells)
    }  # else of several parts
    results = {
        "experiment": name,
        "quick": quick,
        "command": f"fedsaddle reproduce {name}"
        + "".join(f" --{k} {v}" for k, v in told.items())
        + (" --quick" if quick else "")
        + (f" --device {device}" if device else "")
        + (f" --jobs {jobs}" if jobs > 1 else ""),
        "options": chosen,
        **_machine(device),
        "seeds": list(seeds),
        **({"tuned_on": list(tuned_on)} if list(tuned_on) != list(seeds) else {}),
        **({"missing": missing} if missing else {}),
        "seconds": round(clock.read(), 1),
        "rows": rows,
        **({"tuned_before": earlier_rows[1:]} if len(steps) > 1 else {}),
    }
    _judged(experiment, results, out)
    clock.write()
    if not rows:
        return out
    try:
        figure = experiment.figure(rows)
    except ImportError:
        return out  # without the report extra there is no figure
    figure.write_html(out / "figure.html", include_plotlyjs=True, config={"displayModeBar": False})
    return out


def judge_again(folder: Path) -> None:
    """Judge the stored rows of a result anew, and write its table and verdicts: an experiment's judge may have changed."""
    results = json.loads((folder / "results.json").read_text())
    _judged(load_experiment(results["experiment"]), results, folder)


def _judged(experiment: ModuleType, results: dict[str, Any], out: Path) -> None:
    """Write results with their verdicts, and the table."""
    verdicts: list[Verdict] = experiment.judge(results["rows"])
    results |= {"verdicts": [v._asdict() for v in verdicts]}
    write_whole(out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    write_whole(out / "table.md", _markdown(experiment, results, results["rows"], verdicts).encode())


def _machine(device: str | None) -> dict[str, str]:
    """The GPU that computed, by name; a table may be made from finished runs where there is none."""
    if device is None or not torch.cuda.is_available():
        return {}
    return {"machine": torch.cuda.get_device_name()}


class _Clock:
    """Seconds in which an experiment was computed, in sittings that were cut off and by processes at other parts too.

    Time in which several processes computed counts once.

    Args:
        folder: has a file for each sitting, named by its start in ns, with its seconds.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / f"{time.time_ns()}-{os.getpid()}.json"  # no other process writes it
        self.started = self.written = time.perf_counter()

    def read(self) -> float:
        self.write()
        total, until = 0.0, 0.0
        for file in sorted(self.file.parent.glob("*.json"), key=_begun):
            begun, seconds = _begun(file), json.loads(file.read_text())
            total += max(0.0, begun + seconds - max(begun, until))
            until = max(until, begun + seconds)
        return total

    def write(self) -> None:
        self.written = time.perf_counter()
        write_whole(self.file, json.dumps(round(self.written - self.started, 1)).encode())

    def ticking(self, tick: Tick) -> Tick:
        """The same tick, which also writes the time down, every few seconds."""

        def told(n: float, text: str) -> None:
            tick(n, text)
            if time.perf_counter() - self.written > _WRITTEN_EVERY:
                self.write()

        return told


def _begun(sitting: Path) -> float:
    """When a sitting began, in seconds."""
    return int(sitting.name.partition("-")[0]) / 1e9


def _variant(name: str, experiment: ModuleType, options: Mapping[str, str]) -> dict[str, str]:
    """The value of every option of an experiment."""
    known: Mapping[str, Sequence[str]] = getattr(experiment, "OPTIONS", {})
    for key, value in options.items():
        if key not in known:
            takes = f"it takes --{', --'.join(known)}" if known else "it has no variants"
            raise FedsaddleError(f"{name}: --{key} has no use here; {takes}")
        if value not in known[key]:
            raise FedsaddleError(f"{name}: --{key} must be one of {', '.join(known[key])}, got {value!r}")
    return {key: options.get(key, values[0]) for key, values in known.items()}


def _check_part(
    name: str,
    cells: Callable[..., Sequence[Cell]],
    quick: bool,
    chosen: Mapping[str, str],
    experiment: ModuleType,
) -> None:
    """Refuse a part that has none of the cells of the last step, where others have some."""
    if chosen.get("part", "all") == "all" or cells([], quick, **chosen):
        return
    parts = [part for part in experiment.OPTIONS["part"] if cells([], quick, **{**chosen, "part": part})]
    if parts:  # else they depend on what is chosen before
        others = " ".join(f"--{k} {v}" for k, v in chosen.items() if k != "part")
        where = " in the quick version" if quick else f" with {others}" if others else ""
        raise FedsaddleError(
            f"{name}: --part {chosen['part']} has no cells{where}; choose one of {', '.join(parts)}"
        )


def _runs(base: Tree, cell: Cell, seeds: Sequence[int], device: str | None = None) -> list[config.Config]:
    """A cell's runs: each point with each seed."""
    return [
        _changed(base, {**cell.set, **point, "train.seed": seed}, device)
        for point in cell.points
        for seed in seeds
    ]


def _tuned(experiment: ModuleType, cell: Cell, entries: Sequence[Entry], title: str) -> Row:
    """The best point of a cell by SELECT, with its metrics over seeds."""
    points, select = cell.points, experiment.SELECT
    each = len(entries) // len(points)
    tried = [
        {**cell.at, "chosen": point, **_seen(experiment, entries[i * each : (i + 1) * each])}
        for i, point in enumerate(points)
    ]
    best = max(tried, key=lambda row: row["metrics"].get(select, {"mean": float("-inf")})["mean"])
    ended = [entry for entry in entries if "diverged" not in entry["metrics"]]
    if select not in best["metrics"] and len(points) == 1 and ended:  # chosen before, on other seeds
        best = {
            **cell.at,
            "chosen": points[0],
            **_seen(experiment, ended),
            "diverged": len(entries) - len(ended),
        }
    if select not in best["metrics"]:
        raise FedsaddleError(f"{title} at {cell.at}: every tried point diverged: {points}")
    return best | _tried(tried, select)


def _tried(tried: Sequence[Row], select: str) -> Row:
    """Every point that a cell had to choose from, with the mean that chose; None where it diverged."""
    if len(tried) == 1:
        return {}
    means = [row["metrics"].get(select, {"mean": None})["mean"] for row in tried]
    return {"tried": [row["chosen"] | {select: short(v)} for row, v in zip(tried, means, strict=True)]}


def sibling(file: str, name: str) -> ModuleType:
    """For an experiment.py, at `file`: another experiment of its paper, to share its parts."""
    return _load(Path(file).parents[1] / name)


def load_experiment(name: str) -> ModuleType:
    """The experiment.py of PAPER/NAME."""
    return _load(_root() / name)


def _load(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"experiment_{folder.name}", folder / "experiment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _seen(experiment: ModuleType, runs: Sequence[Entry]) -> Row:
    """Metrics of one point over seeds and, where the experiment asks for them, curves: rounds, and values seed by seed."""
    if not all("curves" in run for run in runs):  # not asked for, or diverged
        return {"metrics": over_seeds(runs)}
    measured = [{"metrics": run["metrics"] | experiment.measure(run["curves"])} for run in runs]
    values = {k: [run["curves"][k] for run in runs] for k in experiment.CURVES}
    return {"metrics": over_seeds(measured), "curves": {"round": runs[0]["curves"]["round"], **values}}


def _changed(base: Tree, change: Mapping[str, Any], device: str | None = None) -> config.Config:
    """The config of changes of base.toml; on another device, which need not be here."""
    tree = copy.deepcopy(base)
    for key, value in change.items():
        put(tree, key.split("."), value, f"{key} = {value!r}")
    made = config.resolve(tree, "base")
    if device is not None:
        made.tree["train"]["device"] = device
    return made


def _markdown(
    experiment: ModuleType, results: dict[str, Any], rows: list[Row], verdicts: list[Verdict]
) -> str:
    across = list(dict.fromkeys(row[experiment.COLUMNS] for row in rows))
    down = list(dict.fromkeys(row[experiment.ROWS] for row in rows))
    cells = {(row[experiment.ROWS], row[experiment.COLUMNS]): row for row in rows}

    def show(row: Row | None, metric: str) -> str:
        m = row["metrics"].get(metric) if row else None
        spread = f" ± {m['std']:.4f}" if m and len(m["values"]) > 1 else ""
        spread += f" ({row['diverged']} diverged)" if m and row and row.get("diverged") else ""
        return f"{m['mean']:.4f}{spread}" if m else "-"

    lines = [
        f"# {experiment.TITLE}" + (", quick version" if results["quick"] else ""),
        "",
        f"`{results['command']}`, seeds {results['seeds']}, mean ± std."
        + (f" Tuned on {results['tuned_on']}." if "tuned_on" in results else ""),
        "",
    ]
    if results["quick"]:
        lines += [
            "**Quick version on generated data: it shows that the experiment runs; its numbers mean little.**",
            "",
        ]
    if results.get("missing"):
        lines += [
            f"**{len(rows)} of {len(rows) + results['missing']} cells; --part computes the others.**",
            "",
        ]
    for metric, caption in experiment.METRICS.items():
        lines += [f"## {caption}", "", f"| {experiment.ROWS} | " + " | ".join(str(a) for a in across) + " |"]
        lines += ["|---" * (len(across) + 1) + "|"]
        lines += [
            f"| {d} | " + " | ".join(show(cells.get((d, a)), metric) for a in across) + " |" for d in down
        ]
        lines += [""]
    chosen = [
        f"- {row[experiment.ROWS]}, {row[experiment.COLUMNS]}: {row['chosen']}"
        for row in [*(r for step in results.get("tuned_before", []) for r in step), *rows]
        if row.get("chosen")
    ]
    if chosen:
        by = "on validation" if experiment.SELECT.startswith("valid") else f"by {experiment.SELECT}"
        lines += [f"## Chosen {by}", "", *dict.fromkeys(chosen), ""]
    lines += ["## Claims", ""]
    for v in verdicts:
        verdict = "not judged in the quick version" if results["quick"] else in_words(v.holds)
        lines += [
            f"- **{verdict}**: {v.claim}. {v.numbers}"
            + (f" Published: {v.published}." if v.published else "")
        ]
    return "\n".join(lines) + "\n"
