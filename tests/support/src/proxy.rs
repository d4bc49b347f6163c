//! A proxy in front of a TCP address, with which a test cuts or delays connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval at which a thread checks whether the proxy's state has changed.
const LOOK: Duration = Duration::from_millis(20);

/// A proxy with an address of its own. Dropping it ends all connections and threads.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    way: Arc<Mutex<Way>>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Way {
    to: Option<SocketAddr>,
    /// True if the proxy carries no bytes. Connections stay open, and bytes wait.
    is_cut: bool,
    /// The delay of answers.
    delay: Duration,
    is_over: bool,
}

fn lock(way: &Mutex<Way>) -> MutexGuard<'_, Way> {
    way.lock().unwrap()
}

impl Proxy {
    /// A proxy that closes new connections until `lead_to` is called.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let way = Arc::new(Mutex::new(Way::default()));
        let shared = Arc::clone(&way);
        let accepts = std::thread::spawn(move || accept(&listener, &shared));
        Self {
            address,
            way,
            accepts: Some(accepts),
        }
    }

    /// The address of the proxy as HOST:PORT.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Sets the address to which new connections are carried.
    pub fn lead_to(&self, address: &str) {
        lock(&self.way).to = Some(address.parse().unwrap());
    }

    /// Stops carrying bytes in both directions, or carries them again, with those that have waited.
    pub fn cut(&self, is_cut: bool) {
        lock(&self.way).is_cut = is_cut;
    }

    /// Sets the delay of answers.
    pub fn delay(&self, delay: Duration) {
        lock(&self.way).delay = delay;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        lock(&self.way).is_over = true;
        // This connection wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
    }
}

fn accept(listener: &TcpListener, way: &Arc<Mutex<Way>>) {
    let mut pumps = Vec::new();
    while let Ok((near, _)) = listener.accept() {
        let to = {
            let way = lock(way);
            if way.is_over {
                break;
            }
            way.to
        };
        let Some(far) = to.and_then(|to| TcpStream::connect(to).ok()) else {
            continue;
        };
        let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
        for (from, to, is_answer) in [
            (near, far, false),
            (ends[1].try_clone().unwrap(), ends[0].try_clone().unwrap(), true),
        ] {
            let way = Arc::clone(way);
            pumps.push(std::thread::spawn(move || pump(from, to, is_answer, &way)));
        }
        pumps.retain(|pump: &JoinHandle<()>| !pump.is_finished());
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

/// Carries bytes from one side to the other until one of them or the proxy has ended.
fn pump(mut from: TcpStream, mut to: TcpStream, is_answer: bool, way: &Mutex<Way>) {
    let mut buffer = [0; 16 * 1024];
    from.set_read_timeout(Some(LOOK)).unwrap();
    while !lock(way).is_over {
        let len = match from.read(&mut buffer) {
            Ok(len) => len,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => 0,
        };
        let came = Instant::now();
        let may_pass = || {
            let way = lock(way);
            way.is_over || !(way.is_cut || is_answer && came.elapsed() < way.delay)
        };
        while !may_pass() {
            std::thread::sleep(LOOK);
        }
        if len == 0 || to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}
