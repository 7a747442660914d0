"""Local descent ascent, refined: Momentum Local SGDA, Fed-Norm-SGDA, FedSGDA+ and FedSGDA-M.

Momentum Local SGDA: Sharma et al. 2022. Fed-Norm-SGDA: Sharma et al. 2023. FedSGDA+ and FedSGDA-M: Wu et al. 2023.

    paper                     | here
    --------------------------+--------------------------------------------------
    x, y                      | z = (x, y), field F = (grad_x f, -grad_y f)
    eta_x, eta_y              | lr, lr_dual (None: the same)
    d_x, d_y (momentum)       | d: directions, with the field's signs
    alpha, beta_x, beta_y     | mixing, momentum, momentum_dual
    G_{x,i}, G_{y,i}, gamma   | G: normalised mean field; server_lr times the client's step
    tau_i, tau_eff            | own number of steps, their mean over the participants
    v, w (FedSGDA-M)          | v: STORM directions of both variables

What was verified. The papers were not at hand: FedSGDA+ is written from its public code, the equations of the others are
recalled. Each agrees with a NumPy version written apart from it, also with an l1 term, and reaches the saddle of quadratics
with one local step. Fed-Norm-SGDA with equal steps and FedSGDA+ with one step and a fresh snapshot are Local SGDA; so is the
momentum method with momentum 1, in its first round or on one client; FedSGDA-M with alpha 1 is that momentum method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Control, Once
from fedsaddle.problem import Batch, Problem

WU_2023 = Citation(
    "wu2023solving",
    "Wu, Xidong and Sun, Jianhui and Hu, Zhengmian and Zhang, Aidong and Huang, Heng",
    "Solving a Class of Non-Convex Minimax Optimization in Federated Learning",
    "NeurIPS",
    2023,
)


@dataclass(frozen=True)
class LocalMinimax(Algorithm):
    """What the four share: step sizes and local steps."""

    lr: float = 0.01
    lr_dual: float | None = None
    local_steps: int = 10

    def __post_init__(self) -> None:
        self._require_positive("lr", "local_steps", "lr_dual")

    def _lr(self, cohort: Cohort) -> float | Tensor:
        return cohort.per_variable(x=self.lr, y=self.lr if self.lr_dual is None else self.lr_dual)


class Directed(NamedTuple):
    z: Tensor  # [1, d]
    d: Tensor | None  # direction [1, d]; None before the first round


@dataclass(frozen=True)
class MomentumLocalSGDA(LocalMinimax):
    """Local SGDA along moving averages of the gradients, which travel with the iterates.

        z <- z - mixing lr d,   d <- (1 - momentum mixing) d + momentum mixing F(z; xi)

    Args:
        lr, lr_dual: step sizes of x and of y.
        local_steps: steps between two communications.
        mixing: a in (0, 1].
        momentum, momentum_dual: b_x and b_y, at most 1/a; the second like the first if None.
    """

    mixing: float = 1.0
    momentum: float = 0.5
    momentum_dual: float | None = None

    cites = Citation(
        "sharma2022federated",
        "Sharma, Pranay and Panda, Rohan and Joshi, Gauri and Varshney, Pramod K.",
        "Federated Minimax Optimization: Improved Convergence Analyses and Algorithms",
        "ICML",
        2022,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("mixing", "momentum", "momentum_dual")
        if self.mixing > 1:
            raise FedsaddleError(f"MomentumLocalSGDA: mixing must be at most 1, got {self.mixing}")
        for name in ("momentum", "momentum_dual"):
            if (b := getattr(self, name) or 0.0) * self.mixing > 1 + 1e-12:  # 1/a may be rounded up
                raise FedsaddleError(
                    f"MomentumLocalSGDA: {name} times mixing must be at most 1, got {b} times {self.mixing}; lower one"
                )

    def init(self, z: Tensor, problem: Problem) -> Directed:
        return Directed(z, None)

    def round(self, s: Directed, clients: Clients) -> Directed:
        mean, _ = clients.mean(self.averaged_steps, s)
        return Directed(clients.problem.prox(mean.z, lr=0.0), mean.d)

    def averaged_steps(self, cohort: Cohort, s: Directed) -> tuple[Directed, None]:
        lr, a = self._lr(cohort), self.mixing
        dual = self.momentum if self.momentum_dual is None else self.momentum_dual
        b = cohort.per_variable(x=self.momentum, y=dual)

        def step(carry: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
            z, d = carry
            z = cohort.prox(z - a * lr * d, a * lr)
            return z, (1 - b * a) * d + b * a * cohort.field(z, batch)

        d = _first_direction(cohort, s)
        return Directed(*cohort.scan(step, (s.z, d), self.local_steps)), None


def _first_direction(cohort: Cohort, s: Directed) -> Tensor:
    """The server's direction; in the first round the field on a minibatch of its own."""
    if s.d is not None:
        return s.d
    first: Tensor = cohort.scan(lambda d, batch: cohort.field(s.z, batch), torch.zeros_like(s.z), 1)
    return first


