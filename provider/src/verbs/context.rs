//! The context: an opened device, its objects, and the objects that calls name.

use std::cell::UnsafeCell;
use std::sync::Arc;

use rdma_core_sys::verbs::ibv_context;

use super::backend::Backend;
use super::errno::VerbsError;
use super::library::Library;
use super::objects::{Object, Objects, Public};
use urdma_engine::Engine;

/// An opened device. libibverbs allocates it; in front of it is libibverbs' private part, whose
/// size depends on the version.
#[repr(C)]
pub(super) struct Context {
    public: UnsafeCell<ibv_context>,
    /// The copy of libibverbs to which it belongs.
    pub(super) library: &'static Library,
    /// This process's engine.
    pub(super) engine: Arc<Engine>,
    /// The device backend, which creates objects and delivers events.
    pub(super) backend: Backend,
    /// Objects that were created and not destroyed.
    pub(super) objects: Objects,
}

impl Context {
    /// The object whose public structure is `context`.
    ///
    /// # Safety
    /// `context` is of this device and stays open while the reference lives.
    #[inline]
    pub(super) unsafe fn from_ptr<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: opening the device initialized the fields behind the public structure.
        unsafe { &*context.cast::<Context>() }
    }
}

/// The context through which libibverbs has called with the object `named`.
///
/// # Safety
/// libibverbs has called the plugin through the context that the structure names.
pub(super) unsafe fn context_of<'a, P: Public>(named: *mut P) -> &'a Context {
    // SAFETY: libibverbs has read the same field of the structure to find the plugin, so the field
    // is readable and refers to an open context of this plugin.
    unsafe { Context::from_ptr((*named).context()) }
}

/// The object that a call is about, and its context.
///
/// # Errors
/// As [`Objects::find`].
///
/// # Safety
/// As [`context_of`] and [`Objects::find`].
pub(super) unsafe fn named<'a, T: Object>(
    public: *mut T::Public,
) -> Result<(&'a Context, &'a T), VerbsError> {
    // SAFETY: by the caller's promise.
    unsafe {
        let context = context_of(public);
        Ok((context, context.objects.find(public)?))
    }
}

/// Destroys the object that a call is about, unless `release` fails.
///
/// # Errors
/// As [`named`], or those of `release`.
///
/// # Safety
/// As [`context_of`]; no other thread uses the object.
pub(super) unsafe fn destroy<T: Object>(
    public: *mut T::Public,
    release: impl FnOnce(&T) -> Result<(), VerbsError>,
) -> Result<(), VerbsError> {
    // SAFETY: by the caller's promise.
    unsafe { context_of(public).objects.destroy(public, release) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_part_of_a_context_is_first() {
        assert_eq!(std::mem::offset_of!(Context, public), 0);
        assert!(align_of::<Context>() <= size_of::<usize>());
    }
}
