"""Writing an export: where it goes, what it will hold, and the file or folder in one piece."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from stepscope.analysis.run import Run, opened
from stepscope.errors import OutputNotWritable, UsageError
from stepscope.report import exports
from stepscope.report.exports._excerpt import Excerpt, excerpt


@dataclass(frozen=True)
class Planned:
    """An export that has been asked for: its module, the part of the run, and the path that will be written."""

    kind: ModuleType
    part: Excerpt
    target: Path


def planned(run: str | Path | Run, to: str, steps: str = "all", out: Path | None = None) -> Planned:
    """What will be written where; UnknownName or UsageError before anything is."""
    kind, source = exports.find(to), opened(run)
    part = excerpt(source, steps)
    target = _target(source, out, f"export-{to}{_stem(steps)}{kind.SUFFIX}", bool(kind.SUFFIX))
    if not kind.SUFFIX and target.resolve() == source.path.resolve():
        raise UsageError(f"--out {target}: that is the run itself", "choose another folder")
    return Planned(kind, part, target)


def write(plan: Planned) -> Path:
    """Write it and return its path; OutputNotWritable where the disk refuses.

    A file is written beside its place and moved into it: a disk that fills up leaves no half of it.
    """
    unfinished = plan.target.with_name(f".{plan.target.name}.part")
    try:
        if not plan.kind.SUFFIX:
            plan.kind.write(plan.part, plan.target)
            return plan.target
        plan.kind.write(plan.part, unfinished)
        unfinished.replace(plan.target)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise OutputNotWritable(
            f"cannot write '{plan.target}': {error.strerror or error}",
            "choose another place with --out, or fewer --steps",
        ) from error
    return plan.target


def _target(run: Run, out: Path | None, name: str, is_file: bool) -> Path:
    """The path that is meant: a file goes into a folder that is there, a folder of tables becomes what is named."""
    if out is None:
        return run.path / name
    return out / name if is_file and out.is_dir() else out


def _stem(steps: str) -> str:
    """Part of the file name, so that two choices of steps do not overwrite each other."""
    return "" if steps == "all" else f"-{steps.replace(':', '-')}"
