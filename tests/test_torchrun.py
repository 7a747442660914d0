"""The torchrun engine in real processes: the same runs as on one, and errors that end all of them.

This file is also the program that the processes run: all cases in one start.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle import aggregation
from fedsaddle.clients import Task
from fedsaddle.cohort import Batching
from fedsaddle.engines.ranks import first_to_fail
from fedsaddle.engines.torchrun import Torchrun
from fedsaddle.errors import FedsaddleError
from fedsaddle.participation import Draw
from fedsaddle.problem import Problem
from fedsaddle.toml import to_toml

pytestmark = pytest.mark.xdist_group("torchrun")  # one process runs them: they share what two have computed

SIZES = [9, 20, 4, 13, 30, 7, 16]
ALGORITHMS = {
    "codasca": fs.CODASCA(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=3),
    "coda_plus": fs.CODAPlus(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=2, output="iterates"),
    "coda": fs.CODA(lr=0.05, local_steps=4, stage_rounds=2, dual_samples=6, weights="samples"),
    "scaffold": fs.SCAFFOLD(lr=0.05, local_steps=4, weights="samples"),
    "fedavg": fs.FedAvg(lr=0.05, local_steps=4, weights="samples"),
    "cycp_pairwise": fs.CyCpPairwise(lr=0.05, local_steps=4, noise=0.1, bits=8),
    "fedxl2": fs.FeDXL2(lr=0.05, local_steps=4, momentum=0.5),
}
CASES: dict[str, tuple[str, fs.Participation, dict[str, Any]]] = {
    **{f"{name}, full": (name, fs.Full(), {}) for name in ALGORITHMS},
    **{f"{name}, 3 of 7": (name, fs.Uniform(3), {}) for name in ALGORITHMS},
    "codasca, one client": ("codasca", fs.Uniform(1), {}),  # so one process has none
    "codasca, some rounds with nobody": ("codasca", fs.Independent(p=0.15), {}),
    "scaffold, failures": ("scaffold", fs.Uniform(3, failure=0.5), {}),
    "fedavg, drawn twice": ("fedavg", fs.Uniform(5, replacement=True), {}),
    "coda_plus, in chunks": ("coda_plus", fs.Full(), {"chunk": 2}),
    "cycp_pairwise, cyclic": ("cycp_pairwise", fs.Cyclic(3, m=1), {}),  # a message to each client
    "cycp_pairwise, large batches": (
        "cycp_pairwise",
        fs.Full(),
        {"batch_size": 32},
    ),  # than any client of a process
    "fedxl2, failures": ("fedxl2", fs.Uniform(3, failure=0.5), {"chunk": 2}),
    "coda, all samples": ("coda", fs.Full(), {"batch_size": None}),
}


RESUMED = ("codasca, 3 of 7", "scaffold, failures", "cycp_pairwise, cyclic")


def federation() -> fs.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((sum(SIZES), 5)), rng.integers(0, 2, sum(SIZES))
    clients = fs.Federation.from_arrays(x, y, clients=np.repeat(np.arange(7), SIZES))
    return clients.holdout(0.2)


def start(case: str, engine: str, **options: Any) -> fs.Run:
    name, participation, more = CASES[case]
    torch.manual_seed(0)
    model = options.pop("model", None) or nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))
    problem: Problem = fs.ERM(model) if name == "fedavg" else fs.AUC(model)
    if ALGORITHMS[name].pairwise:
        problem = fs.PartialAUC(model) if name == "fedxl2" else fs.PairwiseAUC(model)
    settings = dict(rounds=7, batch_size=5, dtype="float64", eval_every=3) | more | options
    return fs.train(
        problem, ALGORITHMS[name], federation(), participation=participation, engine=engine, **settings
    )


def guarded(engine: str, **options: Any) -> fs.Run:
    """A run that diverges after an evaluation, where clients remember something, and nobody measures how far it went."""
    algorithm = fs.CODASCA(lr=1e4, local_steps=5)
    torch.manual_seed(0)
    problem = fs.AUC(nn.Linear(5, 1), p="pooled", monitors=False)
    return fs.train(
        problem, algorithm, federation(), rounds=36, dtype="float64", eval_every=7,
        guard=20, engine=engine, **options,
    )  # fmt: skip


def records(run: fs.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in run.records]


def traffic(run: fs.Run) -> str:
    return repr(run.clients.traffic)


# -------------------------------------------------------------------------------- what the processes do


def program(out: Path) -> None:
    """All cases; then errors on one process, and that they leave the processes in step."""
    rank = int(os.environ["RANK"])
    done: dict[str, Any] = {}
    for case in CASES:
        run = start(case, "torchrun", out=out / case)
        done[case] = {"z": run.z.tolist(), "records": records(run), "traffic": traffic(run)}
        done[case]["spent"] = run.clients.spent
        done[case]["rows"] = len(run.clients.data["x"])

    for case in RESUMED:
        rounds = iter(start(case, "torchrun", out=out / "resumed" / case, checkpoint_every=2))
        for _ in range(6):
            next(rounds)
        rounds.close()  # type: ignore[attr-defined]
        run = start(case, "torchrun", out=out / "resumed" / case, checkpoint_every=2, resume=True)
        done[f"{case}: resumed"] = {"z": run.z.tolist(), "records": records(run), "traffic": traffic(run)}

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        done["guarded"] = {"z": guarded("torchrun").z.tolist(), "back": [str(w.message) for w in heard]}
        rounds = iter(guarded("torchrun", out=out / "guarded", checkpoint_every=2))
        while next(rounds)["round"] < 8:  # after an evaluation
            pass
        rounds.close()  # type: ignore[attr-defined]
        run = guarded("torchrun", out=out / "guarded", checkpoint_every=2, resume=True)
        done["guarded, resumed"] = {"z": run.z.tolist()}

    for case in ("codasca, full", "coda, full"):
        done[f"{case}: work"] = said(lambda case=case: start(case, "torchrun", model=Broken(rank == 1)))

    def no_disk() -> fs.Run:
        run = start("codasca, full", "torchrun", out=out / "lost")
        for record in run:
            if rank == 0 and record["round"] == 2:
                (out / "lost" / "history.jsonl").unlink()
                (out / "lost" / "history.jsonl").mkdir()
        return run

    done["writing"] = said(no_disk)
    done["evaluation"] = said(lambda: start("codasca, full", "torchrun", model=OnlyOnTest()))
    done["diverged"] = said(lambda: start("codasca, full", "torchrun", rounds=500, model=Exploding()))
    done["in step"] = start("codasca, full", "torchrun").z.tolist()
    (out / f"{rank}.json").write_text(json.dumps(done))


def said(run: Callable[[], fs.Run]) -> str:
    try:
        run().finish()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Broken(nn.Linear):
    """A model that fails on minibatches, after a while."""

    def __init__(self, breaks: bool) -> None:
        super().__init__(5, 1)
        self.breaks, self.calls = breaks, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += x.shape[-2] == 5
        if self.breaks and self.calls > 16:
            raise RuntimeError("the model fails here")
        return super().forward(x)


class OnlyOnTest(nn.Linear):
    """A model that fails where many samples are scored at once: in the evaluation, which one process does."""

    def __init__(self) -> None:
        super().__init__(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-2] > 40:
            raise RuntimeError("too many")
        return super().forward(x)


class Exploding(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 1e200


# ------------------------------------------------------------------------------------------------- tests


def torchrun(*command: str | Path, cwd: Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    options = (f"--nproc-per-node={processes}", "--master-addr=127.0.0.1", f"--master-port={port}")
    here = Path(__file__).parent.parent
    path = [str(here), str(cwd), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, *map(str, command)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=90,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("torchrun")
    ended = torchrun(Path(__file__), out, cwd=out)
    assert ended.returncode == 0, ended.stderr
    for case in CASES:
        assert len((out / case / "history.jsonl").read_text().splitlines()) == 8  # written by one process
        assert (out / case / "result.json").exists()
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_does(done: list[dict[str, Any]], case: str) -> None:
    alone = start(case, "stacked")
    first, second = (of_rank[case] for of_rank in done)
    np.testing.assert_allclose(first["z"], alone.z, rtol=0, atol=1e-12)
    assert first["z"] == second["z"]
    assert first["records"] == second["records"]
    assert first["traffic"] == second["traffic"] == traffic(alone)
    for mine, theirs in zip(first["records"], records(alone), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert mine[key] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), key
    assert first["rows"] + second["rows"] == federation().n_samples
    assert set(first["spent"]) == {"work", "evaluation", "waiting", "communication"}


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one(done: list[dict[str, Any]], case: str) -> None:
    for of_rank in done:
        resumed = of_rank[f"{case}: resumed"]
        assert resumed == {k: of_rank[case][k] for k in resumed}


def test_a_guard_gives_every_process_its_clients_memory_back(done: list[dict[str, Any]]) -> None:
    with pytest.warns(UserWarning, match=r"guard: back to round [1-9]"):
        alone = guarded("stacked").z
    for of_rank in done:
        assert any("guard: back to round" in text for text in of_rank["guarded"]["back"])
        np.testing.assert_allclose(of_rank["guarded"]["z"], alone, rtol=1e-9)
        assert of_rank["guarded, resumed"]["z"] == of_rank["guarded"]["z"]


def test_some_case_has_rounds_with_nobody_and_failures(done: list[dict[str, Any]]) -> None:
    nobody = done[0]["codasca, some rounds with nobody"]["records"]
    assert any(r["participants"] == 0 for r in nobody[1:]) and any(r["participants"] > 1 for r in nobody[1:])
    assert done[0]["scaffold, failures"]["records"][-1]["failures"] > 0


def test_an_error_on_one_process_is_raised_on_all(done: list[dict[str, Any]]) -> None:
    first, second = done
    for case in ("codasca, full", "coda, full"):
        kind, _, text = second[f"{case}: work"].partition(": ")
        assert kind == "ClientWorkError" and "_steps failed in round 4, phase 0, 3 clients: " in text
        assert text.endswith("RuntimeError: the model fails here")
        assert first[f"{case}: work"] == f"FedsaddleError: process 1 of 2: {text}"
    assert first["writing"].endswith("history.jsonl: cannot be written (Is a directory)")
    assert second["writing"].startswith("FedsaddleError: process 0 of 2: ")
    assert first["evaluation"] == "RuntimeError: too many"
    assert second["evaluation"] == "FedsaddleError: process 0 of 2: RuntimeError: too many"
    assert first["diverged"] == second["diverged"]
    assert first["diverged"].startswith("Diverged: CODASCA: diverged in round 1,")
    assert first["in step"] == second["in step"] == first["codasca, full"]["z"]


CONFIG = {
    "data": {"name": "breast_cancer", "test": 0.25},
    "partition": {"name": "dirichlet", "clients": 4, "min_per_class": 4},
    "model": {"name": "linear"},
    "problem": {"name": "auc"},
    "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 2},
    "train": {"rounds": 20, "batch_size": 8, "engine": "torchrun", "eval_every": 20, "checkpoint_every": 1},
}
BROKEN = """
import os, signal
from torch import nn

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(30, 1), [0]

    def forward(self, x):
        self.calls[0] += 1
        if os.environ["RANK"] == "1" and self.calls[0] > 9:
            {what}
        return self.layer(x)
