from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

import torch
from tests.patience import until

from stepscope.record.gradient_threads import Trainers


def _in_a_thread(action: Callable[[], None]) -> Callable[[], None]:
    """Start it in a thread that then lives on; returns what ends the thread."""
    done, may_end = threading.Event(), threading.Event()

    def run() -> None:
        action()
        done.set()
        may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    done.wait()

    def end() -> None:
        may_end.set()
        thread.join()

    return end


def test_another_thread_that_computed_gradients_counts_until_it_has_ended() -> None:
    trainers = Trainers()
    trainers.computes()
    assert not trainers.others()
    end = _in_a_thread(trainers.computes)
    assert trainers.others()
    end()
    assert not trainers.others()


def test_a_thread_that_the_module_threading_knows_nothing_of_counts_until_it_has_ended() -> None:
    trainers, done, may_end = Trainers(), threading.Event(), threading.Event()
    trainers.computes()

    def run() -> None:
        trainers.computes()
        done.set()
        may_end.wait()

    _thread.start_new_thread(run, ())
    done.wait()
    assert trainers.others()
    may_end.set()
    until(lambda: not trainers.others())


def test_a_thread_that_has_the_number_of_one_that_ended_counts_as_that_one() -> None:
    """What it does is what the former did, so that it is only looked at, and tells nobody that it computes."""
    trainers, numbers = Trainers(), []
    trainers.computes()

    def computes() -> None:
        trainers.computes()
        numbers.append(threading.get_ident())

    _in_a_thread(computes)()
    assert not trainers.others()
    ends = [_in_a_thread(lambda: numbers.append(threading.get_ident())) for _ in range(20)]
    others = trainers.others()
    for end in ends:  # else the interpreter waits for them
        end()
    assert others == (numbers[0] in numbers[1:])


def test_a_pass_within_a_pass_makes_no_trainer() -> None:
    """Autograd runs it in a thread of its own for an accelerator, while the one that asked for it waits."""
    trainers = Trainers()

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(_context: object, values: torch.Tensor) -> torch.Tensor:
            return values.clone()

        @staticmethod
        def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
            trainers.computes()
            return gradient

    values = torch.ones(2, requires_grad=True)
    end = _in_a_thread(lambda: Nested.apply(values).sum().backward())  # type: ignore[no-untyped-call]
    assert not trainers.others()
    end()
