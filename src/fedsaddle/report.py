"""Reports: one self-contained HTML page about a run, or about several side by side.

    write_report("runs/codasca")                                        # -> runs/codasca/report.html
    write_comparison({"CODASCA": "runs/a", "CODA+": "runs/b"}, "compare.html")
    curves({"CODASCA": run.records})                                    # one Plotly figure, for a notebook

A page works offline: plotly.js is inlined once and a content security policy forbids every request. What users supply
(names, settings) is escaped wherever it is shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from fedsaddle import figures
from fedsaddle.citing import of_result
from fedsaddle.errors import FedsaddleError, optional_import
from fedsaddle.figures import LABELS, RESIDUALS, Figure, Group, Run, base, curves, finite, label, plural
from fedsaddle.parse import from_json
from fedsaddle.train import Record, human_bytes

__all__ = ["curves", "write_comparison", "write_report"]

Folder = str | os.PathLike[str]

NOTES = {
    "auc": "all test samples pooled",
    "train_auc": "all training samples pooled; there is no test data",
    "single_class_clients": "their AUC is undefined, so they are counted here instead",
    "auc_std": "standard deviation",
    "accuracy_std": "standard deviation",
    "auc_gini": "0 where all clients are equal",
    "accuracy_gini": "0 where all clients are equal",
    "bytes_down": "all rounds, all clients, as 4-byte numbers",
    "bytes_up": "all rounds, all clients, as 4-byte numbers",
}


class _Card(NamedTuple):
    """A part of a page."""

    name: str
    title: str
    body: str  # HTML
    wide: bool = False


def write_report(run_dir: Folder) -> Path:
    """Write report.html into a run's folder and return its path; an unfinished run is reported as far as it got."""
    folder = Path(run_dir)
    name, run = folder.resolve().name, _read(folder)
    groups = [Group(name, 0, [run])]
    main = figures.main_metric(groups)
    cards = [
        _key_numbers(run),
        *_figures(groups, main),
        _communication(run),
        _settings(run),
        *_sources(groups),
    ]
    title, kind = _what(run) or name, f"Training run · {name}"
    return _write(folder / "report.html", title, kind, _common_facts(groups), _tiles(run, main), cards)


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
    named = run_dirs if isinstance(run_dirs, Mapping) else _named([Path(d) for d in run_dirs])
    if not named:
        raise FedsaddleError("write_comparison: give at least one run folder, got none")
    groups = []
    for i, (name, given) in enumerate(named.items()):
        folders = [given] if isinstance(given, str | os.PathLike) else given
        if not folders:
            raise FedsaddleError(f"write_comparison: {name!r} has no run folder; give at least one")
        groups.append(Group(name, i, [_read(Path(f)) for f in folders]))
    main = figures.main_metric(groups)
    cards = [_table_of_runs(groups, main), *_figures(groups, main), _differences(groups), *_sources(groups)]
    runs = sum(len(g.runs) for g in groups)
    title = " · ".join(g.name for g in groups) if len(groups) <= 4 else f"{len(groups)} runs compared"
    facts = [plural(runs, "run")]
    facts += ["numbers are means ± standard deviation over repetitions"] if runs > len(groups) else []
    facts += _common_facts(groups)
    return _write(Path(out), title, "Comparison", facts, _element("p", note, "lead"), cards)


# ---------------------------------------------------------------------------------------------- reading runs


def _read(folder: Path) -> Run:
    history, result, config = folder / "history.jsonl", folder / "result.json", folder / "config.toml"
    if not history.is_file():
        raise FedsaddleError(f"{folder}: no history.jsonl; give the folder of a run (train(..., out=...))")
    records: list[Record] = []
    lines = history.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        try:
            records.append(from_json(line))
        except ValueError:
            if i == len(lines) - 1 and records:
                break  # a run that was killed while it wrote
            raise FedsaddleError(f"{history}: line {i + 1} is not JSON; the file is damaged") from None
    if not records:
        raise FedsaddleError(f"{history}: is empty; the run has not started, so there is nothing to report")
    return Run(
        records,
        from_json(result.read_bytes()) if result.is_file() else {},
        config.read_text(encoding="utf-8") if config.is_file() else "",
    )


