//! Attaching before a device of the kernel module is opened.
//!
//! librdmacm opens the device of a listener with the first request, which then waits for the
//! attach: most of the time of that connection. It lists the devices before the program listens,
//! and the process attaches then, and makes its region of the first channel, for which both ends of
//! the first connection would wait. On the stand-in it has attached when it listens.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use urdma_engine::Engine;
use urdma_ipc::RunDir;
use urdma_kernel::Uverbs;

/// Where the command files of devices are.
const COMMAND_FILES: &str = "/dev/infiniband";

/// Attaches to the urdmad of the device whose command file has this name, if the program is linked
/// with librdmacm. A failure has no effect: opening the device
/// attaches again and reports it.
pub(super) fn attach(command_file: &CStr) {
    if !is_linked_with_rdmacm() {
        return;
    }
    let Ok(name) = command_file.to_str() else {
        return;
    };
    let path = Path::new(COMMAND_FILES).join(name);
    let file = File::options().read(true).write(true).open(path);
    let opened = file.and_then(|file| Uverbs::open(file.as_fd()));
    let Ok(opened) = opened else {
        return;
    };
    // The process keeps its engine. No thread of the program drives it, so that the first queue
    // pair would start the thread.
    if let Ok(engine) = Engine::attach(&RunDir::at(opened.uverbs.run_dir())) {
        let _ = engine.start_background();
        engine.deposit_channel();
    }
}

/// Whether librdmacm is loaded as a library of the program itself. A plugin that links librdmacm,
/// as UCX has one, need not use this device.
fn is_linked_with_rdmacm() -> bool {
    // SAFETY: a C string.
    let listen = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rdma_listen".as_ptr()) };
    !listen.is_null()
}
