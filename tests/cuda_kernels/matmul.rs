//! Products: by every generated kernel, against the CPU's scalar kernel bit by bit, and against the oracle.
//!
//! Weights are packed here once more, from the packing's description alone, so that its order in memory is checked too.

use super::choice::left_out;
use super::generated::{Kernel, generated, kernels, least, same_f32};
use super::support::{Buffer, Unit, can_run};
use super::verify::inputs::{self, Tokens, Weights};
use gristmill::half::f16;
use gristmill::oracle::{FormatOracle, Int8Row, Random};
use gristmill::registry::{Code, Entry, PackInfo};
use gristmill::vocab::{DType, Isa};
use gristmill::{
    CpuProfile, Input, Matmul, QuantizedMatrix, REGISTRY, Request, Restrict, Shape, Threads, Workspace,
};
use gristmill_spec::model::{Axis, Factor, FieldType, Packing, Scalar, Tile};
use gristmill_spec::vocab::Op;

/// Integer activations of some tokens, with the scales of their blocks.
pub struct Activations {
    pub q: Vec<i8>,
    pub scales: Vec<f32>,
}

/// A product to compute.
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub tensor: Vec<u8>,
    pub x: Activations,
    pub bias: Option<Vec<f32>>,
}

/// The CPU's scalar product of a format.
fn scalar(format: usize) -> &'static Entry {
    let of_format = |entry: &&Entry| entry.op == Op::Matmul && entry.format == format;
    let mut entries = REGISTRY.entries.iter().filter(of_format);
    entries.find(|entry| entry.isa == Some(Isa::Scalar)).expect("every format with a product has it")
}

/// What the CPU's kernels know of a format's packed codes, from a packing whose tiles are as wide as the kernel's, but for those
/// whose codes lie in planes.
pub fn pack_info(kernel: &Kernel) -> &'static PackInfo {
    let packings = &generated().set.packings;
    let widths = |packing: &Packing| {
        let whole = packing.tiles.iter().filter(|tile| tile.upper.is_none());
        whole.map(|tile| tile.code).collect::<Vec<_>>()
    };
    let own = widths(&packings[kernel.listed.packing.expect("products have packings")]);
    let (format, _) = REGISTRY.format(kernel.format()).expect("in this build");
    let of_format = REGISTRY.entries.iter().filter(|entry| entry.format == format);
    let packed = of_format.filter_map(|entry| match entry.code {
        Code::Matmul { packing, .. } => packing,
        _ => None,
    });
    let as_wide =
        |info: &&PackInfo| packings.iter().any(|packing| packing.name == info.name && widths(packing) == own);
    packed.into_iter().find(as_wide).expect("some CPU kernel packs the weights")
}

/// What the CPU makes of it.
pub fn on_the_cpu(format: &str, product: &Product) -> Vec<f32> {
    let (index, info) = REGISTRY.format(format).expect("in this build");
    let Product { m, n, k, tensor, x, bias } = product;
    let shape = Shape::new(*m, *n, *k);
    let request = Request { input: DType::I8, ..Request::matmul(info.name, shape) };
    let only = Restrict { kernel: Some(scalar(index).name.to_string()), ..Restrict::default() };
    let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only).expect("it is there");
    let matmul = Matmul::new(&prepared.decide(shape)).expect("it runs everywhere");
    let matrix = QuantizedMatrix::new(info, *n, *k, tensor).expect("sizes agree");
    let threads = Threads::single();
    let packed = matmul.pack(&matrix).expect("valid codes");
    let mut workspace = Workspace::for_(&matmul, *m, *k, &threads).expect("small");
    let mut y = vec![f32::NAN; m * n];
    let input = Input::I8 { q: &x.q, scales: &x.scales };
    matmul.run(&packed, input, *m, bias.as_deref(), &mut y, &mut workspace, &threads).expect("runs");
    y
}

