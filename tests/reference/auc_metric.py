"""AUC by pairs, and the primal function phi of linear AUC with equally weighted clients."""

import math

import numpy as np

from tests.reference.problems import auc_field, score


def auc(scores, labels):
    """Share of (positive, negative) pairs in the right order, ties one half; nan without pairs."""
    good = 0.0
    pairs = 0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if labels[i] == 1 and labels[j] != 1:
                pairs += 1
                if scores[i] > scores[j]:
                    good += 1.0
                elif scores[i] == scores[j]:
                    good += 0.5
    return good / pairs if pairs else math.nan


def best_alpha(v, clients, p):
    """alpha*(v) = X/(p(1-p)); v = [w, bias, a, b]; clients = [(X, y), ...]."""
    total = 0.0
    for X, y in clients:
        part = 0.0
        for i in range(len(y)):
            h = score(v[:-3], v[-3], X[i])
            part += -(1 - p) * h if y[i] == 1 else p * h
        total += part / len(y)
    return total / len(clients) / (p * (1 - p))


def phi(v, clients, p):
    """max over alpha of f = (1/N) sum_i mean_i F, by the closed form."""
    a, b = v[-2], v[-1]
    total = 0.0
    for X, y in clients:
        part = 0.0
        for i in range(len(y)):
            h = score(v[:-3], v[-3], X[i])
            part += (1 - p) * (h - a) ** 2 if y[i] == 1 else p * (h - b) ** 2
        total += part / len(y)
    x_mean = best_alpha(v, clients, p) * p * (1 - p)
    return total / len(clients) + 2 * x_mean + x_mean**2 / (p * (1 - p))


def grad_phi(v, clients, p):
    """grad_v f at (v, alpha*(v))."""
    z = np.concatenate([np.asarray(v, dtype=float), [best_alpha(v, clients, p)]])
    total = np.zeros(len(v))
    for X, y in clients:
        total += auc_field(z, X, y, [1.0 / len(y)] * len(y), p)[:-1]
    return total / len(clients)
