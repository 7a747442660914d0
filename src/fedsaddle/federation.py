"""A federation: the samples of all clients in one place for simulation, stored client after client."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

MAX_DENSE_BYTES = 8 * 2**30  # a sparse x larger than this is refused, not densified
REGRESSION_LEVELS = 20  # float labels with more distinct fractions than this are a regression target
HEATMAP_CLIENTS, HEATMAP_CLASSES, PLOT_CLIENTS = 60, 12, 2000

COMPRESSED = (".gz", ".bz2", ".xz")
FORMATS = {".csv": "csv", ".parquet": "parquet", ".npz": "npz"} | dict.fromkeys(
    (".svm", ".libsvm", ".txt"), "libsvm"
)


@dataclass(frozen=True, repr=False, eq=False)
class Federation:
    """The data of N clients as tensors whose rows are sorted by client.

    Args:
        data: named tensors `[n, ...]`, all clients' samples, client after client; usually `"x"` and `"y"`.
        offsets: `[N + 1]` int64; client i owns rows `offsets[i]:offsets[i + 1]`.
        names: N client names.
        classes: what class index 0..C-1 of `y` stood for; `()` for regression.
        feature_names: names of the columns of a two-dimensional `x`, if known.
        test: per-client test sets (same names) or one pooled set (one client, `"all"`).
        valid: validation data, likewise.
    """

    data: Mapping[str, Tensor]
    offsets: Tensor
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    test: Federation | None = None
    valid: Federation | None = None

    def __post_init__(self) -> None:
        rows = {name: len(tensor) for name, tensor in self.data.items()}
        if len(set(rows.values())) != 1:
            raise FedsaddleError(
                f"every field needs one row a sample, got {rows or 'no field'}: give equal lengths"
            )
        offsets, n = self.offsets, next(iter(rows.values()))
        if offsets.dtype != torch.int64 or offsets.shape != (len(self.names) + 1,):
            got = f"{offsets.dtype} {list(offsets.shape)}"
            raise FedsaddleError(
                f"offsets must be int64 [{len(self.names) + 1}] (one more than names), got {got}"
            )
        if offsets[0] != 0 or offsets[-1] != n or (offsets.diff() < 0).any():
            raise FedsaddleError(f"offsets must rise from 0 to the {n} rows, got {_short(offsets.tolist())}")
        for part, other in (("test", self.test), ("valid", self.valid)):
            if other is not None and other.n_clients not in (1, self.n_clients):
                rule = f"{self.n_clients} clients or one pooled set"
                raise FedsaddleError(f"{part} must have {rule}, got {other.n_clients} clients")

    # ------------------------------------------------------------------------------------------ what is in it

    @property
    def n_clients(self) -> int:
        """Number of clients N."""
        return len(self.names)

    @property
    def n_samples(self) -> int:
        """Number of training samples of all clients."""
        return int(self.offsets[-1])

    @property
    def sizes(self) -> Tensor:
        """Samples of each client, `[N]` int64."""
        return self.offsets.diff()

    @property
    def owners(self) -> Tensor:
        """Index of the client that owns each row, `[n]` int64."""
        return torch.repeat_interleave(torch.arange(self.n_clients), self.sizes)

    @property
    def is_regression(self) -> bool:
        """Whether `y` is a real number instead of a class index."""
        return "y" in self.data and self.data["y"].is_floating_point()

    def client(self, i: int) -> dict[str, Tensor]:
        """The samples of client `i` (views, not copies)."""
        if not 0 <= i < self.n_clients:
            raise FedsaddleError(f"client index must be in 0..{self.n_clients - 1}, got {i}")
        lo, hi = int(self.offsets[i]), int(self.offsets[i + 1])
        return {name: tensor[lo:hi] for name, tensor in self.data.items()}

    def class_counts(self) -> IntArray:
        """Samples of each class at each client, `[N, C]`."""
        if "y" not in self.data or self.is_regression:
            raise FedsaddleError(
                "class_counts needs class labels; this federation has none (no y, or regression)"
            )
        y, width = self.data["y"].cpu().numpy(), max(len(self.classes), 1)
        cells = np.bincount(self.owners.numpy() * width + y, minlength=self.n_clients * width)
        return cells.reshape(self.n_clients, width).astype(np.int64)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.data["x"].shape[1:])) if "x" in self.data else ", ".join(self.data)
        sizes = self.sizes
        parts = [
            f"{self.n_clients} client{'s' * (self.n_clients != 1)}",
            f"{self.n_samples} samples of {shape or 1}",
        ]
        if self.n_clients > 1:
            parts.append(f"{int(sizes.min())}-{int(sizes.max())} a client")
        if self.is_regression:
            parts.append("regression")
        elif len(self.classes) == 2 and "y" in self.data:
            parts.append(f"{self.data['y'].double().mean():.1%} {self.classes[1]!r}")
        elif self.classes:
            parts.append(f"{len(self.classes)} classes")
        for name, part in (("test", self.test), ("valid", self.valid)):
            if part is not None:
                parts.append(f"{name} {part.n_samples} {'pooled' if part.n_clients == 1 else 'per client'}")
        return f"Federation({', '.join(parts)})"

    # ------------------------------------------------------------------------------------- new from this one

    def keep(self, rows: npt.NDArray[np.bool_]) -> Federation:
        """The same clients with only the training rows where the mask `rows` `[n]` is true."""
        index = torch.from_numpy(np.flatnonzero(rows))
        sizes = np.bincount(self.owners.numpy()[rows], minlength=self.n_clients)
        data = {name: tensor[index.to(tensor.device)] for name, tensor in self.data.items()}
        return dataclasses.replace(self, data=data, offsets=_offsets(sizes))

    def holdout(self, share: float, seed: int = 0, into: str = "test") -> Federation:
        """Move a stratified share of every client's samples to its own test (or validation) set.

        A client keeps at least one sample of every class that it owns, so a very small client may have no
        test sample.

        Args:
            share: part of each client's samples that is held out, in (0, 1).
            seed: the same seed gives the same split.
            into: `"test"` or `"valid"`.
        """
        if not 0 < share < 1:
            raise FedsaddleError(f"holdout: share must be in (0, 1), got {share}")
        if into not in ("test", "valid"):
            raise FedsaddleError(f"holdout: into must be 'test' or 'valid', got {into!r}")
        if getattr(self, into) is not None:
            remedy = f"remove it first with dataclasses.replace(federation, {into}=None)"
            raise FedsaddleError(f"holdout: the federation already has a {into} set; {remedy}")
        held = self._stratified(share, np.random.default_rng(seed))
        if not held.any():
            raise FedsaddleError(
                f"holdout: no client is large enough to give up a share of {share}; take a larger one"
            )
        part = dataclasses.replace(self.keep(held), test=None, valid=None)
        return self.keep(~held)._attach(part, into)

    def _stratified(self, share: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Mask of held-out rows: round(share * n_i) of client i, by largest remainder over its classes."""
        owner = self.owners.numpy()
        has_classes = "y" in self.data and not self.is_regression
        y = self.data["y"].cpu().numpy() if has_classes else np.zeros_like(owner)
        width = int(y.max(initial=0)) + 1
        cell, row_cell, count = np.unique(owner * width + y, return_inverse=True, return_counts=True)
        cell_client = cell // width
        quota = np.floor(share * count)
        left = np.floor(share * np.bincount(cell_client, count) + 0.5) - np.bincount(cell_client, quota)
        by_remainder = np.lexsort((quota - share * count, cell_client))  # by client, largest first
        quota[by_remainder] += _rank(cell_client[by_remainder]) < left[cell_client[by_remainder]]
        quota = np.minimum(quota, count - 1)
        shuffled = np.lexsort((rng.random(len(owner)), row_cell))
        held = np.zeros(len(owner), dtype=bool)
        held[shuffled] = _rank(row_cell[shuffled]) < quota[row_cell[shuffled]]
        return held

    def with_test(
        self,
        x: Any,
        y: Any = None,
        *,
        clients: Any = None,
        positive: Any = None,
        into: str = "test",
        **fields: Any,
    ) -> Federation:
        """Attach a test set: one pooled set, or one a client when `clients` is given.

        Args:
            x, y, fields: arrays as in `from_arrays`; `y` holds the training labels' values or class indices.
            clients: group labels (client names) or a partition with N parts, which may be empty.
            positive: the label value (or values) that count as positive, as given for the training data.
            into: `"test"` or `"valid"`.
        """
        if into not in ("test", "valid"):
            raise FedsaddleError(f"with_test: into must be 'test' or 'valid', got {into!r}")
        given = [name for name, value in {"x": x, "y": y, **fields}.items() if value is not None]
        if set(given) != set(self.data):
            raise FedsaddleError(
                f"{into} has fields {sorted(given)}, training {sorted(self.data)}: give the same ones"
            )
        data, _ = _tensors(x, fields, dtype=self.data["x"].dtype if "x" in self.data else None)
        for name, tensor in data.items():
            got, want = list(tensor.shape[1:]), list(self.data[name].shape[1:])
            if got != want:
                raise FedsaddleError(
                    f"{into} {name} has samples of shape {got}, training {want}: give the same"
                )
        if y is not None:
            data["y"] = self._test_labels(y, positive, into)
        n = _same_length(data)
        if clients is None:
            order, sizes, names = np.arange(n), np.array([n]), tuple(["all"])
        else:
            order, sizes, names = _grouping(clients, n, self.names)
        part = Federation(_reordered(data, order), _offsets(sizes), names, self.classes, self.feature_names)
        return self._attach(part, into)

    def _attach(self, part: Federation, into: str) -> Federation:
        return (
            dataclasses.replace(self, test=part) if into == "test" else dataclasses.replace(self, valid=part)
        )

    def _test_labels(self, y: Any, positive: Any, into: str) -> Tensor:
        if self.is_regression:
            return _encode(y, None, None, "regression", self.data["y"].dtype)[0]
        texts, codes = _levels(_column(y, "y"), "y", "drop or impute it before building the federation")
        if positive is not None:
            return _binary(texts, codes, positive, must_occur=False)[0]
        if set(texts) <= set(self.classes):
            lookup = [self.classes.index(text) for text in texts]
        elif set(texts) <= {str(i) for i in range(len(self.classes))}:
            lookup = [int(text) for text in texts]
        else:
            alien = next(text for text in texts if text not in self.classes)
            remedy = "use the training labels, or pass positive= again"
            raise FedsaddleError(
                f"{into} y has label {alien!r}, training has {_short(self.classes)}: {remedy}"
            )
        return torch.from_numpy(np.asarray(lookup, dtype=np.int64)[codes])

    # ---------------------------------------------------------------------------------------- constructors

    @classmethod
    def from_arrays(
        cls,
        x: Any = None,
        y: Any = None,
        *,
        clients: Any,
        positive: Any = None,
        classes: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        feature_names: Sequence[str] = (),
        task: str | None = None,
        dtype: torch.dtype | None = None,
        **fields: Any,
    ) -> Federation:
        """Build a federation from arrays with one row a sample.

        Args:
            x: features `[n, ...]`: numpy, torch, pandas or scipy sparse; stored as float32, float64 arrays
                as float64. None for a custom problem that has other fields only.
            y: labels `[n]`, or None. Classes are numbered in sorted order, so of two the larger one is
                positive.
            clients: one group label a row, or a partition (a list of index arrays, see
                `fedsaddle.partitions`).
            positive: the label value (or list of values) that becomes class 1; all others become class 0.
            classes: names of class 0..C-1 when y holds integer class indices, or the order of text labels.
            names: client names of a partition; numbers unless given.
            feature_names: names of the columns of x, for messages and reports.
            task: `"classification"` or `"regression"`; guessed from y unless given.
            dtype: floating type of x, to overrule the guess.
            fields: further named arrays `[n, ...]` for custom problems.

        Example:
            >>> Federation.from_arrays([[1.0], [2.0], [3.0], [4.0]], [0, 1, 0, 1], clients=list("aabb"))
            Federation(2 clients, 4 samples of 1, 2-2 a client, 50.0% '1')
        """
        if task not in (None, "classification", "regression"):
            raise FedsaddleError(f"task must be 'classification' or 'regression', got {task!r}")
        data, columns = _tensors(x, fields, dtype=dtype, columns=tuple(map(str, feature_names)))
        found: tuple[str, ...] = ()
        if y is not None:
            kind = data["x"].dtype if "x" in data else dtype or torch.float32
            data["y"], found = _encode(y, positive, classes, task, kind)
        n = _same_length(data)
        order, sizes, found_names = _grouping(clients, n, None if names is None else tuple(names))
        _check_clients(found_names, sizes)
        return cls(_reordered(data, order), _offsets(sizes), found_names, found, columns)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        group: str,
        label: str | None,
        positive: Any = None,
        features: Sequence[str] | None = None,
        task: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Federation:
        """Build a federation from a pandas DataFrame with a column that names the client of each row.

        Args:
            frame: the table, one row a sample.
            group: column of client names, for example `"hospital"`.
            label: column to predict; None for data without labels.
            positive: the label value (or list of values) that becomes class 1.
            features: columns used as features; all others unless given.
            task: `"classification"` or `"regression"`; guessed from the label unless given.
            dtype: floating type of x.
        """
        wanted = [group, *([] if label is None else [label]), *(features or ())]
        for column in wanted:
            if column not in frame.columns:
                raise FedsaddleError(
                    f"the frame has no column {column!r}: it has {_short(list(frame.columns))}"
                )
        chosen = (
            list(features) if features is not None else [c for c in frame.columns if c not in (group, label)]
        )
        y = None if label is None else frame[label]
        return cls.from_arrays(
            frame[chosen], y, clients=frame[group], positive=positive, task=task, dtype=dtype
        )

    @classmethod
    def from_files(
        cls,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        label: str | None = None,
        positive: Any = None,
        task: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Federation:
        """Build a federation from one file a client; the file's stem is the client's name.

        Args:
            paths: a list of files, a folder, or a glob pattern such as `"sites/*.csv"`. A file is .csv,
                .parquet, .npz (arrays `x` and `y`) or LIBSVM text (.svm, .libsvm, .txt, or .bz2 of it).
            label: label column of .csv and .parquet files.
            positive: the label value (or list of values) that becomes class 1.
            task: `"classification"` or `"regression"`; guessed from the label unless given.
            dtype: floating type of x.
        """
        files = _expand(paths)
        names = [_stem(file) for file in files]
        for i, name in enumerate(names):
            if name in names[:i]:
                twins = f"{files[names.index(name)]} and {files[i]}"
                raise FedsaddleError(f"two files name the client {name!r} ({twins}): rename one of them")
        tables = [_read_file(file, label) for file in files]
        columns = _agree(files, tables)
        for file, (x, _, _) in zip(files, tables, strict=True):
            _check_finite(_tensor(x, f"{file.name}: x"), f"{file.name}: x", columns)
        y = None if tables[0][1] is None else np.concatenate([_column(t[1], "y") for t in tables])
        sizes = [len(x) for x, _, _ in tables]
        parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        x_all = np.concatenate([x for x, _, _ in tables])
        return cls.from_arrays(
            x_all,
            y,
            clients=parts,
            names=names,
            positive=positive,
            feature_names=columns,
            task=task,
            dtype=dtype,
        )

    # ------------------------------------------------------------------------------------------------ plot

    def plot(self) -> Any:
        """Draw who owns what: samples of each class at each client, as a plotly figure.

        Stacked bars, or a heat map of shares for more than 60 clients or 12 classes; of more than 2000
        clients an even selection is drawn.
        """
        go = optional_import("plotly.graph_objects", "plot", "report")
        shown = np.unique(
            np.linspace(0, self.n_clients - 1, min(self.n_clients, PLOT_CLIENTS)).astype(np.int64)
        )
        labelled = "y" in self.data and not self.is_regression
        counts = (self.class_counts() if labelled else self.sizes.numpy()[:, None])[shown]
        classes = list(self.classes) if labelled else ["samples"]
        names = [self.names[i] for i in shown]
        title = f"{self.n_clients} clients, {self.n_samples:,} samples"
        if len(shown) < self.n_clients:
            title += f" (every {self.n_clients / len(shown):.0f}th client drawn)"
        share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        figure = go.Figure()
        as_map = labelled and (len(names) > HEATMAP_CLIENTS or len(classes) > HEATMAP_CLASSES)
        if as_map:
            hover = "client %{x}<br>class %{y}<br>%{customdata:,} samples (%{z:.1%})<extra></extra>"
            bar = {"title": "share of<br>client", "tickformat": ".0%", "outlinewidth": 0, "thickness": 14}
            figure.add_heatmap(
                x=names, y=classes, z=share.T, customdata=counts.T, colorscale="Blues", zmin=0, colorbar=bar,
                hovertemplate=hover, xgap=0 if len(names) > 100 else 1, ygap=1,
            )  # fmt: skip
            figure.update_yaxes(title="class", type="category")
        else:
            hover = (
                "client %{x}<br>class %{fullData.name}<br>%{y:,} samples (%{customdata:.1%})<extra></extra>"
            )
            for k, colour in enumerate(_colours(len(classes))):
                figure.add_bar(
                    x=names, y=counts[:, k], name=classes[k], customdata=share[:, k], hovertemplate=hover,
                    marker={"color": colour, "line": {"width": 0}},
                )  # fmt: skip
            figure.update_layout(barmode="stack", bargap=0.15 if len(names) <= HEATMAP_CLIENTS else 0)
            figure.update_yaxes(title="samples")
        legend = {"title": "class", "traceorder": "normal"} if labelled else None
        figure.update_layout(
            template="plotly_white", title={"text": title, "x": 0.02, "font": {"size": 17}}, legend=legend,
            font={"family": "Inter, Helvetica, Arial, sans-serif", "size": 13, "color": "#2b2f36"},
            margin={"l": 60, "r": 20, "t": 60, "b": 60}, showlegend=labelled and not as_map,
        )  # fmt: skip
        figure.update_xaxes(title="client", type="category", showgrid=False, nticks=min(len(names), 40))
        return figure


# ------------------------------------------------------------------------------------------- helpers, shared


def optional_import(module: str, purpose: str, extra: str = "") -> Any:
    """Import a module where it is needed, with a remedy when it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = f"fedsaddle[{extra}]" if extra else module.split(".")[0]
        raise FedsaddleError(f"{purpose} needs {module.split('.')[0]}: pip install '{package}'") from error


def _short(values: Iterable[Any], most: int = 8) -> str:
    """`'a', 'b', 'c', ... (12 in all)` for messages."""
    items = [repr(v) for v in values]
    return ", ".join(items) if len(items) <= most else f"{', '.join(items[:most])}, ... ({len(items)} in all)"


def _text(value: Any) -> str:
    """A label as text, so that 1, 1.0 and "1" are the same class."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _colours(n: int) -> list[str]:
    if n == 1:
        return ["#4c78a8"]
    if n == 2:
        return ["#c9d3df", "#d1495b"]  # the positive class stands out
    return [
        "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#eeca3b",
        "#b279a2", "#ff9da6", "#9d755d", "#bab0ac", "#2f4b7c", "#a05195",
    ][:n]  # fmt: skip


def _rank(groups: Array) -> IntArray:
    """Position of each element within its run of equal values; `groups` is sorted."""
    starts = (
        np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else np.zeros(0, dtype=np.int64)
    )
    lengths = np.diff(np.r_[starts, len(groups)])
    return np.arange(len(groups)) - np.repeat(starts, lengths)


def _offsets(sizes: Array) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _reordered(data: Mapping[str, Tensor], order: Array) -> dict[str, Tensor]:
    index = torch.from_numpy(order.astype(np.int64))
    return {name: tensor[index.to(tensor.device)] for name, tensor in data.items()}


# ------------------------------------------------------------------------------------- helpers, user's arrays


def _tensors(
    x: Any, fields: Mapping[str, Any], dtype: torch.dtype | None, columns: tuple[str, ...] = ()
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The user's arrays as checked tensors, in the user's row order, and the names of x's columns."""
    if hasattr(x, "columns") and hasattr(x, "dtypes"):  # a pandas DataFrame
        columns = columns or tuple(map(str, x.columns))
        x, dtype = _numeric_frame(x), dtype or torch.float32
    data = {name: _tensor(value, name) for name, value in fields.items()}
    if x is not None:
        tensor = _tensor(x, "x")
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
        _check_finite(tensor, name, columns if name == "x" else ())
    return data, columns


def _tensor(value: Any, name: str) -> Tensor:
    """numpy, torch, pandas, list or scipy sparse as a tensor with at least one axis."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        if hasattr(value, "toarray") and hasattr(value, "nnz"):  # scipy sparse
            n_bytes = int(np.prod(value.shape)) * value.dtype.itemsize
            if n_bytes > MAX_DENSE_BYTES:
                size, bound = f"{n_bytes / 2**30:.1f} GiB", f"{MAX_DENSE_BYTES / 2**30:.0f} GiB"
                remedy = "drop columns or reduce them with sklearn's TruncatedSVD"
                raise FedsaddleError(
                    f"{name} is sparse and takes {size} when dense, more than {bound}: {remedy}"
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
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W", "A"]))
    if tensor.ndim == 0 or len(tensor) == 0:
        raise FedsaddleError(f"{name} has no rows: give one row a sample")
    return tensor


def _numeric_frame(frame: Any) -> Array:
    """A DataFrame's values as floats; text columns are refused, missing values become NaN."""
    pandas = optional_import("pandas", "a DataFrame")
    text = [c for c in frame.columns if not pandas.api.types.is_numeric_dtype(frame[c].dtype)]
    if text:
        what = f"column {text[0]!r} is" if len(text) == 1 else f"columns {_short(text)} are"
        remedy = f"one-hot encode with pandas.get_dummies(frame, columns={text[:8]!r})"
        raise FedsaddleError(f"{what} not numeric ({frame[text[0]].dtype}): {remedy}")
    values: Array = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def _check_finite(tensor: Tensor, name: str, columns: Sequence[str]) -> None:
    if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):  # a finite sum has finite terms only
        return
    bad = (~torch.isfinite(tensor)).nonzero()
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
    raise FedsaddleError(f"{name} has {what} at {where}: drop or impute it before building the federation")


def _same_length(data: Mapping[str, Tensor]) -> int:
    """The number of rows that all fields share."""
    if not data:
        raise FedsaddleError("a federation needs data: give x, or named arrays")
    first = next(iter(data))
    for name, tensor in data.items():
        if len(tensor) != len(data[first]):
            n = len(data[first])
            raise FedsaddleError(f"{name} has {len(tensor)} rows, {first} has {n}: give one row a sample")
    return len(data[first])


def _column(values: Any, name: str) -> Array:
    """One value a row as a one-dimensional numpy array."""
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise FedsaddleError(
            f"{name} must hold one value a row, got shape {list(array.shape)}: give one column"
        )
    return array


def _levels(values: Array, name: str, remedy: str) -> tuple[tuple[str, ...], IntArray]:
    """The distinct values as sorted texts, and the index of each row's value."""
    if values.dtype.kind == "O":
        missing = np.array(
            [v is None or type(v).__name__ in ("NAType", "NaTType") or v != v for v in values], dtype=bool
        )
    else:
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    if missing.any():
        raise FedsaddleError(f"{name} has no value at row {int(missing.argmax())}: {remedy}")
    if values.dtype.kind == "O" and not all(isinstance(v, (int, float, np.number)) for v in values):
        values = np.array([_text(v) for v in values])
    levels, codes = np.unique(values, return_inverse=True)
    return tuple(_text(v) for v in levels.tolist()), codes.astype(np.int64)


def _encode(
    y: Any, positive: Any, classes: Sequence[str] | None, task: str | None, dtype: torch.dtype
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as class indices with their names, or as floats with no names."""
    column, remedy = _column(y, "y"), "drop or impute it before building the federation"
    if len(column) == 0:
        raise FedsaddleError("y has no rows: give one label a sample")
    if task == "regression" or (
        task is None and positive is None and classes is None and _is_regression(column)
    ):
        if positive is not None:
            raise FedsaddleError(
                f"positive={positive!r} has no meaning in regression: drop it, or task='regression'"
            )
        target = _tensor(column, "y").to(dtype)
        _check_finite(target, "y", ())
        return target, ()
    if column.dtype.kind == "f" and np.isinf(column).any():
        raise FedsaddleError(f"y has inf at row {int(np.isinf(column).argmax())}: {remedy}")
    texts, codes = _levels(column, "y", remedy)
    if positive is not None:
        return _binary(texts, codes, positive)
    if classes is None:
        return torch.from_numpy(codes), texts
    names = tuple(map(str, classes))
    known = tuple(map(str, range(len(names)))) if column.dtype.kind in "iub" else names
    alien = [text for text in texts if text not in known]
    if alien:
        rule = f"an index 0..{len(names) - 1}" if known is not names else f"one of {_short(names)}"
        raise FedsaddleError(f"y has label {alien[0]!r}, expected {rule}: correct classes= or the labels")
    return torch.from_numpy(np.array([known.index(text) for text in texts], dtype=np.int64)[codes]), names


def _binary(
    texts: tuple[str, ...], codes: IntArray, positive: Any, must_occur: bool = True
) -> tuple[Tensor, tuple[str, ...]]:
    """One-against-rest labels: 1 where the label is (one of) `positive`."""
    wanted = list(positive) if isinstance(positive, (list, tuple, set, np.ndarray)) else [positive]
    boolean = set(texts) <= {"False", "True"}
    hits = set()
    for value in wanted:
        text = _text(bool(value) if boolean and not isinstance(value, str) else value)
        if text in texts:
            hits.add(texts.index(text))
        elif must_occur:
            raise FedsaddleError(f"positive={value!r} never occurs in y: choose from {_short(texts)}")
    rest = [text for i, text in enumerate(texts) if i not in hits]
    names = (rest[0] if len(rest) == 1 else "rest", texts[min(hits)] if len(hits) == 1 else "positive")
    return torch.from_numpy(np.isin(codes, sorted(hits)).astype(np.int64)), names


def _is_regression(y: Array) -> bool:
    if y.dtype.kind != "f":
        return False
    levels = np.unique(y[np.isfinite(y)])
    return int((levels != np.round(levels)).sum()) > REGRESSION_LEVELS


# ------------------------------------------------------------------------------------------- helpers, clients


def _grouping(clients: Any, n: int, names: tuple[str, ...] | None) -> tuple[Array, Array, tuple[str, ...]]:
    """Row order, client sizes and client names from group labels or from a partition."""
    array = clients if isinstance(clients, (np.ndarray, Tensor)) else None
    nested = isinstance(clients, (list, tuple)) and len(clients) > 0 and all(_is_sequence(c) for c in clients)
    if nested or (array is not None and array.ndim == 2):
        return _from_partition([np.asarray(part) for part in clients], n, names)
    labels = _column(clients, "clients")
    if len(labels) != n:
        raise FedsaddleError(f"clients has {len(labels)} labels for {n} rows: give one label a row")
    texts, codes = _levels(labels, "clients", "drop that row or name its client")
    if names is not None:  # a test set: the training clients, in their order
        alien = [text for text in texts if text not in set(names)]
        if alien:
            raise FedsaddleError(f"client {alien[0]!r} is not in the federation: use one of {_short(names)}")
        place = {name: i for i, name in enumerate(names)}
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


def _check_clients(names: tuple[str, ...], sizes: Array) -> None:
    if (sizes == 0).any():
        empty = names[int((sizes == 0).argmax())]
        raise FedsaddleError(f"client {empty!r} has no samples: remove it, or give it some")
    if len(names) < 2:
        remedy = "check the group column or ask the partition for more"
        raise FedsaddleError(
            f"a federation needs at least 2 clients, got {len(names)} ({_short(names)}): {remedy}"
        )


# --------------------------------------------------------------------------------------------- helpers, files


def _expand(paths: Any) -> list[Path]:
    """The files behind a list, a folder or a glob pattern."""
    if isinstance(paths, (str, os.PathLike)):
        place = Path(paths).expanduser()
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.is_file() and _format(file))
        elif place.is_file():
            files = [place]
        else:
            anchor = Path(place.anchor) if place.is_absolute() else Path()
            pattern = str(place.relative_to(place.anchor)) if place.is_absolute() else str(place)
            files = sorted(file for file in anchor.glob(pattern) if file.is_file())
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


def _format(file: Path) -> str:
    """csv, parquet, npz or libsvm by the file's ending; "" when it is none of them."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = bool(suffixes) and suffixes[-1] in COMPRESSED
    inner = suffixes[:-1] if packed else suffixes
    return FORMATS.get(inner[-1] if inner else "", "libsvm" if packed else "")


def _read_file(file: Path, label: str | None) -> tuple[Array, Any, tuple[str, ...]]:
    """x, y and column names of one client's file."""
    kind = _format(file)
    if not kind:
        raise FedsaddleError(
            f"{file} is none of .csv, .parquet, .npz, .svm, .libsvm, .txt, .bz2: convert it to one"
        )
    try:
        if kind == "npz":
            with np.load(file, allow_pickle=False) as arrays:
                if "x" not in arrays or "y" not in arrays:
                    raise FedsaddleError(
                        f"{file} must hold arrays x and y, it has {_short(arrays.files)}: save it so"
                    )
                return arrays["x"], arrays["y"], ()
        if kind == "libsvm":
            x, y = optional_import("sklearn.datasets", "LIBSVM text", "").load_svmlight_file(str(file))
            return _tensor(x, f"{file.name}: x").numpy(), y, ()
        pandas = optional_import("pandas", f"{kind} files")
        frame = pandas.read_csv(file) if kind == "csv" else pandas.read_parquet(file)
    except FedsaddleError:
        raise
    except ImportError as error:
        raise FedsaddleError(f"{file}: reading parquet needs pyarrow: pip install pyarrow") from error
    except Exception as error:  # each reader has its own zoo of exceptions
        reason = " ".join(str(error).split())[:200]
        raise FedsaddleError(f"{file} cannot be read as {kind}: {reason}") from error
    if label is None:
        raise FedsaddleError(
            f"{file} is a table: name its label column with label=, one of {_short(frame.columns)}"
        )
    if label not in frame.columns:
        raise FedsaddleError(f"{file} has no column {label!r}: it has {_short(frame.columns)}")
    if len(frame) == 0:
        raise FedsaddleError(f"{file} has no rows: remove it from the federation")
    try:
        features = frame.drop(columns=[label])
        return _numeric_frame(features), frame[label], tuple(map(str, features.columns))
    except FedsaddleError as error:
        raise FedsaddleError(f"{file.name}: {error}") from None


def _agree(files: list[Path], tables: list[tuple[Array, Any, tuple[str, ...]]]) -> tuple[str, ...]:
    """Bring all tables to the first one's columns, in place; refuse files that have others."""
    first, columns = files[0].name, tables[0][2]
    libsvm = [_format(file) == "libsvm" for file in files]
    if all(libsvm):  # a LIBSVM file that never uses the last features looks narrower than it is
        width = max(x.shape[1] for x, _, _ in tables)
        tables[:] = [(np.pad(x, ((0, 0), (0, width - x.shape[1]))), y, c) for x, y, c in tables]
    for i, (file, (x, y, own)) in enumerate(zip(files, tables, strict=True)):
        missing = [c for c in columns if c not in own]
        surplus = [c for c in own if c not in columns]
        if missing:
            raise FedsaddleError(
                f"{file.name} has no column {missing[0]!r}, which {first} has: give all the same columns"
            )
        if surplus:
            raise FedsaddleError(
                f"{file.name} has column {surplus[0]!r}, which {first} has not: give all the same columns"
            )
        if own != columns:
            tables[i] = (x[:, [own.index(c) for c in columns]], y, columns)
        if x.shape[1:] != tables[0][0].shape[1:]:
            got, want = list(x.shape[1:]), list(tables[0][0].shape[1:])
            raise FedsaddleError(
                f"{file.name} has samples of shape {got}, {first} of {want}: give the same features"
            )
    return columns
