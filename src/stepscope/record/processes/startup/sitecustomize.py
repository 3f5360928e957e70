"""Found by a Python process that a profiled training started: takes itself back, and lets the process join the run.

Pythons of every age read this, where we are not installed too: the environment is put back before anything of ours.
"""

import importlib
import os
import sys


def _start():  # type: ignore[no-untyped-def] # Python 2 has no annotations
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - nothing is imported that need not be
    sys.path[:] = [entry for entry in sys.path if entry != here]
    orders, before = os.environ.pop("STEPSCOPE_TRAINING", None), os.environ.pop("STEPSCOPE_PYTHONPATH", None)
    if orders is not None and before is None:
        os.environ.pop("PYTHONPATH", None)
    elif before is not None:
        os.environ["PYTHONPATH"] = before
    try:
        from stepscope.record.processes.children import join_parent_run

        if orders is not None:
            join_parent_run(orders)
    except Exception:  # another Python, where we are not installed, for one
        pass
    ours = sys.modules.pop("sitecustomize")  # noqa: F841 - Python 2 empties a module that nobody holds
    importlib.import_module("sitecustomize")  # the environment's own; without one there is none, as without us


_start()  # type: ignore[no-untyped-call]
