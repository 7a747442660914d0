"""A run's folder: what a run writes, so that a crash at any moment loses no more than the rounds since the last checkpoint.

    config.toml             what was asked for (config.py)
    history.jsonl           a record a round; the same run writes the same bytes
    seconds.jsonl           when each record was written
    checkpoint/index.json   the checkpoints, newest last, with their checksums, and to which round a guard goes back
    checkpoint/*.safetensors
    model.safetensors, result.json, report.html     when the run has ended
    scores.csv              with them, the test samples and their scores (scores.py)
    clients.csv             with them, a line a client: its rows, and its metrics (client_table.py)
    tangent.safetensors     with them, where the samples are tangent features: what computes those of new ones
    stopped.json            why the run ended early, where it could still say so

Whole files replace the ones before in one step. A process holds a lock on its folder, so that two never write into one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedsaddle.errors import FedsaddleError, similar_file
from fedsaddle.parse import from_json

_KEPT = 2  # checkpoints
HISTORY, SECONDS, CHECKPOINTS, INDEX, LOCK, TANGENT, SCORES, STOPPED = (
    "history.jsonl",
    "seconds.jsonl",
    "checkpoint",
    "index.json",
    ".lock",
    "tangent.safetensors",
    "scores.csv",
    "stopped.json",
)
CLIENTS = "clients.csv"
RUN_FILES = (
    "config.toml", HISTORY, CHECKPOINTS, "result.json", "model.safetensors", TANGENT, SCORES, CLIENTS, "report.html",
)  # fmt: skip

Record = dict[str, Any]


class Stopped(NamedTuple):
    """Why a run ended early."""

    message: str
    round: int | None  # that of the last checkpoint
    diverged: bool
    lr: float | None  # a step size to begin anew with, where the algorithm has one
    remote: bool  # whether it was a deployment
    probed: bool = True  # whether `fedsaddle probe` takes its problem

    def remedy(self, folder: Path) -> str:
        """How to go on from the last checkpoint, or to begin anew where the same round would diverge again."""
        if self.round is None:
            return ""
        file = folder / "config.toml"
        if self.diverged and (self.lr is None or not file.exists()):
            return f"resuming would diverge again; the rounds before that are in {folder}"
        if self.diverged and self.lr is not None:
            command = f"fedsaddle {'deploy run' if self.remote else 'run'} {file}"
            anew = f"{command} --set algorithm.lr={self.lr:g}"
            probe = f"fedsaddle probe {file} measures which steps suit; or " if self.probed else ""
            return f"resuming would diverge again; {probe}begin anew with a smaller step, such as: {anew}"
        command = f"fedsaddle resume {folder}" if file.exists() else "fs.train(..., out=, resume=True)"
        return f"{command} goes on after round {self.round}"


class Folder:
    """The folder of one run.

    Args:
        path: where; made if it is missing.
        resume: whether the run goes on from its last checkpoint; else the folder must not hold a run.
    """

    def __init__(self, path: Path, resume: bool = False) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        if not resume and (path / HISTORY).exists():
            raise FedsaddleError(f"{path}: already holds a run; choose another folder")
        if resume and not (path / HISTORY).exists():
            raise FedsaddleError(f"{path}: holds no run that could go on; name the folder of a run")

    def __enter__(self) -> Folder:
        self.path.mkdir(parents=True, exist_ok=True)
        busy = f"{self.path}: another process is writing this run; wait for it, or stop it"
        self._lock = locked(self.path, busy)
        self._tidy()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            with suppress(OSError):
                (self.path / LOCK).unlink()
            self._lock.close()
            self._lock = None

    def stopped(self, why: Stopped) -> None:
        """Write down why the run ends early."""
        with suppress(FedsaddleError):  # such as a full disk, which may be why
            write_whole(self.path / STOPPED, json.dumps(why._asdict(), indent=1).encode() + b"\n")

    # ---- records -----------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Write down a round; its time goes into a file of its own."""
        lasting = {k: v for k, v in record.items() if k != "seconds"}
        _append(self.path / HISTORY, lasting)
        _append(self.path / SECONDS, {"round": record["round"], "seconds": record["seconds"]})

    def rewind(self, rounds: int) -> list[Record]:
        """Drop what was written after so many rounds, and why the run stopped; the records that stay."""
        lines = (self.path / HISTORY).read_bytes().splitlines(keepends=True)[: rounds + 1]
        try:
            records: list[Record] = [from_json(line) for line in lines]
            whole = [record["round"] for record in records] == list(range(rounds + 1))
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise FedsaddleError(
                f"{self.path / HISTORY}: does not have the rounds 0 to {rounds} that the checkpoint follows; it was changed"
            )
        times = _seconds(self.path / SECONDS, rounds)
        (self.path / STOPPED).unlink(missing_ok=True)
        entries = self._index()
        if stay := [e for e in entries if e["round"] <= rounds]:  # the others follow rounds that are dropped
            self._list(stay)
        write_whole(self.path / HISTORY, b"".join(lines))
        write_whole(
            self.path / SECONDS, b"".join(_line({"round": r, "seconds": s}) for r, s in enumerate(times))
        )
        return [record | {"seconds": s} for record, s in zip(records, times, strict=True)]

    # ---- checkpoints -------------------------------------------------------------------------------------

    def save(self, rounds: int, data: bytes, fallback: int | None = None) -> None:
        """Keep a checkpoint, and drop the oldest.

        Args:
            fallback: the round to whose checkpoint a guard goes back from there, which stays too.
        """
        folder = self.path / CHECKPOINTS
        folder.mkdir(exist_ok=True)
        name = f"round-{rounds:07d}.safetensors"
        for file in (HISTORY, SECONDS):  # what the checkpoint follows lasts before it does
            _settle(self.path / file)
        write_whole(folder / name, data)
        entry: Record = {"file": name, "round": rounds, "sha256": hashlib.sha256(data).hexdigest()}
        if fallback is not None:
            entry["fallback"] = fallback
        entries = [*(e for e in self._index() if e["round"] < rounds), entry]
        newest = entries[-_KEPT:]
        needed = {e.get("fallback") for e in newest}
        entries = [e for e in entries if e in newest or e["round"] in needed]
        self._list(entries)
        self._tidy()

    def _list(self, entries: list[Record]) -> None:
        write_whole(self.path / CHECKPOINTS / INDEX, json.dumps(entries, indent=1).encode() + b"\n")

    def _tidy(self) -> None:
        """Remove checkpoints that are not in the index, and what a crash has left half written."""
        kept = {INDEX, *(entry["file"] for entry in self._index())}
        unlisted = [f for f in self.path.glob(f"{CHECKPOINTS}/*") if f.name not in kept]
        for file in (*unlisted, *self.path.glob("*.tmp")):
            with suppress(OSError):
                file.unlink()

    def fallback(self, rounds: int) -> tuple[int, bytes] | None:
        """The round to which a guard goes back from the checkpoint after so many rounds, and its checkpoint.

        None where there was no guard, or an older fedsaddle that did not keep it.
        """
        entries = {e["round"]: e for e in self._index()}
        entry = entries.get(entries.get(rounds, {}).get("fallback"))
        data = entry and self._whole(entry)
        return (entry["round"], data) if entry and data else None

    def _whole(self, entry: Record) -> bytes | None:
        """A checkpoint of the index; None where it is not as it was written."""
        with suppress(OSError):
            data: bytes = (self.path / CHECKPOINTS / entry["file"]).read_bytes()
            if hashlib.sha256(data).hexdigest() == entry["sha256"]:
                return data
        return None

    def latest(self) -> bytes:
        """The newest checkpoint that is whole."""
        entries = self._index()
        with suppress(OSError):  # a history that was cut off is older than the newest checkpoint
            written = (self.path / HISTORY).read_bytes().count(b"\n")
            entries = [e for e in entries if e["round"] < written] or entries
        for entry in reversed(entries):
            if data := self._whole(entry):
                return data
        if not entries:
            raise FedsaddleError(
                f"{self.path}: has no checkpoint; a run writes its first one after its set-up, unless checkpoint_every is 0"
            )
        raise FedsaddleError(
            f"{self.path / CHECKPOINTS}: no checkpoint is as it was written; all are damaged"
        )

    def _index(self) -> list[Record]:
        try:
            entries = from_json((self.path / CHECKPOINTS / INDEX).read_bytes())
            return [e for e in entries if _plain(e["file"]) and {"round", "sha256"} <= e.keys()]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError, AttributeError):
            raise FedsaddleError(
                f"{self.path / CHECKPOINTS / INDEX}: is not an index of checkpoints"
            ) from None


