//! Metrics over HTTP on loopback, in a thread of its own (doc/tracing.md).
//!
//! The thread is a client of the control socket as any other: it has no access to the daemon's
//! state, and the data thread knows nothing of it. It serves one connection at a time, in bounded
//! time, and asks for the state at most once a second.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use urdma_ipc::{metrics, ControlClient, ControlError, RunDir};

/// Time for one connection.
const CONNECTION_LIMIT: Duration = Duration::from_secs(2);
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
    let mut scraped = Scraped::new(run_dir);
    thread::Builder::new()
        .name("urdmad-metrics".to_owned())
        .spawn(move || loop {
            match listener.accept() {
                // An error of one client does not end the service of others.
                Ok((stream, _)) => drop(answer(stream, &mut scraped)),
                Err(_) => thread::sleep(PAUSE),
            }
        })?;
    Ok(())
}

/// The metrics, as they were last asked for.
struct Scraped {
    run_dir: RunDir,
    client: Option<ControlClient>,
    text: Option<(Instant, String)>,
}

impl Scraped {
    fn new(run_dir: RunDir) -> Self {
        Self {
            run_dir,
            client: None,
            text: None,
        }
    }

    fn text(&mut self) -> Result<&str, ControlError> {
        let is_young = |(at, _): &(Instant, String)| at.elapsed() < MAX_AGE;
        let text = match self.text.take().filter(is_young) {
            Some(text) => text,
            None => (Instant::now(), self.ask()?),
        };
        Ok(&self.text.insert(text).1)
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

/// Answers one request.
fn answer(mut stream: TcpStream, scraped: &mut Scraped) -> io::Result<()> {
    let deadline = Instant::now() + CONNECTION_LIMIT;
    let request = read_request(&mut stream, deadline)?;
    let (status, kind, body) = match (method_and_path(&request), scraped) {
        (Some(("GET", "/metrics")), scraped) => match scraped.text() {
            Ok(text) => ("200 OK", metrics::CONTENT_TYPE, text.to_owned()),
            Err(error) => (
                "503 Service Unavailable",
                "text/plain",
                format!("{error}\n"),
            ),
        },
        (Some(("GET", _)), _) => (
            "404 Not Found",
            "text/plain",
            "the metrics are at /metrics\n".to_owned(),
        ),
        (Some(_), _) => (
            "405 Method Not Allowed",
            "text/plain",
            "GET only\n".to_owned(),
        ),
        (None, _) => (
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
    write_all(&mut stream, head.as_bytes(), deadline)?;
    write_all(&mut stream, body.as_bytes(), deadline)
}

/// The head of a request: everything up to an empty line, or the longest beginning that is read.
fn read_request(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut octets = [0; 1024];
    while request.len() < REQUEST_OCTETS_MAX && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut octets)? {
            0 => break,
            length => request.extend_from_slice(&octets[..length]),
        }
    }
    Ok(request)
}

fn write_all(stream: &mut TcpStream, mut octets: &[u8], deadline: Instant) -> io::Result<()> {
    while !octets.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let written = stream.write(octets)?;
        octets = &octets[written..];
    }
    Ok(())
}

/// The time until the deadline, which is not 0.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
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
