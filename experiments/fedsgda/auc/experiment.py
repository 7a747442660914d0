"""Test AUC against rounds on CIFAR-10, FedSGDA-MB and FedSGDA-STORM by S, K and minibatch (figures 2, 4 and 5), and on data
sorted by label, also against CODA (figure 6).

FedSGDA has the step sizes of Tables 2 and 3, and both divided by ten; CODA has the paper's grid. Validation data choose.
"""

import math
from collections import Counter
from itertools import pairwise
from statistics import fmean, variance
from typing import NamedTuple

from fedsaddle.reproduce import NOISE, Cell, Verdict

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
SURE = "by more than 2 standard errors over seeds"  # of one partition
EVERYWHERE = f"(in every setting, and on means over settings {SURE})"


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
    """Those claims for which there are rows; C-1.5 to C-1.8 at every S that was run.

    A gap counts if it is more than 2 standard errors over seeds (of one partition). Where cells had but one point that did
    not diverge, and none between it and one that did, steps were not chosen, and what depends on them is not decided.
    """
    rows = _whole(rows)
    same = [r for r in rows if r["figure"] in FIGURE.values()]
    out = [*_local_steps(same), *_methods(same), *_by_clients(same)] if same else []
    sorted_rows = {(r["method"], r["K"]): r for r in rows if r["figure"] == "figure6"}
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


class Gap(NamedTuple):
    """By how much some rows end above others, and its standard error over seeds."""

    mean: float
    error: float

    def above(self, by=0.0):
        """1: by more than `by`, -1: by less, 0: within 2 standard errors of it."""
        return (self.mean - by > NOISE * self.error) - (self.mean - by < -NOISE * self.error)


def difference(some, others, metric="end"):
    """Of lists of rows: their means seed by seed, compared over seeds."""
    a, b = (
        [fmean(v) for v in zip(*(r["metrics"][metric]["values"] for r in rows), strict=True)] for rows in (some, others)
    )  # fmt: skip
    return Gap(fmean(a) - fmean(b), math.sqrt((variance(a) + variance(b)) / len(a)) if len(a) > 1 else 0.0)


def decided(single, pooled):
    """EVERYWHERE; does not hold where one is clearly the other way round, and is not decided otherwise."""
    if any(gap.above() < 0 for gap in (*single, *pooled)):
        return False
    return True if all(gap.mean > 0 for gap in single) and all(gap.above() > 0 for gap in pooled) else None


def _told(row):
    """The points that were tried and did not diverge: step -> validation score."""
    tried = row.get("tried") or [row["chosen"] | {SELECT: row["metrics"][SELECT]["mean"]}]
    return {t["algorithm.lr"]: t[SELECT] for t in tried if t[SELECT] is not None}


def _untuned(rows):
    """Those of which one point did not diverge, so that nothing was chosen."""
    return [r for r in rows if len(_told(r)) < 2]


def _same_steps(a, b):
    return (a["chosen"], _c_alpha(a)) == (b["chosen"], _c_alpha(b))


def _c_alpha(row):
    """What Table 2 has for it beside the steps, which are divided."""
    return TABLE_2[row["S"], row["K"], row["batch"]][1][2] if row["method"] == "STORM" else None


def _table(rows):
    """By method, S, K and minibatch; and all S, K and minibatches."""
    row = {(r["method"], r["S"], r["K"], r["batch"]): r for r in rows}
    return row, *(sorted({key[i] for key in row}) for i in (1, 2, 3))


