//! The rule by which users share what an instance has a limited number of.

/// Whether a user that has `own` places may take one of those that are `free`: as long as it has
/// fewer than are free. Of n places that are free, it takes half at most, rounded up, so `k` users
/// together leave one in 2^k to the others, in whatever order they take places and give them back.
pub(crate) fn may_take(own: usize, free: usize) -> bool {
    own < free
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users that share `all` places.
    struct Users {
        all: usize,
        own: Vec<usize>,
    }

    impl Users {
        fn free(&self) -> usize {
            self.all - self.own.iter().sum::<usize>()
        }

        fn take_all(&mut self, user: usize) {
            while may_take(self.own[user], self.free()) {
                self.own[user] += 1;
            }
        }
    }

    #[test]
    fn users_that_take_all_they_may_leave_one_place_in_two_to_their_number() {
        for all in 0..600 {
            let own = vec![0; 6];
            let mut one_by_one = Users { all, own };
            for user in 0..6 {
                one_by_one.take_all(user);
                assert!(one_by_one.free() >= all >> (user + 1), "{all} places");
            }
        }
    }

    #[test]
    fn giving_places_back_to_take_them_again_leaves_no_fewer() {
        const USERS: usize = 3;
        let own = vec![0; USERS];
        let mut users = Users { all: 512, own };
        for step in 0..10_000 {
            // Any order, in which one user gives back some or all of its places.
            let (giving, taking) = (step * 7 % USERS, step * 5 % USERS);
            let back = step * 31 % 97;
            let own = &mut users.own[giving];
            *own = own.saturating_sub(if back < 8 { *own } else { back });
            users.take_all(taking);
            assert!(users.free() >= 512 >> USERS, "{:?}", users.own);
        }
    }
}
