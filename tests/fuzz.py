"""Hostile and messy input: whatever a file or a message holds, it is used, or refused with one line.

A target takes a case and a scratch folder and calls the reader, or the command line, that a user's bytes would reach. It may
end well or with a FedsaddleError of one line; at the command line with exit code 2 and exactly one line on stderr beside
warnings. All else is a failure: another exception, a case that takes long, memory asked for that the bytes do not hold, a
run's folder that is left behind without a word.

    python tests/fuzz.py --cases 200000 [--target NAME ...] [--seed 0]

prints for each target how many cases ran, how many distinct refusals there were, and the smallest case that fails.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import functools
import hashlib
import io
import json
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fedsaddle import cli, site_check, sites, sweep_plan
from fedsaddle.agreement import agree, in_words, outline
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.client_files import read_files
from fedsaddle.config import load, resolve
from fedsaddle.data import formats
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.folder import Folder
from fedsaddle.journal import Journal
from fedsaddle.participation import PARTICIPATION
from fedsaddle.partitions import PARTITIONS
from fedsaddle.problems import PROBLEMS
from fedsaddle.schema import keys
from fedsaddle.toml import to_toml
from fedsaddle.train import train
from fedsaddle.transforms import TRANSFORMS
from fedsaddle.wire import classes_of, pack, unpack

Case = Any
_make = typer.main.get_command
Strategy = st.SearchStrategy[Any]

MEMORY = 1 << 30  # bytes that a case may ask for beside what the process has
SECONDS = 10.0  # of computing that a case may take

# ---------------------------------------------------------------------------------------------- odd values

DEEP = 100_000


class Deep:
    """A value inside so many lists."""

    def __init__(self, levels: int) -> None:
        self.levels = levels

    def __repr__(self) -> str:
        return f"Deep({self.levels})"


class Long:
    """A whole number of so many digits that Python writes it in no decimal form; JSON cannot bring one, TOML can."""

    def __repr__(self) -> str:
        return "16**5000"


HUGE = (2**31, 2**40, 10**12, 2**63 - 1, 2**63, 10**400)
ODD_NUMBERS = (0, 1, -1, 2, 7, 0.5, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"), True, *HUGE)
ODD_TEXTS = (
    "",
    "none",
    "x",
    "nan",
    "\x00",
    "a\nb",
    "\u202eé漢",
    "%s{0}",
    "a" * 5000,
    "../../x",
    "*",
    "cuda",
    "mlp",
)
ODD = (
    *ODD_NUMBERS,
    *ODD_TEXTS,
    [],
    [[]],
    [1, "a"],
    {},
    {"a": {"b": 1}},
    Deep(50),
    Long(),
    datetime.date(2020, 1, 1),
)
odd = st.one_of(
    st.sampled_from(ODD),
    st.integers(-3, 60),
    st.floats(width=32),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.lists(st.integers(-2, 5), max_size=3),
)
spots = st.integers(0, 2**16 - 1)  # where: a share of what there is


def at(spot: int, n: int) -> int:
    return spot * n >> 16


def plain(value: Any, json: bool = False) -> Any:
    """A value as Python, TOML and JSON have it."""
    if isinstance(value, Long):
        return 10**400 if json else 16**5000
    if json and isinstance(value, datetime.date):
        return str(value)
    if isinstance(value, Deep):
        made: Any = 1
        for _ in range(value.levels):
            made = [made]
        return made
    return copy.deepcopy(value)


def written(value: Any) -> str:
    value = plain(value)
    return hex(value) if isinstance(value, int) else str(value)


# trees: change, remove or add at a place among all places of the tree
tree_edits = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "drop", "add"]), spots, odd), max_size=4
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a tree."""
    found: list[tuple[Any, Any]] = []
    pairs = (
        list(tree.items())
        if isinstance(tree, dict)
        else list(enumerate(tree))
        if isinstance(tree, list)
        else []
    )
    for key, value in pairs:
        found += [(tree, key), *places(value)]
    return found


def edited(tree: Any, edits: Sequence[tuple[str, int, Any]], json: bool = False) -> Any:
    tree = copy.deepcopy(tree)
    for how, spot, value in edits:
        there = places(tree)
        if not there:
            break
        box, key = there[at(spot, len(there))]
        if how == "drop":
            del box[key]
        elif how == "add" and isinstance(box, dict):
            box[written(value)[:50]] = plain(value, json)
        else:
            box[key] = plain(value, json)
    return tree


