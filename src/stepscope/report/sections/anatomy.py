"""One step, op by op, with what was sampled while it ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.time.tracks import OPERATOR_POWER, step_lanes, step_tracks
from stepscope.report.charts import steps as chart
from stepscope.report.page.parts import Anatomy, Section
from stepscope.runfolder import CATEGORIES, PHASES
from stepscope.units import category_label, duration, page_name, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Timeline"
ORDER = 14
FIGURES = ("anatomy",)

_MOST_OPS = 20_000
_MOST_TRACKS = {"power": 12, OPERATOR_POWER: 12, "core": 64}
_MOST_STACKED = 6
_FULL = {"core": 1.0}  # of the axis; other tracks end at their largest value
_COLOUR = {"measured": "power", "simulated": "power", "estimated": "estimated"}


def build(run: Run) -> Section:
    """The profiled step nearest to the median: lanes of ops, and below them power, cores and live memory."""
    ops = step_lanes(run)
    if ops.is_empty():
        return Section("no op was recorded after the warm-up")
    step = int(run.anatomy()["step"][0])
    step_row = run.steps.filter(pl.col("step") == step)
    length = int(step_row["t1_ns"][0]) - int(step_row["t0_ns"][0])
    tracks = step_tracks(run, step)
    drawn = ops.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True).head(_MOST_OPS)
    drawn = drawn.sort("lane", "start_ns", "level")
    names = {line.key: line.name for line in run.rails.lines}
    inside = {line.name: names.get(line.parent or "") for line in run.rails.lines}
    data = {"step": step, "length": length, **_lane_columns(drawn), "tracks": [*_track_rows(tracks, step, inside)]}
    calls = plural(len(ops), "op call")
    text = f"Step {step}, the profiled step nearest to the median, as recorded: {duration(length)}, {calls}. "
    caption = text + _caption(ops, len(ops) - len(drawn), tracks, step)
    return Section(
        "", (Anatomy(data, lambda width: chart.build_anatomy(drawn, tracks, length, width), caption, FIGURES[0]),)
    )


def _caption(ops: pl.DataFrame, excluded: int, tracks: pl.DataFrame, step: int) -> str:
    lanes = ops["lane"].n_unique()
    parts = [f"{lanes} lanes: threads, then streams." if lanes > 1 else "Layers, then ops below what called them."]
    parts.append("Gaps: no op ran there.")
    parts.append(
        "Click a layer to mark it here and in the list, drag to zoom and list what is in view, Escape for all."
    )
    if tracks.is_empty():
        parts.append("Nothing was sampled and no allocation recorded in this step.")
    else:
        parts.append(
            "Below: means of the shortest windows that each sensor can resolve, tinted where nothing was read."
        )
        if other := set(tracks.filter(pl.col("track") == "memory")["step"]) - {step}:
            parts.append(f"Allocations of this step were not recorded: live tensors are of step {min(other)}.")
        if OPERATOR_POWER in set(tracks["track"]):
            parts.append(
                "Power of ops is estimated by the fit, as a mean for each op: no sensor is quick enough to measure it."
            )
    if excluded:
        parts.append(f"The {excluded:,} shortest op calls are not drawn; an export has them.")
    return " ".join(parts)


def _lane_columns(ops: pl.DataFrame) -> dict[str, Any]:
    """Columns of the ops, with names as numbers into lists: a step has few names and many op calls."""
    names, modules = ops["name"].unique(maintain_order=True), ops["module"].drop_nulls().unique(maintain_order=True)
    place = {module: at for at, module in enumerate(modules)}
    number_of_name = {text: at for at, text in enumerate(names)}
    lines = ops["source"].drop_nulls().unique(maintain_order=True)
    line = {text: at for at, text in enumerate(lines)}
    lanes = ops.group_by("lane", "label", maintain_order=True).agg(levels=pl.col("level").max() + 1)
    phases = [phase for phase in PHASES if phase in set(ops["phase"])]
    return {
        "lanes": lanes.select("label", "levels").to_dicts(),
        "names": [page_name(text) for text in names],
        "modules": [page_name(text) for text in modules],
        "sources": [page_name(text) for text in lines],
        "phases": phases,
        "ops": {
            "lane": ops["lane"].to_list(),
            "level": ops["level"].to_list(),
            "start": ops["start_ns"].to_list(),
            "length": (ops["end_ns"] - ops["start_ns"]).to_list(),
            "name": [number_of_name[op] for op in ops["name"]],
            "module": [place.get(op, -1) for op in ops["module"]],
            "source": [line.get(op, -1) for op in ops["source"]],
            "phase": [phases.index(op) for op in ops["phase"]],
            "flops": ops["flops"].to_list(),
            "bytes": ops["bytes"].to_list(),
        },
    }


def _track_rows(
    tracks: pl.DataFrame, step: int, inside: Mapping[str, str | None] | None = None
) -> Iterator[dict[str, Any]]:
    """Rails and cores a row each; live memory as one row of categories on top of each other.

    inside: the rail that contains each; None where rails are not stacked.
    """
    for track, most in _MOST_TRACKS.items():
        rows = tracks.filter(pl.col("track") == track)
        if track == "power" and inside is not None:
            stacks = [*_rail_stacks(rows, inside)]
            stacked_names = [name for names, _ in stacks for name in names]
            yield from _track_rows(rows.filter(~pl.col("name").is_in(stacked_names)), step)
            yield from (row for _, row in stacks)
            continue
        if track == "core" and (stacked := _core_stack(rows)) is not None:
            yield stacked
            continue
        for number, ((label, kind), frame) in enumerate(rows.group_by(["name", "kind"], maintain_order=True)):
            if number == most:
                break
            top = _FULL.get(track) or float(frame["value"].fill_null(0.0).to_numpy().max()) * 1.05 or 1.0
            of = " of ops" if track == OPERATOR_POWER else ""
            text = f"{str(label).replace(':', ' ')}{of}{'' if kind == 'measured' else f' ({kind})'}"
            layers = (
                [*_certainty_layers(frame)]
                if of
                else [_track_layer("", "load" if track == "core" else _COLOUR[str(kind)], frame["value"])]
            )
            yield {**_track_header(frame, text, track), "top": top, "layers": layers}
    memory = tracks.filter(pl.col("track") == "memory")
    if not memory.is_empty():
        yield _memory_row(memory, step)


def _rail_stacks(power: pl.DataFrame, inside: Mapping[str, str | None]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the rails beside the largest that lie in the same one, where they were read together, and their row.

    Of many, the smaller ones are one layer. inside: the rail that contains each; the two are never added.
    """
    grouped = power.group_by(["name", "kind"], maintain_order=True)
    frames = [(str(rail), str(kind), frame) for (rail, kind), frame in grouped]
    frames.sort(key=lambda rail: -float(rail[2]["value"].fill_null(0.0).to_numpy().mean()))
    siblings: dict[tuple[str | None, str], list[tuple[str, pl.DataFrame]]] = {}
    for rail, kind, frame in frames[1:]:
        siblings.setdefault((inside.get(rail), kind), []).append((rail, frame))
    for (parent, kind), rails in siblings.items():
        spans = {(tuple(frame["start_ns"]), tuple(frame["end_ns"])) for _, frame in rails}
        if len(rails) < 2 or len(spans) != 1:
            continue
        many = len(rails) > _MOST_STACKED
        drawn = rails[: _MOST_STACKED - 1] if many else rails
        if many:
            smaller = rails[_MOST_STACKED - 1 :]
            _, their_sum = _stack_layers((rail, "", frame) for rail, frame in smaller)
            drawn = [*drawn, (f"{len(smaller)} smaller rails", smaller[0][1].with_columns(value=their_sum))]
        named = [(rail.replace(":", " "), f"rail-{number}", frame) for number, (rail, frame) in enumerate(drawn, 1)]
        layers, whole = _stack_layers(named)
        what = "other rails" if parent in (None, frames[0][0]) else f"rails inside {parent.replace(':', ' ')}"
        label = f"{what}{'' if kind == 'measured' else f' ({kind})'}"
        top = float(whole.to_numpy().max()) * 1.05 or 1.0
        header = _track_header(rails[0][1], label, "power")
        yield [rail for rail, _ in rails], {**header, "top": top, "layers": layers}


