import httpx


def count_of(text: str, name: str, **labels: str) -> float:
    for line in text.splitlines():
        if line.startswith(f"{name}{{") and all(
            f'{label}="{value}"' in line for label, value in labels.items()
        ):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_requests_are_counted_by_route_not_by_path(server, project):
    def requests() -> str:
        return server.get("/metrics").text

    before = requests()
    for number in range(3):
        server.get(f"/api/v1/sessions/{number:08}-0000-7000-8000-{0:012}")
    after = requests()
    route = "api/v1/sessions/<uuid:session_id>"
    labels = {"method": "GET", "status": "401", "route": route}
    name = "agentstate_requests_total"
    assert count_of(after, name, **labels) == count_of(before, name, **labels) + 3
    assert "00000001-0000" not in after


def test_an_unknown_method_makes_no_label_of_its_own(server):
    httpx.request("PROPFIND", f"{server.base_url}/healthz")
    text = server.get("/metrics").text
    assert "PROPFIND" not in text
    assert count_of(text, "agentstate_requests_total", method="other") >= 1
