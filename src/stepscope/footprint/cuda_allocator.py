"""The caching allocator of CUDA, simulated on a log of allocations: what a training reserves on a GPU.

As torch 2.13 does it (c10/cuda/CUDACachingAllocator.cpp): sizes rounded up to 512 B, a pool of segments for small
blocks (to 1 MiB) and one for large ones, the smallest free block that is large enough, its rest split off, neighbours
merged when they are freed. A new segment is 2 MiB, 20 MiB, or from 10 MiB on the size in steps of 2 MiB; with
`expandable_segments` one range of addresses a pool grows in such steps. What the device no longer gives makes the
allocator give back what it keeps. `python -m benchmarks.cuda_snapshots` replays recordings of GPUs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stepscope.errors import StepscopeError
from stepscope.footprint.cuda_settings import INTERVALS, LARGE_SEGMENT
from stepscope.footprint.cuda_settings import Settings as Settings
from stepscope.footprint.cuda_settings import parse_settings as parse_settings

SMALLEST = 512  # B: every size is a multiple
SMALL = 1 << 20  # the largest block of the small pool
_FIRST_INTERVAL = 20  # power of two where the divisions between powers begin
_SMALL_SEGMENT = 2 << 20
_OWN_SEGMENT = 10 << 20  # from this size on a block gets a segment of its own
_ROUND_OWN = 2 << 20
_AS_IT_COMES = Settings()
_OFTEN = 128  # collections of garbage in a row at the most


class OutOfMemory(StepscopeError):
    """The device has no more memory, also after all that was kept was given back."""


def rounded_block_size(size: int, divisions: tuple[int, ...] = ()) -> int:
    """Return the bytes of the block that a tensor of so many takes at the least."""
    steps = divisions[min(max(size.bit_length() - 1 - _FIRST_INTERVAL, 0), INTERVALS - 1)] if divisions else 0
    if steps > 1 and size > SMALLEST * steps:
        below = 1 << (size.bit_length() - 1)
        return size if size == below else -(-size // (below // steps)) * (below // steps)
    return max(SMALLEST, -(-size // SMALLEST) * SMALLEST)


@dataclass(eq=False)
class Block:
    """A range of a segment, free or given out; `mapped` is false where an expandable segment has no memory yet."""

    address: int
    size: int
    segment: int  # address of the segment, or of the range that may grow
    small: bool
    stream: int = 0
    used: bool = False
    mapped: bool = True
    age: int = 0  # searches of its pool since it was freed, for the collection of garbage
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)

    @property
    def is_whole_segment(self) -> bool:
        """Return whether it is all of its segment."""
        return self.before is None and self.after is None

    @property
    def key(self) -> tuple[int, int]:
        """Return the sort key of a free block: size, then address."""
        return self.size, self.address


class CachingAllocator:
    """Gives blocks out and takes them back; sizes in B. `reserved` is what the device gave, `allocated` what is out."""

    def __init__(self, settings: Settings = _AS_IT_COMES) -> None:
        self.settings = settings
        self.reserved = self.reserved_peak = self.allocated = self.allocated_peak = 0
        self.used: dict[int, Block] = {}
        self.retries = 0  # how often the device had no more, and what was kept was given back
        self._free: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        self._blocks: dict[int, Block] = {}  # free and mapped, by address
        self._unmapped: dict[tuple[bool, int], list[Block]] = {}
        self._next_address = 1 << 40

    def allocate(self, size: int, stream: int = 0) -> int:
        """Return the address of a block for so many bytes; raises OutOfMemory."""
        rounded_size = rounded_block_size(size, self.settings.roundup_power2_divisions)
        small = rounded_size <= SMALL
        block = self._find_free_block(rounded_size, small, stream)
        if block is None:
            self._collect_garbage()
            block = self._block_of_new_segment(rounded_size, small, stream)
        if block is None:
            self._release_oversized(rounded_size)
            block = self._block_of_new_segment(rounded_size, small, stream)
        if block is None:
            self.retries += 1
            self.release_unused_segments()
            block = self._block_of_new_segment(rounded_size, small, stream)
        if block is None:
            raise OutOfMemory(f"{size} B do not fit beside {self.reserved} B", "take a smaller batch")
        return self._hand_out_block(block, rounded_size).address

    def free(self, address: int) -> None:
        """Take a block back, merged with free ones beside it."""
        block = self.used.pop(address)
        self.allocated -= block.size
        block.used, block.age = False, 0
        self._add_free_block(self._merge_with_neighbours(block))

    def release_unused_segments(self) -> None:
        """Return every segment of which no byte is in use to the device, as `torch.cuda.empty_cache()` does."""
        for block in list(self._blocks.values()):
            self._release(block)

    def adopt(self, address: int, size: int, small: bool, used: Iterable[tuple[int, int]], stream: int = 0) -> None:
        """Take over a segment that exists, with the blocks in use: (address, bytes)."""
        start, last = address, None
        for place, length in [*sorted(used), (address + size, 0)]:
            if place > start:
                last = self._link_after(Block(start, place - start, address, small, stream), last)
                self._add_free_block(last)
            if length:
                last = self._link_after(Block(place, length, address, small, stream, used=True), last)
                self.used[place] = last
                self.allocated += length
            start = place + length
        self._count_reserved(size)
        self.allocated_peak = max(self.allocated_peak, self.allocated)

    @staticmethod
    def _link_after(block: Block, before: Block | None) -> Block:
        block.before = before
        if before is not None:
            before.after = block
        return block

    def _add_free_block(self, block: Block) -> None:
        self._blocks[block.address] = block
        bisect.insort(self._free.setdefault((block.small, block.stream), []), block.key)

    def _remove_free_block(self, block: Block) -> Block:
        free = self._free[block.small, block.stream]
        del free[bisect.bisect_left(free, block.key)]
        return self._blocks.pop(block.address)

    def _count_reserved(self, size: int) -> None:
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def _find_free_block(self, size: int, small: bool, stream: int) -> Block | None:
        """The smallest free block that is large enough; of those that may grow, the one with the least room."""
        free = self._free.get((small, stream), [])
        if self._collects_garbage:
            for _, address in free:
                self._blocks[address].age += 1
        place = bisect.bisect_left(free, (size, 0))
        if place == len(free):
            return None
        block = self._blocks[free[place][1]]
        if self.settings.expandable_segments:
            for _, address in free[place + 1 :]:
                other = self._blocks[address]
                if _size_with_unmapped_tail(other) >= _size_with_unmapped_tail(block):
                    break
                block = other
        most = self.settings.max_split_size
        if most is not None:
            if size < most <= block.size:
                return None
            if size >= most and block.size >= size + self.settings.max_non_split_rounding:
                return None
        return self._remove_free_block(block)

    def _block_of_new_segment(self, size: int, small: bool, stream: int) -> Block | None:
        if self.settings.expandable_segments:
            return self._grow_segment(size, small, stream)
        length = segment_size(size)
        if not self._fits_capacity(length):
            return None
        address = self._next_address
        self._next_address += length + LARGE_SEGMENT
        self._count_reserved(length)
        return Block(address, length, address, small, stream)

    def _fits_capacity(self, size: int) -> bool:
        return self.settings.capacity is None or self.reserved + size <= self.settings.capacity

    def _hand_out_block(self, block: Block, size: int) -> Block:
        if self._should_split(block, size):
            remainder = Block(block.address + size, block.size - size, block.segment, block.small, block.stream)
            remainder.before, remainder.after = block, block.after
            if remainder.after is not None:
                remainder.after.before = remainder
            block.size, block.after = size, remainder
            self._add_free_block(remainder)
        block.used = True
        self.used[block.address] = block
        self.allocated += block.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        remainder = block.size - size
        if block.small or self.settings.expandable_segments:
            return remainder >= SMALLEST
        most = self.settings.max_split_size
        return (most is None or size < most) and remainder > SMALL

    def _merge_with_neighbours(self, block: Block) -> Block:
        for other in (block.before, block.after):
            if other is None or other.used or other.mapped != block.mapped:
                continue
            if other.mapped:
                self._remove_free_block(other)
            first, second = (other, block) if other is block.before else (block, other)
            block.address, block.size = first.address, first.size + second.size
            block.before, block.after = first.before, second.after
            if block.before is not None:
                block.before.after = block
            if block.after is not None:
                block.after.before = block
        return block

    def _release(self, block: Block) -> None:
        """Give a free block back: a whole segment, or the steps of an expandable one that it covers."""
        if not self.settings.expandable_segments:
            if block.is_whole_segment:
                self.reserved -= self._remove_free_block(block).size
            return
        step = _segment_step(block.small)
        start = -(-(block.address - block.segment) // step) * step + block.segment
        end = (block.address + block.size - block.segment) // step * step + block.segment
        if end <= start:
            return
        self._remove_free_block(block)
        before = self._split_at(block, start)
        after = self._split_at(before, end)
        for part in (block, after):
            if part is not before and part.size:
                self._add_free_block(part)
        before.mapped = False
        self.reserved -= before.size
        unmapped = self._unmapped[before.small, before.stream]
        for other in (before.before, before.after):
            if other is not None and not other.mapped:
                unmapped.remove(other)
        unmapped.append(self._merge_with_neighbours(before))

    @staticmethod
    def _split_at(block: Block, address: int) -> Block:
        """Split at an address; the second part, or the block itself where there is nothing before it."""
        if address == block.address:
            return block
        remainder = Block(
            address, block.address + block.size - address, block.segment, block.small, block.stream,
            mapped=block.mapped, before=block, after=block.after,
        )  # fmt: skip
        if not remainder.size:
            return remainder
        if remainder.after is not None:
            remainder.after.before = remainder
        block.size, block.after = address - block.address, remainder
        return remainder

    def _release_oversized(self, size: int) -> None:
        """Release free segments larger than the largest size to split until the new one has room."""
        most = self.settings.max_split_size
        if most is None:
            return
        whole = [block for block in self._blocks.values() if block.is_whole_segment and block.size >= max(most, size)]
        for block in sorted(whole, key=lambda candidate: candidate.size)[:1]:
            self._release(block)
            return
        for block in sorted(
            (b for b in self._blocks.values() if b.is_whole_segment and b.size >= most), key=lambda b: -b.size
        ):
            if self._fits_capacity(segment_size(size)):
                return
            self._release(block)

    @property
    def _collects_garbage(self) -> bool:
        return self.settings.garbage_collection_threshold > 0 and self.settings.capacity is not None

    def _collect_garbage(self) -> None:
        """Above a share of the device's memory, whole large segments are given back, those first that lie longest."""
        if not self._collects_garbage or self.settings.capacity is None:
            return
        target = self.reserved - self.settings.garbage_collection_threshold * self.settings.capacity
        for _ in range(_OFTEN):
            old = [b for b in self._blocks.values() if b.is_whole_segment and not b.small]
            if target <= 0 or not old:
                return
            middle = sum(block.age for block in old) / len(old)
            for block in [b for b in old if b.age >= middle]:
                if target > 0:
                    target -= block.size
                    self._release(block)

    def _grow_segment(self, size: int, small: bool, stream: int) -> Block | None:
        """A block at the end of what an expandable segment has mapped, made large enough; in steps of its pool."""
        unmapped = self._unmapped.setdefault((small, stream), [])
        if not unmapped:
            unmapped.append(Block(self._next_address, 1 << 50, self._next_address, small, stream, mapped=False))
            self._next_address += 1 << 51
        gaps = sorted(unmapped, key=lambda block: block.address)
        gap = next(gap for gap in gaps if gap.size + _free_bytes_before(gap) >= size)
        free = gap.before if _free_bytes_before(gap) else None
        missing = size - (0 if free is None else free.size)
        step = _segment_step(small)
        length = min(gap.size, math.ceil(missing / step) * step)
        if not self._fits_capacity(length):
            return None
        remainder = self._split_at(gap, gap.address + length)
        unmapped.remove(gap)
        if remainder is not gap and remainder.size:
            unmapped.append(remainder)
        gap.mapped = True
        self._count_reserved(length)
        return self._merge_with_neighbours(gap)


