use super::*;

const FD: c_int = 5;

fn share() -> Share {
    let mut share = Share::new(6).unwrap();
    share.lend(FD);
    share
}

#[test]
fn socket_is_of_the_process_that_has_not_closed_it() {
    for (closing, other) in [(Side::Parent, Side::Child), (Side::Child, Side::Parent)] {
        let share = share();
        assert!(!share.is_of(FD, other));
        share.give_back(FD, closing);
        assert!(share.is_of(FD, other));
        assert!(!share.is_lent(FD, closing));
    }
}

#[test]
fn socket_that_a_third_process_has_is_of_none() {
    let share = share();
    share.lend_on();
    share.give_back(FD, Side::Parent);
    assert!(!share.is_of(FD, Side::Child));
}

#[test]
fn socket_that_the_child_has_closed_is_the_parents_when_a_third_process_gets_it() {
    let share = share();
    share.give_back(FD, Side::Child);
    share.lend_on();
    assert!(share.is_of(FD, Side::Parent));
}

#[test]
fn socket_that_was_not_lent_is_of_none() {
    let share = Share::new(6).unwrap();
    for fd in [-1, FD, FD + 1] {
        share.give_back(fd, Side::Parent);
        assert!(!share.is_of(fd, Side::Child));
        assert!(!share.is_lent(fd, Side::Child));
    }
}

#[test]
fn child_gives_back_in_the_memory_of_its_parent() {
    let share = share();
    // SAFETY: the child makes no call but these.
    let child = unsafe { libc::fork() };
    if child == 0 {
        share.give_back(FD, Side::Child);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child of above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(share.is_of(FD, Side::Parent));
}
