"""Theory: the constants that the theorems of the five papers speak of, measured on a problem, and the steps they prescribe.

    constants = probe(problem, federation)                        # L, mu, sigma, ... of this problem and this data
    steps = THEOREMS["CODASCA"](constants, Setting(clients=10, local_steps=32))
    steps.values["lr"], steps.theorem, steps.exact                # what Theorem 2 says, and whether its constants are known
    compare(steps, {"lr": 0.1, "server_lr": 1.0})                 # against what a run is configured with

    symbol          | here
    ----------------+-----------------------------------------------------------------------------------------------
    L_1, L_2        | Lipschitz constants of grad_x f in x and of grad_y f in y: norms of the Hessian blocks xx and yy
    L_12, L_21      | of grad_x f in y and of grad_y f in x: norms of the blocks xy and yx, equal where f is smooth
    l, L_f (papers) | L: of the whole saddle field, the norm of the Hessian
    mu, mu_2, mu_y  | mu: strong concavity in y, the smallest eigenvalue of -yy; infinite without a dual variable
    mu_x            | smallest eigenvalue of xx: strong convexity in x, or, negative, how far f is from convex
    L_Phi, L        | L_phi: smoothness of phi(x) = max_y f(x, y)
    mu, mu_1        | pl: constant of the Polyak-Lojasiewicz condition of phi
    sigma           | sigma: standard deviation of one sample's gradient around its client's
    sigma_1, D      | zeta_x, zeta_y: root mean squared distance of the clients' gradients from their mean

Theory is careful: its steps hold for the worst problem that has these constants, and a tuned step is often ten to a thousand
times larger. What it gives reliably is how a step should change with L, the number of clients and of local steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.cohort import Batching
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.participation import Full
from fedsaddle.problem import Batch, Data, Problem

_NUMBERS_AT_ONCE = 1 << 20  # numbers of data, or of per-sample gradients, that one pass holds
_ROUNDING = 1e-10  # curvature below this share of the largest is none
_MATRIX_NUMBERS = 1 << 27  # numbers that a matrix may have, over all clients


# ------------------------------------------------------------------------------------------------- constants


@dataclass(frozen=True)
class Constants:
    """What the theorems assume about a problem; see the module's table. `Constants.smooth(L, mu)` needs only two numbers.

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


# ----------------------------------------------------------------------------------------------------- probe


