//! Guarded layers: kernels that fail on purpose, and what is done then.

use crate::toy::kernels::{activations_row, dequantize_tail2, product_tail2, rows_tail2};
use crate::toy::{FORMATS, P4, TABLES, TAIL2, UNIT_ROW, entry, matmul, noise, tail2};
use gristmill_runtime::abi::{Fault, MatmulArgs, PrologueArgs};
use gristmill_runtime::observe::{FellBack, Launch, Observer, observe};
use gristmill_runtime::registry::{
    ActivationInfo, Code, Entry, EntryFacts, KernelId, PackInfo, Registry, RegistryFacts, Unit,
};
use gristmill_runtime::vocab::{DType, DeviceKind, Isa, Op, PrologueStep};
use gristmill_runtime::{
    Device, Error, ExpertInput, Experts, GuardOptions, GuardedBatch, GuardedExperts, GuardedLinear, Hadamard,
    Input, LinearOptions, Policy, Prologue, PrologueInput, QuantizedBuf, QuantizedMatrix, Quarantine,
    Recording, Recovery, RecoveryStep, Restrict, Routes, Rows, Shape, Threads, Workspace,
};
use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

const GOOD: u32 = 0;
const PANICS: u32 = 1;
const PANICS_ON_WORKERS: u32 = 2;
const WRONG: u32 = 3;
const WRONG_ONCE: u32 = 4;

/// What the first product, the first quantizer of activations, and the first prologue do.
static PRODUCT: AtomicU32 = AtomicU32::new(GOOD);
static ACTIVATIONS: AtomicU32 = AtomicU32::new(GOOD);
static PROLOGUE: AtomicU32 = AtomicU32::new(GOOD);

unsafe fn bad_product(args: &MatmulArgs) {
    let on_worker = || std::thread::current().name().is_some_and(|name| name.starts_with("gristmill-"));
    let mode = PRODUCT.load(Ordering::Relaxed);
    match mode {
        PANICS => panic!("on purpose"),
        PANICS_ON_WORKERS if on_worker() => panic!("on purpose, on a worker"),
        // So that workers come.
        PANICS_ON_WORKERS => std::thread::sleep(Duration::from_millis(2)),
        _ => {}
    }
    // SAFETY: by the ABI.
    unsafe { product_tail2(args) };
    if mode == WRONG || mode == WRONG_ONCE {
        for token in 0..args.m {
            for row in args.row_begin..args.row_end {
                // SAFETY: just written.
                unsafe { *args.y.add(token * args.n + row) += 1.0 };
            }
        }
        if mode == WRONG_ONCE {
            PRODUCT.store(GOOD, Ordering::Relaxed);
        }
    }
}

unsafe fn bad_activations(
    x: *const f32,
    k: usize,
    unit: usize,
    padded: usize,
    q: *mut i8,
    scales: *mut f32,
    sums: *mut i32,
) -> Result<(), Fault> {
    let mode = ACTIVATIONS.load(Ordering::Relaxed);
    assert!(mode != PANICS, "on purpose");
    // SAFETY: by the ABI.
    unsafe { activations_row(x, k, unit, padded, q, scales, sums) }?;
    if mode == WRONG {
        // SAFETY: by the ABI there is one scale at least.
        unsafe { *scales *= 2.0 };
    }
    Ok(())
}

thread_local! {
    /// Which row is refused of those that this thread dequantizes next, from 1 on; 0: none.
    static REFUSES_ROW: Cell<u32> = const { Cell::new(0) };
}

unsafe fn bad_dequantize(src: *const u8, dst: *mut f32, count: usize, outer: f32) -> Result<(), Fault> {
    let row = REFUSES_ROW.get();
    REFUSES_ROW.set(row.saturating_sub(1));
    if row == 1 {
        return Err(Fault::InvalidCode(0));
    }
    // SAFETY: by the ABI.
    unsafe { dequantize_tail2(src, dst, count, outer) }
}

/// Adds the residual.
unsafe fn prologue_row(args: &PrologueArgs) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    unsafe {
        for i in 0..args.k {
            let added = if args.residual.is_null() { 0.0 } else { *args.residual.add(i) };
            let value = *args.x.add(i) + added;
            if !args.sum.is_null() {
                *args.sum.add(i) = value;
            }
            *args.row.add(i) = value;
        }
        activations_row(args.row, args.k, args.unit, args.unit_padded, args.q, args.scales, args.sums)
    }
}

unsafe fn bad_prologue(args: &PrologueArgs) -> Result<(), Fault> {
    let mode = PROLOGUE.load(Ordering::Relaxed);
    assert!(mode != PANICS, "on purpose");
    // SAFETY: by the ABI.
    unsafe { prologue_row(args) }?;
    if mode == WRONG {
        // SAFETY: by the ABI there is one value at least.
        unsafe { *args.q = (*args.q).wrapping_add(1) };
    }
    if mode == WRONG_SUM && !args.sum.is_null() {
        for i in 0..args.k {
            // SAFETY: by the ABI.
            unsafe { *args.sum.add(i) += 1.0 };
        }
    }
    Ok(())
}

const WRONG_SUM: u32 = 5;

static ACTIVATION_FORMATS: [ActivationInfo; 2] = [
    ActivationInfo {
        name: "row",
        doc: "",
        source: "toy/row.toml",
        block: None,
        keeps_multiplier: true,
        prologue: &[PrologueStep::Add],
    },
    ActivationInfo {
        name: "step4",
        doc: "",
        source: "toy/step4.toml",
        block: Some(4),
        keeps_multiplier: false,
        prologue: &[],
    },
];

/// Of the portable product: other rows than those of the others, so that activations are laid out anew for it.
const WIDE_ROW: Unit = Unit { elements: 0, multiple: 64 };

