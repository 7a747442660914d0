"""A federation to try things out with: bundled data dealt to sites on one machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsaddle.deploy.home import Home, create
from fedsaddle.deploy.program import LOCAL_INTERVAL
from fedsaddle.errors import FedsaddleError
from fedsaddle.toml import to_toml


def trial(folder: Path, n: int, address: str) -> Home:
    """A federation of n sites with scikit-learn's breast cancer data, sorted roughly by the nuclei's size."""
    import pandas as pd
    from sklearn.datasets import load_breast_cancer

    if not 2 <= n <= 50:
        raise FedsaddleError(f"deploy local: N must be between 2 and 50, got {n}")
    home = create(folder, [f"site{i + 1}" for i in range(n)], address)
    data = load_breast_cancer(as_frame=True)
    frame = data.data.assign(label=1 - data.target)  # 1: malignant
    order = np.argsort(
        frame["mean radius"].to_numpy() + 4 * np.random.default_rng(0).standard_normal(len(frame))
    )
    for name in home.manifest.sites:
        (home.site(name) / "link.toml").write_text(to_toml({"address": address, "interval": LOCAL_INTERVAL}))
    for name, rows in zip(home.manifest.sites, np.array_split(order, n), strict=True):
        pd.DataFrame(frame.iloc[np.sort(rows)]).to_csv(home.site(name) / "data.csv", index=False)
    return home
