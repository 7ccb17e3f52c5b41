//! Keeps the shared object mapped once it is loaded.

fn main() {
    // A server that refuses the module closes it; what the Rust runtime registered for the end of a thread
    // must not point into nothing then.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
