"""fedsaddle new and fedsaddle doctor: what is written runs as it stands, and what is wrong with a machine is one line."""

from __future__ import annotations

import io
import json
import math
import re
import runpy
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedsaddle import cli, doctor, guesses
from fedsaddle.config import load
from fedsaddle.data import DATASETS
from fedsaddle.drafts import AIMS
from fedsaddle.new import Wanted, project
from fedsaddle.steps import largest_near_best
from tests.conftest import Done


def patients(n: int = 240) -> pd.DataFrame:
    """A table as a hospital has it: numbers of patients, text, gaps, and a rare outcome."""
    rng = np.random.default_rng(0)
    died = rng.random(n) < 0.3
    return pd.DataFrame({
        "patient_id": rng.permutation(n),
        "age": rng.integers(20, 90, n) + 10 * died,
        "sex": rng.choice(["f", "m"], n),
        "hospital": rng.choice(["north", "south", "the 'old' one"], n),
        "lactate": np.where(rng.random(n) < 0.1, np.nan, rng.random(n)),
        "pressure": rng.standard_normal(n) - died,
        "died": np.where(died, "yes", "no"),
    })  # fmt: skip


def tables(folder: Path) -> None:
    frame = patients()
    frame.to_csv(folder / "all.csv", index=False)
    frame.to_csv(folder / "semicolon.csv.gz", index=False, sep=";")
    frame.to_csv(folder / "commas.csv", index=False, sep=";", decimal=",")
    (folder / "sites").mkdir()
    for i, (_, own) in enumerate(frame.groupby("hospital")):
        own.drop(columns="hospital").assign(died=(own["died"] == "yes").astype(int)).to_csv(
            folder / "sites" / f"s{i}.csv", index=False
        )


