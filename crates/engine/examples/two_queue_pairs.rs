//! Two connected queue pairs in one process, without urdmad: one writes into memory of the other.

use std::{error::Error, sync::Arc};

use urdma_engine::{
    Access, CqConfig, Engine, Gid, InProcess, Parts, Payload, QpConfig, QpModify, RemoteAddr,
    SendFlags, SendOp, SendWr, SlotId, Status,
};

const GID: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const OCTETS: &[u8] = b"moved by an RDMA WRITE";

fn main() -> Result<(), Box<dyn Error>> {
    let instance = InProcess::new()?;
    let mut ends = Vec::new();
    for slot in [1, 2].into_iter().filter_map(SlotId::new) {
        let engine = Engine::start(Parts::in_process(&instance, slot, GID))?;
        let pd = engine.alloc_pd()?;
        let cq = engine.create_cq(CqConfig::with_depth(16))?;
        let qp = engine.create_qp(&QpConfig::new(pd, &cq, Arc::new(())))?;
        ends.push((engine, pd, cq, qp));
    }
    let [(near, _, cq, qp), (far, far_pd, _, far_qp)] = &ends[..] else {
        unreachable!()
    };
    for (engine, own, peer) in [(near, qp, far_qp), (far, far_qp, qp)] {
        for change in QpModify::steps_to_rts(peer.number(), GID, Access::REMOTE_WRITE) {
            engine.modify_qp(own, &change)?;
        }
    }
    let mut target = vec![0u8; OCTETS.len()];
    let to = target.as_mut_ptr().expose_provenance() as u64;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let keys = far.register_mr(*far_pd, to, OCTETS.len() as u64, to, access)?;
    let stag = keys.rkey;
    let remote = RemoteAddr { stag, to };
    let write = SendWr {
        wr_id: 1,
        op: SendOp::Write { remote },
        imm: None,
        flags: SendFlags {
            signaled: true,
            ..SendFlags::default()
        },
        shared_queue: 0,
        payload: Payload::Inline(&[OCTETS]),
    };
    near.post_send(qp, &write).map_err(|_| "not posted")?;
    let mut status = None;
    while near.poll_cq(cq, 1, |done| status = Some(done.completion.status))? == 0 {}
    assert_eq!((status, &*target), (Some(Status::Success), OCTETS));
    println!("{}", String::from_utf8(target)?);
    Ok(())
}

#[test]
fn octets_arrive() {
    assert!(main().is_ok());
}
