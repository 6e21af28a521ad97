"""Records in little memory: the ten thousand of a dump are held by every process that compares it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from sys import intern
from typing import Any, NamedTuple, TypeVar, overload

from accuracy_eval.json_data import to_json
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.store.schema import dataset_path, dump_json

T = TypeVar("T")


class _Form(NamedTuple):
    """A tensor without its digest: what those of like cases have in common."""

    name: str
    role: str
    format: str
    shape: tuple[int, ...]
    stored: bool
    attributes: Mapping[str, Any]


class Tensors(Sequence[TensorRecord]):
    """The tensors of one record, each made when it is asked for. Held are their digests, and the forms that like records share."""

    __slots__ = ("_candidate", "_digests", "_forms", "_id")

    def __init__(self, case_id: str, candidate: str, forms: tuple[_Form, ...], digests: bytes) -> None:
        self._id, self._candidate, self._forms, self._digests = case_id, candidate, forms, digests

    def __len__(self) -> int:
        return len(self._forms)

    def __iter__(self) -> Iterator[TensorRecord]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> TensorRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TensorRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> TensorRecord | tuple[TensorRecord, ...]:
        if isinstance(index, slice):
            start, digests = dataset_path(self._id, self._candidate, ""), self._digests.hex()
            return tuple(
                TensorRecord(f.name, f.role, f.format, f.shape, digests[i : i + 64], start + f.name if f.stored else "", f.attributes)
                for i, f in zip(range(0, len(digests), 64), self._forms, strict=True)
            )[index]
        return self[:][index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as a record's mappings have none

    def __repr__(self) -> str:
        return repr(self[:])


class Shared:
    """What many records of a dump have in common, held once: shapes, options, notes, the forms of their tensors."""

    def __init__(self) -> None:
        self._held: dict[Hashable, Any] = {}

    def compact(self, record: CaseRecord) -> CaseRecord:
        """An equal record whose parts are shared with those before it. Its digests and paths must be as the schema says."""
        c, ident, candidate = record.case, record.id, intern(record.candidate)
        case = Case(
            intern(c.op), self._once(c.shape, Case, c.shape), intern(c.layout), intern(c.format), intern(c.out_format), intern(c.recipe),
            # by their text: 1, 1.0 and True are equal
            self._once(c.options, repr(c.options)), intern(c.input_class), intern(c.lane), intern(c.direction), c.seed,
        )  # fmt: skip
        forms = tuple(self._form(t) for t in record.tensors)
        digests = bytes.fromhex("".join(t.sha256 for t in record.tensors))
        return CaseRecord(
            ident, case, candidate, intern(record.status), intern(record.reason),
            Tensors(ident, candidate, self._once(forms, *map(id, forms)), digests),
            intern(record.contract), record.repeats, self._mapping(record.distinct), self._mapping(record.notes),
        )  # fmt: skip

    def _form(self, t: TensorRecord) -> _Form:
        attributes = self._mapping(t.attributes)
        form = _Form(intern(t.name), intern(t.role), intern(t.format), t.shape, bool(t.path), attributes)
        return self._once(form, *form[:-1], id(attributes))

    def _mapping(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._once(value, dump_json(to_json(value)) if value else b"{}")

    def _once(self, value: T, *key: Hashable) -> T:
        found: T = self._held.setdefault(key, value)
        return found
