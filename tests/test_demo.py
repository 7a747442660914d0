"""The demo: its table, its report, its folder and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsaddle import demo

pytest.importorskip("plotly")


def test_quick_demo_prints_a_table_and_writes_a_report_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert demo.main(["--out", str(out), "--quick"]) == 0
    first, progress = capsys.readouterr()
    rows = first.splitlines()
    assert rows[0].split() == ["method", "test", "AUC", "worst-20", "%", "AUC", "rounds", "bytes"]
    assert [row.split("  ")[0] for row in rows[2:6]] == list(demo.METHODS)
    assert "hard split" in first and str(out / "report.html") in first
    assert "[ 8/8]" in progress and "[ 8/8]" not in first
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(f">{name}<" in page for name in ("CODASCA", "CODA+", "Local SGDA"))
    assert len(list((out / "runs").glob("*/result.json"))) == 8

    (out / "mine.txt").write_text("keep me")
    assert (
        demo.main(["--out", str(out), "--quick"]) == 0
    )  # again: the same numbers, and nothing else is touched
    assert capsys.readouterr().out == first
    assert (out / "mine.txt").read_text() == "keep me"


def test_the_training_data_is_imbalanced_and_the_sites_differ() -> None:
    sites = demo.federation()
    assert sites.test is not None and sites.valid is not None
    assert sites.n_clients == sites.test.n_clients == 10
    counts, test = sites.class_counts(), sites.test.class_counts()
    assert 0.05 < counts[:, 1].sum() / counts.sum() < 0.15
    assert 0.4 < test[:, 1].sum() / test.sum() < 0.6  # only training positives were removed
    assert sites.n_samples + sites.test.n_samples + sites.valid.n_samples < 1797


def test_methods_have_the_same_local_steps_and_constant_step_sizes() -> None:
    for method in demo.METHODS.values():
        assert getattr(method.algorithm, "local_steps") == demo.LOCAL_STEPS  # noqa: B009
        assert getattr(method.algorithm, "lr_decay", 1.0) == 1.0


def test_somebody_elses_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "precious").write_text("data")
    assert demo.main(["--out", str(tmp_path), "--quick"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "runs" / "precious").read_text() == "data"
    assert demo.main(["--out", str(tmp_path / "runs" / "precious"), "--quick"]) == 2
    assert "is a file" in capsys.readouterr().err


def test_bad_arguments_give_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        demo.main(["--rounds", "3"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--rounds" in error