def _core_stack(rows: pl.DataFrame) -> dict[str, Any] | None:
    """All cores on top of each other in one row, where they were read together; else None."""
    frames = [(str(core), frame) for (core,), frame in rows.group_by(["name"], maintain_order=True)]
    spans = {(tuple(frame["start_ns"]), tuple(frame["end_ns"])) for _, frame in frames}
    if len(frames) < 2 or len(spans) != 1 or rows["value"].null_count() or rows["kind"].n_unique() > 1:
        return None
    shades = ("load", "share")
    named = [(core.replace(":", " "), shades[number % 2], frame) for number, (core, frame) in enumerate(frames)]
    layers, _ = _stack_layers(named)
    return {**_track_header(frames[0][1], "cores", "core"), "top": float(len(frames)), "layers": layers}


def _stack_layers(frames: Iterable[tuple[str, str, pl.DataFrame]]) -> tuple[list[dict[str, Any]], pl.Series]:
    """Layers with a name and a colour each, every one on top of those before it; and their sum."""
    layers: list[dict[str, Any]] = []
    whole: pl.Series | None = None
    for name, colour, frame in frames:
        values = frame["value"].fill_null(0.0)
        layer = _track_layer(name, colour, values)
        layers.append(layer if whole is None else {**layer, "below": _rounded_values(whole)})
        whole = values if whole is None else whole + values
    assert whole is not None, "there is at least one"
    return layers, whole


def _certainty_layers(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    for certainty, colour, is_known in (("known to 30 %", "power", True), ("less sure", "other", False)):
        yield _track_layer(
            certainty, colour, frame.select(pl.when(known=is_known).then("value").otherwise(0.0)).to_series()
        )


def _track_layer(name: str, colour: str, values: pl.Series) -> dict[str, Any]:
    return {"name": name, "colour": colour, "values": _rounded_values(values)}


def _track_header(frame: pl.DataFrame, label: str, track: str) -> dict[str, Any]:
    spans = {"start": frame["start_ns"].to_list(), "end": frame["end_ns"].to_list()}
    return {"track": track, "label": label, "unit": frame["unit"][0], **spans}


def _memory_row(memory: pl.DataFrame, step: int) -> dict[str, Any]:
    step_of_memory = int(memory["step"][0])
    categories = [category for category in CATEGORIES if category in set(memory["name"])]
    layers, whole = _stack_layers(
        (category_label(category), f"held-{category}", memory.filter(pl.col("name") == category))
        for category in categories
    )
    first = memory.filter(pl.col("name") == categories[0])
    other = "" if step_of_memory == step else f" of step {step_of_memory}"
    top = float(whole.to_numpy().max()) or 1.0
    return {**_track_header(first, f"live tensors{other}", "memory"), "top": top, "layers": layers}


def _rounded_values(values: pl.Series) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in values]
