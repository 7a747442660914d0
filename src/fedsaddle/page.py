"""Pages: cards with figures and tables, in one self-contained HTML file.

A page works offline: plotly.js is inlined once and a content security policy forbids every request. What users supply
(names, settings) is escaped wherever it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from fedsaddle.errors import optional_import
from fedsaddle.figures import Figure
from fedsaddle.folder import write_whole


class Card(NamedTuple):
    """A part of a page."""

    name: str
    title: str
    body: str  # HTML
    wide: bool = False


def drawn(name: str, figure: Figure | None) -> Card | None:
    """A legend, places for panels, each followed by its data, which the page's script draws, and a note.

    Panels that are a choice share one place; the script shows the one that is chosen.
    """
    if figure is None:
        return None
    entries = "".join(f"<li>{swatch(hue, kind)}{escape(text)}</li>" for text, hue, kind in figure.legend)
    panels, n, choice = "", len(figure.panels), bool(figure.choice) and len(figure.panels) > 1
    for i, p in enumerate(figure.panels):
        data = json.dumps({"data": p.data, "layout": p.layout}, allow_nan=False).replace("<", "\\u003c")
        panels += f"<div class='panel'{' hidden' * (choice and i > 0)}>{element('h3', p.title)}"
        panels += f"<div class='plot' style='--h:{p.height}px'></div>"
        panels += f"<script type='application/json'>{data}</script></div>"
    body = ""
    if choice:
        options = "".join(element("option", p.title) for p in figure.panels)
        body = f"<label class='choice'>{escape(figure.choice)} <select>{options}</select></label>"
    body += f"<ul class='legend'>{entries}</ul>" if entries else ""
    columns = 1 if choice else 3 if n == 3 else min(n, 2)
    body += f"<div class='plots of{columns}'>{panels}</div>{element('p', figure.note, 'note')}"
    return Card(name, figure.title, body, wide=figure.wide or columns > 1)


def tiles(shown: Iterable[tuple[str, str]]) -> str:
    """The few numbers that matter most: captions and values, of which a deviation is written smaller."""
    body = ""
    for caption, value in shown:
        number, sign, deviation = value.partition(" ± ")
        number = escape(number) + (f" <small>± {escape(deviation)}</small>" if sign else "")
        body += (
            f"<div class='tile'><div class='figure'>{number}</div>{element('div', caption, 'caption')}</div>"
        )
    return f"<div class='tiles'>{body}</div>"


def code(value: Any) -> str:
    """A setting as HTML."""
    if isinstance(value, float):
        value = float(f"{value:.6g}")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"<code>{escape(text)}</code>"


def distinct(values: Iterable[Any]) -> str:
    """The distinct values of a setting as HTML."""
    return ", ".join(dict.fromkeys(code(v) for v in values))


def element(tag: str, text: str, kind: str = "") -> str:
    """An element with a text; nothing without one."""
    opening = f"{tag} class='{kind}'" if kind else tag
    return f"<{opening}>{escape(text)}</{tag}>" if text else ""


def swatch(colour: str, kind: str) -> str:
    """A small picture for legends: a line of some dash, a marker or a block."""
    shapes = {
        "block": "<rect x='6' width='10' height='10' rx='2'/>",
        "circle": "<circle cx='11' cy='5' r='4'/>",
        "diamond": "<path d='M11 0l5 5l-5 5l-5-5z'/>",
        "square": "<rect x='7' y='1' width='8' height='8'/>",
        "triangle-up": "<path d='M11 1l4.5 8h-9z'/>",
    }
    dashes = {"dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}
    line = f"<path d='M0 5h22' stroke='currentColor' stroke-width='2.5' stroke-dasharray='{dashes.get(kind, '')}'/>"
    style = f"color:var(--{colour.removeprefix('@')});fill:currentColor"
    return f"<svg class='swatch' width='22' height='10' style='{style}' aria-hidden='true'>{shapes.get(kind, line)}</svg>"


def pairs(rows: Iterable[tuple[str, str]], kind: str = "pairs") -> str:
    body = "".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f"<table class='{kind}'><tbody>{body}</tbody></table>"


def table(kind: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as HTML; each knows its head, which stands beside it on a narrow screen."""
    cells = "".join(f"<th scope='col'>{escape(h)}</th>" for h in head)
    body = ""
    for row in rows:
        known = (
            cell.replace("<td", f"<td data-head='{escape(h)}'", 1) for h, cell in zip(head, row, strict=True)
        )
        body += f"<tr>{''.join(known)}</tr>"
    body = f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='scroll'><table class='rows {kind}'>{body}</table></div>"


def laid_out(cards: Iterable[Card | None]) -> str:
    """The cards in two columns; one that has no neighbour takes both."""
    out, open_row = "", False
    shown = [card for card in cards if card is not None]
    for i, card in enumerate(shown):
        alone = not open_row and (i + 1 == len(shown) or shown[i + 1].wide)
        wide = card.wide or alone
        open_row = not wide and not open_row
        kind = "card wide" if wide else "card"
        out += f"<section class='{kind}' id='{card.name}'><h2>{escape(card.title)}</h2>{card.body}</section>"
    return out


def write(path: Path, title: str, kind: str, facts: list[str], lead: str, cards: list[Card | None]) -> Path:
    template, css, js = (
        (files("fedsaddle") / "assets" / f"report.{kind}").read_text("utf-8")
        for kind in ("html", "css", "js")
    )
    plotly = optional_import("plotly.offline", "a report", "report").get_plotlyjs()
    page = Template(template).substitute(
        title=escape(title), kind=escape(kind), lead=lead, cards=laid_out(cards), css=css, js=js,
        facts=" <span class='sep'>·</span> ".join(escape(fact) for fact in facts),
        plotly=plotly.replace("</script", "<\\/script"),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page.encode())
    return path
