//! The device: registration of the plugin, opening and closing of contexts, and the table of
//! operations.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::size_of;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{addr_of_mut, null_mut};
use std::sync::{Arc, Weak};

use rdma_core_sys::private::{
    verbs_context_ops, verbs_device, verbs_device_ops, verbs_match_ent, verbs_sysfs_dev,
};
use rdma_core_sys::verbs::{ibv_context, ibv_device, verbs_context};

use urdma_abi::cancel::Disabled;
use urdma_ipc::RunDir;
use urdma_kernel::abi::DRIVER_ID;
use urdma_kernel::{uverbs, Uverbs};

use super::backend::Backend;
use super::context::Context;
use super::errno::{set_errno, VerbsError};
use super::event::AsyncQueue;
use super::library::{self, Library, NoContext};
use super::objects::Objects;
use super::{ah, async_event, cq, dm, early, ffi, mr, mw, pd, qp, query, srq, xrc};
use crate::front;
use urdma_engine::{Engine, EventSink};

/// Prefix of the names of the stand-in's devices.
const DEVICE_PREFIX: &[u8] = b"urdma";

/// Number of completion vectors. The vector of a completion queue makes no difference.
const COMP_VECTORS: c_int = 1;

const OPS: verbs_context_ops = verbs_context_ops {
    advise_mr: Some(mr::advise_mr),
    alloc_dm: Some(dm::alloc_dm),
    alloc_mw: Some(mw::alloc_mw),
    alloc_null_mr: Some(mr::alloc_null_mr),
    alloc_parent_domain: Some(pd::alloc_parent_domain),
    alloc_pd: Some(pd::alloc_pd),
    alloc_td: Some(pd::alloc_td),
    async_event: Some(async_event::async_event),
    attach_mcast: Some(qp::datagram::attach_mcast),
    bind_mw: Some(mw::bind_mw),
    close_xrcd: Some(xrc::close_xrcd),
    cq_event: Some(cq::calls::cq_event),
    create_ah: Some(ah::create_ah),
    create_cq: Some(cq::calls::create_cq),
    create_cq_ex: Some(cq::calls::create_cq_ex),
    create_qp: Some(qp::calls::create_qp),
    create_qp_ex: Some(qp::calls::create_qp_ex),
    create_srq: Some(srq::create_srq),
    create_srq_ex: Some(srq::create_srq_ex),
    dealloc_mw: Some(mw::dealloc_mw),
    dealloc_pd: Some(pd::dealloc_pd),
    dealloc_td: Some(pd::dealloc_td),
    dereg_mr: Some(mr::dereg_mr),
    destroy_ah: Some(ah::destroy_ah),
    destroy_cq: Some(cq::calls::destroy_cq),
    destroy_qp: Some(qp::calls::destroy_qp),
    destroy_srq: Some(srq::destroy_srq),
    detach_mcast: Some(qp::datagram::detach_mcast),
    free_context: Some(free_context),
    free_dm: Some(dm::free_dm),
    get_srq_num: Some(srq::get_srq_num),
    import_dm: Some(dm::import_dm),
    import_mr: Some(mr::import_mr),
    import_pd: Some(pd::import_pd),
    modify_qp: Some(qp::calls::modify_qp),
    modify_srq: Some(srq::modify_srq),
    open_xrcd: Some(xrc::open_xrcd),
    poll_cq: Some(cq::poll::poll_cq),
    post_recv: Some(qp::post::post_recv),
    post_send: Some(qp::post::post_send),
    post_srq_recv: Some(qp::post::post_srq_recv),
    query_device_ex: Some(query::query_device_ex),
    query_port: Some(query::query_port),
    query_qp: Some(qp::calls::query_qp),
    query_rt_values: Some(query::query_rt_values),
    query_srq: Some(srq::query_srq),
    reg_dm_mr: Some(mr::reg_dm_mr),
    reg_mr: Some(mr::reg_mr),
    req_notify_cq: Some(cq::calls::req_notify_cq),
    rereg_mr: Some(mr::rereg_mr),
    resize_cq: Some(cq::calls::resize_cq),
    unimport_dm: Some(dm::unimport_dm),
    unimport_mr: Some(mr::unimport_mr),
    unimport_pd: Some(pd::unimport_pd),
    ..verbs_context_ops::EMPTY
};

/// libibverbs searches every plugin's table for a device that has a kernel driver, and does not
/// check for null.
static MATCHES: [verbs_match_ent; 2] = [
    verbs_match_ent::driver(DRIVER_ID),
    verbs_match_ent::SENTINEL,
];

