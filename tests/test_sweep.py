"""Sweeps: equal to single runs however they are grouped, resumed without loss, chosen on validation and on nothing else."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsaddle import alike, cli, journal, metrics, sweep_figures, sweep_report
from fedsaddle import config as configs
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.alike import Federations
from fedsaddle.config import dump, load, resolve
from fedsaddle.errors import FedsaddleError
from fedsaddle.finish import Processes, _compute, _next, _Share, _shares, finish
from fedsaddle.folder import held
from fedsaddle.journal import Journal
from fedsaddle.sweep import Result, Row, sweep
from fedsaddle.sweep_figures import overview, seeds, tradeoff
from fedsaddle.sweep_plan import Range, grid_points, grids, plan, random_points
from fedsaddle.toml import to_toml

EXAMPLE = Path(__file__).parents[1] / "examples" / "sweep.toml"
QUADRATIC: dict[str, Any] = {
    "data": {"name": "quadratic", "clients": 3, "dim_x": 3, "dim_y": 2, "samples": 4, "noise": 0.1},
    "problem": {"name": "quadratic"},
    "algorithm": {"name": "codasca", "local_steps": 2},
    "train": {"rounds": 3, "batch_size": 2, "dtype": "float64"},
    "sweep": {
        "metric": "distance",
        "minimise": True,
        "seeds": [0, 1],
        "points": {"algorithm.lr": [0.1, 0.05]},
    },
}
CANCER: dict[str, Any] = {
    "data": {"name": "breast_cancer", "test": 0.25, "valid": 0.25},
    "partition": {"name": "dirichlet", "clients": 3, "min_per_class": 6},
    "model": {"name": "linear"},
    "problem": {"name": "auc"},
    "algorithm": {"name": "codasca", "local_steps": 2},
    "train": {"rounds": 2, "batch_size": 8, "dtype": "float64"},
    "sweep": {"metric": "valid_auc", "seeds": [0, 1], "points": {"algorithm.lr": [0.03, 0.01]}},
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(tree: dict[str, Any], points: dict[str, Any] | None = None, **options: Any) -> str:
    """A sweep's file, with keys of [sweep] changed; None removes one."""
    tree = copy.deepcopy(tree)
    tree["sweep"] |= options | ({} if points is None else {"points": points})
    tree["sweep"] = {k: v for k, v in tree["sweep"].items() if v is not None}
    Path("tiny.toml").write_text(to_toml(tree))
    return "tiny.toml"


def measured(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if k != "seconds"}


