//! Writes Ethernet frames as pcapng (draft-ietf-opsawg-pcapng) to any [`Write`].
//!
//! tcpdump cannot see what stays in shared memory or on a virtual port, so the code that moves it
//! writes the capture. The caller builds complete Ethernet/IP/UDP frames and supplies the time
//! stamp of each.

#![forbid(unsafe_code)]

mod file;

use std::io::{self, Write};

pub use file::FrameFile;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Version 1.0 as two 16-bit words.
const VERSION: [u8; 4] = [1, 0, 0, 0];
/// Section length: not specified.
const LEN_UNKNOWN: u64 = u64::MAX;
/// LINKTYPE_ETHERNET and a reserved word.
const LINK_TYPE: [u8; 4] = [1, 0, 0, 0];
/// Option if_tsresol: time stamps are in nanoseconds (10^-9); then opt_endofopt.
const NANOSECONDS: [u8; 12] = [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
/// Octets of block type and total length before a block's body, and of the total length after it.
const BLOCK_OVERHEAD: usize = 12;

/// A pcapng writer: one section with one Ethernet interface.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    out: W,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the section header and the interface description.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = Self { out };
        let section = [
            &BYTE_ORDER_MAGIC.to_le_bytes()[..],
            &VERSION,
            &LEN_UNKNOWN.to_le_bytes(),
        ];
        writer.block(SECTION_HEADER, &section)?;
        let no_limit = 0u32.to_le_bytes();
        writer.block(
            INTERFACE_DESCRIPTION,
            &[&LINK_TYPE, &no_limit, &NANOSECONDS],
        )?;
        Ok(writer)
    }

    /// Appends an Ethernet frame, from its destination address on and without frame check sequence,
    /// with a time stamp of `time_ns` nanoseconds after the Unix epoch.
    ///
    /// # Errors
    /// Those of `out`; `InvalidInput` for a frame of 4 GB or more.
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

    /// Flushes the output and returns it.
    ///
    /// # Errors
    /// Those of the flush.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_blocks_are_padded_and_state_their_length_twice() {
        let mut writer = PcapngWriter::new(Vec::new()).expect("a Vec takes everything");
        let headers = writer.out.len();
        writer
            .frame(0x0000_0001_0000_0002, &[7; 5])
            .expect("a Vec takes everything");
        let out = writer.finish().expect("a Vec takes everything");
        let words: Vec<u32> = out[headers..]
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let payload = [0x0707_0707, 7];
        assert_eq!(words[..7], [ENHANCED_PACKET, 40, 0, 1, 2, 5, 5]);
        assert_eq!((&words[7..9], &words[9..]), (&payload[..], &[40][..]));
    }
}
