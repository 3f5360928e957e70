"""Changes of what the process computes with: allocator, compiled code, instructions of oneDNN, threads and cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets

# The allocator of C, and on CUDA torch's own: what is freed is kept, or given back in larger pieces.

# Any of these ends glibc's own adaptation of its mmap threshold. Without the first one it would stay at 128 KiB, and
# each larger tensor would be mapped and faulted in anew: convolutional networks were 2.1 to 2.4x slower.
_KEEP = {
    "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TOP_PAD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "268435456",
}  # fmt: skip


def _allocation_changes(facts: Facts) -> Iterator[Change]:
    """Yield glibc's tunables, tcmalloc and jemalloc where they are installed, and expandable segments of CUDA."""
    now = facts["environment"]
    glibc = "" if facts["glibc"] else "the C library is not glibc"
    if not glibc and facts["tcmalloc_in_use"]:
        glibc = "the training runs on tcmalloc"
    if not glibc and any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in now):
        glibc = "the environment tunes the allocator already"
    title = "glibc keeps up to 256 MB of freed memory, of tensors up to 32 MB"
    yield _make_environment_change("malloc-keep", title, _KEEP, glibc)
    library = facts["tcmalloc"]
    reason = "the training runs on tcmalloc" if facts["tcmalloc_in_use"] else "" if library else "it is not installed"
    yield _make_environment_change(
        "tcmalloc", "tcmalloc instead of glibc's malloc", _preload_variable(library, now), reason
    )
    library = facts["jemalloc"]
    in_use = "jemalloc" in str(now.get("LD_PRELOAD", ""))
    reason = "the training runs on jemalloc" if in_use else "" if library else "it is not installed"
    yield _make_environment_change(
        "jemalloc", "jemalloc instead of glibc's malloc", _preload_variable(library, now), reason
    )
    cuda = "" if facts["device"] == "cuda" else "on a CUDA device only"
    yield _make_environment_change(
        "expandable-segments", "expandable segments of CUDA memory",
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, cuda, "CUDA allocator",
    )  # fmt: skip


