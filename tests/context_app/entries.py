"""Letting an entry of working memory run out, as its time would."""

from agentstate.processes import wait_until


def expire(redis, owner_id, key):
    [name] = [
        name
        for name in redis.scan_iter(match=f"*{owner_id}*", count=1000)
        if name.endswith(f":entry:{key}".encode())
    ]
    redis.pexpire(name, 1)
    assert wait_until(lambda: not redis.exists(name), 60)
