//! Mistakes of a spec are shown as a build script shows them, all of them.

mod nibble {
    gristmill::kernel!(nibble, r#"
doc   = "4 bits a weight"
block = { elements = 32, bytes = 18 }

[[field]]
name = "d"
type = "f16"

[[field]]
name   = "q"
type   = "u4"
layout = { shape = [32], stride = [4], offset = 16 }

[value]
code  = "qs"
zero  = 8
scale = ["dd"]
"#);
}

fn main() {}
