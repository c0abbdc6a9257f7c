//! Quarantines that a folder keeps: programs that a kernel ends, by an instruction that no processor has, and what their next start does. Each
//! of them is this program again, with one test to run.
// Signals, and processes that are started.
#![cfg(all(unix, not(miri)))]

#[path = "toy/mod.rs"]
mod toy;

use gristmill_runtime::abi::MatmulArgs;
use gristmill_runtime::registry::{Code, Entry, EntryFacts, KernelId, PackInfo, Registry, RegistryFacts};
use gristmill_runtime::vocab::{DType, DeviceKind, Isa, Op};
use gristmill_runtime::{
    Batch, Error, GuardOptions, GuardedLinear, Input, Linear, LinearOptions, Output, QuantizedBuf,
    QuantizedMatrix, Quarantine, Recording, Request, Shape, Threads, Workspace,
};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{self, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use toy::kernels::{activations_row, dequantize_tail2, product_tail2, rows_tail2};
use toy::{FORMATS, P4, TABLES, TAIL2, UNIT_ROW, entry, matmul, noise, tail2};

/// What the first product does, in a process with this variable.
const KERNEL: &str = "GRISTMILL_TEST_KERNEL";
const FOLDER: &str = "GRISTMILL_QUARANTINE";
/// Tells a process that it is the child of a test.
const CHILD: &str = "GRISTMILL_TEST_CHILD";
const SIGILL: i32 = 4;

static LOOKED: AtomicBool = AtomicBool::new(false);

unsafe fn bad_product(args: &MatmulArgs) {
    match std::env::var(KERNEL).as_deref() {
        // SAFETY: it ends the process.
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        Ok("illegal") => unsafe { std::arch::asm!("ud2") },
        // SAFETY: it ends the process.
        #[cfg(target_arch = "aarch64")]
        Ok("illegal") => unsafe { std::arch::asm!("udf #0") },
        Ok("panics") => panic!("on purpose"),
        // Later runs are not marked.
        Ok("looks") if !LOOKED.swap(true, Ordering::Relaxed) => {
            let folder = std::env::var_os(FOLDER).expect("the test gives one");
            let marks = marks_in(Path::new(&folder));
            assert!(marks.contains(" 1 61 24 matmul.tail2.avx2\n"), "a run is marked: {marks}");
            let others = Quarantine::kept_in(Path::new(&folder)).expect("it can be read");
            assert!(others.kernels().is_empty(), "marks of a program that lives are its own");
        }
        Ok("wrong") => {
            // SAFETY: by the ABI.
            unsafe { product_tail2(args) };
            for row in args.row_begin..args.row_end {
                // SAFETY: just written.
                unsafe { *args.y.add(row) += 1.0 };
            }
            return;
        }
        _ => {}
    }
    // SAFETY: by the ABI.
    unsafe { product_tail2(args) }
}

// SAFETY: as of the toy registry's packing of these facts.
static PACKING: PackInfo = unsafe { PackInfo::new(P4) };

// SAFETY: each function goes over what the facts of its format and packing say, and none needs features.
static ENTRIES: [Entry; 4] = unsafe {
    [
        Entry::new(EntryFacts {
            isa: Some(Isa::Avx2),
            ..entry(0, FIRST, Op::Matmul, TAIL2, matmul(bad_product, Some(&PACKING), UNIT_ROW))
        }),
        Entry::new(entry(1, SECOND, Op::Matmul, TAIL2, matmul(rows_tail2, None, UNIT_ROW))),
        Entry::new(entry(
            2,
            "quantize_activations.row.scalar",
            Op::QuantizeActivations,
            0,
            Code::QuantizeActivations(activations_row),
        )),
        Entry::new(entry(
            3,
            "dequantize.tail2.scalar",
            Op::Dequantize,
            TAIL2,
            Code::Dequantize(dequantize_tail2),
        )),
    ]
};

const FIRST: &str = "matmul.tail2.avx2";
const SECOND: &str = "matmul.tail2.scalar";
const FIRST_ID: KernelId = KernelId(0x1000);

fn candidates(op: Op, format: usize, dtype: DType, device: DeviceKind) -> &'static [u16] {
    match (op, format, dtype, device) {
        (Op::Matmul, TAIL2, DType::F32 | DType::I8, DeviceKind::Cpu) => &[0, 1],
        (Op::QuantizeActivations, 0, DType::F32, DeviceKind::Cpu) => &[2],
        (Op::Dequantize, TAIL2, DType::F32, DeviceKind::Cpu) => &[3],
        _ => &[],
    }
}

