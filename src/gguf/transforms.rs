//! Transforms of activations that a file declares: `prism.hadamard.*`, as PrismML's fork of llama.cpp writes it (version 1).
//!
//! A file with such a declaration holds folded weights. Without the transform it loads like any other and computes something
//! else, so whatever is not understood here is refused, with the key that says it.

use super::read::{Gguf, GgufFile};
use super::value::Value;
use crate::text::Printable;
use gristmill_runtime::Hadamard;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What all keys of the declaration start with.
pub const PREFIX: &str = "prism.hadamard.";

/// The keys of version 1, without their prefix.
const KEYS: [&str; 10] = [
    "version",
    "transform",
    "axis",
    "block_size",
    "sign_mode",
    "sign_widths",
    "sign_values",
    WEIGHTS,
    ROWS,
    "gdn_v_grouped",
];
const WEIGHTS: &str = "weight_names";
const ROWS: &str = "inverse_weight_names";
const TRANSFORM: &str = "normalized-sylvester-walsh-hadamard";
const AXIS: &str = "input-last-dimension";

/// Transforms that a file declares, for the tensors that it names.
///
/// A product with a tensor of either kind needs [`forward`](Hadamard::forward) on its inputs: where the rows `h` of a matrix are stored
/// as `z` with `h = s * (H z)`, the product of `h` with `x` is that of `z` with `H (s * x)`. A row of the second kind that is
/// looked up needs [`inverse`](Hadamard::inverse).
#[derive(Clone, Debug, PartialEq)]
pub struct Transforms {
    block: usize,
    signed: bool,
    /// One for each width.
    by_width: BTreeMap<usize, Arc<Hadamard>>,
    /// Width of each tensor whose products need it.
    weights: BTreeMap<String, usize>,
    /// Width of each tensor whose rows are stored transformed.
    rows: BTreeMap<String, usize>,
}

/// A declaration that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metadata `{}`: {why}\n  help: the file holds weights that were folded with a Hadamard transform, and would compute something else \
     without it; what is understood is version 1 of `{PREFIX}*`, in signed or unsigned blocks along the rows",
    Printable(key)
)]
pub struct TransformError {
    /// The key that says what is not understood, or that is missing.
    pub key: String,
    /// What it says, and what is understood.
    pub why: String,
}

fn refuse<T>(key: &str, why: impl Into<String>) -> Result<T, TransformError> {
    Err(TransformError { key: format!("{PREFIX}{key}"), why: why.into() })
}

impl Transforms {
    /// What `file` declares; `None` where it declares nothing.
    ///
    /// # Errors
    /// [`TransformError`] for a key, version, transform, axis or sign mode that is not known, for values that are missing or contradict
    /// each other, and for names of tensors that the file has not or whose rows are not whole blocks.
    pub fn of(file: &GgufFile) -> Result<Option<Transforms>, TransformError> {
        let names = |key: &'static str| -> Result<BTreeMap<String, usize>, TransformError> {
            let mut all = BTreeMap::new();
            for value in Declared(file).array(key)?.1 {
                let Some(name) = value?.as_str() else { return refuse(key, "not an array of strings") };
                let Some(tensor) = file.tensor(name) else {
                    return refuse(key, format!("the file has no tensor `{}`", Printable(name)));
                };
                let width = tensor.dims().first().copied().unwrap_or(1);
                match usize::try_from(width) {
                    // Kept once for each tensor that there is, however often the array has it.
                    Ok(width) => all.entry(name.to_owned()).or_insert(width),
                    Err(_) => return refuse(key, format!("`{}` has rows of {width}", Printable(name))),
                };
            }
            Ok(all)
        };
        let declared = Declared(file);
        let Some(first) = declared.first() else { return Ok(None) };
        declared.known(&first)?;
        let block = declared.integer("block_size")?;
        let block = match usize::try_from(block) {
            Ok(block) if block >= 2 && block.is_power_of_two() => block,
            _ => return refuse("block_size", format!("{block}, expected a power of two from 2 on")),
        };
        let signs = declared.signs()?;
        let (weights, rows) = (names(WEIGHTS)?, names(ROWS)?);
        if weights.is_empty() && rows.is_empty() {
            return refuse(WEIGHTS, "no tensor is named, so it is not known where the transform belongs");
        }
        let mut by_width = BTreeMap::new();
        for (key, name, width) in weights
            .iter()
            .map(|(name, width)| (WEIGHTS, name, *width))
            .chain(rows.iter().map(|(name, width)| (ROWS, name, *width)))
        {
            if by_width.contains_key(&width) {
                continue;
            }
            let of_width = match &signs {
                None => None,
                Some(signs) => match signs.get(&width) {
                    Some(signs) => Some(&signs[..]),
                    None => {
                        let why = format!(
                            "none is {width}, the length of rows of `{}`, which `{PREFIX}{key}` names",
                            Printable(name)
                        );
                        return refuse("sign_widths", why);
                    }
                },
            };
            match Hadamard::new(width, block, of_width) {
                Ok(transform) => by_width.insert(width, Arc::new(transform)),
                Err(error) => return refuse(key, format!("`{}`: {error}", Printable(name))),
            };
        }
        Ok(Some(Transforms { block, signed: signs.is_some(), by_width, weights, rows }))
    }

    /// What products with the tensor `name` need done to their inputs; `None`: nothing.
    pub fn of_inputs(&self, name: &str) -> Option<&Arc<Hadamard>> {
        self.by_width.get(self.weights.get(name).or_else(|| self.rows.get(name))?)
    }

    /// The transform whose [inverse](Hadamard::inverse) rows of the tensor `name` need where they are looked up; `None`: they are stored
    /// as they are.
    pub fn of_rows(&self, name: &str) -> Option<&Arc<Hadamard>> {
        self.by_width.get(self.rows.get(name)?)
    }

    /// The key that names the tensor `name`, if one does.
    pub fn key(&self, name: &str) -> Option<String> {
        let keys = [(WEIGHTS, &self.weights), (ROWS, &self.rows)];
        let (key, _) = keys.into_iter().find(|(_, names)| names.contains_key(name))?;
        Some(format!("{PREFIX}{key}"))
    }

    /// Elements of a block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Whether signs are applied besides.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// How many tensors need their inputs transformed, and how many have their rows stored transformed.
    pub fn counts(&self) -> (usize, usize) {
        (self.weights.len(), self.rows.len())
    }
}

