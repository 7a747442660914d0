"""What several test files share: the command line in this process, and a generator that each test finds alike."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedsaddle import cli


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture(autouse=True)
def same_generator() -> None:
    """Models of PyTorch begin where its generator stands: the same in each test, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def fedsaddle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "no data here"))

    def command(*arguments: str | Path) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([str(a) for a in arguments])
        assert isinstance(end.value.code, int)
        return Done(end.value.code, *capsys.readouterr())

    return command
