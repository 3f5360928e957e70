"""Sizes and types of tensors that a script saves, from which it gets others when it loads."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_KEPT_WHOLE = 1024  # B: a smaller tensor keeps its numbers, as a count of steps


@dataclass(frozen=True)
class _Sizes:
    """A tensor without its storage; tensors of one storage have one again."""

    kind: type | None  # of a parameter
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    learns: bool
    storage: int
    elements: int  # of the storage

    def new_tensor(self, storages: dict[tuple[int, torch.dtype], Tensor]) -> Tensor:
        """Return a new tensor like it."""
        key = self.storage, self.dtype
        if key not in storages:
            storages[key] = torch.zeros(self.elements, dtype=self.dtype, device=self.device)
        tensor = storages[key].as_strided(self.shape, self.stride, self.offset)
        return nn.Parameter(tensor, self.learns) if self.kind is not None else tensor.requires_grad_(self.learns)


def make_restorer(content: Any) -> Callable[[], Any]:
    """Return what gives content back, with other tensors: it keeps none, but for small ones; arrays it keeps."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(content)
    except Exception:  # content that torch.save would refuse, or that __reduce__ of somebody's cannot give
        return functools.partial(copy.deepcopy, content)
    return functools.partial(_loaded, file.getvalue(), pickler.contents)


def _loaded(written: bytes, contents: list[Any]) -> Any:
    return _Unpickler(io.BytesIO(written), contents).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.contents: list[Any] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> int | None:
        if not (isinstance(thing, Tensor) or hasattr(type(thing), "__array_interface__")):
            return None
        if id(thing) not in self._places:
            self._places[id(thing)] = len(self.contents)
            self.contents.append(_sizes_of(thing) if isinstance(thing, Tensor) else thing)
        return self._places[id(thing)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, contents: list[Any]) -> None:
        super().__init__(file)
        self._contents, self._restored = contents, dict[int, Any]()
        self._storages: dict[tuple[int, torch.dtype], Tensor] = {}

    def persistent_load(self, place: Any) -> Any:
        if place not in self._restored:
            content = self._contents[place]
            restored = content.new_tensor(self._storages) if isinstance(content, _Sizes) else copy.deepcopy(content)
            self._restored[place] = restored
        return self._restored[place]


def _sizes_of(tensor: Tensor) -> _Sizes | Tensor:
    if tensor.layout is not torch.strided or tensor.nbytes <= _KEPT_WHOLE:
        return tensor.detach() if tensor.grad_fn is not None else tensor
    storage = tensor.untyped_storage()
    return _Sizes(
        nn.Parameter if isinstance(tensor, nn.Parameter) else None, tuple(tensor.shape), tensor.stride(),
        int(tensor.storage_offset()), tensor.dtype, tensor.device, tensor.requires_grad, storage._cdata,
        storage.nbytes() // tensor.element_size(),
    )  # fmt: skip