static DRIVER: verbs_device_ops = verbs_device_ops {
    name: c"urdma".as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: u32::MAX,
    match_table: MATCHES.as_ptr(),
    static_providers: std::ptr::null(),
    match_device: Some(match_device),
    alloc_context: Some(alloc_context),
    import_context: Some(import_context),
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

/// Registers with the loaded copies of libibverbs that the plugin is not registered with. The
/// stand-in calls it when a copy looks for devices, because a copy that was loaded after the plugin
/// cannot load the plugin again.
#[no_mangle]
pub(crate) extern "C" fn urdma_register() {
    let _uncancelled = Disabled::new();
    // No panic may reach the dynamic linker or the stand-in.
    let _ = std::panic::catch_unwind(|| library::register_with_all(&DRIVER, &OPS));
}

/// Runs [`urdma_register`] when the dynamic linker loads the plugin.
#[used]
#[link_section = ".init_array"]
static REGISTER: extern "C" fn() = urdma_register;

/// A device that libibverbs has found; the public structure is its first field.
#[repr(C)]
struct Device {
    verbs: verbs_device,
    /// Whether it is a device of the kernel module.
    is_kernel: bool,
}

/// Driver number of a device that has no kernel driver (`RDMA_DRIVER_UNKNOWN`).
const NO_DRIVER: u32 = 0;

/// Whether this plugin drives the device: by the module's driver number, or by name if there is no
/// kernel driver.
unsafe extern "C" fn match_device(sysfs: *mut verbs_sysfs_dev) -> bool {
    // SAFETY: libibverbs passes a device that it has read; its name is NUL-terminated.
    let name = unsafe { CStr::from_ptr(addr_of_mut!((*sysfs).ibdev_name).cast::<c_char>()) };
    // SAFETY: libibverbs passes a device that it has read; its name is NUL-terminated.
    match unsafe { (*sysfs).driver_id } {
        DRIVER_ID => true,
        NO_DRIVER => name.to_bytes().starts_with(DEVICE_PREFIX),
        _ => false,
    }
}

unsafe extern "C" fn alloc_device(sysfs: *mut verbs_sysfs_dev) -> *mut verbs_device {
    let _uncancelled = Disabled::new();
    // SAFETY: calloc has no precondition; zero is a valid value of every field.
    let device: *mut Device = unsafe { libc::calloc(1, size_of::<Device>()).cast() };
    if device.is_null() {
        return null_mut();
    }
    // SAFETY: libibverbs passes a device that it has read; its name is NUL-terminated.
    let (driver, command_file) = unsafe {
        let name = addr_of_mut!((*sysfs).sysfs_name).cast::<c_char>();
        ((*sysfs).driver_id, CStr::from_ptr(name))
    };
    let is_kernel = driver == DRIVER_ID;
    // SAFETY: no other reference to the new structure exists yet.
    unsafe { (*device).is_kernel = is_kernel };
    if is_kernel {
        // No panic may reach libibverbs, and opening the device tries again.
        let _ = std::panic::catch_unwind(|| early::attach(command_file));
    }
    device.cast()
}

unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: alloc_device allocated it, and libibverbs drops the last reference.
    unsafe { libc::free(device.cast()) };
}

/// Opens the device; takes ownership of `cmd_fd`, also on failure.
unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut verbs_context {
    let _uncancelled = Disabled::new();
    // SAFETY: libibverbs passes a device from alloc_device; the file is open.
    unsafe {
        let opened = ffi::caught(|| {
            if (*device.cast::<Device>()).is_kernel {
                open_kernel(BorrowedFd::borrow_raw(cmd_fd))
            } else {
                open_stand_in()
            }
        });
        verbs_context_of(make_context(device, cmd_fd, opened))
    }
}

/// The `verbs_context` around this public structure; null for null.
///
/// # Safety
/// `public` came from [`make_context`].
unsafe fn verbs_context_of(public: *mut ibv_context) -> *mut verbs_context {
    if public.is_null() {
        return null_mut();
    }
    // SAFETY: by the caller's promise.
    unsafe { Context::from_ptr(public).library.verbs_context(public) }
}

/// Opens the device again through a duplicate of an open context's file; takes ownership of
/// `cmd_fd`, also on failure. Objects belong to the process, so the objects of the other context
/// can be imported. libibverbs then asks that file for the descriptor of asynchronous events.
unsafe extern "C" fn import_context(device: *mut ibv_device, cmd_fd: c_int) -> *mut verbs_context {
    let _uncancelled = Disabled::new();
    // SAFETY: libibverbs passes a device from alloc_device; the file is open.
    unsafe {
        let opened = ffi::caught(|| {
            if (*device.cast::<Device>()).is_kernel {
                return Err(VerbsError::NotSupported);
            }
            open_stand_in()
        });
        let public = make_context(device, cmd_fd, opened);
        if !public.is_null() {
            let read_end = std::mem::replace(&mut (*public).async_fd, -1);
            front::offer_async_file(cmd_fd, OwnedFd::from_raw_fd(read_end));
        }
        verbs_context_of(public)
    }
}

