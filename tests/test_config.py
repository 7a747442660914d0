"""Configs: the TOML writer, defaults from signatures, paths, overrides, and that a config is the call that it describes."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsaddle as fs
from fedsaddle import schema
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.config import Config, dump, load, resolve
from fedsaddle.data import load as load_dataset
from fedsaddle.keys import in_words
from fedsaddle.participation import PARTICIPATION
from fedsaddle.toml import to_toml


def tree(**changes: dict[str, Any]) -> dict[str, Any]:
    """A small config of breast_cancer, with keys of its sections changed."""
    base: dict[str, Any] = {
        "data": {"name": "breast_cancer", "test": 0.25},
        "partition": {"name": "dirichlet", "clients": 4, "min_per_class": 4},
        "model": {"name": "mlp", "hidden": [4]},
        "problem": {"name": "auc"},
        "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 3},
        "train": {"rounds": 2},
    }
    for section, keys in changes.items():
        base[section] = base.get(section, {}) | keys if isinstance(keys, dict) else keys
    return base


# --------------------------------------------------------------------------------------------- writing TOML

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    _text,
    st.dates(),
    st.times().map(lambda t: t.replace(fold=0)),
    st.datetimes().map(lambda t: t.replace(fold=0)),
    st.datetimes(timezones=st.just(datetime.UTC)).map(lambda t: t.replace(fold=0)),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=12,
)


def exact(value: Any) -> Any:
    """Comparable with types told apart, NaN equal to itself, and without the order of tables."""
    if isinstance(value, dict):
        return {k: exact(v) for k, v in value.items()}
    if isinstance(value, list):
        return [exact(v) for v in value]
    return type(value).__name__, repr(value)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(_text, _values, max_size=5))
def test_any_toml_survives_writing(value: dict[str, Any]) -> None:
    assert exact(tomllib.loads(to_toml(value))) == exact(value)


def test_what_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(fs.FedsaddleError, match="TOML has no NoneType"):
        to_toml({"a": None})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resolved_config_survives_writing(name: str) -> None:
    local_steps = {} if name in ("npa", "ffmdr") else {"local_steps": 3}
    plain = name.endswith(("fedavg", "fedprox")) or name == "delta_fl"
    problem = {"name": "erm"} if plain else {"name": "auc"}
    if ALGORITHMS[name].pairwise:
        problem = {"name": "partial_auc" if name == "fedxl2" else "pairwise_auc"}
    made = resolve(tree() | {"algorithm": {"name": name, **local_steps}, "problem": problem}, "some name")
    again = resolve(tomllib.loads(dump(made)))
    assert again == made
    assert dump(again) == dump(made)


# ------------------------------------------------------------------------------------------- any config at all

_BASES = st.sampled_from([
    tree(),
    tree(participation={"name": "cyclic", "groups": 2}) | {"transform": [{"name": "flip_labels", "share": 0.1}]},
    {k: v for k, v in tree().items() if k != "partition"} | {"data": {"files": "x", "label": "y"}},
    {
        "data": {"name": "quadratic"}, "problem": {"name": "quadratic"}, "algorithm": {"name": "local_sgda"},
        "train": {"rounds": 2},
    },
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(_BASES, st.data())
def test_any_change_of_a_config_is_checked_or_refused_in_one_line(
    base: dict[str, Any], data: st.DataObject
) -> None:
    changed = {k: dict(v) if isinstance(v, dict) else v for k, v in base.items()}
    section = data.draw(st.sampled_from([*changed, "other"]))
    if isinstance(changed.get(section), dict) and data.draw(st.booleans()):
        own = [] if section == "data" else schema.keys(section, changed[section].get("name", ""))
        changed[section][data.draw(st.sampled_from(["name", "seed", *changed[section], *own]))] = data.draw(
            _values
        )
    else:
        changed[section] = data.draw(_values)
    try:
        made = resolve(changed)
    except fs.FedsaddleError as error:
        assert "\n" not in str(error)
    else:
        assert exact(resolve(tomllib.loads(dump(made))).tree) == exact(made.tree)


# ------------------------------------------------------------------------------------ keys from signatures


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_keys_of_an_algorithm_are_its_fields(name: str) -> None:
    own = {f.name: f.default for f in dataclasses.fields(ALGORITHMS[name])}
    assert {k: v.default for k, v in schema.keys("algorithm", name).items()} == own


def test_every_name_of_every_section_has_keys_that_can_be_checked_and_said() -> None:
    for section, named in schema.NAMED.items():
        for name in named:
            for key, own in schema.keys(section, name).items():
                assert in_words(own.type), (section, name, key)
                if not own.required and own.default is not None:
                    own.python(own.default)


def test_the_keys_of_train_are_its_arguments() -> None:
    own = set(inspect.signature(fs.train).parameters)
    made = set(schema.keys("train"))
    of_python = {"problem", "algorithm", "federation", "participation", "out", "progress", "resume", "allow"}
    assert own - made == of_python
    assert made <= own


def test_defaults_are_filled_in() -> None:
    made = resolve(tree()).tree
    assert made["algorithm"]["server_lr"] == fs.CODASCA().server_lr
    assert made["participation"] == {"name": "full", "failure": 0.0}
    assert made["train"]["engine"] == "stacked"
    assert made["partition"]["seed"] == 0
    assert list(made) == [
        "name",
        "data",
        "partition",
        "model",
        "problem",
        "algorithm",
        "participation",
        "train",
    ]


def test_none_is_a_value_where_an_argument_may_be_none() -> None:
    made = resolve(tree(train={"batch_size": "none"}, algorithm={"stage_rounds": "none"}))
    setup = made.build()
    assert setup.train["batch_size"] is None
    assert setup.algorithm.stage_rounds is None  # type: ignore[attr-defined]
    assert 'batch_size = "none"' in dump(made)
    scaled = resolve(tree(data={"scale": "none"})).build().federation  # here it is a scale's name
    assert scaled.data["x"].abs().max() > 100


def test_a_generated_problem_takes_its_dimensions_from_its_data() -> None:
    made = resolve({
        "data": {"name": "quadratic", "dim_x": 3, "dim_y": 2, "clients": 3},
        "problem": {"name": "quadratic"},
        "algorithm": {"name": "local_sgda"},
        "train": {"rounds": 1},
    })  # fmt: skip
    assert made.tree["problem"] == {"name": "quadratic", "dim_x": 3, "dim_y": 2}
    assert made.run().z.shape == (5,)
    # but the class index of AUC is not the class name of the data
    assert resolve(tree(data={"positive": "benign"})).tree["problem"]["positive"] == 1


@pytest.mark.parametrize(
    "scheme",
    [
        {"name": "uniform", "m": 2},
        {"name": "independent", "p": [0.5, 0.5, 0.2, 1]},
        {"name": "cyclic", "groups": [[0, 1], [2, 3]]},
        {"name": "cyclic", "groups": ["a", "b", "a", "b"]},
        {"name": "markov", "p_on": 0.5, "p_off": 0.5},
        {"name": "trace", "rounds": [[0], [1, 2]]},
    ],
    ids=lambda s: s["name"],
)
def test_participation(scheme: dict[str, Any]) -> None:
    made = resolve(tree(participation=scheme))
    assert resolve(tomllib.loads(dump(made))) == made
    built = made.build().participation
    assert built == PARTICIPATION[scheme["name"]](**{k: v for k, v in scheme.items() if k != "name"})


# ------------------------------------------------------------------------- a config is the call it describes


def test_a_config_is_the_call_that_it_describes() -> None:
    made = resolve(tree(train={"seed": 3, "batch_size": 8}, participation={"name": "uniform", "m": 2}))
    federation = load_dataset("breast_cancer").federation("dirichlet", 4, min_per_class=4).holdout(0.25)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = fs.models.build("mlp", (30,), hidden=[4])  # type: ignore[attr-defined]
    by_hand = fs.train(
        fs.AUC(model), fs.CODASCA(lr=0.05, local_steps=3), federation, rounds=2, seed=3, batch_size=8,
        participation=fs.Uniform(2),
    )  # fmt: skip
    assert torch.equal(made.run().z, by_hand.z)


def test_the_run_seed_changes_the_model_and_not_the_clients() -> None:
    state = torch.random.get_rng_state()
    a, b, same, other = (
        resolve(tree(train={"seed": seed}, partition={"seed": split})).build()
        for seed, split in ((0, 0), (1, 0), (0, 0), (0, 1))
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(a.federation.data["x"], b.federation.data["x"])
    assert not torch.equal(a.problem.init(), b.problem.init())
    assert torch.equal(a.problem.init(), same.problem.init())
    assert not torch.equal(a.federation.offsets, other.federation.offsets)


def test_test_sets() -> None:
    def parts(**data: Any) -> tuple[fs.Federation | None, fs.Federation | None]:
        made = resolve(tree() | {"data": {"name": "synthetic_binary", "n": 400, **data}}).build().federation
        return made.test, made.valid

    test, valid = parts()
    assert test is not None and (test.n_clients, test.n_samples) == (1, 100)  # the set's own
    assert valid is None
    test, _ = parts(test="matching")
    assert test is not None and (test.n_clients, test.n_samples) == (4, 100)
    test, valid = parts(test=0.25, valid=0.2)
    assert test is not None and test.n_clients == 4 and 90 <= test.n_samples <= 110
    assert valid is not None and valid.n_clients == 4 and 50 <= valid.n_samples <= 70


def test_transforms_change_the_training_data_only() -> None:
    plain = resolve(tree()).build().federation
    changed = resolve(tree() | {"transform": [{"name": "remove_positives", "share": 0.5}]}).build().federation
    assert changed.class_counts()[:, 1].sum() == plain.class_counts()[:, 1].sum() // 2
    assert plain.test is not None and changed.test is not None
    assert torch.equal(plain.test.data["y"], changed.test.data["y"])


def test_cross_entropy_has_one_output_a_class() -> None:
    made = resolve({
        "data": {"name": "iris"},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "linear"},
        "problem": {"name": "erm", "loss": "cross_entropy"},
        "algorithm": {"name": "fedavg"},
        "train": {"rounds": 1},
    })  # fmt: skip
    assert made.build().problem.n_x == (4 + 1) * 3


def test_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models_a.py").write_text(
        "from torch import nn\n"
        "def small(sample_shape, width: int = 3):\n"
        "    return nn.Sequential(nn.Linear(*sample_shape, width), nn.Tanh(), nn.Linear(width, 1))\n"
    )
    monkeypatch.chdir(tmp_path)
    made = resolve(tree() | {"model": {"module": "my_models_a:small", "width": 2}})
    assert made.build().problem.n_x == 31 * 2 + 3 + 2
    with pytest.raises(fs.FedsaddleError, match=r"model.width: must be a whole number, got \"wide\""):
        resolve(tree() | {"model": {"module": "my_models_a:small", "width": "wide"}})


def resnet18(**options: Any) -> Config:
    return resolve(tree() | {"data": {"name": "cifar10"}, "model": {"name": "resnet18"} | options})


def test_resnet18_for_images_of_one_size() -> None:
    made = resnet18(stem="large", pixels=32)
    of_model = made.tree["model"]
    assert (of_model["stem"], of_model["pixels"]) == ("large", 32)
    assert resolve(tomllib.loads(dump(made))) == made
    model = made.module((3, 32, 32), ("other", "cat"))
    assert sum(p.numel() for p in model.parameters()) == 4_230_209  # of 11 million with all taps
    smaller = fs.Federation.from_arrays(np.zeros((4, 3, 28, 28)), [0, 1, 0, 1], clients=[0, 0, 1, 1])
    with pytest.raises(fs.FedsaddleError, match=r"^model: was made for images of 32x32 pixels, got 28x28; "):
        fs.AUC(model).check(smaller)
    whole = resnet18(pixels="none").module((3, 32, 32), ())
    assert sum(p.numel() for p in whole.parameters()) == 11_169_345


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": "huge"}, "ResNet18: stem must be small or large, got 'huge'"),
        ({"stem": 7}, "model.stem: must be text, got 7"),
        ({"pixels": 0}, "ResNet18: pixels must be an integer >= 1, got 0"),
        ({"pixels": 32.5}, 'model.pixels: must be a whole number or "none", got 32.5'),
        ({"pixels": "32x32"}, 'model.pixels: must be a whole number or "none", got "32x32"'),
        ({"pixel": 32}, "model.pixel: unknown key, did you mean 'pixels'?"),
    ],
    ids=str,
)
def test_a_wrong_stem_or_size_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fs.FedsaddleError) as error:
        resnet18(**options).module((3, 32, 32), ())
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


# ----------------------------------------------------------------------------------- files, paths, overrides


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Three CSV files, one a hospital, and all of them in one table."""
    rng = np.random.default_rng(0)
    frames = []
    (tmp_path / "sites").mkdir()
    for name, n in (("north", 30), ("south", 40), ("west", 50)):
        died = (rng.random(n) < 0.3).astype(int)
        frame = pd.DataFrame(
            {"age": 60 + 10 * rng.standard_normal(n) + 15 * died, "bmi": rng.random(n), "died": died}
        )
        frame.to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
        frames.append(frame.assign(hospital=name))
    pd.concat(frames).to_csv(tmp_path / "all.csv", index=False)
    return tmp_path


