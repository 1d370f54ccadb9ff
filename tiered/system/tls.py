"""TLS over any Net: a stream that encrypts, and a Net whose streams do.

OpenSSL works on memory, and each call moves at most 64 KiB of ciphertext. So a connection holds little memory of its
own, and one system call moves several TLS records. Bytes count as sent once their ciphertext has left: a caller sees a
slow reader as it does without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Sequence

from tiered.errors import Unavailable
from tiered.networks import network_of
from tiered.ports import Buffer, FileSlice, Listener, Net, Stream, Subject
from tiered.system.tls_faults import describe_fault

PIECE_BYTES = 64 << 10
"""Most plaintext that is encrypted before the ciphertext is sent, and most ciphertext that is read at once."""
FIRST_PIECE_BYTES = 16 << 10
"""The same for the first piece of a call. So little waits for a slow reader."""
TURN_BYTES = 1 << 20
"""Most bytes that one call sends."""
KEPT_BYTES_MAX = 4 << 10
"""Most bytes of TLS itself, such as tickets and replies to new keys, that wait for the next bytes of the caller."""
HANDSHAKE_SECONDS = 10.0
HANDSHAKE_TURN_SECONDS = 0.0002
"""Time of handshakes in one turn of the event loop. After it, the others wait for the next turn."""
HANDSHAKES_MAX = 256
"""Most handshakes at once. One more ends the oldest of the address that has most of them."""

MakeSession = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]
"""Returns one end of a TLS session over two buffers: received and unsent ciphertext."""


class TlsStream:
    """A stream whose bytes are encrypted on `stream`. Nothing is received or sent before `shake_hands` returns True."""

    def __init__(self, stream: Stream, make_session: MakeSession, scratch: memoryview) -> None:
        self._stream = stream
        self.peer = stream.peer
        self.subject: Subject = ()
        self._scratch = scratch
        """Memory that all streams of a Net share; nothing in it outlives one call."""
        self._received = ssl.MemoryBIO()
        self._unsent = ssl.MemoryBIO()
        self._session = make_session(self._received, self._unsent)
        self._ciphertext = b""
        """Bytes that the network did not take yet."""
        self._unreported = 0
        """Bytes of the caller that are encrypted but not reported as sent: some of their ciphertext is not."""
        self._at_end = False
        self._fault: Unavailable | None = None
        self._reader: Callable[[], None] | None = None
        self._rereads = False
        self._loop = asyncio.get_running_loop()

    def shake_hands(self) -> bool:
        """Goes on with the handshake as far as bytes are there. Returns True once it is complete.

        Raises `Unavailable` if it failed.
        """
        self._receive()
        try:
            self._session.do_handshake()
            is_complete = True
        except ssl.SSLWantReadError:
            is_complete = False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._send_alert()
            raise Unavailable(f"TLS handshake failed peer={self.peer}: {describe_fault(error)}", final=True) from None
        if is_complete:
            self.subject = _subject_of(self._session)
            return self._keeps_tickets() or self._flush()
        if self._flush() and self._at_end:
            why = "the other side closed the connection: does it speak TLS, and does it trust the certificate?"
            raise Unavailable(f"TLS handshake failed peer={self.peer}: {why}", final=True)
        return False

    def _keeps_tickets(self) -> bool:
        """True if all that is unsent are tickets for later sessions. They leave with the first reply."""
        return self._session.server_side and self._session.version() == "TLSv1.3" and not self._ciphertext

    @property
    def has_unsent(self) -> bool:
        """True if ciphertext waits for the network."""
        return bool(self._ciphertext or self._unsent.pending)

    # -- the stream ---------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: memoryview) -> int | None:
        if self._fault is not None:
            raise self._fault
        size, filled, has_received = len(buffer), 0, False
        while filled < size:
            try:
                got: int = self._session.read(size - filled, buffer[filled:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                if filled or has_received or self._at_end or not self._receive():
                    break
                has_received = True  # more bytes wait for the next event, so that nobody keeps the loop busy
                continue
            except ssl.SSLZeroReturnError:
                self._at_end = True
                break
            except ssl.SSLError as error:
                raise self._fail(error) from None
            if not got:
                self._at_end = True
                break
            filled += got
        if self._unsent.pending > KEPT_BYTES_MAX and not self._unreported:
            self._flush()
            if self._unsent.pending > KEPT_BYTES_MAX:
                self._fault = Unavailable(f"takes no replies of TLS peer={self.peer}", final=True)
                raise self._fault
        if filled:
            if self._received.pending or self._session.pending() or self._at_end:
                self._read_again()
            return filled
        return 0 if self._at_end else None

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        """See `Stream.sendmsg`. A call after None has to begin with the same bytes."""
        return self._send(sum(map(len, parts)), lambda start, size: _cut(parts, start, size))

    def send_file(self, slice: FileSlice) -> int | None:
        """See `Stream.send_file`. Reads the file in pieces of 64 KiB."""

        def read(start: int, size: int) -> Buffer:
            data = slice.file.pread(slice.start + start, size)
            if len(data) < size:
                raise Unavailable(f"file is shorter than its slice file={slice.file.name}")
            return data

        return self._send(slice.length, read)

    def has_ended(self) -> bool:
        return self._at_end or self._stream.has_ended()

    def on_readable(self, call: Callable[[], None] | None) -> None:
        self._reader = call
        self._stream.on_readable(call)
        if call and (self._received.pending or self._session.pending() or self._at_end or self._fault):
            self._read_again()

    def on_writable(self, call: Callable[[], None] | None) -> None:
        self._stream.on_writable(call)

    def close(self) -> None:
        self._reader = None
        if self._fault is None:
            self._fault = Unavailable(f"connection closed peer={self.peer}", final=True)
            if not self._unreported and not self._ciphertext:
                self._send_alert()
        self._stream.close()

    # -- ciphertext ---------------------------------------------------------------------------------------------------

    def _send(self, size: int, take: Callable[[int, int], Buffer]) -> int | None:
        if self._fault is not None:
            raise self._fault
        if self._ciphertext and not self._flush():
            return None
        sent, self._unreported = self._unreported, 0
        end, limit = min(size, TURN_BYTES), FIRST_PIECE_BYTES
        while sent < end:
            piece = memoryview(take(sent, min(end - sent, limit)))
            self._encrypt(piece)
            limit = PIECE_BYTES
            if not self._flush():
                self._unreported = len(piece)
                return sent or None
            sent += len(piece)
        return sent

    def _encrypt(self, piece: memoryview) -> None:
        done = 0
        try:
            while done < len(piece):
                done += self._session.write(piece[done:])
        except ssl.SSLError as error:
            raise self._fail(error) from None

    def _flush(self) -> bool:
        """Sends the ciphertext that is there. True if all of it has left."""
        while True:
            data = self._ciphertext or self._unsent.read()
            if not data:
                return True
            sent = self._stream.sendmsg([data])
            self._ciphertext = data[sent or 0 :]
            if sent is None:
                return False

    def _receive(self) -> bool:
        """Reads ciphertext. True if there were bytes, or the end."""
        got = self._stream.recv_into(self._scratch)
        if got is None:
            return False
        if got:
            self._received.write(self._scratch[:got])
        else:
            self._at_end = True
        return True

    def _read_again(self) -> None:
        """Calls the reader in the next turn: bytes are here that the network does not report."""
        if not self._rereads:
            self._rereads = True
            self._loop.call_soon(self._call_reader)

    def _call_reader(self) -> None:
        self._rereads = False
        if self._reader is not None:
            self._reader()

    def _fail(self, error: ssl.SSLError) -> Unavailable:
        self._fault = Unavailable(f"connection lost peer={self.peer} error={describe_fault(error)}", final=True)
        self._send_alert()
        return self._fault

    def _send_alert(self) -> None:
        """Tells the other side of the end, if the network takes it at once."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._session.unwrap()  # the alert, or what OpenSSL had to say before it failed, waits in the buffer
        with contextlib.suppress(Unavailable):
            self._flush()


