//! The objects that the dynamic linker has loaded, and where.
//!
//! dladdr(3) would say whose an address is, but looks for the nearest of the object's symbols each
//! time.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void, CStr, CString};
use std::ops::Range;

use super::symbols;

/// A loaded object.
#[derive(Debug)]
pub(super) struct Object {
    /// The name by which dlopen finds it; the program's is empty.
    pub(super) name: CString,
    /// From its first to its last address.
    pub(super) at: Range<usize>,
    /// False if it has no symbol of the name that was looked for.
    may_have: bool,
}

/// All of them at one moment.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// How many objects had been loaded since the program began.
    pub(super) loads: u64,
    list: Vec<Object>,
    /// Of the name that is looked for.
    hash: u32,
}

impl Objects {
    /// Those that are loaded now; looks which of them may have a symbol `name`, without asking the
    /// dynamic linker, which searches the dependencies of each object too.
    pub(super) fn loaded(name: &CStr) -> Self {
        unsafe extern "C" fn collect(
            object: *mut libc::dl_phdr_info,
            _size: usize,
            objects: *mut c_void,
        ) -> c_int {
            // SAFETY: the dynamic linker passes an object, and the list that it was given.
            let (object, objects) = unsafe { (&*object, &mut *objects.cast::<Objects>()) };
            objects.loads = object.dlpi_adds;
            if !object.dlpi_name.is_null() {
                // SAFETY: not null, so a C string.
                let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_owned();
                let headers = headers(object);
                objects.list.push(Object {
                    name,
                    at: addresses(object, headers),
                    may_have: symbols::may_have(object.dlpi_addr, headers, objects.hash),
                });
            }
            0
        }
        let mut objects = Self {
            hash: symbols::hash(name),
            ..Self::default()
        };
        // SAFETY: `collect` takes the list that is passed to it.
        unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut objects).cast()) };
        objects
    }

    /// The names of those that may have the symbol.
    pub(super) fn names(&self) -> impl Iterator<Item = &CStr> {
        let able = self.list.iter().filter(|object| object.may_have);
        able.map(|object| object.name.as_c_str())
    }

    /// The object that has this address.
    pub(super) fn of(&self, address: usize) -> Option<&Object> {
        self.list.iter().find(|object| object.at.contains(&address))
    }
}

/// The program headers of an object.
fn headers(object: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    match object.dlpi_phdr.is_null() {
        true => &[],
        // SAFETY: the dynamic linker passes `dlpi_phnum` headers, which stay as long as the object.
        false => unsafe {
            std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum))
        },
    }
}

/// The addresses of an object's segments, from the first to the last.
fn addresses(object: &libc::dl_phdr_info, headers: &[libc::Elf64_Phdr]) -> Range<usize> {
    let base = address(object.dlpi_addr);
    let loaded = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD);
    let ranges = loaded.map(|header| {
        let start = base.wrapping_add(address(header.p_vaddr));
        start..start.wrapping_add(address(header.p_memsz))
    });
    let all = ranges.reduce(|all, range| all.start.min(range.start)..all.end.max(range.end));
    all.unwrap_or(0..0)
}

fn address(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_objects_that_have_them() {
        let objects = Objects::loaded(c"getpid");
        assert!(objects.loads > 0);
        let name_of = |address| {
            objects
                .of(address)
                .map(|object| object.name.to_str().unwrap())
        };
        assert_eq!(name_of(address as fn(u64) -> usize as usize), Some(""));
        let libc = name_of(libc::getpid as *const () as usize).unwrap();
        assert!(libc.contains("libc.so"), "{libc}");
        assert!(objects.names().any(|name| name.to_str() == Ok(libc)));
        assert_eq!(name_of(0), None);
    }
}
