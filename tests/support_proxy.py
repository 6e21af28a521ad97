"""TCP proxies on loopback that do to a connection what networks do: cut it, stall it, delay it."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Self


class Proxy:
    """Passes bytes both ways between its own port and a server's; subclasses decide what becomes of them."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._target = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for t in self._threads:
            t.join(10)

    def cut(self) -> None:
        """Cut every connection there is."""
        for s in self._open:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the server is down: so is the proxy, for this caller
                near.close()
                continue
            for s in (near, far):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [near, far]
            for a, b, way in ((near, far, "up"), (far, near, "down")):
                self._threads.append(threading.Thread(target=self._pump, args=(a, b, way), daemon=True))
                self._threads[-1].start()

    def _pump(self, a: socket.socket, b: socket.socket, way: str) -> None:
        raise NotImplementedError


class CuttingProxy(Proxy):
    """Cuts every connection once `limit` bytes have passed one way ("up" to the server, or "down"); `stall`: goes silent instead.

    cuts     how many connections it has cut or stalled
    passed   bytes let through that way, over all connections
    """

    def __init__(self, port: int, limit: int, direction: str, *, stall: bool = False) -> None:
        self._limit, self._direction, self._stall = limit, direction, stall
        self.cuts = self.passed = 0
        super().__init__(port)

    def _pump(self, a: socket.socket, b: socket.socket, way: str) -> None:
        left = self._limit
        with suppress(OSError):
            while data := a.recv(1 << 16):
                if way == self._direction:
                    if len(data) > left:
                        self.cuts += 1
                        if not self._stall:
                            with suppress(OSError):
                                b.shutdown(socket.SHUT_WR)  # what has passed arrives; nothing more does
                            a.shutdown(socket.SHUT_RDWR)
                        return
                    left -= len(data)
                    self.passed += len(data)
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)


class DelayProxy(Proxy):
    """Delivers every byte `delay_s` after it came, in both directions; how much is on its way is not limited."""

    def __init__(self, port: int, delay_s: float, address: str = "127.0.0.1") -> None:
        self._delay_s = delay_s
        super().__init__(port, address)

    def _pump(self, a: socket.socket, b: socket.socket, way: str) -> None:
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        sender = threading.Thread(target=self._deliver, args=(waiting, b), daemon=True)
        sender.start()
        with suppress(OSError):
            while data := a.recv(1 << 18):
                waiting.put((time.monotonic() + self._delay_s, data))
        waiting.put((time.monotonic() + self._delay_s, b""))
        sender.join(10)

    def _deliver(self, waiting: queue.SimpleQueue[tuple[float, bytes]], to: socket.socket) -> None:
        with suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    to.shutdown(socket.SHUT_WR)
                    return
                to.sendall(data)
