"""A data frame's columns as features: numbers, and text as one column a value; what is wrong is said in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedsaddle.errors import (
    BadArgument,
    BadRow,
    FedsaddleError,
    did_you_mean,
    optional_import,
    short,
    warn,
)
from fedsaddle.files import located
from fedsaddle.ingest import Array, as_tensor, check_finite, check_present, column, text_of

MOST_VALUES = 50  # of a column of text
MOST_NAMED = 20  # columns with gaps
FILL = 'give impute="median" to fill them, or drop the columns or the rows'
FILL_BEFORE = 'build the federation with impute="median" to fill them, or drop the rows'
MISSING = "missing"  # a text that is not there, where gaps are filled


def tensors(
    x: Any,
    fields: Mapping[str, Any],
    dtype: torch.dtype | None,
    columns: tuple[str, ...] = (),
    known: tuple[str, ...] = (),
    gaps: bool = False,
    remedy: str = FILL,
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The user's arrays as checked tensors, in the user's row order, and the names of x's columns.

    Args:
        known: names of the training data's columns, which those of a test frame are put in the order of.
        gaps: whether x may have them; they are NaN.
        remedy: for gaps that it may not have.
    """
    if hasattr(x, "columns") and hasattr(x, "dtypes"):  # a pandas DataFrame
        (values,), found = one_hot([x], gaps=gaps, known=known, remedy=remedy)
        if known:
            values, found = _as_trained(values, found, known, x.columns), known
        x, columns, dtype = values, columns or found, dtype or torch.float32
    data = {name: as_tensor(value, name) for name, value in fields.items()}
    if x is not None:
        tensor = as_tensor(x, "x")
        if columns and (tensor.ndim != 2 or len(columns) != tensor.shape[1]):
            shape = list(tensor.shape[1:])
            raise FedsaddleError(
                f"feature_names has {len(columns)} names, x has samples of {shape}: give one a column"
            )
        kind = dtype or (torch.float64 if tensor.dtype == torch.float64 else torch.float32)
        data = {"x": tensor.to(kind)} | {
            k: v.to(kind) if v.is_floating_point() else v for k, v in data.items()
        }
    for name, tensor in data.items():
        check_finite(tensor, name, *((columns, gaps, remedy) if name == "x" else ()))
    return data, columns


def text_columns(frame: Any) -> list[Any]:
    """The columns of a DataFrame that are not numbers; True and False are, also among gaps, where pandas has objects."""
    types = optional_import("pandas", "a DataFrame").api.types

    def is_number(i: int, kind: Any) -> bool:
        if kind == np.dtype(object):
            return bool(types.infer_dtype(frame.iloc[:, i], skipna=True) == "boolean")
        return bool(types.is_numeric_dtype(kind))

    return [c for i, (c, kind) in enumerate(frame.dtypes.items()) if not is_number(i, kind)]


def are_dates(values: Any) -> bool:
    """Whether a column has dates, or most of its first texts are days: 2024-01-31, 31.01.2024 or 1/31/24."""
    if values.dtype.kind in "mM":
        return True
    day = r"(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d\d(\d\d)?)(?!\d)"
    found = [re.match(day, str(value)) is not None for value in values.dropna().head(20)]
    return 2 * sum(found) > len(found)


