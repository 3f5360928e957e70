"""The kernels that are timed: an operator with all its sizes, from a sweep along axes or from a step of a model."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from stepscope.errors import UsageError
from stepscope.experiments.kernels import OPS
from stepscope.record.dry.flops import on_meta

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


RULES = ("sgd", "momentum", "adam", "adamw")  # of the optimizer's update
AXES = {
    "conv": ("kernel", "batch", "channels", "size"),
    "depthwise": ("kernel", "batch", "channels", "size"),
    "linear": ("batch", "channels"),
    "lstm": ("batch", "channels", "size"),
    "attention": ("batch", "channels", "size"),
    "batch_norm": ("batch", "channels", "size"),
    "optimizer": ("parameters",),
}
_HEAD = 32  # channels of one head of attention, and the fewest


@dataclass(frozen=True)
class Kernel:
    """One operator. `sizes` is all that it needs; `place` where it lies in a sweep, empty for a shape of a model.

    count: how often a step of the model runs it. gradients: how many of these calls take a gradient of the weights, of
    the input; of a sweep none is known.
    """

    op: str
    sizes: Mapping[str, Any]
    place: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1
    gradients: Mapping[tuple[bool, bool], int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """A name for files, the same for the same sizes."""
        parts = (f"{name}{value}" for name, value in self.sizes.items())
        return "-".join((self.op, *parts))

    @property
    def label(self) -> str:
        """Return its usual name."""
        of = self.sizes
        if self.place or "kernel_height" not in of:
            return f"{self.op} {', '.join(f'{name} {value}' for name, value in (self.place or of).items())}"
        kernel, image = f"{of['kernel_height']}x{of['kernel_width']}", f"{of['height']}x{of['width']}"
        rare = [f", {name} {of[name]}" for name in ("stride", "dilation", "groups") if of[name] > 1]
        rare = rare[:-1] if self.op == "depthwise" else rare  # its groups are its channels
        return f"{self.op} {kernel}, {of['inputs']} to {of['outputs']}, batch {of['batch']}, {image}{''.join(rare)}"


@dataclass(frozen=True)
class KernelAxes:
    """The axes; each op takes those it has. Every axis goes through its values with the others at their centre.

    The sizes of kernels are crossed with the batches, as in the second paper. `size` is the side of an image, or the
    length of a sequence; `channels` are features where there are no channels.
    """

    kernels: tuple[int, ...]
    batches: tuple[int, ...]
    channels: tuple[int, ...]
    sizes: tuple[int, ...]
    parameters: tuple[int, ...]

    def of(self, op: str) -> list[Kernel]:
        """The kernels of one op, each once."""
        kernels = {kernel.id: kernel for kernel in self._kernels_along_axes(op)}
        return list(kernels.values())

    def _kernels_along_axes(self, op: str) -> Iterator[Kernel]:
        if op == "optimizer":
            for rule in RULES:
                for count in self.parameters:
                    yield Kernel(op, {"rule": rule, "parameters": count}, {"rule": rule, "parameters": count})
            return
        along = {"kernel": self.kernels, "batch": self.batches, "channels": self.channels, "size": self.sizes}
        axes = {axis: along[axis] for axis in AXES[op]}
        centre = {axis: axis_centre(axis, values) for axis, values in axes.items()}
        places = [{**centre, axis: value} for axis, values in axes.items() for value in values]
        if "kernel" in axes:
            places += [{**centre, "kernel": k, "batch": b} for k in self.kernels for b in self.batches]
        for place in places:
            yield Kernel(op, _SIZES[op](place), place)


def sweep_kernels(ops: tuple[str, ...], sweep: KernelAxes) -> list[Kernel]:
    """All kernels of a sweep over these ops; UsageError where nothing is left of it."""
    kernels = [kernel for op in ops for kernel in sweep.of(op)]
    if not kernels:
        raise UsageError("there is no kernel to time", f"name one or more of: --ops {','.join(OPS)}")
    return kernels


def same_padding_conv_sizes(place: Mapping[str, int], groups: int = 1) -> dict[str, int]:
    """The sizes of a convolution that keeps the size of its image: as many channels out as in."""
    kernel, channels, size = place["kernel"], place["channels"], place["size"]
    return {
        "batch": place["batch"], "inputs": channels, "height": size, "width": size, "outputs": channels,
        "kernel_height": kernel, "kernel_width": kernel, "stride": 1, "padding_height": kernel // 2,
        "padding_width": kernel // 2, "dilation": 1, "groups": groups,
    }  # fmt: skip


def _attention_sizes(of: Mapping[str, int]) -> dict[str, int]:
    heads = max(1, of["channels"] // _HEAD)
    return {"batch": of["batch"], "heads": heads, "length": of["size"], "head": of["channels"] // heads}


_SIZES: Mapping[str, Callable[[Mapping[str, int]], dict[str, int]]] = {
    "conv": same_padding_conv_sizes,
    "depthwise": lambda of: same_padding_conv_sizes(of, of["channels"]),
    "linear": lambda of: {"batch": of["batch"], "inputs": of["channels"], "outputs": of["channels"]},
    "lstm": lambda of: {
        "batch": of["batch"], "length": of["size"], "inputs": of["channels"], "hidden": of["channels"]
    },
    "attention": _attention_sizes,
    "batch_norm": lambda of: {
        "batch": of["batch"], "channels": of["channels"], "height": of["size"], "width": of["size"]
    },
}  # fmt: skip


def axis_centre(axis: str, values: tuple[int, ...]) -> int:
    """Return the place of an axis while another is gone through: 3 for kernels where it is given, else the middle."""
    return 3 if axis == "kernel" and 3 in values else values[len(values) // 2]


KernelKey = tuple[str, tuple[tuple[str, Any], ...]]


def kernels_of(workload: Workload, batch: int | None, ops: Sequence[str]) -> list[Kernel]:
    """The kernels of these kinds in a step of a workload, most frequent first; UsageError where there is none."""
    model = on_meta(workload.build().train())
    size = batch or workload.default_batch
    counter = _CallCounter()
    with torch.random.fork_rng(devices=[]), torch.device("meta"), counter, contextlib.suppress(NotImplementedError):
        workload.loss(model, tree_map(_without_numbers, workload.example(size)))
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rule = workload.default_optimizer if workload.default_optimizer in RULES else "sgd"
    counter.counts["optimizer", (("rule", rule), ("parameters", parameters))] = 1
    kernels = [
        Kernel(op, dict(sizes), {}, count, counter.gradients[op, sizes])
        for (op, sizes), count in counter.counts.most_common() if op in ops
    ]  # fmt: skip
    if not kernels:
        has = ", ".join(sorted({op for op, _ in counter.counts}))
        raise UsageError(f"'{workload.name}' has no {' or '.join(ops)}", f"it has: {has}")
    return kernels


class _CallCounter(TorchFunctionMode):
    """Counts the calls of functions that have a kernel here, by their sizes, and which gradients each takes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[KernelKey] = Counter()
        self.gradients: defaultdict[KernelKey, Counter[tuple[bool, bool]]] = defaultdict(Counter)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), dict(kwargs or {})
        read = _READERS.get(name)
        if read is not None:
            tensors = (*args, *(options.pop(argument) for argument in _TENSORS[name][len(args) :]))
            for place, (op, sizes) in enumerate(read(*tensors, **options)):
                key = op, tuple(sizes.items())
                self.counts[key] += 1
                self.gradients[key][_gradients(op, place, tensors, options)] += 1
        return func(*args, **(kwargs or {}))


