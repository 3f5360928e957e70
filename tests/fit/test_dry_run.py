"""A dry run says what a real step would hold."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.fabricate import fabricate_run
from tests.fit import jobs
from torch import Tensor, nn

from stepscope import Run, workloads
from stepscope.footprint import transforms
from stepscope.footprint.jobs import write_computed_memory
from stepscope.footprint.simulator import live_peak
from stepscope.record.dry import Job, accumulated_step, plain_step
from stepscope.record.dry.dry_run import Change, DryRun, DryRunStopped, dry_run
from stepscope.record.dry.platform import Platform, other_platform, this_platform
from stepscope.record.dry.probes import OpCallRecorder
from stepscope.record.dry.storage_log import peak_of
from stepscope.record.dry.workspaces import Probed, Workspaces
from stepscope.runfolder import CATEGORIES, MEMORY, RunReader, RunWriter, part_of

OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop]


def workspaces() -> Workspaces:
    return Workspaces(this_platform())


def least_and_most(run: DryRun) -> tuple[int, int]:
    return peak_of(run.log, "low"), peak_of(run.log, "high")


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("samples", [4, 64])
def test_the_peak_of_a_network_of_linear_layers_is_the_measured_one(samples: int, kind: Any) -> None:
    of = jobs.job(kind=kind)
    assert dry_run(of, samples, workspaces()).peak_bytes == pytest.approx(jobs.really_live(of, samples), rel=0.003)


@pytest.mark.skipif(not this_platform().block, reason="the rules of oneDNN's blocks hold on x86")
@pytest.mark.parametrize(("make", "shape"), [(jobs.convolutions, (3, 16, 16)), (jobs.Recurrent, (20, 32))])
def test_the_peak_with_kernels_workspaces_is_within_three_percent(make: Any, shape: tuple[int, ...]) -> None:
    of = jobs.job(make, shape)
    assert dry_run(of, 32, workspaces()).peak_bytes == pytest.approx(jobs.really_live(of, 32), rel=0.03)


@pytest.mark.skipif(not this_platform().block, reason="the rules of oneDNN's blocks hold on x86")
def test_an_lstm_with_more_inputs_than_units_keeps_rows_of_its_inputs() -> None:
    of = jobs.job(lambda: jobs.Recurrent(256), (20, 256))
    assert dry_run(of, 32, workspaces()).peak_bytes == pytest.approx(jobs.really_live(of, 32), rel=0.01)


@pytest.mark.skipif(not this_platform().native_bf16, reason="no bf16 in hardware")
@pytest.mark.parametrize(
    ("make", "shape"), [(jobs.convolutions, (3, 16, 16)), (jobs.Recurrent, (20, 32)), (jobs.blocks_model, (64,))]
)
def test_the_peak_of_a_step_in_bf16_is_within_three_percent(make: Any, shape: tuple[int, ...]) -> None:
    of = jobs.job(make, shape)
    said = dry_run(of, 1024, workspaces(), transforms.bf16).peak_bytes
    assert said == pytest.approx(jobs.really_live(of, 1024, transforms.bf16), rel=0.03)


@pytest.mark.parametrize(("change", "share"), [(transforms.bf16, 0.5), (transforms.channels_last, 1.0)])
def test_the_state_of_an_optimizer_follows_its_parameters_into_another_type_and_layout(
    change: Change, share: float
) -> None:
    of = jobs.job(jobs.convolutions, (3, 16, 16))
    model, optimizers = of.build()
    fresh = dry_run(replace(of, build=lambda: (model, optimizers)), 4, change=change).peak_bytes
    of.step(model, optimizers, of.batch(4))
    stepped = replace(of, build=lambda: (model, optimizers))
    assert dry_run(stepped, 4, change=change).peak_bytes == pytest.approx(fresh, rel=0.001)
    before = [dict(optimizers[0].state[parameter]) for parameter in model.parameters()]
    optimizers = change(model, optimizers)
    after = [optimizers[0].state[parameter] for parameter in model.parameters()]
    assert len(optimizers[0].state) == len(before)
    assert [s["step"] for s in after] == [s["step"] for s in before]
    assert all(s["exp_avg"].stride() == p.stride() for s, p in zip(after, model.parameters(), strict=True))
    sizes = [sum(s["exp_avg"].nbytes for s in states) for states in (before, after)]
    assert sizes[1] == share * sizes[0]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new["exp_avg"].float(), old["exp_avg"], rtol=0.01, atol=1e-6)


def test_the_code_for_bf16_casts_the_state_of_an_optimizer_that_has_stepped() -> None:
    of = jobs.job()
    model, (optimizer,) = of.build()
    of.step(model, (optimizer,), of.batch(4))
    exec(transforms.Variant(change="bf16").code(4), {"model": model, "optimizer": optimizer})
    of.step(model, (optimizer,), of.batch(4))
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.bfloat16}


def test_a_weight_of_two_layers_stays_one_in_channels_last() -> None:
    first, second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    second.weight = first.weight
    transforms.channels_last(nn.Sequential(first, second), ())
    assert second.weight is first.weight
    assert first.weight.is_contiguous(memory_format=torch.channels_last)


class Tied(nn.Module):
    """Words come in and go out by the same weight, whose two gradients are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4000, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.linear(self.words(tokens), self.words.weight)


