"""The command line: new, run, sweep, compare, probe, list, show, report, score, export, cite, reproduce, doctor, deploy.

Results go to stdout and to files, progress and errors to stderr. A user's mistake is one line and exit code 2, Ctrl-C is
exit code 130.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from fedsaddle import __version__, finished
from fedsaddle.deploy.commands import app as deploy_app
from fedsaddle.deploy.commands import check_flower
from fedsaddle.engines.ranks import first_to_fail, rank
from fedsaddle.errors import FedsaddleError, did_you_mean, first_line, similar_file
from fedsaddle.folder import check_begun, read_result, unfinished
from fedsaddle.kinds import ABOUT, Kind
from fedsaddle.options import ConfigFile, Out, Quiet, Set, Track, assigned, check_config
from fedsaddle.progress import spinner
from fedsaddle.remarks import of_training
from fedsaddle.tables import aligned, room

if TYPE_CHECKING:  # torch is loaded by the commands that need it, so that the others start at once
    from fedsaddle.federation import Federation
    from fedsaddle.train import Run

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Train models that solve a min-max problem over data that cannot be pooled.",
    epilog="First: fedsaddle new --data TABLE.csv; it writes run.toml. Then: fedsaddle run run.toml.",
)

app.add_typer(deploy_app, name="deploy")

_MOST_CLIENTS = 30  # in a table

Jobs = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="So many processes, each with one thread and its own copy of the data."
    ),
]


# ------------------------------------------------------------------------------------------------ commands


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where run.toml goes.")] = Path("."),
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="A .csv or .parquet file, a folder with a file a site, or a data set."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="What is predicted.")] = None,
    site: Annotated[str | None, typer.Option(metavar="COLUMN", help="What names the site of a row.")] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="VALUE", help="The label that counts as positive.")
    ] = None,
    aim: Annotated[
        str | None,
        typer.Option(metavar="AIM", help="auc; fair: the worst-off sites; pairs: ranked across sites."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="linear or mlp.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Rounds of communication.")] = None,
    sites: Annotated[int | None, typer.Option(metavar="N", help="Over which a data set is dealt.")] = None,
    script: Annotated[
        bool, typer.Option("--script", help="Also run.py, which does the same in Python.")
    ] = False,
) -> None:
    """Start a project: a config that suits your data. Asks on a terminal for what is not given."""
    _load_torch()
    from fedsaddle.new import Wanted, project

    wanted = Wanted(data, label, site, positive, aim, model, rounds, sites)
    print("\n".join(project(folder, wanted, script)))


@app.command("run")
def run(
    file: ConfigFile,
    assignments: Set = None,
    out: Out = None,
    quiet: Quiet = False,
    track: Track = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Train with each of these seeds, and compare.")
    ] = None,
) -> None:
    """Train as a config file says, into a new folder."""
    check_config(file)
    wanted = None if seeds is None else _whole_numbers("--seeds", seeds)
    _load_torch(quiet)
    from fedsaddle.config import load

    if wanted is not None:
        _run_seeds(file, assigned(assignments, track), wanted, out, quiet)
        return
    config = load(file, assigned(assignments, track))
    if config.tree["train"]["engine"] == "torchrun" and rank() > 0:
        config.run()  # the first process writes and prints
        return
    done = config.run(
        out or Path("runs") / config.name, progress=False if quiet else None, numbered=out is None
    )
    finished.show(done, config.name, quiet)


@deploy_app.command("resume")
@app.command("resume")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run that was stopped.")],
    allow: Annotated[
        bool,
        typer.Option("--allow", help="Go on although config.toml was changed, for instance to more rounds."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint. It ends as if it had never stopped."""
    check_begun(folder)
    _load_torch(quiet)
    from fedsaddle.config import load

    config = load(folder / "config.toml")
    if config.tree["train"]["engine"] == "torchrun" and rank() > 0:
        config.run(resume=True, allow=allow)
        return
    progress = False if quiet else None
    if "sites" in config.tree["data"]:
        check_flower()
        from fedsaddle.deploy import drive

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
        done = drive.resume(folder, progress, allow)
    else:
        done = config.run(folder, progress=progress, resume=True, allow=allow)
    finished.show(done, config.name, quiet)


def _whole_numbers(option: str, text: str) -> list[int]:
    parts = [int(part) for part in text.split(",") if part.strip().isdecimal()]
    if len(set(parts)) < len(text.split(",")) or max(parts) >= 2**63:
        raise FedsaddleError(f"{option}: must be different whole numbers, such as 0,1,2, got {text!r}")
    return parts


