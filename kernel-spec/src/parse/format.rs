//! Format files: `block`, `[[field]]`, `unused`; the rest of a format is in [`super::value`].

use super::name::ident;
use super::value::{self, RawQuantizer, RawValue};
use crate::model::{Digit, FieldLayout, FieldType, Radix, Scalar, Segment, SegmentDigit, Slice};
use crate::toml_walk::{At, File, Node, Span, Table};
use toml::de::DeTable;

/// Bounds on user numbers; with them no sum or product in the checks can overflow.
pub(crate) const MAX_ELEMENTS: u32 = 65536;
pub(crate) const MAX_BYTES: u32 = 65536;
const MAX_BITS: i64 = MAX_BYTES as i64 * 8;
const MAX_DIGITS: usize = 8;
const MAX_FIELDS: usize = 64;

/// A format as it was written.
#[derive(Debug)]
pub(crate) struct RawFormat<'a> {
    pub file: &'a File<'a>,
    pub name: &'a str,
    pub doc: String,
    pub gguf: Option<At<u32>>,
    pub family: String,
    pub elements: Option<At<u32>>,
    pub bytes: Option<At<u32>>,
    pub activations: Option<At<String>>,
    pub tail_bytes: Option<At<u32>>,
    pub unused: Vec<At<Unused>>,
    pub fields: Vec<RawField>,
    /// Every field, gap and the block could be read: coverage can be checked.
    pub complete: bool,
    pub value: Option<RawValue>,
    pub quantizers: Vec<RawQuantizer>,
}

/// A declared gap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused {
    pub offset: u32,
    pub bits: u32,
}

/// A field as it was written.
#[derive(Debug)]
pub(crate) struct RawField {
    pub name: At<String>,
    pub ty: At<FieldType>,
    pub count: u32,
    pub layout: FieldLayout,
    /// Where the layout is written (the field's header if it is not).
    pub layout_span: Span,
    /// Where each segment of a field of digits is written.
    pub segment_spans: Vec<Span>,
    pub times: i32,
    pub plus: i32,
    /// Where `times` or `plus` is written.
    pub factor_span: Option<Span>,
}

const KEYS: &[&str] =
    &["doc", "gguf", "family", "block", "activations", "tail_bytes", "unused", "field", "value", "quantize"];
const FIELD_KEYS: &[&str] = &["name", "type", "layout", "parts", "digits", "segments", "times", "plus"];
const PART_KEYS: &[&str] = &["bits", "shape", "stride", "offset"];

pub(crate) fn parse<'a>(file: &'a File<'a>, name: &'a str, table: &DeTable<'_>) -> RawFormat<'a> {
    let table = Table::open(file, "a format", table, Span::default(), KEYS);
    let block = table.need("block").and_then(|n| n.table("`block`", &["elements", "bytes"]));
    let elements = block.and_then(|b| b.need("elements")).and_then(|n| n.unsigned(1..=MAX_ELEMENTS));
    let bytes = block.and_then(|b| b.need("bytes")).and_then(|n| n.unsigned(1..=MAX_BYTES));
    let family = table.get("family").and_then(|n| ident(&n)).map(|at| at.value);
    let unused = unused_list(&table);
    let (fields, all_fields) = fields(&table);
    let complete = all_fields && unused.is_some() && elements.is_some() && bytes.is_some();
    RawFormat {
        file,
        name,
        doc: table.doc(name),
        gguf: table.get("gguf").and_then(|n| n.unsigned(0..=u32::MAX)),
        family: family.unwrap_or_default(),
        elements,
        bytes,
        activations: table.get("activations").and_then(|n| n.string()),
        tail_bytes: table.get("tail_bytes").and_then(|n| n.unsigned(1..=4096)),
        unused: unused.unwrap_or_default(),
        fields,
        complete,
        value: table
            .need("value")
            .and_then(|n| n.table("`[value]`", value::VALUE_KEYS))
            .and_then(|t| value::parse_value(&t)),
        quantizers: value::parse_quantizers(&table),
    }
}

/// The declared gaps.
pub(crate) fn unused_list(table: &Table<'_>) -> Option<Vec<At<Unused>>> {
    match table.get("unused") {
        None => Some(Vec::new()),
        Some(node) => node.list(unused_bits),
    }
}

