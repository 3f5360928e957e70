"""Found by a Python process that a profiled training started: takes itself back, and lets the process join the run."""

import importlib
import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - nothing is imported that need not be
    sys.path[:] = [entry for entry in sys.path if entry != here]
    try:
        from stepscope.record.processes.children import join, take_orders

        orders = take_orders(os.environ)
        if orders is not None:
            join(orders)
    except Exception:
        pass
    for name in ("STEPSCOPE_TRAINING", "STEPSCOPE_PYTHONPATH"):
        os.environ.pop(name, None)
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")  # the environment's own, if it has one
    except ImportError:
        sys.modules.setdefault("sitecustomize", ours)


_start()