# bytes: overwrite, insert, remove, repeat
TOKENS = (
    b"\x00", b"\xff", b"\n", b"\r\n", b",", b";", b'"', b"'", b"\t", b":", b"#", b"[", b"{", b"1e999", b"-", b"nan", b"NaN",
    b"inf", b"999999999999:1", b"1000000000:1", b"-1", b"0x" + b"f" * 5000, b"9" * 5000, b"\xef\xbb\xbf",
    b"\xf0\x9f\x98\x80", b"qid:1", b"[" * DEEP,
    b'{"a":' * 20_000, b"null", b"a=" + b"[" * 2000,
)  # fmt: skip
byte_edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "cut", "end", "repeat"]),
        spots,
        st.one_of(st.sampled_from(TOKENS), st.binary(min_size=1, max_size=6)),
    ),
    max_size=4,
)


def spoiled(data: bytes, edits: Sequence[tuple[str, int, bytes]]) -> bytes:
    for how, spot, token in edits:
        i = at(spot, len(data) + 1)
        if how == "set":
            data = data[:i] + token + data[i + len(token) :]
        elif how == "insert":
            data = data[:i] + token + data[i:]
        elif how == "cut":
            data = data[:i] + data[i + len(token) * 3 :]
        elif how == "end":
            data = data[:i]
        else:
            data = data[:i] + data[i : i + 40] * min(8, len(token) + 1) + data[i + 40 :]
    return data


# ------------------------------------------------------------------------------------------- the command line


