"""The command line: run, compare, list, show, report, cite, reproduce.

Results go to stdout and to files, progress and errors to stderr. A user's mistake is one line and exit code 2, Ctrl-C is
exit code 130. What is slow to import is imported by the command that needs it.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsaddle.errors import FedsaddleError

if TYPE_CHECKING:
    from fedsaddle.algorithms import Citation
    from fedsaddle.federation import Federation

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Train models that solve a min-max problem over data that cannot be pooled.",
)

Json = dict[str, Any]


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


SECTION = {  # of a config, where a kind's names and parameters go
    Kind.algorithms: "algorithm",
    Kind.problems: "problem",
    Kind.models: "model",
    Kind.datasets: "data",
    Kind.partitions: "partition",
    Kind.transforms: "transform",
    Kind.participation: "participation",
}

METRICS = {  # the names of metrics for people, in the order in which they are shown
    "auc": "AUC, test",
    "valid_auc": "AUC, validation",
    "train_auc": "AUC, training",
    "auc_clients": "AUC, mean of clients",
    "auc_worst20": "AUC, worst 20 % of clients",
    "auc_best20": "AUC, best 20 % of clients",
    "auc_std": "AUC, deviation of clients",
    "single_class_clients": "clients with one class",
    "accuracy": "accuracy, test",
    "valid_accuracy": "accuracy, validation",
    "train_accuracy": "accuracy, training",
    "accuracy_clients": "accuracy, mean of clients",
    "accuracy_worst20": "accuracy, worst 20 % of clients",
    "accuracy_best20": "accuracy, best 20 % of clients",
    "accuracy_std": "accuracy, deviation of clients",
    "distance": "distance to the saddle",
    "field_norm": "norm of the saddle field",
}
_NOT_METRICS = ("round", "phases", "bytes_down", "bytes_up", "failures", "participants", "seconds")


# ------------------------------------------------------------------------------------------------ commands


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from fedsaddle import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("run")
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run's config.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder; runs/NAME unless given.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the folder.")] = False,
) -> None:
    """Train as a config file says, into a new folder."""
    from fedsaddle.config import RUN_FILES, load

    config = load(file, assignments or [])
    done = config.run(
        out or Path("runs") / config.name, progress=False if quiet else None, numbered=out is None
    )
    folder = done.out
    assert folder is not None
    if _has_plotly():
        from fedsaddle.report import write_report

        write_report(folder)
    if quiet:
        print(folder)
    else:
        _print_result(config.name, done.summary())
        print(f"{folder}: {', '.join(name for name in RUN_FILES if (folder / name).exists())}")


@app.command("compare")
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="The page with all curves.")] = Path(
        "comparison.html"
    ),
) -> None:
    """Compare finished runs: a table, and a page with their curves."""
    from fedsaddle.train import human_bytes

    results = [_result(folder) for folder in folders]
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else list(map(str, folders))
    shown = ("auc", "auc_worst20", "train_auc", "accuracy", "accuracy_worst20", "distance")
    columns = [k for k in shown if any(k in r["metrics"] for r in results)]
    rows = [["run", "algorithm", *(METRICS[k] for k in columns), "rounds", "bytes"]]
    for name, result in zip(names, results, strict=True):
        metrics = result["metrics"]
        rows.append([
            name,
            result["config"]["algorithm"]["name"],
            *(_number(metrics[k]) if k in metrics else "-" for k in columns),
            str(metrics["round"]),
            human_bytes(metrics["bytes_down"] + metrics["bytes_up"]),
        ])  # fmt: skip
    _print_table(rows)
    if _has_plotly():
        from fedsaddle.report import write_comparison

        print(write_comparison(folders, out))
    else:
        print("fedsaddle: no page without plotly: pip install 'fedsaddle[report]'", file=sys.stderr)


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with parameters and defaults.")] = False,
) -> None:
    """List what can be named in a config, with a line on each."""
    things = _things(kind)
    if as_json:
        entries = [
            {"name": name, "description": _summary(thing), "parameters": _parameters(kind, name, thing)}
            for name, thing in things.items()
        ]
        print(json.dumps(entries, indent=2))
    else:
        _print_table([[name, _summary(thing)] for name, thing in things.items()])


@app.command("show")
def show(
    what: Annotated[str, typer.Argument(metavar="NAME|DIR|FILE.toml")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key of FILE.toml.")
    ] = None,
) -> None:
    """Show something by its name, a run's result, or what a config runs on."""
    found = {kind: things[what] for kind in Kind if what in (things := _things(kind))}
    path = Path(what)
    if found:
        print("\n\n".join(_described(kind, what, thing) for kind, thing in found.items()))
    elif path.is_dir():
        _print_result(path.resolve().name, _result(path))
    elif path.exists() or what.endswith(".toml") or os.sep in what:
        _show_config(path, assignments or [])
    else:
        raise _unknown(
            "", what, [name for kind in Kind for name in _things(kind)], "try: fedsaddle list algorithms"
        )


