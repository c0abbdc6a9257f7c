//! The names from which something is concluded: kernel families, on which device and for what; code for processors.
//!
//! Each family is known by names of its own. None is concluded from another's: a library with I2_S says nothing
//! about IQ2_S. An undefined name shows that somebody else must have the code, so only definitions count. Libraries
//! hold other projects' code too, whose names may end as these do (`blake3_hash_many_avx2`, `fma`): nothing is
//! concluded from a name that is not one of bitnet.cpp's, llama.cpp's or ggml's own.

use crate::symbols::identifier;

/// How the names of functions of bitnet.cpp, llama.cpp and ggml begin, and of the kernels that forks of them share.
pub const OWN: [&str; 7] = ["ggml_", "gguf_", "llama_", "bitnet_", "bitlinear_", "llamafile_", "iqk_"];

/// Whether a name is one of bitnet.cpp's, llama.cpp's or ggml's own: by its beginning, or because it shows a family.
pub fn is_own(symbol: &str) -> bool {
    let name = identifier(symbol);
    OWN.iter().any(|own| name.starts_with(own)) || SIGNS.iter().any(|sign| sign.pattern.fits(symbol))
}

/// Words in names of functions that stand for features of processors.
const FEATURES: [&str; 18] = [
    "sse42",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avxvnni",
    "avx512",
    "avx512f",
    "avx512bf16",
    "avx512vnni",
    "vnni",
    "amx",
    "neon",
    "dotprod",
    "i8mm",
    "sve",
    "sme",
    "rvv",
];

/// Words in names of functions that ask about features or set something, and are no code for them.
const QUESTIONS: [&str; 7] = ["has", "get", "set", "is", "supports", "support", "detect"];

/// The feature of processors that a function is code for, by its name: it is one of these projects' own, has the
/// feature as a word, and asks no question.
pub fn cpu_feature(symbol: &str) -> Option<&'static str> {
    if !is_own(symbol) {
        return None;
    }
    let words = || identifier(symbol).split('_');
    if words().any(|word| QUESTIONS.contains(&word)) {
        return None;
    }
    words().find_map(|word| FEATURES.into_iter().find(|feature| word.eq_ignore_ascii_case(feature)))
}

/// A family of kernels for low-bit weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// bitnet.cpp's two bits a weight.
    I2S,
    /// bitnet.cpp's table lookup for Arm.
    Tl1,
    /// bitnet.cpp's table lookup for x86.
    Tl2,
    /// ggml's ternary TQ1_0 and TQ2_0.
    Tq,
    /// ggml's codebook format of 2.5 bits a weight.
    Iq2S,
}

/// Where a backend computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// The processor.
    Cpu,
    /// A GPU, through CUDA.
    Cuda,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        })
    }
}

/// What a symbol is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Job {
    /// Products with weights in the format: what a model needs in order to run.
    Product,
    /// To and from the format.
    Conversion,
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Job::Product => "products",
            Job::Conversion => "conversion",
        })
    }
}

/// How a name is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The identifier is this.
    Is(&'static str),
    /// The identifier begins with this.
    Begins(&'static str),
    /// The identifier is this, followed by two sizes, as a generator of kernels writes it.
    Sizes(&'static str),
    /// A C++ template with this identifier, instantiated for this `ggml_type`.
    ForType(&'static str, u32),
}

impl Pattern {
    /// Whether a symbol fits.
    pub fn fits(self, symbol: &str) -> bool {
        match self {
            Pattern::Is(name) => identifier(symbol) == name,
            Pattern::Begins(prefix) => identifier(symbol).starts_with(prefix),
            Pattern::Sizes(prefix) => identifier(symbol).strip_prefix(prefix).is_some_and(are_sizes),
            Pattern::ForType(name, id) => {
                identifier(symbol) == name
                    && (symbol.contains(&format!("L9ggml_type{id}E"))
                        || symbol.contains(&format!("W4ggml_type@@0{}@", microsoft_number(id)))
                        || symbol.contains(&format!("@$0{}@@", microsoft_number(id))))
            }
        }
    }
}

/// `_1536_4096`, or without the first underscore.
fn are_sizes(rest: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let rest = rest.strip_prefix('_').unwrap_or(rest);
    rest.split_once('_').is_some_and(|(rows, k)| number(rows) && number(k))
}

/// A number as Microsoft's compiler mangles it: 1 to 10 as one digit less one, others in letters from `A`.
fn microsoft_number(value: u32) -> String {
    match value {
        1..=10 => (value - 1).to_string(),
        _ => {
            let digits: String = format!("{value:X}")
                .chars()
                .filter_map(|c| c.to_digit(16))
                .filter_map(|d| char::from_u32(0x41 + d))
                .collect();
            format!("{digits}@")
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pattern::Is(name) => f.write_str(name),
            Pattern::Begins(prefix) => write!(f, "{prefix}*"),
            Pattern::Sizes(prefix) => write!(f, "{prefix}_<rows>_<k>"),
            Pattern::ForType(name, id) => write!(f, "{name}<ggml_type {id}>"),
        }
    }
}

/// A name that shows a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// The family.
    pub family: Family,
    /// What the function is good for.
    pub job: Job,
    /// Where it computes.
    pub device: Device,
    /// How it is recognised.
    pub pattern: Pattern,
    /// The formats that it computes with or converts.
    pub formats: &'static [&'static str],
}

const fn cpu(family: Family, job: Job, pattern: Pattern) -> Sign {
    Sign { family, job, device: Device::Cpu, pattern, formats: family.formats() }
}

const fn cuda(family: Family, pattern: Pattern) -> Sign {
    Sign { family, job: Job::Product, device: Device::Cuda, pattern, formats: family.formats() }
}

/// For one format of a family that has several.
const fn of(formats: &'static [&'static str], sign: Sign) -> Sign {
    Sign { formats, ..sign }
}

