"""One workload in several settings: batch sizes, threads, precisions, optimizers, power modes."""

from __future__ import annotations