// SAFETY: as of the toy registry's packing of these facts.
static PACKING: PackInfo = unsafe { PackInfo::new(P4) };

const fn of_isa(isa: Isa, facts: EntryFacts) -> EntryFacts {
    EntryFacts { isa: Some(isa), ..facts }
}

// SAFETY: each function goes over what the facts of its format and packing say, and none needs features.
static ENTRIES: [Entry; 8] = unsafe {
    [
        Entry::new(of_isa(
            Isa::Avx2,
            entry(0, "matmul.tail2.avx2", Op::Matmul, TAIL2, matmul(bad_product, Some(&PACKING), UNIT_ROW)),
        )),
        Entry::new(of_isa(
            Isa::Sse41,
            entry(
                1,
                "matmul.tail2.sse4.1",
                Op::Matmul,
                TAIL2,
                matmul(product_tail2, Some(&PACKING), UNIT_ROW),
            ),
        )),
        Entry::new(entry(2, "matmul.tail2.scalar", Op::Matmul, TAIL2, matmul(rows_tail2, None, WIDE_ROW))),
        Entry::new(of_isa(
            Isa::Avx2,
            entry(
                3,
                "quantize_activations.row.avx2",
                Op::QuantizeActivations,
                0,
                Code::QuantizeActivations(bad_activations),
            ),
        )),
        Entry::new(entry(
            4,
            "quantize_activations.row.scalar",
            Op::QuantizeActivations,
            0,
            Code::QuantizeActivations(activations_row),
        )),
        Entry::new(entry(
            5,
            "dequantize.tail2.scalar",
            Op::Dequantize,
            TAIL2,
            Code::Dequantize(bad_dequantize),
        )),
        Entry::new(of_isa(
            Isa::Avx2,
            entry(6, "prologue.row.avx2", Op::Prologue, 0, Code::Prologue(bad_prologue)),
        )),
        Entry::new(entry(7, "prologue.row.scalar", Op::Prologue, 0, Code::Prologue(prologue_row))),
    ]
};

const AVX2: KernelId = KernelId(0x1000);

fn candidates(op: Op, format: usize, dtype: DType, device: DeviceKind) -> &'static [u16] {
    match (op, format, dtype, device) {
        (Op::Matmul, TAIL2, DType::F32 | DType::I8, DeviceKind::Cpu) => &[0, 1, 2],
        (Op::QuantizeActivations, 0, DType::F32, DeviceKind::Cpu) => &[3, 4],
        (Op::Dequantize, TAIL2, DType::F32, DeviceKind::Cpu) => &[5],
        (Op::Prologue, 0, DType::F32, DeviceKind::Cpu) => &[6, 7],
        _ => &[],
    }
}

// SAFETY: as of the toy registry, of which these are kernels and their like.
static REGISTRY: Registry = unsafe {
    Registry::new(RegistryFacts {
        package: "failing",
        activations: &ACTIVATION_FORMATS,
        entries: &ENTRIES,
        candidates,
        ..TABLES
    })
};

const N: usize = 61;
const K: usize = 24;
const M: usize = 3;

/// What kernels do is one for all tests, so these take turns; all is good when it is dropped.
struct Turn(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Turn {
    fn take() -> Turn {
        static TURN: Mutex<()> = Mutex::new(());
        Turn(TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        PRODUCT.store(GOOD, Ordering::Relaxed);
        ACTIVATIONS.store(GOOD, Ordering::Relaxed);
        PROLOGUE.store(GOOD, Ordering::Relaxed);
    }
}

/// A layer of which every run is compared, with its recording.
struct Case {
    layer: GuardedLinear<'static>,
    recording: Recording,
    quarantine: Quarantine,
    workspace: Workspace,
    threads: Threads,
    good: Vec<f32>,
    _turn: Turn,
}

impl Case {
    fn new(restrict: Restrict) -> Result<Case, Error> {
        Case::with(restrict, None)
    }

    fn with(restrict: Restrict, transform: Option<Hadamard>) -> Result<Case, Error> {
        let turn = Turn::take();
        let threads = Threads::new(3)?.with_grain(1);
        let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
        let quarantine = Quarantine::new();
        let guard = GuardOptions {
            check_every: NonZeroU64::new(1),
            quarantine: quarantine.clone(),
            ..GuardOptions::default()
        };
        let options = LinearOptions { restrict: Some(restrict), ..LinearOptions::default() };
        let mut layer = GuardedLinear::new(&REGISTRY, weights, &options, guard, &threads)?;
        if let Some(transform) = transform {
            layer = layer.transformed(Arc::new(transform))?;
        }
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording))?;
        let workspace = Workspace::of_size(layer.workspace_size(M, &threads)?)?;
        let mut case =
            Case { layer, recording, quarantine, workspace, threads, good: Vec::new(), _turn: turn };
        case.good = case.run()?;
        assert!(case.recording.receipt().recoveries().is_empty());
        Ok(case)
    }

    fn run(&mut self) -> Result<Vec<f32>, Error> {
        let (x, bias, mut y) = (noise(M * K, 3), noise(N, 4), vec![f32::NAN; M * N]);
        self.layer.forward(Input::F32(&x), M, Some(&bias), &mut y, &mut self.workspace, &self.threads)?;
        Ok(y)
    }

    /// Steps so far: what, by which kernel, then which, the number of the step, whether it was good.
    fn steps(&self) -> Vec<(RecoveryStep, &'static str, Option<&'static str>, u32, bool)> {
        let receipt = self.recording.receipt();
        let step = |step: &Recovery| (step.step, step.kernel, step.then, step.attempt, step.success);
        receipt.recoveries().iter().map(step).collect()
    }
}

