//! Links the library so that its constructor runs before any other.

fn main() {
    // Fork handlers run in the child in the order of registration. This library's handler must be the first, so its
    // constructor must run first.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
