"""Reports: one self-contained HTML page about a run, or about several side by side.

write_report("runs/codasca")                                        # -> runs/codasca/report.html
write_comparison({"CODASCA": "runs/a", "CODA+": "runs/b"}, "compare.html")
curves({"CODASCA": run.records})                                    # one Plotly figure, for a notebook
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fedsaddle import figures, page, scores
from fedsaddle.citing import of_result
from fedsaddle.compare import notices
from fedsaddle.errors import FedsaddleError
from fedsaddle.export import read_weights
from fedsaddle.figures import Group, Run, curves, finite, plural
from fedsaddle.folder import auc_interval, going_on
from fedsaddle.measures import RESIDUALS, Of, base, in_order, label, names, unit
from fedsaddle.metrics import Interval
from fedsaddle.parse import from_json, from_toml
from fedsaddle.progress import human_bytes
from fedsaddle.remarks import remarks
from fedsaddle.repetitions import named
from fedsaddle.scores import Compared
from fedsaddle.train import Record

__all__ = ["curves", "write_comparison", "write_report"]

Folder = str | os.PathLike[str]

NOTES = {
    "auc": "all test samples pooled",
    "train_auc": "all training samples pooled; there is no test data",
    "auc_bound": "at most, of the estimate from the sites' counts of scores; other test samples change more",
    "single_class_clients": "their AUC is undefined, so they are counted here instead",
    "auc_std": "standard deviation",
    "accuracy_std": "standard deviation",
    "auc_gini": "0 where all clients are equal",
    "accuracy_gini": "0 where all clients are equal",
    "bytes_down": "all rounds, all clients, as 4-byte numbers",
    "bytes_up": "all rounds, all clients, as 4-byte numbers",
}


# without stages these do nothing, and "output: random" alarms
_OF_STAGES = ("output", "lr_decay", "interval_growth", "stage_growth", "reset_variates")
_MOST_CLIENTS, _SHOWN_CLIENTS = 500, 12  # in a table, and in one that is open

WORDS: list[tuple[str, str, tuple[str, ...]]] = [  # word, meaning, and the metrics with which it is shown
    ("Client", "who holds data that stay there: a hospital, a bank, a file", ()),
    ("Round, phase", "a round is one exchange between the server and clients; it has one or more phases, each of them a "
     "message down and an answer up", ()),
    ("AUC", "the share of pairs of a positive and a negative sample that the model ranks rightly; 0.5 is chance",
     ("auc", "train_auc")),
    ("Mean over clients", "the mean of the clients' own values, in which each counts once, whatever its number of samples",
     ("auc_clients", "accuracy_clients")),
    ("Worst 20 %, best 20 %", "the mean over the fifth of the clients, at least one, with the lowest or highest value",
     ("auc_worst20", "accuracy_worst20")),
    ("Gini coefficient", "how unequal clients are: 0 where all have the same value, near 1 where one has nearly all",
     ("auc_gini", "accuracy_gini")),
    ("Single-class clients", "they have only positives or only negatives to be tested on, so they have no AUC",
     ("single_class_clients",)),
    ("Objective phi", "what training lowers: the min-max objective with the dual variable at its best; its gradient is 0 "
     "at a solution", ("phi",)),
    ("Dual variable", "what the objective is maximised over; in AUC one number, in robust learning the clients' weights",
     ("dual_distance", "largest_weight")),
]  # fmt: skip


def write_report(run_dir: Folder) -> Path:
    """Write report.html into a run's folder and return its path; an unfinished run is reported as far as it got."""
    folder = Path(run_dir)
    name, run = folder.resolve().name, _read(folder)
    groups = [Group(name, 0, [run])]
    main = figures.main_metric(groups)
    cards = [
        *_figures(groups, main),
        page.drawn("weights", _linear(folder, run)),
        _key_numbers(run),
        _each_client(run, main),
        _communication(run),
        _settings(run),
        _words([run]),
        *_sources(groups),
    ]
    lead = ""
    if not run.result:
        shown = f"The report shows its first {plural(run.final['round'], 'round')}"
        if not run.final["round"]:
            shown = "It has finished no round: numbers are of the model before training"
        text = f"This run has not finished: there is no result.json. {shown}{going_on(folder)}"
        lead = page.element("p", text, "warning")
    lead += "".join(
        page.element("p", said, "warning") for said in (remarks(run.result) if run.result else [])
    )
    title, kind = _what(run) or name, f"Training run · {name}"
    return page.write(
        folder / "report.html", title, kind, _common_facts(groups), lead + _tiles(run, main), cards
    )


