//! Limits on the number of control connections, by user.

use std::fs;

use nix::sys::resource::{getrlimit, Resource};
use urdma_ipc::{Refusal, RefusalKind};

use crate::config::Quota;
use crate::fair;

/// Connections beyond `quota.connections` that only the owner and root can have.
const FOR_OWNER: usize = 8;
/// Further connections that only root can have.
const FOR_ROOT: usize = 16;
/// A connection, its pidfd, the socket that wakes its process, and the end of a channel that it has
/// deposited; or descriptors of a client that are being closed.
const FDS_EACH: usize = 6;
/// Descriptors that urdmad needs for other purposes, beside those that are open at the start.
const FDS_FOR_OTHERS: usize = 16;

/// The limits on control connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    owner: u32,
    /// For all users but the owner and root.
    members: usize,
    /// Of one of these, if the configuration limits them.
    per_user: Option<u16>,
    for_owner: usize,
    for_root: usize,
    /// RLIMIT_NOFILE allows fewer than the configuration.
    are_short_of_fds: bool,
}

impl Places {
    /// The limits by the configuration and RLIMIT_NOFILE, for an instance of `owner`.
    pub(super) fn new(quota: &Quota, owner: u32) -> Self {
        let places = Self::within(quota, owner, descriptors_left());
        if places.are_short_of_fds {
            tracing::warn!(
                "the limit of open files allows {} conversations instead of quota.connections = {}",
                places.members,
                quota.connections
            );
        }
        places
    }

    fn within(quota: &Quota, owner: u32, fds: usize) -> Self {
        let wanted = usize::from(quota.connections) + FOR_OWNER + FOR_ROOT;
        let all = wanted.min(fds / FDS_EACH);
        let (for_owner, for_root) = (FOR_OWNER.min(all / 6), FOR_ROOT.min(all / 3));
        Self {
            owner,
            members: all - for_owner - for_root,
            per_user: quota.connections_per_user,
            for_owner,
            for_root,
            are_short_of_fds: all < wanted,
        }
    }

    /// Whether `uid` may have one more connection, beside those of `users`.
    ///
    /// # Errors
    /// The refusal, which names the limit.
    pub(super) fn admit(
        &self,
        uid: u32,
        users: impl Iterator<Item = u32> + Clone,
    ) -> Result<(), Refusal> {
        let is_owner = uid == 0 || uid == self.owner;
        let of_user = users.clone().filter(|user| *user == uid).count();
        let is_at_limit = |limit| of_user >= usize::from(limit);
        if !is_owner && self.per_user.is_some_and(is_at_limit) {
            return Err(refusal(format!(
                "user {uid} has {of_user} conversations with urdmad, as many as \
                 quota.connections_per_user allows: end some of that user's programs"
            )));
        }
        let reserved = match uid {
            0 => self.for_owner + self.for_root,
            _ if is_owner => self.for_owner,
            _ => 0,
        };
        let all = users.count();
        let free = (self.members + reserved).saturating_sub(all);
        if free > 0 && (is_owner || fair::may_take(of_user, free)) {
            return Ok(());
        }
        if free > 0 {
            return Err(refusal(format!(
                "user {uid} has {of_user} conversations with urdmad, and the {free} that are \
                 free are kept for other users: end some of that user's programs"
            )));
        }
        Err(refusal(if self.are_short_of_fds {
            format!(
                "urdmad has {all} conversations, as many as its limit of open files \
             allows: end programs, or start it with a higher limit"
            )
        } else {
            format!(
                "urdmad has {all} conversations, as many as quota.connections allows: \
             end programs, or raise it in the configuration"
            )
        }))
    }
}

fn refusal(message: String) -> Refusal {
    Refusal::new(RefusalKind::QuotaExceeded, message)
}

/// Descriptors that this process may still open for connections.
fn descriptors_left() -> usize {
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return usize::MAX;
    };
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    usize::try_from(limit)
        .unwrap_or(usize::MAX)
        .saturating_sub(open + FDS_FOR_OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;

    fn places(fds: usize) -> Places {
        Places::within(&Quota::default(), OWNER, fds)
    }

    /// The connections that `uid` can have beside `others`.
    fn room(places: &Places, uid: u32, others: &[u32]) -> usize {
        let mut users = others.to_vec();
        while places.admit(uid, users.iter().copied()).is_ok() {
            users.push(uid);
        }
        users.len() - others.len()
    }

    #[test]
    fn members_leave_room_for_one_another_and_all_members_for_owner_and_root() {
        let places = places(usize::MAX);
        let mut users = Vec::new();
        for (member, left) in [(7, 256), (8, 128), (9, 64), (10, 32)] {
            users.extend(vec![member; room(&places, member, &users)]);
            assert_eq!(users.len(), 512 - left);
        }
        for member in 11..20 {
            users.extend(vec![member; room(&places, member, &users)]);
        }
        assert_eq!(users.len(), 512);
        users.extend(vec![OWNER; room(&places, OWNER, &users)]);
        assert_eq!(users.len(), 520);
        assert_eq!(room(&places, 0, &users), 16);
    }

    #[test]
    fn limit_of_open_files_reduces_places_of_all_users() {
        let places = places(30 * FDS_EACH);
        let mut users = vec![7; room(&places, 7, &[])];
        assert_eq!(users.len(), 8);
        users.extend(vec![OWNER; room(&places, OWNER, &users)]);
        assert_eq!(users.len(), 20);
        assert_eq!(room(&places, 0, &users), 10);
        let refused = places.admit(7, users.into_iter()).unwrap_err();
        assert!(refused.message.contains("limit of open files"), "{refused}");
    }

    #[test]
    fn user_beyond_a_limit_is_told_which() {
        let shared = places(usize::MAX);
        let refused = shared.admit(7, std::iter::repeat_n(7, 256)).unwrap_err();
        let expected = "user 7 has 256 conversations with urdmad, and the 256 that are free are \
                        kept for other users";
        assert!(refused.message.contains(expected), "{refused}");
        let quota = Quota {
            connections_per_user: Some(9),
            ..Quota::default()
        };
        let limited = Places::within(&quota, OWNER, usize::MAX);
        assert_eq!(room(&limited, 7, &[]), 9);
        assert_eq!(room(&limited, OWNER, &[]), 520);
        let refused = limited.admit(7, std::iter::repeat_n(7, 9)).unwrap_err();
        let expected = "quota.connections_per_user";
        assert!(refused.message.contains(expected), "{refused}");
    }
}
