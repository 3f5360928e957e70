"""perf_event_open: counters of the kernel, for one thread or for a whole CPU.

Called through ctypes, since Python has no wrapper; the structure is perf_event_attr of linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

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


def count(descriptor: int) -> int:
    """What the event has counted since it was opened; raises OSError or ValueError where it no longer counts."""
    content = os.read(descriptor, 8)
    if len(content) < 8:  # its CPU went offline
        raise ValueError("perf event: no count")
    return int.from_bytes(content, "little")
