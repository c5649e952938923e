"""Signed in to a running server, as the browser of an administrator is."""

import re

import httpx

from bench.stack import Stack


def signed_in(stack: Stack) -> httpx.Client:
    client = httpx.Client(base_url=stack.url, timeout=120, follow_redirects=True)
    form = client.get("/sign-in/").text
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
    assert token is not None
    answer = client.post(
        "/sign-in/",
        data={
            "csrfmiddlewaretoken": token[1],
            "username": "admin",
            "password": stack.admin_password,
        },
        headers={"Referer": f"{stack.url}/sign-in/"},
    )
    answer.raise_for_status()
    return client
