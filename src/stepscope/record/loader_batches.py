"""The samples of a batch that a data loader gave: its batch size, or fewer in the last one."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch

from stepscope.record.sample_count import first_dimension, first_tensor, tensors_in


class LoaderBatches:
    """The samples of the batches of data loaders, where full ones tell what the last, smaller one is.

    After a batch whose first side is the loader's batch size a shorter one is that last one, though its second side may
    be as long; a further one shows that the first side is another (sequences of any length).
    """

    _MOST = 8  # iterators that are remembered

    def __init__(self) -> None:
        self._short: dict[int, tuple[weakref.ref[Any], int]] = {}  # by iterator: shorter batches after a full one

    def samples(self, iterator: Any, batch: Any) -> int | None:
        """Return the samples of a batch; None where nothing tells."""
        stated, key = _stated_batch_size(iterator), id(iterator)
        with torch._C.DisableTorchFunction():
            tensor = first_tensor(batch)
            side = None if tensor is None else first_dimension(tensor)
        if not isinstance(stated, int) or side is None:
            return batch_size(iterator, batch)
        reference, short = self._short.get(key, (None, 0))
        follows_full = reference is not None and reference() is iterator
        if side == stated and not follows_full:
            with contextlib.suppress(TypeError):  # it takes no weak references
                self._short[key] = weakref.ref(iterator), 0
            for former in list(self._short)[: -self._MOST]:
                del self._short[former]
        elif reference is not None and follows_full and side != stated:
            self._short[key] = reference, short + 1
        return batch_size(iterator, batch, is_last=follows_full and side < stated and short == 0)


def _stated_batch_size(iterator: Any) -> Any:
    return getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)


def batch_size(iterator: Any, batch: Any, is_last: bool = False) -> int | None:
    """The samples of a data loader's batch: its batch size where the first tensor has it as one of its first sides.

    Not as the second one where a column, of targets say, is as long as the first: that is a last, smaller batch; nor
    where other batches have told so (is_last).
    """
    stated = _stated_batch_size(iterator)
    with torch._C.DisableTorchFunction():
        tensor = first_tensor(batch)
        if tensor is None or not tensor.dim():
            length = len(batch) if type(batch) in (list, tuple) else None
            return stated if isinstance(stated, int) else length
        sides = [tensor.size(0)] if tensor.is_nested else [side for side in tensor.shape[:2] if type(side) is int]
        listed = _size_of_list_batch(batch, stated)
        if is_last or any(column.dim() == 1 and column.size(0) == sides[0] for column in tensors_in(batch) if sides):
            sides = sides[:1]
    if listed is None and isinstance(stated, int) and (stated in sides or (sides and sides[0] > stated)):
        return stated
    return listed or (sides[0] if sides else None)


def _size_of_list_batch(batch: Any, most: Any) -> int | None:
    """The samples of a batch that is a list of images, another of targets: as long as each other, not stacked."""
    if type(batch) not in (list, tuple) or len(batch) < 2 or not isinstance(most, int):
        return None
    lengths = {len(column) if type(column) in (list, tuple) else None for column in batch}
    length = lengths.pop() if len(lengths) == 1 else None
    if length is None or not 0 < length <= most:
        return None
    stacked = len({tensor.size(0) for tensor in tensors_in(batch) if tensor.dim()}) == 1  # pairs of pairs, for one
    return None if stacked else length
