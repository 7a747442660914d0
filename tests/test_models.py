"""Models: shapes, sizes, agreement under vmap, conversion to GroupNorm, and every refusal."""

import copy
import doctest
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedsaddle import models
from fedsaddle.errors import FedsaddleError
from fedsaddle.models import CNN, MLP, MODELS, DenseNet121, Linear, ResNet18, build, check, group_norm

# The smallest sample that each model takes.
TINY = {"linear": (5,), "mlp": (5,), "cnn": (3, 18, 18), "resnet18": (3, 4, 4), "densenet121": (3, 8, 8)}
NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many tiny kernels: as fast on one thread, and far faster when the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def randomised(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        nn.init.normal_(p)
    return model


def test_every_model_is_in_the_tiny_table() -> None:
    assert TINY.keys() == MODELS.keys()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_output_shape(name: str, outputs: int) -> None:
    model = build(name, TINY[name], outputs)
    check(model)
    assert model(torch.randn(2, *TINY[name])).shape == (2, outputs)


@pytest.mark.parametrize("name", MODELS)
def test_one_channel_images_need_no_channel_axis(name: str) -> None:
    model = build(name, (20, 20))
    x = torch.randn(2, 20, 20)
    torch.testing.assert_close(model(x), model(x.unsqueeze(1)))


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_oblong_images(name: str) -> None:
    assert build(name, (2, 8, 12))(torch.randn(1, 2, 8, 12)).shape == (1, 1)


def test_samples_do_not_mix() -> None:
    for name, shape in TINY.items():
        model, x = build(name, shape).double(), torch.randn(2, *shape, dtype=torch.float64)
        torch.testing.assert_close(model(x)[:1], model(x[:1]))


def test_parameter_counts() -> None:
    assert count(Linear(123)) == 123 + 1
    assert count(MLP(10, (8, 4), 2)) == (10 * 8 + 8) + (8 * 4 + 4) + (4 * 2 + 2)
    assert count(MLP(10, ())) == count(Linear(10))
    # sides 32 -> 30 -> 15 -> 13 -> 6 -> 4; the tutorial prints 122,570 for ten outputs
    convolutions = (3 * 9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 * 9 + 1) * 64
    assert count(CNN()) == convolutions + (4 * 4 * 64 + 1) * 64 + 64 + 1 == 121_985
    assert count(CNN(outputs=10)) == 122_570
    assert (
        count(CNN(1, 18, 3, width=4)) == (9 + 1) * 4 + (9 * 4 + 1) * 8 + (9 * 8 + 1) * 8 + (8 + 1) * 8 + 9 * 3
    )


def test_resnet18_parameter_count() -> None:
    def stage(
        c_in: int, c: int
    ) -> int:  # two blocks of two convolutions, four norms; a 1x1 shortcut if it widens
        shortcut = 0 if c_in == c else c_in * c + 2 * c
        return 9 * c_in * c + 3 * 9 * c * c + 4 * 2 * c + shortcut

    stem, head = 27 * 64 + 2 * 64, 512 + 1
    stages = stage(64, 64) + stage(64, 128) + stage(128, 256) + stage(256, 512)
    assert count(ResNet18()) == stem + stages + head == 11_169_345
    large = 7 * 7 * 3 * 64 + 2 * 64  # torchvision's resnet18(num_classes=1) has as many
    assert count(ResNet18(stem="large")) == large + stages + head == 11_177_025


def test_resnet18_parameter_count_without_idle_taps() -> None:
    # 32 pixels after the large stem: sides 8, 4, 2, 1; with stride 2 four of nine taps meet 2x2 pixels, and one meets one
    idle = (9 - 4) * 256 * 512 + 3 * (9 - 1) * 512 * 512
    assert count(ResNet18(stem="large", pixels=32)) == 11_177_025 - idle == 4_230_209
    # 16 pixels with the small stem: sides 16, 8, 4, 2, where every tap meets some
    assert count(ResNet18(pixels=16)) == count(ResNet18())
    # one pixel: every kernel has one tap, so a stage of c channels has c/2 c + 3 c c and a shortcut c/2 c; five norms
    stages = sum(4 * c * c + 5 * 2 * c for c in (64, 128, 256, 512))
    for stem in ("small", "large"):
        assert count(ResNet18(1, stem=stem, pixels=1)) == 64 + stages + 512 + 1


def test_densenet121_parameter_count() -> None:
    def block(c: int, depth: int) -> int:  # norm, 1x1 to 128, norm, 3x3 to 32; the input grows by 32
        return sum(2 * k + k * 128 + 2 * 128 + 9 * 128 * 32 for k in range(c, c + 32 * depth, 32))

    def transition(c: int) -> int:  # norm, 1x1 to half
        return 2 * c + c * c // 2

    blocks = block(64, 6) + block(128, 12) + block(256, 24) + block(512, 16)
    transitions = transition(256) + transition(512) + transition(1024)
    assert count(DenseNet121()) == 27 * 64 + blocks + transitions + 2 * 1024 + 1024 + 1 == 6_947_073


class Straight:
    """The papers' layers in a row, fed with a model's parameters in their order."""

    def __init__(self, model: nn.Module) -> None:
        self.p = iter(model.parameters())

    def conv(self, x: Tensor, stride: int = 1) -> Tensor:
        w = next(self.p)
        return F.conv2d(x, w, None, stride, padding=w.shape[-1] // 2)

    def norm(self, x: Tensor) -> Tensor:
        return F.group_norm(x, 32, next(self.p), next(self.p))

    def head(self, x: Tensor) -> Tensor:
        return F.linear(x.mean((2, 3)), next(self.p), next(self.p))


@pytest.mark.parametrize("stem", ["small", "large"])
def test_resnet18_follows_the_paper(stem: str) -> None:
    model, x = randomised(ResNet18(stem=stem)).double(), torch.randn(2, 3, 24, 24, dtype=torch.float64)
    net = Straight(model)
    large = stem == "large"
    h = net.norm(net.conv(x, 2 if large else 1)).relu()
    h = F.max_pool2d(h, 3, 2, 1) if large else h
    assert h.shape == (2, 64, 6, 6) if large else (2, 64, 24, 24)
    for stride, widens in [(1, False), (1, False), (2, True), (1, False)] + 2 * [(2, True), (1, False)]:
        branch = net.norm(net.conv(net.norm(net.conv(h, stride)).relu()))
        h = (branch + (net.norm(net.conv(h, stride)) if widens else h)).relu()
    torch.testing.assert_close(model(x), net.head(h))


def whole_and_cut(stem: str, pixels: int) -> tuple[nn.Module, nn.Module]:
    """With all taps, and without those that meet no pixel; from one generator, so with equal weights."""
    models = []
    for size in (None, pixels):
        torch.manual_seed(1)
        models.append(ResNet18(stem=stem, pixels=size).double())
    return models[0], models[1]


def idle_taps(whole: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Of each kernel [O, C, h, w] the taps [h, w] by which the derivative of the outputs is 0 in all channels."""
    named = {k: p for k, p in whole.named_parameters() if p.ndim == 4}
    gradients = torch.autograd.grad(whole(x).square().sum(), list(named.values()))
    return {k: (g == 0).all(0).all(0) for k, g in zip(named, gradients, strict=True)}


@pytest.mark.parametrize(
    ("stem", "pixels", "are_idle"),
    [("small", 32, False), ("small", 8, True), ("large", 32, True), ("large", 8, True), ("large", 4, True)],
)
def test_resnet18_leaves_out_the_taps_that_cannot_learn(stem: str, pixels: int, are_idle: bool) -> None:
    """All of them and no other: outputs stay, and derivatives by the taps that are left."""
    whole, cut = whole_and_cut(stem, pixels)
    x = torch.randn(1, 3, pixels, pixels, dtype=torch.float64)
    out, same = cut(x), whole(x)
    torch.testing.assert_close(out, same, rtol=0, atol=1e-12)
    idle = idle_taps(whole, x)
    assert any(taps.any() for taps in idle.values()) == are_idle
    same.square().sum().backward()
    out.square().sum().backward()
    left = dict(cut.named_parameters())
    for key, p in whole.named_parameters():
        new = left.pop(key)
        assert p.grad is not None and new.grad is not None
        for all_taps, ours in ((p.detach(), new), (p.grad, new.grad)):
            learn = all_taps[:, :, ~idle[key]] if key in idle else all_taps
            torch.testing.assert_close(ours.flatten(2) if key in idle else ours, learn, rtol=1e-9, atol=1e-9)
    assert not left


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_idle_taps_stay_but_for_weight_decay(decay: float) -> None:
    """So training is the same without them."""
    whole, cut = whole_and_cut("large", 8)
    x, start = torch.randn(2, 3, 8, 8, dtype=torch.float64), copy.deepcopy(whole.state_dict())
    idle = idle_taps(whole, x)
    for model in (whole, cut):
        steps = torch.optim.SGD(model.parameters(), lr=0.001, weight_decay=decay)
        for _ in range(2):
            steps.zero_grad()
            (model(x) - 1).square().mean().backward()
            steps.step()
    ours = dict(cut.named_parameters())
    for key, p in whole.named_parameters():
        new, taps = p.detach(), idle.get(key)
        if taps is not None:
            kept = start[key][:, :, taps] * (1 - 0.001 * decay) ** 2
            torch.testing.assert_close(new[:, :, taps], kept, rtol=0, atol=1e-15 if decay else 0)
            new = new[:, :, ~taps].view_as(ours[key])
        torch.testing.assert_close(ours[key].detach(), new, rtol=0, atol=1e-10)
    assert (ours["1.weight"] - start["1.weight"]).abs().max() > 1e-4  # it did learn


def test_resnet18_without_idle_taps_refuses_other_images() -> None:
    model = ResNet18(1, stem="large", pixels=8)
    assert model(torch.zeros(2, 8, 8)).shape == (2, 1)  # without a channel axis, too
    for shape, got in (((1, 9, 9), "9x9"), ((1, 8, 9), "8x9"), ((4, 8), "4x8"), ((32, 32), "32x32")):
        with pytest.raises(FedsaddleError) as error:
            model(torch.zeros(2, *shape))
        assert str(error.value) == (
            f"model: was made for images of 8x8 pixels, got {got}; leave out pixels, or give the images' own"
        )


def test_idle_taps_are_found_without_computing_on_images() -> None:
    """A wrong number of pixels costs no memory: here petabytes."""
    assert count(build("resnet18", (3, 8, 8), pixels=2**24)) == count(ResNet18())


def test_densenet121_follows_the_paper() -> None:
    model, x = randomised(DenseNet121()).double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    net = Straight(model)
    h = net.conv(x)
    for block, depth in enumerate([6, 12, 24, 16]):
        if block > 0:
            h = F.avg_pool2d(net.conv(net.norm(h).relu()), 2)
        for _ in range(depth):
            h = torch.cat([h, net.conv(net.norm(net.conv(net.norm(h).relu())).relu())], dim=1)
    torch.testing.assert_close(model(x), net.head(net.norm(h).relu()))


@pytest.mark.parametrize("name", MODELS)
def test_vmap_over_stacked_parameters_equals_the_loop(name: str) -> None:
    torch.manual_seed(0)
    clients = [build(name, TINY[name]).double() for _ in range(2)]
    x = torch.randn(2, 2, *TINY[name], dtype=torch.float64)  # [S, B, ...]
    parameters, buffers = stack_module_state(clients)
    assert not buffers

    def loss(p: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        out = functional_call(clients[0], p, (x,))
        return out.square().sum(), out

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns where it falls back to a loop
        gradients, outputs = vmap(grad(loss, has_aux=True))(parameters, x)
    for i, model in enumerate(clients):
        out = model(x[i])
        out.square().sum().backward()
        torch.testing.assert_close(outputs[i], out)
        for key, p in model.named_parameters():
            torch.testing.assert_close(gradients[key][i], p.grad)


@pytest.mark.parametrize(("groups", "expected"), [(32, 32), (1, 1), (3, 2), (1000, 64)])
def test_groups_divide_the_channels(groups: int, expected: int) -> None:
    model = ResNet18(groups=groups)
    assert next(m for m in model.modules() if isinstance(m, nn.GroupNorm)).num_groups == expected
    assert model(torch.randn(2, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet", (3, 8, 8), {}, "model 'resnet' is unknown; did you mean 'resnet18'?"),
        ("MLP", (5,), {}, "model 'MLP' is unknown; did you mean 'mlp'?"),
        (
            "transformer!",
            (5,),
            {},
            "'transformer!' is unknown; known are linear, mlp, cnn, resnet18, densenet121",
        ),
        ("mlp", (5,), {"width": 3}, "model 'mlp' has no option 'width'; its options are: hidden"),
        ("mlp", (5,), {"features": 3}, "model 'mlp' has no option 'features'; its options are: hidden"),
        (
            "linear",
            (5,),
            {"hidden": (3,)},
            "model 'linear' has no option 'hidden'; its options are: zero",
        ),
        ("cnn", (123,), {}, "model 'cnn' needs images, sample_shape (channels, H, W) or (H, W), got (123,)"),
        ("resnet18", (1, 3, 8, 8), {}, "model 'resnet18' needs images"),
        ("cnn", (3, 17, 17), {}, "at least 18x18 pixels, got sample_shape (3, 17, 17); enlarge the images"),
        ("densenet121", (7, 8), {}, "at least 8x8 pixels, got sample_shape (7, 8)"),
        ("cnn", (3, 32, 30), {}, "needs square images, got sample_shape (3, 32, 30); crop or pad"),
        ("linear", (), {}, "sample_shape must be a tuple of integers >= 1, such as (123,), got ()"),
        ("linear", (3, 0), {}, "sample_shape must be a tuple of integers >= 1, such as (123,), got (3, 0)"),
        ("linear", (5,), {"outputs": 0}, "Linear: outputs must be an integer >= 1, got 0"),
        ("mlp", (5,), {"hidden": 64}, "MLP: hidden must be a list of widths, got 64; write (64,)"),
        ("mlp", (5,), {"hidden": (8, -1)}, "MLP: each width in hidden must be an integer >= 1, got -1"),
        ("cnn", (3, 18, 18), {"width": 0}, "CNN: width must be an integer >= 1, got 0"),
        ("resnet18", (3, 8, 8), {"groups": 0}, "ResNet18: groups must be an integer >= 1, got 0"),
        ("resnet18", (3, 8, 8), {"stem": "huge"}, "ResNet18: stem must be small or large, got 'huge'"),
        ("resnet18", (3, 8, 8), {"pixels": 0}, "ResNet18: pixels must be an integer >= 1, got 0"),
        ("resnet18", (3, 8, 8), {"pixels": 8.0}, "ResNet18: pixels must be an integer >= 1, got 8.0"),
        ("resnet18", (3, 8, 8), {"pixels": "8"}, "ResNet18: pixels must be an integer >= 1, got '8'"),
        ("densenet121", (3, 8, 8), {"groups": 2.5}, "DenseNet121: groups must be an integer >= 1, got 2.5"),
    ],
)
def test_build_refuses(name: str, shape: tuple[int, ...], options: dict[str, object], message: str) -> None:
    with pytest.raises(FedsaddleError) as error:
        build(name, shape, **options)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_cnn_refuses_a_small_size() -> None:
    with pytest.raises(FedsaddleError, match="CNN: size must be an integer >= 18, got 17"):
        CNN(size=17)


def test_build_takes_registered_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "mine", lambda outputs, bias=True: nn.Linear(5, outputs, bias=bias))
    assert count(build("mine", (5,), 2, bias=False)) == 10


class Nested(nn.Module):
    """BatchNorm at several depths, once shared between two places."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.BatchNorm2d(6)
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), shared)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(6, 6, 1), shared)])
        self.volume = nn.BatchNorm3d(4, eps=1e-3, affine=False)
        self.instance = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.plain = nn.InstanceNorm2d(6)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.instance(self.blocks[0](self.stem(x)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def test_group_norm_converts_nested_models() -> None:
    model = randomised(Nested())
    before = copy.deepcopy(model.state_dict())
    new = group_norm(model, groups=4)
    check(new)
    left = [path for path, m in new.named_modules() if isinstance(m, NORMS)]
    assert left == ["plain"]  # it keeps no statistics
    assert new(torch.randn(2, 3, 9, 9)).isfinite().all()
    assert new.stem[1].num_groups == 3 and new.head[1].num_groups == 1 and new.instance.num_groups == 6
    assert new.volume.eps == 1e-3 and new.volume.weight is None
    for path in ("stem.1", "blocks.0.1", "instance", "head.1"):
        old_norm, new_norm = model.get_submodule(path), new.get_submodule(path)
        assert torch.equal(new_norm.weight, old_norm.weight) and torch.equal(new_norm.bias, old_norm.bias)
    assert new.stem[1].weight is new.blocks[0][1].weight  # still shared
    assert isinstance(model.stem[1], nn.BatchNorm2d)  # the original is untouched
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not {id(p) for p in new.parameters()} & {id(p) for p in model.parameters()}


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(6), nn.BatchNorm2d(6), nn.BatchNorm3d(6), nn.SyncBatchNorm(6)]
    + [n(6, track_running_stats=True) for n in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)],
    ids=lambda norm: type(norm).__name__,
)
def test_group_norm_converts_every_kind(norm: nn.Module) -> None:
    norm.eval().requires_grad_(False)
    new = group_norm(norm.double())
    assert type(new) is nn.GroupNorm and new.num_channels == 6 and not new.training
    assert all(p.dtype == torch.float64 and not p.requires_grad for p in new.parameters())


