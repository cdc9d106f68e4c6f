//! Sends files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use sha2::{Digest, Sha256};
use urdma_exs::ByteStream;

use super::message::{hash_first, Offer, Reply, GIVEN_UP};
use super::progress::Progress;
use crate::end::{self, StreamArguments};
use crate::error::Error;
use crate::octets::Sum;

/// How much is read at a time.
const OCTETS: usize = 256 << 10;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Host and port of `urdma-stream receive`
    #[arg(value_parser = end::address)]
    address: SocketAddr,
    /// Files, each of which gets its own name without directories
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    stream: StreamArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let stream = ByteStream::connect(arguments.address, &arguments.stream.options());
    let mut stream = stream.map_err(Error::stream)?;
    for path in &arguments.files {
        let sent = send_file(&mut stream, path);
        if matches!(sent, Err(Error::File(..) | Error::Shorter(..))) {
            stream.abort(GIVEN_UP);
        }
        sent?;
    }
    stream.close().map_err(Error::stream)
}

fn send_file(stream: &mut ByteStream, path: &Path) -> Result<(), Error> {
    let failed = |error| Error::File(path.to_owned(), error);
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let name = path.file_name().filter(|_| metadata.is_file());
    let name = name.ok_or_else(|| failed(io::Error::other("not a regular file")))?;
    let offer = Offer {
        name: name.as_bytes().to_vec(),
        octets: metadata.len(),
    };
    offer.write(stream).map_err(Error::stream)?;
    stream.flush().map_err(Error::stream)?;
    let (kept, sum) = expect(stream, path)?;
    let (start, mut hash) = resume(&mut file, &offer, kept, &sum).map_err(failed)?;
    stream
        .write_all(&start.to_le_bytes())
        .map_err(Error::stream)?;
    let progress = Progress::begin(offer.shown(), offer.octets, start);
    let mut at = start;
    let mut octets = vec![0; OCTETS];
    while at < offer.octets {
        let left = usize::try_from(offer.octets - at).unwrap_or(usize::MAX);
        let count = file.read(&mut octets[..left.min(OCTETS)]).map_err(failed)?;
        if count == 0 {
            return Err(Error::Shorter(path.to_owned(), at));
        }
        hash.update(&octets[..count]);
        stream.write_all(&octets[..count]).map_err(Error::stream)?;
        at += count as u64;
        progress.set(at);
    }
    let sum: Sum = hash.finalize().into();
    stream.write_all(&sum).map_err(Error::stream)?;
    stream.flush().map_err(Error::stream)?;
    expect(stream, path)?;
    progress.finish(offer.octets, &sum);
    Ok(())
}

/// What the receiver has.
fn expect(stream: &mut ByteStream, path: &Path) -> Result<(u64, Sum), Error> {
    match Reply::read(stream)? {
        Reply::Has(kept, sum) => Ok((kept, sum)),
        Reply::Refused(refusal) => Err(Error::Refused(path.to_owned(), refusal)),
    }
}

/// Where to begin, and the digest of what precedes: behind what the receiver has, if that is the
/// beginning of the file.
fn resume(file: &mut File, offer: &Offer, kept: u64, sum: &Sum) -> io::Result<(u64, Sha256)> {
    if kept <= offer.octets {
        let (count, hash) = hash_first(file, kept)?;
        if count == kept && hash.clone().finalize()[..] == sum[..] {
            return Ok((kept, hash));
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok((0, Sha256::new()))
}
