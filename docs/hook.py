"""What the site takes from the code, the tests and the experiments, written when it is built.

A page asks for it by a line of its own:

    <!-- algorithms -->                    a table of all algorithms
    <!-- algorithm: codasca -->            summary, parameters and citation
    <!-- symbols: codasca -->              the table at the head of algorithms/codasca.py, and its paragraph of deviations
    <!-- errata: E3 -->                    the rows of docs/mathematics.md
    <!-- faults: codasca -->               the faults that tests/test_mutations.py puts into a file
    <!-- tests -->                         the source of the tests that the page names
    <!-- source: codasca -->               the file
    <!-- experiments: codasca -->          a paper's claims, tables and figures
    <!-- named: problems -->               what a config can name, with its keys
    <!-- commands -->                      the help of every command
    <!-- file: SECURITY.md -->             a file of the repository

What is not there ends the build. Numbers of the experiments stand in the pages themselves, so that they can be read as
they are, behind or between comments that say where they come from:

    <!-- obtained: codasca/interval; Test AUC -->                  one table with its command, up to <!-- end -->
    <!-- claims: codasca -->                                       all claims of a paper, judged, up to <!-- end -->
    <!-- beside: cycp/tables/cifar10-cnn; auc -->                  a table with the published numbers, up to <!-- end -->
    <!-- overview: all -->                                         how often each claim held, up to <!-- end -->
    0.9312 ± 0.0021<!-- codasca/interval; Test AUC; CODASCA; 32 -->    one cell of a table

`python docs/hook.py` judges the stored results again and writes them anew; a build ends where they are not those of the
experiments.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.cli import commands as all_commands
from fedsaddle.describe import parameters, summary, things
from fedsaddle.kinds import Kind
from fedsaddle.reproduce import experiments, in_words, judge_again, load_experiment
from fedsaddle.toml import quoted

DOCS = Path(__file__).parent
ROOT = DOCS.parent
EXPERIMENTS = ROOT / "experiments"
MARK = re.compile(r"^<!-- (\w+)(?:: (.+?))? -->$", flags=re.M)
TABLE = re.compile(
    r"^(<!-- (obtained|claims|overview|beside): ([^\n]+?) -->)\n(?:(?!<!-- ).)*?\n(<!-- end -->)$",
    flags=re.M | re.S,
)
CELL = re.compile(
    r"(?P<number>-?\d[\d.,]*(?:e-?\d+)?(?: (?:± [\d.e-]+|ms|s))?)?(?P<mark><!-- (?P<place>[^;<>]+(?:; [^;<>]+){3}) -->)"
)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


# ---------------------------------------------------------------------------------------- what mkdocs calls


def on_files(files: Any, config: Any) -> Any:
    """Colours from the report's style sheet, figures from the experiments."""
    files.append(File.generated(config, "assets/colours.css", content=colours()))
    for folder in sorted(EXPERIMENTS.glob("*/*/obtained")):
        for figure in folder.rglob("figure.png"):
            files.append(File.generated(config, figure_uri(figure.parent), abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    try:
        if renewed(markdown) != markdown:
            raise ValueError(
                "has numbers that are not those of the experiments; python docs/hook.py writes them anew"
            )
        return written(CELL.sub(lambda m: unbroken(m["number"]), markdown))
    except (LookupError, OSError, ValueError) as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def written(markdown: str) -> str:
    """A page with everything that it asks for."""

    def made(mark: re.Match[str]) -> str:
        if mark[1] not in WRITERS:
            raise ValueError(f"{mark[0]}: unknown; known are {', '.join(WRITERS)}")
        if mark[1] == "tests":
            return tests_source(markdown)
        return WRITERS[mark[1]](*([mark[2]] if mark[2] else []))

    out = TABLE.sub(lambda m: unbroken(m[0].removeprefix(m[1]).removesuffix(m[4])), markdown)
    return MARK.sub(made, linked(out) if "<!-- tests -->" in markdown else out)


def renewed(markdown: str) -> str:
    """A page with the numbers of the experiments as they are now."""
    out = TABLE.sub(lambda m: f"{m[1]}\n\n{NUMBERS[m[2]](m[3])}\n\n{m[4]}", markdown)
    return CELL.sub(lambda m: cell(*m["place"].split("; ")) + m["mark"], out)


# --------------------------------------------------------------------------------------------- algorithms


def pages() -> dict[str, str]:
    """The page of each algorithm, relative to docs/."""
    out = {}
    for page in sorted((DOCS / "algorithms").glob("*.md")):
        for kind, name in MARK.findall(page.read_text(encoding="utf-8")):
            if kind == "algorithm":
                out[name] = f"algorithms/{page.name}"
    return out


def all_algorithms() -> str:
    page = pages()
    rows = [
        [
            f"[`{name}`]({Path(page[name]).name}#{name})",
            escaped(summary(kind)),
            escaped(f"{first_author(kind.cites.authors)} {kind.cites.year}"),
            f"`{kind.__module__.rpartition('.')[2]}.py`",
        ]
        for name, kind in ALGORITHMS.items()
    ]
    return table(["name", "method", "paper", "file"], rows)


def first_author(authors: str) -> str:
    names = authors.split(" and ")
    last = names[0].partition(",")[0]
    return last if len(names) == 1 else f"{last} et al."


def algorithm(name: str) -> str:
    """Its name, parameters and citation."""
    kind, own = ALGORITHMS[name], parameters(Kind.algorithms, name)
    rows = [
        [f"`{key}`", default(about), escaped(about["description"] or about["type"])]
        for key, about in own.items()
    ]
    paper = kind.cites
    return "\n\n".join([
        f"### `{name}` {{ #{name} }}",
        f"{escaped(summary(kind))}. In Python `fs.{kind.__name__}`, in a config `name = \"{name}\"`.",
        table(["parameter", "default", "meaning"], rows),
        "Compared with its NumPy reference (`tests/test_reference_agreement.py`) in the cases "
        + ", ".join(f"`{case}`" for case in cases(kind))
        + ".",
        f"{escaped(paper.authors)}. *{escaped(paper.title)}*. {escaped(paper.venue)} {paper.year}.",
        folded("quote", f"BibTeX (`fedsaddle cite {name}`)", fenced(paper.bibtex(), "bibtex")),
    ])  # fmt: skip


def cases(kind: type) -> list[str]:
    """The rows of tests/harness.py that compare an algorithm with its NumPy reference."""
    tree = ast.parse((ROOT / "tests/harness.py").read_text(encoding="utf-8"))
    table = next(n.value for n in tree.body if isinstance(n, ast.AnnAssign) and n.target.id == "CASES")
    made = zip(table.keys, table.values, strict=True)
    found = [key.value for key, case in made if case.args[0].func.id == kind.__name__]
    if not found:
        raise LookupError(f"tests/harness.py has no case of {kind.__name__}")
    return found


def module_doc(module: str) -> str:
    return inspect.cleandoc(import_module(f"fedsaddle.algorithms.{module}").__doc__ or "")


def symbols(module: str) -> str:
    """The two-column table in a file's docstring, and the paragraphs after it."""
    head, _, rest = module_doc(module).partition("-+-")
    names = [part.strip() for part in head.splitlines()[-2].split("|")]
    lines = rest.partition("\n")[2].split("\n")
    rows: list[list[str]] = []
    while lines and "|" in lines[0]:
        left, _, right = (part.strip() for part in lines.pop(0).partition("|"))
        if not right and rows:
            rows[-1][0] += f" {left}"
        else:
            rows.append([left, right])
    paragraphs = "\n".join(lines).strip().split("\n\n")
    text = [p for p in paragraphs if not p.startswith("    ")]  # equations are in the pseudo-code
    body = [[escaped(cell) for cell in row] for row in rows]
    return "\n\n".join([table(names, body), *map(prose, text)])


def errata(paper: str) -> str:
    """A paper's rows of docs/mathematics.md."""
    text = (DOCS / "mathematics.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {paper}\.\d+ \|.*$", text, flags=re.M)
    if not rows:
        raise LookupError(f"docs/mathematics.md has no row {paper}.*")
    return "\n".join(["| | paper | here |", "|---|---|---|", *rows])


def faults(module: str) -> str:
    """The errors that the mutation suite puts into a file of algorithms."""
    tree = ast.parse((ROOT / "tests/test_mutations.py").read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Mutation"]
    found = [c.args[0].value for c in calls if c.args[1].id == module]
    if not found:
        raise LookupError(f"tests/test_mutations.py puts no fault into {module}")
    items = "\n".join(f"- {escaped(fault)}" for fault in found)
    title = f"{len(found)} faults put into `algorithms/{module}.py`, one at a time: each fails a test"
    return folded("success", title, items)


def tests_source(markdown: str) -> str:
    """The tests that a page names, as they are."""
    named = dict.fromkeys(TEST.findall(markdown))
    if not named:
        raise LookupError("the page names no test")
    blocks = [
        f"`{file}::{name}`\n{{ #{name} }}\n\n{fenced(function(ROOT / file, name))}" for file, name in named
    ]
    return folded("example", f"The {len(named)} tests that this page names, as they are", "\n\n".join(blocks))


def linked(markdown: str) -> str:
    """Tests that stand in brackets as "test", others by what they say, with a link to their source."""

    def link(words: str, name: str, file: str) -> str:
        return f'[{words}](#{name} "{file}::{name}")'

    def bracket(found: re.Match[str]) -> str:
        return TEST.sub(lambda m: link("test", m[2], m[1]), found[0])

    markdown = re.sub(rf"\((?:{TEST.pattern},?\s*)+\)", bracket, markdown)
    return TEST.sub(lambda m: link(m[2].removeprefix("test_").replace("_", " "), m[2], m[1]), markdown)


def function(file: Path, name: str) -> str:
    """A function's source, with its decorators."""
    text = file.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            return "\n".join(text.split("\n")[first - 1 : node.end_lineno])
    raise LookupError(f"{file.name} has no test {name}")


def source(module: str) -> str:
    file = ROOT / f"src/fedsaddle/algorithms/{module}.py"
    return folded("abstract", f"`src/fedsaddle/algorithms/{module}.py`", fenced(file.read_text("utf-8")))


# -------------------------------------------------------------------------------------------- experiments


@cache
def results() -> dict[str, Path]:
    """The folders of all results: "codasca/interval", "cycp/tables/phishing-linear"."""
    found = sorted(p.parent for p in EXPERIMENTS.glob("*/*/obtained/**/results.json"))
    return {str(p.relative_to(EXPERIMENTS)).replace("/obtained", ""): p for p in found}


def sections(result: str) -> dict[str, str]:
    """The tables of a result, or the sections of a page, by their captions."""
    if not result.endswith(".md") and result not in results():
        raise LookupError(f"{result}: no result of this name; known are {', '.join(results())}")
    file = DOCS / result if result.endswith(".md") else results()[result] / "table.md"
    text = file.read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    return {caption: body.strip() for caption, _, body in parts}


def section(result: str, caption: str) -> str:
    for own, body in sections(result).items():
        if own.startswith(caption):
            return body
    raise LookupError(f"{result}: has no table {caption!r}")


def command(result: str) -> str:
    return str(json.loads((results()[result] / "results.json").read_text())["command"])


def obtained(asked: str) -> str:
    result, caption = asked.split("; ")
    return f"{section(result, caption)}\n\n`{command(result)}`, mean ± standard deviation over three seeds."


def beside(asked: str) -> str:
    """Means and deviations of a metric, and in brackets what the paper has."""
    result, metric = asked.split("; ")
    if result not in results():
        raise LookupError(f"{result}: no result of this name; known are {', '.join(results())}")
    about = json.loads((results()[result] / "results.json").read_text())
    experiment = load_experiment(about["experiment"])
    found = {(r[experiment.ROWS], r[experiment.COLUMNS]): r["metrics"][metric] for r in about["rows"]}
    published = {place: value for place, value in experiment.published().items() if place in found}
    down, across = (list(dict.fromkeys(place[i] for place in found)) for i in (0, 1))
    across = [c for c in across if any(place[1] == c for place in published)]

    def shown(place: tuple[str, str]) -> str:
        own = found.get(place)
        obtained = f"{own['mean']:.4f} ± {own['std']:.4f}" if own else "–"
        return f"{obtained} ({published[place]:.4f})" if place in published else obtained

    return table(
        [f"{experiment.ROWS}: obtained (published)", *across],
        [[d, *(shown((d, a)) for a in across)] for d in down],
    )


def cell(result: str, caption: str, row: str, column: str) -> str:
    """One number of a table."""
    lines = [line for line in section(result, caption).split("\n") if line.startswith("|")]
    head, _, *rows = [[c.strip() for c in line.strip("| ").split(" | ")] for line in lines]
    for own in rows:
        if own[0] == row and column in head:
            return own[head.index(column)]
    raise LookupError(f"{result}, {caption}: has no cell {row!r}, {column!r}")


def verdicts(result: str) -> list[dict[str, Any]]:
    return list(json.loads((results()[result] / "results.json").read_text())["verdicts"])


CLAIMS = {  # of the papers, in a few words
    "C-1.1": "FedSGDA: more clients a round converge faster",
    "C-1.2": "STORM ends lower than MB",
    "C-1.3": "MB levels off, STORM goes on falling",
    "C-1.4": "both are best with most clients and local steps",
    "C-1.5": "on images more local steps give a higher AUC",
    "C-1.6": "with 20 local steps STORM is above MB",
    "C-1.7": "MB hangs on the minibatch, STORM hardly",
    "C-1.8": "with 20 local steps more clients help",
    "C-1.9": "on sorted data more than one local step helps",
    "C-1.10": "at equal communication both are above CODA",
    "C-2.1": "CyCp's AUC methods are above ERM baselines",
    "C-2.2": "and above their twins under random sampling",
    "C-2.3": "more local steps do not harm",
    "C-2.4": "more participants, or groups, converge faster",
    "C-2.5": "heterogeneity and noise cost ERM baselines more",
    "C-3.1": "CODASCA bears larger intervals than CODA+",
    "C-3.2": "also on other classes and with 30 % positives",
    "C-3.3": "CODASCA is above CODA+ on chest X-rays",
    "C-4.1": "FFMDR has the largest AUC",
    "C-4.2": "FFMDR is fastest in rounds",
    "C-4.3": "participation hardly changes its AUC",
    "C-5.1": "SCAFF-PD converges linearly, DRFA much slower",
    "C-5.2": "fast for every heterogeneity; more local steps are faster",
    "C-5.3": "a number of ours: 1e-8 after 50 rounds",
    "C-5.4": "its lead on the worst fifth grows with heterogeneity",
    "C-5.5": "a smaller rho helps the worst fifth more, and sooner",
    "C-5.6": "average and best fifth hardly lose",
    "C-5.7": "local steps help AFL much",
}


def overview(_: str) -> str:
    """How often each claim held, over all results."""
    judged = [v for result in results() for v in verdicts(result)]
    if unknown := {m[0] for v in judged if (m := NUMBER.match(v["claim"]))} - CLAIMS.keys():
        raise LookupError(f"CLAIMS in docs/hook.py has no words for {', '.join(sorted(unknown))}")
    rows = []
    for number, words in CLAIMS.items():
        held = [v["holds"] for v in judged if (m := NUMBER.match(v["claim"])) and m[0] == number]
        counts = [str(held.count(holds) or "") for holds in (True, False, None)]
        rows.append([number, words, *(counts if held else ["", "", "not judged"])])
    return table(["claim", "in a few words", "holds", "does not", "not decided"], rows)


NUMBER = re.compile(r"C-\d+\.\d+")


def claims(paper: str) -> str:
    """Every claim of a paper as each run judged it, and what the runs took."""
    took: list[str] = []
    said: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name in (name for name in experiments() if name.startswith(f"{paper}/")):
        own = [result for result in results() if result == name or result.startswith(f"{name}/")]
        for result in own:
            label = result.removeprefix(f"{paper}/").removesuffix("/all")
            took.append(f"- {label}: `{command(result)}`, {wall_time(result)}")
            for v in verdicts(result):
                said.setdefault(v["claim"], []).append((label, v))
        if not own:
            took.append(f"- {name.removeprefix(f'{paper}/')}: `fedsaddle reproduce {name}`, not run in full")
    rows = []
    for claim, found in sorted(said.items(), key=lambda item: numbered(item[0])):
        published = dict.fromkeys(escaped(v["published"]) for _, v in found if v["published"])
        obtained = [
            f"{label}: {told(v['holds'])}. {escaped(v['short'] or v['numbers'])}" for label, v in found
        ]
        rows.append([escaped(claim), "<br>".join(published) or "–", "<br>".join(obtained)])
    body = table(["claim", "published", "obtained, by run"], rows)
    return f"{body}\n\nRuns:\n\n" + "\n".join(took)


def numbered(claim: str) -> list[int]:
    """By which claims are in order: the papers' own numbers, and those without at the end."""
    found = NUMBER.match(claim)
    return [int(n) for n in found[0][2:].split(".")] if found else [99]


def told(holds: bool | None) -> str:
    return in_words(holds) if holds else f"**{in_words(holds)}**"


def wall_time(result: str) -> str:
    """How long a result took, and on what; `processes`, written into it by hand, says how where its command does not."""
    about = json.loads((results()[result] / "results.json").read_text())
    seconds = about["seconds"]
    took = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds"
    where = about.get("machine") or ("a GPU" if "--device cuda" in about["command"] else "a CPU")
    how = f" ({about['processes']})" if "processes" in about else ""
    parts = "; some parts are missing" if about.get("missing") else ""
    return f"{took} on {where}{how}, seeds {', '.join(map(str, about['seeds']))}{parts}"


def paper_experiments(paper: str) -> str:
    blocks = []
    for name, title in experiments().items():
        if not name.startswith(f"{paper}/"):
            continue
        blocks.append(f"## {escaped(title)}")
        published = (EXPERIMENTS / name / "published.md").read_text(encoding="utf-8")
        blocks.append(
            folded("info", "What was published, and what is done differently here", level(published))
        )
        own = [result for result in results() if result == name or result.startswith(f"{name}/")]
        for result in own:
            blocks.extend(one_result(result, name))
        if not own:
            blocks.append("Not run in full yet: no claim is judged.")
    if not blocks:
        raise LookupError(f"experiments/{paper}: not there")
    return "\n\n".join(blocks)


def one_result(result: str, name: str) -> Iterator[str]:
    variant = result.removeprefix(name).strip("/")
    if variant not in ("", "all"):
        yield f"### {variant}"
    judged = verdicts(result)
    rows = [
        [
            verdict(v["holds"]),
            f"{escaped(v['claim'])}.<br><small>{escaped(v['numbers'])}{published(v)}</small>",
        ]
        for v in judged
    ]
    yield f"`{command(result)}`"
    yield table(["", "claim, and what was obtained"], rows)
    tables = {k: v for k, v in sections(result).items() if v.startswith("|")}
    for i, (caption, body) in enumerate(tables.items()):
        body = unbroken(body)
        yield f"**{escaped(caption)}**\n\n{body}" if i == 0 else folded("note", escaped(caption), body)
    folder = results()[result]
    if (folder / "figure.png").exists():
        yield f"![{escaped(result)}](../{figure_uri(folder)}){{ loading=lazy }}"
    if (folder / "notes.md").exists():
        notes = (folder / "notes.md").read_text(encoding="utf-8")
        yield folded("info", "Notes on what was obtained", level(notes))


def published(verdict: dict[str, Any]) -> str:
    return f" Published: {escaped(verdict['published'])}." if verdict["published"] else ""


def verdict(holds: bool | None) -> str:
    sign = {
        True: ":material-check-circle:{ .holds }",
        False: ":material-close-circle:{ .fails }",
        None: ":material-help-circle:",
    }
    return f"{sign[holds]} {in_words(holds)}"


def figure_uri(folder: Path) -> str:
    return "papers/figures/" + "-".join(folder.relative_to(EXPERIMENTS).parts) + ".png"


# ---------------------------------------------------------------------------------------------- reference


def named(kind: str) -> str:
    blocks = []
    for name, thing in things(Kind(kind)).items():
        about = parameters(Kind(kind), name)
        rows = [
            [f"`{key}`", default(a), f"{escaped(a['description'])} <small>({escaped(a['type'])})</small>"]
            for key, a in about.items()
        ]
        keys = table(["key", "default", "meaning"], rows) if rows else ""
        blocks.append(f"**`{name}`** {escaped(summary(thing))}.\n\n{keys}")
    return "\n\n".join(blocks)


def commands() -> str:
    def helps(command: Any, name: str) -> Iterator[str]:
        inner = getattr(command, "commands", {})
        context = command.context_class(command, info_name=name, terminal_width=100, max_content_width=100)
        if not inner:
            yield f"## `{name}`\n\n{fenced(command.get_help(context).rstrip(), 'text')}"
        for own, sub in inner.items():
            yield from helps(sub, f"{name} {own}")

    return "\n\n".join(helps(all_commands(), "fedsaddle"))


def file(name: str) -> str:
    """A file of the repository without its title."""
    return to_pages((ROOT / name).read_text(encoding="utf-8").partition("\n")[2])


def colours() -> str:
    """The report's colours as the two schemes of the theme."""
    css = (ROOT / "src/fedsaddle/assets/report.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"(--\w+):(#\w+)", part)) for part in css.partition("@media")[::2])
    dark = dict(list(dark.items())[: len(light)])

    def scheme(name: str, values: dict[str, str]) -> str:
        lines = "\n".join(f"  {k}: {v};" for k, v in values.items())
        return f'[data-md-color-scheme="{name}"] {{\n{lines}\n}}\n'

    return scheme("default", light) + scheme("slate", dark)


# ----------------------------------------------------------------------------------------------- markdown


def escaped(text: str) -> str:
    """Plain text as Markdown that shows it as it is; what stands in backticks is code."""
    parts = re.split(r"(`[^`]+`)", " ".join(str(text).split()))
    return "".join(
        p if p.startswith("`") else re.sub(r"([\\*_\[\]<>|~#{}])", lambda m: f"&#{ord(m[1])};", p)
        for p in parts
    ).replace("||", "&#124;&#124;")


def prose(paragraph: str) -> str:
    """A docstring's paragraph, of which bold stays bold."""
    return to_pages(escaped(paragraph).replace("&#42;&#42;", "**"), "../")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def unbroken(body: str) -> str:
    """A table whose numbers stay on one line."""
    return body.replace(" ± ", "\u00a0±\u00a0")


def default(about: dict[str, Any]) -> str:
    value = about.get("default")
    if value is None:
        return "" if about["required"] else "none"
    short = float(f"{value:.4g}") if isinstance(value, float) else value
    return f"`{quoted(short)}`"


def fenced(code: str, language: str = "python") -> str:
    return f"````{language}\n{code.rstrip()}\n````"


def folded(kind: str, title: str, body: str) -> str:
    title = title.replace('"', "'")
    return f'??? {kind} "{title}"\n\n{textwrap.indent(body, "    ")}'


def level(text: str) -> str:
    """Markdown with its headings in bold, to stand inside a page."""
    text = re.sub(r"^#+ (.+)$", r"**\1**", text, flags=re.M)
    return to_pages(text, "../")


def to_pages(text: str, up: str = "") -> str:
    """`docs/x.md`, as files outside of docs/ speak of it, as a link to the page."""
    return re.sub(r"`?docs/((\w+)\.md)`?", rf"[\2]({up}\1)", text)


NUMBERS: dict[str, Callable[..., str]] = {
    "obtained": obtained,
    "claims": claims,
    "overview": overview,
    "beside": beside,
}
WRITERS: dict[str, Callable[..., str]] = {
    "algorithms": all_algorithms,
    "algorithm": algorithm,
    "symbols": symbols,
    "errata": errata,
    "faults": faults,
    "tests": tests_source,
    "source": source,
    "experiments": paper_experiments,
    "named": named,
    "commands": commands,
    "file": file,
}

if __name__ == "__main__":
    for folder in results().values():
        judge_again(folder)
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: new numbers")