def write_comparison(
    run_dirs: Sequence[Folder] | Mapping[str, Folder | Sequence[Folder]],
    out: Folder,
    *,
    note: str = "",
    compared: Compared | None = None,
) -> Path:
    """Write one page that compares runs, and return its path.

    Args:
        run_dirs: folders of runs, or folders by the name to show. A name with several folders is one method that was
            repeated, such as over seeds; it is shown by its mean and standard deviation.
        out: the HTML file to write.
        note: what a reader should know, shown at the top.
        compared: the rows' test AUCs sample by sample (`scores.compared`), if that was computed already.

    Example:
        >>> write_comparison({"CODASCA": ["runs/c-0", "runs/c-1"], "CODA+": "runs/p"}, "out.html")  # doctest: +SKIP
    """
    if not run_dirs:
        raise FedsaddleError("write_comparison: give at least one run folder, got none")
    if not isinstance(run_dirs, Mapping):
        run_dirs = {name: folder for folder, name in named(map(Path, run_dirs)).items()}
    folders = {name: [Path(f) for f in ([given] if isinstance(given, str | os.PathLike) else given)]
               for name, given in run_dirs.items()}  # fmt: skip
    groups = []
    for i, (name, own) in enumerate(folders.items()):
        if not own:
            raise FedsaddleError(f"write_comparison: {name!r} has no run folder; give at least one")
        groups.append(Group(name, i, [_read(f) for f in own]))
    main = figures.main_metric(groups)
    results = {
        g.name: dict(zip(folders[g.name], [run.result for run in g.runs], strict=True)) for g in groups
    }
    if compared is None:
        compared = scores.compared(results) if main == "auc" else Compared({}, "", {}, {})
    cards = [
        _table_of_runs(groups, main, compared),
        *_figures(groups, main),
        _clients_by_row(groups, main),
        _differences(groups),
        _words([run for g in groups for run in g.runs]),
        *_sources(groups),
    ]
    n = sum(len(g.runs) for g in groups)
    title = " · ".join(g.name for g in groups) if len(groups) <= 4 else f"{len(groups)} runs compared"
    facts = [plural(n, "run")]
    facts += ["numbers are means ± standard deviation over repetitions"] if n > len(groups) else []
    facts += _common_facts(groups)
    lead = page.element("p", note, "lead") + page.element("p", compared.verdict(), "lead")
    lead += "".join(page.element("p", said, "warning") for said in notices(results))
    return page.write(Path(out), title, "Comparison", facts, lead, cards)


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


# ---------------------------------------------------------------------------------------------- cards


def _figures(groups: list[Group], main: str) -> list[page.Card | None]:
    one = groups[0].runs[0] if len(groups) == 1 and len(groups[0].runs) == 1 else None
    if one and not one.final["round"]:  # nothing but the start
        return []
    return [
        page.drawn("course", figures.course(groups, main)),
        page.drawn("clients", figures.by_client(groups, main)),
        page.drawn("partition", figures.partition(groups)),
        page.drawn("convergence", figures.convergence(groups, main)),
        page.drawn("calendar", figures.calendar(one) if one else None),
    ]


def _linear(folder: Path, run: Run) -> figures.Figure | None:
    """The weights of a model that is one dense layer on features with names; nothing for others."""
    sample, file = run.result.get("sample") or {}, folder / "model.safetensors"
    features = sample.get("features") or []
    if not features or sample["shape"] != [len(features)] or sample["tangent"] or not file.is_file():
        return None
    tensors = sorted(read_weights(file).values(), key=lambda t: -t.ndim)
    outputs = len(tensors[0]) if tensors and tensors[0].ndim == 2 else 0
    if [list(t.shape) for t in tensors] not in (
        [[outputs, len(features)]],
        [[outputs, len(features)], [outputs]],
    ):
        return None
    scaled = len(sample["shift"] or []) == len(features)
    return figures.linear_weights(tensors[0].double().numpy(), features, run.result["classes"], scaled)


def _tiles(run: Run, main: str) -> str:
    wanted = (main, f"{base(main)}_worst20", f"{base(main)}_clients")
    sure = auc_interval(run.result)
    tiles = [
        (label(k) + f", 95\u00a0%: {sure}" * (k == "auc" and sure != ""), _number(k, v))
        for k in wanted
        if (v := finite(run.final.get(k))) is not None
    ]
    moved = human_bytes(run.final.get("bytes_down", 0) + run.final.get("bytes_up", 0))
    tiles += [("Rounds", f"{run.final['round']:,}"), ("Communication", moved)]
    return page.tiles(tiles)


