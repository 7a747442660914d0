"""The flower engine with its sites in this process: the simulation's iterates, and every way in which a site can fail."""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

pytest.importorskip("flwr")

from fedsaddle.algorithms import codasca
from fedsaddle.deploy.drive import missing
from fedsaddle.deploy.protocol import Agreed, Reply, Request
from fedsaddle.deploy.worker import Session
from fedsaddle.errors import FedsaddleError
from fedsaddle.remarks import remarks
from fedsaddle.wire import pack, unpack
from tests.fleet import CASES, MORE, Fleet, deployed, federation, simulated, tree


@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_a_deployment_computes_what_the_simulation_computes(case: str, tmp_path: Path) -> None:
    whole, config = federation(), tree(case)
    fleet = Fleet(whole, tmp_path)
    run, reference = deployed(fleet, config), simulated(whole, config)
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)
    assert run.z.ne(simulated(whole, tree(case, rounds=1)).z).any()
    for counted in ("phases", "bytes_down", "bytes_up", "failures", "participants"):
        assert run.metrics[counted] == reference.metrics[counted]


def test_a_sites_noise_cannot_be_computed_from_the_runs_seed(tmp_path: Path) -> None:
    whole, config = federation(), tree("cycp_pairwise")
    config["algorithm"]["noise"] = 0.5
    fleet, same, other = (Fleet(whole, tmp_path / name) for name in "abc")
    for site in other.sites:
        site.secret = 8
    z, again, changed = (deployed(one, config).z for one in (fleet, same, other))
    assert z.equal(again) and not z.equal(changed)
    assert not torch.allclose(z, simulated(whole, config).z, atol=1e-3)


def test_metrics_come_from_the_sites(tmp_path: Path) -> None:
    whole, config = federation((40, 60, 30, 50)).holdout(0.3), tree("codasca")
    run, reference = deployed(Fleet(whole, tmp_path), config), simulated(whole, config)
    got, want = run.metrics, reference.metrics
    assert got["auc"] == pytest.approx(want["auc"], abs=got["auc_bound"] + 1e-6) and got["auc_bound"] <= 1e-3
    for name in ("auc_clients", "auc_worst20", "auc_best20", "auc_std", "single_class_clients"):
        assert got[name] == pytest.approx(want[name], abs=1e-6)
    result, expected = run.finish().summary(), reference.finish().summary()
    assert result["auc_interval"] == pytest.approx(expected["auc_interval"], abs=3e-3)
    assert result["test_class_counts"] == expected["test_class_counts"]  # by which remarks count
    few = "4 of 4 clients have fewer than 10 test samples of one class"
    assert any(text.startswith(few) for text in remarks(result))
    config["problem"] = config["problem"] | {"positive": 0}
    other = deployed(Fleet(whole, tmp_path), config, "zero").finish().summary()
    assert other["test_class_counts"] == expected["test_class_counts"]
    config = tree("codasca")
    untested = deployed(Fleet(federation(), tmp_path), config, "none").finish().summary()
    assert untested["test_class_counts"] is None and untested["auc_interval"] is None
    config = tree("scaff_pd")
    got, want = deployed(Fleet(whole, tmp_path), config, "other").metrics, simulated(whole, config).metrics
    for name in ("loss", "accuracy", "train_accuracy", "accuracy_clients", "accuracy_worst20"):
        assert got[name] == pytest.approx(want[name], abs=1e-6)
    config = tree("scaffold") | {"problem": config["problem"]}  # by samples
    by_samples = deployed(Fleet(whole, tmp_path), config, "third").metrics["loss"]
    assert by_samples == pytest.approx(simulated(whole, config).metrics["loss"], abs=1e-6)
    config["algorithm"] |= {"weights": "clients"}
    assert by_samples != pytest.approx(
        deployed(Fleet(whole, tmp_path), config, "fourth").metrics["loss"], abs=1e-4
    )


