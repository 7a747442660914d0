"""The seam between an algorithm and wherever its clients are: `Clients` here is the server's side, `Cohort` the clients'.

An algorithm's round calls a few verbs on `Clients`; each call is one communication phase (server -> clients -> server)
and is counted here, for every engine alike.

    mean(work, message)     one phase; the (weighted) mean of the replies          [1, ...]
    gather(work, message)   one phase; all replies                                 [S, ...]
    sample(m, p)            draw other participants than the round's, to pass as `who`
    forget()                all clients drop their memory (no traffic: a flag in the next message)

Client work is a method `work(cohort, message) -> (reply, memory)` that reads nothing but its arguments and the frozen
algorithm. It is the same in a simulator, a process or a hospital.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle import sampling
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.participation import Draw, Participation
from fedsaddle.problem import Problem, tree_map

Work = Callable[[Cohort, Any], tuple[Any, Any]]  # (cohort, message) -> (reply, what the clients remember)

BYTES_PER_NUMBER = 4  # messages are counted as float32, whatever the simulation computes in (spec 0.2)


class NobodyAnswered(FedsaddleError):
    """No client took part in a phase; the run leaves the state of that round as it was."""


class Once(NamedTuple):
    """A part of a message that a client is sent only when it does not hold it yet, such as a stage's prox centre."""

    value: Tensor
    version: int  # what the client holds is outdated when this changes


class PhaseTraffic(NamedTuple):
    """What one kind of phase has cost so far, in numbers and messages over all clients."""

    phases: int = 0
    down: int = 0
    up: int = 0


@dataclass
class Traffic:
    """Communication counted by phase and direction."""

    by_phase: dict[str, PhaseTraffic] = field(default_factory=dict)
    setup: PhaseTraffic = PhaseTraffic()  # before the first round, reported apart

    def add(self, phase: str, down: int, up: int, setup: bool) -> None:
        if setup:
            s = self.setup
            self.setup = PhaseTraffic(s.phases + 1, s.down + down, s.up + up)
            return
        t = self.by_phase.get(phase, PhaseTraffic())
        self.by_phase[phase] = PhaseTraffic(t.phases + 1, t.down + down, t.up + up)

    @property
    def total(self) -> PhaseTraffic:
        parts = self.by_phase.values()
        return PhaseTraffic(
            sum(t.phases for t in parts), sum(t.down for t in parts), sum(t.up for t in parts)
        )


class Gathered(NamedTuple):
    """All replies of a phase, one row a client."""

    ids: Tensor  # who answered [S]
    replies: Any  # every tensor [S, ...]


