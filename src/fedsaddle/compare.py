"""compare: finished runs side by side, as a table of the command line. The page with their curves is report.py's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsaddle.errors import FedsaddleError
from fedsaddle.folder import going_on, is_run, read_result, unfinished
from fedsaddle.measures import in_words
from fedsaddle.progress import human_bytes
from fedsaddle.remarks import remarks
from fedsaddle.repetitions import grouped, named
from fedsaddle.tables import aligned, room

if TYPE_CHECKING:  # torch is loaded after the folders were found to be runs
    from fedsaddle.scores import Compared

_SHOWN = ("auc", "auc_worst20", "train_auc", "accuracy", "accuracy_worst20", "loss", "distance")


class Comparison(NamedTuple):
    """Runs side by side."""

    groups: dict[str, list[Path]]  # the folders of each row
    compared: Compared  # their test AUCs, sample by sample
    lines: list[str]


def compare(folders: Sequence[Path], say: Callable[[str], None]) -> Comparison:
    """Compare runs; those that differ in train.seed only share a row.

    Args:
        folders: of runs. Unfinished ones, and what is no run, are left out unless nothing else is there.
        say: is told what is left out.
    """
    results = _finished(folders, say)
    groups, twins = grouped(results)
    for folder, first in twins.items():
        say(f"{folder}: is the same run as {first}, left out")
        del results[folder]
    from fedsaddle.journal import mean_and_std, over_seeds
    from fedsaddle.scores import Compared, compared

    by_row = {name: {folder: results[folder] for folder in own} for name, own in groups.items()}
    columns = [k for k in _SHOWN if any(k in r["metrics"] for r in results.values())]
    rows = [["run", "algorithm", *map(in_words, columns), "rounds", "bytes"]]
    for name, own in groups.items():
        found = over_seeds([results[folder] for folder in own])
        rows.append([
            name,
            results[own[0]]["config"]["algorithm"]["name"],
            *(mean_and_std(found[k]) if k in found else "-" for k in columns),
            str(results[own[0]]["metrics"]["round"]),
            human_bytes(round(found["bytes_down"]["mean"] + found["bytes_up"]["mean"])),
        ])  # fmt: skip
    by_sample = compared(by_row) if "auc" in columns else Compared({}, "", {}, {})
    sure, _, behind, _ = by_sample
    more = {"95 %": [sure.get(name, "-") for name in groups]} if sure else {}
    if behind:
        more["behind the best"] = [behind[name].text() if name in behind else "-" for name in groups]
    at = 3 + columns.index("auc") if "auc" in columns else len(rows[0])
    for i, (head, cells) in enumerate(more.items()):
        for row, cell in zip(rows, [head, *cells], strict=True):
            row.insert(at + i, cell)
    said = [by_sample.verdict()] if behind else []
    repeated = any(len(own) > 1 for own in groups.values())
    if repeated:
        said.append("±: standard deviation over seeds.")
    if sure:
        of_mean = ", of several seeds of their mean AUC" * repeated
        said.append(
            f"95 %: over the choice of test samples (DeLong{of_mean}), not over training runs and seeds."
        )
    said += by_sample.notes()
    said += notices(by_row)
    lines = [*aligned(rows, room()), *([""] if said else []), *said, *_data(by_row)]
    return Comparison(groups, by_sample, lines)


def notices(rows: Mapping[str, Mapping[Path, dict[str, Any]]]) -> list[str]:
    """What remarks say of the runs, once each, and of which rows or runs where it is not of all.

    Args:
        rows: the folders of each row's runs, with their result.json; empty of an unfinished run.
    """
    results = [(folder, result) for own in rows.values() for folder, result in own.items() if result]
    held: dict[str, list[Path]] = {}
    for folder, result in results:
        for remark in remarks(result):
            held.setdefault(remark, []).append(folder)
    short = named(folder for folder, _ in results)

    def called(some: Sequence[Path]) -> list[str]:
        """Rows where all of their runs are meant, else single runs."""
        names: list[str] = []
        for name, own in rows.items():
            mine = [folder for folder in own if folder in some]
            names += [name] if len(mine) == len(own) else [short[folder] for folder in mine]
        return names

    said: list[str] = []
    for text, holders in held.items():
        of, but = called(holders), called([folder for folder, _ in results if folder not in holders])
        who = f"All but {', '.join(but)}" if len(but) < len(of) - 1 else ", ".join(of)
        said.append(f"{who}: {text}" if but else text)
    return said


def _finished(folders: Sequence[Path], say: Callable[[str], None]) -> dict[Path, dict[str, Any]]:
    """The results of those that are finished runs."""
    missing = [folder for folder in folders if not folder.exists()]
    kept = [folder for folder in folders if is_run(folder) and not unfinished(folder)]
    for folder in () if kept else folders:
        if folder.is_dir() and (inside := sum(map(is_run, folder.iterdir()))):
            raise FedsaddleError(
                f"{folder}: is no run, but holds {inside}; name these: fedsaddle compare {folder}/*"
            )
    if missing and missing[0].name == "*" and missing[0].parent.is_dir():  # the shell found nothing
        raise FedsaddleError(f"{missing[0].parent}: there is no run in it yet; fedsaddle run makes one")
    if missing or not kept:
        read_result([*missing, *folders][0])  # which says what is wrong with it
    for folder in folders:
        if folder.is_file() and folder.suffix == ".html":  # a page beside its runs
            continue
        if not is_run(folder):
            say(f"{folder}: is not a run, left out")
        elif unfinished(folder):
            say(f"{folder}: did not finish, left out{going_on(folder)}")
    return {folder: read_result(folder) for folder in kept}


def _data(rows: Mapping[str, Mapping[Path, dict[str, Any]]]) -> list[str]:
    """Which rows have which data, where they differ: the columns do not compare like with like then."""
    data: dict[str, list[str]] = {}
    for name, own in rows.items():
        first = next(iter(own.values()))
        text = "{clients} clients, {samples} training samples".format(**first["config"]["federation"])
        text += f" of {'x'.join(map(str, first['sample']['shape'])) or 1}" if first.get("sample") else ""
        text += f", clients evaluated on their {first['clients_evaluated_on']} data"
        data.setdefault(text, []).append(name)
    if len(data) < 2:
        return []
    return [
        "",
        "These runs have different data:",
        *(f"  {', '.join(own)}: {text}" for text, own in data.items()),
    ]
