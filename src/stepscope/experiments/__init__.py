"""Many runs: sweeps over settings, studies of one question, and fleets of devices."""

from __future__ import annotations