/// The oracle's bits, and near what f64 gives, unless scales are of `any_size`: those give infinities, which have no error
/// that could be measured.
pub fn agrees_with_the_oracle(
    case: &str,
    oracle: &FormatOracle<'_>,
    product: &Product,
    y: &[f32],
    any_size: bool,
) {
    let Product { m, n, k, tensor, x, bias } = product;
    let (mut error, mut norm) = (0.0, 0.0);
    for row in 0..*n {
        let weights = oracle.row(tensor, *n, *k, row).expect("valid codes");
        let bias = bias.as_ref().map(|bias| bias[row]);
        for token in 0..*m {
            let q = &x.q[token * k..][..*k];
            let scales = &x.scales[token * (x.scales.len() / m)..][..x.scales.len() / m];
            let found = y[token * n + row];
            let expected = oracle.product_f32(&weights, q, scales, bias);
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{case}: y[{token}, {row}] is {found}, expected {expected}");
            if any_size {
                continue;
            }
            let expected = oracle.product_f64(&weights, &oracle.activations_f64(q, scales), bias);
            error += (f64::from(found) - expected).powi(2);
            norm += expected * expected;
        }
    }
    assert!(error <= 1e-6 * norm, "{case}: squared error {error:e} of {norm:e}");
}

/// Weights as a kernel reads them.
pub struct Packed {
    pub codes: Vec<u8>,
    pub stride: usize,
    pub scales: Vec<f32>,
    pub mins: Vec<f32>,
    pub outer: Vec<f32>,
}

/// How a GPU reads codes: in one piece, as value - min or where that takes fewer bits as an index into the values. CPUs may hold
/// them otherwise.
struct Codes {
    tile: &'static Tile,
    table: Option<[u8; 16]>,
    min: i32,
}

impl Codes {
    fn of(kernel: &Kernel) -> Codes {
        let format = generated().set.formats.iter().find(|format| format.name == kernel.format());
        let values: Vec<i32> = format.expect("described").integers().into_iter().collect();
        let packing = &generated().set.packings[kernel.listed.packing.expect("products have packings")];
        let whole = || packing.tiles.iter().filter(|tile| tile.upper.is_none());
        let narrowest = |count: usize, most: u32| {
            let holds = |tile: &&Tile| tile.code.bits() <= most && count <= 1 << tile.code.bits();
            whole().filter(holds).min_by_key(|tile| tile.code.bits())
        };
        let (min, max) = (values[0], values[values.len() - 1]);
        let direct = narrowest((max - min) as usize + 1, 8);
        let index = narrowest(values.len(), 4);
        let bits = |tile: Option<&Tile>| tile.map_or(u32::MAX, |tile| tile.code.bits());
        if bits(index) >= bits(direct) {
            return Codes { tile: direct.expect("wide enough"), table: None, min };
        }
        let mut table = [0; 16];
        for (entry, value) in table.iter_mut().zip(&values) {
            *entry = (value - min) as u8;
        }
        Codes { tile: index.expect("wide enough"), table: Some(table), min }
    }
}

/// Where (row, element along k) of a tile has its lowest bit.
fn bit(packing: &Packing, bits: usize, row: usize, k: usize) -> usize {
    let tile =
        packing.tiles.iter().find(|tile| tile.code.bits() as usize == bits).expect("a tile of that width");
    let mut rest = [row, k];
    let mut address = 0;
    for digit in tile.digits.iter().rev() {
        let axis = &mut rest[usize::from(digit.axis == Axis::K)];
        address += *axis % digit.extent as usize * digit.stride as usize;
        *axis /= digit.extent as usize;
    }
    address
}

/// The terms of a row: an f32 for each unit, or for each super-block with integers for its units.
#[derive(Clone, Default)]
struct RowTerms {
    shared: Vec<f32>,
    integers: Vec<i8>,
}

/// How the scales or minima of a panel lie, as the runtime's documentation of packings has it.
#[derive(Clone, Copy)]
struct TermLayout {
    runs: usize,
    rows: usize,
    /// Bytes of what a super-block shares, or of what a unit has; 0: there are none.
    width: usize,
    /// Bits of the integer of a run: 8, or 4, the rows of the upper half of a panel above those of the lower.
    integer_bits: usize,
    flag_bits: usize,
    /// Bytes of two runs stand side by side.
    mins: bool,
}

impl TermLayout {
    /// Of scales and of minima as the CPU packs them.
    fn on_the_cpu(info: &PackInfo) -> [TermLayout; 2] {
        let layout = |width, integer_bits, flag_bits, mins| TermLayout {
            runs: info.runs,
            rows: info.rows,
            width,
            integer_bits,
            flag_bits,
            mins,
        };
        [
            layout(info.scale_bytes, info.scale_integer_bits, info.flag_bits, false),
            layout(info.min_bytes, info.min_integer_bits, 0, true),
        ]
    }

