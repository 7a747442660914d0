"""FFMDR when each client answers with probability 1, 0.5 or 0.25 in a round (FFMDR, Figure 2).

Step size and beta are tuned on validation data with all clients, and kept.
"""

from fedsaddle.reproduce import Cell, Verdict

TITLE = "FFMDR with a part of its 20 clients a round"
ROWS, COLUMNS = "participation", "data"
METRICS = {
    "best": "Largest test AUC over the rounds (the paper's measure)",
    "chosen": "Test AUC at the round with the best validation AUC",
    "auc": "Test AUC at the end",
}
SELECT = "valid_best"
SEEDS = [0, 1, 2]
CURVES = ["auc", "valid_auc"]
OPTIONS = {"data": ("phishing", "a9a", "ijcnn1", "w8a")}
NO_TEST_FILE = ("phishing", "w8a")
LEVELS = {
    "100 %": {"name": "full"},
    "50 %": {"name": "independent", "p": 0.5},
    "25 %": {"name": "independent", "p": 0.25},
}
SAME = 0.005  # AUC that counts as about the same


def _place(data, quick):
    if quick:
        return {
            "data.name": "synthetic_binary",
            "partition.clients": 4,
            "train.rounds": 20,
            "train.eval_every": 4,
        }
    return {"data.name": data} | ({"data.test": 0.2} if data in NO_TEST_FILE else {})


def all_take_part(rows, quick, data):
    grid = {
        "algorithm.lr": [0.1, 0.01] if quick else [0.1, 0.01, 0.001, 0.0001],
        "algorithm.beta": [0.5] if quick else [0.5, 5.0, 50.0, 500.0],
    }
    return [Cell({"participation": "tuned at 100 %", "data": data}, _place(data, quick), grid)]


def a_part(rows, quick, data):
    return [
        Cell({"participation": label, "data": data}, {**_place(data, quick), **rows[0]["chosen"], "participation": scheme})
        for label, scheme in LEVELS.items()
    ]  # fmt: skip


STEPS = [all_take_part, a_part]


def measure(curves):
    """Of one run."""
    valid, best = curves["valid_auc"], max(curves["valid_auc"])
    return {"best": max(curves["auc"]), "chosen": curves["auc"][valid.index(best)], "valid_best": best}


def judge(rows):
    auc = {r["participation"]: r["metrics"]["best"]["mean"] for r in rows}
    lost = max(auc["100 %"] - v for v in auc.values())
    return [
        Verdict(
            f"C-4.3: with half and a quarter of the clients a round the AUC is about the same (at most {SAME} less) on "
            f"{rows[0]['data']}",
            lost <= SAME,
            ", ".join(f"{label} {v:.4f}" for label, v in auc.items()) + ".",
        )
    ]


def figure(rows):
    import plotly.graph_objects as go

    fig = go.Figure()
    for r, colour in zip(rows, ["#0072b2", "#009e73", "#d55e00"], strict=True):
        mean = [sum(v) / len(v) for v in zip(*r["curves"]["auc"], strict=True)]
        fig.add_scatter(
            x=r["curves"]["round"], y=mean, name=r["participation"], line={"color": colour, "width": 2.5}
        )
    top = max(r["metrics"]["best"]["mean"] for r in rows)
    fig.update_yaxes(title="test AUC", range=[top - 0.08, top + 0.01])
    fig.update_xaxes(title="round", type="log")
    fig.update_layout(
        template="plotly_white", width=950, height=540, title=f"{rows[0]['data']}: mean over seeds"
    )
    return fig
