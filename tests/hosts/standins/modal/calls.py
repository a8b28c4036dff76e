"""The calls of Modal's API that Assay's way to use the SDK leads to, answered from the stand-in's state."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from modal_proto import api_pb2, task_command_router_pb2

from tests.hosts.standins.modal.sandboxes import TERMINATED

if TYPE_CHECKING:
    from tests.hosts.standins.modal.sandboxes import Program, Sandbox
    from tests.hosts.standins.modal.server import ModalStandIn

_TICK_S = 0.005


class Calls:
    """One method for each call; others are answered as unknown by the server."""

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
            self.modal.transports.add(stream._stream._transport)
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
            and self.modal.sandboxes.clock() >= each.created_at + each.listed_after_s
            and wanted.items() <= each.tags.items()
            and (not request.before_timestamp or each.created_at < request.before_timestamp)
        ]
        return api_pb2.SandboxListResponse(sandboxes=page)

    async def TaskGetCommandRouterAccess(self, request: Any) -> Any:  # noqa: N802
        sandbox = self.modal.sandboxes.of_task(request.task_id)
        if sandbox is None or sandbox.mute:
            raise GRPCError(Status.NOT_FOUND, "no such task")
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
            self.modal.go_wrong(waiting.popleft(), stream)
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
