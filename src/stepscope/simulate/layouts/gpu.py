"""A graphics card whose driver counts energy in steps of 100 ms, as NVML does, shown as a hwmon file (Intel xe)."""

from __future__ import annotations

from stepscope.simulate.layouts.site import Built, Site, link_real_machine
from stepscope.simulate.models.counter import CounterKind, EnergyCounters

_REFRESH_NS = 100_000_000
_UNIT_J = 1e-3  # NVML counts millijoules
_RANGE_UJ = 2**63


def build_card(site: Site) -> Built:
    """/sys/class/hwmon/hwmon2 with energy1_input, uJ."""
    tree, options = site.tree, site.options
    device = "sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0"
    tree.static(f"{device}/hwmon/hwmon2", {"name": "xe", "energy1_label": "card", "power1_max": 190_000_000})
    tree.link("sys/class/hwmon/hwmon2", f"{device}/hwmon/hwmon2")
    tree.link(f"{device}/hwmon/hwmon2/device", device)
    file = tree.put_live(f"{device}/hwmon/hwmon2/energy1_input")
    kind = CounterKind(options.refresh_ns or _REFRESH_NS, _UNIT_J, options.counter_range_uj or _RANGE_UJ)
    counter = EnergyCounters(kind, [site.column("card")], [file], options, site.rng, site.t0_ns)
    tree.link_real("proc")
    link_real_machine(tree)
    return Built([counter])


BUILDS = {"gpu-counter": build_card}