const FIRST: &str = "matmul.tail2.avx2";
const SECOND: Option<&str> = Some("matmul.tail2.sse4.1");

#[test]
fn a_kernel_that_panics_is_tried_alone_and_then_left() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    PRODUCT.store(PANICS, Ordering::Relaxed);
    assert_eq!(case.run()?, case.good);
    let alone = (RecoveryStep::OneThread, FIRST, Some(FIRST), 1, false);
    let left = (RecoveryStep::Quarantined, FIRST, SECOND, 2, true);
    assert_eq!(case.steps(), [alone, left]);
    let receipt = case.recording.receipt();
    assert!(receipt.recoveries()[1].reason.contains("panicked"), "{receipt:?}");
    let [held] = &case.quarantine.kernels()[..] else { panic!("one kernel") };
    assert_eq!(held.id, AVX2);
    // From then on nothing is left to do, and the threads work.
    assert_eq!(case.run()?, case.good);
    assert_eq!(case.steps().len(), 2);
    let json = case.recording.receipt().to_json();
    for part in [
        r#""recoveries":[{"step":"one-thread","op":"matmul","format":"tail2","kernel":"matmul.tail2.avx2","#,
        r#""then":"matmul.tail2.sse4.1","attempt":2,"success":true,"us":"#,
        r#""more_recoveries":0}"#,
    ] {
        assert!(json.contains(part), "{json}");
    }
    Ok(())
}

#[test]
fn a_panic_on_a_worker_alone_costs_no_kernel() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    PRODUCT.store(PANICS_ON_WORKERS, Ordering::Relaxed);
    // Until the system lets a worker come.
    let started = Instant::now();
    while case.steps().is_empty() && started.elapsed() < Duration::from_secs(20) {
        assert_eq!(case.run()?, case.good);
    }
    assert_eq!(case.steps(), [(RecoveryStep::OneThread, FIRST, Some(FIRST), 1, true)]);
    assert!(case.quarantine.kernels().is_empty());
    PRODUCT.store(GOOD, Ordering::Relaxed);
    assert_eq!(case.run()?, case.good);
    assert_eq!(case.steps().len(), 1);
    Ok(())
}

#[test]
fn a_kernel_that_is_wrong_is_left_when_new_packed_weights_do_not_help() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    PRODUCT.store(WRONG, Ordering::Relaxed);
    assert_eq!(case.run()?, case.good);
    let repacked = (RecoveryStep::Repacked, FIRST, Some(FIRST), 1, false);
    assert_eq!(case.steps(), [repacked, (RecoveryStep::Quarantined, FIRST, SECOND, 2, true)]);
    let why = &case.quarantine.kernels()[0].why;
    assert!(why.starts_with("output ") && why.contains("by the portable kernel"), "{why}");
    Ok(())
}

#[test]
fn what_is_wrong_once_costs_no_kernel() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    PRODUCT.store(WRONG_ONCE, Ordering::Relaxed);
    // Other parts of that run may have been good, so the output that is compared may be.
    case.threads = Threads::single();
    assert_eq!(case.run()?, case.good);
    assert_eq!(case.steps(), [(RecoveryStep::Repacked, FIRST, Some(FIRST), 1, true)]);
    assert!(case.quarantine.kernels().is_empty());
    Ok(())
}

#[test]
fn the_quantizer_of_activations_is_left_where_it_is_to_blame() -> Result<(), Error> {
    for (mode, step) in [(WRONG, RecoveryStep::Repacked), (PANICS, RecoveryStep::OneThread)] {
        let mut case = Case::new(Restrict::default())?;
        ACTIVATIONS.store(mode, Ordering::Relaxed);
        assert_eq!(case.run()?, case.good);
        let (bad, good) = ("quantize_activations.row.avx2", Some("quantize_activations.row.scalar"));
        let first = (step, bad, Some(bad), 1, false);
        assert_eq!(case.steps(), [first, (RecoveryStep::Quarantined, bad, good, 2, true)]);
        assert_eq!(case.recording.receipt().recoveries()[0].op, Op::QuantizeActivations);
    }
    Ok(())
}

/// The transform takes the workspace's rows while kernels run, and comes before the quantizer.
#[test]
fn layers_that_transform_their_activations_recover_as_others() -> Result<(), Error> {
    let quantizer = ("quantize_activations.row.avx2", Some("quantize_activations.row.scalar"));
    for (fails, (bad, then)) in [(&PRODUCT, (FIRST, SECOND)), (&ACTIVATIONS, quantizer)] {
        let mut case = Case::with(Restrict::default(), Some(Hadamard::new(K, 8, None)?))?;
        fails.store(PANICS, Ordering::Relaxed);
        assert_eq!(case.run()?, case.good);
        let alone = (RecoveryStep::OneThread, bad, Some(bad), 1, false);
        assert_eq!(case.steps(), [alone, (RecoveryStep::Quarantined, bad, then, 2, true)]);
        assert_eq!(case.quarantine.kernels().len(), 1);
    }
    Ok(())
}

#[test]
fn what_the_program_puts_into_quarantine_every_layer_leaves() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    assert!(case.quarantine.add(KernelId(77), "of another program"));
    assert_eq!(case.run()?, case.good);
    assert_eq!(case.steps(), []);
    assert!(case.quarantine.add(AVX2, "SIGILL in a test at the start"));
    assert!(!case.quarantine.add(AVX2, "again"));
    assert!(case.quarantine.add(KernelId(0x1001), "as well"));
    assert_eq!(case.run()?, case.good);
    let scalar = Some("matmul.tail2.scalar");
    // The second kernel was none of the layer's.
    assert_eq!(case.steps(), [(RecoveryStep::DecidedAgain, FIRST, scalar, 1, true)]);
    assert_eq!(case.recording.receipt().recoveries()[0].reason, "SIGILL in a test at the start");
    let guard = GuardOptions { quarantine: case.quarantine.clone(), ..GuardOptions::default() };
    let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
    let later = GuardedLinear::new(&REGISTRY, weights, &LinearOptions::default(), guard, &case.threads)?;
    assert_eq!((later.weight_bytes(), later.kept_bytes()), (case.layer.weight_bytes(), tail2(N, K).len()));
    Ok(())
}

