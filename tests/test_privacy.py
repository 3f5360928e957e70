"""What is to be left out is in no file, page, store or export: words are planted, and looked for afterwards."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fabricate import fabricate_run
from tests.patience import HANG_S
from tests.store.command_line import exit_code
from tests.tune.fake_training import FakeTraining

from stepscope import privacy, store
from stepscope.api.tune import _write_pictures
from stepscope.experiments.engine.child import main
from stepscope.experiments.engine.folder import StudyFolder
from stepscope.experiments.tune import TuneRequest
from stepscope.experiments.tune.tuning_folder import measure_changes
from stepscope.files import read_json
from stepscope.liveness import start_time
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sensors import meter_command
from stepscope.record.sensors.contract import Meter, NoSensor, Target
from stepscope.report.view.listing import Listing
from stepscope.runfolder import RunReader, RunWriter

ARGUMENT, USER = "argument4711", "user4711"


@pytest.fixture(autouse=True)
def nothing_is_left_out_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(privacy.VARIABLE, "")  # what an option sets is undone after the test


def planted(out: Path) -> Path:
    """A run of another version and machine that says all of it, with a page beside it that does too."""
    run = fabricate_run(out)
    header = json.loads((run / "run.json").read_text())
    header |= {"argv": ["train.py", "--name", ARGUMENT], "script": f"/home/{USER}/{ARGUMENT}.py"}
    header |= {"cwd": f"/home/{USER}/work", "status": "failed", "reason": f"no file /home/{USER}/data"}
    (run / "run.json").write_text(json.dumps(header))
    with (run / "events.jsonl").open("a") as events:
        events.write(json.dumps({"t_ns": 1, "kind": "note", "source": "session", "message": f"/home/{USER}/x"}) + "\n")
    (run / "report.html").write_text(f"{ARGUMENT} {USER}")
    rank = RunWriter.create_rank(run, 1)
    (rank.path / "run.json").write_text(json.dumps({**header, "id": f"{run.name}/ranks/1"}))
    return run


def found_in(folder: Path, *words: str) -> list[str]:
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files for word in words if word.encode() in path.read_bytes()]


@pytest.mark.parametrize("to", ["perfetto", "chrome", "csv", "parquet", "latex", "speedscope", "json"])
def test_no_export_says_what_is_to_be_left_out(tmp_path: Path, to: str) -> None:
    run, out = planted(tmp_path / "runs"), tmp_path / f"export-{to}"
    assert exit_code(["export", str(run), "--to", to, "--out", str(out), "--no-argv", "--no-names"]) == 0
    assert found_in(out, ARGUMENT, USER) == []


def test_a_page_does_not_say_what_is_to_be_left_out(tmp_path: Path) -> None:
    run, page, plain = planted(tmp_path / "runs"), tmp_path / "page.html", tmp_path / "plain.html"
    assert exit_code(["report", str(run), "--html", "--out", str(plain)]) == 0
    assert found_in(plain, ARGUMENT)
    assert exit_code(["report", str(run), "--html", "--out", str(page), "--no-argv", "--no-names"]) == 0
    assert found_in(page, ARGUMENT, USER) == []


def test_a_push_leaves_out_what_is_to_be_left_out_and_changes_nothing_here(tmp_path: Path) -> None:
    run, place = planted(tmp_path / "runs"), tmp_path / "store"
    before = (run / "run.json").read_bytes()
    (run.parent / f".push-{2**30}-77-killed" / run.name).mkdir(parents=True)
    alive = run.parent / f".push-{os.getpid()}-{start_time(os.getpid()) or 0}-another"
    alive.mkdir()
    for _ in range(2):  # the second finds the run there
        assert exit_code(["runs", "push", str(run), "--store", str(place), "--no-argv", "--no-names"]) == 0
    assert found_in(place, ARGUMENT, USER) == []
    assert (run / "run.json").read_bytes() == before
    assert [path.name for path in run.parent.iterdir() if path != alive] == [run.name]
    assert alive.exists()
    (pulled,) = store.pull(store.open_store(place), [run.name], tmp_path / "pulled")
    assert not RunReader(pulled).damaged
    assert RunReader(pulled).steps.equals(RunReader(run).steps)
    assert RunReader(pulled).ops.height == RunReader(run).ops.height > 0


def test_a_push_redacts_the_parts_of_other_processes_too(tmp_path: Path) -> None:
    run = planted(tmp_path / "runs")
    rank = run / "ranks/1/run.json"
    rank.write_text(json.dumps({**json.loads(rank.read_text()), "argv": ["train.py", "--api-key", "hunter2"]}))
    store.push(store.open_store(tmp_path / "store"), [run])
    assert found_in(tmp_path / "store", "hunter2") == []


def test_one_kind_is_left_out_and_the_other_stays(tmp_path: Path) -> None:
    run = planted(tmp_path / "runs")
    privacy.withhold("argv")
    assert "argv" not in RunReader(run).meta
    assert USER in RunReader(run).meta["cwd"]
    privacy.withhold("names")
    assert RunReader(run).meta["reason"] == "no file ~/data"


def test_what_a_writer_is_told_to_leave_out_is_in_no_file(tmp_path: Path) -> None:
    privacy.withhold("argv", "names")
    writer = RunWriter.create(tmp_path, "private")
    writer.update(argv=[ARGUMENT], script=f"/home/{USER}/{ARGUMENT}", cwd=f"/home/{USER}", host=USER, seed=7)
    writer.write_device({"board": "Jetson TX2", "mounted": f"/Users/{USER}/disk"})
    writer.write_source_lines({"files": [f"/home/{USER}/train.py"]})
    writer.append_event("note", f"cannot open '/home/{USER}/x'")
    writer.close("failed", f"FileNotFoundError: /home/{USER}/x")
    assert found_in(writer.path, ARGUMENT, USER) == []
    assert RunReader(writer.path).meta["seed"] == 7
    assert RunReader(writer.path).device["board"] == "Jetson TX2"
    assert writer.path.stat().st_mode & 0o077  # closed to others by "1" alone


@pytest.mark.parametrize(
    "text", ["/sys/class/hwmon/hwmon0/name", "rootfs", "the root of 2", "/rootless/x", "nvidia,tegra186", "s3://home"]
)
def test_what_is_no_name_stays_as_it_is(text: str) -> None:
    privacy.withhold("names")
    assert privacy.withhold_names(text) == text


def test_what_is_to_be_left_out_reaches_the_processes_of_a_run(tmp_path: Path) -> None:
    """The script's process writes run.json as well, and the sampling process the channels."""
    home = tmp_path / "home" / USER
    home.mkdir(parents=True)
    script = home / "train.py"
    script.write_text(
        "import torch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(8):\n    o.zero_grad(); m(torch.ones(4, 2)).sum().backward(); o.step()\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "-q", "--no-ceilings", "--no-argv", "--no-names"]
    ended = subprocess.run(
        [*command, "--record-memory", "off", "--out", str(tmp_path / "runs"), str(script), "--name", ARGUMENT],
        cwd=home, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert RunReader(run).steps.height == 8
    assert found_in(run, ARGUMENT, USER) == []


def _with_meter_command(run: Path) -> Path:
    """A run of before, whose channels and events say the words of a meter's command."""
    said = f"'read-watts --of {ARGUMENT}' ended with exit code 3: {ARGUMENT} is not there"
    content = read_json(run / "channels.json")
    meter = {**content["channels"][0], "id": "m", "sensor": "meter_command", "source": f"read-watts --of {ARGUMENT}"}
    calibrated = {**content["channels"][0], "calibration": {"gain": 1.0, "meter": f"read-watts --of {ARGUMENT}"}}
    content["channels"] = [calibrated, *content["channels"][1:], meter]
    lost = {"sensor": "meter_command", "reason": "denied", "detail": said, "remedy": f"chmod +x {ARGUMENT}"}
    absent = {"sensor": "tasmota", "reason": "absent", "detail": "no plug was named", "remedy": "--plug tasmota='X'"}
    (run / "channels.json").write_text(json.dumps({**content, "missing": [lost, absent]}))
    with (run / "events.jsonl").open("a") as events:
        for kind, message in (("sensor-lost", said), ("gap", "2 rows are missing")):
            event = {"t_ns": 1, "source": "sampler", "kind": kind, "message": message, "sensor": "meter_command"}
            events.write(json.dumps(event) + "\n")
    return run


def test_the_words_of_a_meter_command_leave_with_no_argv_from_a_run_that_said_them(tmp_path: Path) -> None:
    run = _with_meter_command(fabricate_run(tmp_path / "runs", steps=8))
    assert ARGUMENT in str(RunReader(run).channels)
    out = tmp_path / "csv"
    assert exit_code(["export", str(run), "--to", "csv", "--out", str(out), "--no-argv"]) == 0
    assert exit_code(["runs", "push", str(run), "--store", str(tmp_path / "store"), "--no-argv"]) == 0
    assert found_in(out, ARGUMENT) == found_in(tmp_path / "store", ARGUMENT) == []
    known = RunReader(run)
    assert ARGUMENT not in str(known.channels)
    assert known.channels[0]["source"] != privacy.WITHHELD  # of this machine's own sensor
    assert known.sampling["missing"][1]["remedy"] == "--plug tasmota='X'"
    assert "2 rows are missing" in str(list(known.events))


def test_a_meter_command_says_its_words_nowhere_where_command_lines_are_left_out(tmp_path: Path) -> None:
    privacy.withhold("argv")
    target = Target(os.getpid(), meters=(Meter("command", f"false {ARGUMENT}", "false"),))
    why = meter_command.discover(Path("/"), target)
    assert isinstance(why, NoSensor)
    assert ARGUMENT in why.detail  # as the terminal has it
    EventLog(tmp_path / "events.jsonl").write("sensor-lost", why.detail, sensor=meter_command.NAME)
    assert found_in(tmp_path, ARGUMENT) == []
    assert privacy.shown_command(f"false {ARGUMENT}") == privacy.WITHHELD


# Ten kinds of secrets, each with the word Q4711Z: on the command line, and in what a training says when it fails.
ARGUMENTS = (
    "AKIAQ4711ZABCDEFGHIJKL", "--gh", "ghp_Q4711Zabcdefghijklmnop", "--hf-token", "hf_Q4711Zabcdefghijkl", "--password",
    "passQ4711Z", "--url", "https://me:urlQ4711Z@host/x", "--header", "Authorization: Bearer bearerQ4711Z",
    "--db=postgres://u:dbQ4711Z@h/db", "AWS_SECRET_ACCESS_KEY=awsQ4711Z", '{"api_key": "jsonQ4711Z"}',
)  # fmt: skip
REASON = (
    "401 from https://me:urlQ4711Z@hub.example/x for hf_Q4711Zabcdefghijkl, {'api_key': 'jsonQ4711Z'} "
    "password=passQ4711Z Authorization: Bearer bearerQ4711Z AKIAQ4711ZABCDEFGHIJKL "
    "aws_secret_access_key=aQ4711Z/bQ4711Z/cQ4711Z sk_live_Q4711Zabcdefghijkl"
)
SECRET = "Q4711Z"


def test_planted_secrets_are_in_no_file_page_store_or_export_of_a_real_run(tmp_path: Path) -> None:
    """Also those of environment variables, of a file of settings and of a git remote, none of which is recorded."""
    script = tmp_path / "train.py"
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text('[remote "origin"]\n\turl = https://me:gitQ4711Z@host/x.git\n')
    (tmp_path / "settings.json").write_text('{"api_key": "settingsQ4711Z"}')
    script.write_text(
        "import json, torch\njson.load(open('settings.json'))\n"
        "m = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(8):\n    o.zero_grad(); m(torch.ones(4, 2)).sum().backward(); o.step()\n"
        f"raise RuntimeError({REASON!r})\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "-q", "--no-ceilings", "--out", "runs", str(script)]
    ended = subprocess.run(
        [*command, *ARGUMENTS], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False,
        env={**os.environ, "MY_TOKEN": "environmentQ4711Z", "WANDB_API_KEY": "environmentQ4711Z"},
    )  # fmt: skip
    assert "RuntimeError: 401" in ended.stderr, "the training's own words are its own"
    (run,) = (tmp_path / "runs").iterdir()
    assert RunReader(run).steps.height == 8
    assert "[redacted]" in RunReader(run).meta["reason"]
    page, place = tmp_path / "page.html", tmp_path / "store"
    assert exit_code(["report", str(run), "--html", "--out", str(page)]) == 0
    assert exit_code(["runs", "push", str(run), "--store", str(place)]) == 0
    out = tmp_path / "exports"
    out.mkdir()
    for to in ("perfetto", "chrome", "csv", "parquet", "json"):
        assert exit_code(["export", str(run), "--to", to, "--out", str(out / to)]) == 0
    for written in (run, page, place, out):
        assert found_in(written, SECRET) == []


def test_what_an_earlier_version_wrote_of_a_failure_is_redacted_where_it_is_read_and_pushed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page, place = fabricate_run(tmp_path / "runs"), tmp_path / "page.html", tmp_path / "store"
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**header, "status": "failed", "reason": REASON}))
    line = json.dumps({"t_ns": 1, "kind": "note", "source": "session", "message": REASON})
    with (run / "events.jsonl").open("a") as events:
        events.write(f"{line}\n")
    (run / "summary.json").write_text(json.dumps({"reason": REASON, "steps": 3}))
    before = (run / "events.jsonl").read_text().splitlines()
    assert SECRET not in str(RunReader(run).meta) + str(RunReader(run).events) + str(Listing(run.parent).list_runs())
    assert exit_code(["report", str(run)]) == 0
    assert exit_code(["report", str(run), "--html", "--out", str(page)]) == 0
    assert SECRET not in capsys.readouterr().out
    assert found_in(page, SECRET) == []
    store.push(store.open_store(place), [run])
    assert found_in(place, SECRET) == []
    assert RunReader(run).damaged == []
    assert (run / "events.jsonl").read_text().splitlines()[:-1] == before[:-1], "what has no secret stays"


