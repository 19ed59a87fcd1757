"""Which functions are drafted: a rule, so that nobody picks those that go well.

Of every package, the functions with the most checks that ask for the metadata of an argument, one a module and at most
``A_PACKAGE``, where a call can be made of tensors and plain values: a required parameter that is an object, by its hint
or because the function reads attributes of it, is one that nothing here knows how to make. Folders of tests, of
vendored code and of experiments do not count.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from tensorpact._draft._tensors import arguments

PACKAGES = (
    "attn_gym",
    "fla",
    "flashinfer",
    "kornia",
    "liger_kernel",
    "quack",
    "sageattention",
    "sglang",
    "torch",
    "torchao",
    "xformers",
)
A_PACKAGE = 5
#: Checks that a function has at least.
LEAST = 4
METADATA = frozenset(
    [
        "shape",
        "ndim",
        "dtype",
        "device",
        "is_cuda",
        "stride",
        "is_contiguous",
        "dim",
        "size",
        "numel",
        "is_floating_point",
    ]
)
_SKIPPED = re.compile(r"test|bench|csrc|third_party|vendor|experimental|_models|_cudnn_frost|kernel_src|diffusion")
#: Hints whose values can be written down without the package.
_PLAIN = re.compile(
    r"(torch\.)?(dtype|device|Generator)|int|float|bool|str|None|Any|object|Literal\[.*\]"
    r"|((List|list|Tuple|tuple|Sequence)\[(int|float|bool|str|torch\.Tensor|Tensor|, |\.\.\.)*\])"
)


def asked(function: ast.FunctionDef) -> int:
    """How many checks of a function read the metadata of something."""
    count = 0
    for node in ast.walk(function):
        test: ast.expr | None = None
        raises = isinstance(node, ast.If) and any(isinstance(s, ast.Raise) for s in node.body)
        if isinstance(node, ast.Assert) or raises:
            test = node.test
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch._check") and node.args:
            test = node.args[0]
        if test is not None:
            count += any(isinstance(n, ast.Attribute) and n.attr in METADATA for n in ast.walk(test))
    return count


def makeable(function: ast.FunctionDef) -> bool:
    """Whether a call of a function can be made of tensors and plain values.

    Args:
        function: The function; it has to take a tensor.
    """
    spec = function.args
    hints = {a.arg: a.annotation for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
    known = arguments(function).values()
    needed = [a.name for a in known if a.required and not (a.tensor or a.starred)]
    read = {n.value.id for n in ast.walk(function) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    return any(a.tensor for a in known) and all(_plain(hints[n]) and n not in read for n in needed)


def _plain(hint: ast.expr | None) -> bool:
    if hint is None:
        return True
    text = hint.value if isinstance(hint, ast.Constant) and isinstance(hint.value, str) else ast.unparse(hint)
    text = re.sub(r"(?:typing\.)?Optional\[(.*)\]$", r"\1", text)
    return all(_PLAIN.fullmatch(part.strip()) for part in re.split(r"\|(?![^\[]*\])", text))


def candidates(package: str) -> Iterator[tuple[int, str]]:
    """Functions of a package with their number of checks, most first, one a module.

    Args:
        package: An importable package; it is read, not imported.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return
    root = Path(spec.submodule_search_locations[0])
    found: list[tuple[int, str]] = []
    for path in root.rglob("*.py"):
        inside = path.relative_to(root)
        text = path.read_text(encoding="utf-8", errors="replace")
        if _SKIPPED.search(str(inside)) or not ("Tensor" in text or "torch" in text):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        module = ".".join((package, *inside.with_suffix("").parts)).removesuffix(".__init__")
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        found += [(asked(f), f"{module}:{f.name}") for f in functions if asked(f) >= LEAST and makeable(f)]
    yield from sorted(found, key=lambda f: (-f[0], f[1]))


def chosen() -> Iterator[str]:
    """The functions that are drafted, package by package."""
    for package in PACKAGES:
        modules: set[str] = set()
        for _, target in candidates(package):
            module = target.partition(":")[0]
            if len(modules) < A_PACKAGE and module not in modules:
                modules.add(module)
                yield target