class TlsNet:
    """A Net whose streams are encrypted on those of another Net.

    `accept` makes the sessions of listeners. `connect_to` makes those of connections, and is given the host.
    `on_failure` is called with the peer of a connection whose handshake failed, and the reason.
    """

    def __init__(
        self,
        net: Net,
        accept: MakeSession | None = None,
        connect_to: Callable[[str], MakeSession] | None = None,
        on_failure: Callable[[str, str], None] = lambda peer, why: None,
    ) -> None:
        self._net = net
        self._accept = accept
        self._connect_to = connect_to
        self._on_failure = on_failure
        self._scratch = memoryview(bytearray(PIECE_BYTES))

    async def listen(self, host: str, port: int, on_accept: Callable[[Stream], None]) -> TlsListener:
        """See `Net.listen`. Streams are accepted once their handshake is complete."""
        assert self._accept is not None
        handshakes = Handshakes(self._accept, self._scratch, on_accept, self._on_failure)
        return TlsListener(await self._net.listen(host, port, handshakes.begin), handshakes)

    async def connect(self, host: str, port: int, timeout: float) -> TlsStream:
        """See `Net.connect`. Returns after the handshake."""
        assert self._connect_to is not None
        ends = asyncio.get_running_loop().time() + timeout
        stream = await self._net.connect(host, port, timeout)
        try:
            async with asyncio.timeout_at(ends):
                secured = TlsStream(stream, self._connect_to(host), self._scratch)
                while not secured.shake_hands():
                    await _wait_ready(stream.on_writable if secured.has_unsent else stream.on_readable)
                return secured
        except TimeoutError:
            stream.close()
            raise Unavailable(f"cannot connect to {host}:{port}: timeout of the TLS handshake") from None
        except BaseException:
            stream.close()
            raise

    def call_after_streams(self, call: Callable[[], None]) -> None:
        """See `Net.call_after_streams`."""
        self._net.call_after_streams(call)


