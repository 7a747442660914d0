"""Theory: the constants that the theorems of the five papers speak of, measured on a problem, and the steps they prescribe.

    constants = probe(problem, federation)                        # L, mu, sigma, ... of this problem and this data
    steps = THEOREMS["codasca"](constants, Setting(clients=10, local_steps=32))
    steps.values["lr"], steps.theorem, steps.exact                # what Theorem 2 says, and whether its constants are known
    compare(steps, {"lr": 0.1, "server_lr": 1.0})                 # against what a run is configured with

    symbol          | here
    ----------------+-----------------------------------------------------------------------------------------------
    L_1, L_2        | Lipschitz constants of grad_x f in x and of grad_y f in y: norms of the Hessian blocks xx and yy
    L_12, L_21      | of grad_x f in y and of grad_y f in x: norms of the blocks xy and yx, equal where f is smooth
    l, L_f (papers) | L: of the whole saddle field, the norm of the Hessian
    mu, mu_2, mu_y  | mu: strong concavity in y, the smallest eigenvalue of -yy; infinite without a dual variable
    mu_x            | smallest eigenvalue of xx: strong convexity in x, or, negative, how far f is from convex
    L_Phi, L        | L_phi: smoothness of phi(x) = max_y f(x, y)
    mu, mu_1        | pl: constant of the Polyak-Lojasiewicz condition of phi
    sigma           | sigma: standard deviation of one sample's gradient around its client's
    sigma_1, D      | zeta_x, zeta_y: root mean squared distance of the clients' gradients from their mean

constants.py has the constants, measure.py finds them, steps.py says what an answer is, theorems.py has the theorems,
and rules_of_thumb.py the steps of methods without one.

Theory is careful: its steps hold for the worst problem that has these constants, and a tuned step is often ten to a thousand
times larger. What it gives reliably is how a step should change with L, the number of clients and of local steps.
"""

from __future__ import annotations

from fedsaddle.theory.constants import Constants
from fedsaddle.theory.measure import probe
from fedsaddle.theory.rules_of_thumb import amplified_scaffold, fedavg, fedprox, fedxl2, local_sgda, scaffold
from fedsaddle.theory.steps import Assumption, Comparison, Setting, Steps, Value, compare
from fedsaddle.theory.theorems import (
    THEOREMS,
    coda,
    coda_plus,
    codasca,
    codasca_as_published,
    cycp_minimax,
    cycp_pairwise,
    fedsgda,
    ffmdr,
    npa,
    prescribe,
    rs_minimax,
    rs_pairwise,
    scaff_pd,
)

__all__ = [
    "THEOREMS", "Assumption", "Comparison", "Constants", "Setting", "Steps", "Value", "compare", "prescribe", "probe",
    "coda", "coda_plus", "codasca", "codasca_as_published", "cycp_minimax", "cycp_pairwise", "fedavg", "fedprox", "fedsgda",
    "amplified_scaffold", "fedxl2", "ffmdr", "local_sgda", "npa", "rs_minimax", "rs_pairwise", "scaff_pd", "scaffold",
]  # fmt: skip
