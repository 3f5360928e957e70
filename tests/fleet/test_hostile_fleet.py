"""A device of a fleet that was taken over gains nothing: not the gatherer, not another, not its results."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import pickle
import shutil
import ssl
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.hostile_fleet import CONTENT, FakeDevice, HostileFleet, json_of
from tests.fleet.small_fleets import fleet_folder, statuses, swept
from tests.patience import until

from stepscope import __version__
from stepscope.__main__ import main
from stepscope.experiments.fleet import certificates
from stepscope.experiments.fleet import scheduling as sweep_module
from stepscope.experiments.fleet.certificates import (
    CERTIFICATE,
    GATHERER,
    KEY,
    Identity,
    NotAdmitted,
    device_public_key,
    issue_or_reuse_certificate,
    make_certificates,
    revoke,
    tls_context,
    verify_peer,
    verify_signature,
)
from stepscope.experiments.fleet.devices import query_device_states
from stepscope.experiments.fleet.gatherer import Device, OtherVersion
from stepscope.experiments.fleet.protocol import MOST_BODY_BYTES, FleetUnreachable, open_link
from stepscope.experiments.fleet.scheduling import FleetIncomplete

Orders = dict[str, Any]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[HostileFleet]:
    with HostileFleet(tmp_path / "fleet").listening() as listening:
        yield listening


class Bomb:
    """An object that writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _present(fleet: HostileFleet) -> set[str]:
    return {state.device.name for state in query_device_states(fleet.where)}


def _swept(
    fleet: HostileFleet, path: Path, *started: FakeDevice, **axes: Any
) -> tuple[dict[str, list[str]], list[str]]:
    """The statuses of the runs of each board, and what the user was told."""
    for device in started:
        fleet.start(device.serve(fleet.url))
    until(lambda: _present(fleet) == {device.name for device in started})
    folder = fleet_folder(path, sorted({device.board for device in started}), "ok", **axes)
    said: list[str] = []
    with contextlib.suppress(FleetIncomplete):
        said = swept(folder, fleet.where, wait_s=2.0)
    return statuses(folder), said


@pytest.mark.parametrize("do", ["facts", "clock", "make", "pieces"])
def test_a_pickle_in_the_place_of_an_answer_is_not_loaded(do: str, fleet: HostileFleet, tmp_path: Path) -> None:
    good, bad, written = fleet.device("good"), fleet.device("bad"), tmp_path / "written"
    bomb = pickle.dumps(Bomb(written))
    bad.answers[do] = lambda orders: bomb
    found, _ = _swept(fleet, tmp_path / "s", good, bad)
    assert found["good"] == ["ok"]
    assert found["bad"] in ([], ["lost"])
    assert do in bad.heard
    assert not written.exists()
    pickle.loads(bomb)
    assert written.exists(), "it would have written the file"


def _changed(**changes: object) -> Callable[[FakeDevice, FakeDevice], Callable[[Orders], bytes]]:
    return lambda bad, good: lambda orders: bad.signed({**bad.ended(orders), **changes})


def _tampered(bad: FakeDevice, good: FakeDevice) -> Callable[[Orders], bytes]:
    def answer(orders: Orders) -> bytes:
        content = json.loads(bad.signed(bad.ended(orders)))
        return json_of({**content, "signed": content["signed"].replace('"ok"', '"oom"')})

    return answer


