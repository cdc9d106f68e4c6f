//! Ends that are tasks of tokio, on a runtime of one thread.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{split, AsyncReadExt, AsyncWriteExt};
use urdma_exs::tokio::{ByteStream, Listener};
use urdma_exs::Options;

use crate::{content, digest};
use urdma_exs_cli::pattern::Pattern;

/// How many octets are echoed, and passed in one direction.
const ECHOED: usize = 64 << 20;
const PASSED: usize = 5_000_003;

pub(crate) fn run(role: &str, address: SocketAddr) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(async {
        match role {
            "echo" => echo(address).await,
            "asks" => ask(address, false).await,
            "gives reads up" => ask(address, true).await,
            "receives" => receive(address).await,
            "drops" => drop_after_writes(address).await,
            "refuses" => refuse(address).await,
            "is refused" => be_refused(address).await,
            other => panic!("no role {other}"),
        }
    })
}

fn listen(address: SocketAddr) -> io::Result<Listener> {
    let listener = Listener::bind(address, &Options::default())?;
    println!("listening");
    Ok(listener)
}

async fn connect(address: SocketAddr) -> io::Result<ByteStream> {
    ByteStream::connect(address, &Options::default()).await
}

/// The next client. An accept that is given up loses none.
async fn accept(listener: &mut Listener) -> io::Result<ByteStream> {
    for _ in 0..100 {
        if let Some(accepted) = poll_once(listener.accept()) {
            return accepted;
        }
        tokio::task::yield_now().await;
    }
    listener.accept().await
}

/// Polls a future once and drops it.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

async fn echo(address: SocketAddr) -> io::Result<()> {
    let mut stream = accept(&mut listen(address)?).await?;
    let mut octets = vec![0; 100_000];
    loop {
        match stream.read(&mut octets).await? {
            0 => break,
            count => stream.write_all(&octets[..count]).await?,
        }
    }
    stream.close().await
}

/// Writes in one task and reads in another.
async fn ask(address: SocketAddr, gives_up: bool) -> io::Result<()> {
    let (mut reader, mut writer) = split(connect(address).await?);
    let writing = tokio::spawn(async move {
        let octets = content(ECHOED);
        let mut left = &octets[..];
        let mut lengths = Pattern::new(5);
        while !left.is_empty() {
            let len = (1 + lengths.below(300_000)).min(left.len());
            let count = writer.write(&left[..len]).await?;
            left = &left[count..];
        }
        writer.shutdown().await?;
        let error = writer.write(&[0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        io::Result::Ok((writer, digest(&octets)))
    });
    let mut answer = vec![0; ECHOED];
    let mut read = 0;
    while read < ECHOED {
        let into = &mut answer[read..];
        let len = into.len().min(50_021);
        let reading = reader.read(&mut into[..len]);
        let count = match gives_up {
            true => match tokio::time::timeout(Duration::from_micros(1), reading).await {
                Ok(count) => count?,
                Err(_) => continue,
            },
            false => reading.await?,
        };
        assert!(count > 0, "the stream has ended after {read}");
        read += count;
    }
    assert_eq!(reader.read(&mut [0]).await?, 0, "the end of the stream");
    let (writer, sent) = writing.await??;
    assert_eq!(digest(&answer), sent);
    reader.unsplit(writer).close().await
}

/// Receives until the end of a stream, and sends the digest in another.
async fn receive(address: SocketAddr) -> io::Result<()> {
    let mut listener = listen(address)?;
    let mut octets = Vec::new();
    let mut first = accept(&mut listener).await?;
    first.read_to_end(&mut octets).await?;
    let mut second = accept(&mut listener).await?;
    second.write_all(digest(&octets).as_bytes()).await?;
    second.close().await
}

/// Drops a stream, and compares the digest of what the server has received.
async fn drop_after_writes(address: SocketAddr) -> io::Result<()> {
    let octets = content(PASSED);
    let mut stream = connect(address).await?;
    stream.write_all(&octets).await?;
    drop(stream);
    let mut answer = String::new();
    let mut second = connect(address).await?;
    second.read_to_string(&mut answer).await?;
    assert_eq!(answer, digest(&octets));
    Ok(())
}

/// Drops a stream that the client writes to, and aborts another while it is read.
async fn refuse(address: SocketAddr) -> io::Result<()> {
    let mut listener = listen(address)?;
    let mut stream = accept(&mut listener).await?;
    stream.read_exact(&mut [0; 1000]).await?;
    drop(stream);
    let mut stream = accept(&mut listener).await?;
    stream.read_exact(&mut [0; 1000]).await?;
    stream.abort(7);
    let error = loop {
        if let Err(error) = stream.read(&mut [0; 1000]).await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    Ok(())
}

async fn be_refused(address: SocketAddr) -> io::Result<()> {
    for expected in [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset] {
        let mut stream = connect(address).await?;
        let error = loop {
            if let Err(error) = stream.write_all(&[1; 1000]).await {
                break error;
            }
        };
        assert_eq!(error.kind(), expected, "{error}");
    }
    let mut nowhere = address;
    nowhere.set_port(address.port() + 1);
    let error = connect(nowhere).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    Ok(())
}
