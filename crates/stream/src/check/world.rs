//! Two ends, the connection between them, and the memory of both.
//!
//! The connection is reliable and in order, as one of type RC: a work request takes effect at the
//! peer at some moment after it was posted, and completes at its sender at some moment after that.
//! The octets of a write are read when it takes effect, so a buffer that was returned too early is
//! noticed.

use std::collections::{HashMap, VecDeque};

use super::Rng;
use crate::fault::{Fault, Faults};
use crate::wire::{Body, Control, Immediate};
use crate::{
    Buffer, Config, Event, Kind, Outcome, Piece, RecvId, RingCopy, RingNo, SendId, Stats, Stream,
    Transmit,
};

const RING_RKEY: u32 = 1;
const RING_ADDR: u64 = 0x1000;

/// What the checker says when something is wrong.
pub(super) type Finding = String;

/// What ends a stream in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing does.
    Later,
    /// This end finishes its sending half.
    Finish(usize),
    /// This end stops receiving.
    Stop(usize),
    /// This end closes.
    Close(usize),
    /// This end aborts.
    Abort(usize),
    /// The connection breaks.
    Disconnect,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) configs: [Config; 2],
    pub(super) rings: [u64; 2],
    pub(super) longest: u64,
    pub(super) waitall_percent: u64,
    pub(super) cancel_percent: u64,
    /// How often a sender asks for another ring, whatever it needs.
    pub(super) ring_percent: u64,
    pub(super) ending: Ending,
    pub(super) fault: Option<Fault>,
    /// The connection delivers immediates before their data is placed.
    pub(super) early_immediates: bool,
}

impl Plan {
    /// Two ends with rings of this many octets, without faults, cancellations or an end of their
    /// own.
    pub(super) fn quiet(ring_octets: u64, longest: u64) -> Self {
        Self {
            configs: [Config::default(); 2],
            rings: [ring_octets; 2],
            longest,
            waitall_percent: 0,
            cancel_percent: 0,
            ring_percent: 0,
            ending: Ending::Later,
            fault: None,
            early_immediates: false,
        }
    }
}

/// A permutation of the 64-bit words that looks random.
fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The octet at an offset of a send of an end.
fn octet(end: usize, send: SendId, offset: u64) -> u8 {
    (mix((send.0 << 34) ^ (offset << 1) ^ end as u64) >> 7) as u8
}

/// A send, as its user knows it.
#[derive(Debug)]
struct Sent {
    id: SendId,
    len_octets: u64,
    done: Option<(u64, Outcome)>,
}

/// One end, its user, and what is on the way from it.
#[derive(Debug)]
pub(super) struct End {
    pub(super) stream: Stream<()>,
    kind: Kind,
    /// Whether each work request is compared with that of an end that looks at everything. A fault
    /// is to be found without that.
    compares: bool,
    /// Times at which not everything was looked at for a work request.
    pub(super) short_looks: usize,
    /// Transfers whose copy followed at once.
    pub(super) received_at_once: usize,
    sends: Vec<Sent>,
    /// Memory into which the peer may write, by key. Receives that ended have none.
    memory: HashMap<u32, (u64, Vec<u8>)>,
    recvs: VecDeque<(RecvId, u32)>,
    /// The rings that were offered and are in use or can be taken, and their keys.
    rings: VecDeque<(RingNo, u32)>,
    /// The octets of completed receives, and where each of them ends.
    got: Vec<u8>,
    ends: Vec<usize>,
    next_rkey: u32,
    arrived: u64,
    /// Rings that it has asked for.
    pub(super) wants: usize,
    on_the_way: VecDeque<Transmit>,
    taken_effect: usize,
    /// Data whose immediate was delivered before it.
    late: Vec<(u32, u64, Vec<u8>)>,
    pub(super) end_of_stream: bool,
    pub(super) closed: bool,
    pub(super) failed: Option<crate::Failure>,
    /// One nanosecond passes with each work request and each completion.
    pub(super) now_ns: u64,
}

