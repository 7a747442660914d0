"""AUC and AUC of the worst-off occupations: plain, AUC maximisation, robust, and AUC inside robust."""

from __future__ import annotations

from fedsaddle.reproduce import Cell, Verdict

TITLE = "Census income by occupation: AUC over all and of the worst-off occupations (12 clients)"
ROWS, COLUMNS = "method", "rho"
METRICS = {
    "auc": "AUC, all occupations pooled",
    "auc_clients": "Mean of the occupations' own AUCs",
    "auc_worst20": "Mean of the two lowest occupations' own AUCs",
    "auc_gini": "Gini coefficient of the occupations' own AUCs",
}
SELECT = "valid_auc_worst20"
SEEDS = [0, 1, 2]

NONE = "none"  # no weights
ERM, AUC = {"problem.name": "erm"}, {"problem.name": "auc"}
RHOS = {"SCAFF-PD, logistic loss": (0.5, 0.1), "SCAFF-PD, AUC inside": (0.1, 0.02)}
FEDAVG, CODASCA = "FedAvg, logistic loss", "CODASCA, AUC"
LOGISTIC, INSIDE = RHOS


def cells(quick):
    steps = {FEDAVG: [0.1, 0.3, 1.0], CODASCA: [0.02, 0.05, 0.1]}
    steps = {m: s[:1] if quick else s for m, s in steps.items()}
    small = {}
    if quick:
        small = {
            "data": {"name": "synthetic_binary", "n": 1500, "test": 0.3, "valid": 0.3},
            "partition": {"name": "dirichlet", "clients": 12, "min_per_class": 5}, "train.rounds": 3,
        }  # fmt: skip
    out = [
        Cell({"method": FEDAVG, "rho": NONE}, {**small, **ERM}, {"algorithm.lr": steps[FEDAVG]}),
        Cell({"method": CODASCA, "rho": NONE}, {**small, **AUC, "algorithm.name": "codasca"},
             {"algorithm.lr": steps[CODASCA]}),
    ]  # fmt: skip
    for method, problem, alike in ((LOGISTIC, ERM, FEDAVG), (INSIDE, AUC, CODASCA)):
        for rho in RHOS[method][:1] if quick else RHOS[method]:
            settings = {
                **small, **problem, "algorithm.name": "scaff_pd", "algorithm.ambiguity": f"chi2({rho})",
                "algorithm.sigma": 0.1 / (rho * 12),  # of the weights: a tenth of the way to their best response
            }  # fmt: skip
            taus = [round(10 * s, 1) for s in steps[alike]]  # ten local steps of these lengths
            out.append(Cell({"method": method, "rho": f"{rho}"}, settings, {"algorithm.tau": taus}))
    return out


def judge(rows):
    mean = {(r["method"], r["rho"]): {k: m["mean"] for k, m in r["metrics"].items()} for r in rows}
    plain, maximised = mean[FEDAVG, NONE], mean[CODASCA, NONE]
    best = {
        m: max((v for (a, _), v in mean.items() if a == m), key=lambda v: v[SELECT]) for m in (LOGISTIC, INSIDE)
    }  # fmt: skip
    show = lambda v: f"{v['auc']:.4f} pooled, {v['auc_worst20']:.4f} worst 20 %"
    both = f"{show(best[INSIDE])} against {show(maximised)}"
    return [
        Verdict("AUC maximisation has a higher pooled AUC than the logistic loss", maximised["auc"] > plain["auc"],
                f"CODASCA {show(maximised)}; FedAvg {show(plain)}."),
        Verdict("Robust weights raise the worst 20 % over FedAvg (rho chosen on validation)",
                best[LOGISTIC]["auc_worst20"] > plain["auc_worst20"], f"{show(best[LOGISTIC])} against {show(plain)}."),
        Verdict("Robust weights raise the worst 20 % over AUC maximisation alone (rho chosen on validation)",
                best[INSIDE]["auc_worst20"] > maximised["auc_worst20"], f"{both}."),
        Verdict("AUC inside robust weights has the highest worst 20 % of all four",
                best[INSIDE]["auc_worst20"] > max(v["auc_worst20"] for v in (plain, maximised, best[LOGISTIC])),
                f"{best[INSIDE]['auc_worst20']:.4f}; FedAvg {plain['auc_worst20']:.4f}, CODASCA "
                f"{maximised['auc_worst20']:.4f}, robust logistic {best[LOGISTIC]['auc_worst20']:.4f}."),
    ]  # fmt: skip


def figure(rows):
    import plotly.graph_objects as go

    fig = go.Figure()
    for method in dict.fromkeys(r["method"] for r in rows):
        mine = [r for r in rows if r["method"] == method]
        x, y = ([r["metrics"][k] for r in mine] for k in ("auc_clients", "auc_worst20"))
        fig.add_scatter(
            x=[m["mean"] for m in x], y=[m["mean"] for m in y], mode="lines+markers+text", name=method,
            text=["" if r["rho"] == NONE else f"rho = {r['rho']}" for r in mine], textposition="top center",
            error_x={"array": [m["std"] for m in x]}, error_y={"array": [m["std"] for m in y]},
        )  # fmt: skip
    fig.update_xaxes(title="mean of the occupations' AUCs")
    fig.update_yaxes(title="worst 20 % of the occupations")
    fig.update_layout(template="plotly_white", width=900, height=520, legend={"orientation": "h", "y": 1.1})
    return fig