LIES: dict[str, Callable[[FakeDevice, FakeDevice], Callable[[Orders], bytes]]] = {
    "answers for another board": lambda bad, good: lambda orders: bad.signed(bad.ended(orders), good.folder),
    "for another run": _changed(name="another"),
    "a changed text": _tampered,
    "not signed": lambda bad, good: lambda orders: json_of(bad.ended(orders)),
    "a status of its own": _changed(status="\x1b[31mfine"),
    "a size below zero": _changed(files=[{"name": "a", "size_bytes": -1, "sha256": "0" * 64}]),
    "a name outside": _changed(files=[{"name": "../../x", "size_bytes": len(CONTENT), "sha256": "0" * 64}]),
    "a path that no system takes": _changed(files=[{"name": "x/" * 3000 + "x", "size_bytes": 1, "sha256": "0" * 64}]),
    "a run folder outside": _changed(run="../../.."),
    "more than there is room for": _changed(files=[{"name": "a", "size_bytes": 1 << 49, "sha256": "0" * 64}]),
    "no end of lists": lambda bad, good: lambda orders: b"[" * 100_000,
    "larger than any answer": lambda bad, good: lambda orders: bytes(MOST_BODY_BYTES + 1),
    "numbers that are none": _changed(wall_s=float("nan"), slept_s=1e300),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_run_costs_the_liar_alone(lie: str, fleet: HostileFleet, tmp_path: Path) -> None:
    good, bad = fleet.device("good"), fleet.device("bad")
    bad.answers["make"] = LIES[lie](bad, good)
    found, _ = _swept(fleet, tmp_path / "s", good, bad)
    assert found["good"] == ["ok"]
    assert found["bad"] in ([], ["lost"])
    assert {path.name for path in tmp_path.iterdir()} == {"fleet", "s"}


def test_what_is_gathered_has_the_signature_of_its_device(fleet: HostileFleet, tmp_path: Path) -> None:
    found, _ = _swept(fleet, tmp_path / "s", fleet.device("good"))
    assert found == {"good": ["ok"]}
    (path,) = (tmp_path / "s" / "boards" / "good" / "signatures").iterdir()
    kept = json.loads(path.read_text())
    given = (fleet.tls / "ca.pem", kept["certificate"], base64.b64decode(kept["signature"]))
    assert verify_signature(*given, kept["signed"].encode()) == Identity("device", "good", "good")
    with pytest.raises(NotAdmitted, match="does not hold"):
        verify_signature(*given, kept["signed"].replace("ok", "no").encode())
    assert json.loads(kept["signed"])["files"][0]["size_bytes"] == len(CONTENT)


def test_one_table_is_made_on_devices_and_versions_that_agree(fleet: HostileFleet, tmp_path: Path) -> None:
    first, second, third = (fleet.device(name, "nano") for name in ("nano-1", "nano-2", "nano-3"))
    for device, torch, board in (
        (first, "2.5", "B Rev 1.4"),
        (second, "2.13", "B Rev 1.4"),
        (third, "2.5", "B Rev 1.5"),
    ):
        device.facts, device.versions = {"board": board}, {"torch": torch}
    folder = fleet_folder(tmp_path / "s", ["nano"], "ok")
    about = [json.loads(device.honest("facts", {})) for device in (first, second, third)]
    named = [Device(name, "nano", name) for name in ("nano-1", "nano-2", "nano-3")]
    folder.record_board(named[0], about[0])
    with pytest.raises(OtherVersion, match=r"nano-2, of the board nano, has torch 2.13"):
        folder.record_board(named[1], about[1])
    folder.record_board(named[2], about[2])


def test_a_file_that_did_not_arrive_whole_is_fetched_once_more_before_its_run_is_made_anew(
    fleet: HostileFleet, tmp_path: Path
) -> None:
    device = fleet.device("good")
    device.answers["pieces"] = lambda orders: CONTENT if device.heard.count("pieces") > 1 else CONTENT[::-1]
    found, said = _swept(fleet, tmp_path / "s", device)
    assert found == {"good": ["ok"]}
    assert any("another SHA-256" in line for line in said)
    assert device.heard.index("forget") > len(device.heard) - 1 - device.heard[::-1].index("pieces")


def test_a_run_for_which_there_is_no_room_stays_on_its_device(
    fleet: HostileFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = fleet.device("good")
    device.answers["make"] = lambda orders: device.signed(
        {**device.ended(orders), "files": [{"name": "a", "size_bytes": 15_000_000_000, "sha256": "0" * 64}]}
    )
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("stepscope.experiments.fleet.worker.shutil.disk_usage", lambda path: usage(9, 9, 3_000_000_000))
    found, _ = _swept(fleet, tmp_path / "s", device)
    assert (found, device.heard.count("make"), "forget" in device.heard) == ({"good": []}, 1, False)


def test_with_no_time_to_wait_the_devices_that_are_there_make_their_runs(fleet: HostileFleet, tmp_path: Path) -> None:
    device = fleet.device("good")
    fleet.start(device.serve(fleet.url))
    until(lambda: _present(fleet) == {"good"})
    folder = fleet_folder(tmp_path / "s", ["good", "away"], "ok", batches=(1, 2))
    with pytest.raises(FleetIncomplete, match=r"away \(2 runs not made\)"):
        swept(folder, fleet.where, wait_s=0.0)
    assert statuses(folder) == {"good": ["ok", "ok"], "away": []}


async def _sent_as(fleet: HostileFleet, folder: Path, *heads: Orders) -> tuple[Orders, bytes]:
    """Send these as the holder of a folder; what comes back."""
    link, _ = await open_link(fleet.url, folder)
    with contextlib.closing(link):
        for head in heads:
            await link.send(head)
        return await link.receive(5.0)


@pytest.mark.parametrize("do", ["make", "facts", "pieces", "devices"])
def test_a_device_can_neither_order_nor_see_another(do: str, fleet: HostileFleet) -> None:
    good, bad = fleet.device("good"), fleet.device("bad")
    fleet.start(good.serve(fleet.url))
    until(lambda: _present(fleet) == {"good"})
    good.heard.clear()
    with pytest.raises(ConnectionError):
        fleet.do(_sent_as(fleet, bad.folder, {"id": 1, "do": do, "to": "good#1"}))
    assert good.heard == []
    assert _present(fleet) == {"good"}, "and the other devices are served as before"


@pytest.mark.parametrize("head", [{"id": 7, "ok": True}, {"pong": True}, {"id": 1, "x": 1}], ids=str)
def test_a_device_that_answers_what_it_was_not_asked_is_cut_off(head: Orders, fleet: HostileFleet) -> None:
    with pytest.raises(ConnectionError):
        fleet.do(_sent_as(fleet, fleet.device("bad").folder, head))


@pytest.mark.parametrize(
    "content", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, pickle.dumps(Bomb(Path("x")))]
)
def test_bytes_that_are_no_message_end_the_connection(content: bytes, fleet: HostileFleet) -> None:
    async def sent() -> None:
        link, _ = await open_link(fleet.url, bad.folder)
        with contextlib.closing(link):
            link._writer.write(content)
            await link.receive(5.0)

    bad = fleet.device("bad")
    with pytest.raises(ConnectionError):
        fleet.do(sent())
    assert not Path("x").exists()


def test_no_device_and_no_gatherer_is_taken_for_the_scheduler(fleet: HostileFleet) -> None:
    good, bad = fleet.device("good"), fleet.device("bad")

    async def posed(folder: Path) -> None:
        heard = asyncio.Event()

        def taken(*_: object) -> None:
            heard.set()

        server = await asyncio.start_server(taken, "127.0.0.1", 0, ssl=tls_context(folder, server=True))
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(FleetUnreachable):
                await open_link(f"tls://127.0.0.1:{port}", good.folder)
        assert not heard.is_set()

    for folder in (bad.folder, fleet.tls / GATHERER):
        fleet.do(posed(folder))


def test_without_a_certificate_nobody_is_let_in(fleet: HostileFleet) -> None:
    async def sent() -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port, ssl=context)
        with contextlib.closing(writer):
            return await reader.read(1)

    with contextlib.suppress(OSError):
        assert fleet.do(sent()) == b""


