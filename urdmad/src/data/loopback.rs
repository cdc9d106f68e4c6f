//! Two ports, each the other's link, in the memory of this process: for counts of the instructions
//! of the data path, without DPDK.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use urdma_underlay::{MacAddr, MAX_HEADER_OCTETS};

use super::wire::BURST;
use crate::port::{NoBuffer, PacketPort, PortReport, QueueError, Resolver};

/// Frames on their way to one port, and empty ones.
#[derive(Debug, Default)]
struct Line {
    frames: VecDeque<Frame>,
    empty: Vec<Frame>,
}

#[derive(Debug)]
struct Frame {
    octets: usize,
    room: Box<[u8]>,
}

/// One of the ports.
struct Loopback {
    mac: MacAddr,
    mtu: u16,
    into: Arc<Mutex<Line>>,
    out: Arc<Mutex<Line>>,
    /// Frames since the last flush.
    filled: Vec<Frame>,
}

/// Two ports with this MTU.
pub fn loopback_ports(mtu: u16) -> [Box<dyn PacketPort>; 2] {
    let lines = [(); 2].map(|()| Arc::new(Mutex::new(Line::default())));
    [0, 1].map(|which: u8| {
        let (own, other) = (usize::from(which), usize::from(1 - which));
        Box::new(Loopback {
            mac: MacAddr([2, 0, 0, 0, 0, which]),
            mtu,
            into: Arc::clone(&lines[own]),
            out: Arc::clone(&lines[other]),
            filled: Vec::new(),
        }) as Box<dyn PacketPort>
    })
}

impl PacketPort for Loopback {
    fn enter(&mut self) {}

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn resolver(&self) -> Resolver<'_> {
        Resolver::DataThread
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut line = self.into.lock().unwrap_or_else(PoisonError::into_inner);
        let count = line.frames.len().min(BURST);
        for _ in 0..count {
            let Some(frame) = line.frames.pop_front() else {
                break;
            };
            sink(&frame.room[..frame.octets]);
            line.empty.push(frame);
        }
        count
    }

    fn has_room(&mut self) -> bool {
        true
    }

    fn transmit(&mut self, octets: usize) -> Result<&mut [u8], NoBuffer> {
        let room = usize::from(self.mtu) + MAX_HEADER_OCTETS;
        let mut line = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frame = line.empty.pop().unwrap_or_else(|| Frame {
            octets: 0,
            room: vec![0; room].into_boxed_slice(),
        });
        frame.octets = octets;
        self.filled.push(frame);
        let frame = self.filled.last_mut().ok_or(NoBuffer)?;
        Ok(&mut frame.room[..octets])
    }

    fn flush(&mut self) -> bool {
        let mut line = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        for frame in self.filled.drain(..) {
            line.frames.push_back(frame);
        }
        true
    }

    fn discard(&mut self) -> usize {
        0
    }

    fn lend(&mut self, _: u16, _: u16) -> Result<(), QueueError> {
        Err(QueueError::None)
    }

    fn reclaim(&mut self, _: u16) -> Result<(), QueueError> {
        Err(QueueError::None)
    }

    fn report(&mut self) -> PortReport {
        PortReport::default()
    }
}
