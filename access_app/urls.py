"""Pages of one project, under /p/<slug>/."""

from django.urls import path

from access_app import views

app_name = "access"
urlpatterns = [
    path("settings/", views.settings_page, name="settings"),
    path("settings/policies/", views.change_policies, name="policies"),
    path("settings/keys/", views.make_key, name="make-key"),
    path("settings/keys/<uuid:key_id>/revoke/", views.revoke, name="revoke"),
    path("settings/members/", views.invite, name="invite"),
    path("settings/members/<int:member_id>/", views.change_role, name="change-role"),
    path("views/", views.keep_view, name="keep-view"),
    path("views/<uuid:view_id>/delete/", views.drop_view, name="drop-view"),
    path("audit/", views.audit, name="audit"),
]