class TlsListener:
    """A listener whose streams are handed over once they are encrypted."""

    def __init__(self, listener: Listener, handshakes: Handshakes) -> None:
        self._listener = listener
        self._handshakes = handshakes
        self.host, self.port = listener.host, listener.port

    def close(self) -> None:
        self._listener.close()
        self._handshakes.close()


class Handshakes:
    """The connections of one listener whose handshake is not complete: their number and their time are bounded."""

    def __init__(
        self,
        accept: MakeSession,
        scratch: memoryview,
        on_accept: Callable[[Stream], None],
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._accept = accept
        self._scratch = scratch
        self._on_accept = on_accept
        self._on_failure = on_failure
        self._waiting: dict[_Handshake, None] = {}
        self._by_host: Tally[str] = Tally()
        self._ready: deque[_Handshake] = deque()
        """Handshakes that can go on, in the order of their bytes. Each is there once."""
        self._has_turn = False
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None

    def begin(self, stream: Stream) -> None:
        """Begins the handshake of a connection, when its first bytes come."""
        if len(self._waiting) >= HANDSHAKES_MAX:
            self._make_room()
        handshake = _Handshake(self, stream, self._loop.time() + HANDSHAKE_SECONDS)
        self._waiting[handshake] = None
        self._by_host[handshake.host] += 1
        if self._sweeper is None:
            self._sweeper = self._loop.call_at(handshake.deadline, self._sweep)
        handshake.wait()

    def take_turn(self, handshake: _Handshake) -> None:
        """Goes on with a handshake: at once if none did in this turn of the event loop, or else in a later turn. So
        many handshakes at once delay other clients by a short time only."""
        if self._has_turn:
            self._ready.append(handshake)
            return
        self._has_turn = True
        self._loop.call_soon(self._run_turn)
        handshake.step()

    def _run_turn(self) -> None:
        ends = self._loop.time() + HANDSHAKE_TURN_SECONDS
        try:
            while self._ready:
                handshake = self._ready.popleft()
                if handshake in self._waiting:
                    handshake.step()
                if self._loop.time() >= ends:
                    break
        finally:
            self._has_turn = bool(self._ready)
            if self._has_turn:
                self._loop.call_soon(self._run_turn)

    def secure(self, stream: Stream) -> TlsStream:
        """Returns the encrypted stream of a connection."""
        return TlsStream(stream, self._accept, self._scratch)

    def complete(self, handshake: _Handshake, stream: TlsStream) -> None:
        """Hands an encrypted stream over."""
        self._forget(handshake)
        self._on_accept(stream)

    def fail(self, handshake: _Handshake, why: str) -> None:
        """Ends a connection whose handshake failed."""
        self._forget(handshake)
        handshake.stream.close()
        self._on_failure(handshake.stream.peer, why)

    def close(self) -> None:
        """Ends all connections whose handshake is not complete."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for handshake in list(self._waiting):
            self._forget(handshake)
            handshake.stream.close()

    def _make_room(self) -> None:
        most = max(self._by_host, key=self._by_host.__getitem__)
        oldest = next(each for each in self._waiting if each.host == most)
        self.fail(oldest, f"its address has most of {HANDSHAKES_MAX} handshakes at once")

    def _forget(self, handshake: _Handshake) -> None:
        del self._waiting[handshake]
        self._by_host[handshake.host] -= 1
        if not self._by_host[handshake.host]:
            del self._by_host[handshake.host]

    def _sweep(self) -> None:
        """Ends the handshakes that take too long: the oldest come first."""
        now = self._loop.time()
        for handshake in list(self._waiting):
            if handshake.deadline > now:
                break
            self.fail(handshake, f"the TLS handshake was not complete within {HANDSHAKE_SECONDS:g} s")
        first = next(iter(self._waiting), None)
        self._sweeper = self._loop.call_at(first.deadline, self._sweep) if first is not None else None


class _Handshake:
    """One connection before the end of its handshake. It has no session before its first bytes come."""

    def __init__(self, handshakes: Handshakes, stream: Stream, deadline: float) -> None:
        self._handshakes = handshakes
        self.stream = stream
        self.host = network_of(stream.peer.rpartition(":")[0])
        self.deadline = deadline
        self._secured: TlsStream | None = None
        self._writes = False
        self._is_ready = False
        self._is_complete = False

    def wait(self) -> None:
        """Waits for the first bytes."""
        self.stream.on_readable(self._on_ready)

    def _on_ready(self) -> None:
        """The network calls this in each turn while bytes are there."""
        if self._is_complete:
            self.stream.on_readable(None)  # nobody reads yet
        elif not self._is_ready:
            self._is_ready = True
            self._handshakes.take_turn(self)

    def step(self) -> None:
        """Goes on as far as bytes are there. Ends the connection after any error, and raises an unknown one."""
        self._is_ready = False
        try:
            if self._secured is None:
                self._secured = self._handshakes.secure(self.stream)
            is_complete = self._secured.shake_hands()
        except Unavailable as error:
            self._handshakes.fail(self, str(error))
            return
        except BaseException as error:
            self._handshakes.fail(self, f"internal error: {error}")
            raise
        writes = self._secured.has_unsent and not is_complete
        if writes != self._writes:
            self._writes = writes
            self.stream.on_writable(self._on_ready if writes else None)
            self.stream.on_readable(None if writes else self._on_ready)
        if is_complete:
            self._is_complete = True
            self._handshakes.complete(self, self._secured)


def _subject_of(session: ssl.SSLObject) -> Subject:
    """Returns the subject of the other side's certificate, if OpenSSL has verified it."""
    certificate = session.getpeercert() or {}
    subject: Subject = certificate.get("subject", ())  # type: ignore[assignment]
    return subject


def _cut(parts: Sequence[Buffer], start: int, size: int) -> Buffer:
    """Returns up to `size` bytes of `parts` from `start` on. Small parts are joined, for one TLS record."""
    found: list[memoryview] = []
    for part in parts:
        if start >= len(part):
            start -= len(part)
            continue
        piece = memoryview(part).cast("B")[start : start + size]
        start = 0
        size -= len(piece)
        found.append(piece)
        if not size:
            break
    return found[0] if len(found) == 1 else b"".join(found)


async def _wait_ready(register: Callable[[Callable[[], None] | None], None]) -> None:
    ready = asyncio.Event()
    register(ready.set)
    try:
        await ready.wait()
    finally:
        register(None)