def _key_numbers(run: Run) -> page.Card:
    left_out = ("participants", *names(Of.parts))
    known = {
        k: v for k in in_order(run.final) if k not in left_out and (v := finite(run.final[k])) is not None
    }
    notes = dict(NOTES)
    for k in known:
        if (start := finite(run.result.get(f"{k}_at_start"))) is not None:
            notes[k] = f"began at {_number(k, start)}"
    if sure := auc_interval(run.result):
        notes["auc"] += (
            f"; {sure} with 95\u00a0% confidence, by DeLong's method, for test samples of this kind"
        )
    rows = [
        (escape(label(k)) + page.element("small", notes.get(k, "")), _number(k, v)) for k, v in known.items()
    ]
    if course := run.result.get("course"):
        k, values = course["metric"], course["values"]
        late = f"rounds {course['rounds'][0]} to {course['rounds'][-1]}"
        ends = f"{_number(k, min(values))} to {_number(k, max(values))}"
        rows.insert(
            1, (f"{escape(label(k))}, last {len(values)} evaluations" + page.element("small", late), ends)
        )
    return page.Card("numbers", "All numbers", page.pairs(rows, "pairs columns"), wide=True)


def _each_client(run: Run, main: str) -> page.Card | None:
    """What each client has, and how well it is served, to read where the picture has too little room for numbers."""
    names, values = run.client_names, run.per_client(main)
    train, test = run.result.get("class_counts"), run.result.get("test_class_counts")
    if not train or len(train) != len(names) or len(values) != len(names) or len(names) > _MOST_CLIENTS:
        return None
    test = test if test and len(test) == len(names) else None
    counted = run.settings.get("problem.positive", 1) if base(main) == "auc" and len(train[0]) > 1 else None
    classes = dict(enumerate(run.result.get("classes", [])))
    of_class = "" if counted is None else f", {classes.get(counted, f'class {counted}')}"
    parts = [("Training samples", train), *([("Test samples", test)] if test else [])]
    columns = []
    for title, counts in parts:
        columns.append((title, [f"{sum(row):,}" for row in counts]))
        if counted is not None:
            columns.append((title + of_class, [f"{row[counted]:,}" for row in counts]))
    columns.append((unit(main), ["–" if v is None else _number(main, v) for v in values]))
    rows = [
        [f"<th scope='row'>{escape(name)}</th>", *(f"<td>{cells[i]}</td>" for _, cells in columns)]
        for i, name in enumerate(names)
    ]
    body = page.table("clients", ["Client", *(title for title, _ in columns)], rows)
    summary = f"<summary>{plural(len(names), 'client')}</summary>"
    body = f"<details{' open' * (len(names) <= _SHOWN_CLIENTS)}>{summary}{body}</details>"
    return page.Card("each", "Each client in numbers", body, wide=True)


def _clients_by_row(groups: list[Group], main: str) -> page.Card | None:
    """How well each client is served by each row, to read what the dots show; of repeated runs the mean."""
    first = next((run.client_names for g in groups for run in g.runs if run.per_client(main)), [])
    alike = [
        g
        for g in groups
        if all(r.client_names == first and len(r.per_client(main)) == len(first) for r in g.runs)
    ]
    if not alike or not first or len(first) > _MOST_CLIENTS:
        return None
    columns = []
    for g in alike:
        values = zip(*(run.per_client(main) for run in g.runs), strict=True)
        known = [[v for v in own if v is not None] for own in values]
        columns.append([_number(main, float(np.mean(own))) if own else "–" for own in known])
    rows = [
        [f"<th scope='row'>{escape(name)}</th>", *(f"<td>{column[i]}</td>" for column in columns)]
        for i, name in enumerate(first)
    ]
    body = page.table("clients", ["Client", *(g.name for g in alike)], rows)
    summary = f"<summary>{plural(len(first), 'client')}</summary>"
    body = f"<details{' open' * (len(first) <= _SHOWN_CLIENTS)}>{summary}{body}</details>"
    left = [g.name for g in groups if g not in alike]
    note = f"Not in it, for want of the same clients: {', '.join(left)}." if left else ""
    body += page.element("p", note, "note")
    return page.Card("each", f"{label(main)} of each client", body, wide=True)


