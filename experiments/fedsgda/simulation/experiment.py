"""||grad Phi||^2 against rounds, FedSGDA-MB and FedSGDA-STORM at every M and K of Table 1 (figures 1 and 3)."""

import math
from itertools import pairwise
from statistics import fmean, stdev

from fedsaddle.reproduce import Cell, Verdict, sibling

TITLE = "Squared gradient norm of Phi against rounds, FedSGDA-MB and FedSGDA-STORM (500 clients)"
ROWS, COLUMNS = "run", "M"
METRICS = {
    "end": "||grad Phi||² at the end (mean of the evaluations in the last tenth of the rounds)",
    "average": "||grad Phi||² on average over all rounds (the quantity that the theorems bound)",
    "third_quarter": "||grad Phi||² on average over the third quarter of the rounds",
    "last_quarter": "||grad Phi||² on average over the last quarter of the rounds",
}
SELECT = "end"  # nothing is tuned here: the step sizes are those of Table 1
SEEDS = [0, 1, 2]  # of participation and minibatches, the same for both methods
CURVES = ["grad_phi"]

TABLE_1 = {  # (M, K): eta, gamma of MB; c_eta, c_gamma, c_alpha of STORM
    (5, 5): ((1e-3, 1e-3), (1e-2, 1e-1, 1.0)),
    (5, 10): ((1e-4, 1e-3), (1e-3, 1e-2, 10.0)),
    (5, 20): ((1e-4, 1e-3), (1e-3, 1e-1, 1.0)),
    (10, 5): ((1e-3, 1e-3), (1e-2, 1e-1, 1.0)),
    (10, 10): ((1e-4, 1e-3), (1e-3, 1e-2, 1.0)),
    (10, 20): ((1e-4, 1e-3), (1e-3, 1e-2, 1.0)),
    (20, 5): ((1e-3, 1e-3), (1e-2, 1e-1, 1.0)),
    (20, 10): ((1e-3, 1e-2), (1e-3, 1e-2, 1.0)),
    (20, 20): ((1e-4, 1e-3), (1e-3, 1e-3, 1.0)),
}
GAPS = sibling(__file__, "auc")  # its measure of noise
FLAT = 0.1  # a curve has levelled off if its last quarter is less than this fraction below the quarter before


def cells(quick):
    small = {
        "data.clients": 40, "data.samples": 10, "data.dim": 10, "problem.dim": 10, "train.rounds": 40, "train.eval_every": 2,
    }  # fmt: skip
    out = []
    for (M, K), (mb, storm) in TABLE_1.items():
        if quick and 10 in (M, K):
            continue
        place = {"participation.m": M, "algorithm.local_steps": K, **(small if quick else {})}
        for method, (lr, lr_dual, *c_alpha) in (("MB", mb), ("STORM", storm)):
            steps = {"algorithm.lr": lr, "algorithm.lr_dual": lr_dual, "algorithm.estimator": method.lower()}
            if c_alpha:
                steps |= {"algorithm.momentum": c_alpha[0], "algorithm.decay": 1 / 3}
            out.append(
                Cell({"run": f"{method}, K = {K}", "method": method, "M": M, "K": K}, {**place, **steps})
            )
    return out


def measure(curves):
    """Of one run; the problem reports ||grad Phi||, the paper its square."""
    rounds, T = curves["round"], curves["round"][-1]

    def mean(first, last):
        return fmean(g**2 for r, g in zip(rounds, curves["grad_phi"], strict=True) if first <= r / T <= last)

    return {
        "end": mean(0.9, 1),
        "average": mean(0, 1),
        "third_quarter": mean(0.5, 0.75),
        "last_quarter": mean(0.75, 1),
    }


