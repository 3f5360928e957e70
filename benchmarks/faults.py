"""A disk and a power supply that fail: calls of a process that change files are counted, and one of them goes wrong.

The process is a fork of this one, followed by ptrace(2) with its threads and children, and stopped at each call that
changes something below one folder, whichever language made it (Linux on x86-64). No library is replaced: what
fails is the call itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import random
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["none", "kill", "tear", "fail", "short", "power"]
Say = Callable[[Any], None]
Act = Callable[[Say], None]

# Calls that change files, by the place of their descriptor, of their paths (with the folder that those are within).
_OF_DESCRIPTOR = {1: "write", 18: "pwrite", 20: "writev", 74: "fsync", 75: "fdatasync", 77: "ftruncate"}
_OF_DESCRIPTOR[285] = "fallocate"
_OF_PATH = {76: "truncate", 82: "rename", 83: "mkdir", 84: "rmdir", 85: "create", 86: "link", 87: "unlink"}
_AT = {257: "open", 258: "mkdir", 263: "unlink", 264: "rename", 265: "link", 316: "rename"}
_OUT_OF = {40: "sendfile", 326: "copy_file_range"}
_OPEN = 2
_ARGUMENTS_OF_NEW = {82: (0, 1), 264: (2, 3), 316: (2, 3)}  # of a rename: folder (unless plain) and name
_TRACED = {*_OF_DESCRIPTOR, *_OF_PATH, *_AT, *_OUT_OF, _OPEN}
_SYNCS = ("fsync", "fdatasync")
_WRITES = ("write", "pwrite")

_TRACEME, _CONT, _SYSCALL, _POKEUSER, _SET_OPTIONS, _SYSCALL_INFO = 0, 7, 24, 6, 0x4200, 0x420E
_OPTIONS = (
    0x100000 | 0x80 | 0x10 | 0x08 | 0x04 | 0x02 | 0x01
)  # die with us; seccomp, exec, clone, vfork, fork; mark calls
_AT_SECCOMP, _ALL_THREADS = 7, 0x40000000
_RAX, _RDX, _ORIG_RAX = 10 * 8, 12 * 8, 15 * 8
_AT_FDCWD = -100
_TALK_BYTES = 1 << 16
_BLOCK = 4096


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the `at`-th call that changes a file, the first being 1.

    kill: the process that makes it is killed before it; tear: a write is done by half and the process killed;
    fail: so many `calls` answer with `error`, fewer where a file called `until` is removed; short: a write takes half;
    power: everything is killed, and what was not synced may be gone.
    """

    kind: Kind = "none"
    at: int = 0
    error: int = 0
    calls: int = 1
    until: str = ""
    seed: int = 0

    def __str__(self) -> str:
        error = f" {errno.errorcode[self.error]}" if self.error else ""
        return f"{self.kind}{error} at {self.at}" + (f" for {self.calls}" if self.calls > 1 else "")


@dataclass
class Ended:
    """How it went: what the process said, its calls (name and path), and the exit code of each process."""

    said: list[Any] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    status: int = 0
    over: bool = True  # the fault was, when all processes had ended: the disk took things again

    @property
    def struck(self) -> str:
        """The call that went wrong, in words."""
        return " ".join(self.calls[-1]) if self.calls else "-"


