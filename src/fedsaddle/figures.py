"""Figures: the course of runs, client by client, who took part, who owns what.

A figure is plain dictionaries in Plotly's terms whose colours are names such as "@c0", declared in assets/report.css. On a
page, report.js puts in those of the reader's light or dark scheme; in a notebook, `_notebook` puts in the light ones.
Plotly reads tags in labels, so what users supply is escaped.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsaddle.errors import optional_import
from fedsaddle.measures import MAIN, RESIDUALS, base, label, unit

if TYPE_CHECKING:
    import plotly.graph_objects

Record = dict[str, Any]
Array = npt.NDArray[Any]
Legend = list[tuple[str, str, str]]  # name, colour, and kind of line or marker

_HUES = 8  # "@c0" to "@c7"
_SHARES = ("auc", "accuracy", "partial_auc", "precision", "recall")  # measures that are at most 1
_DASHES = ("solid", "dash", "dot", "dashdot")  # the ninth run has the first colour again, dashed
_SYMBOLS = ("circle", "diamond", "square", "triangle-up")
_EMPTY_TO_FULL = [[0, "@empty"], [1, "@c0"]]
_LOW_TO_HIGH = [[0, "@c1"], [0.5, "@empty"], [1, "@c0"]]
_NAMED_CLIENTS = 40  # beyond this, clients are told apart by hovering
_CALENDAR = (150, 400)  # clients and rounds drawn; more are averaged in bins
_WEIGHED = 25  # features of a linear model drawn
_MAP_CLIENTS, _PLOT_CLIENTS = 60, 2000  # Federation.plot: beyond these, a map, and a selection


# ---------------------------------------------------------------------------------------------- what is drawn


@dataclass(frozen=True)
class Run:
    """The records of a run, and what its result.json and config.toml hold where they exist."""

    records: Sequence[Record]
    result: Record = field(default_factory=dict)
    config_text: str = ""

    @cached_property
    def final(self) -> Record:
        """The last known value of everything."""
        return {k: v for record in self.records for k, v in record.items()}

    @cached_property
    def client_names(self) -> list[str]:
        return list(self.result.get("client_names", []))

    @cached_property
    def settings(self) -> Record:
        """The config by keys such as "train.rounds"."""
        config = self.result.get("config", {})
        return {f"{section}.{k}": v for section, part in config.items() for k, v in part.items()}

    def per_client(self, main: str) -> list[float | None]:
        return list(self.result.get("per_client", {}).get(base(main), []))


@dataclass(frozen=True)
class Group:
    """What has one name and one colour: a run, or repetitions of it."""

    name: str
    index: int
    runs: list[Run]

    @property
    def colour(self) -> str:
        return f"@c{self.index % _HUES}"

    @property
    def dash(self) -> str:
        return _DASHES[self.index // _HUES % len(_DASHES)]

    @property
    def symbol(self) -> str:
        return _SYMBOLS[self.index % len(_SYMBOLS)]

    def values(self, key: str) -> list[float]:
        return [v for run in self.runs if (v := finite(run.final.get(key))) is not None]


class Panel(NamedTuple):
    """One pair of axes and what is drawn in it."""

    title: str
    data: list[Record]
    layout: Record
    height: int = 320


class Figure(NamedTuple):
    """Panels with a common legend and note; with a `choice`, one is shown at a time."""

    title: str
    panels: list[Panel]
    legend: Legend
    note: str
    wide: bool = False  # as wide as the page
    choice: str = ""  # what the reader chooses


def main_metric(groups: list[Group]) -> str:
    """The first of the MAIN metrics that most runs have."""
    return max(MAIN, key=lambda k: sum(k in run.final for g in groups for run in g.runs))


def finite(value: Any) -> float | None:
    """A number, or None where it is undefined."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


# ---------------------------------------------------------------------------------------------- in a notebook


def curves(runs: Mapping[str, Sequence[Record]]) -> plotly.graph_objects.Figure:
    """The course of runs as a Plotly figure: the main metric and the worst 20 % of clients against rounds.

    Args:
        runs: the records of each run by its name; a run has one colour.
    """
    groups = [Group(name, i, [Run(records)]) for i, (name, records) in enumerate(runs.items())]
    main = main_metric(groups)
    data = [t for g in groups for t in _lines(g, main)]
    for g in groups:
        data += _lines(g, f"{base(main)}_worst20", name=f"{g.name}, worst 20 %", dash="dot")
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    layout = _axes("Round", main, data) | {
        "hovermode": "x unified",
        "legend": legend,
        "showlegend": len(data) > 1,
    }
    layout["yaxis"]["title"] = {"text": label(main)}
    return _notebook("curves", data, layout)


