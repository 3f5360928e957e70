"""The end of a process that was forked with all of torch: a small script spends nine tenths of its time there.

`spare_libraries` leaves out what takes apart the libraries that the fork came with. All that the script and Stepscope
have made ends as the interpreter ends: threads, exit functions, modules, objects.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
import weakref
from pathlib import Path

_spared: list[str] = []
_noted: list[str] = []


def spare_libraries() -> None:
    """Leave the modules of others as they are in this process, and call no destructors of torch's C++."""
    known = {*sys.stdlib_module_names, "__main__", "stepscope", "ending", "faults"}
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined] # torch takes 700 operators back, one by one
        finalizer.atexit = False
    _spared.extend(name for name in sys.modules if name.partition(".")[0] not in known)
    libc = ctypes.CDLL(None)
    libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for name in ("_exit", "_IO_flush_all"):  # the one that is registered last comes first
        libc.on_exit(ctypes.cast(getattr(libc, name), ctypes.c_void_p), None)


def note_modules(file: str) -> None:
    """Write into a file at the end which modules of ours are there, as far as the script lets files be written."""
    _noted.append(file)


@atexit.register  # before all others, and so the last one that is called
def _keep_spared() -> None:
    for file in _noted:
        with contextlib.suppress(Exception):
            Path(file).write_text("".join(f"{name}\n" for name in sys.modules if name.startswith("stepscope.")))
    for name in _spared:
        module = sys.modules.pop(name, None)
        if module is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
