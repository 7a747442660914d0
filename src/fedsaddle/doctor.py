"""doctor: what is installed, what the machine has, which data are there; one line a thing, with a remedy."""

from __future__ import annotations

import importlib
import math
import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from fedsaddle.data import DATASETS, DatasetInfo, data_folder, fetch
from fedsaddle.errors import FedsaddleError, first_line

CORE = (
    "torch>=2.7", "numpy>=1.26", "scikit-learn>=1.6", "pandas>=2.1", "safetensors>=0.4", "pydantic>=2.6", "typer>=0.12",
    "rich>=13",
)  # fmt: skip
EXTRAS = {  # what each is for, and what it brings; `dev` is for work on fedsaddle itself
    "report": ("reports and figures", ["plotly>=5.20"]),
    "flower": ("fedsaddle deploy: sites that keep their data", ["flwr>=1.41,<1.42"]),
    "trackers": (
        "train.track",
        ["tensorboard>=2.16", "mlflow-skinny>=2.14", "sqlalchemy>=2", "alembic>=1.10", "wandb>=0.19.11"],
    ),
    "skops": ("models that scikit-learn users load safely", ["skops>=0.10"]),
    "onnx": ("models for ONNX runtimes", ["onnx>=1.16", "onnxscript>=0.2"]),
    "docs": ("the documentation's pages", ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.25"]),
}
_MODULES = {"scikit-learn": "sklearn"}  # where a module is not called as its package


class Finding(NamedTuple):
    """One thing that was looked at.

    Args:
        status: "missing" costs a feature, "broken" every run.
        text: what was found, and the remedy.
    """

    what: str
    status: Literal["good", "missing", "broken"]
    text: str


def examined() -> list[Finding]:
    """Everything, in the order in which it matters."""
    from rich.console import Console

    with Console(stderr=True).status("looking around") as status:
        return [*_python(), *_packages(), *_training(), *_machine(), *_data(lambda text: status.update(text))]


def _python() -> Iterator[Finding]:
    from fedsaddle import __version__

    yield Finding("fedsaddle", "good", f"{__version__}, in {Path(__file__).parent}")
    version = platform.python_version()
    yield Finding("Python", "good", f"{version}, {platform.platform(terse=True)}")


def _packages() -> Iterator[Finding]:
    """Each package of the core, and each extra."""
    yield from map(_core, CORE)
    for extra, (use, packages) in EXTRAS.items():
        wrong = [p for p in packages if _version(p) is None or not _suits(p)]
        if wrong:
            text = f"{use}: lacks {', '.join(wrong)}; pip install 'fedsaddle[{extra}]'"
            yield Finding(extra, "missing", text)
        else:
            yield Finding(extra, "good", f"{use}: {', '.join(f'{_name(p)} {_version(p)}' for p in packages)}")


def _core(package: str) -> Finding:
    """A package that every run needs: it must be there, new enough, and load."""
    name, found = _name(package), _version(package)
    if found is None:
        return Finding(name, "broken", f"is not installed: pip install '{package}'")
    if not _suits(package):
        return Finding(name, "broken", f"{found} does not suit: pip install '{package}'")
    try:
        importlib.import_module(_MODULES.get(name, name))
    except Exception as error:  # a library that is not there, a wheel for another machine
        reason = f"{type(error).__name__}: {first_line(error)}"
        return Finding(
            name, "broken", f"{found} does not load ({reason}): pip install --force-reinstall {name}"
        )
    return Finding(name, "good", found)


def _name(package: str) -> str:
    """That of a requirement such as "torch>=2.7"."""
    return re.split(r"[\[<>=]", package)[0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(_name(package))
    except metadata.PackageNotFoundError:
        return None


def _suits(package: str) -> bool:
    """Whether the version that is there is within the bounds of a requirement, by its leading numbers."""

    def numbers(version: str) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3]]

    found = numbers(_version(package) or "")
    return all(
        found >= numbers(bound) if sign == ">=" else found < numbers(bound)
        for sign, bound in re.findall(r"(>=|<)([\d.]+)", package)
    )