def probe(
    problem: Problem,
    federation: Federation,
    at: Tensor | None = None,
    *,
    of: Literal["clients", "mean"] = "clients",
    points: int = 3,
    radius: float = 1.0,
    clients: int = 20,
    samples: int | None = None,
    steps: int = 50,
    dense: int = 256,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Constants:
    """Measure the constants of a problem on a federation's training data.

    The smoothness constants are estimates: lower bounds from `points` points (L_1, L_2, L_12, L_21, L: largest values found;
    mu, mu_x: smallest), since a Lipschitz constant holds over a region and a Hessian at one point. sigma, zeta_x, zeta_y
    and G are exact at `at`. Hessian-vector products are double backward passes through `problem.losses`; a small Hessian
    is decomposed as a whole, the extreme eigenvalues of a large one come from Lanczos' method (power iteration that also
    uses the iterates before), all clients at once. pl is the smallest curvature of phi where the Hessian is small enough
    to form, else mu_x, and None where that is not positive: phi is then not strongly convex, and may or may not satisfy
    the condition.

    Constants are those of `problem.losses`. AUC(dual="margin") moves its dual variable in another direction, which they do
    not describe. Some papers ask for smoothness of every sample's function; that of a client's mean is smaller.

    Args:
        at: point [d] in whose neighbourhood to measure; the problem's start by default.
        of: "clients": the largest L and the smallest mu over the clients' own f_i, which bound those of the mean, too;
            "mean": those of (1/N) sum_i f_i.
        points: `at` and points - 1 random points at distance `radius` from it.
        clients: at most so many clients, evenly spaced.
        samples: at most so many samples a client, evenly spaced; None for all.
        steps: of Lanczos' method.
        dense: a Hessian (or its dual block) with at most so many rows is formed and decomposed.
        seed: of the points and of the start vectors.
        device, dtype: where and in which precision to compute.

    Example:
        >>> import fedsaddle as fs
        >>> from fedsaddle.theory import probe
        >>> federation = fs.quadratic_federation(clients=4, dim_x=5, dim_y=3)
        >>> constants = probe(fs.QuadraticSaddle(5, 3), federation)
        >>> constants.L_1 <= constants.L, constants.source("mu")
        (True, 'estimated')
    """
    for name, value in (("points", points), ("clients", clients), ("samples", samples), ("steps", steps)):
        if value is not None and value < 1:
            raise FedsaddleError(f"probe: {name} must be >= 1, got {value}")
    if not 0 <= radius < math.inf:
        raise FedsaddleError(f"probe: radius must be >= 0, got {radius}")
    if of not in ("clients", "mean"):
        raise FedsaddleError(f"probe: of must be 'clients' or 'mean', got {of!r}")
    problem.check(federation)
    rows = _Rows(problem, federation, clients, samples, torch.device(device), dtype)
    centre = (rows.problem.init() if at is None else at).reshape(1, -1).to(device, dtype)
    if centre.shape[-1] != rows.d:
        raise FedsaddleError(f"probe: at must have {rows.d} numbers (n_x + n_y), got {centre.shape[-1]}")
    random = torch.Generator().manual_seed(seed)
    curves = []
    for k in range(points):
        z = centre
        if k:
            direction = torch.randn(centre.shape, generator=random, dtype=torch.float64)
            z = centre + radius * (direction / direction.norm()).to(centre)
        curves.append(_curvature(rows, z, of == "mean", steps, dense, random))
    noise = _gradients(rows, centre)
    share = "" if federation.n_clients == rows.S else f", {rows.S} of {federation.n_clients} clients"
    share += "" if samples is None else f", at most {samples} samples a client"
    measured = {**_worst(curves), **noise._asdict()}
    return Constants(
        **measured,
        estimated=frozenset(k for k, v in measured.items() if v is not None),
        detail=f"estimate: a lower bound from {points} point{'s' * (points > 1)} ({of}{share})",
    )


class _Curvature(NamedTuple):
    """What one point tells."""

    L_1: float
    L_2: float
    L_12: float
    L: float
    mu: float
    mu_x: float
    pl: float  # smallest curvature of phi


class _Noise(NamedTuple):
    sigma: float
    zeta_x: float
    zeta_y: float
    G: float


def _worst(curves: list[_Curvature]) -> dict[str, float | None]:
    """The largest L and the smallest modulus over points; a modulus of zero up to rounding is zero."""
    out: dict[str, float | None] = {
        name: max(getattr(c, name) for c in curves) for name in ("L_1", "L_2", "L_12", "L")
    }
    out["L_21"] = out["L_12"]
    rounding = _ROUNDING * max(c.L for c in curves)
    for name in ("mu", "mu_x", "pl"):
        modulus = min(getattr(c, name) for c in curves)
        out[name] = modulus if abs(modulus) > rounding else 0.0
    if min(c.pl for c in curves) <= rounding:
        out["pl"] = None
    return out


class _Rows:
    """The probed clients, each one row of [S, d], and their samples."""

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        clients: int,
        samples: int | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        everybody = Simulation(
            problem, federation, Full(), batching=Batching(None), device=device, dtype=dtype
        )
        self.problem = everybody.problem.prepare(everybody)
        self.data: Data = everybody.data
        owners = federation.sizes.nonzero().squeeze(-1)
        if len(owners) == 0:
            raise FedsaddleError("probe: the federation has no samples; give at least one client data")
        chosen = owners[torch.linspace(0, len(owners) - 1, min(clients, len(owners))).round().long()]
        self._first = federation.offsets[chosen].unsqueeze(-1).to(device)
        self._size = federation.sizes[chosen].unsqueeze(-1).to(device)
        self._kept = self._size.clamp(max=samples or int(self._size.max()))
        self._longest = int(self._kept.max())
        self.S = len(chosen)
        self.n_x, self.n_y = self.problem.n_x, self.problem.n_y
        self.d = self.n_x + self.n_y
        self._per_sample = sum(v[0].numel() for v in self.data.values())

    def pieces(self, numbers_a_sample: int = 1) -> Iterator[Batch]:
        """All samples of all clients: fields [S, B, ...], weights [S, B] that sum to one over a client's samples."""
        length = max(1, _NUMBERS_AT_ONCE // (self.S * max(numbers_a_sample, self._per_sample)))
        for start in range(0, self._longest, length):
            j = torch.arange(start, min(start + length, self._longest), device=self._kept.device)
            w = (j < self._kept) / self._kept.double()
            row = self._first + torch.minimum(j, self._kept - 1) * self._size // self._kept  # evenly spaced
            yield Batch({k: v[row] for k, v in self.data.items()}, w)

    def hessian(self, z: Tensor, mean: bool) -> Operator:
        """v -> H v, row by row: [S, d] with each client's own Hessian, or [1, d] with that of their mean."""
        at = z.expand(self.S, -1).detach().requires_grad_()
        # where the data are one piece, the graph of its gradient serves every product
        small = self._longest * self.S * self._per_sample <= _NUMBERS_AT_ONCE
        kept = [self.gradient(at, batch) for batch in self.pieces()] if small else None

        def product(v: Tensor) -> Tensor:
            out = torch.zeros_like(at)
            for g in kept or (self.gradient(at, batch) for batch in self.pieces()):
                if g.requires_grad:  # else piecewise linear: no curvature
                    out += _differentiate(g, at, v.expand(self.S, -1), retain_graph=small)
            return out.mean(0, keepdim=True) if mean else out

        return product

    def gradient(self, z: Tensor, batch: Batch, create_graph: bool = True) -> Tensor:
        """Gradient of every row's loss in that row of z."""
        with torch.enable_grad():
            value = (self.problem.losses(z, batch.data) * batch.w).sum()
            return (
                _differentiate(value, z, create_graph=create_graph)
                if value.requires_grad
                else torch.zeros_like(z)
            )


def _differentiate(value: Tensor, z: Tensor, direction: Tensor | None = None, **graph: bool) -> Tensor:
    """Gradient in z; zero where the value does not depend on it."""
    return torch.autograd.grad(value, z, direction, allow_unused=True, materialize_grads=True, **graph)[0]


Operator = Callable[[Tensor], Tensor]


def _curvature(
    rows: _Rows, z: Tensor, mean: bool, steps: int, dense: int, random: torch.Generator
) -> _Curvature:
    H = rows.hessian(z, mean)
    R, n_x, n_y, d = (1 if mean else rows.S), rows.n_x, rows.n_y, rows.d
    if d <= dense and R * d * d <= _MATRIX_NUMBERS:
        return _from_matrix(_columns(H, range(d), R, z), n_x)
    on_x = (torch.arange(d, device=z.device) < n_x).to(z)
    v = torch.randn((R, d), generator=random, dtype=torch.float64).to(z)
    low, high = _extremes(lambda v: on_x * H(v), on_x * v, min(steps, n_x))
    L_1, mu_x = _magnitude(low, high), _number(low.min())
    low, high = _extremes(H, v, min(steps, d))
    L = _magnitude(low, high)
    pl = mu_x  # phi is at least as curved as f in x
    if n_y == 0:
        return _Curvature(L_1, 0.0, 0.0, L, math.inf, mu_x, pl)
    if n_y <= dense and R * d * n_y <= _MATRIX_NUMBERS:
        columns = _columns(H, range(n_x, d), R, z)
        values = torch.linalg.eigvalsh(columns[:, n_x:])
        low, high = -values[:, -1], -values[:, 0]  # of -yy
        L_12 = _number(torch.linalg.matrix_norm(columns[:, :n_x], ord=2).max())
    else:
        on_y = 1 - on_x
        low, high = _extremes(lambda v: -on_y * H(v), on_y * v, min(steps, n_y))
        _, square = _extremes(lambda v: on_x * H(on_y * H(v)), on_x * v, min(steps, n_x))  # xy yx
        L_12 = math.sqrt(max(0.0, _number(square.max())))
    return _Curvature(L_1, _magnitude(low, high), L_12, L, _number(low.min()), mu_x, pl)


def _from_matrix(H: Tensor, n_x: int) -> _Curvature:
    """All constants from the Hessians themselves: [R, d, d]."""
    x = torch.linalg.eigvalsh(H[:, :n_x, :n_x])
    L_1, L, mu_x = (_number(v) for v in (x.abs().max(), torch.linalg.eigvalsh(H).abs().max(), x.min()))
    M = H.mean(0)
    phi, xy, yy = M[:n_x, :n_x], M[:n_x, n_x:], M[n_x:, n_x:]
    L_2, L_12, mu = 0.0, 0.0, math.inf
    if H.shape[-1] > n_x:
        y = torch.linalg.eigvalsh(-H[:, n_x:, n_x:])
        L_2, mu = _number(y.abs().max()), _number(y.min())
        L_12 = _number(torch.linalg.matrix_norm(H[:, :n_x, n_x:], ord=2).max())
        if mu > _ROUNDING * L:
            phi = phi - xy @ torch.linalg.solve(yy, xy.mT)  # phi'' = xx + xy (-yy)^-1 yx
    return _Curvature(L_1, L_2, L_12, L, mu, mu_x, _number(torch.linalg.eigvalsh(phi)[0]))


def _columns(H: Operator, which: range, R: int, like: Tensor) -> Tensor:
    """The columns of H with these indices: [R, d, columns]."""

    def unit(j: int) -> Tensor:
        e = torch.zeros_like(like)
        e[..., j] = 1
        return e.expand(R, -1)

    return torch.stack([H(unit(j)) for j in which], dim=-1)


def _extremes(operator: Operator, v: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest eigenvalue of symmetric operators, one a row, by Lanczos' method from v [R, d]: [R], [R].

    Only the last two vectors are kept: what rounding then costs is copies of eigenvalues that were found already, which
    do not matter here. A row whose Krylov space is exhausted (as with tied eigenvalues) keeps the values it has.
    """
    steps = max(2, steps)
    before, q = torch.zeros_like(v), v / v.norm(dim=-1, keepdim=True)
    alphas, betas = [], []
    for _ in range(steps):
        w = operator(q)
        alphas.append((w * q).sum(-1))
        for p in (before, q, before, q):  # twice, against rounding
            w = w - (w * p).sum(-1, keepdim=True) * p
        betas.append(w.norm(dim=-1))
        before, q = q, w / betas[-1].clamp(min=torch.finfo(w.dtype).tiny).unsqueeze(-1)
    diagonal, off = torch.stack(alphas, -1).double().cpu(), torch.stack(betas, -1).double().cpu()
    low, high = [], []
    for a, b in zip(diagonal, off, strict=True):
        ended = (b <= 1e3 * torch.finfo(v.dtype).eps * a.abs().max().clamp(min=b[0])).nonzero()
        n = int(ended[0]) + 1 if len(ended) else steps
        values = torch.linalg.eigvalsh(
            torch.diag(a[:n]) + torch.diag(b[: n - 1], 1) + torch.diag(b[: n - 1], -1)
        )
        low.append(values[0])
        high.append(values[-1])
    return torch.stack(low), torch.stack(high)


def _magnitude(low: Tensor, high: Tensor) -> float:
    return _number(torch.maximum(low.abs(), high.abs()).max())


def _number(value: Tensor) -> float:
    return float(value.item())


def _gradients(rows: _Rows, z: Tensor) -> _Noise:
    """Noise and heterogeneity of the gradients at z, over all samples.

    Every sample is a row of its own, with its own copy of z: one backward pass gives all their gradients.
    """

    def each(batch: Batch) -> Tensor:
        one = {k: v.flatten(0, 1).unsqueeze(1) for k, v in batch.data.items()}
        copies = z.expand(batch.w.numel(), -1).detach().requires_grad_()
        g = rows.gradient(copies, Batch(one, torch.ones_like(batch.w).reshape(-1, 1)), create_graph=False)
        return g.double().view(*batch.w.shape, -1)  # [S, B, d]

    mean = z.new_zeros(rows.S, rows.d, dtype=torch.float64)
    for batch in rows.pieces(rows.d):
        mean += torch.einsum("sb,sbd->sd", batch.w, each(batch))
    variance, largest = mean.new_zeros(rows.S), 0.0
    for batch in rows.pieces(rows.d):
        g = each(batch)
        variance += (batch.w * (g - mean.unsqueeze(1)).square().sum(-1)).sum(-1)
        largest = max(largest, _number(g.norm(dim=-1).max()))
    apart = (mean - mean.mean(0)).square().mean(0)
    zeta_x, zeta_y = (math.sqrt(_number(part.sum())) for part in (apart[: rows.n_x], apart[rows.n_x :]))
    return _Noise(math.sqrt(_number(variance.max())), zeta_x, zeta_y, largest)


# ----------------------------------------------------------------------------------------------------- steps

Value = float | Callable[[int], float]


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
    """Hyper-parameters that a theorem prescribes.

    Args:
        values: by the name of the hyper-parameter; a function of the round (from 0) where it changes with the round.
        theorem: where they come from.
        exact: whether the paper gives every constant; False where it gives an order only, and 1 stands in.
        assumes: what the theorem asks of the problem and of the run.
        notes: what is unclear or damaged in the paper, and how it was read.
    """

    values: Mapping[str, Value]
    theorem: str
    exact: bool = True
    assumes: tuple[str, ...] = ()
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


def _require(who: str, c: Constants, dual: Literal["any", "strong", "needed"] = "strong") -> None:
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


def _over(value: float) -> float:
    """1 / value, infinite at 0: the condition then does not bind."""
    return 1.0 / value if value else math.inf


# ------------------------------------------------------------------------------------- CODASCA, CODA+ and NPA

_STAGEWISE = (
    "every client's function is L-smooth in (x, y) together, for every sample",
    "f is mu-strongly concave in y",
    "phi(x) = max_y f(x, y) satisfies the PL condition",
    "unbiased gradients of variance at most sigma^2",
)
_ALL_CLIENTS = "all clients take part in every round"


def _single_step(c: Constants) -> float:
    """min(1/(3 l + 3 l^2/mu_2), 1/(4 l)) of CODASCA, Lemma 1."""
    return min(1 / (3 * c.L + 3 * c.L**2 / c.mu), 1 / (4 * c.L))


def _stage_length(c: Constants, lr: float) -> float:
    """T_1 = 212 / (eta_0 min(l, mu_2)) iterations (CODASCA, Theorem 1)."""
    return 212 / (lr * min(c.L, c.mu))


def _stage_rate(c: Constants) -> float | None:
    """c = (mu/Lhat) / (5 + mu/Lhat), Lhat = L_phi + 2 l (CODASCA, Theorem 1); None without the PL constant."""
    if c.pl is None:
        return None
    ratio = c.pl / (c.L_phi + 2 * c.L)
    return ratio / (5 + ratio)


def _drift(c: Constants) -> float:
    """3 l^2/(2 mu_2) + 3 l/2, the factor of the client drift (CODASCA, Lemma 1)."""
    return 1.5 * c.L**2 / c.mu + 1.5 * c.L


def _noise(c: Constants, batch_size: int | None) -> float | None:
    """sigma^2 of a minibatch gradient."""
    if batch_size is None:
        return 0.0
    return None if c.sigma is None else c.sigma**2 / batch_size


_NO_PL = (
    "the PL constant of phi is not known, so no decay between stages: give it with constants.given(pl=...)"
)
_NO_NOISE = (
    "full local gradients have no noise, and the theorem asks for a drift below the noise: no step size or interval is "
    "short enough, and the drift remains as a bias"
)


def codasca(c: Constants, run: Setting) -> Steps:
    """CODASCA, Theorem 2.

        etatilde = min(1/(3 l + 3 l^2/mu_2), mu_2/(40 l^2)),   eta_g = sqrt(N),   eta_l = etatilde / (eta_g I_s),
        gamma = 2 l,   R = 1000 / (etatilde mu_2),   I_s = I_0 exp(a (s-1)),   eta_l decays by exp(-a) a stage,
        a = 2 mu/(c + 2 mu),   c = 4 l + (248/53) Lhat,   Lhat = L_phi + 2 l,   mu the PL constant.

    Args:
        run: clients, local_steps (I_0).
    """
    _require("CODASCA", c)
    effective = min(1 / (3 * c.L + 3 * c.L**2 / c.mu), c.mu / (40 * c.L**2))
    server_lr = math.sqrt(run.clients)
    values: dict[str, Value] = {
        "lr": effective / (server_lr * run.I),
        "server_lr": server_lr,
        "local_steps": run.I,
        "gamma": 2 * c.L,
        # the proof divides by min(l, mu_2), which is mu_2 wherever there is a dual variable
        "stage_rounds": math.ceil(1000 / (effective * min(c.L, c.mu))),
        "stage_growth": 1.0,
    }
    notes = [
        "the theorem writes mu_1 and mu for the same PL constant (E3.9); its proof also takes I_s = I_0 2^s once"
    ]
    if c.pl is None:
        notes.append(_NO_PL)
    else:
        a = 2 * c.pl / (4 * c.L + 248 / 53 * (c.L_phi + 2 * c.L) + 2 * c.pl)
        values |= {"lr_decay": math.exp(-a), "interval_growth": math.exp(a)}
    return Steps(values, "CODASCA, Theorem 2", assumes=(*_STAGEWISE, _ALL_CLIENTS), notes=tuple(notes))


def coda_plus(c: Constants, run: Setting) -> Steps:
    """CODA+: CODASCA, Theorem 1 and Lemma 1.

        eta_0 <= min(1/(3 l + 3 l^2/mu_2), 1/(4 l)),   gamma = 2 l,   eta_s = eta_0 exp(-(s-1) c),
        T_s = 212 / (eta_0 min(l, mu_2)) exp((s-1) c),   c = (mu/Lhat)/(5 + mu/Lhat),

    and I_s such that the drift stays below the noise (appendix B):

        (3 l^2/(2 mu_2) + 3 l/2) (12 eta_s^2 I_s sigma^2 + 36 eta_s^2 I_s^2 D^2) <= eta_s sigma^2 / N   unless I_s = 1.

    which bounds the step size for the run's I. At the largest eta_0 it holds for I = 1 only.

    Args:
        run: clients, local_steps, batch_size.
    """
    _require("CODAPlus", c)
    lr, N, I, noise, D = _single_step(c), run.clients, run.I, _noise(c, run.batch_size), c.D
    exact, notes = True, []
    if I == 1:
        notes.append(
            "one local step does not drift; I_s may grow once the step has become small enough for I = 2"
        )
    elif noise is None or D is None:
        exact = False
        notes.append(
            "sigma or D unknown: lr <= 1/(N I^2), which is an order; probe, or give sigma and zeta_x"
        )
        lr = min(lr, 1 / (N * I**2))
    elif noise > 0:
        lr = min(lr, 1 / (_drift(c) * N * (12 * I + 36 * I**2 * D**2 / noise)))
    elif D > 0:
        exact = False
        notes.append(_NO_NOISE)
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": I,
        "gamma": 2 * c.L,
        "stage_rounds": math.ceil(_stage_length(c, lr) / I),
    }
    rate = _stage_rate(c)
    if rate is None:
        notes.append(_NO_PL)
    else:
        # I_s ~ 1/eta_s with equal clients, 1/sqrt(eta_s) else
        values |= _growth(rate, 0.0 if I == 1 else rate if D == 0 else rate / 2)
        notes.append("Theorem 1's rate c; the proof has 2 mu/(4 l + (248/53) Lhat + 2 mu) in its place")
    return Steps(
        values,
        "CODASCA, Theorem 1 (CODA+)",
        exact,
        (*_STAGEWISE, _ALL_CLIENTS, "the clients' gradients are within D of their mean"),
        tuple(notes),
    )


def _growth(rate: float, interval: float) -> dict[str, Value]:
    """A stage's step shrinks by exp(-rate), its iterations grow by exp(rate) and its local steps by exp(interval)."""
    return {
        "lr_decay": math.exp(-rate),
        "interval_growth": math.exp(interval),
        "stage_growth": math.exp(rate - interval),
    }


def npa(c: Constants, run: Setting) -> Steps:
    """NPA: CODASCA, Theorem 3 (appendix C): CODA+ with I = 1.

        large minibatch, b >= 1/(N mu epsilon):  eta_s = min(1/(3 l + 3 l^2/mu_2), 1/(4 l)), T_s = 212/(eta_s min(l, mu_2))
        else:                                    eta_s and T_s of CODA+

    Args:
        run: clients, batch_size, and accuracy to decide whether the minibatch is large.
    """
    _require("NPA", c)
    lr, rate = _single_step(c), _stage_rate(c)
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": 1,
        "gamma": 2 * c.L,
        "stage_rounds": math.ceil(_stage_length(c, lr)),
        "interval_growth": 1.0,
    }
    notes: tuple[str, ...] = ()
    if run.batch_size is None:
        large = True  # no noise
    else:
        large = (
            run.accuracy is not None
            and c.pl is not None
            and run.batch_size >= 1 / (run.clients * c.pl * run.accuracy)
        )
    if large:
        values |= {"lr_decay": 1.0, "stage_growth": 1.0}
    elif rate is None:
        notes = (_NO_PL,)
    else:
        values |= {"lr_decay": math.exp(-rate), "stage_growth": math.exp(rate)}
    return Steps(
        values,
        f"CODASCA, Theorem 3 ({'2' if large else '1'}) (NPA)",
        assumes=(*_STAGEWISE, _ALL_CLIENTS),
        notes=notes,
    )


# ---------------------------------------------------------------------------------------------------- FedSGDA


def fedsgda(c: Constants, run: Setting, estimator: Literal["MB", "STORM", "SPIDER"] = "MB") -> Steps:
    """FedSGDA, Theorems 1 (MB), 2 (STORM) and 3 (SPIDER).

        gamma = min(1/(2 L_2), 1/mu, 1/L_21, 1/(192 Lt I)),      eta = min(1/(4 L_1), 1/L_phi, 1/(42 L_21), gamma,
        Lt = 2 (L_phi + L_f),                                              mu^2 gamma / (3 L_12^2)),
        L_f = max(sqrt(2 (L_1^2 + L_21^2)), sqrt(2 (L_2^2 + L_12^2)))                                       (Lemma 1)
        STORM:  gamma_r = min(gamma, M^(1/3) / (Lt I (r+1)^(1/3))),   alpha_r = beta_r = 2304 Lt^2 I^2 gamma_r^2
        SPIDER: period m = M, large cohort M^2

    Args:
        run: local_steps (I), participants (M).
        estimator: "MB", "STORM" or "SPIDER".
    """
    _require("FedSGDA", c, "needed")
    L_f = math.sqrt(2) * max(math.hypot(c.L_1, c.L_21), math.hypot(c.L_2, c.L_12))
    Lt, I, M = 2 * (c.L_phi + L_f), run.I, run.M
    dual = min(_over(2 * c.L_2), 1 / c.mu, _over(c.L_21), 1 / (192 * Lt * I))

    def primal(gamma: float) -> float:
        bounds = (
            _over(4 * c.L_1),
            _over(c.L_phi),
            _over(42 * c.L_21),
            gamma,
            c.mu**2 * gamma * _over(3 * c.L_12**2),
        )
        return min(bounds)

    assumes = (
        "every sample's function has the Lipschitz constants L_1, L_2, L_12, L_21",
        "f(x, .) satisfies the PL condition with mu (strong concavity is enough)",
        "the clients' gradients are within a bounded distance of their mean",
        "clients are drawn independently",
    )
    notes = ["L_phi = L_1 + L_12 L_21/mu; Lemma 2 prints /(2 mu), which is too small (E1.4)"]
    values: dict[str, Value] = {"lr": primal(dual), "lr_dual": dual, "local_steps": I}
    if estimator == "MB":
        return Steps(values, "FedSGDA, Theorem 1 (MB)", assumes=assumes, notes=tuple(notes))
    if estimator == "SPIDER":
        values |= {"period": M, "large_cohort": M**2}
        notes.append(
            "the theorem fixes the period m = S and leaves the large cohort open; S^2 is the paper's remark"
        )
        return Steps(values, "FedSGDA, Theorem 3 (SPIDER)", assumes=assumes, notes=tuple(notes))
    if estimator != "STORM":
        raise FedsaddleError(f"FedSGDA: estimator must be 'MB', 'STORM' or 'SPIDER', got {estimator!r}")

    def gamma(r: int) -> float:
        return min(dual, math.cbrt(M / (r + 1)) / (Lt * I))

    def weight(r: int) -> float:
        return 2304 * (Lt * I * gamma(r)) ** 2

    values |= {"lr": lambda r: primal(gamma(r)), "lr_dual": gamma, "alpha": weight, "beta": weight}
    return Steps(values, "FedSGDA, Theorem 2 (STORM)", assumes=assumes, notes=tuple(notes))


# ------------------------------------------------------------------------------------------------------- CyCp


def cycp_minimax(c: Constants, run: Setting) -> Steps:
    """CyCp-Minimax: CyCp, Theorem 4.5 and Lemma B.5.

    Schedules as in CODA+ (eta_s, T_s = E_s G I_s, gamma = 2 l), and from the proof, with the bound B on single gradients:

        eta G I <= min(1/(3 l + 3 l^2/mu_2), 1/(4 l)),
        (3 l^2/(2 mu_2) + 3 l/2) 36 eta_s^2 I_s^2 G^2 B^2 <= eta_s sigma^2 / M,    hence I_s ~ 1/(G sqrt(M eta_s)).

    Args:
        run: groups (G), participants (M a visit), local_steps, batch_size.
    """
    _require("CyCpMinimax", c)
    G, M, I, noise = run.groups, run.M, run.I, _noise(c, run.batch_size)
    lr = _single_step(c) / (G * I)
    notes = [
        "Lemma B.5 prints the first condition for eta alone; its proof compares with 1/(2 eta K I), so that the product "
        "of eta with the groups K and the local steps I must be so small",
        "sigma^2/K of Lemma B.5 is sigma^2/M (E2.7)",
    ]
    exact = True
    if noise is None or c.G is None:
        exact = False
        notes.append("sigma or G unknown: I = 1/(G sqrt(M lr)), which is an order; probe, or give them")
        lr = min(lr, 1 / (M * (G * I) ** 2))
    elif noise == 0:
        exact = False
        notes.append(_NO_NOISE)
    elif c.G > 0:
        lr = min(lr, noise / (36 * _drift(c) * M * (I * G * c.G) ** 2))
    epochs = math.ceil(_stage_length(c, lr) / (G * I))
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": I,
        "gamma": 2 * c.L,
        "stage_epochs": epochs,
        "stage_rounds": epochs * G,
    }
    rate = _stage_rate(c)
    if rate is None:
        notes.append(_NO_PL)
    else:
        values |= _growth(rate, rate / 2)
        notes.append("Theorem 4.5's rate c; the proof has 2 mu/(c' + 2 mu) with another constant c' (E2.7)")
    assumes = (
        *_STAGEWISE,
        "the gradient of every sample's function is bounded by G",
        "groups are visited in turn",
    )
    return Steps(values, "CyCp, Theorem 4.5 (Minimax)", exact, assumes, tuple(notes))


def cycp_pairwise(c: Constants, run: Setting) -> Steps:
    """CyCp-Pairwise: CyCp, Theorems 5.2 and, where the PL constant is known, 5.3. Orders only: every constant is 1.

        5.2:  eta = epsilon^2 M,               I = 1/(M G epsilon),         E = 1/epsilon^3
        5.3:  eta = mu epsilon_s M / sigma^2,  I = 1/(G sqrt(M eta)),       E = 1/(mu^(3/2) epsilon_s^(1/2))
        both: eta I G L <= 1                                                                          (proof, after (66))

    Args:
        run: groups (G), participants (M a visit), local_steps, batch_size, accuracy (of the first stage for 5.3).
    """
    _require("CyCpPairwise", c, "any")
    if run.accuracy is None:
        raise FedsaddleError(
            "CyCpPairwise: the theorem's steps depend on the accuracy; pass Setting(accuracy=...), such as 0.1"
        )
    G, M, eps, noise = run.groups, run.M, run.accuracy, _noise(c, run.batch_size)
    notes = ["the theorem gives orders; every constant is taken as 1"]
    assumes = [
        "the pairwise loss and the score are smooth and Lipschitz",
        "gradients have variance at most sigma^2, and the clients' are within D of their mean",
        "groups are visited in turn",
    ]
    growth: dict[str, Value] = {}
    if c.pl is not None and noise:
        lr = c.pl * eps * M / noise
        interval, epochs = 1 / (G * math.sqrt(M * lr)), 1 / (c.pl**1.5 * math.sqrt(eps))
        growth = _growth(math.log(2), math.log(2) / 2)
        theorem = "CyCp, Theorem 5.3 (Pairwise, PL)"
        assumes.append("F satisfies the PL condition")
        notes.append("I = 1/(G sqrt(M eta)); the theorem prints 1/sqrt(G eta) (E2.6)")
        notes.append(
            "the proof halves nothing in print: stages with epsilon_s = epsilon_0 / 2^s are our reading"
        )
    else:
        lr, interval, epochs = eps**2 * M, 1 / (M * G * eps), 1 / eps**3
        theorem = "CyCp, Theorem 5.2 (Pairwise)"
    I = run.local_steps or max(1, math.floor(interval))
    lr = min(lr, 1 / (c.L * I * G))
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": I,
        "stage_epochs": math.ceil(epochs),
        "stage_rounds": math.ceil(epochs) * G,
        **growth,
    }
    return Steps(values, theorem, False, tuple(assumes), tuple(notes))


