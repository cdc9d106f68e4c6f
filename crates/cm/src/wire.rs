//! The layout of connection-management messages.
//!
//! All integers are big-endian. Every message begins with [`HEADER_LEN`] octets:
//!
//! | octets | field |
//! |---|---|
//! | 0 | TRP version 1 in the high nibble, TRP type 7 in the low one |
//! | 1 | kind, see [`Kind`] |
//! | 2..4 | length of the whole message |
//! | 4..8 | the sender's communication id |
//! | 8..12 | the receiver's communication id, 0 in a REQ |
//! | 12..20 | nonce, chosen at random by the active side, the same in every message |
//! | 20 | the sender's slot, 0..=253 |
//! | 21 | 0 |
//! | 22..24 | length of the private data |
//!
//! The fixed body of the kind follows, then the private data. A message is malformed unless its
//! lengths match each other and the datagram exactly.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use urdma_types::{Ip16, PortSpace, Psn, RawQpn, SlotId};

/// Octet 0 of every connection-management datagram: TRP version 1, type 7.
pub const VERSION_TYPE: u8 = 0x17;
/// Length of the header that all kinds share, in octets.
pub const HEADER_LEN: usize = 24;
/// Maximum octets of private data in one message (`private_data_len` of rdma_cm is 8 bits).
pub const MAX_PRIVATE_DATA: usize = 255;
/// Length of the longest message, in octets; a buffer of this size holds any.
pub const MAX_MESSAGE: usize = HEADER_LEN + REQ_LEN + MAX_PRIVATE_DATA;

const REQ_LEN: usize = 64;
const REP_LEN: usize = 20;
const REJ_LEN: usize = 4;
const DREQ_LEN: usize = 4;
const MRA_LEN: usize = 4;
const COOKIE_LEN: usize = 4;

/// Bits of a queue pair (octet 10 of the body).
const QP_SRQ: u8 = 1;
const QP_FLOW_CONTROL: u8 = 2;
const QP_BITS: u8 = QP_SRQ | QP_FLOW_CONTROL;
/// Largest code of an ACK timeout: it has 5 bits.
const ACK_TIMEOUT_MAX: u8 = 31;

/// The kinds of messages (octet 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Connection request, to slot 0 of the destination host.
    Req = 1,
    /// Acceptance.
    Rep = 2,
    /// Ready to use: the active side has accepted the REP.
    Rtu = 3,
    /// Rejection of a REQ or a REP.
    Rej = 4,
    /// Request to disconnect.
    Dreq = 5,
    /// Answer to DREQ.
    Drep = 6,
    /// The REQ or REP has arrived; the application has not decided yet.
    Mra = 7,
    /// The REQ is to be sent again with this cookie.
    Cookie = 8,
}

impl Kind {
    fn from_octet(octet: u8) -> Option<Self> {
        Some(match octet {
            1 => Self::Req,
            2 => Self::Rep,
            3 => Self::Rtu,
            4 => Self::Rej,
            5 => Self::Dreq,
            6 => Self::Drep,
            7 => Self::Mra,
            8 => Self::Cookie,
            _ => return None,
        })
    }

    const fn body_len(self) -> usize {
        match self {
            Self::Req => REQ_LEN,
            Self::Rep => REP_LEN,
            Self::Rej => REJ_LEN,
            Self::Dreq => DREQ_LEN,
            Self::Mra => MRA_LEN,
            Self::Cookie => COOKIE_LEN,
            Self::Rtu | Self::Drep => 0,
        }
    }
}

/// A communication id: the number by which one end names a connection in its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommId(pub u32);

impl CommId {
    /// No communication id: the sender does not know the receiver's.
    pub const NONE: Self = Self(0);
}

/// The nonce of a connection attempt: the active side chooses it at random for the REQ, and every
/// later message carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce(pub u64);

/// What the destination host of a REQ sends to its source address, so that the REQ that carries it
/// back shows that its sender receives there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cookie(pub u32);

impl Cookie {
    /// No cookie: the sender of the REQ does not know one.
    pub const NONE: Self = Self(0);
}

/// Destination of a message: a host and a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// An address of the host.
    pub ip: IpAddr,
    /// The slot there.
    pub slot: SlotId,
}

/// Why a connection is rejected: the codes of the InfiniBand specification, table 111.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejReason(pub u16);

