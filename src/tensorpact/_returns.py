"""Return annotations: a returned value looked at with the dims of its call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ._annotations import EMPTY, Signature, read_hint
from ._call import Broken, Call
from ._contract import Contract
from ._diagnosis import make_error
from ._errors import ContractViolation
from ._evaluation import Violation, first_violation
from ._expansion import expand_call
from ._terms import Terms

NAME = "return"


class ReturnCheck:
    """The return annotation of one contracted function.

    Args:
        contract: Its contract.
        signature: Its signature.
    """

    def __init__(self, contract: Contract, signature: Signature) -> None:
        self._terms: Terms | None = None
        hint = signature.returns
        if hint is not EMPTY and hint is not None:
            returned = read_hint(NAME, hint, signature.owner)
            self._terms = Terms(contract, replace(signature, parameters=(*signature.parameters, returned)))

    def __call__(self, result: Any, values: Mapping[str, Any]) -> ContractViolation | None:
        """The error of a returned value, or None.

        Args:
            result: What was returned.
            values: Parameter name to argument.
        """
        if self._terms is None:
            return None
        call = Call(*expand_call(self._terms, {**values, NAME: result}))
        first_violation(call)  # runs the lets
        for name, obligations in call.terms.obligations.items():
            if name.startswith(NAME) and name not in values:
                for obligation in obligations:
                    status = call.status(obligation)
                    if isinstance(status, Broken):
                        return make_error(call, Violation(status))
        return None
