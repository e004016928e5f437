"""Build hook: generates ``aggservice.rpc`` from ``proto/`` whenever the project is built or installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def generate(root: Path) -> list[Path]:
    """Run protoc over every file below ``proto/``; the modules land in ``src/aggservice/rpc/v1``.

    The proto package is ``aggservice.v1``; its import path is moved below ``aggservice.rpc`` so that generated
    code has a room of its own.
    """
    import grpc_tools
    from grpc_tools import protoc

    out = root / "src" / "aggservice" / "rpc"
    source = root / "proto"
    protos = sorted((source / "aggservice" / "v1").glob("*.proto"))
    if not protos:
        return []
    include = Path(grpc_tools.__file__).parent / "_proto"
    # A virtual path maps proto/aggservice/v1 to aggservice/rpc/v1, so that imports in the output are right.
    arguments = ["protoc", f"-Iaggservice/rpc/v1={source / 'aggservice' / 'v1'}", f"-I{include}"]
    target = root / "src"
    arguments += [f"--python_out={target}", f"--grpc_python_out={target}", f"--pyi_out={target}"]
    (out / "v1").mkdir(parents=True, exist_ok=True)
    if protoc.main([*arguments, *(f"aggservice/rpc/v1/{proto.name}" for proto in protos)]) != 0:
        raise RuntimeError("protoc failed; see its messages above")
    (out / "v1" / "__init__.py").touch()
    return sorted((out / "v1").glob("*_pb2*"))


class CustomBuildHook(BuildHookInterface):
    """Hatchling's entry point."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate before the files are collected."""
        generate(Path(self.root))
