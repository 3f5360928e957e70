"""The quality gate: on real data the loss after some seeded steps lies where it lay when the band was recorded."""

from __future__ import annotations

import itertools
import math

import pytest

from stepscope import workloads
from stepscope.workloads._bands import BANDS, Band

# A few seconds each; the others of the table are for a run of the suite.
QUICK = ("lenet", "resnet8-c32", "mobilenet-v1-025-96", "char-gpt-64", "char-lstm-80")


@pytest.mark.parametrize("name", QUICK)
def test_the_loss_after_some_seeded_steps_lies_in_its_band(name: str) -> None:
    workload = workloads.find(name)
    band = workload.band
    assert band is not None
    training = workload.prepare(batch=band.batch, seed=0, data=band.data)
    losses = [float(training.step(batch)) for batch in itertools.islice(training.batches(), band.steps)]
    assert band.holds(losses), f"{sum(losses[-8:]) / 8} is not within {band}"


def test_every_band_belongs_to_a_workload_and_its_data() -> None:
    for name, band in BANDS.items():
        workload = workloads.find(name)
        assert band.data in {source.name for source in workload.sources}
        assert 0 <= band.low < band.high < math.inf


def test_a_band_judges_the_mean_of_the_last_fifth_of_just_so_many_steps() -> None:
    band = Band("any", batch=1, steps=10, low=1.0, high=2.0)
    assert band.holds([9.0] * 8 + [1.0, 2.0])
    assert not band.holds([1.5] * 8 + [2.0, 2.5])
    assert not band.holds([1.5] * 9)
    assert not band.holds([1.5] * 9 + [math.nan])
