"""Values and saddle fields of one client on a weighted minibatch, sample by sample.

X has one row per sample of the minibatch; weights are theirs and sum to one. A field is
(gradient in x, minus the gradient in y).
"""

import math

import numpy as np


def score(w, bias, x):
    h = bias
    for j in range(len(x)):
        h += w[j] * x[j]
    return h


def _split_auc(z):
    return z[:-4], z[-4], z[-3], z[-2], z[-1]


# ---------------------------------------------------------------- AUC, z = [w, bias, a, b, alpha]


def auc_value(z, X, y, weights, p):
    w, bias, a, b, alpha = _split_auc(z)
    total = 0.0
    for i in range(len(y)):
        h = score(w, bias, X[i])
        if y[i] == 1:
            value = (1 - p) * (h - a) ** 2 - 2 * (1 + alpha) * (1 - p) * h
        else:
            value = p * (h - b) ** 2 + 2 * (1 + alpha) * p * h
        total += weights[i] * (value - p * (1 - p) * alpha**2)
    return total


def auc_field(z, X, y, weights, p):
    w, bias, a, b, alpha = _split_auc(z)
    d = len(w)
    out = np.zeros(d + 4)
    for i in range(len(y)):
        h = score(w, bias, X[i])
        if y[i] == 1:
            dh = 2 * (1 - p) * (h - a) - 2 * (1 + alpha) * (1 - p)
            da = -2 * (1 - p) * (h - a)
            db = 0.0
            dalpha = -2 * (1 - p) * h
        else:
            dh = 2 * p * (h - b) + 2 * (1 + alpha) * p
            da = 0.0
            db = -2 * p * (h - b)
            dalpha = 2 * p * h
        dalpha -= 2 * p * (1 - p) * alpha
        for j in range(d):
            out[j] += weights[i] * dh * X[i][j]
        out[d] += weights[i] * dh
        out[d + 1] += weights[i] * da
        out[d + 2] += weights[i] * db
        out[d + 3] -= weights[i] * dalpha
    return out


# -------------------------------------------------- AUC, margin mode, z = [w, bias, a, b, A = 1 + alpha]


def auc_margin_value(z, X, y, weights, p, m=1.0):
    w, bias, a, b, A = _split_auc(z)
    total = 0.0
    for i in range(len(y)):
        h = score(w, bias, X[i])
        if y[i] == 1:
            value = (1 - p) * (h - a) ** 2 - 2 * A * (1 - p) * h
        else:
            value = p * (h - b) ** 2 + 2 * A * p * h
        total += weights[i] * (value + 2 * A * p * (1 - p) * m - p * (1 - p) * A**2)
    return total


def auc_margin_field(z, X, y, weights, p, m=1.0):
    """Primal gradients of F_m; the dual entry is the public code's, not dF_m/dA."""
    w, bias, a, b, A = _split_auc(z)
    d = len(w)
    out = np.zeros(d + 4)
    for i in range(len(y)):
        h = score(w, bias, X[i])
        if y[i] == 1:
            dh = 2 * (1 - p) * (h - a) - 2 * A * (1 - p)
            da = -2 * (1 - p) * (h - a)
            db = 0.0
        else:
            dh = 2 * p * (h - b) + 2 * A * p
            da = 0.0
            db = -2 * p * (h - b)
        for j in range(d):
            out[j] += weights[i] * dh * X[i][j]
        out[d] += weights[i] * dh
        out[d + 1] += weights[i] * da
        out[d + 2] += weights[i] * db
    out[d + 3] = -(2 * (m + b - a) - 2 * A)
    return out


def auc_margin_project(z):
    z = np.array(z, dtype=float)
    z[-1] = min(max(z[-1], 0.0), 999.0)
    return z


# ---------------------------------------------------------------- the constant p


def client_mean_p(labels):
    """Unweighted mean over clients of the local ratio of label 1."""
    total = 0.0
    for y in labels:
        total += sum(1 for v in y if v == 1) / len(y)
    return total / len(labels)


