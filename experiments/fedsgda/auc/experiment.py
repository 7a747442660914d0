"""Test AUC against rounds on CIFAR-10, FedSGDA-MB and FedSGDA-STORM by S, K and minibatch (figures 2, 4 and 5), and on data
sorted by label, also against CODA (figure 6).

FedSGDA has the step sizes of Tables 2 and 3, and both divided by ten; CODA has the paper's grid. Validation data choose.
"""

from collections import Counter
from itertools import pairwise
from statistics import fmean

from fedsaddle.reproduce import Cell, Verdict

TITLE = "AUC on CIFAR-10 against rounds: FedSGDA-MB and FedSGDA-STORM (500 clients), and CODA (50 clients)"
ROWS, COLUMNS = "run", "setting"
METRICS = {
    "end": "Test AUC at the end (mean of the evaluations in the last tenth of the rounds)",
    "average": "Test AUC on average over the rounds",
    "valid_end": "Validation AUC at the end, likewise (used for choosing)",
}
SELECT = "valid_end"
SEEDS = [0, 1, 2]
CURVES = ["auc", "valid_auc"]
# the paper does not say what its network ends in
NETWORKS = {"cnn": {"name": "cnn"}, "cnn-sigmoid": {"name": "cnn", "sigmoid": True}}
OPTIONS = {"model": tuple(NETWORKS), "part": ("all", "figure2", "figure4", "figure5", "figure6", "figure6c")}

TABLE_2 = {  # (S, K, batch): eta, gamma of MB; c_eta, c_gamma, c_alpha of STORM
    (5, 1, 5): ((1.0, 1e-2), (1.0, 1e-1, 5.0)),
    (5, 1, 10): ((1.0, 1e-2), (1.0, 1e-1, 5.0)),
    (5, 10, 5): ((1e-1, 1e-2), (1.0, 1e-1, 10.0)),
    (5, 10, 10): ((1.0, 1e-1), (1.0, 1.0, 10.0)),
    (5, 20, 5): ((1e-1, 1e-1), (1.0, 1.0, 10.0)),
    (5, 20, 10): ((1.0, 1.0), (1.0, 1e-1, 10.0)),
    (10, 1, 5): ((1.0, 1e-2), (1.0, 1e-1, 5.0)),
    (10, 1, 10): ((1.0, 1e-3), (1.0, 1e-1, 5.0)),
    (10, 10, 5): ((1.0, 1.0), (1.0, 1.0, 5.0)),
    (10, 10, 10): ((1.0, 1e-1), (1.0, 1e-1, 5.0)),
    (10, 20, 5): ((1.0, 1e-1), (1.0, 1.0, 10.0)),
    (10, 20, 10): ((1.0, 1.0), (1.0, 1.0, 10.0)),
    (20, 1, 5): ((1.0, 1e-3), (1.0, 1e-1, 5.0)),
    (20, 1, 10): ((1.0, 1e-2), (1.0, 1e-1, 5.0)),
    (20, 10, 5): ((1.0, 1.0), (1.0, 1.0, 5.0)),
    (20, 10, 10): ((1.0, 1e-2), (1.0, 1e-1, 10.0)),
    (20, 20, 5): ((1.0, 1e-1), (1.0, 1e-1, 10.0)),
    (20, 20, 10): ((1.0, 1.0), (1.0, 1.0, 10.0)),
}
TABLE_3 = {  # K, at S = 5 and batch 10, on sorted data
    1: ((1.0, 1e-2), (1.0, 1e-1, 5.0)),
    10: ((1e-1, 1e-3), (1e-1, 1e-2, 10.0)),
    20: ((1e-1, 1.0), (1e-1, 1e-1, 10.0)),
}
FIGURE_6C = ((1e-1, 1e-1), (1.0, 1.0, 10.0))  # 50 clients; S and K are not stated: 5 and 20 here
FIGURE = {5: "figure2", 10: "figure4", 20: "figure5"}  # by S
RHO = 0.2
DIVISORS = (1, 10)  # of the paper's steps
CODA_STEPS, CODA_DECAYS = (1e-3, 1e-2, 1e-1, 1.0), (1.0, 1 / 3)
CLEAR = 0.01  # by so much must AUC be higher to be clearly higher
FEDSGDA = ("MB", "STORM")


