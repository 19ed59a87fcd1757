"""Runs the scenarios of one kind of kernels on hostile numbers; started under compute-sanitizer by the GPU tests."""

import sys

import hostile

for _make in {"portable": hostile.portable, "hopper": hostile.hopper}[sys.argv[1]]().values():
    hostile.check(_make, "cuda")
print("ran every scenario")