    /// As a GPU reads the same: f32 and bytes.
    fn on_a_gpu(self, rows: usize) -> TermLayout {
        TermLayout { rows, width: 4, integer_bits: 8, flag_bits: 0, ..self }
    }

    /// Words of a panel.
    fn words(&self, units: usize) -> usize {
        let integers = if self.runs == 1 { 0 } else { self.runs * self.integer_bits };
        units / self.runs * self.rows * (8 * self.width + integers + self.flag_bits) / 32
    }

    /// Bytes of a panel at which stand what the super-block of `unit` shares and the integer of that unit.
    fn place(&self, row: usize, unit: usize) -> (usize, usize) {
        let TermLayout { runs, rows, width, .. } = *self;
        let block = 4 * self.words(unit / runs * runs);
        let run = unit % runs;
        let integer = match (self.integer_bits, self.mins) {
            (4, true) => run / 2 * rows + row % (rows / 2) * 2 + run % 2,
            (4, false) => run * rows / 2 + row % (rows / 2),
            (_, true) => run / 2 * 2 * rows + 2 * row + run % 2,
            (_, false) => run * rows + row,
        };
        (block + row * width, block + rows * width + integer)
    }
}

/// The integer of a run in the byte that a row has, or shares with another.
fn integer(format: &str, byte: u8, layout: &TermLayout, row: usize) -> i8 {
    if layout.integer_bits == 8 {
        return byte as i8;
    }
    let format = generated().set.formats.iter().find(|other| other.name == format).expect("described");
    let value = &format.value;
    let factors = match (layout.mins, value.add.is_empty()) {
        (false, _) => &value.scale,
        (true, false) => &value.add,
        (true, true) => &value.subtract,
    };
    let Some(Factor::Field(field)) = factors.last() else { panic!("no field is the integer of a run") };
    let field = &format.fields[*field];
    let code = i32::from(byte >> (row / (layout.rows / 2) * 4) & 15);
    i8::try_from(field.times * code + field.plus).expect("it was checked")
}

/// The f32 of a scale or minimum as the CPU packs it: narrower ones are as the blocks of `format` have them.
fn widened(format: &str, bytes: &[u8], mins: bool) -> f32 {
    let format = generated().set.formats.iter().find(|other| other.name == format).expect("described");
    let value = &format.value;
    let factors: Vec<&Factor> =
        if mins { value.add.iter().chain(&value.subtract).collect() } else { value.scale.iter().collect() };
    // Beside it may stand the integers of runs, which are packed apart.
    let scalar = factors.iter().find_map(|factor| match factor {
        Factor::Field(field) => match format.fields[*field].ty {
            FieldType::Scalar(scalar) => Some(scalar),
            _ => None,
        },
        Factor::Row | Factor::Tensor => None,
    });
    // What is stored leaves the format's constant to kernels.
    let unit = if mins { 1.0 } else { value.unit };
    match (bytes, scalar) {
        (&[a, b, c, d], _) => f32::from_ne_bytes([a, b, c, d]),
        (&[a, b], Some(Scalar::F16)) => f16::from_ne_bytes([a, b]).to_f32() * unit,
        (&[a, b], Some(Scalar::Bf16)) => f32::from_bits(u32::from(u16::from_ne_bytes([a, b])) << 16) * unit,
        (&[e], Some(Scalar::E8m0Half)) => 2f64.powi(i32::from(e) - 128) as f32 * unit,
        (&[bits], Some(Scalar::Ue4m3Half)) => {
            let (exponent, mantissa) = (i32::from(bits >> 3), f64::from(bits & 7) / 8.0);
            let e4m3 =
                if exponent == 0 { mantissa / 128.0 } else { (1.0 + mantissa) * 2f64.powi(exponent - 8) };
            e4m3 as f32 * unit
        }
        other => panic!("no scale is {other:?}"),
    }
}

