"""The contract: what a writer wrote a reader reads, also after a crash, from a damaged disk or another version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import OutputNotWritable, RunDamaged, RunNotFound, SchemaTooNew, UnknownName
from stepscope.runfolder import MEMORY, MODEL, OPS, SCHEMA, STEPS, Part, RunReader, RunWriter, part_of, sample_dtype
from stepscope.runfolder.pack import pack

STEP = (1_000, 2_000, 16, 0.5, True)


def _frame(step: int, names: list[str]) -> pl.DataFrame:
    count = len(names)
    return pl.DataFrame(
        {
            "step": [step] * count,
            "t0_ns": [1_000 + i for i in range(count)],
            "t1_ns": [2_000 + i for i in range(count)],
            "self_ns": [500] * count,
            "parent": [None, *[0] * (count - 1)],
            "name": names,
            "module": ["conv1", *[None] * (count - 1)],
            "phase": ["forward"] * count,
            "thread": [1] * count,
            "device": ["cpu"] * count,
            "flops": [None] * count,
            "bytes": [64] * count,
        }
    )


def _ops(step: int, names: list[str]) -> Part:
    return part_of(_frame(step, names), "ops")


def _channel(sensor: str, channel: str, quantity: str = "memory.rss", scope: str = "process") -> dict[str, Any]:
    return {"sensor": sensor, "id": channel, "quantity": quantity, "scope": scope, "unit": "B", "kind": "gauge"}


def _sampled(run: Path, sensor: str, channels: list[dict[str, Any]], rows: list[tuple[float, ...]]) -> Path:
    """What the sampler leaves while running: channels.json and appended rows."""
    (run / "channels.json").write_text(json.dumps({"channels": channels}))
    dtype = sample_dtype([channel["id"] for channel in channels])
    path = run / "samples" / f"{sensor}.rows"
    path.write_bytes(np.array(rows, dtype=dtype).tobytes())
    return path


# writing and reading back


def test_a_new_run_is_named_by_time_workload_and_six_hex_digits(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "new" / "runs", "my net/2", unix_s=0.0)
    stamp, name, end = writer.path.name.rsplit("-", 2)
    assert (stamp, name, len(end), int(end, 16) >= 0) == ("19700101T000000Z", "my_net_2", 6, True)


def test_two_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert RunWriter.create(tmp_path, "lenet", 0.0).path != RunWriter.create(tmp_path, "lenet", 0.0).path


def test_a_workload_without_a_usable_name_is_called_run(tmp_path: Path) -> None:
    assert RunWriter.create(tmp_path, "").path.name.split("-")[1] == "run"


def test_the_header_keeps_what_earlier_updates_said(writer: RunWriter) -> None:
    writer.update(seed=1, warmup_steps=5)
    writer.update(seed=2)
    writer.close("ok")
    run = RunReader(writer.path)
    assert (run.meta["schema"], run.meta["seed"], run.warmup_steps, run.status) == (SCHEMA, 2, 5, "ok")
    assert run.id == writer.path.name


def test_steps_read_back_as_they_were_written(writer: RunWriter) -> None:
    writer.append_step(0, *STEP)
    writer.append_step(1, 2_000, 3_500, None, None, False)
    writer.close("ok")
    steps = RunReader(writer.path).steps
    assert dict(steps.schema) == STEPS
    assert steps.rows() == [(0, 1_000, 2_000, 16, 0.5, True), (1, 2_000, 3_500, None, None, False)]


def test_steps_that_were_flushed_can_be_read_while_the_run_goes_on(writer: RunWriter) -> None:
    writer.append_step(0, *STEP)
    writer.flush_steps()
    assert RunReader(writer.path).steps.rows() == [(0, *STEP)]


def test_running_and_closed_steps_read_as_the_same_frame(writer: RunWriter) -> None:
    writer.append_step(0, *STEP)
    writer.append_step(1, 2_000, 3_500, None, None, False)
    writer.flush_steps()
    running = RunReader(writer.path).steps
    writer.close("ok")
    assert running.equals(RunReader(writer.path).steps)
    assert pack(writer.path) == []
    assert running.equals(RunReader(writer.path).steps)
    assert not list(writer.path.rglob("*.rows"))


@settings(deadline=None, max_examples=50)  # a full machine takes its time with files
@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**31) | st.none(), st.floats(-1e30, 1e30) | st.none()))
)
def test_any_steps_survive_the_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    writer = RunWriter.create(tmp_path_factory.mktemp("runs"), "any")
    for step, (t0_ns, samples, loss) in enumerate(rows):
        writer.append_step(step, t0_ns, t0_ns + 1, samples, loss, recorded=False)
    writer.close("ok")
    read = RunReader(writer.path).steps.select("t0_ns", "samples", "loss").rows()
    assert read == rows


def test_op_parts_read_as_one_frame_in_order(writer: RunWriter) -> None:
    writer.write_ops(_ops(0, ["nn.Conv2d", "aten::convolution"]))
    size = writer.write_ops(_ops(1, ["nn.Conv2d", "aten::a_new_name"]))
    ops = RunReader(writer.path).ops
    assert dict(ops.schema) == OPS
    assert ops["step"].to_list() == [0, 0, 1, 1]
    assert ops["name"].cast(pl.String).to_list() == ["nn.Conv2d", "aten::convolution", "nn.Conv2d", "aten::a_new_name"]
    assert ops["parent"].to_list() == [None, 0, None, 0]
    assert size == (writer.path / "ops" / "000001.part").stat().st_size


def test_a_lazy_scan_takes_only_the_columns_that_are_asked_for(writer: RunWriter) -> None:
    writer.write_ops(_ops(0, ["nn.Conv2d"]))
    assert RunReader(writer.path).scan_ops().select("self_ns").collect().rows() == [(500,)]


def test_an_unknown_op_column_is_not_written(writer: RunWriter) -> None:
    writer.write_ops(part_of(_frame(0, ["nn.Conv2d"]).with_columns(extra=pl.lit(1)), "ops"))
    assert RunReader(writer.path).ops.columns == list(OPS)


def test_the_module_tree_reads_back_with_nulls_for_what_was_not_counted(writer: RunWriter) -> None:
    writer.write_model(
        [{"module": "", "type": "Net", "parameters": 10}, {"module": "fc", "type": "Linear", "parent": ""}]
    )
    model = RunReader(writer.path).model
    assert dict(model.schema) == MODEL
    assert model.select("module", "parent", "parameters", "flops_forward").rows() == [
        ("", None, 10, None),
        ("fc", "", None, None),
    ]


def test_device_facts_read_back(writer: RunWriter) -> None:
    writer.write_device({"board": "a board", "memory_bytes": 4})
    assert RunReader(writer.path).device == {"board": "a board", "memory_bytes": 4}


def test_events_of_two_writers_come_in_order_of_time(writer: RunWriter) -> None:
    writer.append_event("note", "second")
    with (writer.path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t_ns": 1, "source": "sampler", "kind": "gap", "message": "first"}) + "\n")
    assert [event["message"] for event in RunReader(writer.path).events] == ["first", "second"]


def test_an_event_keeps_its_fields(writer: RunWriter) -> None:
    writer.append_event("steps-lost", "disk full", step=7)
    event = RunReader(writer.path).events[0]
    assert (event["kind"], event["source"], event["step"]) == ("steps-lost", "session", 7)


# samples


def test_a_value_that_was_not_read_is_null_and_a_zero_stays_a_zero(writer: RunWriter) -> None:
    _sampled(writer.path, "proc", [_channel("proc", "rss")], [(1, 2, float("nan")), (3, 4, 0.0)])
    assert RunReader(writer.path).sensor("proc").rows() == [(1, 2, None), (3, 4, 0.0)]


def test_samples_of_a_running_and_a_closed_run_are_the_same(writer: RunWriter) -> None:
    _sampled(writer.path, "proc", [_channel("proc", "rss")], [(1, 2, float("nan")), (3, 4, 5.0)])
    running = RunReader(writer.path).sensor("proc")
    writer.close("ok")
    pack(writer.path)
    assert (writer.path / "samples" / "proc.parquet").exists()
    assert RunReader(writer.path).sensor("proc").equals(running)


def test_samples_of_a_quantity_come_from_every_sensor_that_has_it(writer: RunWriter) -> None:
    channels = [
        _channel("a", "core0", "cpu.busy", "cpu0"),
        _channel("a", "rss"),
        _channel("b", "core1", "cpu.busy", "cpu1"),
    ]
    _sampled(writer.path, "a", channels[:2], [(1, 2, 0.5, 100.0)])
    _sampled(writer.path, "b", channels[2:], [(1, 3, 0.25)])
    (writer.path / "channels.json").write_text(json.dumps({"channels": channels}))
    samples = RunReader(writer.path).samples("cpu.busy")
    assert samples.rows() == [(1, 2, "core0", "cpu0", 0.5), (1, 3, "core1", "cpu1", 0.25)]


def test_a_cut_off_sample_row_is_dropped_and_the_rest_is_kept(writer: RunWriter) -> None:
    path = _sampled(writer.path, "proc", [_channel("proc", "rss")], [(1, 2, 10.0), (3, 4, 20.0)])
    path.write_bytes(path.read_bytes()[:-1])
    assert RunReader(writer.path).sensor("proc").rows() == [(1, 2, 10.0)]


def test_rows_of_a_sensor_that_no_channel_describes_are_damaged_and_not_guessed(writer: RunWriter) -> None:
    (writer.path / "samples" / "proc.rows").write_bytes(b"\0" * 24)
    run = RunReader(writer.path)
    assert run.sensor("proc").is_empty()
    assert run.damaged == ["samples/proc.rows"]


# what a crash, a bad disk and another version leave


def test_a_cut_off_step_row_is_dropped_and_the_rest_is_kept(writer: RunWriter) -> None:
    for step in range(3):
        writer.append_step(step, *STEP)
    writer.flush_steps()
    rows = writer.path / "steps.rows"
    rows.write_bytes(rows.read_bytes()[:-5])
    assert RunReader(writer.path).steps["step"].to_list() == [0, 1]


def test_a_cut_off_last_event_is_left_out(writer: RunWriter) -> None:
    writer.append_event("note", "whole")
    with (writer.path / "events.jsonl").open("a") as file:
        file.write('{"t_ns": 5, "mess')
    assert [event["message"] for event in RunReader(writer.path).events] == ["whole"]


def test_an_event_that_cannot_be_read_before_others_is_damage(writer: RunWriter) -> None:
    (writer.path / "events.jsonl").write_text('{"mess\n{"message": "whole"}\n')
    run = RunReader(writer.path)
    assert run.events == [{"message": "whole"}]
    assert run.damaged == ["events.jsonl"]


def test_a_line_of_events_that_is_no_object_is_left_out(writer: RunWriter) -> None:
    (writer.path / "events.jsonl").write_text('[1]\n{"message": "whole"}\n')
    assert RunReader(writer.path).events == [{"message": "whole"}]


def test_a_folder_with_nothing_but_its_header_reads_as_empty_frames(writer: RunWriter) -> None:
    run = RunReader(writer.path)
    for frame, schema in ((run.steps, STEPS), (run.ops, OPS), (run.model, MODEL)):
        assert frame.is_empty()
        assert frame.columns == list(schema)
        assert all(frame.schema[name] == dtype for name, dtype in schema.items())
    assert run.samples("cpu.busy").columns == ["t0_ns", "t1_ns", "channel", "scope", "value"]
    assert (run.device, run.channels, run.events, run.damaged) == ({}, [], [], [])


def test_a_damaged_part_is_listed_and_the_others_are_read(writer: RunWriter) -> None:
    for step in range(3):
        writer.write_ops(_ops(step, ["nn.Conv2d"]))
    (writer.path / "ops" / "000001.part").write_bytes(b"PAR1 this is no parquet")
    run = RunReader(writer.path)
    assert run.ops["step"].to_list() == [0, 2]
    assert run.damaged == ["ops/000001.part"]


def test_damaged_files_of_one_run_are_not_listed_for_another(writer: RunWriter, tmp_path: Path) -> None:
    (writer.path / "steps.parquet").write_bytes(b"nothing")
    assert RunReader(writer.path).steps.is_empty()
    assert RunReader(RunWriter.create(tmp_path, "other").path).damaged == []


def test_a_damaged_steps_file_is_listed_and_the_rows_are_taken_instead(writer: RunWriter) -> None:
    writer.append_step(0, *STEP)
    writer.flush_steps()
    (writer.path / "steps.parquet").write_bytes(b"cut off while the run was closed")
    run = RunReader(writer.path)
    assert run.steps["step"].to_list() == [0]
    assert run.damaged == ["steps.parquet"]


@pytest.mark.parametrize("name", ["device.json", "model.json", "channels.json"])
def test_a_broken_json_file_reads_as_absent(writer: RunWriter, name: str) -> None:
    (writer.path / name).write_text('{"modules": [')
    run = RunReader(writer.path)
    assert (run.device, run.channels, run.model.height) == ({}, [], 0)


def test_a_leftover_of_an_interrupted_write_is_not_read_as_a_part(writer: RunWriter) -> None:
    writer.write_ops(_ops(0, ["nn.Conv2d"]))
    (writer.path / "ops" / ".000001.parquet.part").write_bytes(b"half")
    run = RunReader(writer.path)
    assert (run.ops.height, run.damaged) == (1, [])


def test_the_status_of_a_dead_trainer_reads_as_interrupted(writer: RunWriter) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    writer.update(pid=child.pid)
    assert RunReader(writer.path).status == "interrupted"


def test_the_status_of_a_living_trainer_reads_as_running(writer: RunWriter) -> None:
    writer.update(pid=os.getpid())
    assert RunReader(writer.path).status == "running"


def test_a_running_run_that_names_no_trainer_reads_as_interrupted(writer: RunWriter) -> None:
    writer.update(pid=None)
    assert RunReader(writer.path).status == "interrupted"


def test_a_closed_run_keeps_its_status_and_reason_when_the_trainer_is_gone(writer: RunWriter) -> None:
    writer.update(pid=2**22 + 1)
    writer.close("oom", "MemoryError")
    run = RunReader(writer.path)
    assert (run.status, run.meta["reason"]) == ("oom", "MemoryError")


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no run folder") as refused:
        RunReader(tmp_path / "nowhere")
    assert refused.value.hint


def test_a_folder_without_a_header_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"holds no run\.json"):
        RunReader(tmp_path)


@pytest.mark.parametrize("text", ["", '{"schema": 1', "[]", "{}", '{"schema": "1"}', '{"schema": 0}', "\x00\xff"])
def test_a_header_that_makes_no_sense_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunDamaged):
        RunReader(tmp_path)


def test_a_newer_schema_is_refused_with_what_to_do(writer: RunWriter) -> None:
    writer.update(schema=SCHEMA + 1)
    with pytest.raises(SchemaTooNew, match=f"schema {SCHEMA + 1}") as refused:
        RunReader(writer.path)
    assert refused.value.hint == "pip install --upgrade stepscope"


# a disk that cannot be written


def test_an_out_folder_that_is_a_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the place of the folder")
    with pytest.raises(OutputNotWritable, match="cannot write a run below") as refused:
        RunWriter.create(tmp_path / "runs", "lenet")
    assert "--out" in (refused.value.hint or "")


def test_a_write_that_fails_in_mid_run_is_the_callers_to_decide(writer: RunWriter) -> None:
    (writer.path / "ops").rmdir()
    (writer.path / "ops").write_text("no folder any more")
    with pytest.raises(OSError, match="ops"):
        writer.write_ops(_ops(0, ["nn.Conv2d"]))


def test_a_value_that_json_cannot_hold_is_written_as_its_text(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "lenet")
    writer.update(script=Path("train.py"))
    assert RunReader(writer.path).meta["script"] == "train.py"


def test_a_damaged_list_of_channels_does_not_keep_a_run_from_closing(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "lenet")
    (writer.path / "channels.json").write_text("{")
    (writer.path / "samples" / "cpu.rows").write_bytes(b"rows")
    writer.close("ok")
    for _ in range(2):
        assert pack(writer.path) == ["samples/cpu.rows"]
    run = RunReader(writer.path)
    assert run.status == "ok"
    assert (writer.path / "samples" / "cpu.rows").exists()
    assert [event["kind"] for event in run.events] == ["kept-as-rows"]


def test_a_quantity_that_no_run_has_is_named_with_its_neighbours(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "x")
    channel = {"id": "process.rss", "sensor": "process_memory", "quantity": "rss", "scope": "process", "unit": "B"}
    (writer.path / "channels.json").write_text(json.dumps({"channels": [channel]}))
    with pytest.raises(UnknownName, match="'rsss'"):
        RunReader(writer.path).samples("rsss")
    assert RunReader(writer.path).samples("power").is_empty()


def test_memory_events_come_back_in_order_of_time(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "x")
    columns = {name: [None, None] for name in MEMORY} | {"step": [3, 3], "tensor": [0, 0], "category": ["saved"] * 2}
    writer.write_memory_events(part_of(pl.DataFrame(columns | {"t_ns": [20, 10], "bytes": [-64, 64]}), "memory"))
    events = RunReader(writer.path).memory_events
    assert events["bytes"].to_list() == [64, -64]
    assert events.columns == list(MEMORY)
