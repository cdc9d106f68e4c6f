//! `urdma status`: the state of an instance, as a table or as JSON.

use std::fmt::Write;

use clap::Args;
use urdma_ipc::status::{KernelStatus, LeaseSteering, SocketProcess};
use urdma_ipc::{Personality, ProcessReport, SocketStatus, Status};

use crate::error::Error;
use crate::fault;
use crate::target::Target;

/// Options of `urdma status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: Target,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the status.
pub(crate) fn status(args: &StatusArgs) -> Result<(), Error> {
    let status = args.target.connect()?.status()?;
    if args.json {
        let text = serde_json::to_string_pretty(&status)
            .map_err(|error| Error::sentence(error.to_string()))?;
        println!("{text}");
    } else {
        print!("{}", render(&status));
    }
    Ok(())
}

/// The table.
fn render(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = render_into(&mut text, status);
    text
}

fn render_into(text: &mut String, status: &Status) -> std::fmt::Result {
    let addresses: Vec<String> = status.addresses.iter().map(ToString::to_string).collect();
    writeln!(
        text,
        "instance {} (urdmad {}, process {}), up {} s, at {}",
        status.instance,
        status.version,
        status.pid,
        status.uptime_s,
        addresses.join(", ")
    )?;
    match &status.port {
        None => writeln!(text, "port     none: this host's own traffic only")?,
        Some(port) => writeln!(
            text,
            "port     {} {}, {}, MTU {}, {}, {} queue pairs",
            port.kind,
            port.device,
            port.mac,
            port.mtu,
            if port.link_up { "link up" } else { "link down" },
            port.queues
        )?,
    }
    for note in status.port.iter().flat_map(|port| &port.notes) {
        writeln!(text, "         {note}")?;
    }
    render_leases(text, status)?;
    match &status.kernel {
        None => writeln!(text, "backend  urdma run")?,
        Some(KernelStatus {
            device,
            not_served_because: None,
        }) => writeln!(text, "backend  kernel module, device {device}")?,
        Some(KernelStatus {
            not_served_because: Some(reason),
            ..
        }) => writeln!(text, "backend  urdma run; not the kernel module: {reason}")?,
    }
    match status.personality {
        Personality::Roce => {}
        Personality::Iwarp => writeln!(text, "device   an RNIC (personality \"iwarp\")")?,
    }
    if let Some(faults) = &status.faults {
        text.push_str(&fault::render(faults, false));
    }
    render_slots(text, status)?;
    render_listeners(text, status)?;
    render_groups(text, status)?;
    render_sockets(text, status)?;
    let counters = &status.counters;
    let of_control = [
        ("attach_delayed", &counters.attach_delayed),
        ("attach_refused", &counters.attach_refused),
        ("report_counters_unknown", &counters.report_counters_unknown),
        ("log_lines_lost", &counters.log_lines_lost),
    ];
    let of_data = counters.data.iter().map(|(name, value)| (&**name, value));
    for (name, value) in of_control.into_iter().chain(of_data) {
        if *value > 0 {
            writeln!(text, "{name:<28} {value}")?;
        }
    }
    Ok(())
}

fn render_sockets(text: &mut String, status: &Status) -> std::fmt::Result {
    let sockets = &status.sockets;
    if sockets.offered > 0 {
        writeln!(
            text,
            "sockets  {} connections over rings, {} since the start, {} octets; {} wait for their \
             peer",
            sockets.open, sockets.joined, sockets.ring_octets, sockets.waiting
        )?;
    }
    text.push_str(&socket_programs(sockets));
    for (reason, count) in sockets.reasons.iter().filter(|(_, count)| **count > 0) {
        writeln!(text, "{:<28} {count}", format!("sockets_{}", reason.name()))?;
    }
    Ok(())
}

/// The programs that have sockets with or without rings, and why those have none.
pub(crate) fn socket_programs(sockets: &SocketStatus) -> String {
    let line = |process: &SocketProcess| {
        let reasons = process.reasons.iter();
        let reasons = reasons.map(|(reason, count)| format!(", {} {count}", reason.name()));
        format!(
            "         {} ({}): {} with rings, {} wait{}\n",
            process.program,
            process.pid,
            process.open,
            process.waiting,
            reasons.collect::<String>()
        )
    };
    sockets.processes.iter().map(line).collect()
}

fn render_leases(text: &mut String, status: &Status) -> std::fmt::Result {
    if let (Some(_), Some(reason)) = (&status.port, &status.no_leases_because) {
        writeln!(text, "leases   none: {reason}")?;
    }
    let how = match status.lease_steering {
        None => return Ok(()),
        Some(LeaseSteering::Peer) => "the queue that the peer chooses".to_owned(),
        Some(LeaseSteering::Rules) => "flow rules of the NIC".to_owned(),
        Some(LeaseSteering::Table { entries }) => {
            format!("the NIC's redirection table of {entries} entries")
        }
    };
    writeln!(
        text,
        "leases   {} at most, packets come by {how}",
        status.leases.len()
    )
}

