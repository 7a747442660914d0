"""The machinery under the algorithms: flat parameters, fields, engines, custom problems, projections, client memory."""

import copy
import dataclasses
import itertools
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

import fedsaddle as fs
from fedsaddle import projections
from fedsaddle.algorithms import (
    CODA,
    CODASCA,
    SCAFFOLD,
    AmplifiedFedAvg,
    AmplifiedSCAFFOLD,
    CODAPlus,
    CyCpMinimax,
    FedAvg,
    FedNormSGDA,
    FedSGDA,
    LocalSGDA,
    PublishedCODASCA,
)
from fedsaddle.cohort import Batching, Cohort
from fedsaddle.errors import FedsaddleError, NobodyAnswered
from fedsaddle.flat import FlatModel
from fedsaddle.models import CNN, MLP, ResNet18
from fedsaddle.participation import Cyclic, Full, Independent, Trace, Uniform
from fedsaddle.problem import Batch, tree_map
from fedsaddle.problems import AUC, ERM, Custom, QuadraticSaddle, quadratic_federation
from fedsaddle.replicas import stackable
from fedsaddle.train import train
from tests import harness
from tests.harness import FULL, TWINS, binary, clients_of, connect, drive, federation

DTYPES = [torch.float32, torch.float64]

# ------------------------------------------------------------------------------------------------ flat parameters


class Nested(nn.Module):
    """Nested modules, a parameter used twice, a frozen layer, a bare parameter and a constant buffer."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Sequential(nn.Tanh(), nn.Linear(3, 3))})
        self.encoder["b"][1].weight = self.encoder["a"].weight  # tied
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.tensor([0.1, -0.2, 0.3]))
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        h = self.encoder["b"](self.encoder["a"](x))
        return self.head(torch.tanh(self.frozen(h)) * self.scale + self.shift)


MODULES = {
    "nested": Nested,
    "linear": lambda: nn.Linear(3, 1),
    "no_bias": lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2)),
    "mlp": lambda: MLP(3, (5, 4), 2),
    "tied": lambda: (lambda layer: nn.Sequential(layer, nn.ReLU(), layer))(nn.Linear(3, 3)),
    "frozen": lambda: nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.ReLU(), nn.Linear(3, 1)),
    "group_norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.ELU(), nn.Linear(4, 1)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(6, 1)
    ),  # not a plain stack: Unflatten
    "nested_sequential": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.GELU()), nn.Linear(4, 1)),
}


def trainable(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODULES)
def test_flat_parameters_round_trip(name, dtype):
    torch.manual_seed(0)
    module = MODULES[name]().to(dtype)
    flat = FlatModel(module)
    assert flat.n == len(trainable(module)) and flat.initial.dtype == dtype
    x = torch.randn(4, 5, 3, dtype=dtype)
    w = torch.randn(4, flat.n, dtype=dtype)
    assert torch.equal(flat(flat.initial[None], x[:1])[0], module(x[0]))
    outputs = flat(w, x)
    for i in range(4):
        own = flat.module_at(w[i])
        assert type(own) is type(module) and own is not module
        assert torch.equal(trainable(own), w[i])
        torch.testing.assert_close(own(x[i]), outputs[i])
        torch.testing.assert_close(flat(w[i : i + 1], x[i : i + 1])[0], outputs[i])
        for (k, p), q in zip(own.named_parameters(), module.parameters(), strict=True):
            assert p.requires_grad == q.requires_grad, k
            assert p.requires_grad or torch.equal(p, q)
    assert torch.equal(trainable(module), flat.initial)  # the user's module is untouched


@pytest.mark.parametrize("name", MODULES)
def test_flat_gradients_are_the_modules(name):
    torch.manual_seed(1)
    flat = FlatModel(MODULES[name]().double())
    x, w = torch.randn(3, 5, 3).double(), torch.randn(3, flat.n).double().requires_grad_()
    (gradient,) = torch.autograd.grad((flat(w, x) ** 2).sum(), w)
    for i in range(3):
        own = flat.module_at(w[i])
        (own(x[i]) ** 2).sum().backward()
        expected = torch.cat([p.grad.reshape(-1) for p in own.parameters() if p.requires_grad])
        torch.testing.assert_close(gradient[i], expected)


IMAGE_MODULES = {
    "cnn": lambda: CNN(2, 18),
    "group_norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(3),
        nn.Conv2d(4, 3, 2, dilation=2, padding="same"), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(12, 2),
    ),
    "average": lambda: nn.Sequential(nn.Conv2d(2, 3, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1)),
    "two_convolutions_of_a_pixel": lambda: nn.Sequential(nn.Conv2d(2, 3, 18), nn.Tanh(), nn.Conv2d(3, 1, 1), nn.Flatten()),
    "grouped": lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(512, 1)),
    "linear_on_rows": lambda: nn.Sequential(nn.Conv2d(2, 1, 3), nn.Linear(16, 2), nn.Flatten(), nn.Linear(32, 1)),
    "reflecting": lambda: nn.Sequential(
        nn.Conv2d(2, 1, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(324, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGE_MODULES)
def test_stacked_images_equal_single_calls(name):
    torch.manual_seed(0)
    flat = FlatModel(IMAGE_MODULES[name]().double())
    x, w = torch.randn(3, 5, 2, 18, 18).double(), torch.randn(3, flat.n).double().requires_grad_()
    out = flat(w, x)
    (gradient,) = torch.autograd.grad((out**2).sum(), w)
    plain = name in ("cnn", "group_norm", "average", "two_convolutions_of_a_pixel")
    assert (flat._layers is not None) == plain
    for i in range(3):
        own = flat.module_at(w[i])
        torch.testing.assert_close(out[i], own(x[i]))
        (own(x[i]) ** 2).sum().backward()
        torch.testing.assert_close(gradient[i], torch.cat([p.grad.reshape(-1) for p in own.parameters()]))


class Innermost(nn.Module):
    """Kernels of unequal sides, one of them frozen and one used twice, beside parameters of other shapes."""

    channels_innermost = True

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, (3, 2))
        self.frozen = nn.Conv2d(4, 6, 2).requires_grad_(False)
        self.body = nn.ModuleList([nn.Conv2d(6, 6, (1, 3), padding="same"), nn.Conv2d(6, 6, (1, 3))])
        self.body[1].weight = self.body[0].weight
        self.scale = nn.Parameter(torch.randn(6, 1, 1))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = self.body[1](self.body[0](self.frozen(self.first(x).tanh())).relu())
        return self.head((h * self.scale).mean((2, 3)))


INNERMOST = {
    "small": (Innermost, (3, 8, 7)),
    # kernels of 7x7, 3x3, 2x2 and 1x1
    "resnet18": (lambda: ResNet18(3, 2, stem="large", pixels=8), (3, 8, 8)),
}


def lying(tensors):
    """Numbers of tensors as they lie in a vector whose kernels have their channels innermost."""
    return torch.cat([(t.permute(0, 2, 3, 1) if t.ndim == 4 else t).reshape(-1) for t in tensors])


@pytest.mark.parametrize("name", INNERMOST)
def test_kernels_with_their_channels_innermost(name):
    make, shape = INNERMOST[name]
    module, x = make().double(), torch.randn(1, 5, *shape, dtype=torch.float64)
    flat, start = FlatModel(module), 0
    for p in (p.detach() for p in module.parameters() if p.requires_grad):
        own = flat.initial[start : start + p.numel()]
        if p.ndim == 4:
            C, h, w = p.shape[1:]
            for o, c, i, j in ((0, 0, 0, 0), (1, C - 1, 0, w - 1), (2, 1, h - 1, 0), (3, 0, h - 1, w - 1)):
                assert own[((o * h + i) * w + j) * C + c] == p[o, c, i, j]
        assert torch.equal(own, lying([p]))
        start += p.numel()
    assert flat.n == len(flat.initial) == start
    assert not torch.equal(flat.initial, trainable(module))
    assert torch.equal(flat(flat.initial[None], x)[0], module(x[0]))
    back = flat.module_at(flat.initial)
    assert type(back) is type(module)
    assert back.state_dict().keys() == module.state_dict().keys()
    assert all(torch.equal(v, module.state_dict()[k]) for k, v in back.state_dict().items())


@pytest.mark.parametrize("name", INNERMOST)
def test_stacked_clients_with_channels_innermost_are_their_own_modules(name):
    """Outputs and derivatives, of clients side by side and of one; numbers after the parameters are left alone."""
    make, shape = INNERMOST[name]
    modules = [make().double() for _ in range(2)]
    if name == "small":  # frozen parameters are the first module's
        modules[1].frozen.load_state_dict(modules[0].frozen.state_dict())
    flat, x = FlatModel(modules[0]), torch.randn(2, 3, *shape, dtype=torch.float64)
    w = torch.stack([FlatModel(module).initial for module in modules])
    z = torch.cat([w, torch.full((2, 3), torch.nan)], dim=-1)
    out, pullback = flat.with_pullback(z, x)
    gradient = pullback(2 * out)
    for i, module in enumerate(modules):
        own = module(x[i])
        torch.testing.assert_close(out[i], own)
        torch.testing.assert_close(flat(z[i : i + 1], x[i : i + 1])[0], own)
        own.square().sum().backward()
        expected = lying([p.grad for p in module.parameters() if p.requires_grad])
        torch.testing.assert_close(gradient[i], expected)


def test_a_run_of_resnet18_is_gradient_descent_of_the_module(tmp_path):
    """One step a round of equal clients is one on all samples; the model that comes back has the scores of the iterate."""
    module = ResNet18(2, stem="large", pixels=8)
    x, y = torch.randn(12, 2, 8, 8, dtype=torch.float64), torch.arange(12) // 2 % 2
    fed = federation(*({"x": x[i::2].numpy(), "y": y[i::2].numpy()} for i in range(2)))
    options = dict(rounds=2, batch_size=None, dtype="float64", out=tmp_path / "run")
    run = train(ERM(module), FedAvg(lr=0.01, local_steps=1), fed, **options).finish()
    by_hand = copy.deepcopy(module).double()
    for _ in range(2):
        loss = nn.functional.softplus((1 - 2 * y) * by_hand(x).squeeze(-1)).mean()
        gradient = torch.autograd.grad(loss, list(by_hand.parameters()))
        for p, g in zip(by_hand.parameters(), gradient, strict=True):
            p.data -= 0.01 * g
    for (k, p), q in zip(run.model.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12, msg=lambda m, k=k: f"{k}: {m}")
    assert (run.model[1].weight - module[1].weight).abs().max() > 1e-4
    scores = run.problem.scores(run.z[None], x[None])[0]
    loaded = fs.load_model(tmp_path / "run", ResNet18(2, stem="large", pixels=8))
    for model in (run.model, loaded):
        torch.testing.assert_close(model(x).squeeze(-1), scores, rtol=0, atol=1e-12)
    with pytest.raises(FedsaddleError, match="does not fit ResNet18"):
        fs.load_model(tmp_path / "run", ResNet18(2, stem="large"))


def test_groups_of_a_regulariser_are_those_of_the_module():
    """Whichever way kernels lie in the vector, consecutive weights are those of the module's parameters."""
    torch.manual_seed(0)
    module = ResNet18(2, stem="large", pixels=8).double()
    problem = ERM(module, regulariser="group_lasso(0.3, 9)").to(torch.device("cpu"), torch.float64)

    def weights(of):
        return torch.cat([p.detach().flatten() for p in of.parameters() if p.ndim > 1])

    w = problem.flat.initial[None]
    want = projections.named("group_lasso(0.3, 9)")(weights(module)[None], 0.5)
    torch.testing.assert_close(weights(problem.flat.module_at(problem.prox(w, 0.5)[0]))[None], want)
    assert (want == 0).any() and (want != 0).any()
    torch.testing.assert_close(
        problem.penalty(w), projections.regulariser("group_lasso(0.3, 9)").value(weights(module)[None])
    )