def test_the_outcome_of_a_point_that_failed_has_no_secret(tmp_path: Path) -> None:
    ended = tmp_path / "ended.json"
    main({"parent": os.getppid(), "task": "tests.test_privacy:fails_with_secrets", "ended": str(ended)})
    content = json.loads(ended.read_text())
    assert content["status"] == "failed"
    assert "401 from https://me:[redacted]@hub.example" in content["reason"]
    assert found_in(ended, SECRET) == []
    study = StudyFolder(tmp_path / "study", "s", {})
    study.store_result("a", {"status": "killed", "reason": REASON})
    assert found_in(study.path, SECRET) == []


def fails_with_secrets(_: object) -> dict[str, object]:
    raise RuntimeError(REASON)


def test_no_file_of_an_experiment_has_the_secrets_of_a_script_s_arguments(tmp_path: Path) -> None:
    request = TuneRequest.from_settings(
        {"target": "train.py", "arguments": ARGUMENTS, "minutes": 60.0, "only": ["channels_last"]}, "tune"
    )
    folder, plain = tmp_path / "tune", FakeTraining({"channels_last": 0.8})
    for _ in range(2):  # the second goes on
        findings, _ = measure_changes(request, plain.open_training, folder, lambda *_: None, apart=True)
        _write_pictures(findings, folder)
    assert {"study.json", "findings.json", "page.html"} <= {path.name for path in folder.iterdir()}
    assert found_in(folder, SECRET) == []
    assert "--password '[redacted]'" in findings.command
    stored = json.loads((folder / "study.json").read_text())
    stored["settings"]["arguments"] = list(ARGUMENTS)  # as an earlier version wrote them
    (folder / "study.json").write_text(json.dumps(stored))
    measure_changes(request, plain.open_training, folder, lambda *_: None, apart=True)


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIQ4711Z\nQ4711Z\n-----END RSA PRIVATE KEY-----", "https://me:p@Q4711Z@host/x",
        "https://Q4711Zabcdefghijklmnop@github.com/me/x.git", "https://hooks.slack.com/services/T0000/B0000/Q4711Zabcdefg",
        "https://discord.com/api/webhooks/1234567890/Q4711Zabcdefghijklmnop",
        "SG.Q4711Zabcdefghijkl.Q4711Zabcdefghijkl",
        "ya29.Q4711Zabcdefghijklmnop", "xapp-1-A0-Q4711Zabcdefghijklmnop",
        "1234567890:AAQ4711Zabcdefghijklmnopqrstuvwxyz",
        "nvapi-Q4711Zabcdefghijklmnop",
        "https://a.example/c?sv=2022&sig=Q4711Zabcdef",
        "Cookie: a=Q4711Z; session=Q4711Z",
        'got {\\"api_key\\": \\"Q4711Zabcdef\\"}', 'password="correct Q4711Z horse"',
        "unrecognized arguments: --password Q4711Z",
        "Command '['curl', '--password', 'Q4711Z']' returned 22", "could not run '--apiKey' 'Q4711Zabc'",
        "postgres://me:a/bQ4711Z@host/db", "--tokens xQ4711Zxx yQ4711Zyy", "['--api-keys', 'xQ4711Zxx', 'yQ4711Zyy']",
        "password|Q4711Zabc", "secret,Q4711Zabc", "api_key->Q4711Zabc", "the password is Q4711Zabc", "--key Q4711Zabc",
    ],
)  # fmt: skip
def test_a_secret_of_a_well_known_form_is_redacted_wherever_it_is_said(text: str) -> None:
    assert SECRET not in privacy.redacted_text(text)
    assert privacy.redacted_text(privacy.redacted_text(text)) == privacy.redacted_text(text)
    assert SECRET not in " ".join(privacy.redact_command_line([text]))


