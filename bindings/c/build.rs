//! Names the shared library after the version of its ABI (`SONAME`), so that a program finds the one that it was linked with and
//! libraries of several versions can be installed side by side, and writes for `install` that name and the pkg-config file.

#[path = "src/abi.rs"]
mod abi;

fn main() {
    // What is compiled into this program starts it again.
    println!("cargo:rerun-if-changed=build.rs");
    let soname = format!("libgristmill.so.{}", abi::GM_ABI_VERSION);
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    }
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let pc = include_str!("gristmill.pc.in").replace("@version@", env!("CARGO_PKG_VERSION"));
    std::fs::write(out.join("soname"), soname).expect("OUT_DIR is writable");
    std::fs::write(out.join("gristmill.pc"), pc).expect("OUT_DIR is writable");
}
