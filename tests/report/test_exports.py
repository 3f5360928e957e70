"""Exports: other tools find in them what the run holds, no slice is lost or bent, and any run can be exported."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fabricate import MODEL, START_NS, STEP, Op, Sampled, every_step, fabricate_run
from tests.patience import HANG_S
from tests.report import perfetto_reader
from tests.report.perfetto_reader import Track
from tests.report.stored_runs import simulated_board

from stepscope.analysis.channels import channel_timeline
from stepscope.analysis.run import Run
from stepscope.cli.export import export as export_command
from stepscope.errors import OutputNotWritable, UnknownName, UsageError
from stepscope.report import exports
from stepscope.report.exports import perfetto, speedscope
from stepscope.report.exports import perfetto as protobuf
from stepscope.report.exports._excerpt import (
    Excerpt,
    excerpt,
    plan_export,
    raw_tables,
    small_tables,
    write_export,
)
from stepscope.report.exports._tracks import divide_into_lanes, sampled_tracks
from stepscope.report.figures import parse_width, write_multi_run_figure
from stepscope.runfolder import RunWriter
from stepscope.runfolder.validation import clean_text

NAMES = sorted(module.__name__.rpartition(".")[2] for module in exports.discover_exports().modules)
KERNEL = Op("sgemm_kernel", "fc", "forward", 400, device="cuda:0", thread=7)
WITH_GPU = (*STEP, Op("aten::launch", "fc", "forward", 200, (KERNEL,)))
HOSTILE = "\u202eevil\u0007\x1b[31m </script>" + "x" * 500
ASLEEP_NS = 5_000_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a GPU, power, a gap, an event, and a boot clock that is ahead of the monotonic one."""
    clock = {"monotonic_ns": START_NS, "boottime_ns": START_NS + ASLEEP_NS, "unix_ns": 1_700_000_000_000_000_000}
    folder = tmp_path_factory.mktemp("runs")
    path = fabricate_run(folder, steps=12, ops=WITH_GPU, power_w=5.0, gap=(0.4, 0.6), header={"clock": clock})
    event = {"t_ns": START_NS + 1_000_000, "source": "sampler", "kind": "sensor-lost", "message": "sensor x is lost"}
    (path / "events.jsonl").write_text(json.dumps(event) + "\n")
    return Run(path)


@pytest.fixture(scope="module")
def trace(run: Run) -> dict[int, Track]:
    return perfetto_reader.read(b"".join(perfetto.trace_parts(excerpt(run))))


def _op_slices(trace: dict[int, Track]) -> list[perfetto_reader.Slice]:
    """Slices of the tracks of threads and streams."""
    own = [track for track in trace.values() if track.thread or " stream " in track.name or "thread " in track.name]
    return [found for track in own for found in track.slices]


def _track(trace: dict[int, Track], name: str) -> Track:
    (found,) = [track for track in trace.values() if track.name == name]
    return found


