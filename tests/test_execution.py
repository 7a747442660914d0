"""Executions of the same work agree: chunks, compiled steps, lower precision; CUDA graphs where there is a GPU."""

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle import cohort, compiling, convolution, flat
from fedsaddle.clients import Task
from fedsaddle.convolution import Windows, conv2d, group_norm, matrix_convolutions, max_pool
from fedsaddle.engines import execution, simulation
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import FedsaddleError
from fedsaddle.flat import FlatModel
from fedsaddle.models import CNN, ResNet18, _Residual
from fedsaddle.problem import Batch
from fedsaddle.replicas import run_together

SIZES = [9, 20, 4, 13, 30]


@pytest.fixture(scope="module")
def federation() -> fs.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((sum(SIZES), 6)), rng.integers(0, 2, sum(SIZES))
    return fs.Federation.from_arrays(x, y, clients=np.repeat(np.arange(5), SIZES))


def run(federation: fs.Federation, algorithm: fs.Algorithm | None = None, **options) -> fs.Run:
    torch.manual_seed(0)
    algorithm = algorithm or fs.CODASCA(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=3)
    arguments = dict(rounds=6, batch_size=5, dtype="float64", participation=fs.Uniform(4)) | options
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1))
    problem: fs.Problem = fs.AUC(model, dual=arguments.pop("dual", "gradient"))
    if algorithm.pairwise:
        problem = fs.PartialAUC(model) if isinstance(algorithm, fs.FeDXL2) else fs.PairwiseAUC(model)
    return fs.train(problem, algorithm, federation, **arguments)


