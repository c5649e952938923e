from django.urls import path

from access_app.api.whoami import WhoamiView

urlpatterns = [
    path("whoami", WhoamiView.as_view()),
]
