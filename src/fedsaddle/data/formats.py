"""Readers of the file formats: paths of each part in, arrays out. Nothing is ever unpickled."""

from __future__ import annotations

import gzip
import lzma
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsaddle.data.dataset import Raw
from fedsaddle.errors import FedsaddleError, optional_import
from fedsaddle.files import check_bytes, read_npz

Array = npt.NDArray[Any]
Paths = Mapping[str, Sequence[Path]]

BROKEN = (
    OSError,
    EOFError,
    NotImplementedError,  # a zip archive of a version that does not exist
    ValueError,
    LookupError,
    ArithmeticError,
    struct.error,
    MemoryError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
)

CENSUS_COLUMNS = (
    "age", "class of worker", "detailed industry recode", "detailed occupation recode", "education",
    "wage per hour",
    "enroll in edu inst last wk", "marital stat", "major industry code", "major occupation code", "race",
    "hispanic origin", "sex", "member of a labor union", "reason for unemployment",
    "full or part time employment stat", "capital gains", "capital losses", "dividends from stocks",
    "tax filer stat",
    "region of previous residence", "state of previous residence", "detailed household and family stat",
    "detailed household summary in household", "instance weight", "migration code-change in msa",
    "migration code-change in reg", "migration code-move within reg", "live in this house 1 year ago",
    "migration prev res in sunbelt", "num persons worked for employer", "family members under 18",
    "country of birth father", "country of birth mother", "country of birth self", "citizenship",
    "own business or self employed", "fill inc questionnaire for veteran's admin", "veterans benefits",
    "weeks worked in year", "year", "label",
)  # fmt: skip
CENSUS_NUMERIC = (
    "age", "wage per hour", "capital gains", "capital losses", "dividends from stocks",
    "num persons worked for employer", "weeks worked in year",
)  # fmt: skip
COVTYPE_COLUMNS = (
    "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points", *(f"Wilderness_Area{i}" for i in range(1, 5)),
    *(f"Soil_Type{i}" for i in range(1, 41)),
)  # fmt: skip


def libsvm(paths: Paths, *, n_features: int) -> Raw:
    """LIBSVM text, plain or .bz2, one file a part; labels > 0 are positive."""
    load = optional_import("sklearn.datasets", "LIBSVM text").load_svmlight_file
    parts = {}
    for part, files in paths.items():
        x, label = load(str(files[0]), n_features=n_features, dtype=np.float32)
        parts[part] = (x.toarray(), (label > 0).astype(np.int64))
    return Raw(parts, tuple(str(i + 1) for i in range(n_features)))


def covtype(paths: Paths) -> Raw:
    """UCI Covertype as text, with a header line or without; Cover_Type 1..7 becomes class 0..6."""
    pandas = optional_import("pandas", "covtype")
    file = paths["train"][0]
    header = 0 if ".csv" in file.suffixes else None
    table = pandas.read_csv(file, header=header, dtype=np.int32).to_numpy()
    if table.shape[1] != 55:
        raise ValueError(f"{table.shape[1]} columns instead of 55")
    x, groups = table[:, :54].astype(np.float32), table[:, 10:14].argmax(1)
    return Raw({"train": (x, table[:, 54].astype(np.int64) - 1)}, COVTYPE_COLUMNS, groups=groups + 1)


def census(paths: Paths, *, group: str = "major industry code") -> Raw:
    """KDD census-income text, without its instance weight.

    Columns: the seven numeric ones first, then, for every nominal column in file order, one indicator for
    each value in the training file, in sorted order. "?" is a value like any other; a test value that
    training lacks gives zeros.

    Args:
        group: nominal column that gives the natural groups.
    """
    pandas = optional_import("pandas", "census_income")
    nominal = [c for c in CENSUS_COLUMNS if c not in (*CENSUS_NUMERIC, "instance weight", "label")]
    if group not in nominal:
        raise FedsaddleError(
            f"census_income: group must be a nominal column, got {group!r}: one of {', '.join(nominal)}"
        )
    kinds = {c: np.float32 if c in CENSUS_NUMERIC else "category" for c in CENSUS_COLUMNS}
    columns = [c for c in CENSUS_COLUMNS if c != "instance weight"]
    options = {"names": CENSUS_COLUMNS, "usecols": columns, "dtype": kinds, "skipinitialspace": True}
    frames = {part: pandas.read_csv(files[0], na_filter=False, **options) for part, files in paths.items()}
    for frame in frames.values():
        for c in (*nominal, "label"):
            frame[c] = frame[c].cat.rename_categories(lambda value: str(value).strip())
    values = {c: sorted(frames["train"][c].cat.categories) for c in nominal}
    names = (*CENSUS_NUMERIC, *(f"{c}={value}" for c in nominal for value in values[c]))
    parts = {}
    for part, frame in frames.items():
        x = np.zeros((len(frame), len(names)), dtype=np.float32)
        x[:, : len(CENSUS_NUMERIC)] = frame[list(CENSUS_NUMERIC)].to_numpy()
        first = len(CENSUS_NUMERIC)
        for c in nominal:
            code = frame[c].cat.set_categories(values[c]).cat.codes.to_numpy()
            seen = np.flatnonzero(code >= 0)
            x[seen, first + code[seen].astype(np.int64)] = 1
            first += len(values[c])
        parts[part] = (x, (frame["label"] == "50000+.").to_numpy().astype(np.int64))
    return Raw(parts, names, groups=np.asarray(frames["train"][group].astype(str)))


