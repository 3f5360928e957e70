"""hosts.toml: what it may say, and what is refused with the place."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from stepscope.errors import RunNotFound, UsageError
from stepscope.experiments.fleet.devices import HostFailed, send_orders
from stepscope.experiments.fleet.hosts import read_hosts, scheduler_address, scheduler_of_hosts

LOCAL = '[[host]]\nname = "a"\nlocal = true\n'
REMOTE = '[[host]]\nname = "pi-1"\naddress = "pi@192.168.0.7"\n'
LAN = '[fleet]\nscheduler = "192.168.0.2"\n'


def _written(path: Path, text: str) -> Path:
    (path / "hosts.toml").write_text(text, encoding="utf-8")
    return path / "hosts.toml"


def test_a_host_is_its_own_board_unless_it_says_otherwise(tmp_path: Path) -> None:
    hosts = read_hosts(_written(tmp_path, LOCAL + '[[host]]\nname = "b"\nboard = "pi"\nlocal = true\n'))
    assert [(host.name, host.board, host.python) for host in hosts.hosts] == [
        ("a", "a", sys.executable),
        ("b", "pi", sys.executable),
    ]
    assert (hosts.boards, hosts.port, hosts.forget_after_s, hosts.alone_s) == (["a", "pi"], 8786, 60, 604_800)


def test_every_connection_is_tls(tmp_path: Path) -> None:
    assert scheduler_of_hosts(read_hosts(_written(tmp_path, LOCAL))).url == "tls://127.0.0.1:8786"
    assert scheduler_of_hosts(read_hosts(_written(tmp_path, LAN + "tls = true\n" + REMOTE))).tls.name == "gatherer"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no device"),
        ("host = 3", "names no device"),
        ("[[host", "cannot be read"),
        (LOCAL + LOCAL, "two hosts have the name a"),
        (LAN + REMOTE + REMOTE.replace("pi-1", "pi-2"), "two hosts have the address"),
        ('[[host]]\nname = "../x"\nlocal = true', "is not a name"),
        ('[[host]]\nname = "-x"\nlocal = true', "is not a name"),
        ("[[host]]\nlocal = true", "is not a name"),
        ('[[host]]\nname = "a"', "either an address or local"),
        (LAN + '[[host]]\nname = "a"\naddress = "-oProxyCommand=x"', "either an address or local"),
        (LOCAL + 'address = "x"', "either an address or local"),
        (LOCAL + "cores = 3", "nothing is known of cores"),
        (LOCAL + 'ssh_port = "22"', "ssh_port = '22' is of the wrong kind"),
        (LAN + REMOTE + "ssh_port = 99999", "ssh_port 99999: not between 1 and 65535"),
        (LOCAL + "environment = { A = 1 }", "environment holds more than text"),
        (REMOTE, "pi-1 cannot reach a scheduler at 127.0.0.1"),
        ("[fleet]\nport = 0\n" + LOCAL, "port 0"),
        (LAN + "tls = false\n" + REMOTE, "every connection of a fleet is TLS"),
        ("[fleet]\nport = true\n" + LOCAL, "wrong kind"),
        ("[fleet]\nforget_after_s = 0\n" + LOCAL, "less than 1 s"),
        ("[fleet]\nalone_s = 0\n" + LOCAL, "not above 0 s"),
        ("[fleet]\nforget_after_s = nan\n" + LOCAL, "less than 1 s"),
        ("[fleet]\nalone_s = nan\n" + LOCAL, "not above 0 s"),
        ("[fleet]\nspeed = 1\n" + LOCAL, "nothing is known of speed"),
    ],
)
def test_what_cannot_be_is_refused_with_the_place(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read_hosts(_written(tmp_path, text))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("line", "place", "hint"), [("", "nano", "ssh nano"), ("ssh_port = 7\n", "nano port 7", "ssh -p 7 nano")]
)
def test_the_port_of_an_ssh_alias_is_left_to_the_user_s_own_ssh_config(
    line: str, place: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncssh, ports = pytest.importorskip("asyncssh"), list[object]()

    def refuse(address: str, **options: object) -> None:
        ports.append(options.get("port"))
        raise OSError("nobody listens")

    monkeypatch.setattr(asyncssh, "connect", refuse)
    (host,) = read_hosts(_written(tmp_path, LAN + '[[host]]\nname = "a"\naddress = "nano"\n' + line)).hosts
    with pytest.raises(HostFailed, match=f"a: cannot be reached at {place}: nobody listens") as failed:
        asyncio.run(send_orders(host, {}))
    assert (ports, failed.value.hint) == ([7 if line else None], f"try: {hint}")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="there is no"):
        scheduler_address(str(tmp_path / "hosts.toml"))


@pytest.mark.parametrize(
    "text", ["tls://", "tls://h", "tls://h:x", "http://h:1", "tls://h:99999", "tls://h:1", "tcp://h:1"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--fleet"):
        scheduler_address(text)
