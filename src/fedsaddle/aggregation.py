"""How the server turns replies into one: their mean, or a rule that a few wrong clients cannot move far.

`Mean` and `ByRule` take the replies of a phase part by part, as they come.

A rule takes the replies [..., S, k] of all who answered and their weights [..., S], and gives [..., 1, k]. It takes the
place of the mean in `Clients.mean`, so it works with every algorithm that averages. Replies with numbers that are not finite
do not count. No rule helps where an algorithm asks for all replies (`Clients.gather`), such as the losses of robust methods;
`Clients.gather` warns of that.

    mean                    by weights
    median                  of every coordinate, each reply counting once (Yin et al. 2018)
    trimmed_mean(share)     of every coordinate, without the largest and the smallest `share` of them (Yin et al. 2018)
    norm_clipping(factor)   differences from the median are shortened to `factor` times the median length (after Karimireddy
                            et al. 2021, who clip around the last aggregate)

All but the mean are biased where clients' data differ: the clients that are unlike the rest count less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Each
from fedsaddle.parse import called
from fedsaddle.problem import tree_map

Rule = Callable[[Tensor, Tensor], Tensor]


class Mean:
    """The weighted mean of replies, summed as they come; what is marked Each stays rows, in the order of the clients."""

    def __init__(self) -> None:
        self.total = torch.zeros(())  # of the weights [..., 1, 1]
        self._sums: Any = None

    def add(self, ids: Tensor, w: Tensor, replies: Any) -> None:
        """Replies [..., S, k] of the clients of these numbers [..., S], with their weights [..., S]."""

        def weighted(r: Each | Tensor) -> _Rows | Tensor:
            return _Rows(ids, r.value) if isinstance(r, Each) else _weighted_sum(w, r)

        part = tree_map(weighted, replies, of=(Each, Tensor))
        self._sums = part if self._sums is None else tree_map(_added, self._sums, part, of=(_Rows, Tensor))
        self.total = self.total + w.sum(-1)[..., None, None]

    def result(self) -> Any:
        def divided(s: _Rows | Tensor) -> Tensor:
            if isinstance(s, _Rows):  # parts may have come in any order
                order = s.ids.argsort(-1).to(s.rows.device)
                return s.rows.gather(-2, order.unsqueeze(-1).expand_as(s.rows))
            return s / self.total.to(s)

        return tree_map(divided, self._sums, of=(_Rows, Tensor))


class ByRule:
    """All replies turned into one by a rule, but for what is marked Each, in the order of the clients."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._parts: list[tuple[Tensor, Tensor, Any]] = []

    def add(self, ids: Tensor, w: Tensor, replies: Any) -> None:
        """As of `Mean`."""
        self._parts.append((ids, w, replies))

    def result(self) -> Any:
        ids, w = (torch.cat([part[i] for part in self._parts], dim=-1) for i in (0, 1))
        order = ids.argsort(-1)
        w = w.expand(ids.shape).gather(-1, order)

        def together(*rows: Any) -> Tensor:
            marked = isinstance(rows[0], Each)
            all_rows = torch.cat([row.value if marked else row for row in rows], dim=-2)
            at = order.to(all_rows.device).unsqueeze(-1)
            all_rows = all_rows.gather(-2, at.expand_as(all_rows))
            return all_rows if marked else self._rule(all_rows, w.to(all_rows))

        return tree_map(together, *(replies for _, _, replies in self._parts), of=(Each, Tensor))


class _Rows(NamedTuple):
    """Rows of the clients that have answered so far, whose numbers are `ids`."""

    ids: Tensor  # [..., S]
    rows: Tensor  # [..., S, k]


def _added(a: Any, b: Any) -> Any:
    if isinstance(a, _Rows):
        return _Rows(torch.cat([a.ids, b.ids], -1), torch.cat([a.rows, b.rows], -2))
    return a + b


