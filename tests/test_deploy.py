"""Deployments over Flower on loopback, with TLS and keys: processes for the server and for each site, which are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

import fedsaddle as fs
from fedsaddle.config import resolve
from fedsaddle.deploy import drive, link
from fedsaddle.deploy.commands import local_sites
from fedsaddle.deploy.home import Home, LinkFile, create, private_key, private_pem, public_pem
from fedsaddle.deploy.knock import knock, only_one
from fedsaddle.deploy.program import STOCK_INTERVAL
from fedsaddle.errors import FedsaddleError
from tests.fleet import CASES, simulated, tree

SIZES = {
    "north": 30,
    "south": 55,
    "east": 12,
    "west": 41,
}  # in the order of their numbers, which is not alphabetical


SHARED = pytest.mark.xdist_group("sites")  # one process runs them: they share the sites


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def federation(folder: Path, interval: float = 0.2, n: int = 4) -> tuple[Home, fs.Federation]:
    """Sites with tables, and the same clients for a simulation."""
    sizes = dict(list(SIZES.items())[:n])
    home = create(folder, list(sizes), f"127.0.0.1:{free_port()}")
    rng = np.random.default_rng(5)
    files = []
    for name, n in sizes.items():
        y = (rng.random(n) < 0.4).astype(int)
        x = 3.0 * rng.standard_normal((n, 4)) + 2.0 * y[:, None] + 10.0
        files.append(home.site(name) / f"{name}.csv")
        pd.DataFrame(x, columns=list("abcd")).assign(died=y).to_csv(files[-1], index=False)
        toml = f'name = "{name}"\n[data]\nfile = "{name}.csv"\nlabel = "died"\npositive = 1\nscale = "standard"\n'
        (home.site(name) / "site.toml").write_text(toml)
        (home.site(name) / "link.toml").write_text(
            f'address = "{home.manifest.address}"\ninterval = {interval}\n'
        )
    return home, fs.Federation.from_files(files, label="died", positive=1).scaled("standard")


def config(home: Home, case: str, **changes: Any) -> Any:
    run = tree(case)
    data = {"sites": str(home.folder / "federation.toml"), "timeout": changes.pop("timeout", 120.0)}
    run["algorithm"] |= changes.pop("algorithm", {})
    run["train"] |= {"eval_every": 100} | changes
    return resolve({**run, "data": data, "name": case})


def iterate(whole: fs.Federation, case: Any) -> torch.Tensor:
    return simulated(whole, {k: v for k, v in case.tree.items() if k != "data"}).z


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@contextmanager
def quick() -> Iterator[None]:
    """One thread a process: four sites share the machine."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