/// Every name that is looked for, by family. `ggml_qgemm_lut` and `ggml_preprocessor` are not here: TL1 and TL2
/// both have them, so they show neither. The names of the lookup kernels are those that bitnet.cpp's generator writes.
pub const SIGNS: &[Sign] = &[
    cpu(Family::I2S, Job::Product, Pattern::Begins("ggml_vec_dot_i2_i8_s")),
    cpu(Family::I2S, Job::Product, Pattern::Begins("ggml_gemm_i2_i8_s")),
    cpu(Family::I2S, Job::Product, Pattern::Begins("ggml_gemv_i2_i8_s")),
    cpu(Family::I2S, Job::Conversion, Pattern::Is("quantize_i2_s")),
    cpu(Family::I2S, Job::Conversion, Pattern::Is("dequantize_row_i2_s")),
    cuda(Family::I2S, Pattern::Is("bitlinear_int8xint2")),
    cuda(Family::I2S, Pattern::ForType("mul_mat_q_case", 36)),
    cpu(Family::Tl1, Job::Product, Pattern::Sizes("tbl_impl")),
    cpu(Family::Tl1, Job::Product, Pattern::Sizes("qgemm_lut")),
    cpu(Family::Tl2, Job::Product, Pattern::Sizes("three_tbl_impl")),
    cpu(Family::Tl2, Job::Product, Pattern::Sizes("two_tbl_impl")),
    cpu(Family::Tl2, Job::Product, Pattern::Sizes("three_qgemm_lut")),
    cpu(Family::Tl2, Job::Product, Pattern::Sizes("two_qgemm_lut")),
    cpu(Family::Tl2, Job::Product, Pattern::Is("three_lut_ctor")),
    cpu(Family::Tl2, Job::Product, Pattern::Is("two_lut_ctor")),
    of(&["tq1_0"], cpu(Family::Tq, Job::Product, Pattern::Begins("ggml_vec_dot_tq1_0"))),
    of(&["tq2_0"], cpu(Family::Tq, Job::Product, Pattern::Begins("ggml_vec_dot_tq2_0"))),
    of(&["tq1_0"], cpu(Family::Tq, Job::Conversion, Pattern::Is("quantize_tq1_0"))),
    of(&["tq2_0"], cpu(Family::Tq, Job::Conversion, Pattern::Is("quantize_tq2_0"))),
    of(&["tq1_0"], cpu(Family::Tq, Job::Conversion, Pattern::Is("dequantize_row_tq1_0"))),
    of(&["tq2_0"], cpu(Family::Tq, Job::Conversion, Pattern::Is("dequantize_row_tq2_0"))),
    of(&["tq1_0"], cuda(Family::Tq, Pattern::ForType("mul_mat_q_case", 34))),
    of(&["tq2_0"], cuda(Family::Tq, Pattern::ForType("mul_mat_q_case", 35))),
    cpu(Family::Iq2S, Job::Product, Pattern::Begins("ggml_vec_dot_iq2_s_")),
    cpu(Family::Iq2S, Job::Conversion, Pattern::Is("quantize_iq2_s")),
    cpu(Family::Iq2S, Job::Conversion, Pattern::Is("dequantize_row_iq2_s")),
    cuda(Family::Iq2S, Pattern::ForType("mul_mat_q_case", 22)),
];

