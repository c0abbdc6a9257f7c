//! Generated code finds the runtime where it is told, CUDA kernels in the registry included: a crate that depends on `gristmill` alone
//! can't name the package that the runtime is in.

use gristmill_codegen::{Builder, CudaImageFile, CudaImages, Options, compile, cuda};
use gristmill_spec::shipped;
use gristmill_spec::vocab::CudaArch;
use proc_macro2::{TokenStream, TokenTree};
use std::path::Path;

/// All identifiers. What is quoted, as specs and their paths, is none.
fn identifiers(tokens: TokenStream, into: &mut Vec<String>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => identifiers(group.stream(), into),
            TokenTree::Ident(ident) => into.push(ident.to_string()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[test]
fn the_runtime_is_named_by_the_path_that_was_given() {
    // One whose products are by tensor cores with sums of rows, one with super-blocks.
    let builder = Builder::from_memory(shipped().expect("readable")).with_shipped(["i2_s", "q4_k"]);
    let built = builder.compile(Path::new(""), "test".into(), "test".into());
    let (_, set, _) = built.unwrap_or_else(|error| panic!("{error}"));
    let arch = CudaArch { major: 9, minor: 0, specific: true };
    let units = cuda::emit(&set).expect("plans").units;
    let image = |unit: cuda::Unit| CudaImageFile {
        unit: unit.name,
        arch,
        ptx: false,
        driver: (12, 0),
        usage: Vec::new(),
        size: 0,
        path: "image".into(),
    };
    let options = Options {
        runtime: "::given::path".to_owned(),
        cuda: CudaImages::Built {
            compiler: "nvcc".to_owned(),
            architectures: vec![arch],
            images: units.into_iter().map(image).collect(),
            failures: Vec::new(),
        },
        ..Options::default()
    };
    let code = compile(&set, &[], &options).expect("compiles").code;
    let mut names = Vec::new();
    identifiers(code.parse().expect("Rust"), &mut names);
    for launch in ["Matmul", "Rows", "Quantize", "Experts"] {
        assert!(
            names.windows(2).any(|two| two == ["CudaLaunch", launch]),
            "no kernel of `CudaLaunch::{launch}`"
        );
    }
    let others: Vec<&String> = names.iter().filter(|name| name.starts_with("gristmill")).collect();
    assert!(others.is_empty(), "{} names, first {:?}", others.len(), others.first());
    assert!(names.windows(2).any(|two| two == ["given", "path"]));
    assert!(!code.contains("gristmill_runtime"), "documentation, too");
}
