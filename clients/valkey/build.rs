//! Keeps the shared object mapped once it is loaded.

fn main() {
    // A server that refuses the module unloads it. The Rust runtime has registered destructors for the ends of threads
    // by then, and they must not point into unmapped memory.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
