"""The cases of the area "recall"."""

import numpy as np
import pytest

from memory_app.embedding import embedders
from memory_app.embedding.reembed import embed_missing
from memory_app.models import EmbeddingModel, Fact, FactEmbedding
from memory_app.recall.index import FAR_FUTURE, Row, SubjectIndex
from memory_app.recall.ranking import Filters, rank
from memory_app.recall.tokens import fact_terms, query_terms
from memory_app.recall.wide import nearest
from memory_app.recall.words import Scope
from tests.memory_app.calls import facts, recall, remember, texts


class StubEmbedder:
    """Vectors of any size, made of the text's bytes; counts what it is asked."""

    is_local = True

    def __init__(self, name):
        self.size = int(name)

    def embed(self, texts):
        rows = []
        for text in texts:
            seed = sum(text.encode()) + len(text)
            rows.append(np.random.default_rng(seed).normal(size=self.size))
        return embedders.unit(rows)


@pytest.fixture
def use_embedder(settings, monkeypatch):
    """use_embedder("stub:48") makes it the configured one."""
    monkeypatch.setitem(embedders.KINDS, "stub", StubEmbedder)
    embedders.embedder_of.cache_clear()

    def use(setting):
        settings.EMBEDDER = setting

    yield use
    embedders.embedder_of.cache_clear()


def test_rc_01_only_the_subject_that_is_named(api, make_key):
    remember(api, "My dentist is in Bergen", subject="u-100")
    remember(api, "My dentist is in Lima", subject="u-200")
    for mode in ("hybrid", "text", "vector"):
        found = recall(api, "dentist", limit=10, mode=mode)
        assert texts(found) == ["My dentist is in Bergen"]
    path = "/api/v1/memory/recall"
    nobody = api.get(path, params={"q": "dentist"})
    assert nobody.status_code == 422
    assert nobody.json["errors"][0]["path"] == "subject"
    for params in ({"user_id": "u-100"}, {"filters.user_id": "u-100"}):
        assert api.get(path, params={"q": "dentist"} | params).status_code == 422
    api.key = make_key(["memory:read"], subject="u-200")
    assert texts(recall(api, "dentist", subject="u-200")) == ["My dentist is in Lima"]
    bound = api.get(path, params={"q": "dentist"})
    assert texts(bound.json["items"]) == ["My dentist is in Lima"]
    for call in ("memory/recall", "memory/search", "memory"):
        other = api.get(f"/api/v1/{call}", params={"subject": "u-100"})
        assert other.status_code == 403
    search = api.get("/api/v1/memory/search", params={"q": "dentist"})
    assert texts(search.json["items"]) == ["My dentist is in Lima"]


def test_rc_02_every_mode_passes_the_same_filter(api, other_api):
    remember(api, "Dana collects stamps", subject="u-100")
    remember(api, "Dana plays chess", subject="u-200")
    for mode in ("hybrid", "text", "vector"):
        found = {
            subject: texts(recall(api, "Dana hobby", subject=subject, mode=mode))
            for subject in ("u-100", "u-200", "u-900")
        }
        assert found == {
            "u-100": ["Dana collects stamps"],
            "u-200": ["Dana plays chess"],
            "u-900": [],
        }
        assert recall(other_api, "Dana hobby", mode=mode) == []


def test_rc_04_a_small_subject_beside_a_big_one(api, project):
    remember_many(api, "big", [f"Filler fact {n} about invoices" for n in range(500)])
    few = [f"Small fact {n}" for n in range(30)]
    remember_many(api, "u-100", few)
    found = recall(api, "invoices", limit=10)
    assert len(found) == 10
    exact = recall(api, "invoices", limit=30)
    assert [h["id"] for h in exact][:10] == [h["id"] for h in found]
    remember_many(api, "u-3", few[:3])
    assert len(recall(api, "invoices", subject="u-3", limit=10)) == 3


def remember_many(api, subject, given):
    answer = api.post(
        "/api/v1/memory", {"subject": subject, "facts": [{"fact": t} for t in given]}
    )
    assert answer.status_code == 201, answer


