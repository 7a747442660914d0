"""Slow, obvious versions of SCAFF-PD, of the distributionally robust objectives and of their baselines.

Plain minimisation on the clients, x is one vector. Rounds r, local steps t and communication phases (within the
round) count from 0. Callbacks:
- field(k, x, r, t, phase): gradient of client k's loss on its minibatch of local step t of that phase and round;
- full_gradient(k, x), loss(k, x): over all of client k's samples;
- who(r): the distinct participants of a sampled method; N clients; sizes[k] samples at client k.

Common to all: every function returns (trajectory, log); trajectory[r] is the x the server would send in round
r + 1, log[r] a dict whose "lambda" (where there is one) is the weight vector after the round and "lambda_before"
the one it began with, so log[r]["lambda_before"] = log[r - 1]["lambda"]. The weights start uniform unless lambda0
is given. No projection of x anywhere. A round without participants leaves x (and the weights) as they are.
local_steps is a number, or for q_fedavg and delta_fl also a function of the client (epochs of unequal clients).

Agnostic FedAvg (Ro et al. 2021) is only cited in the paper and absent from the specification: not here.
"""

import math

import numpy as np

# ---------------------------------------------------------------- projections, by bisection


def _bisect(excess, low, high):
    """The zero of a decreasing function with excess(low) >= 0 >= excess(high), to the last bit."""
    while True:
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            return middle
        if excess(middle) > 0:
            low = middle
        else:
            high = middle


def project_capped(v, cap):
    """The nearest point of {lambda >= 0, lambda_i <= cap, sum lambda_i = 1}."""
    v = np.array(v, dtype=float)
    n = len(v)
    assert n * cap >= 1 - 1e-12, "no distribution fits under the cap"
    if n * cap <= 1 + 1e-12:
        return np.full(n, 1.0 / n)
    v = v - max(v)  # a shift of all entries changes nothing, and the top is where the accuracy is needed

    def clipped(t):
        return [min(max(e - t, 0.0), cap) for e in v]

    t = _bisect(lambda t: sum(clipped(t)) - 1.0, min(v) - cap, 0.0)
    free = [e for e in v if 0.0 < e - t < cap]
    if free:  # the same t from the free entries alone, without the rounding of the bisection
        full = sum(1 for e in v if e - t >= cap)
        t = (sum(free) - (1.0 - cap * full)) / len(free)
    return np.array(clipped(t))


def project_simplex(v):
    """The nearest point of {lambda >= 0, sum lambda_i = 1}: no entry exceeds one anyway."""
    v = np.array(v, dtype=float)
    v = v - max(v)
    t = _bisect(lambda t: sum(max(e - t, 0.0) for e in v) - 1.0, -1.0, 0.0)
    free = [e for e in v if e > t]
    if free:
        t = (sum(free) - 1.0) / len(free)
    return np.array([max(e - t, 0.0) for e in v])


# ---------------------------------------------------------------- ambiguity sets (1.4)


class Ambiguity:
    """max over lambda in Lambda of <lambda, L> - psi(lambda), for a vector L of N losses.

    response(L): a maximiser; value(L): the maximum; prox(s, lambda_r, sigma): the minimiser over Lambda of
    psi(lambda) - <s, lambda> + ||lambda - lambda_r||^2 / (2 sigma); sigma = 0 is its limit, project(lambda_r).
    """

    def psi(self, lam):
        return 0.0

    def value(self, L):
        lam = self.response(L)
        return sum(lam[i] * L[i] for i in range(len(L))) - self.psi(lam)


class Simplex(Ambiguity):
    """AFL. The response is the vertex of the largest loss, of the lowest number among equals."""

    def project(self, v):
        return project_simplex(v)

    def response(self, L):
        lam = np.zeros(len(L))
        lam[int(np.argmax(L))] = 1.0
        return lam

    def prox(self, s, lambda_r, sigma):
        return project_simplex(np.asarray(lambda_r, dtype=float) + sigma * np.asarray(s, dtype=float))


