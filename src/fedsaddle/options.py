"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedsaddle.errors import FedsaddleError, similar_file
from fedsaddle.parse import read_toml
from fedsaddle.toml import to_value

ConfigFile = Annotated[
    Path,
    typer.Argument(metavar="FILE.toml", help="The run's config; fedsaddle new writes one."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a key: algorithm.lr=0.05; may be repeated."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="A new folder; else runs/NAME, or runs/NAME-2 if that is there, which is kept."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the folder.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help="Also tell tensorboard, mlflow or wandb of the rounds; may be repeated.",
    ),
]


def assigned(assignments: Sequence[str] | None, track: Sequence[str] | None = None) -> list[str]:
    """--set and --track as assignments."""
    return [*(assignments or ()), *([f"train.track={to_value(list(track))}"] if track else ())]


def check_config(file: Path) -> None:
    """Refuse a file that is not there, or is no TOML, before torch is loaded."""
    try:
        read_toml(file)
    except FileNotFoundError as error:
        hint = similar_file(file) or "fedsaddle new writes a first config"
        raise FedsaddleError(f"{file}: {error.strerror}; {hint}") from None
