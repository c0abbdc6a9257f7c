//! How rows are divided over devices.

use crate::cuda::cycles;
use crate::device::Device;
use crate::error::Error;
use gristmill_spec::vocab::DeviceKind;

/// How many rows or tokens each device gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Shares {
    /// In proportion to multiprocessors times clock, as drivers tell them. Of GPUs alone.
    #[default]
    Cycles,
    /// All the same.
    Equal,
    /// In proportion to these, one for each device: measured speeds ([`DividedLinear::speeds`](super::DividedLinear::speeds)), say.
    Given(Vec<f64>),
}

/// The share of each device.
pub(super) fn of(devices: &[Device], shares: &Shares) -> Result<Vec<f64>, Error> {
    let refused = |why: String| Err(Error::Division { why });
    for (at, device) in devices.iter().enumerate() {
        if devices[..at].contains(device) {
            return Err(Error::Division { why: format!("{device} is named twice") });
        }
    }
    let cycles_of = |device: &Device| match device.kind {
        DeviceKind::Cuda => match cycles(device.index) {
            Ok(cycles) if cycles > 0.0 => Ok(cycles),
            Ok(_) => refused(format!(
                "the driver says of {device} that it has no clock or no multiprocessors; `Shares::Equal` and `Shares::Given` need neither"
            )),
            Err(why) => Err(Error::NoGpu { index: device.index, why }),
        },
        _ => refused(format!("of {device} no multiprocessors are known, so shares have to be given")),
    };
    let shares = match shares {
        Shares::Cycles => devices.iter().map(cycles_of).collect::<Result<_, _>>()?,
        Shares::Equal => vec![1.0; devices.len()],
        Shares::Given(shares) => shares.clone(),
    };
    check(&shares, devices.len())?;
    Ok(shares)
}

/// Refuses shares that nothing can be divided by.
pub(super) fn check(shares: &[f64], devices: usize) -> Result<(), Error> {
    let refused = |why: String| Err(Error::Division { why });
    if devices == 0 {
        return refused(String::from("there is no device"));
    }
    if shares.len() != devices {
        return refused(format!("there are {} shares for {devices} devices", shares.len()));
    }
    if let Some(share) = shares.iter().find(|share| !share.is_finite() || **share < 0.0) {
        return refused(format!("a share is {share}"));
    }
    let all: f64 = shares.iter().sum();
    if !all.is_finite() || all <= 0.0 {
        return refused(format!("the shares are {all} together"));
    }
    Ok(())
}

/// Where each device's rows end, of `n` rows: boundaries at multiples of `granule`, nearest to what the shares say. Shares are
/// [checked](check); a device without a share has no rows.
pub(super) fn ends(n: usize, shares: &[f64], granule: usize) -> Vec<usize> {
    let (all, granule) = (shares.iter().sum::<f64>(), granule.max(1));
    let last = shares.iter().rposition(|share| *share > 0.0);
    let (mut sum, mut before) = (0.0, 0);
    let each = |(device, share): (usize, &f64)| {
        sum += share;
        let wanted = n as f64 * (sum / all) / granule as f64;
        let rows = (wanted.round() as usize).saturating_mul(granule);
        let end = if last.is_none_or(|last| device >= last) { n } else { rows };
        before = if *share > 0.0 { end.clamp(before, n) } else { before };
        before
    };
    shares.iter().enumerate().map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, ends};

    #[test]
    fn rows_go_by_shares_in_whole_granules() {
        assert_eq!(ends(256, &[1.0, 1.0], 32), [128, 256]);
        // 3/4 of 100 rows are 75, and 64 is nearer than 96.
        assert_eq!(ends(100, &[3.0, 1.0], 32), [64, 100]);
        assert_eq!(ends(100, &[1.0, 2.0, 1.0], 16), [32, 80, 100]);
        // Who has no share has no rows, the last one included.
        assert_eq!(ends(100, &[0.0, 1.0, 0.0], 16), [0, 100, 100]);
        assert_eq!(ends(100, &[1.0, 0.0, 1.0, 0.0], 16), [48, 48, 100, 100]);
        // Fewer rows than a granule stay together.
        assert_eq!(ends(5, &[1.0, 1.0, 1.0], 32), [0, 0, 5]);
        assert_eq!(ends(0, &[1.0, 1.0], 32), [0, 0]);
        assert_eq!(ends(7, &[1.0, 1.0], 0), [4, 7]);
        assert_eq!(ends(usize::MAX, &[1.0, 1e300], 32).last(), Some(&usize::MAX));
    }

    #[test]
    fn shares_that_divide_nothing_are_refused() {
        assert!(check(&[1.0, 0.0], 2).is_ok());
        for shares in [
            &[][..],
            &[1.0],
            &[1.0, -1.0],
            &[1.0, f64::NAN],
            &[f64::INFINITY, 1.0],
            &[0.0, 0.0],
            &[f64::MAX; 2],
        ] {
            assert!(check(shares, 2).is_err(), "{shares:?}");
        }
    }
}