class Chi2(Ambiguity):
    """psi = rho / (2 N) sum (N lambda_i - 1)^2 on the simplex; rho = 0 is AFL."""

    def __init__(self, rho):
        self.rho = rho

    def psi(self, lam):
        N = len(lam)
        return self.rho / (2 * N) * sum((N * v - 1) ** 2 for v in lam)

    def project(self, v):
        return project_simplex(v)

    def response(self, L):
        if self.rho == 0:
            return Simplex().response(L)
        return project_simplex(np.asarray(L, dtype=float) / (self.rho * len(L)))

    def prox(self, s, lambda_r, sigma):
        # stationarity: rho (N lambda - 1) - s + (lambda - lambda_r) / sigma is the same for all positive entries
        N = len(s)
        lambda_r = np.asarray(lambda_r, dtype=float)
        return project_simplex((sigma * np.asarray(s, dtype=float) + lambda_r) / (sigma * self.rho * N + 1.0))


class CVaR(Ambiguity):
    """lambda_i <= 1 / (alpha N) on the simplex, 0 < alpha <= 1. Equal losses: the lowest number is filled first."""

    def __init__(self, alpha):
        assert 0 < alpha <= 1
        self.alpha = alpha

    def project(self, v):
        return project_capped(v, 1.0 / (self.alpha * len(v)))

    def response(self, L):
        N = len(L)
        cap = 1.0 / (self.alpha * N)
        lam = np.zeros(N)
        left = 1.0
        for _ in range(N):
            worst = None
            for i in range(N):
                if lam[i] == 0.0 and (worst is None or L[i] > L[worst]):
                    worst = i
            lam[worst] = min(cap, left)
            left -= lam[worst]
            if left <= 1e-15:
                break
        return lam

    def prox(self, s, lambda_r, sigma):
        return self.project(np.asarray(lambda_r, dtype=float) + sigma * np.asarray(s, dtype=float))


class Average(Ambiguity):
    """Lambda = {(1/N, ..., 1/N)}, psi = 0."""

    def project(self, v):
        return np.full(len(v), 1.0 / len(v))

    def response(self, L):
        return self.project(L)

    def prox(self, s, lambda_r, sigma):
        return self.project(s)


class QFFL(Ambiguity):
    """psi = q/(q+1) N^(1/q) sum lambda_i^(1+1/q) on lambda >= 0 (no sum constraint): sum L_i^(q+1) / (N (q+1)).

    With the factors of E5.5. Losses are to be nonnegative (a negative one has weight 0). q = 0 is the limit: psi = 0
    on 0 <= lambda_i <= 1/N. The weights do not sum to one: an objective, not a set for the algorithms below.
    """

    def __init__(self, q):
        self.q = q

    def psi(self, lam):
        if self.q == 0:
            return 0.0
        q, N = self.q, len(lam)
        return q / (q + 1) * N ** (1 / q) * sum(v ** (1 + 1 / q) for v in lam)

    def project(self, v):
        top = 1.0 / len(v) if self.q == 0 else math.inf
        return np.array([min(max(e, 0.0), top) for e in v])

    def response(self, L):
        if self.q == 0:
            return np.array([1.0 / len(L) if e >= 0 else 0.0 for e in L])
        return np.array([max(e, 0.0) ** self.q / len(L) for e in L])

    def prox(self, s, lambda_r, sigma):
        """The root of (N v)^(1/q) - s_i + (v - lambda_r,i) / sigma in v >= 0, by bisection, entry by entry."""
        start = np.asarray(lambda_r, dtype=float)
        if sigma == 0 or self.q == 0:
            return self.project(start + sigma * np.asarray(s, dtype=float))
        N = len(s)
        out = np.zeros(N)
        for i in range(N):
            high = start[i] + sigma * s[i]  # the root without the first term, which is positive
            if high > 0:

                def slope(v, i=i):
                    return s[i] - (v - start[i]) / sigma - (N * v) ** (1 / self.q)

                out[i] = _bisect(slope, 0.0, high)
        return out


