//! The kernel module's device that the instance serves. It may appear and disappear while urdmad
//! runs; serving it is retried every second.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::unistd::Gid;
use urdma_ipc::status::KernelStatus;
use urdma_kernel::abi::{CmMessage, PortCounters};
use urdma_kernel::{agent, Agent};
use urdma_trace::Recorder;
use urdma_types::SlotId;

use crate::config::Config;
use crate::identity::Identity;
use crate::kernel_cm::KernelCm;

/// Retry interval.
const RETRY: Duration = Duration::from_secs(1);

/// `ibv_mtu` value of 4096 octets; processes know the smaller value of their port.
const PATH_MTU: u8 = 5;

/// The kernel module's device, if the configuration names one.
pub(crate) struct KernelDevice {
    device: Option<String>,
    run_dir: PathBuf,
    gids: Vec<[u8; 16]>,
    /// The group that may use the device beside this process' user.
    group: Option<u32>,
    state: ServiceState,
    /// Connection management for the kernel's rdma_cm.
    pub(crate) cm: KernelCm,
}

enum ServiceState {
    Served(Agent),
    Waiting { because: String, next_try: Instant },
}

impl KernelDevice {
    /// A device that is not served before [`KernelDevice::keep_served`].
    pub(crate) fn new(config: &Config, run_dir: PathBuf, identity: &Identity, seed: u64) -> Self {
        // The device has its own GID 0.
        let gids = identity.gids.iter().skip(1).map(|entry| entry.gid);
        Self {
            device: config.kernel_device.clone(),
            run_dir,
            gids: gids.collect(),
            group: config.access.group().map(Gid::as_raw),
            state: ServiceState::Waiting {
                because: "urdmad is starting".to_owned(),
                next_try: Instant::now(),
            },
            cm: KernelCm::new(seed, PATH_MTU),
        }
    }

    /// Passes what happens to the module's connections to `recorder`.
    pub(crate) fn record_with(&mut self, recorder: Recorder) {
        self.cm.record_with(recorder);
    }

    /// Serves the device if possible. Called once the control socket exists, and again at
    /// [`KernelDevice::next_try`]. Returns whether it is served from now on: the module then knows
    /// of no slot.
    pub(crate) fn keep_served(&mut self, now: Instant) -> bool {
        let (Some(device), ServiceState::Waiting { because, next_try }) =
            (&self.device, &self.state)
        else {
            return false;
        };
        if now < *next_try {
            return false;
        }
        match Agent::serve(device, &self.run_dir, &self.gids, self.group) {
            Ok(agent) => {
                tracing::info!("serves the kernel's device {device}");
                self.state = ServiceState::Served(agent);
                true
            }
            Err(error) => {
                let reason = agent::explain(&error, device);
                if reason != *because {
                    log(&error, &reason);
                }
                self.wait(reason, now);
                false
            }
        }
    }

    /// Tells the module which process has a slot.
    pub(crate) fn give_slot(&self, slot: SlotId, pid: Option<u32>) {
        let Some(agent) = self.agent() else {
            return;
        };
        if let Err(error) = agent.give_slot(slot.number().into(), pid) {
            // The process has ended, or the device is gone.
            tracing::info!("slot {}: the kernel module: {error}", slot.number());
        }
    }

    /// Gives the module the counters of the port, for the programs that read them.
    pub(crate) fn give_counters(&self, counters: &PortCounters) {
        let given = self.agent().map(|agent| agent.give_counters(counters));
        if let Some(Err(error)) = given {
            tracing::info!("counters: the kernel module: {error}");
        }
    }

    /// Serves a device over a test's substitute for the module.
    #[cfg(test)]
    pub(crate) fn serve_over(&mut self, agent: Agent) {
        self.state = ServiceState::Served(agent);
    }

    /// The agent's descriptor has hung up.
    pub(crate) fn device_is_gone(&mut self, now: Instant) {
        tracing::info!("the kernel's device is gone");
        self.wait("the device is gone".to_owned(), now);
    }

    /// The next messages of the module.
    pub(crate) fn receive(&self) -> Vec<CmMessage> {
        // The descriptor of a device that is gone has also hung up.
        let received = self.agent().map(Agent::receive);
        received.and_then(Result::ok).unwrap_or_default()
    }

    fn wait(&mut self, because: String, now: Instant) {
        self.state = ServiceState::Waiting {
            because,
            next_try: now + RETRY,
        };
    }

    /// The agent, whose descriptor hangs up when the device is gone.
    pub(crate) fn agent(&self) -> Option<&Agent> {
        match &self.state {
            ServiceState::Served(agent) => Some(agent),
            ServiceState::Waiting { .. } => None,
        }
    }

    /// When to retry.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        match &self.state {
            ServiceState::Waiting { next_try, .. } => self.device.as_ref().map(|_| *next_try),
            ServiceState::Served(_) => None,
        }
    }

    /// What `urdma status` shows.
    pub(crate) fn status(&self) -> Option<KernelStatus> {
        Some(KernelStatus {
            device: self.device.clone()?,
            not_served_because: match &self.state {
                ServiceState::Served(_) => None,
                ServiceState::Waiting { because, .. } => Some(because.clone()),
            },
        })
    }
}

/// Logs why the device is not served; a device that does not exist yet is no error.
fn log(error: &io::Error, reason: &str) {
    if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) {
        tracing::info!("{reason}");
    } else {
        tracing::warn!("{reason}");
    }
}
