"""The tailer: one in each live process, for every stream and socket that follows a log.

Twenty times a second, while anybody follows anything, it asks Postgres in one query how
far the followed sessions have come, and in one each how far the followed projects have.
What is new is read once and kept for a moment beside the topic; whoever follows it is
rung and takes what is behind its own place, at its own pace. So an append pays nothing
for its readers, nothing is told before it is committed, and a reader that falls behind
what is kept reads the log itself: it cannot miss anything, and delays nobody.

No message passes through Redis. A channel layer drops what a slow reader leaves lying,
and would be one more thing to be down; every process reading the same log needs none.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, connection

from access_app.credentials import Credential, KeyCredential, good_ones
from agentstate import metrics
from sessions_app import feed
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.feed import FeedFilter
from sessions_app.log import StoredEvent, read_log
from sessions_app.models import Session

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.025
KEY_CHECK_SECONDS = 0.5
PERSON_CHECK_SECONDS = 3.0
PAGE_EVENTS = 200
READ_THREADS = 4
KEPT_EVENTS = 500  # a topic
KEPT_BYTES = 512 * 1024  # a topic

# Reads of all followers share these threads, and so at most as many connections.
_readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="live")

type Place = Any  # a seq, or a Position of the feed; later ones are greater


class Item:
    """One event at its place, and how it has been written out so far."""

    __slots__ = ("agent", "event", "place", "session_id", "written")

    def __init__(
        self, place: Place, event: StoredEvent, session_id: UUID, agent: str = ""
    ) -> None:
        self.place = place
        self.event = event
        self.session_id = session_id
        self.agent = agent
        self.written: dict[Hashable, Any] = {}


class Batch(NamedTuple):
    """Some events, the place behind them, and whether there is more at once.

    `is_idle`: nothing came for a while.
    """

    items: list[Item]
    place: Place
    has_more: bool
    is_idle: bool = False


class Topic:
    """A log that somebody follows. `start` to `end` is kept in `items`."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        self.items: deque[Item] = deque()
        self.bytes = 0
        self.start: Place = None
        self.end: Place = None

    def load(self, after: Place) -> Batch:
        """Read from the log itself. Runs in a reader's thread."""
        raise NotImplementedError

    def begin(self, end: Place) -> None:
        self.start = self.end = end

    def keep(self, batch: Batch) -> None:
        for item in batch.items:
            self.items.append(item)
            self.bytes += item.event.payload_bytes
        while len(self.items) > KEPT_EVENTS or self.bytes > KEPT_BYTES:
            dropped = self.items.popleft()
            self.bytes -= dropped.event.payload_bytes
            self.start = dropped.place
        self.end = batch.place

    def kept_after(self, place: Place) -> Batch | None:
        """What is kept behind `place`; None if some of it is kept no longer."""
        if self.end is None or place < self.start:
            return None
        found = []
        for item in reversed(self.items):
            if item.place <= place:
                break
            found.append(item)
        found.reverse()
        if len(found) > PAGE_EVENTS:
            return Batch(found[:PAGE_EVENTS], found[PAGE_EVENTS - 1].place, True)
        return Batch(found, max(place, self.end), False)

    async def after(self, place: Place) -> Batch:
        kept = self.kept_after(place)
        return await read(lambda: self.load(place)) if kept is None else kept

    def ring(self) -> None:
        for follower in self.followers:
            follower.ring()


class SessionTopic(Topic):
    """The log of one session, or some types of it. Places are seqs."""

    def __init__(
        self, project_id: UUID, session_id: UUID, types: Sequence[str]
    ) -> None:
        super().__init__()
        self.project_id = project_id
        self.session_id = session_id
        self.types = types

    def load(self, after: Place) -> Batch:
        sessions = Session.objects.filter(project_id=self.project_id)
        session = sessions.filter(id=self.session_id).first()
        if session is None:
            return Batch([], after, False)
        found = read_log(session, after_seq=after, types=self.types, limit=PAGE_EVENTS)
        items = [Item(e.seq, e, self.session_id) for e in found.events]
        place = items[-1].place if items else after
        if not found.has_more:
            place = max(place, session.last_seq)  # events of other types are passed
        return Batch(items, place, found.has_more)