def _sums(rows: list[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for name, ns in rows:
        found[name] = (found[name][0] + 1, found[name][1] + ns)
    return dict(found)


def _written(name: str, part: Excerpt, tmp_path: Path) -> Path:
    module = exports.find_export(name)
    path = tmp_path / f"out{module.SUFFIX}"
    module.write(part, path)
    return path


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.iterdir())


def test_the_folder_has_every_export_that_is_promised() -> None:
    assert not exports.discover_exports().warnings
    assert NAMES == ["chrome", "csv", "json", "latex", "parquet", "perfetto", "speedscope"]


def test_no_cell_of_csv_is_a_formula_to_a_spreadsheet(tmp_path: Path) -> None:
    formulas = ("=cmd|'/C calc'!A0", "+1+cmd", "@SUM(A1)", "-2+3+cmd", "\t=1")
    folder = fabricate_run(tmp_path, steps=4)
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"t_ns": 1, "kind": said, "message": said}) + "\n" for said in formulas)
    (tmp_path / "tables").mkdir()
    exports.find_export("csv").write(excerpt(Run(folder)), tmp_path / "tables")
    for path in (tmp_path / "tables").iterdir():
        with path.open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell.lstrip("\t")[:1] in "=+@-" and cell and not _is_number(cell)]
        if path.name == "events.csv":
            assert {f"'{said}" for said in formulas if said[0] != "\t"} <= set(cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell == "-"
    return True


def test_an_unknown_export_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as refused:
        exports.find_export("perfeto")
    assert (refused.value.hint or "").startswith("did you mean perfetto")


def _by_layer(ops: pl.DataFrame) -> list[str]:
    """How viewers are to name each op: by its layer, where it has one with a name."""
    named = ops.select(pl.col("module").cast(pl.String), pl.col("name").cast(pl.String)).iter_rows()
    return [f"{module} \u00b7 {name}" if module else name for module, name in named]


def test_perfetto_has_every_op_once_with_the_time_that_the_run_has(run: Run, trace: dict[int, Track]) -> None:
    slices = _op_slices(trace)
    ops = run.ops.with_columns(ns=pl.col("t1_ns") - pl.col("t0_ns"))
    by_name = [(found.name, found.t1_ns - found.t0_ns) for found in slices]
    assert _sums(by_name) == _sums(list(zip(_by_layer(ops), ops["ns"].to_list(), strict=True)))
    by_phase = [(found.category, found.t1_ns - found.t0_ns) for found in slices]
    assert _sums(by_phase) == _sums(ops.select(pl.col("phase").cast(pl.String), "ns").rows())
    modules = [(str(found.args.get("module")), found.t1_ns - found.t0_ns) for found in slices]
    assert _sums(modules) == _sums([(str(module), ns) for module, ns in ops.select("module", "ns").rows()])
    assert sum(found.args.get("flops", 0) for found in slices) == ops["flops"].sum()


def test_perfetto_nests_each_slice_in_the_one_that_is_open_above_it(trace: dict[int, Track]) -> None:
    for track in trace.values():
        above: list[perfetto_reader.Slice] = []
        for found in track.slices:
            del above[found.depth :]
            assert len(above) == found.depth
            assert all(outer.t0_ns <= found.t0_ns <= found.t1_ns <= outer.t1_ns for outer in above)
            above.append(found)


def test_perfetto_counts_in_boot_time(run: Run, trace: dict[int, Track]) -> None:
    steps = _track(trace, "steps").slices
    assert [found.t0_ns - ASLEEP_NS for found in steps] == run.steps["t0_ns"].to_list()
    assert [found.name for found in steps] == [f"step {step}" for step in run.steps["step"]]


def test_perfetto_leads_from_each_module_call_to_its_backward(run: Run, trace: dict[int, Track]) -> None:
    slices = _op_slices(trace)
    starts = {found.starts: found for found in slices if found.starts}
    ends = {found.ends: found for found in slices if found.ends}
    recorded = int(run.steps["recorded"].sum())
    assert starts.keys() == ends.keys()
    assert len(starts) == 3 * recorded, "features.0, features.1 and fc have a backward pass of their own"
    for number, begin in starts.items():
        end = ends[number]
        assert (begin.category, end.category) == ("forward", "backward")
        assert begin.args["module"] == end.args["module"]
        assert begin.t1_ns <= end.t0_ns


def test_perfetto_has_a_track_a_thread_and_stream_below_one_process(trace: dict[int, Track]) -> None:
    (process,) = [track for track in trace.values() if track.process]
    assert process.process == "training fabricated"
    assert _track(trace, "thread 1").thread == (2**22 + 1, 1)
    kernels = _track(trace, "cuda:0 stream 7")
    assert {found.name.rpartition(" \u00b7 ")[2] for found in kernels.slices} == {"sgemm_kernel"}


def test_perfetto_phases_follow_each_other_within_the_step(run: Run, trace: dict[int, Track]) -> None:
    phases = _track(trace, "phases").slices
    assert Counter(found.name for found in phases)["backward"] == int(run.steps["recorded"].sum())
    assert all(first.t1_ns <= second.t0_ns for first, second in pairwise(phases))


def test_perfetto_counters_carry_units_and_the_readings_themselves(run: Run, trace: dict[int, Track]) -> None:
    power = _track(trace, "power board")
    read = run.samples("power").drop_nulls("value")
    assert power.unit == "W"
    assert trace[power.parent].name == "Power"
    assert [value for _, value in power.counters] == read["value"].to_list()
    middles = ((read["t0_ns"] + read["t1_ns"]) // 2).to_list()
    assert [t_ns - ASLEEP_NS for t_ns, _ in power.counters] == middles
    assert _track(trace, "rss process").unit == "B"


def test_perfetto_shows_a_gap_as_a_slice_and_not_as_a_value(run: Run, trace: dict[int, Track]) -> None:
    (gap,) = _track(trace, "power board: not read").slices
    unread = run.samples("power").filter(pl.col("value").is_null())
    assert gap.t0_ns - ASLEEP_NS <= unread["t0_ns"][0]
    assert gap.t1_ns - ASLEEP_NS >= unread["t1_ns"][-1]
    for core in ("0", "1"):
        values = [value for _, value in _track(trace, f"utilisation core {core}").counters]
        assert values
        assert all(0 <= value <= 1 for value in values)


def test_perfetto_shows_events_as_instants(trace: dict[int, Track]) -> None:
    ((t_ns, name, said),) = _track(trace, "events").instants
    assert (t_ns - ASLEEP_NS, name) == (START_NS + 1_000_000, "sensor-lost")
    assert said == {"source": "sampler", "message": "sensor x is lost"}


def test_slices_that_overlap_without_nesting_go_to_a_lane_of_their_own() -> None:
    begins, ends = np.array([0, 5, 2, 10, 10]), np.array([10, 15, 4, 10, 20])
    found = divide_into_lanes(begins, ends)
    assert [lane.edges.tolist() for lane in found] == [[0, 2, ~2, ~0, 4, 3, ~3, ~4], [1, ~1]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 25)), max_size=40))
