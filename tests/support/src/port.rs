//! A port of loopback that belongs to one test, even while no program listens there.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// A port that is bound, but at which this process does not listen. Programs can listen there one after
/// the other, because they set `SO_REUSEADDR`; while none does, connections are refused. A port that was
/// only free for a moment could meanwhile be given to another test, even to a client's connection.
#[derive(Debug)]
pub struct HeldPort {
    address: SocketAddr,
    _held: Socket,
}

impl HeldPort {
    /// Takes a free port.
    pub fn new() -> Self {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.set_reuse_address(true).unwrap();
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = held.local_addr().unwrap().as_socket().unwrap();
        Self { address, _held: held }
    }

    /// The number of the port.
    pub fn number(&self) -> u16 {
        self.address.port()
    }

    /// The address as HOST:PORT.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Default for HeldPort {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::HeldPort;

    #[test]
    fn a_held_port_refuses_connections_and_can_be_listened_at_again_and_again() {
        let port = HeldPort::new();
        for _ in 0..3 {
            assert!(TcpStream::connect(port.address()).is_err());
            let listener = TcpListener::bind(port.address()).unwrap();
            let client = TcpStream::connect(port.address()).unwrap();
            // The side that ends first keeps the port in TIME_WAIT.
            drop(listener.accept().unwrap());
            drop(client);
        }
    }
}
