//! The way of a queue pair's packets to another host, through urdmad: messages of the channel to
//! it. Packets of one length that follow one another, and a shorter one behind them, are one
//! message.

use proto_trp::conn::Run;
use proto_trp::wire::packet_head::PACKET_OCTETS_MIN;
use proto_trp::wire::{Meta, PacketHead};
use urdma_channel::{Channel, Left, LARGE_FRAME};
use urdma_types::SlotId;

use super::packet_room::{frame_octets, packet_in, publish_in};
use crate::paths::capture::Capture;
use crate::paths::packet_path::{Refused, TransmitPath, Written};

/// See the module.
pub(crate) struct DaemonPath<'a> {
    channel: &'a mut Channel,
    capture: &'a mut Option<Box<Capture>>,
    from: SlotId,
    head: PacketHead,
    begun: Option<Begun>,
    /// The room of the run that was begun.
    run: Option<Left>,
    /// Packets were sent, for which the doorbell is to be rung.
    pub(super) has_sent: bool,
}

/// A message that was begun.
#[derive(Debug)]
struct Begun {
    left: Left,
    /// Octets that the packet being written, and each before it, may have.
    room: usize,
    /// Octets of the packets that were written.
    octets: usize,
    /// Octets of the first of them; 0 if there is none.
    each: usize,
    /// No packet can follow.
    is_whole: bool,
}

impl<'a> DaemonPath<'a> {
    /// The way through `channel`; urdmad is to write the headers that `meta` says.
    #[inline]
    pub(crate) fn new(
        channel: &'a mut Channel,
        capture: &'a mut Option<Box<Capture>>,
        from: SlotId,
        meta: Meta,
    ) -> Self {
        Self {
            channel,
            capture,
            from,
            head: PacketHead::of(meta),
            begun: None,
            run: None,
            has_sent: false,
        }
    }

    /// Room for a message with `octets` octets outside of its cell.
    #[inline]
    fn room(&mut self, octets: usize) -> Option<Left> {
        let room = self.channel.begin_unanswered(octets);
        room.map(|room| room.leave().0)
    }

    /// Begins a message, with a frame for several packets if the first `is_followed` and there is
    /// one.
    #[inline]
    fn begin_message(&mut self, octets: usize, is_followed: bool) -> Result<Begun, Refused> {
        let in_frame = frame_octets(octets);
        let mut left = None;
        if is_followed && octets >= usize::from(PACKET_OCTETS_MIN) {
            left = self.room(LARGE_FRAME);
        }
        let is_whole = left.is_none();
        if is_whole {
            left = self.room(in_frame);
        }
        Ok(Begun {
            left: left.ok_or(Refused::Full)?,
            room: octets,
            octets: 0,
            each: 0,
            is_whole,
        })
    }

    /// Sends packets of `octets` octets together, of which the first has `each`.
    #[inline]
    fn publish(&mut self, left: Left, each: usize, octets: usize) {
        let has_several = octets > each;
        self.head.packet_octets = match u16::try_from(each) {
            Ok(each) if has_several => each,
            _ => 0,
        };
        publish_in(self.channel.resume(left), &self.head, octets);
        self.has_sent = true;
    }

    /// Sends the packets before one of `len` octets that cannot be in the same message, and that
    /// one in a message of its own.
    #[cold]
    fn split(&mut self, begun: &Begun, len: usize, ecn: u8) {
        let (_, frame) = packet_in(self.channel.resume(begun.left));
        let packet = frame[begun.octets..][..len].to_vec();
        self.publish(begun.left, begun.each, begun.octets);
        // Without room it is lost, as in any network.
        if let Some(left) = self.room(frame_octets(len)) {
            let (_, room) = packet_in(self.channel.resume(left));
            room[..len].copy_from_slice(&packet);
            self.head.meta.ecn = ecn;
            self.publish(left, len, len);
        }
    }
}