@pytest.mark.parametrize(("output", "kinds"), [("last", 2), ("iterates", 4)])
def test_rounds_of_a_stage_are_one_recording(
    federation: fs.Federation, output: str, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a round ends its stage plays a part only where sums are sent then."""
    signatures, called = set(), execution.Execution.__call__

    def call(self, work, message, cohort):
        if work.__name__ == "proximal_steps":
            signatures.add(execution._signature((message, cohort.inputs())))
        return called(self, work, message, cohort)

    monkeypatch.setattr(execution.Execution, "__call__", call)
    algorithm = fs.CODAPlus(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=3, output=output)
    run(federation, algorithm).finish()
    assert len(signatures) == kinds


def test_memory_that_does_not_suffice_for_a_recording_is_no_reason_to_go_on_eagerly(monkeypatch) -> None:
    """A sweep goes on with fewer runs at once when it is told; other work that cannot be recorded runs as it is."""

    def failing(error):
        def record(*_):
            raise error

        monkeypatch.setattr(execution, "Recording", record)
        cohort = SimpleNamespace(inputs=lambda: ())
        return execution.Graphs()(lambda cohort, message: "eager", (), cohort)

    with pytest.raises(torch.OutOfMemoryError):
        failing(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.warns(UserWarning, match="cannot be a CUDA graph and runs eagerly: no capture"):
        assert failing(RuntimeError("no capture")) == "eager"


PAIRS = [
    fs.RSPairwise(lr=0.05, local_steps=4, noise=0.1, bits=8, pairing="all_pairs"),
    fs.FeDXL2(lr=0.05, local_steps=4, momentum=0.5),
]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_chunks_do_not_change_a_run(federation: fs.Federation, chunk: int) -> None:
    whole, parts = run(federation), run(federation, chunk=chunk)
    np.testing.assert_allclose(parts.z, whole.z, rtol=0, atol=1e-13)
    assert parts.metrics["bytes_up"] == whole.metrics["bytes_up"]


@pytest.mark.parametrize("algorithm", PAIRS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("options", [{"chunk": 3}, {"offload": True}, {"compile": True}], ids=str)
def test_nor_do_they_change_losses_of_pairs(
    federation: fs.Federation, algorithm: fs.Algorithm, options: dict, monkeypatch
) -> None:
    monkeypatch.setattr(
        "fedsaddle.cohort._SMALL_MODEL", 0
    )  # steps are compiled one by one, in a quarter of the time
    whole, other = run(federation, algorithm), run(federation, algorithm, **options)
    np.testing.assert_allclose(other.z, whole.z, rtol=0, atol=1e-12)
    assert other.metrics["bytes_up"] == whole.metrics["bytes_up"]


@pytest.mark.parametrize(
    "options", [{}, {"chunk": 3}, {"engine": "serial"}, {"participation": fs.Full()}], ids=str
)
def test_data_that_stay_on_the_cpu_do_not_change_a_run(federation: fs.Federation, options: dict) -> None:
    """The participants' samples are gathered apart, each client's padded to the longest."""
    there, here = run(federation, offload=True, **options), run(federation, **options)
    np.testing.assert_allclose(there.z, here.z, rtol=0, atol=1e-13)
    assert there.metrics["auc_clients"] == pytest.approx(here.metrics["auc_clients"], abs=1e-12)


def test_from_the_cpu_no_round_after_the_last_is_asked_for(federation: fs.Federation) -> None:
    trace = fs.Trace([[0, 1], [1, 2, 3], [2], [0, 3, 4], [1], [2, 4]])
    there, here = (run(federation, offload=where, participation=trace) for where in (True, False))
    np.testing.assert_allclose(there.z, here.z, rtol=0, atol=1e-13)


@pytest.mark.parametrize("algorithm", [fs.LocalSGDA(), fs.FedSGDA()], ids=["one_phase", "two_phases"])
def test_the_next_participants_are_foreseen(
    federation: fs.Federation, algorithm: fs.Algorithm, monkeypatch
) -> None:
    from fedsaddle.engines.residence import Offloaded

    place, hits = Offloaded.place, []

    def watched(self, clients, ids):
        hits.append(any(a is not None and np.array_equal(a, clients) for a in (self._placed, self._expected)))
        return place(self, clients, ids)

    monkeypatch.setattr(Offloaded, "place", watched)
    run(federation, algorithm, offload=True, participation=fs.Uniform(3), rounds=20).finish()
    assert hits.count(False) <= 3  # the set-up, and what a first round cannot know


def test_two_phases_with_other_clients_each_from_the_cpu(federation: fs.Federation) -> None:
    options = dict(rounds=5, batch_size=5, dtype="float64", participation=fs.Uniform(3))
    problem, algorithm = (
        fs.AUC(nn.Linear(6, 1)),
        fs.FedSGDA(lr=0.05, local_steps=3, estimator="spider", period=2),
    )
    runs = [fs.train(problem, algorithm, federation, offload=where, **options) for where in (True, False)]
    np.testing.assert_allclose(runs[0].z, runs[1].z, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dual", "steps", "at_once"), [("gradient", 4, 1 << 20), ("margin", 22, 1)])
def test_compiled_steps_do_not_change_a_run(
    federation: fs.Federation, dual: str, steps: int, at_once: int, monkeypatch
) -> None:
    """Also where minibatches are drawn for two of a round's 22 steps at once."""
    algorithm = fs.CODASCA(lr=0.05, local_steps=steps, gamma=0.1, stage_rounds=3)
    plain = run(federation, algorithm, dual=dual)
    monkeypatch.setattr("fedsaddle.cohort._INDICES_AT_ONCE", at_once)
    np.testing.assert_allclose(
        run(federation, algorithm, compile=True, dual=dual).z, plain.z, rtol=0, atol=1e-12
    )


def test_compiled_fields_over_all_samples(federation: fs.Federation, monkeypatch) -> None:
    """In pieces, of which clients with few samples have less."""
    torch._dynamo.reset()  # versions of other tests are not counted
    monkeypatch.setattr(cohort, "_NUMBERS_AT_ONCE", 500)
    problem, batching = fs.AUC(nn.Linear(6, 1), p=0.5), cohort.Batching(5)
    clients = Simulation(Task(problem, federation, fs.Full(), batching, dtype=torch.float64))
    work = clients.cohort(range(5), 0)
    z = torch.randn(5, problem.n_x + problem.n_y, dtype=torch.float64)
    plain = work.full_field(z)
    work.compile = True
    assert len(list(work.everything())) > 1
    np.testing.assert_allclose(work.full_field(z), plain, rtol=0, atol=1e-12)
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for i, own in enumerate(plain):  # alone, or two: clients of other sizes, the same lengths
        alone = clients.cohort([i], 0)
        alone.compile = True
        np.testing.assert_allclose(alone.full_field(z[i : i + 1])[0], own, rtol=0, atol=1e-12)
    lengths = {min(alone._piece, 1 << (n - 1).bit_length()) for n in SIZES}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiled <= len(lengths)


def test_compiled_steps_with_a_regulariser(federation: fs.Federation, monkeypatch) -> None:
    """Whose weights are one piece of the vector, or else picked by index; nothing for the compiler to warn of."""
    monkeypatch.setattr(cohort, "_SMALL_MODEL", 0)
    algorithm, options = fs.FedSGDAPlus(lr=0.05, local_steps=4), dict(rounds=4, batch_size=5, dtype="float64")

    def trained(at: slice | None, **more) -> torch.Tensor:
        torch.manual_seed(0)
        problem = fs.AUC(nn.Linear(6, 1), regulariser="l1(0.5)")
        assert problem.flat.weights_at == slice(0, 6)
        problem.flat.weights_at = at
        return fs.train(problem, algorithm, federation, **options, **more).z

    by_index, whole = trained(None), trained(slice(0, 6))
    assert torch.equal(by_index, whole) and (whole[:6] == 0).any() and (whole[:6] != 0).any()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo")
        np.testing.assert_allclose(trained(slice(0, 6), compile=True), whole, rtol=0, atol=1e-12)


pull = 1.0  # of `pulled` and `shrunk`


def pulled(x: torch.Tensor, y: torch.Tensor, batch: dict) -> torch.Tensor:
    return pull * (batch["x"] @ x - batch["y"]) * y.sum() - y.sum() ** 2 + x.square().sum()


def shrunk(x: torch.Tensor, lr: float) -> torch.Tensor:
    return x / pull if x.norm() > 0.01 * pull else x


def test_compiled_steps_see_that_a_global_of_the_users_changed(
    federation: fs.Federation, monkeypatch
) -> None:
    """In a module, in a function whose globals have no name, and in one that the compiler takes up anew after a branch."""
    scope: dict = {"pull": 1.0}
    exec(
        "def without_module(x, y, b): return pull * (b['x'] @ x - b['y']) * y.sum() - y.sum() ** 2 + x.square().sum()",
        scope,
    )
    monkeypatch.setattr(cohort, "_SMALL_MODEL", 0)

    def trained(loss, prox, **more) -> torch.Tensor:
        algorithm, options = (
            fs.LocalSGDA(lr=0.05, local_steps=4),
            dict(rounds=3, batch_size=5, dtype="float64"),
        )
        return fs.train(fs.Custom(loss, 6, 1, prox_x=prox), algorithm, federation, **options, **more).z

    for loss, prox in ((pulled, None), (scope["without_module"], None), (pulled, shrunk)):
        found = []
        for value in (1.0, 2.0):
            monkeypatch.setitem(loss.__globals__, "pull", value)
            found.append(trained(loss, prox))
            np.testing.assert_allclose(trained(loss, prox, compile=True), found[-1], rtol=0, atol=1e-12)
        assert (found[0] - found[1]).abs().max() > 1e-3


def test_steps_compiled_as_one_divide_a_scan_and_fit_a_cache(federation: fs.Federation, monkeypatch) -> None:
    problem = fs.AUC(nn.Linear(6, 1), p=0.5)
    clients = Simulation(Task(problem, federation, fs.Full(), cohort.Batching(4)))
    work = clients.cohort(range(5), 0)
    steps = (20, 12, 9, 14, 49, 11, 1)
    assert [work._unrolled(n) for n in steps] == [5, 4, 3, 2, 7, 1, 1]
    monkeypatch.setattr(
        cohort, "_AT_HAND", 3 * 5 * 4 * (6 + 1)
    )  # three steps of five clients' minibatches of four
    assert [work._unrolled(n) for n in steps] == [2, 3, 3, 2, 1, 1, 1]
    monkeypatch.setattr(cohort, "_SMALL_MODEL", 0)
    assert work._unrolled(20) == 1


def test_which_guards_a_call_checks() -> None:
    class Guard(NamedTuple):
        name: str
        is_global: bool = True

    ours = [
        "G['__import_fedsaddle_dot_flat'].x",
        "G['__import_torch']",
        "G['__import_torch_dot_utils_dot__pytree'].y",
    ]
    users = [
        "G['__import_torchvision_dot_ops']",
        "G['__import___main__'].radius",
        "G['radius']",
        "G['___unnamed_scope_1_c0']",
    ]
    guards = [*map(Guard, ours), *map(Guard, users), Guard("L['self'].lr", False)]
    assert compiling._worth_checking(guards) == [False] * 3 + [True] * 5


def test_without_a_compiler_it_runs_eagerly_and_says_so(federation: fs.Federation, monkeypatch) -> None:

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler")

    compiling._can_compile.cache_clear()
    compiling.compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(UserWarning, match="running eagerly .*no C"):
        compiled = run(federation, compile=True)
        z = compiled.z
    compiling._can_compile.cache_clear()
    compiling.compiled.cache_clear()
    assert torch.equal(z, run(federation).z)


def test_bf16_is_close_and_keeps_the_state_in_full_precision(federation: fs.Federation) -> None:
    low, full = run(federation, precision="bf16", dtype="float32"), run(federation, dtype="float32")
    assert low.z.dtype == torch.float32
    difference = (low.z - full.z).abs().max().item()
    assert 0 < difference < 0.05 * full.z.abs().max().item()


@pytest.mark.parametrize(("option", "value"), [("precision", "fp8"), ("chunk", 0)])
def test_refusals(federation: fs.Federation, option: str, value: object) -> None:
    with pytest.raises(FedsaddleError, match=f"train: {option} must be"):
        run(federation, **{option: value})


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride", "padding", "size"),
    [
        (3, 5, 3, 1, 0, (9, 8)), (4, 2, 3, 2, 1, (9, 8)), (3, 4, 1, 2, 0, (9, 8)), (2, 3, (3, 1), (1, 2), (1, 0), (9, 8)),
        (3, 4, 7, 2, 3, (32, 32)), (3, 4, 7, 2, 3, (9, 8)), (1, 2, 5, 3, 1, (11, 9)), (2, 3, (4, 2), 2, (1, 0), (8, 7)),
        (5, 3, 3, 1, 1, (1, 1)), (5, 3, 3, 2, 1, (2, 2)), (5, 3, 3, 1, 1, (1, 4)), (5, 3, 3, 1, 1, (2, 2)),
        (2, 3, 5, 2, 2, (1, 2)),
    ],
)  # fmt: skip
def test_patches_times_kernels_are_a_convolution(channels, out, kernel, stride, padding, size) -> None:
    """Also as blocks of pixels, and without the taps that meet no pixel."""
    conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding).double()
    x = torch.randn(2, channels, *size, dtype=torch.float64, requires_grad=True)
    y, theirs = conv2d(x, conv.weight, conv.bias, stride, padding), conv(x)
    torch.testing.assert_close(y, theirs, rtol=0, atol=1e-12)
    with matrix_convolutions():
        torch.testing.assert_close(conv(x), y, rtol=0, atol=0)
    g = torch.randn_like(y)
    for of_ours, of_theirs in zip(
        *(torch.autograd.grad(v, [x, *conv.parameters()], g) for v in (y, theirs)), strict=True
    ):
        torch.testing.assert_close(of_ours, of_theirs, rtol=0, atol=1e-12)


