"""What a finished sweep leaves behind: table.md, results.json, best.toml, and sweep.html, a page that shows it.

Its figures are in sweep_figures.py.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

from fedsaddle import config as configs
from fedsaddle import page
from fedsaddle.citing import cite
from fedsaddle.data import DATASETS
from fedsaddle.figures import plural
from fedsaddle.finished import has_plotly
from fedsaddle.folder import between, write_whole
from fedsaddle.journal import mean_and_std
from fedsaddle.measures import label
from fedsaddle.problems import PROBLEMS
from fedsaddle.report import sources
from fedsaddle.schema import named
from fedsaddle.summary import versions
from fedsaddle.sweep_figures import as_text, overview, seeds, tradeoff
from fedsaddle.toml import in_line, to_value

if TYPE_CHECKING:
    from fedsaddle.sweep import Result, Row

_OPEN, _LISTED = 15, 500  # points listed openly, and at all


def write(result: Result, command: str) -> None:
    """The files of a finished sweep; those of an earlier one that no longer hold are removed."""
    plan, out, best = result.plan, result.out, result.best
    head, *lines = [[cell.replace("|", "\\|") for cell in row] for row in result.table()]
    table = [head, ["---"] * len(head), *lines]
    text = "\n".join("| " + " | ".join(row) + " |" for row in table)
    verdict = re.sub(r"([*~])", r"\\\1", result.verdict())
    text = f"# {plan.name}\n\n`{command}`\n\n{text}\n\n{verdict}\n"
    write_whole(out / "table.md", text.encode())
    results: dict[str, Any] = {
        "command": command, "metric": plan.metric, "minimise": plan.minimise, "allow_test": plan.allow_test,
        "seeds": plan.seeds,
        "rows": [
            {"point": r.point, "diverged": r.diverged, "grown": r.grown}
            | {k: r.metrics.get(k) for k in dict.fromkeys((plan.metric, *plan.mean_and_tail * bool(plan.tradeoff)))}
            for r in result.ranked
        ],
        "chosen": None,
    }  # fmt: skip
    for name in ("best.toml", "sweep.html"):
        (out / name).unlink(missing_ok=True)
    if best is not None:
        results["chosen"] = {
            "point": best.point,
            plan.metric: best.metrics[plan.metric],
            "interval": result.interval and result.interval[1:],
            "level": len(result.level),
            "test": result.test_metrics(best),
        }
        config = (
            f"# {in_line(best.point)}\n# chosen on {plan.metric} {mean_and_std(best.metrics[plan.metric])} by: "
            f"{command}\n# train.seed = {plan.seeds}\n\n" + configs.dump(result.configs(best)[0])
        )
        write_whole(out / "best.toml", config.encode())
    write_whole(out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    if best is not None and has_plotly():
        _page(result, best, command, config)


# ------------------------------------------------------------------------------------------------- the page


def _page(result: Result, best: Row, command: str, config: str) -> None:
    plan, tree = result.plan, result.configs(best)[0].tree
    kind = named("algorithm", tree["algorithm"])
    algorithm = kind.__name__
    used: list[Any] = [kind] if hasattr(kind, "cites") else []  # one's own may be without
    used.append(tree["problem"]["name"])
    used += [tree["data"]["name"]] if tree["data"].get("name") in DATASETS else []
    test = result.test_metrics(best)
    sure = f", 95\u00a0%: {between(*result.interval[1:])}" if result.interval else ""
    shown = {label(plan.metric) + sure: mean_and_std(best.metrics[plan.metric])}
    on_test = plan.metric.removeprefix("valid_")
    shown |= {
        label(k): mean_and_std(test[k]) for k in [on_test if on_test in test else next(iter(test), "")] if k
    }
    shown |= {k: as_text(v) for k, v in best.point.items() if k in plan.keys[:3]}
    runs, diverged = sum(len(r.runs) for r in result.rows), sum(r.diverged for r in result.rows)
    facts = [plural(len(result.rows), "point"), plural(len(plan.seeds), "seed"), plural(runs, "run")]
    grown = sum(r.grown for r in result.rows)
    facts += [f"{diverged:,} diverged"] if diverged else []
    facts += [f"in {grown:,} the objective grew"] if grown else []
    facts.append(f"{'lowest' if plan.minimise else 'highest'} {plan.metric} is best")
    cards = [
        page.drawn("tradeoff", tradeoff(result) if plan.tradeoff else None),
        page.drawn("seeds", seeds(result)),
        _chosen(result, best),
        *(page.drawn(name, figure) for name, figure in overview(result).items()),
        _points(result),
        page.Card("config", "The config that reproduces it", _config(result, command, config), wide=True),
        *sources(cite(*used).split("\n\n"), [versions()]),
    ]
    problem = PROBLEMS[tree["problem"]["name"]].__name__
    title = f"{_tried(result, 'algorithm') or algorithm} on {_tried(result, 'problem') or problem}: "
    title += plural(len(plan.keys), "hyper-parameter")
    lead = "".join(page.element("p", said, "warning") for said in result.doubts)
    lead += page.tiles(shown.items())
    page.write(result.out / "sweep.html", title, f"Sweep · {plan.name}", facts, lead, cards)


def _tried(result: Result, section: str) -> str:
    """How many algorithms or problems there are among the points, where that is what was swept."""
    keys = {f"{section}.name", f"{section}.module"} & {*result.plan.keys}
    values = {to_value(row.point[key]) for key in keys for row in result.swept}
    return plural(len(values), section) if len(values) > 1 else ""


def _chosen(result: Result, best: Row) -> page.Card:
    plan = result.plan
    rows = [(escape(k), page.code(v)) for k, v in best.point.items()]
    rows.append((escape(label(plan.metric)), mean_and_std(best.metrics[plan.metric])))
    test = result.test_metrics(best)
    rows += [(escape(label(k)), mean_and_std(v)) for k, v in test.items() if k != plan.metric]
    many = len(plan.seeds) > 1
    seeds = ", ".join(map(str, plan.seeds))
    note = (
        f"Mean ± standard deviation over train.seed = {seeds}, not over the choice of samples. "
        if many
        else ""
    )
    note += f"{result.sure} " * bool(result.sure)
    note += f"Of its test AUC: {result.test_interval} (95 % over test samples). " * bool(result.test_interval)
    if result.fair:
        note += "Test data were looked at for this point alone." if test else ""
    else:
        note += f"Chosen on {plan.metric}, which is not validation data: results are optimistic."
    return page.Card(
        "chosen",
        "The chosen point",
        page.pairs(rows).replace(" ± ", "\u00a0±\u00a0") + page.element("p", note, "note"),
    )


def _points(result: Result) -> page.Card:
    head, *lines = result.table()
    rows = []
    for first, *cells in lines[:_LISTED]:
        kind = " class='best'" if first == "*" else ""
        word = {"*": "chosen", "~": "~ level with it"}.get(first, "")
        rows.append([f"<td{kind}>{escape(cell)}</td>" for cell in (*cells, word)])
    body = page.table("points", [*head[1:], ""], rows[:_OPEN])
    if rest := rows[_OPEN:]:
        summary = page.element("summary", plural(len(rest), "more point"))
        body += f"<details>{summary}{page.table('points', [*head[1:], ''], rest)}</details>"
    left = len(lines) - len(rows)
    level = "with the chosen one, the points among which the best is (95 %, on the same validation samples). "
    note = f"~ level with it: {level}" if result.level else ""
    note += f"{plural(left, 'point')} beyond these in table.md." if left else ""
    body += page.element("p", note.strip(), "note")
    return page.Card("points", "All points, from best to worst", body, wide=True)


def _config(result: Result, command: str, config: str) -> str:
    best = result.out / "best.toml"
    body = page.element("p", "This sweep, and the chosen run alone:", "note first")
    body += page.element("pre", f"{command}\nfedsaddle run {best}")
    if result.best is not None and result.configs(result.best)[0].tree["data"].get("valid"):
        body += page.element("p", "The chosen run, trained on the validation samples too:", "note first")
        body += page.element("pre", f"fedsaddle run {best} --set data.valid=0")
    return body + page.element("p", "best.toml:", "note first") + page.element("pre", config, "cite toml")