def command(*arguments: object) -> None:
    """`fedsaddle ...` in this process; what it refuses is raised as a FedsaddleError."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(typer.main, "get_command", lambda _: _made_once()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = cli._main(list(map(str, arguments)))
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("fedsaddle: warning: ")]
    assert code in (0, 2), f"exit code {code}"
    assert len(lines) == (code == 2), f"exit code {code} with {len(lines)} lines on stderr: {lines[:3]}"
    if code == 2:
        assert lines[0].startswith("fedsaddle: "), lines[0]
        raise FedsaddleError(lines[0])


@functools.cache
def _made_once() -> Any:
    return _make(cli.app)


# --------------------------------------------------------------------------------------------------- configs

CSV = b"hospital,age,lactate,ward,died\n" + b"".join(
    b"%s,%d,%.1f,%d,%d\n" % (b"ab"[i % 2 : i % 2 + 1], 30 + i, 0.3 * i, i % 3, i % 4 == 0) for i in range(24)
)
_TRAIN = {"rounds": 1, "batch_size": 4}
_CODASCA = {"name": "codasca", "lr": 0.05, "local_steps": 2}
_LEARNED = {"model": {"name": "linear"}, "problem": {"name": "auc"}, "algorithm": _CODASCA, "train": _TRAIN}
CONFIGS: dict[str, dict[str, Any]] = {
    "quadratic": {
        "data": {"name": "quadratic", "clients": 3, "dim_x": 2, "dim_y": 1},
        "problem": {"name": "quadratic"},
        "algorithm": _CODASCA,
        "train": {"rounds": 1, "dtype": "float64"},
    },
    "generated": {
        "data": {"name": "synthetic_binary", "n": 60, "features": 3, "test": 0.25},
        "partition": {"name": "dirichlet", "clients": 3},
        **_LEARNED,
    },
    "frame": {"data": {"file": "all.csv", "group": "hospital", "label": "died", "test": 0.25, "scale": "unit"}, **_LEARNED},
    "files": {"data": {"files": "sites/*.csv", "label": "died", "drop": ["hospital"], "impute": "mean"}, **_LEARNED},
}  # fmt: skip
_NAMES = {
    "algorithm": tuple(ALGORITHMS),
    "problem": tuple(PROBLEMS),
    "partition": tuple(PARTITIONS),
    "participation": tuple(PARTICIPATION),
    "transform": tuple(TRANSFORMS),
    "model": ("linear", "mlp"),
}
swaps = st.lists(st.tuples(st.sampled_from(list(_NAMES)), spots, spots, odd), max_size=2)
config_cases = st.tuples(st.sampled_from(list(CONFIGS)), swaps, tree_edits)
_LONG = ("rounds", "local_steps", "epochs", "inner_steps")  # how long a run takes is the user's choice


def config_tree(case: Case) -> dict[str, Any]:
    """A config with parts swapped for others that there are, one of their own keys set, and anything changed."""
    base, swapped, edits = case
    tree = copy.deepcopy(CONFIGS[base])
    for section, which, key, value in swapped:
        name = _NAMES[section][at(which, len(_NAMES[section]))]
        part = {"name": name}
        own = [k for k in keys(section, name) if k != "name"]
        if own:
            part[own[at(key, len(own))]] = plain(value)
        tree[section] = [part] if section == "transform" else part
    return edited(tree, edits)  # type: ignore[no-any-return]


def _site_files(folder: Path) -> None:
    (folder / "sites").mkdir()
    (folder / "all.csv").write_bytes(CSV)
    for name in "ab":
        (folder / "sites" / f"{name}.csv").write_bytes(CSV)


def config(case: Case, folder: Path) -> None:
    """A config as a tree: checked, built, ready to train."""
    _site_files(folder)
    with contextlib.chdir(folder):
        setup = resolve(config_tree(case)).build()
        train(*setup[:3], participation=setup.participation, progress=False, **setup.train)


def run(case: Case, folder: Path) -> None:
    """A config as a file, by `fedsaddle run`: a folder that is left behind is spoken of."""
    _site_files(folder)
    tree = config_tree(case)
    for box, key in places(tree):
        if (
            isinstance(box[key], int)
            and not isinstance(box[key], bool)
            and box[key] > 4
            and key in (*_LONG, *_counts(box))
        ):
            box[key] = 2
    try:
        text = to_toml(tree)
    except (FedsaddleError, ValueError):
        return  # no TOML has it
    (folder / "fuzz.toml").write_text(text, encoding="utf-8", errors="replace")
    out = folder / "out"
    with contextlib.chdir(folder):
        try:
            command("run", "fuzz.toml", "--out", out)
        except FedsaddleError as error:
            assert not out.exists() or str(out) in str(error), f"{sorted(out.iterdir())} left without a word"
            raise


def _counts(box: Any) -> list[str]:
    """Keys of algorithms that say how often something is done."""
    return (
        [k for k in box if k.endswith(("steps", "rounds", "epochs", "iterations"))]
        if isinstance(box, dict)
        else []
    )


toml_cases = st.tuples(st.sampled_from(list(CONFIGS)), byte_edits)


def toml(case: Case, folder: Path) -> None:
    """A config as bytes, by `fedsaddle show`."""
    _site_files(folder)
    (folder / "fuzz.toml").write_bytes(spoiled(to_toml(CONFIGS[case[0]]).encode(), case[1]))
    with contextlib.chdir(folder):
        command("show", "fuzz.toml")


_KEYS = ("name", "data", "data.name", "data.clients", "algorithm.lr", "train.rounds", "train.batch_size", "transform.0.name",
         "participation.name", "train.device", "a.b.c", "", ".", "data..x", "algorithm", "sweep.metric",
         "data.name.x")  # fmt: skip
set_cases = st.tuples(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(_KEYS), odd.map(written)).map("=".join),
            st.tuples(st.sampled_from(_KEYS), st.text(max_size=8)).map("=".join),
            st.text(max_size=12),
            st.sampled_from(
                ["algorithm.lr=" + "[" * 5000, "train.rounds=0x" + "f" * 5000, "algorithm.lr=1\nx=2"]
            ),
        ),
        min_size=1,
        max_size=3,
    ),
)


def assignments(case: Case, folder: Path) -> None:
    """--set: of a config that is in order."""
    (folder / "fuzz.toml").write_text(to_toml(CONFIGS["quadratic"]))
    load(folder / "fuzz.toml", case[0])


SWEEP = CONFIGS["quadratic"] | {
    "sweep": {
        "metric": "distance",
        "seeds": [0, 1],
        "random": 3,
        "points": {"algorithm.lr": {"log_uniform": [0.01, 0.1]}, "algorithm.local_steps": [1, 2]},
    }
}
sweep_cases = st.tuples(st.booleans(), tree_edits)


def sweep(case: Case, folder: Path) -> None:
    """A sweep: planned."""
    whole, edits = case
    tree = edited(SWEEP, edits) if whole else SWEEP | {"sweep": edited(SWEEP["sweep"], edits)}
    try:
        (folder / "fuzz.toml").write_text(to_toml(tree), encoding="utf-8", errors="replace")
    except (FedsaddleError, ValueError):
        return
    sweep_plan.plan(folder / "fuzz.toml")


# ------------------------------------------------------------------------------------------------------- data

LIBSVM = b"".join(b"%d 1:%.2f 3:%d # row\n" % (1 if i % 3 else -1, i / 7, i) for i in range(12))
libsvm_cases = st.tuples(byte_edits, st.booleans())


def libsvm(case: Case, folder: Path) -> None:
    """LIBSVM text, beside a file that is in order."""
    edits, as_site = case
    _data(folder, "svm", spoiled(LIBSVM, edits), LIBSVM, as_site, {})


csv_cases = st.tuples(
    byte_edits,
    st.sampled_from([",", ";", "\t", " ", '"', "\x00", ",,", ""]),
    st.booleans(),
    st.sampled_from(["none", "mean", "median"]),
)


def csv(case: Case, folder: Path) -> None:
    """CSV and TSV."""
    edits, sep, as_site, impute = case
    mark = sep.encode() if len(sep) == 1 and sep not in '"\x00' else b","
    text = CSV.replace(b",", mark)
    _data(
        folder,
        "csv",
        spoiled(text, edits),
        text,
        as_site,
        {"label": "died", "drop": ["hospital"], "sep": sep, "impute": impute},
    )


class Array(NamedTuple):
    """An .npy with a header that may say anything."""

    shape: tuple[Any, ...]
    dtype: str
    data: bytes = b"\x00" * 96
    version: int = 1

    def bytes(self) -> bytes:
        text = repr({"descr": self.dtype, "fortran_order": False, "shape": self.shape}).encode()
        head = (
            b"\x93NUMPY"
            + bytes([self.version, 0])
            + len(text).to_bytes(2 if self.version == 1 else 4, "little")
        )
        return head + text + self.data


_shapes = st.one_of(
    st.sampled_from([(12,), (4, 3), (12, 1), (), (0,), (0, 3), (10**12,), (2**63, 2), (-1,), (12, 10**9),
                     (2, 2, 2, 1), (2**29,)]),
    st.lists(st.integers(-2, 13), max_size=4).map(tuple),
)  # fmt: skip
_dtypes = st.sampled_from(
    [
        "<f8",
        "<f4",
        "<f2",
        "<i8",
        "|u1",
        "|b1",
        "|O",
        "<U4",
        "|S3",
        "<c16",
        "<M8[ns]",
        "<u4",
        ">f8",
        "|V8",
        "<f16",
        "no",
    ]
)
arrays = st.builds(
    Array,
    _shapes,
    _dtypes,
    st.sampled_from([b"\x00" * 96, b"", b"\xff" * 200, bytes(1 << 16)]),
    st.sampled_from([1, 2, 3, 9]),
)
npz_cases = st.tuples(
    st.one_of(st.none(), arrays),
    st.one_of(st.none(), arrays),
    byte_edits,
    st.sampled_from([0, 0, 0, 1]),
    st.booleans(),
)


def npz(case: Case, folder: Path) -> None:
    """.npz with lying headers, pickles, bombs, in broken archives."""
    x, y, edits, bomb, as_site = case
    good = _zipped(_npy(np.arange(12.0).reshape(4, 3)), _npy(np.array([0, 1, 0, 1])))
    if bomb:
        bad = _bomb()
    else:
        bad = _zipped(
            _npy(np.arange(12.0).reshape(4, 3)) if x is None else x.bytes(),
            _npy(np.array([0, 1, 0, 1])) if y is None else y.bytes(),
        )
    _data(folder, "npz", spoiled(bad, edits), good, as_site, {})


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _zipped(x: bytes, y: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", y)
    return stream.getvalue()


@functools.cache
def _bomb() -> bytes:
    """1.25 GiB of zeros in 1.3 MB, with an honest header."""
    rows = 5 << 25
    stream, piece = io.BytesIO(), bytes(1 << 24)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("x.npy", "w", force_zip64=True) as member:
            member.write(Array((rows, 1), "<f8", b"").bytes())
            for _ in range(rows * 8 >> 24):
                member.write(piece)
        file.writestr("y.npy", Array((rows,), "<i8", b"").bytes())
    return stream.getvalue()


def _data(folder: Path, ending: str, bad: bytes, good: bytes, as_site: bool, options: dict[str, Any]) -> None:
    """Read a client's file beside another one's, or as the data of a site."""
    (folder / f"bad.{ending}").write_bytes(bad)
    (folder / f"good.{ending}").write_bytes(good)
    if as_site:
        tree = {"name": "s", "data": {"file": f"bad.{ending}", "test": 0.3, **options}}
        (folder / "site.toml").write_text(to_toml(tree))
        _as_site(folder / "site.toml")
    else:
        read_files([folder / f"good.{ending}", folder / f"bad.{ending}"], options.get("label"), options.get("drop", ()),
                   options.get("sep", ","), options.get("impute", "none") != "none")  # fmt: skip
        options = {"label": None} | options
        Federation.from_files([folder / f"good.{ending}", folder / f"bad.{ending}"], **options).scaled(
            "standard"
        )


SITE = {
    "name": "st-mary",
    "memory": "state",
    "data": {
        "file": "all.csv",
        "label": "died",
        "positive": "1",
        "drop": ["hospital"],
        "categories": ["ward"],
        "rare": 2,
        "sep": ",",
        "decimal": ".",
        "encoding": "utf-8",
        "impute": "mean",
        "scale": "unit",
        "valid": 0.1,
        "test": 0.2,
        "together": "age",
    },
}
site_cases = st.tuples(st.booleans(), tree_edits, byte_edits)


def site(case: Case, folder: Path) -> None:
    """A site's TOML: loaded, checked, its summary and its own data made; also federation.toml and link.toml."""
    from fedsaddle.deploy.home import Home, LinkFile

    as_tree, edits, bytes_ = case
    (folder / "all.csv").write_bytes(CSV)
    if as_tree:
        try:
            text = to_toml(edited(SITE, edits)).encode(errors="replace")
        except (FedsaddleError, ValueError):
            return
    else:
        text = spoiled(to_toml(SITE).encode(), bytes_)
    (folder / "site.toml").write_bytes(text)
    for name, good, reader in (
        ("federation.toml", b'address = "localhost:1"\nsites = ["a", "b"]\n', lambda: Home(folder).manifest),
        (
            "link.toml",
            b'address = "localhost:1"\ninterval = 2.0\n',
            lambda: LinkFile.load(folder / "link.toml"),
        ),
    ):
        (folder / name).write_bytes(spoiled(good, bytes_))
        with contextlib.suppress(FedsaddleError):
            reader()
    _as_site(folder / "site.toml")


