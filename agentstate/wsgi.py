"""The WSGI application: all HTTP but the live streams."""

import os
from typing import Any

import django
from django.core.handlers.wsgi import WSGIHandler
from django.utils.http import parse_header_parameters

LONGEST_TYPE = 256  # of a media type without its parameters


class Application(WSGIHandler):
    """Django's, for which a Content-Type that it cannot read is no reason to fail.

    Django reads the parameters while it makes the request, before any of its handling
    of errors: those that claim an encoding that there is not, or are too long, go.
    """

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        content_type: str = environ.get("CONTENT_TYPE", "")
        try:
            parse_header_parameters(content_type)
        except (LookupError, ValueError):
            bare = content_type.partition(";")[0].strip()
            environ["CONTENT_TYPE"] = bare if len(bare) < LONGEST_TYPE else ""
        return super().__call__(environ, start_response)


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

django.setup(set_prefix=False)
application = Application()
