//! `compare-backend` against libraries made here: one that computes rightly, one that does not, one that means
//! something else. Real libraries are for the command itself; CONTRIBUTING says how.
#![cfg(all(feature = "cli", feature = "bitnet", feature = "ggml", target_os = "linux"))]

use crate::common::{Ran, gristmill, text};
use crate::made;
use gristmill::compare::{CompareError, CppKernels};
use gristmill::registry::{FormatFacts, FormatInfo, OuterType};
use gristmill::{QuantizedMatrix, REGISTRY};
use gristmill_probe::backend::{Requirements, validate};
use gristmill_records::comparison::Comparisons;

/// ggml's functions for Q8_0 and bitnet.cpp's for I2_S, written down from the formats, one number after the other.
/// `SPOIL` is a factor on results, `BYTES` the size that the library claims for a block.
const LIBRARY: &str = r#"
    #include <math.h>
    #include <stddef.h>
    #include <stdint.h>
    struct block { _Float16 d; int8_t q[32]; };
    static void from_float(const float *x, void *out, int64_t k) {
        struct block *b = out;
        for (int64_t i = 0; i < k; i += 32, b++, x += 32) {
            float largest = 0;
            for (int j = 0; j < 32; j++) largest = fabsf(x[j]) > largest ? fabsf(x[j]) : largest;
            float d = largest / 127, id = d ? 1 / d : 0;
            b->d = (_Float16) d;
            for (int j = 0; j < 32; j++) b->q[j] = (int8_t) rintf(x[j] * id);
        }
    }
    static void dot(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int rows) {
        const struct block *a = x, *b = y;
        float sum = 0;
        for (int i = 0; i < n / 32; i++) {
            int32_t part = 0;
            for (int j = 0; j < 32; j++) part += a[i].q[j] * b[i].q[j];
            sum += (float) a[i].d * (float) b[i].d * (float) part;
        }
        *s = sum * SPOIL;
    }
    void ggml_vec_dot_i2_i8_s(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int rows) {
        const uint8_t *w = x;
        const int8_t *q = y;
        int32_t sum = 0;
        for (int i = 0; i < n; i++) {
            int within = i % 128;
            sum += (w[i / 128 * 32 + within % 32] >> (6 - 2 * (within / 32)) & 3) * q[i];
        }
        *s = (float) sum * SPOIL;
    }
    struct traits { const char *name; int64_t elements, interleave; size_t bytes; };
    struct cpu_traits {
        void (*from_float)(const float *, void *, int64_t);
        void (*dot)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
        int dot_type;
        int64_t rows;
    };
    static int ready;
    void ggml_cpu_init(void) { ready = 1; }
    const struct traits *ggml_get_type_traits(int type) {
        static const struct traits q8_0 = { "q8_0", 32, 0, BYTES };
        return ready && type == 8 ? &q8_0 : 0;
    }
    const struct cpu_traits *ggml_get_type_traits_cpu(int type) {
        static const struct cpu_traits q8_0 = { from_float, dot, 8, 1 };
        return ready && type == 8 ? &q8_0 : 0;
    }
"#;

fn compared(spoil: &str, bytes: &str, more: &[&str]) -> Ran {
    let folder = made::folder();
    let (spoil, bytes) = (format!("-DSPOIL={spoil}"), format!("-DBYTES={bytes}"));
    made::shared(folder.path(), "libggml-cpu.so", LIBRARY, &[&spoil, &bytes, "-lm"]);
    let shape: &[&str] = if more.contains(&"--shape") { &[] } else { &["--shape", "48x512"] };
    let fixed = ["compare-backend", "--quick", "--m", "1,5", "--library", text(folder.path())];
    gristmill(fixed.iter().chain(shape).chain(more))
}

#[test]
fn a_right_library_agrees() {
    let done: Comparisons = compared("1.0f", "34", &["--json"]).code(0).record();
    let formats: Vec<&str> = done.comparisons.iter().map(|comparison| comparison.format.as_str()).collect();
    assert_eq!(formats, ["i2_s", "i2_s", "q8_0", "q8_0"]);
    for comparison in &done.comparisons {
        assert!(comparison.agree, "{comparison:?}");
        assert!(comparison.max_error.is_some_and(|error| error < 1e-5), "{comparison:?}");
        assert!(comparison.ours_us > 0.0 && comparison.ratio > 0.0, "{comparison:?}");
    }
    let left: Vec<&str> = done.not_compared.iter().map(|left| left.format.as_str()).collect();
    assert_eq!(left, ["tq2_0", "q4_k"]);
    compared("1.0f", "34", &[])
        .code(0)
        .says("agree")
        .says("not compared: q4_k: ggml has no dot product for this type");
}

