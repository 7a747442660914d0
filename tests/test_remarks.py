"""Remarks on a result: what could mislead its reader, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsaddle as fs
from fedsaddle import metrics
from fedsaddle.remarks import remarks
from fedsaddle.scores import differences

pytest.importorskip("plotly")

from fedsaddle.report import write_comparison, write_report


def summary(problem: Any, lr: float, positives: int, out: Path | None = None, **options: Any) -> Any:
    """A result on two clients of 200 samples, the first of which has so many test positives."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.arange(400) < positives * 4, np.arange(400) % 2 == 0]).astype(int)
    x = rng.standard_normal((800, 3)) + y[:, None]
    fed = fs.Federation.from_arrays(x, y, clients=np.arange(800) // 400).holdout(0.25)
    algorithm = fs.FedAvg(lr=lr) if isinstance(problem, fs.ERM) else fs.CODASCA(lr=lr)
    return fs.train(problem, algorithm, fed, rounds=5, out=out, **options).finish().summary()


def test_a_sound_result_has_none() -> None:
    assert remarks(summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=20)) == []
    assert remarks(summary(fs.ERM(torch.nn.Linear(3, 1)), 0.05, positives=20)) == []


def test_clients_with_few_samples_of_a_class_are_counted(tmp_path: Path) -> None:
    result = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=3, out=tmp_path)
    (said,) = remarks(result)
    assert said.startswith("1 of 2 clients have fewer than 10 test samples of one class, down to 3: ")
    assert said in write_report(tmp_path).read_text(encoding="utf-8")
    assert remarks(result | {"test_class_counts": None}) == []  # as an older fedsaddle left it


def test_an_accuracy_no_better_than_one_answer_is_said() -> None:
    result = summary(fs.ERM(torch.nn.Linear(3, 1)), 0.05, positives=20)
    counts = np.array(result["test_class_counts"]).sum(0)
    share = counts.max() / counts.sum()
    poor = result | {"metrics": result["metrics"] | {"accuracy": share}}
    assert f"Always answering '0' has an accuracy of {share:.4f} on the test samples." in remarks(poor)
    many = poor | {"test_class_counts": [[30, 10, 20], [30, 0, 10]], "classes": ["a", "b", "c"]}
    rest = many | {"metrics": {"accuracy": 0.9}}  # logistic: b against the rest
    assert remarks(rest) == ["Always answering 'not b' has an accuracy of 0.9000 on the test samples."]
    one_of = rest | {"config": {"problem": {"loss": "cross_entropy"}}}
    assert remarks(one_of) == []
    assert remarks(one_of | {"metrics": {"accuracy": 0.6}})[0].startswith(
        "Always answering 'a' has an accuracy of 0.6000"
    )


def test_a_loss_that_grew_is_said() -> None:
    grown = summary(fs.ERM(torch.nn.Linear(3, 1)), 500.0, positives=20)
    assert grown["metrics"]["loss"] > grown["loss_at_start"]
    assert any(
        "training loss ended at" in said and "a smaller step may help" in said for said in remarks(grown)
    )


def test_of_repeated_runs_the_difference_of_means_has_an_interval(tmp_path: Path) -> None:
    folders = {}
    for lr in (0.05, 0.0001):
        folders[str(lr)] = [tmp_path / f"{lr}-{seed}" for seed in range(3)]
        for seed, folder in enumerate(folders[str(lr)]):
            torch.manual_seed(seed)
            summary(fs.AUC(torch.nn.Linear(3, 1)), lr, 20, folder, seed=seed)
    found, _ = differences(list(folders.values()))
    assert found is not None and found[0] is None and found[1] is not None
    results = {k: [json.loads((f / "result.json").read_text()) for f in own] for k, own in folders.items()}
    means = [np.mean([result["metrics"]["auc"] for result in own]) for own in results.values()]
    assert found[1].value == pytest.approx(means[0] - means[1], abs=1e-12)
    assert found[1].low < found[1].value < found[1].high
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Behind the best" in page and "class='best'" in page and found[1].low > 0
    unsure = [None, metrics.Interval(0.3, -0.1, 0.7)]  # as far apart, but other samples might turn it
    page = write_comparison(folders, tmp_path / "page.html", behind=unsure).read_text(encoding="utf-8")
    auc_cells = re.findall(r"<td( class='best')?>0\.\d{4} <small>±", page)
    assert auc_cells[0] == auc_cells[4] == ""
    assert metrics.auc_difference(torch.zeros(4), torch.zeros(4), torch.tensor([1, 1, 0, 0]).bool()) == (
        0,
        0,
        0,
    )