def test_the_loss_of_a_deployment_weighs_sites_by_who_comes(tmp_path: Path) -> None:
    """With groups of 2 and 1 sites, the third counts half; with all of them a third."""
    whole = federation((40, 60, 30)).holdout(0.3)
    config = tree("scaffold") | {"problem": tree("scaff_pd")["problem"]}
    config["algorithm"] = {"name": "fedavg", "lr": 0.05, "local_steps": 3, "weights": "clients"}
    runs = []
    for participation in ({"name": "cyclic", "groups": 2}, {"name": "full"}):
        config["participation"] = participation
        got = deployed(Fleet(whole, tmp_path), config, participation["name"])
        want = simulated(whole, config)
        torch.testing.assert_close(got.z, want.z, rtol=0, atol=1e-6)
        assert got.metrics["loss"] == pytest.approx(want.metrics["loss"], abs=1e-6)
        runs.append(want)
    cyclic, full = runs
    assert cyclic.clients.shares() is not None and full.clients.shares() is None


def test_a_site_with_one_class_takes_part_in_the_auc_of_pairs(tmp_path: Path) -> None:
    whole = federation((40, 60, 30, 50))
    whole.data["y"][:40] = 1
    config = tree("cycp_pairwise")
    got, want = deployed(Fleet(whole, tmp_path), config).metrics, simulated(whole, config).metrics
    assert got["train_auc"] == pytest.approx(want["train_auc"], abs=got["train_auc_bound"] + 1e-6)
    assert "left_out" not in got and want["pair_loss"] > 0 and "pair_loss" not in got


def test_a_part_sent_once_is_sent_once(tmp_path: Path) -> None:
    fleet = Fleet(federation(), tmp_path)
    deployed(fleet, tree("codasca")).finish()  # stages of 2 rounds, in 3 rounds: two prox centres
    sent = [
        b"once drift_corrected_steps 0" in r.shared
        for i, r in fleet.requests
        if i == 0 and _is_work(r, "drift")
    ]
    assert sent == [True, False, True]
    sessions = [bool(r.session) for i, r in fleet.requests if i == 0]
    assert sessions[0] and not any(sessions[1:])


# ---- faults ------------------------------------------------------------------------------------------------


def _is_work(request: Request, name: str, round: int | None = None) -> bool:
    return name in request.head.get("work", "") and round in (None, request.head["round"])


def without(site: int, rounds: int = 3, missing: int = 1) -> dict[str, Any]:
    """A participation in which a site is not there in one round."""
    return {
        "name": "trace",
        "rounds": [[i for i in range(4) if i != site or r != missing] for r in range(rounds)],
    }


BAD: dict[str, tuple[Any, str]] = {  # what arrives in place of a reply, and what is said of it
    "nothing": (lambda reply: [], "no answer in 0.3 seconds"),
    "NaN": (lambda reply: [_changed(reply, lambda z: z * float("nan"))], "z has 9 of 9 numbers that are not finite"),
    "infinity": (lambda reply: [_changed(reply, lambda z: z + float("inf"))], "not finite"),
    "wrong shape": (lambda reply: [_changed(reply, lambda z: z[:, :-1])], "gives .* at the other sites, got"),
    "two rows": (lambda reply: [_changed(reply, lambda z: z.repeat(2, 1))], r"must be a row .* \[2, 9\]"),
    "integers": (lambda reply: [_changed(reply, lambda z: z.long())], "must be a row of real numbers"),
    "an old round": (lambda reply: [Reply(reply.head | {"round": 0}, reply.body)], "it is for round 0, phase 0"),
    "another phase": (lambda reply: [Reply(reply.head | {"phase": 7}, reply.body)], "it is for round 1, phase 7"),
    "another run": (lambda reply: [Reply(reply.head | {"run": "x"}, reply.body)], "it is for run 'x'"),
    "no bytes": (lambda reply: [Reply(reply.head)], "not a message"),
    "endless bytes": (lambda reply: [Reply(reply.head, bytes(1 << 27))], "it has 134,217,728 bytes, at most"),
    "an endless head": (lambda reply: [Reply(reply.head | {"x": "y" * (1 << 21)})], "a head has at most"),
    "noise": (lambda reply: [Reply(reply.head, b"\x10" * 100)], "not a message"),
    "another class": (
        lambda reply: [Reply(reply.head, reply.body.replace(b"codasca:Up", b"codasca:Us"))],
        "none of the classes that are accepted",
    ),
    "refusal": (lambda reply: [Reply(reply.head | {"status": "refused", "reason": "disk full"})], "disk full"),
    "an odd precision": (
        lambda reply: [_changed(reply, lambda z: z.to(torch.float8_e4m3fn))],
        "its answer is refused",
    ),
    "endless bits": (
        lambda reply: [Reply(reply.head, _with_bits(reply.body, "1e999"))],
        "bits must be above 0 and at most 64",
    ),
}  # fmt: skip


