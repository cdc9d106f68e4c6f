//! The objects of a context. Control calls look up the object that the application names, as a
//! kernel driver does by handle. A destroyed object, a copy of a public structure or an object of
//! another kind is refused with EINVAL and not accessed. Posting and polling look nothing up.
//!
//! The key of the table is the address, because the handle is in memory that may not be an
//! object's; only the table knows. The handle is compared afterwards, so that a structure with
//! another handle is refused as well.
//!
//! libibverbs reads the context from a public structure before it calls the plugin, also if the
//! object is destroyed a second time. The memory of a destroyed object is therefore kept with its
//! public structure unchanged, while everything else of the object is released: for the
//! [`RETIRED_MAX`] objects of each context that were destroyed last, until the context is closed.
//! The bound limits the memory of programs that create and destroy objects continuously. Using a
//! pointer to an object that was destroyed earlier is undefined, as it is with other providers
//! immediately.

use std::alloc::{dealloc, Layout};
use std::any::{Any, TypeId};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rdma_core_sys::verbs::{
    ibv_ah, ibv_context, ibv_cq, ibv_dm, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_srq, ibv_td, ibv_xrcd,
};

use super::errno::VerbsError;
use urdma_engine::{Engine, EngineError};

/// Number of destroyed objects per context whose memory is kept. The largest is less than 1 KB. A
/// program that makes connections all the time goes through all of that memory, which therefore is
/// to fit into a processor's own caches beside what else the program uses.
const RETIRED_MAX: usize = 64;

/// Attempts of a forked child to take a lock that another of its threads may hold briefly.
const TRIES_IN_CHILD: u32 = 1000;

/// The public structure of an object, as libibverbs and the application know it.
pub(super) trait Public {
    /// The context through which libibverbs calls.
    fn context(&self) -> *mut ibv_context;
    /// The handle; 0 for a structure without one.
    fn handle(&self) -> u32;
}

macro_rules! public {
    ($($structure:ty $(, $handle:ident)?;)*) => {$(
        impl Public for $structure {
            fn context(&self) -> *mut ibv_context {
                self.context
            }

            fn handle(&self) -> u32 {
                0 $(+ self.$handle)?
            }
        }
    )*};
}

public! {
    ibv_pd, handle;
    ibv_mr, handle;
    ibv_mw, handle;
    ibv_cq, handle;
    ibv_srq, handle;
    ibv_qp, handle;
    ibv_ah, handle;
    ibv_dm, handle;
    ibv_td;
    ibv_xrcd;
}

/// An object of the plugin.
///
/// # Safety
/// The type is `repr(C)` and begins with the public structure, which is unchanged when a value is
/// dropped.
pub(super) unsafe trait Object: Any {
    /// Its public structure.
    type Public: Public;
}

/// The table's entry of an object.
#[derive(Debug)]
struct Entry {
    kind: TypeId,
    handle: u32,
}

/// Memory of a destroyed object, freed on drop.
struct Retired {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns the memory.
unsafe impl Send for Retired {}

impl Retired {
    /// Destroys an object and keeps its memory.
    ///
    /// # Safety
    /// The object came out of a box and is not in use.
    unsafe fn new<T>(object: NonNull<T>) -> Self {
        // SAFETY: by the caller's promise.
        unsafe { object.drop_in_place() };
        Self {
            start: object.cast(),
            layout: Layout::new::<T>(),
        }
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: a box allocated it with this layout and was consumed.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[derive(Default)]
struct Table {
    live: BTreeMap<usize, Entry>,
    /// The newest is the last.
    retired: VecDeque<Retired>,
}

/// The objects of a context.
pub(super) struct Objects {
    engine: Arc<Engine>,
    table: Mutex<Table>,
    handles: AtomicU32,
}

impl Objects {
    /// An empty table.
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            table: Mutex::new(Table::default()),
            handles: AtomicU32::new(0),
        }
    }

    /// A handle for an object without a number of its own.
    pub(super) fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    fn table(&self) -> Result<MutexGuard<'_, Table>, VerbsError> {
        if self.engine.is_forked() {
            return self.table_in_child();
        }
        Ok(self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the table in a forked child, which has its own copies of objects that are memory only
    /// (device memory). It inherits the lock in its state at the fork: a thread of the parent that
    /// held it does not exist in the child to release it.
    #[cold]
    fn table_in_child(&self) -> Result<MutexGuard<'_, Table>, VerbsError> {
        for _ in 0..TRIES_IN_CHILD {
            match self.table.try_lock() {
                Ok(table) => return Ok(table),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        Err(VerbsError::Engine(EngineError::Forked))
    }

    /// Adds an object and returns its public structure.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub(super) fn add<T: Object>(&self, object: Box<T>) -> Result<*mut T::Public, VerbsError> {
        let mut table = self.table()?;
        let public = Box::into_raw(object).cast::<T::Public>();
        let entry = Entry {
            kind: TypeId::of::<T>(),
            // SAFETY: the object begins with the structure.
            handle: unsafe { (*public).handle() },
        };
        table.live.insert(public.addr(), entry);
        Ok(public)
    }

    /// The object that the application names.
    ///
    /// # Errors
    /// [`VerbsError::NoObject`]: the address has no object of this kind, or one with another
    /// handle.
    ///
    /// # Safety
    /// No other thread destroys the object while the reference lives.
    pub(super) unsafe fn find<'a, T: Object>(
        &self,
        named: *mut T::Public,
    ) -> Result<&'a T, VerbsError> {
        let table = self.table()?;
        let entry = table.live.get(&named.addr()).ok_or(VerbsError::NoObject)?;
        if entry.kind != TypeId::of::<T>() {
            return Err(VerbsError::NoObject);
        }
        // SAFETY: by the table an object of this type lives at the address.
        let (object, public) = unsafe { (&*named.cast::<T>(), &*named) };
        if public.handle() != entry.handle {
            return Err(VerbsError::NoObject);
        }
        Ok(object)
    }

    /// As [`Objects::find`], for a pointer that may be null.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn find_if_any<'a, T: Object>(
        &self,
        named: *mut T::Public,
    ) -> Result<Option<&'a T>, VerbsError> {
        if named.is_null() {
            return Ok(None);
        }
        // SAFETY: by the caller's promise.
        unsafe { self.find(named) }.map(Some)
    }

    /// Destroys the object that the application names, unless `release` fails. Concurrent calls
    /// with the object find nothing.
    ///
    /// # Errors
    /// As [`Objects::find`], or those of `release`.
    ///
    /// # Safety
    /// No other thread uses the object.
    pub(super) unsafe fn destroy<T: Object>(
        &self,
        named: *mut T::Public,
        release: impl FnOnce(&T) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        // SAFETY: by the caller's promise.
        let object = unsafe { self.find::<T>(named) }?;
        let memory = NonNull::new(named.cast::<T>()).ok_or(VerbsError::NoObject)?;
        // Of two threads that destroy one object only one passes this point.
        let entry = self.table()?.live.remove(&named.addr());
        let entry = entry.ok_or(VerbsError::NoObject)?;
        if let Err(error) = release(object) {
            self.table()?.live.insert(named.addr(), entry);
            return Err(error);
        }
        // SAFETY: `add` took the object out of a box, and it is no longer in the table.
        let memory = unsafe { Retired::new(memory) };
        let mut table = self.table()?;
        table.retired.push_back(memory);
        let oldest = (table.retired.len() > RETIRED_MAX).then(|| table.retired.pop_front());
        drop(table);
        drop(oldest);
        Ok(())
    }
}