def test_taps_that_meet_no_pixel_are_not_multiplied() -> None:
    weight = torch.randn(3, 3)
    for size, stride, shape, padding in (
        ((1, 1), 1, (1, 1), (0, 0)),
        ((2, 2), 2, (2, 2), (0, 0)),
        ((1, 2), 1, (1, 3), (0, 1)),
        ((2, 2), 1, (3, 3), (1, 1)),
    ):
        (rows, cols), needed = convolution.met(size, (3, 3), (stride, stride), (1, 1))
        assert weight[rows, cols].shape == shape and needed == padding


def test_what_is_no_plain_convolution_is_left_alone() -> None:
    x = torch.randn(1, 4, 8, 8)
    for conv in (
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
    ):
        with matrix_convolutions():
            assert torch.equal(conv(x), nn.Module.__call__(conv, x))


def test_a_whole_model_under_vmap() -> None:
    torch.manual_seed(0)
    module, x = CNN(size=18).double(), torch.randn(2, 2, 3, 18, 18, dtype=torch.float64)
    parameters = {k: torch.stack([p.detach(), 1.1 * p.detach()]) for k, p in module.named_parameters()}

    def call(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, p, (x,))

    def matrix(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        with matrix_convolutions():
            return call(p, x)

    torch.testing.assert_close(
        torch.vmap(matrix)(parameters, x), torch.vmap(call)(parameters, x), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(("stem", "size"), [("small", 16), ("large", 32)])
def test_resnet18_with_matrix_convolutions(stem: str, size: int) -> None:
    torch.manual_seed(0)
    module, x = ResNet18(stem=stem).double(), torch.randn(2, 3, size, size, dtype=torch.float64)
    with matrix_convolutions():
        y = module(x)
    torch.testing.assert_close(y, module(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("affine", "offset"), [(True, 0.0), (False, 3.0)])
def test_group_norm_from_sums(affine: bool, offset: float) -> None:
    torch.manual_seed(0)
    norm, x = nn.GroupNorm(4, 12, affine=affine), torch.randn(3, 12, 5, 6) + offset
    for p in norm.parameters():
        nn.init.normal_(p)
    torch.testing.assert_close(group_norm(x, 4, norm.weight, norm.bias, norm.eps), norm(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        ((2, 3, 13, 14), Windows((2, 2), (2, 2), (0, 0))),
        ((1, 2, 9, 10), Windows((3, 2), (3, 2), (0, 0))),
        ((2, 3, 13, 14), Windows((3, 3), (2, 2), (1, 1))),
        ((1, 2, 9, 10), Windows((2, 3), (1, 2), (0, 1))),
        ((1, 2, 9, 10), Windows((3, 3), (3, 3), (1, 1))),
    ],
)
def test_max_pool_as_comparisons(shape: tuple[int, ...], windows: Windows) -> None:
    """Values and derivatives, among equals and beside NaN."""
    x = torch.randint(0, 3, shape, dtype=torch.float64)
    x[0, 0, 0, 0] = x[0, 0, 5, 5] = float("nan")
    x.requires_grad_()
    theirs = nn.functional.max_pool2d(x, *windows)
    g = torch.randn_like(theirs)
    for way in (max_pool, convolution._picked):  # eager, and for the compiler
        ours = way(x.movedim(1, -1), windows).movedim(-1, 1)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(*(torch.autograd.grad(y, x, g, retain_graph=True)[0] for y in (ours, theirs)))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "module",
    [
        CNN(3, 19, width=4),
        nn.Sequential(
            nn.Conv2d(3, 4, (3, 1), (1, 2), (1, 0)), nn.Tanh(), nn.MaxPool2d((2, 3)), nn.Conv2d(4, 5, 1, bias=False),
            nn.Flatten(), nn.Linear(135, 2),
        ),
    ],
    ids=["cnn", "uneven"],
)  # fmt: skip
def test_images_with_channels_last_as_on_a_gpu(module: nn.Module, compiled: bool) -> None:
    """The layers of a stack on [S, B, H, W, C]: outputs and derivatives as on a CPU; nothing for the compiler to break."""
    model = FlatModel(module.double())
    assert model._on_gpu
    w, x = model.initial + torch.rand(3, model.n).double(), torch.randn(3, 2, 3, 19, 19).double()

    def derived(channels_last: bool, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def outputs(w: torch.Tensor) -> torch.Tensor:
            return flat._run(model._layers, iter(w.split(model.sizes, dim=-1)), x, channels_last)

        out, pullback = torch.func.vjp(outputs, w)
        return out, pullback(out)[0]

    run = torch.compile(derived, backend="aot_eager", fullgraph=True) if compiled else derived
    for ours, theirs in zip(run(True, w), derived(False, w), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_stacks_that_run_under_vmap_on_a_gpu() -> None:
    for layer in (nn.GroupNorm(1, 4), nn.AvgPool2d(2), nn.MaxPool2d(4), nn.Conv2d(4, 4, 3, dilation=2)):
        assert not FlatModel(nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Flatten()))._on_gpu


@pytest.mark.parametrize(
    "options", [{}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"kernel_size": 4}], ids=str
)
def test_poolings_under_the_compiler(options: dict) -> None:
    """Those with plain small windows are comparisons, others are left alone."""
    pool, x = nn.MaxPool2d(**{"kernel_size": 2} | options), torch.randn(2, 3, 9, 9)
    seen = []

    def pooled(x: torch.Tensor) -> torch.Tensor:
        with matrix_convolutions():
            return pool(x)

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        seen.append(graph.code)
        return graph

    assert torch.equal(torch.compile(pooled, backend=backend)(x), pool(x))
    alone = bool({"ceil_mode", "kernel_size"} & options.keys())
    assert len(seen) == 1 and ("max_pool2d" in seen[0]) == alone


@pytest.mark.parametrize("lead", [(4,), (1,), (3, 2), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6,), (2, 3)], ids=str)
def test_scores_with_their_pullback(lead: tuple[int, ...], bias: bool, shape: tuple[int, ...]) -> None:
    """Of a dense layer, alone or beside layers that flatten: as autograd has it, client by client."""
    dense = nn.Linear(6, 1, bias=bias)
    stacks = [nn.Sequential(nn.Flatten(), dense), nn.Sequential(nn.Flatten(), dense, nn.Flatten())]
    for module in [*stacks, dense, nn.Sequential(dense, nn.Flatten())] if len(shape) == 1 else stacks:
        model = FlatModel(module.double())
        w, x = torch.randn(*lead, model.n).double(), torch.randn(*lead, 5, *shape).double()
        if len(lead) == 3:  # replicas share samples
            x = x[:, :1].expand(-1, lead[1], *x.shape[2:])
        out, pullback = model.with_pullback(w, x)
        g = torch.randn_like(out)
        own = [torch.autograd.functional.vjp(lambda v, x=x, model=model: model.at(v)(x), v, g)
               for v, x, g in zip(w.flatten(0, -2), x.flatten(0, len(lead) - 1), g.flatten(0, -3), strict=True)]  # fmt: skip
        np.testing.assert_allclose(out.flatten(0, -3), torch.stack([h for h, _ in own]), rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            pullback(g).flatten(0, -2), torch.stack([d for _, d in own]), rtol=0, atol=1e-12
        )


@pytest.fixture
def traced(monkeypatch) -> None:
    """Local steps are traced as for the compiler, and not made faster: in a fraction of the time."""
    torch._dynamo.reset()
    steps = torch.compile(cohort.local_steps, dynamic=False, backend="eager", fullgraph=True)
    monkeypatch.setattr(cohort, "compiled", lambda f, device: steps if f is cohort.local_steps else f)


STAGES = dict(lr=0.05, local_steps=4, stage_rounds=2, lr_decay=0.5)


@pytest.mark.parametrize(
    ("algorithm", "graphs"),
    [
        (fs.CODAPlus(gamma=0.1, **STAGES), 1),
        (fs.CODASCA(gamma=0.1, **STAGES), 1),
        (fs.PublishedCODASCA(gamma=0.1, **STAGES), 2),  # its first round is one step
        (fs.RSPairwise(**STAGES), 2),  # the first round has scores alone
    ],
    ids=lambda a: type(a).__name__,
)
def test_stages_and_other_data_are_not_compiled_anew(
    federation: fs.Federation, algorithm: fs.Algorithm, graphs: int, traced
) -> None:
    """Steps are compiled for shapes of batches, not for a stage's step size or the number of all samples."""
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    x, y = federation.data["x"].numpy(), federation.data["y"].numpy()
    fewer = fs.Federation.from_arrays(x[:-10], y[:-10], clients=np.repeat(np.arange(5), SIZES)[:-10])
    model = nn.Linear(6, 1)
    for data in (federation, fewer):
        plain, compiled = (
            fs.train(
                fs.PairwiseAUC(model) if algorithm.pairwise else fs.AUC(model, p=0.5),
                algorithm,
                data,
                rounds=6,
                batch_size=4,
                dtype="float64",
                compile=how,
            ).z
            for how in (False, True)
        )
        np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == graphs


@pytest.mark.parametrize(
    ("algorithm", "graphs"),
    [
        (fs.CODASCA(gamma=0.1, **STAGES), 2),  # one run, and replicas
        (fs.PublishedCODASCA(gamma=0.1, **STAGES), 4),
        (fs.RSPairwise(**STAGES), 4),
    ],
    ids=lambda a: type(a).__name__,
)
def test_other_shares_of_positives_are_not_compiled_anew_on_a_gpu(
    federation: fs.Federation, algorithm: fs.Algorithm, graphs: int, traced, monkeypatch
) -> None:
    """Numbers that differ from data to data, and the scale of a loss, are tensors there; here it is done on a CPU."""
    monkeypatch.setattr(simulation, "_IN_TENSORS", ("cpu",))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    x, y = federation.data["x"].numpy(), federation.data["y"].numpy().copy()
    owner = np.repeat(np.arange(5), SIZES)
    fewer = fs.Federation.from_arrays(x, y * (owner > 0), clients=owner)  # client 0 has no positive
    model = nn.Linear(6, 1)

    def started(data: fs.Federation, scale: float, compile: bool, seed: int = 0, lr: float = 0.05) -> fs.Run:
        pairs = fs.PairwiseAUC(model, loss="sigmoid", scale=scale)
        return fs.train(
            pairs if algorithm.pairwise else fs.AUC(model), replace(algorithm, lr=lr), data, rounds=6, batch_size=4,
            dtype="float64", compile=compile, seed=seed,
        )  # fmt: skip

    for data, scale in ((federation, 1.0), (fewer, 0.1)):
        np.testing.assert_allclose(
            started(data, scale, True).z, started(data, scale, False).z, rtol=0, atol=1e-12
        )
        together = [started(data, scale, True, seed) for seed in (0, 1)]
        run_together(together)
        for seed, run in enumerate(together):
            np.testing.assert_allclose(run.z, started(data, scale, False, seed).z, rtol=0, atol=1e-12)
    steps = (0.05, 0.02)  # nor for steps that differ; a dense layer reads the samples of one seed together
    tuned = [started(federation, 1.0, True, seed, lr) for seed, lr in enumerate(steps)]
    run_together(tuned)
    for seed, (run, lr) in enumerate(zip(tuned, steps, strict=True)):
        np.testing.assert_allclose(run.z, started(federation, 1.0, False, seed, lr).z, rtol=0, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == graphs


def test_nor_are_full_fields_of_replicas(federation: fs.Federation, traced) -> None:
    x, y = federation.data["x"].numpy(), federation.data["y"].numpy()
    fewer = fs.Federation.from_arrays(x[:-10], y[:-10], clients=np.repeat(np.arange(5), SIZES)[:-10])
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    problem, batching = fs.AUC(nn.Linear(6, 1), p=0.5), cohort.Batching(5)
    z = torch.randn(2, 5, problem.n_x + problem.n_y, dtype=torch.float64)
    for data in (federation, fewer):
        clients = Simulation(Task(problem, data, fs.Full(), batching, (0, 1), torch.float64))
        work = clients.cohort(np.tile(np.arange(5), (2, 1)), 0)
        plain, work.compile, work._longest = work.full_field(z), True, 30  # so pieces are as long
        np.testing.assert_allclose(work.full_field(z), plain, rtol=0, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


@pytest.mark.parametrize("batch_size", [4, None])
def test_compiled_stages_with_the_proximal_steps_of_an_own_problem(
    federation: fs.Federation, batch_size, traced
) -> None:
    def loss(x, y, sample):
        return (sample["x"] @ x - 1 - y[0]) ** 2 / 2 - y[0] ** 2

    problem = fs.Custom(loss, 6, 1, prox_x=lambda v, lr: v / (1 + lr), prox_y="box(-0.1, 0.1)")
    plain, compiled = (
        fs.train(
            problem,
            fs.CODAPlus(**STAGES),
            federation,
            rounds=4,
            batch_size=batch_size,
            dtype="float64",
            compile=how,
        ).z
        for how in (False, True)
    )
    assert plain[:6].any()
    np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "hidden"),
    [
        (lambda lr: fs.CODASCA(gamma=0.1, **STAGES | {"lr": lr}), 0),
        (lambda lr: fs.CODASCA(gamma=0.1, **STAGES | {"lr": lr}), 4),
        (lambda lr: fs.PublishedCODASCA(gamma=0.1, **STAGES | {"lr": lr}), 4),
        (lambda lr: fs.FFMDR(beta=2.0, lr=lr, epochs=2), 0),
        (lambda lr: fs.FFMDR(beta=2.0, lr=lr, epochs=2, solver="saga"), 0),
        (lambda lr: fs.FFMDR(beta=20 * lr, solver="exact"), 0),
        (lambda lr: fs.FedNest(lr=lr, local_steps=3, inner_loops=2), 0),
        (lambda lr: fs.RSPairwise(**STAGES | {"lr": lr}), 0),
        (lambda lr: fs.RSPairwise(**STAGES | {"lr": lr}), 4),
    ],
    ids=[
        "codasca",
        "codasca-mlp",
        "published-mlp",
        "ffmdr",
        "saga",
        "exact",
        "fednest",
        "rs_pairwise",
        "pairs-mlp",
    ],
)
def test_compiled_replicas(federation: fs.Federation, algorithm, hidden: int, traced) -> None:
    """Two step sizes with two seeds, which share minibatches, or all samples."""
    model = (
        nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 1)) if hidden else nn.Linear(6, 1)
    )

    def start(lr: float, seed: int, compile: bool) -> fs.Run:
        method = algorithm(lr)
        problem = fs.PairwiseAUC(model, loss="square") if method.pairwise else fs.AUC(model)
        return fs.train(
            problem, method, federation, rounds=4, batch_size=5, dtype="float64", seed=seed, compile=compile
        )

    points = [(lr, seed) for seed in (0, 1) for lr in (0.05, 0.02)]
    together = [start(*point, True) for point in points]
    run_together(together)
    for run, point in zip(together, points, strict=True):
        np.testing.assert_allclose(run.z, start(*point, False).z, rtol=0, atol=1e-12)