def test_a_plain_stack_keeps_the_order_of_its_modules():
    """It is called layer by layer, by kernels as PyTorch has them."""

    class Stack(nn.Sequential):
        channels_innermost = True

    flat = FlatModel(Stack(nn.Conv2d(2, 3, (3, 2)), nn.Flatten(), nn.Linear(36, 1)).double())
    assert flat._layers is not None and torch.equal(flat.initial, trainable(flat.module))
    w, x = torch.randn(2, flat.n).double(), torch.randn(2, 5, 2, 5, 5).double()
    for i in range(2):
        torch.testing.assert_close(flat(w, x)[i], flat.module_at(w[i])(x[i]))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("clients", [3, 4])
def test_dense_layers_on_sequences(clients, bias):
    """A dense layer before the flatten goes over every position of a sample; clients and samples must not mix."""
    torch.manual_seed(0)
    flat = FlatModel(
        nn.Sequential(nn.Linear(8, 4, bias=bias), nn.ReLU(), nn.Flatten(), nn.Linear(24, 1)).double()
    )
    w, x = torch.randn(clients, flat.n).double(), torch.randn(clients, 4, 6, 8).double()
    out = flat(w, x)
    for i in range(clients):
        torch.testing.assert_close(out[i], flat.module_at(w[i])(x[i]))
    shared = x[None, None].expand(1, 2, *x.shape)
    torch.testing.assert_close(flat(w.expand(1, 2, *w.shape), shared)[0, 1], out)


def _patched(module, layer):
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)
    return module


def _reordered():
    layer = nn.Linear(3, 3)
    weight = layer.weight
    del layer._parameters["weight"]
    layer.register_parameter("weight", weight)  # now after the bias
    return nn.Sequential(layer, nn.Linear(3, 1))


def _with_own_parameter():
    module = nn.Sequential(nn.Linear(3, 1))
    module.register_parameter("scale", nn.Parameter(torch.ones(1)))
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: (lambda m: _patched(m, m[0]))(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))),
        _reordered,
        _with_own_parameter,
    ],
    ids=["patched", "reordered", "own_parameter"],
)
def test_what_only_looks_like_a_plain_stack(make):
    torch.manual_seed(0)
    flat = FlatModel(make().double())
    w, x = torch.randn(2, flat.n).double(), torch.randn(2, 5, 3).double()
    for i in range(2):
        torch.testing.assert_close(flat(w, x)[i], flat(w[i : i + 1], x[i : i + 1])[0])


def test_an_in_place_layer_leaves_the_users_data_alone():
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    fed = federation(*({"x": x[i::2].numpy(), "y": y[i::2].numpy()} for i in range(2)))
    before = fed.data["x"].clone()
    module = nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(3, 1))
    train(ERM(module), LocalSGDA(), fed, rounds=3, batch_size=None).finish()
    assert torch.equal(fed.data["x"], before) and module[0].inplace


def test_images_without_a_channel_axis():
    flat = FlatModel(CNN(1, 18).double())
    x, w = torch.randn(2, 3, 18, 18).double(), torch.randn(2, flat.n).double()
    torch.testing.assert_close(flat(w, x), flat(w, x.unsqueeze(2)))
    torch.testing.assert_close(flat(w, x)[:1], flat(w[:1], x[:1]))