@contextmanager
def new_folder(out: Path, numbered: bool) -> Iterator[Path]:
    """A folder for a run, gone again if the run fails before its first record."""
    folder, made = out, not out.exists()
    if numbered:
        out.parent.mkdir(parents=True, exist_ok=True)
        for n in itertools.count(2):
            try:
                folder.mkdir()  # fails if it is there, also if another process made it just now
                made = True
                break
            except FileExistsError:
                folder = out.with_name(f"{out.name}-{n}")
    else:
        for file in RUN_FILES:
            if (folder / file).exists():
                raise FedsaddleError(f"{out}: already holds a run ({file}); choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException as error:
        if (folder / HISTORY).exists():
            if not (folder / CHECKPOINTS).exists():  # else the run says how to go on
                error.add_note(f"the rounds before that are in {folder}")
        else:
            with suppress(OSError):
                for file in ("config.toml", LOCK):
                    (folder / file).unlink(missing_ok=True)
                if made:
                    folder.rmdir()
        raise


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, ended or not."""
    return (folder / HISTORY).exists() or (folder / "result.json").exists()


def unfinished(folder: Path) -> bool:
    """Whether a folder holds a run that was begun and has not ended."""
    return (folder / HISTORY).exists() and not (folder / "result.json").exists()


def going_on(folder: Path) -> str:
    """Why a run ended early, if it said so, and how to go on with it (or begin anew), behind a semicolon."""
    with suppress(OSError, ValueError, TypeError):
        why = Stopped(**from_json((folder / STOPPED).read_bytes()))
        return "".join(f"; {text}" for text in (why.message, why.remedy(folder)) if text)
    return f"; fedsaddle resume {folder} goes on" if (folder / "config.toml").exists() else ""


def read_result(folder: Path) -> Record:
    """The result.json of a run that has ended."""
    _check_there(folder)
    try:
        result: Record = from_json((folder / "result.json").read_bytes())
        if not {"config", "metrics"} <= result.keys():
            raise ValueError
    except FileNotFoundError:
        why = "the run did not finish" if unfinished(folder) else "it is not a run"
        raise FedsaddleError(f"{folder}: has no result.json, {why}{going_on(folder)}") from None
    except (ValueError, AttributeError):
        raise FedsaddleError(f"{folder / 'result.json'}: is not the result of a run") from None
    return result


def auc_interval(result: Record) -> str:
    """Between what a run's test AUC may lie, as text; nothing where that is unknown."""
    ends = result.get("auc_interval")  # an older fedsaddle wrote none
    return between(*ends) if ends else ""


def between(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def check_begun(folder: Path) -> None:
    """Refuse to go on in a folder that has no config to go on by."""
    _check_there(folder)
    if not (folder / "config.toml").is_file():
        begun = (folder / HISTORY).exists()
        remedy = (
            "fs.train(..., out=, resume=True) goes on with its own runs"
            if begun
            else "name the folder of a run"
        )
        raise FedsaddleError(f"{folder}: has no config.toml{'' if begun else ', it is not a run'}; {remedy}")


def _check_there(folder: Path) -> None:
    if not folder.is_dir():
        hint = similar_file(folder) or "name the folder of a run"
        raise FedsaddleError(f"{folder}: is not a folder; {hint}")


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file so that a reader, and a crash at any moment, finds the old one or the new one.

    Args:
        mode: who may read and write it, as far as the system's own mask lets them; from the first moment on.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # other processes may write the same file
    try:
        temporary.unlink(missing_ok=True)  # one that a crash has left may have another mode
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _settle(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _append(path: Path, record: Record) -> None:
    try:
        with open(path, "ab") as file:
            file.write(_line(record))
    except OSError as error:
        raise _unwritable(path, error) from error


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _unwritable(path: Path, error: OSError) -> FedsaddleError:
    return FedsaddleError(f"{path}: cannot be written ({error.strerror or error})")


def _settle(folder: Path) -> None:
    """Make a file, or the names in a folder, last through a loss of power, where the system can."""
    with suppress(OSError, AttributeError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _seconds(path: Path, rounds: int) -> list[float]:
    """When each record was written; what is missing or cut off took no time."""
    times = [0.0] * (rounds + 1)
    with suppress(OSError, ValueError, KeyError, TypeError):
        for line in path.read_bytes().splitlines():
            entry = from_json(line)
            if 0 <= entry["round"] <= rounds:
                times[entry["round"]] = float(entry["seconds"])
    return times


def _plain(name: str) -> bool:
    """Whether a name is that of a file in the same folder."""
    return name == os.path.basename(name) and name not in ("", ".", "..")


def locked(folder: Path, busy: str) -> IO[bytes] | None:
    """A lock that the system drops when this process ends, however that happens; None where it has no such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    while True:
        file = open(folder / LOCK, "ab")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == os.stat(folder / LOCK).st_ino:
                return file
        except FileNotFoundError:
            pass  # the one before has just removed it
        except BlockingIOError:
            file.close()
            raise FedsaddleError(busy) from None
        except OSError:  # this file system has none
            file.close()
            with suppress(OSError):
                (folder / LOCK).unlink()
            return None
        file.close()


@contextmanager
def held(path: Path) -> Iterator[IO[bytes]]:
    """A file at its end, to read and add to; others that ask for it so wait, as far as the system has such locks."""
    with open(path, "a+b") as file:  # closing it lets it go
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, os.SEEK_END)  # which has moved if another process wrote meanwhile
        yield file


def differing(before: Any, now: Any, path: Sequence[str] = ()) -> list[str]:
    """The keys at which two trees of plain values differ, such as "algorithm.lr (0.1, now 0.2)"."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [d for k in keys for d in differing(before.get(k), now.get(k), (*path, str(k)))]
    if before == now:
        return []
    return [f"{'.'.join(path)} ({_short(before)}, now {_short(now)})"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
