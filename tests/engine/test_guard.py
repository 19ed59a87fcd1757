"""The generated guard: its text, its names, its place in tracebacks."""

import inspect
import linecache
import traceback
from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from tensorpact import Contract, contract
from tensorpact._entry import entry_of
from tensorpact.clauses import let, require, same_device, same_dtype
from tensorpact.constraints import Contiguous, OneOf

MODEL = Contract(
    "decode",
    clauses=[
        same_dtype("q", "cache"),
        same_device("q", "cache", "lengths"),
        let(group=lambda H, HV: H // HV),
        require(lambda group, H, HV: group * HV == H),
        require(lambda scale: scale > 0),
    ],
)


def decode(
    q: Annotated[Float[Tensor, "B H K"], OneOf(torch.bfloat16, torch.float32), Contiguous()],
    cache: Float[Tensor, "slots HV L K"],
    lengths: Int32[Tensor, " B"],
    bias: Float[Tensor, "#B H"] | None = None,
    *,
    scale: float = 1.0,
) -> str:
    """Decode."""
    return "ran"


GOLDEN = """\
def guarded(q, cache, lengths, bias=None, *, scale=None):
    if _modes.current:
        if _modes.current == 2:
            return _body(q, cache, lengths, bias, scale=scale)
        if not _is_compiling():
            return _reference(q, cache, lengths, bias, scale=scale)
    if _is_tracing():
        _traced.prepare()
        return _traced.guard(q, cache, lengths, bias, scale=scale)
    _known = _memory.known
    if _known is not None:
        try:
            _known = (
                not (q.is_nested or cache.is_nested or lengths.is_nested)
                and _known[0](q, cache, lengths)
                and (bias is None if _known[1] is None else not bias.is_nested and _known[1](bias))
                and (type(scale) is float or _check_scale(scale))
                and _rule_4(scale)
            )
        except Exception:
            _known = None
        if _known:
            _memory.matched = True
            return _body(q, cache, lengths, bias, scale=scale)
    try:
        if not (
            (type(scale) is float or _check_scale(scale))
            and (type(q) is _Tensor or _is_local(q))
            and (_dtype_of_q := q.dtype) in _dtypes_q
        ):
            raise _Miss
        _B_, _H_, _K_ = q.shape
        if not (
            q.is_contiguous()
            and (type(cache) is _Tensor or _is_local(cache))
        ):
            raise _Miss
        _, _HV_, _, _t1 = cache.shape
        if not (
            _t1 == _K_
            and (type(lengths) is _Tensor or _is_local(lengths))
            and (_dtype_of_lengths := lengths.dtype) is _dtype_lengths
            and lengths.shape == (_B_,)
        ):
            raise _Miss
        if bias is not None:
            if not (
                (type(bias) is _Tensor or _is_local(bias))
                and (_dtype_of_bias := bias.dtype) in _dtypes_bias
            ):
                raise _Miss
            _t2, _t3 = bias.shape
            if not (_t3 == _H_):
                raise _Miss
        if not (
            (bias is None or (_t2 == 1 or _t2 == _B_))
            and cache.dtype is _dtype_of_q
            and cache.device == (_device_of_q := q.device)
            and lengths.device == _device_of_q
        ):
            raise _Miss
        _group_ = _let_group(_H_, _HV_)
        if not (
            _rule_3(_group_, _H_, _HV_)
            and _rule_4(scale)
        ):
            raise _Miss
    except Exception:
        pass
    else:
        if type(_B_) is int:
            if _B_ != _memory.size:
                _memory.change(_B_)
            elif _memory.misses >= _memory.patience:
                _memory.learn((q, cache, lengths), (bias,), ())
            else:
                _memory.misses += 1
        return _body(q, cache, lengths, bias, scale=scale)
    _error = _diagnose((q, cache, lengths, bias, scale))
    if _error is not None:
        try:
            raise _error
        finally:
            del _error
    return _forgiven(q, cache, lengths, bias, scale=scale)
"""


def arguments(batch: int = 2) -> list[Tensor]:
    """Valid arguments."""
    return [torch.zeros(batch, 8, 4), torch.zeros(5, 2, 3, 4), torch.zeros(batch, dtype=torch.int32)]


def test_text_is_the_golden_one() -> None:
    assert entry_of(contract(MODEL)(decode)).source == GOLDEN


def test_text_is_deterministic() -> None:
    assert entry_of(contract(MODEL)(decode)).source == entry_of(contract(MODEL)(decode)).source


def test_source_is_in_linecache_and_in_tracebacks() -> None:
    guarded = contract(MODEL)(decode)
    filename = guarded.__code__.co_filename
    assert filename == f"<tensorpact guard {__name__}.decode>"
    assert linecache.getline(filename, 2).strip() == "if _modes.current:"
    with pytest.raises(ValueError, match="lengths") as caught:
        guarded(*arguments()[:2], torch.zeros(3, dtype=torch.int32))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [f.name for f in frames] == ["test_source_is_in_linecache_and_in_tracebacks", "guarded"]
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_identity_of_the_function_is_kept() -> None:
    guarded = contract(MODEL)(decode)
    assert (guarded.__name__, guarded.__qualname__, guarded.__doc__) == ("decode", "decode", "Decode.")
    assert inspect.signature(guarded) == inspect.signature(decode)
    assert guarded.__wrapped__ is decode


def test_parameters_may_be_called_like_names_of_the_guard() -> None:
    @contract
    def odd(_modes: Float[Tensor, "B _K"], _body: Float[Tensor, " B"], Tensor_: int = 3) -> int:
        return Tensor_

    assert odd(torch.zeros(2, 3), torch.zeros(2)) == 3
    with pytest.raises(ValueError, match=r"^_body: axis 0 \(B\) is 3, but B is 2"):
        odd(torch.zeros(2, 3), torch.zeros(3))


def test_dims_may_be_called_like_keywords_and_builtins() -> None:
    @contract
    def odd(x: Float[Tensor, "in len"], y: Float[Tensor, "max min"], z: Float[Tensor, "max(len,min)"]) -> str:
        return "ran"

    assert odd(torch.zeros(2, 3), torch.zeros(7, 5), torch.zeros(5)) == "ran"
    with pytest.raises(ValueError, match=r"max\(len,min\) is 5"):
        odd(torch.zeros(2, 3), torch.zeros(7, 5), torch.zeros(3))


def test_the_body_is_called_outside_the_checks() -> None:
    @contract
    def fails(x: Float[Tensor, " n"]) -> None:
        raise ValueError("from the body")

    with pytest.raises(ValueError, match="from the body") as caught:
        fails(torch.zeros(2))
    assert not hasattr(caught.value, "clause")


def test_a_condition_leaves_no_variable_unread() -> None:
    made = Contract("f", clauses=[same_dtype("a", "b", when=lambda flag: flag), same_dtype("a", "c")])

    @contract(made)
    def f(a: Float[Tensor, " n"], b: Float[Tensor, " n"], c: Float[Tensor, " n"], flag: bool) -> str:
        return "ran"

    entry = entry_of(f)
    half = torch.zeros(2, dtype=torch.float16)
    for flag, other in ((False, half), (True, torch.zeros(2))):
        calls: list[object] = []
        f.__globals__["_diagnose"] = lambda values, calls=calls: calls.append(values) or entry.diagnose(values)
        assert f(torch.zeros(2), other, torch.zeros(2), flag) == "ran"
        assert calls == []
    with pytest.raises(TypeError, match=r"^b: dtype is torch\.float16, but a has torch\.float32"):
        f(torch.zeros(2), half, torch.zeros(2), True)
