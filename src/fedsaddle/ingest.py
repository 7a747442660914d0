"""The user's arrays, sparse matrices, frames and tables as checked tensors; what is wrong is said in one line."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsaddle.errors import (
    IMPUTE,
    BadArgument,
    BadRow,
    FedsaddleError,
    did_you_mean,
    optional_import,
    short,
    warn,
)
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

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

MOST_VALUES = 50  # of a column of text
MOST_NAMED = 20  # columns with gaps
MOST_NEGATIVES = 4  # values named that count as negative
REGRESSION_LEVELS = 20  # float labels with more distinct fractions than this are a regression target
UNLABELLED = "drop rows without a label, or label them"
UNOWNED = "drop rows without a client, or name it"
REPLACE = "replace it, or drop the row"
FILL = 'give impute="median" to fill them, or drop the columns or the rows'
FILL_BEFORE = 'build the federation with impute="median" to fill them, or drop the rows'
MISSING = "missing"  # a text that is not there, where gaps are filled


# --------------------------------------------------------------------------------------------------- arrays


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


def as_tensor(value: Any, name: str) -> Tensor:
    """numpy, torch, pandas, list or scipy sparse as a tensor with at least one axis."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        if hasattr(value, "toarray") and hasattr(value, "nnz"):  # scipy sparse
            n_bytes = math.prod(value.shape) * value.dtype.itemsize
            remedy = "drop columns or reduce them with sklearn's TruncatedSVD"
            check_bytes(
                f"{name} is sparse and takes",
                n_bytes,
                16 * value.nnz,
                f" when dense, {value.shape[1]} columns wide",
                remedy,
            )
            value = value.toarray()
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise FedsaddleError(
                f"{name} is ragged: every sample needs the same shape; pad or crop them"
            ) from error
        if array.dtype.kind not in "fiub":
            remedy = "encode text as numbers, for example with pandas.get_dummies"
            raise FedsaddleError(f"{name} must be numeric, got dtype {array.dtype}: {remedy}")
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        if array.dtype.kind == "f" and array.dtype.itemsize not in (2, 4, 8):
            array = array.astype(np.float64)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W", "A"]))
    if tensor.ndim == 0 or len(tensor) == 0:
        raise FedsaddleError(f"{name} has no rows: give one row a sample")
    return tensor


def text_columns(frame: Any) -> list[Any]:
    """The columns of a DataFrame that are not numbers; True and False are, also among gaps, where pandas has objects."""
    types = optional_import("pandas", "a DataFrame").api.types

    def is_number(i: int, kind: Any) -> bool:
        if kind == np.dtype(object):
            return bool(types.infer_dtype(frame.iloc[:, i], skipna=True) == "boolean")
        return bool(types.is_numeric_dtype(kind))

    return [c for i, (c, kind) in enumerate(frame.dtypes.items()) if not is_number(i, kind)]


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


def check_finite(
    tensor: Tensor, name: str, columns: Sequence[str] = (), gaps: bool = False, remedy: str = IMPUTE
) -> None:
    """Refuse infinite numbers, and NaN unless there may be gaps.

    Args:
        columns: their names, if they have some.
        remedy: for NaN.
    """
    if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):  # a finite sum has finite terms only
        return
    bad = (torch.isinf(tensor) if gaps else ~torch.isfinite(tensor)).nonzero()
    if len(bad) == 0:  # the sum alone overflowed
        return
    row, *at = bad[0].tolist()
    value = float(tensor[tuple(bad[0])])
    what = "NaN" if value != value else "inf" if value > 0 else "-inf"
    where = f"row {row}"
    if len(at) == 1:
        where += f", column {columns[at[0]]!r} ({at[0]})" if columns else f", column {at[0]}"
    elif at:
        where += f", position {tuple(at)}"
    others = [columns[c] for c in bad[:, 1].unique().tolist()] if len(at) == 1 and columns else []
    more = f" (so have {len(others)} columns: {short(others)})" if len(others) > 1 else ""
    raise BadRow(f"{name} has {what} at {where}{more}", row, remedy if what == "NaN" else REPLACE)


