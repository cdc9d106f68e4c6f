//! Debian's TCP servers and the programs that load them: command lines, and figures that the
//! programs print. All of them use the address 127.0.0.1.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::unistd::User;

use crate::process::Ended;
use crate::Failure;

/// Lines of Debian's configuration of nginx, which decide by which calls it sends a file.
const NGINX: [&str; 3] = ["user www-data;", "sendfile on;", "tcp_nopush on;"];

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The number after one of the words of a text, up to a comma.
fn number_after<T: FromStr>(printed: &str, word: &str) -> Result<T, Failure> {
    let mut words = printed.split_whitespace();
    let number = words.find(|other| *other == word).and(words.next());
    let number = number.and_then(|number| number.trim_end_matches(',').parse().ok());
    number.ok_or_else(|| Failure::new(format!("there is no '{word}' in: {printed}")))
}

/// What a program has printed that has succeeded.
fn output_of(ended: &Ended) -> Result<&str, Failure> {
    match ended.succeeded() {
        true => Ok(&ended.output),
        false => Err(Failure::new(ended.describe())),
    }
}

/// What a program says of the load that it has made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Requests, or octets of a stream, a second.
    pub rate: f64,
    /// All requests, or octets of a stream.
    pub count: u64,
}

/// nginx as Debian configures it, but for the files and the port; it keeps its own files in `dir`,
/// which its workers, of the user www-data, can enter.
///
/// # Errors
/// It is not installed, or configured otherwise; or `dir` cannot be written.
pub fn nginx(dir: &Path, site: &Path, port: u16) -> Result<Vec<String>, Failure> {
    let own = fs::read_to_string("/etc/nginx/nginx.conf")
        .map_err(|error| Failure::new(format!("configuration of nginx: {error}")))?;
    let listen = format!("listen 127.0.0.1:{port};");
    let server = format!("server {{ {listen} root {}; }}", site.display());
    let (pid, dir_text) = (format!("nginx-{port}.pid"), dir.display());
    let config = own
        .replace("/run/nginx.pid", &format!("{dir_text}/{pid}"))
        .replace("/var/log/nginx", &dir_text.to_string())
        .replace("include /etc/nginx/sites-enabled/*;", &server);
    for line in NGINX.iter().copied().chain([&server[..], &pid]) {
        if !config.contains(line) {
            return Err(Failure::new(format!("nginx.conf has no '{line}'")));
        }
    }
    let path = dir.join(format!("nginx-{port}.conf"));
    fs::write(&path, config)?;
    let mut argv = words("nginx -g");
    argv.extend(["daemon off;", "-c", &path.display().to_string()].map(str::to_owned));
    Ok(argv)
}

/// wrk's requests for a file of an HTTP server, for some seconds, by two threads and 16 connections
/// at a time.
pub fn wrk(port: u16, name: &str, seconds: u32, connections: Connections) -> Vec<String> {
    let mut argv = words("wrk -t2 -c16");
    argv.extend([
        format!("-d{seconds}s"),
        format!("http://127.0.0.1:{port}/{name}"),
    ]);
    if connections == Connections::Short {
        argv.extend(["-H", "Connection: close"].map(str::to_owned));
    }
    argv
}

/// The connections of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// One after the other has the same, until the server ends it.
    Kept,
    /// Each has one of its own.
    Short,
}

/// What [`wrk`] has printed.
///
/// # Errors
/// It has failed, or one of its requests has.
pub fn read_wrk(ended: &Ended) -> Result<Load, Failure> {
    let printed = output_of(ended)?;
    if ["Non-2xx", "Socket errors"]
        .iter()
        .any(|error| printed.contains(error))
    {
        return Err(Failure::new(format!("wrk: {printed}")));
    }
    let total = printed.lines().find_map(|line| {
        let (count, _) = line.trim().split_once(" requests in ")?;
        count.parse().ok()
    });
    Ok(Load {
        rate: number_after(printed, "Requests/sec:")?,
        count: total.ok_or_else(|| Failure::new(format!("wrk has no count: {printed}")))?,
    })
}