/// The metadata of a file, by the declaration's keys.
struct Declared<'f>(&'f GgufFile);

impl<'f> Declared<'f> {
    /// The first key of the declaration, with its prefix.
    fn first(&self) -> Option<String> {
        self.0.metadata().map(|(key, _)| key).find(|key| key.starts_with(PREFIX)).map(str::to_owned)
    }

    fn value(&self, key: &str) -> Option<Value<'f>> {
        Gguf::value(self.0, &format!("{PREFIX}{key}"))
    }

    /// Refuses what version 1 does not have.
    fn known(&self, first: &str) -> Result<(), TransformError> {
        if self.value("version").is_none() {
            return refuse("version", format!("missing, where the file has `{}`", Printable(first)));
        }
        match self.integer("version")? {
            1 => {}
            other => return refuse("version", format!("{other}, expected 1")),
        }
        for (key, _) in self.0.metadata() {
            if let Some(key) = key.strip_prefix(PREFIX)
                && !KEYS.contains(&key)
            {
                return refuse(key, "version 1 has no such key");
            }
        }
        self.word("transform", &[TRANSFORM])?;
        self.word("axis", &[AXIS])?;
        match self.value("gdn_v_grouped") {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(value) if value.as_u64() == Some(0) => Ok(()),
            Some(_) => {
                refuse("gdn_v_grouped", "the grouped order of values of linear attention is not supported")
            }
        }
    }

    /// A string that must be one of these.
    fn word(&self, key: &str, known: &[&'static str]) -> Result<&'static str, TransformError> {
        let expected = || known.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
        let found = match self.value(key) {
            None => return refuse(key, format!("missing, expected {}", expected())),
            Some(Value::String(found)) => found,
            Some(_) => return refuse(key, format!("not a string, expected {}", expected())),
        };
        match known.iter().find(|word| **word == found) {
            Some(word) => Ok(word),
            None => refuse(key, format!("`{}`, expected {}", Printable(found), expected())),
        }
    }

    fn integer(&self, key: &str) -> Result<u64, TransformError> {
        match self.value(key) {
            None => refuse(key, "missing"),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(number),
                None => refuse(key, "not an integer from 0 on"),
            },
        }
    }

    /// How many elements an array has, and these, one after the other: a list of them would take a multiple of the header. None where the
    /// file has no such key.
    fn array(
        &self,
        key: &'static str,
    ) -> Result<(u64, impl Iterator<Item = Result<Value<'f>, TransformError>> + use<'f>), TransformError>
    {
        let array = match self.value(key).map(|value| value.as_array()) {
            Some(None) => return refuse(key, "not an array"),
            None => None,
            Some(array) => array,
        };
        let count = array.map_or(0, |array| array.len());
        let elements = array.into_iter().flat_map(|array| array.elements());
        Ok((count, elements.map(move |value| value.or_else(|error| refuse(key, error.to_string())))))
    }

    /// The signs for each width, where they are explicit.
    fn signs(&self) -> Result<Option<BTreeMap<usize, Vec<i8>>>, TransformError> {
        let ((widths, each_width), (all, mut values)) =
            (self.array("sign_widths")?, self.array("sign_values")?);
        if self.word("sign_mode", &["identity", "explicit"])? == "identity" {
            if widths + all > 0 {
                return refuse("sign_values", "there are signs, where `sign_mode` is `identity`");
            }
            return Ok(None);
        }
        let mut signs = BTreeMap::new();
        let mut left = all;
        for width in each_width {
            let Some(width) = width?.as_u64() else {
                return refuse("sign_widths", "not an array of integers from 0 on");
            };
            // All signs together are as many bytes as the array has elements, at most.
            let Some(behind) = left.checked_sub(width) else {
                return refuse("sign_values", format!("{all} signs, of which width {width} finds {left}"));
            };
            left = behind;
            let mut of_width = Vec::new();
            let room = usize::try_from(width).ok().filter(|width| of_width.try_reserve_exact(*width).is_ok());
            let Some(width) = room else {
                return refuse("sign_values", format!("no memory for {width} signs"));
            };
            for value in values.by_ref().take(width) {
                match sign(&value?) {
                    Some(sign) => of_width.push(sign),
                    None => return refuse("sign_values", "not an array of the integers 1 and -1"),
                }
            }
            if signs.insert(width, of_width).is_some() {
                return refuse("sign_widths", format!("{width} for the second time"));
            }
        }
        if left > 0 {
            return refuse("sign_values", format!("{left} signs more than `sign_widths` says"));
        }
        Ok(Some(signs))
    }
}

fn sign(value: &Value<'_>) -> Option<i8> {
    match value {
        Value::I8(-1) | Value::I16(-1) | Value::I32(-1) | Value::I64(-1) => Some(-1),
        other => (other.as_u64() == Some(1)).then_some(1),
    }
}