def test_whatever_a_writer_is_told_has_no_secret(tmp_path: Path) -> None:
    address = "https://me:urlQ4711Z@hub.example/x"
    writer = RunWriter.create(tmp_path, "hf_Q4711Zabcdefghijkl")
    writer.update(script=address, cwd=address, workload={"name": "a", "data": {"origin": address}}, api_key=SECRET)
    writer.write_device({"mounted": [address]})
    writer.close("ok")
    assert found_in(tmp_path, SECRET) == []
    assert SECRET not in writer.path.name


def test_options_that_take_several_secrets_or_have_brief_names_are_redacted_and_numbers_and_files_stay() -> None:
    words = "--tokens Q4711Z b --api-keys Q4711Z c --pw Q4711Z --tokens=Q4711Z,Q4711Z x --bearer Q4711Z"
    assert SECRET not in " ".join(privacy.redact_command_line(words.split()))
    plain = "--tokens 10B --pass 2 --stop-tokens a --max-tokens 512 --tokens data/a1.npy --keys image label --steps 5"
    assert privacy.redact_command_line(plain.split()) == plain.split()
    stored = privacy.redacted_texts({"api_keys": [SECRET, SECRET], "tokens": [5, 6], "keys": ["image"]})
    assert stored == {"api_keys": [privacy.REDACTED] * 2, "tokens": [5, 6], "keys": ["image"]}


