"""Sites: what leaves them, what is agreed, and that their data are then what pooled data would have been."""

from __future__ import annotations

import dataclasses
import gzip
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

import fedsaddle as fs
from fedsaddle.agreement import accepted, agree, in_words, outline
from fedsaddle.config import resolve
from fedsaddle.errors import FedsaddleError
from fedsaddle.export import RawModel
from fedsaddle.federation import Federation
from fedsaddle.frames import are_dates
from fedsaddle.histograms import federated_auc
from fedsaddle.site_check import check
from fedsaddle.sites import Site
from fedsaddle.toml import to_toml

DATA = {"label": "died", "positive": "yes", "drop": ["id"]}


def patients(seed: int, n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "id": [f"P{seed}-{i}" for i in range(n)],
        "age": rng.integers(20, 95, n) + 3 * seed,
        "lactate": rng.lognormal(size=n) * 10.0**seed,
        "pressure": 1e8 + rng.normal(size=n),  # a naive sum of squares loses all of its digits
        "constant": 0.1,
        "ward": rng.choice(["east", "west", "icu"], n, p=[0.6, 0.3, 0.1]),
        "died": rng.choice(["no", "yes"], n, p=[0.8, 0.2]),
    })  # fmt: skip


def write(folder: Path, name: str, frame: pd.DataFrame | None = None, top: Any = None, **data: Any) -> Path:
    """A site's TOML and CSV file; the path of the TOML."""
    file = folder / f"{name}.toml"
    if frame is not None:
        frame.to_csv(folder / f"{name}.csv", index=False)
    file.write_text(to_toml({"name": name, **(top or {}), "data": {"file": f"{name}.csv", **DATA, **data}}))
    return file


def numbers_only(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="ward")


def three(
    folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame] = lambda f: f, **data: Any
) -> list[Site]:
    return [
        Site.load(write(folder, name, change(patients(k)), **data)) for k, name in enumerate(("a", "b", "c"))
    ]


def refused(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(FedsaddleError) as info:
        call()
    assert text in str(info.value)
    assert "\n" not in str(info.value)


# --------------------------------------------------------------------------------------------------- agreement


def test_scaling_is_that_of_pooled_data(tmp_path: Path) -> None:
    sites = three(tmp_path, numbers_only)
    constants = agree([s.summary() for s in sites])
    pooled = pd.concat([numbers_only(patients(k)) for k in range(3)])[
        ["age", "lactate", "pressure", "constant"]
    ]
    scaler = StandardScaler().fit(pooled.to_numpy())
    np.testing.assert_allclose(constants["shift"].numpy(), scaler.mean_, rtol=1e-12)
    np.testing.assert_allclose(constants["width"].numpy(), scaler.scale_, rtol=1e-12)
    x = torch.cat([s.federation(constants, torch.float64).data["x"] for s in sites])
    # a number of 1e8 + u has u to 1e-8 of its deviation, in sklearn as here
    np.testing.assert_allclose(
        x[:, [0, 1, 3]].numpy(), scaler.transform(pooled.to_numpy())[:, [0, 1, 3]], atol=1e-12
    )
    np.testing.assert_allclose(x[:, 2].numpy(), scaler.transform(pooled.to_numpy())[:, 2], atol=1e-7)
    assert not x[:, 3].any()


@pytest.mark.parametrize("value", [0.1, -1 / 3, 1e8 + 0.1, 7e-300])
def test_a_constant_column_is_zero_whatever_its_mean_rounds_to(tmp_path: Path, value: float) -> None:
    sites = []
    for n in (3, 49, 1001):
        np.savez(tmp_path / f"{n}.npz", x=np.full((n, 1), value), y=np.arange(n) % 2)
        (tmp_path / f"{n}.toml").write_text(f'name = "{n}"\n[data]\nfile = "{n}.npz"\n')
        sites.append(Site.load(tmp_path / f"{n}.toml"))
    constants = agree([s.summary() for s in sites])
    assert constants["width"].tolist() == [1.0]
    assert not any(s.federation(constants, torch.float64).data["x"].any() for s in sites)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 1.0, 1e6, -1e9]),
    spread=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_pooled_moments_are_exact(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], offset: float, spread: float, seed: int
) -> None:
    folder, rng = tmp_path_factory.mktemp("sites"), np.random.default_rng(seed)
    parts = [offset + spread * rng.standard_normal((n, 2)) * rng.random(2) for n in sizes]
    summaries = []
    for i, x in enumerate(parts):
        np.savez(folder / f"{i}.npz", x=x, y=np.arange(len(x)) % 2)
        (folder / f"{i}.toml").write_text(f'name = "{i}"\n[data]\nfile = "{i}.npz"\nclasses = ["0", "1"]\n')
        summaries.append(Site.load(folder / f"{i}.toml").summary())
    constants, pooled = agree(summaries), np.concatenate(parts).astype(np.longdouble)
    assert constants["n"].item() == len(pooled)
    deviation = np.where(np.ptp(pooled, axis=0) == 0, 1, pooled.std(0)).astype(float)
    np.testing.assert_allclose(constants["width"].numpy(), deviation, rtol=1e-12)
    np.testing.assert_allclose(
        constants["shift"].numpy(), pooled.mean(0).astype(float), rtol=1e-15, atol=1e-12 * spread
    )


