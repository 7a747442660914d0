"""One file a client: which files there are, what each holds, and whether they fit together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsaddle.errors import FedsaddleError, optional_import, short
from fedsaddle.files import (
    COMPRESSED,
    FORMATS,
    check_bytes,
    file_format,
    located,
    read_frame,
    read_npz,
    reading,
)
from fedsaddle.frames import FILL, check_columns, one_hot
from fedsaddle.ingest import UNLABELLED, Array, IntArray, as_tensor, check_finite, check_present, column


class _Table(NamedTuple):
    x: Any  # an array, or a DataFrame
    y: Any
    columns: tuple[str, ...]


def read_files(
    paths: Any,
    label: str | None,
    drop: Sequence[str] = (),
    sep: str = ",",
    gaps: bool = False,
    decimal: str = ".",
    encoding: str = "utf-8",
) -> tuple[Array, Any, list[IntArray], list[str], tuple[str, ...]]:
    """x, y (of tables a Series), the rows of each file, the client that each file names, and the names of x's columns.

    Args:
        gaps: whether x may have them, as for `one_hot`.
    """
    files = expand(paths)
    names = [_stem(file) for file in files]
    for i, name in enumerate(names):
        if name in names[:i]:
            twins = f"{files[names.index(name)]} and {files[i]}"
            raise FedsaddleError(f"two files name the client {name!r} ({twins}): rename one of them")
    tables = [_read_file(file, label, drop, sep, decimal, encoding) for file in files]
    columns, xs = tables[0].columns, _aligned(files, tables)
    if columns:
        xs, columns = one_hot(xs, files, sep, gaps)
    ys = [column(table.y, "y") for table in tables]
    for file, x, y in zip(files, xs, ys, strict=True):
        with located(file, sep):
            check_finite(as_tensor(x, "x"), "x", columns, gaps, FILL)
            check_present(y, f"label {label!r}" if columns else "y", UNLABELLED)
    ends, y = np.cumsum([len(x) for x in xs]), np.concatenate(ys)
    if columns:
        y = optional_import("pandas", "a table").Series(y, name=label, dtype=y.dtype)  # messages name it
    return np.concatenate(xs), y, np.split(np.arange(ends[-1]), ends[:-1]), names, columns


def expand(paths: Any) -> list[Path]:
    """The files behind a list, a folder or a glob pattern."""
    if isinstance(paths, (str, os.PathLike)):
        place = Path(paths).expanduser()
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.is_file() and file_format(file))
        elif place.is_file():
            files = [place]
        else:
            found = Path(place.anchor).glob(str(place.relative_to(place.anchor)))
            files = sorted(file for file in found if file.is_file())
        if not files:
            raise FedsaddleError(
                f"no data file at {str(paths)!r}: give a folder, a glob such as 'sites/*.csv' or a list"
            )
        return files
    files = [Path(path).expanduser() for path in paths]
    for file in files:
        if not file.is_file():
            raise FedsaddleError(f"{file} is not there: check the path")
    if not files:
        raise FedsaddleError("paths is empty: give one file a client")
    return files


def _stem(file: Path) -> str:
    stem = file.name
    for suffix in reversed(file.suffixes):
        if suffix.lower() in (*COMPRESSED, *FORMATS):
            stem = stem.removesuffix(suffix)
    return stem


def read_arrays(file: Path) -> tuple[Array, Array]:
    """x and y of a .npz file or of LIBSVM text."""
    kind = file_format(file)
    with reading(file, kind):
        if kind == "npz":
            x, y = read_npz(file, "x", "y")
            if y.dtype.kind not in "fiubUS":
                raise ValueError(f"y must be numbers or text, got dtype {y.dtype}")
            return x, y
        x, y = optional_import("sklearn.datasets", "LIBSVM text").load_svmlight_file(str(file))
        return as_tensor(x, f"{file.name}: x").numpy(), y


def _read_file(
    file: Path, label: str | None, drop: Sequence[str], sep: str, decimal: str, encoding: str
) -> _Table:
    """x, y and column names of one client's file."""
    if file_format(file) not in ("csv", "parquet"):
        if drop:
            raise FedsaddleError(f"{file} has no named columns: leave drop out, or remove them from the file")
        return _Table(*read_arrays(file), ())
    frame = read_frame(file, sep, decimal, encoding)
    if label is None:
        raise FedsaddleError(
            f"{file} is a table: name its label column with label=, one of {short(frame.columns)}"
        )
    check_columns(str(file), frame, label=[label], drop=drop)
    features = frame.drop(columns=[label, *drop])
    return _Table(features, frame[label], tuple(map(str, features.columns)))


def same_columns(files: Sequence[Path], columns: Sequence[Sequence[str]]) -> None:
    """Refuse a file that has other columns than the first one, in whatever order."""
    for file, own in zip(files, columns, strict=True):
        for has, other, what in ((own, columns[0], "has no column"), (columns[0], own, "has column")):
            known = set(has)
            if odd := [c for c in other if c not in known]:
                which = f"which {files[0].name} has{' not' * (what == 'has column')}"
                raise FedsaddleError(f"{file.name} {what} {odd[0]!r}, {which}: give all the same columns")


def _aligned(files: list[Path], tables: list[_Table]) -> list[Any]:
    """Each table's x with the first one's columns in their order; files that have others are refused."""
    first, columns, xs = files[0].name, tables[0].columns, [table.x for table in tables]
    if all(file_format(file) == "libsvm" for file in files):
        width = max(x.shape[1] for x in xs)  # a file that never uses the last features looks narrower
        wanted, there = (sum(n) for n in zip(*((8 * len(x) * width, x.nbytes) for x in xs), strict=True))
        check_bytes(
            f"{width} features take", wanted, there, " in all files", "correct the largest feature number"
        )
        xs = [np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in xs]
    same_columns(files, [table.columns for table in tables])
    for i, (file, (_, _, own)) in enumerate(zip(files, tables, strict=True)):
        if own != columns:
            xs[i] = xs[i].iloc[:, [own.index(c) for c in columns]]
        got, want = list(xs[i].shape[1:]), list(xs[0].shape[1:])
        if got != want:
            raise FedsaddleError(
                f"{file.name} has samples of shape {got}, {first} of {want}: give the same features"
            )
    return xs
