"""Steps of very different length, as batches of short and long sequences make them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.attribution.scores import kinds, modules, score
from tests.analysis.attribution.simulated import Execution, execute, resnet_step, sampled

from stepscope.analysis.energy.attribution import FitOptions, attribute_energy
from stepscope.analysis.energy.timeline import Keys, Lane, Timeline, fill_unprofiled

STEP_MS = (40.0, 120.0, 400.0)


def bucketed(seed: int, steps: int) -> Execution:
    """Steps of three lengths in turn by chance: the same ops on other shapes, each with a power of its own."""
    random = np.random.default_rng(seed)
    runs = [execute(resnet_step(seed + n, ms), steps, seed + 9 + n, warm_up=0.0) for n, ms in enumerate(STEP_MS)]
    size, gap = runs[0].program.places, runs[0].program.places * len(runs)
    which = random.integers(len(runs), size=steps)
    pieces, spent, keys = [], [], []
    for step, bucket in enumerate(which.tolist()):
        own = slice(step * 2 * size, (step + 1) * 2 * size)
        pieces.append(np.diff(runs[bucket].at)[own])
        spent.append(np.diff(runs[bucket].joules)[own])
        keys.append(np.arange(size) + bucket * size)
    length, joules, key = np.concatenate(pieces), np.concatenate(spent), np.concatenate(keys)
    at = np.append(0.0, np.cumsum(length))
    edges = at[np.append(np.arange(steps) * 2 * size, -1)]
    several = [run.timeline.keys for run in runs]
    number = max(int(one.signature.max()) for one in several) + 1
    kind = np.append(np.tile(several[0].kind[:-1], len(runs)), several[0].kind[-1])
    signature = np.concatenate([one.signature[:-1] + n * number for n, one in enumerate(several)])
    program = replace(
        runs[0].program,
        module=np.tile(runs[0].program.module, len(runs)),
        phase=np.tile(runs[0].program.phase, len(runs)),
    )
    return Execution(
        Timeline(
            (Lane(at[:-1][0::2], at[1:][0::2], key),),
            Keys(kind, np.append(signature, len(runs) * number), np.zeros(gap + 1, dtype=bool)),
            edges[:-1],
            edges[1:],
            np.ones(steps, dtype=bool),
            5e-6,
        ),
        program,
        at,
        np.append(0.0, np.cumsum(joules)),
        np.asarray(np.bincount(np.stack([key, np.full(len(key), gap)], 1).ravel(), joules, gap + 1), dtype=np.float64),
    )


@pytest.fixture(scope="module")
def run() -> Execution:
    return bucketed(2, 150)


def test_kinds_and_modules_of_mixed_lengths_are_right_and_their_intervals_hold(run: Execution) -> None:
    found = attribute_energy(run.timeline, sampled(run, 1), FitOptions(periodic=True))
    assert found is not None
    for group in (kinds(run), modules(run)):
        reached = score(run, found, group)
        assert reached.error <= 0.04
        assert reached.right >= 0.95 * reached.resolved > 0.5
        assert reached.inside >= 0.85 * reached.counted


def test_an_unrecorded_step_is_filled_in_from_steps_of_its_own_length(run: Execution) -> None:
    timeline = run.timeline
    recorded = np.arange(timeline.steps) % 4 == 0
    (lane,) = timeline.lanes
    seen = recorded[timeline.step_of(lane.t0)]
    few = Lane(lane.t0[seen], lane.t1[seen], lane.key[seen])
    whole, scatter = fill_unprofiled(few, timeline.step_t0, timeline.step_t1, recorded)
    thinned = replace(timeline, lanes=(whole,), recorded=recorded, scatter=scatter)
    off = np.abs(thinned.seconds - timeline.seconds)[:-1].sum() / timeline.seconds.sum()
    assert off < 0.02
    found = attribute_energy(thinned, sampled(run, 1), FitOptions(periodic=True))
    assert found is not None
    reached = score(run, found, kinds(run))
    assert reached.error <= 0.08
    assert reached.inside >= 0.8 * reached.counted