def judge(rows):
    """Gaps count if they are more than 2 standard errors over seeds (of one draw of the data)."""
    row = {(r["method"], r["M"], r["K"]): r for r in rows}
    Ms, Ks = (sorted({key[i] for key in row}) for i in (1, 2))
    settings = [(M, K) for K in Ks for M in Ms]
    methods = ("MB", "STORM")

    def mean(metric, *place):
        return row[place]["metrics"][metric]["mean"]

    def chain(metric, method, K):
        return f"{method}, K={K}: " + ", ".join(f"{mean(metric, method, M, K):.3f}" for M in Ms)

    def chains(metric):
        return "; ".join(chain(metric, m, K) for m in methods for K in Ks)

    steps = {
        (m, K, M): GAPS.difference([row[m, fewer, K]], [row[m, M, K]], "average")
        for m in methods for K in Ks for fewer, M in pairwise(Ms)
    }  # fmt: skip
    faster = [
        GAPS.difference([row[m, fewer, K] for K in Ks], [row[m, M, K] for K in Ks], "average")
        for m in methods for fewer, M in pairwise(Ms)
    ]  # fmt: skip
    falls, sure = sum(g.mean > 0 for g in steps.values()), sum(g.above() > 0 for g in steps.values())

    lower = {(M, K): GAPS.difference([row["MB", M, K]], [row["STORM", M, K]]) for M, K in settings}
    lower_at = [GAPS.difference([row["MB", M, K] for K in Ks], [row["STORM", M, K] for K in Ks]) for M in Ms]
    worst = min(settings, key=lambda s: lower[s].mean / mean("end", "MB", *s))
    below, clearly = sum(g.mean > 0 for g in lower.values()), sum(g.above() > 0 for g in lower.values())

    fall = {(m, M, K): _fall([row[m, M, K]]) for m in methods for M, K in settings}
    flat = [s for s in settings if fall["MB", *s].mean < FLAT]
    risen = [s for s in settings if fall["MB", *s].above(-FLAT) < 0]
    late = ", ".join(f"M={M}, K={K}" for M, K in settings if (M, K) not in flat)
    keeps = [fall["STORM", *s] for s in settings]

    def listed(method):
        return ", ".join(
            f"M={M}, K={K}: {fall[method, M, K].mean:.0%} ± {fall[method, M, K].error:.0%}"
            for M, K in settings
        )

    most = (max(Ms), max(Ks))
    best = {m: min(settings, key=lambda s, m=m: mean("end", m, *s)) for m in methods}
    ahead = {
        m: [GAPS.difference([row[m, *s]], [row[m, *most]]) for s in settings if s != most] for m in methods
    }
    nearest = {m: min(gaps, key=lambda g: g.mean) for m, gaps in ahead.items()}
    lowest = all(g.above() > 0 for gaps in ahead.values() for g in gaps) or None
    if any(g.above() < 0 for gaps in ahead.values() for g in gaps):
        lowest = False
    return [
        Verdict(
            f"C-1.1: for both methods and every K, the average over rounds falls as M grows {GAPS.EVERYWHERE}",
            GAPS.decided(steps.values(), faster),
            f"It falls in {falls} of {len(steps)} steps of M, in {sure} by more than 2 standard errors. At M = "
            f"{', '.join(map(str, Ms))}: {chains('average')}. The values at the end: {chains('end')}.",
            "faster (figure 1, curves)",
            f"{falls} of {len(steps)} steps fall, {sure} beyond noise",
        ),
        Verdict(
            f"C-1.2: STORM ends lower than MB at every M and K {GAPS.EVERYWHERE}",
            GAPS.decided(lower.values(), lower_at),
            f"Lower in {below} of {len(lower)} settings, in {clearly} by more than 2 standard errors. STORM / MB: "
            + ", ".join(
                f"M={M}, K={K}: {mean('end', 'STORM', M, K):.3f} / {mean('end', 'MB', M, K):.3f}" for M, K in settings
            )
            + f". MB less STORM at M={worst[0]}, K={worst[1]}: {lower[worst].mean:+.3f} ± {lower[worst].error:.3f}.",
            "lower (figure 1, curves)",
            f"{below} of {len(lower)} lower, {clearly} beyond noise",
        ),
        Verdict(
            f"C-1.3, first half: MB levels off (its last quarter is less than {FLAT:.0%} below the quarter before)",
            False if risen else True if len(flat) == len(settings) else None,
            f"In {len(flat)} of {len(settings)} settings"
            + (f"; it still falls at {late}, so that the rounds, whose number is ours, do not decide" if late else "")
            + f". Fall, seed by seed: {listed('MB')}.",
            "oscillates around a level (figure 1, curves)",
            f"{len(flat)} of {len(settings)} level" + ("; the others still fall" if late else ""),
        ),
        Verdict(
            f"C-1.3, second half: STORM keeps falling (its last quarter is below the quarter before) {GAPS.EVERYWHERE}",
            GAPS.decided(keeps, [_fall([row["STORM", *s] for s in settings])]),
            f"In {sum(g.mean > 0 for g in keeps)} of {len(keeps)} settings, in {sum(g.above() > 0 for g in keeps)} by more "
            f"than 2 standard errors. Fall, seed by seed: {listed('STORM')}.",
            "keeps falling (figure 1, curves)",
            f"{sum(g.mean > 0 for g in keeps)} of {len(keeps)} fall, {sum(g.above() > 0 for g in keeps)} beyond noise",
        ),
        Verdict(
            f"C-1.4: both methods end lowest at M = 20, K = 20 ({GAPS.SURE})",
            lowest,
            "; ".join(
                f"{m} ends lowest at M={at[0]}, K={at[1]} ({mean('end', m, *at):.3f}), at M={most[0]}, K={most[1]} it ends "
                f"at {mean('end', m, *most):.3f}; the lowest of the others less that: "
                f"{nearest[m].mean:+.3f} ± {nearest[m].error:.3f}"
                for m, at in best.items()
            )
            + ".",
            "best there (figure 3, curves)",
            "margin " + ", ".join(f"{m} {g.mean:+.3f} ± {g.error:.3f}" for m, g in nearest.items()),
        ),
    ]  # fmt: skip


