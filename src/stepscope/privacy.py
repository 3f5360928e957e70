"""Omission by choice, from runs, stores and exports: the command line, and names of the host and its user.

An option of a command sets the environment, so that each process that records or reads for it does the same. The
writer leaves out what it is told of, the reader what an earlier run states.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import socket
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

VARIABLE = "STEPSCOPE_PRIVATE"  # "argv", "names" or both with a comma; "1": both, and a folder that is closed to others
WITHHELD = "[withheld]"
_QUOTES = re.compile(r"'|^chmod ")  # of what is said of a meter's command, that which has its words
_FIELDS = {"argv": ("argv", "script"), "names": ("cwd", "host")}  # of run.json and sweep.json
_HOMES = re.compile(r"(?:/var)?/(?:home|Users)/[^/\s'\":,;)\]]+|(?<![\w.~-])/root(?![\w.-])")
_NO_NAMES = {"localhost", "linux", "ubuntu", "debian", "fedora", "raspberrypi", "jetson", "nvidia", "tegra", "root"}


def withheld_kinds(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return what is omitted: "argv", "names", both or nothing."""
    chosen = environment.get(VARIABLE, "")
    return frozenset(_FIELDS) if chosen == "1" else frozenset(chosen.split(",")) & frozenset(_FIELDS)


def are_runs_private() -> bool:
    """Return whether others may not enter a run folder."""
    return os.environ.get(VARIABLE) == "1"


def withhold(*kinds: str) -> None:
    """Leave these out too, in this process and in those that it starts."""
    if not are_runs_private() and kinds:
        os.environ[VARIABLE] = ",".join(sorted(withheld_kinds() | set(kinds)))


def cleaned_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a header without those that are omitted, and without names in the texts of the others."""
    kinds = withheld_kinds()
    excluded = {field for kind in kinds for field in _FIELDS[kind]}
    cleaned = {field: value for field, value in fields.items() if field not in excluded}
    for field in ("reason", "script"):
        if isinstance(cleaned.get(field), str):
            cleaned[field] = redacted_text(cleaned[field])  # an exception may quote the address that it was for
    return withhold_names(cleaned, str(fields.get("host") or "")) if kinds else cleaned


def clean_and_redact(content: Any) -> Any:
    """Return what JSON holds, cleaned, with the secrets in its texts redacted: events, and what trainings say."""
    plain = _without_meter_commands(content) if "argv" in withheld_kinds() else content
    return redacted_texts(withhold_names(plain))


def shown_command(text: str) -> str:
    """Return a command of the user's as a run may say it: without secrets, or withheld where command lines are."""
    return WITHHELD if "argv" in withheld_kinds() else redacted_text(text)


def _without_meter_commands(content: Any) -> Any:
    """Return channels, missing sensors and events without the words of a meter's command, also in calibrations."""
    if isinstance(content, list | tuple):
        return [_without_meter_commands(value) for value in content]
    if not isinstance(content, Mapping):
        return content
    named = content.get("sensor") == "meter_command" and content.get("reason") != "absent"
    words = {key for key, value in content.items() if named and isinstance(value, str) and _QUOTES.search(value)}
    fields = {"source"} if named and "quantity" in content else {"meter"} if "gain" in content else set()
    return {
        key: WITHHELD if key in words | fields and value is not None else _without_meter_commands(value)
        for key, value in content.items()
    }


