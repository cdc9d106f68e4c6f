//! What urdmad wants of queue pairs whose connections come through the kernel. It is played by the
//! test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use urdma_engine::{Access, Engine, Gid, GidEntry, InProcess, QpModify, QpState, SendOp, Status};
use urdma_ipc::message::{FromClient, FromDaemon, QpTarget};
use urdma_ipc::packet::{PacketListener, PacketSocket, PACKET_OCTETS_MAX};
use urdma_ipc::{Answer, ControlClient, Event, Request, RunDir};

use crate::rig::{instance, parts, until, End};

/// The other end of an engine's conversation.
struct Daemon(PacketSocket);

impl Daemon {
    /// An engine in `slot`, and its daemon.
    fn of_engine(instance: &Arc<InProcess>, slot: u8) -> (Daemon, Arc<Engine>) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("urdma-daemon-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let run_dir = RunDir::at(&directory);
        let listener = PacketListener::bind(&run_dir.control_socket()).unwrap();
        let place = run_dir.clone();
        let client = std::thread::spawn(move || ControlClient::connect(&place, "test").unwrap());
        let mut accepted = None;
        until("a conversation", || {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let daemon = Daemon(accepted.unwrap());
        let hello = daemon.hear();
        let welcome = Answer::Welcome {
            instance: "test".to_owned(),
            pid: 1,
        };
        let answer = FromDaemon::Answer {
            id: hello.id,
            result: Ok(welcome),
        };
        daemon.0.send(&answer, &[]).unwrap();
        let client = client.join().unwrap();
        std::fs::remove_dir_all(directory).unwrap();

        let mut parts = parts(instance, slot);
        parts.gids.push(GidEntry {
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]),
            netdev: None,
        });
        parts.control = Some((client, run_dir));
        let engine = Engine::start(parts).unwrap();
        assert_eq!(daemon.hear().request, Request::OfferRecording);
        (daemon, engine)
    }

    fn tell(&self, event: Event) {
        self.0.send(&FromDaemon::Event(event), &[]).unwrap();
    }

    fn hear(&self) -> FromClient {
        let mut heard = None;
        until("a message", || {
            if let Ok(packet) = self.0.try_recv(PACKET_OCTETS_MAX) {
                heard = Some(packet.unwrap().parse().unwrap());
            }
            heard.is_some()
        });
        heard.unwrap()
    }

    /// Has a queue pair set, connected to `remote_qpn`; gives what came of it.
    fn set(&self, qpn: u32, remote_qpn: u32) -> bool {
        self.set_all(&[qpn], remote_qpn) == [true]
    }

    /// Has queue pairs set by one message; gives what came of them.
    fn set_all(&self, qpns: &[u32], remote_qpn: u32) -> Vec<bool> {
        let target = |&qpn: &u32| QpTarget {
            qpn,
            remote_ip: "127.0.0.1".parse().unwrap(),
            local_ip: "127.0.0.1".parse().unwrap(),
            remote_qpn,
            remote_psn: 7,
            local_psn: 7,
            path_mtu: 5,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 16,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
        };
        self.tell(Event::SetQps(qpns.iter().map(target).collect()));
        let Request::QpsAreSet(outcomes) = self.hear().request else {
            panic!("no answer");
        };
        assert!(outcomes.iter().map(|outcome| &outcome.qpn).eq(qpns));
        outcomes.iter().map(|outcome| outcome.succeeded).collect()
    }
}

/// Two ends in INIT without rights for the peer, and their daemons.
fn two_ends() -> [(Daemon, End); 2] {
    let instance = instance();
    [1, 2].map(|slot| {
        let (daemon, engine) = Daemon::of_engine(&instance, slot);
        let end = End::new(engine, 64);
        end.init(Access::LOCAL_WRITE);
        (daemon, end)
    })
}

fn number_of(end: &End) -> u32 {
    end.qp.number().to_u32()
}

// As connections that are made at once need them.
#[test]
fn queue_pairs_that_one_message_names_are_all_set() {
    let [(daemon, end), (_other, peer)] = two_ends();
    let (own, missing) = (number_of(&end), number_of(&end) + 1);
    let outcomes = daemon.set_all(&[missing, own], number_of(&peer));
    assert_eq!(outcomes, [false, true]);
}

#[test]
fn daemon_connects_queue_pairs_which_grant_what_rnics_do() {
    let [(of_a, a), (of_b, b)] = two_ends();
    assert!(of_b.set(number_of(&b), number_of(&a)));
    assert!(of_a.set(number_of(&a), number_of(&b)));
    let (state, attributes) = a.engine.query_qp(&a.qp);
    assert_eq!(state, QpState::Rts);
    assert_eq!(
        attributes.access,
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
    );
    a.post(
        1,
        SendOp::Write {
            remote: b.remote(0),
        },
        &[a.sge(0, 8)],
    )
    .unwrap();
    a.expect(1, Status::Success);
}

#[test]
fn queue_pair_that_cannot_be_set_is_reported() {
    let [(of_a, a), (_of_b, b)] = two_ends();
    let not_made = number_of(&a) + 1;
    assert!(!of_a.set(not_made, number_of(&b)));
    // It is another process'.
    assert!(!of_a.set(number_of(&b), number_of(&a)));
    let reset = QpModify {
        state: Some(QpState::Reset),
        ..QpModify::default()
    };
    a.engine.modify_qp(&a.qp, &reset).unwrap();
    assert!(!of_a.set(number_of(&a), number_of(&b)));
    a.init(Access::LOCAL_WRITE);
    assert!(of_a.set(number_of(&a), number_of(&b)));
}

#[test]
fn end_of_a_connection_flushes_its_queue_pair_alone() {
    let [(of_a, a), (_of_b, b)] = two_ends();
    let other = End::new(Arc::clone(&a.engine), 64);
    other.init(Access::LOCAL_WRITE);
    for end in [&a, &other] {
        assert!(of_a.set(number_of(end), number_of(&b)));
        end.receive(1, &[end.sge(0, 8)]).unwrap();
    }
    // One that is gone, and one of another process.
    for qpn in [number_of(&other) + 1, number_of(&b)] {
        of_a.tell(Event::EndQp { qpn });
    }
    of_a.tell(Event::EndQp { qpn: number_of(&a) });
    a.expect(1, Status::WorkRequestFlushed);
    assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Error);
    assert_eq!(other.engine.query_qp(&other.qp).0, QpState::Rts);
    assert_eq!(b.engine.query_qp(&b.qp).0, QpState::Init);
}

#[test]
fn daemon_that_ends_takes_connected_queue_pairs_along() {
    let [(of_a, a), (_of_b, b)] = two_ends();
    assert!(of_a.set(number_of(&a), number_of(&b)));
    a.receive(1, &[a.sge(0, 8)]).unwrap();
    drop(of_a);
    a.expect(1, Status::WorkRequestFlushed);
}
