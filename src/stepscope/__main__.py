"""The command line: a script of the user's is started by little code, all else by `cli/_application.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.cli._application import build_app

__all__ = ["build_app", "main"]
_INTERRUPTED = 130  # as a shell has it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        code = None
        if arguments[:1] == ["run"]:
            from stepscope.cli._script import run_with_common_options

            code = run_with_common_options(arguments[1:])
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        from stepscope.cli._application import report_error

        return report_error(error, arguments)
    if code is not None:
        return code
    from stepscope.cli._application import run_command_line

    return run_command_line(arguments)


def __getattr__(name: str) -> Any:
    if name != "build_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepscope.cli._application import build_app

    return build_app


if __name__ == "__main__":
    sys.exit(main())
