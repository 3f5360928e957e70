"""`stepscope import`: options, what is said, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from tests.importers.test_import_of_sensor_logs import profile, tegrastats_log
from tests.patience import HANG_S
from tests.store.command_line import exit_code

from stepscope.analysis.run import Run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_profile_and_a_log_become_one_run_that_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    profile(Path("p.json"))
    tegrastats_log(Path("tegra.log"))
    command = ["import", "p.json", "--with", "tegra.log", "--utc-offset", "+00:00", "--batch", "8", "--name", "net"]
    assert exit_code(command) == 0
    shown = capsys.readouterr()
    run = Run(shown.out.strip())
    assert (run.path / "summary.json").exists()
    assert (run.meta["workload"], len(run.steps)) == ({"name": "net", "batch_size": 8}, 12)
    assert "not in the file: layers" in shown.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--utc-offset", "Berlin"], "not an offset"),
        (["--interval", "soon"], "not a length of time"),
        (["--interval", "0ms"], "must be above 0"),
        (["--started", "noon"], "--started noon"),
        (["--kind", "tegrastat"], "unknown kind"),
        (["--with", "none.log"], "cannot read"),
    ],
)
def test_what_cannot_be_understood_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(Path("p.json"))
    assert exit_code(["import", "p.json", *options]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "hint: " in shown
    assert not Path("runs").exists()


@pytest.mark.parametrize("kind", ["torch-profiler", "stepscope-chrome", "tegrastats"])
def test_a_path_that_is_mistyped_is_refused_whatever_its_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["import", "nowhere.json", "--kind", kind]) == 2
    assert "cannot read 'nowhere.json'" in capsys.readouterr().err


def test_a_packed_file_that_is_damaged_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    profile(Path("p.json"))
    packed = bytearray(gzip.compress(Path("p.json").read_bytes()))
    packed[30:60] = bytes(30)
    Path("p.json.gz").write_bytes(packed)
    assert exit_code(["import", "p.json.gz"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_a_packed_file_that_is_cut_off_gives_what_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    profile(Path("p.json"))
    packed = gzip.compress(Path("p.json").read_bytes())
    Path("p.json.gz").write_bytes(packed[: len(packed) * 3 // 4])
    assert exit_code(["import", "p.json.gz"]) == 0
    shown = capsys.readouterr()
    assert 2 < len(Run(shown.out.strip()).steps) < 12
    assert "it is cut off in the midst of the events" in shown.err


@pytest.mark.parametrize("options", [[], ["--kind", "tegrastats"]])
def test_a_packed_log_is_to_be_unpacked_first(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tegrastats_log(Path("tegra.log"))
    Path("tegra.log.gz").write_bytes(gzip.compress(Path("tegra.log").read_bytes()))
    assert exit_code(["import", "tegra.log.gz", *options]) == 2
    assert "gunzip 'tegra.log.gz'" in capsys.readouterr().err
    profile(Path("p.json"))
    assert exit_code(["import", "p.json", "--with", "tegra.log.gz"]) == 2
    assert "gunzip 'tegra.log.gz'" in capsys.readouterr().err


def test_a_log_that_a_full_disk_does_not_take_leaves_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)")

    tegrastats_log(Path("tegra.log"))
    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    assert exit_code(["import", "tegra.log", "--utc-offset", "+00:00"]) == 5
    assert "cannot write below 'runs': No space left on device" in capsys.readouterr().err
    assert list(Path("runs").iterdir()) == []


def test_importing_needs_no_torch() -> None:
    import subprocess
    import sys

    script = "import sys, stepscope.importers; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "False"
