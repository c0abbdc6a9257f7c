//! A name that a shipped format has.

gristmill::kernel!(q4_0, r#"
doc   = "2 bits a weight"
block = { elements = 4, bytes = 1 }

[[field]]
name   = "q"
type   = "u2"
layout = { shape = [4], stride = [2], offset = 0 }

[value]
code = "q"
zero = 1
"#);

fn main() {}
