"""At the end of a run: a process that only called a model gives its place to the first that trained.

The folder of the run belongs to the first process that seemed to train, or to rank 0. Where that made no step (a
launcher that tried its model before it started the ranks, a worker that called an encoder, no rank 0 on this machine),
its files and those of the first part with steps change places. What is of the machine stays: sensors, device, events.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from stepscope.files import atomic_write, read_json_object, replace_json
from stepscope.liveness import is_process_of_run_alive
from stepscope.part_names import has_steps

_PARTS, _EVENTS, _HEADER = "ranks", "events.jsonl", "run.json"
_OF_PROCESS = ("ops", "layers", "memory", "model.json", "sources.json", "accesses.json", ".reserve")
_OF_COMMAND = ("schema", "id", "argv", "script", "launcher_pid", "power_model", "simulated", "simulated_settings")


def promote_first_part_with_steps(run: Path) -> bool:
    """Give the run the steps of its first part that has some, where it has none of its own; True where it did."""
    if has_steps(run):
        return False
    parts = [path for path in (run / _PARTS).glob("*") if path.name.isdecimal() and has_steps(path)]
    part = min(parts, key=lambda path: int(path.name), default=None)
    header = read_json_object(run / _HEADER)
    if part is None or not header:
        return False
    trained = read_json_object(part / _HEADER)
    if not trained or any(_is_written(path, its) for path, its in ((run, header), (part, trained))):
        return False
    _copy_events(part, run)  # first: where the disk is full, all stays as it was
    _swap_files(run, part)
    _rename_scopes(run / "channels.json", {"rank:0": f"rank:{part.name}", f"rank:{part.name}": "rank:0"})
    of_command = {name: value for name, value in header.items() if name in _OF_COMMAND}
    of_process = {name: value for name, value in trained.items() if name not in (*_OF_COMMAND, "process")}
    replace_json(run / _HEADER, {**of_process, **of_command}, whole=True)
    if isinstance(header.get("rank"), int):  # a member of the process group: how it ended is to be known
        former = {name: value for name, value in header.items() if name not in _OF_COMMAND}
        replace_json(part / _HEADER, {**former, "schema": trained["schema"], "id": trained["id"]}, whole=True)
    else:
        shutil.rmtree(part)
        with contextlib.suppress(OSError):  # other parts are in it
            part.parent.rmdir()
    return True


def _is_written(path: Path, header: dict[str, Any]) -> bool:
    """Return whether the process of a part may still write: a launcher that waits writes nothing."""
    own = header.get("pid") != header.get("launcher_pid")
    return own and header.get("status") == "running" and is_process_of_run_alive(header, path)


def _swap_files(run: Path, part: Path) -> None:
    """Let the files of the two processes change places; what only one of them has moves."""
    waiting = run / f".{_PARTS}"
    waiting.mkdir()
    for source, target in ((run, waiting), (part, run), (waiting, part)):
        for path in [*source.glob("steps*"), *(source / name for name in _OF_PROCESS)]:
            if path.exists():
                path.rename(target / path.name)
    waiting.rmdir()


def _copy_events(part: Path, run: Path) -> None:
    """Add the events of a part to those of the run, without those that miss steps."""
    lines = [
        line
        for path in (run / _EVENTS, part / _EVENTS)
        if path.exists()
        for line in path.read_bytes().splitlines(keepends=True)
        if b'"no-steps"' not in line
    ]
    if (run / _EVENTS).exists() or lines:
        with atomic_write(run / _EVENTS, whole=True) as whole:
            whole.write_bytes(b"".join(lines))


def _rename_scopes(channels: Path, names: dict[str, str]) -> None:
    """Let the channels of the two processes have the scopes of their new places."""
    table = read_json_object(channels)
    for channel in table.get("channels") or []:
        channel["scope"] = names.get(channel.get("scope"), channel.get("scope"))
    if table:
        replace_json(channels, table, whole=True)
