"""Executions of the same work agree: chunks, compiled steps, lower precision; CUDA graphs where there is a GPU."""

import numpy as np
import pytest
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle.convolution import matrix_convolutions, patches_times_kernels
from fedsaddle.errors import FedsaddleError
from fedsaddle.models import CNN, ResNet18

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
    federation: fs.Federation, algorithm: fs.Algorithm, options: dict
) -> None:
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


@pytest.mark.parametrize("dual", ["gradient", "margin"])
def test_compiled_steps_do_not_change_a_run(federation: fs.Federation, dual: str) -> None:
    np.testing.assert_allclose(
        run(federation, compile=True, dual=dual).z, run(federation, dual=dual).z, rtol=0, atol=1e-12
    )


def test_without_a_compiler_it_runs_eagerly_and_says_so(federation: fs.Federation, monkeypatch) -> None:
    from fedsaddle import cohort

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler")

    cohort._can_compile.cache_clear()
    cohort.compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(UserWarning, match="running eagerly .*no C"):
        compiled = run(federation, compile=True)
        z = compiled.z
    cohort._can_compile.cache_clear()
    cohort.compiled.cache_clear()
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
    ("channels", "out", "kernel", "stride", "padding"),
    [(3, 5, 3, 1, 0), (4, 2, 3, 2, 1), (3, 4, 1, 2, 0), (2, 3, (3, 1), (1, 2), (1, 0))],
)
def test_patches_times_kernels_is_a_convolution(channels, out, kernel, stride, padding) -> None:
    conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding).double()
    x = torch.randn(2, channels, 9, 8, dtype=torch.float64)
    y = patches_times_kernels(x, conv.weight, conv.bias, stride, padding)
    torch.testing.assert_close(y, conv(x), rtol=0, atol=1e-12)
    with matrix_convolutions():
        torch.testing.assert_close(conv(x), y, rtol=0, atol=0)


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


def test_resnet18_with_matrix_convolutions() -> None:
    torch.manual_seed(0)
    module, x = ResNet18().double(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with matrix_convolutions():
        y = module(x)
    torch.testing.assert_close(y, module(x), rtol=0, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "algorithm",
    [
        fs.CODASCA(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=3),
        fs.CODAPlus(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=2),
        fs.CODA(lr=0.05, local_steps=4, stage_rounds=2),
        fs.LocalSGDA(lr=0.05, lr_dual=0.1, local_steps=4),
        fs.FedSGDA(lr=0.05, lr_dual=0.1, local_steps=4),
        fs.FedSGDA(lr=0.05, local_steps=4, estimator="spider", period=3),
        fs.CODASCA.as_published(lr=0.05, local_steps=4, gamma=0.1, stage_rounds=3),
        *PAIRS,
    ],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("offload", [False, True], ids=["resident", "offloaded"])
def test_cuda_graphs_equal_the_cpu(federation: fs.Federation, algorithm: fs.Algorithm, offload: bool) -> None:
    cpu, gpu = run(federation, algorithm), run(federation, algorithm, device="cuda", offload=offload)
    np.testing.assert_allclose(gpu.z.cpu(), cpu.z, rtol=0, atol=1e-12)