def ownership(counts: Array, names: Sequence[str], classes: Sequence[str] | None) -> Any:
    """Bars or a map of `counts` `[N, C]`, the samples of each class at each client, as a Plotly figure.

    Without `classes` the one column of `counts` holds the clients' sizes.
    """
    n, labelled = len(names), classes is not None
    shown = np.unique(np.linspace(0, n - 1, min(n, _PLOT_CLIENTS)).astype(np.int64))
    title = f"{plural(n, 'client')}, {int(counts.sum()):,} samples"
    title += f" (every {n / len(shown):.0f}th client drawn)" if len(shown) < n else ""
    as_map = labelled and (n > _MAP_CLIENTS or counts.shape[1] > _HUES)
    some = [names[i] for i in shown]
    data, layout, _ = _owned(counts[shown], some, classes or ["samples"], along=False, as_map=as_map)
    layout |= {"title": {"text": title}, "showlegend": labelled}
    layout["legend"] = {"title": {"text": "class"}, "traceorder": "normal"}
    return _notebook("plot", data, layout)


def _notebook(what: str, data: list[Record], layout: Record) -> Any:
    go = optional_import("plotly.graph_objects", what, "report")
    layout |= {"template": "plotly_white", "modebar": {"remove": ["sendChartToCloud"]}}  # no uploads
    css = (files("fedsaddle") / "assets" / "report.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--(\w+):(#\w+)", css.partition("@media")[0]))
    return go.Figure(_coloured({"data": data, "layout": layout}, light))


def _coloured(value: Any, colours: Mapping[str, str], under: bool = False) -> Any:
    """With colours in place of their names below keys that speak of colour, as report.js does."""
    if isinstance(value, dict):
        return {k: _coloured(v, colours, under or "color" in k) for k, v in value.items()}
    if isinstance(value, list):
        return [_coloured(v, colours, under) for v in value]
    return colours[value[1:]] if under and isinstance(value, str) and value.startswith("@") else value


# ---------------------------------------------------------------------------------------------- on a page


