"""Compiled programs (HLO): for each instruction its layer, its phase, its floating-point operations and bytes.

XLA keeps in `op_name` where an instruction comes from: `jit(train_step)/transpose(jvp(encoder))/attention/dot_general`
is an op of the backward pass of the layer `encoder.attention`. Scopes are those of `jax.named_scope`; flax opens one
for each module. What lies outside of any gradient and needs one is an update; its layer is that of the gradient.

The serialized form is read field by field, since nothing else that reads it is installed with jax.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"
_TRANSFORM = re.compile(r"^(\w+)\((.*)\)$", re.DOTALL)
_FUNCTIONS = {"jit", "pjit", "xla_computation", "named_call"}  # whose names are no layers
_STRUCTURE = re.compile(
    r"^(while|body|cond|scan|closed_call|core_call|checkpoint|remat\w*|rematted_computation|branch_\d+_fun|"
    r"custom_jvp_call\w*|custom_vjp_call\w*|shard_map|xla_call|pjit)$"
)
_UPDATES = re.compile(r"optimi[sz]er|optax|update", re.IGNORECASE)
_CALLS_OTHERS = {"while", "conditional", "call"}  # whose instructions have events of their own
_SAYS_NOTHING = re.compile(r"^(\w+_)?fusion$|^custom-call$|^call$")
_PARTLY = {"dynamic-slice", "dynamic-update-slice", "gather", "scatter"}  # read or write a part of their source_number
_NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


@dataclass(frozen=True)
class OpLocation:
    """The location of an instruction in the training: layer (None: none), phase, and the primitive of jax."""

    layer: tuple[str, ...] | None
    phase: str
    primitive: str = ""


@dataclass(frozen=True)
class Op:
    """An instruction that has events: `name` without its number, and costs a call (None: not known)."""

    name: str
    layer: tuple[str, ...] | None
    phase: str
    flops: int | None
    bytes: int | None
    is_control_flow: bool = False


def parse_op_name(op_name: str) -> OpLocation:
    """Read `op_name` of an instruction's metadata; the phase is OTHER outside of gradients."""
    prefix: list[str] = []
    path = prefix
    phase, transformed = OTHER, False
    parts = _split_path(op_name.partition(";")[0])
    for part in parts[:-1]:
        wrappers, scope = _split_transformations(part)
        if _FUNCTIONS.intersection(wrappers):
            continue
        outermost = next((name for name in wrappers if name in ("jvp", "transpose")), None)  # within vmap and the like
        if outermost is not None:
            if not transformed:
                phase = BACKWARD if outermost == "transpose" else FORWARD
            path, transformed = list(prefix), True  # computed again, it begins anew
        if scope and not _STRUCTURE.match(scope):
            path.append(scope)
    inside = transformed or bool(path)
    return OpLocation(tuple(path) if inside else None, phase, parts[-1] if parts else "")


def _split_path(text: str) -> list[str]:
    """Split at slashes outside of parentheses."""
    parts, depth, begin = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]] if text else []


def _split_transformations(part: str) -> tuple[list[str], str]:
    """Return the transformations around a scope, the outermost first, and the scope."""
    wrappers: list[str] = []
    while match := _TRANSFORM.match(part):
        wrappers.append(match[1])
        part = match[2]
    return wrappers, part


@dataclass
class _Instruction:
    name: str = ""
    opcode: str = ""
    op_name: str = ""
    number: int = 0
    shape: tuple[int, ...] = ()
    bytes: int = 0  # of its result
    inputs: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    contracted: tuple[int, ...] = ()  # axes of the left source_number of a product
    window: int = 1  # products for each number that a convolution makes, but for its input's features
    kernel_input: int | None = None  # axis of a convolution's kernel
    flops: int | None = None


Computations = dict[int, list[_Instruction]]


@dataclass
class Program:
    """A compiled program: `ops` by the names of instructions, as events have them."""

    name: str = ""
    number: int = 0
    ops: dict[str, Op] = field(default_factory=dict)

    @property
    def layers(self) -> list[tuple[str, ...]]:
        """Every layer that an op is in, in the order of the program."""
        return list(dict.fromkeys(op.layer for op in self.ops.values() if op.layer is not None))