def _as_site(path: Path) -> None:
    findings = site_check.check(path)
    assert all("\n" not in line for line in findings), findings
    own = sites.Site.load(path)
    summary = own.summary()
    in_words(summary)
    own.federation(agree([summary]))


IDX = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 3, 3)) + bytes(18)
catalogue_cases = st.tuples(st.sampled_from(["idx", "cifar10", "npz", "libsvm"]), byte_edits)


def catalogue(case: Case, folder: Path) -> None:
    """The readers of published sets, whose refusals the loader turns into a line."""
    import gzip
    import tarfile

    kind, edits = case
    file, label = folder / "file", folder / "label"
    label.write_bytes(gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x02\x00\x01"))
    try:
        if kind == "idx":
            file.write_bytes(gzip.compress(spoiled(IDX, edits), 1))
            formats.idx({"train": [file, label]})
        elif kind == "npz":
            stored = io.BytesIO()
            np.savez(stored, data=np.zeros((2, 3, 3), np.uint8), labels=np.array([0, 1]))
            file.write_bytes(spoiled(stored.getvalue(), edits))
            formats.image_npz({"train": [file]})
        elif kind == "libsvm":
            file.write_bytes(spoiled(LIBSVM, edits))
            formats.libsvm({"train": [file]}, n_features=3)
        else:
            stream = io.BytesIO()
            with tarfile.open(fileobj=stream, mode="w") as tar:
                for name in (
                    *(f"data_batch_{i}.bin" for i in range(1, 6)),
                    "test_batch.bin",
                    "batches.meta.txt",
                ):
                    info = tarfile.TarInfo(f"x/{name}")
                    info.size = 3073
                    tar.addfile(info, io.BytesIO(bytes(3073)))
            file.write_bytes(spoiled(stream.getvalue(), edits))
            formats.cifar10_binary({"train": [file]})
    except formats.BROKEN as error:
        raise FedsaddleError(f"{type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------------------- checkpoints and run folders

wire_edits = st.one_of(
    st.tuples(st.just("bytes"), byte_edits),
    st.tuples(st.just("tree"), tree_edits),
    st.tuples(st.just("deep"), st.sampled_from([10, 300, 2000, DEEP])),
    st.tuples(
        st.just("class"), st.sampled_from(["builtins:tuple", "os:system", "fedsaddle.clients:Draw", ""])
    ),
    st.tuples(
        st.just("tensor"),
        st.tuples(
            spots,
            st.sampled_from(
                ["wider", "longer", "empty", "whole", "half", "double", "nan", "negative", "flat", "gone"]
            ),
        ),
    ),
)


def rewired(data: bytes, edit: tuple[str, Any]) -> bytes:
    """A message or checkpoint with something changed."""
    how, what = edit
    if how == "bytes":
        return spoiled(data, what)
    length = int.from_bytes(data[:8], "little")
    structure = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["tree"])
    tensors = load_tensors(data)
    if how == "tree":
        structure = edited(structure, what, json=True)
    elif how == "deep":
        head = '{"tuple": [' * what + "1" + "]}" * what
        return save_tensors(tensors, {"tree": head})
    elif how == "class":
        text = re.sub(r'"named": "[^"]*"', f'"named": "{what}"', json.dumps(structure))
        return save_tensors(tensors, {"tree": text})
    elif tensors:
        names = sorted(tensors)
        name = names[at(what[0], len(names))]
        old = tensors.pop(name)
        if what[1] != "gone":
            tensors[name] = _MENDED[what[1]](old).contiguous().clone()
    try:
        text = json.dumps(structure, default=str)
    except (RecursionError, ValueError):
        return data[:-1]
    return save_tensors(tensors, {"tree": text})


_MENDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "wider": lambda t: torch.cat([t, t], -1) if t.ndim else t[None],
    "longer": lambda t: torch.cat([t, t]) if t.ndim else t[None],
    "empty": lambda t: t[:0] if t.ndim else t[None][:0],
    "whole": lambda t: t.long(),
    "half": lambda t: t.half(),
    "double": lambda t: t.double(),
    "nan": lambda t: t * float("nan"),
    "negative": lambda t: -t - 1 if t.dtype != torch.bool else t,
    "flat": lambda t: t.flatten(),
}


