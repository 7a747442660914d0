"""Models that are pure functions of their parameters: a flat vector can hold them and `vmap` can stack them.

All of them map a batch [B, ...] to scores [B, outputs], start from PyTorch's default initialisation, and
normalise with GroupNorm: BatchNorm keeps statistics that are no parameters and mixes the samples of a batch.
A GroupNorm layer has the largest number of groups that divides its channels and is not above `groups`.
"""

import copy
import inspect
import math
from collections.abc import Callable, Collection, Sequence
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from fedsaddle.convolution import met, pair
from fedsaddle.errors import FedsaddleError, nearest_or_all

__all__ = ["CNN", "MLP", "MODELS", "DenseNet121", "Linear", "ResNet18", "build", "check", "group_norm"]


MAX_PARAMETERS = 2**31  # 8 GiB; more is a wrong number


class Linear(nn.Sequential):
    """An affine map of the flattened sample.

    Args:
        features: numbers in one sample, >= 1.
        outputs: scores for each sample, >= 1.
        zero: start at 0 instead of PyTorch's random initialisation.
    """

    def __init__(self, features: int, outputs: int = 1, zero: bool = False) -> None:
        _integer("Linear", "features", features)
        _integer("Linear", "outputs", outputs)
        super().__init__(nn.Flatten(), nn.Linear(features, outputs))
        if zero:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)


class MLP(nn.Sequential):
    """A fully connected network with ReLU on the flattened sample.

    Args:
        features: numbers in one sample, >= 1.
        hidden: widths of the hidden layers, each >= 1; empty gives `Linear`.
        outputs: scores for each sample, >= 1.
    """

    def __init__(self, features: int, hidden: Sequence[int] = (64,), outputs: int = 1) -> None:
        _integer("MLP", "features", features)
        _integer("MLP", "outputs", outputs)
        if not isinstance(hidden, list | tuple):
            raise FedsaddleError(
                f"MLP: hidden must be a list of widths, got {hidden!r}; write (64,) for one layer"
            )
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            _integer("MLP", "each width in hidden", width)
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        super().__init__(*layers, nn.Linear(features, outputs))


class CNN(nn.Sequential):
    """The CNN of the TensorFlow tutorial: three 3x3 convolutions, two 2x2 max-poolings, two dense layers.

    Args:
        channels: channels of the images [B, channels, size, size], >= 1; [B, size, size] works for one.
        size: height and width of the images, >= 18 (below that the last convolution has no pixel left).
        outputs: scores for each image, >= 1.
        width: channels of the first convolution, >= 1; all other layers are twice as wide.
        sigmoid: scores pass through a sigmoid, as in public code for AUC: ranks stay, and scores are bounded, so that
            larger steps do not diverge. Losses with a sigmoid of their own (logistic, cross-entropy) want none.

    Reference: https://www.tensorflow.org/tutorials/images/cnn
    """

    min_side = 18

    def __init__(
        self, channels: int = 3, size: int = 32, outputs: int = 1, width: int = 32, sigmoid: bool = False
    ) -> None:
        _integer("CNN", "channels", channels)
        _integer("CNN", "size", size, self.min_side)
        _integer("CNN", "outputs", outputs)
        _integer("CNN", "width", width)
        side = ((size - 2) // 2 - 2) // 2 - 2
        super().__init__(
            Images(),
            nn.Conv2d(channels, width, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * side * side, 2 * width),
            nn.ReLU(),
            *_scores(2 * width, outputs, sigmoid),
        )


class ResNet18(nn.Sequential):
    """ResNet-18 with GroupNorm.

    Args:
        channels: channels of the images [B, channels, H, W], >= 1; [B, H, W] works for one.
        outputs: scores for each image, >= 1.
        groups: upper limit of the groups in a GroupNorm, >= 1.
        stem: what comes before the residual blocks: "small" suits images of about 32 pixels, a 3x3 convolution that keeps
            their size; "large" is that of the paper, 7x7 with stride 2 and 3x3 max-pooling with stride 2, which leaves a
            sixteenth of the pixels and of the work.
        pixels: height and width of the images, >= 1: kernels then leave out the taps that meet nothing but padding on them,
            and outputs and training stay the same, since those taps never learn. On 32 pixels after the large stem the last
            blocks see one pixel, and seven of the eleven million parameters are such taps. None: all taps.
        sigmoid: scores pass through a sigmoid, as in public code for AUC: ranks stay, and scores are bounded, so that
            larger steps do not diverge. Losses with a sigmoid of their own (logistic, cross-entropy) want none.

    Reference: He et al., Deep residual learning for image recognition, CVPR 2016 (sections 3.3 and 4.2).
    """

    channels_innermost = True  # kernels lie so in the flat vector, see FlatModel

    def __init__(
        self, channels: int = 3, outputs: int = 1, groups: int = 32, stem: str = "small", pixels: int | None = None,
        sigmoid: bool = False,
    ) -> None:  # fmt: skip
        _integer("ResNet18", "channels", channels)
        _integer("ResNet18", "outputs", outputs)
        _integer("ResNet18", "groups", groups)
        if stem not in ("small", "large"):
            raise FedsaddleError(f"ResNet18: stem must be small or large, got {stem!r}")
        width = 64
        large = stem == "large"
        layers: list[nn.Module] = [
            Images(pixels),
            _conv(channels, width, 7, stride=2) if large else _conv(channels, width, 3),
            _norm(width, groups),
            nn.ReLU(),
            *([nn.MaxPool2d(3, stride=2, padding=1)] if large else []),
        ]
        for stage, stage_width in enumerate((64, 128, 256, 512)):
            layers.append(_Residual(width, stage_width, stride=1 if stage == 0 else 2, groups=groups))
            layers.append(_Residual(stage_width, stage_width, stride=1, groups=groups))
            width = stage_width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *_scores(width, outputs, sigmoid))
        if pixels is not None:
            _integer("ResNet18", "pixels", pixels)
            _leave_out_idle_taps(self, torch.zeros(1, channels, pixels, pixels, device="meta"))


