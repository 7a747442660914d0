"""What is shown on stderr while something goes on; by default where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedsaddle.measures import MAIN

Record = dict[str, Any]


def _shown(show: bool | None) -> bool:
    return sys.stderr.isatty() if show is None else show


class _Bar:
    """How much of a total is done, with a note and the time that is left; nothing when it is off."""

    def __init__(self, show: bool | None, title: str, total: int, note: str) -> None:
        self.bar: Any = None
        if not _shown(show):
            return
        from rich import progress
        from rich.console import Console

        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"), progress.TimeRemainingColumn(), console=Console(stderr=True),
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self.task = self.bar.add_task(title, total=total, note=note)

    def start(self) -> None:
        if self.bar is not None:
            self.bar.start()

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


class RoundsBar(_Bar):
    """A progress bar with rounds a second, the leading metric and bytes."""

    def __init__(self, show: bool | None, title: str, rounds: int) -> None:
        super().__init__(show, title, rounds, note="")
        self.metric = ""

    def __enter__(self) -> RoundsBar:
        self.start()
        return self

    def update(self, record: Record) -> None:
        if self.bar is None:
            return
        for name in MAIN:
            if record.get(name) is not None:
                self.metric = f"{name} {record[name]:.4g}"
                break
        rate = record["round"] / max(record["seconds"], 1e-9)
        moved = human_bytes(record["bytes_down"] + record["bytes_up"])
        self.bar.update(
            self.task, completed=record["round"], note=f"{rate:.1f} rounds/s  {self.metric}  {moved}"
        )


class RunsBar(_Bar):
    """A progress bar over runs."""

    def __init__(self, show: bool | None, total: int, title: str) -> None:
        super().__init__(show, title, total, note="runs")
        self.title, self.runs = title, 0.0

    def __enter__(self) -> Callable[[float, str], None]:
        self.start()
        return self._tick

    def _tick(self, n: float, text: str) -> None:
        self.runs += n
        if self.bar is not None:  # the column cuts digits off
            self.bar.update(
                self.task,
                completed=round(self.runs, 6),
                description=", ".join(filter(None, (self.title, text))),
            )


@contextmanager
def spinner(what: str, show: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Says on stderr what goes on, by default where that is a terminal, and is gone in the end; call it with more to say."""
    if not _shown(show):
        yield lambda text: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with progress.Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(what)
        yield lambda text: bar.update(task, description=f"{what}, {text}")


def human_bytes(n: float) -> str:
    """1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"
