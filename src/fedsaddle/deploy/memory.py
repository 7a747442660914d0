"""What a site remembers, on its own disk: a file for each version that may still be needed.

A version is named by the round and phase that wrote it. The server says with each message which version the work starts from
and which one is committed, that is, belongs to a round that has ended well. Versions of the current round are kept beside
the committed one, since a round that fails is undone. So a site that was stopped at any moment, and a server that begins a
round again, both find what they need.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fedsaddle.deploy.protocol import Tag
from fedsaddle.errors import FedsaddleError
from fedsaddle.folder import write_whole
from fedsaddle.wire import Classes, Garbled, pack, unpack

_NAME = re.compile(r"round-(\d+)-phase-(\d+)\.safetensors")


class LostMemory(FedsaddleError):
    """The site does not have the version that the server asks it to start from."""


class SiteMemory:
    """The versions of one run.

    Args:
        folder: of this run; made when first written to.
        classes: NamedTuples that the algorithm's memory consists of.
    """

    def __init__(self, folder: Path, classes: Classes) -> None:
        self.folder, self._classes = folder, classes
        self._last: tuple[Tag, Any] | None = None  # saves reading what was just written

    def read(self, tag: Tag) -> Any:
        """What the site remembered after a phase."""
        if self._last is not None and self._last[0] == tag:
            return self._last[1]
        path = self._path(tag)
        try:
            return unpack(path.read_bytes(), self._classes)
        except (FileNotFoundError, Garbled) as error:
            raise LostMemory(
                f"has lost its memory of round {tag[0] + 1}, phase {tag[1]} ({path.name} is "
                f"{'damaged' if isinstance(error, Garbled) else 'not there'}); restore it, or start a new run"
            ) from None

    def write(self, tag: Tag, memory: Any) -> None:
        """Keep a version: it is on the disk, whole, when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(tag), pack(memory))
        self._last = tag, memory

    def settle(self, committed: Tag | None, round: int) -> None:
        """Drop every version but the committed one and those of this round."""
        for tag in self.versions():
            if tag != committed and tag[0] != round:
                self._path(tag).unlink(missing_ok=True)

    def versions(self) -> list[Tag]:
        """All versions on the disk, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted((int(m[1]), int(m[2])) for m in found if m)

    def _path(self, tag: Tag) -> Path:
        return self.folder / f"round-{tag[0]}-phase-{tag[1]}.safetensors"
