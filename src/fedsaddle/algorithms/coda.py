"""NPA, CODA and CODA+: stagewise federated AUC maximisation without drift correction.

CODA+ and NPA: Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant
Communication Complexity", ICML 2021, Algorithms 1 and 2 and appendix C. CODA: Guo et al., ICML 2020.

    paper                | here
    ---------------------+--------------------------------------------------------------
    v = (w, a, b), alpha | z = (v, alpha), field F = (grad_v f, -grad_alpha f)
    K clients, k         | N clients, row k of every [S, d] tensor
    eta_s, I_s, T_s      | lr_at(s), steps_at(s), rounds_at(s) * steps_at(s)
    gamma, v_0           | gamma, v_ref

Deviations (E3.*: docs/mathematics.md): gamma is the coefficient of gamma/2 ||v - v_ref||^2 (E3.1). T_s is given in rounds.
Under partial participation "iterates" averages over the clients of the stage's last round, each by the number of its local
iterates.
With weights="samples" (not in the papers) the objective is sum_k (n_k/n) F_k: means of iterates, and of CODA's class means,
are over the participants, by their samples. With some of the clients a round that is a ratio estimate, biased towards equal
weights (one participant has weight 1, whatever its size); under cyclic participation groups still count equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Citation
from fedsaddle.algorithms.stages import Progress, ProximalStages
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Once
from fedsaddle.problem import Batch, Problem

YUAN_2021 = Citation(
    "yuan2021federated",
    "Yuan, Zhuoning and Guo, Zhishuai and Xu, Yi and Ying, Yiming and Yang, Tianbao",
    "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication Complexity",
    "ICML",
    2021,
)


class State(NamedTuple):
    z: Tensor  # server iterate [1, d]
    v_ref: Tensor  # prox centre, the stage's start [1, n_x]
    progress: Progress


class Down(NamedTuple):
    z: Tensor
    v_ref: Any  # sent once a stage
    stage: int
    last: bool  # the stage ends with this round


class IterateSum(NamedTuple):
    """What a client remembers: the sum of its local iterates in this stage."""

    total: Tensor  # [1, d]
    steps: Tensor  # how many [1, 1]


class Up(NamedTuple):
    z: Tensor
    sums: IterateSum | None  # with the last message of a stage


@dataclass(frozen=True)
class CODAPlus(ProximalStages):
    """CODA+: local SGDA on a proximal subproblem, stage by stage.

    Without `gamma` and `stage_rounds` there is one stage and no proximal term: it is then Local SGDA.

    Args:
        weights: clients count equally in the objective ("clients", the papers) or by their sample counts ("samples"), so
            that the objective is that of the pooled samples; for AUC take p="pooled" with it.
    """

    output: str = "iterates"
    weights: Literal["clients", "samples"] = "clients"

    cites = YUAN_2021

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_weights()

    @classmethod
    def outputs(cls) -> tuple[str, ...]:
        return ("iterates", "rounds", "random", "last")

    @property
    def _sums(self) -> bool:
        return self.output == "iterates" and self.stage_rounds is not None

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z, z[..., : problem.n_x], Progress.start(z))

    def memory(self, z: Tensor, problem: Problem) -> IterateSum | None:
        return IterateSum(torch.zeros_like(z), torch.zeros_like(z[..., :1])) if self._sums else None

    def round(self, s: State, clients: Clients) -> State:
        stage, done = s.progress.stage, s.progress.done
        v_ref = Once(s.v_ref, version=stage) if self.proximal else None
        last = self._sums and done + 1 == self.rounds_at(stage)
        mean, _ = clients.mean(self.proximal_steps, Down(s.z, v_ref, stage, last), weights=self.weights)
        z, progress, ended = self.advance(s.progress, mean.z, clients)
        if not ended:
            return State(z, s.v_ref, progress)
        if self.output == "iterates":
            z = mean.sums.total / mean.sums.steps  # Algorithm 2, Return
            clients.forget()
        z = self.stage_end(z, stage, clients)
        return State(z, z[..., : clients.problem.n_x], progress)

    def proximal_steps(self, cohort: Cohort, m: Down) -> tuple[Up, IterateSum | None]:
        """Algorithm 2, the loop between two communications."""
        lr, steps = cohort.number(self.lr_at(m.stage)), self.steps_at(m.stage)
        gamma = cohort.per_variable(x=self.gamma, y=0.0)
        v_ref = cohort.pad(m.v_ref) if self.proximal else m.z

        def step(z: Tensor, batch: Batch) -> Tensor:
            F = cohort.field(z, batch)
            if self.proximal:
                F = F + gamma * (z - v_ref)
            return cohort.prox(z - lr * F, lr)

        def summing_step(carry: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
            z = step(carry[0], batch)
            return z, carry[1] + z

        if not self._sums:
            return Up(cohort.scan(step, m.z, steps), None), None
        z, total = cohort.scan(summing_step, (m.z, cohort.memory.total), steps)
        sums = IterateSum(total, cohort.memory.steps + steps)
        return Up(z, sums if m.last else None), sums

    def stage_end(self, z: Tensor, stage: int, clients: Clients) -> Tensor:
        """CODA+ inherits the dual variable from stage to stage."""
        return z


@dataclass(frozen=True)
class NPA(CODAPlus):
    """Naive parallel algorithm: CODA+ that communicates after every step (appendix C)."""

    local_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps != 1 or self.interval_growth != 1.0:
            raise FedsaddleError(
                f"NPA: local_steps must be 1 and interval_growth 1.0, got {self.local_steps} and "
                f"{self.interval_growth}; use CODAPlus for more local steps"
            )


@dataclass(frozen=True)
class CODA(CODAPlus):
    """CODA: as CODA+, but each stage's dual variable is recomputed from its primal on fresh samples.

    Args:
        dual_samples: samples a client draws for it.

    One more phase a stage: v down, four numbers up (score sums and counts of both classes, so that clients with one class
    contribute the half that they have). With both classes everywhere it is alpha = mean_k (E_k[h|-] - E_k[h|+]).
    """

    dual_samples: int = 256

    cites = Citation(
        "guo2020communication",
        "Guo, Zhishuai and Liu, Mingrui and Yuan, Zhuoning and Shen, Li and Liu, Wei and Yang, Tianbao",
        "Communication-Efficient Distributed Stochastic AUC Maximization with Deep Neural Networks",
        "ICML",
        2020,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("dual_samples")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if not problem.has_dual_statistics:
            raise FedsaddleError(
                f"CODA: recomputes the dual variable in closed form, which {type(problem).__name__} does not have; "
                "use AUC, or CODAPlus, which needs no closed form"
            )

    def stage_end(self, z: Tensor, stage: int, clients: Clients) -> Tensor:
        v, alpha = z.split((clients.problem.n_x, clients.problem.n_y), dim=-1)
        ids, statistics = clients.gather(self.fresh_statistics, (v,))
        weights = clients.size_weights[ids].unsqueeze(-1).to(v) if self.weights == "samples" else None
        new = clients.problem.dual_from(statistics, weights)
        return torch.cat(
            [v, torch.where(new.isfinite(), new, alpha)], dim=-1
        )  # unknown when a class was not drawn

    def fresh_statistics(self, cohort: Cohort, m: tuple[Tensor]) -> tuple[Any, None]:
        batch = cohort.batch(self.dual_samples)
        return cohort.apply(cohort.problem.dual_statistics, cohort.pad(m[0]), batch), None
