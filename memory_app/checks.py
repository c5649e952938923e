"""System checks: what a deployment of the memory gets wrong."""

from typing import Any

from django.core.checks import CheckMessage, Error, register

from memory_app.embedding.embedders import EmbedderSettingError, configured_model


@register()
def check_embedder(**kwargs: Any) -> list[CheckMessage]:
    try:
        configured_model()
    except EmbedderSettingError as exc:
        return [
            Error(
                str(exc),
                hint="AGENTSTATE_EMBEDDER is packaged, none, openai:MODEL, onnx:FOLDER "
                "or model2vec:FOLDER.",
                id="memory.E001",
            )
        ]
    return []
