"""Artifacts over the API: up, listed, down in parts, deleted, and who may."""

import pytest
from django.db import connection, transaction

from sessions_app.artifacts.blobs import remove_strays
from sessions_app.models import Artifact, Blob, StrayObject
from sessions_app.projection import differences_of
from tests.artifacts.calls import (
    ARTIFACTS,
    content,
    delete,
    listed,
    objects,
    sha256,
    stored,
    upload,
)
from tests.factories import error_of, key_header, make_session, plan_of
from tests.fixtures import Api, issue_key
from tests.queries import CallQueries

DATA = bytes(range(256)) * 1000  # several parts of a download


def replay_holds(project, *sessions):
    found = [d for s in sessions for d in differences_of(project.id, s.id)]
    assert [str(difference) for difference in found] == []


def test_what_goes_up_comes_down(api, session, project):
    sent = {"metadata": '{"tool": "plot", "n": 12345678901234567890}'}
    answer = upload(session, DATA, "plot.png", media_type="image/png", params=sent)
    assert answer.status_code == 201, answer
    artifact = answer.json
    assert artifact["session"] == session.id and artifact["seq"] == 1
    assert (artifact["name"], artifact["version"]) == ("plot.png", 1)
    assert (artifact["size"], artifact["sha256"]) == (len(DATA), sha256(DATA))
    assert artifact["metadata"] == {"tool": "plot", "n": 12345678901234567890}
    assert api.get(f"{ARTIFACTS}/{artifact['id']}").json == artifact
    assert listed(session) == [artifact]
    down = content(api, artifact)
    assert down.content == DATA
    assert down.headers["Content-Length"] == str(len(DATA))
    assert down.headers["ETag"] == f'"{sha256(DATA)}"'
    assert down.headers["Content-Type"] == "image/png"
    [event] = session.events()
    assert event["type"] == "artifact.created"
    assert event["payload"]["artifact"] == artifact["id"]
    assert event["payload"]["sha256"] == sha256(DATA)
    assert not StrayObject.objects.filter(project_id=project.id).exists()
    replay_holds(project, session)


def test_nothing_is_something(api, session):
    artifact = stored(session, b"", "empty")
    assert artifact["size"] == 0
    assert content(api, artifact).content == b""
    assert content(api, artifact, Range="bytes=0-0").status_code == 416


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=255990-", 255990, 255999),
        ("bytes=255990-999999", 255990, 255999),
        ("bytes=-5", 255995, 255999),
        ("bytes=-999999", 0, 255999),
    ],
)
def test_one_range(api, session, asked, first, last):
    answer = content(api, stored(session, DATA), Range=asked)
    assert answer.status_code == 206
    assert answer.content == DATA[first : last + 1]
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{len(DATA)}"
    assert answer.headers["Content-Length"] == str(last - first + 1)


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,5-9", "lines=1-2", "bytes=-", "bytes=9-1", "nonsense"]
)
def test_what_is_no_single_range_is_the_whole(api, session, asked):
    answer = content(api, stored(session, DATA), Range=asked)
    assert (answer.status_code, len(answer.content)) == (200, len(DATA))


