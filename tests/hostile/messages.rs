//! Attacks through the memory of channels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use urdma_channel::ChannelConfig;

use crate::attach::{Peer, Session, COUNTS};
use crate::forge::{Cell, Wish};
use crate::random::Random;
use crate::{Context, Tally};

/// How long a slot is kept: a peer ends a channel at the first cell that fails.
const LIFE: Duration = Duration::from_millis(200);
const SHORT_LIFE: Duration = Duration::from_millis(20);
/// How long the peers' regions are waited for.
const INTRODUCTION: Duration = Duration::from_millis(100);
/// Cells that are written between two wake-ups.
const BATCH: usize = 64;
/// Offset of the park word in a page.
const PARK_WORD: usize = 64;

/// Attaches, opens a channel to every process of another user, and acts, again and again. Fails if
/// the processes that stay have never all answered: they have not seen the attack then.
fn lives(
    context: &Context,
    life: Duration,
    config: &ChannelConfig,
    mut act: impl FnMut(&mut Session, &mut Random) -> u64,
) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    let mut has_arrived = false;
    while !context.is_over() {
        let mut session = context.attach()?;
        session.open(&context.slots()?, config);
        let met = Instant::now() + INTRODUCTION;
        while !session.is_answered() && Instant::now() < met {
            session.listen(Duration::from_millis(2));
        }
        let mut lasting = context.lasting_slots();
        if lasting.all(|slot| session.has_answer_of(slot)) {
            has_arrived = true;
            context.announce();
        }
        let end = Instant::now() + life;
        while Instant::now() < end && !context.is_over() {
            tally.tries += act(&mut session, &mut random);
        }
    }
    if !has_arrived {
        return Err("the attack has not reached every process".to_owned());
    }
    Ok(tally)
}

/// Writes a batch of cells to every peer that has room, and wakes it.
fn write_batch(
    session: &mut Session,
    random: &mut Random,
    mut make: impl FnMut(&Peer, &mut Random) -> Cell,
) -> u64 {
    let mut tries = 0;
    for peer in &mut session.peers {
        for _ in 0..BATCH {
            if !peer.has_room() {
                break;
            }
            let cell = make(peer, random);
            peer.write(&cell);
            tries += 1;
        }
        peer.ring(random.u32());
    }
    tries
}

/// Random words everywhere in the regions, most of them where the peers look.
pub(crate) fn random(context: &Context) -> Result<Tally, String> {
    lives(
        context,
        SHORT_LIFE,
        &ChannelConfig::default(),
        |session, random| {
            for peer in &session.peers {
                let memory = &peer.region.memory;
                for _ in 0..BATCH {
                    let anywhere = random.below(memory.octets() / 8) * 8;
                    memory.store64(anywhere, random.u64());
                    let ring = peer.region.layout.ring();
                    let number = random.below(8);
                    let word = (number as u64 + 1) << 32 | u64::from(random.u32());
                    memory.store64(ring + number * 128, word);
                    memory.store64(ring + random.below(1024) * 8, random.u64());
                    memory.store64(random.below(48) * 8, random.u64());
                }
                peer.ring(random.u32());
            }
            session.peers.len() as u64 * 4 * BATCH as u64
        },
    )
}

/// Well-formed messages of every kind, with each field of the head at its borders.
pub(crate) fn aimed(context: &Context) -> Result<Tally, String> {
    pour(context, Wish::Any)
}

/// Messages that are not answered, as fast as they are read.
pub(crate) fn flood(context: &Context) -> Result<Tally, String> {
    pour(context, Wish::Unanswered)
}

/// Datagrams with forged sources, connection management, and packets of other hosts.
pub(crate) fn datagrams(context: &Context) -> Result<Tally, String> {
    pour(context, Wish::BesideConnections)
}

/// Requests that the peers have to answer, and whose answers are never read.
pub(crate) fn silent(context: &Context) -> Result<Tally, String> {
    pour(context, Wish::Answered)
}

fn pour(context: &Context, wish: Wish) -> Result<Tally, String> {
    lives(
        context,
        LIFE,
        &ChannelConfig::default(),
        |session, random| {
            write_batch(session, random, |peer, random| {
                Cell::well_formed(wish, &context.connections, peer, random)
            })
        },
    )
}

