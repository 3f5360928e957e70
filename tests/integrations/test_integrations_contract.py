"""Every file of integrations/ joins one library, is light until it is used, and says what to install."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.patience import HANG_S

from stepscope.errors import MissingDependency, UnknownName
from stepscope.integrations import discovered, logger, loggers
from stepscope.integrations._library_hooks import import_library

FILES = discovered().modules
LIBRARIES = {"lightning", "pytorch_lightning", "transformers", "accelerate", "keras", "mlflow", "wandb", "tensorboard"}
TRAINERS = {"lightning", "huggingface", "keras", "accelerate"}


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def test_every_file_can_be_imported_and_is_a_trainer_or_a_logger() -> None:
    assert discovered().warnings == ()
    assert {_name(module) for module in FILES} == TRAINERS | set(loggers())
    assert set(loggers()) == {"mlflow", "wandb", "tensorboard", "prometheus", "codecarbon"}


@pytest.mark.parametrize("module", FILES, ids=_name)
def test_a_file_says_what_it_joins_and_which_extra_brings_the_library(module: ModuleType) -> None:
    assert module.TITLE
    assert isinstance(module.EXTRA, str)
    assert module.__doc__


@pytest.mark.parametrize("module", loggers().values(), ids=_name)
def test_a_logger_takes_a_run_and_a_place(module: ModuleType) -> None:
    first, second, *rest = inspect.signature(module.log_run).parameters.values()
    assert (first.name, second.name, second.default) == ("run", "out", None)
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in rest)


def test_no_library_is_imported_before_it_is_used() -> None:
    refused = LIBRARIES | {"torch", "altair", "prometheus_client"}
    script = f"import sys, stepscope.integrations as i; i.loggers(); print(*sorted({refused!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == ""


def test_a_library_that_is_not_installed_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingDependency) as refused:
        import_library("keras", "keras")
    assert refused.value.hint == "pip install 'stepscope[keras]'"


def test_an_unknown_logger_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as refused:
        logger("mlfow")
    assert refused.value.hint == "did you mean mlflow?"


@pytest.mark.parametrize("module", FILES, ids=_name)
def test_a_name_that_a_file_does_not_have_is_an_attribute_error(module: ModuleType) -> None:
    assert not hasattr(module, "no_such_name")
    assert Path(str(module.__file__)).is_file()
