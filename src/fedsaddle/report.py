"""Reports: one self-contained HTML page about a run, or about several side by side.

    write_report("runs/codasca")                                        # -> runs/codasca/report.html
    write_comparison({"CODASCA": "runs/a", "CODA+": "runs/b"}, "compare.html")
    curves({"CODASCA": run.records})                                    # one Plotly figure, for a notebook

A page works offline: plotly.js is inlined once and a content security policy forbids every request. Figures are plain
dictionaries whose colours are names such as "@c0"; the page's script puts in the colours of the reader's light or dark
scheme, and those of the light one on paper. What users supply (names, settings) is escaped wherever it is shown.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.errors import FedsaddleError, optional_import
from fedsaddle.train import Record, human_bytes

if TYPE_CHECKING:
    import plotly.graph_objects

Folder = str | os.PathLike[str]
Trace = dict[str, Any]

# Eight hues that differ under every common colour blindness (Okabe and Ito 2008, without yellow), lighter on dark.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b85c94", "#3a9bd4", "#c98500", "#6a51a3", "#6b7280")
DARK = ("#56b4e9", "#ff8f4f", "#2fc79c", "#e79cc6", "#a8dcff", "#f2bd4b", "#b3a5ec", "#aab2bf")
DASHES = ("solid", "dash", "dot", "dashdot")  # the ninth run has the first colour again, dashed

MAIN = (
    "auc",
    "train_auc",
    "accuracy",
    "train_accuracy",
    "distance",
    "field_norm",
    "loss",
)  # the first one known
RESIDUALS = ("distance", "grad_phi", "field_norm", "grad_norm")
ON_LOG_SCALE = frozenset(RESIDUALS)
LABELS = {
    "auc": "Test AUC",
    "train_auc": "Training AUC",
    "valid_auc": "Validation AUC",
    "auc_clients": "AUC, mean over clients",
    "auc_worst20": "AUC, worst 20 % of clients",
    "auc_best20": "AUC, best 20 % of clients",
    "auc_std": "AUC, spread over clients",
    "single_class_clients": "Single-class clients",
    "accuracy": "Test accuracy",
    "train_accuracy": "Training accuracy",
    "valid_accuracy": "Validation accuracy",
    "accuracy_clients": "Accuracy, mean over clients",
    "accuracy_worst20": "Accuracy, worst 20 % of clients",
    "accuracy_best20": "Accuracy, best 20 % of clients",
    "accuracy_std": "Accuracy, spread over clients",
    "distance": "Distance to the saddle point",
    "field_norm": "Norm of the saddle field",
    "loss": "Training loss",
    "grad_norm": "Gradient norm",
    "phi": "Objective φ = max over the dual",
    "grad_phi": "Gradient norm ‖∇φ‖",
    "failures": "Clients that did not answer",
    "round": "Rounds",
    "phases": "Communication phases",
    "bytes_down": "Sent down, server to clients",
    "bytes_up": "Sent up, clients to server",
    "seconds": "Time",
}
NOTES = {
    "auc": "all test samples pooled",
    "train_auc": "all training samples pooled; there is no test data",
    "single_class_clients": "their AUC is undefined, so they are counted here instead",
    "auc_std": "standard deviation",
    "accuracy_std": "standard deviation",
    "bytes_down": "all rounds, all clients, as 4-byte numbers",
    "bytes_up": "all rounds, all clients, as 4-byte numbers",
}
_NOT_METRICS = {
    "round", "phases", "bytes_down", "bytes_up", "failures", "participants", "clients", "seconds"
}  # fmt: skip
_NAMED_CLIENTS = 40  # beyond this, clients are told apart by hovering
_CALENDAR = (150, 400)  # clients and rounds drawn; more are averaged in bins


# ------------------------------------------------------------------------------------------- what is shown


def curves(runs: Mapping[str, Sequence[Record]]) -> plotly.graph_objects.Figure:
    """The course of runs as a Plotly figure: the main metric and the worst 20 % of clients against rounds.

    Args:
        runs: the records of each run by its name; a run has one colour.
    """
    go = optional_import("plotly.graph_objects", "curves", "report")
    groups = [_Group(name, i, [_Run(name, list(records))]) for i, (name, records) in enumerate(runs.items())]
    main = _main_metric(groups)
    traces = [t for g in groups for t in _lines(g, main, "round")]
    for g in groups:
        for t in _lines(g, _worst(main), "round"):
            traces.append(t | {"name": f"{t['name']}, worst 20 %", "line": t["line"] | {"dash": "dot"}})
    for trace in traces:
        trace["showlegend"] = len(traces) > 1
    axes = _axes("Round", _label(main), log=main in ON_LOG_SCALE)
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    layout = axes | {"template": "plotly_white", "hovermode": "x unified", "legend": legend}
    layout["modebar"] = {"remove": ["sendChartToCloud"]}  # recent Plotly offers to upload the figure
    figure: plotly.graph_objects.Figure = go.Figure(_coloured({"data": traces, "layout": layout}))
    return figure


def write_report(run_dir: Folder) -> Path:
    """Write report.html into a run's folder and return its path; an unfinished run is reported as far as it got."""
    folder = Path(run_dir)
    script = _plotly_js("write_report")
    run = _read(folder.resolve().name, folder)
    group = _Group(run.name, 0, [run])
    main = _main_metric([group])
    cards = [
        _key_numbers(run),
        _course([group], main),
        _by_client([group], main),
        _residual([group], main),
        _calendar(run),
        _partition([group]),
        _communication(run),
        _settings(run),
        _citations([group]),
        _versions([group]),
    ]
    algorithm, problem = run.part("algorithm").get("name"), run.part("problem").get("name")
    title = f"{algorithm} on {problem}" if algorithm and problem else run.name
    page = _page(
        title,
        f"Training run · {run.name}",
        _subtitle(run),
        f"<div class='tiles'>{_tiles(run, main)}</div>",
        cards,
        script,
    )
    return _write(folder / "report.html", page)


def write_comparison(
    run_dirs: Sequence[Folder] | Mapping[str, Folder | Sequence[Folder]], out: Folder, *, note: str = ""
) -> Path:
    """Write one page that compares runs, and return its path.

    Args:
        run_dirs: folders of runs, or folders by the name to show. A name with several folders is one method that was
            repeated, such as over seeds; it is shown by its mean and standard deviation.
        out: the HTML file to write.
        note: what a reader should know, shown at the top.

    Example:
        >>> write_comparison({"CODASCA": ["runs/c-0", "runs/c-1"], "CODA+": "runs/p"}, "out.html")  # doctest: +SKIP
    """
    script = _plotly_js("write_comparison")
    named = run_dirs if isinstance(run_dirs, Mapping) else _named([Path(d) for d in run_dirs])
    if not named:
        raise FedsaddleError("write_comparison: give at least one run folder, got none")
    groups = []
    for i, (name, given) in enumerate(named.items()):
        folders = [given] if isinstance(given, str | os.PathLike) else list(given)
        if not folders:
            raise FedsaddleError(f"write_comparison: {name!r} has no run folder; give at least one")
        groups.append(_Group(str(name), i, [_read(str(name), Path(f)) for f in folders]))
    main = _main_metric(groups)
    cards = [
        _table_of_runs(groups, main),
        _course(groups, main),
        _by_client(groups, main),
        _residual(groups, main),
        _partition(groups),
        _differences(groups),
        _citations(groups),
        _versions(groups),
    ]
    runs = sum(len(g.runs) for g in groups)
    title = " · ".join(g.name for g in groups) if len(groups) <= 4 else f"{len(groups)} runs compared"
    subtitle = [_plural(runs, "run")]
    if runs > len(groups):
        subtitle.append("numbers are means ± standard deviation over repetitions")
    subtitle += _common_facts(groups)
    lead = f"<p class='lead'>{_escape(note)}</p>" if note else ""
    return _write(Path(out), _page(title, "Comparison", subtitle, lead, cards, script))