impl Family {
    /// All of them.
    pub const ALL: [Family; 5] = [Family::I2S, Family::Tl1, Family::Tl2, Family::Tq, Family::Iq2S];

    /// The name that is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Family::I2S => "I2_S",
            Family::Tl1 => "TL1",
            Family::Tl2 => "TL2",
            Family::Tq => "TQ",
            Family::Iq2S => "IQ2_S",
        }
    }

    /// The cfg flag that a build script sets for it.
    pub const fn cfg(self) -> &'static str {
        match self {
            Family::I2S => "bitnet_cpp_has_i2_s",
            Family::Tl1 => "bitnet_cpp_has_tl1",
            Family::Tl2 => "bitnet_cpp_has_tl2",
            Family::Tq => "bitnet_cpp_has_tq",
            Family::Iq2S => "bitnet_cpp_has_iq2_s",
        }
    }

    /// The formats of gristmill (and ggml) that it computes with.
    pub const fn formats(self) -> &'static [&'static str] {
        match self {
            Family::I2S => &["i2_s"],
            Family::Tl1 => &["tl1"],
            Family::Tl2 => &["tl2"],
            Family::Tq => &["tq1_0", "tq2_0"],
            Family::Iq2S => &["iq2_s"],
        }
    }

    /// The names that would have shown products of it, in words.
    pub fn looked_for(self) -> String {
        let names: Vec<String> = SIGNS
            .iter()
            .filter(|sign| sign.family == self && sign.job == Job::Product)
            .map(|sign| sign.pattern.to_string())
            .collect();
        format!("it defines none of {}", names.join(", "))
    }

    /// Which build of which project has it.
    pub const fn how_to_get(self) -> &'static str {
        match self {
            Family::I2S => "build bitnet.cpp (microsoft/BitNet); upstream llama.cpp has no I2_S",
            Family::Tl1 => "build bitnet.cpp on Arm with -DBITNET_ARM_TL1=ON",
            Family::Tl2 => "build bitnet.cpp on x86 with -DBITNET_X86_TL2=ON",
            Family::Tq => "build llama.cpp of September 2024 or later",
            Family::Iq2S => "build llama.cpp of 2024 or later",
        }
    }
}

/// How the functions for products of a format are recognised. Where no family states them, they are ggml's own for
/// a format with a number in GGUF, which ggml names after the format.
enum Products {
    /// By these.
    Signs(Vec<Pattern>),
    /// `ggml_vec_dot_q4_K_q8_K` for `q4_k`, in either case.
    Dot(String),
    /// The instance of CUDA's product for this `ggml_type`.
    Instance(Pattern),
    /// Nobody knows any.
    Unknown,
}

fn products(format: &str, gguf: Option<u32>, device: Device) -> Products {
    let signs = SIGNS
        .iter()
        .filter(|sign| sign.job == Job::Product && sign.device == device && sign.formats.contains(&format));
    let signs: Vec<Pattern> = signs.map(|sign| sign.pattern).collect();
    match (signs.is_empty(), gguf, device) {
        (false, ..) => Products::Signs(signs),
        (true, Some(_), Device::Cpu) => Products::Dot(format!("ggml_vec_dot_{format}_q8")),
        (true, Some(id), Device::Cuda) => Products::Instance(Pattern::ForType("mul_mat_q_case", id)),
        (true, None, _) => Products::Unknown,
    }
}

/// Whether a function shows products of a format, given gristmill's name of it and its number in GGUF.
pub fn shows_products(symbol: &str, format: &str, gguf: Option<u32>, device: Device) -> bool {
    match products(format, gguf, device) {
        Products::Signs(signs) => signs.iter().any(|pattern| pattern.fits(symbol)),
        Products::Dot(prefix) => {
            symbol.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(&prefix))
        }
        Products::Instance(pattern) => pattern.fits(symbol),
        Products::Unknown => false,
    }
}

