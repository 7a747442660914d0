"""The figure of a federation: who owns what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsaddle.errors import optional_import

HEATMAP_CLIENTS, HEATMAP_CLASSES, PLOT_CLIENTS = 60, 12, 2000


def ownership(counts: npt.NDArray[np.int64], names: Sequence[str], classes: Sequence[str] | None) -> Any:
    """Bars or a heat map of `counts` `[N, C]`, the samples of each class at each client.

    Without `classes` the one column of `counts` holds the clients' sizes.
    """
    go = optional_import("plotly.graph_objects", "plot", "report")
    n_clients, n_samples = len(names), int(counts.sum())
    shown = np.unique(np.linspace(0, n_clients - 1, min(n_clients, PLOT_CLIENTS)).astype(np.int64))
    labelled = classes is not None
    classes = ["samples"] if classes is None else list(classes)
    counts, names = counts[shown], [names[i] for i in shown]
    title = f"{n_clients} clients, {n_samples:,} samples"
    if len(shown) < n_clients:
        title += f" (every {n_clients / len(shown):.0f}th client drawn)"
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = go.Figure()
    as_map = labelled and (len(names) > HEATMAP_CLIENTS or len(classes) > HEATMAP_CLASSES)
    if as_map:
        hover = "client %{x}<br>class %{y}<br>%{customdata:,} samples (%{z:.1%})<extra></extra>"
        bar = {"title": "share of<br>client", "tickformat": ".0%", "outlinewidth": 0, "thickness": 14}
        figure.add_heatmap(
            x=names, y=classes, z=share.T, customdata=counts.T, colorscale="Blues", zmin=0, colorbar=bar,
            hovertemplate=hover, xgap=0 if len(names) > 100 else 1, ygap=1,
        )  # fmt: skip
        figure.update_yaxes(title="class", type="category")
    else:
        hover = "client %{x}<br>class %{fullData.name}<br>%{y:,} samples (%{customdata:.1%})<extra></extra>"
        for k, colour in enumerate(_colours(len(classes))):
            figure.add_bar(
                x=names, y=counts[:, k], name=classes[k], customdata=share[:, k], hovertemplate=hover,
                marker={"color": colour, "line": {"width": 0}},
            )  # fmt: skip
        figure.update_layout(barmode="stack", bargap=0.15 if len(names) <= HEATMAP_CLIENTS else 0)
        figure.update_yaxes(title="samples")
    legend = {"title": "class", "traceorder": "normal"} if labelled else None
    figure.update_layout(
        template="plotly_white", title={"text": title, "x": 0.02, "font": {"size": 17}}, legend=legend,
        font={"family": "Inter, Helvetica, Arial, sans-serif", "size": 13, "color": "#2b2f36"},
        margin={"l": 60, "r": 20, "t": 60, "b": 60}, showlegend=labelled and not as_map,
    )  # fmt: skip
    figure.update_xaxes(title="client", type="category", showgrid=False, nticks=min(len(names), 40))
    return figure


def _colours(n: int) -> list[str]:
    if n == 1:
        return ["#4c78a8"]
    if n == 2:
        return ["#c9d3df", "#d1495b"]  # the positive class stands out
    return [
        "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#eeca3b",
        "#b279a2", "#ff9da6", "#9d755d", "#bab0ac", "#2f4b7c", "#a05195",
    ][:n]  # fmt: skip
