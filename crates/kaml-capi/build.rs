//! Gives the shared library its soname: programs request `libkaml.so.<major>`, whatever the file is called.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkaml.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
}
