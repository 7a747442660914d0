"""CODASCA: stagewise federated AUC maximisation with control variates for primal and dual variables.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithms 3 and 4.

    paper                | here
    ---------------------+--------------------------------------------------------------
    v = (w, a, b), alpha | z = (v, alpha), field F = (grad_v f, -grad_alpha f)
    c_v^k, c_alpha^k     | c_k = (c_v^k, -c_alpha^k), row k of [S, d]
    c_v, c_alpha         | c = (c_v, -c_alpha)
    eta_l, eta_g         | lr_at(s), server_lr
    I_s, R               | steps_at(s), rounds_at(s)
    F_k^s, v_0           | field + gamma (v - v_ref), v_ref

Deviations (E3.*: docs/mathematics.md): variates start each stage at zero, also the server's, and each round starts at the
server's iterate (E3.2); the divisor of eq. (6) is I eta_l (E3.2); eta_g extrapolates from the server's iterate (E3.4).
`reset_variates=False` keeps the variates across stages, as the public code does (E3.5); all of the public code's form is
`PublishedCODASCA`.
Where the problem projects, eq. (6) is no longer the mean gradient (7); (6) is used, and the server's step is projected too.
With partial participation (not in the paper) c moves by the share M/N of the participants' mean change, so that it stays
the mean of all N clients' c_k.
With weights="samples" (not in the paper) the objective is sum_k p_k F_k, p_k = n_k/n. A round's mean of iterates is over its
participants, by their samples; c moves by sum p_k (change of c_k) over them, so that it stays sum_k p_k c_k over all N. With
some of the clients a round the mean is a ratio estimate, biased towards equal weights. That does not move the fixed point:
where c_k = F_k(z) and c = sum_k p_k F_k(z) = 0, no client moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.coda import YUAN_2021
from fedsaddle.algorithms.stages import Progress, ProximalStages
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.messages import Once
from fedsaddle.problem import Batch, Problem


class State(NamedTuple):
    z: Tensor  # server iterate [1, d]
    c: Tensor  # server control variate [1, d]: the mean of all N clients' c_k, by `weights`
    v_ref: Tensor  # prox centre, the stage's start [1, n_x]
    progress: Progress


class Down(NamedTuple):
    z: Tensor
    c: Tensor
    v_ref: Any  # sent once a stage
    stage: int


class Up(NamedTuple):
    z: Tensor
    dc: Tensor  # change of c_k


@dataclass(frozen=True)
class CODASCA(ProximalStages):
    """CODASCA: drift-corrected local steps on a proximal subproblem, stage by stage.

    Args:
        server_lr: eta_g; the server moves this far from its iterate towards the clients' mean.
        reset_variates: whether each stage starts with zero variates.
        weights: clients count equally in the objective ("clients", the paper) or by their sample counts ("samples"), so
            that the objective is that of the pooled samples; for AUC take p="pooled" with it.

    Example:
        >>> import fedsaddle as fs
        >>> fs.CODASCA(lr=0.1, local_steps=32, gamma=0.002, stage_rounds=100, lr_decay=1/3).lr_at(stage=1)
        0.03333333333333333
    """

    output: str = "random"
    server_lr: float = 1.0
    reset_variates: bool = True
    weights: Literal["clients", "samples"] = "clients"

    of_all: ClassVar[bool] = True
    cites = YUAN_2021

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("server_lr")
        self._require_weights()

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z, torch.zeros_like(z), z[..., : problem.n_x], Progress.start(z))

    def memory(self, z: Tensor, problem: Problem) -> Tensor:
        return torch.zeros_like(z)  # c_k

    def round(self, s: State, clients: Clients) -> State:
        stage = s.progress.stage
        v_ref = Once(s.v_ref, version=stage) if self.proximal else None  # v_0 of the stage
        down = Down(s.z, s.c, v_ref, stage)
        mean, share = clients.mean(self.drift_corrected_steps, down, weights=self.weights)
        z = s.z + self.server_lr * (mean.z - s.z)  # v_r = v_{r-1} + eta_g (v_r - v_{r-1})
        z = clients.problem.prox(z, lr=0.0)
        c = s.c + share * mean.dc  # c = (1/K) sum_k c_k, or sum_k p_k c_k
        z, progress, ended = self.advance(s.progress, z, clients)
        if not ended:
            return State(z, c, s.v_ref, progress)
        if self.reset_variates:  # Algorithm 4, initialisation
            clients.forget()
            c = torch.zeros_like(c)
        return State(z, c, z[..., : clients.problem.n_x], progress)

    def drift_corrected_steps(self, cohort: Cohort, m: Down) -> tuple[Up, Tensor]:
        """Algorithm 4, what machine k does in a round."""
        lr, steps = cohort.number(self.lr_at(m.stage)), self.steps_at(m.stage)
        gamma = cohort.per_variable(x=self.gamma, y=0.0)
        v_ref = cohort.pad(m.v_ref) if self.proximal else m.z
        c_k = cohort.memory
        correction = m.c - c_k

        def step(z: Tensor, batch: Batch) -> Tensor:
            F = cohort.field(z, batch)
            if self.proximal:
                F = F + gamma * (z - v_ref)  # F_k^s
            # v_{r,t+1}^k = v_{r,t}^k - eta_l (grad_v F_k^s - c_v^k + c_v), and alpha likewise
            return cohort.prox(z - lr * (F + correction), lr)

        z = cohort.scan(step, m.z, steps)
        new = c_k - m.c + (m.z - z) / (steps * lr)  # eq. (6)
        return Up(z, new - c_k), new