def numeric_frame(frame: Any) -> Array:
    """A DataFrame's values as floats; text columns are refused, missing values become NaN."""
    if text := text_columns(frame):
        what = f"column {text[0]!r} is" if len(text) == 1 else f"columns {short(text)} are"
        remedy = f"one-hot encode with pandas.get_dummies(frame, columns={text[:8]!r})"
        raise FedsaddleError(f"{what} not numeric ({frame[text[0]].dtype}): {remedy}")
    if objects := [
        i for i, kind in enumerate(frame.dtypes) if kind == np.dtype(object)
    ]:  # True, False and gaps
        frame = frame.copy()
        for i in objects:
            frame.isetitem(i, frame.iloc[:, i].astype("boolean").astype("Float64"))
    values: Array = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def one_hot(
    frames: Sequence[Any],
    files: Sequence[Path | None] = (None,),
    sep: str = ",",
    gaps: bool = False,
    known: tuple[str, ...] = (),
    remedy: str = FILL,
) -> tuple[list[Array], tuple[str, ...]]:
    """Tables with the same columns as floats, and the names of the columns.

    A column of text becomes one column for each value that it has in any table, such as `sex=f`: 1 where a row has it.

    Args:
        frames: the tables.
        files: where each comes from, for messages.
        sep: the character between the columns of these files.
        gaps: whether there may be some: NaN among numbers, and a value of its own among texts, such as `sex=missing`.
        known: names of the training data's columns, if these tables are not those: they say which blank columns are text.
        remedy: for gaps where there may be none.
    """
    for frame in frames:
        if (twice := frame.columns.duplicated()).any():
            raise FedsaddleError(f"column {frame.columns[twice][0]!r} is there twice: rename or drop one")
    blanks: list[set[Any]] = [set() for _ in frames]  # columns without a value, which may be text or numbers
    if gaps:
        blanks = [set(frame.columns[frame.isna().all()]) for frame in frames]
        frames = [_as_numbers(frame, blank) for frame, blank in zip(frames, blanks, strict=True)]
    else:
        _check_gaps(frames, files, sep, remedy)
    texts = [set(text_columns(frame)) for frame in frames]
    anywhere = set[Any]().union(*texts)
    for c in set[Any]().union(*blanks):
        if str(c) not in known and any(name.startswith(f"{c}=") for name in known):
            anywhere.add(c)
    texts = [text | (blank & anywhere) for text, blank in zip(texts, blanks, strict=True)]
    numeric = [c for c in frames[0].columns if not any(c in text for text in texts)]
    place = {c: i for i, c in enumerate(numeric)}
    numbers = [numeric_frame(frame[numeric]) for frame in frames]  # at once: there may be thousands
    blocks: list[list[Array]] = [[] for _ in frames]
    names: list[str] = []
    for c in frames[0].columns:
        of_text = [c in text for text in texts]
        if not any(of_text):
            names.append(str(c))
            for block, values in zip(blocks, numbers, strict=True):
                block.append(values[:, place[c], None])
            continue
        given = []
        for frame, file in (
            (frame, file) for frame, file, text in zip(frames, files, of_text, strict=True) if text
        ):
            with in_file(file, sep):
                given.append(_texts(frame[c], c))
        if not all(of_text):
            has, has_not = (Path(files[of_text.index(kind)] or "").name for kind in (True, False))
            raise FedsaddleError(
                f"column {c!r} is text in {has} and numbers in {has_not}: write it alike in all files"
            )
        if len(set[Any]().union(*given) - {None}) > MOST_VALUES:
            raise FedsaddleError(_of_many_values(frames))
        columns = [[MISSING if value is None else value for value in own] for own in given]
        distinct = sorted(set[str]().union(*columns))
        names += [f"{c}={value}" for value in distinct]
        code = {value: i for i, value in enumerate(distinct)}
        for block, own in zip(blocks, columns, strict=True):
            block.append(np.eye(len(distinct))[[code[value] for value in own]])
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise FedsaddleError(
            f"two features are called {twice!r}, a column and a value of another: rename a column"
        )
    return [
        np.concatenate([np.zeros((len(f), 0)), *b], axis=1) for b, f in zip(blocks, frames, strict=True)
    ], tuple(names)


def _of_many_values(frames: Sequence[Any]) -> str:
    """What to say of the columns of text that have more values than can be features; "" where there is none."""
    counts: dict[Any, int] = {}
    for c in dict.fromkeys(c for frame in frames for c in text_columns(frame)):
        with suppress(FedsaddleError):  # where something else is wrong with it
            values = set[Any]().union(*(_texts(frame[c], c) for frame in frames)) - {None}
            if len(values) > MOST_VALUES:
                counts[c] = len(values)
    if not counts:
        return ""
    if len(counts) > 1:
        said = ", ".join(f"{c!r} {n}" for c, n in counts.items())
        return (
            f"{len(counts)} columns are text with too many distinct values ({said}), at most {MOST_VALUES} can be features: "
            "drop the columns, or group their values"
        )
    ((c, n),) = counts.items()
    return (
        f"column {c!r} is text with {n} distinct values, at most {MOST_VALUES} can be features: "
        "drop the column, or group its values"
    )