def _cell(method, figure, setting, S, K, batch, steps, place, quick, divisors=DIVISORS):
    """FedSGDA with the paper's step sizes, and with smaller ones."""
    lr, lr_dual, *c_alpha = steps
    own = {
        "algorithm.estimator": method.lower(),
        "algorithm.local_steps": K,
        "participation.m": S,
        "train.batch_size": batch,
    }
    if c_alpha:
        own |= {"algorithm.momentum": c_alpha[0], "algorithm.decay": RHO}
    at = {
        "run": f"{method}, K = {K}",
        "setting": setting,
        "figure": figure,
        "method": method,
        "S": S,
        "K": K,
        "batch": batch,
    }
    points = [
        {"algorithm.lr": lr / d, "algorithm.lr_dual": lr_dual / d}
        for d in (divisors[1:2] if quick else divisors)
    ]
    return Cell(at, {**place, **own}, points)


def cells(quick, part, model="cnn"):
    small = {
        "data.name": "digits", "data.positive": "0", "data.test": 0.3, "partition.clients": 20, "model.name": "mlp",
        "train.rounds": 3, "train.eval_every": 1,
    } if quick else {"model": NETWORKS[model]}  # fmt: skip
    sorted_data = {
        **small,
        "partition.name": "sorted_share",
        "partition.random_share": 0.1,
        "partition.by": "labels",
    }
    fewer = {**sorted_data, "partition.clients": 10 if quick else 50}
    coda = {
        **fewer, "participation": {"name": "full"}, "algorithm.name": "coda", "algorithm.local_steps": 20,
        "train.batch_size": 10, "train.rounds": 6 if quick else 800, "train.eval_every": 2 if quick else 20,
        "algorithm.stage_rounds": 3 if quick else 200,
    }  # fmt: skip
    out = []
    for (S, K, batch), steps in TABLE_2.items():
        if part in ("all", FIGURE[S]) and not (quick and 10 in (S, K)):
            setting = f"S = {S}, batch {batch}"
            out += [
                _cell(m, FIGURE[S], setting, S, K, batch, own, small, quick)
                for m, own in zip(FEDSGDA, steps, strict=True)
            ]
    if part in ("all", "figure6"):
        for K, steps in TABLE_3.items():
            out += [
                _cell(m, "figure6", "sorted, S = 5", 5, K, 10, own, sorted_data, quick)
                for m, own in zip(FEDSGDA, steps, strict=True)
            ]
    if part in ("all", "figure6c"):
        out += [
            _cell(
                m, "figure6c", "sorted, 50 clients", 5, 20, 10, own, fewer, quick, (*DIVISORS, 100)
            )  # STORM diverges at 1, and fails at 10 in two seeds
            for m, own in zip(FEDSGDA, FIGURE_6C, strict=True)
        ]
        out.append(
            Cell(
                {
                    "run": "CODA, K = 20",
                    "setting": "sorted, 50 clients",
                    "figure": "figure6c",
                    "method": "CODA",
                    "K": 20,
                },
                coda,
                {"algorithm.lr": CODA_STEPS[1:2] if quick else CODA_STEPS, "algorithm.lr_decay": CODA_DECAYS},
            )
        )
    sizes = Counter(cell.at["figure"] for cell in out)
    return [cell._replace(at={**cell.at, "cells": sizes[cell.at["figure"]]}) for cell in out]


def measure(curves):
    """Of one run."""
    late = [i for i, r in enumerate(curves["round"]) if r >= 0.9 * curves["round"][-1]]
    return {
        "end": fmean(curves["auc"][i] for i in late),
        "average": fmean(curves["auc"]),
        "valid_end": fmean(curves["valid_auc"][i] for i in late),
    }


def judge(rows):
    """Those claims for which there are rows; C-1.5 to C-1.8 at every S that was run."""
    rows = _whole(rows)
    same = [r for r in rows if r["figure"] in FIGURE.values()]
    out = [*_local_steps(same), *_by_clients(same)] if same else []
    sorted_rows = {(r["method"], r["K"]): _end(r) for r in rows if r["figure"] == "figure6"}
    if sorted_rows:
        out.append(_sorted(sorted_rows))
    against = {r["method"]: r for r in rows if r["figure"] == "figure6c"}
    if against:
        out.append(_against_coda(against))
    return out


def _whole(rows):
    """Rows of the figures that were not interrupted."""
    found = Counter(r["figure"] for r in rows)
    return [r for r in rows if found[r["figure"]] == r["cells"]]


def _end(row):
    return row["metrics"]["end"]["mean"]


