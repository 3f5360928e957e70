"""A run in few words for a script or an assistant: findings, evidence, numbers with CI, what is unknown, what to do.

At most about 1,500 tokens, whatever the run holds. Names of a run are data: they are quoted, cut, and never a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepscope.analysis.first_screen import headline, setting_facts
from stepscope.analysis.memory.headroom import fits_sentence
from stepscope.analysis.run import Run
from stepscope.analysis.summary import energy_kinds
from stepscope.report.first_screen import figure_text, run_argument
from stepscope.units import bytes_, duration, escape_control_characters, estimate, percent, row_label, si

_MOST = 4_000  # characters
_NAME, _SENTENCE = 48, 160  # characters of a name, and of a reason that a run states
_LAYERS, _OPERATORS, _CAUSES, _UNKNOWN = 5, 5, 3, 8


def brief(run: Run) -> str:
    """Return the run in plain text, a fact a line, the most important first; what is too long ends with "..."."""
    text = "\n".join(_lines(run))
    return f"{text if len(text) <= _MOST else f'{text[:_MOST]}...'}\n"


def _lines(run: Run) -> Iterator[str]:
    yield f"run {quoted(run.id)}: {run.status}"
    if reason := run.meta.get("reason"):
        yield f"reason: {quoted(str(reason), 160)}"
    yield f"setting: {', '.join(quoted(fact) for fact in setting_facts(run))}"
    for row in headline(run):
        figure = figure_text(row)
        label = row.label.lower()
        yield figure if figure.startswith(("peak ", "accuracy ", "GPU peak ")) else f"{label}: {figure}"
    if fits := fits_sentence(run):
        yield f"memory: {fits}"
    yield from _bottleneck_lines(run)
    yield from _step_share_lines(run)
    yield from _not_measured_lines(run)


def quoted(text: str, most: int = _NAME) -> str:
    """Return a name of a run on one line, cut in the middle, with backticks around it."""
    line = escape_control_characters(" ".join(text.split())).replace("`", "'")
    half = (most - 1) // 2
    return f"`{line if len(line) <= most else f'{line[:half]}…{line[-half:]}'}`"


def _bottleneck_lines(run: Run) -> Iterator[str]:
    verdict = run.verdict()
    if not verdict.causes:
        yield f"bottleneck: unknown. {verdict.why or verdict.sentence}"
    for number, cause in enumerate(verdict.causes[:_CAUSES], 1):
        share = estimate(cause.share, cause.low, cause.high, "1")
        yield f"bottleneck {number}: {cause.bound} ({cause.name}), {share} of the step, {cause.confidence} confidence"
        yield from (f"  evidence: {entry.text}" for entry in cause.evidence)
    yield from (f"caution: {advice}" for advice in verdict.cautions)
    yield from (f"next: {advice}" for advice in verdict.next)


def _step_share_lines(run: Run) -> Iterator[str]:
    kinds = "".join(f"{kind} " for kind in energy_kinds(run))
    shares = [f"{row_label(phase)} {percent(share)}" for phase, share in run.phases().select("phase", "share").rows()]
    if shares:
        yield f"step of {duration(run.step_times.step_ns)} by phase: {', '.join(shares)}"
    for row in run.layers().filter(pl.col("total_ns") > 0).head(_LAYERS).iter_rows(named=True):
        measured_shares = [
            estimate(row["total_ns"], row["low_ns"], row["high_ns"], "ns"),
            percent(row["share"]),
            *(
                [f"{kinds}{estimate(row['joules'], row['joules_low'], row['joules_high'], 'J')}"]
                if row["joules"]
                else []
            ),
            *([f"{bytes_(row['live_bytes'])} live at the peak"] if row["live_bytes"] else []),
            *([si(row["flops_per_s"], "FLOP/s")] if row["flops_per_s"] else []),
            *([f"{percent(row['attained'], 0)} of attainable"] if row["attained"] is not None else []),
            *([f"at {quoted(row['source'])}"] if row["source"] else []),
        ]
        yield f"layer {quoted(row['layer'] or '(the model)')} {quoted(row['type'] or '')}: {', '.join(measured_shares)}"
    named = run.operators().filter(~pl.col("name").str.starts_with("(")).head(_OPERATORS)
    for row in named.iter_rows(named=True):
        spent = estimate(row["total_ns"], row["low_ns"], row["high_ns"], "ns")
        yield f"operator {quoted(row['name'])}: {spent}, {percent(row['share'])}"


def _not_measured_lines(run: Run) -> Iterator[str]:
    entries = run.not_measured()
    for entry in entries[:_UNKNOWN]:
        remedy = f" To change it: {quoted(entry.remedy, _SENTENCE)}" if entry.remedy else ""
        yield f"unknown: {quoted(entry.what.replace('_', ' '))}: {quoted(entry.why, _SENTENCE)}{remedy}"
    if len(entries) > _UNKNOWN:
        yield f"unknown: {len(entries) - _UNKNOWN} more things"
    yield f"all numbers: stepscope report {run_argument(run.path)} --json"