def _words(runs: Sequence[Run]) -> page.Card:
    """What the words on this page mean, of those that are on it."""
    known = [
        (escape(word), escape(text))
        for word, text, keys in WORDS
        if not keys or any(k in run.final for run in runs for k in keys)
    ]
    return page.Card("words", "What the words mean", page.pairs(known, "pairs words"))


def _table_of_runs(groups: list[Group], main: str, compared: Compared) -> page.Card:
    qualities = {
        main: label(main), f"{base(main)}_clients": "Mean over clients", f"{base(main)}_worst20": "Worst 20\u00a0%",
        f"{base(main)}_best20": "Best 20\u00a0%", f"{base(main)}_gini": "Gini",
    }  # fmt: skip
    wanted = qualities | {
        "single_class_clients": "Single-class clients", "round": "Rounds", "phases": "Phases",
        "bytes_down": "Down, up", "seconds": "Time",
    }  # fmt: skip
    keys = [k for k in wanted if any(g.values(k) for g in groups)]
    if all(g.values("phases") == g.values("round") for g in groups):  # one a round, as of most methods
        keys = [k for k in keys if k != "phases"]
    best = {k: _best(k, [g.values(k) for g in groups]) for k in keys if k in qualities}
    best = {k: None if i is None or _doubted(k, groups[i]) else i for k, i in best.items()}
    if {scores.DIFFERENT, scores.VARYING} & set(compared.apart.values()):
        best = dict.fromkeys(best)
    if any(by.low <= 0 for by in compared.behind.values()):  # other test samples might tell otherwise
        best["auc"] = None
    columns = []
    for k in keys:
        cells = []
        for i, g in enumerate(groups):
            cell = _mean_and_spread(k, g.values(k), k in qualities)
            if k == "auc":
                cell += page.element("small", compared.sure.get(g.name, ""))
            if k == "bytes_down":
                cell += page.element("small", _mean_and_spread("bytes_up", g.values("bytes_up"), False))
            cells.append(f"<td class='best'>{cell}</td>" if best.get(k) == i else f"<td>{cell}</td>")
        columns.append((wanted[k], cells))
        if k == "auc" and compared.behind:
            columns.append(
                ("Behind the best", [f"<td>{_behind(compared.behind.get(g.name))}</td>" for g in groups])
            )
    rows = []
    for i, g in enumerate(groups):
        unfinished = sum(not r.result for r in g.runs)
        what = [_what(g.runs[0])]
        what += [f"{len(g.runs)} repetitions"] if len(g.runs) > 1 else []
        what += [f"{unfinished} unfinished"] if unfinished else []
        method = (
            page.swatch(g.colour, g.dash)
            + escape(g.name)
            + page.element("small", ", ".join(filter(None, what)))
        )
        rows.append([f"<th scope='row'>{method}</th>", *(cells[i] for _, cells in columns)])
    table = page.table("runs", ["Method", *(head for head, _ in columns)], rows)
    note = (
        "In bold: the best mean, where every row has two runs or more and it is ahead of the second by more than the "
        "larger of their two standard deviations, all have the same test samples as far as that is known, and no notice "
        "above doubts it; of test AUC also only where the intervals of the others are above 0."
    )
    note = note * any(i is not None for i in best.values())
    if compared.sure:
        note += (
            " Below an AUC, or the mean of repetitions: its 95\u00a0% confidence interval over the choice of test samples "
            "(DeLong), not over training runs."
        )
    note = " ".join([note, *compared.notes()])
    return page.Card("runs", "Results", table + page.element("p", note.strip(), "note"), wide=True)


def _behind(by: Interval | None) -> str:
    return (
        "–" if by is None else f"{by.value:z.4f}{page.element('small', f'{by.low:z.4f} to {by.high:z.4f}')}"
    )


def _best(key: str, values: list[list[float]]) -> int | None:
    """The row whose mean is ahead of the second by more than the larger of their two standard deviations, if any."""
    if len(values) < 2 or min(map(len, values)) < 2:
        return None
    means, spreads = [float(np.mean(v)) for v in values], [float(np.std(v, ddof=1)) for v in values]
    sign = 1 if key in RESIDUALS or key == "loss" or key.endswith("_gini") else -1
    first, second, *_ = sorted(range(len(values)), key=lambda i: sign * means[i])
    ahead = abs(means[first] - means[second]) > max(spreads[first], spreads[second])
    return first if ahead and _number(key, means[first]) != _number(key, means[second]) else None


