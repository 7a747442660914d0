"""Test AUC against the communication interval I on imbalanced, heterogeneous images, CODA+ against CODASCA (figures 1 to 4).

Each client owns other classes than the others, as far as there are enough, and few positives. All I have the same number of
iterations. The step size is chosen on validation data: of the CNN in each cell, of other models at I = 32 for all I.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

from fedsaddle.reproduce import NOISE, Cell, Verdict

TITLE = "AUC against the communication interval on images, CODA+ and CODASCA"
ROWS, COLUMNS = "run", "I"
METRICS = {"auc": "Test AUC", "valid_auc": "Validation AUC (used for choosing the step size)"}
SELECT = "valid_auc"
SEEDS = [0, 1, 2]
CURVES = ["auc"]

INTERVALS = [1, 32, 64, 128, 512, 1024]
TOLERANCE = 0.01  # "does not degenerate too much compared with I = 1"; the paper gives no number
OTHERS = (0.002, 0.005, 0.02)  # I_max is reported with these too
PLACES = [(16, 10), (8, 10), (16, 30), (8, 30)]  # K, imratio in percent
METHODS = {"CODA+": "coda_plus", "CODASCA": "codasca"}


class Budget(NamedTuple):
    """What a network is given."""

    model: dict[str, Any]  # [model] of a config
    iterations: int  # of a run; the paper: 20,000
    stage: int  # iterations of a stage; the paper: 4,000; here every I divides both
    tuned_on: list[int]  # seeds
    together: int  # at most; larger networks fill a GPU with three runs, but for the rounds of I = 1
    steps: Sequence[float] = (0.1, 0.01, 0.001)  # the paper's
    place: Mapping[str, Any] = {"train.compile": True}


NETWORKS = {
    "cnn": Budget({"name": "cnn"}, 20_480, 4_096, SEEDS, 64),
    "resnet18": Budget({"name": "resnet18"}, 4_096, 4_096, SEEDS[:1], 3),
    # the stem of its paper, and the sigmoid of the public code
    "resnet18-7x7": Budget(
        {"name": "resnet18", "stem": "large", "pixels": 32, "sigmoid": True}, 4_096, 2_048, [3], 3
    ),
    "densenet121": Budget({"name": "densenet121"}, 4_096, 4_096, SEEDS[:1], 3),
    # a miniature for a CPU: on pixels in [-1, 1], where 0.1 diverges
    "linear": Budget(
        {"name": "linear"}, 4_096, 2_048, [3], 3, (0.03, 0.01, 0.003, 0.001),
        {"data.scale": "symmetric", "train.precision": "full"},
    ),
}  # fmt: skip
OPTIONS = {
    "data": ("cifar10", "cifar100"),
    "model": tuple(NETWORKS),
    "part": (
        "all",
        *(f"K{K}-{ratio}" for K, ratio in PLACES),
        *(f"K{K}-{ratio}-I{I}" for K, ratio in PLACES for I in INTERVALS),
    ),
}


def together(model, **_):
    return NETWORKS[model].together


def tuned_at(I, quick, model):
    """The interval at which the step size for I is chosen."""
    return I if quick or model == "cnn" else INTERVALS[1]


def tuned_on(model, **_):
    return NETWORKS[model].tuned_on


def _places(quick, part):
    """K, imratio, I and method of every cell of a part."""
    return [
        (K, ratio, I, label)
        for K, ratio in PLACES
        for I in ([1, 8] if quick else INTERVALS)
        for label in METHODS
        if part in ("all", f"K{K}-{ratio}", f"K{K}-{ratio}-I{I}") and not (quick and K == 16)
    ]


def _cell(K, ratio, I, label, points, quick, data, model):
    budget = NETWORKS[model]
    total, stage = (32, 16) if quick else (budget.iterations, budget.stage)
    looks = 20 if quick or model == "cnn" else 8
    place = {"data.name": data, "model": budget.model, **budget.place}
    if quick:
        place = {
            "data.name": "digits", "data.test": 0.3, "model": {"name": "mlp"}, "train.precision": "full",
            "train.batch_size": 8,
        }  # fmt: skip
    return Cell(
        at={
            "run": f"{label}, K = {K}, {ratio} %", "I": I, "method": label, "K": K, "ratio": ratio,
            "intervals": [1, 8] if quick else INTERVALS,
        },
        set={
            **place, "partition.clients": K, "partition.imratio": ratio / 100,
            "algorithm.name": METHODS[label], "algorithm.local_steps": I, "algorithm.stage_rounds": stage // I,
            "train.rounds": total // I, "train.eval_every": max(1, total // looks // I),
        },
        tune=points,
    )  # fmt: skip


def _grid(quick, model):
    return [{"algorithm.lr": step} for step in ((0.1, 0.01) if quick else NETWORKS[model].steps)]


def step_sizes(rows, quick, data, model, part):
    places = [(K, ratio, tuned_at(I, quick, model), label) for K, ratio, I, label in _places(quick, part)]
    return [_cell(*place, _grid(quick, model), quick, data, model) for place in dict.fromkeys(places)]


def reported(rows, quick, data, model, part):
    chosen = {(r["K"], r["ratio"], r["I"], r["method"]): [r["chosen"]] for r in rows}

    def points(K, ratio, I, label):
        """What was chosen; of a part that was not tuned yet, all that can be."""
        return chosen.get((K, ratio, tuned_at(I, quick, model), label), _grid(quick, model))

    return [_cell(*place, points(*place), quick, data, model) for place in _places(quick, part)]


STEPS = [step_sizes, reported]


def measure(curves):
    return {}


def largest_interval(auc, tolerance):
    """I_max: the largest I up to which the test AUC stays within the tolerance of that at I = 1."""
    best = 1
    for I in sorted(auc):
        if auc[I] < auc[1] - tolerance:
            break
        best = I
    return best


class Most(NamedTuple):
    """I_max of means over seeds, and the least and largest that 2 standard errors of the losses over seeds leave open."""

    mean: int
    least: int
    largest: int


def error(some, others):
    """The standard error over seeds of the difference of two means; of a seed alone more than any difference of AUC."""
    if min(len(some), len(others)) < 2:
        return 1.0
    return math.sqrt(variance(some) / len(some) + variance(others) / len(others))


def most(each, tolerance):
    """Of one method, by its AUC seed by seed at each I."""
    auc = {I: fmean(values) for I, values in each.items()}
    give = {I: NOISE * error(values, each[1]) if I > 1 else 0.0 for I, values in each.items()}
    return Most(
        *(largest_interval({I: v + k * give[I] for I, v in auc.items()}, tolerance) for k in (0, -1, 1))
    )


def tolerates_more(sca, plus, last):
    """Whether CODASCA's I_max is larger; not decided where noise leaves both open, or both reach the last I that was run."""
    if sca.least > plus.largest:
        return True
    return False if sca.largest < plus.least or sca.largest == plus.least < last else None