impl RejReason {
    /// The sender gave up waiting.
    pub const TIMEOUT: Self = Self(4);
    /// The receiver does not know the communication id of the message.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// There is no listener at the destination address and port.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The application rejected the connection (`rdma_reject`).
    pub const CONSUMER_DEFINED: Self = Self(28);
}

/// Enhanced connection establishment; passed through between applications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Vendor id; 0 when unused.
    pub vendor_id: u32,
    /// Vendor's options.
    pub attr_mod: u32,
}

/// The parameters of one end's QP, in REQ and REP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpInfo {
    /// QP number.
    pub qpn: RawQpn,
    /// First PSN that this end sends.
    pub psn: Psn,
    /// Maximum number of concurrent RDMA reads and atomics that this end answers (IRD).
    pub responder_resources: u8,
    /// Maximum number of RDMA reads and atomics that this end has outstanding (ORD).
    pub initiator_depth: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// End-to-end flow control as the application set it.
    pub flow_control: bool,
    /// RNR retries requested from the other end, 0..=7.
    pub rnr_retry: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
}

/// The body of a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The active side's QP.
    pub qp: QpInfo,
    /// Transport retries, 0..=7.
    pub retry_count: u8,
    /// Local acknowledgement timeout, encoded as in verbs (4.096 us * 2^n).
    pub ack_timeout: u8,
    /// Path MTU as `ibv_mtu` has it, 1..=5.
    pub path_mtu: u8,
    /// Port space of the service.
    pub port_space: PortSpace,
    /// Address and port of the active side; answers go to this address.
    pub src: SocketAddr,
    /// Address and port of the listener.
    pub dst: SocketAddr,
    /// The cookie of the destination host for this sender, or [`Cookie::NONE`].
    pub cookie: Cookie,
}

/// The body of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// See [`Kind::Req`].
    Req(Req),
    /// See [`Kind::Rep`]: the passive side's QP.
    Rep(QpInfo),
    /// See [`Kind::Rtu`].
    Rtu,
    /// See [`Kind::Rej`].
    Rej(RejReason),
    /// See [`Kind::Dreq`]: the QP number of the receiver, so that a stale DREQ has no effect.
    Dreq(RawQpn),
    /// See [`Kind::Drep`].
    Drep,
    /// See [`Kind::Mra`]: the service timeout, in milliseconds.
    Mra(u32),
    /// See [`Kind::Cookie`]; never [`Cookie::NONE`].
    Cookie(Cookie),
}

impl Body {
    /// The kind that belongs to this body.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Req(_) => Kind::Req,
            Self::Rep(_) => Kind::Rep,
            Self::Rtu => Kind::Rtu,
            Self::Rej(_) => Kind::Rej,
            Self::Dreq(_) => Kind::Dreq,
            Self::Drep => Kind::Drep,
            Self::Mra(_) => Kind::Mra,
            Self::Cookie(_) => Kind::Cookie,
        }
    }
}

/// The header fields, without the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The nonce of the connection attempt.
    pub nonce: Nonce,
    /// The sender's slot.
    pub slot: SlotId,
}

/// One message, parsed or to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Header.
    pub head: Head,
    /// Body.
    pub body: Body,
    /// Private data, at most [`MAX_PRIVATE_DATA`] octets.
    pub private_data: &'a [u8],
}

/// Why a datagram is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Shorter than its header or its body.
    Truncated,
    /// Octet 0 is not [`VERSION_TYPE`].
    Version,
    /// Unknown kind.
    Kind,
    /// The lengths do not match.
    Length,
    /// A field has an invalid value, or reserved bits are set.
    Value,
}

impl<'a> Message<'a> {
    /// Whether it is of the conversation with this nonce, in which the sender has this id, if the
    /// receiver knows it.
    pub(crate) fn is_of(&self, nonce: Nonce, sender: CommId) -> bool {
        let is_sender = sender == CommId::NONE || sender == self.head.local_id;
        self.head.nonce == nonce && (is_sender || self.body.kind() == Kind::Rej)
    }

