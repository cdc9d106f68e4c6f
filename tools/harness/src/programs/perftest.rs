//! perftest: latency and bandwidth of each operation.

use super::job::{words, Job, Reading, Ready};

/// Latency or bandwidth of one operation, by a perftest tool such as `ib_send_lat`.
pub fn perftest(tool: &str, size_octets: u32, rdma_cm: bool, port: u16, server: &str) -> Job {
    let iterations = if tool.ends_with("_lat") { 1000 } else { 2000 };
    let flag = if rdma_cm { " -R" } else { "" };
    let flags = format!("-n {iterations} -s {size_octets}{flag}");
    Job {
        label: format!("{tool}{flag}"),
        size_octets,
        ..perftest_with(tool, &flags, port, server)
    }
}

/// The extent of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// Every tool, and every flag with one tool that has it.
    Fast,
    /// Every tool with every flag that it has.
    All,
}

/// Flags of perftest that several operations have.
const COMMON: [&str; 8] = [
    "-c XRC",
    "-R",
    "-e",
    "-m 256",
    "-x 1",
    "-s 1",
    "-s 4097",
    "-s 1048576",
];
/// Flags of the bandwidth tools.
const BANDWIDTH: [&str; 5] = ["-a", "-b", "-q 16", "-b -q 4 -R", "-c XRC -b -q 4"];
/// Flags of Send and Write, which unreliable connections have.
const ONE_WAY: [&str; 2] = ["-c UC", "-I 64 -s 64"];
/// Flags of Send.
const SEND: [&str; 7] = [
    "-c XRC -e",
    "-c UC -e",
    "-c UC --use-srq",
    "-c UD -s 1024",
    "-c UD -R -s 1024",
    "-R -e",
    "--use-srq",
];

/// perftest's eight tools with their flags.
///
/// Combinations that perftest itself refuses are not included: Writes with `-e`, atomics of another
/// size, latency with `-b` and `-q`, `-c XRC` and `-c UC` with `-R`. `-a` of the latency tools is
/// omitted: perftest measures the processor's frequency again for each of 23 sizes, for seconds
/// each on a busy machine.
pub fn perftest_matrix(selection: Selection, first_port: u16, server: &str) -> Vec<Job> {
    let mut all = Vec::new();
    for operation in ["send", "write", "read", "atomic"] {
        for measure in ["lat", "bw"] {
            let tool = format!("ib_{operation}_{measure}");
            let flags = flags_of(operation, measure).into_iter();
            all.extend(flags.map(|flags| (tool.clone(), flags)));
        }
    }
    let chosen = match selection {
        Selection::All => all,
        Selection::Fast => each_once(&all),
    };
    (first_port..)
        .zip(chosen)
        .map(|(port, (tool, flags))| Job {
            label: format!("{tool} {flags}"),
            ..perftest_with(&tool, &enough(flags), port, server)
        })
        .collect()
}

/// Every flag once, with the tool that was chosen least so far.
fn each_once<'a>(all: &[(String, &'a str)]) -> Vec<(String, &'a str)> {
    let mut chosen: Vec<(String, &str)> = Vec::new();
    for (_, flags) in all {
        if chosen.iter().all(|(_, taken)| taken != flags) {
            let able = all.iter().filter(|(_, has)| has == flags);
            let uses = |tool: &str| chosen.iter().filter(|(used, _)| used == tool).count();
            let least = able.min_by_key(|(tool, _)| uses(tool)).cloned();
            chosen.extend(least);
        }
    }
    chosen
}

/// Flags for the smallest number of iterations with a result, unless the duration is given.
fn enough(flags: &str) -> String {
    if flags.contains("-D") {
        flags.to_owned()
    } else {
        format!("-n 200 {flags}")
    }
}

fn flags_of(operation: &str, measure: &str) -> Vec<&'static str> {
    let has = |flags: &str| match operation {
        "write" => flags != "-e",
        "atomic" => !flags.contains("-s") && flags != "-a",
        _ => true,
    };
    let mut flags = COMMON.to_vec();
    if measure == "bw" {
        flags.extend(BANDWIDTH);
    }
    if operation == "send" {
        flags.extend(SEND);
    }
    if matches!(operation, "send" | "write") {
        flags.extend(ONE_WAY);
    }
    flags.retain(|flags| has(flags));
    // Two seconds, without margins.
    flags.push("-D 2 -f 0");
    flags
}

/// One tool with flags.
fn perftest_with(tool: &str, flags: &str, port: u16, server: &str) -> Job {
    let common = words(&format!("{tool} -F -p {port} {flags}"));
    let mut client = common.clone();
    client.push(server.to_owned());
    let ready = if flags.contains("-R") {
        Ready::Cm(port)
    } else {
        Ready::Tcp(port)
    };
    Job {
        label: format!("{tool} {flags}"),
        size_octets: 0,
        server: common,
        client,
        ready,
        reading: match tool.ends_with("_lat") {
            true if flags.contains("-D") => Reading::PerftestAverage,
            true => Reading::PerftestLatency,
            false => Reading::PerftestBandwidth,
        },
        serves_forever: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_selection_has_every_tool_and_every_flag() {
        let all = perftest_matrix(Selection::All, 1, "127.0.0.1");
        let fast = perftest_matrix(Selection::Fast, 1, "127.0.0.1");
        assert!(fast.len() * 3 < all.len());
        let parts = |jobs: &[Job], tool: bool| {
            let labels = jobs.iter().filter_map(|job| job.label.split_once(' '));
            let part = |(name, flags): (&str, &str)| (if tool { name } else { flags }).to_owned();
            labels.map(part).collect::<std::collections::BTreeSet<_>>()
        };
        for tool in [true, false] {
            assert_eq!(parts(&fast, tool), parts(&all, tool));
        }
    }
}
