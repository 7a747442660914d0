"""train and Run: iteration, results, files, refusals."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedsaddle as fs
from fedsaddle.errors import FedsaddleError


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