impl TransmitPath for DaemonPath<'_> {
    type Rooms<'s>
        = std::slice::ChunksExactMut<'s, u8>
    where
        Self: 's;

    #[inline]
    fn begin_run(&mut self, octets: usize, count: u16) -> Result<Self::Rooms<'_>, Refused> {
        self.finish();
        let has_several = octets >= usize::from(PACKET_OCTETS_MIN);
        let wanted = octets * if has_several { usize::from(count) } else { 1 };
        let left = match self.room(wanted.min(LARGE_FRAME)) {
            Some(left) => left,
            None => self.room(frame_octets(octets)).ok_or(Refused::Full)?,
        };
        self.run = Some(left);
        let (_, room) = packet_in(self.channel.resume(left));
        Ok(room.chunks_exact_mut(octets))
    }

    #[inline]
    fn commit_run(&mut self, run: &Run) {
        let Some(left) = self.run.take().filter(|_| run.count > 0) else {
            return;
        };
        if let Some(capture) = self.capture {
            let (_, room) = packet_in(self.channel.resume(left));
            for packet in room[..run.octets()].chunks(run.each) {
                capture.add(self.from, SlotId::DAEMON, &[packet]);
            }
        }
        self.head.meta.ecn = Written::of_run(run.last).ecn();
        self.publish(left, run.each, run.octets());
    }
    #[inline(always)]
    fn begin(&mut self, octets: usize, is_followed: bool) -> Result<&mut [u8], Refused> {
        let is_next = self.begun.as_ref().is_some_and(|begun| {
            !begun.is_whole && octets <= begun.room && begun.octets + octets <= LARGE_FRAME
        });
        if !is_next {
            self.finish();
            self.begun = Some(self.begin_message(octets, is_followed)?);
        }
        let begun = self.begun.as_ref().ok_or(Refused::Full)?;
        let (_, room) = packet_in(self.channel.resume(begun.left));
        Ok(&mut room[begun.octets..])
    }

    #[inline(always)]
    fn commit(&mut self, written: Written) {
        let Some(mut begun) = self.begun.take() else {
            return;
        };
        let (len, ecn) = (written.len, written.ecn());
        if let Some(capture) = self.capture {
            let (_, room) = packet_in(self.channel.resume(begun.left));
            let packet = &room[begun.octets..][..len];
            capture.add(self.from, SlotId::DAEMON, &[packet]);
        }
        if begun.octets == 0 {
            begun.each = len;
            self.head.meta.ecn = ecn;
        } else if len > begun.each || ecn != self.head.meta.ecn {
            return self.split(&begun, len, ecn);
        }
        begun.octets += len;
        begun.is_whole |= len < begun.each || len < usize::from(PACKET_OCTETS_MIN);
        if begun.is_whole {
            self.publish(begun.left, begun.each, begun.octets);
        } else {
            self.begun = Some(begun);
        }
    }

    #[inline]
    fn finish(&mut self) {
        if let Some(begun) = self.begun.take().filter(|begun| begun.octets > 0) {
            self.publish(begun.left, begun.each, begun.octets);
        }
    }

    /// Room that is not published is not used.
    #[inline]
    fn discard(&mut self) {}
}

#[cfg(test)]
mod tests {
    use urdma_channel::{ChannelConfig, Incoming, Next, OwnRegion, PeerRegion, CELL_DATA};

    use super::*;

