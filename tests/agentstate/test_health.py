from django.test import Client


def test_healthz_says_ok():
    assert Client().get("/healthz").json() == {"status": "ok"}


def test_home_leads_to_the_sign_in():
    answer = Client().get("/")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/sign-in/")


def test_readyz_tells_of_each_part():
    answer = Client().get("/readyz")
    assert answer.status_code == 200
    checks = answer.json()["checks"]
    assert (checks["postgres"], checks["redis"], checks["migrations"]) == ("ok",) * 3


def test_without_redis_it_is_degraded(settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = Client().get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert answer.json()["checks"]["redis"] == "unreachable"
