"""The server's connection to its sites: a SuperLink, and a run whose ServerApp is this process.

The SuperLink is Flower's own. It runs with `--isolation process`, so that it starts no code itself: this process takes the
run's task with the federation's secret and drives it, with its own progress bar, files and exit code.

The SuperLink keeps its state in memory, which is several times faster than its database. Nothing is lost with it: sites are
registered when it starts, connect again by themselves, and a run goes on from its checkpoint.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedsaddle.deploy.home import Home
from fedsaddle.deploy.program import Process, flower
from fedsaddle.errors import FedsaddleError

_START = 60.0  # seconds that a SuperLink has to start
_DYING = 1.0  # seconds within which the SuperLink of a run that was killed ends
_LONGEST_WAIT = 30.0  # seconds for the pieces of a reply whose sender may have died


@contextmanager
def superlink(home: Home) -> Iterator[None]:
    """A SuperLink with the federation's sites registered: the one at its address, or one of our own for as long as this."""
    if listening(home):
        time.sleep(_DYING)
    if listening(home):
        _register(home)
        yield
        return
    with _started(home) as process:
        deadline = time.monotonic() + _START
        while not listening(home):
            if process.poll() is not None or time.monotonic() > deadline:
                raise FedsaddleError(f"the SuperLink did not start; see {_log(home)}")
            time.sleep(0.1)
        _register(home)
        yield


def listening(home: Home) -> bool:
    """Whether this federation's SuperLink runs at its address; refuses one that is another's."""
    try:
        with _control(home) as control:
            control.ListNodes(ListNodesRequest())
        return True
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or "SSL" in str(error):
            raise FedsaddleError(
                f"{home.local}: another program, or another federation's SuperLink, listens there; stop it, or choose "
                "another port in federation.toml and the sites' link.toml"
            ) from error
        return False
    except httpx.HTTPError:
        return False


@contextmanager
def flower_run(home: Home) -> Iterator[Grid]:
    """A run at the SuperLink, with this process as its ServerApp."""
    fab = build_fab_from_disk(home.app)
    with _control(home) as control:
        answer = control.StartRun(
            StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})))
        )
    grid = _Grid(home.local, False, home.certificate, token=_token(home, answer.run_id))
    runtime = grid._runtime_client
    heart = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
    heart.start()
    status, details = SubStatus.FAILED, "ended early"
    try:
        task = runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        grid.set_run(run_from_proto(task.run))
        yield grid
        status, details = SubStatus.COMPLETED, ""
    finally:
        grid._retry_invoker.max_tries = 1  # do not wait for a SuperLink that has gone
        with suppress(httpx.HTTPError):
            runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        heart.stop()
        grid.close()


class _Grid(HttpGrid):
    """Flower's Grid, which does not wait for hours for the pieces of a reply whose sender has died.

    A reply is announced before its pieces are there. Flower then waits a second before it asks again; here it is a twentieth
    at first.
    """

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        runtime, run = self._runtime_client, self.run.run_id
        answer = runtime.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        messages = []
        for head, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            name = head.metadata.message_id
            try:
                messages.append(self._fetched(name, tree))
            except ObjectPullError:
                continue  # its sender has died while it sent; it is asked again when it is back
            runtime.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=name)
            )
        return messages

    def _fetched(self, name: str, tree: ObjectTree) -> Message:
        """The message with this id; raises ObjectPullError."""
        contents = pull_objects(
            [part.object_id for part in iterate_object_tree(tree)],
            make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id),
            max_time=_LONGEST_WAIT,
            initial_backoff=0.05,
            backoff_cap=1.0,
        )
        message = inflate_object_from_contents(name, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = name  # which the bytes of a message do not hold
        return message


def _token(home: Home, run: int) -> str:
    """The right to act as the run's ServerApp, which the federation's secret gives."""
    secret = SuperExecAuthHttpInterceptor(
        master_secret=(home.server / "secret").read_bytes(),
        protected_methods=("/flwr.proto.Runtime/AcquireTask",),
    )
    with RuntimeHttpClient.from_server_address(
        home.local,
        False,
        home.certificate,
        [RuntimeVersionHttpInterceptor(component_name="SuperExec"), secret],
    ) as client:
        for _ in range(100):  # others' runs, which nobody drives, may be in front
            answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if answer.HasField("task") and answer.task.run_id == run:
                return str(answer.token)
            if not answer.HasField("task"):
                time.sleep(0.1)
    raise FedsaddleError(
        f"{home.local}: the SuperLink gives this run to somebody else; is it started with --isolation process?"
    )


def _control(home: Home) -> ControlHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    return ControlHttpClient.from_server_address(home.local, False, home.certificate, [version])


def _register(home: Home) -> None:
    """Make the sites' keys known."""
    with _control(home) as control:
        known = {node.public_key for node in control.ListNodes(ListNodesRequest()).nodes_info}
        for name, key in home.public_keys().items():
            if key not in known:
                control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))


def _started(home: Home) -> AbstractContextManager[Process]:
    place, host = (
        home.server.resolve(),
        home.manifest.listen or home.manifest.address.rpartition(":")[0].strip("[]"),
    )
    options = (
        "--host", "127.0.0.1" if host == "localhost" else host, "--port", str(home.port),
        "--ssl-certfile", str(place / "server.crt"), "--ssl-keyfile", str(place / "server.key"),
        "--ssl-ca-certfile", str(place / "ca.crt"), "--superexec-auth-secret-file", str(place / "secret"),
        "--enable-supernode-auth", "--isolation", "process", "--disable-runtime-dependency-installation",
    )  # fmt: skip
    (place / "flower").mkdir(exist_ok=True)
    return flower(["superlink"], options, _log(home), FLWR_HOME=str(place / "flower"))


def _log(home: Home) -> Path:
    return home.server / "superlink.log"
