"""FedSGDA's synthetic nonconvex-PL problem, sample by sample, float64 (spec 1.3, paper section 6.1).

    F(x, y; (a, b, c)) = sum_l (1 - exp(-(x_l - a_l)^2 / (2 nu))) + (x-a)'b b'(y-c) - mu/2 ||y-c||^2

with x, y, a, b, c in R^p. A client is a tuple (a, b, c) of arrays of shape (n_i, p); clients is a list of
such tuples, from generate() or from elsewhere. The global f is the plain mean over clients of the plain
mean over a client's samples (the paper's D is uniform over clients), also where the n_i differ. y is
unconstrained and f is mu-strongly concave in it.
"""

import math

import numpy as np


def generate(rng, clients=500, samples=100, dim=100, var_client=0.5, var_sample=0.1):
    """The paper's data: w_i ~ N(0, 0.5 I) in R^{3p}, then (a, b, c)_ij ~ N(w_i, 0.1 I).

    0.5 and 0.1 are variances (E1.7); a, b, c are the first, second and last third of a draw. The paper
    fixes no order of random draws; here w_i and then client i's samples, client after client.
    """
    out = []
    for _ in range(clients):
        w = math.sqrt(var_client) * rng.normal(size=3 * dim)
        draws = w + math.sqrt(var_sample) * rng.normal(size=(samples, 3 * dim))
        out.append((draws[:, :dim], draws[:, dim : 2 * dim], draws[:, 2 * dim :]))
    return out


# ---------------------------------------------------------------- one sample


def sample_value(x, y, a, b, c, nu=1.0, mu=1.0):
    total = 0.0
    for l in range(len(x)):
        total += 1.0 - math.exp(-((x[l] - a[l]) ** 2) / (2 * nu))
    return total + np.dot(x - a, b) * np.dot(b, y - c) - 0.5 * mu * np.dot(y - c, y - c)


def sample_gradient(x, y, a, b, c, nu=1.0, mu=1.0):
    """(gradient in x, gradient in y)."""
    gx = (x - a) / nu * np.exp(-((x - a) ** 2) / (2 * nu)) + b * np.dot(b, y - c)
    gy = b * np.dot(b, x - a) - mu * (y - c)
    return gx, gy


# ---------------------------------------------------------------- one client on a weighted minibatch


def client_value(x, y, client, indices=None, weights=None, nu=1.0, mu=1.0):
    """Sum of weights[j] F(x, y; sample indices[j]); by default the plain mean over all samples."""
    a, b, c = client
    indices, weights = _minibatch(client, indices, weights)
    total = 0.0
    for j, weight in zip(indices, weights, strict=True):
        total += weight * sample_value(x, y, a[j], b[j], c[j], nu, mu)
    return total


def client_gradient(x, y, client, indices=None, weights=None, nu=1.0, mu=1.0):
    """(gradient in x, gradient in y) of client_value."""
    a, b, c = client
    indices, weights = _minibatch(client, indices, weights)
    gx = np.zeros(len(x))
    gy = np.zeros(len(y))
    for j, weight in zip(indices, weights, strict=True):
        sx, sy = sample_gradient(x, y, a[j], b[j], c[j], nu, mu)
        gx += weight * sx
        gy += weight * sy
    return gx, gy


def oracle(clients, nu=1.0, mu=1.0):
    """gradient(k, x, y, indices, weights) for fedsgda.fedsgda."""

    def gradient(k, x, y, indices, weights):
        return client_gradient(x, y, clients[k], indices, weights, nu, mu)

    return gradient


def _minibatch(client, indices, weights):
    if indices is None:
        indices = range(len(client[0]))
    if weights is None:
        weights = [1.0 / len(indices)] * len(indices)
    return indices, weights


# ---------------------------------------------------------------- all clients


def value(x, y, clients, nu=1.0, mu=1.0):
    return sum(client_value(x, y, client, nu=nu, mu=mu) for client in clients) / len(clients)


def gradient(x, y, clients, nu=1.0, mu=1.0):
    gx = np.zeros(len(x))
    gy = np.zeros(len(y))
    for client in clients:
        cx, cy = client_gradient(x, y, client, nu=nu, mu=mu)
        gx += cx / len(clients)
        gy += cy / len(clients)
    return gx, gy


def moments(clients):
    """{"B": <bb'>, "r": <bb'a>, "s": <bb'c>, "c": <c>, "t": <a'bb'c>, "q": <c'c>}.

    <.> is the mean over clients of the mean over a client's samples. t and q enter only phi.
    """
    p = clients[0][0].shape[1]
    out = {"B": np.zeros((p, p)), "r": np.zeros(p), "s": np.zeros(p), "c": np.zeros(p), "t": 0.0, "q": 0.0}
    for a, b, c in clients:
        for j in range(len(a)):
            weight = 1.0 / (len(clients) * len(a))
            ba = np.dot(b[j], a[j])
            bc = np.dot(b[j], c[j])
            out["B"] += weight * np.outer(b[j], b[j])
            out["r"] += weight * ba * b[j]
            out["s"] += weight * bc * b[j]
            out["c"] += weight * c[j]
            out["t"] += weight * ba * bc
            out["q"] += weight * np.dot(c[j], c[j])
    return out


