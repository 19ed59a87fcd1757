"""How much of the hand-written checks of real packages ``tensorpact draft`` translates, and how faithfully.

For each function: the share of its checks that became clauses, and on generated arguments, bad ones above all, whether
the drafted contract raises what the function raises. Of the function only the part up to its last check is run, in the
namespace of its module; where the module does not import here, in one made of those of its statements that do. A
function that asks for CUDA is handed fake tensors that say they are there. A required parameter of which nothing says
what it is counts as an int or a text. Packages that are not installed are skipped.

    python benchmarks/drafts.py [--only TEXT] [--show] [--out benchmarks/results/drafts.json]

``--only`` measures the functions whose name holds the text anew and leaves the other figures as they are.
"""

import argparse
import ast
import collections
import contextlib
import copy
import dataclasses
import datetime as dt
import importlib
import importlib.metadata
import importlib.util
import io
import json
import platform
import random
import re
import signal
import sys
import time
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorpact._call import Call
from tensorpact._diagnosis import make_error
from tensorpact._draft import Draft, DraftError, draft
from tensorpact._draft._tensors import arguments
from tensorpact._entry import entry_of
from tensorpact._errors import ContractDefinitionError
from tensorpact._evaluation import first_violation
from tensorpact.testing._drafts import ImpossibleError, resolve
from tensorpact.testing._draw import Drawer
from tensorpact.testing._plans import TensorPlan
from tensorpact.testing._search import Suite
from tensorpact.testing._space import CannotDrawError, Space