def _named(folders: list[Path]) -> dict[str, Path]:
    """Folders by their last name, with as many parents as it takes to tell them apart."""
    parts = [f.resolve().parts for f in folders]
    depth = 1
    while len({p[-depth:] for p in parts}) < len(set(parts)):
        depth += 1
    return {"/".join(p[-depth:]): f for p, f in zip(parts, folders, strict=True)}


# ---------------------------------------------------------------------------------------------- cards


def _figures(groups: list[Group], main: str) -> list[_Card | None]:
    one = groups[0].runs[0] if len(groups) == 1 and len(groups[0].runs) == 1 else None
    return [
        _drawn("course", figures.course(groups, main)),
        _drawn("clients", figures.by_client(groups, main)),
        _drawn("residual", figures.residual(groups, main)),
        _drawn("calendar", figures.calendar(one) if one else None),
        _drawn("partition", figures.partition(groups)),
    ]


def _drawn(name: str, figure: Figure | None) -> _Card | None:
    """A legend, places for panels, each followed by its data, which the page's script draws, and a note."""
    if figure is None:
        return None
    entries = "".join(f"<li>{_swatch(hue, kind)}{escape(text)}</li>" for text, hue, kind in figure.legend)
    panels = ""
    for p in figure.panels:
        data = json.dumps({"data": p.data, "layout": p.layout}, allow_nan=False).replace("<", "\\u003c")
        panels += f"<div class='panel'>{_element('h3', p.title)}<div class='plot' style='height:{p.height}px'></div>"
        panels += f"<script type='application/json'>{data}</script></div>"
    pair = len(figure.panels) > 1
    body = f"<ul class='legend'>{entries}</ul>" if entries else ""
    body += f"<div class='plots{' pair' * pair}'>{panels}</div>{_element('p', figure.note, 'note')}"
    return _Card(name, figure.title, body, wide=pair)


def _tiles(run: Run, main: str) -> str:
    wanted = (main, f"{base(main)}_worst20", f"{base(main)}_clients")
    tiles = [(label(k), _number(k, v)) for k in wanted if (v := finite(run.final.get(k))) is not None]
    moved = human_bytes(run.final.get("bytes_down", 0) + run.final.get("bytes_up", 0))
    tiles += [("Rounds", f"{run.final['round']:,}"), ("Communication", moved)]
    body = "</div><div class='tile'>".join(
        _element("div", value, "figure") + _element("div", name, "caption") for name, value in tiles
    )
    return f"<div class='tiles'><div class='tile'>{body}</div></div>"


def _key_numbers(run: Run) -> _Card:
    order = [*LABELS, *(k for k in run.final if k not in LABELS and k != "participants")]
    known = {k: v for k in order if (v := finite(run.final.get(k))) is not None}
    rows = [(escape(label(k)) + _element("small", NOTES.get(k, "")), _number(k, v)) for k, v in known.items()]
    body = _pairs(rows, "pairs columns")
    if not run.result:
        shown = f"The report shows its first {run.final['round']:,} rounds."
        body = _element("p", f"This run has not finished: there is no result.json. {shown}", "warning") + body
    return _Card("numbers", "Key numbers", body, wide=True)


def _table_of_runs(groups: list[Group], main: str) -> _Card:
    qualities = {
        main: label(main), f"{base(main)}_clients": "Mean over clients", f"{base(main)}_worst20": "Worst 20\u00a0%",
        f"{base(main)}_best20": "Best 20\u00a0%", f"{base(main)}_gini": "Gini",
    }  # fmt: skip
    wanted = qualities | {
        "single_class_clients": "Single-class clients", "round": "Rounds", "phases": "Phases", "bytes_down": "Down",
        "bytes_up": "Up", "seconds": "Time",
    }  # fmt: skip
    keys = [k for k in wanted if any(g.values(k) for g in groups)]
    best = {k: _best(k, [g.values(k) for g in groups]) if k in qualities else [] for k in keys}
    rows = []
    for i, g in enumerate(groups):
        unfinished = sum(not r.result for r in g.runs)
        what = [_what(g.runs[0])]
        what += [f"{len(g.runs)} repetitions"] if len(g.runs) > 1 else []
        what += [f"{unfinished} unfinished"] if unfinished else []
        method = _swatch(g.colour, g.dash) + escape(g.name) + _element("small", ", ".join(filter(None, what)))
        row = f"<th scope='row'>{method}</th>"
        for k in keys:
            cell = _mean_and_spread(k, g.values(k), k in qualities)
            row += f"<td class='best'>{cell}</td>" if i in best[k] else f"<td>{cell}</td>"
        rows.append(row)
    table = _table("runs", ["Method", *(wanted[k] for k in keys)], rows)
    note = _element("p", "In bold: the best mean." if any(best.values()) else "", "note")
    return _Card("runs", "Results", table + note, wide=True)


