//! The port with the faults that are made at it: all frames come and go through here, and are captured here.

use urdma_ipc::fault::Faults;
use urdma_ipc::status::FaultStatus;

use super::fault::{FaultyLink, Line};
use crate::port::{Port, PortReport};
use crate::shared::Shared;

/// Bursts that are taken from the port at one look at most when it has faults.
const BURSTS_MAX: usize = 16;

/// A port and what happens to its frames.
pub(crate) struct Wire {
    port: Box<dyn Port>,
    faults: FaultyLink,
}

impl Wire {
    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        Self {
            port,
            faults: FaultyLink::default(),
        }
    }

    /// The port itself.
    pub(crate) fn port(&mut self) -> &mut dyn Port {
        &mut *self.port
    }

    /// Gives `sink` the frames that have arrived; how many there were.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        shared: &Shared,
        sink: &mut dyn FnMut(&[u8]),
    ) -> usize {
        let counters = &shared.counters;
        let mut octets = 0;
        let mut arrive = |frame: &[u8]| {
            octets += frame.len() as u64;
            shared.with_capture(|capture| capture.add(frame));
            sink(frame);
        };
        let count = match &mut self.faults.inbound {
            None => self.port.receive(&mut arrive),
            Some(line) => {
                let mut offered = 0;
                for _ in 0..BURSTS_MAX {
                    let found = self.port.receive(&mut |frame| line.find(frame));
                    offered += found;
                    if found == 0 {
                        break;
                    }
                }
                line.take_found(now_ns);
                let arrived = drain(line, now_ns, &mut arrive);
                // Frames that do not arrive keep the thread awake, too: more come.
                offered.max(arrived)
            }
        };
        if count > 0 {
            counters.rx_packets.add(count as u64);
            counters.rx_octets.add(octets);
        }
        count
    }

    /// Sends a frame of `octets` that `write` writes, with the next [`Wire::flush`] or when its time has come.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now_ns: u64,
        octets: usize,
        write: &dyn Fn(&mut [u8]),
        shared: &Shared,
    ) {
        match &mut self.faults.outbound {
            None => transmit(&mut *self.port, octets, write, shared),
            Some(line) => {
                let mut frame = vec![0; octets];
                write(&mut frame);
                line.offer(now_ns, frame.into());
            }
        }
    }

    /// Sends the delayed frames whose time has come; whether there were some.
    #[inline]
    pub(crate) fn release_due(&mut self, now_ns: u64, shared: &Shared) -> bool {
        let Some(line) = &mut self.faults.outbound else {
            return false;
        };
        let port = &mut *self.port;
        let released = drain(line, now_ns, &mut |due| {
            transmit(port, due.len(), &|frame| frame.copy_from_slice(due), shared);
        });
        released > 0
    }

    /// When a delayed frame of either direction is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.faults.next_due_ns()
    }

    /// Gives the port what was collected.
    pub(crate) fn flush(&mut self, shared: &Shared) {
        let dropped = self.port.flush();
        if dropped > 0 {
            shared.counters.drop_tx_port_full.add(dropped as u64);
        }
    }

    pub(crate) fn set_faults(&mut self, faults: &Faults) {
        self.faults.set(faults);
    }

    pub(crate) fn report(&mut self) -> (PortReport, FaultStatus) {
        (self.port.report(), self.faults.status())
    }
}

fn transmit(port: &mut dyn Port, octets: usize, write: &dyn Fn(&mut [u8]), shared: &Shared) {
    let sent = port.transmit(octets, &mut |frame| {
        write(frame);
        shared.with_capture(|capture| capture.add(frame));
    });
    let counters = &shared.counters;
    if sent.is_ok() {
        counters.tx_packets.bump();
        counters.tx_octets.add(octets as u64);
    } else {
        counters.drop_tx_no_buffer.bump();
    }
}

/// Gives `sink` what is due on a line; how many frames.
fn drain(line: &mut Line, now_ns: u64, sink: &mut dyn FnMut(&[u8])) -> usize {
    let mut count = 0;
    while let Some(frame) = line.take_due(now_ns) {
        sink(&frame);
        count += 1;
    }
    count
}
