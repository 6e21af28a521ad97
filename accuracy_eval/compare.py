"""compare: dumps joined by case, checked for equal inputs, judged by the reference and against each other.

Cases are streamed: one case's operands and one panel of its reference are in memory at a time. Inputs are regenerated from the case
(or read where they are stored) and their digests must equal every dump's; outputs of different inputs are never compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from accuracy_eval.cases import case_id
from accuracy_eval.digests import sha256_many
from accuracy_eval.engine.local import LocalPool
from accuracy_eval.engine.seats import cpu_seats
from accuracy_eval.engine.work import Done, Finished, Lost, Seat
from accuracy_eval.errors import AccuracyEvalError, FileError, InputMismatch, UsageError
from accuracy_eval.formats import Codes, Values, concrete
from accuracy_eval.gates import Profile, load_profile
from accuracy_eval.judge import Rows, SideTensor, facts_of, judge_tensor
from accuracy_eval.metamorphic import Run, judge_relation
from accuracy_eval.ops.operands import operand_codes, quantised_inputs, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Inputs, Joint, OpSpec, Output, Reference, rows_and_columns
from accuracy_eval.records import (
    RESULTS_SCHEMA,
    Case,
    CaseRecord,
    Coded,
    DumpInfo,
    NotCompared,
    Results,
    TensorResult,
    Verdict,
)  # fmt: skip
from accuracy_eval.reference_cache import ReferenceCache
from accuracy_eval.sampled import judge_sampled, scoped
from accuracy_eval.scaling import with_scales
from accuracy_eval.store import Dump
from accuracy_eval.threads import thread_count
from accuracy_eval.version import PRODUCER
from accuracy_eval.visits import states_text, unvisited, visits, visits_text

ReferenceMode = Literal["full", "sampled", "auto", "none"]
Progress = Callable[[int, int, str], None]
Explainer = Callable[..., TensorResult]
BATCH = 16  # cases a worker process is given at a time, at most
MANY_CASES = 1000  # from here on one process a core pays for starting them (2 s each)


@dataclass(frozen=True)
class _Operands:
    """A case's operands under one encoding: codes as generated, and what the op receives."""

    codes: dict[str, Codes]
    inputs: Inputs


@dataclass(frozen=True)
class Entry:
    """One dump in a comparison."""

    label: str
    dump: Dump

    @property
    def encoding(self) -> Encoding:
        return "fnuz" if self.dump.platform.get("fp8_encoding") == "fnuz" else "ocp"

    @property
    def vendor(self) -> str:
        return str(self.dump.platform.get("vendor"))


@dataclass(frozen=True)
class _How:
    """How cases are judged; see `compare_dumps`."""

    reference: ReferenceMode
    cache: ReferenceCache | None
    cross_format: bool
    verify: bool


