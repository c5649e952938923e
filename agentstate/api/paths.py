"""What stands in the paths of the API beside Django's own converters."""

from django.urls import register_converter


class AnyTextConverter:
    """Any text, line ends and slashes included, up to what follows it in the path."""

    regex = r"[\s\S]+"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


ANY_TEXT = "any_text"
register_converter(AnyTextConverter, ANY_TEXT)
