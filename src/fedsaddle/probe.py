"""`fedsaddle probe`: a problem's constants, the steps that theory asks for, and how far a config is from them."""

from __future__ import annotations

import dataclasses
import functools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, NamedTuple

from torch import Tensor

from fedsaddle.algorithms import Algorithm, FedSGDA
from fedsaddle.algorithms.fedsgda import ESTIMATORS
from fedsaddle.config import Config, Setup
from fedsaddle.errors import FedsaddleError, first_line
from fedsaddle.participation import Cyclic, Full, Independent, Uniform, calendar
from fedsaddle.problems import AUC
from fedsaddle.progress import spinner
from fedsaddle.schema import title
from fedsaddle.tables import aligned
from fedsaddle.theory import THEOREMS, Assumption, Constants, Setting, Steps, prescribe, probe
from fedsaddle.train import train

WIDTH = 80
SAMPLES = 1000  # of a client, evenly spaced
_LOOKED_AT = 20  # rounds, to see how many clients take part

CONSTANTS: dict[str, tuple[str, str]] = {  # bound, and what it is in words
    "L_1": (">=", "curvature in x: change of grad_x f with x"),
    "L_2": (">=", "curvature in y: change of grad_y f with y"),
    "L_12": (">=", "coupling: change of grad_x f with y"),
    "L_21": (">=", "coupling: change of grad_y f with x"),
    "L": (">=", "total: change of the gradient with (x, y)"),
    "mu": ("<=", "strong concavity: smallest curvature in y"),
    "mu_x": ("<=", "smallest curvature in x; if < 0, not convex"),
    "kappa": (">=", "condition number: L / mu"),
    "sigma": ("~", "noise: a sample's gradient around its client's"),
    "zeta": ("~", "heterogeneity: a client's gradient vs the mean"),
}
_DUAL = ("L_2", "L_12", "L_21", "mu", "kappa")  # without a dual variable there are none

Verdict = Literal["holds", "violated", "unclear"]


class Checked(NamedTuple):
    """An assumption of the theorem, held against the config."""

    assumption: Assumption
    verdict: Verdict
    why: str


class Row(NamedTuple):
    """A hyper-parameter in a round: what theory asks for, what the config has, and the latter against the former."""

    name: str
    round: int
    theory: float
    configured: float | None
    ratio: float | None
    words: str