HERE = Path(__file__).parent
#: Package to the functions that are read; the distribution where it has another name.
DISTRIBUTIONS = {"fla": "fla-core", "quack": "quack-kernels", "flashinfer": "flashinfer-python", "torch": "torch"}
TARGETS: tuple[str, ...] = (
    "fla.ops.mesa_net.chunk:chunk_mesa_net",
    "fla.modules.norm.layernorm_gated:layer_norm_bwd",
    "fla.modules.norm.layernorm_gated:layer_norm_fwd",
    "fla.ops.path_attn.parallel:parallel_path_attn",
    "fla.ops.gdn2.chunk:chunk_gdn2",
    "fla.ops.precond_kda.chunk:chunk_precond_kda",
    "fla.ops.gated_delta_product.chunk:chunk_gated_delta_product",
    "fla.ops.kda.chunk:chunk_kda",
    "fla.ops.wall_attn.decode:parallel_wall_attn_decode",
    "fla.ops.gla.chunk:chunk_gla",
    "fla.ops.delta_rule.chunk:chunk_delta_rule",
    "fla.ops.cyfa.utils:validate_cyfa_inputs",
    "torch.nn.functional:_mha_shape_check",
    "torch.nn.functional:multi_head_attention_forward",
    "torch.nn.functional:linear_cross_entropy",
    "torch.nn.functional:embedding_bag",
    "torch.nn.functional:interpolate",
    "torch.nn.attention._utils:_validate_sdpa_input",
    "torch.nn.attention.experimental._scaled_dot_product_attention_quantized:_validate_descale",
    "sageattention.core:sageattn",
    "sageattention.core:sageattn_varlen",
    "kornia.geometry.transform.imgwarp:get_rotation_matrix2d",
    "kornia.losses.depth_smooth:inverse_depth_smoothness_loss",
    "kornia.geometry.solvers.affine:_check_points",
    "kornia.losses.tversky:tversky_loss",
    "kornia.losses.dice:dice_loss",
    "liger_kernel.ops.mhc:mhc_sinkhorn_bwd",
    "liger_kernel.ops.mhc:mhc_post_res_fwd",
    "liger_kernel.ops.mhc:mhc_mm_norm_bwd",
    "liger_kernel.ops.fused_linear_scaled_cross_entropy:_validate_tp_inputs",
    "liger_kernel.ops.fused_linear_scaled_cross_entropy:_validate_fallback_inputs",
    "liger_kernel.ops.cutile.ops.fused_linear_scaled_cross_entropy:_validate_input_metadata",
    "liger_kernel.ops.cutedsl.ops.fused_linear_cross_entropy:_validate_inputs",
    "liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90:_validate_inputs",
    "liger_kernel.ops.cutedsl.ops.swiglu:fused_swiglu",
    "torchao.prototype.attention.quantization.triton_rope_qkv_quantization:triton_fp8_rope_sdpa_quantize",
    "torchao.prototype.attention.quantization.triton_hadamard_rope_qkv_quantization:triton_fp8_hadamard_rope_sdpa_quantize",
    "torchao.prototype.attention.quantization.triton_qkv_quantization:triton_fp8_sdpa_quantize",
    "torchao.prototype.attention.quantization.triton_hadamard_qkv_quantization:triton_fp8_hadamard_sdpa_quantize",
    "torchao.prototype.attention.quantization.quantization:_fp8_sdpa_quantize",
    "torchao.prototype.quantized_training.int8_mm:scaled_int8_mm",
    "torchao.prototype.moe_training.nvfp4_grouped_mm:_emulated_nvfp4_scaled_grouped_mm_2d_3d",
    "torchao.prototype.moe_training.mxfp8_grouped_mm:_emulated_mxfp8_scaled_grouped_mm_2d_3d",
    "torchao.prototype.blockwise_fp8_training.deepgemm_grouped_kernels:deepgemm_blockwise_scaled_grouped_mm",
    "torchao.prototype.hqq.mixed_mm:triton_mixed_mm",
    "torchao.kernel.intmm:int_scaled_matmul",
    "xformers.ops._triton.k_scaled_index_add:scaled_index_add_fwd",
    "xformers.ops._triton.k_scaled_index_add:scaled_index_add_bwd",
    "xformers.ops._triton.k_index_select_cat:index_select_cat_bwd",
    "xformers.ops.rope_padded:rope_padded",
    "xformers.ops.swiglu_op:swiglu",
    "attn_gym.linear.kda.fwd.triton.l2norm_fwd:l2norm",
    "attn_gym.linear.kda.fwd.triton.recompute_w_u:recompute_w_u_fwd_triton",
    "attn_gym.sparse.indexer.api:_validate_inputs",
    "attn_gym.linear.short_conv.cute:_validate_inputs",
    "attn_gym.linear._delta_rule.validation:validate_decode_inputs",
    "attn_gym.linear._delta_rule.validation:validate_delta_rule_inputs",
    "attn_gym.linear.kda.masking:active_token_mask",
    "attn_gym.linear.kda.naive:_naive_chunk_kda_from_cumulative",
    "quack.cross_entropy:_cross_entropy_backward",
    "quack.cross_entropy:cross_entropy_fwd_out",
    "quack.rmsnorm:_rmsnorm_bwd",
    "quack.rmsnorm:layernorm_fwd",
    "quack.softmax:_softmax_backward",
    "quack.topk:_topk_bwd",
    "quack.rotary:apply_rotary",
    "quack.transform.hadamard:_hadamard_transform_fwd",
    "sglang.kernels.ops.attention.linear.fused_recurrent_linear_replayssm:fused_recurrent_linear_replayssm_decode",
    "sglang.kernels.ops.attention.fla.fused_recurrent:fused_recurrent_kda_packed_decode",
    "sglang.kernels.ops.attention.helion.kda_decode:validate_packed_decode_inputs",
    "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_prefill:_sparse_attn_v4_paged_prefill_triton",
    "flashinfer.gdn_decode:gated_delta_rule_mtp",
    "flashinfer.mla._core:_check_dsv4_sparse_mla_inputs",
    "flashinfer.msa_ops.sparse_decode:msa_sparse_decode_attention",
)
MOVES = 40
#: Seconds of processor time for one function; drawing valid arguments of a contract can take for ever.
LIMIT = 3
SEED = 0


def distribution(package: str) -> str:
    """Name under which a package is installed."""
    return DISTRIBUTIONS.get(package, package.replace("_", "-"))


def is_check(node: ast.AST) -> bool:
    """Whether a statement is a check: a raise, an assert, a call of ``torch._check``."""
    return isinstance(node, (ast.Raise, ast.Assert)) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).startswith("torch._check")
    )