fn unused_bits(node: &Node<'_>) -> Option<At<Unused>> {
    let table = node.table("an unused range", &["offset", "bits"])?;
    let offset = table.need("offset").and_then(|n| n.unsigned(0..=MAX_BYTES * 8 - 1));
    let bits = table.need("bits").and_then(|n| n.unsigned(1..=MAX_BYTES * 8));
    Some(At { value: Unused { offset: offset?.value, bits: bits?.value }, span: node.span })
}

fn fields(table: &Table<'_>) -> (Vec<RawField>, bool) {
    if table.need("field").is_none() {
        return (Vec::new(), false);
    }
    let Some(tables) = table.tables("field", "a field", FIELD_KEYS) else {
        return (Vec::new(), false);
    };
    if tables.len() > MAX_FIELDS {
        let file = table.file;
        let message = format!("a format may have at most {MAX_FIELDS} fields, this one has {}", tables.len());
        file.report(file.error("out-of-range", tables[MAX_FIELDS].span, message));
        return (Vec::new(), false);
    }
    let all = tables.len();
    let fields: Vec<RawField> = tables.iter().filter_map(field).collect();
    let complete = fields.len() == all;
    (fields, complete)
}

fn field(table: &Table<'_>) -> Option<RawField> {
    let name = table.need("name").and_then(|n| ident(&n));
    let ty = table.need("type").and_then(|n| field_type(&n));
    let times = table.get("times").map(|n| n.signed(-32768..=32768));
    // With `times` at its largest, the largest raw value and this still fit 32 bits.
    let plus = table.get("plus").map(|n| n.signed(-32768..=32767));
    let factor_span = table.key_span("times").or(table.key_span("plus"));
    // Without a type the layout's leaves are still checked, as an integer's.
    let kind = ty.map_or(FieldType::Unsigned(1), |t| t.value);
    let layout = layout(table, kind, ty.is_some());
    let (name, ty, (layout, count, layout_span)) = (name?, ty?, layout?);
    let times = times.unwrap_or(Some(At { value: 1, span: table.span }))?.value;
    let plus = plus.unwrap_or(Some(At { value: 0, span: table.span }))?.value;
    let segments = match &layout {
        FieldLayout::Digits { .. } => table.get("segments").and_then(|node| node.items()).unwrap_or_default(),
        FieldLayout::Bits(_) => Vec::new(),
    };
    let segment_spans = segments.iter().map(|segment| segment.span).collect();
    Some(RawField { name, ty, count, layout, layout_span, segment_spans, times, plus, factor_span })
}

fn field_type(node: &Node<'_>) -> Option<At<FieldType>> {
    let at = node.string()?;
    let known = match at.value.as_str() {
        "trit" => Some(FieldType::Digit(Radix::THREE)),
        name => {
            scalar(name).map(FieldType::Scalar).or_else(|| integer_type(name)).or_else(|| digit_type(name))
        }
    };
    if known.is_none() {
        let message = format!("unknown field type `{}`", at.value.escape_debug());
        let scalars = Scalar::ALL.map(|scalar| format!("`{}`", scalar.name())).join(", ");
        node.file
            .report(node.file.error("unknown-name", at.span, message).label("no such type").help(format!(
            "known: `u1` to `u16`, `i2` to `i16`, {scalars}, `trit`, `base5` to `base7`, `base9` to `base15`"
        )));
    }
    known.map(|value| At { value, span: at.span })
}

fn integer_type(name: &str) -> Option<FieldType> {
    let digits = name.get(1..)?;
    let bits: u32 = digits.parse().ok().filter(|bits: &u32| bits.to_string() == digits)?;
    match (name.as_bytes().first()?, bits) {
        (b'u', 1..=16) => Some(FieldType::Unsigned(bits)),
        (b'i', 2..=16) => Some(FieldType::Signed(bits)),
        _ => None,
    }
}

/// Digits of another base than 3, whose digits are called trits.
fn digit_type(name: &str) -> Option<FieldType> {
    let digits = name.strip_prefix("base")?;
    let base: u32 = digits.parse().ok().filter(|base: &u32| base.to_string() == digits)?;
    Radix::new(base).filter(|radix| *radix != Radix::THREE).map(FieldType::Digit)
}

/// A scalar type by its spelling in specs.
pub(crate) fn scalar(name: &str) -> Option<Scalar> {
    Scalar::ALL.into_iter().find(|scalar| scalar.name() == name)
}

