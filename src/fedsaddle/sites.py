"""A site of a deployed federation: its data stay in its own file, which a small TOML describes.

    name = "st-mary"
    memory = "state"             # optional: where the site keeps what algorithms remember; beside the data unless given

    [data]
    file = "patients.csv"        # .csv, .parquet, .npz, LIBSVM text, or a folder of images with one sub-folder a class
    label = "readmitted"
    positive = "yes"
    drop = ["patient_id"]
    test = 0.2

Setting up takes one exchange (`agreement.py`): each site sends `Site.summary()`, and builds its own data from what the
server answers, `Site.federation(constants)`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsaddle import client_files, files, frames, ingest
from fedsaddle.agreement import (
    BY_RANGE,
    Message,
    feature_names,
    fill_of,
    moments_by_column,
    moments_of,
    packed,
    pieces,
    unpacked,
)
from fedsaddle.errors import FedsaddleError, short
from fedsaddle.federation import Federation
from fedsaddle.folder import write_whole
from fedsaddle.ingest import text_of
from fedsaddle.keys import Key, Tree, checked, keys_of, mistakes, wrong_name
from fedsaddle.parse import read_toml
from fedsaddle.scaling import Scaling

Array = npt.NDArray[Any]

TRAIN, VALID, TEST = 0, 1, 2


@dataclass(frozen=True)
class DataFile:
    """The section [data] of a site's TOML.

    Args:
        file: relative to the TOML.
        label: column to predict, of .csv and .parquet files; .npz files have arrays x and y, images their sub-folder.
        positive: the label value (or list of values) that becomes class 1; all others become class 0.
        classes: all label values, where there are more than two or not every site has all of them.
        task: "classification" or "regression"; guessed from the label unless given.
        drop: columns that are not features.
        categories: columns of numbers that name something, such as a ward; columns of text always do. Dates, and text with
            more than `MOST_VALUES` values, are refused unless they are named here: any value that `rare` rows have leaves.
        rare: values of a category that fewer training rows have are never named to anyone; nor is anything said of a
            numeric column with gaps in which fewer have a number.
        sep: the character between the columns of a .csv file.
        decimal: the decimal mark of its numbers; "," reads 1,5.
        encoding: of its text; "cp1252" is Excel's own in western Europe.
        impute: "mean": a missing number is the mean of its column over all sites' training rows, a missing text is a
            value of its own; "none" refuses both.
        scale: of numeric features, over all sites' training rows, as in `Federation.scaled`.
        valid, test: shares of the rows that are held out for validation and testing.
        together: column whose equal values stay in one part, such as the patient's number; rows with equal features do
            unless given.
    """

    file: str
    label: str | None = None
    positive: Any = None
    classes: Sequence[str] | None = None
    task: Literal["classification", "regression"] | None = None
    drop: Sequence[str] = ()
    categories: Sequence[str] = ()
    rare: int = 5
    sep: str = ","
    decimal: Literal[".", ","] = "."
    encoding: files.Encoding = "utf-8"
    impute: Literal["none", "median", "mean"] = "none"
    scale: Literal["none", "unit", "symmetric", "standard", "log"] = "standard"
    valid: float = 0.0
    test: float = 0.0
    together: str | None = None

    def mistakes(self) -> Iterator[str]:
        """What is wrong with the values, whatever the data."""
        for name in ("valid", "test"):
            if not 0 <= getattr(self, name) < 1:
                yield f"data.{name}: must be in [0, 1), got {getattr(self, name)}"
        if self.valid + self.test >= 1:
            yield f"data: valid + test must leave rows to train on, got {self.valid} + {self.test}"
        if self.rare < 1:
            yield f"data.rare: must be >= 1, got {self.rare}"
        if self.impute == "median":
            yield 'data.impute: sites exchange sums, which give no median; use "mean"'
        if len(self.sep) != 1:
            yield f"data.sep: must be one character, got {self.sep!r}"
        if self.positive is not None and self.classes is not None:
            yield "data.classes: has no use beside positive; leave one of them out"
        if self.task == "regression" and (self.positive is not None or self.classes is not None):
            yield "data.task: regression has no positive and no classes; leave them out"


class Rows(NamedTuple):
    """What a site's file holds."""

    x: Array  # [n, ...], numbers; NaN where one is missing and will be filled in
    y: Array  # [n]
    columns: tuple[str, ...]  # names of x's columns, where they have names
    text: dict[str, Array]  # categories of each row [n], by column
    part: npt.NDArray[np.int8]  # TRAIN, VALID or TEST [n]

    @property
    def training(self) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = self.part == TRAIN
        return mask


