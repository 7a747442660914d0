"""Measuring the constants of a problem on data: Hessian-vector products for the curvature, gradients for the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.clients import Task
from fedsaddle.cohort import Batching
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.participation import Full
from fedsaddle.problem import Batch, Data, Problem
from fedsaddle.theory.constants import Constants

_NUMBERS_AT_ONCE = 1 << 20  # numbers of data, or of per-sample gradients, that one pass holds
_ROUNDING = 1e-10  # curvature below this share of the largest is none
_MATRIX_NUMBERS = 1 << 27  # numbers that a matrix may have, over all clients


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
    tick: Callable[[str], None] = lambda text: None,
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
        tick: hears what is measured now.

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
    if problem.pairwise:
        raise FedsaddleError(
            f"probe: {type(problem).__name__} has losses of pairs of samples, which cannot be probed sample by sample; "
            "probe the model with problem AUC, whose L is of the same order for loss 'square'"
        )
    problem.check(federation)
    rows = _Rows(problem, federation, clients, samples, torch.device(device), dtype)
    centre = (rows.problem.init() if at is None else at).reshape(1, -1).to(device, dtype)
    if centre.shape[-1] != rows.d:
        raise FedsaddleError(f"probe: at must have {rows.d} numbers (n_x + n_y), got {centre.shape[-1]}")
    random = torch.Generator().manual_seed(seed)
    curves = []
    for k in range(points):
        tick(f"point {k + 1} of {points}")
        z = centre
        if k:
            direction = torch.randn(centre.shape, generator=random, dtype=torch.float64)
            z = centre + radius * (direction / direction.norm()).to(centre)
        curves.append(_curvature(rows, z, of == "mean", steps, dense, random))
    tick("noise")
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
        everybody = Simulation(Task(problem, federation, Full(), Batching(None), dtype=dtype), device=device)
        self.problem = everybody.problem.prepare(everybody)
        self.data: Data = federation.on_device(device, dtype)
        self._dtype = dtype
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
            data = {
                k: v[row].to(self._dtype if v.is_floating_point() else None) for k, v in self.data.items()
            }
            yield Batch(data, w)

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