@pytest.mark.parametrize("name", ["linear", "mlp", "no_bias", "nested"])
def test_samples_that_replicas_share(name):
    """A view over the replicas of one seed gives what copies of it give."""
    torch.manual_seed(0)
    flat = FlatModel(MODULES[name]().double())
    w = torch.randn(2, 4, 3, flat.n).double().requires_grad_()  # seeds, points, clients
    x = torch.randn(2, 1, 3, 5, 3).double().expand(2, 4, 3, 5, 3)
    assert flat.shares == (name != "nested")
    shared, copied = flat(w, x), flat(w, x.contiguous())
    torch.testing.assert_close(shared, copied)
    gradients = [torch.autograd.grad((out**3).sum(), w)[0] for out in (shared, copied)]
    torch.testing.assert_close(*gradients)


def test_replica_axis():
    torch.manual_seed(0)
    flat = FlatModel(Nested().double())
    w, x = torch.randn(2, 3, flat.n).double(), torch.randn(2, 3, 5, 3).double()
    out = flat(w, x)
    assert out.shape == (2, 3, 5, 2)
    torch.testing.assert_close(out[1], flat(w[1], x[1]))


def test_module_at_keeps_every_digit_of_a_double_vector():
    """Trained in float64, the module that the user gets back holds float64, though he brought float32."""
    problem = ERM(nn.Linear(3, 1))
    z = torch.full((1, 4), 1 / 3, dtype=torch.float64)
    for p in (problem, problem.to(torch.device("cpu"), torch.float64)):
        assert torch.equal(trainable(p.module(z)), z[0])


@pytest.mark.parametrize("where", ["container", "layer"])
def test_hooks_of_a_module_are_kept_on_both_engines(where):
    module = nn.Sequential(nn.Linear(3, 1), nn.Identity())
    (module if where == "container" else module[0]).register_forward_hook(lambda m, i, out: 2 * out)
    flat = FlatModel(module)
    x, w = torch.randn(2, 5, 3), torch.randn(2, 4)
    torch.testing.assert_close(flat(w, x)[:1], flat(w[:1], x[:1]))


def test_a_module_that_returns_one_number_a_sample():
    class Squeezed(nn.Linear):
        def forward(self, x):
            return super().forward(x).squeeze(-1)

    flat = FlatModel(Squeezed(3, 1))
    assert flat(torch.zeros(1, 4), torch.zeros(1, 5, 3)).shape == (1, 5, 1)
    assert flat(torch.zeros(2, 4), torch.zeros(2, 5, 3)).shape == (2, 5, 1)


def test_tree_map_keeps_structure():
    class Pair(NamedTuple):
        a: torch.Tensor
        b: tuple

    tree = Pair(torch.ones(2), (torch.zeros(1), None, "word", 3))
    out = tree_map(lambda u, v: u + v, tree, tree)
    assert type(out) is Pair and out.b[1:] == (None, "word", 3)
    assert torch.equal(out.a, torch.full((2,), 2.0))


# --------------------------------------------------------------------------------------------------------- fields


def bilinear(x, y, batch):
    return batch["x"] @ x * y[0] + (x**2).sum() - (y**2).sum() / 2 + (batch["y"] * y[0]).exp() * 0.1


FIELDS = {
    "auc": (lambda: AUC(nn.Linear(3, 1), p=0.2), binary),
    "auc-mlp": (lambda: AUC(MLP(3, (4,)), p=0.2), binary),
    "auc-nested": (lambda: AUC(nn.Sequential(Nested(), nn.Linear(2, 1)), p=0.7), binary),
    "auc-positive_0": (lambda: AUC(nn.Linear(3, 1), p=0.2, positive=0), binary),
    "logistic": (lambda: ERM(MLP(3, (4,))), binary),
    "logistic-positive_0": (lambda: ERM(nn.Linear(3, 1), positive=0), binary),
    "cross_entropy": (lambda: ERM(MLP(3, (4,), 3), loss="cross_entropy"), harness.three_classes),
    "squared": (lambda: ERM(MLP(3, (4,)), loss="squared"), harness.regression),
    "quadratic": (lambda: QuadraticSaddle(3, 2), harness.quadratics),
    "custom": (lambda: Custom(bilinear, 3, 1), harness.regression),
}


def differences(f, z, h=1e-6):
    """Derivatives of f(z)[i], i = row, with respect to row i of z."""
    out = torch.empty_like(z)
    for j in range(z.shape[1]):
        e = torch.zeros_like(z)
        e[:, j] = h
        out[:, j] = (f(z + e) - f(z - e)) / (2 * h)
    return out


