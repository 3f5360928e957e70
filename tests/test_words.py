"""The words of the glossary hold in what people read, and in the code itself: its names, comments and docstrings."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stepscope"


class Refused(NamedTuple):
    """A pattern that is not accepted in prose, and what to write instead."""

    pattern: str
    instead: str


class Allowed(NamedTuple):
    """A place where a refused word stays: a pattern of its path, one of its text, and why."""

    path: str
    text: str
    why: str


REFUSED = (
    Refused(r"kinds? of op(eration)?s?\b|\bop kinds?\b", "operator (op)"),
    Refused(r"\bop(eration)? instances?\b", "op call"),
    Refused(
        r"(?<!Floating-point )(?<!floating-point )\b[Oo]perations?\b(?! with a time limit)", "operator, op or op call"
    ),
    Refused(r"\b(un)?recorded steps?\b|\bunrecorded\b", "profiled step, unprofiled step"),
    Refused(r"\bsteady steps?\b", "step after warm-up"),
    Refused(r"(?<!their )(?<!its )(?<!'s )\b[Oo]wn times?\b", "self time"),
    Refused(r"\bwith children\b", "total time"),
    Refused(r"\bcores (kept )?busy\b|\bkept \S+ cores? busy\b", "CPU utilisation, background CPU load"),
    Refused(r"\bidle[- ]state ratios?\b", "idle residency"),
    Refused(r"\bother programs\b", "background CPU load, background processes"),
    Refused(r"\bown cost\b|\b[Ww]hat a look costs\b", "profiling overhead"),
    Refused(
        r"\bbetween operat(ions|ors)\b|\basking for op(erations|erators|s)\b", "framework overhead (outside operators)"
    ),
    Refused(r"\bmoves every\b", "update interval"),
    Refused(r"\balive at\b|\bkept for backward\b|\bsaved for backward\b", "live at peak, activations"),
    Refused(r"\bintervals? of 9\d %|\b\d+ % (confidence )?intervals?\b", "95 % CI"),
    Refused(r"\{[^}]*\blow\w*[^}]*\} to \{[^}]*\bhigh", "12.1 ms [11.9, 12.4]"),
    Refused(
        r"\b(not|are|was) (called )?resolved\b|\benergy (that )?is resolved\b",
        "within 10 %, within 30 %, below sensor resolution",
    ),
    Refused(r"\bleft out\b", "excluded, omitted, unattributed"),
    Refused(
        r"\bparts? (and|\+) (the )?residual\b|\bthe residual (is|of)\b|\bcould not be attributed\b(?! to)",
        "unattributed",
    ),
    Refused(r"\b[Ff]oret(ells?|old|elling)\b", "predict, forecast"),
    Refused(r"\b[Uu]nless said\b", "default:"),
    Refused(r"\bheld back\b", "throttled"),
    Refused(
        r"\b[Dd]ispatch-bound\b|\b[Dd]ata-bound\b|\b[Mm]emory-bound\b|^Mixed: |^Waiting: ",
        "overhead bound, input bound, ...",
    ),
    Refused(r"\bthe trainer('s)?\b(?! (said|says|had|that))", "training process"),
    Refused(r"\btimes as (long|dear|good)\b", "slower, faster (2.9x faster than A)"),
)
REFUSED_NAMES = (
    "asked", "told", "left_out", "glance", "which_run", "of_run", "of_one", "foretold", "op_kinds", "own_time",
    "own_times", "operands", "found_by",
)  # fmt: skip
# What stands in the place of a noun. Not in workloads, whose digest stands in counted.json.
REFUSED_VARIABLES = (
    "one", "each", "of_run", "found", "kept", "said", "told", "asked", "seen", "held", "given", "wanted", "taken",
)  # fmt: skip
# Files are named after what they hold, with nouns.
REFUSED_FILE_WORDS = (
    "found", "asked", "told", "said", "shown", "kept", "left", "made", "called", "checked", "applied", "paired",
    "listed", "seen", "given", "held", "done", "taken", "known",
)  # fmt: skip
ALLOWED = (
    Allowed(r"footprint/prediction\.py", r"^CPU time x", "a range over allocators, no CI"),
    Allowed(
        r"units\.py|analysis/time/operators\.py",
        r"^\(between operations\)$",
        "an id of rows of data; units.row_label shows it",
    ),
    Allowed(
        r"docs/guide-trainers\.md|src/stepscope/integrations/",
        r"the trainer|trainer",
        "Trainer classes of other libraries",
    ),
    Allowed(r"docs/decisions\.md", r"trainer", "Trainer classes of other libraries"),
    Allowed(r"src/stepscope/store/", r"operation", "an operation on files, not an op"),
)
QUESTION = re.compile(r"(What|Whether|How|Why)\b(?!.*\?)")


class Text(NamedTuple):
    """Words that somebody reads: where they are, and how they read."""

    path: str
    line: int
    text: str


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _documented(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Constant]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield node, first.value


def _part(part: ast.expr) -> str:
    """Return a part of an f-string as text: its words, or the expression in braces."""
    if isinstance(part, ast.FormattedValue):
        return f"{{{ast.unparse(part.value)}}}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def _strings(path: Path) -> Iterator[Text]:
    """Yield the strings with a space of a file of the source: messages, help and titles; ids and keys have no space."""
    tree, name = _parsed(path), str(path.relative_to(ROOT))
    passed = {id(docstring) for _, docstring in _documented(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in ast.walk(node)}
            parts = [_part(part) for part in node.values]
            yield Text(name, node.lineno, "".join(parts))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in passed
            and " " in node.value
        ):
            yield Text(name, node.lineno, node.value)


def _public_docstrings(path: Path) -> Iterator[Text]:
    for node, docstring in _documented(_parsed(path)):
        if not getattr(node, "name", "").startswith("_"):
            yield Text(str(path.relative_to(ROOT)), docstring.lineno, " ".join(str(docstring.value).split()))


def _code(path: Path) -> Iterator[Text]:
    """Yield names, comments and docstrings of a file, those of private functions too; a name with spaces for its _."""
    name = str(path.relative_to(ROOT))
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME:
            yield Text(name, token.start[0], token.string.replace("_", " "))
        elif token.type == tokenize.COMMENT:
            yield Text(name, token.start[0], token.string)
    for _, docstring in _documented(_parsed(path)):
        yield Text(name, docstring.lineno, " ".join(str(docstring.value).split()))


def _paragraphs(path: Path, text: str, line: int = 1) -> Iterator[Text]:
    """Yield the paragraphs of a page, its code apart: `code` in a line is a name."""
    name = str(path.relative_to(ROOT))
    for part in re.split(
        r"\n(?=\n|[-|#])", re.sub(r"`[^`\n]+`", lambda code: "`" + "_" * (len(code[0]) - 2) + "`", text)
    ):
        yield Text(name, line + len(part) - len(part.lstrip("\n")), " ".join(part.split()))
        line += part.count("\n") + 1


def _notebook(path: Path) -> Iterator[Text]:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            yield from _paragraphs(path, "".join(cell["source"]))


def _read() -> Iterator[Text]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield from _strings(path)
    for path in sorted((SOURCE / "report").rglob("*.j2")):
        yield from _paragraphs(path, path.read_text(encoding="utf-8"))
    changes = ROOT / "CHANGELOG.md"
    yield from _paragraphs(changes, "\n## ".join(changes.read_text(encoding="utf-8").split("\n## ")[:2]))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield from _paragraphs(path, path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        yield from _notebook(path)


def _allowed(read: Text, word: str) -> bool:
    return any(
        re.search(place.path, read.path) and re.search(place.text, read.text if place.text[0] == "^" else word)
        for place in ALLOWED
    )


def complaints(texts: Iterator[Text]) -> list[str]:
    """Return a line for each refused word: file, line, the word, and what to write instead."""
    return [
        f"{read.path}:{read.line}: '{match[0]}': write {refused.instead}"
        for read in texts
        for refused in REFUSED
        for match in re.finditer(refused.pattern, read.text)
        if not _allowed(read, match[0])
    ]


def test_what_people_read_has_no_refused_word() -> None:
    said = complaints(_read())
    assert not said, "\n".join(["the glossary refuses:", *said])


def test_names_comments_and_docstrings_of_the_code_have_no_refused_word() -> None:
    texts = [text for path in sorted(SOURCE.rglob("*.py")) for text in _code(path)]
    named = [
        f"{text.path}:{text.line}: the name {name}: see the glossary"
        for text in texts
        if (name := text.text.strip().replace(" ", "_")) in REFUSED_NAMES
    ]
    said = [*complaints(iter(texts)), *named]
    assert not said, "\n".join(["the glossary refuses:", *said])


def _variables(path: Path) -> Iterator[Text]:
    """Yield the names that a function of a file binds: its parameters, and what it assigns."""
    for function in ast.walk(_parsed(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.arg):
                    yield Text(str(path.relative_to(ROOT)), node.lineno, node.arg)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield Text(str(path.relative_to(ROOT)), node.lineno, node.id)


def test_variables_are_nouns() -> None:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if SOURCE / "workloads" not in path.parents]
    said = {
        f"{text.path}:{text.line}: the variable {text.text}: name what it holds"
        for path in paths
        for text in _variables(path)
        if text.text in REFUSED_VARIABLES
    }
    assert not said, "\n".join(sorted(said))


def test_files_are_named_after_what_they_hold() -> None:
    said = [
        f"{path.relative_to(ROOT)}: a noun says what it holds"
        for path in sorted(SOURCE.rglob("*.py"))
        if set(path.stem.split("_")) & set(REFUSED_FILE_WORDS)
    ]
    assert not said, "\n".join(said)


def test_public_docstrings_begin_with_what_the_function_does_or_returns() -> None:
    texts = (text for path in sorted(SOURCE.rglob("*.py")) for text in _public_docstrings(path))
    said = [
        f"{text.path}:{text.line}: '{text.text[:60]}': begin with a verb or a noun"
        for text in texts
        if QUESTION.match(text.text)
    ]
    assert not said, "\n".join(said)


def test_a_refused_word_is_named_with_its_place_and_what_to_write() -> None:
    texts = iter(
        [
            Text("docs/a.md", 7, "The own cost of a kind of op"),
            Text("docs/a.md", 8, "floating-point operations of the rest"),
        ]
    )
    assert complaints(texts) == [
        "docs/a.md:7: 'kind of op': write operator (op)",
        "docs/a.md:7: 'own cost': write profiling overhead",
    ]