// SAFETY: as of the toy registry, of which these are kernels and their like.
static REGISTRY: Registry =
    unsafe { Registry::new(RegistryFacts { package: "illegal", entries: &ENTRIES, candidates, ..TABLES }) };

const N: usize = 61;
const K: usize = 24;

/// All that programs mark in a folder at the moment.
fn marks_in(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let marks = files.filter(|path| path.extension().is_some_and(|ending| ending == "running"));
    marks.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect()
}

/// The file of a kernel on this processor.
fn file_of(folder: &Path, id: KernelId) -> std::path::PathBuf {
    let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let mut found = files.filter(|path| {
        path.to_string_lossy().contains(&format!("/{id}."))
            && path.extension().is_some_and(|end| end == "kernel")
    });
    found.next().expect("its file")
}

fn files_of(folder: &Path, ending: &str) -> usize {
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|found| found == ending)).count()
}

/// A process with one test of this program, a kernel that does this, and this folder.
fn started(name: &str, kernel: &str, folder: &Path) -> process::Output {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its own program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, name).env(KERNEL, kernel).env(FOLDER, folder).output().expect("it starts")
}

/// What a process says that ends well.
#[track_caller]
fn said(output: &process::Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let said = text.split("said: ").nth(1).unwrap_or_else(|| panic!("it says nothing: {output:?}"));
    said.split(" :end").next().unwrap_or_default().to_owned()
}

/// Whether this process was started to run the test `name` alone.
fn is_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == name)
}

fn weights() -> QuantizedBuf<'static> {
    QuantizedBuf::new(&FORMATS[TAIL2], N, K, tail2(N, K)).expect("sizes agree")
}

/// A child: a service that makes a layer as the environment says, and runs it twice.
#[test]
fn serves() -> Result<(), Error> {
    if !is_child("serves") {
        return Ok(());
    }
    let threads = Threads::new(2)?.with_grain(1);
    let mut layer = Linear::new(&REGISTRY, &weights().matrix(), &LinearOptions::from_env(), &threads)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    // A second layer of a model tells nothing again.
    layer.record(Some(&recording))?;
    let (x, mut y) = (noise(K, 3), vec![f32::NAN; N]);
    let mut workspace = layer.workspace(1, &threads)?;
    for _ in 0..2 {
        layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
    }
    let chosen = layer.prepared().decide(Shape::new(1, N, K));
    let receipt = recording.receipt().to_json();
    let sum: f32 = y.iter().sum();
    println!("said: sum {} :: {chosen} :: {receipt} :end", sum.to_bits());
    Ok(())
}

/// The same with a batch.
#[test]
fn serves_a_batch() -> Result<(), Error> {
    if !is_child("serves_a_batch") {
        return Ok(());
    }
    let threads = Threads::single();
    let layer = Linear::new(&REGISTRY, &weights().matrix(), &LinearOptions::from_env(), &threads)?;
    let (x, mut y) = (noise(K, 3), vec![f32::NAN; N]);
    let mut workspace = layer.workspace(1, &threads)?;
    let x = layer.quantize(Input::F32(&x), 1, &mut workspace, &threads)?;
    let mut batch = Batch::new();
    batch.push(layer.product_of(&x), Output::F32(&mut y))?;
    batch.run(&threads);
    println!("said: {} :end", y.iter().sum::<f32>().to_bits());
    Ok(())
}

