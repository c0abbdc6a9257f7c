//! `decoder check`: whether the logits are the same bits whatever computes them.

use super::loading::{Loading, print, threads};
use crate::decoder::{Decoder, Wanted};
use crate::error::Error;
use crate::restrict::fits;
use clap::Args;
use gristmill::vocab::Isa;
use gristmill::{CpuProfile, Fnv};
use std::io::Write;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    loading: Loading,
    /// Numbers of threads, separated by commas
    #[arg(long, default_value = "1,2", value_delimiter = ',', value_parser = threads)]
    threads: Vec<usize>,
    /// Tokens to be read; without --tokens, how many are made up
    #[arg(long, default_value_t = 48)]
    count: usize,
    /// Tokens to be read
    #[arg(long, value_delimiter = ',')]
    tokens: Vec<u32>,
    /// Kernels of every instruction set of this processor, not only of the best
    #[arg(long)]
    every_isa: bool,
}

impl Check {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Error> {
        let (option, count) = match self.tokens.len() {
            0 => ("--count", self.count),
            count => ("--tokens of", count),
        };
        if count == 0 {
            return Err(Error::Asked(
                "--count 0: there are no logits to compare\n  help: --count N, from 1 on".to_owned(),
            ));
        }
        self.loading.fits(&self.loading.open()?, option, count)?;
        let isas: Vec<Option<Isa>> = if self.every_isa {
            let has = |isa: &Isa| {
                let features = CpuProfile::detect().features;
                fits(*isa) && isa.features().iter().all(|feature| features.has(*feature))
            };
            Isa::ALL.iter().copied().filter(has).map(Some).collect()
        } else {
            vec![self.loading.isa]
        };
        let mut first: Option<Fnv> = None;
        let mut differ = 0;
        for isa in isas {
            let loading = Loading { isa, ..self.loading.clone() };
            for threads in &self.threads {
                let options = loading.options(*threads);
                let mut decoder = Decoder::load(&loading.model, &options)?;
                let batch = options.batch(&decoder.config)?;
                let vocab = decoder.config.vocab;
                let tokens = match &self.tokens[..] {
                    [] => (0..self.count).map(|index| (index * 7919 % vocab) as u32).collect(),
                    tokens => tokens.to_vec(),
                };
                // Blocks that don't divide the tokens, too; each size once. They rise, so equals are neighbours.
                let mut sizes = [1, 7, tokens.len()].map(|size| size.min(batch).min(tokens.len())).to_vec();
                sizes.dedup();
                for size in sizes {
                    let way = match size {
                        1 => "token by token".to_owned(),
                        size if size == tokens.len() => "in one batch".to_owned(),
                        size => format!("in batches of {size}"),
                    };
                    decoder.rewind(0);
                    let mut digest = Fnv::EMPTY;
                    for tokens in tokens.chunks(size) {
                        digest = with(digest, decoder.feed(tokens, Wanted::All)?);
                    }
                    let name = isa.map_or("best", |isa| isa.name());
                    let same = *first.get_or_insert(digest) == digest;
                    differ += u32::from(!same);
                    let mark = if same { "" } else { "  differs" };
                    print(
                        out,
                        format_args!("{:016x}  {name:<8} {threads} threads  {way}{mark}\n", digest.get()),
                    )?;
                }
            }
        }
        if differ > 0 {
            return Err(Error::Asked(format!("{differ} digests differ from the first")));
        }
        Ok(())
    }
}

/// With the bits of logits.
fn with(digest: Fnv, logits: &[f32]) -> Fnv {
    logits.iter().fold(digest, |digest, logit| digest.with(&logit.to_bits().to_le_bytes()))
}
