"""Test AUC of seven methods under cyclic participation, by heterogeneity (dir) and label noise (flip): Tables 1 to 3; with
ResNet-18, and a linear model on two sets, also by the number of clients and by which positives are removed: Tables 8 and 9,
with what was chosen for Tables 1 to 3.

The paper's grids are tuned in turn: (1) step size with the loss's scale or the prox factor at a first schedule of stages and
(2) the schedule with those, both at dir 0.5 without noise; then (3) step size, scale and prox factor anew in every column.
What was chosen is (4) reported with all seeds.

ResNet-18 has a smaller budget, a fifth of the epochs: (1) tunes its step size for each dir, without noise, on a seed that is
not reported; all else is what the CNN chose at dir 0.5 without noise. (2) and (3) are left out, and (4) has in every column
the step size of its dir.

A part is a method (processes at several share a GPU better than one that computes them in turn) or some of the tables.
"""

import json
import math
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev, variance
from typing import NamedTuple

from fedsaddle.reproduce import NOISE, Cell, Verdict
from fedsaddle.sweep_plan import grid_points

TITLE = "AUC under cyclic participation: seven methods, clients in 10 groups"
ROWS, COLUMNS = "method", "setting"
METRICS = {"auc": "Test AUC", "valid_auc": "Validation AUC (used for choosing)"}
SELECT = "valid_auc"
SEEDS = [0, 1, 2]
OTHER_SEED = [3]

DIRS, FLIPS = (0.1, 0.5, 10.0), (0.0, 0.2)
CLIENTS, REMOVALS = (50, 200), (1, 2)
TABLES_8_AND_9 = ("phishing", "ijcnn1")  # data that have them with a linear model too
ALL_REMOVALS = -1  # 0, 1 and 2 together
STEPS_GRID = [0.1, 0.01, 0.001]
CYCLIC, RANDOM = "cyclic", "uniform"
METHODS = {  # label -> algorithm, participation, what is tuned beside the step size
    "CyCp-FedAvg": ("cycp_fedavg", CYCLIC, {}),
    "A-FedAvg": ("amplified_fedavg", CYCLIC, {"algorithm.amplification": [1.25, 1.5, 2.0, 3.0]}),
    "A-SCAFFOLD": ("amplified_scaffold", CYCLIC, {"algorithm.amplification": [1.25, 1.5, 2.0, 3.0]}),
    "RS-Minimax": ("rs_minimax", RANDOM, {"algorithm.gamma": [0.1, 0.01, 0.001]}),
    "RS-Pairwise": ("rs_pairwise", RANDOM, {"problem.scale": [1.0, 0.1, 0.01, 0.001]}),
    "CyCp-Minimax": ("cycp_minimax", CYCLIC, {"algorithm.gamma": [0.1, 0.01, 0.001]}),
    "CyCp-Pairwise": ("cycp_pairwise", CYCLIC, {"problem.scale": [1.0, 0.1, 0.01, 0.001]}),
}
OPTIONS = {
    "data": ("phishing", "ijcnn1", "census_income", "cifar10"),
    "model": ("linear", "cnn", "resnet18"),
    "part": ("all", *METHODS, "tables1-3", "table8", "table9"),
}
ERM = ("CyCp-FedAvg", "A-FedAvg", "A-SCAFFOLD")
TWINS = {"CyCp-Minimax": "RS-Minimax", "CyCp-Pairwise": "RS-Pairwise"}
DECAYS = [0.1, 0.2, 0.5]
# epochs of the first stage and growth; from 50 epochs the second stage outlasts the run at any growth
SCHEDULES = [(1, 2.0), (1, 5.0), (1, 10.0), (10, 2.0), (10, 5.0), (10, 10.0), (50, 2.0)]
FIRST = {"algorithm.stage_rounds": 100, "algorithm.stage_growth": 2.0, "algorithm.lr_decay": 0.5}
PAPER = {  # CIFAR-10, the columns of PAPER_COLUMNS
    "CyCp-FedAvg": (0.7581, 0.6800, 0.7836, 0.7739, 0.8227, 0.8199, 0.7227, 0.7846, 0.8083),
    "A-FedAvg": (0.7732, 0.7015, 0.7950, 0.7891, 0.8354, 0.8254, 0.7418, 0.7923, 0.8123),
    "A-SCAFFOLD": (0.7815, 0.7119, 0.7993, 0.7950, 0.8336, 0.8315, 0.7450, 0.7940, 0.8208),
    "RS-Minimax": (0.7976, 0.8083, 0.8153, 0.8170, 0.8154, 0.8086, 0.7572, 0.8012, 0.8225),
    "RS-Pairwise": (0.8059, 0.7712, 0.8357, 0.8201, 0.8304, 0.8217, 0.7721, 0.8225, 0.8303),
    "CyCp-Minimax": (0.8184, 0.8095, 0.8446, 0.8316, 0.8702, 0.8511, 0.8209, 0.8478, 0.8460),
    "CyCp-Pairwise": (0.8283, 0.7828, 0.8480, 0.8424, 0.8626, 0.8540, 0.8367, 0.8448, 0.8503),
}
PAPER_SPREADS = {  # deviations over three runs of three draws (Table 9), and over three runs (Table 1)
    "CyCp-FedAvg": (0.0175, 0.0020),
    "A-FedAvg": (0.0037, 0.0014),
    "A-SCAFFOLD": (0.0041, 0.0018),
    "RS-Minimax": (0.0028, 0.0025),
    "RS-Pairwise": (0.0019, 0.0012),
    "CyCp-Minimax": (0.0060, 0.0015),
    "CyCp-Pairwise": (0.0048, 0.0008),
}
FAILED = 0.1  # a seed so far below the median of its cell failed
F_TEST = 5.14  # 95 % quantile for 3 draws of 3 seeds (2 and 6 degrees of freedom)
SPREAD = 0.02  # other removed positives move the AUC by as much, in the paper (Table 9 against Table 1)
FEWER = 5  # so many times fewer epochs has ResNet-18
MORE_STEPS = [1.0, 0.1, 0.03, 0.01, 0.003, 0.001]  # and more steps are tried, also larger ones