class Clients(ABC):
    """All N clients of a run, as an algorithm sees them."""

    problem: Problem  # with its constants agreed on

    def __init__(self, sizes: Tensor, participation: Participation, seed: int) -> None:
        self.n_clients = len(sizes)
        self.sizes = sizes  # samples of each client [N]
        self.seed = seed
        self.participation = participation
        self.traffic = Traffic()
        self.failures = 0  # sampled clients that did not answer, over the run
        self.round = -1  # -1: set-up
        self._phase = 0
        self._draws = 0
        self._cohort: Draw | None = None
        self._asked: set[int] = set()
        self._answered: Draw | None = None
        self._holds: dict[str, np.ndarray] = {}  # version of each client's Once value

    # ---- what an algorithm calls -------------------------------------------------------------------------

    def mean(
        self, work: Work, message: Any, *, who: Draw | None = None, weights: Tensor | str | None = None
    ) -> Any:
        """One phase: send `message`, run `work` on every participant, average the replies to [1, ...].

        Args:
            who: participants; by default the round's.
            weights: None (each participant equally), "samples" (by local sample count), or one weight a client [N].
        """
        draw, replies = self._exchange(work, message, who)
        w = torch.as_tensor(draw.counts[draw.answered], dtype=torch.float64)
        ids = torch.as_tensor(draw.ids[draw.answered])
        if isinstance(weights, Tensor):
            w = w * weights.to("cpu", torch.float64)[ids]
        elif weights == "samples":
            w = w * self.sizes.to("cpu", torch.float64)[ids]
        w = w / w.sum()
        return tree_map(lambda r: w.to(r).unsqueeze(0) @ r, replies)

    def gather(self, work: Work, message: Any, *, who: Draw | None = None) -> Gathered:
        """One phase: send `message`, run `work` on every participant, return all replies [S, ...]."""
        draw, replies = self._exchange(work, message, who)
        return Gathered(torch.as_tensor(draw.ids[draw.answered]), replies)

    def sample(self, m: int | None = None, p: np.ndarray | None = None) -> Draw:
        """Participants drawn anew: by the run's scheme, or m of all with probabilities p (with replacement)."""
        self._draws += 1
        if m is None:
            return self.participation.draw(self.n_clients, self.seed, self.round, self._draws)
        rng = np.random.default_rng([sampling.SERVER, self.seed, self.round + 1, self._draws])
        ids, counts = np.unique(rng.choice(self.n_clients, size=m, p=p), return_counts=True)
        return Draw(ids, counts, np.ones(len(ids), dtype=bool))

    def everyone(self) -> Draw:
        """All clients, for a phase that needs each of them."""
        ids = np.arange(self.n_clients)
        return Draw(ids, np.ones_like(ids), np.ones(len(ids), dtype=bool))

    def integer(self, n: int) -> int:
        """A uniform integer in {0..n-1} for the server, a function of (seed, round)."""
        return sampling.integer(n, sampling.SERVER, self.seed, self.round)

    @property
    def share(self) -> float:
        """M/N: the share of all clients that answered the last phase."""
        assert self._answered is not None
        return int(self._answered.answered.sum()) / self.n_clients

    @abstractmethod
    def forget(self) -> None:
        """All clients go back to the memory that they started with."""

    # ---- what a run calls --------------------------------------------------------------------------------

    def begin(self, round: int) -> None:
        """Start round r: its participants are drawn when the first phase asks for them."""
        self.round, self._phase, self._draws, self._cohort = round, 0, 0, None
        self._asked = set()

    @abstractmethod
    def remember(self, blank: Any) -> None:
        """Give every client the memory that an algorithm starts from: None, or tensors [1, ...]."""

    @property
    def asked(self) -> list[int]:
        """The clients that were asked in this round, in order."""
        return sorted(self._asked)

    # ---- one phase ---------------------------------------------------------------------------------------

    def _exchange(self, work: Work, message: Any, who: Draw | None) -> tuple[Draw, Any]:
        if who is None:
            if self._cohort is None:
                self._cohort = self.participation.draw(self.n_clients, self.seed, max(self.round, 0), 0)
            who = self._cohort
        name, phase, self._phase = work.__name__, self._phase, self._phase + 1
        setup = self.round < 0
        if not setup:
            self._asked.update(who.ids.tolist())
            self.failures += int((~who.answered).sum())
        down = self._count_down(name, message, who.ids)
        ids = who.ids[who.answered]
        if len(ids) == 0:
            self.traffic.add(name, down, 0, setup)
            raise NobodyAnswered(f"nobody answered phase {phase} ({name}) of round {self.round}")
        self._answered = who
        replies = self._run(work, _unwrap(message), ids, phase)
        self.traffic.add(name, down, _numbers(replies), setup)
        return who, replies

    def _count_down(self, name: str, message: Any, ids: np.ndarray) -> int:
        down = _numbers(message) * len(ids)
        for part in message if isinstance(message, tuple) else ():
            if isinstance(part, Once):
                holds = self._holds.setdefault(name, np.full(self.n_clients, -1))
                down += part.value.numel() * int((holds[ids] != part.version).sum())
                holds[ids] = part.version
        return down

    @abstractmethod
    def _run(self, work: Work, message: Any, ids: np.ndarray, phase: int) -> Any:
        """Run the work on these clients and return their replies, row by row in the order of ids: [S, ...]."""


def _unwrap(message: Any) -> Any:
    """The message as a client reads it: every Once replaced by its value."""
    if isinstance(message, Once):
        return message.value
    if isinstance(message, tuple):
        parts = [_unwrap(part) for part in message]
        return type(message)(*parts) if hasattr(message, "_fields") else tuple(parts)
    return message


def _numbers(tree: Any) -> int:
    """How many numbers a message consists of; plain Python values are control information and free."""
    if isinstance(tree, Once):
        return 0
    if isinstance(tree, Tensor):
        return tree.numel()
    return sum(_numbers(part) for part in tree) if isinstance(tree, tuple) else 0