def test_group_norm_of_instance_norm_is_the_same_function() -> None:
    norm, x = nn.InstanceNorm2d(6, affine=True, track_running_stats=True), torch.randn(2, 6, 5, 5)
    torch.testing.assert_close(group_norm(randomised(norm))(x), norm(x))


def test_group_norm_of_batch_norm_1d_is_layer_norm_on_vectors() -> None:
    x = torch.randn(4, 32)
    torch.testing.assert_close(group_norm(nn.BatchNorm1d(32))(x), F.layer_norm(x, (32,)))


def test_group_norm_refuses() -> None:
    class Activated(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).relu()

    with pytest.raises(FedsaddleError, match=r"own layers only, got Activated at '1'; replace it by hand"):
        group_norm(nn.Sequential(nn.Conv2d(1, 2, 1), Activated(2)))
    with pytest.raises(FedsaddleError, match="group_norm: groups must be an integer >= 1, got 0"):
        group_norm(nn.BatchNorm2d(2), groups=0)
    with pytest.raises(FedsaddleError, match="run one forward pass first"):
        group_norm(nn.Sequential(nn.LazyBatchNorm2d()))


def test_group_norm_and_check_agree() -> None:
    model = Nested()
    with pytest.raises(FedsaddleError, match=r"BatchNorm2d at 'stem\.1'"):
        check(model)
    check(group_norm(model))
    check(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.InstanceNorm1d(2)))  # nothing to refuse