class Column(NamedTuple):
    """A setting of the tables."""

    dir: float = 0.5
    flip: float = 0.0
    clients: int = 100
    removal: int = 0  # seed of which positives are removed

    def __str__(self):
        more = f", {self.clients} clients" if self.clients != 100 else ""
        if self.removal:
            more += ", all removals" if self.removal == ALL_REMOVALS else f", removal {self.removal}"
        return f"dir {self.dir:g}, flip {self.flip:g}{more}"


PAPER_COLUMNS = [
    *(Column(dir, flip) for dir in DIRS for flip in FLIPS),  # Tables 1 to 3
    *(Column(0.1, clients=n) for n in CLIENTS),  # Table 8
    (TABLE_9 := Column(removal=ALL_REMOVALS)),
]
WORSE = {  # pairs of columns of Tables 1 to 3, the milder first
    f"as dir falls from {DIRS[-1]:g} to {DIRS[0]:g}": [
        (Column(DIRS[-1], f), Column(DIRS[0], f)) for f in FLIPS
    ],
    "as flip grows from 0 to 0.2": [(Column(dir, FLIPS[0]), Column(dir, FLIPS[1])) for dir in DIRS],
}


def _methods(part):
    return [part] if part in METHODS else list(METHODS)


def settings(quick, data, model, part="all"):
    """The columns of a part."""
    tables = {"tables1-3": [Column(dir, flip) for dir in (DIRS[::2] if quick else DIRS) for flip in FLIPS]}
    more = model == "resnet18" or (model == "linear" and data in TABLES_8_AND_9)
    if more and not quick:
        tables["table8"] = [Column(0.1, clients=n) for n in CLIENTS]
        tables["table9"] = [Column(removal=seed) for seed in REMOVALS]
    if part.startswith("table"):
        return tables.get(part, [])
    return [column for columns in tables.values() for column in columns]


