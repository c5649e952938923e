"""The note before the conversation: what is left out, summaries, facts, open calls."""

from context_app.units import CallState, Message

HEAD = "[Note: not written by the user, but put together from this session's record.]"
LISTED_CALLS = 20  # open calls that the note names; the manifest has more
SEPARATOR_TOKENS = 2  # the empty line before each text


def note_message(texts: list[str]) -> Message:
    return {"role": "user", "content": "\n\n".join([HEAD, *texts]), "seqs": []}


def left_out_text(first: int, last: int, events: int) -> str:
    return f"{events} events between {first} and {last} are left out here to save room."


# The longest that such a text can be.
LEFT_OUT_MOST = left_out_text(10**11, 10**11, 10**11)


def summary_text(text: str) -> str:
    return f"## Summary of the conversation so far\n{text}"


def open_calls_text(calls: list[CallState]) -> str:
    """Open calls in words; the first LISTED_CALLS are named."""
    if not calls:
        return ""
    lines = [
        f"- {call.name} (event {call.call_seq}): {call.status.replace('_', ' ')}"
        for call in calls[:LISTED_CALLS]
    ]
    if len(calls) > LISTED_CALLS:
        lines.append(f"- and {len(calls) - LISTED_CALLS} older ones")
    return "\n".join(["## Tool calls without a result", *lines])
