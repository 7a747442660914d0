"""Which replies of sites are used: what does not fit is refused, and said why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsaddle.deploy.protocol import SPLITS, Head
from fedsaddle.errors import FedsaddleError
from fedsaddle.wire import signature, tensors_of

_LARGEST = 1e300  # number in a measurement
_MOST_SCORES = 1e12  # of one class at a site, that are believed
_ROOM = 1 << 26  # bytes of a reply beside those that the model's size explains
_MODELS = 64  # so many numbers for each of the model's


def check_size(body: bytes, numbers: int) -> None:
    """Refuse a reply that is larger than any work on a model of so many numbers gives, before it is decoded."""
    most = _ROOM + 8 * _MODELS * numbers
    if len(body) > most:
        raise FedsaddleError(f"its answer is refused: it has {len(body):,} bytes, at most {most:,} are read")


def check_finite(tree: Any) -> None:
    """Refuse numbers that a mean would spread to all sites; rows of single sites (Each) may have NaN for what is absent."""
    for path, tensor in tensors_of(tree, marked=False):
        if tensor.ndim != 2 or tensor.shape[0] != 1 or not tensor.is_floating_point():
            raise FedsaddleError(
                f"its answer is refused: {path or 'it'} must be a row of real numbers [1, k], got {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
        if not tensor.isfinite().all():
            bad = int((~tensor.isfinite()).sum())
            raise FedsaddleError(
                f"its answer is refused: {path or 'it'} has {bad} of {tensor.numel()} numbers that are not finite"
            )


def check_measured(tree: Any, head: Head, cuts: Sequence[Tensor] | None, target: float) -> None:
    """Refuse what is no sketch of scores on each split or, after the cuts, no counts between them."""
    for name in ("values", "sizes"):
        if not all(type(v) in (int, float) and abs(v) <= _LARGEST for v in head.get(name, {}).values()):
            raise ValueError(f"{name} must be finite numbers")
    for k, (split, part) in enumerate(zip(SPLITS, tree, strict=True)):
        if part is None:
            continue
        if cuts is not None:
            if list(part.shape) != [3, 2 * len(cuts[k]) + 1] or not (part >= 0).all() or not part[2, 0] == 1:
                raise ValueError(f"counts of {split} must be those between its {len(cuts[k])} cuts")
            continue
        own = dict(part)
        if tuple(own["size"].shape) != (2,):
            raise ValueError(f"sizes of {split} must be two numbers")
        sizes = [len(own["negative"]), len(own["positive"])]
        if not (own["size"] >= torch.tensor(sizes)).all() or not (own["size"] <= _MOST_SCORES).all():
            raise ValueError(f"sizes of {split} must be two numbers of scores")
        if any(v.ndim != 1 or v.dtype != torch.float64 or v.isnan().any() for v in own.values()):
            raise ValueError(f"quantiles of {split} must be rows of numbers")
        if max(sizes) > 2 / target:
            raise ValueError(f"{max(sizes)} quantiles of {split} are more than were asked for")


def odd_ones(replies: Mapping[int, Any], names: Sequence[str], work: str) -> dict[int, str]:
    """Replies whose form is not that of most, with what is odd; where two forms are as frequent, all of them."""
    forms = {i: signature(tree) for i, tree in replies.items()}
    ranked = Counter(forms.values()).most_common()
    if len(ranked) <= 1:
        return {}
    usual, often = ranked[0]
    if ranked[1][1] == often:
        found = "; ".join(f"{_in_short(form)} at {names[i]}" for i, form in forms.items())
        return dict.fromkeys(forms, f"its answer is refused: {work} gives {found}; no form is that of most")
    return {
        i: f"its answer is refused: {work} gives {_in_short(usual)} at the other sites, got {_in_short(form)}"
        for i, form in forms.items()
        if form != usual
    }


def _in_short(form: Any) -> str:
    return " ".join(str(form).replace("torch.", "").split())
