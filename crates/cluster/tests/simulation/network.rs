//! A stream between a peer and the server: a bounded pipe for each direction.
//!
//! Bytes arrive in order, in whatever pieces the reader takes them. A stream
//! may be cut at any byte; what is under way then may arrive or not.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::BytesMut;

use ssntp_transport::Tried;
use ssntp_transport::{Duplex, Outgoing, PeerAddress, Transmit};

#[derive(Clone, Debug)]
pub(super) struct Stream(Arc<Mutex<Pipes>>);

#[derive(Debug)]
pub(super) struct Pipes {
    /// To the server.
    up: Pipe,
    /// To the peer.
    down: Pipe,
    cut: bool,
    /// Something that was sent to the peer may not have arrived.
    pub(super) lossy: bool,
    /// The server has ended it by a time limit, or a policy, before everything was sent.
    pub(super) cut_off: bool,
    /// The most that one write of the server takes.
    pub(super) piece: usize,
    /// How much the server has written.
    pub(super) written: u64,
}

#[derive(Debug)]
struct Pipe {
    bytes: BytesMut,
    room: usize,
    /// The writer has ended.
    end: bool,
    /// The reader takes nothing more.
    deaf: bool,
}

impl Pipe {
    fn new(room: usize) -> Self {
        Self {
            bytes: BytesMut::new(),
            room,
            end: false,
            deaf: false,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.room - self.bytes.len());
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Empty at the end of the stream.
    fn read(&mut self, most: usize) -> io::Result<BytesMut> {
        let most = most.min(self.bytes.len());
        if most == 0 && !self.end {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(self.bytes.split_to(most))
    }
}

impl Stream {
    pub(super) fn new(up: usize, down: usize) -> Self {
        Self(Arc::new(Mutex::new(Pipes {
            up: Pipe::new(up),
            down: Pipe::new(down),
            cut: false,
            lossy: false,
            cut_off: false,
            piece: usize::MAX,
            written: 0,
        })))
    }

    pub(super) fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.0.lock().unwrap()
    }

    pub(super) fn server_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipes = self.pipes();
        if pipes.cut || pipes.down.end {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let piece = bytes.len().min(pipes.piece);
        let taken = pipes.down.write(&bytes[..piece])?;
        pipes.written += taken as u64;
        Ok(taken)
    }

    pub(super) fn server_read(&self, most: usize) -> io::Result<BytesMut> {
        let mut pipes = self.pipes();
        if pipes.up.deaf {
            return Ok(BytesMut::new());
        }
        if pipes.cut && pipes.up.bytes.is_empty() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        pipes.up.read(most)
    }

    pub(super) fn server_ends(&self) {
        self.pipes().down.end = true;
    }

    pub(super) fn server_shuts_down(&self) {
        let mut pipes = self.pipes();
        pipes.down.end = true;
        pipes.up.deaf = true;
        pipes.up.bytes.clear();
    }

    pub(super) fn peer_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipes = self.pipes();
        if pipes.cut || pipes.up.deaf {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        pipes.up.write(bytes)
    }

    pub(super) fn peer_read(&self, most: usize) -> io::Result<BytesMut> {
        let mut pipes = self.pipes();
        if pipes.cut {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        pipes.down.read(most)
    }

    pub(super) fn peer_ends(&self) {
        self.pipes().up.end = true;
    }

    /// Cuts the stream. What is under way to the server arrives or is lost.
    pub(super) fn cut(&self, keep: bool) {
        let mut pipes = self.pipes();
        pipes.cut = true;
        pipes.lossy = true;
        pipes.down.bytes.clear();
        if !keep {
            pipes.up.bytes.clear();
        }
    }

    /// Whether bytes for the peer are under way.
    pub(super) fn holds_for_peer(&self) -> usize {
        self.pipes().down.bytes.len()
    }
}

/// The server's end. Where it would block it says `WouldBlock`.
impl Duplex for Stream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.server_read(buffer.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(buffer)
    }

    fn wait_readable(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_readable(&self) -> bool {
        let pipes = self.pipes();
        pipes.up.deaf || pipes.cut || pipes.up.end || !pipes.up.bytes.is_empty()
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.server_write(bytes)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match how {
            Shutdown::Write => self.server_ends(),
            _ => {
                let mut pipes = self.pipes();
                pipes.cut_off |= !pipes.down.end;
                drop(pipes);
                self.server_shuts_down();
            }
        }
        Ok(())
    }

    fn set_read_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn set_write_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn peer(&self) -> PeerAddress {
        PeerAddress::Memory
    }
}

/// The sending direction as the outbox uses it. Where the real one would wait,
/// it says `WouldBlock` and goes on from there when it is called again.
#[derive(Debug)]
pub(super) struct SimTransmit {
    stream: Stream,
    /// The batch that is being sent, and how much of it is.
    batch: Vec<u8>,
    done: usize,
    rest: Vec<u8>,
    written: Arc<AtomicU64>,
}

impl SimTransmit {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            batch: Vec::new(),
            done: 0,
            rest: Vec::new(),
            written: Arc::default(),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.stream.server_write(bytes)?;
        self.written.fetch_add(sent as u64, Ordering::Relaxed);
        Ok(sent)
    }

    fn send_rest(&mut self) -> io::Result<()> {
        while !self.rest.is_empty() {
            let sent = self.write(&self.rest)?;
            self.rest.drain(..sent);
        }
        Ok(())
    }
}

fn bytes_of(item: &Outgoing) -> Vec<u8> {
    item.parts().collect::<Vec<_>>().concat()
}

impl Transmit for SimTransmit {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        self.send_rest()?;
        if self.batch.is_empty() {
            self.batch = batch.iter().map(bytes_of).collect::<Vec<_>>().concat();
        }
        while self.done < self.batch.len() {
            self.done += self.write(&self.batch[self.done..])?;
        }
        self.done = 0;
        self.batch.clear();
        Ok(())
    }

    fn try_transmit(&mut self, item: &Outgoing) -> Tried {
        // The ledger counts a batch for as long as it is being written.
        assert!(self.batch.is_empty(), "sent past a writer that is writing");
        if item.len() > 32 * 1024 || !self.rest.is_empty() {
            return Tried::Not;
        }
        let bytes = bytes_of(item);
        let sent = self.write(&bytes).unwrap_or(0);
        if sent == bytes.len() {
            return Tried::Sent;
        }
        self.rest = bytes[sent..].to_vec();
        Tried::Begun
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_rest()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.send_rest()?;
        self.stream.server_ends();
        Ok(())
    }

    fn count_in(&mut self, written: Arc<AtomicU64>) {
        self.written = written;
    }

    fn idle(&mut self) {}
}
