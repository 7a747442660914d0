"""fedsaddle deploy: init, check, site, run, resume, local."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsaddle import finished
from fedsaddle.deploy.program import LOCAL_INTERVAL, Process, end_with, start, stop
from fedsaddle.errors import FedsaddleError, optional_import
from fedsaddle.options import ConfigFile, Out, Quiet, Set, Track, assigned, check_config

app = typer.Typer(rich_markup_mode=None, help="Run over sites that keep their data.")

FLOWER = "1.41"  # the version that the extra `flower` names


def check_flower() -> None:
    """Refuse a Flower whose interfaces may not be those that are used here, many of which it does not document; hush it."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    found = optional_import("flwr", "fedsaddle deploy", "flower").__version__
    if not found.startswith(f"{FLOWER}."):
        raise FedsaddleError(
            f"fedsaddle deploy needs flwr {FLOWER}, found {found}: pip install 'fedsaddle[flower]'"
        )
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[list[str], typer.Argument(metavar="SITE...", help="Names of the sites.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where sites reach the server.")
    ] = "127.0.0.1:9092",
    listen: Annotated[
        str | None, typer.Option(metavar="HOST", help="What the server binds to, such as 0.0.0.0.")
    ] = None,
) -> None:
    """Write all files of a new federation. Certificates, keys, a folder for each site."""
    check_flower()
    from fedsaddle.deploy.home import create

    home = create(folder, sites, address, listen)
    print(f"{home.folder}: a federation of {len(sites)} sites at {address}")
    for name in sites:
        print(
            f"  {home.site(name)}: send to {name} by a channel that nobody else reads, then delete key.pem here"
        )
    print(
        f"Write what is learned into {home.folder / 'run.toml'}, then: fedsaddle deploy run {home.folder / 'run.toml'}"
    )


@app.command("check")
def check(file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's description.")]) -> None:
    """Try a site's data and its connection. Says what is wrong in plain words."""
    check_flower()
    from fedsaddle.agreement import in_words
    from fedsaddle.deploy.home import LinkFile
    from fedsaddle.deploy.knock import knock, only_one
    from fedsaddle.site_check import check as checked
    from fedsaddle.sites import Site

    findings = checked(file)
    for line in findings:
        print(f"data: {line}")
    with suppress(FedsaddleError):  # what cannot be used is among the findings, and does not leave
        leaves = in_words(Site.load(file).summary())
        print(
            f"data: {'see above' if findings else 'in order'}; this is what would leave the site at set-up:"
        )
        print("\n".join(f"  {line}" for line in leaves))
    try:
        link = LinkFile.load(file.parent / "link.toml")
        with only_one(link) as last:
            knock(link, last)
        print(f"connection: {link.address} knows this site")
    except FedsaddleError as error:
        raise FedsaddleError(f"connection: {error}") from error
    if findings:
        raise FedsaddleError(f"{file}: {len(findings)} findings about the data, see above")


@app.command("site")
def site(
    file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's description.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only what is wrong.")] = False,
    interval: Annotated[
        float | None, typer.Option(hidden=True, help="At most; else that of link.toml.")
    ] = None,
    parent: Annotated[int | None, typer.Option(hidden=True, help="Stop when this process has gone.")] = None,
) -> None:
    """Take part in a federation, until it is stopped."""
    check_flower()
    from fedsaddle.deploy.home import LinkFile
    from fedsaddle.deploy.node import serve
    from fedsaddle.deploy.worker import Worker
    from fedsaddle.sites import Site

    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("fedsaddle.site").setLevel(logging.WARNING if quiet else logging.INFO)
    place = Site.load(file)
    _ = place.rows  # what is wrong with the data is said before anybody waits for it
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if parent is not None:
        end_with(parent)
    link = LinkFile.load(file.parent / "link.toml")
    if interval is not None:
        link = replace(link, interval=min(interval, link.interval))
    serve(Worker(place), link, stop)


@app.command("run")
def run(
    file: ConfigFile,
    assignments: Set = None,
    out: Out = None,
    quiet: Quiet = False,
    track: Track = None,
) -> None:
    """Train over the sites of a federation, into a new folder."""
    check_config(file)
    check_flower()
    from fedsaddle.config import load
    from fedsaddle.deploy import drive

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    config = load(file, assigned(assignments, track))
    place = out or Path("runs") / config.name
    finished.show(
        drive.run(config, place, False if quiet else None, numbered=out is None), config.name, quiet
    )


@app.command("local")
def local(
    n: Annotated[int, typer.Argument(metavar="N", help="How many sites.")],
    folder: Annotated[
        Path,
        typer.Option("--dir", metavar="DIR", help="The federation; made, with bundled data, if not there."),
    ] = Path("federation"),
    port: Annotated[int, typer.Option(help="Of a federation that is made.")] = 9092,
) -> None:
    """Try it on this machine. Starts a server and N sites, with TLS and keys; Ctrl-C stops them."""
    check_flower()
    from fedsaddle.deploy.home import Home
    from fedsaddle.deploy.link import superlink
    from fedsaddle.deploy.trial import trial

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    home = Home(folder) if folder.exists() else trial(folder, n, f"127.0.0.1:{port}")
    if len(home.manifest.sites) != n:
        raise FedsaddleError(f"{folder}: has {len(home.manifest.sites)} sites, not {n}; choose another --dir")
    with superlink(home), local_sites(home, LOCAL_INTERVAL) as processes:
        print(f"{n} sites and their server run at {home.local}; Ctrl-C stops them")
        print(f"Now, elsewhere: fedsaddle deploy run {home.folder / 'run.toml'}", flush=True)
        while not (ended := [name for name, process in processes.items() if process.poll() is not None]):
            time.sleep(0.5)
    raise FedsaddleError(f"site {ended[0]} has ended; see {home.site(ended[0]) / 'site.log'}")


class local_sites:
    """All sites of a federation as processes of this machine, which are stopped at the end.

    Args:
        interval: at most, of their looks for work; else that of each link.toml.
    """

    def __init__(self, home: Any, interval: float | None = None) -> None:
        self._home, self._interval = home, interval
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> dict[str, Process]:
        for name in self._home.manifest.sites:
            self.start(name)
        return self.processes

    def start(self, name: str) -> Process:
        """Start a site, or start it again."""
        place = self._home.site(name)
        command = ["-m", "fedsaddle", "deploy", "site", str(place / "site.toml")]
        command += ["--parent", str(os.getpid())]
        command += [] if self._interval is None else ["--interval", str(self._interval)]
        self.processes[name] = start(command, place / "site.log")
        return self.processes[name]

    def __exit__(self, *_: object) -> None:
        stop(*self.processes.values(), by=signal.SIGTERM)