    /// Parses one datagram.
    ///
    /// # Errors
    /// See [`ParseError`]; the whole datagram is refused.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let (head, rest) = datagram
            .split_at_checked(HEADER_LEN)
            .ok_or(ParseError::Truncated)?;
        if head[0] != VERSION_TYPE {
            return Err(ParseError::Version);
        }
        let kind = Kind::from_octet(head[1]).ok_or(ParseError::Kind)?;
        let private_len = usize::from(u16_at(head, 22));
        let total = HEADER_LEN + kind.body_len() + private_len;
        // R9-8
        //# **Errors.** The length MUST be that of the packet and equal 24 + body + private data (at
        //# most 255).
        if usize::from(u16_at(head, 2)) != datagram.len()
            || total != datagram.len()
            || private_len > MAX_PRIVATE_DATA
        {
            return Err(ParseError::Length);
        }
        let (body, private_data) = rest
            .split_at_checked(kind.body_len())
            .ok_or(ParseError::Truncated)?;
        let remote_id = CommId(u32_at(head, 8));
        // R9-9
        //# A message for which this does not hold, or with a reserved value in a field, MUST be
        //# dropped and is counted.
        if head[21] != 0 || (kind == Kind::Req && remote_id != CommId::NONE) {
            return Err(ParseError::Value);
        }
        Ok(Self {
            head: Head {
                local_id: CommId(u32_at(head, 4)),
                remote_id,
                nonce: Nonce(u64_at(head, 12)),
                slot: SlotId::new(head[20]).ok_or(ParseError::Value)?,
            },
            body: parse_body(kind, body)?,
            private_data,
        })
    }

    /// Writes the message to the start of `buf` and returns its length in octets.
    ///
    /// # Panics
    /// If `buf` is shorter than [`MAX_MESSAGE`] or there is too much private data: both are
    /// bugs of the caller.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let kind = self.body.kind();
        let body_end = HEADER_LEN + kind.body_len();
        let total = body_end + self.private_data.len();
        assert!(buf.len() >= MAX_MESSAGE && self.private_data.len() <= MAX_PRIVATE_DATA);
        buf[..body_end].fill(0);
        buf[0] = VERSION_TYPE;
        buf[1] = kind as u8;
        put_len(buf, 2, total);
        put_u32(buf, 4, self.head.local_id.0);
        put_u32(buf, 8, self.head.remote_id.0);
        buf[12..20].copy_from_slice(&self.head.nonce.0.to_be_bytes());
        buf[20] = self.head.slot.number();
        put_len(buf, 22, self.private_data.len());
        write_body(&self.body, &mut buf[HEADER_LEN..body_end]);
        buf[body_end..total].copy_from_slice(self.private_data);
        total
    }
}

/// The fields with which urdmad routes a REQ that arrived at slot 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReqRoute {
    /// Address and port of the listener.
    pub dst: SocketAddr,
    /// Address and port of the active side; a REJ goes to this address.
    pub src: SocketAddr,
    /// The active side's slot; a REJ goes to this slot.
    pub slot: SlotId,
    /// Port space of the service.
    pub port_space: PortSpace,
    /// The cookie that the sender knows.
    pub cookie: Cookie,
    local_id: CommId,
    nonce: Nonce,
}

impl ReqRoute {
    /// Parses the route of a REQ; `None` when `datagram` is not a REQ or is malformed.
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let message = Message::parse(datagram).ok()?;
        let Body::Req(req) = message.body else {
            return None;
        };
        Some(Self {
            dst: req.dst,
            src: req.src,
            slot: message.head.slot,
            port_space: req.port_space,
            cookie: req.cookie,
            local_id: message.head.local_id,
            nonce: message.head.nonce,
        })
    }
}

/// Whether a datagram says that it is a REQ; it may be malformed.
#[inline]
pub fn is_req(datagram: &[u8]) -> bool {
    datagram.starts_with(&[VERSION_TYPE, Kind::Req as u8])
}

/// Writes the REJ for a REQ without a listener and returns its length in octets. It is sent to
/// `req.src.ip()`, slot `req.slot`. `buf` must hold [`MAX_MESSAGE`] octets.
pub fn reject_no_listener(req: &ReqRoute, buf: &mut [u8]) -> usize {
    answer_of_slot_0(req, Body::Rej(RejReason::INVALID_SERVICE_ID), buf)
}

/// Writes the COOKIE that answers a REQ without a valid one and returns its length in octets. It is
/// sent to `req.src.ip()`, slot `req.slot`. `buf` must hold [`MAX_MESSAGE`] octets.
pub fn answer_cookie(req: &ReqRoute, cookie: Cookie, buf: &mut [u8]) -> usize {
    answer_of_slot_0(req, Body::Cookie(cookie), buf)
}