@pytest.mark.parametrize("asked", ["bytes=256000-", "bytes=999999-9999999", "bytes=-0"])
def test_a_range_beyond_the_end(api, session, asked):
    answer = content(api, stored(session, DATA), Range=asked)
    assert (answer.status_code, answer.json["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["Content-Range"] == f"bytes */{len(DATA)}"


def test_conditions(api, session):
    artifact = stored(session, DATA)
    tag = f'"{artifact["sha256"]}"'
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        same = content(api, artifact, If_None_Match=given)
        assert (same.status_code, same.content) == (304, b"")
    assert content(api, artifact, If_None_Match='"other"').status_code == 200
    again = content(api, artifact, Range="bytes=0-9", If_Range=tag)
    assert again.status_code == 206
    changed = content(api, artifact, Range="bytes=0-9", If_Range='"other"')
    assert changed.status_code == 200


def test_head_says_all_but_the_bytes(server, session, project):
    import httpx

    artifact = stored(session, DATA)
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    url = f"{server.base_url}{ARTIFACTS}/{artifact['id']}/content"
    head = httpx.head(url, headers=headers, timeout=60)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(DATA))
    whole = httpx.get(url, headers=headers, timeout=60)
    assert whole.content == DATA
    part = httpx.get(url, headers=headers | {"Range": "bytes=5-9"}, timeout=60)
    assert (part.status_code, part.content) == (206, DATA[5:10])


def test_a_form_with_one_file(api, session):
    def form(*names):
        parts = [
            f'--X\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            f"Content-Type: text/csv\r\n\r\na,b\r\n"
            for name in names
        ]
        return api.request(
            "POST",
            f"{session.url}/artifacts",
            data="".join([*parts, "--X--\r\n"]).encode(),
            content_type="multipart/form-data; boundary=X",
        )

    answer = form("table.csv")
    assert answer.status_code == 201, answer
    assert (answer.json["name"], answer.json["media_type"]) == ("table.csv", "text/csv")
    assert content(api, answer.json).content == b"a,b"
    assert error_of(form())[0] == 422
    assert error_of(form("one", "two")) == (422, "invalid", "file")


def test_the_name_may_stand_in_a_header(api, session):
    named = {"Content-Disposition": 'attachment; filename="r.md"; size=1'}
    answer = api.request(
        "POST", f"{session.url}/artifacts", data=b"x", headers=named, content_type=""
    )
    assert answer.status_code == 201, answer
    assert answer.json["name"] == "r.md"
    assert answer.json["media_type"] == "application/octet-stream"
    nameless = api.request("POST", f"{session.url}/artifacts", data=b"x")
    assert error_of(nameless) == (422, "invalid", "name")


@pytest.mark.parametrize(
    "claimed",
    [
        "foo''a",
        "idna''xn--a",
        "utf-7''%2B2AA-",
        "unicode_escape''%5Cud800",
        "x" * 11000,
    ],
)
def test_a_name_in_no_encoding_there_is_is_refused(api, session, claimed):
    named = {"Content-Disposition": f"attachment; filename*={claimed}"}
    answer = api.request("POST", f"{session.url}/artifacts", data=b"x", headers=named)
    assert error_of(answer) == (422, "invalid", "name")


@pytest.mark.parametrize("parts", [(150, "; filename=a"), (1500, "")])
def test_a_form_of_too_many_parts_is_refused(api, session, parts):
    count, more = parts
    part = f'--X\r\nContent-Disposition: form-data; name="a"{more}\r\n\r\nx\r\n'
    answer = api.request(
        "POST",
        f"{session.url}/artifacts",
        data=(part * count + "--X--\r\n").encode(),
        content_type="multipart/form-data; boundary=X",
    )
    assert error_of(answer) == (422, "invalid", "file")


@pytest.mark.parametrize(
    ("metadata", "code", "path"),
    [
        ("{", "malformed_json", "metadata"),
        ('{"a": NaN}', "non_finite", "metadata.a"),
        ("[NaN]", "non_finite", "metadata[0]"),
        ('{"a": {"b": "\\ud800"}}', "lone_surrogate", "metadata.a.b"),
    ],
)
def test_what_is_wrong_in_metadata_is_told_with_its_path(session, metadata, code, path):
    answer = upload(session, b"x", params={"metadata": metadata})
    assert error_of(answer) == (422, "invalid", path)
    assert answer.json["errors"][0]["code"] == code
    assert listed(session) == []


@pytest.mark.parametrize("space", ["\n", "\r\n", "\x1c", "\x0b", "\u2003", "\x85"])
def test_a_media_type_is_one_line_of_printable_characters(session, space):
    for media_type in (f"text/plain{space};a=b", f"text/plain;{space}a=b"):
        answer = upload(session, b"x", params={"media_type": media_type})
        assert error_of(answer) == (422, "invalid", "media_type")


@pytest.mark.parametrize("media_type", ["text/plain;", "text/plain; charset=utf-8"])
def test_a_media_type_comes_back_as_it_was_sent(api, session, media_type):
    artifact = stored(session, b"x", params={"media_type": media_type})
    assert artifact["media_type"] == media_type
    assert content(api, artifact).headers["Content-Type"] == media_type


def test_a_media_type_that_was_let_in_once_keeps_no_file_from_its_readers(api, session):
    artifact = stored(session, b"x")
    rows = Artifact.objects.filter(id=artifact["id"])
    with transaction.atomic():
        rows.update(media_type="text/plain\n;a=b")
        answer = content(api, artifact)
        transaction.set_rollback(True)
    assert (answer.status_code, answer.content) == (200, b"x")
    assert answer.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"media_type": "nonsense"}, "media_type"),
        ({"media_type": "text/html\r\nX: y"}, "media_type"),
        ({"metadata": "[1]"}, "metadata"),
        ({"sha256": "abc"}, "sha256"),
        ({"nmae": "x"}, "nmae"),
    ],
)
def test_what_is_refused_leaves_nothing(session, project, params, path):
    refused = upload(session, b"x", params=params)
    assert (refused.status_code, error_of(refused)[2]) == (422, path)
    assert objects(project) == []
    assert session.get()["last_seq"] == 0


