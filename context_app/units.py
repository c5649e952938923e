"""The conversation as units that stay whole: a message, or calls with their results.

A unit is in the context or it is not. What a unit holds, and in which order, is decided
here and nowhere else; see docs/context.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentstate import codec
from context_app.shorten import Shortener
from sessions_app import event_types as types
from sessions_app.log import StoredEvent

type Message = dict[str, Any]  # in the neutral form
type GetEvent = Callable[[int], StoredEvent | None]

NO_OUTPUT = "(no output)"
INTERRUPTED = (
    "[interrupted] No result of this call was recorded: it was cut off, "
    "or is still running."
)
AWAITING_HUMAN = "[waiting for a human] This call has not been answered yet."
SHORTENED_ARGUMENTS = "_shortened"

ROLES = {
    types.MESSAGE_USER: "user",
    types.MESSAGE_ASSISTANT: "assistant",
    types.MESSAGE_SYSTEM: "system",
}
# What a message may carry beside its content and still be taken by a provider.
EXTRA_FIELDS = ("name", "refusal")


@dataclass(frozen=True)
class CallState:
    """What the projection of tool calls says of a call, as it was at some seq."""

    call_seq: int
    tool_call_id: str
    name: str
    awaiting: str
    result_seq: int | None

    @property
    def status(self) -> str:
        if self.result_seq is not None:
            return "done"
        return "awaiting_human" if self.awaiting else "interrupted"


@dataclass(frozen=True)
class Call:
    """A tool call with its result, if there is one."""

    event: StoredEvent
    state: CallState
    result: StoredEvent | None

    @property
    def seqs(self) -> Iterator[int]:
        yield self.event.seq
        if self.result is not None:
            yield self.result.seq

    @cached_property
    def arguments(self) -> Any:
        given = self.event.payload.get("arguments")
        return {} if given is None else given

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The result's payload; empty without one."""
        return {} if self.result is None else self.result.payload


@dataclass(eq=False)
class Unit:
    """A message, with the calls made in it and their results; or calls alone.

    It is not changed once its seqs have been asked for.
    """

    said: StoredEvent | None = None
    thoughts: list[StoredEvent] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    @cached_property
    def payload(self) -> dict[str, Any]:
        """What was said, decoded once: it is looked at again and again."""
        return {} if self.said is None else self.said.payload

    @cached_property
    def seqs(self) -> list[int]:
        events = [*self.thoughts, *([self.said] if self.said else [])]
        return sorted(
            [e.seq for e in events] + [s for call in self.calls for s in call.seqs]
        )

    @property
    def first_seq(self) -> int:
        return self.seqs[0]

    @property
    def last_seq(self) -> int:
        """How recent it is: a result that came late makes its call recent again."""
        return self.seqs[-1]

    @property
    def begins_turn(self) -> bool:
        return self.said is not None and self.said.type == types.MESSAGE_USER

    def messages(
        self, shortener: Shortener, tools: frozenset[str] | None = None
    ) -> list[Message]:
        """Return the unit in the neutral form; empty if there is nothing to say.

        Calls of tools that are not in `tools` are told as text.
        """
        if self.said is not None and self.said.type != types.MESSAGE_ASSISTANT:
            return list(self._plain(self.said, shortener))
        known = [c for c in self.calls if tools is None or c.state.name in tools]
        foreign = [c for c in self.calls if c not in known]
        message = self._assistant(shortener, known, foreign)
        if message is None:
            return []
        return [message, *(_result(call, shortener) for call in known)]

    def _assistant(
        self, shortener: Shortener, known: list[Call], foreign: list[Call]
    ) -> Message | None:
        message: Message = {"role": "assistant", "content": None}
        if self.said is not None:
            message |= self._extra
            message["content"] = shortener.content(
                clean_content(self.payload.get("content")), self.said.seq
            )
        told = [_told(call, shortener) for call in foreign]
        message["content"] = with_texts(message["content"], told)
        if known:
            message["tool_calls"] = [_call(call, shortener) for call in known]
        elif message["content"] is None:
            return None
        if self.thoughts:
            message["reasoning"] = [t.payload.get("content") for t in self.thoughts]
        return message | {"seqs": self._own_seqs()}

    def _plain(self, said: StoredEvent, shortener: Shortener) -> Iterator[Message]:
        content = clean_content(self.payload.get("content"))
        if content is not None:
            yield {
                "role": ROLES[said.type],
                "content": shortener.content(content, said.seq),
                **self._extra,
                "seqs": [said.seq],
            }

    @property
    def _extra(self) -> Message:
        return {n: self.payload[n] for n in EXTRA_FIELDS if self.payload.get(n)}

    def _own_seqs(self) -> list[int]:
        results = {c.result.seq for c in self.calls if c.result is not None}
        return [seq for seq in self.seqs if seq not in results]


