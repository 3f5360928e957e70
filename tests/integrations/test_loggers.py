"""What a run becomes in other people's tools, read back with their own readers."""

from __future__ import annotations

import csv
import http.client
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from tests.fabricate import fabricate_run
from tests.integrations.trainings import a_file, library
from tests.patience import HANG_S, until

from stepscope.analysis.run import Run
from stepscope.errors import OutputNotWritable, UsageError
from stepscope.integrations import codecarbon, mlflow, prometheus, tensorboard, wandb
from stepscope.integrations._run_content import flatten_values, logged_values, step_series

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 20
STEP_S = 0.016


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with 5 W on the board."""
    clock = {"unix_ns": 1_700_000_000_000_000_000, "monotonic_ns": 1_000_000_000_000}
    return Run(fabricate_run(tmp_path_factory.mktemp("runs"), steps=STEPS, power_w=5.0, header={"clock": clock}))


@pytest.fixture
def without_power(tmp_path: Path) -> Run:
    """A run without a power sensor."""
    return Run(fabricate_run(tmp_path / "runs"))


def test_figures_are_in_si_and_carry_their_unit_in_their_name(run: Run) -> None:
    named = flatten_values(logged_values(run))
    assert named["step_time_seconds"] == pytest.approx(STEP_S)
    assert named["mean_power_watts/total"] == pytest.approx(5.0)
    assert named["energy_per_step_joules/total"] == pytest.approx(5.0 * STEP_S)
    assert named["core_utilisation/core_0_low"] <= named["core_utilisation/core_0"]


def test_two_figures_of_one_name_and_scope_are_kept_apart_by_their_source(tmp_path: Path) -> None:
    again = Run(fabricate_run(tmp_path, steps=STEPS))
    found, metrics = logged_values(again), again.metrics()
    metrics = pl.concat([metrics, metrics.with_columns(source=pl.lit("pss"))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "metrics", lambda _: metrics)
        twice = logged_values(again)
    names = [(figure.name, figure.scope) for figure in twice]
    assert len(set(names)) == len(names) > len(found)
    assert {(figure.name, figure.scope) for figure in found} <= set(names)


def test_what_was_not_measured_has_no_entry(without_power: Run) -> None:
    named = flatten_values(logged_values(without_power))
    assert not [name for name in named if "joules" in name or "watts" in name]
    assert all("joules" not in key for _, _, told in step_series(without_power) for key in told)


def test_a_step_has_the_wall_time_at_which_it_ended(run: Run) -> None:
    series = list(step_series(run))
    assert len(series) == STEPS
    assert series[0][1] == pytest.approx(1_700_000_000 + STEP_S)
    assert series[1][2]["loss"] == pytest.approx(1.0)


def test_mlflow_has_settings_figures_a_series_and_the_files(run: Run, tmp_path: Path) -> None:
    library("mlflow")
    name = mlflow.log_run(run, tmp_path / "store", page=False)
    client = library("mlflow").MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    logged = client.get_run(name)
    assert logged.info.status == "FINISHED"
    assert logged.info.run_name == run.id
    assert logged.data.params["optimizer"] == "sgd"
    assert logged.data.metrics["energy_joules/total"] == pytest.approx(5.0 * STEP_S * (STEPS - 3))
    history = client.get_metric_history(name, "loss")
    assert [(one.step, one.value) for one in history][:2] == [(0, 2.0), (1, 1.0)]
    assert history[0].timestamp == 1_700_000_000_016
    assert json.loads(Path(client.download_artifacts(name, "stepscope/summary.json")).read_text())["id"] == run.id


def test_mlflow_that_refuses_is_an_error_with_advice(run: Run, tmp_path: Path) -> None:
    library("mlflow")
    with pytest.raises(OutputNotWritable, match="MLflow did not take the run"):
        mlflow.log_run(run, a_file(tmp_path) / "below", page=False)


def test_a_run_that_mlflow_took_in_part_is_marked_as_failed_there(run: Run) -> None:
    statuses: list[str] = []

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no room")

    client = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="1"),
        create_run=lambda *_, **__: SimpleNamespace(info=SimpleNamespace(run_id="a")),
        log_batch=refuse,
        set_terminated=lambda name, status: statuses.append(status),
    )
    entities = SimpleNamespace(Param=lambda *values: values, Metric=lambda *values: values)
    with pytest.raises(OSError, match="no room"):
        mlflow._log(SimpleNamespace(entities=entities), client, run, "stepscope", page=False)
    assert statuses == ["FAILED"]


def test_tensorboard_shows_scalars_text_and_finds_the_page_beside_them(run: Run, tmp_path: Path) -> None:
    library("tensorboard")
    folder = Path(tensorboard.log_run(run, tmp_path))
    reader = library("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(folder))
    reader.Reload()
    seconds = reader.Scalars("step/step_seconds")
    assert [event.step for event in seconds] == list(range(STEPS))
    assert seconds[3].value == pytest.approx(STEP_S)
    assert seconds[0].wall_time == pytest.approx(1_700_000_000 + STEP_S)
    assert reader.Scalars("run/mean_power_watts/total")[0].value == pytest.approx(5.0)
    assert run.verdict().sentence in reader.Tensors("verdict")[0].tensor_proto.string_val[0].decode()
    assert (folder / "report.html").stat().st_size > 100_000


def test_tensorboard_without_a_place_to_write_is_an_error_with_advice(run: Run, tmp_path: Path) -> None:
    library("tensorboard")
    with pytest.raises(OutputNotWritable):
        tensorboard.log_run(run, a_file(tmp_path), page=False)


def test_weights_and_biases_offline_keeps_series_and_figures(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = Path(wandb.log_run(run, tmp_path, page=False))
    assert folder.name.startswith("offline-run-")
    records: list[Any] = []

    def ended() -> bool:  # wandb's own process writes the file to its end after it has said that it is done
        records[:] = _wandb_records(next(folder.glob("*.wandb")))
        return any(record.WhichOneof("record_type") == "exit" for record in records)

    until(ended)
    history = [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in r.history.item} for r in records]
    logged = [row for row in history if "step_seconds" in row]
    summary = {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for record in records
        for item in record.summary.update
    }
    assert len(logged) == STEPS
    assert logged[1]["loss"] == pytest.approx(1.0)
    assert summary["step_time_seconds"] == pytest.approx(STEP_S)
    assert summary["mean_power_watts/total"] == pytest.approx(5.0)


def _wandb_records(path: Path) -> Any:
    """The records of an offline file: after 7 bytes of its own a LevelDB log, blocks of 32 KiB with split records."""
    message = library("wandb.proto.wandb_internal_pb2").Record
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = message()
            record.ParseFromString(parts)
            parts = b""
            yield record


def test_a_prometheus_file_holds_every_figure_with_its_scope(run: Run, tmp_path: Path) -> None:
    library("prometheus_client")
    read = _samples(Path(prometheus.log_run(run, tmp_path / "run.prom")).read_text(encoding="utf-8"))
    assert read["stepscope_step_time_seconds", ("run", run.id), ("scope", "run")] == pytest.approx(STEP_S)
    assert read["stepscope_mean_power_watts", ("run", run.id), ("scope", "total")] == pytest.approx(5.0)
    assert sum(name == "stepscope_run_info" for name, *_ in read) == 1


def test_a_prometheus_file_that_cannot_be_written_is_an_error_with_advice(run: Run, tmp_path: Path) -> None:
    library("prometheus_client")
    with pytest.raises(OutputNotWritable):
        prometheus.log_run(run, a_file(tmp_path) / "run.prom")


def test_live_gauges_are_served_on_loopback_while_the_run_is_watched(run: Run) -> None:
    library("prometheus_client")
    with prometheus.live_server(run.path, 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S) as answer:
            read = _samples(answer.read().decode())
        with pytest.raises(UsageError, match="cannot be used"), prometheus.live_server(run.path, port):
            pass
    about = dict(next(labels for name, *labels in read if name == "stepscope_live_info"))
    assert about == {"name": "fabricated", "run": run.id, "status": "ok"}
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S)


def test_live_gauges_are_for_those_who_name_this_machine_and_a_slow_visitor_holds_nobody_up(run: Run) -> None:
    library("prometheus_client")
    with prometheus.live_server(run.path, 0) as port:
        slow = [socket.create_connection((prometheus.LOOPBACK, port)) for _ in range(5)]
        for connection in slow:
            connection.sendall(b"GET /metr")
        for host, path, status in (("evil.example", "/metrics", 403), ("localhost", "/etc/passwd", 404)):
            asked = http.client.HTTPConnection(prometheus.LOOPBACK, port, timeout=HANG_S)
            asked.request("GET", path, headers={"Host": host})
            assert asked.getresponse().status == status
            asked.close()
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=HANG_S) as answer:
            assert "stepscope_live_info" in answer.read().decode()
        for connection in slow:
            connection.close()


def test_live_gauges_of_a_running_run_follow_it_in_a_file(tmp_path: Path) -> None:
    library("prometheus_client")
    folder, target = fabricate_run(tmp_path / "runs", status=None, steps=7, power_w=5.0), tmp_path / "live.prom"
    with prometheus.live_file(folder, target, every_s=0.01):
        assert target.exists()
    run_label = ("run", folder.name)
    read = _samples(target.read_text(encoding="utf-8"))
    assert read["stepscope_live_steps_done", run_label] == 7
    assert read["stepscope_live_step_seconds", run_label] == pytest.approx(STEP_S)
    assert read["stepscope_live_power_watts", ("rail", "board"), run_label] == pytest.approx(5.0)
    assert not [name for name, *_ in read if "planned" in name]


def _samples(text: str) -> dict[Any, float]:
    """Every sample by its name and labels, read by the library's own parser."""
    parse = library("prometheus_client.parser").text_string_to_metric_families
    found = [sample for family in parse(text) for sample in family.samples]
    read = {(one.name, *sorted(one.labels.items())): one.value for one in found}
    assert len(read) == len(found)
    return read


