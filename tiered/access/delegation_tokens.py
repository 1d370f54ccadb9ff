"""The delegation tokens (KIP-48) as this broker knows them: their HMACs, and the credentials of their bearers.

Without `delegation.token.secret.key` the broker knows none. HMACs of all tokens are kept, because requests name a token
by its HMAC. Credentials take milliseconds of the event loop: each is made once, at the first login by its token, and
kept while the token is there. A client that knows ids of tokens, and not their HMACs, can cause no more work than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tiered.config.settings import Settings
from tiered.controller.delegation_tokens import TOKENS_MAX
from tiered.metadata.image import Image
from tiered.ports import Clock
from tiered.quotas.shares import DELEGATION_TOKENS, Holdings
from tiered.security.delegation_tokens import DelegationToken, make_hmac, make_token_credential
from tiered.security.scram import ScramCredential, ScramMechanism


class DelegationTokens:
    """The tokens of the newest image, which `find_image` returns."""

    def __init__(self, settings: Settings, clock: Clock, find_image: Callable[[], Image]) -> None:
        self._key = settings.delegation_token_secret_key
        self._clock = clock
        self._find_image = find_image
        self._known: Mapping[str, DelegationToken] = {}
        self._ids_by_hmac: dict[bytes, str] = {}
        self._hmacs: dict[str, bytes] = {}
        self._credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        """Two for each token of the image at most."""
        self.holdings = Holdings(
            DELEGATION_TOKENS,
            lambda: TOKENS_MAX,
            lambda: len(self._find_image().delegation_tokens),
            lambda: (Counter(each.requester for each in self._find_image().delegation_tokens.values()),),
        )
        """The tokens of each requester. The controller has the same numbers, and refuses by them."""
        self._reported: Mapping[str, DelegationToken] = {}
        self._on_change: list[Callable[[], object]] = []

    @property
    def is_enabled(self) -> bool:
        """True if tokens are served."""
        return bool(self._key)

    def subscribe(self, on_change: Callable[[], object]) -> None:
        """Calls a function after each change of tokens: some may be gone, or expire earlier."""
        self._on_change.append(on_change)

    def on_image(self) -> None:
        """Calls the subscribers if the tokens of the image are other ones than at the last call."""
        tokens = self._find_image().delegation_tokens
        if tokens is self._reported:
            return
        self._reported = tokens
        for on_change in self._on_change:
            on_change()

    def list_all(self) -> list[DelegationToken]:
        """Returns all tokens, also those that have expired and are not removed yet."""
        return list(self._tokens().values())

    def find(self, token_id: str) -> DelegationToken | None:
        """Returns a token that has not expired."""
        token = self._tokens().get(token_id)
        return None if token is None or token.is_expired(self._clock.wall_ms()) else token

    def find_id(self, hmac: bytes) -> str | None:
        """Returns the id of the token with an HMAC."""
        self._tokens()
        return self._ids_by_hmac.get(hmac)

    def hmac_of(self, token_id: str) -> bytes:
        """Returns the HMAC of a token, which need not be known yet."""
        return self._hmacs.get(token_id) or make_hmac(self._key, token_id)

    def find_credentials(self, mechanism: ScramMechanism, token_id: str) -> tuple[ScramCredential, ...]:
        """Returns the credential of a token that has not expired; none if there is no such token."""
        if self.find(token_id) is None:
            return ()
        known = self._credentials.get((mechanism, token_id))
        if known is None:
            known = self._credentials[mechanism, token_id] = make_token_credential(self._key, mechanism, token_id)
        return (known,)

    def _tokens(self) -> Mapping[str, DelegationToken]:
        """Returns the tokens of the newest image, whose HMACs are known then."""
        tokens = self._find_image().delegation_tokens
        if not self.is_enabled:
            return {}
        if tokens is not self._known:
            self._known = tokens
            for token_id in self._hmacs.keys() - tokens.keys():
                del self._ids_by_hmac[self._hmacs.pop(token_id)]
                for mechanism in ScramMechanism:
                    self._credentials.pop((mechanism, token_id), None)
            for token_id in tokens.keys() - self._hmacs.keys():
                made = self._hmacs[token_id] = make_hmac(self._key, token_id)
                self._ids_by_hmac[made] = token_id
        return tokens
