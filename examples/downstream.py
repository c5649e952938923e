"""A small payment service that workers call: it counts what it is asked.

    POST /refunds          {"order", "amount"} with an Idempotency-Key header
    GET  /refunds/KEY      was this done? 404 if not
    GET  /counts           how often each key was asked for and carried out

With `honours_keys` a repeated key gets the first answer again and nothing is paid
twice, as good payment services do. Without it, it pays each time it is asked.

    python -m examples.downstream [--port 8900] [--forget-keys]
"""

import argparse
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

DEFAULT_PORT = 8900


class Downstream:
    """The service. `asked` and `carried_out` count by key; `paid` holds the answers."""

    def __init__(self, *, honours_keys: bool = True, port: int = 0) -> None:
        self.honours_keys = honours_keys
        self.asked: Counter[str] = Counter()
        self.carried_out: Counter[str] = Counter()
        self.paid: dict[str, dict[str, Any]] = {}
        self._guard = threading.Lock()
        self._server = Server(("127.0.0.1", port), Handler)
        self._server.downstream = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> "Downstream":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def serve(self) -> None:
        self._server.serve_forever()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def refund(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        """Pay, unless this key has been paid and keys are honoured."""
        with self._guard:
            self.asked[key] += 1
            if self.honours_keys and key in self.paid:
                return self.paid[key]
            self.carried_out[key] += 1
            number = sum(self.carried_out.values())
            receipt = {"refund": f"r-{number}", "key": key, **body}
            self.paid[key] = receipt
            return receipt

    def receipt(self, key: str) -> dict[str, Any] | None:
        with self._guard:
            return self.paid.get(key)

    def counts(self) -> dict[str, Any]:
        with self._guard:
            return {
                key: {"asked": self.asked[key], "carried_out": self.carried_out[key]}
                for key in self.asked
            }


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    downstream: Downstream


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        key = self.headers.get("Idempotency-Key")
        if self.path != "/refunds" or key is None or len(raw) < length:
            return self.answer(400, {"error": "POST /refunds with an Idempotency-Key"})
        self.answer(200, self.server.downstream.refund(key, json.loads(raw)))

    def do_GET(self) -> None:
        if self.path == "/counts":
            return self.answer(200, self.server.downstream.counts())
        _, _, key = self.path.partition("/refunds/")
        receipt = self.server.downstream.receipt(unquote(key))
        if receipt is None:
            return self.answer(404, {"error": "there is no such refund"})
        self.answer(200, receipt)

    def answer(self, status: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: whoever is interested asks for the counts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument(
        "--forget-keys", action="store_true", help="pay each time it is asked"
    )
    options = parser.parse_args()
    service = Downstream(honours_keys=not options.forget_keys, port=options.port)
    print(f"downstream {service.url}", flush=True)
    service.serve()


if __name__ == "__main__":
    main()
