//! Names the library as it is installed.

fn main() {
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,liburdma-pool.so.0");
}
