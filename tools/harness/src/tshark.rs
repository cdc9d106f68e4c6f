//! Debian's tshark with `tools/wireshark/trp.lua`.
//!
//! As root it runs as `nobody`, because tshark loads no Lua scripts for root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::Failure;

/// User and group `nobody` and `nogroup` of Debian.
const NOBODY: u32 = 65_534;
const LIMIT_S: &str = "300";

/// A display filter for errors in a packet, found by the script or by Wireshark.
pub const MALFORMED: &str = "trp.broken or trp.trailing or _ws.malformed or _ws.lua.error \
    or udp.checksum.status == 0 or ip.checksum.status == 0 or _ws.expert.group == \"Malformed\"";

/// Runs tshark with `arguments` over `capture`, in `directory` (both become world-readable);
/// returns the printed lines.
///
/// # Errors
/// tshark is not installed, failed, or found an error in the script.
pub fn read(directory: &Path, capture: &Path, arguments: &[&str]) -> Result<Vec<String>, Failure> {
    // `nobody` may not be able to read the source tree.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wireshark/trp.lua");
    let script = directory.join("trp.lua");
    fs::write(&script, fs::read(source)?)?;
    for path in [directory, capture] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new("timeout");
    command
        .args([LIMIT_S, "tshark"])
        .env("HOME", directory)
        .env("LC_ALL", "C.UTF-8")
        .current_dir(directory)
        .arg(format!("-Xlua_script:{}", script.display()))
        .args(["-o", "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE"])
        .args(["-o", "udp.check_checksum:TRUE"])
        .args(["-o", "ip.check_checksum:TRUE"])
        .args(["--disable-heuristic", "rpcrdma_iwarp", "-n", "-r"])
        .arg(capture)
        .args(arguments);
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || errors.contains("Lua") {
        return Err(Failure::new(format!(
            "tshark, which scripts/install-deps.sh installs: {}, {errors}",
            output.status
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(str::to_owned).collect())
}