@functools.cache
def _finished(case: str) -> Path:
    """The folder of a run of two rounds, of three asked for."""
    place = Path(tempfile.mkdtemp(prefix="fedsaddle-fuzz-")) / "run"
    tree = copy.deepcopy(CONFIGS[case])
    tree["train"] |= {"rounds": 3, "checkpoint_every": 1}
    setup = resolve(tree).build()
    (place).mkdir()
    steps = train(*setup[:3], participation=setup.participation, progress=False, out=place, **setup.train)
    rounds = iter(steps)
    for _ in range(3):
        next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    (place / "config.toml").write_text(to_toml(resolve(tree).tree))
    return place


checkpoint_cases = st.tuples(st.sampled_from(["quadratic", "generated"]), wire_edits)


def checkpoint(case: Case, folder: Path) -> None:
    """A changed checkpoint under its right checksum: `fedsaddle resume`."""
    base, edit = case
    place = folder / "run"
    shutil.copytree(_finished(base), place)
    index = json.loads((place / "checkpoint/index.json").read_text())
    data = rewired((place / "checkpoint" / index[-1]["file"]).read_bytes(), edit)
    index = [index[-1] | {"sha256": hashlib.sha256(data).hexdigest()}]
    (place / "checkpoint" / index[0]["file"]).write_bytes(data)
    (place / "checkpoint/index.json").write_text(json.dumps(index))
    with mock.patch("importlib.util.find_spec", lambda _: None):  # no report, which takes a second
        command("resume", place, "--quiet")