@dataclass(frozen=True)
class Site:
    """One site: its name, its data file, and where it keeps its memory.

    Args:
        name: as its operator calls it.
        folder: of its TOML.
        data: what describes its file.
        memory: folder for what algorithms remember at the site between rounds.
        modules: "module:name" of models and algorithms of one's own that the server may ask for; none unless named here.
    """

    name: str
    folder: Path
    data: DataFile
    memory: Path
    modules: tuple[str, ...] = ()

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Site:
        """Read and check a site's TOML; the data file itself is read when it is needed."""
        tree = tree_of(Path(path))
        for mistake in mistakes_of(tree):
            raise FedsaddleError(f"{path}: {mistake}")
        data = DataFile(**checked(tree["data"], keys_of(DataFile), "data.", "a site's data"))
        folder = Path(path).resolve().parent
        beside = (folder / Path(data.file).expanduser()).parent
        place = Path(tree["memory"]).expanduser() if "memory" in tree else beside / f"{tree['name']}.memory"
        return Site(tree["name"], folder, data, folder / place, tuple(tree.get("modules", ())))

    @property
    def file(self) -> Path:
        """The data file, or the folder of images."""
        return self.folder / Path(self.data.file).expanduser()

    @cached_property
    def rows(self) -> Rows:
        """All rows of the file, checked, each in its part."""
        if not os.path.exists(self.file):  # False, too, where the name is too long for a file
            raise FedsaddleError(
                f"{self.file} is not there: correct data.file, which is relative to {self.folder}"
            )
        rows = self._table() if self.is_table else self._arrays()
        if rows.x.shape[1] == 0 and not rows.text:
            raise FedsaddleError(f"{self.file.name} has no features beside the label: drop fewer columns")
        if not rows.training.any():
            raise FedsaddleError(
                f"{self.file.name} leaves no rows to train on: lower data.valid and data.test"
            )
        return rows

    @cached_property
    def _secret(self) -> bytes:
        """A secret in the memory folder, made when it is first needed."""
        file = self.memory / "key"
        try:
            if not file.exists():
                self.memory.mkdir(parents=True, exist_ok=True)
                write_whole(file, secrets.token_bytes(32), 0o600)
            return file.read_bytes()
        except OSError as error:
            raise FedsaddleError(
                f"{self.memory}: the site must be able to keep its memory there ({error}); correct memory in its TOML"
            ) from error

    def noise_key(self, asked: bytes) -> int:
        """64 bits from which the noise of an answer is drawn, known to the site alone, and the same for the same request."""
        return int.from_bytes(hmac.digest(self._secret, b"noise" + asked, "sha256")[:8], "big")

    @cached_property
    def digest(self) -> str:
        """Of all rows and their parts, by which a run sees that they have changed; keyed, so it says nothing to others."""
        rows, found = self.rows, hmac.new(self._secret, digestmod="sha256")
        for name, array in {"x": rows.x, "y": rows.y, "part": rows.part, **rows.text}.items():
            found.update(f"{name} {array.dtype} {array.shape} ".encode())
            text = array.dtype.kind in "OU"
            found.update("\0".join(map(str, array)).encode() if text else np.ascontiguousarray(array).data)
        return found.hexdigest()

    def frame(self) -> Any:
        """A table as it is in the file."""
        return files.read_frame(self.file, self.data.sep, self.data.decimal, self.data.encoding)

    def _table(self) -> Rows:
        data, frame = self.data, self.frame()
        for problem in missing_columns(self, frame) or unfit_texts(self, frame):
            raise FedsaddleError(problem)
        features = [c for c in frame.columns if c not in (data.label, data.together, *data.drop)]
        text = {*data.categories, *frames.text_columns(frame[features])}
        numbers, gaps = [c for c in features if c not in text], data.impute != "none"
        with files.located(self.file, data.sep):
            categories = {c: _categories(frame[c], c, gaps) for c in features if c in text}
            x = frames.numeric_frame(frame[numbers])
            x = np.require(x, requirements=["C", "W", "A"])
            ingest.check_finite(torch.from_numpy(x), "x", numbers, gaps)
            y = ingest.column(frame[data.label], "y")
            ingest.check_present(y, f"label {data.label!r}", ingest.UNLABELLED)
            together = None if data.together is None else _categories(frame[data.together], data.together)
        return Rows(x, y, tuple(map(str, numbers)), categories, _parts(x, categories, together, data))

    def _arrays(self) -> Rows:
        for name in ("label", "drop", "categories", "together"):
            if getattr(self.data, name):
                raise FedsaddleError(f"data.{name}: {self.file.name} has no named columns; leave it out")
        if self.data.impute != "none":
            raise FedsaddleError(f"data.impute: {self.file.name} is no table; leave it out")
        x, y = files.read_images(self.file) if self.file.is_dir() else client_files.read_arrays(self.file)
        x, y = ingest.as_tensor(x, f"{self.file.name}: x").numpy(), ingest.column(y, "y")
        x = x[:, None] if x.ndim == 1 else x
        with files.located(self.file):
            ingest.same_length({"x": torch.empty(len(x)), "y": torch.empty(len(y))})
            ingest.check_finite(torch.from_numpy(x), "x", ())
            ingest.check_present(y, "y", ingest.UNLABELLED)
        return Rows(x, y, (), {}, _parts(x, {}, None, self.data))

    @property
    def is_table(self) -> bool:
        """Whether the file has named columns."""
        return not self.file.is_dir() and files.file_format(self.file) in ("csv", "parquet")

    def summary(self) -> Message:
        """Everything that leaves the site when a federation is set up, and nothing else; about training rows alone.

        "n", the number of rows; of each numeric column [C] "mean", "rest" (its rounding) and "m2" (the sum of squared
        deviations from it), and only where `scale` is by range "min" and "max", which are single people's values; "size",
        how many numbers a column has (a channel of images has one for each pixel; with `impute` [C], and 0, like the other
        statistics, for a column in which fewer than `rare` rows have a number); "labels", how many rows each label
        value has (with `positive`: negatives and positives); "head": names of the site, the columns, the categories that
        at least `rare` rows have and the label values (with `positive`: those that at least `rare` rows have, and the
        positive ones), and the settings that must agree. Numbers are float64.
        """
        data, rows = self.data, self.rows
        train = rows.training
        labels, positive, counts = self._labels()
        head = {
            "site": self.name,
            "kind": "image" if self.file.is_dir() else files.file_format(self.file),
            "shape": list(rows.x.shape[1:]),
            "columns": list(rows.columns),
            "categories": {c: _frequent(v[train], data.rare) for c, v in rows.text.items()},
            "labels": labels,
            "positive": positive,
            "classes": None if data.classes is None else list(data.classes),
            "scale": data.scale,
            "impute": data.impute,
        }
        gaps = data.impute != "none"
        x, log = rows.x[train], data.scale == "log"
        moments = (moments_by_column(x, data.rare, log) if gaps else moments_of(x, log))._asdict()
        if data.scale not in BY_RANGE:
            del moments["min"], moments["max"]
        return {
            "head": packed(head),
            "n": torch.tensor([train.sum()], dtype=torch.float64),
            "labels": torch.tensor(counts, dtype=torch.float64),
        } | moments

    @cached_property
    def is_regression(self) -> bool:
        """Whether the label is a number to predict."""
        data = self.data
        guess = data.task is None and data.positive is None and data.classes is None
        return data.task == "regression" or (guess and ingest.is_regression(self.rows.y))

    def _labels(self) -> tuple[list[str] | None, list[str] | None, list[int]]:
        """The label values that may be named, the positive ones, and training rows of each label or side."""
        if self.is_regression:
            return None, None, []
        data, train = self.data, self.rows.training
        texts, codes = ingest.levels(self.rows.y, "y", ingest.UNLABELLED)
        if data.classes is not None and (alien := [t for t in texts if t not in data.classes]):
            raise FedsaddleError(
                f"{self.file.name} has label {alien[0]!r}, data.classes has {short(data.classes)}: add it or correct it"
            )
        if data.positive is None:
            return list(texts), None, np.bincount(codes[train], minlength=len(texts)).tolist()
        wanted = list(ingest.positives(data.positive, texts))
        frequent = np.bincount(codes[train], minlength=len(texts)) >= data.rare
        named = [t for t, often in zip(texts, frequent, strict=True) if often or t in wanted]
        side, _ = ingest.binary(texts, codes, data.positive, must_occur=False)
        return named, wanted, np.bincount(side.numpy()[train], minlength=2).tolist()

    def federation(self, constants: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Federation:
        """This site alone as a federation of one client, with its own validation and test parts.

        Args:
            constants: of `agree`.
            dtype: floating type of x; scaling is computed in float64.
        """
        head, rows = unpacked(constants["head"]), self.rows
        columns, x = head["columns"], rows.x
        same = sorted(columns) == sorted(rows.columns) and sorted(head["categories"]) == sorted(rows.text)
        if same and columns:
            x = x[:, [rows.columns.index(c) for c in columns]]
        if head["kind"] == "libsvm":
            x = np.pad(x, ((0, 0), (0, max(0, head["shape"][0] - x.shape[1]))))
        if not same or list(x.shape[1:]) != head["shape"]:
            raise FedsaddleError(
                f"{self.file.name} has other columns than at set-up: set the federation up again"
            )
        log = head.get("scale") == "log"
        if (fill := fill_of(constants, head)) is not None:
            x = np.where(np.isnan(x), fill.numpy(), x)
        scaled = _scaled(x, constants["shift"], constants["width"], dtype, log)
        for c, known in head["categories"].items():  # a value that is rare or unknown is 0 in all of them
            indicators = torch.from_numpy(rows.text[c][:, None] == np.array(known))
            scaled = torch.cat([scaled, indicators.to(dtype)], dim=1)
        if head["labels"] is None:
            y, _ = ingest.encode(rows.y, None, None, "regression", dtype)
        elif self.data.positive is not None:
            texts, codes = ingest.levels(rows.y, "y", ingest.UNLABELLED)
            y, _ = ingest.binary(texts, codes, self.data.positive, must_occur=False)
        else:
            y = ingest.encode_as(rows.y, None, tuple(head["labels"]), self.file.name)
        n = torch.tensor([0, len(y)])
        names, classes = tuple(feature_names(head)), tuple(head["classes"])
        everything = Federation({"x": scaled, "y": y}, n, (self.name,), classes, names)
        part = {k: everything.keep(rows.part == k) for k in (TRAIN, VALID, TEST) if (rows.part == k).any()}
        return dataclasses.replace(part[TRAIN], valid=part.get(VALID), test=part.get(TEST))


def _scaled(x: Array, shift: Tensor, width: Tensor, dtype: torch.dtype, log: bool) -> Tensor:
    shift, width = (v.view(-1, *[1] * (x.ndim - 2)) for v in (shift, width))
    scaling = Scaling(shift, width, log)
    return torch.cat([scaling(torch.from_numpy(x[r].astype(np.float64))).to(dtype) for r in pieces(x)])


def _categories(column: Any, name: str, gaps: bool = False) -> Array:
    """A column's values as texts; one that is missing is a value of its own, or refused."""
    values = column.to_numpy()
    if not gaps:
        ingest.check_present(values, f"column {name!r}")
    absent = ingest.missing(values)
    texts = zip(values.tolist(), absent.tolist(), strict=True)
    return np.array([frames.MISSING if gap else text_of(v) for v, gap in texts])


def _frequent(values: Array, rare: int) -> list[str]:
    """The values that at least `rare` rows have."""
    distinct, counts = np.unique(values, return_counts=True)
    found: list[str] = distinct[counts >= rare].tolist()
    return found


def _parts(
    x: Array, text: Mapping[str, Array], together: Array | None, data: DataFile
) -> npt.NDArray[np.int8]:
    """The part of each row, by a hash of what it must stay together with: never another, however the file grows."""
    part = np.full(len(x), TRAIN, dtype=np.int8)
    if data.valid == data.test == 0:
        return part
    for i in range(len(x)):
        if together is not None:
            what = str(together[i]).encode()
        else:
            what = "\x1f".join(str(v[i]) for v in text.values()).encode() + x[i].tobytes()
        u = int.from_bytes(hashlib.blake2b(what, digest_size=8).digest(), "big") / 2**64
        if u < data.test + data.valid:
            part[i] = TEST if u < data.test else VALID
    return part


# ---------------------------------------------------------------------------------------------- the TOML file


def tree_of(path: Path) -> Tree:
    """A site's TOML."""
    try:
        return read_toml(path)
    except OSError as error:
        raise FedsaddleError(f"{path}: {error.strerror}; give the site's TOML file") from None


def mistakes_of(tree: Tree) -> list[str]:
    """All that is wrong with a site's TOML."""
    own = {"name": Key(str), "memory": Key(str, ""), "modules": Key(list[str], [])}
    found = list(mistakes({k: v for k, v in tree.items() if k != "data"}, own, "", "a site"))
    name = tree.get("name")
    if isinstance(name, str) and (why := wrong_name(name)):
        found.append(why)
    if not isinstance(tree.get("data"), dict):
        found.append('data: section is missing; for example [data] with file = "patients.csv"')
    else:
        wrong = list(mistakes(tree["data"], keys_of(DataFile), "data.", "a site's data"))
        found += wrong or DataFile(**tree["data"]).mistakes()
    return found


def missing_columns(site: Site, frame: Any) -> list[str]:
    """Columns that a site's TOML names and its table has not, or the label that it does not name."""
    data, where = site.data, site.file.name
    if data.label is None:
        return [
            f"data.label: is missing; name the column of {where} to predict, one of {short(frame.columns)}"
        ]
    wanted = {"label": [data.label], "drop": data.drop, "categories": data.categories}
    wanted["together"] = [] if data.together is None else [data.together]
    return [
        f"data.{key}: {frames.no_column(where, c, frame.columns)}"
        for key, columns in wanted.items()
        for c in columns
        if c not in frame.columns
    ]


def unfit_texts(site: Site, frame: Any) -> list[str]:
    """Dates and free text, of which some values would leave the site because a few rows have them by chance."""
    data, found = site.data, list[str]()
    used = (data.label, data.together, *data.drop, *data.categories)
    for c in frames.text_columns(frame[[c for c in frame.columns if c not in used]]):
        n, what = len({text_of(value) for value in frame[c].dropna()}), ""
        if frames.are_dates(frame[c]):
            what, remedy = "has dates", "make them numbers, such as days since the first"
        elif n > frames.MOST_VALUES:
            what = f"is text with {n} distinct values, at most {frames.MOST_VALUES} may leave as categories"
            remedy = "group them"
        if what:
            found.append(
                f"{site.file.name}: column {c!r} {what}: add it to drop, or {remedy}; if every value that {data.rare} rows "
                "have may leave the site, add it to categories"
            )
    return found
