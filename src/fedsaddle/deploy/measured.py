"""What the sites have measured, as one evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsaddle import metrics
from fedsaddle.deploy.protocol import SPLITS, Head
from fedsaddle.histograms import auc_from_histograms, edges
from fedsaddle.metrics import Evaluation, Interval

AUC_TARGET = 1e-3  # how far the AUC over all sites may be off


def cuts_of(sketches: Sequence[Any]) -> tuple[Tensor, ...]:
    """Of each split, where to cut the scores so that counts between the cuts give the AUC; empty where nobody has any."""
    return tuple(
        edges([dict(s[k]) for s in sketches if s[k] is not None], AUC_TARGET)
        if any(s[k] is not None for s in sketches)
        else torch.zeros(0, dtype=torch.float64)
        for k in range(len(SPLITS))
    )


def pooled_auc(counts: Sequence[Any]) -> dict[str, float]:
    """The AUC over all sites and how far it can be off, from the sites' counts; on training rows if nobody tests."""
    values: dict[str, float] = {}
    keys = dict(zip(SPLITS, ("train_auc", "valid_auc", "auc"), strict=True))
    on_test = any(c[SPLITS.index("test")] is not None for c in counts)
    for k, split in enumerate(SPLITS):
        own = [c[k].long() for c in counts if c[k] is not None]
        if own and not (split == "train" and on_test):
            estimate = auc_from_histograms(own)
            values |= {keys[split]: estimate.auc, f"{keys[split]}_bound": estimate.bound}
    return values


def intervals(counts: Sequence[Any]) -> dict[str, Interval]:
    """Between what the AUCs over all sites may lie, as far as the choice of samples goes; scores of a bin are ties."""
    found: dict[str, Interval] = {}
    for split in ("valid", "test"):
        own = [c[SPLITS.index(split)] for c in counts if c[SPLITS.index(split)] is not None]
        total = sum(own[1:], start=own[0]) if own else torch.zeros(2, 1)
        if (interval := metrics.auc_interval_of_counts(total[0], total[1])) is not None:
            found[split] = interval
    return found


def tested(sketch: Any) -> tuple[int, int]:
    """How many negatives and positives a site has tested on, from its first message."""
    test = sketch[SPLITS.index("test")]
    negatives, positives = (0, 0) if test is None else map(int, dict(test)["size"].tolist())
    return negatives, positives


def together(values: dict[str, float], heads: Mapping[int, Head], weights: Sequence[float]) -> Evaluation:
    """What the sites have measured as one evaluation: means, and each site's own.

    Args:
        weights: of each site in the objective.
    """
    measured = {i: head.get("values", {}) for i, head in heads.items()}
    by_client: dict[str, list[float]] = {}
    for name in ("auc", "accuracy"):
        if any(f"{name}_clients" in m for m in measured.values()):
            by_client[name] = [
                measured.get(i, {}).get(f"{name}_clients", math.nan) for i in range(len(weights))
            ]
            values |= metrics.spread(by_client[name], name)
    for name, split in (("accuracy", "test"), ("valid_accuracy", "valid"), ("train_accuracy", "train")):
        sized = ((m.get(name), heads[i].get("sizes", {}).get(split, 0)) for i, m in measured.items())
        known = [(value, size) for value, size in sized if value is not None and size > 0]
        if known:
            values[name] = sum(v * size for v, size in known) / sum(size for _, size in known)
    losses = {i: m["loss"] for i, m in measured.items() if "loss" in m}
    if losses:
        total = sum(weights[i] for i in losses)
        values["loss"] = sum(weights[i] * loss for i, loss in losses.items()) / total
    if any("single_class_clients" in m for m in measured.values()):
        values["single_class_clients"] = sum(m.get("single_class_clients", 0) for m in measured.values())
    return Evaluation(values, by_client)