def test_a_device_has_the_name_of_its_certificate_and_is_there_once(fleet: HostileFleet) -> None:
    good, bad = fleet.device("good", "pi"), fleet.device("bad", "nano")
    fleet.start(good.serve(fleet.url))
    fleet.start(bad.serve(fleet.url))
    until(lambda: _present(fleet) == {"good", "bad"})
    boards = {state.device.name: state.device.board for state in query_device_states(fleet.where)}
    assert boards == {"good": "pi", "bad": "nano"}
    shutil.copy(good.folder / CERTIFICATE, bad.folder / CERTIFICATE)  # it is no secret, the key is
    with pytest.raises(Exception, match="cannot be used"):
        fleet.do(open_link(fleet.url, bad.folder))
    shutil.copy(good.folder / KEY, bad.folder / KEY)
    with pytest.raises(FleetUnreachable):
        fleet.do(open_link(fleet.url, bad.folder))


def test_a_device_that_is_revoked_is_cut_off_and_stays_out(fleet: HostileFleet) -> None:
    lost = fleet.device("lost")
    serving = fleet.start(lost.serve(fleet.url))
    until(lambda: _present(fleet) == {"lost"})
    assert revoke(fleet.tls, "lost")
    until(serving.done)
    assert _present(fleet) == set()
    with pytest.raises(FleetUnreachable):
        fleet.do(lost.serve(fleet.url))
    with pytest.raises(NotAdmitted, match="was revoked"):
        issue_or_reuse_certificate(fleet.tls, Identity("device", "lost", "lost"), device_public_key(lost.folder))


