"""Train-Convexify-Train: features are the tangent of the network, the same everywhere, and a linear second stage on them."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedsaddle as fs
from fedsaddle import config, models
from fedsaddle.alike import Federations
from fedsaddle.convexify import Coordinates, _scales, coordinates_of, tangent
from fedsaddle.errors import FedsaddleError
from fedsaddle.finish import finish
from fedsaddle.journal import Journal
from fedsaddle.networks import Networks
from fedsaddle.overrides import put
from fedsaddle.theory import probe


class Odd(nn.Module):
    """A module that is no plain stack: tied weights, a residual, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 5), nn.Linear(5, 3)
        self.fixed = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x)) + x
        out: Tensor = self.head(torch.tanh(self.inner(h)) * self.fixed)
        return out


class Innermost(nn.Module):
    """Its kernels do not lie in the flat vector as the module has them."""

    channels_innermost = True

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.head = nn.Conv2d(3, 4, (2, 3)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.kernels(x)).mean((2, 3)))
        return out


NETWORKS = {
    "channels innermost": (Innermost, (3, 4, 5)),
    "odd": (Odd, (5,)),
    "mlp": (lambda: models.build("mlp", (6,), 4, hidden=(8,)), (6,)),
    "cnn": (lambda: models.build("cnn", (1, 18, 18), 3, width=2), (1, 18, 18)),
    "one output": (lambda: nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 1)), (4,)),
}


def network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    make, shape = NETWORKS[name]
    return make().double(), torch.randn(6, *shape, dtype=torch.float64)


