//! A peer over TCP that sends what the test sends.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use super::LIMIT;

pub(crate) struct Raw {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Raw {
    pub(crate) fn connect(address: &str) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// Waits for an element.
    pub(crate) fn accept(listener: &TcpListener) -> Self {
        Self::over(listener.accept().unwrap().0)
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    /// A client whose identity is accepted.
    pub(crate) fn identified(address: &str, name: &str, domain: &str) -> Self {
        let mut raw = Self::connect(address);
        let identity =
            json!({"proto_version": "1.0", "name": name, "domain": domain, "my_role": ["policy_element"]});
        let answer =
            raw.ask(&json!({"id": ["send_identity", 1], "method": "send_identity", "params": [identity]}));
        assert!(answer.get("result").is_some(), "{answer}");
        raw
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\0").as_bytes());
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// False if the other side has closed the connection.
    pub(crate) fn try_send(&mut self, message: &Value) -> bool {
        self.stream.write_all(format!("{message}\0").as_bytes()).is_ok()
    }

    /// The next message; `None` at the end of the connection.
    pub(crate) fn recv(&mut self) -> Option<Value> {
        let mut text = Vec::new();
        match self.reader.read_until(0, &mut text) {
            Ok(_) if text.pop() == Some(0) => Some(serde_json::from_slice(&text).unwrap()),
            Ok(_) => None,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// The next message, without echoes.
    pub(crate) fn recv_other(&mut self) -> Option<Value> {
        loop {
            let message = self.recv()?;
            if message["method"] != "echo" {
                return Some(message);
            }
        }
    }

    /// The next request of this method. Earlier messages are skipped.
    pub(crate) fn recv_method(&mut self, method: &str) -> Value {
        loop {
            let message = self.recv().expect(method);
            if message["method"] == method {
                return message;
            }
        }
    }

    /// Sends a request and waits for its answer. Earlier messages are skipped.
    pub(crate) fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        loop {
            let message = self.recv().expect("an answer");
            if message["id"] == request["id"] && message.get("method").is_none() {
                return message;
            }
        }
    }
}
