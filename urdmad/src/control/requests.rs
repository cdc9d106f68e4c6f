//! The requests of clients, one function each. A client's claims about itself are not trusted: its
//! slot is the one that its connection has.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use urdma_ipc::capture::CaptureOptions;
use urdma_ipc::fault::{Direction, Impairment};
use urdma_ipc::message::FromClient;
use urdma_ipc::{Answer, CmPort, Refusal, RefusalKind, Request, Resolution, PROTOCOL_VERSION};

use super::state::{refuse, Control, Outcome};
use crate::capture::Capture;
use crate::client::AttachRequest;
use crate::data::command::Command;
use crate::listeners::{Binder, BindingId};
use crate::shared::Reply;
use crate::shown::shown;
use crate::slots::Token;

/// Maximum length of a program name.
const PROGRAM_CHARS_MAX: usize = 64;

impl Control {
    /// Handles one message of a client.
    pub(super) fn handle(&mut self, token: Token, message: FromClient, fds: Vec<OwnedFd>) {
        if let Request::OfferChannel { slot, generation } = message.request {
            return self.offer_channel(token, (slot, generation), fds);
        }
        if matches!(message.request, Request::DepositChannel) {
            return self.take_deposit(token, fds);
        }
        if matches!(message.request, Request::OfferRecording) {
            return self.take_recording(token, fds);
        }
        if matches!(
            message.request,
            Request::SocketOffer | Request::SocketReasons
        ) {
            let mut offers = self.offers();
            return match message.request {
                Request::SocketOffer => offers.take(token, message.id, fds),
                _ => offers.take_reasons(token, fds),
            };
        }
        let id = message.id;
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        if !fds.is_empty() {
            return client.reject(fds);
        }
        if client.program.is_none() && !matches!(message.request, Request::Hello { .. }) {
            client.is_broken = true;
            return;
        }
        let outcome = match message.request {
            Request::Hello { version, program } => self.hello(token, version, &program),
            Request::Attach { want_lease } => {
                let request = AttachRequest {
                    id,
                    want_lease,
                    has_waited: false,
                };
                return self.attach_in_time(token, request);
            }
            Request::Detach => match self.slot_of(token) {
                Ok(_) => return self.detach(token, false, Some(id)),
                Err(refusal) => Err(refusal),
            },
            Request::CmBindPort { binding, wanted } => self.cm_bind(token, binding, wanted),
            Request::CmShare { binding, sharing } => self
                .binding_of(token, binding)
                .and_then(|id| self.shared.change_listeners().share(id, sharing))
                .map(|()| Answer::Done),
            Request::CmListen { binding, backlog } => self
                .binding_of(token, binding)
                .and_then(|id| self.shared.change_listeners().listen(id, backlog))
                .map(|()| Answer::Done),
            Request::CmRelease { binding } => self
                .binding_of(token, binding)
                .and_then(|id| self.shared.change_listeners().release(id))
                .map(|()| Answer::Done),
            Request::JoinGroup { group } => self.join_group(token, group),
            Request::LeaveGroup { group } => self
                .slot_of(token)
                .and_then(|slot| self.shared.groups().leave(slot, group))
                .map(|()| self.groups_changed()),
            // Handled above.
            Request::OfferChannel { .. }
            | Request::DepositChannel
            | Request::OfferRecording
            | Request::SocketOffer
            | Request::SocketReasons => return,
            Request::SocketForget { offer } => return self.sockets.forget((token, offer)),
            Request::Recordings => self.readable_recordings(token),
            Request::Recording { number } => return self.send_recording(token, id, number),
            Request::Resolve { ip } => return self.resolve(token, id, ip),
            Request::Status => return self.ask_for_status(token, id),
            Request::Report(report) => return self.take_report(token, report),
            Request::Counted => return self.take_count(token),
            Request::QpsAreSet(outcomes) => return self.qps_are_set(token, &outcomes),
            Request::CaptureStart { file, options } => self.capture_start(token, &file, options),
            Request::CaptureStop => self.capture_stop(token),
            Request::SetFaults {
                direction,
                impairment,
                seed,
            } => self.set_faults(token, direction, impairment, seed),
            Request::Shutdown => self.may_control(token).map(|()| {
                self.is_ending = true;
                Answer::Done
            }),
        };
        self.answer(token, id, outcome);
    }

    fn join_group(&mut self, token: Token, group: IpAddr) -> Outcome {
        let slot = self.slot_of(token)?;
        let member = self.member(token)?;
        self.shared.groups().join(slot, group, member)?;
        Ok(self.groups_changed())
    }

    fn hello(&mut self, token: Token, version: u32, program: &str) -> Outcome {
        let client = self.client(token)?;
        if version != PROTOCOL_VERSION {
            let kind = RefusalKind::VersionMismatch {
                theirs: PROTOCOL_VERSION,
            };
            return refuse(
                kind,
                format!("urdmad speaks control protocol {PROTOCOL_VERSION}, not {version}"),
            );
        }
        client.program = Some(shown(program, PROGRAM_CHARS_MAX));
        Ok(Answer::Welcome {
            instance: self.instance.clone(),
            pid: std::process::id(),
        })
    }

