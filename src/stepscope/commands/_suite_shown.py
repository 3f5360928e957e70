"""What `stepscope suite show`, `export` and `list` say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import MissingDependency, StepscopeError, UnknownName, UsageError
from stepscope.units import bytes_, number, percent, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stepscope.studies.suite.results import Results
    from stepscope.studies.suite.score import Score

FORMATS = ("csv", "parquet", "markdown", "mlperf", "result")
_MOST_NOTES = 30
_ENDINGS = {"markdown": ".md", "mlperf": ".log", "result": ".json"}
_RULES: dict[str, Callable[[Any], str]] = {
    "steps": lambda value: f"at most {value} steps",
    "seconds": lambda value: f"at most {value:g} s of steps",
    "interval": lambda value: f"until ms a step is known within {percent(value, 0)}",
    "cool_to_celsius": lambda value: f"from {value:g} degC or less",
    "pause_s": lambda value: f"after a pause of {value:g} s",
    "memory_bytes": lambda value: f"with {bytes_(value)} of memory",
    "time_limit_s": lambda value: f"ended after {value:g} s",
}


def shown(results: Results, against: str | None, models: bool) -> list[RenderableType]:
    """The parts of the page, from the top."""
    from rich.text import Text

    from stepscope.report.suite_tables import model_table, notes, results_table, score_table
    from stepscope.studies.suite.models import corrected
    from stepscope.studies.suite.results import table

    frame = table(results)
    parts: list[RenderableType] = [*(Text(line) for line in heading(results)), Text(""), results_table(frame)]
    said = notes(frame)
    more = [f"... and {len(said) - _MOST_NOTES} more (see suite export)"] if len(said) > _MOST_NOTES else []
    parts += [Text(f"- {line}", style="dim", overflow="fold") for line in [*said[:_MOST_NOTES], *more]]
    for each in scores(results, against):
        parts += [Text(""), Text(score_line(each), style="bold")]
        if against is not None:
            parts.append(score_table(each.parts))
    if models:
        parts += [Text(""), model_table(corrected(results))]
    return parts


def page(results: Results, against: str | None, models: bool, out: Path) -> Path:
    """The same as a page; returns its path."""
    from stepscope.report import suite_page
    from stepscope.report.suite_tables import notes
    from stepscope.studies.suite.models import corrected
    from stepscope.studies.suite.results import table

    frame = table(results)
    facts = [("Sweep", heading(results)[0]), *(("", line) for line in heading(results)[1:])]
    found = [(score_line(each), each.parts) for each in scores(results, against)]
    return suite_page.write(out, results.name, facts, frame, notes(frame), found, corrected(results) if models else ())


def heading(results: Results) -> list[str]:
    """What was measured on what, and by which rules."""
    content, device = results.content, results.device
    name = device.get("board") or "unnamed board"
    cores = len(device.get("cores") or [])
    rules = [form(value) for key, form in _RULES.items() if (value := content["rules"].get(key))]
    said = ", ".join([*rules, f"seed {content['rules']['seed']}"])
    limited = [f"memory limit: {content['limits']['memory']}"] if content["limits"]["memory"] else []
    return [
        f"{results.name}: {name}, {device.get('cpu') or device.get('machine')}, {plural(cores, 'core')}",
        f"{', '.join(f'{key} {value}' for key, value in content['versions'].items())}",
        f"rules: {said}",
        *limited,
    ]


def scores(results: Results, against: str | None) -> list[Score]:
    """Speed, and energy where both measured it; against the first stored device unless another is named."""
    from stepscope.studies.suite.score import reference, reference_names, score

    name = against or next(iter(reference_names()), None)
    if name is None:
        return []
    other = reference(name)
    found = [score(results, other), score(results, other, "energy_per_sample_j")]
    return [each for each in found if each.value is not None or (against is not None and each is found[0])]


def score_line(each: Score) -> str:
    """The score in a sentence."""
    what = {"step_time_ms": "speed", "energy_per_sample_j": "energy"}[each.column]
    if each.value is None:
        return f"no {what} score against {each.reference}: no part was measured by both"
    between = "" if each.low is None else f" ({number(each.low)} to {number(each.high)})"
    parts = f"{each.counted} of {len(each.parts)} parts"
    return f"{what} score {number(each.value)}{between} against {each.reference}, {parts}"


def as_json(results: Results, against: str | None) -> dict[str, Any]:
    """Everything that `show` says, for scripts."""
    from stepscope.studies.suite.models import corrected
    from stepscope.studies.suite.results import table

    return {
        **{key: results.content[key] for key in ("name", "created", "tier", "rules", "limits", "device", "versions")},
        "settings": table(results).to_dicts(),
        "scores": [{**vars(each), "parts": each.parts.to_dicts()} for each in scores(results, against)],
        "models": corrected(results),
    }


def refuse_export(to: str, runs: bool) -> None:
    """UnknownName and UsageError for what no export holds."""
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS)
    if runs and to not in ("csv", "parquet"):
        raise UsageError(f"--runs: {to} holds what it holds", "use it with --to csv or --to parquet")


def default_export(path: Path, to: str) -> Path:
    """Beside the folder of a sweep, or beside a result file."""
    return path.parent / f"{path.stem if path.is_file() else path.name}{_ENDINGS.get(to, f'.{to}')}"


def default_page(path: Path) -> Path:
    """In the folder of a sweep, or beside a result file."""
    return path / "suite.html" if path.is_dir() else default_export(path, "html")


def exported(results: Results, to: str, out: Path, runs: bool) -> Path:
    """Write one export; OutputNotWritable where the disk refuses."""
    from stepscope.report.suite_exports import markdown, mlperf
    from stepscope.studies.suite.results import runs_table, save, table
    from stepscope.studies.suite.state import writing

    if to == "result":
        save(results, out)
        return out
    with writing(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        frame = runs_table(results) if runs else table(results)
        if to == "csv":
            frame.write_csv(out)
        elif to == "parquet":
            frame.write_parquet(out)
        elif to == "markdown":
            out.write_text(markdown(frame, results.name, heading(results)), encoding="utf-8")
        else:
            lines = mlperf(results.runs, results.device, results.content["versions"])
            out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return out


def listed(below: Path) -> dict[str, Any]:
    """Tiers, sweeps and reference devices."""
    from stepscope.commands._suite_entries import tiers
    from stepscope.studies.suite.score import reference_names

    by_tier: dict[str, list[str]] = {}
    with contextlib.suppress(MissingDependency):  # without torch sweeps can still be looked at
        for name, of_one in tiers().items():
            for tier in of_one:
                by_tier.setdefault(tier, []).append(name)
    return {"tiers": by_tier, "sweeps": list(_sweeps(below)), "reference_devices": reference_names()}


def listed_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [f"{tier} ({len(names)}): {', '.join(names)}" for tier, names in found["tiers"].items()]
    lines += [""] + [_sweep_text(each) for each in found["sweeps"]]
    return [*lines, f"reference devices: {', '.join(found['reference_devices']) or 'none'}"]


def _sweep_text(sweep: dict[str, Any]) -> str:
    if "unreadable" in sweep:
        return f"{sweep['path']}: cannot be read: {sweep['unreadable']}"
    return f"{sweep['path']}: {sweep['ended']} of {sweep['runs']} runs"


def _sweeps(below: Path) -> Iterator[dict[str, Any]]:
    from stepscope.studies.suite.state import SweepFolder

    for plan in sorted([*below.glob("*/sweep.json"), *below.glob("*/boards/*/sweep.json")]):
        try:
            folder = SweepFolder(plan.parent)
        except StepscopeError as error:  # of a newer Stepscope, or damaged
            yield {"path": str(plan.parent), "unreadable": str(error)}
            continue
        ended = folder.ended()
        runs = folder.order
        yield {"path": str(folder.path), "runs": len(runs), "ended": sum(point.id in ended for point in runs)}