def layered(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"bad": layer}))


STATISTICS = "running statistics are not a function of the parameters"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        *[
            (
                layered(norm),
                f"Sequential has {type(norm).__name__} at '1.bad': {STATISTICS} and mix the samples of a "
                "batch; convert it with fedsaddle.group_norm(model)",
            )
            for norm in (nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.BatchNorm3d(4), nn.SyncBatchNorm(4))
        ],
        (
            layered(nn.InstanceNorm2d(4, track_running_stats=True)),
            f"Sequential has InstanceNorm2d at '1.bad' with track_running_stats=True: {STATISTICS}; "
            "set track_running_stats=False or convert it with fedsaddle.group_norm(model)",
        ),
        *[
            (
                layered(drop),
                f"Sequential has {type(drop).__name__} at '1.bad' with probability 0.1: "
                "minibatches must be reproducible; remove it or set p=0",
            )
            for drop in (
                nn.Dropout(0.1),
                nn.Dropout2d(0.1),
                nn.AlphaDropout(0.1),
                nn.LSTM(4, 4, 2, dropout=0.1),
                nn.MultiheadAttention(4, 2, dropout=0.1),
            )
        ],
        (
            layered(nn.LazyLinear(2)),
            "Sequential has an uninitialised tensor at '1.bad.weight': its shape must be known; "
            "run one forward pass first",
        ),
        (
            nn.ReLU(),
            "ReLU has no trainable parameters: there is nothing to optimise; "
            "add a layer with parameters or call model.requires_grad_(True)",
        ),
        (nn.Linear(2, 2).requires_grad_(False), "Linear has no trainable parameters"),
        (
            nn.Linear(2, 2, dtype=torch.complex64),
            "Linear has a trainable parameter of torch.complex64 at 'weight': it must be a real float",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_check_refuses(model: nn.Module, message: str) -> None:
    with pytest.raises(FedsaddleError) as error:
        check(model)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_docstring_examples() -> None:
    assert doctest.testmod(models) == (0, 2)


def test_a_model_of_a_wrong_size_is_refused_before_it_is_allocated() -> None:
    before = torch.get_rng_state()
    with pytest.raises(
        FedsaddleError,
        match=r"^model: mlp would have 103,079,215,105 parameters, more than 2,147,483,648: make",
    ):
        models.build("mlp", (10,), 1, hidden=[2**33])
    assert torch.equal(torch.get_rng_state(), before)
