"""A few readings that alone saw an op do not make its interval narrow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse  # type: ignore[import-untyped]
from tests.analysis.attribution.scores import grouping
from tests.analysis.attribution.simulated import Device, Execution, execute, resnet_step, sampled

from stepscope.analysis.energy import regression
from stepscope.analysis.energy.attribution import FitOptions, attribute_energy
from stepscope.analysis.energy.neighbour_errors import whitened
from stepscope.analysis.energy.rail_fits import group_energies
from stepscope.analysis.energy.regression import RidgeFit, leave_block_out
from stepscope.analysis.energy.timeline import KIND, Hierarchy, Lane
from stepscope.arrays import Floats

NOISE, SPREAD = 0.3, 2.0
PLACE = 140  # of the op that stalls


def _ridge(rows: Floats, watts: Floats) -> RidgeFit:
    """Readings on three keys, each a kind of its own, around 0."""
    covariance = np.linalg.inv(rows.T @ rows / NOISE + np.eye(3) / SPREAD**2)
    shape = Hierarchy(np.eye(3), np.full(3, KIND))
    return RidgeFit(shape, covariance @ rows.T @ watts / NOISE, covariance, NOISE, np.full(3, SPREAD))


@pytest.mark.parametrize("theta", [0.0, 0.4])
def test_it_is_what_a_fit_without_the_block_misses(theta: float) -> None:
    random = np.random.default_rng(1)
    cluster = np.repeat([0, 1, 2], [7, 5, 9])
    plain, watts = random.random((21, 3)), random.normal(5, 1, 21)
    plain[:, 2] = np.where(cluster == 1, plain[:, 2], 0.0)  # a key that only the second cluster saw
    rows = np.concatenate([whitened(plain[cluster == one], theta) for one in range(3)])
    fit = _ridge(rows, watts)
    found = leave_block_out(fit, sparse.csr_matrix(plain), watts - rows @ fit.mean, theta, cluster)
    everything = np.linalg.inv(fit.covariance) - np.eye(3) / SPREAD**2  # sum over readings
    pulled = np.linalg.solve(fit.covariance, fit.mean)
    for one in np.unique(cluster):
        mine = cluster == one
        without = everything - rows[mine].T @ rows[mine] / NOISE + np.eye(3) / SPREAD**2
        mean = np.linalg.solve(without, pulled - rows[mine].T @ watts[mine] / NOISE)
        assert found[mine] == pytest.approx(watts[mine] - rows[mine] @ mean, rel=1e-6)


@pytest.mark.parametrize("theta", [0.0, 0.3])
@pytest.mark.parametrize("weight", [1.0, 1e6])
def test_it_is_the_inverse_of_what_the_hat_matrix_leaves(theta: float, weight: float) -> None:
    """By the definition on whole matrices; a key that one block alone saw, and saw very well, is cut at 0.001."""
    random = np.random.default_rng(2)
    cluster = np.repeat(np.arange(4), [3, 40, 32, 9])
    plain = random.random((len(cluster), 3)) * (random.random((len(cluster), 3)) < 0.6)
    plain[:, 2] = np.where(cluster == 3, weight * plain[:, 2], 0.0)
    blocks = np.cumsum(np.isin(np.arange(len(cluster)), [3, 35, 43, 75]))  # 32 readings at the most
    rows = np.concatenate([whitened(plain[blocks == one], theta) for one in range(5)])
    fit, left = _ridge(rows, random.normal(5, 1, len(rows))), random.normal(0, 1, len(rows))
    found = leave_block_out(fit, sparse.csr_matrix(plain), left, theta, cluster)
    cut = False
    for one in range(5):
        mine = rows[blocks == one]
        share, axes = np.linalg.eigh(mine @ fit.covariance @ mine.T / NOISE)
        cut |= bool(share.max() > 0.999)
        wanted = axes @ ((axes.T @ left[blocks == one]) / np.maximum(1 - share, 1e-3))
        assert found[blocks == one] == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert cut is (weight > 1)


def _stalled(seed: int) -> Execution:
    """A short op that in two steps lasts about 25 ms, as when another program takes the core, at a power by chance.

    The program, its power in each execution and so the truth are those of `execute`; only one place is stretched.
    """
    random = np.random.default_rng(seed)
    run = execute(resnet_step(seed), 96, seed + 1, stamp_sd=0.0)
    n = run.program.places
    pieces, watts = np.diff(run.at), np.diff(run.joules) / np.diff(run.at)
    held = (np.arange(0, 96, 48) * n + PLACE) * 2
    pieces[held] += random.uniform(0.015, 0.030, len(held))
    watts[held] *= random.uniform(0.6, 1.4, len(held))
    at = np.append(0.0, np.cumsum(pieces))
    spent = pieces * watts
    key = np.tile(np.stack([np.arange(n), np.full(n, n)], 1).reshape(-1), 96)
    edges = at[np.append(np.arange(96) * 2 * n, -1)]
    lane = Lane(at[:-1][0::2], at[1:][0::2], run.timeline.lanes[0].key)
    return replace(
        run,
        timeline=replace(run.timeline, lanes=(lane,), step_t0=edges[:-1], step_t1=edges[1:]),
        at=at,
        joules=np.append(0.0, np.cumsum(spent)),
        truth=np.asarray(np.bincount(key, spent, n + 1), dtype=np.float64),
    )


def _half_width(run: Execution, seed: int) -> tuple[float, float, float]:
    """Half of the stalled op's interval, its energy as found, and as it was, J."""
    found = attribute_energy(run.timeline, sampled(run, seed, Device(width=0.0011)), FitOptions(periodic=True))
    assert found is not None
    own = np.where(np.arange(run.timeline.keys.count) == PLACE, 0, -1)
    whole = group_energies(found, grouping(own, 1))
    return float(whole.half_width[0]), float(whole.joules[0]), float(run.truth[PLACE])


def test_an_op_that_stalled_in_two_steps_is_as_unsure_as_two_steps_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _stalled(0)
    half, found, true = _half_width(run, 0)
    assert abs(found - true) <= half
    monkeypatch.setattr(regression, "leave_block_out", lambda fit, rows, left, theta, cluster: left)
    assert half > 1.15 * _half_width(run, 0)[0]
