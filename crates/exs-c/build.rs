//! Names the library as it is installed.

fn main() {
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,liburdma-exs.so.0");
    // The library is never unloaded, since its thread runs in it.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