fn render_slots(text: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        text,
        "slots    {} of {} attached",
        status.slots.len(),
        status.slots_total
    )?;
    if status.slots.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "{:>4} {:>8} {:<18} {:>7} {:>6} {:>6} {:>6} {:>6} {:>9}",
        "slot", "process", "program", "up s", "QPs", "CQs", "MRs", "lease", "woken by"
    )?;
    for slot in &status.slots {
        let report = slot.report.clone().unwrap_or_default();
        let lease = slot
            .lease_queue
            .map_or_else(|| "-".to_owned(), |queue| queue.to_string());
        let woken_by = report
            .lease_wake_up
            .map_or_else(|| "-".to_owned(), |by| by.to_string());
        writeln!(
            text,
            "{:>4} {:>8} {:<18} {:>7} {:>6} {:>6} {:>6} {:>6} {:>9}",
            slot.slot,
            slot.pid,
            slot.program,
            slot.attached_s,
            report.qps,
            report.cqs,
            report.mrs,
            lease,
            woken_by
        )?;
        text.push_str(&dc_line(&report));
    }
    Ok(())
}

/// The targets of the dynamically connected transport of a process, if it has any: a line.
pub(crate) fn dc_line(report: &ProcessReport) -> String {
    match (report.dc_targets, report.dc_contexts) {
        (0, _) => String::new(),
        (targets, contexts) => format!("       {targets} DC targets, {contexts} contexts\n"),
    }
}

fn render_groups(text: &mut String, status: &Status) -> std::fmt::Result {
    for group in &status.groups {
        let slots: Vec<String> = group.slots.iter().map(ToString::to_string).collect();
        writeln!(text, "group    {}, slots {}", group.group, slots.join(", "))?;
    }
    Ok(())
}

fn render_listeners(text: &mut String, status: &Status) -> std::fmt::Result {
    for listener in &status.listeners {
        writeln!(
            text,
            "listens  {} port {} ({}), slot {}",
            listener.address, listener.port, listener.space, listener.slot
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use urdma_ipc::status::{GroupStatus, LeaseStatus, LeaseWakeUp, PortStatus, SlotStatus};

    #[test]
    fn render_names_a_personality_that_is_not_the_default() {
        let status = Status {
            personality: Personality::Iwarp,
            ..Status::default()
        };
        let text = render(&status);
        assert!(text.contains("device   an RNIC (personality \"iwarp\")\n"));
    }

    #[test]
    fn render_of_portless_instance_names_address_and_slots() {
        let status = Status {
            instance: "a".to_owned(),
            addresses: vec![[127, 0, 0, 1].into()],
            slots_total: 253,
            slots: vec![SlotStatus {
                slot: 3,
                program: "ib_send_lat".to_owned(),
                ..SlotStatus::default()
            }],
            groups: vec![GroupStatus {
                group: [239, 1, 2, 3].into(),
                slots: vec![3, 17],
            }],
            ..Status::default()
        };
        let text = render(&status);
        assert!(text.contains("127.0.0.1"));
        assert!(text.contains("this host's own traffic only"));
        assert!(text.contains("ib_send_lat"));
        assert!(text.contains("group    239.1.2.3, slots 3, 17"));
        assert!(text.contains("1 of 253 attached"));
        assert!(!text.contains("device"));
        assert!(!text.contains("leases"));
    }

    #[test]
    fn render_of_a_lessee_says_what_wakes_it() {
        let report = ProcessReport {
            lease_wake_up: Some(LeaseWakeUp::Interrupt),
            ..ProcessReport::default()
        };
        let status = Status {
            slots: vec![SlotStatus {
                lease_queue: Some(1),
                report: Some(report),
                ..SlotStatus::default()
            }],
            ..Status::default()
        };
        let text = render(&status);
        assert!(text.contains("  lease  woken by\n"), "{text}");
        assert!(text.ends_with("      1 interrupt\n"), "{text}");
    }

    #[test]
    fn render_of_a_process_with_dc_targets_counts_their_contexts() {
        let slot = |slot, dc_targets, dc_contexts| SlotStatus {
            slot,
            report: Some(ProcessReport {
                dc_targets,
                dc_contexts,
                ..ProcessReport::default()
            }),
            ..SlotStatus::default()
        };
        let status = Status {
            slots: vec![slot(1, 2, 37), slot(2, 0, 0)],
            ..Status::default()
        };
        let text = render(&status);
        assert!(
            text.contains("\n       2 DC targets, 37 contexts\n   2 "),
            "{text}"
        );
        assert_eq!(text.matches("DC targets").count(), 1, "{text}");
    }

    #[test]
    fn render_of_a_port_says_how_packets_come_to_leased_queues() {
        let status = Status {
            port: Some(PortStatus::default()),
            leases: vec![LeaseStatus::default(); 2],
            lease_steering: Some(LeaseSteering::Table { entries: 128 }),
            ..Status::default()
        };
        let said = "leases   2 at most, packets come by the NIC's redirection table of 128 entries";
        assert!(render(&status).contains(said));
    }
}
