//! Whether a loaded object has a symbol, by its table of hashes (DT_GNU_HASH).

use std::ffi::CStr;

/// `DT_GNU_HASH`.
const TABLE: u64 = 0x6fff_fef5;
/// The end of a dynamic section.
const END: u64 = 0;

/// An entry of a dynamic section, `Elf64_Dyn`.
#[repr(C)]
struct Entry {
    tag: u64,
    value: u64,
}

/// The hash of a name.
pub(super) fn hash(name: &CStr) -> u32 {
    let octets = name.to_bytes().iter();
    octets.fold(5381, |hash: u32, &octet| {
        hash.wrapping_mul(33).wrapping_add(u32::from(octet))
    })
}

/// Whether the object at `base` with these headers may define a symbol with this hash; true also
/// for one without a table. Names with the same hash are rare.
pub(super) fn may_have(base: u64, headers: &[libc::Elf64_Phdr], hash: u32) -> bool {
    let dynamic = headers
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC);
    let Some(dynamic) = dynamic else {
        return false;
    };
    let mut entry = at::<Entry>(base.wrapping_add(dynamic.p_vaddr));
    loop {
        // SAFETY: the dynamic section of a loaded object, which ends in an entry END.
        let Entry { tag, value } = unsafe { entry.read() };
        match tag {
            END => return true,
            // glibc has replaced offsets by addresses, but for objects of the kernel.
            TABLE if value < base => return has(at(base.wrapping_add(value)), hash),
            TABLE => return has(at(value), hash),
            // SAFETY: not the last entry.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}

/// What is at an address of the process.
fn at<T>(address: u64) -> *const T {
    std::ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0))
}

/// Whether a table has a hash.
fn has(table: *const u32, hash: u32) -> bool {
    // SAFETY: `index` is within the table of a loaded object, in each use below.
    let word = |index: usize| unsafe { table.add(index).read() };
    let [buckets, first, blooms] = [0, 1, 2].map(|index| word(index) as usize);
    // Four words, words of 64 bits that show most absent hashes, the first symbol of each bucket,
    // and the hash of each symbol from the symbol `first` on, with bit 0 for the last of a bucket.
    let starts = 4 + 2 * blooms;
    if buckets == 0 {
        return false;
    }
    let mut symbol = word(starts + hash as usize % buckets) as usize;
    while symbol >= first {
        let found = word(starts + buckets + symbol - first);
        if found | 1 == hash | 1 {
            return true;
        }
        if found & 1 == 1 {
            return false;
        }
        symbol += 1;
    }
    false
}
