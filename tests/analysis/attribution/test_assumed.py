"""What rests on the prior is said to be as unsure as the prior is, also for all ops of a layer together."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.attribution.simulated import execute, resnet_step, sampled

from stepscope.analysis.attribution.attribute import Attribution, Options, attribute
from stepscope.analysis.attribution.hierarchy import hierarchy
from stepscope.analysis.attribution.parts import Parts, Z, grouping, parts
from stepscope.analysis.attribution.posterior import UNSEEN, Assumed, assumed
from stepscope.analysis.attribution.regression import Moments, regress
from stepscope.analysis.attribution.timeline import Keys
from stepscope.analysis.intervals import Floats

KEYS = Keys(np.array([0, 0, 1, 2, 3]), np.array([0, 1, 2, 3, 4]), np.zeros(5, dtype=bool))


def _assumed(gram: Floats) -> Assumed:
    """Of five keys that all draw 7 W."""
    moments = Moments(gram, gram @ np.full(5, 7.0), float(49 * gram.sum()) + 1e-3, 1000, 7.0)
    return assumed(regress(moments, hierarchy(KEYS)), 7.0)


def test_a_fit_without_readings_follows_nothing() -> None:
    assert _assumed(np.zeros((5, 5))).blind == pytest.approx(np.eye(5), abs=1e-6)


def test_a_fit_with_many_readings_of_each_key_follows_all() -> None:
    assert _assumed(np.diag(np.full(5, 1e9))).blind == pytest.approx(np.zeros((5, 5)), abs=1e-3)


@pytest.fixture(scope="module")
def found() -> Attribution:
    run = execute(resnet_step(3), 30, 4)
    fitted = attribute(run.timeline, sampled(run, 3), Options(periodic=True))
    assert fitted is not None
    return fitted


def _shortest_together(found: Attribution, count: int) -> Parts:
    """The keys with least time as one part."""
    group = np.full(found.timeline.keys.count, -1)
    group[np.argsort(found.timeline.seconds)[:count]] = 0
    return parts(found, grouping(group, 1))


def test_short_ops_together_may_all_be_off_the_prior_in_the_same_way(found: Attribution) -> None:
    few = _shortest_together(found, 20)
    off = UNSEEN * float(found.readings.watts.mean()) * few.seconds[0]
    assert few.half_width[0] > 0.8 * Z * off


def test_what_the_readings_see_well_is_not_made_unsure(found: Attribution) -> None:
    everything = parts(found, grouping(np.zeros(found.timeline.keys.count, dtype=np.int64), 1))
    assert everything.relative[0] < 0.02
