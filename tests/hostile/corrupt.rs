//! A peer of `verbs-check` that writes a cell which ends its channel.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use urdma_channel::ChannelConfig;

use crate::forge::Cell;
use crate::{Context, Tally};

/// `struct hello` of verbs-check.
const HELLO: usize = 40;
/// Any queue pair, which does not exist.
const INDEX: u32 = 7;
const PATIENCE: Duration = Duration::from_secs(20);

/// Is connected to by `verbs-check corrupted client` at `path`, and writes such a cell.
pub(crate) fn corrupt(context: &Context, path: &Path) -> Result<Tally, String> {
    let error = |error: std::io::Error| error.to_string();
    let mut session = context.attach()?;
    let listener = UnixListener::bind(path).map_err(error)?;
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(path, permissions).map_err(error)?;
    let (mut peer, _) = listener.accept().map_err(error)?;
    peer.set_read_timeout(Some(PATIENCE)).map_err(error)?;
    // The same address, and a queue pair of this slot.
    let mut hello = [0; HELLO];
    peer.read_exact(&mut hello).map_err(error)?;
    let victim = hello[2];
    let own = u32::from(session.slot) << 16 | INDEX;
    hello[..4].copy_from_slice(&own.to_le_bytes());
    peer.write_all(&hello).map_err(error)?;
    meet(&mut peer).map_err(error)?;
    session.open(&[victim], &ChannelConfig::default());
    let deadline = Instant::now() + PATIENCE;
    while !session.is_answered() && Instant::now() < deadline {
        session.listen(Duration::from_millis(2));
    }
    // Its first request is outstanding.
    meet(&mut peer).map_err(error)?;
    let mut random = context.random.clone();
    let channel = session.peers.first_mut().ok_or("no channel")?;
    let mut cell = Cell::corrupt(channel, &mut random);
    cell.len = u8::MAX;
    channel.write(&cell);
    channel.ring(1);
    meet(&mut peer).map_err(error)?;
    let mut tally = Tally::default();
    tally.refused("a corrupt cell", !is_counted(&session.client, victim)?)?;
    meet(&mut peer).map_err(error)?;
    Ok(tally)
}

/// Whether the process in a slot reports that it has counted one.
fn is_counted(client: &urdma_ipc::ControlClient, slot: u8) -> Result<bool, String> {
    let status = client.status().map_err(|error| error.to_string())?;
    let mut of_slot = status.slots.iter().filter(|status| status.slot == slot);
    let report = of_slot.next().and_then(|status| status.report.as_ref());
    let counters = &report.ok_or("the process reports nothing")?.counters;
    Ok(counters.get("datagrams_malformed") == Some(&1))
}

/// `end_meet` of verbs-check.
fn meet(peer: &mut UnixStream) -> std::io::Result<()> {
    peer.write_all(b"m")?;
    peer.read_exact(&mut [0])
}
