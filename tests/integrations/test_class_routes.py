"""A function of a library's class, routed while somebody listens, and as it was afterwards."""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import Mock

import pytest

from stepscope.integrations._library_hooks import Listener, listen, same_object_test
from stepscope.record.fault_boundary import Boundary


def _trainer() -> type:
    class Trainer:
        def step(self, loss: float) -> float:
            if loss < 0:
                raise ValueError(loss)
            return 2 * loss

    return Trainer


def _listener(trainer: Any, **heard: Any) -> Listener:
    return Listener(Boundary(lambda error: None), same_object_test(trainer), **heard)


def test_calls_on_one_object_are_heard_with_results_and_exceptions() -> None:
    kind, returned, raised = _trainer(), Mock(), Mock()
    ours, other, plain = kind(), kind(), vars(kind)["step"]
    undo = listen(kind, "step", _listener(ours, returned=returned, raised=raised))
    assert (ours.step(1.0), other.step(loss=2.0)) == (2.0, 4.0)
    with pytest.raises(ValueError, match="-1") as refused:
        ours.step(-1)
    returned.assert_called_once_with(2.0)
    raised.assert_called_once_with(refused.value)
    undo()
    assert vars(kind)["step"] is plain
    assert vars(ours) == {}


def test_two_listeners_share_a_route_that_the_last_one_takes_back() -> None:
    kind, first, second = _trainer(), Mock(), Mock()
    trainer, plain = kind(), vars(kind)["step"]
    undo = [listen(kind, "step", _listener(trainer, returned=heard)) for heard in (first, second)]
    trainer.step(1.0)
    undo[0]()
    trainer.step(1.0)
    assert (first.call_count, second.call_count) == (1, 2)
    undo[1]()
    assert vars(kind)["step"] is plain


def test_a_route_that_somebody_has_wrapped_stays_below_as_a_pass_through() -> None:
    kind, heard = _trainer(), Mock()
    trainer = kind()
    undo = listen(kind, "step", _listener(trainer, returned=heard))
    below = vars(kind)["step"]
    kind.step = functools.wraps(below)(lambda self, loss: below(self, loss) + 1)  # type: ignore[attr-defined]
    wrapped = vars(kind)["step"]
    undo()
    assert vars(kind)["step"] is wrapped
    assert trainer.step(1.0) == 3.0
    assert heard.call_count == 0
    again = listen(kind, "step", _listener(trainer, returned=heard))
    assert trainer.step(1.0) == 3.0
    again()
    assert (vars(kind)["step"], heard.call_count) == (wrapped, 1)


@pytest.mark.parametrize("fault", ["concerns", "scope", "returned", "raised"])
def test_a_fault_of_the_listener_is_kept_from_the_caller(fault: str) -> None:
    kind, broken = _trainer(), Mock(side_effect=AttributeError("ours"))
    trainer, failed = kind(), Mock()
    heard: dict[str, Any] = {"concerns": same_object_test(trainer), fault: broken}
    undo = listen(kind, "step", Listener(Boundary(failed), **heard))
    assert trainer.step(1.0) == 2.0
    with pytest.raises(ValueError, match="-1"):
        trainer.step(-1)
    assert failed.call_count == 1
    undo()


def test_what_a_library_does_not_have_is_not_routed() -> None:
    kind = _trainer()
    listen(kind, "steps", _listener(kind()))()
    listen(None, "step", _listener(kind()))()
    assert "steps" not in vars(kind)