@pytest.mark.parametrize("scale", ["none", "unit", "symmetric", "standard", "log"])
def test_sites_together_are_the_simulated_federation(tmp_path: Path, scale: Any) -> None:
    sites = three(tmp_path, numbers_only, scale=scale)
    files = [s.file for s in sites]
    simulated = Federation.from_files(
        files, label="died", positive="yes", drop=["id"], dtype=torch.float64
    ).scaled(scale)
    constants = agree([s.summary() for s in sites])
    for i, site in enumerate(sites):
        own = site.federation(constants, torch.float64)
        assert own.names == (site.name,)
        assert own.classes == simulated.classes == ("no", "yes")
        assert own.feature_names == simulated.feature_names
        assert own.test is None and own.valid is None
        assert torch.equal(own.data["y"], simulated.client(i)["y"])
        atol = 1e-6 if scale == "log" else 1e-7  # numbers from 1e8 - 2 to 1e8 + 2
        torch.testing.assert_close(own.data["x"], simulated.client(i)["x"], rtol=1e-12, atol=atol)
    assert constants["labels"].tolist() == simulated.class_counts().sum(0).tolist()
    assert constants["n"].item() == 600
    assert sites[0].federation(constants).data["x"].dtype == torch.float32


def with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.copy()
    frame.loc[::3, "age"] = None
    frame.loc[::4, ["lactate", "ward"]] = None
    if frame["id"][0].startswith(
        "P1"
    ):  # the second site measures no pressure, and has its columns in another order
        return frame.assign(pressure=np.nan)[frame.columns[::-1]]
    return frame


@pytest.mark.parametrize("scale", ["none", "unit", "standard", "log"])
def test_gaps_are_filled_as_in_the_simulated_federation(tmp_path: Path, scale: Any) -> None:
    sites = three(tmp_path, lambda f: numbers_only(with_gaps(f)), scale=scale, impute="mean")
    simulated = Federation.from_files(
        [s.file for s in sites], label="died", positive="yes", drop=["id"], impute="mean", dtype=torch.float64
    )
    assert simulated.filling is not None
    summaries = [s.summary() for s in sites]
    constants = agree([accepted(s) for s in summaries])
    simulated = simulated.scaled(scale)
    assert simulated.filling is not None
    filled = outline([s.name for s in sites], summaries, constants).filling
    assert filled is not None
    torch.testing.assert_close(filled.values, simulated.filling.values, rtol=1e-12, atol=0)
    for i, site in enumerate(sites):
        own = site.federation(constants, torch.float64)
        atol = 1e-6 if scale == "log" else 1e-7
        torch.testing.assert_close(own.data["x"], simulated.client(i)["x"], rtol=1e-9, atol=atol)
    assert summaries[1]["size"].tolist() == [200, 0, 150, 133] and constants["n"].item() == 600


@pytest.mark.parametrize("scale", ["standard", "log"])
def test_a_missing_text_is_a_category_and_goes_into_the_model(tmp_path: Path, scale: Any) -> None:
    sites = three(tmp_path, with_gaps, impute="mean", test=0.2, scale=scale)
    summaries = [s.summary() for s in sites]
    constants = agree(summaries)
    ages = pd.concat([with_gaps(patients(k))["age"][s.rows.training] for k, s in enumerate(sites)])
    ages = np.log1p(ages) if scale == "log" else ages
    assert np.isclose(constants["fill"][0], ages.mean(), rtol=1e-12)  # test rows never count
    own, known = sites[0].federation(constants), outline(["a", "b", "c"], summaries, constants)
    assert (
        own.feature_names[4:] == ("ward=east", "ward=icu", "ward=missing", "ward=west")
        and own.test is not None
    )
    assert known.filling is not None
    linear = torch.nn.Linear(8, 1)
    model = RawModel(linear, known.scaling, features=known.feature_names, fill=known.filling.values).double()
    table = with_gaps(patients(0))[sites[0].rows.part == 2]
    assert table.isna().any().sum() == 3
    assert torch.allclose(model(model.rows(table)), linear(own.test.data["x"].double()), atol=1e-4)
    if scale == "log":
        assert any(
            line.startswith("column 'age': mean of the logarithm 4.") for line in in_words(summaries[0])
        )


