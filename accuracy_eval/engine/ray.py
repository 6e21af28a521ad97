"""One Ray actor a seat, on a cluster that runs or on one started here. Tasks and answers are small: arrays never enter the object store.

A death costs what it does in `engine.local`: the task that ran. A node that goes, or is out of reach, costs none: its tasks are dealt
again. An actor that ended is started again wherever the cluster has room, so nodes may leave and others come.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from accuracy_eval.engine.dealing import AHEAD, Clock, Pool, Waiting
from accuracy_eval.engine.work import Broken, Event, Finished, Seat, Start
from accuracy_eval.errors import EngineError, MissingDependency, UsageError, described

START_S = 300.0  # until an actor must have said hello: a cluster may have to start a node for it
CONNECT_S = 10.0  # until a cluster's address must have answered
DRAIN_S = 10.0  # for answers that were on their way when an actor ended
CLOSE_S = 60.0  # until actors that have nothing left to do must have closed their workers
# read by Ray's processes at their start: no usage statistics, and a worker that asks for no GPU keeps the variables it has
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def _ray() -> Any:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("engine ray needs Ray; install the extra: pip install 'accuracy-eval[ray]'") from error
    return ray


@dataclass(frozen=True)
class ClusterSeat(Seat):
    """A seat wherever a node offers this.

    resources         what the actor takes there, by Ray's names: "CPU", "GPU", or a resource a node was started with
    accelerator_type  the kind of GPU the node must have, by Ray's name
    """

    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1})
    accelerator_type: str | None = None

    def options(self) -> dict[str, Any]:
        """As Ray's actors take them."""
        own = {k: v for k, v in self.resources.items() if k not in ("CPU", "GPU")}
        kind = {"accelerator_type": self.accelerator_type} if self.accelerator_type else {}
        return {"num_cpus": self.resources.get("CPU", 0), "num_gpus": self.resources.get("GPU", 0), "resources": own, **kind}

    def __str__(self) -> str:
        asked = [f"{v:g} {k}" for k, v in self.resources.items()]
        return ", ".join([*asked, f"accelerator type {self.accelerator_type}"] if self.accelerator_type else asked)


class Cluster:
    """A connection to a Ray cluster, and the seats it offers. Use as a context manager; a connection that was there stays.

    address  "HOST:PORT", "auto" for the one this host belongs to, "local" to start one here; None: what RAY_ADDRESS says, else the one
             this host belongs to, else one started here
    on       use only nodes that have this: an accelerator type by Ray's name (H200, AMD-Instinct-MI300X-OAM), or a resource they were
             started with (ray start --resources '{"amd": 8}'), of which each worker takes one
    MissingDependency without Ray; EngineError when there is no such cluster.
    """

    def __init__(self, address: str | None = None, on: str | None = None) -> None:
        self._ray, self._address, self._on = _ray(), address, on
        self._connected = False

    def __enter__(self) -> Cluster:
        if not self._ray.is_initialized():
            try:
                _knock(self._address)
                self._ray.init(address=self._address, include_dashboard=False, log_to_driver=False, logging_level="warning")
            except (OSError, ValueError, RuntimeError) as error:
                where = self._address or "this host"
                raise EngineError(f"no Ray cluster at {where}: {error}; start one with ray start --head") from error
            self._connected = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._connected:
            self._ray.shutdown()
            self._connected = False

    def seats_for(self, device: str, count: int) -> tuple[str, list[ClusterSeat]]:
        """(device name for each worker, seats); "cuda" and, where the cluster has GPUs, "auto" are one GPU a worker."""
        if device.startswith("cuda:"):
            raise UsageError(f"device {device} is a GPU of one host; on a cluster use --device cuda, one GPU a worker")
        gpu = self._on_gpu(device)
        custom = {self._on: 1.0} if self._on and not self._is_accelerator(self._on) else {}
        resources = {"CPU": 1.0, **({"GPU": 1.0} if gpu else {}), **custom}
        kind = self._on if self._on and not custom else None
        environment = {"ACCURACY_EVAL_THREADS": str(self._cores_a_gpu() if gpu else 1)}
        name = "gpu" if gpu else "worker"
        return "cuda:0" if gpu else device, [ClusterSeat(f"{name} {i}", environment, resources, kind) for i in range(count)]

    def most_workers(self, device: str) -> int:
        """Workers that `all` means: one a GPU where the device is a GPU, else one a core, of the nodes that are there now."""
        resource = "GPU" if self._on_gpu(device) else "CPU"
        found = int(sum(node.get(resource, 0) for node in self._nodes()))
        if not found:
            raise UsageError(f"no node of the cluster has {resource}s" + (f" and {self._on}" if self._on else ""))
        return found

    def has_node(self) -> bool:
        """Whether a node that may be used is there now; an autoscaler may bring one."""
        return bool(self._nodes())

    def _on_gpu(self, device: str) -> bool:
        return device == "cuda" or (device == "auto" and any(node.get("GPU") for node in self._nodes()))

    def _nodes(self) -> list[dict[str, float]]:
        """What each node that may be used has."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        wanted = (self._on, f"accelerator_type:{self._on}")
        return [r for r in alive if self._on is None or any(name in r for name in wanted)]

    def _is_accelerator(self, name: str) -> bool:
        from ray.util.accelerators import accelerators

        return name in vars(accelerators).values() or any(f"accelerator_type:{name}" in node for node in self._nodes())

    def _cores_a_gpu(self) -> int:
        """Cores a worker's own kernels may use, on the node that has fewest."""
        return max(1, int(min((n.get("CPU", 1) / n["GPU"] for n in self._nodes() if n.get("GPU")), default=1)))


