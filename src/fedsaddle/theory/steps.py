"""What a theorem says of a run: the run's numbers in, hyper-parameters and assumptions out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fedsaddle.errors import FedsaddleError

Value = float | Callable[[int], float]


class Assumption(StrEnum):
    """What theorems ask of a problem and of a run."""

    SMOOTH = "every client's function is L-smooth in (x, y) together"
    SMOOTH_SAMPLES = "every sample's function is L-smooth in (x, y) together"
    SMOOTH_BLOCKS = "every sample's function has the Lipschitz constants L_1, L_2, L_12, L_21"
    STRONGLY_CONVEX = "every client's function is mu_x-strongly convex"
    STRONGLY_CONCAVE = "f is mu-strongly concave in y"
    PL_DUAL = "f(x, .) satisfies the PL condition with mu (strong concavity is enough)"
    PL_PRIMAL = "phi(x) = max_y f(x, y) satisfies the PL condition"
    BOUNDED_BELOW = "the objective is bounded from below"
    LIPSCHITZ_LOSSES = "the vector of the clients' losses is L_21-Lipschitz in x"
    LIPSCHITZ_SCORES = "the pairwise loss and the score are smooth and Lipschitz"
    BOUNDED_GRADIENTS = "the gradient of every sample's function is bounded by G"
    VARIANCE = "unbiased gradients of variance at most sigma^2"
    SIMILAR_CLIENTS = "the clients' gradients are within a bounded distance of their mean"
    OWN_DUALS = "each client has a dual variable of its own (E4.1)"
    ALL_CLIENTS = "all clients take part in every round"
    DRAWN = "clients are drawn independently"
    COINS = "each client takes part independently with a fixed probability"
    IN_TURN = "groups are visited in turn"


@dataclass(frozen=True)
class Setting:
    """The numbers of a run that the theorems ask for.

    Args:
        clients: N.
        participants: M, clients that take part in a round; None for all.
        local_steps: I; None lets CyCp's pairwise theorems choose, and is 1 elsewhere.
        batch_size: samples in a local gradient; None for all local samples (no noise).
        groups: G of cyclic participation.
        accuracy: epsilon, where a theorem's steps depend on it.
    """

    clients: int
    participants: int | None = None
    local_steps: int | None = None
    batch_size: int | None = 1
    groups: int = 1
    accuracy: float | None = None

    def __post_init__(self) -> None:
        for name in ("clients", "participants", "local_steps", "batch_size", "groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FedsaddleError(f"Setting: {name} must be >= 1, got {value}")
        if self.accuracy is not None and not 0 < self.accuracy < math.inf:
            raise FedsaddleError(f"Setting: accuracy must be > 0, got {self.accuracy}")

    @property
    def M(self) -> int:
        return self.participants or self.clients

    @property
    def I(self) -> int:  # noqa: E743  the papers' letter
        return self.local_steps or 1


@dataclass(frozen=True)
class Steps:
    """Hyper-parameters that a theorem prescribes, by the names that they have in the algorithm.

    Args:
        values: a function of the round (from 0) where a value changes with the round; of a stagewise method, those of
            the first stage.
        theorem: where they come from.
        exact: whether the paper gives every constant; False where it gives an order only, and 1 stands in, or where
            its proof does not carry one.
        assumes: what the theorem asks of the problem and of the run.
        notes: what is unclear or damaged in the paper, and how it was read.
    """

    values: Mapping[str, Value]
    theorem: str
    exact: bool = True
    assumes: tuple[Assumption, ...] = ()
    notes: tuple[str, ...] = ()

    def at(self, round: int = 0) -> dict[str, float]:
        """The hyper-parameters of a round."""
        return {k: v(round) if callable(v) else v for k, v in self.values.items()}


class Comparison(NamedTuple):
    name: str
    theory: float
    configured: float
    ratio: float  # configured / theory


def compare(steps: Steps, configured: Mapping[str, float | None], round: int = 0) -> list[Comparison]:
    """What a run is configured with against what the theorem says, for every hyper-parameter that both have.

    Example:
        >>> from fedsaddle.theory import Constants, Setting, compare, scaffold
        >>> compare(scaffold(Constants.smooth(L=2.0, mu=1.0), Setting(clients=4, local_steps=4)), {"lr": 0.25})
        [Comparison(name='lr', theory=0.125, configured=0.25, ratio=2.0)]
    """
    out = []
    for name, theory in steps.at(round).items():
        value = configured.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        ratio = value / theory if theory else (math.inf if value else 1.0)
        out.append(Comparison(name, theory, float(value), ratio))
    return out