# ------------------------------------------------------------------------------------------------------ FFMDR


def ffmdr(c: Constants, run: Setting, rate: bool = False) -> Steps:
    """FFMDR, Theorem 1 with the free numbers of Remark 1 (delta_beta = 1/4, delta' = 1/8, tau^2 = 1/8, iota = 1/64).

        L = L_f (1 + kappa),      (1 + beta L)^2 - 3/2 + (5/2) beta L < -1/4,   so beta < (sqrt(85) - 9)/(4 L),
        (2 Gamma/(1/beta - L)^2 + 1/(2 tau^2 (1/beta - L))) 6 C L^2 eps <= 1/(16 beta),     12 max(1, L) eps <= 1/4,
        Gamma = (1 + iota)^2/(beta iota) + (2/beta)(1/iota + beta L - 1),
        C = 2 ((L_f + 1/beta)^2/mu^2 + 1)(L_f + 1/beta)^2.

    `inner_modulus` is min(1/beta + mu_x, mu) (mu_x counts where it is negative): the strong monotonicity of a client's
    subproblem, by which an inner residual bounds the distance to its solution.

    Args:
        run: clients, participants.
        rate: also meet Theorem 2's condition C eps/(2 (1/beta - L)) + 6 L^2 sum_i p_i <= 1/(8 beta), half by half.
    """
    _require("FFMDR", c)
    kappa = c.L / c.mu
    L = c.L * (1 + kappa)
    beta = (math.sqrt(85) - 9) / (4 * L)
    if rate:
        beta = min(beta, 1 / (96 * L**2 * run.M))  # sum_i p_i = M
    iota, tau2, gap = 1 / 64, 1 / 8, 1 / beta - L
    C = 2 * (((c.L + 1 / beta) / c.mu) ** 2 + 1) * (c.L + 1 / beta) ** 2
    big_gamma = (1 + iota) ** 2 / (beta * iota) + 2 / beta * (1 / iota + beta * L - 1)
    eps = min(
        1 / (16 * beta) / ((2 * big_gamma / gap**2 + 1 / (2 * tau2 * gap)) * 6 * C * L**2),
        1 / (48 * max(1.0, L)),
        gap / (8 * beta * C) if rate else math.inf,
    )
    values: dict[str, Value] = {
        "beta": beta,
        "eps": eps,
        "relaxation": 1.0,
        "inner_modulus": min(
            1 / beta + min(c.mu_x or 0.0, 0.0) if c.mu_x is not None else 1 / beta - c.L, c.mu
        ),
    }
    return Steps(
        values,
        f"FFMDR, Theorem {2 if rate else 1}",
        assumes=(
            "every client's function is L-smooth and mu-strongly concave in y",
            "each client takes part independently with a fixed probability",
            "the objective is bounded from below; each client has a dual variable of its own (E4.1)",
        ),
        notes=(
            "beta must be strictly smaller; Remark 1 prints (sqrt(82) - 9)/L, which violates its own condition (E4.6)",
            "eps from Theorem 1's condition (59): Remark 1's (392/96)(1 - beta L)^2/(beta^3 C L^2) is upside down, the "
            "condition gives about (1 - beta L)^2/(392 * 96 beta^2 C L^2)",
            "kappa = L_f/mu, printed L_f/n (E4.5)",
        ),
    )


