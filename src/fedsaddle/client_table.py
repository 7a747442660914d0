"""clients.csv of a run's folder: a line a client, with its rows and how well it is served, for whoever has a table program.

    client,rows,positives,test_rows,test_positives,auc,accuracy
    north,412,38,138,12,0.8312,0.91

Metrics are those of the last evaluation on each client's own test data, `train_auc` and so on where it has none; nothing
stands where a client has no value. Counts of classes are left out where labels are no classes, or at their sites.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsaddle.federation import Federation
from fedsaddle.folder import CLIENTS, write_whole

_MOST = 1_000_000  # clients; of more nothing is written


def write(
    folder: Path,
    federation: Federation,
    by_client: Mapping[str, Sequence[float]],
    evaluated_on: str,
    positive: int | None,
) -> None:
    """Write down what each client has, and the last evaluation client by client.

    Args:
        evaluated_on: "test" or "train".
        positive: the class that counts as positive; None where there is no such class.
    """
    n = federation.n_clients
    known = {k: v for k, v in by_client.items() if len(v) == n}
    if not known or n > _MOST:
        return
    columns: dict[str, list[str]] = {"client": list(federation.names)}
    for prefix, part in (("", federation), ("valid_", federation.valid), ("test_", federation.test)):
        if part is None or part.names != federation.names:  # a pooled set is nobody's
            continue
        columns[f"{prefix}rows"] = [str(size) for size in part.sizes.tolist()]
        labelled = "y" in part.data and not part.is_regression
        if positive is not None and labelled and positive < (counts := part.class_counts()).shape[1]:
            columns[f"{prefix}positives"] = [str(row[positive]) for row in counts.tolist()]
    of_train = "train_" * (evaluated_on == "train")
    for name, values in known.items():
        columns[of_train + name] = [f"{v:.6g}" if math.isfinite(v) else "" for v in values]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    # a client may be named after a file whose name is no text
    write_whole(folder / CLIENTS, text.getvalue().encode(errors="backslashreplace"))
