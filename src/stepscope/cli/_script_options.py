"""The options of a script among those of a command that takes both: tune, fit and the studies of trainings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand

from stepscope.cli._script import is_script, print_to_stderr


class ScriptCommand(TyperCommand):
    """Options and values: behind a script those that are not ours are its own, and behind `--` all are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and let options pass that are not known where a script takes them."""
        takes_value = takes_value_by_option(self.params)
        place = target_index(args, takes_value)
        takes_words = ctx.allow_extra_args or any(option.name == "arguments" for option in self.params)
        if takes_words and place < len(args) and is_script(args[place]):
            ctx.ignore_unknown_options = True
            _warn_of_mistyped_options(args[place], args[place + 1 :], takes_value)
        return super().parse_args(ctx, args)


def takes_value_by_option(params: Sequence[Any]) -> dict[str, bool]:
    """Return the options of a command, and whether each takes a value."""
    return {
        name: not getattr(option, "is_flag", False)
        for option in params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }


def target_index(args: Sequence[str], takes_value: Mapping[str, bool]) -> int:
    """Return where the first word stands that is neither an option nor the value of one."""
    place = 0
    while place < len(args) and args[place].startswith("-") and args[place] not in ("--", "-"):
        place += 2 if takes_value.get(args[place], False) else 1
    return place


def _warn_of_mistyped_options(script: str, arguments: Sequence[str], takes_value: Mapping[str, bool]) -> None:
    """Say which of the script's options looks like one of ours: a slip of the finger goes to the script in silence."""
    ours = [name for name in takes_value if name.startswith("--")]
    for word in arguments[: arguments.index("--") if "--" in arguments else len(arguments)]:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, ours, n=1, cutoff=0.85) if name.startswith("--") else []
        if near and name not in takes_value:
            print_to_stderr(f"{name} is an option of {script}; one of stepscope is {near[0]}")
