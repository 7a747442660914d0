"""A run over sites, from the server's side: meet, agree, train; or go on with a run that was cut short.

The run's folder is that of any run, with one file more: `agreed.safetensors`, what the sites said at set-up.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsaddle import __version__
from fedsaddle.agreement import accepted, agree, outline, unpacked
from fedsaddle.config import Config, dump, load
from fedsaddle.deploy.home import Home
from fedsaddle.deploy.link import flower_run, superlink
from fedsaddle.deploy.post import Ask, Post
from fedsaddle.deploy.protocol import Reply, Request
from fedsaddle.deploy.replies import check_size
from fedsaddle.engines.flower import Deployment
from fedsaddle.errors import FedsaddleError
from fedsaddle.folder import locked, new_folder, write_whole
from fedsaddle.progress import spinner
from fedsaddle.train import Run
from fedsaddle.wire import pack, unpack

AGREED = "agreed.safetensors"
DIGEST = "digest"  # of a site's rows, beside its summary
_BACK = 60.0  # seconds that sites have to come back after the server was away; they try at least every 30
Summary = Mapping[str, Tensor]


def run(config: Config, out: Path, progress: bool | None = None, *, numbered: bool = False) -> Run:
    """Train as a config with `data.sites` says, into a new folder."""
    home = home_of(config)
    with _alone(home), superlink(home), flower_run(home) as grid:
        return train_new(config, Post(grid, home.public_keys()), out, progress, numbered=numbered)


def train_new(
    config: Config,
    post: Post,
    out: Path,
    progress: bool | None = None,
    *,
    numbered: bool = False,
    named: bool = True,
) -> Run:
    """Meet the sites and train, into a new folder.

    Args:
        named: whether the post knows the sites' names; else they are in the order of the names that they give themselves.
    """
    summaries = meet(post, config.tree["data"]["timeout"], progress, named)
    with new_folder(out, numbered) as folder:
        name = secrets.token_hex(8)
        trained = _train(config, post, name, summaries, folder, progress)
        (folder / "config.toml").write_text(dump(config), encoding="utf-8")
        write_whole(folder / AGREED, pack((name, tuple(tuple(s.items()) for s in summaries))))
        return trained.finish()


def resume(folder: Path, progress: bool | None = None, allow: bool = False) -> Run:
    """Go on with the run in a folder, from its last whole round."""
    if not (folder / AGREED).is_file():
        raise FedsaddleError(f"{folder}: is no deployment that can be resumed (no {AGREED})")
    if (folder / "result.json").exists():
        raise FedsaddleError(f"{folder}: the run has ended; there is nothing to resume")
    config = load(folder / "config.toml")
    home = home_of(config)
    name, summaries = _agreed(folder / AGREED)
    with _alone(home), superlink(home), flower_run(home) as grid:
        post = Post(grid, home.public_keys())
        before = tuple(unpacked(s["head"])["site"] for s in summaries)
        if before != post.names:
            raise FedsaddleError(
                f"{home.folder / 'federation.toml'}: its sites are {', '.join(post.names)}; the run was begun with "
                f"{', '.join(before)}, in this order"
            )
        missing(post, min(_BACK, config.tree["data"]["timeout"]), progress)
        return _train(config, post, name, summaries, folder, progress, resume=True, allow=allow).finish()


def _agreed(file: Path) -> tuple[str, list[Summary]]:
    try:
        name, stored = unpack(file.read_bytes(), {})
        summaries: list[Summary] = [accepted(s) for s in stored]
        if not all(DIGEST in summary for summary in summaries):
            raise ValueError("an older fedsaddle wrote it")
        return name, summaries
    except (TypeError, ValueError) as error:
        raise FedsaddleError(f"{file}: is not what the sites agreed on ({error}); start a new run") from error


def home_of(config: Config) -> Home:
    """The federation that a config names."""
    if "sites" not in config.tree["data"]:
        raise FedsaddleError(
            'data: a deployment needs sites = "federation.toml"; fedsaddle run simulates other data'
        )
    path = Path(config.tree["data"]["sites"])
    return Home(path if path.is_dir() else path.parent)


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Refuse a second run over the same sites, whose answers would come in turns."""
    lock = locked(
        home.server, f"{home.folder}: another run is going on over its sites; wait for it, or stop it"
    )
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def missing(post: Post, timeout: float, progress: bool | None = None) -> list[str]:
    """Wait until every site is connected, at most so many seconds; the sites that are not."""
    deadline = time.monotonic() + timeout
    with spinner("waiting for sites", progress) as say:
        while True:
            there = post.connected()
            absent = [name for i, name in enumerate(post.names) if i not in there]
            if not absent or time.monotonic() > deadline:
                return absent
            say(f"{len(there)} of {len(post.names)} are connected; not yet {', '.join(absent[:5])}")
            time.sleep(0.2)


