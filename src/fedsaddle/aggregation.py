"""How the server turns replies into one: their mean, or a rule that a few wrong clients cannot move far.

A rule takes the replies [..., S, k] of all who answered and their weights [..., S], and gives [..., 1, k]. It takes the
place of the mean in `Clients.mean`, so it works with every algorithm that averages. Replies with numbers that are not finite
do not count. No rule helps where an algorithm asks for all replies (`Clients.gather`), such as the losses of robust methods.

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

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.parse import called

Rule = Callable[[Tensor, Tensor], Tensor]


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
