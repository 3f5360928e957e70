"""Secrets of a command line: they are redacted before anything is written, for a run folder is made to be shared.

By the option's name (`--api-key X`, `password=X`, `HF_TOKEN=X`), by the form of well-known tokens, and as the password
of a URL. What no pattern knows is not found: docs/run-folder.md says what a run contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[redacted]"
_KEY = r"(?:api|access|auth|private|account|signing)[_.-]?key"
_NAME = rf"[\w.-]*?(?:passwd|password|pwd|passphrase|secret|credentials?|{_KEY}|(?<![a-z])auth)"
_TOKEN = r"(?:[\w.-]*[_.-])?token"
_SECRET_NAME = re.compile(rf"^[-+]*(?:{_NAME}|{_TOKEN}|key)$", re.IGNORECASE)
_OF_TEXT = "pad|eos|bos|unk|mask|sep|cls|image|special|start|end"  # tokens of a language model
_NO_SECRET = re.compile(rf"(?:^|[_.-])(?:{_OF_TEXT})[_.-]?token$", re.IGNORECASE)
_FORMS = re.compile(
    r"\b(?:gh[pousr]_\w{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|npm_\w{30,}|pypi-[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
)
_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)", re.IGNORECASE)


def redacted(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with each secret replaced by "[redacted]"."""
    found: list[str] = []
    secret = False  # the word before is the name of an option whose value follows
    for word in map(str, words):
        name, equals, value = word.partition("=")
        if secret and not word.startswith("--"):
            found.append(REDACTED)
            secret = False
        elif equals and value and _is_secret(name):
            found.append(f"{name}={REDACTED}")
            secret = False
        else:
            found.append(redacted_text(word))
            secret = word.startswith("-") and not equals and _is_secret(word)
    return found


def redacted_text(text: str) -> str:
    """Return a text without tokens of well-known forms and without passwords of URLs."""
    return _FORMS.sub(REDACTED, _URL.sub(rf"\1{REDACTED}", text))


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and _NO_SECRET.search(name) is None
