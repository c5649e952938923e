"""A worker process that kills itself with SIGKILL at a point of the protocol.

Started by a fork server that has everything imported, so that a thousand processes can
live and die in a minute or two.
"""

import http.client
import json
import multiprocessing
import os
import random
import signal
import socket
import threading
from urllib.parse import urlsplit

import httpx
from agentstate_client import Client, Worker

# Where a worker may die. "…_unread": the other side has done its part, and its answer
# lies unread in the socket. "any": some instruction within the first tenth of a second.
POINTS = (
    "before_claim",
    "claim_unread",
    "after_claim",
    "before_effect",
    "effect_unread",
    "after_effect",
    "before_complete",
    "complete_unread",
    "after_complete",
    "any",
)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.mortal"])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalTransport(httpx.HTTPTransport):
    """Dies before a request is sent, or when its answer has come."""

    def __init__(self, point: str) -> None:
        # Without the certificates of the world, which take longer than a short life.
        super().__init__(verify=False)
        self.point = point

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = request.url.path.rpartition("/")[2]
        if self.point == f"before_{call}":
            die()
        response = super().handle_request(request)
        if self.point == f"{call}_unread":  # the head has come, the body is not read
            die()
        if self.point == f"after_{call}":
            body = response.read()
            if b'"step"' in body:  # a claim that brought something
                die()
        return response


def refund(url: str, key: str, body: dict[str, object], point: str) -> object:
    if point == "before_effect":
        die()
    parts = urlsplit(url)
    assert parts.hostname is not None
    service = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    service.request("POST", "/refunds", json.dumps(body), {"Idempotency-Key": key})
    if point == "effect_unread":
        service.sock.recv(1, socket.MSG_PEEK)  # it has been done
        die()
    answer = json.loads(service.getresponse().read())
    if point == "after_effect":
        die()
    return answer


def work(base_url: str, key: str, downstream: str, careless: str, point: str) -> None:
    """Work until there is nothing to claim, or until the point is reached.

    The tool `refund` calls a service that honours idempotency keys, `refund_once` one
    that does not.
    """
    if point == "any":
        threading.Timer(random.uniform(0, 0.1), die).start()
    client = Client(base_url, key, transport=MortalTransport(point))
    worker = Worker(client, name="pod-0", lease_s=30)

    @worker.tool("refund", effect="idempotent")
    def refund_tool(ctx):
        return refund(downstream, ctx.idempotency_key, ctx.args, point)

    @worker.tool("refund_once", effect="once")
    def refund_once_tool(ctx):
        return refund(careless, ctx.idempotency_key, ctx.args, point)

    worker.run(until_idle=True)


def start(*arguments: str) -> multiprocessing.Process:
    process = FORKS.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process
