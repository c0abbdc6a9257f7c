//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

/// Why nothing was measured, recorded or drawn.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(
    not(any(feature = "ik", feature = "ggml")),
    allow(dead_code, reason = "only measuring meets these")
)]
pub enum Error {
    /// The build holds no peer.
    #[error(
        "this build holds nobody to compare with\n  help: build with `--features ik` or `--features ggml`"
    )]
    #[cfg_attr(any(feature = "ik", feature = "ggml"), allow(dead_code, reason = "this build holds a peer"))]
    NoPeer,
    /// No type of the peer is one of ours.
    #[error(
        "nothing of {peer} is compared with `{format}`\n  help: without `--formats` all pairs are measured"
    )]
    NoPair { peer: &'static str, format: String },
    /// Ours refuses.
    #[error(transparent)]
    Gristmill(#[from] gristmill::Error),
    /// The peer refuses.
    #[error("{0} failed to {1}")]
    Peer(&'static str, &'static str),
    /// Results differ by more than the activations' quantization explains.
    #[error(
        "{ours} and {theirs} disagree at m = {m}, n = {n}, k = {k}: normalized error {nmse:.1e}, at most {bound:.0e} \
         comes from quantizing activations in two ways"
    )]
    Disagree { ours: String, theirs: String, m: usize, n: usize, k: usize, nmse: f64, bound: f64 },
    /// Ours is held to an ISA and the peer is not.
    #[error(
        "our kernels are held to {isa} and {peer} is compiled for {compiled_for}\n  help: without the feature `native` and \
         with CFLAGS and CXXFLAGS that name the features of {isa} it is held to it, too"
    )]
    CompiledFor { peer: &'static str, isa: &'static str, compiled_for: String },
    /// Our decoder refuses.
    #[error(transparent)]
    Decoder(#[from] decoder::Error),
    /// The peer refuses a whole model.
    #[error("{peer} failed to {action}: {why}")]
    PeerModel { peer: &'static str, action: String, why: String },
    /// The sides read different vocabularies.
    #[error("our decoder reads a vocabulary of {ours} tokens, {peer} one of {theirs}")]
    Vocabulary { peer: &'static str, ours: usize, theirs: usize },
    /// Logits differ by more than quantized activations explain.
    #[error(
        "our logits and those of {peer} differ: normalized error {nmse:.1e}, at most {bound:.0e} comes from quantizing activations \
         and caches in two ways\n  help: `--nmse` sets the bound, for models in which small differences grow, as those with experts"
    )]
    Logits { peer: &'static str, nmse: f64, bound: f64 },
    /// A record would not be of an idle machine.
    #[error(
        "other programs kept {others:.2} processors busy {when}, and beside a record they may keep {most} busy: nothing is recorded\n  \
         help: without `--record` the same is measured and printed"
    )]
    Busy { when: &'static str, others: f64, most: f64 },
    /// A file.
    #[error("can't {action} `{}`: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// A record that is none.
    #[error("`{}` is no record: {source}", path.display())]
    Record { path: PathBuf, source: serde_json::Error },
    /// A record of another machine, which stays as it is.
    #[error("`{}` is a record of another machine\n  help: name another file", path.display())]
    OtherMachine { path: PathBuf },
    /// A command that failed.
    #[error("`{0}` failed: {1}")]
    Command(String, String),
    /// A picture that could not be drawn.
    #[error("can't draw: {0}")]
    Draw(String),
}

impl Error {
    /// An error about a file.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::File { action, path: path.to_owned(), source }
    }
}
