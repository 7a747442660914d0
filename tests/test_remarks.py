"""Remarks on a result: what could mislead its reader, and nothing else."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedsaddle as fs
from fedsaddle import metrics
from fedsaddle.compare import notices
from fedsaddle.errors import Diverged
from fedsaddle.folder import read_result
from fedsaddle.measures import LOWERED, Of, names
from fedsaddle.remarks import grown, remarks
from fedsaddle.scores import DIFFERENT, compared
from fedsaddle.steps import objective
from fedsaddle.tables import number

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


def test_clients_with_one_class_are_named() -> None:
    result = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=20)
    one = result | {"test_class_counts": [[50, 0], [50, 50]], "client_names": ["ward", "clinic"]}
    (said,) = remarks(one)
    assert said.startswith("ward has test samples of one class only, so it has no AUC") and said.doubts == ()
    empty = one | {"test_class_counts": [[0, 0], [50, 50]]}
    assert remarks(empty)[0].startswith("ward has no test samples, so it has no AUC")
    many = one | {"test_class_counts": [[50, 0]] * 7, "client_names": list("abcdefg")}
    assert remarks(many)[0].startswith("a, b, c, d, e and 2 more have test samples of one class only")


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


def test_an_objective_that_grew_is_said() -> None:
    torch.manual_seed(0)
    grown = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.6, positives=20)
    assert grown["metrics"]["phi"] > grown["phi_at_start"]
    assert any(
        said.startswith("The objective phi ended at ") and "a smaller step may help" in said
        for said in remarks(grown)
    )
    infinite = grown | {"metrics": grown["metrics"] | {"phi": None}}
    assert "The objective phi ended at no finite number: a smaller step may help." in remarks(infinite)


def _quadratic(lr: float, rounds: int, **options: Any) -> fs.Run:
    clients = fs.quadratic_federation(clients=4)
    algorithm = fs.LocalSGDA(lr=lr, local_steps=3)
    return fs.train(
        fs.QuadraticSaddle(), algorithm, clients, rounds=rounds, dtype="float64", **options
    ).finish()


def test_a_run_that_has_left_the_saddle_is_said() -> None:
    sound, wild = (_quadratic(lr, 20).summary() for lr in (0.05, 2.0))
    assert remarks(sound) == []
    (said,) = remarks(wild)
    first, last = wild["distance_at_start"], wild["metrics"]["distance"]
    assert last > 1e6
    what = f"The distance to the saddle ended at {last:.4g}, above the {first:.4g} it began with"
    assert said == f"{what}: a smaller step may help."
    of_field = {k: v for k, v in wild["metrics"].items() if k != "distance"}
    (said,) = remarks(wild | {"metrics": of_field})
    assert said.startswith("The norm of the saddle field ended at ")
    nearby = of_field | {"field_norm": 3 * wild["field_norm_at_start"]}  # as fields may be on their way
    assert remarks(wild | {"metrics": nearby}) == []
    assert (
        remarks(wild | {"metrics": wild["metrics"] | {"robust_loss": 1.0}}) == []
    )  # that is what is lowered


def test_a_measure_too_large_for_a_number_is_a_divergence(tmp_path: Path) -> None:
    with pytest.raises(
        Diverged, match=r"LocalSGDA: diverged in round \d+, the distance to the saddle is not"
    ):
        _quadratic(2.0, 1000, out=tmp_path, eval_every=1)
    last = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[-1])
    assert last["distance"] > 1e100  # the square of a next one is no number

    def loss(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
        return (x * batch["x"]).sum(-1) ** 2 - y.sum() ** 2

    def own(x: torch.Tensor, y: torch.Tensor, data: Any) -> Any:
        return {"distance": float("nan")}

    data = fs.Federation.from_arrays(np.ones((8, 2)), np.arange(8) % 2, clients=np.arange(8) // 4)
    custom = fs.Custom(loss, 2, 1, metrics=own)
    run = fs.train(custom, fs.LocalSGDA(lr=0.01), data, rounds=2).finish()
    assert run.metrics["distance"] is None  # a user's own may be undefined


def test_an_undefined_number_is_no_none() -> None:
    assert number(None) == "undefined"


def test_one_list_says_what_training_lowers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For remarks, results, and the choice of a step, which takes phi where a user's own metrics have more of them."""
    assert set(LOWERED) <= set(names(Of.objective))
    monkeypatch.setitem(LOWERED, "auc", "AUC")
    result = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=20)
    assert result["auc_at_start"] is not None
    assert grown(result | {"auc_at_start": 0.1}) == [
        f"The AUC ended at {result['metrics']['auc']:.4g}, above the 0.1 it began with: a smaller step may help."
    ]
    assert objective(SimpleNamespace(metrics={"auc": 0.7, "grad_phi": 3.0})) == 0.7  # type: ignore[arg-type]
    every = {"auc": 0.7, "pair_loss": 0.2, "loss": 0.3, "phi": 0.4}
    assert objective(SimpleNamespace(metrics=every)) == 0.4  # type: ignore[arg-type]
    assert objective(SimpleNamespace(metrics=every | {"phi": None})) == 0.3  # type: ignore[arg-type]


