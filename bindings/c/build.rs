//! Names the shared library after the version of its ABI (`SONAME`), so that a program finds the one that it was linked with and
//! libraries of several versions can be installed side by side.

fn main() {
    println!("cargo:rerun-if-changed=src/lib.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let source = std::fs::read_to_string("src/lib.rs").expect("the package has src/lib.rs");
    let (_, version) = source.split_once("GM_ABI_VERSION: u32 = ").expect("src/lib.rs states GM_ABI_VERSION");
    let (version, _) = version.split_once(';').expect("a statement ends");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgristmill.so.{version}");
}
