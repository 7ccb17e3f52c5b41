//! Gives the library the name under which programs look for it.

fn main() {
    // Changes with every change that programs built before would not survive.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libspillway.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
