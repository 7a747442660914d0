"""What a data set is: arrays for the user, and a description that says where they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedsaddle.errors import FedsaddleError

if TYPE_CHECKING:
    from fedsaddle.federation import Federation

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded data set, not yet split over clients.

    Args:
        name: its name in `DATASETS`.
        x: training features `[n, ...]`, float32; images are channel first.
        y: training labels `[n]`, int64 class indices, or float32 for regression.
        test_x, test_y, valid_x, valid_y: the published test and validation parts, where there are any.
        feature_names: names of the columns of a two-dimensional x, where known.
        classes: what class index 0..C-1 stands for; `()` for regression.
        labels: training labels before `positive=` made them binary, to split by; the same as y otherwise.
        groups: a natural client of each training row, where the set has one.
        source: citation and licence line.
        scaling: shift and width by which all parts are scaled, float64.
    """

    name: str
    x: Array
    y: Array
    test_x: Array | None = None
    test_y: Array | None = None
    valid_x: Array | None = None
    valid_y: Array | None = None
    feature_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    labels: Array | None = None
    groups: Array | None = None
    source: str = ""
    scaling: tuple[Array, Array] | None = None

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.x.shape[1:]))
        kind = f"{len(self.classes)} classes" if self.classes else "regression"
        if len(self.classes) == 2:
            kind = f"{self.y.mean():.1%} {self.classes[1]!r}"
        parts = [
            f"{part} {len(y)}"
            for part, y in (("valid", self.valid_y), ("test", self.test_y))
            if y is not None
        ]
        return f"Dataset({', '.join([self.name, f'{len(self.y)} samples of {shape}', kind, *parts])})"

    def federation(
        self,
        partition: str = "iid",
        clients: int | None = None,
        *,
        seed: int = 0,
        by: str = "y",
        test: str = "pooled",
        **options: Any,
    ) -> Federation:
        """Split the training part over clients, and attach the test and validation parts.

        Args:
            partition: a name in `fedsaddle.partitions.PARTITIONS`; `"natural"` uses the set's own groups.
            clients: number of clients.
            seed: seed of the partition.
            by: split by `"y"`, or by `"labels"`, the classes before `positive=` made them binary.
            test: `"pooled"` for one test set, `"matching"` for one a client with its training class
                proportions.
            options: options of the partition, for example `alpha=0.1`.

        Example:
            >>> from fedsaddle.data import load
            >>> load("breast_cancer").federation("dirichlet", clients=5, alpha=0.5, min_per_class=1)
            Federation(5 clients, 569 samples of 30, 50-257 a client, 37.3% 'malignant')
        """
        from fedsaddle import partitions
        from fedsaddle.federation import Federation
        from fedsaddle.scaling import Scaling

        if by not in ("y", "labels") or test not in ("pooled", "matching"):
            rule = "by must be 'y' or 'labels' and test 'pooled' or 'matching'"
            raise FedsaddleError(f"{rule}, got by={by!r}, test={test!r}")
        data = self
        labels = self.y if by == "y" or self.labels is None else self.labels
        if partition == "disjoint_classes":
            data, labels = self._upper_half_positive(options)
        if partition == "natural" and "groups" not in options:
            if self.groups is None:
                raise FedsaddleError(f"{self.name} has no natural groups: pass groups= (one value a row)")
            options["groups"] = self.groups
        parts = partitions.partition(partition, labels, clients, seed, **options)
        names = None
        if partition == "natural":
            names = [str(np.asarray(options["groups"])[part[0]]) for part in parts]
        classes = data.classes or None
        task = "classification" if data.classes else "regression"
        fed = Federation.from_arrays(
            data.x,
            data.y,
            clients=parts,
            names=names,
            classes=classes,
            feature_names=data.feature_names,
            task=task,
        )
        for into, x, y in (("test", data.test_x, data.test_y), ("valid", data.valid_x, data.valid_y)):
            if x is not None and y is not None:
                split = partitions.matching(data.y, parts, y, seed=seed) if test == "matching" else None
                values = np.asarray(data.classes)[y] if data.classes else y  # names are never ambiguous
                fed = fed.with_test(x, values, clients=split, into=into)
        scaling = None
        if self.scaling is not None:
            shift, width = map(torch.from_numpy, self.scaling)
            scaling = Scaling(shift, width)
        return dataclasses.replace(fed, dataset=self.name, scaling=scaling)

    def _upper_half_positive(self, options: Mapping[str, Any]) -> tuple[Dataset, Array]:
        """For CODASCA's data: split by the original classes, train on positive against negative ones."""
        from fedsaddle.partitions import binary_labels

        labels = self.y if self.labels is None else self.labels
        if len(self.classes) == 2:
            raise FedsaddleError(
                f"disjoint_classes needs more than two classes: load {self.name} with positive='none'"
            )
        chosen = options.get("positive_classes")
        if chosen is None:
            chosen = np.unique(labels)[len(np.unique(labels)) // 2 :].tolist()
        y, test_y, valid_y = (
            None if v is None else binary_labels(v, chosen) for v in (self.y, self.test_y, self.valid_y)
        )
        assert y is not None
        binary = dataclasses.replace(
            self, y=y, test_y=test_y, valid_y=valid_y, classes=("negative", "positive")
        )
        return binary, labels


class Raw(NamedTuple):
    """What a reader returns: (x, y) of each part as stored, y as class indices or floats."""

    parts: dict[str, tuple[Array, Array]]
    feature_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()  # only where the file itself names them
    groups: Array | None = None


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Args:
        name: file name in the set's folder.
        digest: `"sha256:..."` or `"md5:..."`; empty when no digest of this file is known.
        url: where it can be downloaded; empty for files that are only found in a prepared folder.
        optional: whether the set loads without it.
    """

    name: str
    digest: str = ""
    url: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Layout:
    """One way in which a set may lie in its folder: the files of each part, and what reads them."""

    files: Mapping[str, tuple[File, ...]]
    read: Callable[..., Raw]

    def unique_files(self) -> list[File]:
        """All files, each once (several parts may share one)."""
        return list(dict.fromkeys(file for files in self.files.values() for file in files))


@dataclass(frozen=True)
class DatasetInfo:
    """An entry of `DATASETS`.

    Args:
        name: the name to load it by.
        description: one line.
        source: citation and licence.
        classes: class names; `()` for regression.
        folder: its folder inside the data folder; empty when nothing is read from disk.
        layouts: the ways in which its files may be stored, first found is read; the last one is what
            `download` fetches.
        generate: for bundled and generated sets, the function that makes it.
        bundled: where it comes from when no file is needed: `"scikit-learn"`, `"generated"` or empty.
        positive: class that is positive unless the user says otherwise; empty keeps all classes.
        scale: default scaling.
        numeric: scale only this many leading columns (the others are indicators); None scales all.
        image: whether x holds pixels 0..255.
        facts: for each part, the published number of rows of each class, or of rows (checked at every load).
    """

    name: str
    description: str
    source: str
    classes: tuple[str, ...] = ()
    folder: str = ""
    layouts: tuple[Layout, ...] = ()
    generate: Callable[..., Raw] | None = None
    bundled: str = ""
    positive: str = ""
    scale: str = "none"
    numeric: int | None = None
    image: bool = False
    facts: Mapping[str, Sequence[int] | int] = field(default_factory=dict)

    def check(self, raw: Raw, where: Path) -> Raw:
        """Refuse data that does not have the published numbers of rows."""
        for part, fact in self.facts.items():
            if part not in raw.parts:
                continue
            y = raw.parts[part][1]
            got: Any = len(y) if isinstance(fact, int) else np.bincount(y, minlength=len(fact)).tolist()
            want: Any = fact if isinstance(fact, int) else list(fact)
            if got != want:
                what = "rows" if isinstance(fact, int) else "rows a class"
                remedy = "the file is damaged or of another version, fetch it again"
                raise FedsaddleError(
                    f"{self.name}: {part} part in {where} has {got} {what}, expected {want}: {remedy}"
                )
        return raw
