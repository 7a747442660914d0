"""train: run an algorithm on a problem over a federation, round by round.

    for record in train(problem, algorithm, federation, rounds=100): ...      # as an iterator, or
    model = train(problem, algorithm, federation, rounds=100).model           # ask for what you want

Nothing is computed before the first record or result is asked for; asking for a result runs the rounds that are left.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedsaddle import aggregation as rules
from fedsaddle import client_table, scores
from fedsaddle.algorithms.base import Algorithm
from fedsaddle.checkpoint import Checkpoint, constants
from fedsaddle.clients import Clients, Task
from fedsaddle.cohort import Batching
from fedsaddle.engines import Engine
from fedsaddle.engines.execution import repeatable
from fedsaddle.engines.machine import Machine, dtype_named
from fedsaddle.errors import Diverged, FedsaddleError, NobodyAnswered, first_line, require, warn
from fedsaddle.federation import Federation
from fedsaddle.folder import TANGENT, Folder, Stopped, differing, write_whole
from fedsaddle.measures import LOWERED, in_words
from fedsaddle.messages import BYTES_PER_NUMBER
from fedsaddle.metrics import Evaluation, Split, auc_interval
from fedsaddle.participation import Full, Participation
from fedsaddle.problem import ModelProblem, Problem, tree_map
from fedsaddle.progress import RoundsBar
from fedsaddle.remarks import STRAYS, grown
from fedsaddle.sampling import SAMPLINGS
from fedsaddle.summary import LISTS, MAX_LISTED, result, run_config, versions
from fedsaddle.toml import in_line, quoted
from fedsaddle.trackers import Track, Tracking, named
from fedsaddle.wire import tensors_of

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

    from fedsaddle.export import RawModel

Record = dict[str, Any]
_MAX_DUAL = 100  # dual variables in a record
_OF_Y = (
    "lr_dual",
    "momentum_dual",
)  # hyper-parameters that say something of y alone, where they are not None


def train(
    problem: Problem,
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    participation: Participation | None = None,
    batch_size: int | None = 32,
    sampling: str = "without_replacement",
    engine: str | Engine = "stacked",
    seed: int = 0,
    eval_every: int | None = None,
    device: str = "cpu",
    dtype: str | torch.dtype = "float32",
    precision: str = "full",
    compile: bool = False,
    chunk: int | None = None,
    offload: bool = False,
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    aggregation: str = "mean",
    checkpoint_every: int | None = None,
    guard: int = 0,
    resume: bool = False,
    allow: bool = False,
    track: Track = None,
) -> Run:
    """Train; returns a Run to iterate over or to ask for its model, history and plot.

    Args:
        problem: what is learned: AUC, ERM, QuadraticSaddle, Custom.
        algorithm: how: CODASCA, CODAPlus, ...
        federation: over whose data.
        rounds: communication rounds.
        participation: who takes part; everybody by default.
        batch_size: minibatch of each local step; None takes all local samples.
        sampling: minibatches "without_replacement" (distinct samples) or "with_replacement".
        engine: "stacked" (fast), "serial" (one client at a time), or "torchrun" (stacked, shared by the processes that
            torchrun starts; one of them evaluates and writes files); or the sites of a deployment (`engines.flower`).
        seed: of minibatches and participation; the model brings its own initial parameters.
        eval_every: rounds between evaluations; by default about fifty in a run.
        device, dtype: where it is computed, and the precision of all state (float32 or float64).
        precision: of matrix products: "full", "tf32" (NVIDIA) or "bf16"; state and losses stay in dtype.
        compile: compile the local step (half a minute once, then faster on small models and on GPUs).
        chunk: clients computed at once, where a whole cohort does not fit into memory; changes nothing else.
        offload: keep the data in CPU memory, where a GPU cannot hold it; participants' samples are sent over in time.
        out: a folder for history.jsonl, result.json and model.safetensors; must not hold a run already.
        progress: a progress bar on stderr; by default when that is a terminal.
        aggregation: "mean", or what a few wrong clients cannot move far: "median", "trimmed_mean(0.1)", "norm_clipping(1)".
        checkpoint_every: rounds between checkpoints in `out`; by default as evaluations; 0: none.
        guard: so many times a run that diverges goes back, with half the step sizes, to the last evaluation at which
            its objective was no higher than at the start.
        resume: go on with the run that `out` holds, from its last checkpoint, as if it had never stopped.
        allow: resume even if the run is described differently now, for instance with more rounds.
        track: who is told of evaluated rounds: "tensorboard", "mlflow", "wandb", a `Tracker` of your own, or a list of them
            (`fedsaddle.trackers`). They write into `out`, and change nothing else.

    Example:
        >>> import fedsaddle as fs
        >>> clients = fs.quadratic_federation(clients=4, dim_x=5, dim_y=3)
        >>> codasca = fs.CODASCA(lr=0.05, local_steps=10)
        >>> run = fs.train(fs.QuadraticSaddle(5, 3), codasca, clients, rounds=200, dtype="float64")
        >>> run.metrics["distance"] < 1e-6
        True
    """
    return Run(
        problem, algorithm, federation, rounds, participation or Full(), Batching(batch_size, sampling), seed, eval_every,
        Machine(engine, torch.device(device), dtype_named(dtype), precision, compile, chunk, offload, aggregation),
        Path(out) if out is not None else None, progress, checkpoint_every, guard, resume, allow, track,
    )  # fmt: skip


class Found(NamedTuple):
    """What was seen of a run after a round."""

    finite: bool  # whether its iterate still is
    evaluation: Evaluation | None  # in rounds that are evaluated


class Run:
    """A training run: an iterator over its records, and its result."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        federation: Federation,
        rounds: int,
        participation: Participation,
        batching: Batching,
        seed: int,
        eval_every: int | None,
        machine: Machine,
        out: Path | None,
        progress: bool | None,
        checkpoint_every: int | None = None,
        guard: int = 0,
        resume: bool = False,
        allow: bool = False,
        track: Track = None,
    ) -> None:
        kinds = (
            ("problem", problem, Problem),
            ("algorithm", algorithm, Algorithm),
            ("federation", federation, Federation),
            ("participation", participation, Participation),
        )
        for name, value, kind in kinds:
            require(name, isinstance(value, kind), _KINDS[name], _got(value))
        whole = hasattr(rounds, "__index__")
        shown = (
            quoted(int(rounds)) if whole else repr(rounds)
        )  # Python writes no number of thousands of digits
        require("rounds", whole and rounds >= 1, "a whole number >= 1", shown)
        require(
            "batch_size", batching.size is None or batching.size >= 1, ">= 1 (or None for all)", batching.size
        )
        require(
            "sampling", batching.sampling in SAMPLINGS, f"one of {', '.join(SAMPLINGS)}", batching.sampling
        )
        machine.check()
        require("eval_every", eval_every is None or eval_every >= 1, ">= 1", eval_every)
        require("seed", seed >= 0, ">= 0", seed)
        if not federation.n_clients:
            raise FedsaddleError("train: the federation has no clients; give it one at least")
        if not federation.sizes.all():
            empty = federation.names[int((federation.sizes == 0).nonzero()[0])]
            raise FedsaddleError(
                f"train: client {empty!r} has no samples; leave it out, or partition the data differently"
            )
        problem.check(federation)
        algorithm.check(problem)
        by_reply = algorithm.counting == "samples" and algorithm.weighs_replies
        if machine.aggregation in rules.WEIGHTLESS and by_reply:
            chosen = getattr(algorithm, "weights", None) == "samples"  # others count so by themselves
            what = "weights = 'samples' has" if chosen else "the samples that clients count by have"
            warn(
                f"{type(algorithm).__name__}: the {machine.aggregation} counts every reply once, so {what} "
                "no effect; trimmed_mean weighs"
            )
            if chosen:
                algorithm = replace(algorithm, **{"weights": "clients"})
        of_y = {k: v for k in _OF_Y if (v := getattr(algorithm, k, None)) is not None}
        if of_y and problem.n_y == 0:
            have, it = ("has", "it") if len(of_y) == 1 else ("have", "them")
            warn(
                f"{type(algorithm).__name__}: {type(problem).__name__} has no dual variables y, so {in_line(of_y)} {have} "
                f"no effect; leave {it} out"
            )
        participation.validate(federation.n_clients)
        self.algorithm, self.federation, self.rounds, self.seed = algorithm, federation, rounds, seed
        self.eval_every = eval_every or max(1, rounds // 50)
        self.machine = machine
        rule = rules.named(machine.aggregation)
        self.clients = machine.clients(
            Task(problem, federation, participation, batching, (seed,), machine.dtype, algorithm, rule)
        )
        self._posed = self.clients.problem  # later with its constants agreed on
        shares = self.clients.shares()
        parts = {"train": federation, "valid": federation.valid, "test": federation.test}
        self._splits = {
            k: Split(v, machine.device, machine.dtype, machine.offload, shares if v is federation else None)
            for k, v in parts.items()
            if v is not None and self.clients.writes and not self.clients.remote
        }
        self.config = run_config(
            problem, algorithm, participation, federation, rounds, batching, machine, seed, self.eval_every
        )
        self._records: list[Record] = []
        self.state: Any = None
        self._by_client: dict[str, list[float]] = {}  # last evaluation, client by client; NaN where undefined
        if not self.clients.writes:
            out, progress = None, False
        self.out, self._progress = out, progress
        require(
            "checkpoint_every",
            checkpoint_every is None or checkpoint_every >= 0,
            ">= 0 or None",
            checkpoint_every,
        )
        require("guard", guard >= 0, ">= 0", guard)
        self._resume, self._allow, self._guard = resume, allow, guard
        self._halved = 0  # how often a guard has halved the step sizes
        if self.clients.remote:
            require("guard", guard == 0, "0 in a deployment, whose sites keep their step sizes", guard)
            every = checkpoint_every in (None, 1)
            require(
                "checkpoint_every", every, "1 in a deployment, whose sites keep two rounds", checkpoint_every
            )
        every_round = (
            1 if self.clients.remote else self.eval_every
        )  # what sites remember moves on with each round
        self._every = every_round if checkpoint_every is None else checkpoint_every
        self._folder: Folder | None = None
        if out is not None:
            self._folder = Folder(out, resume)
        elif resume and self.clients.writes:
            raise FedsaddleError("train: resume needs the folder of the run, out")
        self.tracking = Tracking(
            named(track) if self.clients.writes else {}, out, resume, self.config, versions()
        )
        self._checkpoints = False  # whether any process writes them, which all know once the run starts
        self._saved: int | None = None  # the round of the last checkpoint in the folder
        self._fallback: tuple[int, bytes] | None = (
            None  # to which a guard may go back: its round, a checkpoint
        )
        self._stopping = False
        # which part of the data after which round, its scores, and who is positive
        self._scored: tuple[tuple[str, int], Tensor, Tensor] | None = None
        self._error: BaseException | None = None
        self._rounds = self._guarded()

    def __repr__(self) -> str:
        done = f"{self._records[-1]['round'] if self._records else 0} of {self.rounds} rounds done"
        return f"Run({type(self.algorithm).__name__} on {type(self.problem).__name__}, {done})"

    # ---- as an iterator ----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        """Records of the rounds that are left; those with metrics are evaluated."""
        return self._rounds

    def finish(self, hear: Callable[[Record], Any] = lambda record: None) -> Run:
        """Run the rounds that are left.

        Args:
            hear: is called with each round's record.
        """
        if self._error is not None:
            raise self._error
        with self._interruptible():
            for record in self._rounds:
                hear(record)
        return self

    def hand_over(self) -> None:
        """Let someone else compute the rounds and report them by `take`."""
        self._rounds = iter(())
        if self._folder is not None:
            self._folder.__enter__()

    def take(self, r: int, state: Any, clients: Clients, replica: int, started: float, found: Found) -> None:
        """Where replica i of `clients` stands after round r, as computed elsewhere; `state` in rounds that are evaluated."""
        if self._error is not None:
            return
        if state is not None:
            self.state = state
        self.clients.take_accounts(clients, replica)
        try:
            self._record(r, started, found)
            if r == self.rounds:
                self._save()
        except Diverged as error:
            self._note_down(error)
            self.fail(error)
        if self._folder is not None and r == self.rounds:
            self._folder.__exit__()

    def look(self, r: int, z: Tensor, posed: Problem | None = None) -> list[Found]:
        """What there is to see at the iterates z [R, 1, d] of R runs on this run's data after r rounds.

        Args:
            posed: the problem of all R, where it is not this run's.
        """
        # asking a GPU for a number waits for it, so there divergence is noticed when the run is evaluated
        if z.is_cuda and not self.evaluated(r):
            return [Found(True, None)] * len(z)
        finite: list[bool] = torch.isfinite(z).all(-1).all(-1).tolist()
        if not self.evaluated(r) or not any(finite):
            return [Found(ok, None) for ok in finite]
        kept = torch.tensor(finite, device=z.device)
        problem, sound = (posed or self.clients.problem).of_replicas(kept), z[kept]
        if not self.algorithm.shared_dual:  # the server's y has no meaning
            x, y = sound.split((problem.n_x, problem.n_y), dim=-1)
            sound = torch.cat([x, torch.full_like(y, torch.nan)], dim=-1)
        with repeatable(z.device):
            made = iter(self.clients.evaluate(problem, sound, self._splits, self.federation))
        return [Found(ok, next(made) if ok else None) for ok in finite]

    def fail(self, error: BaseException) -> None:
        """The run ends with this error, which asking for a result raises again."""
        self._error = self._error or error
        if self._folder is not None:
            self._folder.__exit__()  # where someone else computes the rounds; else it is left already
        self.tracking.fail(error)

    def evaluated(self, r: int) -> bool:
        """Whether metrics are computed after r rounds."""
        return r % self.eval_every == 0 or r == self.rounds

    def _guarded(self) -> Iterator[Record]:
        try:
            with self._folder or nullcontext():
                try:
                    yield from self._go()
                except (Exception, KeyboardInterrupt) as error:
                    self._note_down(error)
                    raise
        except GeneratorExit as error:  # nobody asks for the rounds that are left
            self.tracking.fail(error)
            raise
        except (Exception, KeyboardInterrupt) as error:
            self.fail(error)  # asking for a result later says the same
            if isinstance(error, Exception):
                self.clients.failed(error)
            raise

    def _note_down(self, error: BaseException) -> None:
        """Write into the folder, and say with the error, how a run that ends early can go on."""
        if self._folder is None or not self._records:
            return
        message = "interrupted" if isinstance(error, KeyboardInterrupt) else first_line(error)
        lr = _steps(self.algorithm, 0).get("lr")
        if lr is not None:  # a guard may have halved it more than to a tenth
            lr = min(_steps(self.algorithm, -self._halved)["lr"] / 10, lr / 2)
        probed = not self.problem.pairwise
        why = Stopped(message, self._saved, isinstance(error, Diverged), lr, self.clients.remote, probed)
        self._folder.stopped(why)
        if remedy := why.remedy(self._folder.path):
            error.add_note(remedy)

    def _go(self) -> Iterator[Record]:
        clients = self.clients
        clients.rounds = self.rounds
        self._checkpoints = self._every > 0 and clients.alone(lambda: self._folder is not None)
        started = time.perf_counter()
        if self._resume:
            found = clients.alone(lambda: self._folder.latest() if self._folder is not None else b"")
            done = self._resumed(self._checked(found), found)
            started -= self._records[-1]["seconds"]
            for record in self._records:
                self.tracking.log(record)
        else:
            done = 0
            clients.problem = problem = self._posed.prepare(clients)
            self.state = self.algorithm.init(self._start(problem), problem)
            clients.remember(self.algorithm.memory(self._start(problem), problem))
        title, unchecked = type(self.algorithm).__name__, not self._resume  # pools may grow later
        with RoundsBar(self._progress, title, self.rounds) as bar:
            if not self._resume:
                yield self._record(0, started, bar=bar)
                self._checkpoint(0)
            while done < self.rounds:
                before = self.state
                clients.begin(done)
                try:
                    self.state = self.algorithm.round(before, clients)
                except NobodyAnswered:
                    clients.rollback()  # the round was tried and counted, and changes nothing
                if unchecked:
                    check_next(self.algorithm, before, self.state)
                    unchecked = self.state is before
                try:
                    record = self._record(done + 1, started, bar=bar)
                except Diverged as error:
                    done = self._step_back(self._blamed(error, before, done))
                    continue
                done += 1
                self._checkpoint(done)
                yield record
                if self._stopping and done < self.rounds:
                    raise KeyboardInterrupt
        clients.alone(self._save)

    def _start(self, problem: Problem) -> Tensor:
        return problem.init().to(self.clients.device, self.clients.dtype).unsqueeze(0)  # [1, d]

    # ---- checkpoints -------------------------------------------------------------------------------------

    def _checkpoint(self, r: int) -> None:
        """Write down what a resumed run needs."""
        last = r == self.rounds or self._stopping
        guarded = self._guard > 0 and self.evaluated(r) and self._sound()
        if (self._checkpoints and (r % self._every == 0 or last)) or guarded:
            clients = self.clients.snapshot()  # by all processes, where several compute the run
            accounts = self.clients.accounts() | {"halved": self._halved}
            data = Checkpoint(
                r, self.state, constants(self.problem, self._posed), clients, accounts, self.config,
                versions(),
            ).packed(self._posed)  # fmt: skip
            if guarded:
                self._fallback = r, data
            if self._folder is not None and self._checkpoints:
                back = self._fallback[0] if self._fallback is not None and self._guard > 0 else None
                self._folder.save(r, data, back)
                self._saved = r

    def _sound(self) -> bool:
        """Whether, where it was last evaluated, what training lowers was no higher than at the start."""
        last = next(r for r in reversed(self._records) if self.evaluated(r["round"]))
        return not grown(self.began | {"metrics": last})

    def _checked(self, data: bytes) -> Checkpoint:
        """A checkpoint, if it is of a run that is described as this one and has as many rounds."""
        saved = Checkpoint.unpacked(data, self.algorithm, self._posed)
        if (changed := differing(saved.config, self.config)) and not self._allow:
            raise FedsaddleError(
                f"resume: the run is described differently than when it was begun: {', '.join(changed)}; --allow goes on "
                "nevertheless"
            )
        if saved.round > self.rounds:
            raise FedsaddleError(
                f"resume: {saved.round} rounds are done already, rounds must be more, got {self.rounds}"
            )
        return saved

    def _resumed(self, saved: Checkpoint, data: bytes) -> int:
        """Take up the run that the folder holds, where its last checkpoint stands: how many rounds are done."""
        if changed := differing(saved.versions, versions()):
            warn(f"resume: versions have changed: {', '.join(changed)}; results may differ")
        self._take_up(saved)
        self._saved, self._halved = saved.round, int(saved.accounts["halved"])
        self._guard = max(0, self._guard - self._halved)
        self.algorithm = replace(self.algorithm, **_steps(self.algorithm, self._halved))
        kept = self.clients.alone(
            lambda: self._folder.rewind(saved.round) if self._folder is not None else []
        )
        self._records = [_packed(r) for r in kept]
        if self._guard:
            own = (saved.round, data) if self._sound() else None
            self._fallback = self.clients.alone(
                lambda: self._folder.fallback(saved.round) if self._folder is not None else None
            )
            self._fallback = self._fallback or own  # an older fedsaddle kept none
        if saved.round == self.rounds:
            (found,) = self.look(saved.round, self.state.z.unsqueeze(0))
            self._by_client = found.evaluation.by_client if found.evaluation is not None else {}
        return saved.round

    def _gone_back(self, saved: Checkpoint) -> int:
        """Drop what came after a checkpoint of this run: how many rounds are done."""
        self._take_up(saved)
        del self._records[saved.round + 1 :]
        if self._folder is not None:
            self._folder.rewind(saved.round)
        if self._checkpoints:
            self._saved = saved.round
        return saved.round

    def _take_up(self, saved: Checkpoint) -> None:
        """Put clients and state where a checkpoint says, if it has the form that this run gives them."""
        try:
            self._put(saved)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise FedsaddleError(
                f"checkpoint: is none of this run ({type(error).__name__}: {first_line(error)})"
            ) from error

    def _put(self, saved: Checkpoint) -> None:
        """As `_take_up`; one of another form raises whatever it does."""
        clients = self.clients

        def here(tensor: Tensor) -> Tensor:
            return tensor.to(clients.device)

        clients.problem = problem = replace(self._posed, **dict(saved.constants))
        clients.remember(self.algorithm.memory(self._start(problem), problem))
        clients.recall(tree_map(here, saved.clients))
        clients.restore(saved.accounts)
        self.state = tree_map(here, saved.state)
        first = self.algorithm.init(self._start(problem), problem)
        if type(self.state) is not type(first):
            raise TypeError(f"the state is a {type(self.state).__name__}, not a {type(first).__name__}")
        found = dict(tensors_of(self.state))
        for path, tensor in tensors_of(first):
            if path in found and (found[path].shape, found[path].dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(
                    f"{path} is {found[path].dtype} {list(found[path].shape)}, not {list(tensor.shape)}"
                )

    def _blamed(self, error: Diverged, before: Any, r: int) -> Diverged:
        """The error, or one that names the phase and the client: the round is computed again under watch."""
        if self.machine.name == "torchrun":  # whose processes would name different clients
            return error
        self.clients.rollback()
        self.clients.begin(r)
        self.clients.watched = True
        try:
            self.algorithm.round(before, self.clients)
        except Diverged as found:
            return found
        except FedsaddleError:
            pass
        finally:
            self.clients.watched = False
        return error

    def _step_back(self, error: Diverged) -> int:
        """Halve the step sizes and go back to the last sound evaluation, where a guard is left: how many rounds are done."""
        halved = _steps(self.algorithm, 1)
        if self._guard == 0 or not halved or self._fallback is None:
            raise error
        _, data = self._fallback
        self._guard, self._halved = self._guard - 1, self._halved + 1
        self.algorithm = replace(self.algorithm, **halved)
        # of the first process, which alone has all clients' memory
        round = self._gone_back(self._checked(self.clients.alone(lambda: data)))
        text = ", ".join(f"{k} is {v:g} now" for k, v in halved.items())
        warn(f"{error}; guard: back to round {round}, {text}")
        return round

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C ends a run that is written down after its round; a second one at once."""
        alone = self.machine.name != "torchrun"  # several processes would stop after different rounds
        if self._folder is None or not alone or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def stop(*_: Any) -> None:
            self._stopping = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _record(
        self, r: int, started: float, found: Found | None = None, bar: RoundsBar | None = None
    ) -> Record:
        """Write down where the run stands after r rounds."""
        if found is None:
            (found,) = self.look(r, self.state.z.unsqueeze(0))
        odd = self._overflown(found.evaluation.values) if found.evaluation is not None else ""
        if not found.finite or odd:
            raise Diverged(
                f"{type(self.algorithm).__name__}: diverged in round {r}, the {odd or 'iterate'} is not finite; "
                f"lower the step size (lr is {getattr(self.algorithm, 'lr', None)})"
            )
        total = self.clients.traffic.total
        record: Record = {
            "round": r,
            "phases": total.phases,
            "bytes_down": int(total.down) * BYTES_PER_NUMBER,
            "bytes_up": total.up * BYTES_PER_NUMBER,
            "failures": self.clients.failures,
        }
        if r > 0:
            asked = self.clients.asked
            record["participants"] = len(asked)
            if len(asked) <= MAX_LISTED:
                record["clients"] = asked
        if self.clients.left_out:
            record["left_out"] = self.clients.left_out
        if found.evaluation is not None:
            record |= {
                k: v if math.isfinite(v) else None  # None: undefined
                for k, v in found.evaluation.values.items()
                if self.algorithm.shared_dual or not self.problem.n_y or k not in self.problem.of_dual
            }
            self._by_client = found.evaluation.by_client
            monitors = {
                k: v.item() for k, v in _monitors(self.state).items()
            }  # of the algorithm's own sequence
            record |= {k: v if math.isfinite(v) else None for k, v in monitors.items()}
            lam = getattr(self.state, "lam", None)  # what a robust method weighs clients by
            if lam is not None and lam.shape[-1] <= MAX_LISTED:
                record["weights"] = _short(lam)
            if 0 < self.problem.n_y <= _MAX_DUAL and self.algorithm.shared_dual:
                record["dual"] = _short(self.state.z[:, self.problem.n_x :])
        record["seconds"] = time.perf_counter() - started
        self._records.append(_packed(record))
        if self._folder is not None:
            self._folder.append(record)
        self.tracking.log(record)
        if bar is not None:
            bar.update(record)
        return record

    def _overflown(self, values: Mapping[str, float]) -> str:
        """A measure that was finite at the start, and is too large for a number at an iterate that still is one."""
        if not self._records or not (self.algorithm.shared_dual or not self.problem.n_y):
            return ""
        began = {k: v for k, v in values.items() if k in STRAYS and self._records[0].get(k) is not None}
        lost = [k for k, v in began.items() if math.isinf(v) or (k == "field_norm" and math.isnan(v))]
        return in_words(lost[0]) if lost else ""

    def _save(self) -> None:
        if self.out is not None:
            self._write(self.out)
        self.tracking.finish(self.summary)

    def _write(self, out: Path) -> None:
        """The files of a run that has ended."""
        if self.problem.has_module:
            from safetensors.torch import save_file

            weights = {
                k: v.detach().contiguous().clone()
                for k, v in self.problem.module(self.state.z).state_dict().items()
            }
            save_file(weights, str(out / "model.safetensors"))
            if self.federation.tangent is not None:
                self.federation.tangent.save(out / TANGENT)
        write_whole(out / "result.json", (json.dumps(self.summary(), indent=2) + "\n").encode())
        positive = getattr(self.problem, "positive", None)
        own = positive if isinstance(positive, int) else None
        client_table.write(out, self.federation, self._by_client, self.evaluated_on, own)
        if (found := self.scores("test")) is not None:
            assert self.federation.test is not None
            scores.write(out, self.federation.test, *found)

    def scores(self, part: Literal["test", "valid"]) -> tuple[Tensor, Tensor] | None:
        """The trained model's scores of test or validation samples, and which are positive; None without a ranking."""
        problem, split = self.problem, self._splits.get(part)
        positive = getattr(problem, "positive", None)
        if {"test": "auc", "valid": "valid_auc"}[part] not in self._records[-1] or split is None:
            return None
        if not isinstance(problem, ModelProblem) or not isinstance(
            positive, int
        ):  # a user's own may be neither
            return None
        at = part, self._records[-1]["round"]
        if self._scored is None or self._scored[0] != at:
            with repeatable(self.state.z.device):
                (found,) = problem.all_scores(self.state.z.unsqueeze(0), split)
            self._scored = at, found.cpu(), (split.data["y"] == positive).cpu()
        return self._scored[1:]

    # ---- the result --------------------------------------------------------------------------------------

    @property
    def guarded(self) -> bool:
        """Whether it goes back, with half the step sizes, when it diverges."""
        return self._guard > 0

    @property
    def resumes(self) -> bool:
        """Whether it goes on from a checkpoint."""
        return self._resume

    @property
    def problem(self) -> Problem:
        """The problem with its constants agreed on."""
        return self.clients.problem

    @property
    def z(self) -> Tensor:
        """The final iterate (x, y) as one flat vector [d]."""
        z: Tensor = self.finish().state.z
        return z.squeeze(0)

    @property
    def model(self) -> nn.Module:
        """The trained model, as the module that was brought; it takes features as the federation has them, scaled."""
        if not self.problem.has_module:
            self.problem.module(self.problem.init())  # refuses, before any round is run
        return self.problem.module(self.z)

    @property
    def raw_model(self) -> RawModel:
        """The trained model for features as they were before scaling (`fedsaddle.export`)."""
        from fedsaddle.export import RawModel

        of = self.federation
        fill = None if of.filling is None else of.filling.values
        return RawModel(self.model, of.scaling, of.tangent, of.feature_names, fill).requires_grad_(False)

    @property
    def records(self) -> list[Record]:
        """One record a round, the start included; those of evaluated rounds have metrics."""
        return [_unpacked(r) for r in self.finish()._records]

    @property
    def metrics(self) -> Record:
        """The last evaluation."""
        record = self.finish().records[-1]
        return {k: v for k, v in record.items() if k not in LISTS}

    @property
    def by_client(self) -> dict[str, list[float]]:
        """The last evaluation client by client, in the order of `federation.names`; NaN where a client has no value."""
        return self.finish()._by_client

    @property
    def history(self) -> pandas.DataFrame:
        """All evaluated rounds, one row each."""
        import pandas

        rows = [r for r in self.records if r["round"] % self.eval_every == 0 or r["round"] == self.rounds]
        return pandas.DataFrame(rows).drop(columns=list(LISTS), errors="ignore").set_index("round")

    def plot(self) -> plotly.graph_objects.Figure:
        """The course of the run as a Plotly figure."""
        from fedsaddle.report import curves

        return curves({type(self.algorithm).__name__: self.records})

    def summary(self) -> Record:
        """What result.json holds: config, final metrics, communication, versions."""
        return result(self, self._records, self._by_client)

    @property
    def began(self) -> Record:
        """What the objective was before training; None where it is not measured."""
        return {f"{k}_at_start": self._records[0].get(k) for k in (*LOWERED, "grad_phi", *STRAYS)}

    def auc_interval(self, part: Literal["test", "valid"]) -> list[float] | None:
        """Between what the AUC of test or validation data may lie, as far as the choice of samples goes: 95 %."""
        interval = self.clients.auc_intervals.get(part)
        if interval is None and (scored := self.scores(part)):
            interval = auc_interval(*scored)
        return [interval.low, interval.high] if interval else None

    @property
    def evaluated_on(self) -> str:
        """On which data of theirs clients are told apart: "test" or "train"."""
        test = self.federation.test
        if self.clients.evaluated_on is not None:
            return self.clients.evaluated_on
        return "test" if test is not None and test.n_clients == self.federation.n_clients else "train"


def _steps(algorithm: Algorithm, halved: int) -> dict[str, float]:
    """The step sizes of an algorithm, halved so often."""
    names = [f.name for f in fields(algorithm) if f.name in ("lr", "lr_dual")]
    return {k: v / 2**halved for k in names if isinstance(v := getattr(algorithm, k), int | float)}


def _monitors(state: Any) -> dict[str, Tensor]:
    """What an algorithm's State says of its convergence: a NamedTuple `monitors` of [1, 1], or None."""
    monitors = getattr(state, "monitors", None)
    return monitors._asdict() if monitors is not None else {}


def _short(vector: Tensor) -> list[float | None]:
    """A vector [1, k] for a record: four digits, None where a number is not finite."""
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in vector[0].tolist()]


def check_next(algorithm: Algorithm, before: Any, after: Any) -> None:
    """Refuse what a round returned if it is no State that could follow the one before."""
    where, kind = f"{type(algorithm).__name__}.round", type(before).__name__
    if type(after) is not type(before):
        got, remedy = type(after).__name__, ""
        if type(after) is tuple:
            remedy = "; clients.mean returns (mean, share), of which a State is made"
        raise FedsaddleError(f"{where}: must return the new {kind}, got {got}{remedy}")
    found = dict(tensors_of(after))
    for path, tensor in tensors_of(before):
        new = found.get(path, tensor)
        if (new.shape, new.dtype) != (tensor.shape, tensor.dtype):
            was, now = (f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in (tensor, new))
            raise FedsaddleError(f"{where}: {path} of the new {kind} must be {was} as before, got {now}")


def _got(value: Any) -> str:
    """What somebody gave, by its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}; write {value.__name__}(...)"
    return type(value).__name__


_KINDS = {
    "problem": "a Problem, such as fs.AUC(model)",
    "algorithm": "an Algorithm, such as fs.CODASCA(lr=0.1)",
    "federation": "a Federation, such as fs.Federation.from_frame(...)",
    "participation": "a Participation, such as fs.Uniform(3)",
}


def _packed(record: Record) -> Record:
    """With its participants as 4 bytes each: lists of a thousand numbers would be most of a long run's memory."""
    return record | {"clients": array("i", record["clients"])} if "clients" in record else record


def _unpacked(record: Record) -> Record:
    return record | {"clients": record["clients"].tolist()} if "clients" in record else record