CASES = {
    "a table": ("all.csv", "auc", "linear"),
    "another separator, packed": ("semicolon.csv.gz", "fair", "mlp"),
    "decimal commas": ("commas.csv", "auc", "linear"),
    "a file a site": ("sites", "pairs", "linear"),
    "a bundled set of three classes": ("wine", "auc", "mlp"),
    "a generated set with its own test part": ("synthetic_binary", "fair", "linear"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_runs_as_it_stands(
    case: str, fedsaddle: Callable[..., Done], capsys: pytest.CaptureFixture[str]
) -> None:
    data, aim, model = CASES[case]
    tables(Path())
    flags = ["--aim", aim, "--model", model, "--rounds", "2", "--script"]
    done = fedsaddle("new", "deep/project", "--data", data, *flags)
    assert done.code == 0, done.err
    file = Path("deep/project/run.toml")
    assert f"fedsaddle run {file}" in done.out
    assert fedsaddle("show", file).code == 0
    metrics = load(file).run(progress=False).metrics
    assert metrics["round"] == 2 and 0.0 <= metrics["auc"] <= 1.0

    state = torch.get_rng_state()
    ran = runpy.run_path("deep/project/run.py")["run"]  # the same, in Python
    torch.set_rng_state(state)
    assert "auc" in capsys.readouterr().out
    same = {k for k in metrics if k != "seconds"}
    assert {k: ran.metrics[k] for k in same} == {k: metrics[k] for k in same}


def test_what_to_do_about_a_table_is_said(fedsaddle: Callable[..., Done]) -> None:
    frame, days = patients(), pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(240) % 99, "D")
    for form in ("%d.%m.%Y", "%Y-%m-%d", "%m/%d/%y"):
        frame[form] = days.strftime(form)
    frame["code"] = [f"1{i % 99}.5 b" for i in range(240)]
    frame["name"] = [f"P{i}" for i in range(240)]
    frame["troponin"] = [1.5, None] * 120
    frame["case_id"] = frame["patient_id"].where(frame.index > 4)  # with gaps pandas reads 7 as 7.0
    frame.loc[:29, "sex"] = None
    frame["smoker"] = [True, False, None] * 80
    frame["country"], frame["unit"], frame["consent"] = "EU", [7.0, 7.0, None] * 80, ["yes", "yes", None] * 80
    frame.loc[frame["hospital"] == "north", "died"] = "no"
    frame.to_csv("all.csv", index=False)
    said = fedsaddle("new", "p", "--data", "all.csv").out
    assert said.count("is dropped: dates; make them numbers") == 3
    assert "'code' is dropped: text with 99 distinct values; group them" in said
    assert "'name' is dropped: a text for each row" in said
    assert "'troponin' is dropped: 50% of its values are missing" in said
    assert "'country' is dropped: one value in all rows\n" in said
    assert "'unit' is dropped: one value in all rows that have one" in said
    assert "'consent' is kept: 80 of 240" in said
    assert "'case_id' is dropped: a number for each row" in said
    gaps = frame["lactate"].isna().sum()
    assert f"'lactate' is kept: {gaps} of 240 values are missing; the median stands in" in said
    assert "'sex' is kept: 30 of 240 values are missing; 'missing' stands in" in said
    assert "'smoker' is kept: 80 of 240 values are missing; the median stands in" in said
    assert "  'north' has one class only: no AUC there, and a site counts by its rows" in said
    said = fedsaddle("new", "r", "--data", "all.csv", "--aim", "pairs").out
    assert "no AUC there, and however few its rows, a site counts as one; leave" in said
    frame["ward"] = ["ICU ", "icu", "east"] * 80
    frame["troponin"] = np.exp(2 * np.random.default_rng(0).standard_normal(240))
    frame.to_csv("all.csv", index=False)
    said = fedsaddle("new", "s", "--data", "all.csv").out
    assert (
        "  'ward': 'ICU ', 'icu' differ in case or blanks alone, and are features of their own; write them alike"
        in said
    )
    assert (
        "  'troponin' has a long tail, values up to " in said
        and 'scale = "log"' in Path("s/run.toml").read_text()
    )
    assert (
        "positive is 'no' (most rows have it)"
        in fedsaddle("new", "t", "--data", "all.csv", "--positive", "no").out
    )
    patients().drop(columns="lactate").to_csv("good.csv", index=False)
    said = fedsaddle("new", "q", "--data", "good.csv").out
    assert "missing" not in said and "one class" not in said
    assert "impute" not in Path("q/run.toml").read_text()


def test_every_aim_is_run() -> None:
    assert {aim for _, aim, _ in CASES.values()} == set(AIMS)


def test_columns_are_proposed_and_what_cannot_be_a_feature_is_dropped(fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    done = fedsaddle("new", "p", "--data", "all.csv")
    assert (
        "sites by 'hospital' (a guess; --site COLUMN chooses); predicts 'died' (a guess; --label" in done.out
    )
    assert "\n  'sex': 2 features of 0 and 1, one for each text\n" in done.out
    text = Path("p/run.toml").read_text()
    data = tomllib.loads(text)["data"]
    assert (data["file"], data["group"], data["label"], data["positive"]) == (
        "../all.csv",
        "hospital",
        "died",
        "yes",
    )
    assert data["drop"] == ["patient_id"]  # sex is text, of two values
    assert data["impute"] == "median"
    assert re.search(r'\n +# "lactate": \d+ of 240 values are missing; the median stands in\n', text)
    assert not Path("p/run.py").exists()
    frame = patients().rename(columns={"hospital": "from", "died": "flag"})
    frame["flag"] = (frame["flag"] == "no").astype(float)  # 1 is positive, although it is not the rarer one
    frame.to_csv("plain.csv", index=False)  # names that say nothing
    assert fedsaddle("new", "q", "--data", "plain.csv").code == 0
    data = tomllib.loads(Path("q/run.toml").read_text())["data"]
    assert (data["group"], data["label"], data["positive"]) == ("from", "flag", 1)
    assert fedsaddle("new", "r", "--data", "all.csv", "--positive", "no", "--label", "died").code == 0
    assert tomllib.loads(Path("r/run.toml").read_text())["data"]["positive"] == "no"


def loans(n: int = 300) -> pd.DataFrame:
    """A table as a bank has it: the label is neither the last column nor the only one with two values."""
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "age": rng.integers(20, 80, n), "defaulted": (rng.random(n) < 0.2) * 1, "branch": rng.choice(["a", "b", "c"], n),
        "amount": rng.standard_normal(n), "prior_default": rng.choice(["yes", "no"], n),
        "permanent_job": rng.choice(["yes", "no"], n), "region": rng.choice(["east", "south", "west"], n),
    })  # fmt: skip


def test_a_label_that_is_not_given_is_called_a_guess(fedsaddle: Callable[..., Done]) -> None:
    loans().to_csv("loans.csv", index=False)
    said = fedsaddle("new", "p", "--data", "loans.csv").out
    assert "; predicts 'defaulted' (a guess; --label COLUMN chooses), positive is 1\n" in said
    assert "\n  also two-valued: 'prior_default', 'permanent_job'\n" in said
    assert tomllib.loads(Path("p/run.toml").read_text())["data"]["label"] == "defaulted"
    said = fedsaddle("new", "q", "--data", "loans.csv", "--label", "permanent_job").out
    assert "; predicts 'permanent_job', positive is 'yes'" in said and "also two-valued" not in said
    many = loans().assign(**{f"flag{i}": np.arange(300) % 2 for i in range(5)})
    many.to_csv("many.csv", index=False)
    assert re.search(
        r"also two-valued: ('\w+', ){4}\.\.\. \(7 in all\)\n", fedsaddle("new", "r", "--data", "many.csv").out
    )


