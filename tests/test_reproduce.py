"""Experiments: every one has its parts, and its quick version runs, is tuned on validation, and resumes."""

import json
from pathlib import Path

import pytest

from fedsaddle.errors import FedsaddleError
from fedsaddle.reproduce import experiments, reproduce

ROOT = Path(__file__).parents[1] / "experiments"


def test_every_experiment_is_listed_with_its_parts() -> None:
    names = experiments()
    assert "codasca/interval" in names
    for name in names:
        for part in (
            "base.toml",
            "published.md",
            "obtained/table.md",
            "obtained/results.json",
            "obtained/figure.png",
        ):
            assert (ROOT / name / part).is_file(), f"{name} lacks {part}"


@pytest.mark.parametrize("name", experiments())
def test_obtained_numbers_are_of_the_full_experiment(name: str) -> None:
    results = json.loads((ROOT / name / "obtained/results.json").read_text())
    assert results["experiment"] == name and not results["quick"]
    assert len(results["seeds"]) >= 3
    assert results["verdicts"]


@pytest.mark.parametrize("name", experiments())
def test_quick_version_runs_and_resumes(name: str, tmp_path: Path) -> None:
    out = reproduce(name, quick=True, out=tmp_path / "quick")
    results = json.loads((out / "results.json").read_text())
    assert results["quick"] and results["rows"] and results["verdicts"]
    assert "Quick version" in (out / "table.md").read_text()
    assert (out / "figure.html").stat().st_size > 10_000
    journal = (out / "runs.jsonl").read_text()
    reproduce(name, quick=True, out=out)
    assert (out / "runs.jsonl").read_text() == journal  # nothing was run again


def test_unknown_experiment() -> None:
    with pytest.raises(FedsaddleError, match=r"'codasca/intervals': unknown; known are .*codasca/interval"):
        reproduce("codasca/intervals")
