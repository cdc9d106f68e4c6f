//! Tests of the client against a socket that the test serves.

use super::*;
use crate::packet::PacketListener;

/// Time limit of the test's waits.
const PATIENCE: Duration = Duration::from_secs(60);

fn accepted(listener: &PacketListener) -> PacketSocket {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok(socket) => return socket,
            Err(errno) => assert_eq!(errno, Errno::EAGAIN),
        }
        assert!(Instant::now() < deadline, "no connection in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn conversation_that_is_refused_unread_says_why() {
    let directory = std::env::temp_dir().join(format!("urdma-ipc-no-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let run_dir = RunDir::at(&directory);
    let listener = PacketListener::bind(&run_dir.control_socket()).unwrap();
    let refusal = Refusal::new(RefusalKind::QuotaExceeded, "there are too many");
    let refuse = || {
        let daemon = accepted(&listener);
        let message = FromDaemon::Refused(refusal.clone());
        daemon.send(&message, &[]).unwrap();
    };
    // Before Hello, after it, and between Hello and the request.
    std::thread::scope(|scope| {
        for _ in 0..1000 {
            let refused = scope.spawn(|| ControlClient::connect(&run_dir, "test"));
            refuse();
            let error = refused.join().unwrap().unwrap_err();
            assert!(
                matches!(&error, ControlError::Refused(why) if *why == refusal),
                "{error}"
            );
        }
    });
    let attaching = ControlClient::begin_attach(&run_dir, "test", false).unwrap();
    refuse();
    let error = attaching.finish().unwrap_err();
    assert!(
        matches!(&error, ControlError::Refused(why) if *why == refusal),
        "{error}"
    );
    std::fs::remove_dir_all(directory).unwrap();
}

/// A client that has sent its first requests, and the other end of its connection.
fn attaching(test: &str) -> (Attaching, PacketSocket) {
    let name = format!("urdma-ipc-{test}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let run_dir = RunDir::at(&directory);
    let listener = PacketListener::bind(&run_dir.control_socket()).unwrap();
    let attaching = ControlClient::begin_attach(&run_dir, "test", false).unwrap();
    let daemon = accepted(&listener);
    std::fs::remove_dir_all(directory).unwrap();
    (attaching, daemon)
}

/// More descriptors than fit are what a process without free descriptors meets.
#[test]
fn descriptors_that_cannot_be_opened_concern_their_message_only() {
    let (attaching, daemon) = attaching("fd");
    let client = &attaching.client;
    let (slot, generation, stranger) = (7, 1, Some(1000));
    let offer = Event::ChannelOffered {
        slot,
        generation,
        stranger,
        deposit_is_given: false,
    };
    let gone = Event::SlotGone { slot, generation };
    let many = [daemon.as_fd(); 9];
    daemon
        .send(&FromDaemon::Event(offer.clone()), &many)
        .unwrap();
    daemon.send(&FromDaemon::Event(gone.clone()), &[]).unwrap();
    for expected in [offer, gone] {
        let (event, fds) = client.next_event(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!((event, fds.len()), (expected, 0));
    }
    let id = client.ask(Request::Recording { number: 1 }).unwrap();
    let result = Ok(Answer::Recording);
    daemon
        .send(&FromDaemon::Answer { id, result }, &many)
        .unwrap();
    let error = client.answer_to(id).unwrap_err();
    assert_eq!(error.errno(), Errno::EMFILE as i32, "{error}");
}

#[test]
fn attach_to_an_urdmad_of_another_version_says_so() {
    // Both requests have arrived before either is answered.
    let (attaching, daemon) = attaching("version");
    let [hello, attach] = [(); 2].map(|()| {
        let mut room = [0; 1024];
        let packet = daemon.recv(&mut room).unwrap().unwrap();
        packet.parse::<FromClient>().unwrap()
    });
    assert!(matches!(hello.request, Request::Hello { .. }));
    assert_eq!(attach.request, Request::Attach { want_lease: false });
    let theirs = PROTOCOL_VERSION + 1;
    let refusal = Refusal::new(RefusalKind::VersionMismatch { theirs }, "another version");
    let answer = FromDaemon::Answer {
        id: hello.id,
        result: Err(refusal),
    };
    daemon.send(&answer, &[]).unwrap();
    // The answer of urdmad to a client whose first request is not Hello.
    drop(daemon);
    let refused = attaching.finish().unwrap_err();
    assert!(
        matches!(refused, ControlError::VersionMismatch { theirs: said, .. } if said == theirs),
        "{refused}"
    );
}
