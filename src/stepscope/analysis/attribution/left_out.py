"""What the readings would be off a fit in which they had no part: how far rare events may lead a fit astray.

A key that ran long in a few steps alone (a stall, a bucket of long sequences) is decided by the few readings that saw
it. The fit goes through them, so their residuals say nothing of how wrong it is; those of a fit without them do. That
is the jackknife over groups of neighbouring readings, whose errors are alike (CR3 of Bell and McCaffrey, "Bias
reduction in standard errors for linear regression with multi-stage samples", Survey Methodology 28, 2002).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attribution.regression import Fit
from stepscope.analysis.attribution.timeline import Ints
from stepscope.analysis.attribution.whitening import whitened
from stepscope.analysis.intervals import Floats

_BLOCK = 32  # readings that are left out together: a stall is shorter than so many
_DECIDING = 0.02  # coefficients that a block decides, below which leaving it out moves nothing
_LEAST = 1e-3  # of what the fit would miss without a block is left with it, at the least: rounding could make it 0


def left_out(fit: Fit, rows: Any, left: Floats, theta: float, cluster: Ints) -> Floats:
    """Readings less a fit without the block that each is in (M,).

    rows: (M, P) sparse, left: whitened residuals (M,), cluster: of each reading (M,), ascending; no block spans two.
    """
    mixing = sparse.csr_matrix(fit.hierarchy.mixing)
    hat = np.asarray(mixing @ np.asarray(mixing @ fit.covariance).T) / fit.noise
    matrix = sparse.csr_matrix(rows)
    most = np.asarray(abs(matrix) @ np.sqrt(np.maximum(np.diag(hat), 0.0))) ** 2 / (1 - theta) ** 2
    alone: Floats = left.copy()
    for begin, end in _blocks(cluster):
        if float(most[begin:end].sum()) > _DECIDING:
            alone[begin:end] = _without(matrix, hat, left[begin:end], theta, begin)
    return alone


def _blocks(cluster: Ints) -> Iterator[tuple[int, int]]:
    edges = np.append(np.flatnonzero(np.diff(cluster, prepend=cluster[:1] - 1)), len(cluster)).tolist()
    for first, last in pairwise(edges):
        for begin in range(first, last, _BLOCK):
            yield begin, min(begin + _BLOCK, last)


def _without(matrix: Any, hat: Floats, left: Floats, theta: float, begin: int) -> Floats:
    """(I - H)^-1 of the block times its residuals, H being its part of the hat matrix."""
    starts = matrix.indptr[begin : begin + len(left) + 1]
    keys, place = np.unique(matrix.indices[starts[0] : starts[-1]], return_inverse=True)
    seen = np.zeros((len(left), len(keys)))
    np.add.at(seen, (np.repeat(np.arange(len(left)), np.diff(starts)), place), matrix.data[starts[0] : starts[-1]])
    seen = whitened(seen, theta)
    own = seen @ hat[np.ix_(keys, keys)] @ seen.T
    share, axes = np.linalg.eigh((own + own.T) / 2)
    alone: Floats = axes @ ((axes.T @ left) / np.maximum(1 - share, _LEAST))
    return alone