impl End {
    fn new(plan: &Plan, index: usize) -> Self {
        let ring = |end: usize| Buffer {
            addr: RING_ADDR,
            len_octets: plan.rings[end],
            rkey: RING_RKEY,
        };
        let config = &plan.configs[index];
        let peer = plan.configs[1 - index].hello(ring(1 - index));
        let peer = crate::wire::Hello::decode(&peer.encode()).expect("a greeting of our own");
        let faults = Faults { only: plan.fault };
        let stream = Stream::with_faults(config, ring(index), &peer, faults).expect("a plan fits");
        let room = vec![0; plan.rings[index] as usize];
        Self {
            stream,
            kind: config.kind,
            compares: plan.fault.is_none(),
            short_looks: 0,
            received_at_once: 0,
            sends: Vec::new(),
            memory: HashMap::from([(RING_RKEY, (RING_ADDR, room))]),
            recvs: VecDeque::new(),
            rings: VecDeque::from([(RingNo(0), RING_RKEY)]),
            got: Vec::new(),
            ends: Vec::new(),
            next_rkey: 100,
            arrived: 0,
            wants: 0,
            on_the_way: VecDeque::new(),
            taken_effect: 0,
            late: Vec::new(),
            end_of_stream: false,
            closed: false,
            failed: None,
            now_ns: 0,
        }
    }

    pub(super) fn open_sends(&self) -> usize {
        self.sends
            .iter()
            .rev()
            .take(64)
            .filter(|send| send.done.is_none())
            .count()
    }

    /// Octets of receives that are complete.
    pub(super) fn received_octets(&self) -> usize {
        self.got.len()
    }

    pub(super) fn cancel_all(&mut self) {
        for (id, _) in self.recvs.clone() {
            self.stream.cancel_recv(id).unwrap();
        }
        self.events().unwrap();
    }

    pub(super) fn open_recvs(&self) -> usize {
        self.recvs.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.on_the_way.is_empty() && self.taken_effect == 0
    }

    pub(super) fn send(&mut self, len_octets: u64) {
        assert!(
            !self.compares
                || !self.stream.joins(len_octets)
                || self.stream.is_joined_alike(len_octets, ()),
            "a send that joins others is none"
        );
        if let Ok(id) = self.stream.send(len_octets, ()) {
            self.sends.push(Sent {
                id,
                len_octets,
                done: None,
            });
        }
    }

    /// A send and its work request by one call. `false`: they are two.
    pub(super) fn send_at_once(&mut self, len_octets: u64) -> Result<bool, Finding> {
        let now_ns = self.now_ns + 1;
        let Some((piece, is_same)) = self.stream.send_lone_twice(len_octets, (), now_ns) else {
            return Ok(false);
        };
        self.now_ns = now_ns;
        if self.compares && !is_same {
            return Err(format!("something else follows from a send than {piece:?}"));
        }
        self.on_the_way.push_back(Transmit::Write(piece));
        self.sends.push(Sent {
            id: piece.parts.first().send,
            len_octets,
            done: None,
        });
        Ok(true)
    }

    /// True if the receive was queued.
    pub(super) fn recv(&mut self, len_octets: u64, waitall: bool) -> bool {
        let buffer = self.next_buffer(len_octets);
        let Ok(id) = self.stream.recv(buffer, (), waitall) else {
            return false;
        };
        self.register(buffer);
        self.recvs.push_back((id, buffer.rkey));
        true
    }

    fn next_buffer(&self, len_octets: u64) -> Buffer {
        Buffer {
            addr: u64::from(self.next_rkey) << 20,
            len_octets,
            rkey: self.next_rkey,
        }
    }

    fn register(&mut self, buffer: Buffer) {
        self.next_rkey += 1;
        let room = vec![0; buffer.len_octets as usize];
        self.memory.insert(buffer.rkey, (buffer.addr, room));
    }

    /// Makes the ring that the peer wishes, or refuses it. True if one was wished.
    pub(super) fn ring(&mut self, refuses: bool) -> bool {
        let Some(len_octets) = self.stream.poll_ring() else {
            return false;
        };
        let buffer = self.next_buffer(len_octets);
        if refuses {
            self.stream.offer_ring(None);
            return true;
        }
        self.register(buffer);
        let last = self.rings.back().map_or(RingNo(0), |(number, _)| *number);
        self.rings.push_back((last.next(), buffer.rkey));
        self.stream.offer_ring(Some(buffer));
        true
    }

    /// Ends the registration of rings that are no longer in use.
    fn return_rings(&mut self) {
        let oldest = self.stream.oldest_ring();
        while let Some((_, rkey)) = self.rings.pop_front_if(|(number, _)| *number < oldest) {
            self.memory.remove(&rkey);
        }
    }

