//! Receives files. A file that is not complete has another name, and is continued by the next
//! sender of the same one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use urdma_exs::ByteStream;

use super::message::{hash_first, Offer, Reply};
use super::progress::Progress;
use crate::end::ServerArguments;
use crate::error::{Error, Refusal};
use crate::octets::{number, Sum, DIGEST};

/// How much is received at a time.
const OCTETS: usize = 256 << 10;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Where files are put
    directory: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    overwrite: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let directory = fs::metadata(&arguments.directory);
    let directory = directory.and_then(|found| match found.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    directory.map_err(|error| Error::File(arguments.directory.clone(), error))?;
    arguments.server.serve_each(|socket| {
        let stream = ByteStream::new(socket).map_err(Error::stream)?;
        receive_all(stream, arguments)
    })
}

fn receive_all(mut stream: ByteStream, arguments: &Arguments) -> Result<(), Error> {
    while let Some(offer) = Offer::read(&mut stream)? {
        if let Err(error) = receive_file(&mut stream, &offer, arguments) {
            let refusal = match error {
                Error::Refused(_, refusal) => Some(refusal),
                Error::File(..) => Some(Refusal::Failed),
                _ => None,
            };
            if let Some(refusal) = refusal {
                let told = Reply::Refused(refusal).write(&mut stream);
                told.and_then(|()| stream.close()).map_err(Error::stream)?;
            }
            return Err(error);
        }
    }
    stream.close().map_err(Error::stream)
}

/// A file that is not complete.
struct Partial {
    file: Flock<File>,
    path: PathBuf,
    octets: u64,
    hash: Sha256,
}

impl Partial {
    /// What there is of a file.
    fn open(path: &Path) -> Result<Self, Error> {
        let mut name = OsString::from(path);
        name.push(".part");
        let partial = PathBuf::from(name);
        let failed = |error| Error::File(partial.clone(), error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&partial).map_err(failed)?;
        let busy = |_| Error::Refused(path.to_owned(), Refusal::Busy);
        let mut file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(busy)?;
        let (octets, hash) = hash_first(&mut *file, u64::MAX).map_err(failed)?;
        Ok(Self {
            file,
            octets,
            hash,
            path: partial,
        })
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::File(self.path.clone(), error)
    }

    /// Continues behind what there is, or begins again.
    fn begin(&mut self, start: u64) -> Result<(), Error> {
        if start != 0 && start != self.octets {
            return Err(Error::NotOurs("send"));
        }
        if start == 0 {
            self.hash = Sha256::new();
            self.octets = 0;
        }
        let begun = self
            .file
            .set_len(start)
            .and_then(|()| self.file.seek(SeekFrom::Start(start)));
        begun.map(drop).map_err(|error| self.failed(error))
    }

    fn write(&mut self, octets: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all(octets);
        written.map_err(|error| self.failed(error))?;
        self.hash.update(octets);
        self.octets += octets.len() as u64;
        Ok(())
    }

    /// Gives the file its name, once it is stored.
    fn complete(self, path: &Path) -> Result<(), Error> {
        let stored = self.file.sync_all();
        let renamed = stored.and_then(|()| fs::rename(&self.path, path));
        renamed.map_err(|error| self.failed(error))
    }
}

fn receive_file(
    stream: &mut ByteStream,
    offer: &Offer,
    arguments: &Arguments,
) -> Result<(), Error> {
    let path = offer.path(&arguments.directory);
    let path = path.ok_or_else(|| Error::Refused(offer.shown().into(), Refusal::Name))?;
    if !arguments.overwrite && path.symlink_metadata().is_ok() {
        return Err(Error::Refused(path, Refusal::Exists));
    }
    let mut partial = Partial::open(&path)?;
    let sum: Sum = partial.hash.clone().finalize().into();
    Reply::Has(partial.octets, sum)
        .write(stream)
        .map_err(Error::stream)?;
    let mut start = [0; 8];
    stream.read_exact(&mut start).map_err(Error::stream)?;
    partial.begin(number(&start))?;
    let progress = Progress::begin(offer.shown(), offer.octets, partial.octets);
    let mut octets = vec![0; OCTETS];
    while partial.octets < offer.octets {
        let left = usize::try_from(offer.octets - partial.octets).unwrap_or(usize::MAX);
        let count = stream
            .read(&mut octets[..left.min(OCTETS)])
            .map_err(Error::stream)?;
        if count == 0 {
            return Err(Error::Truncated("the file was complete"));
        }
        partial.write(&octets[..count])?;
        progress.set(partial.octets);
    }
    let mut expected = [0; DIGEST];
    stream.read_exact(&mut expected).map_err(Error::stream)?;
    let sum: Sum = partial.hash.clone().finalize().into();
    if sum != expected {
        // It would not be continued to the right file.
        fs::remove_file(&partial.path).map_err(|error| partial.failed(error))?;
        return Err(Error::Refused(path, Refusal::Corrupt));
    }
    partial.complete(&path)?;
    progress.finish(offer.octets, &sum);
    Reply::Has(offer.octets, sum)
        .write(stream)
        .map_err(Error::stream)
}
