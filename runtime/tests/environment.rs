//! Restrictions from the environment, in processes of their own.

#[path = "toy/mod.rs"]
mod toy;

use gristmill_runtime::{Request, Shape};
use std::process::Command;

/// Tells a process that it is the child of a test.
const CHILD: &str = "GRISTMILL_TEST_CHILD";

/// What a process with these variables chooses for one token.
fn chosen_with(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its own program"));
    command.args(["--exact", "print_the_choice", "--nocapture"]).env(CHILD, "1");
    for variable in ["GRISTMILL_ISA", "GRISTMILL_KERNEL", "GRISTMILL_DISABLE"] {
        command.env_remove(variable);
    }
    let output = command.envs(variables.iter().copied()).output().expect("the program of this test starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let line = text.split("choice: ").nth(1).expect("a choice is printed");
    line.split(" :end").next().unwrap_or_default().to_owned()
}

/// The child process of the other tests; without their variable there is nothing to print.
#[test]
fn print_the_choice() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let shape = Shape::new(1, 8, 16);
    let outcome = toy::REGISTRY
        .prepare(&Request::matmul("tail2", shape))
        .and_then(|prepared| prepared.decide(shape).kernel());
    match outcome {
        Ok(entry) => println!("choice: {} :end", entry.name),
        Err(error) => println!("choice: error: {error} :end"),
    }
}

#[test]
fn the_environment_restricts() {
    assert_eq!(chosen_with(&[]), "matmul.tail2.avx2.decode");
    assert_eq!(chosen_with(&[("GRISTMILL_ISA", "sse4.1")]), "matmul.tail2.scalar");
    assert_eq!(chosen_with(&[("GRISTMILL_ISA", "")]), "matmul.tail2.avx2.decode");
    assert_eq!(chosen_with(&[("GRISTMILL_KERNEL", "matmul.tail2.scalar")]), "matmul.tail2.scalar");
    let disabled = "matmul.tail2.avx2.decode, matmul.tail2.scalar";
    let refused = chosen_with(&[("GRISTMILL_DISABLE", disabled)]);
    assert!(refused.contains("- matmul.tail2.{avx2.decode, scalar}: disabled by name"), "{refused}");
    assert!(refused.contains("help: lift the restriction (GRISTMILL_DISABLE)"), "{refused}");
}

#[test]
fn nonsense_in_the_environment_is_an_error() {
    let error = chosen_with(&[("GRISTMILL_ISA", "avx3")]);
    assert!(error.contains("GRISTMILL_ISA is `avx3`") && error.contains("did you mean `avx2`?"), "{error}");
    let error = chosen_with(&[("GRISTMILL_KERNEL", "matmul.tail2.scalr")]);
    assert!(error.contains("did you mean `matmul.tail2.scalar`?"), "{error}");
}