def _fall(rows):
    """By what part the last quarter is below the quarter before; seed by seed, since both are of one run."""
    each = [
        fmean(1 - b / a for a, b in pairs)
        for pairs in zip(
            *(zip(*(r["metrics"][k]["values"] for k in ("third_quarter", "last_quarter")), strict=True) for r in rows),
            strict=True,
        )
    ]  # fmt: skip
    return GAPS.Gap(fmean(each), stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0)


def figure(rows):
    from plotly.subplots import make_subplots

    Ks = sorted({r["K"] for r in rows})
    colours = {5: "213,94,0", 10: "0,158,115", 20: "0,114,178"}
    fig = make_subplots(
        1, len(Ks), subplot_titles=[f"K = {K} local steps" for K in Ks], shared_yaxes=True,
        horizontal_spacing=0.02,
    )  # fmt: skip
    for r in rows:
        at = Ks.index(r["K"]) + 1
        rounds = r["curves"]["round"]
        squares = list(zip(*([g**2 for g in seed] for seed in r["curves"]["grad_phi"]), strict=True))
        mean = [fmean(v) for v in squares]
        std = [stdev(v) if len(v) > 1 else 0.0 for v in squares]
        rgb, label = colours[r["M"]], f"{r['method']}, M = {r['M']}"
        fig.add_scatter(
            x=rounds + rounds[::-1],
            y=[m + s for m, s in zip(mean, std, strict=True)]
            + [max(m - s, m / 3) for m, s in zip(mean, std, strict=True)][::-1],  # a log axis has no 0
            fill="toself", fillcolor=f"rgba({rgb},0.12)", line={"width": 0}, hoverinfo="skip", showlegend=False,
            legendgroup=label, row=1, col=at,
        )  # fmt: skip
        fig.add_scatter(
            x=rounds, y=mean, name=label, legendgroup=label, showlegend=at == 1, mode="lines", row=1, col=at,
            line={"color": f"rgb({rgb})", "width": 2.5, "dash": "dot" if r["method"] == "MB" else "solid"},
        )  # fmt: skip
    fig.update_xaxes(title="round")
    fig.update_yaxes(type="log", dtick="D2")
    fig.update_yaxes(title="||grad Phi(x)||²", row=1, col=1)
    fig.update_layout(
        title="FedSGDA-MB and FedSGDA-STORM, step sizes of Table 1, mean ± std over seeds",
        template="plotly_white", width=1250, height=520,
    )  # fmt: skip
    return fig
