"""Algorithm: hyper-parameters in a frozen dataclass, a round on the server, client work, all in one file a family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedsaddle.clients import Clients
from fedsaddle.errors import FedsaddleError, warn
from fedsaddle.problem import Problem


class Citation(NamedTuple):
    """A paper."""

    key: str
    authors: str
    title: str
    venue: str
    year: int

    def bibtex(self) -> str:
        return (
            f"@inproceedings{{{self.key},\n  author    = {{{self.authors}}},\n  title     = {{{{{self.title}}}}},\n"
            f"  booktitle = {{{self.venue}}},\n  year      = {{{self.year}}}\n}}"
        )


@dataclass(frozen=True)
class Algorithm(ABC):
    """What every method has.

    A State is a NamedTuple that holds everything that changes on the server, vectors as [1, d], among them the iterate
    `z`. A round takes a State and returns a new one.
    """

    cites: ClassVar[Citation]

    # what the library has to know of a method, beside its code (docs/own-algorithm.md says what goes wrong otherwise)
    pairwise: ClassVar[bool] = False  # it is made for problems on pairs of samples
    shared_dual: ClassVar[bool] = True  # the y of State.z is the dual; else each client has its own
    # it goes to where all clients' fields cancel, however often each takes part; else those of its visits
    of_all: ClassVar[bool] = False
    # where clients count by samples: in the mean of their replies, or else in their own work
    weighs_replies: ClassVar[bool] = True
    stacks: ClassVar[bool] = True  # replicas can be computed together
    shaping: ClassVar[tuple[str, ...]] = ()  # real numbers that decide how many steps and rounds there are
    # values at which a real number decides a branch, as 0 always may
    branching: ClassVar[Mapping[str, float]] = {}

    @abstractmethod
    def init(self, z: Tensor, problem: Problem) -> Any:
        """The State at the start point z [1, d]."""

    @abstractmethod
    def round(self, s: Any, clients: Clients) -> Any:
        """One communication round: State -> State."""

    def memory(self, z: Tensor, problem: Problem) -> Any:
        """What a client remembers before its first work, every tensor [1, ...]; None for stateless clients."""
        return None

    @property
    def counting(self) -> str:
        """How clients count in the objective: equally ("clients"), or by their sample counts ("samples")."""
        weights: str = getattr(self, "weights", "clients")  # which methods without the choice do not have
        return weights

    @classmethod
    def is_real(cls, name: str, value: Any) -> bool:
        """Whether a hyper-parameter is a real number in formulas alone, in which replicas may differ."""
        return isinstance(value, float) and name not in cls.shaping

    def check(self, problem: Problem) -> None:
        """Refuse a problem that this algorithm is not made for."""
        if self.pairwise != problem.pairwise:
            me, it = type(self).__name__, type(problem).__name__
            if self.pairwise:
                raise FedsaddleError(
                    f"{me}: is made for losses of pairs of samples, which {it} has not; use PairwiseAUC or Contrastive"
                )
            raise FedsaddleError(
                f"{me}: cannot learn {it}, whose losses are of pairs of samples at different clients; use CyCpPairwise or "
                "RSPairwise, or pose the problem as AUC"
            )

    def _advise_whole_epochs(self, name: str, clients: Clients) -> None:
        """Warn, when a run starts, of a number of rounds that ends within a pass over all groups."""
        rounds, epoch = getattr(self, name), clients.participation.period
        if clients.round == 0 and rounds is not None and rounds % epoch:
            whole = epoch * -(-rounds // epoch)
            warn(
                f"{type(self).__name__}: {name} = {rounds} is no multiple of the {epoch} rounds of an epoch (a pass over "
                f"all groups), so it ends within one and some groups count more than others; use {name} = {whole}"
            )

    def _require_positive(self, *names: str) -> None:
        """Numbers above 0, or None where its type says so."""
        for name in names:
            value = self._number(name)
            if value is not None and not 0 < value < float("inf"):
                raise FedsaddleError(f"{type(self).__name__}: {name} must be > 0, got {value}")

    def _require_nonnegative(self, *names: str) -> None:
        """Numbers not below 0, or None where its type says so."""
        for name in names:
            value = self._number(name)
            if value is not None and not 0 <= value < float("inf"):
                raise FedsaddleError(f"{type(self).__name__}: {name} must be >= 0, got {value}")

    def _require_weights(self) -> None:
        if self.counting not in ("clients", "samples"):
            raise FedsaddleError(
                f"{type(self).__name__}: weights must be 'clients' or 'samples', got {self.counting!r}"
            )

    def _number(self, name: str) -> float | None:
        value = getattr(self, name)
        if value is None and "None" in str(self.__dataclass_fields__[name].type):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FedsaddleError(f"{type(self).__name__}: {name} must be a number, got {value!r}")
        return value