#[test]
fn a_kernel_that_ends_the_program_is_left_out_at_its_next_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = said(&started("serves", "good", folder.path()));
    assert!(good.contains(&format!("chosen: {FIRST}")), "{good}");
    assert_eq!(files_of(folder.path(), "kernel"), 0);

    let ended = started("serves", "illegal", folder.path());
    assert_eq!(ended.status.signal(), Some(SIGILL), "{ended:?}");
    assert!(marks_in(folder.path()).contains(FIRST));
    let next = said(&started("serves", "illegal", folder.path()));
    let parts: Vec<&str> = next.split(" :: ").collect();
    let [sum, chosen, receipt] = parts[..] else { panic!("{next}") };
    assert!(good.starts_with(sum), "the same bits: {sum}, {good}");
    assert!(chosen.contains(&format!("chosen: {SECOND}")), "{chosen}");
    let why = "a program ended in its first run with m=1, n=61, k=24: by a signal such as SIGILL";
    assert!(chosen.contains(&format!("{FIRST}: in quarantine: {why}")), "{chosen}");
    let step =
        format!(r#""recoveries":[{{"step":"left-out","op":"matmul","format":"tail2","kernel":"{FIRST}","#);
    assert!(receipt.contains(&step) && receipt.contains(why), "{receipt}");
    assert!(receipt.contains(&format!(r#""then":"{SECOND}","attempt":0,"success":true"#)), "{receipt}");
    assert_eq!(receipt.matches("left-out").count(), 1, "{receipt}");
    // Nothing more to take in, and the file stays.
    assert_eq!(files_of(folder.path(), "kernel"), 1);
    assert_eq!(said(&started("serves", "illegal", folder.path())).split(" :: ").nth(1), Some(chosen));

    // Let out.
    std::fs::remove_file(file_of(folder.path(), FIRST_ID)).expect("its file");
    let back = said(&started("serves", "good", folder.path()));
    assert!(back.contains(&format!("chosen: {FIRST}")), "{back}");
}

#[test]
fn a_kernel_of_a_batch_is_found_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = said(&started("serves_a_batch", "good", folder.path()));
    let ended = started("serves_a_batch", "illegal", folder.path());
    assert_eq!(ended.status.signal(), Some(SIGILL), "{ended:?}");
    assert_eq!(said(&started("serves_a_batch", "illegal", folder.path())), good);
    assert_eq!(files_of(folder.path(), "kernel"), 1);
}

#[test]
fn programs_that_live_or_end_well_leave_no_kernel() {
    let folder = tempfile::tempdir().expect("a folder");
    said(&started("serves", "looks", folder.path()));
    // A panic that is unwound is told to the caller.
    let panicked = started("serves", "panics", folder.path());
    assert_eq!((panicked.status.code(), panicked.status.signal()), (Some(101), None), "{panicked:?}");
    assert_eq!(marks_in(folder.path()), "");
    let quarantine = Quarantine::kept_in(folder.path()).expect("it can be read");
    assert!(quarantine.kernels().is_empty());
    // Their files are gone.
    assert_eq!(files_of(folder.path(), "running"), 0);
}

#[test]
fn a_parent_that_knows_the_signal_says_it() -> Result<(), Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let quarantine = Quarantine::kept_in(folder.path())?;
    started("serves", "illegal", folder.path());
    let came = quarantine.take_in(Some("SIGILL"))?;
    let [kernel] = &came[..] else { panic!("one kernel: {came:?}") };
    assert_eq!((kernel.id, kernel.kernel.as_deref()), (FIRST_ID, Some(FIRST)));
    assert_eq!(kernel.why, "it ended a program by SIGILL, in its first run with m=1, n=61, k=24");
    assert_eq!(quarantine.kernels(), came);
    assert!(quarantine.take_in(None)?.is_empty());

    // Nor is a kernel blamed for what was done from outside.
    std::fs::remove_file(file_of(folder.path(), FIRST_ID)).expect("its file");
    started("serves", "illegal", folder.path());
    assert!(marks_in(folder.path()).contains(FIRST));
    quarantine.forgive()?;
    assert_eq!(marks_in(folder.path()), "");
    assert!(Quarantine::kept_in(folder.path())?.kernels().is_empty());
    Ok(())
}

/// A child: a guarded layer whose quarantine the folder keeps.
#[test]
fn guards() -> Result<(), Error> {
    if !is_child("guards") {
        return Ok(());
    }
    let threads = Threads::single();
    let quarantine = Quarantine::from_env()?.expect("the variable is set");
    let guard = GuardOptions {
        check_every: std::num::NonZeroU64::new(1),
        quarantine: quarantine.clone(),
        ..GuardOptions::default()
    };
    let layer = GuardedLinear::new(&REGISTRY, weights(), &LinearOptions::default(), guard, &threads)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    let (x, mut y) = (noise(K, 3), vec![f32::NAN; N]);
    let mut workspace = Workspace::of_size(layer.workspace_size(1, &threads)?)?;
    layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
    let receipt = recording.receipt();
    let steps: Vec<&str> = receipt.recoveries().iter().map(|step| step.step.name()).collect();
    assert_eq!(quarantine.not_kept(), None);
    println!("said: {} {} :end", y.iter().sum::<f32>().to_bits(), steps.join(" "));
    Ok(())
}

#[test]
fn what_a_guard_finds_out_lasts() {
    let folder = tempfile::tempdir().expect("a folder");
    let found = said(&started("guards", "wrong", folder.path()));
    let (sum, steps) = found.split_once(' ').expect("both");
    assert_eq!(steps, "repacked quarantined");
    assert_eq!(said(&started("guards", "wrong", folder.path())), format!("{sum} left-out"));
    // Plain layers of the environment obey too.
    assert!(said(&started("serves", "wrong", folder.path())).contains(": in quarantine: output "));
}

#[test]
fn folders_and_files_that_are_none_are_named() -> Result<(), Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |path: &Path, part: &str| {
        let error = Quarantine::kept_in(path).expect_err("no quarantine").to_string();
        assert!(error.contains(part) && error.contains("GRISTMILL_QUARANTINE"), "{error}");
    };
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    refused(&file, "can't make the folder");
    let inner = folder.path().join("inner");
    let quarantine = Quarantine::kept_in(&inner)?;
    assert!(quarantine.add(FIRST_ID, "a reason\nof two lines") && quarantine.not_kept().is_none());
    assert_eq!(Quarantine::kept_in(&inner)?.kernels()[0].why, "a reason of two lines");

    let path = file_of(&inner, FIRST_ID);
    let text = std::fs::read_to_string(&path).expect("its file");
    // Another machine's, whose processor has a file of its own: what is found out here is kept beside it, and by the next start as well.
    let processor = text.lines().nth(1).expect("the processor").to_owned();
    let others = text.replace(&processor, "processor cpu of another make");
    let their_path = inner.join(format!("{FIRST_ID}.00000000000000aa.kernel"));
    std::fs::write(&their_path, &others).expect("a file");
    std::fs::remove_file(&path).expect("a file");
    let here = Quarantine::kept_in(&inner)?;
    assert!(here.kernels().is_empty());
    assert!(here.add(FIRST_ID, "here too") && here.not_kept().is_none());
    assert_eq!(Quarantine::kept_in(&inner)?.kernels()[0].why, "here too");
    assert_eq!(std::fs::read_to_string(&their_path).expect("a file"), others);
    std::fs::remove_file(&their_path).expect("a file");
    // What an earlier start was writing when it ended is in nobody's way, and nothing else is left.
    std::fs::write(inner.join(format!("{}-{}-0.new", KernelId(0x1002), std::process::id())), "half")
        .expect("a file");
    assert!(here.add(KernelId(0x1002), "whole") && here.not_kept().is_none());
    assert_eq!(Quarantine::kept_in(&inner)?.kernels().len(), 2);
    assert_eq!(files_of(&inner, "new"), 1);
    std::fs::remove_file(file_of(&inner, KernelId(0x1002))).expect("a file");
    std::fs::write(&path, "something else").expect("a file");
    refused(&inner, "it is no file of a kernel");

    // A list in memory marks nothing, and one whose folder is gone says so.
    let error = Quarantine::new().mark_first_runs().expect_err("no folder").to_string();
    assert!(error.contains("`Quarantine::kept_in` makes one with a folder"), "{error}");
    std::fs::remove_dir_all(&inner).expect("a folder");
    assert!(quarantine.add(KernelId(0x1001), "as well"));
    assert!(matches!(quarantine.not_kept(), Some(Error::Quarantine { .. })), "{:?}", quarantine.not_kept());
    assert_eq!(quarantine.kernels().len(), 2);
    Ok(())
}

#[test]
fn a_restriction_with_quarantined_kernels_explains_itself() -> Result<(), Error> {
    let quarantine = Quarantine::new();
    quarantine.add(FIRST_ID, "seen elsewhere");
    quarantine.add(KernelId(77), "of another program");
    let restrict = gristmill_runtime::Restrict {
        quarantined: quarantine.kernels(),
        ..gristmill_runtime::Restrict::default()
    };
    let shape = Shape::new(1, N, K);
    let cpu = gristmill_runtime::CpuProfile::detect();
    let prepared = REGISTRY.prepare_for(&Request::matmul("tail2", shape), cpu, &restrict)?;
    let explained = prepared.decide(shape).to_string();
    assert!(explained.contains("matmul.tail2.avx2: in quarantine: seen elsewhere"), "{explained}");
    assert_eq!(prepared.decide(shape).kernel()?.name, SECOND);
    let bytes = tail2(N, K);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], N, K, &bytes)?;
    let options = LinearOptions { restrict: Some(restrict), ..LinearOptions::default() };
    assert!(Linear::new(&REGISTRY, &matrix, &options, &Threads::single()).is_ok());
    Ok(())
}
