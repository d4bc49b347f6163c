"""Sessions of SSNTP for Python 3.8 and later, by the program ``ssntp``.

``ssntp session --json`` holds the session, and connects again if it is lost. This module
starts that program and exchanges lines with it (docs/session.md). It needs only the standard
library, and the program on the PATH.

    import ssntp

    with ssntp.Session(connect="localhost:8888", ca="ca.pem", cert="agent.pem") as session:
        session.send("STATS", "load: 1")
        for frame in session:
            print(frame.operand, frame.payload)
"""

import base64
import collections
import json
import subprocess
import threading
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

__all__ = [
    "Connected", "Disconnected", "Ended", "Error", "Event", "Frame", "Refused",
    "Request", "Session", "Unreachable",
]

Payload = Union[str, bytes]


class Error(Exception):
    """A call failed. ``code`` is the reason, from the list in docs/session.md."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Refused(Error):
    """The receiver refuses the request. The message has the reason."""


class Ended(Error):
    """The session is over for good. The message has the reason."""


class Frame(NamedTuple):
    """A frame that has arrived."""

    type: str
    operand: str
    payload: bytes
    #: UUID of the sender, if it had the frame traced.
    sender: Optional[str]
    #: Its trace, as the line of docs/session.md has it: label, nodes, and trace_id if there is one.
    trace: Optional[Dict[str, Any]] = None


class Request(NamedTuple):
    """A request that has arrived: see `Session.reply` and `Session.refuse`."""

    operand: str
    payload: bytes
    #: UUID of the entity that sent the request.
    sender: str
    number: int


class Connected(NamedTuple):
    """A session is established."""

    #: UUID and roles of this client.
    uuid: str
    roles: List[str]
    #: The members that docs/session.md lists: uuid, roles, name, address, tracing.
    server: Dict[str, Any]


class Disconnected(NamedTuple):
    """The session is lost."""

    reason: str
    retrying: bool


class Unreachable(NamedTuple):
    """No server can be reached at present."""

    reason: str


Event = Union[Frame, Request, Connected, Disconnected, Unreachable]


class Session:
    """A session with a server. The program connects again whenever the session is lost.

    Settings that are not given come from the environment and the user's contexts, as with
    `ssntp send`. `applications` are the application's own frames, as in
    ``["EVENT/0x80=Scaled", "0x81=QUERY:request"]``. `timeout` is the time in seconds that a
    send may wait for a session and for room, and a request for its answer.

    Any thread may use a session. If 1024 events, or 64 MiB, wait to be received, the server is
    held back. While a thread waits for an answer, further events are accepted as well.
    """

    def __init__(
        self,
        *,
        connect: Optional[str] = None,
        ca: Optional[str] = None,
        cert: Optional[str] = None,
        key: Optional[str] = None,
        crl: Sequence[str] = (),
        context: Optional[str] = None,
        server_name: Optional[str] = None,
        role: Optional[str] = None,
        uuid: Optional[str] = None,
        applications: Sequence[str] = (),
        timeout: float = 30.0,
        program: str = "ssntp",
    ) -> None:
        command: List[str] = [program, "session", "--json", "--timeout", repr(float(timeout))]
        given = {
            "connect": connect, "ca": ca, "cert": cert, "key": key, "context": context,
            "server-name": server_name, "role": role, "uuid": uuid,
        }
        command += ["--%s=%s" % (name, value) for name, value in given.items() if value is not None]
        command += ["--crl=%s" % path for path in crl]
        command += ["--application=%s" % application for application in applications]
        self._timeout = timeout
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._writing = threading.Lock()
        # Guards all fields below, and wakes the threads that wait for a change of them.
        self._changed = threading.Condition()
        self._last_id = 0
        # By id; None until the answer has arrived.
        self._answers: Dict[int, Optional[Dict[str, Any]]] = {}
        self._events: Deque[Event] = collections.deque()
        self._bytes = 0
        self._connected: Optional[Connected] = None
        self._closing = False
        self._ended: Optional[str] = None
        self._reader = threading.Thread(target=self._read, name="ssntp-session", daemon=True)
        self._reader.start()

    # Sending

    def send(
        self,
        operand: str,
        payload: Payload = b"",
        timeout: Optional[float] = None,
        trace: Optional[str] = None,
        traceparent: Optional[str] = None,
    ) -> None:
        """Sends a frame: puts it into the session's queue, which is sent at once.

        With `trace`, a label, or `traceparent`, in the form of W3C Trace Context, it is traced.
        Raises `Error` if the frame was not accepted.
        """
        self._ask(_frame(operand, payload, timeout, trace, traceparent))

    def send_counted(
        self,
        operand: str,
        payload: Payload = b"",
        timeout: Optional[float] = None,
        trace: Optional[str] = None,
        traceparent: Optional[str] = None,
    ) -> int:
        """Sends a frame as `send`, and returns the number of sessions that the server handed it to.

        Raises `Error`: with the codes `disconnected` and `timed_out` the frame may be lost.
        """
        line = _frame(operand, payload, timeout, trace, traceparent)
        receivers = self._ask({**line, "receipt": True})["receivers"]
        assert isinstance(receivers, int)
        return receivers

    def request(
        self,
        operand: str,
        payload: Payload = b"",
        to: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> bytes:
        """Sends a request to the server, or to the client with the UUID `to`, and returns the reply.

        Raises `Refused` if the receiver refuses the request, else `Error`: `timed_out`,
        `disconnected`, and the codes of `send`.
        """
        line = {"do": "request", "operand": operand, **_encoded(payload), **_limit(timeout)}
        if to is not None:
            line["to"] = to
        return _payload(self._ask(line))

    def reply(self, request: Request, payload: Payload = b"") -> None:
        """Answers a request."""
        self._ask({"do": "reply", "request": request.number, **_encoded(payload)})

    def refuse(self, request: Request, reason: str) -> None:
        """Refuses a request with a reason."""
        self._ask({"do": "refuse", "request": request.number, "reason": reason})

    # Receiving

    def wait_connected(self, timeout: Optional[float] = None) -> Connected:
        """Waits until a session is established, and returns it.

        Raises `TimeoutError`, and `Ended`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._connected or self._ended is not None, timeout):
                raise TimeoutError("no session is established")
            if self._connected is None:
                raise self._why()
            return self._connected

    def receive(self, timeout: Optional[float] = None) -> Event:
        """The next event.

        Raises `TimeoutError`, and `Ended` once all have been received.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._events or self._ended is not None, timeout):
                raise TimeoutError("nothing was received")
            if not self._events:
                raise self._why()
            event = self._events.popleft()
            self._bytes -= _size(event)
            self._changed.notify_all()
            return event

    def events(self) -> Iterator[Event]:
        """Iterates over all events until `close`. Raises `Ended` if the session ends otherwise."""
        while True:
            try:
                yield self.receive()
            except Ended:
                if self._closing:
                    return
                raise

    def frames(self) -> Iterator[Frame]:
        """Iterates over all frames, as `events`. Refuses requests, and discards other events."""
        for event in self.events():
            if isinstance(event, Frame):
                yield event
            elif isinstance(event, Request):
                try:
                    self.refuse(event, "not_answered")
                except Error:
                    pass  # The sender of the request, or this client, has no session.

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    # The end

    def close(self) -> None:
        """Sends the queue, and ends the session. A second call does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        try:
            # Another thread may be blocked in a write, because the program does not read.
            if self._writing.acquire(timeout=self._timeout + 5):
                try:
                    if self._process.stdin is not None:
                        self._process.stdin.close()
                except OSError:
                    pass
                finally:
                    self._writing.release()
            self._process.wait(self._timeout + 35)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._reader.join()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Internal

    def _ask(self, line: Dict[str, Any]) -> Dict[str, Any]:
        with self._changed:
            if self._closing or self._ended is not None:
                raise self._why()
            self._last_id += 1
            mine = line["id"] = self._last_id
            self._answers[mine] = None
            self._changed.notify_all()
        try:
            text = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            try:
                with self._writing:
                    stdin = self._process.stdin
                    if stdin is None or stdin.closed:
                        raise self._why()
                    stdin.write(text)
                    stdin.flush()
            except OSError:
                pass  # The program has ended, and the reader gets the reason.
            with self._changed:
                self._changed.wait_for(
                    lambda: self._answers[mine] is not None or self._ended is not None
                )
                answer = self._answers[mine]
                if answer is None:
                    raise self._why()
        finally:
            with self._changed:
                del self._answers[mine]
        if answer["ok"]:
            return answer
        error = answer["error"]
        kinds = {"refused": Refused, "ended": Ended}
        raise kinds.get(error["code"], Error)(error["code"], error["message"])

    def _why(self) -> Ended:
        return Ended("ended", self._ended or "the session was closed")

    def _read(self) -> None:
        """Reads the program's lines until it ends."""
        why = ""
        stdout = self._process.stdout
        assert stdout is not None
        try:
            for text in stdout:
                line = json.loads(text)
                if line["event"] == "closed":
                    why = line["reason"]
                else:
                    self._take(line)
        except ValueError as error:
            why = "the program ssntp wrote an invalid line: %s" % error
        finally:
            stdout.close()
            with self._changed:
                self._connected = None
                self._ended = why or "the program ssntp has ended"
                self._changed.notify_all()

    def _take(self, line: Dict[str, Any]) -> None:
        with self._changed:
            if line["event"] == "answer":
                if line["id"] in self._answers:
                    self._answers[line["id"]] = line
                    self._changed.notify_all()
                return
            event = _event(line)
            if event is None:
                return
            # Waits for room. While a thread waits for an answer, the bound does not apply: the answer
            # may be after this event.
            self._changed.wait_for(
                lambda: self._closing
                or (len(self._events) < 1024 and self._bytes < 64 << 20)
                or any(answer is None for answer in self._answers.values())
            )
            if isinstance(event, Connected):
                self._connected = event
            elif isinstance(event, Disconnected):
                self._connected = None
            # While closing, events are dropped, so that closing does not wait for a receiver.
            if not self._closing:
                self._events.append(event)
                self._bytes += _size(event)
            self._changed.notify_all()


