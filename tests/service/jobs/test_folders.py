"""Folders of callers: a link that appears between a check and the opening leads nowhere either."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggservice.job.errors import EngineError
from aggservice.service.jobs import folders
from aggservice.service.jobs.folders import Folder


@pytest.mark.parametrize("link_is_made", ["before the check", "after the check"])
def test_no_way_into_a_folder_follows_a_link(
    link_is_made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is opened without following links, whatever the check of names found a moment earlier."""
    if link_is_made == "after the check":
        monkeypatch.setattr(folders, "_refuse_link", lambda above, name: None)
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for path in (mine, theirs):
        path.mkdir()
    (theirs / "secret").write_bytes(b"of another caller")
    (mine / "file").symlink_to(theirs / "secret")
    (mine / "folder").symlink_to(theirs)
    folder = Folder(mine)
    for work in (
        lambda: folder.open("file"),
        lambda: folder.open("folder/secret"),
        lambda: folder.size("file"),
        lambda: folder.size("folder/secret"),
        lambda: folder.files("file"),
        lambda: folder.files("folder"),
        lambda: folder.files("folder/secret"),
        lambda: folder.write("file", b"overwritten"),
        lambda: folder.write("folder/secret", b"overwritten"),
        lambda: folder.prepare("folder/summary"),
        lambda: folder.prepare("folder/below/summary"),
    ):
        with pytest.raises(EngineError):
            work()
    assert {one.name: one.read_bytes() for one in theirs.iterdir()} == {"secret": b"of another caller"}
