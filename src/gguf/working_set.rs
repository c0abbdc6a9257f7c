//! How many bytes of weights take turns when a model runs.

use super::file::Store;
use super::read::Gguf;

impl<B: Store> Gguf<B> {
    /// Bytes of the tensors that each step of the model reads, as they lie in the file: what to say as
    /// [`Request::working_set`](crate::Request::working_set). These are all of them, but for an embedding of which a step reads
    /// single rows: `token_embd.weight`, where the output has a tensor of its own. Tensors whose size is not known count nothing.
    ///
    /// Of a mixture of experts all experts count, since they take turns from step to step.
    pub fn working_set(&self) -> u64 {
        let looked_up = self.tensor("output.weight").map(|_| "token_embd.weight");
        let read = self.tensors().filter(|tensor| Some(tensor.name()) != looked_up);
        read.filter_map(|tensor| tensor.size().ok()).fold(0, u64::saturating_add)
    }
}
