def test_a_closed_session_takes_no_new_run(api):
    session = api.post("/api/v1/sessions", {"agent": "support"}).json["id"]
    api.post(f"/api/v1/sessions/{session}/close", {})
    answer = api.post("/api/v1/runs", {"session": session, "steps": [{"tool": "look"}]})
    assert answer.status_code == 409
    assert answer.json["code"] == "session_closed"
    assert answer.json["session_status"] == "closed"