def read_program(data: bytes) -> Program:
    """Read an HloModuleProto."""
    program = Program()
    computations: Computations = {}
    for number, value in _protobuf_fields(data):
        if number == 1 and isinstance(value, bytes):
            program.name = value.decode(errors="replace")
        elif number == 5 and isinstance(value, int):
            program.number = value
        elif number == 3 and isinstance(value, bytes):
            identity, instructions = _read_computation(value)
            computations[identity] = instructions
    program.ops = _label_instructions(program.name, computations)
    return program


def _label_instructions(name: str, computations: Computations) -> dict[str, Op]:
    """Label every instruction of the computations that are not fused into one."""
    every = [instruction for instructions in computations.values() for instruction in instructions]
    fused = {call for instruction in every if instruction.opcode not in _CALLS_OTHERS for call in instruction.calls}
    ops: dict[str, Op] = {}
    for identity, instructions in computations.items():
        if identity in fused:
            continue
        locations = _locate_instructions(name, instructions, computations)
        sizes = {instruction.number: instruction.bytes for instruction in instructions}
        for instruction in instructions:
            if instruction.opcode not in _NO_WORK:
                ops[instruction.name] = _labelled_op(instruction, locations[instruction.number], sizes, computations)
    return ops


def _labelled_op(
    instruction: _Instruction, location: OpLocation, sizes: dict[int, int], computations: Computations
) -> Op:
    name, _, number = instruction.name.rpartition(".")
    name = name if name and number.isdecimal() else instruction.name
    if _SAYS_NOTHING.match(name) and location.primitive:
        name = f"{name} ({location.primitive})"
    if instruction.opcode in _CALLS_OTHERS:
        return Op(name, location.layer, location.phase, None, None, is_control_flow=True)
    work = [instruction, *_called_instructions(instruction, computations)]
    counted = [part.flops for part in work if part.flops is not None]
    moved = instruction.bytes + sum(sizes.get(source_number, 0) for source_number in instruction.inputs)
    whole = not any(part.opcode in _PARTLY for part in work)
    return Op(name, location.layer, location.phase, sum(counted) if counted else None, moved if whole else None)


def _called_instructions(instruction: _Instruction, computations: Computations) -> Iterator[_Instruction]:
    """Yield the instructions that one calls, and what those call."""
    for call in instruction.calls:
        for inner in computations.get(call, ()):
            yield inner
            yield from _called_instructions(inner, computations)


def _locate_instructions(
    program: str, instructions: list[_Instruction], computations: Computations
) -> dict[int, OpLocation]:
    """Place each instruction of a computation, whose inputs come first: by its metadata, else by its neighbours."""
    flow = _Flow.of(instructions, computations)
    for instruction in instructions:
        if instruction.number not in flow.locations:
            flow.locations[instruction.number] = flow.infer_location(instruction)
    if flow.has_gradients:
        for instruction in instructions:
            flow.settle_update(instruction)
        return flow.locations
    updates = {
        number: replace(location, phase=OPTIMIZER, layer=None)
        for number, location in flow.locations.items()
        if location.phase == OTHER and _UPDATES.search("/".join((program, *(location.layer or ()))))
    }
    return flow.locations | updates


