"""Whether a key's scopes allow the call."""

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from access_app.callers import Caller
from access_app.errors import Unauthenticated

if TYPE_CHECKING:
    # DRF's own views import this module, by the setting that names it.
    from rest_framework.views import APIView


class HasScope(BasePermission):
    """The key has the scope that the view names for this method."""

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not isinstance(request.auth, Caller):
            raise Unauthenticated
        method = "GET" if request.method == "HEAD" else request.method
        # A view that names no scope for a method it has is a mistake, not a free pass.
        scope: str = getattr(view, "scopes", {})[method]
        if scope:
            request.auth.require_scope(scope)
        return True