PUBLISHED = {(16, 10): "128 against 32 on ImageNet, ratio 4", (8, 10): "512 against 128 on ImageNet, ratio 4"}


def judge(rows):
    """Places (K, imratio) at which all intervals were run.

    At I = 1 both are the same method (T14), and differ by rounding, which training magnifies. Where that, or its standard
    error over seeds, is more than the tolerance, nothing is decided.
    """
    out = []
    for K, ratio in PLACES:
        mine = [r for r in rows if (r["K"], r["ratio"]) == (K, ratio)]
        each = {m: {r["I"]: r["metrics"]["auc"]["values"] for r in mine if r["method"] == m} for m in METHODS}
        if not mine or any(sorted(v) != sorted(mine[0]["intervals"]) for v in each.values()):
            continue
        auc = {m: {I: fmean(values) for I, values in own.items()} for m, own in each.items()}
        found = {t: {m: most(each[m], t) for m in METHODS} for t in (TOLERANCE, *OTHERS)}
        own = found[TOLERANCE]
        lost = "; ".join(
            f"{m} " + ", ".join(f"I={I}: {v - auc[m][1]:+.4f}" for I, v in auc[m].items() if I > 1)
            for m in METHODS
        )
        spread = max(r["metrics"]["auc"]["std"] for r in mine)
        of_seeds = ", ".join(
            " against ".join(
                str(largest_interval({I: v[j] for I, v in each[m].items()}, TOLERANCE)) for m in ("CODASCA", "CODA+")
            )
            for j in range(min(len(v) for own in each.values() for v in own.values()))
        )  # fmt: skip
        apart, give = auc["CODASCA"][1] - auc["CODA+"][1], error(each["CODASCA"][1], each["CODA+"][1])
        blurred = max(abs(apart), give) > TOLERANCE
        holds = None if blurred else tolerates_more(own["CODASCA"], own["CODA+"], max(auc["CODA+"]))
        means = f"I_max {own['CODASCA'].mean} against {own['CODA+'].mean}"
        if blurred:
            means += f"; I = 1: {apart:+.4f}±{give:.4f}"
        elif holds is None:
            means += f"; CODA+'s {own['CODA+'].least} to {own['CODA+'].largest} by noise"
        out.append(
            Verdict(
                f"{'C-3.1' if ratio == 10 else 'C-3.2'}: at K = {K}, imratio {ratio} %, CODASCA tolerates a larger I "
                f"than CODA+ (I_max: test AUC within {TOLERANCE} of its own at I = 1; by 2 standard errors over seeds)",
                holds,
                f"I_max is {own['CODASCA'].mean} for CODASCA and {own['CODA+'].mean} for CODA+, "
                f"ratio {own['CODASCA'].mean / own['CODA+'].mean:g}; with 2 standard errors "
                + " and ".join(f"{own[m].least} to {own[m].largest}" for m in ("CODASCA", "CODA+"))
                + "".join(f"; within {t}: {found[t]['CODASCA'].mean} and {found[t]['CODA+'].mean}" for t in OTHERS)
                + f". AUC at I = 1: {', '.join(f'{m} {auc[m][1]:.4f}' for m in METHODS)}; relative to it: {lost}. "
                f"Largest standard deviation over seeds: {spread:.4f}. I_max seed by seed: {of_seeds}. "
                f"At I = 1 both are the same method; their AUC differ by {abs(apart):.4f} ± {give:.4f} there"
                + (", more than the tolerance: not decided." if blurred else "."),
                PUBLISHED.get((K, ratio), "the same picture (figures 1 to 4, curves)"),
                means,
            )
        )  # fmt: skip
    return out


