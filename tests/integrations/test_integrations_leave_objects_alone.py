"""Whatever a trainer's objects go through, in whatever state of a run, they are and behave as without Stepscope."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.integrations.trainings import BATCH, library, loader
from torch import nn
from torch.ao import quantization
from torch.func import functional_call, vmap
from torch.optim.swa_utils import AveragedModel

from stepscope.integrations import accelerate, huggingface, keras, lightning
from stepscope.integrations._training import TrainingRun
from stepscope.record.profile import Scope

pytestmark = pytest.mark.filterwarnings("ignore")

PROFILED, BATCHES = 2, 5  # the step in which, and after which, everything is tried
TRIED = ("torch.save", "pickle", "deepcopy", "jit.script", "fx", "compile", "functional_call", "vmap", "quantise")
Weights = dict[str, torch.Tensor]


@dataclass
class Witness:
    """Tries everything on the objects of a training, and keeps what came of it."""

    folder: Path
    ours: Any = None  # the callback, None for a bare training
    looks: bool = True
    seen: dict[str, dict[str, str]] = field(default_factory=dict)
    recording: dict[str, bool] = field(default_factory=dict)
    ways: dict[str, Callable[[], Any]] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)

    def look(self, state: str) -> None:
        """Try everything in this state of the run."""
        if not self.looks:
            return
        self.recording[state] = _records(self.ours)
        described = {name: _described(thing) for name, thing in self.objects.items()}
        tried = {name: _outcome(way) for name, way in {**self._common(), **self.ways}.items()}
        self.seen[state] = {**tried, **{f"vars({name})": text for name, text in described.items()}}
        if self.ours is not None:
            _is_idle(pickle.loads(pickle.dumps(self.ours)), self.ours)
            _is_idle(copy.deepcopy(self.ours), self.ours)

    def _common(self) -> dict[str, Callable[[], Any]]:
        model = self.objects["model"]
        net, inputs = getattr(model, "net", nn.Linear(8, 3)), torch.ones(2, 8)
        weights = {name: torch.stack([weight, weight]) for name, weight in net.named_parameters()}
        return {
            "torch.save": lambda: torch.save(model, io.BytesIO()),
            "pickle": lambda: pickle.loads(pickle.dumps(model)),
            "deepcopy": lambda: copy.deepcopy(model),
            "AveragedModel": lambda: AveragedModel(model),
            "jit.script": lambda: torch.jit.script(net),
            "jit.trace": lambda: torch.jit.trace(net, inputs),  # type: ignore[no-untyped-call]
            "fx": lambda: torch.fx.symbolic_trace(net),
            "export": lambda: torch.export.export(net, (inputs,)),
            "compile": lambda: torch.compile(net, backend="eager")(inputs),
            "functional_call": lambda: functional_call(net, dict(net.named_parameters()), (inputs,)),
            "vmap": lambda: vmap(functional_call, (None, 0, None))(net, weights, (inputs,)),
            "DataParallel": lambda: nn.DataParallel(net)(inputs),
            "quantise": lambda: _quantised(net, inputs),
            "to another process": lambda: ForkingPickler.dumps(net.state_dict()),
        }


def _quantised(net: nn.Module, inputs: torch.Tensor) -> Any:
    ready = copy.deepcopy(net).eval()
    ready.qconfig = quantization.default_qconfig  # type: ignore[assignment] # whose observers are few operators
    quantization.prepare(ready, inplace=True)  # type: ignore[no-untyped-call]
    ready(inputs)
    return quantization.convert(ready)  # type: ignore[no-untyped-call]


def _records(ours: Any) -> bool:
    """Whether a profiling window is open: of this callback."""
    if ours is None or not ours.recording.open:
        return False
    return bool(torch._C._autograd._profiler_enabled())


def _is_idle(other: Any, ours: Any) -> None:
    run = other if isinstance(other, TrainingRun) else other.recording
    of_ours = ours if isinstance(ours, TrainingRun) else ours.recording
    assert type(other) is type(ours)
    assert (run.open, run.path, run._options) == (False, None, of_ours._options)


def _described(thing: Any) -> str:
    """Names, types and sizes of all attributes of an object, of its parts where it is a module, and of its class."""
    parts = dict(thing.named_modules()) if isinstance(thing, nn.Module) else {"": thing}
    texts = [f"{name}.{key}: {_kind(value)}" for name, part in parts.items() for key, value in vars(part).items()]
    return "\n".join(sorted(texts) + sorted(vars(type(thing))))


def _kind(value: Any) -> str:
    size = len(value) if type(value).__name__ in ("dict", "OrderedDict") else ""
    named = getattr(value, "__qualname__", "") if callable(value) else ""
    return f"{type(value).__module__}.{type(value).__qualname__} {size} {named}"


def _outcome(way: Callable[[], Any]) -> str:
    random = torch.get_rng_state()
    try:
        way()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.set_rng_state(random)
    return "fine"


class Classifier(nn.Module):
    """With a loss in what it returns, as the Trainer of Hugging Face wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _weights(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _with_lightning(witness: Witness) -> Weights:
    library_ = library("lightning.pytorch")
    torch.manual_seed(0)
    model = importlib.import_module("tests.integrations.lightning_model").Classifier()

    class Inside(library_.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
            if index == PROFILED:
                witness.look("inside")

    class Around(library_.Callback):  # type: ignore[misc, name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            witness.objects["optimizer"] = trainer.optimizers[0]
            witness.objects["strategy"] = trainer.strategy
            witness.look("begun")

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
            if index == PROFILED:
                witness.look("between")

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    callbacks = [Inside(), *([witness.ours] if witness.ours else []), Around()]
    trainer = library_.Trainer(accelerator="cpu", enable_model_summary=False, callbacks=callbacks, **quiet)
    witness.objects |= {"model": model, "trainer": trainer}
    witness.ways["checkpoint"] = lambda: trainer.save_checkpoint(witness.folder / "now.ckpt")
    data = loader(BATCHES)
    witness.look("made")
    trainer.fit(model, data)
    witness.look("after")
    return _weights(model)


def _with_huggingface(witness: Witness) -> Weights:
    transformers = library("transformers")
    library("accelerate")

    class Inside(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == PROFILED:
                witness.look("inside")

    class Around(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **told: Any) -> None:
            witness.objects["optimizer"] = told["optimizer"]
            witness.look("begun")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == PROFILED + 1:
                witness.look("between")

    torch.manual_seed(0)
    rows = [{"x": torch.randn(8), "labels": torch.tensor(i % 3)} for i in range(BATCH * BATCHES)]
    quiet = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(
        str(witness.folder),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        dataloader_pin_memory=False,
        **quiet,
    )
    callbacks = [Inside(), *([witness.ours] if witness.ours else []), Around()]
    trainer = transformers.Trainer(Classifier(), arguments, train_dataset=rows, callbacks=callbacks)
    witness.objects |= {"model": trainer.model, "trainer": trainer}
    witness.ways["save_model"] = lambda: trainer.save_model(str(witness.folder / "model"))
    witness.ways["checkpoint"] = lambda: trainer._save_checkpoint(trainer.model, None)
    witness.look("made")
    trainer.train()
    witness.look("after")
    return _weights(trainer.model)


def _with_keras(witness: Witness) -> Weights:
    library_ = library("keras")
    library_.utils.clear_session()  # names are counted
    library_.utils.set_random_seed(0)
    layers = [library_.Input((8,)), library_.layers.Dense(16, activation="relu"), library_.layers.Dense(3)]
    model = library_.Sequential(layers)
    loss = library_.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)

    class Inside(library_.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == PROFILED:
                witness.look("inside")

    class Around(library_.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, logs: Any = None) -> None:
            witness.look("begun")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == PROFILED:
                witness.look("between")

    witness.objects |= {"model": model, "optimizer": model.optimizer}
    witness.ways["save"] = lambda: model.save(witness.folder / "model.keras")
    witness.ways["clone"] = lambda: library_.models.clone_model(model)
    inputs = torch.rand(BATCH * BATCHES, 8).numpy()
    labels = (inputs.sum(1) * 7 % 3).astype("int64")
    callbacks = [Inside(), *([witness.ours] if witness.ours else []), Around()]
    witness.look("made")
    model.fit(inputs, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    witness.look("after")
    return _weights(model)


def _with_accelerate(witness: Witness) -> Weights:
    _fresh_state()
    torch.manual_seed(0)
    kind = library("accelerate").Accelerator
    accelerator = kind(cpu=True, log_with=witness.ours)
    model = nn.Sequential()
    model.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model, optimizer, batches = accelerator.prepare(model, torch.optim.Adam(model.parameters()), loader(BATCHES))
    witness.objects |= {"model": model, "optimizer": optimizer, "torch": optimizer.optimizer, "data": batches}
    witness.ways["save_model"] = lambda: accelerator.save_model(model, str(witness.folder / "model"))
    witness.ways["save_state"] = lambda: accelerator.save_state(str(witness.folder / "state"))
    witness.look("made")
    accelerator.init_trackers("project", config={"lr": 0.1})
    witness.look("begun")
    for step, (inputs, labels) in enumerate(batches):
        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
        if step == PROFILED:
            witness.look("inside")
        optimizer.step()
        optimizer.zero_grad()
        if step == PROFILED:
            witness.look("between")
    accelerator.end_training()
    witness.look("after")
    return _weights(model)


@pytest.fixture(autouse=True)
def _fresh_states() -> Iterator[None]:
    """Accelerate keeps one state a process."""
    yield
    _fresh_state()


def _fresh_state() -> None:
    state = library("accelerate").state
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


TRAININGS: dict[str, tuple[Callable[[Witness], Weights], Callable[..., Any]]] = {
    "lightning": (_with_lightning, lambda **options: lightning.StepscopeCallback(**options)),
    "huggingface": (_with_huggingface, lambda **options: huggingface.StepscopeCallback(**options)),
    "keras": (_with_keras, lambda **options: keras.StepscopeCallback(**options)),
    "accelerate": (_with_accelerate, lambda **options: accelerate.StepscopeTracker(**options)),
}
_MODULES = {
    "lightning": "lightning.pytorch",
    "huggingface": "transformers",
    "keras": "keras",
    "accelerate": "accelerate",
}
_BARE: dict[str, tuple[Witness, Weights]] = {}


def _bare(name: str, folder: Path) -> tuple[Witness, Weights]:
    """The same training without Stepscope, once."""
    if name not in _BARE:
        library(_MODULES[name])
        witness = Witness(folder)
        _BARE[name] = witness, TRAININGS[name][0](witness)
    return _BARE[name]


def _recorded(name: str, folder: Path, *, looks: bool = True, **options: Any) -> tuple[Witness, Weights]:
    witness = Witness(folder, _callback_of(name, folder, **options), looks)
    return witness, TRAININGS[name][0](witness)


def _callback_of(name: str, folder: Path, **options: Any) -> Any:
    library(_MODULES[name])
    told = {"out": folder / "runs", "record": "every:2", "characterise": False, "period": "50ms", **options}
    return TRAININGS[name][1](**told)


def _routed(name: str) -> list[Any]:
    """What is replaced in a library while a training is recorded."""
    library_, plain = library(_MODULES[name]), [vars(nn.Module)["_compiled_call_impl"]]
    if name == "lightning":
        plain.append(vars(library_.strategies.Strategy)["training_step"])
    elif name == "huggingface":
        plain += [vars(library_.Trainer).get(way) for way in ("training_step", "_run_epoch", "_finalize_training")]
    elif name == "keras":
        plain.append(library("keras.src.utils.traceback_utils")._process_traceback_frames)
        plain.append(library_.optimizers.Optimizer.apply)
    return plain


def _equal(some: Weights, others: Weights) -> bool:
    return some.keys() == others.keys() and all(torch.equal(tensor, others[name]) for name, tensor in some.items())


@pytest.mark.parametrize("name", TRAININGS)
def test_in_every_state_of_a_run_all_objects_are_and_behave_as_bare(name: str, tmp_path: Path) -> None:
    bare, weights = _bare(name, tmp_path)
    routed = _routed(name)
    recorded, of_recorded = _recorded(name, tmp_path)
    assert _routed(name) == routed
    begun = name != "accelerate"  # whose first step begins with the first call of a model
    assert recorded.recording == {"made": False, "begun": begun, "inside": True, "between": False, "after": False}
    for state, seen in bare.seen.items():
        assert recorded.seen[state] == seen
    assert {bare.seen["inside"][way] for way in TRIED} == {"fine"}
    assert _equal(of_recorded, weights)
    assert recorded.ours.recording.run.status == "ok"
    assert len(recorded.ours.recording.run.steps) == BATCHES


FAULTS = {
    "lightning": ("begin", "observe_calls", "inside", "begin_batch", "batch", "step", "close"),
    "huggingface": ("begin", "observe_calls", "loss", "step", "close"),
    "keras": ("begin", "observe_calls", "observe_checkpoints", "resume", "batch", "step", "close"),
    "accelerate": ("begin", "update", "close"),
}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in faults])
def test_whatever_fails_of_ours_the_training_ends_as_bare(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, weights = _bare(name, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(TrainingRun, fault, raises := Mock(side_effect=AttributeError("a fault")))
        recorded, of_recorded = _recorded(name, tmp_path, looks=False, record="none")
    recorded.ours.recording.close("interrupted")
    assert raises.called
    assert _equal(of_recorded, weights)


def test_a_fault_below_the_callback_ends_nothing_but_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, weights = _bare("huggingface", tmp_path)
    monkeypatch.setattr(Scope, "step", Mock(side_effect=ZeroDivisionError))
    recorded, of_recorded = _recorded("huggingface", tmp_path, looks=False)
    run = recorded.ours.recording.run
    assert _equal(of_recorded, weights)
    assert run.status == "interrupted"
    assert "recording-lost" in {event["kind"] for event in run.events}


def test_a_copy_of_a_callback_that_records_makes_a_run_of_its_own(tmp_path: Path) -> None:
    callback = _callback_of("huggingface", tmp_path)
    callback.recording.begin(nn.Linear(2, 2), trainer={"library": "test"})
    other = pickle.loads(pickle.dumps(callback))
    other.recording.begin(nn.Linear(2, 2), trainer={"library": "test"})
    paths = {callback.recording.path, other.recording.path}
    other.recording.end()
    assert len(paths) == 2
    assert callback.recording.open
    callback.recording.end()


def test_a_copy_keeps_a_simulated_board_but_not_what_drives_it(tmp_path: Path) -> None:
    driven = type("Simulation", (), {"board": "tx2", "root": tmp_path, "process": property(lambda self: 1 / 0)})()
    copied = pickle.loads(pickle.dumps(TrainingRun(simulation=driven)))
    assert (copied._options["simulation"].board, copied._options["simulation"].root) == ("tx2", tmp_path)
