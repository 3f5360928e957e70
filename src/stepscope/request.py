"""A question is a frozen dataclass: its fields carry help, unit, bounds and parser, for Python and the command line.

    @dataclass(frozen=True)
    class Copies(Request):
        \"\"\"Copy arrays of growing size.\"\"\"

        most: int = option(64, "Largest array, MB.", least=1)
        sizes: tuple[int, ...] = option(None, "Sizes, MB: 1,2,4,...,64.")
        wait: float = option(0.0, "Pause between two copies.", unit="s")

Every value may be given as SI number or as text: `Copies(wait=0.01)` is `Copies(wait="10ms")` is `--wait 10ms`. None is
"not given". What cannot be is refused when the request is made, with the same message on every way in.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from stepscope.errors import UnknownName, UsageError
from stepscope.privacy import redact_command_line

AnyRequest = TypeVar("AnyRequest", bound="Request")
REQUIRED: Any = object()  # the default of an option that has none


@dataclass(frozen=True)
class Option:
    """The facts of a field.

    least, above, most: bounds, in SI. unit: s, J, B, degC, g/J, share, or none; bare: the unit of text without one.
    choices: the values that there are, or a function that names them; check: raises where a text cannot be. quick: the
    default with `quick=True`. stated: the help says the default, so that the command line does not repeat it. argument:
    one without a name there; short: another name there; leads: stands right before the arguments there; separate: of
    many values, each has an option of its own there. typed: on the command line at all; advanced: listed apart there,
    since few need it. stored: belongs to the question, so that a folder with another value holds another question.
    """

    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unit: str = ""
    bare: str = ""
    choices: Iterable[str] | Callable[[], Iterable[str]] | None = None
    kind: str = ""  # what an unknown choice is called
    check: Callable[[str], object] | None = None
    example: str = ""
    quick: Any = None
    stated: bool = False
    short: str = ""
    argument: bool = False
    leads: bool = False
    separate: bool = False
    typed: bool = True
    stored: bool = True
    advanced: bool = False
    default: Any = None


def is_function(target: str) -> bool:
    """Return whether a target is module:function, which returns the parts of a training."""
    named = ":" in target and not target.endswith(".py") and not target.rpartition(":")[0].endswith(".py")
    return named and not Path(target).exists()  # a folder of a script can be named with a colon


def option(default: Any, about: str | Option, **known: Any) -> Any:
    """Return a field of a request: its default (None: none, REQUIRED: must be given), its help or a shared Option."""
    shared = about if isinstance(about, Option) else Option(about)
    metadata = {"option": dataclasses.replace(shared, default=default, **known)}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=None, metadata=metadata)


IS_MODULE = Option("TARGET is a module, as with `python -m`.", short="-m", leads=True)


@dataclass(frozen=True)
class Parameter:
    """A field of a request with its name, its option and its type: one value, many, or a mapping to numbers."""

    name: str
    option: Option
    type: type
    many: bool = False
    mapping: bool = False

    @property
    def word(self) -> str:
        """The name on the command line, without dashes: `import_` is import."""
        return self.name.rstrip("_").replace("_", "-")

    @property
    def flag(self) -> str:
        """The name in messages, and on the command line."""
        return self.name.upper() if self.option.argument else f"--{self.word}"

    def parse(self, value: Any) -> Any:
        """Return the value as the request holds it. UsageError, or UnknownName, where it cannot be."""
        if self.mapping:
            return self._pairs(value)
        if not self.many:
            return self._check_bounds(value, self._single(value))
        if isinstance(value, str) and not self.option.separate:
            value = self._split(value)
        elif isinstance(value, (str, PathLike)) or not hasattr(value, "__iter__"):
            value = (value,)
        return tuple(self._check_bounds(single, self._single(single)) for single in value)

    def option_words(self, value: Any) -> list[str]:
        """Return the words of the command line for this value."""
        if self.type is bool:
            return [self.flag if value else f"--no-{self.word}"]
        if self.mapping:
            return [word for name, number in value.items() for word in (self.flag, f"{name}={number:g}")]
        values = [amount_text(single, self.option.unit) for single in (value if self.many else (value,))]
        if self.option.argument:
            return values
        if self.many and not self.option.separate:
            values = [",".join(values)]
        return [word for single in values for word in (self.flag, single)]

    def _split(self, text: str) -> list[Any]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            example = self.option.example or ("1,2,4" if self.type is int else "a,b")
            raise UsageError(f"{self.flag} is empty", f"for example {self.flag} {example}")
        return list(self._expand_range(text, parts)) if self.type is int else parts

    def _expand_range(self, text: str, parts: list[str]) -> Iterator[int]:
        """`1,2,8`, and `1,2,4,...,256`, which goes on by the same factor or difference."""
        numbers: list[int] = []
        for index, part in enumerate(parts):
            if part != "...":
                numbers.append(self._check_bounds(part, self._single(part)))
                continue
            if len(numbers) < 2 or index + 1 >= len(parts):
                raise UsageError(f"{self.flag} {text}: '...' goes between numbers", f"{self.flag} 1,2,4,...,256")
            numbers += _fill_range(numbers[-2], numbers[-1], self._single(parts[index + 1]))
        yield from numbers

    def _single(self, value: Any) -> Any:
        if self.type is bool:
            return bool(value)
        if self.type is Path:
            return Path(value)
        if self.type is str:
            return self._chosen(str(value))
        return self._whole(value) if self.type is int else self._number(value)

    def _chosen(self, value: str) -> str:
        choices = self.option.choices() if callable(self.option.choices) else self.option.choices
        if choices is not None and value not in (names := list(choices)):
            raise UnknownName(self.option.kind or self.word.rstrip("s"), value, names)
        if self.option.check is not None:
            self.option.check(value)
        return value

    def _whole(self, value: Any) -> int:
        if self.option.unit:
            return round(self._number(value))
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
            return int(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise self._usage_error(value, "a whole number")
        return operator.index(value)

    def _number(self, value: Any) -> float:
        about = self.option
        if isinstance(value, str):
            if about.unit:
                return parse_amount(self.flag, value, about.unit, about.bare, about.example)
            value = value.strip()
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number):
            raise self._usage_error(value, UNITS[about.unit].noun if about.unit else "a number")
        return number

    def _pairs(self, value: Any) -> dict[str, float]:
        """A mapping, or texts such as `adam=0.003`."""
        if isinstance(value, Mapping):
            pairs = {str(name): number for name, number in value.items()}
        else:
            texts = [value] if isinstance(value, str) else list(value)
            pairs = {text.partition("=")[0]: text.partition("=")[2] for text in texts}
        return {name: self._check_bounds(number, self._number(number)) for name, number in pairs.items()}

    def _check_bounds(self, stated: Any, value: Any) -> Any:
        about, bound = self.option, ""
        if about.least is not None and value < about.least:
            bound = f"must be {about.least:g} or more"
        elif about.above is not None and value <= about.above:
            bound = f"must be above {about.above:g}"
        elif about.most is not None and value > about.most:
            bound = f"must be {about.most:g} or less"
        if bound:
            stated_text = f"{stated:g}" if isinstance(stated, float) else stated
            raise UsageError(f"{self.flag} {stated_text}: {bound}", self._hint())
        return value

    def _usage_error(self, value: Any, noun: str) -> UsageError:
        return UsageError(f"{self.flag} {value}: not {noun}", self._hint())

    def _hint(self) -> str:
        about = self.option
        usual = str(about.default) if about.default not in (None, REQUIRED) else f"{about.least or 1:g}"
        return f"for example {self.flag} {about.example or usual}"


@dataclass(frozen=True)
class Request:
    """A question. Subclasses are frozen dataclasses whose docstring is the help of the command."""

    def __post_init__(self) -> None:
        quick = bool(getattr(self, "quick", False))
        for name, parameter in parameters(type(self)).items():
            value = getattr(self, name)
            if value is None:
                value = default_of(parameter, quick)
            object.__setattr__(self, name, None if value is None else parameter.parse(value))

    @classmethod
    def from_settings(cls: type[AnyRequest], settings: Mapping[str, Any], kind: str = "request") -> AnyRequest:
        """Return the request with these settings; UnknownName for one that it does not have.

        A field that ends with _ is also meant without it, since `import` and `from` are words of Python.
        """
        field_names = {name.rstrip("_"): name for name in parameters(cls)}
        for name in settings:
            if name.rstrip("_") not in field_names:
                raise UnknownName(f"setting of '{kind}'", name, field_names.values())
        fields = {field_names[name.rstrip("_")]: value for name, value in settings.items()}
        for name, parameter in parameters(cls).items():
            if parameter.option.default is REQUIRED and fields.get(name) is None:
                raise UsageError(f"{parameter.name}: {parameter.option.help}", f"'{kind}' cannot be asked without it")
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Return what belongs to the question, as plain data that JSON can hold; `from_settings` reads it."""
        return {
            name: _to_plain_value(getattr(self, name))
            for name, parameter in parameters(type(self)).items()
            if parameter.option.stored
        }

    def words(self, out: Path | None = None) -> list[str]:
        """Return what would be typed after the name of the command: arguments, then each option that says something."""
        quick = bool(getattr(self, "quick", False))
        arguments: list[str] = []
        options: list[str] = []
        leading: list[str] = []
        for name, parameter in parameters(type(self)).items():
            value, usual = getattr(self, name), default_of(parameter, quick)
            if value in (None, ()) or not parameter.option.typed:
                continue
            if usual is not None and value == parameter.parse(usual):
                continue
            if parameter.option.leads:
                leading.append(parameter.option.short or parameter.flag)
                continue
            into = arguments if parameter.option.argument else options
            into += parameter.option_words(value)
        options += () if out is None else ("--out", str(out))
        if leading:
            return [*options, *leading, *arguments[:1], *(["--"] * (len(arguments) > 1)), *arguments[1:]]
        if any(word.startswith("-") for word in arguments):  # of a script: they end the options
            return [*options, "--", *arguments]
        return [*arguments, *options]

    def command_line(self, *command: str, out: Path | None = None) -> str:
        """Return the line that asks this again, without the secrets of a script's arguments: it is written down."""
        return shlex.join(redact_command_line([*command, *self.words(out)]))


