"""Where data files lie, and how they get there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

from fedsaddle.data.dataset import DatasetInfo, File, Layout
from fedsaddle.errors import FedsaddleError

CHUNK = 1 << 18
TIMEOUT_S = 30.0


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the argument, else the variable FEDSADDLE_DATA, else ~/.cache/fedsaddle."""
    chosen = data_dir or os.environ.get("FEDSADDLE_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedsaddle"


def locate(
    info: DatasetInfo, data_dir: str | os.PathLike[str] | None
) -> tuple[Layout, Mapping[str, Sequence[Path]]] | None:
    """The first layout whose needed files are all there, with their paths; None when there is none."""
    folder = data_folder(data_dir) / info.folder
    for layout in info.layouts:
        needed = [file for file in layout.unique_files() if not file.optional]
        if all((folder / file.name).is_file() for file in needed):
            there = {part: [folder / f.name for f in files] for part, files in layout.files.items()}
            return layout, {
                part: paths for part, paths in there.items() if all(path.is_file() for path in paths)
            }
    return None


def missing(info: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> FedsaddleError:
    """The error for files that are not there: where they were looked for and how to get them."""
    folder = data_folder(data_dir) / info.folder
    ways = [", ".join(f.name for f in layout.unique_files() if not f.optional) for layout in info.layouts]
    remedy = (
        "set FEDSADDLE_DATA to a folder that has them or load with download=True (data.download in a config)"
    )
    return FedsaddleError(f"{info.name}: found no {' or '.join(ways)} in {folder}: {remedy}")


def fetch(info: DatasetInfo, data_dir: str | os.PathLike[str] | None, check: Callable[[], object]) -> Path:
    """Download the files of the set's last layout that are not there yet.

    A file goes to a temporary name, is checked and then renamed, so a broken download never looks like
    data. Where upstream publishes no digest, `check` (the numbers of rows) must pass, and the digest is
    recorded in `<file>.sha256`.
    """
    folder = data_folder(data_dir) / info.folder
    files = info.layouts[-1].unique_files()
    new: list[File] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            if not (folder / file.name).is_file():
                _download(info.name, file, folder / file.name)
                new.append(file)
    except OSError as error:
        raise FedsaddleError(
            f"{info.name}: cannot write to {folder} ({error}): pass another data_dir"
        ) from error
    unrecorded = [file for file in new if not file.digest and not _record(folder / file.name).exists()]
    if unrecorded:
        try:
            check()
        except FedsaddleError:
            for file in unrecorded:
                (folder / file.name).unlink(missing_ok=True)
            raise
        for file in unrecorded:
            digest = _digest(folder / file.name, "sha256")
            _record(folder / file.name).write_text(f"{digest}  {file.name}\n")
    return folder


def verify(info: DatasetInfo, file: File, path: Path) -> bool:
    """Compare a file with its known digest, or with the one recorded at its first download; whether there is one."""
    record = _record(path)
    expected, origin = file.digest, "known"
    if not expected and record.is_file():
        expected, origin = "sha256:" + record.read_text().split()[0], f"recorded in {record.name}"
    if not expected:
        return False
    method, _, want = expected.partition(":")
    got = _digest(path, method)
    if got != want:
        detail = f"{method} {got[:16]}... but {want[:16]}... is {origin}"
        raise FedsaddleError(f"{info.name}: {file.name} has {detail}: delete it and download it again")
    return True


def _record(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path, method: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, method).hexdigest()


def _download(name: str, file: File, target: Path) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    by_hand = f"try again later, or save it by hand as {target}"
    try:
        request = urllib.request.Request(file.url, headers={"User-Agent": "fedsaddle"})
        with (
            urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply,
            part.open("wb") as sink,
            Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        ):
            total = int(reply.headers.get("Content-Length") or 0) or None
            bar = progress.add_task(file.name, total=total)
            done = 0
            while block := reply.read(CHUNK):
                sink.write(block)
                done += len(block)
                progress.update(bar, completed=done)
        if total is not None and done != total:
            raise FedsaddleError(f"{name}: {file.url} broke off after {done} of {total} bytes: {by_hand}")
        _check_download(name, file, target, part)
        part.replace(target)
    except urllib.error.HTTPError as error:
        raise FedsaddleError(f"{name}: {file.url} answers {error.code} {error.reason}: {by_hand}") from error
    except PermissionError:
        raise
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FedsaddleError(f"{name}: cannot download {file.url} ({reason}): {by_hand}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _check_download(name: str, file: File, target: Path, part: Path) -> None:
    """Refuse a download whose digest is not the published one, or not the one of the first download."""
    expected, origin = file.digest, "expected"
    if not expected and _record(target).is_file():
        expected, origin = (
            "sha256:" + _record(target).read_text().split()[0],
            f"recorded in {_record(target)}",
        )
    if not expected:
        return
    method, _, want = expected.partition(":")
    got = _digest(part, method)
    if got != want:
        detail = f"{method} {got[:16]}..., {origin} is {want[:16]}..."
        raise FedsaddleError(
            f"{name}: {file.url} gave a file with {detail}: not kept; try again or check the source"
        )
