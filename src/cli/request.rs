//! Arguments that several commands share: words of the vocabulary, shapes, names of formats.

use super::error::CliError;
use gristmill::gguf::TypeNumbers;
use gristmill::registry::FormatInfo;
use gristmill::runtime::import::{Tiled, Tiles};
use gristmill::vocab::{DType, Isa, Op};
use gristmill::{MAX_THREADS, PrecisionMode, REGISTRY, Shape};

/// Parses a word of the vocabulary, listing the words if it is none.
macro_rules! word {
    ($name:ident, $type:ty, $what:literal) => {
        #[doc = concat!("Parses the name of an ", $what, ".")]
        pub fn $name(text: &str) -> Result<$type, String> {
            <$type>::from_name(text).ok_or_else(|| {
                let known: Vec<&str> = <$type>::ALL.iter().map(|word| word.name()).collect();
                format!("no such {}; there are: {}", $what, known.join(", "))
            })
        }
    };
}

word!(op, Op, "op");
word!(dtype, DType, "input type");
word!(isa, Isa, "ISA");
word!(precision, PrecisionMode, "precision");

/// Refuses sizes of nothing, of which there is nothing to do (`to_do`: a verb).
pub fn check_sizes(m: &[usize], shapes: &[(usize, usize)], to_do: &str) -> Result<(), CliError> {
    if m.contains(&0) || shapes.iter().any(|(n, k)| *n == 0 || *k == 0) {
        return Err(CliError::usage(
            format!("a dimension is 0: there is nothing to {to_do}"),
            "for example --m 1 --shape 2560x2560",
        ));
    }
    Ok(())
}

/// Help of an argument that is an op.
pub fn ops(what: &str) -> String {
    let names: Vec<&str> = Op::ALL.iter().map(|op| op.name()).collect();
    format!("{what}: {}", names.join(", "))
}

/// Help of an argument that is a number of threads.
pub fn up_to_threads(what: &str, more: &str) -> String {
    format!("{what} at most {MAX_THREADS}{more}")
}

/// Parses a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=MAX_THREADS) => Ok(count),
        Ok(_) | Err(_) => Err(format!("threads are a number from 1 to {MAX_THREADS}")),
    }
}

/// Parses how often or of how many: a number, and not 0.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "it is a number from 1 on".to_owned())
}

/// Parses `MxNxK`, or `NxK` with m = 1.
pub fn shape(text: &str) -> Result<Shape, String> {
    let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
    match numbers.as_deref() {
        Ok(&[m, n, k]) => Ok(Shape::new(m, n, k)),
        Ok(&[n, k]) => Ok(Shape::matrix(n, k)),
        Ok(_) | Err(_) => {
            Err("a shape is written MxNxK (tokens, outputs, inner dimension), for example 1x2560x6912"
                .to_owned())
        }
    }
}

/// Parses `NxK`.
pub fn matrix(text: &str) -> Result<(usize, usize), String> {
    match text.split_once('x').map(|(n, k)| (n.parse(), k.parse())) {
        Some((Ok(n), Ok(k))) => Ok((n, k)),
        Some(_) | None => {
            Err("a matrix is written NxK (rows, elements of a row), for example 2560x6912".to_owned())
        }
    }
}

/// Parses `NUMBER=FORMAT`: a type number of GGUF files, and the format that it is to mean.
pub fn type_number(text: &str) -> Result<(u32, String), String> {
    let parsed = text.split_once('=').and_then(|(number, format)| Some((number.parse().ok()?, format)));
    match parsed {
        Some((number, _)) if gristmill::gguf::unquantized(number).is_some() => {
            Err(format!("{number} is the number of a type without blocks, which has no second meaning"))
        }
        Some((number, format)) => Ok((number, format.to_owned())),
        None => Err("a type is written NUMBER=FORMAT, for example 42=q2_0".to_owned()),
    }
}

/// Parses `BM,BK,BMM` or `NxK=BM,BK,BMM`: the tile sizes of tensors, of one shape or of every shape.
pub fn tiles(text: &str) -> Result<(Option<(usize, usize)>, Tiles), String> {
    let wrong =
        || "tile sizes are written BM,BK,BMM or NxK=BM,BK,BMM, for example 1536x4096=256,128,32".to_owned();
    let (shape, numbers) = match text.split_once('=') {
        Some((shape, numbers)) => (Some(matrix(shape).map_err(|_| wrong())?), numbers),
        None => (None, text),
    };
    let numbers: Result<Vec<usize>, _> = numbers.split(',').map(str::parse).collect();
    match numbers.as_deref() {
        Ok(&[bm, bk, bmm]) if bm > 0 && bk > 0 && bmm > 0 => Ok((shape, Tiles { bm, bk, bmm })),
        Ok(_) | Err(_) => Err(wrong()),
    }
}

/// The format called `name`.
///
/// # Errors
/// If there is none, with the names there are; of a layout of other programs, with the format that its tensors become.
pub fn format(name: &str) -> Result<&'static FormatInfo, CliError> {
    match layout(name) {
        Some(refused) => Err(refused),
        None => Ok(REGISTRY.format(name)?.1),
    }
}

/// Why the name of a layout is refused where a format is asked for: kernels have the format that tensors in it become.
fn layout(name: &str) -> Option<CliError> {
    let refused = |doc: &str, becomes: String, help: String| {
        CliError::usage(format!("`{name}` is a layout and no format ({doc}); {becomes}"), help)
    };
    if let Some(tiled) = Tiled::from_name(name) {
        let [first, second] = TypeNumbers::IMPORTED_AS;
        return Some(refused(
            tiled.doc(),
            format!(
                "its tensors are read as `{first}`, or as `{second}` where rows do not divide into blocks of `{first}`"
            ),
            format!(
                "give `--format {first}`; `gristmill explain matmul --format {name} --shape MxNxK` says what rows of K become, and its kernel"
            ),
        ));
    }
    let import = REGISTRY.imports.iter().find(|import| import.name == name)?;
    let becomes = REGISTRY.formats.get(import.format)?.name;
    Some(refused(
        import.doc,
        format!("its tensors are read as `{becomes}`"),
        format!("give `--format {becomes}`; `gristmill dequantize --raw --format {name}` reads a file of it"),
    ))
}

/// The known name closest to `name`, if one is close enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_ascii_lowercase();
    let limit = (wanted.chars().count() / 3).max(1);
    let distance = |known: &'a str| (strsim::damerau_levenshtein(&wanted, known), known);
    known
        .into_iter()
        .map(distance)
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, known)| known)
}