@pytest.mark.parametrize("name", FIELDS)
def test_field_is_the_derivative_of_the_losses(name):
    make, data = FIELDS[name]
    torch.manual_seed(0)
    engine = connect(make(), data())
    problem, cohort = engine.problem, engine.cohort(np.arange(4), 0)
    seen = []
    cohort.scan(lambda carry, batch: seen.append(batch) or carry, torch.zeros(1, 1), 2)
    batch = seen[1]
    z = 0.5 * torch.randn(4, problem.n_x + problem.n_y, dtype=torch.float64)
    sign = torch.ones_like(z)
    sign[:, problem.n_x :] = -1
    expected = sign * differences(lambda z: (problem.losses(z, batch.data) * batch.w).sum(-1), z)
    np.testing.assert_allclose(cohort.field(z, batch), expected, rtol=1e-7, atol=1e-7)
    full = sign * differences(lambda z: cohort.full_loss(z)[:, 0], z)
    np.testing.assert_allclose(cohort.full_field(z), full, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("margin", [1.0, 0.4])
def test_margin_field(margin):
    """Primal entries are derivatives of F_m; the dual's is the public code's step, whatever the data."""
    torch.manual_seed(0)
    engine = connect(AUC(MLP(3, (4,)), p=0.3, dual="margin", margin=margin), binary())
    cohort = engine.cohort(np.arange(4), 0)
    z = 0.5 * torch.randn(4, engine.problem.n_x + 1, dtype=torch.float64)
    F = cohort.full_field(z)
    expected = differences(lambda z: cohort.full_loss(z)[:, 0], z)
    np.testing.assert_allclose(F[:, :-1], expected[:, :-1], rtol=1e-7, atol=1e-7)
    a, b, A = z[:, -3:].unbind(-1)
    np.testing.assert_allclose(F[:, -1], -(2 * (margin + b - a) - 2 * A), rtol=0, atol=1e-13)


def test_pieces_do_not_matter(monkeypatch):
    engine = connect(AUC(nn.Linear(3, 1), p=0.3), binary())
    cohort, z = engine.cohort(np.arange(6), 0), torch.randn(1, 7).double()
    whole = cohort.full_field(z), cohort.full_loss(z)
    for numbers in (1, 60, 100):
        monkeypatch.setattr("fedsaddle.cohort._NUMBERS_AT_ONCE", numbers)
        torch.testing.assert_close((cohort.full_field(z), cohort.full_loss(z)), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("replicas", [None, 3])
def test_small_clients_are_no_padding_beside_large_ones(replicas, monkeypatch):
    """Over all samples: each client's own mean, from at most twice as many rows as there are."""
    sizes = torch.tensor([3, 70, 1, 33, 64, 5])
    first, n = sizes.cumsum(0) - sizes, int(sizes.sum())
    torch.manual_seed(0)
    data = {"x": torch.randn(n, 4).double(), "y": torch.arange(n) % 2}
    problem = ERM(nn.Linear(4, 1).double())
    z = torch.randn(6, problem.n_x).double()
    ids, per_seed = torch.arange(6), 1
    key = torch.zeros(1, dtype=torch.long)
    if replicas is not None:
        ids, first, sizes = (v.expand(replicas, -1) for v in (ids, first, sizes))
        z, key, per_seed = torch.randn(replicas, 6, problem.n_x).double(), key.expand(replicas, -1), replicas
    cohort = Cohort(
        problem, ids, data, first, sizes, None, key, Batching(), torch.float64, 70, per_seed=per_seed
    )
    read, gathered = [], Cohort._gathered
    monkeypatch.setattr(
        Cohort,
        "_gathered",
        lambda self, rows, *more: read.append(rows.numel()) or gathered(self, rows, *more),
    )
    loss, F = cohort.full_loss(z), cohort.full_field(z)
    assert sum(read) <= 2 * 2 * n
    for r, at in np.ndindex(replicas or 1, 6):
        own = slice(
            int(first.reshape(-1, 6)[0, at]), int(first.reshape(-1, 6)[0, at] + sizes.reshape(-1, 6)[0, at])
        )
        part = {k: v[own].unsqueeze(0) for k, v in data.items()}
        point = z.reshape(-1, 6, problem.n_x)[r, at : at + 1]
        w = torch.full_like(part["x"][..., 0], 1 / part["y"].numel())
        mean = (problem.losses(point, part) * w).sum()
        torch.testing.assert_close(loss.reshape(-1, 6)[r, at], mean, rtol=0, atol=1e-13)
        expected = problem.field(point, Batch(part, w))[0]
        torch.testing.assert_close(F.reshape(-1, 6, problem.n_x)[r, at], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dual", ["gradient", "margin"])
@pytest.mark.parametrize("margin", [1.0, 0.4])
def test_dual_from_statistics_is_the_optimal_dual(dual, margin):
    """With equal class counts everywhere, CODA's dual over all samples is the maximiser of f."""
    rng = np.random.default_rng(0)
    for shift in (2.0, -0.5):  # well separated the margin form's bound A >= 0 is active
        y = np.array([1, 0, 1, 0])
        fed = federation(*({"x": rng.normal(size=(4, 3)) + shift * y[:, None], "y": y} for _ in range(3)))
        engine = connect(AUC(nn.Linear(3, 1), dual=dual, margin=margin), fed)
        cohort, problem = engine.cohort(np.arange(3), 0), engine.problem
        z = torch.cat([torch.ones(1, 3), torch.zeros(1, 4)], 1).double()
        coupling = lambda data, c=cohort, p=problem, z=z: p.coupling(c.each(z), data)
        x_mean = cohort.full_mean(coupling).mean()
        dual_value = problem.dual_from(problem.dual_statistics(cohort.each(z), cohort.batch(100)))
        assert dual_value.shape == (1, 1)
        assert dual_value.item() == pytest.approx(problem.optimal_dual(x_mean).item(), abs=1e-12)


def test_dual_by_samples_is_the_optimal_dual_of_the_pool():
    """Whatever the classes' shares at the clients, weights by samples give the pool's class means."""
    rng = np.random.default_rng(1)
    fed = federation(
        *(
            {"x": rng.normal(size=(n, 3)) + n, "y": (np.arange(n) < pos).astype(int)}
            for n, pos in ((40, 2), (9, 8), (5, 0))
        )
    )
    engine = connect(AUC(nn.Linear(3, 1), p="pooled"), fed)
    cohort, problem = engine.cohort(np.arange(3), 0), engine.problem
    z = torch.cat([torch.ones(1, 3), torch.zeros(1, 4)], 1).double()
    n = engine.size_weights.unsqueeze(-1)
    means = cohort.full_mean(lambda data: problem.coupling(cohort.each(z), data))
    best = problem.optimal_dual((means * n).sum() / n.sum()).item()
    statistics = problem.dual_statistics(cohort.each(z), cohort.batch(100))
    assert problem.dual_from(statistics, n).item() == pytest.approx(best, abs=1e-12)
    assert abs(problem.dual_from(statistics).item() - best) > 0.1


def test_dual_without_one_class_is_inherited():
    """No participant drew a positive sample: CODA's dual is not defined, and must not become nan."""
    rng = np.random.default_rng(0)
    fed = federation(
        *({"x": rng.normal(size=(4, 3)), "y": np.full(4, k == 0, dtype=np.int64)} for k in range(3))
    )
    stages, model = dict(lr=0.1, local_steps=1, stage_rounds=2), nn.Linear(3, 1)
    for kind in ("gradient", "margin"):
        coda, coda_plus = (
            drive(a, AUC(model, dual=kind), fed, 4, participation=harness.Fixed(ids=(1, 2))).z
            for a in (CODA(**stages), CODAPlus(**stages))
        )
        assert (coda == coda_plus).all()


def test_p_counts():
    fed = binary()
    labels = [c["y"] for c in clients_of(fed)]
    for dtype in DTYPES:
        for chunk in (None, 1, 4):
            p = connect(AUC(nn.Linear(3, 1)), fed, dtype=dtype, chunk=chunk).problem.p
            assert p == pytest.approx(harness.refproblems.client_mean_p(labels), abs=1e-15)
            p = connect(AUC(nn.Linear(3, 1), p="pooled", positive=0), fed, dtype=dtype).problem.p
            assert p == pytest.approx(1 - harness.refproblems.pooled_p(labels), abs=1e-15)


@pytest.mark.parametrize("value, word", [(0, "positive"), (1, "negative")])
def test_auc_needs_both_classes(value, word):
    fed = federation(*({"x": np.ones((2, 3)), "y": np.full(2, value)} for _ in range(2)))
    with pytest.raises(FedsaddleError, match=f"no client has {word} examples"):
        connect(AUC(nn.Linear(3, 1)), fed)


# -------------------------------------------------------------------------------------------------------- engines


def images(sizes=(3, 5, 2)):
    rng = np.random.default_rng(0)
    return federation(
        *({"x": rng.normal(size=(n, 1, 18, 18)), "y": np.arange(n, dtype=np.int64) % 2} for n in sizes)
    )


ENGINE_CASES = {
    "mlp-codasca": (
        CODASCA(lr=0.05, local_steps=3, gamma=0.1, stage_rounds=3),
        lambda: AUC(MLP(3, (8, 8))),
        binary,
        8,
    ),
    "mlp-coda": (CODA(lr=0.05, local_steps=3, stage_rounds=2), lambda: AUC(MLP(3, (8,))), binary, 6),
    "mlp-published": (
        PublishedCODASCA(lr=0.05, local_steps=3, stage_rounds=2),
        lambda: AUC(MLP(3, (8,)), dual="margin"),
        binary,
        6,
    ),
    "nested-scaffold": (
        SCAFFOLD(lr=0.05, local_steps=3),
        lambda: ERM(nn.Sequential(Nested(), nn.Linear(2, 1))),
        binary,
        6,
    ),
    "mlp-cross_entropy": (
        FedAvg(lr=0.05, local_steps=3),
        lambda: ERM(MLP(3, (8,), 3), loss="cross_entropy"),
        harness.three_classes,
        6,
    ),
    "cnn-coda_plus": (CODAPlus(lr=0.05, local_steps=2, stage_rounds=2), lambda: AUC(CNN(1, 18)), images, 2),
    "custom": (LocalSGDA(lr=0.05, local_steps=3), lambda: Custom(bilinear, 3, 1), harness.regression, 6),
}


@pytest.mark.parametrize("name", ENGINE_CASES)
def test_engines_agree(name):
    algorithm, make, data, rounds = ENGINE_CASES[name]
    torch.manual_seed(0)
    problem = make()
    for participation in (harness.Full(), Uniform(2)):
        runs = [
            drive(
                algorithm,
                problem,
                data(),
                rounds,
                chunk=chunk,
                batching=Batching(3),
                participation=participation,
            )
            for chunk in (None, 1, 4)
        ]
        moved = np.abs(runs[0].z[-1] - problem.init().numpy()).max()
        assert moved > 1e-3
        for run in runs[1:]:
            np.testing.assert_allclose(run.z, runs[0].z, rtol=0, atol=1e-12)
            assert run.clients.traffic == runs[0].clients.traffic


def test_single_precision_follows_double():
    twin, algorithm = TWINS["auc"], CODASCA(lr=0.1, local_steps=3, gamma=0.1, stage_rounds=4)
    double = drive(algorithm, twin.problem(), twin.data(), 12, start=twin.z0())
    single = drive(algorithm, twin.problem(), twin.data(), 12, start=twin.z0(), dtype=torch.float32)
    assert single.z.dtype == np.float32
    np.testing.assert_allclose(single.z, double.z, rtol=0, atol=1e-5)


def test_seeds_matter():
    twin, algorithm = TWINS["auc"], LocalSGDA(lr=0.1, local_steps=3)
    run = lambda seed: drive(algorithm, twin.problem(), twin.data(), 3, start=twin.z0(), seed=seed).z
    assert (run(0) == run(0)).all() and np.abs(run(0) - run(1)).max() > 1e-3


def test_data_of_integers_only():
    """Token numbers and classes: nothing in the data tells the precision of the run."""
    rng = np.random.default_rng(0)
    fed = federation(*({"x": rng.integers(0, 5, (6, 4)), "y": np.arange(6) % 2} for _ in range(3)))
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 1))
    for dtype in DTYPES:
        run = drive(LocalSGDA(lr=0.1, local_steps=2), AUC(model, p=0.5), fed, 2, dtype=dtype)
        assert np.isfinite(run.z).all() and run.z.dtype == (
            np.float32 if dtype == torch.float32 else np.float64
        )


# --------------------------------------------------------------------------------------------------------- Custom


@pytest.mark.parametrize("name", ["dual", "weights", "round", "seconds"])
def test_a_metric_may_not_be_called_as_what_records_have(name: str) -> None:
    problem = Custom(lambda x, y, b: (b["x"] @ x - b["y"]) ** 2, 3, metrics=lambda x, y, data: {name: 1.0})
    with pytest.raises(
        FedsaddleError, match=f"metrics: '{name}' is what records call something else; choose another"
    ):
        fs.train(problem, LocalSGDA(), harness.regression(), rounds=1).finish()


def quadratic_loss(x, y, batch):
    form = lambda u, M, v: torch.einsum("i,bij,j->b", u, M, v)
    quadratic = form(x, batch["A"], x) / 2 + form(x, batch["B"], y) - form(y, batch["C"], y) / 2
    return quadratic + batch["a"] @ x - batch["b"] @ y


@pytest.mark.parametrize("chunk", [None, 1])
def test_custom_is_the_problem_it_spells_out(chunk):
    algorithm, fed = CODASCA(lr=0.1, local_steps=3, gamma=0.2, stage_rounds=4), harness.quadratics()
    custom = drive(algorithm, Custom(quadratic_loss, 3, 2), fed, 10, chunk=chunk, batching=Batching(2))
    builtin = drive(algorithm, QuadraticSaddle(3, 2), fed, 10, chunk=chunk, batching=Batching(2))
    np.testing.assert_allclose(custom.z, builtin.z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize(
    "loss, got",
    [
        (lambda x, y, batch: (batch["a"] @ x).mean(), r"\[\]"),
        (lambda x, y, batch: batch["a"] * x, r"\[2, 3\]"),
    ],
    ids=["scalar", "matrix"],
)
def test_custom_loss_of_the_wrong_shape(chunk, loss, got):
    with pytest.raises(FedsaddleError, match=rf"one value a sample, \[2\], got {got}; do not average"):
        drive(LocalSGDA(), Custom(loss, 3, 2), harness.quadratics(), 1, chunk=chunk, batching=Batching(2))


@pytest.mark.parametrize("spec", ["l1(0.3)", "l2(0.3)", "elastic_net(0.2, 0.3)", "group_lasso(0.3, 2)"])
def test_x_and_y_have_proxes_of_their_own_steps(spec: str) -> None:
    problem = Custom(quadratic_loss, 3, 2, prox_x=spec, prox_y=spec)
    z = torch.tensor([[1.0, -2.0, 0.5, 3.0, -1.0]]).expand(4, -1)
    prox = projections.named(spec)
    want = torch.cat([prox(z[:, :3], 0.5), prox(z[:, 3:], 0.25)], dim=-1)
    steps = torch.tensor([0.5, 0.5, 0.5, 0.25, 0.25])
    for lr in (steps, steps.expand(1, 5), steps.expand(4, 5)):
        torch.testing.assert_close(problem.prox(z, lr), want, rtol=0, atol=1e-7)


@pytest.mark.parametrize("chunk", [None, 1])
def test_custom_prox_is_applied_after_every_step(chunk):
    """Against projected descent ascent written out; lr and lr_dual reach their own part."""
    problem = Custom(quadratic_loss, 3, 2, prox_x="l1(0.3)", prox_y="box(-0.1, 0.2)", start=torch.ones(5))
    fed = quadratic_federation(2, 3, 2, heterogeneity=0.0)
    run = drive(LocalSGDA(lr=0.1, lr_dual=0.2, local_steps=4), problem, fed, 10, chunk=chunk, batching=FULL)
    sample = tuple(clients_of(fed)[0][f][0] for f in QuadraticSaddle.fields)
    z, step = np.ones(5), np.array([0.1, 0.1, 0.1, 0.2, 0.2])
    for r in range(10):
        for _ in range(4):
            z = z - step * harness.refproblems.quadratic_field(z, *sample)
            z[:3] = np.sign(z[:3]) * np.maximum(np.abs(z[:3]) - 0.1 * 0.3, 0)
            z[3:] = np.clip(z[3:], -0.1, 0.2)
        np.testing.assert_allclose(run.z[r], z, rtol=0, atol=1e-12)
    assert set(z[3:]) & {-0.1, 0.2}


@pytest.mark.parametrize("chunk", [None, 1])
def test_custom_on_modules_is_custom_on_their_parameters(chunk):
    """A loss of two modules, against the same loss written on vectors; the penalty is of all parameters."""
    torch.manual_seed(0)
    net, critic = nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    fed = federation({"x": np.ones((3, 2))}, {"x": np.arange(8.0).reshape(4, 2) / 8})

    def of_modules(net, critic, batch):
        return (net(batch["x"]) * critic(batch["x"])).squeeze(-1) - critic.vector.square().sum() / 2

    def of_vectors(x, y, batch):
        score, judged = batch["x"] @ x[:2] + x[2], (batch["x"] @ y[:2] + y[2]).tanh()
        return score * judged - y.square().sum() / 2

    start = torch.cat([p.detach().flatten() for m in (net, critic) for p in m.parameters()])
    modules = Custom(of_modules, net, critic)
    assert (modules.n_x, modules.n_y) == (3, 3)
    algorithm = SCAFFOLD(lr=0.05, local_steps=3)
    a = drive(algorithm, modules, fed, 5, chunk=chunk, batching=Batching(2))
    b = drive(algorithm, Custom(of_vectors, 3, 3, start=start), fed, 5, chunk=chunk, batching=Batching(2))
    np.testing.assert_allclose(a.z, b.z, rtol=0, atol=1e-12)
    trained = modules.module(torch.from_numpy(a.z[-1]))
    np.testing.assert_array_equal(trained.weight.detach().squeeze(0), a.z[-1][:2])


def test_custom_refuses():
    with pytest.raises(FedsaddleError, match=r"size_y must be a number or a torch\.nn\.Module, got '2'"):
        Custom(quadratic_loss, 3, "2")
    with pytest.raises(FedsaddleError, match=r"Custom: has no model; its solution is run\.z"):
        Custom(quadratic_loss, 3, 2).module(torch.zeros(5))
    with pytest.raises(FedsaddleError, match="size_x must be >= 1"):
        Custom(quadratic_loss, 0)
    with pytest.raises(FedsaddleError, match=r"start must have shape \[5\], got \[4\]"):
        Custom(quadratic_loss, 3, 2, start=torch.zeros(4))
    with pytest.raises(FedsaddleError, match="unknown name 'sphere'"):
        Custom(quadratic_loss, 3, 2, prox_y="sphere(2)")


# ---------------------------------------------------------------------------------------------------- projections

vectors = hnp.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 6)), elements=st.floats(-50, 50))