def test_bytes_that_are_not_those_announced(session, project):
    assert upload(session, b"x", params={"sha256": sha256(b"x")}).status_code == 201
    refused = upload(session, b"y", params={"sha256": sha256(b"x")})
    assert error_of(refused)[:2] == (422, "sha256_mismatch")
    assert len(objects(project)) == 1


def test_a_file_has_a_limit(session, project, settings):
    settings.ARTIFACT_MAX_BYTES = 1000
    assert upload(session, b"x" * 1000).status_code == 201
    refused = upload(session, b"y" * 1001)
    assert error_of(refused)[:2] == (413, "artifact_too_large")
    assert refused.json["limit_bytes"] == 1000
    assert len(objects(project)) == 1


def test_a_closed_or_locked_session_takes_none(api, session, project):
    lock = api.post(f"{session.url}/lock", {}).json["token"]
    assert error_of(upload(session, b"x"))[:2] == (423, "session_locked")
    held = upload(session, b"x", headers={"X-Lock-Token": lock})
    assert held.status_code == 201, held
    assert delete(api, held.json).status_code == 423
    api.request("DELETE", f"{session.url}/lock", headers={"X-Lock-Token": lock})
    api.post(f"{session.url}/close", {})
    assert error_of(upload(session, b"y"))[:2] == (409, "session_closed")
    assert len(objects(project)) == 1
    assert delete(api, held.json).status_code == 204
    assert objects(project) == []


def test_an_upload_can_be_retried(api, session, project):
    key = key_header()
    first = upload(session, DATA, headers=key)
    again = upload(session, DATA, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json == first.json
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(listed(session)) == len(objects(project)) == 1
    other = upload(session, DATA + b"!", headers=key)
    assert error_of(other)[:2] == (422, "idempotency_key_reused")
    other = upload(session, DATA, "another.txt", headers=key)
    assert error_of(other)[:2] == (422, "idempotency_key_reused")
    assert len(objects(project)) == 1


def test_a_refused_upload_may_be_tried_again(api, session):
    key = key_header()
    api.post(f"{session.url}/close", {})
    assert upload(session, DATA, headers=key).status_code == 409
    api.post(f"{session.url}/reopen", {})
    assert upload(session, DATA, headers=key).status_code == 201


def test_another_project_sees_nothing(api, other_api, session, project, other_project):
    artifact = stored(session, DATA)
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/content"),
        ("GET", "/link"),
    ):
        answer = other_api.request(method, f"{ARTIFACTS}/{artifact['id']}{path}")
        assert answer.status_code == 404, answer
    assert other_api.get(f"{session.url}/artifacts").status_code == 404
    assert other_api.get(ARTIFACTS).json["items"] == []
    # Equal bytes are not shared: whether another tenant has them shows nowhere.
    theirs = make_session(other_api)
    stored(theirs, DATA)
    assert len(objects(project)) == len(objects(other_project)) == 1
    assert delete(api, artifact).status_code == 204
    assert objects(project) == [] and len(objects(other_project)) == 1


