"""The answer of an experiment: what helps, by how much, what does not, and what to paste."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.experiments.tune.changes import Change
from stepscope.experiments.tune.experiment import MOST_DRIFT, NO_TIME, Tuning
from stepscope.experiments.tune.pair_statistics import (
    AS_IS,
    FINAL,
    LEAST_GAIN,
    MOST_PAIRS,
    SURE,
    Arm,
    saving,
    tie_groups,
)
from stepscope.units import number, plural

if TYPE_CHECKING:
    import polars as pl

_MEANINGS = {
    "rank": "by what was to improve; changes share a rank where their difference may be chance",
    "gain %": "less time a step than as is; below 0 it is slower; - where pairs are too few or too different to say",
    "memory %": "of what a step adds at its peak; with (process) of the whole process at its peak, in the pair of "
    "processes that saved least",
    "loss drift %": "mean loss of the same steps from the same state, against as is",
    "pairs": "pairs of blocks, as is and changed; with x N in so many pairs of processes",
}

_MEANINGS_OF_ENERGY = {
    "gain %": "less energy a step of the whole device than as is; below 0 it takes more; - where pairs are too few or "
    "too different to say",
    "time %": "step time against as is",
}


def judge(tuning: Tuning, title: str) -> Findings:
    """Return the findings of an experiment, also of one that was interrupted."""
    arms, changes, memory = tuning.arms, tuning.known, tuning.rules.goal == "memory"
    measured = [arm for arm in arms.values() if arm.status == "measured" and arm.name != FINAL and arm.pairs]
    combined = [arm for arm in measured if len(arm.changes) > 1 and arm.over]
    refuted = tuning.refuted()
    helps = [arm for arm in (*combined, *tuning.winners()) if arm is not refuted]
    best = tuning.best()
    ranks = {arm.name: index for index, arm in enumerate(helps, 1)} if memory else tie_groups(helps)
    helps.sort(key=lambda arm: ranks[arm.name])
    final = arms.get(FINAL)
    goal, legend = tuning.rules.goal, _legend(helps, ranks, _quantity(tuning))
    rows = [_result_row(arm, ranks[arm.name], goal) for arm in helps]
    untried = [(arm.name, changes[arm.name].title if arm.name in changes else "", arm.reason) for arm in arms.values()
               if arm.status != "measured" and arm.name != FINAL]  # fmt: skip
    tables = [
        ResultTable("helps", "What helps", _columns(goal), tuple(rows), legend, _meanings(goal)),
        *_final_table(final, goal),
        *_code_tables(best, [arm for arm in tuning.winners() if arm is not refuted], changes),
        _useless_table([arm for arm in measured if arm not in helps], refuted, tuning),
        ResultTable("untried", "Not tried", ("change", "what it is", "why"), tuple(untried)),
    ]
    answer = _answer(tuning, best, final, helps)
    return Findings(
        title=title,
        answer=answer.replace("run it longer (--minutes)", "see why it ended") if tuning.ended_by else answer,
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(tuning)),
        frames=_result_frames(measured, final, helps),
    )


def _quantity(tuning: Tuning) -> str:
    """What pairs are compared by."""
    return "time" if tuning.power is None else "estimated energy" if tuning.power.estimated else "energy"


def _meanings(goal: str) -> Mapping[str, str]:
    return {**_MEANINGS, **_MEANINGS_OF_ENERGY} if goal == "energy" else _MEANINGS


def _columns(goal: str) -> tuple[str, ...]:
    unit, time = ("mJ", ("time %",)) if goal == "energy" else ("ms", ())
    return (
        "rank", "change", f"as is {unit}", f"step {unit}", "gain %", "low %", "high %", *time, "memory %",
        "loss drift %", "pairs",
    )  # fmt: skip


def _result_row(arm: Arm, rank: int | None, goal: str) -> tuple[Value, ...]:
    gain, low, high = gains(arm)
    as_is = _median(arm.as_is)
    ratio = 1 - gain / 100 if gain is not None else None
    drift = None if arm.drift is None else "none" if arm.losses == arm.as_is_losses else f"{100 * arm.drift:+.3f}"
    return (
        rank, arm.name, None if as_is is None else 1e3 * as_is,
        None if as_is is None or ratio is None else 1e3 * as_is * ratio, gain, low, high,
        *([f"{100 * (arm.time_ratio - 1):+.1f}"] if goal == "energy" else []),
        _memory_change_text(arm), drift, _pair_count_text(arm),
    )  # fmt: skip


def gains(arm: Arm) -> tuple[float | None, float | None, float | None]:
    """Return the gain in time, or energy, with its bounds, %."""
    ratio, low, high = arm.interval()
    if high > _WIDEST * low:  # of two pairs that differ: it would be printed as billions of percent
        low = high = math.nan
    return tuple(None if math.isnan(value) else 100 * (1 - value) for value in (ratio, high, low))  # type: ignore[return-value]


_WIDEST = 100.0  # high end of a CI by its low end, beyond which it says nothing


def _memory_change_text(arm: Arm) -> Value:
    if not arm.memory_bytes or not arm.as_is_bytes:
        return None
    change = 100 * (arm.memory_bytes / arm.as_is_bytes - 1)
    return f"{change:+.1f} (process)" if arm.of_process else f"{change:+.1f}"


def _pair_count_text(arm: Arm) -> str:
    return f"{len(arm.pairs)} x {arm.process_pairs}" if arm.of_process else str(len(arm.pairs))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median_high(values) if values else None


def _legend(helps: Sequence[Arm], ranks: Mapping[str, int], quantity: str) -> str:
    tied = len(set(ranks.values())) < len(helps)
    same = " Changes of one rank are a tie: their difference may be chance." if tied else ""
    time = "" if quantity == "time" else "; time %: step time against as is"
    return f"Gain: less {quantity} a step, with its 95 % CI{time}.{same}"


def _final_table(final: Arm | None, goal: str) -> list[ResultTable]:
    if final is None or final.status != "measured":
        return []
    row = _result_row(final, None, goal)[1:]
    where = "in processes of their own" if final.of_process else "in this process"
    title = "As is against the best configuration"
    return [
        ResultTable(
            "final", title, _columns(goal)[1:], ((" + ".join(final.changes), *row[1:]),), f"Measured anew {where}."
        )
    ]


def _code_tables(best: Arm | None, winners: Sequence[Arm], changes: Mapping[str, Change]) -> list[ResultTable]:
    """Return what to paste of the recommendation, and of the other single changes that help."""
    chosen = best.changes if best is not None else ()
    others = [arm.name for arm in winners if arm.name not in chosen]
    tables = [("code", "To paste", chosen), ("other-code", "To try instead: not in the recommendation", others)]
    columns = ("change", "code or line to start with", "may differ")
    pasted = []
    for name, title, names in tables:
        known = [changes[change] for change in names if change in changes]
        rows = tuple((change.name, change.code, change.risk or "nothing") for change in known)
        pasted.append(ResultTable(name, title, columns, rows))
    return pasted


def _useless_table(arms: Sequence[Arm], refuted: Arm | None, tuning: Tuning) -> ResultTable:
    def verdict(arm: Arm) -> str:
        if arm is refuted:
            return "refuted by the check at the end" if _surely_refuted(tuning) else _NOT_CONFIRMED
        return arm.reason or _verdict(arm, tuning.rules.goal)

    rows = [(arm.name, *_gain_if_interval(arm), verdict(arm), _pair_count_text(arm)) for arm in arms]
    rows.sort(key=lambda row: row[4] in _OPEN)  # else as they were tried: this is no ranking
    columns = ("change", "gain %", "low %", "high %", "verdict", "pairs")
    return ResultTable("no-gain", "No certain gain", columns, tuple(rows), meanings=_meanings(tuning.rules.goal))


_CANNOT_TELL = "cannot tell yet: run it longer"
_LIKELY = "likely a gain, not certain yet: run it longer"
_WORSE = {"energy": "takes more energy"}  # else it is slower
_OPEN = (_LIKELY, _CANNOT_TELL)
_NOT_CONFIRMED = "not confirmed by the check at the end"


def _surely_refuted(tuning: Tuning) -> bool:
    """Return whether the check at the end excludes a gain: all but a CI of the time that reaches to one."""
    final = tuning.arms[FINAL]
    steady = final.drift is None or abs(final.drift) <= MOST_DRIFT
    return tuning.rules.goal == "memory" or final.status == "failed" or not steady or final.interval()[1] > 1


def _verdict(arm: Arm, goal: str) -> str:
    if goal == "memory" and arm.memory_bytes:
        return _LIKELY if saving(arm) > LEAST_GAIN else "saves no memory"
    ratio, low, high = arm.interval()
    worse = _WORSE.get(goal, "slower")
    if low > 1 and arm.interval(SURE)[1] > 1:
        return worse
    if low > 1 and ratio > 1 + 2 * LEAST_GAIN:
        return f"likely {worse}, not certain"
    if high < 1 and ratio < 1 - LEAST_GAIN and len(arm.pairs) > 2:
        return _LIKELY
    if math.isnan(high) or (high - low > 0.1 and len(arm.pairs) < MOST_PAIRS):
        return _CANNOT_TELL
    return "no gain" if low > 1 - 2 * LEAST_GAIN else "no certain gain"


def _gain_if_interval(arm: Arm) -> tuple[float | None, float | None, float | None]:
    """The gain with its bounds, %; none without a CI: of one pair it is noise."""
    gain, low, high = gains(arm)
    return (None, None, None) if low is None or high is None else (gain, low, high)


def _answer(tuning: Tuning, best: Arm | None, final: Arm | None, helps: Sequence[Arm]) -> str:
    if final is not None and (refuted := tuning.refuted()) is not None:
        return _refuted_answer(refuted, final, tuning)
    if best is None:
        return _answer_without_recommendation(tuning)
    checked = final if final and final.status == "measured" and final.changes == best.changes else None
    arm = checked or best
    gain, low, high = gains(arm)
    as_is = _median(arm.as_is)
    assert gain is not None
    assert as_is is not None
    unit, quantity = "ms" if tuning.power is None else "mJ", _quantity(tuning)
    step = f"{number(1e3 * as_is * (1 - gain / 100))} {unit} per step instead of {number(1e3 * as_is)} {unit}"
    ends = (low, high) if gain >= 0 else (-(high or 0.0), -(low or 0.0))
    bounds = "" if low is None or high is None else f" [{ends[0]:.1f}, {ends[1]:.1f}]"
    less = "less" if gain >= 0 else "more"
    text = f"{best.name}: {step}, {abs(gain):.1f} %{bounds} {less} {quantity}"
    if tuning.power is not None:
        text += f", {abs(100 * (arm.time_ratio - 1)):.1f} % {'less' if arm.time_ratio < 1 else 'more'} time"
    anew = "measured again at the end"
    if tuning.rules.goal == "memory" and best.memory_bytes and best.as_is_bytes:
        peak = checked if checked and best.of_process and checked.memory_bytes else best
        saved = 100 * saving(peak)
        text = f"{best.name}: {saved:.1f} % less memory {'of the process' if best.of_process else 'a step'}; {step}"
        anew = anew if peak is checked else f"the time {anew}"
    missing = "it was interrupted" if tuning.interrupted else "see why" if tuning.ended_by else "no time was left"
    confirmed = f", {anew}." if checked else f"; not checked at the end: {missing}."
    if checked and tuning.rules.goal != "memory" and (low is None or low <= 0):
        confirmed = ", which the check at the end does not confirm: run it longer (--minutes)."
    ranks = tie_groups(helps)
    ties = [other.name for other in helps if other is not best and ranks[other.name] == ranks.get(best.name)]
    tied = f" A tie with {', '.join(ties)}." if ties and tuning.rules.goal != "memory" else ""
    return text + confirmed + tied + _rounding_text(tuning)


def _answer_without_recommendation(tuning: Tuning) -> str:
    measured = [arm for arm in tuning.arms.values() if arm.status == "measured"]
    untried = _untried_for_time_text(tuning)
    if not measured and tuning.interrupted:
        return "Nothing was tried: it was interrupted."
    if not measured:
        return f"Nothing could be tried: {'run it longer (--minutes).' if untried else 'see why.'}{untried}"
    goal = tuning.rules.goal
    if goal == "memory" and not any(arm.memory_bytes for arm in tuning.arms.values()):
        return "Cannot tell: the memory of a step could not be measured here."
    rounding = _rounding_text(tuning)
    rest = [arm for arm in measured if arm not in tuning.winners()] if rounding else measured
    if not rest:
        return rounding.strip() + untried
    unclear = [arm.name for arm in measured if arm not in tuning.winners() and _verdict(arm, goal) in _OPEN]
    other = "other " if rounding else ""
    tried = rest[0].name if len(rest) == 1 else f"any of {plural(len(rest), f'{other}change')}"
    if len(unclear) == len(rest):
        return f"{rounding} Cannot tell yet whether {tried} helps: run it longer (--minutes).{untried}".strip()
    more = f" Not clear yet: {', '.join(unclear)}; run it longer (--minutes)." if unclear else ""
    none = f"{tried} is not" if len(rest) == 1 else f"None of {plural(len(rest), f'{other}change')} is"
    leave = "" if rounding else f": {_LEAVE}"
    return f"{rounding} {none} certain to help{leave}.{more}{untried}".strip()


def _rounding_text(tuning: Tuning) -> str:
    """Return what helps and rounds numbers where losses could not be compared: the user has to do that."""
    if tuning.rules.goal == "memory":
        return ""
    unknown = [arm for arm in tuning.winners() if arm.drift is None and not tuning.is_loss_steady(arm)]
    texts = []
    for arm in unknown:
        gain, low, high = gains(arm)
        texts.append(f"{arm.name} takes {gain:.1f} % [{low:.1f}, {high:.1f}] less {_quantity(tuning)}")
    if not texts:
        return ""
    rounds = "rounds numbers" if len(texts) == 1 else "round numbers"
    return f" {', '.join(texts)}, but {rounds}: compare the loss of a whole training before you keep it."


def _refuted_answer(chosen: Arm, final: Arm, tuning: Tuning) -> str:
    if final.status == "failed":
        return f"{chosen.name} won the search and failed in the check at the end ({final.reason}): {_LEAVE}."
    if final.drift is not None and not abs(final.drift) <= MOST_DRIFT:
        drift = f"{100 * final.drift:+.1f} %"
        return f"{chosen.name} won the search and its loss drifts by {drift} in the check at the end: {_LEAVE}."
    if tuning.rules.goal == "memory":
        more = -100 * saving(final)
        return f"{chosen.name} won the search and took {more:.1f} % more memory in the check at the end: {_LEAVE}."
    gain, low, high = gains(final)
    bounds = "" if low is None or high is None else f" [{-high:.1f}, {-low:.1f}]"
    cost = f"{-(gain or 0.0):.1f} %{bounds} more {_quantity(tuning)}"
    text = f"{chosen.name} won the search and took {cost} in the check at the end"
    unsure = "" if _surely_refuted(tuning) else ", which does not confirm a gain and excludes none"
    return f"{text}{unsure}: {_LEAVE}."


_LEAVE = "leave the training as it is"
_LONG_RESTARTING = 0.2  # of the time


def _untried_for_time_text(tuning: Tuning) -> str:
    waiting = [arm.name for arm in tuning.arms.values() if arm.status == "not tried" and arm.reason == NO_TIME]
    return f" No time was left to try {', '.join(waiting)}." if waiting else ""


def _notes(tuning: Tuning) -> list[str]:
    facts = tuning.facts
    notes = []
    if aside := tuning.quiet.set_aside:
        repeated = "was discarded and repeated" if aside == 1 else "were discarded and repeated"
        notes.append(f"{plural(aside, 'pair')} with more background load than the others {repeated}.")
    if tuning.ended_by:
        notes.append(f"It ended before its time: {tuning.ended_by}.")
    if (restarting_s := sum(tuning.restarts_s)) > _LONG_RESTARTING * tuning.rules.seconds:
        notes.append(
            f"The script ended and was started again {plural(len(tuning.restarts_s), 'time')}, which took "
            f"{restarting_s:.0f} s of the time: more is known of one that trains longer (arguments after --)."
        )
    for why, count in tuning.failures.items():
        notes.append(f"As it is, {why}: it was started again {plural(count, 'time')}.")
    if tuning.interrupted:
        notes.append("Interrupted: the same command with the same --out goes on.")
    unknown = [arm.name for arm in tuning.winners() if arm.drift is None and not tuning.is_loss_steady(arm)]
    if unknown:
        notes.append(f"{', '.join(unknown)}: not recommended, because the loss could not be compared.")
    drifted = [arm.name for arm in tuning.winners() if arm.drift is not None and not tuning.is_loss_steady(arm)]
    if drifted:
        notes.append(
            f"{', '.join(drifted)}: the loss drifts by more than {100 * MOST_DRIFT:.0f} %, so it is not recommended."
        )
    if facts and not facts.get("losses_known", True):
        notes.append("Losses were not compared: each block of a script has other batches.")
    if facts.get("float64"):
        notes.append(
            "Weights are float64. float32 (model.float(), and inputs likewise) would halve their memory; it was not "
            "tried, since it changes the model, so what time it saves is not known."
        )
    for arm in tuning.winners():
        if arm.compile_s and arm.time_ratio < 1:
            saved = (_median(arm.as_is_s) or 0.0) * (1 - arm.time_ratio)
            steps = math.ceil(arm.compile_s / saved)
            notes.append(f"Compiling took {arm.compile_s:.0f} s: it has paid after {steps:,} steps.")
    single = [arm for arm in tuning.arms.values() if arm.of_process and arm.pairs]
    if any(arm.process_pairs < 3 for arm in single):
        notes.append(
            "A change measured in fewer than three pairs of processes may owe its gain to where the heap happened to "
            "lie: its CI allows for 2.5 % in the median, and more than 10 % of a few."
        )
    notes.append("Gains are of this training on this device, with this batch size and load.")
    notes += ["Energy was not measured: --for energy does that, in longer blocks."] if tuning.power is None else [
        *_as_is_text(tuning), tuning.power.note,
    ]  # fmt: skip
    return notes


def _as_is_text(tuning: Tuning) -> list[str]:
    """Return what a step takes as it is, over all pairs in which power was read."""
    arms = [arm for arm in tuning.arms.values() if len(arm.changes) == 1 or arm.name == FINAL]
    seconds, watts = ([value for arm in arms for value in getattr(arm, name)] for name in ("as_is_s", "as_is_w"))
    if not watts:
        return []
    joules = [1e3 * length * power for length, power in zip(seconds, watts, strict=True)]
    takes = f"{number(statistics.median(joules))} mJ [{number(min(joules))} to {number(max(joules))} in its blocks]"
    return [f"As it is, a step takes {takes}: {number(1e3 * statistics.median(seconds))} ms at "
            f"{number(statistics.median(watts))} W."]  # fmt: skip


def _result_frames(measured: Sequence[Arm], final: Arm | None, helps: Sequence[Arm]) -> dict[str, pl.DataFrame]:
    import polars as pl

    rows = []
    ended = [final] if final is not None and final.status == "measured" else []
    for arm in [*measured, *ended]:
        gain, low, high = _gain_if_interval(arm)
        kind = "helps" if arm in helps else "checked at the end" if arm.name == FINAL else "no certain gain"
        name = " + ".join(arm.changes) + (" (checked)" if arm.name == FINAL else "")
        rows.append({"change": name, "gain": gain, "low": low, "high": high, "kind": kind})
    frames = {}
    if any(row["gain"] is not None for row in rows):
        frames["gains"] = pl.DataFrame(rows).sort("gain", descending=True, nulls_last=True)
    if ended and ended[0].losses:
        curves = ((AS_IS, ended[0].as_is_losses), (" + ".join(ended[0].changes), ended[0].losses))
        frames["losses"] = pl.DataFrame(
            [
                {"configuration": name, "step": step, "loss": loss}
                for name, losses in curves
                for step, loss in enumerate(losses)
            ]
        )
    return frames