def lines(folder: str = "out") -> list[str]:
    return (Path(folder) / "runs.jsonl").read_text().splitlines(keepends=True)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each call of run_all got."""
    seen: list[int] = []
    real = alike.run_all

    def counting(runs: Any, *tick: Any) -> None:
        seen.append(len(runs))
        real(runs, *tick)

    monkeypatch.setattr(alike, "run_all", counting)
    return seen


# ------------------------------------------------------------------------------------ methods and models as points


def test_points_may_be_algorithms_and_models() -> None:
    """Keys of the file that another algorithm or model has not are left out, as with --set."""
    tree = copy.deepcopy(CANCER)
    tree["algorithm"] |= {"weights": "samples", "server_lr": 0.9}
    tree["model"]["zero"], tree["problem"]["p"] = True, "pooled"
    names = ["codasca", "fedsgda", "local_sgda", "scaffold"]
    points = {"algorithm.name": names, "model.name": ["linear", "mlp"]}
    with pytest.warns(UserWarning, match="is left out at points of") as said:
        made = plan(save(tree, points))
    assert [str(w.message) for w in said] == [
        "model.zero of the file is left out at points of mlp, without such a key",
        "algorithm.weights of the file is left out at points of fedsgda, without such a key",
        "algorithm.server_lr of the file is left out at points of fedsgda, without such a key",
    ]
    by_name = {c.tree["algorithm"]["name"]: c.tree["algorithm"] for (c, _) in made.runs}
    assert by_name["scaffold"]["weights"] == "samples" and "weights" not in by_name["fedsgda"]
    with pytest.warns(UserWarning, match="is left out"):
        done = sweep(save(tree, points, seeds=[0]), out="out")
    assert [row.point["algorithm.name"] for row in done.rows] == [name for name in names for _ in range(2)]
    assert all(done.score(row) is not None for row in done.rows)
    points["algorithm.weights"] = ["samples"]
    with pytest.raises(
        FedsaddleError, match=r"algorithm.weights: unknown key; fedsgda takes .* \(at the point"
    ):
        plan(save(tree, points))


# ----------------------------------------------------------------------------------- the same as single runs


@pytest.mark.parametrize(
    ("together", "expected"), [(64, [4, 4]), (3, [3, 1, 3, 1]), (1, [1] * 8)], ids=["64", "3", "1"]
)
@pytest.mark.parametrize("base", [QUADRATIC, CANCER], ids=["quadratic", "cancer"])
def test_results_are_those_of_single_runs(
    base: dict[str, Any], together: int, expected: list[int], groups: list[int]
) -> None:
    points = {"algorithm.lr": [0.03, 0.01], "algorithm.local_steps": [2, 3]}
    file = save(base, points, together=together)
    result = sweep(file, out="out")
    assert groups == expected
    assert [row.point for row in result.rows] == grid_points(points)
    for row in result.rows:
        for seed, entry in zip((0, 1), row.runs, strict=True):
            changes = [f"{k}={v}" for k, v in {**row.point, "train.seed": seed}.items()]
            with pytest.warns(UserWarning, match=r"\[sweep\] is ignored"):
                single = load(file, changes)
            assert entry["config"] == dump(single)
            assert measured(entry["metrics"]) == pytest.approx(measured(single.run().metrics), abs=1e-10)


def test_what_does_not_fit_into_memory_is_halved(monkeypatch: pytest.MonkeyPatch, groups: list[int]) -> None:
    enough = sweep(save(QUADRATIC), out="enough")
    counted, sizes = alike.run_all, list(groups)

    def small(runs: Sequence[Any], *tick: Any) -> None:
        counted(runs, *tick)
        if len(runs) > room:
            raise FedsaddleError("work failed") from torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(alike, "run_all", small)
    room = 1
    groups.clear()
    little = sweep(save(QUADRATIC), out="little")
    assert (sizes, groups) == ([4], [4, 2, 1, 1, 1, 1])
    for one, other in zip(little.rows, enough.rows, strict=True):
        for a, b in zip(one.runs, other.runs, strict=True):
            assert measured(a["metrics"]) == pytest.approx(measured(b["metrics"]), abs=1e-10)
    room = 0  # not even one
    with pytest.raises(FedsaddleError, match="work failed"):
        sweep(save(QUADRATIC), out="none")


@pytest.mark.parametrize(("guard", "each"), [(0, 2), (1, 1)])
def test_no_more_runs_exist_than_are_computed_together(
    guard: int, each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[Any]] = []
    real = alike.run_all

    def alone(runs: Sequence[Any], *tick: Any) -> None:
        assert len(runs) == each and [run() for run in seen] == [None] * len(seen)
        seen.extend(map(weakref.ref, runs))
        real(runs, *tick)

    monkeypatch.setattr(alike, "run_all", alone)
    todo = plan(save(QUADRATIC | {"train": QUADRATIC["train"] | {"guard": guard}}))
    wanted = [config for runs in todo.runs for config in runs]
    finish(wanted, Journal(tmp_path / "runs.jsonl"), together=2)
    assert len(seen) == len(wanted) == 4


def test_what_cannot_be_stacked_runs_one_by_one(groups: list[int]) -> None:
    unsure = QUADRATIC | {"participation": {"name": "full", "failure": 0.2}}
    sweep(save(unsure), out="out")
    assert groups == [1, 1, 1, 1] and len(lines()) == 4


def test_growth_decides_shapes_and_is_not_stacked(groups: list[int]) -> None:
    stages = QUADRATIC | {"algorithm": {"name": "codasca", "local_steps": 2, "stage_rounds": 1, "lr": 0.05}}
    points = {"algorithm.stage_growth": [1.0, 2.0], "algorithm.lr_decay": [0.5, 0.25]}
    result = sweep(save(stages, points), out="out")
    assert groups == [4, 4]
    again = resolve(tomllib.loads(result.rows[3].runs[1]["config"])).run().metrics
    assert measured(result.rows[3].runs[1]["metrics"]) == pytest.approx(measured(again), abs=1e-12)


def test_a_federation_is_loaded_once(monkeypatch: pytest.MonkeyPatch, groups: list[int]) -> None:
    loaded = []
    real = configs._loaded
    monkeypatch.setattr(configs, "_loaded", lambda tree: loaded.append(tree["partition"]) or real(tree))
    sweep(save(CANCER, {"algorithm.lr": [0.03, 0.01], "partition.alpha": [0.5, 5.0]}), out="out")
    assert [p["alpha"] for p in loaded] == [0.5, 5.0]
    assert groups == [4, 4]


# ------------------------------------------------------------------------------------------------- resuming


def test_processes_give_the_same_results_and_go_on_where_they_stopped() -> None:
    file = save(CANCER)
    alone = sweep(file, out="alone")
    journal = Path("beside/runs.jsonl")
    sweep(file, out="beside", jobs=2)
    lines = journal.read_text().splitlines()
    assert len(lines) == 4
    journal.write_text(lines[0] + "\n")
    beside = sweep(file, out="beside", jobs=2)
    assert len(journal.read_text().splitlines()) == 4
    for a, b in zip(alone.rows, beside.rows, strict=True):
        for x, y in zip(a.runs, b.runs, strict=True):
            assert measured(x["metrics"]) == pytest.approx(measured(y["metrics"]), abs=1e-10)


@pytest.mark.parametrize(
    ("points", "seeds", "jobs", "together", "sizes"),
    [
        (16, 3, 2, 64, [24, 24]),  # one share a process, 8 of each seed
        (4, 3, 2, 64, [6, 6]),
        (20, 3, 2, 16, [15, 15, 15, 15]),
        (1, 8, 8, 64, [1] * 8),  # rather than idle processes
        (2, 5, 8, 64, [2] * 5),
        (9, 3, 8, 64, [4] * 6 + [3]),
        (3, 4, 2, 2, [2] * 6),  # fewer at a time than seeds
    ],
)
def test_shares_of_processes(points: int, seeds: int, jobs: int, together: int, sizes: list[int]) -> None:
    runs = [
        configs.Config({"train": {"seed": s, "device": "cpu"}, "point": p})
        for s in range(seeds)
        for p in range(points)
    ]
    shares = _shares([runs], together, jobs)
    assert [len(share) for share in shares] == sizes
    taken = [(c.tree["point"], c.tree["train"]["seed"]) for share in shares for c in share]
    assert sorted(taken) == [(p, s) for p in range(points) for s in range(seeds)]
    if sizes[0] % seeds == 0:
        assert all(
            len(set(Counter(c.tree["train"]["seed"] for c in share).values())) == 1 for share in shares
        )


def test_processes_stay_with_what_they_have_compiled() -> None:
    left = [_Share([], data, steps) for data in "abc" for steps in ("FedAvg", "CODASCA")]
    at: list[_Share | None] = [None, None]
    for process, expected in (
        (0, "FedAvg"),
        (1, "CODASCA"),
        (1, "CODASCA"),
        (1, "CODASCA"),
        (1, "FedAvg"),
        (0, "FedAvg"),
    ):
        at[process] = share = _next(left, at[process], at)
        left.remove(share)
        assert share.steps == expected
    assert not left


def test_steps_that_are_compiled_serve_other_data() -> None:
    def share(compile: bool, **data: Any) -> _Share:
        tree = {k: v for k, v in CANCER.items() if k != "sweep"}
        return _Share.of([resolve(tree | {"data": data, "train": tree["train"] | {"compile": compile}})])

    one, other = (share(True, name=name, test=0.25) for name in ("breast_cancer", "synthetic_binary"))
    assert one.steps == other.steps is not None and one.data != other.data
    assert share(False, name="breast_cancer").steps is None


def test_processes_that_compile_nothing_stay_with_their_data() -> None:
    left = [_Share([], data, None) for data in "abba"]
    at: list[_Share | None] = [None, None]
    for process, expected in ((0, "a"), (1, "b"), (0, "a"), (1, "b")):
        at[process] = share = _next(left, at[process], at)
        left.remove(share)
        assert share.data == expected


def test_an_error_in_a_process_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    file = save(QUADRATIC, points={"algorithm.lr": [0.1, 0.05]})
    assert cli._main(["sweep", file, "--jobs", "2", "--set", "train.device=cuda:7"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_resumes_after_lines_are_lost(groups: list[int]) -> None:
    file = save(QUADRATIC)
    first = sweep(file, out="out")
    whole = lines()
    sweep(file, out="out")
    assert groups == [4] and lines() == whole  # nothing was run again
    Path("out/runs.jsonl").write_text("".join(whole[:2]) + whole[2][:50])  # killed while it wrote the third
    second = sweep(file, out="out")
    assert groups == [4, 2] and lines()[:2] == whole[:2]
    for a, b in zip(first.rows, second.rows, strict=True):
        assert a.metrics["distance"]["values"] == pytest.approx(b.metrics["distance"]["values"], abs=1e-12)
    assert all(json.loads(line)["metrics"] for line in lines())


def test_resumes_after_an_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    file = save(QUADRATIC, together=3)
    real, calls = alike.run_all, []

    def interrupted(runs: Any, *tick: Any) -> None:
        calls.append(len(runs))
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(runs, *tick)

    monkeypatch.setattr(alike, "run_all", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main(["sweep", file, "--out", "out"])
    assert end.value.code == 130
    assert "interrupted; finished runs are in out/runs.jsonl" in capsys.readouterr().err
    assert len(lines()) == 3 and not Path("out/table.md").exists()
    sweep(file, out="out")
    assert calls == [3, 1, 1] and len(lines()) == 4


def test_more_points_and_seeds_compute_only_the_new_runs(groups: list[int]) -> None:
    sweep(save(QUADRATIC), out="out")
    sweep(save(QUADRATIC, {"algorithm.lr": [0.1, 0.05, 0.02]}, seeds=[0, 1, 2]), out="out")
    assert groups == [4, 5] and len(lines()) == 9


def test_a_journal_that_is_none_is_refused() -> None:
    Path("out").mkdir()
    Path("out/runs.jsonl").write_text('{"config": "x", "metrics": {}}\n[]\n')
    with pytest.raises(FedsaddleError, match=r"runs\.jsonl, line 2: is no finished run"):
        Journal(Path("out/runs.jsonl"))


# --------------------------------------------------------------------------------------------------- choice


def fabricate(file: str, metrics: Callable[[dict[str, Any], int], dict[str, Any]]) -> None:
    """Write runs.jsonl with made-up metrics of every run."""
    todo = plan(file)
    Path("out").mkdir()
    with open("out/runs.jsonl", "w") as journal_file:
        for point, runs in zip(todo.points, todo.runs, strict=True):
            for c in runs:
                made = metrics(point, c.tree["train"]["seed"])
                entry = {"config": dump(c), "metrics": made, "clients_evaluated_on": "test"}
                journal_file.write(json.dumps(entry) + "\n")


def test_the_choice_is_on_validation_and_not_on_test() -> None:
    file = save(CANCER, {"algorithm.lr": [0.1, 0.2, 0.3]})
    valid = {0.1: 0.7, 0.2: 0.9, 0.3: 0.8}  # test says the opposite
    fabricate(
        file,
        lambda p, seed: {
            "valid_auc": valid[p["algorithm.lr"]] + seed / 100,
            "auc": 1 - valid[p["algorithm.lr"]],
        },
    )
    result = sweep(file, out="out")
    assert [r.point["algorithm.lr"] for r in result.ranked] == [0.2, 0.3, 0.1]
    assert result.best is result.ranked[0]
    written = json.loads(Path("out/results.json").read_text())
    assert written["chosen"]["point"] == {"algorithm.lr": 0.2}
    assert written["chosen"]["valid_auc"]["mean"] == pytest.approx(0.905)
    assert written["chosen"]["test"]["auc"]["mean"] == pytest.approx(0.1)
    assert not any("auc" in row for row in written["rows"])  # no test results of the others
    assert "0.1000 ± 0.0000" in result.verdict() and "0.3000" not in Path("out/table.md").read_text()

    on_test = save(CANCER, {"algorithm.lr": [0.1, 0.2, 0.3]}, metric="auc", allow_test=True)
    with pytest.warns(UserWarning, match="chosen on auc, which is not validation data"):
        result = sweep(on_test, out="out")
    assert result.best is not None and result.best.point == {"algorithm.lr": 0.1}
    assert "optimistic" in Path("out/table.md").read_text()


def scored(file: str, scores: dict[Any, Any], positive: Any, key: str = "algorithm.lr") -> None:
    """Write runs.jsonl and the scores of two seeds at each point."""

    def auc(value: Any, seed: int) -> float:
        return metrics.auc(torch.from_numpy(scores[value][seed]), torch.from_numpy(positive))

    fabricate(file, lambda p, seed: {"valid_auc": auc(p[key], seed), "auc": 0.5})
    entries = [json.loads(line) for line in Path("out/runs.jsonl").read_text().splitlines()]
    Path("out/scores").mkdir()
    for entry, found in zip(entries, [row for value in scores for row in scores[value]], strict=True):
        np.save(journal._scores_file(Path("out"), entry, "valid"), np.stack([found, positive]))


def test_points_that_validation_samples_do_not_tell_from_the_chosen_one_are_marked() -> None:
    file = save(CANCER, {"algorithm.lr": [0.1, 0.2, 0.3, 0.4]})
    rng = np.random.default_rng(0)
    positive = np.arange(400) < 100
    good = rng.standard_normal((2, 400)) + positive  # of two seeds
    scores = {
        0.1: good,  # the best
        0.2: good + 0.01 * rng.standard_normal((2, 400)),  # hardly another
        0.3: good + 0.6 * rng.standard_normal((2, 400)),  # worse on the same samples, within its interval
        0.4: rng.standard_normal((2, 400)),
    }
    scored(file, scores, positive)
    result = sweep(file, out="out")
    by_lr = {row.point["algorithm.lr"]: row for row in result.rows}
    best = 0.1 if by_lr[0.1] is result.best else 0.2
    tensors, both = {k: torch.from_numpy(v) for k, v in scores.items()}, torch.from_numpy(positive)
    assert result.best is by_lr[best] and result.level == [by_lr[{0.1: 0.2, 0.2: 0.1}[best]]]
    assert result.interval == metrics.auc_interval(tensors[best], both)
    assert result.interval is not None and result.interval.low < by_lr[0.3].metrics["valid_auc"]["mean"]
    one_sided = metrics.auc_difference(tensors[best], tensors[0.3], both, 2 * 0.05 / 3)
    assert one_sided is not None and one_sided.low > 0 and result.compared[id(by_lr[0.3])] == one_sided
    assert [row[0] for row in result.table()[1:]] == ["*", "~", "", ""]
    assert "Level with it (~) on the same samples: 1 of 3 other points." in result.verdict()
    assert "Not compared" not in result.verdict()
    assert "Level with it (\\~)" in Path("out/table.md").read_text()
    assert json.loads(Path("out/results.json").read_text())["chosen"]["level"] == 1
    damaged = next(Path("out/scores").iterdir())
    damaged.write_bytes(b"")  # a disk that was full
    assert len(sweep(file, out="out").compared) < 3
    shutil.rmtree("out/scores")  # as an older fedsaddle left it
    older = sweep(file, out="out")
    assert older.interval is None and older.level == [] and not older.sure


def test_with_95_percent_the_best_point_is_chosen_or_marked() -> None:
    """Twelve points, of which all are equally good, or one is better by little: Hsu's comparisons with the best."""
    rng = np.random.default_rng(0)
    positive = torch.arange(300) < 100
    hits = 0
    for _ in range(300):
        common = torch.from_numpy(rng.standard_normal(300))
        points = [(0.7 * common + torch.from_numpy(rng.standard_normal(300)) + positive) for _ in range(12)]
        points[0] = points[0] + 0.05 * positive  # the truly best
        aucs = [metrics.auc(p, positive) for p in points]
        best = int(np.argmax(aucs))
        behind = metrics.auc_difference(points[best], points[0], positive, 2 * 0.05 / 11)
        hits += best == 0 or (behind is not None and behind.low <= 0)
    assert hits >= 0.95 * 300 - 8


