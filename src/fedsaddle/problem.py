"""Problem: min over x, max over y of (1/N) sum_i f_i(x, y) + g(x), as one flat vector z = (x, y) and its saddle field.

The saddle field of client i is F_i(z) = (grad_x f_i, -grad_y f_i), so that descent on x and ascent on y are both
`z - lr * F(z)`. Every vector carries a client axis at -2: [S, d] for a cohort of S clients and [1, d] on the server (a
replica axis may stand in front: [R, S, d]), so one line of mathematics serves the server, a client and a whole cohort.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedsaddle import projections
from fedsaddle.errors import FedsaddleError, first_line
from fedsaddle.flat import FlatModel

if TYPE_CHECKING:
    from fedsaddle.clients import Clients
    from fedsaddle.federation import Federation
    from fedsaddle.metrics import Evaluation, Split

Data = Mapping[str, Tensor]


class Batch(NamedTuple):
    """One minibatch a client."""

    data: Data  # every field [..., S, B, ...]
    w: Tensor  # weights [..., S, B]: sum to one over a client's samples; 0 marks an absent slot
    places: Tensor | None = (
        None  # which of its client's samples (with two sides: of its side's) each one is [..., S, B]
    )


@dataclass(frozen=True, eq=False)
class Problem(ABC):
    """What is learned: per-sample loss, dimensions, and what may be known in closed form."""

    fields: ClassVar[tuple[str, ...]] = ("x", "y")  # the data that a sample consists of
    pairwise: ClassVar[bool] = False  # whether losses are of pairs of samples, drawn from two sides
    real: ClassVar[tuple[str, ...]] = ()  # real numbers in which replicas may differ: tensors [R, 1, 1] then
    of_dual: ClassVar[tuple[str, ...]] = ("dual_distance", "field_norm")  # metrics that read y

    @property
    @abstractmethod
    def n_x(self) -> int:
        """Number of primal variables."""

    @property
    @abstractmethod
    def n_y(self) -> int:
        """Number of dual variables."""

    @abstractmethod
    def init(self) -> Tensor:
        """Where training starts [d]."""

    @abstractmethod
    def losses(self, z: Tensor, data: Data) -> Tensor:
        """Value f_i(z; sample) of every sample: z [..., S, d], data fields [..., S, B, ...] -> [..., S, B]."""

    def field(self, z: Tensor, batch: Batch) -> Tensor:
        """Saddle field (grad_x f_i, -grad_y f_i) on a minibatch: z [..., S, d] -> [..., S, d].

        The clients' losses are summed before differentiating: client i's loss depends on row i of z alone, so one
        backward pass gives all S gradients.
        """
        if (
            torch.compiler.is_compiling()
        ):  # the compiler follows torch.func; eagerly, autograd costs less a call
            F = torch.func.grad(lambda z: (self.losses(z, batch.data) * batch.w).sum())(z)
            return torch.cat([F[..., : self.n_x], -F[..., self.n_x :]], dim=-1)
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (F,) = torch.autograd.grad((self.losses(z, batch.data) * batch.w).sum(), z)
        if self.n_y:
            F[..., self.n_x :].neg_()
        return F

    def sides(self, data: Data) -> tuple[Tensor, ...]:
        """Of a problem on pairs, which samples are on its first side and which on its second: two masks [n]."""
        return ()

    def prox(self, z: Tensor, lr: float | Tensor) -> Tensor:
        """Proximal step for g(x) and projection of (x, y), after a gradient step of size lr; identity by default."""
        return z

    def projected_dual(self, z: Tensor) -> Tensor:
        """y [..., n_y] projected, for methods that leave g to the server."""
        return self.prox(z, 0.0)[..., self.n_x :]

    def penalty(self, z: Tensor) -> Tensor:
        """The value of g(x) [..., 1]; 0 where its prox is a projection, or not known by name."""
        return torch.zeros_like(z[..., :1])

    @property
    def concavity(self) -> float | None:
        """mu of a dual that is strongly concave in every sample's loss; None where it is not known."""
        return None

    def prepare(self, clients: Clients) -> Self:
        """The problem with every constant that must be agreed on before training; may cost a set-up phase."""
        return self

    def in_tensors(self, like: Tensor) -> Self:
        """The problem whose numbers that differ from data to data are tensors, so that one compiled step serves all data."""
        return self

    def check(self, federation: Federation) -> None:
        """Refuse data that this problem cannot be posed on."""
        missing = [f for f in self.fields if f not in federation.data]
        if missing:
            raise FedsaddleError(
                f"{type(self).__name__}: needs the data fields {', '.join(self.fields)}, but the federation has "
                f"{', '.join(federation.data)}; pass {missing[0]}=... to Federation.from_arrays"
            )

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        """Measures of progress at the server's iterates z [R, 1, d] of R replicas (1: a single run).

        Where each client has its own dual, y is NaN, and what is in `of_dual` is left out of the records.

        Args:
            splits: "train", and "test" and "valid" where the federation has them.
        """
        from fedsaddle.metrics import Evaluation

        return [Evaluation({}) for _ in z]

    @property
    def broadcasts(self) -> bool:
        """Whether `losses` and `field` cost little memory where replicas share their samples as a view."""
        return False

    def at_each(self, z: Tensor, batch: Batch, function: Callable[[Tensor, Batch], Tensor]) -> Tensor:
        """function(z, batch) at each of z [R, 1, d] on one and the same batch, fields [1, B, ...]: [R, 1, k]."""
        if len(z) == 1 or not self.broadcasts:
            return torch.stack([function(one, batch) for one in z])

        def shared(v: Tensor) -> Tensor:
            return v.expand(1, len(z), *v.shape)

        out = function(z.unsqueeze(0), Batch({k: shared(v) for k, v in batch.data.items()}, shared(batch.w)))
        return out.squeeze(0)

    def of_replicas(self, which: Tensor) -> Self:
        """The problem of some of R replicas, which: [R] bool."""
        numbers = {k: v[which] for k in self.real if isinstance(v := getattr(self, k), Tensor)}
        if not numbers:
            return self
        some = copy.copy(self)
        for name, values in numbers.items():
            object.__setattr__(some, name, values)
        forget_made(some)
        return some

    @property
    def has_dual_statistics(self) -> bool:
        """Whether the dual can be computed from the primal and a few sums over samples."""
        return False

    def dual_statistics(self, z: Tensor, batch: Batch) -> Any:
        """Those sums, client by client: a NamedTuple of [S, 1]."""
        raise NotImplementedError

    def dual_from(self, statistics: Any, weights: Tensor | None = None) -> Tensor:
        """The dual [1, n_y] that they give; weights [S, 1] of the clients, None for equal ones."""
        raise NotImplementedError

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The problem with its constant tensors on a device."""
        return self

    @property
    def has_module(self) -> bool:
        """Whether x are (or begin with) the parameters of a module."""
        return False

    def module(self, z: Tensor) -> nn.Module:
        """The trained model as the module that the user brought: z [1, d] or [d]."""
        raise FedsaddleError(f"{type(self).__name__}: has no model; its solution is run.z")


@dataclass(frozen=True, eq=False)
class ModelProblem(Problem):
    """A problem whose first primal variables are the parameters of a module.

    Args:
        model: the module.
        regulariser: g(x), of the model's weights alone (not of biases or other variables): "l1(0.001)", "l2(0.1)",
            "elastic_net(0.001, 0.1)", "box(-1, 1)", "group_lasso(0.01, 4)"; None for none. Its proximal step follows every
            local step of size lr, or the server's where a method says so.
    """

    model: nn.Module | FlatModel
    regulariser: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.regulariser is not None:
            projections.regulariser(self.regulariser)  # refuses what is none
        if not isinstance(self.model, FlatModel):
            if not isinstance(self.model, nn.Module):
                raise FedsaddleError(
                    f"{type(self).__name__}: model must be a torch.nn.Module, got {type(self.model).__name__}"
                )
            object.__setattr__(self, "model", FlatModel(self.model))

    @property
    def flat(self) -> FlatModel:
        assert isinstance(self.model, FlatModel)
        return self.model

    # of a problem whose x is the parameters alone

    @property
    def n_x(self) -> int:
        return self.flat.n

    @property
    def n_y(self) -> int:
        return 0

    def init(self) -> Tensor:
        return self.flat.initial

    def check(self, federation: Federation) -> None:
        """Also refuse a model that does not fit the data, by scoring two samples."""
        super().check(federation)
        w = self.flat.initial.unsqueeze(0)
        x = federation.data["x"][:2].to("cpu", w.dtype).unsqueeze(0)
        try:
            with torch.no_grad():
                self.check_outputs(self.outputs(w, x).shape[-1], federation)
                self.scores(w, x)
        except FedsaddleError:
            raise
        except Exception as error:  # the user's module may raise anything
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise FedsaddleError(
                f"model: does not take samples of shape {tuple(x.shape[2:])} ({reason})"
            ) from error

    def check_outputs(self, n: int, federation: Federation) -> None:
        """Refuse a model with a wrong number of outputs."""

    def prox(self, z: Tensor, lr: float | Tensor) -> Tensor:
        if self.regulariser is None:
            return z
        weights, g = self.flat.weights(z.device), projections.regulariser(self.regulariser)
        if isinstance(lr, Tensor) and lr.ndim:
            lr = lr[..., :1]  # of x, where x and y have steps of their own
        if (at := self.flat.weights_at) is not None:  # which the compiler makes one loop of
            return torch.cat([z[..., : at.start], g(z[..., at], lr), z[..., at.stop :]], dim=-1)
        return z.index_copy(-1, weights, g(z.index_select(-1, weights), lr))

    def projected_dual(self, z: Tensor) -> Tensor:
        return z[..., self.n_x :]

    def penalty(self, z: Tensor) -> Tensor:
        if self.regulariser is None:
            return super().penalty(z)
        g = projections.regulariser(self.regulariser)
        return g.value(z.index_select(-1, self.flat.weights(z.device)))

    def outputs(self, z: Tensor, x: Tensor) -> Tensor:
        """The model's outputs [..., S, B, outputs] at the weights within z [..., S, d]."""
        return self.flat(z[..., : self.flat.n], x)

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return replace(self, model=self.flat.to(device, dtype))

    def scores(self, z: Tensor, x: Tensor) -> Tensor:
        """One score a sample [..., S, B], higher for the positive class."""
        raise NotImplementedError

    @property
    def broadcasts(self) -> bool:
        return self.flat.shares

    def all_scores(self, z: Tensor, split: Split) -> Tensor:
        """Scores of all samples of a split at z [R, 1, d]: [R, n]."""
        return self.over_samples(z, split, lambda z, batch: self.scores(z, batch.data["x"]))

    def over_samples(self, z: Tensor, split: Split, function: Callable[[Tensor, Batch], Tensor]) -> Tensor:
        """A value of every sample of a split, function(z, batch) -> [..., B], at z [R, 1, d]: [R, n]."""
        with torch.no_grad():
            return torch.cat(
                [self.at_each(z, batch, function).squeeze(-2) for batch in split.pieces(len(z))], -1
            )

    @property
    def has_module(self) -> bool:
        return True

    def module(self, z: Tensor) -> nn.Module:
        return self.flat.module_at(z.reshape(-1)[: self.flat.n])


def forget_made(thing: object) -> None:
    """Drop what was made once from numbers that are others now: cached properties."""
    for name in [k for k in vars(thing) if isinstance(getattr(type(thing), k, None), cached_property)]:
        del vars(thing)[name]


def tree_map(function: Any, *trees: Any, of: tuple[type, ...] = (Tensor,)) -> Any:
    """Apply a function to the tensors (or what else `of` names) of nested tuples and NamedTuples; the rest stays."""
    first = trees[0]
    if isinstance(first, of):
        return function(*trees)
    if isinstance(first, tuple):
        parts = [tree_map(function, *parts, of=of) for parts in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return first
