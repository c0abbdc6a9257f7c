//! Arguments in another form than the two there are.

gristmill::kernel!();
gristmill::kernel!(nibble);
gristmill::kernel!(nibble, 3);
gristmill::kernel!("a.toml", "b.toml");
gristmill::kernel!(Nibble, "doc = 'a name that no spec can have'");

fn main() {}
