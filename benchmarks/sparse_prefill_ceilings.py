"""What the card of a run copies, gathers and multiplies, and how a call is timed."""

import functools

import torch
import triton
import triton.language as tl


def graph_ms(calls, replays=12, warm=3):
    """Return the median time of one call, replayed back to back in a CUDA graph."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(warm + replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / len(calls))
    return sorted(times[warm:])[replays // 2]


@triton.jit
def _copy_kernel(source_ptr, target_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + offsets, tl.load(source_ptr + offsets))


@triton.jit
def _gather_kernel(pool_ptr, indices_ptr, out_ptr, rows, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Read whole rows and keep only their sums: what gathering alone costs."""
    dims = tl.arange(0, DIM)
    total = tl.zeros((BLOCK, DIM), tl.float32)
    begin = tl.program_id(0).to(tl.int64) * rows
    for start in tl.range(0, rows, BLOCK):
        index = tl.load(indices_ptr + begin + start + tl.arange(0, BLOCK)).to(tl.int64)
        total += tl.load(pool_ptr + index[:, None] * DIM + dims[None, :]).to(tl.float32)
    tl.store(out_ptr + tl.program_id(0) * DIM + dims, tl.sum(total, axis=0))


def eager_ms(call, repeats=20, warm=5):
    """Return the median time of one call on its own: a copy captured in a graph runs on the copy engine."""
    times = []
    for _ in range(warm + repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[warm:])[repeats // 2]


def ceilings():
    """Measure what this card copies, gathers and multiplies in this run, and what a launch takes in a graph."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    block = 8192
    copies = [
        lambda: _copy_kernel[(source.numel() // block,)](source, target, BLOCK=block, num_warps=8),
        lambda: torch.mul(source, 1.0, out=target),
        lambda: target.copy_(source),
    ]
    copy = min(eager_ms(call) for call in copies)
    assert torch.equal(source, target)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = eager_ms(lambda: a @ b)
    found = {
        "copy_tb_s": 2 * source.numel() * source.element_size() / copy / 1e9,
        "matmul_tflop_s": 2 * 8192**3 / product / 1e9,
        "launch_us": 1e3 * graph_ms([lambda: _copy_kernel[(1,)](a, b, BLOCK=1024)] * 64),
    }
    programs, rows, dim = 4096, 1024, 512
    out = torch.empty(programs, dim, device="cuda")
    for name, count in (("pool_64_mib", 1 << 16), ("pool_1_gib", 1 << 20)):
        pool = torch.randn(count, dim, device="cuda").bfloat16()
        listed = torch.randint(0, count, (programs * rows,), device="cuda", dtype=torch.int32)
        call = functools.partial(_gather_kernel[(programs,)], pool, listed, out, rows, DIM=dim, BLOCK=16, num_warps=4)
        found[f"gather_tb_s_{name}"] = programs * rows * dim * 2 / eager_ms(call) / 1e9
    return found
