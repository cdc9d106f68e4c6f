//! The commands that an id accepts in each state, and the ports that it reserves, as in the
//! kernel's cma.

use urdma_ucma::abi::{self, cmd, event, option};
use urdma_ucma::{Errno, Sharing};
use zerocopy::FromZeros;

use crate::rig::{Channel, Pair};

const INVALID: Result<(), Errno> = Err(libc::EINVAL);

#[test]
fn bind_checks_address_and_port() {
    let pair = Pair::new();
    let (a, b) = (pair.server.create(1), pair.server.create(2));
    assert_eq!(pair.server.bind(a, "10.9.9.9:1"), Err(libc::EADDRNOTAVAIL));
    assert_eq!(pair.server.bind(a, "127.0.0.1:7"), Ok(()));
    assert_eq!(pair.server.bind(a, "127.0.0.1:8"), Err(libc::EINVAL));
    assert_eq!(pair.server.bind(b, "0.0.0.0:7"), Err(libc::EADDRINUSE));
    assert_eq!(pair.server.destroy(a), Ok(0));
    assert_eq!(pair.server.bind(b, "0.0.0.0:7"), Ok(()));
    let other = pair.client.create(3);
    assert_eq!(pair.client.bind(other, "0.0.0.0:7"), Err(libc::EADDRINUSE));
    assert_eq!(pair.client.bind(other, "0.0.0.0:0"), Ok(()));
    let route = pair.client.route(other).unwrap();
    assert_ne!(route.src_addr.octets[2..4], [0, 0]);
    assert_eq!((route.node_guid, route.port_num), ([0; 8], 0));
}

#[test]
fn port_is_asked_for_with_the_options_of_the_id() {
    let pair = Pair::new();
    let server = &pair.server;
    let sharing = |reuse_addr, af_only| {
        Some(Sharing {
            reuse_addr,
            af_only,
        })
    };
    let shared = |id| server.port(id).map(|port| port.sharing);
    let plain = server.create(1);
    server.bind(plain, "0.0.0.0:7").unwrap();
    assert_eq!(shared(plain), sharing(false, true));
    server.option(plain, option::ID_REUSEADDR, 1).unwrap();
    assert_eq!(shared(plain), sharing(true, true));
    assert_eq!(server.option(plain, option::ID_REUSEADDR, 0), INVALID);
    server.option(plain, option::ID_AFONLY, 0).unwrap();
    assert_eq!(shared(plain), sharing(true, false));
    server.listen(plain, 1).unwrap();
    for name in [option::ID_REUSEADDR, option::ID_AFONLY] {
        assert_eq!(server.option(plain, name, 1), INVALID);
    }
    let six = server.create(2);
    server.bind(six, "[::]:8").unwrap();
    assert_eq!(shared(six), sharing(false, false));
    let chosen = server.create(3);
    server.option(chosen, option::ID_REUSEADDR, 1).unwrap();
    server.option(chosen, option::ID_AFONLY, 1).unwrap();
    server.bind(chosen, "[::]:9").unwrap();
    assert_eq!(shared(chosen), sharing(true, true));
    assert_eq!(server.destroy(chosen), Ok(0));
    assert_eq!(shared(chosen), None);
}

/// The states that an id can be brought to.
#[derive(Clone, Copy, Debug)]
enum Way {
    Idle,
    Bound,
    Querying,
    Failed,
    Resolved,
    Routed,
    Connecting,
    Requested,
    Listening,
}

/// An id in a given state: of the client, or of the server for those that a REQ creates.
fn bring_to(pair: &Pair, way: Way) -> (&Channel, u32) {
    let (client, id) = (&pair.client, pair.client.create(200));
    match way {
        Way::Idle => {}
        Way::Bound => client.bind(id, "127.0.0.1:0").unwrap(),
        Way::Querying => client.resolve(id, "10.0.0.7:1").unwrap(),
        Way::Failed => {
            client.resolve(id, "10.0.0.8:1").unwrap();
            client.wait();
            client.expect(event::ADDR_ERROR);
        }
        Way::Resolved => {
            client.resolve(id, "127.0.0.1:7471").unwrap();
            client.expect(event::ADDR_RESOLVED);
        }
        Way::Routed => pair.route(id),
        Way::Connecting => {
            pair.route(id);
            client.connect(id, 0x02_0001).unwrap();
        }
        Way::Requested => {
            pair.listening();
            pair.connecting();
            let request = pair.server.expect(event::CONNECT_REQUEST);
            return (&pair.server, request.id);
        }
        Way::Listening => {
            client.bind(id, "127.0.0.1:0").unwrap();
            client.listen(id, 1).unwrap();
        }
    }
    (client, id)
}

#[test]
fn commands_are_taken_in_one_state_and_refused_in_all_others() {
    type Command = (&'static str, fn(&Channel, u32) -> Result<(), Errno>);
    let commands: [Command; 7] = [
        ("BIND", |channel, id| channel.bind(id, "127.0.0.1:0")),
        ("RESOLVE_IP", |channel, id| {
            channel.resolve(id, "127.0.0.1:7471")
        }),
        ("RESOLVE_IP of the other family", |channel, id| {
            channel.resolve(id, "[::1]:7471")
        }),
        ("RESOLVE_IP of no family", |channel, id| {
            let mut body = abi::ResolveIp::new_zeroed();
            body.id = id;
            channel.write(cmd::RESOLVE_IP, 0, &body)
        }),
        ("RESOLVE_ROUTE", Channel::resolve_route),
        ("RESOLVE_ROUTE without time", |channel, id| {
            let body = abi::ResolveRoute { id, timeout_ms: 0 };
            channel.write(cmd::RESOLVE_ROUTE, 0, &body)
        }),
        ("LISTEN", |channel, id| channel.listen(id, 1)),
    ];
    const NONE: [bool; 7] = [false; 7];
    for (way, taken) in [
        (Way::Idle, [true, true, true, false, false, false, true]),
        (Way::Bound, [false, true, false, false, false, false, true]),
        (Way::Querying, NONE),
        (Way::Failed, [false, true, false, false, false, false, true]),
        (
            Way::Resolved,
            [false, false, false, false, true, false, false],
        ),
        (Way::Routed, NONE),
        (Way::Connecting, NONE),
        (Way::Requested, NONE),
        (Way::Listening, NONE),
    ] {
        for ((name, command), is_taken) in commands.iter().zip(taken) {
            let pair = Pair::new();
            let (channel, id) = bring_to(&pair, way);
            let expected = if is_taken { Ok(()) } else { INVALID };
            assert_eq!(command(channel, id), expected, "{name}, {way:?}");
        }
    }
}

#[test]
fn id_that_was_not_resolved_can_try_again() {
    let pair = Pair::new();
    let (client, id) = bring_to(&pair, Way::Failed);
    client.resolve(id, "127.0.0.1:7471").unwrap();
    client.expect(event::ADDR_RESOLVED);
    client.resolve_route(id).unwrap();
    client.expect(event::ROUTE_RESOLVED);
}
