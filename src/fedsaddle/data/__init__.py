"""Data sets: bundled, generated, or read from files in a data folder (and downloaded there on request).

>>> from fedsaddle.data import load
>>> load("breast_cancer")
Dataset(breast_cancer, 569 samples of 30, 37.3% 'malignant')
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsaddle.data import fetch, formats
from fedsaddle.data.catalogue import DATASETS
from fedsaddle.data.dataset import Dataset, DatasetInfo, File, Layout, Raw
from fedsaddle.data.fetch import data_folder
from fedsaddle.errors import FedsaddleError
from fedsaddle.partitions import check_options, unknown

__all__ = [
    "DATASETS",
    "SCALES",
    "Dataset",
    "DatasetInfo",
    "File",
    "Layout",
    "data_folder",
    "download",
    "load",
]

Array = npt.NDArray[Any]
Folder = str | os.PathLike[str] | None

SCALES = ("none", "unit", "symmetric", "standard")
_ZEROED = np.float64(1e300)  # width of a column that is constant in the training part, and 0 in all of them


def load(
    name: str,
    *,
    data_dir: Folder = None,
    download: bool = False,
    verify: bool = False,
    positive: Any = None,
    scale: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """Load a data set by its name in `DATASETS`.

    Args:
        data_dir: data folder; else the environment variable FEDSADDLE_DATA, else ~/.cache/fedsaddle.
        download: fetch files that are not there.
        verify: compare the files with their known digests first (the numbers of rows are always checked).
        positive: class name, class index or a list of them that becomes class 1 against the rest; `"none"`
            keeps all classes of a set that is made binary by default.
        scale: `"none"`, `"unit"` ([0, 1]), `"symmetric"` ([-1, 1]) or `"standard"` (mean 0, deviation 1),
            by column of a table and by channel of images, with the statistics of the whole training part;
            indicator columns of covtype and census_income stay 0 and 1. The set's own default unless given.
        limit: keep this many training rows, drawn at random with the seed and in their original order; the
            test and validation parts stay whole.
        seed: seed of `limit` and of generated data.
        options: options of that set: `n`, `features`, `positive_rate`, `separation` of synthetic_binary,
            `group` of census_income, `label` of chestmnist.
    """
    info = _info(name)
    if scale is not None and scale not in SCALES:
        raise unknown(f"{name}: scale", scale, SCALES)
    if limit is not None and limit < 1:
        raise FedsaddleError(f"{name}: limit must be >= 1, got {limit}")
    raw = _read(info, data_dir, download, verify, seed, options)
    classes = raw.classes or info.classes
    picked = np.arange(len(raw.parts["train"][1]))
    parts, scaling = _scaled(info, raw.parts, scale or info.scale, limit, seed)
    if limit is not None:
        picked = _pick(len(picked), limit, seed)
    labels = raw.parts["train"][1][picked]
    wanted = positive if positive is not None else info.positive or "none"
    chosen: list[int] = []
    if not (isinstance(wanted, str) and wanted == "none"):
        chosen = _class_indices(info, classes, wanted)
        parts = {part: (x, np.isin(y, chosen).astype(np.int64)) for part, (x, y) in parts.items()}
        rest = [c for i, c in enumerate(classes) if i not in chosen]
        classes = (
            rest[0] if len(rest) == 1 else "rest",
            classes[chosen[0]] if len(chosen) == 1 else "positive",
        )
    x, y = parts["train"]
    test_x, test_y = parts.get("test", (None, None))
    valid_x, valid_y = parts.get("valid", (None, None))
    groups = None if raw.groups is None else raw.groups[picked]
    return Dataset(
        info.name,
        x,
        y,
        test_x,
        test_y,
        valid_x,
        valid_y,
        raw.feature_names,
        classes,
        labels,
        groups,
        info.source,
        scaling,
    )


def download(name: str, data_dir: Folder = None) -> Path:
    """Download a set's files into its folder, unless they are there, and return the folder."""
    info = _info(name)
    if not info.layouts:
        raise FedsaddleError(f"{name} needs no download ({info.bundled}): load it")
    if fetch.locate(info, data_dir) is None:
        fetch.fetch(info, data_dir, lambda: _read(info, data_dir, False, False, 0, {}))
    return data_folder(data_dir) / info.folder


