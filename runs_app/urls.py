"""Pages of runs, under /p/<slug>/."""

from django.urls import path

from runs_app import views

app_name = "runs"
urlpatterns = [
    path("runs/", views.run_list, name="list"),
    path("runs/bulk/", views.bulk, name="bulk"),
    path("runs/bulk/do/", views.do_bulk, name="do-bulk"),
    path("runs/<uuid:run_id>/", views.run_page, name="page"),
    path("runs/<uuid:run_id>/steer/", views.steer, name="steer"),
    path("runs/<uuid:run_id>/repeat/", views.repeat, name="repeat"),
    path("steps/<uuid:step_id>/", views.step_page, name="step"),
    path("steps/<uuid:step_id>/decide/", views.decide, name="decide"),
    path("inbox/", views.inbox, name="inbox"),
    path("workers/", views.workers, name="workers"),
]
