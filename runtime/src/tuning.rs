//! Measured orders: which kernel was fastest on this processor or GPU, for each format and class of shapes.
//!
//! `gristmill tune` measures them, offline, and writes a file; decisions put the kernels in the measured order once
//! availability and shape are settled. The file is text: a part for each processor and GPU, in it a line for each
//! format and class:
//!
//! ```text
//! gristmill tuning 2
//! cpu x86 ssse3 sse4.1 avx2 AuthenticAMD 26 2 1
//! matmul i2_s 16 6f1c2a7d01234567:18.7 00c2a7d012345676:31.2
//! gpu NVIDIA H200 9.0 driver 13.0
//! matmul i2_s 16 13c2a7d0f2345671:2.9
//! ```
//!
//! A kernel's id is a hash of its text, its compiler and its flags, so a line outlives neither. What can't be used (another
//! processor, a kernel that is not in this build, a line that can't be read) is set aside with its reason and changes
//! nothing else.

use crate::device::CpuProfile;
use crate::error::Error;
use crate::gpu::GpuProfile;
use crate::registry::{Entry, KernelId, Registry};
use crate::request::Shape;
use gristmill_spec::vocab::Op;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

/// The first line of a file.
const HEAD: &str = "gristmill tuning 2";
/// The same of files whose classes of shapes were other ones.
const OLD_HEAD: &str = "gristmill tuning 1";

/// Largest number of tokens in each class of tokens but the last: decode, some sequences at once, and prompts up to what the tiles of
/// GPUs are for.
const TOKENS: [usize; 7] = [1, 4, 16, 64, 256, 512, 1024];
/// Tokens of which more are many.
const MANY: usize = 64;
/// Largest number of weights in each class of weights but the last: about what two bits a weight need for half
/// of an L2 cache, twice it, and ten times it.
const WEIGHTS: [usize; 3] = [1 << 20, 1 << 22, 1 << 24];

/// A class of shapes, within which one kernel is taken to be the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeClass(u8);

impl ShapeClass {
    /// How many there are.
    pub const COUNT: usize = (TOKENS.len() + 1) * (WEIGHTS.len() + 1);

    /// Every class.
    pub fn all() -> impl Iterator<Item = ShapeClass> {
        // COUNT is a small constant.
        (0..Self::COUNT as u8).map(ShapeClass)
    }

    /// The class of a shape.
    #[inline]
    pub fn of(shape: Shape) -> ShapeClass {
        let weights = shape.n.saturating_mul(shape.k);
        let weights = WEIGHTS.iter().filter(|most| weights > **most).count();
        let tokens = TOKENS.iter().filter(|most| shape.m > **most).count();
        // Below COUNT.
        ShapeClass((weights * (TOKENS.len() + 1) + tokens) as u8)
    }

    /// Its number, below [`ShapeClass::COUNT`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Every class whose weights are of the same size as this one's.
    pub(crate) fn siblings(self) -> impl DoubleEndedIterator<Item = ShapeClass> {
        let tokens = TOKENS.len() as u8 + 1;
        let first = self.0 / tokens * tokens;
        (first..first + tokens).map(ShapeClass)
    }

    /// The classes with fewer tokens, but many, whose weights are of the same size; those with the most first. What is fastest for
    /// them on a processor is fastest for this one's: all are more than a tile of any kernel.
    pub(crate) fn fewer_but_many(self) -> impl Iterator<Item = ShapeClass> {
        self.siblings().rev().filter(move |class| class.0 < self.0 && class.tokens().0 > MANY)
    }

    /// The numbers of tokens in it, from and to.
    pub fn tokens(self) -> (usize, usize) {
        let at = self.index() % (TOKENS.len() + 1);
        let from = at.checked_sub(1).and_then(|before| TOKENS.get(before)).map_or(0, |most| most + 1);
        (from, TOKENS.get(at).copied().unwrap_or(usize::MAX))
    }

    /// The numbers of weights in it, from and to.
    pub fn weights(self) -> (usize, usize) {
        let at = self.index() / (TOKENS.len() + 1);
        let from = at.checked_sub(1).and_then(|before| WEIGHTS.get(before)).map_or(0, |most| most + 1);
        (from, WEIGHTS.get(at).copied().unwrap_or(usize::MAX))
    }

