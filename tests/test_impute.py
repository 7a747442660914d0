"""Gaps in tables: what stands in for a missing value comes from training rows alone, and goes with the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import SimpleImputer

import fedsaddle as fs
from fedsaddle import Federation, FedsaddleError, config, export_onnx, load_model
from fedsaddle.export import RawModel

NAN = float("nan")


def patients(n: int = 90) -> pd.DataFrame:
    """Numbers and text, each with gaps; no row is like another, so that rows can be told apart."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({
        "row": np.arange(n), "age": rng.normal(60, 15, n), "lactate": rng.gamma(2.0, 1.0, n),
        "sex": rng.choice(["f", "m"], n).astype(object), "clinic": rng.choice(["n", "s", "w"], n),
    })  # fmt: skip
    table["died"] = (table["lactate"] + rng.normal(0, 1, n) > 2).astype(int)
    table.loc[rng.random(n) < 0.3, "age"] = NAN
    table.loc[rng.random(n) < 0.3, "lactate"] = NAN
    table.loc[rng.random(n) < 0.2, "sex"] = None
    return table


def built(table: pd.DataFrame, **options: Any) -> Federation:
    return Federation.from_frame(
        table, **({"group": "clinic", "label": "died", "impute": "median"} | options)
    )


def rows_of(part: Federation | None) -> list[int]:
    """Which rows of the table a part has."""
    assert part is not None
    return [round(v) for v in part.data["x"][:, part.feature_names.index("row")].tolist()]


@pytest.mark.parametrize("how", ["median", "mean"])
def test_what_stands_in_comes_from_training_rows_alone(how: Any) -> None:
    """As scikit-learn's SimpleImputer has it, fitted on the training rows; test and validation rows are filled with it."""
    table = patients()
    fed = built(table, impute=how).holdout(0.3, into="test").holdout(0.3, into="valid")
    numbers = ["age", "lactate"]
    known = SimpleImputer(strategy=how).fit(table.loc[rows_of(fed), numbers])
    assert not np.allclose(known.statistics_, SimpleImputer(strategy=how).fit(table[numbers]).statistics_)
    places = [fed.feature_names.index(c) for c in numbers]
    for part in (fed, fed.test, fed.valid):
        assert part is not None
        own = table.loc[rows_of(part), numbers]
        assert own.isna().any().all()
        assert np.allclose(part.data["x"][:, places], known.transform(own), rtol=1e-6)
    assert fed.filling is not None and np.allclose(
        fed.filling.values[0, places], known.statistics_, rtol=1e-6
    )


def test_a_federation_with_gaps_can_be_changed_like_any_other() -> None:
    table = patients()
    fed = built(table)
    assert torch.equal(fed.alone(1).data["x"], fed.client(1)["x"])
    own = fed.alone(1).holdout(0.5)  # of this client's rows alone
    assert own.filling is not None and own.feature_names[1] == "age"
    assert np.isclose(own.filling.values[0, 1], table.loc[rows_of(own), "age"].median(), rtol=1e-6)
    scaled = fed.holdout(0.3).scaled("standard")
    assert torch.isfinite(scaled.data["x"]).all() and abs(scaled.data["x"].mean(0)).max() < 1e-6
    later = scaled.holdout(0.2, into="valid")  # what is scaled stays as it is
    assert set(map(tuple, later.data["x"].tolist())) < set(map(tuple, scaled.data["x"].tolist()))
    assert later.filling is not None and scaled.filling is not None
    assert torch.equal(later.filling.values, scaled.filling.values)


def test_a_test_frame_is_filled_as_the_training_data() -> None:
    table, new = patients(), patients()[:20].drop(columns=["clinic", "died"])
    fed = built(table)
    assert fed.filling is not None
    y = table["died"][:20]
    tested = fed.with_test(new, y)
    assert tested.test is not None
    gap = torch.tensor(new["age"].isna().to_numpy())
    assert gap.any() and (tested.test.data["x"][gap, 1] == fed.filling.values[0, 1]).all()
    before, after = tested.scaled("standard"), fed.scaled("standard")
    assert before.test is not None and after.scaling is not None
    x = (
        torch.where(tested.test.data["x"] == fed.filling.values, NAN, tested.test.data["x"])
        - after.scaling.shift
    ) / after.scaling.width
    late = after.with_test(x.numpy(), y).test  # of scaled samples
    assert late is not None and torch.allclose(late.data["x"], before.test.data["x"], atol=1e-5)


def test_a_missing_text_is_a_value_of_its_own() -> None:
    table = patients()
    fed = built(table)
    assert fed.feature_names[3:] == ("sex=f", "sex=m", "sex=missing")
    rows = table.loc[rows_of(fed), "sex"]
    assert fed.data["x"][:, 3:].tolist() == [[s == "f", s == "m", pd.isna(s)] for s in rows]
    fifty = pd.concat([table.assign(sex=[f"v{i % 50}" for i in range(90)]), table.assign(sex=None)])
    assert len(built(fifty).feature_names) == 3 + 51  # a gap is none of the 50 values that a text may have