def test_after_a_rotation_no_earlier_certificate_is_taken(tmp_path: Path) -> None:
    fleet = HostileFleet(tmp_path)
    old = fleet.device("old")
    der = ssl.PEM_cert_to_DER_cert((old.folder / CERTIFICATE).read_text())
    assert verify_peer(fleet.tls, der) == Identity("device", "old", "old")
    signature = certificates.sign(old.folder, b"x")
    assert not make_certificates(fleet.tls), "what lasts is left as it is"
    assert make_certificates(fleet.tls, rotate=True)
    with pytest.raises(NotAdmitted):
        verify_signature(fleet.tls / "ca.pem", (old.folder / CERTIFICATE).read_text(), signature, b"x")
    issue_or_reuse_certificate(fleet.tls, Identity("device", "old", "old"), device_public_key(old.folder, rotate=True))
    with pytest.raises(NotAdmitted, match="revoked or replaced"):
        verify_peer(fleet.tls, der)
    fleet.loop.close()


def test_a_certificate_ends_and_is_renewed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = HostileFleet(tmp_path)
    device, holder = fleet.device("old"), Identity("device", "old", "old")
    pem, key = (device.folder / CERTIFICATE).read_text(), device_public_key(device.folder)
    assert issue_or_reuse_certificate(fleet.tls, holder, key) == pem, "what lasts is left as it is"
    now = datetime.datetime.now(datetime.timezone.utc)
    monkeypatch.setattr(certificates, "_utc_now", lambda: now + datetime.timedelta(days=366))
    with pytest.raises(NotAdmitted, match="expired"):
        verify_peer(fleet.tls, ssl.PEM_cert_to_DER_cert(pem))
    with pytest.raises(NotAdmitted, match="expired"):
        verify_signature(fleet.tls / "ca.pem", pem, certificates.sign(device.folder, b"x"), b"x")
    monkeypatch.setattr(certificates, "_utc_now", lambda: now + datetime.timedelta(days=330))
    assert make_certificates(fleet.tls)
    assert issue_or_reuse_certificate(fleet.tls, holder, key) != pem
    fleet.loop.close()