class DenseNet121(nn.Sequential):
    """DenseNet-121 (growth 32, blocks 6-12-24-16) for small images: 3x3 stem without pooling, GroupNorm.

    Args:
        channels: channels of the images [B, channels, H, W], >= 1; [B, H, W] works for one; H and W >= 8.
        outputs: scores for each image, >= 1.
        groups: upper limit of the groups in a GroupNorm, >= 1.
        sigmoid: scores pass through a sigmoid, as in public code for AUC: ranks stay, and scores are bounded, so that
            larger steps do not diverge. Losses with a sigmoid of their own (logistic, cross-entropy) want none.

    Reference: Huang et al., Densely connected convolutional networks, CVPR 2017 (stem as for CIFAR).
    """

    min_side = 8

    def __init__(self, channels: int = 3, outputs: int = 1, groups: int = 32, sigmoid: bool = False) -> None:
        _integer("DenseNet121", "channels", channels)
        _integer("DenseNet121", "outputs", outputs)
        _integer("DenseNet121", "groups", groups)
        growth, width = 32, 64
        layers: list[nn.Module] = [Images(), _conv(channels, width, 3)]
        for block, depth in enumerate((6, 12, 24, 16)):
            if block > 0:  # transition: half the channels, half the side
                layers += [_norm(width, groups), nn.ReLU(), _conv(width, width // 2, 1), nn.AvgPool2d(2)]
                width //= 2
            for _ in range(depth):
                layers.append(_Dense(width, growth, groups))
                width += growth
        layers += [_norm(width, groups), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, *_scores(width, outputs, sigmoid))


FROM_SHAPE = ("features", "channels", "size")  # arguments that `build` takes from the shape of a sample

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": Linear,
    "mlp": MLP,
    "cnn": CNN,
    "resnet18": ResNet18,
    "densenet121": DenseNet121,
}


def build(name: str, sample_shape: Sequence[int], outputs: int = 1, **options: object) -> nn.Module:
    """Build the model `name` of `MODELS` for samples of the given shape.

    Args:
        name: a key of `MODELS`.
        sample_shape: shape of one sample: (features,), (channels, H, W), or (H, W) for one channel.
        outputs: scores for each sample, >= 1.
        options: the model's other arguments, such as `hidden` for mlp or `groups` for resnet18.

    Example:
        >>> build("mlp", (123,), hidden=(32, 16))(torch.zeros(5, 123)).shape
        torch.Size([5, 1])
    """
    if name not in MODELS:
        raise FedsaddleError(f"model {name!r} is unknown; {nearest_or_all(name, MODELS)}")
    arguments = inspect.signature(MODELS[name]).parameters
    derived = _derived(name, tuple(sample_shape), arguments)
    valid = [key for key in arguments if key not in derived and key != "outputs"]
    for key in options:
        if key not in valid:
            raise FedsaddleError(f"model {name!r} has no option {key!r}; its options are: {', '.join(valid)}")
    with torch.device("meta"):  # nothing is allocated yet
        sizes = [p.numel() for p in MODELS[name](**derived, outputs=outputs, **options).parameters()]
    if sum(sizes) > MAX_PARAMETERS:
        raise FedsaddleError(
            f"model: {name} would have {sum(sizes):,} parameters, more than {MAX_PARAMETERS:,}: make it smaller"
        )
    return MODELS[name](**derived, outputs=outputs, **options)


def group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Return a deep copy of `model` with GroupNorm in the place of every BatchNorm and stateful InstanceNorm.

    Scales and shifts are kept. The number of groups is the largest divisor of the channels not above
    `groups`, with two exceptions. BatchNorm1d gets one group: on [B, C] inputs a group of one channel would
    always be 0, one of two channels +-1. InstanceNorm gets a group for each channel: the same function
    without the statistics.

    Args:
        model: any module; it is left as it is.
        groups: upper limit of the groups in a GroupNorm, >= 1.

    Example:
        >>> group_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
        24
    """
    _integer("group_norm", "groups", groups)
    _refuse_lazy(model)
    root = nn.Sequential(copy.deepcopy(model))  # gives every module a parent, also the model itself
    for path, module in list(root.named_modules(remove_duplicate=False)):
        if isinstance(module, _BatchNorm | _InstanceNorm) and _has_statistics(module):
            parent, _, name = path.rpartition(".")
            setattr(root.get_submodule(parent), name, _converted(module, groups, path[2:]))  # without "0."
    return root[0]


def check(model: nn.Module) -> None:
    """Refuse a model that cannot be a pure function of a flat vector of its trainable parameters.

    Args:
        model: any module; `FedsaddleError` says what is wrong and how to mend it.
    """
    owner = type(model).__name__
    _refuse_lazy(model)
    for path, module in model.named_modules():
        found = f"{owner} has {type(module).__name__} at {path!r}"
        if isinstance(module, _BatchNorm):
            raise FedsaddleError(
                f"{found}: running statistics are not a function of the parameters and mix the samples of a "
                "batch; convert it with fedsaddle.group_norm(model)"
            )
        if isinstance(module, _InstanceNorm) and _has_statistics(module):
            raise FedsaddleError(
                f"{found} with track_running_stats=True: running statistics are not a function of the "
                "parameters; set track_running_stats=False or convert it with fedsaddle.group_norm(model)"
            )
        if (rate := _dropout(module)) > 0:
            raise FedsaddleError(
                f"{found} with probability {rate}: minibatches must be reproducible; remove it or set p=0"
            )
    trainable = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise FedsaddleError(
            f"{owner} has no trainable parameters: there is nothing to optimise; "
            "add a layer with parameters or call model.requires_grad_(True)"
        )
    for path, p in trainable:
        if not p.is_floating_point():
            raise FedsaddleError(
                f"{owner} has a trainable parameter of {p.dtype} at {path!r}: it must be a real float; "
                "store it as a float tensor (torch.view_as_real for complex) or set requires_grad=False"
            )


class Images(nn.Module):
    """Give images without a channel axis, [B, H, W], one channel; refuse those of another height or width than pixels."""

    def __init__(self, pixels: int | None = None) -> None:
        super().__init__()
        self.pixels = pixels

    def forward(self, x: Tensor) -> Tensor:
        if self.pixels is not None and x.shape[-2:] != (self.pixels, self.pixels):
            height, width = x.shape[-2:]
            raise FedsaddleError(
                f"model: was made for images of {self.pixels}x{self.pixels} pixels, got {height}x{width}; "
                "leave out pixels, or give the images' own"
            )
        return x.unsqueeze(1) if x.ndim == 3 else x


class _Residual(nn.Module):
    """ReLU(shortcut(x) + branch(x)), with two 3x3 convolutions in the branch."""

    def __init__(self, width_in: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _conv(width_in, width, 3, stride),
            _norm(width, groups),
            nn.ReLU(),
            _conv(width, width, 3),
            _norm(width, groups),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(_conv(width_in, width, 1, stride), _norm(width, groups))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.branch(x))


class _Dense(nn.Module):
    """(x, branch(x)) along the channels: `growth` new channels through a bottleneck of four times as many."""

    def __init__(self, width: int, growth: int, groups: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _norm(width, groups),
            nn.ReLU(),
            _conv(width, 4 * growth, 1),
            _norm(4 * growth, groups),
            nn.ReLU(),
            _conv(4 * growth, growth, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.branch(x)), dim=1)


def _scores(width: int, outputs: int, sigmoid: bool) -> list[nn.Module]:
    return [nn.Linear(width, outputs), *([nn.Sigmoid()] if sigmoid else [])]


def _conv(width_in: int, width: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    # no bias: a norm follows, which shifts
    return nn.Conv2d(width_in, width, kernel, stride, padding=kernel // 2, bias=False)


def _leave_out_idle_taps(model: nn.Module, images: Tensor) -> None:
    """Cut the kernels of a model's convolutions down to the taps that meet a pixel of such images, which are on meta."""
    seen: dict[nn.Conv2d, torch.Size] = {}  # height and width of what each is called on

    def look(layer: nn.Conv2d, inputs: tuple[Tensor]) -> None:
        seen[layer] = inputs[0].shape[-2:]

    hooks = [m.register_forward_pre_hook(look) for m in model.modules() if isinstance(m, nn.Conv2d)]
    on_meta = {k: p.detach().to("meta") for k, p in model.named_parameters()}
    functional_call(model, on_meta, (images,))  # sizes alone: a wrong number of pixels costs no memory
    for hook in hooks:
        hook.remove()
    for layer, size in seen.items():
        assert not isinstance(layer.padding, str)
        how = met(size, layer.kernel_size, pair(layer.stride), pair(layer.padding))
        (rows, cols), layer.padding = how
        layer.weight = nn.Parameter(layer.weight.detach()[:, :, rows, cols].clone())
        layer.kernel_size = pair(layer.weight.shape[2:])


def _norm(channels: int, groups: int) -> nn.GroupNorm:
    return nn.GroupNorm(_divisor(channels, groups), channels)


def _divisor(channels: int, limit: int) -> int:
    return max(g for g in range(1, min(channels, limit) + 1) if channels % g == 0)


def _integer(owner: str, name: str, value: object, least: int = 1) -> None:
    if not isinstance(value, Integral) or value < least:
        raise FedsaddleError(f"{owner}: {name} must be an integer >= {least}, got {value!r}")


def _derived(name: str, shape: tuple[int, ...], arguments: Collection[str]) -> dict[str, int]:
    """The arguments of model `name` that follow from the shape of one sample."""
    if not shape or not all(n >= 1 for n in shape):
        raise FedsaddleError(
            f"model {name!r}: sample_shape must be a tuple of integers >= 1, such as (123,), got {shape}"
        )
    if "channels" not in arguments:
        return {"features": math.prod(shape)} if "features" in arguments else {}
    if len(shape) not in (2, 3):
        raise FedsaddleError(
            f"model {name!r} needs images, sample_shape (channels, H, W) or (H, W), got {shape}; "
            "reshape the samples or use 'linear' or 'mlp'"
        )
    height, width = shape[-2:]
    least = getattr(MODELS[name], "min_side", 1)
    if min(height, width) < least:
        raise FedsaddleError(
            f"model {name!r} needs (channels, H, W) images of at least {least}x{least} pixels, "
            f"got sample_shape {shape}; enlarge the images or use 'resnet18' or 'mlp'"
        )
    channels = shape[0] if len(shape) == 3 else 1
    if "size" not in arguments:
        return {"channels": channels}
    if height != width:
        raise FedsaddleError(
            f"model {name!r} needs square images, got sample_shape {shape}; "
            "crop or pad the images or use 'resnet18'"
        )
    return {"channels": channels, "size": height}


def _converted(norm: _BatchNorm | _InstanceNorm, groups: int, path: str) -> nn.GroupNorm:
    """The GroupNorm that takes the place of `norm`, with the same scale, shift, eps and mode."""
    if type(norm) not in _CONVERTIBLE:  # its forward may do more than normalise, for instance activate
        raise FedsaddleError(
            f"group_norm knows torch.nn's own layers only, got {type(norm).__name__} at {path!r}; "
            "replace it by hand"
        )
    channels = norm.num_features
    if isinstance(norm, _InstanceNorm):
        groups = channels
    elif isinstance(norm, nn.BatchNorm1d):
        groups = 1
    new = nn.GroupNorm(_divisor(channels, groups), channels, norm.eps, norm.affine)
    if norm.affine:
        new.weight, new.bias = norm.weight, norm.bias
    return new.train(norm.training)


_CONVERTIBLE = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


def _has_statistics(norm: _BatchNorm | _InstanceNorm) -> bool:
    """Whether the output depends on more than the sample and the parameters: BatchNorm's always does."""
    return isinstance(norm, _BatchNorm) or norm.track_running_stats


def _dropout(module: nn.Module) -> float:
    """The probability with which the module drops numbers in training."""
    if isinstance(module, _DropoutNd):
        return module.p
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout
    return 0.0


def _refuse_lazy(model: nn.Module) -> None:
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise FedsaddleError(
                f"{type(model).__name__} has an uninitialised tensor at {path!r}: its shape must be known; "
                "run one forward pass first"
            )
