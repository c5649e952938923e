"""Uploads and deletions of the same bytes at the same time, and a disk that is full."""

import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from sessions_app.artifacts.blobs import remove_strays
from sessions_app.models import Artifact, Blob, StrayObject
from sessions_app.projection import differences_of
from tests.artifacts.calls import ARTIFACTS, content, listed, objects
from tests.factories import make_session
from tests.fixtures import issue_key

WRITERS = 4
ROUNDS = 6


def test_the_last_deletion_never_meets_a_new_upload(server, api, project):
    """All write and delete the same bytes: whoever is told 201 can read them."""
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    start = threading.Barrier(WRITERS)
    sessions = [make_session(api) for _ in range(WRITERS)]

    def work(session):
        with httpx.Client(
            base_url=server.base_url, headers=headers, timeout=60
        ) as client:
            start.wait()
            for number in range(ROUNDS):
                stored = client.post(
                    f"{session.url}/artifacts",
                    params={"name": f"{number}.txt"},
                    content=b"the same for all",
                )
                assert stored.status_code == 201, stored.text
                url = f"{ARTIFACTS}/{stored.json()['id']}"
                read = client.get(f"{url}/content")
                assert (read.status_code, read.content) == (200, b"the same for all")
                if number < ROUNDS - 1:
                    assert client.delete(url).status_code == 204

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, sessions))
    remove_strays()
    assert Blob.objects.get(project_id=project.id).refs == WRITERS
    assert len(objects(project)) == 1
    for session in sessions:
        [artifact] = listed(session)
        assert content(api, artifact).content == b"the same for all"
        assert list(differences_of(project.id, session.id)) == []


def test_erasing_and_uploading_the_same_bytes(server, api, project):
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    start = threading.Barrier(WRITERS)
    kept = make_session(api)

    def work(number):
        with httpx.Client(
            base_url=server.base_url, headers=headers, timeout=60
        ) as client:
            start.wait()
            for turn in range(ROUNDS // 2):
                url = kept.url
                if number % 2:
                    made = client.post("/api/v1/sessions", json={}).json()
                    url = f"/api/v1/sessions/{made['id']}"
                for name in ("a", "b"):
                    stored = client.post(
                        f"{url}/artifacts",
                        params={"name": f"{name}{number}-{turn}"},
                        content=f"bytes {name}".encode(),
                    )
                    assert stored.status_code == 201, stored.text
                if number % 2:
                    assert client.delete(url).status_code == 204

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS)))
    remove_strays()
    assert len(objects(project)) == Blob.objects.filter(project_id=project.id).count()
    assert not StrayObject.objects.filter(project_id=project.id).exists()
    live = Artifact.objects.filter(project_id=project.id).live()
    assert live.count() == 2 * (WRITERS // 2) * (ROUNDS // 2)
    assert list(differences_of(project.id, kept.id)) == []


def test_a_disk_that_is_full(server_factory, session, project):
    """The kernel refuses each file beyond a size: what was acknowledged stays."""
    server = server_factory()
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)

    with httpx.Client(base_url=server.base_url, headers=headers, timeout=60) as client:

        def put(size):
            answer = client.post(
                f"{session.url}/artifacts",
                params={"name": "f"},
                content=b"x" * size,
            )
            return answer.status_code, answer.json().get("code")

        assert put(1000) == (201, None)
        limit = (600_000, unlimited[1])
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limit)
        # In the store, and in the folder where a larger body waits.
        assert put(700_000) == (503, "storage_unavailable")
        assert put(5_000_000) == (503, "storage_full")
        assert put(2000) == (201, None)
        large = {"events": [{"type": "a.b", "payload": {"x": "y" * 650_000}}]}
        refused = client.post(f"{session.url}/events", json=large)
        assert refused.status_code == 503
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert put(700_000) == (201, None)
    assert sorted(a["size"] for a in listed(session)) == [1000, 2000, 700_000]
    assert len(objects(project)) == 3
    assert session.get()["last_seq"] == 3
