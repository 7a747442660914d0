"""Test AUC against the communication interval I at equal iterations, CODA+ and CODASCA (claim C-3.1 in miniature)."""

from fedsaddle.reproduce import Cell, Verdict

TITLE = "AUC against the communication interval, CODA+ and CODASCA (ijcnn1, 20 heterogeneous clients)"
ROWS, COLUMNS = "method", "I"
METRICS = {
    "auc": "Test AUC",
    "grad_phi": "Gradient norm of phi on the training data (0 at the solution)",
    "valid_auc": "Validation AUC (used for choosing the step size)",
}
SELECT = "valid_auc"
SEEDS = [0, 1, 2]
TOLERANCE = (
    0.002  # "does not degenerate too much compared with I = 1": within this of its own test AUC at I = 1
)


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


def _auc(rows):
    return {(r["method"], r["I"]): r["metrics"]["auc"]["mean"] for r in rows}


def largest_interval(rows, method):
    """I_max: the largest I up to which the test AUC stays within TOLERANCE of that at I = 1."""
    auc = _auc(rows)
    best = 1
    for I in sorted(i for m, i in auc if m == method):
        if auc[method, I] < auc[method, 1] - TOLERANCE:
            break
        best = I
    return best


def judge(rows):
    auc = _auc(rows)
    plus, sca = largest_interval(rows, "CODA+"), largest_interval(rows, "CODASCA")
    intervals = sorted({i for _, i in auc if i > 1})
    loss = {
        m: ", ".join(f"I={i}: {auc[m, i] - auc[m, 1]:+.4f}" for i in intervals) for m in ("CODA+", "CODASCA")
    }
    return [
        Verdict(
            f"C-3.1 in miniature: I_max of CODASCA exceeds that of CODA+ (test AUC within {TOLERANCE} of I = 1)",
            sca > plus,
            f"I_max is {sca} for CODASCA and {plus} for CODA+. AUC relative to I = 1: "
            f"CODA+ {loss['CODA+']}; CODASCA {loss['CODASCA']}.",
            "128 against 32 (16 clients), 512 against 128 (8 clients), on ImageNet",
        ),
        Verdict(
            "At every I > 1, CODASCA's test AUC is at least CODA+'s",
            all(auc["CODASCA", i] >= auc["CODA+", i] for i in intervals),
            ", ".join(f"I={i}: {auc['CODASCA', i] - auc['CODA+', i]:+.4f}" for i in intervals) + ".",
        ),
    ]


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
