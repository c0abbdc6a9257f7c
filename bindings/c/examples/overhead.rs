//! What a call through the C interface takes beyond the same call of the Rust library:
//!
//!     bindings/c/install PREFIX
//!     cargo run --release --manifest-path bindings/c/Cargo.toml --example overhead -- PREFIX/lib/libgristmill.so
//!
//! The shared library is loaded and called by its symbols, as a C program does. Both calls compute one token of the same small layer on
//! one thread, by turns, so that what else the machine does meets both of them alike; medians are of turns, and the difference is
//! the median of the differences within a turn. `--turns N` sets how many turns there are. Ends with an error if the two give other bits.

use gristmill::{
    Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Recording, Request, Restrict,
    Threads, Workspace,
};
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::time::Instant;

const N: usize = 16;
const K: usize = 256;
/// Calls of a turn: so many that reading the clock does not count.
const CALLS: u32 = 2000;

type LinearNew = unsafe extern "C" fn(
    *const c_char,
    usize,
    usize,
    *const u8,
    usize,
    *const c_char,
    *const c_void,
    *mut *mut c_void,
) -> c_int;
type LinearForward = unsafe extern "C" fn(
    *const c_void,
    *const f32,
    usize,
    usize,
    *const f32,
    *mut f32,
    usize,
    *const c_void,
    *const c_void,
) -> c_int;
type WorkspaceNew = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type LastError = unsafe extern "C" fn() -> *const c_char;

struct Arguments {
    turns: usize,
    library: PathBuf,
}

impl Arguments {
    fn read() -> Result<Arguments, Box<dyn Error>> {
        let (mut turns, mut library) = (500, None);
        let mut arguments = std::env::args_os().skip(1);
        while let Some(argument) = arguments.next() {
            if argument == "--turns" {
                let count =
                    arguments.next().and_then(|count| count.to_str()?.parse().ok()).filter(|n| *n > 0);
                turns = count.ok_or("--turns expects a number of turns, 1 or more")?;
            } else {
                library = Some(PathBuf::from(argument));
            }
        }
        let library = library
            .ok_or("no library\n  help: give the path of libgristmill.so, which bindings/c/install makes")?;
        Ok(Arguments { turns, library })
    }
}

/// The weights of both layers.
fn blocks() -> Result<Vec<u8>, gristmill::Error> {
    let w: Vec<f32> = (0..N * K).map(|i| (i % 3) as f32 - 1.0).collect();
    let mut blocks = vec![0; REGISTRY.format("i2_s")?.1.tensor_bytes(N, K)?];
    let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, N, K))?;
    Quantizer::new(&prepared.decide_as_asked())?.run(&w, N, K, &mut blocks)?;
    Ok(blocks)
}

/// The layer of the Rust library, set up as the C interface sets it up.
struct RustLayer {
    layer: Linear,
    workspace: Workspace,
    threads: Threads,
}

impl RustLayer {
    fn new(blocks: &[u8]) -> Result<RustLayer, gristmill::Error> {
        let threads = Threads::single();
        let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
        let matrix = QuantizedMatrix::new(REGISTRY.format("i2_s")?.1, N, K, blocks)?;
        let mut layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
        layer.record(Some(&Recording::new(&REGISTRY)))?;
        let workspace = layer.workspace(1, &threads)?;
        Ok(RustLayer { layer, workspace, threads })
    }

    fn call(&mut self, x: &[f32; K], y: &mut [f32; N]) -> Result<(), Box<dyn Error>> {
        let x = Input::F32(black_box(x));
        Ok(self.layer.forward(x, 1, None, y, &mut self.workspace, &self.threads)?)
    }
}

/// The layer of the C interface.
struct CLayer {
    forward: LinearForward,
    last_error: LastError,
    layer: *mut c_void,
    workspace: *mut c_void,
    /// The functions are its.
    _library: Library,
}

