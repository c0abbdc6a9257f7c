//! Products: which kernels, with which weights.

use super::super::error::CliError;
use super::super::verify::random_tensor;
use super::compare;
use super::found::Found;
use super::isa;
use super::machine::{Demand, Machine};
use super::measure::{COLD_BYTES, times};
use super::plan::{Memory, Plan};
use super::record::{Record, bits_per_weight};
use gristmill::oracle::{FormatOracle, Int8Row, Oracle, Random};
use gristmill::registry::FormatInfo;
use gristmill::vocab::DType;
use gristmill::{
    CpuProfile, Input, Matmul, PackedMatrix, Prepared, QuantizedMatrix, REGISTRY, Request, Shape, Threads,
    Workspace,
};

/// Rows that are made; more are repetitions of them.
const DISTINCT_ROWS: usize = 1024;

/// Measures products with weights of one format and shape.
pub fn measure(
    plan: &Plan,
    format: &'static FormatInfo,
    (n, k): (usize, usize),
    machine: &mut Machine,
    found: &mut Found,
) -> Result<(), CliError> {
    let asked = Request::matmul(format.name, Shape::new(1, n, k))
        .with_input(plan.input)
        .with_precision(plan.precision);
    let requests =
        plan.threads.iter().map(|threads| isa::requests(plan, format, &asked.with_threads(*threads)));
    let requests: Vec<Vec<Prepared>> = requests.collect::<Result<_, _>>()?;
    let shapes: Vec<Shape> = plan.tokens.iter().map(|m| Shape::new(*m, n, k)).collect();
    // Those of other numbers of threads have the same kernels.
    if !isa::some_kernel(plan, requests.first().map(Vec::as_slice).unwrap_or_default(), &shapes)? {
        found.none_of(plan, format);
        return Ok(());
    }
    let kernels: usize = requests.iter().map(Vec::len).sum();
    if plan.is_over() {
        found.skipped += plan.memory.len() * plan.tokens.len() * kernels;
        return Ok(());
    }
    let oracle = Oracle::new(&REGISTRY)?;
    let meaning = oracle.format(format.name)?;
    let mut random = Random::new(1, format.name);
    let tensor = tensor(&meaning, format, &mut random, n, k)?;
    let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
    let x = Activations::new(&meaning, plan, &mut random, k);
    let all = Threads::new(CpuProfile::detect().cores)?;
    let (mut weights, mut measured, mut refused) = (Weights::default(), 0, None);
    for (threads, requests) in plan.threads.iter().zip(&requests) {
        let threads = plan.make_threads(*threads)?;
        for prepared in requests {
            for (memory, m) in
                plan.memory.iter().flat_map(|memory| plan.tokens.iter().map(move |m| (memory, m)))
            {
                let decision = prepared.decide(Shape::new(*m, n, k));
                let matmul = match Matmul::new(&decision) {
                    Ok(matmul) => matmul,
                    // A kernel of the ISA that is for other numbers of tokens.
                    Err(error) => {
                        refused.get_or_insert(error);
                        continue;
                    }
                };
                measured += 1;
                if plan.is_over() {
                    found.skipped += 1;
                    continue;
                }
                let copies = weights.of(&matmul, &matrix, *memory, &all)?;
                let cell = Cell { plan, matmul: &matmul, memory: *memory, m: *m, threads: &threads };
                let record = cell.measure(copies, &x, machine)?;
                let record =
                    compare::judge(plan, record, &mut found.verdicts, || cell.measure(copies, &x, machine))?;
                found.records.push(record);
            }
        }
    }
    match (measured, refused) {
        (0, Some(error)) => Err(error.into()),
        (_, _) => Ok(()),
    }
}

/// A tensor in the format's bytes.
pub fn tensor(
    meaning: &FormatOracle<'_>,
    format: &'static FormatInfo,
    random: &mut Random,
    n: usize,
    k: usize,
) -> Result<Vec<u8>, CliError> {
    // Refuses rows that are not whole blocks, before bytes are made for them.
    let bytes = format.tensor_bytes(n, k)?;
    let distinct = n.min(DISTINCT_ROWS);
    let mut tensor = random_tensor(meaning, random, distinct, k);
    if distinct < n {
        let rows = distinct * format.row_bytes(k)?;
        let tail = tensor.split_off(rows);
        let repeated = n * format.row_bytes(k)?;
        let mut all: Vec<u8> = tensor.iter().copied().cycle().take(repeated).collect();
        all.extend(tail);
        all.resize(bytes, 0);
        return Ok(all);
    }
    Ok(tensor)
}