def _local_steps(rows):
    """C-1.5, direction, size and order by themselves, and at equal steps."""
    row, Ss, Ks, batches = _table(rows)
    one, *several = Ks
    cells = [(m, S, K, b) for m in FEDSGDA for S in Ss for K in several for b in batches]
    gain = {(m, S, K, b): difference([row[m, S, K, b]], [row[m, S, one, b]]) for m, S, K, b in cells}
    pooled = {
        (m, K): difference(*([row[m, S, k, b] for S in Ss for b in batches] for k in (K, one)))
        for m in FEDSGDA
        for K in several
    }
    least = {m: min(gap.mean for cell, gap in gain.items() if cell[0] == m) for m in FEDSGDA}
    courses = "; ".join(
        f"S={S}, batch {b}: " + ", ".join(f"{m} {', '.join(f'{_end(row[m, S, K, b]):.4f}' for K in Ks)}" for m in FEDSGDA)
        for S in Ss for b in batches
    )  # fmt: skip
    up, clear = (sum(ok(g) for g in gain.values()) for ok in (lambda g: g.mean > 0, lambda g: g.above() > 0))

    # K = 1 kept a step at which K > 1 diverges, so that K times the step is about the same
    failing = [cell for cell in cells if gain[cell].above(CLEAR) < 0]
    hindered = [
        (m, S, K, b)
        for m, S, K, b in failing
        if row[m, S, one, b]["chosen"]["algorithm.lr"] not in _told(row[m, S, K, b])
    ]
    short = ", ".join(f"{m}, S={S}, K={K}, batch {b}: {gain[m, S, K, b].mean:+.4f}" for m, S, K, b in failing)
    over = sum(gap.mean > CLEAR for gap in gain.values())
    size = None if len(hindered) == len(failing) else False
    if all(gap.above(CLEAR) > 0 for gap in gain.values()):
        size = True
    out = [
        Verdict(
            f"C-1.5, direction: both methods end higher at K > 1 than at K = 1 {EVERYWHERE}",
            decided(gain.values(), pooled.values()),
            f"Higher in {up} of {len(gain)} pairs, in {clear} by more than 2 standard errors; by at least "
            + ", ".join(f"{m} {v:+.4f}" for m, v in least.items())
            + "; means over S and minibatches: "
            + ", ".join(f"{m}, K={K}: {g.mean:+.4f} ± {g.error:.4f}" for (m, K), g in pooled.items())
            + f". At K = {', '.join(map(str, Ks))}: {courses}.",
            "higher (figure 2, curves; figures 4 and 5 are called similar)",
            f"{up} of {len(gain)} above; STORM by {least['STORM']:.4f} at least",
        ),
        Verdict(
            f"C-1.5, size: both methods end more than {CLEAR} higher at K > 1 than at K = 1, in every setting ({SURE} more)",
            size,
            f"By more than {CLEAR} in {over} of {len(gain)} pairs, by less, with 2 standard errors, in {len(failing)}"
            + (f" ({short})" if short else "")
            + (
                f". In {len(hindered)} of these K = 1 has a step at which K > 1 diverges, and none between that and a tenth "
                "was tried: the gain is that of more steps that are smaller."
                if hindered
                else "."
            ),
            "clearly (figure 2, curves; figures 4 and 5 are called similar)",
            f"{over} of {len(gain)}; STORM's K = 1 has larger steps",
        ),
        *_highest(row, [S for S in Ss if FIGURE[S] == "figure2"], Ks, batches, "S = 5", "best at K = 20 (figure 2, curves)"),
        *_highest(
            row, [S for S in Ss if FIGURE[S] != "figure2"], Ks, batches, "S = 10 and 20",
            "called similar to figure 2 (figures 4 and 5, curves)",
        ),
    ]  # fmt: skip
    return [*out, _at_equal_steps(row, Ss, Ks, batches)]


