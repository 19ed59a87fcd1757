"""Memory behind a cache: moved in place, or looked at through a window that moves.

A cache whose slots are all taken drops its oldest tokens at every step, and everything behind the sink moves up. With
spare slots behind the buffer the tokens stay where they are: the window over the storage moves instead, the sink is
carried along, and only when the spare slots are used up does the window go back to the front. Without spare slots the
tokens are moved in place.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from tensorpact_contracts._causal_kv_cache_plan import Write
from tensorpact_kernels._dispatch import runs_triton

#: Bytes of the piece that a short shift moves at a time where no kernel runs; small enough to stay in a cache.
_PIECE = 1 << 20
#: Shifts of at least as many tokens are moved in pieces of their own length, which needs no buffer in between.
_LONG_SHIFT = 64


@dataclass(slots=True)
class Storage:
    """Buffers with spare slots, and the window over them that the cache shows.

    Attributes:
        k_store: Keys, ``[B, slots + spare slots, H, D]``.
        v_store: Values, alike.
        offset: First slot of the window.
        k: The window over the keys.
        v: The window over the values.
    """

    k_store: Tensor
    v_store: Tensor
    offset: int
    k: Tensor
    v: Tensor

    def look_at(self, offset: int, slots: int) -> None:
        """Move the window."""
        self.offset = offset
        self.k = self.k_store[:, offset : offset + slots]
        self.v = self.v_store[:, offset : offset + slots]


def allocate(k: Tensor, v: Tensor, spare: int) -> Storage:
    """Storage for buffers like these with spare slots behind them; nothing is copied yet.

    Raises:
        RuntimeError: There is no room for it; on a GPU it is ``torch.OutOfMemoryError``.
    """
    k_store, v_store = (_empty(t, t.shape[1] + spare) for t in (k, v))
    return Storage(k_store, v_store, 0, k, v)


def write_chunk(k: Tensor, v: Tensor, key: Tensor, value: Tensor, start: int) -> None:
    """Write a chunk to the slots from ``start`` on."""
    shift_and_write(k, v, first=start, shift=max(1, key.shape[1]), kept=0, key=key, value=value)


def roll_in_place(k: Tensor, v: Tensor, write: Write, key: Tensor, value: Tensor) -> None:
    """Move what survives an eviction to the left and write the chunk behind it, in one pass."""
    shift_and_write(k, v, first=write.sink, shift=write.evicted, kept=write.kept, key=key, value=value)


def settle(storage: Storage, k: Tensor, v: Tensor, write: Write, key: Tensor, value: Tensor) -> None:
    """Fill fresh storage with what survives of other buffers, and write the chunk.

    Args:
        storage: Storage that shares no memory with the buffers.
        k: Keys so far.
        v: Values so far.
        write: The update, which evicts.
        key: Keys of the chunk.
        value: Values of the chunk.
    """
    storage.look_at(0, write.capacity)
    source = write.sink + write.evicted
    for window, buffer in ((storage.k, k), (storage.v, v)):
        window[:, : write.sink].copy_(buffer[:, : write.sink])
        window[:, write.sink : write.sink + write.kept].copy_(buffer[:, source : source + write.kept])
    write_chunk(storage.k, storage.v, key, value, write.start)


def advance(storage: Storage, write: Write, key: Tensor, value: Tensor) -> None:
    """Move the window past the evicted tokens, carry the sink along, and write the chunk.

    Args:
        storage: The storage; its window moves.
        write: The update, which evicts.
        key: Keys of the chunk.
        value: Values of the chunk.
    """
    sink, offset = write.sink, storage.offset + write.evicted
    if offset + write.capacity <= storage.k_store.shape[1]:
        if sink:
            carry_right(storage.k_store, storage.v_store, storage.offset, write.evicted, sink)
        storage.look_at(offset, write.capacity)
        write_chunk(storage.k, storage.v, key, value, write.start)
        return
    k, v = storage.k_store, storage.v_store
    # The sink first: its old slots are among those that the others move to.
    if sink and storage.offset:
        shift_and_write(k, v, first=0, shift=storage.offset, kept=sink)
    shift_and_write(k, v, first=sink, shift=offset, kept=write.kept, key=key, value=value)
    storage.look_at(0, write.capacity)


def carry_right(k: Tensor, v: Tensor, first: int, shift: int, tokens: int) -> None:
    """Move tokens to the right, from the last to the first, so that none is overwritten before it has moved."""
    if _runs_kernel(k):
        from .launch import shift_and_write_triton

        shift_and_write_triton(k, v, first=first + shift + tokens - 1, shift=shift, kept=tokens, backward=True)
        return
    for buffer in (k, v):
        for low in _pieces(buffer, tokens, shift, backward=True):
            high = min(tokens, low + _step(buffer, shift))
            _move(buffer, first + low, first + low + shift, high - low, shift)


def shift_and_write(
    k: Tensor,
    v: Tensor,
    *,
    first: int,
    shift: int,
    kept: int,
    key: Tensor | None = None,
    value: Tensor | None = None,
) -> None:
    """Move slots to the left in place, then write a chunk behind the last of them.

    Args:
        k: Keys.
        v: Values.
        first: Slot that the first token moves to.
        shift: Slots that every token moves, at least 1.
        kept: Tokens that move.
        key: Keys of the chunk; None for no chunk.
        value: Values of the chunk.
    """
    if _runs_kernel(k):
        from .launch import shift_and_write_triton

        shift_and_write_triton(k, v, first=first, shift=shift, kept=kept, key=key, value=value)
        return
    for buffer, chunk in ((k, key), (v, value)):
        for low in _pieces(buffer, kept, shift):
            _move(buffer, first + low + shift, first + low, min(kept - low, _step(buffer, shift)), shift)
        if chunk is not None:
            buffer[:, first + kept : first + kept + chunk.shape[1]].copy_(chunk)


def _runs_kernel(buffer: Tensor) -> bool:
    # Triton on CPU tensors means its interpreter; without one there is nothing that could run.
    return runs_triton(buffer) and (buffer.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")


def _step(buffer: Tensor, shift: int) -> int:
    if shift >= _LONG_SHIFT:
        return shift
    token = max(1, buffer.shape[0] * buffer.shape[2] * buffer.shape[3] * buffer.element_size())
    return max(_LONG_SHIFT, _PIECE // token)


def _pieces(buffer: Tensor, tokens: int, shift: int, *, backward: bool = False) -> range:
    """Where pieces begin: in the order in which no piece is overwritten before it has moved."""
    step = _step(buffer, shift)
    if not backward:
        return range(0, tokens, step)
    return range((tokens - 1) // step * step, -1, -step)


def _move(buffer: Tensor, source: int, target: int, tokens: int, shift: int) -> None:
    piece = buffer[:, source : source + tokens]
    # A short shift would read what it has just written; a piece of bounded size goes through a buffer of its own.
    buffer[:, target : target + tokens].copy_(piece if tokens <= shift else piece.clone())


def grown(buffer: Tensor, slots: int) -> Tensor:
    """A larger buffer with the same tokens in front and zeros behind them."""
    larger = _empty(buffer, slots)
    larger[:, : buffer.shape[1]].copy_(buffer)
    larger[:, buffer.shape[1] :].zero_()
    return larger


def _empty(buffer: Tensor, slots: int) -> Tensor:
    # What is allocated in inference mode could be written there only, and a cache outlives the call.
    with torch.inference_mode(mode=False):
        return torch.empty((buffer.shape[0], slots, *buffer.shape[2:]), dtype=buffer.dtype, device=buffer.device)


def spare_slots(k: Tensor, sink: int) -> int:
    """Spare slots for a cache that does not say: enough for an update to write at most twice its chunk.

    A sink of up to half a chunk is paid for by a window that goes back half as often.

    Args:
        k: Keys.
        sink: Slots at the front that every eviction carries along.
    """
    return k.shape[1] * (2 if sink else 1)
