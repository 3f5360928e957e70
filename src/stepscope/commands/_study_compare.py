"""`stepscope study compare`: devices, runs or sweeps side by side, as `stepscope compare`; `check` is its gate for CI."""

from stepscope.commands.compare import compare

__all__ = ["compare"]