@app.command("report")
def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run.")]) -> None:
    """Write a run's report.html again."""
    from fedsaddle.report import write_report

    _result(folder)
    print(write_report(folder))


@app.command("cite")
def cite(name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="An algorithm.")] = None) -> None:
    """Print BibTeX, of an algorithm or of all and fedsaddle."""
    from fedsaddle import __version__
    from fedsaddle.algorithms import ALGORITHMS

    if name is None:
        own = (
            "@software{fedsaddle,\n  author  = {{The fedsaddle developers}},\n"
            f"  title   = {{fedsaddle: federated min-max optimisation}},\n  version = {{{__version__}}}\n}}"
        )
        papers = {a.cites.key: a.cites.bibtex() for a in ALGORITHMS.values()}
        print("\n\n".join([own, *papers.values()]))
    elif name in ALGORITHMS:
        print(ALGORITHMS[name].cites.bibtex())
    else:
        raise _unknown("algorithm ", name, ALGORITHMS, "known are " + ", ".join(ALGORITHMS))


@app.command("reproduce")
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="See: fedsaddle list experiments.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version, in minutes.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A folder for the runs.")] = None,
) -> None:
    """Run a paper's experiment and compare with its numbers."""
    from fedsaddle.reproduce import experiments
    from fedsaddle.reproduce import reproduce as run_experiment

    known = experiments()
    if experiment not in known:
        raise _unknown("experiment ", experiment, known, "known are " + ", ".join(known))
    print(run_experiment(experiment, quick, out))