records_cases = st.tuples(
    st.sampled_from(
        ["history.jsonl", "seconds.jsonl", "checkpoint/index.json", "result.json", "config.toml"]
    ),
    st.one_of(byte_edits, tree_edits),
)


def records(case: Case, folder: Path) -> None:
    """A run's text files, changed: read as a folder, shown, resumed."""
    name, edits = case
    place = folder / "run"
    shutil.copytree(_finished("quadratic"), place)
    result = {
        "config": {"algorithm": {"name": "CODASCA"}, "problem": {"name": "Q"}, "federation": {"clients": 3, "samples": 3}},
        "metrics": {"round": 1, "bytes_down": 1, "bytes_up": 1, "seconds": 1.0, "distance": 0.5},
        "clients_evaluated_on": "train",
    }  # fmt: skip
    (place / "result.json").write_text(json.dumps(result))
    data = (place / name).read_bytes()
    if edits and not isinstance(edits[0][2], bytes):
        if name.endswith(".json"):
            with contextlib.suppress(RecursionError, ValueError):
                data = json.dumps(edited(json.loads(data), edits, json=True), default=str).encode()
    else:
        data = spoiled(data, edits)
    (place / name).write_bytes(data)
    problems: list[FedsaddleError] = []
    for call in (
        lambda: command("show", place),
        lambda: command("compare", place, place, "--out", folder / "page.html"),
        lambda: command("report", place),
        lambda: _through(place),
    ):
        try:
            call()
        except FedsaddleError as error:
            problems.append(error)
    if problems:
        raise problems[-1]


def _through(place: Path) -> None:
    with Folder(place, resume=True) as folder:
        folder.latest()
        folder.rewind(1)
        folder.save(2, b"data")


JOURNAL = b"".join(
    json.dumps(
        {"config": f"a = {i}\n", "metrics": {"auc": 0.5}, "curves": {"round": [0], "auc": [0.5]}}
    ).encode()
    + b"\n"
    for i in range(3)
)
journal_cases = st.tuples(byte_edits)


def journal(case: Case, folder: Path) -> None:
    """runs.jsonl of a sweep."""
    (folder / "runs.jsonl").write_bytes(spoiled(JOURNAL, case[0]))
    config_ = resolve(CONFIGS["quadratic"])
    known = Journal(folder / "runs.jsonl", ["auc"])
    assert config_ not in known


