"""What macOS' powermetrics prints, block by block; forms of macOS 12 to 26.

A block begins with "*** Sampled system activity (...) (104.51ms elapsed) ***". What a macOS version does not print
(Package and DRAM power since 14 or so) is absent, and is never 0. Lines that are not understood are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BLOCK = re.compile(
    r"\*\*\* Sampled system activity \((?P<when>.*)\) \((?P<ms>[0-9]{1,12}(?:\.[0-9]{1,9})?)ms elapsed\) \*\*\*"
)
_SECTION = re.compile(r"\*\*\*\*\s*(.*?)\s*\*\*\*\*")
_NUMBER = r"(-?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:e[+-]?[0-9]{1,2})?)"
_POWER = re.compile(rf"(?P<of>.+?) Power(?: \(.*\))?: {_NUMBER} ?(?P<unit>mW|W)")
_FREQUENCY = re.compile(rf"(?P<of>.+?)(?: HW active| active)? frequency: {_NUMBER} (?P<unit>MHz|GHz)")
_RESIDENCY = re.compile(
    rf"(?P<of>.+?) (?P<state>active|idle|down|requested) residency:\s*{_NUMBER}%\s*(?P<table>\(.*\))?"
)
_TABLE = re.compile(rf"{_NUMBER} MHz:\s*{_NUMBER}%")
_COUNT = re.compile(rf"(?P<of>.+?) (?P<what>instructions retired|instructions per clock): {_NUMBER}")
_NAMED = re.compile(r"(?P<name>[A-Z][^:]*?):(?P<value>| .*)")
_SCALE = {"mW": 1e-3, "W": 1.0, "MHz": 1e6, "GHz": 1e9}
_LAST_POWERS = ("Combined", "Package")  # nothing that is read here follows them in a block


@dataclass
class Block:
    """One sample: means over `elapsed_ns` before it was printed; a name that is not in a dictionary was not printed."""

    when: str
    elapsed_ns: int
    power_w: dict[str, float] = field(default_factory=dict)  # CPU, GPU, ANE, DRAM, Package, Combined, E-Cluster
    frequency_hz: dict[str, float] = field(default_factory=dict)  # of clusters, cores, GPU, while active
    residency: dict[str, dict[str, float]] = field(default_factory=dict)  # name -> state -> share of 1
    at_frequency: dict[str, dict[float, float]] = field(default_factory=dict)  # name -> Hz -> share of 1
    counts: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)  # "Current pressure level": "Nominal"
    unknown: list[str] = field(default_factory=list)

    @property
    def powers_complete(self) -> bool:
        """Whether the last of the powers has been printed."""
        return any(name in self.power_w for name in _LAST_POWERS)


@dataclass(frozen=True)
class Report:
    """A whole output: the machine's lines before the first block, and the blocks."""

    machine: dict[str, str]
    blocks: tuple[Block, ...]
    unknown: tuple[str, ...]  # lines before the first block that are no "name: value"


def parse(text: str) -> Report:
    """A whole output; several that were put into one file follow one another."""
    machine: dict[str, str] = {}
    unknown: list[str] = []
    blocks: list[Block] = []
    for line in text.splitlines():
        begun = begin(line)
        if begun is not None:
            blocks.append(begun)
        elif blocks:
            take(blocks[-1], line)
        elif (named := _NAMED.fullmatch(line.strip())) is not None:
            machine[named["name"]] = named["value"].strip()
        elif line.strip():
            unknown.append(line)
    return Report(machine, tuple(blocks), tuple(unknown))


def begin(line: str) -> Block | None:
    """A new block where the line is the head of one."""
    head = _BLOCK.fullmatch(line.strip())
    return None if head is None else Block(head["when"], round(float(head["ms"]) * 1e6))


def take(block: Block, line: str) -> None:
    """Put one line of a block into its place; a line that is not understood goes to `unknown`."""
    text = line.strip()
    if not text or _SECTION.fullmatch(text):
        return
    if (power := _POWER.fullmatch(text)) is not None:
        block.power_w[power["of"]] = float(power[2]) * _SCALE[power["unit"]]
    elif (clock := _FREQUENCY.fullmatch(text)) is not None:
        block.frequency_hz[clock["of"]] = float(clock[2]) * _SCALE[clock["unit"]]
    elif (share := _RESIDENCY.fullmatch(text)) is not None:
        _take_residency(block, share)
    elif (count := _COUNT.fullmatch(text)) is not None:
        block.counts[f"{count['of']} {count['what']}"] = float(count[3])
    elif (named := _NAMED.fullmatch(text)) is not None and named["name"] not in block.words:
        block.words[named["name"]] = named["value"].strip()
    else:
        block.unknown.append(line)


def _take_residency(block: Block, share: re.Match[str]) -> None:
    """Share of time in a state, and at each frequency; what the table holds beside those is kept as unknown."""
    name, table = share["of"].removesuffix(" HW"), share["table"]
    block.residency.setdefault(name, {})[share["state"]] = float(share[3]) / 100
    if table is None:
        return
    block.at_frequency[name] = {float(mhz) * 1e6: float(part) / 100 for mhz, part in _TABLE.findall(table)}
    if rest := _TABLE.sub("", table[1:-1]).strip():
        block.unknown.append(f"{name} {share['state']} residency: {rest}")
