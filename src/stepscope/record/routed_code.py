"""Code that calls a function of ours, in the place of another function's own: whoever holds that one calls ours."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

_PLACE = 0x57E95C09E  # a constant that stands for the function


def _template(t1: Any, t2: Any) -> Any:
    routed: Any = 0x57E95C09E  # _PLACE, as a constant of the code
    return routed(t1, t2)


def code_that_calls(function: Callable[[Any, Any], Any], plain: CodeType) -> CodeType:
    """Return code that calls this function with two arguments, and is shown as the code in whose place it stands."""
    template = _template.__code__
    constants = tuple(function if value == _PLACE else value for value in template.co_consts)
    names = plain.co_varnames[:2] + template.co_varnames[2:]
    return template.replace(
        co_consts=constants,
        co_varnames=names,
        co_filename=plain.co_filename,
        co_firstlineno=plain.co_firstlineno,
        co_name=plain.co_name,
    )
