//! The state of an instance as metrics, in Prometheus' text format (version 0.0.4).

use std::fmt::Write;

use crate::status::{SlotStatus, SocketStatus, Status};

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prefix of counters of drops, which have the reason as a label.
const DROP: &str = "drop_";

/// The family of all counters of processes, whose names are a label.
const PROCESS_COUNTER: &str = "process_counter_total";

/// The family of sockets without rings.
const ON_TCP: &str = "sockets_on_tcp_total";

/// The metrics. Names begin with `urdma_`; those of processes have the labels `slot`, `pid` and
/// `program`.
pub fn text(status: &Status) -> String {
    let mut page = Page::default();
    let version = [
        ("instance", &*status.instance),
        ("version", &*status.version),
    ];
    page.family("info", "gauge", "The instance and the version of urdmad.");
    page.sample("info", &version, 1);
    let counters = &status.counters;
    for (name, kind, help, value) in [
        (
            "uptime_seconds",
            "gauge",
            "Seconds since urdmad became ready.",
            status.uptime_s,
        ),
        (
            "slots",
            "gauge",
            "Slots for processes.",
            status.slots_total.into(),
        ),
        (
            "attached",
            "gauge",
            "Attached processes.",
            status.slots.len() as u64,
        ),
        (
            "attached_total",
            "counter",
            "Processes that attached.",
            counters.attached,
        ),
        (
            "reaped_total",
            "counter",
            "Processes that ended without detaching.",
            counters.reaped,
        ),
        (
            "attach_refused_total",
            "counter",
            "Refused attachments.",
            counters.attach_refused,
        ),
        (
            "attach_delayed_total",
            "counter",
            "Attachments that waited for the rate of their user.",
            counters.attach_delayed,
        ),
        (
            "report_counters_unknown_total",
            "counter",
            "Counters of processes left out because urdmad does not know their names.",
            counters.report_counters_unknown,
        ),
        (
            "log_lines_lost_total",
            "counter",
            "Lines that could not be written to the log.",
            counters.log_lines_lost,
        ),
        (
            "listeners",
            "gauge",
            "CM ports that are listened on.",
            status.listeners.len() as u64,
        ),
        (
            "leases",
            "gauge",
            "Leased queue pairs of the port.",
            status
                .leases
                .iter()
                .filter(|lease| lease.slot.is_some())
                .count() as u64,
        ),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    }
    if let Some(port) = &status.port {
        page.family("port_up", "gauge", "Whether the port's link is up.");
        let labels = [("kind", &*port.kind), ("device", &*port.device)];
        page.sample("port_up", &labels, port.link_up.into());
    }
    sockets(&mut page, &status.sockets);
    daemon_counters(&mut page, status);
    processes(&mut page, &status.slots);
    page.0
}

/// TCP connections over rings. The reasons are the only label.
fn sockets(page: &mut Page, sockets: &SocketStatus) {
    for (name, kind, help, value) in [
        (
            "sockets_open",
            "gauge",
            "TCP connections whose ends have rings.",
            sockets.open,
        ),
        (
            "sockets_waiting",
            "gauge",
            "Sockets whose peer is not offered rings.",
            sockets.waiting,
        ),
        (
            "sockets_joined_total",
            "counter",
            "TCP connections whose ends got rings.",
            sockets.joined,
        ),
        (
            "sockets_ring_octets_total",
            "counter",
            "Octets that were sent over rings.",
            sockets.ring_octets,
        ),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    }
    page.family(
        ON_TCP,
        "counter",
        "Sockets that stay with TCP or moved back to it, by reason.",
    );
    for (reason, count) in &sockets.reasons {
        page.sample(ON_TCP, &[("reason", reason.name())], *count);
    }
}

/// The counters of urdmad's data path.
fn daemon_counters(page: &mut Page, status: &Status) {
    let data = &status.counters.data;
    let drops = || {
        data.iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(DROP)?, *value)))
    };
    page.family(
        "dropped_total",
        "counter",
        "Packets that urdmad dropped, by reason.",
    );
    for (reason, value) in drops() {
        page.sample("dropped_total", &[("reason", reason)], value);
    }
    for (name, value) in data.iter().filter(|(name, _)| !name.starts_with(DROP)) {
        let name = format!("daemon_{name}_total");
        page.family(&name, "counter", "A counter of urdmad's data path.");
        page.sample(&name, &[], *value);
    }
}

