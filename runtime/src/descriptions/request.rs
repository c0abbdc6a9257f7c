//! What somebody asks for, and what an operator may forbid.

mod precision;
mod shape;

pub use precision::PrecisionMode;
pub use shape::Shape;

use crate::descriptions::names;
use crate::device::Device;
use crate::error::Error;
use crate::quarantine::{Quarantine, Quarantined};
use crate::registry::Entry;
use gristmill_spec::vocab::{Arch, DType, Isa, Op};

/// A request for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What is to be computed.
    pub op: Op,
    /// Name of the weight format, or of the activation format for `quantize_activations`.
    pub format: &'a str,
    /// Name of the quantizer; `None`: the format's default. Read only for `quantize`.
    pub quantizer: Option<&'a str>,
    /// Type of the operand that is not packed ([`OpInfo::unpacked`](gristmill_spec::vocab::OpInfo::unpacked)): the activations
    /// of a product, the source of a quantizer, the result of what decodes.
    pub input: DType,
    /// Where.
    pub device: Device,
    /// How large.
    pub shape: Shape,
    /// What a product may multiply. Read only for `matmul`.
    pub precision: PrecisionMode,
    /// Bytes of weights that take turns with these, these included: of a model, what all products of one step read, as they
    /// lie in its file. Where the last-level cache of the processor does not hold so many, weights are held in the packing
    /// with the fewest bytes; otherwise, and where this is `None`, in the one that comes first in the kernel file. Read only
    /// for products.
    pub working_set: Option<u64>,
    /// Threads that will work on it, the calling one included: a tuning's orders are those that were measured on so many. Read
    /// only where there is a tuning; 1 where nothing else is said.
    pub threads: usize,
}

impl<'a> Request<'a> {
    /// f32 on the processor.
    pub(crate) const fn of(op: Op, format: &'a str, quantizer: Option<&'a str>, shape: Shape) -> Request<'a> {
        let (input, device, precision) = (DType::F32, Device::CPU, PrecisionMode::Int8);
        Request { op, format, quantizer, input, device, shape, precision, working_set: None, threads: 1 }
    }

    /// A product with f32 activations on the processor.
    pub const fn matmul(format: &'a str, shape: Shape) -> Request<'a> {
        Request::of(Op::Matmul, format, None, shape)
    }

    /// f32 to blocks on the processor.
    pub const fn quantize(format: &'a str, quantizer: Option<&'a str>, n: usize, k: usize) -> Request<'a> {
        let shape = Shape::matrix(n, k);
        Request::of(Op::Quantize, format, quantizer, shape)
    }

    /// Blocks to f32 on the processor.
    pub const fn dequantize(format: &'a str, n: usize, k: usize) -> Request<'a> {
        let shape = Shape::matrix(n, k);
        Request::of(Op::Dequantize, format, None, shape)
    }

    /// The same request for another input type.
    pub const fn with_input(self, input: DType) -> Request<'a> {
        Request { input, ..self }
    }

    /// The same request with products of another precision.
    pub const fn with_precision(self, precision: PrecisionMode) -> Request<'a> {
        Request { precision, ..self }
    }

    /// The same request where so many bytes of weights take turns ([`Request::working_set`]).
    pub const fn with_working_set(self, working_set: Option<u64>) -> Request<'a> {
        Request { working_set, ..self }
    }

    /// The same request for so many threads ([`Request::threads`]).
    pub const fn with_threads(self, threads: usize) -> Request<'a> {
        Request { threads, ..self }
    }

    /// The same request for another device.
    pub const fn on(self, device: Device) -> Request<'a> {
        Request { device, ..self }
    }
}

/// In how many packings the weights of a product are held on a GPU, where kernels for one token and kernels for many prefer
/// different ones. On the processor they are held once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packings {
    /// In one, whose kernels take every number of tokens: that of the kernel that comes first for the most tokens.
    #[default]
    One,
    /// In that of the kernel that comes first for each number of tokens: weights are then held twice.
    Fastest,
}

impl Packings {
    /// Both.
    pub const ALL: &'static [Packings] = &[Packings::One, Packings::Fastest];

    /// The word of `GRISTMILL_PACKINGS` for it.
    pub const fn name(self) -> &'static str {
        match self {
            Packings::One => "one",
            Packings::Fastest => "fastest",
        }
    }
}

/// What an operator or a test forbids or prefers. The default forbids nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrict {
    /// Nothing above this ISA, in the order of the vocabulary; portable code is always allowed.
    pub isa: Option<Isa>,
    /// For the op and format of this kernel, only this kernel. Other ops and formats are not touched.
    pub kernel: Option<String>,
    /// None of the kernels of these names, in which `*` stands for any characters: `*.amx-int8.*`.
    pub disabled: Vec<String>,
    /// None of these kernels either, by id; one that the registry lacks is none of its build. [`Quarantine::kernels`] gives them.
    pub quarantined: Vec<Quarantined>,
    /// Products by kernels with this packing come before all others, where there are any. Weights are then held in this
    /// packing for every number of tokens that such a kernel takes.
    pub packing: Option<String>,
    /// In how many packings weights are held on a GPU.
    pub packings: Packings,
}

