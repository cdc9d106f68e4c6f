//! How two engines open a channel: through urdmad, or directly if they are in one process and have
//! no urdmad.

use std::os::fd::{AsFd, OwnedFd};

use urdma_abi::spared::raised;
use urdma_channel::{ChannelConfig, OwnRegion, PeerRegion};
use urdma_memfd::{avoiding, MemoryError};
use urdma_types::SlotId;
use urdma_waiting::PeerPage;

use crate::engine::Engine;
use crate::objects::note::Note;
use crate::paths::channels::{open_peer, Offer, Standing};
use crate::paths::in_process::Neighbour;
use crate::types::EngineError;

impl Engine {
    /// Makes sure that there is a channel to the process that a slot has now.
    ///
    /// # Errors
    /// [`EngineError::NoMemory`]: its memory cannot be created; [`EngineError::HostUnreachable`]:
    /// the process has written what no process writes.
    pub(crate) fn open_channel(&self, slot: SlotId) -> Result<(), EngineError> {
        self.open_channel_to(slot, None, None)
    }

    /// The same to the process that has or had the slot in a generation, or has it now; by this
    /// region, if the process has got its descriptor.
    ///
    /// Several threads may do this at once, with the processes of different generations: whether
    /// a channel is made, and to which process, is decided under the lock that keeps it.
    fn open_channel_to(
        &self,
        slot: SlotId,
        generation: Option<u32>,
        mut given: Option<OwnRegion>,
    ) -> Result<(), EngineError> {
        let mut created = None;
        loop {
            let mut shard = self.shard.lock();
            let now = || self.directory.generation(slot.number());
            let generation = generation.unwrap_or_else(now);
            match shard.channels.standing(slot, generation) {
                Standing::Open => return Ok(()),
                Standing::Refused => return Err(EngineError::HostUnreachable),
                Standing::OfEarlier => {
                    drop(shard);
                    // urdmad's report of the end of the earlier process is still to come.
                    self.peer_slot_gone(slot, generation.wrapping_sub(1));
                }
                Standing::Missing => {
                    if let Some(given) = given.take() {
                        shard.channels.open_by(slot, generation, given);
                        return Ok(());
                    }
                    if let Some(created) = created.take() {
                        let offer = shard.channels.insert(slot, generation, created);
                        drop(shard);
                        if let Some(offer) = offer.map_err(no_memory)? {
                            self.make_offer(slot, offer);
                        }
                        return Ok(());
                    }
                    drop(shard);
                    // Without the lock, since it takes some system calls.
                    created = Some(self.create_region()?);
                }
            }
        }
    }

    /// Gives urdmad this process' end of a channel before a peer waits for it. If that fails, it is
    /// made with the channel.
    pub fn deposit_channel(&self) {
        let Some(control) = self.daemon() else {
            return;
        };
        if self.shard.lock().channels.has_deposit() {
            return;
        }
        let Ok(created) = self.create_region() else {
            return;
        };
        let offer = self.shard.lock().channels.deposit(created);
        if let Ok(Some(offer)) = offer {
            let fds = offer.into_fds();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            // If it cannot be sent, urdmad is gone.
            let _ = control.deposit_channel(&fds);
        }
    }

    fn create_region(&self) -> Result<(OwnRegion, OwnedFd), EngineError> {
        let stagger = self.info.slot.number();
        self.out_of_regions(|| {
            let created = OwnRegion::create(&ChannelConfig::default(), stagger);
            let (region, fd) = created.map_err(no_memory)?;
            Ok((region, raised(fd)))
        })
    }

    /// Calls `map`, which maps memory, without the lock. What it maps keeps out of registered
    /// memory that the program has unmapped: a peer would write there, or end the process with a
    /// fault.
    pub(crate) fn out_of_regions<T>(&self, map: impl FnOnce() -> T) -> T {
        let is_taken = |at, octets| self.shard.lock().process.regions.has_memory_in(at, octets);
        avoiding(&is_taken, map)
    }

    /// Offers a channel that was created.
    pub(crate) fn make_offer(&self, slot: SlotId, offer: Offer) {
        let generation = offer.generation;
        if slot == self.info.slot {
            // Both ends are this process.
            let opened = self.out_of_regions(|| open_peer(offer.into_fds()));
            let opened = opened.map_err(no_memory);
            let attached =
                opened.and_then(|peer| self.attach_channel(slot, generation, None, peer));
            if attached.is_err() {
                self.refuse_channel(slot, generation);
            }
            return;
        }
        let Some(instance) = &self.in_process else {
            if let Some(control) = self.daemon() {
                // If it cannot be sent, urdmad is gone.
                let fds = offer.into_fds();
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                let _ = control.offer_channel(slot.number(), Some(generation), &fds);
            }
            return;
        };
        let own = self.info.slot;
        if !instance.is_current(slot, generation) {
            return self.offer_refused(slot, generation);
        }
        let Some(peer) = instance.engine(slot) else {
            return instance.keep_offer(own, slot, offer.into_fds());
        };
        let generation = self.directory.generation(own.number());
        peer.take_offer(own, generation, offer.into_fds());
    }

