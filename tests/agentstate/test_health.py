from django.test import Client


def test_healthz_says_ok():
    assert Client().get("/healthz").json() == {"status": "ok"}


def test_home_leads_to_the_documentation():
    assert b'href="/api/v1/docs"' in Client().get("/").content
