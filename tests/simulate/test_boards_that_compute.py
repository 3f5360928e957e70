"""Boards that compute: their activity follows from the work of the operators, and all that can be read agrees on it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.simulate.boards_in_hand import MS, QUIET, Hand, S, board_in_hand
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import stepscope
from stepscope import simulate
from stepscope.analysis.time.steps import span_ns
from stepscope.errors import StepscopeError, UsageError
from stepscope.experiments.observations import Observations
from stepscope.record.device import describe_device
from stepscope.record.sensors import load_sensors
from stepscope.record.sensors.contract import OpenSensor, Target
from stepscope.simulate.boards import BOARDS, Options, parse_board, parse_options
from stepscope.simulate.chip import RASPBERRY_PI_5, TX2, Activity, ChipScaling, activity, governed_hz
from stepscope.simulate.marks import FIXED, HOST, IDLE, State, StateLog, StateReader
from stepscope.simulate.power import PowerTable
from stepscope.simulate.training_hooks import StateMarker, Work, work_of_call, work_of_update

CONVOLUTION = State("Conv2d", "forward", "", "", flops=2e9, moved=2e7, kernels=1)
RECURRENT = State("LSTM", "forward", "", "", flops=4e7, moved=3e7, kernels=64)
COMPUTING = {name: board.chip for name, board in BOARDS.items() if board.chip is not None}


def doing(state: State, **changed: Any) -> Activity:
    return activity(TX2, ChipScaling(**changed), state, len(FIXED))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(3, 8, 3, padding=1), (4, 3, 17, 19)),
        (nn.Conv2d(8, 8, 5, stride=2, dilation=2, groups=4), (2, 8, 30, 31)),
        (nn.Conv2d(4, 6, 3, padding="same"), (2, 4, 9, 9)),
        (nn.Conv1d(4, 6, 7, stride=3), (2, 4, 50)),
        (nn.Conv3d(2, 3, 3), (1, 2, 5, 6, 7)),
        (nn.ConvTranspose2d(6, 4, 4, stride=2, padding=1), (3, 6, 7, 9)),
        (nn.Linear(20, 7), (5, 11, 20)),
    ],
)
def test_the_work_of_a_layer_is_what_torch_counts(module: nn.Module, shape: Sequence[int]) -> None:
    given = torch.randn(*shape)
    with FlopCounterMode(display=False) as counter:
        out = module(given)
    found = work_of_call(module, (given,))
    assert found.flops == counter.get_total_flops()
    numbers = given.numel() + out.numel() + sum(parameter.numel() for parameter in module.parameters())
    assert found.moved == 4 * numbers


def test_a_recurrent_layer_launches_kernels_for_each_step_of_its_sequence() -> None:
    layer = nn.LSTM(8, 16, num_layers=2, batch_first=True)
    short, long = (work_of_call(layer, (torch.randn(4, steps, 8),)) for steps in (5, 50))
    assert long.cells == 10 * short.cells == 2 * 50
    assert long.flops == 10 * short.flops


def test_weights_of_a_recurrent_layer_that_no_cache_holds_are_read_again_in_each_step() -> None:
    def moved(layer: nn.LSTM, steps: int) -> float:
        return work_of_call(layer, (torch.randn(steps, 1, 8),)).moved

    small, large = nn.LSTM(8, 16), nn.LSTM(8, 512, num_layers=2)
    for layer, again in ((small, False), (large, True)):
        weights = 4 * sum(parameter.numel() for parameter in layer.parameters())
        values = 4 * 8 + 4 * (5 * 4 + 3) * layer.hidden_size * layer.num_layers  # of one step: gates, and the state
        assert moved(layer, 10) == pytest.approx(10 * values + weights * (10 if again else 1))
    assert moved(nn.LSTM(8, 512, bidirectional=True), 10) > 1.9 * moved(nn.LSTM(8, 512), 10)


@pytest.mark.parametrize("args", [(), ("text",), ({"x": 1},), (torch.tensor(3.0),), (torch.zeros(0, 5),)])
def test_whatever_a_module_is_called_with_has_some_work(args: tuple[Any, ...]) -> None:
    for module in (nn.ReLU(), nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5)), nn.Embedding(3, 4)):
        assert all(number >= 0 for number in work_of_call(module, args))


def test_an_embedding_reads_the_rows_that_it_looks_up_and_not_its_table() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.long)
    for table in (nn.Embedding(10_000, 16), nn.EmbeddingBag(10_000, 16)):
        assert work_of_call(table, (tokens,)).moved == 4 * (6 + 2 * 6 * 16)


def test_a_packed_sequence_has_the_steps_of_its_longest() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(7, 2, 8), torch.tensor([7, 4]))
    found = work_of_call(nn.LSTM(8, 16), (packed,))
    assert found.cells == work_of_call(nn.LSTM(8, 16), (torch.randn(7, 2, 8),)).cells == 7
    assert found.flops == pytest.approx(work_of_call(nn.LSTM(8, 16), (torch.randn(11, 8),)).flops)


def test_attention_to_a_long_memory_is_more_work() -> None:
    layer, query, memory = nn.MultiheadAttention(8, 2), torch.randn(5, 1, 8), torch.randn(500, 1, 8)
    assert work_of_call(layer, (query, memory, memory)).flops > 3 * work_of_call(layer, (query, query, query)).flops


class OwnLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 64))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given @ self.weight


def test_a_layer_of_the_users_own_multiplies_each_row_with_its_matrix() -> None:
    given = torch.randn(4, 10, 32)
    own, linear = work_of_call(OwnLinear(), (given,)), work_of_call(nn.Linear(32, 64, bias=False), (given,))
    assert own.flops == pytest.approx(linear.flops, rel=0.05)
    assert own.moved == linear.moved


def test_a_compiled_model_launches_as_many_kernels_as_it_has_layers() -> None:
    model: Any = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), backend="eager")
    assert work_of_call(model, (torch.randn(4, 8),)).kernels == 3


class ByName(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(input=given)
        return out


class OfDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 8))

    def forward(self, given: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {"out": given["x"][0] @ self.weight}


class Boxed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = OfDict()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer({"x": [given]})["out"]
        return out


@pytest.mark.parametrize("model", [ByName(nn.Linear(32, 8)), nn.LazyLinear(8), Boxed()])
def test_whatever_way_a_layer_is_called_its_work_is_marked(model: nn.Module, tmp_path: Path) -> None:
    marks: list[int] = []
    log = StateLog(tmp_path / "states")
    beacon = StateMarker(marks.append, log, model)
    beacon.attach()
    model(torch.randn(4, 32)).sum().backward()
    marks.clear()
    model(torch.randn(4, 32)).sum().backward()
    beacon.remove()
    log.close()
    assert beacon.failure is None
    assert not torch.nn.modules.module._global_forward_hooks_with_kwargs, "what torch.compile would warn of"
    states = StateReader(tmp_path / "states").read()
    seen = [states[mark] for mark in marks]
    for phase, times in (("forward", 1), ("backward", 2)):
        found = [state.flops for state in seen if state.phase == phase and state not in FIXED]
        assert found
        assert min(found) >= times * 2 * 32 * 8 * 4


def test_each_of_two_optimizers_of_one_type_has_its_own_work(tmp_path: Path) -> None:
    small, large = (torch.optim.SGD([torch.zeros(size, requires_grad=True)], lr=0.1) for size in (10, 1000))
    log = StateLog(tmp_path / "states")
    beacon = StateMarker(lambda _: None, log)
    beacon.attach()
    for optimizer in (small, large, small):
        optimizer.step()
    beacon.remove()
    log.close()
    states = StateReader(tmp_path / "states").read()
    assert [state.flops for state in states if state.phase == "optimizer"] == [50, 5000]


def test_an_update_moves_each_number_of_its_parameters() -> None:
    model = nn.Linear(30, 20)
    found = work_of_update(torch.optim.SGD(model.parameters(), lr=0.1))
    assert found == Work(5 * 620, 5 * 4 * 620, 4)


def test_a_large_convolution_keeps_the_gpu_busy_and_the_core_free() -> None:
    found = doing(CONVOLUTION)
    assert found.gpu == 1.0
    assert found.host < 0.1


def test_many_small_kernels_keep_a_core_busy_and_the_gpu_waiting() -> None:
    found = doing(RECURRENT)
    assert found.host == 1.0
    assert found.gpu < 0.5


def test_a_recurrent_layer_keeps_the_gpu_busy_only_where_its_cells_are_fused() -> None:
    layer = nn.LSTM(8, 256, 2, batch_first=True)
    state = State("LSTM", "forward", "", "", *work_of_call(layer, (torch.randn(64, 80, 8),)))
    assert doing(state).gpu < 0.3
    assert doing(state).host == 1
    assert doing(state, cell_kernels=2).gpu == 1


def test_launches_that_take_no_time_leave_nothing_to_the_core() -> None:
    assert doing(RECURRENT, launch_ns=1).gpu == 1.0
    assert doing(RECURRENT, launch_ns=1).host < 0.01


def test_a_gpu_of_a_hundredth_of_the_speed_is_always_busy() -> None:
    assert doing(RECURRENT, peak=0.01).gpu == 1.0


def test_an_idle_board_does_nothing_and_one_whose_host_works_leaves_the_gpu_alone() -> None:
    assert activity(TX2, ChipScaling(), FIXED[IDLE], IDLE) == Activity()
    host = activity(TX2, ChipScaling(), FIXED[HOST], HOST)
    assert (host.gpu, host.host) == (0.0, 1.0)


def test_the_cpus_work_lies_on_one_core_or_on_all_as_told() -> None:
    host = Activity(host=0.6)
    alone, even = host.busy_shares(TX2, 0.0)[2:], host.busy_shares(TX2, 1.0)[2:]
    assert alone == [0.6, 0, 0, 0, 0, 0]
    assert even == pytest.approx([0.1] * 6)


def watts_of(state: State, **options: Any) -> dict[str, float]:
    board = BOARDS["jetson-tx2"]
    table = PowerTable(board, Options(signature_spread=0, place_spread=0, **options), 0)
    table.add([*FIXED, state])
    return dict(zip(board.rails, table.above_idle_w[-1].tolist(), strict=True))


def test_the_gpu_draws_most_in_a_convolution_and_the_memory_more_than_it_in_a_recurrent_layer() -> None:
    seeing, reading = watts_of(CONVOLUTION), watts_of(RECURRENT)
    assert seeing["VDD_SYS_GPU"] > 3 * seeing["VDD_SYS_DDR"]
    reversed_ = watts_of(RECURRENT, memory_power=4)
    assert reversed_["VDD_SYS_DDR"] > reversed_["VDD_SYS_GPU"]
    assert reading["VDD_SYS_CPU"] > seeing["VDD_SYS_CPU"]


def test_the_named_rails_of_a_computing_tx2_lie_inside_its_total() -> None:
    watts = watts_of(CONVOLUTION)
    assert sum(watts.values()) - watts["VDD_IN"] < watts["VDD_IN"]


def test_settings_of_the_chip_can_be_told_in_one_text() -> None:
    name, options = parse_board("jetson-tx2,peak=0.5x,launch=1ms,spread=100%,memory-power=3,ambient=70C,cell=2")
    assert name == "jetson-tx2"
    changed = parse_options(options)
    assert (changed.peak, changed.launch_ns, changed.spread, changed.memory_power) == (0.5, 1_000_000, 1.0, 3.0)
    assert (parse_options(options).ambient, changed.cell_kernels) == (70, 2)


@pytest.mark.parametrize("text", ["peak=0", "spread=150%", "ambient=200", "cell=0", "peak=fast", "launch=-1ms"])
def test_a_chip_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(StepscopeError, match=r"cannot be simulated|is not a"):
        parse_board(f"jetson-tx2,{text}")


NO_AMOUNTS = (
    "average=nan",
    "average=inf",
    "average=1.5",
    "cell=2.5",
    "peak=inf",
    "bandwidth=nan",
    "gpu-power=inf",
    "launch=-1ms",
)
TOO_SMALL = ("gain=-200%", "offset=-1W", "ambient=-41C", "spread=-1%")


@pytest.mark.parametrize("text", [*NO_AMOUNTS, *TOO_SMALL])
def test_a_value_that_is_no_amount_is_refused_by_its_name_and_as_it_was_given(text: str) -> None:
    with pytest.raises(UsageError, match=f"^this board cannot be simulated: {re.escape(text)} is ") as refused:
        parse_board(f"jetson-tx2,{text}")
    assert refused.value.hint is not None


@pytest.mark.parametrize("option", [{"peak": math.inf}, {"gpu_power": math.nan}, {"spread": 1.5}])
def test_an_option_of_python_that_cannot_be_names_the_setting(option: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(option)).replace("_", "-")):
        parse_options(option)


@pytest.mark.parametrize("setting", ["peak=2x", "launch=1ms", "spread=10%", "core-power=2x", "ambient=40C", "cell=2"])
def test_a_board_that_does_not_compute_refuses_what_would_change_nothing(setting: str) -> None:
    with pytest.raises(UsageError, match="laptop-rapl does not compute, so it has no"):
        parse_board(f"laptop-rapl,{setting}")


def test_a_board_in_the_frost_shows_degrees_below_zero(tmp_path: Path) -> None:
    with board_in_hand("jetson-tx2", tmp_path, ambient=-20.0, **QUIET) as board:
        board.go(S)
        celsius = values(board, "temperature")
    assert celsius
    assert all(-30 < value < -10 for value in celsius.values())


def values(board: Hand, sensor: str) -> dict[str, float]:
    found = load_sensors()[sensor].discover(board.root, Target(os.getpid()))
    assert isinstance(found, OpenSensor), found
    read = found.read()
    found.close()
    return dict(zip((channel.id for channel in found.channels), read, strict=True))


@pytest.mark.parametrize("name", COMPUTING)
def test_every_sensor_of_a_computing_board_reads_what_is_true(name: str, tmp_path: Path) -> None:
    chip = COMPUTING[name]
    with board_in_hand(name, tmp_path, **QUIET) as board:
        state = board.state("Conv2d")
        board.mark(state)
        board.go(100 * MS)
        before = values(board, "cpu_cores")
        board.go(S)
        after, truth, end = values(board, "cpu_cores"), board.run.truth(), board.now_ns
        if chip.gpu is not None:
            gpu, memory = values(board, "jetson_gpu"), values(board, "jetson_emc")
            assert gpu["gpu.0.utilisation"] == pytest.approx(truth.busy_share("gpu", end - S, end), abs=0.002)
            assert gpu["gpu.0.frequency"] == chip.gpu_hz
            assert memory["emc.utilisation"] == pytest.approx(truth.busy_share("emc", end - S, end), abs=0.002)
    for core in chip.cores:
        idle = (after[f"core{core}.idle"] - before[f"core{core}.idle"]) / S
        assert 1 - idle == pytest.approx(truth.busy_share(f"core{core}", end - S, end), abs=0.03)


def test_a_clock_leaves_a_fifth_free_and_is_the_highest_under_load() -> None:
    states = range(1500, 2400, 100)
    assert [governed_hz(2400, states, load) for load in (0.0, 0.5, 0.6, 0.79, 1.0)] == [1500, 1500, 1800, 2400, 2400]


def test_a_raspberry_pi_computes_on_four_cores_that_its_memory_can_hold_back() -> None:
    even, starved = (
        activity(RASPBERRY_PI_5, ChipScaling(), State("Linear", "forward", "", "", flops=flops, moved=2e7), len(FIXED))
        for flops in (1e10, 1e6)
    )
    shares = even.busy_shares(RASPBERRY_PI_5, 0.3)
    assert len(shares) == 5  # the memory and four cores
    assert min(shares[1:]) > 0.95
    assert even.memory < 0.1
    assert starved.memory > 0.9


def test_a_raspberry_pi_states_its_rails_clocks_and_throttling_as_its_firmware_does(tmp_path: Path) -> None:
    seen: dict[float, tuple[float, ...]] = {}
    for ambient in (30.0, 80.0):
        home = tmp_path / f"{ambient:g}"
        home.mkdir()
        with board_in_hand("raspberry-pi-5", home, ambient=ambient, **QUIET) as board:
            board.go(S)
            idle = board.number("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq")
            board.mark(board.state("Conv2d"))
            board.go(60 * S, tick_ns=100 * MS)
            busy = board.number("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq")
            watts, bits = values(board, "rpi5_pmic"), values(board, "rpi_throttled")
            truth = board.run.truth()
            end = truth.end_ns
            core = float(truth.energy_between("VDD_CORE", end - MS, end)) / 1e-3
        assert watts["rail.VDD_CORE.power"] == pytest.approx(core, rel=0.01)
        seen[ambient] = idle, busy, bits["throttle.soft-temperature-limit.throttled"]
    assert seen == {30.0: (1_500_000, 2_400_000, 0), 80.0: (1_500_000, 1_680_000, 1)}


def test_device_facts_of_a_tx2_are_a_tx2s(tmp_path: Path) -> None:
    with board_in_hand("jetson-tx2", tmp_path) as board:
        board.go(200 * MS)
        facts = describe_device(board.root)
    assert len(facts["cores"]) == 6
    assert sorted(map(sorted, facts["clusters"])) == [[0, 3, 4, 5], [1, 2]]
    assert facts["memory_bytes"] == pytest.approx(TX2.memory_bytes, rel=1e-5)


def test_memory_that_the_training_takes_is_no_longer_available(tmp_path: Path) -> None:
    with board_in_hand("jetson-tx2", tmp_path) as board:
        held = [0]
        state = next(sensor for sensor in board.run._sensors if hasattr(sensor, "_resident"))
        state._resident = lambda: held[0]
        board.go(200 * MS)
        free = values(board, "system_memory")["system.memory_available"]
        held[0] = 2 << 30
        board.go(200 * MS)
        assert free - values(board, "system_memory")["system.memory_available"] == 2 << 30


def test_a_hot_board_takes_its_clocks_down_and_its_power_with_them(tmp_path: Path) -> None:
    seen = {}
    for ambient in (20.0, 85.0):
        home = tmp_path / f"{ambient:g}"
        home.mkdir()
        with board_in_hand("jetson-tx2", home, ambient=ambient, **QUIET) as board:
            board.mark(board.state("Conv2d"))
            board.go(60 * S, tick_ns=100 * MS)
            truth = board.run.truth()
            end = truth.end_ns
            clock = values(board, "jetson_gpu")["gpu.0.frequency"]
            seen[ambient] = clock, float(truth.energy_between("VDD_IN", end - S, end))
    assert seen[20.0][0] == TX2.gpu_hz
    assert seen[85.0][0] == pytest.approx(0.7 * TX2.gpu_hz, rel=1e-6)
    assert seen[85.0][1] < 0.9 * seen[20.0][1]


def test_a_board_whose_power_is_drawn_has_the_machines_cores(tmp_path: Path) -> None:
    with board_in_hand("jetson-tx2", tmp_path, computed=False) as board:
        assert (board.root / "sys/devices/system/cpu").is_symlink()
        assert not board.run.truth().processors


def test_a_run_on_a_computing_board_reports_the_boards_activity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(8, 3, 32, 32)
    with simulate.start("jetson-tx2", model) as board:
        monkeypatch.setenv("STEPSCOPE_ROOT", str(board.root))
        with stepscope.profile(model, out=tmp_path, record="first:8") as scope:
            for _ in range(150):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                optimizer.step()
                scope.step()
    assert board.failure is None
    run, truth = scope.run, board.truth()
    begin, end = span_ns(run) or (0, 1)
    metrics = run.metrics()
    gpu = metrics.filter(metric="accelerator_utilisation", scope="gpu:0")["value"][0]
    assert gpu == pytest.approx(truth.busy_share("gpu", begin, end), abs=0.1)
    core = metrics.filter(metric="core_utilisation", scope="core:0")["value"][0]
    assert core == pytest.approx(truth.busy_share("core0", begin, end), abs=0.1)
    assert len(metrics.filter(metric="core_utilisation")) == 6
    assert "accelerator utilisation" not in [gap.what for gap in run.not_measured()]


def test_a_study_takes_a_board_with_settings_and_refuses_one_that_cannot_be() -> None:
    asked = Observations(simulate="jetson-tx2,launch=1ms,spread=100%").checked()
    assert isinstance(asked, Observations)
    assert asked.simulate == "jetson-tx2,launch=1ms,spread=100%"
    for text in ("jetson-tx9", "jetson-tx2,lunch=1ms", "jetson-tx2,peak=0"):
        with pytest.raises(StepscopeError):
            Observations(simulate=text)


def test_memory_draws_more_than_the_gpu_where_a_recurrent_layer_waits_and_less_where_a_convolution_computes() -> None:
    def watts(module: nn.Module, *shape: int) -> tuple[float, float]:
        work = work_of_call(module, (torch.randn(*shape),))
        board = BOARDS["jetson-tx2"]
        found = watts_of(State(type(module).__name__, "forward", "", "", *work))
        idle = {name: board.components[component].idle_w for name, (component, *_) in board.rails.items()}
        return tuple(found[name] + idle[name] for name in ("VDD_SYS_DDR", "VDD_SYS_GPU"))  # type: ignore[return-value]

    for batch in (4, 10, 64):
        memory, gpu = watts(nn.LSTM(8, 256, 2, batch_first=True), batch, 80, 8)
        assert memory > 1.1 * gpu, batch
    memory, gpu = watts(nn.Conv2d(256, 256, 3, padding=1), 4, 256, 14, 14)
    assert gpu > 1.5 * memory


def test_memory_that_computes_with_hardly_any_traffic_draws_what_boards_showed() -> None:
    """Three recordings of TX2 whose memory runs at 1.6 and 1.87 GHz, 0 to 4 % busy: 0.73, 0.88 and 1.24 W."""
    idle = BOARDS["jetson-tx2"].components["ddr"].idle_w
    assert 0.73 < watts_of(State("Linear", "forward", "", "", kernels=1))["VDD_SYS_DDR"] + idle < 1.24
