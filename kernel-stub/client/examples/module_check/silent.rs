//! An urdmad that does not answer: a listen fails soon, since rdma_cm holds the lock of all of its
//! devices meanwhile.

use std::sync::mpsc;
use std::time::Duration;

use super::rdma_cm::RdmaCm;
use super::serve;

/// Between the module's limit and the 30 seconds that a slow server may take.
const LIMIT: Duration = Duration::from_secs(20);
const ANY: [u8; 4] = [0; 4];
const ETIMEDOUT: i32 = 110;

pub(crate) fn run() {
    let _agent = serve().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(RdmaCm::open().unwrap().listen(ANY, 7000)));
    let listened = told
        .recv_timeout(LIMIT)
        .expect("the listen waits for urdmad");
    let refused = listened.unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(ETIMEDOUT), "{refused}");
}
