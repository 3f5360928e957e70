"""The tree of errors: what is drawn is what there is, and every refusal has an exit code and a next step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope import errors
from stepscope.errors import RunNotFound, StepscopeError, UnknownName
from stepscope.runfolder.validation import read_header

TREE = re.compile(r"^[│ ]*(?:[├└]── )?(\w+) +(\d+)", re.MULTILINE)


def _every_error() -> dict[str, type[StepscopeError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, StepscopeError)
    }


def test_the_tree_in_the_docstring_names_every_error_with_its_exit_code() -> None:
    drawn = {name: int(code) for name, code in TREE.findall(errors.__doc__ or "")}
    assert drawn == {name: error.exit_code for name, error in _every_error().items()}


def test_every_error_says_what_it_means() -> None:
    assert all(error.__doc__ for error in _every_error().values())


@pytest.mark.parametrize("error", [error for error in _every_error().values() if error is not UnknownName])
def test_an_error_carries_its_message_and_its_hint(error: type[StepscopeError]) -> None:
    raised = error("what happened", "what to do next")
    assert (str(raised), raised.hint) == ("what happened", "what to do next")
    assert error("what happened").hint is None


def test_a_misspelt_name_is_answered_with_the_nearest_ones() -> None:
    error = UnknownName("workload", "lenett", ["resnet18-c32", "lenet"])
    assert str(error) == "unknown workload 'lenett'"
    assert error.hint == "did you mean lenet?"


def test_two_near_names_are_both_offered() -> None:
    assert UnknownName("quantity", "cpu-bus", ["cpu-busy", "cpu-bust", "rss"]).hint in (
        "did you mean cpu-busy or cpu-bust?",
        "did you mean cpu-bust or cpu-busy?",
    )


def test_a_name_near_to_nothing_is_answered_with_all_names_in_order() -> None:
    assert UnknownName("workload", "xyz", ["resnet18", "lenet"]).hint == "known: lenet, resnet18"


def test_a_hint_of_ones_own_replaces_the_nearest_names() -> None:
    assert UnknownName("workload", "lenett", ["lenet"], "stepscope workloads").hint == "stepscope workloads"


def test_the_name_of_what_was_trained_is_answered_with_its_newest_run(tmp_path: Path) -> None:
    for name in ("20260101T000000Z-train-aaaaaa", "20260102T000000Z-train-bbbbbb", "20260103T000000Z-notrain-cccccc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RunNotFound) as refused:
        read_header(tmp_path / "train", [])
    assert refused.value.hint == "did you mean 20260102T000000Z-train-bbbbbb?"


def test_no_exit_code_is_that_of_success() -> None:
    assert 0 not in {error.exit_code for error in _every_error().values()}
