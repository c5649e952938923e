"""Where sockets go: one address for all of them, and a refusal for any other."""

from typing import Any

from django.urls import path, re_path

from sessions_app.consumers import LiveConsumer


async def no_socket_here(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 4404})


websocket_urlpatterns = [
    path("ws/", LiveConsumer.as_asgi()),
    re_path(r"", no_socket_here),  # type: ignore[arg-type]
]
