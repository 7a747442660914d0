"""Models for use elsewhere: as modules and as ONNX files that take raw features; what to cite."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris

import fedsaddle as fs
import fedsaddle.data
from fedsaddle import FedsaddleError, cli, config
from fedsaddle.agreement import agree, outline
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.citing import LOSSES_CITED, PROBLEMS_CITED, SETS_CITED
from fedsaddle.data import DATASETS, load
from fedsaddle.export import RawModel
from fedsaddle.problems import PROBLEMS
from fedsaddle.problems.pairs import SCORE_LOSSES
from fedsaddle.scaling import Scaling
from fedsaddle.sites import Site

X, Y = load_breast_cancer(return_X_y=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    """Of a config, on a data set that is scaled as it is loaded."""
    tree = {
        "data": {"name": "breast_cancer", "test": 0.2},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "problem": {"name": "auc"},
        "algorithm": {"name": "codasca", "local_steps": 2},
        "train": {"rounds": 2},
    }
    return config.resolve(tree).run(tmp_path_factory.mktemp("runs") / "run")


def scores(module: torch.nn.Module, x: Any) -> np.ndarray:
    with torch.no_grad():
        out: np.ndarray = module(torch.as_tensor(x)).numpy()
    return out


def evaluated(file: Path, x: np.ndarray) -> list[np.ndarray]:
    reference = pytest.importorskip("onnx.reference")
    return list(reference.ReferenceEvaluator(str(file)).run(None, {"x": x}))


def test_a_folder_gives_a_model_of_raw_features(run: fs.Run) -> None:
    assert run.out is not None
    trained = scores(run.model, load("breast_cancer").x)  # scaled
    assert not np.allclose(trained, scores(run.model, X.astype(np.float32)), atol=0.1)
    assert np.allclose(scores(fs.load_model(run.out), X), trained, atol=1e-5)
    for raw in (run.raw_model, fs.load_model(run.out)):  # scores go into a table as they are
        assert raw(torch.tensor(X[:2], dtype=torch.float32)).numpy().shape == (2, 1)
    assert np.allclose(scores(run.raw_model, X), trained, atol=1e-5)


def test_rows_of_a_table_with_text_give_the_scores_of_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 60
    table = pd.DataFrame({"age": rng.normal(60, 15, n), "sex": rng.choice(["f", "m"], n)})
    table["ward"] = rng.choice(["ICU", "a=b"], n)
    patients = table.assign(clinic=rng.choice(["n", "s"], n), died=np.arange(n) % 3 == 0)
    sites = fs.Federation.from_frame(patients, group="clinic", label="died").scaled("standard")
    done = fs.train(
        fs.AUC(torch.nn.Linear(5, 1)), fs.CODASCA(), sites, rounds=2, out=tmp_path / "run"
    ).finish()
    trained = torch.cat([done.model(sites.client(i)["x"]) for i in range(2)]).detach()
    order = np.argsort(patients["clinic"], kind="stable")
    loaded = fs.load_model(tmp_path / "run", torch.nn.Linear(5, 1))
    turned = patients.iloc[order][["ward", "clinic", "sex", "age"]]  # other columns, in another order
    for model in (done.raw_model, loaded):
        assert torch.allclose(model(model.rows(turned)), trained, atol=1e-5)
    with pytest.warns(
        UserWarning, match=r"column 'sex': training had no 'unknown'; 1 of 1 rows have 0 in all columns of it"
    ):
        new = loaded.rows(table.head(1).assign(sex="unknown"))
    assert new[0, [loaded.features.index("sex=f"), loaded.features.index("sex=m")]].tolist() == [0, 0]
    for column in ("age", "sex"):
        with pytest.raises(
            FedsaddleError,
            match=f"column '{column}' has no value in 30 of 60 rows, the first at row 1: impute it as for",
        ):
            loaded.rows(table.astype({column: object}).assign(**{column: [table[column][0], None] * 30}))
        with pytest.raises(FedsaddleError, match=f"the frame has no column '{column}'"):
            loaded.rows(table.drop(columns=column))
    row = r"training had numbers in 'age'; got 'old' at row 1: correct it"
    with pytest.raises(FedsaddleError, match=row):
        loaded.rows(table.head(3).assign(age=["60", "old", "x"]))
    with pytest.raises(FedsaddleError, match=r"'age'; got them as .*: convert it with pandas\.to_numeric"):
        loaded.rows(table.head(2).assign(age=["60", "61"]))
    for value in (np.inf, 1e300):  # too large for the model's numbers, too
        with pytest.raises(
            FedsaddleError, match=r"x has inf at row 1, column 'age' \(0\): replace it, or drop the row"
        ):
            loaded.rows(table.head(3).assign(age=[60.0, value, 61.0]))
    want = r"model: give model\.rows\(frame\), or a tensor with the 5 features age, sex=f, sex=m, ward=ICU, ward=a=b; got "
    for x, got in (
        (table, "DataFrame"),
        (np.zeros((2, 5)), "ndarray"),
        (torch.zeros(2, 4), r"shape \[2, 4\]"),
    ):
        with pytest.raises(FedsaddleError, match=want + got):
            loaded(x)
    unnamed = RawModel(torch.nn.Linear(2, 1), Scaling(torch.zeros(1, 2), torch.ones(1, 2)))
    with pytest.raises(FedsaddleError, match=r"model: give a tensor with the 2 features; got shape \[1, 3\]"):
        unnamed(torch.zeros(1, 3))
    with pytest.raises(FedsaddleError, match="rows: the model was trained on columns without names"):
        RawModel(torch.nn.Linear(2, 1), None).rows(table)


def test_onnx_gives_the_scores_of_training(
    run: fs.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    file = tmp_path / "model.onnx"
    assert cli._main(["export", str(run.out), "--onnx", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{file}\n" and err.startswith("fedsaddle: The gradient of phi is still ")  # as of the run
    (found,) = evaluated(file, X.astype(np.float32))
    assert np.allclose(found, scores(run.model, load("breast_cancer").x), atol=1e-5)
    model = onnx.load(str(file))
    onnx.checker.check_model(model)
    about = {p.key: p.value for p in model.metadata_props}
    assert json.loads(about["classes"]) == ["benign", "malignant"]
    assert json.loads(about["features"])[0] == "mean radius"
    assert str(Path(fs.__file__).parent).encode() not in file.read_bytes()  # no paths of this machine


def test_onnx_of_estimators(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    x, y = load_iris(return_X_y=True)
    options: Any = {"rounds": 5, "random_state": 0, "n_sites": 3}
    for target, scale in ((y, "standard"), (y > 0, "log")):  # three classes, two
        fair = fs.FairFederatedClassifier(scale=scale, **options).fit(x, target)
        fs.export_onnx(fair, file)
        score, probability = evaluated(file, x.astype(np.float32))
        assert np.allclose(score, fair.decision_function(x), atol=1e-4)
        assert np.allclose(probability, fair.predict_proba(x), atol=1e-5)


@pytest.mark.parametrize("how", ["standard", "unit", "symmetric", "log", "none"])
def test_the_scaling_of_a_federation_is_kept(how: Any, tmp_path: Path) -> None:
    x = np.concatenate([X[:, :3], np.full((569, 1), 7.0)], 1)  # the last column is constant
    plain = fs.Federation.from_arrays(x, Y, clients=Y)
    scaled = plain.scaled(how).scaled("unit")  # twice
    net = torch.nn.Linear(4, 1)
    run = fs.train(
        fs.AUC(net), fs.CODASCA(), scaled, rounds=1, dtype="float64", out=tmp_path / "run"
    ).finish()
    expected = scores(run.model, scaled.data["x"])
    raw = plain.data["x"]
    assert np.allclose(scores(run.raw_model, raw), expected, atol=1e-12)
    assert np.allclose(scores(fs.load_model(tmp_path / "run", net), raw), expected, atol=1e-12)
    with pytest.raises(FedsaddleError, match=r"has no config\.toml to build the model from; pass model="):
        fs.load_model(tmp_path / "run")
    with pytest.raises(FedsaddleError, match="does not fit Linear"):
        fs.load_model(tmp_path / "run", torch.nn.Linear(3, 1))


def test_images_and_columns_that_are_left_alone() -> None:
    """The scaling of a data set turns its raw samples into x: pixels by channel, indicators not at all."""
    for name in ("synthetic_binary", "iris"):
        for how in ("standard", "unit", "symmetric"):
            raw, scaled = load(name, scale="none"), load(name, scale=how)
            shift, width = scaled.scaling
            assert np.allclose((raw.x - shift) / width, scaled.x, atol=1e-5)
            assert raw.scaling is None
    pixels = torch.arange(2 * 3 * 2 * 2.0).view(2, 3, 2, 2)
    sites = fs.Federation.from_arrays(pixels, [0, 1], clients=[0, 1]).scaled("unit")
    assert sites.scaling is not None and sites.scaling.shift.shape == (1, 3, 1, 1)
    assert torch.allclose((pixels - sites.scaling.shift) / sites.scaling.width, sites.data["x"].double())


def test_indicator_columns_of_a_data_set_stay_as_they_are() -> None:
    info = dataclasses.replace(DATASETS["iris"], numeric=3)
    raw = load("iris", scale="none")
    x = np.concatenate([raw.x[:, :2], np.full((150, 1), 7, np.float32), raw.x[:, 3:]], 1)  # one constant
    parts, scaling = fedsaddle.data._scaled(info, {"train": (x, raw.y)}, "standard", None, 0)
    assert scaling is not None
    shift, width = scaling
    assert shift.shape == width.shape == (1, 4) and (shift[0, 3], width[0, 3]) == (0, 1)
    assert np.allclose((x - shift) / width, parts["train"][0], atol=1e-5)
    assert (parts["train"][0][:, 2] == 0).all()
    assert abs((9 - shift) / width)[0, 2] < 1e-30  # of a new sample, too, whatever its value


def test_a_deployment_knows_the_scaling_that_its_sites_agreed_on(tmp_path: Path) -> None:
    sites = []
    for name, low in (("a", 0), ("b", 100)):
        rows = [f"{low + i},{i * i},{'xy'[i % 2]},{i % 2}" for i in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,size,ward,y", *rows]))
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n[data]\nfile = "{name}.csv"\nlabel = "y"\n')
        sites.append(Site.load(tmp_path / f"{name}.toml"))
    summaries = [site.summary() for site in sites]
    constants = agree(summaries)
    known, own = outline(["a", "b"], summaries, constants), sites[1].federation(constants)
    assert known.feature_names == own.feature_names == ("age", "size", "ward=x", "ward=y")
    assert known.scaling is not None
    raw = torch.tensor([[100.0 + i, i * i, i % 2 == 0, i % 2 == 1] for i in range(20)])
    found = (raw - known.scaling.shift) / known.scaling.width
    assert torch.allclose(found, own.data["x"].double(), atol=1e-5)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    sites = fs.quadratic_federation(clients=2, dim_x=2, dim_y=1)
    fs.train(fs.QuadraticSaddle(2, 1), fs.CODASCA(), sites, rounds=1, out=tmp_path / "run").finish()
    with pytest.raises(FedsaddleError, match="has no model that can be loaded"):
        fs.load_model(tmp_path / "run")
    assert cli._main(["export", str(tmp_path), "--onnx", str(tmp_path / "x.onnx")]) == 2
    assert not (tmp_path / "x.onnx").exists()


def test_a_wrong_folder_is_said_before_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli._main(["export", str(tmp_path / "nowhere"), "--onnx", "x.onnx"]) == 2
    assert capsys.readouterr().err.endswith("nowhere: is not a folder; name the folder of a run\n")


# ------------------------------------------------------------------------------------------------------- citing


def keys(text: str) -> list[str]:
    return re.findall(r"^@\w+\{(.+),$", text, flags=re.M)


def test_a_run_cites_what_it_used(run: fs.Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = fs.cite(run)
    assert keys(text) == [
        "yuan2021federated",
        "ying2016stochastic",
        "breast_cancer",
        "ansel2024pytorch",
        "fedsaddle",
    ]
    assert fs.cite(run.out) == text == fs.cite(run, run.out)  # each once
    assert cli._main(["cite", str(run.out)]) == 0 and capsys.readouterr().out == text + "\n"


def test_parts_are_cited_by_name_or_as_they_are() -> None:
    net = torch.nn.Linear(2, 1)
    assert keys(fs.cite("codasca", "coda_plus", "scaff_pd")) == ["yuan2021federated", "yu2023scaffpd"]
    assert keys(fs.cite(fs.ScaffPD(ambiguity="cvar(0.2)"))) == ["yu2023scaffpd", "pillutla2021federated"]
    assert keys(fs.cite(fs.AUC(net, dual="margin"))) == ["ying2016stochastic", "yuan2021large"]
    assert keys(fs.cite(fs.PairwiseAUC(net, loss="barrier_hinge"))) == ["charoenphakdee2019symmetric"]
    assert keys(fs.cite("partial_auc", "digits")) == ["zhu2022auc", "gao2015consistency", "digits"]
    assert r"breast\_cancer: 569" in fs.cite("breast_cancer")
    with pytest.raises(FedsaddleError, match="cite: 'scafpd' is unknown; did you mean 'scaff_pd'"):
        fs.cite("scafpd")


def test_an_estimator_cites_what_it_used_also_when_loaded(tmp_path: Path) -> None:
    x, y = load_iris(return_X_y=True)
    fair = fs.FairFederatedClassifier(rounds=1, n_sites=2, random_state=0).fit(x, y)
    assert keys(fs.cite(fair)) == ["yu2023scaffpd", "ansel2024pytorch", "fedsaddle"]
    fair.save(tmp_path / "fair.safetensors")
    loaded = fs.FairFederatedClassifier.load(tmp_path / "fair.safetensors")
    assert fs.cite(loaded) == fs.cite(fair) == fs.cite(fair.run_)


def test_tables_of_citations_name_what_there_is() -> None:
    assert set(PROBLEMS_CITED) <= {p.__name__ for p in PROBLEMS.values()}
    assert set(LOSSES_CITED) == set(SCORE_LOSSES)
    from fedsaddle.ambiguity import AMBIGUITIES

    assert set(SETS_CITED) == set(AMBIGUITIES) - {"average"}
    assert (
        len(set(keys(fs.cite())))
        == len(keys(fs.cite()))
        == 1 + len({a.cites.key for a in ALGORITHMS.values()})
    )
