"""The layers of a training with JAX: named scopes that ops were seen in, with the parameters that bear their names."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import jax

from stepscope.record.jax.programs import Program
from stepscope.record.jax.rows import SEPARATOR

Scope = tuple[str, ...]


class Layers:
    """Scopes as a tree below the training's function, `()`."""

    def __init__(self) -> None:
        self._scopes: dict[Scope, None] = {}
        self._function: str | None = None
        self._parameters: list[tuple[Scope, int, int]] = []  # path, elements, bytes

    @property
    def has_scopes(self) -> bool:
        """Return whether any op lies in a named scope."""
        return any(self._scopes)

    def note_parameters(self, parameters: Any) -> None:
        """Note names and sizes of the parameters, and nothing else of them."""
        for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
            shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
            if shape is not None and dtype is not None:
                elements = math.prod(shape)
                self._parameters.append((tuple(map(_key, path)), elements, elements * dtype.itemsize))

    def add_program(self, program: Program) -> None:
        """Add the scopes of a program's ops, and those around them."""
        scopes = program.layers
        if not scopes:
            return
        self._function = self._function or program.name.removeprefix("jit_")
        for scope in scopes:
            for length in range(len(scope) + 1):
                self._scopes.setdefault(scope[:length])

    def rows(self) -> list[dict[str, Any]]:
        """Rows of model.json, parents before children."""
        owners = [self._owner(path) for path, _, _ in self._parameters]
        return [self._row(scope, owners) for scope in sorted(self._scopes, key=len)]

    def _row(self, scope: Scope, owners: list[Scope | None]) -> dict[str, Any]:
        below = [
            sizes
            for owner, (_, *sizes) in zip(owners, self._parameters, strict=True)
            if not scope or (owner is not None and owner[: len(scope)] == scope)
        ]
        return {
            "module": SEPARATOR.join(scope),
            "type": self._function if not scope else "scope",
            "parent": SEPARATOR.join(scope[:-1]) if scope else None,
            "parameters": sum(elements for elements, _ in below) if below else None,
            "bytes": sum(size for _, size in below) if below else None,
            "trainable": True,
            "flops_forward": None,
            "flops_backward": None,
            "update_share": None,
            "region": None,
        }

    def _owner(self, path: Scope) -> Scope | None:
        """The scope whose last names are those of a parameter's path; None where several are, or none is."""
        best: Counter[Scope] = Counter()
        for scope in self._scopes:
            for end in (len(path), len(path) - 1):
                best[scope] = max(best[scope], _common_suffix(scope, path[:end]))
        most = max(best.values(), default=0)
        owners = [scope for scope, alike in best.items() if alike == most]
        return owners[0] if most and len(owners) == 1 else None


def _common_suffix(scope: Scope, path: Scope) -> int:
    """Return how many names at the end of both are the same."""
    alike = 0
    for ours, theirs in zip(reversed(scope), reversed(path), strict=False):
        if ours != theirs:
            break
        alike += 1
    return alike


def _key(part: Any) -> str:
    """The name in a path of a tree: a key of a dictionary, a place in a list, or an attribute."""
    return str(next(getattr(part, name) for name in ("key", "idx", "name") if hasattr(part, name)))
