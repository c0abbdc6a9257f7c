//! Tensors without elements whose other dimensions are as large as a header can say: answers at once, whatever is asked.
#![cfg(unix)]

use super::{limited, raw};
use gristmill::gguf::{LayerOptions, Model, ModelError, TypeNumbers};
use gristmill::{GuardOptions, REGISTRY, Threads};

const MANY: u64 = 1 << 50;

/// In a process that may have two gigabytes and a minute.
#[test]
fn empty_tensors_of_many_rows_or_matrices_are_answered_at_once() {
    let test = format!("{}::empty_tensors_of_many_rows_or_matrices_are_answered_at_once", module_path!());
    if let Some(said) = limited(&test, 2_000_000) {
        assert!(said.contains(&format!("{} formats answered", REGISTRY.formats.len())), "{said}");
        return;
    }
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        ask_all();
        send.send(()).unwrap();
    });
    receive.recv_timeout(std::time::Duration::from_secs(60)).expect("an answer");
    println!("{} formats answered", REGISTRY.formats.len());
}

fn ask_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let threads = Threads::new(2).unwrap();
    let options = LayerOptions::new(&threads);
    for format in REGISTRY.formats {
        let elements = format.elements as u64;
        let tail = format.tensor_tail.map_or(0, |(_, bytes)| bytes);
        for dims in [&[elements, 0, MANY][..], &[0, 4, MANY], &[0, MANY, 4], &[elements, 0], &[0, MANY]] {
            let number = 1000;
            std::fs::write(&path, raw(&[], &[("w", dims, number, 0)], &vec![0; tail])).unwrap();
            let types = TypeNumbers::new(&REGISTRY).named(number, format.name).unwrap();
            let model = match Model::open_with(&path, types) {
                // Rows that have headers take bytes.
                Err(_) if format.row_header.is_some() => continue,
                model => model.unwrap(),
            };
            let at = format!("{} {dims:?}", format.name);
            println!("{at}");
            match model.experts(&["w"], &options) {
                Err(ModelError::Dimensions { why, .. }) if dims.len() == 3 => {
                    assert!(why.contains("no elements"), "{at}: {why}");
                }
                Err(ModelError::Dimensions { .. }) if dims.len() == 2 => {}
                other => panic!("{at}: {other:?}"),
            }
            // What it is does not matter here, only that there is an answer.
            let _ = (model.matrix("w").is_ok(), model.matrix_rows("w", 0..0).is_ok());
            let _ = (model.linear("w", &options).is_ok(), model.linear_rows("w", 0..0, &options).is_ok());
            let _ = model.stacked(&["w", "w"], &options).is_ok();
            let _ = model.guarded("w", GuardOptions::default(), &options).is_ok();
            let _ = (model.floats("w").is_ok(), model.vector("w", 0).is_ok());
        }
    }
}