def y_star(x, known, mu=1.0):
    """argmax_y f(x, y) = <c> + (Bx - r)/mu; known comes from moments()."""
    return known["c"] + (known["B"] @ x - known["r"]) / mu


def phi(x, clients, known=None, nu=1.0, mu=1.0):
    """max_y f(x, y) = <sum_l (1 - exp)> + mu/2 ||y*||^2 - x's + t - mu/2 q."""
    known = moments(clients) if known is None else known
    best = y_star(x, known, mu)
    total = 0.5 * mu * np.dot(best, best) - np.dot(x, known["s"]) + known["t"] - 0.5 * mu * known["q"]
    for a, _, _ in clients:
        for j in range(len(a)):
            total += np.sum(1.0 - np.exp(-((x - a[j]) ** 2) / (2 * nu))) / (len(clients) * len(a))
    return total


def phi_gradient(x, clients, known=None, nu=1.0, mu=1.0):
    """<(x-a)/nu exp(-(x-a)^2/(2 nu))> + B y*(x) - s; the paper's metric is its squared norm."""
    known = moments(clients) if known is None else known
    out = known["B"] @ y_star(x, known, mu) - known["s"]
    for a, _, _ in clients:
        for j in range(len(a)):
            out += (x - a[j]) / nu * np.exp(-((x - a[j]) ** 2) / (2 * nu)) / (len(clients) * len(a))
    return out


# ---------------------------------------------------------------- check


def _differences(f, z, h=1e-5):
    out = np.zeros(len(z))
    for j in range(len(z)):
        e = np.zeros(len(z))
        e[j] = h
        out[j] = (f(z + e) - f(z - e)) / (2 * h)
    return out


def _maximise(x, y, clients, nu, mu):
    """A numerical argmax over y: gradient ascent from y, not using the closed form."""
    for _ in range(200):
        y = y + 0.3 / mu * gradient(x, y, clients, nu, mu)[1]
    return y


def check(clients, x, y, nu=1.0, mu=1.0, tolerance=1e-7):
    """{name: largest error relative to 1 + the largest entry}; asserts that every one is at most tolerance.

    Gradients (one sample, a weighted minibatch, all clients) and grad Phi against central differences of the
    values; y*, Phi and grad Phi also against a numerically maximised y (T2).
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    known = moments(clients)
    errors = {}

    def compare(name, got, expected):
        got, expected = np.atleast_1d(got), np.atleast_1d(expected)
        errors[name] = float(np.max(np.abs(got - expected)) / (1 + np.max(np.abs(expected))))

    one = [array[0] for array in clients[0]]
    gx, gy = sample_gradient(x, y, *one, nu, mu)
    compare("sample, x", gx, _differences(lambda u: sample_value(u, y, *one, nu, mu), x))
    compare("sample, y", gy, _differences(lambda u: sample_value(x, u, *one, nu, mu), y))

    n = len(clients[0][0])
    batch = [n - 1, 0, n - 1]
    weights = [0.5, 0.2, 0.3]
    gx, gy = client_gradient(x, y, clients[0], batch, weights, nu, mu)
    at = lambda u, v: client_value(u, v, clients[0], batch, weights, nu, mu)
    compare("minibatch, x", gx, _differences(lambda u: at(u, y), x))
    compare("minibatch, y", gy, _differences(lambda u: at(x, u), y))

    gx, gy = gradient(x, y, clients, nu, mu)
    compare("all clients, x", gx, _differences(lambda u: value(u, y, clients, nu, mu), x))
    compare("all clients, y", gy, _differences(lambda u: value(x, u, clients, nu, mu), y))

    best = _maximise(x, y, clients, nu, mu)
    compare("y*", y_star(x, known, mu), best)
    compare("grad_y f at y*", gradient(x, y_star(x, known, mu), clients, nu, mu)[1], np.zeros(len(y)))
    compare("Phi", phi(x, clients, known, nu, mu), value(x, best, clients, nu, mu))
    closed = phi_gradient(x, clients, known, nu, mu)
    compare("grad Phi, Danskin", closed, gradient(x, best, clients, nu, mu)[0])
    compare("grad Phi, closed Phi", closed, _differences(lambda u: phi(u, clients, known, nu, mu), x))
    numeric = lambda u: value(u, _maximise(u, best, clients, nu, mu), clients, nu, mu)
    compare("grad Phi, maximised f", closed, _differences(numeric, x))

    failed = {name: error for name, error in errors.items() if not error <= tolerance}
    assert not failed, failed
    return errors


def main():
    rng = np.random.default_rng(0)
    for nu, mu in ((1.0, 1.0), (0.7, 2.5), (3.0, 0.2)):
        clients = generate(rng, clients=3, samples=4, dim=5)
        a, b, c = clients[1]
        clients[1] = (a[:2], b[:2], c[:2])  # unequal client sizes
        errors = check(clients, rng.normal(size=5), rng.normal(size=5), nu, mu)
        for name, error in errors.items():
            print(f"nu {nu} mu {mu} {name}: {error:.1e}")


if __name__ == "__main__":
    main()
