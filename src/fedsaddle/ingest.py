"""The user's arrays, sparse matrices, labels and clients as checked tensors; what is wrong is said in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsaddle.errors import IMPUTE, BadArgument, BadRow, FedsaddleError, short, warn
from fedsaddle.files import check_bytes

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

MOST_NEGATIVES = 4  # values named that count as negative
NEGATIVE = "count as negative"
REGRESSION_LEVELS = 20  # float labels with more distinct fractions than this are a regression target
UNLABELLED = "drop rows without a label, or label them"
UNOWNED = "drop rows without a client, or name it"
REPLACE = "replace it, or drop the row"


# --------------------------------------------------------------------------------------------------- arrays


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
            counts = dict(zip(texts, np.bincount(codes).tolist(), strict=True))
            if said := negatives(counts, positive):
                warn(
                    f"{name}: {said}; if that is not meant, correct or drop these rows, or list more values in positive"
                )
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


def counted(counts: Mapping[str, int], most: int) -> str:
    """Values and their rows in words, at most so many, the most frequent first."""
    ranked = sorted(counts, key=lambda text: -counts[text])
    said = [f"{text!r} ({counts[text]}{' rows' * (i == 0)})" for i, text in enumerate(ranked)]
    if len(said) > most:
        said = [*said[:most], f"{len(said) - most} others ({sum(counts[text] for text in ranked[most:])})"]
    return " and ".join(part for part in (", ".join(said[:-1]), said[-1]) if part)


def negatives(counts: Mapping[str, int], positive: Any) -> str:
    """What to say where several values are negative, of which one may be a slip of the pen; "" where one is."""
    yes = positives(positive, list(counts))
    rest = {text: n for text, n in counts.items() if text not in yes}
    return "" if len(rest) < 2 else f"{counted(rest, MOST_NEGATIVES)} {NEGATIVE}"


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