def test_thirty_devices_of_which_most_are_slow_dying_or_lying(
    fleet: HostileFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "_answer_timeout_s", lambda board: 3.0)

    async def never(orders: Orders) -> None:
        return None

    def dies(orders: Orders) -> bytes:
        raise ConnectionResetError

    async def trickles(orders: Orders) -> bytes:
        await asyncio.sleep(60)
        return b""

    started = []
    for number in range(10):
        board = f"board-{number}"
        honest, dying, lying = (fleet.device(f"{kind}-{number}", board) for kind in ("honest", "dying", "lying"))
        dying.answers["make"] = dies
        lying.answers["make"] = (never, trickles, LIES["not signed"](lying, honest), _busy)[number % 4]
        started += [honest, dying, lying]
    found, _ = _swept(fleet, tmp_path / "s", *started, batches=(1, 2))
    assert found == {f"board-{number}": ["ok", "ok"] for number in range(10)}
    results = [json.loads(path.read_text()) for path in (tmp_path / "s" / "boards").glob("*/results/*.json")]
    assert {str(result.get("made_by", "honest")).split("-")[0] for result in results} <= {"honest"}


def _busy(orders: Orders) -> bytes:
    """An answer that takes long to read, and is none."""
    return b"[" + b"[]," * 400_000 + b"[]]"


def test_what_a_device_says_of_itself_hides_no_other_and_does_not_steer_the_terminal(
    fleet: HostileFleet, capfd: pytest.CaptureFixture[str]
) -> None:
    facts: dict[str, Any] = {"device": {}, "unix_ns": 0, "pid": 1}
    versions = {"no torch": {}, "steers": {"torch": "\x1b]0;mine\x07\x9b"}, "good": {"torch": "2.0"}}
    for name, stated in versions.items():
        device = fleet.device(name.replace(" ", "-"))
        body = json_of({**facts, "versions": {"stepscope": __version__, **stated}})
        device.answers["facts"] = lambda orders, body=body: body  # type: ignore[misc]
        fleet.start(device.serve(fleet.url))
    until(lambda: len(_present(fleet)) == len(versions))
    for more in ([], ["--json"]):
        assert main(["fleet", "status", fleet.url, "--tls", str(fleet.tls / GATHERER), *more]) == 0
        said = capfd.readouterr().out
        assert said.count("free") == len(versions)
        assert not set(said) & set("\x1b\x07\x9b")


def test_what_a_host_prints_does_not_steer_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf '\\033]0;mine\\007 last words' >&2\nexit 3\n")
    python.chmod(0o700)
    hosts = tmp_path / "hosts.toml"
    hosts.write_text(f'[[host]]\nname = "a"\nlocal = true\npython = "{python}"\n')
    assert main(["fleet", "down", str(hosts)]) != 0
    said = capfd.readouterr().err
    assert "last words" in said
    assert not set(said) & set("\x1b\x07")


def test_what_a_device_says_of_its_run_is_neither_a_line_nor_markup_of_what_is_shown(
    fleet: HostileFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no line is folded
    said = "\x1b]0;mine\x07<svg/onload=mine> [x](javascript:mine) \u202e\nanother board: ok"
    device = fleet.device("a")
    device.answers["make"] = _changed(status="failed", reason=said)(device, device)
    versions = {"stepscope": __version__, "torch": said}
    facts = {"device": {"cpu": said, "board": said}, "versions": versions, "unix_ns": 0, "pid": 1}
    device.answers["facts"] = lambda orders: json_of(facts)
    found, _ = _swept(fleet, tmp_path / "s", device)
    assert found == {"a": ["failed"]}
    for path in (tmp_path / "s", tmp_path / "s" / "boards" / "a"):
        assert main(["suite", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "onload" in shown
    assert not set(shown) & set("\x1b\x07\u202e")
    assert not [line for line in shown.splitlines() if line.strip().startswith("another board")]
    out = tmp_path / "out.md"
    assert main(["suite", "export", str(tmp_path / "s" / "boards" / "a"), "--to", "markdown", "--out", str(out)]) == 0
    written = out.read_text()
    assert "onload" in written
    assert "<svg" not in written
    assert "[x](" not in written


def test_a_link_says_that_a_peer_is_gone(fleet: HostileFleet) -> None:
    async def ended() -> None:
        link, _ = await open_link(fleet.url, fleet.tls / GATHERER)
        link.close()
        await asyncio.sleep(0)
        await link.receive(1.0)

    with pytest.raises(ConnectionError):
        fleet.do(ended())
