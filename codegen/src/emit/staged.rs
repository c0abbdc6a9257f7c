//! The packed matmul for many tokens: codes become operands once, in a buffer that stays in the caches.
//!
//! [`matmul`](super::matmul) decodes the codes of a tile of rows again for every few tokens. Here some k of a panel are decoded for all
//! tokens at once, and its loops run over bytes: what a packing costs to take apart is divided by the tokens, as in the packing of
//! panels in BLIS (Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015). Sums wait beside
//! the operands for the next k, unrounded, so results have the same bits.

use super::function::{Function, constants, imports};
use super::matmul::{
    addresses, entry, epilogue, in_shares, next, prefetch_constants, through_tokens, trit_tables, whole_sums,
};
use super::operands::{Over, decode, in_order, load, table};
use super::runs::{self, Extent};
use super::sums::integer_sums;
use super::superblock_terms::{self, TermsRead};
use super::superblocks;
use crate::plan::{MatmulPlan, Scaled, Staged, Term, enabled};
use crate::text::when;

/// Tokens whose sums wait at once: with 32 rows, 12 KiB. Codes are decoded anew for the next ones.
const TOKENS: u32 = 192;

/// The types of what stays in the caches: `fields` (what each is, its name and its type) and sums, at addresses that `users` want.
pub(super) fn buffer(users: &str, fields: &[(&str, &str, &str)]) -> String {
    let fields = fields.iter().map(|(what, name, ty)| format!("/// {what}\n{name}: Aligned<{ty}>,\n"));
    format!(
        "/// At an address that {users} want.
         #[repr(align(64))]
         struct Aligned<T>(T);

         /// What stays in the caches while tokens pass by.
         struct Buffer {{
             {fields}
             /// The sums of a token in the order of its rows.
             sums: Aligned<[u32; TOKENS * ROWS]>,
         }}

         /// The part of a row that is in the buffer: steps `first..last`.
         #[derive(Clone, Copy)]
         struct Part {{
             buffer: *mut Buffer,
             first: usize,
             last: usize,
         }}",
        fields = fields.collect::<String>(),
    )
}

/// Where the operands of `V` vectors of a field go, of so many `bytes` each, behind those of its tile of codes.
pub(super) fn place_of_operands(field: u32, bytes: u32) -> String {
    match 4 * bytes * field {
        0 => "i * LANES * 4".to_string(),
        k => format!("{k} * ROWS + i * LANES * 4"),
    }
}

/// What counts operands of so many `bytes`, behind a number of them.
fn times_bytes(bytes: u32) -> String {
    when(bytes != 1, || format!(" * {bytes}"))
}

/// The module of a staged variant: `stage`, `tile` and `matmul`.
pub(super) fn emit(plan: &MatmulPlan<'_>, staged: &Staged<'_>) -> String {
    let (decoding, multiplying) = plan.apart(staged);
    let features = enabled(&plan.features);
    let rows = plan.pack.packing.rows;
    let k = staged.step * staged.steps;
    let tokens = TOKENS.next_multiple_of(plan.tokens);
    let times_bytes = times_bytes(staged.operand_bytes());
    let fours = plan.format.k_group / 4;
    let mut head = constants(&[
        ("ROWS", &rows, "Rows of a panel."),
        ("CODES_K", &plan.pack.tile.k, "Elements of a row in a tile of codes."),
        ("TILE_K", &staged.operands.tile.k, "Elements of a row in a tile of operands."),
        ("TILE", &format!("TILE_K * ROWS{times_bytes}"), "Bytes of a tile of operands: all rows of a panel."),
        ("STEP_K", &staged.step, "Elements of k that are never apart."),
        ("STEPS", &staged.steps, "Steps that are decoded at once."),
        ("TOKENS", &tokens, "Tokens whose sums wait at once."),
    ]);
    let operands = format!("[u8; {k} * ROWS{times_bytes}]");
    let mut fields = vec![("Operands, tile by tile.", "operands", operands.as_str())];
    if staged.integers {
        fields.push(("The integers of their runs, run by run.", "integers", "[u8; STEPS * RUNS * ROWS * 4]"));
    }
    let words = format!("[i32; {} * {} * 2 * FOURS]", staged.steps * plan.format.runs(), plan.tokens);
    if staged.of_words() {
        head += &constants(&[("FOURS", &fours, "Fours of k in a run.")]);
        if plan.widens_parts() {
            fields.push(("Activations of a tile of tokens as i16, run by run.", "words", words.as_str()));
        }
    }
    let runs = match &plan.format.superblock {
        Some(superblock) if staged.scaled.is_some() || staged.integers => {
            superblock_terms::constants(plan, superblock)
        }
        _ => String::new(),
    };
    let tokens =
        through_tokens(plan, "end", |step| format!("tile::<V, {step}>(a, part, row, token, token - begin)"));
    let parts = [
        runs,
        buffer("vectors", &fields),
        stage_of(&decoding, staged, &features),
        tile(&multiplying, staged, &features),
        panel(plan, &features, ["", &format!("let mut token = begin;\n{tokens}"), ""]),
        matmul(plan, &features, ["", ""]),
    ];
    module(plan, &[], &head, &parts)
}