/// Scales and minimum terms by row, from the panels that the CPU packs.
fn terms(
    info: &PackInfo,
    format: &str,
    product: &Product,
    units: usize,
    padded: usize,
) -> [Vec<RowTerms>; 2] {
    let (_, sizes) = REGISTRY.format(format).expect("in this build");
    let (n, k) = (product.n, product.k);
    let row_bytes = sizes.row_bytes(k).expect("whole blocks");
    let header = sizes.row_header.map_or(0, |outer| outer.bytes());
    let mut found = [vec![RowTerms::default(); n], vec![RowTerms::default(); n]];
    for panel in 0..n.div_ceil(info.rows) {
        let rows = info.rows.min(n - panel * info.rows);
        let mut codes = vec![0u8; (units * padded / info.tile_k * info.tile_bytes).next_multiple_of(64) + 64];
        let layouts = TermLayout::on_the_cpu(info);
        let mut both = layouts.map(|layout| vec![0f32; layout.words(units)]);
        let [scales, mins] = &mut both;
        // SAFETY: the rows of the panel are in the tensor; the buffers hold what a panel of that many units takes.
        let fault = unsafe {
            (info.pack)(
                product.tensor[panel * info.rows * row_bytes + header..].as_ptr(),
                row_bytes,
                rows,
                k,
                codes.as_mut_ptr(),
                scales.as_mut_ptr(),
                mins.as_mut_ptr(),
            )
        };
        assert_eq!(fault, Ok(()));
        for row in 0..rows {
            for ((found, of), layout) in found.iter_mut().zip(&both).zip(layouts) {
                if layout.width == 0 {
                    continue;
                }
                let found = &mut found[panel * info.rows + row];
                let bytes: Vec<u8> = of.iter().flat_map(|word| word.to_ne_bytes()).collect();
                for unit in 0..units {
                    // Units that share a scale have one on the CPU, and one each for a GPU.
                    let packed = unit / info.span;
                    let (shared, at) = layout.place(row, packed);
                    if unit % info.runs == 0 {
                        found.shared.push(widened(format, &bytes[shared..][..layout.width], layout.mins));
                    }
                    if info.runs > 1 {
                        found.integers.push(integer(format, bytes[at], &layout, row));
                    }
                }
            }
        }
    }
    found
}

/// Packs the weights of a product for a kernel.
pub fn pack(kernel: &Kernel, product: &Product) -> Packed {
    let Product { n, k, tensor, .. } = product;
    let (n, k) = (*n, *k);
    let oracle = generated().oracle.format(kernel.format()).expect("described");
    let info = pack_info(kernel);
    let packing = &generated().set.packings[kernel.listed.packing.expect("products have packings")];
    let Codes { tile, table, min } = Codes::of(kernel);
    let (rows, bits) = (packing.rows as usize, tile.code.bits() as usize);
    let tile_k = tile.k as usize;
    let (unit, padded, units) = unit_of(kernel, k);
    let stride = (units * padded / tile_k * tile.bytes as usize).next_multiple_of(64);
    let panels = n.div_ceil(rows);
    let mut packed = Packed {
        codes: vec![0; panels * stride],
        stride,
        scales: Vec::new(),
        mins: Vec::new(),
        outer: Vec::new(),
    };
    let [scales, mins] = terms(info, kernel.format(), product, units, padded);
    // For a GPU they are f32 whatever they are in the file.
    let layouts = TermLayout::on_the_cpu(info).map(|layout| layout.on_a_gpu(rows));
    let panel_words = layouts[0].words(units);
    if info.scale_bytes > 0 {
        packed.scales = vec![0.0; panels * panel_words];
    }
    if info.min_bytes > 0 {
        packed.mins = vec![0.0; panels * panel_words];
    }
    for row in 0..n {
        let (panel, within) = (row / rows, row % rows);
        let decoded = oracle.row(tensor, n, k, row).expect("valid codes");
        packed.outer.push(decoded.outer);
        for (there, to, from, layout) in [
            (info.scale_bytes > 0, &mut packed.scales, &scales[row], &layouts[0]),
            (info.min_bytes > 0, &mut packed.mins, &mins[row], &layouts[1]),
        ] {
            if !there {
                continue;
            }
            let to = &mut to[panel * panel_words..][..panel_words];
            for unit in 0..units {
                let (shared, integer) = layout.place(within, unit);
                to[shared / 4] = from.shared[unit / info.runs];
                if let Some(value) = from.integers.get(unit) {
                    let mut bytes = to[integer / 4].to_ne_bytes();
                    bytes[integer % 4] = *value as u8;
                    to[integer / 4] = f32::from_ne_bytes(bytes);
                }
            }
        }
        for element in 0..k {
            let operand = decoded.integers[element] - min;
            let operand = match table {
                // Any code that is looked up as the operand will do.
                Some(table) => {
                    table.iter().position(|of| i32::from(*of) == operand).expect("in the table") as u32
                }
                None => operand as u32,
            };
            assert!(operand < 1 << bits, "{}: operand {operand} of {bits} bits", kernel.listed.name);
            let place = element / unit * padded + element % unit;
            let address = bit(packing, bits, within, place % tile_k);
            let byte = panel * stride + place / tile_k * tile.bytes as usize + address / 8;
            packed.codes[byte] |= (operand << (address % 8)) as u8;
        }
    }
    packed
}

