"""Calls without sockets: the servicers behind the real gate and the real message classes, on a loop with its own time.

``grpc.aio`` gives a handler a context to read from, write to and abort with; ``_Context`` is one over lists. The loop's
time moves only when a caller sends, so that progress messages and stalls come at the same message in every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import grpc

from aggservice.service.api.gate import Gate

_SECONDS_A_MESSAGE = 0.2


class Cut(StrEnum):
    """How a caller ends a stream after its last message."""

    CLOSE = "close"
    CANCEL = "cancel"
    STALL = "stall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that a caller gets to see of one call: messages in bytes, status, its text and trailing metadata."""

    messages: tuple[bytes, ...] = ()
    code: str = "OK"
    text: str = ""
    trailers: tuple[tuple[str, bytes], ...] = ()


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when a test moves it."""

    def __init__(self) -> None:
        self._now = 1_000.0
        super().__init__()

    def time(self) -> float:
        """Return the loop's own time in seconds."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds


class HereExecutor(Executor):
    """Runs each call at once, in the thread that submits it."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the finished future of ``call``."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as problem:
            future.set_exception(problem)
        return future


class _Context:
    """What a handler uses of ``grpc.aio.ServicerContext``."""

    def __init__(self, requests: Sequence[Callable[[], Awaitable[Any]]], cut: Cut, serialise: Any, token: str) -> None:
        self._token = token
        self._requests = iter(requests)
        self._cut = cut
        self._serialise = serialise
        self.sent: list[bytes] = []
        self.parked = asyncio.Event()
        self.too_large = False
        self.code, self.text = "OK", ""
        self.trailers: tuple[tuple[str, bytes], ...] = ()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    async def read(self) -> Any:
        request = next(self._requests, None)
        if request is not None:
            return await request()
        if self._cut is Cut.CLOSE:
            return grpc.aio.EOF
        self.parked.set()
        await asyncio.get_running_loop().create_future()

    async def write(self, message: Any) -> None:
        self.sent.append(self._serialise(message))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self.code, self.text = code.name, details
        self.trailers = tuple((name, value) for name, value in trailing_metadata or ())
        raise grpc.aio.AbortError()


class Server:
    """The handlers of registered servicers behind a gate; stands where ``grpc.aio.Server`` does."""

    def __init__(self, gate: Gate, *, message_bytes: int, stall_s: float) -> None:
        self._gate = gate
        self._message_bytes = message_bytes
        self._stall_s = stall_s
        self._generic: list[grpc.GenericRpcHandler] = []
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Take the handlers of a servicer, as generated code gives them."""
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same handlers once more, by name: not needed here."""

    async def _handler(self, method: str) -> grpc.RpcMethodHandler:
        if method not in self._handlers:
            details = _Details(method)

            async def continuation(asked: Any) -> grpc.RpcMethodHandler:
                return next(found for one in self._generic if (found := one.service(asked)) is not None)

            self._handlers[method] = await self._gate.intercept_service(continuation, details)
        return self._handlers[method]

    async def call(
        self,
        method: str,
        requests: Sequence[bytes],
        *,
        cut: Cut = Cut.CLOSE,
        before: Callable[[int], Awaitable[None]] | None = None,
        token: str = "local",
    ) -> Answer:
        """Make one call; ``before`` runs before each message of a stream is read, with its index.

        ``token`` is the caller's; a service without callers ignores it.
        """
        handler = await self._handler(method)
        loop = asyncio.get_running_loop()

        def reading(index: int, raw: bytes) -> Callable[[], Awaitable[Any]]:
            async def read() -> Any:
                if before is not None:
                    await before(index)
                loop.pass_time(_SECONDS_A_MESSAGE)  # type: ignore[attr-defined]
                if len(raw) > self._message_bytes:  # gRPC itself ends the call; to the handler the stream just ends
                    context.too_large = True
                    return grpc.aio.EOF
                return handler.request_deserializer(raw)

            return read

        streamed = [reading(index, raw) for index, raw in enumerate(requests)] if handler.request_streaming else []
        context = _Context(streamed, cut, handler.response_serializer, token)
        task = asyncio.create_task(self._run(handler, requests, context))
        if cut is not Cut.CLOSE:
            parked = asyncio.create_task(context.parked.wait())
            await asyncio.wait([task, parked], return_when=asyncio.FIRST_COMPLETED)
            parked.cancel()
            if cut is Cut.STALL:
                loop.pass_time(self._stall_s + 1)  # type: ignore[attr-defined]
            elif not task.done():
                task.cancel()
        await asyncio.wait([task])
        if context.too_large:
            return Answer(messages=tuple(context.sent), code="RESOURCE_EXHAUSTED")
        return Answer(messages=tuple(context.sent), code=context.code, text=context.text, trailers=context.trailers)

    async def _run(self, handler: grpc.RpcMethodHandler, requests: Sequence[bytes], context: _Context) -> None:
        try:
            if handler.request_streaming:
                await handler.stream_stream(None, context)
                return
            request = handler.request_deserializer(requests[0])
            if handler.response_streaming:
                await handler.unary_stream(request, context)
            else:
                await context.write(await handler.unary_unary(request, context))
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            context.code = "CANCELLED"


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[()] = ()
