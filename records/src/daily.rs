//! Records of a day and a machine, to which each kind of run is added once.

use crate::committed::{Candle, CandleRun, Machine};
use crate::peers::{ModelRun, Models, ProductRun, Products};

/// A record of runs that were made on one machine, and on one day unless a run says another one.
pub trait Daily {
    /// One of them.
    type Run;

    /// The day and the machine.
    fn made(&self) -> (&str, &Machine);

    /// All of them.
    fn runs(&mut self) -> &mut Vec<Self::Run>;

    /// Says in a run that it was made on another day than the record; `false` where runs of a kind can't say that.
    fn put_day(_run: &mut Self::Run, _day: &str) -> bool {
        false
    }

    /// Whether two runs measure the same in the same way, so that the later one takes the place of the other.
    fn same(a: &Self::Run, b: &Self::Run) -> bool;
}

/// The record `there` with another run, or `fresh` with it alone where there is none. `None` where the run does not belong to the record that is
/// there: it is of another machine, or of another day than runs of its kind can say.
pub fn with_run<T: Daily>(there: Option<T>, fresh: T, mut run: T::Run) -> Option<T> {
    if let Some(there) = &there {
        let ((day, machine), (today, here)) = (there.made(), fresh.made());
        if machine != here || (day != today && !T::put_day(&mut run, today)) {
            return None;
        }
    }
    let mut record = there.unwrap_or(fresh);
    let runs = record.runs();
    runs.retain(|other| !T::same(other, &run));
    runs.push(run);
    Some(record)
}

impl Daily for Products {
    type Run = ProductRun;

    fn made(&self) -> (&str, &Machine) {
        (&self.date, &self.machine)
    }

    fn runs(&mut self) -> &mut Vec<ProductRun> {
        &mut self.runs
    }

    fn put_day(run: &mut ProductRun, day: &str) -> bool {
        run.date = Some(day.to_owned());
        true
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

    fn put_day(run: &mut ModelRun, day: &str) -> bool {
        run.date = Some(day.to_owned());
        true
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
