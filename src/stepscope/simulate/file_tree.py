"""A tree of files that look like a board's: static ones, live ones that are rewritten in place, and a /proc."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from pathlib import Path

LIVE_BYTES = 24  # room for any number of a sysfs file


class UpdateLosses:
    """Updates of files that do not arrive (the value before stays), and those that leave a file empty; shares."""

    def __init__(self, repeated: float = 0.0, unread: float = 0.0, seed: int = 0) -> None:
        self._repeated, self._unread, self._random = repeated, unread, random.Random(seed)

    def shown_content(self, content: bytes) -> bytes | None:
        """Return what the file shows after this update; None where it does not arrive."""
        if not self._repeated and not self._unread:
            return content
        drawn = self._random.random()
        return None if drawn < self._repeated else b"" if drawn < self._repeated + self._unread else content


class LiveFile:
    """A file whose content changes: one pwrite of fixed width, the rest newlines, so no reader sees half a number."""

    def __init__(self, path: Path, width: int = LIVE_BYTES, losses: UpdateLosses | None = None) -> None:
        self.path, self.width = path, width
        self._losses = losses or UpdateLosses()
        self._content = b""
        self._held = False
        self._file = self._open()

    def write(self, text: str) -> None:
        """Put a new value; while a fault holds the file it is only remembered."""
        content = text.encode()
        if content != self._content:
            first, self._content = not self._content, content
            visible_content = content if first else self._losses.shown_content(content)
            if not self._held and visible_content is not None:
                self._put(visible_content)

    def freeze_content(self, content: bytes | None) -> None:
        """Show this instead of the values from now on; None: the last value stays."""
        self._held = True
        if content is not None:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, content, 0)

    def remove(self) -> None:
        """Remove the file; a reader that still has it open reads nothing."""
        self.freeze_content(b"")
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def show_value_again(self, path: Path | None = None) -> None:
        """Show the present value again, at another path if one is given."""
        self.path = path or self.path
        if not self.path.exists():
            os.close(self._file)
            self._file = self._open()
        self._held = False
        self._put(self._content)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._file)

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _put(self, content: bytes) -> None:
        os.pwrite(self._file, content.ljust(self.width, b"\n"), 0)


class Tree:
    """The files below a root."""

    def __init__(self, root: Path, losses: UpdateLosses | None = None) -> None:
        self.root = root
        self._losses = losses
        self._elsewhere: tempfile.TemporaryDirectory[str] | None = None
        self.live: list[LiveFile] = []

    def write_static_files(self, folder: str, files: dict[str, object]) -> None:
        """Files that never change, each with its newline, as sysfs prints them."""
        for name, value in files.items():
            self._place(f"{folder}/{name}").write_text(f"{value}\n")

    def write_device_tree_cells(self, folder: str, values: dict[str, int]) -> None:
        """Device tree properties of one cell: 32 bits, big endian."""
        for name, value in values.items():
            self._place(f"{folder}/{name}").write_bytes(value.to_bytes(4, "big"))

    def write_program(self, path: str, script: str) -> None:
        """A program of the board; below /tmp, with a link here, where no program may run in this file system."""
        place = self._place(path)
        if os.statvfs(place.parent).f_flag & os.ST_NOEXEC:
            self._elsewhere = tempfile.TemporaryDirectory(prefix="stepscope-board-")
            place.symlink_to(Path(self._elsewhere.name) / place.name)
        place.write_text(script)
        place.chmod(0o755)

    def put_live(self, path: str, width: int = LIVE_BYTES) -> LiveFile:
        """A file that a sensor model writes."""
        file = LiveFile(self.root / path, width, self._losses)
        self.live.append(file)
        return file

    def link(self, path: str, to: str) -> None:
        """A symbolic link inside the tree, relative as in sysfs."""
        place = self._place(path)
        place.symlink_to(os.path.relpath(self.root / to, place.parent))

    def link_real(self, path: str) -> None:
        """The real machine's own file or folder at the same place, where it has one."""
        real = Path("/") / path
        if real.exists() and not (self.root / path).is_symlink():
            self._place(path).symlink_to(real)

    def renumber(self, by: int = 3) -> None:
        """hwmonN and iio:deviceN get higher numbers; old files answer no more, as after a driver was loaded again."""
        parents = {file.path.parent for file in self.live}
        for folder in sorted(parent for parent in parents if parent.name.startswith(("hwmon", "iio:"))):
            stem = folder.name.rstrip("0123456789")
            new = folder.with_name(f"{stem}{int(folder.name[len(stem) :]) + by}")
            moved = {file.path: file for file in self.live if folder in file.path.parents}
            for path in list(folder.iterdir()):
                if path in moved:
                    moved[path].remove()
                    moved[path].show_value_again(new / path.name)
                else:
                    new.mkdir(exist_ok=True)
                    path.rename(new / path.name)
            folder.rmdir()
            self._relink(folder, new)

    def _place(self, path: str) -> Path:
        """Return the path below the root, in a folder that is there."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def _relink(self, old: Path, new: Path) -> None:
        for kind in ("class/hwmon", "bus/iio/devices"):
            link = self.root / "sys" / kind / old.name
            if link.is_symlink():
                link.unlink()
                self.link(f"sys/{kind}/{new.name}", str(new.relative_to(self.root)))

    def close(self) -> None:
        """Close every descriptor."""
        for file in self.live:
            file.close()
        if self._elsewhere is not None:
            self._elsewhere.cleanup()


PROC_REFRESH_NS = 500_000_000


class ProcFolder:
    """root/proc of a board that is known by its device tree; `own`: files that are the board's, not the machine's."""

    def __init__(self, root: Path, model: str, compatible: tuple[str, ...], own: tuple[str, ...] = ()) -> None:
        self._folder = root / "proc"
        self._linked: set[str] = set()
        self._own = {"device-tree", *own}
        tree = self._folder / "device-tree"
        tree.mkdir(parents=True)
        (tree / "model").write_bytes(model.encode() + b"\0")
        (tree / "compatible").write_bytes(b"".join(name.encode() + b"\0" for name in compatible))
        self.refresh()

    def refresh(self) -> None:
        """Link what is new, and drop the links of processes that ended."""
        real = {path.name for path in Path("/proc").iterdir()} - self._own
        for name in real - self._linked:
            (self._folder / name).symlink_to(Path("/proc") / name)
        for name in self._linked - real:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()
        self._linked = real
