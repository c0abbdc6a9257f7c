//! The two forms of a product: of one matrix, and of a stack of matrices (experts) of which each CUDA block looks up its own.

use super::overlap::wait;
use super::parameters::{exported, fields};
use super::product::CudaMatmul;
use crate::text::when;
use gristmill_spec::model::CudaBudget;
use gristmill_spec::vocab::{CudaAbi, CudaAlgorithm};

/// Most tokens of a tile that has a grouped form. Experts with more tokens fill a device one by one.
const MOST_TOKENS: u32 = 32;

/// What a kernel is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One matrix: the grid's second side has tiles of its tokens.
    One,
    /// A stack: the grid's second side has tiles of tokens of one expert each.
    Grouped,
}

impl CudaMatmul<'_> {
    /// Whether it has a grouped form besides.
    pub fn is_grouped(&self) -> bool {
        let few = self.tokens <= MOST_TOKENS && self.fused.is_none();
        few && matches!(self.algorithm, CudaAlgorithm::Dp4a | CudaAlgorithm::Mma)
    }
}

/// A kernel in each of its forms, one behind the other.
pub(super) fn in_each_form(plan: &CudaMatmul<'_>, kernel: impl Fn(Form) -> String) -> String {
    let one = kernel(Form::One);
    if plan.is_grouped() { format!("{one}\n{LOOKUP}{}", kernel(Form::Grouped)) } else { one }
}

/// The struct that a grouped kernel takes besides.
pub(super) fn arguments(plan: &CudaMatmul<'_>) -> String {
    when(plan.is_grouped(), || fields("Groups", &CudaAbi::GROUPS, &[]))
}

/// Name of the grouped form of a kernel.
pub(super) fn grouped_name(name: &str) -> String {
    format!("{name}_grouped")
}

/// What the image of a grouped kernel may use, where the other form may use `budget`: addresses of a block's own weights are in
/// registers, where those of all blocks are constants.
pub(super) fn budget(budget: CudaBudget) -> CudaBudget {
    let most = CudaBudget::default().registers;
    CudaBudget { registers: budget.registers.saturating_add(16).min(most), ..budget }
}

/// What a grouped kernel looks up.
const LOOKUP: &str = include_str!("../../../cuda/grouped.h");

impl Form {
    /// The kernel of a plan in this form: `shared` declares its arrays in shared memory, `body` has the other statements.
    pub(super) fn kernel(self, plan: &CudaMatmul<'_>, shared: &str, body: &str) -> String {
        let mut name = plan.name();
        if self == Form::Grouped {
            name = grouped_name(&name);
        }
        let declared = format!("{}({})", self.word(plan), plan.threads);
        exported(&declared, &name, self.parameters(), &format!("    {shared}{}{body}\n", self.begin()))
    }

    /// The word that a kernel's declaration begins with. Left alone, ptxas spills registers of some grouped kernels to fit one
    /// more block; not of those that look codes up, which it would give twice as many then.
    fn word(self, plan: &CudaMatmul<'_>) -> &'static str {
        match self {
            Form::Grouped if plan.pack.table.is_none() => "GM_KERNEL_WIDE",
            Form::One | Form::Grouped => "GM_KERNEL",
        }
    }

    fn parameters(self) -> &'static str {
        match self {
            Form::One => "const Matmul a",
            Form::Grouped => "const Matmul all, const Groups stack",
        }
    }

    /// Statements behind the arrays in shared memory. What a block has to do is written by who launches it, so nothing can be
    /// under way in front of the wait.
    fn begin(self) -> &'static str {
        match self {
            Form::One => "",
            Form::Grouped => {
                "gm_launch_next();\n    gm_wait_for_previous();\n    const Matmul a = of_expert(all, stack);\n    if (a.m == 0) return;\n    "
            }
        }
    }

    /// Statements that store results, with what they need of the parameter: in the grouped form that is looked up again, since it
    /// would be in registers from the beginning on.
    pub(super) fn storing(self, statements: &str) -> String {
        match self {
            Form::One => statements.to_string(),
            Form::Grouped => format!("{{ const Matmul a = of_expert(all, stack); {statements} }}"),
        }
    }

    /// The first token of the tile among those of its matrix.
    pub(super) fn first_token(self, plan: &CudaMatmul<'_>) -> String {
        match (self, plan.tokens) {
            (Form::One, 1) => "gm_block_y()".to_string(),
            (Form::One, tokens) => format!("gm_block_y() * {tokens}"),
            (Form::Grouped, _) => "0".to_string(),
        }
    }

    /// In front of everything that reads what other kernels write: `early` touches weights only.
    pub(super) fn wait(self, early: &str) -> String {
        match self {
            Form::One => wait(early),
            Form::Grouped => early.to_string(),
        }
    }
}