def _doubted(key: str, group: Group) -> bool:
    """Whether a remark on a row's runs makes its value a poor reason to prefer it."""
    return any(key in said.doubts for run in group.runs if run.result for said in remarks(run.result))


def _communication(run: Run) -> page.Card | None:
    if not run.result:
        return None
    setup, phases = run.result["communication"]["setup"], run.result["communication"]["phases"]
    total = {k: sum(t[k] for t in phases.values()) for k in setup}
    listed = {page.code("set-up, before the first round"): setup} if setup["phases"] else {}
    listed |= {page.code(name): t for name, t in phases.items()} | {"All rounds": total}
    rows = [
        [f"<th scope='row'>{name}</th>", f"<td>{t['phases']:,}</td>", f"<td>{human_bytes(t['bytes_down'])}</td>",
         f"<td>{human_bytes(t['bytes_up'])}</td>"]
        for name, t in listed.items()
    ]  # fmt: skip
    note = "A phase is one exchange: the server sends, clients work, clients answer. Counted over all clients."  # fmt: skip
    body = page.table("traffic", ["Phase", "Times", "Down", "Up"], rows) + page.element("p", note, "note")
    return page.Card("communication", "Communication by phase", body)


def _settings(run: Run) -> page.Card | None:
    body = ""
    for section, part in {**_of_data(run.config_text), **run.result.get("config", {})}.items():
        idle = _OF_STAGES if section == "algorithm" and part.get("stage_rounds", 0) is None else ()
        rows = [(escape(k), page.code(v)) for k, v in part.items() if k not in idle]
        body += f"<div>{page.element('h3', section)}{page.pairs(rows)}</div>"
    body = f"<div class='sections'>{body}</div>"
    if run.config_text:
        body += f"<details><summary>config.toml</summary>{page.element('pre', run.config_text)}</details>"
    return page.Card("settings", "Settings", body, wide=True) if run.result or run.config_text else None


def _of_data(config_text: str) -> dict[str, dict[str, Any]]:
    """The sections of config.toml on data, which a run itself knows nothing of."""
    try:
        tree = from_toml(config_text)
    except ValueError:  # changed by hand; it is shown as it is
        return {}
    return {k: tree[k] for k in ("data", "partition") if isinstance(tree.get(k), dict)}


def _differences(groups: list[Group]) -> page.Card | None:
    """Settings in which runs differ, side by side, and those that all share."""
    names = dict.fromkeys(k for g in groups for run in g.runs for k in run.settings)
    shown = {k: [page.distinct(run.settings.get(k, "–") for run in g.runs) for g in groups] for k in names}
    differing = {k: v for k, v in shown.items() if len(set(v)) > 1}
    common = [(escape(k), v[0]) for k, v in shown.items() if k not in differing]
    body = ""
    if differing:
        rows = [
            [f"<th scope='row'>{escape(k)}</th>", *(f"<td>{text}</td>" for text in v)]
            for k, v in differing.items()
        ]
        body = page.table("settings", ["Setting", *(g.name for g in groups)], rows)
    if common:
        summary = f"<summary>The same for all: {plural(len(common), 'setting')}</summary>"
        body += (
            f"<details{' open' * (not differing)}>{summary}{page.pairs(common, 'pairs columns')}</details>"
        )
    title = "Settings that differ" if differing else "Settings"
    return page.Card("settings", title, body, wide=True) if names else None


def _sources(groups: list[Group]) -> list[page.Card]:
    runs = [run for g in groups for run in g.runs if run.result]
    entries = [entry for run in runs for entry in of_result(run.result)]
    return sources(entries, [run.result["versions"] for run in runs])


def sources(entries: Iterable[str], versions: Sequence[Mapping[str, str]]) -> list[page.Card]:
    """What to cite, in BibTeX, and the versions of what was used."""
    cites = "".join(page.element("pre", entry, "cite") for entry in dict.fromkeys(entries))
    names = dict.fromkeys(k for used in versions for k in used)
    rows = [(escape(k), page.distinct(used.get(k, "–") for used in versions)) for k in names]
    cards = [page.Card("cite", "How to cite", f"<div class='cites'>{cites}</div>")] if cites else []
    return cards + (
        [page.Card("versions", "Versions", page.pairs(rows, "pairs columns"), wide=True)] if rows else []
    )


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
