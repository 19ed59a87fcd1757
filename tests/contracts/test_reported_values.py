"""Numbers of public reports: what is in host memory is judged in the call, whatever the mode of value checks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reported_values import REPORTED, called, right_call

import tensorpact
from tensorpact import ContractViolation
from tensorpact._values import counts
from tensorpact_contracts import causal_kv_cache
from tensorpact_kernels import CausalSelfAttentionKVCache

pytestmark = pytest.mark.usefixtures("both_modes", "value_mode")


@pytest.fixture(params=["sync", "async"])
def value_mode(request: pytest.FixtureRequest) -> Any:
    counts.clear()
    with tensorpact.value_checks(request.param):
        yield request.param


@pytest.mark.parametrize("name", REPORTED)
def test_a_number_is_judged_in_the_call(name: str):
    _, _, error, text = REPORTED[name]
    function, given = called(name)
    if error is None:
        out = function(**given)
        assert (out[0] if isinstance(out, tuple) else out).isfinite().all()
        return
    with pytest.raises(error.documented) as caught:
        function(**given)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value), caught.value.call_number) == (error, text, None)
    function, given = right_call(name)
    function(**given)
    assert tensorpact.value_report().skipped == {}


def rolling(ends: tuple[int, int], **settings: Any) -> CausalSelfAttentionKVCache:
    k, v = torch.zeros(2, 8, 4, 16), torch.zeros(2, 8, 4, 24)
    return CausalSelfAttentionKVCache(k, v, torch.tensor([ends[0]]), torch.tensor([ends[1]]), *ends, **settings)


def written(some: CausalSelfAttentionKVCache, tokens: int, start: int) -> Any:
    key, value = torch.ones(2, tokens, 4, 16), torch.ones(2, tokens, 4, 24)
    return some.update_and_get_attention_kv(key=key, value=value, current_chunk_start=start)


#: What the host knows already: the ends of a ring are ints.
ON_THE_HOST: dict[str, tuple[Callable[[], Any], Any]] = {
    "R43": (lambda: rolling((5, 3)), causal_kv_cache.ENDS),
    "R45": (lambda: written(rolling((8, 8), sink_tokens=2), 7, 8), causal_kv_cache.SINK_OVERRUN),
}


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_a_number_on_the_host_is_judged_in_every_mode(name: str):
    call, error = ON_THE_HOST[name]
    with pytest.raises(error.documented) as caught:
        call()
    assert caught.value.error is error


@pytest.mark.parametrize("name", ["R29", "R29-flash", "R35", "R38", "R41"])
def test_R47_new_numbers_in_the_same_tensor_are_seen(name: str):  # noqa: N802 - the id of the report
    _, changed, error, text = REPORTED[name]
    function, given = right_call(name)
    for _ in range(12):
        function(**given)
    for parameter, numbers in changed.items():
        given[parameter].copy_(numbers)
    with pytest.raises(ContractViolation) as caught:
        function(**given)
    assert (caught.value.error, str(caught.value)) == (error, text)