def test_a_gradient_that_is_a_view_is_not_summed_in_place() -> None:
    of = jobs.job(Tied)
    tied = Job(of.name, of.build, lambda n: (torch.zeros(n, dtype=torch.long),) * 2, of.step, 16, of.loss)
    assert dry_run(tied, 4, workspaces()).peak_bytes == pytest.approx(jobs.really_live(tied, 4), rel=0.003)


@pytest.mark.parametrize("name", ["frozen", "checkpointed", "lora"])
def test_a_changed_step_is_foretold_as_it_is_measured(name: str) -> None:
    of, change = jobs.job(), transforms.VARIANTS[name]
    said = dry_run(of, 256, workspaces(), change).peak_bytes
    assert said == pytest.approx(jobs.really_live(of, 256, change), rel=0.01)


def test_checkpoints_save_memory_and_cost_flops() -> None:
    plain, again = (dry_run(jobs.job(), 512, workspaces(), c) for c in (None, transforms.checkpointed_blocks))
    assert again.peak_bytes < 0.8 * plain.peak_bytes
    assert 1.1 < again.flops / plain.flops < 1.4


def test_a_dry_run_takes_no_longer_and_has_no_more_ops_with_a_thousand_times_the_batch() -> None:
    small, large = dry_run(jobs.job(), 16, workspaces()), dry_run(jobs.job(), 16_000, workspaces())
    assert small.log.ops == large.log.ops
    assert large.peak_bytes > 50 * small.peak_bytes


def test_every_event_has_a_known_category_and_forward_and_backward_know_their_layer() -> None:
    frame = dry_run(jobs.job(), 16, workspaces()).events()
    assert frame.columns == list(MEMORY)
    assert set(frame["category"].unique()) <= set(CATEGORIES)
    assert {"parameter", "gradient", "optimizer", "input", "saved"} <= set(frame["category"].unique())
    backward = frame.filter((pl.col("phase") == "backward") & (pl.col("op") == "aten.mm.default"))
    assert backward["module"].is_null().sum() == 0
    assert "3.up" in backward["module"].to_list()


def test_the_events_go_into_a_run_folder_and_come_back(writer: RunWriter) -> None:
    frame = dry_run(jobs.job(), 16, workspaces()).events()
    writer.write_memory_events(part_of(frame, "memory"))
    assert RunReader(writer.path).memory_events["bytes"].to_list() == frame["bytes"].to_list()


def test_categories_add_up_to_the_peak() -> None:
    live = live_peak(dry_run(jobs.job(), 64, workspaces()).log)
    assert sum(live.breakdown.values()) == live.bytes
    assert live.holders[0].bytes >= live.holders[-1].bytes


def test_gradients_that_a_step_keeps_are_counted_during_the_next_forward() -> None:
    of = jobs.job(kind=torch.optim.SGD)

    def zeroing(model: nn.Module, optimizers: Any, batch: Any) -> None:
        optimizers[0].zero_grad(set_to_none=False)
        jobs.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizers[0].step()

    kept = Job(of.name, of.build, of.batch, zeroing, 16, of.loss)
    assert dry_run(kept, 64).peak_bytes > dry_run(of, 64).peak_bytes


