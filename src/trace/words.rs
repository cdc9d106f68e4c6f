//! What an event means, in words.

use std::net::{IpAddr, Ipv6Addr};

use urdma_trace::recorder::Message;
use urdma_trace::{CmMessage, Direction, End, Event, Kind};

/// The address of a [`Kind::Peer`].
pub(super) fn address_of([high, low]: [u64; 2]) -> IpAddr {
    let octets = u128::from(high) << 64 | u128::from(low);
    IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
}

/// A sentence without its end.
pub(super) fn describe(event: &Event) -> String {
    let [a, b] = event.arguments;
    match event.kind {
        Kind::Peer => format!("the peer is {}", address_of(event.arguments)),
        Kind::Message => describe_message(event),
        Kind::Retry => format!("sent it again {}", times(event)),
        Kind::Established => "established".to_owned(),
        Kind::End => describe_end(event),
        Kind::NoListener if b == 1 => format!(
            "a connection request for port {a}, which is bound and not listened on yet: not \
             answered, so that the peer asks again"
        ),
        Kind::NoListener => {
            format!("a connection request for port {a}, at which nothing listens: rejected")
        }
        Kind::QpCreate => format!("queue pair created ({})", type_name(a)),
        Kind::QpModify => format!("queue pair: {} to {}", state_name(a), state_name(b)),
        Kind::QpError => format!("failed: {}", status_words(a)),
        Kind::QpDestroy => "queue pair destroyed".to_owned(),
        Kind::Rto => format!("nothing acknowledged in time: probed {}", times(event)),
        Kind::SentAgain => format!("packets sent again {}", times(event)),
        Kind::Lease if b == 1 => format!("queue {a} of the port leased"),
        Kind::Lease => format!("queue {a} of the port taken back"),
        Kind::Attach => format!("process {b} attached in slot {a}"),
        Kind::Detach if b == 1 => {
            format!("the process in slot {a} ended without detaching (exit, crash or signal)")
        }
        Kind::Detach => format!("the process in slot {a} detached"),
    }
}

/// Whether an event is the reason for which a connection failed or ended by itself.
pub(super) fn is_failure(event: &Event) -> bool {
    match event.kind {
        Kind::QpError | Kind::NoListener => true,
        Kind::End => event.arguments[0] != u64::from(End::Disconnected.number()),
        Kind::Message => Message::of(event).is_some_and(|message| {
            message.message == CmMessage::Rej && message.direction == Direction::Received
        }),
        _ => false,
    }
}

/// How often, and since when, a counted event occurred.
fn times(event: &Event) -> String {
    let [count, first_ns] = event.arguments;
    if count == 1 {
        return "once".to_owned();
    }
    let span_ns = event.time_ns.saturating_sub(first_ns);
    format!("{count} times in {} ms", thousandths(span_ns / 1000))
}

/// A number of thousandths with a point.
pub(super) fn thousandths(value: u64) -> String {
    format!("{}.{:03}", value / 1000, value % 1000)
}

fn describe_message(event: &Event) -> String {
    let Some(message) = Message::of(event) else {
        return "an unknown message".to_owned();
    };
    let name = match message.message {
        CmMessage::Req => format!("REQ (connection request) for port {}", message.port),
        CmMessage::Rep => "REP (reply)".to_owned(),
        CmMessage::Rtu => "RTU (ready to use)".to_owned(),
        CmMessage::Rej => return describe_reject(&message),
        CmMessage::Dreq => "DREQ (disconnection request)".to_owned(),
        CmMessage::Drep => "DREP (reply to the disconnection request)".to_owned(),
        CmMessage::Mra => "MRA (the application has not decided yet)".to_owned(),
        CmMessage::Cookie => "COOKIE (the peer asks for the REQ again, with this)".to_owned(),
    };
    match message.direction {
        Direction::Sent => format!("sent {name}"),
        Direction::Received => format!("received {name}"),
    }
}

