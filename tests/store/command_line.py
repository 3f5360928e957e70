"""A command line as a user types it, and the exit code that the shell sees."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.__main__ import main


def exit_code(arguments: Sequence[str]) -> int:
    """Run `stepscope` with these arguments in this process."""
    try:
        return main(arguments)
    except SystemExit as left:
        return int(left.code or 0)