fn answer_of_slot_0(req: &ReqRoute, body: Body, buf: &mut [u8]) -> usize {
    Message {
        head: Head {
            local_id: CommId::NONE,
            remote_id: req.local_id,
            nonce: req.nonce,
            slot: SlotId::DAEMON,
        },
        body,
        private_data: &[],
    }
    .write(buf)
}

/// The wildcard address of the same family.
pub fn unspecified_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

fn parse_body(kind: Kind, body: &[u8]) -> Result<Body, ParseError> {
    Ok(match kind {
        Kind::Req => Body::Req(parse_req(body)?),
        Kind::Rep => Body::Rep(parse_qp(body, retry(body[11])?, ece_at(body, 12))?),
        Kind::Rtu => Body::Rtu,
        Kind::Rej if u16_at(body, 2) != 0 => return Err(ParseError::Value),
        Kind::Rej => Body::Rej(RejReason(u16_at(body, 0))),
        Kind::Dreq => Body::Dreq(qpn_at(body, 0)?),
        Kind::Drep => Body::Drep,
        Kind::Mra => Body::Mra(u32_at(body, 0)),
        Kind::Cookie if u32_at(body, 0) == 0 => return Err(ParseError::Value),
        Kind::Cookie => Body::Cookie(Cookie(u32_at(body, 0))),
    })
}

/// The parameters of a QP, whose first 11 octets are the same in REQ and REP.
fn parse_qp(body: &[u8], rnr_retry: u8, ece: Ece) -> Result<QpInfo, ParseError> {
    // R9-9
    //# A message for which this does not hold, or with a reserved value in a field, MUST be dropped
    //# and is counted.
    if body[10] & !QP_BITS != 0 {
        return Err(ParseError::Value);
    }
    Ok(QpInfo {
        qpn: qpn_at(body, 0)?,
        psn: psn_at(body, 4)?,
        responder_resources: body[8],
        initiator_depth: body[9],
        srq: body[10] & QP_SRQ != 0,
        flow_control: body[10] & QP_FLOW_CONTROL != 0,
        rnr_retry,
        ece,
    })
}

fn parse_req(body: &[u8]) -> Result<Req, ParseError> {
    let src = socket_at(body, 24, 56);
    // R9-9
    //# A message for which this does not hold, or with a reserved value in a field, MUST be dropped
    //# and is counted.
    if src.ip().is_unspecified() || body[12] > ACK_TIMEOUT_MAX {
        return Err(ParseError::Value);
    }
    Ok(Req {
        qp: parse_qp(body, retry(body[11] & 15)?, ece_at(body, 16))?,
        retry_count: retry(body[11] >> 4)?,
        ack_timeout: body[12],
        path_mtu: body[13],
        port_space: PortSpace(u16_at(body, 14)),
        src,
        dst: socket_at(body, 40, 58),
        cookie: Cookie(u32_at(body, 60)),
    })
}

fn write_body(body: &Body, out: &mut [u8]) {
    match body {
        Body::Req(req) => {
            write_qp(&req.qp, out);
            out[11] = (req.retry_count & 7) << 4 | req.qp.rnr_retry & 7;
            out[12] = req.ack_timeout & ACK_TIMEOUT_MAX;
            out[13] = req.path_mtu;
            out[14..16].copy_from_slice(&req.port_space.0.to_be_bytes());
            put_u32(out, 16, req.qp.ece.vendor_id);
            put_u32(out, 20, req.qp.ece.attr_mod);
            out[24..40].copy_from_slice(&Ip16::new(req.src.ip()).0);
            out[40..56].copy_from_slice(&Ip16::new(req.dst.ip()).0);
            out[56..58].copy_from_slice(&req.src.port().to_be_bytes());
            out[58..60].copy_from_slice(&req.dst.port().to_be_bytes());
            put_u32(out, 60, req.cookie.0);
        }
        Body::Rep(qp) => {
            write_qp(qp, out);
            out[11] = qp.rnr_retry & 7;
            put_u32(out, 12, qp.ece.vendor_id);
            put_u32(out, 16, qp.ece.attr_mod);
        }
        Body::Rej(reason) => out[0..2].copy_from_slice(&reason.0.to_be_bytes()),
        Body::Dreq(qpn) => put_u32(out, 0, qpn.to_u32()),
        Body::Mra(ms) => put_u32(out, 0, *ms),
        Body::Cookie(cookie) => put_u32(out, 0, cookie.0),
        Body::Rtu | Body::Drep => {}
    }
}

