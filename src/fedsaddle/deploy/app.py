"""As a Flower app: `flwr run` on a SuperLink and SuperNodes that are there already, without fedsaddle's own commands.

The app's pyproject.toml has the run in its [tool.flwr.app.config], by the names of a fedsaddle config (`algorithm.lr`), and
`sites`, how many there are, and `out`, a folder for the result on the server. `examples/flower_codasca` is one. A SuperNode
names the site's TOML in its node config: `flower-supernode --node-config 'site="/path/site.toml"' ...`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsaddle.config import Config, resolve
from fedsaddle.deploy import drive
from fedsaddle.deploy.node import answered
from fedsaddle.deploy.post import Post
from fedsaddle.deploy.worker import Worker
from fedsaddle.errors import FedsaddleError
from fedsaddle.overrides import put
from fedsaddle.sites import Site

client, server = ClientApp(), ServerApp()

_OWN = ("sites", "out")  # keys of the app that are no part of a fedsaddle config


@cache
def _worker(path: str) -> Worker:
    return Worker(Site.load(path))


@client.query()
def answer(message: Message, context: Context) -> Message:
    path = context.node_config.get("site")
    if not isinstance(path, str):
        raise FedsaddleError(
            "node config: site is missing; start with --node-config 'site=\"/path/to/site.toml\"'"
        )
    return answered(_worker(path), message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = config_of(context.run_config)
    sites, out = context.run_config.get("sites"), context.run_config.get("out")
    if not isinstance(sites, int) or sites < 2 or not isinstance(out, str):
        raise FedsaddleError(
            f"run config: needs sites (at least 2) and out (a folder), got {sites!r} and {out!r}"
        )
    post = Post(grid, _nodes(grid, sites, config.tree["data"]["timeout"]))
    drive.train_new(config, post, Path(out), progress=False, named=False)


def config_of(flat: Mapping[str, Any]) -> Config:
    """A Flower run's settings, whose keys are paths, as a fedsaddle config."""
    tree: dict[str, Any] = {"data": {"sites": "-"}}
    for path, value in flat.items():
        if path not in _OWN:
            put(tree, path.split("."), value, f"run config {path}")
    return resolve(tree)


def _nodes(grid: Grid, n: int, timeout: float) -> dict[str, bytes]:
    """The first n nodes that are connected, by their keys."""
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(node.public_key for node in grid.get_nodes())) < n:
        if time.monotonic() > deadline:
            raise FedsaddleError(f"{len(nodes)} of {n} sites are connected after {timeout:g} seconds")
        time.sleep(0.2)
    return {f"node{i + 1}": key for i, key in enumerate(nodes[:n])}