def _highest(row, Ss, Ks, batches, where, published):
    """C-1.5, order: at some S, if they were run."""
    *fewer, most = Ks
    best = {
        (m, S, b): max((row[m, S, K, b] for K in fewer), key=_end)
        for m in FEDSGDA
        for S in Ss
        for b in batches
    }
    if not best:
        return
    gaps = {(m, S, b): difference([row[m, S, most, b]], [other]) for (m, S, b), other in best.items()}
    pooled = [
        difference(
            [row[m, S, most, b] for S in Ss for b in batches], [r for key, r in best.items() if key[0] == m]
        )
        for m in FEDSGDA
    ]
    up, clear = (sum(ok(g) for g in gaps.values()) for ok in (lambda g: g.mean > 0, lambda g: g.above() > 0))
    gammas = [
        (other["chosen"]["algorithm.lr_dual"], row[m, S, most, b]["chosen"]["algorithm.lr_dual"])
        for (m, S, b), other in best.items() if gaps[m, S, b].above() < 0
    ]  # fmt: skip
    least = min(gap.mean for gap in gaps.values())
    yield Verdict(
        f"C-1.5, order at {where}: both methods end highest at K = 20 {EVERYWHERE}",
        decided(gaps.values(), pooled),
        f"Highest in {up} of {len(gaps)} settings, in {clear} by more than 2 standard errors. "
        f"K = {most} less the best other: "
        + ", ".join(f"{m}, S={S}, batch {b}: {g.mean:+.4f} ± {g.error:.4f}" for (m, S, b), g in gaps.items())
        + "."
        + (
            f" Where it is clearly lower gamma is {', '.join(f'{a:g} against {b:g}' for a, b in gammas)}."
            if gammas
            else ""
        ),
        published,
        f"{up} of {len(gaps)} highest, {clear} beyond noise; least {least:+.4f}",
    )  # fmt: skip


def _at_equal_steps(row, Ss, Ks, batches):
    """C-1.5 where every K has the same eta, by the validation scores of all points that were tried."""
    one, *several = Ks
    seeds = len(row["MB", Ss[0], one, batches[0]]["metrics"][SELECT]["values"])
    spread = max(r["metrics"][SELECT]["std"] for r in row.values())
    sure = CLEAR + NOISE * math.sqrt(2 / seeds) * spread
    found, gains = {}, []
    for m in FEDSGDA:
        of = {K: [_told(row[m, S, K, b]) for S in Ss for b in batches] for K in Ks}
        common = set.intersection(*(set(scores) for own in of.values() for scores in own))
        if not common:
            continue
        eta = max(common)
        found[m] = eta, {K: [scores[eta] for scores in own] for K, own in of.items()}
        gains += [v - w for K in several for v, w in zip(found[m][1][K], found[m][1][one], strict=True)]
    text = "; ".join(
        f"{m} at {eta:g}: " + ", ".join(f"K={K} {min(v):.4f} to {max(v):.4f}" for K, v in scores.items())
        for m, (eta, scores) in found.items()
    )
    if len(found) < len(FEDSGDA):
        holds = None
    else:
        holds = True if min(gains) > sure else None if min(gains) > 2 * CLEAR - sure else False
    least = f"least gain {min(gains):+.4f}" if gains else "no common step"
    return Verdict(
        f"C-1.5, at equal steps: with one eta for every K both methods' validation AUC is more than {CLEAR} higher at K > 1 "
        f"than at K = 1 ({SURE} more)",
        holds,
        f"{text or 'No eta was tried at every K'}; {least}; largest standard deviation over seeds of a chosen point "
        f"{spread:.4f}. Test AUC of points that were not chosen is not stored; gamma and c_alpha are the paper's for each "
        "K, gamma divided as eta is.",
        "",
        f"{sum(g > sure for g in gains)} of {len(gains)}; {least} on validation",
    )