#[test]
fn where_nothing_is_left_the_kernel_is_named() -> Result<(), Error> {
    let mut case = Case::new(Restrict { kernel: Some(FIRST.to_owned()), ..Restrict::default() })?;
    PRODUCT.store(PANICS, Ordering::Relaxed);
    let error = case.run().expect_err("no other kernel is allowed");
    let Error::KernelFailed { kernel: FIRST, why } = &error else { panic!("{error}") };
    assert_eq!(why, "it panicked: on purpose");
    let alone = (RecoveryStep::OneThread, FIRST, Some(FIRST), 1, false);
    assert_eq!(case.steps(), [alone, (RecoveryStep::Quarantined, FIRST, None, 2, false)]);
    // It is not run again, though it would be good.
    PRODUCT.store(GOOD, Ordering::Relaxed);
    assert!(matches!(case.run(), Err(Error::NoKernel(_))), "{:?}", case.run());
    Ok(())
}

#[test]
fn errors_of_the_input_are_no_failures_of_kernels() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    let (mut x, mut y) = (noise(M * K, 3), vec![0.0; M * N]);
    x[K + 5] = f32::NAN;
    let outcome = case.layer.forward(Input::F32(&x), M, None, &mut y, &mut case.workspace, &case.threads);
    assert_eq!(outcome, Err(Error::NonFinite { row: 1, column: 5 }));
    case.layer.forward(Input::F32(&[]), 0, None, &mut [], &mut case.workspace, &case.threads)?;
    let (q, scales) = (vec![3; M * K], vec![2.0; M]);
    let input = Input::I8 { q: &q, scales: &scales };
    case.layer.forward(input, M, None, &mut y, &mut case.workspace, &case.threads)?;
    assert_eq!(case.steps(), []);
    let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
    let options = LinearOptions { device: Device::cuda(0), ..LinearOptions::default() };
    let refused = GuardedLinear::new(&REGISTRY, weights, &options, GuardOptions::default(), &case.threads);
    assert!(matches!(refused, Err(Error::NoKernel(_))), "{refused:?}");
    Ok(())
}

const QUANTIZER: &str = "quantize_activations.row.avx2";
const SCALAR_QUANTIZER: Option<&str> = Some("quantize_activations.row.scalar");

impl Case {
    /// The product of activations that were quantized before.
    fn run_in_two_steps(&mut self) -> Result<Vec<f32>, Error> {
        let (x, bias, mut y) = (noise(M * K, 3), noise(N, 4), vec![f32::NAN; M * N]);
        let mut workspace = Workspace::of_size(self.layer.workspace_size(M, &self.threads)?)?;
        let quantized = self.layer.quantize(Input::F32(&x), M, &mut workspace, &self.threads)?;
        assert_eq!((quantized.m(), quantized.k()), (M, K));
        self.layer.forward_quantized(&quantized, Some(&bias), &mut y, &self.threads)?;
        Ok(y)
    }
}

#[test]
fn products_of_quantized_activations_are_guarded() -> Result<(), Error> {
    for (mode, step) in [(WRONG, RecoveryStep::Repacked), (PANICS, RecoveryStep::OneThread)] {
        let mut case = Case::new(Restrict::default())?;
        assert_eq!(case.run_in_two_steps()?, case.good);
        PRODUCT.store(mode, Ordering::Relaxed);
        assert_eq!(case.run_in_two_steps()?, case.good);
        let first = (step, FIRST, Some(FIRST), 1, false);
        assert_eq!(case.steps(), [first, (RecoveryStep::Quarantined, FIRST, SECOND, 2, true)]);
        assert_eq!(case.run_in_two_steps()?, case.good);
        assert_eq!(case.steps().len(), 2);
    }
    Ok(())
}

#[test]
fn activations_are_laid_out_anew_for_kernels_that_read_them_otherwise() -> Result<(), Error> {
    let case = Case::new(Restrict::default())?;
    let (x, bias, mut y) = (noise(M * K, 3), noise(N, 4), vec![f32::NAN; M * N]);
    let mut workspace = Workspace::of_size(case.layer.workspace_size(M, &case.threads)?)?;
    let quantized = case.layer.quantize(Input::F32(&x), M, &mut workspace, &case.threads)?;
    // The portable product is left.
    case.quarantine.add(AVX2, "seen elsewhere");
    case.quarantine.add(KernelId(0x1001), "seen elsewhere");
    case.layer.forward_quantized(&quantized, Some(&bias), &mut y, &case.threads)?;
    assert_eq!(y, case.good);
    assert_eq!(case.steps()[0].2, Some("matmul.tail2.scalar"));
    // A layer that was never made again takes them for a mistake.
    let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
    let guard = GuardOptions { quarantine: case.quarantine.clone(), ..GuardOptions::default() };
    let other = GuardedLinear::new(&REGISTRY, weights, &LinearOptions::default(), guard, &case.threads)?;
    let refused = other.forward_quantized(&quantized, None, &mut y, &case.threads);
    assert!(matches!(refused, Err(Error::ActivationLayout { .. })), "{refused:?}");
    Ok(())
}

