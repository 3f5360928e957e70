"""The samples that a model is called with, and of the batches that data loaders give: which side is the batch.

Recurrent layers and attention within it know (`BatchWitness`); of a vector the output tells. What a shape told twice
counts from then on, so that calls which repeat are not watched for it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from stepscope.record import torch_private
from stepscope.record.ops.modules import module_and_descendants
from stepscope.record.sample_count import SampleCount, first_dimension, first_tensor, telling_tensor, tensors_in

_SURE = 2  # calls in a row with inputs of a shape that told the same: the next ones are not asked
_MOST_SHAPES = 64  # that are remembered


class CallSamples:
    """Tells `samples` of each call of a model; note_calls sends a witness to all calls, and says whether it could."""

    def __init__(self, samples: SampleCount, note_calls: Callable[[BatchWitness | None], bool]) -> None:
        self._samples, self._note_calls = samples, note_calls
        self._axis: dict[int, int] = {}  # of models: the axis of the input that has the batch
        self._telling: dict[int, bool | None] = {}
        # of models and shapes of their input that leave it open: the axis that calls told, and how often in a row
        self._axis_of_shape: dict[tuple[int, tuple[Any, ...]], tuple[int | None, int]] = {}
        # of the call that is under way: a model whose axis its call will tell; one with a vector, and its length
        self._call: tuple[int, tuple[Any, ...], BatchWitness | None] | None = None
        self._unbatched: tuple[int, int] | None = None
        self.input_shape: list[int] | None = None  # of one sample

    @property
    def awaits_output(self) -> bool:
        """Return whether only the output of the call that is under way tells its samples."""
        return self._call is not None or self._unbatched is not None

    def forget(self, number: int) -> None:
        """Note that the model of this number is gone."""
        self._axis.pop(number, None)
        self._telling.pop(number, None)

    def called(self, module: nn.Module, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An outermost module is called, with gradients."""
        with torch._C.DisableTorchFunction():
            packed = packed_samples(args, kwargs)
            if packed is not None:
                self._samples.called(number, packed, True)
                return
            tensor = telling_tensor(args, kwargs)
            if tensor is None:
                return
            self._samples.note_input(tensor)
            size = first_dimension(tensor)
            self._unbatched = None
            if size is None:
                return
            if tensor.is_nested:
                self._samples.called(number, size, True)
                return
            shape, mapped = tuple(tensor.shape), mapped_samples(tensor)
            if mapped > 1 and shape:
                self._samples.called(number, mapped if _is_one_sample(module, shape) else mapped * size, True)
                return
            if len(shape) > 1 and number not in self._axis and self._ask_for_axis(module, number, shape):
                return
            axis = self._axis.get(number, 0)
            if axis and len(shape) > axis:
                self._count_along_axis(axis, number, shape)
                return
            if tensor.dim() == 1 and tensor.is_floating_point():
                if self._is_sure(number, shape):
                    self._count_vector(number, size, self._axis_of_shape[number, shape][0] == 0)
                else:
                    self._unbatched = number, size  # a batch of numbers or one sample: its output tells
                return
            self._samples.called(number, size, True)
            self.input_shape = [n for n in shape[1:] if type(n) is int]

    def _ask_for_axis(self, module: nn.Module, number: int, shape: tuple[Any, ...]) -> bool:
        """Return whether the samples of this call are known only when it has returned: some module within it tells."""
        if number not in self._telling:
            parts = [part for part in module_and_descendants(module) if isinstance(part, TELLING)]
            all_first = all(isinstance(p, nn.RNNCellBase) or vars(p).get("batch_first", False) for p in parts)
            self._telling[number] = all_first if parts else None
        if self._telling[number] is None:
            return False
        if self._is_sure(number, shape):
            self._count_along_axis(self._axis_of_shape[number, shape][0], number, shape)
            return True
        witness = BatchWitness()
        self._call = number, shape, witness if self._note_calls(witness) else None
        return True

    def _count_by_seen_axis(self) -> None:
        """The call has returned: the axis in which it was given what the modules within it were given as a batch.

        Where they were not seen, or disagree, the first axis counts only if no module within has its batch in another.
        """
        if self._call is None:
            return
        (number, shape, witness), self._call = self._call, None
        axis = None
        if witness is not None:
            self._note_calls(None)
            axis = witness.axis(shape)
            if axis is not None and shape[0] != shape[1]:
                self._axis[number] = axis
        if axis is None and self._telling[number] and not (witness and witness.sizes):
            axis = 0
        if witness is not None:
            self._remember_axis(number, shape, axis)
        self._count_along_axis(axis, number, shape)

    def _is_sure(self, number: int, shape: tuple[Any, ...]) -> bool:
        """Return whether calls of this model with inputs of this shape have told the same often enough."""
        plain = all(type(n) is int for n in shape)
        return plain and self._axis_of_shape.get((number, shape), (None, 0))[1] >= _SURE

    def _remember_axis(self, number: int, shape: tuple[Any, ...], axis: int | None) -> None:
        """Remember what a call with an input of this shape told."""
        if all(type(n) is int for n in shape) and len(self._axis_of_shape) < _MOST_SHAPES:
            before, times = self._axis_of_shape.get((number, shape), (axis, 0))
            self._axis_of_shape[number, shape] = axis, times + 1 if axis == before else 1

    def _count_along_axis(self, axis: int | None, number: int, shape: tuple[Any, ...]) -> None:
        """Note a call of a model with an input of this shape, whose samples lie along this axis; None: not known."""
        if axis is None:
            self._samples.called(number, None, True)
            return
        self._samples.called(number, shape[axis] if type(shape[axis]) is int else None, True)
        self.input_shape = [n for index, n in enumerate(shape) if index != axis and type(n) is int]

    def _count_pending_vector(self, output: Any) -> None:
        """A vector went in: if as many numbers come out it was a batch of numbers, else the values of one sample."""
        if self._unbatched is None:
            return
        (number, size), self._unbatched = self._unbatched, None
        with torch._C.DisableTorchFunction():
            tensor = first_tensor(output)
            batched = tensor is not None and first_dimension(tensor) == size
        self._remember_axis(number, (size,), 0 if batched else None)
        self._count_vector(number, size, batched)

    def _count_vector(self, number: int, size: int, batched: bool) -> None:
        """Note a call of a model with a vector of so many numbers: so many samples, or one."""
        self._samples.called(number, size if batched else 1, batched)
        self.input_shape = [] if batched else [size]

    def returned(self, output: Any) -> None:
        """Note that the call has returned."""
        self._count_by_seen_axis()
        self._count_pending_vector(output)

    def raised(self) -> bool:
        """Note that the call ended with an exception; return whether its samples were told."""
        counted, self._call = self._call is None, None
        if not counted:
            self._note_calls(None)
        return counted


