"""The commands of a fleet: up, status, a sweep with a real training, one table, down; a host over SSH."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import CommandLine
from tests.fleet.small_fleets import fleet_folder, written_hosts
from tests.patience import HANG_S

from stepscope.api.study import fleet_progress
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.fleet import scheduling
from stepscope.experiments.fleet.agent import running_pid
from stepscope.experiments.fleet.devices import down, up
from stepscope.experiments.fleet.gatherer import Device
from stepscope.experiments.fleet.hosts import read_hosts
from stepscope.experiments.fleet.scheduling import FleetFolder
from stepscope.experiments.suite import SuiteRun

asyncssh = pytest.importorskip("asyncssh")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Path]:
    path = written_hosts(tmp_path / "hosts.toml", {"here": "here"})
    yield path
    down(read_hosts(path))


@pytest.mark.slow
def test_a_lab_of_one_machine_from_up_to_down(local: Path, stepscope_cli: CommandLine) -> None:
    done = stepscope_cli("fleet", "up", "hosts.toml", "--lives-with", str(os.getpid()))
    assert (done.returncode, "here: started" in done.stdout) == (0, True), done.stderr
    done = stepscope_cli("fleet", "status", "hosts.toml")
    assert (done.returncode, "free" in done.stdout) == (0, True), done.stderr
    sweep = ("lenet", "--batch", "2", "--steps", "6", "--repeats", "1", "--threads", "1", "--out", "lab")
    done = stepscope_cli("suite", "run", "--fleet", "hosts.toml", *sweep)
    assert done.returncode == 0, done.stderr
    assert "here 1/1 on here: lenet batch 2 " in done.stderr
    shown = json.loads(stepscope_cli("suite", "show", "lab", "--json").stdout)
    assert [(row["board"], row["status"]) for row in shown["settings"]] == [("here", "ok")]
    assert shown["settings"][0]["step_time_ms"] > 0
    assert "here" in stepscope_cli("suite", "show", "lab").stdout
    assert stepscope_cli("suite", "show", "lab/boards/here").returncode == 0
    done = stepscope_cli("suite", "run", "--fleet", "hosts.toml", "--resume", "--out", "lab", "--quiet")
    assert (done.returncode, done.stderr) == (0, ""), "nothing is left to do"
    done = stepscope_cli("fleet", "down", "hosts.toml")
    assert (done.returncode, done.stdout) == (0, "here: ended\n")
    assert stepscope_cli("fleet", "status", "hosts.toml").returncode == 9


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("fleet", "up", "nowhere.toml"), 4, "there is no file 'nowhere.toml'"),
        (("fleet", "status", "tls://127.0.0.1:1", "--tls", "nowhere"), 2, "no TLS material"),
        (("suite", "run", "--boards", "a"), 2, "belong to --fleet"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], code: int, said: str, stepscope_cli: CommandLine
) -> None:
    done = stepscope_cli(*arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "hint: " in done.stderr


def test_a_folder_takes_one_fleet_of_sweeps(tmp_path: Path) -> None:
    plan = {"name": "x", "order": [], "created": "now", "rules": {}}
    FleetFolder.create(tmp_path / "lab", ["a"], plan, [])
    with pytest.raises(UsageError, match="holds a sweep already"):
        FleetFolder.create(tmp_path / "lab", ["a"], plan, [])
    with pytest.raises(UsageError, match="no sweep of a fleet"):
        FleetFolder(tmp_path)


def test_a_sweep_goes_on_with_the_boards_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fleet_folder(tmp_path / "s", ["pi", "nano"], "ok")
    monkeypatch.setattr(scheduling, "find_entries", lambda names: [])
    monkeypatch.setattr(SweepFolder, "refuse_changes", lambda self, now: None)
    resumed = scheduling.resume_fleet(SuiteRun(fleet="hosts.toml", resume=True, boards=("nano",)), folder.path)
    assert list(resumed.boards) == ["nano"]
    assert list(FleetFolder(folder.path).boards) == ["pi", "nano"]
    with pytest.raises(UnknownName, match="unknown board 'nanno'") as refused:
        scheduling.resume_fleet(SuiteRun(fleet="hosts.toml", resume=True, boards=("nanno",)), folder.path)
    assert "did you mean nano" in str(refused.value.hint)
    with pytest.raises(UsageError, match="goes on as it was begun"):
        scheduling.resume_fleet(SuiteRun(fleet="hosts.toml", resume=True, batch=(4,)), folder.path)


@pytest.mark.parametrize("live", [True, False])
def test_progress_names_each_board_and_what_its_devices_are_at(
    live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if live else "0")
    monkeypatch.setenv("COLUMNS", "200")
    folder = fleet_folder(tmp_path / "s", ["pi", "nano"], "ok", batches=(1, 2))
    device, point = Device("pi-1", "pi", "tcp://x"), folder.boards["pi"].order[0]
    with fleet_progress(folder, enabled=True) as watch:
        watch.begins(device, point)
        watch.ends("pi", device, point, {"status": "oom", "reason": "can't allocate memory"})
        watch.says("nano-1 went away")
    said = capsys.readouterr().err
    assert f"pi 1/2 on pi-1: ok batch {point.batch} sgd, repeat 1: oom: can't allocate memory" in said
    assert "nano-1 went away" in said
    assert ("\x1b" in said) == live


class _SshServer:
    """An SSH server on loopback that runs what it is told, as sshd does, by way of a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.commands = folder, list[str]()
        for name in ("host_key", "user_key"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(str(folder / name))
            key.write_public_key(str(folder / f"{name}.pub"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        public = (folder / "host_key.pub").read_text(encoding="utf-8")
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}", encoding="utf-8")
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> _SshServer:
        self._thread.start()
        assert self._ready.wait(HANG_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    async def _serve(self) -> None:
        async with asyncssh.listen(
            "127.0.0.1", self.port, server_host_keys=[str(self.folder / "host_key")],
            authorized_client_keys=str(self.folder / "user_key.pub"), process_factory=self._run,
        ):  # fmt: skip
            self._ready.set()
            while not self._end.is_set():
                await asyncio.sleep(0.02)

    async def _run(self, process: object) -> None:
        command = str(process.command)  # type: ignore[attr-defined]
        self.commands.append(command)
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_shell(command, stdin=pipe, stdout=pipe, stderr=pipe)
        text = await process.stdin.read()  # type: ignore[attr-defined]
        out, err = await child.communicate(text.encode())
        process.stdout.write(out.decode())  # type: ignore[attr-defined]
        process.stderr.write(err.decode())  # type: ignore[attr-defined]
        process.exit(child.returncode)  # type: ignore[attr-defined]


def _over_ssh(folder: Path, server: _SshServer, python: str, known_hosts: str = "known_hosts") -> Path:
    path = written_hosts(folder / "hosts.toml", {"pi-1": "pi"})
    text = path.read_text(encoding="utf-8").replace(
        "local = true",
        f'address = "me@127.0.0.1"\nssh_port = {server.port}\npython = "{python}"\nfolder = "{folder / "on device"}"\n'
        f'key = "{folder / "user_key"}"\nknown_hosts = "{folder / known_hosts}"',
    )
    path.write_text(text.replace("[fleet]", '[fleet]\nscheduler = "0.0.0.0"'), encoding="utf-8")
    return path


def test_a_host_over_ssh_is_started_and_ended_and_its_key_is_in_no_command(tmp_path: Path) -> None:
    with _SshServer(tmp_path) as server:
        hosts = read_hosts(_over_ssh(tmp_path, server, sys.executable))
        try:
            (state,) = up(hosts, lives_with=os.getpid())
            assert state.refused is None
            assert state.about is not None
            assert running_pid(tmp_path / "on device") == state.about["pid"]
        finally:
            (ended,) = down(hosts)
    assert ended.about == {"stopped": True}
    assert running_pid(tmp_path / "on device") is None
    assert all(command.endswith(" -m stepscope.experiments.fleet.agent") for command in server.commands)


def test_hosts_that_fail_say_why_and_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "old python"  # a name with a space: nothing of it may reach a shell unquoted
    old.write_text("#!/bin/sh\necho \"/usr/bin/python3: No module named 'stepscope'\" >&2; exit 1\n", encoding="utf-8")
    old.chmod(0o755)
    other = tmp_path / "other"
    answer = json.dumps(
        {"refused": "it has Stepscope 0.0.1, and the machine that starts the fleet 0.1.0", "hint": None}
    )
    other.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    other.chmod(0o755)
    (tmp_path / "nobody").touch()
    found = []
    with _SshServer(tmp_path) as server:
        for python, known in ((old, "known_hosts"), (other, "known_hosts"), (old, "nobody")):
            hosts = read_hosts(_over_ssh(tmp_path, server, str(python), known))
            try:
                (state,) = up(hosts, lives_with=os.getpid())
            finally:
                down(hosts)
            assert state.refused is not None
            found.append(f"{state.refused} {state.refused.hint}")
    assert "No module named" in found[0]
    assert "pip install 'stepscope[fleet]'" in found[0]
    assert "pi-1: it has Stepscope 0.0.1, and the machine that starts the fleet 0.1.0" in found[1]
    assert "host key is not known" in found[2]