/// A module whose operands wait in a buffer: imports, among them `units` beside primitives, the constants of its `head`, tables, and its parts.
pub(super) fn module(plan: &MatmulPlan<'_>, units: &[&str], head: &str, parts: &[String]) -> String {
    let imports = imports(units, plan.primitives.module);
    format!("{imports}use std::mem::MaybeUninit;\n{head}{}{}", trit_tables(plan), parts.join("\n"))
}

/// The function that decodes a part, as its operands are written.
fn stage_of(plan: &MatmulPlan<'_>, staged: &Staged<'_>, features: &str) -> String {
    let min = smallest(plan);
    match staged.scaled {
        None if staged.integers => stage_runs(
            plan,
            features,
            &OfRuns {
                doc: "The operands of `V` vectors of rows from `row` in a part, and the integers of their runs.",
                pointers: "let mut integers = (&raw mut (*part.buffer).integers.0).cast::<u8>();",
                kept: "for i in 0..V { integers.add(i * LANES * 4).cast::<simd::I>().write(factors[i]); }
                       integers = integers.add(4 * ROWS);",
                bytes: 1,
            },
            |field| {
                let to = place_of_operands(field, 1);
                let operand = match staged.halved {
                    // Bytes are even, so none gets a bit of its neighbour.
                    true => format!("simd::shift::<1>(w{field}[i])"),
                    false => format!("w{field}[i]"),
                };
                format!("to.add({to}).cast::<simd::I>().write({operand});")
            },
        ),
        None => stage_values(plan, features, |operand| operand),
        Some(Scaled::Bytes { zero, halved }) => stage_products(plan, features, 1, |field| {
            let times = if halved { "half_of_times" } else { "times" };
            format!(
                "to.add({}).cast::<simd::I>().write(simd::{times}(w{field}[i], factors[i], {min}, {zero}));",
                place_of_operands(field, 1)
            )
        }),
        Some(Scaled::Words) => {
            let words = |field, factor| {
                format!(
                    "let (even, odd) = simd::times_words(w{field}[i], {factor}, {min}, 0);
                     let to = to.add({});
                     to.cast::<simd::I>().write(even);
                     to.add(4 * ROWS).cast::<simd::I>().write(odd);",
                    place_of_operands(field, 2)
                )
            };
            match plan.format.superblock {
                Some(_) => stage_products(plan, features, 2, |field| words(field, "factors[i]")),
                None => stage(plan, features, 2, |field| words(field, "simd::factor(simd::splat(1))")),
            }
        }
    }
}

/// The function that decodes a part whose operands are bytes. `stored`: what is written of a vector of them.
pub(super) fn stage_values(
    plan: &MatmulPlan<'_>,
    features: &str,
    stored: impl Fn(String) -> String,
) -> String {
    stage(plan, features, 1, |field| {
        let to = place_of_operands(field, 1);
        format!("to.add({to}).cast::<simd::I>().write({});", stored(format!("w{field}[i]")))
    })
}

/// The statements that decode all fields of a tile, each with what `write` says of vector `i`.
fn decode_fields(plan: &MatmulPlan<'_>, write: impl Fn(u32) -> String) -> String {
    in_order(plan)
        .into_iter()
        .map(|field| format!("{}\nfor i in 0..V {{ {} }}\n", decode(plan, field), write(field)))
        .collect()
}

/// The function that decodes a part. `write`: the statement that writes vector `i` of the operands of a field, so many `bytes` each.
fn stage(plan: &MatmulPlan<'_>, features: &str, bytes: u32, write: impl Fn(u32) -> String) -> String {
    let body = format!(
        "for tile in part.first * STEP_K / CODES_K..part.last * STEP_K / CODES_K {{
             let at = tile * TILE_OF_CODES;
             {}
             {fields}
             to = to.add(CODES_K * ROWS{times_bytes});
         }}",
        load(plan),
        fields = decode_fields(plan, write),
        times_bytes = times_bytes(bytes),
    );
    let doc = "The operands of `V` vectors of rows from `row` in a part.";
    Staging { doc, constants: "", pointers: "", answers: "the codes and the buffer", body: &body }
        .emit(plan, features)
}

/// The function `stage` of a module.
struct Staging<'a> {
    doc: &'a str,
    /// Constants beside the size of a tile of codes.
    constants: &'a str,
    /// Statements that bind where terms are.
    pointers: &'a str,
    /// What its caller answers for.
    answers: &'a str,
    /// The loops, which write what is decoded to `to`.
    body: &'a str,
}

