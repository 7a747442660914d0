"""Replicas: each trajectory equals that of its own single run."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle import replicas
from fedsaddle.algorithms import (
    CODA,
    CODASCA,
    FFMDR,
    NPA,
    SCAFFOLD,
    AgnosticFedAvg,
    AgnosticFL,
    AmplifiedFedAvg,
    AmplifiedSCAFFOLD,
    CODAPlus,
    CyCpFedAvg,
    CyCpMinimax,
    CyCpPairwise,
    FedAvg,
    FedNest,
    FedNormSGDA,
    FedProx,
    FedSGDA,
    FedSGDAM,
    FedSGDAPlus,
    FeDXL2,
    LocalSGDA,
    MomentumLocalSGDA,
    PublishedCODASCA,
    QFedAvg,
    RSMinimax,
    RSPairwise,
    ScaffPD,
)
from fedsaddle.algorithms.base import Algorithm
from fedsaddle.alike import shape
from fedsaddle.config import resolve
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.folder import Folder
from fedsaddle.replicas import run_all, run_together, stack, stackable

STAGES = dict(stage_rounds=3, lr_decay=0.5, gamma=0.1)
POINTS = [(0.05, 0), (0.02, 0), (0.05, 7)]  # (lr, seed)
GRID = [
    (0.05, 0),
    (0.05, 7),
    (0.02, 0),
    (0.02, 7),
    (0.1, 0),
    (0.1, 7),
]  # replicas of one seed share their minibatches
CASES = {
    "local_sgda": lambda lr: LocalSGDA(lr=lr, lr_dual=2 * lr, local_steps=3),
    "fedavg": lambda lr: FedAvg(lr=lr, local_steps=3, weights="samples"),
    "fedprox": lambda lr: FedProx(lr=lr, local_steps=3, mu=lr),
    "scaffold": lambda lr: SCAFFOLD(lr=lr, local_steps=3, server_lr=1 + lr),
    "npa": lambda lr: NPA(lr=lr, **STAGES),
    "coda": lambda lr: CODA(lr=lr, local_steps=3, dual_samples=6, weights="samples", **STAGES),
    "coda_plus": lambda lr: CODAPlus(lr=lr, local_steps=3, **{**STAGES, "gamma": lr}),
    "codasca": lambda lr: CODASCA(lr=lr, local_steps=3, weights="samples", **STAGES),
    "fedsgda": lambda lr: FedSGDA(lr=lr, lr_dual=2 * lr, local_steps=3, decay=5 * lr, momentum=10 * lr),
    "cycp_minimax": lambda lr: CyCpMinimax(lr=lr, local_steps=3, **STAGES),
    "rs_minimax": lambda lr: RSMinimax(lr=lr, local_steps=3, **STAGES),
    "cycp_fedavg": lambda lr: CyCpFedAvg(lr=lr, local_steps=3),
    "amplified_fedavg": lambda lr: AmplifiedFedAvg(lr=lr, local_steps=3, amplification=1 + lr, period=2),
    "amplified_scaffold": lambda lr: AmplifiedSCAFFOLD(lr=lr, local_steps=3, amplification=1 + lr, period=2),
    "cycp_pairwise": lambda lr: CyCpPairwise(
        lr=lr, local_steps=3, pairing="all_pairs", noise=lr, bits=8, stage_rounds=3, lr_decay=0.5
    ),
    "rs_pairwise": lambda lr: RSPairwise(lr=lr, local_steps=3),
    "fedxl2": lambda lr: FeDXL2(lr=lr, local_steps=3, rate=1 - lr, momentum=10 * lr if lr < 0.1 else 0.9),
    "ffmdr": lambda lr: FFMDR(
        beta=20 * lr,
        lr=lr,
        lr_dual=2 * lr,
        epochs=2,
        accuracy=10 * lr if lr < 0.1 else 0.9,
        monitor=True,
        weights="samples",
    ),
    "momentum_local_sgda": lambda lr: MomentumLocalSGDA(
        lr=lr, lr_dual=2 * lr, local_steps=3, momentum=5 * lr
    ),
    "fed_norm_sgda": lambda lr: FedNormSGDA(lr=lr, lr_dual=2 * lr, local_epochs=1, weights="samples"),
    "fedsgda_plus": lambda lr: FedSGDAPlus(lr=lr, lr_dual=2 * lr, local_steps=3, refresh=2, server_lr=1 - lr),
    "fedsgda_m": lambda lr: FedSGDAM(lr=lr, lr_dual=2 * lr, local_steps=3, alpha=5 * lr),
    "fednest": lambda lr: FedNest(lr=lr, lr_dual=2 * lr, local_steps=3, inner_loops=2),
    "scaff_pd": lambda lr: ScaffPD(tau=lr, sigma=10 * lr, theta=1 - lr, local_steps=3, server_lr=1 + lr),
    "afl": lambda lr: AgnosticFL(lr=lr, local_steps=3, dual_lr=lr),
    "agnostic_fedavg": lambda lr: AgnosticFedAvg(lr=lr, local_steps=3, dual_lr=10 * lr),
    "q_fedavg": lambda lr: QFedAvg(lr=lr, local_steps=3, q=1 + lr),
    "codasca_as_published": lambda lr: PublishedCODASCA(lr=lr, local_steps=3, clip=1 + lr, **STAGES),
}


@pytest.fixture(scope="module")
def federation() -> fs.Federation:
    rng = np.random.default_rng(0)
    sizes = [9, 20, 4, 13, 30, 11]
    x, y = rng.standard_normal((sum(sizes), 4)), rng.integers(0, 2, sum(sizes))
    y[:9] = 1  # a client with one class
    return fs.Federation.from_arrays(x, y, clients=np.repeat(np.arange(6), sizes)).holdout(0.3)


def _run(name: str, lr: float, seed: int, federation: fs.Federation, **options) -> fs.Run:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    plain = name.endswith(("fedavg", "fedprox")) or name in ("scaff_pd", "afl")
    problem = fs.ERM(model) if plain else fs.AUC(model)
    if CASES[name](lr).pairwise:
        problem = fs.PartialAUC(model) if name == "fedxl2" else fs.PairwiseAUC(model)
    arguments = dict(rounds=8, batch_size=5, dtype="float64", seed=seed, eval_every=4) | options
    return fs.train(problem, CASES[name](lr), federation, **arguments)


def test_what_a_problem_made_of_its_numbers_is_made_anew() -> None:
    problems = [fs.PairwiseAUC(nn.Linear(2, 1), scale=scale) for scale in (0.1, 10.0)]
    assert stack(problems, problems[0].real, torch.zeros(1)).psi.scale.flatten().tolist() == [
        pytest.approx(0.1), 10.0
    ]  # fmt: skip


def test_every_algorithm_is_here() -> None:
    assert CASES.keys() == {name for name, kind in fs.algorithms.ALGORITHMS.items() if kind.stacks}
    assert {"drfa", "delta_fl"} == fs.algorithms.ALGORITHMS.keys() - CASES.keys()


@pytest.mark.parametrize("points", [POINTS, GRID], ids=["points", "grid"])
@pytest.mark.parametrize(
    "participation", [fs.Full(), fs.Uniform(3), fs.Cyclic(2, m=2)], ids=["full", "uniform", "cyclic"]
)
@pytest.mark.parametrize("name", CASES)
def test_replicas_equal_single_runs(
    name: str, participation: fs.Participation, points: list[tuple[float, int]], federation: fs.Federation
) -> None:
    runs = [_run(name, *point, federation, participation=participation) for point in points]
    run_together(runs)
    for run, point in zip(runs, points, strict=True):
        single = _run(name, *point, federation, participation=participation)
        np.testing.assert_allclose(run.z, single.z, rtol=0, atol=1e-12)
        for a, b in zip(run.records, single.records, strict=True):
            assert a.get("clients") == b.get("clients")
            for k in ("weights", "dual"):  # of which four digits are kept
                assert a.get(k, []) == pytest.approx(b.get(k, []), rel=1e-3, abs=1e-10)
            apart = ("seconds", "clients", "weights", "dual")
            a, b = ({k: v for k, v in r.items() if k not in apart} for r in (a, b))
            assert a == pytest.approx(b, abs=1e-10)
        assert run.summary()["communication"] == single.summary()["communication"]
    assert not torch.equal(runs[0].z, runs[1].z) and not torch.equal(runs[0].z, runs[2].z)


@pytest.mark.parametrize("name", CASES)
def test_hyper_parameters_that_do_not_differ_may_be_tensors(
    name: str, federation: fs.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, so that what was compiled for other values serves these."""
    always = property(lambda clients: True, lambda clients, value: None)
    monkeypatch.setattr(Simulation, "in_tensors", always, raising=False)
    made = []
    monkeypatch.setattr(replicas, "stack", lambda *given: made.append(stack(*given)) or made[-1])
    runs = [_run(name, 0.05, seed, federation) for seed in (0, 7)]
    run_together(runs)
    algorithm = made[-1]
    for f in fields(algorithm):
        value = getattr(runs[0].algorithm, f.name)
        real = isinstance(value, float) and value not in (0.0, algorithm.branching.get(f.name, 0.0))
        assert isinstance(getattr(algorithm, f.name), torch.Tensor) == (
            real and f.name not in algorithm.shaping
        )
    for run, seed in zip(runs, (0, 7), strict=True):
        np.testing.assert_allclose(run.z, _run(name, 0.05, seed, federation).z, rtol=0, atol=1e-12)


