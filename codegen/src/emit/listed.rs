//! Kernels as they will stand in the registry, and their names.

use crate::hash::hash;
use crate::options::Options;
use crate::plan::{features, of_whole_blocks};
use gristmill_spec::model::{CpuBody, CpuVariant, Kernel, ShapeRules};
use gristmill_spec::vocab::{DType, DeviceKind, Feature, Isa, Op};

/// A kernel as it will stand in the registry.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Facts in order: `matmul.i2_s.avx2.decode`.
    pub name: String,
    /// Identity: a hash of the code and of what compiled it, but for the text of a body by hand in Rust.
    pub id: u64,
    /// The path of a body by hand in Rust, whose text the registry adds to the identity.
    pub body: Option<String>,
    /// The op.
    pub op: Op,
    /// Index of the format (or of the activation format).
    pub format: usize,
    /// Index of the quantizer.
    pub quantizer: usize,
    /// Accepted input types.
    pub input: Vec<DType>,
    /// Kind of device.
    pub device: DeviceKind,
    /// ISA of the processor; `None` for other devices.
    pub isa: Option<Isa>,
    /// All features.
    pub features: Vec<Feature>,
    /// Shape rules, those of the spec and the derived ones.
    pub shape: ShapeRules,
    /// `file:line` of the variant.
    pub source: String,
    /// The plan in words.
    pub plan: String,
    /// Rust expression of its `Code`.
    pub(super) code: String,
    /// Order of preference: higher is better.
    pub(super) rank: (bool, Option<Isa>, usize, std::cmp::Reverse<usize>),
}

/// A variant that serves a format: its kernel family, its place among all of the op, and itself.
pub(super) type Serving<'a> = (&'a Kernel, usize, &'a CpuVariant);

/// A kernel that was made.
pub(super) struct Made<'k> {
    pub(super) serving: Serving<'k>,
    /// Index and name of the quantizer.
    pub(super) quantizer: Option<(usize, &'k str)>,
    /// The plan in words.
    pub(super) plan: String,
    /// Rust expression of its `Code`.
    pub(super) code: String,
    /// What its identity is made of.
    pub(super) text: &'k str,
    /// What its plan says of shapes.
    pub(super) limits: Limits,
}

/// What the plan of a kernel says of the shapes that it takes, besides its variant.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Fewest tokens for which it pays.
    pub(super) m_min: u64,
    /// Largest k for which it is right.
    pub(super) k_max: u64,
}

impl Limits {
    /// All shapes of its variant.
    pub(super) const NONE: Limits = Limits { m_min: 0, k_max: u64::MAX };
}

/// The format that kernels are listed for, or the activation format.
pub(super) struct Listing<'a> {
    /// Its index.
    pub(super) format: usize,
    pub(super) format_name: &'a str,
    /// Elements of a block, of which rows are whole ones.
    pub(super) elements: u32,
    pub(super) options: &'a Options,
}

impl Listing<'_> {
    /// The entry of a kernel.
    pub(super) fn entry(&self, made: Made<'_>) -> Listed {
        let Made { serving: (kernel, order, variant), quantizer, plan, code, text, limits } = made;
        let mut shape = of_whole_blocks(variant.shape, self.elements);
        shape.m.min = shape.m.min.max(limits.m_min);
        shape.k.max = shape.k.max.min(limits.k_max);
        let name = kernel_name(&kernel.name, self.format_name, quantizer.map(|(_, name)| name), variant);
        let features = features(variant);
        let mut parts = vec![name.as_str(), &self.options.compiler, env!("CARGO_PKG_VERSION")];
        // By words: how the text is laid out before it is formatted is no part of the code.
        parts.extend(text.split_whitespace());
        let (body, plan) = match &variant.body {
            None => (None, plan),
            Some(CpuBody::Rust(path)) => (Some(path.clone()), plan),
            Some(CpuBody::C(c)) => {
                parts.extend([c.text.as_str(), &self.options.c_compiler]);
                (None, format!("by hand: `{}` of {}", c.function, c.file))
            }
        };
        Listed {
            id: hash(parts),
            body,
            name,
            op: kernel.op,
            format: self.format,
            quantizer: quantizer.map_or(0, |(index, _)| index),
            input: kernel.input.clone(),
            device: DeviceKind::Cpu,
            isa: Some(variant.isa),
            rank: (variant.by_default, Some(variant.isa), variant.requires.len(), std::cmp::Reverse(order)),
            features,
            shape,
            source: format!("{}:{}", variant.origin.file, variant.origin.line),
            plan,
            code,
        }
    }
}

/// Facts in order: `matmul.i2_s.avx512.avx512vnni.decode`, with the quantizer behind the format if there is one.
pub fn kernel_name(kernel: &str, format: &str, quantizer: Option<&str>, variant: &CpuVariant) -> String {
    kernel_words(kernel, format, quantizer, variant.words())
}

/// Facts in order, with the words of a variant last.
pub(crate) fn kernel_words<'w>(
    kernel: &'w str,
    format: &'w str,
    quantizer: Option<&'w str>,
    variant: impl IntoIterator<Item = &'w str>,
) -> String {
    let mut words = vec![kernel, format];
    words.extend(quantizer);
    words.extend(variant);
    words.join(".")
}
