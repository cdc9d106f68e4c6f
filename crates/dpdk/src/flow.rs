//! Flow rules that steer the packets for one UDP port to one queue.

use std::ffi::{c_char, CStr};
use std::ptr::{null_mut, NonNull};

use dpdk_sys::rte_flow;

use crate::{Error, Port, QueueIndex};

/// The IP version that a rule matches; a slot that uses both needs two rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowVersion {
    /// UDP over IPv4.
    V4,
    /// UDP over IPv6.
    V6,
}

/// An installed rule, removed when this is dropped. The port must still exist then.
#[derive(Debug)]
pub struct FlowRule {
    port: u16,
    pointer: NonNull<rte_flow>,
}

// SAFETY: DPDK's flow functions may be called from any thread, one at a time, which ownership
// guarantees.
unsafe impl Send for FlowRule {}

impl Port {
    /// Steers UDP datagrams for `udp_port` to `queue`.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if the driver has no such rules, as most software drivers; urdmad
    /// then forwards the packets. Otherwise the driver's error.
    pub fn steer(
        &self,
        udp_port: u16,
        version: FlowVersion,
        queue: QueueIndex,
    ) -> Result<FlowRule, Error> {
        let mut message = [0 as c_char; 128];
        let mut flow = null_mut();
        // SAFETY: the port exists; the pointers are to local variables, and the length passed is
        // that of the message buffer.
        let result = unsafe {
            dpdk_sys::urdma_flow_udp_port(
                self.id(),
                udp_port,
                i32::from(version == FlowVersion::V6),
                queue.0,
                0,
                &mut flow,
                message.as_mut_ptr(),
                message.len(),
            )
        };
        match NonNull::new(flow) {
            Some(pointer) if result == 0 => Ok(FlowRule {
                port: self.id(),
                pointer,
            }),
            _ => {
                // SAFETY: the buffer was zeroed, and the string written to it ends within it.
                let reason = unsafe { CStr::from_ptr(message.as_ptr()) };
                Err(Error::new(
                    -result,
                    format!(
                        "no rule for UDP port {udp_port}: {}",
                        reason.to_string_lossy()
                    ),
                ))
            }
        }
    }
}

impl Drop for FlowRule {
    fn drop(&mut self) {
        // SAFETY: the rule was created on this port and is destroyed once; DPDK refuses the number
        // of a port that does not exist.
        unsafe { dpdk_sys::rte_flow_destroy(self.port, self.pointer.as_ptr(), null_mut()) };
    }
}