@dataclass(frozen=True)
class Report:
    """What the command found.

    Args:
        title: the run in a line.
        measured: the constants by where they were measured.
        constants: the worst of them, which theory gets.
        points: of each place.
        clients: how many were probed.
        samples: at most so many of a client were; None: all.
        setting: the run's numbers.
        steps: what theory asks for; None where it has no answer, and `refusal` says why.
        checked: the theorem's assumptions.
        rows: configured against theory.
        lr: configured, in the first round.
        remarks: what else to know.
    """

    title: str
    measured: Mapping[str, Constants]
    constants: Constants
    points: int
    clients: int
    samples: int | None
    setting: Setting
    steps: Steps | None
    refusal: str
    checked: Sequence[Checked]
    rows: Sequence[Row]
    lr: float | None
    remarks: Sequence[str]

    @property
    def stable(self) -> float | None:
        """1/L, the largest local step that is usually stable."""
        return 1 / self.constants.L if self.constants.L > 0 else None

    def text(self) -> str:
        """For people, 80 columns wide."""
        blocks = [[self.title], self._practice(), self._constants(), self._theory()]
        blocks += [self._assumptions(), self._notes()]
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def json(self) -> dict[str, Any]:
        """The same for programs; a number that is infinite or unknown is None."""

        def of(name: str) -> dict[str, Any]:
            kind = {">=": "lower bound", "<=": "upper bound", "~": "measured at one point"}
            values = {place: _finite(getattr(c, name)) for place, c in self.measured.items()}
            bound, meaning = CONSTANTS[name]
            value = _finite(getattr(self.constants, name))
            return {"value": value, "estimate": kind[bound], "meaning": meaning, "at": values}

        theory = None
        if self.steps is not None:
            theory = {
                "theorem": self.steps.theorem,
                "exact": self.steps.exact,
                "values": {k: _finite(v) for k, v in self.steps.at().items()},
                "assumes": [c._asdict() for c in self.checked],
                "notes": list(self.steps.notes),
            }
        return {
            "run": self.title,
            "constants": {name: of(name) for name in self._names()},
            "probed": {
                "points": self.points,
                "clients": self.clients,
                "of_clients": self.setting.clients,
                "samples": self.samples,
            },
            "setting": dataclasses.asdict(self.setting),
            "theory": theory,
            "refusal": self.refusal or None,
            "configured": [
                row._asdict() | {k: _finite(getattr(row, k)) for k in ("theory", "configured", "ratio")}
                for row in self.rows
            ],
            "stable_lr": self.stable,
            "remarks": list(self.remarks),
        }

    # ---- the parts of the text -------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [k for k in CONSTANTS if k not in _DUAL or not math.isinf(self.constants.mu)]

    def _constants(self) -> list[str]:
        n, s = self.setting.clients, "s" * (self.points > 1)
        clients = f"{n} clients" if self.clients == n else f"{self.clients} of {n} clients"
        samples = "all their samples" if self.samples is None else f"at most {self.samples} samples each"
        head = f"Constants: estimates from {self.points} point{s}, {clients}, {samples}"
        rows = [["", "", *self.measured, ""]] if len(self.measured) > 1 else []
        for name in self._names():
            bound, meaning = CONSTANTS[name]
            rows.append([name, bound, *(number(getattr(c, name)) for c in self.measured.values()), meaning])
        end = ">= <=: of the worst client; other points may be worse. ~: at the first point."
        return [*_filled(head, ""), *_indented(rows), *_filled(end)]

    def _theory(self) -> list[str]:
        if self.steps is None:
            return ["Theory: no step sizes", *_filled(self.refusal)]
        grade = "exact, given the constants" if self.steps.exact else "a guide, not a bound"
        rows = [["", "theory", "configured", "which is"]]
        for row in self.rows:
            label = f"{row.name}, round {row.round + 1}" if row.round else row.name
            mine = "-" if row.configured is None else number(row.configured)
            rows.append([label, number(row.theory), mine, row.words])
        return [*_filled(f"Theory: {self.steps.theorem} ({grade})", ""), *_indented(rows)]

    def _assumptions(self) -> list[str]:
        lines = []
        for assumption, verdict, why in self.checked:
            text = f"{assumption}: {why}" if why else str(assumption)
            lines += _filled(text, f"  {verdict:<9} ", " " * 12)
        return ["It assumes", *lines] if lines else []

    def _notes(self) -> list[str]:
        notes = [*self.remarks, *(self.steps.notes if self.steps else ())]
        return (
            ["Notes", *(line for note in notes for line in _filled(note, "  - ", " " * 4))] if notes else []
        )

    def _practice(self) -> list[str]:
        c, stable = self.constants, self.stable
        if stable is None:
            return [
                "In practice",
                *_filled("The loss has no curvature where it was probed, so that 1/L says nothing."),
            ]
        mine = ""
        if self.lr is not None:
            mine = f"; lr = {number(self.lr)} is {_against(self.lr / stable, 'that')}"
        lines = _filled(f"Largest step that is usually stable: about 1/L = {number(stable)}{mine}.")
        tries = ", ".join(number(stable / k) for k in (1, 3, 10, 30, 100))
        lines += _filled(
            f"A sweep may start with algorithm.lr = [{tries}]; with minibatches the best is often far below 1/L."
        )
        if not math.isinf(c.mu) and max(c.L_1, c.L_2) < c.L_12:
            smaller = f", down to mu/L^2 = {number(c.mu / c.L**2)}" if c.mu > 0 else ""
            lines += _filled(
                f"Here x and y are coupled more than they are curved (L_12 > L_1, L_2): plain descent ascent may need "
                f"less{smaller}."
            )
        lines += _filled(
            "Theory's steps, below, are for the worst problem with these constants; tuned ones are usually far larger."
        )
        return ["In practice", *lines]


# ---------------------------------------------------------------------------------------------- computing


