//! What happens when the library is loaded, the program forks, and exits.

use crate::{agent, diagnosis, leave, lent, process, real, reasons, sets, sleepers, table};

/// Called by the dynamic linker when the library is loaded.
#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;

/// Called by exit(3).
#[used]
#[link_section = ".fini_array"]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_load() {
    let before = real::errno();
    process::begin();
    // SAFETY: the handlers are functions without arguments.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    real::look_up_early();
    diagnosis::begin();
    real::set_errno(before);
}

extern "C" fn at_exit() {
    if process::is_home() {
        leave::settle_all();
    }
}

unsafe extern "C" fn before_fork() {
    lent::begin_fork();
    if lent::is_used() && process::is_home() && process::run_dir().is_some() {
        leave::retire_inherited();
        lent::before_fork(table::len());
        leave::pause_all();
    }
    sets::before_fork();
    lent::lock(table::lendable());
    agent::before_fork();
}

unsafe extern "C" fn after_fork() {
    agent::after_fork();
    lent::after_fork();
    sets::after_fork();
    lent::end_fork();
}

unsafe extern "C" fn in_child() {
    process::take_table();
    diagnosis::begin_thread();
    agent::in_child();
    reasons::in_child();
    sleepers::in_child();
    lent::in_child();
    table::in_child();
    sets::in_child();
    lent::end_fork();
}
