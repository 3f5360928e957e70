"""Laptops: RAPL zones under powercap, and a battery that discharges."""

from __future__ import annotations

from stepscope.simulate.layouts.site import Built, Site, link_real_machine
from stepscope.simulate.models.battery import UEVENT_BYTES, BatteryFiles, BatteryGauge
from stepscope.simulate.models.counter import RAPL_UNIT_J, CounterKind, EnergyCounters

_ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "uncore",
    "intel-rapl:0:2": "dram",
    "intel-rapl:1": "psys",
}
_RANGE_UJ = 262_143_328_850  # of Core processors: 2^32 - 1 units of 61 uJ
_LIMIT_UW = 65_000_000


def build_rapl(site: Site) -> Built:
    """/sys/class/powercap/intel-rapl:N[:M] as links into /sys/devices/virtual/powercap, subzones inside their zone."""
    tree, options = site.tree, site.options
    range_uj = options.counter_range_uj or _RANGE_UJ
    files = []
    for zone, name in _ZONES.items():
        outer = zone.rpartition(":")[0] if zone.count(":") == 2 else ""
        folder = "/".join(["sys/devices/virtual/powercap/intel-rapl", *([outer] if outer else []), zone])
        tree.static(folder, {"name": name, "max_energy_range_uj": range_uj, "enabled": int(not outer)})
        if not outer:
            limits = {"constraint_0_name": "long_term", "constraint_0_power_limit_uw": _LIMIT_UW}
            tree.static(folder, {**limits, "constraint_0_time_window_us": 27_983_872})
        files.append(tree.put_live(f"{folder}/energy_uj"))
        tree.link(f"sys/class/powercap/{zone}", folder)
    tree.static("sys/devices/virtual/powercap/intel-rapl", {"enabled": 1})
    tree.link("sys/class/powercap/intel-rapl", "sys/devices/virtual/powercap/intel-rapl")
    kind = CounterKind(options.refresh_ns or 1_000_000, RAPL_UNIT_J, range_uj)
    rails = [site.column(name) for name in _ZONES.values()]
    counters = EnergyCounters(kind, rails, files, options, site.rng, site.t0_ns)
    tree.link_real("proc")
    link_real_machine(tree)
    return Built([counters])


def build_battery(site: Site) -> Built:
    """/sys/class/power_supply/BAT0 and the mains adapter AC."""
    tree = site.tree
    battery, mains = (
        "sys/devices/LNXSYSTM:00/PNP0C0A:00/power_supply/BAT0",
        "sys/devices/LNXSYSTM:00/ACPI0003:00/power_supply/AC",
    )
    tree.static(battery, {"type": "Battery", "present": 1})
    tree.static(mains, {"type": "Mains", "uevent": "POWER_SUPPLY_NAME=AC\nPOWER_SUPPLY_TYPE=Mains"})
    for folder in (battery, mains):
        tree.link(f"sys/class/power_supply/{folder.rpartition('/')[2]}", folder)
    files = BatteryFiles(
        tree.put_live(f"{battery}/uevent", UEVENT_BYTES),
        tree.put_live(f"{battery}/status"),
        tree.put_live(f"{mains}/online"),
    )
    rail = site.column("BAT0")
    gauge = BatteryGauge(rail, files, float(site.idle_w[rail]), site.options, site.rng, site.t0_ns)
    tree.link_real("proc")
    link_real_machine(tree)
    return Built([gauge])


BUILDS = {"laptop-rapl": build_rapl, "laptop-battery": build_battery}
