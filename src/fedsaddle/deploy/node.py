"""A site's connection to the server: a SuperNode that runs one app, the installed fedsaddle, in its own process.

Flower's own `flower-supernode` starts a process for each message and looks for messages every three seconds, which costs six
seconds a phase; and it runs whatever code the server sends. This one speaks the same protocol by Flower's own client, with
TLS and the site's key, keeps PyTorch and the data loaded, and runs no code but what is installed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import httpx
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    push_object_contents_from_iterable,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsaddle.deploy.home import LinkFile, private_key, public_pem
from fedsaddle.deploy.objects import fetched
from fedsaddle.deploy.protocol import Request
from fedsaddle.deploy.worker import Worker
from fedsaddle.errors import FedsaddleError

log = logging.getLogger("fedsaddle.site")

_HEARTBEAT = 30.0  # seconds in which the server hears from the site
_SLOWEST = 30.0  # seconds between two attempts to connect, at most


class Unreachable(FedsaddleError):
    """The server cannot be reached, or has gone; trying again may help."""


class Connection:
    """One connection of a site to the server."""

    def __init__(self, client: FleetHttpClient, node: Node) -> None:
        self._client, self._node = client, node

    def receive(self) -> Message | None:
        """The next message; None if there is none."""
        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        head, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        run, name = head.metadata.run_id, head.metadata.message_id
        message = fetched(name, tree, self._client.PullObject, self._node, run)
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=name)
        )
        return message

    def send(self, reply: Message) -> None:
        run = reply.metadata.run_id
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            response = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[0.0],
                )
            )
        wanted = set(response.objects_to_push)
        push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run, response.session_id)
        push_object_contents_from_iterable(
            ((k, v) for k, v in parts.items() if k in wanted), push_object_fn=push
        )


@contextmanager
def connected(link: LinkFile) -> Iterator[Connection]:
    """Connect as the site that a link.toml describes; raises Unreachable, or FedsaddleError where trying again is no use."""
    key = private_key(Path(link.key))
    try:
        authority = Path(link.certificate).read_bytes()
        client = FleetHttpClient.from_server_address(
            link.address,
            insecure=False,
            root_certificates=authority,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
    except FileNotFoundError:
        raise FedsaddleError(
            f"{link.certificate} is not there: the federation's operator sends it with site.toml"
        ) from None
    except (ValueError, OSError) as error:
        raise FedsaddleError(f"{link.certificate}: is no certificate ({error})") from error
    with client, _last_node(Path(link.key).with_suffix(".node")) as last, _in_words(link.address):
        request = ActivateNodeRequest(public_key=public_pem(key), heartbeat_interval=_HEARTBEAT)
        try:
            node = Node(node_id=client.ActivateNode(request).node_id)
        except httpx.HTTPStatusError as error:
            if not _is_inactive(error) or last.node is None:
                raise
            client.DeactivateNode(
                DeactivateNodeRequest(node_id=last.node)
            )  # killed before it could say goodbye
            node = Node(node_id=client.ActivateNode(request).node_id)
        last.keep(node.node_id)
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(client, node, ended), daemon=True)
        heart.start()
        try:
            yield Connection(client, node)
        finally:
            ended.set()
            with suppress(httpx.HTTPError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


class _Last:
    """By which number the server knew this site last, in a file that one process at a time may hold."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        text = file.read().strip()
        self.node = int(text) if text.isdecimal() else None

    def keep(self, node: int) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(str(node))
        self._file.flush()


@contextmanager
def _last_node(path: Path) -> Iterator[_Last]:
    with open(path, "a+", encoding="ascii") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FedsaddleError(f"{path.parent}: this site runs already, in another process") from None
        file.seek(0)
        yield _Last(file)


def _is_inactive(error: httpx.HTTPStatusError) -> bool:
    """Whether the server does not let a site connect: its key is unknown, or taken for connected."""
    found = FlowerError.from_json(error.response.text)
    return found is not None and found.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED


def _beat(client: FleetHttpClient, node: Node, ended: threading.Event) -> None:
    """Tell the server now and then that the site is alive; what fails here fails in the main thread too."""
    while not ended.wait(_HEARTBEAT / 2):
        with suppress(httpx.HTTPError):
            client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=_HEARTBEAT))


@contextmanager
def _in_words(address: str) -> Iterator[None]:
    """What goes wrong between a site and the server, as one line."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (401, 403) or _is_inactive(error):
            raise Unreachable(
                f"{address}: the server does not know this site's key (is key.pem the one that its operator has listed?), "
                "or takes the site for connected still"
            ) from error
        if status == 412 or "version" in error.response.text.lower():
            raise FedsaddleError(
                f"{address}: the server refuses this version of Flower ({_short(error.response.text)}); install the same "
                "fedsaddle[flower] as the server"
            ) from error
        raise Unreachable(
            f"{address}: the server answers {status} ({_short(error.response.text)})"
        ) from error
    except httpx.ConnectError as error:
        text = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            raise FedsaddleError(
                f"{address}: the server's certificate is not by this federation's authority, or for another name "
                f"({_short(text)}); ask its operator for the current ca.crt"
            ) from error
        if "WRONG_VERSION_NUMBER" in text or "record layer" in text:
            raise Unreachable(
                f"{address}: what listens there does not speak TLS; check the address"
            ) from error
        raise Unreachable(
            f"{address}: nothing listens there, or a firewall is between ({_short(text)}); is the server started?"
        ) from error
    except httpx.TransportError as error:
        raise Unreachable(
            f"{address}: the connection broke ({type(error).__name__}: {_short(str(error))})"
        ) from error
    except ObjectPullError as error:
        raise Unreachable(f"{address}: a message could not be fetched ({_short(str(error))})") from error


def _short(text: str) -> str:
    return " ".join(text.split())[:160]


def serve(worker: Worker, link: LinkFile, stop: threading.Event) -> None:
    """Answer the server's messages until `stop`; connects again when the server was away."""
    pause = 1.0
    while not stop.is_set():
        try:
            with connected(link) as connection:
                log.info("%s: connected to %s", worker.site.name, link.address)
                pause, worked = 1.0, time.monotonic()
                while not stop.is_set():
                    message = connection.receive()
                    if message is None:
                        # the next message often comes soon after an answer; who has waited long may wait a little longer
                        stop.wait(min(link.interval, 0.1 + (time.monotonic() - worked) / 4))
                    else:
                        try:
                            connection.send(answered(worker, message))
                        except (
                            ObjectPushError,
                            ValueError,
                        ) as error:  # Flower's ways to say that its time is over
                            log.warning(
                                "the server does not wait for this answer any more (%s)", _short(str(error))
                            )
                        worked = time.monotonic()
        except Unreachable as error:
            log.warning("%s; next attempt in %g s", error, pause)
            stop.wait(pause)
            pause = min(2 * pause, _SLOWEST)


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