def parameters(request: type[Request]) -> Mapping[str, Parameter]:
    """Return the options of a class of requests by the name of the field, in their order."""
    result: Mapping[str, Parameter] = _parameters(request)  # type: ignore[arg-type]  # a class of dataclasses is hashable
    return result


@cache
def _parameters(request: Any) -> Mapping[str, Parameter]:
    hints = typing.get_type_hints(request)
    return {
        field.name: _parameter(field.name, field.metadata["option"], hints[field.name])
        for field in dataclasses.fields(request)
        if "option" in field.metadata
    }


def default_of(parameter: Parameter, quick: bool = False) -> Any:
    """Return the value of a field that is not given; None where it has none."""
    about = parameter.option
    if parameter.type is bool and about.default is None:
        return False
    return about.quick if quick and about.quick is not None else None if about.default is REQUIRED else about.default


def _parameter(name: str, about: Option, hint: Any) -> Parameter:
    inner = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _parameter(name, about, inner[0])
    if typing.get_origin(hint) is tuple:
        return Parameter(name, about, inner[0], many=True)
    if typing.get_origin(hint) is dict:
        return Parameter(name, about, inner[1], mapping=True)
    return Parameter(name, about, hint)


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain_value(single) for single in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return str(value) if isinstance(value, Path) else value


