//! Decisions at compile time: what `require!` asks of a registry.
//!
//! The build that holds the registry answers with the same `candidates` function that decisions go by;
//! what is here puts the no into the words of [`Reason`](crate::reason::Reason), whose pieces stand in `wording`. Shapes and processors are
//! not known to a compiler, so a yes means that the build holds a kernel, not that every machine runs it.

use crate::decisions::wording::{
    ADD_A_TABLE, ASK_FOR_CPU, BUILD_WITH, BUILD_WITH_CUDA, BUT_FEATURE, CANT_BE_QUANTIZED, CONVERT_TO,
    CUDA_IS_OFF, DESCRIBED_ARE, FOR_THIS_FORMAT, FORMAT, GIVE_INT8, INSTALL_CUDA, IS_DESCRIBED, IS_OFF,
    NAME_THE_FORMAT, NO_CUDA_COMPILER, NO_FORMAT, NOT_FOR_DEVICE, NOT_FOR_TYPE, NOTHING_DOES, PLACES,
};
use crate::descriptions::names::shared_facts;
use crate::registry::{ActivationInfo, CudaBuild, FormatInfo, LeftOut, WithoutImage, same_name};
use gristmill_spec::vocab::{DType, DeviceKind, Op, Serves};

/// What stands in front of help.
const HELP: &str = "\n  help: ";

/// Bytes of a message. What does not fit is left out; only lists of hundreds of formats get there.
const CAPACITY: usize = 4096;

/// A message that is put together while compiling.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Text {
    /// No message.
    pub const EMPTY: Text = Text { bytes: [0; CAPACITY], len: 0 };

    /// This message with `part` behind it, or unchanged if there is no room for all of it.
    pub const fn push(mut self, part: &str) -> Text {
        let part = part.as_bytes();
        if part.len() > CAPACITY - self.len {
            return self;
        }
        let mut at = 0;
        while at < part.len() {
            self.bytes[self.len + at] = part[at];
            at += 1;
        }
        self.len += part.len();
        self
    }

    /// Whether nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The message.
    pub const fn as_str(&self) -> &str {
        // Only whole strings are ever pushed.
        match std::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            Err(_) => "",
        }
    }
}

/// For one format: whether a build holds a kernel, by op, type and device (in the order of their words).
pub type Held = [[[bool; DeviceKind::ALL.len()]; DType::ALL.len()]; Op::ALL.len()];

/// What of a request it is that a build has no kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The type: there are kernels for others on this device.
    Input,
    /// The device: there are kernels for others.
    Device,
    /// The op.
    Op,
}

/// What a build lacks for this, given what it holds for the format; `None` if nothing. Decisions and `require!` ask here.
pub(crate) const fn missing(held: &Held, op: Op, input: DType, device: DeviceKind) -> Option<Missing> {
    let (op, device) = (op as usize, device as usize);
    if held[op][input as usize][device] {
        return None;
    }
    let (mut there, mut at) = (false, 0);
    while at < DType::ALL.len() {
        there |= held[op][at][device];
        at += 1;
    }
    Some(match (there, any_device(held, op)) {
        (true, _) => Missing::Input,
        (false, true) => Missing::Device,
        (false, false) => Missing::Op,
    })
}

/// Whether it is the build's lack of CUDA that a GPU has no kernel for: `described` ones have no image, or a build without the
/// feature knows of none (`known`) at all.
pub(crate) const fn lacks_cuda(cuda: CudaBuild, described: bool, known: bool) -> bool {
    described || matches!(cuda, CudaBuild::FeatureOff) && !known
}

/// A [`Held`] without a kernel.
pub const NOTHING_HELD: Held = [[[false; DeviceKind::ALL.len()]; DType::ALL.len()]; Op::ALL.len()];

/// What a crate requires.
#[derive(Clone, Copy, Debug)]
pub struct Required<'a> {
    /// What is to be computed.
    pub op: Op,
    /// Name of the weight format, or of the activation format for `quantize_activations`.
    pub format: &'a str,
    /// Type of the unpacked operand, as in [`Request::input`](crate::request::Request::input).
    pub input: DType,
    /// Where.
    pub device: DeviceKind,
}

