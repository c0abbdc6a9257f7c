//! A warning about a spec is a warning about the macro's argument.
#![deny(deprecated)]

mod two_bits {
    gristmill::kernel!(two_bits, r#"
doc   = "2 bits a weight, and a byte that nothing reads"
block = { elements = 4, bytes = 2 }

[[field]]
name   = "q"
type   = "u2"
layout = { shape = [4], stride = [2], offset = 0 }

[[field]]
name   = "extra"
type   = "u8"
layout = { offset = 8 }

[value]
code = "q"
zero = 1
"#);
}

fn main() {}