    /// Something of the class to measure: with whole blocks of every known format, and not larger than need be.
    pub fn example(self) -> Shape {
        const MATRICES: [(usize, usize); WEIGHTS.len() + 1] =
            [(512, 1024), (640, 2560), (2560, 2560), (6912, 2560)];
        let (n, k) = MATRICES[self.index() / (TOKENS.len() + 1)];
        let (from, to) = self.tokens();
        Shape { m: if to == usize::MAX { 2 * (from - 1) } else { to }, n, k }
    }
}

/// Kernels of one op and format in the order that was measured for a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Where: [`cpu`] or [`gpu`].
    pub on: String,
    /// What they compute.
    pub op: Op,
    /// The format.
    pub format: String,
    /// The class of shapes.
    pub class: ShapeClass,
    /// Ids and microseconds, the fastest first.
    pub order: Vec<(KernelId, f64)>,
}

/// A part of a tuning file that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Line, from 1; 0 for the whole file.
    pub line: usize,
    /// Why.
    pub why: String,
}

impl std::fmt::Display for SetAside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => f.write_str(&self.why),
            line => write!(f, "line {line}: {}", self.why),
        }
    }
}

/// What a tuning file says, as far as it can be used here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    measured: Vec<Measured>,
    set_aside: Vec<SetAside>,
}

impl Tuning {
    /// Bytes of the largest file that [`read`](Tuning::read) takes. All formats of this crate, every class, on one machine are
    /// some 50 kB.
    pub const LARGEST: u64 = 16 << 20;

    /// No tuning: the order that kernels are listed in.
    pub const fn none() -> Tuning {
        Tuning { measured: Vec::new(), set_aside: Vec::new() }
    }

    /// From measurements of this process.
    pub fn of(measured: Vec<Measured>) -> Tuning {
        Tuning { measured, set_aside: Vec::new() }
    }

    /// Reads a file; one that can't be read or is larger than [`LARGEST`](Tuning::LARGEST) is set aside whole.
    pub fn read(path: &Path, registry: &Registry) -> Tuning {
        match text_of(path) {
            Ok(text) => Tuning::parse(&text, registry, cpu()),
            Err(why) => Tuning::aside(0, format!("`{}` {why}", path.display())),
        }
    }

    /// What the file that `GRISTMILL_TUNING` names says of `registry`, read now: a program that makes many layers reads it once and
    /// gives it to each of them ([`LinearOptions::tuning`](crate::LinearOptions::tuning)). What of it can't be used is in
    /// [`set_aside`](Tuning::set_aside).
    ///
    /// # Errors
    /// [`Error::Environment`] where it names a file that can't be read or is larger than [`LARGEST`](Tuning::LARGEST): who
    /// asked for measured orders is told that there are none.
    pub fn from_env(registry: &Registry) -> Result<Tuning, Error> {
        let Some(path) = std::env::var_os("GRISTMILL_TUNING").filter(|path| !path.is_empty()) else {
            return Ok(Tuning::none());
        };
        let path = Path::new(&path);
        let text = text_of(path).map_err(|why| Error::Environment {
            variable: "GRISTMILL_TUNING",
            value: path.display().to_string(),
            expected: format!(
                "the file {why}\n  help: `gristmill tune` writes one; unset the variable to go without"
            ),
        })?;
        Ok(Tuning::parse(&text, registry, cpu()))
    }

    fn aside(line: usize, why: String) -> Tuning {
        Tuning { measured: Vec::new(), set_aside: vec![SetAside { line, why }] }
    }