SETS = {  # name: is v in the set, and a random point of it from a standard normal u
    "simplex": (lambda v: (v >= 0).all() and abs(v.sum() - 1) < 1e-9, lambda u: np.abs(u) / np.abs(u).sum()),
    "nonnegative": (lambda v: (v >= 0).all(), lambda u: np.abs(20 * u)),
    "box(-1.5, 2)": (lambda v: (v >= -1.5).all() and (v <= 2).all(), lambda u: np.clip(u, -1.5, 2)),
    "ball(3)": (lambda v: np.linalg.norm(v) <= 3 + 1e-9, lambda u: u * min(1, 3 / np.linalg.norm(u))),
}


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=60, deadline=None)
@given(v=vectors, seed=st.integers(0, 2**16))
def test_projections_are_feasible_idempotent_and_nearest(name, v, seed):
    inside, feasible = SETS[name]
    project = projections.named(name)
    got = project(torch.from_numpy(v), 0.1).numpy()
    again = project(torch.from_numpy(got), 0.1).numpy()
    np.testing.assert_allclose(again, got, rtol=0, atol=1e-9)
    rng = np.random.default_rng(seed)
    for row, projected in zip(v, got, strict=True):
        assert inside(projected)
        for _ in range(10):
            point = feasible(rng.normal(size=len(row)))
            # the angle criterion: the projection is nearest if and only if this holds for every point of the set
            assert (row - projected) @ (point - projected) <= 1e-7 * (1 + np.linalg.norm(row)) * (
                1 + np.linalg.norm(point)
            )
        if inside(row):
            np.testing.assert_allclose(projected, row, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "name, penalty", [("l1(0.7)", lambda v: 0.7 * np.abs(v).sum()), ("l2(0.7)", lambda v: 0.35 * v @ v)]
)
@settings(max_examples=60, deadline=None)
@given(v=vectors, seed=st.integers(0, 2**16), lr=st.floats(0.01, 5))
def test_proximal_steps_minimise(name, penalty, v, seed, lr):
    """prox(v) = argmin_u penalty(u) + ||u - v||^2 / (2 lr)."""
    got = projections.named(name)(torch.from_numpy(v), lr).numpy()
    rng = np.random.default_rng(seed)
    for row, u in zip(v, got, strict=True):
        value = lambda u, row=row: penalty(u) + (u - row) @ (u - row) / (2 * lr)
        for scale in (1e-3, 0.1, 10):
            assert value(u) <= value(u + scale * rng.normal(size=len(u))) + 1e-9 * (1 + value(u))
        assert value(u) <= value(np.zeros_like(u)) + 1e-9 and value(u) <= value(row) + 1e-9


