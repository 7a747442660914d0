"""Figures of a finished sweep: the metric over all points, the best of them seed by seed, and a trade-off.

They are those of figures.py: plain dictionaries with named colours. Parallel coordinates are drawn as plain lines:
Plotly's own need WebGL, and code that a page without network access must not run.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from fedsaddle.figures import Figure, Legend, Panel, Record, log_axis, plural, short, within_one
from fedsaddle.journal import mean_and_std
from fedsaddle.measures import RESIDUALS, label
from fedsaddle.toml import in_line, quoted, to_value

if TYPE_CHECKING:
    from fedsaddle.sweep import Result, Row

_COLD_TO_WARM = [[0, "@empty"], [1, "@c0"]]  # from worst to best
_IN_A_MAP = 15  # values of a key
_FEW = 8  # values of a key that somebody has written down
_BEST, _LINES = 12, 300  # points drawn seed by seed, and as lines


def overview(result: Result) -> dict[str, Figure]:
    """The metric over all points: a line over one key, maps of pairs and parallel coordinates over several."""
    if len(result.plan.keys) == 1:
        return {"line": _line(result)}
    return {"maps": _maps(result), "parallel": _parallel(result)}


def seeds(result: Result) -> Figure:
    """The best points with the metric of each seed: whether the first is better than the next."""
    metric, keys = result.plan.metric, result.plan.keys
    ends = _colours(result)
    scaled = _scaling(result)
    found = [(row, scaled(s)) for row in result.ranked if (s := result.score(row)) is not None]
    rows = [row for row, s in found if ends["zmin"] <= s <= ends["zmax"]][:_BEST]
    names = [_name(row, keys) for row in rows]
    data: list[Record] = []
    drawn = [v for row in rows for v in row.metrics[metric]["values"]]
    for i, row in enumerate(rows):
        hue, values = "@c1" if i == 0 else "@c0", row.metrics[metric]["values"]
        about = f"<b>{_point(row)}</b><br>"
        data.append({
            "type": "scatter", "mode": "markers", "x": values, "y": [i] * len(values), "cliponaxis": False,
            "marker": {"color": hue, "size": 8, "opacity": 0.45},
            "text": [f"{about}seed {s}" for s in result.plan.seeds], "hovertemplate": "%{text}: %{x:.5~g}<extra></extra>",
        })  # fmt: skip
        data.append({
            "type": "scatter", "mode": "markers", "x": [result.score(row)], "y": [i], "cliponaxis": False,
            "marker": {"color": hue, "size": 16, "symbol": "line-ns", "line": {"color": hue, "width": 3}},
            "text": [f"{about}mean"], "hovertemplate": "%{text} %{x:.5~g}<extra></extra>",
        })  # fmt: skip
    places = {"tickvals": list(range(len(rows))), "ticktext": [short(n) for n in names]}
    layout: Record = {
        "xaxis": _titled(label(metric), _by_log(result))
        | (log_axis(drawn) if _by_log(result) else within_one(metric, drawn)),
        "yaxis": places | {"range": [len(rows) - 0.4, -0.6], "ticks": "outside"},
        "shapes": _band(result, "x"),
    }
    note = (
        "Dots are seeds, bars their means. "
        if len(result.plan.seeds) > 1
        else "One seed: the spread is not known. "
    )
    note += f"Points by {', '.join(_names(keys))}."
    note += f" The best {len(rows)} of {len(result.rows)}." if len(rows) < len(result.rows) else ""
    note += _BAND if result.interval else ""
    return Figure("The best points, seed by seed", [Panel("", data, layout, 96 + 26 * len(rows))], [], note)


def _line(result: Result) -> Figure:
    (key,), metric = result.plan.keys, result.plan.metric
    rows = [row for row in result.swept if result.score(row) is not None]
    numbers = all(_is_number(row.point[key]) for row in rows)
    if numbers:
        rows = sorted(rows, key=lambda row: float(row.point[key]))
    x: list[Any] = [row.point[key] if numbers else i for i, row in enumerate(rows)]
    axis = _titled(escape(key), numbers and _wide(x))
    if not numbers or len(x) <= 8:
        axis |= {"tickvals": x, "ticktext": [short(as_text(row.point[key]), 14) for row in rows]}
    data: Record = {
        "type": "scatter", "mode": "lines+markers" if numbers else "markers", "x": x,
        "y": [result.score(row) for row in rows], "line": {"color": "@c0", "width": 2.2},
        "error_y": {
            "array": [row.metrics[metric]["std"] for row in rows], "visible": len(result.plan.seeds) > 1,
            "color": "@c0", "thickness": 1.2,
        },
        "marker": {"color": ["@c1" if row is result.best else "@c0" for row in rows], "size": 10},
        "text": [_point(row) for row in rows], "hovertemplate": "<b>%{text}</b><br>%{y:.5~g}<extra></extra>",
    }  # fmt: skip
    ends = [m["mean"] + k * m["std"] for m in (row.metrics[metric] for row in rows) for k in (-1, 0, 1)]
    log = log_axis(ends) if _by_log(result) else {}
    bounds = log or within_one(metric, [min(end, 1.0) for end in ends])
    layout = {
        "xaxis": axis,
        "yaxis": _titled(label(metric), bool(log)) | bounds,
        "shapes": _band(result, "y"),
    }
    note = "Bars are one standard deviation over seeds. " * (len(result.plan.seeds) > 1)
    note += _missing(result) + (_BAND if result.interval else "")
    return Figure(
        f"{label(metric)} over {key}", [Panel("", [data], layout)], _LEGEND, note.strip(), wide=True
    )


_BAND = " The band is the chosen point's 95 % interval over the choice of validation samples."


def _band(result: Result, axis: str) -> list[Record]:
    """Between what the chosen point's metric may lie, across a figure."""
    if result.interval is None:
        return []
    _, low, high = result.interval
    other = "y" if axis == "x" else "x"
    return [{
        "type": "rect", f"{axis}0": low, f"{axis}1": high, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1,
        "fillcolor": "@c1", "opacity": 0.1, "line": {"width": 0}, "layer": "below",
    }]  # fmt: skip


