"""A configuration in a file: `stepscope tune --apply` writes it, `stepscope run --with` trains with it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable, UsageError

if TYPE_CHECKING:
    from stepscope.experiments.tune.changes import Change


@dataclass(frozen=True)
class Config:
    """Changes by name, the environment that they need, and the facts by which they are known."""

    changes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def refuse_path(path: Path) -> None:
    """Raise UsageError for a file that a configuration cannot be written to, before anything is measured for it."""
    if path.suffix not in (".toml", ".env"):
        raise UsageError(f"--apply {path}: neither .toml nor .env", "for example --apply stepscope.toml")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--apply {path}: no file in a folder that exists", "for example --apply stepscope.toml")


def write_config(path: Path, changes: Sequence[Change], facts: Mapping[str, Any], head: str) -> None:
    """Write changes as TOML, or, where the name ends with .env, their environment for a shell.

    UsageError where an environment cannot hold them.
    """
    environment = {name: value for change in changes for name, value in change.environment.items()}
    lines = [f"# {line}" for line in head.splitlines()]
    if path.suffix == ".env":
        inside = [change.name for change in changes if not change.environment]
        if inside:
            raise UsageError(
                f"an environment cannot hold {', '.join(inside)}", "write a .toml for stepscope run --with"
            )
        lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    else:
        lines += [
            f"changes = {json.dumps([change.name for change in changes])}",
            f"facts = {json.dumps(json.dumps(facts))}",
        ]
        lines += ["", "[environment]", *(f"{name} = {json.dumps(value)}" for name, value in environment.items())]
        lines += [line for change in changes for line in ("", f"# {change.name}:", *_commented(change.code))]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(f"cannot write '{path}': {error.strerror or error}", "give another file") from error


def read_config(path: Path) -> Config:
    """Read what `write_config` wrote: `name = value` lines, whose values are strings or lists of strings."""
    values: dict[str, Any] = {}
    environment: dict[str, str] = {}
    into: dict[str, Any] = values
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--with {path}: {error.strerror or error}", "stepscope tune --apply writes one") from error
    for place, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        if words == "[environment]":
            into = environment
            continue
        name, equals, value = (part.strip() for part in words.partition("="))
        try:
            into[name] = json.loads(value)
        except ValueError:
            equals = ""
        if not equals:
            raise UsageError(f'--with {path}: line {place} is not `name = "value"`: {words}', "stepscope tune --apply")
    try:
        return Config(tuple(values.get("changes", ())), environment, json.loads(values.get("facts", "{}")))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--with {path}: not a configuration: {error}", "stepscope tune --apply writes one") from error


def _commented(code: str) -> list[str]:
    return [f"#   {line}" for line in code.splitlines()]
