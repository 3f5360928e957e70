"""Parts: what the training process writes without polars comes back bit for bit, and damage is never taken for data."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.runfolder import MEMORY, OPS, Part, RunReader, RunWriter, part_of
from stepscope.runfolder.parts import MAGIC, from_bytes, to_bytes
from stepscope.runfolder.schema import TABLES, TEXT
from stepscope.runfolder.tables import frame_of

MOST = 2**63 - 1
WORDS = ["aten::addmm", "nn.Linear", "", "überlang", "a b\n"]


def window(rows: int, seed: int = 0) -> Part:
    """Op calls as a training makes them: nested, a few names, times in order."""
    random = np.random.default_rng(seed)
    t0 = 2**50 + np.cumsum(random.integers(500, 20_000, rows))
    length = random.integers(1_000, 60_000, rows)
    step = np.sort(random.integers(100, 104, rows))
    parent = np.arange(rows) - np.searchsorted(step, step) - 3  # by its row within the step
    columns = {
        "step": step,
        "t0_ns": t0,
        "t1_ns": t0 + length,
        "self_ns": length // random.integers(1, 3, rows),
        "parent": np.where(random.random(rows) < 0.3, -1, np.maximum(parent, -1)),
        "name": random.integers(0, len(WORDS), rows),
        "module": random.integers(-1, 3, rows),
        "phase": random.integers(0, 2, rows),
        "thread": np.ones(rows, dtype=np.int64),
        "device": np.zeros(rows, dtype=np.int64),
        "flops": np.where(random.random(rows) < 0.5, -1, 10**9),
        "bytes": random.integers(0, 5, rows) * 4096,
    }
    texts = {"name": WORDS, "module": ["", "fc", "fc.0"], "phase": ["forward", "backward"], "device": ["cpu"]}
    return Part(columns, texts)


def words(part: Part, name: str) -> list[str | None]:
    return [None if place < 0 else part.texts[name][place] for place in part.columns[name].tolist()]


def same(part: Part, other: Part, table: str) -> bool:
    return all(
        words(part, name) == words(other, name)
        if kind == TEXT
        else part.columns[name].tolist() == other.columns[name].tolist()
        for name, kind in TABLES[table].items()
    )


@pytest.mark.parametrize("rows", [0, 1, 2, 1_000])
def test_a_part_comes_back_as_it_was(rows: int) -> None:
    part = window(rows)
    back = from_bytes(to_bytes(part, "ops"), "ops")
    assert len(back) == len(part) == rows
    assert same(part, back, "ops")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_numbers_and_words_come_back(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 5))
    table = data.draw(st.sampled_from(["ops", "memory"]))
    columns, texts = {}, {}
    for name, kind in TABLES[table].items():
        if kind == TEXT:
            texts[name] = data.draw(st.lists(st.text(), min_size=1, max_size=4))
            values = st.integers(-1, len(texts[name]) - 1)
        else:
            values = st.integers(-(2**63), MOST)
        columns[name] = np.array(data.draw(st.lists(values, min_size=rows, max_size=rows)), dtype=np.int64)
    part = Part(columns, texts)
    with np.errstate(over="ignore"):
        back = from_bytes(to_bytes(part, table), table)
    assert [len(column) for column in back.columns.values()] == [rows] * len(columns)
    clean = {name: [text.encode("utf-8", "replace").decode() for text in known] for name, known in texts.items()}
    assert same(Part(columns, clean), back, table)


def test_only_the_texts_that_are_used_are_written_each_of_them_once() -> None:
    part = window(3)
    many = Part({**part.columns, "name": np.array([4, 1, 4])}, {**part.texts, "name": ["a", "b", "c", "d", "b"]})
    assert from_bytes(to_bytes(many, "ops"), "ops").texts["name"] == ["b"]


def test_a_name_that_no_table_can_hold_is_written_with_a_question_mark() -> None:
    part = window(1)
    odd = Part({**part.columns, "name": np.array([0])}, {**part.texts, "name": ["half\ud800"]})
    assert frame_of(from_bytes(to_bytes(odd, "ops"), "ops"), "ops")["name"].cast(pl.String).to_list() == ["half?"]


def test_a_frame_of_a_part_has_null_where_a_number_below_zero_stands_for_it() -> None:
    frame = frame_of(window(200), "ops")
    assert dict(frame.schema) == OPS
    assert all(frame[name].null_count() > 0 for name in ("parent", "module", "flops"))
    assert frame["bytes"].null_count() == 0
    assert part_of(frame, "ops").columns["parent"].tolist() == window(200).columns["parent"].tolist()


def test_bytes_of_memory_below_zero_are_frees_and_not_null() -> None:
    rows = {name: [0, 0] if kind != TEXT else ["x", None] for name, kind in TABLES["memory"].items()}
    frame = frame_of(part_of(pl.DataFrame({**rows, "bytes": [64, -64]}), "memory"), "memory")
    assert dict(frame.schema) == MEMORY
    assert frame["bytes"].to_list() == [64, -64]
    assert frame["shape"].cast(pl.String).to_list() == ["x", None]


def test_a_null_where_a_table_has_none_is_refused() -> None:
    frame = frame_of(window(2), "ops").with_columns(t0_ns=pl.lit(None, pl.Int64))
    with pytest.raises(ValueError, match="null in column t0_ns"):
        part_of(frame, "ops")


# damage


def test_a_flipped_bit_is_damage_wherever_it_is() -> None:
    data = to_bytes(window(300), "ops")
    for place in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(ValueError, match=r"\w"):
            from_bytes(bytes(flipped), "ops")


@pytest.mark.parametrize("kept", [0, 4, 12, 40, 2_000, -1])
def test_a_part_that_is_cut_off_is_damage(kept: int) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_bytes(to_bytes(window(300), "ops")[:kept], "ops")


def forged(**changes: object) -> bytes:
    """A part whose header is sound and says something else."""
    data = to_bytes(window(3), "ops")
    length = int.from_bytes(data[8:12], "little")
    header = json.dumps({**json.loads(data[16 : 16 + length]), **changes}).encode()
    numbers = len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    return MAGIC + numbers + header + data[16 + length :]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"rows": 2**40},
        {"rows": -1},
        {"rows": 2.5},
        {"rows": None},
        {"columns": []},
        {"columns": 3},
        {"columns": [{"name": "step", "dtype": "<u1", "form": 3, "base": 0, "bytes": 0, "crc": 0}]},
        {"texts": ["name"]},
        {"texts": {"name": "abcdefgh", "module": "abc", "phase": "ab", "device": "a"}},
        {"columns": [{"name": "step"}]},
        {"texts": {}},
        {"texts": {"name": [1, 2, 3, 4, 5], "module": ["a", "b", "c"], "phase": ["d", "e"], "device": ["f"]}},
        {"texts": {"name": [], "module": [], "phase": [], "device": []}},
        {"columns": [{"name": "step", "dtype": "O", "form": "plain", "base": 0, "bytes": 1, "crc": 0}]},
    ],
)
def test_a_header_that_makes_no_sense_is_damage(changes: dict[str, object]) -> None:
    assert len(from_bytes(forged(), "ops")) == 3
    with pytest.raises(ValueError, match=r"\w"):
        from_bytes(forged(**changes), "ops")


def test_a_part_of_another_table_is_damage() -> None:
    with pytest.raises(ValueError, match="not a part of memory"):
        from_bytes(to_bytes(window(3), "ops"), "memory")


def test_a_damaged_part_costs_its_own_rows_and_no_others(writer: RunWriter) -> None:
    for seed in range(3):
        writer.write_ops(window(50, seed))
    middle = writer.path / "ops" / "000001.part"
    data = bytearray(middle.read_bytes())
    data[-20] ^= 4
    middle.write_bytes(data)
    run = RunReader(writer.path)
    assert run.ops.height == 100
    assert run.damaged == ["ops/000001.part"]


@pytest.mark.parametrize("flushed", [0, 2, 4, 6, 8])
def test_steps_that_were_none_are_taken_back_with_their_windows(writer: RunWriter, flushed: int) -> None:
    for step in range(96, 104):
        writer.append_step(step, step * 10, step * 10 + 9, None, None, step > 99)
        if step == 95 + flushed:
            writer.flush_steps()
    windows = [window(50, seed) for seed in range(3)]
    for part in windows:
        writer.write_ops(part)
    assert writer.drop_steps_from(102)
    writer.append_step(102, 1020, 1099, None, None, False)
    writer.close("ok")
    run = RunReader(writer.path)
    assert run.steps["step"].to_list() == list(range(96, 103))
    assert run.ops["step"].to_list() == [n for part in windows for n in part.columns["step"] if n < 102]


def test_steps_of_a_file_that_is_closed_are_not_taken_back(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.runfolder.writer.STEP_PART_BYTES", 1)
    for step in range(4):
        writer.append_step(step, step * 10, step * 10 + 9, None, None, False)
        writer.flush_steps()
    writer.append_step(4, 40, 49, None, None, False)
    assert not writer.drop_steps_from(3)
    assert writer.drop_steps_from(4)
    writer.close("ok")
    assert RunReader(writer.path).steps.height == 4


# what it costs


def test_a_part_of_real_ops_takes_few_bytes_a_call(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import stepscope

    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(16)))
    optimizer = torch.optim.Adam(model.parameters())
    with stepscope.profile(model, out=tmp_path, record="all") as scope:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).sum().backward()
            optimizer.step()
            scope.step()
    frame = RunReader(scope.path).ops
    assert frame.height > 1_000
    assert len(to_bytes(part_of(frame, "ops"), "ops")) < 16 * frame.height


def test_checksums_of_many_windows_are_noted_together(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.runfolder import checksums
    from stepscope.runfolder.pack import AT_ONCE, pack

    for step in range(2 * AT_ONCE + 1):
        writer.write_ops(window(5, step))
    writer.close("ok")
    noted: list[int] = []
    note = checksums.record_checksums

    def counted(run: Path, *names: str) -> None:
        noted.append(len(names))
        note(run, *names)

    monkeypatch.setattr(checksums, "record_checksums", counted)
    assert pack(writer.path) == []
    assert noted == [AT_ONCE, AT_ONCE, 1]
    assert not list((writer.path / "ops").glob("*.part"))
    assert len(checksums.read_checksums(writer.path)) == 2 * AT_ONCE + 1
