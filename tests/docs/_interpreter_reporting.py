"""Runs the kernel that docs/values.md shows in Triton's interpreter; started by test_reporting.py."""

import tempfile
from pathlib import Path

import interpreted
import recipe
import torch
from drained import drained

import tensorpact


def gathered(indices, late=None):
    """Call the function of the page; a number may go wrong behind its guard, in front of its kernel."""
    with tempfile.TemporaryDirectory() as folder:
        page = recipe.load(Path(folder))
        ask = page.kernel_flag

        def kernel_flag(anchor, checks):
            if late is not None:
                indices[late[0]] = late[1]
            return ask(anchor, checks)

        page.kernel_flag = kernel_flag
        pool = torch.randn(8, 4)
        out = page.gather_rows(pool, indices)
    known = (indices >= 0) & (indices < 8)
    assert torch.equal(out[known], pool[indices[known]])
    assert not out[~known].any()


def it_reports_what_it_masks():
    with tensorpact.value_checks("off", in_kernel=True):
        gathered(torch.tensor([0, 7, -1]), (1, 9))
    (found,) = drained()
    assert isinstance(found, IndexError)
    assert str(found) == "indices[1] is 9, the pool has 8 rows"
    assert found.__notes__[-1] == "found in the kernel of call 1, which masked it", found.__notes__


def a_right_call_tells_nothing():
    with tensorpact.value_checks("off", in_kernel=True):
        gathered(torch.tensor([3, -1, 7]))
    assert drained() == []
    assert tensorpact.value_report().in_kernel > 0


def without_the_switch_it_masks_alone():
    before = tensorpact.value_report().in_kernel
    with tensorpact.value_checks("off", in_kernel=False):
        gathered(torch.tensor([0, 7, -1]), (1, 9))
    assert drained() == []
    assert tensorpact.value_report().in_kernel == before


CASES = {
    f.__name__: (f, {})
    for f in (it_reports_what_it_masks, a_right_call_tells_nothing, without_the_switch_it_masks_alone)
}

if __name__ == "__main__":
    interpreted.main(CASES)
