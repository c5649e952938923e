"""Names of fields as people read them."""

ACRONYMS = {
    "api": "API",
    "csv": "CSV",
    "id": "ID",
    "ids": "IDs",
    "json": "JSON",
    "llm": "LLM",
    "sha256": "SHA-256",
    "ttl": "TTL",
    "url": "URL",
}


def label_of(name: str, label: str) -> str:
    """The label of the field `name`, with acronyms as they are written and units in
    words: `max_backoff_s` is "max backoff (seconds)", `n_done` "done"."""
    words = name.split("_")
    if label.replace("_", " ") != " ".join(words):
        return label  # somebody has chosen it
    words = [ACRONYMS.get(word, word) for word in words]
    if len(words) > 1 and words[0] == "n":
        words = words[1:]
    if len(words) > 1 and words[-1] == "s":
        words[-1] = "second" if words[-2] == "per" else "(seconds)"
    return " ".join(words)