def test_one_rule_says_what_is_a_real_number(
    federation: fs.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs that are to be grouped by their configs, of runs to be stacked, and of numbers to be tensors."""
    config = resolve({
        "name": "one", "data": {"sites": "."}, "model": {"name": "linear"}, "problem": {"name": "auc"},
        "algorithm": {"name": "coda_plus", "lr": 0.1, **STAGES}, "train": {"rounds": 2},
    })  # fmt: skip
    runs = [_run("coda_plus", lr, 0, federation) for lr in (0.1, 0.2)]
    algorithm = runs[0].algorithm
    assert algorithm.is_real("lr", 0.1) and not algorithm.is_real("stage_growth", 2.0)
    assert not algorithm.is_real("local_steps", 3)
    assert stackable(runs) is None and 'lr = "real"' in shape(config)
    monkeypatch.setattr(Algorithm, "is_real", classmethod(lambda cls, name, value: name == "gamma"))
    assert stackable(runs) == "algorithm.lr differs, which decides shapes or branches"
    assert "lr = 0.1" in shape(config) and 'gamma = "real"' in shape(config)
    assert replicas._in_formulas(algorithm) == ["gamma"]


@pytest.mark.parametrize("seeds", [(0, 0, 0, 0), (0, 7, 0, 7)], ids=["one seed", "two seeds"])
def test_replicas_may_differ_in_the_real_numbers_of_a_loss(
    federation: fs.Federation, seeds: tuple[int, ...]
) -> None:
    def start(scale: float, lr: float, seed: int) -> fs.Run:
        torch.manual_seed(seed)
        problem = fs.PairwiseAUC(nn.Linear(4, 1), scale=scale)
        return fs.train(
            problem,
            RSPairwise(lr=lr, local_steps=3),
            federation,
            rounds=6,
            batch_size=5,
            dtype="float64",
            seed=seed,
        )

    def partial(margin: float) -> fs.Run:
        torch.manual_seed(0)
        problem = fs.PartialAUC(nn.Linear(4, 1), margin=margin)
        return fs.train(
            problem, FeDXL2(lr=0.01, local_steps=3), federation, rounds=5, batch_size=5, dtype="float64"
        )

    runs = [partial(1.0), partial(0.5)]
    run_together(runs)
    for run, margin in zip(runs, (1.0, 0.5), strict=True):
        np.testing.assert_allclose(run.z, partial(margin).z, rtol=0, atol=1e-12)

    points = list(zip((1.0, 1.0, 0.1, 0.3), (0.05, 0.2, 0.05, 0.2), seeds, strict=True))
    runs = [start(*point) for point in points]
    run_together(runs)
    for run, point in zip(runs, points, strict=True):
        np.testing.assert_allclose(run.z, start(*point).z, rtol=0, atol=1e-12)
        assert run.summary()["config"]["problem"]["scale"] == point[0]


def test_a_value_that_decides_a_branch_is_not_stacked_with_others(federation: fs.Federation) -> None:
    runs = [
        fs.train(fs.PartialAUC(nn.Linear(4, 1)), FeDXL2(momentum=m), federation, rounds=2) for m in (1.0, 0.5)
    ]
    assert stackable(runs) == "algorithm.momentum is 1 in some, which decides a branch"


def test_replicas_on_the_quadratic_reach_the_saddle() -> None:
    clients = fs.quadratic_federation(clients=5, dim_x=4, dim_y=3)
    runs = [
        fs.train(
            fs.QuadraticSaddle(4, 3), CODASCA(lr=lr, local_steps=10), clients, rounds=400, dtype="float64"
        )
        for lr in (0.05, 0.03)
    ]
    run_together(runs)
    assert all(run.metrics["distance"] < 1e-10 for run in runs)


def test_a_diverging_replica_does_not_stop_the_others(federation: fs.Federation, tmp_path) -> None:
    runs = [_run("coda_plus", lr, 0, federation, out=tmp_path / str(lr)) for lr in (1e30, 0.05)]
    run_together(runs)
    with pytest.raises(Diverged, match=r"lr is 1e\+30"):
        _ = runs[0].metrics
    assert runs[1].metrics["auc"] is not None
    assert (tmp_path / "0.05/result.json").exists() and not (tmp_path / "1e+30/result.json").exists()


def _growing(federation: fs.Federation) -> fs.Run:
    run = _run("codasca", 0.05, 0, federation)
    object.__setattr__(run.algorithm, "interval_growth", 1.5)
    return run


def test_what_cannot_be_stacked_says_why(federation: fs.Federation) -> None:
    a = _run("codasca", 0.05, 0, federation)
    for other, reason in [
        (_run("scaffold", 0.05, 0, federation), "algorithms differ"),
        (_run("codasca", 0.05, 0, federation, batch_size=4), "batch size"),
        (_run("codasca", 0.05, 0, federation, rounds=9), "rounds differs"),
        (_growing(federation), "algorithm.interval_growth differs"),
        (_run("codasca", 0.05, 0, federation, participation=fs.Full(failure=0.1)), "participation differs"),
        (fs.train(fs.AUC(nn.Linear(4, 1)), CASES["codasca"](0.05), federation, rounds=8, batch_size=5, dtype="float64",
                  eval_every=4), "problems differ"),
    ]:  # fmt: skip
        assert reason in (stackable([a, other]) or "")
        with pytest.raises(FedsaddleError, match="cannot be computed together"):
            run_together([a, other])


def test_models_that_differ_in_what_is_frozen_are_not_stacked(federation: fs.Federation) -> None:
    def run(value: float) -> fs.Run:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        nn.init.constant_(model[0].weight.requires_grad_(False), value)
        return fs.train(fs.AUC(model), CODASCA(lr=0.05, local_steps=3), federation, rounds=2)

    assert stackable([run(0.1), run(0.1)]) is None
    assert stackable([run(0.1), run(0.2)]) == "problems differ"


def test_run_all_groups_what_fits(federation: fs.Federation) -> None:
    runs = [_run("codasca", *p, federation) for p in POINTS] + [_run("scaffold", 0.05, 0, federation)]
    runs += [_run("coda_plus", 1e30, 0, federation)]
    run_all(runs)
    for run, (name, lr, seed) in zip(
        runs, [*(("codasca", *p) for p in POINTS), ("scaffold", 0.05, 0)], strict=False
    ):
        np.testing.assert_allclose(run.z, _run(name, lr, seed, federation).z, rtol=0, atol=1e-12)
    with pytest.raises(Diverged):
        runs[-1].finish()


class Scaled(nn.Module):
    """Its scale does not show in its representation."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 1), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def test_models_that_differ_in_a_plain_attribute_are_not_stacked(federation: fs.Federation) -> None:
    def run(scale: float) -> fs.Run:
        return fs.train(fs.AUC(Scaled(scale)), fs.LocalSGDA(), federation, rounds=2)

    assert stackable([run(1.0), run(1.0)]) is None
    assert stackable([run(1.0), run(5.0)]) == "problems differ"


def test_a_zero_that_decides_a_branch_is_not_stacked(federation: fs.Federation) -> None:
    runs = [
        fs.train(fs.AUC(nn.Linear(4, 1)), fs.CODASCA(gamma=g, stage_rounds=2), federation, rounds=2)
        for g in (0.0, 0.1)
    ]
    assert "gamma is 0 in some" in (stackable(runs) or "")


def test_a_proximal_step_on_the_dual_with_different_step_sizes() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
    clients = fs.Federation.from_arrays(x, y, clients=np.arange(40) % 4)
    problem = fs.Custom(
        lambda x, y, b: ((b["x"] + y) @ x - b["y"]) ** 2 - (y**2).sum(), 3, 3, prox_x="l1(0.1)", prox_y="l1(0.1)"
    )  # fmt: skip

    def run(lr: float) -> fs.Run:
        return fs.train(problem, fs.CODASCA(lr=lr, local_steps=3), clients, rounds=4, dtype="float64")

    runs = [run(0.01), run(0.02)]
    run_together(runs)
    for together, lr in zip(runs, (0.01, 0.02), strict=True):
        np.testing.assert_allclose(together.z, run(lr).z, rtol=0, atol=1e-12)


def _minimised(federation: fs.Federation, metrics, *steps: float, out: Path | None = None) -> list[fs.Run]:
    problem = fs.Custom(lambda x, y, b: (b["x"] @ x) ** 2, 4, start=torch.ones(4), metrics=metrics)
    return [
        fs.train(
            problem, fs.LocalSGDA(lr=lr), federation, rounds=40, eval_every=10, out=out and out / str(lr)
        )
        for lr in steps
    ]


def test_a_diverged_replica_is_not_evaluated(federation: fs.Federation) -> None:
    def sound(x, y, data):
        assert torch.isfinite(x).all()
        return {"norm": float(x.norm())}

    well, badly = _minimised(federation, sound, 0.001, 1e6)
    run_together([well, badly])
    assert len(well.records) == 41 and well.metrics["norm"] < 2
    with pytest.raises(Diverged):
        _ = badly.z


def test_a_failure_is_everybodys(federation: fs.Federation) -> None:
    def broken(x, y, data):
        raise ValueError("no metrics today")

    runs = _minimised(federation, broken, 0.001, 0.002)
    with pytest.raises(ValueError, match="no metrics today"):
        run_together(runs)
    for run in runs:
        with pytest.raises(ValueError, match="no metrics today"):
            _ = run.z


def test_weights_are_recorded_as_in_a_run_alone(federation: fs.Federation) -> None:
    def runs() -> list[fs.Run]:
        problem = fs.ERM(torch.nn.Linear(federation.data["x"].shape[1], 1))
        return [
            fs.train(
                problem, ScaffPD(tau=tau, sigma=2.0, local_steps=2), federation, rounds=4, dtype="float64"
            )
            for tau in (0.05, 0.2)
        ]

    torch.manual_seed(0)
    together = runs()
    torch.manual_seed(0)
    alone = runs()
    run_together(together)
    for a, b in zip(together, alone, strict=True):
        for mine, other in zip(a.records[1:], b.records[1:], strict=True):
            assert mine["weights"] == pytest.approx(other["weights"], rel=1e-3)
        assert a.records[-1]["weights"] == pytest.approx(a.state.lam[0].tolist(), rel=1e-3)
        assert "weights" not in a.history.columns and "weights" not in a.metrics
    assert together[0].records[-1]["weights"] != together[1].records[-1]["weights"]


def test_runs_that_are_guarded_or_resumed_are_not_stacked(federation: fs.Federation, tmp_path: Path) -> None:
    guarded = [_run("codasca", lr, 0, federation, guard=1) for lr in (0.05, 0.02)]
    assert stackable(guarded) == "a guard may step back, and halve the step sizes of one alone"
    begun = [_run("codasca", lr, 0, federation, out=tmp_path / str(lr)) for lr in (0.05, 0.02)]
    for run in begun:
        rounds = iter(run)
        for _ in range(6):
            next(rounds)
        rounds.close()  # type: ignore[attr-defined]
    resumed = [_run("codasca", lr, 0, federation, out=tmp_path / str(lr), resume=True) for lr in (0.05, 0.02)]
    assert stackable(resumed) == "a resumed run goes on from its own checkpoint"
    run_all(resumed)
    for lr in (0.05, 0.02):
        lines = (tmp_path / str(lr) / "history.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(9))


def test_a_guarded_run_among_others_ends_as_alone() -> None:
    federation = fs.quadratic_federation(clients=4)

    def runs() -> list[fs.Run]:
        algorithms = [fs.LocalSGDA(lr=lr, local_steps=5) for lr in (8.0, 4.0)]
        return [fs.train(fs.QuadraticSaddle(), a, federation, rounds=40, guard=10) for a in algorithms]

    with pytest.warns(UserWarning, match="guard: back"):
        alone, together = [run.finish() for run in runs()], runs()
    with pytest.warns(UserWarning, match="guard: back"):
        run_all(together)
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.z, b.z)


def test_replicas_know_how_many_rounds_there_will_be(federation: fs.Federation) -> None:
    runs = [_run("cycp_pairwise", lr, 0, federation, rounds=1) for lr in (0.05, 0.02)]
    with pytest.warns(UserWarning, match="only collect scores"):
        run_together(runs)


def test_a_failure_leaves_every_folder(federation: fs.Federation, tmp_path: Path) -> None:
    def broken(x, y, data):
        raise ValueError("no metrics today")

    runs = _minimised(federation, broken, 0.001, 0.002, out=tmp_path)
    with pytest.raises(ValueError, match="no metrics today"):
        run_together(runs)
    for run in runs:
        assert run.out is not None
        with Folder(run.out):  # nobody holds its lock
            pass