# -------------------------------------------------------------------------------------------- entry, errors


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; exits."""
    sys.exit(_main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
        try:
            # make_context and invoke, not main(): that one has its own ideas of errors and of Ctrl-C
            with command.make_context("fedsaddle", list(arguments)) as context:
                command.invoke(context)
            sys.stdout.flush()
            return 0
        except typer.Exit as done:
            return done.exit_code
        except KeyboardInterrupt as error:
            return _fail("interrupted", error, 130)
        except BrokenPipeError:  # the reader of a pipe, such as head, has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except FedsaddleError as error:
            return _fail(str(error), error)
        except OSError as error:
            reason = error.strerror or str(error)
            return _fail(f"{error.filename}: {reason}" if error.filename else reason, error)
        except Exception as error:
            if not hasattr(error, "format_message"):  # not typer's usage errors: a defect of ours
                raise
            return _fail(f"{error.format_message().rstrip('.')}; try: fedsaddle --help", error)


def _fail(message: str, error: BaseException, code: int = 2) -> int:
    _say("; ".join([message, *getattr(error, "__notes__", ())]))
    return code


def _say(text: str) -> None:
    print("fedsaddle: " + " ".join(text.split()), file=sys.stderr)


def _unknown(kind: str, name: str, known: Iterable[str], otherwise: str) -> FedsaddleError:
    import difflib

    near = difflib.get_close_matches(name.lower(), list(known), n=1)
    return FedsaddleError(
        f"{kind}{name!r} is unknown; " + (f"did you mean {near[0]!r}?" if near else otherwise)
    )


def _has_plotly() -> bool:
    return importlib.util.find_spec("plotly") is not None


# ----------------------------------------------------------------------------------------- what can be named


def _things(kind: Kind) -> Mapping[str, Any]:
    """Name -> class, function, DatasetInfo, EngineInfo or a description."""
    if kind is Kind.experiments:
        from fedsaddle.reproduce import experiments

        return experiments()
    from fedsaddle import algorithms, config, data, engines, models, participation, partitions, problems

    tables: dict[Kind, Mapping[str, Any]] = {
        Kind.algorithms: algorithms.ALGORITHMS,
        Kind.problems: problems.PROBLEMS,
        Kind.models: models.MODELS,
        Kind.datasets: {**data.DATASETS, **config.GENERATED},
        Kind.partitions: partitions.PARTITIONS,
        Kind.transforms: partitions.TRANSFORMS,
        Kind.participation: participation.PARTICIPATION,
        Kind.engines: engines.ENGINES,
    }
    return tables[kind]


def _summary(thing: Any) -> str:
    """One line: the first sentence of a docstring, or the description that a table has."""
    for attribute in ("description", "about"):
        if hasattr(thing, attribute):
            return str(getattr(thing, attribute))
    text = thing if isinstance(thing, str) else inspect.getdoc(thing) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", first)[0].rstrip(".")


def _parameters(kind: Kind, name: str, thing: Any) -> Json:
    """Type, default and description of everything that the thing's section of a config takes."""
    if kind not in SECTION:
        return {}
    from fedsaddle.config import in_words, keys

    own = keys(SECTION[kind], name)
    texts = _argument_texts(thing, own)
    out: Json = {}
    for key, (type_, default) in own.items():
        required = own[key].required
        out[key] = {"type": in_words(type_), "required": required, "description": texts.get(key, "")}
        if not required:
            out[key]["default"] = default
    return out


def _argument_texts(thing: Any, names: Iterable[str]) -> dict[str, str]:
    """What docstrings say of arguments: lines "name, name: text" and the deeper ones that follow."""
    from fedsaddle.data import DatasetInfo, load

    sources: list[Any] = [thing]
    if isinstance(thing, DatasetInfo):
        sources = [load, thing.generate]
    elif inspect.isclass(thing):
        sources = list(reversed(thing.__mro__[:-1]))
    known = set(names)
    out: dict[str, str] = {}
    for source in sources:
        lines = inspect.cleandoc(getattr(source, "__doc__", None) or "").split("\n")
        for i, line in enumerate(lines):
            match = re.match(r"( *)(\w+(?:, \w+)*): +(.*)", line)
            if not match or not known & set(match[2].split(", ")):
                continue
            text = [match[3]]
            for more in lines[i + 1 :]:
                if not more.startswith(match[1] + "  "):
                    break
                text.append(more.strip())
            out |= dict.fromkeys(known & set(match[2].split(", ")), " ".join(text))
    return out


def _described(kind: Kind, name: str, thing: Any) -> str:
    """A named thing at length."""
    from fedsaddle.config import _quoted

    width = min(shutil.get_terminal_size().columns, 110)
    parameters = _parameters(kind, name, thing)
    doc = _summary(thing)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        stop = "|".join(["Args:", "Example:", "Reference:", *(f"{key}: " for key in parameters)])
        doc = re.split(rf"\n\s*(?:{stop})", inspect.getdoc(thing) or "")[0].strip()
    section = f", [{SECTION[kind]}] in a config" if kind in SECTION else ""
    blocks = [f"{name} ({kind.value.removesuffix('s')}{section})\n\n{doc}"]
    lines = []
    for key, about in parameters.items():
        head = f"  {key} = {_quoted(about['default'])}" if about.get("default") is not None else f"  {key}"
        text = ("required: " if about["required"] else "") + (about["description"] or about["type"])
        lines.append(textwrap.fill(text, width, initial_indent=f"{head:<32} ", subsequent_indent=" " * 33))
    if lines:
        blocks.append("\n".join(lines))
    if hasattr(thing, "source"):
        blocks.append(f"Source: {thing.source}")
    cites: Citation | None = getattr(thing, "cites", None)
    if cites is not None:
        text = f"{cites.authors}. {cites.title}. {cites.venue} {cites.year}."
        blocks.append(textwrap.fill(text, width))
    return "\n\n".join(blocks)


