"""AUC and AUC of the worst-off occupations: plain, AUC maximisation, robust, and AUC inside robust."""

from __future__ import annotations

import math

from fedsaddle.reproduce import NOISE, Cell, Verdict

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

NONE = "none"  # equal weights
ERM, AUC = {"problem.name": "erm"}, {"problem.name": "auc"}
RHOS = {"SCAFF-PD, logistic loss": (NONE, 0.5, 0.1), "SCAFF-PD, AUC inside": (NONE, 0.1, 0.02)}
FEDAVG, CODASCA = "FedAvg, logistic loss", "CODASCA, AUC"
LOGISTIC, INSIDE = RHOS
EQUAL = {method: f"{method}, equal weights" for method in RHOS}


def cells(quick):
    steps = {FEDAVG: [0.1, 0.3, 1.0, 3.0], CODASCA: [0.02, 0.05, 0.1]}
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
        for rho in RHOS[method][:2] if quick else RHOS[method]:
            settings = {**small, **problem, "algorithm.name": "scaff_pd", "algorithm.ambiguity": "average"}
            if rho != NONE:
                sigma = 0.1 / (rho * 12)  # of the weights: a tenth of the way to their best response
                settings |= {"algorithm.ambiguity": f"chi2({rho})", "algorithm.sigma": sigma}
            taus = [round(10 * s, 1) for s in steps[alike]]  # ten local steps of these lengths
            out.append(Cell({"method": method, "rho": f"{rho}"}, settings, {"algorithm.tau": taus}))
    return out


def judge(rows):
    found = {(r["method"], r["rho"]): r["metrics"] for r in rows}
    shown = {FEDAVG: found[FEDAVG, NONE], CODASCA: found[CODASCA, NONE]}
    for method in (LOGISTIC, INSIDE):  # rho chosen on validation too
        mine = [m for (a, rho), m in found.items() if a == method and rho != NONE]
        shown[method] = max(mine, key=lambda m: m[SELECT]["mean"])
        shown[EQUAL[method]] = found[method, NONE]

    def gap(a, b, metric):
        """Difference of two methods' means, and its standard error over seeds."""
        a, b = shown[a][metric], shown[b][metric]
        return a["mean"] - b["mean"], math.sqrt(sum(m["std"] ** 2 / len(m["values"]) for m in (a, b)))

    def show(*methods):
        parts = [
            f"{m}: {shown[m]['auc']['mean']:.4f} pooled, {shown[m]['auc_worst20']['mean']:.4f} worst 20 %"
            for m in methods
        ]
        return "; ".join(parts) + "."

    others = (FEDAVG, CODASCA, LOGISTIC)
    claims = [
        ("AUC maximisation has a higher pooled AUC than the logistic loss", CODASCA, (FEDAVG,), "auc"),
        ("With the logistic loss, robust weights raise the worst 20 % over equal ones", LOGISTIC, (EQUAL[LOGISTIC],),
         "auc_worst20"),
        ("With AUC inside, robust weights raise the worst 20 % over equal ones", INSIDE, (EQUAL[INSIDE],), "auc_worst20"),
        ("Robust weights and drift correction raise the worst 20 % over FedAvg", LOGISTIC, (FEDAVG,), "auc_worst20"),
        ("Robust weights raise the worst 20 % over CODASCA", INSIDE, (CODASCA,), "auc_worst20"),
        ("AUC inside robust weights has the highest worst 20 % of all four", INSIDE, others, "auc_worst20"),
    ]  # fmt: skip
    out = []
    for claim, a, rest, metric in claims:
        gaps = {b: gap(a, b, metric) for b in rest}
        clear = all(d > NOISE * error for d, error in gaps.values())
        refuted = any(d < -NOISE * error for d, error in gaps.values())
        told = "; ".join(f"{d:+.4f} ± {error:.4f} over {b}" for b, (d, error) in gaps.items())
        least = min(gaps.values(), key=lambda g: g[0])
        out.append(
            Verdict(
                f"{claim}, beyond the noise (2 standard errors over seeds)",
                True if clear else False if refuted else None,
                f"{show(a, *rest)} {told}.",
                short=f"{least[0]:+.4f} ± {least[1]:.4f}" + (" over the best other" if len(rest) > 1 else ""),
            )
        )
    return out


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
