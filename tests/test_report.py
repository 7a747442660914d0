"""Reports: every part that the data allows, nothing that it does not, no requests, and no way in for hostile names."""

from __future__ import annotations

import builtins
import dataclasses
import html
import json
import re
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedsaddle as fs
from fedsaddle import figures, report
from fedsaddle.figures import linear_weights, log_axis, within_one
from fedsaddle.models import Linear
from tests.harness import binary

pytest.importorskip("plotly")

HOSTILE = (
    "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"@c0\" $cards ${title} {css} %{y}"
)


def auc_run(
    out: Path,
    names: tuple[str, ...] | None = None,
    algorithm: Any = None,
    seed: int = 0,
    features: tuple[str, ...] = (),
    **options: Any,
) -> Path:
    torch.manual_seed(0)
    fed = binary()
    if names is not None:
        fed = dataclasses.replace(fed, names=names)
    fed = dataclasses.replace(fed, classes=("benign", "malignant"), feature_names=features)
    algorithm = algorithm or fs.CODASCA(lr=0.05, local_steps=2)
    fs.train(
        fs.AUC(Linear(3)), algorithm, fed, rounds=6, batch_size=4, seed=seed, out=out, **options
    ).finish()
    return out


def edit_result(folder: Path, **changes: Any) -> None:
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | changes))


def hues(scheme: str) -> list[str]:
    """The hues that report.css declares for a scheme."""
    css = (resources.files("fedsaddle") / "assets" / "report.css").read_text(encoding="utf-8")
    light, dark = css.split("@media")[:2]
    return re.findall(r"--c\d:(#\w{6})", light if scheme == "light" else dark)