# --------------------------------------------------------------------------------------------------- SCAFF-PD


def scaff_pd(c: Constants, run: Setting, gamma_0: float = 1.0) -> Steps:
    """SCAFF-PD: Theorem 5.5 where the dual is strongly concave (mu > 0), Theorem 5.1 where it is not (mu = 0).

    Constant steps (B.51-B.54), L_xx = L_1, L_lx = L_21, mu_lambda = mu (chi^2: rho N):

        1/(1 - theta) = k + sqrt(k^2 + 8 L_lx^2/(mu_x mu_lambda)),   k = 1/2 + 24 L_xx/mu_x,
        tau = 4 (1 - theta)/(mu_x theta),   sigma = (1 - theta)/(mu_lambda theta).

    Growing weights (Condition 5.1, Lemma B.3 and B.35 with delta = c_alpha = 1/2):

        1/(2 tau_0) = 12 L_xx + 4 L_lx^2 gamma_0 tau_0,   gamma_{r+1} = gamma_r (1 + mu_x tau_r),
        tau_r = tau_0 sqrt(gamma_0/gamma_r),   sigma_r = gamma_r tau_r,   theta_0 = 1,   theta_r = sigma_{r-1}/sigma_r.

    Local steps: tau = J eta_l eta_g, and the drift cancels (B.18) when 36 u + 2 u^2 <= eta_g^2/16, u = tau L_xx, which
    gives server_lr = eta_g and lr = eta_l = tau/(J eta_g).

    Args:
        run: local_steps (J); accuracy adds 1/(1 - theta) >= sigma^2/(mu_x accuracy) for noisy gradients.
        gamma_0: first weight of the second schedule; the paper leaves it free.
    """
    _require("ScaffPD", c, "any")
    if c.mu_x is None or not c.mu_x > 0:
        raise FedsaddleError(
            f"ScaffPD: the theorems need strongly convex clients, mu_x > 0, got {c.mu_x}; add mu_x/2 ||x||^2 to the loss, "
            "or give a bound with constants.given(mu_x=...)"
        )
    if math.isinf(c.mu):
        raise FedsaddleError(
            "ScaffPD: the theorems need the modulus of the dual regulariser, and the problem has no dual variable; give it "
            "with constants.given(mu=..., L_21=...): rho N for chi^2, 0 for AFL and CVaR"
        )
    if c.mu < 0 or not gamma_0 > 0:
        what, value = ("mu", c.mu) if c.mu < 0 else ("gamma_0", gamma_0)
        raise FedsaddleError(f"ScaffPD: {what} must be {'>= 0' if what == 'mu' else '> 0'}, got {value}")
    assumes = (
        "every client's function is mu_x-strongly convex and L_1-smooth",
        "the loss vector is L_21-Lipschitz in x",
        _ALL_CLIENTS,
    )
    if c.mu == 0:
        return _scaff_pd_growing(c, run, gamma_0, assumes)
    k = 0.5 + 24 * c.L_1 / c.mu_x
    omega = k + math.sqrt(k**2 + 8 * c.L_21**2 / (c.mu_x * c.mu))
    noise, exact = _noise(c, run.batch_size), True
    notes = ["B.54 prints 16 for 8, which is safe but not needed (E5.7)"]
    if run.accuracy is not None and noise:
        by_noise = noise / (c.mu_x * run.accuracy)
        if by_noise > omega:
            omega, exact = by_noise, False
            notes.append("1/(1 - theta) comes from the noise, of which the paper gives the order only")
    theta = 1 - 1 / omega
    tau = 4 / (c.mu_x * (omega - 1))
    server_lr = _drift_free(tau * c.L_1, run.I)
    values: dict[str, Value] = {
        "tau": tau,
        "sigma": 1 / (c.mu * (omega - 1)),
        "theta": theta,
        "lr": tau / (run.I * server_lr),
        "server_lr": server_lr,
        "local_steps": run.I,
    }
    return Steps(values, "SCAFF-PD, Theorem 5.5 (SC-SC)", exact, assumes, tuple(notes))


