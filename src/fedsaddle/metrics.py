"""Metrics of a min-max run: exact AUC, quality client by client, closed forms of the objective.

The loss of a min-max problem is no measure of progress; these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.federation import Federation
from fedsaddle.problem import Batch, ModelProblem, Problem

_NUMBERS_AT_ONCE = 1 << 23


class Evaluation(NamedTuple):
    """Measures of progress at one iterate."""

    values: dict[str, float]
    by_client: dict[str, list[float]] = {}  # noqa: RUF012  never written to; NaN where a client has no value


def auc(scores: Tensor, positive: Tensor) -> float:
    """Exact area under the ROC curve; a tie between a positive and a negative counts one half. NaN with one class.

    Args:
        scores: [n].
        positive: [n] bool.
    """
    n_pos = int(positive.sum())
    n_neg = len(positive) - n_pos
    if n_pos == 0 or n_neg == 0:
        return float("nan")
    _, level, count = scores.unique(return_inverse=True, return_counts=True)
    midrank = (
        count.cumsum(0).double() - (count.double() - 1) / 2
    )  # the mean rank of the samples that share a score
    rank_sum = midrank[level[positive]].sum().item()
    return float((rank_sum - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


def client_aucs(scores: Tensor, positive: Tensor, owner: Tensor, n_clients: int) -> list[float]:
    """`auc` of every client's own samples, all at once; NaN for a client with one class.

    Args:
        scores, positive: [n].
        owner: the client of each sample [n].
    """
    order = scores.argsort()
    order = order[owner[order].argsort(stable=True)]  # by client, then by score
    scores, positive, owner = scores[order], positive[order].double(), owner[order]
    new = torch.ones_like(owner, dtype=torch.bool)
    new[1:] = (scores[1:] != scores[:-1]) | (owner[1:] != owner[:-1])
    level = new.cumsum(0) - 1  # samples of one client that share a score
    count = torch.zeros(int(level[-1]) + 1, dtype=torch.float64, device=scores.device)
    count.index_add_(0, level, torch.ones_like(positive))
    size, n_pos, ranks = (torch.zeros(n_clients, dtype=torch.float64, device=scores.device) for _ in range(3))
    size.index_add_(0, owner, torch.ones_like(positive))
    n_pos.index_add_(0, owner, positive)
    midrank = (count.cumsum(0) - (count - 1) / 2)[level] - (size.cumsum(0) - size)[owner]
    ranks.index_add_(0, owner, midrank * positive)
    values: list[float] = ((ranks - n_pos * (n_pos + 1) / 2) / (n_pos * (size - n_pos))).tolist()
    return values


def spread(values: list[float], name: str) -> dict[str, float]:
    """Mean, worst fifth, best fifth and standard deviation over the clients where the value is defined."""
    known = torch.tensor(sorted(v for v in values if v == v), dtype=torch.float64)
    if len(known) == 0:
        return {}
    fifth = max(1, round(len(known) / 5))
    return {
        f"{name}_clients": known.mean().item(),
        f"{name}_worst20": known[:fifth].mean().item(),
        f"{name}_best20": known[-fifth:].mean().item(),
        f"{name}_std": known.std(correction=0).item(),
    }


def clients_split(splits: Mapping[str, Split]) -> Split:
    """Where clients are told apart: their own test data, else their training data."""
    test = splits.get("test")
    return test if test is not None and test.n_clients == splits["train"].n_clients else splits["train"]


def ranking(
    problem: ModelProblem, z: Tensor, splits: Mapping[str, Split], positive: int
) -> tuple[dict[str, float], list[float]]:
    """AUC of the pooled test and validation data (of the training data without), and AUC client by client."""
    out: dict[str, float] = {}
    scored = {k: problem.all_scores(z, s) for k, s in splits.items() if k != "train" or "test" not in splits}
    for name, scores in scored.items():
        key = {"test": "auc", "valid": "valid_auc", "train": "train_auc"}[name]
        out[key] = auc(scores, splits[name].data["y"] == positive)
    split = clients_split(splits)
    scores = scored["test"] if split is splits.get("test") else problem.all_scores(z, split)
    values = client_aucs(scores, split.data["y"] == positive, split.owner, split.n_clients)
    out |= spread(values, "auc")
    out["single_class_clients"] = sum(v != v for v in values)
    return out, values


class Split:
    """One part of a federation's data on the run's device, to go over in pieces.

    Args:
        federation: the part: training, validation or test data.
    """

    def __init__(self, federation: Federation, device: torch.device, dtype: torch.dtype) -> None:
        self.data = federation.on_device(device, dtype)
        self.n_clients = federation.n_clients
        self.owner = torch.repeat_interleave(torch.arange(self.n_clients), federation.sizes).to(device)
        n = federation.sizes.to(device, torch.float64)
        self.weights = (1.0 / (self.n_clients * n))[self.owner].to(dtype)
        per_sample = sum(v[0].numel() for v in self.data.values())
        self._rows = max(1, _NUMBERS_AT_ONCE // per_sample)

    def pieces(self) -> Iterator[Batch]:
        """All samples as if of one client, weighted so that every client counts equally: fields [1, B, ...]."""
        for start in range(0, len(self.weights), self._rows):
            rows = slice(start, start + self._rows)
            yield Batch(
                {k: v[rows].unsqueeze(0) for k, v in self.data.items()}, self.weights[rows].unsqueeze(0)
            )

    def client_means(self, values: Tensor) -> list[float]:
        """Mean of a per-sample value [n] over every client's own samples."""
        total, n = (torch.zeros(self.n_clients, dtype=torch.float64, device=values.device) for _ in range(2))
        total.index_add_(0, self.owner, values.double())
        n.index_add_(0, self.owner, torch.ones_like(values, dtype=torch.float64))
        means: list[float] = (total / n).tolist()
        return means


def objective(problem: Problem, z: Tensor, split: Split) -> tuple[float, Tensor]:
    """f(z) = (1/N) sum_i f_i(z) and its saddle field [1, d], over all samples."""
    value, F = 0.0, torch.zeros_like(z)
    for batch in split.pieces():
        value += (problem.losses(z, batch.data) * batch.w).sum().item()
        F = F + problem.field(z, batch)
    return value, F
