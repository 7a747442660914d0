"""AUC maximisation with the square surrogate, as a min-max problem (Ying et al. 2016; CODASCA eq. (2), CyCp eq. (4)).

    paper        | here
    -------------+--------------------------------------------------------
    h(w; x)      | score: the model's one output
    v = (w,a,b)  | x: the model's parameters, then a, then b
    alpha        | y: one dual variable (margin mode: A = 1 + alpha)
    p            | p: positive ratio, the same constant on every client
    phi(v)       | max over alpha of f, in closed form (`optimal_dual`)

    F = (1-p)(h-a)^2 1+  +  p(h-b)^2 1-  +  2(1+alpha)(p h 1- - (1-p) h 1+)  -  p(1-p) alpha^2

Deviations: p is a global constant found by one set-up exchange of two integers a client (docs/mathematics.md). It must be
the positive ratio of the mixture of clients that the rounds go down; then F is the pairwise square loss of that mixture, and
alpha the difference of its class means. By default it is the mean of the clients' ratios, each weighed as in a long run:
equally, but for cyclic participation, where groups weigh equally (CyCp eq. (4)), so that the members of a small one count
more. Where the algorithm weighs clients by their samples (weights="samples"), "pooled" is the ratio. With another p a model
that has a bias collapses: f then has its lowest phi where all scores are one constant (with `dual="margin"` all scores drift
together without an end instead). A run warns of it where it can tell.
`dual="margin"` is the form of the public CODASCA and LibAUC code, whose dual step is not the gradient of F: it uses a and
b in place of the class means and drops the factor p(1-p).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsaddle import metrics
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError, warn
from fedsaddle.federation import Federation
from fedsaddle.metrics import Evaluation, Split
from fedsaddle.problem import Batch, Data, ModelProblem

_LARGEST_DUAL = 999.0  # the public code's upper bound on A


_SAME_RATIO = 0.01  # of the rarer class: how far p may be off, for numbers that users have rounded


class ClassSums(NamedTuple):
    """What the dual variable depends on, per client [S, 1]."""

    pos: Tensor  # sum of positive scores
    n_pos: Tensor
    neg: Tensor
    n_neg: Tensor


@dataclass(frozen=True, eq=False)
class AUC(ModelProblem):
    """Square-surrogate AUC: min over (w, a, b), max over alpha.

    Args:
        model: module with one output, the score.
        p: positive ratio: "client_mean" (mean of the clients' ratios; of the groups' means where groups take turns),
            "pooled" (of all samples), or a number in (0, 1).
        dual: "gradient" (the papers) or "margin" (the public code).
        margin: m of the margin mode.
        positive: index of the class that counts as positive (federation.classes[positive]); all others are negative.
        monitors: whether an evaluation also goes over the training data, for phi, its gradient, the dual's distance from its
            optimum and, where clients own no test data, their AUC. With a large network that may take longer than training.

    Example:
        >>> import fedsaddle as fs, torch
        >>> problem = fs.AUC(torch.nn.Linear(30, 1), p=0.1)
        >>> problem.n_x, problem.n_y
        (33, 1)
    """

    p: float | Literal["client_mean", "pooled"] = "client_mean"
    dual: Literal["gradient", "margin"] = "gradient"
    margin: float = 1.0
    positive: int = 1
    monitors: bool = True

    _ratio: ClassVar[Tensor | None] = None  # p for compiled steps [1, 1], see `in_tensors`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual not in ("gradient", "margin"):
            raise FedsaddleError(f"AUC: dual must be 'gradient' or 'margin', got {self.dual!r}")
        if isinstance(self.p, str):
            if self.p not in ("client_mean", "pooled"):
                raise FedsaddleError(f"AUC: p must be 'client_mean', 'pooled' or a number, got {self.p!r}")
        elif not 0.0 < self.p < 1.0:
            raise FedsaddleError(f"AUC: p must be between 0 and 1 (the share of positives), got {self.p}")

    @property
    def n_x(self) -> int:
        return self.flat.n + 2

    @property
    def n_y(self) -> int:
        return 1

    def init(self) -> Tensor:
        return torch.cat([self.flat.initial, self.flat.initial.new_zeros(3)])  # a = b = alpha = 0

    def scores(self, z: Tensor, x: Tensor) -> Tensor:
        """Scores h [..., S, B] at the weights within z [..., S, d]."""
        return self._one_score(self.outputs(z, x))

    @staticmethod
    def _one_score(outputs: Tensor) -> Tensor:
        if outputs.shape[-1] != 1:
            raise FedsaddleError(
                f"AUC: the model must have one output, got {outputs.shape[-1]}; end it in Linear(..., 1)"
            )
        return outputs.squeeze(-1)

    def losses(self, z: Tensor, data: Data) -> Tensor:
        p, h = self._p, self.scores(z, data["x"])
        a_or_b, one_plus, ratio, sign = self._head(z, data)
        # (1-p)(h-a)^2 1+ + p(h-b)^2 1- + 2(1+alpha)(p h 1- - (1-p) h 1+)
        primal = ratio * ((h - a_or_b) ** 2 + 2 * one_plus * sign * h)
        alpha = z[..., -1:]
        if self.dual == "gradient":
            out: Tensor = primal - p * (1 - p) * alpha**2  # eq. (2)
        else:
            out = primal + p * (1 - p) * (2 * alpha * self.margin - alpha**2)  # F_m
        return out

    def _head(self, z: Tensor, data: Data) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What F is made of beside the score: a or b, 1 + alpha, class ratio and sign, each [..., S, B] or [..., S, 1]."""
        a, b, alpha = z[..., -3:-2], z[..., -2:-1], z[..., -1:]
        pos = (data["y"] == self.positive).to(z.dtype)
        ratio = (1 - 2 * self._p) * pos + self._p  # 1-p on positives, p on negatives
        sign = 1 - 2 * pos  # -1 on positives, +1 on negatives
        return b + (a - b) * pos, self._one_plus(alpha), ratio, sign

    def _one_plus(self, alpha: Tensor) -> Tensor:
        """1 + alpha; in margin mode A, which contains the 1."""
        return 1 + alpha if self.dual == "gradient" else alpha

    def field(self, z: Tensor, batch: Batch) -> Tensor:
        """As `Problem.field`; derivatives by h, a, b and alpha are written out, which halves the cost on small models."""
        outputs, pullback = self.flat.with_pullback(z, batch.data["x"])
        # each line is one call where it can be: on small models calls are what a step costs
        h, w, p = self._one_score(outputs), batch.w, self._p
        a, b, alpha = z[..., -3:].split(1, dim=-1)
        pos = (batch.data["y"] == self.positive).to(z.dtype)
        w_pos, w_2p = w * pos, w * (2 * p)
        # 2(1-p) on positives, 2p on negatives
        ratio = (
            w_2p + (2 - 4 * p) * w_pos if isinstance(p, Tensor) else torch.add(w_2p, w_pos, alpha=2 - 4 * p)
        )
        signed = torch.sub(w_2p, w_pos, alpha=2)  # -2(1-p) on positives, 2p on negatives
        residual = ratio * (h - torch.lerp(b, a, pos))
        dw = pullback(torch.addcmul(residual, self._one_plus(alpha), signed).unsqueeze(-1))
        # -dF/da = 2(1-p)(h-a) 1+, -dF/db = 2p(h-b) 1-
        minus_da, both = (residual * pos).sum(-1, keepdim=True), residual.sum(-1, keepdim=True)
        share = w.sum(-1, keepdim=True)  # 1, or what a piece is of all local samples
        if self.dual == "gradient":
            minus_dalpha = 2 * p * (1 - p) * (alpha * share) - (signed * h).sum(-1, keepdim=True)
        else:  # the public code's dual step, not dF/dA
            minus_dalpha = self._margin_step(z) * share
        return torch.cat([dw, -minus_da, minus_da - both, minus_dalpha], dim=-1)

    def _margin_step(self, z: Tensor) -> Tensor:
        return 2 * z[..., -1:] - 2 * (self.margin + z[..., -2:-1] - z[..., -3:-2])

    @property
    def concavity(self) -> float | None:
        p = self._known
        return 2 * p * (1 - p) if self.dual == "gradient" else None

    def prox(self, z: Tensor, lr: float | Tensor) -> Tensor:
        z = super().prox(z, lr)
        return torch.cat([z[..., :-1], self.projected_dual(z)], dim=-1) if self.dual == "margin" else z

    def projected_dual(self, z: Tensor) -> Tensor:
        alpha = z[..., -1:]
        return alpha.clamp(0.0, _LARGEST_DUAL) if self.dual == "margin" else alpha

    # ---- the positive ratio ------------------------------------------------------------------------------

    def in_tensors(self, like: Tensor) -> Self:
        if isinstance(self.p, str):  # not found yet
            return self
        out = copy.copy(self)
        object.__setattr__(out, "_ratio", like.new_full((1, 1), self.p))
        return out

    @property
    def _p(self) -> Any:
        """p in formulas: a number, or a tensor [1, 1]."""
        return self._known if self._ratio is None else self._ratio

    @property
    def _known(self) -> float:
        if isinstance(self.p, str):
            raise FedsaddleError(
                f"AUC: p={self.p!r} is found by a set-up exchange; call prepare(clients), or pass a number"
            )
        return self.p

    def prepare(self, clients: Clients) -> Self:
        if not isinstance(self.p, str):
            if not clients.remote:
                own = clients.federation
                positive = (own.data["y"].cpu() == self.positive).double()
                n_pos = torch.zeros(own.n_clients, dtype=torch.float64).index_add_(0, own.owners, positive)
                self._compare(self.p, n_pos / own.sizes, clients)
            return self
        counts = clients.gather(self.class_counts, None, who=clients.everyone()).replies  # [N, 2]
        n_pos, n = counts.double().cpu().unbind(-1)
        p = _mean(n_pos / n, clients.shares("clients")) if self.p == "client_mean" else n_pos.sum() / n.sum()
        if not 0.0 < p < 1.0:
            which = "positive" if p == 0 else "negative"
            raise FedsaddleError(
                f"AUC: no client has {which} examples (class {self.positive} is positive); AUC needs both classes somewhere"
            )
        self._compare(float(p), n_pos / n, clients)
        return replace(self, p=float(p))

    def _compare(self, p: float, ratios: Tensor, clients: Clients) -> None:
        """Warn of a p that is not the positive ratio of the mixture that the run goes down: scores collapse or drift."""
        if clients.algorithm is None or not clients.writes:
            return
        scheme = clients.participation
        if not clients.algorithm.of_all and scheme.shares(clients.n_clients, clients.seeds[0]) is None:
            return  # nobody knows the mixture
        pi, sizes = float(_mean(ratios, clients.shares())), clients.size_weights
        if pi in (0.0, 1.0) or abs(p - pi) <= _SAME_RATIO * min(pi, 1 - pi):
            return
        pooled = float(ratios @ sizes / sizes.sum())
        names = {"client_mean": float(_mean(ratios, clients.shares("clients"))), "pooled": pooled}
        remedy = next((f"'{name}'" for name, value in names.items() if abs(value - pi) < 1e-12), f"{pi:.6g}")
        said = f"'{self.p}' ({p:.4g})" if isinstance(self.p, str) else f"{p:.4g}"
        fate = "drift together without an end" if self.dual == "margin" else "collapse to one constant"
        warn(
            f"{type(clients.algorithm).__name__}: p = {said} is not the positive ratio {pi:.4g} of the mixture of clients "
            f"that this run goes down (by their weights and participation), so the scores of a model with a bias {fate}; "
            f"use p = {remedy}"
        )

    def class_counts(self, cohort: Cohort, message: None) -> tuple[Tensor, None]:
        """Client work of the set-up phase: (positives, samples) [S, 2]."""
        ratio = cohort.full_mean(lambda data: data["y"] == self.positive)
        n = cohort.sizes.unsqueeze(-1)
        return torch.cat([(ratio * n).round(), n.to(ratio)], dim=-1), None

    def check(self, federation: Federation) -> None:
        super().check(federation)
        metrics.check_positive("AUC", self.positive, federation)

    # ---- closed forms ------------------------------------------------------------------------------------

    @property
    def has_dual_statistics(self) -> bool:
        return True

    def dual_statistics(self, z: Tensor, batch: Batch) -> ClassSums:
        """Sums of scores and counts of each class over a minibatch, from which the dual follows."""
        h, pos = self.scores(z, batch.data["x"]), batch.data["y"] == self.positive
        present = batch.w > 0

        def total(values: Any, mask: Tensor) -> Tensor:
            return torch.where(mask & present, values, 0.0).sum(-1, keepdim=True)

        one = torch.ones_like(h)
        return ClassSums(total(h, pos), total(one, pos), total(h, ~pos), total(one, ~pos))

    def dual_from(self, statistics: ClassSums, weights: Tensor | None = None) -> Tensor:
        """alpha = E[h|-] - E[h|+]: [1, 1]; NaN if a class is nowhere.

        Without weights each is averaged over the clients that own the class. With them it is that of the mixture in which
        a client has its weight, so its weight in a class is in proportion to its share of that class.
        """
        s = statistics

        def mean(total: Tensor, n: Tensor) -> Tensor:
            share = (n > 0).to(n) if weights is None else weights * n / (s.n_pos + s.n_neg).clamp(min=1)
            return (share * total / n.clamp(min=1)).sum(-2, keepdim=True) / share.sum(-2, keepdim=True)

        alpha = mean(s.neg, s.n_neg) - mean(s.pos, s.n_pos)
        return alpha if self.dual == "gradient" else (self.margin + alpha).clamp(0.0, _LARGEST_DUAL)

    def coupling(self, z: Tensor, data: Data) -> Tensor:
        """Per-sample p h 1- - (1-p) h 1+, whose mean is X(w): [..., S, B]."""
        h = self.scores(z, data["x"])
        return torch.where(data["y"] == self.positive, (self._p - 1) * h, self._p * h)

    def optimal_dual(self, x_mean: Tensor) -> Tensor:
        """alpha* = X / (p(1-p)), which maximises f for any v; in margin mode A* of F_m."""
        p = self._known
        if self.dual == "gradient":
            return x_mean / (p * (1 - p))
        return (self.margin + x_mean / (p * (1 - p))).clamp(0.0, _LARGEST_DUAL)

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        ranks = metrics.ranking(self, z, splits, self.positive, training=self.monitors)
        train = splits["train"]
        if not self.monitors:
            return list(starmap(Evaluation, ranks))
        with torch.no_grad():
            parts = [
                self.at_each(z, b, lambda z, b: (self.coupling(z, b.data) * b.w).sum(-1, keepdim=True))
                for b in train.pieces(len(z))
            ]
        best = torch.cat([z[..., :-1], self.optimal_dual(torch.stack(parts).sum(0))], dim=-1)
        phi, F = metrics.objective(self, best, train)  # Danskin: grad phi(v) = grad_v f(v, alpha*)
        norms, off = F[..., :-1].norm(dim=(-2, -1)), (z - best).norm(dim=(-2, -1))
        closed = zip(phi.tolist(), norms.tolist(), off.tolist(), strict=True)
        return [
            Evaluation(values | {"phi": phi, "grad_phi": norm, "dual_distance": off}, by_client)
            for (values, by_client), (phi, norm, off) in zip(ranks, closed, strict=True)
        ]


def _mean(ratios: Tensor, weights: Tensor | None) -> Tensor:
    return ratios.mean() if weights is None else ratios @ weights