def test_a_column_that_tells_the_label_is_said(fedsaddle: Callable[..., Done]) -> None:
    frame, rng = patients(), np.random.default_rng(1)
    died = (frame["died"] == "yes").to_numpy()
    frame.insert(0, "discharge_code", np.where(died, "E5", rng.choice(["A1", "B2"], 240)))
    frame.insert(
        0, "ended", np.where(died, 3, rng.choice([1, 5], 240))
    )  # a code between others: no rank tells
    frame.insert(0, "score", -1.0 * (died & (np.arange(240) != died.argmax())) + rng.random(240) / 10)
    frame.insert(0, "ward", [f"w{i}" for i in rng.integers(0, 45, 240)])  # five rows each tell nothing
    frame.to_csv("all.csv", index=False)
    said = fedsaddle("new", "p", "--data", "all.csv").out
    assert (
        "  'discharge_code' alone separates 'yes' from the rest (AUC 1.000): add it to drop if it is not known when"
        in said
    )
    assert "  'ended' alone separates" in said and re.search(r"  'score' alone .*AUC 0\.9\d\d", said)
    assert said.count("alone separates") == 3
    few = guesses.tellers(frame, np.arange(240) < 9)
    assert few == {} and guesses.tellers(frame.assign(sex="f"), died).keys() == {
        "score",
        "ended",
        "discharge_code",
        "died",
    }


def test_a_guess_is_called_one_where_it_fails(fedsaddle: Callable[..., Done]) -> None:
    frame = patients().drop(columns=["died", "patient_id"])
    frame.loc[:29, "sex"] = None
    frame.to_csv("all.csv", index=False)
    said = fedsaddle("new", "p", "--data", "all.csv").err
    assert (
        "label 'sex' (a guess; --label COLUMN chooses) has no value in 30 of 240 rows, the first at row 0"
        in said
    )
    for values, what in (
        ("no", "has one value, 'no',"),
        (["yes", None, None] * 80, "has one value, 'yes' and gaps,"),
    ):
        frame.assign(died=values, last_event=1).to_csv("all.csv", index=False)
        said = fedsaddle("new", "p", "--data", "all.csv").err
        assert f"new: column 'died' {what} and no other has the name of a label; give --label\n" in said
    frame["sex"] = frame["sex"].fillna("f")
    frame.assign(died="no").to_csv("all.csv", index=False)
    assert fedsaddle("new", "p", "--data", "all.csv", "--label", "sex").code == 0
    frame.assign(died="no", outcome=frame["sex"]).to_csv("all.csv", index=False)
    assert "predicts 'outcome'" in fedsaddle("new", "q", "--data", "all.csv").out


def test_a_label_is_guessed_by_name_then_place_then_share() -> None:
    frame = loans()
    assert guesses.labels(frame)[0] == "defaulted"
    named = frame.rename(columns={"defaulted": "f1"}).assign(flag=np.arange(300) % 2)
    for name in ("is_fraud", "Churned", "Readmitted30", "y", "TARGET", "death"):
        assert guesses.labels(named.rename(columns={"prior_default": name}))[0] == name
    assert guesses.labels(named.rename(columns={"prior_default": "daily"}))[0] == "flag"  # whole words count
    nameless = frame.rename(columns={"prior_default": "f1", "defaulted": "f2", "permanent_job": "f3"})
    nameless = nameless[["f1", *nameless.columns.drop("f1")]]
    assert guesses.labels(nameless)[0] == "f2"  # a fifth of its rows; of the others half
    assert guesses.labels(nameless.drop(columns="region"))[0] == "f3"  # the last column
    assert (
        guesses.labels(frame.drop(columns=["defaulted", "region"]))[0] == "permanent_job"
    )  # not a default of the past
    gaps = nameless.assign(f2=nameless["f2"].where(nameless.index > 0), clinic=["a"] * 290 + ["b"] * 10)
    assert set(guesses.labels(gaps)[:2]) == {"f1", "f3"}  # neither a column with gaps nor one of sites
    three = nameless.assign(outcome=np.arange(300) % 3)
    assert guesses.labels(three)[0] == "outcome"  # then --positive is asked for


