//! Records of one day and machine, to which each kind of run is added once.

use crate::committed::{Candle, CandleRun, Machine};
use crate::peers::{ModelRun, Models, ProductRun, Products};

/// A record of runs that were made on one day and machine.
pub trait Daily {
    /// One of them.
    type Run;

    /// The day and the machine.
    fn made(&self) -> (&str, &Machine);

    /// All of them.
    fn runs(&mut self) -> &mut Vec<Self::Run>;

    /// Whether two runs measure the same in the same way, so that the later one takes the place of the other.
    fn same(a: &Self::Run, b: &Self::Run) -> bool;
}

/// The record `there` with another run, or `fresh` with it alone where there is none of the same day and machine.
pub fn with_run<T: Daily>(there: Option<T>, fresh: T, run: T::Run) -> T {
    let mut record = there.filter(|there| there.made() == fresh.made()).unwrap_or(fresh);
    let runs = record.runs();
    runs.retain(|other| !T::same(other, &run));
    runs.push(run);
    record
}

impl Daily for Products {
    type Run = ProductRun;

    fn made(&self) -> (&str, &Machine) {
        (&self.date, &self.machine)
    }

    fn runs(&mut self) -> &mut Vec<ProductRun> {
        &mut self.runs
    }

    fn same(a: &ProductRun, b: &ProductRun) -> bool {
        a.peer == b.peer
    }
}

impl Daily for Models {
    type Run = ModelRun;

    fn made(&self) -> (&str, &Machine) {
        (&self.date, &self.machine)
    }

    fn runs(&mut self) -> &mut Vec<ModelRun> {
        &mut self.models
    }

    fn same(a: &ModelRun, b: &ModelRun) -> bool {
        (&a.peer, &a.model) == (&b.peer, &b.model)
    }
}

impl Daily for Candle {
    type Run = CandleRun;

    fn made(&self) -> (&str, &Machine) {
        (&self.date, &self.machine)
    }

    fn runs(&mut self) -> &mut Vec<CandleRun> {
        &mut self.candle
    }

    fn same(a: &CandleRun, b: &CandleRun) -> bool {
        (&a.target_features, a.threads, &a.command) == (&b.target_features, b.threads, &b.command)
    }
}