/// (elements, padded elements, units) of a row of k.
pub fn unit_of(kernel: &Kernel, k: usize) -> (usize, usize, usize) {
    let (elements, multiple) = (kernel.number("elements"), kernel.number("multiple"));
    gristmill::registry::Unit { elements, multiple }.of_row(k)
}

/// Memory of a product whose k is divided over CUDA blocks, and into how many parts.
pub struct Layers {
    pub count: u32,
    /// Counters, and behind them the sums of parts.
    memory: Buffer<i32>,
    counters: usize,
}

impl Layers {
    /// For a product of so many rows and tokens: as docs/cuda.md has it.
    pub fn new(kernel: &Kernel, (m, n): (usize, usize), count: u32) -> Layers {
        let [rows, tokens, threads] = ["rows", "tokens", "threads"].map(|name| kernel.number(name));
        let tiles = n.div_ceil(rows) * m.div_ceil(tokens);
        let counters = (tiles * threads / 32).next_multiple_of(4);
        Layers {
            count,
            memory: Buffer::starting("parts", &vec![0; counters], tiles * count as usize * rows * tokens),
            counters,
        }
    }

    /// The counters now.
    pub fn counters(&self) -> Vec<i32> {
        self.memory.read_first(self.counters)
    }
}

/// The address, or null where there is nothing.
pub fn if_any(there: bool, address: u64) -> u64 {
    if there { address } else { 0 }
}

/// Packed weights as a kernel reads them.
pub struct WeightBuffers {
    info: &'static PackInfo,
    min: i32,
    has_table: bool,
    stride: u64,
    codes: Buffer<u8>,
    scales: Buffer<f32>,
    mins: Buffer<f32>,
    table: Buffer<u8>,
    outer: Buffer<f32>,
}

impl WeightBuffers {
    /// Where codes, scales, minimum terms and outer scales are.
    pub fn addresses(&self) -> [u64; 4] {
        [
            self.codes.address(),
            if_any(self.info.scale_bytes > 0, self.scales.address()),
            if_any(self.info.min_bytes > 0, self.mins.address()),
            self.outer.address(),
        ]
    }

    pub fn of(kernel: &Kernel, packed: &Packed) -> WeightBuffers {
        let (info, codes) = (pack_info(kernel), Codes::of(kernel));
        WeightBuffers {
            info,
            min: codes.min,
            has_table: codes.table.is_some(),
            stride: packed.stride as u64,
            codes: Buffer::input("codes", &packed.codes),
            scales: Buffer::input("scales", &packed.scales),
            mins: Buffer::input("mins", &packed.mins),
            table: Buffer::input("table", codes.table.as_ref().map_or(&[][..], |table| &table[..])),
            outer: Buffer::input("outer", &packed.outer),
        }
    }

    /// What a product's parameter begins with, as docs/cuda.md has it: all in front of the activations.
    pub fn arguments(&self, kernel: &Kernel, k: usize, blocks: usize) -> Vec<u8> {
        let (_, _, units) = unit_of(kernel, k);
        let mut arguments = Vec::new();
        arguments.extend(self.codes.address().to_le_bytes());
        arguments.extend(self.stride.to_le_bytes());
        arguments.extend(if_any(self.info.scale_bytes > 0, self.scales.address()).to_le_bytes());
        arguments.extend(if_any(self.info.min_bytes > 0, self.mins.address()).to_le_bytes());
        arguments.extend(self.min.to_le_bytes());
        arguments.extend((k as u32).to_le_bytes());
        arguments.extend(if_any(self.has_table, self.table.address()).to_le_bytes());
        arguments.extend(self.outer.address().to_le_bytes());
        arguments.extend((units as u32).to_le_bytes());
        arguments.extend((blocks as u32).to_le_bytes());
        arguments
    }
}

/// Runs the product by a kernel of `unit`, with the fewest threads a CUDA block can have or the most.
pub fn run(
    kernel: &Kernel,
    unit: &Unit,
    product: &Product,
    packed: &Packed,
    how: (bool, u64),
) -> Result<Vec<f32>, String> {
    run_layers(kernel, unit, product, packed, how, None)
}