class Sites:
    """A federation whose sites run, shared by tests, and its SuperLink when a test wants one that stays."""

    def __init__(self, folder: Path) -> None:
        self.home, self.whole = federation(folder)
        self.local = local_sites(self.home)
        self._server, self._up = ExitStack(), False

    def ready(self, server: bool) -> None:
        """All sites run; with a SuperLink, or without one."""
        for name in SIZES:
            if self.local.processes[name].poll() is not None:
                self.local.start(name)
        if not server:
            self.close()
        elif not self._up:
            self._server.enter_context(link.superlink(self.home))
        self._up = server
        self._said = {name: len(self._log(name)) for name in SIZES}

    def close(self) -> None:
        """Stop the SuperLink."""
        self._server.close()

    def said(self, site: str) -> str:
        """What a site has said in this test."""
        return self._log(site)[self._said[site] :]

    def _log(self, site: str) -> str:
        return (self.home.site(site) / "site.log").read_text()

    def supernode(self, site: str) -> int:
        """The process of a site's SuperNode."""
        pid = self.local.processes[site].pid
        wait_for(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text())
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def words(pid: int) -> list[str]:
    """The command line of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "tensorboard.py").write_text("raise ImportError\n")  # tracking is the server's affair
    sites = Sites(folder / "f")
    with quick(), ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(folder))
            stack.enter_context(sites.local)
        stack.callback(sites.close)
        yield sites
    # nothing of it runs on
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    assert not [pid for pid in pids if any(str(sites.home.folder) in word for word in words(pid))]
    left = {path.parent.name for path in sites.home.folder.glob("sites/*/*.runtime")}
    assert left <= {"south"}  # which was killed


@SHARED
def test_a_killed_server_resumes(sites: Sites, tmp_path: Path) -> None:
    sites.ready(server=False)
    home, whole = sites.home, sites.whole
    tracked = ["--track", "tensorboard"] if find_spec("tensorboard") else []
    settings = config(home, "codasca", algorithm={"local_steps": 300, "lr": 0.005}, rounds=4)
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(fs.config.dump(settings))
    command = [sys.executable, "-m", "fedsaddle", "deploy"]
    server = subprocess.Popen(
        [*command, "run", str(file), "--out", str(out), "--quiet", *tracked], stdout=subprocess.PIPE
    )
    wait_for(lambda: "round 3: algorithm.drift" in sites.said("east"), 120)  # in the middle of a phase
    server.kill()  # and with it its SuperLink
    server.wait()
    assert not (out / "result.json").exists()
    done = subprocess.run([*command, "resume", str(out)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "AUC, training" in done.stdout and (out / "report.html").exists()
    weights = load_file(out / "model.safetensors")
    z = iterate(whole, settings)
    got = torch.cat([v.flatten() for name, v in sorted(weights.items(), reverse=True)])  # weight, bias
    torch.testing.assert_close(got, z[: len(got)], rtol=0, atol=1e-6)
    records = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == list(range(5)) and records[-1]["failures"] == 0
    if tracked:  # every round once, although the server was killed
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        points = EventAccumulator(str(out / "tensorboard")).Reload().Scalars("train_auc")
        assert [(p.step, round(p.value, 5)) for p in points] == [
            (r["round"], round(r["train_auc"], 5)) for r in records if "train_auc" in r
        ]
    again = subprocess.run([*command, "resume", str(out)], capture_output=True, text=True)
    assert again.returncode == 2 and "the run has ended" in again.stderr


@SHARED
@pytest.mark.parametrize("case", CASES)
def test_an_algorithm_on_flowers_supernodes_computes_what_a_simulation_computes(
    case: str, sites: Sites, tmp_path: Path
) -> None:
    """Three rounds over four SuperNodes, with TLS and node authentication."""
    sites.ready(server=True)
    settings = config(sites.home, case, rounds=3)
    run = drive.run(settings, tmp_path / case, progress=False)
    torch.testing.assert_close(run.z, iterate(sites.whole, settings), rtol=0, atol=1e-6)
    assert run.metrics["failures"] == 0 and run.metrics["round"] == 3
    result = json.loads((tmp_path / case / "result.json").read_text())
    assert result["config"]["train"]["engine"] == "flower"


@SHARED
def test_a_site_gives_its_work_to_no_other_process(sites: Sites) -> None:
    """The port by which a SuperNode gives its tasks, as another user of the machine finds it."""
    sites.ready(server=True)
    options = words(sites.supernode("north"))
    place = sites.home.site("north").resolve() / "key.runtime"
    address = f"127.0.0.1:{options[options.index('--port') + 1]}"
    wait_for(lambda: (place / "ca.crt").exists())
    authority, secret = (place / "ca.crt").read_bytes(), (place / "secret").read_bytes()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert all(stat.S_IMODE((place / name).stat().st_mode) == 0o600 for name in ("secret", "server.key"))
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")

    def ask(*more: Any) -> None:
        with RuntimeHttpClient.from_server_address(address, False, authority, [version, *more]) as client:
            client.AcquireTask(request)

    def by(secret: bytes) -> SuperExecAuthHttpInterceptor:
        return SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods=("/flwr.proto.Runtime/AcquireTask",)
        )

    def answers() -> bool:
        with suppress(httpx.ConnectError):
            ask(by(secret))
            return True
        return False

    wait_for(answers)
    for stranger in ((), (by(b"x" * 32),)):
        with pytest.raises(httpx.HTTPStatusError) as failure:
            ask(*stranger)
        assert failure.value.response.status_code == 401


@SHARED
def test_a_site_may_be_killed(sites: Sites, tmp_path: Path) -> None:
    sites.ready(server=True)
    home, whole, processes = sites.home, sites.whole, sites.local.processes
    began = "algorithm.drift_corrected_steps\n"

    def kill_south(times: int) -> None:
        """In the middle of its work; its SuperNode ends although nobody has waited for the site yet."""
        wait_for(lambda: sites.said("south").count(f"round 2: {began}") == times)
        time.sleep(0.1)
        supernode = sites.supernode("south")
        os.kill(processes["south"].pid, signal.SIGKILL)
        wait_for(lambda: not words(supernode), 15)
        processes["south"].wait()

    def kill_and_start() -> None:
        kill_south(1)
        sites.local.start("south")
        wait_for(lambda: f"round 3: {began}" in sites.said("west"))
        os.kill(sites.supernode("west"), signal.SIGKILL)

    # a site killed and started again, and a SuperNode that is killed: nothing is lost
    # about a second of work, also on a fast machine that does nothing else, and far from the time-out on a busy one
    long = {"local_steps": 3000, "lr": 0.0013}
    slow = config(home, "codasca", algorithm=long)
    with in_thread(kill_and_start):
        run = drive.run(slow, tmp_path / "killed", progress=False)
    assert "takes the site for connected still" not in sites.said("south") + sites.said("west")
    done = sites.said("south").count("round 2: algorithm.drift_corrected_steps done")
    assert done == 1  # it was cut short, and asked again
    assert sites.said("west").count(f"round 3: {began}") == 2
    torch.testing.assert_close(run.z, iterate(whole, slow), rtol=0, atol=1e-6)
    assert run.metrics["failures"] == 0

    # killed and not started again: the run goes on without it, and says so
    gone = config(home, "codasca", algorithm=long, rounds=2, timeout=12.0)
    with in_thread(lambda: kill_south(3)):
        run = drive.run(gone, tmp_path / "gone", progress=False)
    left = [{**left, "round": r["round"]} for r in run.records for left in r.get("left_out", ())]
    assert {(x["site"], x["phase"]) for x in left} == {
        ("south", "drift_corrected_steps"),
        ("south", "evaluate"),
    }
    assert [x["round"] for x in left] == [2, 2]
    assert all("no answer in 12 seconds" in x["reason"] or x["reason"] == "not connected" for x in left)
    absent = {k: v for k, v in gone.tree.items() if k != "data"}
    absent["participation"] = {"name": "trace", "rounds": [[0, 1, 2, 3], [0, 2, 3]]}
    torch.testing.assert_close(run.z, simulated(whole, absent).z, rtol=0, atol=1e-6)


@contextmanager
def in_thread(function: Callable[[], None]) -> Iterator[None]:
    import threading

    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    yield
    thread.join()
    assert not failed, failed


def test_supernodes_as_flower_ships_them(tmp_path: Path) -> None:
    """With Flower's own pauses: two sites, two rounds."""
    home, whole = federation(tmp_path / "f", interval=STOCK_INTERVAL, n=2)
    settings = config(home, "codasca", rounds=2)
    with quick(), link.superlink(home), local_sites(home) as processes:
        run = drive.run(settings, tmp_path / "out", progress=False)
    torch.testing.assert_close(run.z, iterate(whole, settings), rtol=0, atol=1e-6)
    assert run.metrics["failures"] == 0
    assert all(process.returncode == 0 for process in processes.values())
    for name in home.manifest.sites:  # each has begun once
        log = (home.site(name) / "supernode.log").read_text()
        assert log.count("Uvicorn running on https://127.0.0.1") == 1