def figure(rows):
    """As figure 1: above, CODASCA's AUC against iterations for every I; below, AUC against I for both methods."""
    from plotly.subplots import make_subplots

    places = [p for p in PLACES if any((r["K"], r["ratio"]) == p for r in rows)]
    shades = dict(
        zip(INTERVALS, ["#08306b", "#2171b5", "#6baed6", "#f0b48c", "#e6550d", "#7f2704"], strict=True)
    )
    shades |= {8: "#2171b5"}  # of the quick version
    fig = make_subplots(
        2, len(places), subplot_titles=[f"K = {K}, {ratio} %" for K, ratio in places], horizontal_spacing=0.05,
    )  # fmt: skip
    named = set()
    for col, place in enumerate(places, 1):
        mine = sorted((r for r in rows if (r["K"], r["ratio"]) == place), key=lambda r: r["I"])
        for r in (r for r in mine if r["method"] == "CODASCA"):
            fig.add_scatter(
                x=[t * r["I"] for t in r["curves"]["round"]], y=[fmean(v) for v in zip(*r["curves"]["auc"], strict=True)],
                name=f"CODASCA, I = {r['I']}", legendgroup=f"I{r['I']}", showlegend=r["I"] not in named, mode="lines",
                line={"color": shades[r["I"]], "width": 2}, row=1, col=col,
            )  # fmt: skip
            named.add(r["I"])
        for method, colour in (("CODA+", "#d55e00"), ("CODASCA", "#0072b2")):
            line = [r for r in mine if r["method"] == method]
            fig.add_scatter(
                x=[r["I"] for r in line], y=[r["metrics"]["auc"]["mean"] for r in line], name=method, legendgroup=method,
                error_y={"type": "data", "array": [r["metrics"]["auc"]["std"] for r in line]}, showlegend=col == 1,
                line={"color": colour, "width": 3}, row=2, col=col,
            )  # fmt: skip
    fig.update_xaxes(title="iterations", row=1)
    fig.update_xaxes(
        type="log", title="communication interval I", tickvals=sorted({r["I"] for r in rows}), row=2
    )
    fig.update_yaxes(title="test AUC", col=1)
    width = max(760, 330 * len(places) + 260)
    fig.update_layout(template="plotly_white", width=width, height=720, title=TITLE)
    return fig
