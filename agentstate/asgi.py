"""The one-port ASGI application: streams here, all other HTTP over the bridge.

Django's own ASGI handler is never used for HTTP: it starts a pool of threads for every
request, which costs five sixths of the throughput.
"""

# Importing it sets Django up, which what follows needs.
from agentstate.wsgi import application as wsgi  # isort: split

from django.conf import settings

from agentstate.bridge import WSGIBridge
from agentstate.router import Router

settings.UPLOAD_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)

application = Router(
    WSGIBridge(
        wsgi,
        threads=settings.WEB_THREADS,
        max_body_bytes=settings.REQUEST_MAX_BYTES,
        spool_dir=settings.UPLOAD_DIR,
    )
)