impl Restrict {
    /// Reads `GRISTMILL_ISA` (a name such as `avx2`), `GRISTMILL_KERNEL` (a kernel's name),
    /// `GRISTMILL_DISABLE` (kernel names, also with `*`, separated by commas), `GRISTMILL_PACKING` (a packing's name),
    /// `GRISTMILL_PACKINGS` (`one` or `fastest`), and the kernels in the folder of `GRISTMILL_QUARANTINE`
    /// ([`Quarantine::from_env`], which lets first runs be marked there). Unset and empty mean no restriction.
    ///
    /// # Errors
    /// A value that is not UTF-8, an ISA that does not exist, another word for packings, or a folder that is no quarantine. Names of kernels and packings are checked when they
    /// meet a registry.
    pub fn from_env() -> Result<Restrict, Error> {
        let mut restrict = Restrict::of_quarantine()?;
        if let Some(name) = variable("GRISTMILL_ISA")? {
            restrict.isa = Some(isa_named(&name)?);
        }
        restrict.kernel = variable("GRISTMILL_KERNEL")?;
        if let Some(names) = variable("GRISTMILL_DISABLE")? {
            restrict.disabled = split_names(&names);
        }
        restrict.packing = variable("GRISTMILL_PACKING")?;
        if let Some(name) = variable("GRISTMILL_PACKINGS")? {
            restrict.packings = packings_named(&name)?;
        }
        Ok(restrict)
    }

    /// What of the environment holds for programs that take no restrictions from it too: the kernels in the folder of `GRISTMILL_QUARANTINE`
    /// ([`Quarantine::from_env`]).
    ///
    /// # Errors
    /// As for [`Quarantine::from_env`].
    pub fn of_quarantine() -> Result<Restrict, Error> {
        let quarantined = Quarantine::from_env()?.map_or(Vec::new(), |quarantine| quarantine.kernels());
        Ok(Restrict { quarantined, ..Restrict::default() })
    }

    /// Whether the ISA limit lets `entry` pass.
    pub(crate) fn isa_allows(limit: Option<Isa>, entry: &Entry) -> bool {
        match (limit, entry.isa) {
            (None, _) | (Some(_), None) => true,
            (Some(limit), Some(isa)) => {
                isa.arch() == Arch::Any || (isa.arch() == limit.arch() && isa <= limit)
            }
        }
    }
}

fn split_names(names: &str) -> Vec<String> {
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn isa_named(name: &str) -> Result<Isa, Error> {
    Isa::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
        let meant = match names::nearest(name, known.iter().copied()) {
            Some(nearest) => format!(" (did you mean `{nearest}`?)"),
            None => String::new(),
        };
        Error::Environment {
            variable: "GRISTMILL_ISA",
            value: name.to_owned(),
            why: format!("no such ISA{meant}; known are {}", known.join(", ")),
        }
    })
}

fn packings_named(name: &str) -> Result<Packings, Error> {
    let found = Packings::ALL.iter().copied().find(|packings| packings.name() == name);
    found.ok_or_else(|| Error::Environment {
        variable: "GRISTMILL_PACKINGS",
        value: name.to_owned(),
        why: String::from("expected `one` or `fastest`"),
    })
}

fn variable(variable: &'static str) -> Result<Option<String>, Error> {
    match std::env::var(variable) {
        Ok(value) if value.trim().is_empty() => Ok(None),
        Ok(value) => Ok(Some(value.trim().to_owned())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => Err(Error::Environment {
            variable,
            value: value.to_string_lossy().into_owned(),
            why: String::from("it is no UTF-8"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precisions_have_the_names_that_they_are_written_by() {
        for mode in PrecisionMode::ALL {
            assert_eq!(PrecisionMode::from_name(mode.name()), Some(*mode));
        }
        assert_eq!(PrecisionMode::from_name("f64"), None);
    }

    #[test]
    fn isa_names_are_checked() -> Result<(), Error> {
        assert_eq!(isa_named("avx2")?, Isa::Avx2);
        let error = isa_named("avx3").expect_err("no such ISA").to_string();
        assert!(error.contains("GRISTMILL_ISA"), "{error}");
        assert!(error.contains("did you mean `avx2`?"), "{error}");
        Ok(())
    }

    #[test]
    fn words_for_packings_are_checked() -> Result<(), Error> {
        for packings in Packings::ALL {
            assert_eq!(packings_named(packings.name())?, *packings);
        }
        let error = packings_named("two").expect_err("no such word").to_string();
        assert!(error.contains("GRISTMILL_PACKINGS") && error.contains("`fastest`"), "{error}");
        Ok(())
    }

    #[test]
    fn lists_of_names() {
        assert_eq!(split_names(" a, b ,,c"), ["a", "b", "c"]);
        assert!(split_names(" , ").is_empty());
    }
}
