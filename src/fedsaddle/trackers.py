"""Trackers: a run as TensorBoard, MLflow or Weights & Biases show it, beside the history.jsonl that every run writes.

    fs.train(..., out="runs/a", track="tensorboard")            # tensorboard --logdir runs/a
    fs.train(..., out="runs/a", track=["mlflow", "wandb"])      # or [train] track = [...] in a config, or --track NAME
    fs.train(..., track=Mine())                                 # an object with the three methods of `Tracker`

| name | where, unless variables say otherwise | variables | how to look |
|---|---|---|---|
| tensorboard | RUN/tensorboard | | tensorboard --logdir RUN |
| mlflow | RUN/mlflow.db, RUN/mlflow | MLFLOW_TRACKING_URI, _EXPERIMENT_NAME | mlflow ui, with sqlite:///RUN/mlflow.db |
| wandb | RUN/wandb, offline | WANDB_MODE, _PROJECT, _ENTITY | wandb sync RUN/wandb/offline-run-* |

RUN is the run's folder. In a sweep it is the sweep's folder, and every run is one of a group. Without a folder it is `runs`.

A tracker hears of evaluated rounds. It changes no number of a run, and one that fails is left with a warning. `tracked.json`
in the run's folder has what a resumed run needs: who it is, and the last round that was told, so that no round is told twice
and none is left out. A tracker that joins a run when it is resumed is told what went before.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from fedsaddle.errors import FedsaddleError, first_line, nearest_or_all, optional_import, warn
from fedsaddle.folder import write_whole
from fedsaddle.measures import Of, names
from fedsaddle.parse import from_json

Record = dict[str, Any]
Status = Literal["finished", "stopped", "failed"]

TRACKED = "tracked.json"
_EXTRA = "trackers"


class About(NamedTuple):
    """What a tracker is told of a run before its first round."""

    name: str  # what it is called
    group: str  # the sweep that it belongs to, "" for none
    folder: Path  # where files may go
    parameters: dict[str, Any]  # such as {"algorithm.lr": 0.1}
    tags: dict[str, str]  # algorithm, problem, data, versions, commit
    id: str = ""  # of a run that goes on: what `start` returned when it was begun,
    round: int = -1  # and the last round that the tracker was told


@runtime_checkable
class Tracker(Protocol):
    """Something that follows one run."""

    def start(self, about: About) -> str:
        """The run begins, or goes on; returns what finds it again."""
        ...

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """The metrics after a round."""
        ...

    def end(self, status: Status, result: Record) -> None:
        """The run has ended; `result` is that of result.json, {} unless it is finished."""
        ...


Track = str | Tracker | Sequence[str | Tracker] | None


# ----------------------------------------------------------------------------------------------- the three


class TensorBoard:
    """Event files for TensorBoard: scalars, the parameters as text and in its table of hyper-parameters."""

    package, environment = "tensorboard", ()

    def start(self, about: About) -> str:
        optional_import("tensorboard", "track = 'tensorboard'", _EXTRA)
        from torch.utils.tensorboard import SummaryWriter

        self._parameters = about.parameters
        place = about.id or str(Path("tensorboard", _file_name(about.name) if about.group else ""))
        # what an earlier run has left there, or a killed one after it was last noted, TensorBoard drops by this
        self._writer = SummaryWriter(str(about.folder / place), purge_step=about.round + 1)
        if not about.id:
            for name, table in (("parameters", about.parameters), ("tags", about.tags)):
                lines = [f"| {k} | {_cell(v)} |" for k, v in table.items()]
                self._writer.add_text(name, "\n".join([f"| {name} | |", "|---|---|", *lines]), 0)
        return place

    def log(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, status: Status, result: Record) -> None:
        if status == "finished":
            from torch.utils.tensorboard.summary import hparams

            parameters = {
                k: v if isinstance(v, bool | int | float) else str(v) for k, v in self._parameters.items()
            }
            for summary in hparams(parameters, _numbers(result["metrics"])):
                self._writer._get_file_writer().add_summary(summary)
            text = f"```json\n{json.dumps(result, indent=1)}\n```"
            self._writer.add_text("result", text, result["metrics"]["round"])
        self._writer.close()


class MLflow:
    """A run of MLflow: parameters, tags, metrics by round, and result.json as an artifact."""

    package = "mlflow"
    environment = (  # nothing is sent to MLflow's makers, and a run does not wait minutes for a server
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
    )

    def start(self, about: About) -> str:
        tracking = optional_import("mlflow.tracking", "track = 'mlflow'", _EXTRA)
        self._entities = optional_import("mlflow.entities", "track = 'mlflow'", _EXTRA)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        uri, files = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            optional_import("sqlalchemy", "a local MLflow store", _EXTRA)
            about.folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{(about.folder / 'mlflow.db').resolve()}"
            files = (about.folder / "mlflow").resolve().as_uri()
        with _one_at_a_time(about.folder / ".mlflow.lock" if files else None), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what makes the tables says more than the user can use
            self._client = tracking.MlflowClient(uri)
            experiment = self._experiment(about.group or "fedsaddle", files)
        if about.id:
            self._client.update_run(about.id, status="RUNNING")
            self._id = about.id
            return about.id
        tags = about.tags | {"mlflow.source.name": "fedsaddle"}
        if "commit" in tags:
            tags["mlflow.source.git.commit"] = tags["commit"]
        self._id = str(self._client.create_run(experiment, run_name=about.name, tags=tags).info.run_id)
        params = [self._entities.Param(k, str(v)[:6000]) for k, v in about.parameters.items()]
        for i in range(0, len(params), 100):  # MLflow takes no more at a time
            self._client.log_batch(self._id, params=params[i : i + 100])
        return self._id

    def _experiment(self, otherwise: str, files: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or otherwise
        found = self._client.get_experiment_by_name(name)
        return str(
            found.experiment_id if found else self._client.create_experiment(name, artifact_location=files)
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(k, v, now, round) for k, v in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, status: Status, result: Record) -> None:
        if status == "finished":
            self._client.log_dict(self._id, result, "result.json")
        named = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, named[status])
        store = self._client._tracking_client.store
        if hasattr(store, "engine"):  # a file, which MLflow would keep open as long as the process lives
            store.engine.dispose()


class WandB:
    """A run of Weights & Biases, offline unless WANDB_MODE says otherwise."""

    package, environment = "wandb", (("WANDB_ERROR_REPORTING", "false"),)

    def start(self, about: About) -> str:
        wandb = optional_import("wandb", "track = 'wandb'", _EXTRA)
        quiet = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, save_code=False, x_disable_stats=True,
            x_disable_meta=True, host="-",  # no command line, user or machine
        )  # fmt: skip
        about.folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE") or "offline"
        id = about.id or secrets.token_hex(6)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or about.group or "fedsaddle", group=about.group or None,
            name=about.name, id=id, dir=str(about.folder), mode=mode, config=about.parameters | {"tags": about.tags},
            tags=[about.tags["algorithm"], about.tags["problem"]], settings=quiet, reinit="create_new",
            resume="must" if about.id and mode == "online" else None,
        )  # fmt: skip
        return id

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log({"round": round, **values}, step=round)

    def end(self, status: Status, result: Record) -> None:
        if status == "finished":
            self._run.summary.update({"result": result})
        self._run.finish(exit_code={"finished": 0, "stopped": 255, "failed": 1}[status])


TRACKERS: dict[str, type[TensorBoard] | type[MLflow] | type[WandB]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def named(track: Track) -> dict[str, Tracker]:
    """The trackers that a user asks for, by name; refuses one that is unknown or not installed."""
    given = [track] if track is not None and not isinstance(track, list | tuple) else track or ()
    out: dict[str, Tracker] = {}
    for one in given:
        if one == "none":
            continue
        tracker: Tracker
        if isinstance(one, str):
            if one not in TRACKERS:
                raise FedsaddleError(f"train: track {one!r} is unknown; {nearest_or_all(one, TRACKERS)}")
            name, tracker = one, TRACKERS[one]()
            for variable, value in TRACKERS[one].environment:
                os.environ.setdefault(variable, value)
            optional_import(TRACKERS[one].package, f"track = {one!r}", _EXTRA)
        elif isinstance(one, Tracker):
            name, tracker = type(one).__name__, one
        else:
            rule = f"one of {', '.join(TRACKERS)}, or an object with start, log and end"
            raise FedsaddleError(f"train: track must be {rule}, got {type(one).__name__}")
        if name in out:
            raise FedsaddleError(f"train: track names {name!r} twice; once is enough")
        out[name] = tracker
    return out


# ------------------------------------------------------------------------------------------------ of a run


class Tracking:
    """The trackers of one run, which hear of each evaluated round once, whatever happens to the run or to them.

    Args:
        trackers: by name.
        out: the run's folder, if it has one.
        resume: whether the run goes on.
        config: what `Run.config` says of it.
        versions: of the packages that it depends on.
    """

    def __init__(
        self, trackers: Mapping[str, Tracker], out: Path | None, resume: bool, config: Record, versions: Mapping[str, str]
    ) -> None:  # fmt: skip
        self._trackers = dict(trackers)
        self._out, self._resume, self._config, self._versions = out, resume, config, versions
        self.sections: Record = {}  # of a config, beyond what Run.config has
        self.name = out.resolve().name if out is not None else config["algorithm"]["name"]
        self.group, self.folder = "", out
        self._told: dict[str, Record] = {}  # tracker -> id, and the last round that it was told
        self._started = False

    def log(self, record: Record) -> None:
        """A round, of which trackers are told if it was evaluated and they do not know it."""
        if not self._trackers or not record.keys() - {*names(Of.count, Of.parts)}:
            return
        if not self._started:
            self._start()
        values, r, before = _numbers(record), record["round"], json.dumps(self._told)
        for name in list(self._trackers):
            if r > self._told[name]["round"] and self._call(name, "log", r, values):
                self._told[name]["round"] = r
        if self._out is not None and json.dumps(self._told) != before:
            write_whole(self._out / TRACKED, json.dumps(self._told).encode() + b"\n")

    def finish(self, result: Callable[[], Record]) -> None:
        """The run has ended with this result."""
        if self._trackers and self._started:
            self._end("finished", result())

    def fail(self, error: BaseException) -> None:
        """The run has ended early."""
        self._end("stopped" if isinstance(error, KeyboardInterrupt | GeneratorExit) else "failed", {})

    def _end(self, status: Status, result: Record) -> None:
        for name in list(self._trackers) if self._started else ():
            self._call(name, "end", status, result)
        self._trackers = {}

    def _start(self) -> None:
        self._started = True
        folder = self.folder
        if folder is None:
            folder, self.group = Path("runs"), self.group or "fedsaddle"
            self.name = f"{self.name} {time.strftime('%Y-%m-%d %H-%M-%S')} {secrets.token_hex(2)}"
        if self._resume and self._out is not None:
            with suppress(OSError, ValueError, TypeError, KeyError):
                told = from_json((self._out / TRACKED).read_bytes())
                self._told = {k: {"id": str(v["id"]), "round": int(v["round"])} for k, v in told.items()}
        data = self.sections.get("data", {})
        federation = self._config["federation"]
        tags = {
            "algorithm": self._config["algorithm"]["name"],
            "problem": self._config["problem"]["name"],
            "data": str(
                data.get("name") or data.get("file") or data.get("files") or federation["fingerprint"]
            ),
            **self._versions,
        } | _commit()
        about = About(self.name, self.group, folder, flat({**self.sections, **self._config}), tags)
        for name in list(self._trackers):
            known = self._told.setdefault(name, {"id": "", "round": -1})
            found = self._call(name, "start", about._replace(**known))
            if found:
                known["id"] = str(found[0] or "")

    def _call(self, name: str, what: str, *arguments: Any) -> list[Any]:
        """What a tracker answers, in a list; nothing, and a warning, if it fails, after which it is left alone."""
        try:
            return [getattr(self._trackers[name], what)(*arguments)]
        except Exception as error:  # of a package, a disk or a server that the run does not need
            warn(
                f"track: {name} failed ({type(error).__name__}: {first_line(error)}); the run goes on without it"
            )
            tracker = self._trackers.pop(name)
            if what == "log":  # it was begun, and may hold files and threads
                with suppress(Exception):
                    tracker.end("failed", {})
            return []


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, by name; what is undefined is left out."""
    return {
        k: float(v)
        for k, v in record.items()
        if k != "round" and isinstance(v, int | float) and math.isfinite(v)
    }


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Nested tables with keys such as algorithm.lr."""
    if isinstance(tree, list) and any(isinstance(v, dict) for v in tree):
        tree = {str(i): v for i, v in enumerate(tree)}
    if not isinstance(tree, dict):
        return {path: "none" if tree is None else str(tree) if isinstance(tree, list | tuple) else tree}
    return {k: v for name, value in tree.items() for k, v in flat(value, f"{path}.{name}".strip(".")).items()}


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _file_name(name: str) -> str:
    return re.sub(r"[^\w .,=()+-]+", "_", name)


@contextmanager
def _one_at_a_time(file: Path | None) -> Iterator[None]:
    """Processes of one sweep make a store one after another, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        file = None
    if file is None:
        yield
        return
    with open(file, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        yield


def _commit() -> dict[str, str]:
    """The commit that the current folder is at, if it is under git."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return {"commit": done.stdout.strip()}
    return {}
