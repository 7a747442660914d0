"""Trained models for use elsewhere: as a module, or as an ONNX file, that takes features as they were before scaling.

A run's `model` takes features as its federation has them. `RawModel` puts their scaling in front, so that what leaves
fedsaddle gives the scores of training on the user's own columns.
"""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from fedsaddle.errors import FedsaddleError, first_line, optional_import
from fedsaddle.folder import read_result, write_whole
from fedsaddle.frames import encoded
from fedsaddle.ingest import check_finite
from fedsaddle.progress import spinner
from fedsaddle.scaling import Scaling
from fedsaddle.train import Run

if TYPE_CHECKING:
    from fedsaddle.convexify import Tangent
    from fedsaddle.estimators import FederatedClassifier


class RawModel(nn.Module):
    """A model behind the scaling of its features: x -> model((x - shift) / width), NaN in x filled in before.

    Where features were scaled by logarithms, x is sign(x) log(1 + |x|) in this.

    Args:
        model: what was trained.
        scaling: of the features it was trained on; None where they were not scaled.
        tangent: where it was trained on tangent features, what computes them from scaled ones.
        features: names of the columns of x, where they have some.
        fill: [1, ...], what stands in for NaN; None where training refused missing values.
    """

    model: nn.Module
    fill: Tensor | None
    shift: Tensor | None
    width: Tensor | None
    log: Tensor | None  # there where features were scaled by logarithms

    def __init__(
        self,
        model: nn.Module,
        scaling: Scaling | None,
        tangent: Tangent | None = None,
        features: Sequence[str] = (),
        fill: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model, self.tangent, self.features = model, tangent, tuple(features)
        self.register_buffer("fill", fill)
        self.register_buffer("shift", None if scaling is None else scaling.shift)
        self.register_buffer("width", None if scaling is None else scaling.width)
        self.register_buffer("log", torch.tensor(True) if scaling is not None and scaling.log else None)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the model for raw features x [B, ...]."""
        self._check(x)
        if self.fill is not None:
            x = torch.where(x.isnan(), self.fill.to(x.dtype), x)
        if self.shift is not None and self.width is not None:
            x = Scaling(self.shift, self.width, self.log is not None)(
                x
            )  # as for training, in double precision
        x = x.to(next(self.model.parameters()).dtype)
        out: Tensor = self.model(x if self.tangent is None else self.tangent(x))
        return out

    def _check(self, x: Any) -> None:
        """Refuse what is no tensor, or has another number of columns; an exporter sees only shapes that are fixed."""
        count = len(self.features)
        if not count and self.shift is not None and self.shift.ndim == 2:
            count = self.shift.shape[1]
        if isinstance(x, Tensor) and (not count or x.shape[-1:] == (count,)):
            return
        got = f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        named = " " + ", ".join(self.features[:8]) + (", ..." if count > 8 else "") if self.features else ""
        columns = f" with the {count} features{named}" if count else ""
        rows = "model.rows(frame), or " if self.features else ""
        raise FedsaddleError(f"model: give {rows}a tensor{columns}; got {got}")

    def rows(self, frame: Any) -> Tensor:
        """Rows of a DataFrame as the x that this model takes; text becomes columns of 0 and 1, as in training.

        A missing number stays NaN where the model fills it in; else it is refused, as an infinite one is.
        """
        if not self.features:
            raise FedsaddleError(
                "rows: the model was trained on columns without names; call it with a tensor of them"
            )
        gaps = self.fill is not None
        x = torch.from_numpy(encoded(frame, self.features, gaps)).to(next(self.model.parameters()).dtype)
        check_finite(x, "x", self.features, gaps)
        return x


def load_model(folder: str | os.PathLike[str], model: nn.Module | None = None) -> RawModel:
    """The trained model of a run's folder, for features as they were before scaling; its `rows` makes them of a table.

    Args:
        folder: of a run that has ended.
        model: a module of the architecture that was trained, which gets the weights (in a copy). Needed for a run of
            `fs.train`; a run of `fedsaddle run` has a config.toml that says how to build it.

    Example:
        >>> import fedsaddle as fs, tempfile, torch
        >>> sites = fs.data.load("breast_cancer").federation("iid", clients=4)
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> run = fs.train(fs.AUC(torch.nn.Linear(30, 1)), fs.CODASCA(), sites, rounds=2, out=folder).finish()
        >>> fs.load_model(folder, torch.nn.Linear(30, 1))(torch.zeros(5, 30)).shape
        torch.Size([5, 1])
    """
    loaded: RawModel = _of_folder(Path(folder), model).module
    return loaded


class _Trained(NamedTuple):
    """What is exported."""

    module: Any  # of raw features
    shape: tuple[int, ...]  # of a sample
    dtype: torch.dtype
    outputs: tuple[str, ...]
    about: Mapping[str, Any]


def _of_folder(folder: Path, model: nn.Module | None) -> _Trained:
    result = read_result(folder)
    sample = result.get("sample")
    if not isinstance(sample, dict) or not (folder / "model.safetensors").is_file():
        raise FedsaddleError(
            f"{folder}: has no model that can be loaded; its problem has none, or an older fedsaddle wrote it"
        )
    if sample["tangent"]:
        raise FedsaddleError(
            f"{folder}: its samples are tangent features; use run.raw_model, or fs.Tangent.load (docs/convexify.md)"
        )
    shape, classes = tuple(sample["shape"]), result["classes"]
    if model is None:
        from fedsaddle import config
        from fedsaddle.overrides import read

        if not (folder / "config.toml").is_file():
            raise FedsaddleError(
                f"{folder}: has no config.toml to build the model from; pass model=, a module of the same architecture"
            )
        tree = read(folder / "config.toml")
        if "module" in tree.get("algorithm", {}):  # a method of one's own has no part in the model
            tree["algorithm"] = {"name": "local_sgda"}
        model = config.resolve(tree, folder.name).module(shape, classes)
    scaling = fill = None
    if sample.get("fill") is not None:  # an older fedsaddle wrote none
        fill = torch.tensor(sample["fill"], dtype=torch.float64).view(1, *shape)
    if sample["shift"] is not None:
        ends = [1, -1, *[1] * (len(shape) - 1)] if shape else [-1]
        shift, width = (torch.tensor(sample[k], dtype=torch.float64).view(ends) for k in ("shift", "width"))
        scaling = Scaling(shift, width, sample.get("log", False))
    trained = with_weights(model, folder / "model.safetensors")
    module = RawModel(trained, scaling, features=sample["features"] or (), fill=fill)
    module = module.requires_grad_(False).eval()  # it is trained
    about = {"classes": classes, "features": sample["features"], "algorithm": result["config"]["algorithm"]}
    return _Trained(module, shape, next(module.model.parameters()).dtype, ("score",), about)


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by their names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise FedsaddleError(f"{file}: cannot be read as safetensors ({first_line(error)})") from error


def with_weights(model: nn.Module, file: Path) -> nn.Module:
    """A copy of the module with the weights of a safetensors file, in their precision."""
    from copy import deepcopy

    weights = read_weights(file)
    kinds = {v.dtype for v in weights.values() if v.is_floating_point()}
    module = deepcopy(model).to(kinds.pop() if len(kinds) == 1 else None)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise FedsaddleError(
            f"{file}: does not fit {type(model).__name__} ({' '.join(str(error).split())[:200]}); build it as the run did"
        ) from error
    return module


def export_onnx(
    source: Run | FederatedClassifier | str | os.PathLike[str],
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
) -> Path:
    """Write a trained model as an ONNX file that takes raw features: scaling is part of it.

    Its input is `x` [batch, ...], float32 (float64 for a run in that precision). Its output is `score` [batch, outputs], the
    model's; of an estimator `score` [batch] or [batch, classes], its decision function, and `probability` [batch, classes].
    Columns of `x` are those of `RawModel.rows`, named in the file's metadata as `features`; `classes` are there too. Needs
    `pip install 'fedsaddle[onnx]'`; to run the file install onnxruntime, which that does not bring.

    Args:
        source: a run, the folder of one, or a fitted estimator.
        path: of the file, written over.
        model: for the folder of a run of `fs.train`: a module of the same architecture.
    """
    if isinstance(source, str | os.PathLike):
        read_result(Path(source))  # a wrong folder is said before a package that is missing
    elif not isinstance(source, Run) and not hasattr(source, "_exported"):
        remedy = "a run, the folder of one, or a fitted estimator of fedsaddle"
        if hasattr(source, "steps"):
            remedy = "pipeline[-1]; its input is what the steps before it make"
        elif hasattr(source, "best_estimator_"):
            remedy = "search.best_estimator_"
        raise FedsaddleError(f"export_onnx: {type(source).__name__} cannot be exported; give {remedy}")
    purpose = "export_onnx"
    for module in ("onnx", "onnxscript"):
        optional_import(module, purpose, "onnx")
    if isinstance(source, Run):
        federation, classes = source.federation, list(source.federation.classes)
        raw, shape = source.raw_model.eval(), tuple(federation.data["x"].shape[1:])
        if federation.tangent is not None:
            raise FedsaddleError(
                "export_onnx: tangent features are gradients, which ONNX has not; use run.raw_model"
            )
        about = {"classes": classes, "features": list(federation.feature_names)}
        trained = _Trained(
            raw,
            shape,
            source.z.dtype,
            ("score",),
            about | {"algorithm": source.summary()["config"]["algorithm"]},
        )
    elif isinstance(source, str | os.PathLike):
        trained = _of_folder(Path(source), model)
    else:
        trained = _Trained(*source._exported())
    file = Path(path)
    with spinner("writing ONNX"):
        data = _onnx(trained)
    write_whole(file, data)
    return file


def _onnx(trained: _Trained) -> bytes:
    """The file's bytes."""
    from fedsaddle import __version__

    x = torch.zeros(2, *trained.shape, dtype=trained.dtype)
    batch = torch.export.Dim("batch")
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), _silenced("torch.onnx"):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                trained.module, (x,), dynamo=True, input_names=["x"], output_names=list(trained.outputs),
                dynamic_shapes=({0: batch},), verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter has its own zoo, and the user's module may raise anything
        raise FedsaddleError(
            f"export_onnx: the model cannot be written as ONNX ({type(error).__name__}: {first_line(error)})"
        ) from error
    assert program is not None
    proto = program.model_proto
    for part in (*proto.graph.node, *proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        del part.metadata_props[:]  # paths and lines of the code that was traced
    for key, value in {**trained.about, "fedsaddle": __version__}.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    data: bytes = proto.SerializeToString()
    return data


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Without the warnings of a logger, such as of operators that are not installed."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