/// The names by which products of a format are recognised; none if nobody knows any.
pub fn product_names(format: &str, gguf: Option<u32>, device: Device) -> Vec<String> {
    match products(format, gguf, device) {
        Products::Signs(signs) => signs.iter().map(Pattern::to_string).collect(),
        Products::Dot(prefix) => vec![format!("{prefix}*")],
        Products::Instance(pattern) => vec![pattern.to_string()],
        Products::Unknown => Vec::new(),
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What shows that a library has a family, for one job on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The family.
    pub family: Family,
    /// For what.
    pub job: Job,
    /// Where.
    pub device: Device,
    /// The symbols, in order of name; never empty.
    pub symbols: Vec<String>,
}

/// The evidence in a list of defined names, in the order of the families.
pub fn evidence<'a>(defined: impl IntoIterator<Item = &'a str>) -> Vec<Evidence> {
    let mut found: Vec<Evidence> = Vec::new();
    for symbol in defined {
        for sign in SIGNS.iter().filter(|sign| sign.pattern.fits(symbol)) {
            let same =
                |e: &&mut Evidence| (e.family, e.job, e.device) == (sign.family, sign.job, sign.device);
            match found.iter_mut().find(same) {
                Some(evidence) => evidence.symbols.push(symbol.to_owned()),
                None => found.push(Evidence {
                    family: sign.family,
                    job: sign.job,
                    device: sign.device,
                    symbols: vec![symbol.to_owned()],
                }),
            }
        }
    }
    for evidence in &mut found {
        evidence.symbols.sort_unstable();
        // A name may be defined in several versions.
        evidence.symbols.dedup();
    }
    found.sort_by_key(|evidence| (evidence.family, evidence.device, evidence.job));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families(symbols: &[&str]) -> Vec<(Family, Device, Job)> {
        evidence(symbols.iter().copied()).iter().map(|e| (e.family, e.device, e.job)).collect()
    }

    #[test]
    fn no_family_is_concluded_from_another() {
        use {Device::Cpu, Job::Conversion, Job::Product};
        assert_eq!(families(&["ggml_vec_dot_i2_i8_s"]), [(Family::I2S, Cpu, Product)]);
        assert_eq!(families(&["ggml_vec_dot_iq2_s_q8_K"]), [(Family::Iq2S, Cpu, Product)]);
        assert_eq!(families(&["quantize_iq2_s"]), [(Family::Iq2S, Cpu, Conversion)]);
        assert_eq!(families(&["ggml_vec_dot_tq2_0_q8_K_generic"]), [(Family::Tq, Cpu, Product)]);
        // Neighbours in name: other formats altogether.
        assert_eq!(families(&["ggml_vec_dot_iq2_xs_q8_K", "quantize_iq2_bn", "ggml_vec_dot_iq3_s_q8_K"]), []);
        // Both lookup families have these.
        assert_eq!(families(&["ggml_qgemm_lut", "ggml_preprocessor", "ggml_bitnet_init"]), []);
        assert_eq!(families(&["_Z14three_lut_ctorILi4096EEiPaPfS1_"]), [(Family::Tl2, Cpu, Product)]);
        assert_eq!(
            families(&["_Z24three_tbl_impl_1536_4096ILi1ELi4032EEvPiPaPhS2_"]),
            [(Family::Tl2, Cpu, Product)]
        );
        assert_eq!(families(&["_Z18tbl_impl_3200_8640PiPaPh"]), [(Family::Tl1, Cpu, Product)]);
        assert_eq!(families(&["two_tbl_impl1536_4096"]), [(Family::Tl2, Cpu, Product)]);
        // Other projects' names that begin or end as these do.
        for foreign in [
            "tbl_impl_init",
            "qgemm_lut_destroy",
            "tbl_impl_3200_x",
            "tbl_impl_3200_",
            "_ZN5other18tbl_impl_3200_8640Ev",
            "my_quantize_i2_s",
            "quantize_i2_sharp",
            "ggml_vec_dot_i2",
            "other_ggml_vec_dot_i2_i8_s",
            "_ZN5other20ggml_vec_dot_i2_i8_sEv",
            "?ggml_vec_dot_i2_i8_s@other@@YAXXZ",
        ] {
            assert_eq!(families(&[foreign]), [], "{foreign}");
        }
    }

    #[test]
    fn processors_are_concluded_from_own_names_only() {
        for (symbol, feature) in [
            ("ggml_gemm_q4_0_4x8_q8_0_avx2", "avx2"),
            ("_Z24ggml_backend_amx_mul_matP25ggml_backend_amx_contextP11ggml_tensor", "amx"),
            ("ggml_backend_amx_buffer_type", "amx"),
            ("llamafile_sgemm_sss_avx512f", "avx512f"),
            ("llamafile_sgemm_sss_fma", "fma"),
            ("_Z15iqk_mul_mat_sveliPKv", "sve"),
            ("?ggml_gemm_NEON@@YAXXZ", "neon"),
        ] {
            assert_eq!(cpu_feature(symbol), Some(feature), "{symbol}");
        }
        for symbol in [
            // libm, other C libraries, Rust in both manglings, C++ in namespaces of its own.
            "fma",
            "fmaf",
            "__fma_fma3",
            "blake3_hash_many_avx2",
            "sha512_block_data_order_avx2",
            "volk_16i_convert_8i_u_avx2",
            "jsimd_fdct_islow_avx2",
            "_ZN6memchr4arch6x86_644avx26memchr17h0123456789abcdefE",
            "_ZN6memchr6memchr11detect_avx217h0123456789abcdefE",
            "_RNvNtNtNtCsabc_6memchr4arch6x86_644avx2",
            "_RNvCs1234_7mycrate_avx2",
            "_ZN5blake11ggml_x_avx2Ev",
            "_ZN6simdutf4avx2Ev",
            "?ggml_gemm_avx2@other@@YAXXZ",
            "not_ggml_gemm_avx2",
            "avx2",
            // Questions and settings; names that only look alike.
            "ggml_cpu_has_avx2",
            "ggml_cpu_get_sve_cnt",
            "ggml_backend_cpu_is_amx",
            "llama_supports_avx2",
            "ggml_avx2ish",
            "ggml_vec_dot_q4_0_q8_0",
            "",
        ] {
            assert_eq!(cpu_feature(symbol), None, "{symbol}");
        }
        assert!(is_own("quantize_i2_s") && is_own("three_lut_ctor") && is_own("gguf_init_from_file"));
        assert!(!is_own("quantize_colors") && !is_own("zlib_abi_version"));
    }

    #[test]
    fn instances_of_templates_are_told_by_their_type() {
        let product = |id: u32| {
            format!("_Z14mul_mat_q_caseIL9ggml_type{id}EEvR25ggml_backend_cuda_contextP11CUstream_st")
        };
        let of = |id: u32| families(&[product(id).as_str()]);
        assert_eq!(of(22), [(Family::Iq2S, Device::Cuda, Job::Product)]);
        assert_eq!(of(35), [(Family::Tq, Device::Cuda, Job::Product)]);
        assert_eq!(of(2), []);
        assert_eq!(of(220), []);
        for microsoft in [
            "??$mul_mat_q_case@$0BG@@@YAXAEAUggml_backend_cuda_context@@@Z",
            "??$mul_mat_q_case@$MW4ggml_type@@0BG@@@YAXAEAUggml_backend_cuda_context@@@Z",
        ] {
            assert_eq!(families(&[microsoft]), [(Family::Iq2S, Device::Cuda, Job::Product)], "{microsoft}");
        }
        assert_eq!(microsoft_number(22), "BG@");
        assert_eq!(microsoft_number(1), "0");
    }

    #[test]
    fn products_of_a_format_are_told_by_its_own_name() {
        let cpu = |symbol: &str, format: &str, gguf| shows_products(symbol, format, gguf, Device::Cpu);
        assert!(cpu("ggml_vec_dot_q4_K_q8_K", "q4_k", Some(12)));
        assert!(cpu("ggml_vec_dot_i2_i8_s", "i2_s", Some(36)));
        assert!(cpu("ggml_vec_dot_tq2_0_q8_K", "tq2_0", Some(35)));
        assert!(!cpu("ggml_vec_dot_tq2_0_q8_K", "tq1_0", Some(34)));
        assert!(!cpu("ggml_vec_dot_q4_0_q8_0", "q4_k", Some(12)));
        assert!(!cpu("ggml_vec_dot_q4_K_q8_K", "q4_k", None));
        assert!(!cpu("ggml_vec_dot_\u{fc}", "q4_k", Some(12)));
        assert!(shows_products("_Z14mul_mat_q_caseIL9ggml_type12EEvv", "q4_k", Some(12), Device::Cuda));
        assert!(!shows_products("_Z14mul_mat_q_caseIL9ggml_type12EEvv", "q5_k", Some(13), Device::Cuda));
        assert_eq!(product_names("q8_0", Some(8), Device::Cpu), ["ggml_vec_dot_q8_0_q8*"]);
        assert_eq!(product_names("i2s_absmax", None, Device::Cpu), [""; 0]);
    }

    #[test]
    fn every_family_has_products_and_its_cfg_is_its_own() {
        let mut cfgs: Vec<&str> = Family::ALL.iter().map(|family| family.cfg()).collect();
        cfgs.sort_unstable();
        cfgs.dedup();
        assert_eq!(cfgs.len(), Family::ALL.len());
        for family in Family::ALL {
            assert!(SIGNS.iter().any(|sign| sign.family == family && sign.job == Job::Product));
        }
    }
}
