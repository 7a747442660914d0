"""Cyclic participation: CyCp-Minimax and its baselines (groups of clients are visited in a fixed order, one a round).

CyCp-Minimax: Vangapally et al. CyCp-FedAvg: Cho et al. 2023. Amplified FedAvg: Wang and Ji 2022. Amplified SCAFFOLD:
Crawshaw and Liu 2024. Who takes part is the run's participation: `Cyclic(groups=G, m=M)`, or `Uniform(M)` for random
sampling.

    paper                    | here
    -------------------------+-------------------------------------------------------------
    v, alpha                 | z, with the field F = (grad_v f, -grad_alpha f)
    e, g: epoch and group    | one visit is one round; an epoch is G rounds
    E_s                      | stage_rounds / G: a stage should be whole epochs
    eta_s, I_s               | lr_at(s), steps_at(s)
    v_0 of eq. (5), rho      | v_ref, gamma
    vbar^{e,g}               | the server's iterate after a round; a stage's output is their mean
    gamma_amp, P             | amplification, period (rounds; G is one cycle)

Deviations: gradients are those of the proximal f^s, at the old point (E2.2); alpha travels along (E2.3). RS-Minimax is the
same method under uniform participation. Amplified SCAFFOLD takes all of z along, so it serves min-max problems too;
Amplified FedAvg and CyCp-FedAvg minimise, as FedAvg does. Where the problem projects, clients do after every local step, and
the server does with an amplified point and with FedAvg's step.
Amplified SCAFFOLD's clients send the change of their period's mean gradient at each visit, since a group cannot be reached
when the period ends, and renew their own variate when they are visited next; it is not used in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.algorithms.coda import CODAPlus
from fedsaddle.algorithms.coda import State as Stage
from fedsaddle.algorithms.fedavg import FedAvg
from fedsaddle.algorithms.fedavg import State as Iterate
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.messages import Control
from fedsaddle.problem import Batch, Problem

WANG_2022 = Citation(
    "wang2022unified",
    "Wang, Shiqiang and Ji, Mingyue",
    "A Unified Analysis of Federated Learning with Arbitrary Client Participation",
    "NeurIPS",
    2022,
)


@dataclass(frozen=True)
class CyCpMinimax(CODAPlus):
    """CyCp-Minimax: local descent ascent on a proximal subproblem, group after group; a stage's output is the visits' mean.

    Use it with Cyclic participation. A stage of E epochs over G groups has stage_rounds = E G.
    """

    output: str = "rounds"

    cites = Citation(
        "vangapally2026communication",
        "Vangapally, Umesh and Wu, Wenhan and Chen, Chen and Guo, Zhishuai",
        "Communication-Efficient Federated AUC Maximization with Cyclic Client Participation",
        "arXiv",
        2026,
    )

    @classmethod
    def outputs(cls) -> tuple[str, ...]:
        return ("rounds", "last")

    def round(self, s: Stage, clients: Clients) -> Stage:
        self._advise_whole_stages(clients)
        return super().round(s, clients)


@dataclass(frozen=True)
class RSMinimax(CyCpMinimax):
    """RS-Minimax: CyCp-Minimax's steps under random sampling. Use it with Uniform participation."""


@dataclass(frozen=True)
class CyCpFedAvg(FedAvg):
    """FedAvg whose clients come group by group. Use it with Cyclic participation."""

    cites = Citation(
        "cho2023convergence",
        "Cho, Yae Jee and Sharma, Pranay and Joshi, Gauri and Xu, Zheng and Kale, Satyen and Zhang, Tong",
        "On the Convergence of Federated Averaging with Cyclic Client Participation",
        "ICML",
        2023,
    )


class AmplifiedState(NamedTuple):
    z: Tensor  # server iterate [1, d]
    anchor: Tensor  # the iterate at the end of the last period [1, d]
    round: int