def test_a_row_of_codecarbon_has_its_units_and_leaves_empty_what_is_not_known(run: Run, tmp_path: Path) -> None:
    path = Path(codecarbon.log_run(run, tmp_path))
    (row,) = _rows(path)
    assert path.name == "emissions.csv"
    assert float(row["energy_consumed"]) * 3.6e6 == pytest.approx(5.0 * STEP_S * (STEPS - 3))
    assert float(row["duration"]) == pytest.approx(STEP_S * (STEPS - 3))
    assert row["timestamp"] == "2023-11-14T22:13:20"
    assert {row[name] for name in ("emissions", "country_name", "gpu_energy", "cpu_energy")} == {""}


def test_carbon_dioxide_comes_from_the_users_own_intensity(run: Run, tmp_path: Path) -> None:
    codecarbon.log_run(run, tmp_path / "own.csv")
    (row,) = _rows(Path(codecarbon.log_run(run, tmp_path / "own.csv", carbon_intensity=500.0)))
    assert float(row["emissions"]) == pytest.approx(float(row["energy_consumed"]) * 0.5)
    with pytest.raises(UsageError):
        codecarbon.log_run(run, tmp_path, carbon_intensity=-1.0)


def test_the_memory_of_a_machine_is_in_what_codecarbon_calls_gb(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path / "runs", steps=STEPS, power_w=5.0, device={"memory_bytes": 16 * 2**30}))
    assert codecarbon.row_of(run)["ram_total_size"] == 16.0


def test_rows_of_other_runs_stay_and_a_table_of_somebody_else_is_not_touched(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "emissions.csv"
    codecarbon.log_run(run, path)
    path.write_text(path.read_text().replace(run.id, "another"), encoding="utf-8")
    codecarbon.log_run(run, path)
    assert [row["run_id"] for row in _rows(path)] == ["another", run.id]
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="other columns"):
        codecarbon.log_run(run, path)
    assert path.read_text() == "a,b\n1,2\n"


def test_no_energy_makes_no_row(without_power: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not measured"):
        codecarbon.log_run(without_power, tmp_path)
    assert not (tmp_path / "emissions.csv").exists()


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