def course(groups: list[Group], main: str) -> Figure:
    """Quality against rounds and against bytes. One run: main metric and worst 20 % together; several: apart."""
    known = [k for k in (main, f"{base(main)}_worst20") if any(_lines(g, k) for g in groups)]
    if not known:
        return Figure("Course of training", [], [], "No evaluation was recorded.")
    one, cut, panels = len(groups) == 1, False, []
    dashes = {k: "solid" if k == main else "dot" for k in known}
    for keys in [known] if one else [[k] for k in known]:
        for against in ("rounds", "bytes sent"):
            styles = [(k, label(k), dashes[k]) if one else (k, "", "") for k in keys]
            data = [t for g in groups for k, *style in styles for t in _lines(g, k, against, *style)]
            layout = _axes("Round" if against == "rounds" else "Bytes, down and up", main, data)
            layout["hovermode"] = "x unified" if against == "rounds" or one else "closest"
            if against != "rounds":
                layout["xaxis"] |= {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"}
            if main not in RESIDUALS:
                low, high = _focus(data, rising=main != "loss")
                layout["yaxis"] |= {"range": [low, high]} | within_one(main, [low, min(high, 1.0)])
                low, high = layout["yaxis"]["range"]
                cut |= any(not low <= y <= high for t in data if "fill" not in t for y in t["y"])
            title = f"Against {against}" if one else f"{label(keys[0])}, against {against}"
            panels.append(Panel(title, data, layout))
    banded = main not in RESIDUALS and any(len(g.runs) > 1 for g in groups)
    notes = ["Lines are means over repetitions; bands are one standard deviation."] if banded else []
    notes += ["The frame leaves out the first evaluations, of a model hardly trained."] if cut else []
    legend = [(label(k), groups[0].colour, dashes[k]) for k in known] if one else _names_of(groups)
    return Figure("Course of training", panels, legend, " ".join(notes))


def by_client(groups: list[Group], main: str) -> Figure | None:
    """A dot for each client, and the weights of a robust method over rounds; repetitions are averaged."""
    from fedsaddle.metrics import fifth  # which imports Federation, which draws

    first = next((run for g in groups for run in g.runs if run.per_client(main)), Run([]))
    names, counts = first.client_names, first.result.get("class_counts")
    alike = [g for g in groups if all(r.per_client(main) and r.client_names == names for r in g.runs)]
    tables = [np.array([r.per_client(main) for r in g.runs], np.float64) for g in alike]  # None becomes NaN
    means = [np.ma.masked_invalid(t).mean(0).filled(np.nan) for t in tables]
    if not alike or np.isnan(means[0]).all():
        return None
    order = [int(i) for i in np.argsort(means[0], kind="stable") if not np.isnan(means[0][i])]
    undefined = [name for name, mean in zip(names, means[0], strict=True) if np.isnan(mean)]
    across = len(order) > _NAMED_CLIENTS  # clients from left to right
    value, place = ("y", "x") if across else ("x", "y")
    step = 0.0 if across else min(0.16, 0.7 / len(alike))
    held = [f"<br>{sum(c):,} training samples" for c in counts] if counts else [""] * len(names)
    extra = "%{fullData.name}" if len(groups) > 1 else ""
    k = fifth(len(order))
    tails = ["@c1"] * k + ["@c0"] * (len(order) - 2 * k) + ["@c2"] * k  # worst and best fifth
    one = len(groups) == 1 and len(order) >= 2 * k
    data: list[Record] = [
        {
            "type": "scatter", "mode": "markers", "name": escape(g.name), value: [finite(means[j][i]) for i in order],
            "cliponaxis": False,
            place: [k + (j - (len(alike) - 1) / 2) * step for k in range(len(order))],
            "text": [f"<b>{escape(names[i])}</b>{held[i]}" for i in order],
            "hovertemplate": f"%{{text}}<br>{label(main)} %{{{value}:.4f}}<extra>{extra}</extra>",
            "marker": {
                "color": tails if one else g.colour, "size": 5 if across else 10, "opacity": 0.9, "symbol": g.symbol,
                "line": {"color": "@surface", "width": 1},
            },
        }
        for j, g in enumerate(alike)
    ]  # fmt: skip
    clients = _clients([names[i] for i in order])
    down: Record = {"showgrid": True, "range": [-0.7, len(order) - 0.3]}
    clients |= {"title": {"text": "Clients, from worst to best"}} if across else down
    own = {"title": {"text": unit(main)}} | within_one(main, np.concatenate(means).tolist())
    layout: Record = {f"{value}axis": own, f"{place}axis": clients}
    on_test = first.result.get("clients_evaluated_on") != "train"
    whose = "test data" if on_test else "training data (there is no test data by client)"
    note = f"Each client's own {whose}; worst {'on the left' if across else 'at the bottom'}."
    note += f" Sorted by the values of {alike[0].name}." if len(alike) > 1 else ""
    whole = finite(first.final.get(main))
    if len(groups) == 1 and whole is not None:
        layout["shapes"] = [{
            "type": "line", f"{value}0": whole, f"{value}1": whole, f"{place}ref": "paper", f"{place}0": 0, f"{place}1": 1,
            "line": {"color": "@soft", "width": 1, "dash": "dot"}, "layer": "below",
        }]  # fmt: skip
        note += f" The dotted line is the {label(main)[0].lower()}{label(main)[1:]} of all samples pooled."
    if undefined:
        listed = ", ".join(undefined[:12]) + (" …" if len(undefined) > 12 else "")
        note += f" Not defined for {plural(len(undefined), 'client')} with one class only: {listed}."
    legend = [(g.name, g.colour, g.symbol) for g in alike] if len(alike) > 1 else []
    panels = [Panel("", data, layout, _height(len(order), most=340))]
    if one:
        known = {tail: groups[0].values(f"{base(main)}_{tail}") for tail in ("worst20", "best20", "gini")}
        mean = {tail: float(np.mean(values)) for tail, values in known.items() if values}
        shown = {tail: f": {mean[tail]:.4f}" if tail in mean else "" for tail in known}
        who = f"{k} client{'s' * (k > 1)}"
        legend = [
            (f"Worst 20 % ({who}){shown['worst20']}", "@c1", groups[0].symbol),
            (f"Best 20 %{shown['best20']}", "@c2", groups[0].symbol),
        ]
        note += f" Gini coefficient{shown['gini']}; 0 where all clients are equal." if "gini" in mean else ""
        rows = order + [i for i in range(len(names)) if i not in set(order)]
        weighed = _weights(groups[0].runs, names, rows) if len(groups[0].runs) == 1 else None
        if weighed is not None:
            panels = [panels[0]._replace(title=unit(main)), weighed]
            note += " Weights: how much a client counts, times the number of clients; 1 is its equal share."
    return Figure(f"Fairness across clients: {unit(main)}", panels, legend, note)


def _weights(runs: Sequence[Run], names: Sequence[str], order: Sequence[int]) -> Panel | None:
    """The weights that a robust method gave the clients, over the evaluated rounds; clients in a given order."""
    records = [r for run in runs for r in run.records if "weights" in r]
    if not records or len(records[0]["weights"]) != len(names):
        return None
    table = np.array([r["weights"] for r in records], np.float64).T[list(order)] * len(
        names
    )  # None becomes NaN
    top = float(np.nanmax(table)) if np.isfinite(table).any() else 1.0
    data: list[Record] = [{
        "type": "heatmap", "z": [[finite(v) for v in row] for row in table.round(4).tolist()],
        "x": [r["round"] for r in records], "y": list(range(len(order))), "colorscale": _EMPTY_TO_FULL,
        "zmin": 0, "zmax": max(top, 2.0), "colorbar": {"ticksuffix": " ×"},
        "hovertemplate": "<b>%{y}</b><br>round %{x}<br>%{z:.3~g} times its equal share<extra></extra>",
    }]  # fmt: skip
    clients = _clients([names[i] for i in order]) | {"range": [-0.7, len(order) - 0.3]}
    clients |= {"title": {"text": "Clients, worst at the bottom"}} if len(order) > _NAMED_CLIENTS else {}
    layout: Record = {"xaxis": {"title": {"text": "Round"}, "showgrid": False}, "yaxis": clients}
    return Panel("Weights over rounds", data, layout, _height(len(order), most=340))


def convergence(groups: list[Group], main: str) -> Figure | None:
    """How far from a solution, where the problem knows it, the dual variables, and how unequal clients' weights are."""
    panels: list[Panel] = []
    notes: list[str] = []
    one = len(groups) == 1
    for key in RESIDUALS:
        known = [g for g in groups if key != main and _lines(g, key)]
        if len(known) >= min(len(groups), 2) and len(panels) < 2:  # one alone is compared with nothing
            data = [t for g in known for t in _lines(g, key)]
            panels.append(Panel(label(key), data, _axes("Round", key, data) | {"hovermode": "x unified"}))
            notes.append(_SAYS.get(key, "Vanishes at a solution."))
            missing = [g.name for g in groups if g not in known]
            notes += [f"Not known for {', '.join(missing)}."] if missing else []
    dual = _dual(groups)
    panels += [dual] if dual is not None else []
    weighed = [g for g in groups if all("weights" in run.final for run in g.runs)]
    if weighed and not one:  # of one run all weights are drawn, client by client
        data = [t for g in weighed for t in _lines(g, "weights", value=_largest_weight)]
        axes = _axes("Round", "", data) | {"hovermode": "x unified"}
        panels.append(Panel("Largest weight of a client, times its equal share", data, axes))
    if not panels:
        return None
    for p in panels:
        p.layout["yaxis"].pop("title", None)  # each panel has its title above
    title = panels[0].title if len(panels) == 1 else "Convergence"
    if len(panels) == 1:
        panels = [panels[0]._replace(title="")]
    drawn = {t.get("name") for p in panels for t in p.data}
    legend = [] if one else _names_of([g for g in groups if escape(g.name) in drawn])
    return Figure(title, panels, legend, " ".join(dict.fromkeys(notes)))


_SAYS = {
    "fixed_point": "How far the clients' points are from the server's, as a root mean square; at a solution they agree.",
    "move": "A round's step is that of the server's point.",
    "grad_phi": "φ is the objective with the one dual of all clients at its maximum; its gradient vanishes at a solution.",
    "dual_distance": "The dual's best is its maximiser at the present primal variables.",
    "distance": "Euclidean distance of (x, y) from the known solution.",
}


def _largest_weight(record: Record) -> float | None:
    known = [w for w in record.get("weights", []) if w is not None]
    return max(known) * len(record["weights"]) if known else None


def _norm(record: Record) -> float | None:
    dual = record.get("dual") or [None]
    return None if None in dual else dual[0] if len(dual) == 1 else math.hypot(*dual)


def _dual(groups: list[Group]) -> Panel | None:
    """One dual variable of each run, or all of a single run, or the norms of several runs' duals."""
    runs = [run for g in groups for run in g.runs if "dual" in run.final]
    if not runs:
        return None
    n, alone = max(len(run.final["dual"]) for run in runs), len(groups) == 1 and len(groups[0].runs) == 1
    if n == 1 or not alone:
        data = [t for g in groups for t in _lines(g, "dual", value=_norm)]
        name = "Dual variable" if n == 1 else "Norm of the dual variables"
        return Panel(name, data, _axes("Round", "", data) | {"hovermode": "x unified"})
    records = [r for r in runs[0].records if "dual" in r]
    rounds, table = (
        [r["round"] for r in records],
        [list(v) for v in zip(*(r["dual"] for r in records), strict=True)],
    )
    layout = _axes("Round", "", [])
    if n <= _HUES:
        data = [
            {
                "type": "scatter", "mode": "lines", "name": f"y{i + 1}", "x": rounds, "y": row,
                "line": {"color": f"@c{i}", "width": 2}, "hovertemplate": "%{y:.3~g}",
            }
            for i, row in enumerate(table)
        ]  # fmt: skip
        return Panel(f"{n} dual variables", data, layout | {"hovermode": "x unified"})
    most = max((abs(v) for row in table for v in row if v is not None), default=1.0) or 1.0
    data = [{
        "type": "heatmap", "x": rounds, "y": list(range(1, n + 1)), "z": table, "zmin": -most, "zmax": most,
        "colorscale": _LOW_TO_HIGH, "hovertemplate": "<b>y%{y}</b><br>round %{x}<br>%{z:.3~g}<extra></extra>",
    }]  # fmt: skip
    layout["xaxis"]["showgrid"], layout["yaxis"] = False, {"showgrid": False}
    return Panel(f"{n} dual variables", data, layout)


def calendar(run: Run) -> Figure | None:
    """Who took part when; only where some rounds had fewer than all clients."""
    rounds = [r for r in run.records if "participants" in r]
    if not rounds or any("clients" not in r for r in rounds):
        return None  # too many to be listed
    n = run.settings.get("federation.clients") or 1 + max(i for r in rounds for i in [-1, *r["clients"]])
    grid = np.zeros((n, len(rounds)))
    for j, r in enumerate(rounds):
        grid[r["clients"], j] = 1
    if grid.all():
        return None  # the header says that everyone takes part
    names = run.client_names + [f"client {i}" for i in range(len(run.client_names), n)]
    groups = _groups_of(run, n)
    order = sorted(range(n), key=lambda i: groups[i][0]) if groups else list(range(n))
    grid, names = grid[order], [names[i] if not groups else f"{groups[i][1]}: {names[i]}" for i in order]
    rows, columns = (np.array_split(range(k), min(k, m)) for k, m in zip(grid.shape, _CALENDAR, strict=True))
    binned = len(rows) < n or len(columns) < len(rounds)
    share = np.array([[grid[np.ix_(a, b)].mean() for b in columns] for a in rows])
    who = [names[a[0]] + (f" to {names[a[-1]]}" if len(a) > 1 else "") for a in rows]
    data: list[Record] = [{
        "type": "heatmap", "z": share.round(3).tolist(), "x": [rounds[b[0]]["round"] for b in columns],
        "y": list(range(len(rows))), "colorscale": _EMPTY_TO_FULL, "zmin": 0, "zmax": 1, "showscale": False,
        "hovertemplate": f"<b>%{{y}}</b><br>round %{{x}}{'<br>%{z:.0%} of the time' * binned}<extra></extra>",
        "xgap": 1 if len(columns) <= 80 else 0, "ygap": 1 if len(rows) <= _NAMED_CLIENTS else 0,
    }]  # fmt: skip
    x = {"title": {"text": "Round"}, "showgrid": False}
    layout = {"xaxis": x, "yaxis": _clients(who) | {"autorange": "reversed"}}
    times, failures = grid.sum(1), run.final.get("failures", 0)
    note = (
        f"On average {grid.sum(0).mean():.1f} of {n} clients took part in a round; a client took part in "
        f"{int(times.min())} to {int(times.max())} of {len(rounds)} rounds."
    )
    if groups:
        sizes = Counter(name for _, name in sorted(groups))
        note += f" {len(sizes)} groups in turn: {', '.join(f'{k} ({n})' for k, n in sizes.items())}."
    note += f" {failures:,} requests stayed without an answer." if failures else ""
    return Figure(
        "Who took part", [Panel("", data, layout, _height(len(rows), most=516))], [], note, wide=True
    )


def _groups_of(run: Run, n: int) -> list[tuple[int, str]] | None:
    """Turn and name of each client's group, where the user has named groups or listed their clients."""
    given = run.settings.get("participation.groups")
    if not isinstance(given, list | tuple) or not given or run.settings.get("participation.shuffle"):
        return None
    if isinstance(given[0], list | tuple):
        at = {i: (g, f"group {g + 1}") for g, ids in enumerate(given) for i in ids}
        return [at[i] for i in range(n)] if len(at) == n else None
    turn = {label: g for g, label in enumerate(sorted(set(given)))}
    return [(turn[label], str(label)) for label in given] if len(given) == n else None


def partition(groups: list[Group]) -> Figure | None:
    """Samples of each class at each client; of several runs only if all have the same data."""
    first, *others = [run for g in groups for run in g.runs]
    counts, names = first.result.get("class_counts"), first.client_names
    if not counts or any(r.result.get("class_counts") != counts or r.client_names != names for r in others):
        return None
    table = np.array(counts)  # [N, C]
    n, width = table.shape
    classes = first.result.get("classes") or [f"class {k}" for k in range(width)]
    as_map = width > _HUES or n * width > 2000
    data, layout, legend = _owned(table, names, classes, along=n <= _NAMED_CLIENTS, as_map=as_map)
    sizes, totals = table.sum(1), table.sum(0)
    note = "The share of each class in a client's samples. " * as_map + (
        f"{int(totals.sum()):,} training samples, {int(sizes.min()):,} to {int(sizes.max()):,} a client. "
        f"The rarest class, {classes[int(totals.argmin())]}, is {totals.min() / totals.sum():.1%} of all; "
        f"{plural(int(((table > 0).sum(1) == 1).sum()), 'client')} with one class only."
    )
    tests = first.result.get("test_class_counts")  # an older fedsaddle wrote none
    if tests and all(r.result.get("test_class_counts") == tests for r in others):
        counted = int(totals.argmin())
        if "auc" in first.result.get("per_client", {}):  # of more classes without an AUC none is positive
            counted = first.settings.get("problem.positive", counted)
        note += _test_rows(np.array(tests), counted, classes[counted], names)
    return Figure("Data of each client", [Panel("", data, layout, _height(n, most=320))], legend, note)


def _test_rows(table: Array, counted: int, name: str, names: Sequence[str]) -> str:
    """Test samples `[N or 1, C]` in words, in all and at the client that has fewest, and those of the class counted."""
    text = (
        f" {plural(int(table.sum()), 'test sample')} in all, {int(table[:, counted].sum()):,} of class {name}"
    )
    if len(table) != len(names):
        return f"{text}; they are of no client."
    i = int(table.sum(1).argmin())
    return (
        f"{text}; fewest at {names[i]}: {int(table[i].sum()):,}, {int(table[i, counted]):,} of class {name}."
    )


def linear_weights(
    table: Array, features: Sequence[str], classes: Sequence[str], scaled: bool
) -> Figure | None:
    """The weights `[outputs, features]` of a linear model as bars, largest first; the reader chooses among outputs."""
    if not np.isfinite(table).all():
        return None
    outputs = classes if len(classes) == len(table) else [f"output {k + 1}" for k in range(len(table))]
    panels = []
    for name, row in zip(outputs, table, strict=True):
        order = [int(i) for i in np.argsort(-np.abs(row), kind="stable")[:_WEIGHED]]
        data: list[Record] = [{
            "type": "bar", "orientation": "h", "x": [float(f"{row[i]:.6g}") for i in order], "y": list(range(len(order))),
            "marker": {"color": "@c0", "line": {"width": 0}}, "textposition": "none",
            "text": [f"<b>{escape(features[i])}</b>" for i in order],
            "hovertemplate": "%{text}<br>%{x:.6~g}<extra></extra>",
        }]  # fmt: skip
        named = _clients([features[i] for i in order]) | {"autorange": "reversed"}
        zero = {"zeroline": True, "zerolinecolor": "@rule"}
        layout: Record = {"xaxis": {"title": {"text": "Weight"}} | zero, "yaxis": named, "bargap": 0.3}
        panels.append(Panel(name if len(table) > 1 else "", data, layout, _height(len(order), most=0)))
    note = "A bar to the right raises the score, one to the left lowers it. "
    note += (
        "Weights are of the features as scaled for training, and so comparable."
        if scaled
        else "The features were not scaled for training: compare weights only of features in the same unit."
    )
    columns = Counter(name.split("=")[0] for name in features if "=" in name)  # sex=f and sex=m are of sex
    if text := [c for c, n in columns.items() if n > 1]:
        note += (
            f" The bars of one text column, such as those of {text[0]}, count relative to each other: "
            "a row has one of its values."
        )
    if len(features) > _WEIGHED:
        note += f" The {_WEIGHED} largest of {len(features):,}."
    return Figure("What the model weighs", panels, [], note, wide=True, choice="Score of")


# ---------------------------------------------------------------------------------------------- parts of figures


def _axes(x: str, y: str, data: Sequence[Record]) -> Record:
    log = log_axis([v for t in data for v in t["y"]]) if y in RESIDUALS else {}
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": unit(y)}} | log}


def log_axis(values: Sequence[float | None]) -> Record:
    """A logarithmic axis with at most nine labels: powers of ten; over few decades 1, 2, 5; within one, even steps."""
    seen = [v for v in values if v is not None and v > 0]
    low, high = (min(seen), max(seen)) if seen else (0.1, 1.0)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if high / low > 300:
        every = -(-(last - first) // 7)
        at = {10.0**k: f"10<sup>{k}</sup>" for k in range(first, last + 1, every)}
    else:
        near = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
        step = next(s for s in near if 7 * s >= 1.2 * high - 0.8 * low) if high < 6 * low else 0.0
        even = [step * k for k in range(1, int(1.2 * high / step) + 1)] if step else near
        at = {v: f"{v:.4g}" for v in even if 0.8 * low <= v <= 1.2 * high}
    axis = {"type": "log", "tickvals": list(at), "ticktext": list(at.values())}
    if high < 6 * low:  # else a single value would stand in the middle of two decades
        axis["range"] = [math.log10(0.8 * low), math.log10(1.2 * high)]
    return axis


def _lines(
    g: Group,
    key: str,
    against: str = "rounds",
    name: str = "",
    dash: str = "",
    *,
    value: Callable[[Record], float | None] | None = None,
) -> list[Record]:
    """One line against rounds or bytes; of repetitions the mean, with a band of one standard deviation.

    Args:
        value: of a record; by default what it has under `key`.
    """
    points: dict[int, list[tuple[float, float]]] = {}
    for run in g.runs:
        for r in run.records:
            found = finite(value(r) if value is not None else r.get(key))
            if found is not None and (found > 0 or key not in RESIDUALS):
                at = r["round"] if against == "rounds" else r.get("bytes_down", 0) + r.get("bytes_up", 0)
                points.setdefault(r["round"], []).append((at, found))
    table = np.array([p for _, p in sorted(points.items()) if len(p) == len(g.runs)])  # [rounds, runs, 2]
    if not len(table):
        return []
    xs, mean = table.mean(1).T
    spread = table[:, :, 1].std(1, ddof=min(1, len(g.runs) - 1))
    number = ".3~g" if key in RESIDUALS else ".4f"
    line = {
        "type": "scatter", "mode": "lines" if len(xs) > 1 else "markers", "name": escape(name or g.name),
        "x": xs.tolist(), "y": mean.tolist(), "customdata": spread.tolist(), "marker": {"color": g.colour},
        "line": {"color": g.colour, "width": 2.2, "dash": dash or g.dash},
        "hovertemplate": f"%{{y:{number}}}" + (f" ± %{{customdata:{number}}}" if len(g.runs) > 1 else ""),
    }  # fmt: skip
    if len(g.runs) == 1 or key in RESIDUALS:
        return [line]
    band = {
        "type": "scatter", "mode": "lines", "x": [*xs, *xs[::-1]], "y": [*(mean + spread), *(mean - spread)[::-1]],
        "fill": "toself", "fillcolor": g.colour, "opacity": 0.16, "line": {"width": 0}, "hoverinfo": "skip",
    }  # fmt: skip
    return [band, line]


def _focus(data: list[Record], rising: bool = True) -> list[float]:
    """A y range in which the late course is legible: the first evaluations, of a model hardly trained, may lie below.

    Where a metric is to fall, above. On the other side whole lines are in it.
    """
    late = [y for t in data for y in _late(t["y"], "fill" in t)]
    whole = late + [y for t in data if "fill" not in t for y in t["y"]]
    low, high = (min(late), max(whole)) if rising else (min(whole), max(late))
    margin = max(0.06 * (high - low), 0.0005)
    return [low - margin, high + margin]


def within_one(key: str, values: Iterable[float | None]) -> Record:
    """The range of an axis of a share, such as an AUC, where the room beyond the largest value would go beyond 1."""
    seen = [v for v in values if v is not None and math.isfinite(v)]
    name = key.removeprefix("valid_").removeprefix("train_")
    share = name.startswith(_SHARES) and not name.endswith(("_std", "_gini", "_bound"))
    if not share or not seen or max(seen) > 1:
        return {}
    low, high = min(seen), max(seen)
    margin = 0.06 * (high - low) or 0.02
    return {"range": [low - margin, 1 + margin / 10]} if high + margin > 1 else {}


def _late(y: list[float], band: bool) -> list[float]:
    """A line without its beginning; of a band, which goes along its upper edge and back along the lower, the second half.

    A line of few evaluations is whole.
    """
    if not band:
        return y[max(1, len(y) // 10) :] if len(y) > 4 else y
    n = len(y) // 2
    return y[n // 2 : n] + y[n : n + (n + 1) // 2]


def _owned(
    table: Array, names: Sequence[str], classes: Sequence[str], along: bool, as_map: bool
) -> tuple[list[Record], Record, Legend]:
    """Samples as stacked bars, or shares as a map; clients from top to bottom (`along`) or from left to right."""
    n, width = table.shape
    value, place = ("x", "y") if along else ("y", "x")
    share = (table / np.maximum(table.sum(1, keepdims=True), 1)).round(4)
    clients = _clients(names)
    clients |= {"autorange": "reversed"} if along else {"title": {"text": plural(n, "client")}}
    layout: Record = {f"{place}axis": clients}
    if as_map:
        z, counts = (share, table) if along else (share.T, table.T)
        ticks = {"tickvals": list(range(width)), "ticktext": [short(c, 12) for c in classes]}
        layout[f"{value}axis"] = {"title": {"text": "Class"}} | ticks
        return [{
            "type": "heatmap", place: list(range(n)), value: list(range(width)), "z": z.tolist(), "zmin": 0,
            "customdata": counts.tolist(), "colorscale": _EMPTY_TO_FULL,
            "colorbar": {"tickformat": ".0%"},
            "hovertemplate": f"<b>%{{{place}}}</b><br>class %{{{value}}}<br>%{{customdata:,}} samples (%{{z:.1%}})"
            "<extra></extra>",
        }], layout, []  # fmt: skip
    hues = [f"@c{k}" for k in range(width)]
    if width == 2:  # the usual class is grey, so that the rare one is seen
        hues = ["@c1", "@quiet"] if table[:, 0].sum() <= table[:, 1].sum() else ["@quiet", "@c1"]
    layout |= {f"{value}axis": {"title": {"text": "Training samples"}}, "barmode": "stack"}
    layout["bargap"] = 0.3 if along else 0.05
    data: list[Record] = [
        {
            "type": "bar", "name": escape(classes[k]), place: list(range(n)), value: table[:, k].tolist(),
            "orientation": "h" if along else "v", "marker": {"color": hues[k], "line": {"width": 0}},
            "text": [f"<b>{escape(name)}</b><br>{escape(classes[k])}" for name in names], "textposition": "none",
            "customdata": share[:, k].tolist(),
            "hovertemplate": f"%{{text}}<br>%{{{value}:,}} samples (%{{customdata:.1%}})<extra></extra>",
        }
        for k in range(width)
    ]  # fmt: skip
    return data, layout, [(c, hue, "block") for c, hue in zip(classes, hues, strict=True)]


def _clients(names: Sequence[str]) -> Record:
    """An axis of clients; where there is no room for their names, hovering shows them."""
    named = len(names) <= _NAMED_CLIENTS
    return {
        "tickvals": list(range(len(names))), "ticktext": [short(name) for name in names], "showticklabels": named,
        "ticks": "outside" if named else "", "showgrid": False, "zeroline": False,
    }  # fmt: skip


def short(text: str, most: int = 22) -> str:
    return escape(text if len(text) <= most else text[: most - 1] + "…")


def _height(rows: int, most: int) -> int:
    return 96 + 28 * rows if rows <= _NAMED_CLIENTS else most


def _names_of(groups: list[Group]) -> Legend:
    return [(g.name, g.colour, g.dash) for g in groups]
