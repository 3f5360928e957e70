"""The numbers of a sweep, each with its unit in its name; null is not measured."""

ENERGY = tuple(
    f"{kind}energy_per_{per}_j" for kind in ("", "estimated_", "simulated_") for per in ("step", "sample")
)  # never in one column: what was measured and what was not
COLUMNS = (
    "step_time_ms", "samples_per_s", *ENERGY, "peak_live_bytes", "peak_reserved_bytes", "peak_process_bytes",
    "cpu_utilisation", "process_cores", "gpu_utilisation", "frames_per_s",
)  # fmt: skip
