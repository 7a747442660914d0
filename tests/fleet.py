"""A deployment in one process: the real engine and the real sites' workers, joined by a Grid that can misbehave.

Everything but the network is what runs in a deployment; `tests/test_deploy.py` has the network too.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

import fedsaddle as fs
from fedsaddle import sampling
from fedsaddle.config import Config
from fedsaddle.deploy.drive import for_sites
from fedsaddle.deploy.post import Post
from fedsaddle.deploy.protocol import Reply, Request
from fedsaddle.deploy.worker import Worker
from fedsaddle.engines.flower import Deployment
from fedsaddle.engines.torchrun import _only

Fault = Callable[[int, Request, Reply], list[Reply]]  # site, question, answer -> what arrives

MODEL = {"name": "linear"}
PROBLEM = {"name": "auc"}
CASES: dict[str, dict[str, Any]] = {  # algorithm, and what else of the config differs
    "codasca": {
        "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 4, "gamma": 0.1, "stage_rounds": 2}
    },
    "fedsgda": {"algorithm": {"name": "fedsgda", "lr": 0.05, "local_steps": 4, "estimator": "storm"}},
    "scaff_pd": {
        "algorithm": {"name": "scaff_pd", "tau": 0.1, "local_steps": 4},
        "problem": {"name": "erm", "loss": "logistic"},
    },
    "ffmdr": {"algorithm": {"name": "ffmdr", "beta": 0.5, "lr": 0.05, "epochs": 2}},
    "cycp_pairwise": {
        "algorithm": {"name": "cycp_pairwise", "lr": 0.05, "local_steps": 3},
        "problem": {"name": "pairwise_auc"},
        "participation": {"name": "cyclic", "groups": 2},
        "rounds": 4,
    },
}
MORE: dict[str, dict[str, Any]] = {
    "drfa": {"algorithm": {"name": "drfa", "lr": 0.05, "local_steps": 4}, "problem": {"name": "erm"}},
    "fednest": {"algorithm": {"name": "fednest"}},
    "fedxl2": {
        "algorithm": {"name": "fedxl2", "lr": 0.05, "local_steps": 3},
        "problem": {"name": "partial_auc"},
    },
    "scaffold": {
        "algorithm": {"name": "scaffold", "lr": 0.05, "local_steps": 4, "weights": "samples"},
        "participation": {"name": "uniform", "m": 3},
        "batch_size": "none",
    },
}


def tree(case: str, **train: Any) -> dict[str, Any]:
    """A run's config without its data."""
    from fedsaddle.schema import filled

    given = (CASES | MORE)[case]
    settings = {"rounds": given.get("rounds", 3), "batch_size": given.get("batch_size", 4), "seed": 3} | train
    parts = {
        "model": given.get("model", MODEL),
        "problem": given.get("problem", PROBLEM),
        "algorithm": given["algorithm"],
        "participation": given.get("participation", {"name": "full"}),
        "train": settings,
    }
    return {"name": case} | {k: filled(k, v, k) for k, v in parts.items()}


def federation(sizes: tuple[int, ...] = (9, 20, 3, 13)) -> fs.Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, sum(sizes))
    x = rng.standard_normal((sum(sizes), 5)) + 0.5 * y[:, None]
    owner = np.repeat([f"site{i}" for i in range(len(sizes))], sizes)
    return fs.Federation.from_arrays(x, y, clients=owner)


@dataclasses.dataclass
class Part:
    """One client of a federation as a site."""

    name: str
    memory: Path
    whole: fs.Federation
    number: int
    modules: tuple[str, ...] = ()

    digest = "as it was"
    secret: int = 7

    def noise_key(self, asked: bytes) -> int:
        return sampling.key(self.secret, self.number, int.from_bytes(asked[:8], "big"))

    def summary(self) -> dict[str, Tensor]:
        return {"n": torch.tensor([float(self.whole.sizes[self.number])])}

    def federation(self, constants: Mapping[str, Tensor]) -> fs.Federation:
        own = _only(self.whole, [self.number])
        held = {k: _only(part, [self.number]) for k in ("test", "valid") if (part := getattr(self.whole, k))}
        return dataclasses.replace(own, **held)


class Fleet(Grid):
    """A Grid whose nodes are workers in this process, called when their reply is pulled."""

    def __init__(self, whole: fs.Federation, folder: Path, fault: Fault | None = None) -> None:
        self.sites = [Part(name, folder / name, whole, i) for i, name in enumerate(whole.names)]
        self.workers = [Worker(site) for site in self.sites]
        self.fault = fault or (lambda i, request, reply: [reply])
        self.online = dict.fromkeys(range(len(self.sites)), 0)  # with how often each has connected
        self.stranger = True
        self.requests: list[tuple[int, Request]] = []
        self._mail: dict[str, tuple[Message, list[Message]]] = {}
        self._ids = itertools.count(1)
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def restart(self, i: int) -> None:
        self.workers[i] = Worker(self.sites[i])
        self.online[i] = self.online.get(i, 0) + 1

    def get_nodes(self) -> Iterable[NodeInfo]:
        # node ids in another order than the sites', and a stranger
        nodes = [
            NodeInfo(node_id=99 - i, public_key=b"%d" % i, last_activated_at=str(n))
            for i, n in self.online.items()
        ]
        return [NodeInfo(node_id=5, public_key=b"stranger"), *nodes] if self.stranger else nodes

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            name = f"m{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            i = 99 - message.metadata.dst_node_id
            request = Request.of(message.content)
            self.requests.append((i, request))
            replies = self.fault(i, request, self.workers[i].answer(request))
            self._mail[name] = message, [Message(r.record(), reply_to=message) for r in replies]
            ids.append(name)
        return ids

    def deliver(self, i: int, reply: Reply) -> None:
        """A reply that is late: to the last message but one that the site was sent."""
        message, replies = [m for m in self._mail.values() if m[0].metadata.dst_node_id == 99 - i][-1]
        replies.append(Message(reply.record(), reply_to=message))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        out: list[Message] = []
        for name in message_ids:
            _, replies = self._mail[name]
            out += replies
            replies.clear()
        return out[::-1]  # in no particular order

    def set_run(self, run: FlowerRun) -> None: ...

    @property
    def run(self) -> FlowerRun:
        raise NotImplementedError

    def create_message(self, content: RecordDict, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def deployed(
    fleet: Fleet,
    config: dict[str, Any],
    run: str = "run1",
    *,
    timeout: float = 5.0,
    quorum: float = 0.5,
    **more: Any,
) -> fs.Run:
    """The run of a config at the sites of a fleet."""
    whole = fleet.sites[0].whole
    post = Post(fleet, {site.name: b"%d" % i for i, site in enumerate(fleet.sites)}, interval=0.01, look=0.02)
    setup = Config(config).build(whole)
    engine = Deployment(
        post,
        run,
        json.dumps(for_sites(Config(config))),
        {},
        timeout,
        quorum,
        ["as it was"] * len(fleet.sites),
    )
    return fs.train(
        *setup[:3], participation=setup.participation, **{k: v for k, v in setup.train.items() if k != "engine"},
        engine=engine, **more,
    )  # fmt: skip


def simulated(whole: fs.Federation, config: dict[str, Any], **more: Any) -> fs.Run:
    """The same run, stacked."""
    setup = Config(config).build(whole)
    return fs.train(*setup[:3], participation=setup.participation, **setup.train, **more)
