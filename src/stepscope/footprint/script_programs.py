"""Programs that a followed script may start: those that answer and change nothing, by their names and their words."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_ANSWERING = """
    git nvidia-smi rocm-smi uname hostname whoami date lscpu nproc free df du ls cat echo printf which file stat true
    false test [ sleep ps pwd cd head tail wc grep cut tr ldconfig gcc cc ld objdump sysctl sw_vers getconf id tty stty
    lsb_release fc-list
"""
_ANSWERING_PROGRAMS = frozenset(_ANSWERING.split())  # they take little, and scripts write down what they answer
_SHELLS = ("sh", "bash", "zsh", "dash")
_BEFORE_PROGRAMS = frozenset(("sudo", "env", "exec", "nohup", "xargs", "time", "!", "{", "then", "do", "else"))
_WRITES = ">"  # stands for a program, where a shell writes to a file


def first_acting_program(command: Any, executable: Any = None) -> str | None:
    """Return the first program of a command that may do more than answer; None where all that it runs only answer."""
    commands = _commands_of(command)
    if executable is not None:
        commands += [[Path(os.fsdecode(executable)).name, *words[1:]] for words in commands[:1]]
    return next((words[0] for words in commands if not _only_answers(*words)), None)


def _only_answers(program: str, *words: str) -> bool:
    asks = _ASKING.get(program)
    return program in _ANSWERING_PROGRAMS and (asks is None or asks(words))


def _commands_of(command: Any) -> list[list[str]]:
    """Return the programs that a command runs, of lines for the shell too, each with its words."""
    if isinstance(command, (str, bytes)):
        return _commands_of_lines(os.fsdecode(command))
    words = [os.fsdecode(word) for word in (command if isinstance(command, (list, tuple)) else [command])]
    if words and Path(words[0]).name in _SHELLS and "-c" in words[:-1]:
        return _commands_of_lines(words[words.index("-c") + 1])
    if words and set(words[0]) & set(";|&<>$` \t\n"):  # lines for a shell, as a list
        return _commands_of_lines(words[0])
    behind = list(itertools.dropwhile(_is_before_program, words))
    return [[Path(behind[0]).name, *behind[1:]]] if behind else []


def _is_before_program(word: str) -> bool:
    return word in _BEFORE_PROGRAMS or word.startswith("-") or "=" in word


def _commands_of_lines(lines: str) -> list[list[str]]:
    lexer = shlex.shlex(lines.replace("\n", ";").replace("`", "$(;"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quotation without an end
        return [[_WRITES]]
    commands: list[list[str]] = []
    within: list[str] = []
    is_first, is_target = True, False
    for word, following in itertools.pairwise([*words, ""]):
        if "$(" in word:  # a shell runs it within quotes as well
            _, *inner = word.split("$(")
            within.append(inner[0].rpartition(")")[0] if len(inner) == 1 else ";".join(inner))
        if is_target:
            is_target = False
        elif not set(word) - set("();|&<>"):
            if ">" in word and not _NOWHERE.match(following):
                commands.insert(0, [_WRITES])
            is_target = _REDIRECTION.search(word) is not None
            is_first |= bool(_REDIRECTION.sub("", word))
            if is_target and not is_first and commands[-1][-1].isdigit():
                commands[-1].pop()  # of which the shell directs the output elsewhere
        elif not is_first:
            commands[-1].append(word)
        elif not _is_before_program(word):
            commands.append([Path(word).name])
            is_first = False
    return [*commands, *itertools.chain.from_iterable(map(_commands_of_lines, within))]


_NOWHERE = re.compile(r"/dev/(null|stdout|stderr|tty|fd/\d+)$|\d+$|-$")  # no file is written to
_REDIRECTION = re.compile(r"&?[<>]+[&|]?$")


# What a program that answers is asked; with other words it writes, sets or starts something.


def _matches(pattern: str) -> Callable[[Sequence[str]], bool]:
    word_of = re.compile(pattern)
    return lambda words: all(map(word_of.fullmatch, words))


_LOOKING = """
    rev-parse describe log show status diff diff-index diff-files diff-tree ls-files ls-tree ls-remote rev-list name-rev
    cat-file show-ref for-each-ref merge-base blame shortlog version grep check-ignore count-objects show-branch
"""
_GIT_LOOKS = frozenset(_LOOKING.split())
# Of commands that look or change: the words by which they look.
_GIT_LISTS = {
    "branch": (r"--show-current|-[arv]+|--(all|remotes|no-color|color.*|column.*)", "--list -l --contains --points-at"),
    "tag": (r"-n\d*|--sort.*|--format.*", "--list -l --contains --points-at --merged"),
    "remote": (r"-v|--verbose", "show get-url"),
    "config": (r"(--(global|local|system|null|type.*|show-.*|bool|int|path)|-z|[\w.-]+\.[\w.-]+)",
               "--get --get-all --get-regexp --list -l"),
    "stash": ("(?!)", "list show"), "worktree": ("(?!)", "list"), "submodule": ("(?!)", "status summary"),
    "lfs": ("(?!)", "ls-files version env"), "symbolic-ref": (r"-q|--short|HEAD", ""), "reflog": ("(?!)", "show"),
}  # fmt: skip
_GIT_WRITES = re.compile(r"--(ou|ext|exec|textc|op|up).*|-O.*")  # a file, or starts a program
_GIT_CHANGES = re.compile(r"-[dDmMcCfeu]+|--(del|move|copy|uns|add|rep|edit|remove|rename|force|set).*")
_GIT_SETTINGS = ("safe.", "color.", "core.quotepath")


def _asks_git(words: Sequence[str]) -> bool:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        value = rest.pop(0) if rest and option in ("-C", "-c", "--git-dir", "--work-tree") else ""
        if option == "-c" and not value.startswith(_GIT_SETTINGS):
            return False  # it may name a program
        if not re.fullmatch(r"-[CcP]|--(version|no-pager|no-optional-locks|(git-dir|work-tree)(=.*)?)", option):
            return False
    command, *about = rest or ["version"]
    if any(map(_GIT_WRITES.fullmatch, about)):
        return False
    if command not in _GIT_LISTS:
        return command in _GIT_LOOKS
    plain, listing = _GIT_LISTS[command]
    lists = any(word.partition("=")[0] in listing.split() for word in about[: 1 if listing[:1] != "-" else None])
    if lists:
        return not any(map(_GIT_CHANGES.fullmatch, about))
    if command == "stash" or (command == "config" and sum(not word.startswith("-") for word in about) > 1):
        return False  # it puts changes away; a name and its new value
    return _matches(plain)(about)


def _asks_compiler(words: Sequence[str]) -> bool:
    """Return whether a compiler or linker says something of itself, or writes what is thrown away."""
    if any(map(_COMPILER_WRITES.match, words)):
        return False
    outputs = [word[2:] or following for word, following in itertools.pairwise([*words, ""]) if word.startswith("-o")]
    if outputs:
        thrown_away = (f"{tempfile.gettempdir()}{os.sep}{tempfile.gettempprefix()}", "/dev/null")
        return all(output.startswith(thrown_away) for output in outputs)
    return "-E" in words or all(word.startswith("-") for word in words)


_COMPILER_WRITES = re.compile(
    r"-(M|save-temps|fdump|ftest-cov|-coverage|wrapper|fplugin|specs|-?Map|Wl,-(Map|o)|Wp|aux)|@"
)


def _asks_date(words: Sequence[str]) -> bool:
    asks = _matches(r"\+.*|-[uR]|-[Idrjv].*|--(utc|universal|iso|rfc|date|reference|resolution).*")
    return asks([word for before, word in itertools.pairwise(["", *words]) if before not in ("-d", "-r", "--date")])


_ASKING: dict[str, Callable[[Sequence[str]], bool]] = {
    "git": _asks_git, "date": _asks_date, **dict.fromkeys(("gcc", "cc", "ld"), _asks_compiler),
    "nvidia-smi": _matches(
        r"topo|pmon|-[qLxidhuBml]|-lms|-p2p|--(query|format|id|display|list|xml|help|version|loop).*|(?!-)[\w:.,%-]+"
    ),
    "rocm-smi": _matches(r"(?!-r$|--(set|reset|save|load|ras|gpureset|autoresp|setp)).*"),
    "hostname": _matches(r"-[sfdiIAya]+|--(short|fqdn|long|domain|ip-address|all-.*)"),
    "ldconfig": lambda words: words[:1] in (("-p",), ("--print-cache",)),
    "stty": _matches(r"size|speed|-[ag]|--all|--save"),
    "sysctl": _matches(r"-[aneNbq]+|--(all|values|names|pattern).*|(?!-)[^=]+"),
    "file": _matches(r"(?!-[A-Za-z]*C|--comp).*"),
}  # fmt: skip
