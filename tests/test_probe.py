"""`fedsaddle probe`: constants that are known, theory by hand, words that follow from numbers, one line for a mistake."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsaddle import cli
from fedsaddle import config as configs
from fedsaddle.algorithms import ALGORITHMS, CODASCA, FedSGDA
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.probe import Report, configured, examine, number
from fedsaddle.problems import QuadraticSaddle, nonconvex_pl_federation, quadratic_federation
from fedsaddle.theory import THEOREMS, Constants, Setting, codasca
from fedsaddle.toml import to_toml
from tests.conftest import Command, Done
from tests.test_theory import nonconvex_pl_hessians, of_hessians, quadratic_hessians

DATA: dict[str, Any] = {"clients": 6, "dim_x": 4, "dim_y": 3, "samples": 4, "noise": 0.5, "seed": 2}
QUADRATIC: dict[str, Any] = {
    "data": {"name": "quadratic", **DATA},
    "problem": {"name": "quadratic"},
    "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 5},
    "train": {"rounds": 40, "batch_size": 1, "dtype": "float64"},
}
CANCER: dict[str, Any] = {  # as examples/breast_cancer.toml
    "data": {"name": "breast_cancer", "test": 0.25},
    "partition": {"name": "dirichlet", "clients": 6, "min_per_class": 4},
    "model": {"name": "linear"},
    "problem": {"name": "auc", "p": 0.4},
    "algorithm": {"name": "codasca", "lr": 0.1, "local_steps": 8},
    "participation": {"name": "uniform", "m": 3},
    "train": {"rounds": 20, "batch_size": 16},
}
ERM = CANCER | {"problem": {"name": "erm"}, "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 4}}
POINT: dict[str, Any] = {
    "data": {"name": "nonconvex_pl", "clients": 5, "samples": 20, "dim": 8},
    "problem": {"name": "nonconvex_pl", "nu": 0.5, "mu": 0.7},
    "algorithm": {"name": "fedsgda", "lr": 0.01, "local_steps": 3},
    "train": {"rounds": 10},
}
SHOWN = ("L_1", "L_2", "L_12", "L_21", "L", "mu", "mu_x")


@pytest.fixture
def command(fedsaddle: Command) -> Command:
    """fedsaddle probe on a tree, in a folder of its own."""

    def run(tree: dict[str, Any], *options: str) -> Done:
        Path("tiny.toml").write_text(to_toml(tree))
        return fedsaddle("probe", "tiny.toml", *options)

    return run


def report(tree: dict[str, Any], algorithm: dict[str, Any] | None = None, **options: Any) -> Report:
    return examine(configs.resolve(tree | ({"algorithm": algorithm} if algorithm else {})), **options)


# ------------------------------------------------------------------------------------------ known constants


def test_a_quadratic(command: Command) -> None:
    """The command finds the constants of the Hessians, prints them, and theory gets them."""
    hessians = quadratic_hessians(quadratic_federation(**DATA))
    expected = of_hessians(hessians, 4)
    done = command(QUADRATIC, "--json")
    assert (done.code, done.err) == (0, "")
    got = json.loads(done.out)
    for name, value in expected.items():
        assert got["constants"][name]["value"] == pytest.approx(value, rel=0.05), name
    assert got["constants"]["kappa"]["value"] == pytest.approx(expected["L"] / expected["mu"], rel=0.05)
    bounds = {name: got["constants"][name]["estimate"] for name in ("L", "mu", "sigma")}
    assert bounds == {"L": "lower bound", "mu": "upper bound", "sigma": "measured at one point"}
    fed = quadratic_federation(**DATA)
    g = np.stack([np.concatenate([fed.client(i)["a"], -fed.client(i)["b"]], 1) for i in range(6)])  # at 0
    spread = np.sqrt(((g.mean(1) - g.mean((0, 1))) ** 2).sum(-1).mean())
    noise = np.sqrt(((g - g.mean(1, keepdims=True)) ** 2).sum(-1).mean(1).max())
    assert got["constants"]["zeta"]["value"] == pytest.approx(spread, rel=0.05)
    assert got["constants"]["sigma"]["value"] == pytest.approx(noise, rel=0.05)

    known = Constants(**expected)
    theory = codasca(known, Setting(clients=6, local_steps=5)).at()
    lr = got["configured"][0]
    assert lr["name"] == "lr" and lr["theory"] == pytest.approx(theory["lr"], rel=0.05)
    assert lr["ratio"] == pytest.approx(0.05 / theory["lr"], rel=0.05)
    assert got["stable_lr"] == pytest.approx(1 / expected["L"], rel=0.05)
    assert got["theory"]["theorem"] == "CODASCA, Theorem 2" and got["refusal"] is None
    assert got["probed"] == {"points": 3, "clients": 6, "of_clients": 6, "samples": None}

    text = command(QUADRATIC).out
    for name in SHOWN:
        printed = re.search(rf"^  {name} +[<>]= +(\S+) +\w", text, flags=re.M)
        assert printed and float(printed[1]) == pytest.approx(expected[name], rel=0.01), name
    assert f"{number(lr['ratio'])} times larger" in text
    assert f"about 1/L = {number(got['stable_lr'])}; lr = 0.05 is" in text
    assert "estimates from 3 points, 6 clients, all their samples" in text


@pytest.mark.parametrize("of_clients", [5, 2])
def test_nonconvex_pl(of_clients: int) -> None:
    """At the start, 0, where the Hessians are known in closed form."""
    fed = nonconvex_pl_federation(5, 20, 8)
    hessians = nonconvex_pl_hessians(fed, np.zeros(16), nu=0.5, mu=0.7)
    some = hessians if of_clients == 5 else [hessians[0], hessians[4]]
    found = report(POINT, points=1, clients=of_clients)
    for name, value in of_hessians(some, 8).items():
        assert getattr(found.constants, name) == pytest.approx(value, rel=0.05), name
    assert ("2 of 5 clients" in found.text()) == (of_clients == 2)


def test_more_points_see_more() -> None:
    one, many = (report(POINT, points=n).constants for n in (1, 6))
    assert many.L_1 > one.L_1 and many.mu_x < one.mu_x and many.mu == pytest.approx(one.mu)


def test_auc(command: Command) -> None:
    """mu = 2 p (1 - p) whatever the data; the theorem wants everybody, and half of them take part."""
    done = command(CANCER, "--json")
    got = json.loads(done.out)
    assert got["constants"]["mu"]["value"] == pytest.approx(2 * 0.4 * 0.6)
    assert got["constants"]["L"]["value"] >= got["constants"]["L_1"]["value"] > 1
    assert got["setting"]["participants"] == 3 and got["setting"]["batch_size"] == 16
    verdicts = {a["assumption"]: (a["verdict"], a["why"]) for a in got["theory"]["assumes"]}
    assert verdicts["all clients take part in every round"] == ("violated", "about 3 of 6 do")
    assert verdicts["f is mu-strongly concave in y"][0] == "holds"
    everybody = json.loads(command(CANCER, "--json", "--set", 'participation={name="full"}').out)
    assert [a["verdict"] for a in everybody["theory"]["assumes"]][-1] == "holds"


def test_a_network_is_not_convex(command: Command) -> None:
    mlp = CANCER | {"model": {"name": "mlp", "hidden": [3]}}
    done = command(mlp, "--points", "1")
    assert re.search(r"^  mu_x +<= +-", done.out, flags=re.M)
    assert re.search(r"unclear +phi\(x\) = .*\n? *PL condition: f is not convex", done.out)
    assert "the PL constant of phi is not known" in " ".join(done.out.split())


def test_without_a_dual_variable(command: Command) -> None:
    got = json.loads(command(ERM, "--json").out)
    assert set(got["constants"]) == {"L_1", "L", "mu_x", "sigma", "zeta"}
    L = got["constants"]["L"]["value"]
    assert got["constants"]["L_1"]["value"] == L
    assert got["theory"]["values"]["lr"] == pytest.approx(1 / (4 * L)) and not got["theory"]["exact"]
    text = command(ERM).out
    assert "31 primal and 0 dual variables" in text and "rule of thumb" in text and "  mu  " not in text


# ----------------------------------------------------------------------------------------- what theory says


@pytest.mark.parametrize("name", [name for name, a in ALGORITHMS.items() if not a.pairwise])
def test_every_algorithm_is_compared(name: str) -> None:
    plain = name.endswith(("fedavg", "fedprox")) or name == "delta_fl"
    tree = CANCER if name == "coda" else ERM if plain else QUADRATIC
    step = {"ffmdr": "beta", "scaff_pd": "tau"}.get(name, "lr")
    found = report(tree, {"name": name, step: 1e3}, points=1)
    assert found.steps is not None and not found.refusal
    lr = next(row for row in found.rows if row.name == step)
    assert lr.configured == 1e3 and lr.ratio is not None and lr.ratio > 1e3 and "times larger" in lr.words
    assert max(map(len, found.text().splitlines())) <= 80
    assert all(row.name in found.text() for row in found.rows)


def test_losses_of_pairs_cannot_be_probed() -> None:
    tree = CANCER | {"problem": {"name": "pairwise_auc"}}
    with pytest.raises(FedsaddleError, match="losses of pairs of samples, which cannot be probed"):
        report(tree, {"name": "cycp_pairwise"}, points=1)


@pytest.mark.parametrize(
    ("estimator", "theorem"),
    [("mb", "Theorem 1"), ("storm", "Theorem 2"), ("spider", "Theorem 3"), ("svrg", "rule of thumb")],
)
def test_the_estimator_chooses_the_theorem(estimator: str, theorem: str) -> None:
    found = report(QUADRATIC, {"name": "fedsgda", "estimator": estimator}, points=1)
    assert found.steps is not None and theorem in found.steps.theorem
    assert found.steps.exact == (estimator != "svrg")


def test_steps_that_change_are_compared_in_the_first_and_the_last_round() -> None:
    found = report(QUADRATIC, {"name": "fedsgda", "estimator": "storm", "lr": 0.1, "lr_dual": 0.2}, points=1)
    rows = {(row.name, row.round): row for row in found.rows}
    assert rows["lr", 0].configured == 0.1 and rows["lr_dual", 0].configured == 0.2
    assert rows["lr", 39].configured == pytest.approx(0.1 / 40 ** (1 / 3))
    assert rows["momentum", 39].configured == pytest.approx(40 ** (-2 / 3))
    assert rows["lr", 39].theory == rows["lr", 0].theory  # constant for millions of rounds
    assert ("decay", 39) not in rows and "lr, round 40" in found.text()
    mb = report(QUADRATIC, {"name": "fedsgda", "estimator": "mb"}, points=1)
    assert {row.round for row in mb.rows} == {0}


def test_what_is_configured() -> None:
    run = Setting(clients=30, participants=5)
    fedsgda = configured(FedSGDA(lr=0.3, estimator="spider"), 0, run)
    assert (fedsgda["lr_dual"], fedsgda["decay"], fedsgda["large_cohort"]) == (0.3, 0.0, 25)
    assert (
        configured(FedSGDA(estimator="spider"), 0, Setting(clients=20, participants=5))["large_cohort"] == 20
    )
    stagewise = configured(CODASCA(lr=0.3), 7, run)
    assert stagewise["lr"] == 0.3 and stagewise["stage_rounds"] is None
    assert "output" not in stagewise and "reset_variates" not in stagewise


def test_words() -> None:
    at = {"gamma": 0.0, "stage_rounds": None, "lr": 0.05, "server_lr": math.sqrt(6)}
    found = report(QUADRATIC, {"name": "codasca", **{k: v for k, v in at.items() if v}}, points=1)
    words = {row.name: row.words for row in found.rows}
    assert words["gamma"] == "switched off" and words["stage_rounds"] == "not set"
    assert words["server_lr"] == "equal" and re.fullmatch(r"\d+ times larger", words["lr"])
    assert re.fullmatch(r"\S+ times smaller", words["lr_decay"]) and "local_steps" not in words
    half = report(QUADRATIC, {"name": "codasca", "lr": found.rows[0].theory / 2, "server_lr": 1.0}, points=1)
    assert half.rows[0].words == "2 times smaller"
    published = report(QUADRATIC, {"name": "codasca_as_published"}, points=1)
    assert {r.name: r.words for r in published.rows}["server_lr"] == "not a parameter here"


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ({"name": "full"}, "holds"),
        ({"name": "uniform", "m": 2}, "holds"),
        ({"name": "cyclic", "groups": 3}, "violated"),
    ],
)
def test_who_takes_part(scheme: dict[str, Any], expected: str) -> None:
    found = report(QUADRATIC | {"participation": scheme}, {"name": "fedsgda"}, points=1)
    verdicts = {c.assumption: c.verdict for c in found.checked}
    assert verdicts["clients are drawn independently"] == expected
    assert (6 if scheme["name"] == "full" else 2) == found.setting.M
    assert found.setting.groups == (3 if scheme["name"] == "cyclic" else 1)


def test_where_a_theorem_does_not_apply_the_constants_are_shown(command: Command) -> None:
    done = command(ERM | {"algorithm": {"name": "fedsgda"}})
    assert done.code == 0 and "Theory: no step sizes" in done.out and "It assumes" not in done.out
    assert "there is no dual variable" in " ".join(done.out.split()) and "about 1/L" in done.out
    got = json.loads(command(ERM | {"algorithm": {"name": "fedsgda"}}, "--json").out)
    assert got["theory"] is None and "no dual variable" in got["refusal"] and got["configured"] == []


def test_an_algorithm_without_a_theorem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(THEOREMS, "codasca")
    found = report(QUADRATIC, points=1)
    assert found.steps is None and found.refusal == "no theorem for codasca is known here" and found.stable


def test_a_dual_variable_that_goes_its_own_way() -> None:
    margin = CANCER | {"problem": {"name": "auc", "dual": "margin"}}
    assert "direction of its own" in " ".join(report(margin, points=1).text().split())
    assert not report(CANCER, points=1).remarks


def test_coupling_asks_for_care() -> None:
    text = "coupled more than they are curved"
    strong = report(POINT, points=1)
    assert max(strong.constants.L_1, strong.constants.L_2) < strong.constants.L_12
    assert text in strong.text() and text not in report(QUADRATIC, points=1).text()


def test_the_step_that_is_called_stable_is() -> None:
    """1/L converges where four times as much does not."""
    stable = report(QUADRATIC, points=1).stable
    assert stable is not None
    tree = QUADRATIC | {"train": {"rounds": 60, "batch_size": "none", "dtype": "float64"}}

    def distances(lr: float) -> list[float]:
        run = configs.resolve(tree | {"algorithm": {"name": "codasca", "lr": lr, "local_steps": 5}}).run()
        return [r["distance"] for r in run.records if "distance" in r]

    good = distances(stable)
    assert good[-1] < 1e-3 * good[0]
    try:
        bad = distances(4 * stable)
        assert not bad[-1] < 1e3 * bad[0]
    except Diverged:
        pass


# ------------------------------------------------------------------------------------------ along the path


def test_after_some_rounds(command: Command) -> None:
    """The Hessian of the wells depends on x: where training ends, it is another one."""
    options = ("--points", "1", "--train-rounds", "10")
    got = json.loads(command(POINT, *options, "--json").out)
    at = got["constants"]["L_1"]["at"]
    z = configs.resolve(POINT).run().z.double().numpy()
    fed = nonconvex_pl_federation(5, 20, 8)
    for where, point in (("start", np.zeros(16)), ("trained", z)):
        expected = of_hessians(nonconvex_pl_hessians(fed, point, nu=0.5, mu=0.7), 8)
        assert at[where] == pytest.approx(expected["L_1"], rel=1e-4)
    assert at["start"] != pytest.approx(at["trained"], rel=1e-3)
    assert got["constants"]["L_1"]["value"] == max(at.values())
    assert got["constants"]["mu_x"]["value"] == min(got["constants"]["mu_x"]["at"].values())
    text = command(POINT, *options).out
    assert re.search(r"^ +start +trained$", text, flags=re.M)
    assert max(map(len, text.splitlines())) <= 80


# -------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        (QUADRATIC | {"algorithm": {"name": "codsca"}}, [], "'codsca'.*did you mean 'codasca'"),
        (QUADRATIC, ["--set", "algorithm.name=nothing"], "algorithm.name: .*'nothing'"),
        (QUADRATIC, ["--points", "0"], "probe: points must be >= 1, got 0"),
        (QUADRATIC, ["--clients", "0"], "probe: clients must be >= 1, got 0"),
        (QUADRATIC, ["--train-rounds", "-1"], "probe: train_rounds must be >= 0, got -1"),
        (QUADRATIC, ["--accuracy", "0"], "accuracy must be > 0, got 0"),
        (
            QUADRATIC | {"participation": {"name": "uniform", "m": 99}},
            [],
            "m must be between 1 and the 6 clients",
        ),
        (QUADRATIC, ["--points", "many"], "points.*valid integer"),
        (
            QUADRATIC | {"algorithm": {"name": "codasca", "lr": 1e9}, "train": {"rounds": 9}},
            ["--train-rounds", "50"],
            "no longer finite|diverged|not finite",
        ),
    ],
)
def test_a_mistake_is_one_line(
    command: Command, tree: dict[str, Any], options: list[str], message: str
) -> None:
    done = command(tree, *options)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fedsaddle: ") and done.err.count("\n") == 1
    assert re.search(message, done.err.replace('"', "'")), done.err


def test_a_bad_file(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.toml").write_text("[data\n")
    for file, message in (("broken.toml", "is not valid TOML"), ("gone.toml", "No such file")):
        with pytest.raises(SystemExit) as end:
            cli.main(["probe", file])
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "") and err.count("\n") == 1 and message in err and file in err


def test_a_model_without_second_derivatives(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def losses(self: QuadraticSaddle, z: torch.Tensor, data: Any) -> torch.Tensor:
        raise NotImplementedError("derivative for aten::thing is not implemented\nand a long tail")

    monkeypatch.setattr(QuadraticSaddle, "losses", losses)
    done = command(QUADRATIC)
    assert (done.code, done.out) == (2, "")
    reason = "derivative for aten::thing is not implemented"
    assert done.err == f"fedsaddle: probe: cannot measure the curvature: {reason}\n"


# ------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(1984.3, "1980"), (0.123456, "0.123"), (5.0, "5"), (2.5178e-5, "2.52e-05"), (12345678.0, "1.23e+07"), (0.0, "0"),
     (math.inf, "inf"), (-3.2456, "-3.25"), (182345.0, "182000"), (None, "unknown")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text