def test_points_on_other_validation_samples_are_not_compared() -> None:
    """Also where they have the same labels, in the same order."""
    file = save(CANCER, {"data.seed": [0, 1]})
    positive = np.arange(400) < 100
    good = np.random.default_rng(0).standard_normal((2, 400)) + positive
    scored(file, {0: good, 1: good}, positive, key="data.seed")
    result = sweep(file, out="out")
    assert result.interval is not None and result.compared == {} and result.level == []
    assert "Level with it" not in result.verdict()


def test_points_that_separate_the_classes_are_level() -> None:
    file = save(CANCER, {"algorithm.lr": [0.1, 0.2]})
    positive = np.arange(40) < 10
    scored(file, {lr: np.stack([lr * positive, positive]) for lr in (0.1, 0.2)}, positive)
    result = sweep(file, out="out")
    assert result.interval is None and len(result.level) == 1
    assert "Level with it (~) on the same samples: 1 of 1 other points." in result.verdict()


def test_scores_of_validation_and_test_samples_are_kept() -> None:
    file = save(CANCER, {"algorithm.lr": [0.01]}, seeds=[0, 1])
    result = sweep(file, out="out")
    trees = [c.tree for c in plan(file).runs[0]]
    beside = Path("beside/runs.jsonl")
    _compute(trees, 64, beside, (), True, None, None)  # as in a process of its own
    for c in plan(file).runs[0]:
        entry = Journal(beside)[c]
        assert all(journal.kept_scores(beside.parent, entry, part) is not None for part in ("valid", "test"))
    tests = []
    for c, entry in zip(plan(file).runs[0], result.rows[0].runs, strict=True):
        run = c.run()
        for part, federation in (("valid", run.federation.valid), ("test", run.federation.test)):
            kept = journal.kept_scores(Path("out"), entry, part)
            assert federation is not None and kept is not None
            with torch.no_grad():
                own = run.model(federation.data["x"].double()).squeeze(-1)
            assert torch.allclose(kept[0], own, atol=1e-9) and torch.equal(kept[1], federation.data["y"] == 1)
            assert metrics.auc(*kept) == pytest.approx(
                entry["metrics"]["valid_auc" if part == "valid" else "auc"]
            )
        tests.append(kept[0])
    interval = metrics.auc_interval(torch.stack(tests), kept[1])
    assert interval is not None
    assert f"(95 % over test samples: {interval.low:.3f} to {interval.high:.3f})" in result.verdict()


