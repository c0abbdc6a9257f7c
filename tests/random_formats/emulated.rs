//! CUDA kernels that decode blocks, in the emulator.

use super::random::Random;
use super::support::{Buffer, Unit, can_run};
use super::{Subject, TENSORS, all_right, same, subjects};
use gristmill::REGISTRY;
use gristmill_codegen::cuda::{CudaListed, DEVICE_HEADER, emit};
use gristmill_spec::vocab::Op;
use gristmill_spec::{SourceFile, check};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A number of the launch.
fn number(listed: &CudaListed, name: &str) -> usize {
    let numbers = listed.plan.launch.numbers();
    numbers.iter().find(|(of, _)| *of == name).expect("a launch has it").1 as usize
}

#[test]
fn dequantize_in_the_emulator_gives_the_drawn_bits() {
    let subjects = subjects();
    if subjects.is_empty() || !can_run("random formats as CUDA kernels") {
        return;
    }
    let source = |source: &gristmill::registry::Source| SourceFile {
        path: source.path.to_owned(),
        bytes: source.bytes.to_vec(),
    };
    let sources: Vec<SourceFile> = REGISTRY.sources.iter().map(source).collect();
    let set = check(&sources).set.expect("the specs of this build check");
    let emitted = emit(&set).unwrap_or_else(|errors| panic!("{errors:?}"));
    let kernels: Vec<(&str, &CudaListed)> = emitted
        .listed
        .iter()
        .filter(|listed| listed.op == Op::Dequantize)
        .map(|listed| (set.formats[listed.format].name.as_str(), listed))
        .collect();
    // g++ takes most of the time, and two of them the whole of two processors.
    let waiting = Mutex::new(subjects.iter());
    let found = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("nobody panics with it").next();
                    let Some(subject) = next else { break };
                    let name = subject.info.name;
                    let mut of_format = kernels.iter().filter(|(format, _)| *format == name);
                    let outcome = of_format.next().map_or(Err("no kernel".to_owned()), |(_, listed)| {
                        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit);
                        let text = unit.map(|unit| unit.text.replace(DEVICE_HEADER, "")).unwrap_or_default();
                        run(subject, listed, &Unit::new(&listed.unit, &text))
                    });
                    found.lock().expect("nobody panics with it").insert(name, outcome);
                }
            });
        }
    });
    let found = found.into_inner().expect("nobody panicked with it");
    all_right(&subjects, |subject| found[subject.info.name].clone());
    println!("{} kernels", found.len());
}

fn run(subject: &Subject, listed: &CudaListed, unit: &Unit) -> Result<(), String> {
    let (threads, per_thread) = (number(listed, "threads"), number(listed, "per_thread"));
    let mut random = Random::new(33, subject.info.name);
    for (seed, (n, blocks, data)) in TENSORS.into_iter().enumerate() {
        let k = blocks * subject.drawn.elements;
        let tensor = subject.drawn.tensor(&mut random, n, blocks, data);
        let src = Buffer::input("src", &tensor.bytes);
        let dst = Buffer::<f32>::unset("dst", n * k);
        let fault = Buffer::output("fault", &[u64::MAX]);
        let grid = (n * k).div_ceil(per_thread).div_ceil(threads) as u32;
        let row_bytes = subject.info.row_bytes(k).map_err(|error| error.to_string())? as u64;
        let launch = unit
            .launch(listed.plan.launch.function())
            .grid(grid, 1)
            .threads(threads as u32)
            .seed(seed as u64);
        let launch = launch.arg(&src).arg(&dst).arg(n as u32).arg(k as u32).arg(row_bytes).arg(&fault);
        launch.run()?;
        if fault.read()[0] != u64::MAX {
            return Err(format!("fault {} in the emulator", fault.read()[0]));
        }
        same("in the emulator", &dst.try_read()?, &tensor.weights)?;
    }
    Ok(())
}
