//! Metrics over HTTP on loopback, in a thread of its own (doc/tracing.md).
//!
//! The thread is a client of the control socket as any other: it has no access to the daemon's
//! state, and the data thread knows nothing of it. It serves a bounded number of connections, each
//! in bounded time, and asks for the state at most once a second.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use urdma_ipc::{metrics, ControlClient, ControlError, RunDir};

/// Time for one connection.
const CONNECTION_LIMIT: Duration = Duration::from_secs(2);
/// Connections at a time; a further one ends the oldest.
const CONNECTIONS_MAX: usize = 64;
/// Maximum length of a request.
const REQUEST_OCTETS_MAX: usize = 4096;
/// The state is asked for after this.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Pause after a failure to accept, such as one for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the metrics of the instance in `run_dir` at `address` until the process ends.
///
/// # Errors
/// The address is in use, or the thread cannot be started.
pub(crate) fn serve(address: SocketAddr, run_dir: RunDir) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let mut server = Server {
        listener,
        connections: VecDeque::new(),
        scraped: Scraped::new(run_dir),
    };
    thread::Builder::new()
        .name("urdmad-metrics".to_owned())
        .spawn(move || loop {
            server.turn();
        })?;
    Ok(())
}

/// The listening socket and the connections, the oldest first.
struct Server {
    listener: TcpListener,
    connections: VecDeque<Connection>,
    scraped: Scraped,
}

