"""Artifacts as tests use them: over the API, and a look into the folder of bytes."""

import hashlib
from pathlib import Path

from django.conf import settings

ARTIFACTS = "/api/v1/artifacts"


def upload(session, data, name="notes.txt", *, media_type="text/plain", **options):
    """Upload; the answer of the call. `options` are those of Api.request."""
    params = {"name": name, **options.pop("params", {})}
    return session.api.request(
        "POST",
        f"{session.url}/artifacts",
        data=data,
        content_type=media_type,
        params=params,
        **options,
    )


def stored(session, data, name="notes.txt", **options):
    answer = upload(session, data, name, **options)
    assert answer.status_code == 201, answer
    return answer.json


def content(api, artifact, **headers):
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.get(f"{ARTIFACTS}/{artifact['id']}/content", headers=sent)


def listed(session, **params):
    answer = session.api.get(f"{session.url}/artifacts", params=params)
    assert answer.status_code == 200, answer
    return answer.json["items"]


def delete(api, artifact):
    return api.delete(f"{ARTIFACTS}/{artifact['id']}")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def folder(project):
    return Path(settings.STORAGES["artifacts"]["OPTIONS"]["location"]) / str(project.id)


def objects(project):
    """Every file that the folder holds of a project, parts of uploads included."""
    return sorted(p for p in folder(project).rglob("*") if p.is_file())