/// Where a registry's names and what it left out are written down.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Weight formats.
    pub formats: &'static [FormatInfo],
    /// Activation formats.
    pub activations: &'static [ActivationInfo],
    /// Formats that were described but not compiled.
    pub left_out: &'static [LeftOut],
    /// What the build did about CUDA.
    pub cuda: CudaBuild,
    /// CUDA kernels that are described but have no image.
    pub without_image: &'static [WithoutImage],
}

impl Names {
    /// The name of a format of the kind that an op's kernels are numbered by.
    const fn served(&self, op: Op, at: usize) -> Option<&'static str> {
        match op.info().serves {
            Serves::Formats if at < self.formats.len() => Some(self.formats[at].facts().name),
            Serves::Activations if at < self.activations.len() => Some(self.activations[at].name),
            Serves::Formats | Serves::Activations => None,
        }
    }
}

impl Required<'_> {
    /// Index of the format among `names`; `None` if it is not there.
    pub const fn position(&self, names: &Names) -> Option<usize> {
        let mut at = 0;
        while let Some(name) = names.served(self.op, at) {
            if same_name(name, self.format) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    /// The op that float activations need in front of this one, and the index of the activation format that it is for.
    pub const fn activations(&self, names: &Names, format: usize) -> Option<(Op, usize)> {
        match (self.input, self.op.info().quantized_by) {
            (DType::F32 | DType::F16 | DType::Bf16, Some(op)) => {
                Some((op, names.formats[format].facts().activations))
            }
            (DType::F32 | DType::F16 | DType::Bf16 | DType::I8, _) => None,
        }
    }

    const fn no_kernel(&self) -> Text {
        Text::EMPTY
            .push("no kernel for ")
            .push(self.op.name())
            .push(" of `")
            .push(self.format)
            .push("` (")
            .push(self.input.name())
            .push(") on ")
            .push(self.device.name())
            .push("\n  - ")
    }

    /// Why not, where the format is not in the registry.
    pub const fn without_format(&self, names: &Names) -> Text {
        let mut at = 0;
        while at < names.left_out.len() {
            let LeftOut { format, feature, .. } = names.left_out[at];
            if same_name(format, self.format) {
                return self
                    .no_kernel()
                    .push(FORMAT)
                    .push(format)
                    .push(BUT_FEATURE)
                    .push(feature)
                    .push(IS_OFF)
                    .push(HELP)
                    .push(BUILD_WITH)
                    .push(feature);
            }
            at += 1;
        }
        let mut text = self.no_kernel().push(NO_FORMAT).push(self.format).push(IS_DESCRIBED).push(HELP);
        text = text.push(
            "describe it in a TOML file of this build, bring it in with `with_shipped`, or use one of: ",
        );
        let mut at = 0;
        while let Some(name) = names.served(self.op, at) {
            text = listed(text, at == 0, name);
            at += 1;
        }
        if at == 0 { text.push("none") } else { text }
    }

    /// The name of a kernel without an image, if it is for what is required.
    const fn asks(&self, kernel: &WithoutImage, index: usize) -> Option<&'static str> {
        if kernel.op as usize == self.op as usize && kernel.format == index {
            Some(kernel.name)
        } else {
            None
        }
    }

    /// Why kernels for a GPU that are described have no image; empty if that is not what is wrong. `index` is that
    /// of the format.
    pub const fn without_image(&self, names: &Names, index: usize, held: &Held) -> Text {
        if !matches!(self.device, DeviceKind::Cuda)
            || held[self.op as usize][self.input as usize][self.device as usize]
        {
            return Text::EMPTY;
        }
        let mut text = self.no_kernel();
        let (mut described, mut shared, mut at) = (0, usize::MAX, 0);
        let mut first = "";
        while at < names.without_image.len() {
            if let Some(name) = self.asks(&names.without_image[at], index) {
                let common = if described == 0 { name.len() } else { shared_facts(first, name) };
                shared = if common < shared { common } else { shared };
                first = if described == 0 { name } else { first };
                described += 1;
            }
            at += 1;
        }
        if !lacks_cuda(names.cuda, described > 0, !names.without_image.is_empty()) {
            return Text::EMPTY;
        }
        // One reason holds for all of them, so it is said once.
        if described == 1 {
            text = no_image(text.push(first).push(": "), names.cuda);
        } else if described > 1 {
            text = text.push(first.split_at(shared).0).push("{");
            let (mut said, mut at) = (0, 0);
            while at < names.without_image.len() {
                if let Some(name) = self.asks(&names.without_image[at], index) {
                    text = listed(text, said == 0, name.split_at(shared).1);
                    said += 1;
                }
                at += 1;
            }
            text = no_image(text.push("}: "), names.cuda);
        }
        if described == 0 {
            text = no_image(text, names.cuda);
        }
        text.push(HELP).push(match names.cuda {
            CudaBuild::FeatureOff => BUILD_WITH_CUDA,
            CudaBuild::NoToolchain { .. } => INSTALL_CUDA,
            CudaBuild::Built { .. } => "see the warnings of the build",
        })
    }

    /// Why not, given what the build holds for the format; empty if it holds what is required.
    pub const fn explain(&self, held: &Held) -> Text {
        let Some(missing) = missing(held, self.op, self.input, self.device) else { return Text::EMPTY };
        let mut text = self.no_kernel();
        match missing {
            Missing::Input => {
                text = text.push(NOT_FOR_TYPE).push(self.input.name()).push(HELP).push(CONVERT_TO);
                let (mut first, mut at) = (true, 0);
                while at < DType::ALL.len() {
                    if held[self.op as usize][at][self.device as usize] {
                        text = listed(text, first, DType::ALL[at].name());
                        first = false;
                    }
                    at += 1;
                }
                return text;
            }
            Missing::Device => {
                text = text.push(NOT_FOR_DEVICE).push(self.device.name()).push(HELP);
                return match self.device {
                    DeviceKind::Cpu => text.push(ADD_A_TABLE),
                    DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => text.push(ASK_FOR_CPU),
                };
            }
            Missing::Op => {}
        }
        text = text
            .push(NOTHING_DOES)
            .push(self.op.name())
            .push(FOR_THIS_FORMAT)
            .push(HELP)
            .push(NAME_THE_FORMAT)
            .push(self.op.name())
            .push(DESCRIBED_ARE);
        let (mut first, mut at) = (true, 0);
        while at < Op::ALL.len() {
            if any_device(held, at) {
                text = listed(text, first, Op::ALL[at].name());
                first = false;
            }
            at += 1;
        }
        if first { text.push("none") } else { text }
    }

    /// Why not, where a product is held but nothing makes its int8 activations.
    pub const fn without_activations(&self, name: &str) -> Text {
        self.no_kernel().push(CANT_BE_QUANTIZED).push(name).push("`").push(HELP).push(GIVE_INT8)
    }
}

