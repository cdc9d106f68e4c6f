//! The paths that the stand-in handles: the device files, and the redirected parts of sysfs.

use std::ffi::{c_char, CStr};

use crate::active;
use crate::device::Device;

/// Longest path, with its final zero.
const PATH_OCTETS: usize = 4096;

/// Classification of a path.
#[allow(clippy::large_enum_variant)] // lives on the stack of the rare calls that need it
pub(crate) enum Target {
    /// Any other path.
    Other,
    /// A device file.
    Device(Device),
    /// A redirected path in sysfs.
    Redirected(Redirected),
    /// A redirected path in sysfs whose new path is too long.
    TooLong,
}

/// The path to use instead.
pub(crate) struct Redirected([u8; PATH_OCTETS]);

impl Redirected {
    /// As a C string.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// The directory in which libibverbs looks for devices, below sysfs or its replacement.
const VERBS_CLASS: &[u8] = b"/class/infiniband_verbs";

/// Whether the path is the directory in which libibverbs looks for devices; false for null.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn is_verbs_class(path: *const c_char) -> bool {
    // SAFETY: the caller guarantees it.
    !path.is_null()
        && unsafe { CStr::from_ptr(path) }
            .to_bytes()
            .ends_with(VERBS_CLASS)
}

/// Classifies a path; null is [`Target::Other`].
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn look(path: *const c_char) -> Target {
    // SAFETY: the caller guarantees it.
    if !unsafe { is_candidate(path) } || !active::is_active() {
        return Target::Other;
    }
    // SAFETY: `path` is not null, so it is a C string.
    classify(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Whether the path starts with `/dev/i`, `/sys/c` or `/sys/d`: the fast check before [`look`].
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub(crate) unsafe fn is_candidate(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    let octets: *const u8 = path.cast();
    // Each octet is read only if the one before it was not the terminating zero.
    let starts = |prefix: &[u8; 6]| {
        prefix.iter().enumerate().all(|(i, &wanted)| {
            // SAFETY: the octets before this one belong to the string and are not zero.
            unsafe { *octets.add(i) == wanted }
        })
    };
    starts(b"/dev/i") || starts(b"/sys/c") || starts(b"/sys/d")
}

#[cold]
fn classify(path: &[u8]) -> Target {
    match path {
        b"/dev/infiniband/uverbs0" => return Target::Device(Device::Uverbs),
        b"/dev/infiniband/rdma_cm" => return Target::Device(Device::RdmaCm),
        _ => {}
    }
    // The last one is the target of the links below the first, for programs that resolve them
    // themselves.
    let ours = [
        &b"/sys/class/infiniband"[..],
        b"/sys/class/misc/rdma_cm",
        b"/sys/devices/urdma",
    ];
    let Some(sysfs) = active::sysfs().filter(|_| ours.iter().any(|p| path.starts_with(p))) else {
        return Target::Other;
    };
    redirect(sysfs, path.get(b"/sys".len()..).unwrap_or_default())
}

fn redirect(sysfs: &[u8], rest: &[u8]) -> Target {
    let mut octets = [0; PATH_OCTETS];
    let len = sysfs.len() + rest.len();
    if len >= PATH_OCTETS {
        return Target::TooLong;
    }
    octets[..sysfs.len()].copy_from_slice(sysfs);
    octets[sysfs.len()..len].copy_from_slice(rest);
    Target::Redirected(Redirected(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(target: &Target) -> Option<&str> {
        match target {
            Target::Redirected(path) => {
                // SAFETY: the array ends in zeros.
                let path = unsafe { CStr::from_ptr(path.as_ptr()) };
                Some(path.to_str().unwrap())
            }
            _ => None,
        }
    }

    #[test]
    fn path_below_sysfs_is_moved() {
        let moved = redirect(b"/run/x/sysfs", b"/class/infiniband/urdma0/node_guid");
        assert_eq!(
            text(&moved),
            Some("/run/x/sysfs/class/infiniband/urdma0/node_guid")
        );
    }

    #[test]
    fn path_too_long_when_moved_is_reported() {
        let long = vec![b'a'; PATH_OCTETS - 4];
        assert!(matches!(redirect(b"/run", &long), Target::TooLong));
    }

    #[test]
    fn device_files_are_recognised_exactly() {
        for (path, expected) in [
            ("/dev/infiniband/uverbs0", Some(Device::Uverbs)),
            ("/dev/infiniband/rdma_cm", Some(Device::RdmaCm)),
            ("/dev/infiniband/uverbs01", None),
            ("/dev/infiniband", None),
        ] {
            let found = match classify(path.as_bytes()) {
                Target::Device(device) => Some(device),
                _ => None,
            };
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn candidate_test_stops_at_the_end_of_the_string() {
        for (path, expected) in [
            (c"", false),
            (c"/", false),
            (c"/dev/", false),
            (c"/dev/i", true),
            (c"/sys/class", true),
            (c"/sys/devices", true),
            (c"/sys/block", false),
        ] {
            // SAFETY: a C string.
            assert_eq!(unsafe { is_candidate(path.as_ptr()) }, expected);
        }
        // SAFETY: null is allowed.
        assert!(!unsafe { is_candidate(std::ptr::null()) });
    }
}
