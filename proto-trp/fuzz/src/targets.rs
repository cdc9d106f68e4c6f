//! The fuzz targets: one function for each parser. None may panic, and what a parser accepts must
//! be the same after it is encoded and parsed again.
//!
//! The same functions replay `corpus/` in `tests/fuzz_corpus.rs`, with a stable compiler.

use proto_trp::wire::message::{encode_message_body, MESSAGE_HEAD_LEN};
use proto_trp::wire::{
    self, AtomicRequest, AtomicResponse, DatagramHeader, Extensions, ImmediateData, MessageHead,
    Opcode, PacketType, ReadRequest, ResetReason, Segment, TaggedHeader, Terminate, Train,
    TrainWriter, TrpHeader, UntaggedHeader, HEAD_LEN_MAX, SEGMENT_HEAD_LEN,
};

/// A parser under test, by the name of its target and of its directory in `corpus/`.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const ALL: [Target; 12] = [
    ("trp_header", trp_header),
    ("extensions", extensions),
    ("ddp", ddp),
    ("rdmap", rdmap),
    ("terminate", terminate),
    ("segment", segment),
    ("train", train),
    ("datagram", datagram),
    ("message", message),
    ("messages", messages),
    ("operations", operations),
    ("cm_message", cm_message),
];

/// [`trp_sim::fuzz_operations`].
pub fn operations(octets: &[u8]) {
    trp_sim::fuzz_operations(octets);
}

/// [`trp_sim::fuzz_messages`].
pub fn messages(octets: &[u8]) {
    trp_sim::fuzz_messages(octets);
}

/// [`MessageHead::parse`], and the message in a cell as a segment.
pub fn message(octets: &[u8]) {
    let Ok(head) = MessageHead::parse(octets) else {
        return;
    };
    let mut buf = [0; MESSAGE_HEAD_LEN];
    head.encode(&mut buf);
    assert_eq!(MessageHead::decode(&buf), Ok(head));
    let rest = &octets[MESSAGE_HEAD_LEN..];
    let Ok(segment) = head.segment(rest, rest.len()) else {
        return;
    };
    assert!(segment.payload_len <= rest.len());
    let again = head.of_segment(&segment.kind, segment.last);
    let mut body = [0; HEAD_LEN_MAX];
    let body_len = encode_message_body(&segment.kind, &mut body).expect("every body fits");
    let len = body_len + segment.payload_len;
    let same = again.segment(&body[..len.min(HEAD_LEN_MAX)], len);
    assert_eq!(same.map(|segment| segment.kind), Ok(segment.kind));
}

/// [`TrpHeader::parse`].
pub fn trp_header(octets: &[u8]) {
    let Ok(header) = TrpHeader::parse(octets, octets.len()) else {
        return;
    };
    assert!(header.len() <= octets.len());
    assert_eq!(header.extension_octets(octets).len() + 16, header.len());
    let mut buf = octets.to_vec();
    header
        .encode(&mut buf)
        .expect("the header was there before");
    assert_eq!(TrpHeader::parse(&buf, buf.len()), Ok(header));
    if let Some(reset) = TrpHeader::reset_for(&header, ResetReason::NoQueuePair) {
        let mut buf = [0; 16];
        reset.encode(&mut buf).expect("a RESET is 16 octets");
        assert_eq!(TrpHeader::parse(&buf, 16), Ok(reset));
    }
}

/// [`Extensions::parse`].
pub fn extensions(octets: &[u8]) {
    let Ok(found) = Extensions::parse(octets) else {
        return;
    };
    let mut buf = [0; HEAD_LEN_MAX];
    let len = found.encode(&mut buf).expect("the longest extensions fit");
    assert_eq!(len, 4 * usize::from(found.words()));
    assert!(len <= octets.len());
    assert_eq!(Extensions::parse(&buf[..len]), Ok(found));
    if let Some(sack) = &found.sack {
        assert!(sack.iter().all(|bit| sack.contains(bit)));
        assert_eq!(sack.iter().next().is_none(), sack.is_empty());
    }
}

/// [`TaggedHeader::parse`] and [`UntaggedHeader::parse`].
pub fn ddp(octets: &[u8]) {
    let mut buf = [0; HEAD_LEN_MAX];
    if let Ok(header) = TaggedHeader::parse(octets) {
        let len = header.encode(&mut buf).expect("the header fits");
        assert_eq!(TaggedHeader::parse(&buf[..len]), Ok(header));
    }
    if let Ok(header) = UntaggedHeader::parse(octets) {
        let len = header.encode(&mut buf).expect("the header fits");
        assert_eq!(UntaggedHeader::parse(&buf[..len]), Ok(header));
    }
}

/// The parsers of RDMAP's headers.
pub fn rdmap(octets: &[u8]) {
    let mut buf = [0; HEAD_LEN_MAX];
    if let Some(Ok(opcode)) = octets.first().map(|&control| Opcode::of_control(control)) {
        assert_eq!(Opcode::of_control(opcode.control()), Ok(opcode));
    }
    if let Ok(request) = ReadRequest::parse(octets) {
        let len = request.encode(&mut buf).expect("the header fits");
        assert_eq!(buf[..len], octets[..len]);
    }
    if let Ok(request) = AtomicRequest::parse(octets) {
        let len = request.encode(&mut buf).expect("the header fits");
        assert_eq!(AtomicRequest::parse(&buf[..len]), Ok(request));
    }
    if let Ok(response) = AtomicResponse::parse(octets) {
        let len = response.encode(&mut buf).expect("the header fits");
        assert_eq!(buf[..len], octets[..len]);
    }
    if let Ok(data) = ImmediateData::parse(octets) {
        let len = data.encode(&mut buf).expect("the payload fits");
        assert_eq!(buf[..len], octets[..len]);
    }
}