    /// Reads the text of a file for the processor that is called `cpu` (see [`cpu`]). What was measured on another one is set
    /// aside; parts of GPUs are kept, whichever GPU there is, and each is used for requests on its own.
    pub fn parse(text: &str, registry: &Registry, cpu: &str) -> Tuning {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end()));
        match lines.next() {
            Some((_, HEAD)) => {}
            Some((_, OLD_HEAD)) => {
                return Tuning::aside(
                    1,
                    format!("it begins with `{OLD_HEAD}`, whose classes of shapes are others: tune again"),
                );
            }
            Some(_) | None => return Tuning::aside(1, format!("it does not begin with `{HEAD}`")),
        }
        let mut tuning = Tuning::none();
        let mut by_id: Vec<&Entry> = registry.entries.iter().collect();
        by_id.sort_unstable_by_key(|entry| entry.id.0);
        // `None` before the first part; in a part that is set aside its lines are skipped.
        let mut part: Option<Option<&str>> = None;
        for (line, text) in lines.filter(|(_, line)| !line.is_empty()) {
            let mut aside = |why| tuning.set_aside.push(SetAside { line, why });
            if is_machine(text) {
                let here = text.starts_with(GPU) || text == cpu;
                if !here {
                    let found = text.trim_start_matches(CPU);
                    let this = cpu.trim_start_matches(CPU);
                    aside(format!("measured on `{found}`, this processor is `{this}`"));
                }
                part = Some(here.then_some(text));
                continue;
            }
            match part {
                None => return Tuning::aside(line, "no line `cpu NAME` or `gpu NAME` before it".to_owned()),
                Some(None) => {}
                Some(Some(on)) => match parse_line(text, on, registry, &by_id, &mut aside) {
                    Ok(measured) if measured.order.is_empty() => {}
                    Ok(measured) => tuning.measured.push(measured),
                    Err(why) => aside(why),
                },
            }
        }
        if part.is_none() {
            return Tuning::aside(2, "no line `cpu NAME` or `gpu NAME`".to_owned());
        }
        tuning
    }

    /// What can be used.
    pub fn measured(&self) -> &[Measured] {
        &self.measured
    }

    /// What can't, and why.
    pub fn set_aside(&self) -> &[SetAside] {
        &self.set_aside
    }

    /// The text of a file. What `existing`, the text of a file that there was, says of other processors, GPUs, formats and
    /// classes stays as it is.
    pub fn text(&self, existing: &str) -> String {
        let mut text = format!("{HEAD}\n");
        let old = existing.strip_prefix(HEAD).unwrap_or_default();
        // By what a line means: `00` is the class `0`.
        let measured_now = |machine: &str, line: &str| {
            let mut words = line.split_ascii_whitespace();
            let (op, format) = (words.next(), words.next());
            let class = words.next().and_then(|word| word.parse().ok()).map(ShapeClass);
            self.measured.iter().any(|m| {
                m.on == machine
                    && op == Some(m.op.name())
                    && format == Some(m.format.as_str())
                    && class == Some(m.class)
            })
        };
        // A machine is named when its first line comes: of some, everything was measured again.
        let (mut machine, mut named) = ("", "");
        for line in old.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            if is_machine(line) {
                machine = line;
            } else if !machine.is_empty() && !measured_now(machine, line) {
                if named != machine {
                    text.extend([machine, "\n"]);
                    named = machine;
                }
                text.extend([line, "\n"]);
            }
        }
        for part in self.measured.chunk_by(|a, b| a.on == b.on) {
            text.extend(part.first().map(|first| format!("{}\n", first.on)));
            for Measured { op, format, class, order, .. } in part {
                // Writing to a string can't fail.
                let _ = write!(text, "{} {format} {}", op.name(), class.index());
                for (id, us) in order {
                    // Times are more than zero, also where three digits say less.
                    let _ = write!(text, " {id}:{:.3}", us.max(0.001));
                }
                text.push('\n');
            }
        }
        text
    }

    /// Why nothing of it is used on this GPU, although there is something of others.
    pub fn not_for(&self, profile: &GpuProfile) -> Option<String> {
        let this = gpu(profile);
        let on_gpus = || self.measured.iter().filter(|measured| measured.on.starts_with(GPU));
        let other = on_gpus().next().filter(|_| on_gpus().all(|measured| measured.on != this))?;
        let name = |on: &str| on.trim_start_matches(GPU).to_owned();
        Some(format!("measured on `{}`, this GPU is `{}`", name(&other.on), name(&this)))
    }

    /// The measured order of a class on a processor or GPU; empty if there is none.
    pub(crate) fn order(&self, on: &str, op: Op, format: &str, class: ShapeClass) -> &[(KernelId, f64)] {
        let of_class = |m: &&Measured| m.op == op && m.format == format && m.class == class && m.on == on;
        self.measured.iter().find(of_class).map_or(&[], |measured| &measured.order)
    }
}