class User(Ambiguity):
    """A convex set given by its projection and a smooth convex psi (None: 0), with its gradient or without.

    Without psi_gradient central differences of psi are taken, also a little outside the set, and answers are good
    to about 1e-8. The minimisations are by projected gradient, with no closed form.
    """

    def __init__(self, project, psi=None, psi_gradient=None):
        self._project = project
        self._psi = psi
        self._psi_gradient = psi_gradient

    def psi(self, lam):
        return 0.0 if self._psi is None else float(self._psi(lam))

    def psi_gradient(self, lam):
        if self._psi is None:
            return np.zeros(len(lam))
        if self._psi_gradient is not None:
            return np.array(self._psi_gradient(lam), dtype=float)
        h = 1e-5
        out = np.zeros(len(lam))
        for i in range(len(lam)):
            up, down = lam.copy(), lam.copy()
            up[i] += h
            down[i] -= h
            out[i] = (self.psi(up) - self.psi(down)) / (2 * h)
        return out

    def project(self, v):
        return np.array(self._project(np.array(v, dtype=float)), dtype=float)

    def response(self, L):
        return self._minimise(
            lambda lam: self.psi_gradient(lam) - np.asarray(L), np.full(len(L), 1.0 / len(L))
        )

    def prox(self, s, lambda_r, sigma):
        lambda_r = np.array(lambda_r, dtype=float)
        if sigma == 0:
            return self.project(lambda_r)
        if self._psi is None:
            return self.project(lambda_r + sigma * np.asarray(s))
        return self._minimise(
            lambda lam: self.psi_gradient(lam) - np.asarray(s) + (lam - lambda_r) / sigma, lambda_r
        )

    def _minimise(self, gradient, start):
        tolerance = 1e-12 if self._psi is None or self._psi_gradient is not None else 1e-9
        lam = self.project(start)
        step = 1.0
        for _ in range(20000):
            g = gradient(lam)
            while True:
                new = self.project(lam - step * g)
                move = new - lam
                size = float(move @ move)
                # half the curvature that the step allows: then the step goes down
                if math.sqrt(size) <= 1e-14 or step * (gradient(new) - g) @ move <= 0.5 * size:
                    break
                step *= 0.5
            lam = new
            if math.sqrt(size) <= tolerance * min(1.0, step):
                break
            step = min(2 * step, 1e6)
        return lam


def chi2(rho):
    return Chi2(rho)


def afl_set():
    return Simplex()


def cvar(alpha):
    return CVaR(alpha)


def q_ffl(q):
    return QFFL(q)


def average():
    return Average()


def user(project, psi=None, psi_gradient=None):
    return User(project, psi, psi_gradient)


def robust_value_and_gradient(ambiguity, loss, full_gradient, N, x):
    """P(x) and sum lambda*_i(x) grad f_i(x)."""
    L = np.array([loss(i, x) for i in range(N)])
    lam = ambiguity.response(L)
    g = np.zeros(len(x))
    for i in range(N):
        g += lam[i] * full_gradient(i, x)
    return ambiguity.value(L), g


# ---------------------------------------------------------------- SCAFF-PD (6.1)


def constant_schedule(tau, sigma, theta):
    """schedule(r) -> (tau_r, sigma_r, theta_r)."""
    return lambda r: (tau, sigma, theta)


def growing_schedule(mu_x, tau_0, gamma_0):
    """Strongly convex - concave: Condition 5.1 with the tau recursion of Lemma B.3 and taubar = tau_0 (E5.3)."""

    def schedule(r):
        tau, gamma = tau_0, gamma_0
        sigma_before = gamma_0 * tau_0
        for _ in range(r):
            sigma_before = gamma * tau
            gamma_next = gamma * (1 + mu_x * tau)
            tau = tau * math.sqrt(gamma / gamma_next)
            gamma = gamma_next
        sigma = gamma * tau
        return tau, sigma, sigma_before / sigma

    return schedule


def strongly_concave_constants(mu_x, mu_lambda, L_xx, L_lx, under_root=8.0):
    """(tau, sigma, theta) of B.51-B.54 with equality; under_root = 16 as printed (E5.7)."""
    half = 0.5 + 24 * L_xx / mu_x
    omega = half + math.sqrt(half**2 + under_root * L_lx**2 / (mu_x * mu_lambda))
    theta = 1 - 1 / omega
    return 4 * (1 - theta) / (mu_x * theta), (1 - theta) / (mu_lambda * theta), theta