# ------------------------------------------------------------------------------------------------ deployments

wire_cases = st.tuples(wire_edits)


def wire(case: Case, folder: Path) -> None:
    """Bytes of a message."""
    setup = _setup()
    data = pack((setup[1].init(torch.zeros(1, 3), setup[0]), None, "text", 3, (torch.arange(3.0), True)))
    unpack(rewired(data, case[0]), classes_of(setup[1], setup[0]))


@functools.cache
def _setup() -> Any:
    return resolve(CONFIGS["quadratic"]).build()


head_edits = tree_edits
message_cases = st.tuples(
    spots,
    st.one_of(st.none(), wire_edits),
    st.one_of(st.none(), head_edits),
    st.sampled_from(["own", "shared", "session"]),
)


@functools.cache
def _asked() -> tuple[Path, list[Any]]:
    """What a site is asked in a run, and a folder."""
    from tests.fleet import Fleet, deployed, federation
    from tests.fleet import tree as fleet_tree

    folder = Path(tempfile.mkdtemp(prefix="fedsaddle-fuzz-"))
    fleet = Fleet(federation((9, 8, 7)).holdout(0.3), folder)
    deployed(fleet, fleet_tree("codasca", rounds=2)).finish()
    return folder, [request for i, request in fleet.requests if i == 0]


def message(case: Case, folder: Path) -> None:
    """A message to a site, changed: it answers, whatever it is asked."""
    from flwr.app import ConfigRecord, RecordDict

    from fedsaddle.deploy.protocol import Request
    from fedsaddle.deploy.worker import Worker
    from tests.fleet import Part, federation

    spot, body, head, part = case
    _, requests = _asked()
    good = requests[at(spot, len(requests))]
    first = next(r for r in requests if r.session)
    changed = good._replace(session=first.session, head=good.head | {"session": first.head["session"]})
    if body is not None and getattr(changed, part):
        changed = changed._replace(**{part: rewired(getattr(changed, part), body)})
    if head is not None:
        changed = changed._replace(head=edited(changed.head, head, json=True))
    worker = Worker(Part("site0", folder / "memory", federation((9, 8, 7)).holdout(0.3), 0))
    for request in (changed, good):
        reply = worker.answer(request)
        assert reply.head["status"] in ("done", "missing", "refused")
        assert "\n" not in str(reply.head.get("reason", ""))
        reply.record()
    odd_record = RecordDict({"own": ConfigRecord({"head": written(head), "body": changed.own})})
    Request.of(odd_record)


server_cases = st.tuples(spots, st.one_of(st.none(), wire_edits), st.one_of(st.none(), head_edits))


def server(case: Case, folder: Path) -> None:
    """One site answers anything, once: the run ends well without that answer, or with a line."""
    from tests.fleet import Fleet, deployed, federation
    from tests.fleet import tree as fleet_tree

    spot, body, head = case
    count = iter(range(10**6))
    when = at(spot, 12)

    def fault(i: int, request: Any, reply: Any) -> list[Any]:
        if i != 1 or next(count) != when:
            return [reply]
        changed = reply
        if body is not None and reply.body:
            changed = changed._replace(body=rewired(reply.body, body))
        if head is not None:
            changed = changed._replace(head=edited(reply.head, head, json=True))
        return [changed]

    fleet = Fleet(federation((9, 8, 7)).holdout(0.3), folder, fault)
    deployed(fleet, fleet_tree("codasca", rounds=2), timeout=0.2).finish()


summary_cases = st.tuples(wire_edits, st.one_of(st.none(), tree_edits))


