"""Nothing is lost: a run that was stopped goes on bit for bit, whatever stopped it."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import torch

import fedsaddle as fs
from fedsaddle import cli, folder
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.folder import Folder, going_on, write_whole

ROUNDS = 7
ONE_EACH = {type(case.algorithm): name for name, case in reversed(harness.CASES.items())}


def begin(name: str, out: Path, rounds: int = ROUNDS, **options: Any) -> fs.Run:
    """The run of a case of the harness, not computed yet."""
    case = harness.CASES[name]
    twin = harness.TWINS[case.twin]
    torch.manual_seed(0)
    federation = twin.data()
    if not federation.is_regression and "y" in federation.data:
        classes = int(federation.data["y"].max()) + 1
        federation = replace(federation, classes=tuple(map(str, range(classes))))
    return fs.train(
        twin.problem(), case.algorithm, federation, rounds=rounds, participation=case.participation,
        batch_size=case.batching.size, sampling=case.batching.sampling, dtype="float64", eval_every=2, out=out,
        progress=False, **options,
    )  # fmt: skip


def stopped(run: fs.Run, after: int) -> None:
    """Compute some rounds, and let go of the run as a crash would."""
    rounds = iter(run)
    list(islice(rounds, after + 1))
    rounds.close()  # type: ignore[attr-defined]


def files(out: Path) -> dict[str, bytes]:
    """What must be equal to the last bit."""
    names = ["history.jsonl", *(f"checkpoint/{p.name}" for p in (out / "checkpoint").iterdir())]
    return {name: (out / name).read_bytes() for name in names}


def same(a: Path, b: Path) -> None:
    ours, theirs = files(a), files(b)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name] == theirs[name], name


def test_every_algorithm_has_a_case() -> None:
    assert set(ONE_EACH) >= set(ALGORITHMS.values())


@pytest.mark.parametrize("name", harness.CASES)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    begin(name, tmp_path / "whole").finish()
    stopped(begin(name, tmp_path / "cut"), after=5)  # the checkpoint is that of round 4
    begin(name, tmp_path / "cut", resume=True).finish()
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", ONE_EACH.values(), ids=[kind.__name__ for kind in ONE_EACH])
def test_serial_and_twice(name: str, tmp_path: Path) -> None:
    begin(name, tmp_path / "whole", engine="serial").finish()
    stopped(begin(name, tmp_path / "cut", engine="serial", checkpoint_every=1), after=2)
    stopped(begin(name, tmp_path / "cut", engine="serial", checkpoint_every=1, resume=True), after=2)
    begin(name, tmp_path / "cut", engine="serial", checkpoint_every=1, resume=True).finish()
    assert (tmp_path / "whole/history.jsonl").read_bytes() == (tmp_path / "cut/history.jsonl").read_bytes()
    last = sorted((tmp_path / "whole/checkpoint").glob("*.safetensors"))[-1].name
    assert (tmp_path / "whole/checkpoint" / last).read_bytes() == (
        tmp_path / "cut/checkpoint" / last
    ).read_bytes()


def test_a_finished_run_is_resumed_to_more_rounds(tmp_path: Path) -> None:
    begin("codasca", tmp_path / "whole", rounds=8).finish()
    begin("codasca", tmp_path / "cut", rounds=4).finish()
    with pytest.raises(FedsaddleError, match=r"described differently .*train\.rounds \(4, now 8\).*--allow"):
        begin("codasca", tmp_path / "cut", rounds=8, resume=True).finish()
    begin("codasca", tmp_path / "cut", rounds=8, resume=True, allow=True).finish()
    whole, cut = (files(tmp_path / k)["history.jsonl"] for k in ("whole", "cut"))
    assert whole == cut


def test_other_data_are_refused(tmp_path: Path) -> None:
    stopped(begin("codasca", tmp_path), after=3)
    case = harness.CASES["codasca"]
    other = harness.binary(seed=1)
    with pytest.raises(FedsaddleError, match=r"federation\.fingerprint"):
        fs.train(
            harness.TWINS[case.twin].problem(), case.algorithm, other, rounds=ROUNDS, participation=case.participation,
            batch_size=case.batching.size, dtype="float64", eval_every=2, out=tmp_path, resume=True,
        ).finish()  # fmt: skip


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    begin("codasca", tmp_path / "whole").finish()
    stopped(begin("codasca", tmp_path / "cut"), after=5)
    newest = tmp_path / "cut/checkpoint/round-0000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8] + b"otherwise"[:8])
    run = begin("codasca", tmp_path / "cut", resume=True)
    assert next(iter(run))["round"] == 3
    run.finish()
    same(tmp_path / "whole", tmp_path / "cut")
    for file in (tmp_path / "cut/checkpoint").glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(FedsaddleError, match="all are damaged"):
        begin("codasca", tmp_path / "cut", resume=True).finish()


def test_what_was_written_after_the_checkpoint_is_dropped(tmp_path: Path) -> None:
    begin("codasca", tmp_path / "whole").finish()
    stopped(begin("codasca", tmp_path / "cut"), after=5)
    with open(tmp_path / "cut/history.jsonl", "ab") as file:
        file.write(b'{"round": 6, "pha')  # cut off in the middle
    (tmp_path / "cut/checkpoint/round-0000006.safetensors.7.tmp").write_bytes(b"half")
    (tmp_path / "cut/result.json.7.tmp").write_bytes(b"half")
    begin("codasca", tmp_path / "cut", resume=True).finish()
    assert not list(tmp_path.rglob("*.tmp"))
    same(tmp_path / "whole", tmp_path / "cut")


def test_history_that_was_changed_is_refused(tmp_path: Path) -> None:
    stopped(begin("codasca", tmp_path), after=5)
    (tmp_path / "history.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(FedsaddleError, match="does not have the rounds 0 to 4"):
        begin("codasca", tmp_path, resume=True).finish()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    stopped(begin("codasca", tmp_path), after=3)
    first = iter(begin("codasca", tmp_path, resume=True))
    next(first)
    second = begin("codasca", tmp_path, resume=True)
    for _ in range(2):  # asked again, it says the same
        with pytest.raises(FedsaddleError, match="another process is writing this run"):
            second.finish()
    first.close()  # type: ignore[attr-defined]
    begin("codasca", tmp_path, resume=True).finish()


def test_a_full_disk_is_one_line_and_the_checkpoint_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin("codasca", tmp_path / "whole").finish()
    real, full = os.fsync, []

    def fsync(handle: int) -> None:
        if full:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(folder.os, "fsync", fsync)
    run = begin("codasca", tmp_path / "cut")
    rounds = iter(run)
    list(islice(rounds, 5))
    full.append(True)
    with pytest.raises(FedsaddleError, match=r"cannot be written \(No space left on device\)") as error:
        run.finish()
    assert error.value.__notes__ == ["fs.train(..., out=, resume=True) goes on after round 4"]
    assert not list((tmp_path / "cut").rglob("*.tmp"))
    full.clear()
    begin("codasca", tmp_path / "cut", resume=True).finish()
    same(tmp_path / "whole", tmp_path / "cut")


def test_write_whole_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_whole(file, b"old")
    (tmp_path / f"a.{os.getpid()}.tmp").mkdir()  # cannot be opened
    with pytest.raises(FedsaddleError, match="cannot be written"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"


def test_several_processes_may_write_the_same_file(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from fedsaddle.folder import write_whole\n"
    code += "for _ in range(60): write_whole(Path(sys.argv[1]), sys.argv[2].encode() * 1000)"
    texts = ("a", "b", "c")
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "file"), t]) for t in texts]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert (tmp_path / "file").read_text() in [1000 * t for t in texts]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_index_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    stopped(begin("codasca", tmp_path), after=3)
    index = tmp_path / "checkpoint/index.json"
    entries = json.loads(index.read_text())
    index.write_text(json.dumps([e | {"file": "../history.jsonl"} for e in entries]))
    with pytest.raises(FedsaddleError, match="has no checkpoint"):
        Folder(tmp_path, resume=True).latest()


def test_a_checkpoint_of_rounds_that_were_dropped_is_not_gone_on_from(tmp_path: Path) -> None:
    """After a guard has gone back, an older checkpoint of a later round follows rounds that are no more."""
    with Folder(tmp_path) as run:
        for r in range(14):
            run.append({"round": r, "seconds": 0.0})
        run.save(10, b"ten")
        run.save(13, b"thirteen")
        run.rewind(10)
        for r in range(11, 15):
            run.append({"round": r, "seconds": 0.0})
        assert run.latest() == b"ten"


# ------------------------------------------------------------------------------------------------- divergence


def test_divergence_names_round_phase_and_client_and_the_way_back(tmp_path: Path) -> None:
    federation = fs.quadratic_federation(clients=4, samples=3)
    federation.data[next(iter(federation.data))][federation.offsets[2]] = torch.nan
    run = fs.train(
        fs.QuadraticSaddle(), fs.CODASCA(lr=0.05, local_steps=2), federation, rounds=4, out=tmp_path, progress=False,
        batch_size=None, eval_every=1,
    )  # fmt: skip
    with pytest.raises(
        Diverged, match=r"round 1, what client 'client 2' answers to drift_corrected_steps is not finite"
    ):
        run.finish()
    (note,) = run._error.__notes__  # type: ignore[union-attr]
    assert note == f"resuming would diverge again; the rounds before that are in {tmp_path}"


def test_divergence_names_the_site_and_the_scale_that_is_missing() -> None:
    rng = np.random.default_rng(0)
    x = 1e20 * rng.standard_normal((40, 3))
    federation = fs.Federation.from_arrays(x, np.arange(40) // 2 % 2, clients=["North", "South"] * 20)

    def said(federation: fs.Federation, lr: float) -> str:
        problem, algorithm = fs.AUC(torch.nn.Linear(3, 1)), fs.CODASCA(lr=lr, local_steps=3)
        with pytest.raises(Diverged) as error:
            fs.train(problem, algorithm, federation, rounds=9, progress=False).finish()
        return str(error.value)

    assert 'is not finite; scale the features ([data] scale = "standard"), or lower' in said(federation, 0.1)
    assert re.search(
        r"what client '(North|South)' answers .* is not finite; lower the", said(federation.scaled(), 1e30)
    )


def test_the_guard_halves_the_step_and_goes_on(tmp_path: Path) -> None:
    federation = fs.quadratic_federation(clients=4)

    def run(lr: Any, **options: Any) -> fs.Run:
        algorithm = fs.LocalSGDA(lr=lr, local_steps=5)
        return fs.train(fs.QuadraticSaddle(), algorithm, federation, rounds=40, progress=False, **options)

    with pytest.raises(Diverged):
        run(8.0).finish()
    with pytest.warns(UserWarning, match=r"guard: back to round \d+, lr is 4 now") as said:
        guarded = run(8.0, guard=10, out=tmp_path).finish()
    assert {w.filename for w in said} == {__file__}  # the line that trains, not one of the library
    lr = guarded.algorithm.lr  # type: ignore[attr-defined]
    assert lr in (8.0 / 2**k for k in range(1, 11))
    rounds = [json.loads(line)["round"] for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert rounds == list(range(41))
    assert torch.isfinite(guarded.z).all()
    with pytest.raises(Diverged):
        run(8.0, guard=1).finish()
    with pytest.warns(UserWarning, match="lr is 4 now"), pytest.raises(Diverged):  # also of a whole number
        run(8, guard=1).finish()


# ------------------------------------------------------------------------------------- processes that are killed

CONFIG = """
[data]
name = "breast_cancer"
test = 0.25
[partition]
name = "dirichlet"
clients = 6
min_per_class = 2
[model]
name = "linear"
[problem]
name = "auc"
[algorithm]
name = "codasca"
lr = 0.05
local_steps = 3
[train]
rounds = 400
eval_every = 20
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedsaddle", *arguments]