def packed_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The sequences of a PackedSequence among the inputs of a model: those that are there at the first time step."""
    packed = next((value for value in (*args, *kwargs.values()) if type(value) is PackedSequence), None)
    first = None if packed is None else torch_private.first_bytes(packed.batch_sizes, 8)  # int64, always in RAM
    return None if first is None else int.from_bytes(first, sys.byteorder)


def mapped_samples(tensor: torch.Tensor) -> int:
    """Return how many samples a tensor stands for within `torch.vmap`, which hides them: 1 outside it."""
    functorch, samples = torch._C._functorch, 1
    while functorch.is_functorch_wrapped_tensor(tensor):
        inner = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor):
            samples *= inner.shape[functorch.maybe_get_bdim(tensor)]
        tensor = inner
    return samples


def unwrapped(tensor: Any) -> Any:
    """Return what a transform of `torch.func` made a tensor of: the nn.Parameter that `grad` differentiates by, say."""
    functorch = torch._C._functorch
    while isinstance(tensor, torch.Tensor) and functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _is_one_sample(module: nn.Module, shape: tuple[Any, ...]) -> bool:
    """Return whether an input within `torch.vmap` has no batch of its own: a vector, or what a convolution takes so."""
    first = next((part for part in module_and_descendants(module) if isinstance(part, _Convolution)), None)
    return len(shape) == 1 or (first is not None and len(shape) == len(first.kernel_size) + 1)


_Convolution = nn.modules.conv._ConvNd
TELLING = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


class BatchWitness:
    """Witness of the calls within one call of a model; `sizes` are the batch sizes of the layers that know theirs."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._thread = threading.get_ident()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called."""
        if isinstance(module, TELLING) and threading.get_ident() == self._thread:
            size = _batch_size_of_layer(module, args[0] if args else kwargs.get("input", kwargs.get("query")))
            if size is not None and size not in self.sizes:
                self.sizes.append(size)

    def leave(self) -> None:
        """Note that a module call has returned."""

    def axis(self, shape: tuple[Any, ...]) -> int | None:
        """The axis of an input of this shape that has the batch; None where more than one may be, or none is."""
        fitting = [axis for axis, size in enumerate(shape[:2]) if size in self.sizes]
        if len(fitting) == 2 and shape[0] == shape[1]:
            return fitting[0]  # as many samples either way
        return fitting[0] if len(fitting) == 1 else None


def _batch_size_of_layer(module: nn.Module, argument: Any) -> int | None:
    """The samples in what this module is given; None where it is unbatched, packed or something else."""
    if not isinstance(argument, torch.Tensor):
        return None
    with torch._C.DisableTorchFunction():
        shape = tuple(argument.shape)
    if isinstance(module, nn.RNNCellBase):
        size = shape[0] if len(shape) == 2 else None
    else:
        first = bool(vars(module).get("batch_first", False))
        size = shape[0 if first else 1] if len(shape) == 3 else None
    return size if type(size) is int else None


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