def test_projections_by_name():
    own = lambda v, lr: v
    assert projections.named(own) is own
    assert projections.named(" ball( 2 ) ")(torch.tensor([3.0, 4.0]), 0.1).tolist() == pytest.approx(
        [1.2, 1.6]
    )
    for bad in ("ball(x)", "ball(1, 2, 3)", "box(1, 0)", "ball(-1)", "l1(-1)"):
        with pytest.raises(FedsaddleError):
            projections.named(bad)
    with pytest.raises(
        FedsaddleError, match=r"'ball\(2\)' is a projection; known are box, l1, l2, .* such as l1\(0.001\)"
    ):
        fs.AUC(torch.nn.Linear(3, 1), regulariser="ball(2)")
    with pytest.raises(FedsaddleError, match=r"prox: unknown name 'l3'"):
        fs.AUC(torch.nn.Linear(3, 1), regulariser="l3(2)")


# ------------------------------------------------------------------------------------------- client work and memory


@dataclass(frozen=True)
class Counting(LocalSGDA):
    """Clients that count how often they worked; client `fails_at` raises in round 2."""

    fails_at: int = -1
    error: Exception = ValueError("out of beds\nsecond line")
    blank: float = 0.0

    def memory(self, z, problem):
        return torch.full_like(z[..., :1], self.blank)

    def round(self, s, clients):
        clients.mean(self.count, (s.z, clients.round))
        return s

    def count(self, cohort, m):
        if m[1] == 2 and self.fails_at in cohort.ids.tolist():
            raise self.error
        return cohort.each(m[0]), cohort.memory + 1


def counting(rounds, chunk=None, participation=harness.Full(), after=None, **options):
    fed = quadratic_federation(5, 3, 2)
    return drive(
        Counting(**options),
        QuadraticSaddle(3, 2),
        fed,
        rounds,
        chunk=chunk,
        participation=participation,
        after=after,
    )


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_memory_belongs_to_the_clients_that_worked(chunk):
    some = Uniform(2)
    clients = counting(9, chunk, some, blank=10.0).clients
    times = np.zeros(5)
    for r in range(9):
        times[some.draw(5, harness.SEED, r).ids] += 1
    assert clients.memory[:, 0].tolist() == (times + 10).tolist()


def test_silent_clients_do_not_work():
    clients = counting(3, participation=harness.Fixed(ids=(0, 1, 4), silent=(1,))).clients
    assert clients.memory[:, 0].tolist() == [3, 0, 0, 0, 3]


@pytest.mark.parametrize("blank", [0.0, 10.0])
def test_forget_restores_what_clients_started_with(blank):
    clients = counting(3, blank=blank, after=lambda s, clients: clients.forget()).clients
    assert clients.memory[:, 0].tolist() == [blank] * 5
    clients = counting(3, blank=blank).clients
    clients.forget()
    assert clients.memory[:, 0].tolist() == [blank] * 5


@pytest.mark.parametrize("chunk, who", [(1, "client 3"), (2, "2 clients"), (None, "5 clients")])
def test_an_error_in_client_work_says_where(chunk, who):
    with pytest.raises(FedsaddleError) as caught:
        counting(4, chunk, fails_at=3)
    assert str(caught.value) == f"count failed in round 2, phase 0, {who}: ValueError: out of beds"
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_without_a_message_says_where_too():
    with pytest.raises(FedsaddleError, match="count failed in round 2, phase 0, client 3: AssertionError"):
        counting(4, 1, fails_at=3, error=AssertionError())


def test_a_failed_round_leaves_the_memory_as_it_was():
    kept = []
    with pytest.raises(FedsaddleError):
        counting(4, 1, fails_at=3, after=lambda s, clients: kept.append(clients))
    kept[-1].rollback()
    assert kept[-1].memory[:, 0].tolist() == [2] * 5  # clients 0..2 had done their third count


def test_rollback_takes_back_every_phase_and_forgetting():
    seen = []

    @dataclass(frozen=True)
    class TwoPhases(Counting):
        def round(self, s, clients):
            for r in range(3):
                clients.mean(self.count, (s.z, 0))
                if r == 1:
                    clients.forget()
            seen.append(clients.memory[:, 0].tolist())
            if clients.round == 1:
                raise NobodyAnswered("the third phase")
            return s

    clients = connect(QuadraticSaddle(3, 2), quadratic_federation(5, 3, 2), chunk=2)
    z, algorithm = torch.zeros(1, 5).double(), TwoPhases(blank=10.0)
    clients.remember(algorithm.memory(z, clients.problem))
    clients.begin(0)
    s = algorithm.round(algorithm.init(z, clients.problem), clients)
    clients.begin(1)
    with pytest.raises(NobodyAnswered):
        algorithm.round(s, clients)
    assert seen == [[11.0] * 5] * 2
    clients.rollback()
    assert clients.memory[:, 0].tolist() == [11.0] * 5
    clients.mean(algorithm.count, (z, 0))
    clients.rollback()
    assert clients.memory[:, 0].tolist() == [11.0] * 5


