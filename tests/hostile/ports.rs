//! Attacks by ports of rdma_cm.

use std::net::IpAddr;

use urdma_ipc::{CmPort, ControlError, PortSharing, PortTable, RefusalKind};

use crate::attach::Session;
use crate::{Context, Tally};

/// More processes than one user needs to bind every port that it may.
const PROCESSES: usize = 64;
/// Ports that are released and bound again between two looks at the time.
const AGAIN: usize = 16;
/// Half of the ephemeral ports that are not kept for the owner and root.
const PORTS_OF_USER_MAX: u64 = 13_234;

/// Every ephemeral port that one user may bind, by several processes; then ports that are released
/// and bound again, and more that must be refused.
pub(crate) fn ports(context: &Context) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let mut sessions: Vec<Session> = Vec::new();
    let address = context.address()?;
    loop {
        let session = context.attach()?;
        let bound = bind_all(&session, address)?;
        tally.tries += u64::from(bound);
        sessions.push(session);
        if bound == 0 {
            break;
        }
        if sessions.len() == PROCESSES {
            return Err(format!("{PROCESSES} processes have bound ports"));
        }
    }
    if sessions.len() < 3 {
        return Err("the limit of a process was that of the user".to_owned());
    }
    context.announce();
    let (first, last) = (&sessions[0], &sessions[sessions.len() - 1]);
    let mut own = tally.tries;
    let (mut is_bound, mut extra) = ([true; AGAIN], 0);
    while !context.is_over() {
        for (binding, is_bound) in (0..).zip(&mut is_bound) {
            // Others may have released ports, and may bind those that are released here.
            if bind(last, address, extra)?.is_some() {
                (extra, own) = (extra + 1, own + 1);
            }
            tally.refused("more than half of the ports", own > PORTS_OF_USER_MAX)?;
            if *is_bound {
                let released = first.client.cm_release(binding);
                released.map_err(|error| error.to_string())?;
                own -= 1;
            }
            *is_bound = bind(first, address, binding)?.is_some();
            own += u64::from(*is_bound);
            tally.tries += 1;
        }
    }
    Ok(tally)
}

/// Binds ports until the limit of the process or of the user; returns how many.
fn bind_all(session: &Session, address: IpAddr) -> Result<u32, String> {
    let mut bound = 0;
    while bind(session, address, bound)?.is_some() {
        bound += 1;
    }
    Ok(bound)
}

/// An ephemeral port, unless that is beyond a limit.
fn bind(session: &Session, address: IpAddr, binding: u32) -> Result<Option<u16>, String> {
    let wanted = CmPort {
        space: PortTable::Tcp,
        addr: address,
        port: 0,
        sharing: PortSharing::default(),
    };
    match session.client.cm_bind_port(binding, wanted) {
        Ok(port) => Ok(Some(port)),
        Err(ControlError::Refused(refusal)) if refusal.kind == RefusalKind::QuotaExceeded => {
            Ok(None)
        }
        Err(error) => Err(error.to_string()),
    }
}
