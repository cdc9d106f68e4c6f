//! Flow rules: packets for one UDP port go to one queue.

use std::ffi::{c_char, CStr};
use std::ptr::{null_mut, NonNull};

use dpdk_sys::rte_flow;

use crate::{Error, Port, QueueIndex};

/// Which IP a rule looks at; a slot that is reached over both needs two rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowVersion {
    /// UDP over IPv4.
    V4,
    /// UDP over IPv6.
    V6,
}

/// An installed rule; dropping it removes it. The port must still exist then.
#[derive(Debug)]
pub struct FlowRule {
    port: u16,
    pointer: NonNull<rte_flow>,
}

// SAFETY: DPDK's flow functions may be called from any thread, one at a time, which ownership
// ensures.
unsafe impl Send for FlowRule {}

impl Port {
    /// Sends UDP datagrams for `udp_port` to `queue`.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] where the driver has no such rules, which most software drivers do
    /// not; forwarding by slot does the work then. Else the driver's reason.
    pub fn steer(
        &self,
        udp_port: u16,
        version: FlowVersion,
        queue: QueueIndex,
    ) -> Result<FlowRule, Error> {
        let mut message = [0 as c_char; 128];
        let mut flow = null_mut();
        // SAFETY: the port exists; the pointer and the message buffer are ours, and the buffer's
        // length is passed.
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
                // SAFETY: the buffer was zeroed and is filled with a string that ends inside it.
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
        // SAFETY: the rule was made on this port and is destroyed once; a port that is gone is
        // refused by DPDK.
        unsafe { dpdk_sys::rte_flow_destroy(self.port, self.pointer.as_ptr(), null_mut()) };
    }
}
