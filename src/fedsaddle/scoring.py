"""score: what a run's model gives the rows of a new table, as a table.

    row,patient,score                   row,class,score_benign,score_malignant
    0,p-0017,0.8312                     0,malignant,-1.204,2.117

`row` counts the table's rows from 0. Where the problem is one of classes, each has a score, and `class` is the one with the
highest.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError, did_you_mean
from fedsaddle.export import load_model
from fedsaddle.files import file_format, odd_byte, read_frame
from fedsaddle.folder import read_result
from fedsaddle.frames import in_file
from fedsaddle.kinds import OF_CLASSES
from fedsaddle.parse import read_toml

_AT_ONCE = 10_000  # rows


def score(folder: str | os.PathLike[str], table: str | os.PathLike[str], keep: Sequence[str] = ()) -> str:
    """The scores of a table's rows as CSV.

    Args:
        folder: of a run that has ended, with a config.toml; its `sep` and `decimal` are those of the table, too, and its
            `encoding` where the table is no UTF-8.
        table: a .csv or .parquet file with the columns that the run was trained on, and perhaps others.
        keep: columns of it that are copied beside the scores, such as one that names the row.
    """
    folder, file = Path(folder), Path(table)
    result, model = read_result(folder), load_model(folder)
    if file_format(file) not in ("csv", "parquet"):
        raise FedsaddleError(f"score: must be a .csv or .parquet file, got {file}")
    data = read_toml(folder / "config.toml").get("data", {})
    sep, encoding = data.get("sep", ","), "utf-8"
    if file_format(file) == "csv" and odd_byte(file, encoding) is not None:
        encoding = data.get("encoding", encoding)
    frame = read_frame(file, sep, data.get("decimal", "."), encoding)
    with in_file(file, sep):
        kept = _kept(file, frame, sep, encoding, keep)
        x = model.rows(frame)
    with torch.no_grad():
        outputs = torch.cat([model(part).reshape(len(part), -1) for part in x.split(_AT_ONCE)])
    named = _named(outputs, result["config"]["problem"], result["classes"])
    if taken := [k for k in keep if k in ("row", *named)]:
        raise FedsaddleError(
            f"score: --keep {taken[0]!r} is what a column of the scores is called; rename it"
        )
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *keep, *named])
    writer.writerows(zip(range(len(x)), *kept, *named.values(), strict=True))
    return text.getvalue()


def _kept(file: Path, frame: Any, sep: str, encoding: str, keep: Sequence[str]) -> list[list[Any]]:
    """Columns as they are written in the file: 007 is no 7."""
    for name in keep:
        if name not in frame.columns:
            hint = did_you_mean(name, map(str, frame.columns))
            hint = hint or f"columns are {', '.join(map(str, frame.columns[:8]))}"
            raise FedsaddleError(f"score: --keep {name!r} is no column of {file.name}; {hint}")
    if keep and file_format(file) == "csv":
        import pandas

        as_text = {"dtype": str, "keep_default_na": False}
        frame = pandas.read_csv(file, sep=sep, encoding=encoding, usecols=list(keep), **as_text)
    return [frame[name].tolist() for name in keep]


def _named(outputs: Tensor, problem: dict[str, Any], classes: Sequence[str]) -> dict[str, list[str]]:
    """The columns of scores."""
    digits = 17 if outputs.dtype == torch.float64 else 9  # equal numbers, and no others, are written alike
    columns = [[f"{v:.{digits}g}" for v in column] for column in outputs.T.tolist()]
    if len(columns) == 1:
        return {"score": columns[0]}
    if problem.get("loss") in OF_CLASSES and len(columns) == len(classes):
        best = [classes[i] for i in outputs.argmax(1).tolist()]
        scores = {f"score_{name}": column for name, column in zip(classes, columns, strict=True)}
        return {"class": best} | scores
    return {f"score_{i}": column for i, column in enumerate(columns)}
