"""Errors that neighbouring readings share, and the sums of squares of a regression in which they are independent.

What a counter did not show at one reading it shows at the next; what a running average rounded away comes back. So the
error of reading j is v_j + q_j - q_(j-1): a moving average of order 1, whitened by w_j = x_j + theta w_(j-1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from scipy.linalg import solve_banded  # type: ignore[import-untyped]  # scipy.signal looks for torch

from stepscope.arrays import Floats

DENSE_FROM = 0.12  # share of non-zero weights from which a product of full blocks is the faster one
_LEAST, _MOST = 0.05, 0.97
_ROW_BLOCK = 4096


def neighbour_error_theta(residuals: Floats) -> float:
    """Theta of the residuals of a fit (M,): 0 where neighbours do not oppose each other."""
    if len(residuals) < 3:
        return 0.0
    centred = residuals - residuals.mean()
    whole = float(centred @ centred)
    opposed = -float(centred[1:] @ centred[:-1]) / whole if whole > 0 else 0.0
    if opposed < _LEAST:
        return 0.0
    opposed = min(opposed, 0.4999)
    return float(min((1 - np.sqrt(1 - 4 * opposed**2)) / (2 * opposed), _MOST))


def whitened(values: Floats, theta: float) -> Floats:
    """The filter along the first axis."""
    if not theta:
        return values
    bands = np.ones((2, len(values)))
    bands[1] = -theta
    clear: Floats = solve_banded((1, 0), bands, values, check_finite=False)
    return clear


def unwhitened(values: Floats, theta: float) -> Floats:
    """The transposed filter: the same, backwards in time."""
    return whitened(values[::-1], theta)[::-1]


def whitened_gram(matrix: Any, theta: float) -> Floats:
    """(WA)'(WA), block by block: filtered rows are full."""
    if not theta:
        return gram(matrix)
    rows, columns = matrix.shape
    total, state = np.zeros((columns, columns)), np.zeros(columns)
    for start in range(0, rows, _ROW_BLOCK):
        part = matrix[start : start + _ROW_BLOCK]
        full = part.toarray() if sparse.issparse(part) else part.copy()
        full[0] += theta * state
        clear = whitened(full, theta)
        state = clear[-1]
        half = clear.astype(np.float32)  # the sum is kept in full: each block adds 1e-6 of its size
        total += half.T @ half
    return total


def gram(matrix: Any) -> Floats:
    """A'A as a full matrix (P, P)."""
    rows, columns = matrix.shape
    if not sparse.issparse(matrix):
        full: Floats = matrix.T @ matrix
        return full
    if matrix.nnz < DENSE_FROM * rows * columns:
        return np.asarray((matrix.T @ matrix).todense())
    total = np.zeros((columns, columns))
    for start in range(0, rows, 4096):
        block = matrix[start : start + 4096].toarray()
        total += block.T @ block
    return total
