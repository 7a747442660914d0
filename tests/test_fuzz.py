"""10,000 hostile inputs end well or in one line, and what such inputs once broke stays mended."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors

pytest.importorskip("flwr")

from fedsaddle import cli, client_files, files, sites, sweep_plan
from fedsaddle.config import load, resolve
from fedsaddle.data import formats
from fedsaddle.deploy.drive import _summary
from fedsaddle.deploy.protocol import Reply
from fedsaddle.errors import FedsaddleError
from fedsaddle.journal import Journal
from fedsaddle.toml import to_toml
from fedsaddle.wire import Garbled, pack, unpack
from tests import fuzz

CASES = 10_000


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_hostile_input_is_used_or_refused_with_one_line(name: str) -> None:
    found = fuzz.campaign(name, round(CASES * fuzz.TARGETS[name].share), seed=0)
    assert not found.failure, found.failure
    assert found.cases > 50 and found.refusals


def test_shares_are_of_one_whole() -> None:
    assert sum(t.share for t in fuzz.TARGETS.values()) == pytest.approx(1)


def test_a_defect_would_be_found() -> None:
    def broken(case: Any, folder: Path) -> None:
        if len(case) > 1:
            raise KeyError("a traceback")

    fuzz.TARGETS["broken"] = fuzz.Target(fuzz.byte_edits, broken, 0)
    try:
        assert "KeyError" in fuzz.campaign("broken", 200, seed=0).failure
    finally:
        del fuzz.TARGETS["broken"]


# ---- what was found, each by itself -------------------------------------------------------------------------


def refused(call: Any, text: str) -> None:
    with pytest.raises(FedsaddleError, match=text) as info:
        call()
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000])
def test_toml_that_a_parser_gives_up_on(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    refused(lambda: load(tmp_path / "c.toml"), "is not valid TOML")
    refused(lambda: sites.Site.load(tmp_path / "c.toml"), "is not valid TOML")


def test_a_number_of_thousands_of_digits_can_be_shown() -> None:
    tree = fuzz.CONFIGS["quadratic"] | {"train": {"rounds": 1, "batch_size": "x" * 3, "seed": 16**5000}}
    refused(lambda: resolve(tree), "train")
    assert to_toml({"a": 16**5000}).startswith("a = 0x1000")
    resolve(fuzz.CONFIGS["quadratic"] | {"train": {"rounds": 16**5000}})
    tree = fuzz.CONFIGS["quadratic"] | {"data": {"name": 16**5000}, "partition": {"name": "iid"}}
    refused(lambda: resolve(tree), "data.name")


@pytest.mark.parametrize("values", [{"uniform": [0, 16**5000]}, [0.5, 16**5000]], ids=["range", "list"])
def test_a_sweep_over_numbers_that_no_float_holds(values: Any, tmp_path: Path) -> None:
    tree = fuzz.CONFIGS["quadratic"] | {
        "sweep": {"metric": "field_norm", "points": {"algorithm": {"lr": values}}}
    }
    (tmp_path / "s.toml").write_text(to_toml(tree))
    refused(lambda: sweep_plan.plan(tmp_path / "s.toml"), "must be below 1e308 in size")


def test_an_override_with_a_line_break(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(to_toml(fuzz.CONFIGS["quadratic"]))
    refused(lambda: load(tmp_path / "c.toml", ["a\nb"]), "must be section.key=value")


def test_sweeps_that_never_end(tmp_path: Path) -> None:
    def plan(**sweep: Any) -> None:
        (tmp_path / "s.toml").write_text(to_toml(fuzz.SWEEP | {"sweep": {"metric": "distance"} | sweep}))
        sweep_plan.plan(tmp_path / "s.toml")

    narrow = {"algorithm.lr": {"uniform": [1.0, 1.0001]}}
    refused(lambda: plan(random=50, points=narrow), "only about . different points")
    refused(lambda: plan(random=10**12, points=narrow), "at most 100000 runs")
    many = {f"algorithm.k{i}": list(range(10)) for i in range(12)}
    refused(lambda: plan(points=many), "at most 100000 runs")


def test_a_feature_number_out_of_all_proportion(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 300000000:1\n-1 2:1\n")
    refused(lambda: client_files.read_arrays(tmp_path / "a.svm"), "more than 1000 times")
    (tmp_path / "b.svm").write_text("1 20000000:1\n")
    (tmp_path / "c.svm").write_text("1 1:1\n" * 100)
    refused(
        lambda: client_files.read_files([tmp_path / "b.svm", tmp_path / "c.svm"], None),
        "20000000 features take",
    )


def packed(x: bytes, y: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", y)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (fuzz.Array((10**12,), "<f8").bytes(), "says that it has shape"),
        (fuzz.Array((-1,), "<f8").bytes(), "says that it has shape"),
        (fuzz.Array((4,), "|O").bytes(), "never unpickled"),
        (fuzz.Array((4,), "<f8", version=3).bytes(), "version"),
        (b"noise", "cannot be read"),
    ],
)
def test_npz_headers_that_lie(x: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(packed(x, fuzz.Array((4,), "<i8").bytes()))
    refused(lambda: client_files.read_arrays(tmp_path / "a.npz"), text)


def test_a_zip_bomb(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(fuzz._bomb())
    refused(lambda: client_files.read_arrays(tmp_path / "a.npz"), "more than 1000 times")


@pytest.mark.parametrize("x", [np.float64(3), np.array(["a", "b"]), np.zeros(2, "M8[ns]")])
def test_a_site_with_arrays_that_are_no_samples(x: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=x, y=np.array([0, 1]))
    (tmp_path / "site.toml").write_text('name = "s"\n[data]\nfile = "a.npz"\n')
    refused(lambda: sites.Site.load(tmp_path / "site.toml").rows, r"a\.npz: x")


def test_arrays_of_another_byte_order_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(4, dtype=">f8"), y=np.array([0, 1, 0, 1], dtype=">i4"))
    (tmp_path / "site.toml").write_text('name = "s"\n[data]\nfile = "a.npz"\n')
    assert sites.Site.load(tmp_path / "site.toml").rows.x.tolist() == [[0.0], [1.0], [2.0], [3.0]]


def test_thousands_of_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",".join(["a"] * 30_000) + "\n" + ",".join(["1"] * 30_000) + "\n")
    refused(lambda: files.read_frame(tmp_path / "a.csv"), "30000 columns are called 'a'")


def test_a_truncated_idx_file_is_broken_data() -> None:
    assert issubclass(struct.error, formats.BROKEN) and issubclass(OverflowError, formats.BROKEN)


def test_messages_that_cannot_be() -> None:
    data = pack((torch.zeros(1), 1))
    for part in ({"once": "a", "version": float("inf")}, {"each": 1, "bits": None}, {"tensor": []}):
        with pytest.raises(Garbled):
            unpack(fuzz.rewired(data, ("tree", [("put", 0, [part])])), {})


@pytest.mark.parametrize("line", [b"\x80\n", b"[" * 100_000 + b"\n", b'{"config": "a", "metrics": 3}\n'])
def test_a_journal_with_another_line(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_bytes(line)
    refused(lambda: Journal(tmp_path / "runs.jsonl"), "line 1: is no finished run")


def test_a_result_that_was_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "history.jsonl").write_text('{"round": 0}\n')
    for result in ({"config": {}, "metrics": {}}, {"config": 3, "metrics": []}, "[" * 100_000):
        (tmp_path / "result.json").write_text(result if isinstance(result, str) else json.dumps(result))
        for command in (["show", str(tmp_path)], ["report", str(tmp_path)], ["compare", str(tmp_path)]):
            assert cli._main(command) == 2
            assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_summary_that_is_none() -> None:
    from fedsaddle import __version__

    head = {"status": "done", "site": "b", "fedsaddle": __version__, "data": "0" * 64}
    good, body = fuzz._summaries()
    assert _summary("b", Reply(head, body)).keys() == good.keys() | {"digest"}
    own = dict(unpack(body, {}))
    bad: list[Any] = [
        (1, 2),
        tuple((own | {"n": torch.tensor([1e15], dtype=torch.float64)}).items()),
        tuple((own | {"labels": -own["labels"]}).items()),
        tuple((own | {"mean": own["mean"][:0]}).items()),
        tuple((own | {"head": torch.zeros(3, dtype=torch.uint8)}).items()),
    ]
    for tree in bad:
        refused(lambda tree=tree: _summary("b", Reply(head, pack(tree))), "its summary is refused")


@pytest.mark.parametrize("change", ["z of another shape", "another round", "clients that are not there"])
def test_a_checkpoint_of_another_form(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = fuzz._finished("generated")
    tensors = load_tensors(sorted((place / "checkpoint").glob("*.safetensors"))[-1].read_bytes())
    names = sorted(tensors)
    ids = next(
        i for i, name in enumerate(names) if tensors[name].dtype == torch.int64 and tensors[name].ndim == 1
    )
    edit = {
        "z of another shape": ("tensor", (0, "wider")),
        "another round": ("tree", [("put", 3000, -1)]),
        "clients that are not there": ("tensor", ((ids << 16) // len(names) + 1, "negative")),
    }[change]
    refused(lambda: fuzz.checkpoint(("generated", edit), tmp_path), "checkpoint")
