"""The processes of a deployment: how they are started and stopped, and Flower's two programs. None outlives its parent.

This file is also the script that they run, by its path: it imports Flower alone, and so starts without PyTorch.

    python -P program.py superlink PARENT [Flower's options]
    python -P program.py supernode PARENT INTERVAL [Flower's options]

PARENT is the process that started it. A SuperNode's pauses between two looks (for a message, for the answer to a task, for a
piece of a message) are INTERVAL seconds at most, where that is less than Flower's own.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

Process = subprocess.Popen[bytes]

LOCAL_INTERVAL = 0.3  # where server and sites are one machine
STOCK_INTERVAL = 3.0  # seconds between two looks of Flower's SuperNode for messages
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_GOODBYE = 10.0  # seconds that a process has to end by itself


def start(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Process:
    """Start Python; what it says goes to the end of a file, and a Ctrl-C at the terminal does not go to it."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(*processes: Process, by: signal.Signals = signal.SIGINT) -> None:
    """Tell processes to end, and wait until they have."""
    for process in processes:
        process.send_signal(by)
    for process in processes:
        try:
            process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_with(parent: int) -> None:
    """Interrupt this process when the one that started it has gone, and end it if that does not help."""

    def watch() -> None:
        # a dead parent keeps its number until it is waited for, but not its children
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(_GOODBYE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def flower(kind: Sequence[str], options: Sequence[str], log: Path, **environment: str) -> Iterator[Process]:
    """Flower's SuperLink or SuperNode, for as long as this.

    Args:
        kind: "superlink"; or "supernode" and its interval.
        options: Flower's own.
        log: what it says is added to this file.
    """
    command = ["-P", __file__, kind[0], str(os.getpid()), *kind[1:], *options]
    process = start(command, log, ENVIRONMENT | environment)
    try:
        yield process
    finally:
        stop(process)


# ---- in the process ------------------------------------------------------------------------------------------


def _superlink() -> None:
    from flwr.superlink.cli.flower_superlink import flower_superlink

    flower_superlink()


def _supernode(interval: float) -> None:
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.supernode import start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    if interval < STOCK_INTERVAL:
        pause = types.SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, interval)))
        pull = functools.partial(pull_objects, initial_backoff=min(1, interval / 4))
        vars(node).update(time=pause, pull_objects=pull)
    flower_supernode()
    os._exit(1)  # its connection has ended; the server for tasks would run on


if __name__ == "__main__":
    kind, parent, *rest = sys.argv[1:]
    end_with(int(parent))
    if kind == "superlink":
        sys.argv[1:] = rest
        _superlink()
    else:
        sys.argv[1:] = rest[1:]
        _supernode(float(rest[0]))