def same_length(data: Mapping[str, Tensor]) -> int:
    """The number of rows that all fields share."""
    if not data:
        raise FedsaddleError("a federation needs data: give x, or named arrays")
    first, n = next((name, len(tensor)) for name, tensor in data.items())
    for name, tensor in data.items():
        if len(tensor) != n:
            raise FedsaddleError(f"{name} has {len(tensor)} rows, {first} has {n}: give one row a sample")
    return n


# --------------------------------------------------------------------------------------------------- labels


def column(values: Any, name: str) -> Array:
    """One value a row as a one-dimensional numpy array."""
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise FedsaddleError(
            f"{name} must hold one value a row, got shape {list(array.shape)}: give one column"
        )
    return array


def text_of(value: Any) -> str:
    """A label as text, so that 1, 1.0 and "1" are the same class."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def missing(values: Array) -> npt.NDArray[np.bool_]:
    """Where there is no value: None, NaN and pandas' NA."""
    if values.dtype.kind != "O":
        return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    return np.array(
        [v is None or type(v).__name__ in ("NAType", "NaTType") or v != v for v in values], dtype=bool
    )


def check_present(values: Array, name: str, remedy: str = IMPUTE) -> None:
    """Refuse rows without a value."""
    if (absent := missing(values)).any():
        row, n = int(absent.argmax()), int(absent.sum())
        where = f"at row {row}" if n == 1 else f"in {n} of {len(values)} rows, the first at row {row}"
        raise BadRow(f"{name} has no value {where}", row, remedy)


def called(values: Any, kind: str, otherwise: str) -> str:
    """`label 'died'` where the values are a frame's column, for messages."""
    name = getattr(values, "name", None)
    return otherwise if name is None else f"{kind} {name!r}"


def levels(values: Array, name: str, remedy: str) -> tuple[tuple[str, ...], IntArray]:
    """The distinct values as sorted texts, and the index of each row's value."""
    check_present(values, name, remedy)
    if values.dtype.kind == "O" and not all(isinstance(v, (int, float, np.number)) for v in values):
        values = np.array([text_of(v) for v in values])
    distinct, codes = np.unique(values, return_inverse=True)
    return tuple(text_of(v) for v in distinct.tolist()), codes.astype(np.int64)