#[test]
fn quantizing_apart_from_products_is_guarded() -> Result<(), Error> {
    for (mode, step) in [(WRONG, RecoveryStep::Repacked), (PANICS, RecoveryStep::OneThread)] {
        let mut case = Case::new(Restrict::default())?;
        ACTIVATIONS.store(mode, Ordering::Relaxed);
        assert_eq!(case.run_in_two_steps()?, case.good);
        let first = (step, QUANTIZER, Some(QUANTIZER), 1, false);
        let left = (RecoveryStep::Quarantined, QUANTIZER, SCALAR_QUANTIZER, 2, true);
        assert_eq!(case.steps(), [first, left]);
        let why = &case.quarantine.kernels()[0].why;
        assert!(why.contains("by the portable kernel") || why.contains("panicked"), "{why}");
    }
    // A number that is not finite is the input's.
    let case = Case::new(Restrict::default())?;
    let mut workspace = Workspace::of_size(case.layer.workspace_size(1, &case.threads)?)?;
    let bad = case.layer.quantize(Input::F32(&[f32::NAN; K]), 1, &mut workspace, &case.threads);
    assert!(matches!(bad, Err(Error::NonFinite { row: 0, column: 0 })), "{bad:?}");
    assert_eq!(case.layer.quantize(Input::F32(&[]), 0, &mut workspace, &case.threads)?.m(), 0);
    assert_eq!(case.steps(), []);
    Ok(())
}

#[test]
fn prologues_are_guarded() -> Result<(), Error> {
    let (x, residual) = (noise(M * K, 3), noise(M * K, 5));
    let added: Vec<f32> = x.iter().zip(&residual).map(|(x, residual)| x + residual).collect();
    for (mode, first) in [
        (WRONG, RecoveryStep::Repacked),
        (WRONG_SUM, RecoveryStep::Repacked),
        (PANICS, RecoveryStep::OneThread),
    ] {
        let case = Case::new(Restrict::default())?;
        let mut right = vec![0.0; M * N];
        let mut workspace = Workspace::of_size(case.layer.workspace_size(M, &case.threads)?)?;
        case.layer.forward(Input::F32(&added), M, None, &mut right, &mut workspace, &case.threads)?;
        PROLOGUE.store(mode, Ordering::Relaxed);
        let (mut sum, mut y) = (vec![0.0; M * K], vec![0.0; M * N]);
        let input = PrologueInput::new(Rows::dense(&x)).add(Rows::dense(&residual), &mut sum);
        let quantized =
            case.layer.quantize_with(&Prologue::new(K), input, M, &mut workspace, &case.threads)?;
        case.layer.forward_quantized(&quantized, None, &mut y, &case.threads)?;
        assert_eq!((&y, &sum), (&right, &added));
        let (bad, good) = ("prologue.row.avx2", Some("prologue.row.scalar"));
        let steps = [(first, bad, Some(bad), 1, false), (RecoveryStep::Quarantined, bad, good, 2, true)];
        assert_eq!(case.steps(), steps, "mode {mode}");
        assert_eq!(case.recording.receipt().recoveries()[0].op, Op::Prologue);
    }
    Ok(())
}

#[test]
fn batches_are_guarded() -> Result<(), Error> {
    for mode in [GOOD, PANICS, WRONG] {
        let mut case = Case::new(Restrict::default())?;
        let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
        let guard = GuardOptions {
            check_every: NonZeroU64::new(1),
            quarantine: case.quarantine.clone(),
            ..GuardOptions::default()
        };
        let other = GuardedLinear::new(&REGISTRY, weights, &LinearOptions::default(), guard, &case.threads)?;
        let seen = Recording::new(&REGISTRY);
        other.record(Some(&seen))?;
        let (x, bias) = (noise(M * K, 3), noise(N, 4));
        let mut workspace = Workspace::of_size(case.layer.workspace_size(M, &case.threads)?)?;
        let quantized = case.layer.quantize(Input::F32(&x), M, &mut workspace, &case.threads)?;
        PRODUCT.store(mode, Ordering::Relaxed);
        for _ in 0..2 {
            let mut outputs = [const { Vec::new() }; 3].map(|_: Vec<f32>| vec![f32::NAN; M * N]);
            let [one, two, three] = &mut outputs;
            let mut batch = GuardedBatch::new();
            batch.push(&case.layer, &quantized, Some(&bias), one);
            batch.push(&other, &quantized, Some(&bias), two);
            // The first layer once more.
            batch.push(&case.layer, &quantized, Some(&bias), three);
            assert_eq!((batch.len(), batch.is_empty()), (3, false));
            batch.run(&case.threads)?;
            for y in &outputs {
                assert_eq!(*y, case.good);
            }
        }
        let of_other: Vec<_> = seen.receipt().recoveries().iter().map(|step| step.step).collect();
        match mode {
            GOOD => assert_eq!((case.steps().len(), of_other.len()), (0, 0)),
            mode => {
                let first = if mode == PANICS { RecoveryStep::OneThread } else { RecoveryStep::Repacked };
                let first = (first, FIRST, Some(FIRST), 1, false);
                assert_eq!(case.steps(), [first, (RecoveryStep::Quarantined, FIRST, SECOND, 2, true)]);
                assert_eq!(of_other, [RecoveryStep::DecidedAgain]);
            }
        }
        PRODUCT.store(GOOD, Ordering::Relaxed);
        let (mut y, mut z) = (vec![0.0; M * N], vec![0.0; 1]);
        let mut batch = GuardedBatch::new();
        batch.push(&case.layer, &quantized, None, &mut y);
        batch.push(&other, &quantized, None, &mut z);
        let refused = batch.run(&case.threads);
        assert!(matches!(refused, Err(Error::ShapeMismatch { .. })), "{refused:?}");
        GuardedBatch::new().run(&case.threads)?;
        assert_eq!(case.run()?, case.good);
    }
    Ok(())
}