class SessionNoticeTopic(Topic):
    """How far one session has come, without its events."""

    def __init__(self, project_id: UUID, session_id: UUID) -> None:
        super().__init__()
        self.project_id = project_id
        self.session_id = session_id

    def load(self, after: Place) -> Batch:
        heights = _last_seqs({self.session_id})
        return Batch([], max(after, heights.get(self.session_id, after)), False)


class FeedTopic(Topic):
    """A project's feed, as one filter sees it. Places are Positions."""

    def __init__(self, project_id: UUID, wanted: FeedFilter) -> None:
        super().__init__()
        self.project_id = project_id
        self.wanted = wanted

    def load(self, after: Place) -> Batch:
        found = feed.read_feed(self.project_id, after, self.wanted, PAGE_EVENTS)
        items = [Item(e.position, e.event, e.session_id, e.agent) for e in found.events]
        return Batch(items, found.position, found.has_more)


class NoticeTopic(Topic):
    """How far a project's feed has come, without its events."""

    def __init__(self, project_id: UUID) -> None:
        super().__init__()
        self.project_id = project_id

    def load(self, after: Place) -> Batch:
        return Batch([], max(after, feed.end_of_feed(self.project_id)), False)


@dataclass(frozen=True)
class Following:
    """What a follower wants to follow; equal ones share a topic."""

    project_id: UUID
    session_id: UUID | None = None
    wanted: FeedFilter = FeedFilter()
    notices_only: bool = False

    def topic(self) -> Topic:
        if self.session_id is not None and self.notices_only:
            return SessionNoticeTopic(self.project_id, self.session_id)
        if self.session_id is not None:
            return SessionTopic(self.project_id, self.session_id, self.wanted.types)
        if self.notices_only:
            return NoticeTopic(self.project_id)
        return FeedTopic(self.project_id, self.wanted)


@dataclass(eq=False)
class Follower:
    """One that follows: by what right, and a bell for when there may be more.

    `over` says why it ended: "gone" (erased), "unauthenticated", "stopping".
    """

    following: Following
    credential: Credential
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    over: str = ""

    def ring(self) -> None:
        self.bell.set()

    def end(self, why: str = "stopping") -> None:
        self.over = self.over or why
        self.bell.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for the bell; False when it was silent for that long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.bell.wait(), seconds)
        return self.bell.is_set()


