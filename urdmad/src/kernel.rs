//! The kernel module's device that the instance serves. It may come and go while urdmad runs: it is tried again every second.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::unistd::Gid;
use urdma_ipc::status::KernelStatus;
use urdma_kernel::abi::CmMessage;
use urdma_kernel::{agent, Agent};

use crate::config::Config;
use crate::identity::Identity;
use crate::kernel_cm::KernelCm;

/// Time between two tries.
const RETRY: Duration = Duration::from_secs(1);

/// What `ibv_mtu` calls 4096 octets; processes know how much less fits their port.
const PATH_MTU: u8 = 5;

/// The door into this instance that the kernel module is; closed if the configuration names no device.
pub(crate) struct KernelDevice {
    device: Option<String>,
    run_dir: PathBuf,
    gids: Vec<[u8; 16]>,
    /// Who may use the device beside this process' user.
    group: Option<u32>,
    state: ServiceState,
    /// What the kernel's rdma_cm wants.
    pub(crate) cm: KernelCm,
}

enum ServiceState {
    Served(Agent),
    Waiting { because: String, next_try: Instant },
}

impl KernelDevice {
    /// A door that [`KernelDevice::keep_served`] will open.
    pub(crate) fn new(config: &Config, run_dir: PathBuf, identity: &Identity, seed: u64) -> Self {
        // The device has a GID 0 of its own.
        let gids = identity.gids.iter().skip(1).map(|entry| entry.gid);
        Self {
            device: config.kernel_device.clone(),
            run_dir,
            gids: gids.collect(),
            group: config.group.map(Gid::as_raw),
            state: ServiceState::Waiting {
                because: "urdmad is starting".to_owned(),
                next_try: Instant::now(),
            },
            cm: KernelCm::new(seed, PATH_MTU),
        }
    }

    /// Serves the device if it can be; to be called when the control socket is there, and again when [`KernelDevice::next_try`] has come.
    pub(crate) fn keep_served(&mut self, now: Instant) {
        let (Some(device), ServiceState::Waiting { because, next_try }) =
            (&self.device, &self.state)
        else {
            return;
        };
        if now < *next_try {
            return;
        }
        match Agent::serve(device, &self.run_dir, &self.gids, self.group) {
            Ok(agent) => {
                tracing::info!("serves the kernel's device {device}");
                self.state = ServiceState::Served(agent);
            }
            Err(error) => {
                let reason = agent::explain(&error, device);
                if reason != *because {
                    log(&error, &reason);
                }
                self.wait(reason, now);
            }
        }
    }

    /// Serves a device over what a test has in the module's place.
    #[cfg(test)]
    pub(crate) fn serve_over(&mut self, agent: Agent) {
        self.state = ServiceState::Served(agent);
    }

    /// The agent's descriptor has hung up.
    pub(crate) fn device_is_gone(&mut self, now: Instant) {
        tracing::info!("the kernel's device is gone");
        self.wait("the device is gone".to_owned(), now);
    }

    /// What the module wants done next.
    pub(crate) fn receive(&self) -> Option<CmMessage> {
        // A device that is gone has hung up as well.
        self.agent()?.receive().ok().flatten()
    }

    fn wait(&mut self, because: String, now: Instant) {
        self.state = ServiceState::Waiting {
            because,
            next_try: now + RETRY,
        };
    }

    /// What to watch for its hanging up.
    pub(crate) fn agent(&self) -> Option<&Agent> {
        match &self.state {
            ServiceState::Served(agent) => Some(agent),
            ServiceState::Waiting { .. } => None,
        }
    }

    /// When to try again.
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

/// Says why the device is not served; that it is not there yet is no fault.
fn log(error: &io::Error, reason: &str) {
    if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) {
        tracing::info!("{reason}");
    } else {
        tracing::warn!("{reason}");
    }
}
