"""Files that are replaced as a whole; standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.liveness import is_running


@contextlib.contextmanager
def atomic_write(path: Path, durable: bool = False, whole: bool = False) -> Iterator[Path]:
    """Give a new file beside `path` to write, and move it into its place: a reader or a crash sees the old or the new.

    Nothing of it stays where the writing raises; an OSError names `path`. durable: the disk has content and name when
    this returns (fsync(2)). whole: it has the content before the name, so that no loss of power leaves an empty file.
    """
    part = path.with_name(f".{path.name}.{time.monotonic_ns():x}.{os.getpid()}.part")
    try:
        yield part
        if durable or whole:
            sync(part)
        part.replace(path)
        if durable:
            sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)  # a full disk needs the room
        if isinstance(error, OSError) and error.filename == str(part):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def user_cache() -> Path:
    """Return this user's folder for what can be made anew, below XDG_CACHE_HOME; RuntimeError without a home."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def user_data() -> Path:
    """Return this user's folder for what is to stay, below XDG_DATA_HOME; RuntimeError without a home."""
    return _user_folder("XDG_DATA_HOME", ".local/share")


def _user_folder(variable: str, default: str) -> Path:
    """Return a folder as the freedesktop.org base directories define it: a relative path counts as unset."""
    stated = Path(os.environ.get(variable, ""))
    return (stated if stated.is_absolute() else Path.home() / default) / "stepscope"


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty where it is missing, damaged or no object."""
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def try_store_json(path: Path, content: Mapping[str, Any]) -> bool:
    """Write a JSON object into a cache and make its folder; False where that cannot be, which is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, content)
    except OSError:
        return False
    return True


def replace_json(path: Path, content: object, durable: bool = False, whole: bool = False) -> None:
    """Write a value as indented JSON, sealed, in place of a file; what JSON does not know becomes text."""
    with atomic_write(path, durable, whole) as part:
        part.write_text(add_checksum(json.dumps(content, indent=1, default=str)) + "\n", encoding="utf-8")


def add_checksum(text: str) -> str:
    """Return JSON with its CRC32 behind it, in 32 spaces (0) and tabs (1): readers of JSON pass over them."""
    return text + f"{zlib.crc32(text.encode()):032b}".translate(_SEAL)


_SEAL = str.maketrans("01", " \t")


def check_and_strip_checksum(data: bytes) -> tuple[bytes, str]:
    """Return an object as JSON without its seal, and how it differs from what was sealed: "", `MENDED` or `CHANGED`.

    One flipped bit is found and set right. Without a seal nothing can be said against it.
    """
    text, seal = data.rstrip(b"\r\n")[:-32], data.rstrip(b"\r\n")[-32:]
    if len(seal) == 32 and not seal.strip(b" \t"):
        wrong = zlib.crc32(text) ^ int(seal.decode().translate(_UNSEAL), 2)
        mended = _repair_one_bit(text, wrong) if wrong else text
        return (mended, MENDED if wrong else "") if mended is not None else (text, CHANGED)
    end = data.rfind(b"}") + 1
    return (data[:end], CHANGED) if end and data[end:].strip(b"\r\n") else (data, "")


MENDED, CHANGED = "one flipped bit was set right", "not as it was written"
_UNSEAL = str.maketrans(" \t", "01")
_LARGEST_MENDED = 100_000  # bytes


def _repair_one_bit(text: bytes, wrong: int) -> bytes | None:
    """Return a text with the one bit flipped that makes a CRC32 of which these bits are wrong right; None without one.

    What a flipped bit does to the CRC32 depends on how far from the end it is alone.
    """
    table = [zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0") for byte in range(256)]
    for bit in range(8) if len(text) <= _LARGEST_MENDED else ():
        change = table[1 << bit]
        for place in range(len(text) - 1, -1, -1):
            if change == wrong:
                return text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :]
            change = table[change & 255] ^ change >> 8
    return None


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds, whatever became of its seal; OSError or ValueError where it cannot be read."""
    return json.loads(check_and_strip_checksum(path.read_bytes())[0].decode("utf-8", errors="replace"))


def remove_partial_files(folder: Path) -> None:
    """Remove what writers that were killed had begun, here and in the folders below."""
    for part in [*folder.glob(".*.part"), *folder.glob("*/.*.part")]:
        pid = part.name.split(".")[-2]
        if pid.isdecimal() and not is_running(int(pid)):
            part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return when the disk has the content of a file, or the names in a folder (fsync(2))."""
    mode = os.O_RDONLY if path.is_dir() else os.O_RDWR
    file = os.open(path, mode | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def size_of(path: Path) -> int:
    """Return the size of a file, bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the content of a file that may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(files: Iterable[Path]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the contents, in this order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