def test_a_slip_of_the_pen_in_a_column_of_two_values_is_said(fedsaddle: Callable[..., Done]) -> None:
    frame = loans().astype({"defaulted": object})
    frame.loc[7, "defaulted"] = "unknown"
    frame["class"] = np.arange(300) % 3  # by its name more of a label, but with three values
    frame.to_csv("loans.csv", index=False)
    done = fedsaddle("new", "p", "--data", "loans.csv")
    assert done.code == 2 and done.err.count("\n") == 1 and not Path("p").exists()
    assert (
        "loans.csv: column 'defaulted' (a guess; --label COLUMN chooses) has 0, 1 and in 1 row 'unknown' at row 7, "
        "line 9 of the file: correct it or drop the row; with --positive VALUE all other" in done.err
    )
    assert fedsaddle("new", "p", "--data", "loans.csv", "--positive", "1").code == 0
    frame.loc[200, "defaulted"] = "?"
    Path("sites").mkdir()
    for i, rows in enumerate((frame[:6], frame[6:])):
        rows.drop(columns="branch").to_csv(f"sites/{i}.csv", index=False)
    said = fedsaddle("new", "q", "--data", "sites", "--label", "defaulted").err
    assert (
        "1.csv: column 'defaulted' has 0, 1 and in 2 rows 'unknown', '?', the first at row 1, line 3" in said
    )
    other = loans()
    other.loc[[7, 9], "permanent_job"] = "unknown"
    other.to_csv("other.csv", index=False)
    said = fedsaddle("new", "r", "--data", "other.csv").out
    assert (
        "\n  also two-valued: 'prior_default'\n  'permanent_job' has no, yes and in 2 rows 'unknown'\n"
        in said
    )
    assert "'region' has" not in said  # three values


def test_values_that_count_as_negative_are_said(fedsaddle: Callable[..., Done]) -> None:
    frame = patients()
    frame.loc[frame.index % 6 == 0, "died"] = "unknown"
    frame.to_csv("all.csv", index=False)
    n = frame["died"].value_counts()
    done = fedsaddle("new", "p", "--data", "all.csv", "--positive", "yes")
    assert (
        f"\n  'no' ({n['no']} rows) and 'unknown' ({n['unknown']}) count as negative; correct or drop rows"
        in done.out
    )
    assert "negative" not in done.err  # once is enough
    assert (
        "count as negative; if that is not meant"
        in fedsaddle("run", "p/run.toml", "--set", "train.rounds=1").err
    )
    assert "negative" not in fedsaddle("new", "q", "--data", "all.csv", "--label", "sex").out
    said = fedsaddle("new", "r", "--data", "all.csv").err
    assert (
        f"column 'died' (a guess; --label COLUMN chooses) has 3 values, 'no' ({n['no']} rows), 'yes' ({n['yes']}) and "
        f"'unknown' ({n['unknown']}); give --positive" in said
    )
    frame.assign(died=frame.index % 7).to_csv("seven.csv", index=False)
    said = fedsaddle("new", "s", "--data", "seven.csv", "--label", "died").err
    assert (
        "has 7 values, '0' (35 rows), '1' (35), '2' (34), '3' (34), '4' (34) and 2 others (68); give" in said
    )


