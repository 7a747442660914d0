"""An algorithm of one's own: what is wrong with it is said in words, and `fedsaddle.testing.check` finds what is impure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fedsaddle as fs
from fedsaddle.algorithms import ALGORITHMS, LocalSGDA
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.folder import read_result
from fedsaddle.problem import Problem
from fedsaddle.replicas import run_together
from fedsaddle.testing import FACTS, check
from fedsaddle.toml import to_toml
from tests.conftest import Command

pytest.importorskip("plotly")

PROBLEM, CLIENTS = fs.QuadraticSaddle(3, 2), fs.quadratic_federation(clients=4, dim_x=3, dim_y=2)


class State(NamedTuple):
    z: Tensor


class Two(NamedTuple):
    z: Tensor
    c_k: Tensor


@dataclass(frozen=True)
class Own(fs.Algorithm):
    """Optimistic gradient steps: a sound method, to be spoilt."""

    lr: float = 0.05

    def init(self, z: Tensor, problem: Problem) -> Any:
        return State(z)

    def memory(self, z: Tensor, problem: Problem) -> Any:
        return torch.zeros_like(z)

    def round(self, s: Any, clients: Clients) -> Any:
        return State(clients.mean(self.steps, s)[0].z)

    def steps(self, cohort: Cohort, s: Any) -> Any:
        z, last = cohort.scan(lambda at, batch: self.step(cohort, at, batch), (s.z, cohort.memory), 2)
        return State(z), last

    def step(self, cohort: Cohort, at: Any, batch: Any) -> Any:
        z, last = at
        now = cohort.field(z, batch)
        return z - self.lr * (2 * now - last), now


class ReturnsNoMemory(Own):
    def steps(self, cohort: Cohort, s: Any) -> Any:
        return super().steps(cohort, s)[0]


class ReturnsOnePair(Own):
    def steps(self, cohort: Cohort, s: Any) -> Any:
        return Two(*super().steps(cohort, s))  # unpacked, it would be a reply and memory


class ReturnsThree(Own):
    def steps(self, cohort: Cohort, s: Any) -> Any:
        return *super().steps(cohort, s), None


class ReadsMemoryItHasNot(Own):
    memory = fs.Algorithm.memory


class WritesMemoryItHasNot(Own):
    memory = fs.Algorithm.memory

    def steps(self, cohort: Cohort, s: Any) -> Any:
        return State(s.z + torch.zeros_like(cohort.each(s.z))), cohort.each(s.z)


class WritesOtherMemory(Own):
    def steps(self, cohort: Cohort, s: Any) -> Any:
        reply, memory = super().steps(cohort, s)
        return reply, memory[..., :2]


class WritesAPairOfMemory(Own):
    def steps(self, cohort: Cohort, s: Any) -> Any:
        reply, memory = super().steps(cohort, s)
        return reply, (memory, memory)


class ForgetsToReturn(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        super().round(s, clients)


class ReturnsThePair(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        return clients.mean(self.steps, s)


class ShortReply(Own):
    def steps(self, cohort: Cohort, s: Any) -> Any:
        reply, memory = super().steps(cohort, s)
        return State(reply.z[..., :3]), memory


class Doubles(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        return State(super().round(s, clients).z.float())


MISTAKES = {
    ReturnsNoMemory: r"ReturnsNoMemory.steps: local work returns \(reply, memory\), memory may be None; got State",
    ReturnsOnePair: r"local work returns \(reply, memory\), memory may be None; got Two",
    ReturnsThree: r"local work returns \(reply, memory\), memory may be None; got 3 values",
    ReadsMemoryItHasNot: r"cohort.memory is None: the algorithm has no method memory\(self, z, problem\)",
    WritesMemoryItHasNot: r"steps: returns memory, but the algorithm has no method memory",
    WritesOtherMemory: r"the new memory must be \[\d, 5\], as memory\(\) says, got \[\d, 2\]",
    WritesAPairOfMemory: r"the new memory must be \[\d, 5\], as memory\(\) says, got tuple",
    ForgetsToReturn: r"^ForgetsToReturn.round: must return the new State, got NoneType$",
    ReturnsThePair: r"must return the new State, got tuple; clients.mean returns \(mean, share\), of which",
    ShortReply: r"round: z of the new State must be float64 \[1, 5\] as before, got float64 \[1, 3\]$",
    Doubles: r"round: z of the new State must be float64 \[1, 5\] as before, got float32 \[1, 5\]$",
}


def run(algorithm: Any, **options: Any) -> fs.Run:
    return fs.train(PROBLEM, algorithm, CLIENTS, rounds=2, dtype="float64", progress=False, **options)


@pytest.mark.parametrize("engine", ["stacked", "serial"])
@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_is_named(kind: type[Own], engine: str) -> None:
    run(Own(), engine=engine).finish()
    with pytest.raises(FedsaddleError, match=MISTAKES[kind]):
        run(kind(), engine=engine).finish()


def test_a_mistake_is_named_of_replicas_too() -> None:
    with pytest.raises(FedsaddleError, match="must return the new State, got tuple"):
        run_together([run(ReturnsThePair(), seed=seed) for seed in (0, 1)])


def test_a_class_in_place_of_an_object_is_named() -> None:
    with pytest.raises(FedsaddleError, match=r"algorithm must be .*, got the class Own; write Own\(\.\.\.\)"):
        run(Own)
    with pytest.raises(
        FedsaddleError, match=r"got the class QuadraticSaddle; write QuadraticSaddle\(\.\.\.\)"
    ):
        fs.train(fs.QuadraticSaddle, LocalSGDA(), CLIENTS, rounds=1)  # type: ignore[arg-type]


def test_a_state_may_stay_as_it_is_when_nobody_answers() -> None:
    silent = fs.Uniform(1, failure=0.9)
    run(Own(), participation=silent).finish()
    with pytest.raises(FedsaddleError, match="must return the new State"):
        fs.train(PROBLEM, ForgetsToReturn(), CLIENTS, rounds=60, participation=silent).finish()


# ------------------------------------------------------------------------------------- by a config, as module:name


OGDA = '''
from dataclasses import dataclass
from typing import NamedTuple

import torch
from fedsaddle import Algorithm


class State(NamedTuple):
    z: torch.Tensor


@dataclass(frozen=True)
class FedOG(Algorithm):
    """Optimistic gradient steps."""

    lr: float = 0.05
    local_steps: int = 2

    def __post_init__(self):
        self._require_positive("lr")

    def init(self, z, problem):
        return State(z)

    def memory(self, z, problem):
        return torch.zeros_like(z)

    def round(self, s, clients):
        return State(clients.mean(self.optimistic_steps, s)[0].z)

    def optimistic_steps(self, cohort, s):
        def step(at, batch):
            now = cohort.field(at[0], batch)
            return at[0] - self.lr * (2 * now - at[1]), now

        z, last = cohort.scan(step, (s.z, cohort.memory), self.local_steps)
        return State(z), last


def loose(lr=0.1):
    return FedOG(lr)
'''
CONFIG: dict[str, Any] = {
    "data": {"name": "quadratic", "clients": 3, "dim_x": 3, "dim_y": 2},
    "problem": {"name": "quadratic"},
    "algorithm": {"module": "ogda:FedOG", "lr": 0.1},
    "train": {"rounds": 4, "dtype": "float64", "checkpoint_every": 1},
}


@pytest.fixture
def ogda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the method in a file, as somebody stands in it."""
    (tmp_path / "ogda.py").write_text(OGDA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ogda", raising=False)
    (tmp_path / "run.toml").write_text(to_toml(CONFIG))
    return tmp_path


def test_a_config_runs_it(ogda: Path, fedsaddle: Command) -> None:
    assert fedsaddle("run", ogda / "run.toml", "--out", "r", "--quiet").code == 0
    whole = read_result(Path("r"))
    assert whole["config"]["algorithm"] == {"name": "FedOG", "lr": 0.1, "local_steps": 2}
    config = fs.config.load("run.toml")
    rounds = iter(config.start(config.build(), out=Path("cut")))
    for _ in range(3):
        next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    Path("cut/config.toml").write_text(Path("r/config.toml").read_text())
    assert fedsaddle("resume", "cut", "--quiet").code == 0
    assert read_result(Path("cut"))["metrics"]["distance"] == whole["metrics"]["distance"]
    assert "no theorem for ogda:FedOG" in fedsaddle("probe", "run.toml").out
    for command in (("compare", "r", "cut"), ("report", "r"), ("show", "r"), ("cite", "r")):
        assert fedsaddle(*command).code == 0


def test_a_sweep_takes_it(ogda: Path, fedsaddle: Command) -> None:
    points = {"algorithm.lr": [0.1, 0.05], "algorithm.local_steps": [1, 2]}
    sweep = {"metric": "distance", "minimise": True, "seeds": [0, 1], "points": points}
    Path("sweep.toml").write_text(to_toml(CONFIG | {"sweep": sweep}))
    done = fedsaddle("sweep", "sweep.toml", "--out", "s")
    assert done.code == 0 and "* chosen:" in done.out
    assert 'module = "ogda:FedOG"' in Path("s/best.toml").read_text()
    assert "FedOG" in Path("s/sweep.html").read_text()


def test_a_name_and_a_module_take_each_others_place(ogda: Path, fedsaddle: Command) -> None:
    run = fedsaddle("run", "run.toml", "--set", "algorithm.name=local_sgda", "--out", "r", "--quiet")
    assert run.code == 0 and read_result(Path("r"))["config"]["algorithm"]["name"] == "LocalSGDA"
    points = {"algorithm.name": ["scaffold", "local_sgda"]}
    sweep = {"metric": "distance", "minimise": True, "points": points}
    Path("sweep.toml").write_text(to_toml(CONFIG | {"sweep": sweep}))
    assert fedsaddle("sweep", "sweep.toml", "--out", "s").code == 0
    named = CONFIG | {"algorithm": {"name": "local_sgda", "lr": 0.1, "local_steps": 2}}
    Path("named.toml").write_text(to_toml(named))
    own = fedsaddle("run", "named.toml", "--set", "algorithm.module=ogda:FedOG", "--out", "o", "--quiet")
    assert own.code == 0 and read_result(Path("o"))["config"]["algorithm"]["name"] == "FedOG"


def test_a_model_is_loaded_without_the_method_that_trained_it(
    ogda: Path, fedsaddle: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": "breast_cancer", "scale": "standard", "test": 0.25}
    tree = {
        "data": data, "partition": {"name": "iid", "clients": 2}, "model": {"name": "linear"},
        "problem": {"name": "auc"}, "algorithm": CONFIG["algorithm"], "train": {"rounds": 2},
    }  # fmt: skip
    Path("auc.toml").write_text(to_toml(tree))
    assert fedsaddle("run", "auc.toml", "--out", "r", "--quiet").code == 0
    Path("ogda.py").unlink()
    monkeypatch.delitem(sys.modules, "ogda")
    assert fs.load_model("r").model[1].weight.shape == (1, 30)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("algorithm.module=ogda", 'algorithm.module: must be "module:Algorithm", got "ogda"'),
        ("algorithm.module=5", "algorithm.module: must be text such as"),
        ("algorithm.module=ogda:Fed", "algorithm.module: cannot import ogda:Fed (AttributeError"),
        (
            "algorithm.module=ogda:loose",
            "ogda:loose must be a class of algorithms, derived from fedsaddle.Algorithm",
        ),
        ("algorithm.lrr=1", "algorithm.lrr: unknown key, did you mean 'lr'?"),
        ("algorithm.lr=0.0", "FedOG: lr must be > 0, got 0.0"),
    ],
)
def test_what_is_wrong_with_it_in_a_config_is_said(
    ogda: Path, fedsaddle: Command, given: str, message: str
) -> None:
    done = fedsaddle("run", "run.toml", "--set", given)
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1