def examine(
    config: Config,
    *,
    points: int = 3,
    clients: int = 20,
    train_rounds: int = 0,
    accuracy: float | None = None,
) -> Report:
    """Probe the problem of a config and hold its algorithm against the theory.

    Args:
        config: the run.
        points: as of `theory.probe`.
        clients: at most so many, evenly spaced.
        train_rounds: also probe where so many rounds of the configured training end; 0: at the start only.
        accuracy: epsilon, for theorems whose steps depend on it.
    """
    if train_rounds < 0:
        raise FedsaddleError(f"probe: train_rounds must be >= 0, got {train_rounds}")
    setup, tree = config.build(), config.tree
    problem, algorithm, federation, participation, how, _ = setup
    participation.validate(federation.n_clients)
    run = dataclasses.replace(_setting(setup), accuracy=accuracy)
    with spinner("probing") as tick:

        def constants_at(z: Tensor | None) -> Constants:
            device = how["device"] if how["device"].startswith("cuda") else "cpu"  # others lack float64
            options = dict(points=points, clients=clients, samples=SAMPLES, seed=how["seed"], device=device)
            try:
                return probe(problem, federation, z, tick=tick, **options)
            except RuntimeError as error:  # say, an operation without a second derivative
                raise FedsaddleError(f"probe: cannot measure the curvature: {first_line(error)}") from error

        measured = {"start": constants_at(None)}
        if train_rounds:
            tick("training")
            how = how | {"rounds": train_rounds, "eval_every": train_rounds, "engine": "stacked"}
            done = train(problem, algorithm, federation, participation=participation, progress=False, **how)
            measured["trained"] = constants_at(done.z)
    name, constants = title(tree["algorithm"]), functools.reduce(Constants.worst, measured.values())
    steps, refusal = None, ""
    try:
        if name not in THEOREMS:
            raise FedsaddleError(f"no theorem for {name} is known here")
        steps = prescribe(name, constants, run, _hyper(algorithm))
    except FedsaddleError as error:  # the constants are worth showing all the same
        refusal = str(error)
    return Report(
        title=f"{config.name}: {name} on {tree['problem']['name']}, {federation.n_clients} clients, "
        f"{problem.n_x} primal and {problem.n_y} dual variables",
        measured=measured,
        constants=constants,
        points=points,
        clients=min(clients, int((federation.sizes > 0).sum())),
        samples=SAMPLES if federation.sizes.max() > SAMPLES else None,
        setting=run,
        steps=steps,
        refusal=refusal,
        checked=[Checked(a, *_verdict(a, constants, setup, run)) for a in steps.assumes] if steps else [],
        rows=_rows(steps, algorithm, run, tree["train"]["rounds"]) if steps else [],
        lr=configured(algorithm, 0, run).get("lr"),
        remarks=list(_remarks(setup)),
    )


def _hyper(algorithm: Algorithm) -> dict[str, Any]:
    return {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}


def _setting(setup: Setup) -> Setting:
    """The numbers of a run that theorems ask for."""
    n, scheme, groups = setup.federation.n_clients, setup.participation, 1
    rounds = min(_LOOKED_AT, setup.train["rounds"])
    answering = (
        n if scheme == Full() else calendar(scheme, n, setup.train["seed"], max(1, rounds)).sum(1).mean()
    )
    if isinstance(scheme, Cyclic):
        groups = scheme.groups if isinstance(scheme.groups, int) else len(set(scheme.groups))
    return Setting(
        clients=n,
        participants=max(1, round(float(answering))),
        local_steps=getattr(setup.algorithm, "local_steps", None),
        batch_size=setup.train["batch_size"],
        groups=groups,
    )


def configured(algorithm: Algorithm, round: int, setting: Setting) -> dict[str, float | None]:
    """The hyper-parameters that an algorithm has in a round (of a stagewise method: in its first stage)."""
    values = _hyper(algorithm)
    if "lr_dual" in values and values["lr_dual"] is None:
        values["lr_dual"] = values["lr"]
    if isinstance(algorithm, FedSGDA):
        values["lr"], values["lr_dual"] = algorithm.lr_at(round)
        values["momentum"] = algorithm.alpha_at(round)
        if algorithm.decay is None and isinstance(algorithm.estimator, str):
            values["decay"] = ESTIMATORS[algorithm.estimator].decay
        if algorithm.large_cohort is None:
            values["large_cohort"] = min(setting.M**2, setting.clients)
    numbers = (int, float, NoneType)
    return {k: v for k, v in values.items() if isinstance(v, numbers) and not isinstance(v, bool)}


