"""train and Run: iteration, results, files, refusals."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import fedsaddle as fs
from fedsaddle import metrics, scores
from fedsaddle.errors import FedsaddleError
from fedsaddle.folder import read_result
from fedsaddle.problem import ModelProblem


@pytest.fixture
def federation() -> fs.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((80, 4)), rng.integers(0, 2, 80)
    return fs.Federation.from_arrays(x, y, clients=np.arange(80) % 5).holdout(0.25)


def _run(federation: fs.Federation, **options: object) -> fs.Run:
    torch.manual_seed(0)
    arguments = {"rounds": 6, "batch_size": 4, **options}
    return fs.train(fs.AUC(torch.nn.Linear(4, 1)), fs.CODASCA(lr=0.1, local_steps=3), federation, **arguments)  # type: ignore[arg-type]


def test_iterating_and_asking_give_the_same_run(federation: fs.Federation) -> None:
    records = list(_run(federation))
    run = _run(federation)
    assert [r["round"] for r in records] == list(range(7))
    assert records[-1]["auc"] == run.metrics["auc"]
    first = run.records[0]
    assert first["bytes_up"] == 0 and "auc" in first


def test_a_run_can_be_left_and_finished_later(federation: fs.Federation) -> None:
    run = _run(federation)
    for record in run:
        if record["round"] == 2:
            break
    assert record["round"] == 2
    assert torch.equal(run.z, _run(federation).z)


def test_history_is_a_data_frame_of_the_evaluated_rounds(federation: fs.Federation) -> None:
    history = _run(federation, eval_every=2).history
    assert list(history.index) == [0, 2, 4, 6]
    assert history["auc"].notna().all()


def test_one_client_alone_is_plain_training(federation: fs.Federation) -> None:
    """With all samples in a step, FedAvg on pooled data is gradient descent; results per client come when asked for."""
    pooled, model = federation.pooled(), torch.nn.Linear(federation.data["x"].shape[1], 1)
    run = fs.train(fs.ERM(model), fs.FedAvg(lr=0.1, local_steps=5), pooled, rounds=3, batch_size=None)
    assert len(run.by_client["auc"]) == 1
    x, sign = pooled.data["x"].float(), 2 * pooled.data["y"].float() - 1
    for _ in range(15):
        loss = torch.nn.functional.softplus(-sign * model(x).squeeze(-1)).mean()
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.data -= 0.1 * g
    torch.testing.assert_close(run.model.weight, model.weight, atol=1e-5, rtol=0)


def test_model_comes_back_as_the_users_module(federation: fs.Federation) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    before = [p.clone() for p in model.parameters()]
    run = fs.train(fs.AUC(model), fs.CODAPlus(lr=0.1, local_steps=3), federation, rounds=3)
    assert isinstance(run.model, torch.nn.Sequential)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))  # ours is a copy
    flat = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    assert torch.equal(flat, run.z[:-3])


@pytest.mark.parametrize("what", ["model", "raw_model"])
def test_a_run_without_a_model_says_so_before_it_trains(what: str) -> None:
    run = fs.train(fs.QuadraticSaddle(), fs.LocalSGDA(), fs.quadratic_federation(), rounds=3)
    with pytest.raises(FedsaddleError, match=r"QuadraticSaddle: has no model; its solution is run\.z"):
        getattr(run, what)
    assert "0 of 3 rounds done" in repr(run) and run.state is None


def test_run_directory(federation: fs.Federation, tmp_path) -> None:
    run = _run(federation, out=tmp_path / "a", participation=fs.Uniform(2)).finish()
    lines = [json.loads(line) for line in (tmp_path / "a/history.jsonl").read_text().splitlines()]
    assert lines == [{k: v for k, v in r.items() if k != "seconds"} for r in run.records]
    assert all(len(line["clients"]) == 2 for line in lines[1:])
    result = json.loads((tmp_path / "a/result.json").read_text())
    assert result["config"]["algorithm"]["name"] == "CODASCA"
    assert result["communication"]["setup"]["bytes_up"] == 5 * 2 * 4
    assert len(result["per_client"]["auc"]) == 5
    weights = load_file(tmp_path / "a/model.safetensors")
    assert torch.equal(weights["weight"].reshape(-1), run.z[:4])
    with pytest.raises(FedsaddleError, match="already holds a run"):
        _run(federation, out=tmp_path / "a")
    replayed = _run(federation, participation=fs.Trace(str(tmp_path / "a/history.jsonl")))
    assert torch.equal(replayed.z, run.z)


def test_same_seed_same_bits_other_seed_other_run(federation: fs.Federation) -> None:
    a, b, c = _run(federation), _run(federation), _run(federation, seed=1)
    assert torch.equal(a.z, b.z) and not torch.equal(a.z, c.z)


def test_failures_are_counted_and_left_out(federation: fs.Federation) -> None:
    run = _run(federation, participation=fs.Full(failure=0.5), rounds=20)
    assert 20 < run.metrics["failures"] < 80
    down, up = run.metrics["bytes_down"], run.metrics["bytes_up"]
    assert down > up
    nobody = _run(federation, participation=fs.Independent(p=0.05), rounds=30)
    assert any(
        r["participants"] == 0 for r in nobody.records[1:]
    )  # such a round changes nothing and does not stop the run
    assert torch.isfinite(nobody.z).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "train: rounds must be a whole number >= 1, got 0"),
        ({"rounds": "3"}, "train: rounds must be a whole number >= 1, got '3'"),
        (
            {"participation": 3},
            r"train: participation must be a Participation, such as fs.Uniform\(3\), got int",
        ),
        ({"batch_size": 0}, "train: batch_size must be >= 1"),
        ({"sampling": "some"}, "train: sampling must be one of"),
        ({"engine": "warp"}, "train: engine must be one of stacked, serial, torchrun, got warp"),
        ({"dtype": "float16"}, "train: dtype must be float32 or float64"),
        ({"seed": -1}, "train: seed must be >= 0"),
        ({"participation": fs.Uniform(9)}, "Uniform: m must be"),
        (
            {"participation": fs.Uniform(20, replacement=True)},
            "CODASCA: clients keep memory, so client . cannot take part",
        ),
    ],
)
def test_refusals(federation: fs.Federation, options: dict[str, object], message: str) -> None:
    with pytest.raises(FedsaddleError, match=message):
        _run(federation, **options).finish()


def test_refusals_of_combinations(federation: fs.Federation) -> None:
    model = torch.nn.Linear(4, 1)
    with pytest.raises(FedsaddleError, match="FedAvg: minimises a loss, but AUC has 1 dual"):
        fs.train(fs.AUC(model), fs.FedAvg(), federation, rounds=1)
    with pytest.raises(FedsaddleError, match="CODA: recomputes the dual variable in closed form"):
        fs.train(fs.ERM(model), fs.CODA(), federation, rounds=1)
    with pytest.raises(FedsaddleError, match="group_norm"):
        fs.AUC(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)))
    with pytest.raises(FedsaddleError, match="needs the data fields A, B"):
        fs.train(fs.QuadraticSaddle(), fs.CODASCA(), federation, rounds=1)
    ones = fs.Federation.from_arrays(
        np.zeros((6, 4)), np.ones(6, dtype=int), clients=np.arange(6) % 2, classes=("a", "b")
    )
    with pytest.raises(FedsaddleError, match="AUC: no client has negative examples"):
        fs.train(fs.AUC(model), fs.CODASCA(), ones, rounds=1).finish()


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.FedAvg(lr=0.1, local_steps=3), fs.LocalSGDA(lr=0.1, local_steps=3), fs.FedSGDA(lr=0.1, local_steps=3),
        fs.FFMDR(lr=0.1, epochs=2), fs.MomentumLocalSGDA(lr=0.1, local_steps=3), fs.FedNormSGDA(lr=0.1, local_steps=3),
    ],
    ids=lambda a: type(a).__name__,
)  # fmt: skip
def test_step_sizes_of_y_where_there_is_no_y_are_told_of(
    algorithm: fs.Algorithm, federation: fs.Federation
) -> None:
    def started(algorithm: fs.Algorithm, kind: type[fs.Problem]) -> tuple[fs.Run, list[str]]:
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = fs.train(kind(torch.nn.Linear(4, 1)), algorithm, federation, rounds=2)  # type: ignore[call-arg]
        return run, [str(w.message) for w in caught if "no dual variables" in str(w.message)]

    given = {"lr_dual": 5.0} | (
        {"momentum_dual": 0.25} if isinstance(algorithm, fs.MomentumLocalSGDA) else {}
    )
    told, both = dataclasses.replace(algorithm, **given), len(given) == 2
    name, words = type(algorithm).__name__, ", ".join(f"{k} = {v}" for k, v in given.items())
    plain, silent = started(algorithm, fs.ERM)
    run, said = started(told, fs.ERM)
    has, it = ("have", "them") if both else ("has", "it")
    assert silent == [] and (name == "FedAvg" or started(told, fs.AUC)[1] == [])
    assert said == [f"{name}: ERM has no dual variables y, so {words} {has} no effect; leave {it} out"]
    assert torch.equal(run.z, plain.z)  # so they have none


def test_divergence_stops_the_run_and_keeps_its_history(federation: fs.Federation, tmp_path) -> None:
    run = fs.train(
        fs.AUC(torch.nn.Linear(4, 1)),
        fs.CODAPlus(lr=1e20, local_steps=3),
        federation,
        rounds=50,
        out=tmp_path / "d",
    )
    with pytest.raises(FedsaddleError, match=r"CODAPlus: diverged in round \d+, .*lr is 1e\+20"):
        run.finish()
    assert (tmp_path / "d/history.jsonl").read_text()


class Ranking(ModelProblem):
    """A problem of a user's own that has an AUC, and does not say which class is positive."""

    @property
    def n_x(self) -> int:
        return self.flat.n

    @property
    def n_y(self) -> int:
        return 0

    def init(self) -> torch.Tensor:
        return self.flat.initial

    def scores(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.outputs(z, x).squeeze(-1)

    def losses(self, z: torch.Tensor, data: Any) -> torch.Tensor:
        return torch.nn.functional.softplus(self.scores(z, data["x"]) * (1 - 2 * data["y"]))

    def evaluate(self, z: Any, splits: Any, federation: Any) -> Any:
        return [metrics.Evaluation(*found) for found in metrics.ranking(self, z, splits, 1)]


def test_a_line_a_client(federation: fs.Federation, tmp_path: Path) -> None:
    run = _run(federation, out=tmp_path / "a").finish()
    table = pd.read_csv(tmp_path / "a" / "clients.csv", dtype={"client": str})
    assert list(table["client"]) == list(federation.names)
    assert list(table["rows"]) == federation.sizes.tolist()
    assert list(table["positives"]) == [int((federation.client(i)["y"] == 1).sum()) for i in range(5)]
    assert federation.test is not None
    assert list(table["test_rows"]) == federation.test.sizes.tolist() and "valid_rows" not in table
    assert list(table["test_positives"]) == federation.test.class_counts()[:, 1].tolist()
    for name, values in run.by_client.items():
        np.testing.assert_allclose(table[name], values, rtol=1e-5)
    assert "auc" in table
    alone = dataclasses.replace(federation, test=None)
    run = _run(alone, out=tmp_path / "b").finish()
    table = pd.read_csv(tmp_path / "b" / "clients.csv")
    assert list(table.columns) == ["client", "rows", "positives", *(f"train_{k}" for k in run.by_client)]
    one = np.where(np.arange(80) % 5 == 0, 0, np.arange(80) % 3 == 0)  # the first client has no positive
    single = fs.Federation.from_arrays(np.ones((80, 2)), one, clients=np.arange(80) % 5)
    fs.train(fs.AUC(torch.nn.Linear(2, 1)), fs.CODASCA(), single, rounds=1, out=tmp_path / "c").finish()
    first, second, *_ = pd.read_csv(tmp_path / "c" / "clients.csv")["train_auc"]
    assert np.isnan(first) and second == 0.5
    quadratic = fs.quadratic_federation(clients=2)
    fs.train(fs.QuadraticSaddle(), fs.CODASCA(), quadratic, rounds=1, out=tmp_path / "d").finish()
    assert not (tmp_path / "d" / "clients.csv").exists()


@pytest.mark.parametrize("name", ["north", "h\udcf4pital"])  # the second: from a file whose name is no text
def test_scores_never_cost_a_result(name: str, tmp_path: Path) -> None:
    x, y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), np.arange(40) % 2
    parts = [np.arange(20), np.arange(20, 40)]
    fed = fs.Federation.from_arrays(x, y, clients=parts, names=(name, "south")).holdout(0.3)
    for problem in (fs.AUC(torch.nn.Linear(2, 1)), Ranking(torch.nn.Linear(2, 1))):
        out = tmp_path / type(problem).__name__
        run = fs.train(problem, fs.CODASCA(), fed, rounds=1, out=out).finish()
        assert "auc" in json.loads((out / "result.json").read_text())["metrics"]
        assert (run.summary()["auc_interval"] is not None) == (out / "scores.csv").exists()
        assert (out / "scores.csv").exists() == isinstance(problem, fs.AUC)


def test_the_same_samples_are_compared_whoever_owns_them(tmp_path: Path) -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    fed = fs.Federation.from_arrays(x, np.arange(60) // 2 % 2, clients=np.arange(60) % 3).holdout(0.4)
    for name, own in {"sites": fed, "pool": fed.pooled(), "alone": fed.alone(1)}.items():
        fs.train(fs.AUC(torch.nn.Linear(2, 1)), fs.CODASCA(), own, rounds=2, out=tmp_path / name).finish()
    runs = {name: {tmp_path / name: read_result(tmp_path / name)} for name in ("sites", "pool", "alone")}
    found = scores.compared(runs)
    assert {found.best, *found.behind} == set(runs) and not found.apart
    file = tmp_path / "pool" / "scores.csv"  # a model may give NaN for some sample
    head, first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([head, first.rpartition(",")[0] + ",nan", *rest]))
    left = {found.best, *found.behind} - {"pool"}
    found = scores.compared(runs)
    assert {found.best, *found.behind} == left and found.apart == {"pool": "a score is not a number"}
