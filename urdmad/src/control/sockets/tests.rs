use std::fs::File;
use std::net::{TcpListener, UdpSocket};

use super::*;

fn identity(socket: impl AsFd) -> Option<(Place, u64)> {
    identify(socket.as_fd()).ok()
}

#[test]
fn ends_of_a_connection_are_mirror_images_with_cookies_of_their_own() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let of_one = identity(&one).unwrap();
        let (place, cookie) = identity(&other).unwrap();
        assert_eq!(place.netns, of_one.0.netns);
        assert_eq!(
            (place.local, place.remote),
            (of_one.0.remote, of_one.0.local)
        );
        assert_ne!(cookie, of_one.1);
        assert_eq!(identity(&one).unwrap(), of_one);
        drop(other);
        assert!(identity(&one).is_none());
    }
}

#[test]
fn ipv4_address_in_an_ipv6_socket_is_the_same_address() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let one = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (other, _) = listener.accept().unwrap();
    let ((one, _), (other, _)) = (identity(&one).unwrap(), identity(&other).unwrap());
    assert_eq!((one.local, one.remote), (other.remote, other.local));
}

#[test]
fn listener_is_no_connection_and_other_files_are_no_tcp_sockets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(identity(&listener).is_none());
    assert!(is_tcp(&listener.into()));
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = File::open("/dev/null").unwrap();
    for other in [one.into(), datagrams.into(), file.into()] {
        assert!(!is_tcp(&other));
    }
}

#[test]
fn only_an_eventfd_is_a_bell() {
    let bell: OwnedFd = nix::sys::eventfd::EventFd::new().unwrap().into();
    assert!(is_eventfd(&bell));
    assert!(!is_eventfd(&File::open("/dev/null").unwrap().into()));
}
