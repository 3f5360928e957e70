"""Run as a file by `stepscope run`, in the process of the script: `python start.py ORDERS TARGET ARGUMENTS...`."""

import sys

if sys.path and sys.path[0] == __file__.rpartition("/")[0]:  # Python put our own folder there
    del sys.path[0]

from stepscope.record.processes.training import run_target

run_target(sys.argv[1], sys.argv[2], sys.argv[3:])
