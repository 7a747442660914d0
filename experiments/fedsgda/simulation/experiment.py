"""||grad Phi||^2 against rounds, FedSGDA-MB and FedSGDA-STORM at every M and K of Table 1 (figures 1 and 3)."""

from itertools import pairwise
from statistics import fmean, stdev

from fedsaddle.reproduce import Cell, Verdict

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
    value = {
        (r["method"], r["M"], r["K"]): {k: r["metrics"][k]["mean"] for k in METRICS} for r in rows
    }  # means over seeds
    Ms, Ks = (sorted({key[i] for key in value}) for i in (1, 2))
    settings = [(M, K) for K in Ks for M in Ms]

    def faster(method, K):
        averages = [value[method, M, K]["average"] for M in Ms]
        return all(a > b for a, b in pairwise(averages))

    def chain(method, K):
        return ", ".join(f"{value[method, M, K]['average']:.3f}" for M in Ms)

    def fall(method, M, K):
        v = value[method, M, K]
        return 1 - v["last_quarter"] / v["third_quarter"]

    def where(ok):
        bad = [f"M={M}, K={K}" for M, K in settings if not ok(M, K)]
        return f"In {len(settings) - len(bad)} of {len(settings)} settings" + (
            f", not at {'; '.join(bad)}" if bad else ""
        )

    def lower(M, K):
        return value["STORM", M, K]["end"] < value["MB", M, K]["end"]

    def level(M, K):
        return fall("MB", M, K) < FLAT

    def falling(M, K):
        return fall("STORM", M, K) > 0

    best = {m: min(settings, key=lambda s, m=m: value[m, *s]["end"]) for m in ("MB", "STORM")}
    most = (max(Ms), max(Ks))
    return [
        Verdict(
            "C-1.1: for both methods and every K, the average over rounds falls as M grows",
            all(faster(m, K) for m in ("MB", "STORM") for K in Ks),
            "; ".join(
                f"{m}, K={K}: {chain(m, K)}" + ("" if faster(m, K) else " (no)")
                for m in ("MB", "STORM")
                for K in Ks
            )
            + f" at M = {', '.join(map(str, Ms))}. The values at the end: "
            + "; ".join(
                f"{m}, K={K}: " + ", ".join(f"{value[m, M, K]['end']:.3f}" for M in Ms)
                for m in ("MB", "STORM")
                for K in Ks
            )
            + ".",
            "faster (figure 1, curves)",
        ),
        Verdict(
            "C-1.2: STORM ends lower than MB at every M and K",
            all(lower(M, K) for M, K in settings),
            where(lower)
            + ". STORM / MB: "
            + ", ".join(
                f"M={M}, K={K}: {value['STORM', M, K]['end']:.3f} / {value['MB', M, K]['end']:.3f}"
                for M, K in settings
            )
            + ".",
            "lower (figure 1, curves)",
        ),
        Verdict(
            f"C-1.3, first half: MB levels off (its last quarter is less than {FLAT:.0%} below the quarter before)",
            all(level(M, K) for M, K in settings),
            where(level)
            + ". Fall: "
            + ", ".join(f"M={M}, K={K}: {fall('MB', M, K):.0%}" for M, K in settings)
            + ".",
            "oscillates around a level (figure 1, curves)",
        ),
        Verdict(
            "C-1.3, second half: STORM keeps falling (its last quarter is below the quarter before)",
            all(falling(M, K) for M, K in settings),
            where(falling)
            + ". Fall: "
            + ", ".join(f"M={M}, K={K}: {fall('STORM', M, K):.0%}" for M, K in settings)
            + ".",
            "keeps falling (figure 1, curves)",
        ),
        Verdict(
            f"C-1.4: both methods end lowest at M = {most[0]}, K = {most[1]}",
            all(at == most for at in best.values()),
            "; ".join(
                f"{m} ends lowest at M={at[0]}, K={at[1]} ({value[m, *at]['end']:.3f}), "
                f"at M={most[0]}, K={most[1]} it ends at {value[m, *most]['end']:.3f}"
                for m, at in best.items()
            )
            + ".",
            "best there (figure 3, curves)",
        ),
    ]


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