def _changed(reply: Reply, change: Any) -> Reply:
    up = unpack(reply.body, {"fedsaddle.algorithms.codasca:Up": codasca.Up})
    return Reply(reply.head, pack(up._replace(z=change(up.z))))


def _with_bits(body: bytes, bits: str) -> bytes:
    structure = json.dumps({"each": {"tensor": "0"}, "bits": 32}).replace("32", bits)
    return save({"0": torch.ones(1, 1)}, {"tree": structure})


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_is_left_out_and_recorded(bad: str, tmp_path: Path) -> None:
    arrives, reason = BAD[bad]
    whole = federation()

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        return arrives(reply) if i == 2 and _is_work(request, "drift", 1) else [reply]

    run = deployed(Fleet(whole, tmp_path, fault), tree("codasca"), timeout=0.3)
    reference = simulated(whole, tree("codasca") | {"participation": without(2)})
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)
    (left,) = run.records[2]["left_out"]
    assert left["site"] == "site2" and left["phase"] == "drift_corrected_steps"
    assert re.search(reason, left["reason"]), left["reason"]
    assert (
        "left_out" not in run.records[1] and "left_out" not in run.records[3] and run.metrics["failures"] == 1
    )


@pytest.mark.parametrize("bad", ["three sizes", "one size", "an odd precision", "endless sizes"])
def test_a_bad_measurement_is_left_out_and_recorded(bad: str, tmp_path: Path) -> None:
    def spoiled(part: Any) -> Any:
        if part is None:
            return None
        own = dict(part)
        sizes = {"three sizes": own["size"].repeat(2)[:3], "one size": own["size"][:1]}
        own["size"] = sizes.get(bad, own["size"])
        if bad == "an odd precision":
            own["positive"] = own["positive"].to(torch.float8_e5m2)
        return tuple(own.items())

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        if i != 1 or request.head["action"] != "evaluate" or request.head["phase"] != 0:
            return [reply]
        head = reply.head | ({"sizes": {"train": 10**400}} if bad == "endless sizes" else {})
        return [Reply(head, pack(tuple(spoiled(part) for part in unpack(reply.body, {}))))]

    run = deployed(Fleet(federation(), tmp_path, fault), tree("codasca")).finish()
    left = run.records[-1]["left_out"]
    assert [(one["site"], one["phase"]) for one in left] == [("site1", "evaluate")]
    assert left[0]["reason"].startswith("its answer is refused: no measurement")


def test_answering_twice_counts_once(tmp_path: Path) -> None:
    whole = federation()
    run = deployed(Fleet(whole, tmp_path, lambda i, request, reply: [reply, reply]), tree("codasca"))
    torch.testing.assert_close(run.z, simulated(whole, tree("codasca")).z, rtol=0, atol=1e-6)
    assert run.metrics["failures"] == 0