class Tailer:
    """Reads what is new for all topics; runs while there are any."""

    def __init__(self) -> None:
        self.topics: dict[Following, Topic] = {}
        self.task: asyncio.Task[None] | None = None

    @property
    def followers(self) -> list[Follower]:
        return [f for topic in self.topics.values() for f in topic.followers]

    @contextlib.contextmanager
    def follow(self, follower: Follower) -> Iterator[Topic]:
        topic = self.topics.get(follower.following)
        if topic is None:
            topic = self.topics[follower.following] = follower.following.topic()
        topic.followers.add(follower)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield topic
        finally:
            topic.followers.discard(follower)
            if not topic.followers and self.topics.get(follower.following) is topic:
                del self.topics[follower.following]

    async def _run(self) -> None:
        rounds = 0
        while self.topics:
            try:
                await self._look()
                await self._check_credentials(rounds)
            except DatabaseError:
                # Postgres is away: all stay connected and go on when it is back.
                logger.warning("the tailer cannot read", exc_info=True)
                await asyncio.sleep(1)
            except Exception:
                logger.exception("the tailer stumbled")
                await asyncio.sleep(1)
            rounds += 1
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self) -> None:
        topics = dict(self.topics)
        with metrics.TAILER_SECONDS.time():
            await asyncio.gather(
                self._look_at_sessions(
                    [
                        t
                        for t in topics.values()
                        if isinstance(t, SessionTopic | SessionNoticeTopic)
                    ]
                ),
                self._look_at_projects(
                    [
                        t
                        for t in topics.values()
                        if isinstance(t, FeedTopic | NoticeTopic)
                    ]
                ),
            )

    async def _look_at_sessions(
        self, topics: list[SessionTopic | SessionNoticeTopic]
    ) -> None:
        if not topics:
            return
        heights = await read(lambda: _last_seqs({t.session_id for t in topics}))
        grown = []
        for topic in topics:
            height = heights.get(topic.session_id)
            if height is None:
                for follower in topic.followers:
                    follower.end("gone")
            elif topic.end is None:
                topic.begin(height)
                topic.ring()
            elif height <= topic.end:
                continue
            elif isinstance(topic, SessionNoticeTopic):
                topic.end = height
                topic.ring()
            else:
                grown.append(topic)
        await asyncio.gather(*(self._take(topic) for topic in grown))

    async def _look_at_projects(self, topics: list[FeedTopic | NoticeTopic]) -> None:
        if not topics:
            return
        projects = {t.project_id for t in topics}
        ends = await read(lambda: {p: feed.end_of_feed(p) for p in projects})
        grown = []
        for topic in topics:
            end = ends[topic.project_id]
            if topic.end is None:
                topic.begin(end)
                topic.ring()
            elif end <= topic.end:
                continue
            elif isinstance(topic, NoticeTopic):
                topic.end = end
                topic.ring()
            else:
                grown.append(topic)
        await asyncio.gather(*(self._take(topic) for topic in grown))

    async def _take(self, topic: Topic) -> None:
        """Read what is behind the topic's end, page by page, and ring for each."""
        has_more = True
        while has_more and topic.followers:
            end = topic.end
            try:
                batch = await read(lambda at=end: topic.load(at))  # type: ignore[misc]
            except (StorageUnavailable, ContentMissing):
                # A payload in the store cannot be had now: this topic waits for it, and
                # the others go on.
                return
            topic.keep(batch)
            topic.ring()
            has_more = batch.has_more

    async def _check_credentials(self, rounds: int) -> None:
        """End those whose key was revoked, or who left, or whose role changed."""
        kinds: list[type] = []
        if rounds % round(KEY_CHECK_SECONDS / POLL_SECONDS) == 0:
            kinds.append(KeyCredential)
        if rounds % round(PERSON_CHECK_SECONDS / POLL_SECONDS) == 0:
            kinds.append(object)
        if not kinds:
            return
        followers = self.followers
        held = {f.credential for f in followers if isinstance(f.credential, (*kinds,))}
        good = await read(lambda: good_ones(held))
        for follower in followers:
            if follower.credential in held - good:
                follower.end("unauthenticated")


tailer = Tailer()


async def batches(
    topic: Topic, follower: Follower, place: Place, idle_seconds: float
) -> AsyncIterator[Batch]:
    """Yield what is behind `place`, and on, until the follower is over.

    An idle batch says that nothing came for `idle_seconds`. While Postgres is away
    nothing comes, and then it goes on.
    """
    while not follower.over:
        follower.bell.clear()
        try:
            batch = await topic.after(place)
        except (DatabaseError, StorageUnavailable, ContentMissing):
            logger.warning("a follower cannot read", exc_info=True)
            await asyncio.sleep(1)
            continue
        moved, place = batch.place != place, batch.place
        if batch.items or moved:
            yield batch
        if not batch.has_more and not await follower.wait(idle_seconds):
            yield Batch([], place, False, is_idle=True)


def _last_seqs(sessions: set[UUID]) -> dict[UUID, int]:
    rows = Session.objects.filter(id__in=sessions).values_list("id", "last_seq")
    return dict(rows)


async def read[T](query: Callable[[], T]) -> T:
    """Run `query` in a reader's thread, which gives its connection back."""
    return await asyncio.get_running_loop().run_in_executor(_readers, _run, query)


def _run[T](query: Callable[[], T]) -> T:
    try:
        return query()
    finally:
        connection.close()  # back to the pool: no follower holds a connection
