"""What `fedsaddle deploy` writes and what it says of mistakes; nothing here opens a connection that is answered."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import stat
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from cryptography import x509
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fused_config_from_dir
from flwr.supernode import start_client_internal as node

import fedsaddle as fs
from fedsaddle import cli
from fedsaddle.agreement import agree, outline
from fedsaddle.config import load
from fedsaddle.deploy import commands, drive, link, program
from fedsaddle.deploy.app import config_of, server
from fedsaddle.deploy.home import Home, LinkFile, certificates, create, private_key, public_pem
from fedsaddle.deploy.knock import only_one
from fedsaddle.deploy.node import _answer_tasks, _Node
from fedsaddle.deploy.protocol import Request
from fedsaddle.deploy.trial import trial
from fedsaddle.deploy.worker import Worker
from fedsaddle.errors import FedsaddleError
from fedsaddle.sites import Site
from tests.fleet import Fleet, federation, simulated


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    assert ended.value.code == code, err
    if code == 2:
        assert err.startswith("fedsaddle: ") and err.count("\n") == 1
    return out + err


def test_init_writes_what_a_federation_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "f"
    text = said(
        capsys,
        "deploy",
        "init",
        str(folder),
        "b",
        "a",
        "--address",
        "fl.example.org:9092",
        "--listen",
        "0.0.0.0",
        code=0,
    )
    assert "a federation of 2 sites" in text and "delete key.pem here" in text
    home = Home(folder)
    assert list(home.manifest.sites) == ["b", "a"] and home.local == "127.0.0.1:9092"
    authority = x509.load_pem_x509_certificate(home.certificate)
    server = x509.load_pem_x509_certificate((home.server / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.org" in names.get_values_for_type(x509.DNSName)
    for name, public in home.public_keys().items():
        assert public_pem(private_key(home.site(name) / "key.pem")) == public
        assert LinkFile.load(home.site(name) / "link.toml").address == "fl.example.org:9092"
        assert tomllib.loads((home.site(name) / "site.toml").read_text())["name"] == name
        instructions = (home.site(name) / "README.md").read_text()
        assert "fedsaddle deploy check site.toml" in instructions and "fl.example.org:9092" in instructions
    secret = [
        home.server / "ca.key",
        home.server / "server.key",
        home.server / "secret",
        home.site("a") / "key.pem",
    ]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    assert load(folder / "run.toml").tree["data"]["sites"] == str(folder / "federation.toml")
    assert len(build_fab_from_disk(home.app)) > 0
    assert "is not empty" in said(capsys, "deploy", "init", str(folder), "b", "a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "needs at least 2 sites, got 1"),
        (["a", "b", "a"], "two sites are called 'a'"),
        (["a", "../b"], "got '../b'"),
        (["a", "St. Mary's"], "'_' and '-', got \"St. Mary's\"; try 'St.-Marys'\n"),
        (["a", "Hôpital (Nord)"], "; try 'Hopital-Nord'\n"),
        (["a", "東"], "got '東'\n"),
        (["a", "a!"], "got 'a!'\n"),  # the other's
        (["a", "b", "--address", "nowhere"], "address must be host:port"),
        (["a", "b", "--address", "host:99999"], "address must be host:port"),
    ],
)
def test_init_refuses(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in said(capsys, "deploy", "init", str(tmp_path / "f"), *arguments)
    assert not (tmp_path / "f").exists()


def test_mistakes_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = trial(tmp_path / "f", 3, "127.0.0.1:9")
    run = str(home.folder / "run.toml")
    assert "the data are at the sites; try: fedsaddle deploy run" in said(capsys, "run", run)
    assert "data.quorum: must be a number" in said(capsys, "deploy", "run", run, "--set", "data.quorum=all")
    assert "partition: has no use here, each site is a client" in said(
        capsys, "deploy", "run", run, "--set", "partition.name=iid"
    )
    with drive._alone(home):
        assert "another run is going on over its sites" in said(
            capsys, "deploy", "run", run, "--set", "data.timeout=1"
        )
    (home.folder / "federation.toml").unlink()
    assert "is no federation" in said(capsys, "deploy", "run", run)
    assert "has no config.toml, it is not a run" in said(capsys, "deploy", "resume", str(tmp_path))


def test_another_version_of_flower_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    (asked,) = tested["project"]["optional-dependencies"]["flower"]
    assert asked.startswith(f"flwr>={commands.FLOWER},<")
    monkeypatch.setattr("flwr.__version__", "1.99.0")
    home = trial(tmp_path / "f", 2, "127.0.0.1:9")
    run = home.folder / "run.toml"
    assert "needs flwr 1.41, found 1.99.0" in said(capsys, "deploy", "run", str(run))
    (tmp_path / "config.toml").write_text(run.read_text())
    assert "needs flwr 1.41, found 1.99.0" in said(capsys, "resume", str(tmp_path))


class Looked(Exception):
    pass


@pytest.mark.parametrize("interval", [0.1, program.STOCK_INTERVAL])
def test_the_interval_cuts_the_pauses_of_flowers_supernode(
    interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the loop itself, as Flower has it, on a connection that has one message and whose task is never answered."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(node, "time", time)
    monkeypatch.setattr(node, "pull_objects", node.pull_objects)
    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", lambda: None)
    monkeypatch.setattr(program.os, "_exit", lambda code: None)
    program._supernode(interval)
    pulled = iter([None, None, 7])
    monkeypatch.setattr(node, "_pull_and_store_message", lambda **_: next(pulled))
    monkeypatch.setattr(node, "_init_connection", lambda **_: nullcontext([1] * 8))
    monkeypatch.setattr(node, "register_signal_handlers", lambda **_: None)

    class State:
        def state(self) -> State:
            return self

        def set_node_id(self, _: int) -> None: ...

        def get_messages_legacy(self, is_reply: bool) -> list[object]:
            if len(slept) == 3:
                raise Looked
            return []

        store, objectstore_factory = state, property(lambda self: self)

    with pytest.raises(Looked):
        node.start_client_internal(
            state_factory=State(), server_address="", node_config={}, insecure=True, isolation="process"
        )  # type: ignore[arg-type]
    stock = interval == program.STOCK_INTERVAL
    assert slept == ([3, 3, 0.5] if stock else [interval] * 3)
    assert isinstance(node.pull_objects, partial) != stock


def test_a_site_does_not_believe_another_program_at_its_supernodes_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("own", "other"):
        (tmp_path / place).mkdir()
    authority = certificates(tmp_path / "own", {"127.0.0.1"})
    certificates(tmp_path / "other", {"127.0.0.1"})
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    def reached(certificate: str) -> str:
        with HTTPServer(("127.0.0.1", 0), Handler) as other, ThreadPoolExecutor() as pool:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(
                tmp_path / certificate / "server.crt", tmp_path / certificate / "server.key"
            )
            other.socket = context.wrap_socket(other.socket, server_side=True)
            pool.submit(other.handle_request)
            with program.start(["-c", "input()"], tmp_path / "log") as process:
                supernode = _Node(process, f"127.0.0.1:{other.server_port}", authority, b"x" * 32)
                monkeypatch.setattr(process, "poll", lambda: None)
                with pytest.raises(FedsaddleError, match="gives no tasks") as failure:
                    _answer_tasks(
                        Worker(Fleet(federation(), tmp_path).sites[0]), supernode, threading.Event()
                    )
        return str(failure.value)

    monkeypatch.setattr("fedsaddle.deploy.node._SILENT", 0.0)
    assert "CERTIFICATE_VERIFY_FAILED" in reached("other") and not asked
    assert "404" in reached("own") and asked


def test_a_site_knows_by_which_number_it_was_known_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LinkFile("h:1", key=str(tmp_path / "key.pem"))
    with only_one(file) as last:
        assert last.node is None
        last.keep(12345)
        assert last.node == 12345
        last.keep(678)
        with pytest.raises(FedsaddleError, match="runs already, in another process"), only_one(file):
            pass
    with only_one(file) as last:
        assert last.node == 678
        with open("/dev/full", "wb", buffering=0) as full:
            monkeypatch.setattr(last, "_file", full)
            last.keep(9)  # it goes on
        assert last.node == 9


def test_check_says_what_is_wrong_with_data_and_connection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    home = trial(tmp_path / "f", 2, f"127.0.0.1:{port}")
    file = home.site("site1") / "site.toml"
    text = said(capsys, "deploy", "check", str(file), code=2)
    assert "no SuperLink is up there" in text and "data: in order" in text  # on stderr, one line
    frame = pd.read_csv(home.site("site1") / "data.csv")
    frame.assign(country="EU").to_csv(home.site("site1") / "data.csv", index=False)
    with pytest.raises(SystemExit):
        cli.main(["deploy", "check", str(file)])
    out = capsys.readouterr().out  # a doubt, and below it what would leave nevertheless
    assert out.index("'country' is 'EU' in all rows") < out.index("this is what would leave the site")
    assert "column 'country': categories 'EU'\n" in out and "column 'mean area': mean " in out
    frame.assign(seen=[f"2024-01-{1 + i % 3:02}" for i in range(len(frame))]).to_csv(
        home.site("site1") / "data.csv", index=False
    )
    reply = Worker(Site.load(file)).answer(Request({"action": "hello"}))  # what a server gets
    assert reply.head["status"] == "refused" and reply.body == b"" and "has dates" in reply.head["reason"]
    frame.rename(columns={"label": "lable"}).to_csv(home.site("site1") / "data.csv", index=False)
    with pytest.raises(SystemExit):
        cli.main(["deploy", "check", str(file)])
    assert "lable" in capsys.readouterr().out
    (home.site("site1") / "link.toml").write_text('adress = "x:1"\n')
    assert "unknown key" in said(capsys, "deploy", "check", str(home.site("site1") / "site.toml"))
    (home.site("site2") / "link.toml").unlink()
    with pytest.raises(SystemExit):
        cli.main(["deploy", "check", str(home.site("site2") / "site.toml")])
    assert "the federation's operator sends it" in capsys.readouterr().err


def test_the_server_knows_sizes_and_classes_and_no_features(tmp_path: Path) -> None:
    home = trial(tmp_path / "f", 3, "127.0.0.1:9")
    sites = [Site.load(home.site(name) / "site.toml") for name in home.manifest.sites]
    summaries = [site.summary() for site in sites]
    constants = agree(summaries)
    known = outline(home.manifest.sites, summaries, constants)
    own = [site.federation(constants) for site in sites]
    assert known.names == tuple(home.manifest.sites) and known.sizes.tolist() == [f.n_samples for f in own]
    assert np.array_equal(known.class_counts(), np.concatenate([f.class_counts() for f in own]))
    assert known.data["x"].shape[1:] == own[0].data["x"].shape[1:] and known.classes == own[0].classes
    assert (
        not known.data["x"].any()
        and known.data["x"].untyped_storage().nbytes() == 4 * known.data["x"].shape[1]
    )
    pooled = torch.cat([f.data["x"] for f in own]).double()
    assert pooled.mean(0).abs().max() < 1e-5


def test_a_sites_noise_is_its_own_and_the_same_again(tmp_path: Path) -> None:
    home = trial(tmp_path / "f", 2, "127.0.0.1:9")
    first, second = (home.site(name) / "site.toml" for name in ("site1", "site2"))
    asked = [b"a", b"b", b""]
    own = [Site.load(first).noise_key(which) for which in asked]
    assert own == [Site.load(first).noise_key(which) for which in asked]
    assert len({*own, *(Site.load(second).noise_key(which) for which in asked)}) == 6


def test_a_digest_sees_that_rows_have_changed_and_is_the_sites_own(tmp_path: Path) -> None:
    home = trial(tmp_path / "f", 2, "127.0.0.1:9")
    file, other = (home.site(name) / "data.csv" for name in ("site1", "site2"))
    toml = home.site("site1") / "site.toml"
    before, frame = Site.load(toml).digest, pd.read_csv(file)
    assert Site.load(toml).digest == before
    other.write_bytes(file.read_bytes())
    assert Site.load(home.site("site2") / "site.toml").digest != before  # the same rows, another secret
    changes = {"number": frame.assign(**{"mean area": frame["mean area"] + np.eye(1, len(frame))[0]})}
    changes |= {
        "order": frame[::-1],
        "label": frame.assign(label=np.roll(frame["label"], 1)),
        "row": frame[1:],
    }
    for changed in changes.values():
        changed.to_csv(file, index=False)
        assert Site.load(toml).digest != before


@pytest.mark.parametrize("n", [1, 51])
def test_a_trial_has_some_sites(n: int, tmp_path: Path) -> None:
    with pytest.raises(FedsaddleError, match="N must be between 2 and 50"):
        trial(tmp_path / "f", n, "127.0.0.1:9")


def test_create_refuses_a_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(FedsaddleError, match="is not empty"):
        create(tmp_path, ["a", "b"], "127.0.0.1:9")


@pytest.mark.parametrize("app", ["flower_codasca", "flower_afl"])
def test_an_example_app_trains_over_the_nodes_that_are_there(app: str, tmp_path: Path) -> None:
    """Its ServerApp on a Grid whose nodes answer as the ClientApp does; node ids and keys are in no order."""
    folder = Path(__file__).parents[1] / "examples" / app
    home = trial(tmp_path / "f", 3, "127.0.0.1:9")
    fleet = Fleet(federation(), tmp_path)
    fleet.sites = [Site.load(home.site(name) / "site.toml") for name in ("site2", "site3", "site1")]  # type: ignore[misc]
    fleet.workers = [Worker(site) for site in fleet.sites]
    fleet.online = dict.fromkeys(range(3), 0)
    fleet.stranger = False
    settings = get_fused_config_from_dir(
        folder, {"sites": 3, "out": str(tmp_path / "out"), "train.rounds": 3}
    )
    server(grid=fleet, context=Context(1, 0, {}, RecordDict(), settings))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["client_names"] == ["site1", "site2", "site3"] and result["metrics"]["round"] == 3
    assert result["metrics"]["failures"] == 0 and result["clients_evaluated_on"] == "test"
    own = [Site.load(home.site(name) / "site.toml") for name in home.manifest.sites]
    constants = agree([site.summary() for site in own])
    parts = [site.federation(constants) for site in own]
    whole = fs.Federation(
        {k: torch.cat([p.data[k] for p in parts]) for k in ("x", "y")},
        torch.tensor([0, *(p.n_samples for p in parts)]).cumsum(0),
        tuple(home.manifest.sites),
        parts[0].classes,
    )
    z = simulated(whole, {k: v for k, v in config_of(settings).tree.items() if k != "data"}).z
    weights = load_file(tmp_path / "out" / "model.safetensors")
    got = torch.cat([v.flatten() for _, v in sorted(weights.items(), reverse=True)])
    torch.testing.assert_close(got, z[: len(got)], rtol=0, atol=1e-6)


def test_local_sites_look_for_work_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a federation that deploy local has not made, whose link.toml stays as it is."""
    home = create(tmp_path / "federation", ["a", "b"], "127.0.0.1:9092")
    pd.DataFrame({"age": range(20), "label": [0, 1] * 10}).to_csv(home.site("a") / "data.csv", index=False)
    started: list[list[str]] = []
    monkeypatch.setattr(link, "superlink", lambda home: nullcontext())
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(commands, "start", lambda command, log: started.append(command) or Stopped())
    monkeypatch.setattr(commands, "stop", lambda *_, **options: None)
    with pytest.raises(FedsaddleError, match="site a has ended"):
        commands.local(2, home.folder)
    monkeypatch.setattr("fedsaddle.deploy.node.serve", lambda worker, link, stop: links.append(link))
    monkeypatch.setattr(commands, "end_with", lambda parent: None)
    links: list[LinkFile] = []
    with pytest.raises(SystemExit):
        cli.main(started[0][2:])
    with pytest.raises(SystemExit):
        cli.main([*started[0][2:5], "--interval", "9"])
    assert [each.interval for each in links] == [program.LOCAL_INTERVAL, program.STOCK_INTERVAL]


def test_a_new_federation_does_not_evaluate_every_round(tmp_path: Path) -> None:
    home = create(tmp_path / "federation", ["a", "b"], "127.0.0.1:9092")
    train = load(home.folder / "run.toml").tree["train"]
    assert (train["rounds"], train["eval_every"]) == (50, 5)


class Stopped:
    returncode = 0

    def poll(self) -> int:
        return 0


@pytest.mark.parametrize("code", [0, -15, 1])
def test_local_names_the_site_that_has_ended(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        returncode = code

        def poll(self) -> int:
            return code

    home = create(tmp_path / "federation", ["a", "b"], "127.0.0.1:9092")
    monkeypatch.setattr(link, "superlink", lambda home: nullcontext())
    monkeypatch.setattr(commands, "local_sites", lambda *_: nullcontext({"b": Ended()}))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(FedsaddleError, match=r"site b has ended; see .*site\.log"):
        commands.local(2, home.folder)