def _run_seeds(
    file: Path, assignments: Sequence[str], seeds: Sequence[int], out: Path | None, quiet: bool
) -> None:
    """A run for each seed of training, and their comparison."""
    from fedsaddle.config import load

    for assignment in assignments:
        if assignment.startswith("train.seed="):
            raise FedsaddleError(f"--set {assignment}: --seeds says which seeds; give one of the two")
    configs = [load(file, [*assignments, f"train.seed={seed}"]) for seed in seeds]
    if configs[0].tree["train"]["engine"] == "torchrun":
        raise FedsaddleError("--seeds: is for one process; under torchrun give --set train.seed=0, and so on")
    folders = [
        (out or Path("runs")) / f"{c.name}-seed-{seed}" for c, seed in zip(configs, seeds, strict=True)
    ]
    for folder in folders if out is not None else ():
        if folder.exists():
            raise FedsaddleError(f"{folder}: is there already; choose another --out")
    done: list[Run] = []
    try:
        for config, folder in zip(configs, folders, strict=True):
            done.append(config.run(folder, progress=False if quiet else None, numbered=out is None))
            finished.show(done[-1], config.name, quiet=quiet or len(seeds) > 1)
    except (FedsaddleError, KeyboardInterrupt) as error:
        if left := seeds[len(done) + 1 :]:
            error.add_note(f"not trained: --seeds {','.join(map(str, left))}")
        raise
    if not quiet and len(done) > 1:
        print()
        folders = [run.out for run in done if run.out is not None]
        _compare(folders, folders[0].with_name(f"{folders[0].name}-and-others.html"))


@app.command("sweep")
def sweep(
    file: ConfigFile,
    assignments: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder, also of a sweep to go on with; runs/sweep/NAME."),
    ] = None,
    jobs: Jobs = 1,
    track: Track = None,
) -> None:
    """Choose hyper-parameters on validation data. The section [sweep] of the config says which."""
    check_config(file)
    _load_torch()
    from fedsaddle.sweep import sweep

    result = sweep(file, assigned(assignments, track), out, jobs=jobs)
    lines = aligned(result.table(), room(), keep=1 + len(result.plan.keys))
    print("\n".join(lines) + f"\n\n{result.verdict()}\n")
    written = ("runs.jsonl", "table.md", "results.json", "best.toml", "sweep.html")
    print(f"{result.out}: {', '.join(name for name in written if (result.out / name).exists())}")


@app.command("compare")
def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of runs; what is no finished run is left out."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="The page with all curves.")] = Path(
        "comparison.html"
    ),
) -> None:
    """Compare finished runs: a table, and a page with their curves.

    Those that differ in train.seed only share a row. Test AUCs on the same samples are compared sample by sample.
    """
    with _as_written(*folders):
        _compare(list({folder.resolve(): folder for folder in folders}.values()), out)


def _compare(folders: Sequence[Path], out: Path) -> None:
    from fedsaddle.compare import compare

    found = compare(folders, _say)
    print("\n".join(found.lines))
    if finished.has_plotly():
        from fedsaddle.report import write_comparison

        print(write_comparison(found.groups, out, compared=found.compared))
    else:
        print("fedsaddle: no page without plotly: pip install 'fedsaddle[report]'", file=sys.stderr)


