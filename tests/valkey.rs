//! Valkey's server over RDMA with the test client of its sources, on one host; `scripts/valkey.sh`
//! builds both.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::Process;
use urdma_tests::{alone, ports, OneHost, SHORT};

const LIMIT: Duration = Duration::from_secs(120);
/// The directory in which `make test-all` builds it.
const VALKEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/valkey");

#[test]
#[ignore = "make test-all"]
fn valkey_stores_and_gives_keys_over_rdma() {
    let [server, client] =
        ["src/valkey-server", "tests/rdma/rdma-test"].map(|name| format!("{VALKEY}/{name}"));
    for program in [&server, &client] {
        let built = Path::new(program).exists();
        assert!(
            built,
            "{program} is missing: scripts/valkey.sh target/valkey"
        );
    }
    let _alone = alone();
    let one = OneHost::up();
    let port = ports().to_string();
    let dir = one.scratch.path().to_str().unwrap();
    // Without TCP, so that nothing can bypass RDMA.
    let argv = [
        &server,
        "--port",
        "0",
        "--rdma-bind",
        "127.0.0.1",
        "--rdma-port",
        &port,
        "--protected-mode",
        "no",
        "--save",
        "",
        "--dir",
        dir,
    ];
    let mut serving =
        Process::start(&mut one.host.run(LeasePolicy::Never, &argv).unwrap()).unwrap();
    serving
        .wait_for_text("Ready to accept connections rdma", SHORT)
        .unwrap();
    // Four threads each set thousands of keys, have a forked child of the server save them, and
    // read them back.
    let argv = [client.as_str(), "-h", "127.0.0.1", "-p", &port, "-t", "4"];
    let mut asking = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut asking, LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    let said = ended.output.contains("Valkey Over RDMA test [OK]");
    assert!(said, "{}", ended.output);
    serving.signal(Signal::SIGTERM).unwrap();
    let served = serving.wait(SHORT).unwrap();
    assert!(served.succeeded(), "{}", served.describe());
    one.down();
}
