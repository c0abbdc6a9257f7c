//! Tuning files: read, used in decisions, and written again with what they said of other machines.

use crate::seeds::Seed;
use gristmill::runtime::vocab::Op;
use gristmill::tuning::{Measured, ShapeClass, cpu};
use gristmill::{CpuProfile, REGISTRY, Request, Restrict, Shape, Tuning};

/// Never panics; decides for the same shapes whatever the file says; what is written is read back the same.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let tuning = Tuning::parse(&text, &REGISTRY, cpu());
    for aside in tuning.set_aside() {
        assert!(!aside.to_string().is_empty());
    }
    for format in REGISTRY.formats.iter().take(2) {
        for m in [1, 8, 512] {
            let shape = Shape::new(m, 256, 256);
            let request = Request::matmul(format.name, shape);
            let (profile, free) = (CpuProfile::detect(), Restrict::default());
            let tuned =
                REGISTRY.prepare_tuned(&request, profile, &free, &tuning).expect("nothing is restricted");
            let plain = REGISTRY.prepare_for(&request, profile, &free).expect("nothing is restricted");
            let (tuned, plain) = (tuned.decide(shape), plain.decide(shape));
            assert_eq!(tuned.chosen().is_some(), plain.chosen().is_some(), "{}", format.name);
        }
    }
    let written = tuning.text(&text);
    let again = Tuning::parse(&written, &REGISTRY, cpu());
    assert!(again.measured().len() >= tuning.measured().len().min(1), "what was measured is lost");
    // The second time there is nothing more to lose.
    assert_eq!(
        Tuning::parse(&again.text(&written), &REGISTRY, cpu()).measured().len(),
        again.measured().len()
    );
}

/// Orders of real kernels, for this processor, another and a GPU.
pub fn seeds() -> Vec<Seed> {
    let mut measured = Vec::new();
    for (index, format) in REGISTRY.formats.iter().enumerate().take(2) {
        let order: Vec<_> = REGISTRY
            .entries
            .iter()
            .filter(|entry| entry.op == Op::Matmul && entry.format == index)
            .zip(1..)
            .map(|(entry, us)| (entry.id, f64::from(us)))
            .collect();
        for class in ShapeClass::all().take(4) {
            let (on, format) = (cpu().to_owned(), format.name.to_owned());
            let (op, quantizer, threads, order) = (Op::Matmul, None, 1, order.clone());
            measured.push(Measured { on, op, format, quantizer, class, threads, order });
        }
    }
    let here = Tuning::of(measured).text("");
    let other = here.replace(cpu(), "cpu x86_64 another");
    let gpu = here.replace(cpu(), "gpu NVIDIA H200 9.0 driver 13.0");
    let body = |text: &str| text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned());
    let all = format!("{here}{}{}", body(&other), body(&gpu));
    [("here", here), ("other", other), ("gpu", gpu), ("all", all)]
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.into_bytes()))
        .collect()
}