@dataclass
class _Flow:
    """What the instructions of a computation are given, and what is made of it."""

    locations: dict[int, OpLocation]
    users: dict[int, list[_Instruction]]
    parameters: dict[int, int]  # of instructions that only hand one on: the parameter of the program
    products: set[int]  # the instructions that are or hold a matrix product or a convolution
    has_gradients: bool

    @classmethod
    def of(cls, instructions: list[_Instruction], computations: Computations) -> _Flow:
        locations: dict[int, OpLocation] = {}
        users: dict[int, list[_Instruction]] = defaultdict(list)
        parameters: dict[int, int] = {}
        products: set[int] = set()
        for instruction in instructions:
            work = (
                []
                if instruction.opcode in _CALLS_OTHERS
                else [instruction, *_called_instructions(instruction, computations)]
            )
            if any(part.flops is not None for part in work):
                products.add(instruction.number)
            for source_number in instruction.inputs:
                users[source_number].append(instruction)
            op_name = _most_specific_op_name(instruction, computations)
            if op_name:
                locations[instruction.number] = parse_op_name(op_name)
            elif instruction.opcode == "parameter":
                parameters[instruction.number] = instruction.number
            elif len(instruction.inputs) == 1 and instruction.inputs[0] in parameters:
                parameters[instruction.number] = parameters[instruction.inputs[0]]
        has_gradients = any(location.phase == BACKWARD for location in locations.values())
        return cls(locations, users, parameters, products, has_gradients)

    def input_locations(self, instruction: _Instruction) -> list[OpLocation]:
        """Return the locations of its inputs."""
        return [
            self.locations[source_number] for source_number in instruction.inputs if source_number in self.locations
        ]

    def infer_location(self, instruction: _Instruction) -> OpLocation:
        """The location of an instruction of which XLA has kept no name: some products in backward, copies, loops."""
        input_locations = self.input_locations(instruction)
        users = self.users[instruction.number]
        user_locations = [self.locations[user.number] for user in users if user.number in self.locations]
        if (
            instruction.number in self.products
            and self.has_gradients
            and all(location.phase != FORWARD for location in user_locations)
        ):
            layers = {location.layer for location in user_locations if location.phase == BACKWARD}
            layers = layers or {self._layer_of_parameter(user) for user in users}
            nearest = next((location.layer for location in input_locations if location.phase == BACKWARD), None)
            layer = _only_layer(layers)
            return OpLocation(nearest if layer is None else layer, BACKWARD)
        order = {BACKWARD: 0, FORWARD: 1}
        sources = sorted(
            (location for location in input_locations if location.layer is not None),
            key=lambda at: order.get(at.phase, 2),
        )
        return replace(sources[0], primitive="") if sources else OpLocation(None, OTHER)

    def settle_update(self, instruction: _Instruction) -> None:
        """Give what is outside of the gradients, and needs one, the phase of an update and the layer that it updates.

        That is the layer whose gradient it is given, else the one in which the parameter is used.
        """
        location, input_locations = self.locations[instruction.number], self.input_locations(instruction)
        if location.phase != OTHER or instruction.opcode == "tuple":
            return
        if not any(source.phase in (BACKWARD, OPTIMIZER) for source in input_locations):
            return
        layer = _only_layer(
            {source.layer for source in input_locations if source.phase == BACKWARD and source.layer is not None}
        )
        layer = self._layer_of_parameter(instruction) if layer is None else layer
        if layer is None:
            layer = _only_layer(
                {source.layer for source in input_locations if source.phase == OPTIMIZER and source.layer is not None}
            )
        self.locations[instruction.number] = replace(location, phase=OPTIMIZER, layer=layer)

    def _layer_of_parameter(self, instruction: _Instruction) -> tuple[str, ...] | None:
        """The layer in which the parameters that an instruction is given are used forward, where that is one."""
        layers: set[tuple[str, ...] | None] = set()
        for source_number in instruction.inputs:
            parameter = self.parameters.get(source_number)
            carriers = [number for number, source in self.parameters.items() if source == parameter]
            for user in (user for number in carriers for user in self.users[number]):
                location = self.locations.get(user.number)
                if location is not None and location.phase == FORWARD:
                    layers.add(location.layer)
        return _only_layer(layers)