class Page(HTMLParser):
    """What a browser would see: elements, their attributes, text, and the figures' data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._in = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.figures = [json.loads(s) for s in self.scripts if s.startswith("{")]
        self.cards = {a["id"] for t, a in self.tags if t == "section"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.text += data


def test_report_of_a_run_has_every_part(tmp_path: Path) -> None:
    folder = auc_run(tmp_path / "run", participation=fs.Uniform(3))
    edit_result(folder, per_client={"auc": [0.5, 0.7, float("nan"), 0.9, None, 0.8]})
    (folder / "config.toml").write_text("[data]\nimpute = 'median'\n[train]\nrounds = 6\n")
    path = report.write_report(folder)
    page = Page(path)
    assert path == folder / "report.html"
    assert page.cards == {
        "numbers", "each", "words", "course", "clients", "convergence", "calendar", "partition", "communication",
        "settings", "cite", "versions",
    }  # fmt: skip
    for text in (
        "CODASCA on AUC",
        "drift_corrected_steps",
        "rounds = 6",
        "@inproceedings{yuan2021federated",
        "malignant",
    ):
        assert text in page.text
    assert page.text.count("impute") == 2  # among the settings, and in the file
    assert "2 clients with one class only" in page.text  # of per_client: counted, not drawn
    assert len(page.figures) == sum(a.get("class") == "plot" for _, a in page.tags) == 8


def test_numbers_and_curves_are_those_of_the_history(tmp_path: Path) -> None:
    folder = auc_run(tmp_path / "run", eval_every=1)
    page = Page(report.write_report(folder))
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert f"{records[-1]['train_auc']:.4f}" in page.text
    rounds, moved = page.figures[0]["data"][0], page.figures[1]["data"][0]
    assert rounds["x"] == [r["round"] for r in records]
    assert rounds["y"] == moved["y"] == [r["train_auc"] for r in records]
    assert moved["x"] == [r["bytes_down"] + r["bytes_up"] for r in records]
    residual = next(f for f in page.figures if f["layout"]["yaxis"].get("type") == "log")
    assert residual["data"][0]["y"] == [r["grad_phi"] for r in records]
    gap, dual = page.figures[-2]["data"][0], page.figures[-1]["data"][0]
    assert gap["y"] == [r["dual_distance"] for r in records if r["dual_distance"]]
    assert dual["y"] == [r["dual"][0] for r in records] and dual["y"][0] == 0.0 != dual["y"][-1]


def test_objectives_stand_beside_what_they_began_with(tmp_path: Path) -> None:
    folder = auc_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    start, end = result["phi_at_start"], result["metrics"]["phi"]
    text = report.write_report(folder).read_text(encoding="utf-8")
    assert start != end and f"<small>began at {start:.4f}</small></th><td>{end:.4f}</td>" in text
    edit_result(
        folder, phi_at_start=None, grad_phi_at_start=None, loss_at_start=None
    )  # as of an older fedsaddle
    assert "began at" not in report.write_report(folder).read_text(encoding="utf-8")


def test_calendar_shows_who_took_part(tmp_path: Path) -> None:
    folder = auc_run(tmp_path / "run", participation=fs.Uniform(2))
    grid = next(
        t for f in Page(report.write_report(folder)).figures for t in f["data"] if t["type"] == "heatmap"
    )
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()][1:]
    assert [[i for i in range(6) if row[i]] for row in zip(*grid["z"], strict=True)] == [
        r["clients"] for r in records
    ]


def test_repetitions_are_shown_by_mean_and_spread(tmp_path: Path) -> None:
    folders = [auc_run(tmp_path / f"s{s}", seed=s) for s in range(3)]
    page = Page(report.write_comparison({"ours": folders}, tmp_path / "out.html"))
    finals = torch.tensor(
        [json.loads((f / "result.json").read_text())["metrics"]["train_auc"] for f in folders],
        dtype=torch.float64,
    )
    assert f"{finals.mean():.4f} ± {finals.std():.4f}" in page.text
    line = next(t for t in page.figures[0]["data"] if "fill" not in t)
    assert line["y"][-1] == pytest.approx(finals.mean().item())


def test_a_comparison_has_every_client_in_numbers(tmp_path: Path) -> None:
    rows: dict[str, list[Path]] = {"a": [], "b & c": [], "other": []}
    made = [
        ("a", ["n", "s"], [0.5, 0.25]),
        ("a", ["n", "s"], [0.7, 0.25]),
        ("b & c", ["n", "s"], [0.9, None]),
    ]
    for name, clients, values in [*made, ("other", ["x"], [0.3])]:
        folder = tmp_path / f"{name}{len(rows[name])}"
        folder.mkdir()
        (folder / "history.jsonl").write_text(json.dumps({"round": 1, "auc": 0.5}) + "\n")
        result = {
            "client_names": clients,
            "per_client": {"auc": values},
            "metrics": {"auc": 0.5},
        }
        real = json.loads((auc_run(tmp_path / "real" / folder.name) / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(real | result | {"test_class_counts": None}))
        rows[name].append(folder)
    text = report.write_comparison(rows, tmp_path / "out.html").read_text(encoding="utf-8")
    table = text[text.index("<table class='rows clients'") :].partition("</table>")[0]
    assert re.findall(r"<th scope='col'>([^<]*)", table) == ["Client", "a", "b &amp; c"]
    lines = [re.findall(r"<t[hd][^>]*>([^<]*)<", line) for line in table.split("<tr>")[2:]]
    assert lines == [["n", "0.6000", "0.9000"], ["s", "0.2500", "–"]]
    assert "Not in it, for want of the same clients: other." in text


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("auc", [1.0, 1.0]),
        ("valid_auc", [0.998, 1.0]),
        ("accuracy_clients", [0.2, None, 0.99]),
        ("train_precision", [0.9, 0.96]),
    ],
)
def test_axes_of_shares_end_at_one(key: str, values: list[float | None]) -> None:
    low, high = within_one(key, values)["range"] if max(v or 0 for v in values) > 0.97 else (0.0, 1.0)
    seen = [v for v in values if v is not None]
    assert low < min(seen) and max(seen) <= high
    assert 1 <= high < 1 + (1 - low) / 9  # no label beyond 1: steps are a seventh at least


def test_axes_of_other_measures_and_far_from_one_are_free() -> None:
    assert within_one("loss", [1.0]) == within_one("auc_std", [1.0]) == within_one("auc", [0.5, 0.6]) == {}
    assert within_one("auc", []) == {}


def test_a_perfect_run_is_drawn_up_to_one() -> None:
    run = figures.Run([{"round": r, "auc": 1.0, "auc_worst20": 1.0} for r in range(3)])
    panels = figures.course([figures.Group("a", 0, [run])], "auc").panels
    assert all(p.layout["yaxis"]["range"][1] < 1.01 for p in panels)


@pytest.mark.parametrize(
    ("a", "b", "bold"),
    [
        ((0.8412,), (0.8407,), 0),  # a run each says nothing of chance
        ((0.85, 0.86), (0.80,), 0),
        ((0.85, 0.86), (0.80, 0.81), 1),
        ((0.85, 0.86), (0.75, 0.87), 0),  # ahead by 0.045, of deviations 0.007 and 0.085
    ],
)
def test_bold_is_what_is_ahead_of_chance(
    tmp_path: Path, a: tuple[float, ...], b: tuple[float, ...], bold: int
) -> None:
    rows: dict[str, list[Path]] = {"a": [], "b": []}
    for name, value in [("a", v) for v in a] + [("b", v) for v in b]:
        folder = tmp_path / f"{name}{len(rows[name])}"
        folder.mkdir()
        (folder / "history.jsonl").write_text(json.dumps({"round": 1, "auc": value}) + "\n")
        rows[name].append(folder)
    page = Page(report.write_comparison(rows, tmp_path / "out.html"))
    cells = [i for i, (t, _) in enumerate(page.tags) if t == "td"]
    assert [page.tags[i][1].get("class") for i in cells].count("best") == bold
    assert not bold or page.tags[cells[0]][1].get("class") == "best"  # the first row, the AUC
    assert ("In bold: the best mean" in page.text) == bool(bold)  # no word of what is not there


def test_comparison_has_one_colour_and_one_row_a_run(tmp_path: Path) -> None:
    runs = {
        "CODASCA": auc_run(tmp_path / "a"),
        "SGDA": auc_run(tmp_path / "b", algorithm=fs.LocalSGDA(lr=0.1, local_steps=2)),
    }
    page = Page(report.write_comparison(runs, tmp_path / "deep" / "out.html", note="mind <the> split"))
    colours: dict[str, set[str]] = {}
    for trace in (t for f in page.figures for t in f["data"] if t["type"] == "scatter" and "fill" not in t):
        colours.setdefault(trace["name"], set()).add(trace["marker"]["color"])
    assert colours == {"CODASCA": {"@c0"}, "SGDA": {"@c1"}}
    assert "mind <the> split" in page.text
    assert "algorithm.lr" in page.text and "deng2021local" in page.text
    tables = {"runs", "settings", "words", "cite", "versions"}
    assert tables | {"course", "convergence", "partition"} <= page.cards
    for meaning in ("in which each counts once", "how unequal clients are", "it has one or more phases"):
        assert meaning in page.text


def test_words_are_those_on_the_page(tmp_path: Path) -> None:
    fed = fs.quadratic_federation(clients=3, dim_x=4, dim_y=2)
    for name in "ab":
        fs.train(fs.QuadraticSaddle(4, 2), fs.CODASCA(lr=0.05), fed, rounds=2, out=tmp_path / name).finish()
    pages = [
        report.write_report(tmp_path / "a"),
        report.write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "out.html"),
    ]
    for page in map(Page, pages):
        assert "words" in page.cards and "one exchange between the server" in page.text
        assert "how unequal clients are" not in page.text and "the share of pairs" not in page.text


def test_folders_with_the_same_name_are_told_apart(tmp_path: Path) -> None:
    page = Page(report.write_comparison([auc_run(tmp_path / x / "run") for x in "ab"], tmp_path / "out.html"))
    assert {t["name"] for t in page.figures[0]["data"]} == {"a/run", "b/run"}


@pytest.mark.parametrize("low", [1e-7, 0.0123, 1.0, 9.9, 31.0, 4e5])
@pytest.mark.parametrize("ratio", [1.0, 1.001, 1.3, 3.0, 5.9, 6.1, 40.0, 299.0, 301.0, 1e9])
def test_a_log_axis_has_two_to_nine_labels(low: float, ratio: float) -> None:
    axis = log_axis([low, None, low * ratio])
    assert 2 <= len(axis["tickvals"]) <= 9 and len(set(axis["ticktext"])) == len(axis["ticktext"])


def test_distance_is_drawn_on_a_log_axis(tmp_path: Path) -> None:
    fed = fs.quadratic_federation(clients=3, dim_x=4, dim_y=2)
    run = fs.train(
        fs.QuadraticSaddle(4, 2), fs.CODASCA(lr=0.05, local_steps=3), fed, rounds=5, out=tmp_path / "q"
    )
    assert run.plot().layout.yaxis.type == "log"
    page = Page(report.write_report(tmp_path / "q"))
    assert page.figures[0]["layout"]["yaxis"]["type"] == "log"
    assert "partition" not in page.cards and "clients" not in page.cards  # no classes, no AUC


@pytest.mark.parametrize(("n", "kind", "traces"), [(1, "scatter", 1), (3, "scatter", 3), (12, "heatmap", 1)])
def test_dual_variables_are_lines_or_a_map(tmp_path: Path, n: int, kind: str, traces: int) -> None:
    fed = fs.quadratic_federation(clients=3, dim_x=4, dim_y=n)
    for name in "ab":
        algorithm = fs.CODASCA(lr=0.05, local_steps=2)
        fs.train(fs.QuadraticSaddle(4, n), algorithm, fed, rounds=3, out=tmp_path / name).finish()
    history = [json.loads(line) for line in (tmp_path / "a" / "history.jsonl").read_text().splitlines()]
    drawn = Page(report.write_report(tmp_path / "a")).figures[-1]["data"]
    assert [t["type"] for t in drawn] == [kind] * traces
    rows = drawn[0]["z"] if kind == "heatmap" else [t["y"] for t in drawn]
    assert rows == [[r["dual"][i] for r in history] for i in range(n)]
    both = Page(report.write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "c.html")).figures[-1][
        "data"
    ]
    assert len(both) == 2
    if n > 1:
        assert both[0]["y"][-1] == pytest.approx(sum(v**2 for v in history[-1]["dual"]) ** 0.5)


def test_a_dual_that_each_client_has_for_itself_is_not_shown_as_one(tmp_path: Path) -> None:
    run = fs.train(
        fs.AUC(Linear(3)), fs.FFMDR(solver="exact"), binary(), rounds=2, out=tmp_path / "r"
    ).finish()
    assert all("dual" not in r and "dual_distance" not in r for r in run.records)
    assert "Dual variable" not in Page(report.write_report(tmp_path / "r")).text


def test_curves_have_one_colour_a_run_and_no_upload_button() -> None:
    def records(scale: float) -> list[dict[str, Any]]:
        return [{"round": r, "auc": scale * r / 10, "auc_worst20": scale * r / 20} for r in range(5)]

    figure = report.curves({"a": records(1), "<b>": records(2)})
    assert [t.line.color for t in figure.data] == [hues("light")[0], hues("light")[1]] * 2
    assert figure.data[1].name == "&lt;b&gt;"  # Plotly reads tags in names
    assert list(figure.data[0].y) == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert figure.layout.modebar.remove == ("sendChartToCloud",)


def test_a_federation_is_drawn_in_the_colours_of_the_page() -> None:
    fed = dataclasses.replace(binary(), classes=("benign", "malignant"))
    figure = fed.plot()
    rare = int(fed.class_counts().sum(0).argmin())
    assert figure.data[rare].marker.color == hues("light")[1]
    assert figure.layout.modebar.remove == ("sendChartToCloud",)


def test_the_agreed_share_of_positives_is_reported(tmp_path: Path) -> None:
    folder = auc_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    p = result["config"]["problem"]["p"]
    ratios = [counts[1] / sum(counts) for counts in result["class_counts"]]
    assert result["classes"] == ["benign", "malignant"]
    assert p == pytest.approx(sum(ratios) / len(ratios))
    assert f"{p:.6g}" in Page(report.write_report(folder)).text


def test_test_samples_are_counted_where_data_are_shown(tmp_path: Path) -> None:
    fed = dataclasses.replace(binary(), classes=("benign", "malignant")).holdout(0.4)
    folder = tmp_path / "run"
    fs.train(fs.AUC(Linear(3)), fs.CODASCA(), fed, rounds=1, out=folder).finish()
    assert fed.test is not None
    counts = fed.test.class_counts()
    assert json.loads((folder / "result.json").read_text())["test_class_counts"] == counts.tolist()
    i = int(counts.sum(1).argmin())
    whole = f"{counts.sum()} test samples in all, {counts[:, 1].sum()} of class malignant; "
    least = f"fewest at {fed.names[i]}: {counts[i].sum()}, {counts[i, 1]} of class malignant."
    assert whole + least in Page(report.write_report(folder)).text
    edit_result(folder, test_class_counts=[counts.sum(0).tolist()])  # one pooled set
    assert whole + "they are of no client." in Page(report.write_report(folder)).text
    result = json.loads((folder / "result.json").read_text())
    del result["test_class_counts"], result["auc_interval"]  # as in folders of an older fedsaddle
    (folder / "result.json").write_text(json.dumps(result))
    page = Page(report.write_report(folder))
    assert "training samples, " in page.text and "test samples" not in page.text.replace(
        "all test samples pooled", ""
    )


def test_a_linear_models_weights_are_drawn_largest_first(tmp_path: Path) -> None:
    features = ("age", HOSTILE, "dose")
    folder = auc_run(tmp_path / "run", features=features)
    weights = load_file(folder / "model.safetensors")["1.weight"][0].tolist()
    order = sorted(range(3), key=lambda i: -abs(weights[i]))
    page = Page(report.write_report(folder))
    (bars,) = (t for f in page.figures for t in f["data"] if f["layout"]["xaxis"].get("zeroline"))
    assert bars["x"] == pytest.approx([weights[i] for i in order], rel=1e-5)
    assert bars["text"] == [f"<b>{html.escape(features[i])}</b>" for i in order]
    assert "weights" in page.cards and "not scaled" in page.text and "so comparable" not in page.text
    sample = json.loads((folder / "result.json").read_text())["sample"]
    edit_result(folder, sample=sample | {"shift": [0.0] * 3, "width": [1.0] * 3})
    assert "as scaled for training, and so comparable" in Page(report.write_report(folder)).text
    for other in (
        {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(2), "2.weight": torch.ones(1, 2)},
        {"norm": torch.ones(3), "weight": torch.ones(1, 3)},
        {"weight": torch.ones(1, 4)},
        {},
    ):
        save_file(other, folder / "model.safetensors")
        assert "weights" not in Page(report.write_report(folder)).cards
    edit_result(folder, sample=None)
    assert "weights" not in Page(report.write_report(folder)).cards


def test_of_many_weights_the_largest_are_drawn_for_each_class() -> None:
    table = torch.linspace(-1, 2, 60).reshape(2, 30).numpy()
    drawn = linear_weights(table, [f"f{i}" for i in range(30)], ["no", "yes"], scaled=True)
    assert drawn is not None and drawn.choice and "25 largest of 30" in drawn.note
    assert [p.title for p in drawn.panels] == ["no", "yes"]
    for panel, row in zip(drawn.panels, table, strict=True):
        assert panel.data[0]["x"] == pytest.approx(sorted(row, key=lambda v: -abs(v))[:25], rel=1e-5)
    assert linear_weights(table * float("nan"), [""] * 30, [], scaled=True) is None


def test_bars_of_one_column_of_text_count_relative_to_each_other() -> None:
    def note(*features: str) -> str:
        drawn = linear_weights(torch.ones(1, len(features)).numpy(), features, [], scaled=True)
        assert drawn is not None
        return drawn.note

    said = "The bars of one text column, such as those of sex, count relative to each other"
    assert said in note("age", "ward=east", "sex=f", "sex=m")
    assert "relative" not in note("age", "dose", "ward=east", "a=b=c")  # a column of one value


# ---------------------------------------------------------------------------------------------- what is missing


def test_an_unfinished_run_is_reported_as_far_as_it_got(tmp_path: Path) -> None:
    folder = auc_run(tmp_path / "run")
    (folder / "result.json").unlink()
    history = (folder / "history.jsonl").read_text().splitlines()
    (folder / "history.jsonl").write_text(
        "\n".join(history[:4]) + '\n{"round": 4, "pha'
    )  # killed while writing
    page = Page(report.write_report(folder))
    assert "has not finished" in page.text and "first 3 rounds" in page.text
    assert page.cards == {"numbers", "words", "course", "convergence"}


def test_a_run_that_has_finished_no_round_has_no_curves(tmp_path: Path) -> None:
    folder = auc_run(tmp_path / "run")
    (folder / "result.json").unlink()
    first, *_ = (folder / "history.jsonl").read_text().splitlines()
    (folder / "history.jsonl").write_text(first + "\n")
    page = Page(report.write_report(folder))
    assert "numbers are of the model before training" in page.text
    assert page.cards == {"numbers", "words"}


def test_settings_of_stages_are_listed_where_there_are_stages(tmp_path: Path) -> None:
    def listed(**stages: Any) -> bool:
        folder = tmp_path / str(len(stages))
        algorithm = fs.CODASCA(lr=0.05, local_steps=2, **stages)
        fs.train(fs.AUC(Linear(3)), algorithm, binary(), rounds=2, out=folder, progress=False).finish()
        return "reset_variates" in Page(report.write_report(folder)).text

    assert listed(stage_rounds=1) and not listed()


def test_few_evaluations_are_drawn_whole() -> None:
    def drawn(n: int) -> list[float]:
        records = [{"round": r, "auc": 0.5 + r / 100} for r in range(n)]
        return list(
            figures.course([figures.Group("a", 0, [figures.Run(records)])], "auc")
            .panels[0]
            .layout["yaxis"]["range"]
        )

    assert drawn(2)[0] < 0.5 and drawn(4)[0] < 0.5
    assert drawn(30)[0] > 0.51  # the start, of an untrained model, may lie below


def test_undefined_metrics_leave_gaps_and_valid_json(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    records = [
        {"round": r, "auc": float("nan") if r == 1 else 0.5 + r / 10, "grad_phi": 0.0} for r in range(3)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    page = Page(report.write_report(folder))
    assert page.figures[0]["data"][0]["x"] == [0, 2]
    assert "convergence" not in page.cards  # zero has no logarithm


def test_errors_name_the_folder_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fs.FedsaddleError, match=r"no history\.jsonl"):
        report.write_report(tmp_path)
    with pytest.raises(fs.FedsaddleError, match="at least one run"):
        report.write_comparison([], tmp_path / "out.html")
    (tmp_path / "history.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(fs.FedsaddleError, match="line 1 is not JSON"):
        report.write_report(tmp_path)
    folder = auc_run(tmp_path / "run")
    real = builtins.__import__

    def without_plotly(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest, **more)

    for module in [m for m in sys.modules if m.split(".")[0] == "plotly"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(builtins, "__import__", without_plotly)
    with pytest.raises(fs.FedsaddleError, match=r"pip install 'fedsaddle\[report\]'"):
        report.write_report(folder)


# ---------------------------------------------------------------------------------------------- safety


def hostile_page(tmp_path: Path) -> Path:
    runs = {}
    for i, algorithm in enumerate((fs.CODASCA(lr=0.05, local_steps=2), fs.LocalSGDA(lr=0.05, local_steps=2))):
        folder = auc_run(tmp_path / f"r{i}", tuple(f"{HOSTILE}{k}" for k in range(6)), algorithm)
        result = json.loads((folder / "result.json").read_text())
        result["config"]["algorithm"][HOSTILE] = HOSTILE
        result["config"][HOSTILE] = {"a": HOSTILE}
        traffic = {"phases": 1, "bytes_down": 0, "bytes_up": 0}
        edit_result(
            folder, config=result["config"], versions={HOSTILE: HOSTILE}, classes=[HOSTILE, HOSTILE],
            per_client={"auc": [0.5] * 6}, communication=result["communication"] | {"phases": {HOSTILE: traffic}},
        )  # fmt: skip
        (folder / "config.toml").write_text(HOSTILE)
        runs[f"{HOSTILE}{i}"] = folder
    report.write_report(tmp_path / "r0")
    return report.write_comparison(runs, tmp_path / "out.html", note=HOSTILE)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    for path in (hostile_page(tmp_path), tmp_path / "r0" / "report.html"):
        page = Page(path)
        assert HOSTILE in page.text  # shown as it is
        assert not any(t == "img" for t, _ in page.tags)
        figures = sum(a.get("class") == "plot" for _, a in page.tags)
        assert len([t for t, _ in page.tags if t == "script"]) == figures + 2  # data, plotly.js, ours
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
        assert all(
            "<" not in s for s in page.scripts if s.startswith("{")
        )  # as \\u003c, which ends no script
        assert all("<script" not in json.dumps(f) for f in page.figures)


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    page = Page(report.write_report(auc_run(tmp_path / "run")))
    for tag, attributes in page.tags:
        for name in ("src", "href", "data", "action", "srcset"):
            assert name not in attributes, (tag, attributes)
    style = re.search(r"<style>(.*?)</style>", (tmp_path / "run" / "report.html").read_text(), re.S)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy and policy.startswith("default-src 'none'") and "http" not in policy
    assert sum("plotly.js v" in s for s in page.scripts) == 1
    ours = page.scripts[-1]
    assert "showSendToCloud: false" in ours and 'plotlyServerURL: ""' in ours and "http" not in ours


def test_fairness_marks_the_tails_and_shows_a_robust_methods_weights(tmp_path: Path) -> None:
    robust = fs.ScaffPD(ambiguity="chi2(0.05)", tau=0.3, sigma=2.0, local_steps=2)
    run = auc_run(tmp_path / "robust", algorithm=robust)
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    weights = [r["weights"] for r in history if "weights" in r]
    assert [r["round"] for r in history if "weights" in r] == list(
        range(1, 7)
    )  # equal before the first round
    for given in weights:
        assert len(given) == 6 and sum(given) == pytest.approx(1.0, abs=1e-3)
    assert weights[0] != weights[-1]
    result = json.loads((run / "result.json").read_text())
    assert "weights" not in result["metrics"] and 0 < result["metrics"]["auc_gini"] < 1

    page = Page(report.write_report(run))
    by_client = result["per_client"]["auc"]
    order = sorted((i for i in range(6) if by_client[i] is not None), key=lambda i: by_client[i])
    (dots,) = (f for f in page.figures if isinstance(f["data"][0].get("marker", {}).get("color"), list))
    colours = dots["data"][0]["marker"]["color"]
    assert colours == ["@c1", *["@c0"] * (len(order) - 2), "@c2"]
    assert dots["data"][0]["x"] == pytest.approx([by_client[i] for i in order])
    (heat,) = (f for f in page.figures if "equal share" in f["data"][0].get("hovertemplate", ""))
    rows = order + [i for i in range(6) if i not in order]
    assert heat["data"][0]["z"][0] == pytest.approx([6 * w[rows[0]] for w in weights], abs=1e-3)
    assert heat["data"][0]["x"] == list(range(1, 7))
    worst, gini = result["metrics"]["auc_worst20"], result["metrics"]["auc_gini"]
    assert f"Worst 20 % (1 client): {worst:.4f}" in page.text and f"Gini coefficient: {gini:.4f}" in page.text

    plain = Page(report.write_report(auc_run(tmp_path / "plain")))
    assert "Weights over rounds" in page.text and "Weights over rounds" not in plain.text
    both = Page(report.write_comparison([tmp_path / "robust", tmp_path / "plain"], tmp_path / "both.html"))
    assert "Gini" in both.text and "Weights over rounds" not in both.text
    (largest,) = both.figures[-1]["data"]  # of the one run that weighs clients
    assert largest["y"] == pytest.approx([6 * max(w) for w in weights])


def test_each_client_stands_in_a_table_with_what_its_number_rests_on(tmp_path: Path) -> None:
    fed = dataclasses.replace(binary(), classes=("benign", "malignant")).holdout(0.4)
    folder = tmp_path / "run"
    run = fs.train(fs.AUC(Linear(3)), fs.CODASCA(), fed, rounds=1, out=folder).finish()
    assert fed.test is not None
    html = report.write_report(folder).read_text(encoding="utf-8")
    cells = re.findall(r"<th scope='row'>([^<]*)</th>((?:<td data-head='[^']*'>[^<]*</td>){5})", html)
    assert [name for name, _ in cells] == list(fed.names)
    train, test = fed.class_counts(), fed.test.class_counts()
    for i, (_, row) in enumerate(cells):
        value = run.by_client["auc"][i]
        shown = "–" if value != value else f"{value:.4f}"
        counts = [train[i].sum(), train[i, 1], test[i].sum(), test[i, 1]]
        assert re.findall(r">([^<]*)</td>", row) == [*map(str, counts), shown]
    assert "Training samples, malignant" in html and "Gini coefficient</th>" in html
    edit_result(folder, test_class_counts=[test.sum(0).tolist()])  # one pooled set
    assert "Test samples, malignant" not in report.write_report(folder).read_text(encoding="utf-8")


def test_late_bands_are_inside_the_range() -> None:
    line = {"y": [0.5, 0.6, 0.65, 0.7, 0.75, 0.8]}
    band = {
        "y": [0.6, 0.7, 0.75, 0.85, 0.87, 0.9, 0.7, 0.67, 0.65, 0.5, 0.45, 0.4],
        "fill": "toself",
    }  # up to 0.9 and back from 0.7 at the end
    low, high = figures._focus([band, line])
    assert low < 0.6 and high > 0.9
    assert low > 0.55  # the early band may lie below


def test_a_line_leaves_the_frame_at_its_beginning_only_and_the_note_says_so() -> None:
    def drawn(main: str, *lines: list[float]) -> tuple[list[float], str]:
        runs = [figures.Run([{"round": r, main: v} for r, v in enumerate(line)]) for line in lines]
        figure = figures.course([figures.Group(str(i), i, [run]) for i, run in enumerate(runs)], main)
        return list(figure.panels[0].layout["yaxis"]["range"]), figure.note

    said = "The frame leaves out the first evaluations, of a model hardly trained."
    slow = [0.5, 0.55, *[0.7 + r / 1000 for r in range(28)]]
    early = [0.6, 0.9, *[0.8] * 28]  # best in its first evaluations, of which two in thirty may be left out
    (low, high), note = drawn("auc", slow, early)
    assert 0.6 < low < 0.7 and high > 0.9 and note == said
    (low, high), note = drawn("loss", [1 - v for v in slow], [1 - v for v in early])
    assert low < 0.1 and 0.3 < high < 0.4 and note == said
    assert drawn("auc", [0.8] * 30, early[1:])[1] == ""  # all of it is in the frame