/// The text of a file, or why there is none.
fn text_of(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(Tuning::LARGEST + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(format!("can't be read: {error}")),
        Ok(read) if read as u64 > Tuning::LARGEST => {
            Err(format!("is larger than {} bytes: it is no tuning", Tuning::LARGEST))
        }
        Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// What the line of a processor begins with.
const CPU: &str = "cpu ";
/// What the line of a GPU begins with.
const GPU: &str = "gpu ";

/// Whether a line begins the part of a processor or GPU.
fn is_machine(line: &str) -> bool {
    line.starts_with(CPU) || line.starts_with(GPU)
}

/// One line: op, format, class, kernels. `by_id` are the registry's, sorted so; what is not among them is left out and told.
fn parse_line(
    text: &str,
    on: &str,
    registry: &Registry,
    by_id: &[&Entry],
    aside: &mut impl FnMut(String),
) -> Result<Measured, String> {
    let mut words = text.split_ascii_whitespace();
    let op = words.next().and_then(Op::from_name).ok_or("it begins with no op")?;
    let format = words.next().ok_or("it names no format")?;
    if !registry.served(op).any(|known| known == format) {
        return Err(format!("format `{format}` is not in this build"));
    }
    let class = words.next().and_then(|word| word.parse::<u8>().ok());
    let class =
        class.filter(|class| usize::from(*class) < ShapeClass::COUNT).ok_or("it names no class of shapes")?;
    let mut order: Vec<(KernelId, f64)> = Vec::new();
    for word in words {
        let parsed = word.split_once(':').and_then(|(id, us)| {
            let id = (id.len() == 16).then(|| u64::from_str_radix(id, 16).ok())??;
            let us = us.parse::<f64>().ok().filter(|us| us.is_finite() && *us > 0.0)?;
            Some((KernelId(id), us))
        });
        let (id, us) = parsed.ok_or_else(|| format!("`{word}` is no kernel id and time"))?;
        let same_id = |known: &&(KernelId, f64)| known.0 == id;
        if order.iter().find(same_id).is_some() {
            return Err(format!("kernel {id} stands in it twice"));
        }
        let of_line = |entry: &Entry| entry.op == op && registry.served(op).nth(entry.format) == Some(format);
        let first = by_id.partition_point(|entry| entry.id.0 < id.0);
        if by_id[first..].iter().take_while(|entry| entry.id == id).copied().any(of_line) {
            order.push((id, us));
        } else {
            aside(format!("kernel {id} of `{format}` is not in this build; tune again"));
        }
    }
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(Measured { on: on.to_owned(), op, format: format.to_owned(), class: ShapeClass(class), order })
}

/// What a GPU is called in tuning files: its name, compute capability, and what its driver supports.
pub fn gpu(profile: &GpuProfile) -> String {
    let GpuProfile { name, cc: (major, minor), driver, .. } = profile;
    // One line, whatever the driver says.
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{GPU}{name} {major}.{minor} driver {driver}")
}

/// What this processor is called in tuning files: architecture, features, and what the system says of its make.
pub fn cpu() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(name_cpu)
}

fn name_cpu() -> String {
    let profile = CpuProfile::detect();
    let mut name = format!("{CPU}{}", profile.arch.name());
    for feature in profile.features.iter() {
        let _ = write!(name, " {}", feature.name());
    }
    const KEYS: &[&str] =
        &["vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant"];
    // Elsewhere than on Linux the features have to do.
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // One processor of several: a blank line ends it.
    let first = info.split("\n\n").next().unwrap_or_default();
    for line in first.lines() {
        if let Some((key, value)) = line.split_once(':')
            && KEYS.contains(&key.trim())
        {
            let _ = write!(name, " {}", value.trim());
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_every_shape_and_their_examples_are_in_them() {
        for class in ShapeClass::all() {
            assert_eq!(ShapeClass::of(class.example()), class);
            let (from, to) = class.tokens();
            let Shape { n, k, .. } = class.example();
            for m in [from.max(1), to] {
                assert_eq!(ShapeClass::of(Shape { m, n, k }), class, "m = {m}");
            }
        }
        assert_eq!(
            ShapeClass::of(Shape::new(usize::MAX, usize::MAX, usize::MAX)).index(),
            ShapeClass::COUNT - 1
        );
        assert_eq!(ShapeClass::of(Shape::new(0, 0, 0)).index(), 0);
    }

    #[test]
    fn this_processor_has_a_name_on_one_line() {
        assert!(cpu().starts_with(&format!("cpu {}", CpuProfile::detect().arch.name())));
        assert!(!cpu().contains('\n'));
    }

    #[test]
    fn parts_of_other_machines_stay() {
        let measured = |on: &str, us| Measured {
            on: on.to_owned(),
            op: Op::Matmul,
            format: "i2_s".to_owned(),
            class: ShapeClass(3),
            order: vec![(KernelId(7), us)],
        };
        let first = Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 2.0)]).text("");
        assert_eq!(
            first,
            "gristmill tuning 2\ngpu A 9.0 driver 13.0\nmatmul i2_s 3 0000000000000007:2.000\n"
        );
        let second = Tuning::of(vec![measured("cpu B", 5.0)]).text(&first);
        assert_eq!(second, format!("{first}cpu B\nmatmul i2_s 3 0000000000000007:5.000\n"));
        let third = Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 1.0)]).text(&second);
        assert_eq!(
            third,
            "gristmill tuning 2\ncpu B\nmatmul i2_s 3 0000000000000007:5.000\n\
             gpu A 9.0 driver 13.0\nmatmul i2_s 3 0000000000000007:1.000\n"
        );
        // Other classes of the same GPU stay too.
        let other = third.replace("i2_s 3", "i2_s 4");
        let fourth = Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 8.0)]).text(&other);
        assert_eq!(fourth, format!("{other}gpu A 9.0 driver 13.0\nmatmul i2_s 3 0000000000000007:8.000\n"));
        // A time that three digits can't show is written as the least that is read again.
        assert!(Tuning::of(vec![measured("cpu B", 1e-9)]).text("").ends_with("0000000000000007:0.001\n"));
        // A line that is written in another way is still of its class.
        let spaced = "gristmill tuning 2\ngpu A 9.0 driver 13.0\nmatmul  i2_s 003 0000000000000007:1.000\n";
        assert_eq!(Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 2.0)]).text(spaced), first);
        // What is no tuning file is not kept.
        assert_eq!(Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 2.0)]).text("nonsense\ncpu C\n"), first);
    }

    #[test]
    fn a_gpu_takes_what_was_measured_on_it() {
        let gpu_a = GpuProfile::pretend((9, 0), crate::gpu::CudaVersion { major: 13, minor: 0 });
        let gpu_b = GpuProfile { name: "another".to_owned(), ..gpu_a.clone() };
        let order = vec![(KernelId(7), 2.0)];
        let (op, format, class) = (Op::Matmul, "i2_s".to_owned(), ShapeClass(3));
        let tuning = Tuning::of(vec![Measured { on: gpu(&gpu_a), op, format, class, order: order.clone() }]);
        assert_eq!(tuning.order(&gpu(&gpu_a), Op::Matmul, "i2_s", class), order);
        assert!(tuning.order(&gpu(&gpu_b), Op::Matmul, "i2_s", class).is_empty());
        assert!(tuning.order(cpu(), Op::Matmul, "i2_s", class).is_empty());
        assert_eq!(tuning.not_for(&gpu_a), None);
        assert!(tuning.not_for(&gpu_b).is_some_and(|why| why.contains("this GPU is `another 9.0")));
        assert_eq!(Tuning::none().not_for(&gpu_b), None);
    }
}