@pytest.mark.parametrize(
    "line",
    [
        "-u me:Q4711Z", "--user me:Q4711Z", "--user=me:Q4711Z", "-ume:Q4711Z", "--proxy-user me@x.org:Q4711Z:y",
        "-u me -p Q4711Z", "--username me -p Q4711Z x", "--password --Q4711Z", "--password --$Q4711Z",
        "--ssh-key Q4711Z", "--my-license-key Q4711Z", "--ssh-key=Q4711Z",
    ],
)  # fmt: skip
def test_a_secret_beside_a_user_and_behind_a_name_that_says_little_is_redacted(line: str) -> None:
    once = privacy.redact_command_line(line.split())
    assert SECRET not in " ".join(once)
    assert privacy.redact_command_line(once) == once


@pytest.mark.parametrize(
    "name",
    ["accessToken", "authToken", "gitHubToken", "db_pass", "db-pass", "smtp_pass", "DB_PASS", "dbPass", "MY_APP_PASS"],
)
def test_a_secret_of_a_name_in_camel_case_or_of_a_short_word_for_password_is_redacted(name: str) -> None:
    for line in (f"--{name} {SECRET}", f"--{name}={SECRET}", f"{name}={SECRET}"):
        if name != "MY_APP_PASS" or line.startswith(name):
            assert SECRET not in " ".join(privacy.redact_command_line(line.split()))
    assert privacy.redacted_texts({name: SECRET}) == {name: privacy.REDACTED}
    if name != "MY_APP_PASS":  # in a text, words like any other
        for text in (f'sent {{"{name}": "{SECRET}"}}', f"with {name}={SECRET}, refused", f"ran x --{name} {SECRET}"):
            assert SECRET not in privacy.redacted_text(text)
            assert privacy.contains_secret(text.encode())


