"""Whether the server knows a site: one short connection by Flower's own client, and what goes wrong with it in plain words.

A SuperNode that was killed has not said goodbye, and for a minute the SuperLink takes it for connected and refuses its key.
So a site keeps the number by which the SuperLink knew it last, and says goodbye for it here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import httpx
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsaddle.deploy.home import LinkFile, private_key, public_pem
from fedsaddle.errors import FedsaddleError


class Unreachable(FedsaddleError):
    """The server cannot be reached, or has gone; trying again may help."""


class Last:
    """By which number the server knew this site last, in a file that one process at a time may hold."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        text = file.read().strip()
        self.node = int(text) if text.isdigit() else None

    def keep(self, node: int) -> None:
        self.node = node
        with suppress(OSError):  # on a full disk; a site that is killed and started again then waits a minute
            self._file.truncate(0)
            self._file.write(b"%d" % node)


@contextmanager
def only_one(link: LinkFile) -> Iterator[Last]:
    """Refuses a second process for the same site."""
    path = Path(link.key).with_suffix(".node")
    with FileIO(path, "a+") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FedsaddleError(f"{path.parent}: this site runs already, in another process") from None
        file.seek(0)
        yield Last(file)


def knock(link: LinkFile, last: Last) -> None:
    """Connect as the site that a link.toml describes, and leave.

    Raises Unreachable, or FedsaddleError where trying again is no use.
    """
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
    with client, _in_words(link.address):
        request = ActivateNodeRequest(
            public_key=public_pem(key), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        try:
            node = client.ActivateNode(request).node_id
        except httpx.HTTPStatusError as error:
            if not _is_inactive(error) or last.node is None:
                raise
            client.DeactivateNode(DeactivateNodeRequest(node_id=last.node))
            node = client.ActivateNode(request).node_id
        last.keep(node)
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def _is_inactive(error: httpx.HTTPStatusError) -> bool:
    """Whether the server does not let a site connect: its key is unknown, or taken for connected."""
    found = FlowerError.from_json(error.response.text)
    return found is not None and found.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED


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
            f"{address}: no SuperLink is up there, or a firewall is between ({_short(text)}); it runs while the server's "
            "operator has a run going, or keeps it up"
        ) from error
    except httpx.TransportError as error:
        raise Unreachable(
            f"{address}: the connection broke ({type(error).__name__}: {_short(str(error))})"
        ) from error


def _short(text: str) -> str:
    return " ".join(text.split())[:160]