def test_the_chosen_run_can_be_trained_on_the_validation_samples_too() -> None:
    result = sweep(save(CANCER), out="out")
    assert "with --set data.valid=0 on them too" in result.verdict()
    without, whole = (
        load("out/best.toml").build().federation,
        load("out/best.toml", ["data.valid=0"]).build().federation,
    )
    assert without.valid is not None and whole.valid is None
    assert whole.n_samples == without.n_samples + without.valid.n_samples


def test_an_objective_that_grew_is_said() -> None:
    tree = copy.deepcopy(CANCER) | {
        "problem": {"name": "erm"},
        "algorithm": {"name": "fedavg", "local_steps": 2},
    }
    result = sweep(save(tree, {"algorithm.lr": [1e4, 0.01]}, metric="valid_accuracy"), out="out")
    wild, tame = result.rows
    assert (wild.diverged, wild.grown, wild.trouble) == (0, 2, "objective grew 2/2")
    assert (tame.grown, tame.trouble) == (0, "")
    assert "objective grew 2/2" in Path("out/table.md").read_text()
    alone = sweep(save(tree, {"algorithm.lr": [1e4]}, metric="valid_accuracy"), out="out")
    assert "In 2 of 2 runs of the chosen point the objective ended above where it began" in alone.verdict()
    wilder = sweep(save(tree, {"algorithm.lr": [1e4, 1e3]}, metric="valid_accuracy"), out="out")
    assert "try smaller steps" in wilder.verdict() and "upwards" not in wilder.verdict()


def test_ties_go_to_the_first_and_the_mean_decides() -> None:
    file = save(CANCER, {"algorithm.lr": [0.1, 0.2, 0.3]})
    values = {0.1: (0.99, 0.5), 0.2: (0.75, 0.75), 0.3: (0.8, 0.7)}
    fabricate(file, lambda p, seed: {"valid_auc": values[p["algorithm.lr"]][seed]})
    best = sweep(file, out="out").best
    assert best is not None and best.point == {"algorithm.lr": 0.2}


def test_minimise() -> None:
    result = sweep(save(QUADRATIC, {"algorithm.lr": [0.001, 0.05]}), out="out")
    assert result.best is not None and result.best.point == {"algorithm.lr": 0.05}
    opposite = sweep(save(QUADRATIC, {"algorithm.lr": [0.001, 0.05]}, minimise=False), out="out").best
    assert opposite is not None and opposite.point == {"algorithm.lr": 0.001}


def test_a_point_with_one_diverged_run_is_never_chosen() -> None:
    file = save(CANCER, {"algorithm.lr": [0.1, 0.2, 0.3]})

    def metrics(point: dict[str, Any], seed: int) -> dict[str, Any]:
        if point["algorithm.lr"] == 0.1 and seed == 1:
            return {"diverged": 1.0}
        if point["algorithm.lr"] == 0.2:
            return {"valid_auc": None, "auc": 0.9}  # undefined
        return {"valid_auc": 0.99 if point["algorithm.lr"] == 0.1 else 0.6, "auc": 0.5}

    fabricate(file, metrics)
    result = sweep(file, out="out")
    assert result.best is not None and result.best.point == {"algorithm.lr": 0.3}
    assert [row[1:] for row in result.table()[1:]] == [
        ["0.3", "0.6000 ± 0.0000", "-"],
        ["0.1", "-", "diverged 1/2"],
        ["0.2", "-", "-"],
    ]


def test_diverged_runs_are_recorded_and_not_run_again(groups: list[int]) -> None:
    points = {"algorithm.lr": [1e200, 0.05]}
    result = sweep(save(QUADRATIC, points), out="out")
    assert [row.diverged for row in result.rows] == [2, 0]
    assert result.best is result.rows[1]
    assert sum(json.loads(line)["metrics"] == {"diverged": 1.0} for line in lines()) == 2
    again = sweep(save(QUADRATIC, points), out="out")
    assert groups == [4] and [row.diverged for row in again.rows] == [2, 0]
    with pytest.raises(
        FedsaddleError, match="nothing to choose, a run of every point diverged; see out/table"
    ):
        sweep(save(QUADRATIC, {"algorithm.lr": [1e200]}), out="out")
    assert "2/2" in Path("out/table.md").read_text()
    assert not Path("out/best.toml").exists()  # that of the sweep before holds no longer


# --------------------------------------------------------------------------------------------------- points


def test_random_search_is_a_function_of_its_seed() -> None:
    points = {"algorithm.lr": {"log_uniform": [1e-3, 1.0]}, "algorithm.local_steps": {"choice": [2, 4]},
              "algorithm.server_lr": {"uniform": [0.5, 1]}}  # fmt: skip
    drawn = plan(save(QUADRATIC, points, random=6)).points
    assert drawn == plan(save(QUADRATIC, points, random=6)).points and len(drawn) == 6
    assert plan(save(QUADRATIC, points, random=9)).points[:6] == drawn  # so that more points resume
    assert plan(save(QUADRATIC, points, random=6, seed=1)).points != drawn
    for p in drawn:
        assert 1e-3 <= p["algorithm.lr"] <= 1 and 0.5 <= p["algorithm.server_lr"] <= 1
        assert p["algorithm.local_steps"] in (2, 4)


def test_log_uniform_is_even_in_the_logarithm() -> None:
    values = [p["a"] for p in random_points({"a": Range(1e-4, 1.0, True)}, 400, 0)]
    assert 0.4 < sum(v < 1e-2 for v in values) / len(values) < 0.6
    values = [p["a"] for p in random_points({"a": Range(0.0, 1.0, False)}, 400, 0)]
    assert 0.4 < sum(v < 0.5 for v in values) / len(values) < 0.6


def test_random_points_of_lists_are_distinct_and_no_more_than_all() -> None:
    space: dict[str, Any] = {"a": [1, 2, 3], "b": [True, False]}
    assert sorted(map(str, random_points(space, 100, 0))) == sorted(map(str, grid_points(space)))
    assert len({str(p) for p in random_points(space, 5, 0)}) == 5


def test_flat_and_nested_keys_are_the_same_and_any_key_may_vary() -> None:
    flat = {"algorithm.lr": [1, 0.1], "train.batch_size": [2, "none"], "data.heterogeneity": [0.5]}
    nested = {
        "algorithm": {"lr": [1, 0.1]},
        "train": {"batch_size": [2, "none"]},
        "data": {"heterogeneity": [0.5]},
    }
    a, b = plan(save(QUADRATIC, flat)), plan(save(QUADRATIC, nested))
    assert a == b and len(a.points) == 4 and a.keys == ["algorithm.lr", "train.batch_size"]
    assert [type(p["algorithm.lr"]) for p in a.points] == [float] * 4  # [1, 0.1] are real numbers
    tree = CANCER | {"transform": [{"name": "flip_labels", "share": 0.1}]}
    shares = plan(save(tree, {"transform.0.share": [0.1, 0.2], "model.name": ["linear", "mlp"]}))
    assert [runs[0].tree["transform"][0]["share"] for runs in shares.runs] == [0.1, 0.1, 0.2, 0.2]
    assert tree["transform"][0]["share"] == 0.1


def test_set_wins_over_the_file() -> None:
    todo = plan(save(QUADRATIC), ["train.rounds=7", "sweep.seeds=[5]", "sweep.points.algorithm.lr=[0.3]"])
    ((only,),) = todo.runs
    assert todo.points == [{"algorithm.lr": 0.3}]
    assert (only.tree["train"]["rounds"], only.tree["train"]["seed"]) == (7, 5)