def _gradients(op: str, place: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether a call takes a gradient of its weights, and of its input; place: of a layer within the call."""
    if not torch.is_grad_enabled():
        return False, False
    arguments = [list(tree_leaves(value)) for value in (*args, *kwargs.values())]
    requires_gradient = [
        any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves) for leaves in arguments
    ]
    if op == "attention":
        return False, any(requires_gradient[:3])
    weights = (
        any(requires_gradient[1:]) if op in ("batch_norm", "lstm") else requires_gradient[1]
    )  # a bias alone takes next to nothing
    inner = op == "lstm" and place >= (2 if args[7] else 1)  # its input is what the layer below returns
    return weights, requires_gradient[0] or (inner and weights)


def _without_numbers(value: Any) -> Any:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _read_conv2d(
    x: Tensor, w: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Iterable[tuple[str, dict[str, int]]]:
    steps, holes = _height_and_width(stride), _height_and_width(dilation)
    if x.dim() != 4 or isinstance(padding, str) or steps[0] != steps[1] or holes[0] != holes[1]:
        return
    pads = _height_and_width(padding)
    sizes = {
        "batch": x.shape[0], "inputs": x.shape[1], "height": x.shape[2], "width": x.shape[3], "outputs": w.shape[0],
        "kernel_height": w.shape[2], "kernel_width": w.shape[3], "stride": steps[0], "padding_height": pads[0],
        "padding_width": pads[1], "dilation": holes[0], "groups": groups,
    }  # fmt: skip
    yield ("depthwise" if groups > 1 and groups == x.shape[1] else "conv", sizes)


def _read_linear(x: Tensor, w: Tensor, bias: Any = None) -> Iterable[tuple[str, dict[str, int]]]:
    yield "linear", {"batch": x.numel() // x.shape[-1], "inputs": w.shape[1], "outputs": w.shape[0]}


def _read_batch_norm(x: Tensor, *_: Any, **__: Any) -> Iterable[tuple[str, dict[str, int]]]:
    if x.dim() == 4:
        yield "batch_norm", dict(zip(("batch", "channels", "height", "width"), x.shape, strict=True))


def _read_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **_: Any
) -> Iterable[tuple[str, dict[str, int]]]:
    if q.dim() == 4 and q.shape == k.shape:
        sizes = {"batch": q.shape[0], "heads": q.shape[1], "length": q.shape[2], "head": q.shape[3]}
        yield "attention", {**sizes, "causal": 1} if is_causal else sizes


def _read_lstm(
    x: Tensor, _state: Any, weights: Sequence[Tensor], *options: Any
) -> Iterable[tuple[str, dict[str, int]]]:
    """One kernel a layer and direction; `rest` is has_biases, layers, dropout, training, bidirectional, batch_first."""
    has_biases, _layers, _dropout, _training, _both_ways, batch_first = options
    length, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    for first in weights[:: 4 if has_biases else 2]:
        hidden = first.shape[0] // 4
        yield "lstm", {"batch": batch, "length": length, "inputs": first.shape[1], "hidden": hidden}


def _height_and_width(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


_TENSORS = {  # what the functions below call their tensors, should a call name them
    "conv2d": ("input", "weight"), "linear": ("input", "weight"), "batch_norm": ("input",), "lstm": (),
    "scaled_dot_product_attention": ("query", "key", "value"),
}  # fmt: skip
_READERS: dict[str, Callable[..., Iterable[tuple[str, dict[str, int]]]]] = {
    "conv2d": _read_conv2d, "linear": _read_linear, "batch_norm": _read_batch_norm, "lstm": _read_lstm,
    "scaled_dot_product_attention": _read_attention,
}  # fmt: skip
