//! Generates bindings of the public headers of the installed libibverbs and librdmacm. It links
//! nothing: the plugin calls the copy that opens its device.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    match configure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Functions of librdmacm that are declared.
const RDMACM_FUNCTIONS: &str = "rdma_(accept|ack_cm_event|bind_addr|connect|create_event_channel|\
     create_id|create_qp|destroy_event_channel|destroy_id|destroy_qp|disconnect|event_str|\
     get_cm_event|get_src_port|listen|migrate_id|reject|resolve_addr|resolve_route)";

fn configure() -> Result<(), Box<dyn Error>> {
    let verbs = bindings("libibverbs", "infiniband/verbs.h")?
        .allowlist_file(".*/infiniband/(verbs|verbs_api|ib_user_ioctl_verbs)\\.h")
        // The types of the libc crate, so that its functions accept the fields.
        .blocklist_type("pthread_.*|timespec")
        .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, timespec};")
        .derive_default(true);
    write(verbs, "verbs.rs")?;
    let rdmacm = bindings("librdmacm", "rdma/rdma_cma.h")?
        .allowlist_function(RDMACM_FUNCTIONS)
        .allowlist_type(
            "rdma_(ib_)?(addr|cm_.*|conn_param|event_channel|port_space|route|ud_param)",
        )
        // Other types are those of the verbs and of the libc crate.
        .allowlist_recursively(false)
        .default_non_copy_union_style(bindgen::NonCopyUnionStyle::ManuallyDrop)
        .raw_line("use super::verbs::*;")
        .raw_line("use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};")
        .raw_line("pub enum ibv_sa_path_rec {}");
    write(rdmacm, "rdmacm.rs")
}

/// Bindings of a header of an installed library.
fn bindings(library: &str, header: &str) -> Result<bindgen::Builder, Box<dyn Error>> {
    let found = pkg_config::Config::new()
        .cargo_metadata(false)
        .probe(library)
        .map_err(|error| {
            format!(
                "{library} and its headers are needed: apt-get install {library}-dev pkg-config \
             ({error})"
            )
        })?;
    let include = found
        .include_paths
        .iter()
        .map(|path| format!("-I{}", path.display()));
    Ok(bindgen::Builder::default()
        .header_contents("wrapper.h", &format!("#include <{header}>\n"))
        .clang_args(include)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(true)
        .generate_comments(false))
}

/// Writes the declarations to `$OUT_DIR/{file}`.
fn write(bindings: bindgen::Builder, file: &str) -> Result<(), Box<dyn Error>> {
    let bindings = bindings.generate().map_err(|error| {
        format!("writing {file} failed: {error}; is libclang there? apt-get install libclang-dev")
    })?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join(file);
    bindings
        .write_to_file(&out)
        .map_err(|error| format!("cannot write {}: {error}", out.display()))?;
    Ok(())
}
