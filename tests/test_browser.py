"""Pages in a real browser: every figure is drawn, legible on a desk and on a telephone, light, dark and on paper."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fedsaddle as fs
from fedsaddle import report
from fedsaddle.sweep import sweep
from fedsaddle.toml import to_toml
from tests.test_report import auc_run, hostile_page, hues
from tests.test_sweep import QUADRATIC

pytest.importorskip("plotly")
pytestmark = pytest.mark.xdist_group("browser")  # one process runs them: they share the browser and its pages
sync_api = pytest.importorskip("playwright.sync_api")

# what a page must show, and how many figures each card has
CARDS = {
    "run": {"course": 2, "clients": 2, "partition": 1, "convergence": 3, "calendar": 1, "weights": 1},
    "comparison": {"course": 4, "clients": 1, "partition": 1, "convergence": 3},
    "sweep": {"seeds": 1, "maps": 3, "parallel": 1},
}
TABLES = {
    "run": {"numbers", "each", "words", "communication", "settings", "cite", "versions"},
    "comparison": {"runs", "each", "settings", "words", "cite", "versions"},
    "sweep": {"chosen", "points", "config", "cite", "versions"},
}
# of every figure on view: its card, the traces it has and those drawn, and the sizes of its texts
DRAWN = """() => [...document.querySelectorAll(".plot")].filter(p => p.offsetParent).map(p => ({
    card: p.closest("section").id, wanted: p.data.length, title: p.closest(".panel").querySelector("h3")?.textContent,
    drawn: p.querySelectorAll(".scatterlayer > .trace, .barlayer .trace, .heatmaplayer > .hm").length,
    ticks: p.querySelectorAll(".xtick text").length,
    sizes: [...p.querySelectorAll("svg text")].map(t => parseFloat(getComputedStyle(t).fontSize)),
    inside: p.querySelector(".main-svg").getBoundingClientRect().right <= p.getBoundingClientRect().right + 1
        && p.querySelector(".main-svg").getBoundingClientRect().bottom <= p.getBoundingClientRect().bottom + 1,
}))"""
# whether figures have the width of their places and the colours of the scheme
REDRAWN = """() => [...document.querySelectorAll(".plot")].filter(p => p.offsetParent).every(p =>
    p.querySelector(".main-svg").clientWidth === p.clientWidth
    && [...p.querySelectorAll(".xtick text")].every(t =>
        getComputedStyle(t).fill === getComputedStyle(document.querySelector(".note")).color))"""
# labels of one axis that touch each other
TOUCHING = """() => [...document.querySelectorAll(".plot")].filter(p => p.offsetParent).flatMap(p =>
    ["xtick", "ytick"].flatMap(kind => {
        const boxes = [...p.querySelectorAll("." + kind + " text")].filter(t => t.textContent.trim())
            .map(t => [t.textContent, t.getBoundingClientRect()]);
        return boxes.flatMap(([a, r], i) => boxes.slice(i + 1)
            .filter(([, s]) => r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 2 && s.top < r.bottom - 2)
            .map(([b]) => p.closest("section").id + ": " + a + " and " + b));
    }))"""
# tables that are wider than their places
CUT = """() => [...document.querySelectorAll(".scroll")].filter(s => s.scrollWidth > s.clientWidth)
    .map(s => s.closest("section").id)"""
# text and ground of what is read
INKS = """() => [["body", document.body], ["h1", "h1"], ["note", ".note"], ["caption", ".caption"], ["cell", "td"],
    ["cite", "pre.cite"]].map(([name, at]) => [name, at.style ? at : document.querySelector(at)]).filter(([, e]) => e)
    .map(([name, e]) => {
        let ground = e;
        while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
        return [name, getComputedStyle(e).color, getComputedStyle(ground).backgroundColor];
    })"""


class Opened(NamedTuple):
    """A page in the browser, and what it did that it should not."""

    name: str
    path: Path
    tab: Any
    wrong: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("pages")
    robust = fs.ScaffPD(ambiguity="chi2(0.05)", tau=0.3, sigma=2.0, local_steps=2)
    features = ("age", "systolic blood pressure, standing", "dose")
    run = auc_run(out / "run", algorithm=robust, participation=fs.Uniform(4), features=features)
    points = {
        "algorithm.lr": [0.1, 0.05, 1e200],
        "algorithm.server_lr": [1.0, 0.5],
        "train.batch_size": [2, 1],
    }
    tree = QUADRATIC | {"sweep": QUADRATIC["sweep"] | {"points": points}}
    (out / "tiny.toml").write_text(to_toml(tree))
    sweep(out / "tiny.toml", out=out / "sweep")
    return {
        "run": report.write_report(run),
        "comparison": hostile_page(out / "hostile"),
        "sweep": out / "sweep" / "sweep.html",
    }


@pytest.fixture(scope="module", params=list(CARDS))
def opened(request: pytest.FixtureRequest, browser: Any, pages: dict[str, Path]) -> Iterator[Opened]:
    path, wrong = pages[request.param], []
    tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    tab.on("console", lambda message: wrong.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    tab.on("request", lambda r: wrong.append(r.url) if r.url not in (path.as_uri(),) else None)
    tab.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
    tab.goto(path.as_uri())
    yield Opened(request.param, path, tab, wrong)
    tab.close()


@pytest.fixture(autouse=True)
def _on_a_desk(opened: Opened) -> None:
    look(opened, 1280, "light")


def look(opened: Opened, width: int, scheme: str) -> Any:
    opened.tab.set_viewport_size({"width": width, "height": 900})
    opened.tab.emulate_media(color_scheme=scheme, media="screen")
    opened.tab.wait_for_function(REDRAWN, timeout=10_000)
    return opened.tab


def contrast(*colours: str) -> float:
    """The ratio of luminances of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(v) / 255 for v in colour[4:-1].split(",")]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def choices(tab: Any) -> Iterator[None]:
    """One by one every figure that the reader may choose."""
    options = tab.locator(".choice option").count()
    for i in range(max(1, options)):
        if options:
            tab.locator(".choice select").select_option(index=i)
        yield