/// Tokens for the largest m; smaller ones take the first.
struct Activations {
    x: Vec<f32>,
    q: Vec<i8>,
    scales: Vec<f32>,
    k: usize,
    /// Scales of a row.
    blocks: usize,
    input: DType,
}

impl Activations {
    fn new(meaning: &FormatOracle<'_>, plan: &Plan, random: &mut Random, k: usize) -> Activations {
        let m = plan.tokens.iter().copied().max().unwrap_or(1);
        let x = random.gauss_vec(m * k, 1.0);
        let (mut q, mut scales) = (Vec::new(), Vec::new());
        if plan.input == DType::I8 {
            for row in x.chunks(k) {
                if let Ok(row) = Int8Row::quantize(meaning.activations(), row) {
                    q.extend(row.q);
                    scales.extend(row.scales);
                }
            }
        }
        Activations { blocks: scales.len() / m.max(1), x, q, scales, k, input: plan.input }
    }

    fn input(&self, m: usize) -> Input<'_> {
        match self.input {
            DType::I8 => Input::I8 { q: &self.q[..m * self.k], scales: &self.scales[..m * self.blocks] },
            DType::F32 | DType::F16 | DType::Bf16 => Input::F32(&self.x[..m * self.k]),
        }
    }
}

/// Packed weights: one matrix and, once cold memory was asked for, copies of it. For one packing at a time, since
/// kernels of one format seldom differ in it and copies are large.
#[derive(Default)]
struct Weights {
    packed_for: Option<Matmul>,
    copies: Vec<PackedMatrix>,
}

impl Weights {
    fn of(
        &mut self,
        matmul: &Matmul,
        matrix: &QuantizedMatrix<'_>,
        memory: Memory,
        threads: &Threads,
    ) -> Result<&[PackedMatrix], CliError> {
        if !self.packed_for.as_ref().is_some_and(|other| other.shares_packing_with(matmul)) {
            self.copies.clear();
            self.copies.push(matmul.pack_on(matrix, threads)?);
            self.packed_for = Some(matmul.clone());
        }
        let wanted = match (memory, self.copies.first()) {
            (Memory::Cold, Some(first)) => COLD_BYTES.div_ceil(first.bytes().max(1)).max(2),
            (Memory::Hot, _) | (Memory::Cold, None) => 1,
        };
        while self.copies.len() < wanted {
            let Some(copy) = self.copies.first().map(PackedMatrix::try_clone) else { break };
            self.copies.push(copy?);
        }
        Ok(&self.copies[..wanted.min(self.copies.len())])
    }
}

/// One line of the table.
struct Cell<'c> {
    plan: &'c Plan,
    matmul: &'c Matmul,
    memory: Memory,
    m: usize,
    threads: &'c Threads,
}

impl Cell<'_> {
    fn measure(
        &self,
        copies: &[PackedMatrix],
        x: &Activations,
        machine: &mut Machine,
    ) -> Result<Record, CliError> {
        let Cell { plan, matmul, memory, m, threads } = *self;
        let Some(first) = copies.first() else {
            return Err(CliError::usage("there are no packed weights", "report this"));
        };
        let (n, k) = (first.n(), first.k());
        // A packing that is larger than the file is no excuse: the ceiling is that of the file's bytes.
        let bytes = matmul.format().tensor_bytes(n, k)?;
        let gmacs = m as f64 * n as f64 * k as f64 / 1e9;
        let entry = matmul.entry();
        let demand = Demand::of(entry, gmacs, bytes, memory == Memory::Hot, threads.count());
        let mut workspace = Workspace::for_(matmul, m, k, threads)?;
        let mut y = vec![0.0; m * n];
        let times = times(plan.effort, &demand, machine, |run| {
            let weights = &copies[run % copies.len()];
            Ok(matmul.run(weights, x.input(m), m, None, &mut y, &mut workspace, threads)?)
        })?;
        Ok(Record {
            kernel: entry.name,
            id: entry.id,
            format: matmul.format().name,
            isa: entry.isa,
            m,
            n,
            k,
            threads: threads.count(),
            memory,
            quantizes_activations: Some(plan.input != DType::I8),
            seconds: times.seconds,
            rounds: times.rounds,
            noise: times.noise,
            gmac_s: Some(gmacs / times.seconds),
            gb_s: bytes as f64 / times.seconds / 1e9,
            ceiling: times.ceiling,
            percent: times.percent,
            file_bits: bits_per_weight(bytes, n, k),
            memory_bits: bits_per_weight(first.bytes(), n, k),
        })
    }
}