    /// This process and the one that has `slot` in a generation are about to be connected: offers
    /// it a channel, unless there is one.
    pub(crate) fn channel_wanted(&self, slot: SlotId, generation: u32) {
        if !self.shard.lock().channels.is_with_later(slot, generation) {
            // If there can be none, the connection fails when its queue pair is set.
            let _ = self.open_channel_to(slot, Some(generation), None);
        }
    }

    /// The process that has `slot` in a generation offers a channel: the descriptors of its region,
    /// its page, and the socket that wakes it, if it has one. `stranger` is
    /// its user, unless that is root or this process' own.
    ///
    /// If they are unusable, or this process has no free descriptor, there is no channel to that
    /// process: it offers no second one.
    pub fn channel_offered(
        &self,
        slot: SlotId,
        generation: u32,
        stranger: Option<u32>,
        fds: Vec<OwnedFd>,
    ) {
        self.take_offered((slot, generation), stranger, fds, None);
    }

    /// The same, and urdmad has offered that process what this one has deposited.
    pub(crate) fn deposit_given(
        &self,
        slot: SlotId,
        generation: u32,
        stranger: Option<u32>,
        fds: Vec<OwnedFd>,
    ) {
        let deposit = self.shard.lock().channels.take_deposit();
        self.take_offered((slot, generation), stranger, fds, deposit);
    }

    fn take_offered(
        &self,
        (slot, generation): (SlotId, u32),
        stranger: Option<u32>,
        fds: Vec<OwnedFd>,
        given: Option<OwnRegion>,
    ) {
        if self.shard.lock().channels.is_with_later(slot, generation) {
            return;
        }
        let opened = self.out_of_regions(|| open_peer(fds));
        let attached = opened.map_err(no_memory).and_then(|peer| {
            let keeps = peer.1.waker().is_some();
            if keeps && !self.shard.lock().channels.may_add_waker(stranger) {
                return Err(EngineError::NoMemory);
            }
            self.open_channel_to(slot, Some(generation), given)?;
            self.attach_channel(slot, generation, stranger, peer)
        });
        if attached.is_err() {
            self.refuse_channel(slot, generation);
        }
    }

    /// Has no channel to the process that has or had `slot` in `generation`.
    fn refuse_channel(&self, slot: SlotId, generation: u32) {
        let mut shard = self.shard.lock();
        shard.channels.refuse(slot, generation);
        drop(shard);
        self.offer_refused(slot, generation);
    }

    fn attach_channel(
        &self,
        slot: SlotId,
        generation: u32,
        stranger: Option<u32>,
        peer: (PeerRegion, PeerPage),
    ) -> Result<(), EngineError> {
        let mut shard = self.shard.lock();
        if !shard.channels.attach(slot, generation, stranger, peer) {
            return Err(EngineError::HostUnreachable);
        }
        shard.channels.note_doorbell(slot);
        shard.progress(&self.info);
        drop(shard);
        // Messages may have waited in the region, and the thread does not listen to its bell yet.
        self.sleep_control.kick();
        Ok(())
    }

    /// There is no channel to the process that has or had the slot in a generation; one to the next
    /// process stays.
    pub(crate) fn offer_refused(&self, slot: SlotId, generation: u32) {
        let mut shard = self.shard.lock();
        if shard.channels.is_with_later(slot, generation) {
            return;
        }
        // A process that has offered its channel and ended cannot be offered this one. What it sent
        // before is handled first.
        shard.drain(&self.info);
        let closed = shard.end_channel(slot);
        if self.cm.get().is_some() {
            shard.process.notes.push(Note::Refused(slot));
        }
        self.sleep_control.wake_if_due(&mut shard);
        drop(shard);
        drop(closed);
    }
}

impl Neighbour for Engine {
    fn slot(&self) -> SlotId {
        self.info.slot
    }

    fn take_offer(&self, from: SlotId, generation: u32, fds: Vec<OwnedFd>) {
        self.channel_offered(from, generation, None, fds);
    }
}