/// memcached with its four threads, which runs as the unprivileged user `nobody`.
pub fn memcached(port: u16) -> Vec<String> {
    words(&format!(
        "memcached -u nobody -l 127.0.0.1 -p {port} -U 0 -m 256"
    ))
}

/// Octets of a value of [`memcaslap`].
pub const VALUE_OCTETS: u64 = 100;

/// memcaslap's requests for some seconds, by two threads and 16 connections: one SET to nine GETs.
pub fn memcaslap(port: u16, seconds: u32) -> Vec<String> {
    let size = VALUE_OCTETS;
    words(&format!(
        "memcaslap -s 127.0.0.1:{port} -T 2 -c 16 -X {size} -t {seconds}s"
    ))
}

/// What [`memcaslap`] has printed.
///
/// # Errors
/// It has failed, or a value was missing.
pub fn read_memcaslap(ended: &Ended) -> Result<Load, Failure> {
    let printed = output_of(ended)?;
    if number_after::<u64>(printed, "get_misses:")? != 0 {
        return Err(Failure::new(format!("memcaslap: {printed}")));
    }
    Ok(Load {
        rate: number_after(printed, "TPS:")?,
        count: number_after(printed, "Ops:")?,
    })
}

/// iperf3 as a server of one client after the other.
pub fn iperf3_server(port: u16) -> Vec<String> {
    words(&format!("iperf3 -s -B 127.0.0.1 -p {port}"))
}

/// iperf3 as a client of one stream, for some seconds.
pub fn iperf3_client(port: u16, seconds: u32) -> Vec<String> {
    words(&format!("iperf3 -c 127.0.0.1 -p {port} -t {seconds} -J"))
}

/// What the server of [`iperf3_client`] has received.
///
/// # Errors
/// It has failed.
pub fn read_iperf3(ended: &Ended) -> Result<Load, Failure> {
    let printed = output_of(ended)?;
    let said: serde_json::Value = serde_json::from_str(printed)
        .map_err(|error| Failure::new(format!("iperf3: {error}: {printed}")))?;
    let received = &said["end"]["sum_received"];
    let rate = received["bits_per_second"].as_f64();
    let figures = rate.zip(received["bytes"].as_u64());
    let (bits, count) = figures.ok_or_else(|| Failure::new(format!("iperf3: {printed}")))?;
    Ok(Load {
        rate: bits / 8.0,
        count,
    })
}

/// PostgreSQL and its programs, of the user postgres.
#[derive(Debug)]
pub struct PostgreSql {
    bin: PathBuf,
    /// The user.
    pub user: User,
}

impl PostgreSql {
    /// The newest version that is installed.
    ///
    /// # Errors
    /// There is none.
    pub fn installed() -> Result<Self, Failure> {
        let missing = || Failure::new("PostgreSQL is not installed");
        let versions = fs::read_dir("/usr/lib/postgresql").map_err(|_| missing())?;
        let newest = versions.flatten().map(|dir| dir.path()).max();
        let user = User::from_name("postgres").ok().flatten();
        Ok(Self {
            bin: newest.ok_or_else(missing)?.join("bin"),
            user: user.ok_or_else(missing)?,
        })
    }

    fn program(&self, line: &str) -> Vec<String> {
        let mut argv = words(line);
        argv[0] = self.bin.join(&argv[0]).display().to_string();
        argv
    }

    /// A program of the user, if the caller is root.
    pub fn as_user(&self, argv: &[String]) -> Vec<String> {
        let (uid, gid) = (self.user.uid, self.user.gid);
        let mut prefixed = words(&format!(
            "setpriv --reuid={uid} --regid={gid} --clear-groups"
        ));
        prefixed.extend_from_slice(argv);
        prefixed
    }