def _scaff_pd_growing(c: Constants, run: Setting, gamma_0: float, assumes: tuple[str, ...]) -> Steps:
    mu_x = c.mu_x
    assert mu_x is not None
    b = 12 * c.L_1
    tau_0 = 1 / (b + math.sqrt(b**2 + 8 * c.L_21**2 * gamma_0))
    server_lr = _drift_free(tau_0 * c.L_1, run.I)
    known = [gamma_0]

    def gamma(r: int) -> float:
        while len(known) <= r:
            known.append(known[-1] * (1 + mu_x * tau_0 * math.sqrt(gamma_0 / known[-1])))
        return known[r]

    def tau(r: int) -> float:
        return tau_0 * math.sqrt(gamma_0 / gamma(r))

    def sigma(r: int) -> float:
        return gamma(r) * tau(r)

    values: dict[str, Value] = {
        "tau": tau,
        "sigma": sigma,
        "theta": lambda r: sigma(r - 1) / sigma(r) if r else 1.0,
        "gamma": gamma,
        "lr": lambda r: tau(r) / (run.I * server_lr),
        "server_lr": server_lr,
        "local_steps": run.I,
    }
    notes = (
        "the recursion of tau is only in the proof of Lemma B.3; taubar = tau_0 (E5.3)",
        "delta = c_alpha = 1/2 and gamma_0 are free in the paper",
        "Remark B.4: the proof of Theorem B.6 needs mu_x/4 in the place of mu_x in the recursion of gamma",
    )
    return Steps(values, "SCAFF-PD, Theorem 5.1 (SC-C)", True, assumes, notes)


