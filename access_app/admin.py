"""For operators: they see what is theirs, and change it through the services."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Field, Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from unfold.admin import ModelAdmin  # type: ignore[import-untyped]
from unfold.forms import (  # type: ignore[import-untyped]
    ActionForm,
    AdminPasswordChangeForm,
    UserChangeForm,
    UserCreationForm,
)
from unfold.widgets import UnfoldAdminTextInputWidget  # type: ignore[import-untyped]

from access_app.models import ApiKey, AuditEntry, Member, Project
from access_app.pages import read_reason
from access_app.querysets import ApiKeyQuerySet
from access_app.roles import Right, projects_where
from access_app.services import (
    add_member,
    create_project,
    remove_member,
    revoke_key,
    set_role,
    update_project,
)
from agentstate.errors import AppError
from agentstate.labels import label_of
from agentstate.uncounted import UncountedPaginator


def actor_of(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"


def user_of(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # the admin lets nobody else in
    return request.user


class ReasonedActionForm(ActionForm):  # type: ignore[misc]
    """What is to be done with the ticked rows, and why."""

    reason = forms.CharField(
        required=False,  # said by the action that misses it
        max_length=1000,
        label="",
        widget=forms.TextInput(
            attrs={
                "placeholder": "Reason, kept in the audit log",
                "aria-label": "Reason, kept in the audit log",
                "class": "bg-white text-base text-gray-900 px-2 py-1 rounded-default",
            }
        ),
    )


class ReasonedForm(forms.ModelForm):  # type: ignore[type-arg]
    """A change that says why; the services write it down."""

    reason = forms.CharField(
        max_length=1000,
        widget=UnfoldAdminTextInputWidget,
        help_text="Kept in the audit log.",
    )


def projects_with(request: HttpRequest, right: Right) -> list[UUID]:
    """`projects_where` for who asks, read once a request."""
    known: dict[Right, list[UUID]] = request.__dict__.setdefault("projects_with", {})
    if right not in known:
        known[right] = projects_where(user_of(request), right)
    return known[right]


class ProjectScopedAdmin(ModelAdmin):  # type: ignore[misc]
    """Shows to staff the rows of their projects; owners may change them.

    With a `right`, roles alone decide: who has it in some project sees the rows of that
    project, whatever Django's permissions say. Without one those say which kinds of
    rows, and membership whose. What a service refuses is shown as a message.
    """

    project_path = "project"  # from the row to its project
    right: Right | None = None  # that staff need in a project to see its rows
    action_form = ReasonedActionForm

    def has_right(self, request: HttpRequest, right: Right) -> bool:
        return user_of(request).is_superuser or bool(projects_with(request, right))

    def has_view_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        if self.right is None:
            return bool(super().has_view_permission(request, obj))
        return self.has_right(request, self.right)

    def has_module_permission(self, request: HttpRequest) -> bool:
        if self.right is None:
            return bool(super().has_module_permission(request))
        return self.has_right(request, self.right)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        user = user_of(request)
        if user.is_superuser:
            return rows
        if self.right is not None:
            seen = projects_with(request, self.right)
            return rows.filter(**{f"{self.project_path}__in": seen})
        visible = Project.objects.visible_to(user)
        return rows.filter(**{f"{self.project_path}__in": visible})

    def owned(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows of the projects that the user owns."""
        projects = Project.objects.owned_by(user_of(request))
        return self.get_queryset(request).filter(
            **{f"{self.project_path}__in": projects}
        )

    def has_change_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        return super().has_change_permission(request, obj) and (
            obj is None or self.owned(request).filter(pk=obj.pk).exists()
        )

    def has_delete_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        return super().has_delete_permission(request, obj) and (
            obj is None or self.owned(request).filter(pk=obj.pk).exists()
        )

    def formfield_for_foreignkey(
        self, db_field: Any, request: HttpRequest, **kwargs: Any
    ) -> Any:
        if db_field.related_model is Project:
            kwargs["queryset"] = Project.objects.owned_by(user_of(request))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except AppError as exc:
            # Once more, as a form with a mistake: it shows what was typed.
            request.__dict__["refusal"] = exc.detail
            return super().changeform_view(request, *args, **kwargs)

    def get_form(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        labels = {name: capfirst(text) for name, text in _labels(self.model).items()}
        form = super().get_form(request, obj, **{"labels": labels, **kwargs})
        if detail := request.__dict__.get("refusal"):
            return refused_form(form, detail)
        return form

    def get_list_display(self, request: HttpRequest) -> Any:
        """The columns, headed in words."""
        labels = _labels(self.model)
        return [
            column(name, labels[name])
            if name in labels and labels[name] != name.replace("_", " ")
            else name
            for name in super().get_list_display(request)
        ]

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().delete_view(request, *args, **kwargs)
        except AppError as exc:
            return self.refused(request, exc)

    def response_action(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().response_action(request, *args, **kwargs)
        except AppError as exc:
            return self.refused(request, exc)

    def refused(self, request: HttpRequest, exc: AppError) -> HttpResponse:
        self.message_user(request, exc.detail, messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())


class ReadOnlyAdmin(ProjectScopedAdmin):
    """Rows that nobody changes here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        return False

    def has_delete_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        return False


def _labels(model: type[Model]) -> dict[str, str]:
    """The fields of a model in words, by their names and those of their columns."""
    fields: list[Field[Any, Any]] = list(model._meta.concrete_fields)
    columns = {f.attname: label_of(f.attname, f.attname) for f in fields}
    return columns | {f.name: label_of(f.name, str(f.verbose_name)) for f in fields}


def column(name: str, label: str) -> Callable[[Model], Any]:
    """A column of a list that shows a field under another name."""

    @admin.display(description=label, ordering=name)
    def value(row: Model) -> Any:
        display = getattr(row, f"get_{name}_display", None)
        return display() if display else getattr(row, name)

    value.__name__ = name
    return value


def refused_form(form: Any, detail: str) -> Any:
    """`form`, but with what a service said of what was typed."""

    class Refused(form):  # type: ignore[misc]
        def clean(self) -> Any:
            cleaned = super().clean()
            self.add_error(None, detail)
            return cleaned

    return Refused


@admin.register(Project)
class ProjectAdmin(ProjectScopedAdmin):
    form = ReasonedForm
    project_path = "pk"
    list_display = ["name", "slug", "created_at"]
    search_fields = ["name", "slug"]
    fields = ["name", "slug", "created_at", "reason"]
    readonly_fields = ["slug", "created_at"]

    def has_delete_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        return False

    def save_model(
        self, request: HttpRequest, obj: Project, form: "ModelForm[Any]", change: bool
    ) -> None:
        why = {"actor": actor_of(request), "reason": form.cleaned_data["reason"]}
        if change:
            update_project(obj.pk, name=obj.name, **why)
        else:
            made = create_project(obj.name, **why)
            obj.pk, obj.slug, obj.created_at = made.pk, made.slug, made.created_at


@admin.register(Member)
class MemberAdmin(ProjectScopedAdmin):
    form = ReasonedForm
    list_display = ["user", "project", "role", "created_at"]
    list_filter = ["role"]
    list_select_related = ["user", "project"]
    search_fields = ["user__username", "project__name"]
    raw_id_fields = ["project", "user"]
    fields = ["project", "user", "role", "reason"]
    actions = ["remove"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [] if obj is None else ["project", "user"]

    def has_delete_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        # Members are removed by the action, which asks why.
        return False

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return user_of(request).has_perm("access_app.delete_member")

    @admin.action(description="Remove selected members", permissions=["remove"])
    def remove(self, request: HttpRequest, queryset: QuerySet[Member]) -> None:
        owned = self.owned(request).values("pk")
        reason, actor = read_reason(request), actor_of(request)
        for member in queryset.filter(pk__in=owned).select_related("user", "project"):
            try:
                remove_member(member.project_id, member.pk, actor=actor, reason=reason)
            except AppError as exc:
                self.message_user(request, f"{member}: {exc.detail}", messages.ERROR)
            else:
                self.message_user(request, f"Removed: {member}", messages.SUCCESS)

    def save_model(
        self, request: HttpRequest, obj: Member, form: "ModelForm[Any]", change: bool
    ) -> None:
        why = {"actor": actor_of(request), "reason": form.cleaned_data["reason"]}
        if change:
            set_role(obj.project_id, obj.pk, obj.role, **why)
        else:
            made = add_member(obj.project_id, obj.user, obj.role, **why)
            obj.pk, obj.created_at = made.pk, made.created_at


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Keys are made through the API or `manage.py create_key`, which show them once."""

    list_display = [
        "name",
        "prefix",
        "project",
        "scope_list",
        "last_used_at",
        "expires_at",
        "revoked_at",
    ]
    list_select_related = ["project"]
    search_fields = ["name", "prefix", "project__name"]
    exclude = ["secret_hash"]
    actions = ["revoke"]

    @admin.display(description="scopes")
    def scope_list(self, key: ApiKey) -> str:
        return ", ".join(key.scopes)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return user_of(request).has_perm("access_app.change_apikey")

    @admin.action(description="Revoke selected keys", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: ApiKeyQuerySet) -> None:
        owned = self.owned(request).values("pk")
        reason, actor = read_reason(request), actor_of(request)
        for key in queryset.filter(revoked_at=None, pk__in=owned):
            revoke_key(key.project_id, key.pk, actor=actor, reason=reason)
            self.message_user(request, f"Revoked: {key}", messages.SUCCESS)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    right = Right.SEE_AUDIT
    list_display = ["created_at", "project", "actor", "action", "object", "reason"]
    list_select_related = ["project"]
    search_fields = ["=actor", "=action", "=object"]
    ordering = ["-created_at", "-id"]
    paginator = UncountedPaginator
    show_full_result_count = False


# Roles alone decide what the admin shows: Django's own groups and permissions, which
# would decide nothing, are not offered.
admin.site.unregister(Group)
admin.site.unregister(User)


@admin.register(User)
class AccountAdmin(UserAdmin, ModelAdmin):  # type: ignore[misc,type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_filter = ("is_staff", "is_superuser", "is_active")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("May", {"fields": ("is_active", "is_staff", "is_superuser")}),
        ("Times", {"fields": ("last_login", "date_joined")}),
    )
    readonly_fields = ("last_login", "date_joined")
