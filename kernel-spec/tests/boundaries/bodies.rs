//! Bodies in C and C++: files, functions and includes that are there or not.

use super::kernels::formats;
use super::{golden, of_kernel, said, source};
use gristmill_spec::check;
use gristmill_spec::model::CpuBody;

const KERNEL: &str = "doc = \"x\"\nop = \"dequantize\"\nformats = [\"a\"]\n[[cpu]]\nisa = \"scalar\"\n[[cpu]]\nisa = \"avx2\"\nbody = \"b.c\"\nfunction = \"mine\"\n";
const BODY: &str = "static gm_fault mine(void);\n";

#[test]
fn in_c() {
    let mut text = String::new();
    let written = |from: &str, to: &str| KERNEL.replace(from, to);
    for (name, kernel, files) in [
        ("as it stands", KERNEL.to_owned(), vec![("kernels/b.c", BODY)]),
        ("in C++", written("b.c", "b.cpp"), vec![("kernels/b.cpp", BODY)]),
        ("the other ending of C++", written("b.c", "b-1.cc"), vec![("kernels/b-1.cc", BODY)]),
        ("the reference", written("[[cpu]]\nisa = \"avx2\"\n", ""), vec![("kernels/b.c", BODY)]),
        ("no file", KERNEL.to_owned(), vec![]),
        ("of another folder", KERNEL.to_owned(), vec![("b.c", BODY)]),
        ("in a folder", written("b.c", "below/b.c"), vec![("kernels/below/b.c", BODY)]),
        ("another language", written("b.c", "b.rs"), vec![]),
        ("of CUDA", written("b.c", "b.cu"), vec![("kernels/b.cu", BODY)]),
        ("a header", written("b.c", "b.h"), vec![("kernels/b.h", BODY)]),
        ("no stem", written("b.c", ".c"), vec![]),
        ("no language", written("b.c", "c"), vec![]),
        ("without its function", KERNEL.to_owned(), vec![("kernels/b.c", "static gm_fault mines(void);\n")]),
        ("a path of Rust", written("mine", "crate::mine"), vec![("kernels/b.c", BODY)]),
        ("no function", written("function = \"mine\"\n", ""), vec![("kernels/b.c", BODY)]),
        (
            "with includes",
            KERNEL.to_owned(),
            vec![
                (
                    "kernels/b.c",
                    "#include <math.h>\n#include \"gristmill.h\"\n # include \"one.h\" // what\nmine\n",
                ),
                ("kernels/one.h", "#include \"two.hpp\"\n"),
                ("kernels/two.hpp", "#include \"one.h\"\n"),
            ],
        ),
        (
            "without an include of an include",
            KERNEL.to_owned(),
            vec![("kernels/b.c", "#include \"one.h\"\nmine\n"), ("kernels/one.h", "#include \"two.h\"\n")],
        ),
        (
            "with a file that nothing names",
            KERNEL.to_owned(),
            vec![
                ("kernels/b.c", "#include \"c.c\"\nmine\n"),
                ("kernels/c.c", ""),
                ("kernels/d.c", ""),
                ("kernels/d.h", ""),
            ],
        ),
        (
            "for a GPU",
            format!(
                "{}[[cuda]]\nalgorithm = \"blocks\"\nbody = \"b.c\"\nfunction = \"mine\"\n",
                written("b.c", "b.cc")
            ),
            vec![("kernels/b.c", BODY), ("kernels/b.cc", BODY)],
        ),
    ] {
        let mut beside = formats();
        beside.extend(files.iter().map(|(path, text)| source(path, (*text).to_owned())));
        let said = said(source("kernels/k.toml", kernel), &beside, |set| of_kernel(&set.kernels[0]));
        text += &format!("{name}\n{said}\n");
    }
    golden("bodies", &text);
}

/// All text that a kernel is compiled from, files apart, each once.
#[test]
fn a_body_is_its_includes_too() {
    let mut sources = formats();
    sources.push(source("kernels/k.toml", KERNEL.to_owned()));
    sources.push(source("kernels/b.c", "#include \"one.h\"\n#include \"one.h\"\nmine\n".to_owned()));
    sources.push(source("kernels/one.h", "1\n".to_owned()));
    let set = check(&sources).set.expect("sound");
    let Some(CpuBody::C(body)) = &set.kernels[0].cpu[1].body else { panic!("a body in C") };
    assert_eq!(body.text, "b.c\n#include \"one.h\"\n#include \"one.h\"\nmine\n\none.h\n1\n\n");
    assert_eq!((body.file.as_str(), body.function.as_str()), ("kernels/b.c", "mine"));
    assert_eq!(&KERNEL[body.named.clone()], "\"b.c\"");
    assert!(!body.is_cpp());
}