/// The objects and counters of processes.
fn processes(page: &mut Page, slots: &[SlotStatus]) {
    type Object = (&'static str, &'static str, fn(&crate::ProcessReport) -> u32);
    let objects: [Object; 7] = [
        ("process_queue_pairs", "Queue pairs.", |report| report.qps),
        ("process_connected", "Queue pairs in RTS.", |report| {
            report.qps_connected
        }),
        (
            "process_completion_queues",
            "Completion queues.",
            |report| report.cqs,
        ),
        ("process_memory_regions", "Memory regions.", |report| {
            report.mrs
        }),
        (
            "process_dc_targets",
            "Targets of the dynamically connected transport in RTR.",
            |report| report.dc_targets,
        ),
        (
            "process_dc_contexts",
            "Contexts of initiators that its targets have.",
            |report| report.dc_contexts,
        ),
        (
            "process_sleeping",
            "Whether no thread of it looks for packets.",
            |report| report.sleeping.into(),
        ),
    ];
    for (name, help, value) in objects {
        page.family(name, "gauge", help);
        for slot in slots {
            if let Some(report) = &slot.report {
                page.process(name, slot, &[], value(report).into());
            }
        }
    }
    page.family(PROCESS_COUNTER, "counter", "Counters of processes.");
    for slot in slots {
        let report = slot.report.iter();
        for (counter, value) in report.flat_map(|report| &report.counters) {
            page.process(PROCESS_COUNTER, slot, &[("counter", counter)], *value);
        }
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.0,
            "# HELP urdma_{name} {help}\n# TYPE urdma_{name} {kind}"
        );
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let _ = write!(self.0, "urdma_{name}");
        for (at, (label, content)) in labels.iter().enumerate() {
            let begin = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{begin}{label}=\"{}\"", escaped(content));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    fn process(&mut self, name: &str, slot: &SlotStatus, more: &[(&str, &str)], value: u64) {
        let (number, pid) = (slot.slot.to_string(), slot.pid.to_string());
        let labels = [
            ("slot", &*number),
            ("pid", &*pid),
            ("program", &*slot.program),
        ];
        self.sample(name, &[&labels, more].concat(), value);
    }
}

/// A label's value with the characters escaped that end it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProcessReport, SocketReason};

    #[test]
    fn processes_choose_neither_names_nor_lines() {
        let counters = [("fine", 7), ("bad name", 8), ("x\ny", 9), ("a\"} 1", 1)];
        let mut status = Status {
            instance: "a".to_owned(),
            slots: vec![SlotStatus {
                slot: 3,
                program: "p\"\\\n".to_owned(),
                report: Some(ProcessReport {
                    qps: 2,
                    dc_contexts: 4,
                    counters: counters
                        .map(|(name, value)| (name.to_owned(), value))
                        .into(),
                    ..ProcessReport::default()
                }),
                ..SlotStatus::default()
            }],
            ..Status::default()
        };
        status.counters.data.insert("drop_rx_full".to_owned(), 5);
        status.counters.data.insert("rx_packets".to_owned(), 6);
        status.sockets.open = 2;
        status.sockets.reasons.insert(SocketReason::Shutdown, 3);
        let text = text(&status);
        let labels = r#"{slot="3",pid="0",program="p\"\\\n"}"#;
        let counter = |name: &str, value: u64| {
            let labels = labels.trim_end_matches('}');
            format!("urdma_process_counter_total{labels},counter=\"{name}\"}} {value}")
        };
        for line in [
            r#"urdma_dropped_total{reason="rx_full"} 5"#,
            "urdma_daemon_rx_packets_total 6",
            "urdma_sockets_open 2",
            r#"urdma_sockets_on_tcp_total{reason="shutdown"} 3"#,
            &format!("urdma_process_queue_pairs{labels} 2"),
            &format!("urdma_process_dc_contexts{labels} 4"),
            &counter("fine", 7),
            &counter("bad name", 8),
            &counter("x\\ny", 9),
            &counter("a\\\"} 1", 1),
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no {line} in:\n{text}"
            );
        }
        let is_sound = |line: &str| line.starts_with("# ") || line.starts_with("urdma_");
        assert!(text.lines().all(is_sound), "{text}");
        let families = text.lines().filter(|line| line.starts_with("# TYPE"));
        let mut names: Vec<&str> = families.collect();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(!names.iter().any(|line| line.contains("fine")), "{text}");
    }
}
