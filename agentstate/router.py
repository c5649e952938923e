"""Which part of the server answers a connection: WSGI, the live streams, sockets."""

import re

from agentstate import live
from agentstate.bridge import Receive, Scope, Send, WSGIBridge

STREAM = re.compile(r"/api/v1/(?:sessions/[^/]+/)?events/stream/?\Z")
POLICY_VIOLATION = 1008


class Router:
    """The root of the ASGI server."""

    def __init__(self, http: WSGIBridge) -> None:
        self.http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._refuse_socket(receive, send)
        elif scope["method"] == "GET" and STREAM.match(scope["path"]):
            await live.sse_app(scope, receive, send, self.http)
        else:
            await self.http(scope, receive, send)

    async def _refuse_socket(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    def end_streams(self) -> None:
        """Let every open stream end by itself; its client resumes where it was."""
        for follower in live.watcher.followers:
            follower.end()