/// Requests whose answers are counted unread.
pub(crate) fn answered(context: &Context) -> Result<Tally, String> {
    lives(
        context,
        LIFE,
        &ChannelConfig::default(),
        |session, random| {
            for peer in &session.peers {
                let theirs = peer
                    .theirs
                    .as_ref()
                    .map_or(0, |theirs| theirs.load64(COUNTS));
                let [a, b, c, d, ..] = theirs.to_le_bytes();
                peer.store_counts(u32::from_le_bytes([a, b, c, d]), 0);
            }
            write_batch(session, random, |peer, random| {
                Cell::well_formed(Wish::Answered, &context.connections, peer, random)
            })
        },
    )
}

/// Lengths, frames, kinds and flags that do not exist.
pub(crate) fn frames(context: &Context) -> Result<Tally, String> {
    lives(
        context,
        SHORT_LIFE,
        &ChannelConfig::default(),
        |session, random| write_batch(session, random, Cell::corrupt),
    )
}

/// Regions of almost the largest size that urdmad passes on, whose frames were never written: the
/// reader allocates them.
pub(crate) fn holes(context: &Context) -> Result<Tally, String> {
    let largest = ChannelConfig {
        cells: 4096,
        small_frames: 1024,
        large_frames: 192,
    };
    lives(context, LIFE, &largest, |session, random| {
        write_batch(session, random, |peer, random| {
            Cell::well_formed(Wish::Any, &context.connections, peer, random)
        })
    })
}

/// Counts that are ahead, behind, or any; positions to be woken at, and park words.
pub(crate) fn counts(context: &Context) -> Result<Tally, String> {
    lives(
        context,
        LIFE,
        &ChannelConfig::default(),
        |session, random| {
            let mut tries = 0;
            for peer in &session.peers {
                for _ in 0..BATCH {
                    let near = random.u32() & 0x1ff;
                    peer.store_counts(random.border32(near), random.border32(near));
                    peer.store_wake_at(random.border32(near));
                    session.page.store32(PARK_WORD, random.border32(2));
                    tries += 3;
                }
            }
            tries
                + write_batch(session, random, |peer, random| {
                    Cell::well_formed(Wish::Answered, &context.connections, peer, random)
                })
        },
    )
}

/// Messages that change while the peer reads them.
pub(crate) fn changes(context: &Context) -> Result<Tally, String> {
    lives(
        context,
        LIFE,
        &ChannelConfig::default(),
        |session, random| change_while(session, random, context),
    )
}

/// Writes cells once; another thread changes their octets, and the frames, until that is done.
fn change_while(session: &mut Session, random: &mut Random, context: &Context) -> u64 {
    let is_over = AtomicBool::new(false);
    let mut tries = 0;
    for peer in &mut session.peers {
        let cells: Vec<Cell> = (0..BATCH)
            .map(|_| Cell::well_formed(Wish::Any, &context.connections, peer, random))
            .collect();
        let region = std::sync::Arc::clone(&peer.region.memory);
        let (ring, frames, total) = {
            let layout = &peer.region.layout;
            (layout.ring(), layout.frames(), layout.total())
        };
        let mut other = Random::new(random.u64());
        is_over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let cell = ring + other.below((frames - ring) / 128) * 128;
                    region.store8(cell + 16 + other.below(112), other.u8());
                    region.store64(frames + other.below((total - frames) / 8) * 8, other.u64());
                    if other.once_in(1 << 12) {
                        region.store64(cell + 8, other.u64());
                    }
                }
            });
            for cell in &cells {
                if peer.has_room() {
                    peer.write(cell);
                    tries += 1;
                }
            }
            peer.ring(random.u32());
            std::thread::sleep(Duration::from_millis(2));
            is_over.store(true, Ordering::Relaxed);
        });
    }
    tries
}

/// Wakes every peer all the time, and asks to be woken.
pub(crate) fn bells(context: &Context) -> Result<Tally, String> {
    lives(
        context,
        LIFE,
        &ChannelConfig::default(),
        |session, random| {
            for peer in &session.peers {
                session.page.store32(PARK_WORD, 2);
                peer.ring(random.u32());
            }
            session.peers.len() as u64
        },
    )
}

/// Uses a processor and nothing else: what the others are compared with.
pub(crate) fn spin(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    while !context.is_over() {
        for _ in 0..1000 {
            std::hint::black_box(random.u64());
        }
        tally.tries += 1;
    }
    Ok(tally)
}