def summary(case: Case, folder: Path) -> None:
    """What a site says at set-up, changed: the server agrees with the others, or refuses it."""
    from fedsaddle.deploy.drive import _summary
    from fedsaddle.deploy.protocol import Reply

    edit, head = case
    good, body = _summaries()
    if head is not None:
        own = dict(unpack(body, {}))
        tree = edited(json.loads(bytes(own["head"].numpy())), head, json=True)
        with contextlib.suppress(RecursionError):
            text = json.dumps(tree, default=str).encode()
            own["head"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            body = pack(tuple(own.items()))
    else:
        body = rewired(body, edit)
    from fedsaddle import __version__

    said = {"status": "done", "site": "b", "fedsaddle": __version__, "data": "0" * 64}
    answer = Reply(said, body)
    every = [good, _summary("b", answer)]
    outline(["a", "b"], every, agree(every))


@functools.cache
def _summaries() -> tuple[Any, bytes]:
    folder = Path(tempfile.mkdtemp(prefix="fedsaddle-fuzz-"))
    (folder / "all.csv").write_bytes(CSV)
    found = []
    for name in "ab":
        (folder / f"{name}.toml").write_text(to_toml(SITE | {"name": name}))
        found.append(sites.Site.load(folder / f"{name}.toml").summary())
    return found[0], pack(tuple(found[1].items()))


# --------------------------------------------------------------------------------------------------- campaigns


class Target(NamedTuple):
    cases: Strategy
    try_: Callable[[Case, Path], None]
    share: float  # of all cases
    prepare: Callable[[], Any] = lambda: None  # what all cases need, made before the first


TARGETS: dict[str, Target] = {
    "config": Target(config_cases, config, 0.1),
    "run": Target(config_cases, run, 0.03),
    "toml": Target(toml_cases, toml, 0.02),
    "set": Target(set_cases, assignments, 0.08),
    "sweep": Target(sweep_cases, sweep, 0.06),
    "libsvm": Target(libsvm_cases, libsvm, 0.1),
    "csv": Target(csv_cases, csv, 0.05),
    "npz": Target(npz_cases, npz, 0.1, _bomb),
    "site": Target(site_cases, site, 0.05),
    "catalogue": Target(catalogue_cases, catalogue, 0.06),
    "wire": Target(wire_cases, wire, 0.21),
    "checkpoint": Target(
        checkpoint_cases, checkpoint, 0.03, lambda: (_finished("quadratic"), _finished("generated"))
    ),
    "records": Target(records_cases, records, 0.01, lambda: _finished("quadratic")),
    "journal": Target(journal_cases, journal, 0.04),
    "message": Target(message_cases, message, 0.012, _asked),
    "server": Target(server_cases, server, 0.008),
    "summary": Target(summary_cases, summary, 0.04, _summaries),
}


class TooLong(BaseException):
    """A case takes longer than it may; no handler of ordinary errors stops it."""


class Found(NamedTuple):
    """How a campaign against a target ended."""

    cases: int
    refusals: Counter[str]  # by their words, without numbers and names
    failure: str  # the smallest case and what it raises; "" if none fails
    seconds: float


def attempt(target: Target, case: Case) -> str:
    """Try a case; the words of the refusal, "" if there is none. Raises whatever should not have happened."""
    with (
        tempfile.TemporaryDirectory(prefix="fedsaddle-fuzz-") as folder,
        _limits(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            target.try_(case, Path(folder))
        except FedsaddleError as error:
            text = str(error)
            assert text.strip() and "\n" not in text and "\r" not in text, f"not one line: {text!r}"
            chain: BaseException | None = error
            while chain is not None:
                assert not _out_of_memory(chain), f"asks for more memory than there is: {text}"
                chain = chain.__cause__
            return re.sub(r"'[^']*'|\"[^\"]*\"|[-\d.]+|/\S+", "_", text)[:60]
    return ""


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """A case has so much memory and so much time."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))

    def stop(*_: object) -> None:
        raise TooLong(f"takes more than {SECONDS:g} seconds of computing")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def campaign(name: str, cases: int, seed: int) -> Found:
    """Try so many cases of a target."""
    refusals: Counter[str] = Counter()
    done, last, failure = 0, None, ""

    @seeded(seed)
    @settings(
        max_examples=cases, database=None, deadline=None, report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(TARGETS[name].cases)
    def one(case: Case) -> None:
        nonlocal done, last
        done, last = done + 1, case
        try:
            refusals[attempt(TARGETS[name], case)] += 1
        except TooLong as error:
            raise AssertionError(str(error)) from error

    TARGETS[name].prepare()
    started = time.perf_counter()
    try:
        one()
    except Exception as error:
        trail = traceback.format_exception(error)
        own = [line for line in trail if "/fedsaddle/" in line or "fuzz.py" in line][-3:]
        failure = f"{type(error).__name__}: {str(error)[:300]}\n  case = {last!r:.600}\n{''.join(own)}"
    del refusals[""]
    return Found(done, refusals, failure, time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="altogether")
    parser.add_argument("--target", choices=list(TARGETS), nargs="+", default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore", HypothesisWarning)  # that a case is long to print
    whole = sum(TARGETS[name].share for name in args.target)
    failed = 0
    for name in args.target:
        found = campaign(name, max(1, round(args.cases * TARGETS[name].share / whole)), args.seed)
        failed += bool(found.failure)
        print(
            f"{name:12} {found.cases:8,d} cases {found.seconds:8.1f} s {len(found.refusals):5d} refusals"
            f"  {'FAILS' if found.failure else 'ok'}",
            flush=True,
        )
        if found.failure:
            print("  " + found.failure.replace("\n", "\n  "), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