def test_a_bound_key_sees_its_own(api, session, project):
    mine = make_session(api, subject="u-1")
    other = stored(session, b"other")
    own = stored(mine, b"own")
    for bound in ({"subject": "u-1"}, {"session_id": mine.id}):
        key = Api(issue_key(project, **bound))
        assert [a["id"] for a in key.get(ARTIFACTS).json["items"]] == [own["id"]]
        assert content(key, own).content == b"own"
        for path in ("", "/content", "/link"):
            assert key.get(f"{ARTIFACTS}/{other['id']}{path}").status_code == 404
        assert delete(key, other).status_code == 404
        assert key.get(f"{session.url}/artifacts").status_code == 404
    assert content(api, other).content == b"other"


@pytest.mark.parametrize("scope", ["sessions:read", "runs:read"])
def test_scopes(api, session, project, scope):
    artifact = stored(session, b"x")
    key = Api(issue_key(project, [scope]))
    may_read = 200 if scope == "sessions:read" else 403
    assert content(key, artifact).status_code == may_read
    assert key.get(f"{session.url}/artifacts").status_code == may_read
    assert delete(key, artifact).status_code == 403
    session.api = key
    assert upload(session, b"y").status_code == 403


def test_lists_go_on_by_cursor(api, session, project):
    made = [stored(session, b"%d" % n, f"{n}.txt")["id"] for n in range(5)]
    for path in (f"{session.url}/artifacts", ARTIFACTS):
        found, cursor = [], None
        while True:
            params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            with CallQueries() as queries:
                answer = api.get(path, params=params).json
            assert len(queries) <= 5, [q["sql"] for q in queries]
            found += [item["id"] for item in answer["items"]]
            if not (cursor := answer["next"]):
                break
        assert found == made[::-1]


def test_lists_use_their_indexes(session):
    from sessions_app.models import Session

    row = Session.objects.get(id=session.id)
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        try:
            whole = Artifact.objects.in_project(row.project_id).live().order_by("-id")
            assert "artifact_project_id" in plan_of(whole[:10])
            own = Artifact.objects.seen_in(row).live().order_by("-seq")
            assert "artifact_seq_uniq" in plan_of(own[:10])
        finally:
            cursor.execute("RESET enable_seqscan")


def test_a_fork_reads_what_it_began_with(api, session, project):
    early = stored(session, b"early", "a.txt")
    session.append("between")
    fork = session.fork(at_seq=2)
    late = stored(session, b"late", "b.txt")
    own = stored(fork, b"own", "a.txt")
    assert own["version"] == 2
    assert [a["id"] for a in listed(fork)] == [own["id"], early["id"]]
    assert [a["id"] for a in listed(session)] == [late["id"], early["id"]]
    bound = Api(issue_key(project, session_id=fork.id))
    assert content(bound, early).content == b"early"
    assert content(bound, late).status_code == 404
    assert delete(bound, early).status_code == 404
    replay_holds(project, session, fork)


def test_a_fork_keeps_them_when_its_parent_is_erased(api, session, project):
    kept = stored(session, b"kept", "a.txt")
    deleted = stored(session, b"deleted", "b.txt")
    fork = session.fork(at_seq=2)
    late = stored(session, b"late", "c.txt")
    assert delete(api, deleted).status_code == 204
    assert api.request("DELETE", session.url).status_code == 204
    assert [a["id"] for a in listed(fork)] == [kept["id"]]
    assert content(api, kept).content == b"kept"
    assert content(api, late).status_code == 404
    assert len(objects(project)) == 1
    replay_holds(project, fork)
    assert api.request("DELETE", fork.url).status_code == 204
    assert objects(project) == []
    assert not Blob.objects.filter(project_id=project.id).exists()
    assert not Artifact.objects.filter(project_id=project.id).exists()


