"""The search over a whole project, in the database."""

import pytest
from django.db import connection

from memory_app.embedding.embedders import PACKAGED_MODEL, embed_texts
from memory_app.models import FactEmbedding
from memory_app.recall import wide
from memory_app.recall.search import Query, recall, search
from memory_app.recall.wide import nearest
from memory_app.recall.words import Scope, holders
from tests.memory_app.calls import forget, remember, texts
from tests.memory_app.test_recall import remember_many
from tests.queries import CallQueries


@pytest.fixture
def through_the_index(monkeypatch):
    monkeypatch.setattr(wide, "EXACT_ROWS", 0)


def near(project, text, limit=10, subject=None):
    vector = embed_texts(PACKAGED_MODEL, [text])[0]
    scope = Scope(
        "m.project_id = %s AND m.status = 'active' AND m.status = 'active'",
        [project.id],
    )
    found = nearest(
        project.id, scope, subject, vector, PACKAGED_MODEL, limit, exact=False
    )
    return list(found)


def standing(project):
    """How many rows each vector of the project has in the index."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT vector_key, count(*) FILTER (WHERE stands_for_vector)"
            " FROM agent_memory_embeddings WHERE project_id = %s AND is_current"
            " GROUP BY vector_key",
            [project.id],
        )
        return sorted(count for _, count in cursor.fetchall())


def test_what_all_say_alike_does_not_hide_the_rest(api, project, through_the_index):
    """Equal points are neighbours of one another alone: a search must not be caught."""
    for n in range(60):
        remember(api, "Prefers window seats on trains", subject=f"u-{n}")
    remember_many(api, "other", [f"Keeps {n} bees in the garden" for n in range(20)])
    assert standing(project) == [1] * 21
    found = search(project.id, Query("who keeps bees?", 20, "vector")).hits
    assert all("bees" in hit.fact.fact for hit in found)
    assert len(found) == 20
    alike = search(project.id, Query("window seats", 30, "vector")).hits
    assert {hit.fact.fact for hit in alike} == {"Prefers window seats on trains"}
    assert len({hit.fact.subject for hit in alike}) == 30


def test_one_takes_the_place_of_one_that_goes(api, project, through_the_index):
    made = [remember(api, "Likes tea", subject=f"u-{n}") for n in range(3)]
    for gone in made[:2]:
        forget(api, gone["id"])
        assert standing(project) == [1]
    assert [str(id_) for id_ in near(project, "tea")] == [made[2]["id"]]
    # Corrected, superseded, rejected: it stands for its new vector, or for none.
    changed = api.patch(
        f"/api/v1/memory/{made[2]['id']}",
        {"fact": "Likes coffee", "expected_version": 1},
    )
    assert changed.status_code == 200
    assert standing(project) == [1]
    again = remember(api, "Likes coffee", subject="u-9")
    rejected = api.post(
        f"/api/v1/memory/{made[2]['id']}/reject", {"expected_version": 2}
    )
    assert rejected.status_code == 200
    assert standing(project) == [1]
    assert [str(id_) for id_ in near(project, "coffee")] == [again["id"]]


def test_a_filter_starves_nobody_who_says_the_same(api, project, through_the_index):
    """The one that stands for a vector may be another's: theirs is found through it."""
    for n in range(30):
        remember(api, "Likes tea", subject=f"u-{n}")
    mine = remember(api, "Likes tea", subject="mine")
    assert [str(id_) for id_ in near(project, "tea", 1, "mine")] == [mine["id"]]
    scoped = search(project.id, Query("tea", 10, "vector"), subject="mine").hits
    assert [str(hit.fact.id) for hit in scoped] == [mine["id"]]


def test_other_projects_neither_stand_in_nor_show(
    api, other_api, project, through_the_index
):
    theirs = remember(other_api, "Likes tea")
    mine = remember(api, "Likes tea")
    assert standing(project) == [1]
    assert [str(id_) for id_ in near(project, "tea")] == [mine["id"]]
    hits = search(project.id, Query("tea")).hits
    assert theirs["id"] not in [str(hit.fact.id) for hit in hits]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_facts_beside_half_a_million(api, project):
    """Each subject gets its limit, the small one and the big one, in every mode."""
    from bench.facts import Texts, load

    load(project.id, 500_000, Texts(5), lambda number: "big")
    try:
        few = ["Likes tea", "Has a dog", "Lives in Oslo", "Plays chess", "Is a nurse"]
        remember_many(api, "small", few)
        for mode in ("hybrid", "vector"):
            found = recall(project.id, "small", Query("invoices on Monday", 5, mode))
            assert sorted(hit.fact.fact for hit in found.hits) == sorted(few)
            found = search(
                project.id, Query("invoices on Monday", 5, mode), subject="small"
            )
            assert sorted(hit.fact.fact for hit in found.hits) == sorted(few)
            big = recall(project.id, "big", Query("invoices on Monday", 100, mode))
            assert len(big.hits) == 100
        assert len(recall(project.id, "small", Query("", 5)).hits) == 5
    finally:
        with connection.cursor() as cursor:
            for table in ("agent_memory_embeddings", "agent_memory"):
                cursor.execute(
                    f"DELETE FROM {table} WHERE project_id = %s", [project.id]
                )


def test_common_words_are_looked_up_together(api, project, monkeypatch):
    """Where every word is common, what holds several of them is found all the same."""
    from memory_app.recall import words

    monkeypatch.setattr(words, "TAKEN", 5)
    filler = [f"Green boxes, number {n}" for n in range(30)]
    filler += [f"Heavy doors, number {n}" for n in range(30)]
    remember_many(api, "u-1", [*filler, "Heavy green curtains"])
    scope = Scope("m.project_id = %s AND m.status = 'active'", [project.id])
    found = holders(project.id, scope, {"heavi": 1.0, "green": 1.0})
    held = [fact.terms.split() for fact in found.facts.values()]
    assert ["heavi", "green", "curtain"] in held
    best = search(project.id, Query("heavy green", 3, "text")).hits
    assert best[0].fact.fact == "Heavy green curtains"


def test_a_wide_search_ranks_as_a_subject_is_recalled(api, project):
    given = [
        "Prefers invoices as PDF",
        "Sends invoices to the accountant every Monday",
        "Has a cat called Invoice",
        "Likes tea with lemon",
        "The PDF reader is broken",
    ]
    remember_many(api, "u-1", given)
    wanted = [
        h.fact.fact for h in recall(project.id, "u-1", Query("pdf invoices")).hits
    ]
    found = [h.fact.fact for h in search(project.id, Query("pdf invoices")).hits]
    assert found == wanted
    assert texts(api.get("/api/v1/memory/search", params={"q": "pdf"}).json["items"])


def test_a_search_costs_the_same_number_of_queries(api, project):
    remember_many(api, "u-1", [f"fact {n} on tea and cake" for n in range(3)])
    counted = count_queries(lambda: search(project.id, Query("tea cake")))
    remember_many(api, "u-2", [f"fact {n} on tea and cake" for n in range(60)])
    assert count_queries(lambda: search(project.id, Query("tea cake"))) == counted
    assert FactEmbedding.objects.filter(project_id=project.id).count() == 63


def count_queries(call):
    with CallQueries() as captured:
        call()
    return len(captured)
