//! Attacks by descriptors whose last close takes as long as the attacker chooses.

use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{sendmsg, setsockopt, sockopt, ControlMessage, MsgFlags};
use urdma_ipc::message::{FromClient, Request};
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{ControlClient, ControlError, Event};

use crate::conversation::CLOSING;
use crate::{Context, Tally, PROGRAM};

/// Much longer than an attack lasts.
const LINGER_S: i32 = 3600;
/// Sockets that linger at the same time.
const SOCKETS: usize = 300;
/// Threads of urdmad, many more than it has.
const THREADS_MAX: usize = 150;

/// Sends sockets that linger in every kind of packet, and asks for the status in between: urdmad
/// must not wait in close(2).
pub(crate) fn lingering(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    let mut peers = VecDeque::new();
    while !context.is_over() {
        let (socket, peer) = lingering_socket().map_err(|error| error.to_string())?;
        peers.push_back(peer);
        if peers.len() > SOCKETS {
            peers.pop_front();
        }
        let path = context.run_dir.control_socket();
        let client = PacketSocket::connect(&path).map_err(|errno| errno.to_string())?;
        let packets: &[(&[u8], usize)] = random.one_of(&[
            &[(&[b'x'; 9000], 1)],
            &[(&[], 1)],
            &[(b"garbage", 0), (&[], 0), (b"unread", 1)],
            &[(b"many", 200)],
            &[(b"garbage", 1)],
        ]);
        if random.once_in(2) {
            ask_for_address(&client);
        }
        for (octets, copies) in packets {
            send(&client, octets, &socket, *copies);
        }
        // This may be the last close.
        std::thread::spawn(move || drop(socket));
        drop(client);
        let status = ControlClient::connect(&context.run_dir, PROGRAM);
        let status = status.and_then(|client| client.status());
        // A refusal is an answer, too: the places of this user are taken until all is closed.
        let is_answered = matches!(status, Ok(_) | Err(ControlError::Refused(_)));
        tally.refused("a close that lingers", !is_answered)?;
    }
    Ok(tally)
}

/// Offers sockets that linger, every other one of a connection that cannot have rings: urdmad must
/// answer each offer, which it does when it has closed its copy of the socket.
pub(crate) fn offered(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    let mut peers = VecDeque::new();
    let client = context.connect()?;
    let urdmad = client.status().map_err(|error| error.to_string())?.pid;
    while !context.is_over() {
        let (socket, peer) = lingering_socket().map_err(|error| error.to_string())?;
        if random.once_in(2) {
            peer.shutdown(Shutdown::Write)
                .map_err(|error| error.to_string())?;
        }
        peers.push_back(peer);
        if peers.len() > SOCKETS {
            peers.pop_front();
        }
        let bell = EventFd::new().map_err(|errno| errno.to_string())?;
        let fds = [socket.as_fd(), bell.as_fd(), bell.as_fd()];
        let offer = client
            .offer_socket(fds)
            .map_err(|error| error.to_string())?;
        // This may be the last close.
        std::thread::spawn(move || drop(socket));
        let is_answered = matches!(
            client.next_event(Some(CLOSING)),
            Ok(Some((
                Event::SocketWaits { .. } | Event::SocketRefused { .. },
                _
            )))
        );
        tally.refused("a close that lingers", !is_answered)?;
        let _ = client.forget_socket(offer);
        let threads = std::fs::read_dir(format!("/proc/{urdmad}/task"));
        let threads = threads.map_err(|error| error.to_string())?.count();
        tally.refused("a thread for each offer", threads > THREADS_MAX)?;
    }
    Ok(tally)
}

/// A TCP socket that lingers, and its peer, which reads nothing.
fn lingering_socket() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: LINGER_S,
    };
    setsockopt(&socket, sockopt::Linger, &linger)?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 65_536]).is_ok() {}
    Ok((socket, peer))
}

/// A request that the data thread answers.
fn ask_for_address(client: &PacketSocket) {
    let hello = Request::Hello {
        version: urdma_ipc::PROTOCOL_VERSION,
        program: PROGRAM.to_owned(),
    };
    let ip = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 99));
    for (id, request) in [(1, hello), (2, Request::Resolve { ip })] {
        // A refused connection ends meanwhile.
        let _ = client.send(&FromClient { id, request }, &[]);
    }
}

/// Sends a packet; the connection may have ended.
fn send(client: &PacketSocket, octets: &[u8], socket: &TcpStream, copies: usize) {
    let fds = vec![socket.as_raw_fd(); copies];
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights };
    let octets = [IoSlice::new(octets)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    let _ = sendmsg::<()>(client.as_fd().as_raw_fd(), &octets, control, flags, None);
}
