"""CodeCarbon: a row of an emissions.csv, in its columns and units (kWh, W, GB, kg), appended as CodeCarbon does.

Energy is what was measured over the steps after warm-up, and `duration` their time; an empty cell is "not measured".
CO2 is worked out only from a carbon intensity that the user gives: where the electricity comes from is not known here.
"""

from __future__ import annotations

import csv
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable, UsageError
from stepscope.files import atomic_write
from stepscope.integrations._run_content import start_unix_s
from stepscope.units import without_formula

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "row of a CodeCarbon emissions.csv"
EXTRA = ""  # the standard library is enough
COLUMNS = (  # of CodeCarbon 3, in its order
    *("timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions", "emissions_rate"),
    *("cpu_power", "gpu_power", "ram_power", "cpu_energy", "gpu_energy", "ram_energy", "energy_consumed"),
    *("water_consumed", "country_name", "country_iso_code", "region", "cloud_provider", "cloud_region", "os"),
    *("python_version", "codecarbon_version", "cpu_count", "cpu_model", "gpu_count", "gpu_model", "longitude"),
    *("latitude", "ram_total_size", "tracking_mode", "cpu_utilization_percent", "gpu_utilization_percent"),
    *("ram_utilization_percent", "ram_used_gb", "on_cloud", "pue", "wue"),
)
_J_PER_KWH = 3.6e6
_RAM_UNIT = 2**30  # B: CodeCarbon calls it GB
_PARTS = {"cpu": ("cpu",), "gpu": ("gpu",), "ram": ("memory", "ram", "dram")}


def log_run(run: Run, out: str | Path | None = None, *, carbon_intensity: float | None = None) -> str:
    """Append a row for a run and return the path of the file; a run that is in it already is replaced.

    out: the file, or a folder for emissions.csv (default: here). carbon_intensity: g of CO2 a kWh. UsageError where
    nothing measured the energy, or the file has other columns.
    """
    if carbon_intensity is not None and not 0 <= carbon_intensity < float("inf"):
        raise UsageError(f"a carbon intensity of {carbon_intensity} g/kWh is none", "for example 380")
    target = _file(out)
    row = row_of(run, carbon_intensity)
    other_rows = [other for other in _rows(target) if other["run_id"] != row["run_id"]]
    _replace(target, [*other_rows, row])
    return str(target)


def row_of(run: Run, carbon_intensity: float | None = None) -> dict[str, Any]:
    """The row; energy in kWh, power in W, duration in s, CO2 in kg."""
    measured = {row["component"]: row for row in run.energy_totals().iter_rows(named=True)}
    total = measured.get("total")
    if total is None or total["joules"] is None or total["kind"] == "estimated":
        raise UsageError("the energy of this run was not measured", "`stepscope doctor` says what would measure it")
    kwh, duration = total["joules"] / _J_PER_KWH, total["covered_s"]
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    project = str((run.meta.get("workload") or {}).get("name") or "stepscope")
    row |= {"timestamp": _timestamp(run), "project_name": project, "run_id": run.id, "duration": duration}
    row |= {"energy_consumed": kwh, **_machine_facts(run), **_parts(measured)}
    if carbon_intensity is not None:
        kilograms = kwh * carbon_intensity / 1e3
        row |= {"emissions": kilograms, "emissions_rate": kilograms / duration if duration else ""}
    return {key: without_formula(value) if isinstance(value, str) else value for key, value in row.items()}


def _parts(measured: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Energy and power of CPU, GPU and memory, where the board tells them apart."""
    cells: dict[str, float] = {}
    for part, names in _PARTS.items():
        entry = next((measured[name] for name in names if name in measured), None)
        if entry is not None and entry["joules"] is not None and entry["kind"] != "estimated":
            cells |= {f"{part}_energy": entry["joules"] / _J_PER_KWH, f"{part}_power": entry["watts_mean"]}
    return cells


def _machine_facts(run: Run) -> dict[str, Any]:
    """Return facts of machine and software; a simulated board says so in place of the machine's mode."""
    device, versions = run.device, run.meta.get("versions") or {}
    cpu, memory = device.get("cpu"), device.get("memory_bytes")
    return {
        "os": str(device.get("os") or ""),
        "python_version": versions.get("python", ""),
        "cpu_count": len(device.get("cores") or []) or "",
        "cpu_model": cpu if isinstance(cpu, str) else "",
        "ram_total_size": memory / _RAM_UNIT if isinstance(memory, int) else "",
        "tracking_mode": f"simulated {run.simulated}" if run.simulated else "machine",
        "on_cloud": "",
    }


def _timestamp(run: Run) -> str:
    began = start_unix_s(run)
    return "" if began is None else datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def _file(out: str | Path | None) -> Path:
    target = Path(out or ".")
    return target / "emissions.csv" if target.is_dir() else target


def _rows(target: Path) -> list[dict[str, Any]]:
    """The rows that are there; UsageError where they are not CodeCarbon's."""
    if not target.exists() or target.stat().st_size == 0:
        return []
    with target.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if sorted(reader.fieldnames or ()) != sorted(COLUMNS):
            raise UsageError(f"'{target}' has other columns than CodeCarbon 3", "choose another file with --out")
        return list(reader)


def _replace(target: Path, rows: list[dict[str, Any]]) -> None:
    try:
        with atomic_write(target) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write '{target}': {error.strerror or error}", "choose a file with --out"
        ) from error