/// Width of a type in bits; digits that share bytes have none.
pub(crate) fn bits_of(ty: FieldType) -> Option<u32> {
    match ty {
        FieldType::Unsigned(bits) | FieldType::Signed(bits) => Some(bits),
        FieldType::Scalar(scalar) => Some(scalar.bits()),
        FieldType::Digit(_) => None,
    }
}

/// The layout of a field, how many values it holds, and where it is written.
fn layout(table: &Table<'_>, ty: FieldType, known: bool) -> Option<(FieldLayout, u32, Span)> {
    let file = table.file;
    let radix = match ty {
        FieldType::Digit(radix) => Some(radix),
        FieldType::Unsigned(_) | FieldType::Signed(_) | FieldType::Scalar(_) => None,
    };
    let misplaced: &[&str] = if radix.is_some() { &["layout", "parts"] } else { &["digits", "segments"] };
    if known {
        for key in misplaced {
            if let Some(span) = table.key_span(key) {
                let message = format!("`{key}` does not belong to a field of this type");
                let help = if radix.is_some() {
                    "a field of trits or other digits has `digits` and `segments`"
                } else {
                    "only fields of trits and other digits have `digits` and `segments`; others have `layout` or `parts`"
                };
                file.report(file.error("conflicting-keys", span, message).help(help));
                return None;
            }
        }
    }
    if let Some(radix) = radix {
        return digits(table, radix);
    }
    let (layout, parts) = (table.get("layout"), table.get("parts"));
    if let (Some(layout), Some(span)) = (&layout, table.key_span("parts")) {
        let error = file.error("conflicting-keys", span, "a field has either `layout` or `parts`");
        file.report(error.also(file.path, layout.span, "the other one"));
        return None;
    }
    if let Some(parts) = parts {
        let slices = parts.list(|n| slice(&n.table("a part", PART_KEYS)?, None))?;
        return parts_of(file, ty, slices, parts.span, known);
    }
    let bits = bits_of(ty)?;
    let Some(node) = layout else {
        let slice = Slice { bits, offset: 0, digits: Vec::new() };
        return Some((FieldLayout::Bits(vec![slice]), 1, table.span));
    };
    let (slice, count) = slice(&node.table("a layout", &PART_KEYS[1..])?, Some(bits))?;
    Some((FieldLayout::Bits(vec![slice]), count, node.span))
}

fn parts_of(
    file: &File<'_>,
    ty: FieldType,
    slices: Vec<(Slice, u32)>,
    span: Span,
    known: bool,
) -> Option<(FieldLayout, u32, Span)> {
    let Some(&(_, count)) = slices.first() else {
        file.report(file.error("out-of-range", span, "`parts` is empty"));
        return None;
    };
    let mut sound = true;
    if let Some((_, other)) = slices.iter().find(|(_, c)| *c != count) {
        let message = format!("the parts of a field must hold equally many values, not {count} and {other}");
        file.report(file.error("parts-disagree", span, message));
        sound = false;
    }
    let sum: u32 = slices.iter().map(|(slice, _)| slice.bits).sum();
    let bits = bits_of(ty)?;
    if known && sum != bits {
        let message = format!("the parts have {sum} bits together, but the field's type has {bits}");
        file.report(file.error("parts-disagree", span, message).help("parts are listed lowest bits first"));
        sound = false;
    }
    sound.then(|| (FieldLayout::Bits(slices.into_iter().map(|(s, _)| s).collect()), count, span))
}

/// One slice; its width is given by the field's type or, for a part, by `bits`.
pub(crate) fn slice(table: &Table<'_>, bits: Option<u32>) -> Option<(Slice, u32)> {
    let bits = bits.or_else(|| table.need("bits").and_then(|n| n.unsigned(1..=32)).map(|at| at.value));
    let offset = match table.get("offset") {
        None => Some(0),
        Some(node) => node.integer(0..=MAX_BITS - 1).map(|at| at.value),
    };
    let shape = shape(table);
    let stride = match table.get("stride") {
        None => Some(Vec::new()),
        Some(node) => node.list(|n| n.integer(-MAX_BITS..=MAX_BITS)),
    };
    let ((shape, count), stride) = (shape?, stride?);
    same_length(table, shape.len(), "stride", stride.len())?;
    let digits = shape.iter().zip(&stride).map(|(extent, at)| Digit { extent: *extent, stride: at.value });
    Some((Slice { bits: bits?, offset: offset?, digits: digits.collect() }, count))
}

