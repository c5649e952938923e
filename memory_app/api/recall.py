"""Recall: what is known about a subject that fits; and search over a whole project."""

import time

from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest
from access_app.scopes import MEMORY_READ
from agentstate.api.params import read_params
from agentstate.metrics import RECALL_SECONDS
from memory_app.api.base import FACT_EXAMPLE, MemoryView
from memory_app.api.serializers import RecallOut, RecallParams, hit_json
from memory_app.recall.search import Query, Recall, recall, search

HIT_EXAMPLE = FACT_EXAMPLE | {
    "score": 1.62,
    "why": {
        "parts": {"lexical": 1.0, "vector": 0.57, "recency": 0.05},
        "terms": ["invoic"],
        "summary": "has invoic; means something similar",
    },
    "similar": [],
}
EXAMPLE = {
    "items": [HIT_EXAMPLE],
    "mode": "hybrid",
    "model": "potion-base-8M",
    "degraded": "",
}


class RecallView(MemoryView):
    scopes = {"GET": MEMORY_READ}

    @documented(
        "recall",
        "Recall what is known about a subject, best first",
        params=RecallParams,
        responses={200: RecallOut},
        response_example=EXAMPLE,
        description="Words (BM25), meaning, what stands beside a fact and its session "
        "count together; filters apply first, so a subject with few facts gets its "
        "full limit. Without `q`: what is pinned, then what is most recent.",
        tags=["memory"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, RecallParams)
        subject = self.reach(params.pop("subject", None))
        started = time.perf_counter()
        found = recall(self.caller.project_id, subject, read_query(params))
        RECALL_SECONDS.labels(found.mode).observe(time.perf_counter() - started)
        return recall_response(found)


class SearchView(MemoryView):
    scopes = {"GET": MEMORY_READ}

    @documented(
        "search_memory",
        "Search the facts of all subjects of the project",
        params=RecallParams,
        responses={200: RecallOut},
        response_example=EXAMPLE,
        description="For people and for agents whose key is bound to no subject.",
        tags=["memory"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, RecallParams)
        subject = params.pop("subject", None)
        if subject is not None or self.caller.subject is not None:
            subject = self.reach(subject)
        query = read_query(params)
        return recall_response(search(self.caller.project_id, query, subject=subject))


def read_query(params: dict[str, object]) -> Query:
    values = dict(params)
    kinds = values.pop("kind", ())
    text = values.pop("q")
    assert isinstance(kinds, list | tuple)
    return Query(text=str(text), kinds=tuple(kinds), **values)  # type: ignore[arg-type]


def recall_response(found: Recall) -> Response:
    return Response(
        {
            "items": [hit_json(hit) for hit in found.hits],
            "mode": found.mode,
            "model": found.model,
            "degraded": found.degraded,
        }
    )
