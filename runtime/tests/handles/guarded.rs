//! Guarded layers: kernels that fail on purpose, and what is done then.

use crate::toy::kernels::{activations_row, dequantize_tail2, product_tail2, rows_tail2};
use crate::toy::{FORMATS, P4, TABLES, TAIL2, UNIT_ROW, entry, matmul, noise, tail2};
use gristmill_runtime::abi::{Fault, MatmulArgs};
use gristmill_runtime::registry::{Code, Entry, EntryFacts, KernelId, PackInfo, Registry, RegistryFacts};
use gristmill_runtime::vocab::{DType, DeviceKind, Isa, Op};
use gristmill_runtime::{
    Device, Error, GuardOptions, GuardedLinear, Input, LinearOptions, QuantizedBuf, Quarantine, Recording,
    Recovery, RecoveryStep, Restrict, Threads, Workspace,
};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const GOOD: u32 = 0;
const PANICS: u32 = 1;
const PANICS_ON_WORKERS: u32 = 2;
const WRONG: u32 = 3;
const WRONG_ONCE: u32 = 4;

/// What the first product, and the first quantizer of activations, do.
static PRODUCT: AtomicU32 = AtomicU32::new(GOOD);
static ACTIVATIONS: AtomicU32 = AtomicU32::new(GOOD);

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

// SAFETY: as of the toy registry's packing of these facts.
static PACKING: PackInfo = unsafe { PackInfo::new(P4) };

const fn of_isa(isa: Isa, facts: EntryFacts) -> EntryFacts {
    EntryFacts { isa: Some(isa), ..facts }
}

// SAFETY: each function goes over what the facts of its format and packing say, and none needs features.
static ENTRIES: [Entry; 6] = unsafe {
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
        Entry::new(entry(2, "matmul.tail2.scalar", Op::Matmul, TAIL2, matmul(rows_tail2, None, UNIT_ROW))),
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
            Code::Dequantize(dequantize_tail2),
        )),
    ]
};

const AVX2: KernelId = KernelId(0x1000);

fn candidates(op: Op, format: usize, dtype: DType, device: DeviceKind) -> &'static [u16] {
    match (op, format, dtype, device) {
        (Op::Matmul, TAIL2, DType::F32 | DType::I8, DeviceKind::Cpu) => &[0, 1, 2],
        (Op::QuantizeActivations, 0, DType::F32, DeviceKind::Cpu) => &[3, 4],
        (Op::Dequantize, TAIL2, DType::F32, DeviceKind::Cpu) => &[5],
        _ => &[],
    }
}

// SAFETY: as of the toy registry, of which these are kernels and their like.
static REGISTRY: Registry =
    unsafe { Registry::new(RegistryFacts { package: "failing", entries: &ENTRIES, candidates, ..TABLES }) };

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
        let layer = GuardedLinear::new(&REGISTRY, weights, &options, guard, &threads)?;
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