@pytest.mark.parametrize("name", grids())
def test_every_named_grid_can_run(name: str) -> None:
    grid = grids()[name]
    for algorithm in grid.algorithms:
        kind = ALGORITHMS[algorithm]
        tree = CANCER | {"algorithm": {"name": algorithm}}
        if "stage_rounds" in {f.name for f in dataclasses.fields(kind)}:
            tree["algorithm"] |= {"stage_rounds": 2}
        if kind.pairwise:
            tree["problem"] = {"name": "pairwise_auc", "loss": "sigmoid"}
        elif algorithm.endswith(("fedavg", "fedprox")):
            tree["problem"] = {"name": "erm"}
        if algorithm.startswith(("cycp", "amplified")):
            tree["participation"] = {"name": "cyclic", "groups": 3}
        todo = plan(save(tree, {}, grid=name, random=12))
        full = grid_points(grid.points)
        assert len(todo.points) == min(12, len(full)) and all(p in full for p in todo.points)
    sweep("tiny.toml", ["sweep.random=2"], out="out")


# --------------------------------------------------------------------------------------------- command line


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    with pytest.raises(SystemExit) as end:
        cli.main(["sweep", str(EXAMPLE), "--set", "train.rounds=2", "--set", "sweep.seeds=[0, 1]"])
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    table = out.split("\n\n")[0].splitlines()
    assert table[0].split() == ["algorithm.lr", "algorithm.local_steps", "valid_auc", "trouble"]
    assert len(table) == 13 and re.fullmatch(r"\*~* *", "".join(line[0] for line in table[1:]))
    assert "On test data, of the chosen point only: auc " in out
    folder = Path("runs/sweep/sweep")
    assert out.endswith(f"{folder}: runs.jsonl, table.md, results.json, best.toml, sweep.html\n")
    means = [row["valid_auc"]["mean"] for row in json.loads((folder / "results.json").read_text())["rows"]]
    assert means == sorted(means, reverse=True)
    best = load(folder / "best.toml")  # reproduces the chosen point
    assert "# train.seed = [0, 1]" in (folder / "best.toml").read_text()
    found = json.loads((folder / "results.json").read_text())["chosen"]["valid_auc"]["values"][0]
    assert best.run().metrics["valid_auc"] == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("together", [64, 1])
def test_progress_is_told_round_by_round(jobs: int, together: int, tmp_path: Path) -> None:
    points = {"algorithm.lr": [0.1, 0.05, 1e200]}  # the last diverges
    todo = plan(save(QUADRATIC | {"train": QUADRATIC["train"] | {"rounds": 5, "eval_every": 2}}, points))
    wanted = [config for runs in todo.runs for config in runs]
    told: list[float] = []
    finish(wanted, Journal(tmp_path / "runs.jsonl"), together, lambda n, text: told.append(n), jobs=jobs)
    assert sum(told) == pytest.approx(6) and len(wanted) == 6
    parts = [n for n in told if n]
    if jobs == 1:  # others are looked at every half second
        assert parts[:3] == pytest.approx([min(6, together) * rounds / 5 for rounds in (2, 2, 1)])
    again: list[float] = []
    finish(wanted, Journal(tmp_path / "runs.jsonl"), tick=lambda n, text: again.append(n), jobs=jobs)
    assert again == [6]


def test_a_journal_waits_for_a_line_that_another_process_writes(tmp_path: Path) -> None:
    path, line, half = tmp_path / "runs.jsonl", b'{"config": "a"}\n', threading.Event()

    def write() -> None:
        with held(path) as file:
            file.write(line[:7])
            file.flush()
            half.set()
            time.sleep(0.3)
            file.write(line[7:])

    writer = threading.Thread(target=write)
    writer.start()
    half.wait()
    opened = Journal(path)
    opened.add([{"config": "b", "metrics": {}}])
    writer.join()
    assert list(Journal(path)._done) == ["a", "b"] and list(opened._done) == ["a", "b"]


def test_a_line_that_another_process_left_half_written_is_dropped_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    opened = Journal(path)
    path.write_bytes(b'{"config": "a"}\n{"conf')  # of one that was killed since
    opened.add([{"config": "b", "metrics": {}}])
    assert list(Journal(path)._done) == ["a", "b"]


def test_a_journal_waits_for_the_lock_before_it_looks_for_half_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was empty when it was opened may have half a line when this process has its turn."""
    import fcntl

    path, real = tmp_path / "runs.jsonl", fcntl.flock

    def after_another(file: Any, operation: int) -> None:
        real(file, operation)
        path.write_bytes(b'{"conf')  # by one that was killed while it wrote

    monkeypatch.setattr(fcntl, "flock", after_another)
    Journal(path).add([{"config": "b", "metrics": {}}])
    monkeypatch.undo()
    assert list(Journal(path)._done) == ["b"]


def test_a_journal_reads_what_others_have_added(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    one, other = Journal(path), Journal(path)
    for i in range(2):
        other.add([{"config": f"b{i}", "metrics": {}}])
        one.read()
        one.add([{"config": f"a{i}", "metrics": {}}])
    assert list(one._done) == ["b0", "a0", "b1", "a1"] == list(Journal(path)._done)
    path.write_bytes(path.read_bytes() + b"[]\n")
    with pytest.raises(FedsaddleError, match=r"runs\.jsonl, line 5: is no finished run"):
        one.read()


@pytest.mark.parametrize("jobs", [1, 2])
def test_finished_runs_are_kept_when_a_later_one_of_their_share_fails(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seeded_model.py").write_text(
        "import torch\n"
        "def make(sample_shape):\n"
        "    if torch.initial_seed() == 3:\n"
        "        raise RuntimeError('no such model')\n"
        "    return torch.nn.Linear(30, 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tree = CANCER | {"model": {"module": "seeded_model:make"}, "train": CANCER["train"] | {"guard": 1}}
    todo = plan(save(tree, {"algorithm.lr": [0.01]}, seeds=list(range(8))))
    with pytest.raises(FedsaddleError, match="no such model"):
        finish(todo.runs[0], opened := Journal(tmp_path / "runs.jsonl"), jobs=jobs)
    for kept in (opened, Journal(tmp_path / "runs.jsonl")):
        seeds = {c.tree["train"]["seed"] for c in todo.runs[0] if c in kept}
        assert seeds == ({0, 1, 2} if jobs == 1 else {0, 1, 2, 4, 5, 6, 7})


def test_what_other_processes_finish_is_kept_when_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_model.py").write_text(
        "import time\n"
        "from torch import nn\n"
        "def make(sample_shape, breaks=False):\n"
        "    if breaks:\n"
        "        raise RuntimeError('no such model')\n"
        "    time.sleep(2)\n"
        "    return nn.Linear(30, 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    todo = plan(
        save(CANCER | {"model": {"module": "own_model:make"}}, {"model.breaks": [True, False]}, seeds=[0])
    )
    wanted = [config for runs in todo.runs for config in runs]
    with pytest.raises(FedsaddleError, match="no such model"):
        finish(wanted, Journal(tmp_path / "runs.jsonl"), together=1, jobs=2)
    kept = Journal(tmp_path / "runs.jsonl")
    assert [config in kept for config in wanted] == [False, True]


OWN_PROCESS = """
import os, pathlib, signal, time, torch
def make(sample_shape):
    seed = torch.initial_seed()
    pathlib.Path("pid-%d" % seed).write_text(str(os.getpid()))
    if seed == 1:
        {at_seed_1}
    return torch.nn.Linear(30, 1)
