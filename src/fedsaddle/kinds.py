"""The kinds of things that have names, which `fedsaddle list` lists, and of losses; needs no PyTorch."""

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


ABOUT = {  # a line on each
    Kind.algorithms: "how it is learned, such as codasca",
    Kind.problems: "what is learned, such as auc",
    Kind.models: "what is trained, such as linear",
    Kind.datasets: "public and made-up data to try things on",
    Kind.partitions: "ways to deal a data set to clients",
    Kind.transforms: "changes to the training data, such as flipped labels",
    Kind.participation: "which clients take part in a round",
    Kind.engines: "what computes the clients' work",
    Kind.experiments: "papers' experiments, for fedsaddle reproduce",
    Kind.grids: "hyper-parameters to try, for fedsaddle sweep",
}
SECTION = {  # of a config, where a kind's names and parameters go
    Kind.algorithms: "algorithm",
    Kind.problems: "problem",
    Kind.models: "model",
    Kind.datasets: "data",
    Kind.partitions: "partition",
    Kind.transforms: "transform",
    Kind.participation: "participation",
}
OF_CLASSES = ("cross_entropy", "one_hot")  # losses of an ERM problem with one output a class