def test_gather_returns_replies_in_the_order_of_ids():
    clients = connect(
        QuadraticSaddle(3, 2),
        quadratic_federation(5, 3, 2),
        chunk=2,
        participation=harness.Fixed((4, 0, 3), (3,)),
    )
    clients.begin(0)
    name = lambda cohort, m: (cohort.ids.double().unsqueeze(-1), None)
    out = clients.gather(name, None)
    assert out.ids.tolist() == [0, 4] and out.replies[:, 0].tolist() == [0, 4]
    assert clients.mean(name, None)[1] == 2 / 5


def test_weights_of_the_mean():
    fed = binary()
    clients = connect(AUC(nn.Linear(3, 1), p=0.5), fed)
    clients.begin(0)
    name = lambda cohort, m: (cohort.ids.double().unsqueeze(-1), None)
    ids, sizes = np.arange(6), np.array(harness.SIZES)
    assert clients.mean(name, None)[0].item() == pytest.approx(ids.mean())
    assert clients.mean(name, None, weights="samples")[0].item() == pytest.approx(ids @ sizes / sizes.sum())
    assert [clients.mean(name, None, weights=w)[1] for w in ("clients", "samples")] == [1, 1]
    some = harness.Fixed((4, 0, 3), (3,)).draw(6, 0, 0)  # client 3 does not answer
    assert clients.mean(name, None, who=some, weights="samples")[1] == (sizes[4] + sizes[0]) / sizes.sum()
    for weights in (None, torch.ones(6)):
        with pytest.raises(FedsaddleError, match="mean: weights must be 'clients' or 'samples', got"):
            clients.mean(name, None, weights=weights)
    drawn = clients.sample(20, p=np.array([0, 0.5, 0.5, 0, 0, 0]))
    assert set(drawn.ids) == {1, 2} and drawn.counts.sum() == 20
    assert clients.mean(name, None, who=drawn)[0].item() == pytest.approx(drawn.ids @ drawn.counts / 20)


def test_batch_weights_and_absent_slots():
    engine = connect(ERM(nn.Linear(3, 1)), binary())
    batch = engine.cohort(np.arange(6), 0).batch(5)
    assert isinstance(batch, Batch)
    assert (batch.w > 0).sum(1).tolist() == [min(5, n) for n in harness.SIZES]
    np.testing.assert_allclose(batch.w.sum(1), 1, rtol=0, atol=1e-15)


def test_per_variable_and_pad():
    cohort = connect(QuadraticSaddle(3, 2), harness.quadratics()).cohort(np.arange(2), 0)
    assert cohort.per_variable(x=0.5, y=0.5) == 0.5
    assert cohort.per_variable(x=0.5, y=0.0).tolist() == [0.5, 0.5, 0.5, 0, 0]
    assert cohort.pad(torch.ones(1, 3)).tolist() == [[1, 1, 1, 0, 0]]


