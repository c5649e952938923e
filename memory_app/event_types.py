"""The events that memory_app writes to a session's log. They hold ids, never a text."""

from sessions_app.event_types import EventType, PayloadField

MEMORY_PROMOTED = "memory.promoted"

EVENT_TYPES = {
    known.name: known
    for known in (
        EventType(
            MEMORY_PROMOTED,
            "Facts were taken from this session: `facts` are their ids.",
            {
                "promotion": PayloadField(("string",), "Its id.", required=True),
                "extractor": PayloadField(("string",), "rules or llm.", required=True),
                "facts": PayloadField(("array",), "The facts' ids.", required=True),
            },
            {
                "promotion": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
                "extractor": "rules",
                "facts": ["0199b2a0-7f31-7c02-9a4e-8d2b6c1f0e55"],
            },
        ),
    )
}
