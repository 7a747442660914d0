"""Where client work runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from fedsaddle.clients import Clients, Task

ENGINES = {
    "stacked": "the whole cohort in one batched computation (default)",
    "serial": "one client at a time, unbatched: slow and obvious, what the others are tested against",
    "torchrun": "several processes or GPUs, each with a share of the clients; started by torchrun",
}


class Engine(ABC):
    """An engine that is more than a name, such as the sites of a deployment."""

    name: ClassVar[str]

    @abstractmethod
    def clients(self, task: Task) -> Clients:
        """The clients of a run."""
