"""Messages to sites and their replies, over a Flower Grid: who is asked, asked again, waited for and left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedsaddle.deploy.protocol import ACTION, Missing, Reply, Request
from fedsaddle.errors import ClientWorkError, FedsaddleError, first_line

_LONGEST_REASON = 300  # characters of what a site says

Ask = Callable[[bool], Request]  # whether to send what the site should hold already -> the message
Check = Callable[[int, Reply], Any]  # raises Missing, or a FedsaddleError whose reply is then left out


class Answers(NamedTuple):
    """How an exchange ended."""

    replies: dict[int, Any]  # by site, in their order
    left_out: dict[int, str]  # and why
    refused: set[int]  # of those left out, the ones that said themselves that they cannot


class Post:
    """Messages to sites and their replies, over a Flower Grid.

    Args:
        grid: of the run, from Flower.
        sites: names of the sites, whose places are their numbers, with their public keys as Flower gives them.
        interval: seconds between two looks for replies, at most.
        look: seconds between two looks at who is connected.
    """

    def __init__(
        self, grid: Grid, sites: Mapping[str, bytes], interval: float = 1.0, look: float = 1.0
    ) -> None:
        self._grid, self._interval, self._look = grid, interval, look
        self.names = tuple(sites)
        self._number = {key: i for i, key in enumerate(sites.values())}

    def rename(self, names: Mapping[int, str]) -> None:
        """Call the sites by their own names, and number them in that order."""
        order = sorted(names, key=lambda i: names[i])
        self.names = tuple(names[i] for i in order)
        place = {old: new for new, old in enumerate(order)}
        self._number = {key: place[i] for key, i in self._number.items()}

    def connected(self) -> dict[int, NodeInfo]:
        """The sites that are connected, by number. Nodes with other keys are none of ours."""
        nodes = self._grid.get_nodes()
        found = ((self._number.get(node.public_key), node) for node in nodes)
        return {i: node for i, node in sorted((i, n) for i, n in found if i is not None)}

    def ask(self, to: Mapping[int, Ask], timeout: float, check: Check, enough: int) -> Answers:
        """Send each site its message and wait for the replies, at most so many seconds.

        Args:
            enough: with so many replies, sites that have not been connected since the beginning are not waited for.
        """
        replies: dict[int, Any] = {}
        left_out: dict[int, str] = {}
        waiting, refused = dict(to), set[int]()
        asked: dict[int, str] = {}  # when the site that was asked had connected
        mail: dict[str, int] = {}  # message -> site
        said: dict[int, str] = {}  # what Flower says of a message that got lost
        nodes: dict[int, NodeInfo] = {}
        started, next_look = time.monotonic(), 0.0
        deadline = started + timeout
        while waiting and time.monotonic() < deadline:
            if time.monotonic() >= next_look:
                nodes, next_look = self.connected(), time.monotonic() + self._look
                new = {i: n for i, n in nodes.items() if i in waiting and asked.get(i) != n.last_activated_at}
                # asked before: the site has been restarted, and has lost the message and what it was sent earlier
                mail |= self._send({n.node_id: (i, waiting[i](i in asked)) for i, n in new.items()}, timeout)
                asked |= {i: n.last_activated_at for i, n in new.items()}
            again: dict[int, tuple[int, Request]] = {}
            for message in self._grid.pull_messages(list(mail)) if mail else ():
                i = mail.pop(message.metadata.reply_to_message_id, None)
                if i is None or i not in waiting:
                    continue  # answered twice, or asked twice: the first answer counts
                if message.has_error():
                    said[i] = message.error.reason or "its message got lost"
                    continue
                try:
                    replies[i] = check(i, Reply.of(message.content))
                    del waiting[i]
                except Missing:
                    again[message.metadata.src_node_id] = i, waiting[i](True)
                except FedsaddleError as error:
                    left_out[i] = str(error)[:_LONGEST_REASON]
                    refused |= {i} if isinstance(error, ClientWorkError) else set()
                    del waiting[i]
                except Exception as error:  # bytes of a site must not end the run
                    left_out[i] = f"its answer is refused: {type(error).__name__}: {first_line(error)}"
                    del waiting[i]
            mail |= self._send(again, timeout)
            if len(replies) >= enough and not waiting.keys() & asked.keys():
                break  # the others are not connected
            if waiting:
                time.sleep(min(self._interval, 0.1 + (time.monotonic() - started) / 10))
        for i in waiting:
            late = f"no answer in {timeout:g} seconds"
            left_out[i] = f"{late} ({said[i]})" if i in said else late if i in nodes else "not connected"
        return Answers(dict(sorted(replies.items())), dict(sorted(left_out.items())), refused)

    def _send(self, to: Mapping[int, tuple[int, Request]], ttl: float) -> dict[str, int]:
        """Message ids with the site that each is for."""
        if not to:
            return {}
        messages = [
            Message(
                request.record(), node, ACTION, ttl=max(ttl, 1.0), group_id=str(request.head.get("round", ""))
            )
            for node, (_, request) in to.items()
        ]
        ids = self._grid.push_messages(messages)
        return {sent: i for sent, (i, _) in zip(ids, to.values(), strict=True) if sent}