def _knock(address: str | None) -> None:
    """OSError when nobody listens at HOST:PORT: Ray itself would try for a minute."""
    host, colon, port = (address or "").rpartition(":")
    if colon and "://" not in host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()


class RayPool(Pool["_Place"]):
    """Workers as actors of the cluster this process is connected to. Use as a context manager; `hellos` are there on entry.

    limit_s  seconds a worker may give no sign of life while it has a task; None: no limit
    EngineError when a worker cannot start: nothing has run then.
    """

    def __init__(self, start: Start, seats: Sequence[ClusterSeat], *, limit_s: float | None = None, start_s: float = START_S) -> None:
        self._ray = _ray()
        self._limit, self._clock = limit_s, Clock(limit_s)
        super().__init__([_Place(self._ray, seat, pickle.dumps((start, seat)), self._clock) for seat in seats], start_s)

    def _listen(self, waiting: Waiting) -> Iterator[Event]:
        """What comes within the next moment."""
        places = {ref: p for p in self._places for ref in p.expected()}
        ready, _ = self._ray.wait(list(places), num_returns=1, timeout=self._clock.moment_s)
        for ref in ready:
            try:
                yield from places[ref].take(ref)
            except self._ray.exceptions.RayError as error:
                yield from self._replace(places[ref], _cause(error), waiting, guilty=not self._out_of_reach(places[ref], error))
        for place in self._places:
            if place.overdue(self._limit, self._start_s):
                place.kill()
                reason = f"no sign of life for {self._limit:g} s" if place.ready else f"did not start within {self._start_s:.0f} s"
                yield from self._replace(place, reason, waiting, guilty=True)

    def _out_of_reach(self, place: _Place, error: Exception) -> bool:
        """Whether it is the node that went, or the way to it, and not the actor alone."""
        return isinstance(error, self._ray.exceptions.ActorUnavailableError) or place.node_is_gone()

    def _replace(self, place: _Place, reason: str, waiting: Waiting, *, guilty: bool) -> Iterator[Event]:
        """guilty: the task that ran is the reason."""
        finished, left = place.drop()
        yield from finished
        ran = left[-1:] if guilty else []
        yield from waiting.after_end(place.where, reason, at_fault=ran, others=left[: len(left) - len(ran)])
        if place.ready:
            place.launch()
        # one that did not start would not the next time either: its seat stays empty

    def _end(self) -> None:
        closing = [ref for place in self._places for ref in place.dismiss()]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for place in self._places:
            place.kill()


@dataclass
class _Held:
    """A task an actor has: `begun` comes when the worker is free for another, `result` with the answer."""

    begun: Any
    result: Any
    returned: bool = False