def test_rc_04_through_the_vector_index(api, project):
    """The database's own search: an approximate index, filters, and none starved."""
    remember_many(api, "big", [f"Filler {n} on invoices" for n in range(400)])
    remember_many(api, "u-100", [f"Small fact {n}" for n in range(30)])
    vector = embedders.embed_texts(embedders.PACKAGED_MODEL, ["invoices"])[0]
    scope = Scope("m.subject = %s AND m.status = 'active'", ["u-100"])

    def ids(exact):
        found = nearest(
            project.id,
            scope,
            "u-100",
            vector,
            embedders.PACKAGED_MODEL,
            10,
            exact=exact,
        )
        return [each.fact.id for each in sorted(found, key=lambda e: -e.similarity)]

    assert len(ids(False)) == 10
    assert ids(False) == ids(True)


def test_project_wide_search_finds_across_subjects(api, other_api):
    remember(api, "Prefers invoices as PDF", subject="u-1")
    remember(api, "Wants invoices on paper", subject="u-2")
    remember(api, "Has a dog", subject="u-3")
    remember(other_api, "Theirs: invoices by fax")
    for mode in ("hybrid", "text"):
        answer = api.get(
            "/api/v1/memory/search", params={"q": "invoices", "limit": 2, "mode": mode}
        )
        assert {h["subject"] for h in answer.json["items"]} == {"u-1", "u-2"}
        assert answer.json["items"][0]["why"]["terms"] == ["invoic"]


def test_rc_05_a_wrong_size_is_told_and_not_counted(api, project, use_embedder):
    use_embedder("stub:48")
    remember(api, "Likes tea")
    EmbeddingModel.objects.filter(project_id=project.id).update(dimensions=64)
    from memory_app.embedding import vectors

    vectors.forget_dimensions()
    fact = remember(api, "Likes coffee")
    assert "48" in fact["embedding"] and "64" in fact["embedding"]
    assert facts(api)[0]["embedding"] == fact["embedding"]
    report = embed_missing(project.id)
    assert report.done == 0 and report.failed == 1
    assert not FactEmbedding.objects.filter(memory_id=fact["id"]).exists()
    answer = api.get(
        "/api/v1/memory/recall", params={"subject": "u-100", "q": "coffee"}
    )
    assert answer.json["items"][0]["fact"] == "Likes coffee"
    assert "1 facts have no vector" in answer.json["degraded"]
    assert not api.get("/readyz").json["checks"]["embeddings"].startswith("ok")


def test_rc_06_a_new_model_serves_when_it_has_all(api, project, use_embedder):
    use_embedder("stub:48")
    for n in range(20):
        remember(api, f"fact {n}")

    def model():
        answer = api.get("/api/v1/memory/recall", params={"subject": "u-100", "q": "x"})
        assert len(answer.json["items"]) == 20
        return answer.json["model"]

    assert model() == "stub:48"
    use_embedder("stub:96")
    assert model() == "stub:48"

    class Killed(BaseException):
        pass

    from memory_app.embedding import reembed

    embed, calls = reembed.embed_facts, []

    def dies_half_way(model, batch):
        if calls:
            raise Killed
        calls.append(batch)
        return embed(model, batch)

    reembed.embed_facts = dies_half_way
    try:
        with pytest.raises(Killed):
            embed_missing(project.id, batch_size=10)
    finally:
        reembed.embed_facts = embed
    assert model() == "stub:48", "half of the vectors is not enough to serve"
    vectors = FactEmbedding.objects.filter(project_id=project.id)
    assert vectors.filter(model="stub:48").count() == 20
    assert embed_missing(project.id).done == 10
    assert model() == "stub:96"
    assert list(vectors.values_list("model", flat=True).distinct()) == ["stub:96"]


def test_rc_08_every_match_in_a_script_without_spaces(api):
    given = [
        "周末不要打电话",
        "他周末在乡下",
        "周末的快递请放门口",
        " 周末 9 点",
        "weekend: 周末",
    ]
    for text in given:
        remember(api, text)
    found = recall(api, "周末", limit=20, mode="text")
    assert sorted(texts(found)) == sorted(given)


