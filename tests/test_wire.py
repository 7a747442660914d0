"""Trees as bytes: every algorithm's messages, replies, memory and states survive, and bytes from a stranger do no harm."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

import fedsaddle as fs
from fedsaddle.algorithms import codasca, stages
from fedsaddle.checkpoint import Checkpoint
from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Control, Each, Once, unwrapped
from fedsaddle.testing import Wired, same
from fedsaddle.wire import Garbled, classes_of, pack, signature, unpack
from tests import harness


class Pair(NamedTuple):
    a: Any
    b: Any


class Loose(NamedTuple):
    z: float  # a tensor in truth: annotations of other people's classes bind nobody
    n: "[1, d] tensor"  # type: ignore  # noqa: F722


CLASSES = {
    f"{kind.__module__}:{kind.__name__}": kind for kind in (Pair, Loose, stages.Progress, codasca.State)
}
TENSORS = st.builds(
    lambda dtype, shape: (torch.arange(int(np.prod(shape))).reshape(shape) * 0.7 - 1).to(dtype),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16]),
    st.lists(st.integers(0, 3), max_size=3),
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
TREES = st.recursive(
    TENSORS | PLAIN,
    lambda part: (
        st.lists(part, max_size=3).map(tuple)
        | st.builds(Pair, part, part)
        | st.builds(Each, TENSORS, st.just(8.0))
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(TREES)
def test_a_tree_survives(tree: Any) -> None:
    again = unpack(pack(tree), CLASSES)
    assert same(tree, again) and signature(tree) == signature(again)


@pytest.mark.parametrize("name", harness.CASES)
def test_every_algorithm_survives_the_wire_and_the_disk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = harness.CASES[name]
    twin, rounds = harness.TWINS[case.twin], min(case.rounds, 4)
    settings = dict(start=twin.z0(), participation=case.participation, batching=case.batching)
    plain = harness.drive(case.algorithm, twin.problem(), twin.data(), rounds, **settings)

    def stored(state: Any, clients: Any) -> Any:
        return unpack(pack(state), classes_of(case.algorithm, clients.problem))

    monkeypatch.setattr(harness, "Simulation", Wired)
    wired = harness.drive(case.algorithm, twin.problem(), twin.data(), rounds, after=stored, **settings)
    assert np.array_equal(plain.z, wired.z)


def test_a_part_sent_once_is_looked_up_afterwards() -> None:
    message = Pair(Once(torch.ones(1, 2), version=4, name="point"), Once(torch.zeros(1, 1), version=0))
    name = lambda once, place: once.name or f"work {place}"
    kept: dict[str, tuple[int, torch.Tensor]] = {}
    first = pack(message, lambda once, k: (name(once, k), True))
    got = unpack(first, CLASSES, keep=lambda key, version, value: kept.update({key: (version, value)}))
    assert same(got, Pair(torch.ones(1, 2), torch.zeros(1, 1))) and set(kept) == {"point", "work 1"}
    later = pack(message, lambda once, k: (name(once, k), False))
    assert len(later) < len(first)
    asked = []
    got = unpack(later, CLASSES, held=lambda key, version: asked.append((key, version)) or kept[key][1])
    assert same(got, Pair(torch.ones(1, 2), torch.zeros(1, 1))) and asked == [("point", 4), ("work 1", 0)]
    with pytest.raises(Garbled, match="'point' was not sent"):
        unpack(later, CLASSES)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


def _saved(structure: Any) -> bytes:
    return save({"0": torch.ones(1)}, {"tree": json.dumps(structure)})


ONE = torch.ones(1)
GARBAGE = {
    "nothing": b"",
    "noise": bytes(range(256)) * 4,
    "a pickle": pickle.dumps(Evil()),
    "cut short": pack(Pair(torch.ones(100), 1))[:-8],
    "no tree": save({"0": torch.ones(1)}),
    "a class of another module": _saved({"named": "os:stat_result", "parts": [1]}),
    "a function": _saved({"named": "os:mkdir", "parts": ["harm"]}),
    "too many parts": _saved({"named": f"{Pair.__module__}:Pair", "parts": [1, 2, 3]}),
    "no such tensor": _saved({"tensor": "1"}),
    "a list": _saved([1, 2]),
    "a number for a tensor": pack(codasca.State(1, ONE, ONE, stages.Progress.start(ONE))),  # type: ignore[arg-type]
    "a number for a tuple": pack(codasca.State(ONE, ONE, ONE, 0)),  # type: ignore[arg-type]
    "an unknown form": _saved({"dict": {}}),
    "deep": save({"0": torch.ones(1)}, {"tree": '{"tuple":[' * 100_000}),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_bytes_that_are_no_tree_are_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Garbled, match=r"^wire: "):
        unpack(GARBAGE[what], CLASSES)
    assert not list(tmp_path.iterdir())


def test_annotations_of_other_classes_bind_nobody() -> None:
    tree = Loose(torch.ones(2), 3)  # type: ignore[arg-type]
    assert same(unpack(pack(tree), CLASSES), tree)


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(
        FedsaddleError, match="must consist of tensors, None, numbers, text and tuples, got dict"
    ):
        pack(({"a": 1},))
    with pytest.raises(FedsaddleError, match="got ndarray"):
        pack(np.ones(3))


def test_controls_are_opened_before_they_are_sent() -> None:
    down = codasca.Down(torch.ones(1, 2), torch.ones(1, 2), None, 3)
    message = Pair(down, Control(torch.ones(1, 1)))
    classes = CLASSES | classes_of(harness.CASES["codasca"].algorithm)
    assert same(unpack(pack(unwrapped(message)), classes), Pair(down, torch.ones(1, 1)))


def test_a_checkpoint_of_parameters_in_another_order_is_refused() -> None:
    """A ResNet-18's kernels once lay as the module has them: as many numbers, and nothing else would tell."""

    class Net(nn.Module):
        channels_innermost = False

        def __init__(self) -> None:
            super().__init__()
            self.kernels = nn.Conv2d(2, 3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.kernels(x).mean((1, 2, 3))

    class Innermost(Net):
        channels_innermost = True

    def problem(kind: type[Net]) -> fs.ERM:
        torch.manual_seed(0)
        return fs.ERM(kind())

    old, new = problem(Net), problem(Innermost)
    assert torch.equal(old.flat.initial.sort().values, new.flat.initial.sort().values)
    algorithm = fs.FedAvg(lr=0.1)
    saved = Checkpoint(1, algorithm.init(old.init()[None], old), (), (None, None), {}, {}, {})
    assert Checkpoint.unpacked(saved.packed(old), algorithm, old).round == 1
    assert Checkpoint.unpacked(saved.packed(new), algorithm, new).round == 1
    for written, read in ((old, new), (new, old)):
        with pytest.raises(FedsaddleError, match=r"of form ., this version reads .; begin the run anew"):
            Checkpoint.unpacked(saved.packed(written), algorithm, read)


def test_a_checkpoint_comes_back_whole_and_only_to_its_algorithm() -> None:
    case = harness.CASES["codasca"]
    run = harness.library("codasca")
    parts = (("p", 0.25),), ((), None), {"failures": 2}, {"seed": 3}, {"torch": "2"}
    saved = Checkpoint(7, run.states[-1], *parts)
    packed = saved.packed(run.clients.problem)
    got = Checkpoint.unpacked(packed, case.algorithm, run.clients.problem)
    assert (got.round, got[2:]) == (7, parts)
    assert same(got.state, saved.state)
    with pytest.raises(FedsaddleError, match="is none of this run"):
        Checkpoint.unpacked(
            packed, harness.CASES["fedavg"].algorithm, harness.library("fedavg").clients.problem
        )