class _Place:
    """A seat, the actor that has it now, and the tasks it holds: at most the last one sent is in the worker's hands.

    An actor that dies takes messages with it, so that the next task is sent only when the last is known to have left the worker's hands.
    """

    def __init__(self, ray: Any, seat: ClusterSeat, packed: bytes, clock: Clock) -> None:
        self.seat, self._ray, self._packed, self._clock = seat, ray, packed, clock
        self._actor: Any = None
        self._greeting: Any = None
        self._node = ""
        self._heard = 0.0
        self.where = seat.name
        self.hello: Any = None
        self.ready = False
        self.held: dict[int, _Held] = {}

    @property
    def alive(self) -> bool:
        return self._actor is not None

    @property
    def free(self) -> bool:
        return self.ready and len(self.held) < AHEAD and all(h.returned for h in self.held.values())

    def launch(self) -> None:
        # Ray sets OMP_NUM_THREADS to the cores an actor asked for; a framework's number of threads may decide bits
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"), **self.seat.environment}
        self._actor = self._ray.remote(_Actor).options(**self.seat.options()).remote(variables, self._packed)
        self._greeting = self._actor.hello.remote()
        self._heard, self.ready = self._clock.now(), False

    def greet(self, within_s: float) -> None:
        """Wait for hello. EngineError with the worker's own words when it cannot start."""
        while not self._ray.wait([self._greeting], timeout=self._clock.moment_s)[0]:
            if self._clock.now() - self._heard <= within_s:
                continue
            has = ", ".join(f"{v:g} {k}" for k, v in sorted(self._ray.cluster_resources().items()) if not k.startswith(("node:", "object")))
            raise EngineError(f"{self.seat.name}: no node gave it {self.seat} within {within_s:.0f} s; the cluster has {has}")
        try:
            list(self.take(self._greeting))
        except self._ray.exceptions.RayError as error:
            raise EngineError(f"{self.seat.name}: the worker could not start: {_cause(error)}") from None

    def send(self, number: int, task: Any) -> None:
        if not self.held:
            self._heard = self._clock.now()
        self.held[number] = _Held(self._actor.begin.remote(number, task), self._actor.result.remote(number))

    def expected(self) -> Iterator[Any]:
        """What the actor still owes."""
        if self.alive and not self.ready:
            yield self._greeting
        for held in self.held.values():
            if not held.returned:
                yield held.begun
            yield held.result

    def take(self, ref: Any) -> Iterator[Event]:
        """What an answer means. RayError when the actor has ended."""
        value = self._ray.get(ref)
        self._heard = self._clock.now()
        if ref == self._greeting:
            self.hello, self._node, host = value
            self.where, self.ready = f"{self.seat.name} on {host}", True
        for number, held in list(self.held.items()):
            if ref == held.begun:
                held.returned = True
            elif ref == held.result:
                del self.held[number]
                yield Finished(number, self.where, value)

    def overdue(self, limit_s: float | None, start_s: float) -> bool:
        if not self.alive:
            return False
        silent = self._clock.now() - self._heard
        return silent > start_s if not self.ready else bool(self.held) and limit_s is not None and silent > limit_s

    def drop(self) -> tuple[list[Event], list[int]]:
        """End the actor: what it had finished, and the tasks it still held, in the order they were sent."""
        finished: list[Event] = []
        for number, held in self.held.items():
            with contextlib.suppress(self._ray.exceptions.RayError):  # GetTimeoutError is one
                finished.append(Finished(number, self.where, self._ray.get(held.result, timeout=DRAIN_S)))
        left = [n for n in self.held if n not in {event.task for event in finished}]
        self.held.clear()
        self.kill()
        return finished, left

    def kill(self) -> None:
        if self.alive:
            self._ray.kill(self._actor)
            self._actor = None

    def node_is_gone(self) -> bool:
        return self.ready and not any(n["NodeID"] == self._node and n["Alive"] for n in self._ray.nodes())

    def dismiss(self) -> list[Any]:
        """Ask the worker to close, unless its answers are not wanted any more."""
        return [self._actor.close.remote()] if self.alive and self.ready and not self.held else []


class _Actor:
    """The other side of a place: begins one task at a time, and answers when the worker says that it is done.

    packed  (start, seat), read only when the seat's variables are set
    """

    def __init__(self, variables: Mapping[str, str | None], packed: bytes) -> None:
        self._variables, self._packed = variables, packed
        self._thread = ThreadPoolExecutor(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._worker: Any = None

    async def hello(self) -> tuple[Any, str, str]:
        """(what the worker is, its node's id, its host's name)"""
        said = await self._in_thread(self._open)
        return said, _ray().get_runtime_context().get_node_id(), socket.gethostname()

    def _open(self) -> Any:
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        start, seat = pickle.loads(self._packed)  # noqa: S301  from the process that made this actor
        self._worker = start(seat)
        return self._worker.hello()

    async def begin(self, number: int, task: Any) -> None:
        """Returns when the worker has nothing more to do for the task but to answer."""
        answer = self._answer(number)
        loop = asyncio.get_running_loop()

        def done(value: Any) -> None:
            loop.call_soon_threadsafe(_settle, answer, value)

        try:
            await self._in_thread(self._run, task, done)
        except Exception as error:
            for unanswered in self._answers.values():
                if not unanswered.done():
                    unanswered.set_exception(error)
            raise

    def _run(self, task: Any, done: Any) -> None:
        try:
            self._worker.run(task, done)
        except Broken:
            self._worker.close()
            raise

    async def result(self, number: int) -> Any:
        value = await self._answer(number)
        del self._answers[number]
        return value

    async def close(self) -> None:
        await self._in_thread(self._worker.close)

    def _answer(self, number: int) -> asyncio.Future[Any]:
        return self._answers.setdefault(number, asyncio.get_running_loop().create_future())

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


def _settle(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _cause(error: Any) -> str:
    """Why an actor ended, in one sentence."""
    inner = getattr(error, "cause", None)
    if isinstance(inner, Broken):
        return str(inner)
    if isinstance(inner, Exception):
        return described(inner)
    _, _, text = str(error).rpartition("The actor is dead because ")
    return text.partition(" Some common causes")[0].strip()
