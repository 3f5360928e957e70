"""The boards, as data: Jetsons, Raspberry Pis, computers with RAPL or a GPU, Apple silicon."""

from __future__ import annotations

from stepscope.analysis.device.contract import (
    GPU_RAILS,
    ORIN_NX_CLUSTERS,
    ORIN_NX_RAILS,
    ORIN_NX_TOTALS,
    ORIN_NX_TRAPS,
    RAPL_RAILS,
    RAPL_TRAPS,
    Board,
    Cluster,
    Identity,
    Rail,
    Total,
)

# Machines beside the Jetson: Raspberry Pi, Mac, PC with and without NVIDIA graphics, and any other.

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

_COMPUTERS = (APPLE, NVIDIA_COMPUTER, OTHER_MACHINE, RAPL_COMPUTER, RASPBERRY_PI_4, RASPBERRY_PI_5)


# The Jetson modules: their rails and totals, as NVIDIA's developer guides and mainline's device trees name them.

# Jetson AGX Orin 32GB, 64GB and Industrial: two INA3221 (Jetson Linux developer guide, r34 to r36).
JETSON_AGX_ORIN = Board(
    "jetson_agx_orin",
    "NVIDIA Jetson AGX Orin",
    Identity(compatible=("p3701",), board=("agx orin", "agx-orin")),
    rails=(
        Rail("VDD_GPU_SOC", "gpu+soc"),
        Rail("VDD_CPU_CV", "cpu+cv", meaning="CPU and the DLA and PVA engines"),
        Rail("VIN_SYS_5V0", "other", meaning="the 5 V system rail, which feeds memory too"),
        Rail("VDDQ_VDD2_1V8AO", "memory", "VIN_SYS_5V0"),
    ),
    totals=(
        Total(
            ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
            "the module, as the sum of the three rails that contain all others",
        ),
    ),
    clusters=(Cluster("Cortex-A78AE", 0x41, 0xD42),),
    memory_bytes=(64 << 30, 32 << 30),
    os_keeps_bytes=4_000_000_000,
    traps=(
        "VIN_SYS_5V0 feeds VDDQ_VDD2_1V8AO: tools that add all four rails count memory twice.",
        "The meter resolves about 400 mW on the GPU and CPU rails: small loads do not show.",
        "GPU and SoC share one rail, and so do CPU and the DLA and PVA engines.",
        "The command jetson_clocks alone lifts the idle power: compare runs of one power mode and clock setting only.",
    ),
)

# Jetson AGX Xavier: six parallel rails of two INA3221 (NVIDIA developer and design guides, L4T 32.6.1).
JETSON_AGX_XAVIER = Board(
    "jetson_agx_xavier",
    "NVIDIA Jetson AGX Xavier",
    Identity(compatible=("p2888", "p2972"), board=("agx xavier", "jetson-xavier", "jetson xavier", "galen")),
    rails=(
        Rail("GPU", "gpu"),
        Rail("CPU", "cpu"),
        Rail("SOC", "soc"),
        Rail("CV", "cv", meaning="DLA and PVA engines"),
        Rail("VDDRQ", "memory"),
        Rail("SYS5V", "other", meaning="the 5 V system rail"),
    ),
    totals=(Total(("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"), "the module, as the sum of its six rails"),),
    aliases=(
        ("VDD_GPU", "GPU"),
        ("VDD_CPU", "CPU"),
        ("VDD_SOC", "SOC"),
        ("VDD_CV", "CV"),
        ("VDD_DDRQ", "VDDRQ"),
        ("SYS_VIN_MV", "SYS5V"),
    ),
    clusters=(Cluster("Carmel", 0x4E, 0x004),),
    memory_bytes=(32 << 30, 16 << 30, 64 << 30, 8 << 30),
    os_keeps_bytes=2_000_000_000,
    traps=(
        "No rail holds all the others: the total is the sum of six, and is absent when one of them was not read.",
        "The thermal zones GPU and CPU have the names of rails.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "Compare runs of one power mode (nvpmodel) only.",
    ),
)

# Jetson Nano: three 5 V rails of its INA3221 (NVIDIA developer guide, L4T 32.6.1; mainline's tegra210-p3450).
JETSON_NANO = Board(
    "jetson_nano",
    "NVIDIA Jetson Nano",
    Identity(compatible=("p3448", "p3450", "p3541", "jetson-nano"), board=("jetson nano", "jetson-nano", "porg")),
    rails=(
        Rail("POM_5V_IN", "total", meaning="the module"),
        Rail("POM_5V_GPU", "gpu", "POM_5V_IN"),
        Rail("POM_5V_CPU", "cpu", "POM_5V_IN"),
    ),
    totals=(Total(("POM_5V_IN",), "the module, without the carrier board"),),
    aliases=(("VDD_IN", "POM_5V_IN"), ("VDD_GPU", "POM_5V_GPU"), ("VDD_CPU", "POM_5V_CPU")),
    clusters=(Cluster("Cortex-A57", 0x41, 0xD07),),
    memory_bytes=(4 << 30, 2 << 30),
    os_keeps_bytes=1_000_000_000,
    traps=(
        "The Nano 2GB has no power meter at all: use an INA226 or a plug beside it.",
        "Memory has no rail of its own: it is in what is left of POM_5V_IN.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "With one core left online and below 102 MHz the meter answers 0.",
    ),
)

