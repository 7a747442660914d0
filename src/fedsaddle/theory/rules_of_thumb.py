"""Step sizes of methods that have no theorem in the five papers: 1/(L I), from smoothness alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from fedsaddle.theory.constants import Constants, require
from fedsaddle.theory.steps import Assumption, Setting, Steps, Value


def _rule_of_thumb(
    who: str, c: Constants, run: Setting, more: Mapping[str, Value] = {}, extra: float = 0.0
) -> Steps:
    require(who, c, "any")
    notes = ["rule of thumb, not one of the five papers: lr <= 1/(L local_steps)"]
    if not math.isinf(c.mu):
        notes.append(
            "descent ascent may need a smaller step: where the coupling of x and y dominates, about mu/L^2"
        )
    return Steps(
        {"lr": 1 / ((c.L + extra) * run.I), "local_steps": run.I, **more},
        "rule of thumb",
        False,
        (Assumption.SMOOTH,),
        tuple(notes),
    )


def scaffold(c: Constants, run: Setting) -> Steps:
    """SCAFFOLD: lr = 1/(L I), server_lr = 1; a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("SCAFFOLD", c, run, {"server_lr": 1.0})


def fedavg(c: Constants, run: Setting) -> Steps:
    """FedAvg: lr = 1/(L I), server_lr = 1; a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("FedAvg", c, run, {"server_lr": 1.0})


def amplified_scaffold(c: Constants, run: Setting) -> Steps:
    """Amplified SCAFFOLD: lr = 1/(L I); a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("AmplifiedSCAFFOLD", c, run)


def weighted(c: Constants, run: Setting) -> Steps:
    """AFL, AgnosticFedAvg, DRFA, q-FedAvg, Delta-FL: lr = 1/(L I); a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("Weighted averaging", c, run)


def local_minimax(c: Constants, run: Setting) -> Steps:
    """Momentum Local SGDA, Fed-Norm-SGDA, FedSGDA+, FedSGDA-M: lr = lr_dual = 1/(L I); a rule of thumb."""
    steps = local_sgda(c, run)
    return dataclasses.replace(steps, values={k: v for k, v in steps.values.items() if k != "server_lr"})


def fednest(c: Constants, run: Setting) -> Steps:
    """FEDNEST: its lr is of a whole loop, so lr = lr_dual = 1/L; a rule of thumb, not one of the five papers."""
    steps = local_minimax(c, run)
    scaled = {
        k: v * run.I if k in ("lr", "lr_dual") and isinstance(v, float) else v
        for k, v in steps.values.items()
    }
    return dataclasses.replace(steps, values=scaled)


def fedxl2(c: Constants, run: Setting) -> Steps:
    """FeDXL2: lr = 1/(L I), L of the objective; a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("FeDXL2", c, run)


def fedprox(c: Constants, run: Setting, *, mu: float = 0.0) -> Steps:
    """FedProx: lr = 1/((L + mu) I), mu its prox coefficient; a rule of thumb, not one of the five papers."""
    return _rule_of_thumb("FedProx", c, run, {"server_lr": 1.0}, extra=mu)


def local_sgda(c: Constants, run: Setting) -> Steps:
    """Local SGDA: lr = lr_dual = 1/(L I); a rule of thumb, not one of the five papers."""
    steps = _rule_of_thumb("LocalSGDA", c, run, {"server_lr": 1.0})
    dual = {} if math.isinf(c.mu) else {"lr_dual": steps.values["lr"]}
    return dataclasses.replace(steps, values={**steps.values, **dual})