def _place(method, column, quick, data, model):
    """The config of a column and a method, before anything is tuned."""
    algorithm, participation, _ = METHODS[method]
    out = {
        "data.name": data, "partition.alpha": column.dir, "transform.1.share": column.flip, "model.name": model,
        "algorithm.name": algorithm, "algorithm.local_steps": 16, "participation": _participation(participation),
    }  # fmt: skip
    if column.clients != 100:
        out["partition.clients"] = column.clients
    if column.removal:
        out["transform.0.seed"] = column.removal
    if model == "resnet18":
        out |= {
            "model.stem": "large",
            "model.pixels": 32,
            "train.rounds": 1000 // FEWER,
            "train.eval_every": 1000 // FEWER,
        }
    if algorithm.startswith("amplified"):
        out["algorithm.period"] = 10
    if method in ERM:
        out["problem.name"] = "erm"
    elif "Pairwise" in method:
        out |= {"problem.name": "pairwise_auc", "problem.loss": "sigmoid"}
    if data == "cifar10":
        out |= {
            "data.positive": 0,  # the paper does not name the class
            "problem.monitors": False,  # over all training images they would take longer than training
            "train.precision": "bf16", "train.compile": True,
        }  # fmt: skip
    elif data in ("phishing", "ijcnn1"):
        out["data.scale"] = "standard"
    if data == "phishing":
        out["data.test"] = 0.25  # the set has no test part
    if quick:
        out |= {
            "data.name": "synthetic_binary", "data.scale": "standard", "partition.clients": 20, "partition.min_size": 4,
            "transform.0.share": 0.5, "train.rounds": 40, "train.eval_every": 40, "algorithm.local_steps": 4,
            "train.batch_size": 8, "train.precision": "full", "train.compile": False, "model.name": "linear",
        }  # fmt: skip
        out["participation"] |= {"m": 2}
        out.pop("data.positive", None)
    return out


def _participation(name):
    return {"name": name, "m": 5} | ({"groups": 10} if name == CYCLIC else {})


def _grid(method, quick):
    if quick:
        return {"algorithm.lr": STEPS_GRID[:2]}
    return {"algorithm.lr": STEPS_GRID, **METHODS[method][2]}


def _staged(quick, part):
    return [m for m in _methods(part) if m not in ERM and not (quick and m.startswith("RS"))]