_LEGEND: Legend = [("chosen", "@c1", "circle")]


def _maps(result: Result) -> Figure:
    """One map for each pair of keys; a cell shows its best point over the other keys."""
    keys = result.plan.keys
    panels = [_pair(result, a, b) for a, b in itertools.combinations(keys, 2)]
    cells = len(keys) > 2 and any(t["type"] == "heatmap" for p in panels for t in p.data)
    note = "A cell shows the best of its points over the other hyper-parameters. " if cells else ""
    note += "The chosen point is framed; × marks points that diverged or have no value."
    title = f"{label(result.plan.metric)} by {panels[0].title if len(panels) == 1 else 'pairs of hyper-parameters'}"
    if len(panels) == 1:
        panels = [panels[0]._replace(title="")]
    return Figure(title, panels, [], note, wide=True, choice="Pair:")


def _pair(result: Result, a: str, b: str) -> Panel:
    rows = result.swept
    across, up = ([to_value(v) for v in _sorted([r.point[k] for r in rows])] for k in (a, b))
    title = f"{a} and {b}"
    small = max(len(across), len(up)) <= _IN_A_MAP and len(across) * len(up) < 2 * len(rows)
    if not small:
        return Panel(title, *_dots(result, a, b), height=420)
    cells: dict[tuple[int, int], Row] = {}
    scaled, own = _scaling(result), set(map(id, rows))
    for row in reversed(result.ranked):  # so that the best of a cell stays
        if id(row) in own:
            cells[across.index(to_value(row.point[a])), up.index(to_value(row.point[b]))] = row
    grid = [[cells.get((i, j)) for i in range(len(across))] for j in range(len(up))]
    scores = [[None if row is None else result.score(row) for row in line] for line in grid]
    data: Record = {
        "type": "heatmap", "x": list(range(len(across))), "y": list(range(len(up))),
        "z": [[None if s is None else scaled(s) for s in line] for line in scores],
        "text": [["" if s is None else f"{s:#.4g}" for s in line] for line in scores],
        "customdata": [["" if row is None else _point(row) for row in line] for line in grid],
        "hovertemplate": "<b>%{customdata}</b><br>%{text}<extra></extra>", "xgap": 2, "ygap": 2,
        **_colours(result), "colorbar": _ticks(result),
    }  # fmt: skip
    crosses = [
        {"x": i, "y": j, "text": "×", "showarrow": False, "font": {"color": "@soft", "size": 16}}
        for (i, j), row in cells.items()
        if result.score(row) is None
    ]
    numbers = [
        {
            "x": i, "y": j, "text": f"{s:#.4g}", "showarrow": False, "name": "cell", "bgcolor": "@surface", "borderpad": 3,
            "font": {"color": "@ink", "size": 12}, "opacity": 0.88,
        }
        for (i, j), row in cells.items()
        if (s := result.score(row)) is not None
    ]  # fmt: skip
    frames = [
        {
            "type": "rect", "x0": i - 0.5, "x1": i + 0.5, "y0": j - 0.5, "y1": j + 0.5,
            "line": {"color": "@c1", "width": 3},
        }
        for (i, j), row in cells.items()
        if row is result.best
    ]  # fmt: skip
    axes = {
        f"{name}axis": {
            "title": {"text": escape(key)}, "tickvals": list(range(len(values))), "showgrid": False,
            "ticktext": [short(v.strip('"'), 14) for v in values],
        }
        for name, key, values in (("x", a, across), ("y", b, up))
    }  # fmt: skip
    return Panel(
        title, [data], axes | {"annotations": crosses + numbers, "shapes": frames}, 110 + 44 * max(4, len(up))
    )