/// The same with k divided.
pub fn run_layers(
    kernel: &Kernel,
    unit: &Unit,
    product: &Product,
    packed: &Packed,
    (fewest, seed): (bool, u64),
    layers: Option<&Layers>,
) -> Result<Vec<f32>, String> {
    let Product { m, n, k, x, bias, .. } = product;
    let (m, n, k) = (*m, *n, *k);
    let (elements, padded, units) = unit_of(kernel, k);
    let x_stride = units * padded;
    let (mut q, mut sums) = (vec![0i8; m * x_stride], Vec::new());
    for (from, to) in x.q.chunks(k).zip(q.chunks_mut(x_stride)) {
        for (from, to) in from.chunks(elements).zip(to.chunks_mut(padded)) {
            to[..from.len()].copy_from_slice(from);
            sums.push(from.iter().map(|q| i32::from(*q)).sum::<i32>());
        }
    }
    let weights = WeightBuffers::of(kernel, packed);
    // What quantizes activations is launched right in front.
    let (x_q, x_scales, x_sums) = (
        Buffer::input("x", &q).fresh(),
        Buffer::input("x_scales", &x.scales).fresh(),
        Buffer::input("x_sums", &sums).fresh(),
    );
    let bias_values = Buffer::input("bias", bias.as_deref().unwrap_or_default());
    let y = Buffer::<f32>::unset("y", m * n);
    // As docs/cuda.md has it.
    let mut arguments = weights.arguments(kernel, k, x.scales.len() / m);
    arguments.extend(x_q.address().to_le_bytes());
    arguments.extend((x_stride as u64).to_le_bytes());
    arguments.extend(x_scales.address().to_le_bytes());
    arguments.extend(x_sums.address().to_le_bytes());
    arguments.extend(if_any(bias.is_some(), bias_values.address()).to_le_bytes());
    arguments.extend(y.address().to_le_bytes());
    arguments.extend((m as u32).to_le_bytes());
    arguments.extend((n as u32).to_le_bytes());
    let parts = layers.map_or(0, |layers| layers.memory.address() + 4 * layers.counters as u64);
    arguments.extend(parts.to_le_bytes());
    let grid = (n.div_ceil(kernel.number("rows")) as u32, m.div_ceil(kernel.number("tokens")) as u32);
    let threads = kernel.number(if fewest { "fewest" } else { "threads" }) as u32;
    let launch = unit.launch(kernel.function()).grid(grid.0, grid.1).threads(threads);
    let launch =
        launch.layers(layers.map_or(1, |layers| layers.count)).shared(kernel.listed.plan.launch.shared());
    launch.structure(&arguments).overlapping(kernel.listed.plan.overlaps).seed(seed).run()?;
    y.try_read()
}

/// A product of a format.
pub fn product(
    format: &str,
    random: &mut Random,
    (m, n, k): (usize, usize, usize),
    weights: Weights,
    tokens: Tokens,
    bias: bool,
) -> Product {
    let oracle = generated().oracle.format(format).expect("described");
    let blocks = oracle.activations().block.map_or(1, |block| k.div_ceil(block as usize));
    let mut x = Activations { q: Vec::new(), scales: Vec::new() };
    for _ in 0..m {
        match tokens.row(random, k) {
            Some(row) => {
                x.q.extend(row);
                x.scales.extend((0..blocks).map(|_| 0.25 + random.below(64) as f32 / 32.0));
            }
            None => {
                let row = Int8Row::quantize(oracle.activations(), &random.gauss_vec(k, 1.0)).expect("finite");
                x.q.extend(row.q);
                x.scales.extend(row.scales);
            }
        }
    }
    let tensor = inputs::tensor(&oracle, random, n, k, weights);
    let bias = bias.then(|| random.gauss_vec(n, 1.0));
    Product { m, n, k, tensor, x, bias }
}