def _training() -> Iterator[Finding]:
    """A run of a few rounds on a problem whose solution is known."""
    from fedsaddle.algorithms import CODASCA
    from fedsaddle.problems import QuadraticSaddle, quadratic_federation
    from fedsaddle.train import train

    try:
        sites, algorithm = quadratic_federation(clients=4), CODASCA(lr=0.05, local_steps=10)
        done = train(QuadraticSaddle(), algorithm, sites, rounds=30, dtype="float64", progress=False)
        start, end = (done.records[i]["distance"] for i in (0, -1))
        good = math.isfinite(end) and end < start
        text = f"CODASCA on a known saddle: distance {start:.2g}, after 30 rounds {end:.2g}"
    except Exception as error:  # whatever is wrong with the machine
        good, text = False, f"{type(error).__name__}: {first_line(error)}"
    yield Finding("a small run", "good" if good else "broken", text)


def _machine() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(i)
            text = f'{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB: train.device = "cuda"'
            yield Finding(f"GPU {i}", "good", text)
    elif torch.version.cuda is None:
        index = "pip install torch --index-url https://download.pytorch.org/whl/cu128"
        yield Finding("GPU", "missing", f"this torch is built without CUDA; with an NVIDIA GPU: {index}")
    else:
        yield Finding("GPU", "missing", "torch sees none; with an NVIDIA GPU, see what nvidia-smi says")
    yield _compiler()
    threads, asked = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    advice = "" if asked else "; small models are often faster with one: export OMP_NUM_THREADS=1"
    text = f"{threads} of {os.cpu_count()} cores, OMP_NUM_THREADS is {asked or 'not set'}{advice}"
    yield Finding("threads", "good", text)


def _compiler() -> Finding:
    """What torch.compile needs: a C++ compiler, and Python's headers."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "cl"]
    found = next((path for name in wanted if (path := shutil.which(name))), None)
    install = {"Darwin": "xcode-select --install", "Linux": "apt install g++"}.get(platform.system(), "")
    if found is None:
        remedy = (
            f"for train.compile: no {' or '.join(wanted)}; {install or 'install Visual Studio Build Tools'}"
        )
        return Finding("compiler", "missing", remedy)
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return Finding(
            "compiler", "missing", f"for train.compile: {found}, but no Python.h; apt install python3-dev"
        )
    return Finding("compiler", "good", f"for train.compile: {found}")


def _data(tell: Callable[[str], None]) -> Iterator[Finding]:
    """How many data sets are there, and each that is damaged."""
    folder, named = data_folder(), "FEDSADDLE_DATA" in os.environ
    origin = "FEDSADDLE_DATA" if named else "the default; FEDSADDLE_DATA names another"
    bundled = sum(bool(info.bundled) for info in DATASETS.values())
    there = [
        info for info in DATASETS.values() if not info.bundled and fetch.locate(info, folder) is not None
    ]
    text = f"{bundled} bundled, {len(there)} of {len(DATASETS) - bundled} others in {folder} ({origin})"
    text += f"; which: fedsaddle list datasets; to download one: {_download('NAME')}"
    yield Finding("data sets", "good" if there else "missing", text)
    for info in there:
        tell(f"checking {info.name}")
        yield from _damage(info, folder)


def _damage(info: DatasetInfo, folder: Path) -> Iterator[Finding]:
    """The first file of a set whose checksum is wrong."""
    found = fetch.locate(info, folder)
    assert found is not None
    for file in found[0].unique_files():
        path = folder / info.folder / file.name
        try:
            if path.is_file():
                fetch.verify(info, file, path)
        except (FedsaddleError, OSError) as error:
            yield Finding(info.name, "missing", f"{first_line(error)}; then: {_download(info.name)}")
            return


def _download(name: str) -> str:
    return f"python -c \"import fedsaddle; fedsaddle.data.download('{name}')\""
