"""Which part of the server answers a connection: WSGI, the live streams, sockets."""

import re

from channels.routing import URLRouter

from agentstate import claims, live, uploads
from agentstate.bridge import Receive, Scope, Send, WSGIBridge
from sessions_app.routing import websocket_urlpatterns
from sessions_app.tailer import tailer

CLAIM = re.compile(r"/api/v1/steps/claim/?\Z")
STREAM = re.compile(r"/api/v1/(?:sessions/[^/]+/)?events/stream/?\Z")
UPLOAD = re.compile(r"/api/v1/sessions/[^/]+/artifacts/?\Z")


class Router:
    """The root of the ASGI server."""

    def __init__(self, http: WSGIBridge) -> None:
        self.http = http
        self.sockets = URLRouter(websocket_urlpatterns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self.sockets(scope, receive, send)
        elif scope["method"] == "GET" and STREAM.match(scope["path"]):
            await live.sse_app(scope, receive, send, self.http)
        elif scope["method"] == "POST" and CLAIM.match(scope["path"]):
            await claims.claim_app(scope, receive, send, self.http)
        elif scope["method"] == "POST" and UPLOAD.match(scope["path"]):
            await uploads.upload_app(scope, receive, send, self.http)
        else:
            await self.http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    def end_streams(self) -> None:
        """Let every open stream end by itself; its client resumes where it was."""
        for follower in tailer.followers:
            follower.end()