def test_accumulated_halves_hold_less_than_one_whole() -> None:
    of = jobs.job()
    halves = Job(of.name, of.build, of.batch, accumulated_step(jobs.loss, 2, lambda: of.batch(512)), 16, of.loss)
    assert dry_run(halves, 512).peak_bytes < dry_run(of, 1024).peak_bytes


def test_the_users_model_optimizer_and_random_numbers_stay_as_they_were() -> None:
    model = jobs.blocks_model()
    optimizer = torch.optim.Adam(model.parameters())
    before, state = [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
    of = Job("mine", lambda: (model, (optimizer,)), jobs.job().batch, plain_step(jobs.loss), 16, jobs.loss)
    said = dry_run(of, 16, workspaces(), transforms.all_but_last)
    assert said.peak_bytes > 0
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not optimizer.state
    assert torch.equal(state, torch.get_rng_state())


class Branching(nn.Module):
    """Looks at a number in the middle of its forward."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(64, CLASSES), kind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        if self.kind == "branch" and y.sum() > 0:
            y = y * 2
        elif self.kind == "item":
            y = y * y.max().item()
        elif self.kind == "numpy":
            y = y + torch.from_numpy(y.detach().numpy())
        elif self.kind == "nonzero":
            y = y[y.sum(1).nonzero().squeeze(1)].sum() + y
        return y


CLASSES = jobs.CLASSES


@pytest.mark.parametrize(
    ("kind", "op"), [("branch", "local_scalar"), ("item", "local_scalar"), ("numpy", ""), ("nonzero", "nonzero")]
)
def test_what_fake_tensors_cannot_run_is_named_with_its_layer(kind: str, op: str) -> None:
    with pytest.raises(DryRunStopped) as stop:
        dry_run(jobs.job(lambda: Branching(kind)), 4, workspaces())
    assert op in stop.value.op
    assert stop.value.module == ""
    assert stop.value.reason


def test_a_loop_that_prints_its_loss_is_no_obstacle() -> None:
    of = jobs.job()

    def printing(model: nn.Module, optimizers: Any, batch: Any) -> None:
        plain_step(lambda m, b: jobs.loss(m, b))(model, optimizers, batch)
        float(jobs.loss(model, batch).detach())

    run = dry_run(Job(of.name, of.build, of.batch, printing, 16, of.loss), 8)
    assert run.log.value_reads == 2


def test_a_custom_autograd_function_is_followed() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return 2 * gradients[0]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(Twice.apply(self.head(x)))  # type: ignore[no-untyped-call]

    of = jobs.job(Net)
    assert dry_run(of, 64, workspaces()).peak_bytes == pytest.approx(jobs.really_live(of, 64), rel=0.003)


def test_without_oneDNN_a_convolution_expands_its_patches() -> None:  # noqa: N802 - the library's name
    of = jobs.job(jobs.convolutions, (3, 16, 16))
    plain = dry_run(of, 16).peak_bytes
    assert dry_run(of, 16, Workspaces(Platform(block=0))).peak_bytes > plain


def test_a_convolution_that_no_rule_was_fitted_on_is_an_interval_that_holds() -> None:
    net = nn.Sequential(nn.Conv2d(64, 32, 3, padding=4, dilation=4), nn.Flatten(), nn.Linear(32 * 64, jobs.CLASSES))
    of, rules = jobs.job(lambda: net, (64, 8, 8)), Workspaces(this_platform())
    low, high = least_and_most(dry_run(of, 4, rules))
    assert rules.uncovered
    assert low < jobs.really_live(of, 4) < high


def test_another_processor_gets_no_kernels_of_this_one_but_an_interval_around_them() -> None:
    of = jobs.job(lambda: nn.Sequential(nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 36, 10)), (64, 8, 8))
    here = dry_run(of, 16, Workspaces(Platform()))
    low, high = least_and_most(dry_run(of, 16, Workspaces(other_platform())))
    assert low < here.peak_bytes <= high
    assert low < 0.9 * high
    assert "AVX" not in other_platform().name
    assert "blocks of" not in other_platform().name


def test_the_interval_of_a_board_holds_what_the_rules_of_arm_say_with_its_threads() -> None:
    of = jobs.job(lambda: nn.Sequential(nn.Conv2d(512, 512, 3, padding=1)), (512, 4, 4))
    of = replace(of, step=plain_step(lambda model, batch: model(batch[0]).mean()))
    arm = dry_run(of, 16, Workspaces(Platform(block=0, threads=4, acl=True))).peak_bytes
    low, high = least_and_most(dry_run(of, 16, Workspaces(other_platform(threads=4))))
    assert arm > 150e6
    assert low < arm <= high


@pytest.mark.parametrize("platform", [Platform("cuda"), other_platform(), other_platform("cuda")])
def test_what_was_measured_of_kernels_here_says_nothing_of_another_platform(platform: Platform) -> None:
    of = jobs.job(jobs.convolutions, (3, 16, 16))
    book = OpCallRecorder(Workspaces(platform), 16)
    plain = dry_run(of, 16, book, steps=1)
    probed = dict.fromkeys(book.calls, Probed(123e6, 0.0))
    assert probed
    assert least_and_most(dry_run(of, 16, Workspaces(platform, probed), steps=1)) == least_and_most(plain)


def test_on_cuda_the_workspace_is_an_interval() -> None:
    run = dry_run(jobs.job(jobs.convolutions, (3, 16, 16)), 16, Workspaces(Platform("cuda")))
    low, high = least_and_most(run)
    assert low <= run.peak_bytes <= high
    assert low < high


def test_thousands_of_ops_take_seconds_of_processor_time() -> None:
    of = jobs.job(lambda: nn.Sequential(*[jobs.Block() for _ in range(60)], nn.Linear(64, CLASSES)))
    dry_run(jobs.job(), 4)
    began = time.process_time()
    run = dry_run(of, 16, workspaces())
    assert run.log.ops > 3000
    assert time.process_time() - began < 10  # of a machine ten times slower than where 2 s were seen for 6,000


def test_the_memory_of_a_run_of_a_workload_is_computed_once_it_has_ended(tmp_path: Path) -> None:
    about = {"workload": {"name": "lenet", "device": "cpu", "batch_size": 4}, "recorder": {"memory": "auto"}}
    path = fabricate_run(tmp_path, steps=12, header=about)
    write_computed_memory(path, workloads.find("lenet"))
    peak = Run(path).peak()
    assert peak is not None
    held = {row["module"] for row in peak.tensors.iter_rows(named=True) if row["category"] == "parameter"}
    assert {"conv1", "fc2"} <= held
    assert any(str(op).startswith("aten::") for op in peak.tensors["op"])


def test_the_history_of_lbfgs_is_counted_though_it_is_not_made_without_numbers() -> None:
    def job(history: int) -> Job:
        def build() -> tuple[nn.Module, tuple[torch.optim.Optimizer, ...]]:
            model = nn.Linear(1000, 100, bias=False)
            return model, (torch.optim.LBFGS(model.parameters(), history_size=history),)

        def step(model: nn.Module, optimizers: Any, batch: Tensor) -> None:
            def closure() -> Tensor:
                model.zero_grad()
                loss: Tensor = model(batch).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            optimizers[0].step(closure)

        return Job("lbfgs", build, lambda n: torch.ones(n, 1000), step, 2)

    few, many = (dry_run(job(history), 2).peak_bytes for history in (10, 60))
    assert many - few == 2 * 50 * 4 * 100_000


def test_tables_that_are_no_buffers_are_counted() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vectors = torch.zeros(10_000, 32)
            self.masks = {"one": [torch.zeros(500, 500)]}
            self.head = nn.Linear(32, jobs.CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = nn.functional.embedding(x.flatten(1).long()[:, :4], self.vectors).mean(1)
            return torch.as_tensor(self.head(rows + self.masks["one"][0].sum()))

    held = dry_run(jobs.job(Table), 4).log.alive_bytes(frozenset(["other"]))
    assert held >= 4 * (10_000 * 32 + 500 * 500)
