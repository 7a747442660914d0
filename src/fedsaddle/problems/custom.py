"""The user's own min-max objective f(x, y, batch), in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedsaddle import projections
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.flat import FlatModel
from fedsaddle.measures import Of, names
from fedsaddle.metrics import Evaluation, Split, objective
from fedsaddle.problem import Data, Problem


@dataclass(frozen=True, eq=False)
class Custom(Problem):
    """min over x, max over y of (1/N) sum_i mean_i f(x, y, sample).

    Args:
        loss: f(x [n_x], y [n_y], batch) -> one value a sample [B]; batch is a dictionary of tensors [B, ...] with the
            federation's fields. It must be a pure function (no in-place writes, no randomness of its own).
        size_x, size_y: n_x and n_y; or a module each, whose parameters are x or y. The loss is given the module instead of
            the vector, to call as such; its `vector` [n] are all its parameters, for instance to penalise.
        prox_x, prox_y: after each step, a name ("simplex", "ball(10)", "l1(0.001)", ...) or f(v, lr), the prox of lr g; an
            attribute `value` of it, v [..., n_x] -> [..., 1], is g where the objective is reported.
        start: where training starts [n_x + n_y]; by default a module's own parameters, and zeros.
        metrics: optional f(x, y, data) -> dictionary of numbers, reported on the test data (training data without); y is NaN
            for methods whose clients have a dual each.

    Example:
        >>> import fedsaddle as fs, torch
        >>> f = lambda x, y, batch: (batch["x"] @ x - batch["y"]) * y - y**2 / 2   # robust least squares
        >>> fs.Custom(f, size_x=3, size_y=1, prox_y="box(-1, 1)").n_y
        1
        >>> shifted = lambda net, y, batch: (net(batch["x"] + y).squeeze(-1) - batch["y"]) ** 2   # the worst shift of x
        >>> fs.Custom(shifted, torch.nn.Linear(3, 1), 3, prox_y="box(-0.1, 0.1)").n_x
        4
    """

    loss: Callable[[Any, Any, dict[str, Tensor]], Tensor]
    size_x: int | nn.Module | FlatModel
    size_y: int | nn.Module | FlatModel = 0
    prox_x: str | projections.Prox | None = None
    prox_y: str | projections.Prox | None = None
    start: Tensor | None = None
    metrics: Callable[[Any, Any, dict[str, Tensor]], dict[str, float]] | None = None

    def __post_init__(self) -> None:
        for name in ("size_x", "size_y"):
            part = getattr(self, name)
            if isinstance(part, nn.Module):
                object.__setattr__(self, name, FlatModel(part))
            elif not isinstance(part, int | FlatModel):
                raise FedsaddleError(f"Custom: {name} must be a number or a torch.nn.Module, got {part!r}")
        if self.n_x < 1 or self.n_y < 0:
            raise FedsaddleError(
                f"Custom: size_x must be >= 1 and size_y >= 0, got {self.n_x} and {self.n_y}"
            )
        for name in ("prox_x", "prox_y"):
            if getattr(self, name) is not None:
                projections.named(getattr(self, name))  # refuses what is none
        if self.start is not None and self.start.shape != (self.n_x + self.n_y,):
            raise FedsaddleError(
                f"Custom: start must have shape [{self.n_x + self.n_y}], got {list(self.start.shape)}"
            )

    @property
    def n_x(self) -> int:
        return _size(self.size_x)

    @property
    def n_y(self) -> int:
        return _size(self.size_y)

    def init(self) -> Tensor:
        if self.start is not None:
            return self.start
        parts = (self.size_x, self.size_y)
        return torch.cat([p.initial if isinstance(p, FlatModel) else torch.zeros(_size(p)) for p in parts])

    def _variables(self, z: Tensor) -> tuple[Any, Any]:
        """x and y as the user's functions take them, from z [d]."""
        x, y = z[: self.n_x], z[self.n_x :]
        return (
            self.size_x.at(x) if isinstance(self.size_x, FlatModel) else x,
            self.size_y.at(y) if isinstance(self.size_y, FlatModel) else y,
        )

    def losses(self, z: Tensor, data: Data) -> Tensor:
        lead = z.shape[:-1]

        def one(z: Tensor, data: dict[str, Tensor]) -> Tensor:
            return self.loss(*self._variables(z), data)

        flat = {k: v.reshape(-1, *v.shape[len(lead) :]) for k, v in data.items()}
        if lead.numel() == 1:
            values = one(z.reshape(-1), {k: v[0] for k, v in flat.items()}).unsqueeze(0)
        else:
            values = vmap(one)(z.reshape(-1, z.shape[-1]), flat)
        n = next(iter(flat.values())).shape[1]
        if values.shape[1:] != (n,):
            raise FedsaddleError(
                f"Custom: loss must return one value a sample, [{n}], got {list(values.shape[1:])}; "
                "do not average over the batch"
            )
        return values.reshape(*lead, n)

    def prox(self, z: Tensor, lr: float | Tensor) -> Tensor:
        if self.prox_x is None and self.prox_y is None:
            return z
        x, y = z[..., : self.n_x], z[..., self.n_x :]
        lr_x = lr_y = lr
        if (
            isinstance(lr, Tensor) and lr.shape[-1] > 1
        ):  # one step size a variable, those of x alike and those of y
            lr_x, lr_y = lr[..., :1], lr[..., self.n_x : self.n_x + 1]
        if self.prox_x is not None:
            x = projections.named(self.prox_x)(x, lr_x)
        if self.prox_y is not None:
            y = projections.named(self.prox_y)(y, lr_y)
        return torch.cat([x, y], dim=-1)

    def penalty(self, z: Tensor) -> Tensor:
        g = None if self.prox_x is None else projections.named(self.prox_x)
        value: Callable[[Tensor], Tensor] | None = getattr(g, "value", None)  # one's own may have one, too
        return super().penalty(z) if value is None else value(z[..., : self.n_x])

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        _, F = objective(self, z, splits["train"])
        out = [Evaluation({"field_norm": norm}) for norm in F.norm(dim=(-2, -1)).tolist()]
        if self.metrics is not None:
            data = {k: v.to(z.device) for k, v in splits.get("test", splits["train"]).data.items()}
            for e, one in zip(out, z[:, 0], strict=True):
                made = self.metrics(*self._variables(one), data)
                if taken := made.keys() & {*names(Of.count, Of.parts)}:
                    raise FedsaddleError(
                        f"Custom: metrics: {sorted(taken)[0]!r} is what records call something else; choose another name"
                    )
                e.values.update({k: float(v) for k, v in made.items()})
        return out

    def check(self, federation: Federation) -> None:
        pass  # the loss takes whatever fields it needs

    @property
    def has_module(self) -> bool:
        return isinstance(self.size_x, FlatModel)

    def module(self, z: Tensor) -> nn.Module:
        if not isinstance(self.size_x, FlatModel):
            return super().module(z)
        return self.size_x.module_at(z.reshape(-1)[: self.n_x])

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        moved: dict[str, Any] = {
            k: v.to(device, dtype)
            for k in ("size_x", "size_y")
            if isinstance(v := getattr(self, k), FlatModel)
        }
        return replace(self, **moved)


def _size(part: Any) -> int:
    return part.n if isinstance(part, FlatModel) else int(part)
