//! The most frequent send: a short one through the ring, before and behind which none waits.

use crate::config::Stats;
use crate::resync::Pause;
use crate::transfer::{Lone, Send};
use crate::types::{Clock, SendId};
use crate::wire::Immediate;

use super::{Finish, SendHalf, GATHER_OCTETS};

impl<M> SendHalf<M> {
    /// Whether a send of this length, if it is posted while no octet waits to be sent, is one piece
    /// through the ring, and no message is due before or after it.
    #[inline]
    pub(crate) fn is_lone(&self, len_octets: u64) -> bool {
        let goes_through_ring =
            self.uses_ring && !self.phase.is_direct() && self.adverts.len() == 0;
        let may_post = self.finish == Finish::Open && self.sends.len() < self.max_sends;
        let is_quiet = self.resync.pause == Pause::None
            && !(self.uses_adverts && self.resync.is_due())
            && self.withdraw.is_none()
            && !self.ring.owes_message()
            && !self.ring.is_judged_at(self.position.after(len_octets));
        let room = self.ring.contiguous().min(GATHER_OCTETS);
        goes_through_ring
            && may_post
            && is_quiet
            && self.in_flight() < self.gathers_after()
            && (1..=room.min(self.piece_max)).contains(&len_octets)
    }

    /// The work request of such a send.
    #[inline]
    pub(crate) fn lone(&self, len_octets: u64) -> Lone {
        let (addr, rkey) = self.ring.next_place();
        let whole = u32::try_from(len_octets).expect("a lone send is short");
        Lone {
            addr,
            rkey,
            immediate: Immediate::Indirect(whole).encode(),
        }
    }

    /// Queues such a send, whose work request is posted.
    #[inline]
    pub(crate) fn send_lone(
        &mut self,
        len_octets: u64,
        memory: M,
        clock: &mut impl Clock,
        stats: &mut Stats,
    ) -> SendId {
        let id = SendId(self.next_send);
        self.next_send += 1;
        self.pieces_posted += 1;
        self.sends.push_back(Send {
            id,
            memory,
            len_octets,
            taken: len_octets,
            last_piece: self.pieces_posted,
            ended: None,
        });
        self.cursor += 1;
        let position = self.ring.take(len_octets);
        self.ring.posted(position + len_octets, clock);
        stats.indirect_transfers += 1;
        stats.indirect_octets += len_octets;
        self.begun();
        // It is not judged at the position that is now reached.
        self.taken(1, len_octets);
        id
    }
}