def test_every_figure_is_drawn_and_nothing_goes_wrong(opened: Opened) -> None:
    found: dict[str, int] = {}
    maps = []
    for i, _ in enumerate(choices(opened.tab)):
        for figure in opened.tab.evaluate(DRAWN):
            assert figure["drawn"] == figure["wanted"] > 0 and figure["ticks"] > 1, figure
            if i == 0 or figure["card"] == "maps":
                found[figure["card"]] = found.get(figure["card"], 0) + 1
            maps += [figure["title"]] * (figure["card"] == "maps")
    assert found == CARDS[opened.name] and len(set(maps)) == len(maps)
    shown = set(opened.tab.evaluate("() => [...document.querySelectorAll('section')].map(s => s.id)"))
    assert shown == set(found) | TABLES[opened.name]
    opened.tab.locator(".plot").first.hover()
    assert opened.tab.locator("[data-title^=Download]").count() > 0
    assert opened.tab.locator("[data-title^=Share], img").count() == 0
    assert opened.wrong == []


@pytest.mark.parametrize("width", [1280, 400])
def test_it_is_legible(opened: Opened, width: int) -> None:
    tab = look(opened, width, "light")
    for _ in choices(tab):
        assert tab.evaluate("() => document.documentElement.scrollWidth") == width
        for figure in tab.evaluate(DRAWN):
            assert figure["inside"] and min(figure["sizes"]) >= 10, figure
        assert tab.evaluate(TOUCHING) == []


def test_tables_are_not_cut(opened: Opened) -> None:
    """Nor have they an empty band above on a telephone: rows are blocks there, in which each cell has its head."""
    assert "runs" not in look(opened, 1280, "light").evaluate(CUT)
    tab = look(opened, 400, "light")
    assert tab.evaluate(CUT) == []
    assert tab.evaluate(
        "() => [...document.querySelectorAll('.rows thead')].every(h => h.offsetHeight === 0)"
    )
    heads = tab.evaluate(
        "() => [...document.querySelectorAll('.rows td')].filter(d => d.offsetHeight && d.dataset.head)"
        ".map(d => getComputedStyle(d, '::before').content)"
    )
    assert heads and "none" not in heads


def test_no_card_is_mostly_white(opened: Opened) -> None:
    """The one on versions stood beside a tall one on citations."""
    empty = opened.tab.evaluate(
        "() => { const card = document.querySelector('#versions'), table = card.querySelector('table');"
        " return card.offsetHeight - table.offsetHeight; }"
    )
    assert empty < 120


def test_dark_and_light_are_different_and_have_contrast(opened: Opened) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        tab = look(opened, 1280, scheme)
        inks = tab.evaluate(INKS)
        assert {"body", "h1", "note", "cell"} <= {name for name, *_ in inks}
        for name, ink, ground in inks:
            assert contrast(ink, ground) >= 4.5, (scheme, name, ink, ground)
        seen[scheme] = dict((name, ground) for name, _, ground in inks)
        text = tab.evaluate("() => getComputedStyle(document.querySelector('.plot .xtick text')).fill")
        assert contrast(text, seen[scheme]["note"]) >= 4.5  # figures stand on the ground of their cards
        r, g, b = (int(hues(scheme)[0][i : i + 2], 16) for i in (1, 3, 5))
        assert f"rgb({r}, {g}, {b})" in tab.locator(".cards").inner_html()  # drawn in the hues of the scheme
    assert contrast(seen["light"]["body"], seen["dark"]["body"]) > 10


def test_a_print_has_whole_figures_in_the_light_colours(opened: Opened) -> None:
    tab = look(opened, 1280, "dark")
    tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    text = tab.evaluate("() => getComputedStyle(document.querySelector('.plot .xtick text')).fill")
    assert contrast(text, "rgb(255, 255, 255)") > 4.5
    tab.emulate_media(color_scheme="dark", media="print")
    widest = tab.evaluate(
        "() => Math.max(...[...document.querySelectorAll('main *')].map(e => e.clientWidth))"
    )
    sheet = 794 - 2 * 14 * 96 / 25.4  # A4 and its margins, in px
    assert widest <= sheet
    assert all(figure["inside"] for figure in tab.evaluate(DRAWN))
    (_, ink, _), *_ = tab.evaluate(INKS)
    assert contrast(ink, "rgb(255, 255, 255)") > 10
    tab.evaluate("() => dispatchEvent(new Event('afterprint'))")
    pdf = tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and 1 <= pdf.count(b"/Type /Page\n") <= 8
    tab.emulate_media(media="screen")
    assert not tab.evaluate("() => document.documentElement.classList.contains('printing')")