impl Staging<'_> {
    fn emit(&self, plan: &MatmulPlan<'_>, features: &str) -> String {
        let Staging { doc, constants, pointers, answers, body } = *self;
        let function = Function {
            doc,
            safety: "As [`MatmulArgs`] says; the rows lie within its panels, the part within them and the buffer.",
            features,
            declaration: "unsafe fn stage<const V: usize>(a: &MatmulArgs, part: Part, row: usize)",
        };
        let items = format!(
            "/// Bytes of a tile of codes.
             const TILE_OF_CODES: usize = {};
             {constants}
             {}",
            plan.pack.tile.bytes,
            prefetch_constants(plan),
        );
        let body = format!(
            "{}
             {}
             {}
             {pointers}
             let mut to = (&raw mut (*part.buffer).operands.0).cast::<u8>();
             {body}",
            addresses(plan),
            next(plan),
            table(plan),
        );
        function.with_unsafe(&items, &format!("the caller answers for {answers}"), &body)
    }
}

/// The smallest value, as an expression.
pub(super) fn smallest(plan: &MatmulPlan<'_>) -> &'static str {
    if plan.format.min() == 0 { "0" } else { "a.min" }
}

/// The function that decodes the super-blocks of a part for products of values and the integers of their runs. `write`: the statement that
/// writes vector `i` of the operands of a field, of whose rows `factors[i]` has the integers; an operand takes so many `bytes`.
pub(super) fn stage_products(
    plan: &MatmulPlan<'_>,
    features: &str,
    bytes: u32,
    write: impl Fn(u32) -> String,
) -> String {
    let of = OfRuns {
        doc: "The operands of `V` vectors of rows from `row` in a part: values times the integers of their runs.",
        pointers: "",
        kept: "",
        bytes,
    };
    stage_runs(plan, features, &of, write)
}

/// What a function that decodes super-blocks run by run writes.
struct OfRuns {
    doc: &'static str,
    /// Statements that bind where integers go, and those that keep `factors` there.
    pointers: &'static str,
    kept: &'static str,
    /// Bytes of an operand.
    bytes: u32,
}

/// The function that decodes the super-blocks of a part run by run. `write`: as in [`stage_products`].
fn stage_runs(plan: &MatmulPlan<'_>, features: &str, of: &OfRuns, write: impl Fn(u32) -> String) -> String {
    let (flags, next_flags) = superblock_terms::flags_of_runs(plan);
    let mut pointers =
        superblock_terms::terms_of_rows(plan, Term::Scale, TermsRead { values: false, integers: true });
    if let (Some(_), Some(superblock)) = (plan.pack.shifted, &plan.format.superblock) {
        pointers.push_str(&superblock_terms::flag_words(plan, superblock));
    }
    pointers.push_str(of.pointers);
    let body = format!(
        "for block in part.first..part.last {{
             {flags}
             for run in 0..RUNS {{
                 let mut factors = [simd::zero(); V];
                 for i in 0..V {{ factors[i] = simd::factor({integers}); }}
                 {kept}
                 for tile in 0..TILES {{
                     let at = ((block * RUNS + run) * TILES + tile) * TILE_OF_CODES;
                     {load}
                     {fields}
                     to = to.add(CODES_K * ROWS{times_bytes});
                 }}
                 {next_flags}
             }}
         }}",
        integers = superblock_terms::integers_of_run(plan),
        kept = of.kept,
        load = load(plan),
        fields = decode_fields(plan, write),
        times_bytes = times_bytes(of.bytes),
    );
    let staging = Staging {
        doc: of.doc,
        constants: "/// Tiles of codes of a run.\nconst TILES: usize = STEP_K / RUNS / CODES_K;",
        pointers: &pointers,
        answers: "the codes, the integers and the buffer",
        body: &body,
    };
    staging.emit(plan, features)
}