def _drift_free(u: float, local_steps: int) -> float:
    """Smallest eta_g >= 1 with 36 u + 2 u^2 <= eta_g^2/16 (SCAFF-PD, B.18); one local step does not drift."""
    return 1.0 if local_steps == 1 else max(1.0, 4 * math.sqrt(36 * u + 2 * u**2))


# -------------------------------------------------------------------------------- methods without a theorem here


def _rule_of_thumb(
    who: str, c: Constants, run: Setting, more: Mapping[str, Value] = {}, extra: float = 0.0
) -> Steps:
    _require(who, c, "any")
    notes = ["rule of thumb, not one of the five papers: lr <= 1/(L local_steps)"]
    if not math.isinf(c.mu):
        notes.append(
            "descent ascent may need a smaller step: where the coupling of x and y dominates, about mu/L^2"
        )
    return Steps(
        {"lr": 1 / ((c.L + extra) * run.I), "local_steps": run.I, **more},
        "rule of thumb",
        False,
        ("every client's function is L-smooth",),
        tuple(notes),
    )


def scaffold(c: Constants, run: Setting) -> Steps:
    """SCAFFOLD: lr = 1/(L I), server_lr = 1; a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("SCAFFOLD", c, run, {"server_lr": 1.0})


def fedavg(c: Constants, run: Setting) -> Steps:
    """FedAvg: lr = 1/(L I), server_lr = 1; a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("FedAvg", c, run, {"server_lr": 1.0})


def fedprox(c: Constants, run: Setting, mu: float = 0.0) -> Steps:
    """FedProx: lr = 1/((L + mu) I), mu its prox coefficient; a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("FedProx", c, run, {"server_lr": 1.0}, extra=mu)


def local_sgda(c: Constants, run: Setting) -> Steps:
    """Local SGDA: lr = lr_dual = 1/(L I); a rule of thumb, not one of the five papers."""
    _require("LocalSGDA", c, "any")
    return _rule_of_thumb("LocalSGDA", c, run, {"lr_dual": 1 / (c.L * run.I), "server_lr": 1.0})


THEOREMS: dict[str, Callable[..., Steps]] = {
    "CODASCA": codasca,
    "CODAPlus": coda_plus,
    "NPA": npa,
    "FedSGDA": fedsgda,
    "CyCpMinimax": cycp_minimax,
    "CyCpPairwise": cycp_pairwise,
    "FFMDR": ffmdr,
    "ScaffPD": scaff_pd,
    "LocalSGDA": local_sgda,
    "FedAvg": fedavg,
    "FedProx": fedprox,
    "SCAFFOLD": scaffold,
}
"""What each algorithm's theorem prescribes: (constants, setting) -> Steps."""
