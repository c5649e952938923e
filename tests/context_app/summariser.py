"""A chat endpoint on loopback that speaks OpenAI's protocol, strictly.

It answers 400 to a request that a strict provider would refuse, such as a tool result
without its call; what else it does is told by `script`.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.context_app.legal import check_openai

type Answer = tuple[int, Any]


class Summariser:
    """`requests` are the bodies that came; `seqs` the events told in each of them."""

    def __init__(self, script: Callable[["Summariser", Any], Answer]) -> None:
        self.script = script
        self.requests: list[Any] = []
        self.refused = 0
        self.url = ""

    @property
    def seqs(self) -> list[list[int]]:
        return [seqs_in(body) for body in self.requests]

    def answer(self, body: Any) -> Answer:
        self.requests.append(body)
        try:
            check_openai(body["messages"])
        except AssertionError as exc:
            self.refused += 1
            return 400, {"error": {"message": str(exc)}}
        return self.script(self, body)


def seqs_in(body: Any) -> list[int]:
    text = body["messages"][-1]["content"]
    return [int(n) for n in re.findall(r"^\[(\d+)\] ", text, re.MULTILINE)]


def says(text: str) -> Answer:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def lists_seqs(_: Summariser, body: Any) -> Answer:
    return says(f"I was given {seqs_in(body)}.")


def fails(_: Summariser, body: Any) -> Answer:
    return 500, {"error": {"message": "overloaded"}}


@contextmanager
def summariser(script: Callable[[Summariser, Any], Answer]) -> Iterator[Summariser]:
    stub = Summariser(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            status, answer = stub.answer(json.loads(self.rfile.read(length)))
            raw = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield stub
    server.shutdown()
    server.server_close()
    thread.join()
