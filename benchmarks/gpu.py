"""Client steps a second on a GPU: stacked in a CUDA graph, stacked eager, and a sequential loop in plain PyTorch.

Workloads (generated data, CODASCA on the square-surrogate AUC):

    W1        100 clients x 300 samples x 123 features, linear, 100 a round x 20 steps x batch 32
    W2        100 clients x 100 images 3x32x32, the 32-64-64 CNN, 100 a round x 20 steps x batch 10
    resnet18  10 clients x 200 images, ResNet-18 with GroupNorm, 10 a round x 5 steps x batch 32, bf16
    resnet18-large  24 clients x 200 images, the same with the large stem of its paper and without the taps that meet padding
              alone, 24 a round x 5 steps x batch 32, bf16
    densenet121  the same with DenseNet-121; not compiled, which takes the better part of an hour

The sequential loop is what one writes by hand: a module a client, forward, backward, in-place updates with variates.

The step is so small that ResNet-18 does not diverge: arithmetic on NaN draws less power, so the card would run faster.

TFLOP/s count the multiplications and additions of forward and backward passes (torch.utils.flop_counter).

    python benchmarks/gpu.py [--workloads W1 W2 resnet18 resnet18-large densenet121] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fedsaddle as fs
from fedsaddle import models
from fedsaddle.clients import Task
from fedsaddle.cohort import Batching
from fedsaddle.engines.simulation import Simulation


class Workload(NamedTuple):
    clients: int
    samples: int
    shape: tuple[int, ...]
    model: str
    cohort: int
    steps: int
    batch: int
    precision: str
    compiled: bool = True  # whether the compiled step is measured too
    options: dict[str, Any] = {}  # noqa: RUF012 (of the model)


LR = 1e-4

WORKLOADS = {
    "W1": Workload(100, 300, (123,), "linear", 100, 20, 32, "full"),
    "W2": Workload(100, 100, (3, 32, 32), "cnn", 100, 20, 10, "full"),
    "resnet18": Workload(10, 200, (3, 32, 32), "resnet18", 10, 5, 32, "bf16"),
    "resnet18-large": Workload(
        24, 200, (3, 32, 32), "resnet18", 24, 5, 32, "bf16", options={"stem": "large", "pixels": 32}
    ),
    "densenet121": Workload(10, 200, (3, 32, 32), "densenet121", 10, 5, 32, "bf16", compiled=False),
}


def flops(w: Workload) -> float:
    """Of the forward and backward pass of one sample, multiply-adds counted twice."""
    network = model(w)
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *w.shape)).sum().backward()
    return float(counter.get_total_flops())


def federation(w: Workload) -> fs.Federation:
    g = torch.Generator().manual_seed(0)
    n = w.clients * w.samples
    x, y = torch.randn(n, *w.shape, generator=g), (torch.rand(n, generator=g) < 0.2).long()
    return fs.Federation(
        {"x": x, "y": y}, torch.arange(w.clients + 1) * w.samples, tuple(map(str, range(w.clients)))
    )


def model(w: Workload) -> nn.Module:
    torch.manual_seed(0)
    return models.build(w.model, w.shape, **w.options)


class Stacked:
    """The library, one round at a time."""

    def __init__(self, w: Workload, **execution: object) -> None:
        self.algorithm = fs.CODASCA(lr=LR, local_steps=w.steps)
        participation = fs.Full() if w.cohort == w.clients else fs.Uniform(w.cohort)
        task = Task(fs.AUC(model(w), p=0.2), federation(w), participation, Batching(w.batch))
        self.clients = Simulation(task, device="cuda", **execution)
        z = self.clients.problem.init().to("cuda").unsqueeze(0)
        self.state = self.algorithm.init(z, self.clients.problem)
        self.clients.remember(self.algorithm.memory(z, self.clients.problem))
        self.round = 0

    def __call__(self) -> None:
        self.clients.begin(self.round)
        self.state = self.algorithm.round(self.state, self.clients)
        self.round += 1

    def finite(self) -> bool:
        return bool(self.state.z.isfinite().all())


class Sequential:
    """One client after another, in plain PyTorch."""

    def __init__(self, w: Workload) -> None:
        self.w, self.server = w, model(w).to("cuda")
        fed = federation(w)
        self.x, self.y = fed.data["x"].to("cuda"), fed.data["y"].to("cuda")
        self.aux = torch.zeros(3, device="cuda")  # a, b, alpha

    def __call__(self) -> None:
        w, p, lr = self.w, 0.2, LR
        total: list[torch.Tensor] = []
        for k in range(w.cohort):
            local, aux = copy.deepcopy(self.server), self.aux.clone().requires_grad_()
            parameters = [*local.parameters(), aux]
            c_k = [torch.zeros_like(v) for v in parameters]
            for _ in range(w.steps):
                rows = torch.randint(0, w.samples, (w.batch,), device="cuda") + k * w.samples
                with torch.autocast("cuda", torch.bfloat16, enabled=w.precision == "bf16"):
                    h = local(self.x[rows]).squeeze(-1).float()
                pos = self.y[rows] == 1
                a, b, alpha = aux
                F = torch.where(pos, (1 - p) * (h - a) ** 2, p * (h - b) ** 2)
                F = F + 2 * (1 + alpha) * torch.where(pos, (p - 1) * h, p * h) - p * (1 - p) * alpha**2
                gradients = torch.autograd.grad(F.mean(), parameters)
                with torch.no_grad():
                    gradients[-1][2].neg_()
                    for v, g, c in zip(parameters, gradients, c_k, strict=True):
                        v -= lr * (g - c)
            for i, v in enumerate(parameters):
                total.append(v.detach()) if k == 0 else total[i].add_(v.detach())
        with torch.no_grad():
            for v, t in zip([*self.server.parameters(), self.aux], total, strict=True):
                v.copy_(t / w.cohort)

    def finite(self) -> bool:
        return all(v.isfinite().all() for v in self.server.parameters())


def seconds(round_: object, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        round_()  # type: ignore[operator]
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def ceilings() -> dict[str, float]:
    """What the machine reaches: TFLOP/s of a large matrix product, GB/s of a copy."""
    a = torch.randn(8192, 8192, device="cuda")
    half = a.bfloat16()
    out = {}
    for name, m in (("float32", a), ("bfloat16", half)):
        m @ m
        out[f"matmul_{name}_tflops"] = 2 * 8192**3 / seconds(lambda m=m: m @ m, 5) / 1e12
    big = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(big)
    target.copy_(big)
    out["copy_gb_per_s"] = 2 * big.numel() / seconds(lambda: target.copy_(big), 5) / 1e9
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--json")
    args = parser.parse_args()
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    } | ceilings()
    print(results)
    for name in args.workloads:
        w = WORKLOADS[name]
        row = {}
        ways = {
            "graph": {},
            "eager": {"graph": False},
            "compiled graph": {"compile": True},
            "sequential": None,
        }
        if not w.compiled:
            del ways["compiled graph"]
        for how, options in ways.items():
            try:
                round_ = Sequential(w) if options is None else Stacked(w, precision=w.precision, **options)
                round_()
            except Exception as error:
                print(name, how, "failed:", str(error)[:300])
                continue
            for _ in range(1 if how == "sequential" else 3):
                round_()
            row[how] = seconds(round_, 2 if how == "sequential" else 5)
            if not round_.finite():
                print(name, how, "diverged: its time is not to be trusted")
            del round_
            torch.cuda.empty_cache()
        steps, work = w.cohort * w.steps, w.cohort * w.steps * w.batch * flops(w)
        for how, t in row.items():
            print(
                f"{name:14s} {w.precision:5s} {how:15s} {1e3 * t:8.1f} ms  {steps / t:10,.0f} client steps/s  "
                f"{row['sequential'] / t:7.1f} x sequential, {work / t / 1e12:.2f} TFLOP/s"
            )
        results[name] = {"seconds": row, "client_steps": steps, "tflop": work / 1e12}
        if args.json:
            with open(args.json, "w") as file:
                json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
