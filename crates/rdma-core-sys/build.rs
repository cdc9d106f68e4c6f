//! Generates bindings of the public header of the installed libibverbs. It links nothing: the
//! plugin calls the copy that opens its device.

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

fn configure() -> Result<(), String> {
    let library = pkg_config::Config::new()
        .cargo_metadata(false)
        .probe("libibverbs")
        .map_err(|error| {
            format!(
                "libibverbs and its headers are needed: apt-get install libibverbs-dev pkg-config \
             ({error})"
            )
        })?;
    bind(&library)
}

/// Writes the declarations of `infiniband/verbs.h` to `$OUT_DIR/verbs.rs`.
fn bind(library: &pkg_config::Library) -> Result<(), String> {
    let include = library
        .include_paths
        .iter()
        .map(|path| format!("-I{}", path.display()));
    let bindings = bindgen::Builder::default()
        .header_contents("wrapper.h", "#include <infiniband/verbs.h>\n")
        .clang_args(include)
        .allowlist_file(".*/infiniband/(verbs|verbs_api|ib_user_ioctl_verbs)\\.h")
        // The types of the libc crate, so that its functions accept the fields.
        .blocklist_type("pthread_.*|timespec")
        .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, timespec};")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false)
        .generate()
        .map_err(|error| {
            format!(
                "binding infiniband/verbs.h failed: {error}; is libclang there? \
                 apt-get install libclang-dev"
            )
        })?;
    let out = PathBuf::from(std::env::var("OUT_DIR").map_err(|error| error.to_string())?)
        .join("verbs.rs");
    bindings
        .write_to_file(&out)
        .map_err(|error| format!("cannot write {}: {error}", out.display()))
}