def encode(
    y: Any, positive: Any, classes: Sequence[str] | None, task: str | None, dtype: torch.dtype
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as class indices with their names, or as floats with no names."""
    values, name = column(y, "y"), called(y, "label", "y")
    if len(values) == 0:
        raise FedsaddleError("y has no rows: give one label a sample")
    check_present(values, name, UNLABELLED)
    if task == "regression" or (
        task is None and positive is None and classes is None and is_regression(values)
    ):
        if positive is not None:
            raise FedsaddleError(
                f"positive={positive!r} has no meaning in regression: drop it, or task='regression'"
            )
        target = as_tensor(values, name).to(dtype)
        check_finite(target, name, ())
        return target, ()
    if values.dtype.kind == "f" and np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise BadRow(f"{name} has inf at row {row}", row, REPLACE)
    texts, codes = levels(values, name, UNLABELLED)
    if positive is not None:
        found = binary(texts, codes, positive, name)
        if name != "y":  # a column, whose values nobody may have looked at
            _say_negatives(name, texts, codes, positive)
        return found
    if classes is None:
        return torch.from_numpy(codes), texts
    names = tuple(map(str, classes))
    known = tuple(map(str, range(len(names)))) if values.dtype.kind in "iub" else names
    if alien := [text for text in texts if text not in known]:
        rule = f"an index 0..{len(names) - 1}" if known is not names else f"one of {short(names)}"
        raise FedsaddleError(f"y has label {alien[0]!r}, expected {rule}: correct classes= or the labels")
    return _recoded(texts, codes, known), names


def encode_as(y: Any, positive: Any, classes: tuple[str, ...], name: str) -> Tensor:
    """Labels of a test set as the indices of the training classes."""
    texts, codes = levels(column(y, "y"), called(y, "label", "y"), UNLABELLED)
    if positive is not None:
        return binary(texts, codes, positive, must_occur=False)[0]
    for known in (classes, tuple(map(str, range(len(classes))))):
        if set(texts) <= set(known):
            return _recoded(texts, codes, known)
    alien = next(text for text in texts if text not in classes)
    remedy = "use the training labels, or pass positive= again"
    raise FedsaddleError(f"{name} has label {alien!r}, training has {short(classes)}: {remedy}")


def _recoded(texts: tuple[str, ...], codes: IntArray, known: tuple[str, ...]) -> Tensor:
    return torch.from_numpy(np.array([known.index(text) for text in texts], dtype=np.int64)[codes])


def positives(positive: Any, texts: Sequence[str]) -> dict[str, Any]:
    """The texts that `positive` stands for among labels `texts`, each with the value given; 0 and 1 may be booleans."""
    wanted = list(positive) if isinstance(positive, (list, tuple, set, np.ndarray)) else [positive]
    boolean = set(texts) <= {"False", "True"}
    return {text_of(bool(v) if boolean and not isinstance(v, str) else v): v for v in wanted}


def _say_negatives(name: str, texts: tuple[str, ...], codes: IntArray, positive: Any) -> None:
    """Warn where several values are negative: one may be a slip of the pen."""
    counts, yes = dict(zip(texts, np.bincount(codes).tolist(), strict=True)), positives(positive, texts)
    rest = sorted((text for text in texts if text not in yes), key=lambda text: -counts[text])
    if len(rest) < 2:
        return
    said = [f"{text!r} ({counts[text]}{' rows' * (i == 0)})" for i, text in enumerate(rest)]
    if len(said) > MOST_NEGATIVES:
        others = sum(counts[text] for text in rest[MOST_NEGATIVES:])
        said = [*said[:MOST_NEGATIVES], f"{len(rest) - MOST_NEGATIVES} others ({others})"]
    warn(
        f"{name}: {', '.join(said[:-1])} and {said[-1]} count as negative; if that is not meant, correct or drop "
        "these rows, or list more values in positive"
    )


def binary(
    texts: tuple[str, ...], codes: IntArray, positive: Any, name: str = "y", must_occur: bool = True
) -> tuple[Tensor, tuple[str, ...]]:
    """One-against-rest labels: 1 where the label is (one of) `positive`."""
    hits = set()
    for text, value in positives(positive, texts).items():
        if text in texts:
            hits.add(texts.index(text))
        elif must_occur:
            raise BadArgument(f"positive={value!r} never occurs in {name}: choose from {short(texts)}")
    rest = [text for i, text in enumerate(texts) if i not in hits]
    names = (rest[0] if len(rest) == 1 else "rest", texts[min(hits)] if len(hits) == 1 else "positive")
    return torch.from_numpy(np.isin(codes, sorted(hits)).astype(np.int64)), names


def is_regression(y: Array) -> bool:
    """Whether labels look like a number to predict: floats with many distinct fractions."""
    if y.dtype.kind != "f":
        return False
    distinct = np.unique(y[np.isfinite(y)])
    return int((distinct != np.round(distinct)).sum()) > REGRESSION_LEVELS


# -------------------------------------------------------------------------------------------------- clients


def grouping(clients: Any, n: int, names: tuple[str, ...] | None) -> tuple[Array, Array, tuple[str, ...]]:
    """Row order, client sizes and client names from group labels or from a partition."""
    nested = isinstance(clients, (list, tuple)) and len(clients) > 0 and all(_is_sequence(c) for c in clients)
    if nested or (isinstance(clients, (np.ndarray, Tensor)) and clients.ndim == 2):
        return _from_partition([np.asarray(part) for part in clients], n, names)
    labels = column(clients, "clients")
    if len(labels) != n:
        raise FedsaddleError(f"clients has {len(labels)} labels for {n} rows: give one label a row")
    texts, codes = levels(labels, called(clients, "group", "clients"), UNOWNED)
    if names is not None:  # a test set: the training clients, in their order
        place = {name: i for i, name in enumerate(names)}
        if alien := [text for text in texts if text not in place]:
            raise FedsaddleError(f"client {alien[0]!r} is not in the federation: use one of {short(names)}")
        codes, texts = np.array([place[text] for text in texts], dtype=np.int64)[codes], names
    return np.argsort(codes, kind="stable"), np.bincount(codes, minlength=len(texts)), texts


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple, range)) or (
        isinstance(value, (np.ndarray, Tensor)) and value.ndim == 1
    )


def _from_partition(
    parts: list[Array], n: int, names: tuple[str, ...] | None
) -> tuple[Array, Array, tuple[str, ...]]:
    if names is not None and len(names) != len(parts):
        raise FedsaddleError(
            f"names has {len(names)} entries, the partition has {len(parts)}: give one a client"
        )
    names = names or tuple(map(str, range(len(parts))))
    sizes = np.array([len(part) for part in parts])
    order = np.concatenate([part.astype(np.int64) for part in parts])
    if len(order) and (order.min() < 0 or order.max() >= n):
        bad = int(order.min() if order.min() < 0 else order.max())
        raise FedsaddleError(
            f"the partition has row {bad}, the data rows 0..{n - 1}: build it from the same data"
        )
    times = np.bincount(order, minlength=n)
    if times.max(initial=0) > 1:
        row = int(times.argmax())
        owners = np.repeat(np.arange(len(parts)), sizes)[order == row]
        who = " and ".join(repr(names[i]) for i in owners[:2])
        raise FedsaddleError(
            f"row {row} is given to clients {who}: a row belongs to one client, drop the other"
        )
    return order, sizes, names


def check_clients(names: tuple[str, ...], sizes: Array) -> None:
    """Refuse an empty client and a federation of one."""
    if (sizes == 0).any():
        empty = names[int((sizes == 0).argmax())]
        raise FedsaddleError(f"client {empty!r} has no samples: remove it, or give it some")
    if len(names) < 2:
        remedy = "check the group column or ask the partition for more"
        raise FedsaddleError(
            f"a federation needs at least 2 clients, got {len(names)} ({short(names)}): {remedy}"
        )


# ----------------------------------------------------------------------------------------- frames and files


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
    _check_columns(
        "the table",
        frame,
        group=[group],
        label=[] if label is None else [label],
        features=features,
        drop=drop,
    )
    return frame[list(features)], None if label is None else frame[label], frame[group]


def _check_columns(where: str, frame: Any, **wanted: Sequence[str]) -> None:
    """Refuse columns that are not there, by the argument that names them."""
    for argument, names in wanted.items():
        for name in names:
            if name not in frame.columns:
                raise BadArgument(f"{argument}: {no_column(where, name, frame.columns)}")


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
    tables = [_read_file(file, label, drop, sep, decimal) for file in files]
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


def _read_file(file: Path, label: str | None, drop: Sequence[str], sep: str, decimal: str) -> _Table:
    """x, y and column names of one client's file."""
    if file_format(file) not in ("csv", "parquet"):
        if drop:
            raise FedsaddleError(f"{file} has no named columns: leave drop out, or remove them from the file")
        return _Table(*read_arrays(file), ())
    frame = read_frame(file, sep, decimal)
    if label is None:
        raise FedsaddleError(
            f"{file} is a table: name its label column with label=, one of {short(frame.columns)}"
        )
    _check_columns(str(file), frame, label=[label], drop=drop)
    features = frame.drop(columns=[label, *drop])
    return _Table(features, frame[label], tuple(map(str, features.columns)))


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
    for i, (file, (_, _, own)) in enumerate(zip(files, tables, strict=True)):
        remedy = "give all the same columns"
        if missing := [c for c in columns if c not in own]:
            raise FedsaddleError(f"{file.name} has no column {missing[0]!r}, which {first} has: {remedy}")
        if surplus := [c for c in own if c not in columns]:
            raise FedsaddleError(f"{file.name} has column {surplus[0]!r}, which {first} has not: {remedy}")
        if own != columns:
            xs[i] = xs[i].iloc[:, [own.index(c) for c in columns]]
        got, want = list(xs[i].shape[1:]), list(xs[0].shape[1:])
        if got != want:
            raise FedsaddleError(
                f"{file.name} has samples of shape {got}, {first} of {want}: give the same features"
            )
    return xs