"""


def in_processes(name: str, at_seed_1: str, seeds: Sequence[int] = (0, 1)) -> str:
    """The file of a sweep whose runs write down in which process they are computed; that of seed 1 does something else."""
    Path(f"{name}.py").write_text(OWN_PROCESS.format(at_seed_1=at_seed_1))
    tree = CANCER | {"model": {"module": f"{name}:make"}, "train": CANCER["train"] | {"guard": 1}}
    return save(tree, {"algorithm.lr": [0.01]}, seeds=list(seeds))


def test_a_process_that_is_killed_is_one_line_and_what_others_finish_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (wanted,) = plan(in_processes("killed_model", "os.kill(os.getpid(), signal.SIGKILL)")).runs
    with pytest.raises(FedsaddleError, match=r"one of 2 processes was killed, .*: use fewer; .*__main__"):
        finish(wanted, opened := Journal(tmp_path / "runs.jsonl"), jobs=2)
    assert [config in opened for config in wanted] == [True, False]


def computes(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_first_process_alone_ends_all(sent: signal.Signals, tmp_path: Path) -> None:
    """As `kill` and job managers do; Ctrl-C reaches all of them."""
    file = in_processes("slow_model", "time.sleep(600)")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsaddle", "sweep", file, "--jobs", "2", "--out", "out"],
        env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while not (Path("pid-1").exists() and Path("out/runs.jsonl").exists()) and time.monotonic() < until:
            time.sleep(0.1)
        pid = int(Path("pid-1").read_text())
        assert computes(pid) or sys.platform != "linux"
        process.send_signal(sent)
        _, said = process.communicate(timeout=20)
        if sent == signal.SIGINT:
            assert process.returncode == 130 and "interrupted; finished runs are in out/runs.jsonl" in said
            assert len(said.strip().splitlines()) == 1, said
        until = time.monotonic() + 20
        while computes(pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert not computes(pid) and len(lines()) == 1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_processes_stay_for_a_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (wanted,) = plan(in_processes("kept_model", "pass", seeds=(0, 1, 2, 3))).runs
    with Processes(2) as processes:
        for runs in (wanted[:2], wanted[2:]):
            finish(runs, Journal(tmp_path / "runs.jsonl"), jobs=processes)
    one, two, three, four = (int(Path(f"pid-{seed}").read_text()) for seed in range(4))
    assert {one, two} == {three, four} and len({one, two, os.getpid()}) == 3


def test_of_processes_that_are_kept_those_begin_that_have_compiled_what_is_left() -> None:
    processes = Processes(3)
    processes.last = [_Share([], "a", steps) for steps in ("FedAvg", None, "CODASCA")]
    assert processes.idle(1, [_Share([], "a", "CODASCA")]) == [2]
    assert processes.idle(3, [_Share([], "a", "CODASCA")]) == [2, 0, 1]
    assert processes.idle(2, [_Share([], "a", None)]) == [0, 1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_more_than_two_federations_are_kept_while_a_sweep_looks_at_its_data(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, kept = [0], []
    real = Federations.start

    def start(self: Federations, *args: Any, **options: Any) -> Any:
        kept.append(self)
        run = real(self, *args, **options)
        most[0] = max(most[0], len(self._loaded))
        return run

    monkeypatch.setattr(Federations, "start", start)
    sweep(save(QUADRATIC, {"data.seed": [0, 1, 2, 3, 4], "algorithm.lr": [0.1, 0.05]}), out="out", jobs=jobs)
    assert most == [2] and not kept[0]._loaded


def test_progress_of_what_did_not_fit_is_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = alike.run_all

    def small(runs: Sequence[Any], tick: Any) -> None:
        real(runs, tick)
        if len(runs) > 2:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(alike, "run_all", small)
    wanted = [config for runs in plan(save(QUADRATIC)).runs for config in runs]
    told: list[float] = []
    finish(wanted, Journal(tmp_path / "runs.jsonl"), tick=lambda n, text: told.append(n))
    assert min(told) == pytest.approx(-4) and sum(told) == pytest.approx(len(wanted)) and len(wanted) == 4


def test_progress_says_how_many_are_computed_together(capsys: pytest.CaptureFixture[str]) -> None:
    sweep(save(QUADRATIC), out="out", progress=True)
    assert "4 together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("points", "options", "kind"),
    [
        ({"algorithm.lr": [0.1, 0.05]}, {}, "line"),
        ({"train.sampling": ["without_replacement", "with_replacement"]}, {}, "line"),
        ({"algorithm.lr": [0.1, 0.05], "algorithm.local_steps": [1, 2]}, {}, "heatmap"),
        ({"algorithm.lr": [0.1, 1e200], "algorithm.server_lr": [1.0, 0.5]}, {}, "heatmap"),
        ({"algorithm.lr": [0.1, 0.05], "algorithm.server_lr": {"uniform": [0.5, 1.0]}}, {"random": 3}, "scatter"),
        ({"algorithm.lr": [0.1, 1e-3], "train.batch_size": [1, "none"], "train.rounds": [1, 2]}, {}, "heatmap"),
    ],
)  # fmt: skip
def test_figures(points: dict[str, Any], options: dict[str, Any], kind: str) -> None:
    pytest.importorskip("plotly")
    result = sweep(save(QUADRATIC, points, seeds=[0], **options), out="out")
    assert result.best is not None and (best := result.score(result.best)) is not None
    drawn = overview(result)
    if kind == "line":
        assert list(drawn) == ["line"]
        (trace,) = drawn["line"].panels[0].data
        assert min(trace["y"]) == best and trace["marker"]["color"][trace["y"].index(best)] == "@c1"
    else:
        assert list(drawn) == ["maps", "parallel"]
        assert len(drawn["maps"].panels) == (3 if len(points) == 3 else 1)
        for panel in drawn["maps"].panels:  # a residual is drawn by its logarithm
            trace = panel.data[0]
            assert trace["type"] == kind
            if kind == "heatmap":
                known = [v for line in trace["z"] for v in line if v is not None]
                ((i, j),) = ((f["x0"] + 0.5, f["y0"] + 0.5) for f in panel.layout["shapes"])
                crosses = [a for a in panel.layout["annotations"] if a["text"] == "×"]
                assert len(known) + len(crosses) == 4
                assert min(known) == trace["z"][int(j)][int(i)]
            else:
                known = trace["marker"]["color"]
            assert 10 ** min(known) == pytest.approx(best)
        through = [t for t in drawn["parallel"].panels[0].data if t["line"]["color"] == "@c1"]
        assert [v for v in through[0]["y"] if v is not None][-1] == 1.0  # the best is at the top
        lines = sum(t["x"].count(0) for t in drawn["parallel"].panels[0].data)
        assert lines == sum(result.score(row) is not None for row in result.rows)
    text = Path("out/sweep.html").read_text()
    assert len(text) > 100_000 and Path("out/best.toml").read_text().splitlines()[-1] in text


@pytest.mark.parametrize(
    ("points", "options", "said"),
    [
        ({"algorithm.lr": [0.1, 0.05, 0.01]}, {},
         ["algorithm.lr = 0.1 is the largest value tried: extend the range upwards."]),
        ({"algorithm.lr": [0.1, 0.05]}, {"minimise": False},
         ["algorithm.lr = 0.05 is the smallest value tried: extend the range downwards."]),
        ({"algorithm.lr": [0.01, 0.1, 30.0]}, {}, []),  # in between
        ({"algorithm.lr": [0.1]}, {}, []),
        ({"algorithm.local_steps": [1, 2]}, {"minimise": False}, []),  # there is nothing below 1
        ({"train.sampling": ["without_replacement", "with_replacement"]}, {}, []),
        ({"train.batch_size": [1, "none"]}, {}, []),
        ({"algorithm.lr": {"uniform": [0.01, 0.0101]}}, {"random": 8},
         ["algorithm.lr = 0.0101 is at the upper end: extend the range upwards."]),
    ],
)  # fmt: skip
def test_a_choice_at_an_edge_is_said(
    points: dict[str, Any], options: dict[str, Any], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly")
    cli._main(["sweep", save(QUADRATIC, points, seeds=[0], **options), "--out", "out"])
    printed, page = capsys.readouterr().out, Path("out/sweep.html").read_text(encoding="utf-8")
    lines = [line for line in printed.splitlines() if "extend the range" in line]
    assert (
        lines == said and page.count("extend the range") == len(said) and all(line in page for line in said)
    )


def test_a_range_has_ends() -> None:
    assert Range(1e-3, 1.0, log=True).place(1e-3) == 0.0
    assert Range(1e-3, 1.0, log=True).place(0.1) == pytest.approx(2 / 3)
    assert Range(-1.0, 3.0, log=False).place(2.0) == 0.75


def test_the_page_names_a_command_that_works_where_the_sweep_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("plotly")
    file = save(QUADRATIC)
    for out, folder in ((None, "runs/sweep/tiny"), ("elsewhere", "elsewhere")):
        sweep(file, out=out)
        text = Path(folder, "sweep.html").read_text(encoding="utf-8")
        (command,) = re.findall(r"\nfedsaddle (run [^<]*)</pre>", text)
        assert command == f"run {folder}/best.toml"
        assert cli._main([*command.split(), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([0.01, 0.03, 0.1], True),
        ([1, 4, 32], True),
        ([0.5, 1.0], False),
        ([1, 2, 4, 8, 10], True),
        ([2, 4, 6, 8, 10, 12, 14, 16], False),
        ([0.001, 1.0], True),
        ([0, 1, 100], False),
        ([0.1], False),
        ([k / 10 for k in range(1, 15)], False),
    ],
)
def test_when_an_axis_is_logarithmic(values: list[float], log: bool) -> None:
    assert sweep_figures._wide(values) == log


def test_one_seed_is_no_spread_and_swept_algorithms_are_counted() -> None:
    pytest.importorskip("plotly")
    points = {"algorithm.name": ["codasca", "local_sgda"], "algorithm.lr": [0.1, 0.05]}
    one = sweep(save(QUADRATIC, points, seeds=[3]), out="one")
    assert "with train.seed = 3 alone: how far other seeds are from it is not known" in one.verdict()
    assert "std" not in one.verdict()
    assert "2 algorithms on QuadraticSaddle: 2 hyper-parameters" in Path("one/sweep.html").read_text()
    one.swept[0].metrics["distance"]["mean"] = 0.68
    (panel,) = overview(one)["maps"].panels
    cells = [a["text"] for a in panel.layout["annotations"]]
    assert "0.6800" in cells  # beside others of four digits
    two = sweep(save(QUADRATIC), out="two")
    assert "mean ± std over train.seed = 0, 1" in two.verdict()
    assert "CODASCA on QuadraticSaddle: 1 hyper-parameter" in Path("two/sweep.html").read_text()


def test_logarithmic_axes_say_so() -> None:
    def titles(points: dict[str, Any], **options: Any) -> tuple[list[str], list[str]]:
        found = overview(sweep(save(QUADRATIC, points, seeds=[0], **options), out="out"))
        panel = next(iter(found.values())).panels[0]
        names = found["parallel"].panels[0].layout["xaxis"]["ticktext"] if "parallel" in found else []
        return [panel.layout[a]["title"]["text"] for a in ("xaxis", "yaxis")], names

    wide, narrow = {"log_uniform": [1e-4, 0.1]}, {"uniform": [0.5, 1.0]}
    y = "Distance to the saddle point (log scale)"
    assert titles({"algorithm.lr": [0.1, 0.001]})[0] == ["algorithm.lr (log scale)", y]
    assert titles({"algorithm.lr": [0.1, 0.05]})[0] == ["algorithm.lr", y]
    axes, posts = titles({"algorithm.lr": wide, "algorithm.server_lr": narrow}, random=6)
    assert axes == ["algorithm.lr (log scale)", "algorithm.server_lr"]
    assert posts == ["lr (log)", "server_lr", "distance (log)"]


@pytest.mark.parametrize("metric", ["distance", "valid_auc"])
def test_the_work_of_a_page_grows_with_its_points(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with their square: sweeps of thousands of points end in seconds."""
    pytest.importorskip("plotly")
    small = sweep(
        save(QUADRATIC, {"algorithm.lr": [0.1, 0.05], "algorithm.server_lr": [1.0, 0.5]}), out="out"
    )
    calls, real = itertools.count(), Result.score

    def counted(self: Result, row: Row) -> float | None:
        next(calls)
        return real(self, row)

    monkeypatch.setattr(Result, "score", counted)
    n = 500
    points = [{"algorithm.lr": 1 / (i + 1), "algorithm.server_lr": 1 + i % 97} for i in range(n)]
    scores = [{"mean": 1 + i % 89, "std": 0.1, "values": [1.0 + i % 89]} for i in range(n)]
    rows = [Row(p, {metric: s}, 0, []) for p, s in zip(points, scores, strict=True)]
    of_many = dataclasses.replace(small.plan, metric=metric, points=points, runs=small.plan.runs[:1] * n)
    sweep_report.write(Result(of_many, rows, Path("out")), "command")
    assert Path("out/sweep.html").stat().st_size > 100_000
    assert next(calls) < 50 * n


