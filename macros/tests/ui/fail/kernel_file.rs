//! Files that are not there, not in the package, or no files.

mod missing {
    gristmill::kernel!("specs/no_such_format.toml");
}

mod outside {
    gristmill::kernel!("../secret.toml");
}

mod absolute {
    gristmill::kernel!("/etc/hostname");
}

mod folder {
    gristmill::kernel!(".");
}

fn main() {}
