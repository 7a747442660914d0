"""scores.csv of a run's folder: what the trained model gives each test sample, and which sample that is.

    client,row,y,score
    north,17,1,0.8312

`row` counts the rows of the table that the samples came from, from 0: of your table where test samples are held out of it,
of the test set where there is one of its own, of all files one after another where each client has one. With it other
models can be compared on the same samples. y is 1 where the sample counts as positive. Labels of single samples are in the
file: share it as you would the data.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle import metrics
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.folder import SCORES, auc_interval, between, write_whole
from fedsaddle.metrics import Interval

MOST = 1_000_000  # of more samples nothing is written

_HEAD = ["client", "row", "y", "score"]


class Scores(NamedTuple):
    """The test samples of a run by their rows, and their scores."""

    rows: Tensor  # [n] in ascending order
    positive: Tensor  # [n] bool
    scores: Tensor  # [n] float64


def write(folder: Path, test: Federation, scores: Tensor, positive: Tensor) -> None:
    """Write down the scores [n] of a test set and whether each sample counts as positive [n]."""
    if test.n_samples > MOST:
        return
    rows = range(test.n_samples) if test.rows is None else test.rows.tolist()
    names = [test.names[i] for i in test.owners.tolist()]
    # so many digits that equal numbers, and no others, are written alike
    digits = 17 if scores.dtype == torch.float64 else 9
    written = [f"{score:.{digits}g}" for score in scores.tolist()]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    writer.writerows(zip(names, rows, positive.int().tolist(), written, strict=True))
    # a client may be named after a file whose name is no text
    write_whole(folder / SCORES, text.getvalue().encode(errors="backslashreplace"))


def read(folder: Path) -> Scores | None:
    """The scores of a run; None where it has none."""
    file = folder / SCORES
    if not file.is_file():
        return None
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            head, *samples = csv.reader(lines)
        if head != _HEAD or not samples:
            raise ValueError
        rows = torch.tensor([int(row) for _, row, _, _ in samples])
        positive = torch.tensor([{"0": False, "1": True}[y] for _, _, y, _ in samples])
        scores = torch.tensor([float(score) for *_, score in samples], dtype=torch.float64)
    except (ValueError, KeyError, OverflowError, RuntimeError, csv.Error):
        raise FedsaddleError(f"{file}: is not the scores of a run; remove it, or train again") from None
    order = rows.argsort(stable=True)
    return Scores(rows[order], positive[order], scores[order])


class Compared(NamedTuple):
    """What test samples say of the test AUCs of groups of runs; those of a group are repetitions, such as over seeds."""

    sure: list[
        str
    ]  # of each its 95 % interval over test samples, of repetitions of their mean AUC; "" where unknown
    behind: list[Interval | None] | None  # the best group's mean AUC less that of each, None for itself
    why: str  # the latter is not known


def compared(groups: Sequence[Mapping[Path, dict[str, Any]]]) -> Compared:
    """Compare test AUCs on the same samples.

    Args:
        groups: of each its runs' folders, with result.json.
    """
    alone = sum(map(len, groups)) == 1  # its result has all that is asked for
    runs = [[] if alone else [read(folder) for folder in own] for own in groups]
    sure = [
        _interval(found) if len(own) > 1 else auc_interval(*own.values())
        for own, found in zip(groups, runs, strict=True)
    ]
    return Compared(sure, *_differences(runs))


def _interval(runs: Sequence[Scores | None]) -> str:
    """Between what the mean AUC of repetitions may lie, as text."""
    found = [one for one in runs if one is not None]
    if len(found) < len(runs) or not all(_same(one, found[0]) for one in found):
        return ""
    interval = metrics.auc_interval(torch.stack([one.scores for one in found]), found[0].positive)
    return between(interval.low, interval.high) if interval else ""


def _differences(runs: Sequence[Sequence[Scores | None]]) -> tuple[list[Interval | None] | None, str]:
    """How far each group is behind the best; where that cannot be had, None and why."""
    if len(runs) < 2:
        return None, ""
    known = [[one for one in own if one is not None] for own in runs]
    if any(len(found) < len(own) for found, own in zip(known, runs, strict=True)):
        return None, "a run has no scores.csv"
    first = known[0][0]
    if not all(_same(one, first) for own in known for one in own):
        return None, "the runs have different test samples"
    scored = [torch.stack([one.scores for one in own]) for own in known]
    aucs = [fmean(metrics.auc(one, first.positive) for one in own) for own in scored]
    if any(value != value for value in aucs):
        return None, "an AUC is undefined"
    best = aucs.index(max(aucs))
    return [
        None if i == best else metrics.auc_difference(scored[best], own, first.positive)
        for i, own in enumerate(scored)
    ], ""


def _same(one: Scores, other: Scores) -> bool:
    return torch.equal(one.rows, other.rows) and torch.equal(one.positive, other.positive)
