"""A run's machine: from the names that a user gives to the engine that computes it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedsaddle.clients import Clients, Task
from fedsaddle.engines import ENGINES, Engine
from fedsaddle.engines.execution import PRECISIONS
from fedsaddle.engines.simulation import Simulation
from fedsaddle.engines.torchrun import Torchrun
from fedsaddle.errors import FedsaddleError, require, warn
from fedsaddle.toml import in_line


class Machine(NamedTuple):
    """Where and how a run is computed; none of it changes minibatches."""

    engine: str | Engine
    device: torch.device
    dtype: torch.dtype
    precision: str
    compile: bool
    chunk: int | None
    offload: bool
    aggregation: str = "mean"

    def check(self) -> None:
        """Refuse what is unknown, or no number of clients."""
        known = isinstance(self.engine, Engine) or self.engine in ENGINES
        require("engine", known, f"one of {', '.join(ENGINES)}", self.engine)
        require("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}", self.precision)
        require("chunk", self.chunk is None or self.chunk >= 1, ">= 1 (or None for all)", self.chunk)

    @property
    def name(self) -> str:
        return self.engine if isinstance(self.engine, str) else self.engine.name

    def clients(self, task: Task) -> Clients:
        """A run's clients, wherever they are."""
        if not isinstance(self.engine, Engine):
            return self.simulation(task)
        clients = self.engine.clients(task)
        if clients.remote:
            self._warn_of_sites()
        return clients

    def _warn_of_sites(self) -> None:
        """Say which settings of the machine have no effect at sites."""
        plain = {"device": "cpu", "precision": "full", "compile": False, "chunk": None, "offload": False}
        given = {k: str(v) if isinstance(v := getattr(self, k), torch.device) else v for k in plain}
        if odd := {k: v for k, v in given.items() if v != plain[k]}:
            has, it = ("has", "it") if len(odd) == 1 else ("have", "them")
            warn(
                f"train: sites compute on the CPU, eagerly, in full precision and each alone, so {in_line(odd)} {has} no "
                f"effect in a deployment: leave {it} out"
            )

    def simulation(self, task: Task) -> Simulation:
        """Clients simulated on this machine, of one run or of replicas."""
        chunk = 1 if self.engine == "serial" else self.chunk
        kind = Torchrun if self.engine == "torchrun" else Simulation
        return kind(
            task, chunk=chunk, device=self.device, compile=self.compile, precision=self.precision, offload=self.offload,
        )  # fmt: skip


def dtype_named(name: str | torch.dtype) -> torch.dtype:
    """The precision of a run's state."""
    known = {"float32": torch.float32, "float64": torch.float64}
    if isinstance(name, torch.dtype):
        name = str(name).removeprefix("torch.")
    if name not in known:
        raise FedsaddleError(f"train: dtype must be float32 or float64, got {name}")
    return known[name]
