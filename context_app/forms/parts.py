"""Parts of a content, from whichever provider's form to another's."""

import re
from typing import Any

from agentstate import codec

type Part = dict[str, Any]

DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
TEXT_KINDS = ("text", "input_text", "output_text")


def text_of(part: Part) -> str | None:
    """The text of a text part; None for other parts."""
    if part.get("type") in TEXT_KINDS and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    return None


def not_shown(part: Part) -> str:
    """What stands for a part that a form cannot hold."""
    return f"[A part of type {part.get('type')} is not shown]"


def as_text(content: Any) -> str:
    """Return a content as one text, parts that hold none named."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    return "\n\n".join(text_of(part) or not_shown(part) for part in content)


def image_url(part: Part) -> str | None:
    """The address of an image part, of any form; data URLs included."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return url
        case {"type": "input_image", "image_url": str(url)}:
            return url
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return url
        case {
            "type": "image",
            "source": {"type": "base64", "media_type": str(kind), "data": str(data)},
        }:
            return f"data:{kind};base64,{data}"
    return None


def arguments_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else codec.dumps(arguments)


def arguments_object(arguments: Any) -> dict[str, Any]:
    """Arguments as an object; text that spells none is kept under `text`."""
    if isinstance(arguments, str):
        try:
            arguments = codec.loads(arguments)
        except Exception:  # not JSON, or not ours to keep: shown as it is
            return {"text": arguments}
    return arguments if isinstance(arguments, dict) else {"value": arguments}


def safe_name(name: str, longest: int = 64) -> str:
    """A tool's name as providers take them."""
    return UNSAFE.sub("_", name)[:longest] or "unnamed"