def _preload_variable(library: str | None, now: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that loads a library before those that the user preloads already."""
    return {"LD_PRELOAD": ":".join(filter(None, (library, now.get("LD_PRELOAD"))))}


def _make_environment_change(
    name: str, title: str, environment: Mapping[str, str], refused: str, group: str = "allocator"
) -> Change:  # fmt: skip
    risk = "" if group != "allocator" else "the process keeps more memory"
    code = shell(dict(environment))
    return Change(name, title, group, code, risk, at_start=True, environment=environment, refused=refused)


# torch.compile: fewer, larger kernels after a compilation that has to pay back.


_MERGED = "merged kernels: the last digits of the loss"


def _compiling_changes(facts: Facts) -> Iterator[Change]:
    """Yield torch.compile; where it is named, also of each repeated block alone, and with kernels that are measured."""
    refused = "" if facts["compiler"] or facts["device"] == "cuda" else "there is no C++ compiler here"
    if facts["compiled"]:
        refused = "the model is compiled already"
    elif not facts["calls"]:
        refused = "no module of the training is called"
    blocks = refused or ("" if facts["blocks"] else "the model repeats no block of layers")
    choices: list[tuple[str, str, str, str, Switch]] = [
        ("compile", "torch.compile", "model.compile()", refused, _compile_switch(_models)),
        ("compile=blocks", "torch.compile of each repeated block: it compiles in less time",
         "for block in blocks: block.compile()", blocks, _compile_switch(_repeated_modules)),
        ("compile=max-autotune", "torch.compile with kernels that are chosen by measuring them",
         'model.compile(mode="max-autotune")', refused, _compile_switch(_models, mode="max-autotune")),
    ]  # fmt: skip
    for name, title, code, reason, switch in choices:
        yield Change(
            name, title, "compile", code, _MERGED, switch, at_start=True, refused=reason, by_name=name != "compile"
        )


def _models(targets: Targets) -> list[Any]:
    return list(targets.called)


def _repeated_modules(targets: Targets) -> list[Any]:
    from stepscope.footprint.transforms import repeated_blocks

    return [model.get_submodule(name) for model in targets.called for name in repeated_blocks(model)]


def _compile_switch(parts: Callable[[Targets], list[Any]], **options: str) -> Switch:
    """Return a switch that compiles modules in place from their next call on; undone, their calls are plain again."""

    @contextlib.contextmanager
    def switch(targets: Targets) -> Iterator[None]:
        modules = parts(targets)
        before = [module._compiled_call_impl for module in modules]
        for module in modules:
            module.compile(**options)
        try:
            yield
        finally:
            for module, plain in zip(modules, before, strict=True):
                module._compiled_call_impl = plain

    return switch


# The instructions that oneDNN computes with: narrower ones clock higher on some processors.


def _instruction_changes(facts: Facts) -> Iterator[Change]:
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    refused = "" if str(facts["cpu_capability"]).startswith("AVX512") else "the processor has no AVX-512"
    if facts["device"] != "cpu":
        refused = "on the CPU only"
    elif facts["environment"].get("ONEDNN_MAX_CPU_ISA"):
        refused = "the environment caps them already"
    yield Change(
        "isa=avx2", "oneDNN with AVX2 instead of AVX-512", "instructions", shell(environment),
        "other kernels: the last digits of the loss", at_start=True, environment=environment, refused=refused,
    )  # fmt: skip


# Threads that torch computes with, and the cores that they run on.

_RISK = "sums are made in another order: the last digits of the loss"


def _thread_changes(facts: Facts) -> Iterator[Change]:
    """Yield fewer and more threads, a single inter-op thread, bound cores, and of cores of two sizes the large ones."""
    cores, physical, now = int(facts["cores"]), int(facts["physical_cores"]), int(facts["threads"])
    for count in sorted({1, 2, 4, max(1, cores // 2), physical, cores}):
        if count <= cores and count != now:
            yield Change(
                f"threads={count}", f"{count} thread{'s' * (count != 1)} instead of {now}", "threads",
                f"torch.set_num_threads({count})", _RISK, _threads_switch(count),
            )  # fmt: skip
    alone = "a training with one thread" if now == 1 else "one core" if cores == 1 else ""
    bound = alone or ("the threads are bound already" if facts["environment"].get("OMP_PROC_BIND") else "")
    environment = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    yield Change(
        "bind", "each thread bound to a core", "pinning", shell(environment), at_start=True, environment=environment,
        refused=bound,
    )  # fmt: skip
    inter = int(facts["interop_threads"])
    yield Change(
        "interop=1", f"1 inter-op thread instead of {inter}", "inter-op", "torch.set_num_interop_threads(1)",
        "", _interop_threads(1), at_start=True, refused="there is one already" if inter == 1 else "",
        by_name=True,  # of use only where a model forks tasks of its own (torch.jit.fork)
    )  # fmt: skip
    large = [int(core) for core in facts["large_cores"]]
    listed = ",".join(map(str, large))
    yield Change(
        "large-cores", f"only the large cores ({listed or 'none'})", "pinning", f"taskset -c {listed} python train.py",
        at_start=True, switch=_pin_to_cores(large), refused="" if large else "the cores do not differ",
    )  # fmt: skip


def shell(environment: dict[str, str]) -> str:
    """Return the words that a shell sets an environment with, before a command."""
    return " ".join(f"{name}={value}" for name, value in environment.items()) + " python train.py"


def _threads_switch(count: int) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        from stepscope.record.train import torch_threads

        with torch_threads(count):
            yield

    return switch


def _interop_threads(count: int) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        """Set the threads for the life of the process, since torch starts them once."""
        import torch

        torch.set_num_interop_threads(count)
        yield

    return switch


def _pin_to_cores(cores: list[int]) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    return switch


def changes(facts: Facts) -> Iterator[Change]:
    """Yield the changes of allocator, compilation, instructions and threads."""
    yield from _allocation_changes(facts)
    yield from _compiling_changes(facts)
    yield from _instruction_changes(facts)
    yield from _thread_changes(facts)