    /// The binding that a client calls `number`.
    fn binding_of(&self, token: Token, number: u32) -> Result<BindingId, Refusal> {
        let slot = self.slot_of(token)?;
        Ok(BindingId { slot, number })
    }

    fn cm_bind(&mut self, token: Token, number: u32, wanted: CmPort) -> Outcome {
        let id = self.binding_of(token, number)?;
        self.check_own_address(wanted.addr)?;
        let quota = self.config.quota.cm_ports_per_process;
        let uid = self.client(token)?.peer.uid();
        let by = Binder {
            member: self.member(token)?,
            quota,
        };
        let bound = self.shared.change_listeners().bind(id, wanted, by);
        if let Err(refusal) = &bound {
            let is_limit = refusal.kind == RefusalKind::QuotaExceeded;
            if is_limit || wanted.port == 0 {
                tracing::warn!(
                    "user {uid}, slot {}: no CM port: {refusal}",
                    id.slot.number()
                );
            }
        }
        Ok(Answer::CmBound { port: bound? })
    }

    fn check_own_address(&self, addr: IpAddr) -> Result<(), Refusal> {
        if addr.is_unspecified() || self.identity.owns(addr) {
            return Ok(());
        }
        let own: Vec<String> = self
            .identity
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        refuse(
            RefusalKind::AddressNotAvailable,
            format!(
                "{addr} is no address of this instance, which has {}",
                own.join(", ")
            ),
        )
    }

    fn resolve(&mut self, token: Token, id: u64, ip: IpAddr) {
        if self.identity.owns(ip) {
            return self.answer(token, id, Ok(Answer::Resolved(Resolution::Local)));
        }
        // The data thread has the neighbour table, and gives the resolution to `answer_resolved`.
        let reply = Reply { token, id };
        if let Err(reason) = self.data.send(Command::Resolve { ip, reply }) {
            let refusal = Refusal::new(RefusalKind::Internal, reason.to_string());
            self.answer(token, id, Err(refusal));
        }
    }

    /// Answers the requests whose addresses the data thread has resolved.
    pub(super) fn answer_resolved(&mut self) {
        for (reply, resolution) in self.shared.take_resolved() {
            self.answer(reply.token, reply.id, Ok(Answer::Resolved(resolution)));
        }
    }

    fn capture_start(&mut self, token: Token, file: &Path, options: CaptureOptions) -> Outcome {
        self.may_control(token)?;
        if let Some(running) = self.shared.capture_file() {
            let message = format!("a capture into {} runs already", running.display());
            return refuse(RefusalKind::Invalid, message);
        }
        match Capture::create(file, options) {
            Ok(capture) => {
                self.client(token)?.is_capturing = true;
                self.shared.set_capture(capture);
            }
            Err(error) => {
                let message = format!("urdmad cannot make {}: {error}", file.display());
                return refuse(RefusalKind::Invalid, message);
            }
        }
        Ok(Answer::Done)
    }

    fn capture_stop(&mut self, token: Token) -> Outcome {
        self.may_control(token)?;
        let Some(capture) = self.shared.take_capture() else {
            return refuse(RefusalKind::NotFound, "no capture runs");
        };
        for client in self.clients.values_mut() {
            client.is_capturing = false;
        }
        let file = capture.file().to_owned();
        match capture.finish() {
            Ok(counts) => Ok(Answer::CaptureStopped(counts)),
            Err(error) => refuse(
                RefusalKind::Internal,
                format!("the capture in {} is incomplete: {error}", file.display()),
            ),
        }
    }

    fn set_faults(
        &mut self,
        token: Token,
        direction: Direction,
        impairment: Impairment,
        seed: Option<u64>,
    ) -> Outcome {
        self.may_control(token)?;
        let mut faults = self.faults.with(direction, impairment);
        faults.seed = seed.unwrap_or(faults.seed);
        if let Err(reason) = self.config.allows(&faults) {
            return refuse(RefusalKind::Invalid, reason.to_string());
        }
        let leased = self.leases.leased();
        if leased > 0 && !faults.are_none() {
            let message = format!(
                "{leased} queue pairs are leased, and their packets bypass faults: end their \
                 programs or run them with --lease never"
            );
            return refuse(RefusalKind::Invalid, message);
        }
        if let Err(reason) = self.data.set_faults(faults) {
            let message = format!("{reason}: look into urdmad's log");
            return refuse(RefusalKind::Internal, message);
        }
        self.faults = faults;
        tracing::info!(
            "faults: in: {}; out: {}; seed {}",
            faults.inbound,
            faults.outbound,
            faults.seed
        );
        Ok(Answer::Done)
    }

    /// Ends the capture of a client that has disconnected.
    pub(super) fn end_capture_of(&mut self, client: &crate::client::Client) {
        if !client.is_capturing {
            return;
        }
        if let Some(Err(error)) = self.shared.take_capture().map(Capture::finish) {
            tracing::warn!("a capture is incomplete: {error}");
        }
    }
}