/// Layers that were moved to the processor: what the products of a batch count is what ran, also where they run again by themselves.
#[test]
fn runs_of_a_batch_count_once_as_fallbacks() -> Result<(), Error> {
    let (policy, device) = (Policy::Cpu, Device::cuda(0));
    for (mode, left) in [(GOOD, false), (GOOD, true), (PANICS, false)] {
        let _turn = Turn::take();
        let threads = Threads::single();
        let quarantines = [Quarantine::new(), Quarantine::new()];
        let recording = Recording::new(&REGISTRY);
        let mut layers = Vec::new();
        for quarantine in &quarantines {
            let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
            let guard = GuardOptions { quarantine: quarantine.clone(), ..GuardOptions::default() };
            let options = LinearOptions { policy, device, ..LinearOptions::default() };
            let layer = GuardedLinear::new(&REGISTRY, weights, &options, guard, &threads)?;
            layer.record(Some(&recording))?;
            layers.push(layer);
        }
        let mut workspace = Workspace::of_size(layers[0].workspace_size(M, &threads)?)?;
        let x = noise(M * K, 3);
        let quantized = layers[0].quantize(Input::F32(&x), M, &mut workspace, &threads)?;
        if left {
            // The first product is in the batch when the second is found not to be ready.
            quarantines[1].add(AVX2, "seen elsewhere");
        }
        PRODUCT.store(mode, Ordering::Relaxed);
        let mut outputs = [vec![f32::NAN; M * N], vec![f32::NAN; M * N]];
        let mut batch = GuardedBatch::new();
        for (layer, y) in layers.iter().zip(&mut outputs) {
            batch.push(layer, &quantized, None, y);
        }
        batch.run(&threads)?;
        let counted: u64 = recording.receipt().fallbacks().iter().map(|fallback| fallback.runs()).sum();
        assert_eq!(counted, 2, "mode {mode}, a kernel in quarantine: {left}");
    }
    Ok(())
}

/// The portable kernel refuses the row that is packed for it, which says nothing of the run that was to be compared.
#[test]
fn a_comparison_that_fails_costs_no_run() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    REFUSES_ROW.set(1);
    assert_eq!(case.run()?, case.good);
    assert_eq!(REFUSES_ROW.get(), 0, "it was to be compared");
    // Of the activations, then of the product.
    for row in [1, 2] {
        REFUSES_ROW.set(row);
        assert_eq!(case.run_in_two_steps()?, case.good);
        assert_eq!(REFUSES_ROW.get(), 0, "both were to be compared");
    }
    assert_eq!(case.steps(), []);
    // In a batch the others are compared as before.
    let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
    let guard = GuardOptions { check_every: NonZeroU64::new(1), ..GuardOptions::default() };
    let other = GuardedLinear::new(&REGISTRY, weights, &LinearOptions::default(), guard, &case.threads)?;
    let (x, bias) = (noise(M * K, 3), noise(N, 4));
    let mut workspace = Workspace::of_size(case.layer.workspace_size(M, &case.threads)?)?;
    let quantized = case.layer.quantize(Input::F32(&x), M, &mut workspace, &case.threads)?;
    PRODUCT.store(WRONG, Ordering::Relaxed);
    REFUSES_ROW.set(1);
    let (mut unseen, mut seen) = (vec![f32::NAN; M * N], vec![f32::NAN; M * N]);
    let mut batch = GuardedBatch::new();
    batch.push(&case.layer, &quantized, Some(&bias), &mut unseen);
    batch.push(&other, &quantized, Some(&bias), &mut seen);
    batch.run(&case.threads)?;
    assert_eq!(seen, case.good);
    assert_ne!(unseen, case.good);
    assert_eq!(case.steps(), []);
    Ok(())
}

/// An output that is wrong is none of a good run, also where an error hides which kernel is to blame.
#[test]
fn what_is_wrong_is_seen_where_nobody_is_found_to_blame() -> Result<(), Error> {
    let mut case = Case::new(Restrict::default())?;
    case.threads = Threads::single();
    PRODUCT.store(WRONG_ONCE, Ordering::Relaxed);
    // The row behind the quantizer of the run.
    REFUSES_ROW.set(2);
    assert_eq!(case.run()?, case.good);
    assert_eq!(case.steps(), [(RecoveryStep::Repacked, FIRST, Some(FIRST), 1, true)]);
    drop(case);
    let case = ExpertCase::new()?;
    PRODUCT.store(WRONG, Ordering::Relaxed);
    // Behind those of both experts of the token.
    REFUSES_ROW.set(3);
    assert_eq!(case.all()?, case.good);
    let left = (RecoveryStep::Quarantined, FIRST, SECOND, 2, true);
    assert_eq!(case.steps(), [(RecoveryStep::Repacked, FIRST, Some(FIRST), 1, false), left]);
    assert_eq!(REFUSES_ROW.get(), 0);
    Ok(())
}

/// Four experts of which each token goes through two, in two matrices each.
struct ExpertCase {
    experts: GuardedExperts<'static>,
    recording: Recording,
    threads: Threads,
    good: [Vec<f32>; 3],
    _turn: Turn,
}

const EXPERTS: usize = 4;
const LISTS: [u32; 2 * M] = [3, 0, 1, 3, 2, 1];

