"""Runs every kernel on hostile numbers in Triton's interpreter; started by test_memory_safety_interpreter.py."""

import hostile
import interpreted

from tensorpact_kernels.packed_attention.launch import TileConfig

CASES = {name: (hostile.check, {"make": make}) for name, make in hostile.portable().items()}
for _causal in (False, True):
    CASES[f"packed_backwards[causal={_causal}]"] = (
        hostile.packed_backwards,
        {"device": "cpu", "config": TileConfig(16, 16, 4, 2), "causal": _causal},
    )
CASES["rolled"] = (hostile.rolled, {"device": "cpu"})

if __name__ == "__main__":
    interpreted.main(CASES)
