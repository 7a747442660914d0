"""Experiments: every one has its parts, and its quick version runs, is tuned on validation, and resumes."""

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedsaddle as fs
from fedsaddle import config
from fedsaddle.errors import FedsaddleError
from fedsaddle.journal import Journal, finish
from fedsaddle.reproduce import _load, experiments, reproduce

ROOT = Path(__file__).parents[1] / "experiments"


def test_every_experiment_is_listed_with_its_parts() -> None:
    names = experiments()
    assert {"codasca/interval", "fedsgda/rates", "fedsgda/simulation"} <= set(names)
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


# ---- curves ------------------------------------------------------------------------------------------------------

TOY = """
[data]
name = "quadratic"
[problem]
name = "quadratic"
[algorithm]
name = "fedsgda"
lr = {lr}
[train]
rounds = 7
eval_every = 3
"""


def toy(folder: Path, lr: float = 0.01) -> config.Config:
    (folder / "toy.toml").write_text(TOY.format(lr=lr))
    return config.load(folder / "toy.toml")


def test_a_journal_keeps_the_curves_it_is_asked_for(tmp_path: Path) -> None:
    wanted = [toy(tmp_path)]
    (plain,) = finish(wanted, Journal(tmp_path / "plain.jsonl"))
    assert "curves" not in plain
    (entry,) = finish(wanted, Journal(tmp_path / "runs.jsonl", ["distance"]))
    setup = wanted[0].build()
    history = fs.train(*setup[:3], participation=setup.participation, progress=False, **setup.train).history
    assert entry["curves"].keys() == {"round", "distance"}
    assert entry["curves"]["round"] == history.index.tolist() == [0, 3, 6, 7]
    assert entry["curves"]["distance"] == pytest.approx(history["distance"].tolist(), rel=1e-5)
    assert Journal(tmp_path / "runs.jsonl", ["distance"])[wanted[0]] == entry  # from the file


def test_a_finished_run_without_the_curves_is_run_again(tmp_path: Path) -> None:
    wanted, path = [toy(tmp_path)], tmp_path / "runs.jsonl"
    finish(wanted, Journal(path))
    assert wanted[0] in Journal(path) and wanted[0] not in Journal(path, ["distance"])
    (entry,) = finish(wanted, Journal(path, ["distance"]))
    assert "distance" in entry["curves"]
    assert wanted[0] in Journal(path, ["distance"])


def test_a_run_that_diverged_has_no_curve_and_is_not_run_again(tmp_path: Path) -> None:
    wanted, path = [toy(tmp_path, lr=1e30)], tmp_path / "runs.jsonl"
    (entry,) = finish(wanted, Journal(path, ["distance"]))
    assert entry["metrics"] == {"diverged": 1.0} and "curves" not in entry
    assert wanted[0] in Journal(path, ["distance"])


def test_a_curve_of_no_metric(tmp_path: Path) -> None:
    with pytest.raises(FedsaddleError, match=r"curve 'auc': is no metric of this run; it has .*distance"):
        finish([toy(tmp_path)], Journal(tmp_path / "runs.jsonl", ["auc"]))


# ---- fedsgda -----------------------------------------------------------------------------------------------------


def experiment(name: str) -> ModuleType:
    return _load(ROOT / name)


def sim_rows(change: dict[tuple[str, int, int], list[float]]) -> list[dict[str, Any]]:
    """Rows of fedsgda/simulation in which every claim holds, but for what is changed; values are squared norms."""
    rows = []
    for (M, K), _ in experiment("fedsgda/simulation").TABLE_1.items():
        size = 100 / M + 10 / K
        for method, tail in (("MB", [0.5, 0.5]), ("STORM", [0.4, 0.1])):
            squares = change.get((method, M, K), [size, *(size * v for v in tail)])
            rounds = [i * 10 for i in range(41)]
            course = [squares[0] if r < 200 else squares[1] if r <= 300 else squares[2] for r in rounds]
            curves = {"round": rounds, "grad_phi": [math.sqrt(v) for v in course]}
            values = experiment("fedsgda/simulation").measure(curves)
            metrics = {k: {"mean": v, "std": 0.0, "values": [v]} for k, v in values.items()}
            rows.append({"method": method, "M": M, "K": K, "metrics": metrics})
    return rows


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        ("C-1.1", {("STORM", 10, 10): [50.0, 1.0, 0.9]}),
        ("C-1.2", {("STORM", 5, 20): [20.0, 15.0, 14.0]}),
        ("C-1.3, first half", {("MB", 5, 5): [22.0, 15.0, 10.0]}),
        ("C-1.3, second half", {("STORM", 20, 5): [7.0, 1.0, 1.05]}),
        ("C-1.4", {("STORM", 20, 10): [5.9, 2.0, 0.2]}),
    ],
)
def test_simulation_judges_every_claim_by_itself(
    claim: str, change: dict[tuple[str, int, int], list[float]]
) -> None:
    judge = experiment("fedsgda/simulation").judge
    assert all(v.holds for v in judge(sim_rows({})))
    assert [v.claim.startswith(claim + ":") for v in judge(sim_rows(change)) if not v.holds] == [True]


def test_rates_finds_the_slopes_it_is_given() -> None:
    rates = experiment("fedsgda/rates")
    rounds = list(range(0, 4001, 20))
    level, pulse = [1.0] * len(rounds), [1.0] + [0.0] * (len(rounds) - 1)
    assert rates.measure({"round": rounds, "grad_phi": level})["slope"] == pytest.approx(0.0, abs=1e-9)
    assert rates.measure({"round": rounds, "grad_phi": pulse})["slope"] == pytest.approx(-1.0)
    assert rates.fitted([(x, 7 * x**-1.5) for x in (1, 3, 20)]) == pytest.approx(-1.5)


def test_rates_averages_over_all_rounds() -> None:
    averages = experiment("fedsgda/rates").averages
    assert averages({"round": [0, 10, 30]}, [2.0, 0.0, 0.0]) == pytest.approx({10: 2.0, 30: 2 / 3})


def test_unknown_experiment() -> None:
    with pytest.raises(FedsaddleError, match=r"'codasca/intervals': unknown; known are .*codasca/interval"):
        reproduce("codasca/intervals")
