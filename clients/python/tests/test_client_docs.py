"""The Python examples of the documentation run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["docs/client.md", "clients/python/README.md", "README.md"]
)
def test_examples_run(page, server, key, monkeypatch):
    monkeypatch.setenv("AGENTSTATE_URL", server.base_url)
    monkeypatch.setenv("AGENTSTATE_API_KEY", key)
    text = (ROOT / page).read_text()
    namespace = {"__name__": "__main__"}
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        # Padded, so that a traceback shows the line of the page.
        exec(compile("\n" * line + block.group(1), page, "exec"), namespace)
