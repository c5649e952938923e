"""What a tool is handed: its step, its idempotency key, whether to go on."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentstate_client.call import UNSET, Unset
from agentstate_client.errors import EffectInDoubt
from agentstate_client.models import ClaimedStep
from agentstate_client.models import Effect as LedgerEntry
from agentstate_client.work import Held, StepStopped

if TYPE_CHECKING:
    from agentstate_client.async_client import AsyncClient
    from agentstate_client.client import Client


class StepContext:
    """A step as its tool sees it.

    `idempotency_key` is the same for every attempt: hand it to the system downstream.
    `previous` is "unknown" if an attempt before this one ended without a word.
    """

    def __init__(self, held: Held) -> None:
        self._held = held
        step = held.step
        self.step: ClaimedStep = step
        self.run_id: str = step.run
        self.step_id: str = step.step
        self.session_id: str = step.session
        self.index: int = step.index
        self.name: str = step.name
        self.tool: str = step.tool
        self.args: Any = step.args
        self.attempt: int = step.attempt
        self.idempotency_key: str = step.idempotency_key
        self.previous: str | None = step.previous

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the run was cancelled, the lease lost, the worker ends."""
        return self._held.stop is not None

    def check(self) -> None:
        """Raise StepStopped if the step is not to go on."""
        if self._held.stop is not None:
            raise StepStopped(self._held.stop)

    def use(self, *, tokens: int = 0, cost: float = 0) -> None:
        """Add to what this step has used; it is reported with the result."""
        usage = self._held.usage
        if tokens:
            usage["tokens"] = usage.get("tokens", 0) + tokens
        if cost:
            usage["cost"] = usage.get("cost", 0) + cost


class Context(StepContext):
    """A step for a tool of `Worker`."""

    def __init__(self, held: Held, client: Client, stopped: threading.Event) -> None:
        super().__init__(held)
        self.client = client
        self._stopped = stopped

    def sleep(self, seconds: float) -> None:
        """Wait, or raise StepStopped as soon as the step is to stop."""
        self._stopped.wait(seconds)
        self.check()

    def effect(
        self, name: str, *, request: Any | Unset = UNSET, repeat: bool = False
    ) -> Effect:
        """Enter an effect in the ledger, in a `with`.

            with ctx.effect("mail") as effect:
                if effect.is_new:
                    effect.result = send(mail, key=effect.key)
            return effect.result

        If an earlier attempt has done it, `is_new` is false and `result` is what came
        of it. If one began it and nothing is known, EffectInDoubt is raised: with
        `repeat` it is done again instead, under the same key.
        """
        return Effect(self, name, request, repeat)


class AsyncContext(StepContext):
    """A step for a tool of `AsyncWorker`."""

    def __init__(self, held: Held, client: AsyncClient) -> None:
        super().__init__(held)
        self.client = client

    async def sleep(self, seconds: float) -> None:
        """Wait; a step that is to stop is cancelled meanwhile."""
        await asyncio.sleep(seconds)
        self.check()

    def effect(
        self, name: str, *, request: Any | Unset = UNSET, repeat: bool = False
    ) -> AsyncEffect:
        """As `Context.effect`, in an `async with`."""
        return AsyncEffect(self, name, request, repeat)


class _Effect:
    def __init__(
        self, context: StepContext, name: str, request: Any | Unset, repeat: bool
    ) -> None:
        self.key = f"{context.idempotency_key}:{name}"
        self.is_new = False
        self.result: Any = None
        self._step_id = context.step_id
        self._options: dict[str, Any] = {"request": request, "repeat": repeat}
        self._token: int | None = None

    def _begun(self, entry: LedgerEntry) -> None:
        if entry.outcome == "in_doubt":
            raise EffectInDoubt(
                f"the effect {self.key} was begun before; whether it happened is not "
                "known: ask the system downstream, or pass repeat=True if it "
                "recognises the key",
                status=409,
                code="effect_in_doubt",
            )
        self.is_new = entry.outcome == "new"
        self.result = entry.result
        self._token = entry.token

    def _to_complete(self, kind: type[BaseException] | None) -> int | None:
        return self._token if self.is_new and kind is None else None


class Effect(_Effect):
    """An effect within a step; see `Context.effect`."""

    def __init__(
        self, context: Context, name: str, request: Any | Unset, repeat: bool
    ) -> None:
        super().__init__(context, name, request, repeat)
        self._client = context.client

    def __enter__(self) -> Effect:
        self._begun(
            self._client.effects.begin(self.key, self._step_id, **self._options)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        token = self._to_complete(kind)
        if token is not None:
            self._client.effects.complete(self.key, token, self.result)


class AsyncEffect(_Effect):
    """As Effect, for asyncio."""

    def __init__(
        self, context: AsyncContext, name: str, request: Any | Unset, repeat: bool
    ) -> None:
        super().__init__(context, name, request, repeat)
        self._client = context.client

    async def __aenter__(self) -> AsyncEffect:
        self._begun(
            await self._client.effects.begin(self.key, self._step_id, **self._options)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        token = self._to_complete(kind)
        if token is not None:
            await self._client.effects.complete(self.key, token, self.result)
