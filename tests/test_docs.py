"""Examples in docstrings, in the README and on the site run; the site builds, and says what code and results say."""

import doctest
import html
import importlib
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import typer

import fedsaddle
from fedsaddle import cli, config
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.reproduce import experiments

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NOT_HERE = ("__main__",) if find_spec("triton") else ("__main__", "kernels")
NEED_FLOWER = () if find_spec("flwr") else ("fedsaddle.deploy.", "fedsaddle.engines.flower")
MODULES = [
    m.name
    for m in pkgutil.walk_packages(fedsaddle.__path__, "fedsaddle.")
    if not m.name.endswith(NOT_HERE) and not m.name.startswith(NEED_FLOWER)
]


def blocks(page: Path, language: str) -> list[str]:
    """The code of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.S | re.M)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_docstring_examples() -> None:
    finder = doctest.DocTestFinder()
    examples = sum(len(t.examples) for m in MODULES for t in finder.find(importlib.import_module(m)))
    assert examples >= 10


def with_python(pages: list[Path]) -> list[Path]:
    return [page for page in pages if blocks(page, "python")]


@pytest.mark.parametrize(
    "page", with_python([ROOT / "README.md", *PAGES]), ids=lambda p: str(p.relative_to(ROOT))
)
def test_examples_run(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        module = ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)  # as a file has: States are found there
        exec(compile(block, page.name, "exec"), vars(module))


def test_readme_is_short_and_names_every_algorithm() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for name in ALGORITHMS:
        assert f"`{name}`" in text


# ------------------------------------------------------------------------------------- commands and configs


def commands() -> list[str]:
    """Every line of the documentation that calls fedsaddle."""
    pages = [ROOT / "README.md", *PAGES]
    lines = [
        line
        for page in pages
        for block in blocks(page, "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    inline = [
        c for page in PAGES for c in re.findall(r"`(fedsaddle [^`]+)`", page.read_text(encoding="utf-8"))
    ]
    found = [line for line in lines if line.startswith("fedsaddle ")] + inline
    alone = [re.split(r" (?:\||>|&&) ", line)[0] for line in found]  # without what comes after a pipe
    return list(dict.fromkeys(" ".join(line.split()) for line in alone))


@pytest.mark.parametrize("line", commands())
def test_commands_are_as_the_command_line_takes_them(line: str, monkeypatch) -> None:
    """Names and options are known, examples load; what is cheap is run."""
    monkeypatch.chdir(ROOT)
    _, *arguments = shlex.split(line, comments=True)
    command, context = typer.main.get_command(cli.app), None
    while hasattr(command, "commands"):
        if not arguments:
            return  # `fedsaddle deploy`, spoken of
        assert arguments[0] in command.commands, line
        command, arguments = command.commands[arguments[0]], arguments[1:]
    if arguments or command.name == "cite":
        context = command.make_context(command.name, list(arguments))
    named = command.name == "show" and re.fullmatch(r"[a-z_0-9]+", arguments[0])
    of_a_run = any(a.startswith("runs/") for a in arguments)
    if (command.name in ("list", "cite") and not of_a_run) or named:
        assert cli._main([command.name, *arguments]) == 0
    elif context is not None and str(context.params.get("file", "")).startswith("examples/"):
        options = context.params.get("assignments") or []
        if command.name == "sweep":
            tomllib.loads(Path(context.params["file"]).read_text())
        else:
            config.load(context.params["file"], options)
    elif command.name == "reproduce" and context is not None:
        assert context.params["experiment"] in experiments()


def test_tables_of_configs_are_toml() -> None:
    for page in PAGES:
        for block in blocks(page, "toml"):
            tomllib.loads(block)


def test_the_whole_config_on_the_site_loads(tmp_path) -> None:
    (tmp_path / "run.toml").write_text(blocks(ROOT / "docs/reference/config.md", "toml")[0])
    assert config.load(tmp_path / "run.toml").name == "breast_cancer"


# --------------------------------------------------------------------------------------- algorithms' pages


def test_names_of_the_reference_exist() -> None:
    """mkdocstrings passes by a member that is not there."""
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    found = re.findall(r"^::: (\S+)\n((?: .*\n?)*)", text, flags=re.M)
    assert len(found) > 20 and text.count("\n::: ") == len(found)
    for path, options in found:
        members = re.search(r"\bmembers: \[(.*?)\]", options)
        thing = pkgutil.resolve_name(path)
        for name in re.findall(r"\w+", members[1]) if members else ():
            assert hasattr(thing, name), f"{path} has no {name}"


def test_every_algorithm_has_its_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/algorithms").glob("*.md"))
    assert sorted(re.findall(r"^<!-- algorithm: (\w+) -->$", text, flags=re.M)) == sorted(ALGORITHMS)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_tests_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, name in re.findall(r"`(tests/[\w/]+(?:\.py)?)/?(?:::(\w+))?", text):
        assert (ROOT / file).exists(), file
        if name:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), flags=re.M), name


def test_every_page_of_an_algorithm_says_what_was_verified() -> None:
    for page in (ROOT / "docs/algorithms").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if "<!-- algorithm:" in text:
            for part in ("Pseudo-code", "Parameters", "Symbols", "What was verified", "Errata", "Source"):
                assert f"\n## {part}" in text, (page.name, part)
            assert "::test_" in text


def costs() -> dict[str, tuple[int, str, str]]:
    """The table of costs on the page about choosing: phases, numbers down and up."""
    rows = re.findall(
        r"^\| (`.+`.*) \| (\d) \| `(.+)` \| `(.+)` \| .* \|$",
        (ROOT / "docs/choose.md").read_text(encoding="utf-8"),
        flags=re.M,
    )
    return {name: (int(p), down, up) for names, p, down, up in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_algorithm_has_its_cost() -> None:
    assert sorted(costs()) == sorted(ALGORITHMS)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_costs_are_what_is_counted(name: str) -> None:
    """In the third round of a run over six clients, which is like all that follow."""
    from tests.harness import binary
    from tests.test_accounting import problem_for

    kind, clients, batch = ALGORITHMS[name], 6, 4
    steps = 1 if name == "npa" else 2
    options = {} if name == "ffmdr" else {"local_steps": steps}
    algorithm = kind(**options | ({"tail": 1.0} if name == "delta_fl" else {}))
    problem = problem_for(algorithm)
    run = fedsaddle.train(problem, algorithm, binary(), rounds=3, batch_size=batch, eval_every=3)
    before, after = run.records[-2:]
    n_x, n_y = problem.n_x, problem.n_y
    phases, *ways = costs()[name]
    assert after["phases"] - before["phases"] == phases
    for way, formula in zip(("bytes_down", "bytes_up"), ways, strict=True):
        terms = re.sub(r"(\d) (\w)", r"\1 * \2", formula)
        numbers = eval(terms, {"n": n_x + n_y, "n_x": n_x, "b": steps * batch})
        counted = (after[way] - before[way]) / 4
        if name == "drfa":  # clients that are drawn twice are asked once
            assert counted < clients * numbers
        else:
            assert counted == clients * numbers


# ------------------------------------------------------------------------------------------------ the site


def hook():
    pytest.importorskip("mkdocs")
    spec = spec_from_file_location("hook", ROOT / "docs/hook.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site(tmp_path) -> None:
    """It builds without a warning; what it shows is checked here too, so that it is built once."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name)
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    asks_no_other_host(tmp_path)
    says_what_the_code_says(tmp_path)
    says_what_was_obtained(tmp_path)
    works_from_disk(tmp_path)


