"""Data sets: what loads without files, readers on small hand-made files, the downloader, and the real files if here."""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import http.server
import io
import os
import struct
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsaddle import data
from fedsaddle.data import DATASETS, DatasetInfo, File, Layout, data_folder, download, fetch, formats, load
from fedsaddle.errors import FedsaddleError

REAL = Path(os.environ.get("FEDSADDLE_DATA") or Path(__file__).parents[2] / "shared" / "data")


def refused(text: str, call: Any) -> None:
    with pytest.raises(FedsaddleError) as info:
        call()
    assert text in str(info.value)
    assert "\n" not in str(info.value)


# ------------------------------------------------------------------------------- bundled, generated, options


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("breast_cancer", (569, 30), 2),
        ("digits", (1797, 64), 10),
        ("wine", (178, 13), 3),
        ("iris", (150, 4), 3),
    ],
)
def test_bundled_sets(name: str, shape: tuple[int, int], classes: int) -> None:
    loaded = load(name)
    assert loaded.x.shape == shape
    assert loaded.x.dtype == np.float32
    assert loaded.y.dtype == np.int64
    assert len(loaded.classes) == classes == len(np.unique(loaded.y))
    assert len(loaded.feature_names) == shape[1]
    assert name in repr(loaded)


def test_malignant_is_positive_and_diabetes_is_regression() -> None:
    cancer = load("breast_cancer")
    assert cancer.classes == ("benign", "malignant")
    assert cancer.y.sum() == 212
    sugar = load("diabetes")
    assert sugar.classes == ()
    assert sugar.y.dtype == np.float32
    assert sugar.federation("iid", 4).is_regression
    refused("is a regression set", lambda: load("diabetes", positive=1))


@pytest.mark.parametrize("seed", [0, 1])
def test_synthetic_binary(seed: int) -> None:
    from sklearn.metrics import roc_auc_score

    made = load("synthetic_binary", n=4000, features=6, positive_rate=0.05, separation=3, seed=seed)
    assert made.x.shape == (4000, 6)
    assert made.y.sum() == 200
    assert made.test_y is not None
    assert made.test_y.sum() == 50
    mean = made.x[made.y == 1].mean(0) - made.x[made.y == 0].mean(0)
    assert np.linalg.norm(mean) == pytest.approx(3, rel=0.1)
    assert roc_auc_score(made.test_y, made.test_x @ mean) == pytest.approx(0.983, abs=0.02)  # Phi(3 / sqrt 2)
    assert not np.array_equal(made.x, load("synthetic_binary", n=4000, features=6, seed=seed + 7).x)
    refused(
        "positive_rate in (0, 1), got n=2000, features=20", lambda: load("synthetic_binary", positive_rate=2)
    )


def test_scaling() -> None:
    raw = load("wine", scale="none").x
    unit, symmetric, standard = (load("wine", scale=how).x for how in ("unit", "symmetric", "standard"))
    assert unit.min(0) == pytest.approx(0, abs=1e-6)
    assert unit.max(0) == pytest.approx(1, abs=1e-6)
    assert symmetric == pytest.approx(2 * unit - 1, abs=1e-5)
    assert standard == pytest.approx((raw - raw.mean(0)) / raw.std(0), abs=1e-3)
    constant = load("digits", scale="standard").x[:, 0]  # a pixel that is always 0
    assert (constant == 0).all()
    refused(
        "wine: scale 'standart' is unknown: did you mean 'standard'?", lambda: load("wine", scale="standart")
    )


def test_limit_draws_rows_in_order_and_scales_by_all() -> None:
    whole, some = load("wine"), load("wine", limit=50, seed=3)
    at = [int(np.flatnonzero((whole.x == row).all(1))[0]) for row in some.x]
    assert at == sorted(at)
    assert len(set(at)) == 50
    assert np.array_equal(some.y, whole.y[at])
    assert some.labels is not None
    assert np.array_equal(some.labels, whole.y[at])
    assert np.array_equal(some.x, load("wine", limit=50, seed=3).x)
    assert load("wine", limit=10_000).x.shape == (178, 13)
    refused("wine: limit must be >= 1, got 0", lambda: load("wine", limit=0))


