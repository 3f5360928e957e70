"""A Chrome export of a run is that run again when it is imported; a changed one is refused and leaves nothing."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.fabricate import Op, every_step, fabricate_run

from stepscope.analysis.run import Run
from stepscope.errors import UsageError
from stepscope.importers import Options, import_file
from stepscope.report.exports import find_export
from stepscope.report.exports._excerpt import excerpt

HOSTILE = 'a "name" \\ with\n</script> \u2603'
OPS = (
    Op("aten::conv", "features.0", "forward", 3_000, (Op(HOSTILE, "", "forward", 100),), flops=10, bytes=20),
    Op("kernel", "fc", "forward", 500, device="cuda:0", thread=7),
    Op("aten::mm", None, "backward", 400, thread=2),
)


def exported(run: Path, out: Path, steps: str = "all") -> Path:
    path = out / "export.json"
    find_export("chrome").write(excerpt(Run(run), steps), path)
    return path


def same(one: pl.DataFrame, other: pl.DataFrame) -> None:
    texts = [pl.col(name).cast(pl.String) for name, dtype in one.schema.items() if dtype == pl.Categorical]
    assert_frame_equal(one.with_columns(texts), other.with_columns(texts))


@pytest.mark.parametrize("how", [{}, {"ops": OPS, "samples": False}, {"ops": ()}, {"recorded": every_step}])
def test_steps_operations_and_layers_come_back_as_they_were(how: dict[str, object], tmp_path: Path) -> None:
    first = Run(fabricate_run(tmp_path / "a", steps=12, noise=0.1, **how))  # type: ignore[arg-type]
    again = Run(import_file(exported(first.path, tmp_path), out=tmp_path / "b"))
    same(again.steps, first.steps)
    same(again.ops, first.ops)
    assert_frame_equal(again.model, first.model)
    for table in ("phases", "modules", "operators", "overhead"):
        rows = [getattr(run, table)() for run in (first, again)]
        if table == "overhead":
            rows = [frame.filter(pl.col("metric") != "sampler_cpu_share") for frame in rows]
        assert_frame_equal(*rows)
    assert again.meta["workload"]["batch_size"] == first.meta["workload"]["batch_size"]
    assert again.meta["imported"]["run"] == first.id
    said = {entry.what for entry in again.not_measured()}
    assert {"utilisation, power and temperature", "memory by layer", "energy"} <= said


def test_some_steps_come_back_with_what_is_left_of_the_warm_up(tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", steps=30)
    for steps, count, warm in (("1:20", 19, 2), ("10:20", 10, 0)):
        again = Run(import_file(exported(first, tmp_path, steps), out=tmp_path / "b"))
        assert (len(again.steps), again.warmup_steps) == (count, warm)
        assert again.phases()["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("status", "again"), [("ok", "ok"), ("oom", "oom"), ("failed", "failed"), (None, "interrupted")]
)
def test_a_run_that_did_not_end_well_comes_back_as_one(status: str | None, again: str, tmp_path: Path) -> None:
    stated = {"framework": "jax", "reason": "it grew"} if status == "oom" else {"pid": 2**22 + 7}
    first = Run(fabricate_run(tmp_path / "a", status=status, header=stated))
    path = exported(first.path, tmp_path)
    for packed in (False, True):
        if packed:
            path = tmp_path / "export.json.gz"
            path.write_bytes(gzip.compress((tmp_path / "export.json").read_bytes()))
        run = Run(import_file(path, out=tmp_path / "b"))
        assert (run.status, run.meta["status"]) == (again, again)
        assert (run.meta.get("framework"), run.meta["reason"]) == (stated.get("framework"), first.meta.get("reason"))
        assert run.meta["imported"]["kind"] == "stepscope-chrome"


def test_what_the_user_says_comes_first(tmp_path: Path) -> None:
    path = exported(fabricate_run(tmp_path / "a"), tmp_path)
    asked = Options(name="mine", batch_size=5, warmup=1, board="tx2")
    again = Run(import_file(path, out=tmp_path / "b", options=asked))
    assert again.meta["workload"]["name"] == "mine"
    assert again.meta["workload"]["batch_size"] == 5
    assert again.warmup_steps == 1
    assert again.device["board"] == {"name": "tx2"}


def test_an_export_is_no_log_that_can_be_laid_beside_another_file(tmp_path: Path) -> None:
    path = exported(fabricate_run(tmp_path / "a"), tmp_path)
    log = tmp_path / "meter.csv"
    log.write_text("time,power\n2026-11-21T11:49:45Z,5\n2026-11-21T11:49:46Z,5\n")
    with pytest.raises(UsageError, match="is not a sensor log"):
        import_file(log, [path], out=tmp_path / "b")


def test_an_export_that_is_cut_off_gives_what_it_holds_and_says_so(tmp_path: Path) -> None:
    path = exported(fabricate_run(tmp_path / "a", steps=20), tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("aten::mm") - 5], encoding="utf-8")
    again = Run(import_file(path, out=tmp_path / "b"))
    assert len(again.steps) == 20
    assert "end of the file" in {lack["what"] for lack in again.meta["imported"]["lacks"]}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('"zero_ns":', '"zero":'),
        ('"self_ns":150000', '"self_ns":"much"'),
        ('"row":0', '"row":1e99'),
        ('"dur":', '"gone":'),
        ('"parent":1', '"parent":4000'),
        ('"cat":"backward"', '"cat":"backwards"'),
        ('"modules":[', '"modules":[3,'),
        ('"device":"cpu"', '"gone":"cpu"'),
    ],
)
def test_a_changed_export_is_refused_and_leaves_nothing(was: str, now: str, tmp_path: Path) -> None:
    path = exported(fabricate_run(tmp_path / "a"), tmp_path)
    text = path.read_text(encoding="utf-8")
    assert was in text
    path.write_text(text.replace(was, now), encoding="utf-8")
    with pytest.raises(UsageError, match="changed since"):
        import_file(path, out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_log_beside_it_is_refused(tmp_path: Path) -> None:
    path = exported(fabricate_run(tmp_path / "a"), tmp_path)
    with pytest.raises(UsageError, match="combined with an export"):
        import_file(path, [path], out=tmp_path / "b")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), text=st.text(max_size=6))
def test_whatever_is_written_into_it_is_a_run_or_a_refusal(at: float, text: str, tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    if not path.exists():
        exported(fabricate_run(tmp_path / "a", steps=5, recorded=every_step, ops=OPS), tmp_path)
        (tmp_path / "kept").write_bytes(path.read_bytes())
    kept = (tmp_path / "kept").read_text(encoding="utf-8")
    place = int(at * len(kept))
    path.write_text(kept[:place] + text + kept[place + len(text) :], encoding="utf-8")
    with contextlib.suppress(UsageError):
        assert Run(import_file(path, out=tmp_path / "b")).phases() is not None
