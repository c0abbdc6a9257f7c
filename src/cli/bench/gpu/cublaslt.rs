//! cuBLASLt's products of the same shapes, int8 and f16, as a yardstick: dense weights, so that it reads more of them.
//!
//! The library is looked for when it is wanted; where it is absent, or can't do a shape, that is said in a line.

use super::super::super::table::{Side, Table, measured};
use super::super::plan::{Memory, Plan};
use gristmill::Device;
use gristmill::cuda::Gpu;
use gristmill_records::bench::{self as records, Line};
use std::io::{self, Write};

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// int8 by int8, sums and results in i32.
    Int8,
    /// f16 by f16, sums in f32, results in f16.
    F16,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Int8 => "cublaslt.int8",
            Kind::F16 => "cublaslt.f16",
        }
    }

    /// Bytes of a weight.
    fn width(self) -> usize {
        match self {
            Kind::Int8 => 1,
            Kind::F16 => 2,
        }
    }
}

/// A product: its seconds, or why it was not measured.
pub struct Yardstick {
    kind: Kind,
    m: usize,
    n: usize,
    k: usize,
    memory: Memory,
    seconds: Result<f64, String>,
}

impl Yardstick {
    fn gmac_s(&self, seconds: f64) -> f64 {
        self.m as f64 * self.n as f64 * self.k as f64 / seconds / 1e9
    }

    fn gb_s(&self, seconds: f64) -> f64 {
        (self.kind.width() * self.n * self.k) as f64 / seconds / 1e9
    }
}

/// The products of a plan; or why there are none. Neither, where no product was wanted.
pub struct Yardsticks {
    found: Vec<Yardstick>,
    absent: Option<String>,
}

/// Measures the products of a plan, or finds out why not: the library is not there, does not start, or this program was
/// built without it.
pub fn measure(plan: &Plan, gpu: &Gpu, rounds: usize) -> Yardsticks {
    let library = match library::Library::open(gpu) {
        Ok(library) => library,
        Err(why) => return Yardsticks { found: Vec::new(), absent: Some(why) },
    };
    let mut found = Vec::new();
    for &(n, k) in &plan.shapes {
        for &m in &plan.tokens {
            for &memory in &plan.memory {
                for kind in [Kind::Int8, Kind::F16] {
                    let bytes = kind.width() * n * k;
                    let copies = match memory {
                        Memory::Hot => 1,
                        Memory::Cold => super::super::super::gpu_time::copies(gpu, bytes),
                    };
                    let seconds = library.seconds(kind, (m, n, k), copies, rounds);
                    found.push(Yardstick { kind, m, n, k, memory, seconds });
                }
            }
        }
    }
    Yardsticks { found, absent: None }
}

impl Yardsticks {
    /// No product was wanted.
    pub fn none() -> Yardsticks {
        Yardsticks { found: Vec::new(), absent: None }
    }

    /// Seconds of a product, if it was measured.
    pub fn seconds(&self, kind: Kind, shape: (usize, usize, usize), memory: Memory) -> Option<f64> {
        let asked = |product: &&Yardstick| {
            (product.kind, (product.m, product.n, product.k), product.memory) == (kind, shape, memory)
        };
        self.found.iter().find(asked)?.seconds.as_ref().ok().copied()
    }

    /// A line for each product, or one that says why there are none.
    pub fn lines(&self, device: Device) -> Vec<Line> {
        let each = |product: &Yardstick| {
            let seconds = product.seconds.as_ref().ok().copied();
            Line::Yardstick(records::Yardstick {
                kernel: product.kind.name().to_owned(),
                yardstick: true,
                device: Some(device.to_string()),
                m: Some(product.m as u64),
                n: Some(product.n as u64),
                k: Some(product.k as u64),
                memory: Some(product.memory.name().to_owned()),
                seconds,
                gmac_s: seconds.map(|seconds| product.gmac_s(seconds)),
                gb_s: seconds.map(|seconds| product.gb_s(seconds)),
                why_not: product.seconds.as_ref().err().cloned(),
            })
        };
        let absent = |why: &String| {
            Line::Yardstick(records::Yardstick {
                kernel: "cublaslt".to_owned(),
                yardstick: true,
                device: None,
                m: None,
                n: None,
                k: None,
                memory: None,
                seconds: None,
                gmac_s: None,
                gb_s: None,
                why_not: Some(why.clone()),
            })
        };
        self.found.iter().map(each).chain(self.absent.as_ref().map(absent)).collect()
    }

    /// A table of them, or a line that says why there is none.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(why) = &self.absent {
            return writeln!(out, "cuBLASLt is not measured: {why}");
        }
        if self.found.is_empty() {
            return Ok(());
        }
        writeln!(out, "\ncuBLASLt, with dense weights:")?;
        let mut table = Table::new(&[
            ("product", Side::Left),
            ("NxK", Side::Right),
            ("m", Side::Right),
            ("memory", Side::Left),
            ("us", Side::Right),
            ("GB/s", Side::Right),
            ("GMAC/s", Side::Right),
        ]);
        for product in &self.found {
            let Ok(seconds) = product.seconds else { continue };
            table.row([
                product.kind.name().to_owned(),
                format!("{}x{}", product.n, product.k),
                product.m.to_string(),
                product.memory.name().to_owned(),
                measured(seconds * 1e6),
                measured(product.gb_s(seconds)),
                measured(product.gmac_s(seconds)),
            ]);
        }
        table.print(out)?;
        for product in &self.found {
            if let Err(why) = &product.seconds {
                let Yardstick { kind, m, n, k, .. } = product;
                writeln!(out, "not measured: {} m={m} n={n} k={k}: {why}", kind.name())?;
            }
        }
        Ok(())
    }
}

#[cfg(not(feature = "cublaslt"))]
mod library {
    use super::{Gpu, Kind};

    /// Stands for the library in a build without it.
    pub enum Library {}

    impl Library {
        pub fn open(_: &Gpu) -> Result<Library, String> {
            Err("this program was built without it (cargo build --features cublaslt)".to_owned())
        }

        pub fn seconds(&self, _: Kind, _: (usize, usize, usize), _: usize, _: usize) -> Result<f64, String> {
            match *self {}
        }
    }
}

#[cfg(feature = "cublaslt")]
mod library;
#[cfg(feature = "cublaslt")]
mod operands;
