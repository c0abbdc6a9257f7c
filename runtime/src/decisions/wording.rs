//! Words of reasons that both decisions and `require!` give.
//!
//! A [`Reason`](crate::reason::Reason) is formatted when somebody reads it; `require!` answers while a crate is compiled, where
//! nothing can be formatted and strings can only be put one behind the other. So what they share are the pieces.

pub(crate) const NO_FORMAT: &str = "no format `";
pub(crate) const IS_DESCRIBED: &str = "` is described";

pub(crate) const FORMAT: &str = "format `";
pub(crate) const BUT_FEATURE: &str = "` is described but not compiled: feature `";
pub(crate) const IS_OFF: &str = "` is off";
pub(crate) const BUILD_WITH: &str = "cargo build --features ";

pub(crate) const NOTHING_DOES: &str = "no kernel of this build does ";
pub(crate) const FOR_THIS_FORMAT: &str = " for this format";
pub(crate) const NAME_THE_FORMAT: &str = "name the format in a kernel file with op = \"";
pub(crate) const DESCRIBED_ARE: &str = "\"; described are: ";

pub(crate) const NOT_FOR_TYPE: &str = "not described for ";
pub(crate) const CONVERT_TO: &str = "convert to one of: ";

pub(crate) const NOT_FOR_DEVICE: &str = "no kernel is described for ";
pub(crate) const ADD_A_TABLE: &str = "add a [[cpu]] table to the kernel file";
pub(crate) const ASK_FOR_CPU: &str = "ask for device `cpu`, or let the policy `cpu` run it on the processor";

pub(crate) const CUDA_IS_OFF: &str = "not compiled: the cargo feature `cuda` is off";
pub(crate) const BUILD_WITH_CUDA: &str = "cargo build --features cuda";
pub(crate) const NO_CUDA_COMPILER: &str = "not compiled: the build found no CUDA compiler in ";
pub(crate) const PLACES: &str = " places";
pub(crate) const INSTALL_CUDA: &str = "install a CUDA compiler and build again: `gristmill doctor` says how";

pub(crate) const CANT_BE_QUANTIZED: &str = "activations can't be quantized to `";
pub(crate) const GIVE_INT8: &str = "give int8 activations with their scales";
