"""A fleet screened by digests: what equal parts computed from equal inputs must be equal bytes, and who differs from most is named.

Dumps are opened one after the other, and of each result only a hash and a bit for its dump are kept: memory is that of one dump's index
and of the votes, about 1 KB a result however many dumps there are. No codes are read.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accuracy_eval.errors import UsageError, counted
from accuracy_eval.messages import wrong_product
from accuracy_eval.records import Case, CaseRecord
from accuracy_eval.store import Dump

# what must be equal for two results to be equal bytes, beside operands and kernels
PART = ("vendor", "arch", "device_name", "compute_units", "compute_partition", "backend", "fp8_encoding", "torch_version",
        "torch_cpu_capability")  # fmt: skip
HOST_PART = ("torch_threads", "torch_blas", "numpy_blas")  # of a CPU
SETTINGS = ("library.", "flag.")
# of a GPU: the driver, and what only transfers and the host's own products use
HOST_LIBRARIES = ("library.openblas.", "library.mkl.", "library.mkldnn.", "library.nccl.", "library.rccl.", "library.cuda_driver.")
# of results that ranks computed together: what carries them decides how they are added
TRANSPORT = ("nccl_version", "rccl_version", "library.nccl.", "library.rccl.", "env.NCCL_", "env.RCCL_", "env.GLOO_")
# what differs between any two devices and says nothing
OWN = ("uuid", "hostname", "hostname_hash", "device", "chip_id", "started", "serial", "pci_bus", "env.CUDA_VISIBLE_DEVICES",
       "env.HIP_VISIBLE_DEVICES", "env.ROCR_VISIBLE_DEVICES", "env.NVIDIA_VISIBLE_DEVICES")  # fmt: skip

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Where:
    """A tensor that some dumps computed under equal conditions."""

    case_id: str
    candidate: str
    tensor: str


@dataclass(frozen=True)
class OddOne:
    """A dump whose result differs from what more than half of the dumps of its group have.

    found, expected  digests; "2 results …" where repeated runs differed
    agree, of        dumps that have `expected`, dumps of the group that have a result
    like             path of the first that has `expected`; `path` is that of the odd one
    """

    dump: str
    where: Where
    found: str
    expected: str
    agree: int
    of: int
    path: str
    like: str


@dataclass(frozen=True)
class Tie:
    """A tensor on which a group differs and no result has more than half: result -> the dumps that have it."""

    where: Where
    results: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Alarm:
    """A run of an exact product that the certificate of its own device refused (dump --certify): wrong whatever others have."""

    dump: str
    where: Where
    text: str


@dataclass(frozen=True)
class Screening:
    """What digests say about dumps.

    groups     dumps of equal part, libraries and flags, by what they are
    agreed     tensors that several dumps of a group have, all the same
    alone      tensors that only one dump has under its conditions
    absent     dump -> tensors that others of its group have and it has not (not run, unsupported, or raised)
    differs    dump that is odd -> what its platform record says that those who agree against it do not
    certified  runs of exact products that were checked where they were made (dump --certify)
    unchecked  dumps of which no output was compared with another's, and no run was certified
    """

    dumps: tuple[str, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    agreed: int
    alone: int
    absent: Mapping[str, int]
    odd: tuple[OddOne, ...]
    ties: tuple[Tie, ...]
    differs: Mapping[str, tuple[str, ...]]
    alarms: tuple[Alarm, ...] = ()
    certified: int = 0
    unchecked: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: all agree; 1: an odd one out, an alarm, or a result absent; 2: a tie, or a dump of which nothing was checked."""
        if self.ties or self.unchecked:
            return 2
        return 1 if self.odd or self.alarms or self.absent else 0


@dataclass(frozen=True)
class _Key:
    where: Where
    group: int
    conditions: bytes  # operands' digests, kernels' names, and what carried a collective


def screen(
    paths: Sequence[str | Path], *, labels: Sequence[str] = (), keep: Callable[[Case], bool] = lambda case: True,
    progress: Progress | None = None,
) -> Screening:  # fmt: skip
    """Compare dumps (files or folders of parts; of digests alone where that is what there is) by what their indexes say.

    labels  names of the dumps; by default their files'
    keep    only cases for which this is true
    FileError for a file that cannot be used.
    """
    names = _names(paths, labels)
    groups: dict[tuple[str, ...], int] = {}
    members: dict[int, list[int]] = defaultdict(list)
    votes: dict[_Key, dict[str, int]] = defaultdict(dict)
    platforms: list[dict[str, str]] = []
    alarms: list[Alarm] = []
    certified: Counter[str] = Counter()
    for number, path in enumerate(paths):
        with Dump.open(path) as dump:
            platforms.append({k: str(v) for k, v in dump.platform.items()})
            identities: dict[int, tuple[str, ...]] = {}  # by platform: the objects live as long as the dump
            for record in dump.records:
                if record.status != "done" or not keep(record.case):
                    continue
                platform = dump.platform_of(record)
                identity = identities.get(id(platform)) or identities.setdefault(id(platform), _identity(platform))
                group = groups.setdefault(identity, len(groups))
                if number not in members[group]:
                    members[group].append(number)
                certificate = record.notes.get("certificate", {})
                certified[names[number]] += certificate.get("runs", 0)
                for run in certificate.get("wrong", ()):
                    alarms.append(Alarm(names[number], Where(record.id, record.candidate, "d"), wrong_product(run)))
                for where, conditions, result in _results(record, platform):
                    ballot = votes[_Key(where, group, conditions)]
                    ballot[result] = ballot.get(result, 0) | 1 << number
        if progress:
            progress(number + 1, len(paths), names[number])
    found = _counted(names, list(map(str, paths)), groups, members, votes, platforms)
    unchecked = tuple(name for name in found.unchecked if not certified[name])
    return replace(found, alarms=tuple(alarms), certified=certified.total(), unchecked=unchecked)


