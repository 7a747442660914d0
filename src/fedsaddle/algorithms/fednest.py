"""FEDNEST for min-max problems: inner loops for y and an outer loop for x, both with SVRG-like corrections.

Tarzanagh, Li, Thrampoulidis, Oymak 2022. For a min-max problem no implicit hypergradient is needed.

    paper            | here
    -----------------+------------------------------------------------------------
    alpha, beta      | lr, lr_dual: of a whole loop; a local step is 1/local_steps of it
    tau              | local_steps
    T                | inner_loops (FEDINN), then one FEDOUT
    q, h             | mean over the participants of the full local gradients
    LFedNest         | corrected=False

What was verified: the form of the local step is that of the public code; the rest is recalled. It agrees with a NumPy
version written apart from it, is alternating descent ascent with one local step, and reaches the exact saddle of
heterogeneous quadratics with ten (LFedNest stops at a bias).

    FEDINN:  y_i <- y_i + (beta / tau) (grad_y f_i(x, y_i; xi) - grad_y f_i(x, y; xi) + q),  then the mean
    FEDOUT:  x_i <- x_i - (alpha / tau) (grad_x f_i(x_i, y+; xi) - grad_x f_i(x, y+; xi) + h),  then the mean
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Once
from fedsaddle.problem import Batch, Problem


class State(NamedTuple):
    z: Tensor  # [1, d]
    loops: int  # done so far


class Down(NamedTuple):
    z: Any  # once a loop
    mean: Tensor | None  # q or h [1, n_y] or [1, n_x]


@dataclass(frozen=True)
class FedNest(Algorithm):
    """FEDNEST: in a round, y takes `inner_loops` corrected loops of local ascent, then x one of local descent.

    Args:
        lr, lr_dual: alpha and beta, step sizes of a whole loop of x and of y; lr_dual None: the same.
        local_steps: into how many steps a loop is divided.
        inner_loops: T.
        corrected: False drops the corrections (LFedNest), and half of the phases.
    """

    lr: float = 0.01
    lr_dual: float | None = None
    local_steps: int = 10
    inner_loops: int = 1
    corrected: bool = True

    cites = Citation(
        "tarzanagh2022fednest",
        "Tarzanagh, Davoud Ataee and Li, Mingchen and Thrampoulidis, Christos and Oymak, Samet",
        "FedNest: Federated Bilevel, Minimax, and Compositional Optimization",
        "ICML",
        2022,
    )

    def __post_init__(self) -> None:
        self._require_positive("lr", "local_steps", "inner_loops", "lr_dual")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if problem.n_y == 0:
            raise FedsaddleError(
                f"FedNest: {type(problem).__name__} has no dual variable to nest; use FedAvg or SCAFFOLD"
            )

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z, 0)

    def round(self, s: State, clients: Clients) -> State:
        z, n_x, loop = s.z, clients.problem.n_x, s.loops
        for _ in range(self.inner_loops):  # FEDINN
            y = self._loop(z, loop, clients, self.inner_gradients, self.inner_steps)
            z, loop = torch.cat([z[..., :n_x], y], dim=-1), loop + 1
        x = self._loop(z, loop, clients, self.outer_gradients, self.outer_steps)  # FEDOUT
        z = torch.cat([x, z[..., n_x:]], dim=-1)
        return State(clients.problem.prox(z, lr=0.0), loop + 1)

    def _loop(self, z: Tensor, loop: int, clients: Clients, gradients: Any, steps: Any) -> Tensor:
        """Two phases: the mean gradient, then corrected local steps from the same point, which is sent once."""
        point, mean = Once(z, version=loop, name="point"), None
        if self.corrected:
            (mean,), _ = clients.mean(gradients, Down(point, None))
        reply, _ = clients.mean(steps, Down(point, mean))
        moved: Tensor = reply[0]
        return moved

    # ---- clients: the y block, then the x block -------------------------------------------------------------

    def inner_gradients(self, cohort: Cohort, m: Down) -> tuple[tuple[Tensor], None]:
        return (self._full(cohort, m)[..., cohort.problem.n_x :],), None

    def outer_gradients(self, cohort: Cohort, m: Down) -> tuple[tuple[Tensor], None]:
        return (self._full(cohort, m)[..., : cohort.problem.n_x],), None

    def inner_steps(self, cohort: Cohort, m: Down) -> tuple[tuple[Tensor], None]:
        lr = self.lr if self.lr_dual is None else self.lr_dual
        return (self._moved(cohort, m, slice(cohort.problem.n_x, None), lr),), None

    def outer_steps(self, cohort: Cohort, m: Down) -> tuple[tuple[Tensor], None]:
        return (self._moved(cohort, m, slice(0, cohort.problem.n_x), self.lr),), None

    @staticmethod
    def _full(cohort: Cohort, m: Down) -> Tensor:
        return cohort.full_field(cohort.each(m.z))

    def _moved(self, cohort: Cohort, m: Down, block: slice, lr: float) -> Tensor:
        """Local steps of one block of z; the field's signs make ascent in y and descent in x one line."""
        z, step_lr = cohort.each(m.z), lr / self.local_steps

        def step(part: Tensor, batch: Batch) -> Tensor:
            F = cohort.field(self._with(z, part, block), batch)[..., block]
            if m.mean is not None:
                F = F - cohort.field(z, batch)[..., block] + m.mean
            return cohort.prox(self._with(z, part - step_lr * F, block), step_lr)[..., block]

        moved: Tensor = cohort.scan(step, z[..., block], self.local_steps)
        return moved

    @staticmethod
    def _with(z: Tensor, part: Tensor, block: slice) -> Tensor:
        """z with one block replaced."""
        if block.start:
            return torch.cat([z[..., : block.start], part], dim=-1)
        return torch.cat([part, z[..., block.stop :]], dim=-1)