def scaff_pd(
    field,
    full_gradient,
    loss,
    N,
    x0,
    rounds,
    *,
    ambiguity,
    local_steps,
    schedule=None,
    tau=None,
    sigma=None,
    theta=None,
    eta_l=None,
    eta_g=None,
    lambda0=None,
    gradients="full",
    correction=True,
    who=None,
):
    """(trajectory, log) of Algorithms 1 and 2, everybody in every round.

    who(r): only these M take part. The others keep their last loss (before the first, the mean of those heard); sums over
    clients become N/M times those of the participants, and the direction of x is c + (N/M) sum lambda_i (Delta_i - c).
    Where they are fewer than N, c and the direction are by lambda_before: the new weights follow who took part (their
    losses are fresh, the others' stale), and N/M times a sum over the M estimates that over all N without bias only for
    weights that do not.

    Steps: schedule(r) -> (tau_r, sigma_r, theta_r), or the constants tau, sigma, theta. The clients' step is eta_l
    in every round or, with eta_g, tau_r / (local_steps eta_g): one of the two is to be given.

    Phase 0: x down; the loss over all samples and c_i up. c_i is full_gradient(i, x), or with
    gradients="minibatch" field(i, x, r, 0, 0). The loss is always the full one. Server: s = (1 + theta_r) L^r -
    theta_r L^{r-1}, with L^{-1} = L^0 in the first round (E5.1), then the prox step, then c with the new weights.
    Phase 1: c down; local_steps steps on the minibatches t = 0, 1, ... of phase 1; Delta_i up.

    correction=False: c_i and c are left out of the local steps (they are still logged); the local steps stay in
    phase 1, and their weights are still the new ones.

    As written for weights that sum to one. Otherwise (a set without that constraint) sum lambda_i Delta_i is not a
    mean of gradients of sum lambda_i f_i any more: c would have to be divided by the sum of the weights.

    log[r]: lambda_before, lambda, losses, s, tau, sigma, theta, eta_l, c_i (list), c, delta (list), local
    {client: list of the J iterates}.
    """
    assert (eta_l is None) != (eta_g is None), "eta_l or eta_g"
    assert gradients in ("full", "minibatch")
    if schedule is None:
        schedule = constant_schedule(tau, sigma, theta)
    J = local_steps
    x = np.array(x0, dtype=float)
    lam = np.full(N, 1.0 / N) if lambda0 is None else np.array(lambda0, dtype=float)
    L_before = None
    trajectory = []
    log = []
    for r in range(rounds):
        tau_r, sigma_r, theta_r = schedule(r)
        eta = eta_l if eta_l is not None else tau_r / (J * eta_g)

        here = list(range(N)) if who is None else list(who(r))
        heard = {i: loss(i, x) for i in here}
        L = np.full(N, np.mean(list(heard.values()))) if L_before is None else L_before.copy()
        c_i = []
        for i in range(N):
            L[i] = heard.get(i, L[i])
            g = full_gradient(i, x) if gradients == "full" else field(i, x, r, 0, 0)
            c_i.append(np.array(g, dtype=float))
        if L_before is None:
            L_before = L

        s = (1 + theta_r) * L - theta_r * L_before
        lambda_before = lam
        lam = ambiguity.prox(s, lambda_before, sigma_r)
        used = lam if len(here) == N else lambda_before
        c = np.zeros(len(x))
        for i in here:
            c += N / len(here) * used[i] * c_i[i]

        local = {}
        delta = []
        for i in range(N):
            u = x.copy()
            local[i] = []
            for t in range(J):
                g = np.array(field(i, u, r, t, 1), dtype=float)
                if correction:
                    g = g - c_i[i] + c
                u = u - eta * g
                local[i].append(u.copy())
            delta.append((x - u) / (eta * J))
        way = np.zeros(len(x))
        if who is None:
            for i in range(N):
                way += lam[i] * delta[i]
        else:
            way += c
            for i in here:
                way += N / len(here) * used[i] * (delta[i] - c)
        x = x - tau_r * way

        trajectory.append(x.copy())
        log.append(
            {
                "lambda_before": lambda_before.copy(),
                "lambda": lam.copy(),
                "losses": L.copy(),
                "s": s,
                "tau": tau_r,
                "sigma": sigma_r,
                "theta": theta_r,
                "eta_l": eta,
                "c_i": c_i,
                "c": c,
                "delta": delta,
                "local": local,
            }
        )
        L_before = L
    return trajectory, log


# ---------------------------------------------------------------- DRFA (6.3, the paper's version)


