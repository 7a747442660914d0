"""torch.compile as this library uses it: for steps of local loops, and what is drawn for them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedsaddle.errors import first_line, warn

_OURS = re.compile(r"G\['__import_(torch|fedsaddle)(_dot_|')")  # a global of these, as the compiler names it


@functools.cache
def compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """torch.compile of a function, one version for each shape; eager, with a warning, where there is no compiler."""
    if not _can_compile():
        return function
    # one version for each shape, algorithm, and constant of an algorithm or problem; past the limit the compiler gives up
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    # on a CPU kernels are short, and calling them one by one from Python would be a fifth of a round of a small model
    options: dict[str, Any] = {"cpp_wrapper": device == "cpu"}
    if hasattr(torch.compiler, "skip_guard_on_globals_unsafe"):  # else PyTorch is too old to be told
        options["guard_filter_fn"] = _worth_checking
    return torch.compile(function, dynamic=False, options=options)


def _worth_checking(guards: Sequence[Any]) -> list[bool]:
    """What a compiled version was made for, that each call must check: all but the globals of this library and of PyTorch.

    These are taken not to change while a program runs; checking them took longer than a step of a small model. Those that a
    user's own functions use are checked.
    """
    return [not (g.is_global and _OURS.search(g.name)) for g in guards]


@functools.cache
def _can_compile() -> bool:
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(1))
        return True
    except Exception as error:  # whatever is missing: a C++ compiler, Triton, a supported platform
        reason = f"{type(error).__name__}: {first_line(error)}"
        warn(f"compile: not available here, running eagerly ({reason})")
        return False