def _call(call: Call, shortener: Shortener) -> Message:
    return {
        "id": call.state.tool_call_id,
        "name": call.state.name,
        "arguments": _arguments(call, shortener),
        "seq": call.event.seq,
    }


def _arguments(call: Call, shortener: Shortener) -> Any:
    """The arguments as given; if too long, an object that says so."""
    given = call.arguments
    text = given if isinstance(given, str) else codec.dumps(given)
    short = shortener.text(text, call.event.seq)
    if short is not text:
        return {SHORTENED_ARGUMENTS: short}
    return given


def _result(call: Call, shortener: Shortener) -> Message:
    message: Message = {
        "role": "tool",
        "tool_call_id": call.state.tool_call_id,
        "call_seq": call.event.seq,
        "name": call.state.name,
        "content": result_content(call, shortener),
        "status": call.state.status,
        "seqs": [call.result.seq] if call.result else [],
    }
    if call.answer.get("is_error"):
        message["is_error"] = True
    return message


def result_content(call: Call, shortener: Shortener) -> Any:
    """The result, or the stand-in for one that is empty or never came."""
    if call.result is None:
        waits = call.state.status == "awaiting_human"
        return AWAITING_HUMAN if waits else INTERRUPTED
    content = clean_content(call.answer.get("content"))
    if content is None:
        return NO_OUTPUT
    return shortener.content(content, call.result.seq)


def _told(call: Call, shortener: Shortener) -> str:
    """A call of a tool that the reader does not have, in words."""
    result = result_content(call, shortener)
    arguments = _arguments(call, shortener)
    shown = arguments if isinstance(arguments, str) else codec.dumps(arguments)
    answer = result if isinstance(result, str) else codec.dumps(result)
    return f"[Used the tool {call.state.name} with {shown}. Its result: {answer}]"


def with_texts(content: Any, texts: list[str]) -> Any:
    """Add texts behind a content."""
    if not texts:
        return content
    if isinstance(content, list):
        return [*content, *({"type": "text", "text": text} for text in texts)]
    return "\n\n".join([*([content] if content else []), *texts])


def clean_content(content: Any) -> Any:
    """Return a content without empty parts; None if nothing is left.

    A list of parts stays one, text stays text, any other JSON becomes its text.
    """
    if content is None:
        return None
    if isinstance(content, str):
        return content if content.strip() else None
    if _is_parts(content):
        return [part for part in content if not _is_blank(part)] or None
    return codec.dumps(content)


def _is_parts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    )


def _is_blank(part: Message) -> bool:
    text = part.get("text")
    return part["type"] in TEXT_KINDS and not (isinstance(text, str) and text.strip())


TEXT_KINDS = ("text", "input_text", "output_text")


def units_of(
    events: Iterable[StoredEvent],
    states: Mapping[int, CallState],
    get_event: GetEvent,
) -> list[Unit]:
    """Group events, oldest first, into units.

    A message of the assistant takes the thoughts before it and the calls behind it;
    calls that follow one another without a message or a result between were made in
    parallel. Results are found through their calls, wherever they lie; one that no call
    has is not shown.
    """
    units: list[Unit] = []
    thoughts: list[StoredEvent] = []
    current: Unit | None = None
    for event in events:
        if event.type == types.REASONING:
            thoughts.append(event)
            current = None
        elif event.type == types.TOOL_RESULT:
            current = None
        elif event.type == types.TOOL_CALL:
            if current is None:
                current = Unit(thoughts=thoughts)
                units.append(current)
                thoughts = []
            current.calls.append(_paired(event, states, get_event))
        else:
            is_answer = event.type == types.MESSAGE_ASSISTANT
            current = Unit(said=event, thoughts=thoughts if is_answer else [])
            units.append(current)
            thoughts = []
            if not is_answer:
                current = None
    return units


def _paired(
    event: StoredEvent, states: Mapping[int, CallState], get_event: GetEvent
) -> Call:
    state = states.get(event.seq) or _untracked(event)
    seq = state.result_seq
    return Call(event, state, None if seq is None else get_event(seq))


def _untracked(event: StoredEvent) -> CallState:
    """A call that the projection does not know: it stands as interrupted."""
    payload = event.payload
    return CallState(
        event.seq,
        str(payload.get("tool_call_id", "")),
        str(payload.get("name") or ""),
        str(payload.get("awaiting") or ""),
        None,
    )
