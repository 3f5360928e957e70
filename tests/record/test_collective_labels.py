"""Labels of a window with collectives: their phase and module, and that the phases around them stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.record.ops.events import (
    BACKWARD_NODE,
    MODULE_SCOPE,
    NO_MODULE,
    Events,
    by_thread_and_time,
    depths,
    label_events,
    parents,
)
from stepscope.runfolder import PHASES

_ENGINE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"

Event = tuple[str, int, int, int]  # name, begin, end, thread


def _labelled(events: list[Event]) -> dict[str, tuple[str, int]]:
    """Phase and module by name; forward operators and backward nodes of one name share a sequence number."""
    texts = sorted({name for name, *_ in events})
    name, t0, t1, thread = (
        np.array(column, dtype=np.int64)
        for column in zip(*((texts.index(text), *rest) for text, *rest in events), strict=True)
    )
    node = np.array([text.endswith(("Backward0", _ACCUMULATE)) and not text.startswith(_ENGINE) for text, *_ in events])
    sequence = np.array([7 if text in ("aten::addmm", "AddmmBackward0") else -1 for text, *_ in events])
    none = np.full(len(events), -1, dtype=np.int64)
    table = Events(
        name, t0, t1, thread, np.where(node, BACKWARD_NODE, 0), sequence, np.ones_like(none), none, none, none, []
    )
    table = table.take(by_thread_and_time(thread, t0, t1))
    depth = depths(table.thread, table.t0, table.t1)
    labels = label_events(table, parents(table.thread, depth), depth, texts)
    rows = zip(table.name.tolist(), labels.phase.tolist(), labels.module.tolist(), strict=True)
    return {texts[number]: (PHASES[phase], module) for number, phase, module in rows}


def test_a_collective_after_the_model_does_not_end_the_forward_phase() -> None:
    found = _labelled(
        [
            (f"{MODULE_SCOPE}0", 0, 50, 1),
            ("aten::addmm", 5, 40, 1),
            ("c10d::allreduce_", 60, 65, 1),
            ("aten::mse_loss", 70, 80, 1),
            (f"{_ENGINE}AddmmBackward0", 90, 99, 1),
            ("AddmmBackward0", 91, 98, 1),
        ]
    )
    assert found["c10d::allreduce_"] == ("communication", NO_MODULE)
    assert found["aten::mse_loss"][0] == "forward"
    assert found["AddmmBackward0"] == ("backward", 0)


def test_a_collective_inside_a_module_is_that_modules_and_a_bucket_of_gradients_is_nobodys() -> None:
    found = _labelled(
        [
            (f"{MODULE_SCOPE}0", 0, 50, 1),
            ("aten::addmm", 5, 20, 1),
            ("_c10d_functional::all_reduce", 22, 30, 1),
            ("record_param_comms", 23, 29, 1),
            (f"{_ENGINE}AddmmBackward0", 60, 80, 1),
            ("AddmmBackward0", 61, 70, 1),
            ("c10d::allgather_", 62, 65, 1),
            (f"{_ENGINE}{_ACCUMULATE}", 82, 99, 1),
            (_ACCUMULATE, 83, 85, 1),
            ("c10d::allreduce_", 90, 98, 1),
            ("aten::view", 91, 92, 1),
        ]
    )
    assert found["_c10d_functional::all_reduce"] == found["record_param_comms"] == ("communication", 0)
    assert found["c10d::allgather_"] == ("communication", 0), "a collective within a layer's own backward"
    assert found["c10d::allreduce_"] == found["aten::view"] == ("communication", NO_MODULE)
    assert found[_ACCUMULATE] == ("backward", 0)


@pytest.mark.parametrize("name", ["gloo:all_reduce", "nccl:broadcast", "mpi:barrier"])
def test_what_a_backend_thread_does_is_communication_and_what_other_threads_do_is_not(name: str) -> None:
    found = _labelled(
        [
            (f"{MODULE_SCOPE}0", 0, 50, 1),
            ("aten::addmm", 5, 40, 1),
            (name, 20, 90, 2),
            ("aten::div_", 92, 95, 2),
            ("aten::stack", 10, 30, 3),
        ]
    )
    assert found[name][0] == found["aten::div_"][0] == "communication"
    assert found["aten::stack"][0] == "other"
    assert found["aten::addmm"] == ("forward", 0)
