"""Functions with hand-written checks, read by the tests of drafts; never contracted here."""
# The checks are written as people write them.
# ruff: noqa: RET506, SIM300, UP031, UP032, RUF013, PT018

import math

import torch

HALF = (torch.float16, torch.bfloat16)
LARGEST = 64


class TooWideError(ValueError):
    pass


def _need_dense(x, name):
    if x.stride(-1) != 1:
        raise ValueError(f"{name} must be dense, got strides {x.stride()}")


def _ensure(holds, text):
    if not holds:
        raise RuntimeError(text)


def _same_rank(a, b):
    return a.ndim == b.ndim


def attend(
    q: torch.Tensor,  # [B, H, T, D]
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float = None,
    causal: bool = False,
):
    """A whole entry point."""
    if q.dim() != 4:
        raise ValueError(f"q must have 4 axes, got {q.dim()}")
    B, _H, T, D = q.shape
    assert k.ndim == 4 and v.ndim == 4, "k and v must have 4 axes"
    if q.dtype not in HALF:
        raise TypeError("unsupported dtype %s" % q.dtype)
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise TypeError("dtypes of q, k and v differ")
    if k.shape[0] != B or k.shape[3] != D:
        raise ValueError("k: expected batch {} and width {}".format(B, D))
    assert v.shape == k.shape
    HK = k.shape[1]
    if q.shape[1] % HK != 0:
        raise ValueError(f"{HK=} does not divide the heads of q")
    for name, t in (("q", q), ("k", k)):
        _need_dense(t, name)
    if mask is not None:
        if mask.shape != (B, T):
            raise ValueError(f"mask has the shape {tuple(mask.shape)}")
        elif mask.dtype != torch.bool:
            raise TypeError("mask must be bool")
    if scale is None:
        scale = 1 / math.sqrt(D)
    elif not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}")
    if D > LARGEST:
        raise TooWideError(f"width {D} is above {LARGEST}")
    if causal:
        assert T == k.shape[2], "causal attention is square"
    if (mask == 0).all():
        raise ValueError("everything is masked")
    return q


def ranks(x: torch.Tensor, y: torch.Tensor):
    if len(x.shape) != 2:
        raise ValueError("x has two axes")
    if y.ndim != 1 or x.ndim != 2:
        raise ValueError("y has one axis")


def sizes(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor = None):
    assert x.dim() == 2, "x is a matrix"
    M, K = x.size()
    N, K2 = w.shape
    assert K == K2, f"inner sizes differ: {K} and {K2}"
    if w.size(1) % 16:
        raise ValueError(f"K={K} is no multiple of 16")
    if out is not None and list(out.shape) != [M, N]:
        raise ValueError(f"out must be {(M, N)}, got {list(out.shape)}")


def devices(x: torch.Tensor, y: torch.Tensor):
    if x.device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"x is on {x.device}")
    if y.device != x.device:
        raise RuntimeError("x and y are apart")


def layouts(x: torch.Tensor, y: torch.Tensor):
    torch._check(x.is_contiguous(), lambda: f"x has strides {x.stride()}")
    torch._check_value(y.stride(-1) == 1)


def groups(x: torch.Tensor, a: torch.Tensor = None, b: torch.Tensor = None, c: torch.Tensor = None):
    if (a is None) != (b is None):
        raise ValueError("a and b go together")
    if c is not None and a is None:
        raise ValueError("c needs a")
    if b is not None and c is not None:
        raise ValueError("b or c")


def given(x: torch.Tensor | None, n: int):
    if x is None:
        raise TypeError("x must be given")
    if n < 1:
        raise ValueError(f"n is {n:>3}")


def branches(x: torch.Tensor, mode: str = "a"):
    if mode == "a":
        if x.ndim != 1:
            raise ValueError("mode a: one axis")
    elif mode == "b":
        if x.ndim != 2:
            raise ValueError("mode b: two axes")
    else:
        raise NotImplementedError(f"mode {mode!r}")


def returns(x: torch.Tensor, fast: bool = False):
    if fast:
        return x
    if x.shape[0] > 4:
        raise ValueError(f"{x.shape[0]} rows")
    return x


def helpers(x: torch.Tensor, y: torch.Tensor):
    _ensure(x.ndim == 2, "x has the rank " + str(x.ndim))
    _ensure(_same_rank(x, y), "ranks differ")
    assert all(t.dtype == torch.float32 for t in (x, y)), "float32 alone"
    try:
        torch.empty(0)
    finally:
        _need_dense(y, "y")


def scalars(x: torch.Tensor, n, flag=None):
    if not isinstance(n, int):
        raise TypeError(f"n must be an int, got {type(n)}")
    if flag is not None and flag not in ("a", "b"):
        raise ValueError(f"flag {flag}") from None
    assert x.numel() % n == 0, (n, "does not divide")


def last(x: torch.Tensor, w: torch.Tensor):
    if x.shape[-1] != w.shape[0]:
        raise ValueError(f"last axis of x is {x.shape[-1]}, w has {w.shape[0]}")


def unreadable(x: torch.Tensor, y: torch.Tensor):
    if x.max() > 3:
        raise ValueError("too large")
    for row in x:
        if row.sum() == 0:
            raise ValueError("empty row")
    if x.ndim == 9:
        raise ValueError(f"nine axes: {x}")
    y = y.view(-1)
    assert y.shape[0] == 4


def raises_its_own(x: torch.Tensor, error: type = ValueError):
    class Mistake(ValueError):
        pass

    class Kinds:
        Wrong = Mistake

    if x.ndim != 2:
        raise Mistake("not a matrix")
    if x.shape[0] == 0:
        raise Kinds.Wrong("no row")
    if x.shape[1] == 0:
        raise error("no column")
    if x.shape[1] > 4:
        raise ValueError("too many columns")


class Plan:
    packed = False
    rows = 9


def plan_for(total: torch.Tensor) -> Plan:
    return Plan()


def chooses_a_plan(x: torch.Tensor, plan=None):
    if plan is None:
        plan = plan_for(x.sum())
    if plan.rows < 0:
        raise ValueError("fewer rows than none")
    if x.ndim == 4:
        raise ValueError("four axes")
    if not plan.packed:
        return x
    if x.shape[0] > 2:
        raise ValueError("too many packed rows")
    return x


def fill_in(options):
    if "kind" not in options:
        raise KeyError("kind")
    options["kind"] = "plain"


def changes_options(x: torch.Tensor, options: dict, out: torch.Tensor, sizes: list):
    if "block" not in options:
        raise ValueError("options name no block")
    out[0] = 0
    if out.shape[0] != x.shape[0]:
        raise ValueError("out has other rows")
    options.setdefault("split", 1)
    if options["split"] > x.shape[0]:
        raise ValueError("more splits than rows")
    for size in sizes:
        sizes.remove(size)
    if len(sizes) != x.ndim:
        raise ValueError("one size for each axis")
    other = {"kind": x.ndim}
    fill_in(other)
    if other["kind"] == "plain":
        raise ValueError("always")


class Layer:
    def forward(self, x: torch.Tensor):
        if x.shape[-1] != self.width:
            raise ValueError(f"width {x.shape[-1]}, not {self.width}")
        return x
