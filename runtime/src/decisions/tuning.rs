//! Measured orders: which kernel was fastest on this processor or GPU, for each format and class of shapes.
//!
//! `gristmill tune` measures them, offline, and writes a file; decisions put the kernels in the measured order once
//! availability and shape are settled. The file is text: a part for each processor and GPU, in it a line for each op,
//! format (of `quantize` with its quantizer), class and number of threads:
//!
//! ```text
//! gristmill tuning 3
//! cpu x86 ssse3 sse4.1 avx2 AuthenticAMD 26 2 1
//! matmul i2_s 16 1 6f1c2a7d01234567:18.7 00c2a7d012345676:31.2
//! matmul i2_s 16 2 6f1c2a7d01234567:10.1 00c2a7d012345676:17.0
//! quantize q4_k/search 16 1 0aac2a7d01234567:9120.3
//! gpu NVIDIA H200 9.0 driver 13.0
//! matmul i2_s 16 1 13c2a7d0f2345671:2.9
//! ```
//!
//! Files of version 2 have no numbers of threads and are read as measured on one. On a GPU the number is 1 and means nothing.
//!
//! A kernel's id is a hash of its text, its compiler and its flags, so a line outlives neither. What can't be used (another
//! processor, a kernel that is not in this build, a line that can't be read) is set aside with its reason and changes
//! nothing else.

mod class;
mod machine;

pub use class::ShapeClass;
pub use machine::{cpu, cpu_of, gpu, gpu_at};

use crate::error::Error;
use crate::gpu::GpuProfile;
use crate::registry::{Entry, KernelId, Registry};
use crate::threads::MAX_THREADS;
use gristmill_spec::vocab::Op;
use machine::{CPU, GPU};
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The first line of a file.
const HEAD: &str = "gristmill tuning 3";
/// The same of files whose lines have no number of threads: all is of one.
const ONE_THREAD_HEAD: &str = "gristmill tuning 2";
/// The same of files whose classes of shapes were other ones.
const OLD_HEAD: &str = "gristmill tuning 1";
/// What the first line of every version begins with.
const NAME: &str = "gristmill tuning ";

/// Least microseconds that a line may say: the three digits behind the point that [`Tuning::text`] writes show no less. No kernel is
/// done in less than a nanosecond.
const LEAST_US: f64 = 0.001;

/// Fewer threads than there are have to be that many times as fast to be preferred: below it is noise.
const FEWER_PAYS: f64 = 1.05;

/// Kernels of one op and format in the order that was measured for a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Where: [`cpu`] or [`gpu`].
    pub on: String,
    /// What they compute.
    pub op: Op,
    /// The format.
    pub format: String,
    /// The quantizer, where the op is for one of several.
    pub quantizer: Option<String>,
    /// The class of shapes.
    pub class: ShapeClass,
    /// On how many threads, the calling one included; 1 on a GPU.
    pub threads: usize,
    /// Ids and microseconds, the fastest first.
    pub order: Vec<(KernelId, f64)>,
}

impl Measured {
    /// Whether both are of the same work on the same machine, however long it took.
    fn same_work(&self, other: &Measured) -> bool {
        let key = |m: &Measured| (m.op, m.class, m.threads);
        key(self) == key(other)
            && self.on == other.on
            && self.format == other.format
            && self.quantizer == other.quantizer
    }

    /// The format, and behind a stroke the quantizer.
    fn served(&self) -> String {
        match &self.quantizer {
            Some(quantizer) => format!("{}/{quantizer}", self.format),
            None => self.format.clone(),
        }
    }
}

/// Whose measured order is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The processor or GPU.
    pub(crate) on: &'a str,
    pub(crate) op: Op,
    pub(crate) format: &'a str,
    /// The quantizer, where the op is for one of several.
    pub(crate) quantizer: Option<&'a str>,
    /// Threads that there will be.
    pub(crate) threads: usize,
}

