"""The kinds of things that have names, which `fedsaddle list` lists."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    problems = "problems"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    transforms = "transforms"
    participation = "participation"
    engines = "engines"
    experiments = "experiments"
    grids = "grids"


SECTION = {  # of a config, where a kind's names and parameters go
    Kind.algorithms: "algorithm",
    Kind.problems: "problem",
    Kind.models: "model",
    Kind.datasets: "data",
    Kind.partitions: "partition",
    Kind.transforms: "transform",
    Kind.participation: "participation",
}