fn describe_reject(message: &Message) -> String {
    let is_own = message.direction == Direction::Sent;
    let reason = message.reason;
    let why = match (reason, is_own) {
        (8, false) => format!("nothing listens at port {} of the peer", message.port),
        (8, true) => "nothing listens at this port".to_owned(),
        (28, false) => "the peer's application refused the connection (rdma_reject), or closed \
                        its end before the connection was established"
            .to_owned(),
        (28, true) => "this application refused the connection, or closed its end before the \
                       connection was established"
            .to_owned(),
        (4, false) => "the peer gave up waiting".to_owned(),
        (4, true) => "gave up waiting for the peer".to_owned(),
        (6, _) => "the other end does not know this connection (any more)".to_owned(),
        _ => format!("reason {reason}"),
    };
    match message.direction {
        Direction::Sent => format!("sent REJ (rejection): {why}"),
        Direction::Received => format!("rejected: {why}"),
    }
}

fn describe_end(event: &Event) -> String {
    let [end, tries] = event.arguments;
    let end = u8::try_from(end).ok().and_then(End::from_number);
    match end {
        Some(End::Unreachable) => format!(
            "failed: the peer did not answer {tries} transmissions: its host is down, another \
             instance has its address, or packets are lost"
        ),
        Some(End::PeerGone) => "the peer's process has ended, or its queue pair is gone".to_owned(),
        Some(End::Disconnected) => "disconnected".to_owned(),
        Some(End::NoReply) => {
            format!("disconnected; the peer did not answer {tries} disconnection requests")
        }
        None => "ended".to_owned(),
    }
}

fn type_name(number: u64) -> &'static str {
    match number {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        9 => "XRC initiator",
        10 => "XRC target",
        _ => "of an unknown type",
    }
}

fn state_name(number: u64) -> &'static str {
    const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    let state = usize::try_from(number).ok().and_then(|at| STATES.get(at));
    state.copied().unwrap_or("an unknown state")
}

/// The statuses of `enum ibv_wc_status` that occur here.
fn status_words(number: u64) -> String {
    let words = match number {
        1 => "a message longer than the receive buffer (IBV_WC_LOC_LEN_ERR)",
        2 => "an operation that the queue pair does not have (IBV_WC_LOC_QP_OP_ERR)",
        4 => "memory of a request that it must not access (IBV_WC_LOC_PROT_ERR)",
        6 => "a memory window that cannot be bound (IBV_WC_MW_BIND_ERR)",
        8 => "memory that the peer's immediate data must not access (IBV_WC_LOC_ACCESS_ERR)",
        9 => {
            "the peer refused the request as invalid, or its receive buffer is too short \
             (IBV_WC_REM_INV_REQ_ERR)"
        }
        10 => "the peer's memory protection refused the access (IBV_WC_REM_ACCESS_ERR)",
        11 => "the peer failed while executing the request (IBV_WC_REM_OP_ERR)",
        12 => {
            "the peer has not acknowledged a request in the time of timeout and retry_cnt, or has \
             ended (IBV_WC_RETRY_EXC_ERR)"
        }
        13 => {
            "the peer had no receive buffer posted for all of rnr_retry \
             (IBV_WC_RNR_RETRY_EXC_ERR)"
        }
        _ => return format!("status {number}"),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use urdma_trace::Link;

    fn event(kind: Kind, arguments: [u64; 2]) -> Event {
        Event {
            time_ns: 5_000_000,
            kind,
            link: Link::default(),
            arguments,
        }
    }

    #[test]
    fn counted_events_say_how_often_and_since_when() {
        let once = describe(&event(Kind::SentAgain, [1, 5_000_000]));
        assert_eq!(once, "packets sent again once");
        let often = describe(&event(Kind::SentAgain, [12, 1_500_000]));
        assert_eq!(often, "packets sent again 12 times in 3.500 ms");
    }

    #[test]
    fn arguments_that_no_recorder_writes_have_words_too() {
        for number in 0..=u8::MAX {
            let Some(kind) = Kind::from_number(number) else {
                continue;
            };
            for value in [0, 1, u64::MAX] {
                let event = event(kind, [value, value]);
                assert!(!describe(&event).is_empty());
                is_failure(&event);
            }
        }
    }
}
