from django.urls import path

from access_app.api.audit import AuditListView
from access_app.api.keys import KeyListView, KeyView
from access_app.api.members import MemberListView, MemberView
from access_app.api.project import ProjectView
from access_app.api.whoami import WhoamiView

urlpatterns = [
    path("whoami", WhoamiView.as_view()),
    path("project", ProjectView.as_view()),
    path("keys", KeyListView.as_view()),
    path("keys/<uuid:key_id>", KeyView.as_view()),
    path("members", MemberListView.as_view()),
    path("members/<int:member_id>", MemberView.as_view()),
    path("audit", AuditListView.as_view()),
]
