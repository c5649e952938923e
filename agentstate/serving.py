"""One web process: uvicorn with the whole application, on a port or a shared socket.

`python -m agentstate.serving --port N`, or `--fd N` for a socket that the supervisor
holds and several processes accept from.
"""

import argparse
import asyncio
import os
import socket
import sys
from types import FrameType

import uvicorn
from django.conf import settings

SOCKET_FRAME_BYTES = 64 * 1024  # that a client may send; it sends few and small ones
GRACE_SECONDS = 5  # for requests in flight when the process is told to stop


class WebServer(uvicorn.Server):
    """uvicorn, ending the live streams first when it is told to stop.

    They would otherwise hold the process until the grace period is over.
    """

    loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Told to stop while it is still being imported, it has no streams yet.
        application = getattr(sys.modules.get("agentstate.asgi"), "application", None)
        if self.loop is not None and application is not None:
            self.loop.call_soon_threadsafe(application.end_streams)
        super().handle_exit(sig, frame)


def web_command(port: int) -> list[str]:
    """The command of a web process that takes a port of its own."""
    return [sys.executable, "-m", __name__, "--port", str(port)]


def shared_web_command(descriptor: int) -> list[str]:
    """The command of a web process that accepts from a socket it inherits."""
    return [sys.executable, "-m", __name__, "--fd", str(descriptor)]


def serve(listener: socket.socket) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
    config = uvicorn.Config(
        "agentstate.asgi:application",
        log_config=None,  # Django's settings configure logging
        access_log=False,  # requests are counted in /metrics
        server_header=False,
        lifespan="on",
        # Longer than clients keep idle connections, or they would meet them closed.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws_max_size=SOCKET_FRAME_BYTES,
        ws_ping_interval=settings.SOCKET_PING_SECONDS,
        ws_ping_timeout=settings.SOCKET_PING_SECONDS,
        # Compressing for each of many sockets would cost more than it saves.
        ws_per_message_deflate=False,
    )
    WebServer(config).run(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", type=int)
    where.add_argument("--fd", type=int)
    options = parser.parse_args()
    if options.fd is not None:
        listener = socket.socket(fileno=options.fd)
    else:
        listener = listen(options.port)
    serve(listener)


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A listening socket. Raises OSError when the port is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


if __name__ == "__main__":
    main()
