"""Counts of the workloads as of when these files were written: to count all anew takes half a minute.

`counted.json` states the digest of the files that it was counted from. Where a file has changed since, it is not used.
`python -m benchmarks.count_workloads` writes it, and a test holds every row against a count of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("counted.json")


def digest_of(files: Iterable[Path]) -> str:
    """Of the contents, in this order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def files_digest() -> str:
    """Of every file that says what a workload is."""
    return digest_of(sorted(FILE.parent.rglob("*.py")))


@cache
def shipped() -> dict[str, Any]:
    """`torch` that counted, digests `workloads` and `counting`, and `rows` by name; empty where the files changed."""
    try:
        content = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = isinstance(content, dict) and content.get("workloads") == files_digest()
    return dict(content) if known else {}