def _info(name: str) -> DatasetInfo:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def _read(
    info: DatasetInfo, data_dir: Folder, get: bool, verify: bool, seed: int, options: dict[str, Any]
) -> Raw:
    """The set as stored, with its numbers of rows checked."""
    if info.generate is not None:
        check_options(info.name, info.generate, options, skip=("seed",))
        seeded = {"seed": seed} if info.bundled == "generated" else {}
        return info.check(info.generate(**seeded, **options), Path(info.bundled))
    check_options(info.name, info.layouts[-1].read, options, skip=("paths", "n_features", "label_names"))
    if get:
        download(info.name, data_dir)
    found = fetch.locate(info, data_dir)
    if found is None:
        raise fetch.missing(info, data_dir)
    layout, paths = found
    folder = data_folder(data_dir) / info.folder
    if verify:
        for file in layout.unique_files():
            if (folder / file.name).is_file():
                fetch.verify(info, file, folder / file.name)
    try:
        raw = layout.read(paths, **options)
    except FedsaddleError:
        raise
    except formats.BROKEN as error:
        names = ", ".join(path.name for path in dict.fromkeys(p for files in paths.values() for p in files))
        reason = " ".join(str(error).split())[:160]
        remedy = "delete the damaged file and fetch it again"
        raise FedsaddleError(f"{info.name}: cannot read {names} in {folder} ({reason}): {remedy}") from error
    return info.check(raw, folder)


def _class_indices(info: DatasetInfo, classes: Sequence[str], wanted: Any) -> list[int]:
    """Class indices of `positive`: names first, then indices."""
    values = wanted if isinstance(wanted, (list, tuple, set, np.ndarray)) else [wanted]
    if not classes:
        raise FedsaddleError(f"{info.name} is a regression set: positive has no meaning, leave it out")
    indices = []
    for value in values:
        if str(value) in classes:
            indices.append(classes.index(str(value)))
        elif isinstance(value, (int, np.integer)) and 0 <= value < len(classes):
            indices.append(int(value))
        else:
            raise unknown(f"{info.name}: positive", value, classes)
    if len(set(indices)) == len(classes) or not indices:
        raise FedsaddleError(
            f"{info.name}: positive={wanted!r} leaves only one class: name some of the classes"
        )
    return sorted(set(indices))


def _pick(n: int, limit: int, seed: int) -> Array:
    return np.sort(np.random.default_rng(seed).permutation(n)[:limit])


def _scaled(
    info: DatasetInfo, raw: dict[str, tuple[Array, Array]], how: str, limit: int | None, seed: int
) -> tuple[dict[str, tuple[Array, Array]], tuple[Array, Array] | None]:
    """All parts as float32, scaled by statistics of the whole training part, that one cut to `limit`; and the scaling."""
    shift, width = _statistics(info, raw["train"][0], how)
    parts = {}
    for part, (x, y) in raw.items():
        if part == "train" and limit is not None:
            rows = _pick(len(x), limit, seed)
            x, y = x[rows], y[rows]
        x = x.astype(np.float32)
        if how != "none":
            columns = x[:, : info.numeric] if info.numeric is not None else x
            columns -= shift
            columns /= width
        parts[part] = (x, y)
    if how == "none":
        return parts, None
    rest = max(0, raw["train"][0].shape[1] - shift.shape[1])  # columns that are left as they are
    both = (shift, 0.0), (np.minimum(width, _ZEROED), 1.0)
    whole = [
        np.concatenate([v.astype(np.float64), np.full((1, rest), n)], 1) if rest else v.astype(np.float64)
        for v, n in both
    ]
    return parts, (whole[0], whole[1])


def _statistics(info: DatasetInfo, x: Array, how: str) -> tuple[Array, Array]:
    """Shift and width so that (x - shift) / width is scaled; a constant column becomes 0."""
    if how == "none":
        return np.float32(0), np.float32(1)  # type: ignore[return-value]
    axes: tuple[int, ...] = (0, 2, 3) if info.image else (0,)
    shape = (1, -1, 1, 1) if info.image else (1, -1)
    if info.image and how != "standard":
        shift, width = np.zeros(x.shape[1]), np.full(x.shape[1], 255.0)
    elif how == "standard":
        if info.image:
            counts = np.stack([np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])])
            share, level = counts / counts.sum(1, keepdims=True), np.arange(256)
            shift = share @ level
            width = np.sqrt(share @ level**2 - shift**2)
        else:
            x = x[:, : info.numeric]
            shift, width = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    else:
        x = x[:, : info.numeric]
        shift, width = x.min(axes).astype(np.float64), np.ptp(x, axes).astype(np.float64)
    if how == "symmetric":
        shift, width = shift + width / 2, width / 2
    width = np.where(width > 0, width, np.inf)
    return shift.astype(np.float32).reshape(shape), width.astype(np.float32).reshape(shape)
