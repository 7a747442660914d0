"""The processes that torchrun has started: which of them this is, and which one speaks. Without torch, unless one fails."""

from __future__ import annotations

import os
import time
from datetime import timedelta


def rank() -> int:
    """This process's number among those that torchrun has started; 0 without torchrun."""
    return int(os.environ.get("RANK", 0))


def first_to_fail() -> bool:
    """Whether no other process of this torchrun has reported an error yet: one of those that fail says its line."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return rank() == 0
    if rank() > 0:
        time.sleep(0.5)  # the first process, which knows of the run's folder, goes first
    from torch import distributed

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = distributed.TCPStore(host, port, timeout=timedelta(seconds=5))  # type: ignore[attr-defined]
        return store.add(f"fedsaddle/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", 1) == 1
    except RuntimeError:
        return True
