"""CODASCA as its public code runs it, which is not as the paper writes it; probably the form behind the curves.

    public code                                                        | paper
    -------------------------------------------------------------------+-----------------------------------------
    a stage keeps the last iterate; each client's own average of its   | a random round's iterate is both
    local iterates is only its prox centre, not shared (E3.6)          |
    prox centre starts as N(0, 0.01^2) noise (E3.7)                    | v_0
    variates are never reset (E3.5) and average raw gradients (E3.7)   | zero at each stage; gradients as stepped
    gradients of weights clipped entry by entry at 1, weight decay     | neither
    the first round is one step, still divided by I (E3.7)             | I steps
    eta_g = 1 (E3.4)                                                   | eta_g a parameter

E3.*: docs/mathematics.md. The public code's dual step is the AUC problem's `dual="margin"`.

Deviations from the public code: all of z steps from the old point, where it steps the dual with the a and b just updated,
and its dual variate averages the dual gradients after each step and its bounds; a prox centre is the mean of the stage's
iterates, where it is the stage's start and their sum, over their number; stages end with a round, where they end at an
iteration, also within a round. BatchNorm buffers and pre-trained weights are not imitated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.coda import YUAN_2021
from fedsaddle.algorithms.stages import Progress, ProximalStages
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.problem import Batch, ModelProblem, Problem


class State(NamedTuple):
    z: Tensor  # server iterate [1, d]
    c: Tensor  # server control variate [1, d]
    progress: Progress


class Down(NamedTuple):
    z: Tensor
    c: Tensor
    stage: int
    steps: int


class Up(NamedTuple):
    z: Tensor
    dc: Tensor


class Memory(NamedTuple):
    c_k: Tensor  # [1, d]
    v_ref: Tensor  # the client's own prox centre [1, n_x]
    total: Tensor  # sum of its local primal iterates in the stage it last worked in [1, n_x]
    steps_done: Tensor  # how many [1, 1]
    stage: Tensor  # that stage [1, 1]


class Carry(NamedTuple):
    z: Tensor
    gradients: Tensor  # sum of raw fields
    total: Tensor


@dataclass(frozen=True)
class PublishedCODASCA(ProximalStages):
    """CODASCA in the form of its public code.

    Args:
        clip: bound on each entry of the gradient by the model's weights (of a problem without a model: by x).
        weight_decay: added to the primal gradient.
        centre_noise: standard deviation of the first prox centre.
    """

    clip: float = 1.0
    weight_decay: float = 1e-5
    centre_noise: float = 0.01

    of_all: ClassVar[bool] = True
    cites = YUAN_2021

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("clip")
        self._require_nonnegative("weight_decay", "centre_noise")

    @classmethod
    def outputs(cls) -> tuple[str, ...]:
        return ("last",)

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z, torch.zeros_like(z), Progress.start(z))

    def memory(self, z: Tensor, problem: Problem) -> Memory:
        v, one = torch.zeros_like(z[..., : problem.n_x]), torch.zeros_like(z[..., :1])
        noise = torch.randn(problem.n_x, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return Memory(torch.zeros_like(z), (self.centre_noise * noise).to(v).expand_as(v), v, one, one)

    def round(self, s: State, clients: Clients) -> State:
        stage = s.progress.stage
        first = stage == 0 and s.progress.done == 0
        down = Down(s.z, s.c, stage, 1 if first else self.steps_at(stage))
        mean, share = clients.mean(self.published_steps, down)
        z, progress, _ = self.advance(s.progress, mean.z, clients)
        return State(z, s.c + share * mean.dc, progress)

    def published_steps(self, cohort: Cohort, m: Down) -> tuple[Up, Memory]:
        lr, n_x, mem = cohort.number(self.lr_at(m.stage)), cohort.problem.n_x, cohort.memory
        new_stage = (mem.stage != m.stage) & (mem.steps_done > 0)
        v_ref = torch.where(new_stage, mem.total / mem.steps_done.clamp(min=1), mem.v_ref)
        total, steps_done = (
            torch.where(new_stage, 0.0, mem.total),
            torch.where(new_stage, 0.0, mem.steps_done),
        )
        n = cohort.problem.flat.n if isinstance(cohort.problem, ModelProblem) else n_x
        bound = cohort.vector(x=self.clip, y=float("inf"))
        # gradients by a, b and the dual are not clipped
        bound = torch.cat([bound[..., :n], torch.full_like(bound[..., n:], float("inf"))], dim=-1)

        def step(carry: Carry, batch: Batch) -> Carry:
            z, gradients, total = carry
            F, v = cohort.field(z, batch), z[..., :n_x]
            regular = cohort.pad(self.gamma * (v - v_ref) + self.weight_decay * v)
            z = cohort.prox(z - lr * (F.clamp(-bound, bound) - mem.c_k + m.c + regular), lr)
            return Carry(z, gradients + F, total + z[..., :n_x])

        start = Carry(m.z, torch.zeros_like(mem.c_k), total)
        z, gradients, total = cohort.scan(step, start, m.steps)
        c_k = gradients / self.steps_at(m.stage)
        memory = Memory(c_k, v_ref, total, steps_done + m.steps, torch.full_like(mem.stage, m.stage))
        return Up(z, c_k - mem.c_k), memory