def drfa(
    field,
    stochastic_loss,
    sample_lambda,
    sample_uniform,
    snapshot,
    N,
    x0,
    rounds,
    *,
    lr,
    local_steps,
    gamma,
    ambiguity=None,
    lambda0=None,
):
    """(trajectory, log).

    Phase 0: sample_lambda(r, lambda) lists the client numbers drawn from lambda with replacement; a client drawn
    twice works once and counts twice in both means. I = local_steps steps on the minibatches of phase 0; the
    snapshot is the model after step t' = snapshot(r) of 1..I, the same for all.
    Phase 1: sample_uniform(r) lists M distinct clients, which send stochastic_loss(k, snapshot mean, r);
    v_k = (N/M) of that and 0 for the others; lambda <- Proj_simplex(lambda + gamma I v), or with an ambiguity set
    its prox step with s = v and sigma = I gamma.

    The output is x, the plain mean of the last models; log[r]["average"] is the mean of trajectory[0..r] (x0 and
    local iterates not among them).

    log[r]: drawn, lambda_before, lambda, snapshot (the mean), snapshot_step, uniform, v, local {client: list of
    iterates}, average.
    """
    x = np.array(x0, dtype=float)
    lam = np.full(N, 1.0 / N) if lambda0 is None else np.array(lambda0, dtype=float)
    I = local_steps
    trajectory = []
    log = []
    for r in range(rounds):
        lambda_before = lam.copy()
        drawn = list(sample_lambda(r, lam.copy()))
        step = snapshot(r)
        assert 1 <= step <= I
        local = {}
        for k in drawn:
            if k in local:
                continue
            u = x.copy()
            local[k] = []
            for t in range(I):
                u = u - lr * np.array(field(k, u, r, t, 0), dtype=float)
                local[k].append(u.copy())
        snap = x.copy()
        if drawn:
            snap = sum(local[k][step - 1] for k in drawn) / len(drawn)
            x = sum(local[k][-1] for k in drawn) / len(drawn)

        uniform = _distinct(sample_uniform(r))
        v = np.zeros(N)
        for k in uniform:
            v[k] = N / len(uniform) * stochastic_loss(k, snap, r)
        if uniform:
            if ambiguity is None:
                lam = project_simplex(lam + gamma * I * v)
            else:
                lam = ambiguity.prox(v, lam, I * gamma)

        trajectory.append(x.copy())
        log.append(
            {
                "drawn": drawn,
                "lambda_before": lambda_before,
                "lambda": lam.copy(),
                "snapshot": snap,
                "snapshot_step": step,
                "uniform": uniform,
                "v": v,
                "local": local,
                "average": sum(trajectory) / len(trajectory),
            }
        )
    return trajectory, log


def _distinct(clients):
    clients = list(clients)
    assert len(set(clients)) == len(clients), "a client may appear once in a draw"
    return clients


# ---------------------------------------------------------------- AFL (6.4)


def afl(
    field,
    loss,
    N,
    x0,
    rounds,
    *,
    lr,
    lr_lambda,
    local_steps=None,
    ambiguity=None,
    lambda0=None,
    who=None,
):
    """(trajectory, log) of AFL: everybody, or who(r): stale losses, N/M times their weighted changes.

    One phase: x down; the loss over all samples at x, and the rest, up.

    local_steps None: the original, x - lr sum lambda_i field(i, x, r, 0, 0). A number: sum lambda_i x_{i,J} of the
    models after so many local steps. The weights of x are those before the round in both; then lambda <-
    Proj(lambda + lr_lambda L), L at the x that was sent (with an ambiguity set: its prox step, sigma = lr_lambda).

    The output is the running average log[r]["average"] of trajectory[0..r] (x0 not among them) or the last x.

    log[r]: lambda_before, lambda, losses, average.
    """
    x = np.array(x0, dtype=float)
    lam = np.full(N, 1.0 / N) if lambda0 is None else np.array(lambda0, dtype=float)
    trajectory = []
    log = []
    for r in range(rounds):
        if who is not None:
            here = list(who(r))
            heard = {i: loss(i, x) for i in here}
            before = log[-1]["losses"] if log else np.full(N, np.mean(list(heard.values())))
            L = np.array([heard.get(i, before[i]) for i in range(N)], dtype=float)
        else:
            L = np.array([loss(i, x) for i in range(N)], dtype=float)
        if who is not None:
            new = x.copy()
            for i in here:
                u = x.copy()
                for t in range(local_steps):
                    u = u - lr * np.array(field(i, u, r, t, 0), dtype=float)
                new += N / len(here) * lam[i] * (u - x)
        elif local_steps is None:
            g = np.zeros(len(x))
            for i in range(N):
                g += lam[i] * np.array(field(i, x, r, 0, 0), dtype=float)
            new = x - lr * g
        else:
            new = np.zeros(len(x))
            for i in range(N):
                u = x.copy()
                for t in range(local_steps):
                    u = u - lr * np.array(field(i, u, r, t, 0), dtype=float)
                new += lam[i] * u
        lambda_before = lam
        if ambiguity is None:
            lam = project_simplex(lam + lr_lambda * L)
        else:
            lam = ambiguity.prox(L, lam, lr_lambda)
        x = new
        trajectory.append(x.copy())
        log.append(
            {
                "lambda_before": lambda_before.copy(),
                "lambda": lam.copy(),
                "losses": L,
                "average": sum(trajectory) / len(trajectory),
            }
        )
    return trajectory, log


