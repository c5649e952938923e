"""The WSGI application: all HTTP but the live streams."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

application = get_wsgi_application()