impl CLayer {
    fn new(path: &Path, blocks: &[u8]) -> Result<CLayer, Box<dyn Error>> {
        // SAFETY: gristmill's library runs nothing when it is loaded.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            format!(
                "{}: {error}\n  help: give the path of libgristmill.so, which bindings/c/install makes",
                path.display()
            )
        })?;
        // SAFETY: the types are those of include/gristmill.h.
        let (new, forward, workspace_new, last_error) = unsafe {
            (
                *library.get::<LinearNew>("gm_linear_new")?,
                *library.get::<LinearForward>("gm_linear_forward")?,
                *library.get::<WorkspaceNew>("gm_workspace_new")?,
                *library.get::<LastError>("gm_last_error")?,
            )
        };
        let (layer, workspace) = (null_mut(), null_mut());
        let mut made = CLayer { forward, last_error, layer, workspace, _library: library };
        let (len, layer) = (blocks.len(), &mut made.layer);
        // SAFETY: a buffer of the length that is said, and a place for a handle. The process ends with it.
        let status = unsafe { new(c"i2_s".as_ptr(), N, K, blocks.as_ptr(), len, null(), null(), layer) };
        made.done(status)?;
        // SAFETY: as before.
        let status = unsafe { workspace_new(&mut made.workspace) };
        made.done(status)?;
        Ok(made)
    }

    fn done(&self, status: c_int) -> Result<(), String> {
        match status {
            0 => Ok(()),
            // SAFETY: a text of the library, which stays until the next failure.
            _ => Err(unsafe { CStr::from_ptr((self.last_error)()) }.to_string_lossy().into_owned()),
        }
    }

    /// One token, or none.
    fn call(&self, x: &[f32], y: &mut [f32; N]) -> Result<(), Box<dyn Error>> {
        let m = x.len() / K;
        assert!(m <= 1, "{m} tokens");
        // SAFETY: handles of this library, and buffers of at least the lengths that are said.
        let status = unsafe {
            let (x, y) = (black_box(x.as_ptr()), y.as_mut_ptr());
            (self.forward)(self.layer, x, m * K, m, null(), y, m * N, self.workspace, null())
        };
        Ok(self.done(status)?)
    }
}

/// Nanoseconds of a call, in each turn.
#[derive(Default)]
struct Times {
    rust: Vec<f64>,
    c: Vec<f64>,
    /// Calls of the C interface without tokens.
    empty: Vec<f64>,
}

/// Both layers take turns. An error where their results have other bits.
fn measure(rust: &mut RustLayer, c: &CLayer, turns: usize) -> Result<Times, Box<dyn Error>> {
    let x: [f32; K] = std::array::from_fn(|i| (i % 11) as f32 - 5.0);
    let (mut y_rust, mut y_c) = ([0.0; N], [0.0; N]);
    let mut times = Times::default();
    for turn in 0..=turns {
        let of_rust = each(|| rust.call(&x, &mut y_rust))?;
        let of_c = each(|| c.call(&x, &mut y_c))?;
        let of_empty = each(|| c.call(&[], &mut y_c))?;
        // The first warms up.
        if turn > 0 {
            times.rust.push(of_rust);
            times.c.push(of_c);
            times.empty.push(of_empty);
        }
    }
    if y_rust.map(f32::to_bits) != y_c.map(f32::to_bits) {
        return Err(format!("the C interface gives other bits: {y_c:?}, the Rust library {y_rust:?}").into());
    }
    Ok(times)
}

/// Nanoseconds of a call.
fn each(mut call: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS))
}

/// The value below which a part of the others are.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(((values.len().saturating_sub(1)) as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

fn print(Times { mut rust, mut c, mut empty }: Times) {
    let turns = rust.len();
    // Before each is sorted.
    let mut beyond: Vec<f64> = c.iter().zip(&rust).map(|(c, rust)| c - rust).collect();
    println!("one token of a layer {N}x{K} of i2_s, one thread; medians of {turns} turns of {CALLS} calls");
    println!("Rust library           {:5.0} ns", quantile(&mut rust, 0.5));
    println!("C interface            {:5.0} ns", quantile(&mut c, 0.5));
    let [low, middle, high] = [0.1, 0.5, 0.9].map(|part| quantile(&mut beyond, part));
    println!("C beyond Rust          {middle:5.0} ns (four of five turns: {low:.0} to {high:.0})");
    println!("C call without tokens  {:5.0} ns", quantile(&mut empty, 0.5));
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { turns, library } = Arguments::read()?;
    let blocks = blocks()?;
    let (mut rust, c) = (RustLayer::new(&blocks)?, CLayer::new(&library, &blocks)?);
    print(measure(&mut rust, &c, turns)?);
    Ok(())
}