def test_true_and_false_are_numbers_with_and_without_gaps(tmp_path: Path) -> None:
    some, all_ = patients(0).assign(smoker=[True, None] * 100), patients(1).assign(smoker=[True, False] * 100)
    sites = [Site.load(write(tmp_path, name, f, impute="mean")) for name, f in (("a", some), ("b", all_))]
    constants = agree([s.summary() for s in sites])
    assert [s.rows.columns[-1] for s in sites] == ["smoker"] * 2 and list(sites[0].rows.text) == ["ward"]
    assert np.isclose(constants["fill"][-1], 2 / 3)
    none = Site.load(write(tmp_path, "a", some))
    refused("a.csv: x has NaN at row 1, column 'smoker' (4), line 3 of the file", none.summary)


def test_nothing_is_said_of_a_column_that_few_rows_have(tmp_path: Path) -> None:
    """Its mean would be a person's own number."""
    few = patients(0).assign(lactate=[1.0, 2.0, 3.0, 4.0, *[np.nan] * 196])
    site, other = (
        Site.load(write(tmp_path, "a", few, impute="mean")), Site.load(write(tmp_path, "b", patients(1), impute="mean")),
    )  # fmt: skip
    sent = site.summary()
    assert [float(sent[k][1]) for k in ("size", "mean", "rest", "m2")] == [0, 0, 0, 0]
    assert "column 'lactate': nothing, too few rows have a number" in in_words(sent)
    assert any(
        line.startswith("column 'age': mean") and line.endswith("of 200 rows") for line in in_words(sent)
    )
    (found,) = (f for f in check(tmp_path / "a.toml") if "lactate" in f)
    assert found.startswith("column 'lactate' has a number in fewer than 5 training rows")
    assert np.isclose(agree([sent, other.summary()])["fill"][1], patients(1)["lactate"].mean())
    refused("column 'lactate' has no number that a site may speak of: add it to drop", lambda: agree([sent]))


def test_categories_are_indicators_over_all_sites_and_rare_ones_are_not_named(tmp_path: Path) -> None:
    north, south = patients(0), patients(1)
    north.loc[:3, "ward"] = "burns"  # four rows: too few to be named
    south.loc[:9, "ward"] = "burns"
    south.loc[10, "ward"] = "prison"
    sites = [Site.load(write(tmp_path, name, f)) for name, f in (("north", north), ("south", south))]
    summaries = [s.summary() for s in sites]
    heads = [bytes(s["head"].numpy()).decode() for s in summaries]
    assert "burns" not in heads[0] and "burns" in heads[1]
    assert "prison" not in heads[0] + heads[1]
    made = [s.federation(agree(summaries)) for s in sites]
    names = ("age", "lactate", "pressure", "constant", "ward=burns", "ward=east", "ward=icu", "ward=west")
    assert made[0].feature_names == made[1].feature_names == names
    wards = made[0].data["x"][:, 4:]
    assert wards[:4].tolist() == [[1, 0, 0, 0]] * 4  # named by the other site, so known here
    assert torch.equal(wards.sum(1), torch.ones(200))
    assert made[1].data["x"][10, 4:].tolist() == [0, 0, 0, 0]
    assert [north["ward"][i] for i in range(200) if wards[i, 1]] == ["east"] * int(wards[:, 1].sum())


def test_columns_of_numbers_may_be_categories(tmp_path: Path) -> None:
    frames = [patients(k).assign(ward=[1, 2] * 100) for k in range(2)]
    frames[1]["ward"] = frames[1]["ward"].astype(float)  # 1.0 is 1
    sites = [Site.load(write(tmp_path, f"s{k}", f, categories=["ward"])) for k, f in enumerate(frames)]
    constants = agree([s.summary() for s in sites])
    assert sites[1].federation(constants).feature_names[-2:] == ("ward=1", "ward=2")
    assert sites[1].federation(constants).data["x"][:2, -2:].tolist() == [[1, 0], [0, 1]]


