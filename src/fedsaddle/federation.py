"""A federation: the samples of all clients in one place for simulation, stored client after client."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsaddle import client_files, files, frames, ingest
from fedsaddle.errors import FedsaddleError, short, warn
from fedsaddle.scaling import (
    Filling,
    Scaling,
    exponential,
    logarithm,
    shift_and_width,
    unscaled,
    warn_of_tails,
)

if TYPE_CHECKING:
    from fedsaddle.convexify import Tangent

_FINGERPRINT = 1 << 16  # about how many numbers of a field are hashed

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


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
        tangent: where x are a network's tangent features, what computes those of other samples (`fedsaddle.convexify`).
        scaling: how the user's samples became x (before any tangent features), so that a trained model can take theirs.
        filling: likewise what x has in place of missing values, None where these are refused.
        dataset: which one of `fedsaddle.data` it is, if any.
        rows: which row of the table or arrays each sample was, counted from 0 (of `from_files`, of all files one after
            another) `[n]`; None where that is unknown.
    """

    data: Mapping[str, Tensor]
    offsets: Tensor
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    test: Federation | None = None
    valid: Federation | None = None
    tangent: Tangent | None = None
    scaling: Scaling | None = None
    filling: Filling | None = None
    dataset: str | None = None
    rows: Tensor | None = None
    _moved: dict[Any, dict[str, Tensor]] = dataclasses.field(default_factory=dict, init=False)

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
            raise FedsaddleError(f"offsets must rise from 0 to the {n} rows, got {short(offsets.tolist())}")
        if self.rows is not None and self.rows.shape != (n,):  # samples were replaced by others
            object.__setattr__(self, "rows", None)
        if self.filling is not None and self.filling.gaps is not None:
            gaps = list(self.filling.gaps.shape)
            x = list(self.data["x"].shape) if "x" in self.data else "none"
            if gaps != x:
                remedy = "replace filling= with x, by None if x has no gaps"
                raise FedsaddleError(f"filling.gaps must have the shape of x, {x}, got {gaps}: {remedy}")
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

    @property
    def _has_classes(self) -> bool:
        return "y" in self.data and not self.is_regression

    def client(self, i: int) -> dict[str, Tensor]:
        """The samples of client `i` (views, not copies)."""
        if not 0 <= i < self.n_clients:
            raise FedsaddleError(f"client index must be in 0..{self.n_clients - 1}, got {i}")
        lo, hi = int(self.offsets[i]), int(self.offsets[i + 1])
        return {name: tensor[lo:hi] for name, tensor in self.data.items()}

    def fingerprint(self) -> str:
        """A short hash of sizes, names of fields and samples (of large fields, of some of them)."""
        digest = hashlib.sha256(self.offsets.numpy().tobytes())
        for name, values in self.data.items():
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            rows = values[:: max(1, values.numel() // _FINGERPRINT)]
            digest.update(rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def on_device(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The data on a device; moved once, then shared by all runs.

        Real numbers are in the given precision, but half precision stays as it is: what reads samples converts them.
        """
        key = (device, dtype)
        if key not in self._moved:
            self._moved[key] = {
                k: v.to(device, dtype if v.is_floating_point() and v.itemsize > 2 else None)
                for k, v in self.data.items()
            }
        return self._moved[key]

    def class_counts(self) -> IntArray:
        """Samples of each class at each client, `[N, C]`."""
        if not self._has_classes:
            raise FedsaddleError(
                "class_counts needs class labels; this federation has none (no y, or regression)"
            )
        y = self.data["y"].cpu().numpy()
        width = max(len(self.classes), int(y.max(initial=0)) + 1)
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
        for name, part in (("test", self.test), ("validation", self.valid)):
            if part is not None:
                where = "in one pool" if part.n_clients == 1 else "at the clients"
                parts.append(f"{part.n_samples} {name} samples {where}")
        return f"Federation({', '.join(parts)})"

    # ------------------------------------------------------------------------------------- new from this one

    def keep(self, rows: npt.NDArray[np.bool_]) -> Federation:
        """The same clients with only the training rows where the mask `rows` `[n]` is true."""
        sizes = np.bincount(self.owners.numpy()[rows], minlength=self.n_clients)
        index = np.flatnonzero(rows)
        data, filling = _reordered(self.data, index), self._filling(torch.from_numpy(index))
        own = None if self.rows is None else self.rows[index]
        return dataclasses.replace(self, data=data, offsets=_offsets(sizes), filling=filling, rows=own)

    def holdout(self, share: float, seed: int = 0, into: str = "test") -> Federation:
        """Move a stratified share of every client's samples to its own test (or validation) set.

        A client keeps at least one sample of every class that it owns, so a very small client may have no
        test sample. What stands in for missing values is computed anew, from the samples that are left, unless x is
        scaled already.

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
        return self.keep(~held)._attach(part, into)._filled()

    def _stratified(self, share: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Mask of held-out rows: round(share * n_i) of client i, by largest remainder over its classes."""
        owner = self.owners.numpy()
        y = self.data["y"].cpu().numpy() if self._has_classes else np.zeros_like(owner)
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

    def pooled(self) -> Federation:
        """All samples at one client: what could be learned if data might leave their sites, to compare with."""
        n = torch.tensor([0, self.n_samples])
        test, valid = self.test and self.test.pooled(), self.valid and self.valid.pooled()
        return dataclasses.replace(self, offsets=n, names=("all",), test=test, valid=valid)

    def alone(self, i: int) -> Federation:
        """Client `i`'s samples and everybody's test and validation data: what it learns on its own, to compare with."""
        data, own = self.client(i), torch.tensor([0, int(self.sizes[i])])
        at = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        filling, rows = self._filling(at), None if self.rows is None else self.rows[at]
        return dataclasses.replace(
            self.pooled(), data=data, offsets=own, names=self.names[i : i + 1], filling=filling, rows=rows
        )

    def _filling(self, rows: Tensor | slice) -> Filling | None:
        """That of some of the training rows."""
        if self.filling is None or self.filling.gaps is None:
            return self.filling
        return self.filling._replace(gaps=self.filling.gaps[rows])

    def _filled(self, log: bool = False) -> Federation:
        """With what stands in for missing values computed from the training samples, in these and in test samples.

        Args:
            log: it is the median or mean of logarithms.
        """
        if self.filling is None or self.filling.gaps is None:
            return self
        x, how, gaps = self.data["x"], self.filling.how, self.filling.gaps
        if (nothing := gaps.all(0).flatten()).any():
            raise FedsaddleError(f"{self._column(nothing)} has no value in any training row: drop it")
        seen = logarithm(x.double()) if log else x.double()
        present = np.where(gaps.cpu().numpy(), np.nan, seen.cpu().numpy())
        with np.errstate(over="ignore"):
            found = (np.nanmedian if how == "median" else np.nanmean)(present, axis=0, keepdims=True)
        values = exponential(torch.from_numpy(found)) if log else torch.from_numpy(found)
        values = values.to(x.device, x.dtype).double()  # as they are in x
        if (odd := ~values.isfinite().flatten()).any():
            raise FedsaddleError(
                f"{self._column(odd)} has numbers too large to take the {how} of; correct or drop it"
            )

        def apply(part: Federation) -> Federation:
            if part.filling is None or part.filling.gaps is None:
                return part
            x, gaps = part.data["x"], part.filling.gaps
            x = torch.where(gaps, values.to(x.dtype), x)
            return dataclasses.replace(part, data={**part.data, "x": x}, filling=Filling(how, values, gaps))

        return dataclasses.replace(
            apply(self), test=self.test and apply(self.test), valid=self.valid and apply(self.valid)
        )

    def _column(self, which: Tensor) -> str:
        """The first of the columns of x that are marked, for messages."""
        i = int(which.nonzero()[0])
        return f"column {self.feature_names[i]!r}" if self.feature_names else f"column {i} of x"

    def scaled(self, how: Literal["none", "unit", "symmetric", "standard", "log"] = "standard") -> Federation:
        """Shift and scale every column of x (channel of images), by statistics of all clients' training samples.

        Args:
            how: `"unit"` ([0, 1]), `"symmetric"` ([-1, 1]), `"standard"` (mean 0, deviation 1), `"log"` (the same, of
                sign(x) log(1 + |x|): for amounts and counts, whose few largest values are far from all others), or
                `"none"`. A constant column becomes 0.
        """
        if how == "none":
            return self
        if self.tangent is not None:
            raise FedsaddleError(
                "scaled: tangent features are scaled already; scale the samples before convexify"
            )
        filled = self._filled(log=True) if how == "log" else self
        x = filled.data["x"].double()
        x = logarithm(x) if how == "log" else x
        axes = [i for i in range(x.ndim) if i != 1]
        low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
        mean = torch.where(
            low == high, low, x.mean(axes, keepdim=True)
        )  # that of equal numbers may be rounded
        deviation = torch.where(low == high, 0.0, x.std(axes, correction=0, keepdim=True))
        scaling = Scaling(*shift_and_width(how, mean, deviation, low, high), log=how == "log")
        if how == "standard" and x.ndim == 2 and self.scaling is None:
            warn_of_tails(x, self.feature_names)

        def apply(part: Federation) -> Federation:
            x = part.data["x"]
            x = scaling(x).to(x.dtype)
            return dataclasses.replace(
                part, data={**part.data, "x": x}, filling=part.filling and part.filling.fixed()
            )

        return dataclasses.replace(
            apply(filled),
            test=filled.test and apply(filled.test),
            valid=filled.valid and apply(filled.valid),
            scaling=scaling if self.scaling is None else self.scaling.then(scaling),
        )

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
            x, y, fields: arrays as in `from_arrays`; `y` holds the training labels' values or class indices. Columns of a
                frame are found by their names. x is taken as it is: attach it before `scaled`, which scales both, or give
                `federation.scaling(x)`.
                Missing values are filled in as in the training data.
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
        dtype = self.data["x"].dtype if "x" in self.data else None
        filling = self.filling if self.tangent is None else None
        data, _ = frames.tensors(
            x, fields, dtype, known=self.feature_names, gaps=filling is not None, remedy=frames.FILL_BEFORE
        )
        for name, tensor in data.items():
            got, want = list(tensor.shape[1:]), list(self.data[name].shape[1:])
            if got != want:
                raise FedsaddleError(
                    f"{into} {name} has samples of shape {got}, training {want}: give the same"
                )
        if y is not None:
            if self.is_regression:
                data["y"] = ingest.encode(y, None, None, "regression", self.data["y"].dtype)[0]
            else:
                data["y"] = ingest.encode_as(y, positive, self.classes, f"{into} y")
        n = ingest.same_length(data)
        names = ("all",) if clients is None else self.names
        order, sizes, _ = ingest.grouping([range(n)] if clients is None else clients, n, names)
        data = _reordered(data, order)
        if filling is not None:
            gaps, values = data["x"].isnan(), filling.values
            if self.scaling is not None:
                values = self.scaling(values)
            data["x"] = torch.where(gaps, values.to(data["x"].dtype), data["x"])
            filling = filling if filling.gaps is None else filling._replace(gaps=gaps)
        if self.scaling is not None and self.tangent is None and n:
            odd = unscaled(data["x"], self.data["x"], self.scaling)
            if odd.any():
                warn(
                    f"with_test: {into} x is taken as scaled already, but {self._column(odd)} is far from its training "
                    "samples as it is, and near them once it is scaled; attach it before scaled(), or pass "
                    "federation.scaling(x), x a tensor"
                )
        part = Federation(
            data, _offsets(sizes), names, self.classes, self.feature_names, filling=filling,
            rows=torch.from_numpy(order),
        )  # fmt: skip
        return self._attach(part, into)

    def _attach(self, part: Federation, into: str) -> Federation:
        change: dict[str, Any] = {into: part}
        return dataclasses.replace(self, **change)

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
        impute: Literal["none", "median", "mean"] = "none",
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
            impute: what stands in for a value of x that is missing (NaN): `"median"` or `"mean"` of its column over
                all clients' training samples; `"none"` refuses it. `holdout` takes its samples out of the statistic.
            dtype: floating type of x, to overrule the guess.
            fields: further named arrays `[n, ...]` for custom problems.

        Example:
            >>> Federation.from_arrays([[1.0], [2.0], [3.0], [4.0]], [0, 1, 0, 1], clients=list("aabb"))
            Federation(2 clients, 4 samples of 1, 2-2 a client, 50.0% '1')
        """
        if task not in (None, "classification", "regression"):
            raise FedsaddleError(f"task must be 'classification' or 'regression', got {task!r}")
        if impute not in ("none", "median", "mean"):
            raise FedsaddleError(f"impute must be 'none', 'median' or 'mean', got {impute!r}")
        gaps = impute != "none"
        if gaps and x is None:
            raise FedsaddleError(f"impute={impute!r} fills gaps of x, and there is no x: leave impute out")
        data, columns = frames.tensors(x, fields, dtype, tuple(map(str, feature_names)), gaps=gaps)
        found: tuple[str, ...] = ()
        if y is not None:
            kind = data["x"].dtype if "x" in data else dtype or torch.float32
            data["y"], found = ingest.encode(y, positive, classes, task, kind)
        n = ingest.same_length(data)
        order, sizes, found_names = ingest.grouping(clients, n, None if names is None else tuple(names))
        ingest.check_clients(found_names, sizes)
        data, filling = _reordered(data, order), None
        if gaps:
            filling = Filling(impute, torch.empty(0), data["x"].isnan())
        rows = torch.from_numpy(order)
        return cls(data, _offsets(sizes), found_names, found, columns, filling=filling, rows=rows)._filled()

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        group: str,
        label: str | None,
        positive: Any = None,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        task: str | None = None,
        impute: Literal["none", "median", "mean"] = "none",
        dtype: torch.dtype = torch.float32,
    ) -> Federation:
        """Build a federation from a pandas DataFrame with a column that names the client of each row.

        A feature of text becomes one of 0 and 1 for each of its values, such as `sex=f`.

        Args:
            frame: the table, one row a sample.
            group: column of client names, for example `"hospital"`.
            label: column to predict; None for data without labels.
            positive: the label value (or list of values) that becomes class 1.
            features: columns used as features; all others unless given.
            drop: columns that are not features, such as a patient's number.
            task: `"classification"` or `"regression"`; guessed from the label unless given.
            impute: what stands in for a missing number: `"median"` or `"mean"` of its column over all clients' training
                rows. A missing text is a value of its own, such as `sex=missing`. `"none"` refuses both.
            dtype: floating type of x.
        """
        x, y, clients = frames.columns_of(frame, group, label, features, drop)
        return cls.from_arrays(
            x, y, clients=clients, positive=positive, task=task, impute=impute, dtype=dtype
        )

    @classmethod
    def from_files(
        cls,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        label: str | None = None,
        positive: Any = None,
        drop: Sequence[str] = (),
        sep: str = ",",
        decimal: Literal[".", ","] = ".",
        encoding: files.Encoding = "utf-8",
        task: str | None = None,
        impute: Literal["none", "median", "mean"] = "none",
        dtype: torch.dtype = torch.float32,
    ) -> Federation:
        """Build a federation from one file a client; the file's stem is the client's name.

        A feature of text becomes one of 0 and 1 for each value that it has in any file, such as `sex=f`.

        Args:
            paths: a list of files, a folder, or a glob pattern such as `"sites/*.csv"`. A file is .csv,
                .parquet, .npz (arrays `x` and `y`) or LIBSVM text (.svm, .libsvm, .txt, or .bz2 of it).
            label: label column of .csv and .parquet files.
            positive: the label value (or list of values) that becomes class 1.
            drop: columns of .csv and .parquet files that are not features.
            sep: the character between the columns of .csv files.
            decimal: the decimal mark of their numbers; `","` reads 1,5.
            encoding: of their text; `"cp1252"` is Excel's own in western Europe.
            task: `"classification"` or `"regression"`; guessed from the label unless given.
            impute: of missing values, as in `from_frame`; the statistic is over all files.
            dtype: floating type of x.
        """
        x, y, parts, names, columns = client_files.read_files(
            paths, label, drop, sep, impute != "none", decimal, encoding
        )
        return cls.from_arrays(
            x, y, clients=parts, names=names, feature_names=columns, positive=positive, task=task, impute=impute,
            dtype=dtype,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ plot

    def plot(self) -> Any:
        """Draw who owns what: samples of each class at each client, as a plotly figure.

        Stacked bars, or a heat map of shares for more than 60 clients or 8 classes; of more than 2000
        clients an even selection is drawn.
        """
        from fedsaddle import figures

        if not self._has_classes:
            return figures.ownership(self.sizes.numpy()[:, None], self.names, None)
        return figures.ownership(self.class_counts(), self.names, self.classes)


def _rank(groups: Array) -> IntArray:
    """Position of each element within its run of equal values; `groups` is sorted."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _offsets(sizes: Array) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _reordered(data: Mapping[str, Tensor], order: Array) -> dict[str, Tensor]:
    index = torch.from_numpy(order)
    return {name: tensor[index.to(tensor.device)] for name, tensor in data.items()}
