//! Where quantized activations go: to memory, or to the shared memory of the CUDA block that multiplies them.

/// Threads of a CUDA block of the kernel that does nothing else.
pub const THREADS: u32 = 256;

/// Where quantized rows go, and who makes them.
pub(super) enum Rows {
    /// To memory, by CUDA blocks that may share a row; `unit`, `unit_padded` and `units` are parameters.
    Memory,
    /// To shared memory, by the CUDA block that multiplies them: row `t` to `x_values`, `x_scales` and `x_sums`.
    Shared {
        /// Elements of a unit and what they are padded to; a unit of 0 is the row.
        unit: (u32, u32),
        /// Bytes, scales and sums of a row.
        capacity: [u32; 3],
        /// Whether sums are needed.
        sums: bool,
        /// Most threads of the CUDA block.
        threads: u32,
    },
}

/// Statements in a kernel: what it declares in its outermost scope, and what quantizes row `row`.
pub(super) struct Statements {
    pub(super) declare: String,
    pub(super) body: String,
    /// All threads meet behind the last value: other threads may read them, though not the sums.
    pub(super) meets: bool,
}

impl Rows {
    pub(super) fn warps(&self) -> String {
        match self {
            Rows::Memory => (THREADS / 32).to_string(),
            Rows::Shared { .. } => "(gm_threads() / 32)".to_string(),
        }
    }

    pub(super) fn threads(&self) -> String {
        match self {
            Rows::Memory => THREADS.to_string(),
            Rows::Shared { .. } => "gm_threads()".to_string(),
        }
    }

    /// Loads of four values that a thread has under way: a CUDA block that has a row to itself needs more, and one that
    /// multiplies besides has more threads.
    pub(super) fn ahead(&self) -> u32 {
        match self {
            Rows::Memory => 4,
            Rows::Shared { .. } => 2,
        }
    }

    /// Elements that all threads load in a round.
    pub(super) fn round(&self) -> String {
        format!("4 * {} * {}", self.threads(), self.ahead())
    }

    /// Whether rows are multiples of four: for a product its shape rule says so.
    pub(super) fn whole(&self) -> &'static str {
        match self {
            Rows::Memory => "k % 4 == 0",
            Rows::Shared { .. } => "true",
        }
    }

    pub(super) fn most_warps(&self) -> u32 {
        match self {
            Rows::Memory => THREADS / 32,
            Rows::Shared { threads, .. } => threads / 32,
        }
    }

    /// A warp's first share of a row, and from there to its next.
    pub(super) fn shares(&self) -> (String, String) {
        let warps = self.warps();
        match self {
            Rows::Memory => {
                (format!("gm_block_y() * {warps} + gm_warp()"), format!("gm_blocks_y() * {warps}"))
            }
            Rows::Shared { .. } => ("gm_warp()".to_string(), warps),
        }
    }

    /// The place of an element among all activations, from its place behind `x`.
    pub(super) fn place(&self, at: &str) -> String {
        match self {
            Rows::Memory => format!("({at})"),
            Rows::Shared { .. } => format!("(a.x_first + {at})"),
        }
    }

    pub(super) fn put(&self, what: &str, at: &str, value: &str) -> String {
        match (self, what) {
            (Rows::Memory, "word") => format!("gm_store((u32 *)(q + {at}), {value});"),
            (Rows::Memory, "byte") => format!("gm_store(q + {at}, (i8)({value}));"),
            (Rows::Memory, "scale") => format!("gm_store(scales + row * blocks + {at}, {value});"),
            (Rows::Memory, _) => format!("gm_store(sums + row * units + {at}, {value});"),
            (Rows::Shared { .. }, "word") => format!("gm_shared_put(x_values, {at}, {value});"),
            (Rows::Shared { .. }, "byte") => format!("x_values[{at}] = (i8)({value});"),
            (Rows::Shared { capacity, .. }, "scale") => {
                format!("x_scales[t * {} + {at}] = {value};", capacity[1])
            }
            (Rows::Shared { sums: false, .. }, _) => format!("(void)({value});"),
            (Rows::Shared { capacity, .. }, _) => format!("x_sums[t * {} + {at}] = {value};", capacity[2]),
        }
    }

    /// The first byte of a row.
    pub(super) fn row(&self) -> String {
        match self {
            Rows::Memory => "row * units * unit_padded".to_string(),
            Rows::Shared { capacity, .. } => format!("t * {}", capacity[0]),
        }
    }

    /// Declarations of what the statements call `unit`, `unit_padded`, `units` and `blocks`.
    pub(super) fn sizes(&self, block: Option<u32>) -> String {
        let blocks = block.map_or("1".to_string(), |block| format!("k / {block}"));
        let blocks = format!("const u32 blocks = {blocks};\n    (void)blocks;\n    ");
        match self {
            Rows::Memory => blocks,
            Rows::Shared { unit: (0, multiple), .. } => format!(
                "const u32 unit_padded = (k + {}) / {multiple} * {multiple};\n    {blocks}",
                multiple - 1
            ),
            Rows::Shared { unit: (unit, padded), .. } => format!(
                "const u32 unit = {unit}, unit_padded = {padded}, units = (k + {}) / {unit};\n    (void)units;\n    {blocks}",
                unit - 1
            ),
        }
    }
}