class Original:
    """The checks of a function, ready to be run.

    Args:
        made: Its draft, which knows where it stands.
    """

    def __init__(self, made: Draft) -> None:
        source = made.source
        self.file = f"<checks of {made.target}>"
        self.namespace, self.how = self._namespace(source.module, "\n".join(source.lines))
        function = copy.deepcopy(source.function)
        last = max((i for i, s in enumerate(function.body) if self._has_check(s, source.functions)), default=-1)
        function.body = [*function.body[: last + 1], ast.Return(ast.Constant(None))]
        function.decorator_list, function.returns = [], None
        for a in ast.walk(function.args):
            if isinstance(a, ast.arg):
                a.annotation = None
        helpers = [
            copy.deepcopy(f) for n, f in source.functions.items() if self._called(n, function) and n != function.name
        ]
        for helper in helpers:
            helper.decorator_list = [d for d in helper.decorator_list if "cache" in ast.unparse(d)]
            helper.returns = None
            for a in ast.walk(helper.args):
                if isinstance(a, ast.arg):
                    a.annotation = None
        helpers = [h for h in helpers if any(is_check(n) for n in ast.walk(h))]
        tree = ast.fix_missing_locations(ast.Module([*helpers, function], []))
        self.lines = {
            line
            for top in (function, *helpers)
            for n in ast.walk(top)
            if is_check(n)
            for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)
        }
        self.starts = {
            line: n.lineno
            for top in (function, *helpers)
            for n in ast.walk(top)
            if is_check(n)
            for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)
        }
        scope = dict(self.namespace)
        exec(compile(tree, self.file, "exec"), scope)
        self.function = scope[function.name]

    def _has_check(self, node: ast.stmt, helpers: Any) -> bool:
        return any(is_check(n) for n in ast.walk(node)) or any(
            isinstance(n, ast.Call)
            and isinstance(n.func, ast.Name)
            and n.func.id in helpers
            and any(is_check(m) for m in ast.walk(helpers[n.func.id]))
            for n in ast.walk(node)
        )

    def _called(self, name: str, function: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(function))

    def _namespace(self, module: str, text: str) -> tuple[dict[str, Any], str]:
        with quiet():
            try:
                return dict(vars(importlib.import_module(module))), "module imported"
            except BaseException as bad:
                if isinstance(bad, KeyboardInterrupt):
                    raise
            scope: dict[str, Any] = {"__name__": module, "__package__": module.rpartition(".")[0]}
            for node in ast.parse(text).body:
                with contextlib.suppress(BaseException):
                    exec(compile(ast.Module([node], []), f"<{module}>", "exec"), scope)
            return scope, "module does not import here; its statements run one by one"

    def outcome(self, arguments: dict[str, Any], keywords: frozenset[str]) -> tuple[str, Any, str]:
        """``passed``; ``check`` with line, class and text; or ``other`` with what went wrong beside the checks."""
        plain = [v for n, v in arguments.items() if n not in keywords]
        named = {n: v for n, v in arguments.items() if n in keywords}
        try:
            with quiet():
                self.function(*plain, **named)
        except Exception as error:  # noqa: BLE001 - everything a function may raise is an outcome
            frames = list(traceback.extract_tb(error.__traceback__))
            own = [f for f in frames if f.filename == self.file]
            beyond = frames[frames.index(own[-1]) + 1 :] if own else frames
            inside = all("torch/__init__" in f.filename for f in beyond)
            if own and own[-1].lineno in self.lines and inside:
                return "check", (self.starts[own[-1].lineno], type(error)), str(error)
            return "other", type(error).__name__, str(error)[:100]
        return "passed", None, ""


