"""What Dask leaves behind must not fail a later test of the same worker."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


def _collected() -> Iterator[None]:
    """Dask drops, unclosed, the socket of a connection that was ended within its TLS handshake."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# A test's own, and after the last test of a module what the end of the module's fleet leaves.
_of_a_test = pytest.fixture(autouse=True)(_collected)
_of_a_module = pytest.fixture(autouse=True, scope="module")(_collected)