def _rows(steps: Steps, algorithm: Algorithm, setting: Setting, rounds: int) -> list[Row]:
    """One row a hyper-parameter, and one more for the last round where theory's or the config's value changes."""
    rows: list[Row] = []
    last = max(0, rounds - 1)
    for name, theory in steps.at(0).items():
        first = _row(name, 0, theory, configured(algorithm, 0, setting))
        if name == "local_steps" and first.ratio == 1:
            continue  # theory takes the config's
        end = _row(name, last, steps.at(last)[name], configured(algorithm, last, setting))
        rows += [first] if first[2:] == end[2:] else [first, end]
    return rows


def _row(name: str, round: int, theory: float, mine: Mapping[str, float | None]) -> Row:
    value = mine.get(name)
    if value is None:
        return Row(name, round, theory, None, None, "not set" if name in mine else "not a parameter here")
    ratio = value / theory if theory else math.inf if value else 1.0
    words = "switched off" if value == 0 and theory != 0 else _against(ratio)
    return Row(name, round, theory, float(value), ratio, words)


def _against(ratio: float, what: str = "") -> str:
    """A ratio in words."""
    if 0.995 < ratio < 1.005:
        return f"equal to {what}" if what else "equal"
    than = f" than {what}" if what else ""
    if ratio == math.inf:
        return f"larger{than}"
    return f"{number(ratio)} times larger{than}" if ratio > 1 else f"{number(1 / ratio)} times smaller{than}"


def _verdict(assumption: Assumption, c: Constants, setup: Setup, setting: Setting) -> tuple[Verdict, str]:
    """Whether an assumption holds, as far as a probe of a few points can tell."""
    scheme = setup.participation
    no_dual = "there is no dual variable" if math.isinf(c.mu) else ""
    match assumption:
        case Assumption.STRONGLY_CONCAVE | Assumption.PL_DUAL:
            return (
                ("holds", no_dual or "at the probed points")
                if c.mu > 0
                else ("unclear", f"mu = {number(c.mu)}")
            )
        case Assumption.STRONGLY_CONVEX:
            return (
                ("holds", "at the probed points")
                if (c.mu_x or 0) > 0
                else ("violated", f"mu_x = {number(c.mu_x)}")
            )
        case Assumption.PL_PRIMAL:
            if c.pl is not None:
                return "holds", "phi is strongly convex at the probed points"
            shape = "not convex" if (c.mu_x or 0) < 0 else "not strongly convex"
            return "unclear", f"f is {shape} in x (mu_x = {number(c.mu_x)})"
        case Assumption.ALL_CLIENTS:
            full = isinstance(scheme, Full) and not scheme.failure
            return (
                ("holds", "")
                if full
                else ("violated", f"about {setting.M} of {setup.federation.n_clients} do")
            )
        case Assumption.DRAWN:
            if isinstance(scheme, Uniform):
                return (
                    ("holds", "")
                    if scheme.replacement
                    else ("holds", "nearly, they are drawn without replacement")
                )
            return ("holds", "all take part") if isinstance(scheme, Full) else ("violated", _name(scheme))
        case Assumption.COINS:
            return ("holds", "") if isinstance(scheme, Independent | Full) else ("violated", _name(scheme))
        case Assumption.IN_TURN:
            return ("holds", "") if isinstance(scheme, Cyclic) else ("violated", _name(scheme))
        case Assumption.SMOOTH | Assumption.SMOOTH_SAMPLES | Assumption.SMOOTH_BLOCKS:
            return "unclear", "probed at points, and on clients' means"
        case Assumption.VARIANCE:
            return "unclear", f"sigma = {number(c.sigma)} where probed"
        case Assumption.SIMILAR_CLIENTS:
            return "unclear", f"zeta = {number(c.zeta)} where probed"
        case _:
            return "unclear", "a probe cannot tell"


def _name(scheme: object) -> str:
    return f"participation is {type(scheme).__name__.lower()}"


def _remarks(setup: Setup) -> Iterator[str]:
    if isinstance(setup.problem, AUC) and setup.problem.dual == "margin":
        yield "dual = 'margin' moves its dual variable in a direction of its own, which these constants do not describe"


# ----------------------------------------------------------------------------------------------- printing


def number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "unknown"
    if not math.isfinite(value) or value == 0 or not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):.10g}"


def _indented(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(list(rows))]


def _filled(text: str, first: str = "  ", then: str | None = None) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=first if then is None else then)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
