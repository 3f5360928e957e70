"""Writes stepscope.1 beside this file from the commands themselves: python docs/man/make.py."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from stepscope import __version__
from stepscope.__main__ import build_app

HERE = Path(__file__).parent


def man_page() -> str:
    """stepscope.1: one page with every command, its arguments and its options; roff with the man macros."""
    group: Any = get_command(build_app())
    lines = [
        f'.TH STEPSCOPE 1 "" "stepscope {__version__}" "User Commands"',
        ".SH NAME",
        f"stepscope \\- {_escaped(_first(group.help)).rstrip('.')}",
        ".SH SYNOPSIS",
        ".B stepscope",
        "COMMAND [ARGUMENTS] [OPTIONS]",
        ".SH DESCRIPTION",
        *_paragraphs(group.help),
        "Every command answers \\-\\-help.",
        ".SH COMMANDS",
    ]
    for name, command in sorted(group.commands.items()):
        lines += _command(name, command)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    below = getattr(command, "commands", {})
    arguments = [_argument(p) for p in command.params if p.param_type_name == "argument"]
    words = [name, *(["COMMAND"] if below else arguments)]
    yield f'.SS "stepscope {_escaped(" ".join(words))}"'
    yield from _paragraphs(command.help)
    for parameter in command.params:
        if parameter.name != "help":
            yield from _parameter(parameter)
    for inner, each in below.items():
        yield from _command(f"{name} {inner}", each)


def _argument(argument: Any) -> str:
    name = str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _parameter(parameter: Any) -> Iterator[str]:
    is_argument = parameter.param_type_name == "argument"
    names = [parameter.name.upper()] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    yield ".TP"
    yield ".B " + _escaped(", ".join(names))
    yield _line(" ".join(_cleaned(getattr(parameter, "help", "")).split()) or "See above.")


def _paragraphs(text: str | None) -> Iterator[str]:
    for place, paragraph in enumerate(_cleaned(text).split("\n\n")):
        if place:
            yield ".PP"
        yield _line(" ".join(paragraph.split()))


def _first(text: str | None) -> str:
    return _cleaned(text).splitlines()[0]


def _cleaned(text: str | None) -> str:
    return inspect.cleandoc(text or "").strip()


def _line(text: str) -> str:
    """A line of text: what begins with a dot or a quote would be a macro."""
    escaped = _escaped(text)
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped


def _escaped(text: str) -> str:
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq").replace("`", "")
    return re.sub(r"[^\x00-\x7f]", lambda found: rf"\[u{ord(found[0]):04X}]", plain)


def main() -> int:
    """Write the page."""
    (HERE / "stepscope.1").write_text(man_page(), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