/// As [`Reason`](crate::reason::Reason) says it.
const fn no_image(text: Text, cuda: CudaBuild) -> Text {
    match cuda {
        CudaBuild::FeatureOff => text.push(CUDA_IS_OFF),
        CudaBuild::NoToolchain { looked } => number(text.push(NO_CUDA_COMPILER), looked.len()).push(PLACES),
        CudaBuild::Built { .. } => text.push("not compiled: the build made no image of it"),
    }
}

/// A number in decimal.
const fn number(text: Text, value: usize) -> Text {
    const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let text = if value >= 10 { number(text, value / 10) } else { text };
    text.push(DIGITS[value % 10])
}

const fn any_device(held: &Held, op: usize) -> bool {
    let mut dtype = 0;
    while dtype < DType::ALL.len() {
        let mut device = 0;
        while device < DeviceKind::ALL.len() {
            if held[op][dtype][device] {
                return true;
            }
            device += 1;
        }
        dtype += 1;
    }
    false
}

const fn listed(text: Text, first: bool, name: &str) -> Text {
    if first { text.push(name) } else { text.push(", ").push(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_left_out_whole() {
        let long = "é".repeat(CAPACITY / 2 - 1);
        let text = Text::EMPTY.push(&long).push("éé").push("é");
        assert_eq!(text.as_str(), format!("{long}é"));
        assert!(Text::EMPTY.push("").is_empty());
    }

    #[test]
    fn indices_follow_the_vocabulary() {
        let mut held = NOTHING_HELD;
        for (op, word) in Op::ALL.iter().enumerate() {
            for (dtype, input) in DType::ALL.iter().enumerate() {
                for (kind, device) in DeviceKind::ALL.iter().enumerate() {
                    let required = Required { op: *word, format: "f", input: *input, device: *device };
                    assert!(!required.explain(&held).is_empty());
                    held[op][dtype][kind] = true;
                    assert!(required.explain(&held).is_empty());
                    held[op][dtype][kind] = false;
                }
            }
        }
    }
}
