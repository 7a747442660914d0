"""Cohort: S clients at work in one phase, as their work sees them. A deployed site is a cohort of one.

Every vector is [S, d]: the client axis is always -2 and the vector axis -1, so element-wise mathematics reads as in the
papers. `scan` is the local loop and the only place that an engine makes fast. Derivatives are the problem's: `field` and
`each_field` ask for them, and work on pairs pulls its own back through the scores. A batch is opaque: it comes from `scan`,
`batch` or `everything` and goes back to `field` or `apply`.

A problem on pairs of samples has two sides, such as positives and negatives. A minibatch of `scan` then is B samples of each
client's first side, followed by B of its second.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.compiling import compiled
from fedsaddle.problem import Batch, Data, Problem, tree_map
from fedsaddle.sampling import minibatches, normal, subkey

Step = Callable[..., Any]

_INDICES_AT_ONCE = 1 << 20  # minibatch indices drawn in one go
_SMALL_MODEL = 10_000  # variables; up to here calling a compiled step costs more than computing it
# steps of a small model that are compiled as one: the first of these that divides how many there are and whose samples,
# which are fetched together, are few enough numbers to stay in a core's cache
_UNROLLED = (5, 4, 3, 2, 7)
_AT_HAND = 700_000
_REHEARSED = 2  # steps before a CUDA graph of all of them is recorded
_NUMBERS_AT_ONCE = 1 << 24  # numbers gathered at once when going over all local data


class Batching(NamedTuple):
    """How local minibatches are drawn."""

    size: int | None = 32  # None: all local samples in every step
    sampling: str = "without_replacement"


class Sides(NamedTuple):
    """Two lists of each client's samples, such as its positives and its negatives."""

    rows: Tensor  # row numbers within a client's own data: of the first list client after client, then of the second [n]
    first: Tensor  # where in `rows` each client's begin [2, ..., S]
    sizes: Tensor  # how many they are [2, ..., S]; may be 0