def segment_size(size: int) -> int:
    """Return the bytes of the segment that is asked of the device for a block of so many."""
    if size <= SMALL:
        return _SMALL_SEGMENT
    return LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND_OWN) * _ROUND_OWN


def _segment_step(small: bool) -> int:
    return _SMALL_SEGMENT if small else LARGE_SEGMENT


def _size_with_unmapped_tail(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _free_bytes_before(gap: Block) -> int:
    before = gap.before
    return 0 if before is None or before.used else before.size


@dataclass(frozen=True)
class Reserved:
    """Memory that a log of allocations reserves, B: at its peak; and the most that was given out at once."""

    peak: int
    allocated: int
    retries: int = 0


def replay_allocations(
    events: Iterable[tuple[int, int]], sizes: Mapping[int, int] | list[int], settings: Settings = _AS_IT_COMES
) -> Reserved:
    """Replay (tensor, +1 or -1) of tensors of so many B; raises OutOfMemory where the capacity does not do."""
    allocator = CachingAllocator(settings)
    places: dict[int, int] = {}
    for tensor, sign in events:
        if sign > 0 and sizes[tensor] > 0:
            places[tensor] = allocator.allocate(sizes[tensor])
        elif sign < 0 and tensor in places:
            allocator.free(places.pop(tensor))
    return Reserved(allocator.reserved_peak, allocator.allocated_peak, allocator.retries)
