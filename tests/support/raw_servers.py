"""Servers that send bytes as a test says: they drip, flood, and never end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[socket.socket, threading.Event], None]

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server, and the requests it got.

    Args:
        answer: called with each connection, when a request's headers are there.
    """
    requests: list[bytes] = []
    is_over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            data = b""
            try:
                while b"\r\n\r\n" not in data:
                    if not (part := connection.recv(65536)):
                        return  # the other side had enough before it said anything
                    data += part
                requests.append(data)
                answer(connection, is_over)
            except OSError:
                return  # the other side had enough

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/score", requests
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)


def sends(*parts: bytes) -> Answer:
    """Return an answer that sends what it is given, and waits for the end."""

    def answer(connection: socket.socket, is_over: threading.Event) -> None:
        for part in parts:
            connection.sendall(part)
        is_over.wait()

    return answer


def drips(start: bytes, drop: bytes) -> Answer:
    """Return an answer that goes on for ever, a few bytes at a time."""

    def answer(connection: socket.socket, is_over: threading.Event) -> None:
        connection.sendall(start)
        while not is_over.wait(0.02):
            connection.sendall(drop)

    return answer


def floods(connection: socket.socket, is_over: threading.Event) -> None:
    """Send an endless answer as fast as it is read."""
    connection.sendall(OK + b"\r\n")
    while not is_over.is_set():
        connection.sendall(b" " * 65536)