/// A validation has the library as one of its parts, in a process of its own too.
#[test]
fn a_library_is_part_of_a_validation() {
    let validated = |spoil: &str, more: &[&str]| {
        let folder = made::folder();
        let spoil = format!("-DSPOIL={spoil}");
        made::shared(folder.path(), "libggml-cpu.so", LIBRARY, &[&spoil, "-DBYTES=34", "-lm"]);
        let fixed =
            ["validate", "--format", "i2_s,q8_0,q4_k", "--rounds", "1", "--library", text(folder.path())];
        gristmill(fixed.iter().chain(more))
    };
    let kept = tempfile::tempdir().expect("a folder");
    for more in [&["--json"][..], &["--json", "--quarantine", text(kept.path())]] {
        let done = validated("1.0f", more).code(0).json();
        let library = &done["library"];
        assert_eq!((&library["outcome"], &library["agree"]), (&"passed".into(), &4.into()), "{done}");
        assert!(library["largest_error"].as_f64().is_some_and(|error| error < 1e-5), "{done}");
        assert_eq!(library["not_compared"][0]["format"], "q4_k", "{done}");
    }
    validated("1.0f", &[]).code(0).says("4 products that agree with ").says("it has no product of q4_k");
    validated("1.01f", &[])
        .code(1)
        .says("library      FAILED: 0 products that agree with ")
        .says("  q8_0, m=5, matmul.q8_0.")
        .says("NOT VALID");
    let none = made::folder();
    gristmill(["validate", "--format", "i2_s", "--rounds", "1", "--library", text(none.path())]).code(1);
    let alone = gristmill(["validate", "--format", "i2_s", "--rounds", "1", "--json"]).code(0).json();
    assert_eq!(alone["library"]["outcome"], "not_run", "{alone}");
}

#[test]
fn a_wrong_library_disagrees() {
    let ran = compared("1.01f", "34", &["--format", "q8_0"]).code(1);
    ran.says("disagree");
    let ran = compared("1.01f", "34", &["--format", "i2_s"]).code(1);
    ran.says("disagree");
    compared("(0.0f / 0.0f)", "34", &["--format", "q8_0"]).code(1).says("disagree");
    let no_numbers = compared("(0.0f / 0.0f)", "34", &["--format", "q8_0", "--json"]).code(1);
    let [first, ..] = &no_numbers.record::<Comparisons>().comparisons[..] else { panic!("nothing compared") };
    assert!(!first.agree && first.max_error.is_none(), "{first:?}");
}

#[test]
fn what_can_t_be_compared_says_why() {
    compared("1.0f", "36", &["--format", "q8_0"])
        .code(1)
        .complains("calls type 8 `q8_0` with blocks of 32 in 36 bytes");
    compared("1.0f", "34", &["--format", "q4_k"]).code(2).says("not compared: q4_k");
    compared("1.0f", "34", &["--format", "q8_o"]).code(1).complains("did you mean `q8_0`?");
    compared("1.0f", "34", &["--shape", "4x100"]).code(2).complains("100");
    let folder = made::folder();
    let library = text(folder.path());
    gristmill(["compare-backend", "--library", library])
        .code(1)
        .complains("no usable library")
        .complains("--library names")
        .complains("leave it away");
    made::shared(folder.path(), "libllama.so", "void llama_backend_init(void) {}", &[]);
    gristmill(["compare-backend", "--library", library])
        .code(1)
        .complains("none defines ggml_get_type_traits_cpu");
}

/// A format of another registry that has the name of one of ours.
fn other(facts: FormatFacts) -> &'static FormatInfo {
    // SAFETY: no kernel runs on it; that the library's does not either is what is tested.
    Box::leak(Box::new(unsafe { FormatInfo::new(facts) }))
}

#[test]
fn a_format_of_the_same_name_and_another_layout_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    let folder = made::folder();
    let library =
        made::shared(folder.path(), "libggml-cpu.so", LIBRARY, &["-DSPOIL=1.0f", "-DBYTES=34", "-lm"]);
    let validated = validate(&library, &Requirements::new().symbol("ggml_get_type_traits_cpu"))?;
    // SAFETY: its functions are written above, as ggml has them.
    let theirs = unsafe { CppKernels::load(&validated) }?;
    let facts = |name: &str| -> Result<FormatFacts, gristmill::Error> {
        let ours = REGISTRY.format(name)?.1;
        Ok(FormatFacts {
            name: ours.name,
            doc: "",
            source: "elsewhere.toml",
            gguf: ours.gguf,
            elements: ours.elements,
            bytes: ours.bytes,
            row_header: ours.row_header,
            tensor_tail: ours.tensor_tail,
            quantizers: &[],
            activations: 0,
        })
    };
    let refused = |result: Result<(), CompareError>, reason: &str| match result {
        Err(CompareError::NoProduct { reason: found, .. }) => assert!(found.contains(reason), "{found}"),
        found => panic!("{found:?}"),
    };

    let (q8_0, i2_s) = (facts("q8_0")?, facts("i2_s")?);
    let product = theirs.product(REGISTRY.format("q8_0")?.1)?;
    let run = |format: &'static FormatInfo| {
        let bytes = vec![0; format.tensor_bytes(1, 64)?];
        product.run(&QuantizedMatrix::new(format, 1, 64, &bytes)?, &[1.0; 64], 1, &mut [f32::NAN])
    };
    run(other(q8_0))?;
    for smaller in [FormatFacts { bytes: 18, ..q8_0 }, FormatFacts { elements: 64, ..q8_0 }] {
        refused(run(other(smaller)), "this product is of another format");
    }
    let header = FormatFacts { row_header: Some(OuterType::F16), ..q8_0 };
    refused(theirs.product(other(header)).map(|_| ()), "a scale outside of them");

    assert!(theirs.product(other(i2_s)).is_ok());
    for wrong in [
        FormatFacts { bytes: 16, ..i2_s },
        FormatFacts { elements: 256, ..i2_s },
        FormatFacts { row_header: Some(OuterType::F16), tensor_tail: None, ..i2_s },
        FormatFacts { tensor_tail: None, ..i2_s },
        FormatFacts { tensor_tail: Some((OuterType::F16, 32)), ..i2_s },
    ] {
        refused(theirs.product(other(wrong)).map(|_| ()), "bitnet.cpp's i2_s has 128 codes in 32 bytes");
    }
    Ok(())
}
