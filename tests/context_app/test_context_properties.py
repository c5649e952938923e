"""For every log and every budget: within it, legal, nothing lost in silence."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from context_app.tokens import estimate
from tests.context_app import legal
from tests.context_app.conftest import PINNED
from tests.factories import make_session

FORMS = ["neutral", "openai", "openai_responses", "anthropic"]

words = st.text(alphabet="abc defg. 1\nÄß漢", max_size=12)
long_text = st.builds(lambda text, n: (text + " ") * n, words, st.integers(1, 120))
texts = st.one_of(words, long_text)
ids = st.sampled_from(["c1", "c2", "c3", "weird id/ß"])


def event(kind: str, **payload: Any) -> dict[str, Any]:
    return {"type": kind, "payload": payload}


parts = st.lists(st.builds(lambda t: {"type": "text", "text": t}, texts), max_size=3)
events = st.one_of(
    st.builds(lambda c: event("message.user", content=c), st.one_of(texts, parts)),
    st.builds(
        lambda c: event("message.assistant", content=c), st.one_of(texts, st.none())
    ),
    st.builds(lambda c: event("message.system", content=c), texts),
    st.builds(lambda c: event("reasoning", content=c), texts),
    st.builds(
        lambda i, n, t, a: event(
            "tool.call", tool_call_id=i, name=n, arguments={"q": t}, awaiting=a
        ),
        ids,
        st.sampled_from(["search", "ask user", "pay"]),
        texts,
        st.sampled_from([None, None, None, "human"]),
    ),
    st.builds(
        lambda i, c, s: event("tool.result", tool_call_id=i, content=c, synthetic=s),
        ids,
        st.one_of(texts, st.none(), st.just({"a": [1, "x"]})),
        st.sampled_from([None, None, True]),
    ),
    st.just(event("acme.tick", n=1)),
)
logs = st.lists(events, max_size=40)
budgets = st.integers(60, 3000)


many = settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@many
@given(log=logs, budget=budgets, form=st.sampled_from(FORMS), compact=st.booleans())
def test_a_context_keeps_its_promises(subject_api, log, budget, form, compact):
    session = make_session(subject_api, subject="ann")
    if log:
        assert session.append(*log).status_code == 201
    if compact and len(log) > 4:
        body = {"up_to_seq": len(log) // 2, "summary": "Talk.", "force": True}
        subject_api.post(f"{session.url}/compact", body)
    found = fitting_context(session, budget, form)
    legal.check(form, found)
    assert PINNED in "\n".join(legal.texts(found["messages"]))
    check_open_calls(session, found)
    check_truth(session, found, form)
    again = session.get(
        "/context", budget_tokens=found["manifest"]["budget_tokens"], format=form
    )
    assert again == found


def fitting_context(session, budget, form):
    """The context at `budget`; or, if that is refused, at the least that works."""
    params = {"budget_tokens": budget, "format": form}
    answer = session.api.get(f"{session.url}/context", params=params)
    if answer.status_code == 422:
        assert answer.json["code"] == "budget_too_small", answer
        least = answer.json["least_tokens"]
        assert least > budget
        params["budget_tokens"] = budget = least
        answer = session.api.get(f"{session.url}/context", params=params)
    assert answer.status_code == 200, answer
    found = answer.json
    shown = [found["messages"], *([found["system"]] if found["system"] else [])]
    tokens = sum(estimate(text) for text in legal.texts(without_names(shown)))
    told = dict(found["manifest"]["tokens"])
    assert tokens <= told["total"] <= budget
    assert told.pop("total") == sum(told.values()), told
    assert min(told.values()) >= 0, told
    return found


def without_names(value):
    """Messages without what only the neutral form adds for its reader."""
    if isinstance(value, dict):
        return {k: without_names(v) for k, v in value.items() if k != "seqs"}
    return [without_names(v) for v in value] if isinstance(value, list) else value


def check_open_calls(session, found):
    last = session.get()["last_seq"]
    open_seqs = {seq for seq, _ in session.open_calls(last)}
    told = {call["seq"]: call for call in found["manifest"]["open_calls"]}
    assert set(told) == open_seqs
    shown = "\n".join(legal.texts(found["messages"]))
    for call in told.values():
        if call["shown"] == "note":
            assert f"(event {call['seq']})" in shown or "older ones" in shown
        else:
            assert call["seq"] in found["manifest"]["seqs"]
        if call["status"] == "awaiting_human":
            assert call["shown"] == "stand_in"


def check_truth(session, found, form):
    """Each event of the conversation is accounted for, once."""
    manifest = found["manifest"]
    shown = set(manifest["seqs"])
    quiet = {each["seq"] for each in manifest["not_shown"]}
    assert not shown & quiet
    for event_ in session.events(limit=1000):
        if not event_["type"].startswith(("message.", "tool.", "reasoning")):
            continue
        seq = event_["seq"]
        covered = any(
            c["from_seq"] <= seq <= c["up_to_seq"] and seq not in c["whole"]
            for c in manifest["covered"]
            if c["summary"] != "left_out"
        )
        left_out = any(
            r["from_seq"] <= seq <= r["to_seq"] for r in manifest["left_out"]
        )
        assert (seq in shown) + (seq in quiet) + (covered or left_out) == 1, seq
        if form == "neutral" and seq in shown:
            assert seq in seqs_of(found["messages"])


def seqs_of(messages):
    seqs = set()
    for message in messages:
        seqs.update(message["seqs"])
    return seqs


@many
@given(log=logs)
def test_with_room_for_all_nothing_is_cut(subject_api, log):
    session = make_session(subject_api)
    if log:
        session.append(*log)
    manifest = session.get("/context", budget_tokens=1_000_000)["manifest"]
    assert manifest["left_out"] == manifest["shortened"] == []


identifier = st.one_of(
    st.from_regex(r"[A-Z]{2}[0-9]{4}[A-Z]", fullmatch=True),
    st.from_regex(r"[1-9][0-9]{6,11}", fullmatch=True),
    st.from_regex(r"[a-z]{3,6}@[a-z]{3,6}\.org", fullmatch=True),
    st.from_regex(r"\$[1-9][0-9]{1,4}\.[1-9]", fullmatch=True),
    st.from_regex(r"20[0-9]{2}-0[1-9]-1[0-9]", fullmatch=True),
)
frames = st.sampled_from(
    ["my id is {}", "{}", "({}), please", "see {}.", '"{}"', "x={}"]
)
kinds = st.sampled_from(["message.user", "message.assistant", "tool"])


@many
@given(
    planted=st.lists(st.tuples(identifier, frames, kinds), min_size=1, max_size=8),
    told=st.data(),
    method=st.sampled_from(["given", "extract"]),
)
def test_no_planted_identifier_is_lost_unlisted(subject_api, planted, told, method):
    session = make_session(subject_api)
    for n, (value, frame, kind) in enumerate(planted):
        text = frame.format(value)
        if kind == "tool":
            call = event("tool.call", tool_call_id=f"c{n}", name="look")
            result = event("tool.result", tool_call_id=f"c{n}", content={"v": text})
            session.append(call, result)
        else:
            session.append(event(kind, content=text))
    values = [value for value, _, _ in planted]
    body = {"up_to_seq": session.get()["last_seq"], "method": method}
    if method == "given":
        kept = told.draw(st.lists(st.sampled_from(values)))
        body |= {"summary": " and ".join(["Talk", *kept]), "force": True}
    answer = subject_api.post(f"{session.url}/compact", body)
    assert answer.status_code == 201, answer
    lost = {each["value"] for each in answer.json["lost"]}
    for value in values:
        assert value in answer.json["summary"] or value in lost, value
