//! A child process of a test. Its outputs are read line by line, and it is killed when it is dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time limit of every wait. It is longer than the limits in the program, which says for what it waited in
/// vain.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A running program.
pub struct Program {
    pub child: Child,
    /// The lines of its standard output, and of its standard error, if they are pipes.
    pub out: Receiver<String>,
    pub err: Receiver<String>,
}

/// The end of a program: its exit code, and the lines that no test has read before.
pub struct Ended {
    pub code: Option<i32>,
    pub out: Vec<String>,
    pub err: Vec<String>,
}

impl Program {
    pub fn of(mut command: Command) -> Self {
        Self::around(command.spawn().unwrap())
    }

    /// A program that runs already. Pipes that the test has taken are its own.
    pub fn around(mut child: Child) -> Self {
        let out = lines(child.stdout.take());
        let err = lines(child.stderr.take());
        Self { child, out, err }
    }

    /// As [`of`](Self::of), with a standard input that has these bytes and ends.
    pub fn with_input(mut command: Command, input: &[u8]) -> Self {
        command.stdin(Stdio::piped());
        let mut program = Self::of(command);
        // The program may end before it has read the input.
        let _ = program.child.stdin.take().unwrap().write_all(input);
        program
    }

    /// Waits for a line of its standard output with this beginning, and returns its rest.
    #[track_caller]
    pub fn line(&self, begin: &str) -> String {
        let found = search(&self.out, |line| line.starts_with(begin));
        let line = found.unwrap_or_else(|others| {
            let errors: Vec<_> = self.err.try_iter().collect();
            panic!("no line begins with {begin:?}: {others:?}; its errors: {errors:#?}")
        });
        line[begin.len()..].to_owned()
    }

    /// The same of its standard error.
    #[track_caller]
    pub fn error_line(&self, begin: &str) -> String {
        let found = search(&self.err, |line| line.starts_with(begin));
        let line = found.unwrap_or_else(|others| panic!("no line begins with {begin:?}: {others:?}"));
        line[begin.len()..].to_owned()
    }

    /// Waits for a line of its standard error that contains this.
    #[track_caller]
    pub fn error_with(&self, part: &str) -> String {
        let found = search(&self.err, |line| line.contains(part));
        found.unwrap_or_else(|others| panic!("no line has {part:?}: {others:?}"))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, and returns the exit code.
    pub fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Ends it in order by a signal.
    #[track_caller]
    pub fn end_by(mut self, signal: Signal) {
        self.signal(signal);
        assert_eq!(self.code(), Some(0));
    }

    /// Waits for its end.
    pub fn ended(mut self) -> Ended {
        let (out, err) = (rest(&self.out), rest(&self.err));
        let code = self.code();
        Ended { code, out, err }
    }

    /// Waits for its end, which has to be a success, and returns its output.
    #[track_caller]
    pub fn succeed(self) -> Vec<String> {
        let ended = self.ended();
        assert_eq!(ended.code, Some(0), "{:?}", ended.err);
        ended.out
    }

    /// Waits for its end with this code, and returns its one line on standard error.
    #[track_caller]
    pub fn fail(self, code: i32) -> String {
        let mut ended = self.ended();
        assert_eq!(ended.code, Some(code), "{:?}", ended.err);
        assert_eq!(ended.err.len(), 1, "{:?}", ended.err);
        let line = ended.err.remove(0);
        assert!(line.starts_with("ssntp: "), "{line}");
        line
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The next line that is as wanted, or the lines that came instead.
fn search(lines: &Receiver<String>, is_it: impl Fn(&str) -> bool) -> Result<String, Vec<String>> {
    let mut others = Vec::new();
    loop {
        match lines.recv_timeout(LIMIT) {
            Ok(line) if is_it(&line) => return Ok(line),
            Ok(line) => others.push(line),
            Err(_) => return Err(others),
        }
    }
}

/// Every line until the pipe is closed.
fn rest(lines: &Receiver<String>) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    let mut rest = Vec::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => rest.push(line),
            Err(RecvTimeoutError::Disconnected) => return rest,
            Err(RecvTimeoutError::Timeout) => panic!("the program did not end after {rest:?}"),
        }
    }
}