def _weighted_sum(w: Tensor, r: Tensor) -> Tensor:
    """Sum of w_i r_i over clients: [..., S], [..., S, k] -> [..., 1, k]."""
    if r.stride(-2) == 0:  # the same row for every client, which a matrix product would copy S times
        return w.sum(-1)[..., None, None].to(r) * r[..., :1, :]
    return w.to(r).unsqueeze(-2) @ r


# ---- rules -----------------------------------------------------------------------------------------------


def named(spec: str) -> Rule | None:
    """A rule from its name, such as "trimmed_mean(0.1)"; None for the mean."""
    if spec == "mean":
        return None
    return called(spec, RULES, "or mean", "aggregation")


def median() -> Rule:
    """The median of every coordinate; of an even number the mean of the two in the middle."""

    def rule(replies: Tensor, weights: Tensor) -> Tensor:
        return _median(torch.where(_counts(replies, weights), replies, torch.nan))

    return rule


def trimmed_mean(share: float = 0.1) -> Rule:
    """The mean of every coordinate without the `share` of replies at either end, at least one each."""
    if not 0 < share < 0.5:
        raise FedsaddleError(f"aggregation: the share of trimmed_mean must be in (0, 0.5), got {share:g}")

    def rule(replies: Tensor, weights: Tensor) -> Tensor:
        counts = _counts(replies, weights)
        n = counts.sum(-2, keepdim=True)  # those that count stand first: the others are sorted as infinity
        order = torch.where(counts, replies, torch.inf).argsort(-2)
        cut = (n * share).ceil().clamp(min=1)
        rank = torch.arange(replies.shape[-2], device=replies.device).unsqueeze(-1)
        kept = (rank >= cut) & (rank < n - cut)
        w = torch.where(kept, weights.unsqueeze(-1).expand_as(replies).gather(-2, order), 0.0)
        total = w.sum(-2, keepdim=True)
        mean = (w * torch.where(kept, replies.gather(-2, order), 0.0)).sum(-2, keepdim=True) / total
        return torch.where(
            total > 0, mean, _median(torch.where(counts, replies, torch.nan))
        )  # too few to cut

    return rule


def norm_clipping(factor: float = 1.0) -> Rule:
    """The mean of replies whose difference from the median is no longer than `factor` times the median length."""
    if not (factor > 0 and math.isfinite(factor)):
        raise FedsaddleError(f"aggregation: the factor of norm_clipping must be > 0, got {factor:g}")

    def rule(replies: Tensor, weights: Tensor) -> Tensor:
        counts = _counts(replies, weights)
        centre = _median(torch.where(counts, replies, torch.nan))
        difference = torch.where(counts, replies - centre, 0.0)
        length = difference.norm(dim=-1, keepdim=True)
        most = factor * _median(torch.where(counts, length, torch.nan))
        clipped = difference * (most / length.clamp(min=torch.finfo(length.dtype).tiny)).clamp(max=1.0)
        w = torch.where(counts, weights.unsqueeze(-1), 0.0)
        moved: Tensor = (w * clipped).sum(-2, keepdim=True) / w.sum(-2, keepdim=True)
        return centre + moved

    return rule


RULES: dict[str, Callable[..., Rule]] = {
    "median": median, "trimmed_mean": trimmed_mean, "norm_clipping": norm_clipping,
}  # fmt: skip
WEIGHTLESS = ("median",)  # rules under which clients' weights play no part


def _counts(replies: Tensor, weights: Tensor) -> Tensor:
    """Which replies count [..., S, 1]: those that are finite and weigh something."""
    return replies.isfinite().all(-1, keepdim=True) & (weights > 0).unsqueeze(-1)


def _median(values: Tensor) -> Tensor:
    """Along the clients, NaN left out."""
    low = values.nanmedian(-2, keepdim=True).values
    high = -(-values).nanmedian(-2, keepdim=True).values
    return (low + high) / 2