def _dots(result: Result, a: str, b: str) -> tuple[list[Record], Record]:
    """Points of a random search in the plane of two keys."""
    known = [row for row in result.swept if result.score(row) is not None]
    lost = [row for row in result.swept if result.score(row) is None]
    axes: Record = {}
    at: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, key in (("x", a), ("y", b)):
        values = _sorted([row.point[key] for row in result.swept])
        numbers = all(map(_is_number, values))
        axes[f"{name}axis"] = _titled(escape(key), numbers and _wide(values))
        if axes[f"{name}axis"]["type"] == "log":
            axes[f"{name}axis"]["dtick"] = 1
        places = {to_value(v): v if numbers else i for i, v in enumerate(values)}
        if not numbers:
            axes[f"{name}axis"] |= {
                "tickvals": list(places.values()),
                "ticktext": [short(t, 14) for t in places],
            }
        at[name] = (key, places)

    def trace(rows: Sequence[Row], **more: Any) -> Record:
        xy = {name: [places[to_value(row.point[key])] for row in rows] for name, (key, places) in at.items()}
        text = [f"<b>{_point(row)}</b><br>{_score(result, row)}" for row in rows]
        return (
            {"type": "scatter", "mode": "markers", "text": text, "hovertemplate": "%{text}<extra></extra>"}
            | xy
            | more
        )

    scores = [s for row in known if (s := result.score(row)) is not None]
    colours = _colours(result)
    marker: Record = {
        "size": 11, "color": [*map(_scaling(result), scores)], "colorscale": colours["colorscale"],
        "reversescale": colours["reversescale"], "cmin": colours["zmin"], "cmax": colours["zmax"], "showscale": True,
        "colorbar": {"x": 1.02} | _ticks(result), "line": {"color": "@quiet", "width": 1},
    }  # fmt: skip
    data = [trace(known, marker=marker)]
    data += [
        trace(lost, marker={"symbol": "x-thin", "size": 8, "line": {"color": "@soft", "width": 1.5}})
    ] * bool(lost)
    frame = {"symbol": "square-open", "size": 19, "color": "@c1", "line": {"color": "@c1", "width": 3}}
    best = [row for row in known if row is result.best]
    return data + [trace(best, marker=frame, hoverinfo="skip")] * bool(best), axes