# Jetson Orin Nano 4GB and 8GB: one INA3221 (Jetson Linux developer guide, r35 and r36).
JETSON_ORIN_NANO = Board(
    "jetson_orin_nano",
    "NVIDIA Jetson Orin Nano",
    Identity(compatible=("p3767-0003", "p3767-0004", "p3767-0005"), board=("orin nano", "orin-nano")),
    rails=ORIN_NX_RAILS,
    totals=ORIN_NX_TOTALS,
    clusters=ORIN_NX_CLUSTERS,
    memory_bytes=(8 << 30, 4 << 30),
    os_keeps_bytes=1_400_000_000,
    traps=ORIN_NX_TRAPS,
)

# Jetson Orin NX 8GB and 16GB: one INA3221 (Jetson Linux developer guide, r35 and r36).
JETSON_ORIN_NX = Board(
    "jetson_orin_nx",
    "NVIDIA Jetson Orin NX",
    Identity(compatible=("p3767-0000", "p3767-0001", "p3767-0002"), board=("orin nx", "orin-nx")),
    rails=ORIN_NX_RAILS,
    totals=ORIN_NX_TOTALS,
    clusters=ORIN_NX_CLUSTERS,
    memory_bytes=(16 << 30, 8 << 30),
    os_keeps_bytes=1_900_000_000,
    traps=ORIN_NX_TRAPS,
)

# Jetson AGX Thor: an INA3221 for the rails and an INA238 for the whole board (JetPack 7).
JETSON_THOR = Board(
    "jetson_thor",
    "NVIDIA Jetson Thor",
    Identity(compatible=("p3834", "tegra264"), board=("jetson thor", "agx thor", "jetson-thor")),
    rails=(
        Rail("VIN", "total", meaning="the board"),
        Rail("VDD_GPU", "gpu", "VIN"),
        Rail("VDD_CPU_SOC_MSS", "cpu+soc+memory", "VIN", "CPU, SoC and the memory subsystem"),
        Rail("VIN_SYS_5V0", "other", "VIN", "the 5 V system rail"),
    ),
    totals=(Total(("VIN",), "the board with its carrier"),),
    clusters=(Cluster("Neoverse-V3AE", 0x41, 0xD83),),
    memory_bytes=(128 << 30, 64 << 30),
    os_keeps_bytes=5_000_000_000,
    traps=(
        "VIN is the whole board, unlike VDD_IN of other Jetsons, which is the module alone.",
        "CPU, SoC and memory subsystem share one rail.",
        "The GPU answers through NVML here: its own power reading and the rail VDD_GPU measure at different places.",
    ),
)

