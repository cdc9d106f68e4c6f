//! Captures: Ethernet frames as pcapng (draft-ietf-opsawg-pcapng), to any [`Write`].
//!
//! tcpdump cannot see frames that stay in an arena or on a virtual port, so whoever moves them writes the capture. The
//! caller builds whole Ethernet/IP/UDP frames and says when each passed.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Version 1.0 as two 16-bit words.
const VERSION: [u8; 4] = [1, 0, 0, 0];
/// The section's length is not stated.
const LEN_UNKNOWN: u64 = u64::MAX;
/// LINKTYPE_ETHERNET and a reserved word.
const LINK_TYPE: [u8; 4] = [1, 0, 0, 0];
/// Option if_tsresol: time stamps count nanoseconds (10^-9); then the end of options.
const NANOSECONDS: [u8; 12] = [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
/// Octets of type and length before a block's body, and of the length after it.
const BLOCK_OVERHEAD: usize = 12;

/// A capture in the making: one section, one Ethernet interface.
#[derive(Debug)]
pub struct Capture<W> {
    out: W,
}

impl<W: Write> Capture<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let mut capture = Self { out };
        let section = [
            &BYTE_ORDER_MAGIC.to_le_bytes()[..],
            &VERSION,
            &LEN_UNKNOWN.to_le_bytes(),
        ];
        capture.block(SECTION_HEADER, &section)?;
        let no_limit = 0u32.to_le_bytes();
        capture.block(
            INTERFACE_DESCRIPTION,
            &[&LINK_TYPE, &no_limit, &NANOSECONDS],
        )?;
        Ok(capture)
    }

    /// Adds an Ethernet frame, from its destination address on and without check sum, that passed `time_ns` nanoseconds
    /// after the Unix epoch.
    ///
    /// # Errors
    /// Those of `out`; `InvalidInput` for a frame of 4 GB.
    pub fn frame(&mut self, time_ns: u64, frame: &[u8]) -> io::Result<()> {
        let len = le_len(frame.len())?;
        let [low @ .., h0, h1, h2, h3] = time_ns.to_le_bytes();
        let padding = &[0; 3][..frame.len().wrapping_neg() % 4];
        let interface = 0u32.to_le_bytes();
        self.block(
            ENHANCED_PACKET,
            &[
                &interface,
                &[h0, h1, h2, h3],
                &low,
                &len,
                &len,
                frame,
                padding,
            ],
        )
    }

    /// Ends the capture and gives back what it was written to.
    ///
    /// # Errors
    /// Those of the last flush.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn block(&mut self, kind: u32, body: &[&[u8]]) -> io::Result<()> {
        let len = le_len(BLOCK_OVERHEAD + body.iter().map(|part| part.len()).sum::<usize>())?;
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len)?;
        body.iter().try_for_each(|part| self.out.write_all(part))?;
        self.out.write_all(&len)
    }
}

fn le_len(len: usize) -> io::Result<[u8; 4]> {
    u32::try_from(len)
        .map(u32::to_le_bytes)
        .map_err(|_| io::ErrorKind::InvalidInput.into())
}