def _parallel(result: Result) -> Figure:
    """Every point as a line through its values; the best fifth and the chosen one stand out."""
    plan, keys = result.plan, result.plan.keys
    own, scaled = set(map(id, result.swept)), _scaling(result)
    rows = [row for row in result.ranked if result.score(row) is not None and id(row) in own]
    shown = rows[:_LINES]
    scales = [_scale([row.point[k] for row in result.swept]) for k in keys]
    scores = [scaled(s) for row in shown if (s := result.score(row)) is not None]
    ends = _colours(result)
    low, high = (ends["zmax"], ends["zmin"]) if plan.minimise else (ends["zmin"], ends["zmax"])

    def height(score: float) -> float:  # on the last axis, best at the top
        return 0.5 if high == low else min(max((score - low) / (high - low), 0.0), 1.0)

    fifth = max(1, round(len(rows) / 5))
    parts: list[tuple[str, str, float, list[int]]] = [
        ("the others", "@quiet", 1.0, list(range(fifth, len(shown)))),
        (f"best fifth ({plural(fifth, 'point')})", "@c0", 1.8, list(range(1, min(fifth, len(shown))))),
        ("chosen", "@c1", 3.0, [i for i, row in enumerate(shown) if row is result.best]),
    ]
    data: list[Record] = []
    for name, hue, width, members in parts:
        x, y, text = [], [], []
        for i in members:
            places = [
                places[to_value(shown[i].point[k])] for k, (places, *_) in zip(keys, scales, strict=True)
            ]
            x += [*range(len(keys) + 1), None]
            y += [*places, height(scores[i]), None]
            text += [f"<b>{_point(shown[i])}</b><br>{_score(result, shown[i])}"] * (len(keys) + 2)
        if members:
            data.append({
                "type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "text": text,
                "line": {"color": hue, "width": width}, "marker": {"color": hue, "size": 4 + width},
                "opacity": 0.7 if hue == "@quiet" else 1, "hovertemplate": "%{text}<extra></extra>",
            })  # fmt: skip
    steps = [low + k / 4 * (high - low) for k in range(5)] if high != low else [low]
    shown_as = [10**s if _by_log(result) else s for s in steps]
    ticks = [labels for _, labels, _ in scales] + [
        {height(s): f"{v:.4g}" for s, v in zip(steps, shown_as, strict=True)}
    ]
    logs = [*(log for *_, log in scales), _by_log(result)]
    names = [escape(n) + " (log)" * log for n, log in zip([*_names(keys), plan.metric], logs, strict=True)]
    layout = _posts(names, ticks)
    note = f"Every line is a point; the best {plan.metric} is at the top. {_missing(result)}"
    note += f" The best {_LINES} of {len(rows)} are drawn." if len(rows) > len(shown) else ""
    legend = [(name, hue, "solid") for name, hue, _, members in reversed(parts) if members]
    return Figure("Parallel coordinates", [Panel("", data, layout, 406)], legend, note.strip(), wide=True)