def test_columns_may_come_in_any_order(tmp_path: Path) -> None:
    frame = numbers_only(patients(0))
    sites = [
        Site.load(write(tmp_path, "a", frame)),
        Site.load(write(tmp_path, "b", frame[["died", "lactate", "id", "constant", "age", "pressure"]])),
    ]
    constants = agree([s.summary() for s in sites])
    a, b = (s.federation(constants) for s in sites)
    assert torch.equal(a.data["x"], b.data["x"])
    assert a.feature_names == b.feature_names
    torch.testing.assert_close(constants["shift"], agree([sites[0].summary()])["shift"], rtol=1e-12, atol=0)


def test_a_site_with_one_class_takes_part(tmp_path: Path) -> None:
    sites = [
        Site.load(write(tmp_path, "a", patients(0))),
        Site.load(write(tmp_path, "b", patients(1).assign(died="no"))),
    ]
    constants = agree([s.summary() for s in sites])
    assert sites[1].federation(constants).classes == ("no", "yes")
    assert not sites[1].federation(constants).data["y"].any()


def test_several_classes_and_regression(tmp_path: Path) -> None:
    frame, more = patients(0), {"positive": None}

    def made(**data: Any) -> list[Federation]:
        keep = {k: v for k, v in (DATA | data).items() if v is not None}
        for name in ("a", "b"):
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
            (tmp_path / f"{name}.toml").write_text(
                to_toml({"name": name, "data": {"file": f"{name}.csv", **keep}})
            )
        sites = [Site.load(tmp_path / f"{name}.toml") for name in ("a", "b")]
        constants = agree([s.summary() for s in sites])
        return [s.federation(constants) for s in sites]

    assert made(label="ward", **more)[0].classes == ("east", "icu", "west")
    assert made(label="ward", classes=["west", "icu", "east", "none"], **more)[1].classes[3] == "none"
    assert made(label="ward", positive=["icu", "west"])[0].classes == ("east", "positive")
    target = made(label="lactate", **more)[0]
    assert target.is_regression
    torch.testing.assert_close(target.data["y"], torch.tensor(frame["lactate"].to_numpy()).float())


# ----------------------------------------------------------------------------------------------- what is held out


def test_parts_are_a_function_of_the_row_and_lose_none(tmp_path: Path) -> None:
    frame = patients(0, 2000)
    site = Site.load(write(tmp_path, "a", frame, valid=0.2, test=0.3))
    made = site.federation(agree([site.summary()]), torch.float64)
    assert made.valid is not None and made.test is not None
    sizes = [made.n_samples, made.valid.n_samples, made.test.n_samples]
    assert sum(sizes) == 2000
    np.testing.assert_allclose(sizes, [1000, 400, 600], atol=60)
    shuffled = frame.sample(frac=1, random_state=1).iloc[:1500]
    part = dict(zip(frame["id"], site.rows.part, strict=True))
    other = Site.load(write(tmp_path, "b", shuffled, valid=0.2, test=0.3))
    assert [part[i] for i in shuffled["id"]] == other.rows.part.tolist()


def test_rows_that_belong_together_stay_together(tmp_path: Path) -> None:
    frame = patients(0, 400).assign(id=np.repeat(np.arange(100), 4))
    site = Site.load(write(tmp_path, "a", frame, test=0.3, together="id", drop=[]))
    parts = site.rows.part.reshape(100, 4)
    assert (parts == parts[:, :1]).all()
    assert 10 < (parts[:, 0] == 2).sum() < 50
    assert "id" not in site.rows.columns
    twins = pd.concat([patients(0)] * 2)
    site = Site.load(write(tmp_path, "b", twins, test=0.3))
    assert (site.rows.part[:200] == site.rows.part[200:]).all()


def test_what_leaves_is_about_training_rows_alone(tmp_path: Path) -> None:
    site = Site.load(write(tmp_path, "a", patients(0), test=0.5))
    summary = site.summary()
    train = patients(0)[site.rows.part == 0]
    assert summary["n"].item() == len(train) < 200
    assert summary["mean"][0].item() == pytest.approx(train["age"].mean())
    assert summary["labels"].tolist() == [(train["died"] == "no").sum(), (train["died"] == "yes").sum()]
    assert set(summary) == {"head", "n", "size", "mean", "rest", "m2", "labels"}
    assert all(v.dtype == torch.float64 for k, v in summary.items() if k != "head")
    assert sum(v.numel() for k, v in summary.items() if k != "head") == 2 + 3 * 4 + 2  # of 200 rows of 7
    by_id = {"test": 0.5, "together": "id", "drop": []}
    held = Site.load(write(tmp_path, "b", patients(0), **by_id)).rows.part == 2
    frame = patients(0).assign(ward=np.where(held, "night", patients(0)["ward"]))
    head = Site.load(write(tmp_path, "b", frame, **by_id)).summary()["head"]
    assert held.sum() > 50 and b"night" not in bytes(head.numpy())
    unit = Site.load(write(tmp_path, "a", patients(0), test=0.5, scale="unit")).summary()
    assert unit["max"][0] == train["age"].max()
    assert "from 20 to" in in_words(unit)[1]
    text = "\n".join(in_words(summary))
    assert "column 'age': mean" in text and "label 'positive':" in text and "P0-" not in text


