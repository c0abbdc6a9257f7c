//! What a scalar type costs: the files that name one, by the example of `ue4m3-half`.

use places::{are_in_the_walk, files_that_name};

mod places;

/// What every type needs, as `CONTRIBUTING.md` says in "Adding a scalar type".
const NEEDED: [&str; 5] = [
    "codegen/src/lower/stored.rs",
    "kernel-spec/src/model/format.rs",
    "oracle/src/layout.rs",
    "src/cli/verify/inputs.rs",
    "src/cli/verify/scales.rs",
];

/// What it needs for more than being read: to lie in packings as stored, to be searched for, to share a super-block,
/// to be multiplied as it is.
const MORE: [&str; 9] = [
    "codegen/src/emit/terms.rs",
    "codegen/src/plan/search.rs",
    "codegen/src/plan/superblock.rs",
    "codegen/src/plan/terms.rs",
    "kernel-spec/src/check/search.rs",
    "kernel-spec/src/model/fp4.rs",
    "oracle/src/fp4.rs",
    "oracle/src/product.rs",
    "runtime/src/arithmetic/search/levels.rs",
];

/// Where the primitives of ISAs are: a module each.
const PRIMITIVES: &str = "runtime/src/simd/";

/// Whether a line of code names the type, as a variant or as a part of an identifier.
fn names_it(line: &str) -> bool {
    line.contains("Ue4m3Half") || line.contains("ue4m3")
}

#[test]
fn a_scalar_type_is_named_in_few_files() -> Result<(), Box<dyn std::error::Error>> {
    let named = files_that_name(|path| path.starts_with(PRIMITIVES), names_it)?;
    let mut expected = [NEEDED.as_slice(), &MORE].concat();
    expected.sort_unstable();
    assert_eq!(named, expected, "files that name `ue4m3-half`");
    are_in_the_walk(&named)
}
