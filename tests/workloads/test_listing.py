from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.patience import HANG_S

from stepscope import workloads as suite
from stepscope.api.workloads import workload_rows
from stepscope.cli.workloads import workloads
from stepscope.errors import OutputNotWritable, UnknownName
from stepscope.footprint import calibration
from stepscope.workloads.contract import Workload


@pytest.fixture(autouse=True)
def four_of_all(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counting the FLOPs of all takes many seconds, and test_figures.py does it."""
    four = [suite.find(name) for name in ("char-lstm-80", "dqn-2013-84", "lenet", "resnet18-c32")]
    monkeypatch.setattr(suite, "every", lambda: four)
    return [workload.name for workload in four]


def test_the_table_names_every_workload_with_its_parameters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, four_of_all: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    workloads()
    shown = capsys.readouterr().out
    assert all(name in shown for name in four_of_all)
    assert "21,840" in shown
    assert "1.11 G" in shown


def test_on_80_columns_every_name_is_whole_and_on_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = suite.find("inception-v1-narrow-c32")
    monkeypatch.setattr(suite, "every", lambda: [longest, suite.find("lenet")])
    monkeypatch.setenv("COLUMNS", "80")
    workloads()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if longest.name in line)
    assert "5.61 M" in row
    assert "subset" in row


def test_the_json_holds_the_same_in_numbers(capsys: pytest.CaptureFixture[str], four_of_all: list[str]) -> None:
    workloads(json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert sorted(rows) == four_of_all
    assert rows["lenet"]["parameters"] == 21_840
    assert rows["lenet"]["flops_training"] == 2_595_000
    assert rows["resnet18-c32"]["data_kind"] == "real-subset"
    assert rows["resnet18-c32"]["flops_not_counted"] is None


def test_what_the_package_brings_is_not_counted_again() -> None:
    def refuse(new: Sequence[Workload]) -> Sequence[Workload]:
        assert not new
        return new

    assert [row["parameters"] for row in workload_rows([suite.find("lenet")], refuse)] == [21_840]


def test_after_a_change_of_a_file_everything_is_counted_anew_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("stepscope.api.workloads.shipped_counts", dict)
    asked: list[int] = []
    for _ in range(2):
        workload_rows([suite.find("lenet")], lambda new: asked.append(len(new)) or new)  # type: ignore[func-returns-value]
    assert asked == [1, 0]


def test_without_a_home_workloads_are_counted_and_calibrations_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("stepscope.api.workloads.shipped_counts", dict)
    assert [row["parameters"] for row in workload_rows([suite.find("lenet")])] == [21_840]
    path = calibration.calibration_path()
    assert calibration.load_calibration(path) == calibration.DeviceCalibration()
    with pytest.raises(OutputNotWritable, match="no home folder"):
        calibration.save_calibration(calibration.DeviceCalibration(), path)


def test_an_unknown_name_is_refused_without_torch() -> None:
    program = (
        "import sys; from stepscope.__main__ import main\n"
        "for words in (['run', 'lenett'], ['workloads', 'lenett'], ['fit', 'lenett']): assert main(words) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("did you mean lenet") == 3


def test_a_name_is_left_to_the_search_where_another_package_may_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName):
        suite.refuse_unknown("theirs")
    suite.refuse_unknown("my/file.py:theirs")
    monkeypatch.setattr(suite, "entry_points", lambda group: [object()])
    suite.refuse_unknown("theirs")
