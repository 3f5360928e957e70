"""Questions to the Raspberry Pi firmware: the property mailbox of /dev/vcio, else the vcgencmd program."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepscope.record.sensors.contract import Missing, missing_because

TIMEOUT_S = 1.0  # of the program; it answers in 24 ms
_GENCMD = 0x00030080  # tag of the property interface: run a command line, answer with text
_DONE = 0x80000000
_TEXT_BYTES = 4096
_PROPERTY = 0xC0086400 if struct.calcsize("P") == 8 else 0xC0046400  # _IOWR(100, 0, char *)
_PROGRAMS = ("usr/bin/vcgencmd", "usr/local/bin/vcgencmd", "opt/vc/bin/vcgencmd")
_REMEDY = "sudo usermod -aG video $USER   (then log in again)"


@dataclass(frozen=True)
class Firmware:
    """A way to ask that has answered: `ask` takes a command line, and raises OSError where there is no answer."""

    source: str
    ask: Callable[[str], str]
    close: Callable[[], None]


def connect(root: Path, command: str) -> Firmware | Missing:
    """The mailbox where it answers this command, else the program; else the reason of the first that is there."""
    device = root / "dev/vcio"
    reasons: list[Missing] = []
    for way in (_mailbox, _program):
        try:
            firmware = way(root)
        except OSError as error:
            reasons.append(missing_because(error, error.filename or device, _REMEDY if _is_denied(error) else None))
            continue
        try:
            firmware.ask(command)
        except OSError as error:
            firmware.close()
            reasons.append(missing_because(error, firmware.source, _REMEDY if _is_denied(error) else None))
            continue
        return firmware
    there = [reason for reason in reasons if reason.reason != "absent"]
    return there[0] if there else Missing("absent", f"{device}: not there, and no vcgencmd (Raspberry Pi boards alone)")


def _is_denied(error: OSError) -> bool:
    return error.errno in (errno.EACCES, errno.EPERM)


def _mailbox(root: Path) -> Firmware:
    path = root / "dev/vcio"
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return Firmware(str(path), partial(_ask_mailbox, file), partial(os.close, file))


def _ask_mailbox(file: int, command: str) -> str:
    """One property message: size, request, tag, size of its value, length, error, value, end tag."""
    message = bytearray(6 * 4 + _TEXT_BYTES + 4)
    struct.pack_into("=6I", message, 0, len(message), 0, _GENCMD, _TEXT_BYTES, 0, 0)
    message[24 : 24 + len(command)] = command.encode()
    fcntl.ioctl(file, _PROPERTY, message)
    if struct.unpack_from("=I", message, 4)[0] != _DONE:
        raise OSError(errno.EIO, "the firmware did not take the message")
    return bytes(message[24 : 24 + _TEXT_BYTES]).split(b"\0", 1)[0].decode(errors="replace")


def _program(root: Path) -> Firmware:
    for name in _PROGRAMS:
        path = root / name
        if path.is_file():
            return Firmware(str(path), partial(_run, path), lambda: None)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root / _PROGRAMS[0]))


def _run(program: Path, command: str) -> str:
    """What it prints; one that hangs is ended with all that it started. Raises OSError on any failure."""
    with subprocess.Popen(
        [str(program), *command.split()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError(errno.ETIMEDOUT, f"no answer to {command} within {TIMEOUT_S} s") from error
    text = output.decode(errors="replace")
    if process.returncode:
        raise OSError(errno.EACCES if "ermission" in text else errno.EIO, text.strip()[:200] or "it failed in silence")
    return text