class Cohort:
    """Some clients, their data and their memory, in one phase.

    Args:
        problem: what is learned, its constants agreed on.
        ids: global client numbers [S], or [R, S] with a replica axis; minibatches depend on them and on nothing else
            about a client.
        data: samples that these clients own rows of; every field [n, ...].
        first, sizes: client i owns the rows first[i] : first[i] + sizes[i]; both like ids.
        memory: what each client remembers from its last work, every tensor [..., S, k].
        key: hash of (seed, round, phase), from which minibatches are drawn (`sampling.keys`).
        batching: minibatch size and sampling.
        dtype: the precision of the run.
        longest: no client has more samples than this (asking the device would stall it).
        sides: of a problem on pairs of samples; None for others.
        noise_key: gives what normal numbers are drawn from in place of `key`: a deployed site has its own.
        per_seed: how many replicas in a row have the same seed, and so the same clients and minibatches, which are then
            drawn and gathered once for all of them.
    """

    def __init__(
        self,
        problem: Problem,
        ids: Tensor,
        data: Data,
        first: Tensor,
        sizes: Tensor,
        memory: Any,
        key: Tensor,
        batching: Batching,
        dtype: torch.dtype,
        longest: int,
        sides: Sides | None = None,
        per_seed: int = 1,
        noise_key: Callable[[], Tensor] | None = None,
    ) -> None:
        self.problem, self.ids, self.memory = problem, ids, memory
        self.sizes = sizes
        self._data, self._first, self._key, self._batching = data, first, key, batching
        self.sides, self._per_seed, self._noise_key = sides, per_seed, noise_key
        self.compile = False  # whether `scan` compiles its step
        self.rehearsing = False  # whether nobody looks at the result, and `scan` does a few of its steps only
        self._longest = longest if sizes.is_cuda else int(sizes.max())
        self._normals = 0  # draws of normal numbers
        self._drawn = 0  # steps whose minibatches were drawn; a second scan goes on with fresh ones
        self._like = torch.empty(0, dtype=dtype, device=ids.device)

    @property
    def batch_size(self) -> int:
        """B, where local steps take minibatches."""
        assert self._batching.size is not None
        return self._batching.size

    def inputs(self) -> tuple[Any, ...]:
        """Everything about these clients that changes from phase to phase."""
        sides = self.sides and (self.sides.first, self.sides.sizes)
        return self.ids, self._first, self.sizes, self.memory, self._key, sides

    def at(self, inputs: tuple[Any, ...]) -> Cohort:
        """A cohort on the same data with other `inputs`."""
        ids, first, sizes, memory, key, sides = inputs
        other = Cohort(
            self.problem,
            ids,
            self._data,
            first,
            sizes,
            memory,
            key,
            self._batching,
            self._like.dtype,
            self._longest,
            self.sides and Sides(self.sides.rows, *sides),
            self._per_seed,
            self._noise_key,
        )
        other.compile = self.compile
        return other

    # ---- where a batch comes from ------------------------------------------------------------------------

    def scan(
        self,
        step: Step,
        carry: Any,
        steps: int,
        inputs: Any = None,
        *,
        later: Tensor | None = None,
        numbered: bool = False,
    ) -> Any:
        """The local loop: `carry = step(carry, batch)` for `steps` fresh minibatches; tensors of carry [S or 1, k].

        With inputs, tensors [S, steps k], it is `carry, output = step(carry, batch, part)`, where step t gets the t-th
        part [S, k] of each, and the outputs [S, k'] of all steps are returned beside carry as [S, steps k'].

        Args:
            later: how many steps each client has done before [S, 1], where clients differ in that; the minibatches are then
                those of its own steps, whoever is computed with it.
            numbered: whether batches say which of a client's samples they hold (`Batch.places`).
        """
        carry = tree_map(lambda v: self.each(v).contiguous(), carry)  # one layout, so that steps compile once
        inputs = tree_map(lambda v: v.unflatten(-1, (steps, -1)), inputs)
        size, sampling = self._batching
        if self.rehearsing and inputs is None:
            steps = min(steps, _REHEARSED)
        if size is None:
            assert inputs is None and self.sides is None
            batch = next(self._pieces(self._longest, numbered))
            for _ in range(steps):
                carry = step(carry, batch)
            return carry
        run, block = local_steps, 1
        draw: Callable[..., Any] = minibatches if self.sides is not None else rows_of_steps
        if self.compile:
            device = self.ids.device.type
            run, block = self._compiled_steps(), self._unrolled(steps)
            if device != "cuda":  # Triton takes a 64-bit constant for a 32-bit one
                draw = compiled(draw, device)
        ids, first, sizes, key = self._distinct()
        most = max(1, _INDICES_AT_ONCE // (ids.numel() * size * block)) * block
        times = max(1, -(-steps // most))
        at_once = max(1, -(-steps // (times * block))) * block  # about equally many each time
        if later is not None:
            assert self.sides is None
            self._drawn, later = 0, later.squeeze(-1).long()
            later = later if self._per_seed == 1 else later[:: self._per_seed]
        begin, end = self._drawn, self._drawn + steps
        outputs: list[Any] = []
        for start in range(begin, end, at_once):
            # a tensor, not a range, and always as long: one compiled version draws for all of them
            todo = torch.arange(start, start + at_once, device=ids.device)
            if self.sides is not None:
                rows, places, w = self._pairs(draw, todo, size, sampling)
                rows, w = rows + first.unsqueeze(-1), w.to(self._like)
            else:
                how = self._batching, later, first, self._like.dtype, numbered
                rows, w, places = draw(key, todo, ids, sizes, *how)
            # a compiled step would look a number up again for each replica that shares it
            numbers = self._numbers(rows) if self.compile and not rows.is_cuda else {}
            for t in range(0, min(at_once, end - start), block):
                of, now = slice(t, t + block), slice(start - begin + t, start - begin + t + block)
                some = tree_map(lambda v, now=now: v[..., now, :], inputs)
                at = None if places is None else places[of]
                known = {k: v[of] for k, v in numbers.items()}
                carry, made = run(step, self._gathered, carry, rows[of], w, at, some, known)
                outputs += made
        self._drawn = end
        return carry if inputs is None else (carry, tree_map(lambda *v: torch.cat(v, dim=-1), *outputs))

    def _pairs(self, draw: Any, todo: Tensor, size: int, sampling: str) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [T, ..., S, 2B] of both sides, the same samples numbered within their side, and weights [..., S, 2B].

        Each side has its own key. A client with fewer than B samples of a side takes some of them more than once, so that
        it always has B scores to share; a client with none has weights 0 there.
        """
        assert self.sides is not None
        ids, _, _, key = self._distinct()
        rows, first, sizes = self.sides
        if self._per_seed > 1:
            first, sizes = first[:, :: self._per_seed], sizes[:, :: self._per_seed]
        keys = torch.stack([subkey(key, k) for k in (0, 1)]).view(2, *key.shape[:1], 1, 1)
        places, w = draw(
            keys, todo, ids.expand_as(sizes), sizes, size, sampling, fill=True
        )  # [T, 2, ..., S, B]
        at = (first.unsqueeze(-1) + places).clamp(max=len(rows) - 1)
        own = torch.where(
            sizes.unsqueeze(-1) > 0, rows[at], 0
        )  # a client without the side has any row, which weighs 0
        return (
            own.movedim(1, -2).flatten(-2),
            places.movedim(1, -2).flatten(-2),
            w.movedim(0, -2).flatten(-2),
        )

    def _compiled_steps(self) -> Callable[..., Any]:
        self._data = {
            k: v.view_as(v) for k, v in self._data.items()
        }  # those outside may be the user's, and stay unmarked
        for v in self._data.values():  # not compiled anew for more samples or fewer
            torch._dynamo.maybe_mark_dynamic(v, 0)
        return compiled(local_steps, self.ids.device.type)

    def _unrolled(self, steps: int) -> int:
        """How many steps are compiled as one: calling compiled code costs as much as several steps of a small model."""
        small = self._like.device.type == "cpu" and self.problem.n_x + self.problem.n_y <= _SMALL_MODEL
        samples = self._distinct()[0].numel() * self.batch_size * (1 if self.sides is None else 2)
        fits = (k for k in _UNROLLED if steps % k == 0 and k * samples * self._per_sample <= _AT_HAND)
        return next(fits, 1) if small else 1

    def batch(self, size: int) -> Batch:
        """One minibatch of its own size, drawn without replacement."""
        size = min(size, self._longest)
        t, self._drawn = self._drawn, self._drawn + 1
        ids, first, sizes, key = self._distinct()
        now = torch.arange(t, t + 1, device=ids.device)
        rows, w = minibatches(key, now, ids, sizes, size, "without_replacement")
        return self._gathered(rows[0] + first.unsqueeze(-1), w.to(self._like))

    def everything(self) -> Iterator[Batch]:
        """All local samples in pieces; each sample weighs 1/n_i over the pieces together."""
        return self._pieces(self._piece)

    @property
    def _piece(self) -> int:
        """How many samples of a client are gathered at once when going over all."""
        return max(1, _NUMBERS_AT_ONCE // (self._per_sample * self.ids.numel()))

    @property
    def _per_sample(self) -> int:
        """How many numbers a sample is."""
        return sum(v[0].numel() for v in self._data.values())

    def _pieces(self, length: int, numbered: bool = False) -> Iterator[Batch]:
        return (self._gathered(rows, w, own if numbered else None) for rows, w, own in self._rows(length))

    def _rows(self, length: int, filled: bool = False) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, weights and numbers within a client of all samples, so many of each client at a time; if filled, always."""
        _, first, sizes, _ = self._distinct()
        n = sizes.unsqueeze(-1)
        for start in range(0, self._longest, length):
            end = start + length if filled else min(start + length, self._longest)
            rows = torch.arange(start, end, device=n.device)
            w = (rows < n) / n.to(self._like)
            own = torch.minimum(rows, n - 1)
            yield own + first.unsqueeze(-1), w, own

    def _distinct(self) -> list[Tensor]:
        """ids, first, sizes and key, of one replica of each seed."""
        inputs = [self.ids, self._first, self.sizes, self._key]
        return inputs if self._per_seed == 1 else [v[:: self._per_seed] for v in inputs]

    def _numbers(self, rows: Tensor) -> Data:
        """The fields of which a sample has one number, such as labels, of these rows [T, ..., S, B]."""
        flat = rows.reshape(-1)
        return {k: v.index_select(0, flat).view(rows.shape) for k, v in self._data.items() if v.ndim == 1}

    def _gathered(
        self, rows: Tensor, w: Tensor, places: Tensor | None = None, known: Data | None = None
    ) -> Batch:
        """The batch of these rows [..., S, B]. What replicas share is a view: fields [R/per_seed, per_seed, S, B, ...].

        Fields that are `known` are not looked up.
        """
        flat, known = rows.reshape(-1), known or {}
        taken = {k: known[k] if k in known else v.index_select(0, flat) for k, v in self._data.items()}
        data = {
            k: (v.to(self._like.dtype) if v.is_floating_point() else v).view(
                *rows.shape, *self._data[k].shape[1:]
            )
            for k, v in taken.items()
        }
        if self._per_seed == 1:
            return Batch(data, w, places)

        def shared(v: Tensor) -> Tensor:
            return v.unsqueeze(1).expand(-1, self._per_seed, *v.shape[1:])

        return Batch(
            {k: shared(v) for k, v in data.items()}, shared(w), None if places is None else shared(places)
        )

    # ---- mathematics -------------------------------------------------------------------------------------

    def apply(self, function: Callable[..., Any], z: Tensor, batch: Batch, *more: Tensor) -> Any:
        """function(z, batch, *more) of each client, for z and more [S, k] or [1, k]: tensors [S, k]."""
        values = [self.each(v) for v in (z, *more)]
        if self._per_seed > 1:  # as the batch is shared
            values = [v.unflatten(0, (-1, self._per_seed)) for v in values]
        out = function(values[0], batch, *values[1:])
        if self._per_seed == 1:
            return out
        return tree_map(lambda v: v.flatten(0, 1), out)

    def field(self, z: Tensor, batch: Batch) -> Tensor:
        """Saddle field (grad_x f_i, -grad_y f_i) of each client on its minibatch: z [S, d] or [1, d] -> [S, d]."""
        F: Tensor = self.apply(self.problem.field, z, batch)
        return F

    def each_field(self, z: Tensor, batch: Batch) -> Tensor:
        """Saddle field of each sample of a minibatch: z [S, d] -> [S, B, d]."""

        def function(z: Tensor, batch: Batch) -> Tensor:
            lead = batch.w.shape  # every sample as if it were a client of its own
            alone = {k: v.reshape(-1, 1, *v.shape[len(lead) :]) for k, v in batch.data.items()}
            points = z.unsqueeze(-2).expand(*lead, z.shape[-1]).reshape(-1, z.shape[-1])
            F = self.problem.field(points, Batch(alone, torch.ones_like(batch.w).reshape(-1, 1)))
            return F.view(*lead, -1)

        F: Tensor = self.apply(function, z, batch)
        return F

    def in_double(self) -> Cohort:
        """This cohort, computing in double precision."""
        if self._like.dtype == torch.float64:
            return self
        out = copy.copy(self)
        out._like, out.compile = self._like.double(), False
        out.problem = self.problem.to(self._like.device, torch.float64)
        return out

    def affine_field(self, d: int) -> tuple[Tensor, Tensor]:
        """H [S, d, d] and c [S, d] of a full local field that is affine: F(z) = H z + c."""
        c = self.full_field(self.each(self._like.new_zeros(1, d)))
        unit = torch.eye(d, dtype=c.dtype, device=c.device)
        columns = [self.full_field(self.each(unit[j : j + 1])) - c for j in range(d)]
        return torch.stack(columns, dim=-1), c

    def epoch(self) -> tuple[Tensor, int]:
        """As many steps as a client has minibatches in its samples [S, 1], and the largest of these numbers."""
        if self._batching.size is None:  # a step takes all of them
            return torch.ones_like(self.sizes).unsqueeze(-1), 1
        B = self.batch_size
        return (-(-self.sizes // B)).unsqueeze(-1), -(-self._longest // B)

    def full_field(self, z: Tensor) -> Tensor:
        """Saddle field over all local samples: [S, d]."""
        if not self.compile or z.is_cuda:
            return self._by_size(z, Cohort.field)
        total, whole = torch.zeros_like(z), self._shared_by_all()

        def step(total: Tensor, batch: Batch) -> Tensor:
            return total + whole.field(z, batch)

        run = whole._compiled_steps()
        # pieces of few lengths, filled up with rows that weigh 0: each length is compiled
        length = min(self._piece, 1 << (self._longest - 1).bit_length())
        for rows, w, _ in whole._rows(length, filled=True):
            total, _ = run(step, whole._gathered, total, rows.unsqueeze(0), w, None, None)
        return total

    def _shared_by_all(self) -> Cohort:
        """This cohort for going over all samples: replicas of any seeds share them if they have the same clients."""
        if self.ids.ndim == 1 or self.ids.is_cuda or (self.ids != self.ids[0]).any():
            return self
        whole = copy.copy(self)
        whole._per_seed = len(self.ids)
        return whole

    def full_mean(self, function: Callable[[Data], Tensor]) -> Tensor:
        """Mean over all local samples of a per-sample function, data -> [S, B]: [S, 1]."""
        parts = [(function(b.data) * b.w).sum(-1, keepdim=True) for b in self.everything()]
        mean = torch.stack(parts).sum(0)
        return mean if self._per_seed == 1 else mean.flatten(0, 1)

    def full_loss(self, z: Tensor) -> Tensor:
        """Local objective f_i(z) over all local samples: [S, 1]."""
        return self._by_size(z, lambda part, z, batch: part.apply(part._loss, z, batch))

    def _by_size(self, z: Tensor, function: Callable[[Cohort, Tensor, Batch], Tensor]) -> Tensor:
        """The sum of function(part, z, batch) over all local samples, [S, k], some clients of about one size at a time.

        A batch has as many rows for every client, so that beside a large client small ones are mostly padding.
        """

        def over(part: Cohort, z: Tensor) -> Tensor:
            pieces = (function(part, z, batch) for batch in part.everything())
            return functools.reduce(torch.add, pieces)  # one after the other: a field may be large

        whole = self._shared_by_all()
        parts = whole._alike_in_size()
        if len(parts) == 1:
            return over(whole, z)
        z = whole.each(z)
        sums = torch.cat([over(part, z[..., at, :]) for at, part in parts], dim=-2)
        order = torch.cat([at for at, _ in parts])
        return sums[..., order.argsort(), :]

    def _alike_in_size(self) -> list[tuple[Tensor, Cohort]]:
        """Clients by size, none more than twice as large as another of its part: their places [S'], and a cohort of them.

        One part where the sizes are not known without asking the device, or replicas have different clients.
        """
        sizes = self._distinct()[2]
        if sizes.is_cuda or len(sizes.reshape(-1, sizes.shape[-1])) > 1:
            return [(torch.arange(sizes.shape[-1]), self)]
        of_each = sizes.flatten().tolist()
        parts: list[list[int]] = []
        for i in sorted(range(len(of_each)), key=lambda i: -of_each[i]):
            if not parts or 2 * of_each[i] < of_each[parts[-1][0]]:
                parts.append([])
            parts[-1].append(i)
        if len(parts) == 1:
            return [(torch.arange(len(of_each)), self)]
        return [(at := torch.tensor(sorted(part)), self._of(at)) for part in parts]

    def _of(self, at: Tensor) -> Cohort:
        """Some of these clients, for going over all of their samples."""
        some = copy.copy(self)
        some.ids, some._first, some.sizes = (v[..., at] for v in (self.ids, self._first, self.sizes))
        some._longest = int(some.sizes.max())
        return some

    def _loss(self, z: Tensor, batch: Batch) -> Tensor:
        return (self.problem.losses(z, batch.data) * batch.w).sum(-1, keepdim=True)

    def minibatch_loss(self, z: Tensor) -> Tensor:
        """Local objective on one fresh minibatch (on all samples where steps take all): [S, 1]."""
        if self._batching.size is None:
            return self.full_loss(self.each(z))
        loss: Tensor = self.apply(self._loss, z, self.batch(self._batching.size))
        return loss

    def normal(self, k: int) -> Tensor:
        """Standard normal numbers, a function of (seed or site's secret, round, phase, client, draws before): [S, k]."""
        self._normals += 1
        key = self._key if self._noise_key is None else self._noise_key()
        return normal(key, self.ids, k, self._normals - 1).to(self._like)

    def prox(self, z: Tensor, lr: float | Tensor) -> Tensor:
        """The problem's proximal step and projection, after a gradient step of size lr."""
        return self.problem.prox(z, lr)

    def each(self, value: Tensor) -> Tensor:
        """A server vector [1, k] given to every client: [S, k]."""
        return value.expand(*self.ids.shape, value.shape[-1])

    def pad(self, x: Tensor) -> Tensor:
        """A vector of the primal variables [..., n_x], with zeros for the dual ones: [..., d]."""
        return torch.nn.functional.pad(x, (0, self.problem.n_y))

    def number(self, value: float | Tensor) -> float | Tensor:
        """A number that changes from stage to stage: for compiled steps a tensor [1, 1], so that one version serves all."""
        return self._like.new_full((1, 1), value) if self.compile and isinstance(value, float) else value

    def per_variable(self, x: float | Tensor, y: float | Tensor) -> float | Tensor:
        """A coefficient that differs between x and y, as a vector [d]; a plain number when it does not."""
        if self.problem.n_y == 0 or (isinstance(x, float) and isinstance(y, float) and x == y):
            return x
        return self.vector(x, y)

    def vector(self, x: float | Tensor, y: float | Tensor) -> Tensor:
        """The vector [d] with x at the primal and y at the dual entries; replicas' numbers [R, 1, 1] give [R, 1, d]."""
        on_x = torch.arange(self.problem.n_x + self.problem.n_y, device=self._like.device) < self.problem.n_x
        x, y = (v if isinstance(v, Tensor) else self._like.new_full((), v) for v in (x, y))
        return torch.where(on_x, x, y)


def rows_of_steps(
    key: Tensor,
    steps: Tensor,
    ids: Tensor,
    sizes: Tensor,
    batching: Batching,
    later: Tensor | None,
    first: Tensor,
    dtype: torch.dtype,
    numbered: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Minibatches as rows of the data [T, ..., S, B] and weights; if numbered, also as rows of each client's own data."""
    assert batching.size is not None
    own, w = minibatches(key, steps, ids, sizes, batching.size, batching.sampling, later=later)
    return own + first.unsqueeze(-1), w.to(dtype), own if numbered else None


def local_steps(
    step: Step,
    gathered: Callable[..., Batch],
    carry: Any,
    rows: Tensor,
    w: Tensor,
    places: Tensor | None,
    inputs: Any,
    known: Data | None = None,
) -> tuple[Any, list[Any]]:
    """One local step for each of rows [T, ..., S, B]: the new carry, and each step's output where there are inputs."""
    outputs: list[Any] = []
    for t in range(len(rows)):
        now = {k: v[t] for k, v in (known or {}).items()}
        batch = gathered(rows[t], w, None if places is None else places[t], now)
        if inputs is None:
            carry = step(carry, batch)
        else:
            carry, output = step(carry, batch, tree_map(lambda v, t=t: v[..., t, :], inputs))
            outputs.append(output)
    return carry, outputs