def test_who_is_asked_twice_and_answers_both_times_counts_once(tmp_path: Path) -> None:
    whole, late = federation(), []

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        if i != 2 or not _is_work(request, "drift", 1):
            return [reply]
        late.append(reply)
        if len(late) == 1:
            fleet.online[2] += 1  # it has connected again, so it is asked again
            return []
        fleet.deliver(2, late[0])
        return [reply]

    fleet = Fleet(whole, tmp_path, fault)
    run = deployed(fleet, tree("codasca"))
    torch.testing.assert_close(run.z, simulated(whole, tree("codasca")).z, rtol=0, atol=1e-6)
    assert len(late) == 2 and run.metrics["failures"] == 0


def test_who_misses_a_phase_is_not_asked_again_in_the_round(tmp_path: Path) -> None:
    whole = federation()

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        return [] if i == 1 and _is_work(request, "losses_and_gradients", 1) else [reply]

    fleet = Fleet(whole, tmp_path, fault)
    run = deployed(fleet, tree("scaff_pd"), timeout=0.3)
    reference = simulated(whole, tree("scaff_pd") | {"participation": without(1)})
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)
    assert [left["reason"] for left in run.records[2]["left_out"]] == [
        "no answer in 0.3 seconds",
        "missed an earlier phase of the round",
    ]
    assert not any(i == 1 and _is_work(r, "corrected_steps", 1) for i, r in fleet.requests)


@pytest.mark.parametrize("case", ["codasca", "scaff_pd", "ffmdr"])
def test_a_round_without_quorum_is_undone(case: str, tmp_path: Path) -> None:
    """What its first phase wrote to the sites' memory is undone too."""
    whole = federation()
    work = {"codasca": "drift", "scaff_pd": "corrected_steps", "ffmdr": "algorithm."}[case]

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        return [] if i == 1 and _is_work(request, work, 1) else [reply]

    fleet = Fleet(whole, tmp_path, fault)
    run = deployed(fleet, tree(case), timeout=0.3, quorum=1.0)
    nobody = {"name": "trace", "rounds": [[0, 1, 2, 3], [], [0, 1, 2, 3]]}
    reference = simulated(whole, tree(case) | {"participation": nobody})
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)
    assert run.records[2]["left_out"][0]["site"] == "site1"
    after = [r.head for _, r in fleet.requests if _is_work(r, "algorithm.", 2) and r.head["phase"] == 0]
    last = [0, 1 if case == "scaff_pd" else 0]  # of the round before, whatever the undone round had written
    assert len(after) == 4 and all(head["base"] == head["committed"] == last for head in after)


@pytest.mark.parametrize("case", ["codasca", "scaff_pd", "ffmdr", "cycp_pairwise", "fedxl2"])
def test_a_site_restarted_in_the_middle_of_its_work_is_asked_again(case: str, tmp_path: Path) -> None:
    whole, lost = federation(), []

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        last = request.head["action"] == "work" and request.head["round"] >= 1
        if i == 2 and last and len(lost) < 3 and request.head not in lost:
            lost.append(request.head)
            fleet.restart(2)  # what it held in memory is gone, what it had written is there
            return []
        return [reply]

    fleet = Fleet(whole, tmp_path, fault)
    run = deployed(fleet, tree(case))
    torch.testing.assert_close(run.z, simulated(whole, tree(case)).z, rtol=0, atol=1e-6)
    assert len(lost) >= 2 and run.metrics["failures"] == 0


def test_a_site_without_its_memory_says_so_and_is_left_out(tmp_path: Path) -> None:
    fleet = Fleet(federation(), tmp_path)
    run = deployed(fleet, tree("codasca", rounds=2))
    records = iter(run)
    next(records), next(records)
    for file in (tmp_path / "site1" / "run1").iterdir():
        file.unlink()
    fleet.restart(1)
    (left,) = next(records)["left_out"]
    assert left["site"] == "site1" and "has lost its memory of round 1" in left["reason"]


