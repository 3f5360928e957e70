"""A question asked in Python and on the command line is one request: the same values, bounds and messages."""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import stepscope
from stepscope.api.requests import STUDIES, Study
from stepscope.cli import load_commands
from stepscope.cli import study as studies
from stepscope.cli._options import make_command
from stepscope.errors import StepscopeError, UnknownName, UsageError
from stepscope.request import REQUIRED, Parameter, Request, default_of, option, parameters, parse_amount

REQUESTS: Mapping[str, type[Request]] = {
    **{name: study.request for name, study in STUDIES.items()},
    "suite run": stepscope.requests.SuiteRun,
    "forecast": stepscope.requests.ForecastRequest,
    "run": stepscope.requests.RunRequest,
    "calibrate": stepscope.requests.CalibrateRequest,
    "check": stepscope.requests.CheckRequest,
    "compare": stepscope.requests.CompareRequest,
    "data": stepscope.requests.DataRequest,
    "doctor": stepscope.requests.DoctorRequest,
    "export": stepscope.requests.ExportRequest,
    "import": stepscope.requests.ImportRequest,
    "live": stepscope.requests.LiveRequest,
    "log": stepscope.requests.LogRequest,
    "meter": stepscope.requests.MeterRequest,
    "runs list": stepscope.requests.RunsRequest,
    "suite show": stepscope.requests.SuiteShowRequest,
    "suite export": stepscope.requests.SuiteExportRequest,
    "suite list": stepscope.requests.SuiteListRequest,
}
NEEDED: Mapping[str, dict[str, Any]] = {
    "calibrate": {"plug": "shelly=192.168.1.20"},
    "check": {"run": Path("a"), "against": Path("b")},
    "compare": {"runs": (Path("a"), Path("b"))},
    "data": {"action": "verify"},
    "import": {"file": Path("trace.json")},
    "meter": {"run": Path("a"), "log": Path("meter.csv")},
    "suite show": {"path": Path("suites/a")},
    "suite export": {"path": Path("suites/a")},
}
OPTIONS = [(name, parameter) for name, request in REQUESTS.items() for parameter in parameters(request).values()]
NAMED = [f"{name} {parameter.name}" for name, parameter in OPTIONS]


