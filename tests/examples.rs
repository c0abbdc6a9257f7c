//! The examples do what they say: each ends with an error if its results are wrong.
#![cfg(all(feature = "bitnet", feature = "ggml"))]

#[path = "../examples/custom_format.rs"]
mod custom_format;
#[path = "../examples/gguf_layer.rs"]
mod gguf_layer;
#[path = "../examples/minimal.rs"]
mod minimal;
#[cfg(feature = "rayon")]
#[path = "../examples/own_threads.rs"]
mod own_threads;
#[path = "../examples/receipts.rs"]
mod receipts;
#[path = "../examples/shared_activations.rs"]
mod shared_activations;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn minimal_runs() -> Outcome {
    minimal::main()
}

#[test]
fn custom_format_runs() -> Outcome {
    custom_format::main()
}

#[test]
fn gguf_layer_runs() -> Outcome {
    gguf_layer::main()
}

#[test]
#[cfg(feature = "rayon")]
fn own_threads_runs() -> Outcome {
    own_threads::main()
}

#[test]
fn receipts_runs() -> Outcome {
    receipts::main()
}

#[test]
fn shared_activations_runs() -> Outcome {
    shared_activations::main()
}