def test_a_site_whose_data_have_changed_since_the_set_up_is_left_out(tmp_path: Path) -> None:
    fleet = Fleet(federation(), tmp_path)
    records = iter(deployed(fleet, tree("codasca", rounds=2)))
    next(records), next(records)
    fleet.sites[1].digest = "another"
    (left,) = next(records)["left_out"][:1]
    assert left["site"] == "site1" and "site 'site1': its data have changed since the run" in left["reason"]


def test_two_sites_that_disagree_on_a_shape_are_both_named(tmp_path: Path) -> None:
    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        return [_changed(reply, lambda z: z[:, :-1])] if i == 1 and _is_work(request, "drift", 1) else [reply]

    whole = federation((9, 20))
    run = deployed(Fleet(whole, tmp_path, fault), tree("codasca")).finish()
    left = run.records[2]["left_out"]
    assert [one["site"] for one in left] == ["site0", "site1"]
    assert all("(1, 9), float32" in one["reason"] and "(1, 8), float32" in one["reason"] for one in left)
    assert all("at site0" in one["reason"] and "at site1" in one["reason"] for one in left)
    nobody = {"name": "trace", "rounds": [[0, 1], [], [0, 1]]}
    reference = simulated(whole, tree("codasca") | {"participation": nobody})
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)


def test_a_site_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    whole = federation()
    fleet = Fleet(whole, tmp_path)
    run = deployed(fleet, tree("codasca"), timeout=60.0)
    records, started = iter(run), time.monotonic()
    next(records), next(records)
    times = fleet.online.pop(2)
    assert {left["reason"] for left in next(records)["left_out"]} == {"not connected"}
    fleet.online[2] = times + 1
    assert "left_out" not in next(records) and time.monotonic() - started < 30
    reference = simulated(whole, tree("codasca") | {"participation": without(2)})
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)
    assert "left_out" not in run.metrics and "left_out" not in run.history


def test_the_same_run_again_has_its_own_memory(tmp_path: Path) -> None:
    fleet = Fleet(federation(), tmp_path)
    deployed(fleet, tree("codasca"), "first").finish()
    deployed(fleet, tree("codasca"), "second").finish()
    assert {path.name for path in (tmp_path / "site0").iterdir()} == {"first", "second"}


def test_work_that_fails_at_every_site_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    config = tree("ffmdr")
    config["algorithm"] |= {"solver": "exact"}
    config["model"] = {"name": "mlp", "hidden": [3]}
    with pytest.raises(FedsaddleError, match="no site could do it: site0: FFMDR: solver 'exact' needs"):
        deployed(Fleet(federation(), tmp_path), config).finish()


def test_set_up_needs_every_site(tmp_path: Path) -> None:
    fleet = Fleet(federation(), tmp_path)
    del fleet.online[3]
    with pytest.raises(FedsaddleError, match=r"set-up needs an answer of every site .*site3: not connected"):
        deployed(fleet, tree("codasca"), timeout=0.3).finish()


@pytest.mark.parametrize(
    "name", ["algorithm.init", "algorithm._number", "problem.losses", "problem.__class__", "os.system"]
)
def test_only_client_work_can_be_called(name: str, tmp_path: Path) -> None:
    fleet = Fleet(federation(), tmp_path)
    deployed(fleet, tree("codasca", rounds=1)).finish()
    request = next(r for i, r in fleet.requests if i == 0 and _is_work(r, "drift"))
    reply = fleet.workers[0].answer(request._replace(head=request.head | {"work": name}))
    assert reply.head["status"] == "refused" and "is no client work" in reply.head["reason"]


