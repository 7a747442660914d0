"""Constants: what the theorems assume about a problem."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from fedsaddle.errors import FedsaddleError


@dataclass(frozen=True)
class Constants:
    """What the theorems assume about a problem; see the table of fedsaddle.theory.

    `Constants.smooth(L, mu)` needs only two numbers.

    Args:
        L_1, L_2, L_12, L_21: of the four blocks of the Hessian.
        L: of the whole.
        mu: strong concavity in y; 0 for merely concave, infinite without a dual variable.
        mu_x, pl: of the primal; None where not known.
        sigma: noise of one sample's gradient (of x and y together), the largest over clients.
        zeta_x, zeta_y: heterogeneity of the clients' gradients.
        G: largest norm of one sample's gradient.
        estimated: names of the fields that a probe measured; all others are given.
        detail: how they were measured.
    """

    L_1: float
    L_2: float
    L_12: float
    L_21: float
    L: float
    mu: float
    mu_x: float | None = None
    pl: float | None = None
    sigma: float | None = None
    zeta_x: float | None = None
    zeta_y: float | None = None
    G: float | None = None
    estimated: frozenset[str] = frozenset()
    detail: str = ""

    def __post_init__(self) -> None:
        for name in ("L_1", "L_2", "L_12", "L_21", "L", "sigma", "zeta_x", "zeta_y", "G"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise FedsaddleError(f"Constants: {name} must be a number >= 0, got {value}")
        if math.isnan(self.mu):
            raise FedsaddleError("Constants: mu must be a number, got nan")

    @classmethod
    def smooth(cls, L: float, mu: float, **others: float) -> Constants:
        """Constants of an L-smooth function with modulus mu, where the blocks are not told apart: each is at most L."""
        return cls(L, L, L, L, L, mu).given(**others)

    def given(self, **values: float | None) -> Constants:
        """The same with some constants set by hand, and marked as given."""
        unknown = values.keys() - {f.name for f in dataclasses.fields(self)}
        if unknown:
            raise FedsaddleError(f"Constants: has no {sorted(unknown)[0]!r}; see the fields of Constants")
        return dataclasses.replace(self, **values, estimated=self.estimated - values.keys())  # type: ignore[arg-type]

    def worst(self, other: Constants) -> Constants:
        """The larger L, noise and heterogeneity of two, and the smaller modulus; unknown where one of them is."""

        def of(name: str) -> float | None:
            a: float | None = getattr(self, name)
            b: float | None = getattr(other, name)
            if a is None or b is None:
                return None
            return min(a, b) if name in ("mu", "mu_x", "pl") else max(a, b)

        names = [f.name for f in dataclasses.fields(self) if f.name not in ("estimated", "detail")]
        measured = self.estimated | other.estimated
        return Constants(**{name: of(name) for name in names}, estimated=measured, detail=self.detail)  # type: ignore[arg-type]

    def source(self, name: str) -> Literal["given", "estimated"]:
        """Whether a field was given or measured."""
        return "estimated" if name in self.estimated else "given"

    @property
    def kappa(self) -> float:
        """Condition number L / mu; infinite for a merely concave dual."""
        return self.L / self.mu if self.mu > 0 else math.inf

    @property
    def L_phi(self) -> float:
        """Smoothness of phi: L_1 + L_12 L_21 / mu (FedSGDA, Lemma 2, whose factor 1/2 is wrong: E1.4)."""
        coupling = self.L_12 * self.L_21
        if coupling == 0:
            return self.L_1
        return self.L_1 + coupling / self.mu if self.mu > 0 else math.inf

    @property
    def zeta(self) -> float | None:
        """sqrt of (1/N) sum_i ||grad f_i - grad f||^2, over x and y together."""
        return None if self.zeta_x is None else math.hypot(self.zeta_x, self.zeta_y or 0.0)

    @property
    def D(self) -> float | None:
        """The drift bound of CODASCA's Assumption 2, for x and for y."""
        return None if self.zeta_x is None else max(self.zeta_x, self.zeta_y or 0.0)


def require(who: str, c: Constants, dual: Literal["any", "strong", "needed"] = "strong") -> None:
    """Refuse constants to which a theorem does not apply."""
    if not c.L > 0:
        raise FedsaddleError(
            f"{who}: L must be > 0, got {c.L}; a loss without curvature bounds no step; give L with constants.given(L=...)"
        )
    if dual != "any" and not c.mu > 0:
        raise FedsaddleError(
            f"{who}: the theorem needs a strongly concave dual, mu > 0, got {c.mu}; add a term -mu/2 ||y||^2 to the "
            "objective, or give a bound with constants.given(mu=...)"
        )
    if dual == "needed" and math.isinf(c.mu):
        raise FedsaddleError(
            f"{who}: the theorem is about a min-max problem, but there is no dual variable (mu = inf)"
        )
