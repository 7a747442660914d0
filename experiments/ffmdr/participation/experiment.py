"""FFMDR when each client answers with probability 1, 0.5 or 0.25 in a round (FFMDR, Figure 2).

Step size and beta are tuned on validation data with all clients and the first seed, and kept.
"""

from fedsaddle.reproduce import NOISE, Cell, Verdict, sibling

table2 = sibling(__file__, "table2")

TITLE = "FFMDR with a part of its 20 clients a round"
ROWS, COLUMNS = "participation", "data"
METRICS, SELECT, SEEDS, CURVES, OPTIONS = (
    table2.METRICS,
    table2.SELECT,
    table2.SEEDS,
    table2.CURVES,
    table2.OPTIONS,
)
LEVELS = {
    "100 %": {"name": "full"},
    "50 %": {"name": "independent", "p": 0.5},
    "25 %": {"name": "independent", "p": 0.25},
}
SAME = 0.005  # AUC that counts as about the same


def all_take_part(rows, quick, data):
    grid = {
        "algorithm.lr": table2.STEP[:2] if quick else table2.STEP,
        "algorithm.beta": [0.5] if quick else [0.5, 5.0, 50.0, 500.0],
    }
    return [
        Cell({"participation": "tuned at 100 %", "data": d}, table2.place(d, quick), grid)
        for d in table2.columns(data, quick)
    ]


def _eager(scheme):
    """Where the number of participants changes, steps would be compiled anew for each."""
    return {} if scheme["name"] == "full" else {"train.compile": False}


def a_part(rows, quick, data):
    return [
        Cell(
            {"participation": label, "data": row["data"]},
            {**table2.place(row["data"], quick), **row["chosen"], "participation": scheme, **_eager(scheme)},
        )
        for row in rows
        for label, scheme in LEVELS.items()
    ]


STEPS = [all_take_part, a_part]
tuned_on, measure = table2.tuned_on, table2.measure


def judge(rows):
    lost, parts = [], []
    for data in table2.sets(rows):
        own = {r["participation"]: r for r in rows if r["data"] == data}
        lost += [table2.gap(own["100 %"], own[level], "best") for level in LEVELS if level != "100 %"]
        parts.append(", ".join(f"{label} {r['metrics']['best']['mean']:.4f}" for label, r in own.items()))
        parts[-1] = f"{data}: {parts[-1]}"
    most, noise = max(lost), NOISE
    within = all(less + noise * error <= SAME for less, error in lost)
    beyond = any(less - noise * error > SAME for less, error in lost)
    return [
        Verdict(
            f"C-4.3: with half and a quarter of the clients a round the AUC is about the same (at most {SAME} less) on "
            "every set, beyond the noise (2 standard errors over seeds)",
            True if within else False if beyond else None,
            f"At most {most[0]:.4f} ± {most[1]:.4f} less. {'; '.join(parts)}.",
            "about the same (figure 2, curves)",
            f"at most {most[0]:.4f} ± {most[1]:.4f} less",
        )
    ]


def figure(rows):
    return table2.curves(rows, ROWS, ["#0072b2", "#009e73", "#d55e00"])
