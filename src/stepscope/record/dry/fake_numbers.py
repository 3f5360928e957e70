"""Tensors without numbers, and what a program gets that asks them for some.

Small tensors that a program makes of nothing but numbers (masks, positions, sizes, whole numbers that are drawn) keep
them, so that a model which looks at its mask goes on as it would, and a length that was drawn is one. All else is made
up: a number, an array, a choice of elements. An array holds its tensor, whose memory it shares, and takes none of its
own until it is written to. A choice takes all elements: the most that it can.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from stepscope.record.dry.missing_fake_rules import FILLED

_aten = torch.ops.aten


_KNOWN = 65_536  # elements at the most
_KNOWN_OF_AN_ORDER = 1 << 22  # of a permutation: who splits a data set makes a list of it
_ORDERS = frozenset((_aten.randperm.default, _aten.randperm.generator))
# Of these the cache of fake tensors would keep the storages that they are given for ever: those of a loaded file.
_TAKE_STORAGES = frozenset(getattr(_aten.set_, name) for name in ("source_Storage", "source_Storage_storage_offset"))
_MAKERS = frozenset(
    getattr(getattr(_aten, name), overload)
    for name, overloads in (
        ("arange", ("default", "start", "start_step")), ("eye", ("default", "m")), ("full", ("default",)),
        ("ones", ("default",)), ("scalar_tensor", ("default",)), ("zeros", ("default",)),
        ("randint", ("default", "generator", "low", "low_generator")), ("randperm", ("default", "generator")),
    )
    for overload in overloads
)  # fmt: skip


class FakeMode(FakeTensorMode):
    """Tensors without numbers. A copy of a tensor (an EMA's, of a checkpoint) is of the same mode as the original.

    torch copies the mode with the tensor, and each of its ops then takes memory for a tensor of another mode.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._plain: list[contextlib.ExitStack] = []

    def __deepcopy__(self, memo: Any) -> FakeMode:
        return self

    def __enter__(self) -> FakeMode:
        self._plain.append(contextlib.ExitStack())
        for owner, name, value in (
            (torch.utils, "swap_tensors", _set_data_from), (FakeTensor, "__deepcopy__", _deepcopy_fake),
            (fake_tensor, "CONSTANT_NUMEL_LIMIT", _KNOWN), (torch.UntypedStorage, "data_ptr", _fake_data_ptr),
            (FakeTensor, "__format__", _format_fake),
            (fake_tensor.log, "disabled", True),  # of an op that fails it prints its own stack: the caller says where
            (torch.distributions.Distribution, "_validate_args", False),  # its parameters would have to show numbers
            *((owner, "isfinite", _fake_isfinite) for owner in (torch, Tensor)),
            *((owner, "all", _fake_all) for owner in (torch, Tensor)),
            *((FakeTensor, name, _leave_numbers) for name in ("apply_", "map_", "map2_")),  # torch crashes on these
            (FakeTensor, "tolist", _fake_tolist), (torch._C, "_InferenceMode", _fake_inference_mode),
            *((kind, "__new__", functools.partial(_new_lazy, kind.__new__)) for kind in _LAZY),
            *((kind, "materialize", _materialize_fake) for kind in _LAZY),
            *((owner, name, _fake_product(name)) for owner in (torch, Tensor) for name in ("prod", "cumprod")),
            *((owner, name, _fake_extreme(name)) for owner in (torch, Tensor) for name in ("max", "min")),
        ):  # fmt: skip
            self._plain[-1].callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._plain.pop().close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        filled = FILLED[func](*args, **kwargs) if func in FILLED and isinstance(args[0], FakeTensor) else NotImplemented
        if filled is not NotImplemented:
            return filled
        if func.is_view and args and isinstance(args[0], FakeTensor) and args[0].constant is not None:
            return _view_of_known(func, args, kwargs)
        plain, self.cache_enabled = self.cache_enabled, self.cache_enabled and func not in _TAKE_STORAGES
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.cache_enabled = plain
        most = _KNOWN_OF_AN_ORDER if func in _ORDERS else _KNOWN
        if func in _MAKERS and isinstance(out, FakeTensor) and out.constant is None and out.numel() <= most:
            with _disable_current_modes():
                _set_numbers(out, func(*args, **kwargs))
        return out


_plain_address, _plain_finite, _plain_all = torch.UntypedStorage.data_ptr, torch.isfinite, torch.all


def _format_fake(tensor: FakeTensor, how: str) -> str:
    with contextlib.suppress(DataDependentOutputException):
        return tensor.item().__format__(how) if tensor.dim() == 0 else object.__format__(tensor, how)
    return object.__format__(tensor, "")


def _leave_numbers(tensor: FakeTensor, *_: Any) -> FakeTensor:
    return tensor


def _fake_tolist(tensor: FakeTensor) -> Any:
    """A list of the numbers that are known, or of one that is made up: each by itself takes a millisecond."""
    if tensor.constant is not None:
        with _disable_current_modes():
            return tensor.constant.tolist()
    return _nested_list(tensor.shape, tensor.reshape(-1)[0].item() if tensor.numel() else None)


def _nested_list(shape: Sequence[int], number: Any) -> Any:
    if shape:
        return [_nested_list(shape[1:], number) for _ in range(shape[0])]
    return number * 1.0 if isinstance(number, float) else number  # an object of its own, as each number is


def _fake_inference_mode(mode: bool = True) -> Any:
    """In inference mode ops arrive as they were called, what they consist of is not seen: no gradients are the same."""
    return torch.set_grad_enabled(not mode)


_plain_products: dict[str, Callable[..., Tensor]] = {"prod": torch.prod, "cumprod": torch.cumprod}


def _fake_product(name: str) -> Callable[..., Tensor]:
    """A product along a dimension: its gradient is that of numbers none of which is 0, which takes the least memory.

    torch looks for zeros, which tensors without numbers cannot show, and then takes the way that holds for any.
    """

    def multiply(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(tensor, FakeTensor) or not (tensor.requires_grad and torch.is_grad_enabled()):
            return _plain_products[name](tensor, *args, **kwargs)
        return _Product.apply(tensor, name, args, kwargs)  # type: ignore[no-any-return,no-untyped-call]

    return multiply


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        out = _plain_products[name](tensor, *args, **kwargs)
        ctx.save_for_backward(tensor, out)
        ctx.name, ctx.dim = name, args[0] if args else kwargs.get("dim")
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        tensor, out = ctx.saved_tensors
        gradient = gradient.to(tensor.dtype)
        if ctx.dim is None:
            return gradient * (out / tensor), None, None, None
        if ctx.name == "cumprod":
            # Each has a name, since C++ keeps what an expression makes until its end.
            weighted, _zeros = out * gradient, tensor == 0
            backward = weighted.flip(ctx.dim)
            summed = backward.cumsum(ctx.dim)
            forward = summed.flip(ctx.dim)
            del backward, summed
            return forward.div(tensor), None, None, None
        if out.dim() < tensor.dim():
            gradient, out = gradient.unsqueeze(ctx.dim), out.unsqueeze(ctx.dim)
        _zeros = tensor == 0
        _zeros.sum(ctx.dim, True).sum()
        return (gradient * out).div(tensor), None, None, None


_plain_extremes: dict[str, Callable[..., Any]] = {"max": torch.max, "min": torch.min}


def _fake_extreme(name: str) -> Callable[..., Any]:
    """The largest or smallest of all elements: its gradient is that of a tensor with numbers, as `_fake_product`'s."""

    def reduce(*args: Any, **kwargs: Any) -> Any:
        of_all = len(args) == 1 and not kwargs and isinstance(args[0], FakeTensor)
        if of_all and args[0].requires_grad and torch.is_grad_enabled():
            return _Extreme.apply(args[0], name)  # type: ignore[no-untyped-call]
        return _plain_extremes[name](*args, **kwargs)

    return reduce


class _Extreme(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str) -> Tensor:
        out: Tensor = _plain_extremes[name](tensor)
        ctx.save_for_backward(tensor, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        tensor, out = ctx.saved_tensors
        mask = tensor == out
        shares = torch.zeros_like(tensor)
        return shares.masked_fill_(mask, gradient / mask.sum()), None


def _fake_isfinite(tensor: Tensor) -> Tensor:
    """A loss is taken to be finite, and so are gradients: who asks would end the training."""
    if isinstance(tensor, FakeTensor) and tensor.dim() == 0:
        return torch.full((), True)
    finite = _plain_finite(tensor)
    if isinstance(finite, FakeTensor):
        finite.is_true_everywhere = True  # type: ignore[attr-defined]
    return finite


def _fake_all(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if getattr(tensor, "is_true_everywhere", False) and not (args or kwargs):
        return torch.full((), True)
    return _plain_all(tensor, *args, **kwargs)


def _fake_data_ptr(storage: torch.UntypedStorage) -> int:
    """Tell storages without numbers apart: who saves a model looks for parameters that share one."""
    return storage._cdata if storage.device.type == "meta" else _plain_address(storage)


def _set_data_from(old: Tensor, new: Tensor) -> None:
    """Give a parameter what `model.to()` made of it, device too, without a swap, which refuses what is held twice."""
    if old is not new:
        old.data = new
        if isinstance(old, FakeTensor):
            old.fake_device = new.device


_LAZY = UninitializedParameter, UninitializedBuffer


def _new_lazy(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make what has no shape yet as a tensor of its own class, which a tensor without numbers cannot be."""
    with _disable_current_modes():
        return plain(*args, **kwargs)


def _materialize_fake(lazy: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Give what has no shape yet one: a tensor without numbers takes its place wherever it is held."""
    with _disable_current_modes():
        dtype = dtype or lazy.data.dtype
    made: Any = torch.empty(shape, device=device, dtype=dtype)
    made = torch.nn.Parameter(made, lazy.requires_grad) if isinstance(lazy, UninitializedParameter) else made
    for holder in gc.get_referrers(lazy):
        if isinstance(holder, (dict, list)):
            places = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for place in [place for place, value in places if value is lazy]:
                holder[place] = made


def _deepcopy_fake(tensor: FakeTensor, memo: Any) -> Tensor:
    if tensor.constant is not None:
        memo[id(tensor.constant)] = tensor.constant  # nothing writes to it
    gradient = tensor.grad if isinstance(tensor, torch.nn.Parameter) else None
    if gradient is not None:
        tensor.grad = None  # a copied parameter has none
    try:
        copied: Tensor = Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call]
    finally:
        if gradient is not None:
            tensor.grad = gradient
    return copied


def fake_of_tensor(tensor: Tensor, mode: FakeMode) -> Tensor:
    """Return a tensor without numbers in the place of one of the CPU; few whole numbers, as lengths are, are kept."""
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    if whole and tensor.numel() <= _KNOWN and tensor.device.type == "cpu":
        with _disable_current_modes():
            _set_numbers(fake, tensor.detach().clone())
    return fake


def _set_numbers(fake: Any, numbers: Tensor) -> None:
    fake.constant = numbers
    fake.fake_mode.fake_tensor_converter.add_constant_storage_mapping(fake)


def _view_of_known(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return views of a tensor that keeps its numbers: they have theirs, and its memory, where torch would make new."""
    tensor: FakeTensor = args[0]
    numbers, tensor.constant = tensor.constant, None
    try:
        out = func(*args, **kwargs)
    finally:
        tensor.constant = numbers
    with _disable_current_modes():
        parts = func(numbers, *args[1:], **kwargs)
    for view, part in zip(tree_leaves(out), tree_leaves(parts), strict=True):
        _set_numbers(view, part)
    return out


class _Pages(mmap.mmap):
    tensor: Tensor


@contextlib.contextmanager
def arrays_of_fakes(looked: Callable[[], None]) -> Iterator[None]:
    """Let tensors without numbers be turned into arrays; `looked` hears of each."""
    plain = Tensor.numpy

    def numpy(tensor: Tensor, *, force: bool = False) -> Any:
        if not isinstance(tensor, FakeTensor):
            return plain(tensor, force=force)
        import numpy as np

        if tensor.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        looked()
        with _disable_current_modes():
            kind = plain(torch.empty(0, dtype=tensor.dtype)).dtype
        pages = _Pages(-1, max(1, tensor.numel() * kind.itemsize))
        pages.tensor = tensor
        return np.frombuffer(pages, dtype=kind, count=tensor.numel()).reshape(tuple(tensor.shape))

    Tensor.numpy = numpy  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Tensor.numpy = plain  # type: ignore[method-assign]


def data_dependent_result(func: Any, args: tuple[Any, ...]) -> Any:
    """Return what an op gives whose result depends on numbers, at its largest; NotImplemented for any other op."""
    if func is _aten.equal.default:
        return True
    if func in _COMPARED and any(map(_is_made_up, args)) and all(getattr(arg, "ndim", 0) == 0 for arg in args):
        return _fake_comparison(func, *args)
    if func is _aten.nonzero.default:
        return args[0].new_zeros((args[0].numel(), args[0].dim()), dtype=torch.long)
    if func is _aten.masked_select.default:
        return args[0].new_empty(torch.broadcast_tensors(args[0], args[1])[0].numel())  # type: ignore[no-untyped-call]
    if func is _aten._unique2.default:
        return _fake_unique(*args)
    if func is _aten.bincount.default and len(args) > 2 and args[2] > 0:  # as many classes as are counted
        return args[0].new_zeros(args[2], dtype=torch.long if args[1] is None else torch.double)
    if func is _aten.index.Tensor and any(_is_mask(index) for index in args[1]):
        places = [place for index in args[1] for place in (_fake_mask_indices(index) if _is_mask(index) else [index])]
        return func(args[0], places)
    return NotImplemented


_COMPARED = {getattr(getattr(_aten, name), kind) for name in ("lt", "le", "gt", "ge") for kind in ("Scalar", "Tensor")}


def _is_made_up(number: Any) -> bool:
    real = isinstance(number, FakeTensor) and number.is_floating_point()
    return real and number.constant is None


def _fake_comparison(func: Any, *numbers: Any) -> Any:
    """Compare a number that is made up, as a loss: as the 1.0 that whoever reads it gets."""
    out = func(*numbers)
    with _disable_current_modes():
        known = [torch.ones(()) if _is_made_up(number) else getattr(number, "constant", number) for number in numbers]
        _set_numbers(out, func(*known))
    return out


def _fake_unique(tensor: Tensor, _sorted: bool = True, inverse: bool = False, counts: bool = False) -> Any:
    """Return what torch.unique gives of numbers that are all different."""
    places = tensor.new_zeros(tensor.shape if inverse else 0, dtype=torch.long)
    return tensor.new_empty(tensor.numel()), places, tensor.new_zeros(tensor.numel() if counts else 0, dtype=torch.long)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _fake_mask_indices(mask: Tensor) -> list[Tensor]:
    return [mask.new_zeros(mask.numel(), dtype=torch.long) for _ in range(mask.dim())]
