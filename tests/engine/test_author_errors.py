"""A contract that is wrong in itself is refused at decoration, with the near names."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from tensorpact import Contract, ContractDefinitionError, DocumentedError, contract
from tensorpact.clauses import (
    Clause,
    any_of,
    device,
    dtype,
    exclusive,
    layout,
    let,
    needs,
    no_overlap,
    present,
    rank,
    require,
    same_device,
    same_dim,
    same_dtype,
    shape,
    together,
)
from tensorpact.constraints import DenseInner, DenseLast, OnDevice, OneOf


def laid(*clauses: Clause, **options: Any) -> None:
    """Lay a contract on a decode signature."""

    @contract(Contract("decode", clauses=clauses, **options))
    def decode(
        query: Annotated[Float[Tensor, "B H K"], DenseLast(), OnDevice("cpu")],
        k_cache: Float[Tensor, "slots H L K"],
        v_cache: Float[Tensor, "slots H L V"],
        a: Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"],
        state: Annotated[Float[Tensor, "slots L *rest"], OnDevice("cuda")],
        write_pos: Int32[Tensor, " B"] | None = None,
        scale: float = 1.0,
    ) -> None: ...


def template(text: str, **fields: Callable[..., Any]) -> DocumentedError:
    return DocumentedError("slug", ValueError, text, fields)


MISSPELT = [
    (present("writepos"), "'writepos' is no parameter; near: write_pos"),
    (rank("querry"), "'querry' is no tensor parameter; near: query"),
    (rank("scale"), "'scale' is no tensor parameter; near: state"),
    (dtype("kcache"), "'kcache' is no tensor parameter; near: k_cache"),
    (layout("querry"), "'querry' is no tensor parameter; near: query"),
    (device("querry"), "'querry' is no tensor parameter; near: query"),
    (shape("kcache"), "near: k_cache"),
    (shape("k_cache", axes="slots l"), "'l' is no axis of k_cache; there are: H, K, L, slots"),
    (same_dim("Hq", "query", "k_cache"), "'Hq'"),
    (same_dim("V", "query", "v_cache"), "'V'"),
    (same_dim("K", "query", "kcache"), "near: k_cache"),
    (same_dtype("query", "kcache"), "near: k_cache"),
    (same_device("query", "kcache"), "near: k_cache"),
    (no_overlap("query", "kcache"), "near: k_cache"),
    (together("write_pos", "scal"), "near: scale"),
    (needs("write_pos", "scal"), "near: scale"),
    (exclusive("write_pos", "scal"), "near: scale"),
    (any_of(rank("query"), rank("kcache")), "near: k_cache"),
    (require(lambda slot: slot > 1), "the rule: 'slot' is no parameter, dim or let; near: slots"),
    (require(lambda HV: HV > 1), "the rule reads 'HV' of a union, which binds no dim"),
    (require(lambda B: B > 1, when=lambda slot: slot), "when: 'slot' is no parameter, dim or let; near: slots"),
    (require(lambda B: B > 1, about="querry"), "about: 'querry' is no parameter; near: query"),
    (let(half=lambda kk: kk // 2), "half=: 'kk' is no parameter, dim or let"),
    (rank("query", error=template("{querry.ndim}")), "'querry'"),
    (rank("query", error=template("{field}", field=lambda slot: slot)), "'slot'"),
]


@pytest.mark.parametrize(("clause", "text"), MISSPELT, ids=[str(c) + f"-{i}" for i, (c, _) in enumerate(MISSPELT)])
def test_misspelt_names(clause: Clause, text: str) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        laid(rank("query"), clause)
    assert "decode: clause 1 " in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dims": {"slot": "rows of the pool"}}, "dims: 'slot' is no annotated dim; near: slots"),
        ({"binds": {"slot": "k_cache"}}, "binds: 'slot' is no annotated dim; near: slots"),
        ({"binds": {"H": "kcache"}}, "binds['H']: 'kcache' is no parameter with the dim H; near: k_cache"),
        ({"binds": {"V": "k_cache"}}, "binds['V']: 'k_cache' is no parameter with the dim V; near: v_cache"),
        ({"tied": ("scal",)}, "tied: 'scal' is no parameter; near: scale"),
        ({"tied": ("scale",)}, "tied: 'scale' is no annotated dim"),
        ({"mutates": ("kcache",)}, "mutates: 'kcache' is no tensor parameter; near: k_cache"),
        ({"mutates": ("scale",)}, "mutates: 'scale' is no tensor parameter"),
    ],
    ids=[
        "dims",
        "binds-dim",
        "binds-name",
        "binds-name-without-dim",
        "tied",
        "tied-no-dim",
        "mutates",
        "mutates-scalar",
    ],
)
def test_misspelt_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        laid(**options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("clauses", "text"),
    [
        ([layout("k_cache")], "the annotation of k_cache has no layout constraint to claim"),
        ([device("k_cache")], "the annotation of k_cache has no device constraint to claim"),
        ([shape("a", axes="B")], "the axes of a union are one obligation; leave axes= out"),
        ([same_dim("B", "query", "a")], "a is a union, whose axes are one obligation"),
        ([require(lambda twice: twice), let(twice=lambda B: 2 * B)], "reads 'twice', which a later let derives"),
        ([shape("query"), let(H=lambda K: K)], "needs H"),
        ([shape("a"), let(HV=lambda K: K)], "needs HV"),
        ([let(x=lambda B: B), let(x=lambda B: B)], "let(x) stands twice"),
        ([let(scale=lambda B: B)], "let(scale) has the name of a parameter"),
        ([let(rest=lambda B: B)], "let(rest): a variadic dim cannot be derived"),
        ([let(x=lambda y: y, y=lambda B: B)], "'y'"),
        (
            [together("write_pos", "scale"), exclusive("write_pos", "scale")],
            "exclusive('write_pos', 'scale') contradicts together(scale, write_pos)",
        ),
        ([same_dtype("query", "write_pos")], "query and write_pos have no dtype in common"),
        ([same_device("query", "state")], "no device type suits state and those before it"),
    ],
    ids=[
        "layout", "device", "union-axes", "union-dim", "later-let", "shape-before-let", "union-before-let", "let-twice",
        "let-parameter", "let-variadic", "let-chain", "together-exclusive", "dtypes", "devices",
    ],
)  # fmt: skip
def test_contradictions(clauses: list[Clause], text: str) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        laid(*clauses)
    assert text in str(caught.value)


def test_a_contract_that_is_right_is_laid() -> None:
    laid(
        layout("query"), same_dim("H", "query", "k_cache"), let(twice=lambda B: 2 * B), let(HV=lambda K: K), shape("a"),
        require(lambda twice, query, write_pos: True, when=lambda scale: scale, about="query"),
        dims={"B": "batch", "HV": "value heads", "twice": "derived"}, binds={"K": "k_cache"}, mutates="k_cache",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("B T+", "axis 'T+': it does not parse as an expression"),
        ("B T(1)", "T is no builtin function"),
        ("B max(max,1)", "max is used both as a function and as a dim"),
        ("B -3", "no axis has a size below 0"),
        ("B {}", "a `{…}` part holds an expression alone"),
        ("B in+1", "it does not parse"),
        ("B T+1+U", "reads 'T', which nothing binds"),
        ("B Bb*B", None),
        ("B B**Bb", "reads 'Bb', which nothing binds; near: B"),
        ("B {m}", "'m' is no parameter; there are: n, x"),
        ("B {self.k}", "'self' is no parameter"),
    ],
)
def test_dims_that_cannot_be(text: str, reason: str | None) -> None:
    def make() -> None:
        hint = Float[Tensor, text]

        @contract
        def f(x: hint, n: int) -> None: ...

    if reason is None:
        make()
        return
    with pytest.raises(ContractDefinitionError) as caught:
        make()
    assert reason in str(caught.value)
    assert "f: " in str(caught.value)


@pytest.mark.parametrize("text", ["#_", "*_#x", "**a", "##a", "?a"])
def test_dims_that_jaxtyping_or_we_refuse(text: str) -> None:
    def make() -> None:
        hint = Float[Tensor, text]

        @contract
        def f(x: hint) -> None: ...

    with pytest.raises((ContractDefinitionError, ValueError)):
        make()


def test_a_dim_that_is_single_and_variadic() -> None:
    with pytest.raises(ContractDefinitionError, match="dim 'v' is both a single axis and variadic"):

        @contract
        def f(x: Float[Tensor, " *v"], y: Float[Tensor, " v"]) -> None: ...


async def _awaited(B: int) -> bool:
    return B > 1


def _yielded(B: int) -> Any:
    yield B > 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rank(), "rank needs at least 1 parameter name"),
        (lambda: same_dtype("q"), "same_dtype needs at least 2 parameter names"),
        (lambda: rank("q", "q"), "rank names q twice"),
        (lambda: rank(3), "rank takes parameter names, not 3"),
        (lambda: let(), "let derives nothing"),
        (lambda: any_of(), "any_of has no member"),
        (lambda: any_of(let(x=lambda B: B)), "let(x) cannot stand inside any_of"),
        (lambda: any_of(any_of(rank("q"))), "cannot stand inside any_of"),
        (lambda: any_of(rank("q", error=template("x"))), "rank('q') has an error of its own inside any_of"),
        (lambda: require(lambda *args: True), "must be a plain function of named arguments"),
        (lambda: require(len), "must be a plain function of named arguments"),
        (lambda: require(_awaited), "must be a plain function of named arguments"),
        (lambda: let(x=_yielded), "must be a plain function of named arguments"),
        (lambda: rank("q", when=_yielded), "must be a plain function of named arguments"),
        (lambda: OneOf(), "OneOf() takes dtypes"),
        (lambda: OneOf("float16"), "takes dtypes such as torch.float16"),  # type: ignore[arg-type]
        (lambda: OnDevice(), "takes device types"),
        (lambda: OnDevice(torch.device("cpu")), "takes device types"),  # type: ignore[arg-type]
        (lambda: DenseInner(0), "at least 1 axis"),
        (lambda: let(x=lambda **k: 1), "must be a plain function of named arguments"),
        (lambda: Contract("f", clauses=["rank"]), "f: 'rank' is no clause"),
        (lambda: template("{"), "slug: message template '{' does not parse"),
        (lambda: template("{q.}"), "{q.} in the message template is no expression"),
        (lambda: DocumentedError("Bad Slug", ValueError, ""), "slug 'Bad Slug'"),
        (lambda: DocumentedError("slug", int, ""), "is no exception class"),
    ],
    ids=[
        "rank", "same-dtype", "twice", "not-a-name", "let", "any-of", "any-of-let", "any-of-any-of", "any-of-error",
        "args", "builtin", "awaited", "yielded", "yielded-when", "one-of-none", "one-of-text", "on-no-device",
        "on-device-object", "dense-none", "kwargs", "clause", "template", "expression", "slug", "class",
    ],
)  # fmt: skip
def test_malformed_clauses(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        make()
    assert text in str(caught.value)


def test_annotations_that_no_tensor_can_meet() -> None:
    with pytest.raises(ContractDefinitionError, match="leaves no dtype that the hint allows"):

        @contract
        def f(x: Annotated[Float[Tensor, " n"], OneOf(torch.int32)]) -> None: ...

    with pytest.raises(ContractDefinitionError, match="stands beside no tensor hint"):

        @contract
        def g(x: Annotated[int, DenseLast()]) -> None: ...


def test_an_unresolvable_string_annotation_is_named() -> None:
    @contract
    def f(x: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ContractDefinitionError, match=r"the annotation of x, 'Missing', fails: NameError"):
        f(1)


def test_a_string_annotation_that_is_no_hint_is_refused_at_once() -> None:
    with pytest.raises(ContractDefinitionError, match=r"the annotation of x, 'torch\.nothing', fails: AttributeError"):

        @contract
        def f(x: "torch.nothing") -> None: ...  # type: ignore[name-defined]


def test_a_class_that_is_no_dataclass_is_refused() -> None:
    with pytest.raises(ContractDefinitionError, match="Layer is no dataclass"):

        @contract
        class Layer:
            pass