/// The function that multiplies a part with some tokens.
fn tile(plan: &MatmulPlan<'_>, staged: &Staged<'_>, features: &str) -> String {
    let float = plan.format.k_group != 0;
    let extent = Extent {
        first: Some("part.first"),
        last: "part.last",
        y: "if part.first == 0 { [[simd::splat_f32(0.0); V]; T] } else { waiting.read() }",
        integers: staged.integers,
        halved: staged.halved,
        words: staged.of_words(),
    };
    let (vector, name) = if float { ("F", "y") } else { ("I", "dot") };
    let sums = match (plan.format.k_group, &plan.format.superblock) {
        (0, _) => format!(
            "{}
             if part.first > 0 {{
                 let before = waiting.read();
                 for t in 0..T {{ for i in 0..V {{ dot[t][i] = simd::add(dot[t][i], before[t][i]); }} }}
             }}\n",
            integer_sums(plan, Over::Row("((part.last - part.first) * (STEP_K / TILE_K))"), false)
        ),
        (_, Some(superblock)) => match staged.scaled {
            None => superblocks::by_superblock(plan, superblock, &extent),
            Some(scaled) => superblocks::by_products(plan, superblock, &extent, scaled),
        },
        (_, None) => runs::by_k_group(plan, &extent),
    };
    let function = Function {
        doc: "`V` vectors of rows from `row` by `T` tokens from `token`, whose sums wait at token `at` of the buffer.",
        safety: "As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on\n\
                 within the buffer.",
        features,
        declaration: "unsafe fn tile<const V: usize, const T: usize>(a: &MatmulArgs, part: Part, row: usize, token: usize, at: usize)",
    };
    let words = when(extent.words && plan.widens_parts(), || {
        format!(
            "// Long before the loads that broadcast them: one that follows the store of its bytes at once waits for it.
             let words = (&raw mut (*part.buffer).words.0).cast::<[[[i32; FOURS]; 2]; T]>();
             for run in 0..(part.last - part.first) * {} {{
                 for t in 0..T {{ (*words.add(run))[t] = simd::words(x[t].add(4 * FOURS * run)); }}
             }}",
            plan.format.runs()
        )
    });
    let body = format!(
        "let mut codes = [(&raw const (*part.buffer).operands.0).cast::<u8>(); V];
         for i in 1..V {{ codes[i] = codes[0].add(i * LANES * 4); }}
         {integers}
         let waiting = (&raw mut (*part.buffer).sums.0).cast::<u32>().add(at * ROWS).cast::<[[simd::{vector}; V]; T]>();
         let mut x = [a.x; T];
         for t in 0..T {{ x[t] = a.x.add((token + t) * a.x_stride + part.first * STEP_K); }}
         {words}
         {sums}
         if part.last < steps(a) {{
             waiting.write({name});
             return;
         }}
         {whole}
         {epilogue}",
        integers = when(staged.integers, || {
            "let integers = (&raw const (*part.buffer).integers.0).cast::<u8>();".to_string()
        }),
        whole = when(!float, || whole_sums(plan)),
        epilogue = epilogue(plan.format, "V", "T", "y[t][i]"),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, and for the part";
    function.with_unsafe("", why, &body)
}

/// The function that takes a panel through tokens, with statements before its parts, for the tokens from `begin` to `end` of a part, whose operands
/// are staged, and after all parts.
pub(super) fn panel(plan: &MatmulPlan<'_>, features: &str, [before, body, after]: [&str; 3]) -> String {
    let tokens = plan.tokens;
    let steps = match (plan.format.k_group, plan.format.runs()) {
        (0, _) => format!("a.stride / {}", plan.pack.tile.bytes),
        (_, 1) => "a.units".to_string(),
        (_, runs) => format!("a.units / {runs}"),
    };
    let panel = Function {
        doc: "`V` vectors of rows from `row` by tokens `first..last`.",
        safety: "As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.",
        features,
        declaration: "unsafe fn panel<const V: usize>(a: &MatmulArgs, buffer: *mut Buffer, row: usize, first: usize, last: usize)",
    };
    let body = format!(
        "// Turns of equal length.
         let turns = (last - first).div_ceil(TOKENS).max(1);
         let turn = (last - first).div_ceil(turns).next_multiple_of({tokens});
         // SAFETY: parts end with the row, and a turn has no more than `TOKENS` tokens; the rest is passed on.
         unsafe {{
             let mut begin = first;
             while begin < last {{
                 let end = last.min(begin + turn);
                 {before}
                 let mut part = Part {{ buffer, first: 0, last: STEPS.min(steps(a)) }};
                 loop {{
                     stage::<V>(a, part, row);
                     {body}
                     if part.last == steps(a) {{ break; }}
                     part = Part {{ buffer, first: part.last, last: (part.last + STEPS).min(steps(a)) }};
                 }}
                 {after}
                 begin = end;
             }}
         }}"
    );
    format!("/// Steps of a row.\nfn steps(a: &MatmulArgs) -> usize {{ {steps} }}\n\n{}", panel.with(&body))
}

/// The entry point, with statements at its beginning and at its end.
pub(super) fn matmul(plan: &MatmulPlan<'_>, features: &str, [begin, end]: [&str; 2]) -> String {
    let buffer = "let mut buffer = MaybeUninit::<Buffer>::uninit();
         let buffer = buffer.as_mut_ptr();";
    let panels = in_shares(plan, buffer, |rows| format!("panel::<{rows}>(a, buffer, row, first, last);"));
    entry(features, &format!("{begin}\n{panels}\n{end}"))
}
