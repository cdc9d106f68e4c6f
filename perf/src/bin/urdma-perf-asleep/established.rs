//! The memory of connections over RDMA that stay.

use std::net::Ipv4Addr;

use urdma_perf::idle::resident_octets;

use crate::cm::{self, Events};
use crate::connections::{next_step, Shared, Step};
use crate::text;

/// Connections that are made before the memory is looked at: what the first ones bring, such as
/// the channel to the server's process, is not that of a connection.
const BEFORE: u32 = 100;
/// Connections that are in progress at a time.
const AT_ONCE: u32 = 64;

/// Makes `count` connections that last until the process ends; returns how much the resident
/// memory of either process has grown for each of them, whichever has grown more.
pub(crate) fn octets_each(to: (Ipv4Addr, u16), server: i32, count: u32) -> Result<f64, String> {
    let mut client = Client {
        events: Events::new()?,
        shared: None,
        to,
    };
    let processes = [std::process::id(), u32::try_from(server).map_err(text)?];
    client.connect(BEFORE)?;
    let before = processes.map(resident_octets);
    client.connect(count)?;
    let mut most = 0.0_f64;
    for (process, before) in processes.into_iter().zip(before) {
        most = most.max(resident_octets(process)? - before?);
    }
    Ok(most / f64::from(count))
}

struct Client {
    events: Events,
    shared: Option<Shared>,
    to: (Ipv4Addr, u16),
}

impl Client {
    fn connect(&mut self, count: u32) -> Result<(), String> {
        let (mut begun, mut established) = (0, 0);
        while established < count {
            while begun < count && begun - established < AT_ONCE {
                cm::resolve_address(self.events.id()?, self.to)?;
                begun += 1;
            }
            match next_step(&self.events, &mut self.shared)? {
                Step::Resolved => {}
                Step::Established(_) => established += 1,
                Step::Ended => return Err("a connection has ended".into()),
            }
        }
        Ok(())
    }
}
