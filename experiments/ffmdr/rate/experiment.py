"""How fast FFMDR's iterates converge on a problem with the KL exponent 1/2: a line on a logarithmic scale (Theorem 3 (ii)).

The objective, convex and piecewise quadratic, has that exponent. Theorem 3 speaks of the distance from the limit, which is
not known; of a sequence that converges linearly the steps shrink at the same rate.
"""

import math

from fedsaddle.reproduce import Cell, Verdict

TITLE = "FFMDR's iterates converge linearly"
ROWS, COLUMNS = "beta", "data"
METRICS = {
    "slope": "Decades by which ||z_{r+1} - z_r|| changes in 100 rounds: slope of a line fitted to its logarithm",
    "fit": "Share of the logarithm's variance that the line explains",
    "decades": "Decades over which it was fitted",
}
SELECT = "fit"
SEEDS = [0, 1, 2]
CURVES = ["move"]
BETAS = [0.5, 1.0, 2.0]
BOUND = 0.0017  # 0.0549 / L; L = 32, the largest Lipschitz constant of a client's field
LARGE, SMALL = 1e-4, 1e-12  # steps between these are fitted: past the beginning, above rounding


def cells(quick):
    place = {"train.rounds": 400} if quick else {}
    return [
        Cell({"beta": f"beta = {beta:g}", "data": "breast_cancer"}, {"algorithm.beta": beta, **place})
        for beta in (BETAS[1:2] if quick else BETAS)
    ]


def fitted(curves):
    """Rounds and log10 of the steps that the line is fitted to."""
    pairs = zip(curves["round"], curves["move"], strict=True)
    return [(r, math.log10(v)) for r, v in pairs if v is not None and SMALL < v < LARGE]


def measure(curves):
    """Of one run, by least squares."""
    points = fitted(curves)
    if len(points) < 3:
        return {"slope": math.nan, "fit": 0.0, "decades": 0.0}
    n = len(points)
    x, y = sum(r for r, _ in points) / n, sum(v for _, v in points) / n
    xx, yy = sum((r - x) ** 2 for r, _ in points), sum((v - y) ** 2 for _, v in points)
    xy = sum((r - x) * (v - y) for r, v in points)
    return {"slope": 100 * xy / xx, "fit": xy * xy / (xx * yy), "decades": points[0][1] - points[-1][1]}


def judge(rows):
    least = min(r["metrics"]["fit"]["mean"] for r in rows)
    decades = min(r["metrics"]["decades"]["mean"] for r in rows)
    slopes = ", ".join(f"{r['beta']}: {r['metrics']['slope']['mean']:.3f}" for r in rows)
    return [
        Verdict(
            f"Theorem 3 (ii), measured outside its range (beta {BETAS[0]:g} to {BETAS[-1]:g}; it asks for less than "
            f"0.0549 / L = {BOUND:g}): the iterates converge linearly (a line explains 99 % of the variance of "
            "log ||z_{r+1} - z_r||, over four decades or more, at every beta)",
            least >= 0.99 and decades >= 4,
            f"Decades in 100 rounds, {slopes}; the line explains {100 * least:.2f} % or more, over {decades:.1f} decades or "
            "more.",
            "linear, for beta below 0.0549 / L (no numbers)",
            f"a line explains {100 * least:.2f} % over {decades:.1f} decades",
        )
    ]  # fmt: skip


def figure(rows):
    import plotly.graph_objects as go

    fig = go.Figure()
    for row, hue in zip(rows, ["#0072b2", "#009e73", "#d55e00"], strict=False):
        rounds, steps = row["curves"]["round"], row["curves"]["move"][0]
        fig.add_scatter(x=rounds, y=steps, name=row["beta"], line={"color": hue, "width": 2.5})
        points = fitted({"round": rounds, "move": steps})
        if len(points) < 3:
            continue
        slope = measure({"round": rounds, "move": steps})["slope"] / 100
        middle = sum(r for r, _ in points) / len(points), sum(v for _, v in points) / len(points)
        ends = [points[0][0], points[-1][0]]
        fig.add_scatter(
            x=ends, y=[10 ** (middle[1] + slope * (r - middle[0])) for r in ends], line={"color": "#222", "dash": "dot"},
            mode="lines", name=f"{100 * slope:.2f} decades in 100 rounds",
        )  # fmt: skip
    fig.update_yaxes(type="log", title="‖z<sub>r+1</sub> − z<sub>r</sub>‖", exponentformat="power")
    fig.update_xaxes(title="round")
    fig.update_layout(
        template="plotly_white", width=950, height=540, title="First seed, and the lines fitted to it"
    )
    return fig