def text_of(page: Path) -> str:
    shown = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
    return " ".join(html.unescape(shown).split())


def asks_no_other_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)  # and a page for what is not there
    loads = re.compile(r"<(?:script|img|link|iframe|source)[^>]*?(?:src|href)=[\"']?(https?:[^\"' >]+)")
    for page in pages:
        assert not loads.findall(page.read_text(encoding="utf-8")), page.name
    for sheet in (site / "assets").rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import", sheet.read_text(encoding="utf-8")), sheet.name


def says_what_the_code_says(site: Path) -> None:
    shown = text_of(site / "algorithms/codasca.html")
    assert fedsaddle.CODASCA.cites.title in shown
    assert "reset_variates" in shown and "whether each stage starts with zero variates" in shown
    assert "c_v^k, c_alpha^k" in shown and "row k of [S, d]" in shown  # symbols, of the file's head
    assert "CODASCA steps with flipped variates" in shown  # faults
    assert "def test_control_variates_reach_the_saddle(algorithm):" in shown
    assert "ChestXray14" in shown  # errata
    assert "fedsaddle reproduce [OPTIONS] EXPERIMENT" in text_of(site / "reference/commands.html")


def says_what_was_obtained(site: Path) -> None:
    for result in (ROOT / "experiments").glob("*/*/obtained/**/results.json"):
        found = json.loads(result.read_text())
        shown = text_of(site / f"papers/{found['experiment'].partition('/')[0]}.html")
        assert found["command"] in shown
        for verdict in found["verdicts"]:
            said = {True: "holds", False: "does not hold", None: "not decided"}[verdict["holds"]]
            assert f"{said} {' '.join(verdict['claim'].split())}." in shown, verdict["claim"]
    rows = json.loads((ROOT / "experiments/codasca/interval/obtained/results.json").read_text())["rows"]
    (cell,) = (r["metrics"]["auc"] for r in rows if r["method"] == "CODASCA" and r["I"] == 32)
    assert f"At 32 local steps CODASCA has {cell['mean']:.4f}" in text_of(site / "choose.html")


