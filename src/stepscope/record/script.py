"""Run a user's unmodified training script inside a session, as `python train.py` would have run it."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from stepscope.errors import UsageError
from stepscope.record.session import Session, Settings, status_of


def run_script(target: str, arguments: Sequence[str], settings: Settings, as_module: bool = False) -> tuple[Path, int]:
    """(run folder, exit code) of a script, or of a module as with `python -m`.

    The script's own traceback goes to stderr and its own exit code comes back; UsageError where there is no script.
    """
    script = Path(target)
    if not as_module and not script.is_file():
        raise UsageError(f"there is no script '{target}'", "give the path of a Python file, or the name of a workload")
    name = target if as_module else script.stem
    session = Session(replace(settings, name=name, steps_from="optimizer"))
    kept_argv, kept_path = sys.argv, list(sys.path)
    sys.argv = [target, *arguments]
    session.start()
    session.update(argv=["stepscope", "run", target, "--", *arguments], script=str(script))
    status: tuple[str, str | None] = ("interrupted", None)
    try:
        if as_module:
            sys.path.insert(0, "")
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(script.resolve().parent))
            runpy.run_path(str(script), run_name="__main__")
        status, code = ("ok", None), 0
    except SystemExit as end:
        status, code = status_of(end), _exit_code(end)
    except KeyboardInterrupt as end:
        status, code = status_of(end), 130
    except BaseException as error:  # the script's own, shown as Python would have shown it
        status, code = status_of(error), 1
        traceback.print_exception(type(error), error, _without_us(error.__traceback__))
    finally:
        session.close(*status)
        sys.argv, sys.path[:] = kept_argv, kept_path
    return session.path, code


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    sys.stderr.write(f"{end.code}\n")
    return 1


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
