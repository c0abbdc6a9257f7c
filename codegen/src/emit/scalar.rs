//! The scalar product: the reference, in portable Rust.

use crate::lower::ir::{f32, i32};
use crate::lower::product as lower;
use crate::plan::{FormatPlan, SuperBlock};
use crate::print::rust;
use crate::text::when;
use std::fmt::Write;

/// The scalar matmul: the reference, straight from the format's own rows.
pub fn matmul_scalar(plan: &FormatPlan<'_>) -> String {
    let [declare, accumulate, result] = match (&plan.superblock, plan.k_group) {
        (Some(superblock), _) => by_superblock(plan, superblock),
        (None, 0) => whole_row(),
        (None, k_group) => by_k_group(plan, k_group),
    };
    let epilogue = epilogue_scalar(plan);
    format!(
        "/// Tokens that share one pass over a row.
         const TOKENS: usize = 8;

         /// The reference product.
         ///
         /// # Safety
         ///
         /// As [`MatmulArgs`] says, with the format's own rows in `codes`. Activation units are not padded.
         pub unsafe fn matmul_scalar(a: &MatmulArgs) {{
             for row in a.row_begin..a.row_end {{
                 for first in (0..a.m).step_by(TOKENS) {{
                     let tokens = TOKENS.min(a.m - first);
                     {declare}
                     for index in 0..a.k / ELEMENTS {{
                         // SAFETY: the caller answers for rows of `stride` bytes.
                         let block = unsafe {{ &*a.codes.add(row * a.stride + index * BYTES).cast::<[u8; BYTES]>() }};
                         // Packing refused codes without meaning before this is called.
                         let Ok(values) = values(block) else {{ continue }};
                         {accumulate}
                     }}
                     for token in 0..tokens {{
                         {result}
                         {epilogue}
                         // SAFETY: the caller answers for `m * n` outputs.
                         unsafe {{ a.y.add((first + token) * a.n + row).write(y) }};
                     }}
                 }}
             }}
         }}\n",
    )
}

/// What is declared for a row, done for each of its blocks and made of it, where a row is one integer sum.
fn whole_row() -> [String; 3] {
    [
        "let mut sums = [0i32; TOKENS];",
        "for (token, sum) in sums[..tokens].iter_mut().enumerate() {
             // SAFETY: the caller answers for `m` rows of activations.
             let x = unsafe { std::slice::from_raw_parts(a.x.add((first + token) * a.x_stride + index * ELEMENTS), ELEMENTS) };
             *sum += values.iter().zip(x).map(|(&v, &x)| i32::from(v) * i32::from(x)).sum::<i32>();
         }",
        "let y = sums[token] as f32;",
    ]
    .map(String::from)
}

/// The same where sums are scaled and added up as f32, given what is done for a block.
fn of_floats(accumulate: String) -> [String; 3] {
    ["let mut sums = [0f32; TOKENS];".to_string(), accumulate, "let y = sums[token];".to_string()]
}

/// The same where runs of `k_group` elements have an f32.
fn by_k_group(plan: &FormatPlan<'_>, k_group: u32) -> [String; 3] {
    let x_scale = x_scale(plan);
    let scaled = lower::scaled(plan, f32("scale[run]"), f32("x_scale"), i32("sum"));
    let scaled = format!("*y += {};", rust::expr(&scaled));
    let offset = when(plan.offset, || {
        let x_sum = i32("x.iter().map(|&x| i32::from(x)).sum::<i32>()");
        let term = lower::term(plan, Some(f32("offset[run]")), f32("x_scale"), x_sum);
        format!("*y -= {};", rust::expr(&term))
    });
    let terms = match (plan.has_scales(), plan.offset) {
        (true, true) => "let (scale, offset) = terms(block, 1.0);",
        (true, false) => "let scale = terms(block, 1.0);",
        (false, _) => "",
    };
    let run = if plan.has_scales() { "let run = start / RUN;" } else { "" };
    of_floats(format!(
        "{terms}
         for start in (0..ELEMENTS).step_by({k_group}) {{
             {run}
             let k = index * ELEMENTS + start;
             for (token, y) in sums[..tokens].iter_mut().enumerate() {{
                 // SAFETY: the caller answers for `m` rows of activations.
                 let x = unsafe {{ std::slice::from_raw_parts(a.x.add((first + token) * a.x_stride + k), {k_group}) }};
                 let sum: i32 = values[start..][..{k_group}].iter().zip(x).map(|(&v, &x)| i32::from(v) * i32::from(x)).sum();
                 {x_scale}
                 {scaled}
                 {offset}
             }}
         }}"
    ))
}

