"""What checks that tell late have found."""

import tensorpact
from tensorpact import ContractViolation


def drained():
    """Every error that is known, or comes out when the device is waited for, in the order of their telling."""
    found = []
    while True:
        try:
            tensorpact.synchronize()
        except ContractViolation as error:
            found.append(error)
        else:
            return found
