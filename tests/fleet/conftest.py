"""What Dask leaves behind must not fail a later test of the same worker."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _sockets_are_collected_here() -> Iterator[None]:
    """Dask drops, unclosed, the socket of a connection that was ended within its TLS handshake."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
