"""Tests of `ssntp`, against a server at unix:socket in the present directory.

`cargo test --test cli python` makes that server and its certificates, and says by
SSNTP_PROGRAM where the program is.
"""

import faulthandler
import os
import threading
import unittest
import uuid
from typing import Any

import ssntp

LIMIT = 60.0
APPLICATIONS = ["EVENT/0x80=Scaled", "0x81=QUERY:request"]


def session(role: str, **more: Any) -> ssntp.Session:
    return ssntp.Session(
        connect="unix:socket",
        ca="ca.pem",
        cert=role + ".pem",
        applications=APPLICATIONS,
        program=os.environ.get("SSNTP_PROGRAM", "ssntp"),
        **more,
    )


class Sessions(unittest.TestCase):
    def test_frames_arrive_in_order_as_they_were_sent(self) -> None:
        with session("controller") as controller, session("agent") as agent:
            controller.wait_connected(LIMIT)
            sent = ["load: 1", "gr\u00fcn\n", b"\x00\xff", b""]
            for payload in sent:
                agent.send("STATS", payload)
            frames = iter(controller)
            for payload in sent:
                frame = next(frames)
                expected = payload.encode() if isinstance(payload, str) else payload
                self.assertEqual((frame.type, frame.operand, frame.payload), ("COMMAND", "STATS", expected))
            self.assertEqual(agent.send_counted("STATS", "load: 2"), 1)

    def test_a_traced_frame_shows_its_way(self) -> None:
        with session("controller") as controller, session("agent") as agent:
            controller.wait_connected(LIMIT)
            of_agent = agent.wait_connected(LIMIT).uuid
            frames = iter(controller)
            agent.send("STATS", trace="one")
            parent = "00-%s-%s-01" % ("a1" * 16, "b2" * 8)
            self.assertEqual(agent.send_counted("STATS", traceparent=parent), 1)
            agent.send("STATS")
            one, two, plain = next(frames), next(frames), next(frames)
            assert one.trace is not None and two.trace is not None
            self.assertEqual((one.trace["label"], one.trace["nodes"][0]["uuid"]), ("one", of_agent))
            self.assertEqual((one.sender, plain.sender, plain.trace), (of_agent, None, None))
            self.assertEqual((two.trace["trace_id"], two.trace["span_id"]), ("a1" * 16, "b2" * 8))
            with self.assertRaisesRegex(ssntp.Error, "traceparent"):
                agent.send("STATS", traceparent="00-1")

    def test_a_request_is_answered_or_refused(self) -> None:
        with session("agent") as asked, session("controller") as asker:
            to = asked.wait_connected(LIMIT).uuid

            def answer() -> None:
                for event in asked.events():
                    if isinstance(event, ssntp.Request):
                        if event.payload == b"no":
                            asked.refuse(event, "not today")
                        else:
                            asked.reply(event, event.payload[::-1])

            thread = threading.Thread(target=answer)
            thread.start()
            self.assertEqual(asker.request("QUERY", b"\xff\x00a", to=to), b"a\x00\xff")
            with self.assertRaisesRegex(ssntp.Refused, "not today"):
                asker.request("QUERY", "no", to=to)
            asked.close()
            thread.join(LIMIT)
            self.assertFalse(thread.is_alive())

    def test_the_iterator_of_frames_refuses_requests(self) -> None:
        with session("controller") as asked, session("agent") as asker:
            to = asked.wait_connected(LIMIT).uuid
            thread = threading.Thread(target=lambda: list(asked))
            thread.start()
            with self.assertRaisesRegex(ssntp.Refused, "not_answered"):
                asker.request("QUERY", to=to)
            asked.close()
            thread.join(LIMIT)

    def test_a_wrong_call_raises_and_the_session_continues(self) -> None:
        with session("agent") as agent:
            for operand, code in [("STAT", "unknown_operand"), ("QUERY", "bad_operand")]:
                with self.assertRaises(ssntp.Error) as raised:
                    agent.send(operand)
                self.assertEqual(raised.exception.code, code)
            with self.assertRaises(ssntp.Error) as raised:
                agent.send("STATS", b"x" * ((16 << 20) + 1))
            self.assertEqual(raised.exception.code, "too_long")
            with self.assertRaises(ssntp.Refused):
                agent.request("QUERY", to=str(uuid.uuid4()))
            agent.send("STATS", "still here")
        with self.assertRaises(ssntp.Ended):
            agent.send("STATS")
        agent.close()

    def test_a_session_that_cannot_be_established_has_a_reason(self) -> None:
        with session("nobody") as impossible:
            with self.assertRaisesRegex(ssntp.Ended, "nobody.pem"):
                impossible.wait_connected(LIMIT)
            with self.assertRaises(ssntp.Ended):
                next(iter(impossible))

    def test_many_frames_wait_for_a_reader_that_answers_each(self) -> None:
        count = 3000
        with session("controller") as controller, session("agent") as agent:
            controller.wait_connected(LIMIT)

            def send() -> None:
                for number in range(count):
                    agent.send("STATS", str(number))

            thread = threading.Thread(target=send)
            thread.start()
            frames = iter(controller)
            for number in range(count):
                self.assertEqual(next(frames).payload, str(number).encode())
                if number % 500 == 0:
                    controller.send("Scaled", "seen")
            thread.join(LIMIT)


if __name__ == "__main__":
    # A test that hangs prints its stack.
    faulthandler.dump_traceback_later(5 * LIMIT, exit=True)
    unittest.main()
