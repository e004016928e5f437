"""An interceptor that authenticates, authorises, counts and logs each call, so that no method can leave that out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from aggservice.service.config.callers import Caller, Register, authorise
from aggservice.service.errors import UnauthenticatedError
from aggservice.service.log import EventLog
from aggservice.service.metrics import Metrics
from aggservice.service.status import KNOWN_ERRORS, abort, status_of, without_frames

_CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller:
    """Return the caller whose call this task answers."""
    caller = _CALLER.get()
    if caller is None:
        raise UnauthenticatedError("this call has no credentials")
    return caller


def _credentials(context: grpc.aio.ServicerContext) -> tuple[str | None, list[str]]:
    """Return the authorization header and the names in the client's certificate."""
    authorization = None
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            authorization = value if isinstance(value, str) else value.decode("ascii", "replace")
    names: list[str] = []
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        names += [value.decode("utf-8", "replace") for value in context.auth_context().get(key, ())]
    return authorization, names


@dataclass(slots=True)
class CallRecord:
    """A call under way: whose it is, and the name of the status that it ends with."""

    caller: Caller | None = None
    ended: str = "OK"


class Gate(grpc.aio.ServerInterceptor):
    """Authenticates, authorises, counts and logs every call, and turns errors into statuses."""

    def __init__(self, register: Register, metrics: Metrics, log: EventLog) -> None:
        self._register = register
        self._metrics = metrics
        self._log = log

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Wrap the handler of a call, whatever its shape."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return handler
        for shape in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            inner = getattr(handler, shape)
            if inner is not None:
                wrapped = self._wrap(method, inner)
                return getattr(grpc, f"{shape}_rpc_method_handler")(
                    wrapped,
                    request_deserializer=handler.request_deserializer,
                    response_serializer=handler.response_serializer,
                )
        return handler

    def _wrap(self, method: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(inner):

            async def streamed(request: Any, context: grpc.aio.ServicerContext) -> None:
                async def body() -> None:
                    stream: AsyncIterator[Any] = inner(request, context)
                    async for message in stream:
                        await context.write(message)

                await self._guard(method, context, body)

            return streamed

        async def called(request: Any, context: grpc.aio.ServicerContext) -> Any:
            return await self._guard(method, context, lambda: inner(request, context))

        return called

    @contextmanager
    def counted(self, method: str) -> Iterator[CallRecord]:
        """Count and log a call, over gRPC or HTTP, when the block ends."""
        name = method.rpartition("/")[2]
        start = asyncio.get_running_loop().time()
        call = CallRecord()
        self._metrics.calls_in_flight.inc()
        try:
            yield call
        except asyncio.CancelledError:
            call.ended = "CANCELLED"
            raise
        finally:
            seconds = asyncio.get_running_loop().time() - start
            self._metrics.calls_in_flight.dec()
            self._metrics.calls.labels(name, call.ended).inc()
            self._metrics.call_seconds.labels(name).observe(seconds)
            self._log.event(
                "call",
                method=name,
                caller=call.caller.name if call.caller else None,
                status=call.ended,
                seconds=round(seconds, 3),
            )

    def admit(self, call: CallRecord, method: str, authorization: str | None, names: Iterable[str]) -> None:
        """Authenticate and authorise a call; record whose it is."""
        call.caller = self._register.find(authorization=authorization, certificate_names=names)
        authorise(method, call.caller)
        _CALLER.set(call.caller)

    def fault(self, call: CallRecord, method: str, problem: Exception) -> None:
        """Record a fault of the service: the log says where it arose; the caller learns no details."""
        call.ended = "INTERNAL"
        self._log.fault("call_failed", problem, method=method.rpartition("/")[2])

    async def _guard(self, method: str, context: grpc.aio.ServicerContext, body: Callable[[], Awaitable[Any]]) -> Any:
        with self.counted(method) as call:
            try:
                self.admit(call, method, *_credentials(context))
                return await body()
            except KNOWN_ERRORS as problem:
                call.ended = grpc_code_name(status_of(problem).code)
                await abort(context, without_frames(problem))
            except NotImplementedError:  # a library's service does not offer this method
                call.ended = "UNIMPLEMENTED"
                name = method.rpartition("/")[2]
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not offered here")
            except grpc.aio.AbortError:
                call.ended = "ABORTED"
                raise
            except Exception as problem:
                self.fault(call, method, problem)
                await abort(context, without_frames(problem))


def grpc_code_name(code: int) -> str:
    """Return the name of a status code by its number."""
    return next((one.name for one in grpc.StatusCode if one.value[0] == code), "UNKNOWN")
