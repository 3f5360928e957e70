"""Steps whose ops were not recorded: the median step of their kind, scaled to their own length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.attribution.timeline import Flags, Ints, Lane, Scatter
from stepscope.analysis.intervals import Floats

_MOST_TEMPLATES = 64  # structures; what is rarer is left to the gap
_FEWEST, _UNKNOWN = 3, 0.01  # with fewer steps their spread is not known: this share of the step is taken


@dataclass(frozen=True)
class _Template:
    """Pieces of a typical step: begins and ends as shares of its length, keys, and the lengths of such steps, s."""

    t0: Floats
    t1: Floats
    key: Ints
    lengths: Floats
    spread: Floats  # of the begins from step to step, as shares of the length


def filled(lane: Lane, step_t0: Floats, step_t1: Floats, recorded: Flags) -> tuple[Lane, Scatter | None]:
    """The lane with pieces in every step: recorded ones as they are, the others as the template of nearest length.

    Steps with the same sequence of keys share a template, the median of their shares of the step; so steps of very
    different kinds (sequences of several lengths) are not mixed.
    """
    was = np.asarray(recorded, dtype=bool)
    bare = np.flatnonzero(~was)
    if len(bare) == 0 or not was.any():
        return lane, None
    templates = _templates(lane, step_t0, step_t1, was)
    if not templates:
        return lane, None
    lengths = step_t1 - step_t0
    typical = np.array([np.median(template.lengths) for template in templates])
    chosen = np.argmin(np.abs(np.log(lengths[bare, None] / typical)), axis=1)
    parts = [lane]
    knots = [np.stack([step_t0, np.zeros(len(step_t0))]), np.stack([step_t1, np.zeros(len(step_t1))])]
    for number in np.unique(chosen):
        template, steps = templates[number], bare[chosen == number]
        begin, length = step_t0[steps, None], lengths[steps, None]
        t0, t1 = begin + template.t0 * length, begin + template.t1 * length
        parts.append(Lane(t0.ravel(), t1.ravel(), np.tile(template.key, len(steps))))
        knots.append(np.stack([t0.ravel(), (template.spread * length).ravel()]))
    t0, t1, key = (np.concatenate([getattr(part, name) for part in parts]) for name in ("t0", "t1", "key"))
    order = np.argsort(t0, kind="stable")
    at, sd = np.concatenate(knots, axis=1)
    later = np.argsort(at, kind="stable")
    return Lane(t0[order], t1[order], key[order]), Scatter(at[later], sd[later])


def _templates(lane: Lane, step_t0: Floats, step_t1: Floats, recorded: Flags) -> list[_Template]:
    """One for each structure among the recorded steps, the commonest first."""
    step = np.clip(np.searchsorted(step_t0, (lane.t0 + lane.t1) / 2, side="right") - 1, 0, len(step_t0) - 1)
    edges = np.searchsorted(step, np.arange(len(step_t0) + 1))
    groups: dict[bytes, list[int]] = {}
    for number in np.flatnonzero(recorded):
        keys = lane.key[edges[number] : edges[number + 1]]
        if len(keys):
            groups.setdefault(keys.tobytes(), []).append(int(number))
    common = sorted(groups.values(), key=len, reverse=True)[:_MOST_TEMPLATES]
    return [_template(lane, np.array(steps), edges, step_t0, step_t1) for steps in common]


def _template(lane: Lane, steps: Ints, edges: Ints, step_t0: Floats, step_t1: Floats) -> _Template:
    size = int(edges[steps[0] + 1] - edges[steps[0]])
    rows = edges[steps][:, None] + np.arange(size)
    length = (step_t1 - step_t0)[steps]
    t0, t1 = ((times[rows] - step_t0[steps][:, None]) / length[:, None] for times in (lane.t0, lane.t1))
    begin, end = np.median(t0, axis=0), np.median(t1, axis=0)
    begin = np.maximum.accumulate(begin)
    end = np.clip(end, begin, np.append(begin[1:], max(1.0, float(end[-1]))))
    few = len(steps) < _FEWEST
    spread = np.full(size, _UNKNOWN) if few else t0.std(axis=0, ddof=1)
    return _Template(begin, end, lane.key[rows[0]], length, spread)
