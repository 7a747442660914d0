"""Trackers: what they write is read back with their own libraries, and a run is the same bits with and without them."""

from __future__ import annotations

import json
import struct
import sys
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsaddle as fs
from fedsaddle import cli
from fedsaddle.config import Config, load
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.replicas import run_together
from fedsaddle.toml import to_toml
from fedsaddle.trackers import TRACKERS, About, Tracker, _one_at_a_time, named

for package in ("tensorboard", "mlflow", "wandb", "sqlalchemy"):
    pytest.importorskip(package)

ALL = list(TRACKERS)
ROUNDS = 6


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine's user has configured plays no part."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


def begin(out: Path | None, *, lr: float = 0.05, rounds: int = ROUNDS, **options: Any) -> fs.Run:
    algorithm = fs.CODASCA(lr=lr, local_steps=3)
    settings = {"eval_every": 2, "dtype": "float64", "progress": False} | options
    return fs.train(
        fs.QuadraticSaddle(), algorithm, fs.quadratic_federation(clients=3), rounds=rounds, out=out, **settings
    )  # fmt: skip


def stopped(run: fs.Run, after: int) -> None:
    rounds = iter(run)
    list(islice(rounds, after + 1))
    rounds.close()  # type: ignore[attr-defined]


class Mine:
    """A tracker of one's own, which remembers what it is told and may fail."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.about: About | None = None
        self.rounds: dict[int, Mapping[str, float]] = {}
        self.ended: list[tuple[str, dict[str, Any]]] = []

    def start(self, about: About) -> str:
        assert self.fails != "start", "no room"
        self.about = about
        return "mine"

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if self.fails == "log" and round == 2:
            raise OSError("server\naway")
        assert round not in self.rounds, "told twice"
        self.rounds[round] = values

    def end(self, status: str, result: dict[str, Any]) -> None:
        assert self.fails != "end", "gone"
        self.ended.append((status, result))


# ------------------------------------------------------------------------- what was written, by each library


def tensorboard_scalars(folder: Path) -> tuple[Any, dict[str, dict[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    found = {tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert all(len(points) == len(dict(points)) for points in found.values())  # no round twice
    return events, {tag: dict(points) for tag, points in found.items()}


def mlflow_runs(database: Path) -> tuple[Any, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{database.resolve()}")
    return client, [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]


def mlflow_history(client: Any, run: Any, metric: str) -> dict[int, float]:
    points = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, metric)]
    assert len(points) == len(dict(points))  # no round twice
    return dict(points)


def wandb_records(folder: Path) -> dict[str, list[Any]]:
    """The records of all offline runs in a folder, by kind: a log in LevelDB's format, of wandb's own messages."""
    from wandb.proto import wandb_internal_pb2

    out: dict[str, list[Any]] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, place, whole = file.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if 32768 - place % 32768 < 7:  # the rest of a block is empty
                place += 32768 - place % 32768
                continue
            _, length, kind = struct.unpack("<IHB", data[place : place + 7])
            whole += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # a full record, or the last part of one
                record = wandb_internal_pb2.Record.FromString(whole)
                out.setdefault(record.WhichOneof("record_type"), []).append(record)
                whole = b""
    return out


def wandb_history(folder: Path, metric: str) -> dict[int, float]:
    points = []
    for record in wandb_records(folder)["history"]:
        values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        points.append((values["round"], values[metric]))
    assert len(points) == len(dict(points))  # no round twice
    return dict(points)


# -------------------------------------------------------------------------------------------------- one run


def test_each_has_the_parameters_the_metrics_by_round_and_the_result(tmp_path: Path) -> None:
    out = tmp_path / "tracked"
    run = begin(out, track=ALL)
    expected = {r["round"]: r["distance"] for r in run.records if "distance" in r}
    assert list(expected) == [0, 2, 4, 6]
    if (handles := Path("/proc/self/fd")).is_dir():  # none of them keeps a file open
        assert [
            str(f.readlink()) for f in handles.iterdir() if f.exists() and out in f.readlink().parents
        ] == []

    events, scalars = tensorboard_scalars(out / "tensorboard")
    assert scalars["distance"] == pytest.approx(expected, rel=1e-6)  # TensorBoard keeps float32
    assert scalars["bytes_up"].keys() == expected.keys()
    (parameters,) = events.Tensors("parameters/text_summary")
    assert "| algorithm.lr | 0.05 |" in parameters.tensor_proto.string_val[0].decode()
    (result,) = events.Tensors("result/text_summary")
    told = result.tensor_proto.string_val[0].decode().strip("`json\n")
    assert json.loads(told) == json.loads((out / "result.json").read_text())
    assert {"_hparams_/experiment", "_hparams_/session_start_info"} <= set(events.summary_metadata)

    client, (found,) = mlflow_runs(out / "mlflow.db")
    assert mlflow_history(client, found, "distance") == expected
    assert found.data.params["algorithm.lr"] == "0.05" and found.data.params["train.chunk"] == "none"
    assert (found.data.tags["algorithm"], found.data.tags["torch"]) == ("CODASCA", torch.__version__)
    assert (found.info.run_name, found.info.status) == ("tracked", "FINISHED")
    stored = Path(client.download_artifacts(found.info.run_id, "result.json"))
    assert json.loads(stored.read_text()) == json.loads((out / "result.json").read_text())
    assert found.info.artifact_uri.startswith(out.as_uri())

    assert wandb_history(out, "distance") == expected
    records = wandb_records(out)
    settings = {item.key: item.value_json for r in records["run"] for item in r.run.config.update}
    assert json.loads(settings["algorithm.lr"]) == 0.05
    assert json.loads(settings["tags"])["problem"] == "QuadraticSaddle"
    summary = {i.key or i.nested_key[0]: i.value_json for r in records["summary"] for i in r.summary.update}
    assert json.loads(summary["result"])["metrics"]["distance"] == expected[6]
    assert [r.exit.exit_code for r in records["exit"]] == [0]
    (written,) = (file.read_bytes() for file in out.glob("wandb/offline-run-*/*.wandb"))
    assert sys.executable.encode() not in written and {r.run.host for r in records["run"]} == {"-"}

    begin(tmp_path / "plain").finish()  # the same bits without trackers
    for name in ("history.jsonl", "checkpoint/round-0000006.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_a_resumed_run_goes_on_in_the_same_tracked_run(tmp_path: Path) -> None:
    stopped(begin(tmp_path, track=ALL, eval_every=1, checkpoint_every=4), after=5)  # goes on after round 4
    _, (before,) = mlflow_runs(tmp_path / "mlflow.db")
    assert before.info.status == "KILLED"
    run = begin(tmp_path, track=ALL, eval_every=1, checkpoint_every=4, resume=True)
    expected = {r["round"]: r["distance"] for r in run.records}
    assert list(expected) == list(range(ROUNDS + 1))
    _, scalars = tensorboard_scalars(tmp_path / "tensorboard")
    assert scalars["distance"] == pytest.approx(expected, rel=1e-6)
    client, (found,) = mlflow_runs(tmp_path / "mlflow.db")
    assert (found.info.run_id, found.info.status) == (before.info.run_id, "FINISHED")
    assert mlflow_history(client, found, "distance") == expected
    assert wandb_history(tmp_path, "distance") == expected
    assert len({r.run.run_id for r in wandb_records(tmp_path)["run"]}) == 1


def test_a_tracker_that_joins_later_is_told_what_went_before_even_with_other_trackers(tmp_path: Path) -> None:
    stopped(begin(tmp_path), after=5)
    mine = Mine()
    begin(tmp_path, track=mine, resume=True).finish()
    assert list(mine.rounds) == [0, 2, 4, 6]
    assert mine.about is not None and mine.about.id == ""
    again = Mine()
    begin(tmp_path, track=again, rounds=8, resume=True, allow=True).finish()
    assert list(again.rounds) == [8]
    assert again.about is not None and (again.about.id, again.about.round) == ("mine", 6)


def test_what_a_tracker_of_ones_own_hears(tmp_path: Path) -> None:
    mine = Mine()
    assert isinstance(mine, Tracker)
    run = begin(tmp_path / "a run", track=mine).finish()
    assert mine.about is not None
    assert (mine.about.name, mine.about.group, mine.about.folder) == ("a run", "", tmp_path / "a run")
    assert mine.about.parameters["train.rounds"] == ROUNDS
    assert mine.rounds[6]["distance"] == run.metrics["distance"]
    assert mine.ended == [("finished", run.summary())]


@pytest.mark.parametrize("when", ["start", "log", "end"])
def test_a_tracker_that_fails_is_left_with_one_line_and_the_run_goes_on(when: str, tmp_path: Path) -> None:
    good, bad = Mine(), type("Bad", (Mine,), {})(when)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = begin(tmp_path / "a", track=[bad, good]).finish()
    (said,) = [str(w.message) for w in caught if "track" in str(w.message)]
    assert said.startswith("track: Bad failed (") and said.endswith("; the run goes on without it")
    assert "\n" not in said
    assert list(good.rounds) == [0, 2, 4, 6] and good.ended[0][0] == "finished"
    assert run.metrics["distance"] == begin(None).metrics["distance"]
    assert [status for status, _ in bad.ended] == ["failed"] * (when == "log")  # it closes what it has opened
    if when == "log":  # what it missed it is told when the run goes on
        later = type("Bad", (Mine,), {})()
        begin(tmp_path / "a", track=later, rounds=8, resume=True, allow=True).finish()
        assert list(later.rounds) == [2, 4, 6, 8]


def test_a_server_that_is_away_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.warns(UserWarning, match="track: mlflow failed"):
        assert len(begin(tmp_path, track="mlflow").records) == ROUNDS + 1
    assert not (tmp_path / "mlflow.db").exists()


def test_divergence_and_a_guard(tmp_path: Path) -> None:
    mine, guarded = Mine(), Mine()
    with pytest.raises(Diverged):
        begin(None, lr=50.0, rounds=80, track=mine).finish()
    assert mine.ended == [("failed", {})]
    with pytest.warns(UserWarning, match="guard: back to round"):
        run = begin(None, lr=50.0, rounds=80, eval_every=7, guard=20, track=guarded).finish()
    assert list(guarded.rounds) == [r["round"] for r in run.records if "distance" in r]


def test_names_and_objects_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named("none") == {} and named(None) == {} and named([]) == {}
    for bad, says in (
        ("tensorbord", "track 'tensorbord' is unknown; did you mean 'tensorboard'"),
        (["wandb", "wandb"], "track names 'wandb' twice"),
        (3, "track must be one of tensorboard, mlflow, wandb, or an object with start, log and end, got int"),
        ([object()], "or an object with start, log and end, got object"),
    ):
        with pytest.raises(FedsaddleError, match=says):
            begin(None, track=bad)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        FedsaddleError, match=r"track = 'wandb' needs wandb: pip install 'fedsaddle\[trackers\]'"
    ):
        begin(None, track="wandb")


def test_without_a_folder_runs_gather_in_one_place(tmp_path: Path) -> None:
    for _ in range(2):
        begin(None, track="tensorboard").finish()
    assert len(list((tmp_path / "runs" / "tensorboard").glob("CODASCA *"))) == 2


# ------------------------------------------------------------------------------------------------ many runs

SWEEP: dict[str, Any] = {
    "name": "try",
    "data": {"name": "quadratic", "clients": 3},
    "problem": {"name": "quadratic"},
    "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 2},
    "train": {"rounds": 4, "eval_every": 2, "dtype": "float64"},
    "sweep": {
        "metric": "distance",
        "minimise": True,
        "seeds": [0, 1],
        "points": {"algorithm.lr": [0.05, 0.01]},
    },
}


def test_a_sweep_is_a_group_of_tracked_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("try.toml").write_text(to_toml(SWEEP))
    command = ["sweep", "try.toml", "--out", "here"]
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "--track", "tensorboard", "--track", "mlflow"])
    assert end.value.code == 0, capsys.readouterr().err
    journal = Path("here/runs.jsonl").read_text()
    entries = [json.loads(line) for line in journal.splitlines()]
    assert len(entries) == 4 and not any("track" in e["config"] for e in entries)
    client, runs = mlflow_runs(Path("here/mlflow.db"))
    by_name = {run.info.run_name: run for run in runs}
    assert sorted(by_name) == [
        f"{i} algorithm.lr={lr}, train.seed={seed}"
        for i, (lr, seed) in enumerate([(0.05, 0), (0.05, 1), (0.01, 0), (0.01, 1)], 1)
    ]
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.params["data.name"] == run.data.tags["data"] == "quadratic"
        _, scalars = tensorboard_scalars(Path("here/tensorboard") / run.info.run_name)
        distance = mlflow_history(client, run, "distance")
        assert list(distance) == [0, 2, 4]
        assert scalars["distance"] == pytest.approx(distance, rel=1e-6)
    finals = {e["metrics"]["distance"] for e in entries}
    assert {mlflow_history(client, run, "distance")[4] for run in runs} == finals
    with pytest.raises(SystemExit):  # who is told of a run decides nothing: all are done
        cli.main(command)
    assert Path("here/runs.jsonl").read_text() == journal


def test_a_replica_that_diverges_is_a_failed_run() -> None:
    federation, tracks = fs.quadratic_federation(clients=3), [Mine(), Mine()]
    runs = [
        fs.train(
            fs.QuadraticSaddle(), fs.LocalSGDA(lr=lr, local_steps=5), federation, rounds=80, track=mine, progress=False
        )
        for lr, mine in zip((0.05, 50.0), tracks, strict=True)
    ]  # fmt: skip
    run_together(runs)
    assert [mine.ended[0][0] for mine in tracks] == ["finished", "failed"]
    assert 80 in tracks[0].rounds and 80 not in tracks[1].rounds


def test_a_config_says_who_is_told(tmp_path: Path) -> None:
    tree = {k: v for k, v in SWEEP.items() if k != "sweep"}
    Path("one.toml").write_text(to_toml(tree | {"train": tree["train"] | {"track": "tensorboard"}}))
    load("one.toml").run(tmp_path / "one", progress=False)
    events, scalars = tensorboard_scalars(tmp_path / "one" / "tensorboard")
    assert list(scalars["distance"]) == [0, 2, 4]
    (tags,) = events.Tensors("tags/text_summary")
    assert "| data | quadratic |" in tags.tensor_proto.string_val[0].decode()
    assert 'track = "tensorboard"' in (tmp_path / "one" / "config.toml").read_text()  # so that resume goes on
    Path("a.csv").write_text("site,x,y\n" + "".join(f"{i % 2},{i},{i % 3 % 2}\n" for i in range(12)))
    of_file = {"data": {"file": "a.csv", "group": "site", "label": "y"}, "model": {"name": "linear"}}
    of_file |= {"problem": {"name": "auc"}, "algorithm": {"name": "codasca"}, "train": {"rounds": 1}}
    Path("file.toml").write_text(to_toml(of_file))
    config, mine = load("file.toml"), Mine()
    config.start(config.build(), track=mine, progress=False).finish()
    assert mine.about is not None
    assert (mine.about.parameters["data.file"], mine.about.tags["data"]) == ("a.csv", "a.csv")
    assert str(tmp_path) not in str(mine.about.parameters) and config.tree["data"]["file"] == str(
        tmp_path / "a.csv"
    )
    for bad, says in ((3, "train.track: must be text or a list"), ("tensorbord", "did you mean")):
        with pytest.raises(FedsaddleError, match=says):
            load("one.toml", [f"train.track={bad}"])


def test_a_deployment_keeps_its_trackers_to_itself(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    import fleet

    mine = Mine()
    config = fleet.tree("codasca")
    whole = fleet.federation()
    run = fleet.deployed(fleet.Fleet(whole, tmp_path), config, track=mine, eval_every=1).finish()
    assert list(mine.rounds) == list(range(run.rounds + 1)) and mine.ended[0][0] == "finished"
    tree = config | {"train": config["train"] | {"track": "wandb"}}
    assert Config(tree).build(whole).track == "wandb" and "track" not in Config(tree).build(whole).train


def test_processes_of_a_sweep_make_their_store_one_after_another(tmp_path: Path) -> None:
    inside: list[int] = []

    def make(i: int) -> bool:
        with _one_at_a_time(tmp_path / "lock"):
            inside.append(i)
            time.sleep(0.05)
            alone = len(inside) == 1
            inside.remove(i)
        return alone

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(make, range(4)))