/// What was measured of a class, as it holds for a number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForThreads<'t> {
    pub(crate) measured: &'t Measured,
    /// The number of threads that is faster than all that there are, if one is.
    pub(crate) fewer: Option<usize>,
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
    /// some 50 kB for each number of threads.
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
    /// [`Error::Environment`] where it names a file that can't be read, is larger than [`LARGEST`](Tuning::LARGEST) or is no tuning
    /// file of any version, as an empty one: who asked for measured orders is told that there are none.
    pub fn from_env(registry: &Registry) -> Result<Tuning, Error> {
        let Some(path) = std::env::var_os("GRISTMILL_TUNING").filter(|path| !path.is_empty()) else {
            return Ok(Tuning::none());
        };
        let path = Path::new(&path);
        let named = |text: String| match text.starts_with(NAME) {
            true => Ok(text),
            false => Err(format!("is no tuning file: it does not begin with `{HEAD}`")),
        };
        let text = text_of(path).and_then(named).map_err(|why| Error::Environment {
            variable: "GRISTMILL_TUNING",
            value: path.display().to_string(),
            why: format!(
                "the file {why}\n  help: `gristmill tune` writes one; unset the variable to go without"
            ),
        })?;
        Ok(Tuning::parse(&text, registry, cpu()))
    }

    fn aside(line: usize, why: String) -> Tuning {
        Tuning { measured: Vec::new(), set_aside: vec![SetAside { line, why }] }
    }

    /// Reads the text of a file for the processor that is called `cpu` (see [`cpu`]). What was measured on another one is set
    /// aside; parts of GPUs are kept, whichever GPU there is, and each is used for requests on its own. So is a last line that
    /// does not end: the rest of a file that was cut off, whose last number may be the beginning of another one.
    pub fn parse(text: &str, registry: &Registry, cpu: &str) -> Tuning {
        let cut_off = (!text.ends_with('\n')).then(|| text.lines().count());
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end()));
        let names_threads = match lines.next() {
            Some((_, HEAD)) => true,
            Some((_, ONE_THREAD_HEAD)) => false,
            Some((_, OLD_HEAD)) => {
                return Tuning::aside(
                    1,
                    format!("it begins with `{OLD_HEAD}`, whose classes of shapes are others: tune again"),
                );
            }
            Some(_) | None => return Tuning::aside(1, format!("it does not begin with `{HEAD}`")),
        };
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
                Some(Some(_)) if cut_off == Some(line) => {
                    aside("it has no line end: the file was cut off here; tune again".to_owned());
                }
                Some(Some(on)) => match parse_line(text, on, names_threads, registry, &by_id, &mut aside) {
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

    /// The text of a file. What `existing`, the text of a file that there was, says of other processors, GPUs, formats,
    /// classes and numbers of threads stays as it is, but for a last line that was cut off; lines of version 2 become those of one
    /// thread.
    pub fn text(&self, existing: &str) -> String {
        let mut text = format!("{HEAD}\n");
        let (old, names_threads) = match (existing.strip_prefix(HEAD), existing.strip_prefix(ONE_THREAD_HEAD))
        {
            (Some(old), _) => (old, true),
            (None, Some(old)) => (old, false),
            (None, None) => ("", true),
        };
        // A last line that was cut off would be whole with the line end that it gets here.
        let old = old.rfind('\n').map_or("", |end| &old[..end]);
        // By what a line means: `00` is the class `0`.
        let measured_now = |machine: &str, line: &str| {
            let mut words = line.split_ascii_whitespace();
            let (op, served) = (words.next(), words.next());
            let class = words.next().and_then(|word| word.parse().ok()).map(ShapeClass);
            let threads = match names_threads {
                true => words.next().and_then(|word| word.parse().ok()),
                false => Some(1),
            };
            self.measured.iter().any(|m| {
                m.on == machine
                    && op == Some(m.op.name())
                    && served == Some(m.served().as_str())
                    && class == Some(m.class)
                    && threads == Some(m.threads)
            })
        };
        let as_now = |line: &str| match names_threads {
            true => line.to_owned(),
            false => with_one_thread(line),
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
                text.extend([as_now(line).as_str(), "\n"]);
            }
        }
        for part in self.measured.chunk_by(|a, b| a.on == b.on) {
            text.extend(part.first().map(|first| format!("{}\n", first.on)));
            for measured in part {
                let Measured { op, class, threads, order, .. } = measured;
                // Writing to a string can't fail.
                let _ = write!(text, "{} {} {} {threads}", op.name(), measured.served(), class.index());
                for (id, us) in order {
                    // What is read again, also where three digits say 0.
                    let _ = write!(text, " {id}:{:.3}", us.max(LEAST_US));
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

    /// What was measured of a class, for the number of threads that there are: that of the most threads not above it, or, where
    /// fewer were faster, of the fastest. Where only more threads were measured, that of the fewest of them.
    pub(crate) fn of_class(&self, asked: Asked<'_>, class: ShapeClass) -> Option<ForThreads<'_>> {
        let Asked { on, op, format, quantizer, threads } = asked;
        let of_class = |m: &&Measured| {
            (m.op, m.class) == (op, class)
                && m.on == on
                && m.format == format
                && m.quantizer.as_deref() == quantizer
                && !m.order.is_empty()
        };
        let all = || self.measured.iter().filter(of_class);
        let within = || all().filter(|m| m.threads <= threads);
        let time = |m: &Measured| m.order.first().map_or(f64::INFINITY, |(_, us)| *us);
        let Some(widest) = within().max_by_key(|m| m.threads) else {
            let measured = all().min_by_key(|m| m.threads)?;
            return Some(ForThreads { measured, fewer: None });
        };
        let fastest = within().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(widest);
        match fastest.threads < widest.threads && time(fastest) * FEWER_PAYS < time(widest) {
            true => Some(ForThreads { measured: fastest, fewer: Some(fastest.threads) }),
            false => Some(ForThreads { measured: widest, fewer: None }),
        }
    }

    /// Puts what was measured in the place of what there was of the same work.
    pub fn merge(&mut self, measured: Vec<Measured>) {
        for new in measured {
            match self.measured.iter_mut().find(|old| old.same_work(&new)) {
                Some(old) => *old = new,
                None => self.measured.push(new),
            }
        }
    }
}

/// A line of version 2 as one of today.
fn with_one_thread(line: &str) -> String {
    let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
    // Behind op, format and class; what is no such line stays what it is.
    if words.len() >= 3 {
        words.insert(3, "1");
    }
    words.join(" ")
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

/// Whether a line begins the part of a processor or GPU.
fn is_machine(line: &str) -> bool {
    line.starts_with(CPU) || line.starts_with(GPU)
}

/// One line: op, format, class, in files of today threads, kernels. `by_id` are the registry's, sorted so; what is not among them is
/// left out and told.
fn parse_line(
    text: &str,
    on: &str,
    names_threads: bool,
    registry: &Registry,
    by_id: &[&Entry],
    aside: &mut impl FnMut(String),
) -> Result<Measured, String> {
    let mut words = text.split_ascii_whitespace();
    let op = words.next().and_then(Op::from_name).ok_or("it begins with no op")?;
    let served = words.next().ok_or("it names no format")?;
    let (format, quantizer) = match served.split_once('/') {
        Some((format, quantizer)) => (format, Some(quantizer)),
        None => (served, None),
    };
    if !registry.served(op).any(|known| known == format) {
        return Err(format!("format `{format}` is not in this build"));
    }
    // Of what is not for one quantizer of several, no line names one.
    let of_format =
        registry.formats.iter().find(|known| known.name == format).filter(|_| op.info().by_quantizer);
    let place = match (quantizer, of_format) {
        (None, _) => None,
        (Some(name), Some(format)) => {
            let known = format.quantizers.iter().position(|known| *known == name);
            Some(
                known
                    .ok_or_else(|| format!("quantizer `{name}` of `{}` is not in this build", format.name))?,
            )
        }
        (Some(_), None) => {
            return Err(format!("`{served}` names a quantizer, and the op {} has none", op.name()));
        }
    };
    let class = words.next().and_then(|word| word.parse::<u8>().ok());
    let class =
        class.filter(|class| usize::from(*class) < ShapeClass::COUNT).ok_or("it names no class of shapes")?;
    let threads = match names_threads {
        true => words.next().and_then(|word| word.parse::<usize>().ok()),
        false => Some(1),
    };
    let threads = threads
        .filter(|threads| (1..=MAX_THREADS).contains(threads))
        .ok_or("it names no number of threads")?;
    let mut order: Vec<(KernelId, f64)> = Vec::new();
    for word in words {
        let parsed = word.split_once(':').and_then(|(id, us)| {
            let id = (id.len() == 16).then(|| u64::from_str_radix(id, 16).ok())??;
            let us = us.parse::<f64>().ok().filter(|us| us.is_finite() && *us >= LEAST_US)?;
            Some((KernelId(id), us))
        });
        let (id, us) = parsed.ok_or_else(|| format!("`{word}` is no kernel id and time"))?;
        let same_id = |known: &&(KernelId, f64)| known.0 == id;
        if order.iter().find(same_id).is_some() {
            return Err(format!("kernel {id} stands in it twice"));
        }
        let of_line = |entry: &Entry| {
            entry.op == op
                && registry.served(op).nth(entry.format) == Some(format)
                && place.is_none_or(|place| entry.quantizer == place)
        };
        let first = by_id.partition_point(|entry| entry.id.0 < id.0);
        if by_id[first..].iter().take_while(|entry| entry.id == id).copied().any(of_line) {
            order.push((id, us));
        } else {
            aside(format!("kernel {id} of `{format}` is not in this build; tune again"));
        }
    }
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(Measured {
        on: on.to_owned(),
        op,
        format: format.to_owned(),
        quantizer: quantizer.map(str::to_owned),
        class: ShapeClass(class),
        threads,
        order,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_other_machines_stay() {
        let measured = |on: &str, us| Measured {
            on: on.to_owned(),
            op: Op::Matmul,
            format: "i2_s".to_owned(),
            quantizer: None,
            class: ShapeClass(3),
            threads: 1,
            order: vec![(KernelId(7), us)],
        };
        let first = Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 2.0)]).text("");
        assert_eq!(
            first,
            "gristmill tuning 3\ngpu A 9.0 driver 13.0\nmatmul i2_s 3 1 0000000000000007:2.000\n"
        );
        let second = Tuning::of(vec![measured("cpu B", 5.0)]).text(&first);
        assert_eq!(second, format!("{first}cpu B\nmatmul i2_s 3 1 0000000000000007:5.000\n"));
        let third = Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 1.0)]).text(&second);
        assert_eq!(
            third,
            "gristmill tuning 3\ncpu B\nmatmul i2_s 3 1 0000000000000007:5.000\n\
             gpu A 9.0 driver 13.0\nmatmul i2_s 3 1 0000000000000007:1.000\n"
        );
        // Other classes of the same GPU stay too.
        let other = third.replace("i2_s 3", "i2_s 4");
        let fourth = Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 8.0)]).text(&other);
        assert_eq!(fourth, format!("{other}gpu A 9.0 driver 13.0\nmatmul i2_s 3 1 0000000000000007:8.000\n"));
        // A time that three digits can't show is written as the least that is read again.
        assert!(Tuning::of(vec![measured("cpu B", 1e-9)]).text("").ends_with("0000000000000007:0.001\n"));
        // A line that is written in another way is still of its class.
        let spaced =
            "gristmill tuning 3\ngpu A 9.0 driver 13.0\nmatmul  i2_s 003 01 0000000000000007:1.000\n";
        assert_eq!(Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 2.0)]).text(spaced), first);
        // What was cut off is not kept either: with a line end it would pass for whole.
        let cut = format!("{other}matmul i2_s 9 1 0000000000000007:1");
        assert_eq!(Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 8.0)]).text(&cut), fourth);
        // What is no tuning file is not kept.
        assert_eq!(Tuning::of(vec![measured("gpu A 9.0 driver 13.0", 2.0)]).text("nonsense\ncpu C\n"), first);
    }

    #[test]
    fn files_without_threads_are_of_one_and_become_files_of_today() {
        let old = "gristmill tuning 2\ncpu B\nmatmul i2_s 3 0000000000000007:1.000\nmatmul i2_s 4 0000000000000007:1.000\nodd\n";
        let on = |threads| Measured {
            on: "cpu B".to_owned(),
            op: Op::Matmul,
            format: "i2_s".to_owned(),
            quantizer: None,
            class: ShapeClass(3),
            threads,
            order: vec![(KernelId(7), 2.0)],
        };
        // What was measured on one thread is measured anew; on two it was never measured.
        let kept = "gristmill tuning 3\ncpu B\n";
        let four = "matmul i2_s 4 1 0000000000000007:1.000\nodd\ncpu B\n";
        assert_eq!(
            Tuning::of(vec![on(1)]).text(old),
            format!("{kept}{four}matmul i2_s 3 1 0000000000000007:2.000\n")
        );
        assert_eq!(
            Tuning::of(vec![on(2)]).text(old),
            format!(
                "{kept}matmul i2_s 3 1 0000000000000007:1.000\n{four}matmul i2_s 3 2 0000000000000007:2.000\n"
            )
        );
    }

    #[test]
    fn the_number_of_threads_is_the_nearest_or_the_fastest_below() {
        let of = |times: &[(usize, f64)]| {
            let measured = |(threads, us): &(usize, f64)| Measured {
                on: "cpu B".to_owned(),
                op: Op::Matmul,
                format: "i2_s".to_owned(),
                quantizer: None,
                class: ShapeClass(0),
                threads: *threads,
                order: vec![(KernelId(7), *us)],
            };
            Tuning::of(times.iter().map(measured).collect())
        };
        let found = |tuning: &Tuning, threads| {
            let asked = Asked { on: "cpu B", op: Op::Matmul, format: "i2_s", quantizer: None, threads };
            tuning.of_class(asked, ShapeClass(0)).map(|found| (found.measured.threads, found.fewer))
        };
        let scales = of(&[(1, 100.0), (2, 60.0), (4, 40.0)]);
        assert_eq!([1, 2, 3, 4, 64].map(|n| found(&scales, n)), [1, 2, 2, 4, 4].map(|n| Some((n, None))));
        // Four are slower than two by more than noise, eight not.
        let falls = of(&[(1, 100.0), (2, 60.0), (4, 70.0), (8, 61.0)]);
        assert_eq!(found(&falls, 4), Some((2, Some(2))));
        assert_eq!(found(&falls, 8), Some((8, None)));
        // Measured on more only: better than nothing.
        assert_eq!(found(&of(&[(8, 1.0), (4, 2.0)]), 1), Some((4, None)));
        assert_eq!(found(&of(&[]), 1), None);
    }

    #[test]
    fn a_gpu_takes_what_was_measured_on_it() {
        let gpu_a = GpuProfile::pretend((9, 0), crate::gpu::CudaVersion { major: 13, minor: 0 });
        let gpu_b = GpuProfile { name: "another".to_owned(), ..gpu_a.clone() };
        let measured = Measured {
            on: gpu(&gpu_a),
            op: Op::Matmul,
            format: "i2_s".to_owned(),
            quantizer: None,
            class: ShapeClass(3),
            threads: 1,
            order: vec![(KernelId(7), 2.0)],
        };
        let tuning = Tuning::of(vec![measured.clone()]);
        let order = |on: &str| {
            let asked = Asked { on, op: Op::Matmul, format: "i2_s", quantizer: None, threads: 1 };
            tuning.of_class(asked, ShapeClass(3)).map(|found| found.measured.clone())
        };
        assert_eq!(order(&gpu(&gpu_a)), Some(measured));
        assert_eq!([order(&gpu(&gpu_b)), order(cpu())], [None, None]);
        assert_eq!(tuning.not_for(&gpu_a), None);
        assert!(tuning.not_for(&gpu_b).is_some_and(|why| why.contains("this GPU is `another 9.0")));
        assert_eq!(Tuning::none().not_for(&gpu_b), None);
    }
}