# ------------------------------------------------------------------------------------------------- printing


def _result(folder: Path) -> Json:
    """A run's result.json."""
    if not folder.is_dir():
        raise FedsaddleError(f"{folder}: is not a folder; name the folder of a run")
    try:
        result: Json = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if not {"config", "metrics"} <= result.keys():
            raise ValueError
    except FileNotFoundError:
        why = "the run did not finish" if (folder / "history.jsonl").exists() else "it is not a run"
        raise FedsaddleError(f"{folder}: has no result.json, {why}") from None
    except (ValueError, AttributeError):
        raise FedsaddleError(f"{folder / 'result.json'}: is not the result of a run") from None
    return result


def _print_result(name: str, result: Json) -> None:
    """A short table of a run's last evaluation."""
    from fedsaddle.train import human_bytes

    config, metrics = result["config"], dict(result["metrics"])
    sizes = config["federation"]
    print(
        f"{name}: {config['algorithm']['name']} on {config['problem']['name']}, "
        f"{sizes['clients']} clients, {sizes['samples']} training samples\n"
    )
    order = [k for k in METRICS if k in metrics] + [k for k in metrics if k not in METRICS]
    rows: list[list[str]] = [
        [METRICS.get(k, str(k)), _number(metrics[k])] for k in order if k not in _NOT_METRICS
    ]
    rows.append(["rounds", str(metrics["round"])])
    rows.append(
        ["sent down, up", f"{human_bytes(metrics['bytes_down'])}, {human_bytes(metrics['bytes_up'])}"]
    )
    rows.append(["time", f"{metrics['seconds']:.1f} s"])
    _print_table(rows, indent="  ")
    if "auc_clients" in metrics or "accuracy_clients" in metrics:
        print(f"\n  Clients are evaluated on their {result['clients_evaluated_on']} data.")
    print()


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"
    return str(value)


def _print_table(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Rows in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print((indent + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))).rstrip())


def _show_config(path: Path, assignments: Sequence[str]) -> None:
    from fedsaddle.config import dump, load
    from fedsaddle.problem import ModelProblem

    config = load(path, assignments)
    setup = config.build()
    federation, problem = setup.federation, setup.problem
    print(dump(config))
    of_model = f" ({problem.flat.n} of the model)" if isinstance(problem, ModelProblem) else ""
    print(f"# {federation!r}")
    print(f"# {problem.n_x + problem.n_y} variables{of_model}: {problem.n_x} primal, {problem.n_y} dual")
    print("#")
    for line in _clients_table(federation):
        print(f"# {line}".rstrip())


def _clients_table(federation: Federation, most: int = 30) -> list[str]:
    """Samples and classes client by client, for the first clients."""
    sizes = federation.sizes.tolist()
    classes = federation.classes if "y" in federation.data and not federation.is_regression else ()
    counts = federation.class_counts().tolist() if classes else [[] for _ in sizes]
    header = ["client", "samples", *(classes if len(classes) <= 12 else ())]
    rows = [header]
    for name, size, own in zip(federation.names[:most], sizes, counts, strict=False):
        rows.append([name, str(size), *map(str, own if len(classes) <= 12 else ())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    if len(sizes) > most:
        lines.append(f"... {len(sizes) - most} more")
    return lines
