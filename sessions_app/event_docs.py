"""docs/events.md, made from the types that the code checks."""

from collections.abc import Iterable, Iterator

import simplejson

from sessions_app.event_types import (
    CONVERSATION_TYPES,
    EVENT_TYPES,
    SERVER_PREFIXES,
    TYPE_MAX_LENGTH,
    EventType,
    PayloadField,
)

INTRODUCTION = """\
# Events

Made from `sessions_app/event_types.py` by `make schema`; do not edit by hand.

An event has a `type`, a `payload` (a JSON object) and a `seq`, its number in the
session's log. What clients append may also carry an `id` of their own (a UUID, unique
in the session), `occurred_at` (their claim, data only), and the `run` and `step` that
it belongs to. The server adds `actor` (which key, member or part of the system wrote
it) and `created_at`.

## How types work

- **Known types** are below. Their payloads are checked for the fields that readers rely
  on; a wrong one is refused with 422 and its path, `events[0].payload.content`. Every
  other field is kept as it was sent.
- **Your own types**: any other dotted lower-case name, such as `acme.ticket_opened`, of
  at most {max_length} characters. The payload may be any object, and comes back as it
  was sent. A name that is no such name is refused with 422 `invalid_type_name`.
- **Types of the server**: names that begin with {prefixes} tell what the server did.
  Clients that append them are refused with 422 `reserved_type`: sessions, runs and
  memory are rebuilt from them (`manage.py verify_replay` proves it).
- Readers must pass over types that they do not know. New ones may come with any
  release; fields are only ever added.

## Seq 0

A log begins with `session.created` at seq 0: the record of the session's birth, which
holds all that the session was created with. What happens then runs 1, 2, 3 without
gaps. Lists leave seq 0 out unless they are asked with `after_seq=-1`; the project's
feed shows it. A fork has a seq 0 of its own and shares its parent's events from 1 on.
"""
CLIENT_HEADING = """\
## Types that clients append
"""
SERVER_HEADING = """\
## Types that the server writes
"""


def events_markdown() -> str:
    """Return the whole of docs/events.md."""
    prefixes = ", ".join(f"`{prefix}`" for prefix in SERVER_PREFIXES)
    parts = [INTRODUCTION.format(max_length=TYPE_MAX_LENGTH, prefixes=prefixes)]
    from_clients = [EVENT_TYPES[name] for name in CONVERSATION_TYPES]
    from_server = [known for known in EVENT_TYPES.values() if known.is_from_server]
    parts += [CLIENT_HEADING, *_sections(from_clients)]
    parts += [SERVER_HEADING, *_sections(from_server)]
    return "\n".join(parts)


def _sections(known_types: Iterable[EventType]) -> Iterator[str]:
    for known in known_types:
        yield "\n".join([f"### `{known.name}`", "", known.doc, *_details(known), ""])


def _details(known: EventType) -> Iterator[str]:
    if known.fields:
        yield from ("", "| field | kind | required | |", "|---|---|---|---|")
        yield from (_row(name, spec) for name, spec in known.fields.items())
    if known.example:
        # Shown as the body's event, which is what a client writes.
        shown = {"type": known.name, "payload": known.example}
        text = simplejson.dumps(shown, indent=2, ensure_ascii=False)
        yield from ("", "```json", *text.splitlines(), "```")


def _row(name: str, spec: PayloadField) -> str:
    kind = " or ".join(spec.kinds) or "any"
    doc = [spec.doc]
    if spec.choices:
        doc.append("One of: " + ", ".join(f"`{each}`" for each in spec.choices) + ".")
    if spec.max_length:
        doc.append(f"At most {spec.max_length} characters.")
    required = "yes" if spec.required else ""
    return f"| `{name}` | {kind} | {required} | {' '.join(doc)} |"