def meet(post: Post, timeout: float, progress: bool | None = None, named: bool = True) -> list[Summary]:
    """Wait until every site is there and has said what the set-up needs."""
    if absent := missing(post, timeout, progress):
        raise FedsaddleError(
            f"sites {', '.join(absent)} are not connected after {timeout:g} seconds; start them with fedsaddle "
            "deploy site, or see fedsaddle deploy check there"
        )

    def ask(full: bool) -> Request:
        return Request({"action": "hello"})

    everyone: dict[int, Ask] = {i: ask for i in range(len(post.names))}
    answers = post.ask(
        everyone,
        timeout,
        lambda i, reply: _summary(post.names[i] if named else None, reply),
        len(everyone),
    )
    for i, reason in answers.left_out.items():
        raise FedsaddleError(f"site {post.names[i]!r}: {reason}")
    if not named:
        post.rename({i: unpacked(s["head"])["site"] for i, s in answers.replies.items()})
        return sorted(answers.replies.values(), key=lambda s: str(unpacked(s["head"])["site"]))
    return list(answers.replies.values())


def _summary(name: str | None, reply: Reply) -> Summary:
    if reply.head.get("status") != "done":
        raise FedsaddleError(str(reply.head.get("reason", "gives no reason")))
    if name is not None and reply.head.get("site") != name:
        raise FedsaddleError(
            f"calls itself {reply.head.get('site')!r}; its key is that of {name!r}: correct its site.toml"
        )
    if reply.head.get("fedsaddle") != __version__:
        raise FedsaddleError(
            f"has fedsaddle {reply.head.get('fedsaddle')}, the server {__version__}; install the same"
        )
    check_size(reply.body, 0)
    digest = reply.head.get("data")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise FedsaddleError("gives no checksum of its rows")
    kept = torch.frombuffer(bytearray(digest.encode()), dtype=torch.uint8)
    return accepted(unpack(reply.body, {})) | {DIGEST: kept}


def _train(
    config: Config,
    post: Post,
    run: str,
    summaries: Sequence[Summary],
    folder: Path,
    progress: bool | None,
    resume: bool = False,
    allow: bool = False,
) -> Run:
    constants = agree(summaries)
    data = config.tree["data"]
    setup = config.build(outline(post.names, summaries, constants))
    digests = [bytes(summary[DIGEST].numpy()).decode() for summary in summaries]
    engine = Deployment(
        post, run, json.dumps(for_sites(config)), constants, data["timeout"], data["quorum"], digests
    )
    return config.start(setup, engine=engine, out=folder, progress=progress, resume=resume, allow=allow)


def for_sites(config: Config) -> dict[str, Any]:
    """What sites are told of a config: what is learned and how. Participants, files and devices are the server's affair."""
    sent = {k: config.tree[k] for k in ("name", "model", "problem", "algorithm") if k in config.tree}
    return sent | {"train": {k: config.tree["train"][k] for k in ("rounds", "seed")}}