def _only_layer(layers: set[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    return next(iter(layers)) if len(layers) == 1 else None


def _most_specific_op_name(instruction: _Instruction, computations: Computations) -> str:
    """The `op_name` that tells most of an instruction: of a fusion, that of its largest product."""
    if instruction.opcode in _CALLS_OTHERS:
        return instruction.op_name
    inner = list(_called_instructions(instruction, computations))
    products = [part for part in inner if part.flops is not None and part.op_name]
    if products:
        return max(products, key=lambda part: part.flops or 0).op_name
    if instruction.op_name or instruction.opcode in _NO_WORK:
        return "" if instruction.opcode == "parameter" else instruction.op_name
    named = Counter(part.op_name for part in inner if "/" in part.op_name)
    return named.most_common(1)[0][0] if named else ""


# Fields of hlo.proto and xla_data.proto, by their numbers, which do not change.

_ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 18: 16}


def _read_computation(data: bytes) -> tuple[int, list[_Instruction]]:
    identity, instructions = 0, []
    for number, value in _protobuf_fields(data):
        if number == 5 and isinstance(value, int):
            identity = value
        elif number == 2 and isinstance(value, bytes):
            instructions.append(_read_instruction(value))
    shapes = {instruction.number: instruction.shape for instruction in instructions}
    for instruction in instructions:
        instruction.flops = _product_flops(instruction, shapes)
    return identity, instructions


def _product_flops(instruction: _Instruction, shapes: dict[int, tuple[int, ...]]) -> int | None:
    """Floating-point operations of a matrix product or a convolution, two a multiplication; None of all else."""
    input_shapes = [shapes.get(source_number, ()) for source_number in instruction.inputs]
    if instruction.opcode == "dot" and input_shapes:
        terms = math.prod(input_shapes[0][axis] for axis in instruction.contracted if axis < len(input_shapes[0]))
    elif instruction.opcode == "convolution" and len(input_shapes) > 1 and instruction.kernel_input is not None:
        axis = instruction.kernel_input
        terms = instruction.window * (input_shapes[1][axis] if axis < len(input_shapes[1]) else 1)
    else:
        return None
    return 2 * math.prod(instruction.shape) * terms


def _read_instruction(data: bytes) -> _Instruction:
    instruction = _Instruction()
    for number, value in _protobuf_fields(data):
        if isinstance(value, int):
            if number == 35:
                instruction.number = value
            elif number == 36:
                instruction.inputs += (value,)
            elif number == 38:
                instruction.calls += (value,)
        elif number == 1:
            instruction.name = value.decode(errors="replace")
        elif number == 2:
            instruction.opcode = value.decode(errors="replace")
        elif number == 3:
            instruction.shape, instruction.bytes = _read_shape(value)
        elif number == 7:
            names = (text for field_, text in _protobuf_fields(value) if field_ == 2 and isinstance(text, bytes))
            instruction.op_name = next(names, b"").decode(errors="replace")
        elif number == 15:
            instruction.window = _window(value)
        elif number == 16:
            axes = (axis for field_, axis in _protobuf_fields(value) if field_ == 3 and isinstance(axis, int))
            instruction.kernel_input = next(axes, 0)  # 0 is not written
        elif number == 30:
            instruction.contracted = tuple(
                axis for field_, packed in _protobuf_fields(value) if field_ == 1 for axis in _numbers(packed)
            )
        elif number == 36:
            instruction.inputs = tuple(_numbers(value))
        elif number == 38:
            instruction.calls = tuple(_numbers(value))
    return instruction


def _read_shape(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return sizes of the axes, and bytes: of a tuple, of all that is in it."""
    element, axes, within = 0, [], 0
    for number, value in _protobuf_fields(data):
        if number == 2 and isinstance(value, int):
            element = value
        elif number == 3:
            axes += list(_numbers(value))
        elif number == 4 and isinstance(value, bytes):
            within += _read_shape(value)[1]
    return tuple(axes), within or _ELEMENT_BYTES.get(element, 0 if element in (0, 13, 14, 17) else 1) * math.prod(axes)


def _window(data: bytes) -> int:
    """Return the positions of a convolution's window, less those that fall on zeros between dilated inputs."""
    positions = 1.0
    for number, dimension in _protobuf_fields(data):
        if number == 1 and isinstance(dimension, bytes):
            sizes = {field_: value for field_, value in _protobuf_fields(dimension) if isinstance(value, int)}
            positions *= sizes.get(1, 1) / max(sizes.get(6, 1), 1)
    return max(round(positions), 1)


def _numbers(value: bytes | int) -> Iterator[int]:
    """Yield the numbers of a packed field, or of one that is not packed."""
    if isinstance(value, int):
        yield value
        return
    position = 0
    while position < len(value):
        number, position = _read_varint(value, position)
        yield number


def _protobuf_fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield (number, value) of each field of a protobuf message: a whole number, or bytes."""
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _read_varint(data, position)
            yield key >> 3, value
            continue
        if kind == 2:
            length, position = _read_varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind} is none of a protobuf message")
        yield key >> 3, data[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