def test_ctrl_c_ends_after_the_round_and_resume_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text(CONFIG)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert cli._main(["run", str(tmp_path / "a.toml"), "--out", str(whole), "--quiet"]) == 0
    process = subprocess.Popen(
        command("run", str(tmp_path / "a.toml"), "--out", str(cut), "--quiet"),
        stderr=subprocess.PIPE,
        text=True,
    )
    history = cut / "history.jsonl"
    while process.poll() is None and not (history.exists() and history.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert said.startswith("fedsaddle: interrupted; fedsaddle resume") and said.count("\n") == 1
    done = history.read_bytes().count(b"\n") - 1
    assert 5 <= done < 400 and f"goes on after round {done}" in said
    moved = cut.rename(tmp_path / "moved")
    assert going_on(moved) == f"; interrupted; fedsaddle resume {moved} goes on after round {done}"
    config = moved / "config.toml"
    config.write_text(config.read_text().replace("lr = ", "lr = 1"))
    assert cli._main(["resume", str(moved), "--quiet"]) == 2  # refused, so it still says why it stopped
    assert going_on(moved).startswith("; interrupted")
    config.write_text(config.read_text().replace("lr = 1", "lr = "))
    assert cli._main(["resume", str(moved), "--quiet"]) == 0
    assert not (moved / "stopped.json").exists()
    cut = moved
    same(whole, cut)
    assert (whole / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["resume", "nowhere"], "nowhere: is not a folder; name the folder of a run"),
        (["resume", "empty"], "empty: has no config.toml, it is not a run"),
    ],
)
def test_bad_folders(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert cli._main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_kills_at_random_moments() -> None:
    """A few of what `python tests/kill.py` does a hundred times."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "kill.py"), "--kills", "8"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 of 8 kills survived")


def test_a_guard_goes_back_to_where_the_objective_was_no_higher_than_at_the_start(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 4))
    y = (x[:, 0] + 0.3 * rng.standard_normal(120) > 0).astype(int)
    federation = fs.Federation.from_arrays(x, y, clients=np.repeat(np.arange(4), 30))

    def run(guard: int, **options: Any) -> fs.Run:
        torch.manual_seed(0)
        algorithm = fs.CODASCA(lr=3.0, local_steps=5)
        return fs.train(
            fs.AUC(torch.nn.Linear(4, 1)), algorithm, federation, rounds=300, dtype="float64", eval_every=5, guard=guard,
            out=tmp_path, progress=False, **options,
        )  # fmt: skip

    with pytest.warns(UserWarning, match="guard: back to round 0"):
        guarded = run(5).finish()
    assert guarded.metrics["phi"] < guarded.records[0]["phi"]
    assert guarded.metrics["grad_phi"] < 1e-6


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_has_all_that_it_holds_from_the_start(resume: bool, tmp_path: Path) -> None:
    def run(**options: Any) -> fs.Run:
        problem, sites = fs.QuadraticSaddle(), fs.quadratic_federation(clients=4)
        return fs.train(
            problem, fs.LocalSGDA(lr=0.05), sites, rounds=6, out=tmp_path, progress=False, **options
        )

    if resume:
        stopped(run(), after=3)
    started = run(resume=resume)
    held = {*vars(started)}
    assert {*vars(started.finish())} == held


def test_a_resumed_guard_does_not_go_back_to_a_checkpoint_that_has_grown(tmp_path: Path) -> None:
    federation = fs.Federation.from_arrays(
        np.random.default_rng(0).standard_normal((80, 4)),
        np.arange(80) % 2,
        clients=np.repeat(np.arange(4), 20),
    )

    def run(**options: Any) -> fs.Run:
        torch.manual_seed(0)
        return fs.train(
            fs.AUC(torch.nn.Linear(4, 1)), fs.CODASCA(lr=8.0, local_steps=5), federation, rounds=200, dtype="float64",
            eval_every=5, guard=5, out=tmp_path, progress=False, **options,
        )  # fmt: skip

    stopped(run(), after=22)
    index = tmp_path / "checkpoint/index.json"
    entries = json.loads(index.read_text())
    assert [(e["round"], e.pop("fallback")) for e in entries] == [(0, 0), (15, 0), (20, 0)]
    index.write_text(
        json.dumps(entries[1:])
    )  # as an older fedsaddle has left it, which knew no other round then
    with pytest.raises(Diverged):
        run(resume=True).finish()


@pytest.mark.parametrize("lr", [8.0, 1e4])
@pytest.mark.parametrize("stop", [7, 22, 30, 45])
def test_a_resumed_guard_goes_back_to_the_same_round(lr: float, stop: int, tmp_path: Path) -> None:
    """That of the last sound evaluation, however long ago, and not that of the last checkpoint."""
    quadratic = fs.quadratic_federation(clients=4)
    auc = fs.Federation.from_arrays(
        np.random.default_rng(0).standard_normal((80, 4)),
        np.arange(80) % 2,
        clients=np.repeat(np.arange(4), 20),
    )

    def run(kind: str, out: str, **options: Any) -> fs.Run:
        torch.manual_seed(0)
        problem, data = (
            (fs.QuadraticSaddle(), quadratic) if kind == "quadratic" else (fs.AUC(torch.nn.Linear(4, 1)), auc)
        )
        algorithm = fs.CODASCA(lr=lr, local_steps=5) if kind == "auc" else fs.LocalSGDA(lr=lr, local_steps=5)
        every = {"eval_every": 5} if kind == "auc" else {"eval_every": 20, "checkpoint_every": 7}
        return fs.train(
            problem, algorithm, data, rounds=200 if kind == "auc" else 60, dtype="float64", guard=20, progress=False,
            out=tmp_path / kind / out, **every, **options,
        )  # fmt: skip

    for kind in ("quadratic", "auc"):
        with pytest.warns(UserWarning, match="guard: back to round"):
            whole = run(kind, "whole").finish()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rounds = iter(run(kind, "cut"))
            while next(rounds)["round"] < stop:
                pass
            rounds.close()  # type: ignore[attr-defined]
            resumed = run(kind, "cut", resume=True).finish()
        assert torch.equal(whole.z, resumed.z) and whole.algorithm == resumed.algorithm
        assert resumed.resumes and not whole.resumes  # whether or not it went back
        same(tmp_path / kind / "whole", tmp_path / kind / "cut")


def test_a_run_that_is_killed_after_its_guard_went_back_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before it writes the next checkpoint, when later ones, of rounds that no longer count, are still there."""
    federation = fs.quadratic_federation(clients=4)

    def run(out: str, **options: Any) -> fs.Run:
        algorithm = fs.LocalSGDA(lr=8.0, local_steps=5)
        return fs.train(
            fs.QuadraticSaddle(), algorithm, federation, rounds=60, guard=20, eval_every=20, checkpoint_every=7,
            out=tmp_path / out, progress=False, dtype="float64", **options,
        )  # fmt: skip

    with pytest.warns(UserWarning, match="guard: back to round"):
        whole = run("whole").finish()
    saved, real = [-1], Folder.save

    def save(self: Folder, rounds: int, *more: Any) -> None:
        if rounds <= saved[-1]:
            raise RuntimeError("killed")
        saved.append(rounds)
        real(self, rounds, *more)

    with warnings.catch_warnings(), monkeypatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.setattr(Folder, "save", save)
        with pytest.raises(RuntimeError, match="killed"):
            run("cut").finish()
    with pytest.warns(UserWarning, match="guard: back to round"):
        resumed = run("cut", resume=True).finish()
    assert torch.equal(whole.z, resumed.z)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_guard_that_has_halved_goes_on_halved(tmp_path: Path) -> None:
    federation = fs.quadratic_federation(clients=4)

    def run(out: str, **options: Any) -> fs.Run:
        algorithm = fs.LocalSGDA(lr=8.0, local_steps=5)
        return fs.train(
            fs.QuadraticSaddle(), algorithm, federation, rounds=40, guard=10, eval_every=4, out=tmp_path / out,
            progress=False, **options,
        )  # fmt: skip

    with pytest.warns(UserWarning, match="guard"):
        whole = run("whole").finish()
    with pytest.warns(UserWarning, match="guard"):
        rounds = iter(run("cut"))
        while next(rounds)["round"] < 22:
            pass
        rounds.close()  # type: ignore[attr-defined]
    resumed = run("cut", resume=True).finish()
    assert torch.equal(whole.z, resumed.z)
    assert whole.algorithm == resumed.algorithm != fs.LocalSGDA(lr=8.0, local_steps=5)
    assert resumed.summary()["config"]["algorithm"]["lr"] == whole.algorithm.lr  # type: ignore[attr-defined]
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_history_that_lost_its_end_goes_on_from_an_older_checkpoint(tmp_path: Path) -> None:
    """As after a loss of power, on a system that had written the checkpoint but not the history."""
    begin("codasca", tmp_path / "whole").finish()
    stopped(begin("codasca", tmp_path / "cut"), after=5)
    history = tmp_path / "cut/history.jsonl"
    history.write_bytes(b"".join(history.read_bytes().splitlines(keepends=True)[:4]))  # rounds 0 to 3
    begin("codasca", tmp_path / "cut", resume=True).finish()
    same(tmp_path / "whole", tmp_path / "cut")


def test_ctrl_c_is_left_alone_outside_of_finish(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    rounds = iter(begin("codasca", tmp_path))
    next(rounds)
    assert signal.getsignal(signal.SIGINT) is before
    rounds.close()  # type: ignore[attr-defined]


def test_the_same_command_twice_writes_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text(CONFIG)
    for out in ("one", "two"):
        arguments = [
            "run",
            str(tmp_path / "a.toml"),
            "--out",
            str(tmp_path / out),
            "--set",
            "train.rounds=30",
            "--quiet",
        ]
        assert cli._main(arguments) == 0
    same(tmp_path / "one", tmp_path / "two")
    capsys.readouterr()


def test_a_file_system_without_locks_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    begin("codasca", tmp_path / "run").finish()
    assert not (tmp_path / "run" / ".lock").exists()
