//! ibverbs-utils.

use super::job::{Job, Reading, Ready};

/// `ibv_rc_pingpong`, polling or by events, with GID index 1 (the IPv4 GID).
pub fn rc_pingpong(events: bool, port: u16, server: &str) -> Job {
    pingpong("ibv_rc_pingpong", events, port, server)
}

/// One of the pingpong programs of ibverbs-utils, polling or by events, with GID index 1 (the IPv4
/// GID); it checks what it receives.
pub fn pingpong(program: &str, events: bool, port: u16, server: &str) -> Job {
    let mut common: Vec<String> = [program, "-g", "1", "-c", "-p"]
        .iter()
        .map(ToString::to_string)
        .collect();
    common.push(port.to_string());
    if events {
        common.push("-e".to_owned());
    }
    let mut client = common.clone();
    client.push(server.to_owned());
    Job {
        label: if events {
            format!("{program} -e")
        } else {
            program.to_owned()
        },
        size_octets: 4096,
        server: common,
        client,
        ready: Ready::Tcp(port),
        reading: Reading::Pingpong,
        serves_forever: false,
    }
}
