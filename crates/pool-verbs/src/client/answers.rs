//! What follows from questions by which clients over initiators agree to exchange messages: from
//! the answers to those of this client, and from those of others.

use std::time::{Duration, Instant};

use urdma_node_table::Target;
use urdma_pool::{CallError, NodeId, PoolTerms, SHARE_MIN};

use super::links::{Question, ASK_AGAIN};
use super::{Client, Exchange};
use crate::asking::{decode_answer, encode_answer, Question as Asked, Refused};
use crate::described;
use crate::error::Error;
use crate::ffi::{is_accepted, random, Answer, Event, Request};

/// How often it is looked for other clients from which nothing has come.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How long a client that ends waits until others have been told.
const LEAVE_LIMIT: Duration = Duration::from_millis(100);

/// What has become of a question.
enum Outcome {
    Waits,
    Answered(Answer),
    Unanswered,
}

impl Exchange {
    /// The target and the memory that others are told.
    fn told(&self) -> Option<Target> {
        let offered = self.target.as_ref()?;
        Target::new(offered.target.number(), offered.key, self.offered_region())
    }
}

impl Client {
    /// Takes what has come for questions.
    pub(super) fn advance_questions(&mut self) {
        for at in (0..self.questions.len()).rev() {
            let outcome = self.advance_question(at).unwrap_or(Outcome::Unanswered);
            if let Outcome::Waits = outcome {
                continue;
            }
            let Question { node, terms, .. } = self.questions.swap_remove(at);
            let answered = match outcome {
                Outcome::Answered(answer) => self.take_answer(node, terms, &answer),
                _ => Err(Error::Unreachable(self.nodes[node.index()].address)),
            };
            if answered.is_err() {
                self.pool.handle_unanswered(node, terms);
            }
        }
    }

    fn advance_question(&mut self, at: usize) -> Result<Outcome, Error> {
        loop {
            let question = &self.questions[at];
            let is_over = |when: Instant| when <= Instant::now();
            match question.cm.next_event()? {
                Some(Event::AddressResolved) => question.cm.resolve_route()?,
                Some(Event::RouteResolved) => self.send_question(at)?,
                Some(Event::Answer(answer)) => return Ok(Outcome::Answered(answer)),
                Some(Event::Rejected(private)) if Refused::is_later(&private) => {
                    self.questions[at].again = Some(Instant::now() + ASK_AGAIN);
                }
                Some(Event::Ended | Event::Rejected(_)) => return Ok(Outcome::Unanswered),
                Some(_) => {}
                None if is_over(question.until) => return Ok(Outcome::Unanswered),
                None if question.again.is_some_and(is_over) => {
                    let cm = self.begin_question(question.node)?;
                    (self.questions[at].cm, self.questions[at].again) = (cm, None);
                }
                None => return Ok(Outcome::Waits),
            }
        }
    }

    fn send_question(&self, at: usize) -> Result<(), Error> {
        let Question { cm, terms, .. } = &self.questions[at];
        self.device.domain.expect(cm)?;
        let exchange = self.exchange.as_ref().ok_or(Error::Memory)?;
        let asked = Asked {
            at: exchange.at,
            buffer_octets: exchange.config.buffer_octets,
            terms: *terms,
            target: exchange.told().ok_or(Error::Memory)?,
        };
        cm.connect(&asked.encode())
    }

    /// A node has answered. One that exchanges no messages, or has other buffers, has no share.
    fn take_answer(
        &mut self,
        node: NodeId,
        asked: PoolTerms,
        answer: &Answer,
    ) -> Result<(), Error> {
        let address = self.nodes[node.index()].address;
        let (region, key) =
            described::decode_with_key(&answer.private).ok_or(Error::Unreachable(address))?;
        let target = Target::new(answer.number, key, region).ok_or(Error::Memory)?;
        let own_octets = self.exchange.as_ref().map(|own| own.config.buffer_octets);
        let terms = decode_answer(&answer.private);
        let terms = terms.filter(|(octets, _)| Some(*octets) == own_octets);
        let terms = terms.map_or(PoolTerms { share: 0, ..asked }, |(_, terms)| terms);
        self.take_path(address.ip(), answer)?;
        if self.pool.handle_answered(node, asked, terms) {
            self.reach(node.index(), target)?;
        }
        Ok(())
    }

