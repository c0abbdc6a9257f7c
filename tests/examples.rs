//! The examples do what they say: each ends with an error if its results are wrong.
#![cfg(all(feature = "bitnet", feature = "ggml"))]

#[path = "../examples/gguf_layer.rs"]
mod gguf_layer;
#[path = "../examples/minimal.rs"]
mod minimal;
#[path = "../examples/receipts.rs"]
mod receipts;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn minimal_runs() -> Outcome {
    minimal::main()
}

#[test]
fn gguf_layer_runs() -> Outcome {
    gguf_layer::main()
}

#[test]
fn receipts_runs() -> Outcome {
    receipts::main()
}