def _names(paths: Sequence[str | Path], labels: Sequence[str]) -> list[str]:
    names = list(labels) or [Path(p).name.removesuffix(".parts").removesuffix(".h5") for p in paths]
    if len(names) != len(paths):
        raise UsageError(f"{counted(len(labels), 'label')} for {counted(len(paths), 'dump')}; give one each, as --label A --label B")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"two dumps are called {twice[0]!r}; tell them apart with --label, one each")
    files: dict[Path, str] = {}
    for name, path in zip(names, paths, strict=True):
        other = files.setdefault(Path(path).resolve(), name)
        if other != name:
            raise UsageError(
                f"{other} and {name} are the same file {path}, which agrees with itself whatever it holds; give each dump once"
            )
    return names


def _identity(platform: Mapping[str, Any]) -> tuple[str, ...]:
    """What a device is and runs, as the lines that must be equal."""
    skipped = HOST_LIBRARIES if platform.get("vendor") in ("nvidia", "amd") else ()
    part = PART if skipped else (*PART, *HOST_PART)
    settings = (k for k in sorted(platform) if k.startswith(SETTINGS) and not k.startswith(skipped) and not k.endswith(".file"))
    return tuple(f"{k}={platform.get(k)}" for k in (*part, *settings))


def _results(record: CaseRecord, platform: Mapping[str, Any]) -> Iterator[tuple[Where, bytes, str]]:
    """(tensor, conditions, result) of each output."""
    operands = sorted((t.role, t.name, t.format, t.sha256) for t in record.tensors if t.role != "output")
    kernels = [k.get("name") for k in record.notes.get("kernels", ())]
    transport = record.notes.get("transport")
    carried = [transport, *(f"{k}={platform[k]}" for k in sorted(platform) if k.startswith(TRANSPORT))] if transport else []
    conditions = hashlib.blake2b(repr((operands, kernels, carried)).encode(), digest_size=16).digest()
    found: dict[str, list[str]] = defaultdict(list)
    for t in record.tensors:
        if t.role == "output":
            found[t.name.partition("#")[0]].append(t.sha256)
    for name, digests in found.items():
        yield Where(record.id, record.candidate, name), conditions, _one(sorted(digests))


def _one(digests: Sequence[str]) -> str:
    return digests[0] if len(digests) == 1 else f"{len(digests)} results {hashlib.sha256(''.join(digests).encode()).hexdigest()}"


def _counted(
    names: Sequence[str], paths: Sequence[str], groups: Mapping[tuple[str, ...], int], members: Mapping[int, Sequence[int]],
    votes: Mapping[_Key, Mapping[str, int]], platforms: Sequence[Mapping[str, str]],
) -> Screening:  # fmt: skip
    agreed = alone = compared = 0
    odd: list[OddOne] = []
    ties: list[Tie] = []
    differs: dict[str, tuple[str, ...]] = {}
    present: dict[tuple[Where, int], int] = defaultdict(int)
    for key, ballot in votes.items():
        for voters in ballot.values():
            present[key.where, key.group] |= voters
        of = sum(v.bit_count() for v in ballot.values())
        expected, most = max(ballot.items(), key=lambda item: item[1].bit_count())
        if of == 1:
            alone += 1
            continue
        compared |= functools.reduce(operator.or_, ballot.values())
        if len(ballot) == 1:
            agreed += 1
        elif 2 * most.bit_count() <= of:
            ties.append(Tie(key.where, {result: tuple(names[i] for i in _bits(voters)) for result, voters in sorted(ballot.items())}))
        else:
            for result, voters in ballot.items():
                for i in _bits(voters) if result != expected else ():
                    like = paths[next(iter(_bits(most)))]
                    odd.append(OddOne(names[i], key.where, result, expected, most.bit_count(), of, paths[i], like))
                    if names[i] not in differs:
                        differs[names[i]] = _only_its_own(platforms[i], [platforms[j] for j in _bits(most)])
    absent = Counter(names[i] for (_, group), have in present.items() for i in members[group] if not have >> i & 1)
    described = tuple(
        (text, tuple(names[i] for i in members[group])) for text, group in zip(_told_apart(list(groups)), groups.values(), strict=True)
    )
    order = {name: i for i, name in enumerate(names)}
    odd.sort(key=lambda o: (order[o.dump], o.where.case_id, o.where.candidate, o.where.tensor))
    unchecked = tuple(name for i, name in enumerate(names) if not compared >> i & 1)
    return Screening(tuple(names), described, agreed, alone, dict(absent), tuple(odd), tuple(ties), differs, unchecked=unchecked)


