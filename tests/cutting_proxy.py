"""A TCP proxy in front of a real server that breaks connections where it is told to."""

import contextlib
import socket
import threading
from urllib.parse import urlsplit

CHUNK = 65536  # bytes


class CuttingProxy:
    """Forwards to `target`; see `lose_answers` and `cut_after`.

    `lose_answers` answers are read from the server, which has then done its work, and
    never passed on: the client's connection is closed instead. `cut_after` holds, for
    the connections to come, after how many bytes of answer each is closed; when it is
    used up they are left whole. `target` may be changed for the connections to come.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.target = (parts.hostname, parts.port)
        self.lose_answers = 0
        self.cut_after: list[int] = []
        self.connections = 0
        self.requests = 0  # counted in parts: one each, if it has no long body
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Wakes the accept; a close alone would leave it waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Break every connection that is open now."""
        with self._guard:
            sockets, self._open = self._open, set()
        for each in sockets:
            _end(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._guard:
                self.connections += 1
                budget = self.cut_after.pop(0) if self.cut_after else None
            self._join(client, budget)

    def _join(self, client: socket.socket, budget: int | None) -> None:
        try:
            server = socket.create_connection(self.target)
        except OSError:
            _end(client)
            return
        with self._guard:
            self._open |= {client, server}
        for pump, arguments in (
            (self._pass_requests, (client, server)),
            (self._pass_answers, (client, server, budget)),
        ):
            threading.Thread(target=pump, args=arguments, daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := client.recv(CHUNK):
                server.sendall(chunk)
                with self._guard:
                    self.requests += 1
        self._part(client, server)

    def _pass_answers(
        self, client: socket.socket, server: socket.socket, budget: int | None
    ) -> None:
        with contextlib.suppress(OSError):
            while (chunk := server.recv(CHUNK)) and not self._loses_answer():
                if budget is not None:
                    chunk, budget = chunk[:budget], budget - len(chunk)
                client.sendall(chunk)
                if budget is not None and budget <= 0:
                    break
        self._part(client, server)

    def _loses_answer(self) -> bool:
        with self._guard:
            if not self.lose_answers:
                return False
            self.lose_answers -= 1
            return True

    def _part(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with self._guard:
                self._open.discard(each)
            _end(each)


def _end(connection: socket.socket) -> None:
    # Shut down first: a thread waiting in recv keeps a closed socket's peer hanging.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