def compare_dumps(
    *paths: str | Path,
    labels: Sequence[str] = (),
    reference: ReferenceMode = "auto",
    gates: str = "default",
    cases: Sequence[str] = (),
    keep: Callable[[Case], bool] = lambda case: True,
    cross_format: bool = False,
    verify: bool = True,
    reference_cache: str | Path | None = None,
    explain: bool = False,
    unit: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Judge one or more dumps (files or folders of parts).

    labels        names of the dumps in the report; by default the device's, numbered where two are equal
    reference     "full": every output against the float64 truth; "sampled": products by exact rows and columns and random projections;
                  "auto": full up to 2^41 operations a product; "none": the dumps against each other alone, no side passes
    gates         a profile's name or path
    cases, keep   only these case ids; only cases for which `keep` is true
    cross_format  compare encodings of one fp8 family by value
    verify        check the stored digests of what is read
    reference_cache  folder where references are kept between comparisons and read from
    explain       also name the order of operations that makes each product's bits, of `unit`'s arithmetic or of the dump's own device;
                  it changes no verdict
    workers       processes that share the cases; None: one a core from 1,000 cases on. The results are the same
    FileError for a file that cannot be used, UsageError for an unknown case or profile. Nothing judged is a result with exit code 2.
    """
    if not paths:
        raise UsageError("compare needs at least one dump")
    options = _Options(tuple(map(str, paths)), tuple(labels), gates, reference, reference_cache, cross_format, verify, explain, unit)
    tensors: list[TensorResult] = []
    skipped: list[NotCompared] = []
    with _Comparison(options) as comparison:
        joined = comparison.join(cases, keep)
        crew = _default_workers(len(joined)) if workers is None else workers
        batches = _batches(list(joined), crew)
        number = 0
        for found in comparison.run(batches, joined) if crew == 1 else _shared(options, batches, joined, crew):
            for key, results in found:
                for result in results:
                    (skipped if isinstance(result, NotCompared) else tensors).append(result)  # type: ignore[arg-type]
                number += 1
                if progress:
                    progress(number, len(joined), key[0])
        if not cases:
            skipped += [n for e in comparison.entries for n in _unvisited(e, keep)]
        judged = _results(comparison.entries, comparison.profile, tensors, skipped, reference, joined)
        return replace(judged, notes=(*judged.notes, *_explanations(comparison.entries, tensors))) if explain else judged


Found = list[tuple["Key", list[TensorResult | NotCompared]]]


@dataclass(frozen=True)
class _Options:
    """What is compared and how, as `compare_dumps` was asked: enough to open the same comparison in another process."""

    paths: tuple[str, ...]
    labels: tuple[str, ...]
    gates: str
    reference: ReferenceMode
    reference_cache: str | Path | None
    cross_format: bool
    verify: bool
    explain: bool
    unit: str | None


class _Comparison:
    """Open dumps and how to judge them. Use as a context manager."""

    def __init__(self, options: _Options) -> None:
        self.profile = load_profile(options.gates)
        dumps = [Dump.open(p) for p in options.paths]
        for d in dumps:
            d.borrow(other for other in dumps if other is not d)
        self.entries = [Entry(label, d) for label, d in zip(_labels(dumps, options.labels), dumps, strict=True)]
        self._explainer = _explainer(options.unit) if options.explain else None
        cache = ReferenceCache(options.reference_cache) if options.reference_cache else None
        self._how = _How(options.reference, cache, options.cross_format, options.verify)
        self._stack = ExitStack()

    def __enter__(self) -> _Comparison:
        for e in self.entries:
            self._stack.enter_context(e.dump.kept_open())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, cases: Sequence[str] = (), keep: Callable[[Case], bool] = lambda case: True) -> dict[Key, dict[str, CaseRecord]]:
        return _join(self.entries, cases, keep)

    def run(self, batches: Iterable[Sequence[Key]], joined: Mapping[Key, Mapping[str, CaseRecord]]) -> Iterator[Found]:
        """The results of each batch."""
        for batch in batches:
            for key in batch:  # one at a time: progress is shown as they come
                yield [(key, list(_compare_case(self.entries, joined[key], self.profile, self._how, self._explainer)))]


class _Judge:
    """A comparison in a worker process; its tasks are batches of keys."""

    def __init__(self, options: _Options, _: Seat) -> None:
        self._comparison = _Comparison(options).__enter__()
        self._joined = self._comparison.join()

    def hello(self) -> None:
        """Nothing needs to be known of it."""

    def run(self, task: Sequence[Key], done: Done) -> None:
        try:
            done([pair for found in self._comparison.run([task], self._joined) for pair in found])
        except AccuracyEvalError as error:
            done(error)

    def close(self) -> None:
        self._comparison.__exit__()


def _shared(
    options: _Options, batches: Sequence[Sequence[Key]], joined: Mapping[Key, Mapping[str, CaseRecord]], workers: int
) -> Iterator[Found]:
    """The results of each batch, in order, by several processes. A case that ends its worker is an ERROR of that case alone."""
    waiting: dict[int, Found] = {}
    lost: list[int] = []
    following = 0
    with LocalPool(partial(_Judge, options), cpu_seats(workers)) as pool:
        for event in pool.run(batches):
            if isinstance(event, Lost):
                lost.append(event.task)
            else:
                waiting[event.task] = _found(event)
            while following in waiting:
                yield waiting.pop(following)
                following += 1
        for number in lost:  # one of its cases is at fault: each by itself
            waiting[number] = _one_by_one(pool, batches[number], joined)
    yield from (waiting[number] for number in sorted(waiting))


def _found(event: Finished) -> Found:
    if isinstance(event.value, Exception):
        raise event.value
    found: Found = event.value
    return found


def _one_by_one(pool: LocalPool, keys: Sequence[Key], joined: Mapping[Key, Mapping[str, CaseRecord]]) -> Found:
    """The results of cases of a batch whose worker ended."""
    by_key: dict[Key, Found] = {}
    for event in pool.run([[key] for key in keys]):
        key = keys[event.task]
        by_key[key] = [(key, _lost_case(joined[key], event.reason))] if isinstance(event, Lost) else _found(event)
    return [pair for key in keys for pair in by_key[key]]


def _lost_case(records: Mapping[str, CaseRecord], reason: str) -> list[TensorResult | NotCompared]:
    r = next(iter(records.values()))
    family, why = get_op(r.case.op).family, f"could not be judged: {reason}; compare it alone with --case {r.id} --workers 1"
    return [NotCompared(r.id, family, r.candidate, label, Verdict.ERROR, why, r.case) for label in records]


def _batches(keys: Sequence[Key], workers: int) -> list[Sequence[Key]]:
    """Keys as they are dealt: several at a time where cases are many, and enough deals that nobody waits long at the end."""
    size = max(1, min(BATCH, len(keys) // (8 * workers)))
    return [keys[i : i + size] for i in range(0, len(keys), size)]


def _default_workers(cases: int) -> int:
    """One process a core where the cases are many: what a small case costs is Python's, which threads do not share."""
    return 1 if cases < MANY_CASES else min(thread_count(), cases // BATCH)


def _labels(dumps: Sequence[Dump], given: Sequence[str]) -> list[str]:
    if given and len(given) != len(dumps):
        raise UsageError(f"{len(given)} labels for {len(dumps)} dumps; give one each")
    devices = [str(d.platform.get("label") or _slug(d.path.stem)) for d in dumps]
    # two dumps of one device are told apart by their files' names
    names = list(given) or [_slug(d.path.stem) if devices.count(n) > 1 else n for n, d in zip(devices, dumps, strict=True)]
    if given and len(set(given)) != len(given):
        raise UsageError(f"labels {', '.join(given)}: two are equal; a report could not tell the dumps apart")
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return unique


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "dump"


Key = tuple[str, str]


def _join(entries: Sequence[Entry], cases: Sequence[str], keep: Callable[[Case], bool]) -> dict[Key, dict[str, CaseRecord]]:
    """Records by (case id, candidate) and dump label, in the order of the first dump that has them."""
    joined: dict[Key, dict[str, CaseRecord]] = {}
    for e in entries:
        for r in e.dump.records:
            if (not cases or r.id in cases) and keep(r.case):
                joined.setdefault((r.id, r.candidate), {})[e.label] = r
    unknown = set(cases) - {ident for ident, _ in joined}
    if unknown:
        raise UsageError(
            f"case {', '.join(sorted(unknown))}: in none of the dumps; accuracy-eval inspect {entries[0].dump.path} lists what there is"
        )
    return joined


def _compare_case(
    entries: Sequence[Entry],
    records: Mapping[str, CaseRecord],
    profile: Profile,
    how: _How,
    explainer: Explainer | None,
) -> Iterator[TensorResult | NotCompared]:
    first = next(iter(records.values()))
    spec = get_op(first.case.op)

    def skip(label: str, verdict: Verdict, reason: str) -> NotCompared:
        return NotCompared(first.id, spec.family, first.candidate, label, verdict, reason, first.case)

    usable: list[Entry] = []
    for e in entries:
        record = records.get(e.label)
        if record is None and first.candidate != "default":
            continue  # a library this device does not have: the others are judged by the reference alone
        if record is None:
            others = ", ".join(label for label in records)
            yield skip(e.label, Verdict.MISSING, f"not in {e.dump.path.name}; it is in {others}")
        elif record.status == "unsupported":
            yield skip(e.label, Verdict.UNSUPPORTED, record.reason)
        elif record.status != "done":
            yield skip(e.label, Verdict.ERROR, record.reason)
        else:
            usable.append(e)
    operands: dict[Encoding, _Operands] = {}
    agreed: list[Entry] = []
    for e in usable:
        try:
            _check_inputs(e, records[e.label], operands, entries, records)
        except InputMismatch as error:
            yield skip(e.label, Verdict.INPUTS_DIFFER, str(error))
        else:
            agreed.append(e)
    for e in [e for e in agreed if not e.dump.readable(records[e.label])]:
        agreed.remove(e)
        yield skip(e.label, Verdict.INCONCLUSIVE, _digests_alone(e, records))
    if not agreed:
        return
    try:
        yield from _judge_case(agreed, records, operands, profile, how, explainer)
    except FileError as error:
        error.add_note(f"while comparing {first.id}")
        raise
    except AccuracyEvalError as error:  # a record that makes no sense costs its case, not the report
        for e in agreed:
            yield skip(e.label, Verdict.ERROR, f"could not be judged: {error}")


def _digests_alone(e: Entry, records: Mapping[str, CaseRecord]) -> str:
    """What digests say where no dump holds these bytes."""

    def of(record: CaseRecord) -> list[tuple[str, str]]:
        return [(t.name, t.sha256) for t in record.tensors if t.role == "output"]

    same = [label for label, r in records.items() if label != e.label and r.status == "done" and of(r) == of(records[e.label])]
    others = [label for label, r in records.items() if label not in (e.label, *same) and r.status == "done"]
    said = [f"bit-identical to {', '.join(same)}"] if same else []
    said += [f"other bytes than {', '.join(others)}"] if others else []
    return f"{e.dump.path.name} holds digests alone: {'; '.join(said) or 'nothing to compare with'}; not judged without the codes"


def _unvisited(e: Entry, keep: Callable[[Case], bool]) -> Iterator[NotCompared]:
    """Candidates that were expected of the dump and did not run."""
    records = [r for r in e.dump.records if keep(r.case)]
    known = {r.id: r.case for r in records}
    for u in unvisited(records, e.dump.info, e.vendor):
        case = known.get(u.case_id)
        yield NotCompared(u.case_id or f"{u.op} (all cases)", get_op(u.op).family, u.candidate, e.label, Verdict.MISSING, u.reason, case)


def _check_inputs(
    e: Entry, record: CaseRecord, operands: dict[Encoding, _Operands], entries: Sequence[Entry], records: Mapping[str, CaseRecord]
) -> None:
    """Raise InputMismatch unless the dump's digests are those of the operands this program generates for the case, and under a recipe
    of the codes and scales it quantises them to."""
    spec = get_op(record.case.op)
    if case_id(record.case) != record.id:
        raise InputMismatch(
            f"{record.id} ({e.label}): the record describes {case_id(record.case)}; the file's index is inconsistent. Dump it again."
        )
    if e.encoding not in operands:
        codes = operand_codes(spec, record.case, e.encoding)
        operands[e.encoding] = _Operands(codes, stored_inputs(spec, record.case, e.encoding, codes))
    made = operands[e.encoding]
    arrays = {("source", name): codes for name, codes in made.codes.items()}
    arrays |= {("input", name): coded.codes for name, coded in quantised_inputs(spec, record.case, made.inputs).items()}
    stored = {(t.role, t.name): t for t in record.tensors}
    expected = dict(zip(arrays, sha256_many(arrays.values()), strict=True))
    for (role, name), digest in expected.items():
        found = stored[role, name].sha256 if (role, name) in stored else "absent"
        if found != digest:
            other = next((f"{o.label} has {t.sha256[:16]}…" for o in entries if o.label != e.label and o.label in records
                          for t in records[o.label].tensors if (t.role, t.name) == (role, name)), "")  # fmt: skip
            raise InputMismatch(
                f"{record.id} input {name!r}: sha256 {found[:16]}… ({e.dump.path.name}) != {digest[:16]}… (this version's generator)"
                f"{'; ' + other if other else ''}; the outputs come from different inputs. Dump both with the same accuracy-eval version."
            )


def _judge_case(
    entries: Sequence[Entry],
    records: Mapping[str, CaseRecord],
    operands: Mapping[Encoding, _Operands],
    profile: Profile,
    how: _How,
    explainer: Explainer | None,
) -> Iterator[TensorResult | NotCompared]:
    record = records[entries[0].label]
    case, spec = record.case, get_op(record.case.op)
    if spec.relation(case) is not None:
        yield from _judge_relation(entries, records, profile, how)
        return
    meanings: dict[Encoding, Encoding] = {}
    for encoding in dict.fromkeys(e.encoding for e in entries):
        meanings[encoding] = next((m for m in meanings.values() if _same_numbers(spec, case, m, encoding)), encoding)
    inputs = {m: operands[m].inputs for m in set(meanings.values())}

    @cache
    def truth(meaning: Encoding, contract: str) -> dict[str, Reference]:
        assert how.reference != "none"
        whole = spec.reference(case, inputs[meaning], meaning, contract)
        references = {name: scoped(r, how.reference) for name, r in whole.items()}
        return how.cache.kept(references, case, meaning, inputs[meaning]) if how.cache else references

    meaning_of = {e.label: meanings[e.encoding] for e in entries}
    digests = {e.label: [t.sha256 for t in records[e.label].tensors if t.role == "output"] for e in entries}
    joints = {e.label: _joint(e, records[e.label], spec, inputs[meaning_of[e.label]], how.verify) for e in entries}
    derived = () if how.reference == "none" else spec.derived(case, entries[0].encoding)
    for output in (*spec.outputs(case, entries[0].encoding), *derived):
        name = output.name
        truths = {} if how.reference == "none" else {e.label: truth(meaning_of[e.label], records[e.label].contract)[name] for e in entries}

        def under(label: str, contract: str, name: str = name) -> Reference:
            return truth(meaning_of[label], contract)[name]

        if output in derived:
            sides = [_derived_side(e, output, joints[e.label]) for e in entries if name in joints[e.label].tensors]
            if not sides or not profile.applicable(facts_of(case, spec.family, output, "")):
                continue  # the outputs themselves say what is wrong, or the profile has nothing to say about this tensor
        else:
            sides = [_side(e, records[e.label], name, how.verify) for e in entries]
        sides = [replace(s, derived=joints[s.label].metrics.get(name, {})) for s in sides]
        judge = judge_sampled if any(r.sample for r in truths.values()) else judge_tensor
        inputs_of = {e.label: inputs[meaning_of[e.label]] for e in entries}
        result = judge(
            case, record.id, spec.family, record.candidate, output, sides, truths, profile, cross_format=how.cross_format,
            under=under if truths else None, inputs=inputs_of,
        )  # fmt: skip
        if explainer and output not in derived:
            result = explainer(result, entries, sides, inputs_of)
        if output in derived:  # says nothing new about dumps whose outputs are the same bytes
            result = replace(result, pairs=tuple(p for p in result.pairs if digests[p.a] != digests[p.b]))
        rules = {label: j.rules[name] for label, j in joints.items() if name in j.rules}
        yield with_scales(result, sides, truths, rules) if rules else result


def _judge_relation(
    entries: Sequence[Entry], records: Mapping[str, CaseRecord], profile: Profile, how: _How
) -> Iterator[TensorResult | NotCompared]:
    """A metamorphic case: every dump against its own result of the unchanged operands. No reference is asked."""
    first = records[entries[0].label]
    case, spec = first.case, get_op(first.case.op)
    relation = spec.relation(case)
    assert relation is not None
    others = {case_id(other): other for other in relation.others(case)}
    ids = dict(zip(("base", "partner"), others, strict=False))
    (output,) = spec.outputs(case, entries[0].encoding)
    runs = []
    for e in entries:
        held = {ident: r for ident, other in others.items() if (r := _fitting(e, ident, other, first.candidate)) is not None}
        absent = [ident for ident in ids.values() if ident not in held]
        if absent:
            why = f"relation {relation.name} compares with case {absent[0]}, of which {e.dump.path.name} holds no result"
            yield NotCompared(first.id, spec.family, first.candidate, e.label, Verdict.INCONCLUSIVE, why, case)
            continue
        found = {name: _stored_output(e, held[ident], output.name, how.verify) for name, ident in ids.items()}
        side = _side(e, records[e.label], output.name, how.verify)
        runs.append(Run(side, found["base"], found.get("partner"), str(e.dump.platform.get("arch") or "")))
    if not runs:
        return

    @cache
    def budget(of: Case) -> Values:
        encoding = entries[0].encoding
        inputs = stored_inputs(spec, of, encoding, operand_codes(spec, of, encoding))
        panels = spec.reference(of, inputs, encoding, first.contract)[output.name].panels()
        return np.concatenate([p.budget for p in panels if p.budget is not None])

    yield judge_relation(case, first.id, spec.family, first.candidate, output, relation, runs, budget, profile)


def _fitting(e: Entry, ident: str, case: Case, candidate: str) -> CaseRecord | None:
    """The dump's record of a case that ran and gave what the case asks for."""
    try:
        record = e.dump.record(ident, candidate)
    except UsageError:
        return None
    wanted = {(o.name, o.format, o.shape) for o in get_op(case.op).outputs(case, e.encoding)}
    return record if record.status == "done" and wanted <= {(t.name, t.format, t.shape) for t in record.tensors} else None


def _stored_output(e: Entry, record: CaseRecord, name: str, verify: bool) -> Coded:
    stored = next(t for t in record.tensors if t.role == "output" and t.name == name)
    return Coded(e.dump.view(record, stored, verify=verify).reshape(stored.shape), stored.format)


def _joint(e: Entry, record: CaseRecord, spec: OpSpec, inputs: Inputs, verify: bool) -> Joint:
    """What the dump's outputs of the case say together. Operands of a product are this program's codes and scales, by their digests."""
    stored = {t.name: t for t in record.tensors if t.role == "output"}
    if spec.joint is None:
        proven = {"scale_mismatch_count": 0, "conversion_mismatch_count": 0} if quantised_inputs(spec, record.case, inputs) else {}
        return Joint(dict.fromkeys(stored, proven))
    held = {n: Coded(e.dump.view(record, t, verify=verify).reshape(t.shape), t.format) for n, t in stored.items()}
    return spec.joint(record.case, inputs, e.encoding, held)


def _derived_side(e: Entry, output: Output, joint: Joint) -> SideTensor:
    return SideTensor(e.label, output.format, output.shape, "", (joint.tensors[output.name],))


def _explainer(unit: str | None) -> Explainer:
    """What adds explanations to a judged tensor; checks `unit` before anything runs."""
    from accuracy_eval.explained import chosen_unit, explain_output, with_explanations

    chosen_unit(unit, {})

    def explained(
        result: TensorResult, entries: Sequence[Entry], sides: Sequence[SideTensor], inputs: Mapping[str, Mapping[str, Coded]]
    ) -> TensorResult:
        why = {}
        for e, side in zip(entries, sides, strict=True):
            rows, _ = rows_and_columns(side.shape)
            actual = Coded(np.asarray(side.variants[0](0, rows)).reshape(side.shape), side.format)
            tried = chosen_unit(unit, e.dump.platform)
            why[e.label] = tuple(explain_output(result.case, inputs[e.label], result.tensor, actual, tried).values())
        return with_explanations(result, why)

    return explained


def _explanations(entries: Sequence[Entry], tensors: Sequence[TensorResult]) -> list[str]:
    """What --explain found, in counts."""
    from accuracy_eval.explained import explanations_text

    return explanations_text(tensors, exact=[e.label for e in entries if e.dump.platform.get("label") == "numpy"])


def _same_numbers(spec: OpSpec, case: Case, a: Encoding, b: Encoding) -> bool:
    """Whether the case means the same under both fp8 encodings: it then has one reference."""
    if case.recipe and any(concrete(f, a) != concrete(f, b) for f in case.format.split("+")):
        return False
    return spec.operands(case, a) == spec.operands(case, b) and spec.outputs(case, a) == spec.outputs(case, b)


def _side(e: Entry, record: CaseRecord, name: str, verify: bool) -> SideTensor:
    """The dump's tensor with all its distinct results; digests are verified here, before anything is measured."""
    results = [t for t in record.tensors if t.role == "output" and (t.name == name or t.name.startswith(f"{name}#"))]
    if not results:
        raise UsageError(f"{e.dump.path}: {record.id} has no output {name!r}; it holds {', '.join(t.name for t in record.tensors)}")
    odd = next((t for t in results[1:] if (t.shape, t.format) != (results[0].shape, results[0].format)), None)
    if odd is not None:
        one, other = (f"{t.name} {list(t.shape)} of {t.format}" for t in (results[0], odd))
        raise UsageError(
            f"{e.dump.path}: {record.id} holds {one} and {other}; distinct results of repeated runs have one shape and format. "
            "Dump the case again."
        )
    views = [e.dump.view(record, t, verify=verify) for t in results]
    rows = tuple(_rows_of(v) for v in views)
    unwritten = record.notes.get("never_written", {}).get(name, 0)
    changed = tuple(record.notes.get("operands_changed", ()))
    first = results[0]
    digest = first.sha256 if verify else ""  # only a verified digest may stand for the bytes
    return SideTensor(e.label, first.format, first.shape, digest, rows, record.contract, int(unwritten), changed, record.repeats)


def _rows_of(view: Codes) -> Rows:
    return lambda first, end: view[first:end]


def _results(
    entries: Sequence[Entry], profile: Profile, tensors: Sequence[TensorResult], skipped: Sequence[NotCompared], mode: ReferenceMode,
    joined: Mapping[Key, Mapping[str, CaseRecord]],
) -> Results:  # fmt: skip
    verdicts = [t.verdict for t in tensors] + [n.verdict for n in skipped]
    judged = [t for t in tensors if t.verdict is not Verdict.INCONCLUSIVE]
    exit_code = max((v.exit_code for v in verdicts), default=2)
    notes = []
    if not judged:
        exit_code = 2
        why = ": the dumps have no case in common that ran on all of them" if len(entries) > 1 else ""
        notes.append(f"nothing was judged{why if joined else ': no case of the dumps is among those asked for'}")
    suites = {(e.dump.info.get("suite", ""), e.dump.info.get("suite_digest", "")) for e in entries}
    if len(suites) > 1:
        notes.append(
            "the dumps are of different suites (" + ", ".join(sorted(str(name) for name, _ in suites)) + "); equal case ids were joined"
        )
    sampled = sum(s.scope == "sampled" for t in tensors for s in t.sides)
    if sampled:
        total = sum(len(t.sides) for t in tensors)
        notes.append(
            f"{sampled} of {total} outputs were judged by a sampled reference (exact rows and columns, random projections of all others); "
            "--reference full computes all of it"
        )
    for e in entries:
        asked = [records[e.label] for records in joined.values() if e.label in records]
        ops = {r.case.op for r in asked}
        registered = {op: names for op, names in (e.dump.info.get("candidates") or {}).items() if op in ops}
        found = visits(asked, registered)
        notes += [f"{e.label}: {line}" for line in (*visits_text(found), *states_text(asked))]
    if mode == "none":
        notes.append("no reference: the dumps were judged against each other alone, and no side passes by itself")
    worst = max(verdicts, key=lambda v: v.severity) if judged else Verdict.INCONCLUSIVE
    info = tuple(_dump_info(e) for e in entries)
    return Results(
        RESULTS_SCHEMA,
        PRODUCER,
        profile.name,
        profile.info(),
        info,
        tuple(tensors),
        tuple(skipped),
        worst,
        exit_code,
        tuple(notes),
        profile.file,
    )


def _dump_info(e: Entry) -> DumpInfo:
    suite, digest = (str(e.dump.info.get(k, "")) for k in ("suite", "suite_digest"))
    return DumpInfo(
        e.label, str(e.dump.path), e.dump.content_digest, suite, digest, dict(e.dump.platform), dict(e.dump.info.get("numerics", {}))
    )
