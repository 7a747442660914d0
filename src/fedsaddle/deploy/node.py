"""A site: Flower's own SuperNode, and this process as its ClientApp.

The SuperNode is Flower's program, started with `--isolation process`: it connects to the SuperLink with TLS and the site's
key, carries the messages, and leaves it to another process on its machine to take a task and answer it. That process is this
one. It keeps PyTorch and the data loaded, where Flower would start a process for each message, and it runs the fedsaddle
that is installed here, not the code that came with the run. It fetches and answers a task by Flower's own functions.

A SuperNode that has ended (the server was away, or has forgotten its nodes) is started again.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedsaddle.deploy.home import LinkFile, certificates, private
from fedsaddle.deploy.knock import Unreachable, knock, only_one
from fedsaddle.deploy.program import Process, flower
from fedsaddle.deploy.protocol import Request
from fedsaddle.deploy.worker import Worker
from fedsaddle.errors import FedsaddleError, first_line

log = logging.getLogger("fedsaddle.site")

_SLOWEST = 30.0  # seconds between two attempts to connect, at most; and ten intervals at most
_SILENT = 60.0  # seconds that a SuperNode may give no answer
_RETRIES = 2  # of a SuperNode whose server does not answer; then it ends, and is started again


def serve(worker: Worker, link: LinkFile, stop: threading.Event) -> None:
    """Answer the server's messages until `stop`; connects again when the server was away."""
    pause, slowest = 1.0, min(_SLOWEST, 10 * link.interval)
    with only_one(link) as last:
        while not stop.is_set():
            started = time.monotonic()
            try:
                knock(link, last)
                with _supernode(link) as node:
                    log.info("%s: connected to %s", worker.site.name, link.address)
                    _answer_tasks(worker, node, stop)
                if not stop.is_set():
                    raise Unreachable(f"{link.address}: the connection has ended (supernode.log may say why)")
            except Unreachable as error:
                pause = 1.0 if time.monotonic() - started > slowest else pause
                log.warning("%s; next attempt in %g s", error, pause)
                stop.wait(pause)
                pause = min(2 * pause, slowest)


class _Node(NamedTuple):
    """A SuperNode on this machine."""

    process: Process
    address: str  # of its Runtime API
    authority: bytes  # of its certificate: no other program that listens there is believed
    secret: bytes  # for which alone it gives tasks

    def client(self, component: str, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name=component)
        return RuntimeHttpClient.from_server_address(
            self.address, False, self.authority, [version, interceptor]
        )


@contextmanager
def _supernode(link: LinkFile) -> Iterator[_Node]:
    """Flower's SuperNode as a process, with a secret and a certificate of its own that are made anew each time."""
    port, secret = _free_port(), secrets.token_bytes(32)
    folder = Path(link.key).with_suffix(".runtime").resolve()
    shutil.rmtree(folder, ignore_errors=True)  # a site that was killed has left it
    folder.mkdir(0o700)
    private(folder / "secret", secret)
    authority = certificates(folder, {"127.0.0.1"})
    options = (
        "--superlink", link.address, "--root-certificates", str(Path(link.certificate).resolve()),
        "--auth-supernode-private-key", str(Path(link.key).resolve()), "--max-retries", str(_RETRIES),
        "--isolation", "process", "--host", "127.0.0.1", "--port", str(port),
        "--superexec-auth-secret-file", str(folder / "secret"), "--ssl-ca-certfile", str(folder / "ca.crt"),
        "--ssl-certfile", str(folder / "server.crt"), "--ssl-keyfile", str(folder / "server.key"),
    )  # fmt: skip
    kind = ("supernode", str(link.interval))
    try:
        with flower(kind, options, folder.parent / "supernode.log", FLWR_LOG_LEVEL="WARNING") as process:
            yield _Node(process, f"127.0.0.1:{port}", authority, secret)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer_tasks(worker: Worker, node: _Node, stop: threading.Event) -> None:
    """Take the SuperNode's tasks one by one, for as long as it runs."""
    by_secret = SuperExecAuthHttpInterceptor(
        master_secret=node.secret, protected_methods=("/flwr.proto.Runtime/AcquireTask",)
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    worked = heard = time.monotonic()
    with node.client("SuperExec", by_secret) as client:
        while not stop.is_set() and node.process.poll() is None:
            try:
                answer = client.AcquireTask(request)
            except httpx.HTTPError as error:  # it starts, or is about to end
                if time.monotonic() - heard > _SILENT:
                    raise Unreachable(f"the SuperNode gives no tasks ({first_line(error)})") from error
            else:
                heard = time.monotonic()
                if answer.HasField("task"):
                    _answer_task(worker, node, answer.token)
                    worked = time.monotonic()
                    continue
            # the next message often comes soon after an answer; who has waited long may wait a little longer
            stop.wait(min(0.5, 0.05 + (time.monotonic() - worked) / 20))


def _answer_task(worker: Worker, node: _Node, token: str) -> None:
    """What Flower's own `flwr-clientapp` does for a task, without starting a process and without the code of the run.

    A SuperNode waits for the answer to a task for as long as it runs. So where none can be given, it must be started again.
    """
    with node.client("flwr-clientapp", RuntimeTokenHttpInterceptor(token)) as client:
        heart = HeartbeatSender(partial(_beat, client))
        heart.start()
        try:
            message, context, _, _ = pull_task_input(client)
            push_message(client, answered(worker, message), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except (
            httpx.HTTPError,
            ObjectPullError,
            ObjectPushError,
            RuntimeError,
            RunNotRunningException,
        ) as error:
            raise Unreachable(f"the SuperNode's task could not be answered ({first_line(error)})") from error
        finally:
            heart.stop()


def _beat(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its task is worked on; what fails here fails in the main thread too."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def answered(worker: Worker, message: Message) -> Message:
    """The reply to a Flower message."""
    started = time.perf_counter()
    try:
        request = Request.of(message.content)
    except FedsaddleError as error:
        log.warning("a message is refused: %s", error)
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=str(error)), reply_to=message)
    what = request.head.get("work") or request.head.get("action")
    log.info("round %s: %s", _number(request), what)
    reply = worker.answer(request)
    seconds = time.perf_counter() - started
    say = partial(log.info, "%s") if reply.head["status"] != "refused" else partial(log.warning, "%s")
    say(
        f"round {_number(request)}: {what} {reply.head['status']} in {seconds:.2f} s {reply.head.get('reason', '')}"
    )
    return Message(reply.record(), reply_to=message)


def _number(request: Request) -> str:
    round = request.head.get("round")
    return str(round + 1) if isinstance(round, int) and round >= 0 else "-"
