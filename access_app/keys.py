"""The text of an API key: `as_PREFIX_SECRET`. Pure functions.

The prefix finds the key and may be shown; the secret is 256 random bits, of which only
a hash is kept. Plain SHA-256 is enough for that: nobody guesses 256 bits, so there is
nothing for a slow hash to slow down.
"""

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

PREFIX_BYTES = 6
SECRET_BYTES = 32
KEY_TEXT = re.compile(r"as_([0-9a-f]{12})_([0-9a-f]{64})\Z")
UNKNOWN_HASH = bytes(32)


class KeyText(NamedTuple):
    prefix: str
    secret: str

    def __str__(self) -> str:
        return f"as_{self.prefix}_{self.secret}"

    def __repr__(self) -> str:
        # A key that ends up in a traceback or a log line does not give itself away.
        return f"KeyText(as_{self.prefix}_…)"


def new_key_text(secret: str | None = None) -> KeyText:
    return KeyText(
        secrets.token_hex(PREFIX_BYTES), secret or secrets.token_hex(SECRET_BYTES)
    )


def parse_key_text(text: str) -> KeyText | None:
    found = KEY_TEXT.match(text)
    return KeyText(found[1], found[2]) if found else None


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def is_secret(secret: str, expected_hash: bytes | None) -> bool:
    """Compare in constant time; None, for a key that does not exist, takes as long."""
    known = expected_hash is not None
    return hmac.compare_digest(hash_secret(secret), expected_hash or UNKNOWN_HASH) and (
        known
    )