def joined(parts: list[Federation]) -> Federation:
    """The clients of several federations, for simulation."""
    data = {k: torch.cat([p.data[k] for p in parts]) for k in ("x", "y")}
    offsets = torch.tensor([0, *(p.n_samples for p in parts)]).cumsum(0)
    return Federation(data, offsets, tuple(name for p in parts for name in p.names), parts[0].classes)


def test_sites_train_together_and_are_evaluated_without_pooling(tmp_path: Path) -> None:
    sites = three(
        tmp_path,
        lambda f: f.assign(died=np.where(f["age"] + 20 * (f["ward"] == "icu") > 75, "yes", "no")),
        test=0.3,
    )
    constants = agree([s.summary() for s in sites])
    made = [s.federation(constants) for s in sites]
    tests = [m.test for m in made if m.test is not None]
    federation = dataclasses.replace(joined(made), test=joined(tests))
    torch.manual_seed(0)
    problem = fs.AUC(torch.nn.Linear(len(made[0].feature_names), 1))
    run = fs.train(problem, fs.CODASCA(lr=0.1, local_steps=5), federation, rounds=20)
    with torch.no_grad():
        scored = [(run.model(t.data["x"]).squeeze(-1), t.data["y"] == 1) for t in tests]
    (auc, bound), own = federated_auc(scored)
    assert run.metrics["auc"] > 0.9
    assert abs(auc - run.metrics["auc"]) <= bound + 1e-12 <= 1e-3
    assert own == pytest.approx(run.by_client["auc"])


# --------------------------------------------------------------------------------------------------- other files


def test_arrays_libsvm_and_separators(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:2\n0 2:4\n")
    (tmp_path / "b.svm").write_text("0 3:6\n1 1:4\n")
    sites = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(
            f'name = "{name}"\n[data]\nfile = "{name}.svm"\nscale = "unit"\n'
        )
        sites.append(Site.load(tmp_path / f"{name}.toml"))
    constants = agree([s.summary() for s in sites])
    assert sites[0].federation(constants).data["x"].tolist() == [[0.5, 0, 0], [0, 1, 0]]
    assert sites[1].federation(constants).data["x"].tolist() == [[0, 0, 1], [1, 0, 0]]
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "c.npz", x=rng.integers(0, 255, (5, 3, 4, 4), dtype=np.uint8), y=np.array([0, 1, 0, 1, 1])
    )
    (tmp_path / "c.toml").write_text('name = "c"\n[data]\nfile = "c.npz"\n')
    site = Site.load(tmp_path / "c.toml")
    x = site.federation(agree([site.summary()]), torch.float64).data["x"]
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3).double())
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3).double())
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(b"age;died\n1,5;no\n2;yes\n"))
    site = Site.load(write(tmp_path, "d", None, file="d.csv.gz", sep=";", decimal=",", drop=[]))
    assert site.federation(agree([site.summary()])).data["y"].tolist() == [0, 1]
    assert site.rows.x.tolist() == [[1.5], [2.0]] and not any(
        "age" in line for line in check(tmp_path / "d.toml")
    )


