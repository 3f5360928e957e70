"""Whether a training that ran fits 2, 4 or 8 GB: by its measured peak, without and with what the recorder held."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.fabricate import Sampled, fabricate_run
from tests.report.stored_runs import RUNS
from typer import Typer
from typer.testing import CliRunner

from stepscope.analysis.memory.headroom import GB, ResidentPeak, fits_sentence, size_verdicts_text, training_peak
from stepscope.analysis.run import Run
from stepscope.cli.report import report
from stepscope.report.brief import brief
from stepscope.report.html import render

READ = {"refresh_ns": 1_000, "source": "synthetic", "kind": "gauge", "unit": "B", "scope": "process"}


def run_of(out: Path, peak_gb: float, held_gb: float = 0.0) -> Run:
    """Return a run whose process was read up to so many GB, of which the recorder held some."""
    t_ns = np.arange(0, 400_000_000, 10_000_000, dtype=np.int64)
    channel = {"sensor": "mark", "id": "mark", "quantity": "peak_rss", **READ}
    header = {"recorder": {"mode": "all", "held_bytes": round(held_gb * GB)}}
    sampled = (Sampled(channel, t_ns, 0.0 * t_ns + peak_gb * GB),)
    return Run(fabricate_run(out, steps=20, header=header, sampled=sampled))


def test_a_peak_far_below_a_size_fits_it_and_all_larger_ones(tmp_path: Path) -> None:
    assert fits_sentence(run_of(tmp_path, 1.2)) == "fits 2, 4 and 8 GB: the process peaked at 1.2 GB"


def test_a_size_between_the_ends_of_the_peak_cannot_be_told(tmp_path: Path) -> None:
    said = fits_sentence(run_of(tmp_path, 2.1, held_gb=0.3))
    assert said is not None
    assert said.startswith(
        "fits 4 and 8 GB; too close to tell for 2 GB: the process peaked at 2.1 GB, without the profiler at 1.8"
    )


def test_workers_that_the_process_starts_need_room_as_well(tmp_path: Path) -> None:
    t_ns = np.arange(0, 400_000_000, 10_000_000, dtype=np.int64)
    at = np.zeros(len(t_ns))
    read = (
        ("process", "peak_rss", 1.2), ("process", "rss", 1.1), ("process", "pss", 0.9),
        ("children", "rss", 1.6), ("children", "pss", 0.4),
    )  # fmt: skip
    sampled = [
        Sampled(
            {**READ, "sensor": f"{whose}.{name}", "id": f"{whose}.{name}", "quantity": name, "scope": whose},
            t_ns,
            at + gb * GB,
        )
        for whose, name, gb in read
    ]
    run = Run(fabricate_run(tmp_path, steps=20, sampled=tuple(sampled)))
    peak = training_peak(run)
    assert peak is not None
    assert [peak.low, peak.high] == pytest.approx([1.3 * GB, 2.7 * GB])
    assert fits_sentence(run) == (
        "likely fits 4 and 8 GB; too close to tell for 2 GB: "
        "its processes peaked at 1.3 GB at least, 2.7 GB with pages that they share counted in each"
    )


def test_what_is_larger_than_a_size_without_the_recorder_does_not_fit_it(tmp_path: Path) -> None:
    said = fits_sentence(run_of(tmp_path, 4.5, held_gb=0.1))
    assert said is not None
    assert said.startswith("fits 8 GB; does not fit 2 and 4 GB: ")


def test_without_the_mark_of_the_kernel_a_yes_is_likely() -> None:
    assert size_verdicts_text(ResidentPeak(GB, GB, sure=False)) == "likely fits 2, 4 and 8 GB"


def test_a_run_whose_memory_was_not_sampled_says_nothing_of_it(tmp_path: Path) -> None:
    run = Run(RUNS["empty"](tmp_path))
    assert training_peak(run) is None
    assert fits_sentence(run) is None
    assert "\nmemory: " not in brief(run)


def test_a_run_that_made_no_step_or_ran_out_of_memory_fits_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path / "oom", 1.2)
    run.meta["status"] = "oom"
    assert training_peak(run) is None
    failed = run_of(tmp_path / "failed", 1.2)
    failed.meta["status"] = "failed"
    assert (fits_sentence(failed) or "").startswith("likely fits 2, 4 and 8 GB")
    mark = Sampled({"sensor": "mark", "id": "mark", "quantity": "peak_rss", **READ}, np.array([0, 10]), np.full(2, 1e7))
    early = Run(fabricate_run(tmp_path / "early", steps=0, sampled=(mark,)))
    early.meta["status"] = "failed"
    assert training_peak(early) is None
    assert early.verdict().next == ("fix what ended the script before its first step, then run it again",)


@pytest.mark.parametrize(("high", "verdict"), [(1.97, "fits"), (1.99, "too close"), (2.1, "does not fit")])
def test_a_yes_keeps_a_margin(high: float, verdict: str) -> None:
    assert ResidentPeak(round(high * GB), round(high * GB)).verdict(2 * GB) == verdict


def test_page_brief_and_json_say_the_same(tmp_path: Path) -> None:
    run = run_of(tmp_path, 1.2, held_gb=0.1)
    said = "its 2, 4 and 8 GB: the process peaked at 1.2 GB, without the profiler at 1.1 GB at least"
    assert f"memory: f{said}" in brief(run)
    app = Typer()
    app.command()(report)
    content = json.loads(CliRunner().invoke(app, [str(run.path), "--json"]).output)["memory"]
    assert (content["low"], content["high"]) == (1_100_000_000, 1_200_000_000)
    assert set(content["fits"].values()) == {"fits"}
    pytest.importorskip("altair", reason="needs the extra 'report'")
    assert f"F{said}" in render(run)
