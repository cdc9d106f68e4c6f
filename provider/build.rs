//! Link arguments of the plugin.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The engine's threads run until the process ends: a program that closes libibverbs must not
    // unmap their code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
