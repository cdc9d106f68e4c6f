//! A channel alone, without verbs and protocol: their cost is the difference to `ib_send_lat`.

use urdma_channel::{
    CellOctets, Channel, ChannelConfig, Incoming, Kind, Next, OwnRegion, PeerRegion, CELL_DATA,
};
use urdma_memfd::MemoryError;
use urdma_waiting::{OwnPage, PeerPage};

use super::fork::{poll, two_processes, typical_half_round_trip, Mark};
use crate::samples::Sample;

const OCTETS: usize = 64;

fn send(channel: &mut Channel, octet: u8) {
    // In a ping-pong each message brings the count that frees the cell of the one before.
    if let Some(mut room) = channel.begin(Kind::Work, 0) {
        room.octets_mut()[..OCTETS].fill(octet);
        room.publish(OCTETS, 0);
    }
}

fn take(channel: &mut Channel) -> u8 {
    let mut cell: CellOctets = [0; CELL_DATA];
    poll(|| matches!(channel.next(&mut cell, |_| ()), Next::Message { .. }).then_some(()));
    channel.settle();
    std::hint::black_box(&cell)[0]
}

/// Two ends of a channel, and their pages.
fn pair() -> Result<[(Channel, OwnPage); 2], MemoryError> {
    let end = |stagger| {
        let (region, fd) = OwnRegion::create(&ChannelConfig::default(), stagger)?;
        let (page, page_fd) = OwnPage::create()?;
        let incoming = Incoming::new(PeerRegion::open(fd)?);
        Ok::<_, MemoryError>((
            Channel::new(region),
            page,
            incoming,
            PeerPage::open(page_fd)?,
        ))
    };
    let (mut p, page_p, from_p, page_of_p) = end(1)?;
    let (mut q, page_q, from_q, page_of_q) = end(2)?;
    p.attach(from_q, page_of_q);
    q.attach(from_p, page_of_p);
    Ok([(p, page_p), (q, page_q)])
}

/// Half the round trip of 64 octets in a cell, in microseconds.
///
/// # Errors
/// The channel cannot be made, or the second process failed.
pub fn half_round_trip() -> Sample {
    // Both ends are made before the fork; each process then uses its own.
    let [(mut a, _page_a), (mut b, _page_b)] = pair().map_err(|error| error.to_string())?;
    two_processes(
        || {
            let mut mark = Mark::More.octet();
            while mark != Mark::Last.octet() {
                mark = take(&mut b);
                send(&mut b, mark);
            }
        },
        || {
            typical_half_round_trip(|mark| {
                send(&mut a, mark.octet());
                take(&mut a);
            })
        },
    )
}