def parameters(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_autograd_gradients_coordinate_by_coordinate(name: str) -> None:
    module, x = network(name)
    own = parameters(module)
    n, outputs = sum(p.numel() for p in own), module(x).shape[-1]
    chosen = coordinates_of(n, outputs, min(n, 50), seed=1)  # of the parameters in the module's order
    phi = tangent(module, x, chosen)
    assert phi.shape == (6, len(chosen.at)) and phi.dtype == torch.float64
    for i in range(len(x)):
        value = (module(x[i : i + 1])[0] * chosen.mix).sum()
        flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, own)])
        for j, at in enumerate(chosen.at.tolist()):
            assert phi[i, j].item() == pytest.approx(flat[at].item(), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("name", ["odd", "one output"])
def test_features_are_the_tangent_of_the_network(name: str) -> None:
    """f(w + d) - f(w) - <phi, d> falls with the square of ||d||, for d at the chosen coordinates."""
    module, x = network(name)
    flat = fs.flat.FlatModel(module)
    chosen = coordinates_of(flat.n, module(x).shape[-1], 9)
    phi = tangent(module, x, chosen)
    direction = torch.randn(9, dtype=torch.float64)

    def error(size: float) -> float:
        d = torch.zeros_like(flat.initial)
        d[chosen.at] = size * direction
        moved = flat.module_at(flat.initial + d)(x) @ chosen.mix.double()
        still = module(x) @ chosen.mix.double()
        return (moved - still - size * (phi @ direction)).abs().max().item()

    errors = [error(10.0**-e) for e in (1, 2, 3)]
    assert errors[0] > 1e-4  # the network is not linear
    assert errors[0] / errors[1] > 50 and errors[1] / errors[2] > 50


def test_of_a_linear_model_the_features_are_the_samples() -> None:
    """f = <w, x> + b: its gradient is (x, 1), whatever w is."""
    x = torch.randn(5, 4)
    torch.testing.assert_close(
        tangent(nn.Linear(4, 1), x, coordinates_of(5, 1)), torch.cat([x, torch.ones(5, 1)], -1)
    )


def test_coordinates_are_a_function_of_the_seed() -> None:
    a, b, other = (coordinates_of(1000, 3, 40, seed) for seed in (5, 5, 6))
    assert torch.equal(a.at, b.at) and torch.equal(a.mix, b.mix)
    assert not torch.equal(a.at, other.at) and not torch.equal(a.mix, other.mix)
    assert len(a.at.unique()) == 40 and a.at.min() >= 0 and a.at.max() < 1000
    assert torch.equal(a.at, a.at.sort().values)
    assert coordinates_of(7, 1).at.tolist() == list(range(7)) and coordinates_of(7, 1).mix.tolist() == [1.0]


# ---- federations -------------------------------------------------------------------------------------------------


def digits(clients: int = 5) -> fs.Federation:
    sites = fs.data.load("digits", scale="standard").federation(
        "dirichlet", clients=clients, alpha=0.3, min_size=40
    )
    return sites.holdout(0.2, into="valid").holdout(0.25)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return models.build("mlp", (64,), 10, hidden=(16,))


def trained(federation: fs.Federation, rounds: int = 10) -> fs.Run:
    return fs.train(fs.ERM(mlp(), "cross_entropy"), fs.FedAvg(lr=0.1), federation, rounds=rounds).finish()


def second(federation: fs.Federation, algorithm: Any, rounds: int = 30, **options: Any) -> fs.Run:
    model = models.build("linear", tuple(federation.data["x"].shape[1:]), 10, zero=True)
    return fs.train(fs.ERM(model, "one_hot"), algorithm, federation, rounds=rounds, **options).finish()


def test_every_client_and_part_gets_the_same_features() -> None:
    """A site alone, with the weights and the coordinates, computes what the simulation has for it."""
    sites, module = digits(), mlp()
    made = fs.convexify(module, sites, coordinates=60, half=False)
    chosen = coordinates_of(sum(p.numel() for p in module.parameters()), 10, 60)
    measured = sites.data["x"][torch.linspace(0, sites.n_samples - 1, sites.n_samples).round().long()]
    shift, width = _scales(tangent(module, measured, chosen).double())
    for whole, features in ((sites, made), (sites.valid, made.valid), (sites.test, made.test)):
        assert whole is not None and features is not None and features.names == whole.names
        assert torch.equal(features.data["y"], whole.data["y"])
        for i in range(whole.n_clients):
            own = (tangent(module, whole.client(i)["x"], chosen) - shift) / width
            torch.testing.assert_close(features.client(i)["x"], own.float(), rtol=1e-4, atol=1e-6)


def test_features_have_mean_zero_and_squared_norm_one() -> None:
    x = fs.convexify(mlp(), digits(), coordinates=200, half=False).data["x"].double()
    torch.testing.assert_close(x.mean(0), torch.zeros(200, dtype=torch.float64), rtol=0, atol=1e-6)
    assert x.square().sum(-1).mean().item() == pytest.approx(1, rel=1e-6)


def test_a_feature_that_hardly_changes_makes_no_outlier() -> None:
    phi = torch.randn(1000, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    phi[:, 0] = 0  # behind a unit that is active in one sample, and elsewhere more so
    phi[7, 0] = 0.01
    shift, width = _scales(phi)
    assert ((phi - shift) / width).square().sum(-1).mean().item() == pytest.approx(1)
    assert ((phi - shift) / width).abs().max() < 5 * ((phi - shift) / width).std()
    assert abs((1.0 - shift[0]) / width[0]) < 2.5  # ten widths, over the root of the number of features


def test_half_precision_and_disk_change_rounding_only(tmp_path: Path) -> None:
    sites, module = digits(), mlp()
    full, half, disk = (
        fs.convexify(module, sites, coordinates=80, **how)
        for how in ({"half": False}, {"half": True}, {"half": True, "folder": tmp_path / "new"})
    )
    assert full.data["x"].dtype == torch.float32 and half.data["x"].dtype == torch.float16
    torch.testing.assert_close(half.data["x"].float(), full.data["x"], rtol=1e-3, atol=1e-6)
    assert torch.equal(disk.data["x"], half.data["x"]) and torch.equal(
        disk.test.data["x"], half.test.data["x"]
    )  # type: ignore[union-attr]
    assert list((tmp_path / "new").iterdir()) == []  # the file is gone with the mapping
    wide = dataclasses.replace(
        half,
        data={**half.data, "x": half.data["x"].float()},
        **{k: dataclasses.replace(p, data={**p.data, "x": p.data["x"].float()})
           for k, p in (("valid", half.valid), ("test", half.test)) if p is not None},
    )  # fmt: skip
    algorithm = fs.ScaffPD(tau=2.0, sigma=0.1)
    runs = [second(f, algorithm, rounds=5) for f in (half, disk, wide)]
    assert runs[0].z.dtype == torch.float32
    assert torch.equal(runs[0].z, runs[1].z) and torch.equal(runs[0].z, runs[2].z)
    assert runs[0].metrics["accuracy_worst20"] == runs[2].metrics["accuracy_worst20"]
    # samples stay in half precision where they lie
    assert half.on_device(torch.device("cpu"), torch.float32)["x"].dtype == torch.float16


def test_probe_reads_half_precision() -> None:
    made = fs.convexify(mlp(), digits(), coordinates=20)
    problem = fs.ERM(models.build("linear", (20,), 10, zero=True), "one_hot")
    x = torch.cat([made.data["x"].double(), torch.ones(made.n_samples, 1, dtype=torch.float64)], -1)
    largest = max(
        torch.linalg.matrix_norm(own.T @ own / len(own), 2).item() for own in x.split(made.sizes.tolist())
    )
    found = probe(problem, made, dense=300)
    assert abs(found.L_1 - largest) < 1e-3 * largest


# ---- new samples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [True, False])
def test_a_saved_tangent_gives_new_samples_the_features_of_training(tmp_path: Path, half: bool) -> None:
    """Also of a network with tied and frozen weights; the network that it is loaded into had others."""
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    sites = fs.Federation.from_arrays(x.numpy(), [0, 1] * 30, clients=[0, 1, 2] * 20)
    sites = sites.holdout(0.3)
    torch.manual_seed(1)
    made = fs.convexify(Odd(), sites, coordinates=20, half=half)
    assert made.tangent is not None and made.test is not None and sites.test is not None
    made.tangent.save(tmp_path / "tangent.safetensors")
    torch.manual_seed(2)
    loaded = fs.Tangent.load(tmp_path / "tangent.safetensors", Odd())
    for before, after in ((sites, made), (sites.test, made.test)):
        found = loaded.features(before.data["x"])
        torch.testing.assert_close(found, after.data["x"].float(), rtol=1e-3 if half else 1e-5, atol=1e-6)
        assert found.dtype == torch.float32 and torch.equal(found.half().float(), found) == half
    one = torch.cat([loaded(row.unsqueeze(0)) for row in sites.test.data["x"]])  # sample by sample
    torch.testing.assert_close(one, loaded(sites.test.data["x"]), rtol=1e-3 if half else 1e-5, atol=1e-6)


def test_a_saved_tangent_is_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    file, sites = tmp_path / "tangent.safetensors", digits()
    made = fs.convexify(mlp(), sites, coordinates=10)
    assert made.tangent is not None
    made.tangent.save(file)
    (tmp_path / "text").write_text("text")
    for call, says in (
        (
            lambda: fs.Tangent.load(file, nn.Linear(64, 10)),
            r"1210 trainable parameters, got one with 650; build",
        ),
        (
            lambda: fs.Tangent.load(file, nn.Sequential(nn.Linear(1, 605))),
            r"does not fit this network \(.*network\.",
        ),
        (lambda: fs.Tangent.load(tmp_path / "text", mlp()), r"text: is no saved tangent"),
        (lambda: fs.Tangent.load(tmp_path / "none", mlp()), r"none: is no saved tangent"),
        (lambda: fs.convexify(mlp(), made), r"tangent features already; convexify the samples"),
        (lambda: made.scaled(), r"scaled: tangent features are scaled already"),
    ):
        with pytest.raises(FedsaddleError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)


# ---- the second stage --------------------------------------------------------------------------------------------


def test_the_second_stage_is_convex_and_reaches_its_optimum() -> None:
    """SCAFFOLD with full local gradients ends where the normal equations say."""
    sites = digits()
    made = fs.convexify(trained(sites), sites, coordinates=12, half=False)
    run = second(
        made,
        fs.SCAFFOLD(lr=1.0, local_steps=5),
        rounds=2000,
        batch_size=None,
        dtype="float64",
        eval_every=2000,
    )
    x = torch.cat([made.data["x"].double(), torch.ones(made.n_samples, 1, dtype=torch.float64)], -1)
    w = (1 / made.sizes.double() / made.n_clients)[made.owners].unsqueeze(-1)  # clients weigh equally
    target = nn.functional.one_hot(made.data["y"], 10).double() - 0.1
    theta = torch.linalg.pinv(x.T @ (w * x)) @ x.T @ (w * target)  # [13, 10]; a pixel may be constant
    optimum = (0.5 * w * (x @ theta - target) ** 2).sum().item()
    assert run.metrics["loss"] == pytest.approx(optimum, rel=1e-5)
    start = (0.5 * w * target**2).sum().item()
    assert start == pytest.approx(0.45) and run.records[0]["loss"] == pytest.approx(start)  # at theta = 0


def test_the_second_stage_mends_what_heterogeneity_did_to_the_first() -> None:
    """FedAvg with many local steps on clients with few digits each stops short; a convex stage on its features does not."""
    sites = fs.data.load("digits", scale="standard").federation(
        "dirichlet", clients=10, alpha=0.05, min_size=40
    )
    sites = sites.holdout(0.25)
    first = fs.train(
        fs.ERM(mlp(), "cross_entropy"), fs.FedAvg(lr=0.1, local_steps=50), sites, rounds=6
    ).finish()
    made = fs.convexify(first, sites, coordinates=800)
    last = second(made, fs.SCAFFOLD(lr=1.0, local_steps=20), rounds=40)
    assert last.metrics["accuracy"] > first.metrics["accuracy"] + 0.1
    robust = second(made, fs.ScaffPD(tau=4.0, sigma=0.05, local_steps=20, ambiguity="chi2(0.1)"), rounds=40)
    assert robust.metrics["accuracy_worst20"] > first.metrics["accuracy_worst20"] + 0.1


def test_one_hot_loss() -> None:
    """||h - (e_y - 1/C)||^2 / 2 by hand; the class is that of the largest output."""
    sites = fs.Federation.from_arrays(
        [[0.0], [1.0], [2.0]], ["a", "b", "c"], clients=[0, 0, 1], classes=["a", "b", "c"]
    )
    problem = fs.ERM(nn.Linear(1, 3), "one_hot")
    z = torch.tensor([[0.5, -1.0, 2.0, 0.1, 0.2, 0.3]])  # weights, biases
    out = problem.losses(z, {"x": torch.tensor([[[2.0]]]), "y": torch.tensor([[2]])})
    h = [0.5 * 2 + 0.1, -1.0 * 2 + 0.2, 2.0 * 2 + 0.3]
    by_hand = sum((v - t) ** 2 for v, t in zip(h, [-1 / 3, -1 / 3, 2 / 3], strict=True)) / 2
    assert out.item() == pytest.approx(by_hand, rel=1e-6)
    with pytest.raises(
        FedsaddleError, match=r"loss 'one_hot' needs a model with one output a class \(3\), got 1"
    ):
        fs.ERM(nn.Linear(1, 1), "one_hot").check(sites)


# ---- configs -----------------------------------------------------------------------------------------------------

TWO_STAGES = """
[data]
name = "digits"
test = 0.25
valid = 0.2
[partition]
name = "dirichlet"
clients = 4
alpha = 0.5
min_size = 40
[[transform]]
name = "thin_clients"
[[transform]]
name = "convexify"
coordinates = 50
[transform.first.model]
name = "mlp"
hidden = [8]
[transform.first.problem]
name = "erm"
loss = "cross_entropy"
[transform.first.algorithm]
name = "fedavg"
lr = 0.05
[transform.first.train]
rounds = 3
[model]
name = "linear"
zero = true
[problem]
name = "erm"
loss = "one_hot"
[algorithm]
name = "scaff_pd"
[train]
rounds = 4
"""


def test_a_config_is_the_calls_it_stands_for() -> None:
    made = config.resolve(tomllib.loads(TWO_STAGES))
    assert config.resolve(tomllib.loads(config.dump(made))) == made
    assert made.tree["transform"][1]["first"]["algorithm"]["local_steps"] == 10  # defaults are filled in
    before = tomllib.loads(TWO_STAGES)
    before |= before["transform"].pop().pop("first")
    sites = config.resolve(before).build()
    run = fs.train(*sites[:3], **sites.train)
    by_hand = fs.convexify(run, sites.federation, coordinates=50)
    setup = made.build()
    assert torch.equal(setup.federation.data["x"], by_hand.data["x"])
    assert not setup.problem.init().any()
    assert made.run().metrics["accuracy_worst20"] == second(
        by_hand, fs.ScaffPD(), rounds=4
    ).metrics["accuracy_worst20"]  # fmt: skip


def test_a_run_of_a_config_scores_new_samples_from_its_folder(tmp_path: Path) -> None:
    """Networks made anew and what the folder holds, nothing else: test samples as they came get the run's accuracy."""
    made = config.resolve(tomllib.loads(TWO_STAGES))
    run = made.run(tmp_path / "run")
    raw = tomllib.loads(TWO_STAGES)
    raw |= raw["transform"].pop().pop("first")
    test = config.resolve(raw).build().federation.test
    assert test is not None
    network, head = models.build("mlp", (64,), 10, hidden=(8,)), models.build("linear", (50,), 10)
    head.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    scorer = nn.Sequential(fs.Tangent.load(tmp_path / "run" / "tangent.safetensors", network), head)
    with torch.no_grad():
        right = scorer(test.data["x"]).argmax(-1) == test.data["y"]
    assert right.double().mean().item() == pytest.approx(run.metrics["accuracy"], abs=1e-12)
    for i, accuracy in enumerate(run.summary()["per_client"]["accuracy"]):
        own = right[test.offsets[i] : test.offsets[i + 1]]
        assert own.double().mean().item() == pytest.approx(accuracy)


def test_the_first_stage_is_trained_once_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[nn.Module] = []
    real = config.convexify

    def seen(**arguments: Any) -> fs.Federation:
        given.append(arguments["first"])
        return real(**arguments)

    monkeypatch.setattr(config, "convexify", seen)
    federations, tree = Federations(), tomllib.loads(TWO_STAGES)
    for seed, tau in ((0, 0.1), (0, 0.2), (1, 0.1)):
        tree["train"]["seed"], tree["algorithm"]["tau"] = seed, tau
        federations.start(config.resolve(tree))
    assert len(given) == 1  # nor are the features computed again
    tree["transform"][1]["coordinates"] = 60
    federations.start(config.resolve(tree))
    assert len(given) == 2 and given[0] is given[1]  # other features of the same network
    for place, key, value in ((0, "lose", 0.5), (1, "first", {"train": {"rounds": 3, "seed": 1}})):
        change = tree["transform"][place]
        change[key] = {**change[key], **value} if isinstance(value, dict) else value
        federations.start(config.resolve(tree))
        assert given[-1] is not given[-2]  # other data, another seed


@pytest.mark.parametrize("jobs", [1, 2])
def test_first_stages_are_kept_beside_the_journal(jobs: int, tmp_path: Path) -> None:
    tree = tomllib.loads(TWO_STAGES)
    wanted = [config.resolve(tree | {"train": {"rounds": 4, "seed": seed}}) for seed in (0, 1)]
    (made,) = finish(wanted[:1], Journal(tmp_path / "runs.jsonl"))
    (file,) = (tmp_path / "networks").iterdir()
    whole = file.read_bytes()
    told: list[str] = []
    (alike,) = finish(
        wanted[:1], Journal(tmp_path / "other" / "runs.jsonl"), tick=lambda n, text: told.append(text)
    )
    assert (tmp_path / "other" / "networks" / file.name).read_bytes() == whole
    assert "first stage, round 3 of 3" in told
    assert alike["metrics"] == made["metrics"] | {"seconds": alike["metrics"]["seconds"]}

    # read by a later call, and by its processes: another network under the same name gives other features
    save_file({k: v + 0.5 for k, v in load_file(file).items()}, file)
    changed = file.read_bytes()
    later = finish(wanted[:1], Journal(tmp_path / "later.jsonl"), jobs=jobs)
    assert file.read_bytes() == changed
    assert later[0]["metrics"]["loss"] != pytest.approx(made["metrics"]["loss"], abs=1e-6)

    file.write_bytes(whole[:100])  # damaged: trained anew
    mended = finish(wanted, Journal(tmp_path / "mended.jsonl"), jobs=jobs)
    assert load_file(file).keys() and file.read_bytes() == whole
    assert mended[0]["metrics"]["loss"] == pytest.approx(made["metrics"]["loss"], abs=1e-6)


def test_kept_networks_are_as_they_were_trained(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = self.one

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x))

    def not_again() -> nn.Module:
        raise AssertionError

    x = torch.randn(5, 3, dtype=torch.float64)
    made = Networks(tmp_path).get("key", Tied, lambda: Tied().double())
    read = Networks(tmp_path).get("key", Tied, not_again)
    assert torch.equal(read(x), made(x))  # a network read in single precision would raise here
    with pytest.raises(AssertionError):
        Networks(tmp_path).get("another key", Tied, not_again)


def test_a_network_of_other_data_is_another(tmp_path: Path) -> None:
    """The config alone does not say what is in a file."""
    rows = ["a,b,label,site", *(f"{i % 7},{i % 5},{i % 2},{i % 4}" for i in range(80))]
    file = tmp_path / "rows.csv"
    tree = tomllib.loads(TWO_STAGES)
    del tree["partition"]
    tree["transform"][1]["coordinates"] = 5
    tree["data"] = {"file": str(file), "label": "label", "group": "site", "task": "classification"}
    for first in ("0", "1000"):
        file.write_text("\n".join([rows[0], f"{first},1,1,1", *rows[1:]]) + "\n")
        finish([config.resolve(tree)], Journal(tmp_path / f"{first}.jsonl"))
    assert len(list((tmp_path / "networks").iterdir())) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"first.model": {"name": "mpl"}},
            r"transform\[1\]\.first: model\.name: \"mpl\" is unknown; did you mean 'mlp'",
        ),
        (
            {"first.data": {"name": "digits"}},
            r"transform\[1\]\.first\.data: unknown section; a first stage has model",
        ),
        ({"first.train": {}}, r"transform\[1\]\.first: train\.rounds: is missing"),
        ({"first": 3}, r"transform\[1\]\.first: must be a table, got 3"),
        ({"coordinates": "many"}, r"transform\[1\]\.coordinates: must be a whole number"),
        ({"coordinate": 3}, r"transform\[1\]\.coordinate: unknown key, did you mean 'coordinates'"),
    ],
)
def test_a_bad_config_is_refused_before_any_work(change: dict[str, Any], says: str) -> None:
    tree = tomllib.loads(TWO_STAGES)
    for key, value in change.items():
        put(tree, ["transform", "1", *key.split(".")], value, key)
    with pytest.raises(FedsaddleError, match=says) as caught:
        config.resolve(tree)
    assert "\n" not in str(caught.value)


