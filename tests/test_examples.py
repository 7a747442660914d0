"""The example programs run and show what they say; the notebooks are the same programs; the TOML files are valid configs."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

from fedsaddle.config import dump, load, resolve

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = EXAMPLES / "notebooks"

Table = Callable[[str], list[float]]  # the numbers in the printed row of that name


def fraud(row: Table) -> None:
    alone, fedavg, codasca = row("North, alone"), row("FedAvg"), row("CODASCA, AUC")
    assert alone[0] < fedavg[0] < codasca[0]  # AUC
    assert fedavg[1] < codasca[1] and fedavg[1] < row("FeDXL, partial AUC")[1]  # up to 2 % false alarms


def xrays(row: Table) -> None:
    alone = row("hospital 4 alone")[0]
    assert alone < row("FedAvg, logistic loss")[0] - 0.05
    assert alone < row("CODASCA, AUC")[0] - 0.05


def fair(row: Table) -> None:
    plain, robust = row("FedAvg"), row("SCAFF-PD, chi2(0.05)")
    assert robust[4] > plain[4] + 0.02  # the worst group; each mean is followed by its deviation
    assert robust[0] > plain[0] - 0.04  # everybody


def adversarial(row: Table) -> None:
    plain, robust = row("FedAvg, clean images"), row("FedSGDA, min-max")
    assert robust[2] > plain[2] + 0.1  # under the worst patterns
    assert robust[0] > plain[0] - 0.02  # clean


def gan(row: Table) -> None:
    assert row("client 0 alone")[0] <= 2  # the clusters that it has
    assert row("Local SGDA")[0] < 4 <= min(row("SCAFFOLD")[0], row("FedSGDA")[0])


def similar(row: Table) -> None:
    assert row("not trained")[0] < row("client alone, classifier")[0] < row("contrastive")[0]


SHOWN = {
    "adversarial_training": adversarial,
    "bank_fraud": fraud,
    "chest_xrays": xrays,
    "fair_groups": fair,
    "gan": gan,
    "similar_items": similar,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_program_runs_and_shows_what_it_says(program: Path, tmp_path: Path) -> None:
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=one_thread, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

    def row(name: str) -> list[float]:
        (line,) = (
            line for line in done.stdout.splitlines() if re.match(rf"{re.escape(name)}  ", line + "  ")
        )
        return [float(number) for number in re.findall(r"\d+\.?\d*", line.removeprefix(name))]

    SHOWN[program.stem](row)
    assert not list(tmp_path.iterdir())


def test_notebooks_are_the_programs() -> None:
    """Made by `make notebooks`, without outputs."""
    assert [p.stem for p in sorted(NOTEBOOKS.glob("*.ipynb"))] == [p.stem for p in PROGRAMS]
    for program in PROGRAMS:
        notebook = nbformat.read(NOTEBOOKS / f"{program.stem}.ipynb", as_version=4)
        nbformat.validate(notebook)
        source = [(cell.cell_type, cell.source) for cell in jupytext.read(program).cells]
        assert [(cell.cell_type, cell.source) for cell in notebook.cells] == source, (
            f"{program.name}: make notebooks"
        )
        assert source[0][0] == "markdown" and source[0][1].startswith("# ")
        assert not any(
            cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code"
        )


def test_a_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of them; the others are the programs that the first test runs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOKS / "similar_items.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(out.text for cell in notebook.cells for out in cell.get("outputs", ()) if "text" in out)
    assert "nearest first" in printed


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_config_files_are_valid(example: Path) -> None:
    made = load(example)
    assert made.name == example.stem
    assert resolve(tomllib.loads(dump(made))) == made
