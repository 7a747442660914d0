"""Stages: what NPA, CODA, CODA+, CODASCA and the methods for cyclic participation share: schedules and stage outputs.

A stage of a min-max method approximately solves f(v, alpha) + gamma/2 ||v - v_ref||^2 (CODASCA eq. (5)), where v_ref is the
output of the stage before. A stage's output is the next one's start and prox centre. The papers take three different outputs
from a stage, and the public code a fourth:

    "iterates"  mean over clients and over all local iterates (CODA+, Algorithm 2)
    "rounds"    mean over the rounds of the server's iterate (cyclic participation)
    "random"    the server's iterate of a uniformly drawn round (CODASCA, Algorithm 4)
    "last"      the server's last iterate (what the public code does)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm
from fedsaddle.clients import Clients
from fedsaddle.errors import FedsaddleError, warn


class Progress(NamedTuple):
    """Where a stagewise method stands."""

    stage: int  # s, from 0
    done: int  # rounds done in this stage
    pick: int | Tensor  # "random": the round of this stage whose iterate is its output
    kept: Tensor  # "random": that iterate [1, d]
    total: Tensor  # "rounds": sum of this stage's iterates [1, d]

    @classmethod
    def start(cls, z: Tensor, stage: int = 0) -> Progress:
        return cls(stage, 0, 0, torch.zeros_like(z), torch.zeros_like(z))


@dataclass(frozen=True)
class Stagewise(Algorithm):
    """Schedules of a stagewise method; stage s = 0, 1, ... has

        lr_s = lr * lr_decay^s,   I_s = local_steps * interval_growth^s,   R_s = stage_rounds * stage_growth^s rounds.

    Args:
        lr: local step size eta of the first stage.
        local_steps: I, local steps between two communications.
        stage_rounds: rounds of the first stage; None: one stage that does not end, so that no output rule applies.
        lr_decay: e.g. 1/3: the step is divided by 3 at each stage.
        interval_growth: growth of I from stage to stage.
        stage_growth: growth of the number of rounds from stage to stage.
        output: which output rule ends a stage.
    """

    shaping = ("interval_growth", "stage_growth")

    lr: float = 0.01
    local_steps: int = 32
    stage_rounds: int | None = None
    lr_decay: float = 1 / 3
    interval_growth: float = 1.0
    stage_growth: float = 1.0
    output: str = "last"

    def __post_init__(self) -> None:
        self._require_positive(
            "lr", "local_steps", "lr_decay", "interval_growth", "stage_growth", "stage_rounds"
        )
        if self.output not in self.outputs():
            raise FedsaddleError(
                f"{type(self).__name__}: output must be one of {', '.join(self.outputs())}, got {self.output!r}"
            )

    @classmethod
    def outputs(cls) -> tuple[str, ...]:
        return ("rounds", "random", "last")

    def lr_at(self, stage: int) -> float:
        return self.lr * self.lr_decay**stage

    def steps_at(self, stage: int) -> int:
        return max(1, round(self.local_steps * self.interval_growth**stage))

    def rounds_at(self, stage: int) -> int | None:
        if self.stage_rounds is None:
            return None
        return max(1, round(self.stage_rounds * self.stage_growth**stage))

    def _advise_whole_stages(self, clients: Clients) -> None:
        """Warn, when a run starts, of stages that end within a pass over all groups."""
        self._advise_whole_epochs("stage_rounds", clients)
        epoch, first = clients.participation.period, self.rounds_at(0)
        if clients.round != 0 or clients.rounds is None or first is None or first % epoch:
            return
        stage, done = 0, first
        while done < clients.rounds:
            stage += 1
            rounds = self.rounds_at(stage)
            assert rounds is not None
            if rounds % epoch:
                warn(
                    f"{type(self).__name__}: stage_growth = {self.stage_growth:g} gives stage {stage + 1} {rounds} rounds, "
                    f"no multiple of the {epoch} rounds of an epoch (a pass over all groups), so some groups count more "
                    "than others; use a whole number"
                )
                return
            done += rounds

    def advance(self, p: Progress, z: Tensor, clients: Clients) -> tuple[Tensor, Progress, bool]:
        """Count a round that ended at z: where to go on from, the progress, and whether the stage ended."""
        rounds = self.rounds_at(p.stage)
        if rounds is None:
            return z, p._replace(done=p.done + 1), False
        pick = clients.integer(rounds) if p.done == 0 else p.pick  # drawn as the stage starts
        kept = torch.where(torch.as_tensor(p.done == pick, device=z.device), z, p.kept)
        p = Progress(p.stage, p.done + 1, pick, kept, p.total + z)
        if p.done < rounds:
            return z, p, False
        out = {"random": p.kept, "rounds": p.total / rounds}.get(self.output, z)
        return out, Progress.start(z, p.stage + 1), True


@dataclass(frozen=True)
class ProximalStages(Stagewise):
    """Stages with a prox term.

    Args:
        gamma: prox coefficient (the papers' 1/gamma in {500, 700, 1000} is gamma = 0.002 ... 0.001; erratum E3.1).
    """

    gamma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_nonnegative("gamma")
        if self.gamma and self.stage_rounds is None:
            warn(
                f"{type(self).__name__}: gamma = {self.gamma} without stage_rounds ties the whole run to its start; "
                "set stage_rounds, or gamma = 0"
            )

    @property
    def proximal(self) -> bool:
        """Whether stages have a prox term; replicas that differ in gamma (a tensor then) do."""
        gamma: Any = self.gamma
        return isinstance(gamma, Tensor) or gamma != 0
