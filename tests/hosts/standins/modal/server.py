"""A stand-in of Modal on loopback: gRPC by the SDK's own descriptions, so that the real SDK talks to it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2, task_command_router_pb2

from tests.hosts.standins.modal.sandboxes import TERMINATED, Program, Sandbox, Sandboxes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKEN_ID, TOKEN_SECRET = "ak-standin0id", "as-standin0secret"
_TICK_S = 0.005


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one call of a method."""

    status: Status = Status.UNAVAILABLE
    message: str = "the stand-in is out of sorts"
    after: bool = False
    """Whether what was asked for has been done."""
    cut: bool = False
    """Whether the connection is cut instead of an answer."""
    retry_after_s: float | None = None
    hang_s: float = 0.0


class ModalStandIn:
    """The server in a thread of its own. Its state is plain to see; faults wait for the calls they are for."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.sandboxes = Sandboxes(folder, clock)
        self.faults: dict[str, deque[Fault]] = {}
        self.calls: list[str] = []
        self.apps: dict[str, str] = {}
        self.images: dict[str, str] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.capacity = True
        self.image_fails: str | None = None
        self.token = (TOKEN_ID, TOKEN_SECRET)
        self.told: list[bytes] = []
        """Everything that it was asked, but for the headers with the token."""
        self.keys_honoured = True
        self.at_once = 0
        self.on_create: Callable[[Sandbox], None] = lambda sandbox: None
        self._by_key: dict[str, Any] = {}
        self._transports: set[Any] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="modal-stand-in")
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, method: str, *faults: Fault) -> None:
        self.faults.setdefault(method, deque()).extend(faults)

    def launched(self, name: str) -> int:
        return sum(each.name == name for each in self.sandboxes.all.values())

    def stop(self) -> None:
        self.sandboxes.end_all()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = Server([_Service(self)], status_details_codec=custom_detail_codec)
        await server.start("127.0.0.1", 0)
        self.port: int = server._server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for transport in self._transports:
            transport.abort()
        await server.wait_closed()

    async def answered(self, name: str, stream: Any, method: Callable[..., Any]) -> None:
        """Take a request, do it or let it go wrong, and answer."""
        request = await stream.recv_message()
        self.calls.append(name)
        self.told.append(request.SerializeToString())
        waiting = self.faults.get(name)
        fault = waiting.popleft() if waiting else None
        if fault is not None:
            await asyncio.sleep(fault.hang_s)
            if not fault.after:
                self._go_wrong(fault, stream)
        self._check_token(name, stream.metadata)
        key = stream.metadata.get("x-idempotency-key")
        if name == "SandboxCreate" and self.keys_honoured and key in self._by_key:
            answer = self._by_key[key]
        else:
            answer = await method(request)
            self._by_key[key] = answer
        if fault is not None and fault.after:
            self._go_wrong(fault, stream)
        await stream.send_message(answer)

    def _go_wrong(self, fault: Fault, stream: Any) -> None:
        if fault.cut:
            stream._stream._transport.abort()
            raise asyncio.CancelledError
        wait = fault.retry_after_s
        details = None if wait is None else [api_pb2.RPCRetryPolicy(retry_after_secs=wait)]
        raise GRPCError(fault.status, fault.message, details)

    def _check_token(self, name: str, metadata: Any) -> None:
        if name.startswith("TaskExec"):
            if not metadata.get("authorization", "").startswith("Bearer "):
                raise GRPCError(Status.UNAUTHENTICATED, "no access to this machine")
        elif (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != self.token:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")


class _Service:
    """The calls that Assay's way to use the SDK leads to; others are answered as unknown by the server."""

    def __init__(self, modal: ModalStandIn) -> None:
        self.modal = modal

    def __mapping__(self) -> dict[str, Handler]:
        services = (
            api_pb2.DESCRIPTOR.services_by_name["ModalClient"],
            task_command_router_pb2.DESCRIPTOR.services_by_name["TaskCommandRouter"],
        )
        return {
            f"/{service.full_name}/{method.name}": self._handler(method)
            for service in services
            for method in service.methods
            if hasattr(self, method.name)
        }

    def _handler(self, method: Any) -> Handler:
        do = getattr(self, method.name)
        answers = Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY

        async def handle(stream: Any) -> None:
            self.modal._transports.add(stream._stream._transport)
            if method.server_streaming:
                await do(stream)
            else:
                await self.modal.answered(method.name, stream, do)

        return Handler(handle, answers, GetMessageClass(method.input_type), GetMessageClass(method.output_type))

    async def AuthTokenGet(self, request: Any) -> Any:  # noqa: N802 - the methods are called as Modal's are
        return api_pb2.AuthTokenGetResponse(token=_jwt())

    async def AppGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        create = request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        if request.app_name not in self.modal.apps and not create:
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_name} not found")
        app_id = self.modal.apps.setdefault(request.app_name, self.modal.sandboxes.new_id("ap"))
        return api_pb2.AppGetOrCreateResponse(app_id=app_id)

    async def EnvironmentGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def ImageGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        if self.modal.image_fails is not None:
            failed = api_pb2.GenericResult(
                status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception=self.modal.image_fails
            )
            return api_pb2.ImageGetOrCreateResponse(image_id="im-0", result=failed)
        image_id = f"im-{len(self.modal.images) + 1}"
        self.modal.images[image_id] = request.image.dockerfile_commands[0]
        done = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=done)

    async def SecretGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        secret_id = f"st-{len(self.modal.secrets) + 1}"
        self.modal.secrets[secret_id] = dict(request.env_dict)
        return api_pb2.SecretGetOrCreateResponse(secret_id=secret_id)

    async def SandboxCreate(self, request: Any) -> Any:  # noqa: N802
        asked, all_of_them = request.definition, self.modal.sandboxes
        if any(each.name == asked.name for each in all_of_them.running()):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox with name {asked.name} already exists")
        gpu = asked.resources.gpu_config
        sandbox = all_of_them.create(
            name=asked.name,
            app_id=request.app_id,
            tags={tag.tag_name: tag.tag_value for tag in request.tags},
            environment={k: v for each in asked.secret_ids for k, v in self.modal.secrets[each].items()},
            gpu=f"{gpu.gpu_type}:{gpu.count}" if gpu.gpu_type else "",
            entrypoint=tuple(asked.entrypoint_args),
            image=self.modal.images[asked.image_id],
            timeout_s=asked.timeout_secs,
            scheduled=self.modal.capacity,
        )
        self.modal.at_once = max(self.modal.at_once, len(all_of_them.running()))
        self.modal.on_create(sandbox)
        return api_pb2.SandboxCreateResponse(sandbox_id=sandbox.id)

    async def SandboxGetTaskId(self, request: Any) -> Any:  # noqa: N802
        sandbox = self._sandbox(request.sandbox_id)
        if sandbox.status:
            over = api_pb2.GenericResult(status=sandbox.status, exception="Sandbox has ended")
            return api_pb2.SandboxGetTaskIdResponse(task_result=over)
        return api_pb2.SandboxGetTaskIdResponse(task_id=sandbox.task_id if sandbox.scheduled else "")

    async def SandboxWait(self, request: Any) -> Any:  # noqa: N802
        sandbox = self._sandbox(request.sandbox_id)
        until = time.monotonic() + request.timeout
        while not sandbox.status and time.monotonic() < until:
            await asyncio.sleep(_TICK_S)
        return api_pb2.SandboxWaitResponse(result=api_pb2.GenericResult(status=sandbox.status))

    async def SandboxTagsGet(self, request: Any) -> Any:  # noqa: N802
        return api_pb2.SandboxTagsGetResponse(tags=_tags(self._sandbox(request.sandbox_id)))

    async def SandboxTerminate(self, request: Any) -> Any:  # noqa: N802
        sandbox = self._sandbox(request.sandbox_id)
        if sandbox.deaf > 0:
            sandbox.deaf -= 1
        else:
            sandbox.end(TERMINATED)
        return api_pb2.SandboxTerminateResponse()

    async def SandboxListV2(self, request: Any) -> Any:  # noqa: N802
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        page = [
            api_pb2.SandboxInfo(id=each.id, created_at=each.created_at, app_id=each.app_id, name=each.name)
            for each in reversed(self.modal.sandboxes.running())
            if each.app_id == request.app_id
            and wanted.items() <= each.tags.items()
            and (not request.before_timestamp or each.created_at < request.before_timestamp)
        ]
        return api_pb2.SandboxListResponse(sandboxes=page)

    async def TaskGetCommandRouterAccess(self, request: Any) -> Any:  # noqa: N802
        return api_pb2.TaskGetCommandRouterAccessResponse(jwt=_jwt(), url=self.modal.url)

    async def TaskExecStart(self, request: Any) -> Any:  # noqa: N802
        sandbox = self.modal.sandboxes.of_task(request.task_id)
        if sandbox is None:
            raise GRPCError(Status.NOT_FOUND, "no such task")
        environment = {name: value for each in request.secret_sources for name, value in each.env.contents.items()}
        if request.exec_id not in sandbox.programs:
            sandbox.start(request.exec_id, tuple(request.command_args), environment, request.timeout_secs)
        return task_command_router_pb2.TaskExecStartResponse()

    async def TaskExecStdinWrite(self, request: Any) -> Any:  # noqa: N802
        program = self._program(request)
        await asyncio.to_thread(program.write, request.offset, request.data, eof=request.eof)
        return task_command_router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecPoll(self, request: Any) -> Any:  # noqa: N802
        return task_command_router_pb2.TaskExecPollResponse(**_exit(self._program(request).code()))

    async def TaskExecWait(self, request: Any) -> Any:  # noqa: N802
        while (code := self._program(request).code()) is None:
            await asyncio.sleep(_TICK_S)
        return task_command_router_pb2.TaskExecWaitResponse(**_exit(code))

    async def TaskExecStdioRead(self, stream: Any) -> None:  # noqa: N802
        request = await stream.recv_message()
        waiting = self.modal.faults.get("TaskExecStdioRead")
        if waiting:
            self.modal._go_wrong(waiting.popleft(), stream)
        program, offset = self._program(request), request.offset
        path = program.files[request.file_descriptor]
        while True:
            over = program.code() is not None
            with path.open("rb") as file:
                file.seek(offset)
                while data := file.read(1 << 16):
                    offset += len(data)
                    await stream.send_message(task_command_router_pb2.TaskExecStdioReadResponse(data=data))
            if over:
                return
            self._program(request)
            await asyncio.sleep(_TICK_S)

    def _sandbox(self, number: str) -> Sandbox:
        sandbox = self.modal.sandboxes.get(number)
        if sandbox is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {number} not found")
        return sandbox

    def _program(self, request: Any) -> Program:
        """Return a program; the machine of one whose sandbox has ended does not answer any more."""
        sandbox = self.modal.sandboxes.of_task(request.task_id)
        if sandbox is None or request.exec_id not in sandbox.programs:
            raise GRPCError(Status.NOT_FOUND, "no such task")
        return sandbox.programs[request.exec_id]


def _tags(sandbox: Sandbox) -> list[Any]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in sandbox.tags.items()]


def _exit(code: int | None) -> dict[str, int]:
    if code is None:
        return {}
    return {"code": code} if code >= 0 else {"signal": -code}


def _jwt() -> str:
    """Return a token that is nobody's and does not expire during a test."""
    parts = ({"alg": "none"}, {"exp": time.time() + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*encoded, "c3RhbmQtaW4"))