@pytest.mark.parametrize("query", ["gateway", "网关", "gateway 备份 重启", "GATEWAY"])
def test_rc_09_latin_beside_cjk(api, query):
    remember(api, "重启gateway网关前先备份")
    remember(api, "Likes tea")
    assert texts(recall(api, query, mode="text")) == ["重启gateway网关前先备份"]
    assert recall(api, query)[0]["fact"] == "重启gateway网关前先备份"


@pytest.mark.parametrize(
    "query, expected",
    [
        ("100%", ["discount is 100% today"]),
        ("file_name", ["file_name.txt"]),
        ("%", ["discount is 100% today"]),
        ("_", ["file_name.txt"]),
        ("\\", []),
        ("*", []),
        ("'; DROP TABLE agent_memory; --", []),
    ],
)
def test_rc_10_symbols_are_looked_for_to_the_letter(api, query, expected):
    for text in (
        "discount is 100% today",
        "discount is 1000 today",
        "file_name.txt",
        "fileXname.txt",
    ):
        remember(api, text)
    assert texts(recall(api, query, mode="text")) == expected
    assert len(recall(api, query)) == 4


def test_rc_12_what_is_past_takes_no_place(api):
    for n in range(60):
        remember(api, f"The plan is number {n}", key="plan")
    for n in range(9):
        remember(api, f"Something else entirely: {n}")
    found = recall(api, "which number is the plan?", limit=10)
    assert len(found) == 10
    assert {f["status"] for f in found} == {"active"}
    assert found[0]["fact"] == "The plan is number 59"
    vector = recall(api, "which number is the plan?", limit=10, mode="vector")
    assert len(vector) == 10


@pytest.mark.parametrize(
    "fact, query",
    [
        ("彼は寿司が大好きです", "寿司"),
        ("يحب القهوة بدون سكر", "قهوة"),
        ("Любит чай с лимоном", "ЧАЙ"),
        ("Mag Äpfel und Birnen", "apfel"),
        ("나는 커피를 좋아한다", "커피"),
        ("ชอบดื่มกาแฟเย็น", "กาแฟ"),
        ("Reacts with 🎉 to good news", "🎉"),
        ("नमस्ते कहना पसंद है", "नमस्ते"),
        ("Writes C++ at work", "c++"),
        ("Mail goes to dana@example.com", "dana@example.com"),
    ],
)
def test_any_language_is_found(api, fact, query):
    remember(api, "Something else altogether")
    remember(api, fact)
    assert texts(recall(api, query, mode="text")) == [fact]
    assert recall(api, query)[0]["fact"] == fact


def test_pins_and_recency_without_a_query(api):
    old = remember(api, "old", pinned=True)
    for n in range(3):
        remember(api, f"new {n}")
    assert texts(recall(api, limit=3)) == ["old", "new 2", "new 1"]
    assert old["pinned"] is True


def test_filters_by_kind_and_confidence(api):
    remember(api, "Likes tea", kind="preference", confidence=0.9)
    remember(api, "Likes tea very much indeed", kind="other", confidence=0.2)
    assert texts(recall(api, "tea", kind="preference")) == ["Likes tea"]
    assert texts(recall(api, "tea", min_confidence=0.5)) == ["Likes tea"]


def test_a_neighbour_and_a_session_lift_a_fact(api):
    """What answers a question is found by the question before it."""
    say = [
        "Ann: Which colour shall we paint the kitchen?",
        "Bob: The pale one, like the sea.",
        "Ann: Good, I will buy it tomorrow.",
    ]
    other = [f"Carl: Something of no interest, number {n}" for n in range(20)]
    for session, lines in (("kitchen", say), ("other", other)):
        body = {
            "subject": "u-100",
            "source": {"session": session},
            "facts": [{"fact": line} for line in lines],
        }
        assert api.post("/api/v1/memory", body).status_code == 201
    found = recall(api, "colour of the kitchen", limit=3)
    assert set(texts(found)) == set(say)
    assert "stands beside" in found[1]["why"]["summary"]


def test_a_changed_fact_is_ranked_as_it_is_now(api):
    fact = remember(api, "Likes tea")
    assert recall(api, "tea", mode="text")
    api.patch(
        f"/api/v1/memory/{fact['id']}",
        {"fact": "Likes coffee", "expected_version": 1},
    )
    assert recall(api, "tea", mode="text") == []
    assert texts(recall(api, "coffee", mode="text")) == ["Likes coffee"]


