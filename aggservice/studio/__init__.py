"""The studio: a web page on loopback over the library, for tuning, running, following, auditing and teaching.

Each part is a module with a small typed JSON API and no logic that the library does not have; the pages are static
files of this package. Nothing is fetched from other machines.
"""

from aggservice.studio.app import build_studio
from aggservice.studio.errors import StudioError
from aggservice.studio.guards import Access
from aggservice.studio.shelf import Shelf

__all__ = ["Access", "Shelf", "StudioError", "build_studio"]