def _local_steps(rows):
    """C-1.5 to C-1.7: by K, method and minibatch, at every S that was run.

    C-1.7 compares tuned runs, as the paper does: their step sizes change with the minibatch too. The numbers have the
    pairs of the same steps as well.
    """
    end = {(r["method"], r["S"], r["K"], r["batch"]): _end(r) for r in rows}
    Ss, Ks, batches = (sorted({key[i] for key in end}) for i in (1, 2, 3))
    settings = [(S, b) for S in Ss for b in batches]
    one, most = Ks[0], Ks[-1]

    def several(setting):
        (S, b), gains = setting, []
        for m in FEDSGDA:
            gains += [end[m, S, K, b] - end[m, S, one, b] for K in Ks[1:]]
        return gains

    def best_at_most(setting):
        S, b = setting
        return all(end[m, S, most, b] >= max(end[m, S, K, b] for K in Ks) for m in FEDSGDA)

    def above(setting):
        S, b = setting
        return end["STORM", S, most, b] > end["MB", S, most, b]

    def chain(m, setting):
        S, b = setting
        return f"{m} " + ", ".join(f"{end[m, S, K, b]:.4f}" for K in Ks)

    def where(ok):
        return f"In {sum(map(ok, settings))} of {len(settings)} settings (S, minibatch)"

    courses = "; ".join(
        f"S={S}, batch {b}: " + ", ".join(chain(m, (S, b)) for m in FEDSGDA) for S, b in settings
    )
    several_steps = [(S, K) for S in Ss for K in Ks[1:]]  # one step uses no minibatch
    change = {
        m: [abs(end[m, S, K, batches[-1]] - end[m, S, K, batches[0]]) for S, K in several_steps]
        for m in FEDSGDA
    }
    steps = {(r["method"], r["S"], r["K"], r["batch"]): (r["chosen"], _c_alpha(r)) for r in rows}
    alike = {
        m: [
            end[m, S, K, batches[-1]] - end[m, S, K, batches[0]]
            for S, K in several_steps
            if steps[m, S, K, batches[0]] == steps[m, S, K, batches[-1]]
        ]
        for m in FEDSGDA
    }
    return [
        Verdict(
            f"C-1.5, first half: K > 1 gives both methods a test AUC at the end that is more than {CLEAR} above K = 1's",
            all(min(several(s)) > CLEAR for s in settings),
            f"{where(lambda s: min(several(s)) > CLEAR)}. At K = {', '.join(map(str, Ks))}: {courses}.",
            "clearly higher (figures 2, 4 and 5, curves)",
        ),
        Verdict(
            f"C-1.5, second half: of K = {', '.join(map(str, Ks))} both methods end highest at K = {most}",
            all(map(best_at_most, settings)),
            where(best_at_most) + "; the numbers as above.",
            "best at K = 20 (figures 2, 4 and 5, curves)",
        ),
        Verdict(
            f"C-1.6: at K = {most} STORM ends above MB",
            all(map(above, settings)),
            f"{where(above)}. STORM less MB: "
            + ", ".join(
                f"S={S}, batch {b}: {end['STORM', S, most, b] - end['MB', S, most, b]:+.4f}" for S, b in settings
            )
            + ".",
            "above (figures 2, 4 and 5, curves)",
        ),
        Verdict(
            f"C-1.7: from minibatches of {batches[0]} to {batches[-1]}, MB's AUC at the end changes more than STORM's",
            fmean(change["MB"]) > fmean(change["STORM"]),
            "Mean (largest) absolute change over S and K > 1: "
            + ", ".join(f"{m} {fmean(v):.4f} ({max(v):.4f})" for m, v in change.items())
            + ". As in the paper the steps change with the minibatch too; both have the same in "
            + ", ".join(f"{len(v)} of {len(change[m])} pairs of {m}" for m, v in alike.items())
            + f" ({', '.join(f'{m} {v:+.4f}' for m, own in alike.items() for v in own) or 'none'}).",
            "MB's changes, STORM's hardly (figures 2, 4 and 5, curves)",
        ),
    ]  # fmt: skip


def _c_alpha(row):
    """What Table 2 has for it beside the steps, which are divided."""
    return TABLE_2[row["S"], row["K"], row["batch"]][1][2] if row["method"] == "STORM" else None


def _by_clients(rows):
    """C-1.8, once more than one S was run."""
    most = max(r["K"] for r in rows)
    end = {(r["method"], r["S"], r["batch"]): _end(r) for r in rows if r["K"] == most}
    Ss, batches = (sorted({key[i] for key in end}) for i in (1, 2))
    if len(Ss) == 1:
        return []
    courses = {(m, b): [end[m, S, b] for S in Ss] for m in FEDSGDA for b in batches}
    rising = {key: all(x < y for x, y in pairwise(course)) for key, course in courses.items()}
    return [
        Verdict(
            f"C-1.8: at K = {most} both methods end higher as S grows",
            all(rising.values()),
            f"At S = {', '.join(map(str, Ss))}: "
            + "; ".join(
                f"{m}, batch {b}: {', '.join(f'{v:.4f}' for v in course)}" + ("" if rising[m, b] else " (no)")
                for (m, b), course in courses.items()
            )
            + ".",
            "both improve (figures 2, 4 and 5, curves)",
        )
    ]


