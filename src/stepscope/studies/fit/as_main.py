"""A user's script as `python script.py` runs it, ended from within once it has made enough steps.

Only torch is imported here: what measures a script's memory must not add to it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class EnoughSteps(BaseException):
    """Ends the script from within its own loop; no `except Exception` of the script's catches it."""


@contextlib.contextmanager
def until_enough_steps(stepped: Callable[[Any], bool]) -> Iterator[None]:
    """Ends the script with EnoughSteps once `stepped`, called after each update of its first optimizer, says so."""
    first: list[int] = []

    def updated(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        first.append(id(optimizer))
        if id(optimizer) == first[0] and stepped(optimizer):
            raise EnoughSteps

    hook = register_optimizer_step_post_hook(updated)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def as_main(target: str, arguments: Sequence[str]) -> Iterator[None]:
    """What `python target arguments` sets up; what the script prints goes to stderr."""
    kept_argv, kept_path = sys.argv, list(sys.path)
    sys.argv = [target, *arguments]
    sys.path.insert(0, str(Path(target).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv, sys.path[:] = kept_argv, kept_path
