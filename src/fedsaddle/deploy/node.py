"""A site: Flower's own SuperNode, and this process as its ClientApp.

The SuperNode is Flower's program, started with `--isolation process`: it connects to the SuperLink with TLS and the site's
key, carries the messages, and leaves it to another process on its machine to take a task and answer it. That process is this
one. It keeps PyTorch and the data loaded, where Flower would start a process for each message, and it runs the fedsaddle
that is installed here, not the code that came with the run. It fetches and answers a task by Flower's own functions.

A SuperNode that has ended (the server was away, or has forgotten its nodes) is started again.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

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
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedsaddle.deploy.home import STOCK_INTERVAL, LinkFile
from fedsaddle.deploy.knock import Unreachable, knock, only_one
from fedsaddle.deploy.link import ENVIRONMENT
from fedsaddle.deploy.protocol import Request
from fedsaddle.deploy.worker import Worker
from fedsaddle.errors import FedsaddleError, first_line

log = logging.getLogger("fedsaddle.site")

_SLOWEST = 30.0  # seconds between two attempts to connect, at most
_RETRIES = 2  # of a SuperNode whose server does not answer; then it ends, and is started again
_PROGRAM = """
import functools, os, time, types
from flwr.supercore.app_utils import start_parent_process_monitor
start_parent_process_monitor({parent})
from flwr.supernode import start_client_internal as node
from flwr.supernode.cli import flower_supernode
if {interval} < {stock}:
    node.time = types.SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, {interval})))
    node.pull_objects = functools.partial(node.pull_objects, initial_backoff=min(1, {interval} / 4))
flower_supernode()
os._exit(1)
"""  # ends when the process that started it has gone, and when its connection has ended


def serve(worker: Worker, link: LinkFile, stop: threading.Event) -> None:
    """Answer the server's messages until `stop`; connects again when the server was away."""
    pause = 1.0
    with only_one(link) as last:
        while not stop.is_set():
            try:
                knock(link, last)
                with _supernode(link) as (process, address, secret):
                    log.info("%s: connected to %s", worker.site.name, link.address)
                    started = time.monotonic()
                    _answer_tasks(worker, process, address, secret, stop)
                if time.monotonic() - started > _SLOWEST:
                    pause = 1.0
                if not stop.is_set():
                    raise Unreachable(f"{link.address}: the connection has ended (supernode.log may say why)")
            except Unreachable as error:
                log.warning("%s; next attempt in %g s", error, pause)
                stop.wait(pause)
                pause = min(2 * pause, _SLOWEST)


@contextmanager
def _supernode(link: LinkFile) -> Iterator[tuple[subprocess.Popen[bytes], str, bytes]]:
    """Flower's SuperNode as a process, the address of its Runtime API on this machine, and the secret for its tasks."""
    place, port, secret = Path(link.key).parent.resolve(), _free_port(), secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="fedsaddle-") as private:  # readable by its owner only
        file = Path(private) / "secret"
        file.write_bytes(secret)
        options = (
            "--superlink", link.address, "--root-certificates", str(Path(link.certificate).resolve()),
            "--auth-supernode-private-key", str(Path(link.key).resolve()), "--max-retries", str(_RETRIES),
            "--isolation", "process", "--host", "127.0.0.1", "--port", str(port),
            "--superexec-auth-secret-file", str(file),
        )  # fmt: skip
        program = _PROGRAM.format(parent=os.getpid(), interval=link.interval, stock=STOCK_INTERVAL)
        with open(place / "supernode.log", "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *options],
                env=os.environ | ENVIRONMENT | {"FLWR_LOG_LEVEL": "WARNING"},
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        try:
            yield process, f"127.0.0.1:{port}", secret
        finally:
            process.send_signal(signal.SIGINT)  # it says goodbye
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answer_tasks(
    worker: Worker, process: subprocess.Popen[bytes], address: str, secret: bytes, stop: threading.Event
) -> None:
    """Take the SuperNode's tasks one by one, for as long as it runs."""
    by_secret = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=("/flwr.proto.Runtime/AcquireTask",)
    )
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    worked = time.monotonic()
    with RuntimeHttpClient.from_server_address(address, True, None, [version, by_secret]) as client:
        while not stop.is_set() and process.poll() is None:
            try:
                answer = client.AcquireTask(request)
            except httpx.HTTPError as error:
                log.debug("the SuperNode does not answer: %s", error)  # it starts, or is about to end
            else:
                if answer.HasField("task"):
                    _answer_task(worker, address, answer.token)
                    worked = time.monotonic()
                    continue
            # the next message often comes soon after an answer; who has waited long may wait a little longer
            stop.wait(min(0.5, 0.05 + (time.monotonic() - worked) / 20))


def _answer_task(worker: Worker, address: str, token: str) -> None:
    """What Flower's own `flwr-clientapp` does for a task, without starting a process and without the code of the run.

    A SuperNode waits for the answer to a task for as long as it runs. So where none can be given, it must be started again.
    """
    by_token = RuntimeTokenHttpInterceptor(token)
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    with RuntimeHttpClient.from_server_address(address, True, None, [version, by_token]) as client:
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
