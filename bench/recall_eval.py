"""How good recall is: python bench/recall_eval.py [FILE] (make eval).

FILE holds conversations, each with facts and questions whose evidence is known
(`[{facts: [{id, session, text}], questions: [{question, evidence}]}]`). Every fact is
remembered over REST as a fact of one subject, and every question asked over REST.
recall@k is the share of the evidence among the first k hits, averaged over questions.
The ablation asks the same engine in this process, with parts of the ranking off.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT.parent / "shared" / "eval" / "locomo-dev.json"
CUTS = (5, 10, 20)
BATCH = 200

sys.path.insert(0, str(ROOT))


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    if not path.is_file():
        sys.exit(f"no evaluation data at {path}")
    conversations = json.loads(path.read_text())
    with_services(conversations)


def with_services(conversations: list[dict[str, Any]]) -> None:
    import os

    os.environ["DJANGO_SETTINGS_MODULE"] = "agentstate.settings"
    from tests import services

    services.start()
    try:
        services.make_database("eval")
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, interactive=False)
        evaluate(conversations)
    finally:
        services.stop()


def evaluate(conversations: list[dict[str, Any]]) -> None:
    import httpx

    from access_app.services import create_key, create_project
    from tests.server import Server

    project = create_project("evaluation")
    key = create_key(project, scopes=["all"]).text
    server = Server(Path(tempfile.mkdtemp()))
    server.start()
    try:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(
            base_url=server.base_url, headers=headers, timeout=60
        ) as client:
            stored = [store(client, each) for each in conversations]
            over_rest(client, stored)
    finally:
        server.stop()
    in_process(project.id, stored)


def store(client: Any, conversation: dict[str, Any]) -> dict[str, Any]:
    """Remember the conversation; return it with the ids of the facts."""
    name = conversation["conversation"]
    ids: dict[str, str] = {}
    facts = conversation["facts"]
    for start in range(0, len(facts), BATCH):
        part = facts[start : start + BATCH]
        answer = client.post(
            "/api/v1/memory",
            json={
                "subject": name,
                "facts": [
                    {
                        "fact": fact["text"],
                        "source": {"session": f"{name}/{fact['session']}"},
                    }
                    for fact in part
                ],
            },
        )
        answer.raise_for_status()
        for fact, made in zip(part, answer.json()["items"], strict=True):
            ids[fact["id"]] = made["id"]
    return conversation | {"ids": ids}


def over_rest(client: Any, stored: list[dict[str, Any]]) -> None:
    def ask(subject: str, question: str) -> list[str]:
        params: dict[str, str | int] = {"subject": subject, "q": question, "limit": 20}
        answer = client.get("/api/v1/memory/recall", params=params)
        answer.raise_for_status()
        return [hit["id"] for hit in answer.json()["items"]]

    seconds: list[float] = []
    show("over REST", shares(stored, ask, seconds))
    for each in stored:
        show(f"  conversation {each['conversation']}", shares([each], ask, []))
    cuts = statistics.quantiles(seconds, n=20)
    print(f"  client-side p50 {cuts[9] * 1000:.1f} ms, p95 {cuts[18] * 1000:.1f} ms")


def in_process(project_id: Any, stored: list[dict[str, Any]]) -> None:
    from memory_app.recall.ranking import Weights
    from memory_app.recall.search import Query, recall

    bare = Weights(0, 0, 0, 0, 0, 0, 0)
    from dataclasses import replace

    blends = {
        "lexical": replace(bare, lexical=1),
        "vector": replace(bare, vector=1),
        "both": replace(bare, lexical=1, vector=0.8),
        "both, neighbours": replace(bare, lexical=1, vector=0.8, neighbour=0.3),
        "both, neighbours, session": replace(
            bare, lexical=1, vector=0.8, neighbour=0.3, session=0.3
        ),
        "all": Weights(),
    }
    for name, weights in blends.items():

        def ask(subject: str, question: str, weights: Weights = weights) -> list[str]:
            found = recall(project_id, subject, Query(question), weights=weights)
            return [str(hit.fact.id) for hit in found.hits]

        show(name, shares(stored, ask, []))


def shares(stored: list[dict[str, Any]], ask: Any, seconds: list[float]) -> list[float]:
    """Return recall at each of CUTS, averaged over all questions."""
    found: dict[int, list[float]] = {cut: [] for cut in CUTS}
    for conversation in stored:
        for question in conversation["questions"]:
            evidence = question["evidence"]
            wanted = {conversation["ids"].get(id) for id in evidence} - {None}
            began = time.perf_counter()
            hits = ask(conversation["conversation"], question["question"])
            seconds.append(time.perf_counter() - began)
            for cut in CUTS:
                found[cut].append(len(wanted & set(hits[:cut])) / len(evidence))
    return [statistics.mean(found[cut]) for cut in CUTS]


def show(name: str, values: list[float]) -> None:
    figures = "  ".join(
        f"@{cut} {value:.3f}" for cut, value in zip(CUTS, values, strict=True)
    )
    print(f"{name:<28} {figures}", flush=True)


if __name__ == "__main__":
    main()
