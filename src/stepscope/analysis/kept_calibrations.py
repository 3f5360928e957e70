"""calibration.json: how each power source of a run was found to see the past, so that no report looks for it again."""

from __future__ import annotations

import json
import logging
from typing import Any

from stepscope.analysis.attribution.known import Known, from_json, to_json
from stepscope.runfolder import RunReader

VERSION = 2  # of the file and of what finds its numbers: another is not read
_NAME = "calibration.json"
_log = logging.getLogger(__name__)


def kept_calibrations(run: RunReader) -> dict[str, Known]:
    """What an earlier report found, by channel; empty where there is none for these steps, or none that can be read."""
    try:
        stored = json.loads((run.path / _NAME).read_text(encoding="utf-8"))
        if stored["version"] != VERSION or stored["of"] != _state(run):
            return {}
        return {str(channel): from_json(known) for channel, known in stored["channels"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.debug("%s is not used: %s", run.path / _NAME, error)
        return {}


def keep_calibrations(run: RunReader, known: dict[str, Known]) -> None:
    """Write the file as a whole, once the run has ended; a folder that cannot be written costs the next report time."""
    if run.status == "running":
        return
    path = run.path / _NAME
    part = path.with_name(f".{_NAME}.part")
    channels = {channel: to_json(one) for channel, one in known.items()}
    try:
        part.write_text(
            json.dumps({"version": VERSION, "of": _state(run), "channels": channels}) + "\n", encoding="utf-8"
        )
        part.replace(path)
    except OSError as error:
        _log.debug("%s cannot be written: %s", path, error)


def _state(run: RunReader) -> dict[str, Any]:
    """What the numbers were found from: another count of steps or another warm-up is another run."""
    steps = run.steps
    return {
        "steps": steps.height,
        "end_ns": int(steps["t1_ns"][-1]) if steps.height else None,
        "warmup": run.warmup_steps,
    }
