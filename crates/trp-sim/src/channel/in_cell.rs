//! Messages of one cell in one step, as the engine posts and takes them.

use proto_trp::conn::{Connection, Host, Message, Payload, SendWr, Target};
use proto_trp::wire::message::{CELL_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::AtomicResponse;

use super::super::host::SimHost;

/// What became of a message.
pub(super) enum Taken {
    /// It is to be taken in the general way.
    Declined,
    Settled,
    /// It is settled, and this message answers it.
    Answered(Vec<u8>),
}

/// Takes a message, if its connection does; `has_room` for a message of work requests.
pub(super) fn take(
    conn: &mut Connection,
    host: &mut SimHost,
    message: &Message<'_, [u8]>,
    has_room: bool,
) -> Taken {
    if take_request(conn, host, message)
        || take_whole_write(conn, host, message)
        || take_response(conn, host, message)
    {
        return Taken::Settled;
    }
    let answer = has_room.then(|| answer(conn, host, message)).flatten();
    answer.map_or(Taken::Declined, Taken::Answered)
}

/// A Send or Write.
fn take_request(conn: &mut Connection, host: &mut SimHost, message: &Message<'_, [u8]>) -> bool {
    let (head, body) = (&message.head, message.body());
    let len = body.len() - MESSAGE_HEAD_LEN;
    let is_placed = match conn.takes_in_cell(message.from, head, len) {
        Some(Target::Receive(sge)) => host.scatter(&[sge], 0, body, MESSAGE_HEAD_LEN, len).is_ok(),
        Some(Target::Remote(remote)) => host
            .write_remote(remote, body, MESSAGE_HEAD_LEN, len)
            .is_ok(),
        None => false,
    };
    if is_placed {
        if let Some(completion) = conn.took_in_cell(head, len) {
            host.complete(completion);
        }
    }
    is_placed
}

/// A whole Write with its immediate data.
fn take_whole_write(
    conn: &mut Connection,
    host: &mut SimHost,
    message: &Message<'_, [u8]>,
) -> bool {
    let (head, body) = (&message.head, message.body());
    let len = body.len() - MESSAGE_HEAD_LEN;
    let Some(remote) = conn.takes_whole_write(message.from, head, len) else {
        return false;
    };
    let placed = host.write_remote(remote, body, MESSAGE_HEAD_LEN, len);
    if placed.is_err() {
        return false;
    }
    host.complete(conn.took_whole_write(head, len));
    true
}

/// The response to a read or atomic.
fn take_response(conn: &mut Connection, host: &mut SimHost, message: &Message<'_, [u8]>) -> bool {
    let body = message.body();
    let len = body.len() - MESSAGE_HEAD_LEN;
    let Some((index, sge)) = conn.takes_response(message.from, &message.head, len) else {
        return take_original(conn, host, message);
    };
    let scattered = host.scatter_response(&[sge], 0, body, MESSAGE_HEAD_LEN, len);
    if scattered.is_err() {
        return false;
    }
    conn.took_response(index, len);
    report_answered(conn, host);
    true
}

/// The response to an atomic.
fn take_original(conn: &mut Connection, host: &mut SimHost, message: &Message<'_, [u8]>) -> bool {
    let Ok(response) = AtomicResponse::parse(&message.body()[MESSAGE_HEAD_LEN..]) else {
        return false;
    };
    let Some((index, sge)) = conn.takes_original(message.from, &message.head, &response) else {
        return false;
    };
    if host.scatter_u64(&[sge], response.original).is_err() {
        return false;
    }
    conn.took_original(index);
    report_answered(conn, host);
    true
}

fn report_answered(conn: &mut Connection, host: &mut SimHost) {
    while let Some(completion) = conn.next_answered() {
        host.complete(completion);
    }
}

/// The request of a read or atomic.
fn answer(
    conn: &mut Connection,
    host: &mut SimHost,
    message: &Message<'_, [u8]>,
) -> Option<Vec<u8>> {
    let body = &message.body()[MESSAGE_HEAD_LEN..];
    let (from, head) = (message.from, &message.head);
    let mut cell = [0; CELL_LEN];
    let octets = if let Some(read) = conn.answers_in_cell(from, head, body) {
        host.read_remote(read.source(), read.payload(&mut cell))
            .ok()?;
        conn.answered_in_cell(&read, &mut cell)
    } else {
        let atomic = conn.executes_in_cell(from, head, body)?;
        let original = host.atomic(atomic.operand(), atomic.operation()).ok()?;
        conn.executed_in_cell(&atomic, original, &mut cell)
    };
    Some(cell[..octets].to_vec())
}

/// Posts a request and writes its message, which is to be at `position`, if its connection does.
pub(super) fn post(
    conn: &mut Connection,
    host: &mut SimHost,
    wr: &SendWr<'_>,
    position: u64,
) -> Option<Vec<u8>> {
    let mut cell = [0; CELL_LEN];
    let octets = if conn.fits_request(wr) {
        conn.post_request_in_cell(wr, position, &mut cell)
    } else {
        let len = conn.fits_cell(wr)?;
        let payload = &mut cell[MESSAGE_HEAD_LEN..][..len];
        match wr.payload {
            Payload::Sges(sges) => host.gather(sges, 0, payload).ok()?,
            Payload::Inline(parts) => payload.copy_from_slice(&parts.concat()),
        }
        conn.post_in_cell(wr, len, position, &mut cell)
    };
    Some(cell[..octets].to_vec())
}
