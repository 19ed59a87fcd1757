"""Return annotations: a returned value looked at with the dims of its call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ._annotations import EMPTY, read_hint
from ._call import Call
from ._contract import Contract
from ._diagnosis import make_error
from ._errors import ContractViolation
from ._evaluation import Violation, run_lets
from ._expansion import expand_call
from ._terms import Terms
from ._verdicts import Broken

NAME = "return"


class ReturnCheck:
    """The return annotation of one contracted function.

    Args:
        terms: The contract laid on the signature.
        hint: Hint of one result.
    """

    def __init__(self, terms: Terms, hint: Any) -> None:
        self._arguments = terms
        self._terms: Terms | None = None
        if hint is not EMPTY:
            # Arguments may stand in `{…}` parts of a returned shape, but are judged no more: the body may change them.
            seen = [
                replace(p, hint=EMPTY, tensor=None, other=EMPTY, extra=EMPTY, optional=True, nested=False)
                for p in terms.signature.parameters
            ]
            returned = read_hint(NAME, hint, terms.owner)
            signature = replace(terms.signature, parameters=(*seen, returned))
            self._terms = Terms(Contract(terms.contract.name), signature, absent=terms.dims | frozenset(terms.lets))

    def scope(self, values: Mapping[str, Any]) -> Call:
        """The dims of a call, bound before its body runs.

        Args:
            values: Parameter name to argument.
        """
        call = Call(*expand_call(self._arguments, values))
        run_lets(call)
        return call

    def __call__(self, result: Any, scope: Call) -> ContractViolation | None:
        """The error of a returned value, or None.

        Args:
            result: What was returned.
            scope: The dims of the call.
        """
        if self._terms is None:
            return None
        values = {name: scope.values.get(name) for name in self._terms.parameters if name != NAME}
        call = Call(*expand_call(self._terms, {**values, NAME: result}), scope)
        for name, obligations in call.terms.obligations.items():
            if name not in values:
                for obligation in obligations:
                    status = call.status(obligation)
                    if isinstance(status, Broken):
                        return make_error(call, Violation(status))
        return None