def test_too_many_coordinates_are_refused_before_the_network_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = tomllib.loads(TWO_STAGES)
    tree["transform"][1]["coordinates"] = 10_000
    made = config.resolve(tree)
    monkeypatch.setattr(config.Config, "start", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(FedsaddleError, match=r"coordinates must be in 1\.\.610, .*, got 10000"):
        made.build()


def test_a_first_stage_is_rehearsed_where_the_config_is(tmp_path: Path) -> None:
    """And not in a journal, whose older runs are those of another machine, perhaps."""
    tree = tomllib.loads(TWO_STAGES)
    tree["train"]["device"] = tree["transform"][1]["first"]["train"]["device"] = "nowhere"
    with pytest.raises(FedsaddleError, match=r"train\.device: 'nowhere' cannot be used"):
        config.resolve(tree)
    made = config.resolve(tree, rehearse=False)
    older = "\n".join(line for line in config.dump(made).split("\n") if not line.startswith("guard = "))
    (tmp_path / "runs.jsonl").write_text(json.dumps({"config": older, "metrics": {}}) + "\n")
    assert older != config.dump(made) and made in Journal(tmp_path / "runs.jsonl")


def test_a_missing_first_stage() -> None:
    tree = tomllib.loads(TWO_STAGES)
    del tree["transform"][1]["first"]
    with pytest.raises(
        FedsaddleError, match=r"transform\[1\]\.first: is missing; convexify needs it: a table"
    ):
        config.resolve(tree)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fs.convexify(mlp(), digits(), coordinates=0), r"coordinates must be in 1\.\.1210, .*, got 0"),
        (lambda: fs.convexify(mlp(), digits(), coordinates=9999), r"coordinates must be in 1\.\.1210, .*, got 9999"),
        (lambda: fs.convexify(nn.Linear(3, 2), digits()), r"does not take samples of shape \(64,\)"),
        (lambda: fs.convexify("model", digits()), r"first must be a run or a torch\.nn\.Module, got str"),  # type: ignore[arg-type]
        (lambda: fs.convexify(nn.Sequential(nn.Linear(64, 2), nn.BatchNorm1d(2)), digits()), r"group_norm"),
        (lambda: fs.convexify(mlp(), fs.quadratic_federation(clients=2)), r"needs the data field x"),
        (lambda: fs.convexify(mlp(), digits(), coordinates=9, folder="/dev/null/x"), r"folder /dev/null/x cannot hold"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_line(call: Any, says: str) -> None:
    with pytest.raises(FedsaddleError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_features_that_never_change() -> None:
    model = nn.Sequential(nn.Linear(64, 1), nn.ReLU())
    nn.init.constant_(model[0].bias, -1e6)  # a unit that is never active
    with pytest.raises(FedsaddleError, match=r"no feature changes from sample to sample"):
        fs.convexify(model, digits(), coordinates=10)


def test_a_combination_is_given_as_it_is() -> None:
    """An output of one's choice: the mix is part of the coordinates."""
    module, x = network("mlp")
    n = sum(p.numel() for p in module.parameters())
    only = Coordinates(torch.arange(n), torch.tensor([0.0, 0.0, 1.0, 0.0]))
    (module(x[:1])[0, 2]).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
    torch.testing.assert_close(tangent(module, x[:1], only)[0], expected)