def test_images_and_parquet_or_what_to_install(tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    for i, name in enumerate(("healthy", "ill", "healthy")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{i}.png").write_bytes(b"")
    (tmp_path / "i.toml").write_text('name = "i"\n[data]\nfile = "scans"\npositive = "ill"\n')
    site = Site.load(tmp_path / "i.toml")
    try:
        from PIL import Image
    except ImportError:
        refused("a folder of images, needs PIL: pip install 'pillow'", site.summary)
    else:
        refused("cannot be read as an image", site.summary)
        for i, file in enumerate(sorted(folder.glob("*/*.png"))):
            Image.new("L", (5, 4), 10 * i).save(file)
        site = Site.load(tmp_path / "i.toml")
        made = site.federation(agree([site.summary()]))
        assert made.data["x"].shape == (3, 1, 4, 5)
        assert made.data["y"].tolist() == [0, 0, 1]
        assert made.data["x"][1].abs().max() < 1e-6  # 10, between 0 and 20
        Image.new("RGB", (5, 4), (1, 2, 3)).save(folder / "ill" / "1.png")
        assert Site.load(tmp_path / "i.toml").rows.x.shape == (3, 3, 4, 5)
        Image.new("L", (6, 4), 0).save(folder / "ill" / "1.png")
        refused("1.png has 4x6 pixels, 0.png has 4x5", lambda: Site.load(tmp_path / "i.toml").rows)
    file = write(tmp_path, "p", None, file="p.parquet")
    try:
        patients(0).to_parquet(tmp_path / "p.parquet")
    except ImportError:
        (tmp_path / "p.parquet").write_bytes(b"PAR1")
        refused("needs pyarrow: pip install pyarrow", Site.load(file).summary)
    else:
        assert Site.load(file).summary()["n"].item() == 200


# ------------------------------------------------------------------------------------------------------- refusals


def pair(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame] = lambda f: f, **data: Any) -> None:
    """Two sites, of which the second differs."""
    sites = [
        Site.load(write(folder, "a", patients(0))),
        Site.load(write(folder, "b", change(patients(1)), **data)),
    ]
    agree([s.summary() for s in sites])


@pytest.mark.parametrize(
    ("text", "change", "data"),
    [
        ("site 'b' has no column 'age', which site 'a' has", lambda f: f.rename(columns={"age": "old"}), {}),
        ("site 'b' has column 'bmi', which site 'a' has not", lambda f: f.assign(bmi=1.0), {}),
        ("site 'b' has no column 'ward'", lambda f: f.drop(columns="ward"), {}),
        ("site 'b' has text in column 'age', site 'a' has numbers", lambda f: f.assign(age=["old"] * 200), {}),
        ("site 'b' has numbers in column 'ward', site 'a' has text", lambda f: f.assign(ward=1), {}),
        ("site 'b' has data.scale = \"unit\", site 'a' \"standard\"", lambda f: f, {"scale": "unit"}),
        ("site 'b' has data.impute = \"mean\", site 'a' \"none\"", lambda f: f, {"impute": "mean"}),
        ("site 'b' has data.positive = [\"no\"], site 'a' [\"yes\"]", lambda f: f, {"positive": "no"}),
        ("which no other site has: spell them alike", lambda f: f.assign(died=["0", "1"] * 100), {}),
    ],
)  # fmt: skip
def test_sites_that_do_not_fit_are_named(tmp_path: Path, text: str, change: Any, data: Any) -> None:
    refused(text, lambda: pair(tmp_path, change, **data))


def test_more_sites_that_do_not_fit(tmp_path: Path) -> None:
    refused("no site has sent its summary", lambda: agree([]))
    one = Site.load(write(tmp_path, "a", patients(0))).summary()
    refused("two sites are called 'a'", lambda: agree([one, one]))
    site = Site.load(write(tmp_path, "a", patients(0).assign(died="no")))
    refused("positive='yes' never occurs in y: choose from 'no'", lambda: agree([site.summary()]))
    site = Site.load(write(tmp_path, "a", patients(0, 30), drop=[]))
    refused("column 'id' has no value that enough rows of a site share", lambda: agree([site.summary()]))
    for mean in (torch.full((4,), torch.nan), torch.zeros(3)):
        broken = {**one, "mean": mean.double()}
        refused("site 'a' sent statistics that are too few or not", lambda b=broken: agree([b]))
    frames = {"a": patients(0), "b": patients(1).assign(died="no")}
    sites = []
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        tree = {"name": name, "data": {"file": f"{name}.csv", "label": "died", "drop": ["id"]}}
        (tmp_path / f"{name}.toml").write_text(to_toml(tree))
        sites.append(Site.load(tmp_path / f"{name}.toml"))
    refused(
        "site 'b' has no label 'yes', which other sites have: set data.positive",
        lambda: agree([s.summary() for s in sites]),
    )
    site = Site.load(write(tmp_path, "a", patients(0)))
    constants = agree([site.summary()])
    changed = Site.load(write(tmp_path, "a", patients(0).drop(columns="age")))
    refused("has other columns than at set-up", lambda: changed.federation(constants))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("data.lable: unknown key, did you mean 'label'?", {"lable": "died"}),
        ("data.test: must be a number, got \"half\"", {"test": "half"}),
        ("data: valid + test must leave rows to train on, got 0.5 + 0.5", {"test": 0.5, "valid": 0.5}),
        ("data.test: must be in [0, 1), got 1.5", {"test": 1.5}),
        ("data.rare: must be >= 1, got 0", {"rare": 0}),
        ("data.sep: must be one character, got ';;'", {"sep": ";;"}),
        ("data.scale: must be \"none\" or", {"scale": "minmax"}),
        ("data.impute: sites exchange sums, which give no median; use \"mean\"", {"impute": "median"}),
        ("data.classes: has no use beside positive", {"classes": ["no", "yes"]}),
        ("data.task: regression has no positive", {"task": "regression"}),
    ],
)  # fmt: skip
def test_mistakes_in_the_toml(tmp_path: Path, text: str, data: Any) -> None:
    file = write(tmp_path, "a", patients(0), **data)
    refused(text, lambda: Site.load(file))
    assert any(text in finding for finding in check(file))


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("north", True), ("St. Mary's", True), ("Zürich 2", True),
        ("", False), (".hidden", False), ("..", False), ("a/b", False), ("a\\b", False), (" a", False), ("a\n", False),
    ],
)  # fmt: skip
def test_names_of_sites_and_of_runs_follow_one_rule(name: str, fits: bool, tmp_path: Path) -> None:
    file = write(tmp_path, "a", patients(0), top={"name": name})
    config = {
        "name": name, "data": {"sites": "."}, "model": {"name": "linear"}, "problem": {"name": "auc"},
        "algorithm": {"name": "codasca"}, "train": {"rounds": 1},
    }  # fmt: skip
    if fits:
        assert Site.load(file).name == resolve(config).name == name
    else:
        for call in (lambda: Site.load(file), lambda: resolve(config)):
            refused("name: must be text without slashes, to name a folder, got ", call)


