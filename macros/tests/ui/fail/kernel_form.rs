//! Arguments in another form than the two there are.

gristmill::kernel!();
gristmill::kernel!(nibble);
gristmill::kernel!(nibble, 3);
gristmill::kernel!("a.toml", "b.toml");
gristmill::kernel!(nibble, "not TOML");

fn main() {}
