//! What happens when the library is loaded, the program forks, and exits.

use crate::{agent, leave, process, real, sets};

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
    real::set_errno(before);
}

extern "C" fn at_exit() {
    if process::is_home() {
        leave::settle_all();
    }
}

unsafe extern "C" fn before_fork() {
    leave::retire_all();
    sets::before_fork();
    agent::before_fork();
}

unsafe extern "C" fn after_fork() {
    agent::after_fork();
    sets::after_fork();
}

unsafe extern "C" fn in_child() {
    process::take_table();
    agent::in_child();
    sets::after_fork();
}