# ---------------------------------------------------------------- q-FFL (6.5)


def agnostic_fedavg(field, loss, N, x0, rounds, *, lr, lr_lambda, local_steps):
    """(trajectory, log) of AgnosticFedAvg (Ro et al. 2021, as recalled) where every client is one domain.

    Everybody: x down; up, the model after `local_steps` steps and the loss over all samples at x. The server takes the mean
    of the changes by the domains' weights, and then raises each weight by the factor exp(lr_lambda L_i), scaled to one.

    log[r]: lambda_before, lambda, losses.
    """
    x = np.array(x0, dtype=float)
    lam = [1.0 / N] * N
    trajectory, log = [], []
    for r in range(rounds):
        L, change = [], np.zeros(len(x))
        for i in range(N):
            L.append(float(loss(i, x)))
            u = x.copy()
            for t in range(local_steps):
                u = u - lr * np.array(field(i, u, r, t, 0), dtype=float)
            change += lam[i] * (u - x)
        before = lam
        raised = [lam[i] * math.exp(lr_lambda * L[i]) for i in range(N)]
        lam = [v / sum(raised) for v in raised]
        x = x + change
        trajectory.append(x.copy())
        log.append({"lambda_before": np.array(before), "lambda": np.array(lam), "losses": np.array(L)})
    return trajectory, log


def _steps_of(local_steps, k):
    return local_steps(k) if callable(local_steps) else local_steps


def _q_round(x, deltas, losses, q, lipschitz, epsilon):
    """The server's new x and {client: h}; deltas and losses by client."""
    total = np.zeros(len(x))
    h = {}
    for k in deltas:
        F = losses[k] + epsilon
        square = sum(float(e) ** 2 for e in deltas[k])
        total += F**q * deltas[k]
        h[k] = q * F ** (q - 1) * square + lipschitz * F**q
    if not deltas:
        return x.copy(), h
    return x - total / sum(h.values()), h


def q_fedavg(field, loss, who, N, x0, rounds, *, q, lr, local_steps, epsilon=1e-10):
    """(trajectory, log) of q-FedAvg, one phase: x down; loss at x (all samples, plus epsilon) and last model up.

    Lip = 1 / lr; minibatches of phase 0; plain sums over the participants (no sample counts).
    log[r]: losses, h, delta {client: ...}.
    """
    x = np.array(x0, dtype=float)
    trajectory = []
    log = []
    for r in range(rounds):
        losses = {}
        deltas = {}
        for k in _distinct(who(r)):
            losses[k] = float(loss(k, x))
            u = x.copy()
            for t in range(_steps_of(local_steps, k)):
                u = u - lr * np.array(field(k, u, r, t, 0), dtype=float)
            deltas[k] = (x - u) / lr
        x, h = _q_round(x, deltas, losses, q, 1.0 / lr, epsilon)
        trajectory.append(x.copy())
        log.append({"losses": losses, "h": h, "delta": deltas})
    return trajectory, log