@dataclass(frozen=True)
class AmplifiedFedAvg(FedAvg):
    """FedAvg whose progress over a period is stretched: x <- x_anchor + amplification (x - x_anchor).

    Args:
        amplification: gamma_amp >= 1 in the paper; 1 is FedAvg.
        period: P, rounds between two stretches; the number of groups for one cycle.
    """

    amplification: float = 1.5
    period: int = 10

    cites = WANG_2022

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("amplification", "period")

    def init(self, z: Tensor, problem: Problem) -> AmplifiedState:  # type: ignore[override]
        return AmplifiedState(z, z, 0)

    def round(self, s: AmplifiedState, clients: Clients) -> AmplifiedState:  # type: ignore[override]
        self._advise_whole_epochs("period", clients)
        z = super().round(Iterate(s.z), clients).z
        if (s.round + 1) % self.period:
            return AmplifiedState(z, s.anchor, s.round + 1)
        z = clients.problem.prox(s.anchor + self.amplification * (z - s.anchor), lr=0.0)
        return AmplifiedState(z, z, s.round + 1)


class State(NamedTuple):
    z: Tensor  # server iterate [1, d]
    anchor: Tensor  # [1, d]
    c: Tensor  # server variate, the mean of all N clients' c_i as of the period's start [1, d]
    coming: Tensor  # what c will change by when the period ends [1, d]
    round: int


class Down(NamedTuple):
    z: Tensor
    c: Tensor
    period: Control  # which period this is


class Up(NamedTuple):
    z: Tensor
    dc: Tensor  # change of the client's mean gradient in this period, less c_i


class Memory(NamedTuple):
    c_i: Tensor  # variate of the period in which the client was visited last [1, d]
    total: Tensor  # sum of its gradients in that period [1, d]
    steps: Tensor  # and how many they were [1, 1]
    period: Tensor  # [1, 1]


@dataclass(frozen=True)
class AmplifiedSCAFFOLD(Algorithm):
    """SCAFFOLD whose variates and amplification go by periods, for clients that are not always there.

    Args:
        lr: local step size eta.
        local_steps: I.
        amplification: gamma_amp >= 1 in the paper.
        period: P, rounds of a period; the number of groups for one cycle.
    """

    lr: float = 0.01
    local_steps: int = 10
    amplification: float = 1.5
    period: int = 10

    of_all: ClassVar[bool] = True
    cites = Citation(
        "crawshaw2024federated",
        "Crawshaw, Michael and Liu, Mingrui",
        "Federated Learning under Periodic Client Participation and Heterogeneous Data: A New "
        "Communication-Efficient Algorithm and Analysis",
        "NeurIPS",
        2024,
    )

    def __post_init__(self) -> None:
        self._require_positive("lr", "local_steps", "amplification", "period")

    def init(self, z: Tensor, problem: Problem) -> State:
        zero = torch.zeros_like(z)
        return State(z, z, zero, zero, 0)

    def memory(self, z: Tensor, problem: Problem) -> Memory:
        zero, none = torch.zeros_like(z), torch.zeros_like(z[..., :1])
        return Memory(zero, zero, none, none - 1)

    def round(self, s: State, clients: Clients) -> State:
        self._advise_whole_epochs("period", clients)
        period = Control.of(float(s.round // self.period), s.z)
        mean, share = clients.mean(self.corrected_steps, Down(s.z, s.c, period))
        z, coming = mean.z, s.coming + share * mean.dc
        if (s.round + 1) % self.period:
            return State(z, s.anchor, s.c, coming, s.round + 1)
        z = clients.problem.prox(s.anchor + self.amplification * (z - s.anchor), lr=0.0)
        return State(z, z, s.c + coming, torch.zeros_like(coming), s.round + 1)

    def corrected_steps(self, cohort: Cohort, m: Any) -> tuple[Up, Memory]:
        c_i, total, steps = self._at_period(cohort.memory, m.period)
        before = torch.where(steps > 0, total / steps.clamp(min=1) - c_i, 0.0)

        def step(carry: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
            z, total = carry
            F = cohort.field(z, batch)
            return cohort.prox(z - self.lr * (F - c_i + m.c), self.lr), total + F

        z, total = cohort.scan(step, (m.z, total), self.local_steps)
        steps = steps + self.local_steps
        dc = total / steps - c_i - before
        return Up(z, dc), Memory(c_i, total, steps, cohort.each(m.period))

    @staticmethod
    def _at_period(memory: Memory, period: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A client's variate and sums in a period: of an earlier one that it took part in, c_i <- total / steps."""
        c_i, total, steps, last = memory
        new = last != period
        c_i = torch.where(new & (steps > 0), total / steps.clamp(min=1), c_i)
        return c_i, torch.where(new, 0.0, total), torch.where(new, 0.0, steps)