def test_lanes_keep_every_slice_and_close_what_they_open(spans: list[tuple[int, int]]) -> None:
    t0, length = (np.array([span[i] for span in spans], dtype=np.int64) for i in range(2))
    t1 = t0 + length
    seen: list[int] = []
    for lane in divide_into_lanes(t0, t1):
        stack: list[int] = []
        now = -1
        for edge in lane.edges.tolist():
            row = edge if edge >= 0 else ~edge
            at = int(t0[row]) if edge >= 0 else int(t1[row])
            assert at >= now, "time runs backwards"
            now = at
            if edge >= 0:
                stack.append(row)
                seen.append(row)
            else:
                assert stack.pop() == row
        assert not stack
    assert sorted(seen) == list(range(len(spans)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 300), st.booleans()), min_size=1, max_size=20))
def test_columns_become_the_same_bytes_as_single_messages(rows: list[tuple[int, int, bool]]) -> None:
    big, small = (np.array([row[i] for row in rows], dtype=np.uint64) for i in range(2))
    has = np.array([row[2] for row in rows])
    inner = protobuf.Messages(4, (protobuf.Varints(200, small), protobuf.Fixed64s(3, big)), has)
    written = protobuf.encode(1, (protobuf.Varints(8, big, ~has), protobuf.Varints(10, small), inner))
    expected = b""
    for value, count, there in rows:
        eight = protobuf.varint(3 << 3 | 1) + value.to_bytes(8, "little")
        inside = protobuf.message((200, count)) + eight
        body = protobuf.message((8, None if there else value), (10, count), (4, inside if there else None))
        expected += protobuf.message((1, body))
    assert written == expected


def test_chrome_has_every_op_once_with_the_time_that_the_run_has(run: Run, tmp_path: Path) -> None:
    content = json.loads(_written("chrome", excerpt(run), tmp_path).read_text())
    events = content["traceEvents"]
    ops = [event for event in events if event["ph"] == "X" and "self_ns" in event.get("args", {})]
    stored = run.ops
    assert len(ops) == len(stored)
    assert round(sum(event["dur"] for event in ops) * 1000) == (stored["t1_ns"] - stored["t0_ns"]).sum()
    assert Counter(event["name"] for event in ops) == Counter(_by_layer(stored))
    assert Counter(event["args"]["op"] for event in ops) == Counter(stored["name"].cast(pl.String).to_list())
    assert Counter(event["ph"] for event in events)["s"] == Counter(event["ph"] for event in events)["f"] > 0
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names >= {"steps", "phases", "thread 1", "cuda:0 stream 7", "power board: not read"}
    assert any(event["ph"] == "C" and event["name"] == "power board [W]" for event in events)
    assert [event["name"] for event in events if event["ph"] == "i"] == ["sensor-lost"]


