"""FlatModel: a PyTorch module as a function of one flat vector of its parameters, for one client or a stack of them.

A user's module runs under vmap, whatever it is. A plain stack of layers (nn.Sequential of dense layers, convolutions,
poolings, group norms and element-wise functions) is called layer by layer instead, which is faster: vmap costs more than the
mathematics of a small model, and gives convolutions and poolings a layout that is slow. On a GPU this holds for stacks
of dense layers, plain convolutions and max-pooling over small windows; others run under vmap.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedsaddle import models
from fedsaddle.convolution import (
    Windows,
    convolved,
    matrix_convolutions,
    max_pool,
    plain_convolution,
    small_windows,
)


class ModuleAt(NamedTuple):
    """A module as a loss sees it: called as the module, differentiated in its parameters."""

    vector: Tensor  # all trainable parameters [n], for instance to penalise
    forward: Callable[..., Tensor]

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs)


class FlatModel:
    """A PyTorch module as a function of one flat vector of its trainable parameters.

    The parameters are views into the vector (`split`, whose backward is one concatenation). Kernels of a module that is
    `channels_innermost` have their channels innermost there, as the products of `convolution.py` read them. Frozen
    parameters and constant buffers stay in the module.
    """

    def __init__(self, module: nn.Module) -> None:
        models.check(module)
        self.module = copy.deepcopy(module)
        for part in self.module.modules():
            if getattr(part, "inplace", False):  # its input may be the user's data
                setattr(part, "inplace", False)  # noqa: B010 (a Module's attribute of unknown type)
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
        is_weight = torch.tensor([len(s) > 1 for s in self.shapes]).repeat_interleave(
            torch.tensor(self.sizes)
        )
        self._weights = is_weight.nonzero().squeeze(-1)
        first, last = (int(self._weights[i]) for i in (0, -1)) if len(self._weights) else (0, -1)
        # where the weights are one piece, as of a single layer
        self.weights_at = slice(first, last + 1) if last + 1 - first == len(self._weights) else None
        self._layers = _plain_layers(self.module)
        innermost = getattr(module, "channels_innermost", False) and self._layers is None
        # a kernel with one tap is the same numbers either way
        turned = [innermost and p.ndim == 4 and p.shape[2:].numel() > 1 for p in parameters.values()]
        self._orders = [_CHANNELS_LAST if turn else None for turn in turned]
        lying = zip(parameters.values(), self._orders, strict=True)
        self.initial = torch.cat([(p if o is None else p.permute(o)).detach().reshape(-1) for p, o in lying])
        # where each of the module's numbers, in its own order, lies in the vector; None where they lie in that order
        self.places = torch.cat(list(self._places())) if any(turned) else None
        if self.places is not None:  # groups of weights are those of the module
            self._weights, self.weights_at = self.places[is_weight], None
        self._on_images = any(isinstance(layer, _ON_IMAGES) for layer in self._layers or ())
        kinds = [type(layer) for layer in self._layers or ()]
        rest = [layer for layer in self._layers or () if not isinstance(layer, nn.Flatten)]
        self._dense = rest[0] if len(rest) == 1 else None  # on vectors, where flattening does nothing
        linear = kinds.index(nn.Linear) if nn.Linear in kinds else len(kinds)
        self._on_gpu = self._layers is not None and all(map(_on_pixels, self._layers))  # layer by layer there
        self._flattens = self._on_images or nn.Flatten in kinds[:linear]

    def _places(self) -> Iterator[Tensor]:
        start = 0
        for shape, size, order in zip(self.shapes, self.sizes, self._orders, strict=True):
            yield _shaped(torch.arange(start, start + size), shape, order).reshape(-1)
            start += size

    @property
    def shares(self) -> bool:
        """Whether samples that replicas share are read once for all of them."""
        return self._layers is not None and not self._on_images

    @property
    def is_linear(self) -> bool:
        """Whether the outputs are seen to be linear in the parameters: one layer, perhaps after Flatten."""
        return self._dense is not None

    def weights(self, device: torch.device) -> Tensor:
        """Where in the vector the parameters with two axes or more lie, in the module's order: weights, not biases."""
        if self._weights.device != device:
            self._weights = self._weights.to(device)
        return self._weights

    def _shared(self, w: Tensor, x: Tensor) -> bool:
        """Whether replicas [Q, P] have the same samples along P, as a view that need not be read P times."""
        return self.shares and w.ndim == 4 and w.shape[1] > 1 and x.stride(1) == 0

    def _split(self, w: Tensor) -> Sequence[Tensor]:
        """The parameters within w [..., n or more]."""
        parts: Sequence[Tensor] = w.split((*self.sizes, w.shape[-1] - self.n), dim=-1)
        return parts[: len(self.sizes)]

    def _parameters(self, w: Tensor) -> dict[str, Tensor]:
        parts = [_shaped(*of) for of in zip(self._split(w), self.shapes, self._orders, strict=True)]
        return {k: parts[i] for k, i in self._names.items()}

    def _one(self, w: Tensor, *x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.module, self._parameters(w), x, tie_weights=False)
        return out

    def at(self, w: Tensor) -> ModuleAt:
        """The module with the parameters w [n], to be called in a function that is differentiated in w."""
        return ModuleAt(w, functools.partial(self._one, w))

    def _matrix(self, w: Tensor, x: Tensor) -> Tensor:
        with matrix_convolutions():
            return self._one(w, x)

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Outputs for each client's own parameters: w [..., S, n], x [..., S, B, ...] -> [..., S, B, outputs].

        The vectors may be longer than the parameters. One client is a plain call of the module; more are one batched call.
        """
        lead = w.shape[:-1]
        layered = self._layers is not None and (self._flattens or x.ndim == len(lead) + 2)  # not on sequences
        if layered and self._shared(w, x):
            return self._on_shared(w, x)
        if lead.numel() == 1:
            out = self._one(w.reshape(-1), x.reshape(x.shape[len(lead) :])).unsqueeze(0)
        else:
            w, x = w.reshape(-1, w.shape[-1]), x.reshape(-1, *x.shape[len(lead) :])
            if self._layers is None or not layered or (w.is_cuda and not self._on_gpu):
                out = vmap(self._matrix if w.is_cuda else self._one)(w, x)
            else:
                out = _run(self._layers, iter(self._split(w)), x, w.is_cuda)
        if out.ndim == 2:  # a module that returns [B] has one output
            out = out.unsqueeze(-1)
        return out.reshape(*lead, *out.shape[1:])

    def with_pullback(self, z: Tensor, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The outputs, and the function that takes their cotangent [..., S, B, outputs] to the parameters' [..., S, n].

        Vectors z [..., S, d] may go on after the parameters. Compiled, the whole of z is differentiated: rows of n numbers
        beside rows of d are read slowly.

        For a single dense layer both are matrix products, which cost less than recording them for autograd. The compiler
        wants the function called: without derivatives, call the model itself.
        """
        w = z[..., : self.n]
        layer = self._dense if x.ndim == w.ndim + 1 else None  # samples are vectors
        exact = not torch.is_autocast_enabled(w.device.type)
        if isinstance(layer, nn.Linear) and exact and w.ndim == 2 and x.ndim == 3 and len(w) > 1:
            out = _run([layer], iter(w.split(self.sizes, dim=-1)), x)

            def products(g: Tensor) -> Tensor:
                dw = torch.bmm(g.mT, x).flatten(1)
                return dw if layer.bias is None else torch.cat([dw, g.sum(-2)], dim=-1)

            return out, products
        if isinstance(layer, nn.Linear) and exact and self._shared(w, x):
            samples = x[:, 0].flatten(0, 1)  # [QS, B, in]

            def shared_products(g: Tensor) -> Tensor:
                Q, P, S = g.shape[:3]
                rows = g.transpose(1, 2).mT.reshape(Q * S, P * layer.out_features, -1)
                dw = (rows @ samples).view(Q, S, P, -1).transpose(1, 2)
                return dw if layer.bias is None else torch.cat([dw, g.sum(-2)], dim=-1)

            return self._on_shared(w, x), shared_products
        if torch.compiler.is_compiling():  # the compiler follows torch.func
            out, vjp = torch.func.vjp(lambda z: self(z, x), z)  # type: ignore[misc]
            return out, lambda g: vjp(g)[0][..., : self.n]
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            recorded = self(leaf, x)
        return recorded.detach(), lambda g: torch.autograd.grad(recorded, leaf, g)[0]

    def _on_shared(self, w: Tensor, x: Tensor) -> Tensor:
        """Dense layers where replicas [Q, P] share samples along P: the first layer reads each sample once for all P.

        w [Q, P, S, n], x [Q, P, S, B, ...] (the same for every P) -> [Q, P, S, B, outputs].
        """
        assert self._layers is not None
        at = next(i for i, layer in enumerate(self._layers) if isinstance(layer, nn.Linear))
        first, (Q, P, S) = self._layers[at], w.shape[:-1]
        assert isinstance(first, nn.Linear)
        samples = _run(self._layers[:at], iter(()), x[:, 0].flatten(0, 1))  # [QS, B, in]
        parts = iter(self._split(w))
        weight = next(parts).unflatten(-1, (first.out_features, -1)).transpose(1, 2)  # [Q, S, P, out, in]
        h = weight.reshape(Q * S, P * first.out_features, -1) @ samples.mT  # [QS, P out, B]
        h = h.view(Q, S, P, first.out_features, -1).transpose(1, 2)  # [Q, P, S, out, B]
        if first.bias is not None:
            h = h + next(parts).unsqueeze(-1)
        rest = (part.flatten(0, 2) for part in parts)
        out = _run(self._layers[at + 1 :], rest, h.flatten(0, 2).mT)
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