impl ExpertCase {
    fn matrices() -> Result<Vec<Vec<QuantizedBuf<'static>>>, Error> {
        let rows = |count: usize, seed: usize| {
            let whole = tail2(count * (seed + 1), K);
            let bytes = count * FORMATS[TAIL2].row_bytes(K)?;
            let tail = &whole[whole.len() - 8..];
            let own = [&whole[seed * bytes..][..bytes], tail].concat();
            QuantizedBuf::new(&FORMATS[TAIL2], count, K, own)
        };
        (0..EXPERTS).map(|expert| Ok(vec![rows(5, expert)?, rows(9, expert)?])).collect()
    }

    fn new() -> Result<ExpertCase, Error> {
        let turn = Turn::take();
        let threads = Threads::new(3)?.with_grain(1);
        let guard = GuardOptions { check_every: NonZeroU64::new(1), ..GuardOptions::default() };
        let options = LinearOptions::default();
        let matrices = ExpertCase::matrices()?;
        let experts = GuardedExperts::new(&REGISTRY, matrices.clone(), &options, guard, &threads)?;
        assert_eq!((experts.count(), experts.n(), experts.k()), (EXPERTS, 14, K));
        assert!(experts.kept_bytes() > 0 && experts.weight_bytes() > 0);
        assert_eq!(experts.device(), Some(Device::CPU));
        let recording = Recording::new(&REGISTRY);
        experts.record(Some(&recording))?;
        let mut case =
            ExpertCase { experts, recording, threads, good: [const { Vec::new() }; 3], _turn: turn };
        case.good = case.all()?;
        assert!(case.recording.receipt().recoveries().is_empty());
        // Without a guard.
        let lent: Vec<Vec<QuantizedMatrix<'_>>> =
            matrices.iter().map(|expert| expert.iter().map(QuantizedBuf::matrix).collect()).collect();
        let plain = Experts::stacked(&REGISTRY, &lent, &options, &case.threads)?;
        let (x, mut y) = (noise(M * K, 3), vec![f32::NAN; 2 * M * plain.n()]);
        let mut workspace = plain.workspace(M, 2 * M, &case.threads)?;
        let routes = Routes::each(M, 2, &LISTS)?;
        let input = ExpertInput::Tokens(Input::F32(&x));
        plain.forward(input, &routes, None, &mut y, &mut workspace, &case.threads)?;
        assert_eq!(y, case.good[0]);
        Ok(case)
    }

    /// The products of all pairs of tokens, their sums, and those of rows for each pair.
    fn all(&self) -> Result<[Vec<f32>; 3], Error> {
        let routes = Routes::each(M, 2, &LISTS)?;
        let (x, pairs) = (noise(M * K, 3), noise(2 * M * K, 8));
        let weights = noise(2 * M, 9);
        let n = self.experts.n();
        let size = self.experts.workspace_size(M, 2 * M, &self.threads)?;
        let mut workspace = Workspace::of_size(size)?;
        let mut run = |input, weights: Option<&[f32]>, results: usize| {
            let mut y = vec![f32::NAN; results * n];
            self.experts.forward(input, &routes, weights, &mut y, &mut workspace, &self.threads)?;
            Ok(y)
        };
        Ok([
            run(ExpertInput::Tokens(Input::F32(&x)), None, 2 * M)?,
            run(ExpertInput::Tokens(Input::F32(&x)), Some(&weights), M)?,
            run(ExpertInput::Pairs(Input::F32(&pairs)), Some(&weights), M)?,
        ])
    }

    fn steps(&self) -> Vec<(RecoveryStep, &'static str, Option<&'static str>, u32, bool)> {
        let receipt = self.recording.receipt();
        let step = |step: &Recovery| (step.step, step.kernel, step.then, step.attempt, step.success);
        receipt.recoveries().iter().map(step).collect()
    }
}

#[test]
fn experts_are_guarded() -> Result<(), Error> {
    for (product, mode, step) in [
        (true, WRONG, RecoveryStep::Repacked),
        (true, PANICS, RecoveryStep::OneThread),
        (false, WRONG, RecoveryStep::Repacked),
        (false, PANICS, RecoveryStep::OneThread),
    ] {
        let case = ExpertCase::new()?;
        let of = if product { &PRODUCT } else { &ACTIVATIONS };
        of.store(mode, Ordering::Relaxed);
        assert_eq!(case.all()?, case.good);
        let (bad, good) = if product { (FIRST, SECOND) } else { (QUANTIZER, SCALAR_QUANTIZER) };
        let first = (step, bad, Some(bad), 1, false);
        assert_eq!(case.steps(), [first, (RecoveryStep::Quarantined, bad, good, 2, true)]);
        assert_eq!(case.all()?, case.good);
        assert_eq!(case.steps().len(), 2);
    }
    Ok(())
}

#[test]
fn sums_over_experts_are_compared_too() -> Result<(), Error> {
    let case = ExpertCase::new()?;
    let routes = Routes::each(M, 2, &LISTS)?;
    let (x, weights) = (noise(M * K, 3), noise(2 * M, 9));
    let mut workspace = Workspace::of_size(case.experts.workspace_size(M, 2 * M, &case.threads)?)?;
    for quantized in [false, true] {
        PRODUCT.store(WRONG, Ordering::Relaxed);
        let mut own = Workspace::new();
        let lent = ExpertCase::matrices()?;
        let lent: Vec<QuantizedMatrix<'_>> = lent.iter().map(|expert| expert[0].matrix()).collect();
        let plain = Experts::new(&REGISTRY, &lent, &LinearOptions::default(), &case.threads)?;
        own.grow(plain.workspace_size(M, 2 * M, &case.threads)?)?;
        let shared = plain.quantize(Input::F32(&x), M, &mut own, &case.threads)?;
        let input = match quantized {
            false => ExpertInput::Tokens(Input::F32(&x)),
            true => ExpertInput::Quantized(&shared),
        };
        let mut y = vec![f32::NAN; M * case.experts.n()];
        case.experts.forward(input, &routes, Some(&weights), &mut y, &mut workspace, &case.threads)?;
        assert_eq!(y, case.good[1]);
    }
    let steps: Vec<_> = case.steps().into_iter().map(|step| (step.0, step.1)).collect();
    assert_eq!(steps, [(RecoveryStep::Repacked, FIRST), (RecoveryStep::Quarantined, FIRST)]);
    // Lists that are wrong are nobody's failure.
    let twice = Routes::each(1, 2, &[1, 1])?;
    let mut y = vec![0.0; 2 * case.experts.n()];
    let input = ExpertInput::Tokens(Input::F32(&x[..K]));
    let refused = case.experts.forward(input, &twice, None, &mut y, &mut workspace, &case.threads);
    assert!(matches!(refused, Err(Error::DuplicateExpert { .. })), "{refused:?}");
    assert_eq!(case.steps().len(), 2);
    Ok(())
}

