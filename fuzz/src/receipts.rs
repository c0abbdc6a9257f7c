//! Receipts: `verify-receipt`, with and without a demand.

use crate::command;
use crate::seeds::Seed;
use gristmill::{Dequantizer, QuantizedMatrix, REGISTRY, Recording, Request};

/// Never panics, whatever JSON (or not) it is.
pub fn run(data: &[u8]) {
    let path = command::file(data);
    command::run(&["verify-receipt"], path, &["--require", "cpu"]);
}

/// The receipt of a launch, and changed ones.
pub fn seeds() -> Vec<Seed> {
    let recording = Recording::new(&REGISTRY);
    for format in REGISTRY.formats.iter().take(2) {
        let (n, k) = (1, format.elements);
        let bytes = vec![0u8; format.tensor_bytes(n, k).expect("a block")];
        let request = Request::dequantize(format.name, n, k);
        let prepared = REGISTRY.prepare(&request).expect("a format of this build");
        let mut kernel =
            Dequantizer::new(&prepared.decide_as_asked()).expect("the portable kernel, at least");
        kernel.record(Some(&recording)).expect("of the same registry");
        let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("as many bytes as it takes");
        // Zero may be no code of it.
        let _ = kernel.run(&matrix, &mut vec![0.0; n * k]);
    }
    let whole = recording.receipt().to_json();
    let fallback = r#""fallbacks":[{"policy":"dequantize","op":"matmul","format":"i2_s","device":"cpu:0","reason":"r","instead":"scalar","runs":3}]"#;
    let several = whole.replace(r#""fallbacks":[]"#, fallback);
    let gpu = whole.replace(r#""devices":["cpu"]"#, r#""devices":["cuda",7,null]"#);
    [("whole", whole), ("fallback", several), ("gpu", gpu), ("empty", "{}".to_owned())]
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.into_bytes()))
        .collect()
}