def _fill_range(before: int, last: int, end: int) -> list[int]:
    """Return what lies between `last` and `end`, by the factor of the two before where it is a whole one above 1."""
    if last <= before or end <= last or before < 1:
        raise UsageError(f"'{before},{last},...,{end}' does not grow", "for example 1,2,4,...,256")
    factor, remainder = divmod(last, before)
    numbers: list[int] = []
    value = last
    while (value := value * factor if remainder == 0 else value + (last - before)) < end:
        numbers.append(value)
    return numbers


@dataclass(frozen=True)
class Unit:
    """A unit of amounts: what a text is not that has none of its names, an example, and the factor of each to SI."""

    noun: str
    example: str
    factors: Mapping[str, float]


_SIZES = {f"{prefix}{i}": (1024 if i else 1000) ** power for power, prefix in enumerate(("", "k", "m", "g", "t"))
          for i in ("", "i") if prefix or not i}  # fmt: skip
UNITS: Mapping[str, Unit] = {
    "s": Unit("a length of time", "30s, 10ms or 1h", {"": 1, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}),
    "J": Unit("an amount of energy", "50Wh", {"": 1, "j": 1, "kj": 1e3, "wh": 3600, "kwh": 3.6e6}),
    "B": Unit("an amount of memory", "8GB, 512MB or 7.5GiB", {
        name: factor for prefix, factor in _SIZES.items() for name in (prefix, f"{prefix}b")
    }),
    "degC": Unit("a temperature", "45C", {"": 1, "c": 1, "°c": 1, "degc": 1}),
    "share": Unit("a share", "2%", {"": 1, "%": 0.01}),
    "g/J": Unit("an amount of carbon", "400g/kWh", {"": 1, "g/kwh": 1 / 3.6e6, "kg/kwh": 1e3 / 3.6e6, "g/j": 1}),
}  # fmt: skip
_SHOWN = {"J": ("Wh", "J"), "share": ("%", ""), "degC": ("C", "C"), "g/J": ("g/kWh", "g/J")}  # to read, and exact


