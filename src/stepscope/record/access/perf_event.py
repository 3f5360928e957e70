"""perf_event_open: counters of the kernel for one thread or a whole CPU, and the CPU time of another process.

Called through ctypes, since Python has no wrapper; the structure is perf_event_attr of linux/perf_event.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

_SYSCALL = {  # by machine and pointer size in bytes
    ("x86_64", 8): 298,
    ("x86_64", 4): 336,
    ("i686", 4): 336,
    ("aarch64", 8): 241,
    ("aarch64", 4): 364,
    ("armv7l", 4): 364,
    ("armv6l", 4): 364,
    ("riscv64", 8): 241,
}
_ATTR_SIZE = 112  # PERF_ATTR_SIZE_VER5: Linux 4.1
_NO_GROUP = -1
_CLOSE_ON_EXEC = 1 << 3
ANY = -1
PARANOID = "/proc/sys/kernel/perf_event_paranoid"


def open_event(event_type: int, config: int, thread: int = ANY, cpu: int = ANY, flags: int = 0) -> int:
    """A descriptor that counts from now on, in the event's own unit; `flags` are the bit field of perf_event_attr.

    Raises OSError: EACCES where it is not allowed, ENOENT or ENODEV where the event is not there.
    """
    number = _SYSCALL.get((os.uname().machine, struct.calcsize("P")))
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open of {os.uname().machine} is not known")
    attr = ctypes.create_string_buffer(_ATTR_SIZE)
    struct.pack_into("=IIQ", attr, 0, event_type, _ATTR_SIZE, config)
    struct.pack_into("=Q", attr, 40, flags)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    place = (ctypes.c_int(thread), ctypes.c_int(cpu), ctypes.c_int(_NO_GROUP))
    answer = syscall(ctypes.c_long(number), attr, *place, ctypes.c_ulong(_CLOSE_ON_EXEC))
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(answer)


def read_count(descriptor: int) -> int:
    """Return the count since the event was opened; raises OSError or ValueError where it no longer counts."""
    content = os.read(descriptor, 8)
    if len(content) < 8:  # its CPU went offline
        raise ValueError("perf event: no count")
    return int.from_bytes(content, "little")


_PERF_TYPE_SOFTWARE, _TASK_CLOCK = 1, 1
_INHERIT, _EXCLUDE_KERNEL, _INHERIT_THREAD = 1 << 1, 1 << 5, 1 << 35


def open_task_clocks(pid: int) -> list[int]:
    """One descriptor a living thread, each counting the threads started from it later; empty where not allowed.

    An event opened on a process counts one thread only, so every thread gets its own. Counting child processes
    apart from threads needs Linux 5.13 (inherit_thread); on an older kernel the answer is "not allowed" too.
    """
    descriptors: list[int] = []
    for thread in _threads(pid):
        descriptor = _open_task_clock(thread)
        if descriptor is None and Path(f"/proc/{pid}/task/{thread}").exists():
            for opened in descriptors:
                os.close(opened)
            return []
        if descriptor is not None:
            descriptors.append(descriptor)
    return descriptors


def read_counts(descriptors: Sequence[int]) -> list[bytes]:
    """Read every event; raises OSError."""
    return [os.read(descriptor, 8) for descriptor in descriptors]


def total_cpu_ns(texts: Sequence[bytes]) -> list[int]:
    """CPU time since opening, ns, over all events."""
    return [sum([int.from_bytes(text, "little") for text in texts])]


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names alone
    except OSError:
        return []


def _open_task_clock(thread: int) -> int | None:
    for more in (0, _EXCLUDE_KERNEL):  # perf_event_paranoid 2 wants the second; a task clock counts the same
        with contextlib.suppress(OSError):
            return open_event(_PERF_TYPE_SOFTWARE, _TASK_CLOCK, thread, flags=_INHERIT | _INHERIT_THREAD | more)
    return None