def _check_gaps(frames: Sequence[Any], files: Sequence[Path | None], sep: str, remedy: str) -> None:
    """Refuse missing values; names all columns that have some, where the first is, and what is refused next."""
    counts = sum(frame.isna().sum() for frame in frames)
    if not counts.any():
        return
    found = [f"{c!r} {n}" for c, n in counts.items() if n]
    said = ", ".join(found[:MOST_NAMED]) + (", ..." if len(found) > MOST_NAMED else "")
    rows = sum(map(len, frames))
    for frame, file in zip(frames, files, strict=True):
        absent = frame.isna()
        if absent.any(axis=None):
            c = next(c for c in frame.columns if absent[c].any())
            row = int(absent[c].to_numpy().argmax())
            what = f"{len(found)} column{'s have' if len(found) > 1 else ' has'} gaps ({said} of {rows} rows)"
            with in_file(file, sep):
                also = _of_many_values(frames)
                raise BadRow(
                    f"{what}, the first in {c!r} at row {row}",
                    row,
                    f"{remedy}; also {also}" if also else remedy,
                )


def _as_numbers(frame: Any, columns: set[Any]) -> Any:
    """A DataFrame with columns that hold no value as NaN, whatever their type."""
    if any(frame[c].dtype.kind != "f" for c in columns):
        frame = frame.copy()
        for c in columns:
            frame[c] = np.nan
    return frame


def _as_trained(values: Array, found: Sequence[str], known: Sequence[str], columns: Iterable[Any]) -> Array:
    """The columns of a test frame in the order of the training data's; 0 for a text that no row of it has."""
    place = {name: i for i, name in enumerate(found)}
    if new := [name for name in found if name not in set(known)]:
        raise FedsaddleError(
            f"x has {new[0]!r}, which the training data have not: drop the column, or the rows with that value"
        )
    starts = tuple(f"{c}=" for c in columns if str(c) not in place)  # of text
    if gone := [name for name in known if name not in place and not name.startswith(starts)]:
        raise FedsaddleError(
            f"x has no column {gone[0]!r}, which the training data have: give the same columns"
        )
    out = np.zeros((len(values), len(known)))
    out[:, [name in place for name in known]] = values[:, [place[name] for name in known if name in place]]
    return out


def encoded(
    frame: Any, features: Sequence[str], gaps: bool = False, remedy: str = "impute it as for training"
) -> Array:
    """Rows of a DataFrame as the features of a trained model, named as `one_hot` names them.

    A value of text that training did not see is 0 in all columns of its feature, with a warning. Other columns are left out.

    Args:
        gaps: whether there may be some, as for `one_hot`.
        remedy: for gaps where there may be none.
    """
    optional_import("pandas", "a DataFrame")
    out: list[Array] = []
    seen: dict[str, Array] = {}  # of each column of text, which rows have a value that training had
    for name in features:
        of_text = [c for c in map(str, frame.columns) if name.startswith(f"{c}=")]
        if name not in frame.columns and not of_text:
            raise FedsaddleError(no_column("the frame", name.split("=")[0], frame.columns))
        c = name if name in frame.columns else max(of_text, key=len)
        absent = frame[c].isna().to_numpy()
        if not gaps:
            check_present(column(frame[c], c), f"column {c!r}", remedy)
        if c == name:
            values = np.full(len(frame), np.nan)
            if not absent.all():  # else of no type
                there = frame.loc[~absent, [c]].infer_objects()
                if text_columns(there):
                    _refuse_text(frame[c], c)
                values[~absent] = numeric_frame(there)[:, 0]
            out.append(values)
        else:
            value = name[len(c) + 1 :]
            given = (MISSING if gap else text_of(v) for v, gap in zip(frame[c].tolist(), absent, strict=True))
            out.append(np.array([text == value for text in given], dtype=np.float64))
            seen[c] = seen.get(c, absent & False) | (out[-1] == 1)
    for c, known in seen.items():
        if not known.all():
            values = frame[c][~known]
            new = dict.fromkeys(values.map(text_of).where(values.notna(), MISSING))
            warn(
                f"column {c!r}: training had no {short(new)}; {len(values)} of {len(frame)} rows have 0 in all columns of it"
            )
    return np.stack(out, axis=1)