def _best(key: str, values: list[list[float]]) -> list[int]:
    """Which of several runs are best, as far as digits are shown; none if all are."""
    if not all(values):
        return []
    means = [float(np.mean(v)) for v in values]
    top = min(means) if key in RESIDUALS or key == "loss" or key.endswith("_gini") else max(means)
    found = [i for i, m in enumerate(means) if _number(key, m) == _number(key, top)]
    return found if len(found) < len(values) else []


def _communication(run: Run) -> _Card | None:
    if not run.result:
        return None
    setup, phases = run.result["communication"]["setup"], run.result["communication"]["phases"]
    total = {k: sum(t[k] for t in phases.values()) for k in setup}
    listed = {_code("set-up, before the first round"): setup} if setup["phases"] else {}
    listed |= {_code(name): t for name, t in phases.items()} | {"All rounds": total}
    rows = [
        f"<th scope='row'>{name}</th><td>{t['phases']:,}</td><td>{human_bytes(t['bytes_down'])}</td>"
        f"<td>{human_bytes(t['bytes_up'])}</td>"
        for name, t in listed.items()
    ]
    note = "A phase is one exchange: the server sends, clients work, clients answer. Counted over all clients."  # fmt: skip
    body = _table("traffic", ["Phase", "Times", "Down", "Up"], rows) + _element("p", note, "note")
    return _Card("communication", "Communication by phase", body)


def _settings(run: Run) -> _Card | None:
    body = ""
    for section, part in run.result.get("config", {}).items():
        rows = [(escape(k), _code(v)) for k, v in part.items()]
        body += f"<div>{_element('h3', section)}{_pairs(rows)}</div>"
    body = f"<div class='sections'>{body}</div>"
    if run.config_text:
        body += f"<details><summary>config.toml</summary>{_element('pre', run.config_text)}</details>"
    return _Card("settings", "Settings", body, wide=True) if run.result or run.config_text else None


def _differences(groups: list[Group]) -> _Card | None:
    """Settings in which runs differ, side by side, and those that all share."""
    names = dict.fromkeys(k for g in groups for run in g.runs for k in run.settings)
    shown = {k: [_values(run.settings.get(k, "–") for run in g.runs) for g in groups] for k in names}
    differing = {k: v for k, v in shown.items() if len(set(v)) > 1}
    common = [(escape(k), v[0]) for k, v in shown.items() if k not in differing]
    body = ""
    if differing:
        rows = [
            f"<th scope='row'>{escape(k)}</th><td>{'</td><td>'.join(v)}</td>" for k, v in differing.items()
        ]
        body = _table("settings", ["Setting", *(g.name for g in groups)], rows)
    if common:
        summary = f"<summary>The same for all: {plural(len(common), 'setting')}</summary>"
        body += f"<details{' open' * (not differing)}>{summary}{_pairs(common, 'pairs columns')}</details>"
    title = "Settings that differ" if differing else "Settings"
    return _Card("settings", title, body, wide=True) if names else None


def _sources(groups: list[Group]) -> list[_Card]:
    """What to cite, and the versions of what was used."""
    runs = [run for g in groups for run in g.runs if run.result]
    entries = dict.fromkeys(entry for run in runs for entry in of_result(run.result))
    cites = "".join(_element("pre", entry, "cite") for entry in entries)
    names = dict.fromkeys(k for run in runs for k in run.result["versions"])
    versions = [(escape(k), _values(run.result["versions"].get(k, "–") for run in runs)) for k in names]
    cards = [_Card("cite", "How to cite", cites)] if entries else []
    return cards + ([_Card("versions", "Versions", _pairs(versions))] if versions else [])


