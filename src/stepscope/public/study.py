"""`stepscope.study`: a question that needs many runs, as `stepscope study` answers it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnknownName, UsageError
from stepscope.public._asked import asked, command

if TYPE_CHECKING:
    from stepscope.analysis.findings import Findings

_NO_FINDINGS = {"compare": "use stepscope.compare and stepscope.check"}


def study(name: str, *, out: str | Path | None = None, progress: bool = False, **settings: Any) -> Findings:
    """Answer a question with many runs, as `stepscope study NAME`; its answer, tables, notes and the frames of figures.

    name: kernels, breakdown, batch, threads, precision, power-modes, optimizers, partial, daily, observations, or one
    that was added. settings: the options and arguments of its command by their names, with _ for -: `quick=True`,
    `workload="lenet"`, `batch=[1, 2, 4]`, `lr={"adam": 0.003}`, `import_="tables"`. out: the folder of the study, with
    page and figures; the same call with the same folder goes on where it stopped (studies/<time>-<name> unless said).
    progress: on stderr. Units stand in the names of the columns; null is "not measured".

    Raises UnknownName for a study or setting that is not there, UsageError for a value that cannot be or a folder that
    holds another question, OutputNotWritable; KeyboardInterrupt leaves the folder so that it can be gone on with.
    """
    known = command("study").commands
    if name not in known:
        raise UnknownName("study", name, known)
    if name in _NO_FINDINGS:
        raise UsageError(f"'{name}' is no question of its own in Python", _NO_FINDINGS[name])
    found = asked(("study", name), {**settings, "out": out}, quiet=not progress).found
    if not found:
        raise UsageError(
            f"asked so, the study '{name}' measures nothing", "see what its command says: power-modes wants apply=True"
        )
    return found[-1]
