"""The annotations that checks amount to: ranks, names of axes, dtypes, devices and layouts."""

import ast
import keyword
from collections.abc import Iterable, Mapping, Sequence

from ._conditions import Axis, Says, Vocabulary
from ._syntax import constant
from ._tensors import Argument

_FAMILIES = {
    "float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "float64": "Float64", "bool": "Bool",
    "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64", "uint8": "UInt8", "uint16": "UInt16",
    "uint32": "UInt32", "uint64": "UInt64", "complex64": "Complex64", "complex128": "Complex128",
}  # fmt: skip


class Facts:
    """What every call has to meet, collected from the checks that every call comes to.

    Args:
        arguments: The parameters.
        said: Statements of those checks, in order.
        unpacked: Tensor and number of axes of unpackings that every call makes.
        names: What the function calls an axis.
        vocabulary: Reads elements of shapes.
        reserved: Names that no dim may have.
    """

    def __init__(
        self,
        arguments: Mapping[str, Argument],
        said: Sequence[Says],
        unpacked: Iterable[tuple[str, int]],
        names: Mapping[tuple[str, int], str],
        vocabulary: Vocabulary,
        reserved: frozenset[str],
    ) -> None:
        self.arguments, self.vocabulary = arguments, vocabulary
        self.order = {n: i for i, n in enumerate(arguments)}
        self.rank: dict[str, int] = {}
        self.dtypes: dict[str, tuple[str, ...]] = {}
        self.devices: dict[str, tuple[str, ...]] = {}
        self.layouts: dict[str, str] = {}
        for s in said:
            if s.what == "dtype":
                self.dtypes.setdefault(s.names[0], s.value)  # type: ignore[arg-type]
            elif s.what == "device":
                self.devices.setdefault(s.names[0], s.value)  # type: ignore[arg-type]
            elif s.what == "layout":
                self.layouts.setdefault(s.names[0], s.value)  # type: ignore[arg-type]
        self._ranks(said, dict(unpacked))
        self._links: dict[Axis, Axis] = {}
        self.sizes: dict[Axis, int] = {}
        self.touched: dict[str, set[int]] = {}
        for s in said:
            self._read(s)
        self._fix_sizes()
        #: Tensors of one shape whose number of axes nothing says: each to the name of all axes together.
        self.whole = self._whole(said, reserved)
        self.names: dict[Axis, str] = {}
        self._give_names(names, reserved)

    def _ranks(self, said: Sequence[Says], unpacked: Mapping[str, int]) -> None:
        self.rank.update(unpacked)
        for s in said:
            if s.what == "rank" and isinstance(s.value, int):
                self.rank.setdefault(s.names[0], s.value)
            elif s.what == "shape" and (parts := shape_parts(s))[0] is None:
                self.rank.setdefault(s.names[0], len(parts[1]))
        for _ in said:
            for s in said:
                if s.what == "alike" and s.value == (None, None):
                    known = [self.rank[n] for n in s.names if n in self.rank]
                    for name in s.names if known else ():
                        self.rank.setdefault(name, known[0])

    def _whole(self, said: Sequence[Says], reserved: frozenset[str]) -> dict[str, str]:
        alike: list[set[str]] = []
        for s in said:
            if s.what == "alike" and s.value == (None, None):
                found = set(s.names).union(*(g for g in alike if g & set(s.names)))
                alike = [*(g for g in alike if not g & found), found]
        names: dict[str, str] = {}
        for group in alike:
            if any(n in self.rank or self.touched.get(n) for n in group):
                continue
            first = min(group, key=self.order.__getitem__)
            name = f"{first.strip('_')}_axes"
            if name not in reserved:
                names |= dict.fromkeys(group, name)
        return names

    def at(self, axis: Axis) -> Axis | None:
        """The axis counted from the front where the rank is known; None where there is no such axis."""
        rank = self.rank.get(axis.tensor)
        if rank is None:
            return axis
        index = axis.index + rank if axis.index < 0 else axis.index
        return Axis(axis.tensor, index) if 0 <= index < rank else None

    def pairs(self, s: Says) -> list[tuple[Axis, Axis]] | None:
        """The axes that a statement holds equal; None where they cannot be told."""
        if s.what == "axes":
            return [(s.axes[0], s.axes[1])]
        if s.what == "alike":
            sides = [self._sliced(n, p) for n, p in zip(s.names, s.value, strict=True)]  # type: ignore[arg-type]
            if sides[0] is None or sides[1] is None or len(sides[0]) != len(sides[1]):
                return None
            return list(zip(sides[0], sides[1], strict=True))
        if s.what == "shape":
            part, elements = shape_parts(s)
            own = self._sliced(s.names[0], part)
            if own is None or len(own) != len(elements):
                return None
            others = [self.vocabulary.axis(e) for e in elements]
            return [(a, o) for a, o in zip(own, others, strict=True) if o is not None]
        return []

    def _sliced(self, name: str, part: tuple[int | None, int | None] | None) -> list[Axis] | None:
        rank = self.rank.get(name)
        if rank is not None:
            return [Axis(name, i) for i in range(rank)[slice(*(part or (None, None)))]]
        if part is not None and not part[0] and part[1] is not None and part[1] >= 0:
            return [Axis(name, i) for i in range(part[1])]
        return None

    def _read(self, s: Says) -> None:
        for a, b in self.pairs(s) or ():
            first, second = self.at(a), self.at(b)
            if first is None or second is None:
                continue
            for axis in (first, second):
                self.touched.setdefault(axis.tensor, set()).add(axis.index)
            if first.tensor != second.tensor:
                self._links[self.root(second)] = (
                    self.root(first) if self.root(first) != self.root(second) else self.root(second)
                )
        if s.what == "size" and (axis := self.at(s.axes[0])) is not None:
            self._size(axis, s.value)
        elif s.what == "shape":
            part, elements = shape_parts(s)
            own = self._sliced(s.names[0], part)
            for axis, element in zip(own or (), elements, strict=False):
                if type(size := constant(element)) is int:
                    self._size(axis, size)

    def _size(self, axis: Axis, size: object) -> None:
        if isinstance(size, int):
            self.sizes.setdefault(axis, size)
            self.touched.setdefault(axis.tensor, set()).add(axis.index)

    def root(self, axis: Axis) -> Axis:
        """One axis that stands for all that are equal to it."""
        while (above := self._links.get(axis, axis)) != axis:
            axis = above
        return axis

    def group(self, axis: Axis) -> list[Axis]:
        """Every axis that is equal to this one, in signature order."""
        every = {*self._every(), axis}
        found = [a for a in every if self.root(a) == self.root(axis)]
        return sorted(found, key=lambda a: (self.order[a.tensor], a.index < 0, a.index))

    def _fix_sizes(self) -> None:
        for axis, size in list(self.sizes.items()):
            twins = [a for a, n in self.sizes.items() if a.tensor == axis.tensor and n == size]
            if len(self.group(axis)) > 1 or len(twins) > 1:
                del self.sizes[axis]

    def _give_names(self, called: Mapping[tuple[str, int], str], reserved: frozenset[str]) -> None:
        wanted: dict[Axis, list[str]] = {}
        for (tensor, index), name in called.items():
            axis = self.at(Axis(tensor, index)) if tensor in self.order else None
            # jaxtyping takes a name that starts with an underscore for no name.
            if axis is None or axis in self.sizes or name.startswith("_") or keyword.iskeyword(name):
                continue
            if tensor not in self.whole and (tensor in self.rank or axis.index in self.touched.get(tensor, ())):
                self.touched.setdefault(tensor, set()).add(axis.index)
                wanted.setdefault(self.root(axis), []).append(name)
        every = sorted(self._every(), key=lambda a: (self.order[a.tensor], a.index))
        taken = set(reserved)
        for axis in every:
            root = self.root(axis)
            if axis in self.sizes or root in self.names or (len(self.group(axis)) == 1 and root not in wanted):
                continue
            made = [n for n in wanted.get(root, ()) if n not in taken]
            last = "last" if axis.index == -1 else f"last{-axis.index}"
            base = f"{axis.tensor.strip('_')}_{axis.index if axis.index >= 0 else last}"
            name = made[0] if made else base
            while name in taken:
                name += "_"
            taken.add(name)
            self.names[root] = name

    def dim(self, axis: Axis) -> str | None:
        """Name of the dim that an axis carries."""
        place = self.at(axis)
        if place is None or place.index not in self.touched.get(place.tensor, ()):
            return None
        return self.names.get(self.root(place))

    def authority(self, axis: Axis) -> Axis | None:
        """The axis that binds the dim of this one."""
        place = self.at(axis)
        return self.group(place)[0] if place is not None and self.dim(place) else None

    def named(self, dim: str) -> list[Axis]:
        """Every axis that carries a dim."""
        return [a for a in self._every() if self.dim(a) == dim]

    def of(self, name: str) -> list[Axis]:
        """Every axis of a tensor that something is said of."""
        return [Axis(name, i) for i in sorted(self.touched.get(name, ()))]

    def _every(self) -> list[Axis]:
        return [a for t in self.touched for a in self.of(t)]

    def alone(self, axis: Axis) -> bool:
        """Whether no other axis of the same tensor carries the same dim."""
        place = self.at(axis)
        return place is not None and sum(a.tensor == place.tensor for a in self.group(place)) == 1

    def axes_text(self, name: str) -> str:
        """The shape string of a tensor."""
        rank = self.rank.get(name)
        used = self.touched.get(name, set())
        if name in self.whole:
            return f"*{self.whole[name]}"
        if rank is not None:
            return " ".join(self._axis_text(Axis(name, i)) for i in range(rank))
        front = max((i + 1 for i in used if i >= 0), default=0)
        back = max((-i for i in used if i < 0), default=0)
        parts = [self._axis_text(Axis(name, i)) for i in range(front)]
        parts += ["...", *(self._axis_text(Axis(name, -i)) for i in range(back, 0, -1))]
        return " ".join(parts)

    def _axis_text(self, axis: Axis) -> str:
        return str(self.sizes[axis]) if axis in self.sizes else self.dim(axis) or "_"

    def hint(self, name: str, families: set[str], constraints: set[str]) -> str:
        """The annotation of a tensor; collects the names that it needs imported."""
        dtypes = self.dtypes.get(name, ())
        metadata: list[str] = []
        if len(dtypes) == 1 and dtypes[0] in _FAMILIES:
            family = _FAMILIES[dtypes[0]]
        else:
            family = "Float" if dtypes and all("float" in d for d in dtypes) else "Shaped"
            if dtypes:
                metadata.append(f"OneOf({', '.join(f'torch.{d}' for d in dtypes)})")
        families.add(family)
        if name in self.devices:
            metadata.append(f"OnDevice({', '.join(map(repr_double, self.devices[name]))})")
        if name in self.layouts:
            metadata.append(self.layouts[name])
        constraints |= {m.partition("(")[0] for m in metadata}
        text = self.axes_text(name)
        # One token would be read as a forward reference.
        text = text if " " in text or not text.lstrip("*").isidentifier() else f" {text}"
        shown = f'{family}[Tensor, "{text}"]'
        if metadata:
            shown = f"Annotated[{shown}, {', '.join(metadata)}]"
        return shown + (" | None" if self.arguments[name].optional else "")


def repr_double(text: str) -> str:
    """A string literal in double quotes."""
    return repr(text).replace("'", '"') if '"' not in text else repr(text)


def shape_parts(s: Says) -> tuple[tuple[int | None, int | None] | None, tuple[ast.expr, ...]]:
    """Slice and elements of a ``shape`` statement."""
    return s.value  # type: ignore[return-value]
