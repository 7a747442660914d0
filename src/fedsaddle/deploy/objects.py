"""A Flower message fetched piece by piece.

A message is announced before its pieces are there. Flower then waits a second before it asks again, which is most of a phase
on a fast network; here it is a twentieth at first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

_LONGEST_WAIT = 30.0  # seconds for the pieces of a message whose sender may have died


def fetched(name: str, tree: ObjectTree, pull: Callable[[Any], Any], node: Node, run: int) -> Message:
    """The message with this id; raises Flower's ObjectPullError."""
    contents = pull_objects(
        [part.object_id for part in iterate_object_tree(tree)],
        make_pull_object_fn_protobuf(pull, node, run),
        max_time=_LONGEST_WAIT,
        initial_backoff=0.05,
        backoff_cap=1.0,
    )
    message = inflate_object_from_contents(name, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = name  # which the bytes of a message do not hold
    return message
