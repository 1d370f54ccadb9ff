"""The two clients of a store on S3, which are made anew when the store refuses their credentials.

The client for conditional puts never retries by itself: a retry after a lost reply would turn its own success into a
412. It is made at its first use, because many stores are only read. The other one retries.

Keys are replaced while processes run. Boto3 renews the keys of roles, and keeps those of a file. After a refusal that
may mean old keys, one thread reads the sources of credentials again, at most once in `LOOK_SECONDS`. New keys give new
clients, and the refused request is made once more. A refused request has changed nothing, so that keeps M1.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    SSOTokenLoadError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from tiered.object_store.s3_refusals import may_be_old_login
from tiered.object_store.s3_session import find_endpoint, open_session
from tiered.ports import Clock

log = logging.getLogger(__name__)

LOOK_SECONDS = 5
"""Shortest pause between two looks for new credentials."""
WAIT_SECONDS = 10.0
"""Longest time that a refused request waits while another thread looks: a program may give the credentials."""
NO_LOGIN = (
    NoCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    SSOTokenLoadError,
    UnauthorizedSSOTokenError,
)
"""Errors before a request is sent: there are no credentials now."""
ENVIRONMENT = "env"
SOURCES = {
    ENVIRONMENT: "the environment",
    "shared-credentials-file": "the file of credentials",
    "config-file": "the config file",
    "boto-config": "the file of boto 2",
    "custom-process": "the program in credential_process",
}
"""Sources of keys that somebody has to replace, by botocore's names."""
T = TypeVar("T")


class S3Clients:
    """The clients of the store `url`, with the newest credentials. Any thread may use them."""

    def __init__(self, url: str, clock: Clock, connections: int, conditional_connections: int) -> None:
        self._url = url
        self._clock = clock
        self._connections = connections
        self._conditional_connections = conditional_connections
        self._looking = threading.Lock()
        self._next_look_ns = 0
        self._login = self._open_login()
        self._login.retry_client()  # settings that it cannot use are refused now

    def describe_new_keys(self) -> str:
        """Returns how to give this process other keys than those that are refused; "" if boto3 gets them by itself, as
        those of roles."""
        source = SOURCES.get(self._login.source)
        if source is None:
            return ""
        if self._login.source == ENVIRONMENT:
            return f"the credentials come from {source}: restart the process with new ones"
        return f"the credentials come from {source}: put new ones there, they are read again"

    def call(self, request: Callable[[Any], T]) -> T:
        """Makes a request with the client that retries."""
        return self._call(lambda login: request(login.retry_client()))

    def call_once(self, request: Callable[[Any], T]) -> T:
        """Makes a request with the client that never retries. It is sent again only if it was refused."""
        return self._call(lambda login: request(login.no_retry_client()))

    def close(self) -> None:
        self._login.close()

    def _call(self, request: Callable[[_Login], T]) -> T:
        login = self._login
        try:
            return request(login)
        except (ClientError, *NO_LOGIN) as error:
            if not _may_be_old_login(error):
                raise
            newer = self._find_newer(login)
            if newer is None:
                raise
        return request(newer)

    def _find_newer(self, refused: _Login) -> _Login | None:
        """Returns a login that is newer than the refused one; None if there is none, or it is too early to look."""
        if not self._looking.acquire(timeout=WAIT_SECONDS):
            return None
        try:
            now_ns = self._clock.mono_ns()
            if self._login is not refused:
                return self._login
            if now_ns < self._next_look_ns:
                return None
            self._next_look_ns = now_ns + LOOK_SECONDS * 1_000_000_000
            try:
                newer = self._open_login()
                if newer.has_keys_of(refused):
                    return None
                newer.retry_client()
            except (BotoCoreError, ValueError) as error:  # a file that is half written
                log.warning("credentials cannot be read again store=%s error=%s", self._url, error)
                return None
            self._login = newer
            refused.close()
            # Keys of a role are new at each look, also where only a permission is missing: that would fill the log.
            level = logging.DEBUG if newer.renews_itself else logging.INFO
            log.log(level, "store refused the keys, new ones are used store=%s source=%s", self._url, newer.source)
            return newer
        finally:
            self._looking.release()

    def _open_login(self) -> _Login:
        return _Login(self._connections, self._conditional_connections)


class _Login:
    """A session with the credentials of one moment, and its clients. `source` is botocore's name for where they come
    from, "" without any."""

    def __init__(self, connections: int, conditional_connections: int) -> None:
        self._session = open_session()
        self._credentials = self._session.get_credentials()
        self.source = self._credentials.method if self._credentials is not None else ""
        self._connections = connections
        self._conditional_connections = conditional_connections
        self._making = threading.Lock()
        self._retry_client: Any = None
        self._no_retry_client: Any = None

    @property
    def renews_itself(self) -> bool:
        """True for keys that expire and are renewed by boto3, as those of roles."""
        return isinstance(self._credentials, RefreshableCredentials)

    def retry_client(self) -> Any:
        with self._making:
            if self._retry_client is None:
                self._retry_client = self._make_client(5, 5, 30, self._connections)
        return self._retry_client

    def no_retry_client(self) -> Any:
        with self._making:
            if self._no_retry_client is None:
                self._no_retry_client = self._make_client(1, 2, 5, self._conditional_connections)
        return self._no_retry_client

    def has_keys_of(self, other: _Login) -> bool:
        """True if both have the same keys. Keys that expire are new at each look."""
        mine, others = self._credentials, other._credentials
        if mine is None or others is None:
            return mine is others
        if self.renews_itself or other.renews_itself:
            return False
        return bool(mine.get_frozen_credentials() == others.get_frozen_credentials())

    def close(self) -> None:
        with self._making:
            for client in (self._retry_client, self._no_retry_client):
                if client is not None:
                    client.close()

    def _make_client(self, attempts: int, connect_seconds: int, read_seconds: int, connections: int) -> Any:
        config = Config(
            retries={"total_max_attempts": attempts, "mode": "standard"},
            connect_timeout=connect_seconds,
            read_timeout=read_seconds,
            max_pool_connections=connections,
            tcp_keepalive=True,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={
                "addressing_style": "path" if find_endpoint(self._session) else "auto",
                "payload_signing_enabled": True,
            },
        )
        client = self._session.client("s3", config=config)
        client.meta.events.register_first("before-call.s3.DeleteObjects", _use_content_md5)
        return client


def _may_be_old_login(error: Exception) -> bool:
    if not isinstance(error, ClientError):
        return True
    status = int(error.response["ResponseMetadata"].get("HTTPStatusCode", 0))
    return may_be_old_login(status, str(error.response.get("Error", {}).get("Code", "")))


def _use_content_md5(params: dict[str, Any], **_: Any) -> None:
    """Replaces the CRC-32 of a request by its MD5, which older stores want as well."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
    params["context"].pop("checksum", None)