@pytest.mark.parametrize("section", ["model", "algorithm"])
def test_code_of_ones_own_is_imported_only_where_a_site_allows_it(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_code.py").write_text(
        "import torch\n"
        "from fedsaddle.algorithms.codasca import CODASCA\n"
        "class Own(CODASCA):\n    pass\n"
        "def net(sample_shape):\n    return torch.nn.Linear(5, 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    spec, config = f"own_code:{'net' if section == 'model' else 'Own'}", tree("codasca", rounds=2)
    own = {k: v for k, v in config[section].items() if section == "algorithm" and k != "name"}
    config[section] = {"module": spec} | own
    fleet = Fleet(federation(), tmp_path)
    with pytest.raises(FedsaddleError, match=f"{section}.module: '{spec}' is not allowed at this site"):
        deployed(fleet, config, timeout=0.3).finish()
    fleet = Fleet(federation(), tmp_path / "allowed")
    for site in fleet.sites:
        site.modules = (spec,)
    run = deployed(fleet, config).finish()
    torch.testing.assert_close(run.z, simulated(fleet.sites[0].whole, config).z, rtol=0, atol=1e-6)


def test_a_mistake_in_client_work_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(federation(), tmp_path)
    deployed(fleet, tree("codasca", rounds=1)).finish()
    request = next(r for i, r in fleet.requests if i == 0 and _is_work(r, "drift"))
    work = codasca.CODASCA.drift_corrected_steps

    def reason(spoilt: Any) -> str:
        monkeypatch.setattr(
            codasca.CODASCA, "drift_corrected_steps", lambda self, cohort, s: spoilt(self, cohort, s)
        )
        return str(fleet.workers[0].answer(request).head["reason"])

    assert "local work returns (reply, memory)" in reason(lambda *a: work(*a)[0])
    assert "the new memory must be [1, 9], as memory() says, got [1, 2]" in reason(
        lambda *a: (work(*a)[0], work(*a)[1][..., :2])
    )
    monkeypatch.undo()
    without = request._replace(head=request.head | {"remembers": False})
    assert "cohort.memory is None: the algorithm" in str(fleet.workers[0].answer(without).head["reason"])


# ---- the server ends and goes on ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["codasca", "fedsgda", "scaff_pd", "ffmdr", "cycp_pairwise", "fedxl2"])
def test_a_server_killed_in_the_middle_of_a_phase_goes_on(case: str, tmp_path: Path) -> None:
    whole, config, out = federation(), tree(case, rounds=6), tmp_path / "out"

    class Killed(BaseException):
        pass

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        if i == 3 and alive and request.head["action"] == "work" and request.head["round"] == 3:
            raise Killed  # the sites before it have worked and written
        return [reply]

    alive = True
    fleet = Fleet(whole, tmp_path, fault)
    with pytest.raises(Killed):
        deployed(fleet, config, out=out).finish()
    alive = False
    run = deployed(fleet, config, out=out, resume=True)
    reference = simulated(whole, config)
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)
    assert [r["round"] for r in run.records] == list(range(7))
    for counted in ("phases", "bytes_up", "failures"):
        assert run.metrics[counted] == reference.metrics[counted]
    assert [json.loads(line)["round"] for line in (out / "history.jsonl").read_text().splitlines()] == list(
        range(7)
    )


def test_resume_refuses_what_it_cannot_go_on_with(tmp_path: Path) -> None:
    whole, config = federation(), tree("codasca")
    with pytest.raises(FedsaddleError, match="holds no run that could go on"):
        deployed(Fleet(whole, tmp_path), config, out=tmp_path / "new", resume=True).finish()
    deployed(Fleet(whole, tmp_path), config, out=tmp_path / "out").finish()
    with pytest.raises(FedsaddleError, match=r"described differently .* train\.engine \("):
        simulated(whole, config, out=tmp_path / "out", resume=True).finish()
    with pytest.raises(FedsaddleError, match="is none of this run"):
        deployed(Fleet(whole, tmp_path), tree("ffmdr"), out=tmp_path / "out", resume=True).finish()


def test_memory_keeps_what_may_be_needed_and_no_more(tmp_path: Path) -> None:
    deployed(Fleet(federation(), tmp_path), tree("scaff_pd", rounds=5)).finish()
    names = sorted(path.name for path in (tmp_path / "site0" / "run1").iterdir())
    assert names == [f"round-{r}-phase-{p}.safetensors" for r, p in ((3, 1), (4, 0), (4, 1))]