/// [`Terminate::parse`], and [`Terminate::about`] a segment of these octets.
pub fn terminate(octets: &[u8]) {
    let mut buf = [0; wire::terminate::LEN_MAX];
    let about = octets.split_first_chunk::<2>().map(|(cause, segment)| {
        let cause = wire::TerminateCause::from_u16(u16::from_be_bytes(*cause));
        Terminate::about(cause, segment, segment.len())
    });
    for terminate in Terminate::parse(octets).ok().into_iter().chain(about) {
        let len = terminate
            .encode(&mut buf)
            .expect("the longest Terminate fits");
        assert_eq!(Terminate::parse(&buf[..len]), Ok(terminate));
        assert!(!terminate.cause.name().is_empty());
    }
}

/// [`Segment::parse`]: the first two octets are the length of the datagram, the rest is its head.
pub fn segment(octets: &[u8]) {
    let Some((len, head)) = octets.split_first_chunk::<2>() else {
        return;
    };
    let datagram_len = usize::from(u16::from_be_bytes(*len));
    let Ok((trp, segment)) = Segment::parse(head, datagram_len) else {
        return;
    };
    assert!(segment.payload_offset + segment.payload_len <= datagram_len);
    let Ok(extensions) = Extensions::parse(trp.extension_octets(head)) else {
        return;
    };
    let mut buf = [0; HEAD_LEN_MAX];
    let written = wire::encode(&trp, &extensions, &segment.kind, segment.last, &mut buf)
        .expect("all headers fit");
    let (_, again) =
        Segment::parse(&buf, written + segment.payload_len).expect("was accepted before");
    assert_eq!((again.kind, again.last), (segment.kind, segment.last));
    assert_eq!(again.payload_len, segment.payload_len);
    assert_eq!(again.flags, segment.flags);
}

/// [`Train::parse`] and the segments that it finds.
pub fn train(octets: &[u8]) {
    let Ok(trp) = TrpHeader::parse(octets, octets.len()) else {
        return;
    };
    let Ok(train) = Train::parse(&trp, octets, octets.len()) else {
        assert_ne!(trp.kind, PacketType::Train);
        return;
    };
    let mut writer = TrainWriter::default();
    for piece in train.pieces() {
        let end = piece.at + piece.len;
        let head = &octets[piece.at..end.min(piece.at + SEGMENT_HEAD_LEN)];
        if let Ok(segment) = Segment::parse_at(trp.flags, head, piece.at, end) {
            assert!(segment.payload_offset + segment.payload_len <= end);
        }
        writer.push(piece.len, piece.has_immediate);
    }
    if trp.extension_words == 0 {
        let mut buf = octets.to_vec();
        let len = writer.finish(&trp, &mut buf).expect("the table was there");
        assert_eq!(Train::parse(&trp, &buf, len), Ok(train));
    }
}

/// [`DatagramHeader::parse`], and the group that urdmad finds.
pub fn datagram(octets: &[u8]) {
    let group = wire::datagram::group_of(octets, octets.len());
    let Ok(header) = DatagramHeader::parse(octets, octets.len()) else {
        assert!(group.is_none());
        return;
    };
    let is_group = wire::datagram::is_group(&header.destination_gid);
    assert_eq!(group, is_group.then_some(header.destination_gid));
    let mut buf = [0; wire::datagram::HEADER_LEN];
    header.encode(&mut buf).expect("the header fits");
    let again = DatagramHeader::parse(&buf, octets.len());
    assert_eq!(again, Ok(header));
}

/// [`urdma_cm::wire::Message::parse`], and what urdmad makes of a REQ.
pub fn cm_message(octets: &[u8]) {
    use urdma_cm::wire::{
        answer_cookie, is_req, reject_no_listener, Body, Cookie, Message, ReqRoute, MAX_MESSAGE,
    };
    let route = ReqRoute::parse(octets);
    let Ok(message) = Message::parse(octets) else {
        assert!(route.is_none());
        return;
    };
    let mut buf = [0; MAX_MESSAGE];
    let len = message.write(&mut buf);
    assert_eq!(len, octets.len());
    assert_eq!(Message::parse(&buf[..len]), Ok(message));
    assert_eq!(route.is_some(), matches!(message.body, Body::Req(_)));
    assert_eq!(route.is_some(), is_req(octets));
    assert_eq!(&buf[..len], octets);
    if let Some(route) = route {
        let len = reject_no_listener(&route, &mut buf);
        let answer = Message::parse(&buf[..len]).expect("an answer that can be read");
        assert_eq!(answer.head.remote_id, message.head.local_id);
        assert!(matches!(answer.body, Body::Rej(_)));
        let len = answer_cookie(&route, Cookie(1), &mut buf);
        assert!(len < octets.len());
        let answer = Message::parse(&buf[..len]).expect("an answer that can be read");
        assert_eq!(answer.body, Body::Cookie(Cookie(1)));
    }
}
