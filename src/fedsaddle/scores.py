"""scores.csv of a run's folder: what the trained model gives each test sample, and which sample that is.

    client,row,y,score
    north,17,1,0.8312

`row` counts the rows of the table that the data came from, from 0 (of one file a client, those of its file); with it other
models can be compared on the same samples. The file has labels of single samples in it: share it as you would the data.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.folder import SCORES, write_whole
from fedsaddle.metrics import Interval, auc, auc_difference

MOST = 1_000_000  # samples; of more nothing is written

_HEAD = ["client", "row", "y", "score"]


class Scores(NamedTuple):
    """The test samples of a run in order, and their scores."""

    samples: list[tuple[str, str, str]]  # client, row and whether it counts as positive, 1 or 0
    scores: Tensor  # [n] float64

    @property
    def positive(self) -> Tensor:
        """[n] bool."""
        return torch.tensor([y == "1" for _, _, y in self.samples])


def write(folder: Path, test: Federation, scores: Tensor, positive: Tensor) -> None:
    """Write down the scores [n] of a test set and whether each sample counts as positive [n]."""
    if test.n_samples > MOST:
        return
    rows = range(test.n_samples) if test.rows is None else test.rows.tolist()
    names = [test.names[i] for i in test.owners.tolist()]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    digits = (
        17 if scores.dtype == torch.float64 else 9
    )  # so that equal numbers, and no others, are written alike
    written = [f"{score:.{digits}g}" for score in scores.tolist()]
    writer.writerows(zip(names, rows, positive.int().tolist(), written, strict=True))
    write_whole(folder / SCORES, text.getvalue().encode())


def read(folder: Path) -> Scores | None:
    """The scores of a run; None where it has none."""
    file = folder / SCORES
    if not file.is_file():
        return None
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            head, *rows = csv.reader(lines)
        if head != _HEAD or not rows:
            raise ValueError
        found = Scores(
            [(client, row, y) for client, row, y, _ in rows],
            torch.tensor([float(score) for *_, score in rows], dtype=torch.float64),
        )
    except (ValueError, csv.Error, UnicodeDecodeError):
        raise FedsaddleError(f"{file}: are not the scores of a run; remove it, or train again") from None
    return found


def differences(folders: Sequence[Path]) -> list[Interval | None] | None:
    """The best run's test AUC less that of each run, None for itself; nothing unless all scored the same samples."""
    found = [read(folder) for folder in folders]
    runs = [one for one in found if one is not None]
    if len(runs) < max(2, len(found)) or any(one.samples != runs[0].samples for one in runs):
        return None
    positive = runs[0].positive
    aucs = [auc(one.scores, positive) for one in runs]
    best = aucs.index(max(aucs))
    return [
        None if i == best else auc_difference(runs[best].scores, one.scores, positive)
        for i, one in enumerate(runs)
    ]