def q_fedsgd(full_gradient, loss, who, N, x0, rounds, *, q, lr, epsilon=1e-10):
    """(trajectory, log) of q-FedSGD: delta_k is the full gradient at x, Lip = 1 / lr; otherwise q_fedavg."""
    x = np.array(x0, dtype=float)
    trajectory = []
    log = []
    for r in range(rounds):
        losses = {}
        deltas = {}
        for k in _distinct(who(r)):
            losses[k] = float(loss(k, x))
            deltas[k] = np.array(full_gradient(k, x), dtype=float)
        x, h = _q_round(x, deltas, losses, q, 1.0 / lr, epsilon)
        trajectory.append(x.copy())
        log.append({"losses": losses, "h": h, "delta": deltas})
    return trajectory, log


# ---------------------------------------------------------------- Delta-FL (6.6)


def weighted_quantile(values, weights, level):
    """The smallest value v such that the weights of all values <= v sum to at least level times the total.

    For equal weights the order statistic of index max(ceil(n level) - 1, 0): level 0 is the smallest value.
    """
    assert len(values) > 0 and 0 <= level <= 1
    total = sum(weights)
    best = None
    for v in values:
        below = sum(w for e, w in zip(values, weights, strict=True) if e <= v)
        if below >= level * total and (best is None or v < best):
            best = v
    return best


def delta_fl(field, loss, who, sizes, N, x0, rounds, *, level, lr, local_steps):
    """(trajectory, log) of Delta-FL. level = 1 - theta, theta being the tail fraction.

    Phase 0: x down, the loss over all samples at x up, from all of who(r). The threshold is weighted_quantile of
    these losses with weights sizes[k]. Phase 1: those with loss >= threshold (ties included, so at least one) take
    local steps from x on the minibatches of phase 1; x is their mean weighted by sizes[k].
    log[r]: losses {client: loss}, threshold, tail (clients), local {client: last model}.
    """
    x = np.array(x0, dtype=float)
    trajectory = []
    log = []
    for r in range(rounds):
        clients = _distinct(who(r))
        losses = {k: float(loss(k, x)) for k in clients}
        threshold = None
        tail = []
        local = {}
        if clients:
            threshold = weighted_quantile([losses[k] for k in clients], [sizes[k] for k in clients], level)
            total = np.zeros(len(x))
            mass = 0.0
            for k in clients:
                if losses[k] < threshold:
                    continue
                u = x.copy()
                for t in range(_steps_of(local_steps, k)):
                    u = u - lr * np.array(field(k, u, r, t, 1), dtype=float)
                tail.append(k)
                local[k] = u
                total += sizes[k] * u
                mass += sizes[k]
            x = total / mass
        trajectory.append(x.copy())
        log.append({"losses": losses, "threshold": threshold, "tail": tail, "local": local})
    return trajectory, log


# ---------------------------------------------------------------- robust regression (1.5)


def robust_regression_data(N=5, d=10, m=100, c=1.0, heterogeneity=0.01, seed=0):
    """(clients, xhat): clients[i] = (A_i, y_i), m samples each (or m[i]), y = A_i (xhat + delta_i), no label noise.

    Drawn from default_rng(seed): xhat, then for every client delta_i and A_i.
    """
    rng = np.random.default_rng(seed)
    xhat = c * rng.normal(size=d)
    clients = []
    for i in range(N):
        delta = heterogeneity * rng.normal(size=d)
        rows = m if np.isscalar(m) else m[i]
        A = rng.normal(size=(rows, d))
        y = np.zeros(rows)
        for j in range(rows):
            y[j] = A[j] @ (xhat + delta)
        clients.append((A, y))
    return clients, xhat


def regression_loss(client, x, mu_x):
    A, y = client
    total = 0.0
    for j in range(len(y)):
        total += (A[j] @ x - y[j]) ** 2
    return total / len(y) + 0.5 * mu_x * float(x @ x)


def regression_gradient(client, x, mu_x, batch=None):
    """batch: the rows of a minibatch; None for all."""
    A, y = client
    rows = range(len(y)) if batch is None else batch
    g = np.zeros(len(x))
    for j in rows:
        g += 2 * (A[j] @ x - y[j]) * A[j]
    return g / len(rows) + mu_x * np.asarray(x, dtype=float)


def regression_moments(client):
    """(H, b, e): the loss is x'Hx/2 - b'x + e + mu_x/2 ||x||^2. The same numbers as above, but fast."""
    A, y = client
    return 2 / len(y) * A.T @ A, 2 / len(y) * A.T @ y, float(y @ y) / len(y)


