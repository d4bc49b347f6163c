"""Sessions of SSNTP for Python 3.8 and later, by the program ``ssntp``.

``ssntp session --json`` holds the session, and connects again where it is lost;
this module starts it and speaks its lines (docs/session.md). It needs nothing but
the standard library, and the program in the path.

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
    """What was asked for was not done. ``code`` says why, as docs/session.md lists it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Refused(Error):
    """Who was asked does not answer; the message says why."""


class Ended(Error):
    """The session is over for good; the message says why."""


class Frame(NamedTuple):
    """A frame that has arrived."""

    type: str
    operand: str
    payload: bytes
    #: UUID of the sender, where it had the frame traced.
    sender: Optional[str]


class Request(NamedTuple):
    """A request that has arrived: see `Session.reply` and `Session.refuse`."""

    operand: str
    payload: bytes
    #: UUID of who asks.
    sender: str
    number: int


class Connected(NamedTuple):
    """A session stands."""

    #: UUID and roles of this client.
    uuid: str
    role: str
    #: What docs/session.md lists: uuid, role, name, address, tracing.
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
    """A session with a server, stood up again whenever it is lost.

    What is not given is taken from the environment and the user's contexts, as
    `ssntp send` takes it. `applications` are the frames of one's own, as in
    ``["EVENT/0x80=Scaled", "0x81=QUERY:request"]``. `timeout` is how long, in
    seconds, a send may wait for a session and for room, and a request for its
    answer.

    Any thread may use it. Events that nobody receives hold the server back once
    1024 of them, or 64 MiB, wait; while a thread waits for an answer, what comes
    before that answer is taken as well.
    """

    def __init__(
        self,
        *,
        connect: Optional[str] = None,
        ca: Optional[str] = None,
        cert: Optional[str] = None,
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
            "connect": connect, "ca": ca, "cert": cert, "context": context,
            "server-name": server_name, "role": role, "uuid": uuid,
        }
        command += ["--%s=%s" % (name, value) for name, value in given.items() if value is not None]
        command += ["--application=%s" % application for application in applications]
        self._timeout = timeout
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._writing = threading.Lock()
        # Guards all below, and wakes whoever waits for any of it.
        self._changed = threading.Condition()
        self._last_id = 0
        # By id: None until the answer has come.
        self._answers: Dict[int, Optional[Dict[str, Any]]] = {}
        self._events: Deque[Event] = collections.deque()
        self._bytes = 0
        self._connected: Optional[Connected] = None
        self._closing = False
        self._ended: Optional[str] = None
        self._reader = threading.Thread(target=self._read, name="ssntp-session", daemon=True)
        self._reader.start()

    # Sending

    def send(self, operand: str, payload: Payload = b"", timeout: Optional[float] = None) -> None:
        """Sends a frame: it waits in the session's queue when this returns.

        Raises `Error` where it was not sent.
        """
        self._ask({"do": "send", "operand": operand, **_encoded(payload), **_limit(timeout)})

    def send_counted(self, operand: str, payload: Payload = b"", timeout: Optional[float] = None) -> int:
        """Sends a frame, and waits until the server says how many sessions it handed it to.

        Raises `Error`: with the codes `disconnected` and `timed_out` the frame may be lost.
        """
        line = {"do": "send", "operand": operand, "receipt": True}
        receivers = self._ask({**line, **_encoded(payload), **_limit(timeout)})["receivers"]
        assert isinstance(receivers, int)
        return receivers

    def request(
        self,
        operand: str,
        payload: Payload = b"",
        to: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> bytes:
        """Asks the server, or the entity with the UUID `to`, and waits for the reply.

        Raises `Refused` where there will be none, else `Error`: `timed_out`,
        `disconnected`, and what `send` has.
        """
        line = {"do": "request", "operand": operand, **_encoded(payload), **_limit(timeout)}
        if to is not None:
            line["to"] = to
        return _payload(self._ask(line))

    def reply(self, request: Request, payload: Payload = b"") -> None:
        """Answers a request."""
        self._ask({"do": "reply", "request": request.number, **_encoded(payload)})

    def refuse(self, request: Request, reason: str) -> None:
        """Says that there will be no reply, and why."""
        self._ask({"do": "refuse", "request": request.number, "reason": reason})

    # Receiving

    def wait_connected(self, timeout: Optional[float] = None) -> Connected:
        """Waits until a session stands, and says which.

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
        """Every event, until the session is closed. Raises `Ended` where it ends otherwise."""
        while True:
            try:
                yield self.receive()
            except Ended:
                if self._closing:
                    return
                raise

    def frames(self) -> Iterator[Frame]:
        """Every frame, as `events`. Requests meanwhile are refused; other events are passed over."""
        for event in self.events():
            if isinstance(event, Frame):
                yield event
            elif isinstance(event, Request):
                try:
                    self.refuse(event, "not_answered")
                except Error:
                    pass  # Then its asker has no session, or we have none.

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    # The end

    def close(self) -> None:
        """Waits until what was sent has left, and ends the session. A second call does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        try:
            # A thread that writes may wait for a program that does not read.
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

    # Below the surface

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
                pass  # The program has ended: the reader learns why.
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
        """Takes the program's lines until it ends."""
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
            why = "the program ssntp wrote what is no line of a session: %s" % error
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
            # An answer may come behind it, and nobody receives while they wait.
            self._changed.wait_for(
                lambda: self._closing
                or (len(self._events) < 1024 and self._bytes < 64 << 20)
                or any(answer is None for answer in self._answers.values())
            )
            if isinstance(event, Connected):
                self._connected = event
            elif isinstance(event, Disconnected):
                self._connected = None
            # Nobody has to receive them for a session to be closed.
            if not self._closing:
                self._events.append(event)
                self._bytes += _size(event)
            self._changed.notify_all()


def _event(line: Dict[str, Any]) -> Optional[Event]:
    event = line["event"]
    if event == "frame":
        sender = line.get("from", {}).get("uuid")
        return Frame(line["type"], line["operand"], _payload(line), sender)
    if event == "request":
        return Request(line["operand"], _payload(line), line["from"]["uuid"], line["request"])
    if event == "connected":
        return Connected(line["uuid"], line["role"], line["server"])
    if event == "disconnected":
        return Disconnected(line["reason"], line["retrying"])
    if event == "unreachable":
        return Unreachable(line["reason"])
    # A later program may tell more.
    return None


def _size(event: Event) -> int:
    return len(event.payload) if isinstance(event, (Frame, Request)) else 0


def _encoded(payload: Payload) -> Dict[str, str]:
    if isinstance(payload, str):
        # Text may be long in JSON where much of it is escaped.
        payload = payload.encode()
    return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def _payload(line: Dict[str, Any]) -> bytes:
    if "payload_base64" in line:
        return base64.b64decode(line["payload_base64"])
    return line.get("payload", "").encode()


def _limit(timeout: Optional[float]) -> Dict[str, float]:
    return {} if timeout is None else {"timeout": timeout}
