//! Datagram queue pairs from their creation to their end.

use std::sync::Arc;

use proto_trp::conn::{Event, Host, QpState};

use crate::objects::kinds::datagram::pair::{DatagramEntry, DatagramModify, Queues};
use crate::objects::kinds::datagram::table::split;
use crate::objects::qp::{PolledTable, Qp, QpConfig};
use crate::objects::qp_host::QpHost;
use crate::objects::qp_resources::{check_sizes, purge, SHARED_IN_USE_MAX};
use crate::objects::trace::DATAGRAM_TYPE;
use crate::shard::queue_pairs::NewQp;
use crate::shard::Shard;
use crate::types::{EngineError, QpCaps};

fn caps_of(config: &QpConfig) -> QpCaps {
    QpCaps {
        max_send_wr: config.max_send_wr,
        max_recv_wr: match &config.srq {
            Some(_) => SHARED_IN_USE_MAX,
            None => config.max_recv_wr,
        },
        max_send_sge: config.max_send_sge.max(1),
        max_recv_sge: config.max_recv_sge.max(1),
        max_inline: config.max_inline,
    }
}

impl Shard {
    /// The queues of a datagram queue pair that exists, and its host.
    pub(crate) fn datagram_host(&mut self, qp: &Qp) -> Option<(Queues<'_>, QpHost<'_>)> {
        let entry = self.qps.kinds.datagrams.entry(qp)?;
        Some(split(entry, &mut self.process))
    }

    pub(crate) fn create_datagram_qp(
        &mut self,
        config: &QpConfig,
        polled: &PolledTable,
    ) -> Result<Arc<Qp>, EngineError> {
        check_sizes(config)?;
        self.in_domain(config.pd, |shard| {
            let new = NewQp {
                slot: shard.slot,
                config,
                kind: DATAGRAM_TYPE,
                polled,
                recorder: &shard.recorder,
            };
            shard.qps.add(
                &new,
                |_| ((), caps_of(config)),
                |qps, qp, ()| {
                    let entry = DatagramEntry::new(Arc::clone(qp), config.hears_itself);
                    qps.kinds.datagrams.entries.put(qp.number().index(), entry);
                },
            )
        })
    }

    pub(crate) fn remove_datagram_qp(&mut self, qp: &Qp) -> Result<(), EngineError> {
        let index = qp.number().index();
        let entry = self
            .qps
            .kinds
            .datagrams
            .entry(qp)
            .ok_or(EngineError::Invalid)?;
        if entry.group_count > 0 {
            return Err(EngineError::Busy);
        }
        let routes = std::mem::take(&mut entry.routes);
        if let Some(lease) = &mut self.lease {
            for route in routes.into_values().flatten() {
                lease.close_route(route);
            }
        }
        self.qps.kinds.datagrams.entries.take(index);
        self.give_back(qp);
        Ok(())
    }

    pub(crate) fn modify_datagram_qp(
        &mut self,
        qp: &Qp,
        change: &DatagramModify,
        polled: &PolledTable,
    ) -> Result<(), EngineError> {
        let entry = self
            .qps
            .kinds
            .datagrams
            .entry(qp)
            .ok_or(EngineError::Invalid)?;
        entry.change(change)?;
        match change.state {
            Some(QpState::Reset) => {
                entry.clear();
                purge(qp);
                polled.get(qp.number().index()).reset(&entry.counts);
            }
            Some(QpState::Error) => {
                let (mut queues, mut host) = split(entry, &mut self.process);
                queues.fail(&mut host);
            }
            Some(QpState::Sqd) => {
                let (_, mut host) = split(entry, &mut self.process);
                host.event(Event::SqDrained);
            }
            _ => {}
        }
        Ok(())
    }
}