def _refuse_text(values: Any, name: Any) -> NoReturn:
    """Say where a column first has text, for which training had numbers."""
    absent, odd = values.isna().to_numpy(), _no_numbers(values)
    if not (odd & ~absent).any():
        raise FedsaddleError(
            f"training had numbers in {name!r}; got them as {values.dtype}: convert it with pandas.to_numeric"
        )
    row = int((odd & ~absent).argmax())
    raise BadRow(
        f"training had numbers in {name!r}; got {text_of(values.iloc[row])!r} at row {row}", row, "correct it"
    )


def _no_numbers(values: Any) -> Any:
    """Where a column has no number, nor a text that is one."""
    pandas = optional_import("pandas", "a DataFrame")
    return pandas.to_numeric(values.astype(object), errors="coerce").isna().to_numpy()


def _texts(values: Any, name: Any) -> list[str | None]:
    """A column's values as texts, None for a gap; refuses dates, and numbers among which some cannot be read."""
    pandas = optional_import("pandas", "a DataFrame")
    absent = values.isna().to_numpy()
    texts = [None if gap else text_of(v) for v, gap in zip(values.tolist(), absent, strict=True)]
    if absent.all():
        return texts
    categorical = str(values.dtype) == "category"  # whose numbers are names
    if not (pandas.api.types.is_string_dtype(values.dtype) or values.dtype == object or categorical):
        raise FedsaddleError(
            f"column {name!r} is neither numbers nor text ({values.dtype}): make it numbers, such as days since a date"
        )
    if categorical:
        return texts
    odd = _no_numbers(values[~absent])
    if not odd.any():
        raise FedsaddleError(f"column {name!r} has numbers stored as text: convert it with pandas.to_numeric")
    if odd.mean() < 0.5:
        row = int(np.flatnonzero(~absent)[odd.argmax()])
        what = f"column {name!r} has numbers, but {texts[row]!r} at row {row}"
        raise BadRow(what, row, "correct it, or drop the row")
    return texts


@contextmanager
def in_file(file: Path | None, sep: str) -> Iterator[None]:
    """What is refused is named with its file."""
    if file is None:
        yield
        return
    try:
        with located(file, sep):
            yield
    except (BadRow, BadArgument):
        raise
    except FedsaddleError as error:
        raise FedsaddleError(f"{file.name}: {error}") from None


def no_column(where: str, name: str, columns: Iterable[Any]) -> str:
    """What to say of a column that is not there."""
    columns = list(columns)
    between = next((sep for sep in ";\t|" if len(columns) == 1 and sep in str(columns[0])), None)
    if between is not None:
        asked = f"is {between!r} between its columns? set sep, or write it as the others"
        return f"{where} has no column {name!r}: it has {short(columns)}; {asked}"
    hint = did_you_mean(name, map(str, columns))
    return f"{where} has no column {name!r}: {hint and f'{hint} '}it has {short(columns)}"


def columns_of(
    frame: Any, group: str, label: str | None, features: Sequence[str] | None, drop: Sequence[str]
) -> tuple[Any, Any, Any]:
    """x, y and the clients' names out of a DataFrame."""
    if features is None:
        features = [c for c in frame.columns if c not in (group, label, *drop)]
    elif both := [c for c in features if c in drop]:
        raise FedsaddleError(f"column {both[0]!r} is in features and in drop: remove it from one of them")
    check_columns(
        "the table",
        frame,
        group=[group],
        label=[] if label is None else [label],
        features=features,
        drop=drop,
    )
    return frame[list(features)], None if label is None else frame[label], frame[group]


def check_columns(where: str, frame: Any, **wanted: Sequence[str]) -> None:
    """Refuse columns that are not there, by the argument that names them."""
    for argument, names in wanted.items():
        for name in names:
            if name not in frame.columns:
                raise BadArgument(f"{argument}: {no_column(where, name, frame.columns)}")
