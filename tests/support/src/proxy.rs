//! A proxy before a TCP address, by which a test cuts or slows a way.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a thread looks whether the way is still as it was.
const LOOK: Duration = Duration::from_millis(20);

/// It listens at an address of its own. Dropping it ends all connections, and its threads.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    way: Arc<Mutex<Way>>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Way {
    to: Option<SocketAddr>,
    /// Nothing gets through, and nobody is told: what is sent waits.
    is_cut: bool,
    /// How much later answers arrive.
    delay: Duration,
    is_over: bool,
}

fn lock(way: &Mutex<Way>) -> MutexGuard<'_, Way> {
    way.lock().unwrap()
}

impl Proxy {
    /// Closes what connects to it until it is told where to go.
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

    /// HOST:PORT.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// New connections go there.
    pub fn lead_to(&self, address: &str) {
        lock(&self.way).to = Some(address.parse().unwrap());
    }

    /// Cuts the way in both directions, or mends it: then what was sent meanwhile arrives.
    pub fn cut(&self, is_cut: bool) {
        lock(&self.way).is_cut = is_cut;
    }

    /// From now on answers arrive so much later.
    pub fn delay(&self, delay: Duration) {
        lock(&self.way).delay = delay;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        lock(&self.way).is_over = true;
        // It wakes up the thread that accepts.
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

/// Carries what comes from one side to the other, until one of them or the test has ended.
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