@pytest.mark.parametrize(
    ("positive", "count", "classes"),
    [
        ("setosa", 50, ("rest", "setosa")),
        (2, 50, ("rest", "virginica")),
        (["setosa", 1], 100, ("virginica", "positive")),
    ],
)
def test_positive_makes_it_binary_and_keeps_the_classes_to_split_by(
    positive: Any, count: int, classes: tuple[str, str]
) -> None:
    iris = load("iris", positive=positive)
    assert iris.y.sum() == count
    assert iris.classes == classes
    assert iris.labels is not None
    assert np.bincount(iris.labels).tolist() == [50, 50, 50]
    fed = iris.federation("one_class", 3, by="labels")
    assert sorted(fed.class_counts()[:, 1].tolist()) == sorted([50] * (count // 50) + [0] * (3 - count // 50))


def test_unknown_names_and_options() -> None:
    refused("data set 'a9b' is unknown: did you mean 'a9a'?", lambda: load("a9b"))
    refused("iris: option 'n' is unknown", lambda: load("iris", n=3))
    refused(
        "synthetic_binary: option 'feature' is unknown: did you mean 'features'?",
        lambda: load("synthetic_binary", feature=3),
    )
    refused("iris: positive 'rose' is unknown", lambda: load("iris", positive="rose"))
    refused("leaves only one class", lambda: load("iris", positive=[0, 1, 2]))
    refused("leaves only one class", lambda: load("iris", positive=[]))
    refused(
        "census_income: group must be a nominal column, got 'age'", lambda: formats.census({}, group="age")
    )
    assert load("breast_cancer", positive="none").classes == ("malignant", "benign")


def test_to_a_federation() -> None:
    digits = load("digits")
    fed = digits.federation("dirichlet", 5, seed=2, alpha=0.1)
    assert fed.n_samples == 1797
    assert fed.classes == digits.classes
    assert fed.data["x"].dtype.is_floating_point
    halves = digits.federation("disjoint_classes", 5, imratio=0.2)
    assert halves.classes == ("negative", "positive")
    rate = halves.class_counts()[:, 1] / halves.sizes.numpy()
    assert rate == pytest.approx(0.2, abs=0.01)
    made = load("synthetic_binary")
    pooled, each = (made.federation("iid", 4, test=how) for how in ("pooled", "matching"))
    assert pooled.test is not None
    assert each.test is not None
    assert (pooled.test.n_clients, each.test.n_clients) == (1, 4)
    assert np.abs(each.test.sizes.numpy() - 125).max() <= 2
    assert int(pooled.test.data["y"].sum()) == int(each.test.data["y"].sum()) == 50
    refused("by must be 'y' or 'labels'", lambda: made.federation("iid", 4, by="x"))
    refused("has no natural groups", lambda: made.federation("natural"))
    refused("needs more than two classes", lambda: made.federation("disjoint_classes", 2))
    named = made.federation("natural", groups=np.where(np.arange(2000) < 700, "north", "south"))
    assert named.names == ("north", "south")


def test_numeric_class_names_are_not_taken_for_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """covtype's classes are called 1..7; index 1 must stay "2", also when class "1" is absent."""

    def generate() -> data.Raw:
        x, y = np.ones((8, 1), np.float32), np.array([1, 2] * 4)
        return data.Raw({"train": (x, y), "test": (x, y)})

    monkeypatch.setitem(
        DATASETS, "tiny", DatasetInfo("tiny", "", "", classes=tuple("1234"), generate=generate)
    )
    fed = load("tiny").federation("iid", 2)
    assert fed.class_counts().sum(0).tolist() == [0, 4, 4, 0]
    assert fed.test is not None
    assert fed.test.class_counts().tolist() == [[0, 4, 4, 0]]
    assert load("tiny", positive=2).y.tolist() == [1, 0] * 4


def test_the_registry_is_complete() -> None:
    wanted = "breast_cancer digits wine iris diabetes synthetic_binary a9a w8a ijcnn1 phishing covtype gisette cifar10"
    wanted += " cifar100 fashion_mnist pneumoniamnist census_income"
    assert set(wanted.split()) <= set(DATASETS)
    for name, info in DATASETS.items():
        assert info.name == name
        assert info.description
        assert info.source
        assert bool(info.layouts) == bool(info.folder) == (not info.bundled)
        for file in (file for layout in info.layouts for file in layout.unique_files()):
            method, _, digest = file.digest.partition(":")
            assert len(digest) == {"": 0, "md5": 32, "sha256": 64}[method]
        fetched = info.layouts[-1].unique_files() if info.layouts else ()  # what `download` gets
        assert all(file.url.startswith("https://") for file in fetched)


# --------------------------------------------------------------------------------------------- small files


def test_libsvm_files(tmp_path: Path) -> None:
    (tmp_path / "a.bz2").write_bytes(bz2.compress(b"+1 1:1 3:0.5\n-1 2:1\n"))
    (tmp_path / "t").write_text("0 1:1\n1 2:1\n")
    raw = formats.libsvm({"train": [tmp_path / "a.bz2"], "test": [tmp_path / "t"]}, n_features=4)
    assert raw.parts["train"][0].tolist() == [[1, 0, 0.5, 0], [0, 1, 0, 0]]
    assert raw.parts["train"][1].tolist() == [1, 0]
    assert raw.parts["test"][1].tolist() == [0, 1]


def census_row(age: int, worker: str, weight: float, label: str) -> str:
    row = ["0" if c in formats.CENSUS_NUMERIC else "?" for c in formats.CENSUS_COLUMNS]
    row[0], row[1], row[24], row[-1] = str(age), worker, str(weight), label
    return ", ".join(row) + "\n"


def test_census_coding(tmp_path: Path) -> None:
    """One-hot by sorted training values, "?" a value, an unseen test value all zeros, no instance weight."""
    train = census_row(20, "Private", 1700.09, "- 50000.") + census_row(40, "?", 3.5, "50000+.")
    (tmp_path / "train").write_text(train)
    (tmp_path / "test").write_text(census_row(30, "Martian", 1.0, "50000+."))
    raw = formats.census(
        {"train": [tmp_path / "train"], "test": [tmp_path / "test"]}, group="class of worker"
    )
    assert raw.feature_names[:9] == (*formats.CENSUS_NUMERIC, "class of worker=?", "class of worker=Private")
    assert "instance weight" not in " ".join(raw.feature_names)
    (x, y), (test_x, test_y) = raw.parts["train"], raw.parts["test"]
    assert x[:, [0, 7, 8]].tolist() == [[20, 0, 1], [40, 1, 0]]
    assert test_x[0, [0, 7, 8]].tolist() == [30, 0, 0]
    assert (y.tolist(), test_y.tolist()) == ([0, 1], [1])
    assert x.shape[1] == 7 + 2 + 32  # 33 nominal columns, all but the first always "?"
    assert raw.groups is not None
    assert raw.groups.tolist() == ["Private", "?"]


def test_covtype_with_and_without_header(tmp_path: Path) -> None:
    rows = "\n".join(",".join(["5"] * 10 + ["0", "1", "0", "0"] + ["0"] * 40 + [str(k)]) for k in (1, 7))
    (tmp_path / "covtype.data").write_text(rows)
    (tmp_path / "covtype.csv").write_text(",".join([*formats.COVTYPE_COLUMNS, "Cover_Type"]) + "\n" + rows)
    for name in ("covtype.data", "covtype.csv"):
        raw = formats.covtype({"train": [tmp_path / name]})
        assert raw.parts["train"][0].shape == (2, 54)
        assert raw.parts["train"][1].tolist() == [0, 6]
        assert raw.groups is not None
        assert raw.groups.tolist() == [2, 2]


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_cifar_binary_tars(tmp_path: Path) -> None:
    pixels = np.arange(3072, dtype=np.uint8)
    batches = {f"c/data_batch_{i}.bin": bytes([i]) + pixels.tobytes() for i in range(1, 6)}
    meta = {"c/test_batch.bin": bytes([9]) + pixels.tobytes(), "c/batches.meta.txt": b"cat\ndog\n\n"}
    write_tar(tmp_path / "ten.tar.gz", {**meta, **batches})
    raw = formats.cifar10_binary({"train": [tmp_path / "ten.tar.gz"], "test": [tmp_path / "ten.tar.gz"]})
    assert raw.parts["train"][1].tolist() == [1, 2, 3, 4, 5]
    assert raw.parts["test"][1].tolist() == [9]
    assert np.array_equal(raw.parts["test"][0][0].ravel(), pixels)
    assert raw.classes == ("cat", "dog")
    record = bytes([1, 42]) + pixels.tobytes()
    write_tar(
        tmp_path / "c.tar.gz",
        {"a/train.bin": record * 2, "a/test.bin": record, "a/fine_label_names.txt": b"x y"},
    )
    raw = formats.cifar100_binary({"train": [tmp_path / "c.tar.gz"]})
    assert raw.parts["train"][1].tolist() == [42, 42]
    assert raw.parts["train"][0].shape == (2, 3, 32, 32)
    with pytest.raises(ValueError, match=r"no batches.meta.txt inside|no data_batch_1.bin inside"):
        formats.cifar10_binary({"train": [tmp_path / "c.tar.gz"]})


def test_idx_and_medmnist(tmp_path: Path) -> None:
    images = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    with gzip.open(tmp_path / "i.gz", "wb") as stream:
        stream.write(struct.pack(">HBBIII", 0, 8, 3, 2, 3, 3) + images.tobytes())
    with gzip.open(tmp_path / "l.gz", "wb") as stream:
        stream.write(struct.pack(">HBBI", 0, 8, 1, 2) + bytes([4, 7]))
    raw = formats.idx({"train": [tmp_path / "i.gz", tmp_path / "l.gz"]})
    assert np.array_equal(raw.parts["train"][0], images[:, None])
    assert raw.parts["train"][1].tolist() == [4, 7]
    parts: dict[str, Any] = {}
    for part in ("train", "val", "test"):
        parts |= {
            f"{part}_images": np.zeros((2, 28, 28, 3), np.uint8),
            f"{part}_labels": np.eye(14, dtype=np.uint8)[[4, 0]],
        }
    np.savez(tmp_path / "chest.npz", **parts)
    paths = {part: [tmp_path / "chest.npz"] for part in ("train", "valid", "test")}
    raw = DATASETS["chestmnist"].layouts[-1].read(paths, label="mass")
    assert raw.parts["valid"][1].tolist() == [1, 0]
    assert raw.parts["train"][0].shape == (2, 3, 28, 28)
    assert raw.classes == ("no mass", "mass")
    refused(
        "chestmnist: label must be one of atelectasis",
        lambda: DATASETS["chestmnist"].layouts[-1].read({}, label="x"),
    )


# ------------------------------------------------------------------------------- missing and damaged files


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "env"))
    assert data_folder() == tmp_path / "env"
    assert data_folder(tmp_path) == tmp_path
    monkeypatch.delenv("FEDSADDLE_DATA")
    assert data_folder() == Path.home() / ".cache" / "fedsaddle"


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    text = f"a9a: found no a9a.bz2, a9a.t.bz2 or a9a, a9a.t in {tmp_path / 'a9a'}: set FEDSADDLE_DATA to a folder"
    refused(text, lambda: load("a9a", data_dir=tmp_path))
    folder = tmp_path / "a9a"
    folder.mkdir()
    (folder / "a9a").write_text("+1 1:1\n")
    (folder / "a9a.t").write_text("+1 1:1\n")
    refused("has [0, 1] rows a class, expected [24720, 7841]", lambda: load("a9a", data_dir=tmp_path))
    (folder / "a9a").write_text("garbage\n")
    refused("a9a: cannot read a9a, a9a.t in", lambda: load("a9a", data_dir=tmp_path))
    (folder / "a9a.bz2").write_bytes(b"not bzip2")
    (folder / "a9a.t.bz2").write_bytes(b"not bzip2")
    refused("delete the damaged file and fetch it again", lambda: load("a9a", data_dir=tmp_path))
    refused("a9a.bz2 has sha256", lambda: load("a9a", data_dir=tmp_path, verify=True))
    (tmp_path / "pneumoniamnist").mkdir()
    np.savez(tmp_path / "pneumoniamnist" / "pneumoniamnist.npz", train_images=np.zeros(1))
    archive = bytearray((tmp_path / "pneumoniamnist" / "pneumoniamnist.npz").read_bytes())
    archive[archive.index(b"PK\1\2") + 6] = 255  # version needed to unpack
    (tmp_path / "pneumoniamnist" / "pneumoniamnist.npz").write_bytes(archive)
    refused("(zip file version 25.5): delete", lambda: load("pneumoniamnist", data_dir=tmp_path))
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "cifar-100-binary.tar.gz").write_bytes(gzip.compress(b"half a tar"))
    refused("cifar100: cannot read cifar-100-binary.tar.gz", lambda: load("cifar100", data_dir=tmp_path))
    refused("iris needs no download (scikit-learn): load it", lambda: download("iris", tmp_path))


