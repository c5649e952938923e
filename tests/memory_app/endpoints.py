"""Servers on loopback that speak the protocols of embedders and models."""

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Endpoint:
    """Answers each POST by `reply(path, body) -> (status, bytes)`; keeps what it got.

    While `gate` is closed it sends spaces, one by one, and the answer after them.
    """

    def __init__(self, reply):
        self.reply = reply
        self.asked, self.headers = [], []
        self.gate, self.waiting = threading.Event(), threading.Semaphore(0)
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(body)
                outer.headers.append(dict(self.headers))
                status, raw = outer.reply(self.path, body)
                self.send_response(status)
                self.end_headers()  # HTTP/1.0: the answer ends with the connection
                outer.waiting.release()
                while not outer.gate.wait(0.05):
                    self.wfile.write(b" ")
                self.wfile.write(raw)

            def handle(self):
                # The caller may have gone, as it should.
                with suppress(BrokenPipeError, ConnectionResetError):
                    super().handle()

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    def close(self):
        self.gate.set()
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def serving(reply):
    endpoint = Endpoint(reply)
    try:
        yield endpoint
    finally:
        endpoint.close()