@app.command("probe")
def probe(
    file: ConfigFile,
    assignments: Set = None,
    points: Annotated[int, typer.Option(help="Points around the start at which to measure.")] = 3,
    clients: Annotated[int, typer.Option(help="Measure on at most so many clients.")] = 20,
    train_rounds: Annotated[int, typer.Option(help="Also measure after so many rounds of training.")] = 0,
    accuracy: Annotated[
        float | None, typer.Option(help="The accuracy aimed at, on which some theorems' steps depend.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Measure a problem's constants, for step sizes by theory."""
    check_config(file)
    _load_torch()
    from fedsaddle.config import load
    from fedsaddle.probe import examine

    report = examine(
        load(file, assigned(assignments)),
        points=points,
        clients=clients,
        train_rounds=train_rounds,
        accuracy=accuracy,
    )
    print(json.dumps(report.json(), indent=2, allow_nan=False) if as_json else report.text())


@app.command("list")
def list_(
    kind: Annotated[
        Kind | None,
        typer.Argument(metavar="[KIND]", help=f"One of {', '.join(Kind)}; all kinds unless given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with parameters and defaults.")] = False,
) -> None:
    """List what can be named in a config, with a line on each."""
    if kind is None:
        kinds = [{"name": one.value, "description": ABOUT[one]} for one in Kind]
        print(
            json.dumps(kinds, indent=2) if as_json else "\n".join(aligned([list(k.values()) for k in kinds]))
        )
        return
    from fedsaddle.describe import parameters, summary, things, where

    entries = []
    for name, thing in things(kind).items():
        place = {"where": where(thing)} if kind is Kind.datasets else {}
        entries.append({"name": name, **place, "description": summary(thing)})
    if as_json:
        print(
            json.dumps(
                [entry | {"parameters": parameters(kind, entry["name"])} for entry in entries], indent=2
            )
        )
    else:
        print("\n".join(aligned([list(entry.values()) for entry in entries])))


@app.command("show")
def show(
    what: Annotated[
        str, typer.Argument(metavar="NAME|DIR|FILE.toml", help="Such as codasca, runs/mine or run.toml.")
    ],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key of FILE.toml.")
    ] = None,
) -> None:
    """Show a named thing, a run's result, or a config and its data."""
    from fedsaddle.describe import described, things

    found = [kind for kind in Kind if what in things(kind)]
    path = Path(what)
    if found:
        print("\n\n".join(described(kind, what) for kind in found))
        if path.is_dir():
            _say(f"{what}: is also a folder here; fedsaddle show .{os.sep}{what} shows that")
    elif path.is_file() or (what.endswith(".toml") and not path.is_dir()):
        _show_config(path, assigned(assignments))
    elif path.is_dir() or os.sep in what:
        with _as_written(path):
            finished.print_result(path.resolve().name, read_result(path))
    else:
        known = [name for kind in Kind for name in things(kind)]
        raise _unknown("", what, known, "try: fedsaddle list algorithms")


@app.command("report")
def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run.")]) -> None:
    """Write a run's report.html again.

    Of a run that ended early it shows how far it got, and why it ended.
    """
    with _as_written(folder):
        if not unfinished(folder):
            read_result(folder)
        from fedsaddle.report import write_report

        print(write_report(folder))


@app.command("score")
def score(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run.")],
    table: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="A .csv or .parquet file with the columns it was trained on."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="The file to write; else they are printed.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Also copy this column, such as an id; may be repeated."),
    ] = None,
) -> None:
    """Score the rows of a new table with a run's model."""
    if not table.is_file():
        raise FedsaddleError(f"{table}: is no file; {similar_file(table) or 'give a table of new rows'}")
    with _as_written(folder):
        from fedsaddle.folder import write_whole
        from fedsaddle.scoring import score

        text = score(folder, table, keep or ())
        for said in of_training(read_result(folder)):
            print(f"fedsaddle: {said}", file=sys.stderr)
    if out is None:
        print(text, end="")
        return
    write_whole(out, text.encode(errors="backslashreplace"))
    print(out)


@app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run.")],
    onnx: Annotated[Path, typer.Option(metavar="FILE.onnx", help="The file to write.")],
) -> None:
    """Write a run's model as ONNX. It takes raw features: their scaling is part of it.

    Its input x is what `rows` of fs.load_model(DIR) makes of a table; the metadata key `features` names its columns. To run
    it install onnxruntime, which the extra onnx does not bring.
    """
    with _as_written(folder):
        from fedsaddle.export import export_onnx

        print(export_onnx(folder, onnx))
        for text in of_training(read_result(folder)):
            print(f"fedsaddle: {text}", file=sys.stderr)


@app.command("cite")
def cite(
    things: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|DIR...]", help="Algorithms, problems, data sets, runs."),
    ] = None,
) -> None:
    """Print citations as BibTeX. Of what a run used, of what is named, or of fedsaddle and all algorithms."""
    from fedsaddle.citing import cite

    with _as_written(*map(Path, things or ())):
        print(cite(*(things or ())))


@app.command("reproduce")
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="See: fedsaddle list experiments.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small version that shows that it works.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A folder for the runs.")] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="Data set, where an experiment has several.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model, where an experiment has several.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(metavar="N", help="Number of clients, where an experiment has several.")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(metavar="N", help="Number of rounds, where an experiment has several.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A part of a long experiment; parts add up in one table."),
    ] = None,
    jobs: Jobs = 1,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cuda: on the GPU, which several --jobs share.")
    ] = None,
) -> None:
    """Run an experiment of a paper: table, figure, claims judged."""
    _load_torch()
    from fedsaddle.reproduce import experiments, reproduce

    known = experiments()
    if experiment not in known:
        raise _unknown("experiment ", experiment, known, "known are " + ", ".join(known))
    named = (("data", data), ("model", model), ("clients", clients), ("rounds", rounds), ("part", part))
    options = {k: v for k, v in named if v is not None}
    folder = reproduce(experiment, quick, out, options=options, jobs=jobs, device=device)
    print((folder / "table.md").read_text(encoding="utf-8"))
    print(f"{folder}: {', '.join(sorted(p.name for p in folder.iterdir()))}")