def _methods(rows):
    """C-1.6 and C-1.7: STORM against MB."""
    row, Ss, Ks, batches = _table(rows)
    most = Ks[-1]
    settings = [(S, b) for S in Ss for b in batches]
    gaps = {(S, b): difference([row["STORM", S, most, b]], [row["MB", S, most, b]]) for S, b in settings}
    pooled = difference(*([row[m, S, most, b] for S, b in settings] for m in ("STORM", "MB")))
    compared = [row[m, S, most, b] for m in FEDSGDA for S, b in settings]
    untuned = _untuned(compared)
    above, below = (sum(gap.above() == sign for gap in gaps.values()) for sign in (1, -1))
    change = {
        m: {
            (S, K): difference(*([row[m, S, K, b]] for b in (batches[-1], batches[0])))
            for S in Ss
            for K in Ks[1:]
        }
        for m in FEDSGDA
    }  # one step uses no minibatch
    alike = {
        m: [
            gap
            for (S, K), gap in own.items()
            if _same_steps(row[m, S, K, batches[0]], row[m, S, K, batches[-1]])
        ]
        for m, own in change.items()
    }
    more = None
    if all(alike.values()):
        sizes = {m: fmean(abs(gap.mean) for gap in own) for m, own in alike.items()}
        error = math.hypot(*(gap.error / len(own) for own in alike.values() for gap in own))
        sign = Gap(sizes["MB"] - sizes["STORM"], error).above()
        more = sign > 0 if sign else None
    means = {m: fmean(abs(gap.mean) for gap in own.values()) for m, own in change.items()}
    return [
        Verdict(
            f"C-1.6: at K = 20 STORM ends above MB, both with steps to choose from {EVERYWHERE}",
            None if untuned else decided(gaps.values(), [pooled]),
            f"STORM is above MB in {above} of {len(gaps)} settings by more than 2 standard errors, below in {below}. "
            "STORM less MB: "
            + ", ".join(f"S={S}, batch {b}: {g.mean:+.4f} ± {g.error:.4f}" for (S, b), g in gaps.items())
            + (
                f". In {len(untuned)} of {len(compared)} cells one point alone did not diverge, and none between it and ten "
                "times it was tried; from equal first steps STORM's fall, MB's stay."
                if untuned
                else "."
            ),
            "above (figures 2, 4 and 5, curves)",
            f"{above} of {len(gaps)} above, {below} below" + ("; steps not tuned" if untuned else ""),
        ),
        Verdict(
            "C-1.7: from minibatches of 5 to 10, with the same steps, MB's AUC at the end changes more than STORM's "
            f"({SURE})",
            more,
            "Both minibatches have the same steps in "
            + ", ".join(f"{len(own)} of {len(change[m])} pairs of {m}" for m, own in alike.items())
            + f" ({', '.join(f'{m} {g.mean:+.4f} ± {g.error:.4f}' for m, own in alike.items() for g in own) or 'none'}). "
            "Mean (largest) absolute change over all S and K > 1, in most of which gamma changes too: "
            + ", ".join(f"{m} {means[m]:.4f} ({max(abs(g.mean) for g in own.values()):.4f})" for m, own in change.items())
            + ".",
            "MB's changes, STORM's hardly (figures 2, 4 and 5, curves)",
            "same steps: "
            + ", ".join(f"{m} {max((abs(g.mean) for g in own), default=math.nan):.4f}" for m, own in alike.items())
            + " at most",
        ),
    ]  # fmt: skip


def _by_clients(rows):
    """C-1.8, once more than one S was run."""
    row, Ss, Ks, batches = _table(rows)
    most = Ks[-1]
    if len(Ss) == 1:
        return []
    course = {(m, b): [row[m, S, most, b] for S in Ss] for m in FEDSGDA for b in batches}
    whole = {key: difference([own[-1]], [own[0]]) for key, own in course.items()}
    single = [(a, b) for own in course.values() for a, b in pairwise(own)]
    steps, alike = (
        [difference([b], [a]) for a, b in single if ok(a, b)] for ok in (lambda a, b: True, _same_steps)
    )
    clear = sum(gap.above() > 0 for gap in whole.values())
    least = min(whole.values(), key=lambda gap: gap.mean)
    return [
        Verdict(
            f"C-1.8: at K = 20 both methods end higher with the most clients a round than with the fewest (each {SURE})",
            decided(whole.values(), whole.values()),
            f"At S = {', '.join(map(str, Ss))}: "
            + "; ".join(
                f"{m}, batch {b}: {', '.join(f'{_end(r):.4f}' for r in own)} "
                f"({whole[m, b].mean:+.4f} ± {whole[m, b].error:.4f})"
                for (m, b), own in course.items()
            )
            + f". From one S to the next {sum(g.mean > 0 for g in steps)} of {len(steps)} rise, "
            f"{sum(g.above() > 0 for g in steps)} by more than 2 standard errors; of the {len(alike)} with the same steps "
            f"{sum(g.mean > 0 for g in alike)} and {sum(g.above() > 0 for g in alike)}.",
            "both improve (figures 2, 4 and 5, curves)",
            f"{clear} of {len(whole)} above; by {least.mean:.4f} ± {least.error:.4f} at least",
        )
    ]  # fmt: skip