# ---------------------------------------------------------------------------------------------- reading runs


@dataclass(frozen=True)
class _Run:
    """One run as read from its folder (or as given records)."""

    name: str
    records: list[Record]
    result: Record = field(default_factory=dict)
    config_text: str = ""

    @property
    def evaluated(self) -> list[Record]:
        return [r for r in self.records if not _NOT_METRICS.issuperset(r)]

    @property
    def final(self) -> Record:
        """The last metrics, with the counters of the last round."""
        known = self.evaluated[-1:] + self.records[-1:]
        return {k: v for record in known for k, v in record.items()} | (self.result.get("metrics") or {})

    def part(self, name: str) -> Record:
        section = (self.result.get("config") or {}).get(name)
        return section if isinstance(section, dict) else {}

    @property
    def n_clients(self) -> int:
        listed = (max(r["clients"], default=-1) + 1 for r in self.records if "clients" in r)
        known = self.part("federation").get("clients")
        return int(known) if known else max([len(self.client_names), *listed], default=0)

    @property
    def client_names(self) -> list[str]:
        return [str(n) for n in self.result.get("client_names") or []]

    def client(self, i: int) -> str:
        return self.client_names[i] if i < len(self.client_names) else f"client {i}"

    def per_client(self, main: str) -> list[float | None]:
        values = (self.result.get("per_client") or {}).get(main.removeprefix("train_")) or []
        return [_finite(v) for v in values]


@dataclass(frozen=True)
class _Group:
    """What has one name and one colour: a run, or repetitions of it."""

    name: str
    index: int
    runs: list[_Run]

    @property
    def colour(self) -> str:
        return f"@c{self.index % len(LIGHT)}"

    @property
    def symbol(self) -> str:
        return ("circle", "diamond", "square", "triangle-up")[self.index % 4]

    @property
    def dash(self) -> str:
        return DASHES[self.index // len(LIGHT) % len(DASHES)]

    def values(self, key: str) -> list[float]:
        found = (_finite(r.final.get(key)) for r in self.runs)
        return [v for v in found if v is not None]


def _read(name: str, folder: Path) -> _Run:
    history = folder / "history.jsonl"
    if not history.is_file():
        raise FedsaddleError(
            f"{folder}: no history.jsonl in it; give the folder of a run (train(..., out=...))"
        )
    records: list[Record] = []
    lines = history.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        try:
            record = json.loads(line)
        except ValueError:
            if i == len(lines) - 1 and records:
                break  # a run that was killed while it wrote
            raise FedsaddleError(f"{history}: line {i + 1} is not JSON; the file is damaged") from None
        if not isinstance(record, dict) or "round" not in record:
            raise FedsaddleError(f"{history}: line {i + 1} is no record of a round; the file is damaged")
        records.append(record)
    if not records:
        raise FedsaddleError(f"{history}: is empty; the run has not started, so there is nothing to report")
    result: Record = {}
    if (folder / "result.json").is_file():
        try:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        except ValueError:
            raise FedsaddleError(f"{folder / 'result.json'}: is not JSON; the file is damaged") from None
    config = folder / "config.toml"
    return _Run(name, records, result, config.read_text(encoding="utf-8") if config.is_file() else "")


def _named(folders: list[Path]) -> dict[str, Path]:
    """Folders by their last name, with as many parents as it takes to tell them apart."""
    parts = [f.resolve().parts for f in folders]
    depth = 1
    while len({p[-depth:] for p in parts}) < len(set(parts)):
        depth += 1
    return {"/".join(p[-depth:]): f for p, f in zip(parts, folders, strict=True)}


def _main_metric(groups: Sequence[_Group]) -> str:
    """The first metric of MAIN that all runs have, else that any run has."""
    known = [set().union(*(r.keys() for r in run.evaluated)) for g in groups for run in g.runs]
    for have in (set.intersection, set.union):
        common = have(*known) if known else set()
        for key in MAIN:
            if key in common:
                return key
    return MAIN[0]


def _worst(main: str) -> str:
    return f"{main.removeprefix('train_')}_worst20"


# ---------------------------------------------------------------------------------------------- figures


class _Card(NamedTuple):
    """A part of a page."""

    name: str
    title: str
    body: str  # HTML
    wide: bool


class _Plot(NamedTuple):
    """A figure on a page."""

    title: str
    data: list[Trace]
    layout: Record
    height: int = 320


def _axes(x: str, y: str, log: bool = False) -> Record:
    return {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}} | ({"type": "log", "exponentformat": "power"} if log else {}),
    }


