"""What several test files share: the command line in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fedsaddle import cli


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


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
