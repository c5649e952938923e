"""Artifacts by both clients: from files and to files, through lost answers and cuts."""

import hashlib
import io
import os
import threading

import httpx
import pytest

from agentstate_client import AgentStateError, NotFound, Unavailable, ValidationError

DATA = os.urandom(3_000_000)


@pytest.fixture
def artifact(client, session):
    return client.artifacts.upload(session.id, DATA, name="data.bin")


def test_from_a_file_and_to_a_file(client, session, tmp_path):
    source = tmp_path / "report.csv"
    source.write_bytes(DATA)
    stored = client.artifacts.upload(session.id, source, metadata={"made by": "me"})
    assert (stored.name, stored.version, stored.size) == ("report.csv", 1, len(DATA))
    assert stored.media_type == "text/csv"
    assert stored.sha256 == hashlib.sha256(DATA).hexdigest()
    assert stored.metadata == {"made by": "me"}
    target = tmp_path / "down.csv"
    assert client.artifacts.download(stored.id, target) == len(DATA)
    assert target.read_bytes() == DATA
    assert sorted(p.name for p in tmp_path.iterdir()) == ["down.csv", "report.csv"]
    assert client.artifacts.get(stored.id) == stored
    assert client.artifacts.read(stored.id) == DATA


def test_from_an_open_file_and_into_one(client, session):
    source = io.BytesIO(b"before" + DATA)
    source.seek(6)
    stored = client.artifacts.upload(session.id, source, name="a", media_type="x/y")
    assert (stored.size, stored.media_type) == (len(DATA), "x/y")
    assert not source.closed
    into = io.BytesIO(b"head")
    into.seek(4)
    client.artifacts.download(stored.id, into)
    assert into.getvalue() == b"head" + DATA


def test_from_a_pipe(client, session):
    end, begin = os.pipe()

    def write():
        with open(begin, "wb") as pipe:
            pipe.write(DATA)

    writer = threading.Thread(target=write)
    writer.start()
    with open(end, "rb") as pipe:
        stored = client.artifacts.upload(session.id, pipe, name="piped")
    writer.join()
    assert stored.sha256 == hashlib.sha256(DATA).hexdigest()


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.csv", "text/csv"),
        ("a.csv.gz", "application/gzip"),
        ("a.tar.gz", "application/gzip"),
        ("a.tar.bz2", "application/x-bzip2"),
        ("a.tar.xz", "application/x-xz"),
        ("a.unknown", "application/octet-stream"),
    ],
)
def test_a_type_that_is_not_given_is_that_of_the_bytes(
    client, session, name, media_type
):
    assert client.artifacts.upload(session.id, b"x", name=name).media_type == media_type


def test_a_type_of_any_kind_is_kept_or_refused(client, session):
    form = "multipart/form-data; boundary=x"
    stored = client.artifacts.upload(session.id, b"x", name="a", media_type=form)
    assert (stored.media_type, client.artifacts.read(stored.id)) == (form, b"x")
    for media_type in ("a/b\nX: y", "é/b"):
        with pytest.raises(ValidationError) as refused:
            client.artifacts.upload(session.id, b"x", name="a", media_type=media_type)
        assert refused.value.errors[0]["path"] == "media_type"


@pytest.mark.parametrize("option", ["idempotency_key", "lock_token"])
@pytest.mark.parametrize("value", ["a\nb", "é"])
def test_what_no_header_holds_is_no_lost_connection(client, session, option, value):
    with pytest.raises(ValueError, match="printable ASCII"):
        client.artifacts.upload(session.id, b"x", name="a", **{option: value})
    assert client.artifacts.list(session.id).items == []


def test_lists_links_and_deletion(client, session):
    for number in range(3):
        client.artifacts.upload(session.id, b"%d" % number, name="n.txt")
    page = client.artifacts.list(session.id, name="n.txt", limit=2)
    assert [a.version for a in page.items] == [3, 2] and page.next
    assert [a.version for a in client.artifacts.iterate(session.id, limit=2)] == [
        3,
        2,
        1,
    ]
    [first] = client.artifacts.list(session.id, name="n.txt", version=1).items
    assert client.artifacts.read(first.id) == b"0"
    assert len(list(client.artifacts.iterate())) == 3
    link = client.artifacts.link(first.id, expires_s=60)
    assert httpx.get(link.url, timeout=60).content == b"0"
    client.artifacts.delete(first.id)
    with pytest.raises(NotFound):
        client.artifacts.get(first.id)
    with pytest.raises(NotFound):
        client.artifacts.download(first.id, io.BytesIO())


def test_an_upload_whose_answer_is_lost_happens_once(cut_client, proxy, session):
    proxy.lose_answers = 1
    stored = cut_client.artifacts.upload(session.id, DATA, name="once")
    assert proxy.lose_answers == 0
    assert stored.version == 1
    assert len(cut_client.artifacts.list(session.id).items) == 1


def test_a_download_that_is_cut_goes_on(cut_client, proxy, artifact, tmp_path):
    proxy.cut_all()
    proxy.cut_after = [100_000, 1_000_000]
    target = tmp_path / "down"
    assert cut_client.artifacts.download(artifact.id, target) == len(DATA)
    assert proxy.cut_after == []
    assert target.read_bytes() == DATA


def test_a_download_that_fails_leaves_no_file(kind, proxy, key, artifact, tmp_path):
    hasty = kind.client(proxy.base_url, key, max_retries=0)
    proxy.cut_after = [100_000]
    with pytest.raises(Unavailable):
        hasty.artifacts.download(artifact.id, tmp_path / "down")
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused(client, session, tmp_path):
    with pytest.raises(ValueError, match="a name"):
        client.artifacts.upload(session.id, DATA)
    with pytest.raises(TypeError, match="binary mode"):
        client.artifacts.upload(session.id, io.StringIO("text"), name="a")
    with pytest.raises(ValidationError) as refused:
        client.artifacts.upload(session.id, DATA, name="a/b")
    assert refused.value.errors[0]["path"] == "name"
    with pytest.raises(FileNotFoundError):
        client.artifacts.upload(session.id, tmp_path / "nothing")
    client.sessions.close(session.id)
    with pytest.raises(AgentStateError) as closed:
        client.artifacts.upload(session.id, DATA, name="a")
    assert closed.value.code == "session_closed"