#[test]
fn experts_say_what_they_were_made_without() -> Result<(), Error> {
    let _turn = Turn::take();
    let quarantine = Quarantine::new();
    quarantine.add(AVX2, "seen elsewhere");
    let restrict = Restrict { quarantined: quarantine.kernels(), ..Restrict::default() };
    let options = LinearOptions { restrict: Some(restrict), ..LinearOptions::default() };
    let matrices = ExpertCase::matrices()?;
    let lent: Vec<QuantizedMatrix<'_>> = matrices.iter().map(|expert| expert[0].matrix()).collect();
    let mut experts = Experts::new(&REGISTRY, &lent, &options, &Threads::single())?;
    let recording = Recording::new(&REGISTRY);
    experts.record(Some(&recording))?;
    let receipt = recording.receipt();
    let [step] = receipt.recoveries() else { panic!("one step: {receipt:?}") };
    let found = (step.step, step.kernel, step.then, step.attempt);
    assert_eq!(found, (RecoveryStep::LeftOut, FIRST, SECOND, 0));
    Ok(())
}

/// What the observer of this program does on a thread, and what it was told there.
struct Watch;

thread_local! {
    static PANICS_WHEN_TOLD: Cell<bool> = const { Cell::new(false) };
    static ASKS: Cell<Option<&'static GuardedLinear<'static>>> = const { Cell::new(None) };
    static ANSWERS: RefCell<Vec<(RecoveryStep, usize)>> = const { RefCell::new(Vec::new()) };
}

impl Observer for Watch {
    fn wants_time(&self, _: &'static Registry, _: usize, _: Shape, _: Device) -> bool {
        false
    }

    fn launched(&self, _: &Launch) {
        assert!(!PANICS_WHEN_TOLD.get(), "of the observer");
    }

    fn fell_back(&self, _: FellBack<'_>) {}

    fn recovered(&self, recovery: &Recovery) {
        if let Some(layer) = ASKS.get() {
            // It may be changed, too.
            layer.record(None).expect("no error");
            ANSWERS.with_borrow_mut(|answers| answers.push((recovery.step, layer.weight_bytes())));
        }
    }
}

fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| observe(&Watch).expect("the only observer"));
}

/// What `run` gives, on a thread of its own: a test that waits for ever fails.
fn in_time<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        scope.spawn(move || sender.send(run()));
        match receiver.recv_timeout(Duration::from_secs(60)) {
            Ok(done) => done,
            Err(_) => {
                eprintln!("it waits for ever, or has panicked");
                std::process::abort();
            }
        }
    })
}

#[test]
fn panics_of_the_observer_are_no_kernels() -> Result<(), Error> {
    watch();
    let mut case = Case::new(Restrict::default())?;
    PANICS_WHEN_TOLD.set(true);
    let payload = catch_unwind(AssertUnwindSafe(|| case.run())).expect_err("the observer's panic");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"of the observer"));
    let (x, bias, mut y) = (noise(M * K, 3), noise(N, 4), vec![f32::NAN; M * N]);
    PANICS_WHEN_TOLD.set(false);
    let mut workspace = Workspace::of_size(case.layer.workspace_size(M, &case.threads)?)?;
    let quantized = case.layer.quantize(Input::F32(&x), M, &mut workspace, &case.threads)?;
    let mut batch = GuardedBatch::new();
    batch.push(&case.layer, &quantized, Some(&bias), &mut y);
    PANICS_WHEN_TOLD.set(true);
    catch_unwind(AssertUnwindSafe(|| batch.run(&case.threads))).expect_err("the observer's panic");
    PANICS_WHEN_TOLD.set(false);
    assert_eq!((case.steps(), case.quarantine.kernels()), (vec![], vec![]));
    // Kernels' panics are theirs as before.
    PRODUCT.store(PANICS, Ordering::Relaxed);
    assert_eq!(case.run()?, case.good);
    assert_eq!(case.steps().len(), 2);
    Ok(())
}

#[test]
fn the_observer_may_ask_a_layer_that_has_recovered() -> Result<(), Error> {
    watch();
    in_time(|| {
        let mut case = Case::new(Restrict::default())?;
        let weights = QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K))?;
        let guard = GuardOptions { quarantine: case.quarantine.clone(), ..GuardOptions::default() };
        let asked = GuardedLinear::new(&REGISTRY, weights, &LinearOptions::default(), guard, &case.threads)?;
        let asked: &'static GuardedLinear<'static> = Box::leak(Box::new(asked));
        ASKS.set(Some(asked));
        PRODUCT.store(PANICS, Ordering::Relaxed);
        let (x, mut y) = (noise(M * K, 3), vec![f32::NAN; M * N]);
        asked.forward(Input::F32(&x), M, None, &mut y, &mut case.workspace, &case.threads)?;
        ASKS.set(None);
        let bytes = asked.weight_bytes();
        assert_eq!(ANSWERS.take(), [(RecoveryStep::OneThread, bytes), (RecoveryStep::Quarantined, bytes)]);
        Ok(())
    })
}
