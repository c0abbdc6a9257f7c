//! `gristmill compare-backend`: our kernels and those of a C++ library on the same data.

use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::json::print_json;
use super::memory::Need;
use super::request;
use super::table::{Side, Table, measured};
use super::verify::random_tensor;
use gristmill::compare::{CompareError, CppKernels, PerformanceComparison, TOLERANCE, Verdict, compare};
use gristmill::oracle::{Oracle, Random};
use gristmill::registry::FormatInfo;
use gristmill::{QuantizedMatrix, REGISTRY};
use gristmill_probe::backend::{Requirements, validate};
use gristmill_probe::discover::{Search, Target};
use gristmill_probe::{printable, printable_path};
use gristmill_records::comparison::{Comparison, Comparisons, NotCompared};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Compare kernels with those of a C++ library: results and time
///
/// Loads the library that has ggml's products for the processor, after validating it, and runs its code in this
/// process. Random weights in the format and random activations, one thread, quantizing the activations included on
/// both sides. GRISTMILL_ISA holds ours to what the library was built for. Exits with 1 if results disagree or there is no library, 2 if no format can be compared.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Root of a build or installation, or a folder of libraries; the usual places if not given
    #[arg(long, value_name = "DIR")]
    library: Option<PathBuf>,
    /// These formats
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "i2_s,tq2_0,q4_k,q8_0")]
    pub(super) format: Vec<String>,
    /// Numbers of tokens
    #[arg(long, value_name = "M", value_delimiter = ',', default_value = "1,8")]
    pub(super) m: Vec<usize>,
    /// Rows and elements of a row of the weights
    #[arg(long, value_name = "NxK", default_value = "2560x2560", value_parser = request::matrix)]
    shape: (usize, usize),
    /// Shorter measurements
    #[arg(long)]
    pub(super) quick: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let formats: Vec<&'static FormatInfo> =
        arguments.format.iter().map(|name| request::format(name)).collect::<Result<_, _>>()?;
    request::check_sizes(&arguments.m, &[arguments.shape], "compare")?;
    let (n, k) = arguments.shape;
    let m = arguments.m.iter().copied().max().unwrap_or(0);
    for format in &formats {
        // Refuses rows that are not whole blocks, before bytes are made for them.
        let bytes = format.tensor_bytes(n, k)?;
        // Activations, theirs too and the workspace; both results; the tensor, with what it is made of, packed.
        let need = Need::new().and(&[m, k], 12).and(&[m, n], 8).and(&[bytes], 4);
        let what = || format!("--m {m} --shape {n}x{k} of `{}`", format.name);
        need.check(what, "give fewer tokens with --m or less with --shape")?;
    }
    // Each comparison reads the environment for itself; what of a tuning is set aside is said once.
    Environment::read()?;
    let theirs = load(arguments.library.as_deref())?;
    let file = theirs.path();
    let oracle = Oracle::new(&REGISTRY)?;
    let time = Duration::from_millis(if arguments.quick { 30 } else { 300 });
    let (mut done, mut left) = (Vec::new(), Vec::new());
    for format in formats {
        let mut random = Random::new(1, format.name);
        let tensor = random_tensor(&oracle.format(format.name)?, &mut random, n, k);
        let weights = QuantizedMatrix::new(format, n, k, &tensor)?;
        for &m in &arguments.m {
            let x = random.gauss_vec(m * k, 1.0);
            match compare(&REGISTRY, &theirs, &weights, &x, m, time) {
                Ok(comparison) => done.push(comparison),
                Err(CompareError::NoProduct { reason, .. }) => {
                    left.push((format.name, reason));
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    if arguments.json {
        let not_compared =
            |(format, reason): (&str, String)| NotCompared { format: format.to_owned(), reason };
        let comparisons = Comparisons {
            library: file.display().to_string(),
            library_features: theirs.features().into_iter().map(str::to_owned).collect(),
            tolerance: TOLERANCE,
            comparisons: done.iter().map(record).collect(),
            not_compared: left.into_iter().map(not_compared).collect(),
        };
        print_json(out, &comparisons)?;
    } else {
        let features = theirs.features();
        let built = if features.is_empty() {
            String::from("it does not say for which processor it was built")
        } else {
            format!("built for {}", features.join(", "))
        };
        writeln!(out, "{}: {built}\n", printable_path(file))?;
        print(arguments, &done, &left, out)?;
    }
    Ok(if done.iter().any(|comparison| comparison.verdict() == Verdict::Disagree) {
        Outcome::Failed
    } else if done.is_empty() {
        Outcome::NoKernel
    } else {
        Outcome::Yes
    })
}

/// The library with products for the processor, validated and loaded: of a folder, or from the usual places.
pub(super) fn load(folder: Option<&Path>) -> Result<CppKernels, CliError> {
    let search = match folder {
        Some(folder) => Search::nowhere(Target::host()).with_argument("--library", folder),
        None => Search::from_env(Target::host()),
    };
    let discovery = search.require()?;
    let libraries = discovery.libraries();
    let entries = ["ggml_get_type_traits_cpu", "ggml_vec_dot_i2_i8_s"];
    let found = entries.iter().find_map(|entry| {
        libraries.iter().find(|library| library.image.defines(entry)).map(|library| (*entry, library.path))
    });
    let Some((entry, path)) = found else {
        return Err(CliError::usage(
            format!(
                "{} have no products that can be called: none defines {}",
                discovery.file_names().iter().map(|name| printable(name)).collect::<Vec<_>>().join(", "),
                entries.join(" or ")
            ),
            "name a build with libggml-cpu of llama.cpp, December 2024 or later, or one of bitnet.cpp",
        ));
    };
    let validated = validate(path, &Requirements::new().symbol(entry))?;
    // SAFETY: whoever named the library wants its code to run; that its functions are what their names stand for is
    // the same trust. It was validated, and it is not loaded with global visibility.
    Ok(unsafe { CppKernels::load(&validated) }?)
}

fn record(comparison: &PerformanceComparison) -> Comparison {
    let PerformanceComparison { format, shape, kernel, function, ours, theirs, max_error, same_bits } =
        comparison;
    Comparison {
        format: (*format).to_owned(),
        m: shape.m as u64,
        n: shape.n as u64,
        k: shape.k as u64,
        kernel: (*kernel).to_owned(),
        function: function.clone(),
        ours_us: ours * 1e6,
        theirs_us: theirs * 1e6,
        ratio: comparison.ratio(),
        max_error: Some(*max_error).filter(|error| error.is_finite()),
        same_bits: *same_bits,
        agree: comparison.verdict() != Verdict::Disagree,
        verdict: comparison.verdict().to_string(),
    }
}

fn print(
    arguments: &Arguments,
    done: &[PerformanceComparison],
    left: &[(&str, String)],
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("kernel", Side::Left),
        ("function", Side::Left),
        ("m", Side::Right),
        ("ours us", Side::Right),
        ("theirs us", Side::Right),
        ("ratio", Side::Right),
        ("max error", Side::Right),
        ("verdict", Side::Left),
    ]);
    for comparison in done {
        table.row([
            comparison.kernel.to_owned(),
            comparison.function.clone(),
            comparison.shape.m.to_string(),
            measured(comparison.ours * 1e6),
            measured(comparison.theirs * 1e6),
            measured(comparison.ratio()),
            if comparison.same_bits { "none".to_owned() } else { format!("{:.1e}", comparison.max_error) },
            comparison.verdict().to_string(),
        ]);
    }
    if !table.is_empty() {
        table.print(out)?;
        writeln!(out)?;
    }
    let (n, k) = arguments.shape;
    writeln!(
        out,
        "weights {n}x{k}, 1 thread, quantizing f32 activations included; medians; theirs goes row by row and token by\n\
         token (a whole model of theirs may use faster paths for many tokens); errors are parts of the largest value,\n\
         up to {TOLERANCE} agrees"
    )?;
    if cfg!(debug_assertions) {
        writeln!(out, "this is a debug build: only figures of a release build mean something")?;
    }
    for (format, reason) in left {
        writeln!(out, "not compared: {format}: {reason}")?;
    }
    Ok(())
}
