//! Questions between pools that reach each other by initiators: each is on its way, then its
//! answer. Questions may cross, come twice, and come late.

use super::pools::{Pools, Side};
use super::work::fail;
use super::{Finding, Rng};
use crate::meeting::Stage;
use crate::{CallError, NodeId, PoolTerms, SHARE_MAX, SHARE_MIN};

/// A question of a side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    side: usize,
    peer: usize,
    terms: PoolTerms,
    /// The process that asks.
    from: u64,
    /// What the peer has answered, and the process there, if its answer is on its way.
    answer: Option<(PoolTerms, u64)>,
    /// It is the copy of one that was answered.
    is_copy: bool,
    /// How often the peer had no place for it.
    refusals: u32,
}

/// The driver asks no more often.
const REFUSALS_MAX: u32 = 60;

/// The terms of a side, which are changed on their way now and then if it is the liar.
fn lie(is_liar: bool, terms: PoolTerms, random: u64) -> PoolTerms {
    let share = [SHARE_MIN, SHARE_MAX, u16::MAX][(random >> 32) as usize % 3];
    match random >> 61 {
        0 if is_liar => PoolTerms { share, ..terms },
        1 if is_liar => PoolTerms {
            token: random,
            ..terms
        },
        2 if is_liar => PoolTerms {
            number: random as u32,
            ..terms
        },
        3 if is_liar => PoolTerms {
            epoch: random as u32,
            ..terms
        },
        _ => terms,
    }
}

impl Side {
    /// How far its exchange with another side is.
    fn stage_with(&self, peer: usize) -> Option<Stage> {
        let exchanges = &self.pool.exchanges;
        exchanges
            .get(exchanges.id_of_node(self.nodes[peer])?)?
            .stage()
    }

    /// What it has told another side.
    fn told_to(&self, peer: usize) -> Option<PoolTerms> {
        let exchanges = &self.pool.exchanges;
        let exchange = exchanges.get(exchanges.id_of_node(self.nodes[peer])?)?;
        exchange.meeting?.own
    }

    /// With which other sides it exchanges messages.
    pub(super) fn met(&self) -> Vec<usize> {
        let all = self.pool.exchanges.all();
        let met = all.filter(|(_, exchange)| exchange.stage() == Some(Stage::Ready));
        let nodes = met.filter_map(|(_, exchange)| exchange.meeting.map(|meeting| meeting.node));
        nodes.filter_map(|node| self.index_of(node)).collect()
    }
}