def _typed(name: str, words: list[str]) -> Request:
    """The request that the command line makes of these words; what it refuses is raised."""
    import typer

    made: list[Request] = []

    def keep(request: Request) -> None:
        made.append(request)

    app = typer.Typer()
    app.command()(make_command(REQUESTS[name], keep, name))
    result = CliRunner().invoke(app, words)
    if isinstance(result.exception, StepscopeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return made[0]


def _needed(name: str) -> dict[str, Any]:
    """What cannot be excluded."""
    if name == "forecast":
        return {"target": "last", "steps": 9}
    if name == "run":
        return {"target": "lenet"}
    if name in NEEDED:
        return NEEDED[name]
    known = parameters(REQUESTS[name])
    return {"workload": "lenet"} if "workload" in known and known["workload"].option.default is REQUIRED else {}


def _another(parameter: Parameter) -> Any:
    """A value that is not the default."""
    about = parameter.option
    if about.choices is not None:
        known = list(about.choices() if callable(about.choices) else about.choices)
        value: Any = next(known for known in reversed(known) if known != default_of(parameter))
    elif parameter.type is bool:
        return not about.default
    elif parameter.type is Path:
        value = Path("some/where")
    elif parameter.type is str:
        value = "lenet"
    else:
        value = 3 if parameter.type is int else 0.125 if about.most == 1 or about.unit == "share" else 3.5
    if parameter.mapping:
        return {"adam": value}
    return (value,) if parameter.many else value


@pytest.mark.parametrize(("name", "parameter"), OPTIONS, ids=NAMED)
def test_every_field_has_help_and_is_the_same_in_python_and_typed(name: str, parameter: Parameter) -> None:
    assert parameter.option.help.endswith(".")
    value = _another(parameter)
    try:
        asked = REQUESTS[name].from_settings({**_needed(name), parameter.name: value}, name)
    except UsageError:  # --of and --preset, which others contradict, are asked below
        return
    assert getattr(asked, parameter.name) == value
    assert asked == REQUESTS[name].from_settings(asked.to_dict() | _unstored(asked), name)
    assert json.loads(json.dumps(asked.to_dict())) == asked.to_dict()
    if parameter.option.typed:
        assert _typed(name, asked.words()) == asked


def _unstored(asked: Request) -> dict[str, Any]:
    return {
        name: getattr(asked, name) for name, known in parameters(type(asked)).items() if not known.option.stored
    }  # fmt: skip


BOUNDED = [(name, known) for name, known in OPTIONS if (known.option.typed and not known.mapping
           and known.option.least is not None) or (known.option.above is not None and not known.mapping)]  # fmt: skip


@pytest.mark.parametrize(("name", "parameter"), BOUNDED, ids=[f"{name} {known.name}" for name, known in BOUNDED])
def test_bounds_are_refused_in_python_and_typed_with_the_same_message(name: str, parameter: Parameter) -> None:
    if not parameter.option.typed:
        return
    least = parameter.option.least
    below = int(least) - 1 if least is not None else 0
    with pytest.raises(UsageError, match=f"^{parameter.flag} {below}: must be") as called:
        REQUESTS[name].from_settings({**_needed(name), parameter.name: below}, name)
    with pytest.raises(UsageError, match=re.escape(str(called.value))) as typed:
        _typed(name, [*REQUESTS[name](**_needed(name)).words(), f"{parameter.flag}={below}"])
    assert typed.value.hint == called.value.hint


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_typed_is_the_request_of_python(name: str) -> None:
    needed = _needed(name)
    words = REQUESTS[name](**needed).words()
    assert _typed(name, words) == REQUESTS[name](**needed)
    if "quick" in parameters(REQUESTS[name]):
        assert _typed(name, [*words, "--quick"]) == REQUESTS[name](**needed | {"quick": True})


@pytest.mark.parametrize(
    ("study", "settings", "line"),
    [
        ("kernels", {"batch": [1, 2], "quick": True, "seconds": 0.1}, "--batch 1,2 --seconds 0.1 --quick"),
        ("kernels", {"import_": Path("tables"), "quick": False}, "--import tables"),
        ("kernels", {"of": "lenet", "batch": 8}, "--of lenet --batch 8"),
        ("breakdown", {"models": ["lenet", "vgg16-c32"], "memory_only": True}, "lenet vgg16-c32 --memory-only"),
        ("breakdown", {"models": "lenet"}, "lenet"),
        ("optimizers", {"workload": "lenet", "lr": {"adam": 0.01, "sgd": 1}}, "lenet --lr adam=0.01 --lr sgd=1"),
        ("observations", {"from": ["a", "b"], "repeats": None}, "--from a --from b"),
        ("batch", {"batch": range(1, 4), "workload": "lenet"}, "lenet --batch 1,2,3"),
        ("partial", {"fractions": (0.125, 1)}, "--fractions 12.5%,100%"),
        ("partial", {"fractions": "20,12.5"}, "--fractions 20%,12.5%"),
        ("partial", {"preset": "second-paper", "quick": True, "seeds": 5}, None),
        ("daily", {"charging": "1h", "battery": 36_000, "start": "70"}, "--start 70% --charging 3600 --battery 10Wh"),
    ],
)
def test_a_request_says_the_words_that_ask_it_again(study: str, settings: dict[str, Any], line: str | None) -> None:
    asked = REQUESTS[study].from_settings(settings, study)
    assert line in (None, " ".join(asked.words()))
    assert _typed(study, asked.words()) == asked


def test_a_study_is_asked_by_a_request_or_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("stepscope.api.study.answer_request", lambda *asked: seen.append(asked[:2]))
    partial = stepscope.requests.PartialTraining(fractions=(0.125,))
    stepscope.study(partial, out=tmp_path)
    stepscope.study("partial", fractions=(0.125,), out=tmp_path)
    stepscope.study("partial", fractions="12.5%", out=tmp_path)
    assert seen == [(partial, partial.checked())] * 3
    with pytest.raises(UsageError, match="settings already"):
        stepscope.study(partial, seeds=2)


def test_a_preset_fixes_what_it_fixes_however_it_is_said() -> None:
    asked = stepscope.requests.PartialTraining(preset="second-paper")
    assert (asked.batch, asked.fractions) == (40, (0.2, 0.6))
    assert replace(asked, seeds=2).batch == 40
    assert stepscope.requests.PartialTraining(preset="second-paper", batch=40) == asked
    with pytest.raises(UsageError, match="fixes --batch"):
        stepscope.requests.PartialTraining(preset="second-paper", batch=8)


@pytest.mark.parametrize("name", REQUESTS)
def test_every_command_of_a_request_has_its_options_and_its_help(name: str) -> None:
    words = name.split()
    group = load_commands("study" if name in STUDIES else words[0])[0]
    function = group.subcommands[words[-1]] if group.subcommands else group.function
    assert function.__doc__ == REQUESTS[name].__doc__
    shown = inspect.signature(function).parameters
    typed = {field: known for field, known in parameters(REQUESTS[name]).items() if known.option.typed}
    assert list(shown)[: len(typed)] == list(typed)


@pytest.mark.parametrize(("given", "share"), [("5%", 0.05), ("5", 0.05), ("0.5%", 0.005), (0.5, 0.5), (" 3 % ", 0.03)])
def test_a_limit_of_check_without_its_sign_is_a_percentage_where_it_is_text(given: Any, share: float) -> None:
    asked = stepscope.requests.CheckRequest(Path("a"), Path("b"), max_memory=given)
    assert asked.limits == pytest.approx({"memory": share})


def test_a_limit_of_check_that_could_be_a_share_or_a_percentage_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--max-memory 0\.05: 0\.05 %, or 5 %\?"):
        stepscope.requests.CheckRequest(Path("a"), Path("b"), max_memory="0.05")  # type: ignore[arg-type]


def test_the_accuracy_of_a_meter_without_its_sign_is_a_percentage_or_refused() -> None:
    def accuracy(given: Any) -> float:
        return stepscope.requests.CalibrateRequest("shelly=a", accuracy=given).accuracy

    assert [accuracy(given) for given in ("1", "1%", 0.01, "0.5%")] == pytest.approx([0.01, 0.01, 0.01, 0.005])
    with pytest.raises(UsageError, match=r"--accuracy 0\.5: 0\.5 %, or 50 %\?"):
        accuracy("0.5")


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_every_study_is_a_command_and_every_field_an_option(name: str) -> None:
    assert name in studies.SUBCOMMANDS
    assert {field.name for field in fields(REQUESTS[name])} == set(parameters(REQUESTS[name]))


# The parts of a request.


@dataclass(frozen=True)
class Copies(Request):
    """Copy arrays of growing size."""

    most: int = option(64, "Largest array, MB.", least=1, most=100)
    sizes: tuple[int, ...] = option("1,2,4,...,64", "Sizes, MB.", least=1)
    wait: float = option(0.0, "Pause between two copies.", unit="s", least=0)
    memory: int | None = option(None, "Memory of the process.", unit="B", above=0)
    share: float = option(0.5, "Share of it.", unit="share", above=0, most=1)


@pytest.mark.parametrize(
    ("wait", "expected"), [("10ms", 0.01), (0.01, 0.01), ("1.5 min", 90), ("1h", 3600), ("500us", 0.0005), ("2", 2)]
)
def test_a_time_is_taken_as_seconds_or_as_text(wait: Any, expected: float) -> None:
    assert Copies(wait=wait).wait == pytest.approx(expected)


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("B", "8GB", 8e9), ("B", "7.5 GiB", 7.5 * 1024**3), ("B", "512M", 512e6), ("B", "8e9", 8e9), ("B", "100", 100),
        ("share", "2%", 0.02), ("share", "0.9", 0.9), ("degC", "45C", 45), ("degC", "45 °C", 45),
        ("J", "50Wh", 180_000), ("J", "2 kJ", 2000), ("g/J", "400g/kWh", 400 / 3.6e6), ("s", "1e-3", 0.001),
    ],
)  # fmt: skip
def test_an_amount_is_read_in_its_unit(unit: str, text: str, expected: float) -> None:
    assert parse_amount("--x", text, unit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wait": "soon"}, "--wait soon: not a length of time"), ({"wait": "10GB"}, "not a length of time"),
        ({"wait": -1.0}, "--wait -1: must be 0 or more"), ({"memory": "lots"}, "not an amount of memory"),
        ({"memory": "0MB"}, "must be above 0"), ({"share": "120%"}, "must be 1 or less"), ({"share": 0}, "above 0"),
        ({"most": 1.5}, "--most 1.5: not a whole number"), ({"most": True}, "not a whole number"),
        ({"most": 101}, "100 or less"), ({"sizes": ""}, "--sizes is empty"), ({"sizes": "1,...,4"}, "between numbers"),
        ({"sizes": "4,2,...,8"}, "does not grow"), ({"wait": float("nan")}, "not a length of time"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Copies(**settings)


def test_numbers_go_on_by_their_factor_or_their_difference() -> None:
    assert Copies().sizes == (1, 2, 4, 8, 16, 32, 64)
    assert Copies(sizes="1,3,5,...,10").sizes == (1, 3, 5, 7, 9, 10)  # type: ignore[arg-type]
    assert Copies(sizes=8).sizes == (8,)  # type: ignore[arg-type]


def test_a_setting_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnknownName, match="unknown setting of 'copies' 'sizzes'") as refused:
        Copies.from_settings({"sizzes": 3}, "copies")
    assert "sizes" in str(refused.value.hint)


@given(st.integers(1, 100), st.floats(0, 1e6), st.integers(1, 10**12))
def test_what_a_request_stores_is_the_request(most: int, wait: float, memory: int) -> None:
    asked = Copies(most=most, wait=wait, memory=memory)
    assert Copies.from_settings(json.loads(json.dumps(asked.to_dict()))) == asked


# A study of one's own, as docs/add-a-study.md has it.


def test_the_study_of_the_docs_is_asked_typed_or_called_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "add-a-study.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    module = types.ModuleType("copies")
    monkeypatch.setitem(sys.modules, "copies", module)
    exec(compile(code, "add-a-study.md", "exec"), module.__dict__)
    monkeypatch.setitem(STUDIES, "copies", Study(module.Copies))
    found = stepscope.study("copies", most="4", pause="1ms", out=tmp_path / "s")
    assert found.command == f"stepscope study copies --most 4 --pause 0.001 --out {tmp_path / 's'}"
    monkeypatch.setattr("timeit.repeat", lambda *a, **k: pytest.fail("it was measured before"))
    again = stepscope.study(module.Copies(most=4, pause=0.001), out=tmp_path / "s")
    assert again.tables == found.tables
    assert (tmp_path / "s" / "page.html").is_file()
    with pytest.raises(UsageError, match="most: 4 -> 2"):
        stepscope.study("copies", most=2, pause=0.001, out=tmp_path / "s")
