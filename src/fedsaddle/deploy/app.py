"""The Flower app: a run's name at the SuperLink, and the client half for sites that run Flower's own SuperNode.

A stock SuperNode names the site's TOML in its node config: `flower-supernode --node-config 'site="/path/site.toml"' ...`.
The server half is `fedsaddle deploy run`, a process of its own, so the ServerApp here only says so.
"""

from __future__ import annotations

from functools import cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsaddle.deploy.node import answered
from fedsaddle.deploy.worker import Worker
from fedsaddle.errors import FedsaddleError
from fedsaddle.sites import Site

client, server = ClientApp(), ServerApp()


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
    raise FedsaddleError(
        "this run belongs to `fedsaddle deploy run`; start the SuperLink with --isolation process"
    )
