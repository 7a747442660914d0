"""Problem: min over x, max over y of (1/N) sum_i f_i(x, y) + g(x), as one flat vector z = (x, y) and its saddle field.

The saddle field of client i is F_i(z) = (grad_x f_i, -grad_y f_i), so that descent on x and ascent on y are both
`z - lr * F(z)`. Every vector carries a client axis at -2: [S, d] for a cohort of S clients and [1, d] on the server (a
replica axis may stand in front: [R, S, d]), so one line of mathematics serves the server, a client and a whole cohort.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedsaddle import models
from fedsaddle.convolution import matrix_convolutions
from fedsaddle.errors import FedsaddleError

if TYPE_CHECKING:
    from fedsaddle.clients import Clients
    from fedsaddle.federation import Federation
    from fedsaddle.metrics import Evaluation, Split

Data = Mapping[str, Tensor]


class Batch(NamedTuple):
    """One minibatch a client."""

    data: Data  # every field [..., S, B, ...]
    w: Tensor  # weights [..., S, B]: sum to one over a client's samples; 0 marks an absent slot


@dataclass(frozen=True, eq=False)
class Problem(ABC):
    """What is learned: per-sample loss, dimensions, and what may be known in closed form."""

    fields: ClassVar[tuple[str, ...]] = ("x", "y")  # the data that a sample consists of

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

    def prox(self, z: Tensor, lr: float | Tensor) -> Tensor:
        """Proximal step for g(x) and projection of (x, y), after a gradient step of size lr; identity by default."""
        return z

    def prepare(self, clients: Clients) -> Self:
        """The problem with every constant that must be agreed on before training; may cost a set-up phase."""
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

    @property
    def has_dual_statistics(self) -> bool:
        """Whether the dual can be computed from the primal and a few sums over samples."""
        return False

    def dual_statistics(self, z: Tensor, batch: Batch) -> Any:
        """Those sums, client by client: a NamedTuple of [S, 1]."""
        raise NotImplementedError

    def dual_from(self, statistics: Any) -> Tensor:
        """The dual [1, n_y] that they give."""
        raise NotImplementedError

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The problem with its constant tensors on a device."""
        return self


class FlatModel:
    """A PyTorch module as a function of one flat vector of its trainable parameters.

    The parameters are views into the vector (`split`, whose backward is one concatenation). Frozen parameters and
    constant buffers stay in the module.
    """

    def __init__(self, module: nn.Module) -> None:
        models.check(module)
        self.module = copy.deepcopy(module)
        parameters = {k: p for k, p in self.module.named_parameters() if p.requires_grad}
        # each name once for every module that holds it: functional_call leaves a module that is used in two places
        # with the last call's parameters when it ties weights itself
        order = {id(p): i for i, p in enumerate(parameters.values())}
        self._names = {
            f"{path}.{k}".lstrip("."): order[id(p)]
            for path, part in self.module.named_modules()
            for k, p in part._parameters.items()
            if p is not None and p.requires_grad
        }
        self.shapes = tuple(p.shape for p in parameters.values())
        self.sizes = tuple(p.numel() for p in parameters.values())
        self.n = sum(self.sizes)
        self.initial = torch.cat([p.detach().reshape(-1) for p in parameters.values()])
        self._dense = _dense_layers(self.module)
        self.dense = self._dense is not None  # a plain stack of dense layers

    def _parameters(self, w: Tensor) -> dict[str, Tensor]:
        parts = [p.view(s) for p, s in zip(w.split(self.sizes), self.shapes, strict=True)]
        return {k: parts[i] for k, i in self._names.items()}

    def _one(self, w: Tensor, x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.module, self._parameters(w), (x,), tie_weights=False)
        return out

    def _matrix(self, w: Tensor, x: Tensor) -> Tensor:
        with matrix_convolutions():
            return self._one(w, x)

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Outputs for each client's own parameters: w [..., S, n], x [..., S, B, ...] -> [..., S, B, outputs].

        A single client is one plain call of the module; more are one batched call.
        """
        lead = w.shape[:-1]
        if self._dense is not None and len(lead) == 3 and lead[1] > 1 and x.stride(1) == 0:
            return self._dense_on_shared(w, x)
        if lead.numel() == 1:
            out = self._one(w.reshape(-1), x.reshape(x.shape[len(lead) :])).unsqueeze(0)
        else:
            batched = (
                vmap(self._matrix if w.is_cuda else self._one) if self._dense is None else self._dense_layers
            )
            out = batched(w.reshape(-1, self.n), x.reshape(-1, *x.shape[len(lead) :]))
        if out.ndim == 2:  # a module that returns [B] has one output
            out = out.unsqueeze(-1)
        return out.reshape(*lead, *out.shape[1:])

    def _dense_layers(self, w: Tensor, x: Tensor) -> Tensor:
        """A plain stack of dense layers as batched matrix products, without vmap's cost a call: [S, n], [S, B, ...]."""
        assert self._dense is not None
        return self._rest_of_layers(self._dense, iter(w.split(self.sizes, dim=-1)), x)

    def _rest_of_layers(self, layers: Sequence[nn.Module], parts: Iterator[Tensor], x: Tensor) -> Tensor:
        for layer in layers:
            if isinstance(layer, nn.Linear):
                weight = next(parts).view(-1, layer.out_features, layer.in_features)
                # W x' rather than x W': faster for a few outputs, and never slower
                x = (
                    weight @ x.mT
                    if layer.bias is None
                    else torch.baddbmm(next(parts).unsqueeze(-1), weight, x.mT)
                ).mT
            else:
                x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
        return x

    def _dense_on_shared(self, w: Tensor, x: Tensor) -> Tensor:
        """The same where replicas [Q, P] share samples along P: the first layer reads each sample once for all P.

        w [Q, P, S, n], x [Q, P, S, B, ...] (the same for every P) -> [Q, P, S, B, outputs].
        """
        assert self._dense is not None
        at = next(i for i, layer in enumerate(self._dense) if isinstance(layer, nn.Linear))
        first, (Q, P, S) = self._dense[at], w.shape[:-1]
        assert isinstance(first, nn.Linear)
        samples = x[:, 0].flatten(0, 1)  # [QS, B, ...]
        for layer in self._dense[:at]:
            samples = samples.flatten(2) if isinstance(layer, nn.Flatten) else layer(samples)
        parts = iter(w.split(self.sizes, dim=-1))
        weight = next(parts).unflatten(-1, (first.out_features, -1)).transpose(1, 2)  # [Q, S, P, out, in]
        h = weight.reshape(Q * S, P * first.out_features, -1) @ samples.mT  # [QS, P out, B]
        h = h.view(Q, S, P, first.out_features, -1).transpose(1, 2)  # [Q, P, S, out, B]
        if first.bias is not None:
            h = h + next(parts).unsqueeze(-1)
        rest = (part.flatten(0, 2) for part in parts)
        out = self._rest_of_layers(self._dense[at + 1 :], rest, h.flatten(0, 2).mT)
        return out.view(Q, P, S, *out.shape[1:])

    def to(self, device: torch.device, dtype: torch.dtype) -> FlatModel:
        moved = copy.copy(self)
        moved.module = copy.deepcopy(self.module).to(device=device, dtype=dtype)
        return moved

    def module_at(self, w: Tensor) -> nn.Module:
        """A module of the user's own class that holds the parameters w [n]."""
        module = copy.deepcopy(self.module).to(device="cpu", dtype=w.dtype)
        module.load_state_dict(self._parameters(w.detach().to("cpu")), strict=False)
        return module


_ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Identity,
)


def _dense_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a module that is nothing but distinct trainable dense layers and element-wise functions, else None."""
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    if isinstance(module, nn.Sequential) and type(module).forward is not nn.Sequential.forward:
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    for layer in layers:
        hooked = layer._forward_hooks or layer._forward_pre_hooks
        flatten = type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
        if hooked or not (type(layer) in (nn.Linear, *_ELEMENTWISE) or flatten):
            return None
    linear = [id(p) for layer in layers for p in layer.parameters()]
    trainable = all(p.requires_grad for p in module.parameters())
    return layers if trainable and len(set(linear)) == len(linear) else None


@dataclass(frozen=True, eq=False)
class ModelProblem(Problem):
    """A problem whose first primal variables are the parameters of a module."""

    model: nn.Module | FlatModel

    def __post_init__(self) -> None:
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
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise FedsaddleError(
                f"model: does not take samples of shape {tuple(x.shape[2:])} ({reason})"
            ) from error

    def check_outputs(self, n: int, federation: Federation) -> None:
        """Refuse a model with a wrong number of outputs."""

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
        return self.flat.dense

    def all_scores(self, z: Tensor, split: Split) -> Tensor:
        """Scores of all samples of a split at z [R, 1, d]: [R, n]."""
        return self.over_samples(z, split, lambda z, batch: self.scores(z, batch.data["x"]))

    def over_samples(self, z: Tensor, split: Split, function: Callable[[Tensor, Batch], Tensor]) -> Tensor:
        """A value of every sample of a split, function(z, batch) -> [..., B], at z [R, 1, d]: [R, n]."""
        with torch.no_grad():
            return torch.cat([self.at_each(z, batch, function).squeeze(-2) for batch in split.pieces()], -1)

    def module(self, z: Tensor) -> nn.Module:
        """The trained model as the module that the user brought: z [1, d] or [d]."""
        return self.flat.module_at(z.reshape(-1)[: self.flat.n])


def tree_map(function: Any, *trees: Any) -> Any:
    """Apply a function to the tensors of nested tuples and NamedTuples; everything else passes through unchanged."""
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    if isinstance(first, tuple):
        parts = [tree_map(function, *leaves) for leaves in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return first
