"""C allocator that a training runs on: glibc as it comes, glibc with a pinned mmap threshold, or tcmalloc."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import MissingDependency, UnknownName, UsageError

NAMES = ("default", "pinned", "tcmalloc")
MMAP_THRESHOLD = 65536  # B
_M_MMAP_THRESHOLD = -3  # malloc.h
_TUNABLE = f"glibc.malloc.mmap_threshold={MMAP_THRESHOLD}"
_RESTARTED = "STEPSCOPE_RESTARTED_WITH"
_LIBRARIES = ("libtcmalloc_minimal.so*", "libtcmalloc.so*")
_FOLDERS = ("usr/lib/*-linux-gnu*", "usr/lib64", "usr/lib", "lib/*-linux-gnu*", "usr/local/lib", "opt/homebrew/lib")
_pinned = False


def check_allocator_name(name: str) -> str:
    """One of NAMES; UnknownName with the nearest."""
    if name not in NAMES:
        raise UnknownName("allocator", name, NAMES)
    return name


def use_allocator(name: str, root: Path = Path("/")) -> None:
    """Have this process allocate so from now on; for tcmalloc it starts anew, with the same command line.

    UsageError where the C library has no such switch, MissingDependency where tcmalloc is not installed.
    """
    if check_allocator_name(name) == "pinned":
        pin_mmap_threshold()
    elif name == "tcmalloc" and tcmalloc_in(_maps()) is None:
        _restart_with(tcmalloc_library(root))


def pin_mmap_threshold() -> None:
    """Pin the mmap threshold of this process, which also stops glibc from moving it."""
    global _pinned
    libc = _glibc()
    if libc is None or libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD) != 1:
        raise UsageError("--malloc pinned: this C library has no mmap threshold", "it is glibc's: use --malloc default")
    _pinned = True


def child_environment(name: str, root: Path = Path("/"), inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which a child process allocates so, whatever the parent's was."""
    environment = {key: value for key, value in inherited.items() if key not in ("GLIBC_TUNABLES", "LD_PRELOAD")}
    preloads = [word for word in inherited.get("LD_PRELOAD", "").replace(":", " ").split() if "tcmalloc" not in word]
    if check_allocator_name(name) == "tcmalloc":
        preloads.insert(0, str(tcmalloc_library(root)))
    tunables = [
        word for word in inherited.get("GLIBC_TUNABLES", "").split(":") if word and "mmap_threshold" not in word
    ]
    if name == "pinned":
        tunables.append(_TUNABLE)
    variables = {"LD_PRELOAD": ":".join(preloads), "GLIBC_TUNABLES": ":".join(tunables)}
    return environment | {key: value for key, value in variables.items() if value}


def tcmalloc_library(root: Path = Path("/")) -> Path:
    """Path of libtcmalloc, the minimal one first; MissingDependency names the packages that have it."""
    for library in _LIBRARIES:
        for folder in _FOLDERS:
            candidates = sorted(root.glob(f"{folder}/{library}"))
            if candidates:
                return candidates[-1]
    raise MissingDependency(
        "tcmalloc is not installed",
        "sudo apt install libtcmalloc-minimal4 (Debian 13, Ubuntu 24.04 and newer: libtcmalloc-minimal4t64; "
        "Fedora: gperftools-libs)",
    )


def jemalloc_library() -> Path | None:
    """Path of libjemalloc; null where it is not installed."""
    candidates = [path for folder in _FOLDERS for path in sorted(Path("/").glob(f"{folder}/libjemalloc.so*"))]
    return candidates[-1] if candidates else None


def current_allocator_facts() -> dict[str, Any]:
    """Return what run.json states of the allocator of this process."""
    library = tcmalloc_in(_maps())
    if library is not None:
        return {"name": "tcmalloc", "library": library}
    version = _glibc_version()
    tuned = _TUNABLE in os.environ.get("GLIBC_TUNABLES", "")
    if version is not None and (_pinned or tuned):
        return {"name": "pinned", "mmap_threshold": MMAP_THRESHOLD, "library": version}
    return {"name": "default", "library": version}


def tcmalloc_in(maps: str) -> str | None:
    """The tcmalloc that a process has mapped, by its /proc/PID/maps."""
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line and "tcmalloc" in line}
    return min(paths, default=None)


def reserved_reader() -> Callable[[], int] | None:
    """Reads what glibc's malloc holds from the system, heap and mapped blocks, B (mallinfo2, since glibc 2.33).

    None where nothing can say it: another C library, or another allocator in its place.
    """
    libc = _glibc()
    if libc is None or not hasattr(libc, "mallinfo2") or tcmalloc_in(_maps()) is not None:
        return None
    libc.mallinfo2.restype = _MallInfo2

    def read() -> int:
        info = libc.mallinfo2()
        return int(info.arena + info.hblkhd)

    return read


class _MallInfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _restart_with(library: Path) -> None:
    if os.environ.get(_RESTARTED) == str(library):
        raise UsageError(
            f"--malloc tcmalloc: the system does not load {library} into this process",
            "set-uid programs and some containers ignore LD_PRELOAD: use --malloc default",
        )
    environment = {**child_environment("default"), _RESTARTED: str(library)}
    environment["LD_PRELOAD"] = ":".join(filter(None, [str(library), environment.get("LD_PRELOAD")]))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # no C library to be opened so: not a Linux of ours
        return None
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def _glibc_version() -> str | None:
    libc = _glibc()
    if libc is None:
        return None
    libc.gnu_get_libc_version.restype = ctypes.c_char_p
    return f"glibc {libc.gnu_get_libc_version().decode()}"


def _maps() -> str:
    try:
        return Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return ""