# Jetson TX1: module and carrier rails (NVIDIA developer guide, L4T 32.6.1; mainline's tegra210-p2180).
JETSON_TX1 = Board(
    "jetson_tx1",
    "NVIDIA Jetson TX1",
    Identity(compatible=("p2180", "p2371-2180", "jetson-tx1"), board=("jetson tx1", "jetson-tx1")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_GPU", "gpu", "VDD_IN"),
        Rail("VDD_CPU", "cpu", "VDD_IN"),
        Rail("VDD_MUX", "carrier", meaning="the carrier board, beside the module"),
        Rail("VDD_5V_IO_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_IO", "carrier", "VDD_MUX"),
        Rail("VDD_1V8_IO", "carrier", "VDD_MUX"),
        Rail("VDD_M2_IN", "carrier", "VDD_MUX"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    aliases=(("VDD_3V3_IO_SLP", "VDD_3V3_IO"), ("VDD_3V3_SYS_M2", "VDD_M2_IN")),
    clusters=(Cluster("Cortex-A57", 0x41, 0xD07), Cluster("Cortex-A53", 0x41, 0xD03)),
    memory_bytes=(4 << 30,),
    os_keeps_bytes=1_200_000_000,
    traps=(
        "VDD_IN is the module: the carrier board (VDD_MUX) lies beside it and is not in the total.",
        "Memory has no rail of its own: it is in what is left of VDD_IN.",
    ),
)

# Jetson TX2, TX2i and TX2 4GB: rails of NVIDIA's developer guide (L4T 32.6.1) and of mainline's tegra186-p3310.
JETSON_TX2 = Board(
    "jetson_tx2",
    "NVIDIA Jetson TX2",
    Identity(compatible=("p3310", "p3489", "p2771-0000"), board=("jetson tx2", "jetson-tx2", "quill")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_SYS_GPU", "gpu", "VDD_IN"),
        Rail("VDD_SYS_CPU", "cpu", "VDD_IN"),
        Rail("VDD_SYS_DDR", "memory", "VDD_IN"),
        Rail("VDD_SYS_SOC", "soc", "VDD_IN"),
        Rail("VDD_4V0_WIFI", "other", "VDD_IN", "Wi-Fi; the TX2i has none"),
        Rail("VDD_MUX", "carrier", meaning="the carrier board, beside the module"),
        Rail("VDD_5V0_IO_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_IO_SLP", "carrier", "VDD_MUX"),
        Rail("VDD_1V8_IO", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_SYS_M2", "carrier", "VDD_MUX"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    aliases=(
        ("VDD_CPU", "VDD_SYS_CPU"),  # L4T 28
        ("VDD_GPU", "VDD_SYS_GPU"),
        ("VDD_SOC", "VDD_SYS_SOC"),
        ("VDD_DDR", "VDD_SYS_DDR"),
        ("VDD_WIFI", "VDD_4V0_WIFI"),
        ("VDD_5V0_DDR", "VDD_SYS_DDR"),  # mainline device tree
        ("VDD_3V8_WIFI", "VDD_4V0_WIFI"),
        ("VDD_5V_IO_SYS", "VDD_5V0_IO_SYS"),
    ),
    clusters=(Cluster("Denver2", 0x4E, 0x003), Cluster("Cortex-A57", 0x41, 0xD07)),
    memory_bytes=(8 << 30, 4 << 30),
    os_keeps_bytes=1_400_000_000,
    traps=(
        "VDD_IN is the module: the carrier board (VDD_MUX) lies beside it and is not in the total.",
        "The named rails are about three quarters of VDD_IN; the remainder is regulators and rails without a meter.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "The two Denver2 cores are off in some power modes: compare runs of one mode (nvpmodel) only.",
        "With one core left online and below 102 MHz the meter answers 0.",
    ),
)

# Jetson TX2 NX: three rails of its INA3221 (NVIDIA developer guide, L4T 32.6.1).
JETSON_TX2_NX = Board(
    "jetson_tx2_nx",
    "NVIDIA Jetson TX2 NX",
    Identity(compatible=("p3636",), board=("jetson tx2 nx", "jetson-tx2-nx", "lanai")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_CPU_GPU", "cpu+gpu", "VDD_IN"),
        Rail("VDD_SOC", "soc", "VDD_IN"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    clusters=(Cluster("Denver2", 0x4E, 0x003), Cluster("Cortex-A57", 0x41, 0xD07)),
    memory_bytes=(4 << 30,),
    os_keeps_bytes=1_200_000_000,
    traps=(
        "CPU and GPU share one rail: power alone cannot separate them.",
        "Memory has no rail of its own: it is in what is left of VDD_IN.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "Some boards of this kind answer without any rail.",
    ),
)

# Jetson Xavier NX: three rails of its INA3221 (NVIDIA developer guide, L4T 32.6.1).
JETSON_XAVIER_NX = Board(
    "jetson_xavier_nx",
    "NVIDIA Jetson Xavier NX",
    Identity(compatible=("p3668",), board=("jetson xavier nx", "jetson-xavier-nx", "jakku")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_CPU_GPU_CV", "cpu+gpu+cv", "VDD_IN", "CPU, GPU and the DLA and PVA engines"),
        Rail("VDD_SOC", "soc", "VDD_IN"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    aliases=(("5V_IN", "VDD_IN"), ("VDD_CPU_GPU", "VDD_CPU_GPU_CV")),
    clusters=(Cluster("Carmel", 0x4E, 0x004),),
    memory_bytes=(8 << 30, 16 << 30),
    os_keeps_bytes=1_400_000_000,
    traps=(
        "CPU, GPU and the DLA and PVA engines share one rail: power alone cannot tell them apart.",
        "Memory has no rail of its own: it is in what is left of VDD_IN.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "Compare runs of one power mode (nvpmodel) only.",
    ),
)

_JETSONS = (
    JETSON_AGX_ORIN,
    JETSON_AGX_XAVIER,
    JETSON_NANO,
    JETSON_ORIN_NANO,
    JETSON_ORIN_NX,
    JETSON_THOR,
    JETSON_TX1,
    JETSON_TX2,
    JETSON_TX2_NX,
    JETSON_XAVIER_NX,
)


BOARDS = (*_JETSONS, *_COMPUTERS)