def test_a_password_of_digits_is_redacted_in_a_text() -> None:
    assert privacy.redacted_text("cannot log in: password=20260131 user=x").split("=")[1] == "[redacted] user"
    assert privacy.redacted_text("pwd = '20260131'") == "pwd = '[redacted]'"


@pytest.mark.parametrize(
    "line",
    [
        "--maxTokens 512", "--maxNewTokens=512", "--padToken <pad>", "--pass 3", "NUM_PASS=3",
        "--forward-pass fast --low-pass=butter lowPass=butter", "keyboard=us bypass=abc1234 compass=abc1234",
    ],
)  # fmt: skip
def test_a_name_in_camel_case_or_with_pass_that_is_no_secret_stays(line: str) -> None:
    assert privacy.redact_command_line(line.split()) == line.split()
    said = {"reason": f"{line}: InvalidToken: Signature did not match; the second pass: forward"}
    assert privacy.clean_and_redact(said) == said


@pytest.mark.parametrize(
    "line", ["--pin 4711", "--pin=4711", "--card-pin 47110815", "--otp 471108", "--pincode 4711", "--pin_code=4711"]
)
def test_a_number_that_is_secret_is_redacted(line: str) -> None:
    assert "4711" not in " ".join(privacy.redact_command_line(line.split()))
    assert privacy.redacted_texts({"pin": "4711", "user": f"me:{SECRET}"}) == {
        "pin": privacy.REDACTED,
        "user": f"me:{privacy.REDACTED}",
    }