@cache
def _chosen_with_cnn():
    """What the CNN chose on CIFAR-10 at dir 0.5 without noise by method; stages shorter as the run is, an epoch at least."""
    found = json.loads((Path(__file__).parent / "obtained/cifar10-cnn/results.json").read_text())
    tuned = [r for r in found["tuned_before"][2] if Column(r["dir"], r["flip"]) == Column()]
    key = "algorithm.stage_rounds"
    return {
        r["method"]: r["chosen"] | {k: max(v // FEWER, 10) for k, v in r["chosen"].items() if k == key}
        for r in tuned
    }


def _smaller_budget(quick, model, **_):
    return model == "resnet18" and not quick


def first_steps(rows, quick, part, **options):
    if _smaller_budget(quick, **options):
        return [
            Cell({"method": m, "setting": f"step size, dir {dir:g}", "dir": dir},
                 _place(m, Column(dir), quick, **options), _step_sizes(m))
            for dir in dict.fromkeys(column.dir for column in settings(quick, part=part, **options))
            for m in _methods(part)
        ]  # fmt: skip
    return [
        Cell({"method": m, "setting": "first schedule"}, {**_place(m, Column(), quick, **options), **FIRST}, _grid(m, quick))
        for m in _staged(quick, part)
    ]  # fmt: skip


def _step_sizes(method):
    return [_chosen_with_cnn()[method] | {"algorithm.lr": lr} for lr in MORE_STEPS]


def schedules(rows, quick, part, **options):
    points = [
        {"algorithm.stage_rounds": 10 * epochs, "algorithm.stage_growth": growth, "algorithm.lr_decay": decay}
        for epochs, growth in (SCHEDULES[:2] if quick else SCHEDULES)
        for decay in (DECAYS[:1] if quick else DECAYS)
    ]
    if _smaller_budget(quick, **options):
        return _as_before(rows, quick, part, **options)
    return [
        Cell({"method": r["method"], "setting": "schedule"},
             {**_place(r["method"], Column(), quick, **options), **r["chosen"]}, points)
        for r in rows if r["method"] in _methods(part)
    ]  # fmt: skip


def _as_before(rows, quick, part, **options):
    """A step with nothing to tune."""
    return [
        Cell({k: r[k] for k in ("method", "setting", "dir")},
             _place(r["method"], Column(r["dir"]), quick, **options), [r["chosen"]])
        for r in rows
        if r["method"] in _methods(part) and r["dir"] in {c.dir for c in settings(quick, part=part, **options)}
    ]  # fmt: skip


def columns(rows, quick, part, **options):
    if _smaller_budget(quick, **options):
        return _as_before(rows, quick, part, **options)
    schedule = {r["method"]: r["chosen"] for r in rows} | {m: {} for m in ERM}
    if quick:  # where no schedule was tuned
        schedule = {m: FIRST for m in METHODS} | schedule
    return [
        Cell(_at(m, column), _place(m, column, quick, **options),
             [{**schedule[m], **point} for point in grid_points(_grid(m, quick))])
        for column in dict.fromkeys(map(_tuned_as, settings(quick, part=part, **options)))
        for m in _methods(part) if m in schedule
    ]  # fmt: skip


def _tuned_as(column):
    """The column of Tables 1 to 3 whose choices a column of Table 8 or 9 takes."""
    return Column(column.dir, column.flip)


def _at(method, column):
    return {"method": method, "setting": str(column), **column._asdict()}


def reported(rows, quick, part, **options):
    """What was chosen; of a part that was not tuned yet, all that can be."""
    chosen = {(r["method"], r["setting"]): [r["chosen"]] for r in rows}

    def points(method, column):
        if _smaller_budget(quick, **options):
            return chosen.get((method, f"step size, dir {column.dir:g}")) or _step_sizes(method)
        return chosen.get((method, str(_tuned_as(column)))) or _grid(method, quick)

    return [
        Cell(_at(m, column), _place(m, column, quick, **options), points(m, column))
        for column in settings(quick, part=part, **options)
        for m in _methods(part)
    ]


STEPS = [first_steps, schedules, columns, reported]


def tuned_on(model, **_):
    """Networks cost a hundred times what the linear model costs."""
    return {"linear": SEEDS, "cnn": SEEDS[:1]}.get(model, OTHER_SEED)


def judge(rows):
    """C-2.1 and C-2.2 over the columns that have every method they compare, C-2.5 over pairs of columns of Tables 1 to 3.

    A gap counts where it exceeds two standard errors over seeds. Table 9 is one column, of all runs with the three draws of
    the removed positives, and is there once these are; its errors are over draws. A seed whose AUC is 0.1 below the median
    of its cell failed; where leaving such seeds out changes what holds, it is not decided.
    """
    own = {(r["method"], _column(r)): r for r in rows}
    auc = _seeds(own)
    sound = {place: [_sound(values) for values in draws] for place, draws in auc.items()}
    published = {
        (m, c): [[v]] for m, values in PAPER.items() for c, v in zip(PAPER_COLUMNS, values, strict=True)
    }

    def columns_with(methods):
        return [c for c in PAPER_COLUMNS if all((m, c) in auc for m in methods)]

    def verdict(claim, look, at, methods):
        (holds, numbers, short), (_, on_paper, _) = look(auc, at), look(published, at)
        numbers = f"{numbers[0].upper()}{numbers[1:]}.{_stopped(own, at, methods)}"
        if failed := [f"{m} at {c}" for m, c in _places(at, methods) if auc.get((m, c)) != sound.get((m, c))]:
            without, as_said, _ = look(sound, at)
            numbers += f" Without seeds that failed ({'; '.join(failed)}): {as_said}."
            if holds != without:
                holds, short = None, f"hangs on seeds that failed: {_count(len(failed), 'cell')}"
        return Verdict(claim, holds, numbers, f"on CIFAR-10 with ResNet-18 {on_paper}", short)

    out = []
    for method in TWINS:
        if columns := columns_with([method, *ERM]):
            claim = f"C-2.1: {method} is above the best of the three ERM baselines in most columns, beyond the noise"
            out.append(verdict(claim, _above(method, ERM), columns, [method, *ERM]))
    for method, twin in TWINS.items():
        if columns := columns_with([method, twin]):
            claim = f"C-2.2: {method} is above {twin}, its twin under random sampling, in most columns, beyond the noise"
            out.append(verdict(claim, _above(method, [twin]), columns, [method, twin]))
    there = columns_with([*ERM, *TWINS])
    for what, all_pairs in WORSE.items():
        if pairs := [pair for pair in all_pairs if set(pair) <= set(there)]:
            claim = f"C-2.5: {what}, the ERM baselines lose more AUC than CyCp-Minimax and CyCp-Pairwise, beyond the noise"
            out.append(verdict(claim, _lost, pairs, [*ERM, *TWINS]))
    if TABLE_9 in columns_with(METHODS):
        out.append(_of_draws({m: auc[m, TABLE_9] for m in METHODS}, _stopped(own, [TABLE_9], METHODS)))
    return out


def published():
    """The paper's numbers by method and setting."""
    return {(m, str(c)): v for m, values in PAPER.items() for c, v in zip(PAPER_COLUMNS, values, strict=True)}


def _column(row):
    return Column(*(row.get(k, usual) for k, usual in Column._field_defaults.items()))


def _draws(column):
    """The columns that were run for one of the paper's."""
    return [column._replace(removal=seed) for seed in (0, *REMOVALS)] if column == TABLE_9 else [column]


def _seeds(own):
    """(method, column of the paper) -> for each draw of the removed positives the AUC of its seeds."""
    out = {}
    for method in METHODS:
        for column in PAPER_COLUMNS:
            draws = [own.get((method, draw)) for draw in _draws(column)]
            if all(draws):
                out[method, column] = [row["metrics"]["auc"]["values"] for row in draws]
    return out


def _sound(values):
    """The AUC of a cell's seeds less those that failed."""
    return [v for v in values if v > median(values) - FAILED]


def _places(at, methods):
    """Methods and columns of the paper in the columns, or pairs of columns, that a claim compares."""
    columns = [c for column in at for c in (column if type(column) is tuple else [column])]
    return list(dict.fromkeys((m, column) for column in columns for m in methods))


def _stopped(own, at, methods):
    """What diverged of the methods in the columns, or pairs of columns, that a claim compares."""
    places = dict.fromkeys((m, draw) for m, column in _places(at, methods) for draw in _draws(column))
    return "".join(
        f" Of {m} at {c}, {own[m, c]['diverged']} of {len(SEEDS)} seeds diverged; its mean is of the others."
        for m, c in places
        if (m, c) in own and own[m, c].get("diverged")
    )


def _sum(auc, weights):
    """A weighted sum of cells' means, and its standard error: over draws where the cells have several, else over seeds."""
    cells = [auc[place] for place in weights]
    sums = [
        sum(w * fmean(v) for w, v in zip(weights.values(), draw, strict=True))
        for draw in zip(*cells, strict=True)
    ]
    if len(sums) > 1:
        return fmean(sums), stdev(sums) / math.sqrt(len(sums))
    spread = zip(weights.values(), (cell[0] for cell in cells), strict=True)
    return sums[0], math.sqrt(sum(w * w * variance(v) / len(v) for w, v in spread if len(v) > 1))


def _above(method, others):
    """How far a method is above the best of others, column by column: in most, or at most in half of them?"""

    def look(auc, columns):
        gaps = {}
        for c in columns:
            best = max(others, key=lambda m: _sum(auc, {(m, c): 1.0})[0])
            gaps[c] = _sum(auc, {(method, c): 1.0, (best, c): -1.0})
        n, above = len(gaps), sum(gap > NOISE * error for gap, error in gaps.values())
        below = sum(gap < -NOISE * error for gap, error in gaps.values())
        clear = sum(gap > SPREAD for gap, _ in gaps.values())
        holds = True if above > n / 2 else False if below >= n / 2 else None
        if any(error for _, error in gaps.values()):
            said = f"above in {above}, below in {below} and open in {n - above - below} of {n} columns (2 standard errors)"
            numbers = ", ".join(f"{c} {gap:+.4f} ± {error:.4f}" for c, (gap, error) in gaps.items())
        else:  # the paper's
            least, most = (f(gap for gap, _ in gaps.values()) for f in (min, max))
            said, numbers = f"in {above} of {n} columns", f"{least:+.4f} to {most:+.4f}"
        said += f", by more than {SPREAD} in {clear}: {numbers}"
        return holds, said, f"{above} above, {below} below, {n - above - below} open of {_count(n, 'column')}"

    return look


def _count(n, what):
    return f"{n} {what}" + ("s" if n != 1 else "")


def _lost(auc, pairs):
    def weights(methods, share):
        each = share / (len(methods) * len(pairs))
        out = {}
        for m in methods:
            for mild, worse in pairs:
                out |= {
                    (m, mild): out.get((m, mild), 0.0) + each,
                    (m, worse): out.get((m, worse), 0.0) - each,
                }
        return out

    more, error = _sum(auc, weights(ERM, 1.0) | weights(TWINS, -1.0))
    losses = {m: _sum(auc, weights([m], 1.0))[0] for m in (*ERM, *TWINS)}
    erm, ours = (fmean(losses[m] for m in methods) for methods in (ERM, TWINS))
    holds = True if more > NOISE * error else False if more < -NOISE * error else None
    spread = f", difference {more:+.4f} ± {error:.4f}" if error else ""
    each = ", ".join(f"{m} {loss:+.4f}" for m, loss in losses.items())
    return (
        holds,
        f"mean loss {erm:+.4f} against {ours:+.4f}{spread} ({each})",
        f"ERM lose {more:+.4f} ± {error:.4f} more",
    )


def _of_draws(auc, stopped):
    """Table 9: what another draw of the removed positives does, beside what another seed does."""
    # draws of which one seed alone has ended say nothing of seeds
    auc = {m: draws for m, draws in auc.items() if min(map(len, draws)) > 1}
    seeds = {m: math.sqrt(fmean(variance(v) for v in draws)) for m, draws in auc.items()}
    draws = {m: stdev(fmean(v) for v in own) for m, own in auc.items()}
    # of means that differ by their seeds alone, the ratio of the variances is F-distributed
    clear = sum(draws[m] ** 2 > F_TEST * fmean(variance(v) / len(v) for v in own) for m, own in auc.items())
    less, n = sum(draws[m] < seeds[m] for m in auc), len(auc)
    on_paper = ", ".join(f"{m} {nine:.4f} against {three:.4f}" for m, (nine, three) in PAPER_SPREADS.items())
    return Verdict(
        "Table 9: the draw of the removed positives moves the AUC, beyond what seeds do, of most methods",
        True if clear > n / 2 else False if less > n / 2 else None,  # of none nothing is decided
        f"Of {clear} of {n} methods (F test, 5 %). Mean, standard deviation of the means of {1 + len(REMOVALS)} draws, and "
        "over seeds: "
        + ", ".join(f"{m} {fmean(map(fmean, auc[m])):.4f}, {draws[m]:.4f}, {seeds[m]:.4f}" for m in auc)
        + f".{stopped}",
        "standard deviation on CIFAR-10 with ResNet-18, nine runs of three draws (Table 9) against three of one (Table 1): "
        + on_paper,
        f"beyond seeds for {clear} of {n} methods",
    )  # fmt: skip


def figure(rows):
    import plotly.graph_objects as go

    colours = ["#999999", "#bbbbbb", "#666666", "#f0b48c", "#9ecae9", "#d55e00", "#0072b2"]
    fig = go.Figure()
    for method, colour in zip(METHODS, colours, strict=True):
        mine = [r for r in rows if r["method"] == method]
        fig.add_bar(
            x=[r["setting"] for r in mine],
            y=[r["metrics"]["auc"]["mean"] for r in mine],
            error_y={"type": "data", "array": [r["metrics"]["auc"]["std"] for r in mine], "thickness": 1},
            name=method,
            marker={"color": colour},
        )
    low = min(r["metrics"]["auc"]["mean"] for r in rows)
    fig.update_yaxes(title="test AUC", range=[max(0.0, low - 0.05), 1.0])
    fig.update_layout(barmode="group", template="plotly_white", width=1150, height=520, title=TITLE)
    return fig
