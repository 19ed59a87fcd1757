"""Compiles or interprets device functions that were imported under the hook; prints one JSON line per case.

Started by test_hooked_triton.py in a process of its own: the packages must not have been imported before.

Usage: _hooked_triton.py compile|interpret DIRECTORY, where the directory is written to.
"""

import contextlib
import importlib.util
import json
import pathlib
import sys
import traceback

from tensorpact import install_import_hook

HERE = pathlib.Path(__file__).parent
ALIASES = '''
import functools

import triton as t
from triton import jit as kernel
from triton import language as tl

seldom = functools.partial(t.jit, do_not_specialize=["n"])


def own(function):
    """A decorator that does not show what it does."""
    return t.jit(function)


@kernel
def one_more(x: tl.tensor) -> tl.tensor:
    return x + 1


@kernel
def by_alias(x_ptr, n: tl.int32, BLOCK: tl.constexpr) -> None:
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, one_more(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


@seldom
def by_partial(x_ptr, n: tl.int32, BLOCK: tl.constexpr) -> None:
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, one_more(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


@own
def by_constexpr(x_ptr, n: tl.int32, BLOCK: tl.constexpr) -> None:
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, one_more(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


@t.autotune(configs=[t.Config({}, num_warps=1)], key=["n"])
@t.heuristics({"BLOCK": lambda args: 8})
@t.jit(do_not_specialize=["n"])
def tuned(x_ptr, n: tl.int32, BLOCK: tl.constexpr) -> None:
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, one_more(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


def host(n: int) -> int:
    return n
'''
NAMES = ("by_alias", "by_partial", "by_constexpr", "tuned")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_packages(root):
    """Write kernels under aliases, and this project's device functions without their ``@no_type_check``."""
    kernels = pathlib.Path(importlib.util.find_spec("tensorpact_kernels").origin).parent / "sparse_prefill"
    (root / "aliases.py").write_text(ALIASES, encoding="utf-8")
    (root / "bare").mkdir()
    (root / "bare" / "__init__.py").touch()
    for module in kernels.glob("device*.py"):
        text = module.read_text(encoding="utf-8").replace("@no_type_check\n", "")
        text = text.replace("tensorpact_kernels.sparse_prefill.", "bare.").replace("from .", "from bare.")
        (root / "bare" / module.name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(root))


def compile_alias(name):
    import aliases
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(aliases, name)
    while not isinstance(function, triton.JITFunction):
        function = function.fn
    signature = {"x_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    made = triton.compile(ASTSource(function, signature, {(2,): 8}), target=GPUTarget("cuda", 90, 32))
    if "st.global" not in made.asm["ptx"]:
        raise AssertionError("nothing is stored")


def compile_cases(root):
    checks = load(HERE / "test_sparse_prefill_compiles.py")
    for name in NAMES:
        yield f"aliases.{name}", lambda name=name: compile_alias(name)

    def project():
        checks.test_combine(2, True)
        checks.test_prefill(16, 128)

    yield "tensorpact_kernels", project
    if checks.GLUON is None:
        yield "tensorpact_kernels gluon", lambda: checks.test_hopper_kernels(16, 512, False, True)

    def bare():
        import bare.device
        import bare.device_split

        checks.device, checks.device_split = bare.device, bare.device_split
        project()

    yield "bare", bare
    if checks.GLUON is None:

        def bare_gluon():
            import bare.device_hopper_narrow

            checks.device_hopper_narrow = bare.device_hopper_narrow
            checks.test_hopper_kernels(16, 512, False, True)

        yield "bare gluon", bare_gluon


def interpret_alias(name):
    import aliases
    import torch

    x = torch.zeros(8)
    if name == "tuned":
        # The tuner asks for a device; what it tunes is the function below.
        aliases.tuned.fn[(1,)](x, 5)
    else:
        getattr(aliases, name)[(1,)](x, 5, BLOCK=8)
    if x.tolist() != [1.0] * 5 + [0.0] * 3:
        raise AssertionError(x.tolist())


def interpret_cases(root):
    for name in NAMES:
        yield f"aliases.{name}", lambda name=name: interpret_alias(name)
    script = load(HERE / "_interpreter_sparse_prefill.py")
    for name, (function, arguments) in list(script.CASES.items())[:2]:
        yield f"tensorpact_kernels {name}", lambda function=function, arguments=arguments: function(**arguments)


def contracts_of(hook):
    """What the hook found: host code is contracted, and no device function is."""
    found = hook.contracts
    wrong = {m: n for m, n in found.items() if n and (m.startswith("bare") or ".device" in m)}
    if wrong:
        raise AssertionError(f"device functions are contracted: {wrong}")
    if found.get("aliases") != 1:  # `host`
        raise AssertionError(f"aliases: {found.get('aliases')}")
    if not found.get("tensorpact_kernels.sparse_prefill.launch"):
        raise AssertionError(f"host code is not contracted: {found}")


def main():
    mode, root = sys.argv[1], pathlib.Path(sys.argv[2])
    write_packages(root)
    with install_import_hook("tensorpact_kernels", "bare", "aliases", check_returns=True) as hook:
        for name, case in (*{"compile": compile_cases, "interpret": interpret_cases}[mode](root), ("contracts", None)):
            error = None
            try:
                contracts_of(hook) if case is None else case()
            except Exception:
                error = traceback.format_exc()
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps({"case": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