# ---------------------------------------------------------------------------------------------- words and numbers


def _what(run: Run) -> str:
    algorithm, problem = run.settings.get("algorithm.name"), run.settings.get("problem.name")
    return f"{algorithm} on {problem}" if algorithm and problem else ""


def _common_facts(groups: list[Group]) -> list[str]:
    """What all runs have in common, in a few words."""
    wanted: dict[str, Callable[[Any], str]] = {
        "federation.clients": lambda n: plural(n, "client"),
        "federation.samples": lambda n: plural(n, "training sample"),
        "train.rounds": lambda n: plural(n, "round"),
        "algorithm.local_steps": lambda n: plural(n, "local step"),
        "participation.name": lambda n: "everyone takes part" if n == "Full" else f"{n} participation",
        "train.seed": lambda n: f"seed {n}",
    }
    values = {k: {run.settings.get(k) for g in groups for run in g.runs} for k in wanted}
    return [words(*values[k]) for k, words in wanted.items() if len(values[k]) == 1 and None not in values[k]]


def _number(key: str, value: float) -> str:
    """A final value as text: four decimals for qualities, units for bytes and seconds."""
    if key in ("bytes_down", "bytes_up"):
        return human_bytes(value)
    if key == "seconds":
        size, name = (1, "s") if value < 120 else (60, "min") if value < 7200 else (3600, "h")
        return f"{value / size:.1f} {name}"
    if key in ("round", "phases", "single_class_clients", "failures"):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.1f}"
    return f"{value:.3g}" if key in RESIDUALS else f"{value:.4f}"


def _mean_and_spread(key: str, values: list[float], spread: bool) -> str:
    text = _number(key, float(np.mean(values))) if values else "–"
    if spread and len(values) > 1:
        text += f" <small>± {_number(key, float(np.std(values, ddof=1)))}</small>"
    return text


def _code(value: Any) -> str:
    """A setting as HTML."""
    if isinstance(value, float):
        value = float(f"{value:.6g}")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"<code>{escape(text)}</code>"


def _values(values: Iterable[Any]) -> str:
    """The distinct values of a setting as HTML."""
    return ", ".join(dict.fromkeys(_code(v) for v in values))


def _element(tag: str, text: str, kind: str = "") -> str:
    """An element with a text; nothing without one."""
    opening = f"{tag} class='{kind}'" if kind else tag
    return f"<{opening}>{escape(text)}</{tag}>" if text else ""


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


# ---------------------------------------------------------------------------------------------- the page


def _pairs(rows: Iterable[tuple[str, str]], kind: str = "pairs") -> str:
    body = "".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f"<table class='{kind}'><tbody>{body}</tbody></table>"


def _table(kind: str, head: Iterable[str], rows: Iterable[str]) -> str:
    cells = "".join(f"<th scope='col'>{escape(h)}</th>" for h in head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<div class='scroll'><table class='{kind}'><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"


def _laid_out(cards: Iterable[_Card | None]) -> str:
    """The cards in two columns; one that has no neighbour takes both."""
    out, open_row = "", False
    shown = [card for card in cards if card is not None]
    for i, card in enumerate(shown):
        alone = not open_row and (i + 1 == len(shown) or shown[i + 1].wide)
        wide = card.wide or alone
        open_row = not wide and not open_row
        kind = "card wide" if wide else "card"
        out += f"<section class='{kind}' id='{card.name}'><h2>{escape(card.title)}</h2>{card.body}</section>"
    return out


def _write(path: Path, title: str, kind: str, facts: list[str], lead: str, cards: list[_Card | None]) -> Path:
    template, css, js = (
        (files("fedsaddle") / "assets" / f"report.{kind}").read_text("utf-8")
        for kind in ("html", "css", "js")
    )
    plotly = optional_import("plotly.offline", "a report", "report").get_plotlyjs()
    page = Template(template).substitute(
        title=escape(title), kind=escape(kind), lead=lead, cards=_laid_out(cards), css=css, js=js,
        facts=" <span class='sep'>·</span> ".join(escape(fact) for fact in facts),
        plotly=plotly.replace("</script", "<\\/script"),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path
