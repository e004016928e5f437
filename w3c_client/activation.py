"""Activation: a page may call the API for a short time after the user did something in its tab."""

from __future__ import annotations

from dataclasses import dataclass

from w3c_client.config import Config
from w3c_client.errors import CallError, ErrorName


@dataclass(slots=True)
class _Tab:
    enabled: bool = False
    activated_ms: int = 0  # the Unix epoch


class Activations:
    """Whether the API is enabled in each tab, and its last activation (specification, "Attribution API Activation").

    This state is separate from HTML's transient activation: neither consumes the other.
    """

    def __init__(self, config: Config) -> None:
        self._duration_ms = config.activation_duration_ms
        self._consume = config.consume_activation
        self._tabs: dict[str, _Tab] = {}

    def activate(self, tab: str, now_ms: int) -> None:
        """Record a user's input in a tab, or a navigation that the user began in the browser's own interface."""
        self._tabs.setdefault(tab, _Tab()).activated_ms = now_ms

    def leave_site(self, tab: str) -> None:
        """Record that the tab went to another site: the API must be enabled again."""
        self._tabs.setdefault(tab, _Tab()).enabled = False

    def close(self, tab: str) -> None:
        """Forget a tab."""
        self._tabs.pop(tab, None)

    def check(self, tab: str, now_ms: int) -> None:
        """Enable the API in a tab that was activated recently; raise ``NotAllowedError`` if it is not enabled then."""
        state = self._tabs.get(tab) or _Tab()
        if state.enabled:
            return
        if state.activated_ms + self._duration_ms < now_ms:
            raise CallError(
                ErrorName.NOT_ALLOWED, "no recent user activation in this tab: call soon after a user's input"
            )
        state.enabled = True
        if self._consume:
            state.activated_ms = 0
        self._tabs[tab] = state
