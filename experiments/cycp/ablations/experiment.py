"""CyCp-Minimax and CyCp-Pairwise by communication interval I, participants M and groups G (figures 1, 2 and 3)."""

import math
from itertools import pairwise
from statistics import fmean, variance

from fedsaddle.reproduce import NOISE, Cell, Verdict

TITLE = "CyCp-Minimax and CyCp-Pairwise by communication interval, participants and groups (phishing, 100 clients)"
ROWS, COLUMNS = "method", "at"
METRICS = {
    "auc": "Test AUC at the end",
    "course": "Test AUC on average over the run's rounds (higher: it rises faster)",
    "valid_auc": "Validation AUC at the end (used for choosing the step size)",
}
SELECT = "valid_auc"
SEEDS = [0, 1, 2]
CURVES = ["auc"]

ITERATIONS = 12_800  # of a client that is always there: rounds times I, where I varies
INTERVALS, PARTICIPANTS, GROUPS = (8, 16, 32, 64, 128), (1, 2, 5, 10), (1, 2, 5, 10, 20)
TOLERANCE = 0.01
METHODS = {
    "CyCp-Minimax": {"algorithm.name": "cycp_minimax"},
    "CyCp-Pairwise": {"algorithm.name": "cycp_pairwise", "problem.name": "pairwise_auc", "problem.loss": "sigmoid"},
}  # fmt: skip


def cells(quick):
    varied = [("I", I) for I in INTERVALS] + [("M", M) for M in PARTICIPANTS] + [("G", G) for G in GROUPS]
    small = {
        "data.name": "synthetic_binary", "partition.min_size": 4, "transform.0.share": 0.5, "train.batch_size": 8,
    }  # fmt: skip
    out = []
    for method, names in METHODS.items():
        for letter, value in varied:
            if quick and value not in (8, 32, 1, 10):
                continue
            rounds, every, I = (20, 4, 2) if quick else (300, 10, 16)
            if letter == "I":
                I = value
                rounds = 20 if quick else ITERATIONS // I
                every = max(1, rounds // 25)
            m = value if letter == "M" else 1 if letter == "G" else 5
            groups = value if letter == "G" else 10
            out.append(
                Cell(
                    {"method": method, "at": f"{letter} = {value}", "letter": letter, "value": value},
                    {
                        **(small if quick else {}), **names, "algorithm.local_steps": I, "participation.m": m,
                        "participation.groups": groups, "train.rounds": rounds, "train.eval_every": every,
                    },
                    {"algorithm.lr": [0.1, 0.01] if quick else [0.1, 0.01, 0.001]},
                )
            )  # fmt: skip
    return out


def measure(curves):
    """Of one run: mean over rounds, the curve taken as straight between two evaluations."""
    at = list(zip(curves["round"], curves["auc"], strict=True))
    return {"course": sum((q - p) * (a + b) / 2 for (p, a), (q, b) in pairwise(at)) / at[-1][0]}


def judge(rows):
    """A difference counts where it exceeds two standard errors over seeds."""
    at = {(r["method"], r["letter"], r["value"]): r["metrics"] for r in rows}

    def series(method, letter, metric):
        return {v: m[metric] for (name, what, v), m in at.items() if (name, what) == (method, letter)}

    def listed(by):
        return ", ".join(f"{k}: {m['mean']:.4f} ± {_error(m):.4f}" for k, m in by.items())

    out = []
    for method in METHODS:
        by = series(method, "I", "auc")
        drops = [
            (by[min(by)]["mean"] - m["mean"], _error(by[min(by)], m)) for v, m in by.items() if v != min(by)
        ]
        drop, error = max(drops)
        within = all(less + NOISE * error <= TOLERANCE for less, error in drops)
        beyond = any(less - NOISE * error > TOLERANCE for less, error in drops)
        out.append(
            Verdict(
                f"C-2.3: {method}'s test AUC stays within {TOLERANCE} of that at I = {min(by)} as I grows to {max(by)}, "
                "beyond the noise",
                True if within else False if beyond else None,
                f"I = {listed(by)} (standard errors over seeds).",
                "stable (figure 1, curves)",
                f"at most {drop:.4f} ± {error:.4f} less",
            )
        )
    for letter, what in (("M", "more participants a visit"), ("G", "more groups, with M = 1")):
        for method in METHODS:
            by = series(method, letter, "course")
            low, high = min(by), max(by)
            more, error = by[high]["mean"] - by[low]["mean"], _error(by[high], by[low])
            rising = sum(b["mean"] > a["mean"] for a, b in pairwise(by.values()))
            of_seeds = [b - a for a, b in zip(by[low]["values"], by[high]["values"], strict=True)]
            out.append(
                Verdict(
                    f"C-2.4: {method} converges faster with {what} (the mean AUC of the course is higher at {letter} = "
                    f"{high} than at {letter} = {low}, beyond the noise)",
                    True if more > NOISE * error else False if more < -NOISE * error else None,
                    f"{letter} = {listed(by)} (standard errors over seeds); rising in {rising} of {len(by) - 1} steps. "
                    f"From {letter} = {low} to {high} {more:+.4f} ± {error:.4f}; seed by seed "
                    f"{', '.join(f'{d:+.4f}' for d in of_seeds)}.",
                    f"faster (figure {2 if letter == 'M' else 3}, curves)",
                    f"{more:+.4f} ± {error:.4f} from {letter} = {low} to {high}",
                )
            )
    return out


def _error(*cells):
    """Standard error of a mean over seeds, or of the difference of two."""
    return math.sqrt(sum(variance(m["values"]) / len(m["values"]) for m in cells if len(m["values"]) > 1))


def figure(rows):
    from plotly.subplots import make_subplots

    letters = {"I": "communication interval I", "M": "participants M", "G": "groups G (M = 1)"}
    fig = make_subplots(
        2, 3, subplot_titles=[f"{m}: {words}" for m in METHODS for words in letters.values()], shared_yaxes=True,
        horizontal_spacing=0.03, vertical_spacing=0.12,
    )  # fmt: skip
    shades = ["#c6dbef", "#9ecae1", "#6baed6", "#2171b5", "#08306b"]
    for i, method in enumerate(METHODS):
        for j, letter in enumerate(letters):
            mine = [r for r in rows if r["method"] == method and r["letter"] == letter]
            for r, colour in zip(mine, shades[-len(mine) :], strict=True):
                fig.add_scatter(
                    x=[k / r["curves"]["round"][-1] for k in r["curves"]["round"]],
                    y=[fmean(v) for v in zip(*r["curves"]["auc"], strict=True)],
                    name=r["at"], line={"color": colour, "width": 2}, row=i + 1, col=j + 1, mode="lines",
                    legendgroup=letter, legendgrouptitle={"text": letters[letter]}, showlegend=i == 0,
                )  # fmt: skip
    fig.update_xaxes(title="share of the run", row=2)
    fig.update_yaxes(range=[0.9, 0.99])  # where runs differ; all start near 0.44
    fig.update_yaxes(title="test AUC", col=1)
    fig.update_layout(template="plotly_white", width=1250, height=720, title="Mean over three seeds")
    return fig
