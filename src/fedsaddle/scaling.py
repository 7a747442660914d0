"""Features on one scale: what is subtracted, divided by and filled in, and columns whose values ask for a logarithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError, warn

_FAR = 30.0  # usual spreads from the median, beyond which values are said to be a long tail
_AWAY = 3.0  # training deviations between means, or times their spread; beyond are samples of another scale
_LOOKED_AT = 10_000  # samples of each, to tell that
_QUARTILES = 1 << 22  # numbers from which quartiles are taken


class Scaling(NamedTuple):
    """What has been done to x: (x - shift) / width, float64, each of a shape that broadcasts to x.

    With `log`, x is `logarithm(x)` in this.
    """

    shift: Tensor
    width: Tensor
    log: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Of raw x, float64."""
        x = x.double()
        return ((logarithm(x) if self.log else x) - self.shift) / self.width

    def then(self, other: Scaling) -> Scaling:
        """This one, and then the other."""
        if other.log:
            raise FedsaddleError("scaled: 'log' is of features as they are, and these are scaled; scale once")
        return Scaling(self.shift + self.width * other.shift, self.width * other.width, self.log)


def logarithm(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): as x near 0, and a logarithm far from it, on both sides."""
    return x.sign() * x.abs().log1p()


def exponential(x: Tensor) -> Tensor:
    """The inverse of `logarithm`."""
    return x.sign() * x.abs().expm1()


class Filling(NamedTuple):
    """What stands in x for values that were missing, before any scaling.

    Args:
        how: "median" or "mean", over all clients' training samples.
        values: `[1, ...]`, one for each number of a sample, float64.
        gaps: where x has them, `[n, ...]` bool; None once x is scaled, and they stay as they are.
    """

    how: str
    values: Tensor
    gaps: Tensor | None

    def fixed(self) -> Filling:
        """As it stays."""
        return self._replace(gaps=None)


def long_tails(x: Tensor) -> list[tuple[int, float]]:
    """Columns of x [n, C] with values far from the others, farthest first, and how far from the median in usual spreads.

    The usual spread is that of the middle half of the values, in deviations of a normal distribution; where all of these are
    equal, the deviation. Columns of two values are left out: a rare category is no tail.
    """
    x = x.double()
    some = x[:: -(-len(x) * x.shape[1] // _QUARTILES)].cpu().numpy()  # enough for quartiles
    low, middle, high = (torch.from_numpy(q).to(x.device) for q in np.percentile(some, (25, 50, 75), axis=0))
    spread = torch.where(high > low, (high - low) / 1.349, x.std(0, correction=0)).clamp(min=1e-300)
    far = (x - middle).abs().amax(0) / spread
    several = ((x != x.amin(0)) & (x != x.amax(0))).any(0)
    found = [(i, float(far[i])) for i in (several & (far > _FAR)).nonzero().flatten().tolist()]
    return sorted(found, key=lambda pair: -pair[1])


def warn_of_tails(x: Tensor, names: Sequence[str]) -> None:
    """A word on long tails of x [n, C], whose columns are called so."""
    if not (tails := long_tails(x)):
        return
    called = [repr(names[i]) if names else str(i) for i, _ in tails]
    more = f" (and {len(called) - 1} more: {', '.join(called[1:4])}{', ...' * (len(called) > 4)})"
    warn(
        f"column {called[0]} has values up to {tails[0][1]:.0f} times its usual spread from the median"
        f"{more * (len(called) > 1)}; "
        'scale "log", or its logarithm in place of the column, usually trains better'
    )


def unscaled(x: Tensor, training: Tensor, scaling: Scaling) -> Tensor:
    """Columns of x that are of another scale than the training samples', and of theirs once `scaling` is applied."""
    axes = [i for i in range(x.ndim) if i != 1]
    x, rows = (v[:: 1 + len(v) // _LOOKED_AT].double() for v in (x, training))
    middle, spread = rows.mean(axes), rows.std(axes, correction=0)

    def away(x: Tensor) -> Tensor:
        far = (x.mean(axes) - middle).abs() > _AWAY * spread
        return (far | (x.std(axes, correction=0) > _AWAY * spread)) & (spread > 0)

    return away(x) & ~away(scaling(x))


def shift_and_width(
    how: str, mean: Tensor, deviation: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """What `how` of `Federation.scaled` subtracts and divides by, from statistics of the columns."""
    if how in ("standard", "log"):
        shift, width = mean, deviation
    elif how in ("unit", "symmetric"):
        shift, width = low, high - low
    else:
        raise FedsaddleError(
            f"scaled: how must be 'none', 'unit', 'symmetric', 'standard' or 'log', got {how!r}"
        )
    if how == "symmetric":
        shift, width = shift + width / 2, width / 2
    if (odd := ~(shift + width).isfinite().flatten()).any():
        raise FedsaddleError(
            f"scaled: column {int(odd.nonzero()[0])} has numbers too large to scale; correct or drop it, a value such as "
            "1e300 often stands for a missing one"
        )
    return shift, torch.where(width > 0, width, 1.0)