impl Pools {
    fn token(&mut self) -> u64 {
        self.next_token += 1;
        // No two of them differ in few bits.
        self.next_token.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The driver of a side asks a node.
    pub(super) fn question(
        &mut self,
        side: usize,
        node: NodeId,
        is_reachable: bool,
    ) -> Result<(), Finding> {
        let (token, share) = (self.token(), self.messages.share);
        let own = &mut self.sides[side];
        let peer = own.index_of(node).ok_or("an unknown node is asked")?;
        own.reserve(share);
        if let Some(terms) = own.pool.ask(node, token) {
            if !is_reachable {
                own.pool.handle_unanswered(node, terms);
                return Ok(());
            }
            let from = own.incarnation;
            self.questions.push(Question {
                side,
                peer,
                terms,
                from,
                answer: None,
                is_copy: false,
                refusals: 0,
            });
        }
        Ok(())
    }

    /// Any question goes on, if there is one.
    pub(super) fn step_question(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        if self.questions.is_empty() {
            return Ok(());
        }
        let at = rng.below_len(self.questions.len());
        let question = self.questions[at];
        if question.is_copy && !rng.percent(10) {
            // It is late.
            return Ok(());
        }
        if question.answer.is_none() && !question.is_copy && rng.percent(40) {
            let is_copy = true;
            self.questions.push(Question {
                is_copy,
                ..question
            });
        }
        self.advance_question(at).map(drop)
    }

    /// With which other sides a side exchanges messages by terms that are the same at both ends.
    pub(super) fn hears(&self, side: usize) -> Vec<usize> {
        let terms = |side: usize, peer: usize| {
            let side = &self.sides[side];
            let exchanges = &side.pool.exchanges;
            let exchange = exchanges.get(exchanges.id_of_node(side.nodes[peer])?)?;
            let meeting = exchange.meeting.filter(|met| met.stage == Stage::Ready)?;
            meeting.own.zip(meeting.told)
        };
        let agree = |peer: &usize| {
            let (own, other) = (terms(side, *peer), terms(*peer, side));
            own.is_some() && own == other.map(|(own, told)| (told, own))
        };
        (0..self.sides.len()).filter(agree).collect()
    }

    /// Whether there is a question that has not ended.
    pub(super) fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// All questions go on.
    pub(super) fn step_questions(&mut self) -> Result<(), Finding> {
        for at in (0..self.questions.len()).rev() {
            if self.advance_question(at)? {
                self.advance_question(at.min(self.questions.len() - 1))?;
            }
        }
        Ok(())
    }

    /// A question is delivered, or its answer; whether an answer is on its way now.
    fn advance_question(&mut self, at: usize) -> Result<bool, Finding> {
        match self.questions[at].answer {
            None => self.ask_peer(at),
            Some(answer) => {
                let question = self.questions.remove(at);
                self.answered(&question, answer);
                Ok(false)
            }
        }
    }

    fn ask_peer(&mut self, at: usize) -> Result<bool, Finding> {
        let question = self.questions.remove(at);
        let Question { side, peer, .. } = question;
        let (token, share) = (self.token(), self.messages.share);
        let now = self.sides[side].incarnation;
        let is_late = self.sides[side].told_to(peer) != Some(question.terms);
        if self.sides[peer].routes[side] == question.from {
            // The driver hands over what has arrived before it handles a question. What comes from
            // a process that has ended may arrive later.
            while self.arrive(peer) {}
        }
        let own = &mut self.sides[peer];
        if question.from != now && own.routes[side] == now {
            // No question of a process arrives behind one of its successor.
            return Ok(false);
        }
        own.reserve(share);
        let from = own.nodes[side];
        let stage = own.stage_with(side);
        self.met[0] += u64::from(stage == Some(Stage::Asking));
        let asked = lie(self.liar == Some(side), question.terms, token);
        match own.pool.handle_asked(from, asked, token) {
            Ok(Some(terms)) => {
                let terms = lie(self.liar == Some(peer), terms, token);
                own.routes[side] = question.from;
                own.is_met_late[side] = is_late;
                let answer = Some((terms, own.incarnation));
                self.questions.insert(at, Question { answer, ..question });
                return Ok(true);
            }
            // It was late.
            Err(CallError::Unknown) => self.met[1] += 1,
            Err(CallError::Limit(_)) => {
                self.met[2] += 1;
                own.pool.end_idle_exchange();
                let refusals = question.refusals + 1;
                self.ask_again(
                    at,
                    Question {
                        refusals,
                        ..question
                    },
                );
            }
            Ok(None) => {
                self.met[3] += 1;
                self.ask_again(at, question);
            }
            Err(error) => return fail(format!("a question is refused: {error}")),
        }
        Ok(false)
    }

    /// The peer is asked again, unless the process has ended that asks.
    fn ask_again(&mut self, at: usize, question: Question) {
        let own = &mut self.sides[question.side];
        if question.from != own.incarnation || question.is_copy {
            return;
        }
        if question.refusals <= REFUSALS_MAX {
            return self.questions.insert(at, question);
        }
        self.given_up.push((question.side, question.peer));
        own.pool
            .handle_unanswered(own.nodes[question.peer], question.terms);
    }

    fn answered(&mut self, question: &Question, (terms, incarnation): (PoolTerms, u64)) {
        let own = &mut self.sides[question.side];
        if own.incarnation == question.from {
            let node = own.nodes[question.peer];
            let was_ready = own.stage_with(question.peer) == Some(Stage::Ready);
            let is_other = own.routes[question.peer] != incarnation;
            if was_ready && (is_other || own.is_met_late[question.peer]) {
                // It has taken a question that was late, or one of another process than has
                // answered, and cannot know which of them is there: it ends the exchange.
                self.given_up.push((question.side, question.peer));
            }
            if own.pool.handle_answered(node, question.terms, terms) {
                own.routes[question.peer] = incarnation;
                own.is_met_late[question.peer] = false;
            }
        }
    }

    /// Whether each question has had its answer, and all buffers are posted, but for the liar.
    pub(super) fn all_met(&self) -> Result<(), Finding> {
        let honest = |(at, _): &(usize, &Side)| self.liar != Some(*at);
        for (at, side) in self.sides.iter().enumerate().filter(honest) {
            let mut all = side.pool.exchanges.all();
            let waiting = all.find(|(_, exchange)| {
                let stage = exchange.stage();
                stage.is_some_and(|stage| !stage.is_settled())
            });
            if let Some((_, waiting)) = waiting {
                return fail(format!(
                    "an exchange of side {at} stays {:?}",
                    waiting.stage()
                ));
            }
            if !side.has_all_receives() {
                return fail(format!("a buffer of the target of side {at} is lost"));
            }
        }
        Ok(())
    }
}
