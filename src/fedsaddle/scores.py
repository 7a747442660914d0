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
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.folder import SCORES, write_whole
from fedsaddle.metrics import Interval, auc, auc_difference

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


def differences(groups: Sequence[Sequence[Path]]) -> tuple[list[Interval | None] | None, str]:
    """The best group's mean test AUC less that of each, None for itself; where that cannot be had, None and why.

    Args:
        groups: folders of runs; those of a group are repetitions, such as over seeds.
    """
    if len(groups) < 2:
        return None, ""
    runs: list[list[Scores]] = []
    for group in groups:
        found = [read(folder) for folder in group]
        runs.append([one for one in found if one is not None])
        if len(runs[-1]) < len(group):
            return None, "a run has no scores.csv"
    first = runs[0][0]
    if not all(_same(one, first) for own in runs for one in own):
        return None, "the runs have different test samples"
    scored = [torch.stack([one.scores for one in own]) for own in runs]
    aucs = [fmean(auc(one, first.positive) for one in own) for own in scored]
    if any(value != value for value in aucs):
        return None, "an AUC is undefined"
    best = aucs.index(max(aucs))
    return [
        None if i == best else auc_difference(scored[best], own, first.positive)
        for i, own in enumerate(scored)
    ], ""


def _same(one: Scores, other: Scores) -> bool:
    return torch.equal(one.rows, other.rows) and torch.equal(one.positive, other.positive)