fn no_memory(_: MemoryError) -> EngineError {
    EngineError::NoMemory
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use proto_trp::conn::Time;
    use urdma_types::{Psn, Qpn, RawQpn};

    use super::*;
    use crate::engine::manager::ConnectionManagement;
    use crate::rig::{instance, parts};

    /// Connection management that does nothing.
    struct Unmanaged;

    impl ConnectionManagement for Unmanaged {
        fn handle_datagram(&self, _: IpAddr, _: &[u8]) {}

        fn qp_ready(&self, _: Qpn) {}

        fn qp_data(&self, _: Qpn) {}

        fn qp_gone(&self, _: Qpn) {}

        fn slot_gone(&self, _: SlotId, _: &dyn Fn() -> bool) {}

        fn device_removed(&self) {}

        fn has_peer(&self, _: RawQpn, _: Psn) -> bool {
            false
        }

        fn next_deadline(&self) -> Option<Time> {
            None
        }

        fn handle_timeout(&self) {}

        fn is_unused(&self) -> bool {
            true
        }
    }

    #[test]
    fn wanted_channel_is_offered_to_the_process_that_is_meant_only() {
        let instance = instance();
        let start = |slot| Engine::start_without_thread(parts(&instance, slot)).unwrap();
        let [one, other] = [1, 2].map(start);
        let slot = other.info.slot;
        let generation = one.directory.generation(slot.number());
        let has = |engine: &Engine, slot| engine.shard.lock().channels.has(slot);
        one.channel_wanted(slot, generation);
        one.channel_wanted(slot, generation);
        assert!(has(&one, slot) && has(&other, one.info.slot));
        // The process that was meant has ended.
        one.channel_wanted(slot, generation.wrapping_sub(1));
        assert!(has(&one, slot));
    }

    /// Sends a message of connection management from one engine to another.
    fn send(one: &Engine, other: &Engine) {
        let (ip, to) = (Ipv4Addr::LOCALHOST.into(), other.info.slot);
        let mut datagram = [0; 32];
        datagram[0] = 0x17;
        let mut shard = one.shard.lock();
        assert!(shard.send_cm(&one.info, ip, to, &datagram));
        drop(shard);
        one.deliver_notes();
    }

    /// Sends such a message; how many the other one has then.
    fn messages_from(one: &Engine, other: &Engine) -> usize {
        let _ = other.cm.set(Arc::new(Unmanaged));
        send(one, other);
        let mut shard = other.shard.lock();
        shard.drain(&other.info);
        let notes = std::mem::take(&mut shard.process.notes);
        let messages = notes.iter().filter(|note| matches!(note, Note::Cm(..)));
        messages.count()
    }

    /// What an engine gives urdmad in advance.
    fn deposit(engine: &Engine) -> Vec<OwnedFd> {
        let created = engine.create_region().unwrap();
        let offer = engine.shard.lock().channels.deposit(created);
        offer.unwrap().unwrap().into_fds()
    }

    /// urdmad gives the engine what the other one has deposited, and that one its own.
    fn is_given(engine: &Engine, other: &Engine, fds: Vec<OwnedFd>) {
        let slot = other.info.slot;
        let generation = engine.directory.generation(slot.number());
        engine.deposit_given(slot, generation, None, fds);
    }

    #[test]
    fn deposits_that_are_given_are_a_channel() {
        let instance = instance();
        let start = |slot| Engine::start_without_thread(parts(&instance, slot)).unwrap();
        let [one, other] = [1, 2].map(start);
        let [of_one, of_other] = [&one, &other].map(|engine| deposit(engine));
        is_given(&one, &other, of_other);
        is_given(&other, &one, of_one);
        for engine in [&one, &other] {
            assert!(!engine.shard.lock().channels.has_deposit());
        }
        assert_eq!(messages_from(&one, &other), 1);
        assert_eq!(messages_from(&other, &one), 1);
    }

    #[test]
    fn offer_that_was_made_before_the_deposit_was_given_takes_its_place() {
        let instance = instance();
        let start = |slot| Engine::start_without_thread(parts(&instance, slot)).unwrap();
        let [one, other] = [1, 2].map(start);
        let [of_one, of_other] = [&one, &other].map(|engine| deposit(engine));
        is_given(&other, &one, of_one);
        // Its offer is on its way when it hears of the deposits.
        one.open_channel(other.info.slot).unwrap();
        is_given(&one, &other, of_other);
        assert!(!one.shard.lock().channels.has_deposit());
        assert_eq!(messages_from(&one, &other), 1);
        assert_eq!(messages_from(&other, &one), 1);
        // An honest process makes no other one.
        let generation = other.directory.generation(one.info.slot.number());
        other.channel_offered(one.info.slot, generation, None, deposit(&one));
        assert!(!other.shard.lock().channels.has(one.info.slot));
    }

    // Regression: the REJ of a process that rejected a request and ended was lost.
    #[test]
    fn message_of_a_process_that_has_ended_is_taken_before_its_channel_is_closed() {
        let instance = instance();
        let start = |slot| Engine::start_without_thread(parts(&instance, slot)).unwrap();
        let [ended, other] = [1, 2].map(start);
        assert!(other.cm.set(Arc::new(Unmanaged)).is_ok());
        send(&ended, &other);
        other.deliver_notes();
        send(&ended, &other);
        let slot = ended.info.slot;
        other.offer_refused(slot, other.directory.generation(slot.number()));
        let shard = other.shard.lock();
        let notes = &shard.process.notes[..];
        assert!(
            matches!(notes, [Note::Cm(..), Note::Refused(refused)] if *refused == slot),
            "{notes:?}"
        );
    }
}