@contextlib.contextmanager
def quiet() -> Any:
    """Nothing printed, no warnings."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


class OutOfTimeError(BaseException):
    """The time for one function is over; no search may take it for a failed try."""


@contextlib.contextmanager
def limited() -> Any:
    """At most ``LIMIT`` seconds of processor time."""

    def stop(*_: object) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class Contracted:
    """A draft executed."""

    def __init__(self, made: Draft, namespace: dict[str, Any], text: str) -> None:
        module = types.ModuleType(made.source.module)
        module.__dict__.update(namespace)
        name = made.source.module
        known = sys.modules.get(name)
        sys.modules[name] = module
        try:
            scope: dict[str, Any] = {"__name__": "drafted"}
            exec(compile(text, "<draft>", "exec"), scope)
        finally:
            if known is not None:
                sys.modules[name] = known
            else:
                del sys.modules[name]
        self.entry = entry_of(scope[made.source.bare_name])
        assert self.entry is not None, "the draft contracts nothing"

    def outcome(self, arguments: dict[str, Any]) -> tuple[str, Any, str]:
        """What the contract says: as for the original, or ``default``, or ``rule failed``."""
        call = Call(self.entry.terms, arguments)
        try:
            violation = first_violation(call)
            if violation is None:
                return "passed", None, ""
            error = make_error(call, violation)
        except ContractDefinitionError as bad:
            return "rule failed", type(bad.__cause__).__name__, str(bad)[:160]
        if error.error is None:
            return "default", type(error).__mro__[2], str(error)
        return "check", error.error.documented, str(error)


def hinted(made: Draft) -> str:
    """The draft with a hint wherever a required parameter has none, so that arguments can be drawn."""
    head, _, signature = made.text.rpartition("@contract(")
    for name, argument in arguments(made.source.function).items():
        if argument.required and not argument.tensor and argument.hint is None and not argument.starred:
            signature = re.sub(rf"(?<![\w.\"]){name}(?=,|\)|\n)", f"{name}: int | str", signature, count=1)
    return f"{head}@contract({signature}"


def mirrored(text: str) -> str:
    """The draft with CUDA and CPU exchanged: what can be drawn without a GPU."""
    return (
        text.replace('OnDevice("cuda")', 'OnDevice("cpu")')
        .replace(".is_cuda", ".is_cpu")
        .replace('type == "cuda"', 'type == "cpu"')
    )


def on_cuda(plans: dict[str, Any]) -> dict[str, Any]:
    """Plans whose right device is CUDA and whose wrong one is the CPU."""
    swap = {"cpu": "cuda", "meta": "cpu"}
    return {
        n: dataclasses.replace(p, device=swap.get(p.device, p.device)) if isinstance(p, TensorPlan) else p
        for n, p in plans.items()
    }


def measure(made: Draft) -> dict[str, Any]:
    """Figures of one draft."""
    row: dict[str, Any] = {
        "target": made.target,
        "checks": len(made.checks),
        "translated": made.translated,
        "left": sorted({r for r in made.checks.values() if r is not None}),
    }
    original = Original(made)
    row["run"] = original.how
    text = hinted(made)
    contracted = Contracted(made, original.namespace, text)
    cuda = 'OnDevice("cuda")' in made.text or "is_cuda" in made.text or 'type == "cuda"' in made.text
    row["tensors"] = "fake CUDA" if cuda else "CPU and meta"
    drawn = Contracted(made, original.namespace, mirrored(text)) if cuda else contracted
    try:
        with quiet(), limited():
            suite = Suite(Drawer(Space(drawn.entry)), SEED, 3)
    except CannotDrawError as bad:
        return row | {"compared": 0, "not_run": f"no valid arguments found: {bad}"}
    except OutOfTimeError:
        return row | {"compared": 0, "not_run": f"no valid arguments found in {LIMIT} s"}
    counts: collections.Counter[str] = collections.Counter()
    fired: set[int] = set()
    differs: list[str] = []
    keywords = frozenset(name for name, mark in suite.space.marks.items() if mark == f"{name}=")
    rest = {
        p.name: () if p.kind is p.kind.VAR_POSITIONAL else {}
        for p in suite.space.parameters
        if p.name in suite.space.starred
    }
    rng = random.Random(SEED)
    for base in suite.bases:
        moves = base.all if len(base.all) <= MOVES else rng.sample(base.all, MOVES)
        for changes in ((), *((m,) for m in moves), *(tuple(rng.sample(base.all, 2)) for _ in range(MOVES // 4))):
            try:
                case = resolve(suite.space, base.draft.moved(*changes))
            except ImpossibleError:
                continue
            case = dataclasses.replace(case, plans=on_cuda(case.plans)) if cuda else case
            try:
                with FakeTensorMode(allow_non_fake_inputs=True) if cuda else contextlib.nullcontext():
                    given = case.arguments()
                    theirs = original.outcome(given, keywords)
                    ours = contracted.outcome(given | rest)
            except (RuntimeError, NotImplementedError):
                continue  # no such tensor can be made
            kind = compare(theirs, ours, made, fired)
            counts[kind] += 1
            if kind.startswith("differs") and len(differs) < 400:
                differs.append(f"{kind}: {theirs} / {ours} after {changes}")
    row["witnessed"] = len(fired)
    row["counts"] = dict(sorted(counts.items()))
    row["compared"] = counts["same error"] + sum(n for k, n in counts.items() if k.startswith("differs"))
    row["equal"] = counts["same error"]
    row["examples"] = differs
    return row


def compare(theirs: tuple[str, Any, str], ours: tuple[str, Any, str], made: Draft, fired: set[int]) -> str:
    """What one call says of the draft."""
    if theirs[0] == "other":
        return "raw error of the function"
    if theirs[0] == "passed":
        return {
            "passed": "both pass",
            "check": "differs: the function passes, the contract raises a documented error",
            "default": "stricter: an annotation of the draft is broken",
            "rule failed": "differs: a rule of the draft fails",
        }[ours[0]]
    line, kind = theirs[1]
    raises = {ast.unparse(i.error.exception).rpartition(".")[2] for i in made.items if i.line == line and i.error}
    if raises and kind.__name__ not in raises:
        return "raw error of the function"  # the condition itself failed, an IndexError or a division by zero
    if made.checks.get(line, "no item") is not None:
        return "fires a check that is not translated"
    if ours[0] == "check" and ours[1] is kind and ours[2] == theirs[2]:
        fired.add(line)
        return "same error"
    if ours[0] == "check":
        return "differs: another documented error" if ours[1:] != (kind, theirs[2]) else "same error"
    return {
        "passed": "differs: the contract lets it through",
        "default": "differs: a default error in its place",
        "rule failed": "differs: a rule of the draft fails",
    }[ours[0]]


def main() -> None:
    """Measure, print a line for each function, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--part", default="1/1", help="the first of two halves: 1/2")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "drafts.json")
    options = parser.parse_args()
    part, parts = (int(n) for n in options.part.split("/"))
    targets = TARGETS[(part - 1) * len(TARGETS) // parts : part * len(TARGETS) // parts]
    rows: list[dict[str, Any]] = []
    absent: list[str] = []
    versions: dict[str, str] = {}
    others: list[dict[str, Any]] = []
    if options.only and options.out.exists():
        before = json.loads(options.out.read_text())
        others = [r for r in before["functions"] if options.only not in r["target"]]
        absent = [t for t in before["absent"] if options.only not in t]
        versions = before["packages"]

    def save() -> None:
        report = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "packages": versions,
            "absent": absent,
            "functions": sorted((*others, *rows), key=lambda r: TARGETS.index(r["target"])),
        }
        options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    for target in targets:
        package = target.partition(":")[0].partition(".")[0]
        if options.only not in target:
            continue
        if importlib.util.find_spec(package) is None:
            absent.append(target)
            continue
        versions[package] = importlib.metadata.version(distribution(package))
        begun = time.perf_counter()
        try:
            made = draft(target)
        except DraftError as bad:
            absent.append(target)
            print(f"{target}: {bad}")
            continue
        if options.show:
            print(made.text)
        try:
            row = measure(made)
        except Exception as bad:  # noqa: BLE001 - a draft that does not run is a result
            row = {"target": target, "checks": len(made.checks), "translated": made.translated, "compared": 0}
            row["not_run"] = f"{type(bad).__name__}: {bad}"[:300]
        rows.append(row)
        examples = row.pop("examples", [])
        row["examples"] = examples[:2]
        if not options.show:
            save()
        if options.show:
            shown: set[str] = set()
            for e in examples:
                if e.partition(":")[2][:60] not in shown and len(shown) < 12:
                    shown.add(e.partition(":")[2][:60])
                    print("   ", e[:700])
            print(json.dumps(row, indent=1))
        print(
            f"{target} {row['translated']}/{row['checks']} compared {row.get('equal', 0)}/{row['compared']}"
            f" witnessed {row.get('witnessed', 0)} {time.perf_counter() - begun:.1f}s {row.get('not_run', '')}",
            flush=True,
        )
    checks, done = sum(r["checks"] for r in rows), sum(r["translated"] for r in rows)
    compared, equal = sum(r["compared"] for r in rows), sum(r.get("equal", 0) for r in rows)
    print(f"{len(rows)} functions, {done}/{checks} checks translated, {equal}/{compared} calls alike")
    print(f"{len(absent)} absent")


if __name__ == "__main__":
    main()
