//! What was run, and what is printed of it.

use super::super::error::CliError;
use super::super::files::{Decided, Without};
use super::super::held::Held;
use super::super::table::{Side, Table, bytes, counted, measured};
use super::arguments::Arguments;
use super::measure::{Accuracy, Measured, Run};
use gristmill::text::Printable;
use gristmill_records::run as records;
use std::io::Write;

/// What has been run.
#[derive(Default)]
pub(super) struct Done {
    pub(super) tensors: Vec<Measured>,
    pub(super) without: Without,
    /// Tensors whose data is no weights, and why.
    pub(super) defects: Vec<(String, String)>,
    /// Type numbers that were not enough.
    pub(super) decided: Decided,
    /// Tensors whose activations were transformed, as their file declares.
    pub(super) transformed: usize,
    /// Type and number of tensors that are not quantized.
    pub(super) plain: Vec<(&'static str, usize)>,
}

impl Done {
    pub(super) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.tensors.iter().flat_map(|tensor| &tensor.runs)
    }

    /// Bytes of all tensors that were run: as in a file, and packed.
    fn sizes(&self) -> (usize, usize) {
        let sum = |size: fn(&Measured) -> usize| self.tensors.iter().map(size).sum();
        (sum(|tensor| tensor.file_bytes), sum(|tensor| tensor.packed_bytes))
    }

    pub(super) fn print(
        &self,
        arguments: &Arguments,
        threads: usize,
        held: &Held,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let mut table = Table::new(&[
            ("tensor", Side::Left),
            ("type", Side::Left),
            ("NxK", Side::Right),
            ("m", Side::Right),
            ("kernel", Side::Left),
            ("error", Side::Left),
            ("rows checked", Side::Right),
            ("us", Side::Right),
            ("GB/s", Side::Right),
            ("GMAC/s", Side::Right),
        ]);
        for tensor in &self.tensors {
            for (i, run) in tensor.runs.iter().enumerate() {
                let first = |text: String| if i == 0 { text } else { String::new() };
                table.row([
                    first(tensor.name.clone()),
                    first(tensor.format.to_owned()),
                    match run.experts {
                        Some(of) => format!("{}x{}x{}", of.count, of.n, tensor.k),
                        None => first(format!("{}x{}", tensor.n, tensor.k)),
                    },
                    run.m.to_string(),
                    match run.experts {
                        Some(of) => format!("{} of {} experts: {}", of.per_token, of.count, run.kernel),
                        None => run.kernel.clone(),
                    },
                    run.accuracy.to_string(),
                    if run.rows_checked == tensor.n {
                        "all".to_owned()
                    } else {
                        run.rows_checked.to_string()
                    },
                    measured(run.seconds * 1e6),
                    measured(run.gigabytes_per_second()),
                    measured(run.gigamacs_per_second(tensor.n, tensor.k)),
                ]);
            }
        }
        if table.is_empty() {
            writeln!(
                out,
                "{}",
                match (self.without.count(), self.defects.len()) {
                    (0, 0) => "no tensor is quantized",
                    (_, 0) => "no quantized tensor has a kernel here",
                    (_, _) => "no tensor was run",
                }
            )?;
            return self.print_rest(arguments, out);
        }
        table.print(out)?;
        writeln!(out)?;
        // Products of whole tensors, experts all together.
        let sum = |m: usize| -> f64 {
            self.runs().filter(|run| run.m == m && run.experts.is_none()).map(|run| run.seconds).sum()
        };
        let (file, packed) = self.sizes();
        writeln!(
            out,
            "{} on {}, seed {}; weights: {} in the file, {} packed; times are medians and include what is done to the activations",
            counted(self.tensors.len(), "tensor"),
            counted(threads, "thread"),
            arguments.seed,
            bytes(file as u64),
            bytes(packed as u64)
        )?;
        held.print(out)?;
        if self.tensors.len() > 1 {
            let sums: Vec<String> =
                arguments.m.iter().map(|&m| format!("{} us at m = {m}", measured(sum(m) * 1e6))).collect();
            writeln!(out, "all of them: {}", sums.join(", "))?;
        }
        self.print_rest(arguments, out)
    }

    /// What was not run, and what was wrong.
    fn print_rest(&self, arguments: &Arguments, out: &mut dyn Write) -> Result<(), CliError> {
        if !self.plain.is_empty() {
            let plain: Vec<String> =
                self.plain.iter().map(|(name, count)| format!("{count} of {name}")).collect();
            writeln!(out, "not quantized, so not run: {}", plain.join(", "))?;
        }
        if self.transformed > 0 {
            let count = counted(self.transformed, "tensor");
            writeln!(
                out,
                "activations of {count} went through the Hadamard transform that the file declares; times are without it"
            )?;
        }
        self.decided.print(&arguments.types.numbers()?, out)?;
        self.without.print(out)?;
        for tensor in &self.tensors {
            for run in &tensor.runs {
                if let Accuracy::Wrong(what) = &run.accuracy {
                    let name = Printable(&tensor.name);
                    writeln!(out, "wrong: {name} by {}, m = {}: {what}", run.kernel, run.m)?;
                }
            }
        }
        for (tensor, what) in &self.defects {
            writeln!(out, "defective data: {}: {what}", Printable(tensor))?;
        }
        if let Some(path) = &arguments.receipt {
            writeln!(out, "receipt: {}", path.display())?;
        }
        Ok(())
    }

    pub(super) fn json(&self, arguments: &Arguments, threads: usize, held: &Held) -> records::Run {
        let rows =
            self.tensors.iter().flat_map(|tensor| tensor.runs.iter().map(move |run| product(tensor, run)));
        let (file_bytes, packed_bytes) = self.sizes();
        let defective = |(tensor, problem): &(String, String)| records::Defective {
            tensor: tensor.clone(),
            problem: problem.clone(),
        };
        let not_quantized = |(name, count): &(&str, usize)| records::NotQuantized {
            type_name: (*name).to_owned(),
            count: *count as u64,
        };
        records::Run {
            file_bytes: file_bytes as u64,
            packed_bytes: packed_bytes as u64,
            working_set: held.working_set(),
            from_memory: held.json(),
            held_once: held.once_json(),
            tensors: rows.collect(),
            without_kernel: self.without.json(),
            defective: self.defects.iter().map(defective).collect(),
            not_quantized: self.plain.iter().map(not_quantized).collect(),
            transformed: self.transformed as u64,
            threads: threads as u64,
            seed: arguments.seed,
        }
    }
}

/// A product in JSON.
fn product(tensor: &Measured, run: &Run) -> records::Product {
    records::Product {
        tensor: tensor.name.clone(),
        format: tensor.format.to_owned(),
        n: run.rows(tensor.n) as u64,
        k: tensor.k as u64,
        m: run.m as u64,
        experts: run.experts.map(|of| of.per_token as u64),
        file_bytes: tensor.file_bytes as u64,
        packed_bytes: tensor.packed_bytes as u64,
        kernel: run.kernel.clone(),
        correct: !run.accuracy.is_wrong(),
        exact: matches!(run.accuracy, Accuracy::Exact),
        nmse: match run.accuracy {
            Accuracy::Nmse(nmse) => Some(nmse),
            _ => None,
        },
        problem: match &run.accuracy {
            Accuracy::Wrong(what) => Some(what.clone()),
            _ => None,
        },
        rows_checked: run.rows_checked as u64,
        us: run.seconds * 1e6,
        gb_s: run.gigabytes_per_second(),
        gmac_s: run.gigamacs_per_second(tensor.n, tensor.k),
    }
}
