//! The tables of this build.

#[test]
fn the_tables_of_this_build_agree() {
    assert_eq!(gristmill::REGISTRY.check(), Ok(()));
}