def regression_callbacks(clients, mu_x):
    """(loss(k, x), full_gradient(k, x)) from the moments."""
    moments = [regression_moments(client) for client in clients]

    def loss(k, x):
        H, b, e = moments[k]
        return float(0.5 * x @ H @ x - b @ x + e + 0.5 * mu_x * x @ x)

    def full_gradient(k, x):
        H, b, _ = moments[k]
        return H @ x - b + mu_x * x

    return loss, full_gradient


def best_x(clients, mu_x, lam):
    """The minimiser of sum lambda_i f_i."""
    d = clients[0][0].shape[1]
    H = np.zeros((d, d))
    b = np.zeros(d)
    for i, client in enumerate(clients):
        H_i, b_i, _ = regression_moments(client)
        H += lam[i] * (H_i + mu_x * np.eye(d))
        b += lam[i] * b_i
    return np.linalg.solve(H, b)


def robust_optimum(clients, mu_x, ambiguity, psi_gradient=None, iterations=20000):
    """(x*, lambda*): projected gradient ascent on D(lambda) = min_x sum lambda_i f_i(x) - psi(lambda).

    Its gradient is f_i(x(lambda)) - psi'(lambda). psi_gradient: None for psi = 0; for Chi2 it is known. The step is
    halved until half the curvature it allows is met, doubled otherwise. Sets on the simplex only.
    """
    N = len(clients)
    if psi_gradient is None and isinstance(ambiguity, Chi2):

        def psi_gradient(lam):
            return ambiguity.rho * (N * lam - 1)

    def ascent(lam):
        x = best_x(clients, mu_x, lam)
        g = np.array([regression_loss(client, x, mu_x) for client in clients])
        return g if psi_gradient is None else g - psi_gradient(lam)

    lam = np.full(N, 1.0 / N)
    step = 1.0
    g = ascent(lam)
    for _ in range(iterations):
        while True:
            new = ambiguity.project(lam + step * g)
            move = new - lam
            size = float(move @ move)
            new_g = ascent(new)
            if math.sqrt(size) <= 1e-14 or step * (g - new_g) @ move <= 0.5 * size:
                break
            step *= 0.5
        lam, g = new, new_g
        if math.sqrt(size) <= 1e-14 * min(1.0, step):
            break
        step = min(2 * step, 1e6)
    return best_x(clients, mu_x, lam), lam


def robust_optimum_scipy(clients, mu_x, ambiguity):
    """x* by scipy, never by way of the projections of a dual iteration.

    Chi2: BFGS on P(x), then a root of its gradient. Simplex and CVaR: SLSQP on min t + sum u_i / (alpha N) subject
    to u_i >= 0 and u_i >= f_i(x) - t (alpha = 1/N for the simplex), good to about 1e-6.
    """
    from scipy import optimize

    N, d = len(clients), clients[0][0].shape[1]
    loss, gradient = regression_callbacks(clients, mu_x)
    start = best_x(clients, mu_x, np.full(N, 1.0 / N))
    if isinstance(ambiguity, Chi2):

        def both(x):
            return robust_value_and_gradient(ambiguity, loss, gradient, N, x)

        x = optimize.minimize(both, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x
        return optimize.root(lambda v: both(v)[1], x, tol=1e-14).x

    alpha = ambiguity.alpha if isinstance(ambiguity, CVaR) else 1.0 / N

    def objective(v):
        return v[d] + sum(v[d + 1 :]) / (alpha * N)

    def objective_gradient(v):
        return np.concatenate([np.zeros(d), [1.0], np.full(N, 1.0 / (alpha * N))])

    def room(v):
        return np.array([v[d + 1 + i] + v[d] - loss(i, v[:d]) for i in range(N)])

    def room_gradient(v):
        out = np.zeros((N, len(v)))
        for i in range(N):
            out[i, :d] = -gradient(i, v[:d])
            out[i, d] = 1.0
            out[i, d + 1 + i] = 1.0
        return out

    L = np.array([loss(i, start) for i in range(N)])
    v0 = np.concatenate([start, [min(L)], L - min(L)])
    result = optimize.minimize(
        objective,
        v0,
        jac=objective_gradient,
        method="SLSQP",
        bounds=[(None, None)] * (d + 1) + [(0, None)] * N,
        constraints=[{"type": "ineq", "fun": room, "jac": room_gradient}],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return result.x[:d]
