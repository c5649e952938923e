"""Appends and writes of state find their session by its id, whatever is planned when.

`IS NOT DISTINCT FROM` is `=` that no index is used for. A plan that was made while the
tables were empty took the index that begins with the project for as good as that of the
id, and read all sessions of the project for each append until they were analysed.
"""

from importlib import import_module

from django.db import migrations

append = import_module("sessions_app.migrations.0003_append_events").FORWARD
write = import_module("sessions_app.migrations.0004_write_state").FORWARD
BY_PROJECT = "s.id = p_session AND s.project_id = p_project"
BY_ID = "s.id = p_session AND s.project_id IS NOT DISTINCT FROM p_project"
BEFORE = (append + write).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0015_stored_bytes")]

    operations = [migrations.RunSQL(BEFORE.replace(BY_PROJECT, BY_ID), BEFORE)]
