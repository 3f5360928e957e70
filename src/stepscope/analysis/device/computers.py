"""Machines beside the Jetson: Raspberry Pi, Mac, PC with and without NVIDIA graphics, and any other."""

from __future__ import annotations

from stepscope.analysis.device.contract import GPU_RAILS, RAPL_RAILS, RAPL_TRAPS, Board, Cluster, Identity, Rail, Total

# Macs with Apple silicon: the counters of IOReport's group "Energy Model", and powermetrics.
APPLE = Board(
    "apple",
    "Mac with Apple silicon",
    Identity(compatible=("apple,",), board=("macbook", "mac mini", "macmini", "imac", "mac studio"), cpu=("apple",)),
    rails=(
        Rail("apple:package", "total", meaning="the chip"),
        Rail("apple:cpu+gpu+ane", "total", meaning="cores, graphics and neural engine"),
        Rail("apple:cpu/*", "cpu", "apple:cpu", "a cluster of cores with its cache"),
        Rail("apple:cpu", "cpu"),
        Rail("apple:gpu", "gpu"),
        Rail("apple:gpu-sram", "gpu"),
        Rail("apple:dram", "memory"),
        Rail("apple:ane", "npu", meaning="the neural engine"),
    ),
    totals=(
        Total(("apple:package",), "the chip, as it models itself"),
        Total(
            ("apple:cpu", "apple:gpu"),
            "cores, graphics and what else the chip models of itself",
            also=("apple:gpu-sram", "apple:dram", "apple:ane"),
        ),
        Total(("apple:cpu+gpu+ane",), "cores, graphics and neural engine, as the chip models itself"),
    ),
    os_keeps_bytes=3_500_000_000,
    traps=(
        "These counters are Apple's own model of the chip, not a meter.",
        "Totals of core clusters can be above the sum of their cores: they hold caches and fabric too.",
        "Display, disk and power supply are not in it.",
    ),
)

# A laptop, PC or server with NVIDIA graphics cards.
NVIDIA_COMPUTER = Board(
    "nvidia_computer",
    "machine with NVIDIA graphics",
    Identity(accelerator=("accelerator:nvidia",)),
    rails=(*RAPL_RAILS, *GPU_RAILS),
    totals=(
        Total(
            ("package-*", "gpu:*"), "processor and graphics cards (and memory, where measured) alone", also=("dram",)
        ),
    ),
    os_keeps_bytes=2_000_000_000,
    traps=(
        *RAPL_TRAPS,
        "A card's power reading can be an average over up to 1 s, and some cards measure a quarter of the time only.",
        "A card's energy counter is updated every 10 to 100 ms: windows under 2 s can be off by several percent.",
        "Reading a sleeping laptop card wakes it.",
    ),
)

# Any machine that no other file knows: its rails are shown as they are, and only a meter of the whole is a total.
OTHER_MACHINE = Board(
    "other_machine",
    "a machine that no board file describes",
    Identity(),
    rails=(*RAPL_RAILS, *GPU_RAILS),
    totals=(Total(("psys",), "the platform"), Total(("package-*",), "the processor alone", also=("dram", "gpu:*"))),
    traps=("No board file describes this machine: what its rails feed, and which contain others, is not known.",),
)

# A laptop or PC with an Intel or AMD processor and no graphics card of its own that answers.
RAPL_COMPUTER = Board(
    "rapl_computer",
    "laptop or PC (Intel or AMD)",
    Identity(cpu=("intel", "amd ", "xeon", "ryzen", "epyc"), accelerator=("accelerator:amd",)),
    rails=(*RAPL_RAILS, *GPU_RAILS),
    totals=(
        Total(("psys",), "the platform, as far as its maker has wired the sensor"),
        Total(("package-*",), "the processor (and memory and cards, where measured) alone", also=("dram", "gpu:*")),
    ),
    os_keeps_bytes=2_000_000_000,
    traps=RAPL_TRAPS,
)

# Raspberry Pi 4, 400 and Compute Module 4: no current sensor on the board.
RASPBERRY_PI_4 = Board(
    "raspberry_pi_4",
    "Raspberry Pi 4",
    Identity(compatible=("bcm2711",), board=("raspberry pi 4", "compute module 4")),
    clusters=(Cluster("Cortex-A72", 0x41, 0xD08),),
    memory_bytes=(4 << 30, 8 << 30, 2 << 30, 1 << 30),
    os_keeps_bytes=500_000_000,
    traps=(
        "This board has no current sensor: only a meter beside it (an INA226, a plug) can tell its energy.",
        "Undervoltage and heat throttle the cores: look at the throttling flags (vcgencmd get_throttled).",
    ),
)

# Raspberry Pi 5, 500 and Compute Module 5: the twelve rails of the power management chip (vcgencmd pmic_read_adc).
_RASPBERRY_PI_5_RAILS = (
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

RASPBERRY_PI_5 = Board(
    "raspberry_pi_5",
    "Raspberry Pi 5",
    Identity(compatible=("bcm2712",), board=("raspberry pi 5", "raspberry pi 500", "compute module 5")),
    rails=_RASPBERRY_PI_5_RAILS,
    totals=(
        Total(tuple(rail.name for rail in _RASPBERRY_PI_5_RAILS), "the sum of twelve rails, without what hangs on 5 V"),
    ),
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

BOARDS = (APPLE, NVIDIA_COMPUTER, OTHER_MACHINE, RAPL_COMPUTER, RASPBERRY_PI_4, RASPBERRY_PI_5)
