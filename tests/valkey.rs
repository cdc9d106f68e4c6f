//! Valkey's server over RDMA with the test client of its sources, on one host; `scripts/valkey.sh`
//! builds both.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::LeasePolicy;
use urdma_harness::over::Over;
use urdma_harness::process::Process;
use urdma_harness::valkey::Valkey;
use urdma_tests::{alone, ports, OneHost, SHORT};

const LIMIT: Duration = Duration::from_secs(120);
/// The directory in which `make test-all` builds it.
const VALKEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/valkey");

#[test]
#[ignore = "make test-all"]
fn valkey_stores_and_gives_keys_over_rdma() {
    let client = format!("{VALKEY}/tests/rdma/rdma-test");
    let valkey = Valkey::built_in(Path::new(VALKEY)).unwrap();
    assert!(Path::new(&client).exists(), "{client} is missing");
    let _alone = alone();
    let one = OneHost::up();
    let (port, over) = (ports(), Over::Urdma(&one.host));
    let mut server = valkey.server(over, port, one.scratch.path()).unwrap();
    let mut serving = Process::start(&mut server).unwrap();
    serving.wait_for_text(Valkey::ready(over), SHORT).unwrap();
    // Four threads each set thousands of keys, have a forked child of the server save them, and
    // read them back.
    let port = port.to_string();
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
