"""Build hook: generates ``aggservice.rpc`` from ``proto/`` whenever the project is built or installed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def generate(root: Path) -> list[Path]:
    """Run protoc over every file below ``proto/``; the modules land in ``aggservice/rpc/v1``.

    The proto package is ``aggservice.v1``. Generated imports are moved below ``aggservice.rpc``, so that generated code
    has a room of its own.
    """
    import grpc_tools
    from grpc_tools import protoc

    source, target = root / "proto", root / "aggservice" / "rpc" / "v1"
    protos = sorted((source / "aggservice" / "v1").glob("*.proto"))
    if not protos:
        return []
    include = Path(grpc_tools.__file__).parent / "_proto"
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        outputs = [f"--{kind}_out={scratch}" for kind in ("python", "grpc_python", "pyi")]
        if protoc.main(["protoc", f"-I{source}", f"-I{include}", *outputs, *map(str, protos)]) != 0:
            raise RuntimeError("protoc failed; see its messages above")
        for made in sorted(Path(scratch, "aggservice", "v1").iterdir()):
            text = made.read_text(encoding="utf-8")
            text = text.replace("from aggservice.v1 import", "from aggservice.rpc.v1 import")
            (target / made.name).write_text(text, encoding="utf-8")
    (target / "__init__.py").touch()
    return sorted(target.glob("*_pb2*"))


class CustomBuildHook(BuildHookInterface):
    """Hatchling's entry point."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate before the files are collected."""
        generate(Path(self.root))


if __name__ == "__main__":
    generate(Path(__file__).parent)