def image_npz(paths: Paths) -> Raw:
    """One or more .npz files a part with arrays `data` (uint8) and `labels`."""
    parts = {}
    for part, files in paths.items():
        stored = [read_npz(file, "data", "labels") for file in files]
        x, y = (np.concatenate(arrays) for arrays in zip(*stored, strict=True))
        parts[part] = (_channel_first(x), y.astype(np.int64))
    return Raw(parts)


def medmnist(paths: Paths, *, label: str | None = None, label_names: tuple[str, ...] = ()) -> Raw:
    """A MedMNIST .npz with arrays `train_images`, `train_labels`, `val_...`, `test_...`.

    Args:
        label: for a set with several yes/no labels an image, the one to predict.
        label_names: names of those labels.
    """
    parts = {}
    for part, files in paths.items():
        prefix = "val" if part == "valid" else part
        x, y = read_npz(files[0], f"{prefix}_images", f"{prefix}_labels")
        y = y[:, label_names.index(label)] if label is not None else y.reshape(len(x))
        parts[part] = (_channel_first(x), y.astype(np.int64))
    return Raw(parts)


def idx(paths: Paths) -> Raw:
    """MNIST's idx format, gzipped: an image file and a label file a part."""
    parts = {}
    for part, (images, labels) in paths.items():
        parts[part] = (_channel_first(_idx_array(images)), _idx_array(labels).astype(np.int64))
    return Raw(parts)


def cifar10_binary(paths: Paths) -> Raw:
    """The binary version of CIFAR-10: records of a label and 3072 pixels."""
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
    inside = _members(paths["train"][0], [*batches, "test_batch.bin", "batches.meta.txt"])
    train = _records(b"".join(inside[name] for name in batches), 1)
    names = tuple(inside["batches.meta.txt"].decode().split())
    return Raw({"train": train, "test": _records(inside["test_batch.bin"], 1)}, classes=names)


def cifar100_binary(paths: Paths) -> Raw:
    """The binary version of CIFAR-100: records of a coarse label, a fine label (used) and 3072 pixels."""
    inside = _members(paths["train"][0], ["train.bin", "test.bin", "fine_label_names.txt"])
    parts = {part: _records(inside[f"{part}.bin"], 2) for part in ("train", "test")}
    return Raw(parts, classes=tuple(inside["fine_label_names.txt"].decode().split()))


def _channel_first(images: Array) -> Array:
    """[n, h, w] or [n, h, w, 3] or [n, 3, h, w] as [n, channels, h, w]."""
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if images.shape[-1] == 3 and images.shape[1] != 3 else images


def _idx_array(file: Path) -> Array:
    with gzip.open(file) as stream:
        zero, kind, n_axes = struct.unpack(">HBB", stream.read(4))
        if zero != 0 or kind != 8:
            raise ValueError("not an idx file of bytes")
        shape = struct.unpack(f">{n_axes}I", stream.read(4 * n_axes))
        size = math.prod(shape)
        check_bytes(f"{file} takes", size, file.stat().st_size, " when unpacked", "fetch it again")
        return np.frombuffer(stream.read(size + 1), np.uint8).reshape(shape)


def _members(file: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Contents of the named files inside a tar, in one pass; nothing is written to disk."""
    found = {}
    with tarfile.open(file) as tar:
        for entry in tar:
            name = Path(entry.name).name
            stream = tar.extractfile(entry) if name in names else None
            if stream is not None:
                found[name] = stream.read()
    for name in names:
        if name not in found:
            raise ValueError(f"no {name} inside")
    return found


def _records(content: bytes, label_bytes: int) -> tuple[Array, Array]:
    table = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + 3072)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1].astype(np.int64)
