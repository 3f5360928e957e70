"""Changes of a training worth making: the answer of a tune run where there is one, else the changes that could apply.

A gain is stated only where `stepscope tune` measured it, of the same training on the same device.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import polars as pl

from stepscope.analysis.first_screen import machine_name
from stepscope.analysis.results import ResultTable
from stepscope.errors import UsageError
from stepscope.privacy import redact_command_line, redacted_texts, withheld_kinds, withhold_names
from stepscope.runfolder.schema import main_computation
from stepscope.runfolder.validation import Fields, parse, read_regular
from stepscope.units import percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_LEAST_DATA = 0.02  # share of the step that loading takes, from which on its workers are worth a trial
_TABLES = ("helps", "final", "code", "no-gain")


@dataclass(frozen=True)
class WhatToChange:
    """The answer in a sentence; its tables where changes were measured, else `untried`, each with why it could apply.

    command: the line that measures them, or that measured them. gain: what a perfect part would save, in a sentence,
    where `stepscope tune --what-if` measured it of this training; else empty.
    """

    sentence: str
    command: str
    tables: tuple[ResultTable, ...] = ()
    untried: tuple[tuple[str, str], ...] = ()
    gain: str = ""


_known: WeakKeyDictionary[Run, WhatToChange] = WeakKeyDictionary()  # a run is a snapshot: what it says stays


def what_to_change(run: Run) -> WhatToChange:
    """Return what a tune run of this training found; without one the changes that could apply, none with a gain."""
    if run not in _known:
        _known[run] = replace(_tuned_or_untried_changes(run), gain=_what_if_answer(run))
    return _known[run]


def _tuned_or_untried_changes(run: Run) -> WhatToChange:
    findings = _findings(run, "tune")
    if findings is not None:
        rows = {table["name"]: table for table in findings["tables"]}
        tables = tuple(_result_table(rows[name]) for name in _TABLES if name in rows)
        return WhatToChange(findings["answer"], findings["command"], tables)
    if run.framework != "torch":
        return WhatToChange("`stepscope tune` changes trainings with torch: none of what it tries applies here.", "")
    untried = tuple(_applicable_changes(run))
    command = shlex.join(_command(run))
    if not untried:
        return WhatToChange("No change that Stepscope knows is seen to apply to this run.", command)
    names = ", ".join(name for name, _ in untried)
    text = f"Not measured yet: {names} could apply. `{command}` tries them on this training and measures each."
    return WhatToChange(text, command, untried=untried)


def _result_table(stored: Mapping[str, Any]) -> ResultTable:
    return ResultTable(
        stored["name"], stored["title"], tuple(stored["columns"]), tuple(stored["rows"]), stored.get("note") or ""
    )


def _what_if_answer(run: Run) -> str:
    """Return the answer of the newest what-if experiment, where it surely saw the step wait for a part."""
    findings = _findings(run, "what-if")
    tables = (
        () if findings is None else [_result_table(table) for table in findings["tables"] if table["name"] == "what-if"]
    )
    lows = [row[table.columns.index("low %")] for table in tables if "low %" in table.columns for row in table.rows]
    sure = any(isinstance(low, int | float) and low > 0 for low in lows)
    return f"Measured by delays: {findings['answer']}" if findings is not None and sure else ""


def _findings(run: Run, study: str) -> dict[str, Any] | None:
    """Return the newest findings of a study of this training: within the run folder, or in `studies` beside it."""
    beside = run.path.parent.parent / "studies"
    places = [run.path / study / "findings.json", *sorted(beside.glob(f"*{study}*/findings.json"), reverse=True)]
    for place in places:
        findings = _read_findings(place, study)
        if findings is not None and (place == places[0] or _same_training(run, findings)):
            return findings
    return None


_MOST_BYTES, _MOST_ROWS = 16_000_000, 1000
_TABLE = {**dict.fromkeys(("name", "title", "note"), str), "columns": [str], "rows": [[None]]}
_FINDINGS = {
    **dict.fromkeys(("study", "answer", "command"), str),
    "device": None,
    "settings": {"target": str, "arguments": [str]},
    "tables": [Fields(_TABLE, ("name", "title", "columns", "rows"))],
}


def _read_findings(path: Path, study: str) -> dict[str, Any] | None:
    """Return findings as far as they can be, whoever wrote them; None where they are none of this study."""
    try:
        if path.parent.is_symlink():
            raise OSError(f"'{path.parent}' is a link")
        findings, _ = parse(read_regular(path, _MOST_BYTES), Fields(_FINDINGS, ("study", "answer", "tables")))
    except (OSError, ValueError):
        return None
    if findings is None or findings["study"] != study:
        return None
    findings = withhold_names(redacted_texts(findings))
    for table in findings["tables"]:
        rows = [tuple(row) for row in table["rows"][:_MOST_ROWS] if len(row) == len(table["columns"])]
        table["rows"] = [row for row in rows if not any(isinstance(cell, list | dict) for cell in row)]
    return {**findings, "command": "" if "argv" in withheld_kinds() else _plain_command(findings.get("command") or "")}


def _plain_command(text: str) -> str:
    """Return a line that runs stepscope tune and nothing else, to be pasted; empty where it is another."""
    try:
        words = shlex.split(text)
    except ValueError:
        return ""
    return text if words[:2] == ["stepscope", "tune"] and shlex.join(words) == text and text.isprintable() else ""


def _same_training(run: Run, findings: Mapping[str, Any]) -> bool:
    """Return whether it is of the same workload or script, arguments, batch size and device; not where unknown."""
    workload, settings = run.meta.get("workload") or {}, findings.get("settings") or {}
    target = str(settings.get("target", ""))
    device = machine_name(run)
    return (
        _recorded_name(target, bool(settings.get("module"))) == workload.get("name")
        and settings.get("batch") == workload.get("batch_size")
        and list(settings.get("arguments") or ()) == _script_arguments(run)
        and (device is None or device == findings.get("device"))
        and run.simulated is None
    )


def refuse_other_training(
    run: Run, target: str, batch: int | None, arguments: Sequence[str], here: str, module: bool = False
) -> None:
    """Raise UsageError where a run is not of this workload, script or module, its arguments, batch size and device."""
    workload, device = run.meta.get("workload") or {}, machine_name(run)
    if _recorded_name(target, module) != workload.get("name"):
        raise UsageError(f"--what-if: the run is of {workload.get('name')}, not of {target}", "give a run of the same")
    if run.simulated is not None:
        raise UsageError("--what-if: the sensors of that run were simulated", "give a run of this device")
    if device not in (None, here):
        raise UsageError(f"--what-if: the run is of {device}, and this is {here}", "give a run of this device")
    if "domain" in workload and "float32" not in str(workload.get("precision", "float32")):
        raise UsageError(f"--what-if: the run computes in {workload['precision']}", "give a run in float32")
    command = redact_command_line(["stepscope", "run", target, "--", *arguments])[4:]
    of_a_script = module or target.endswith(".py")
    if of_a_script and run.meta.get("argv") and command != (recorded := _script_arguments(run)):
        raise UsageError(
            f"--what-if: the script of the run was given {shlex.join(recorded) or 'no arguments'}",
            "give it the same after --",
        )
    if batch not in (None, workload.get("batch_size")):
        raise UsageError(
            f"--what-if: the run has batches of {workload.get('batch_size')}",
            f"--batch {workload.get('batch_size')}",
        )


def _recorded_name(target: str, module: bool) -> str:
    """Return the name that `stepscope run` gives a training."""
    return target if module else Path(target).stem


def _is_of_module(run: Run, script: str) -> bool:
    """Return whether what ran was a module of this name: as it was asked for, or as the process saw it."""
    argv = [str(word) for word in run.meta.get("argv") or ()]
    return argv[:4] == ["stepscope", "run", "-m", script] or _is_file_of_module("".join(argv[:1]), script)


def _is_file_of_module(file: str, name: str) -> bool:
    """Return whether a file is that of a module of this name, or the `__main__` of such a package."""
    path, parts = Path(file), tuple(name.split("."))
    places = path.parent.parts if path.stem == "__main__" else path.with_suffix("").parts
    return path.suffix == ".py" and places[-len(parts) :] == parts


def _command(run: Run) -> list[str]:
    """Return the command that would measure them."""
    script, arguments = run.meta.get("script"), _script_arguments(run)
    of_a_module = bool(script) and _is_of_module(run, str(script))
    if of_a_module and str(script).startswith("stepscope."):  # ours, that trains what a function returns
        function, *batch = arguments or ["MODULE:FUNCTION"]
        return ["stepscope", "tune", function, *(["--batch", batch[0]] if batch else [])]
    if script and (of_a_module or Path(str(script)).suffix == ".py"):  # not torchrun, nor a folder
        named = ["-m", str(script)] if of_a_module else [str(script)]
        return ["stepscope", "tune", *named, *(["--", *arguments] if arguments else [])]
    workload = run.meta.get("workload") or {}
    if script or "domain" not in workload:  # a loop of somebody's
        file = str((run.meta.get("argv") or [""])[0])
        by_itself = Path(file).suffix == ".py" and not run.part_folders  # a rank cannot be started alone
        return ["stepscope", "tune", file if by_itself else "SCRIPT.py"]
    device = str(workload.get("device") or "cpu")
    words = ["stepscope", "tune", str(workload["name"]), "--batch", str(workload.get("batch_size", 1))]
    return [*words, *(["--device", device] if device != "cpu" else [])]


def _script_arguments(run: Run) -> list[str]:
    """Return the arguments that the script of a run was given; none for a workload."""
    script, argv = run.meta.get("script"), [str(word) for word in run.meta.get("argv") or ()]
    words = argv[2:] if argv[:2] == ["stepscope", "run"] else argv  # as it was asked for, or as the script sees it
    words = words[1:] if words[:1] == ["-m"] else words
    if not script or not words:
        return []
    if Path(words[0]).name != Path(script).name and not _is_file_of_module(words[0], str(script)):
        return []
    return words[2:] if words[1:2] == ["--"] else words[1:]


def _applicable_changes(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the changes that nothing in this run speaks against: name, and why it could apply."""
    workload = run.meta.get("workload") or {}
    types = set(run.model["type"].drop_nulls()) if not run.model.is_empty() else set()
    names = set(run.self_times["name"].unique()) if not run.self_times.is_empty() else set()
    if types & {"Conv2d", "ConvTranspose2d"}:
        yield "channels_last", "it has convolutions over images"
    computed = main_computation(run.meta)  # under autocast, say, which a script does not tell
    precision = workload.get("precision", "float32") if computed is None else computed.precision
    device = str(workload.get("device") or "cpu") if computed is None else computed.device
    emulated = device == "cpu" and run.device.get("bf16") is False
    if types and "float32" in str(precision) and not emulated:
        yield "bf16", "it computes in float32"
    if workload.get("optimizer") in _FUSED and not any("_foreach_" in name or "_fused_" in name for name in names):
        optimizer = workload["optimizer"]
        yield "fused", f"{optimizer} updates tensor by tensor" if names else f"{optimizer} can update in one kernel"
    phases = run.phases().filter(pl.col("phase") == "data") if names else pl.DataFrame()
    share = float(phases["share"].sum()) if len(phases) else 0.0
    if share > _LEAST_DATA:
        yield "workers", f"loading takes {percent(share, 0)} of the step"
    threads = run.meta.get("threads")
    if isinstance(threads, int) and threads > 1:
        yield "threads", f"it computes with {threads} threads"
    allocator = run.meta.get("malloc") or {}
    if allocator.get("name") == "default" and "glibc" in str(allocator.get("library")):
        yield "allocator", "it runs on glibc's malloc with its default settings"
