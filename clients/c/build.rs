//! Sets the library's soname, by which programs find it.

fn main() {
    // Increase the number with every incompatible change of the ABI.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libspillway.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