@pytest.mark.parametrize(
    "line",
    [
        "--pin-memory --pin 1 --pin 0,1 --pin 0-3 --pin True --pin x --pinned 4711 --spin 4711 --topin 4711",
        "-p 8080 -p resnet50 -p fp16 -p data/x -p Some-Pattern7", "-u 3 -p 5", "-u me -p 8080", "-u me -p fp16",
        "-u me -p a/b.txt", "-u me -p --verbose", "--user me", "--user 1000:1000", "-u http://x.org:80/a", "-u 1:5",
        "--update a:b", "--users a:b", "--password --steps 5", "--token --dry-run x", "--ssh-key ~/.ssh/id_rsa",
        "--sort-key name", "-u", "--user", "--input me:x", "--password -- x",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_option_with_a_secret_stays(line: str) -> None:
    assert privacy.redact_command_line(line.split()) == line.split()


@pytest.mark.parametrize(
    "text",
    [
        "curl -u me:Q4711Z https://x", "['curl', '-u', 'me:Q4711Z']", "ran sshpass -p Q4711Z ssh x",
        "sshpass -pQ4711Z ssh x", "['sshpass', '-p', 'Q4711Z']", "curl --user me:Q4711Z",
    ],
)  # fmt: skip
def test_a_secret_of_a_command_is_redacted_in_the_words_of_an_error(text: str) -> None:
    assert SECRET not in privacy.redacted_text(text)
    assert privacy.redacted_text(privacy.redacted_text(text)) == privacy.redacted_text(text)
    assert privacy.contains_secret(b"x " * 9000 + text.encode() + b" x" * 9000)


def test_a_run_that_another_tool_wrote_with_secrets_is_read_and_pushed_without(tmp_path: Path) -> None:
    run, place, token = fabricate_run(tmp_path / "runs"), tmp_path / "store", "ghp_Q4711Zabcdefghijklmnop"
    header = json.loads((run / "run.json").read_text())
    header["workload"] = {"name": token, "optimizer": token, "precision": token}
    (run / "run.json").write_text(json.dumps({**header, "versions": {token: token}}))
    rows = [["forward", "0", "aten::mm", [0]]]
    (run / "sources.json").write_text(json.dumps({"step": 1, "sources": [f"/x/{token}.py:8"], "rows": rows}))
    assert SECRET not in str(RunReader(run).meta) + str(RunReader(run).sources.to_dicts())
    assert RunReader(run).sources["name"].to_list() == ["aten::mm"]
    store.push(store.open_store(place), [run])
    assert found_in(place, SECRET) == []
    assert not RunReader(run).damaged


def test_a_name_of_a_field_that_is_a_token_of_a_well_known_form_is_redacted(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "a")
    writer.update(versions={"ghp_Q4711Zabcdefghijklmnop": "1"})
    fields: dict[str, Any] = {"ghp_Q4711Zabcdefghijklmnop": {"hf_Q4711Zabcdefghijkl": 1}}
    writer.append_event("note", "x", **fields)
    writer.close("ok")
    assert found_in(tmp_path, SECRET) == []


@pytest.mark.parametrize("name", ["trace.json", "notes", "train.py", "other/run.json"])
def test_a_file_of_any_size_and_name_that_says_a_secret_is_not_pushed(tmp_path: Path, name: str) -> None:
    run, place = fabricate_run(tmp_path / "runs"), tmp_path / "store"
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(b"x" * (9 << 20) + b' "password": "Q4711Zabc"\n' + b"x" * (1 << 20))
    (run / "plain.txt").write_text("nothing")
    store.push(store.open_store(place), [run])
    assert found_in(place, SECRET) == []
    assert (run / name).exists()


def _zipped(text: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("settings.json", text)
    return written.getvalue()


def _tarred(text: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        info = tarfile.TarInfo("settings.json")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return written.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "notes.zip": _zipped,
    "model.pt": _zipped,
    "arrays.npz": _zipped,
    "all.tar.gz": _tarred,
    "two.json.gz": lambda text: gzip.compress(b"nothing") + gzip.compress(text),
    "cut.json.gz": lambda text: gzip.compress(b"nothing" + text[:0])[:-4],
    "twice.json.gz": lambda text: gzip.compress(gzip.compress(text)),
    "bomb.json.gz": lambda text: gzip.compress(b" " * (65 << 20) + text),
    "notes.bz2": bz2.compress,
    "notes.xz": lzma.compress,
    "data.parquet": lambda text: b"PAR1\0\xff" + text[::-1],
    "other/data.parquet": lambda text: b"PAR1\0\xff" + text[::-1],
    "steps.zip": _zipped,
    "samples/notes.zip": _zipped,
    "ranks/1/notes.zip": _zipped,
    "wide.txt": lambda text: text.decode().encode("utf-16"),
}


@pytest.mark.parametrize("name", PACKED)
def test_what_nobody_can_look_into_is_not_pushed_and_the_rest_is(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = fabricate_run(tmp_path / "runs"), tmp_path / "store"
    RunWriter.create_rank(run, 1).close("ok")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(PACKED[name](b'{"password": "Q4711Zabc"}'))
    (run / "report.html").write_text("<p>nothing</p>")
    (run / "trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    (run / "trace.pftrace.gz").write_bytes(gzip.compress(b"\0\xff\0"))
    for _ in range(2):
        assert exit_code(["runs", "push", str(run), "--store", str(place)]) == 0
        assert f"not pushed, since it could hold private names: {name}" in capsys.readouterr().err
    there = {path.name for path in place.rglob("*")}
    assert Path(name).name not in there
    assert there >= {"report.html", "trace.json.gz", "trace.pftrace.gz", "run.json"}
    assert (run / name).exists()
    (pulled,) = store.pull(store.open_store(place), [run.name], tmp_path / "pulled")
    assert RunReader(pulled).ops.equals(RunReader(run).ops)
    assert RunReader(pulled).part_folders


def test_a_packed_file_that_says_a_secret_is_read_and_nothing_beside_the_run_is_pushed(tmp_path: Path) -> None:
    run, place = fabricate_run(tmp_path / "runs"), tmp_path / "store"
    (run / "trace.pftrace.gz").write_bytes(gzip.compress(b"\0" * (9 << 20) + b'"password": "Q4711Zabc"'))
    (run / "report.html").write_text("<p>nothing</p>")
    (pushed,) = store.push(store.open_store(place), [run])
    assert pushed.left == ("report.html", "trace.pftrace.gz")
    assert not [*place.rglob("*.html"), *place.rglob("*.gz")]


@pytest.mark.parametrize("text", [*ARGUMENTS, REASON])
def test_a_secret_is_found_in_a_file_wherever_it_lies(text: str) -> None:
    says = privacy.redacted_text(text) != text
    assert privacy.contains_secret(b"a b\n" * 30_000 + text.encode() + b"\n" + b"a b\n" * 30_000) == says


@pytest.mark.parametrize("said", ["--password</span> hunter4711Z", "see https://me:Q4711Z@host/x"])
def test_a_page_that_says_a_secret_stays_where_it_is_when_its_run_is_pushed(tmp_path: Path, said: str) -> None:
    run, place = fabricate_run(tmp_path / "runs"), tmp_path / "store"
    (run / "report.html").write_text("<p>nothing</p>")
    store.push(store.open_store(place), [run])
    assert [path.name for path in place.rglob("report.html")] == ["report.html"]
    header = json.loads((run / "run.json").read_text())
    if "hunter" in said:  # the page is of an earlier version, as is the command line
        (run / "run.json").write_text(json.dumps({**header, "argv": ["train.py", "--password", "hunter4711Z"]}))
    (run / "report.html").write_text(f"<p><span>{said}")
    for _ in range(2):  # the second finds the command line redacted
        store.push(store.open_store(place), [run])
        store.collect(store.open_store(place), 0)
        assert found_in(place, "4711Z") == []
    assert "4711Z" in (run / "report.html").read_text()
    assert not RunReader(run).damaged


@pytest.mark.parametrize(
    "text",
    [
        "the token = 100000 of 200000", "unexpected keyword argument 'token'", "max_tokens=512", "key: value",
        "--max-tokens 512 --tokens 10B of 20", "https://host:443/@scope/pkg", "wrong password, try again",
        "token, step12345", "http://localhost:5000/users/me1@x", "tokens: 1234567 seen",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 9x1)", "task-sk-1: step 5",
    ],
)  # fmt: skip
def test_what_is_no_secret_of_a_reason_stays_as_it_is(text: str) -> None:
    assert privacy.clean_and_redact({"reason": text}) == {"reason": text}