impl Server {
    /// Waits until something can be done, and does it.
    fn turn(&mut self) {
        let ready = self.wait();
        let now = Instant::now();
        let mut ready = ready.into_iter();
        let has_new = ready.next().unwrap_or(false);
        let scraped = &mut self.scraped;
        self.connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or(false);
            now < connection.deadline && !(is_ready && connection.is_over(scraped))
        });
        if has_new {
            self.accept(now);
        }
    }

    /// Whether the listener, and each connection, is ready; none of them at a deadline.
    fn wait(&self) -> Vec<bool> {
        let listener = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        let connections = self.connections.iter().map(|connection| {
            let events = match connection.answer {
                None => PollFlags::POLLIN,
                Some(_) => PollFlags::POLLOUT,
            };
            PollFd::new(connection.stream.as_fd(), events)
        });
        let mut fds: Vec<_> = [listener].into_iter().chain(connections).collect();
        // Deadlines are in the order of the connections.
        let timeout = self
            .connections
            .front()
            .map_or(PollTimeout::NONE, |oldest| {
                let left = oldest.deadline.saturating_duration_since(Instant::now());
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
        match poll(&mut fds, timeout) {
            Ok(_) => fds.iter().map(|fd| fd.any().unwrap_or(false)).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Accepts a connection; most have sent their request already.
    fn accept(&mut self, now: Instant) {
        let accepted = self.listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        match accepted {
            Ok(stream) => {
                let mut connection = Connection {
                    stream,
                    deadline: now + CONNECTION_LIMIT,
                    request: Vec::new(),
                    answer: None,
                };
                if connection.is_over(&mut self.scraped) {
                    return;
                }
                if self.connections.len() == CONNECTIONS_MAX {
                    self.connections.pop_front();
                }
                self.connections.push_back(connection);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// A connection: its request, and then the answer as far as it is not sent.
struct Connection {
    stream: TcpStream,
    deadline: Instant,
    request: Vec<u8>,
    answer: Option<Vec<u8>>,
}

impl Connection {
    /// Receives and sends what is possible now; whether the connection is over.
    fn is_over(&mut self, scraped: &mut Scraped) -> bool {
        match self.go_on(scraped) {
            Ok(()) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    fn go_on(&mut self, scraped: &mut Scraped) -> io::Result<()> {
        if self.answer.is_none() {
            self.read_request()?;
            self.answer = Some(answer(&self.request, scraped));
        }
        let Some(answer) = &mut self.answer else {
            return Ok(());
        };
        while !answer.is_empty() {
            match self.stream.write(answer)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => drop(answer.drain(..written)),
            }
        }
        Ok(())
    }

    /// The head of a request: everything up to an empty line, or the longest beginning that is
    /// read.
    fn read_request(&mut self) -> io::Result<()> {
        let mut octets = [0; 1024];
        let is_end = |request: &[u8]| request.windows(4).any(|end| end == b"\r\n\r\n");
        while self.request.len() < REQUEST_OCTETS_MAX && !is_end(&self.request) {
            match self.stream.read(&mut octets)? {
                0 => break,
                length => self.request.extend_from_slice(&octets[..length]),
            }
        }
        Ok(())
    }
}

/// The outcome of the last request for the metrics.
struct Scraped {
    run_dir: RunDir,
    client: Option<ControlClient>,
    text: Option<(Instant, Result<String, ControlError>)>,
}

impl Scraped {
    fn new(run_dir: RunDir) -> Self {
        Self {
            run_dir,
            client: None,
            text: None,
        }
    }

    /// The metrics, or why there are none. Both are kept for [`MAX_AGE`] after urdmad has answered
    /// or its time was over.
    fn text(&mut self) -> Result<&str, &ControlError> {
        let is_young = |(at, _): &(Instant, _)| at.elapsed() < MAX_AGE;
        let text = match self.text.take().filter(is_young) {
            Some(text) => text,
            None => (Instant::now(), self.ask()),
        };
        let (_, outcome) = self.text.insert(text);
        outcome.as_deref()
    }

    fn ask(&mut self) -> Result<String, ControlError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => ControlClient::connect(&self.run_dir, "urdmad-metrics")?,
        };
        let text = metrics::text(&client.status()?);
        self.client = Some(client);
        Ok(text)
    }
}

/// The answer to a request.
fn answer(request: &[u8], scraped: &mut Scraped) -> Vec<u8> {
    let (status, kind, body) = match method_and_path(request) {
        Some(("GET", "/metrics")) => match scraped.text() {
            Ok(text) => ("200 OK", metrics::CONTENT_TYPE, text.to_owned()),
            Err(error) => (
                "503 Service Unavailable",
                "text/plain",
                format!("{error}\n"),
            ),
        },
        Some(("GET", _)) => (
            "404 Not Found",
            "text/plain",
            "the metrics are at /metrics\n".to_owned(),
        ),
        Some(_) => (
            "405 Method Not Allowed",
            "text/plain",
            "GET only\n".to_owned(),
        ),
        None => (
            "400 Bad Request",
            "text/plain",
            "this is no HTTP request\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}

/// Method and path of a request, without the query.
fn method_and_path(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|octet| *octet == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_http = version.starts_with("HTTP/1.") && words.next().is_none();
    let path = target.split('?').next()?;
    (is_http && path.starts_with('/')).then_some((method, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each request waited for the time limit of a urdmad that did not answer.
    #[test]
    fn failure_is_kept_as_long_as_metrics_are() {
        let mut scraped = Scraped::new(RunDir::at("/nonexistent"));
        let failed = scraped.text().unwrap_err().to_string();
        assert!(!failed.is_empty());
        let before = || Err(ControlError::Timeout);
        scraped.text = Some((Instant::now(), before()));
        let said = answer(b"GET /metrics HTTP/1.1\r\n\r\n", &mut scraped);
        let said = String::from_utf8(said).unwrap();
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        let end = format!("{}\n", ControlError::Timeout);
        assert!(said.ends_with(&end), "{said}");
        let old = Instant::now().checked_sub(MAX_AGE).unwrap();
        scraped.text = Some((old, before()));
        assert_eq!(scraped.text().unwrap_err().to_string(), failed);
    }

    #[test]
    fn request_line_has_three_words() {
        let parse = |line: &str| method_and_path(line.as_bytes()).map(|(a, b)| format!("{a} {b}"));
        assert_eq!(
            parse("GET /metrics HTTP/1.1\r\n"),
            Some("GET /metrics".to_owned())
        );
        assert_eq!(
            parse("GET /metrics?x=1 HTTP/1.0\r\n"),
            Some("GET /metrics".to_owned())
        );
        assert_eq!(parse("GET /metrics\r\n"), None);
        assert_eq!(parse("GET metrics HTTP/1.1\r\n"), None);
        assert_eq!(parse("GET /a b HTTP/1.1\r\n"), None);
        assert_eq!(method_and_path(&[0xff; 10]), None);
        assert_eq!(method_and_path(b""), None);
    }
}