def test_a_rehearsal_takes_two_steps_of_a_loop_that_nobody_looks_at(federation: fs.Federation) -> None:
    """Before a CUDA graph is recorded; where outputs are wanted their number must be right."""
    clients = Simulation(Task(fs.AUC(nn.Linear(6, 1), p=0.5), federation, fs.Full(), cohort.Batching(5)))
    work = clients.cohort(range(5), 0)
    rehearsal = work.at(work.inputs())
    rehearsal.rehearsing = True
    assert not rehearsal.at(rehearsal.inputs()).rehearsing  # which is recorded next

    def steps(of: cohort.Cohort, n: int) -> float:
        return float(of.scan(lambda z, batch: z + 1, torch.zeros(1, 1), n)[0, 0])

    assert [steps(work, 7), steps(rehearsal, 7), steps(rehearsal, 1)] == [7, 2, 1]
    carry, outputs = rehearsal.scan(
        lambda z, batch, part: (z + 1, part), torch.zeros(1, 1), 7, torch.zeros(5, 7)
    )
    assert float(carry[0, 0]) == 7 and outputs.shape == (5, 7)


def test_a_loop_of_no_steps(federation: fs.Federation) -> None:
    problem = fs.AUC(nn.Linear(6, 1), p=0.5)
    clients = Simulation(Task(problem, federation, fs.Full(), cohort.Batching(5)))
    assert not clients.cohort(range(5), 0).scan(lambda z, batch: z + 1, torch.zeros(1, 10), 0).any()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize(
    ("clients", "channels", "out", "side", "kernel", "stride", "padding"),
    [
        (3, 64, 64, 8, 3, 1, 1),
        (2, 32, 144, 9, 3, 2, 1),
        (2, 16, 32, 8, 1, 2, 0),
        (1, 48, 16, 7, (2, 3), 1, 0),
        (2, 16, 16, 11, 5, 3, 2),
        (2, 16, 80, 32, 3, 1, 1),
        (2, 16, 64, 19, 4, 1, 0),
        (2, 64, 128, 2, 2, 2, 0),
    ],
)
def test_cuda_kernels_are_convolutions_with_a_weight_a_client(
    clients, channels, out, side, kernel, stride, padding
) -> None:
    """In float32, to rounding: values and both derivatives; the same bits when computed again."""
    kernels = pytest.importorskip("fedsaddle.kernels")
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
    x = torch.randn(clients, 3, channels, side, side + 1, device="cuda", requires_grad=True)
    w = torch.randn(clients, *conv.weight.shape, device="cuda", requires_grad=True)
    y = kernels.convolve(x.permute(0, 1, 3, 4, 2), w.permute(0, 1, 3, 4, 2), stride, padding).permute(
        0, 1, 4, 2, 3
    )
    each = [
        torch.nn.functional.conv2d(a, b, None, stride, padding)
        for a, b in zip(x.double(), w.double(), strict=True)
    ]
    expected = torch.stack(each)
    g = torch.randn_like(y)
    found = y, *torch.autograd.grad(y, (x, w), g, retain_graph=True)
    again = y, *torch.autograd.grad(y, (x, w), g)
    for a, b, c in zip(
        found, again, (expected, *torch.autograd.grad(expected, (x, w), g.double())), strict=True
    ):
        assert torch.equal(a, b)
        assert (a - c).norm() <= 1e-5 * c.norm()