def _sorted(row):
    """C-1.9: on sorted data."""
    gains = {m: [difference([row[m, K]], [row[m, 1]]) for K in (10, 20)] for m in FEDSGDA}
    apart = {m: difference([row[m, 20]], [row[m, 10]]) for m in FEDSGDA}
    untuned = _untuned(r for (_, K), r in row.items() if K > 1)
    holds = None
    if not untuned and not any(gap.above() == 0 for own in gains.values() for gap in own):
        holds = all(
            abs(apart[m].mean) < min(g.mean for g in gains[m]) / 2 for m in FEDSGDA
        )  # so both are > 0
    paths = {m: [K * row[m, K]["chosen"]["algorithm.lr"] for K in (1, 10, 20)] for m in FEDSGDA}
    return Verdict(
        f"C-1.9: on sorted data K = 10 and K = 20 both beat K = 1 ({SURE}), and differ by less than half of what they gain",
        holds,
        "At K = 1, 10, 20: "
        + "; ".join(
            f"{m} " + ", ".join(f"{_end(row[m, K]):.4f}" for K in (1, 10, 20))
            + f" (K = 10 less K = 1 {gains[m][0].mean:+.4f} ± {gains[m][0].error:.4f}; K times eta "
            + ", ".join(f"{v:g}" for v in paths[m]) + ")"
            for m in FEDSGDA
        )
        + "."
        + (
            f" In {len(untuned)} of {2 * len(FEDSGDA)} cells with K > 1 one point alone did not diverge, a tenth of K = 1's "
            "step; none between was tried, and little gain is what equal K times eta leads to expect."
            if untuned
            else ""
        ),
        "K > 1 beats 1, 10 and 20 are close (figures 6a and 6b, curves)",
        " and ".join(f"{gains[m][0].mean:+.4f}" for m in FEDSGDA)
        + (" at equal K times eta" if all(math.isclose(a, b) for a, b, _ in paths.values()) else " from 1 to 10"),
    )  # fmt: skip


def _against_coda(row):
    """C-1.10: the same number of communication steps, two a round of FedSGDA, one of CODA."""
    gaps = {m: difference([row[m]], [row["CODA"]]) for m in FEDSGDA}
    above = [gap.above() for gap in gaps.values()]
    coarse = [m for m in FEDSGDA if 10 * row[m]["chosen"]["algorithm.lr"] < _next_step(row[m]) * 1.001]
    holds = min(above) > 0 if all(above) else None
    if not holds and coarse:
        holds = None
    path = {m: r["curves"]["round"][-1] * r["K"] * r["chosen"]["algorithm.lr"] for m, r in row.items()}
    return Verdict(
        "C-1.10: after equally many communication steps on sorted data with few clients, MB and STORM end above CODA "
        f"({SURE})",
        holds,
        "At the end: "
        + ", ".join(f"{m} {_end(r):.4f}" for m, r in row.items())
        + "; on average over the communication steps: "
        + ", ".join(f"{m} {r['metrics']['average']['mean']:.4f}" for m, r in row.items())
        + ". Rounds times K times (first) step: "
        + ", ".join(f"{m} {v:,.0f}" for m, v in path.items())
        + f". CODA had {len(CODA_STEPS) * len(CODA_DECAYS)} points to choose from, the others {len(DIVISORS) + 1}"
        + (
            f"; of {' and '.join(coarse)} none between the chosen step and ten times it, which fails, was tried"
            if coarse
            else ""
        )
        + ". S = 5 and K = 20 are ours.",
        "above (figure 6c, curves)",
        "CODA above by "
        + ", ".join(f"{-gap.mean:.4f} ({m})" for m, gap in gaps.items())
        + "; S, steps open",
    )  # fmt: skip


def _next_step(row):
    """The next larger step that was tried; infinite if none was."""
    return min(
        (
            t["algorithm.lr"]
            for t in row.get("tried", [])
            if t["algorithm.lr"] > row["chosen"]["algorithm.lr"]
        ),
        default=math.inf,
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