# ---------------------------------------------------------------------------------------------- downloader

ROWS = b"+1 1:1 2:0.5\n-1 2:1\n-1 1:3\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A web server on 127.0.0.1 and the folder it serves."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    ) as web:
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{web.server_port}/"
        web.shutdown()
        thread.join()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, server: tuple[Path, str]) -> Any:
    """Registers a set "tiny" of three rows on that server, with the given digest."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def register(digest: str = "", facts: Any = (2, 1)) -> None:
        file = File("tiny.svm", digest, server[1] + "tiny.svm")
        layout = Layout({"train": (file,)}, functools.partial(formats.libsvm, n_features=2))
        info = DatasetInfo(
            "tiny", "t", "t", ("n", "p"), folder="tiny", layouts=(layout,), facts={"train": facts}
        )
        monkeypatch.setitem(DATASETS, "tiny", info)

    (server[0] / "tiny.svm").write_bytes(ROWS)
    return register


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "tiny").iterdir())


def test_download_with_a_known_digest(tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for digest in (f"sha256:{hashlib.sha256(ROWS).hexdigest()}", f"md5:{hashlib.md5(ROWS).hexdigest()}"):
        tiny(digest)
        target = tmp_path / digest[:3]
        assert load("tiny", data_dir=target, download=True, verify=True).y.tolist() == [1, 0, 0]
        assert left(target) == ["tiny.svm"]
        assert download("tiny", target) == target / "tiny"  # there already: nothing happens
    assert capsys.readouterr().out == ""


def test_a_wrong_digest_leaves_nothing_behind(tiny: Any, tmp_path: Path) -> None:
    tiny("sha256:" + "0" * 64)
    refused("expected is 0000000000000000...: not kept", lambda: download("tiny", tmp_path))
    assert left(tmp_path) == []


def test_without_a_known_digest_the_first_one_is_recorded(
    tiny: Any, server: tuple[Path, str], tmp_path: Path
) -> None:
    tiny()
    download("tiny", tmp_path)
    assert left(tmp_path) == ["tiny.svm", "tiny.svm.sha256"]
    assert (
        tmp_path / "tiny" / "tiny.svm.sha256"
    ).read_text() == f"{hashlib.sha256(ROWS).hexdigest()}  tiny.svm\n"
    (tmp_path / "tiny" / "tiny.svm").write_bytes(ROWS + b"\n")
    refused("is recorded in tiny.svm.sha256", lambda: load("tiny", data_dir=tmp_path, verify=True))
    (tmp_path / "tiny" / "tiny.svm").unlink()
    (server[0] / "tiny.svm").write_bytes(ROWS.replace(b"0.5", b"0.6"))
    refused("recorded in", lambda: download("tiny", tmp_path))
    assert left(tmp_path) == ["tiny.svm.sha256"]


def test_without_a_known_digest_wrong_content_is_refused(tiny: Any, tmp_path: Path) -> None:
    tiny(facts=(2, 5))
    refused(
        "has [2, 1] rows a class, expected [2, 5]", lambda: load("tiny", data_dir=tmp_path, download=True)
    )
    assert left(tmp_path) == []


def test_not_found_and_offline(
    tiny: Any, server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny()
    (server[0] / "tiny.svm").unlink()
    refused(
        "answers 404 File not found: try again later, or save it by hand as",
        lambda: download("tiny", tmp_path),
    )
    assert left(tmp_path) == []
    file = File("tiny.svm", url="http://127.0.0.1:9/tiny.svm")  # nobody listens there
    layout = Layout({"train": (file,)}, functools.partial(formats.libsvm, n_features=2))
    monkeypatch.setitem(DATASETS, "tiny", DatasetInfo("tiny", "t", "t", folder="tiny", layouts=(layout,)))
    refused(
        "cannot download http://127.0.0.1:9/tiny.svm", lambda: load("tiny", data_dir=tmp_path, download=True)
    )
    (tmp_path / "file").write_text("")
    refused("tiny: cannot write to", lambda: download("tiny", tmp_path / "file"))


def test_a_download_that_breaks_off_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Short(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Short) as web:
        thread = threading.Thread(target=web.handle_request, daemon=True)
        thread.start()
        file = File("f", url=f"http://127.0.0.1:{web.server_port}/f")
        refused("10", lambda: fetch._download("tiny", file, tmp_path / "f"))
        thread.join()
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------- real files

FACTS = {  # rows, features or shape, positives; from the data folder's MANIFEST.md
    "a9a": ((32561, 123), 7841, {"test": (16281, 3846)}),
    "w8a": ((49749, 300), 1479, {}),
    "ijcnn1": ((35000, 22), 3415, {"valid": (14990, 1438), "test": (91701, 8712)}),
    "phishing": ((11055, 68), 6157, {}),
    "covtype": ((581012, 54), 283301, {}),
    "census_income": ((199523, 510), 12382, {"test": (99762, 6186)}),
    "pneumoniamnist": ((4708, 1, 28, 28), 3494, {"valid": (524, 389), "test": (624, 390)}),
}


def real(name: str) -> Path:
    if fetch.locate(DATASETS[name], REAL) is None:
        pytest.skip(f"{name} is not in {REAL}")
    return REAL


@pytest.mark.parametrize("name", FACTS)
def test_real_tables(name: str) -> None:
    shape, positives, parts = FACTS[name]
    loaded = load(name, data_dir=real(name), verify=name != "covtype")
    assert loaded.x.shape == shape
    assert loaded.y.sum() == positives
    assert np.isfinite(loaded.x).all()
    for part, (rows, count) in parts.items():
        x, y = getattr(loaded, f"{part}_x"), getattr(loaded, f"{part}_y")
        assert x.shape == (rows, *shape[1:])
        assert y.sum() == count
    if name == "covtype":
        assert (loaded.x.min(0) == 0).all()
        assert (loaded.x.max(0) == 1).all()
        assert loaded.labels is not None
        assert np.bincount(loaded.labels).tolist() == [211840, 283301, 35754, 2747, 9493, 17367, 20510]
        assert loaded.federation("natural").n_clients == 4
    if name == "census_income":
        assert np.abs(loaded.x[:, :7].mean(0, dtype=np.float64)).max() < 1e-4
        assert np.abs(loaded.x[:, :7].std(0, dtype=np.float64) - 1).max() < 1e-4
        assert (loaded.x[:, 7:].sum(1) == 33).all()
    if name == "a9a":
        fed = loaded.federation("one_class", 20)
        assert (fed.class_counts()[:, 1] > 0).sum() == 5
        assert fed.test is not None


def test_real_fashion_mnist() -> None:
    loaded = load(
        "fashion_mnist", data_dir=real("fashion_mnist"), positive="Bag", scale="standard", limit=1000
    )
    assert loaded.x.shape == (1000, 1, 28, 28)
    assert loaded.test_x is not None
    assert loaded.test_y is not None
    assert loaded.test_y.sum() == 1000
    raw_mean, raw_deviation = 0.28604, 0.35302  # published, of all training pixels
    assert loaded.test_x.min() == pytest.approx(-raw_mean / raw_deviation, abs=1e-3)
    assert loaded.test_x.max() == pytest.approx((1 - raw_mean) / raw_deviation, abs=1e-3)


def test_real_cifar10() -> None:
    folder = real("cifar10") / "cifar10"
    raw = formats.image_npz({"train": [folder / "data_batch_1.npz"]})
    assert np.bincount(raw.parts["train"][1]).tolist() == [
        1005,
        974,
        1032,
        1016,
        999,
        937,
        1030,
        1001,
        1025,
        981,
    ]
    assert raw.parts["train"][0].shape == (10_000, 3, 32, 32)
    mean = raw.parts["train"][0].mean((0, 2, 3)) / 255
    assert mean == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=0.01)