    /// The program that makes a directory for the server.
    pub fn initdb(&self, data: &Path) -> Vec<String> {
        let data = data.display();
        self.program(&format!("initdb -A trust -U postgres -D {data}"))
    }

    /// The server, which does not wait for the disk.
    pub fn server(&self, data: &Path, port: u16) -> Vec<String> {
        let data = data.display();
        let line = format!("postgres -D {data} -h 127.0.0.1 -p {port} -c fsync=off -k");
        let mut argv = self.program(&line);
        argv.push(String::new());
        argv
    }

    /// A client of the server: `pgbench` or `psql`, with further arguments, which name no other
    /// database.
    pub fn client(&self, name: &str, port: u16, arguments: &[&str]) -> Vec<String> {
        let mut argv = self.program(&format!("{name} -h 127.0.0.1 -p {port} -U postgres"));
        argv.extend(arguments.iter().copied().map(str::to_owned));
        argv.push("postgres".to_owned());
        argv
    }
}

/// What pgbench has printed.
///
/// # Errors
/// It has failed, or one of its transactions has.
pub fn read_pgbench(ended: &Ended) -> Result<Load, Failure> {
    let printed = output_of(ended)?;
    if !printed.contains("number of failed transactions: 0 ") {
        return Err(Failure::new(format!("pgbench: {printed}")));
    }
    let count = printed
        .lines()
        .find_map(|line| line.strip_prefix("number of transactions actually processed: "))
        .and_then(|count| count.split('/').next()?.parse().ok());
    let rate = printed.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = rate.and_then(|rate| rate.split(' ').next()?.parse().ok());
    match (rate, count) {
        (Some(rate), Some(count)) => Ok(Load { rate, count }),
        _ => Err(Failure::new(format!("pgbench: {printed}"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn printed(output: &str) -> Ended {
        Ended {
            status: ExitStatus::from_raw(0),
            output: output.to_owned(),
            errors: String::new(),
        }
    }

    #[test]
    fn figures_of_wrk_are_read() {
        let text = "Running 1s test @ http://127.0.0.1:1/1\n  2 threads and 16 connections\n  \
             83480 requests in 1.00s, 50.1MB read\nRequests/sec:  83480.93\nTransfer/sec: 5MB\n";
        let load = read_wrk(&printed(text)).unwrap();
        assert_eq!((load.rate, load.count), (83_480.93, 83_480));
        let failed = text.to_owned() + "  Non-2xx or 3xx responses: 3\n";
        assert!(read_wrk(&printed(&failed)).is_err());
    }

    #[test]
    fn figures_of_memcaslap_are_read() {
        let text = "cmd_get: 180693\ncmd_set: 20080\nget_misses: 0\n\n\
             Run time: 2.0s Ops: 200773 TPS: 100379 Net_rate: 23.8M/s\n";
        let load = read_memcaslap(&printed(text)).unwrap();
        assert_eq!((load.rate, load.count), (100_379.0, 200_773));
        let missed = text.replace("get_misses: 0", "get_misses: 1");
        assert!(read_memcaslap(&printed(&missed)).is_err());
    }

    #[test]
    fn figures_of_iperf3_are_those_of_the_receiver() {
        let text = r#"{"end": {"sum_received": {"bits_per_second": 8e9, "bytes": 2000000000}}}"#;
        let load = read_iperf3(&printed(text)).unwrap();
        assert_eq!((load.rate, load.count), (1e9, 2_000_000_000));
        assert!(read_iperf3(&printed(r#"{"error": "unable to connect"}"#)).is_err());
    }

    #[test]
    fn figures_of_pgbench_are_read() {
        let text = "number of transactions actually processed: 2000/2000\n\
             number of failed transactions: 0 (0.000%)\nlatency average = 0.1 ms\n\
             tps = 31234.500000 (without initial connection time)\n";
        let load = read_pgbench(&printed(text)).unwrap();
        assert_eq!((load.rate, load.count), (31_234.5, 2_000));
        assert!(read_pgbench(&printed("tps = 1")).is_err());
    }
}