/// Statements that bind the activations' scale at element `k`, where a row of them has several.
fn x_scale(plan: &FormatPlan<'_>) -> String {
    plan.activations.block.map_or_else(String::new, |block| {
        format!(
            "// SAFETY: the caller answers for a scale a block.
             let x_scale = unsafe {{ *a.x_scales.add((first + token) * a.x_blocks + k / {block}) }};\n"
        )
    })
}

/// As [`by_k_group`], where runs have integers.
fn by_superblock(plan: &FormatPlan<'_>, superblock: &SuperBlock) -> [String; 3] {
    let (terms, low, has_min) = if superblock.min.is_some() {
        (
            "let (min, mins) = min_parts(block);",
            "low += i32::from(mins[run]) * x.iter().map(|&x| i32::from(x)).sum::<i32>();",
            true,
        )
    } else {
        ("", "", false)
    };
    let k = match plan.activations.block {
        None => "",
        Some(_) => "let k = index * ELEMENTS + i * SUPERBLOCK * RUN;",
    };
    let term = |factor, sum| rust::expr(&lower::term(plan, Some(f32(factor)), f32("x_scale"), i32(sum)));
    let declare = if has_min { "let mut low = 0i32;" } else { "" };
    let subtract = when(has_min, || format!("*y -= {};", term("min[i]", "low")));
    let accumulate = format!(
        "let (scale, scales) = scale_parts(block);
         {terms}
         for i in 0..SUPERBLOCKS {{
             {k}
             for (token, y) in sums[..tokens].iter_mut().enumerate() {{
                 let mut sum = 0i32;
                 {declare}
                 for run in i * SUPERBLOCK..(i + 1) * SUPERBLOCK {{
                     // SAFETY: the caller answers for `m` rows of activations.
                     let x = unsafe {{ std::slice::from_raw_parts(a.x.add((first + token) * a.x_stride + index * ELEMENTS + run * RUN), RUN) }};
                     sum += i32::from(scales[run])
                         * values[run * RUN..][..RUN].iter().zip(x).map(|(&v, &x)| i32::from(v) * i32::from(x)).sum::<i32>();
                     {low}
                 }}
                 {x_scale}
                 *y += {scaled};
                 {subtract}
             }}
         }}",
        x_scale = x_scale(plan),
        scaled = term("scale[i]", "sum"),
    );
    of_floats(accumulate)
}

/// From the sum over k (f32 `y`) to the output: activation scale, outer scale, bias, in this order.
fn epilogue_scalar(plan: &FormatPlan<'_>) -> String {
    let mut out = String::new();
    if plan.activations.block.is_none() {
        out.push_str(
            "// SAFETY: the caller answers for a scale a token.
             let x_scale = unsafe { *a.x_scales.add(first + token) };\n",
        );
    }
    if plan.uses_outer() {
        out.push_str(
            "// SAFETY: the caller answers for a scale a row.
             let outer = unsafe { *a.outer.add(row) };\n",
        );
    }
    let y = lower::of_row(plan, lower::of_token(plan, f32("y"), f32("x_scale")), f32("outer"));
    if y != f32("y") {
        let _ = writeln!(out, "let y = {};", rust::expr(&y));
    }
    let _ = writeln!(
        out,
        "let y = if a.bias.is_null() {{
             y
         }} else {{
             // SAFETY: a bias that is not null holds `n` values.
             y + unsafe {{ *a.bias.add(row) }}
         }};"
    );
    out
}
