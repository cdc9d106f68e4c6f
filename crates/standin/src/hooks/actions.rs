//! The functions that install handlers of signals: see [`crate::signals`].

use crate::active::is_active;
use crate::real;
use crate::signals::HANDLERS;

urdma_abi::handler_hooks! { real, HANDLERS, is_active() }
