//! Loading of a library of ours that provides a table of C functions.

use std::ffi::{c_char, c_int, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A table of C functions.
///
/// # Safety
/// The type is `repr(C)` and its first fields are [`Head`]'s. Libraries export a function named
/// [`Table::SYMBOL`], of type [`TableFn`], which returns null or a table that begins with a
/// [`Head`] and lives as long as the library; with these size and version it is a `Self`.
pub unsafe trait Table: Sized + 'static {
    /// Name of the function that returns the table.
    const SYMBOL: &'static CStr;
    /// Version of the declarations.
    const VERSION: u32;
}

/// Type of the function that returns a table.
pub type TableFn<T> = unsafe extern "C" fn() -> *const T;

/// What every version of every table begins with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Size of the table in octets.
    pub size: u32,
    /// Version of its declarations.
    pub version: u32,
}

/// Whether a library's other symbols are visible to libraries that are loaded later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// They are not.
    Local,
    /// They are, and so are those of the libraries that it needs.
    Global,
}

/// Why a library was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// There is no such file.
    Missing(PathBuf),
    /// The dynamic linker's reason, which names the file.
    Linker(String),
    /// The library is not one of ours, or of another version: its path.
    OtherVersion(PathBuf),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "there is no {}", path.display()),
            Self::Linker(reason) => write!(f, "cannot load {reason}"),
            Self::OtherVersion(path) => {
                write!(f, "{} is of another version of urdma", path.display())
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// Loads a library, which is never unloaded, and returns its table.
///
/// # Errors
/// See [`LoadError`].
pub fn load<T: Table>(path: &Path, visibility: Visibility) -> Result<&'static T, LoadError> {
    let other = || LoadError::OtherVersion(path.to_owned());
    if path.is_absolute() && !path.exists() {
        return Err(LoadError::Missing(path.to_owned()));
    }
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| LoadError::Missing(path.to_owned()))?;
    let scope: c_int = match visibility {
        Visibility::Local => libc::RTLD_LOCAL,
        Visibility::Global => libc::RTLD_GLOBAL,
    };
    // SAFETY: loading runs the initialisers of the library and of those that it needs, which
    // register DPDK's drivers.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | scope) };
    if library.is_null() {
        return Err(LoadError::Linker(linker_error()));
    }
    // SAFETY: the library is loaded and never unloaded.
    let symbol = unsafe { libc::dlsym(library, T::SYMBOL.as_ptr()) };
    if symbol.is_null() {
        return Err(other());
    }
    // SAFETY: a function of this name has this type, as `Table` states.
    let function: TableFn<T> = unsafe { std::mem::transmute(symbol) };
    // SAFETY: the function has no preconditions.
    let table = unsafe { function() };
    // SAFETY: null, or a table, which begins with a head and is never freed.
    let head = unsafe { table.cast::<Head>().as_ref() }.ok_or_else(other)?;
    if head.version != T::VERSION || usize::try_from(head.size) != Ok(size_of::<T>()) {
        return Err(other());
    }
    // SAFETY: not null, of this size and version, and never freed.
    Ok(unsafe { &*table })
}

/// Why the last call of the dynamic linker in this thread failed.
fn linker_error() -> String {
    // SAFETY: the function returns null or a string of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "a library, for an unknown reason".to_owned();
    }
    // SAFETY: not null, and valid until the next call of the dynamic linker in this thread.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Stores a text for a caller in C: cut to `octets`, and terminated by a zero octet.
///
/// # Safety
/// `to` is null or has room for `octets`.
pub unsafe fn store_text(text: &str, to: *mut c_char, octets: usize) {
    if to.is_null() || octets == 0 {
        return;
    }
    let kept = text.len().min(octets - 1);
    // SAFETY: `kept` octets and one more fit.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, kept) };
    // SAFETY: `kept` octets and one more fit.
    unsafe { to.add(kept).write(0) };
}