def redacted_sources(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return sources.json with the secrets in its places redacted; names of layers and operators stay."""
    places = content.get("sources")
    named = isinstance(places, list) and all(isinstance(place, str) for place in places)
    return {**content, "sources": [redacted_text(place) for place in places]} if named and places else dict(content)


def redacted_texts(content: Any) -> Any:
    """Return what JSON holds with the secrets in its texts redacted; a list of texts is taken as a command line."""
    if isinstance(content, str):
        return redacted_text(content)
    if isinstance(content, Mapping):
        return {_without_form(key): _redacted_value(key, value) for key, value in content.items()}
    if not isinstance(content, list | tuple):
        return content
    words = all(isinstance(value, str) for value in content)
    return redact_command_line(content) if words else [redacted_texts(value) for value in content]


def withhold_names(content: Any, host: str = "") -> Any:
    """Return what JSON holds without home folders and names of host and user in its texts, where they are omitted."""
    return _cleaned(content, _names(host)) if "names" in withheld_kinds() else content


def _cleaned(content: Any, names: re.Pattern[str]) -> Any:
    if isinstance(content, str):
        return names.sub(WITHHELD, _HOMES.sub("~", content))
    if isinstance(content, Mapping):
        return {_cleaned(key, names): _cleaned(value, names) for key, value in content.items()}
    return [_cleaned(value, names) for value in content] if isinstance(content, list | tuple) else content


def _names(host: str) -> re.Pattern[str]:
    """Return the pattern of host names as whole words, and of the user's name and home as parts of a path."""
    hosts = {name for name in (host, socket.gethostname()) if len(name) > 2 and name.lower() not in _NO_NAMES}
    words = [rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in sorted(hosts)]
    home = os.environ.get("HOME", "").rstrip("/")
    if len(home) > 1 and _HOMES.sub("~", home) == home:  # a home in an unusual place
        words.append(rf"{re.escape(home)}(?=/|$)")
    if (user := _user()) and user not in _NO_NAMES:
        words.append(rf"(?<=/){re.escape(user)}(?=/|$)")
    return re.compile("|".join(words) or r"(?!)")


def _user() -> str:
    with contextlib.suppress(ImportError, KeyError, OSError):
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    return os.environ.get("USER", "")


REDACTED = "[redacted]"
_OF_SERVICE = "wandb|openai|anthropic|comet|neptune|mlflow|aws|azure|gcp|hf|huggingface"
_KEY = rf"(?:api|access|auth|private|account|signing|secret|encryption|deploy|master|{_OF_SERVICE})[_.-]?key"
_OF_LOGIN = (
    "db|database|sql|mysql|pg|postgres|mongo|redis|smtp|imap|mail|email|ftp|ssh|http|proxy|ldap|mqtt|wifi|vpn|user"
    "|admin|root|sudo|login|server|account|basic|keystore"
)
_PASS = rf"(?<![a-z])(?:{_OF_LOGIN})[_.-]?pass(?![a-z])"
_CORE = rf"(?:passwd|password|pwd|passphrase|secret|credentials?|{_KEY}|{_PASS}|(?<![a-z])auth)"
_NAME = rf"[\w.-]*?{_CORE}"
_TOKEN = r"(?:[\w.-]*[_.-])?token"
_SECRET_NAME = re.compile(rf"^[-+]*(?:{_NAME}|{_TOKEN}|key)$", re.IGNORECASE)
_OF_TEXT = "pad|eos|bos|unk|mask|sep|cls|image|special|start|end"  # tokens of a language model
_NO_SECRET = re.compile(rf"(?:^|[_.-])(?:{_OF_TEXT})[_.-]?token$", re.IGNORECASE)
_OF_NUMBER = "max|min|num|n|total|stop|new|seen|train|batch|context"  # of tokens that are counted
_SECRETS_NAME = re.compile(rf"^[-+]*(?:{_NAME}|{_TOKEN})s$", re.IGNORECASE)
_NO_SECRETS = re.compile(rf"(?:^|[_.-])(?:{_OF_TEXT}|{_OF_NUMBER})[_.-]?tokens$", re.IGNORECASE)
_BRIEF_NAME = re.compile(
    r"^-{1,2}(?:pass|pw|passcode|bearer|jwt|pat|cookie|(?:[\w.-]*[_.-])?(?:ssh|gpg|pgp|licen[cs]e|product)[_.-]?key)$"
    r"|^(?-i:[A-Z][A-Z0-9_]*_PASS)$",
    re.I,
)
_PIN_NAME = re.compile(r"^-{0,2}(?:[\w.-]*[_.-])?(?:pin(?:[_.-]?code)?|[th]?otp|2fa|mfa)$", re.IGNORECASE)
_PIN = re.compile(r"\d{4,12}")
_USERS = r"-u|--?(?:proxy[_-]?)?user(?:name|pwd)?|--?login"
_USER_NAME = re.compile(_USERS, re.IGNORECASE)
_USER = re.compile(
    r"((?:-u)?[\w.@+-]{1,100}:)(?!\d+$)(?!\[redacted)[^/\s].*", re.DOTALL
)  # me:X; no address, no 1000:1000
_OPTION_NAME = re.compile(r"--[a-z][a-z0-9]*(?:[-_.][a-z0-9]+)*(?:=.*)?|--", re.DOTALL)
_LEAST_PASSWORD = 5  # characters, behind -p
_NUMBER_OR_FILE = re.compile(
    r"[+-]?[\d.,_]+(?:[eE][+-]?\d+)?[kKmMbBgGtT]?|\S*/\S*|\S+\.[A-Za-z]\w{0,4}|true|false|none", re.I
)
_FORMS = re.compile(
    r"\b(?:gh[pousr]_\w{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|npm_\w{30,}|pypi-[\w-]{30,}|[rs]k_(?:live|test)_\w{16,}|r8_\w{30,}"
    r"|eyJ[\w-]{8,2000}\.[\w-]{8,}\.[\w-]*|xapp-[\w-]{16,}|SG\.[\w-]{16,64}\.[\w-]{16,}|ya29\.[\w-]{20,}"
    r"|nvapi-[\w-]{20,}|gsk_\w{20,}|dapi[0-9a-f]{32}|wandb_v1_\w{20,}|dop_v1_\w{32,}|\d{8,10}:AA[\w-]{30,}"
    r"|hooks\.slack\.com/(?:services|workflows|triggers)/[\w/]{16,}"
    r"|discord(?:app)?\.com/api/webhooks/\d{1,20}/[\w-]{16,})"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----END)[\s\S])*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