def test_strangers_are_refused(tmp_path: Path) -> None:
    home, _ = federation(tmp_path / "f", n=2)
    with quick(), link.superlink(home):
        refused(home, tmp_path)


def enter(link: LinkFile) -> None:
    with only_one(link) as last:
        knock(link, last)


def refused(home: Home, folder: Path) -> None:
    """What may not connect does not."""
    place = home.site("south")
    good = LinkFile.load(place / "link.toml")
    enter(good)
    stranger = ec.generate_private_key(ec.SECP256R1())
    (folder / "stranger.pem").write_bytes(private_pem(stranger))
    with pytest.raises(FedsaddleError, match="does not know this site's key"):
        enter(replace(good, key=str(folder / "stranger.pem")))
    # the public key of a site, signed for with another private key
    own = private_key(place / "key.pem")
    with FleetHttpClient.from_server_address(
        good.address,
        False,
        home.certificate,
        [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(stranger, own.public_key()),
        ],
    ) as client:
        with pytest.raises(httpx.HTTPStatusError) as failure:
            client.ActivateNode(ActivateNodeRequest(public_key=public_pem(own), heartbeat_interval=30.0))
        assert failure.value.response.status_code == 401
    # without TLS, and by another authority
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{good.address}/health").raise_for_status()
    other = create(folder / "other", ["a", "b"], "127.0.0.1:1")
    with pytest.raises(FedsaddleError, match="not by this federation's authority"):
        enter(replace(good, certificate=str(other.server / "ca.crt")))
    check = [sys.executable, "-m", "fedsaddle", "deploy", "check", str(place / "site.toml")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data: in order" in done.stdout and "knows this site" in done.stdout
    (place / "key.pem").write_bytes(private_pem(stranger))
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 2 and "does not know this site's key" in done.stderr