    /// Head, and octets in cell and frame, of the messages that `send` sends.
    fn sent(send: impl FnOnce(&mut DaemonPath<'_>)) -> Vec<(PacketHead, Vec<u8>)> {
        let (region, fd) = OwnRegion::create(&ChannelConfig::PACKETS, 1).unwrap();
        let mut channel = Channel::new(region);
        let from = SlotId::new(1).unwrap();
        let mut capture = None;
        let mut path = DaemonPath::new(&mut channel, &mut capture, from, Meta::default());
        send(&mut path);
        let mut incoming = Incoming::new(PeerRegion::open(fd).unwrap());
        let (mut cell, mut messages) = ([0; CELL_DATA], Vec::new());
        while let Next::Message { len, payload, .. } = incoming.next(&mut cell) {
            let head = PacketHead::parse(&cell[..len]).unwrap();
            let mut octets = cell[32..len].to_vec();
            if let Some(payload) = payload {
                octets = vec![0; payload.len()];
                assert!(incoming.copy_payload(payload, 0, &mut octets));
            }
            messages.push((head, octets));
        }
        messages
    }

    fn packet(path: &mut DaemonPath<'_>, (room, is_followed): (usize, bool), written: Written) {
        let octets = path.begin(room, is_followed).unwrap();
        octets[..written.len].fill(written.len.to_le_bytes()[0]);
        path.commit(written);
    }

    fn written(len: usize) -> Written {
        Written::of_run(len)
    }

    /// Length of each packet of each message.
    fn lengths(messages: &[(PacketHead, Vec<u8>)]) -> Vec<Vec<usize>> {
        let lengths = messages.iter().map(|(head, octets)| {
            let packets = head.packets(octets.len());
            let lengths = packets.map(|(at, len)| {
                let fill = len.to_le_bytes()[0];
                assert!(octets[at..at + len].iter().all(|octet| *octet == fill));
                len
            });
            lengths.collect()
        });
        lengths.collect()
    }

    #[test]
    fn packets_of_one_length_and_a_shorter_one_are_one_message() {
        let messages = sent(|path| {
            for _ in 0..3 {
                packet(path, (1_000, true), written(990));
            }
            packet(path, (1_000, false), written(400));
            packet(path, (1_000, false), written(990));
            packet(path, (100, false), written(60));
            path.finish();
        });
        let expected = [&[990, 990, 990, 400][..], &[990], &[60]];
        assert_eq!(lengths(&messages), expected);
    }

    #[test]
    fn packet_that_does_not_fit_the_message_has_its_own() {
        let unmarked = Written {
            is_ecn_capable: false,
            ..written(900)
        };
        let messages = sent(|path| {
            packet(path, (1_000, true), written(900));
            packet(path, (1_000, true), written(901));
            packet(path, (1_000, true), written(900));
            packet(path, (1_000, true), unmarked);
            path.begin(1_000, true).unwrap();
            path.discard();
            path.finish();
        });
        assert_eq!(lengths(&messages), [[900], [901], [900], [900]]);
        let ecn: Vec<u8> = messages.iter().map(|(head, _)| head.meta.ecn).collect();
        assert_eq!(ecn, [2, 2, 2, 0]);
    }

    #[test]
    fn message_is_not_longer_than_a_frame() {
        let messages = sent(|path| {
            (0..70).for_each(|_| packet(path, (1_472, true), written(1_472)));
            path.finish();
        });
        let counts: Vec<usize> = lengths(&messages).iter().map(Vec::len).collect();
        assert_eq!(counts, [44, 26]);
    }

    #[test]
    fn run_is_one_message() {
        let run = |count, last| Run {
            count,
            each: 1_472,
            last,
        };
        let messages = sent(|path| {
            for (rooms, run) in [(32, run(32, 700)), (3, run(1, 1_472)), (3, run(0, 0))] {
                let given = path.begin_run(1_472, rooms).unwrap();
                assert_eq!(given.len(), usize::from(rooms));
                for room in given {
                    room.fill(1_472_usize.to_le_bytes()[0]);
                }
                path.commit_run(&run);
            }
            // A frame has room for 44.
            assert_eq!(path.begin_run(1_472, 60).unwrap().len(), 44);
        });
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0].0.packet_octets, 1_472);
        assert_eq!(messages[0].1.len(), 31 * 1_472 + 700);
        assert_eq!(messages[1].0.packet_octets, 0);
    }
}