    /// Takes the questions of other clients that there are.
    pub(super) fn take_questions(&mut self) -> Result<(), Error> {
        while let Some(exchange) = self.exchange.as_ref().filter(|own| own.target.is_some()) {
            match exchange.listener.next_event()? {
                Some(Event::Request(request)) => self.take_question(&request),
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    /// Another client asks.
    fn take_question(&mut self, request: &Request) {
        let answer = match Asked::is_meant(&request.private) {
            true => self.admit_question(request).map(Some),
            false => Ok(None),
        };
        let answered = answer.and_then(|terms| {
            let exchange = self.exchange.as_ref().ok_or(Refused::Never)?;
            let told = exchange.told().ok_or(Refused::Never)?;
            let private = match terms {
                Some(terms) => encode_answer(&told, exchange.config.buffer_octets, &terms),
                None => described::encode_with_key(&told.region(), told.access_key()),
            };
            // One that asks no more does not need the answer.
            let answered = is_accepted(request.id.answer(&private, told.number()));
            answered.map(drop).map_err(|_| Refused::Later)
        });
        if let Err(refused) = answered {
            drop(request.id.reject(&refused.encode()));
        }
    }

    /// What the client that asks is told.
    fn admit_question(&mut self, request: &Request) -> Result<PoolTerms, Refused> {
        let exchange = self.exchange.as_ref().ok_or(Refused::Never)?;
        let asked = Asked::decode(&request.private).ok_or(Refused::Never)?;
        let from = request.from.map(|from| from.to_canonical());
        // Messages to that client go to this address.
        let is_possible = from == Some(asked.at.ip())
            && asked.at.port() != 0
            && asked.at != exchange.at
            && asked.terms.share >= SHARE_MIN
            && asked.buffer_octets == exchange.config.buffer_octets;
        if !is_possible {
            return Err(Refused::Never);
        }
        let later = |_: Error| Refused::Later;
        self.take_arrived().map_err(later)?;
        self.handle_to(asked.at.ip())
            .map_err(later)?
            .ok_or(Refused::Never)?;
        self.reserve_receives(self.pool.exchanges() + 1)
            .map_err(later)?;
        let token = random().map_err(later)?;
        let at = self.node_at(asked.at).map_err(later)?;
        let taken = self
            .pool
            .handle_asked(self.nodes[at].id, asked.terms, token);
        let terms = match taken {
            Ok(terms) => terms.ok_or(Refused::Later)?,
            Err(CallError::Limit(_)) => {
                self.pool.end_idle_exchange();
                return Err(Refused::Later);
            }
            Err(_) => return Err(Refused::Never),
        };
        self.reach(at, asked.target).map_err(later)?;
        Ok(terms)
    }

    /// Asks other clients from which nothing has come for a while whether they are there.
    pub(super) fn probe_silent(&mut self) {
        let is_time = self.probed.elapsed() >= PROBE_EVERY;
        if is_time && self.pool.exchanges() > 0 {
            self.probed = Instant::now();
            self.pool.probe_silent();
        }
    }
}

impl Drop for Client {
    /// Tells the clients that are reached by initiators that this one ends: no event would.
    fn drop(&mut self) {
        if self.pool.exchanges() == 0 || self.device.domain.is_removed() {
            return;
        }
        self.pool.end_exchanges();
        let until = Instant::now() + LEAVE_LIMIT;
        while self.pool.is_leaving() && Instant::now() < until {
            let polled = self.settle().and_then(|()| self.poll_queue());
            if polled.is_err() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
