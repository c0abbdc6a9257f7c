//! Names of symbols: the identifier in a C++ name, and the groups that names belong to.

/// A group of names. One name may belong to several: `ggml_backend_cuda_init` is of ggml and of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// bitnet.cpp: `bitnet_*`, `ggml_bitnet_*`, `bitlinear_*`.
    Bitnet,
    /// llama.cpp: `llama_*`.
    Llama,
    /// ggml: `ggml_*`, `gguf_*`.
    Ggml,
    /// ggml's CUDA backend and bitnet.cpp's CUDA kernels.
    Cuda,
    /// NVIDIA's runtime, driver and cuBLAS: what a CUDA backend calls, not what it is.
    CudaRuntime,
    /// Conversion to and from quantized formats, and products with them.
    Quantization,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 6] =
        [Group::Bitnet, Group::Llama, Group::Ggml, Group::Cuda, Group::CudaRuntime, Group::Quantization];

    /// The name that is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Bitnet => "bitnet_",
            Group::Llama => "llama_",
            Group::Ggml => "ggml_",
            Group::Cuda => "CUDA backend",
            Group::CudaRuntime => "CUDA runtime",
            Group::Quantization => "quantization",
        }
    }

    /// Whether a symbol belongs to it.
    pub fn has(self, symbol: &str) -> bool {
        let name = identifier(symbol);
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        match self {
            Group::Bitnet => starts(&["bitnet_", "ggml_bitnet_", "bitlinear_"]),
            Group::Llama => starts(&["llama_"]),
            Group::Ggml => starts(&["ggml_", "gguf_"]),
            Group::Cuda => {
                starts(&["ggml_backend_cuda_", "ggml_cuda_", "ggml_cublas_", "bitlinear_int8xint2"])
            }
            Group::CudaRuntime => {
                starts(&["__cuda", "cublas"]) || capital_after(name, "cuda") || is_driver_function(name)
            }
            Group::Quantization => is_quantization(symbol),
        }
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// `cudaMalloc`: the prefix and a capital.
fn capital_after(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// What the names of the driver's functions go on with after `cu`.
const DRIVER: [&str; 36] = [
    "Array",
    "Checkpoint",
    "Coredump",
    "Ctx",
    "Device",
    "Driver",
    "Event",
    "External",
    "Func",
    "GL",
    "Get",
    "Graph",
    "Green",
    "Import",
    "Init",
    "Ipc",
    "Kernel",
    "Launch",
    "Library",
    "Link",
    "Mem",
    "Memcpy",
    "Memset",
    "Module",
    "Multicast",
    "Occupancy",
    "Param",
    "Pointer",
    "Profiler",
    "Signal",
    "Stream",
    "Surf",
    "Tensor",
    "Tex",
    "Thread",
    "User",
];

/// `cuInit`, `cuMemAlloc_v2`: `cu`, and one of the driver's own words.
fn is_driver_function(name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_lowercase());
    let Some(rest) = name.strip_prefix("cu") else { return false };
    DRIVER.iter().filter_map(|word| rest.strip_prefix(word)).any(ends)
}

/// The first identifier of a name: the name itself in C, the outermost namespace, class or function in a
/// mangled C++ name (Itanium and Microsoft). Vtables, type information and guards have none, nor has a name
/// that can't be taken apart: what is returned then begins with the mangling's own letters.
pub fn identifier(symbol: &str) -> &str {
    if let Some(rest) = symbol.strip_prefix("_Z") {
        return itanium(rest).unwrap_or(symbol);
    }
    if let Some(rest) = symbol.strip_prefix('?') {
        // A template's arguments stand before what it is in.
        if let Some(template) = rest.strip_prefix("?$") {
            return template.split('@').next().filter(|word| !word.is_empty()).unwrap_or(symbol);
        }
        // Nested names stand innermost first.
        let name = rest.split_once("@@").map_or(rest, |(name, _)| name);
        return name.rsplit('@').next().filter(|word| !word.is_empty()).unwrap_or(symbol);
    }
    symbol
}

/// What follows `_Z`: `<length><identifier>`, within `N...E` after qualifiers where it is nested, or after `L`
/// where it is local to a file.
fn itanium(rest: &str) -> Option<&str> {
    let rest = match rest.strip_prefix('N') {
        Some(nested) => nested.trim_start_matches(['r', 'V', 'K', 'R', 'O']),
        None => rest,
    };
    let rest = rest.strip_prefix('L').unwrap_or(rest);
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let length: usize = rest.get(..digits)?.parse().ok()?;
    rest.get(digits..digits.checked_add(length)?).filter(|word| !word.is_empty())
}

/// Whether a name is a C function's: callable without knowing a C++ compiler's rules.
pub fn is_c_name(symbol: &str) -> bool {
    !symbol.starts_with("_Z") && !symbol.starts_with('?')
}

/// Whether a name is of a function that converts to or from a format of ggml, or multiplies with one.
fn is_quantization(symbol: &str) -> bool {
    let name = identifier(symbol);
    let own = ["ggml_quantize_", "ggml_vec_dot_", "ggml_gemm_", "ggml_gemv_", "ggml_qgemm_lut", "iqk_"];
    let with_type = ["quantize_", "dequantize_", "vec_dot_"];
    own.iter().any(|prefix| name.starts_with(prefix))
        || with_type.iter().filter_map(|prefix| name.strip_prefix(prefix)).any(begins_with_type)
}

/// `q4_0`, `row_iq2_s`, `mxfp4`: the beginning of one of ggml's types.
fn begins_with_type(rest: &str) -> bool {
    let rest = rest.strip_prefix("row_").unwrap_or(rest);
    let digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    ["q", "iq", "tq", "i", "tl", "mxfp", "nvfp"]
        .iter()
        .any(|letters| rest.strip_prefix(letters).is_some_and(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_mangled_names() {
        for (symbol, expected) in [
            ("ggml_init", "ggml_init"),
            ("_Z14llama_decode_xPv", "llama_decode_x"),
            ("_ZN18llama_model_bitnet17load_arch_hparamsER18llama_model_loader", "llama_model_bitnet"),
            ("_ZNK18llama_model_bitnet16build_arch_graphE", "llama_model_bitnet"),
            ("_ZL9static_fnv", "static_fn"),
            ("?ggml_thing@@YAXXZ", "ggml_thing"),
            ("?load@llama_model@@QEAAXXZ", "llama_model"),
            ("?ggml_thing@inner@outer@@YAXXZ", "outer"),
            ("??$ggml_case@$0BG@@@YAXXZ", "ggml_case"),
            ("??$", "??$"),
            ("?@@", "?@@"),
            // Broken or without an identifier: as it is.
            ("_Z", "_Z"),
            ("_ZTV18llama_model_bitnet", "_ZTV18llama_model_bitnet"),
            ("_Z99999999999999999999999x", "_Z99999999999999999999999x"),
            ("_Z9shört", "_Z9shört"),
            ("_Z50short", "_Z50short"),
            ("_Z0", "_Z0"),
            ("?", "?"),
            ("", ""),
        ] {
            assert_eq!(identifier(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn groups_overlap_where_names_do_and_only_there() {
        let of = |name: &str| Group::ALL.into_iter().filter(|group| group.has(name)).collect::<Vec<_>>();
        assert_eq!(of("ggml_backend_cuda_init"), [Group::Ggml, Group::Cuda]);
        assert_eq!(of("ggml_bitnet_init"), [Group::Bitnet, Group::Ggml]);
        assert_eq!(of("quantize_i2_s"), [Group::Quantization]);
        assert_eq!(of("cudaMalloc"), [Group::CudaRuntime]);
        assert_eq!(of("cuMemAlloc_v2"), [Group::CudaRuntime]);
        assert_eq!(of("_Z17ggml_cuda_mul_matR"), [Group::Ggml, Group::Cuda]);
        // A model class is llama.cpp's even where it is called after BitNet.
        assert_eq!(of("_ZN18llama_model_bitnet17load_arch_hparamsEv"), [Group::Llama]);
        for other in [
            "malloc",
            "cue",
            "cut_here",
            "custom",
            "curl_easy_init",
            "cuFoo",
            "cuMemory",
            "cuTensorflow",
            "quantize_colors",
            "cURL",
            "barracuda",
            "cudarc",
            "my_llama_x",
        ] {
            assert!(of(other).is_empty(), "{other}: {:?}", of(other));
        }
    }

    #[test]
    fn quantization_is_told_by_the_type() {
        assert!(is_quantization("quantize_row_q4_0_ref") && is_quantization("dequantize_row_iq2_xxs"));
        assert!(is_quantization("quantize_mxfp4") && is_quantization("ggml_vec_dot_q4_K_q8_K"));
        assert!(!is_quantization("quantize_colors") && !is_quantization("vec_dot_product"));
        assert!(!is_quantization("quantize_image") && !is_quantization("quantize_"));
    }
}
