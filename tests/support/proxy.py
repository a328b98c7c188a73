"""A TCP proxy in front of the tests' server, which breaks connections at a chosen moment.

It forwards PostgreSQL's messages whole and counts them, so "cut before the k-th message of the server" is the same
moment in every run. Example, a lost answer to the third message:

    with Proxy(server.socket_dir) as proxy:
        proxy.cut_at(3, Side.SERVER)
        run_lockctl("acquire", …, dsn=proxy.dsn(dsn))
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg.conninfo import make_conninfo

_STARTUP = 3 << 16
"""The protocol version 3.0; the packets without a type byte end with a startup of major version 3."""


class Side(enum.Enum):
    """Whose messages."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(slots=True)
class _Cut:
    """Where to cut the next connection: before a message, or after some bytes."""

    side: Side
    message: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class _Link:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket
    cut: _Cut | None
    seen: dict[Side, list[bytes]] = field(default_factory=lambda: {side: [] for side in Side})

    def break_(self) -> None:
        """End both halves at once; the client gets a reset, as from a host that is gone."""
        with contextlib.suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in (self.server, self.client):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Listens on 127.0.0.1 at a free port and forwards to a Unix socket's folder, until the `with` ends."""

    def __init__(self, socket_dir: Path, port: int = 5432) -> None:
        self._target = str(socket_dir / f".s.PGSQL.{port}")
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._cuts: list[_Cut] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._delay = 0.0
        self._listener: socket.socket | None = None
        self.port = 0
        self.accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        self.refuse()
        self.cut()
        self._flowing.set()

    def dsn(self, dsn: str) -> str:
        """The database of `dsn` through the proxy, with a start that is the same every time."""
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        return make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=self.port, **plain)

    def refuse(self) -> None:
        """Refuse new connections, as a server that is down; those that are there stay."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    def accept(self) -> None:
        """Take connections (again), at the same port."""
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
            self.port = listener.getsockname()[1]
            self._listener = listener
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def stall(self) -> None:
        """Hold back every byte both ways, as a network that drops packets; connections stay open."""
        self._flowing.clear()

    def resume(self) -> None:
        """Let flow what was held back."""
        self._flowing.set()

    def delay(self, seconds: float) -> None:
        """Forward each message that much later."""
        self._delay = seconds

    def cut(self) -> None:
        """Cut every connection that is there now."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.break_()

    def cut_at(self, message: int, side: Side) -> None:
        """Cut the next new connection instead of forwarding its `message`-th message (from 1) of `side`.

        Each call is for one connection more; later connections are left alone.
        """
        self._cuts.append(_Cut(side, message=message))

    def cut_after(self, count: int, side: Side) -> None:
        """Cut the next new connection once `count` bytes of `side` were forwarded, perhaps within a message."""
        self._cuts.append(_Cut(side, bytes=count))

    @property
    def connections(self) -> int:
        """How many connections there were so far."""
        return len(self._links)

    def messages(self, side: Side, connection: int = 0) -> list[bytes]:
        """The types of the messages of `side` that were forwarded; the packets at the start have none: b''."""
        return list(self._links[connection].seen[side])

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                link = _Link(client, server, self._cuts.pop(0) if self._cuts else None)
                self._links.append(link)
            for side, source, sink in ((Side.CLIENT, client, server), (Side.SERVER, server, client)):
                threading.Thread(target=self._pump, args=(link, side, source, sink), daemon=True).start()

    def _pump(self, link: _Link, side: Side, source: socket.socket, sink: socket.socket) -> None:
        cut = link.cut if link.cut and link.cut.side is side else None
        forwarded = 0
        try:
            for kind, message in _messages(source, side):
                self._flowing.wait()
                if self._delay:
                    self._closed.wait(self._delay)
                if cut and cut.message == len(link.seen[side]) + 1:
                    break
                if cut and cut.bytes is not None and forwarded + len(message) >= cut.bytes:
                    sink.sendall(message[: cut.bytes - forwarded])
                    break
                # Noted first: whoever sees the effect of a message finds it counted.
                link.seen[side].append(kind)
                sink.sendall(message)
                forwarded += len(message)
            else:
                # The end of one half: the other may still have something to say.
                sink.shutdown(socket.SHUT_WR)
                if side is Side.CLIENT:
                    return
        except OSError:
            pass
        link.break_()


def _messages(source: socket.socket, side: Side) -> Iterator[tuple[bytes, bytes]]:
    """The messages from `source`, each with its type: a type byte (not in a client's first), a length, the rest."""
    typed = side is Side.SERVER
    held = b""
    while chunk := source.recv(65536):
        held += chunk
        while True:
            head = 1 if typed else 0
            if len(held) < head + 4:
                break
            size = head + int.from_bytes(held[head : head + 4], "big")
            if len(held) < size:
                break
            message, held = held[:size], held[size:]
            yield message[:head], message
            if not typed and len(message) >= 8 and int.from_bytes(message[4:8], "big") & 0xFFFF0000 == _STARTUP:
                typed = True
