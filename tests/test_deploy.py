"""Deployments over Flower on loopback, with TLS and keys: processes for the server and for each site, which are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

import fedsaddle as fs
from fedsaddle.config import resolve
from fedsaddle.deploy import drive, link
from fedsaddle.deploy.commands import local_sites
from fedsaddle.deploy.home import Home, LinkFile, create, private_key, private_pem, public_pem
from fedsaddle.deploy.knock import knock, only_one
from fedsaddle.errors import FedsaddleError
from tests.fleet import CASES, simulated, tree

SIZES = {
    "north": 30,
    "south": 55,
    "east": 12,
    "west": 41,
}  # in the order of their numbers, which is not alphabetical


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def federation(folder: Path, link: str = "interval = 0.5\n") -> tuple[Home, fs.Federation]:
    """Four sites with tables, and the same clients for a simulation."""
    home = create(folder, list(SIZES), f"127.0.0.1:{free_port()}")
    rng = np.random.default_rng(5)
    files = []
    for name, n in SIZES.items():
        y = (rng.random(n) < 0.4).astype(int)
        x = 3.0 * rng.standard_normal((n, 4)) + 2.0 * y[:, None] + 10.0
        files.append(home.site(name) / f"{name}.csv")
        pd.DataFrame(x, columns=list("abcd")).assign(died=y).to_csv(files[-1], index=False)
        toml = f'name = "{name}"\n[data]\nfile = "{name}.csv"\nlabel = "died"\npositive = 1\nscale = "standard"\n'
        (home.site(name) / "site.toml").write_text(toml)
        (home.site(name) / "link.toml").write_text(f'address = "{home.manifest.address}"\n{link}')
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


def said(home: Home, site: str) -> str:
    return (home.site(site) / "site.log").read_text() if (home.site(site) / "site.log").exists() else ""


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


def test_five_algorithms_on_flowers_own_supernodes_compute_what_a_simulation_computes(tmp_path: Path) -> None:
    """Three rounds of each over four SuperNodes as Flower ships them, with TLS and node authentication."""
    home, whole = federation(tmp_path / "f", link="")
    with quick(), link.superlink(home), local_sites(home):
        for case in CASES:
            settings = config(home, case, rounds=3)
            run = drive.run(settings, tmp_path / case, progress=False)
            torch.testing.assert_close(run.z, iterate(whole, settings), rtol=0, atol=1e-6)
            assert run.metrics["failures"] == 0 and run.metrics["round"] == 3
        assert (
            json.loads((tmp_path / case / "result.json").read_text())["config"]["train"]["engine"] == "flower"
        )
    for name in SIZES:
        assert (home.site(name) / "supernode.log").read_text().count(
            "Uvicorn running on http://127.0.0.1"
        ) == 1


def test_a_site_may_be_killed(tmp_path: Path) -> None:
    home, whole = federation(tmp_path / "f")
    sites = local_sites(home)
    with quick(), link.superlink(home), sites as processes:
        # a site killed in the middle of its work and started again, and a SuperNode that is killed: nothing is lost
        slow = config(home, "codasca", algorithm={"local_steps": 800, "lr": 0.005})
        before = 0

        def kill(restart: bool) -> None:
            wait_for(lambda: said(home, "south").count("round 2: algorithm.drift_corrected_steps\n") > before)
            time.sleep(0.3)
            os.kill(processes["south"].pid, signal.SIGKILL)
            processes["south"].wait()
            if restart:
                sites.start("south")
                wait_for(lambda: "round 3: algorithm.drift_corrected_steps\n" in said(home, "west"))
                children = Path(f"/proc/{processes['west'].pid}/task/{processes['west'].pid}/children")
                os.kill(int(children.read_text()), signal.SIGKILL)

        with in_thread(lambda: kill(restart=True)):
            run = drive.run(slow, tmp_path / "killed", progress=False)
        done = said(home, "south").count("round 2: algorithm.drift_corrected_steps done")
        assert done == before + 1  # it was cut short, and asked again
        assert said(home, "west").count("round 3: algorithm.drift_corrected_steps\n") == 2
        torch.testing.assert_close(run.z, iterate(whole, slow), rtol=0, atol=1e-6)
        assert run.metrics["failures"] == 0

        # killed and not started again: the run goes on without it, and says so
        before += 2
        gone = config(home, "codasca", algorithm={"local_steps": 800, "lr": 0.005}, rounds=2, timeout=12.0)
        with in_thread(lambda: kill(restart=False)):
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
    assert all(process.poll() is not None for process in processes.values())


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


def test_a_killed_server_resumes_and_strangers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, whole = federation(tmp_path / "f")
    tracked = ["--track", "tensorboard"] if find_spec("tensorboard") else []
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "tensorboard.py").write_text("raise ImportError\n")  # it is the server's affair
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "sites"))
    settings = config(home, "codasca", algorithm={"local_steps": 300, "lr": 0.005}, rounds=6)
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(fs.config.dump(settings))
    command = [sys.executable, "-m", "fedsaddle", "deploy"]
    with quick(), local_sites(home):
        monkeypatch.undo()
        server = subprocess.Popen(
            [*command, "run", str(file), "--out", str(out), "--quiet", *tracked], stdout=subprocess.PIPE
        )
        history = out / "history.jsonl"
        wait_for(lambda: history.exists() and history.read_text().count("\n") >= 3)
        wait_for(lambda: "round 4: algorithm.drift" in said(home, "east"))  # in the middle of a phase
        server.kill()  # and with it its SuperLink
        server.wait()
        wait_for(lambda: not link.listening(home))
        assert not (out / "result.json").exists()
        done = subprocess.run([*command, "resume", str(out)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "AUC, training" in done.stdout and (out / "report.html").exists()
        weights = load_file(out / "model.safetensors")
        z = iterate(whole, settings)
        got = torch.cat([v.flatten() for name, v in sorted(weights.items(), reverse=True)])  # weight, bias
        torch.testing.assert_close(got, z[: len(got)], rtol=0, atol=1e-6)
        records = [json.loads(line) for line in history.read_text().splitlines()]
        assert [r["round"] for r in records] == list(range(7)) and records[-1]["failures"] == 0
        if tracked:  # every round once, although the server was killed
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            points = EventAccumulator(str(out / "tensorboard")).Reload().Scalars("train_auc")
            assert [(p.step, round(p.value, 5)) for p in points] == [
                (r["round"], round(r["train_auc"], 5)) for r in records if "train_auc" in r
            ]
        again = subprocess.run([*command, "resume", str(out)], capture_output=True, text=True)
        assert again.returncode == 2 and "the run has ended" in again.stderr

    with link.superlink(home):
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
