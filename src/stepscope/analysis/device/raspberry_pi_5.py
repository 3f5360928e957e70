"""Raspberry Pi 5, 500 and Compute Module 5: the twelve rails of the power management chip (vcgencmd pmic_read_adc)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

_RAILS = (
    Rail("VDD_CORE", "cpu", meaning="cores and graphics of the SoC"),
    Rail("DDR_VDD2", "memory"),
    Rail("DDR_VDDQ", "memory"),
    Rail("0V8_SW", "soc"),
    Rail("0V8_AON", "soc"),
    Rail("1V1_SYS", "soc"),
    Rail("1V8_SYS", "other"),
    Rail("3V3_SYS", "other"),
    Rail("3V7_WL_SW", "other", meaning="Wi-Fi"),
    Rail("3V3_DAC", "other"),
    Rail("3V3_ADC", "other"),
    Rail("HDMI", "other"),
)

BOARD = Board(
    "raspberry_pi_5",
    "Raspberry Pi 5",
    Identity(compatible=("bcm2712",), board=("raspberry pi 5", "raspberry pi 500", "compute module 5")),
    rails=_RAILS,
    totals=(Total(tuple(rail.name for rail in _RAILS), "the sum of twelve rails, without what hangs on 5 V"),),
    clusters=(Cluster("Cortex-A76", 0x41, 0xD0B),),
    memory_bytes=(8 << 30, 4 << 30, 2 << 30, 16 << 30),
    os_keeps_bytes=700_000_000,
    traps=(
        "USB, HATs and NVMe hang on 5 V and are in no rail; nor are the losses of the regulators.",
        "At the wall one board took 1.1451 times the sum of its rails and 0.5879 W: no correction is applied here.",
        "A reading takes about 23 ms: no rail can be followed faster than that.",
        "The currents of the memory rails read exactly 0 when idle.",
        "Undervoltage and heat throttle the cores: look at the throttling flags (vcgencmd get_throttled).",
    ),
)
