"""What a fault of ours, or an exception of the training's that passed through us, holds afterwards: nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from stepscope.record.fault_boundary import Boundary


class Graph:
    """Stands for what a training's function was given."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def ours() -> None:
    raise LookupError("a fault of ours")


ours.__code__ = ours.__code__.replace(co_filename=Boundary.call.__code__.co_filename)


def test_an_exception_of_the_training_that_passes_through_us_is_in_no_cycle() -> None:
    boundary = Boundary(lambda _: None)

    def train(graph: Graph) -> None:
        try:
            raise KeyboardInterrupt
        except BaseException as error:
            boundary.handle_error(error)

    graph = Graph()
    gone = weakref.ref(graph)
    with pytest.raises(KeyboardInterrupt):
        train(graph)
    del graph
    assert gone() is None


def test_a_fault_that_is_told_of_lets_go_of_what_the_training_had() -> None:
    def shut(error: BaseException) -> None:
        said.append(str(error))

    said: list[str] = []
    boundary = Boundary(shut)
    gone = call_with_a_graph(boundary)
    assert said == ["a fault of ours"]
    assert not boundary.open
    assert gone() is None


def call_with_a_graph(boundary: Boundary) -> Callable[[], Graph | None]:
    graph = Graph()

    def entered(given: Graph) -> None:
        cycle = []
        try:
            ours()
        except LookupError as error:
            cycle.append(error)  # its traceback has this frame
            raise

    boundary.call(entered, graph)
    return weakref.ref(graph)


def test_one_fault_does_not_keep_the_others_from_being_called() -> None:
    called: list[int] = []
    boundary = Boundary(lambda _: None)
    boundary.call_all([lambda: called.append(1), ours, lambda: called.append(2)])
    assert called == [1, 2]
    assert not boundary.open


def test_a_fault_while_the_training_handles_an_exception_leaves_that_as_it_is() -> None:
    boundary = Boundary(lambda _: None)
    handled: list[BaseException] = []
    try:
        raise ValueError("of the training")
    except ValueError as error:
        boundary.call(ours)
        handled.append(error)
    assert handled[0].__traceback__ is not None
    assert not boundary.open
