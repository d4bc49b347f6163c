//! A stream between two ends: a bounded pipe for each direction.
//!
//! Bytes arrive in order, in the pieces that the reader takes, and after a delay. A stream may be cut
//! at any byte. Then the bytes on their way arrive or are lost. It may also stall, so that no byte
//! arrives and neither end notices.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use ssntp_transport::{Duplex, Outgoing, PeerAddress, Transmit, Tried};

/// One end of a stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pipes: Arc<Mutex<Pipes>>,
    end: usize,
}

#[derive(Debug)]
pub(super) struct Pipes {
    /// The bytes under way, in each of the two directions.
    pipes: [Pipe; 2],
    cut: bool,
    /// True if sent bytes may not have arrived.
    pub(super) lossy: bool,
    /// True if a server ended the stream by a time limit or a policy before everything was sent.
    pub(super) cut_off: bool,
    /// The time of the last step.
    now: Option<Instant>,
    /// The delay of bytes.
    delay: Duration,
    stalls: bool,
}

#[derive(Debug)]
struct Pipe {
    bytes: BytesMut,
    /// The number of bytes that have arrived, and the times at which further bytes arrive.
    here: usize,
    on_their_way: VecDeque<(Instant, usize)>,
    room: usize,
    /// True if the writer has ended.
    end: bool,
    /// True if the reader takes no more bytes.
    deaf: bool,
    /// The maximum that one write takes.
    piece: usize,
    /// The number of bytes that were written.
    written: u64,
}

impl Pipe {
    fn new(room: usize) -> Self {
        Self {
            bytes: BytesMut::new(),
            here: 0,
            on_their_way: VecDeque::new(),
            room,
            end: false,
            deaf: false,
            piece: usize::MAX,
            written: 0,
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.here = 0;
        self.on_their_way.clear();
    }

    fn write(&mut self, bytes: &[u8], arrives: Option<Instant>) -> io::Result<usize> {
        let taken = bytes.len().min(self.piece).min(self.room - self.bytes.len());
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.bytes.extend_from_slice(&bytes[..taken]);
        self.written += taken as u64;
        match arrives {
            Some(at) => self.on_their_way.push_back((at, taken)),
            None => self.here += taken,
        }
        Ok(taken)
    }

    /// Empty at the end of the stream.
    fn read(&mut self, most: usize, stalls: bool) -> io::Result<BytesMut> {
        let most = most.min(self.here);
        if most == 0 && !(self.end && self.bytes.is_empty() && !stalls) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.here -= most;
        Ok(self.bytes.split_to(most))
    }
}

impl Pipes {
    /// True if one of the ends could notice that it is cut.
    fn is_cut(&self) -> bool {
        self.cut && !self.stalls
    }
}

impl Stream {
    /// Makes both ends. `rooms` has the capacity for the bytes that each of them sends.
    pub(super) fn new(rooms: [usize; 2]) -> [Self; 2] {
        let pipes = Arc::new(Mutex::new(Pipes {
            pipes: rooms.map(Pipe::new),
            cut: false,
            lossy: false,
            cut_off: false,
            now: None,
            delay: Duration::ZERO,
            stalls: false,
        }));
        [0, 1].map(|end| Self {
            pipes: Arc::clone(&pipes),
            end,
        })
    }

    pub(super) fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap()
    }

    /// Sets the delay of bytes that this end sends from now on.
    pub(super) fn delay(&self, delay: Duration) {
        self.pipes().delay = delay;
    }

    /// Stalls the stream, so that no bytes arrive, or continues it.
    pub(super) fn stall(&self, stalls: bool) {
        self.pipes().stalls = stalls;
    }

    /// Sets the time. Returns the time at which the next bytes arrive.
    pub(super) fn advance(&self, now: Instant) -> Option<Instant> {
        let mut pipes = self.pipes();
        pipes.now = Some(now);
        if pipes.stalls {
            return None;
        }
        let mut next = None;
        for pipe in &mut pipes.pipes {
            while let Some((at, length)) = pipe.on_their_way.front().copied() {
                if at > now {
                    next = [next, Some(at)].into_iter().flatten().min();
                    break;
                }
                pipe.on_their_way.pop_front();
                pipe.here += length;
            }
        }
        next
    }