_SHORTEST_FORM = 16  # characters
_VARIABLE = re.compile(r"^[A-Z][A-Z0-9_]*_KEY$")
# Repetitions have bounds: a run folder from elsewhere holds words of any length, and they are looked at in linear time.
_CAMEL_TOKEN = r"(?<!\w)[a-z][A-Za-z0-9]{0,40}Token"  # accessToken, and no InvalidToken: that is an exception
_ASSIGNED = (
    rf"""((?:(?i:authorization|{_CORE}|(?<![a-z])token)|{_CAMEL_TOKEN})\\{{0,3}}["']?\s{{0,4}}"""
    r"""(?::\s{0,4}|=\s{0,4}(?![\d.]+\b))\\{0,3}"""
)
_OPTION = rf"((?<![\w-])--?(?:(?i:[\w.-]{{0,60}}?{_CORE}|(?:[\w.-]{{0,60}}[_.-])?token|key)|{_CAMEL_TOKEN})"
_OPTIONS = rf"((?<![\w-])--?(?i:[\w.-]{{0,60}}?{_CORE}s|(?:[\w.-]{{0,60}}[_.-])?tokens)"
_RANDOM = r"""(?=[^\s"',]{0,300}\d)(?=[^\s"',]{0,300}[A-Za-z])[^\s"',-][^\s"',]{7,300}"""  # no word and no number
_ADDRESS = r"(\b(?i:[a-z][a-z0-9+.-]{0,30})://"
_WITHIN = [
    re.compile(pattern)
    for pattern in (
        # An assignment in a text, in quotes or not, a header, a piece of JSON: "password=X", 'Authorization: Bearer X'.
        _ASSIGNED + r"""")[^"\n]{6,400}(?=")""",
        _ASSIGNED + r"""')[^'\n]{6,400}(?=')""",
        _ASSIGNED
        + r"""["']?(?!(?i:bearer|basic|token)\s\[)(?i:(?:bearer|basic|token)\s)?)"""
        + r"""(?!\[redacted)[^\s"',}/][^\s"',}]{5,}""",
        r"""((?i:pass(?:word|wd|phrase)|pwd)["']?\s{0,4}=\s{0,4}["']?)\d[\d.]{3,}""",  # of a token it is a count
        r"""(\b(?i:cookie)["']?:\s{0,4}["']?)[^"'\n]{6,}""",
        # An option and its value in the words of an exception: "command ['curl', '--password', 'X'] failed".
        _OPTION + r"""["'],?\s?["'])[^"'\n]+""",
        _OPTION + r"""\s{1,4})(?=[^\s"',]*[\dA-Z])[^\s"',-][^\s"',]*""",
        # A name and its value parted by another sign, or in a sentence; several values of one option.
        rf"""((?i:{_CORE}s?)["']?\s?(?:[|;,]|[-=]>)\s?["']?){_RANDOM}""",
        rf"""((?<![a-z])(?i:token)["']?\s?(?:[|;]|[-=]>)\s?["']?){_RANDOM}""",
        rf"""((?i:pass(?:word|wd|phrase)|pwd)\s(?:(?i:is|was)\s)?["']?){_RANDOM}""",
        _OPTIONS + rf"""(?:["'],?\s?["']|[=\s]\s{{0,3}})){_RANDOM}(?:["']?[,\s]\s{{0,3}}["']?{_RANDOM}){{0,20}}""",
        # A user with a password, as of curl; the password of sshpass.
        rf"""((?<![\w-])(?:{_USERS})(?:["'],\s?["']|[\s=]\s{{0,3}}["']?)[\w.@+-]{{1,100}}:)"""
        + r"""(?!\d+(?:[\s"',]|$))(?!\[redacted)[^\s"',/][^\s"',]{2,300}""",
        r"""(\bsshpass["']?,?\s{1,3}["']?-p(?:["'],\s?["']|\s{0,3}["']?))(?!\[redacted)[^\s"',]{3,300}""",
        # The password of an address, what stands for a name and a password there, and the signature of one.
        _ADDRESS + r"[^/\s:@]{0,300}:)[^/\s]{1,2000}(?=@)",
        _ADDRESS + r"""[^/\s:@]{1,300}:)(?!\d{1,5}/)[^/\s"'?#][^\s"'?#@]{0,300}(?=@[\w.-]+(?:[:/?#]|$))""",
        _ADDRESS + r")[\w.~%-]{20,2000}(?=@)",
        r"""([?&](?i:[\w-]{0,30}signature|sig|key)=)[^&\s"'<>]{6,}""",
    )
]