def _sorted(end):
    """C-1.9: on sorted data."""

    def holds(m):
        gains = [end[m, K] - end[m, 1] for K in (10, 20)]
        return abs(gains[1] - gains[0]) < min(gains) / 2  # so both are > 0

    return Verdict(
        "C-1.9: on sorted data K = 10 and K = 20 both beat K = 1, and differ by less than half of what they gain",
        all(map(holds, FEDSGDA)),
        "At K = 1, 10, 20: "
        + "; ".join(f"{m} " + ", ".join(f"{end[m, K]:.4f}" for K in (1, 10, 20)) for m in FEDSGDA)
        + ".",
        "K > 1 beats 1, 10 and 20 are close (figures 6a and 6b, curves)",
    )


def _against_coda(row):
    """C-1.10: the same number of communication steps, two a round of FedSGDA, one of CODA."""
    return Verdict(
        "C-1.10: after equally many communication steps on sorted data of 50 clients, MB and STORM are above CODA",
        min(_end(row[m]) for m in FEDSGDA) > _end(row["CODA"]),
        "At the end: "
        + ", ".join(f"{m} {_end(r):.4f}" for m, r in row.items())
        + "; on average over the communication steps: "
        + ", ".join(f"{m} {r['metrics']['average']['mean']:.4f}" for m, r in row.items())
        + f". CODA had {len(CODA_STEPS) * len(CODA_DECAYS)} points to choose from, the others {len(DIVISORS) + 1}.",
        "above (figure 6c, curves)",
    )


def figure(rows):
    """The paper's panels, a row of three for each S and minibatch of figures 2, 4 and 5, and figure 6 below."""
    from plotly.subplots import make_subplots

    rows = _whole(rows)
    by_K = {1: "#999999", 10: "#e69f00", 20: "#000000"}
    by_method = {"MB": "#d55e00", "STORM": "#0072b2", "CODA": "#009e73"}

    def of(method, rows):
        return [(r, f"K = {r['K']}", by_K[r["K"]]) for r in rows if r["method"] == method]

    def compared(rows):
        return [(r, r["method"], by_method[r["method"]]) for r in rows]

    panels = []  # title, lines: (row, name, colour)
    for S, batch in dict.fromkeys((r["S"], r["batch"]) for r in rows if r["figure"] in FIGURE.values()):
        mine = [r for r in rows if r["figure"] == FIGURE[S] and r["batch"] == batch]
        panels += [(f"S = {S}, batch {batch}: {m}", of(m, mine)) for m in FEDSGDA]
        if S == 5:  # figure 2 compares the best K of each, figures 4 and 5 the largest
            last = [max((r for r in mine if r["method"] == m), key=_end) for m in FEDSGDA]
        else:
            last = [r for r in mine if r["K"] == max(by_K)]
        panels.append((f"S = {S}, batch {batch}: " + ", ".join(r["run"] for r in last), compared(last)))
    for title, last in (
        *((f"sorted: {m}", of(m, [r for r in rows if r["figure"] == "figure6"])) for m in FEDSGDA),
        (
            "sorted, 50 clients, by communication steps",
            compared(r for r in rows if r["figure"] == "figure6c"),
        ),
    ):
        if any(r["figure"].startswith("figure6") for r in rows):
            panels.append((title, last))
    down, named = len(panels) // 3, set()
    fig = make_subplots(
        down, 3, subplot_titles=[title for title, _ in panels], vertical_spacing=0.25 / down, horizontal_spacing=0.05,
    )  # fmt: skip
    for i, (_, lines) in enumerate(panels):
        for row, name, colour in lines:
            steps = (
                2 if row["figure"] == "figure6c" and row["method"] != "CODA" else 1
            )  # communication steps a round
            fig.add_scatter(
                x=[steps * r for r in row["curves"]["round"]], y=[fmean(v) for v in zip(*row["curves"]["auc"], strict=True)],
                name=name, legendgroup=name, line={"color": colour, "width": 2}, mode="lines",
                showlegend=name not in named, row=i // 3 + 1, col=i % 3 + 1,
            )  # fmt: skip
            named.add(name)
    fig.update_layout(
        template="plotly_white",
        width=1250,
        height=290 * down + 80,
        title="Test AUC against rounds, mean over seeds",
    )
    return fig
