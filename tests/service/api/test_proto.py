"""The folder ``proto`` compiles by itself, so that a client in another language can be generated from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

ROOT = Path(__file__).parents[3]


def test_proto_compiles_by_itself(tmp_path: Path) -> None:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto/aggservice/v1").glob("*.proto"))
    assert len(files) == 3
    out = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", f"--descriptor_set_out={out}", *files]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    assert [service.name for file in found.file for service in file.service] == ["AggregationService", "BudgetService"]
