"""The memory that a child process may take, and its end with its parent. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

from stepscope.errors import UsageError

_PR_SET_PDEATHSIG = 1  # prctl(2)
LEAST_BYTES = 300_000_000  # Python and torch alone take about this much
MEMORY_LIMIT_METHOD = "RLIMIT_DATA: private writable memory of the process, whether touched or not (setrlimit(2))"


def limit_memory(size: int) -> None:
    """No more private writable memory than this for the calling process; what exceeds it fails as out of memory.

    RLIMIT_AS would count what is only mapped: torch's libraries and reserved address space, many times what is used.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def limit_accelerator(size: int) -> None:
    """The same for the caching allocator of a CUDA device, where there is one."""
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), 0)


def refuse_memory_limit(size: int) -> None:
    """Before a sweep begins: a limit that no training can keep, or that this system cannot set."""
    if size < LEAST_BYTES:
        raise UsageError(f"--memory {size / 1e6:.0f} MB is less than torch alone takes", "give 500MB or more")
    if not sys.platform.startswith("linux"):
        raise UsageError("--memory needs Linux: RLIMIT_DATA limits nothing here", "leave --memory out")


def die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends: a run that nobody waits for would disturb the next one."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl: the sweep's lock is the fallback
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)