@pytest.mark.parametrize("module", ["os:system", "subprocess:Popen", "timeit:timeit"])
def test_a_site_imports_nothing_that_its_operator_has_not_named(module: str, tmp_path: Path) -> None:
    config = tree("codasca")
    marker = tmp_path / "executed"
    sent = config | {"model": {"module": module, "command": f"touch {marker}"}}
    agreed = Agreed("run1", json.dumps(sent), (), 5, "without_replacement", torch.zeros(1, 3))
    part = Fleet(federation(), tmp_path).workers[0].site
    with pytest.raises(FedsaddleError, match=r"model\.module: .* is not allowed at this site"):
        Session(agreed, part)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["guard", "checkpoint_every"])
def test_what_a_deployment_cannot_keep_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedsaddleError, match=f"{name} must be . in a deployment"):
        deployed(Fleet(federation(), tmp_path), tree("codasca", **{name: 3}))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"device": "cuda"}, 'so device = "cuda" has no effect in a deployment: leave it out'),
        ({"precision": "bf16"}, 'so precision = "bf16" has no'),
        ({"compile": True}, "so compile = true has no"),
        ({"chunk": 2}, "so chunk = 2 has no"),
        ({"offload": True}, "so offload = true has no"),
        ({"compile": True, "chunk": 2}, "so compile = true, chunk = 2 have no effect in a deployment: leave them out"),
        ({"dtype": "float64", "device": "cpu", "chunk": None}, None),
    ],
)  # fmt: skip
def test_settings_of_the_machine_that_have_no_effect_at_sites_are_told_of(
    given: dict[str, Any], says: str | None, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        deployed(Fleet(federation(), tmp_path), tree("codasca", **given))
        simulated(federation(), tree("codasca", **given | {"device": "cpu", "offload": False}))
    said = [str(w.message) for w in caught if "sites compute on the CPU" in str(w.message)]
    assert len(said) == (says is not None) and all(says in text for text in said if says)


def test_another_version_at_the_server_is_refused(tmp_path: Path) -> None:
    agreed = Agreed("run1", "{}", (), 5, "without_replacement", torch.zeros(1, 3), "0.0.0-other")
    with pytest.raises(FedsaddleError, match=r"the server 0\.0\.0-other; install the same"):
        Session(agreed, Fleet(federation(), tmp_path).workers[0].site)


def test_sites_need_no_file_and_no_device_of_the_server(tmp_path: Path) -> None:
    whole, trace = federation(), tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"round": {r}, "clients": [0, 2]}}\n' for r in range(3)))
    config = tree("codasca", device="cuda") | {"participation": {"name": "trace", "rounds": str(trace)}}
    run = deployed(Fleet(whole, tmp_path), config)
    trace.unlink()  # it is nowhere but at the server
    assert [r["clients"] for r in run.records[1:]] == [[0, 2]] * 3 and run.metrics["failures"] == 0


def test_a_site_that_was_restarted_now_and_then_is_not_sent_everything_for_ever(tmp_path: Path) -> None:
    restarted = set()

    def fault(i: int, request: Request, reply: Reply) -> list[Reply]:
        round = request.head["round"]
        if i == 2 and round in (1, 2, 3) and request.head["action"] == "work" and round not in restarted:
            restarted.add(round)
            fleet.restart(2)
        return [reply]

    fleet = Fleet(federation(), tmp_path, fault)
    deployed(fleet, tree("codasca", rounds=7)).finish()
    sent = [r.session for i, r in fleet.requests if i == 2 and r.head["round"] >= 5]
    assert len(restarted) == 3 and sent and not any(sent)


def test_who_is_connected_is_asked_once_a_look() -> None:
    class Counted:
        names, looks = tuple(map(str, range(20))), 0

        def connected(self) -> dict[int, None]:
            self.looks += 1
            return dict.fromkeys(range(20))

    post = Counted()
    assert missing(post, 1.0, progress=False) == [] and post.looks == 1  # type: ignore[arg-type]
