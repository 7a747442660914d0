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
import math
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

DIFFERENT = "different test samples"  # why rows are not compared sample by sample
VARYING = "its runs have different test samples"


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
    """What test samples say of the test AUCs of rows; the runs of a row are repetitions, such as over seeds."""

    sure: dict[
        str, str
    ]  # 95 % intervals over test samples, of repetitions of their mean AUC; of rows that have one
    best: (
        str  # of the rows with the same test samples, the one with the highest mean AUC; "" of fewer than two
    )
    behind: dict[str, Interval]  # its mean AUC less that of each of the others
    apart: dict[str, str]  # rows that are not compared sample by sample, and why

    def verdict(self) -> str:
        """Whether the best is ahead by more than chance; "" where nothing is compared."""
        if not self.behind:
            return ""
        clear = [name for name, by in self.behind.items() if by.low > 0]
        level = [name for name in self.behind if name not in clear]
        explained = "by more than the choice of test samples explains"
        if clear and level:
            told = f"{', '.join(clear)}; not told apart from it: {', '.join(level)}"
            return f"Behind the best, {self.best}, {explained}: {told}."
        others = "all others" if len(self.behind) > 1 else "the other"
        others += " with the same test samples" * bool(self.apart)
        return f"{self.best if clear else 'No row'} is ahead of {others} {explained}."

    def notes(self) -> list[str]:
        """What the differences are, and which rows have none."""
        said = []
        if self.behind:
            widened = ", widened so that those of all pairs of rows hold at once (Bonferroni)"
            said.append(
                "Behind the best: on the same test samples, with a 95 % interval over their choice, not over seeds"
                f"{widened * (len(self.behind) > 1)}."
            )
        if self.apart:
            names = {why: [k for k, v in self.apart.items() if v == why] for why in self.apart.values()}
            listed = ", ".join(f"{', '.join(rows)} ({why})" for why, rows in names.items())
            said.append(f"Not compared sample by sample: {listed}.")
        return said


def compared(rows: Mapping[str, Mapping[Path, dict[str, Any]]]) -> Compared:
    """Compare test AUCs on the same samples, of the largest set of rows that have the same.

    Args:
        rows: of each its runs' folders, with result.json.
    """
    alone = sum(map(len, rows.values())) == 1  # its result has all that is asked for
    runs = {name: [] if alone else [read(folder) for folder in own] for name, own in rows.items()}
    sure = {
        name: _interval(runs[name]) if len(own) > 1 else auc_interval(*own.values())
        for name, own in rows.items()
    }
    best, behind, apart = _differences(runs) if len(rows) > 1 else ("", {}, {})
    return Compared({name: text for name, text in sure.items() if text}, best, behind, apart)


def _interval(runs: Sequence[Scores | None]) -> str:
    """Between what the mean AUC of repetitions may lie, as text."""
    found = [one for one in runs if one is not None]
    if len(found) < len(runs) or not all(_same(one, found[0]) for one in found):
        return ""
    interval = metrics.auc_interval(torch.stack([one.scores for one in found]), found[0].positive)
    return between(interval.low, interval.high) if interval else ""


def _differences(
    rows: Mapping[str, Sequence[Scores | None]],
) -> tuple[str, dict[str, Interval], dict[str, str]]:
    """The best row, how far others are behind it, and which rows are left out."""
    apart = {name: why for name, own in rows.items() if (why := _unfit(own))}
    known = {name: [one for one in own if one is not None] for name, own in rows.items() if name not in apart}
    alike = [[k for k in known if _same(known[k][0], own[0])] for own in known.values()]
    together = max(alike, key=len, default=[])  # of equally many, those with the first row
    if len(together) < 2 and len(known) > 1:
        together = []
    apart |= {name: DIFFERENT for name in known if name not in together}
    if len(together) < 2:
        return "", {}, apart
    positive = known[together[0]][0].positive
    scored = {name: torch.stack([one.scores for one in known[name]]) for name in together}
    means = {name: fmean(metrics.auc(one, positive) for one in own) for name, own in scored.items()}
    best = max(means, key=means.__getitem__)
    error = 0.05 / math.comb(
        len(together), 2
    )  # the best is known afterwards only, so that it could be any of them
    behind = {
        name: by
        for name, own in scored.items()
        if name != best and (by := metrics.auc_difference(scored[best], own, positive, error)) is not None
    }
    if not behind:
        return "", {}, apart | dict.fromkeys(together, "fewer than two test samples of a class")
    return best, behind, apart


def _unfit(runs: Sequence[Scores | None]) -> str:
    """Why a row's scores cannot be compared with others; "" where they can."""
    found = [one for one in runs if one is not None]
    if len(found) < len(runs):
        return "no scores.csv"
    if not all(_same(one, found[0]) for one in found):
        return VARYING
    return "a score is not a number" if any(one.scores.isnan().any() for one in found) else ""


def _same(one: Scores, other: Scores) -> bool:
    return torch.equal(one.rows, other.rows) and torch.equal(one.positive, other.positive)
