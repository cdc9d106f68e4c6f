//! Users and their groups, by the system's database.

use std::ffi::{CString, NulError};

use nix::errno::Errno;
use nix::unistd::{getgrouplist, Gid, Uid, User};
use thiserror::Error;

use crate::config::LeaseGroup;

/// Why a user has no lease.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum NotPermitted {
    #[error(
        "user {uid} is not a member of group \"{group}\", to which port.lease_group limits leases"
    )]
    NoMember { uid: u32, group: String },
    #[error("user {uid} has no account, and port.lease_group limits leases to group \"{group}\"")]
    NoAccount { uid: u32, group: String },
    #[error("cannot find out whether user {uid} is a member of group \"{group}\": {reason}")]
    Unknown {
        uid: u32,
        group: String,
        reason: DatabaseError,
    },
}

/// Why the system's database does not tell the groups of a user.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum DatabaseError {
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    #[error(transparent)]
    Name(#[from] NulError),
}

/// Whether a user may have a lease: the owner, root, and the members of `group`.
///
/// # Errors
/// He may not.
pub(crate) fn may_lease(uid: u32, group: &LeaseGroup) -> Result<(), NotPermitted> {
    if uid == 0 || uid == Uid::effective().as_raw() {
        return Ok(());
    }
    let name = group.name.clone();
    match groups_of(uid) {
        Ok(Some(groups)) if groups.contains(&group.gid) => Ok(()),
        Ok(Some(_)) => Err(NotPermitted::NoMember { uid, group: name }),
        Ok(None) => Err(NotPermitted::NoAccount { uid, group: name }),
        Err(reason) => Err(NotPermitted::Unknown {
            uid,
            group: name,
            reason,
        }),
    }
}

/// The primary and the supplementary groups of a user; `None` without an account.
fn groups_of(uid: u32) -> Result<Option<Vec<Gid>>, DatabaseError> {
    let user = User::from_uid(Uid::from_raw(uid))?;
    let Some(user) = user else { return Ok(None) };
    let name = CString::new(user.name)?;
    Ok(Some(getgrouplist(&name, user.gid)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::Group;

    fn group(name: &str) -> LeaseGroup {
        let gid = Group::from_name(name).unwrap().unwrap().gid;
        let name = name.to_owned();
        LeaseGroup { name, gid }
    }

    fn uid(name: &str) -> u32 {
        User::from_name(name).unwrap().unwrap().uid.as_raw()
    }

    #[test]
    fn owner_root_and_members_may_lease() {
        assert_eq!(may_lease(0, &group("daemon")), Ok(()));
        let own = Uid::effective().as_raw();
        assert_eq!(may_lease(own, &group("daemon")), Ok(()));
        assert_eq!(may_lease(uid("daemon"), &group("daemon")), Ok(()));
    }

    #[test]
    fn others_are_told_who_may_lease() {
        let refused = may_lease(uid("nobody"), &group("daemon"))
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("is not a member of group \"daemon\""),
            "{refused}"
        );
        let refused = may_lease(64_001, &group("daemon")).unwrap_err().to_string();
        assert!(refused.contains("has no account"), "{refused}");
    }
}
