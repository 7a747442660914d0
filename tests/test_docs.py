"""Examples in docstrings and in the README run."""

import doctest
import importlib
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedsaddle

ROOT = Path(__file__).parents[1]
NOT_HERE = ("__main__",) if find_spec("triton") else ("__main__", "kernels")
NEED_FLOWER = () if find_spec("flwr") else ("fedsaddle.deploy.", "fedsaddle.engines.flower")
MODULES = [
    m.name
    for m in pkgutil.walk_packages(fedsaddle.__path__, "fedsaddle.")
    if not m.name.endswith(NOT_HERE) and not m.name.startswith(NEED_FLOWER)
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_docstring_examples() -> None:
    finder = doctest.DocTestFinder()
    examples = sum(len(t.examples) for m in MODULES for t in finder.find(importlib.import_module(m)))
    assert examples >= 10


def test_readme_examples_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_examples_in_docs_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
            exec(compile(block, page.name, "exec"), {})


def test_example_programs_run(capsys) -> None:
    programs = sorted((ROOT / "examples").glob("*.py"))
    assert programs
    for program in programs:
        exec(compile(program.read_text(), program.name, "exec"), {"__name__": "__main__"})
    assert "trained 0.8" in capsys.readouterr().out


def test_readme_is_short_and_names_every_algorithm() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for name in fedsaddle.algorithms.ALGORITHMS:
        assert f"`{name}`" in text
