"""Test AUC against the communication interval I at equal iterations, CODA+ and CODASCA (claim C-3.1 in miniature)."""

from statistics import fmean

from fedsaddle.reproduce import NOISE, Cell, Verdict, sibling

TITLE = "AUC against the communication interval, CODA+ and CODASCA (ijcnn1, 20 heterogeneous clients)"
ROWS, COLUMNS = "method", "I"
METRICS = {
    "auc": "Test AUC",
    "grad_phi": "Gradient norm of phi on the training data (0 at the solution)",
    "valid_auc": "Validation AUC (used for choosing the step size)",
}
SELECT = "valid_auc"
SEEDS = [0, 1, 2]
IH = sibling(__file__, "cifar10-ih")


def cells(quick):
    iterations, intervals = (64, [1, 16]) if quick else (4096, [1, 8, 32, 128, 512])
    steps = [0.1, 0.03] if quick else [0.3, 0.1, 0.03]
    data = {"data.name": "synthetic_binary", "partition.min_size": 20} if quick else {}  # needs no file
    return [
        Cell(
            at={"method": label, "I": I},
            set={
                **data,
                "algorithm.name": name,
                "algorithm.local_steps": I,
                "train.rounds": iterations // I,
                "train.eval_every": iterations // I,
            },
            tune={"algorithm.lr": steps},
        )
        for label, name in (("CODA+", "coda_plus"), ("CODASCA", "codasca"))
        for I in intervals
    ]


def judge(rows):
    """With the tolerances of its sister on images."""
    each = {
        m: {r["I"]: r["metrics"]["auc"]["values"] for r in rows if r["method"] == m}
        for m in ("CODASCA", "CODA+")
    }
    auc = {m: {I: fmean(values) for I, values in own.items()} for m, own in each.items()}
    last = max(auc["CODA+"])
    found = {t: [IH.most(own, t) for own in each.values()] for t in sorted((IH.TOLERANCE, *IH.OTHERS))}
    sca, plus = found[IH.TOLERANCE]
    kept = {t: IH.tolerates_more(*both, last) for t, both in found.items()}
    lost = "; ".join(
        f"{m} "
        + ", ".join(
            f"I={I}: {auc[m][I] - auc[m][1]:+.4f} ± {IH.error(v, own[1]):.4f}"
            for I, v in own.items()
            if I > 1
        )
        for m, own in each.items()
    )
    gaps = {
        I: (auc["CODASCA"][I] - auc["CODA+"][I], IH.error(each["CODASCA"][I], each["CODA+"][I]))
        for I in auc["CODA+"]
        if I > 1
    }
    above, below = (sum(sign * gap > NOISE * give for gap, give in gaps.values()) for sign in (1, -1))
    least = min(gaps, key=lambda I: gaps[I][0])
    return [
        Verdict(
            f"C-3.1: CODASCA tolerates a larger I than CODA+ (I_max: test AUC within {IH.TOLERANCE} of its own at I = 1; by "
            "2 standard errors over seeds)",
            kept[IH.TOLERANCE],
            f"I_max is {sca.mean} for CODASCA and {plus.mean} for CODA+"
            + "".join(f"; within {t}: {a.mean} and {b.mean}" for t, (a, b) in found.items() if t != IH.TOLERANCE)
            + f"; larger by 2 standard errors within {', '.join(str(t) for t, more in kept.items() if more) or 'none'}. "
            f"AUC relative to I = 1: {lost}.",
            "128 against 32 (16 clients), 512 against 128 (8 clients), on ImageNet",
            f"I_max {sca.mean} against {plus.mean}",
        ),
        Verdict(
            "C-3.1, our own check: at every I > 1 CODASCA's test AUC is above CODA+'s (by more than 2 standard errors "
            "over seeds)",
            False if below else True if above == len(gaps) else None,
            ", ".join(f"I={I}: {gap:+.4f} ± {give:.4f}" for I, (gap, give) in gaps.items()) + ".",
            "",
            f"{above} of {len(gaps)}; {gaps[least][0]:+.4f} ± {gaps[least][1]:.4f} at I = {least}",
        ),
    ]  # fmt: skip


def figure(rows):
    import plotly.graph_objects as go

    fig = go.Figure()
    for method, colour in (("CODA+", "#d55e00"), ("CODASCA", "#0072b2")):
        mine = [r for r in rows if r["method"] == method]
        fig.add_scatter(
            x=[r["I"] for r in mine],
            y=[r["metrics"]["auc"]["mean"] for r in mine],
            error_y={"type": "data", "array": [r["metrics"]["auc"]["std"] for r in mine]},
            name=method,
            line={"color": colour, "width": 3},
            marker={"size": 9},
        )
    fig.update_xaxes(
        type="log",
        title="communication interval I (local steps between two rounds)",
        tickvals=[r["I"] for r in rows],
    )
    fig.update_yaxes(title="test AUC at equal iterations")
    fig.update_layout(
        title="AUC against the communication interval",
        template="plotly_white",
        legend={"x": 0.02, "y": 0.05},
        width=900,
        height=520,
    )
    return fig
