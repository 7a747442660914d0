"""The command line through its entry point: what it does, and one line for every mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from fedsaddle import cli
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.describe import described, parameters, things
from fedsaddle.export import load_model
from fedsaddle.kinds import Kind
from fedsaddle.toml import to_toml
from tests.conftest import Command, Done

pytest.importorskip("plotly")


TABLE: dict[str, Any] = {  # a config of each kind of data, tiny
    "data": {"name": "breast_cancer", "test": 0.25},
    "partition": {"name": "dirichlet", "clients": 4, "min_per_class": 4},
    "model": {"name": "linear"},
    "problem": {"name": "auc"},
    "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 2},
    "train": {"rounds": 2, "batch_size": 8},
}
QUADRATIC: dict[str, Any] = {
    "data": {"name": "quadratic", "clients": 3, "dim_x": 4, "dim_y": 2},
    "problem": {"name": "quadratic"},
    "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 5},
    "train": {"rounds": 3, "dtype": "float64"},
}
FILES = {k: v for k, v in TABLE.items() if k != "partition"} | {
    "data": {"files": "sites/*.csv", "label": "died", "positive": 1, "test": 0.25}
}
FRAME = FILES | {"data": {"file": "all.csv", "group": "hospital", "label": "died", "test": 0.25}}


def save(tree: dict[str, Any], name: str = "tiny.toml") -> str:
    Path(name).write_text(to_toml(tree))
    return name


def hospitals(change: Callable[[str, pd.DataFrame], pd.DataFrame] = lambda name, frame: frame) -> None:
    """sites/*.csv, one a hospital, and all.csv with a column that names it."""
    rng, frames = np.random.default_rng(0), []
    Path("sites").mkdir()
    for name in ("north", "south", "west"):
        died = np.arange(24) % 3 == 0
        frame = pd.DataFrame(
            {"age": 60 + 10 * rng.standard_normal(24) + 9 * died, "bmi": rng.random(24), "died": died * 1}
        )
        frame = change(name, frame)
        frame.to_csv(f"sites/{name}.csv", index=False)
        frames.append(frame.assign(hospital=name))
    pd.concat(frames).to_csv("all.csv", index=False)


# ----------------------------------------------------------------------------------------------------- score


def _new_rows(**more: Any) -> pd.DataFrame:
    frame = pd.DataFrame({"bmi": [0.2, 0.9, 0.4], "age": [50.0, 80.0, 61.0], "id": ["007", "008", "1e3"]})
    frame = frame.assign(**more)
    frame.to_csv("new.csv", index=False)
    return frame


def test_score_of_new_rows(fedsaddle: Command) -> None:
    hospitals()
    fedsaddle("run", save(FRAME), "--quiet", "--out", "r")
    frame, model = _new_rows(), load_model("r")
    done = fedsaddle("score", "r", "new.csv", "--keep", "id", "--out", "scores.csv")
    assert done.out == "scores.csv\n"
    scored = pd.read_csv("scores.csv", dtype={"id": str})
    assert list(scored.columns) == ["row", "id", "score"] and list(scored["row"]) == [0, 1, 2]
    assert list(scored["id"]) == list(frame["id"])  # as they stand in the file
    np.testing.assert_array_equal(
        scored["score"].astype("float32"), model(model.rows(frame)).squeeze(1).numpy()
    )
    assert fedsaddle("score", "r", "new.csv", "--keep", "id").out == Path("scores.csv").read_text()


def test_score_of_rows_in_the_encoding_of_the_runs_table(fedsaddle: Command) -> None:
    hospitals()
    fedsaddle("run", save(FRAME | {"data": FRAME["data"] | {"encoding": "cp1252"}}), "--quiet", "--out", "r")
    _new_rows().assign(id="Köln").to_csv("new.csv", index=False, encoding="cp1252")
    found = fedsaddle("score", "r", "new.csv", "--keep", "id").out
    assert found.splitlines()[1].startswith("0,Köln,")
    _new_rows().assign(id="Köln").to_csv("new.csv", index=False)
    assert fedsaddle("score", "r", "new.csv", "--keep", "id").out == found  # UTF-8 is seen


def test_score_of_classes(fedsaddle: Command) -> None:
    hospitals(lambda name, frame: frame.assign(died=np.where(frame["died"] == 1, "yes", "no")))
    data = {k: v for k, v in FILES["data"].items() if k != "positive"}
    tree = FILES | {"data": data, "problem": {"name": "erm", "loss": "cross_entropy"}}
    tree["algorithm"] = {"name": "fedavg", "lr": 0.1}
    fedsaddle("run", save(tree), "--quiet", "--out", "r")
    frame, model = _new_rows(), load_model("r")
    head, *lines = fedsaddle("score", "r", "new.csv").out.splitlines()
    assert head == "row,class,score_no,score_yes"
    best = [["no", "yes"][i] for i in model(model.rows(frame)).argmax(1).tolist()]
    assert [line.split(",")[1] for line in lines] == best


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "r", "nw.csv"], "nw.csv: is no file; did you mean 'new.csv'?"),
        (["score", "x", "new.csv"], "x: "),
        (["score", "r", "new.csv", "--keep", "Id"], "--keep 'Id' is no column of new.csv; did you mean 'id'?"),
        (["score", "r", "new.csv", "--keep", "score"], "--keep 'score' is what a column of the scores is called"),
        (["score", "r", "short.csv"], "short.csv: "),
        (["score", "r", "tiny.toml"], "must be a .csv or .parquet file, got tiny.toml"),
        (["score", "q", "new.csv"], "q: has no model that can be loaded"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_one_line(fedsaddle: Command, arguments: list[str], message: str) -> None:
    hospitals()
    fedsaddle("run", save(FRAME), "--quiet", "--out", "r")
    fedsaddle("run", save(QUADRATIC), "--quiet", "--out", "q")
    _new_rows(score=1.0).drop(columns="age").to_csv("short.csv", index=False)
    done = fedsaddle(*arguments)
    assert done.code == 2 and done.out == ""
    assert message in done.err and done.err.count("\n") == 1


# ------------------------------------------------------------------------------------------------------- run


@pytest.mark.parametrize(
    ("tree", "shown"),
    [
        (TABLE, "AUC, test"),
        (QUADRATIC, "distance to the saddle"),
        (FILES, "AUC, worst 20 %"),
        (FRAME, "AUC, test"),
    ],
    ids=["data set", "quadratic", "files", "frame"],
)
def test_run(fedsaddle: Command, tree: dict[str, Any], shown: str) -> None:
    hospitals()
    done = fedsaddle("run", save(tree))
    assert (done.code, done.err) == (0, "")
    assert shown in done.out
    folder = Path("runs/tiny")
    files = {"config.toml", "history.jsonl", "seconds.jsonl", "checkpoint", "result.json", "report.html"}
    files |= {"model.safetensors", "scores.csv", "clients.csv"} if "model" in tree else set()
    assert {p.name for p in folder.iterdir()} == files
    assert done.out.splitlines()[-1].startswith("runs/tiny: config.toml, history.jsonl")
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == list(range(tree["train"]["rounds"] + 1))
    result = json.loads((folder / "result.json").read_text())
    assert result["metrics"]["round"] == tree["train"]["rounds"]
    resolved = tomllib.loads((folder / "config.toml").read_text())
    assert resolved["algorithm"]["server_lr"] == 1.0
    if "model" in tree:
        features = 30 if tree is TABLE else 2
        assert load_file(folder / "model.safetensors")["1.weight"].shape == (1, features)


def test_run_again_takes_a_new_folder_and_gives_the_same_model(fedsaddle: Command) -> None:
    file = save(TABLE)
    assert fedsaddle("run", file, "--quiet").out == "runs/tiny\n"
    assert fedsaddle("run", "runs/tiny/config.toml", "--quiet").out == "runs/tiny-2\n"
    assert fedsaddle("run", file, "--set", "train.seed=1", "--out", "deep/er", "--quiet").out == "deep/er\n"
    one, two, three = (
        load_file(Path(d) / "model.safetensors") for d in ("runs/tiny", "runs/tiny-2", "deep/er")
    )
    assert "runs/NAME-2 if that is there" in " ".join(fedsaddle("run", "--help").out.split())
    assert torch.equal(one["1.weight"], two["1.weight"])
    assert not torch.equal(one["1.weight"], three["1.weight"])


def test_set(fedsaddle: Command) -> None:
    sets = ["algorithm.name=scaffold", "algorithm.lr=0.01", "name=other", "train.engine=serial"]
    done = fedsaddle("run", save(TABLE), *(a for s in sets for a in ("--set", s)))
    assert done.code == 0 and "SCAFFOLD on AUC" in done.out
    made = tomllib.loads(Path("runs/other/config.toml").read_text())
    assert (made["algorithm"]["lr"], made["train"]["engine"]) == (0.01, "serial")


def test_metrics_of_validation_data_are_named_in_words(fedsaddle: Command) -> None:
    lines = fedsaddle("run", save(TABLE), "--set", "data.valid=0.3").out.splitlines()
    metrics = json.loads(Path("runs/tiny/result.json").read_text())["metrics"]
    named = dict(re.split(r"  +", line.strip())[:2] for line in lines if line.startswith("  A"))
    assert named["AUC, spread over clients, validation"] == f"{metrics['valid_auc_std']:.4f}"
    assert list(named)[2:4] == ["AUC, mean over clients", "AUC, mean over clients, validation"]
    assert not any(key in line for line in lines for key in metrics if "_" in key)


def test_without_plotly_there_is_no_report(fedsaddle: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsaddle.finished.has_plotly", lambda: False)
    assert fedsaddle("run", save(QUADRATIC)).code == 0
    assert not Path("runs/tiny/report.html").exists()
    done = fedsaddle("compare", "runs/tiny")
    assert done.code == 0 and "CODASCA" in done.out and "pip install" in done.err


# ---------------------------------------------------------------------------------- compare, report and show


def test_compare_report_and_show(fedsaddle: Command) -> None:
    for steps in (2, 3):
        fedsaddle("run", save(TABLE), "--set", f"algorithm.local_steps={steps}", "--quiet")
    done = fedsaddle("compare", "runs/tiny", "runs/tiny-2", "--out", "both.html")
    header, first, second, _, verdict, meaning, _, *notices, page = done.out.splitlines()
    assert verdict.endswith("is ahead of the other by more than the choice of test samples explains.")
    assert verdict in Path("both.html").read_text(encoding="utf-8") and "±" not in done.out  # a seed each
    assert (
        meaning.startswith("95 %: ")
        and header.split()[:2] == ["run", "algorithm"]
        and "AUC, worst 20 % of clients" in header
    )
    assert any("clients have fewer than 10 test samples of one class" in said for said in notices)
    assert first.startswith("tiny ") and second.startswith("tiny-2 ")
    assert page == "both.html" and Path("both.html").stat().st_size > 1000
    auc = json.loads(Path("runs/tiny/result.json").read_text())["metrics"]["auc"]
    assert f"{auc:.4f}" in first and f"{auc:.4f}" in fedsaddle("show", "runs/tiny").out
    Path("runs/tiny/report.html").unlink()
    assert fedsaddle("report", "runs/tiny").out == "runs/tiny/report.html\n"
    assert Path("runs/tiny/report.html").exists()


def test_a_comparison_fits_the_terminal(fedsaddle: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for lr in (0.01, 0.02):
        assert (
            fedsaddle(
                "run", save(TABLE), "--quiet", "--set", f"algorithm.lr={lr}", "--out", f"runs/{lr}"
            ).code
            == 0
        )
    whole = fedsaddle("compare", "runs/0.01", "runs/0.02").out.partition("\n\n")[0]
    monkeypatch.setattr("fedsaddle.compare.room", lambda: 60)
    narrow = fedsaddle("compare", "runs/0.01", "runs/0.02").out
    blocks = [block.splitlines() for block in narrow.split("\n\n") if block.startswith("run ")]
    assert len(blocks) > 1 and all(len(line) <= 60 for block in blocks for line in block)
    assert all([line.split()[0] for line in block] == ["run", "0.01", "0.02"] for block in blocks)
    assert {word for block in blocks for word in " ".join(block).split()} == set(whole.split())


def test_compare_says_when_the_data_differ(fedsaddle: Command) -> None:
    fedsaddle("run", save(TABLE), "--quiet")
    fedsaddle("run", save(TABLE), "--set", "data.test=0.5", "--quiet")
    lines = fedsaddle("compare", "runs/tiny", "runs/tiny-2", "--out", "both.html").out.splitlines()
    assert "These runs have different data:" in lines
    assert lines[-2].startswith("  tiny-2: ") and "evaluated on their test data" in lines[-2]
    hospitals()
    fedsaddle("run", save(FRAME), "--out", "two", "--quiet")
    fedsaddle("run", save(FRAME), "--set", "data.drop=['bmi']", "--out", "one", "--quiet")
    said = fedsaddle("compare", "two", "one", "--out", "both.html").out
    assert "  one: 3 clients, 54 training samples of 1, " in said


@pytest.mark.parametrize("kind", list(Kind))
def test_list(fedsaddle: Command, kind: str) -> None:
    done = fedsaddle("list", kind)
    entries = json.loads(fedsaddle("list", kind, "--json").out)
    assert done.code == 0 and len(done.out.splitlines()) == len(entries) > 0
    for line, entry in zip(done.out.splitlines(), entries, strict=True):
        assert line.split()[0] == entry["name"]
        assert len(entry["description"]) > 10 and "\n" not in entry["description"]


def test_list_without_a_kind_lists_the_kinds(fedsaddle: Command) -> None:
    done = fedsaddle("list")
    assert done.code == 0 and done.err == ""
    assert [line.split()[0] for line in done.out.splitlines()] == list(Kind)
    entries = json.loads(fedsaddle("list", "--json").out)
    assert [e["name"] for e in entries] == list(Kind) and all(e["description"] for e in entries)


def test_list_json_has_parameters(fedsaddle: Command) -> None:
    entries = {e["name"]: e for e in json.loads(fedsaddle("list", "algorithms", "--json").out)}
    assert set(entries) == set(ALGORITHMS)
    fedprox = entries["fedprox"]["parameters"]
    assert fedprox["mu"] == {
        "type": "a number", "required": False, "description": "strength of the tie; 0 is FedAvg.", "default": 0.01,
    }  # fmt: skip
    assert fedprox["lr"]["description"] == "local step size of x."  # from the class that it derives from
    uniform = {e["name"]: e for e in json.loads(fedsaddle("list", "participation", "--json").out)}["uniform"]
    assert uniform["parameters"]["m"]["required"] and "default" not in uniform["parameters"]["m"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_parameter_of_an_algorithm_is_explained(name: str) -> None:
    texts = {key: about["description"] for key, about in parameters(Kind.algorithms, name).items()}
    assert texts and all(texts.values())
    shown = " ".join(described(Kind.algorithms, name).split())
    assert all(text in shown for text in texts.values())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("codasca", ["server_lr = 1.0", "Yuan, Zhuoning", "[algorithm] in a config"]),
        ("quadratic", ["(problem, [problem]", "(dataset, [data]", "heterogeneity = 1.0"]),
        ("dirichlet", ["alpha = 0.5", "required"]),
        ("cyclic", ["groups", "required: G, for consecutive ids"]),
        ("a9a", ["Source:", "limit"]),
        ("mlp", ["hidden = [64]"]),
        ("serial", ["one client at a time"]),
    ],
)
def test_show_a_name(fedsaddle: Command, name: str, shown: list[str]) -> None:
    done = fedsaddle("show", name)
    assert (done.code, done.err) == (0, "")
    assert all(text in done.out for text in shown), done.out


def test_every_name_can_be_shown(fedsaddle: Command) -> None:
    for kind in Kind:
        for name in things(kind):
            assert described(kind, name).startswith(f"{name} (")


def test_show_a_config(fedsaddle: Command) -> None:
    done = fedsaddle("show", save(TABLE), "--set", "algorithm.lr=0.3")
    assert done.code == 0
    assert tomllib.loads(done.out)["algorithm"]["lr"] == 0.3  # all of it is TOML
    assert "# Federation(4 clients" in done.out and "benign  malignant" in done.out
    assert not Path("runs").exists()


def test_cite(fedsaddle: Command) -> None:
    assert fedsaddle("cite", "scaffold").out.startswith("@inproceedings{karimireddy2020scaffold,")
    everything = fedsaddle("cite").out
    assert everything.startswith("@software{fedsaddle,")
    assert everything.count("@inproceedings{") == len({a.cites.key for a in ALGORITHMS.values()})


def test_reproduce(fedsaddle: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called = []
    here = tmp_path / "here"
    here.mkdir()
    (here / "table.md").write_text("a table")
    monkeypatch.setattr("fedsaddle.reproduce.experiments", lambda: {"paper/figure": "What it shows"})
    monkeypatch.setattr(
        "fedsaddle.reproduce.reproduce", lambda *given, **more: called.append((*given, more)) or here
    )
    assert fedsaddle("reproduce", "paper/figure", "--quick").out == f"a table\n{here}: table.md\n"
    fedsaddle(
        "reproduce", "paper/figure", "--data", "cifar10", "--model", "cnn", "--part", "K8", "--jobs", "3", "--device", "cuda"
    )  # fmt: skip
    variant = {"data": "cifar10", "model": "cnn", "part": "K8"}
    assert called == [
        ("paper/figure", True, None, {"options": {}, "jobs": 1, "device": None}),
        ("paper/figure", False, None, {"options": variant, "jobs": 3, "device": "cuda"}),
    ]
    done = fedsaddle("reproduce", "paper/figur")
    assert (done.code, done.err) == (
        2,
        "fedsaddle: experiment 'paper/figur' is unknown; did you mean 'paper/figure'?\n",
    )


def test_help_and_version(fedsaddle: Command) -> None:
    assert fedsaddle().out == fedsaddle("--help").out
    assert fedsaddle("deploy").out == fedsaddle("deploy", "--help").out
    assert "..." not in fedsaddle().out.partition("Commands:")[2]  # every line is whole
    assert all(
        name in fedsaddle().out for name in ("run", "compare", "list", "show", "report", "cite", "reproduce")
    )
    said = " ".join(fedsaddle("run", "--help").out.split())
    assert said.count("FILE.toml The run's config; fedsaddle new writes one. [required]") == 1
    assert "\\" not in said + fedsaddle("probe", "--help").out
    said = " ".join(fedsaddle("export", "--help").out.split())
    assert "`rows` of fs.load_model(DIR)" in said and "install onnxruntime" in said
    assert fedsaddle("--version").out.count(".") >= 2


def test_coda_plus_says_when_it_is_local_sgda(fedsaddle: Command) -> None:
    assert "Without `gamma` and `stage_rounds`" in fedsaddle("show", "coda_plus").out


# ------------------------------------------------------------------------------------------------- mistakes


def refused(done: Done, message: str) -> None:
    """Exit code 2 and one line that has the message, on stderr."""
    assert "Traceback" not in done.out + done.err
    assert done.err.startswith("fedsaddle: ") and done.err.count("\n") == 1 and done.err.endswith("\n"), (
        done.err
    )
    assert message in done.err
    assert done.code == 2
    assert done.out == ""


MISTAKES = {  # what is set on TABLE -> what the line says
    "negative step": (["algorithm.lr=-0.1"], "CODASCA: lr must be > 0, got -0.1"),
    "nan step": (["algorithm.lr=nan"], "CODASCA: lr must be > 0, got nan"),
    "wrong type": (['algorithm.lr="big"'], 'algorithm.lr: must be a number, got "big"'),
    "bool for a number": (["algorithm.local_steps=true"], "algorithm.local_steps: must be a whole number, got true"),
    "fraction of a step": (["algorithm.local_steps=1.5"], "algorithm.local_steps: must be a whole number, got 1.5"),
    "unknown algorithm": (["algorithm.name=codasac"], "algorithm.name: \"codasac\" is unknown; did you mean 'codasca'?\n"),
    "capital letters": (["algorithm.name=CODASCA"], "algorithm.name: \"CODASCA\" is unknown; did you mean 'codasca'?\n"),
    "misspelt key": (["algorithm.local_step=3"], "local_step: unknown key, did you mean 'local_steps'? codasca takes lr"),
    "key of another algorithm": (["algorithm.mu=3"], "algorithm.mu: unknown key; codasca takes lr"),
    "unknown section": (["algoritm.lr=0.1"], "algoritm: unknown section, did you mean 'algorithm'?"),
    "name is a list": (["transform=[{name=['x']}]"], 'transform[0].name: ["x"] is unknown; known are remove_positives'),
    "section without a name": (["algorithm={lr=0.1}"], "algorithm: needs one of name, module; got none; names are local"),
    "misspelt name": (["data={nme='breast_cancer'}"], "data.nme: unknown key, did you mean 'name'?"),
    "section is a value": (["train=5"], "train: must be a table [train], got 5"),
    "missing required key": (["participation.name=uniform"], "participation.m: is missing; uniform needs it: a whole"),
    "one client": (["partition.clients=1"], "a federation needs at least 2 clients, got 1"),
    "batch of 0": (["train.batch_size=0"], "batch_size must be >= 1"),
    "no rounds": (["train.rounds=0"], "rounds must be a whole number >= 1, got 0"),
    "unknown engine": (["train.engine=fast"], "engine must be one of stacked, serial, torchrun, got fast"),
    "unknown device": (["train.device=quantum"], "train.device: 'quantum' cannot be used"),
    "unknown precision": (["train.dtype=float16"], "dtype must be float32 or float64, got float16"),
    "negative seed": (["train.seed=-1"], "seed must be >= 0, got -1"),
    "negative partition seed": (["partition.seed=-1"], "partition: ValueError"),
    "unknown data set": (["data.name=brest_cancer"], "did you mean 'breast_cancer'?"),
    "missing data set file": (["data.name=a9a"], "found no a9a.bz2"),
    "unknown option of a data set": (["data.features=3"], "data.features: unknown key; breast_cancer takes"),
    "two kinds of data": (["data.files=x"], "data: needs one of name, files, file, sites; got name and files"),
    "hold-out of everything": (["data.test=1.0"], "data.test: must be a share in (0, 1), got 1; a quarter is 0.25"),
    "hold-out in per cent": (["data.valid=25"], "data.valid: must be a share in (0, 1), got 25; 25 % is 0.25"),
    "unknown scale": (["data.scale=standrd"], "did you mean 'standard'?"),
    "unknown partition": (["partition.name=dirichle"], "did you mean 'dirichlet'?\n"),
    "more clients than samples": (["partition.clients=10000"], "569 rows cannot fill 10000 clients"),
    "concentration": (["partition.alpha=0.0"], "dirichlet: alpha must be > 0, got 0.0"),
    "no natural groups": (["partition={name='natural'}"], "breast_cancer has no natural groups"),
    "transform is no list": (["transform.name=flip_labels"], "transform: must be [[transform]] tables"),
    "share of a transform": (["transform=[{name='flip_labels', share=1.5}]"], "share must be in [0, 1], got 1.5"),
    "unknown model": (["model.name=mpl"], "did you mean 'mlp'?\n"),
    "model for images": (["model.name=cnn"], "model 'cnn' needs images"),
    "width of a model": (["model.name=mlp", "model.hidden=[0]"], "each width in hidden must be an integer >= 1, got 0"),
    "model that does not exist": (["model={module='nowhere_at_all:f'}"], "model.module: cannot import nowhere_at_all:f"),
    "model without a function": (["model={module='nowhere'}"], 'model.module: must be "module:factory", got "nowhere"'),
    "two outputs for AUC": (["model.outputs=2"], "AUC: the model must have one output, got 2"),
    "m larger than N": (["participation={name='uniform', m=5}"], "m must be between 1 and the 4 clients, got 5"),
    "probability of taking part": (["participation={name='independent', p=1.5}"], "p must be between 0 and 1, got 1.5"),
    "probability of failure": (["participation={name='full', failure=1.0}"], "failure must be at least 0 and below 1"),
    "trace that is not there": (["participation={name='trace', rounds='no.csv'}"], "rounds must be a readable text file"),
    "positive ratio": (["problem.p=1.5"], "AUC: p must be between 0 and 1 (the share of positives), got 1.5"),
    "choice": (["problem.dual=margn"], 'problem.dual: must be "gradient" or "margin", got "margn"'),
    "FedAvg on AUC": (["algorithm={name='fedavg'}"], "FedAvg: minimises a loss, but AUC has 1 dual"),
    "cross-entropy with one output": (
        ["problem={name='erm', loss='cross_entropy'}", "algorithm={name='fedavg'}", "model.outputs=1"],
        "needs a model with one output a class (2), got 1",
    ),
    "regression for AUC": (["data.name=diabetes", "partition={name='iid', clients=4}"], "AUC: y must be classes"),
    "quadratic without its data": (["problem={name='quadratic'}"], "model: has no use here"),
    "quadratic data for AUC": (["data={name='quadratic'}"], "partition: has no use here"),
    "set without =": (["algorithm.lr"], "--set algorithm.lr: must be section.key=value"),
    "set without key": (["=3"], "--set =3: must be section.key=value"),
    "set into a value": (["name=x", "name.y=3"], "--set name.y=3: name is a value, not a section"),
    "name with a slash": (["name='../x'"], "name: must be text without slashes"),
    "name is a number": (["name=3"], "name: must be text"),
}  # fmt: skip


@pytest.mark.parametrize(("sets", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_in_a_config(fedsaddle: Command, sets: list[str], message: str) -> None:
    refused(fedsaddle("run", save(TABLE), *(a for s in sets for a in ("--set", s))), message)
    assert os.listdir() == ["tiny.toml"] or os.listdir("runs") == []  # no half-made run


@pytest.mark.parametrize("section", ["data", "partition", "model", "problem", "algorithm", "train"])
def test_a_missing_section(fedsaddle: Command, section: str) -> None:
    tree = {k: v for k, v in TABLE.items() if k != section}
    refused(fedsaddle("run", save(tree)), f"{section}: section is missing; for example [{section}] with ")


def test_sections_without_use(fedsaddle: Command) -> None:
    hospitals()
    refused(
        fedsaddle("run", save(FILES | {"partition": TABLE["partition"]})), "each file or group is a client"
    )
    refused(fedsaddle("run", save(QUADRATIC | {"model": TABLE["model"]})), "problem 'quadratic' has none")


@pytest.mark.parametrize("sets", ["clients=0", "dim_x=-1", "samples=0"])
def test_an_impossible_quadratic(fedsaddle: Command, sets: str) -> None:
    refused(fedsaddle("run", save(QUADRATIC), "--set", f"data.{sets}"), "")


def test_mistakes_in_files(fedsaddle: Command) -> None:
    refused(
        fedsaddle("run", "none.toml"), "none.toml: No such file or directory; fedsaddle new writes a first"
    )
    Path("folder").mkdir()
    refused(fedsaddle("run", "folder"), "folder: Is a directory")
    Path("folder/mine.toml").write_text("")
    refused(fedsaddle("run", "folder"), "folder: Is a directory; did you mean 'folder/mine.toml'?")
    refused(fedsaddle("run", "folder/mime.toml"), "directory; did you mean 'folder/mine.toml'?")
    refused(fedsaddle("resume", "foldr"), "foldr: is not a folder; did you mean 'folder'?")
    refused(
        fedsaddle("resume", "folder"), "folder: has no config.toml, it is not a run; name the folder of a"
    )
    Path("folder/history.jsonl").write_text("")
    refused(fedsaddle("resume", "folder"), "has no config.toml; fs.train(..., out=, resume=True) goes on")
    refused(fedsaddle("compare", "foldr"), "foldr: is not a folder; did you mean 'folder'?")
    Path("table.csv").write_text("a,b\n1,2\n")
    refused(fedsaddle("run", "table.csv"), "fedsaddle new --data table.csv")
    refused(fedsaddle("resume", "table.csv"), "table.csv: is not a folder; name the folder of a run")
    Path("broken.toml").write_text("[data\nname = 3")
    refused(fedsaddle("run", "broken.toml"), "broken.toml: is not valid TOML: ")
    Path("latin.toml").write_bytes('name = "Köln"'.encode("latin-1"))
    refused(fedsaddle("run", "latin.toml"), "latin.toml: is not valid TOML: ")
    Path("empty.toml").write_text("")
    refused(fedsaddle("run", "empty.toml"), "data: section is missing")


def _nan(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    if name == "south":
        frame.loc[5, "bmi"] = float("nan")
    return frame


BAD_DATA = {
    "NaN": (_nan, {}, "the first in 'bmi' at row 5, line 7 of the file"),
    "empty client": (lambda name, f: f if name != "west" else f[:0], {}, "west.csv has no rows"),
    "text": (lambda name, f: f.assign(bmi=[*f.bmi[1:], "high"]), {}, "column 'bmi' has numbers, but 'high' at row"),
    "other columns": (lambda name, f: f.rename(columns={"bmi": name}), {}, "south.csv has no column 'north'"),
    "no label column": (None, {"label": "dead"}, ".csv has no column 'dead'"),
    "misspelt label": (None, {"label": "dead"}, "fedsaddle: data.label: "),
    "misspelt drop": (None, {"drop": ["bmy"]}, ".csv has no column 'bmy': did you mean 'bmi'?"),
    "no such label": (None, {"positive": "yes"}, "data.positive='yes' never occurs in label 'died': choose from '0', '1'"),
    "label with one class": (
        lambda name, f: f.assign(died=0), {}, "data.positive=1 never occurs in label 'died': choose from '0'",
    ),
    "no label in some rows": (
        lambda name, f: f.assign(died=f.died.where(f.index > 2)),
        {},
        ".csv: label 'died' has no value in 3 of ",
    ),
    "no label in a row": (
        lambda name, f: f.assign(died=f.died.where(f.index != 5)),
        {},
        "label 'died' has no value at row 5, line 7 of the file: drop rows without a label, or label them",
    ),
    "no file": (None, {"files": "nowhere/*.csv"}, "no data file at"),
    "one file": (None, {"files": "sites/west.csv"}, "a federation needs at least 2 clients, got 1 ('west')"),
    "missing label": (None, {"label": None}, "west.csv is a table: name its label column"),
    "unreadable file": (None, {"files": ["sites/west.csv", "broken.npz"]}, "broken.npz cannot be read as npz"),
    "list of numbers": (None, {"files": [1, 2]}, "data.files: must be text or a list [text, ...], got [1, 2]"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "options", "message"), BAD_DATA.values(), ids=BAD_DATA)
def test_mistakes_in_data(fedsaddle: Command, change: Any, options: dict[str, Any], message: str) -> None:
    hospitals(change) if change else hospitals()
    Path("broken.npz").write_bytes(b"not an archive")
    data = {k: v for k, v in {**FILES["data"], **options}.items() if v is not None}
    done = fedsaddle("run", save(FILES | {"data": data}))
    refused(done, message.replace("west.csv is a", ".csv is a"))
    assert not Path("runs").exists()


def test_one_class_everywhere(fedsaddle: Command) -> None:
    hospitals(lambda name, frame: frame.assign(died=0))
    data = {"files": "sites", "label": "died"}
    refused(fedsaddle("run", save(FILES | {"data": data})), "no client has positive examples")
    assert os.listdir("runs") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "clinic"}, "data.group: the table has no column 'clinic': it has "),
        ({"label": "dyed"}, "data.label: the table has no column 'dyed': did you mean 'died'?"),
        ({"drop": ["clinic"]}, "data.drop: the table has no column 'clinic'"),
        ({"positive": "Yes"}, "data.positive='Yes' never occurs in label 'died': choose from '0', '1'"),
        ({"group": None}, "data.group: is missing; data with file needs it: text"),
        ({"file": "nothing.csv"}, "data.file: there is no nothing.csv in "),
        (
            {"file": "nothing.csv"},
            " (paths are relative to the config's folder, with --set to the current one); correct it",
        ),
        ({"file": "al.csv"}, "; did you mean "),
        ({"file": "tiny.toml"}, "data.file: must be a .csv or .parquet file, got tiny.toml"),
        (
            {"file": "sites"},
            "sites is a folder; name one table in it, or, if each of its files is a site, give data.files",
        ),
        ({"file": "hollow.csv"}, "hollow.csv cannot be read as csv: No columns to parse"),
    ],
)
def test_mistakes_in_a_table(fedsaddle: Command, options: dict[str, Any], message: str) -> None:
    hospitals()
    Path("hollow.csv").write_text("")
    data = {k: v for k, v in {**FRAME["data"], **options}.items() if v is not None}
    refused(fedsaddle("run", save(FRAME | {"data": data})), message)


def test_gaps_in_the_columns_of_sites_and_labels_are_named(fedsaddle: Command) -> None:
    hospitals()
    table = pd.read_csv("all.csv")
    gap = {
        "hospital": "all.csv: group 'hospital' has no value in 2 of 72 rows, the first at row 7, line 9 of the file: "
        "drop rows without a client, or name it\n",
        "died": "all.csv: label 'died' has no value in 2 of 72 rows, the first at row 7, line 9 of the file: "
        "drop rows without a label, or label them\n",
    }
    for column, message in gap.items():
        table.assign(**{column: table[column].where(~table.index.isin([7, 30]))}).to_csv(
            "all.csv", index=False
        )
        refused(fedsaddle("run", save(FRAME)), message)


def test_several_values_that_count_as_negative_are_said(fedsaddle: Command) -> None:
    hospitals(
        lambda name, f: f.assign(
            died=f.died.map({0: "no", 1: "yes"}).where((f.index != 4) | (name != "west"), "Yes")
        )
    )
    for tree in (FRAME, FILES):
        done = fedsaddle("run", save(tree | {"data": tree["data"] | {"positive": "yes"}}), "--quiet")
        assert done.code == 0
        assert done.err.splitlines()[0] == (
            "fedsaddle: warning: label 'died': 'no' (47 rows) and 'Yes' (1) count as negative; if that is not meant, "
            "correct or drop these rows, or list more values in positive"
        )
        both = fedsaddle("run", save(tree | {"data": tree["data"] | {"positive": ["yes", "Yes"]}}), "--quiet")
        assert both.code == 0 and "negative" not in both.err


def test_mistakes_in_an_own_model(fedsaddle: Command) -> None:
    Path("my_models_b.py").write_text(
        "from torch import nn\n"
        "def batch_norm(): return nn.Sequential(nn.Linear(30, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))\n"
        "def narrow(): return nn.Linear(3, 1)\n"
        "def nothing(): return None\n"
        "def raises(): raise KeyError('oh')\n"
        "number = 3\n"
    )
    for name, message in {
        "batch_norm": "has BatchNorm1d at '1'",
        "narrow": "model: does not take samples of shape (30,)",
        "nothing": "model must be a torch.nn.Module, got NoneType",
        "raises": "model: KeyError: 'oh'",
        "number": "must be a function or class",
        "missing": "cannot import my_models_b:missing",
    }.items():
        refused(fedsaddle("run", save(TABLE | {"model": {"module": f"my_models_b:{name}"}})), message)


def test_a_run_that_diverges_says_where_its_history_is(fedsaddle: Command) -> None:
    done = fedsaddle("run", save(TABLE), "--set", "algorithm.lr=1e6", "--set", "train.rounds=100")
    refused(done, "CODASCA: diverged in round")
    said = (
        "; resuming would diverge again; fedsaddle probe runs/tiny/config.toml measures which steps suit; or "
    )
    assert done.err.endswith(
        said
        + "begin anew with a smaller step, such as: fedsaddle run runs/tiny/config.toml --set algorithm.lr=100000\n"
    )
    anew = (
        "run",
        "runs/tiny/config.toml",
        "--set",
        "algorithm.lr=0.01",
        "--set",
        "train.rounds=2",
        "--quiet",
    )
    assert fedsaddle(*anew).out == "runs/tiny-2\n"
    assert {p.name for p in Path("runs/tiny").iterdir()} == {
        "config.toml",
        "history.jsonl",
        "seconds.jsonl",
        "checkpoint",
        "stopped.json",
    }
    why = done.err.removeprefix("fedsaddle: ")
    refused(fedsaddle("show", "runs/tiny"), f"the run did not finish; {why.strip()}")
    both = fedsaddle("compare", "runs/tiny", "runs/tiny-2")
    assert both.code == 0 and [line.split()[0] for line in both.out.splitlines()[:2]] == ["run", "tiny-2"]
    assert both.err == f"fedsaddle: runs/tiny: did not finish, left out; {why}"
    refused(fedsaddle("compare", "runs/tiny"), "runs/tiny: has no result.json, the run did not finish")
    assert fedsaddle("report", "runs/tiny").out == "runs/tiny/report.html\n"  # as far as it got
    assert "resuming would diverge again" in Path("runs/tiny/report.html").read_text()


def test_seeds_are_trained_one_by_one_and_share_a_row(fedsaddle: Command) -> None:
    done = fedsaddle("run", save(TABLE), "--seeds", "0,2")
    folders = ["runs/tiny-seed-0", "runs/tiny-seed-2"]
    assert done.out.splitlines()[:2] == folders
    aucs = [json.loads(Path(f, "result.json").read_text())["metrics"]["auc"] for f in folders]
    assert aucs[0] != aucs[1]
    spread = f"{np.mean(aucs):.4f} ± {np.std(aucs, ddof=1):.4f}"
    row = re.search(rf"tiny \(2 seeds\)  CODASCA    {re.escape(spread)}  (0\.\d+) to (\d\.\d+)  ", done.out)
    assert row is not None and float(row[1]) < np.mean(aucs) < float(row[2])
    assert (
        "of several seeds of their mean AUC" in done.out
        and "\n±: standard deviation over seeds.\n" in done.out
    )
    assert Path("runs/tiny-seed-0-and-others.html").exists()
    for folder, auc in zip(folders, (0.7296, 0.7306), strict=True):
        file = Path(folder, "result.json")
        result = json.loads(file.read_text())
        file.write_text(json.dumps(result | {"metrics": result["metrics"] | {"auc": auc}}))
    assert "  0.7301 ± 0.0007  " in fedsaddle("compare", *folders).out  # as many decimals as the mean
    fedsaddle("run", save(TABLE), "--set", "algorithm.lr=0.01", "--out", "tiny", "--quiet")
    fedsaddle("run", save(TABLE), "--out", "again", "--quiet")  # seed 0 once more, which is no repetition
    compared = fedsaddle("compare", *folders, "tiny", "again")
    assert compared.err == "fedsaddle: again: is the same run as runs/tiny-seed-0, left out\n"
    rows = [line.partition("  ")[0] for line in compared.out.splitlines()[1:3]]
    assert rows == ["tiny (2 seeds)", "tiny"] and "not over seeds" in compared.out


def test_compare_leaves_out_what_is_no_run(fedsaddle: Command) -> None:
    """`fedsaddle compare runs/*` works although fedsaddle itself puts pages and sweeps into runs."""
    fedsaddle("run", save(TABLE), "--seeds", "0,1")
    Path("runs/sweep/tiny").mkdir(parents=True)
    inside = sorted(map(str, Path("runs").iterdir()))
    assert inside == [
        "runs/sweep",
        "runs/tiny-seed-0",
        "runs/tiny-seed-0-and-others.html",
        "runs/tiny-seed-1",
    ]
    done = fedsaddle("compare", *inside)
    assert done.code == 0 and done.out.splitlines()[1].startswith("tiny (2 seeds)")
    assert done.err == "fedsaddle: runs/sweep: is not a run, left out\n"  # of a page nothing is said
    refused(
        fedsaddle("compare", "runs/sweep", "runs/tiny-seed-0-and-others.html"),
        "runs/sweep: has no result.json, it is not a run",
    )
    refused(fedsaddle("compare", *inside, "runs/tiny-seed-3"), "runs/tiny-seed-3: is not a folder")
    refused(
        fedsaddle("compare", "runs"), "runs: is no run, but holds 2; name these: fedsaddle compare runs/*"
    )
    Path("empty").mkdir()
    refused(fedsaddle("compare", "empty/*"), "empty: there is no run in it yet; fedsaddle run makes one")


def test_what_seeds_refuse(fedsaddle: Command) -> None:
    file = save(TABLE)
    for wrong in ("0,x", "", "1,1", "1,01", "-1", "9" * 30):
        refused(fedsaddle("run", file, "--seeds", wrong), "--seeds: must be different whole numbers")
    refused(fedsaddle("run", file, "--seeds", "0,1", "--set", "train.seed=3"), "give one of the two")
    Path("out/tiny-seed-1").mkdir(parents=True)
    refused(fedsaddle("run", file, "--seeds", "0,1", "--out", "out"), "out/tiny-seed-1: is there already")
    assert not Path("out/tiny-seed-0").exists()  # found before anything was trained
    done = fedsaddle("run", file, "--seeds", "0,1,2", "--set", "algorithm.lr=1e30", "--out", "b")
    refused(done, "diverged")
    assert done.err.endswith("; not trained: --seeds 1,2\n")


def test_runs_that_differ_in_more_than_the_seed_have_rows_of_their_own(fedsaddle: Command) -> None:
    hospitals()
    run = ("run", save(FRAME), "--quiet")
    fedsaddle(*run, "--set", "train.seed=0", "--out", "r-0")
    fedsaddle(*run, "--set", "train.seed=1", "--out", "r-1")
    fedsaddle(*run, "--set", "train.seed=2", "--set", "train.guard=1", "--out", "r-2")
    rows = [
        line.partition("  ")[0] for line in fedsaddle("compare", "r-0", "r-1", "r-2").out.splitlines()[1:3]
    ]
    assert rows == ["r (2 seeds)", "r-2"]
    fedsaddle(*run, "--set", "data.test=0.5", "--out", "other")
    said = "3 of 3 clients have fewer than 10 test samples of one class, down to 2: "
    assert fedsaddle("compare", "r-0", "r-1", "r-2").out.count(said) == 1  # all have it
    assert fedsaddle(*run[:2], "--seeds", "0,1", "--out", "seeds").out.count(said) == 1
    lines = Path("r-1/scores.csv").read_text().splitlines()
    Path("r-1/scores.csv").write_text("\n".join(lines[:-1]) + "\n")  # other rows: no interval of the mean
    both, alone = fedsaddle("compare", "r-0", "r-1", "r-2").out.splitlines()[1:3]
    assert re.search(r" ± \S+  -  ", both) and re.search(r"  0\.\d+ to \d\.\d+  ", alone)
    said = fedsaddle("compare", "r-0", "other").out
    assert "Not compared sample by sample: r-0, other (different test samples)." in said
    said = fedsaddle("compare", "other", "r-0", "r-2").out
    assert "Not compared sample by sample: other (different test samples)." in said
    assert re.search(r"\nother .*  -  .*\nr-", said) and "the other with the same test samples" in said
    assert "behind the best" in said and "(different test samples)" in Path("comparison.html").read_text()


def test_scores_of_the_test_rows(fedsaddle: Command) -> None:
    """They can be joined with the user's own table, have the AUC of the run, and are compared pair by pair."""
    hospitals()
    for lr in ("0.05", "0.0001"):
        done = fedsaddle("run", save(FRAME), "--set", f"algorithm.lr={lr}", "--out", f"lr-{lr}")
        assert "scores.csv" in done.out and re.search(r"AUC, test +\S+ +\(95 %: 0\.\d+ to 0\.\d+\)", done.out)
    table = pd.read_csv("all.csv")
    found = [pd.read_csv(f"lr-{lr}/scores.csv") for lr in ("0.05", "0.0001")]
    for scores, folder in zip(found, ("lr-0.05", "lr-0.0001"), strict=True):
        own = table.iloc[scores["row"]]
        assert list(own["hospital"]) == list(scores["client"]) and list(own["died"]) == list(scores["y"])
        assert len(scores) == scores["row"].nunique() == 18
        result = json.loads(Path(folder, "result.json").read_text())
        assert roc_auc_score(scores["y"], scores["score"]) == pytest.approx(
            result["metrics"]["auc"], abs=1e-12
        )
        low, high = result["auc_interval"]
        assert low < result["metrics"]["auc"] < high
    aucs = [roc_auc_score(scores["y"], scores["score"]) for scores in found]
    assert aucs[0] != aucs[1]
    both = fedsaddle("compare", "lr-0.05", "lr-0.0001")
    assert f" {abs(aucs[0] - aucs[1]):.4f} (" in both.out and "behind the best" in both.out
    assert "Behind the best" in Path("comparison.html").read_text()
    fedsaddle("run", save(FRAME | {"data": FRAME["data"] | {"test": 0.5}}), "--out", "other", "--quiet")
    both = fedsaddle("compare", "lr-0.05", "other")  # on other rows: no differences
    assert "behind the best" not in both.out and "95 %" in both.out
    assert "Behind the best" not in Path("comparison.html").read_text()
    Path("other/scores.csv").write_text("client,row\n")
    refused(fedsaddle("compare", "lr-0.05", "other"), "other/scores.csv: is not the scores of a run")
    Path("other/scores.csv").unlink()  # as in folders of an older fedsaddle
    assert "behind the best" not in fedsaddle("compare", "lr-0.05", "other").out
    assert fedsaddle("compare", "lr-0.05", "./lr-0.05").code == 0  # one run


def test_out_that_cannot_be_used(fedsaddle: Command) -> None:
    file = save(QUADRATIC)
    fedsaddle("run", file, "--out", "here", "--quiet")
    before = {p: p.read_bytes() for p in Path("here").rglob("*.*") if p.is_file()}
    refused(
        fedsaddle("run", file, "--out", "here"),
        "here: already holds a run (config.toml); choose another folder",
    )
    assert {p: p.read_bytes() for p in Path("here").rglob("*.*") if p.is_file()} == before
    refused(fedsaddle("run", file, "--out", "tiny.toml"), "tiny.toml: File exists")
    refused(fedsaddle("run", file, "--out", "tiny.toml/x"), "tiny.toml/x: Not a directory")
    refused(fedsaddle("run", file, "--out", "/proc/nothing"), "/proc/nothing: No such file or directory")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'? try: fedsaddle --help"),
        (["mine.toml"], "No such command 'mine.toml'; try: fedsaddle run mine.toml"),
        (["run"], "Missing argument"),
        (["run", "x.toml", "--fast"], "No such option"),
        (["export", "x"], "Missing option '--onnx'; try: fedsaddle export --help"),
        (["list", "algorithmz"], "'algorithmz' is not one of 'algorithms'"),
        (["list", "algorithm"], "; did you mean 'algorithms'? try: fedsaddle list --help"),
        (["show", "codasac"], "'codasac' is unknown; did you mean 'codasca'?"),
        (["show", "xyzzy"], "'xyzzy' is unknown; try: fedsaddle list algorithms"),
        (["show", "no.toml"], "no.toml: No such file or directory"),
        (["show", "runs/no"], "runs/no: is not a folder; name the folder of a run"),
        (["show", "."], "has no result.json, it is not a run"),
        (["cite", "codsca"], "cite: 'codsca' is unknown; did you mean 'codasca'?"),
        (["compare", "nowhere"], "nowhere: is not a folder"),
        (["compare"], "Missing argument"),
        (["report", "."], "has no result.json, it is not a run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_on_the_command_line(fedsaddle: Command, arguments: list[str], message: str) -> None:
    refused(fedsaddle(*arguments), message)


def test_a_result_that_is_none(fedsaddle: Command) -> None:
    Path("run").mkdir()
    for text in ("{", "[]", "{}", "\xff"):
        Path("run/result.json").write_text(text, encoding="latin-1")
        refused(fedsaddle("show", "run"), "result.json: is not the result of a run")


def test_a_defect_is_not_hidden(fedsaddle: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "read_result", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["report", "."])


# --------------------------------------------------------------------------------------------- as a process


def test_words_come_before_torch(tmp_path: Path) -> None:
    commands = {(): 0, ("--help",): 0, ("--version",): 0, ("rnu",): 2, ("run",): 2, ("list", "nothing"): 2}
    commands |= {
        (*command.split(), "--help"): 0
        for command in ("run", "sweep", "list", "doctor", "deploy", "deploy run", "deploy site")
    }
    commands |= {(*command.split(), "none.toml"): 2 for command in ("run", "sweep", "probe", "deploy run")}
    commands |= {(command, "nowhere"): 2 for command in ("resume", "compare", "report")}
    code = (
        "import sys\nfrom fedsaddle import cli\n"
        f"for arguments, code in {commands!r}.items():\n"
        "    assert cli._main(arguments) == code, arguments\n"
        "    assert not {'torch', 'numpy', 'flwr'} & set(sys.modules), arguments\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == sum(code == 2 for code in commands.values())


def process(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-m", "fedsaddle", *arguments], subprocess.PIPE
    heed = lambda: signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # a background job inherits that it is ignored
    return subprocess.Popen(command, cwd=folder, text=True, stdout=pipe, stderr=pipe, preexec_fn=heed)


def finished(running: subprocess.Popen[str]) -> Done:
    out, err = running.communicate(timeout=120)
    return Done(running.returncode, out, err)


def test_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = finished(process(tmp_path, "run", save(QUADRATIC), "--quiet"))
    assert done == Done(0, "runs/tiny\n", "")


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = save(QUADRATIC | {"train": {"rounds": 10_000_000}})
    running = process(tmp_path, "run", file)
    history = tmp_path / "runs" / "tiny" / "history.jsonl"
    deadline = time.monotonic() + 100
    while not (history.exists() and history.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    done = finished(running)
    assert (done.code, done.out) == (130, "")
    assert re.fullmatch(
        r"fedsaddle: interrupted; fedsaddle resume runs/tiny goes on after round \d+\n", done.err
    )