def _posts(names: Sequence[str], ticks: Sequence[Mapping[float, str]]) -> Record:
    """The layout of parallel axes from 0 to 1: their names at the top, the numbers beside each."""
    numbers = [
        {
            "x": i, "y": place, "text": short(text, 10), "showarrow": False, "xanchor": "left", "xshift": 7,
            "font": {"size": 11, "color": "@ink"}, "bgcolor": "@surface",
            "opacity": 0.85, "borderpad": 1,
        }
        for i, labels in enumerate(ticks)
        for place, text in labels.items()
    ]  # fmt: skip
    posts = [
        {
            "type": "line",
            "x0": i,
            "x1": i,
            "y0": 0,
            "y1": 1,
            "line": {"color": "@soft", "width": 1},
            "layer": "below",
        }
        for i in range(len(names))
    ]
    return {
        "xaxis": {
            "tickvals": list(range(len(names))), "ticktext": names, "showgrid": False, "side": "top", "ticks": "",
            "showline": False, "range": [-0.08, len(names) - 0.92],
        },
        "yaxis": {"visible": False, "range": [-0.06, 1.06]}, "annotations": numbers, "shapes": posts,
        "margin": {"l": 24, "r": 56, "t": 56, "b": 10},  # above the names there is room for the buttons
    }  # fmt: skip


def tradeoff(result: Result) -> Figure:
    """Worst 20 % of clients against the mean: a point a value; those of one family, such as chi2(...), along a line."""
    plan = result.plan
    families: dict[str, list[tuple[float, str, Row]]] = {}
    for name, row in result.traded().items():
        call = re.fullmatch(r"(.*)\(([-+.e\d]+)\)", name)
        if call is not None:
            families.setdefault(call[1], []).append((float(call[2]), call[2], row))
        elif _is_number(row.point.get(str(plan.tradeoff))):
            families.setdefault(str(plan.tradeoff), []).append((float(name), name, row))
        else:
            families.setdefault(name, []).append((0.0, "", row))
    data, legend = [], []
    for i, (family, members) in enumerate(families.items()):
        found = sorted(members, key=lambda f: f[0])
        hue = f"@c{i % 8}"
        at: Record = {}
        for axis, metric in zip("xy", plan.mean_and_tail, strict=True):
            over_seeds = [row.metrics[metric] for _, _, row in found]
            at[axis] = [m["mean"] for m in over_seeds]
            at[f"error_{axis}"] = {
                "array": [m["std"] for m in over_seeds], "visible": len(plan.seeds) > 1, "thickness": 1, "color": hue,
            }  # fmt: skip
        data.append(at | {
            "type": "scatter", "mode": "lines+markers+text", "name": escape(family), "cliponaxis": False,
            "text": [f" {escape(number)} " for _, number, _ in found],
            "textposition": f"top {('right', 'left')[i % 2]}",
            "customdata": [_point(row) for _, _, row in found],
            "hovertemplate": "<b>%{customdata}</b><br>mean %{x:.4f}, worst 20 % %{y:.4f}<extra></extra>",
            "marker": {"color": hue, "size": 10}, "line": {"color": hue, "dash": "dot", "width": 1.5},
        })  # fmt: skip
        legend.append((family, hue, "circle"))
    axes = {
        f"{a}axis": {"title": {"text": label(k)}} | within_one(k, [v for trace in data for v in trace[a]])
        for a, k in zip("xy", plan.mean_and_tail, strict=True)
    }
    note = "Each at its best point by the metric; bars are one standard deviation over seeds. Best is up and to the right."
    return Figure(
        "Mean against the worst 20 % of clients", [Panel("", data, axes, 420)], legend, note, wide=True
    )


# ------------------------------------------------------------------------------------------ words and scales


def as_text(value: Any) -> str:
    """A value for people: texts without quotes."""
    return value if isinstance(value, str) else to_value(value)


def _names(keys: Sequence[str]) -> list[str]:
    """Keys without their section, where they can be told apart."""
    last = [k.rpartition(".")[2] for k in keys]
    return last if len(set(last)) == len(last) else list(keys)


def _name(row: Row, keys: Sequence[str]) -> str:
    return (
        ", ".join(as_text(row.point[k]) for k in keys)
        if set(keys) <= row.point.keys()
        else in_line(row.point)
    )


