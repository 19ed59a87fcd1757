"""The public names, pinned: adding or removing one is a decision, and changes this file and CHANGELOG.md."""

import importlib
from pathlib import Path

import pytest

SURFACE = {
    "tensorpact": [
        "ArgumentInfo",
        "Binding",
        "Contract",
        "ContractDefinitionError",
        "ContractViolation",
        "DocumentedError",
        "ValueReport",
        "apply",
        "axis_names",
        "backend",
        "contract",
        "enforcement",
        "explain",
        "install_import_hook",
        "name_axes",
        "poll",
        "synchronize",
        "torch_op",
        "use_backend",
        "value_checks",
        "value_report",
    ],
    "tensorpact.clauses": [
        "Clause",
        "any_of",
        "at_least",
        "at_most",
        "device",
        "distinct",
        "dtype",
        "ends_at",
        "exclusive",
        "finite",
        "layout",
        "less_than",
        "let",
        "live",
        "multiple_of",
        "named_axes",
        "needs",
        "no_overlap",
        "nondecreasing",
        "present",
        "rank",
        "require",
        "same_device",
        "same_dim",
        "same_dtype",
        "same_empty",
        "shape",
        "starts_at",
        "steps",
        "steps_at_most",
        "together",
        "upto",
        "values",
        "within",
    ],
    "tensorpact.dtypes": [
        "Bits",
        "Complex32",
        "Float4e2m1fnx2",
        "Float8",
        "Float8e8m0fnu",
        "Float8fn",
        "Float8fnuz",
        "Packed",
        "Quantized",
    ],
    "tensorpact.integrations": [
        "AlreadyAppliedError",
        "AlreadyImportedError",
        "Applied",
        "ApplyError",
        "ImportHook",
        "LeftInPlaceWarning",
        "NotCallableError",
        "OperatorTargetError",
        "Overlay",
        "StubMismatchError",
        "TargetNotFoundError",
        "TorchOp",
        "apply",
        "install_import_hook",
        "judge",
        "overlay",
        "torch_op",
    ],
    "tensorpact.reporting": [
        "Flag",
        "NO_FLAG",
        "Told",
        "kernel_flag",
    ],
    "tensorpact.reporting.device": [
        "tell",
    ],
    "tensorpact.testing": [
        "Arguments",
        "CannotDrawError",
        "EntryReport",
        "Finding",
        "Mutant",
        "MutationEntry",
        "MutationReport",
        "Report",
        "Section",
        "TargetError",
        "Trial",
        "Witness",
        "arguments",
        "mutate",
        "raises",
        "register_argument",
        "register_arguments",
        "register_values",
        "verify",
        "witness",
    ],
    "tensorpact.testing.hooks": [
        "register_argument",
        "register_arguments",
        "register_values",
    ],
    "tensorpact.constraints": [
        "Aligned",
        "Constraint",
        "Contiguous",
        "DenseInner",
        "DenseLast",
        "NamedAxes",
        "OnDevice",
        "OneOf",
        "Reach32",
        "SameDtype",
    ],
}


@pytest.mark.parametrize("name", SURFACE)
def test_all_is_pinned(name: str):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == SURFACE[name]
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


@pytest.mark.parametrize("name", SURFACE)
def test_public_objects_are_documented(name: str):
    module = importlib.import_module(name)
    assert [public for public in module.__all__ if not getattr(module, public).__doc__] == []


def test_no_other_module_of_the_engine_is_public():
    names = {path.stem for path in Path(importlib.import_module("tensorpact").__path__[0]).iterdir()}
    public = {name for name in names if name[0] not in "_." and name not in {"py", "README"}}
    assert public <= {"clauses", "cli", "constraints", "dtypes", "integrations", "reporting", "testing"}
    inside = {path.stem for path in Path(importlib.import_module("tensorpact.integrations").__path__[0]).iterdir()}
    # The plugin's functions are pytest's to call.
    assert {name for name in inside if name[0] not in "_."} == {"pytest_plugin"}