_CHANNELS_LAST = (0, 2, 3, 1)


def _shaped(part: Tensor, shape: torch.Size, order: tuple[int, ...] | None) -> Tensor:
    """A parameter from its numbers, its axes in the given order there."""
    if order is None:
        return part.view(shape)
    whole = part.view([shape[i] for i in order]).permute([order.index(i) for i in range(len(order))])
    # on a CPU vmap lacks rules for layers after a convolution whose kernels are a view
    return whole if part.is_cuda else whole.contiguous()


# ---- plain stacks of layers ------------------------------------------------------------------------------------

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
_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_ON_IMAGES = (nn.Conv2d, nn.GroupNorm, *_POOLING)


def _plain_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a module that is nothing but a stack of distinct trainable layers that `_run` knows, else None."""
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    if isinstance(module, nn.Sequential) and type(module).forward is not nn.Sequential.forward:
        return None
    if _altered(module) or not all(map(_known, layers)):
        return None
    own = [p for layer in layers for p in map(layer._parameters.get, ("weight", "bias")) if p is not None]
    if [id(p) for p in own] != [id(p) for p in module.parameters()]:  # tied, or not in the layers' order
        return None
    if not all(p.requires_grad for p in own):
        return None
    kinds = [type(layer) for layer in layers]
    if not any(kind in _ON_IMAGES for kind in kinds):
        return layers
    # images, then vectors, with a flatten between
    flatten = kinds.index(nn.Flatten) if nn.Flatten in kinds else 0
    before, after = kinds[:flatten], kinds[flatten + 1 :]
    ordered = nn.Linear not in before and not any(kind in (*_ON_IMAGES, models.Images) for kind in after)
    return _pool_first(layers) if ordered and flatten else None


def _pool_first(layers: list[nn.Module]) -> list[nn.Module]:
    """Pool before ReLU instead of after it: the same numbers and gradients, from a quarter of the pixels."""
    layers = list(layers)
    for i, (a, b) in enumerate(pairwise(layers)):
        if isinstance(a, nn.ReLU) and isinstance(b, nn.MaxPool2d):
            layers[i], layers[i + 1] = b, a
    return layers


def _altered(module: nn.Module) -> bool:
    """Whether calling the module does something else than its class says."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module)