def test_files_with_gaps(tmp_path: Path) -> None:
    """A column that is empty in one file is what the other files say that it is."""
    (tmp_path / "a.csv").write_text("age,sex,y\n1,f,0\n,m,1\n3,,0\n")
    (tmp_path / "b.csv").write_text("age,sex,y\n,,0\n8,,1\n")
    (tmp_path / "c.csv").write_text("age,sex,y\n,f,0\n,m,1\n")
    fed = Federation.from_files(tmp_path, label="y", impute="median")
    assert fed.feature_names == ("age", "sex=f", "sex=m", "sex=missing")
    assert fed.data["x"].tolist() == [
        [1, 1, 0, 0], [3, 0, 1, 0], [3, 0, 0, 1], [3, 0, 0, 1], [8, 0, 0, 1], [3, 1, 0, 0], [3, 0, 1, 0],
    ]  # fmt: skip


def typed() -> pd.DataFrame:
    """Gaps in columns of every type that pandas has for them."""
    return pd.DataFrame(
        {
            "smoker": [True, None, False, True, True, None],  # objects
            "beds": pd.array([1, 2, None, 4, 5, 6], dtype="Int64"),
            "icu": pd.array([True, None, False, None, True, True], dtype="boolean"),
            "grade": pd.Categorical([1, 2, None, 2, 1, 1]),  # whose numbers are names
            "clinic": list("nnnsss"),
            "died": [0, 1, 0, 1, 0, 1],
        }
    )


FILLED = [
    [1, 1, 1, 1, 0, 0],
    [1, 2, 1, 0, 1, 0],
    [0, 4, 0, 0, 0, 1],
    [1, 4, 1, 0, 1, 0],
    [1, 5, 1, 1, 0, 0],
    [1, 6, 1, 1, 0, 0],
]


def test_gaps_in_columns_of_every_type() -> None:
    """True and False are 1 and 0, in a federation, a test frame and the rows of a trained model."""
    table = typed()
    fed = built(table)
    assert fed.feature_names == ("smoker", "beds", "icu", "grade=1", "grade=2", "grade=missing")
    assert fed.data["x"].tolist() == FILLED and fed.filling is not None
    test = fed.with_test(table.drop(columns=["clinic", "died"]), table["died"]).test
    assert test is not None and test.data["x"].tolist() == FILLED
    linear = torch.nn.Linear(6, 1)
    model = RawModel(linear, None, features=fed.feature_names, fill=fed.filling.values)
    assert model.rows(table).isnan().sum(0).tolist() == [2, 1, 2, 0, 0, 0]
    assert torch.equal(model(model.rows(table)), linear(fed.data["x"]))
    with pytest.raises(FedsaddleError, match=r"x has -inf at row 2, column 'beds' \(1\)"):
        model.rows(table.assign(beds=table["beds"].astype(float).where(table.index != 2, -np.inf)))


