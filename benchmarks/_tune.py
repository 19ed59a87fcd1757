import sys, time, json, os, functools
import torch, triton
import sparse_prefill as sp
from tensorpact_kernels.sparse_prefill import launch_hopper as L, launch as LL
CFG = {"1w4": {"BUFFERS":1,"num_warps":4}, "1w8": {"BUFFERS":1,"num_warps":8,"maxnreg":128}, "3w8": {"BUFFERS":3,"num_warps":8}, "3w4": {"BUFFERS":3,"num_warps":4}, "2w8":{"BUFFERS":2,"num_warps":8}}
def run(cfg, args, scale, splits):
    if cfg == "P": return LL.sparse_decode_triton(*args, scale, kv_splits=splits, path="portable")
    L.NARROW = CFG[cfg]
    if len(args)==8: return LL.sparse_prefill_triton(*args, scale)
    return LL.sparse_decode_triton(*args, scale, kv_splits=splits, path="hopper")
t0=time.monotonic(); budget=float(sys.argv[1])
lim=sp.ceilings(); print(lim, f"{time.monotonic()-t0:.0f}s", flush=True)
res=[]
def one(shape, cfg, sets, exp, splits, scale):
    f=lambda a: run(cfg,a,scale,splits)
    try:
        e=sp.relative_error(f(sets[0]),exp)
        if not e<1e-2: return f"{cfg}/{splits} WRONG {e:.1e}"
        ms=sp.graph_ms([functools.partial(f,a) for a in sets],replays=8,warm=2)
    except Exception as x: return f"{cfg}/{splits} {type(x).__name__} {str(x)[:80]}"
    res.append([shape,cfg,splits,ms,e]); return f"{cfg}/{splits} {ms*1e3:.1f}"
for shape in [(1024,16,512,1024,128),(4096,16,512,512,128)]:
    sets=[sp.prefill_inputs(*shape)]; exp=sp.reference(sets[0],512**-.5)
    print(shape,*[one(shape,c,sets,exp,None,512**-.5) for c in CFG],flush=True)
for n in (128,512,1024,4096):
    for b in (256,64,16,1):
        if time.monotonic()-t0>budget: break
        shape=(b,16,512,n)
        sets=sp.decode_inputs(b,16,512,n,sets=max(2,min(128,sp.COLD_BYTES//(b*n*1024)))); exp=sp.reference(sets[0],512**-.5)
        out=[]
        for c in ["P",*CFG]:
            slots=264 if c in("P","1w4","1w8") else 132
            ev=max(1,slots//b)
            for s in sorted({1,ev,max(1,ev//2),ev*2 if b==1 else ev}):
                if s<=max(1,n//64) and s<=64: out.append(one(shape,c,sets,exp,s,512**-.5))
        print(shape,*out,f"{time.monotonic()-t0:.0f}s",flush=True)
json.dump({"lim":lim,"res":res},open(os.environ["OUT"]+"/tune.json","w"))