REST = {
    "model": {"name": "linear"},
    "problem": {"name": "auc"},
    "algorithm": {"name": "codasca", "local_steps": 2},
    "train": {"rounds": 2},
}


def written(folder: Path, data: dict[str, Any]) -> Path:
    file = folder / "config.toml"
    file.write_text(to_toml({"data": data} | REST))
    return file


def test_files_and_a_frame_are_the_same_federation(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    options = {"label": "died", "positive": 1, "test": 0.2}
    a = load(written(sites, {"files": "sites/*.csv"} | options)).build().federation
    b = load(written(sites, {"file": "all.csv", "group": "hospital"} | options)).build().federation
    assert a.names == b.names == ("north", "south", "west")
    assert torch.equal(a.data["x"], b.data["x"])
    x = a.data["x"].double()
    assert torch.allclose(x.mean(0), torch.zeros(2, dtype=torch.double), atol=1e-6)
    assert torch.allclose(x.std(0, correction=0), torch.ones(2, dtype=torch.double), atol=1e-6)
    raw = load(written(sites, {"files": "sites/*.csv", "scale": "none"} | options)).build().federation
    assert raw.test is not None and a.test is not None
    train_x, test_x = raw.data["x"], raw.test.data["x"]  # test data is scaled by the training data
    expected = (test_x - train_x.mean(0)) / train_x.std(0, correction=0)
    assert torch.allclose(a.test.data["x"], expected, atol=1e-4)


@pytest.mark.parametrize(("how", "low", "high"), [("unit", 0, 1), ("symmetric", -1, 1), ("none", 0, 100)])
def test_scales(sites: Path, how: str, low: float, high: float) -> None:
    x = load(written(sites, {"files": "sites", "label": "died", "scale": how})).build().federation.data["x"]
    assert x.min() >= low - 1e-6 and x.max() <= high + 1e-6
    if how != "none":
        assert torch.allclose(x.amin(0), torch.full((2,), float(low)), atol=1e-6)
        assert torch.allclose(x.amax(0), torch.full((2,), float(high)), atol=1e-6)


def test_a_scale_that_is_none_of_them_and_a_constant_column() -> None:
    made = fs.Federation.from_arrays([[1.0, 3.0], [2.0, 3.0]], [0, 1], clients=["a", "b"])
    assert made.scaled("symmetric").data["x"].tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    with pytest.raises(fs.FedsaddleError, match=r"scaled: how must be 'none', 'unit', .*, got 'robust'"):
        made.scaled("robust")  # type: ignore[arg-type]


def test_paths_are_relative_to_the_file_and_of_overrides_to_the_current_folder(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(sites, {"files": "sites/*.csv", "label": "died"})
    monkeypatch.chdir(sites / "sites")
    assert load(file).tree["data"]["files"] == str(sites / "sites" / "*.csv")
    assert load(file, ["data.files=*.csv"]).build().federation.n_clients == 3
    assert load(file, ['data.files=["north.csv", "west.csv"]']).build().federation.names == ("north", "west")
    relative = Path(os.path.relpath(file))
    assert load(relative) == load(file)


def test_overrides(sites: Path) -> None:
    file = written(sites, {"files": "sites/*.csv", "label": "died"})
    made = load(file, [
        "algorithm.lr=0.5", "algorithm.output=last", 'name="a b"', "participation.name = uniform", "participation.m= 2",
        "model.name=mlp", "model.hidden=[3, 2]", "train.seed=7",
    ]).tree  # fmt: skip
    assert (made["algorithm"]["lr"], made["algorithm"]["output"], made["name"]) == (0.5, "last", "a b")
    assert (made["participation"]["m"], made["model"]["hidden"], made["train"]["seed"]) == (2, [3, 2], 7)
    again = dump(Config(made))
    (sites / "again.toml").write_text(again + '\n[[transform]]\nname = "thin_clients"\n')
    assert load(sites / "again.toml", ["transform.0.lose=0.5"]).tree["transform"][0]["lose"] == 0.5


def test_another_name_leaves_out_what_it_does_not_know(sites: Path) -> None:
    file = written(sites, {"files": "sites/*.csv", "label": "died"})
    file.write_text(file.read_text().replace('name = "auc"', 'name = "auc"\np = 0.3'))
    assert load(file).tree["problem"]["p"] == 0.3
    with pytest.warns(UserWarning, match=r"^problem\.p of the file is left out: erm has none$") as said:
        assert "p" not in load(file, ["problem.name=erm"]).tree["problem"]
    assert len(said) == 1
    with pytest.raises(fs.FedsaddleError, match=r"problem\.p: unknown key; erm takes loss"):
        load(file, ["problem.p=0.2", "problem.name=erm"])
    file.write_text(file.read_text().replace("p = 0.3", "q = 0.3"))
    with pytest.raises(fs.FedsaddleError, match=r"problem\.q: unknown key"):  # the file's own mistake
        load(file, ["problem.name=auc"])


# ------------------------------------------------------------------------------------------------- run folders


def test_a_run_folder_is_never_overwritten(tmp_path: Path) -> None:
    made = resolve(tree())
    first = made.run(tmp_path / "x", numbered=True)
    second = made.run(tmp_path / "x", numbered=True)
    assert (first.out, second.out) == (tmp_path / "x", tmp_path / "x-2")
    names = {
        "config.toml",
        "history.jsonl",
        "scores.csv",
        "clients.csv",
        "seconds.jsonl",
        "checkpoint",
        "result.json",
        "model.safetensors",
    }
    assert {p.name for p in (tmp_path / "x").iterdir()} == names
    with pytest.raises(fs.FedsaddleError, match="already holds a run"):
        made.run(tmp_path / "x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text("precious")
    with pytest.raises(fs.FedsaddleError, match="already holds a run"):
        made.run(tmp_path / "mine")
    assert (tmp_path / "mine" / "config.toml").read_text() == "precious"


def test_a_run_that_fails_before_its_first_record_leaves_no_folder(tmp_path: Path) -> None:
    made = resolve(tree(participation={"name": "uniform", "m": 9}))
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "new", tmp_path / "there"):
        with pytest.raises(fs.FedsaddleError, match="m must be between 1 and the 4 clients"):
            made.run(out)
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    assert list((tmp_path / "there").iterdir()) == []