fn write_qp(qp: &QpInfo, out: &mut [u8]) {
    put_u32(out, 0, qp.qpn.to_u32());
    put_u32(out, 4, qp.psn.to_u32());
    out[8] = qp.responder_resources;
    out[9] = qp.initiator_depth;
    let srq = if qp.srq { QP_SRQ } else { 0 };
    let flow_control = if qp.flow_control { QP_FLOW_CONTROL } else { 0 };
    out[10] = srq | flow_control;
}

fn retry(octet: u8) -> Result<u8, ParseError> {
    if octet > 7 {
        return Err(ParseError::Value);
    }
    Ok(octet)
}

fn socket_at(octets: &[u8], addr: usize, port: usize) -> SocketAddr {
    let mut gid = [0; 16];
    gid.copy_from_slice(&octets[addr..addr + 16]);
    SocketAddr::new(Ip16(gid).to_ip(), u16_at(octets, port))
}

fn ece_at(octets: &[u8], at: usize) -> Ece {
    Ece {
        vendor_id: u32_at(octets, at),
        attr_mod: u32_at(octets, at + 4),
    }
}

fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from(u16_at(octets, at)) << 16 | u32::from(u16_at(octets, at + 2))
}

fn u64_at(octets: &[u8], at: usize) -> u64 {
    u64::from(u32_at(octets, at)) << 32 | u64::from(u32_at(octets, at + 4))
}

fn qpn_at(octets: &[u8], at: usize) -> Result<RawQpn, ParseError> {
    RawQpn::new(u32_at(octets, at)).ok_or(ParseError::Value)
}

fn psn_at(octets: &[u8], at: usize) -> Result<Psn, ParseError> {
    Psn::from_u32(u32_at(octets, at)).ok_or(ParseError::Value)
}

