"""AUC over all sites from counts: scores stay where they are, and how far the estimate can be off is known exactly.

Two exchanges for a target t, over K sites (numbers; a model update is usually many times larger):

    1. up    sketch           at most 2/t + 2: a site's own quantiles of the scores of its negatives and of its positives
       down  edges            E, at most about 1/t: where the server cuts the line of scores
    2. up    score_histogram  3 (2 E + 1): how many negatives and positives lie in each bin

A bin is an open interval between two edges, or one edge alone. Pairs of different bins are ordered, pairs at an edge are
ties, which count one half exactly; only pairs inside one interval are unknown. They count one half as well, so

    |estimate - AUC| <= 1/2 sum_b (p_b / P) (n_b / N)        over the intervals b                                      (*)

with p_b of all P positives and n_b of all N negatives in b. The edges are the fewest, taken greedily from the sketches, for
which sqrt(p_b n_b / (P N)) <= 2 t is certain in every interval. As sum_b sqrt(p_b n_b / (P N)) <= 1 (Cauchy-Schwarz),
(*) is then at most t, whatever the scores are.

What leaks: a site's quantiles are scores of single people, and a count of 1 says that someone has a score in that bin; the
server sees no features and no names. With `minimum` = k, no quantile is sent that has fewer than k - 1 scores of its class
on either side up to the next, and a site joins neighbouring bins until every count that leaves is 0 or at least k; where a
class has fewer than k at the site, only its totals leave. The bound accounts for joined bins and may exceed the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle import metrics
from fedsaddle.errors import FedsaddleError

Sketch = dict[str, Tensor]


class Estimate(NamedTuple):
    """An AUC that is within `bound` of the exact one; NaN with one class."""

    auc: float
    bound: float


def sketch(scores: Tensor, positive: Tensor, target: float = 1e-3, minimum: int = 1) -> Sketch:
    """A site's first message: the sizes of its classes, and evenly spaced order statistics of each one's scores.

    Args:
        scores: [n], of any floating type.
        positive: [n] bool.
        target: the bound that the estimate shall have, in (0, 1/2].
        minimum: k; between two quantiles lie at least k - 1 scores.

    Returns:
        "size" [2] (negatives, positives), "negative" and "positive" [at most 1 / target], all float64.
    """
    _check(target, minimum)
    out: Sketch = {}
    parts = _by_class(scores, positive)
    for name, own in zip(("negative", "positive"), parts, strict=True):
        n = len(own)
        m = max(0, min(math.ceil(1 / target), (n + 1) // minimum - 1))
        # m order statistics with at most floor(n / (m + 1)) scores before, between and behind them
        ranks = torch.arange(1, m + 1) * (n + 1) // (m + 1) - 1
        out[name] = own.sort().values[ranks]
    return {"size": torch.tensor([len(v) for v in parts], dtype=torch.float64)} | out


def edges(sketches: Sequence[Sketch], target: float = 1e-3) -> Tensor:
    """The server's cuts [E], rising, from all sites' sketches; the fewest that make the bound certain."""
    _check(target, 1)
    sizes = torch.stack([s["size"] for s in sketches]).sum(0)
    if not (sizes > 0).all():
        return torch.zeros(0, dtype=torch.float64)  # one class: AUC is undefined whatever the cuts
    points, shares, slack = [], [], torch.zeros(2, dtype=torch.float64)
    for s in sketches:
        for c, name in enumerate(("negative", "positive")):
            gap = s["size"][c] // (len(s[name]) + 1)  # at most so many scores between two points
            slack[c] += gap / sizes[c]
            share = torch.zeros(len(s[name]), 2, dtype=torch.float64)
            share[:, c] = (gap + 1) / sizes[c]
            points.append(s[name])
            shares.append(share)
    values, place = torch.cat(points).unique(return_inverse=True)
    weight = torch.zeros(len(values), 2, dtype=torch.float64).index_add_(0, place, torch.cat(shares))
    n_0, p_0 = slack.tolist()
    n, p, cuts = n_0, p_0, []
    for i, (more_n, more_p) in enumerate(weight.tolist()):
        n, p = n + more_n, p + more_p
        if min(n, 1.0) * min(p, 1.0) > (2 * target) ** 2:
            cuts.append(i)
            n, p = n_0, p_0
    out: Tensor = values[cuts]
    return out


def score_histogram(scores: Tensor, positive: Tensor, edges: Tensor, minimum: int = 1) -> Tensor:
    """A site's second message: how many negatives and positives it has in each bin.

    Args:
        scores: [n].
        positive: [n] bool.
        edges: [E], rising.
        minimum: k; neighbouring bins are joined until each count is 0 or at least k.

    Returns:
        [3, 2 E + 1] int64: negatives, positives, and whether a bin begins there; bin 2 i lies before edge i, bin 2 i + 1 is
        edge i alone. Bins that are joined to the one before hold 0.

    Example:
        >>> scores, positive = torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([False, True, False, True])
        >>> score_histogram(scores, positive, torch.tensor([0.5])).tolist()
        [[1, 1, 0], [0, 1, 1], [1, 1, 1]]
    """
    _check(0.5, minimum)
    edges = edges.double()
    cells = []
    for own in _by_class(scores, positive):
        at = torch.searchsorted(edges, own) + torch.searchsorted(edges, own, right=True)
        cells.append(torch.bincount(at, minlength=2 * len(edges) + 1).tolist())
    runs = [[b, b, *cell] for b, cell in enumerate(zip(*cells, strict=True)) if any(cell)]
    i = 0
    while i < len(runs) and len(runs) > 1:  # the first run with a small count joins its smaller neighbour
        if all(c == 0 or c >= minimum for c in runs[i][2:]):
            i += 1
            continue
        i = min((j for j in (i - 1, i) if 0 <= j < len(runs) - 1), key=lambda j: _people(runs[j : j + 2]))
        (begin, _, n, p), (_, end, more_n, more_p) = runs[i : i + 2]
        runs[i : i + 2] = [[begin, end, n + more_n, p + more_p]]
    out = torch.zeros(3, len(cells[0]), dtype=torch.int64)
    out[2] = 1
    for begin, end, n, p in runs:
        out[2, begin + 1 : end + 1] = 0
        out[0, begin], out[1, begin] = n, p
    return out


def auc_from_histograms(histograms: Sequence[Tensor]) -> Estimate:
    """The AUC of all sites' samples together, and how far it can be off.

    The truth lies between the AUC with every positive at the top of its bin and every negative at the bottom, and the AUC
    with both the other way round. The estimate is the middle; where no bins were joined, half the distance is (*).
    """
    if len({h.shape for h in histograms}) != 1:
        shapes = [list(h.shape) for h in histograms]
        raise FedsaddleError(
            f"histograms must all be on the same edges, got shapes {shapes}: send the edges again"
        )
    ends = torch.zeros(2, 2, 2 * histograms[0].shape[1], dtype=torch.float64)  # bottom or top, class, height
    for h in histograms:
        first = h[2].nonzero().squeeze(-1)
        last = torch.cat([first[1:], first.new_tensor([h.shape[1]])]) - 1
        for end, heights in enumerate((2 * first, 2 * last + (last % 2 == 0))):  # an edge has no extent
            ends[end].index_add_(1, heights, h[:2, first].double())
    lower, upper = (_auc(negative=ends[1 - e, 0], positive=ends[e, 1]) for e in (0, 1))
    return Estimate((lower + upper) / 2, (upper - lower) / 2)


def federated_auc(
    sites: Sequence[tuple[Tensor, Tensor]], target: float = 1e-3, minimum: int = 1
) -> tuple[Estimate, list[float]]:
    """Both exchanges in one place: the AUC over all sites, and each site's own exact one, which it computes alone.

    Args:
        sites: scores [n] and positive [n] of each site.
        target, minimum: as above.

    Example:
        >>> site = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True])
        >>> federated_auc([site, site])
        (Estimate(auc=0.75, bound=0.0), [0.75, 0.75])
    """
    cuts = edges([sketch(*site, target, minimum) for site in sites], target)
    histograms = [score_histogram(*site, cuts, minimum) for site in sites]
    return auc_from_histograms(histograms), [metrics.auc(*site) for site in sites]


def _people(runs: list[list[int]]) -> int:
    return sum(sum(run[2:]) for run in runs)


def _auc(negative: Tensor, positive: Tensor) -> float:
    """Exact AUC of counts at rising heights."""
    below = negative.cumsum(0) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))


def _by_class(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    scores, positive = scores.detach().cpu().double(), positive.cpu().bool()
    if scores.isnan().any():
        row = int(scores.isnan().nonzero()[0])
        raise FedsaddleError(f"scores has NaN at row {row}: the model has diverged, lower its step size")
    return scores[~positive], scores[positive]


def _check(target: float, minimum: int) -> None:
    if not 0 < target <= 0.5:
        raise FedsaddleError(f"histograms: target must be in (0, 0.5], got {target}")
    if minimum < 1:
        raise FedsaddleError(f"histograms: minimum must be >= 1, got {minimum}")
