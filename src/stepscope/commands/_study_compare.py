"""`stepscope study compare`: devices, runs or sweeps side by side, as `stepscope compare`; its gate is `check`."""

from stepscope.commands.compare import compare

__all__ = ["compare"]