@app.command("doctor")
def doctor() -> None:
    """Check what is installed, the machine and the data. Exit code 1 if something that every run needs is broken."""
    from fedsaddle.doctor import examined

    findings = examined()
    print("\n".join(aligned([[f.status, f.what, f.text] for f in findings])))
    broken = [f.what for f in findings if f.status == "broken"]
    verdict = f"Broken, and needed by every run: {', '.join(broken)}."
    print(
        "\n" + (verdict if broken else "Everything that a run needs is there; what is missing is optional.")
    )
    if broken:
        raise typer.Exit(1)


# -------------------------------------------------------------------------------------------- entry, errors


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; exits."""
    sys.exit(_main(sys.argv[1:] if arguments is None else arguments))


def commands() -> Any:
    """All commands, for click. Beside click 8.5 typer loses the help of arguments; before `[...]` it puts a backslash."""

    def mend(command: Any) -> None:
        for inner in getattr(command, "commands", {}).values():
            mend(inner)
        hints = get_type_hints(command.callback, include_extras=True) if command.callback else {}
        for parameter in command.params:
            about = [a.help for a in get_args(hints.get(parameter.name)) if hasattr(a, "help")]
            lost = "" if parameter.help or not about else about[0] or ""
            parameter.get_help_record = _with_help(parameter.get_help_record, lost)

    command = typer.main.get_command(app)
    mend(command)
    return command


def _with_help(record: Callable[[Any], Any], lost: str) -> Callable[[Any], Any]:
    def told(context: Any) -> Any:
        found = record(context)
        return found and (found[0], f"{lost}  {found[1]}".strip().replace("\\[", "["))

    return told


def _main(arguments: Sequence[str]) -> int:
    command = commands()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}") if rank() == 0 else None
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
            hint = similar_file(error.filename) if isinstance(error.filename, str | os.PathLike) else ""
            return _fail(
                (f"{error.filename}: {reason}" if error.filename else reason) + (hint and f"; {hint}"), error
            )
        except Exception as error:
            if not hasattr(error, "format_message"):  # not typer's usage errors: a defect of ours
                raise
            return _fail(_usage(error, arguments), error)


def _usage(error: Any, arguments: Sequence[str]) -> str:
    """What typer says of a command line, and where to read on."""
    said = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", error.format_message())  # typer's hint and click's
    if choice := re.search(r"'([^']*)' is not one of (.*)", said):
        hint = did_you_mean(choice[1], re.findall(r"'([^']*)'", choice[2]))
        said = f"{said.rstrip('.')}; {hint}" if hint else said
    where = error.ctx.command_path if getattr(error, "ctx", None) else "fedsaddle"
    script = next((a for a in arguments[:1] if a.endswith(".toml")), None)
    remedy = f"fedsaddle run {script}" if script else f"{where} --help"
    return f"{said.rstrip('.')}{'' if said.endswith('?') else ';'} try: {remedy}"


def _fail(message: str, error: BaseException, code: int = 2) -> int:
    if first_to_fail():
        _say("; ".join([message, *getattr(error, "__notes__", ())]))
    return code


def _say(text: str) -> None:
    print("fedsaddle: " + " ".join(text.split()), file=sys.stderr)


def _unknown(kind: str, name: str, known: Iterable[str], otherwise: str) -> FedsaddleError:
    return FedsaddleError(f"{kind}{name!r} is unknown; {did_you_mean(name, known) or otherwise}")


def _load_torch(quiet: bool = False) -> None:
    """Say that torch is being loaded, which takes seconds."""
    with spinner("loading torch", False if quiet or rank() > 0 else None):
        import torch  # noqa: F401


# ------------------------------------------------------------------------------------------------- printing


@contextmanager
def _as_written(*folders: Path) -> Iterator[None]:
    """What the files of a run make other code raise, after somebody changed them, becomes one line."""
    try:
        yield
    except FedsaddleError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        who = ", ".join(map(str, folders))
        raise FedsaddleError(
            f"{who}: a file is not as a run writes it ({type(error).__name__}: {first_line(error)})"
        ) from error


def _show_config(path: Path, assignments: Sequence[str]) -> None:
    check_config(path)
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
        print(f"# {line}")


def _clients_table(federation: Federation) -> list[str]:
    """Samples, and those of each class, client by client; of the first clients, and of up to 12 classes."""
    sizes = federation.sizes.tolist()
    has_classes = "y" in federation.data and not federation.is_regression and len(federation.classes) <= 12
    classes = federation.classes if has_classes else ()
    counts = federation.class_counts().tolist() if classes else [[]] * len(sizes)
    rows = [["client", "samples", *classes]]
    for name, size, own in zip(federation.names[:_MOST_CLIENTS], sizes, counts, strict=False):
        rows.append([name, str(size), *map(str, own)])
    more = [f"... {len(sizes) - _MOST_CLIENTS} more"] if len(sizes) > _MOST_CLIENTS else []
    return aligned(rows) + more
