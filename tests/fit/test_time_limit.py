"""An end to the time for which a script is followed."""

from __future__ import annotations

import sys

import pytest

from stepscope.footprint.time_limit import TimeLimit, TimeLimitReached


def test_the_end_of_the_time_interrupts_a_script_but_no_finalizer_whose_errors_are_lost() -> None:
    limit = TimeLimit(__file__, most_s=-1.0)
    outcomes = []

    class Ends:
        def __del__(self) -> None:
            limit._tick(0, sys._getframe())
            outcomes.append("went on")

    ends = Ends()
    del ends
    assert outcomes == ["went on"]
    with pytest.raises(TimeLimitReached, match="processor time are over, at line"):
        limit._tick(0, sys._getframe())


def test_the_end_of_the_time_interrupts_the_package_of_a_module_that_has_not_begun() -> None:
    limit = TimeLimit("train.py", most_s=-1.0, packages=(__file__,))
    with pytest.raises(TimeLimitReached, match=r"processor time are over$"):
        limit._tick(0, sys._getframe())
    TimeLimit("train.py", most_s=-1.0)._tick(0, sys._getframe())  # on its way out
