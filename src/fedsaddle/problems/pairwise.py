"""Objectives on pairs of samples that lie at different clients: AUC with any loss, partial AUC, metric learning.

CyCp eq. (9), FeDXL (Guo et al. 2023). With D1_i, D2_i the two sides of client i's samples,

    F(w) = mean over i of E_{z in D1_i}  mean over j of E_{z' in D2_j}  psi(h(w; z), h(w; z')).

    paper            | here
    -----------------+---------------------------------------------------------------
    D1_i, D2_i       | `sides`: positives and negatives, or all samples twice
    h(w; z)          | `represent`: a score, or an embedding with its class
    psi              | `psi`: pairs.py

Clients may lack a side, which the paper leaves open: the means then are over the clients that own it. Only they have that
half of the gradient, which weighs N / N_k where N_k of N clients own side k, so that the mean over clients is the gradient
of F; under cyclic participation that is the mean of the visits where groups are of equal sizes. Who owns what is found by
one set-up exchange of two integers a client.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import starmap
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsaddle import metrics
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.metrics import Evaluation, Split
from fedsaddle.problem import Batch, Data, ModelProblem, forget_made
from fedsaddle.problems.pairs import SCORE_LOSSES, ContrastiveLoss, PairLoss

Pullback = Callable[[Tensor], Tensor] | None  # None: no derivatives were asked for
_PAIRED = 500  # samples of a side, of which pairs are made to measure the objective
_LOSS = Literal["square", "squared_hinge", "logistic", "sigmoid", "barrier_hinge", "q_norm_hinge"]


class Owners(NamedTuple):
    """What clients agree on before training."""

    shares: tuple[Any, Any]  # N_k / N: which share of the clients own side k
    largest: int  # samples that a client's first side has at most


@dataclass(frozen=True, eq=False)
class Pairwise(ModelProblem):
    """A problem whose losses are of pairs of samples, one of each side."""

    pairwise: ClassVar[bool] = True

    owners: Owners | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def psi(self) -> PairLoss:
        """The loss of a pair."""

    def psi_at(self, z: Tensor) -> PairLoss:
        """The loss of pairs [..., S, B, n, k] of the replicas whose iterates are z [..., S, d]."""
        psi = self.psi
        mine = {f.name: v for f in fields(psi) if isinstance(v := getattr(psi, f.name), Tensor)}
        lead = z.shape[:-2]
        return replace(
            psi, **{k: v.view(*(lead if v.ndim == 3 else ()), 1, 1, 1, 1) for k, v in mine.items()}
        )

    def in_tensors(self, like: Tensor) -> Self:
        out = copy.copy(self)
        for name in self.real:
            if not isinstance(v := getattr(self, name), Tensor):
                object.__setattr__(out, name, like.new_full((1, 1), v))
        if self.owners is not None:
            first, second = (like.new_full((), share) for share in self.owners.shares)
            object.__setattr__(out, "owners", self.owners._replace(shares=(first, second)))
        forget_made(out)
        _ = out.psi  # the compiler finds it made
        return out

    def losses(self, z: Tensor, data: Data) -> Tensor:
        raise FedsaddleError(
            f"{type(self).__name__}: a loss is of two samples, one alone has none; use CyCpPairwise or RSPairwise"
        )

    @abstractmethod
    def sides(self, data: Data) -> tuple[Tensor, Tensor]: ...

    def represent(self, z: Tensor, batch: Batch, derived: bool = True) -> tuple[Tensor, Pullback]:
        """h(w; z) of every sample [..., S, B, k], and what takes its cotangent to that of w [..., S, d] if derived."""
        if not derived:
            return self.outputs(z, batch.data["x"]).to(z.dtype), None
        outputs, pullback = self.flat.with_pullback(z, batch.data["x"])
        # scores and losses are in the run's precision, whatever the model computes in
        return outputs.to(z.dtype), lambda g: pullback(g.to(outputs.dtype))

    @property
    def extra(self) -> int:
        """How many of the k numbers, the last ones, do not come from the model."""
        return 0

    def prepare(self, clients: Clients) -> Self:
        if self.owners is not None:
            return self
        counts = clients.gather(self.side_counts, None, who=clients.everyone()).replies  # [N, 2]
        shares = (counts > 0).double().mean(0).tolist()
        for share, which in zip(shares, ("first", "second"), strict=True):
            if share == 0:
                raise FedsaddleError(self._nobody(which))
        return replace(self, owners=Owners((shares[0], shares[1]), int(counts[:, 0].max())))

    def objectives(self, z: Tensor, train: Split) -> list[dict[str, float]]:
        """F at z [R, 1, d], as a metric; none where a side is empty, as at a single site it may be.

        Over all pairs; of a side with more samples than _PAIRED over an even choice of them.
        """
        masks = self.sides(train.data)
        if not all(mask.any() for mask in masks):
            return [{} for _ in z]
        each = torch.eye(len(z), dtype=torch.bool, device=z.device)  # one by one: there are many pairs
        return [{"pair_loss": self.of_replicas(i)._objective(z[i], train, masks)} for i in each]

    def _objective(self, z: Tensor, train: Split, masks: tuple[Tensor, Tensor]) -> float:
        with torch.no_grad():
            (a, w_a), (b, w_b) = (self._side(z, train, mask) for mask in masks)
            losses = self.psi_at(z).value(a.unsqueeze(-2), b.unsqueeze(-3)).double()  # [1, 1, m, n]
            return (self._over_second(losses, w_b) * w_a).sum().item()

    def _over_second(self, losses: Tensor, w: Tensor) -> Tensor:
        """What the losses [..., n] of a sample of the first side make, by the weights of the second side's."""
        return (losses * w).sum(-1)

    def _side(self, z: Tensor, train: Split, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the model says of a side's samples [1, 1, m, k], and how they weigh in F."""
        rows = mask.nonzero().squeeze(-1)
        owner = train.owner[rows]
        own = torch.bincount(owner, minlength=train.n_clients).double()
        w = 1 / ((own > 0).sum() * own[owner])
        if len(rows) > _PAIRED:
            even = (
                torch.linspace(0, len(rows) - 1, _PAIRED, dtype=torch.float64).round().long().to(rows.device)
            )
            rows, w = rows[even], w[even] / w[even].sum()
        said = self.at_each(
            z, train.piece(rows), lambda z, b: self.represent(z, b, derived=False)[0].flatten(-2)
        )
        return said.unflatten(-1, (len(rows), -1)), w

    def _nobody(self, which: str) -> str:
        return f"{type(self).__name__}: no client has samples of the {which} side; pairs need both somewhere"

    def side_counts(self, cohort: Cohort, message: None) -> tuple[Tensor, None]:
        """Client work of the set-up phase: how many samples each side has [S, 2]."""
        assert cohort.sides is not None
        return cohort.sides.sizes.movedim(0, -1).to(self.flat.initial.dtype), None


@dataclass(frozen=True, eq=False)
class PairwiseAUC(Pairwise):
    """AUC with any loss of score differences: every positive should score above every negative, wherever they lie.

    Args:
        model: module with one output, the score.
        loss: "square", "squared_hinge", "logistic", "sigmoid", "barrier_hinge" or "q_norm_hinge" (problems/pairs.py).
        margin: m of square, squared_hinge, barrier_hinge and q_norm_hinge.
        scale: of sigmoid (the paper's lambda) and logistic.
        tau: slope of barrier_hinge outside of its margin.
        q: exponent of q_norm_hinge.
        positive: index of the class that counts as positive (federation.classes[positive]); all others are negative.
        monitors: whether evaluations look at training data: the objective (`pair_loss`, of up to 500 positives and as many
            negatives) and, for clients that own no test data, the AUC.

    Example:
        >>> import fedsaddle as fs, torch
        >>> fs.PairwiseAUC(torch.nn.Linear(30, 1), loss="sigmoid", scale=0.1).psi
        Sigmoid(scale=0.1)
    """

    real: ClassVar[tuple[str, ...]] = ("margin", "scale", "tau", "q")

    loss: _LOSS = "sigmoid"
    margin: float = 1.0
    scale: float = 1.0
    tau: float = 2.0
    q: float = 2.0
    positive: int = 1
    monitors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in SCORE_LOSSES:
            raise FedsaddleError(
                f"{type(self).__name__}: loss must be one of {', '.join(SCORE_LOSSES)}, got {self.loss!r}"
            )
        used = [f.name for f in fields(SCORE_LOSSES[self.loss])]
        for f in fields(PairwiseAUC):
            if f.name in self.real and f.name not in used and getattr(self, f.name) != f.default:
                raise FedsaddleError(
                    f"{type(self).__name__}: {f.name} has no use with loss {self.loss!r}, which takes "
                    f"{' and '.join(used)}; leave it out"
                )
        _ = self.psi  # refuses what the loss refuses

    @cached_property  # the compiler finds it made
    def psi(self) -> PairLoss:
        kind = SCORE_LOSSES[self.loss]
        return kind(**{f.name: getattr(self, f.name) for f in fields(kind)})

    def sides(self, data: Data) -> tuple[Tensor, Tensor]:
        positive = data["y"] == self.positive
        return positive, ~positive

    def _nobody(self, which: str) -> str:
        missing = "positive" if which == "first" else "negative"
        return (
            f"{type(self).__name__}: no client has {missing} examples (class {self.positive} is positive); AUC needs both "
            "classes somewhere"
        )

    def scores(self, z: Tensor, x: Tensor) -> Tensor:
        """Scores h [..., S, B] at the weights z [..., S, d]."""
        return self.outputs(z, x).squeeze(-1)

    def check_outputs(self, n: int, federation: Federation) -> None:
        if n != 1:
            raise FedsaddleError(
                f"{type(self).__name__}: the model must have one output, got {n}; end it in Linear(..., 1)"
            )

    def check(self, federation: Federation) -> None:
        super().check(federation)
        metrics.check_positive(type(self).__name__, self.positive, federation)

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        found = list(
            starmap(Evaluation, metrics.ranking(self, z, splits, self.positive, training=self.monitors))
        )
        if self.monitors:
            for e, objective in zip(found, self.objectives(z, splits["train"]), strict=True):
                e.values.update(objective)
        return found


@dataclass(frozen=True, eq=False)
class PartialAUC(PairwiseAUC):
    """One-way partial AUC: positives should score above the negatives that score highest (a low false positive rate).

        F(w) = mean over positives z of  T log E_{z'} exp(psi(h(w; z), h(w; z')) / T)

    weighs a positive's negatives by exp(psi / T): those that are hard for it (Zhu et al. 2022, used in FeDXL). T -> infinity
    is the whole AUC.

    Args:
        temperature: T.
        max_fpr: up to which false positive rate the reported partial AUC goes.
    """

    loss: _LOSS = "squared_hinge"
    temperature: float = 1.0
    max_fpr: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.temperature < float("inf"):
            raise FedsaddleError(f"PartialAUC: temperature must be > 0, got {self.temperature}")
        if not 0 < self.max_fpr < 1:
            raise FedsaddleError(f"PartialAUC: max_fpr must be between 0 and 1, got {self.max_fpr}")

    def _over_second(self, losses: Tensor, w: Tensor) -> Tensor:
        T = self.temperature
        return T * torch.logsumexp(losses / T + w.log(), -1)

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        found = super().evaluate(z, splits, federation)
        for name, key in (
            ("test", "partial_auc"),
            ("valid", "valid_partial_auc"),
            ("train", "train_partial_auc"),
        ):
            if name in splits and (name != "train" or "test" not in splits):
                is_positive = splits[name].data["y"] == self.positive
                for scores, evaluation in zip(self.all_scores(z, splits[name]), found, strict=True):
                    evaluation.values[key] = metrics.partial_auc(scores, is_positive, self.max_fpr)
        return found


@dataclass(frozen=True, eq=False)
class Contrastive(Pairwise):
    """Metric learning: embeddings of samples of one class lie close together, those of others at least a margin apart.

    Both sides are all samples. What travels beside an embedding is its class.

    Args:
        model: module whose outputs are the embedding.
        margin: m, how far apart samples of different classes shall be.
        neighbours: k of the reported precision: how many of the k training samples nearest to a test sample are of its
            class, on average.
    """

    margin: float = 1.0
    neighbours: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.neighbours, int) or self.neighbours < 1:
            raise FedsaddleError(
                f"Contrastive: neighbours must be a whole number >= 1, got {self.neighbours}"
            )
        _ = self.psi

    @cached_property
    def psi(self) -> PairLoss:
        return ContrastiveLoss(self.margin)

    @property
    def extra(self) -> int:
        return 1

    def sides(self, data: Data) -> tuple[Tensor, Tensor]:
        everything = torch.ones_like(data["y"], dtype=torch.bool)
        return everything, everything

    def represent(self, z: Tensor, batch: Batch, derived: bool = True) -> tuple[Tensor, Pullback]:
        outputs, pullback = super().represent(z, batch, derived)
        classes = batch.data["y"].to(outputs).unsqueeze(-1).expand(*outputs.shape[:-1], 1)
        both = torch.cat([outputs, classes], dim=-1)
        return both, pullback and (lambda g: pullback(g[..., :-1].contiguous()))

    def scores(self, z: Tensor, x: Tensor) -> Tensor:
        """The first coordinate, which is no score; here so that a model can be tried on data."""
        return self.outputs(z, x)[..., 0]

    def check(self, federation: Federation) -> None:
        super().check(federation)
        if federation.data["y"].is_floating_point():
            raise FedsaddleError("Contrastive: y must be classes, got real numbers")

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        """Retrieval: of test (and validation) samples among the training samples, of all clients and of other clients."""
        found: list[dict[str, float]] = [{} for _ in z]
        for one, values in zip(z, found, strict=True):
            gallery = self._embedded(one, splits["train"])
            for name, prefix in (("test", ""), ("valid", "valid_"), ("train", "train_")):
                if name not in splits or (name == "train" and "test" in splits):
                    continue
                queries = gallery if name == "train" else self._embedded(one, splits[name])
                mine = splits[name].n_clients == splits["train"].n_clients
                values |= {
                    prefix + key: value
                    for key, value in metrics.retrieval(
                        queries, splits[name].data["y"], gallery, splits["train"].data["y"], self.neighbours,
                        owners=(splits[name].owner, splits["train"].owner) if mine else None,
                        same=name == "train",
                    ).items()
                }  # fmt: skip
        return [Evaluation(v | F) for v, F in zip(found, self.objectives(z, splits["train"]), strict=True)]

    def _embedded(self, z: Tensor, split: Split) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.outputs(z, b.data["x"]).squeeze(0) for b in split.pieces()])