    pub(super) fn cancel_any(&mut self, rng: &mut Rng) {
        if rng.percent(50) && !self.recvs.is_empty() {
            let index = rng.below(self.recvs.len() as u64) as usize;
            self.stream.cancel_recv(self.recvs[index].0).ok();
        } else if let Some(send) = self.sends.iter().rev().find(|_| rng.percent(50)) {
            self.stream.cancel_send(send.id).ok();
        }
    }

    /// Asks for a ring of any length, or answers the peer.
    pub(super) fn wish_ring(&mut self, rng: &mut Rng) {
        if !self.ring(rng.percent(20)) {
            self.stream.sender().ring().wish(rng.between(1, 80));
        }
    }

    /// One copy from the ring. True if there was one.
    pub(super) fn copy(&mut self) -> Result<bool, Finding> {
        if self.compares && !self.stream.is_copied_alike() {
            return Err("copies together differ from one after the other".into());
        }
        let mut found = None;
        self.stream.poll_copy(|copy, ()| found = Some(*copy));
        let Some(copy) = found else {
            return Ok(false);
        };
        self.copied(&copy)?;
        self.return_rings();
        Ok(true)
    }

    /// Octets are copied from a ring.
    fn copied(&mut self, copy: &RingCopy) -> Result<(), Finding> {
        let ring = self.rings.iter().find(|(number, _)| *number == copy.ring);
        let (_, rkey) = ring.ok_or("a copy from a ring that was returned")?;
        let (_, ring) = &self.memory[rkey];
        let from = copy.ring_offset as usize;
        let octets = ring.get(from..from + copy.len_octets as usize);
        let octets = octets.ok_or("a copy from beyond the ring")?.to_vec();
        let recv = self.recvs.iter().find(|(id, _)| *id == copy.recv);
        let (_, rkey) = *recv.ok_or("a copy to a receive that has ended")?;
        place(&mut self.memory, rkey, copy.addr, &octets)
    }

    /// Immediate data, and the copy that follows, by one call. `false`: they are two.
    fn receive_at_once(&mut self, word: u32, written_octets: u32) -> Result<bool, Finding> {
        let (copy, is_same) = self.stream.receive_lone_twice(word, written_octets);
        if self.compares && !is_same {
            return Err(format!(
                "something else follows from a transfer than {copy:?}"
            ));
        }
        let Some(copy) = copy else {
            return Ok(false);
        };
        self.received_at_once += 1;
        self.copied(&copy)?;
        Ok(true)
    }

    /// One work request. True if there was one.
    pub(super) fn transmit(&mut self) -> Result<bool, Finding> {
        self.now_ns += 1;
        self.short_looks += usize::from(!self.stream.is_all_due());
        let (next, is_same) = match self.compares {
            true => self.stream.poll_transmit_twice(self.now_ns),
            false => (self.stream.poll_transmit(&mut self.now_ns), true),
        };
        if !is_same {
            return Err(format!(
                "something else follows from everything than {next:?}"
            ));
        }
        if let Some(Transmit::Control(message)) = next {
            let message = Control::decode(message.as_slice()).map_err(|error| error.to_string())?;
            // Useless rather than harmful: the sender has to discard it.
            match message.body {
                Body::Advert(advert)
                    if advert.estimate.0 < self.arrived && self.kind == Kind::Octets =>
                {
                    return Err("an advert for octets that have arrived".to_owned());
                }
                Body::Want(_) => self.wants += 1,
                _ => {}
            }
        }
        self.on_the_way.extend(next);
        Ok(next.is_some())
    }

    /// Everything that the end may do now.
    pub(super) fn drain(&mut self) -> Result<(), Finding> {
        while self.copy()? {}
        while self.ring(false) | self.transmit()? {}
        self.events()
    }

    /// After a call on an end that was drained: nothing has followed from it, if the end says so.
    pub(super) fn expect_drained(&mut self, is_said: bool) -> Result<(), Finding> {
        let is_late = self
            .stream
            .poll_timeout()
            .is_some_and(|at_ns| at_ns <= self.now_ns + 1);
        if !is_said || is_late {
            return Ok(());
        }
        match self.copy()? || self.transmit()? {
            true => Err("something follows from a call after which nothing is due".to_owned()),
            false => Ok(()),
        }
    }

    /// The completion of one work request. True if there was one.
    pub(super) fn complete(&mut self) -> bool {
        let any = self.taken_effect > 0;
        if any {
            self.taken_effect -= 1;
            self.now_ns += 1;
            self.stream.handle_sent(1, &mut self.now_ns);
        }
        any
    }