"""


def write_broken(folder: Path, what: str) -> None:
    (folder / "broken.py").write_text(BROKEN.replace("{what}", what))
    (folder / "broken.toml").write_text(to_toml(CONFIG | {"model": {"module": "broken:Broken"}}))


def own_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("fedsaddle: ")]


def test_the_command_writes_one_folder_prints_once_and_says_an_error_once(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(to_toml(CONFIG))
    write_broken(tmp_path, "raise RuntimeError('the model fails here')")
    (tmp_path / "both.py").write_text(
        "from fedsaddle import cli\n"
        "assert cli._main(['run', 'tiny.toml']) == 0\n"
        "cli.main(['run', 'broken.toml'])\n"
    )
    ended = torchrun("both.py", cwd=tmp_path)
    assert ended.stdout.count("tiny: CODASCA on AUC, 4 clients") == 1, ended.stderr
    assert (
        ended.stdout.count(
            "runs/tiny: config.toml, history.jsonl, checkpoint, result.json, model.safetensors"
        )
        == 1
    )
    assert len((tmp_path / "runs/tiny/history.jsonl").read_text().splitlines()) == 21
    assert json.loads((tmp_path / "runs/tiny/result.json").read_text())["seconds"]["communication"] > 0
    assert ended.returncode != 0
    assert "broken" not in ended.stdout
    (said,) = own_lines(ended.stderr)
    assert "process 1 of 2: drift_corrected_steps failed in round " in said
    assert said.endswith(
        "RuntimeError: the model fails here; fedsaddle resume runs/broken goes on after round 2"
    )
    assert {folder.name for folder in (tmp_path / "runs").iterdir()} == {"tiny", "broken"}


def test_a_process_that_dies_ends_all(tmp_path: Path) -> None:
    write_broken(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    ended = torchrun("-m", "fedsaddle", "run", "broken.toml", cwd=tmp_path)
    assert ended.returncode != 0
    assert ended.stdout == ""
    said = own_lines(ended.stderr)  # none, when torchrun stops the survivor before it has spoken
    assert len(said) <= 1 and all("process 0: lost contact with the other processes" in line for line in said)
    assert not (tmp_path / "runs/broken/result.json").exists()
    write_broken(tmp_path, "pass")
    assert json.loads((tmp_path / "runs/broken/checkpoint/index.json").read_text())[-1]["round"] > 0
    resumed = torchrun("-m", "fedsaddle", "resume", "runs/broken", "--quiet", cwd=tmp_path)
    assert (resumed.returncode, resumed.stdout) == (0, "runs/broken\n"), resumed.stderr
    tracked = ["--track", "tensorboard"] if find_spec("tensorboard") else []
    whole = torchrun(
        "-m", "fedsaddle", "run", "broken.toml", "--out", "whole", "--quiet", *tracked, cwd=tmp_path
    )
    assert whole.returncode == 0, whole.stderr
    for file in ("history.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "runs/broken" / file).read_bytes()
    assert len(list(tmp_path.rglob("events.*"))) == bool(tracked)  # by the first process alone


# --------------------------------------------------------------------------------------- in this process


def engine(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> Torchrun:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    clients = Torchrun(
        Task(fs.ERM(nn.Linear(5, 1)), federation(), fs.Full(), Batching(4), dtype=torch.float64)
    )
    clients.remember(torch.zeros(1, 6, dtype=torch.float64))
    return clients


@pytest.mark.parametrize(("rank", "world"), [(1, 2), (8, 9)])
def test_a_process_without_asked_clients_gives_zeros_and_remembers_nothing(
    monkeypatch: pytest.MonkeyPatch, rank: int, world: int
) -> None:
    clients = engine(monkeypatch, rank, world)
    clients.begin(0)
    who = Draw(np.array([0, 2, 4]), np.ones(3, dtype=np.int64), np.array([True, False, True]))
    ((at, reply),) = clients._run(
        lambda cohort, m: (cohort.each(m), cohort.each(m)), torch.ones(1, 6).double(), who, 0
    )
    assert at.tolist() == [0, 2]
    assert reply.shape == (2, 6) and not reply.any()
    assert not clients.memory.any()


def test_data_and_memory_are_the_own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, everything = engine(monkeypatch, 1, 3), federation()
    assert clients.memory.shape == (2, 6)  # clients 1 and 4
    assert clients.n_clients == 7 and torch.equal(clients.sizes, everything.sizes)
    own = torch.cat([everything.client(1)["x"], everything.client(4)["x"]])
    assert torch.equal(clients.data["x"], own.double())


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedsaddleError, match="in processes that torchrun starts: torchrun --nproc-per-node"):
        start("codasca, full", "torchrun").finish()
    task = Task(fs.ERM(nn.Linear(5, 1)), federation(), fs.Full())
    with pytest.raises(FedsaddleError, match="computes one run at a time"):
        Torchrun(task._replace(seeds=(0, 1)))
    with pytest.raises(FedsaddleError, match=r"adds replies up where they are.*use engine 'stacked'"):
        Torchrun(task._replace(aggregation=aggregation.median()))
    with pytest.raises(FedsaddleError, match=r"adds replies up where they are.*use engine 'stacked'"):
        start("codasca, full", "torchrun", aggregation="median")
    with pytest.raises(FedsaddleError, match="device must be 'cuda', got 'cuda:1'"):
        Torchrun(task, device="cuda:1")
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises(FedsaddleError, match="needs a GPU for each process of a machine"):
        Torchrun(task, device="cuda")
    assert first_to_fail()


if __name__ == "__main__":
    program(Path(sys.argv[1]))
