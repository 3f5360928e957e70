"""Secrets of a command line: they are redacted before anything is written, for a run folder is made to be shared.

By the option's name (`--api-key X`, `password=X`, `HF_TOKEN=X`), by the form of well-known tokens, and as the password
of a URL. What no pattern knows is not found: docs/run-folder.md says what a run contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[redacted]"
_OF_SERVICE = "wandb|openai|anthropic|comet|neptune|mlflow|aws|azure|gcp|hf|huggingface"
_KEY = rf"(?:api|access|auth|private|account|signing|secret|encryption|deploy|master|{_OF_SERVICE})[_.-]?key"
_CORE = rf"(?:passwd|password|pwd|passphrase|secret|credentials?|{_KEY}|(?<![a-z])auth)"
_NAME = rf"[\w.-]*?{_CORE}"
_TOKEN = r"(?:[\w.-]*[_.-])?token"
_SECRET_NAME = re.compile(rf"^[-+]*(?:{_NAME}|{_TOKEN}|key)$", re.IGNORECASE)
_OF_TEXT = "pad|eos|bos|unk|mask|sep|cls|image|special|start|end"  # tokens of a language model
_NO_SECRET = re.compile(rf"(?:^|[_.-])(?:{_OF_TEXT})[_.-]?token$", re.IGNORECASE)
_FORMS = re.compile(
    r"\b(?:gh[pousr]_\w{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|npm_\w{30,}|pypi-[\w-]{30,}"
    r"|eyJ[\w-]{8,2000}\.[\w-]{8,}\.[\w-]*)|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
)
_VARIABLE = re.compile(r"^[A-Z][A-Z0-9_]*_KEY$")
# Repetitions have bounds: a run folder from elsewhere holds words of any length, and they are looked at in linear time.
# A header or a piece of JSON within one word: "Authorization: Bearer X", '{"api_key": "X"}'.
_WITHIN = re.compile(
    rf"""((?:authorization|{_CORE}|(?<![a-z])token)["']?\s{{0,4}}:\s{{0,4}}["']?(?:(?:bearer|basic|token)\s)?)"""
    r"""[^\s"',}/]{6,}""",
    re.IGNORECASE,
)
_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^/\s:@]{0,300}:)[^/\s@]{1,2000}(?=@)", re.IGNORECASE)


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
    """Return a text without tokens of well-known forms, values of secret names and passwords of URLs."""
    return _FORMS.sub(REDACTED, _WITHIN.sub(rf"\1{REDACTED}", _URL.sub(rf"\1{REDACTED}", text)))


def _is_secret(name: str) -> bool:
    known = _SECRET_NAME.search(name) is not None or _VARIABLE.search(name) is not None
    return known and _NO_SECRET.search(name) is None