def _event(line: Dict[str, Any]) -> Optional[Event]:
    event = line["event"]
    if event == "frame":
        sender = line.get("from", {}).get("uuid")
        return Frame(line["type"], line["operand"], _payload(line), sender, line.get("trace"))
    if event == "request":
        return Request(line["operand"], _payload(line), line["from"]["uuid"], line["request"])
    if event == "connected":
        return Connected(line["uuid"], line["roles"], line["server"])
    if event == "disconnected":
        return Disconnected(line["reason"], line["retrying"])
    if event == "unreachable":
        return Unreachable(line["reason"])
    # Later versions of the program may send other events.
    return None


def _size(event: Event) -> int:
    return len(event.payload) if isinstance(event, (Frame, Request)) else 0


def _frame(
    operand: str,
    payload: Payload,
    timeout: Optional[float],
    trace: Optional[str],
    traceparent: Optional[str],
) -> Dict[str, Any]:
    line = {"do": "send", "operand": operand, **_encoded(payload), **_limit(timeout)}
    traced = {"trace": trace, "traceparent": traceparent}
    line.update((name, value) for name, value in traced.items() if value is not None)
    return line


def _encoded(payload: Payload) -> Dict[str, str]:
    if isinstance(payload, str):
        # Always base64: a text with many escapes could make the line too long.
        payload = payload.encode()
    return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def _payload(line: Dict[str, Any]) -> bytes:
    if "payload_base64" in line:
        return base64.b64decode(line["payload_base64"])
    return line.get("payload", "").encode()


def _limit(timeout: Optional[float]) -> Dict[str, float]:
    return {} if timeout is None else {"timeout": timeout}