@dataclass(frozen=True)
class FedSGDAM(LocalMinimax):
    """FedSGDA-M: STORM directions on each client, averaged with the iterates.

        z+ = z - lr v,   v <- F(z+; xi) + (1 - alpha) (v - F(z; xi))

    Args:
        lr, lr_dual: step sizes of x and of y.
        local_steps: steps between two communications.
        alpha: how much of the direction is renewed in a step; 1 keeps nothing.
    """

    alpha: float = 0.5

    cites = WU_2023

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("alpha")
        if self.alpha > 1:
            raise FedsaddleError(f"FedSGDAM: alpha must be at most 1, got {self.alpha}")

    def init(self, z: Tensor, problem: Problem) -> Directed:
        return Directed(z, None)

    def round(self, s: Directed, clients: Clients) -> Directed:
        mean, _ = clients.mean(self.storm_steps, s)
        return Directed(clients.problem.prox(mean.z, lr=0.0), mean.d)

    def storm_steps(self, cohort: Cohort, s: Directed) -> tuple[Directed, None]:
        lr = self._lr(cohort)

        def step(carry: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
            z, v = carry
            new = cohort.prox(z - lr * v, lr)
            return new, cohort.field(new, batch) + (1 - self.alpha) * (v - cohort.field(z, batch))

        v = _first_direction(cohort, s)
        return Directed(*cohort.scan(step, (s.z, v), self.local_steps)), None


class Iterate(NamedTuple):
    z: Tensor  # [1, d]


class Normalised(NamedTuple):
    G: Tensor  # mean field along the client's way [S, d], by its weight
    steps: Tensor | None  # how many they were [S, 1], where clients differ


class NormDown(NamedTuple):
    z: Tensor
    size: Any  # mean number of samples of a client, where they are weights


@dataclass(frozen=True)
class FedNormSGDA(LocalMinimax):
    """Fed-Norm-SGDA: clients take unequal numbers of steps, and send the mean of their fields along the way.

        z <- z - tau_eff server_lr lr sum_i w_i G_i

    so that a client that takes more steps has no more say. With equal numbers (and without a prox) it is Local SGDA.

    Args:
        lr, lr_dual: step sizes of x and of y.
        local_steps: of every client; not used with local_epochs.
        local_epochs: passes over a client's own samples: ceil(n_i / B) steps each.
        server_lr: gamma over the client's step.
        weights: every client counts equally ("clients") or by its samples.
    """

    local_epochs: int | None = None
    server_lr: float = 1.0
    weights: Literal["clients", "samples"] = "clients"

    weighs_replies: ClassVar[bool] = False
    cites = Citation(
        "sharma2023federated",
        "Sharma, Pranay and Panda, Rohan and Joshi, Gauri",
        "Federated Minimax Optimization with Client Heterogeneity",
        "TMLR",
        2023,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("server_lr", "local_epochs")
        self._require_weights()

    def init(self, z: Tensor, problem: Problem) -> Iterate:
        return Iterate(z)

    def round(self, s: Iterate, clients: Clients) -> Iterate:
        by_size = self.weights == "samples"
        size = Control.of(float(clients.sizes.double().mean()), s.z) if by_size else None
        mean, _ = clients.mean(self.normalised_steps, NormDown(s.z, size))
        tau = float(self.local_steps) if mean.steps is None else mean.steps  # tau_eff
        lr: Any = self.lr
        way, n_x, one = tau * self.server_lr * mean.G, clients.problem.n_x, torch.ones_like(s.z)
        if self.lr_dual is not None:
            lr = torch.cat([self.lr * one[..., :n_x], self.lr_dual * one[..., n_x:]], dim=-1)
        z = s.z - lr * way
        return Iterate(clients.problem.prox(z, tau * self.server_lr * lr))

    def normalised_steps(self, cohort: Cohort, m: NormDown) -> tuple[Normalised, None]:
        lr = self._lr(cohort)
        steps, most = torch.full_like(cohort.sizes, self.local_steps).unsqueeze(-1), self.local_steps
        if self.local_epochs is not None:
            once, longest = cohort.epoch()
            steps, most = self.local_epochs * once, self.local_epochs * longest

        def step(carry: tuple[Tensor, Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            z, total, done = carry
            F = cohort.field(z, batch)
            going = done < steps
            new = torch.where(going, cohort.prox(z - lr * F, lr), z)
            return new, total + torch.where(going, F, 0.0), done + 1

        zero = torch.zeros_like(m.z)
        _, total, _ = cohort.scan(step, (m.z, zero, zero[..., :1]), most)
        own = steps.to(total)
        G = total / own
        if m.size is not None:
            G = G * cohort.sizes.unsqueeze(-1).to(G) / m.size  # N w_i
        return Normalised(G, own if self.local_epochs is not None else None), None


class PlusState(NamedTuple):
    z: Tensor  # [1, d]
    snapshot: Tensor  # x of the last refresh [1, n_x]
    round: int


class PlusDown(NamedTuple):
    z: Tensor
    snapshot: Any  # sent once after each refresh


@dataclass(frozen=True)
class FedSGDAPlus(LocalMinimax):
    """FedSGDA+: y ascends at a snapshot of x, which is renewed every few rounds; the server steps towards the means.

    Args:
        lr, lr_dual: step sizes of x and of y.
        local_steps: steps between two communications.
        refresh: rounds between two snapshots.
        server_lr: the server's step; 1 is Local SGDA+.
    """

    refresh: int = 5
    server_lr: float = 1.0

    cites = WU_2023

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("refresh", "server_lr")

    def init(self, z: Tensor, problem: Problem) -> PlusState:
        return PlusState(z, z[..., : problem.n_x], 0)

    def round(self, s: PlusState, clients: Clients) -> PlusState:
        fresh = s.round % self.refresh == 0
        snapshot = s.z[..., : clients.problem.n_x] if fresh else s.snapshot
        held = Once(snapshot, version=s.round // self.refresh)
        mean, _ = clients.mean(self.snapshot_steps, PlusDown(s.z, held))
        z = clients.problem.prox(s.z + self.server_lr * (mean.z - s.z), lr=0.0)
        return PlusState(z, snapshot, s.round + 1)

    def snapshot_steps(self, cohort: Cohort, m: PlusDown) -> tuple[Iterate, None]:
        lr, n_x = self._lr(cohort), cohort.problem.n_x
        snapshot = cohort.each(m.snapshot)

        def step(z: Tensor, batch: Batch) -> Tensor:
            at_snapshot = torch.cat([snapshot, z[..., n_x:]], dim=-1)
            F_x, F_y = cohort.field(z, batch)[..., :n_x], cohort.field(at_snapshot, batch)[..., n_x:]
            return cohort.prox(z - lr * torch.cat([F_x, F_y], dim=-1), lr)

        return Iterate(cohort.scan(step, m.z, self.local_steps)), None
