"""The quality gate: on real data the loss after some seeded steps lies where it lay when the band was recorded."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from stepscope import workloads
from stepscope.cli.workloads import workloads as command
from stepscope.errors import StepscopeError
from stepscope.workloads._loss_bands import BANDS, NO_BAND, Band

# A few seconds in all; `stepscope workloads --check` takes any of the others.
QUICK = ("lenet", "resnet8-c32", "mobilenet-v1-025-96", "char-gpt-64", "char-lstm-80")
OFF = Band("synthetic", batch=2, steps=5, low=100.0, high=101.0)


@pytest.mark.parametrize("name", QUICK)
def test_the_loss_after_some_seeded_steps_lies_in_its_band(name: str) -> None:
    found = workloads.check(name)
    assert found is not None
    assert found.holds, f"{found.end} is not within {found.band}"
    assert found.end < found.first


def test_every_band_belongs_to_a_workload_and_its_real_data() -> None:
    for name, band in BANDS.items():
        kinds = {source.name: source.kind for source in workloads.find(name).sources}
        assert kinds[band.data] != "synthetic"
        assert 0 <= band.low < band.high < math.inf


def test_every_workload_has_a_band_or_the_reason_why_it_has_none() -> None:
    assert not set(BANDS) & set(NO_BAND)
    assert set(workloads.names()) == set(BANDS) | set(NO_BAND)
    assert workloads.find("autoencoder-640").band is None
    assert "ToyADMOS" in str(workloads.find("autoencoder-640").no_band)
    assert workloads.find("lenet").no_band is None


def test_a_workload_of_the_users_without_a_band_says_so() -> None:
    mine = replace(workloads.find("lenet"), name="mine")
    assert mine.band is None
    assert mine.no_band == "none was recorded"


def test_a_band_judges_the_mean_of_the_last_fifth_of_just_so_many_steps() -> None:
    band = Band("any", batch=1, steps=10, low=1.0, high=2.0)
    assert band.holds([9.0] * 8 + [1.0, 2.0])
    assert not band.holds([1.5] * 8 + [2.0, 2.5])
    assert not band.holds([1.5] * 9)
    assert not band.holds([1.5] * 9 + [math.nan])


def test_the_command_judges_those_that_it_can_and_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    command(["lenet", "autoencoder-640"], check=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lenet: loss 2.3")
    assert lines[0].endswith("band [1.9, 2.27]: holds")
    assert lines[1].startswith("autoencoder-640: not judged: its data is made up")
    assert lines[2] == "1 of 1 bands hold; 1 not judged"


def test_a_loss_outside_its_band_ends_the_command_with_the_name_of_the_workload(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    off = replace(workloads.find("lenet"), name="off", own_band=OFF)
    absent = replace(off, name="absent", own_band=replace(OFF, data="mnist"))
    monkeypatch.setattr(workloads, "find", {"off": off, "absent": absent}.__getitem__)
    monkeypatch.setattr(workloads, "refuse_unknown", lambda _name: None)
    with pytest.raises(StepscopeError, match=r"not where it was recorded: off$") as caught:
        command(["off", "absent"], check=True, json=True)
    assert caught.value.exit_code == 1
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["holds"] is False
    assert rows[0]["end"] < 100
    assert rows[1]["holds"] is None
    assert "stepscope data fetch mnist" in rows[1]["why_not"]


class Idle(torch.optim.SGD):
    """Updates nothing."""

    def step(self, closure: Any = None) -> Any:
        """Leave the parameters as they are."""


def test_a_network_that_learns_nothing_does_not_hold_although_its_loss_lies_in_the_band(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Band("mnist-5k", batch=16, steps=5, low=1.0, high=3.0)
    learns = replace(workloads.find("lenet"), name="learns", own_band=wide)
    idle = replace(learns, name="idle", makers=dict.fromkeys(learns.makers, Idle))
    monkeypatch.setattr(workloads, "find", {"idle": idle, "learns": learns}.__getitem__)
    monkeypatch.setattr(workloads, "refuse_unknown", lambda _name: None)
    with pytest.raises(StepscopeError, match=r": idle$"):
        command(["learns", "idle"], check=True)
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.endswith(": holds")
    assert "of the first batch it stays" in second
    found = workloads.check("idle")
    assert found is not None
    assert found.within
    assert found.again == pytest.approx(found.first, rel=1e-5)
    rises = replace(found, again=found.first * 1.1)
    assert not rises.learns
    assert replace(rises, band=replace(wide, falls=False)).learns
