//! The example that swaps layers in candle's llama ends with an error if the tokens differ.

/// The example without its arguments.
#[path = "../examples/llama/main.rs"]
#[expect(dead_code, reason = "its main function")]
mod llama;

#[test]
fn the_swapped_llama_writes_the_same_tokens() {
    llama::random_weights([7, 24]).expect("the same tokens");
}