def _point(row: Row) -> str:
    return "<br>".join(escape(f"{k} = {quoted(v)}") for k, v in row.point.items())


def _score(result: Result, row: Row) -> str:
    found = row.metrics.get(result.plan.metric)
    return (
        f"{plural(row.diverged, 'run')} diverged"
        if found is None
        else f"{result.plan.metric} {mean_and_std(found)}"
    )


def _missing(result: Result) -> str:
    n = sum(result.score(row) is None for row in result.swept)
    return (
        f"{plural(n, 'point')} without a value, because runs diverged or it is undefined, left out."
        if n
        else ""
    )


def _by_log(result: Result) -> bool:
    """Whether scores are compared by their logarithm."""
    return result.plan.metric in RESIDUALS and all(s > 0 for s in _scores(result))


def _scaling(result: Result) -> Callable[[float], float]:
    return math.log10 if _by_log(result) else float


def _scores(result: Result) -> list[float]:
    return [s for row in result.rows if (s := result.score(row)) is not None]


def _colours(result: Result) -> Record:
    """Colours from worst to best; a few points far off do not make all others look alike."""
    scores = [*map(_scaling(result), _scores(result))]
    low, high, middle = min(scores), max(scores), statistics.median(scores)
    if result.plan.minimise:
        high = min(high, low + 3 * (middle - low)) if middle > low else high
    else:
        low = max(low, high - 3 * (high - middle)) if middle < high else low
    return {"zmin": low, "zmax": high, "colorscale": _COLD_TO_WARM, "reversescale": result.plan.minimise}


def _ticks(result: Result) -> Record:
    if not _by_log(result):
        return {}
    ends = _colours(result)
    at = [ends["zmin"] + k / 4 * (ends["zmax"] - ends["zmin"]) for k in range(5)]
    return {"tickvals": at, "ticktext": [f"{10**v:.2g}" for v in at]}


def _titled(title: str, log: bool) -> Record:
    """An axis that says so if it is logarithmic."""
    return {"title": {"text": title + " (log scale)" * log}, "type": "log" if log else "linear"}


def _scale(values: Sequence[Any]) -> tuple[dict[str, float], dict[float, str], bool]:
    """Where values stand on an axis from 0 to 1, its labels, and whether it is logarithmic; texts stand in order."""
    distinct = _sorted(values)
    numbers = all(map(_is_number, distinct))
    log = numbers and _wide(distinct)
    raw = [math.log10(v) if log else float(v) if numbers else float(i) for i, v in enumerate(distinct)]
    low, high = raw[0], raw[-1]
    places = {
        to_value(v): 0.5 if high == low else (r - low) / (high - low)
        for v, r in zip(distinct, raw, strict=True)
    }
    if len(places) <= 8 or not numbers:
        return places, {place: text.strip('"') for text, place in itertools.islice(places.items(), 20)}, log
    at = [low + k / 4 * (high - low) for k in range(5)]
    return places, {k / 4: f"{10**v if log else v:.3g}" for k, v in enumerate(at)}, log


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _wide(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis suits: of values far apart, or of a few that lie more evenly on it."""
    distinct = sorted({*map(float, values)})
    if distinct[0] <= 0 or distinct[-1] < 8 * distinct[0]:
        return False
    if distinct[-1] > 20 * distinct[0] or not 2 < len(distinct) <= _FEW:
        return distinct[-1] > 20 * distinct[0]
    return _uneven([math.log(v) for v in distinct]) < _uneven(distinct)


def _uneven(values: Sequence[float]) -> float:
    """How many times as large the largest gap is as the smallest one."""
    gaps = [b - a for a, b in itertools.pairwise(values)]
    return max(gaps) / min(gaps)


def _sorted(values: Sequence[Any]) -> list[Any]:
    """Distinct values, numbers by size, others as they come."""
    distinct = list({to_value(v): v for v in values}.values())
    return sorted(distinct) if all(map(_is_number, distinct)) else distinct