def test_whether_a_run_has_settled_is_said() -> None:
    result = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=20)
    assert result["course"] is None  # too few evaluations to say

    def said(values: list[float], before: float = 0.6) -> list[str]:
        course = {"metric": "auc", "rounds": list(range(41, 51)), "values": values, "before": before}
        return remarks(result | {"course": course})

    assert said([0.8, 0.81, 0.8, 0.805, 0.8, 0.81, 0.8, 0.805, 0.8, 0.8]) == []
    assert said([0.7, 0.8, 0.6, 0.8, 0.7, 0.8, 0.6, 0.7, 0.8, 0.65]) == [
        "From round 41 to 50 the AUC lay between 0.6000 and 0.8000: it jumps, and a smaller step may settle it."
    ]
    assert said([0.7 + 0.005 * i for i in range(10)]) == [
        "From round 41 to 50 the AUC lay between 0.7000 and 0.7450, and it still rises: more rounds may help."
    ]
    assert said([0.7 + 0.0005 * i for i in range(10)]) == []  # not worth a word
    assert "it jumps" in said([0.7, 0.8] * 5)[0]  # though the second half is higher
    assert said([0.7 + 0.004 * i for i in range(10)], before=0.75) == []  # it was there before
    assert (
        "it falls, and fewer rounds or a smaller step may help"
        in said([0.9 - 0.02 * i for i in range(10)])[0]
    )
    few = result | {
        "test_class_counts": [[40, 20], [30, 10]],
        "course": {"metric": "auc", "rounds": [1, 2], "values": [0.8, 0.86], "before": 0.5},
    }
    assert remarks(few) == []  # one sample of 30 moves an AUC by as much


def test_a_gradient_that_has_hardly_fallen_is_said() -> None:
    torch.manual_seed(0)
    result = summary(fs.AUC(torch.nn.Linear(3, 1)), 1e-4, positives=20)
    share = result["metrics"]["grad_phi"] / result["grad_phi_at_start"]
    assert share > 0.9
    assert remarks(result)[:1] == [
        f"The gradient of phi is still {100 * share:.0f} % of what it began with: more rounds, or a larger step, may help."
    ]

    grown = result | {"metrics": result["metrics"] | {"grad_phi": 1.1 * result["grad_phi_at_start"]}}
    assert "still 110 % of what it began with: more rounds, or a smaller step, may help." in remarks(grown)[0]


def test_an_auc_that_may_be_chance_is_said() -> None:
    result = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=20)
    assert remarks(result | {"auc_interval": [0.42, 0.61]}) == [
        "The interval of the test AUC, 0.420 to 0.610, contains 0.5: the model may rank no better than chance."
    ]


def test_an_auc_too_good_to_be_true_is_said() -> None:
    result = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=20)
    perfect = result | {
        "metrics": result["metrics"] | {"auc": 0.9991},
        "test_class_counts": [[90, 9], [90, 11]],
    }
    (said, *_) = (text for text in remarks(perfect) if "knows the label" in text)
    assert said.startswith("A test AUC of 0.9991 most often comes from a column that knows the label")
    for other in (
        {"metrics": {"auc": 0.998}},
        {"test_class_counts": [[90, 9], [90, 10]]},
        {"test_class_counts": None},
    ):
        assert not any("knows the label" in text for text in remarks(perfect | other))


def test_the_last_evaluations_are_kept() -> None:
    fed = fs.Federation.from_arrays(
        np.eye(40)[:, :3], np.arange(40) % 2, clients=np.arange(40) // 20
    ).holdout(0.25)
    run = fs.train(fs.AUC(torch.nn.Linear(3, 1)), fs.CODASCA(lr=0.1), fed, rounds=44, eval_every=2).finish()
    course, records = run.summary()["course"], run.records
    assert course["metric"] == "auc" and course["rounds"] == list(range(26, 46, 2))
    assert course["values"] == [records[r]["auc"] for r in course["rounds"]]
    assert course["before"] == max(records[r]["auc"] for r in range(0, 26, 2))


