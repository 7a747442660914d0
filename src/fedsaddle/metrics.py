"""Metrics of a min-max run: exact AUC, quality client by client, closed forms of the objective.

The loss of a min-max problem is no measure of progress; these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.problem import Batch, ModelProblem, Problem

_NUMBERS_AT_ONCE = 1 << 23
_QUANTILE = 1.959964  # of the standard normal distribution, for 95 %


class Evaluation(NamedTuple):
    """Measures of progress at one iterate."""

    values: dict[str, float]
    by_client: dict[str, list[float]] = {}  # noqa: RUF012  never written to; NaN where a client has no value


class Interval(NamedTuple):
    """A number, and between what it may lie."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        """0.0123 (0.0045 to 0.0201)."""
        return f"{self.value:z.4f} ({self.low:z.4f} to {self.high:z.4f})"


def auc(scores: Tensor, positive: Tensor) -> float:
    """Exact area under the ROC curve; a tie between a positive and a negative counts one half. NaN with one class or a
    score that is NaN.

    Args:
        scores: [n].
        positive: [n] bool.
    """
    everyone = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    return aucs(scores.unsqueeze(0), positive, everyone, 1).item()


def auc_interval(scores: Tensor, positive: Tensor) -> Interval | None:
    """95 % confidence interval of the AUC of these samples [n], by DeLong et al. 1988, on the logit scale.

    Of several runs' scores of the same samples [k, n] it is that of their mean AUC. It says what other test samples of the
    same kind might have given, not what another training run might. None with fewer than two samples of a class, where the
    classes do not overlap, and where all scores are equal or one is NaN.
    """
    scores = torch.atleast_2d(scores).double()
    return _on_logits(*_delong(scores, positive, [1 / len(scores)] * len(scores)))


def auc_interval_of_counts(negative: Tensor, positive: Tensor) -> Interval | None:
    """`auc_interval` where only counts are known: how many samples of a class have each of k rising scores [k]."""
    low, high = negative.double(), positive.double()
    n, p = low.sum(), high.sum()
    below = (low.cumsum(0) - low / 2) / n  # V_10 of the paper
    above = (high.flip(0).cumsum(0).flip(0) - high / 2) / p  # V_01
    value = high @ below / p
    variance = high @ (below - value) ** 2 / (p - 1) / p + low @ (above - value) ** 2 / (n - 1) / n
    return _on_logits(value.item(), variance.sqrt().item()) if min(n, p) > 1 else None


def _on_logits(value: float, error: float) -> Interval | None:
    """An AUC with its interval, from its standard error."""
    if not 0.0 < value < 1.0 or not error > 0.0:
        return None
    at, width = math.log(value / (1 - value)), _QUANTILE * error / (value * (1 - value))
    return Interval(value, *(1 / (1 + math.exp(-v)) for v in (at - width, at + width)))


def auc_difference(scores: Tensor, others: Tensor, positive: Tensor, error: float = 0.05) -> Interval | None:
    """AUC of `scores` less that of `others` on the same samples, with its interval (DeLong et al. 1988, paired).

    Either is [n], or of several runs [k, n], whose mean AUC it is then.

    Args:
        error: how often the interval may miss, on both sides together; of n intervals a share 1/n of what all may.
    """
    scores, others = torch.atleast_2d(scores).double(), torch.atleast_2d(others).double()
    k, m = len(scores), len(others)
    value, deviation = _delong(torch.cat([scores, others]), positive, [1 / k] * k + [-1 / m] * m)
    width = NormalDist().inv_cdf(1 - error / 2) * deviation
    return None if width != width else Interval(value, value - width, value + width)


def _delong(scores: Tensor, positive: Tensor, contrast: list[float]) -> tuple[float, float]:
    """A linear combination of the AUCs of k scorings [k, n] and its standard error, NaN with fewer than two of a class."""
    high, low = (scores[:, mask].contiguous() for mask in (positive, ~positive))
    if min(high.shape[-1], low.shape[-1]) < 2 or scores.isnan().any():
        return math.nan, math.nan

    def below(some: Tensor, others: Tensor) -> Tensor:
        """The share of `others` below each of `some`; ties count one half."""
        ordered = others.sort(-1).values
        left, right = (torch.searchsorted(ordered, some, side=side) for side in ("left", "right"))
        return (left + right).double() / (2 * others.shape[-1])

    c = torch.tensor(contrast, dtype=torch.float64, device=scores.device)
    of_positives = c @ below(high, low)  # V_10 of the paper
    of_negatives = c @ (1 - below(low, high))  # V_01
    variance = of_positives.var() / high.shape[-1] + of_negatives.var() / low.shape[-1]
    return of_positives.mean().item(), variance.sqrt().item()


def partial_auc(scores: Tensor, positive: Tensor, max_fpr: float) -> float:
    """Exact area under the ROC curve up to a false positive rate, as a share of what a perfect ranking has there.

    Between two thresholds the curve is a straight line, so ties count one half, as in `auc`. NaN with one class or a
    score that is NaN.
    """
    if scores.isnan().any():
        return math.nan
    scores, positive = scores.double(), positive.double()
    order = scores.argsort(descending=True)
    scores, positive = scores[order], positive[order]
    last = torch.ones_like(positive, dtype=torch.bool)  # of those that share a score
    last[:-1] = scores[1:] != scores[:-1]
    tp = torch.nn.functional.pad(positive.cumsum(0)[last], (1, 0))
    fp = torch.nn.functional.pad((1 - positive).cumsum(0)[last], (1, 0))
    tpr, fpr = tp / tp[-1], (fp / fp[-1]).clamp(max=max_fpr)
    full = (fp / fp[-1]).diff()
    part = torch.where(full > 0, fpr.diff() / full.clamp(min=1e-300), 0.0)  # of each step, the share within
    end = tpr[:-1] + tpr.diff() * part
    return ((tpr[:-1] + end) / 2 * fpr.diff()).sum().item() / max_fpr


def retrieval(
    queries: Tensor,
    classes: Tensor,
    gallery: Tensor,
    gallery_classes: Tensor,
    k: int,
    *,
    owners: tuple[Tensor, Tensor] | None = None,
    same: bool = False,
) -> dict[str, float]:
    """How well the items nearest to a query are of its class.

    Args:
        queries, gallery: embeddings [n, e] and [m, e].
        owners: the client of each query and of each item; adds the same measures among other clients' items.
        same: the queries are the gallery; an item then does not find itself.

    Returns:
        recall (the nearest item is of the query's class) and precision (share of the k nearest that are), on average over
        the queries for which there is an item.
    """
    hits: dict[str, list[Tensor]] = {}
    rows = max(1, _NUMBERS_AT_ONCE // max(1, len(gallery)))
    for at in torch.arange(len(queries), device=queries.device).split(rows):
        distance = torch.cdist(queries[at], gallery)
        if same:
            distance[torch.arange(len(at)), at] = torch.inf
        views = {"": distance}
        if owners is not None:
            views["_elsewhere"] = distance.masked_fill(owners[0][at].unsqueeze(-1) == owners[1], torch.inf)
        for name, d in views.items():
            near = d.topk(min(k, d.shape[-1]), largest=False).indices
            there = d.gather(-1, near).isfinite()  # fewer than k items may be left
            hit = ((gallery_classes[near] == classes[at].unsqueeze(-1)) & there).double()
            nothing = ~there[:, 0]
            hits.setdefault(f"recall{name}", []).append(hit[:, 0].masked_fill(nothing, torch.nan))
            hits.setdefault(f"precision{name}", []).append(hit.sum(-1) / there.sum(-1))
    return {name: torch.cat(parts).nanmean().item() for name, parts in hits.items()}


def aucs(scores: Tensor, positive: Tensor, owner: Tensor, n_clients: int) -> Tensor:
    """`auc` of every client's own samples, for R scorings at once; NaN for a client with one class or a score that is NaN.

    Args:
        scores: [R, n].
        positive: [n] bool.
        owner: the client of each sample [n].

    Returns:
        [R, n_clients], float64.
    """
    R, n = scores.shape
    at_once = max(1, _NUMBERS_AT_ONCE // max(n, 1))
    if at_once < R:
        return torch.cat([aucs(part, positive, owner, n_clients) for part in scores.split(at_once)])
    order = scores.argsort(-1)  # by score, and then by client
    if n_clients > 1:
        order = order.gather(-1, owner[order].argsort(stable=True, dim=-1))
    scores, owner = scores.gather(-1, order), owner[order]
    is_positive = positive[order].double()
    new = torch.ones_like(owner, dtype=torch.bool)
    new[:, 1:] = (scores[:, 1:] != scores[:, :-1]) | (owner[:, 1:] != owner[:, :-1])
    level = new.cumsum(-1) - 1  # samples of one client that share a score
    zeros = torch.zeros(R, max(n, n_clients), dtype=torch.float64, device=scores.device)
    count = zeros.scatter_add(-1, level, torch.ones_like(is_positive))
    size = zeros.scatter_add(-1, owner, torch.ones_like(is_positive))
    n_pos = zeros.scatter_add(-1, owner, is_positive)
    midrank = (count.cumsum(-1) - (count - 1) / 2).gather(
        -1, level
    )  # the mean rank of those that share a score
    midrank = midrank - (size.cumsum(-1) - size).gather(-1, owner)
    ranks = zeros.scatter_add(-1, owner, midrank * is_positive)
    values = (ranks - n_pos * (n_pos + 1) / 2) / (n_pos * (size - n_pos))
    undefined = zeros.scatter_add(-1, owner, scores.isnan().double()) > 0
    return values.masked_fill(undefined, torch.nan)[:, :n_clients]


def spread(values: list[float], name: str) -> dict[str, float]:
    """Mean, worst fifth, best fifth, standard deviation and Gini coefficient over the clients where the value is defined."""
    known = torch.tensor(sorted(v for v in values if v == v), dtype=torch.float64)
    if len(known) == 0:
        return {}
    k = fifth(len(known))
    return {
        f"{name}_clients": known.mean().item(),
        f"{name}_worst20": known[:k].mean().item(),
        f"{name}_best20": known[-k:].mean().item(),
        f"{name}_std": known.std(correction=0).item(),
        f"{name}_gini": gini(known),
    }


def fifth(n: int) -> int:
    """How many of n clients are a fifth: at least one."""
    return max(1, round(n / 5))


def gini(values: Tensor) -> float:
    """sum_ij |v_i - v_j| / (2 n^2 mean) of values >= 0 in ascending order [n]: 0 where all are equal, below 1 always."""
    n, total = len(values), values.sum().item()
    rank = torch.arange(1, n + 1, dtype=values.dtype, device=values.device)
    return ((2 * rank - n - 1) @ values).item() / (n * total) if total > 0 else 0.0


def clients_split(splits: Mapping[str, Split]) -> Split:
    """Where clients are told apart: their own test data, else their training data."""
    return splits["test"] if by_owner(splits, "test") else splits["train"]


def by_owner(splits: Mapping[str, Split], name: str) -> bool:
    """Whether there is such a part, and each client has its own share of it."""
    return name in splits and splits[name].n_clients == splits["train"].n_clients


def ranking(
    problem: ModelProblem, z: Tensor, splits: Mapping[str, Split], positive: int, training: bool = True
) -> list[tuple[dict[str, float], dict[str, list[float]]]]:
    """AUC of pooled test and validation data (of training data without), and client by client, at z [R, 1, d].

    Of validation data that clients own, the spread over clients too, to choose by. Where clients own no test data they are
    told apart by their training data, if `training` allows it.
    """
    scored = {k: problem.all_scores(z, s) for k, s in splits.items() if k != "train" or "test" not in splits}
    pooled = {}
    for name, scores in scored.items():
        key = {"test": "auc", "valid": "valid_auc", "train": "train_auc"}[name]
        is_positive = splits[name].data["y"] == positive
        pooled[key] = aucs(scores, is_positive, torch.zeros_like(splits[name].owner), 1).squeeze(-1).tolist()
    split = clients_split(splits)
    is_positive = split.data["y"] == positive
    by_client: list[dict[str, list[float]]] = [{} for _ in z]
    if training or split is splits.get("test"):
        scores = scored["test"] if split is splits.get("test") else problem.all_scores(z, split)
        by_client = [
            {"auc": values} for values in aucs(scores, is_positive, split.owner, split.n_clients).tolist()
        ]
    (shares,) = split.client_means(is_positive.unsqueeze(0))
    single = sum(share in (0.0, 1.0) for share in shares)
    valid: list[list[float]] = [[]] * len(by_client)
    if by_owner(splits, "valid"):
        held = splits["valid"]
        valid = aucs(scored["valid"], held.data["y"] == positive, held.owner, held.n_clients).tolist()
    return [
        ({k: v[i] for k, v in pooled.items()} | spread(own.get("auc", []), "auc") | spread(valid[i], "valid_auc")
         | {"single_class_clients": single}, own)
        for i, own in enumerate(by_client)
    ]  # fmt: skip


def check_positive(who: str, positive: int, federation: Federation) -> None:
    """Refuse labels that are no classes, or have no class of this index."""
    if federation.data["y"].is_floating_point():
        raise FedsaddleError(
            f"{who}: y must be classes, got real numbers; use ERM(loss='squared') for regression"
        )
    names = federation.classes
    if len(names) > 1 and positive not in range(len(names)):
        index = ", ".join(f"{i} = {name!r}" for i, name in enumerate(names))
        raise FedsaddleError(f"{who}: positive must be the index of a class ({index}), got {positive!r}")


class Split:
    """One part of a federation's data on the run's device, to go over in pieces.

    Args:
        federation: the part: training, validation or test data.
        offload: keep what has more than one number a sample on the CPU, and bring it over piece by piece.
        weights: what each client's loss weighs in the objective [N], sum 1; None: all equally.
    """

    def __init__(
        self,
        federation: Federation,
        device: torch.device,
        dtype: torch.dtype,
        offload: bool = False,
        weights: Tensor | None = None,
    ) -> None:
        self._device = device
        self.data = federation.on_device(torch.device("cpu") if offload else device, dtype)
        if offload:
            self.data = {k: v if v.ndim > 1 else v.to(device) for k, v in self.data.items()}
        self.n_clients = federation.n_clients
        self.owner = torch.repeat_interleave(torch.arange(self.n_clients), federation.sizes).to(device)
        n = federation.sizes.to(device, torch.float64)
        each = 1.0 / (self.n_clients * n) if weights is None else weights.to(n) / n
        self.weights = each[self.owner].to(dtype)
        per_sample = sum(v[0].numel() for v in self.data.values())
        self._rows = max(1, _NUMBERS_AT_ONCE // per_sample)

    def pieces(self, replicas: int = 1) -> Iterator[Batch]:
        """All samples as if of one client, weighted as the objective has it: fields [1, B, ...].

        Args:
            replicas: of how many models outputs are computed at once; more make smaller pieces.
        """
        length = max(1, self._rows // replicas)
        for start in range(0, len(self.weights), length):
            yield self.piece(slice(start, start + length))

    def piece(self, rows: slice | Tensor) -> Batch:
        """These samples, as in `pieces`."""
        dtype = self.weights.dtype

        def taken(v: Tensor) -> Tensor:
            some = v[rows.to(v.device) if isinstance(rows, Tensor) else rows]  # it may be offloaded
            return some.to(self._device, dtype if v.is_floating_point() else None).unsqueeze(0)

        return Batch({k: taken(v) for k, v in self.data.items()}, self.weights[rows].unsqueeze(0))

    def client_means(self, values: Tensor) -> list[list[float]]:
        """Mean of a per-sample value [R, n] over every client's own samples."""
        owner = self.owner.expand_as(values)
        zeros = torch.zeros(len(values), self.n_clients, dtype=torch.float64, device=values.device)
        total = zeros.scatter_add(-1, owner, values.double())
        means: list[list[float]] = (
            total / zeros.scatter_add(-1, owner, torch.ones_like(values, dtype=torch.float64))
        ).tolist()
        return means


def objective(problem: Problem, z: Tensor, split: Split) -> tuple[Tensor, Tensor]:
    """f(z) = sum_i q_i f_i(z) [R], q_i the clients' weights, and its field [R, 1, d], over all samples, at z [R, 1, d]."""
    value, F = z.new_zeros(len(z), dtype=torch.float64), torch.zeros_like(z)
    for batch in split.pieces(len(z)):
        losses = problem.at_each(z, batch, lambda z, b: problem.losses(z, b.data) * b.w)
        value += losses.double().sum((-2, -1))
        F = F + problem.at_each(z, batch, problem.field)
    return value, F