# -------------------------------------------------------------------------------------------------- check


NEEDS: dict[str, dict[str, Any]] = {"ffmdr": {"beta": 1.0, "lr": 0.05, "stop": "fixed_epochs"}}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_passes(name: str) -> None:
    check(ALGORITHMS[name](**NEEDS.get(name, {})), rounds=2)


class Tosses(Own):
    def step(self, cohort: Cohort, at: Any, batch: Any) -> Any:
        z, last = super().step(cohort, at, batch)
        return z + 0.01 * torch.randn_like(z), last


class LooksAtOthers(Own):
    def step(self, cohort: Cohort, at: Any, batch: Any) -> Any:
        z, last = at
        now = cohort.field(z, batch)
        return z - self.lr * now / now.norm(), last


class FirstCountsMost(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        replies = clients.gather(self.steps, s).replies.z
        weights = torch.arange(replies.shape[-2], 0, -1).to(replies)
        return State((weights / weights.sum()) @ replies.unsqueeze(0))


class Sums(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        moves = clients.gather(self.steps, s).replies.z - s.z
        return State(s.z + 0.3 * moves.sum(-2, keepdim=True))


class WritesElsewhere(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        new = super().round(s, clients)
        clients._memory._rows.mul_(1.1)  # type: ignore[attr-defined]
        return new


class CountsOnTheSide(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        clients.count = getattr(clients, "count", 0) + 1  # type: ignore[attr-defined]
        return State(s.z + (super().round(s, clients).z - s.z) / clients.count)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Branches(Own):
    damping: float = 0.5

    def round(self, s: Any, clients: Clients) -> Any:
        new = super().round(s, clients)
        return State(s.z + self.damping * (new.z - s.z)) if self.damping > 0.47 else new


class LooksAtTheFirstReplica(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        new = super().round(s, clients)
        return State(s.z + (new.z - s.z) * new.z[0].norm().cos())


@dataclass(frozen=True)
class Letter:
    z: Tensor


class SendsAnObject(Own):
    def round(self, s: Any, clients: Clients) -> Any:
        return State(clients.mean(self.opened, (Letter(s.z),))[0].z)

    def opened(self, cohort: Cohort, m: Any) -> Any:
        return self.steps(cohort, State(m[0].z))


SPOILT = {
    "repeats": (Tosses, r"second run is not the first one .*torch.randn: use cohort.normal"),
    "engines": (LooksAtOthers, r"engine 'stacked' and serial disagree .*a norm, mean .*; use dim=-1"),
    "order": (FirstCountsMost, r"the order of clients matters .* a client's place decides"),
    "identical": (
        Sums,
        r"four identical clients are not one client .* a sum over clients where a mean belongs",
    ),
    "absent": (WritesElsewhere, r"clients that were absent in round \d remember something else"),
    "resumed": (CountsOnTheSide, r"a resumed run is not the uninterrupted one .* neither the State nor"),
    "together": (Branches, r"runs cannot be computed together .*goes into `branching` or `shaping`"),
    "wire": (SendsAnObject, r"something that travels cannot be sent .*Letter"),
}


def test_the_sound_method_passes() -> None:
    check(Own())
    check(Own(), PROBLEM, CLIENTS, rounds=2)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
def test_what_is_impure_is_found(fact: Any) -> None:
    kind, said = SPOILT[fact.__name__]
    with pytest.raises(AssertionError, match=f"^{kind.__name__}: .*{said}"):
        check(kind())


def test_replicas_that_are_not_their_own_runs_are_found() -> None:
    with pytest.raises(AssertionError, match=r"^LooksAtTheFirstReplica: runs that differ in "):
        check(LooksAtTheFirstReplica())


def test_what_check_cannot_check_is_said() -> None:
    with pytest.raises(FedsaddleError, match="give a problem and its federation, or none"):
        check(Own(), PROBLEM)
    with pytest.raises(FedsaddleError, match="rounds must be >= 2, got 1"):
        check(Own(), rounds=1)
    with pytest.raises(Diverged, match="Own: diverged in round 1"):
        check(Own(lr=1e200))
