"""All that is wrong or doubtful at a site, in plain words, before it takes part in anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsaddle import files, ingest
from fedsaddle.agreement import Message, unpacked
from fedsaddle.errors import FedsaddleError, did_you_mean, short
from fedsaddle.sites import TEST, TRAIN, VALID, Rows, Site, missing_columns, mistakes_of, tree_of, unfit_texts
from fedsaddle.toml import quoted

FEW_ROWS = 50  # training rows below which `check` says that there are few
_MAX_NAMED = 20  # columns that `check` names


def check(path: str | os.PathLike[str]) -> list[str]:
    """All that is wrong or doubtful at a site, in plain words; empty when nothing is. Nothing leaves the site."""
    try:
        if wrong := mistakes_of(tree_of(Path(path))):
            return wrong
        site = Site.load(path)
        if os.path.exists(site.file) and site.is_table:
            frame = site.frame()
            wrong = (missing_columns(site, frame) or unfit_texts(site, frame)) + _holes(site, frame)
            if wrong:
                return wrong
        rows, summary = site.rows, site.summary()
    except FedsaddleError as error:
        return [str(error)]
    return [*_doubts(site, rows, summary)]


def _holes(site: Site, frame: Any) -> list[str]:
    """Columns with missing or infinite values."""
    found: list[str] = []
    for c in frame.columns:
        if c in site.data.drop:
            continue
        values = frame[c].to_numpy()
        bad = np.isinf(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
        if site.data.impute == "none" or c in (site.data.label, site.data.together):
            bad = bad | ingest.missing(values)
        if not bad.any():
            continue
        if len(found) == _MAX_NAMED:
            return [*found, "further columns have missing values as well"]
        first, n = int(bad.argmax()), int(bad.sum())
        where = f"row {first}"
        if files.file_format(site.file) == "csv":
            where = f"line {files.line_of(site.file, first, site.data.sep)}"
        remedy = "impute it, leave these rows out, or add the column to drop"
        remedy = ingest.UNLABELLED if c == site.data.label else remedy
        found.append(
            f"column {c!r} has no usable value in {n} of {len(bad)} rows, first at {where}: {remedy}"
        )
    return found


def _doubts(site: Site, rows: Rows, summary: Message) -> Iterator[str]:
    """What can be used but may not be meant."""
    n, data = int(summary["n"]), site.data
    if n < FEW_ROWS:
        yield f"{n} training rows are few: a site of this size adds little, and its numbers say much about single people"
    head = unpacked(summary["head"])
    constant = ((summary["m2"] == 0) & (summary["size"] > 0)).nonzero().flatten().tolist()
    if head["columns"]:
        for i in (summary["size"] == 0).nonzero().flatten().tolist()[:_MAX_NAMED]:
            yield (
                f"column {head['columns'][i]!r} has a number in fewer than {data.rare} training rows: other sites' mean "
                "will stand in for nearly all of it; add it to drop at all sites if it is rare everywhere"
            )
        for i in constant[:_MAX_NAMED]:
            value = f"{float(summary['mean'][i]):.6g}"
            yield f"column {head['columns'][i]!r} is {value} in all training rows: useful only if it differs at other sites"
    for c, values in rows.text.items():
        distinct = len(np.unique(values))
        if not head["categories"][c]:
            yield (
                f"column {c!r} is text and none of its {distinct} values has {data.rare} training rows, so none will be "
                "named: if it is a number or a date, correct the file; if it is an identifier, add it to drop"
            )
        elif distinct == 1:
            yield f"column {c!r} is {str(values[0])!r} in all rows: useful only if it differs at other sites"
    if head["labels"] is None:
        return
    texts, codes = ingest.levels(rows.y, "y", ingest.UNLABELLED)
    for text in head["positive"] or ():
        if text not in texts:
            hint = did_you_mean(text, texts)
            hint = f"{hint} " if hint else ""
            yield f"positive = {quoted(text)} never occurs at this site: {hint}the label has {short(texts)}"
    sides = codes if head["positive"] is None else np.isin(texts, head["positive"])[codes]
    if len(np.unique(sides)) == 1:
        yield "all rows are of one class: the site can take part, but has no AUC of its own"
        return
    for k, name, share in (
        (TRAIN, "training", 1.0),
        (VALID, "validation", data.valid),
        (TEST, "test", data.test),
    ):
        own = sides[rows.part == k]
        if share > 0 and len(own) == 0:
            yield f"the {name} part is empty: raise its share, now {share}, or leave it out"
        elif share > 0 and len(np.unique(own)) == 1:
            yield f"the {name} part ({len(own)} rows) has one class only and no AUC: change the shares"
