"""A /proc with a device tree in it: links to everything in the real one, kept fresh as processes come and go."""

from __future__ import annotations

import contextlib
from pathlib import Path

REFRESH_NS = 500_000_000


class ProcFolder:
    """root/proc of a board that is known by its device tree."""

    def __init__(self, root: Path, model: str, compatible: tuple[str, ...]) -> None:
        self._folder = root / "proc"
        self._linked: set[str] = set()
        tree = self._folder / "device-tree"
        tree.mkdir(parents=True)
        (tree / "model").write_bytes(model.encode() + b"\0")
        (tree / "compatible").write_bytes(b"".join(name.encode() + b"\0" for name in compatible))
        self.refresh()

    def refresh(self) -> None:
        """Link what is new, and drop the links of processes that ended."""
        real = {path.name for path in Path("/proc").iterdir()} - {"device-tree"}
        for name in real - self._linked:
            (self._folder / name).symlink_to(Path("/proc") / name)
        for name in self._linked - real:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()
        self._linked = real
