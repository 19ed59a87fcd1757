"""Tensors with guards around their memory, which no kernel may read from or write to."""

import contextlib
import math

import torch

#: Bytes in front of a tensor and behind it, a multiple of what any kernel copies at a time.
GUARD = 1 << 13


class Guards:
    """Memory around tensors that has to stay as it is, and whose NaN must not come out of a kernel."""

    def __init__(self):
        self._kept = []

    def around(self, tensor, beyond=1):
        """Return a dense copy of a tensor with guards: NaN around floats, ``beyond`` around integers."""
        room = GUARD // tensor.element_size()
        storage = torch.empty_like(tensor, memory_format=torch.contiguous_format).new_empty(2 * room + tensor.numel())
        poison(storage, beyond)
        view = storage[room : room + tensor.numel()].view(tensor.shape)
        view.copy_(tensor)
        front, back = storage[:room], storage[room + tensor.numel() :]
        self._kept += [(part, part.clone()) for part in (front, back)]
        return view

    def assert_intact(self):
        """Fail where a byte of a guard is another one than it was."""
        for part, before in self._kept:
            assert torch.equal(part.view(torch.uint8), before.view(torch.uint8)), f"written beside {part.dtype} memory"

    @contextlib.contextmanager
    def on_allocations(self):
        """Give guards, and poison inside, to everything that is allocated without a value."""
        empty, empty_like = torch.empty, torch.empty_like

        def guarded(allocate):
            def allocated(*args, **kwargs):
                with restored():
                    return self.around(poison(allocate(*args, **kwargs), 2**31 - 1))

            return allocated

        @contextlib.contextmanager
        def restored():
            torch.empty, torch.empty_like = empty, empty_like
            yield
            torch.empty, torch.empty_like = guarded(empty), guarded(empty_like)

        torch.empty, torch.empty_like = guarded(empty), guarded(empty_like)
        try:
            yield
        finally:
            torch.empty, torch.empty_like = empty, empty_like


def poison(tensor, number):
    """Fill with NaN, or integers with a number, and return the tensor."""
    if tensor.dtype == torch.float8_e4m3fn:
        tensor.view(torch.uint8).fill_(0x7F)
        return tensor
    return tensor.fill_(math.nan if tensor.is_floating_point() else number)