/// Creates the context from `opened` and returns its public structure. If opening failed, closes
/// `cmd_fd` and returns null.
///
/// # Safety
/// As [`alloc_context`].
unsafe fn make_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    opened: Result<Opened, VerbsError>,
) -> *mut ibv_context {
    let (engine, backend, read_end) = match opened {
        Ok(parts) => parts,
        Err(error) => {
            if cmd_fd >= 0 {
                // SAFETY: the descriptor was passed to this function.
                unsafe { libc::close(cmd_fd) };
            }
            set_errno(error.errno());
            return null_mut();
        }
    };
    // The kernel answers libibverbs' own commands only if they carry the driver number.
    let driver = match backend {
        Backend::Kernel(_) => DRIVER_ID,
        Backend::StandIn(_) => NO_DRIVER,
    };
    // SAFETY: libibverbs passes a listed device of this plugin.
    let library = unsafe { Library::of_device(device) };
    let room_octets = size_of::<Context>() - size_of::<ibv_context>();
    // SAFETY: the device belongs to this copy.
    let made = unsafe { library.make_context(device, cmd_fd, room_octets, driver) };
    let context: *mut Context = match made {
        Ok(public) => public.cast(),
        Err(NoContext::Refused) => return null_mut(),
        Err(NoContext::UnknownLayout) => {
            eprintln!("urdma: {}", library.unknown_layout());
            set_errno(VerbsError::NotSupported.errno());
            return null_mut();
        }
    };
    // SAFETY: the allocation holds a `Context`. libibverbs has initialized its first field; the
    // other fields are initialized here, before any use.
    unsafe {
        addr_of_mut!((*context).library).write(library);
        addr_of_mut!((*context).objects).write(Objects::new(engine.clone()));
        addr_of_mut!((*context).engine).write(engine);
        addr_of_mut!((*context).backend).write(backend);
        let public: *mut ibv_context = context.cast();
        (*public).async_fd = std::os::fd::IntoRawFd::into_raw_fd(read_end);
        if let Backend::StandIn(events) = &(*context).backend {
            front::enter_async_events((*public).async_fd, events.channel());
        }
        (*public).num_comp_vectors = COMP_VECTORS;
        public
    }
}

/// The parts of an opened context; libibverbs reads asynchronous events from the descriptor.
type Opened = (Arc<Engine>, Backend, OwnedFd);

/// Opens a context of the kernel module and attaches to the urdmad that serves the device; prints a
/// failure to standard error.
fn open_kernel(cmd_fd: BorrowedFd<'_>) -> Result<Opened, VerbsError> {
    let opened = Uverbs::open(cmd_fd).map_err(|error| {
        eprintln!("urdma: {}", uverbs::explain(&error));
        VerbsError::System(error.raw_os_error().unwrap_or(libc::EIO))
    })?;
    let run_dir = RunDir::at(opened.uverbs.run_dir());
    let engine = front::attach_to(&run_dir).map_err(VerbsError::System)?;
    // The kernel itself reports that urdmad is gone.
    Ok((
        engine,
        Backend::Kernel(Arc::new(opened.uverbs)),
        opened.async_fd,
    ))
}

/// Attaches to urdmad and creates the queue of asynchronous events; prints a failure to standard
/// error.
fn open_stand_in() -> Result<Opened, VerbsError> {
    let engine = front::attach().map_err(VerbsError::System)?;
    let (events, read_end) = AsyncQueue::new()?;
    let driven: Weak<Engine> = Arc::downgrade(&engine);
    events.channel().use_engine(driven);
    let sink: Arc<dyn EventSink> = events.clone();
    engine.add_device_sink(&sink);
    Ok((engine, Backend::StandIn(events), read_end))
}

/// Closes the device. Objects that the application has not destroyed keep the engine until the
/// process ends.
unsafe extern "C" fn free_context(context: *mut ibv_context) {
    let _uncancelled = Disabled::new();
    // SAFETY: as in `Context::from_ptr`; libibverbs calls this once and does not use the context
    // afterwards.
    unsafe {
        front::withdraw_async_file((*context).cmd_fd);
        let ours = context.cast::<Context>();
        let library = (*ours).library;
        std::ptr::drop_in_place(addr_of_mut!((*ours).objects));
        std::ptr::drop_in_place(addr_of_mut!((*ours).engine));
        std::ptr::drop_in_place(addr_of_mut!((*ours).backend));
        library.free_context(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device_named(name: &[u8], driver_id: u32) -> bool {
        // SAFETY: zero is a valid value of every field.
        let mut sysfs: verbs_sysfs_dev = unsafe { std::mem::zeroed() };
        for (to, from) in sysfs.ibdev_name.iter_mut().zip(name) {
            *to = from.cast_signed();
        }
        sysfs.driver_id = driver_id;
        // SAFETY: the name is NUL-terminated.
        unsafe { match_device(&mut sysfs) }
    }

    #[test]
    fn match_device_takes_ours_and_no_other() {
        assert!(device_named(b"urdma0", NO_DRIVER));
        assert!(device_named(b"urdma_b", NO_DRIVER));
        assert!(!device_named(b"mlx5_0", NO_DRIVER));
        assert!(!device_named(b"", NO_DRIVER));
        // With a kernel driver the driver number decides, whatever the name.
        assert!(device_named(b"rnic0", DRIVER_ID));
        assert!(!device_named(b"urdma0", 1));
    }
}