def _lines(g: _Group, key: str, x: str) -> list[Trace]:
    """One line against rounds or bytes; of repetitions the mean, with a band of one standard deviation."""
    points: dict[int, list[tuple[float, float]]] = {}
    for run in g.runs:
        for r in run.evaluated:
            value = _finite(r.get(key))
            if value is not None and not (key in ON_LOG_SCALE and value <= 0):
                at = r["round"] if x == "round" else r.get("bytes_down", 0) + r.get("bytes_up", 0)
                points.setdefault(r["round"], []).append((at, value))
    common = {r: np.array(p) for r, p in sorted(points.items()) if len(p) == len(g.runs)}
    if not common:
        return []
    xs = [float(p[:, 0].mean()) for p in common.values()]
    mean = [float(p[:, 1].mean()) for p in common.values()]
    spread = [float(p[:, 1].std(ddof=1)) if len(p) > 1 else 0.0 for p in common.values()]
    number = ".3~g" if key in ON_LOG_SCALE else ".4f"
    label = f"%{{y:{number}}}" + (f" ± %{{customdata:{number}}}" if len(g.runs) > 1 else "")
    line = {
        "type": "scatter", "mode": "lines" if len(xs) > 1 else "markers", "name": _escape(g.name), "x": xs, "y": mean,
        "customdata": spread, "line": {"color": g.colour, "width": 2.2, "dash": g.dash},
        "marker": {"color": g.colour}, "hovertemplate": label, "showlegend": False,
    }  # fmt: skip
    if len(g.runs) == 1 or key in ON_LOG_SCALE:
        return [line]
    low = [m - s for m, s in zip(mean, spread, strict=True)]
    high = [m + s for m, s in zip(mean, spread, strict=True)]
    band = {
        "type": "scatter", "mode": "lines", "x": xs + xs[::-1], "y": high + low[::-1], "fill": "toself",
        "fillcolor": f"{g.colour}a", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    return [band, line]


def _course(groups: list[_Group], main: str) -> _Card:
    """Quality against rounds and against bytes. One run: main metric and worst 20 % together; several: apart."""
    log, plots = main in ON_LOG_SCALE, []
    keys = [main, _worst(main)]
    known = [k for k in keys if any(_lines(g, k, "round") for g in groups)]
    together = len(groups) == 1
    for wanted in [known] if together else [[k] for k in known]:
        for x, axis, against in (("round", "Round", "rounds"), ("bytes", "Bytes, down and up", "bytes sent")):
            data = []
            for g in groups:
                for key in wanted:
                    style = {"dash": "dot"} if together and key != main else {}
                    named = {"name": _label(key)} if together else {}
                    data += [t | named | {"line": t["line"] | style} for t in _lines(g, key, x)]
            if not data:
                continue
            layout = _axes(axis, _unit(main), log)
            layout |= {"hovermode": "x unified" if x == "round" or together else "closest"}
            layout["xaxis"] |= (
                {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"} if x == "bytes" else {}
            )
            layout["yaxis"] |= {} if log else _focus(data)
            title = f"Against {against}" if together else f"{_label(wanted[0])}, against {against}"
            plots.append(_Plot(title, data, layout))
    if not plots:
        return _card("course", "Course of training", "<p class='note'>No evaluation was recorded.</p>")
    if together:
        legend = _legend([(_label(k), groups[0].colour, "dot" if k != main else "solid") for k in known])
    else:
        legend = _legend([(g.name, g.colour, g.dash) for g in groups])
    note = ""
    if any(len(g.runs) > 1 for g in groups) and not log:
        note = "<p class='note'>Lines are means over repetitions; bands are one standard deviation.</p>"
    return _card("course", "Course of training", legend + _plots(plots) + note, wide=True)


def _focus(data: list[Trace]) -> Record:
    """A y range in which the late course is legible: the first evaluation, of an untrained model, may lie below."""
    late = [y for t in data if "fill" not in t for y in t["y"][max(1, len(t["y"]) // 10) :] or t["y"]]
    low, high = min(late), max(late)
    margin = max(0.06 * (high - low), 0.002)
    return {"range": [low - margin, high + margin]}


def _by_client(groups: list[_Group], main: str) -> _Card | None:
    """A dot for each client; repetitions are averaged."""
    if not any(run.per_client(main) for g in groups for run in g.runs):
        return None
    first = next(run for g in groups for run in g.runs if run.per_client(main))
    alike = [
        g for g in groups if all(r.client_names == first.client_names and r.per_client(main) for r in g.runs)
    ]
    n = len(first.per_client(main))
    if any(len(r.per_client(main)) != n for g in alike for r in g.runs):
        return None
    table = {g.index: _column_means([r.per_client(main) for r in g.runs]) for g in alike}
    best = table[alike[0].index]
    defined = sorted((i for i in range(n) if best[i] is not None), key=lambda i: (best[i], i))
    undefined = [i for i in range(n) if best[i] is None]
    if not defined:
        return None
    across = n > _NAMED_CLIENTS
    data: list[Trace] = []
    for j, g in enumerate(alike):
        step = min(0.16, 0.7 / len(alike))
        places = [k + (j - (len(alike) - 1) / 2) * step * (not across) for k in range(len(defined))]
        values = [table[g.index][i] for i in defined]
        data.append({
            "type": "scatter", "mode": "markers", "name": _escape(g.name), "showlegend": False,
            "x": places if across else values, "y": values if across else places,
            "text": [_who(first, i) for i in defined],
            "hovertemplate": f"%{{text}}<br>{_label(main)} %{{{'y' if across else 'x'}:.4f}}<extra>{{}}</extra>".replace(
                "{}", "%{fullData.name}" if len(groups) > 1 else ""
            ),
            "marker": {
                "color": g.colour, "size": 5 if across else 10, "opacity": 0.9,
                "symbol": g.symbol,
                "line": {"color": "@surface", "width": 1},
            },
        })  # fmt: skip
    value = {"title": {"text": _unit(main)}}
    names = {
        "tickvals": list(range(len(defined))),
        "ticktext": [_short(first.client(i)) for i in defined],
        "showgrid": True,
    }
    layout: Record = {"hovermode": "closest"}
    if across:
        layout |= {
            "xaxis": {"title": {"text": "Clients, from worst to best"}, "showticklabels": False},
            "yaxis": value,
        }
    else:
        layout |= {"xaxis": value, "yaxis": names | {"automargin": True, "range": [-0.7, len(defined) - 0.3]}}
    height = 340 if across else 96 + 28 * len(defined)
    note = "Each client's own test data; worst at the bottom."
    if first.result.get("clients_evaluated_on") == "train":
        note = "Each client's own training data (there is no test data by client); worst at the bottom."
    if across:
        note = note.replace("at the bottom", "on the left")
    if len(alike) > 1:
        note += f" Sorted by {alike[0].name}."
    whole = _finite(first.final.get(main))
    if len(groups) == 1 and whole is not None:
        at, over = ("y", "x") if across else ("x", "y")
        layout["shapes"] = [{
            "type": "line", f"{at}0": whole, f"{at}1": whole, f"{over}ref": "paper", f"{over}0": 0, f"{over}1": 1,
            "line": {"color": "@soft", "width": 1, "dash": "dot"}, "layer": "below",
        }]  # fmt: skip
        note += f" The dotted line is the {_label(main)[0].lower()}{_label(main)[1:]} of all samples pooled."
    if undefined:
        listed = ", ".join(first.client(i) for i in undefined[:12]) + (" …" if len(undefined) > 12 else "")
        note += f" Not defined for {_plural(len(undefined), 'client')} with one class only: {listed}."
    legend = _legend([(g.name, g.colour, g.symbol) for g in alike]) if len(alike) > 1 else ""
    body = legend + _plots([_Plot("", data, layout, height)]) + f"<p class='note'>{_escape(note)}</p>"
    return _card("clients", f"{_unit(main)} client by client", body)


def _who(run: _Run, i: int) -> str:
    counts = run.result.get("class_counts")
    held = f"<br>{sum(counts[i]):,} training samples" if counts and i < len(counts) else ""
    return f"<b>{_escape(run.client(i))}</b>{held}"


def _residual(groups: list[_Group], main: str) -> _Card | None:
    """How far from a solution, where the problem knows it."""
    for key in RESIDUALS:
        data = [] if key == main else [t for g in groups for t in _lines(g, key, "round")]
        if data:
            break
    else:
        return None
    layout = _axes("Round", _label(key), log=True) | {"hovermode": "x unified"}
    shown = [g for g in groups if _lines(g, key, "round")]
    note = {
        "grad_phi": "φ(v) is the objective with the dual variable at its maximum; its gradient vanishes at a solution.",
        "distance": "Euclidean distance of (x, y) from the known saddle point.",
    }.get(key, "Vanishes at a solution.")
    legend = ""
    if len(groups) > 1:
        legend = _legend([(g.name, g.colour, g.dash) for g in shown])
        missing = [g.name for g in groups if g not in shown]
        note += f" Not known for {', '.join(missing)}, which solves another problem." if missing else ""
    return _card(
        "residual",
        _label(key),
        legend + _plots([_Plot("", data, layout)]) + f"<p class='note'>{_escape(note)}</p>",
    )


def _calendar(run: _Run) -> _Card | None:
    """Who took part when; only where some rounds had fewer than all clients."""
    rounds = [r for r in run.records if "participants" in r]
    n = run.n_clients
    if not rounds or not n or not any("clients" in r for r in rounds):
        return None
    if any("clients" not in r and r["participants"] < n for r in rounds):
        return None  # too many to be listed
    grid = np.zeros((n, len(rounds)))
    for j, r in enumerate(rounds):
        grid[r.get("clients", list(range(n))), j] = 1
    if grid.all():
        return None  # the header says that everyone takes part
    rows, columns = (
        np.array_split(np.arange(k), min(k, m)) for k, m in zip(grid.shape, _CALENDAR, strict=True)
    )
    binned = len(rows) < n or len(columns) < len(rounds)
    share = np.array([[grid[np.ix_(a, b)].mean() for b in columns] for a in rows])
    who = [run.client(int(a[0])) + (f" to {run.client(int(a[-1]))}" if len(a) > 1 else "") for a in rows]
    data: list[Trace] = [{
        "type": "heatmap", "z": share.round(3).tolist(), "x": [rounds[int(b[0])]["round"] for b in columns],
        "y": list(range(len(rows))), "colorscale": [[0, "@empty"], [1, "@c0"]], "zmin": 0, "zmax": 1, "showscale": False,
        "text": [[_escape(w)] * len(columns) for w in who] if share.size <= 20_000 else None,
        "hovertemplate": "%{text}<br>round %{x}" + ("<br>%{z:.0%} of the time" if binned else "") + "<extra></extra>",
        "xgap": 1 if len(columns) <= 80 else 0, "ygap": 1 if len(rows) <= 40 else 0,
    }]  # fmt: skip
    named = len(rows) <= _NAMED_CLIENTS
    y = (
        {"tickvals": list(range(len(rows))), "ticktext": [_short(w) for w in who]}
        if named
        else {"showticklabels": False}
    )
    layout = {
        "xaxis": {"title": {"text": "Round"}, "showgrid": False},
        "yaxis": y | {"autorange": "reversed", "showgrid": False, "automargin": True, "zeroline": False},
        "hovermode": "closest",
    }
    height = 96 + (28 * len(rows) if named else 420)
    times = grid.sum(1)
    note = (
        f"On average {grid.sum(0).mean():.1f} of {n} clients took part in a round; a client took part in "
        f"{int(times.min())} to {int(times.max())} of {len(rounds)} rounds."
    )
    failures = run.records[-1].get("failures", 0)
    note += f" {failures:,} requests stayed without an answer." if failures else ""
    return _card(
        "calendar", "Who took part", _plots([_Plot("", data, layout, height)]) + f"<p class='note'>{note}</p>"
    )


def _partition(groups: list[_Group]) -> _Card | None:
    """Samples of each class at each client; of several runs only if all have the same data."""
    runs = [run for g in groups for run in g.runs]
    first = runs[0]
    counts = first.result.get("class_counts")
    if not counts or any(
        r.result.get("class_counts") != counts or r.client_names != first.client_names for r in runs
    ):
        return None
    table = np.array(counts)  # [N, C]
    n, width = table.shape
    given = [str(c) for c in first.result.get("classes") or []]
    classes = given if len(given) == width else [f"class {k}" for k in range(width)]
    size = table.sum(1)
    hover = "%{text}<br>%{customdata[0]:,} samples (%{customdata[1]:.1%})<extra></extra>"
    share = table / np.maximum(size, 1)[:, None]
    data: list[Trace] = []
    legend = ""
    order = list(range(n))
    along = n <= _NAMED_CLIENTS  # names on the left, bars to the right
    names = {
        "tickvals": order, "ticktext": [_short(first.client(i)) for i in order], "autorange": "reversed", "automargin": True,
        "showgrid": False, "zeroline": False,
    }  # fmt: skip
    unnamed = {
        "title": {"text": _plural(n, "client")},
        "showticklabels": False,
        "showgrid": False,
        "zeroline": False,
    }
    if width > len(LIGHT) or n * width > 2000:
        x, y = ([order, list(range(width))], [list(range(width)), order])[along]
        z = share if along else share.T
        data.append({
            "type": "heatmap", "x": x, "y": y, "z": z.round(4).tolist(), "zmin": 0,
            "colorscale": [[0, "@empty"], [1, "@c0"]],
            "colorbar": {"title": {"text": "share"}, "tickformat": ".0%", "thickness": 10, "outlinewidth": 0},
            "hovertemplate": "class %{" + "yx"[along] + "}<br>%{z:.1%} of the client's samples<extra></extra>",
        })  # fmt: skip
        ticks = {
            "title": {"text": "Class"},
            "tickvals": list(range(width)),
            "ticktext": [_short(c, 12) for c in classes],
        }
        layout: Record = {"xaxis": ticks, "yaxis": names} if along else {"xaxis": unnamed, "yaxis": ticks}
    else:
        # with two classes the usual one is grey, so that the rare one is seen
        rare = int(table.sum(0).argmin())
        hues = [("@c1" if k == rare else "@quiet") if width == 2 else f"@c{k}" for k in range(width)]
        for k in range(width):
            values = table[:, k].tolist()
            data.append({
                "type": "bar", "name": _escape(classes[k]), "x": values if along else order, "y": order if along else values,
                "orientation": "h" if along else "v", "marker": {"color": hues[k], "line": {"width": 0}},
                "text": [f"<b>{_escape(first.client(i))}</b><br>{_escape(classes[k])}" for i in order],
                "textposition": "none", "hovertemplate": hover, "showlegend": False,
                "customdata": [[int(table[i, k]), float(share[i, k])] for i in order],
            })  # fmt: skip
        samples = {"title": {"text": "Training samples"}}
        layout = {"xaxis": samples, "yaxis": names} if along else {"xaxis": unnamed, "yaxis": samples}
        layout |= {"barmode": "stack", "bargap": 0.3 if along else 0.05}
        legend = _legend([(c, hue, "block") for c, hue in zip(classes, hues, strict=True)])
    totals = table.sum(0)
    note = (
        f"{int(totals.sum()):,} training samples, {int(size.min()):,} to {int(size.max()):,} a client. "
        f"The rarest class, {classes[int(totals.argmin())]}, is {totals.min() / max(totals.sum(), 1):.1%} of all; "
        f"{_plural(int(((table > 0).sum(1) == 1).sum()), 'client')} with one class only."
    )
    height = 96 + 28 * n if along else 320
    body = legend + _plots([_Plot("", data, layout | {"hovermode": "closest"}, height)])
    return _card("partition", "Data of each client", body + f"<p class='note'>{_escape(note)}</p>")


# ---------------------------------------------------------------------------------------------- tables and text


def _tiles(run: _Run, main: str) -> str:
    final, base = run.final, main.removeprefix("train_")
    wanted = [(main, ""), (f"{base}_worst20", ""), (f"{base}_clients", "")]
    tiles = [(_label(k), _number(k, final[k])) for k, _ in wanted if _finite(final.get(k)) is not None]
    tiles.append(("Rounds", f"{run.records[-1]['round']:,}"))
    tiles.append(("Communication", human_bytes(final.get("bytes_down", 0) + final.get("bytes_up", 0))))
    return "".join(
        f"<div class='tile{' lead' if i == 0 else ''}'><div class='figure'>{_escape(value)}</div>"
        f"<div class='caption'>{_escape(label)}</div></div>"
        for i, (label, value) in enumerate(tiles)
    )


def _key_numbers(run: _Run) -> _Card:
    final = run.final
    rows = [(k, final[k]) for k in LABELS if k in final and isinstance(final[k], int | float)]
    rows += [
        (k, v)
        for k, v in final.items()
        if k not in LABELS and k != "participants" and isinstance(v, int | float)
    ]
    body = "".join(
        f"<tr><th scope='row'>{_escape(_label(k))}{_small(NOTES.get(k))}</th><td>{_number(k, v)}</td></tr>"
        for k, v in rows
    )
    warning = ""
    rounds = run.part("train").get("rounds")
    if not run.result:
        warning = (
            f"<p class='warning'>This run has not finished: there is no result.json. The report shows its first "
            f"{run.records[-1]['round']:,} rounds.</p>"
        )
    elif rounds and run.records[-1]["round"] < rounds:
        warning = f"<p class='warning'>Only {run.records[-1]['round']:,} of {rounds:,} rounds are in the history.</p>"
    return _card(
        "numbers",
        "Key numbers",
        f"{warning}<table class='pairs columns'><tbody>{body}</tbody></table>",
        wide=True,
    )


def _table_of_runs(groups: list[_Group], main: str) -> _Card:
    base = main.removeprefix("train_")
    wanted = {
        main: _label(main), f"{base}_clients": "Mean over clients", f"{base}_worst20": "Worst 20\u00a0%",
        f"{base}_best20": "Best 20\u00a0%", "single_class_clients": "Single-class clients", "round": "Rounds",
        "phases": "Phases", "bytes_down": "Down", "bytes_up": "Up", "seconds": "Time",
    }  # fmt: skip
    keys = [k for k in wanted if any(g.values(k) for g in groups)]
    head = "<th scope='col'>Method</th>" + "".join(f"<th scope='col'>{_escape(wanted[k])}</th>" for k in keys)
    best = {k: _best(k, [g.values(k) for g in groups]) for k in keys}
    rows = []
    for i, g in enumerate(groups):
        cells = []
        for k in keys:
            kind = " class='best'" if i in best[k] else ""
            cells.append(f"<td{kind}>{_mean_and_spread(k, g.values(k))}</td>")
        algorithm = g.runs[0].part("algorithm").get("name")
        problem = g.runs[0].part("problem").get("name")
        what = f"{algorithm} on {problem}" if algorithm and problem else ""
        what += f", {len(g.runs)} repetitions" if len(g.runs) > 1 else ""
        unfinished = sum(not r.result for r in g.runs)
        what += f", {unfinished} unfinished" if unfinished else ""
        method = _swatch(g.colour, g.dash) + _escape(g.name) + _small(what.strip(", "))
        rows.append(f"<tr><th scope='row'>{method}</th>{''.join(cells)}</tr>")
    table = _scrolling("runs", head, "".join(rows))
    note = "<p class='note'>In bold: the best mean.</p>" if any(best.values()) else ""
    return _card("runs", "Results", table + note, wide=True)


def _best(key: str, values: list[list[float]]) -> list[int]:
    """Which of several runs are best in a measure of quality, as far as its digits are shown."""
    base, _, kind = key.rpartition("_")
    quality = key in MAIN or (base in MAIN and kind in ("clients", "worst20", "best20"))
    if not quality or not all(values) or len(values) == 1:
        return []
    means = [float(np.mean(v)) for v in values]
    top = min(means) if key in ON_LOG_SCALE or key == "loss" else max(means)
    found = [i for i, m in enumerate(means) if _number(key, m) == _number(key, top)]
    return found if len(found) < len(values) else []


def _communication(run: _Run) -> _Card | None:
    traffic = run.result.get("communication") or {}
    phases = traffic.get("phases") or {}
    rows = [(name, t) for name, t in phases.items() if isinstance(t, dict)]
    if not rows:
        return None
    total = {k: sum(t.get(k, 0) for _, t in rows) for k in ("phases", "bytes_down", "bytes_up")}
    setup = traffic.get("setup") or {}
    listed = ([("set-up, before the first round", setup)] if setup.get("phases") else []) + rows
    body = "".join(
        f"<tr><th scope='row'><code>{_escape(name)}</code></th>{_traffic(t)}</tr>" for name, t in listed
    )
    body += f"<tr class='total'><th scope='row'>All rounds</th>{_traffic(total)}</tr>"
    head = "".join(f"<th scope='col'>{h}</th>" for h in ("Phase", "Times", "Down", "Up"))
    note = (
        "A phase is one exchange: the server sends, clients work, clients answer. Counted over all clients."
    )
    table = _scrolling("traffic", head, body)
    return _card("communication", "Communication by phase", f"{table}<p class='note'>{note}</p>")


def _traffic(t: Record) -> str:
    times, down, up = t.get("phases", 0), t.get("bytes_down", 0), t.get("bytes_up", 0)
    return f"<td>{times:,}</td><td>{human_bytes(down)}</td><td>{human_bytes(up)}</td>"


def _settings(run: _Run) -> _Card | None:
    config = run.result.get("config") or {}
    parts = []
    for section, content in config.items():
        pairs = content.items() if isinstance(content, dict) else [(section, content)]
        rows = "".join(
            f"<tr><th scope='row'>{_escape(str(k))}</th><td><code>{_escape(_plain(v))}</code></td></tr>"
            for k, v in pairs
        )
        parts.append(
            f"<div><h3>{_escape(str(section))}</h3><table class='pairs'><tbody>{rows}</tbody></table></div>"
        )
    body = f"<div class='sections'>{''.join(parts)}</div>" if parts else ""
    if run.config_text:
        body += f"<details><summary>config.toml</summary><pre>{_escape(run.config_text)}</pre></details>"
    return _card("settings", "Settings", body, wide=True) if body else None


def _differences(groups: list[_Group]) -> _Card | None:
    """Settings in which runs differ, side by side, and those that all share."""
    flat = [[_flat(run.result.get("config") or {}) for run in g.runs] for g in groups]
    names = list(dict.fromkeys(k for runs in flat for f in runs for k in f))
    if not names:
        return None
    shown = {k: [_values(f.get(k) for f in runs) for runs in flat] for k in names}
    differing = {k: v for k, v in shown.items() if len(set(v)) > 1}
    common = {k: v[0] for k, v in shown.items() if len(set(v)) == 1}
    body = ""
    if differing:
        head = "<th scope='col'>Setting</th>" + "".join(
            f"<th scope='col'>{_escape(g.name)}</th>" for g in groups
        )
        rows = "".join(
            f"<tr><th scope='row'>{_escape(k)}</th>"
            + "".join(f"<td><code>{_escape(x)}</code></td>" for x in v)
            + "</tr>"
            for k, v in differing.items()
        )
        body = _scrolling("settings", head, rows)
    if common:
        rows = "".join(
            f"<tr><th scope='row'>{_escape(k)}</th><td><code>{_escape(v)}</code></td></tr>"
            for k, v in common.items()
        )
        body += (
            f"<details{'' if differing else ' open'}><summary>The same for all: {_plural(len(common), 'setting')}</summary>"
            f"<table class='pairs columns'><tbody>{rows}</tbody></table></details>"
        )
    return _card("settings", "Settings that differ" if differing else "Settings", body, wide=True)


def _citations(groups: list[_Group]) -> _Card | None:
    classes = {cls.__name__: cls for cls in ALGORITHMS.values()}
    names = dict.fromkeys(str(run.part("algorithm").get("name")) for g in groups for run in g.runs)
    entries = dict.fromkeys(classes[n].cites.bibtex() for n in names if n in classes)
    if not entries:
        return None
    body = "".join(f"<pre class='cite'>{_escape(entry)}</pre>" for entry in entries)
    return _card("cite", "How to cite the method" + ("s" if len(entries) > 1 else ""), body)


def _versions(groups: list[_Group]) -> _Card | None:
    runs = [run for g in groups for run in g.runs]
    names = dict.fromkeys(k for run in runs for k in run.result.get("versions") or {})
    if not names:
        return None
    rows = "".join(
        f"<tr><th scope='row'>{_escape(str(k))}</th>"
        f"<td><code>{_escape(_values((r.result.get('versions') or {}).get(k) for r in runs))}</code></td></tr>"
        for k in names
    )
    return _card("versions", "Versions", f"<table class='pairs'><tbody>{rows}</tbody></table>")


def _subtitle(run: _Run) -> list[str]:
    return _common_facts([_Group(run.name, 0, [run])])


def _common_facts(groups: list[_Group]) -> list[str]:
    """What all runs have in common, in a few words."""

    def common(section: str, key: str) -> Any:
        values = {json.dumps(r.part(section).get(key)) for g in groups for r in g.runs}
        return json.loads(values.pop()) if len(values) == 1 else None

    facts = []
    if (n := common("federation", "clients")) is not None:
        facts.append(_plural(n, "client"))
    if (n := common("federation", "samples")) is not None:
        facts.append(f"{_plural(n, 'training sample')}")
    if (n := common("train", "rounds")) is not None:
        facts.append(_plural(n, "round"))
    if (n := common("algorithm", "local_steps")) is not None:
        facts.append(_plural(n, "local step"))
    if (n := common("participation", "name")) is not None:
        facts.append("everyone takes part" if n == "Full" else f"{n} participation")
    if (n := common("train", "seed")) is not None:
        facts.append(f"seed {n}")
    return facts


# ---------------------------------------------------------------------------------------------- small helpers


def _escape(text: str) -> str:
    """For HTML, and for Plotly, which reads a few tags in its labels."""
    return html.escape(text)


def _small(text: str | None) -> str:
    return f"<small>{_escape(text)}</small>" if text else ""


def _short(text: str, most: int = 22) -> str:
    return _escape(text if len(text) <= most else text[: most - 1] + "…")


def _label(key: str) -> str:
    return LABELS.get(key) or _escape(key.replace("_", " ").capitalize())


def _unit(main: str) -> str:
    return {"auc": "AUC", "accuracy": "Accuracy"}.get(main.removeprefix("train_"), _label(main))


def _finite(value: Any) -> float | None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if ok else None


def _number(key: str, value: float) -> str:
    """A final value as text: four decimals for qualities, units for bytes and seconds."""
    if not math.isfinite(value):
        return "undefined"
    if key in ("bytes_down", "bytes_up"):
        return human_bytes(value)
    if key == "seconds":
        return (
            f"{value:.1f} s"
            if value < 120
            else f"{value / 60:.1f} min"
            if value < 7200
            else f"{value / 3600:.1f} h"
        )
    if isinstance(value, int) or key in (
        "round",
        "phases",
        "single_class_clients",
        "failures",
        "participants",
    ):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    if key in ON_LOG_SCALE:
        return f"{value:.3g}"
    return f"{value:.4f}"


def _mean_and_spread(key: str, values: list[float]) -> str:
    if not values:
        return "–"
    mean = float(np.mean(values))
    text = _number(key, mean)
    unit_free = key not in ("bytes_down", "bytes_up", "seconds", "round", "phases", "single_class_clients")
    return (
        f"{text} <small>± {_number(key, float(np.std(values, ddof=1)))}</small>"
        if len(values) > 1 and unit_free
        else text
    )


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _values(values: Iterable[Any]) -> str:
    """The distinct values of a setting, or a dash where it does not exist."""
    return ", ".join(dict.fromkeys("–" if v is None else _plain(v) for v in values))


def _flat(config: Record, prefix: str = "") -> Record:
    out: Record = {}
    for key, value in config.items():
        out |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": _plain(value)}
        )
    return out


def _column_means(rows: list[list[float | None]]) -> list[float | None]:
    out: list[float | None] = []
    for column in zip(*rows, strict=True):
        known = [v for v in column if v is not None]
        out.append(float(np.mean(known)) if known else None)
    return out


def _swatch(colour: str, kind: str) -> str:
    """A small picture for legends: a line of some dash, a marker or a block."""
    shapes = {
        "block": "<rect x='6' width='10' height='10' rx='2'/>",
        "circle": "<circle cx='11' cy='5' r='4'/>",
        "diamond": "<path d='M11 0l5 5l-5 5l-5-5z'/>",
        "square": "<rect x='7' y='1' width='8' height='8'/>",
        "triangle-up": "<path d='M11 1l4.5 8h-9z'/>",
    }
    dashes = {"dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}
    line = f"<path d='M0 5h22' stroke='currentColor' stroke-width='2.5' stroke-dasharray='{dashes.get(kind, '')}'/>"
    style = f"color:var(--{colour.removeprefix('@')});fill:currentColor"
    return f"<svg class='swatch' width='22' height='10' style='{style}' aria-hidden='true'>{shapes.get(kind, line)}</svg>"


def _legend(entries: list[tuple[str, str, str]]) -> str:
    items = "".join(f"<li>{_swatch(colour, kind)}{_escape(name)}</li>" for name, colour, kind in entries)
    return f"<ul class='legend'>{items}</ul>"


def _plots(plots: list[_Plot]) -> str:
    """Places for figures, each followed by its data, which the page's script draws."""
    out = []
    for p in plots:
        content = json.dumps({"data": p.data, "layout": p.layout}, allow_nan=False).replace("<", "\\u003c")
        heading = f"<h3>{_escape(p.title)}</h3>" if p.title else ""
        out.append(
            f"<div class='panel'>{heading}<div class='plot' style='height:{p.height}px'></div>"
            f"<script type='application/json'>{content}</script></div>"
        )
    return f"<div class='plots{' pair' if len(plots) > 1 else ''}'>{''.join(out)}</div>"


def _scrolling(kind: str, head: str, body: str) -> str:
    table = f"<table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='scroll'>{table}</div>"


def _card(name: str, title: str, body: str, wide: bool = False) -> _Card:
    return _Card(name, title, body, wide)


def _laid_out(cards: Iterable[_Card | None]) -> str:
    """The cards in two columns; one that has no neighbour takes both."""
    out, open_row = [], False
    shown = [card for card in cards if card is not None]
    for i, card in enumerate(shown):
        alone = not open_row and (i + 1 == len(shown) or shown[i + 1].wide)
        wide = card.wide or alone
        open_row = not wide and not open_row
        kind = "card wide" if wide else "card"
        out.append(
            f"<section class='{kind}' id='{card.name}'><h2>{_escape(card.title)}</h2>{card.body}</section>"
        )
    return "".join(out)


def _page(
    title: str, kind: str, subtitle: list[str], lead: str, cards: list[_Card | None], plotly_js: str
) -> str:
    parts = {
        "@TITLE@": _escape(title),
        "@KIND@": _escape(kind),
        "@SUBTITLE@": " <span class='sep'>·</span> ".join(_escape(s) for s in subtitle),
        "@LEAD@": lead,
        "@STYLE@": _STYLE,
        "@SCRIPT@": _SCRIPT,
        "@PALETTES@": json.dumps({"light": _colours("light"), "dark": _colours("dark")}),
        "@LIGHT@": _variables("light"),
        "@DARK@": _variables("dark"),
        "@PLOTLY@": plotly_js.replace("</script", "<\\/script"),
        "@CARDS@": _laid_out(cards),
    }

    # one pass, so that a name that reads like a place holder stays a name
    def fill(template: str) -> str:
        return re.sub("|".join(parts), lambda m: parts[m[0]], template)

    parts["@STYLE@"], parts["@SCRIPT@"] = fill(_STYLE), fill(_SCRIPT)
    return fill(_PAGE)


def _write(path: Path, page: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


def _plotly_js(what: str) -> str:
    js: str = optional_import("plotly.offline", what, "report").get_plotlyjs()
    return js


# ---------------------------------------------------------------------------------------------- colours and page

_SURFACES = {
    "light": {
        "page": "#f6f7f9", "surface": "#ffffff", "ink": "#1c2430", "soft": "#5b6675", "rule": "#e4e8ee", "grid": "#e9edf2",
        "empty": "#eef1f5", "quiet": "#b9c2ce", "accent": "#0072b2", "alert": "#fff4e5", "alertink": "#7a4100",
    },
    "dark": {
        "page": "#12161c", "surface": "#1a2029", "ink": "#e6eaf0", "soft": "#9aa5b4", "rule": "#2b333f", "grid": "#29313c",
        "empty": "#232b36", "quiet": "#5b6878", "accent": "#56b4e9", "alert": "#3a2a12", "alertink": "#ffd8a3",
    },
}  # fmt: skip


def _colours(scheme: str) -> dict[str, str]:
    hues = {f"c{i}": c for i, c in enumerate(LIGHT if scheme == "light" else DARK)}
    return _SURFACES[scheme] | hues | {f"{k}a": f"{_rgba(c, 0.16)}" for k, c in hues.items()}


def _rgba(colour: str, opacity: float) -> str:
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},{opacity})"


def _variables(scheme: str) -> str:
    return "".join(f"--{k}:{v};" for k, v in _colours(scheme).items())


def _coloured(figure: Any, under_colour: bool = False) -> Any:
    """A figure with the light scheme's colours in place of their names; the page's script does the same."""
    if isinstance(figure, dict):
        return {k: _coloured(v, under_colour or "color" in k) for k, v in figure.items()}
    if isinstance(figure, list):
        return [_coloured(v, under_colour) for v in figure] if under_colour or _nested(figure) else figure
    if under_colour and isinstance(figure, str) and figure.startswith("@"):
        return _colours("light")[figure[1:]]
    return figure


def _nested(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], dict)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="fedsaddle">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:">
<title>@TITLE@</title>
<style>@STYLE@</style>
</head>
<body>
<main>
<header>
<p class="eyebrow">fedsaddle <span class="sep">/</span> @KIND@</p><h1>@TITLE@</h1><p class="subtitle">@SUBTITLE@</p>
</header>
@LEAD@
<noscript><p class="warning">The figures need JavaScript. The tables do not.</p></noscript>
<div class="cards">@CARDS@</div>
<footer>Written by fedsaddle. This page is one file and loads nothing from the network.</footer>
</main>
<script>@PLOTLY@</script>
<script>@SCRIPT@</script>
</body>
</html>
"""

_STYLE = """
:root{color-scheme:light dark;@LIGHT@}
@media (prefers-color-scheme:dark){:root{@DARK@}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
 font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
 font-variant-numeric:tabular-nums}
main{max-width:1160px;margin:0 auto;padding:56px 28px 40px}
header{margin-bottom:32px}
.eyebrow{margin:0 0 10px;color:var(--soft);font-size:13px;letter-spacing:.02em;overflow-wrap:anywhere}
.sep{opacity:.5;padding:0 .2em}
h1{margin:0;font-size:32px;line-height:1.2;font-weight:650;letter-spacing:-.015em;overflow-wrap:anywhere}
.subtitle{margin:10px 0 0;color:var(--soft);max-width:80ch;overflow-wrap:anywhere}
h2{margin:0 0 16px;font-size:16px;font-weight:650;letter-spacing:-.005em}
h3{margin:0 0 4px;font-size:13px;font-weight:600;color:var(--soft)}
p.lead{margin:-8px 0 24px;padding:12px 16px;border-left:3px solid var(--accent);background:var(--surface);
 border-radius:0 10px 10px 0;max-width:90ch;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:16px;margin-bottom:20px}
.tile,.card{background:var(--surface);border:1px solid var(--rule);border-radius:14px}
.tile{padding:18px 22px}
.figure{font-size:26px;line-height:1.2;font-weight:600;letter-spacing:-.02em;white-space:nowrap}
.tile.lead .figure{color:var(--accent)}
.caption{margin-top:4px;color:var(--soft);font-size:13px}
.cards{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:20px}
.card{padding:24px 26px;min-width:0}
.card.wide{grid-column:1/-1}
.plots.pair{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:28px}
.panel{min-width:0}
.plot{width:100%;overflow:hidden}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;margin:0 0 14px;padding:0;font-size:13px;color:var(--ink)}
.legend li{display:flex;align-items:center;min-width:0;overflow-wrap:anywhere}
.swatch{flex:none;margin-right:8px;vertical-align:middle}
.note{margin:12px 0 0;color:var(--soft);font-size:13px;max-width:75ch;overflow-wrap:anywhere}
.warning{margin:0 0 16px;padding:10px 14px;border-radius:10px;background:var(--alert);color:var(--alertink);font-size:14px}
.scroll{overflow-x:auto;margin:0 -6px;padding:0 6px}
table{width:100%;border-collapse:collapse;font-size:14px}
th,td{padding:9px 0 9px 18px;border-bottom:1px solid var(--rule);text-align:right;vertical-align:baseline;font-weight:400}
th:first-child,td:first-child{padding-left:0;text-align:left}
thead th{color:var(--soft);font-size:12.5px;vertical-align:bottom;white-space:nowrap}
tbody tr:last-child>*{border-bottom:0}
td{white-space:nowrap}
tbody th{overflow-wrap:anywhere}
th small{display:block;color:var(--soft);font-size:12.5px}
td small{color:var(--soft);font-size:12.5px}
.runs tbody th{min-width:190px;font-weight:600}
.runs th small{font-weight:400;padding-left:30px}
.runs td small{display:block;font-weight:400}
.runs thead th{white-space:normal}
.best{font-weight:650}
.total>*{font-weight:650}
.pairs td{white-space:normal;overflow-wrap:anywhere}
.pairs tbody th{color:var(--ink)}
.columns,.columns tbody{display:block}
.columns tbody{columns:2 320px;column-gap:48px;column-rule:1px solid var(--rule)}
.columns tr{display:flex;justify-content:space-between;align-items:baseline;break-inside:avoid}
.columns tr>*{border:0;padding-top:7px;padding-bottom:7px}
.sections{columns:3 250px;column-gap:44px}
.sections>div{break-inside:avoid;padding-bottom:20px}
.sections table{font-size:13px}
.sections th,.sections td{padding-top:6px;padding-bottom:6px}
.settings td{white-space:normal;min-width:90px}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:12.5px}
pre{margin:0;padding:14px 16px;border-radius:10px;background:var(--page);line-height:1.5;
 white-space:pre-wrap;overflow-wrap:anywhere}
pre+pre{margin-top:10px}
.cite{user-select:all}
details{margin-top:18px}
summary{cursor:pointer;color:var(--soft);font-size:13px;margin-bottom:10px}
footer{margin-top:32px;color:var(--soft);font-size:12.5px}
@media (max-width:860px){.cards,.plots.pair{grid-template-columns:minmax(0,1fr)}}
@media (max-width:560px){
 main{padding:28px 14px}
 h1{font-size:25px}
 .card{padding:18px 16px}
 .tiles{grid-template-columns:1fr 1fr;gap:10px}
 .tile{padding:13px 16px}
 .tile.lead{grid-column:1/-1}
 .figure{font-size:22px}
 .tile.lead .figure{font-size:30px}
}
@media print{
 :root{@LIGHT@}
 @page{margin:14mm}
 body{background:#fff;font-size:12px}
 main{padding:0;max-width:none}
 .cards{display:block}
 .card{margin-bottom:14px;border-radius:8px}
 .card,.tile,.panel,tr{break-inside:avoid}
 #settings{break-inside:auto}
 h2{break-after:avoid}
 .scroll{overflow:visible}
 .modebar{display:none!important}
 table{font-size:11px}
 th,td{padding:6px 0 6px 7px}
 thead th,th small,td small{font-size:10px}
 .card{padding:16px 18px}
 .plots.pair{grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:16px}
 .runs{font-size:10px}
 .runs thead th{overflow-wrap:normal}
 .runs tbody th{min-width:0}
 .runs th small{padding-left:0}
}
/* the width of a sheet, for the script to draw at before the sheet exists */
.printing main{max-width:680px;padding:0}
.printing .cards{display:block}
.printing .card{padding:16px 18px}
.printing .plots.pair{grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:16px}
"""

_SCRIPT = """
(function () {
  "use strict";
  var palettes = @PALETTES@;
  var dark = matchMedia("(prefers-color-scheme: dark)");
  var printing = false;
  var font = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif';
  var config = {
    displaylogo: false, showTips: false, displayModeBar: "hover", modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
    showSendToCloud: false, plotlyServerURL: ""  // recent Plotly offers to upload a figure, unless told not to
  };

  // "@c0" below a key that speaks of colour becomes a colour; every other text is left as it is
  function coloured(value, colours, under) {
    if (Array.isArray(value)) return value.map(function (v) { return coloured(v, colours, under); });
    if (value && typeof value === "object") {
      var out = {};
      Object.keys(value).forEach(function (k) { out[k] = coloured(value[k], colours, under || k.indexOf("color") >= 0); });
      return out;
    }
    return under && typeof value === "string" && value[0] === "@" ? colours[value.slice(1)] : value;
  }

  function axis(own, c, width) {
    var base = {
      gridcolor: c.grid, zeroline: false, linecolor: c.rule, tickcolor: c.rule, tickfont: { color: c.soft, size: 12 },
      automargin: true, nticks: width < 420 ? 5 : 7, fixedrange: false
    };
    var out = Object.assign(base, own || {});
    if (out.title) out.title = Object.assign({ font: { color: c.soft, size: 12 }, standoff: 10 }, out.title);
    return out;
  }

  function draw() {
    var c = palettes[dark.matches && !printing ? "dark" : "light"];
    document.querySelectorAll(".plot").forEach(function (place) {
      var figure = coloured(JSON.parse(place.nextElementSibling.textContent), c, false);
      var layout = Object.assign({
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: font, size: 13, color: c.ink },
        margin: { l: 56, r: 14, t: 30, b: 48 }, showlegend: false, hovermode: "closest",
        hoverlabel: {
          bgcolor: c.surface, bordercolor: c.rule, font: { family: font, size: 12.5, color: c.ink }, align: "left"
        },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: c.soft, activecolor: c.accent }
      }, figure.layout);
      layout.xaxis = axis(layout.xaxis, c, place.clientWidth);
      layout.yaxis = axis(layout.yaxis, c, 999);
      layout.height = place.clientHeight;
      layout.width = place.clientWidth;
      Plotly.react(place, figure.data, layout, config);
    });
  }

  var waiting = 0;
  function later() { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); }
  draw();
  dark.addEventListener("change", later);
  addEventListener("resize", later);
  addEventListener("beforeprint", function () {
    printing = true;
    document.documentElement.classList.add("printing");
    draw();
  });
  addEventListener("afterprint", function () {
    printing = false;
    document.documentElement.classList.remove("printing");
    draw();
  });
})();
"""
