"""Scores of runs beside one another: which rows are compared, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsaddle import metrics, scores
from fedsaddle.metrics import Interval
from fedsaddle.scores import DIFFERENT, Compared, compared

Rows = dict[str, dict[Path, dict[str, Any]]]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """Rows a, b and c have the same test samples, d and e others; a has two runs."""
    rng, out = np.random.default_rng(0), Rows()
    for name in ("d0", "a0", "a1", "b0", "c0", "e0"):
        first, noise = (2000 if name[0] in "de" else 1000), (20.0 if name[0] == "c" else 0.5)
        folder = tmp_path / name
        folder.mkdir()
        written = [f"x,{first + i},{i % 2},{i % 2 + noise * rng.standard_normal()}" for i in range(80)]
        (folder / "scores.csv").write_text("\n".join(["client,row,y,score", *written]))
        out.setdefault(name[0], {})[folder] = {}
    return out


def changed(rows: Rows, name: str, old: str, new: str) -> None:
    for folder in rows[name]:
        file = folder / "scores.csv"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))


def test_rows_with_the_same_samples_are_compared_whatever_others_have(rows: Rows) -> None:
    found = compared(rows)
    assert {found.best, *found.behind} == set("abc") and found.apart == {"d": DIFFERENT, "e": DIFFERENT}
    alone = compared({name: rows[name] for name in "abc"})
    assert (found.best, found.behind) == (alone.best, alone.behind) and not alone.apart
    found = compared({name: rows[name] for name in "dbaec"[:4]})
    assert {found.best, *found.behind} == {"d", "e"}  # of sets of two, that with the first row
    found = compared({name: rows[name] for name in "da"})
    assert found.apart == {"d": DIFFERENT, "a": DIFFERENT} and found.verdict() == ""
    assert compared({"a": rows["a"]}).apart == {}


def test_rows_that_are_left_out_are_named_with_the_reason(rows: Rows) -> None:
    changed(rows, "b", "x,1000,0,", "x,3000,0,nan\nx,1000,0,")
    next(iter(rows["e"])).joinpath("scores.csv").unlink()
    mixed = rows | {"m": rows["a"] | rows["d"]}
    found = compared(mixed)
    assert {found.best, *found.behind} == set("ac")
    (said,) = (text for text in found.notes() if text.startswith("Not compared"))
    assert "d (different test samples)" in said and "e (no scores.csv)" in said
    assert "b (a score is not a number)" in said and "m (its runs have different test samples)" in said
    one = {name: rows[name] for name in "ac"}
    for name in one:
        changed(one, name, ",1,", ",0,")
        changed(one, name, "x,1007,0,", "x,1007,1,")
    found = compared(one)
    assert set(found.apart.values()) == {"fewer than two test samples of a class"} and found.verdict() == ""


def test_a_verdict_is_one_sentence() -> None:
    clear, level = Interval(0.1, 0.01, 0.19), Interval(0.1, -0.01, 0.21)
    chance = "by more than the choice of test samples explains"

    def verdict(behind: dict[str, Interval], **apart: str) -> str:
        return Compared({}, "A", behind, apart).verdict()

    assert verdict({"B": clear}) == f"A is ahead of the other {chance}."
    assert verdict({"B": clear, "C": clear}) == f"A is ahead of all others {chance}."
    assert verdict({"B": level, "C": level}) == f"No row is ahead of all others {chance}."
    both = f"Behind the best, A, {chance}: B; not told apart from it: C."
    assert verdict({"B": clear, "C": level}) == both
    assert (
        verdict({"B": clear}, X="no scores.csv")
        == f"A is ahead of the other with the same test samples {chance}."
    )
    assert verdict({"B": Interval(0.0, 0.0, 0.0)}) == f"No row is ahead of the other {chance}."
    assert Interval(-1e-17, -1e-9, 0.5).text() == "0.0000 (0.0000 to 0.5000)"


def test_rows_that_are_alike_are_rarely_told_apart_however_many() -> None:
    """The best of six is ahead of the last by chance far more often than one of two is."""
    rng, told, alone = np.random.default_rng(1), 0, 0
    positive = torch.arange(200) % 2 == 0
    for _ in range(200):
        drawn = torch.from_numpy(rng.standard_normal((6, 200)))
        runs = {str(i): [scores.Scores(torch.arange(200), positive, own)] for i, own in enumerate(drawn)}
        best, behind, _ = scores._differences(runs)
        told += any(by.low > 0 for by in behind.values())
        each = [metrics.auc_difference(drawn[int(best)], drawn[int(name)], positive) for name in behind]
        alone += any(by is not None and by.low > 0 for by in each)
    assert told <= 0.08 * 200 < 0.2 * 200 < alone