def test_a_linear_model_starts_at_zero(fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    for model, options in (("linear", {"zero": True}), ("mlp", {"hidden": [16]})):
        assert fedsaddle("new", model, "--data", "all.csv", "--model", model, "--script").code == 0
        text = Path(model, "run.toml").read_text()
        assert tomllib.loads(text)["model"] == {"name": model} | options
        assert ("start at 0" in text) == (model == "linear")
        assert ("zero=True" in Path(model, "run.py").read_text()) == (model == "linear")
    start = load("linear/run.toml").build().problem.init()
    assert not start.any()


@pytest.mark.parametrize("aim", AIMS)
def test_a_linear_model_learns_from_zero(aim: str, fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    assert fedsaddle("new", "p", "--data", "all.csv", "--aim", aim, "--rounds", "10").code == 0
    assert load("p/run.toml").run(progress=False).metrics["auc"] > 0.7


@pytest.mark.parametrize("aim", ["auc", "pairs"])
def test_the_step_size_suits_the_table(aim: str, fedsaddle: Callable[..., Done]) -> None:
    """The scaled 0 and 1 of a rare text are long, so that 0.1 is too large a step; other tables keep it."""
    rng = np.random.default_rng(0)
    frame = patients(1500)
    for c in range(24):
        frame[f"code{c}"] = [f"{c}-{k}" for k in rng.integers(0, 45, len(frame))]
    frame.to_csv("wide.csv", index=False)
    said = fedsaddle(
        "new", "p", "--data", "wide.csv", "--label", "died", "--site", "hospital", "--script", "--aim", aim
    ).out
    lr = load("p/run.toml").tree["algorithm"]["lr"]
    assert lr < 0.1 and f"lr = {lr:g}: 0.1 raised the objective in 10 rounds; this is well below it" in said
    assert f"lr={lr:g}" in Path("p/run.py").read_text()
    tables(Path())
    assert "got less far" not in fedsaddle("new", "q", "--data", "all.csv", "--aim", aim).out
    assert load("q/run.toml").tree["algorithm"]["lr"] == 0.1


@pytest.mark.parametrize(
    ("left", "step"),
    [
        ([-0.8, -1.0, -0.5], 0.03),  # the best
        ([-0.9, -1.0, -0.5], 0.1),  # larger, and nearly as good
        ([3.0, -1.0, -0.5], 0.01),  # a longer run with 0.03 might end as that with 0.1
        ([math.inf, 3.0, -0.1], 0.003),
        ([math.inf, 3.0, 2.0], 0.001),  # none lowers it
    ],
)
def test_the_largest_step_near_the_best(left: list[float], step: float) -> None:
    assert (
        largest_near_best(
            [0.1, 0.03, 0.01, 0.003, 0.001], [*left, -0.05, 0.2 if step == 0.001 else -0.01], start=0.0
        )
        == step
    )


def test_a_table_of_excel_is_read(fedsaddle: Callable[..., Done]) -> None:
    frame = patients().replace({"hospital": {"north": "Köln"}})
    frame.loc[9, "age"] = np.nan
    frame.to_csv("all.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    said = fedsaddle("new", "p", "--data", "all.csv", "--script", "--rounds", "1")
    assert said.code == 0 and "  text is read as cp1252, since it is not UTF-8\n" in said.out
    assert 'encoding = "cp1252"' in Path("p/run.toml").read_text()
    assert 'encoding="cp1252"' in Path("p/run.py").read_text()
    assert load("p/run.toml").build().federation.names[0] == "Köln"
    unset = fedsaddle("run", "p/run.toml", "--set", "data.encoding=utf-8").err
    line = 2 + int((frame["hospital"] == "Köln").argmax())
    assert (
        f"all.csv is not UTF-8 (byte 0xf6 in line {line}): save it as 'CSV UTF-8', or set encoding = \"cp1252\""
        in unset
    )
    frame.to_csv("unicode.csv", index=False, sep="\t", encoding="utf-16")
    assert (
        "unicode.csv is UTF-16: save it as 'CSV UTF-8'" in fedsaddle("new", "u", "--data", "unicode.csv").err
    )
    as_it_is = fedsaddle(
        "run", "p/run.toml", "--set", "data.encoding=utf-8", "--set", "data.file=unicode.csv"
    ).err
    assert "unicode.csv is UTF-16: save it as 'CSV UTF-8'" in as_it_is
    unfilled = fedsaddle("run", "p/run.toml", "--set", "data.impute=none").err
    assert "in 'age' at row 9, line 11 of the file" in unfilled  # lines are counted in any encoding
    Path("sites").mkdir()
    for i, encoding in enumerate(("cp1252", "cp1252", "utf-8")):
        frame.drop(columns="patient_id").to_csv(f"sites/{i}.csv", index=False, encoding=encoding)
    said = fedsaddle("new", "q", "--data", "sites").err
    assert "0.csv is not UTF-8, 2.csv is: save both as 'CSV UTF-8'" in said
    frame.drop(columns=["patient_id", "hospital"]).to_csv("sites/2.csv", index=False)
    for i in range(2):
        Path(f"sites/{i}.csv").write_bytes(Path(f"sites/{i}.csv").read_bytes().replace(b"hospital", b"ward"))
    frame.drop(columns="patient_id").rename(columns={"hospital": "ward"}).replace("Köln", "Bonn").to_csv(
        "sites/2.csv", index=False
    )
    assert fedsaddle("new", "r", "--data", "sites", "--rounds", "1").code == 0
    assert "ward=Köln" in load("r/run.toml").build().federation.feature_names


def test_decimal_commas_are_numbers(fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    for folder, data in (("p", "all.csv"), ("q", "commas.csv")):
        done = fedsaddle("new", folder, "--data", data, "--site", "hospital", "--label", "died")
        assert "guess" not in done.out and ("decimal ','" in done.out) == (folder == "q")
    plain, commas = (load(f"{folder}/run.toml") for folder in "pq")
    assert commas.tree["data"]["decimal"] == ","
    x, y = (c.build().federation for c in (plain, commas))
    assert x.feature_names == y.feature_names and torch.equal(x.data["x"], y.data["x"])
    frame = patients()
    frame["cost"] = [f"{1 + i % 99},{100 + i}" for i in range(240)]  # thousands, as commas divide columns
    frame.to_csv("thousands.csv", index=False)
    assert "'cost' is dropped: a text for each row" in fedsaddle("new", "r", "--data", "thousands.csv").out
    frame["cost"] = [f"{i % 60},5" for i in range(240)]
    frame.to_csv("both.csv", index=False, sep=";")
    said = fedsaddle("new", "s", "--data", "both.csv").err
    assert "both.csv: column 'cost' has decimal commas, 'lactate' decimal points; write them alike" in said


@pytest.mark.parametrize("data", ["all.csv", "commas.csv", "sites"])
def test_a_text_among_numbers_is_named(data: str, fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    file, mark = (Path(data), "unknown") if data != "sites" else (Path("sites/s1.csv"), "n/k")
    sep, decimal = (";", ",") if data == "commas.csv" else (",", ".")
    frame = pd.read_csv(file, sep=sep, decimal=decimal)
    frame["pressure"] = [str(v).replace(".", decimal) for v in frame["pressure"]]
    frame.loc[[7, 9], "pressure"] = mark
    frame.to_csv(file, index=False, sep=sep, decimal=decimal)
    done = fedsaddle("new", "p", "--data", data)
    what = f"{file.name}: column 'pressure' has numbers, but '{mark}' at row 7 (2 such values in all), line 9 of the"
    assert done.code == 2 and what in done.err and "correct it or drop the row" in done.err
    frame.assign(pressure="c" + frame["age"].astype(str)).to_csv(file, index=False, sep=sep, decimal=decimal)
    assert "has numbers, but" not in fedsaddle("new", "p", "--data", data).err  # codes are text


def test_a_label_that_is_missing_is_named_with_its_line(fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    frame = pd.read_csv("sites/s1.csv")
    frame.loc[3, "died"] = None
    frame.to_csv("sites/s1.csv", index=False)
    said = fedsaddle("new", "p", "--data", "sites", "--label", "died").err
    assert "s1.csv: label 'died' has no value at row 3, line 5 of the file: drop that row" in said
    frame.drop(columns="died").to_csv("sites/s1.csv", index=False)
    assert "s1.csv has no column 'died'" in fedsaddle("new", "p", "--data", "sites", "--label", "died").err


def test_files_of_other_columns_are_named_before_anything_is_guessed(fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    frame = pd.read_csv("sites/s1.csv")
    frame.rename(columns={"age": "Age"}).to_csv("sites/s1.csv", index=False)
    assert (
        fedsaddle("new", "p", "--data", "sites").err
        == "fedsaddle: s1.csv has no column 'age', which s0.csv has: give all the same columns\n"
    )
    frame.assign(note="x").to_csv("sites/s1.csv", index=False)
    assert (
        "s1.csv has column 'note', which s0.csv has not: give" in fedsaddle("new", "p", "--data", "sites").err
    )
    frame[frame.columns[::-1]].to_csv("sites/s1.csv", index=False)
    assert fedsaddle("new", "p", "--data", "sites", "--rounds", "1").code == 0


def test_nothing_is_overwritten_and_nothing_is_left_of_what_fails(fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    Path("run.py").write_text("mine")
    done = fedsaddle("new", "--data", "all.csv", "--script")
    assert done.code == 2 and "run.py: is there already, and is never overwritten" in done.err
    assert Path("run.py").read_text() == "mine" and not Path("run.toml").exists()
    assert fedsaddle("new", "--data", "all.csv").code == 0
    before = Path("run.toml").read_bytes()
    assert fedsaddle("new", "--data", "wine").code == 2
    assert Path("run.toml").read_bytes() == before
    frame = patients()
    frame.loc[3, "hospital"] = None
    frame.to_csv("gap.csv", index=False)
    done = fedsaddle("new", "x", "--data", "gap.csv")
    assert (
        done.code == 2 and "gap.csv: group 'hospital' has no value at row 3, line 5 of the file" in done.err
    )
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "new: --data is missing; give --data"),
        (["--data", "breast_cance"], "is no file, no folder and no data set; did you mean 'breast_cancer'?"),
        (["--data", "nowhere.csv"], "nowhere.csv is no file, no folder and no data set; check the path"),
        (["--data", "notes.txt"], "--data: must be a .csv or .parquet file, got notes.txt"),
        (["--data", "diabetes"], "diabetes is a regression set"),
        (["--data", "wine", "--label", "x"], "--label has no use, wine has no columns to choose from"),
        (["--data", "wine", "--positive", "class_9"], "--positive: must be one of 'class_0', 'class_1', 'class_2'"),
        (["--data", "all.csv", "--label", "dead"], "--label: all.csv has no column 'dead'"),
        (["--data", "all.csv", "--label", "age"], "new: column 'age' has"),
        (["--data", "all.csv", "--site", "died"], "--site: all.csv has no column 'died'"),
        (["--data", "sites", "--site", "hospital"], "--site has no use, each file is a site"),
        (["--data", "all.csv", "--sites", "3"], "--sites has no use, the data have sites of their own"),
        (["--data", "all.csv", "--aim", "fairr"], "'auc', 'fair', 'pairs', got 'fairr'; did you mean 'fair'?"),
        (["--data", "all.csv", "--model", "cnn"], "--model: must be one of 'linear', 'mlp', got 'cnn'"),
        (["--data", "all.csv", "--rounds", "0"], "--rounds: must be a whole number >= 1, got 0"),
        (["--data", "numbers.csv"], "new: no column of numbers.csv looks like the name of a site; give --site"),
        (["--data", "a9a"], "a9a: found no a9a.bz2"),
    ],
)  # fmt: skip
def test_one_line_for_a_mistake(flags: list[str], says: str, fedsaddle: Callable[..., Done]) -> None:
    tables(Path())
    Path("notes.txt").write_text("hello")
    patients()[["age", "pressure", "died"]].to_csv("numbers.csv", index=False)
    done = fedsaddle("new", "p", *flags)
    assert done.code == 2 and done.out == ""
    assert says in done.err and done.err.count("\n") == 1
    assert not Path("p").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_questions_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    # data; label: a wrong one, then as proposed; positive, site; aim; model; rounds, the first no number
    monkeypatch.setattr(sys, "stdin", Terminal("all.csv\nage?\n\n\n\nfair\nmlp\nmany\n7\n"))
    said = project(Path("p"), Wanted(), script=True)
    tree: dict[str, Any] = tomllib.loads(Path("p/run.toml").read_text())
    assert (tree["data"]["label"], tree["data"]["group"], tree["data"]["positive"]) == (
        "died",
        "hospital",
        "yes",
    )
    assert (tree["algorithm"]["name"], tree["model"]["name"], tree["train"]["rounds"]) == (
        "scaff_pd",
        "mlp",
        7,
    )
    asked = capsys.readouterr()
    assert "--label: all.csv has no column 'age?'" in asked.err
    assert asked.err.count("Which column is predicted") == 2 and asked.out == ""
    assert "--rounds: must be a whole number >= 1, got many" in asked.err and "Error" not in asked.err
    assert said[-1] == "p/run.py: python p/run.py"
    monkeypatch.setattr(sys, "stdin", Terminal(""))  # all is said: nothing is asked
    wanted = Wanted("all.csv", "died", "hospital", "yes", "auc", "linear", 5)
    project(Path("q"), wanted)
    with pytest.raises(SystemExit) as end:  # Ctrl-D, or Ctrl-C
        cli.main(["new", "r"])
    assert end.value.code == 130 and "fedsaddle: interrupted" in capsys.readouterr().err


def test_the_label_that_is_offered_is_the_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    loans().to_csv("loans.csv", index=False)
    monkeypatch.setattr(sys, "stdin", Terminal("\n" * 9))
    said = project(Path("p"), Wanted("loans.csv"))
    assert "'region') [defaulted]: " in capsys.readouterr().err
    assert "guess" not in said[0] and "predicts 'defaulted', positive is 1" in said[0]
    frame = loans().astype({"defaulted": object})
    frame.loc[7, "defaulted"] = "unknown"
    frame.to_csv("loans.csv", index=False)
    monkeypatch.setattr(sys, "stdin", Terminal("\n1\n\n\n\n\n"))
    said = project(Path("q"), Wanted("loans.csv"))
    assert any("'unknown' (1) count as negative" in line for line in said)
    asked = capsys.readouterr().err
    assert "Which value of defaulted is positive (it has 0, 1 and in 1 row 'unknown'): " in asked


def test_a_question_names_all_columns_or_the_likeliest() -> None:
    few, many = [f"c{i}" for i in range(20)], [f"c{i}" for i in range(300)]
    assert all(f"'{name}'" in guesses.choice(few, []) for name in few)
    said = guesses.choice(many, ["c299", "c150"])
    assert said.startswith("'c299', 'c150', 'c0', 'c1'") and said.endswith("'c17', ... (300 in all)")


# --------------------------------------------------------------------------------------------------- doctor


def test_the_doctor_knows_the_requirements() -> None:
    stated = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert list(doctor.CORE) == stated["dependencies"]
    extras = {k: v for k, v in stated["optional-dependencies"].items() if k != "dev"}
    assert {k: packages for k, (_, packages) in doctor.EXTRAS.items()} == extras


def test_the_doctor_says_what_is_there_and_how_to_get_the_rest(
    fedsaddle: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = doctor.metadata.version

    def version(name: str) -> str:
        if name == "wandb":
            raise doctor.metadata.PackageNotFoundError
        return "1.42.0" if name == "flwr" else real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "no data here" / "w8a").mkdir(parents=True)
    (tmp_path / "no data here" / "w8a" / "w8a.bz2").write_text("other data")
    done = fedsaddle("doctor")
    assert done.code == 0, done.out + done.err
    table, verdict = done.out.split("\n\n")
    assert verdict == "Everything that a run needs is there; what is missing is optional.\n"
    lines = {row[1]: row for line in table.splitlines() if (row := re.split(r"  +", line, maxsplit=2))}
    assert {row[0] for row in lines.values()} == {"good", "missing"}
    assert {"torch", "GPU", "threads", "data sets", *doctor.EXTRAS} - {"GPU"} <= lines.keys()
    others = sum(not info.bundled for info in DATASETS.values())
    data = lines["data sets"][2]
    assert (
        f"{len(DATASETS) - others} bundled, 1 of {others} others in {tmp_path / 'no data here'} (FED" in data
    )
    assert "; which: fedsaddle list datasets; " in data and data.endswith(".download('NAME')\"")
    assert lines["trackers"][2] == "train.track: lacks wandb>=0.19.11; pip install 'fedsaddle[trackers]'"
    assert lines["flower"][0] == "missing" and "flwr>=1.41,<1.42" in lines["flower"][2]
    assert lines["compiler"][0] == "missing" and "no-such-compiler" in lines["compiler"][2]
    assert lines["w8a"][0] == "missing" and "w8a.bz2 has sha256" in lines["w8a"][2]
    assert set(DATASETS) & lines.keys() == {"w8a"}  # what is in order has no line
    assert lines["a small run"][0] == "good"
    listed = {e["name"]: e["where"] for e in json.loads(fedsaddle("list", "datasets", "--json").out)}
    assert {name for name, where in listed.items() if where == "found"} == {"w8a"}
    assert {name for name, where in listed.items() if where == "not found"} == {
        name for name, info in DATASETS.items() if not info.bundled
    } - {"w8a"}


def test_what_every_run_needs_decides_the_exit_code(
    fedsaddle: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setattr(doctor, "CORE", (*doctor.CORE, "numpy>=99", "no-such-package"))
    done = fedsaddle("doctor")
    assert done.code == 1
    broken = [line.split(maxsplit=2)[1:] for line in done.out.splitlines() if line.startswith("broken")]
    assert [name for name, _ in broken] == ["safetensors", "numpy", "no-such-package"]
    assert "does not load" in broken[0][1] and "pip install 'numpy>=99'" in broken[1][1]
    assert broken[2][1] == "is not installed: pip install 'no-such-package'"


def test_what_a_column_says_of_itself() -> None:
    n = 240
    days = pd.date_range("2020-01-01", periods=n)
    frame = pd.DataFrame({
        "visit_id": np.arange(n), "patient_id": np.arange(n) // 2, "ward_id": np.arange(n) % 5, "age": np.arange(n),
        "day": days, "month": days.to_period("M").to_timestamp(),
    })  # fmt: skip
    found = guesses.no_features(frame, ["age"])
    assert list(found) == ["visit_id", "patient_id", "day", "month"]
    assert found["patient_id"] == "120 numbers that are names, not amounts"
    assert found["day"] == found["month"] and found["day"].startswith("dates; make them numbers")
    rare_one, rare_two = pd.Series([1, 2, 2]), pd.Series([2, 1, 1])
    assert (guesses.positive(rare_one), guesses.positive(rare_two)) == ("1", "2")  # codes: the rarer
    assert guesses.positive(pd.Series([1, 1, 0])) == guesses.positive(pd.Series([1, 1, -1])) == "1"
