"""What to cite for a run: its algorithm, problem, surrogate loss, ambiguity set, data set and software, as BibTeX."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fedsaddle.algorithms import (
    ALGORITHMS,
    AgnosticFL,
    Algorithm,
    Citation,
    DeltaFL,
    FedSGDA,
    QFedAvg,
    ScaffPD,
)
from fedsaddle.data import DATASETS, DatasetInfo
from fedsaddle.errors import FedsaddleError, did_you_mean
from fedsaddle.folder import read_result
from fedsaddle.problem import Problem
from fedsaddle.problems import PROBLEMS
from fedsaddle.summary import describe
from fedsaddle.train import Run

_GAO_2015 = Citation(
    "gao2015consistency",
    "Gao, Wei and Zhou, Zhi-Hua",
    "On the Consistency of AUC Pairwise Optimization",
    "IJCAI",
    2015,
)
_CHAROENPHAKDEE_2019 = Citation(
    "charoenphakdee2019symmetric",
    "Charoenphakdee, Nontawat and Lee, Jongyeong and Sugiyama, Masashi",
    "On Symmetric Losses for Learning from Corrupted Labels",
    "ICML",
    2019,
)

PROBLEMS_CITED: dict[str, Citation] = {  # by class
    "AUC": Citation(
        "ying2016stochastic",
        "Ying, Yiming and Wen, Longyin and Lyu, Siwei",
        "Stochastic Online AUC Maximization",
        "NeurIPS",
        2016,
    ),
    "PartialAUC": Citation(
        "zhu2022auc",
        "Zhu, Dixian and Li, Gang and Wang, Bokun and Wu, Xiaodong and Yang, Tianbao",
        "When AUC Meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence Guarantee",
        "ICML",
        2022,
    ),
    "Contrastive": Citation(
        "hadsell2006dimensionality",
        "Hadsell, Raia and Chopra, Sumit and LeCun, Yann",
        "Dimensionality Reduction by Learning an Invariant Mapping",
        "CVPR",
        2006,
    ),
    "NonconvexPL": FedSGDA.cites,
    "RobustRegression": ScaffPD.cites,
}
MARGIN = Citation(  # AUC(dual="margin")
    "yuan2021large",
    "Yuan, Zhuoning and Yan, Yan and Sonka, Milan and Yang, Tianbao",
    "Large-scale Robust Deep AUC Maximization: A New Surrogate Loss and Empirical Studies on Medical Image Classification",
    "ICCV",
    2021,
)
LOSSES_CITED: dict[str, Citation] = {  # of pairs
    "square": _GAO_2015,
    "squared_hinge": _GAO_2015,
    "logistic": _GAO_2015,
    "q_norm_hinge": _GAO_2015,
    "sigmoid": _CHAROENPHAKDEE_2019,
    "barrier_hinge": _CHAROENPHAKDEE_2019,
}
SETS_CITED: dict[str, Citation] = {  # ambiguity sets
    "chi2": ScaffPD.cites,
    "afl": AgnosticFL.cites,
    "cvar": DeltaFL.cites,
    "q_ffl": QFedAvg.cites,
}
TANGENT = Citation(
    "yu2022tct",
    "Yu, Yaodong and Wei, Alexander and Karimireddy, Sai Praneeth and Ma, Yi and Jordan, Michael I.",
    "TCT: Convexifying Federated Learning using Bootstrapped Neural Tangent Kernels",
    "NeurIPS",
    2022,
)
PYTORCH = Citation(
    "ansel2024pytorch",
    "Ansel, Jason and Yang, Edward and He, Horace and others",
    "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph Compilation",
    "ASPLOS",
    2024,
)
FLOWER = Citation(
    "beutel2020flower",
    "Beutel, Daniel J. and Topal, Taner and Mathur, Akhil and others",
    "Flower: A Friendly Federated Learning Research Framework",
    "arXiv:2007.14390",
    2020,
)


def cite(*things: Any) -> str:
    """BibTeX of everything that was used, each entry once.

    Args:
        things: runs, folders of runs, fitted estimators; algorithms, problems and data sets, by name or as they are. A run's
            entries are those of its algorithm, problem, surrogate loss and ambiguity set, its data set where that is one of
            fedsaddle's, PyTorch, Flower for a deployment, and fedsaddle. Nothing: fedsaddle and every algorithm.

    Example:
        >>> import fedsaddle as fs
        >>> print(fs.cite("afl"))
        @inproceedings{mohri2019agnostic,
          author    = {Mohri, Mehryar and Sivek, Gary and Suresh, Ananda Theertha},
          title     = {{Agnostic Federated Learning}},
          booktitle = {ICML},
          year      = {2019}
        }
    """
    if not things:
        entries = [_own(), *(a.cites.bibtex() for a in ALGORITHMS.values())]
    else:
        entries = [entry for thing in things for entry in _entries(thing)]
    return "\n\n".join(dict.fromkeys(entries))


def _entries(thing: Any) -> Iterator[str]:
    if isinstance(thing, Run):
        yield from of_result(thing.finish().summary())
    elif hasattr(thing, "calibration_"):  # a fitted estimator, whose run is gone once it was saved
        module = copy.deepcopy(thing.model_.model).requires_grad_(True)  # a problem is of parameters to train
        parts = thing._algorithm(), thing._problem(module, len(thing.classes_))
        yield from of_result(
            {"config": dict(zip(("algorithm", "problem"), map(describe, parts), strict=True))}
        )
    elif isinstance(thing, Algorithm | Problem):
        yield from _of_parts(describe(thing))
    elif isinstance(thing, type) and issubclass(thing, Algorithm):
        yield thing.cites.bibtex()
    elif isinstance(thing, str) and thing in ALGORITHMS:
        yield ALGORITHMS[thing].cites.bibtex()
    elif isinstance(thing, str) and thing in PROBLEMS:
        yield from _of_parts({"name": PROBLEMS[thing].__name__} | _defaults(PROBLEMS[thing]))
    elif isinstance(thing, str) and thing in DATASETS:
        yield _of_dataset(DATASETS[thing])
    elif isinstance(thing, str | os.PathLike) and Path(thing).is_dir():
        yield from of_result(read_result(Path(thing)))
    else:
        known = (*ALGORITHMS, *PROBLEMS, *DATASETS)
        hint = did_you_mean(str(thing), known) or "known are a run's folder, and " + ", ".join(known)
        raise FedsaddleError(f"cite: {thing!r} is unknown; {hint}")


def of_result(result: Mapping[str, Any]) -> list[str]:
    """The entries of a run, from its result.json."""
    config, out = result["config"], []
    for part in ("algorithm", "problem"):
        out += _of_parts(config[part])
    if (result.get("sample") or {}).get("tangent"):
        out.append(TANGENT.bibtex())
    if result.get("dataset") in DATASETS:
        out.append(_of_dataset(DATASETS[result["dataset"]]))
    out.append(PYTORCH.bibtex())
    if config.get("train", {}).get("engine") == "flower":
        out.append(FLOWER.bibtex())
    return list(dict.fromkeys([*out, _own(result.get("versions", {}).get("fedsaddle"))]))


def _of_parts(described: Mapping[str, Any]) -> list[str]:
    """The entries of an algorithm or a problem, from its name and hyper-parameters."""
    name, found = described["name"], []
    found += [a.cites for a in ALGORITHMS.values() if a.__name__ == name][:1]
    ambiguity = str(described.get("ambiguity", "")).partition("(")[0]
    found += [SETS_CITED[ambiguity]] if ambiguity in SETS_CITED else []
    found += [PROBLEMS_CITED[name]] if name in PROBLEMS_CITED else []
    if name == "AUC" and described.get("dual") == "margin":
        found.append(MARGIN)
    if name in ("PairwiseAUC", "PartialAUC") and described.get("loss") in LOSSES_CITED:
        found.append(LOSSES_CITED[described["loss"]])
    return list(dict.fromkeys(paper.bibtex() for paper in found))


def _defaults(kind: type[Problem]) -> dict[str, Any]:
    assert is_dataclass(kind)
    return {f.name: f.default for f in fields(kind)}


def _of_dataset(info: DatasetInfo) -> str:
    title, note = _tex(f"{info.name}: {info.description}"), _tex(info.source)
    return f"@misc{{{info.name},\n  title = {{{{{title}}}}},\n  note  = {{{note}}}\n}}"


def _tex(text: str) -> str:
    """Plain text with what TeX takes for a command escaped."""
    return re.sub(r"[%&#_$]", r"\\\g<0>", text).replace("~", r"\textasciitilde{}")


def _own(version: str | None = None) -> str:
    from fedsaddle import __version__

    return (
        "@software{fedsaddle,\n  author  = {{The fedsaddle developers}},\n"
        f"  title   = {{fedsaddle: federated min-max optimisation}},\n  version = {{{version or __version__}}}\n}}"
    )
