//! Users and their groups, by the system's database.

use std::ffi::CString;

use nix::unistd::{getgrouplist, Gid, Uid, User};

use crate::config::LeaseGroup;

/// Whether a user may have a lease: the owner, root, and the members of `group`.
///
/// # Errors
/// Why not, as a sentence.
pub(crate) fn may_lease(uid: u32, group: &LeaseGroup) -> Result<(), String> {
    if uid == 0 || uid == Uid::effective().as_raw() {
        return Ok(());
    }
    let name = &group.name;
    match groups_of(uid) {
        Ok(Some(groups)) if groups.contains(&group.gid) => Ok(()),
        Ok(Some(_)) => Err(format!(
            "user {uid} is not a member of group \"{name}\", to which port.lease_group limits \
             leases"
        )),
        Ok(None) => Err(format!(
            "user {uid} has no account, and port.lease_group limits leases to group \"{name}\""
        )),
        Err(reason) => Err(format!(
            "cannot find out whether user {uid} is a member of group \"{name}\": {reason}"
        )),
    }
}

/// The primary and the supplementary groups of a user; `None` without an account.
fn groups_of(uid: u32) -> Result<Option<Vec<Gid>>, String> {
    let user = User::from_uid(Uid::from_raw(uid)).map_err(|errno| errno.desc().to_owned())?;
    let Some(user) = user else { return Ok(None) };
    let name = CString::new(user.name).map_err(|error| error.to_string())?;
    let groups = getgrouplist(&name, user.gid).map_err(|errno| errno.desc().to_owned())?;
    Ok(Some(groups))
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
        let refused = may_lease(uid("nobody"), &group("daemon")).unwrap_err();
        assert!(
            refused.contains("is not a member of group \"daemon\""),
            "{refused}"
        );
        let refused = may_lease(64_001, &group("daemon")).unwrap_err();
        assert!(refused.contains("has no account"), "{refused}");
    }
}