def test_true_and_false_with_gaps_in_one_file_and_without_in_another(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smoker,y\nTrue,0\n,1\nFalse,0\nTrue,1\n")
    (tmp_path / "b.csv").write_text("smoker,y\nFalse,0\nTrue,1\n")
    fed = Federation.from_files(tmp_path, label="y", impute="mean")
    assert fed.feature_names == ("smoker",)
    assert np.allclose(fed.data["x"][:, 0], [1, 0.6, 0, 1, 0, 1])
    with pytest.raises(FedsaddleError, match=r"a.csv: 1 column has gaps \('smoker' 1 of 6 rows\).*line 3"):
        Federation.from_files(tmp_path, label="y")


@pytest.mark.parametrize("blank", [None, NAN, pd.NA])
def test_a_column_of_text_may_be_blank_in_a_test_frame(blank: Any) -> None:
    table = patients()
    fed = built(table)
    new = table[:5].drop(columns=["clinic", "died"]).assign(sex=blank)
    test = fed.with_test(new, table["died"][:5]).test
    assert test is not None and test.data["x"][:, 3:].tolist() == [[0, 0, 1]] * 5
    whole = built(table.assign(sex="f", age=1.0))  # no gap in training, so that the model knows none
    with pytest.raises(FedsaddleError, match="x has 'sex=missing', which the training data have not"):
        whole.with_test(new, table["died"][:5])


@pytest.mark.parametrize(
    ("says", "call"),
    [
        ("column 'empty' has no value in any training row: drop it", lambda t: built(t.assign(empty=NAN))),
        ("column 'empty' has no value in any training row", lambda t: built(t.assign(empty=None))),
        (
            "column 'late' has no value in any training row: drop it",  # one row has it, and that is held out
            lambda t: built(t.assign(late=np.where(t.row == rows_of(built(t).holdout(0.3).test)[0], 1, NAN))).holdout(0.3),
        ),
        (
            "column 2 of x has no value in any",
            lambda t: Federation.from_arrays([[1, 2, NAN]] * 2, clients=[0, 1], impute="mean"),
        ),
        ("x has inf at row 3, column 'age' (1): replace it", lambda t: built(t.assign(age=t.age.where(t.row != 3, np.inf)))),
        (
            "x has -inf at row 0",
            lambda t: built(t).with_test(t.drop(columns=["died", "clinic"]).replace(0, -np.inf), t.died),
        ),
        ("label 'died' has no value at row 4", lambda t: built(t.assign(died=t.died.where(t.row != 4)))),
        (
            "column 'age' has numbers too large to take the mean of",
            lambda t: built(t.assign(age=1.7e308), impute="mean", dtype=torch.float64),
        ),
        ("impute must be 'none', 'median' or 'mean', got 'mode'", lambda t: built(t, impute="mode")),
        ("3 columns have gaps ('age'", lambda t: built(t, impute="none")),
        ("row 0: give impute=", lambda t: built(t.assign(age=[NAN] * 90)[["age", "clinic", "died"]], impute="none")),
        (
            "row 1: build the federation with impute=\"median\" to fill them, or drop the rows",
            lambda t: built(t[["row", "clinic", "died"]], impute="none").with_test(pd.DataFrame({"row": [1, NAN]}), [0, 1]),
        ),
        (
            "column 0: build the federation with impute=",
            lambda t: Federation.from_arrays([[1.0]] * 2, clients=[0, 1]).with_test([[NAN]]),
        ),
        (
            "impute='mean' fills gaps of x, and there is no x: leave impute out",
            lambda t: Federation.from_arrays(a=[1.0, NAN], clients=[0, 1], impute="mean"),
        ),
        (
            "filling.gaps must have the shape of x, [90, 2], got [90, 6]: replace filling= with x, by None",
            lambda t: dataclasses.replace(built(t), data={"x": torch.zeros(90, 2)}),
        ),
        (
            "filling.gaps must have the shape of x, none, got [90, 6]",
            lambda t: dataclasses.replace(built(t), data={"y": torch.zeros(90)}),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_filled_is_refused(says: str, call: Callable[[pd.DataFrame], Any]) -> None:
    with pytest.raises(FedsaddleError) as error:
        call(patients())
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    """Of a config, on a table with gaps."""
    folder = tmp_path_factory.mktemp("impute")
    patients().to_csv(folder / "all.csv", index=False)
    return setting(folder).run(folder / "run")


def setting(folder: Path, **data: Any) -> config.Config:
    file = {"file": str(folder / "all.csv"), "group": "clinic", "label": "died", "impute": "median"}
    return config.resolve(
        {
            "data": {**file, "test": 0.3, "valid": 0.2, **data},
            "model": {"name": "mlp", "hidden": [4]},
            "problem": {"name": "auc"},
            "algorithm": {"name": "codasca", "local_steps": 2},
            "train": {"rounds": 4, "batch_size": 8, "checkpoint_every": 1},
        }
    )


def test_an_exported_model_fills_gaps_as_training_did(run: fs.Run, tmp_path: Path) -> None:
    """Scores of test rows as the table has them, gaps and all: from the run, its folder and ONNX."""
    test, scaling = run.federation.test, run.federation.scaling
    assert run.out is not None and test is not None and scaling is not None
    x = test.data["x"].double() * scaling.width + scaling.shift
    table = pd.read_csv(run.out.parent / "all.csv").iloc[x[:, 0].round().int().tolist()]
    loaded = load_model(run.out)
    raw = loaded.rows(table)
    assert loaded.features == ("row", "age", "lactate", "sex=f", "sex=m", "sex=missing")
    assert raw.isnan().any(0).tolist() == [False, True, True, False, False, False]
    with torch.no_grad():
        trained = run.model(test.data["x"])
        for model in (run.raw_model, loaded):
            assert torch.allclose(model(model.rows(table)), trained, atol=1e-5)
        lone = loaded.rows(
            pd.DataFrame([{"row": 1, "age": None, "lactate": 2, "sex": None}])
        )  # age has no type
        assert torch.isfinite(loaded(lone)).all() and lone[0, 3:].tolist() == [0, 0, 1]
    reference = pytest.importorskip("onnx.reference")
    export_onnx(run.out, tmp_path / "model.onnx")
    (found,) = reference.ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"x": raw.numpy()})
    assert np.allclose(found, trained, atol=1e-5)


def test_a_run_with_gaps_resumes_to_the_same_bits(run: fs.Run, tmp_path: Path) -> None:
    assert run.out is not None
    same = setting(run.out.parent)
    rounds = iter(same.start(same.build(), out=tmp_path / "cut", progress=False))
    while next(rounds)["round"] < 2:
        pass
    rounds.close()  # type: ignore[attr-defined]
    other = setting(run.out.parent, impute="mean")
    with pytest.raises(FedsaddleError, match="federation"):  # other data
        other.run(tmp_path / "cut", resume=True)
    assert torch.equal(same.run(tmp_path / "cut", resume=True).z, run.z)