def amount_text(value: float, unit: str) -> str:
    """Return an amount as it would be typed; what is typed so is this very number again."""
    if unit not in _SHOWN:
        return str(_to_plain_value(value))
    symbol, exact = _SHOWN[unit]
    text = f"{value / UNITS[unit].factors[symbol.lower()]:.12g}{symbol}"
    return text if parse_amount("", text, unit) == value else f"{value!r}{exact}"


def refuse_bare_share(name: str, value: object) -> None:
    """Raise UsageError for text such as "0.05", which could be a share or a percentage; "5" and "0.05%" are clear."""
    if isinstance(value, str) and re.fullmatch(r"\s*0?\.\d+\s*", value):
        text = value.strip()
        raise UsageError(
            f"{name} {text}: {text} %, or {float(text) * 100:g} %?", f"write {text}% or {float(text) * 100:g}%"
        )


def parse_amount(name: str, text: str, unit: str, bare: str = "", example: str = "") -> float:
    """Return an amount in SI of `10ms`, `8GB`, `2%`, `45C` or `50Wh`; `bare` is the unit of a text without one.

    A share without its sign is one below 1, and from 1 on in the unit `bare`. UsageError where it is none; `name` is
    what the message calls it.
    """
    notation = UNITS[unit]
    match = re.fullmatch(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([^\d\s].*|)", text.strip().lower())
    if match is None or match[2] not in notation.factors:
        raise UsageError(f"{name} {text}: not {notation.noun}", f"for example {name} {example or notation.example}")
    number, symbol = float(match[1]), match[2] or bare.lower()
    if unit == "share" and not match[2] and number < 1:
        symbol = ""
    if not math.isfinite(number):
        raise UsageError(f"{name} {text}: not {notation.noun}", f"for example {name} {example or notation.example}")
    return number * notation.factors[symbol]
