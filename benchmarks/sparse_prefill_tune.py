"""Scratch: times designs of the sparse decode."""
import concurrent.futures, functools, json, math, os, sys, time, traceback
import torch
from sparse_prefill import decode_inputs, reference, relative_error, graph_ms, COLD_BYTES
from sparse_prefill_ceilings import ceilings
from tensorpact_kernels.sparse_prefill import launch_hopper, launch_stream, launch_split
from tensorpact_kernels.sparse_prefill.launch import sparse_decode_triton
PDL = {"launch_pdl": True}
def narrow(args, scale, splits=None, pdl=False):
    launch_hopper.EARLY = PDL if pdl else {}
    return sparse_decode_triton(*args, scale, kv_splits=splits)
def stream(args, scale, splits=1, pdl=False, merge=False, buffers=3):
    launch_stream.EARLY = PDL if pdl else {}
    launch_stream.MERGE = merge; launch_stream.BUFFERS = buffers
    q, pool, i, p, sink = args
    out = torch.empty_like(q)
    launch_stream.attend(q, pool, (i, p), sink, scale, out, None, splits)
    return out
def main():
    end = time.monotonic() + float(sys.argv[1])
    if len(sys.argv) > 2: print(ceilings(), flush=True)
    res = []
    pool = torch.randn(1 << 20, 512, device="cuda", dtype=torch.bfloat16)
    jobs = [functools.partial(narrow, splits=1), functools.partial(narrow, splits=2)] + [functools.partial(stream, splits=s, merge=m) for s, m in ((1, False), (2, False), (2, True))]
    small = decode_inputs(16, 16, 512, 256, pool=pool)[0]
    with concurrent.futures.ThreadPoolExecutor(1) as ex: pass
    for f in jobs: f(small, 0.04)
    torch.cuda.synchronize(); print("compiled", round(end - time.monotonic()), "s left", flush=True)
    for b, n in ((256,128),(64,1024),(16,4096),(64,512),(64,128),(16,1024),(256,512),(256,1024),(64,4096),(256,4096),(1,4096),(1,128),(16,512)):
        even = 132 / b
        sp = sorted({s for s in (1, 2, 4, 8, round(even), math.ceil(even), math.floor(even)) if 1 <= s <= min(64, n // 64) and b * s <= 600 and (b*s >= 100 or s == min(64, n//64))})
        c = {"narrow": narrow, "narrow pdl": functools.partial(narrow, pdl=True)}
        for s in sp:
            c[f"stream/{s}"] = functools.partial(stream, splits=s)
            c[f"stream/{s} pdl"] = functools.partial(stream, splits=s, pdl=True)
            if s > 1:
                c[f"stream/{s} merge"] = functools.partial(stream, splits=s, merge=True)
                c[f"stream/{s} merge pdl"] = functools.partial(stream, splits=s, merge=True, pdl=True)
        sets = decode_inputs(b, 16, 512, n, pool=pool, sets=max(2, min(128, COLD_BYTES // (b * n * 1024))))
        want = reference(sets[0], 512**-0.5)
        line = []
        for name, f in c.items():
            if time.monotonic() > end: break
            try:
                err = max(relative_error(f(sets[0], 512**-0.5), want) for _ in range(3))
                us = 1e3 * graph_ms([functools.partial(f, a, 512**-0.5) for a in sets]) if err < 1e-2 else float("nan")
            except Exception as e:
                traceback.print_exc(limit=3); us = err = float("nan")
            line.append(f"{name} {us:.2f}" + (f" ERR {err:.1e}" if not err < 1e-2 else ""))
            res.append((b, n, name, us, err))
        print(b, n, "|", " | ".join(line), flush=True)
    json.dump(res, open(os.environ["OUT"] + "/tune.json", "w"))
main()