def test_a_page_that_cannot_be_written_is_said() -> None:
    pytest.importorskip("plotly")
    result = sweep(save(QUADRATIC), out="out")
    before = Path("out/results.json").read_bytes()
    for name in ("sweep.html", "table.md"):
        in_the_way = Path("out", f"{name}.{os.getpid()}.tmp")
        in_the_way.mkdir()
        with pytest.raises(FedsaddleError, match=name):
            sweep_report.write(result, "command")
        in_the_way.rmdir()
    assert Path("out/results.json").read_bytes() == before.replace(b"fedsaddle sweep tiny.toml", b"command")


def test_the_best_points_are_shown_with_every_seed() -> None:
    result = sweep(save(QUADRATIC, seeds=[0, 1, 2]), out="out")
    dots = seeds(result).panels[0].data
    for row, values, mean in zip(result.ranked, dots[::2], dots[1::2], strict=True):
        assert values["x"] == row.metrics["distance"]["values"] and len(values["x"]) == 3
        assert mean["x"] == [result.score(row)]
    assert [t["marker"]["color"] for t in dots[::2]] == ["@c1", "@c0"]


LR = {"algorithm.lr": [0.1]}
MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "unknown key": (CANCER, {"algorithm.lrr": [0.1]}, {}, "algorithm.lrr: unknown key, did you mean 'lr'?"),
    "unknown section": (CANCER, {"algoritm.lr": [0.1]}, {}, "algoritm: unknown section, did you mean 'algorithm'?"),
    "no section": (CANCER, {"lr": [0.1]}, {}, "lr: unknown section; a config has name, data"),
    "bad value": (CANCER, {"algorithm.lr": [0.1, -1.0]}, {}, "lr must be > 0, got -1.0 (at the point algorithm.lr = -1.0)"),
    "wrong type": (CANCER, {"algorithm.local_steps": [2, "x"]}, {}, 'local_steps: must be a whole number, got "x"'),
    "empty list": (CANCER, {"algorithm.lr": []}, {}, "sweep.points: algorithm.lr: must have at least one value, got []"),
    "no list": (CANCER, {"algorithm.lr": 0.1}, {}, "sweep.points: algorithm.lr: must be a list of values"),
    "no points": (CANCER, {}, {}, "sweep.points: is missing"),
    "seed as a point": (CANCER, {"train.seed": [0, 1]}, {}, "train.seed is no hyper-parameter; use sweep.seeds"),
    "range in a grid": (CANCER, {"algorithm.lr": {"uniform": [0, 1]}}, {}, "set sweep.random for random search"),
    "bad range": (CANCER, {"algorithm.lr": {"log_uniform": [0, 1]}}, {"random": 2}, "must be [a, b] with 0 < a < b"),
    "unknown range": (CANCER, {"algorithm.lr": {"loguniform": [0.1, 1]}}, {"random": 2}, "did you mean 'log_uniform'?"),
    "unknown option": (CANCER, LR, {"metrics": "auc"}, "sweep.metrics: unknown key, did you mean 'metric'?"),
    "no metric": (CANCER, LR, {"metric": None}, "sweep.metric: is missing"),
    "metric of wrong type": (CANCER, LR, {"metric": 1}, "sweep.metric: must be text, got 1"),
    "test metric": (CANCER, LR, {"metric": "auc"}, '"auc" is not measured on validation data; choose valid_auc, or'),
    "training metric": (CANCER, LR, {"metric": "train_auc"}, "choose valid_auc, or set sweep.allow_test = true"),
    "unknown metric": (CANCER, LR, {"metric": "valid_acu"}, "is unknown; did you mean 'valid_auc'? measured are"),
    "not of this problem": (QUADRATIC, LR, {"metric": "valid_auc"}, "is unknown; measured are distance, field_norm"),
    "no metric at all": (CANCER, LR, {"metric": "seconds", "allow_test": True}, '"seconds" is unknown; measured are'),
    "no validation data": (CANCER | {"data": {"name": "breast_cancer", "test": 0.25}}, LR, {}, "set data.valid"),
    "no seeds": (CANCER, LR, {"seeds": []}, "sweep.seeds: must be distinct whole numbers >= 0, at least one, got []"),
    "seed twice": (CANCER, LR, {"seeds": [1, 1]}, "sweep.seeds: must be distinct"),
    "no random points": (CANCER, LR, {"random": 0}, "sweep.random: must be >= 1, got 0"),
    "nothing together": (CANCER, LR, {"together": 0}, "sweep.together: must be >= 1, got 0"),
    "unknown grid": (CANCER, LR, {"grid": "codsca"}, '"codsca" is unknown; did you mean \'codasca\'?'),
    "grid of others": (CANCER, LR, {"grid": "cycp"}, '"cycp" is for cycp_minimax, rs_minimax; algorithm.name is "codasca"'),
    "too many clients": (
        CANCER | {"participation": {"name": "uniform", "m": 2}}, {"participation.m": [2, 50]}, {},
        "(at the point participation.m = 50)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tree", "points", "options", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line_before_any_work(
    tree: dict[str, Any],
    points: dict[str, Any],
    options: dict[str, Any],
    message: str,
    groups: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["sweep", save(tree, points, **options), "--out", "out"])
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert (end.value.code, out) == (2, "") and message in last, err
    assert [line for line in err.splitlines() if "warning" not in line] == [last]
    assert groups == [] and not Path("out").exists()


def test_a_config_without_a_sweep() -> None:
    Path("run.toml").write_text(to_toml({k: v for k, v in CANCER.items() if k != "sweep"}))
    with pytest.raises(FedsaddleError, match=r"run\.toml: has no \[sweep\]"):
        plan("run.toml")


# --------------------------------------------------------------------------------------------------- trade-off

TRADED: dict[str, Any] = {
    **CANCER,
    "problem": {"name": "erm"},
    "algorithm": {"name": "scaff_pd", "local_steps": 2},
    "sweep": {
        "metric": "valid_auc_worst20",
        "seeds": [0, 1],
        "tradeoff": "algorithm.ambiguity",
        "points": {"algorithm.ambiguity": ["chi2(5)", "chi2(0.1)", "average"], "algorithm.tau": [0.01, 0.3]},
        "also": [{"name": "fedavg", "lr": [0.01, 0.3], "local_steps": 2}],
    },
}


def test_a_trade_off_shows_each_value_and_method_at_its_best_point() -> None:
    pytest.importorskip("plotly")
    result = sweep(save(TRADED), out="out")
    assert len(result.rows) == 3 * 2 + 2
    traded = result.traded()
    assert set(traded) == {"chi2(5)", "chi2(0.1)", "average", "fedavg"}
    for name, row in traded.items():
        mine = [
            r for r in result.rows
            if r.point.get("algorithm.ambiguity") == name or r.point.get("algorithm", {}).get("name") == name
        ]  # fmt: skip
        assert len(mine) == 2
        assert row.metrics["valid_auc_worst20"]["mean"] == max(
            r.metrics["valid_auc_worst20"]["mean"] for r in mine
        )
    tree = {k: v for k, v in TRADED.items() if k != "sweep"}
    alone = resolve(tree | {"algorithm": traded["fedavg"].point["algorithm"]}).run()  # seed 0
    for k in ("valid_auc_clients", "valid_auc_worst20"):
        assert traded["fedavg"].metrics[k]["values"][0] == pytest.approx(alone.metrics[k], abs=1e-9)
    drawn = {t["name"]: t for t in tradeoff(result).panels[0].data}
    assert set(drawn) == {"chi2", "average", "fedavg"}
    line = [traded["chi2(0.1)"].metrics, traded["chi2(5)"].metrics]  # by rho
    for axis, error, metric in (("x", "error_x", "valid_auc_clients"), ("y", "error_y", "valid_auc_worst20")):
        assert list(drawn["chi2"][axis]) == [m[metric]["mean"] for m in line]
        assert drawn["chi2"][error]["array"] == [m[metric]["std"] for m in line]
    assert [t.strip() for t in drawn["chi2"]["text"]] == ["0.1", "5"]
    table = Path("out/table.md").read_text()
    assert "valid_auc_clients" in table and 'name = "fedavg", lr = 0.3' in table


def test_a_trade_off_over_numbers_is_one_line() -> None:
    pytest.importorskip("plotly")
    q = {"name": "q_fedavg", "local_steps": 2, "lr": 0.1}
    options = {"tradeoff": "algorithm.q", "also": None, "points": {"algorithm.q": [2.0, 0.5]}}
    result = sweep(save({**TRADED, "algorithm": q}, **options), out="out")
    (line,) = tradeoff(result).panels[0].data
    assert [t.strip() for t in line["text"]] == ["0.5", "2.0"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tradeoff": "algorithm.ambigity"}, "sweep.tradeoff: must be a key of sweep.points (algorithm.ambiguity, "),
        ({"tradeoff": None}, "sweep.also: has no use without sweep.tradeoff"),
        ({"also": [{"name": "fedavg", "tau": 1.0}]}, "algorithm.tau: unknown key"),
        ({"also": 3}, "sweep.also: must be a list"),
        ({"metric": "grad_norm"}, "sweep.tradeoff: \"grad_norm_clients\" is not measured; it needs accuracy or AUC"),
        ({"points": {"algorithm": [{"name": "fedavg"}]}}, "sweep.points: algorithm is a section"),
    ],
)  # fmt: skip
def test_trade_offs_that_make_no_sense(options: dict[str, Any], says: str) -> None:
    with pytest.raises(FedsaddleError) as error:
        sweep(save(TRADED, **options), out="out")
    assert says in str(error.value)
