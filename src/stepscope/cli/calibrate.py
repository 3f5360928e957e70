"""`stepscope calibrate`: gain, offset, delay and window of this device's power sensors against a meter."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stepscope.api.requests import CalibrateRequest
from stepscope.cli._options import make_command, print_json


def _calibrate(
    request: CalibrateRequest,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    from rich.console import Console

    from stepscope.api.calibration import calibrate_device
    from stepscope.cli.doctor import calibration_line

    say = Console(stderr=True, highlight=False)
    with say.status("") as status:
        outcome = calibrate_device(request, status.update)
    for name, why in outcome.refused.items():
        say.print(f"not calibrated: {name}: {why}", markup=False)
    if as_json:
        rows = {name: asdict(calibration) for name, calibration in outcome.calibrations.items()}
        print_json({"folder": outcome.path and outcome.path.parent, **rows})
        return
    for name, calibration in outcome.calibrations.items():
        typer.echo(calibration_line(name, asdict(calibration)))
    typer.echo("nothing was kept" if outcome.path is None else f"kept for this device: {outcome.path}")


calibrate = make_command(CalibrateRequest, _calibrate, "calibrate")
