"""What is in a message to a site and in its reply, as Flower records.

A message has up to three records: `session` (`Agreed`, for a site that does not hold it yet), `shared` (what all sites are
sent: one upload for all of them; beside `own` where it is small, since every record costs a request) and `own` (what differs
from site to site). Each is a tree of `wire`, and `own` has a `head` in JSON beside it:

    run, round, phase   what it belongs to; the reply says the same
    action              "hello", "work" or "evaluate"
    session             digest of the session that the site needs
    data                digest of the site's rows at set-up
    work                "algorithm.drift_corrected_steps", "problem.class_counts"
    client              the site's number
    base, committed     versions of its memory, [round, phase] or null: where to start from, and what can no longer be undone

A reply is one record: a `head` with `status` ("done", "missing": send the message again with what it lacks, "refused": with
a `reason`), and a tree.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedsaddle import __version__
from fedsaddle.parse import from_json
from fedsaddle.wire import Garbled

Head = dict[str, Any]
Tag = tuple[int, int]  # (round, phase) in which a site's memory was written

SPLITS = ("train", "valid", "test")  # of a site's rows, in the order in which it measures them
ACTION = "query"  # Flower's type of all our messages
_SMALL = 1 << 16
_LONGEST_HEAD = 1 << 20


class Request(NamedTuple):
    """A message to one site."""

    head: Head
    own: bytes = b""
    shared: bytes = b""
    session: bytes = b""  # empty: the site holds it

    def record(self) -> RecordDict:
        small = len(self.shared) <= _SMALL
        records = {"own": ConfigRecord({"head": json.dumps(self.head), "body": self.own})}
        if small:
            records["own"]["shared"] = self.shared
        for name, body in (("shared", b"" if small else self.shared), ("session", self.session)):
            if body:
                records[name] = ConfigRecord({"body": body})
        return RecordDict(records)  # type: ignore[arg-type]

    @staticmethod
    def of(content: RecordDict) -> Request:
        head, own = _opened(content, "own")
        session = _opened(content, "session")[1] if "session" in content else b""
        shared = (
            _opened(content, "shared")[1] if "shared" in content else _opened(content, "own", "shared")[1]
        )
        return Request(head, own, shared, session)


class Reply(NamedTuple):
    """A site's answer."""

    head: Head
    body: bytes = b""

    def record(self) -> RecordDict:
        return RecordDict({"reply": ConfigRecord({"head": json.dumps(self.head), "body": self.body})})

    @staticmethod
    def of(content: RecordDict) -> Reply:
        return Reply(*_opened(content, "reply"))


class Agreed(NamedTuple):
    """What all sites are told of a run at its start."""

    run: str  # what it is called; the site's memory is tied to it
    config: str  # the run's config, as JSON
    constants: tuple[tuple[str, Tensor], ...]  # of scaling, as agreed over all sites
    batch_size: int | None
    sampling: str
    z: Tensor  # where training starts [1, d]
    version: str = __version__  # of fedsaddle at the server


class Missing(Exception):
    """The site lacks something that the server has sent before."""


def _opened(content: RecordDict, name: str, key: str = "body") -> tuple[Head, bytes]:
    try:
        record = content[name]
        if len(str(record.get("head", ""))) > _LONGEST_HEAD:
            raise ValueError(f"a head has at most {_LONGEST_HEAD:,} characters")
        head, body = from_json(str(record.get("head", "{}"))), record.get(key, b"")
        if not isinstance(head, dict) or not isinstance(body, bytes):
            raise ValueError("a record is a head and bytes")
        return head, body
    except (KeyError, ValueError, AttributeError) as error:
        raise Garbled(f"wire: no {name} in it ({type(error).__name__}: {error})") from error
