"""A small OpenID Connect provider: real, over HTTP, with faults to choose."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT_ID, CLIENT_SECRET = "agentstate", "only-we-two-know"


class Provider(ThreadingHTTPServer):
    """Signs in `person` whoever asks, and answers each code once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.key = self.new_key("first")
        self.published = [self.key]
        self.signs_with: Any = self.key
        self.alg = "RS256"
        self.person: dict[str, Any] = {"sub": "s-1"}
        self.overrides: dict[str, Any] = {}  # of the token's claims; None leaves out
        self.described: dict[str, Any] = {}  # of the provider's own description
        self.refuses = ""
        self.codes: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        self.signed_out: list[Any] = []  # the subjects of those who signed out here

    @staticmethod
    def new_key(kid: str) -> RSAKey:
        return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})

    def description(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "end_session_endpoint": f"{self.issuer}/logout",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        } | self.described

    def token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.person,
            **self.overrides,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.alg, "kid": self.key.kid}
        if self.alg == "none":
            parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
            return ".".join(map(unpadded, parts)) + "."
        return jwt.encode(header, claims, self.signs_with, algorithms=[self.alg])


def unpadded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        self.server.asked.append(address.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        match address.path:
            case "/.well-known/openid-configuration":
                self.answer(self.server.description())
            case "/keys":
                keys = [key.as_dict(private=False) for key in self.server.published]
                self.answer({"keys": keys})
            case "/authorize":
                self.send_response(302)
                self.send_header("Location", self.back(query))
                self.end_headers()
            case "/logout":
                assert query["client_id"] == CLIENT_ID
                hint = query["id_token_hint"]
                told = jwt.decode(hint, self.server.key, algorithms=["RS256"])
                self.server.signed_out.append(told.claims["sub"])
                self.send_response(302)
                self.send_header("Location", query["post_logout_redirect_uri"])
                self.end_headers()
            case _:
                self.answer({}, 404)

    def back(self, query: dict[str, str]) -> str:
        assert query["client_id"] == CLIENT_ID and query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256" and query["nonce"]
        assert "openid" in query["scope"].split()
        told = {"state": query["state"]}
        if self.server.refuses:
            told["error"] = self.server.refuses
        else:
            told["code"] = secrets.token_urlsafe(16)
            self.server.codes[told["code"]] = query
        return f"{query['redirect_uri']}?{urlencode(told)}"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        known = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        asked = self.server.codes.pop(form.get("code", ""), None)
        if self.headers.get("Authorization") != f"Basic {known}":
            self.answer({"error": "invalid_client"}, 401)
        elif asked is None or not proves(form, asked):
            self.answer({"error": "invalid_grant"}, 400)
        else:
            token = self.server.token(asked)
            self.answer(
                {"access_token": "a", "token_type": "Bearer", "id_token": token}
            )

    def answer(self, body: Any, status: int = 200) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def proves(form: dict[str, str], asked: dict[str, str]) -> bool:
    digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
    return (
        unpadded(digest) == asked["code_challenge"]
        and form.get("redirect_uri") == asked["redirect_uri"]
    )


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider()
    thread = threading.Thread(target=running.serve_forever, args=(0.05,))
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


__all__ = ["CLIENT_ID", "CLIENT_SECRET", "OctKey", "Provider", "provider"]