def _bits(voters: int) -> list[int]:
    return [i for i in range(voters.bit_length()) if voters >> i & 1]


def _only_its_own(platform: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    names = sorted(k for k in platform if k not in OWN and all(o.get(k) != platform[k] for o in others))
    return tuple(f"{k} {platform[k]} ({', '.join(sorted({o.get(k, 'absent') for o in others}))})" for k in names)


def _told_apart(identities: Sequence[tuple[str, ...]]) -> list[str]:
    """Each group in a few words; to those that read alike the first lines in which they differ are added."""
    texts = [_described(identity) for identity in identities]
    found = []
    for text, identity in zip(texts, identities, strict=True):
        alike = [set(other) for t, other in zip(texts, identities, strict=True) if t == text]
        own = [line.replace("=", " ", 1) for line in identity if not all(line in other for other in alike)]
        more = [f"and {len(own) - MOST_OWN} more"] if len(own) > MOST_OWN else []
        found.append(", ".join([text, *own[:MOST_OWN], *more]))
    return found


def _described(identity: Sequence[str]) -> str:
    """A group in a few words: its part and framework."""
    facts = dict(line.partition("=")[::2] for line in identity)
    words = [
        facts["device_name"],
        facts["arch"],
        f"torch {facts['torch_version']}" if facts["torch_version"] != "None" else facts["backend"],
    ]
    return ", ".join(w for w in words if w != "None")


MOST_LINES = 20
MOST_OWN = 3  # said of a group that reads like another


def screening_text(found: Screening) -> str:
    """One line that says it, one a group of more than one dump, then who is odd and where."""
    compared = found.agreed + len({(o.where, o.like) for o in found.odd}) + len(found.ties)
    lines = [f"{counted(len(found.dumps), 'dump')}, {counted(compared, 'output')} compared by digest: {found.agreed} agree"]
    lines += [f"  {len(names)} × {what}: {', '.join(names)}" for what, names in found.groups]
    if found.alone:
        lines.append(f"  {counted(found.alone, 'output')} in one dump alone (under its part, libraries, flags, kernels and operands)")
    lines += [f"  absent from {name}: {counted(count, 'output')} that others like it have" for name, count in sorted(found.absent.items())]
    if found.certified:
        lines.append(f"  certified where they were made: {counted(found.certified, 'run')}, {len(found.alarms) or 'none'} wrong")
    lines += [f"wrong {a.dump} {_place(a.where)}: {a.text}" for a in found.alarms[:MOST_LINES]]
    if len(found.alarms) > MOST_LINES:
        lines.append(f"and {len(found.alarms) - MOST_LINES} more wrong runs")
    for name in dict.fromkeys(o.dump for o in found.odd):
        mine = [o for o in found.odd if o.dump == name]
        differ = "1 output differs" if len(mine) == 1 else f"{len(mine)} outputs differ"
        lines.append(f"odd_one_out {name}: {differ} from what most dumps like it have")
        lines += [f"  it alone has {text}" for text in found.differs.get(name, ())]
        lines += [f"  {_place(o.where)}: {_short(o.found)}; {o.agree} of {o.of} have {_short(o.expected)}" for o in mine[:MOST_LINES]]
        lines += [f"  and {len(mine) - MOST_LINES} more"] if len(mine) > MOST_LINES else []
        command = ["accuracy-eval", "compare", mine[0].path, mine[0].like, "--case", mine[0].where.case_id]
        lines.append(f"  next, with the codes at hand: {shlex.join(command)}")
    for tie in found.ties[:MOST_LINES]:
        lines.append(f"undetermined {_place(tie.where)}: " + "; ".join(f"{', '.join(n)} {_short(r)}" for r, n in tie.results.items()))
    if len(found.ties) > MOST_LINES:
        lines.append(f"and {len(found.ties) - MOST_LINES} more undetermined")
    unscreened: dict[str, list[str]] = defaultdict(list)
    for name in found.unchecked:
        unscreened[_why_unchecked(name, found.groups)].append(name)
    lines += [f"not screened, {why}: {', '.join(names)}" for why, names in unscreened.items()]
    if unscreened:
        lines.append("  a device without another of its kind is screened by exact products: accuracy-eval dump screen --certify -o FILE")
    return "\n".join(lines)


def _why_unchecked(name: str, groups: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    others = [len(names) - 1 for _, names in groups if name in names]
    if not others:
        return "without any result"
    return "no result in common with others of its kind" if any(others) else "no other of its kind"


def _place(where: Where) -> str:
    candidate = "" if where.candidate == "default" else f" @{where.candidate}"
    return f"{where.case_id}{candidate} {where.tensor}"


def _short(result: str) -> str:
    return result[:12] if " results " not in result else f"{result.partition(' results ')[0]} different results"
