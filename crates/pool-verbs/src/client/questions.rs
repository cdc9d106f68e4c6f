//! Questions of a client over initiators, by which it asks others to exchange messages.

use std::net::SocketAddr;
use std::time::Instant;

use urdma_pool::NodeId;

use super::links::Question;
use super::{Client, Exchange, CONNECT_LIMIT};
use crate::error::Error;
use crate::ffi::{random, Id, Service};

impl Client {
    /// Asks a node to exchange messages.
    pub(super) fn question(&mut self, node: NodeId) -> Result<(), Error> {
        let token = random()?;
        // The exchange with this node is among them.
        let reserved = self.reserve_receives(self.pool.exchanges());
        let Some(terms) = self.pool.ask(node, token) else {
            return Ok(());
        };
        let begun = reserved.and_then(|()| self.begin_question(node));
        match begun {
            Ok(cm) => {
                self.may_connect = true;
                self.questions.push(Question {
                    node,
                    terms,
                    cm,
                    until: Instant::now() + CONNECT_LIMIT,
                    again: None,
                });
            }
            Err(error) => {
                self.pool.handle_unanswered(node, terms);
                self.failure = Some((Some(node), error));
            }
        }
        Ok(())
    }

    /// Posts the Receives for messages of as many nodes, and a share more for messages that come
    /// twice.
    pub(super) fn reserve_receives(&mut self, nodes: u32) -> Result<(), Error> {
        match &mut self.exchange {
            Some(Exchange {
                buffers,
                target: Some(offered),
                ..
            }) => buffers.reserve(&offered.target, nodes + 1),
            _ => Ok(()),
        }
    }

    pub(super) fn begin_question(&self, node: NodeId) -> Result<Id, Error> {
        let cm = Id::new(Service::Datagram)?;
        if let Some(exchange) = &self.exchange {
            // The node compares the address with that at which this end listens.
            cm.bind(SocketAddr::new(exchange.at.ip(), 0))?;
        }
        cm.resolve_address(self.nodes[node.index()].address)?;
        Ok(cm)
    }
}
