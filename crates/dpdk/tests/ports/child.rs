//! A process in one of the roles, spoken to by lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// More than the processes themselves have with one another.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Role {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl Role {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            lines,
            name: arguments.join(" "),
        }
    }

    /// The next line the process prints; panics when none comes in time.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(why) => panic!("{}: no answer, {why}", self.name),
        }
    }

    /// The next line if it comes within a second.
    pub(crate) fn line_soon(&self) -> Option<String> {
        match self.lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("{}: it has ended", self.name),
        }
    }

    /// Stops all its threads.
    pub(crate) fn stop(&self) {
        let pid = self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: the child is ours, and the place for its status too.
        let stopped = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
        assert!(stopped == pid && libc::WIFSTOPPED(status), "{}", self.name);
    }

    /// Lets them run again.
    pub(crate) fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) -> i32 {
        let pid = self.child.id().try_into().unwrap();
        // SAFETY: the child is ours and has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        pid
    }

    pub(crate) fn expect(&self, want: &str) {
        let line = self.line();
        assert_eq!(line, want, "{}", self.name);
    }

    /// Sends a line and returns the answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.line()
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Kills the process, as an operator or the kernel would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process by closing its input, and expects success.
    pub(crate) fn finish(mut self) {
        self.input = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}: {status}", self.name);
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