def _known(layer: nn.Module) -> bool:
    if _altered(layer):
        return False
    if isinstance(layer, nn.Flatten):
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    if isinstance(layer, nn.Conv2d):
        return type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.GroupNorm):
        return type(layer) is nn.GroupNorm and layer.affine
    if isinstance(layer, nn.MaxPool2d) and layer.return_indices:
        return False
    return type(layer) in (nn.Linear, models.Images, *_POOLING, *_ELEMENTWISE)


def _on_pixels(layer: nn.Module) -> bool:
    """Whether `_run` knows a layer that it knows also on images [S, B, H, W, C]."""
    if isinstance(layer, nn.Conv2d):
        return plain_convolution(layer.stride, layer.padding, layer.dilation) is not None
    if isinstance(layer, nn.MaxPool2d):
        return _windows(layer) is not None
    return not isinstance(layer, _ON_IMAGES)


def _windows(pool: nn.MaxPool2d) -> Windows | None:
    return small_windows(pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)


def _run(
    layers: Sequence[nn.Module], parts: Iterator[Tensor], x: Tensor, channels_last: bool = False
) -> Tensor:
    """Call layers on all clients' samples at once, each client with its own parameters.

    Vectors are batched matrix products. Images of S clients are [S, B, H, W, C] if channels_last, as suits a GPU, else one
    image of S times the channels, channels last in memory, on which a convolution has S groups.

    Args:
        parts: weight and bias of each layer in turn, [S, k].
        x: [S, B, ...].
    """
    S, images = len(x), False
    for layer in layers:
        if isinstance(layer, _ON_IMAGES) and not images:
            x = (
                x.permute(0, 1, 3, 4, 2)
                if channels_last
                else x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)
            )
            images = True
        if isinstance(layer, nn.Linear):
            weight = next(parts).view(-1, layer.out_features, layer.in_features)
            # W x' rather than x W': faster for a few outputs, and never slower
            plain = layer.bias is None
            x = (weight @ x.mT if plain else torch.baddbmm(next(parts).unsqueeze(-1), weight, x.mT)).mT
        elif isinstance(layer, nn.Conv2d) and channels_last:
            weight = next(parts).view(S, *layer.weight.shape).permute(0, 1, 3, 4, 2)
            how = plain_convolution(layer.stride, layer.padding, layer.dilation)
            assert how is not None
            x = convolved(x, weight, next(parts) if layer.bias is not None else None, *how)
        elif isinstance(layer, nn.MaxPool2d) and channels_last:
            windows = _windows(layer)
            assert windows is not None
            x = max_pool(x, windows)
        elif isinstance(layer, nn.Conv2d):
            weight = next(parts).reshape(-1, *layer.weight.shape[1:])  # [S O, C, h, w]
            bias = next(parts).flatten() if layer.bias is not None else None
            x = functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups=S)
        elif isinstance(layer, nn.GroupNorm):
            weight, shift = next(parts).flatten(), next(parts).flatten()
            x = functional.group_norm(x, S * layer.num_groups, weight, shift, layer.eps)
        elif isinstance(layer, models.Images):
            x = x.unsqueeze(2) if not images and x.ndim == 4 else x
        elif isinstance(layer, nn.Flatten):
            if images:  # [S, B, C, H, W]
                x = x.movedim(-1, 2) if channels_last else x.unflatten(1, (S, -1)).transpose(0, 1)
            x, images = x.flatten(2), False
        else:  # element-wise, or pooling, which goes channel by channel
            x = layer(x)
    return x