#[test]
fn products_are_the_cpu_s_bits() {
    use Tokens::{All, Alternating, F32, I8};
    use Weights::{EveryCode, Highest, Lowest, Random as Mixed};
    if !can_run("matmul") {
        return;
    }
    let mut cases = 0;
    for (number, kernel) in kernels(Op::Matmul).iter().enumerate() {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let elements = oracle.format().elements as usize;
        let mut random = Random::new(14, &kernel.listed.name);
        let tokens = kernel.number("tokens");
        let all = [
            (1, 1, 1, Mixed, F32, false),
            (1, 33, 3, Mixed, F32, true),
            (2, 16, 2, EveryCode, I8, true),
            (tokens, 65, 2, Mixed, I8, false),
            (tokens + 3, 40, 5, Mixed, F32, true),
            (3, 17, 2, Highest, All(127), false),
            (3, 17, 2, Highest, All(-128), true),
            (2, 34, 1, Lowest, All(-128), false),
            (2, 130, 1, Lowest, All(127), true),
            (2, 7, 9, Highest, Alternating, false),
            (2, 33, 2, Weights::Wild, I8, true),
            // More units and tiles than a CUDA block has threads for at once.
            (1, 3, 4352_usize.div_ceil(elements), Mixed, I8, true),
        ];
        for (m, n, blocks, weights, x, bias) in all {
            let k = blocks * elements;
            let case = format!("{} m={m} n={n} k={k} {} {}", kernel.listed.name, weights.name(), x.name());
            let product = product(kernel.format(), &mut random, (m, n, k), weights, x, bias);
            let packed = pack(kernel, &product);
            let y = run(kernel, &kernel.unit, &product, &packed, (cases % 2 == 0, (number + cases) as u64));
            let y = y.unwrap_or_else(|report| panic!("{case}: {report}"));
            same_f32(&case, &y, &on_the_cpu(kernel.format(), &product));
            agrees_with_the_oracle(&case, &oracle, &product, &y, weights == Weights::Wild);
            cases += 1;
        }
    }
    println!("{cases} products");
    assert!(cases >= least(200), "only {cases} products were computed");
}

/// Token counts that fill tiles, halves of tiles and none.
#[test]
fn any_number_of_tokens_is_right() {
    if !can_run("token counts") || left_out("token counts") {
        return;
    }
    let tried = ["i2_s", "q4_k", "q8_0"];
    for kernel in kernels(Op::Matmul).into_iter().filter(|kernel| tried.contains(&kernel.format())) {
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        let mut random = Random::new(16, &kernel.listed.name);
        // Tiles of many tokens are slow in the emulator: counts around their borders.
        let tile = kernel.number("tokens");
        let around = [1, tile / 2 - tile / 8, tile - 1, tile, tile + 1, 2 * tile + 1];
        let counts = if tile <= 32 { (1..=70).collect() } else { around.to_vec() };
        for m in counts {
            let k = elements * (1 + m % 3);
            let case = format!("{} m={m} k={k}", kernel.listed.name);
            let product = product(
                kernel.format(),
                &mut random,
                (m, 1 + 7 * m % 40, k),
                Weights::Random,
                Tokens::I8,
                false,
            );
            let packed = pack(&kernel, &product);
            let y = run(&kernel, &kernel.unit, &product, &packed, (m % 3 == 0, m as u64));
            same_f32(
                &case,
                &y.unwrap_or_else(|report| panic!("{case}: {report}")),
                &on_the_cpu(kernel.format(), &product),
            );
        }
    }
}

/// The longest row that the range analysis allows keeps every sum exact, at the extremes; the emulator reports a sum
/// that leaves i32.
#[test]
fn the_longest_rows_are_exact() {
    if !can_run("long rows") || left_out("the longest rows") {
        return;
    }
    // Where a row is one sum; other sums are bounded by their unit, whatever the row.
    for kernel in kernels(Op::Matmul).into_iter().filter(|kernel| kernel.number("elements") == 0) {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let elements = oracle.format().elements as usize;
        let longest = (kernel.listed.shape.k.max as usize).min(131_072) / elements * elements;
        let mut random = Random::new(15, &kernel.listed.name);
        let ends = [(Weights::Highest, -128), (Weights::Highest, 127), (Weights::Lowest, -128)];
        for (weights, x) in ends {
            let product =
                product(kernel.format(), &mut random, (1, 2, longest), weights, Tokens::All(x), false);
            let packed = pack(&kernel, &product);
            let case = format!("{} k={longest} {} {x}", kernel.listed.name, weights.name());
            let y = run(&kernel, &kernel.unit, &product, &packed, (true, 1));
            let y = y.unwrap_or_else(|report| panic!("{case}: {report}"));
            same_f32(&case, &y, &on_the_cpu(kernel.format(), &product));
        }
    }
}