    /// All events so far.
    pub(super) fn events(&mut self) -> Result<(), Finding> {
        while let Some(event) = self.stream.poll_event() {
            match event {
                Event::Sent {
                    id,
                    octets,
                    outcome,
                    ..
                } => self.sent(id, octets, outcome)?,
                Event::Received {
                    id,
                    octets,
                    outcome,
                    ..
                } => self.received(id, octets, outcome)?,
                Event::Closed => self.closed = true,
            }
        }
        self.failed = self.stream.poll_failure().or(self.failed);
        Ok(())
    }

    fn sent(&mut self, id: SendId, octets: u64, outcome: Outcome) -> Result<(), Finding> {
        let send = self.sends.iter_mut().rev().find(|send| send.id == id);
        let send = send.ok_or("an unknown send completes")?;
        let whole = octets == send.len_octets;
        if send.done.is_some() || octets > send.len_octets || (outcome == Outcome::Done && !whole) {
            return Err(format!(
                "{id:?} of {} ends {outcome:?} {octets}",
                send.len_octets
            ));
        }
        send.done = Some((octets, outcome));
        Ok(())
    }

    fn received(&mut self, id: RecvId, octets: u64, outcome: Outcome) -> Result<(), Finding> {
        let index = self.recvs.iter().position(|(known, _)| *known == id);
        let index = index.ok_or("an unknown receive completes")?;
        let (_, rkey) = self.recvs.remove(index).unwrap();
        let (_, room) = self.memory.remove(&rkey).unwrap();
        let octets = octets as usize;
        self.got.extend(
            room.get(..octets)
                .ok_or("more octets than the receive has room")?,
        );
        if outcome == Outcome::EndOfStream {
            self.end_of_stream = true;
        } else if outcome == Outcome::Done {
            if self.end_of_stream {
                return Err("octets after the end of the stream".to_owned());
            }
            if octets == 0 && self.kind == Kind::Octets {
                return Err("a receive without octets is done".to_owned());
            }
            self.ends.push(self.got.len());
        }
        Ok(())
    }
}

fn place(
    memory: &mut HashMap<u32, (u64, Vec<u8>)>,
    rkey: u32,
    addr: u64,
    octets: &[u8],
) -> Result<(), Finding> {
    if octets.is_empty() {
        return Ok(());
    }
    let (base, room) = memory
        .get_mut(&rkey)
        .ok_or("a write into a buffer that was returned")?;
    let from = addr.checked_sub(*base).ok_or("a write before its buffer")? as usize;
    let to = room
        .get_mut(from..from + octets.len())
        .ok_or("a write beyond its buffer")?;
    to.copy_from_slice(octets);
    Ok(())
}

/// The two ends.
#[derive(Debug)]
pub(super) struct World {
    pub(super) ends: [End; 2],
    early_immediates: bool,
}