# ------------------------------------------------------------------------------------------------- hyper-parameters


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: CODASCA(lr=-0.1), "CODASCA: lr must be > 0, got -0.1"),
        (lambda: CODASCA(server_lr=0), "CODASCA: server_lr must be > 0, got 0"),
        (lambda: CODASCA(gamma=-1), "CODASCA: gamma must be >= 0, got -1"),
        (
            lambda: CODASCA(output="iterates"),
            "CODASCA: output must be one of rounds, random, last, got 'iterates'",
        ),
        (lambda: CODAPlus(stage_rounds=0), "CODAPlus: stage_rounds must be > 0, got 0"),
        (lambda: harness.NPA(local_steps=2), "NPA: local_steps must be 1"),
        (lambda: CODA(dual_samples=0), "CODA: dual_samples must be > 0, got 0"),
        (lambda: FedAvg(weights="rows"), "FedAvg: weights must be 'clients' or 'samples', got 'rows'"),
        (lambda: SCAFFOLD(weights=None), "SCAFFOLD: weights must be 'clients' or 'samples', got None"),
        (lambda: CODASCA(weights="rows"), "CODASCA: weights must be 'clients' or 'samples', got 'rows'"),
        (lambda: CODAPlus(weights="rows"), "CODAPlus: weights must be 'clients' or 'samples', got 'rows'"),
        (lambda: harness.FedProx(mu=-1), "FedProx: mu must be >= 0, got -1"),
        (lambda: LocalSGDA(lr_dual=float("nan")), "LocalSGDA: lr_dual must be > 0, got nan"),
        (lambda: PublishedCODASCA(clip=0), "PublishedCODASCA: clip must be > 0, got 0"),
        (
            lambda: AUC(nn.Linear(3, 1), p=1.0),
            r"AUC: p must be between 0 and 1 \(the share of positives\), got 1.0",
        ),
        (lambda: AUC(nn.Linear(3, 1), dual="hinge"), "AUC: dual must be 'gradient' or 'margin', got 'hinge'"),
        (lambda: ERM(nn.Linear(3, 1), loss="hinge"), "ERM: loss must be one of"),
        (lambda: ERM("linear"), "ERM: model must be a torch.nn.Module, got str"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(FedsaddleError, match=message):
        make()


def test_combinations_that_would_be_something_else_are_refused():
    twin, twice = TWINS["auc"], Uniform(30, replacement=True)
    stages = dict(stage_rounds=3, local_steps=1)
    for algorithm in (SCAFFOLD(), CODASCA(), PublishedCODASCA(), CODAPlus(**stages)):
        with pytest.raises(
            FedsaddleError, match=r"clients keep memory, so client . cannot take part . times in round 0"
        ):
            drive(algorithm, twin.problem(), twin.data(), 1, participation=twice)
    drive(CODAPlus(**stages, output="last"), twin.problem(), twin.data(), 1, participation=twice)
    with pytest.raises(FedsaddleError, match="has 1 dual variable"):
        FedAvg().check(AUC(nn.Linear(3, 1)))
    with pytest.raises(FedsaddleError, match="closed form"):
        CODA().check(QuadraticSaddle())


def test_a_p_that_is_not_the_ratio_of_the_mixture_is_said():
    """A float, too; what to use instead depends on the weights, the participation and the method."""
    model = nn.Linear(3, 1)
    fed = federation(
        *(
            {"x": np.zeros((n, 3)), "y": (np.arange(n) < n_pos).astype(int)}
            for n, n_pos in ((10, 9), (20, 2), (30, 6), (20, 6), (40, 20), (10, 1))
        )
    )
    ratios, n = np.array([c["y"].mean() for c in clients_of(fed)]), fed.sizes.numpy()
    equal, pooled, unequal = ratios.mean(), ratios @ n / n.sum(), Cyclic([[0], [1, 2], [3, 4, 5]])
    by_group = (ratios[0] + ratios[1:3].mean() + ratios[3:].mean()) / 3
    groups = ([0], [1, 2], [3, 4, 5])
    by_both = np.mean([ratios[g] @ n[g] / n[g].sum() for g in groups])
    assert min(abs(equal - pooled), abs(equal - by_group), abs(by_both - pooled)) > 0.01

    def start(algorithm, p, participation=Full()):
        run = train(AUC(model, p=p), algorithm, fed, rounds=1, participation=participation, dtype="float64")
        return next(iter(run))

    by_samples, local = dict(weights="samples"), dict(local_steps=1)
    for algorithm, p, participation, remedy in (
        (CODASCA(**by_samples), "client_mean", Full(), "'pooled'"),
        (CODASCA(**by_samples), equal, unequal, "'pooled'"),
        (CODASCA(), "pooled", Full(), "'client_mean'"),
        (CODASCA(), by_group, unequal, "'client_mean'"),  # whose fixed point is that of all clients
        (CyCpMinimax(**local), equal, unequal, "'client_mean'"),
        (CyCpMinimax(**local, **by_samples), "pooled", unequal, f"{by_both:.6g}"),
        (LocalSGDA(**by_samples), "pooled", Uniform(1), "'client_mean'"),  # who is alone is the mean
        (LocalSGDA(**by_samples), "client_mean", Uniform(6), "'pooled'"),
        (FedNormSGDA(**by_samples), "client_mean", Uniform(1), "'pooled'"),
        (CODASCA(), "pooled", Trace([[0, 1]]), "'client_mean'"),  # whoever comes
        (FedSGDA(estimator="spider"), by_group, unequal, "'client_mean'"),
        (FedSGDA(estimator="storm"), equal, unequal, "'client_mean'"),
    ):
        with pytest.warns(
            UserWarning, match=f"{type(algorithm).__name__}: p = .* collapse to one constant; use p = "
        ) as said:
            start(algorithm, p, participation)
        assert [str(w.message).rpartition("use p = ")[2] for w in said] == [remedy]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algorithm, p, participation in (
            (CODASCA(), "client_mean", unequal), (CODASCA(**by_samples), "pooled", unequal),
            (CyCpMinimax(**local), "client_mean", unequal), (CyCpMinimax(**local), by_group, unequal),
            (LocalSGDA(**by_samples), "client_mean", Uniform(1)), (LocalSGDA(), round(equal, 3), Full()),
            (LocalSGDA(), 0.9, Trace([[0, 1]])), (LocalSGDA(), 0.9, Independent([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])),
        ):  # fmt: skip
            start(algorithm, p, participation)


def test_with_the_margin_form_and_another_p_scores_drift_together_and_rank_as_before():
    """What the warning says: the bias goes on and on, and the spread of the scores stays."""
    rng = np.random.default_rng(0)
    y = (np.arange(200) < 60).astype(int)
    fed = federation({"x": rng.normal(size=(200, 2)) + np.outer(y, [1, 0.5]), "y": y})

    def scores(p, dual):
        torch.manual_seed(0)
        problem, algorithm = AUC(nn.Linear(2, 1), p=p, dual=dual), LocalSGDA(lr=0.2, local_steps=25)
        run = train(problem, algorithm, fed, rounds=60, batch_size=None, eval_every=60)
        h = run.model(fed.data["x"].float()).detach()
        return h.mean().abs(), h.std()

    with pytest.warns(UserWarning, match="drift together without an end; use p = "):
        mean, spread = scores(0.5, "margin")
    right = scores(0.3, "margin")
    assert mean > 10 * right[0] and spread > right[1] / 2
    with pytest.warns(UserWarning, match="collapse to one constant; use p = "):
        assert scores(0.5, "gradient")[1] < right[1] / 10


def test_the_mixture_of_means_by_samples_over_two_clients_a_round():
    """A large client is alone in the mean of the rounds where it is, and the others are in all the rest."""
    sizes, n_pos = (600, *[20] * 9), (300, *[2] * 9)
    fed = federation(
        *(
            {"x": np.zeros((n, 3)), "y": (np.arange(n) < k).astype(int)}
            for n, k in zip(sizes, n_pos, strict=True)
        )
    )
    ratios, n = np.array([c["y"].mean() for c in clients_of(fed)]), fed.sizes.numpy()
    pairs = [list(pair) for pair in itertools.combinations(range(10), 2)]
    ratio = np.mean(
        [ratios[pair] @ n[pair] / n[pair].sum() for pair in pairs]
    )  # 0.18; 'pooled' 0.41, 'client_mean' 0.14

    def start(p):
        run = train(
            AUC(nn.Linear(3, 1), p=p), LocalSGDA(weights="samples"), fed, rounds=1, participation=Uniform(2)
        )
        return next(iter(run))

    for p in ("pooled", "client_mean"):
        with pytest.warns(UserWarning, match="collapse") as said:
            start(p)
        assert float(str(said[0].message).rpartition("use p = ")[2]) == pytest.approx(ratio, abs=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(float(ratio))


def test_unequal_groups_do_not_make_the_scores_collapse():
    """The mean of groups that take turns is of groups, not of clients; p and the measures are of that mixture."""
    rng = np.random.default_rng(0)
    fed = federation(
        *(
            {"x": rng.normal(size=(60, 2)) + np.outer(y, [1, 0.5]), "y": y}
            for y in ((np.arange(60) < n_pos).astype(int) for n_pos in (36, 6, 6))
        )
    )
    torch.manual_seed(0)
    run = train(
        AUC(nn.Linear(2, 1)), CyCpMinimax(lr=0.1, local_steps=1), fed, rounds=600, batch_size=None,
        participation=Cyclic([[0], [1, 2]]), dtype="float64", eval_every=600,
    ).finish()  # fmt: skip
    assert run.clients.problem.p == pytest.approx(
        0.35
    )  # clients' mean: 0.267, where w shrinks to 0.03 and less
    assert run.z[:2].norm() > 0.3
    assert run.metrics["grad_phi"] < 0.02  # not 0: from visit to visit the iterate goes round the saddle


@pytest.mark.parametrize("algorithm, name, problem", [
    (CyCpMinimax(local_steps=1, stage_rounds=4), "stage_rounds", AUC),
    (AmplifiedSCAFFOLD(local_steps=1), "period", AUC),
    (AmplifiedFedAvg(local_steps=1), "period", ERM),
])  # fmt: skip
def test_stages_and_periods_that_end_within_an_epoch_are_said(algorithm, name, problem):
    def start(algorithm):
        train(problem(nn.Linear(3, 1)), algorithm, binary(), rounds=2, participation=Cyclic(3)).finish()

    with pytest.warns(
        UserWarning, match=f"{name} = .* is no multiple of the 3 rounds .*; use {name} = "
    ) as said:
        start(algorithm)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(dataclasses.replace(algorithm, **{name: 6}))


def test_later_stages_that_end_within_an_epoch_are_said():
    def start(growth, rounds):
        algorithm = CyCpMinimax(local_steps=1, stage_rounds=6, stage_growth=growth)
        train(AUC(nn.Linear(3, 1)), algorithm, binary(), rounds=rounds, participation=Cyclic(3)).finish()

    with pytest.warns(
        UserWarning, match=r"stage_growth = 1.5 gives stage 3 14 rounds, no multiple of the 3"
    ) as said:
        start(1.5, 16)  # stages of 6, 9 and 14 rounds
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(1.5, 15)
        start(2.0, 20)


def test_shuffled_unequal_groups_are_not_computed_together():
    def run(seed, groups):
        return train(
            AUC(nn.Linear(3, 1)), LocalSGDA(), binary(), rounds=1, seed=seed,
            participation=Cyclic(groups, shuffle=True),
        )  # fmt: skip

    assert stackable([run(0, 3), run(1, 3)]) is None
    assert "shuffled by the seed" in stackable([run(0, 4), run(1, 4)])


def test_schedules():
    a = CODAPlus(lr=0.9, local_steps=10, lr_decay=1 / 3, interval_growth=1.5, stage_rounds=4, stage_growth=2)
    assert [a.lr_at(s) for s in range(3)] == pytest.approx([0.9, 0.3, 0.1])
    assert [a.steps_at(s) for s in range(3)] == [10, 15, 22]
    assert [a.rounds_at(s) for s in range(3)] == [4, 8, 16]
    assert CODAPlus(interval_growth=0.01).steps_at(3) == 1