def test_chrome_slices_of_a_thread_do_not_overlap_without_nesting(run: Run, tmp_path: Path) -> None:
    events = json.loads(_written("chrome", excerpt(run), tmp_path).read_text())["traceEvents"]
    threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            threads[event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    for spans in threads.values():
        assert len(divide_into_lanes(*(np.array(column) for column in zip(*spans, strict=True)))) == 1


def test_speedscope_weighs_stacks_by_own_time_a_phase(run: Run, tmp_path: Path) -> None:
    content = json.loads(_written("speedscope", excerpt(run), tmp_path).read_text())
    frames = [frame["name"] for frame in content["shared"]["frames"]]
    cpu = run.ops.filter(pl.col("device").cast(pl.String) == "cpu")
    own = dict(cpu.group_by(pl.col("phase").cast(pl.String)).agg(pl.col("self_ns").sum()).rows())
    profiles = {profile["name"]: profile for profile in content["profiles"]}
    assert profiles.keys() == {*own, "forward, cuda:0"}
    for phase, total in own.items():
        assert sum(profiles[phase]["weights"]) == profiles[phase]["endValue"] == total
    stacks = [[frames[at] for at in sample] for sample in profiles["forward"]["samples"]]
    assert ["model", "features", "features.0", "aten::mkldnn_convolution"] in stacks
    assert ["(outside any module)", "aten::cross_entropy_loss"] in stacks


def test_speedscope_survives_ops_that_call_each_other_in_a_circle() -> None:
    texts = {"name": ["a", "b", "c"], "module": [None, None, None], "parent": [1, 0, 7], "row": [0, 1, 2]}
    numbers, stacks = speedscope._stacks(pl.DataFrame(texts, schema_overrides={"module": pl.String}))
    outside = "(outside any module)"
    assert [stacks[number] for number in numbers] == [[outside, "a"], [outside, "b"], [outside, "c"]]


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_folder_of_tables_holds_all_tables_with_all_rows(run: Run, name: str, tmp_path: Path) -> None:
    part = excerpt(run)
    folder = _written(name, part, tmp_path)
    for table, made in {**raw_tables(part), **small_tables(part)}.items():
        path = folder / f"{table}.{name}"
        rows = len(pl.read_parquet(path)) if name == "parquet" else _csv_rows(path)
        assert rows == len(made()), table
    assert sum(1 for _ in folder.iterdir()) == len(raw_tables(part)) + len(small_tables(part)) + 1, "and the label"


def _csv_rows(path: Path) -> int:
    with path.open(newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def test_parquet_keeps_a_gap_as_null(run: Run, tmp_path: Path) -> None:
    samples = pl.read_parquet(_written("parquet", excerpt(run), tmp_path) / "samples.parquet")
    power = samples.filter(pl.col("quantity") == "power")
    assert power["value"].null_count() == run.samples("power")["value"].null_count() > 0


def test_json_is_the_summary_and_the_tables_without_nan(run: Run, tmp_path: Path) -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    text = _written("json", excerpt(run), tmp_path).read_text()
    content = json.loads(text, parse_constant=refuse)
    assert content["summary"]["verdict"]["sentence"] == run.verdict().sentence
    assert content["tables"].keys() == small_tables(excerpt(run)).keys()
    steps = content["tables"]["steps"]
    assert len(steps["rows"]) == len(run.steps)
    assert steps["columns"] == run.steps.columns


@pytest.mark.parametrize(
    ("chosen", "steps"), [("all", range(12)), ("first:3", range(3)), ("2:5", range(2, 5)), ("10:99", range(10, 12))]
)
def test_steps_can_be_chosen(run: Run, chosen: str, steps: range) -> None:
    part = excerpt(run, chosen)
    assert part.steps["step"].to_list() == list(steps)
    assert set(part.ops["step"]) == {step for step in steps if step % 5 != 4}
    assert part.op_count == len(part.ops)


def test_samples_and_events_of_chosen_steps_are_those_of_their_time(run: Run) -> None:
    part = excerpt(run, "6:8")
    assert part.span_ns is not None
    (power,) = [channel for channel in part.channels if channel["quantity"] == "power"]
    samples = part.samples(power)
    assert 0 < len(samples) < len(excerpt(run).samples(power))
    assert samples["t1_ns"].min() >= part.span_ns[0]  # type: ignore[operator]
    assert part.events == []
    assert part.sample_count == sum(len(part.samples(channel)) for channel in part.channels)


@pytest.mark.parametrize("chosen", ["", "5", "7:3", "4:4", "-1:4", "first:", "every:3", "first:-2"])
def test_a_choice_of_steps_that_is_none_is_refused(run: Run, chosen: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        excerpt(run, chosen)


def test_steps_that_the_run_does_not_have_are_refused_with_those_it_has(run: Run) -> None:
    with pytest.raises(UsageError) as refused:
        excerpt(run, "50:60")
    assert refused.value.hint == "this run has steps 0 to 11"


@pytest.mark.parametrize("name", NAMES)
def test_the_size_is_known_before_it_is_written(name: str, tmp_path: Path) -> None:
    part = excerpt(Run(fabricate_run(tmp_path / "runs", steps=200, recorded=every_step, power_w=5.0, noise=0.03)))
    guessed, written = exports.find_export(name).estimate(part), _size(_written(name, part, tmp_path))
    assert guessed / 2.5 < written < guessed * 2.5


def test_the_size_of_json_counts_its_summary_and_all_its_tables(tmp_path: Path) -> None:
    part = excerpt(Run(simulated_board(tmp_path / "runs", steps=12)))
    guessed, written = exports.find_export("json").estimate(part), _size(_written("json", part, tmp_path))
    assert guessed / 1.4 < written < guessed * 1.4


def test_the_command_says_the_size_first_and_what_is_lacking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = fabricate_run(tmp_path, steps=8, samples=False, recorded=lambda step: False)
    export_command(run=bare, to="perfetto", steps="first:4", out=tmp_path)
    shown = capsys.readouterr()
    written = tmp_path / "export-perfetto-first-4.pftrace.gz"
    assert shown.out == f"{written}\n"
    assert "0 op calls, 0 readings, 4 steps, about " in shown.err
    assert "no operator was recorded in these steps" in shown.err
    assert "nothing was sampled in these steps" in shown.err
    assert perfetto_reader.read(gzip.decompress(written.read_bytes()))


def test_without_a_place_an_export_goes_into_the_run_folder(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    export_command(run=run.path, to="csv")
    assert capsys.readouterr().out == f"{run.path / 'export-csv'}\n"
    assert (run.path / "export-csv" / "ops.csv").is_file()


def test_tables_are_not_written_over_a_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}", encoding="utf-8")
    for place in (run.path, tmp_path / "other"):
        with pytest.raises(UsageError, match="a run lies there"):
            export_command(run=run.path, to="parquet", out=place)


@pytest.mark.parametrize("name", NAMES)
def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_left(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the place of a folder")
    with pytest.raises(OutputNotWritable) as refused:
        export_command(run=run.path, to=name, out=tmp_path / "file" / "x")
    assert "--out" in (refused.value.hint or "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_fills_up_leaves_no_half_of_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(part: Excerpt) -> Iterator[bytes]:
        yield b"some"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(perfetto, "trace_parts", full)
    with pytest.raises(OutputNotWritable, match="No space left"):
        export_command(run=run.path, to="perfetto", out=tmp_path / "x.pftrace")
    assert not list(tmp_path.iterdir())


def _folders(tmp_path: Path) -> dict[str, Path]:
    """Runs that lack something, or have something strange."""
    empty = RunWriter.create(tmp_path / "empty", "empty")
    empty.close("failed", "RuntimeError: no step")
    odd = {"sensor": "odd", "quantity": "power", "unit": "W", "kind": "gauge", "scope": HOSTILE, "id": "odd"}
    named = Sampled(odd, np.arange(0, 10**8, 10**7), np.full(10, np.nan))
    hostile = (Op(HOSTILE, HOSTILE, "forward", 100, (Op("nn.\u05d0", "a.b", "forward", 50),)),)
    damaged = fabricate_run(tmp_path / "damaged", steps=6)
    (damaged / "ops" / "000000.parquet").write_bytes(b"PAR1 cut off")
    (damaged / "channels.json").write_text("{")
    deep = Op("aten::deep", None, "forward", 2)
    for _ in range(60):
        deep = Op("aten::deep", None, "forward", 2, (deep,))
    return {
        "empty": empty.path,
        "crashed": fabricate_run(tmp_path / "crashed", steps=8, status=None),
        "running": fabricate_run(tmp_path / "running", steps=8, status=None, header={"pid": 1}),
        "without ops": fabricate_run(tmp_path / "bare", steps=8, recorded=lambda step: False),
        "without samples": fabricate_run(tmp_path / "dark", steps=8, samples=False),
        "of one step": fabricate_run(tmp_path / "one", steps=1, recorded=every_step),
        "hostile": fabricate_run(tmp_path / "hostile", steps=6, ops=hostile, model=(*MODEL,), sampled=(named,)),
        "damaged": damaged,
        "deep": fabricate_run(tmp_path / "deep", steps=4, ops=(deep,)),
    }


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_run_lacks_it_can_be_exported(name: str, tmp_path: Path) -> None:
    for what, folder in _folders(tmp_path).items():
        place = tmp_path / f"{what} out"
        place.mkdir()
        path = _written(name, excerpt(Run(folder)), place)
        assert _size(path) > 0, what
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".gz":
            read = perfetto_reader.read(gzip.decompress(path.read_bytes()))
            assert sum(len(track.slices) for track in read.values()) >= len(Run(folder).ops), what


def test_hostile_names_come_back_with_their_control_characters_spelt_out(tmp_path: Path) -> None:
    hostile = (Op(HOSTILE, HOSTILE, "forward", 100),)
    part = excerpt(Run(fabricate_run(tmp_path, steps=6, ops=hostile, samples=False)))
    slices = _op_slices(perfetto_reader.read(b"".join(perfetto.trace_parts(part))))
    name = clean_text(HOSTILE)
    assert {(found.name, found.args["module"]) for found in slices} == {(f"{name} \u00b7 {name}", name)}
    events = json.loads(_written("chrome", part, tmp_path).read_text())["traceEvents"]
    assert name in {event.get("args", {}).get("op") for event in events}


def _counter(values: list[float], **facts: Any) -> tuple[dict[str, Any], pl.DataFrame]:
    t_ns = [at * 10_000_000 for at in range(len(values))]
    samples = pl.DataFrame({"t0_ns": t_ns, "t1_ns": t_ns, "value": values}, nan_to_null=True)
    return {"kind": "counter", "unit": "J", **facts}, samples


def test_an_energy_counter_becomes_power_over_windows_that_it_can_resolve() -> None:
    line = channel_timeline(*_counter([0.1 * at for at in range(1, 12)], refresh_ns=20_000_000))
    assert (line.unit, line.rate) == ("W", True)
    assert np.diff(line.t_ns).min() >= 40_000_000
    assert line.values == pytest.approx(10.0)


def test_a_counter_that_was_set_back_leaves_a_gap_and_no_negative_rate() -> None:
    line = channel_timeline(*_counter([1.0, 1.1, 1.2, 1.3, 0.1, 0.2, 0.3, 0.4, 0.5]))
    assert (line.values >= 0).all()
    assert len(line.gaps_ns) == 1


def test_a_gauge_without_anything_newer_has_no_gap_but_one_that_failed_has() -> None:
    values = [1.0, np.nan, 2.0, np.nan, 3.0, np.nan, np.nan, np.nan, np.nan, 4.0]
    channel, samples = _counter(values, kind="gauge", unit="W", refresh_ns=10_000_000)
    line = channel_timeline(channel, samples)
    assert line.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert line.gaps_ns.tolist() == [[40_000_000, 90_000_000]]


def test_a_channel_that_was_never_read_is_one_gap() -> None:
    channel, samples = _counter([np.nan] * 5, kind="gauge", unit="W")
    assert channel_timeline(channel, samples).gaps_ns.tolist() == [[0, 40_000_000]]


def test_a_paper_gets_tables_a_paragraph_and_no_sign_that_latex_takes_for_a_command(run: Run, tmp_path: Path) -> None:
    from stepscope.report.exports.latex import escaped

    text = _written("latex", excerpt(run), tmp_path).read_text(encoding="utf-8")
    assert text.count("\\toprule") == text.count("\\bottomrule") == text.count("\\end{table}") == 2
    assert "features.0 & Conv2d & " in text
    assert "excluded; " in text.split("% Methods")[1]
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert {line.count(" & ") for line in rows} <= {2, 4, 5}
    assert max(map(len, rows)) < 80, "characters: the column of a page with two holds no more"
    assert escaped("696 uJ, 3 us, menu s") == "696 $\\mu$J, 3 $\\mu$s, menu s"
    assert escaped("Müller, Łukasz, façade") == 'M{\\"{u}}ller, \\L{}ukasz, fa{\\c{c}}ade'
    assert escaped("50_%\\x{}\u202e") == "50\\_\\%\\textbackslash{}x\\{\\}U+202E"


def test_the_methods_say_how_a_sensor_reads_and_how_far_off_it_is(tmp_path: Path) -> None:
    path = simulated_board(tmp_path / "runs", steps=20)
    stated = json.loads((path / "channels.json").read_text())
    stated["channels"] = [{**channel, "step_size": 0.04} for channel in stated["channels"]]
    (path / "channels.json").write_text(json.dumps(stated))
    run = Run(path)
    said = _written("latex", excerpt(run), tmp_path).read_text(encoding="utf-8").split("% Methods")[1]
    assert "SIMULATED sensors: jetson-tx2, not of a device" in said
    read = "Power was read by ina3221 (5 channels, update interval 1 $\\mu$s, resolution 40 mW)"
    assert f"{read}; its own error (INA3221: 0.25 \\% " in said
    none = Run(fabricate_run(tmp_path / "without", steps=20))
    assert "No power was measured." in _written("latex", excerpt(none), tmp_path).read_text(encoding="utf-8")


_PLAIN = r"""\documentclass[10pt,twocolumn]{article}
\setlength{\textwidth}{177mm}\setlength{\columnsep}{8mm}\setlength{\oddsidemargin}{-10mm}
"""
_TEMPLATES = {"acm": _PLAIN, "ieee": r"\documentclass[conference]{IEEEtran}"}
_PAPER = r"""\usepackage{graphicx,booktabs}
\begin{document}
\input{run.tex}
%s
\end{document}
"""


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
@pytest.mark.parametrize("width", _TEMPLATES)
def test_tables_and_three_figures_fit_a_paper_of_two_columns_unscaled(run: Run, tmp_path: Path, width: str) -> None:
    if width == "ieee" and subprocess.run(["kpsewhich", "IEEEtran.cls"], capture_output=True).returncode != 0:
        pytest.skip("no IEEEtran here: texlive-publishers")
    _written("latex", excerpt(run), tmp_path).rename(tmp_path / "run.tex")
    names = [
        write_multi_run_figure(name, [run], tmp_path, "pdf", parse_width(width)).name
        for name in ("layer-bars", "step-ecdf", "energy-breakdown")
    ]
    figures = "\n".join(rf"\begin{{figure}}[t]\includegraphics{{{name}}}\caption{{It}}\end{{figure}}" for name in names)
    (tmp_path / "paper.tex").write_text(_TEMPLATES[width] + _PAPER % figures, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert said.returncode == 0, said.stdout[-2_000:]
    assert "Overfull" not in said.stdout
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["perfetto", "chrome", "csv"])
def test_readings_of_a_simulated_board_are_marked_in_every_trace(name: str, tmp_path: Path) -> None:
    part = excerpt(Run(simulated_board(tmp_path / "runs", steps=20)))
    names = [track.name for track in sampled_tracks(part) if track.group in ("Power", "Temperature")]
    assert names
    assert [track for track in names if "(simulated)" not in track] == []
    assert not any("(simulated)" in track.name for track in sampled_tracks(part) if track.group == "Memory")
    path = _written(name, part, tmp_path)
    if name == "csv":
        samples, channels = (pl.read_csv(path / f"{table}.csv") for table in ("samples", "channels"))
        assert set(samples.filter(pl.col("quantity") == "power")["simulated"]) == {"jetson-tx2"}
        assert set(channels.filter(pl.col("unit") == "B")["simulated"]) <= {None}
        return
    written = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert b"SIMULATED sensors: jetson-tx2" in written


def test_an_export_never_replaces_files_of_the_users(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "results" / "steps.csv"
    own.parent.mkdir()
    own.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"'steps\.csv' lies there"):
        write_export(plan_export(run, "csv", out=own.parent))
    assert own.read_text(encoding="utf-8") == "mine"
    assert [path.name for path in own.parent.iterdir()] == ["steps.csv"]
    for _ in range(2):
        assert (write_export(plan_export(run, "csv", out=tmp_path / "new")) / "steps.csv").is_file()


def test_the_first_letter_alone_becomes_a_capital_in_a_paper() -> None:
    from stepscope.units import capitalize_first

    assert capitalize_first("GPU memory") == "GPU memory"
    assert capitalize_first("simulated GPU clock") == "Simulated GPU clock"
    assert capitalize_first("") == ""