def pooled_p(labels):
    positives = samples = 0
    for y in labels:
        positives += sum(1 for v in y if v == 1)
        samples += len(y)
    return positives / samples


# ---------------------------------------------------------------- empirical risks (no dual part)


def logistic_value(z, X, t, weights):
    """z = [w, bias]; t in {-1, +1}."""
    total = 0.0
    for i in range(len(t)):
        s = -t[i] * score(z[:-1], z[-1], X[i])
        total += weights[i] * (max(s, 0.0) + math.log1p(math.exp(-abs(s))))
    return total


def logistic_field(z, X, t, weights):
    d = len(z) - 1
    out = np.zeros(d + 1)
    for i in range(len(t)):
        s = t[i] * score(z[:-1], z[-1], X[i])
        sigma = 1 / (1 + math.exp(s)) if s < 0 else math.exp(-s) / (1 + math.exp(-s))
        dh = -t[i] * sigma
        for j in range(d):
            out[j] += weights[i] * dh * X[i][j]
        out[d] += weights[i] * dh
    return out


def squared_value(z, X, y, weights):
    total = 0.0
    for i in range(len(y)):
        total += weights[i] * 0.5 * (score(z[:-1], z[-1], X[i]) - y[i]) ** 2
    return total


def squared_field(z, X, y, weights):
    d = len(z) - 1
    out = np.zeros(d + 1)
    for i in range(len(y)):
        dh = score(z[:-1], z[-1], X[i]) - y[i]
        for j in range(d):
            out[j] += weights[i] * dh * X[i][j]
        out[d] += weights[i] * dh
    return out


def _softmax_scores(z, x, classes):
    d = len(x)
    return [score(z[c * d : (c + 1) * d], z[classes * d + c], x) for c in range(classes)]


def softmax_value(z, X, y, weights, classes):
    """z = [weight (classes x d, row-major), bias (classes)]; y in 0..classes-1."""
    total = 0.0
    for i in range(len(y)):
        h = _softmax_scores(z, X[i], classes)
        top = max(h)
        total += weights[i] * (top + math.log(sum(math.exp(v - top) for v in h)) - h[int(y[i])])
    return total


def softmax_field(z, X, y, weights, classes):
    out = np.zeros(len(z))
    for i in range(len(y)):
        d = len(X[i])
        h = _softmax_scores(z, X[i], classes)
        top = max(h)
        e = [math.exp(v - top) for v in h]
        for c in range(classes):
            dh = e[c] / sum(e) - (1.0 if c == int(y[i]) else 0.0)
            for j in range(d):
                out[c * d + j] += weights[i] * dh * X[i][j]
            out[classes * d + c] += weights[i] * dh
    return out


# ---------------------------------------------------------------- quadratic saddle


def quadratic_value(z, A, B, C, a, b):
    """f(x, y) = x'Ax/2 + x'By - y'Cy/2 + a'x - b'y."""
    x, y = z[: len(a)], z[len(a) :]
    return 0.5 * x @ A @ x + x @ B @ y - 0.5 * y @ C @ y + a @ x - b @ y


def quadratic_field(z, A, B, C, a, b):
    x, y = z[: len(a)], z[len(a) :]
    gx = 0.5 * (A + A.T) @ x + B @ y + a
    gy = B.T @ x - 0.5 * (C + C.T) @ y - b
    return np.concatenate([gx, -gy])


def quadratic_saddle(clients):
    """The exact saddle point of the plain mean of the clients' (A, B, C, a, b)."""
    N = len(clients)
    A = sum(q[0] for q in clients) / N
    B = sum(q[1] for q in clients) / N
    C = sum(q[2] for q in clients) / N
    a = sum(q[3] for q in clients) / N
    b = sum(q[4] for q in clients) / N
    M = np.block([[0.5 * (A + A.T), B], [-B.T, 0.5 * (C + C.T)]])
    return np.linalg.solve(M, -np.concatenate([a, b]))