def test_where_things_are(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    site = Site.load(write(tmp_path, "a", None, file="data/a.csv"))
    assert site.memory == tmp_path / "data" / "a.memory"
    refused(f"{tmp_path}/data/a.csv is not there: correct data.file", lambda: site.rows)
    assert Site.load(write(tmp_path, "a", None, {"memory": "state"})).memory == tmp_path / "state"
    refused("No such file or directory; give the site's TOML", lambda: Site.load(tmp_path / "none.toml"))
    (tmp_path / "a.toml").write_text("name = ")
    refused("is not valid TOML", lambda: Site.load(tmp_path / "a.toml"))
    (tmp_path / "a.toml").write_text('nam = "a"')
    assert [finding.split(":")[0] for finding in check(tmp_path / "a.toml")] == ["nam", "name", "data"]
    np.savez(tmp_path / "x.npz", x=np.ones((2, 1)), y=[0, 1])
    file = write(tmp_path, "x", None, file="x.npz")
    refused("data.label: x.npz has no named columns; leave it out", lambda: Site.load(file).rows)
    alike = patients(0, 9).assign(age=1, lactate=1, pressure=1, ward="east")  # all rows have one hash
    site = Site.load(write(tmp_path, "t", alike, test=0.99))
    bare = Site.load(write(tmp_path, "u", patients(0)[["id", "died"]]))
    refused("u.csv has no features beside the label", lambda: bare.rows)
    refused("t.csv leaves no rows to train on: lower data.valid and data.test", lambda: site.rows)


def test_a_bad_row_is_named_with_its_line(tmp_path: Path) -> None:
    for column, text in (("lactate", "x has NaN at row 7, column 'lactate' (1), line 9 of the file"),
                         ("ward", "column 'ward' has no value at row 7, line 9 of the file"),
                         ("died", "label 'died' has no value at row 7, line 9 of the file: drop rows")):  # fmt: skip
        frame = patients(0)
        frame.loc[7, column] = None
        refused(f"a.csv: {text}", Site.load(write(tmp_path, "a", frame)).summary)


# ------------------------------------------------------------------------------------------------------- checking


def test_check_finds_nothing_at_a_sound_site_and_everything_at_a_bad_one(tmp_path: Path) -> None:
    sound = patients(0).drop(columns="constant")
    assert check(write(tmp_path, "a", sound, test=0.2)) == []
    frame = sound.copy()
    frame.loc[3, "age"] = None
    frame.loc[[5, 6], "ward"] = None
    frame.loc[9, "lactate"] = np.inf
    unlabelled = check(write(tmp_path, "a", frame.assign(died=frame.died.where(frame.index > 0))))
    assert any(
        "'died' has no usable value in 1 of 200 rows, first at line 2: drop rows" in f for f in unlabelled
    )
    found = check(write(tmp_path, "a", frame, label="dead", drop=["idd"], together="patient"))
    assert [f.split(":")[0] for f in found[:3]] == ["data.label", "data.drop", "data.together"]
    assert "did you mean 'id'?" in found[1]
    assert "column 'age' has no usable value in 1 of 200 rows, first at line 5" in found[3]
    assert "column 'lactate' has no usable value in 1 of 200 rows, first at line 11" in found[4]
    assert "column 'ward' has no usable value in 2 of 200 rows, first at line 7" in found[5]
    assert len(found) == 6
    frame.loc[0, "died"] = None
    found = check(
        write(tmp_path, "a", frame, impute="mean")
    )  # an infinite number and a label cannot be filled in
    assert [f.split(" has no usable")[0] for f in found] == ["column 'lactate'", "column 'died'"]
    found = check(write(tmp_path, "a", patients(0, 30).assign(died="No"), drop=[], positive="no", test=0.01))
    text = "\n".join(found)
    for part in (
        "training rows are few",
        "column 'constant' is 0.1 in all training rows",
        "column 'id' is text and none of its 30 values has 5 training rows",
        "positive = \"no\" never occurs at this site: did you mean 'No'?",
        "all rows are of one class",
    ):
        assert part in text
    assert len(found) == 5
    rare = patients(0).drop(columns="constant").assign(died=["yes"] * 2 + ["no"] * 198)
    assert "the test part" in check(write(tmp_path, "a", rare, test=0.1))[0]
    assert check(write(tmp_path, "b", None)) == [
        f"{tmp_path}/b.csv is not there: correct data.file, which is relative to {tmp_path}"
    ]
    endless = write(tmp_path, "c", None)
    endless.write_text(endless.read_text().replace("c.csv", "c" * 5000 + ".csv"))
    assert "is not there: correct data.file" in check(endless)[0]


def visits() -> pd.DataFrame:
    """A site's table with dates and free text, some values of which five rows have by chance."""
    rng, n = np.random.default_rng(0), 400
    days = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D")
    notes = [f"note {k}" for k in rng.geometric(0.02, n)]
    return numbers_only(patients(0, n)).assign(seen=days.strftime("%Y-%m-%dT%H:%M"), note=notes)


def test_dates_and_free_text_do_not_leave_a_site(tmp_path: Path) -> None:
    frame = visits()
    assert frame["note"].value_counts().max() >= 5  # some would be named
    file = write(tmp_path, "a", frame)
    for name, what in (
        ("seen", "has dates"),
        ("note", f"is text with {frame['note'].nunique()} distinct values, at most 50"),
    ):
        assert any(
            f"a.csv: column {name!r} {what}" in line and "add it to drop" in line for line in check(file)
        )
    assert are_dates(pd.Series([pd.Timestamp("2024-01-31")]))
    refused("column 'seen' has dates", Site.load(file).summary)  # and not only in check
    few = frame.assign(
        seen=[("01.02.2024", "3/4/24", None)[i % 3] for i in range(400)]
    )  # of two days, and gaps
    file = write(tmp_path, "a", few, drop=["id", "note"], impute="mean")
    refused("column 'seen' has dates", Site.load(file).summary)


def test_a_site_may_say_that_the_values_of_a_text_may_leave(tmp_path: Path) -> None:
    file = write(tmp_path, "a", visits(), drop=["id", "seen"], categories=["note"])
    assert "column 'note': categories 'note 1', " in "\n".join(in_words(Site.load(file).summary()))


def test_a_site_may_have_the_encoding_of_excel(tmp_path: Path) -> None:
    frame = patients(0).replace({"ward": {"east": "Köln"}})
    file = write(tmp_path, "a", None, encoding="cp1252")
    frame.to_csv(tmp_path / "a.csv", index=False, encoding="cp1252")
    assert "column 'ward': categories 'Köln', 'icu', 'west'" in in_words(Site.load(file).summary())
    (said,) = check(write(tmp_path, "a", None))
    assert "a.csv is not UTF-8 (byte 0xf6 in line " in said and 'set encoding = "cp1252"' in said
    (tmp_path / "a.csv").write_bytes(b"id,died,age\n1,no,3\n\n\x81,yes,4\n")
    refused(
        "a.csv is not CP1252 (byte 0x81 in line 4): save it as 'CSV UTF-8', or correct encoding",
        Site.load(write(tmp_path, "a", None, encoding="cp1252")).summary,
    )
    refused(
        'data.encoding: must be "utf-8" or', lambda: Site.load(write(tmp_path, "b", frame, encoding="utf-9"))
    )


def test_the_noise_secret_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        seen.append(stat.S_IMODE(os.stat(source).st_mode))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    place = Site.load(write(tmp_path, "a"))
    place.noise_key(b"")
    assert seen == [0o600] == [stat.S_IMODE((place.memory / "key").stat().st_mode)]
