//! Finds the installed libibverbs, learns its private ABI number and binds its public header.
//!
//! Emits `cfg(pabi = "<number>")`, cumulative `cfg(pabi_59)` and `cfg(pabi_64)`, and the metadata `pabi` for
//! the build scripts of dependents (`DEP_IBVERBS_PABI`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use object::Endianness;

/// Private ABI numbers whose layouts `src/private.rs` knows.
const KNOWN_PABI: [u32; 4] = [34, 57, 59, 64];

/// What the version name of libibverbs' private symbols begins with.
const PRIVATE_VERSION: &str = "IBVERBS_PRIVATE_";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(pabi, values(\"34\", \"57\", \"59\", \"64\"))");
    println!("cargo:rustc-check-cfg=cfg(pabi_59)");
    println!("cargo:rustc-check-cfg=cfg(pabi_64)");
    match configure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn configure() -> Result<(), String> {
    let library = pkg_config::Config::new().probe("libibverbs").map_err(|error| {
        format!("libibverbs and its headers are needed: apt-get install libibverbs-dev pkg-config ({error})")
    })?;
    let shared_object = shared_object(&library)?;
    println!("cargo:rerun-if-changed={}", shared_object.display());
    let pabi = private_abi(&shared_object)?;
    if !KNOWN_PABI.contains(&pabi) {
        return Err(format!(
            "{} has the private provider ABI {pabi}; this version of urdma knows {KNOWN_PABI:?}: \
             install one of those, or teach rdma-core-sys/src/private.rs the new one",
            shared_object.display()
        ));
    }
    println!("cargo:rustc-cfg=pabi=\"{pabi}\"");
    for later in [59, 64] {
        if pabi >= later {
            println!("cargo:rustc-cfg=pabi_{later}");
        }
    }
    println!("cargo:pabi={pabi}");
    bind(&library)
}

/// The path of libibverbs.so, which pkg-config does not say outright for system directories.
fn shared_object(library: &pkg_config::Library) -> Result<PathBuf, String> {
    let libdir = pkg_config::get_variable("libibverbs", "libdir")
        .ok()
        .map(PathBuf::from);
    let found = library
        .link_paths
        .iter()
        .chain(libdir.as_ref())
        .map(|directory| directory.join("libibverbs.so"))
        .find(|path| path.exists());
    found.ok_or_else(|| {
        "pkg-config knows libibverbs, but there is no libibverbs.so: apt-get install --reinstall libibverbs-dev".into()
    })
}

/// The number in the version name `IBVERBS_PRIVATE_<number>` that a libibverbs.so defines.
fn private_abi(path: &Path) -> Result<u32, String> {
    let data =
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let names = version_names(&data)
        .map_err(|error| format!("cannot parse {}: {error}", path.display()))?;
    names
        .iter()
        .find_map(|name| name.strip_prefix(PRIVATE_VERSION)?.parse().ok())
        .ok_or_else(|| {
            format!(
                "{} defines no {PRIVATE_VERSION}<number>: it is not rdma-core's libibverbs",
                path.display()
            )
        })
}

/// The names of the symbol versions that an ELF library defines.
fn version_names(data: &[u8]) -> object::read::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut names = Vec::new();
    for section in sections.iter() {
        let Some((mut definitions, link)) = section.gnu_verdef(endian, data)? else {
            continue;
        };
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut auxiliaries)) = definitions.next()? {
            if let Some(auxiliary) = auxiliaries.next()? {
                names.push(String::from_utf8_lossy(auxiliary.name(endian, strings)?).into_owned());
            }
        }
    }
    Ok(names)
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
        // libc's types, so that its functions can be called on them.
        .blocklist_type("pthread_.*|timespec")
        .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, timespec};")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false)
        .generate()
        .map_err(|error| format!("binding infiniband/verbs.h failed: {error}; is libclang there? apt-get install libclang-dev"))?;
    let out = PathBuf::from(std::env::var("OUT_DIR").map_err(|error| error.to_string())?)
        .join("verbs.rs");
    bindings
        .write_to_file(&out)
        .map_err(|error| format!("cannot write {}: {error}", out.display()))
}