fn put_u32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put_len(out: &mut [u8], at: usize, len: usize) {
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    out[at..at + 2].copy_from_slice(&len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_req() -> Message<'static> {
        Message {
            head: Head {
                local_id: CommId(7),
                remote_id: CommId::NONE,
                nonce: Nonce(0x0123_4567_89ab_cdef),
                slot: SlotId::new(3).unwrap(),
            },
            body: Body::Req(Req {
                qp: QpInfo {
                    qpn: RawQpn::new(0x03_0001).unwrap(),
                    psn: Psn::new(0xab_cdef),
                    responder_resources: 4,
                    initiator_depth: 5,
                    srq: true,
                    flow_control: true,
                    rnr_retry: 7,
                    ece: Ece {
                        vendor_id: 1,
                        attr_mod: 2,
                    },
                },
                retry_count: 6,
                ack_timeout: 16,
                path_mtu: 5,
                port_space: PortSpace::TCP,
                src: "127.0.0.1:40000".parse().unwrap(),
                dst: "[2001:db8::1]:7471".parse().unwrap(),
                cookie: Cookie(0x89ab_cdef),
            }),
            private_data: b"hello",
        }
    }

    #[test]
    fn message_every_kind_round_trips() {
        let base = sample_req();
        let Body::Req(req) = base.body else {
            unreachable!()
        };
        for body in [
            base.body,
            Body::Rep(req.qp),
            Body::Rtu,
            Body::Rej(RejReason(28)),
            Body::Dreq(RawQpn::new(0x12_3456).unwrap()),
            Body::Drep,
            Body::Mra(60_000),
            Body::Cookie(Cookie(1)),
        ] {
            let message = Message { body, ..base };
            let mut buf = [0xff; MAX_MESSAGE];
            let len = message.write(&mut buf);
            assert_eq!(Message::parse(&buf[..len]), Ok(message));
        }
    }

    #[test]
    fn message_cut_or_padded_is_refused() {
        let mut buf = [0; MAX_MESSAGE + 1];
        let len = sample_req().write(&mut buf);
        for cut in 0..len {
            assert!(Message::parse(&buf[..cut]).is_err());
        }
        assert_eq!(Message::parse(&buf[..len + 1]), Err(ParseError::Length));
    }

    #[test]
    fn message_other_version_or_kind_is_refused() {
        let mut buf = [0; MAX_MESSAGE];
        let len = sample_req().write(&mut buf);
        buf[0] = 0x27;
        assert_eq!(Message::parse(&buf[..len]), Err(ParseError::Version));
        buf[0] = VERSION_TYPE;
        buf[1] = 99;
        assert_eq!(Message::parse(&buf[..len]), Err(ParseError::Kind));
    }

    #[test]
    fn message_with_an_impossible_number_is_refused() {
        let mut buf = [0; MAX_MESSAGE];
        let len = sample_req().write(&mut buf);
        let (slot, qpn, psn) = (20, HEADER_LEN, HEADER_LEN + 4);
        for (at, value) in [(slot, 254), (slot, 255), (qpn, 1), (psn, 1)] {
            let mut octets = buf;
            octets[at] = value;
            let refused = Message::parse(&octets[..len]);
            assert_eq!(refused, Err(ParseError::Value), "octet {at}");
        }
    }

    /// `body` with `value` in octet `at` of the whole message.
    fn damaged(body: Body, at: usize, value: u8) -> Result<Body, ParseError> {
        let message = Message {
            body,
            ..sample_req()
        };
        let mut buf = [0; MAX_MESSAGE];
        let len = message.write(&mut buf);
        assert!(Message::parse(&buf[..len]).is_ok());
        buf[at] = value;
        Message::parse(&buf[..len]).map(|message| message.body)
    }

    #[test]
    fn message_with_a_reserved_value_is_refused() {
        let req = sample_req().body;
        let Body::Req(Req { qp, .. }) = req else {
            unreachable!()
        };
        for (body, at, value) in [
            // The receiver's communication id, octet 21, bits, retries twice, the ACK timeout.
            (req, 11, 1),
            (req, 21, 1),
            (req, HEADER_LEN + 10, 4),
            (req, HEADER_LEN + 11, 0x08),
            (req, HEADER_LEN + 11, 0x80),
            (req, HEADER_LEN + 12, 32),
            (Body::Rep(qp), 21, 1),
            (Body::Rep(qp), HEADER_LEN + 10, 0x80),
            (Body::Rtu, 21, 0x80),
            (Body::Rej(RejReason::TIMEOUT), HEADER_LEN + 3, 1),
            // There is no cookie 0.
            (Body::Cookie(Cookie(1)), HEADER_LEN + 3, 0),
        ] {
            let refused = damaged(body, at, value);
            assert_eq!(refused, Err(ParseError::Value), "{body:?}, octet {at}");
        }
    }

    #[test]
    fn parse_random_octets_never_panics() {
        let mut state = 1u64;
        let mut buf = [0; MAX_MESSAGE];
        for _ in 0..200_000 {
            for octet in &mut buf {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                *octet = (state >> 33) as u8;
            }
            let len = (state >> 40) as usize % (MAX_MESSAGE + 1);
            buf[0] = VERSION_TYPE;
            buf[1] %= 10;
            buf[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            buf[22] = 0;
            let _ = Message::parse(&buf[..len]);
        }
    }

    #[test]
    fn reject_no_listener_answers_the_requester() {
        let mut buf = [0; MAX_MESSAGE];
        let len = sample_req().write(&mut buf);
        let route = ReqRoute::parse(&buf[..len]).unwrap();
        assert_eq!(route.dst, "[2001:db8::1]:7471".parse().unwrap());
        assert_eq!(route.slot.number(), 3);
        let len = reject_no_listener(&route, &mut buf);
        let rej = Message::parse(&buf[..len]).unwrap();
        assert_eq!(rej.body, Body::Rej(RejReason::INVALID_SERVICE_ID));
        assert_eq!(rej.head.remote_id, CommId(7));
        assert_eq!(rej.head.nonce, Nonce(0x0123_4567_89ab_cdef));
    }

    /// The vector of doc/spec/trp.md, and an answer that is shorter than any REQ.
    #[test]
    fn answer_cookie_is_as_specified() {
        let mut buf = [0; MAX_MESSAGE];
        let len = sample_req().write(&mut buf);
        assert!(is_req(&buf[..len]));
        let route = ReqRoute::parse(&buf[..len]).unwrap();
        assert_eq!(route.cookie, Cookie(0x89ab_cdef));
        let len = answer_cookie(&route, Cookie(0x0a0b_0c0d), &mut buf);
        let expected = [
            0x17, 0x08, 0x00, 0x1c, 0, 0, 0, 0, 0, 0, 0, 7, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab,
            0xcd, 0xef, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d,
        ];
        assert_eq!(buf[..len], expected);
        assert!(len < HEADER_LEN + REQ_LEN && !is_req(&buf[..len]));
    }
}
