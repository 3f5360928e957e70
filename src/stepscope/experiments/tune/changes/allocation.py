"""The allocator of C, and on CUDA torch's own: what is freed is kept, or given back in larger pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepscope.experiments.tune.changes import Change, Facts
from stepscope.experiments.tune.changes.threads import shell

_KEEP = {"MALLOC_TOP_PAD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "268435456"}
_KEEP_LARGE = {"MALLOC_MMAP_THRESHOLD_": "33554432", **_KEEP}


def changes(facts: Facts) -> Iterator[Change]:
    """Yield glibc's tunables, tcmalloc and jemalloc where they are installed, and expandable segments of CUDA."""
    now = facts["environment"]
    glibc = "" if facts["glibc"] else "the C library is not glibc"
    if not glibc and facts["tcmalloc_in_use"]:
        glibc = "the training runs on tcmalloc"
    if not glibc and any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in now):
        glibc = "the environment tunes the allocator already"
    yield _change("malloc-keep", "glibc keeps up to 256 MB of freed memory", _KEEP, glibc)
    title = "glibc keeps freed memory, of large tensors as well"
    yield _change("malloc-keep-large", title, _KEEP_LARGE, glibc)
    library = facts["tcmalloc"]
    reason = "the training runs on tcmalloc" if facts["tcmalloc_in_use"] else "" if library else "it is not installed"
    yield _change("tcmalloc", "tcmalloc instead of glibc's malloc", {"LD_PRELOAD": str(library or "")}, reason)
    library = facts["jemalloc"]
    in_use = "jemalloc" in str(now.get("LD_PRELOAD", ""))
    reason = "the training runs on jemalloc" if in_use else "" if library else "it is not installed"
    yield _change("jemalloc", "jemalloc instead of glibc's malloc", {"LD_PRELOAD": str(library or "")}, reason)
    cuda = "" if facts["device"] == "cuda" else "of a CUDA device alone"
    yield _change(
        "expandable-segments", "segments of CUDA memory that grow",
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, cuda, "CUDA allocator",
    )  # fmt: skip


def _change(
    name: str, title: str, environment: Mapping[str, str], refused: str, group: str = "allocator"
) -> Change:  # fmt: skip
    risk = "" if group != "allocator" else "the process keeps more memory"
    code = shell(dict(environment))
    return Change(name, title, group, code, risk, at_start=True, environment=environment, refused=refused)