/// `shape` and the product of its numbers.
pub(crate) fn shape(table: &Table<'_>) -> Option<(Vec<u32>, u32)> {
    let Some(node) = table.get("shape") else { return Some((Vec::new(), 1)) };
    let extents = node.list(|n| n.unsigned(1..=MAX_ELEMENTS))?;
    let file = table.file;
    if extents.len() > MAX_DIGITS {
        let message =
            format!("`shape` may have at most {MAX_DIGITS} numbers, this one has {}", extents.len());
        file.report(file.error("out-of-range", node.span, message));
        return None;
    }
    let product = extents.iter().try_fold(1u32, |product, at| product.checked_mul(at.value));
    match product.filter(|product| *product <= MAX_ELEMENTS) {
        Some(product) => Some((extents.iter().map(|at| at.value).collect(), product)),
        None => {
            let message = format!("`shape` describes more than {MAX_ELEMENTS} values");
            file.report(file.error("out-of-range", node.span, message));
            None
        }
    }
}

/// Reports a list that must have one number for each of `shape`.
pub(crate) fn same_length(table: &Table<'_>, shape: usize, key: &'static str, other: usize) -> Option<()> {
    if shape == other {
        return Some(());
    }
    let span = table.get(key).or(table.get("shape")).map_or(table.span, |n| n.span);
    let message =
        format!("`shape` has {shape} numbers and `{key}` has {other}; each digit needs one of both");
    table.file.report(table.file.error("shape-mismatch", span, message));
    None
}

fn digits(table: &Table<'_>, radix: Radix) -> Option<(FieldLayout, u32, Span)> {
    let order = table.need("digits").and_then(|n| {
        n.word("digit order", &[("most-significant-first", true), ("least-significant-first", false)])
    });
    let segments = table.need("segments");
    let span = segments.map_or(table.span, |n| n.span);
    let segments = segments.and_then(|n| n.list(segment));
    let (order, segments) = (order?, segments?);
    let count: u32 = segments.iter().map(|(_, count)| *count).fold(0, u32::saturating_add);
    if count == 0 || count > MAX_ELEMENTS {
        let message = format!("the segments describe {count} digits; there must be 1 to {MAX_ELEMENTS}");
        table.file.report(table.file.error("out-of-range", span, message));
        return None;
    }
    let segments = segments.into_iter().map(|(segment, _)| segment).collect();
    Some((FieldLayout::Digits { radix, most_significant_first: order.value, segments }, count, span))
}

fn segment(node: &Node<'_>) -> Option<(Segment, u32)> {
    let table = node.table("a segment", &["first", "shape", "element", "stride", "digit", "offset"])?;
    let optional = |key, max| match table.get(key) {
        None => Some(0),
        Some(node) => node.unsigned(0..=max).map(|at| at.value),
    };
    let first = optional("first", MAX_ELEMENTS - 1);
    let offset = optional("offset", MAX_BYTES * 8 - 1);
    table.need("shape");
    let shape = shape(&table);
    let element = table.need("element").and_then(|n| n.list(|n| n.unsigned(0..=MAX_ELEMENTS)));
    let stride = table.need("stride").and_then(|n| n.list(|n| n.integer(-MAX_BITS..=MAX_BITS)));
    let digit = table.need("digit").and_then(|n| n.list(|n| n.unsigned(0..=4)));
    let ((shape, count), element, stride, digit) = (shape?, element?, stride?, digit?);
    same_length(&table, shape.len(), "element", element.len())?;
    same_length(&table, shape.len(), "stride", stride.len())?;
    same_length(&table, shape.len(), "digit", digit.len())?;
    let offset = offset?;
    if offset % 8 != 0 || stride.iter().any(|at| at.value % 8 != 0) {
        let message = "digits live in whole bytes: `offset` and `stride` must be multiples of 8";
        table.file.report(table.file.error("out-of-range", node.span, message));
        return None;
    }
    let digits = (0..shape.len()).map(|i| SegmentDigit {
        extent: shape[i],
        element: element[i].value,
        stride: stride[i].value,
        digit: digit[i].value,
    });
    Some((Segment { first: first?, offset, digits: digits.collect() }, count))
}
