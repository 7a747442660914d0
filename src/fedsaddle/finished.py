"""What is said of a run that has ended: its report, and a short table."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from fedsaddle.folder import RUN_FILES, auc_interval
from fedsaddle.measures import Of, in_order, in_words, names
from fedsaddle.progress import human_bytes
from fedsaddle.remarks import remarks
from fedsaddle.tables import aligned, number

if TYPE_CHECKING:  # which loads torch
    from fedsaddle.train import Run


def show(done: Run, name: str, quiet: bool) -> None:
    """Write the report of a run that has ended, and print its result."""
    from fedsaddle.report import write_report

    folder = done.out
    assert folder is not None
    if has_plotly():
        write_report(folder)
    if quiet:
        print(folder)
    else:
        print_result(name, done.summary())
        print(f"{folder}: {', '.join(name for name in RUN_FILES if (folder / name).exists())}")


def print_result(name: str, result: dict[str, Any]) -> None:
    """A short table of a run's last evaluation."""
    config, metrics = result["config"], dict(result["metrics"])
    sizes = config["federation"]
    print(
        f"{name}: {config['algorithm']['name']} on {config['problem']['name']}, "
        f"{sizes['clients']} clients, {sizes['samples']} training samples\n"
    )
    sure = auc_interval(result)
    rows: list[list[str]] = [
        [in_words(k), number(metrics[k]) + f"  (95 %: {sure})" * (k == "auc" and sure != "")]
        for k in in_order(metrics)
        if k not in names(Of.count)
    ]
    if course := result.get("course"):
        named, values = in_words(course["metric"]), course["values"]
        rows.append(
            [f"{named}, last {len(values)} evaluations", f"{number(min(values))} to {number(max(values))}"]
        )
    rows.append(["rounds", str(metrics["round"])])
    rows.append(
        ["sent down, up", f"{human_bytes(metrics['bytes_down'])}, {human_bytes(metrics['bytes_up'])}"]
    )
    rows.append(["time", f"{metrics['seconds']:.1f} s"])
    print("\n".join(f"  {line}" for line in aligned(rows)))
    if "auc_clients" in metrics or "accuracy_clients" in metrics:
        print(f"\n  Clients are evaluated on their {result['clients_evaluated_on']} data.")
    for text in remarks(result):
        print(f"\n  {text}")
    print()


def has_plotly() -> bool:
    """Whether pages can be made: plotly is of the report extra."""
    return importlib.util.find_spec("plotly") is not None