    /// The number of bytes that this end has written.
    pub(super) fn written(&self) -> u64 {
        self.pipes().pipes[self.end].written
    }

    /// The maximum that one write of this end takes.
    pub(super) fn set_piece(&self, piece: usize) {
        self.pipes().pipes[self.end].piece = piece;
    }

    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipes = self.pipes();
        let arrives = pipes.now.filter(|_| !pipes.delay.is_zero());
        let arrives = arrives.map(|now| now + pipes.delay);
        let cut = pipes.is_cut();
        let pipe = &mut pipes.pipes[self.end];
        if cut || pipe.end || pipe.deaf {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        pipe.write(bytes, arrives)
    }

    pub(super) fn receive(&self, most: usize) -> io::Result<BytesMut> {
        let mut pipes = self.pipes();
        let (cut, stalls) = (pipes.is_cut(), pipes.stalls);
        let pipe = &mut pipes.pipes[1 - self.end];
        if pipe.deaf {
            return Ok(BytesMut::new());
        }
        if cut && pipe.bytes.is_empty() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        pipe.read(most, stalls)
    }

    /// Ends the sending direction of this end.
    pub(super) fn end(&self) {
        self.pipes().pipes[self.end].end = true;
    }

    /// Ends both directions of this end.
    pub(super) fn shut_down(&self) {
        let mut pipes = self.pipes();
        pipes.pipes[self.end].end = true;
        let other = &mut pipes.pipes[1 - self.end];
        other.deaf = true;
        other.clear();
    }

    /// Cuts the stream, with or without notice. The bytes that this end has sent arrive or are lost.
    pub(super) fn cut(&self, keep: bool) {
        let mut pipes = self.pipes();
        pipes.cut = true;
        pipes.lossy = true;
        pipes.pipes[1 - self.end].clear();
        if !keep {
            pipes.pipes[self.end].clear();
        }
    }

    /// True if this end could notice without reading that the other one is gone.
    pub(super) fn is_gone(&self) -> bool {
        let pipes = self.pipes();
        pipes.is_cut() || pipes.pipes[self.end].deaf
    }

    /// True if no byte that was sent was lost.
    pub(super) fn is_whole(&self) -> bool {
        let pipes = self.pipes();
        !pipes.lossy && !pipes.cut_off
    }

    /// The number of bytes on their way to this end.
    pub(super) fn holds(&self) -> usize {
        self.pipes().pipes[1 - self.end].bytes.len()
    }
}

/// A server's end. Instead of blocking, it returns `WouldBlock`.
impl Duplex for Stream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.receive(buffer.len())?;
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
        let pipe = &pipes.pipes[1 - self.end];
        let ends = pipe.end && pipe.bytes.is_empty() && !pipes.stalls;
        pipe.deaf || pipes.is_cut() && pipe.here == pipe.bytes.len() || ends || pipe.here > 0
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match how {
            Shutdown::Write => self.end(),
            _ => {
                let mut pipes = self.pipes();
                pipes.cut_off |= !pipes.pipes[self.end].end;
                drop(pipes);
                self.shut_down();
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

/// The sending direction as the outbox uses it. If the real one would wait,
/// it returns `WouldBlock` and continues there when it is called again.
#[derive(Debug)]
pub(super) struct SimTransmit {
    stream: Stream,
    /// The batch that is being sent, and the number of its bytes that were sent.
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
        let sent = self.stream.send(bytes)?;
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

pub(super) fn bytes_of(item: &Outgoing) -> Vec<u8> {
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
        self.stream.end();
        Ok(())
    }

    fn count_in(&mut self, written: Arc<AtomicU64>) {
        self.written = written;
    }

    fn idle(&mut self) {}
}
