"""Where client work runs."""

from typing import NamedTuple


class EngineInfo(NamedTuple):
    """An engine by name."""

    about: str
    chunk: int | None  # clients computed at once; None: the whole cohort


ENGINES = {
    "stacked": EngineInfo("the whole cohort in one batched computation (default)", None),
    "serial": EngineInfo(
        "one client at a time, unbatched: slow and obvious, what the others are tested against", 1
    ),
}