def test_a_deleted_name_goes_on_counting(api, session, project):
    first = stored(session, b"1", "a.txt")
    assert delete(api, first).status_code == 204
    assert listed(session) == []
    assert stored(session, b"2", "a.txt")["version"] == 2
    assert [e["type"] for e in session.events()] == [
        "artifact.created",
        "artifact.deleted",
        "artifact.created",
    ]
    replay_holds(project, session)


def test_a_client_cannot_tell_of_artifacts_itself(session):
    refused = session.append({"type": "artifact.created", "payload": {}})
    assert error_of(refused)[1:] == ("reserved_type", "events[0].type") or (
        refused.status_code == 422
    )


def test_verify_replay_sees_a_wrong_count(session, project):
    from django.db import transaction

    artifact = stored(session, b"x")
    with transaction.atomic():
        Blob.objects.filter(project_id=project.id).update(refs=2)
        Artifact.objects.filter(id=artifact["id"]).update(name="other")
        paths = {
            d.path.rpartition("/")[2] for d in differences_of(project.id, session.id)
        }
        assert paths == {"refs", "name"}
        transaction.set_rollback(True)
    replay_holds(project, session)


def test_what_a_broken_upload_left_is_removed_later(api, session, project, clock):
    import io

    from sessions_app.artifacts.blobs import place
    from sessions_app.artifacts.content import received

    with received(io.BytesIO(b"half"), announced=4) as half:
        place(project.id, half)  # and then the process died
    assert len(objects(project)) == 1
    remove_strays()
    assert len(objects(project)) == 1  # it may still be under way
    clock.advance(seconds=7 * 3600)
    remove_strays()
    assert objects(project) == []
    assert not StrayObject.objects.filter(project_id=project.id).exists()


def test_an_object_that_was_lost_is_stored_again(api, session, project):
    first = stored(session, DATA)
    [path] = objects(project)
    path.unlink()
    gone = content(api, first)
    assert (gone.status_code, gone.json["code"]) == (503, "content_missing")
    again = stored(session, DATA)
    assert content(api, again).content == content(api, first).content == DATA
    assert len(objects(project)) == 1
    replay_holds(project, session)


def test_bytes_that_rotted_are_not_given_out_whole(server, api, session, project):
    import httpx

    artifact = stored(session, DATA * 4)
    [path] = objects(project)
    rotten = bytearray(DATA * 4)
    rotten[-1] ^= 1
    path.write_bytes(bytes(rotten))
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    url = f"{server.base_url}{ARTIFACTS}/{artifact['id']}/content"
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(url, headers=headers, timeout=60)
    path.write_bytes(DATA * 4)
    assert httpx.get(url, headers=headers, timeout=60).content == DATA * 4


def test_links(api, session, clock, anonymous):
    artifact = stored(session, b"<script>", "x.html", media_type="text/html")
    asked = api.get(f"{ARTIFACTS}/{artifact['id']}/link", params={"expires_s": 60})
    assert asked.status_code == 200 and asked.json["direct"] is False
    path = asked.json["url"].removeprefix("http://testserver")
    down = anonymous.get(path)
    assert down.content == b"<script>"
    assert down.headers["Content-Disposition"].startswith("attachment")
    assert "sandbox" in down.headers["Content-Security-Policy"]
    assert anonymous.get(path, headers={"Range": "bytes=0-1"}).content == b"<s"
    assert anonymous.get(path[:-1] + "~").status_code == 403
    assert anonymous.get("/artifacts/nonsense").json["code"] == "link_invalid"
    clock.advance(seconds=61)
    late = anonymous.get(path)
    assert (late.status_code, late.json["code"]) == (403, "link_invalid")
    fresh = api.get(f"{ARTIFACTS}/{artifact['id']}/link").json["url"]
    delete(api, artifact)
    assert anonymous.get(fresh.removeprefix("http://testserver")).status_code == 404
    bad = api.get(f"{ARTIFACTS}/{artifact['id']}/link", params={"expires_s": 0})
    assert bad.status_code in (404, 422)
