//! A process in one of the roles, controlled by lines on its standard input and output.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Longer than the time limits of the processes themselves.
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

    /// The next line that the process prints; panics if none arrives in time.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(why) => panic!("{}: no answer, {why}", self.name),
        }
    }

    /// The next line, if it arrives within a second.
    pub(crate) fn line_soon(&self) -> Option<String> {
        match self.lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("{}: it has ended", self.name),
        }
    }

    /// Stops all threads of the process.
    pub(crate) fn stop(&self) {
        let pid = self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: the process is our child, and the pointer is to a local variable.
        let stopped = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
        assert!(stopped == pid && libc::WIFSTOPPED(status), "{}", self.name);
    }

    /// Continues a stopped process.
    pub(crate) fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) -> i32 {
        let pid = self.child.id().try_into().unwrap();
        // SAFETY: the process is our child and has not been waited for.
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

    /// Kills the process by SIGKILL.
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
