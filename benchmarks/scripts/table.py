"""The outcome as a line on the terminal and as the table of docs/compatibility.md."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.scripts.compare import Verdict
from benchmarks.scripts.programs import COMMITS, Program
from benchmarks.scripts.runner import Outcome
from benchmarks.scripts.truth import Trained

_BEGIN, _END = "<!-- scripts -->", "<!-- /scripts -->"
_PACKAGES = (
    "torch", "torchvision", "timm", "transformers", "trl", "accelerate", "datasets", "diffusers", "lightning", "keras",
    "gymnasium", "matplotlib", "numpy",
)  # fmt: skip


def line(outcome: Outcome) -> str:
    """One line; without a measured run, what is true of the bare program."""
    parts = [f"{outcome.name:<38}"]
    if outcome.measured is None:
        parts.append(f"exit {outcome.bare_code}, steps {_steps(outcome.truth)}, layers {outcome.truth.layers}")
        parts.append(f"{outcome.bare_cpu_s:.1f} s CPU, {outcome.bare_wall_s:.1f} s, {_mb(outcome.bare_peak_bytes)} MB")
    else:
        cells = _cells(outcome)
        names = ("exit", "stdout", "files", "steps", "samples", "layers", "recorded", "CPU", "RAM")
        parts += [f"{name} {cell}" for name, cell in zip(names, cells, strict=True)]
    return "; ".join(part for part in [*parts, outcome.trouble] if part)


def _cells(outcome: Outcome) -> list[str]:
    measured, truth = outcome.measured, outcome.truth
    assert measured is not None
    assert outcome.cpu_s is not None
    assert outcome.peak_bytes is not None
    return [
        f"{outcome.code}" if outcome.code == outcome.bare_code else f"**{outcome.bare_code} -> {outcome.code}**",
        _verdict(outcome.stdout),
        _verdict(outcome.files),
        f"{_steps(measured)} / {_steps(truth)}",
        "-" if not truth.steps else f"{_number(measured.samples)} / {_number(truth.samples)}",
        f"{_number(measured.layers)} / {_number(truth.layers)}",
        _number(measured.recorded),
        f"{outcome.cpu_s - outcome.bare_cpu_s:+.1f} of {outcome.bare_cpu_s:.1f} s",
        f"{_mb(outcome.peak_bytes - outcome.bare_peak_bytes):+} of {_mb(outcome.bare_peak_bytes)} MB",
    ]


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return "-"
    return f"**{verdict.how}**" if verdict.same is False else verdict.how


def _steps(trained: Trained) -> str:
    return " + ".join(map(str, trained.steps)) or "0"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _mb(size: int) -> int:
    return round(size / 1e6)


def keep(page: Path, rows: list[tuple[Program, Outcome | None]], python: str) -> None:
    """Replace the table between the page's two marks, or begin the page."""
    text = page.read_text() if page.is_file() else f"# Compatibility\n\n{_BEGIN}\n{_END}\n"
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{_BEGIN}\n{markdown(rows, python)}{_END}{after}")


def markdown(rows: list[tuple[Program, Outcome | None]], python: str) -> str:
    """How it was made, the table, and a sentence for each program that fails or differs."""
    known = [(program, outcome) for program, outcome in rows if outcome is not None and outcome.measured is not None]
    lines = [
        f"Made by `python -m benchmarks.scripts` with {_versions(python)}; one thread, two shared cores.",
        "",
        "| program | what is special | exit code | stdout | files | steps, found / true | samples a step, found / true"
        " | layers with forward and backward, found / true | profiled steps | extra CPU | extra RAM |",
        "| --- |" + " --- |" * 10,
    ]
    lines += [f"| {' | '.join([program.name, program.special, *_cells(outcome)])} |" for program, outcome in known]
    wrong = [(program, said) for program, outcome in known if (said := _difference(outcome))]
    lines += ["", f"{len(known)} programs; {len(wrong)} of them differ from the bare program or from the truth."]
    lines += ["", *(f"- **{program.name}**: {said}." for program, said in wrong)] if wrong else []
    left = [program for program, outcome in rows if outcome is None]
    lines += ["", f"Not run here: {', '.join(program.name for program in left)}."] if left else []
    commits = ", ".join(f"{name} {commit}" for name, commit in COMMITS.items())
    return "\n".join([*lines, "", f"Commits: {commits}.", ""])


def _difference(outcome: Outcome) -> str:
    measured, truth = outcome.measured, outcome.truth
    assert measured is not None
    said = []
    if outcome.code != outcome.bare_code:
        said.append(f"exit code {outcome.code}, bare {outcome.bare_code} ({outcome.trouble})")
    for what, verdict in (("stdout", outcome.stdout), ("files", outcome.files)):
        if verdict is not None and verdict.same is False:
            said.append(f"{what}: {verdict.how}")
    if sorted(measured.steps) != sorted(truth.steps):
        said.append(f"{_steps(measured)} steps found, {_steps(truth)} made")
    if truth.steps and truth.samples is not None and measured.samples != truth.samples:
        said.append(f"{_number(measured.samples)} samples a step found, {_number(truth.samples)} true")
    if measured.layers != truth.layers:
        said.append(f"{measured.layers} layers have forward and backward time, {truth.layers} train")
    return "; ".join(said)


def _versions(python: str) -> str:
    """Those of the programs' Python, without importing anything there."""
    code = (
        "import platform; from importlib import metadata\n"
        "def version(name):\n"
        "    try: return f'{name} {metadata.version(name)}'\n"
        "    except metadata.PackageNotFoundError: return None\n"
        f"found = [version(name) for name in {_PACKAGES!r}]\n"
        "print(', '.join([f'Python {platform.python_version()}', *filter(None, found)]))"
    )
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
