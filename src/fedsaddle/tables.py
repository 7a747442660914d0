"""Numbers and tables as text, for the command line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any


def number(value: Any) -> str:
    if value is None:
        return "undefined"
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"
    return str(value)


def room() -> int | None:
    """The width of the terminal; None where the output is read by no one, or by a program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def aligned(rows: Sequence[Sequence[str]], width: int | None = None, keep: int = 1) -> list[str]:
    """Lines of rows in aligned columns.

    Args:
        width: of a line. Columns for which there is no room follow below, behind the first ones again.
        keep: how many columns are the first ones.

    Example:
        >>> aligned([["run", "AUC", "rounds"], ["a", "0.81", "100"]])
        ['run  AUC   rounds', 'a    0.81  100']
        >>> aligned([["run", "AUC", "rounds"], ["a", "0.81", "100"]], width=12)
        ['run  AUC', 'a    0.81', '', 'run  rounds', 'a    100']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = list(range(keep))
    blocks: list[list[int]] = [[]]
    for i in range(keep, len(widths)):
        taken = [*first, *blocks[-1], i]
        if blocks[-1] and width is not None and sum(widths[k] + 2 for k in taken) - 2 > width:
            blocks.append([])
        blocks[-1].append(i)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += ["  ".join(row[k].ljust(widths[k]) for k in (*first, *block)).rstrip() for row in rows]
    return lines