_STEMS = {
    "small": [nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)],
    "large": [
        nn.Conv2d(3, 32, 7, stride=2, padding=3),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ],
}


@needs_gpu
@pytest.mark.parametrize("stem", _STEMS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_cuda_bf16_gradients_of_a_residual_net(compiled: bool, stem: str) -> None:
    """One field of stacked clients: bf16 is as near to full precision as it is client by client."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *_STEMS[stem],
        _Residual(32, 64, stride=2, groups=8),
        nn.Conv2d(64, 5, 3, padding=0 if stem == "small" else 1),  # 5 channels: patches are made
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 1),
    )
    problem = fs.AUC(net, p=0.3).to(torch.device("cuda"), torch.float32)
    z = problem.init().cuda() + 0.05 * torch.randn(3, problem.n_x + 1, device="cuda")
    y = torch.randint(0, 2, (3, 6), device="cuda")
    batch = Batch(
        {"x": torch.randn(3, 6, 3, 12, 12, device="cuda"), "y": y}, torch.full((3, 6), 1 / 6, device="cuda")
    )
    rows = [Batch({k: v[i : i + 1] for k, v in batch.data.items()}, batch.w[i : i + 1]) for i in range(3)]
    exact = problem.field(z, batch)
    field = torch.compile(problem.field, dynamic=False) if compiled else problem.field
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        stacked = field(z, batch)
        one_by_one = torch.cat([problem.field(z[i : i + 1], row) for i, row in enumerate(rows)])
    assert stacked.dtype == torch.float32
    assert (stacked - exact).norm() <= max(0.01 * exact.norm(), 2 * (one_by_one - exact).norm())


@needs_gpu
@pytest.mark.parametrize(
    "algorithm",
    [
        fs.CODASCA(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=3),
        fs.CODAPlus(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=2),
        fs.CODA(lr=0.05, local_steps=4, stage_rounds=2),
        fs.LocalSGDA(lr=0.05, lr_dual=0.1, local_steps=4),
        fs.FedSGDA(lr=0.05, lr_dual=0.1, local_steps=4),
        fs.FedSGDA(lr=0.05, local_steps=4, estimator="spider", period=3),
        fs.PublishedCODASCA(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=3),
        *PAIRS,
    ],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("offload", [False, True], ids=["resident", "offloaded"])
def test_cuda_graphs_equal_the_cpu(federation: fs.Federation, algorithm: fs.Algorithm, offload: bool) -> None:
    cpu, gpu = run(federation, algorithm), run(federation, algorithm, device="cuda", offload=offload)
    np.testing.assert_allclose(gpu.z.cpu(), cpu.z, rtol=0, atol=1e-12)


class _Shared(nn.Module):
    """Pixels share weights, so a derivative is a sum of many at few places, which a GPU adds in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8))
        self.register_buffer("place", torch.arange(1200) % 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.w.index_select(0, self.place)


@needs_gpu
@pytest.mark.parametrize("precision", ["full", "bf16"])
@pytest.mark.parametrize("kind", ["linear", "cnn", "residual", "pairs", "shared"])
def test_cuda_runs_give_the_same_bits_again(kind: str, precision: str, tmp_path) -> None:
    """Iterates, records and checkpoints of two runs, CUDA graphs and evaluation included."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 3, 20, 20), dtype=np.float32), rng.integers(0, 2, 400)
    data = fs.Federation.from_arrays(x, y, clients=np.arange(400) % 8).holdout(0.25)
    algorithm: fs.Algorithm = fs.FedSGDA(lr=0.01, local_steps=4)
    made = []
    for i in range(2):
        torch.manual_seed(0)
        models = {
            "linear": nn.Sequential(nn.Flatten(), nn.Linear(1200, 1)),
            "cnn": CNN(3, 20),
            "residual": nn.Sequential(
                nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), _Residual(32, 64, stride=2, groups=8),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1),
            ),
            "pairs": CNN(3, 20),
            "shared": _Shared(),
        }  # fmt: skip
        problem = fs.PairwiseAUC(models[kind]) if kind == "pairs" else fs.AUC(models[kind])
        method = fs.RSPairwise(lr=0.05, local_steps=4) if kind == "pairs" else algorithm
        out = tmp_path / str(i)
        fs.train(
            problem, method, data, rounds=6, batch_size=10, participation=fs.Uniform(4), device="cuda",
            precision=precision, out=out, checkpoint_every=3,
        ).finish()  # fmt: skip
        kept = sorted(
            p for p in out.rglob("*") if p.suffix in (".jsonl", ".safetensors") and p.name != "seconds.jsonl"
        )
        made.append({p.relative_to(out): p.read_bytes() for p in kept})
    assert len(made[0]) >= 3
    assert made[0] == made[1]