impl World {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            ends: [End::new(plan, 0), End::new(plan, 1)],
            early_immediates: plan.early_immediates,
        }
    }

    /// The oldest work request of end `from` takes effect at the other. True if there was one.
    pub(super) fn deliver(&mut self, from: usize) -> Result<bool, Finding> {
        self.deliver_by(from, false)
    }

    /// The same; octets of the ring are copied by the same call if they can be.
    pub(super) fn deliver_at_once(&mut self, from: usize) -> Result<bool, Finding> {
        self.deliver_by(from, true)
    }

    fn deliver_by(&mut self, from: usize, copies: bool) -> Result<bool, Finding> {
        let [first, second] = &mut self.ends;
        let (source, sink) = if from == 0 {
            (first, second)
        } else {
            (second, first)
        };
        for (rkey, addr, octets) in std::mem::take(&mut sink.late) {
            place(&mut sink.memory, rkey, addr, &octets)?;
        }
        let Some(next) = source.on_the_way.pop_front() else {
            return Ok(false);
        };
        source.taken_effect += 1;
        let refused = |error: crate::PeerError| format!("end {} refuses: {error}", 1 - from);
        match next {
            Transmit::Control(message) => {
                sink.stream
                    .handle_control(message.as_slice(), &mut sink.now_ns)
                    .map_err(refused)?;
                sink.return_rings();
            }
            Transmit::Write(piece) => {
                let octets = read(from, source, &piece)?;
                if self.early_immediates && piece.immediate.is_some() {
                    sink.late.push((piece.rkey, piece.addr, octets));
                } else {
                    place(&mut sink.memory, piece.rkey, piece.addr, &octets)?;
                }
                if let Some(word) = piece.immediate {
                    let (Immediate::Direct(len) | Immediate::Indirect(len)) =
                        Immediate::decode(word).map_err(refused)?;
                    sink.arrived += u64::from(len);
                    if !(copies && sink.receive_at_once(word, piece.len_octets)?) {
                        sink.stream
                            .handle_immediate(word, piece.len_octets)
                            .map_err(refused)?;
                    }
                }
            }
        }
        Ok(true)
    }

    /// What holds at every moment.
    pub(super) fn invariants(&self) -> Result<(), Finding> {
        for end in &self.ends {
            let (delivered, by_estimate) = end.stream.receiver().positions();
            if end.kind == Kind::Octets && delivered != by_estimate {
                return Err(format!(
                    "S_r is {delivered}, the estimate says {by_estimate}"
                ));
            }
        }
        Ok(())
    }

    /// The connection ends: what is on the way is lost.
    pub(super) fn disconnect(&mut self) -> Result<(), Finding> {
        for end in &mut self.ends {
            end.on_the_way.clear();
            end.taken_effect = 0;
            end.stream.handle_disconnected();
            while end.copy()? {}
            end.events()?;
            if end.open_sends() + end.open_recvs() > 0 {
                return Err("something survives the connection".to_owned());
            }
        }
        Ok(())
    }

    /// Compares what each end received with what the other sent. `whole`: which ends received all
    /// of it.
    pub(super) fn compare(&self, whole: [bool; 2]) -> Result<(), Finding> {
        for (index, end) in self.ends.iter().enumerate() {
            let peer = 1 - index;
            let mut at = 0;
            let mut message = 0;
            for send in &self.ends[peer].sends {
                let (octets, outcome) = send.done.unwrap_or((send.len_octets, Outcome::Done));
                for offset in 0..octets {
                    let Some(&got) = end.got.get(at) else {
                        break;
                    };
                    if got != octet(peer, send.id, offset) {
                        return Err(format!("octet {at} of end {index} is wrong"));
                    }
                    at += 1;
                }
                if end.kind == Kind::Messages && outcome == Outcome::Done {
                    if end
                        .ends
                        .get(message)
                        .is_some_and(|&boundary| boundary != at)
                    {
                        return Err(format!("message {message} of end {index} ends elsewhere"));
                    }
                    message += 1;
                }
            }
            let sent: u64 = self.ends[peer]
                .sends
                .iter()
                .filter_map(|send| send.done)
                .map(|d| d.0)
                .sum();
            if at != end.got.len() || (whole[index] && at as u64 != sent) {
                return Err(format!(
                    "end {index} has {} octets of {sent}",
                    end.got.len()
                ));
            }
        }
        Ok(())
    }

    /// Lets time pass until the next timeout. True if there was one.
    pub(super) fn pass_time(&mut self) -> bool {
        let mut any = false;
        for end in &mut self.ends {
            if let Some(at_ns) = end.stream.poll_timeout() {
                end.now_ns = end.now_ns.max(at_ns);
                any = true;
            }
        }
        any
    }

    /// Whether nothing is left to happen by itself.
    pub(super) fn is_idle(&self) -> bool {
        self.ends.iter().all(End::is_idle)
    }

    pub(super) fn stats(&self) -> [Stats; 2] {
        [self.ends[0].stream.stats(), self.ends[1].stream.stats()]
    }
}

/// The octets of a piece, from the buffers of its sends.
fn read(from: usize, source: &End, piece: &Piece) -> Result<Vec<u8>, Finding> {
    let mut octets = Vec::new();
    for part in piece.parts.iter() {
        let send = source.sends.iter().rev().find(|send| send.id == part.send);
        let send = send.ok_or("a write of an unknown send")?;
        if send.done.is_some() {
            return Err("a write from a buffer that was returned".to_owned());
        }
        let end = part.offset + u64::from(part.len_octets);
        if end > send.len_octets {
            return Err("a write from beyond its buffer".to_owned());
        }
        octets.extend((part.offset..end).map(|offset| octet(from, send.id, offset)));
    }
    match octets.len() == piece.len_octets as usize {
        true => Ok(octets),
        false => Err("a write of another length than its parts".to_owned()),
    }
}
