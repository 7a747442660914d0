"""Local steps, then averaging: Local SGDA, FedAvg, FedProx and SCAFFOLD.

Local SGDA: Deng and Mahdavi 2021. FedAvg: McMahan et al. 2017. FedProx: Li et al. 2020. SCAFFOLD: Karimireddy et al. 2020.

    paper                  | here
    -----------------------+-----------------------------------------------
    x, y                   | z = (x, y), field F = (grad_x f, -grad_y f)
    eta_l (eta_x, eta_y)   | lr (lr_dual for y)
    eta_g                  | server_lr
    K, tau or I            | local_steps
    mu (FedProx)           | mu
    c_i, c (SCAFFOLD)      | c_k, c: client and server control variates

Deviations: all methods take steps with the saddle field, so SCAFFOLD serves min-max problems too; on a problem without a
dual variable it is the published method. Where the problem has a proximal step or projection, it follows every local step,
and the server's step is projected (a prox of step 0).
With weights="samples" (FedAvg's own; not in the papers of Local SGDA and SCAFFOLD) the objective is sum_k (n_k/n) f_k. The
server's mean is over the participants, by their samples. With some of the clients a round that is a ratio estimate, biased
towards equal weights (one participant has weight 1, whatever its size); with all of them it is exact. SCAFFOLD's c stays
sum_k (n_k/n) c_k of all N, and its clients step along the weighted field, so that this bias is not in its fixed point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.problem import Batch, Problem


class State(NamedTuple):
    z: Tensor  # server iterate [1, d]


@dataclass(frozen=True)
class LocalSGDA(Algorithm):
    """Local stochastic gradient descent ascent: x <- x - lr g_x, y <- y + lr_dual g_y for some steps, then plain means.

    Args:
        lr: local step size of x.
        lr_dual: local step size of y; None: the same as lr.
        local_steps: steps between two communications.
        server_lr: the server moves this far from its iterate towards the mean.
        weights: clients count equally in the objective ("clients") or by their sample counts ("samples").
    """

    lr: float = 0.01
    lr_dual: float | None = None
    local_steps: int = 10
    server_lr: float = 1.0
    weights: Literal["clients", "samples"] = "clients"

    cites = Citation(
        "deng2021local",
        "Deng, Yuyang and Mahdavi, Mehrdad",
        "Local Stochastic Gradient Descent Ascent: Convergence Analysis and Communication Efficiency",
        "AISTATS",
        2021,
    )

    def __post_init__(self) -> None:
        self._require_positive("lr", "local_steps", "server_lr", "lr_dual")
        self._require_weights()

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z)

    def round(self, s: State, clients: Clients) -> State:
        mean, _ = clients.mean(self.local_descent_ascent, s, weights=self.weights)
        z = s.z + self.server_lr * (mean.z - s.z)
        return State(clients.problem.prox(z, lr=0.0))

    def local_descent_ascent(self, cohort: Cohort, s: State) -> tuple[State, None]:
        lr = cohort.per_variable(x=self.lr, y=self.lr if self.lr_dual is None else self.lr_dual)

        def step(z: Tensor, batch: Batch) -> Tensor:
            return cohort.prox(z - lr * (cohort.field(z, batch) + self.pull(z, s)), lr)

        return State(cohort.scan(step, s.z, self.local_steps)), None

    def pull(self, z: Tensor, s: State) -> Tensor | float:
        """What is added to the local field."""
        return 0.0


@dataclass(frozen=True)
class FedAvg(LocalSGDA):
    """Federated averaging: local SGD steps on the training loss, then the mean of the models. For the problem ERM."""

    cites = Citation(
        "mcmahan2017communication",
        "McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and {Agüera y Arcas}, Blaise",
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "AISTATS",
        2017,
    )

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if problem.n_y:
            raise FedsaddleError(
                f"{type(self).__name__}: minimises a loss, but {type(problem).__name__} has {problem.n_y} dual "
                "variable(s); use LocalSGDA (local_sgda), or pose the problem as ERM (erm)"
            )


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose local objective has the term mu/2 ||x - x_r||^2, which ties clients to the server's iterate.

    Args:
        mu: strength of the tie; 0 is FedAvg.
    """

    mu: float = 0.01

    cites = Citation(
        "li2020federated",
        "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and Smith, Virginia",
        "Federated Optimization in Heterogeneous Networks",
        "MLSys",
        2020,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_nonnegative("mu")

    def pull(self, z: Tensor, s: State) -> Tensor:
        return self.mu * (z - s.z)


class VariateState(NamedTuple):
    z: Tensor  # server iterate [1, d]
    c: Tensor  # server control variate [1, d]: the mean of all N clients' c_k, by `weights`


class VariateReply(NamedTuple):
    z: Tensor  # y_i, where the local steps ended
    dc: Tensor  # c_i^+ - c_i


@dataclass(frozen=True)
class SCAFFOLD(Algorithm):
    """Local steps corrected by control variates, so that clients with different data do not drift apart.

    Args:
        lr: local step size eta_l.
        server_lr: server step size eta_g.
        local_steps: K.
        weights: clients count equally in the objective ("clients") or by their sample counts ("samples").
    """

    lr: float = 0.01
    server_lr: float = 1.0
    local_steps: int = 10
    weights: Literal["clients", "samples"] = "clients"

    of_all: ClassVar[bool] = True
    cites = Citation(
        "karimireddy2020scaffold",
        "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and Stich, Sebastian and "
        "Suresh, Ananda Theertha",
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        "ICML",
        2020,
    )

    def __post_init__(self) -> None:
        self._require_positive("lr", "server_lr", "local_steps")
        self._require_weights()

    def init(self, z: Tensor, problem: Problem) -> VariateState:
        return VariateState(z, torch.zeros_like(z))

    def memory(self, z: Tensor, problem: Problem) -> Tensor:
        return torch.zeros_like(z)  # c_i

    def round(self, s: VariateState, clients: Clients) -> VariateState:
        mean, share = clients.mean(self.corrected_steps, s, weights=self.weights)
        z = s.z + self.server_lr * (mean.z - s.z)  # x <- x + eta_g mean(y_i - x)
        c = s.c + share * mean.dc  # c <- c + (1/N) sum over participants of (c_i^+ - c_i); p_i for 1/N
        return VariateState(clients.problem.prox(z, lr=0.0), c)

    def corrected_steps(self, cohort: Cohort, s: VariateState) -> tuple[VariateReply, Tensor]:
        c_k = cohort.memory

        def step(z: Tensor, batch: Batch) -> Tensor:
            return cohort.prox(z - self.lr * (cohort.field(z, batch) - c_k + s.c), self.lr)

        z = cohort.scan(step, s.z, self.local_steps)
        new = c_k - s.c + (s.z - z) / (self.local_steps * self.lr)  # option II
        return VariateReply(z, new - c_k), new
