//! Functions that install handlers of signals: see [`crate::signals`].

use crate::real;
use crate::signals::HANDLERS;

urdma_abi::handler_hooks! { real, HANDLERS, true }