def redact_command_line(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with each secret replaced by "[redacted]"."""
    words = [str(word) for word in words]
    cleaned: list[str] = []
    secret = several = False  # the word before is the name of an option whose value follows, or values
    users = any(_USER_NAME.fullmatch(name) and value[:1] not in ("", "-") for name, value in pairwise(words))
    for before, word in pairwise(["", *words]):
        name, equals, value = word.partition("=")
        if secret and not _OPTION_NAME.fullmatch(word):
            cleaned.append(REDACTED)
            secret = False
        elif several and not word.startswith("-"):
            cleaned.append(redacted_text(word) if _NUMBER_OR_FILE.fullmatch(word) else REDACTED)
        elif (
            equals
            and value
            and (_is_secret(name) or (_is_ambiguous_option(name) and not _NUMBER_OR_FILE.fullmatch(value)))
        ):
            cleaned.append(f"{name}={REDACTED}")
            secret = several = False
        elif before in ("-p", "-P") and users and _is_password(word):  # -u me -p X
            cleaned.append(REDACTED)
        else:
            text = f"{name}={_brief_value(name, value)}" if equals else _brief_value(before, word)
            cleaned.append(redacted_text(text))
            option = word.startswith("-") and not equals
            secret, several = option and _is_secret(word), option and _is_ambiguous_option(word)
    return cleaned


def _brief_value(name: str, value: str) -> str:
    """Return the value of an option that takes a number that is secret, or a user with a password, redacted."""
    if _PIN_NAME.fullmatch(name) and _PIN.fullmatch(value):
        return REDACTED
    if _USER_NAME.fullmatch(name) or value.startswith("-u"):
        return _USER.sub(rf"\1{REDACTED}", value) if _USER.fullmatch(value) else value
    return value


def _is_password(word: str) -> bool:
    return len(word) >= _LEAST_PASSWORD and word[0] != "-" and _NUMBER_OR_FILE.fullmatch(word) is None


def redacted_text(text: str) -> str:
    """Return a text without tokens of well-known forms, values of secret names and passwords of URLs."""
    for pattern in reversed(_WITHIN):
        text = pattern.sub(rf"\1{REDACTED}", text)
    return _FORMS.sub(REDACTED, text)


# Where a secret can be, so that a trace of 100 MB need not be looked at as a whole.
_HINTS = re.compile(
    rb"(?i:pass|pwd|secret|credential|key|auth|token|cookie|sig=|signature|://|jwt|bearer)|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox"
    rb"|AKIA|ASIA|AIza|npm_|pypi-|[rs]k_|r8_|eyJ|xapp-|SG\.|ya29|nvapi-|gsk_|dapi|wandb_v1|dop_v1|-u\W|-user|-login|:AA|hooks\.slack|webhooks"
)
_BEFORE_HINT, _AFTER_HINT = 400, 2500  # bytes


def contains_secret(content: bytes, as_page: bool = False) -> bool:
    """Return whether the text of a file says a secret. as_page: what is between the tags of HTML."""
    if as_page:
        content = html.unescape(re.sub(rb"<[^<>]*>", b"", content).decode("utf-8", errors="replace")).encode()
    begin = end = 0
    for hint in _HINTS.finditer(content):
        if hint.start() - _BEFORE_HINT > end:
            if _has_secret(content[begin:end]):
                return True
            begin = hint.start() - _BEFORE_HINT
        end = hint.end() + _AFTER_HINT
    return _has_secret(content[begin:end])


def _has_secret(part: bytes) -> bool:
    text = part.decode("utf-8", errors="replace")
    return redacted_text(text) != text


def _redacted_value(key: Any, value: Any) -> Any:
    """Return what JSON holds under a key, redacted: the name of a secret says that its value is one."""
    name = str(key)
    if isinstance(value, str):
        brief = _BRIEF_NAME.search(name) is not None and _NUMBER_OR_FILE.fullmatch(value) is None
        secret = value != "" and name != "key" and (brief or _is_secret(name))
        return REDACTED if secret else redacted_text(_brief_value(f"--{name}", value))
    if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        return (
            redact_command_line([f"--{name}", *value])[1:] if _is_ambiguous_option(name) else redact_command_line(value)
        )
    return redacted_texts(value)


def _without_form(key: Any) -> Any:
    return _FORMS.sub(REDACTED, key) if isinstance(key, str) and len(key) >= _SHORTEST_FORM else key


def _is_ambiguous_option(name: str) -> bool:
    """Return whether an option of this name takes secrets, or one that is none where it is a number or a file."""
    parted = _with_parted_words(name)
    has_secret_name = _SECRETS_NAME.search(parted) is not None and _NO_SECRETS.search(parted) is None
    return has_secret_name or _BRIEF_NAME.search(name) is not None


def _is_secret(name: str) -> bool:
    parted = _with_parted_words(name)
    has_secret_name = _SECRET_NAME.search(parted) is not None or _VARIABLE.search(name) is not None
    return has_secret_name and _NO_SECRET.search(parted) is None


def _with_parted_words(name: str) -> str:
    """Return accessToken as access_Token."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
