"""Train-Convexify-Train: a trained network replaced by its linearisation, on which a second stage is a convex problem.

Yu, Wei, Karimireddy, Ma, Jordan 2022 (TCT); used by SCAFF-PD (Yu, Karimireddy, Ma, Jordan 2023, appendix C.1).

    paper                  | here
    -----------------------+--------------------------------------------------------------
    f(w; x), one output    | <mix, f(w; x)>, a fixed random combination of the network's outputs
    eNTK features          | phi(x) = its gradient in w at the trained weights, at some coordinates of w
    Phi theta              | a linear model on (phi - shift) / width, C outputs for C classes

The coordinates and the combination are functions of (number of parameters, number of outputs, seed), so every site that gets
the trained weights computes the same phi from its own samples. Shift and width are constants that all must agree on: here
they come from pooled training rows, which sites that keep their data would have to replace by sums that they share. A
`Tangent` holds all of it: who has one computes the features of any sample.

Deviations: the papers put a new layer with one output in the place of the classifier; here its outputs are combined, which
is such a layer for a network that ends in a linear one, and needs no knowledge of where a network's head is. Features are
shifted and scaled to mean 0, about equal spread and a mean squared norm of 1, so that a step of about 1 suits squared losses
whatever the network is; the affine models on them are the same.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.func import grad, vmap

from fedsaddle import sampling
from fedsaddle.errors import FedsaddleError, first_line
from fedsaddle.federation import Federation
from fedsaddle.flat import FlatModel
from fedsaddle.folder import write_whole
from fedsaddle.train import Run

_NUMBERS_AT_ONCE = 1 << 23  # of gradients
_MEASURED = 2048  # training samples from which shift and width are taken


class Coordinates(NamedTuple):
    """Which gradients are features."""

    at: Tensor  # coordinates of the flat parameter vector, rising [k] int64
    mix: Tensor  # how the network's outputs are combined to one [outputs]


def coordinates_of(parameters: int, outputs: int, k: int | None = None, seed: int = 0) -> Coordinates:
    """k coordinates of all parameters and a combination of the outputs, the same wherever they are drawn.

    Args:
        k: how many; None for all.
        seed: the same seed gives the same ones. A single output is taken as it is.

    Example:
        >>> coordinates_of(10, 1, 3).at.tolist() == coordinates_of(10, 1, 3).at.tolist()
        True
    """
    if k is not None and not 1 <= k <= parameters:
        raise FedsaddleError(
            f"convexify: coordinates must be in 1..{parameters}, the number of parameters, got {k}"
        )
    rng = np.random.default_rng([sampling.TANGENT, seed])
    mix = rng.standard_normal(outputs) / outputs**0.5
    at = np.sort(rng.permutation(parameters)[:k])
    return Coordinates(torch.from_numpy(at), torch.ones(1) if outputs == 1 else torch.from_numpy(mix))


def tangent(model: nn.Module | FlatModel, x: Tensor, coordinates: Coordinates) -> Tensor:
    """phi(x) = d <mix, f(w; x)> / dw at the module's weights, at the given coordinates: x [B, ...] -> [B, k].

    A pure function: <mix, f(w + d; x)> = <mix, f(w; x)> + <phi(x), d> + O(||d||^2) for d at these coordinates, which number
    the module's parameters in its own order.
    """
    flat = model if isinstance(model, FlatModel) else FlatModel(model)
    w = flat.initial.to(x.device)
    at, mix = coordinates.at, coordinates.mix.to(x.device, w.dtype)
    at = (at if flat.places is None else flat.places[at.to("cpu")]).to(x.device)

    def combined(w: Tensor, sample: Tensor) -> Tensor:
        return (flat(w.unsqueeze(0), sample[None, None]) @ mix).squeeze()

    rows = max(1, _NUMBERS_AT_ONCE // flat.n)
    of_each = vmap(grad(combined), in_dims=(None, 0))
    return torch.cat([of_each(w, part.to(w.dtype)).index_select(-1, at) for part in x.split(rows)])


class Tangent(nn.Module):
    """The features of a trained network: (phi(x) - shift) / width, for samples that it has seen or not.

    A module whose state_dict is all there is to it: `nn.Sequential(tangent, head)` scores samples.

    Args:
        network: with the trained weights.
        coordinates: which of its gradients are features.
        shift, width: of each feature, [k].
        kept: the precision that features are rounded to, as they were for training.
    """

    at: Tensor
    mix: Tensor
    shift: Tensor
    width: Tensor

    def __init__(
        self,
        network: nn.Module,
        coordinates: Coordinates,
        shift: Tensor,
        width: Tensor,
        kept: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.network, self.kept = network, kept
        for name, value in (*coordinates._asdict().items(), ("shift", shift), ("width", width)):
            self.register_buffer(name, value)

    def features(self, x: Tensor) -> Tensor:
        """x [B, ...] -> [B, k], in the network's precision."""
        phi = tangent(self.network, x, Coordinates(self.at, self.mix))
        return ((phi.double() - self.shift) / self.width).to(self.kept).to(phi.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The features."""
        return self.features(x)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, coordinates, shift and width as a safetensors file."""
        tensors = {k: v.detach().cpu().contiguous().clone() for k, v in self.state_dict().items()}
        about = {"kept": str(self.kept).removeprefix("torch."), "parameters": str(FlatModel(self.network).n)}
        write_whole(Path(path), save(tensors, about))

    @staticmethod
    def load(path: str | os.PathLike[str], network: nn.Module) -> Tangent:
        """Read what `save` has written.

        Args:
            path: the file; a run's folder has it as tangent.safetensors.
            network: one of the same architecture; gets the saved weights.
        """
        try:
            with safe_open(path, "pt") as file:
                about, tensors = file.metadata() or {}, {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            kept, n = getattr(torch, about["kept"]), int(about["parameters"])
            at, mix, shift, width = (tensors[k] for k in ("at", "mix", "shift", "width"))
        except (OSError, SafetensorError, KeyError, ValueError, AttributeError) as error:
            raise FedsaddleError(f"{path}: is no saved tangent ({type(error).__name__}: {error})") from error
        if (found := FlatModel(network).n) != n:
            raise FedsaddleError(
                f"{path}: is of a network with {n} trainable parameters, got one with {found}; "
                "build it as the first stage did"
            )
        out = Tangent(network, Coordinates(at, mix), shift, width, kept)
        try:
            out.load_state_dict(tensors)
        except RuntimeError as error:
            lines = " ".join(str(error).split())
            raise FedsaddleError(f"{path}: does not fit this network ({lines})") from error
        return out


def convexify(
    first: Run | nn.Module,
    federation: Federation,
    *,
    coordinates: int | None = 2000,
    seed: int = 0,
    half: bool = True,
    folder: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> Federation:
    """The federation with a trained network's tangent features as x, for a second stage with a linear model.

    Training, validation and test samples get the same features: gradients of the network's (combined) output in some of its
    parameters, shifted and scaled by statistics of the training samples. The result's `tangent` computes those of others.

    Args:
        first: the first stage: a run of a problem with a model, or the trained module; in a config, the run's sections.
        federation: whose samples are turned into features.
        coordinates: how many parameters' gradients are features, drawn by the seed; None for all of them.
        seed: of the coordinates, and of the combination of several outputs to one.
        half: keep features in half precision; a run reads them in its own.
        folder: where memory is scarce: a folder for a file of features, mapped into memory and gone with the process.
        device: where the features are computed.
        progress: a progress bar on stderr; by default when that is a terminal.

    Example:
        >>> import fedsaddle as fs, torch
        >>> digits = fs.data.load("digits").federation("iid", clients=4)
        >>> run = fs.train(fs.ERM(torch.nn.Linear(64, 10), "cross_entropy"), fs.FedAvg(lr=0.01), digits, rounds=2)
        >>> fs.convexify(run, digits, coordinates=100)
        Federation(4 clients, 1797 samples of 100, 449-450 a client, 10 classes)
    """
    module = first.model if isinstance(first, Run) else first
    if not isinstance(module, nn.Module):
        raise FedsaddleError(
            f"convexify: first must be a run or a torch.nn.Module, got {type(first).__name__}"
        )
    if "x" not in federation.data:
        raise FedsaddleError(
            f"convexify: needs the data field x, but the federation has {', '.join(federation.data)}"
        )
    if federation.tangent is not None:
        raise FedsaddleError(
            "convexify: the samples are tangent features already; convexify the samples themselves"
        )
    flat = FlatModel(module)
    flat = flat.to(torch.device(device), flat.initial.dtype)
    chosen = coordinates_of(flat.n, _outputs(flat, federation), coordinates, seed)
    x = federation.data["x"]
    measured = torch.linspace(0, len(x) - 1, min(len(x), _MEASURED)).round().long()
    phi = tangent(flat, x[measured].to(device), chosen).double().cpu()
    dtype = torch.float16 if half else flat.initial.dtype
    of = Tangent(flat.module, chosen, *_scales(phi), dtype).to(device)

    parts = [federation, federation.valid, federation.test]
    made = [None if p is None else _room((len(p.data["x"]), len(chosen.at)), dtype, folder) for p in parts]
    rows = max(1, _NUMBERS_AT_ONCE // flat.n)
    pieces = [
        (part.data["x"][start : start + rows], out[start : start + rows])
        for part, out in zip(parts, made, strict=True)
        if part is not None and out is not None
        for start in range(0, len(out), rows)
    ]
    for x, out in _shown(pieces, progress):
        out[:] = of.features(x.to(device))

    def with_features(part: Federation | None, x: Tensor | None) -> Federation | None:
        if part is None or x is None:
            return None
        filling = part.filling and part.filling.fixed()
        return dataclasses.replace(part, data={**part.data, "x": x}, feature_names=(), filling=filling)

    train, valid, test = map(with_features, parts, made)
    assert train is not None
    return dataclasses.replace(train, valid=valid, test=test, tangent=of.cpu())


def _scales(phi: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and width [k] that give features about equal spread and a mean squared norm of 1.

    Where a feature hardly changes in the measured samples, as behind a unit that is rarely active, its width is a tenth of
    the typical one, so that no sample becomes an outlier.
    """
    shift, spread = phi.mean(0), phi.var(0, correction=0)
    typical = spread.mean()
    if not typical > 0:
        raise FedsaddleError(
            "convexify: no feature changes from sample to sample; train the network, or draw more coordinates"
        )
    width = (spread + 0.01 * typical).sqrt()
    return shift, width * ((phi - shift) / width).square().sum(-1).mean().sqrt()


def _outputs(flat: FlatModel, federation: Federation) -> int:
    x = federation.data["x"][:1].to(flat.initial)
    try:
        with torch.no_grad():
            return flat(flat.initial.unsqueeze(0), x.unsqueeze(0)).shape[-1]
    except Exception as error:  # the user's module may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise FedsaddleError(
            f"convexify: the model does not take samples of shape {tuple(x.shape[1:])} ({reason})"
        ) from error


def _room(shape: tuple[int, int], dtype: torch.dtype, folder: str | os.PathLike[str] | None) -> Tensor:
    """An empty tensor, in memory or in a file that is gone with the process."""
    if folder is None or 0 in shape:
        return torch.empty(shape, dtype=dtype)
    place = Path(folder).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, prefix="features-", delete=False) as file:
            name = file.name
        out = torch.from_file(name, shared=True, size=shape[0] * shape[1], dtype=dtype).view(shape)
    except (OSError, RuntimeError) as error:
        raise FedsaddleError(f"convexify: folder {place} cannot hold the features ({error})") from error
    with suppress(OSError):  # Windows keeps a file that is mapped
        os.unlink(name)
    return out


def _shown(pieces: list[tuple[Tensor, Tensor]], progress: bool | None) -> Iterable[tuple[Tensor, Tensor]]:
    """The pieces one by one, with a progress bar on stderr."""
    if not (sys.stderr.isatty() if progress is None else progress):
        return pieces
    from rich.console import Console
    from rich.progress import track

    return track(pieces, "tangent features", console=Console(stderr=True))