def works_from_disk(site: Path) -> None:
    """In the browser, without a server: the theme's search runs in a frame, by our own script."""
    chromium = shutil.which("chromium")
    if chromium is None or not find_spec("playwright"):
        return
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.on("request", lambda r: asked.append(r.url))
        page.goto((site / "algorithms/codasca.html").as_uri())
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.click("input.md-search__input")
        page.keyboard.type("Douglas-Rachford")
        page.wait_for_selector(".md-search-result__item", timeout=30_000)
        found = page.inner_text(".md-search-result__list")
        browser.close()
    assert "FFMDR" in found
    assert wider == 0  # on a telephone nothing is wider than the screen
    assert not [url for url in asked if url.startswith("http")]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("<!-- algorithm: codasco -->", "codasco"),
        ("<!-- errata: E9 -->", "no row"),
        ("<!-- faults: base -->", "no fault"),
        ("<!-- source: nothing -->", "nothing.py"),
        ("<!-- obtained: codasca/nothing; Test AUC -->\n\n<!-- end -->", "no result"),
        ("<!-- obtained: codasca/interval; Accuracy -->\n\n<!-- end -->", "no table"),
        ("<!-- obtained: codasca/interval; Test AUC -->", "known are"),  # and no end
        ("0.9<!-- codasca/interval; Test AUC; CODASCA; 33 -->", "no cell"),
        ("<!-- misspelt -->", "known are"),
        ("`tests/test_truth.py::test_nothing`\n\n<!-- tests -->", "no test"),
    ],
)
def test_what_is_not_there_ends_the_build(asked: str, says: str) -> None:
    made = hook()
    with pytest.raises((LookupError, OSError, ValueError), match=says):
        made.written(made.renewed(asked))


def test_claims_stand_once_each_with_what_every_run_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = hook()
    said = {
        "codasca/interval": [
            ("C-3.1: it bears more", True, "32 against 1", "4 times"),
            ("C-3.2: too", None, "", ""),
        ],
        "codasca/cifar10-ih/cnn": [("C-3.1: it bears more", False, "", "4 times")],
    }
    monkeypatch.setattr(made, "results", lambda: said)
    monkeypatch.setattr(
        made, "experiments", lambda: ["codasca/interval", "codasca/cifar10-ih", "codasca/later"]
    )
    monkeypatch.setattr(made, "command", lambda result: f"fedsaddle reproduce {result}")
    monkeypatch.setattr(made, "wall_time", lambda result: "an hour")
    monkeypatch.setattr(
        made, "verdicts",
        lambda result: [
            {"claim": c, "holds": h, "short": s, "published": p, "numbers": "all numbers"} for c, h, s, p in said[result]
        ],
    )  # fmt: skip
    page = made.claims("codasca")
    first = "interval: holds. 32 against 1<br>cifar10-ih/cnn: **does not hold**. all numbers"
    assert f"| C-3.1: it bears more | 4 times | {first} |" in page
    assert "| C-3.2: too | – | interval: **not decided**. all numbers |" in page
    assert "- later: `fedsaddle reproduce codasca/later`, not run in full" in page
    counts = {line.split(" | ")[0][2:]: line.split(" | ")[2:] for line in made.overview("all").split("\n")}
    assert counts["C-3.1"] == ["1", "1", " |"] and counts["C-3.2"] == ["", "", "1 |"]
    assert counts["C-3.3"] == ["", "", "not judged |"]
    said["codasca/interval"].append(("C-9.9: who knows", True, "", ""))
    with pytest.raises(LookupError, match=r"no words for C-9\.9"):
        made.overview("all")


def test_numbers_of_pages_are_those_of_the_experiments() -> None:
    from mkdocs.exceptions import PluginError

    made, page = hook(), SimpleNamespace(file=SimpleNamespace(src_uri="choose.md"))
    assert all(
        made.renewed(text) == text for text in (p.read_text("utf-8") for p in (ROOT / "docs").rglob("*.md"))
    )
    table = "<!-- obtained: codasca/interval; Test AUC -->\n\n<!-- end -->"
    text = f"It has <!-- codasca/interval; Test AUC; CODASCA; 32 -->, and\n\n{table}"
    with pytest.raises(
        PluginError, match=r"choose.md: has numbers that are not those .* python docs/hook.py"
    ):
        made.on_page_markdown(text, page)
    new = made.renewed(text)
    number = re.search(r"has (0\.\d{4} ± 0\.\d{4})<!--", new)[1]
    assert f"| {number} |" in new and "`fedsaddle reproduce codasca/interval`" in new
    shown = made.on_page_markdown(new, page)
    assert "<!--" not in shown and number.replace(" ", "\u00a0") in shown
    stale = new.replace(number, "0.1234 ± 0.0001", 1)
    with pytest.raises(PluginError):
        made.on_page_markdown(stale, page)
    assert made.renewed(stale) == new
    unclosed = f"{table.removesuffix('<!-- end -->')}A paragraph.\n\n{table}"
    assert "A paragraph." in made.renewed(unclosed)
    assert made.CELL.sub("x", "of -1.2e-05 ± 1e-06<!-- a; b; c; d -->") == "of x"
