//! The epilogue of a product: from the sum over k to the output, by scales, factor and bias.

use super::product::CudaMatmul;
use crate::lower::ir::f32;
use crate::lower::product as lower;
use crate::print::cuda;
use crate::text::joined;
use std::fmt::Write;

/// What the epilogue of an output takes besides its sum and the bias.
pub(super) struct Epilogue {
    /// A factor of the row.
    outer: bool,
    /// The token's scale.
    pub(super) x_scale: bool,
}

impl Epilogue {
    pub(super) fn of(plan: &CudaMatmul<'_>) -> Epilogue {
        Epilogue { outer: plan.format.uses_outer(), x_scale: plan.format.activations.block.is_none() }
    }

    /// Arguments of the emitted `epilogue` that are the row's, in its order; each is an array of `Matmul`.
    pub(super) fn of_row(&self) -> Vec<&'static str> {
        if self.outer { vec!["outer", "bias"] } else { vec!["bias"] }
    }

    /// Statements that load them for the four rows of a lane, each behind `indent`; `row` is an expression of row `r`.
    pub(super) fn load_rows(&self, indent: &str, row: &str) -> String {
        let each = |name| {
            format!(
                "{indent}f32 {name}[4];
{indent}GM_UNROLL for (u32 r = 0; r < 4; r++) {name}[r] = {};
",
                load(name, row)
            )
        };
        self.of_row().into_iter().map(each).collect()
    }

    /// Arguments of the emitted `epilogue` for one of these rows.
    pub(super) fn row_arguments(&self) -> impl Iterator<Item = String> {
        self.of_row().into_iter().map(|name| format!("{name}[half * 2 + j / 2]"))
    }
}

/// An expression of element `index` of an array of `Matmul`; there may be no bias.
fn load(array: &str, index: &str) -> String {
    let null = if array == "bias" { "a.bias == nullptr ? 0.0f : " } else { "" };
    format!("{null}gm_load(a.{array} + {index})")
}

/// Statements that multiply `y` by what is the row's or the format's.
pub(super) fn by_row(plan: &CudaMatmul<'_>) -> String {
    let y = || f32("y");
    match lower::of_row(plan.format, y(), f32("outer")) {
        same if same == y() => String::new(),
        product => format!("    y = {};\n", cuda::expr(&product)),
    }
}

/// The emitted `epilogue_row`: what `epilogue` does behind the token's scale.
pub(super) fn epilogue_row(plan: &CudaMatmul<'_>) -> String {
    let of_row = Epilogue::of(plan).of_row();
    let parameters = joined(of_row.iter().map(|name| format!("f32 {name}")), ", ");
    format!(
        "GM_DEVICE f32 epilogue_row(const Matmul &a, f32 y, {}) {{
{}    return a.bias == nullptr ? y : y + bias;
}}

",
        parameters,
        by_row(plan)
    )
}

/// The emitted `epilogue` and `store_output`: from the sum over k to the output, in the order of the scalar reference.
pub(super) fn epilogue(plan: &CudaMatmul<'_>) -> String {
    let used = Epilogue::of(plan);
    let mut steps = String::new();
    if used.x_scale {
        let y = lower::of_token(plan.format, f32("y"), f32("x_scale"));
        let _ = writeln!(steps, "    y = {};", cuda::expr(&y));
    }
    steps += &by_row(plan);
    let x_scale = used.x_scale.then_some("x_scale");
    let names = || used.of_row().into_iter().chain(x_scale);
    let parameters = joined(names().map(|name| format!("f32 {name}")), ", ");
    let mut loads = String::new();
    // Scales that the kernel made are already in shared memory.
    let in_shared = x_scale.filter(|_| plan.fused.is_some());
    for name in names().filter(|name| Some(*name) != in_shared) {
        let loaded = if name == "x_scale" { load("x_scales", "token") } else { load(name, "row") };
        let _ = writeln!(loads, "    const f32 {name} = {loaded};");
    }
    format!(
        "GM_DEVICE f32 epilogue(const Matmul &a, f32 y, {parameters}) {{
{steps}    return a.bias == nullptr ? y : y + bias;
}}

GM_DEVICE void store_output(const Matmul &a, u32 row, u32 token, f32 y{given}) {{
{loads}    gm_store(a.y + (u64)token * a.n + row, epilogue(a, y, {arguments}));
}}

",
        arguments = joined(names(), ", "),
        given = in_shared.map_or(String::new(), |name| format!(", f32 {name}")),
    )
}
