"""How client work is executed on one machine: eagerly, with its local step compiled, as a recorded CUDA graph, or both.

All compute the same work on the same minibatches. Client work is pure: it reads its cohort and its message and nothing
else that changes. So the whole of it (drawing, gathering, local steps, variates) can be recorded once as a CUDA graph and
replayed with new tensors copied into the recorded places.

On a GPU the same run gives the same bits again: only algorithms that repeat are used, as far as PyTorch has them, and it
warns where it has none.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedsaddle.clients import Work
from fedsaddle.cohort import Cohort
from fedsaddle.errors import first_line, warn
from fedsaddle.problem import tree_map

PRECISIONS = {
    "full": "as the run's dtype says",
    "tf32": "float32 matrix products with 10-bit mantissas (NVIDIA TF32); everything else as it is",
    "bf16": "matrix products and convolutions in bfloat16; parameters, variates and losses stay in the run's dtype",
}


class Execution:
    """Calls client work.

    Args:
        compile: compile the local step with torch.compile (half a minute the first time).
        graph: record the work as a CUDA graph; None: on a GPU.
        precision: one of PRECISIONS.
    """

    def __init__(
        self, device: torch.device, compile: bool = False, graph: bool | None = None, precision: str = "full"
    ) -> None:
        self._compile, self._device, self._precision = compile, device, precision
        self._graphs = Graphs() if device.type == "cuda" and graph is not False else None

    def __call__(self, work: Work, message: Any, cohort: Cohort) -> tuple[Any, Any]:
        cohort.compile = self._compile
        with torch.no_grad(), self._reduced(), repeatable(self._device):
            return self._graphs(work, message, cohort) if self._graphs is not None else work(cohort, message)

    @contextmanager
    def _reduced(self) -> Iterator[None]:
        if self._precision == "bf16":
            with torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False):
                yield
        elif self._precision == "tf32":
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high")
            try:
                yield
            finally:
                torch.set_float32_matmul_precision(before)
        else:
            yield


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """On a GPU: algorithms whose bits are the same each time, in place of those that add in any order."""
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # what cuBLAS asks for; read at its first call
    was, only_warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=not was or only_warned)
    memory.fill_uninitialized_memory = was and filled  # costs a write, and nothing here reads unset memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=only_warned)
        memory.fill_uninitialized_memory = filled


class Graphs:
    """Call work by replaying a CUDA graph of it; one graph for each kind of work, shape and plain Python value."""

    def __init__(self) -> None:
        self._recorded: dict[Any, Recording | None] = {}

    def __call__(self, work: Work, message: Any, cohort: Cohort) -> tuple[Any, Any]:
        key = (work.__qualname__, id(getattr(work, "__self__", None)), _signature((message, cohort.inputs())))
        if key not in self._recorded:
            try:
                self._recorded[key] = Recording(work, message, cohort)
            except torch.OutOfMemoryError:
                raise  # a sweep goes on with fewer runs at once, which costs less than eager work
            except RuntimeError as error:
                warn(f"{work.__name__} cannot be a CUDA graph and runs eagerly: {first_line(error)}")
                self._recorded[key] = None
        recording = self._recorded[key]
        return work(cohort, message) if recording is None else recording.replay(message, cohort)


class Recording:
    """A CUDA graph of one piece of client work, with the places where its inputs go and its outputs appear."""

    def __init__(self, work: Work, message: Any, cohort: Cohort) -> None:
        # keeps the algorithm alive, whose id is part of the key, and the problem, whose numbers may be tensors
        self.work, self.problem = work, cohort.problem
        self.message = tree_map(torch.clone, message)
        self.inputs = tree_map(torch.clone, cohort.inputs())
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm up outside the recording, as PyTorch asks
            rehearsal = cohort.at(self.inputs)
            rehearsal.rehearsing = True
            work(rehearsal, self.message)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with _uncollected(), torch.cuda.graph(self.graph):
            self.outputs = work(cohort.at(self.inputs), self.message)

    def replay(self, message: Any, cohort: Cohort) -> tuple[Any, Any]:
        tree_map(_copy, (self.message, self.inputs), (message, cohort.inputs()))
        self.graph.replay()
        out: tuple[Any, Any] = tree_map(torch.clone, self.outputs)
        return out


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: freeing an earlier recording or pinned memory would spoil the one that is being made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _copy(place: Tensor, value: Tensor) -> Tensor:
    return place.copy_(value)


def _signature(tree: Any) -> Any:
    """Shapes and precisions of tensors, and all other values."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape), tree.dtype
    return tuple(_signature(part) for part in tree) if isinstance(tree, tuple) else tree