def test_another_process_sees_it_at_once(api, server, make_key):
    import httpx

    headers = {"Authorization": f"Bearer {api.key}"}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=60) as client:

        def ask():
            params = {"subject": "u-100", "q": "invoices"}
            items = client.get("/api/v1/memory/recall", params=params).json()["items"]
            return texts(items)

        assert ask() == []
        fact = remember(api, "Prefers invoices as PDF")
        assert ask() == ["Prefers invoices as PDF"]
        api.post(f"/api/v1/memory/{fact['id']}/forget", {})
        assert ask() == []


def test_scores_are_the_formula_s(api):
    """BM25 by hand for two documents, against the index."""
    index = SubjectIndex(4)
    index.put(
        Row(
            id=n,
            terms=fact_terms(text),
            speaker="",
            vector=None,
            status="active",
            kind="other",
            pinned=False,
            confidence=1,
            valid_from=0,
            valid_to=FAR_FUTURE,
            expires=FAR_FUTURE,
            created=0,
            session="",
            place=0,
        )
        for n, text in enumerate(["tea tea cake", "tea milk bread butter jam"])
    )
    scores = index.bm25(query_terms("cake"), index.alive)
    inverse = np.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    damping = 1.2 * (1 - 0.5 + 0.5 * 3 / 4)
    assert scores[0] == pytest.approx(inverse * 2.2 / (1 + damping), rel=1e-5)
    assert scores[1] == 0


def test_the_index_changes_as_the_rows_do():
    """A model-based check: after any puts and drops it scores as one made anew."""
    rng = np.random.default_rng(7)
    words = ["tea", "cake", "milk", "jam", "salt"]
    index, rows = SubjectIndex(4), {}
    for step in range(400):
        id_ = int(rng.integers(40))
        if rng.random() < 0.3 and id_ in rows:
            index.drop(id_)
            del rows[id_]
        else:
            rows[id_] = _row(id_, rng.choice(words, size=4).tolist(), step)
            index.put([rows[id_]])
        if step % 50 == 49:
            fresh = SubjectIndex(4)
            fresh.put(rows.values())
            found = [_ranked(i, "tea jam") for i in (index, fresh)]
            assert found[0] == found[1]


def _row(id_, terms, at):
    return Row(
        id=id_,
        terms=terms,
        speaker="",
        vector=np.eye(4, dtype=np.float32)[id_ % 4],
        status="active",
        kind="other",
        pinned=False,
        confidence=1,
        valid_from=0,
        valid_to=FAR_FUTURE,
        expires=FAR_FUTURE,
        created=at,
        session=f"s{id_ % 3}",
        place=id_,
    )


def _ranked(index, text):
    vector = np.ones(4, dtype=np.float32) / 2
    found = rank(index, text, vector, Filters(at=1e9), 10)
    return [(index.ids[r.row], round(r.score, 4)) for r in found]


def test_a_subject_too_large_for_memory_is_searched_in_the_database(
    api, project, monkeypatch
):
    from memory_app.recall import cache

    monkeypatch.setattr(cache, "SUBJECT_FACTS", 5)
    monkeypatch.setattr(cache, "READ", cache.READ.replace("LIMIT 25001", "LIMIT 6"))
    cache.forget_indexes()
    remember_many(api, "u-100", [f"fact {n} on tea" for n in range(20)])
    remember(api, "Prefers invoices as PDF")
    assert recall(api, "invoices")[0]["fact"] == "Prefers invoices as PDF"
    assert len(recall(api, "tea", limit=10)) == 10
    assert Fact.objects.filter(project_id=project.id).count() == 21


def test_a_search_without_words_gives_the_newest_facts(api):
    for fact in ("likes tea", "takes the train"):
        api.post("/api/v1/memory", {"subject": "u-1", "fact": fact})
    found = api.get("/api/v1/memory/search")
    assert found.status_code == 200
    assert [hit["fact"] for hit in found.json["items"]] == [
        "takes the train",
        "likes tea",
    ]