def bold(page: str) -> set[str]:
    """The columns in which the best is in bold."""
    return {html.unescape(head) for head in re.findall(r"<td data-head='([^']*)' class='best'", page)}


def test_a_comparison_says_what_its_runs_say_and_prefers_nothing_that_this_doubts(tmp_path: Path) -> None:
    pages, heads = [], {"Worst 20\u00a0%", "Best 20\u00a0%", "Gini"}
    for positives in (20, 3):
        folders = {}
        for lr in (0.05, 0.0001):
            folders[str(lr)] = [tmp_path / f"{positives}-{lr}-{seed}" for seed in range(2)]
            for seed, folder in enumerate(folders[str(lr)]):
                torch.manual_seed(seed)
                summary(fs.AUC(torch.nn.Linear(3, 1)), lr, positives, folder, seed=seed)
        pages.append(write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8"))
    (said,) = remarks(read_result(tmp_path / "3-0.05-0"))
    assert said not in pages[0] and bold(pages[0]) & heads
    assert pages[1].count(said) == 1 and f"class='warning'>{said}" in pages[1]  # once: all four have it
    assert "Test AUC" in bold(pages[1]) and not bold(pages[1]) & heads
    rows = {"few": folders["0.05"], "some": [tmp_path / "20-0.05-0", tmp_path / "3-0.0001-1"]}
    results = {name: {f: read_result(f) for f in own} for name, own in rows.items()}
    assert notices(results)[0] == f"few, 3-0.0001-1: {said}"  # a whole row by its name, else the run
    page = write_comparison(rows, tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"class='warning'>few, 3-0.0001-1: {said}" in page


def test_of_repeated_runs_the_difference_of_means_has_an_interval(tmp_path: Path) -> None:
    folders = {}
    for lr in (0.05, 0.0001):
        folders[str(lr)] = [tmp_path / f"{lr}-{seed}" for seed in range(3)]
        for seed, folder in enumerate(folders[str(lr)]):
            torch.manual_seed(seed)
            summary(fs.AUC(torch.nn.Linear(3, 1)), lr, 20, folder, seed=seed)
    found = compared({name: {f: read_result(f) for f in own} for name, own in folders.items()})
    (behind,) = found.behind.values()
    assert found.best == "0.05" and list(found.behind) == ["0.0001"]
    results = {k: [json.loads((f / "result.json").read_text()) for f in own] for k, own in folders.items()}
    means = [np.mean([result["metrics"]["auc"] for result in own]) for own in results.values()]
    assert behind.value == pytest.approx(means[0] - means[1], abs=1e-12)
    assert behind.low < behind.value < behind.high
    ends = [[float(end) for end in text.split(" to ")] for text in found.sure.values()]
    assert all(low < mean < high for mean, (low, high) in zip(means, ends, strict=True))
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Behind the best" in page and "Test AUC" in bold(page) and behind.low > 0
    assert "class='lead'>0.05 is ahead of the other by more than the choice of test samples explains." in page
    assert all(f"<small>{text}</small>" in page for text in found.sure.values())
    for changed, kept in (
        (
            found._replace(behind={"0.0001": metrics.Interval(0.3, -0.1, 0.7)}),
            True,
        ),  # other samples might turn it
        (found._replace(apart={"0.0001": DIFFERENT}), False),  # no column compares like with like
    ):
        page = write_comparison(folders, tmp_path / "page.html", compared=changed).read_text(encoding="utf-8")
        assert "Test AUC" not in bold(page) and bool(bold(page)) == kept
    assert metrics.auc_difference(torch.zeros(4), torch.zeros(4), torch.tensor([1, 1, 0, 0]).bool()) == (
        0,
        0,
        0,
    )


def test_a_notice_of_nearly_all_names_the_others() -> None:
    poor = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=3)
    (said,) = remarks(poor)
    sound = summary(fs.AUC(torch.nn.Linear(3, 1)), 0.05, positives=20)
    rows = {name: {Path(name): sound if name == "c" else poor} for name in "abcd"}
    assert notices(rows) == [f"All but c: {said}"]
    assert notices(rows | {"b": {Path("b"): sound}}) == [f"a, d: {said}"]
    assert notices({k: v for k, v in rows.items() if k != "c"}) == [said]