def possible() -> bool:
    """Return whether calls can be followed here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    with contextlib.suppress(OSError):
        return bool(follow(lambda say: say(1), Path("/nowhere"), Fault()).said)
    return False


def follow(act: Act, below: Path, fault: Fault) -> Ended:
    """Run `act` in a fork; its calls that change files below a folder count, and one of them goes wrong.

    `act` is given a function to say things with (JSON) that are known here whatever becomes of the process. Raises
    OSError where this machine lets nobody follow.
    """
    talk = mmap.mmap(-1, _TALK_BYTES)
    child = os.fork()
    if child == 0:
        _be_followed(act, talk)
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        raise OSError(errno.EPERM, "calls of processes cannot be followed here")
    _ptrace(_SET_OPTIONS, child, 0, _OPTIONS)
    ended = _Following(os.path.realpath(below), fault).until_all_ended(child)
    (size,) = struct.unpack_from("<Q", talk)
    ended.said = [json.loads(line) for line in talk[8 : 8 + size].decode().splitlines()]
    if fault.kind == "power":
        ended.status = -int(signal.SIGKILL)
    return ended


def apart(act: Callable[[], Any]) -> Any:
    """Return the JSON that a function answers with in a fork: what queries polars must not run where forks are made."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os.write(writer, json.dumps(act()).encode())
            os._exit(0)
        except BaseException:
            os.write(writer, json.dumps([traceback.format_exc()]).encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    return json.loads(content or b'["ended without an answer"]')


def _be_followed(act: Act, talk: mmap.mmap) -> None:
    """The forked child: it says through shared memory, so that saying is no call."""

    def say(what: Any) -> None:
        (size,) = struct.unpack_from("<Q", talk)
        line = json.dumps(what).encode() + b"\n"
        talk[8 + size : 8 + size + len(line)] = line
        struct.pack_into("<Q", talk, 0, size + len(line))

    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        signal.alarm(20)
        _ptrace(_TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        _stop_at_changes()
        act(say)
    except BaseException:
        say({"raised": traceback.format_exc()})
        os._exit(70)
    finally:
        os._exit(0)


def _stop_at_changes() -> None:
    """Let the kernel stop this process, and those that it starts, at the calls that change files alone (seccomp)."""
    load, equal, answer, architecture = 0x20, 0x15, 0x06, 0xC000003E
    calls = sorted(_TRACED)
    program = struct.pack("<HBBI", load, 0, 0, 4) + struct.pack("<HBBI", equal, 0, len(calls) + 1, architecture)
    program += struct.pack("<HBBI", load, 0, 0, 0)
    for place, call in enumerate(calls):
        program += struct.pack("<HBBI", equal, len(calls) - place, 0, call)
    program += struct.pack("<HBBI", answer, 0, 0, 0x7FFF0000) + struct.pack("<HBBI", answer, 0, 0, 0x7FF00000)
    content = ctypes.create_string_buffer(program)
    head = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(content))
    if _LIBC.prctl(38, 1, 0, 0, 0) or _LIBC.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of calls can be set")


class _Following:
    """The tracer's loop over all processes and threads that descend from one."""

    def __init__(self, below: str, fault: Fault) -> None:
        self._below, self._fault = below, fault
        self._ended = Ended()
        self._disk = _Disk(below) if fault.kind == "power" else None
        self._known: set[int] = set()
        self._over = False  # the fault
        self._dark = False  # the power is gone

    def until_all_ended(self, first: int) -> Ended:
        self._known.add(first)
        living = {first}
        _ptrace(_CONT, first, 0, 0)
        while living:
            try:
                thread, status = os.waitpid(-1, _ALL_THREADS)
            except ChildProcessError:
                break
            if not os.WIFSTOPPED(status):
                living.discard(thread)
                if thread == first:
                    self._ended.status = os.waitstatus_to_exitcode(status)
                continue
            living.add(thread)
            self._stopped(thread, status)
        if self._disk is not None and self._dark:
            self._disk.lose(random.Random(self._fault.seed))
        self._ended.over = self._over or len(self._ended.calls) < self._fault.at or self._fault.kind == "none"
        return self._ended

    def _stopped(self, thread: int, status: int) -> None:
        event, number = status >> 16, os.WSTOPSIG(status)
        new = thread not in self._known
        self._known.add(thread)
        passed = 0 if event or number in (signal.SIGTRAP, signal.SIGTRAP | 0x80) else number
        if new and number == signal.SIGSTOP:
            passed = 0
        if self._dark:
            _kill(thread)
        elif event == _AT_SECCOMP and (call := self._change(thread)) is not None:
            self._ended.calls.append(call)
            self._at_change(thread, *call)
        with contextlib.suppress(ProcessLookupError):
            _ptrace(_CONT, thread, 0, passed)

    def _change(self, thread: int) -> tuple[str, str] | None:
        """Name and path of the call that this thread is about to make; None where it changes nothing below."""
        with contextlib.suppress(OSError):
            number, *arguments = _call_of(thread)
            name, path = _target(thread, number, arguments)
            if path is not None and (path + "/").startswith(self._below + "/"):
                return name, path
        return None

    def _at_change(self, thread: int, name: str, path: str) -> None:
        fault = self._fault
        if self._disk is not None and len(self._ended.calls) != fault.at:
            self._disk.about_to(name, path)
        if self._over or len(self._ended.calls) < fault.at or fault.kind == "none":
            return
        match fault.kind:
            case "kill":
                _kill(thread)
            case "tear":
                self._halve(thread, name)
                _ptrace(_SYSCALL, thread, 0, 0)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(thread, _ALL_THREADS)
                _kill(thread)
            case "power":
                self._dark = True
                for other in self._known:
                    _kill(other)
            case "short":
                self._halve(thread, name)
            case "fail":
                self._fail(thread, name, path)
                return
        self._over = True

    def _fail(self, thread: int, name: str, path: str) -> None:
        fault = self._fault
        if fault.until and name == "unlink" and path.endswith(fault.until):
            self._over = True
            return
        if name in ("unlink", "rmdir") or (name == "ftruncate" and fault.error == errno.ENOSPC):
            return  # what gives room back needs none
        _ptrace(_POKEUSER, thread, _ORIG_RAX, (1 << 64) - 1)
        _ptrace(_POKEUSER, thread, _RAX, (1 << 64) - fault.error)
        self._over = len(self._ended.calls) >= fault.at + fault.calls - 1

    def _halve(self, thread: int, name: str) -> None:
        size = _call_of(thread)[3]
        if name in _WRITES and size > 1:
            _ptrace(_POKEUSER, thread, _RDX, size // 2)


class _Disk:
    """What is on the disk for certain: contents as they were at their last sync, names as at the last sync of any.

    File systems write names in order, so a sync brings all earlier names to the disk; contents have no order.
    """

    def __init__(self, below: str) -> None:
        self._below = Path(below)
        # By the number of the file; what was there before has long been synced.
        before = [path for path in self._below.rglob("*") if path.is_file()] if self._below.exists() else []
        self._synced: dict[int, bytes] = {path.stat().st_ino: path.read_bytes() for path in before}
        self._names: dict[str, int] = {}
        self._folders: list[str] = []
        self._contents: dict[int, bytes] = {}  # as they were when the names were synced
        self._note_names()

    def about_to(self, name: str, path: str) -> None:
        """Take a call into account that is about to be done."""
        if name in _SYNCS:
            if Path(path).is_file():
                self._synced[Path(path).stat().st_ino] = Path(path).read_bytes()
            self._note_names()
        elif name in ("unlink", "rename"):
            with contextlib.suppress(OSError):  # the number may be given to another file
                self._synced.pop(Path(path).stat().st_ino, None)

    def _note_names(self) -> None:
        entries = list(self._below.rglob("*")) if self._below.exists() else []
        self._folders = [str(path) for path in entries if path.is_dir()]
        self._names = {str(path): path.stat().st_ino for path in entries if path.is_file()}
        self._contents = dict(self._synced)

    def lose(self, draw: random.Random) -> None:
        """Leave on the disk what a loss of power may leave."""
        if draw.random() < 0.5:  # names as they are
            for path in [path for path in self._below.rglob("*") if path.is_file()]:
                path.write_bytes(self._left(self._synced.get(path.stat().st_ino), path.read_bytes(), draw))
            return
        now = {str(path): path.read_bytes() for path in self._below.rglob("*") if path.is_file()}
        for path in sorted(self._below.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        for folder in sorted(self._folders):
            Path(folder).mkdir(exist_ok=True)
        for name, number in self._names.items():
            Path(name).write_bytes(self._left(self._contents.get(number), now.get(name, b""), draw))

    @staticmethod
    def _left(synced: bytes | None, content: bytes, draw: random.Random) -> bytes:
        """What is left of a file: all, what was synced with a part of the rest, or with zeros in its place."""
        if synced == content or (synced is not None and not content.startswith(synced)):
            return synced
        certain = len(synced or b"")
        blocks = (certain + draw.randrange(len(content) - certain + 1)) // _BLOCK * _BLOCK
        kept = max(certain, blocks)
        match draw.choice(("all", "certain", "blocks", "zeros", "end zeros")):
            case "all":
                return content
            case "certain":
                return content[:certain]
            case "blocks":
                return content[:kept]
            case "zeros":
                return content[:certain] + bytes(len(content) - certain)
            case _:
                return content[:kept] + bytes(len(content) - kept)


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long


def _ptrace(request: int, thread: int, at: int, value: int) -> None:
    if _LIBC.ptrace(request, thread, at, value) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kill(thread: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(thread, signal.SIGKILL)  # of a thread: its whole process


def _call_of(thread: int) -> tuple[int, ...]:
    """Number and six arguments of the call that a stopped thread is about to make."""
    content = ctypes.create_string_buffer(88)
    if _LIBC.ptrace(_SYSCALL_INFO, thread, 88, ctypes.addressof(content)) < 0:
        raise OSError(ctypes.get_errno(), "the call is not told")
    numbers: tuple[int, ...] = struct.unpack_from("<7Q", content.raw, 24)
    return numbers


def _target(thread: int, number: int, arguments: list[int]) -> tuple[str, str | None]:
    if number in _OF_DESCRIPTOR:
        return _OF_DESCRIPTOR[number], _link(thread, arguments[0])
    if number in _OUT_OF:
        return _OUT_OF[number], _link(thread, arguments[0 if number == 40 else 2])
    if number in (_OPEN, 257):
        flags = arguments[1 if number == _OPEN else 2]
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return "open", None
        return "open", _path(thread, _AT_FDCWD if number == _OPEN else arguments[0], arguments[number == 257])
    if number in _ARGUMENTS_OF_NEW:
        folder, name = _ARGUMENTS_OF_NEW[number]
        within = _AT_FDCWD if number == 82 else arguments[folder]
        return "rename", _path(thread, within, arguments[name])
    if number in _AT:
        return _AT[number], _path(thread, arguments[0], arguments[1])
    return _OF_PATH[number], _path(thread, _AT_FDCWD, arguments[0])


def _link(thread: int, descriptor: int) -> str:
    return str(Path(f"/proc/{thread}/fd/{descriptor}").readlink())


def _path(thread: int, folder: int, at: int) -> str:
    with Path(f"/proc/{thread}/mem").open("rb", 0) as memory:
        memory.seek(at)
        text = os.fsdecode(b"".join(iter(lambda: memory.read(1), b"\0")))
    folder = struct.unpack("<i", struct.pack("<I", folder & 0xFFFFFFFF))[0]
    start = str(Path(f"/proc/{thread}/cwd").readlink()) if folder == _AT_FDCWD else _link(thread, folder)
    path = Path(os.path.normpath(Path(start) / text))
    return str(path.parent.resolve() / path.name)


def each(kind: Kind, points: int, **about: Any) -> Iterator[Fault]:
    """The same fault at every point once."""
    return (Fault(kind, at, **about) for at in range(1, points + 1))
